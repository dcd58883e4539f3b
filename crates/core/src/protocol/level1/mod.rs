//! Writes in one order at all replicas, reads anywhere (Level 1).
//!
//! Idea. What suffices for discussion groups: replicas agree in the end, since each statement that writes gets versions of its
//! tables and is executed in their order everywhere; a read goes to the least loaded replica and reads what is there.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Distributed Versioning (Middleware 2003), cited as DV; section 5.
//! What it shares with the protocols that promise more is in [`crate::scheduling`].
//!
//! Guarantee: none for transactions, which are torn into their statements. Replicas agree. A read may be as old as its replica,
//! even older than what its own client has written.
//!
//! Invariants: writes that conflict are executed in the order of their versions, at every replica; a read does not run while
//! one of its tables is written.
//!
//! How it differs from the paper: the paper does not say what a read waits for at its replica. Here it is what is being written
//! there, or would be but for other reads, so that reads cannot keep writes out for ever.

use crate::ids::Csn;
use crate::scheduling::{AnswerAfter, Loose, Order, Policy, ReadAt, Scheduling};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let order = Order::Statements(Loose::OrderedWrites);
    let policy = Policy { answer_after: AnswerAfter::First, read_at: ReadAt::LeastLoaded, order };
    Scheduling::new("level1", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
