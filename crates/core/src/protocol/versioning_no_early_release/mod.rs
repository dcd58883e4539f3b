//! Distributed versioning whose versions are passed on at the end of a transaction only (Dversion - EarlyRel).
//!
//! Idea. The comparison that shows what early release is worth by itself: each operation waits for the versions of its own
//! tables only, as in distributed versioning, but a version is held from there to the end of its transaction.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Distributed Versioning (Middleware 2003), cited as DV; section 8.1.
//! What it shares with distributed versioning is in [`crate::scheduling`].
//!
//! Guarantee: 1-copy serializability, and each session sees its transactions in their order: versions decide the order, and a
//! later release changes how long others wait, not for whom.
//!
//! Invariants: those of the scheduler, the proxy and its gate, in their files; and nothing of a transaction of several
//! statements is let go before it has ended at the replica.
//!
//! How it differs from the paper: as distributed versioning does. (A single update carries its commit, 4.6, so where the engine
//! shows what is not committed it lets its tables go when it is done: that is its end.)

use crate::ids::Csn;
use crate::scheduling::{Acquire, AnswerAfter, Order, Policy, ReadAt, Release, Scheduling, Versioning};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let versioning =
        Versioning { acquire: Acquire::AtUse, release: Release::AtEnd, honours_staleness: false };
    let order = Order::Versions(versioning);
    let policy = Policy { answer_after: AnswerAfter::First, read_at: ReadAt::ConflictFree, order };
    Scheduling::new("versioning_no_early_release", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
