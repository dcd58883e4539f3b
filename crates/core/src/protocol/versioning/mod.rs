//! Distributed versioning: conflicting operations run in the order of versions of tables, each of which is waited for only when
//! it is needed, and is passed on as soon as it is not needed any more.
//!
//! Idea. At its start a transaction is given a version of each table that it will touch, all at once, and waits for nothing. A
//! write runs at each replica when its tables' versions are there exactly, a read when they are there or only readers have
//! passed them; so conflicting operations of different transactions are pipelined, where table locks held from start to end
//! would run the transactions one after the other. The scheduler knows what each replica has come to, and sends a read where
//! it need not wait.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Distributed Versioning (Middleware 2003), cited as DV; sections 3 and 4. It shares
//! scheduler, sequencer, proxies and messages with the same authors' conflict-aware scheduling, in [`crate::scheduling`]; what
//! it reckons with is in [`crate::table_versions`].
//!
//! Guarantee: 1-copy serializability, and each session sees its transactions in their order. Transactions are ordered by their
//! sequence numbers, with which they get their versions. A single read has no versions; where it stands in that order is told in
//! `scheduling/scheduler/versions.rs`. The order need not agree with real time across sessions: a read stands before an open
//! update that has written nothing of what it reads, though somebody who comes after that update may have been answered.
//! Where databases commit in the order of decisions and show nothing before, that order is one, and it agrees with real time:
//! docs/protocols/real_servers.md, *Single reads*.
//!
//! Invariants: those of the scheduler, the proxy and its gate, in their files; and
//! - of two transactions that conflict, the earlier has the lower version of every table on which they do;
//! - a table that was written is let go before its transaction is committed only where others may find it (below).
//!
//! How it differs from the paper:
//! - *A table that was written* is released at its last use only if the engine shows others what is not committed
//!   ([`Engine::shows_uncommitted`](crate::protocol::Engine)). The simulator's databases may; those of real servers do not, and
//!   there it is released when the transaction is committed at that replica. What was only read is released at its last use
//!   everywhere. The paper does not say what becomes of those who have found what is rolled back afterwards: with such an engine
//!   they keep it here, too.
//! - *A version is produced in its turn.* The paper's proxy counts, so a transaction that does not use what it declared, or is
//!   aborted, would let those pass who must wait for somebody else. Here its release waits for its turn.
//! - *A single update* carries its release as in the paper, where the engine allows that. Its commit follows when the
//!   decision is durable, as for every transaction here: a statement that fails must not be in the log.
//! - *A single read* stands in one order with the updates, and later writes of its tables wait for it at its replica, unless databases
//!   commit in the order of decisions and show nothing before.
//! - *The whole database* may be wanted, by whoever does not say what it will touch, and is a table of its own. Only a single
//!   read of it has versions.
//! - What is not treated in the paper (replicas that come back, statements that fail, sessions) is as in conflict-aware
//!   scheduling. What is applied from the log has all versions of its transaction.

use crate::ids::Csn;
use crate::scheduling::{Acquire, AnswerAfter, Order, Policy, ReadAt, Release, Scheduling, Versioning};

/// Its roles for `replicas` servers, all down, whose log ends at `decided`.
#[must_use]
pub fn new(replicas: usize, decided: Csn) -> Scheduling {
    let versioning =
        Versioning { acquire: Acquire::AtUse, release: Release::AtLastUse, honours_staleness: false };
    let order = Order::Versions(versioning);
    let policy = Policy { answer_after: AnswerAfter::First, read_at: ReadAt::ConflictFree, order };
    Scheduling::new("versioning", policy, replicas, decided)
}

#[cfg(test)]
mod tests;
