//! Each read goes to whichever replica is least loaded when it arrives, whatever it has to wait for there (VR-L).
//!
//! Idea. The comparison that shows what balancing load by single reads is worth by itself: writes are answered by the first
//! replica, as in conflict-aware scheduling, but where locks are granted or writes done is not asked when a read is
//! placed. It waits in the replica's proxy for what conflicts with it, and for what is before it in its transaction.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Conflict-Aware Scheduling for Dynamic Content Applications (USITS 2003),
//! cited as CAS; section 6.4. What it shares with the paper's other schedulers is in [`crate::scheduling`].
//!
//! Guarantee: 1-copy serializability, as the paper promises: locks, numbers and queues are those that its other
//! schedulers have, and they decide the order; where reads go decides only how long they wait.
//!
//! Invariants: those of the scheduler and the proxy, in their files. A restart is as for every protocol whose
//! [`Position`](crate::Position) is a set: gaps in `onecopy.progress` are filled from the log.
//!
//! How it differs from the paper: the paper's point that the scheduler's state need not grow with the replicas is not made
//! use of; what this is built on remembers how far each replica is, for when replicas are lost.

use crate::ids::Csn;
use crate::scheduling::{AnswerAfter, Order, Policy, ReadAt, Scheduling};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let policy =
        Policy { answer_after: AnswerAfter::First, read_at: ReadAt::LeastLoaded, order: Order::Locks };
    Scheduling::new("variable_load", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
