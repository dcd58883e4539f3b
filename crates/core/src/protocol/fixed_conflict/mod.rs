//! One replica serves a transaction from its start to its end: the first that grants its locks (FR-C).
//!
//! Idea. The comparison that shows what avoiding conflicts is worth by itself: as the load balancer with one replica for a
//! transaction, but that replica is one where nothing stands in the way, rather than the least loaded.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Conflict-Aware Scheduling for Dynamic Content Applications (USITS 2003),
//! cited as CAS; section 6.3. What it shares with the paper's other schedulers is in [`crate::scheduling`].
//!
//! Guarantee: 1-copy serializability, as the paper promises: locks, numbers and queues are those that its other
//! schedulers have, and they decide the order; where reads go decides only how long they wait.
//!
//! Invariants: those of the scheduler and the proxy, in their files. A restart is as for every protocol whose
//! [`Position`](crate::Position) is a set: gaps in `onecopy.progress` are filled from the log.
//!
//! How it differs from the paper, beside what is lost with a chosen replica (the first answer of the others counts then):
//! the paper does not say how a transaction of one read is served, which asks for no locks beforehand. Here it goes to the
//! least loaded replica among those where the scheduler knows of no conflict, as in conflict-aware scheduling (4.8): to send
//! reads where they meet none is how the paper explains that this scheduler does well where reads dominate (8.1).

use crate::ids::Csn;
use crate::scheduling::{AnswerAfter, FixedBy, Order, Policy, ReadAt, Scheduling};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let policy = Policy {
        answer_after: AnswerAfter::Chosen,
        read_at: ReadAt::Chosen(FixedBy::FirstGrant),
        order: Order::Locks,
    };
    Scheduling::new("fixed_conflict", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
