//! Write-anywhere replication: no transactions, no order (Level 0).
//!
//! Idea. The lower end of what lazy replication may do, as an upper bound for what consistency costs: every statement stands
//! alone, writes go to all replicas and are executed as they arrive, a read goes to the least loaded replica.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Distributed Versioning (Middleware 2003), cited as DV; section 5.
//! What it shares with the protocols that promise more is in [`crate::scheduling`].
//!
//! Guarantee: none. Transactions of several statements are torn; a read may miss anything; and two writes of one table may
//! be executed in different orders by two replicas, which then differ for ever. With one scheduler and connections that
//! keep their order they are not: it takes several of either.
//!
//! Invariants: at one replica, a statement that reads a table and one that writes it do not run at once, and whichever comes
//! first runs first: the conflict resolution that the paper leaves at the proxy (DV 5.2).
//!
//! How it differs from the paper: a write is committed when it is decided and in the log, as everywhere here.

use crate::ids::Csn;
use crate::scheduling::{AnswerAfter, Loose, Order, Policy, ReadAt, Scheduling};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let order = Order::Statements(Loose::Unordered);
    let policy = Policy { answer_after: AnswerAfter::First, read_at: ReadAt::LeastLoaded, order };
    Scheduling::new("level0", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
