//! Conflict-aware scheduling: every write goes to every replica, each read to a replica without conflicts.
//!
//! Idea. Every transaction names the tables that it will touch, and gets a sequence number at its start. Every replica
//! queues the table locks of all transactions in the order of these numbers, so conflicting operations take place in
//! one order everywhere, without any further agreement between replicas. They need not keep pace: the client hears from
//! the first replica that has done its write, and the scheduler, which knows how far each replica has got, sends a read
//! where everything that the read has to wait for is done already.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Conflict-Aware Scheduling for Dynamic Content Applications (USITS 2003),
//! cited as CAS; sections 3 to 5. What it shares with the paper's other schedulers is in [`crate::scheduling`], and
//! there it is told where we depart from the paper.
//!
//! Guarantee: 1-copy serializability. Transactions are ordered by their sequence numbers, since a lock request enters a
//! replica's queues only after all with smaller numbers. A single read has no number: it stands, at its replica, behind
//! the number processed last. (The paper promises agreement with real time within a session only. With several schedulers a read
//! may reach a replica before the lock request of an update that is finished elsewhere. With one scheduler and ordered
//! connections, as here, the lock request is ahead of every later read on its way to every replica, so the order is
//! strict.)
//!
//! Invariants: those of the scheduler and the proxy, in their files.
//!
//! A restart. The log holds every decision in CSN order, each replica one row of `onecopy.progress` for each commit that it
//! contains, and those may have gaps. The driver reports as `applied` the CSN before the first gap; the replica's proxy
//! then applies from there to the end of the log, and the driver passes over what has its row. Sequence numbers start
//! again with the process, since no transaction survives it (CAS 5.2).

use crate::ids::Csn;
use crate::scheduling::{AnswerAfter, Order, Policy, ReadAt, Scheduling};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let policy =
        Policy { answer_after: AnswerAfter::First, read_at: ReadAt::ConflictFree, order: Order::Locks };
    Scheduling::new("conflict_aware", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
