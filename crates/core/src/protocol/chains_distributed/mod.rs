//! Conflict chains with several schedulers, one a site, each of which classifies what arrives there.
//!
//! Idea. Gargamel's own future work (VII): clients are served at their site, and the schedulers agree on one order of updates. Optimistically
//! each begins with what arrived at its own site before it knows what the others have, and only where that was wrong an update is
//! rolled back and runs again.
//!
//! Paper: P. Cincilla, S. Monnet, M. Shapiro: Gargamel: boosting DBMS performance by parallelising write transactions (ICPADS
//! 2012), section VII.
//!
//! Guarantee: that of `chains`.
//!
//! Invariants, besides those of `chains`: an update is decided only when its place in the order of all sites is known and the writes of all
//! that it is behind were there when it began.
//!
//! How it differs from the paper: there is only the idea there. Here one scheduler orders the updates of all; with real nodes a consensus would.

use crate::chaining::{self, ChainsOfSites, Optimism};
use crate::ids::Csn;

/// So many sites, to which so many workers belong in turn, whose log ends at `decided`. Their replicas are down until they are reported up.
#[must_use]
pub fn new(sites: u16, optimism: Optimism, workers: usize, decided: Csn) -> ChainsOfSites {
    chaining::new_distributed("chains_distributed", sites, optimism, workers, decided)
}
