//! Centralised writes: all updates at one worker, one after the other; reads anywhere.
//!
//! Idea. Whatever writes could conflict with whatever else writes, so there is one chain of updates ([chaining]). Nothing
//! is given up, and nothing that writes runs beside anything else that writes (IV.B: an idealised Ganymed).
//!
//! Paper: P. Cincilla, S. Monnet, M. Shapiro: Gargamel (ICPADS 2012), section IV.B, after Plattner and Alonso's Ganymed.
//!
//! Guarantee: snapshot isolation, hence parallel snapshot isolation. The worker of the updates may change when there are none.
//!
//! How it differs from the paper: it does not.

use crate::chaining::{self, Chains, InOrder, Order};
use crate::ids::Csn;
use crate::protocol::Foresight;

/// A scheduler and so many workers, whose log ends at `decided`. Their replicas are down until they are reported up.
#[must_use]
pub fn new(workers: usize, decided: Csn) -> Chains {
    chaining::new("centralised_writes", Order::OfAll, workers, decided)
}

/// The same for as many real servers, all down, which commit in the order of the log.
#[must_use]
pub fn in_order(replicas: usize, decided: Csn) -> InOrder {
    InOrder::new("centralised_writes", Order::OfAll, Foresight::OfWrites, replicas, decided)
}
