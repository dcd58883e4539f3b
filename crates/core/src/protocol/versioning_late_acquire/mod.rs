//! Distributed versioning whose transactions wait for all their versions at the start (Dversion - LateAcq).
//!
//! Idea. The comparison that shows what selective waiting is worth by itself: a version is passed on when its table has been
//! used for the last time, as in distributed versioning, but before its first statement a transaction waits for all of them.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Distributed Versioning (Middleware 2003), cited as DV; section 8.1.
//! What it shares with distributed versioning is in [`crate::scheduling`].
//!
//! Guarantee: 1-copy serializability, and each session sees its transactions in their order: versions decide the order, and
//! who waits earlier waits for the same.
//!
//! Invariants: those of the scheduler, the proxy and its gate, in their files; and no statement runs at a replica before the
//! versions of all tables are there that its transaction has not let go.
//!
//! How it differs from the paper: as distributed versioning does. The paper does not say where a transaction waits; here its
//! first statement does, a write at each proxy and a read at the scheduler, as all statements do.

use crate::ids::Csn;
use crate::scheduling::{Acquire, AnswerAfter, Order, Policy, ReadAt, Release, Scheduling, Versioning};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let versioning =
        Versioning { acquire: Acquire::AtStart, release: Release::AtLastUse, honours_staleness: false };
    let order = Order::Versions(versioning);
    let policy = Policy { answer_after: AnswerAfter::First, read_at: ReadAt::ConflictFree, order };
    Scheduling::new("versioning_late_acquire", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
