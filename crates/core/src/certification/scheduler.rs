//! The scheduler: hands out transactions, and knows what was committed.

use crate::conflict_index::ConflictIndex;
use crate::effect::Effect;
use crate::event::{Begin, Place, Statement, StatementKind};
use crate::ids::{ReplicaId, TxnId};
use crate::item::Access;
use crate::map::HashMap;
use crate::message::Message as AnyMessage;
use crate::workers::{Decisions, Everywhere, Numbered, Schedules, Vector};

use super::placement::{Placed, Placement};
use super::{Message, Retry, send};

/// Hands out transactions, and says which may commit.
#[derive(Debug)]
pub struct Scheduler {
    placed: Placed,
    retry: Retry,
    /// Of updates that are not certified their kind and, if they were given up, what is to be there before; if they may have to be
    /// placed again.
    uncertified: HashMap<TxnId, Uncertified>,
    /// Of what was committed and some worker may not contain.
    writes: ConflictIndex,
    committed: HashMap<TxnId, Numbered>,
    /// Of each worker the updates that may commit.
    certified: Vec<u64>,
    everywhere: Everywhere,
    open: u64,
    refused: u64,
}

#[derive(Debug)]
struct Uncertified {
    kind: u64,
    after: Vec<Numbered>,
}

impl Scheduler {
    pub(super) fn new(placement: Placement, retry: Retry, workers: usize) -> Scheduler {
        Scheduler {
            placed: Placed::new(placement, workers),
            retry,
            uncertified: HashMap::default(),
            writes: ConflictIndex::default(),
            committed: HashMap::default(),
            certified: vec![0; workers],
            everywhere: Everywhere::new(workers),
            open: 0,
            refused: 0,
        }
    }

    /// Says what it is in conflict with and has not seen; if that is nothing it may commit.
    fn certify(
        &mut self,
        txn: TxnId,
        worker: ReplicaId,
        snapshot: &[u64],
        writes: &[Access],
    ) -> Vec<Numbered> {
        let unseen =
            |other: TxnId| self.committed.get(&other).copied().filter(|other| !other.is_in(snapshot));
        let after: Vec<Numbered> = self.writes.find(writes).into_iter().filter_map(unseen).collect();
        if !after.is_empty() {
            self.refused += 1;
            return after;
        }
        let number = &mut self.certified[usize::from(worker.0)];
        *number += 1;
        self.committed.insert(txn, Numbered { worker, number: *number });
        self.writes.add(txn, writes);
        self.everywhere.remember(worker, txn);
        self.uncertified.remove(&txn);
        after
    }

    /// Tells a worker to run something, for the first time or again.
    fn run(&self, txn: TxnId, updates: bool, worker: ReplicaId, effects: &mut Vec<Effect>) {
        let after = self.uncertified.get(&txn).map(|of| of.after.clone()).unwrap_or_default();
        send(Place::Proxy(worker), Message::Run { txn, updates, after }, effects);
    }

    fn run_next(&mut self, worker: ReplicaId, effects: &mut Vec<Effect>) {
        if let Some((txn, updates)) = self.placed.finish(worker) {
            self.run(txn, updates, worker, effects);
        }
    }

    /// A worker gives it up, it is placed behind what waits, and the worker goes on with something else.
    fn place_again(
        &mut self,
        txn: TxnId,
        after: Vec<Numbered>,
        worker: ReplicaId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(of) = self.uncertified.get_mut(&txn) else { return };
        of.after = after;
        let kind = of.kind;
        send(Place::Proxy(worker), Message::GivenUp { txn }, effects);
        if let Some(worker) = self.placed.arrive(txn, kind, true) {
            self.run(txn, true, worker, effects);
        }
        self.run_next(worker, effects);
    }

    fn forget(&mut self, worker: ReplicaId, vector: Vector) {
        for txn in self.everywhere.report(worker, vector) {
            self.writes.remove(txn);
            self.committed.remove(&txn);
        }
    }
}

impl Schedules for Scheduler {
    fn on_transaction(
        &mut self,
        begin: &Begin,
        statement: Statement,
        _: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        self.open += 1;
        let (txn, updates) = (begin.txn, statement.kind != StatementKind::Read);
        if updates && self.retry == Retry::Last {
            self.uncertified.insert(txn, Uncertified { kind: begin.form, after: Vec::new() });
        }
        if let Some(worker) = self.placed.arrive(txn, begin.form, updates) {
            self.run(txn, updates, worker, effects);
        }
    }

    fn on_message(
        &mut self,
        worker: ReplicaId,
        message: AnyMessage,
        _: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let AnyMessage::Certification(message) = message else { return };
        match message {
            Message::Certify { txn, snapshot, writes } => {
                let after = self.certify(txn, worker, &snapshot, &writes);
                match self.retry {
                    _ if after.is_empty() => send(Place::Proxy(worker), Message::Certified { txn }, effects),
                    Retry::Here => send(Place::Proxy(worker), Message::Again { txn, after }, effects),
                    Retry::Last => self.place_again(txn, after, worker, effects),
                }
            }
            Message::Finished { txn, vector } => {
                self.open = self.open.saturating_sub(1);
                self.uncertified.remove(&txn);
                self.forget(worker, vector);
                self.run_next(worker, effects);
            }
            Message::Contains { vector } => self.forget(worker, vector),
            _ => {}
        }
    }

    fn open(&self) -> u64 {
        self.open
    }

    fn awaiting_worker(&self) -> u64 {
        self.placed.waiting()
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}
