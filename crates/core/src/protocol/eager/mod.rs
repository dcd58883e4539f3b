//! Eager replication: every lock request, write and commit is done on all replicas before the client is answered.
//!
//! Idea. The comparison that shows what asynchrony is worth: the same sequence numbers, the same table locks, the same
//! writes everywhere as conflict-aware scheduling, but nobody may lag behind. So any replica will do for a read, and
//! the least loaded one is taken.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Conflict-Aware Scheduling for Dynamic Content Applications (USITS 2003),
//! cited as CAS; section 6.1. What it shares with the paper's other schedulers is in [`crate::scheduling`].
//!
//! Guarantee: 1-copy serializability, as the paper promises. (It is strict in fact: whoever was answered has committed
//! on every replica in service. Until then it holds its locks on all of them, or, a single update on an engine that shows what is not
//! committed, stands there before whoever asks later.)
//!
//! How it differs from the paper: a replica that is catching up takes part in everything, but nobody waits for it; its
//! queues make whatever reads there wait.
//!
//! Invariants: those of the scheduler and the proxy, in their files. A restart is as for every protocol whose
//! [`Position`](crate::Position) is a set: gaps in `onecopy.progress` are filled from the log.

use crate::ids::Csn;
use crate::scheduling::{AnswerAfter, Order, Policy, ReadAt, Scheduling};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let policy = Policy { answer_after: AnswerAfter::All, read_at: ReadAt::LeastLoaded, order: Order::Locks };
    Scheduling::new("eager", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
