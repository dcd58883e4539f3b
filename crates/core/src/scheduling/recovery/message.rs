//! What the roles say to each other.

use std::collections::BTreeMap;

use crate::ids::{Epoch, NodeId, ReplicaId, SequenceNumber, TxnId};
use crate::item::TableId;
use crate::table_queues::TableLocks;

/// A write query: which table it changes, and by what the driver finds its text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Query {
    /// The table.
    pub table: TableId,
    /// The driver's.
    pub text: u64,
}

/// How a transaction ended.
#[derive(Clone, PartialEq, Debug)]
pub enum End {
    /// It is to be committed.
    Committed {
        /// What it locks.
        locks: TableLocks,
        /// What it writes, in its order; nothing, if it has only read.
        writes: Vec<Query>,
    },
    /// It never was.
    Aborted,
}

impl End {
    /// What must reach every database.
    #[must_use]
    pub fn writes(&self) -> &[Query] {
        match self {
            End::Committed { writes, .. } => writes,
            End::Aborted => &[],
        }
    }
}

/// What a scheduler knows of a transaction.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// Whose it is: who began it, or has taken it over.
    pub coordinator: NodeId,
    /// Its decision, if it is known.
    pub end: Option<End>,
    /// Nobody can give the decision up any more, so databases may be told of it.
    pub decided: bool,
}

/// What a database contains: everything up to a number, and beyond it for each table everything up to the table's.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// Up to here every transaction has ended at the database.
    pub ended: SequenceNumber,
    /// The last committed write of each table (5.3).
    pub tables: BTreeMap<TableId, SequenceNumber>,
}

/// What a proxy says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// What was committed last.
    pub tables: BTreeMap<TableId, SequenceNumber>,
    /// Every lock request up to this one has come. (The paper has the highest that has: open 11.)
    pub processed: SequenceNumber,
    /// Those up to there that have not ended.
    pub open: Vec<SequenceNumber>,
    /// Up to here everything has ended in the last checkpoint (open 7).
    pub checkpoint: SequenceNumber,
}

impl Standing {
    /// Whether a transaction is committed there, for which one write is enough: writers of a table are committed in the order of
    /// their numbers, and all writes of a transaction at once.
    #[must_use]
    pub fn contains(&self, number: SequenceNumber, writes: &[Query]) -> bool {
        writes.iter().any(|query| self.tables.get(&query.table).is_some_and(|last| *last >= number))
    }
}

