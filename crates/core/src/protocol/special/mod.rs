//! Distributed versioning for updates and for reads that must be fresh; what may be stale reads what is there, but never half
//! an update.
//!
//! Idea. An application knows which of its pages may show old data. TPC-W lets searches, new products, best sellers and product
//! details be 30 seconds old, and wants customers to see their own state as it is. So a read that may be stale goes to the
//! least loaded replica that is not older, and does not wait there for updates that have not begun.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Distributed Versioning (Middleware 2003), cited as DV; section 5.1 and 6.1.
//! What it shares with distributed versioning is in [`crate::scheduling`]; what may be stale is
//! told with each transaction ([`Begin::stale_ok_ns`](crate::Begin)), in TPC-W by the interaction.
//!
//! Guarantee: 1-copy serializability; whoever does not say that old data will do also sees the transactions of its session in
//! their order. A stale single read takes its place behind the last update that has begun at its replica, so it sees each update
//! whole or not at all.
//!
//! Invariants: those of the scheduler, the proxy and its gate, in their files.
//!
//! How it differs from the paper: the paper names its rules ad hoc. Here they are: only a transaction of one read may be stale
//! (all of TPC-W's are such); a replica is too old if it lacks an update that some replica committed longer ago than
//! the bound and that writes one of the read's tables; if every replica is, the read is served like a fresh one.

use crate::ids::Csn;
use crate::scheduling::{Acquire, AnswerAfter, Order, Policy, ReadAt, Release, Scheduling, Versioning};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let versioning =
        Versioning { acquire: Acquire::AtUse, release: Release::AtLastUse, honours_staleness: true };
    let order = Order::Versions(versioning);
    let policy = Policy { answer_after: AnswerAfter::First, read_at: ReadAt::ConflictFree, order };
    Scheduling::new("special", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
