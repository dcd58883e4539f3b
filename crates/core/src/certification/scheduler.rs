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
use super::{Message, send};

/// Hands out transactions, and says which may commit.
#[derive(Debug)]
pub struct Scheduler {
    placed: Placed,
    /// Of what was committed and some worker may not contain.
    writes: ConflictIndex,
    committed: HashMap<TxnId, Numbered>,
    /// Of each worker the updates that may commit.
    certified: Vec<u64>,
    everywhere: Everywhere,
    open: u64,
    refused: u64,
}

impl Scheduler {
    pub(super) fn new(placement: Placement, workers: usize) -> Scheduler {
        Scheduler {
            placed: Placed::new(placement, workers),
            writes: ConflictIndex::default(),
            committed: HashMap::default(),
            certified: vec![0; workers],
            everywhere: Everywhere::new(workers),
            open: 0,
            refused: 0,
        }
    }

    fn certify(&mut self, txn: TxnId, worker: ReplicaId, snapshot: &[u64], writes: &[Access]) -> Message {
        let unseen =
            |other: TxnId| self.committed.get(&other).copied().filter(|other| !other.is_in(snapshot));
        let after: Vec<Numbered> = self.writes.find(writes).into_iter().filter_map(unseen).collect();
        if !after.is_empty() {
            self.refused += 1;
            return Message::Again { txn, after };
        }
        let number = &mut self.certified[usize::from(worker.0)];
        *number += 1;
        self.committed.insert(txn, Numbered { worker, number: *number });
        self.writes.add(txn, writes);
        self.everywhere.remember(worker, txn);
        Message::Certified { txn }
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
        if let Some(worker) = self.placed.arrive(txn, begin.form, updates) {
            send(Place::Proxy(worker), Message::Run { txn, updates }, effects);
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
                let answer = self.certify(txn, worker, &snapshot, &writes);
                send(Place::Proxy(worker), answer, effects);
            }
            Message::Finished { vector, .. } => {
                self.open = self.open.saturating_sub(1);
                self.forget(worker, vector);
                if let Some((txn, updates)) = self.placed.finish(worker) {
                    send(Place::Proxy(worker), Message::Run { txn, updates }, effects);
                }
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
