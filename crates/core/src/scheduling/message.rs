//! What the roles say to each other.

use crate::event::Outcome;
use crate::ids::{Csn, OpId, ReplicaId, SequenceNumber, TxnId};
use crate::table_queues::TableLocks;
use crate::table_versions::{Picked, Reached, Versions};

/// The versions with which an operation is tagged (DV 4.3, 4.6); nothing where locks decide.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tag {
    /// All of its transaction's.
    pub versions: Versions,
    /// Those that the operation waits for, or lets go.
    pub concerned: Picked,
}

/// Behind what a single read must stand at its replica.
#[derive(Clone, PartialEq, Debug)]
pub enum Behind {
    /// Locks decide: this number, the last of its session's updates (CAS 4.8).
    Number(SequenceNumber),
    /// Versions decide, and these must be there (DV 4.3).
    Versions(Versions),
    /// Nothing but what is being written there: the level is loose (DV 5.2).
    WhatIsDue,
    /// Half-done updates only, since what is read may be old: those of these that have begun there, and all before them.
    WhatHasBegun(Vec<Ahead>),
}

/// An update that writes what a read is about to read.
#[derive(Clone, PartialEq, Debug)]
pub struct Ahead {
    /// Its place in the order.
    pub number: SequenceNumber,
    /// Which it is.
    pub txn: TxnId,
    /// The versions that are there when it is done.
    pub done: Versions,
}

