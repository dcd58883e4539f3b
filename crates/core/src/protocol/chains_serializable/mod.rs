//! Conflict chains in which reads count: what one update reads and another writes conflicts, too.
//!
//! Idea. Gargamel's own future work (VII): by read-write conflicts, no two updates that run beside each other could have found out in which
//! order they stand. Replicas commit in one order here, so a transaction that only reads sees a prefix of it and need not be in a chain.
//!
//! Paper: P. Cincilla, S. Monnet, M. Shapiro: Gargamel: boosting DBMS performance by parallelising write transactions (ICPADS
//! 2012), section VII.
//!
//! Guarantee: 1-copy serializability, in the order of the log (docs/protocols/chains.md, *Serializable*), if access sets name all that is
//! read. What is read may be old, but not older than what its session has written.
//!
//! How it differs from the paper: there all sites may commit in different orders, and transactions that only read are in the chains.

use crate::chaining::{InOrder, Order};
use crate::ids::Csn;
use crate::protocol::Foresight;

/// For so many real servers, all down, whose log ends at `decided`.
#[must_use]
pub fn in_order(replicas: usize, decided: Csn) -> InOrder {
    let reads = Foresight::OfReadsAndWrites;
    InOrder::new("chains_serializable", Order::OfConflicts, reads, replicas, decided)
}
