//! Writes in one order at all replicas; reads at most 30 seconds old, and never older than what their client wrote (Level 2).
//!
//! Idea. What an auction site is said to need: a bidder sees his earlier bids, and a maximum that is recent. So the scheduler
//! remembers which replica has done what and since when, and keeps reads from those that are too far behind.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Distributed Versioning (Middleware 2003), cited as DV; section 5.
//! What it shares with the protocols that promise more is in [`crate::scheduling`].
//!
//! Guarantee: none for transactions, which are torn into their statements. Replicas agree, and each read sees the writes that its
//! session was answered before.
//!
//! Invariants: those of Level 1; and a read goes to no replica that lacks a write of its session, or a write of one of its
//! tables that some replica committed more than [`STALE_MAX_NS`] ago. It waits at the scheduler until there is one that lacks
//! none.
//!
//! How it differs from the paper: the paper stamps each table of each replica with the time of its last write. That does not
//! tell a table that nobody writes from one that is behind, so writes are stamped, when the first replica has committed them.

use crate::ids::Csn;
use crate::scheduling::{AnswerAfter, Loose, Order, Policy, ReadAt, Scheduling};

/// How old what is read may be, in nanoseconds: 30 seconds for all of the paper's applications (DV 5.2).
pub const STALE_MAX_NS: u64 = 30_000_000_000;

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let order = Order::Statements(Loose::BoundedReads(STALE_MAX_NS));
    let policy = Policy { answer_after: AnswerAfter::First, read_at: ReadAt::LeastLoaded, order };
    Scheduling::new("level2", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