/// A message between two roles of a scheduling protocol; sections are those of the CAS paper where no other is named.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Scheduler to sequencer: a transaction starts (4.4).
    NumberRequest {
        /// The transaction.
        txn: TxnId,
        /// All tables that it will touch, where versions of them are wanted (DV 4.2).
        tables: TableLocks,
    },
    /// Sequencer to scheduler: its place in the order (4.4).
    Number {
        /// The transaction.
        txn: TxnId,
        /// The number.
        number: SequenceNumber,
        /// The versions of its tables, where they were wanted (DV 4.2).
        versions: Versions,
    },

    /// Scheduler to every proxy: queue these locks (4.4).
    LockRequest {
        /// The transaction.
        txn: TxnId,
        /// Its place in the order.
        number: SequenceNumber,
        /// All tables that it will touch.
        locks: TableLocks,
    },
    /// Scheduler to every proxy: the lock request and the only statement of a transaction in one (4.9; DV 4.6).
    SingleUpdate {
        /// The transaction.
        txn: TxnId,
        /// Its place in the order.
        number: SequenceNumber,
        /// The statement.
        op: OpId,
        /// All tables that it touches.
        locks: TableLocks,
        /// Their versions, where versions decide.
        versions: Versions,
        /// Whether they are let go when it is done, before its commit.
        releases: bool,
    },
    /// Scheduler to every proxy: nobody uses this number (5.3.1: "fill the gap").
    Void {
        /// The number.
        number: SequenceNumber,
        /// The versions that were given out with it.
        versions: Versions,
    },
    /// Scheduler to one proxy: a transaction that is one read. Its locks are queued here only (4.8; DV 4.3).
    SingleRead {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// All tables that it reads.
        locks: TableLocks,
        /// What must be there first.
        behind: Behind,
    },
    /// Scheduler to every proxy: execute this statement (4.5).
    Write {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// What it waits for.
        tag: Tag,
    },
    /// Scheduler to one proxy: execute this read (4.5).
    Read {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// What it waits for.
        tag: Tag,
        /// Whether it is the whole transaction.
        alone: bool,
    },
    /// Scheduler to every proxy: the transaction has used these tables for the last time (DV 4.5).
    Release {
        /// The transaction.
        txn: TxnId,
        /// The tables.
        tag: Tag,
    },
    /// Scheduler to every proxy: commit, the decision is durable (4.7, 5.3).
    Commit {
        /// The transaction.
        txn: TxnId,
        /// The decision.
        csn: Csn,
        /// What it still holds is let go with it.
        tag: Tag,
    },
    /// Scheduler to one proxy: commit what wrote nothing, and so answer the client (4.7).
    Finish {
        /// The transaction.
        txn: TxnId,
        /// The commit request that is answered by it.
        op: OpId,
        /// What it still holds is let go with it.
        tag: Tag,
    },
    /// Scheduler to every proxy: end the transaction without committing it (4.7).
    Abort {
        /// The transaction.
        txn: TxnId,
        /// What it still holds is let go with it.
        tag: Tag,
    },
    /// Scheduler to every proxy: apply a decision that is nobody's transaction and conflicts with nothing (a
    /// reservation of sequence values).
    Apply {
        /// The decision.
        csn: Csn,
    },
    /// Scheduler to one proxy: the statement that failed here failed elsewhere too, go on.
    Resume {
        /// The transaction.
        txn: TxnId,
    },
    /// Scheduler to one proxy: a statement failed here and not elsewhere, so let go of the transaction here, keep its
    /// locks, and apply it when it is decided.
    Detach {
        /// The transaction.
        txn: TxnId,
    },
    /// Scheduler to one proxy: the answer to `Up` (5.3.3).
    Join {
        /// Of which `Up` this is the answer.
        incarnation: u32,
        /// The first decision that is missing here.
        from: Csn,
        /// The last decision that is durable.
        to: Csn,
        /// The last sequence number that was sent to the proxies before this.
        number: SequenceNumber,
        /// Transactions that started before and are not among those decisions, in sequence order.
        open: Vec<OpenTxn>,
        /// The versions that are there when those decisions are applied, where versions decide.
        reached: Box<Reached>,
    },

    /// Proxy to scheduler: every lock of the transaction is granted here (4.4).
    Granted {
        /// The transaction.
        txn: TxnId,
        /// The proxy's replica.
        replica: ReplicaId,
    },
    /// Proxy to scheduler: the database has answered (4.6).
    Done {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// The proxy's replica.
        replica: ReplicaId,
        /// What came of it.
        outcome: Outcome,
        /// How long the database took; feeds the load estimate (4.10).
        elapsed_ns: u64,
    },
    /// Proxy to scheduler: the database has answered what was under way when the replica was lost. Only a read is still waited
    /// for.
    Late {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// The proxy's replica.
        replica: ReplicaId,
        /// What came of it.
        outcome: Outcome,
        /// How long the database took.
        elapsed_ns: u64,
    },
    /// Proxy to scheduler: what was to be released is let go here (DV 4.5).
    Released {
        /// The transaction.
        txn: TxnId,
        /// The proxy's replica.
        replica: ReplicaId,
        /// The tables, by the places of their versions.
        tables: Picked,
    },
    /// Proxy to scheduler: the transaction is committed or aborted here and its locks are let go (4.7).
    Ended {
        /// The transaction.
        txn: TxnId,
        /// The proxy's replica.
        replica: ReplicaId,
    },
    /// Proxy to scheduler: what the transaction had open here is gone, between two of its statements.
    LaneLost {
        /// The transaction.
        txn: TxnId,
        /// The proxy's replica.
        replica: ReplicaId,
    },
    /// Proxy to scheduler: the replica may serve.
    Up {
        /// The proxy's replica.
        replica: ReplicaId,
        /// Counts how often the replica came up.
        incarnation: u32,
        /// It contains everything up to this decision.
        applied: Csn,
    },
    /// Proxy to scheduler: a part of what was missing is applied.
    CaughtUp {
        /// The proxy's replica.
        replica: ReplicaId,
        /// The last decision of that part.
        through: Csn,
        /// Whether this was the last part.
        complete: bool,
    },
    /// Proxy to scheduler: the replica is gone.
    Down {
        /// The proxy's replica.
        replica: ReplicaId,
        /// Reads that were queued here and had not been sent to the database.
        unsent: Vec<(TxnId, OpId)>,
    },
}

/// A transaction that is under way when a replica comes back.
#[derive(Clone, PartialEq, Debug)]
pub struct OpenTxn {
    /// The transaction.
    pub txn: TxnId,
    /// All tables that it touches.
    pub locks: TableLocks,
    /// Their versions, where versions decide.
    pub versions: Versions,
}
