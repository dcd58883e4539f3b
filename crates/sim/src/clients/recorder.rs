//! Writes down what clients asked and were answered, for the checkers.

use std::collections::HashMap;

use onecopy_core::{Csn, Instant, TxnId};

use super::schema::operations;
use crate::check::{History, MalformedHistory, Process, Status, Transaction, replay::Place};
use crate::log::{Log, Record};
use crate::plan::{Answer, Plan};

/// A transaction's place in the record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct EntryId(usize);

#[derive(Debug)]
struct Entry {
    txn: Option<TxnId>,
    transaction: Transaction,
    snapshots: Vec<Csn>,
    /// Whether its only statement, which commits too, was sent and not answered.
    unanswered: bool,
    ended: bool,
}

/// All transactions so far.
#[derive(Debug)]
pub(crate) struct Recorder {
    entries: Vec<Entry>,
    keys: u64,
}

impl Recorder {
    pub(crate) fn new(keys: u64) -> Recorder {
        Recorder { entries: Vec::new(), keys }
    }

    pub(crate) fn begin(&mut self, process: Process, now: Instant) -> EntryId {
        let transaction = Transaction {
            process,
            invoked_ns: now.0,
            completed_ns: now.0,
            status: Status::Unknown,
            operations: Vec::new(),
        };
        self.entries.push(Entry {
            txn: None,
            transaction,
            snapshots: Vec::new(),
            unanswered: false,
            ended: false,
        });
        EntryId(self.entries.len() - 1)
    }

    /// The node's name for the transaction, by which the log tells whether it committed.
    pub(crate) fn named(&mut self, entry: EntryId, txn: TxnId) {
        self.entries[entry.0].txn = Some(txn);
    }

    /// The only statement of a transaction was sent.
    pub(crate) fn sent_single(&mut self, entry: EntryId) {
        self.entries[entry.0].unanswered = true;
    }

    pub(crate) fn answered(&mut self, entry: EntryId, plan: &Plan, answer: &Answer) {
        let entry = &mut self.entries[entry.0];
        entry.unanswered = false;
        entry.add(plan, answer, self.keys);
    }

    pub(crate) fn ended(&mut self, entry: EntryId, status: Status, now: Instant) {
        let entry = &mut self.entries[entry.0];
        entry.ended = true;
        entry.transaction.status = status;
        entry.transaction.completed_ns = now.0;
    }

    /// How many transactions ended like this.
    pub(crate) fn count(&self, status: Status) -> usize {
        self.entries.iter().filter(|entry| entry.ended && entry.transaction.status == status).count()
    }

    /// The history, with the place that the log gives to each transaction.
    pub(crate) fn finish(mut self, log: &Log) -> Result<(History, Vec<Place>), MalformedHistory> {
        let csns: HashMap<TxnId, (Csn, &Record)> = log
            .iter()
            .filter_map(|(csn, record)| match record {
                Record::Commit { txn, .. } => Some((*txn, (csn, record))),
                Record::Reserve { .. } => None,
            })
            .collect();
        let mut places = Vec::new();
        for entry in &mut self.entries {
            let decided = entry.txn.and_then(|txn| csns.get(&txn));
            entry.complete(decided.map(|(_, record)| *record), self.keys);
            let snapshots = std::mem::take(&mut entry.snapshots);
            places.push(Place { csn: decided.map(|(csn, _)| *csn), snapshots });
        }
        let history = History::new(self.entries.into_iter().map(|entry| entry.transaction).collect())?;
        Ok((history, places))
    }
}

impl Entry {
    fn add(&mut self, plan: &Plan, answer: &Answer, keys: u64) {
        for operation in operations(plan, answer, keys) {
            if operation.is_read() {
                self.snapshots.push(answer.position);
            }
            self.transaction.operations.push(operation);
        }
    }

    /// Of a transaction whose only statement was never answered, what it did if the log has it; if not, and its writes
    /// show up anywhere, somebody made them up.
    fn complete(&mut self, decided: Option<&Record>, keys: u64) {
        if self.transaction.status != Status::Unknown || !self.unanswered {
            return;
        }
        if let Some(Record::Commit { writes, .. }) = decided {
            writes.iter().for_each(|kept| self.add(&kept.plan, &kept.answer, keys));
        }
    }
}