/// A message between two roles.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Scheduler to sequencer: a transaction starts (5.2).
    NumberRequest {
        /// Which.
        txn: TxnId,
        /// The sequencer that is asked; its successor is asked again.
        epoch: Epoch,
        /// Up to here everything is over, so nobody will ask to whom it was given.
        floor: SequenceNumber,
    },
    /// Sequencer to scheduler (5.2).
    Number {
        /// Whose.
        txn: TxnId,
        /// Its number.
        number: SequenceNumber,
        /// Of this sequencer; of an earlier one it does not count.
        epoch: Epoch,
    },
    /// Sequencer to schedulers, when it begins: which numbers do you know?
    KnownRequest {
        /// Its epoch. Numbers of earlier ones count no more.
        epoch: Epoch,
    },
    /// Their answer.
    Known {
        /// Which sequencer asked.
        epoch: Epoch,
        /// All up to here are over.
        floor: SequenceNumber,
        /// The last that it has heard of.
        last: SequenceNumber,
        /// Those between that are somebody's, and whose.
        numbers: Vec<(SequenceNumber, NodeId)>,
    },
    /// Sequencer to schedulers: it gives numbers now.
    NewEpoch {
        /// Its epoch.
        epoch: Epoch,
        /// The last that was given before.
        last: SequenceNumber,
    },
    /// Their answer: none up to the last is given again, whoever is left.
    EpochRecorded {
        /// Of which.
        epoch: Epoch,
    },
    /// Sequencer to schedulers, when all have answered: these were given, and are nobody's (open 2).
    Void {
        /// Its epoch.
        epoch: Epoch,
        /// Numbers.
        numbers: Vec<SequenceNumber>,
    },

    /// Scheduler to all others, `replicate_start_transaction` (5.2).
    ReplicateStart {
        /// Which.
        number: SequenceNumber,
    },
    /// Their answer.
    StartRecorded {
        /// Which.
        number: SequenceNumber,
    },
    /// Scheduler to all others, `replicate_end_transaction` (5.3).
    ReplicateEnd {
        /// Which.
        number: SequenceNumber,
        /// How it is to end.
        end: End,
    },
    /// Their answer, to a commit.
    EndRecorded {
        /// Which.
        number: SequenceNumber,
    },
    /// Scheduler to all others: all have it, and it is on disk (open 3).
    Decided {
        /// Which.
        number: SequenceNumber,
    },

    /// Scheduler to proxy: queue these locks (4.4).
    Lock {
        /// Which.
        number: SequenceNumber,
        /// Locks.
        locks: TableLocks,
    },
    /// Scheduler to proxy: execute this (4.5).
    Write {
        /// In which.
        number: SequenceNumber,
        /// The how many-th write of its transaction, from 0 (open 6).
        index: usize,
        /// What.
        query: Query,
    },
    /// Scheduler to proxy: it is decided (4.7).
    Commit {
        /// Which.
        number: SequenceNumber,
        /// How many writes it has (open 6).
        writes: usize,
    },
    /// Scheduler to proxy: roll back, if there is anything, and wait for this number no more (4.7, 5.3.1).
    Abort {
        /// Which.
        number: SequenceNumber,
    },

    /// The fail-over scheduler to the other ones and the sequencer: what do you know of those that failed? (5.3.1)
    TakeOver {
        /// How many have failed; answers to an earlier question do not count.
        round: usize,
        /// Who.
        failed: Vec<NodeId>,
    },
    /// The sequencer's answer: what it has given them (open 2).
    Given {
        /// Of which sequencer.
        epoch: Epoch,
        /// To which question.
        round: usize,
        /// Numbers.
        numbers: Vec<SequenceNumber>,
    },
    /// A scheduler's answer: its records of their transactions.
    Held {
        /// To which question.
        round: usize,
        /// Numbers, with their decisions.
        records: Vec<(SequenceNumber, Option<End>)>,
    },
    /// The fail-over scheduler to the other ones: how they end (open 4).
    Outcome {
        /// Of which question.
        round: usize,
        /// Numbers and ends.
        ends: Vec<(SequenceNumber, End)>,
    },
    /// Their answer.
    OutcomeRecorded {
        /// To which.
        round: usize,
    },
    /// The fail-over scheduler to the proxies: what do you lack? (5.3.1)
    StandingRequest,

    /// A new scheduler to the others (5.3.1).
    Joining,
    /// Their answer: everything they know.
    Copy {
        /// The sequencer's epoch.
        epoch: Epoch,
        /// Whether that is all there is to know: it has joined itself.
        complete: bool,
        /// Who has failed so far, and may not have been taken over from yet.
        failed: Vec<NodeId>,
        /// All up to here are over.
        floor: SequenceNumber,
        /// The last number that it has heard of.
        last: SequenceNumber,
        /// What is between.
        records: Vec<(SequenceNumber, Record)>,
    },

    /// Proxy to all schedulers: it has come further.
    Reached(Standing),
    /// Proxy to one scheduler: send what is missing (5.3.2).
    Missing(Standing),
    /// Scheduler to proxy: this is decided; what of it you have is undone, and done again in its place (5.3.1, open 5).
    Replay {
        /// Which.
        number: SequenceNumber,
        /// Its locks.
        locks: TableLocks,
        /// All of its writes.
        writes: Vec<Query>,
    },

    /// Proxy to all schedulers: its database has come back, without contents (5.3.3).
    Rejoin,
    /// Their answer: it is sent what begins from now on.
    Admitted,
    /// Proxy to one of them, when all have admitted it.
    SnapshotRequest,
    /// The answer.
    SnapshotFrom {
        /// Whose; none, if no other database is there.
        donor: Option<ReplicaId>,
    },
}
