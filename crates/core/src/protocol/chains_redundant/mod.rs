//! Conflict chains in which what others wait for is executed at several workers, as long as there are idle ones.
//!
//! Idea. Gargamel's own future work (VII): where a chain splits, its branches wait for the worker of their common prefix. A worker that has
//! nothing else to do executes the unfinished part of that prefix for itself, with the branch behind it, so whichever worker is first
//! serves all of them. That favours speed over the use of resources.
//!
//! Paper: P. Cincilla, S. Monnet, M. Shapiro: Gargamel: boosting DBMS performance by parallelising write transactions (ICPADS
//! 2012), section VII.
//!
//! Guarantee: that of `chains`. Two executions of one transaction need not write the same, since what they read may differ where only writes
//! count; so the first to be decided counts, the others are rolled back, and their workers apply its writes.
//!
//! Invariants, besides those of `chains`: an update is decided once; nothing of another execution of it is left where its writes are applied.
//!
//! How it differs from the paper: there a site stands for several workers, and executes the prefix of all split chains; here idle workers do,
//! and some of these are kept for what arrives.

use crate::chaining::{self, Chains, Order, Redundancy};
use crate::ids::Csn;

/// A quarter of the workers is kept for what arrives; who would have to execute more than four updates waits instead.
const REDUNDANCY: Redundancy = Redundancy { kept_part: 4, longest: 4 };

/// A scheduler and so many workers, whose log ends at `decided`. Their replicas are down until they are reported up.
#[must_use]
pub fn new(workers: usize, decided: Csn) -> Chains {
    chaining::new_redundant("chains_redundant", Order::OfConflicts, REDUNDANCY, workers, decided)
}
