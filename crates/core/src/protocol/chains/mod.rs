//! Conflict chains (Gargamel): conflicting updates run one after the other, others in parallel, each at one worker.
//!
//! Idea. A transaction arrives whole, and what it may write is known before it runs, so it is put behind those that it conflicts with
//! ([chaining]), and nothing is ever given up for a conflict. In effect the database is partitioned anew for each
//! transaction (docs/protocols/chains.md).
//!
//! Paper: P. Cincilla, S. Monnet, M. Shapiro: Gargamel: boosting DBMS performance by parallelising write transactions (ICPADS
//! 2012), sections II and III.
//!
//! Guarantee: parallel snapshot isolation, if access sets name what is written; 1-copy serializability, if they name what is
//! read as well and read-only transactions come as updates do. Read-only transactions are else not delayed for writes, and may see an
//! old state.
//!
//! Invariants:
//! - of two updates that conflict, the later starts where the writes of the earlier are;
//! - a worker runs one transaction at a time;
//! - a worker applies a write set after everything that its origin contained when it committed.
//!
//! How it differs from the paper: where several chains meet, the longest goes on; the paper does not say which. Replicas fail, return and join.

use crate::chaining::{self, Chains, InOrder, Order};
use crate::ids::Csn;
use crate::protocol::Foresight;

/// A scheduler and so many workers, whose log ends at `decided`. Their replicas are down until they are reported up.
#[must_use]
pub fn new(workers: usize, decided: Csn) -> Chains {
    chaining::new("chains", Order::OfConflicts, workers, decided)
}

/// The same for as many real servers, all down, which commit in the order of the log.
#[must_use]
pub fn in_order(replicas: usize, decided: Csn) -> InOrder {
    InOrder::new("chains", Order::OfConflicts, Foresight::OfWrites, replicas, decided)
}
