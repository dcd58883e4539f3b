//! A load balancer that is lazy: one replica serves a transaction from its start to its end, the least loaded (FR-L).
//!
//! Idea. The comparison that shows what it is worth to know about conflicts: locks, numbers and writes everywhere as in
//! conflict-aware scheduling, but the scheduler only picks a replica when a transaction starts, reads there, and
//! answers when that replica has answered. It need not remember anything else of a transaction.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Conflict-Aware Scheduling for Dynamic Content Applications (USITS 2003),
//! cited as CAS; section 6.2. What it shares with the paper's other schedulers is in [`crate::scheduling`].
//!
//! Guarantee: 1-copy serializability, as the paper promises: locks, numbers and queues are those that its other
//! schedulers have, and they decide the order; where reads go decides only how long they wait.
//!
//! Invariants: those of the scheduler and the proxy, in their files. A restart is as for every protocol whose
//! [`Position`](crate::Position) is a set: gaps in `onecopy.progress` are filled from the log.
//!
//! How it differs from the paper: the scheduler does remember how far each replica is, since what it is built on needs
//! that when replicas are lost; it makes no use of it here. If the chosen replica is lost, the first answer of the others
//! counts, and the next read goes to the least loaded of them. The choice is made when the transaction's number has come
//! back from the sequencer, one message after its start.

use crate::ids::Csn;
use crate::scheduling::{AnswerAfter, FixedBy, Order, Policy, ReadAt, Scheduling};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let policy = Policy {
        answer_after: AnswerAfter::Chosen,
        read_at: ReadAt::Chosen(FixedBy::Load),
        order: Order::Locks,
    };
    Scheduling::new("fixed_load", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
