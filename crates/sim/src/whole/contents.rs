//! What workers hold: for each register the transaction that wrote it last; and what clients saw of that.

use std::collections::BTreeMap;

use onecopy_core::map::HashMap;
use onecopy_core::{Instant, ReplicaId, TxnId};

use super::Arriving;
use crate::check::{History, MalformedHistory, Operation, Process, Register, Status, Transaction, Value};

/// Of each worker, the last writer of each register.
#[derive(Debug)]
pub(super) struct Contents {
    workers: Vec<BTreeMap<u64, TxnId>>,
    /// Of each execution that was begun, what it found in what it reads and in what it writes.
    begun: HashMap<(TxnId, ReplicaId), Found>,
    /// The same of the execution that counts.
    found: HashMap<TxnId, Found>,
    /// The last transaction that was decided, by register.
    newest: HashMap<u64, TxnId>,
}

#[derive(Debug)]
struct Found {
    reads: Vec<Option<TxnId>>,
    writes: Vec<(u64, Option<TxnId>)>,
}

impl Contents {
    pub(super) fn new(workers: usize) -> Contents {
        let workers = (0..workers).map(|_| BTreeMap::new()).collect();
        Contents { workers, begun: HashMap::default(), found: HashMap::default(), newest: HashMap::default() }
    }

    /// A transaction begins on what a worker holds.
    pub(super) fn begin(&mut self, txn: TxnId, worker: ReplicaId, reads: &[u64], writes: &[u64]) {
        if reads.is_empty() && writes.is_empty() {
            return;
        }
        let holds = &self.workers[usize::from(worker.0)];
        let found = Found {
            reads: reads.iter().map(|register| holds.get(register).copied()).collect(),
            writes: writes.iter().map(|register| (*register, holds.get(register).copied())).collect(),
        };
        self.begun.insert((txn, worker), found);
    }

    /// Of all executions of a transaction the one at this worker counts.
    pub(super) fn settle(&mut self, txn: TxnId, worker: ReplicaId) {
        if let Some(found) = self.begun.remove(&(txn, worker)) {
            self.found.insert(txn, found);
        }
    }

    /// An execution comes to nothing.
    pub(super) fn give_up(&mut self, txn: TxnId, worker: ReplicaId) {
        self.begun.remove(&(txn, worker));
    }

    /// It is to be committed as it was executed at a worker. Returns what it overwrites without having seen it, if there is such a thing.
    pub(super) fn decide(&mut self, txn: TxnId, worker: ReplicaId) -> Option<TxnId> {
        self.settle(txn, worker);
        let found = self.found.get(&txn)?;
        let mut missing = None;
        for (register, saw) in &found.writes {
            let before = self.newest.insert(*register, txn);
            missing = missing.or(before.filter(|before| Some(*before) != *saw));
        }
        missing
    }

    /// What it wrote is written at a worker.
    pub(super) fn apply(&mut self, txn: TxnId, worker: ReplicaId) {
        if let Some(found) = self.found.get(&txn) {
            let registers = found.writes.iter().map(|(register, _)| (*register, txn));
            self.workers[usize::from(worker.0)].extend(registers);
        }
    }

    /// The same. Returns whether the worker held what it overwrites.
    pub(super) fn apply_in_order(&mut self, txn: TxnId, worker: ReplicaId) -> bool {
        let holds = &self.workers[usize::from(worker.0)];
        let is_held = |(register, saw): &(u64, Option<TxnId>)| holds.get(register) == saw.as_ref();
        let is_in_order = self.found.get(&txn).is_none_or(|found| found.writes.iter().all(is_held));
        self.apply(txn, worker);
        is_in_order
    }

    /// A worker holds what these wrote, in this order, and nothing else.
    pub(super) fn restore(&mut self, worker: ReplicaId, txns: &[TxnId]) {
        self.workers[usize::from(worker.0)].clear();
        txns.iter().for_each(|txn| self.apply(*txn, worker));
    }

    /// One more worker, which holds nothing.
    pub(super) fn join(&mut self) {
        self.workers.push(BTreeMap::new());
    }

    /// What a transaction found in what it reads.
    pub(super) fn seen(&self, txn: TxnId) -> &[Option<TxnId>] {
        self.found.get(&txn).map_or(&[], |found| &found.reads)
    }

    /// The first of these workers that holds something else than the first one, and where.
    pub(super) fn first_difference(&self, workers: &[ReplicaId]) -> Option<(ReplicaId, u64)> {
        let holds = |worker: &ReplicaId| &self.workers[usize::from(worker.0)];
        let (first, others) = workers.split_first()?;
        let first = holds(first);
        others.iter().find_map(|worker| {
            let holds = holds(worker);
            let registers = first.keys().chain(holds.keys());
            let register = registers.copied().find(|register| first.get(register) != holds.get(register))?;
            Some((*worker, register))
        })
    }
}

/// What clients saw, in the words of the checker. Each transaction comes from a client of its own.
#[derive(Default, Debug)]
pub(super) struct Recorder {
    transactions: Vec<Transaction>,
}

impl Recorder {
    pub(super) fn committed(
        &mut self,
        txn: TxnId,
        arrived: Instant,
        committed: Instant,
        seen: &[Option<TxnId>],
        arriving: &Arriving,
    ) {
        // A history's values are numbers above zero.
        let value = |txn: TxnId| Value(txn.0 + 1);
        let reads = arriving.reads.iter().zip(seen);
        let reads = reads.map(|(r, saw)| Operation::Read { register: Register(*r), value: saw.map(value) });
        let write = |r: &u64| Operation::Write { register: Register(*r), value: value(txn) };
        let operations = reads.chain(arriving.writes.iter().map(write)).collect();
        self.transactions.push(Transaction {
            process: Process(txn.0 as u32),
            invoked_ns: arrived.0,
            completed_ns: committed.0,
            status: Status::Committed,
            operations,
        });
    }

    pub(super) fn finish(self) -> Result<History, MalformedHistory> {
        History::new(self.transactions)
    }
}
