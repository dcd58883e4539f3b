//! A worker: runs its queue one after the other, and exchanges write sets with the others (II.B, III).

use std::collections::VecDeque;

use crate::effect::{Effect, How};
use crate::event::{Outcome, Place};
use crate::ids::{Csn, OpId, ReplicaId, TxnId};
use crate::message::Message as AnyMessage;
use crate::workers::{Decisions, Numbered, SCHEDULER, Works, WriteSets};

use super::{Message, send};

/// Runs its queue, one after the other.
#[derive(Debug)]
pub struct Worker {
    me: ReplicaId,
    queue: VecDeque<Queued>,
    running: Option<Running>,
    contains: WriteSets,
}

#[derive(Debug)]
enum Queued {
    Update { txn: TxnId, predecessors: Vec<Numbered> },
    Read { txn: TxnId },
}

#[derive(Clone, Copy, Debug)]
struct Running {
    txn: TxnId,
    updates: bool,
    decided: Option<Csn>,
}

impl Worker {
    pub(super) fn new(me: ReplicaId, workers: usize) -> Worker {
        Worker { me, queue: VecDeque::new(), running: None, contains: WriteSets::new(me, workers) }
    }

    /// The next update starts when the writes of its predecessors at other workers are here (III, iv).
    fn run_next(&mut self, effects: &mut Vec<Effect>) {
        if self.running.is_some() {
            return;
        }
        let (txn, updates, how) = match self.queue.front() {
            Some(Queued::Update { txn, predecessors }) => {
                if !predecessors.iter().all(|predecessor| predecessor.is_in(self.contains.vector())) {
                    return;
                }
                (*txn, true, How::Home { open: true })
            }
            Some(Queued::Read { txn }) => (*txn, false, How::Alone),
            None => return,
        };
        self.queue.pop_front();
        self.running = Some(Running { txn, updates, decided: None });
        effects.push(Effect::Execute { txn, op: OpId(0), replica: self.me, how, hold: updates });
    }

    /// Tells everybody, and goes on with the queue.
    fn complete(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        self.running = None;
        let message = |vector| AnyMessage::Chaining(Message::WriteSet { txn, vector });
        self.contains.commit(txn, message, effects);
        send(SCHEDULER, Message::Finished { txn, vector: Some(self.contains.tell()) }, effects);
        self.contains.apply_next(effects);
        self.run_next(effects);
    }
}

impl Works for Worker {
    fn on_message(&mut self, from: Place, message: AnyMessage, _: &mut Decisions, effects: &mut Vec<Effect>) {
        let AnyMessage::Chaining(message) = message else { return };
        match (message, from) {
            (Message::Update { txn, predecessors }, _) => {
                self.queue.push_back(Queued::Update { txn, predecessors });
                self.run_next(effects);
            }
            (Message::Read { txn }, _) => {
                self.queue.push_back(Queued::Read { txn });
                self.run_next(effects);
            }
            (Message::WriteSet { txn, vector }, Place::Proxy(origin)) => {
                self.contains.arrive(origin, txn, vector);
                self.contains.apply_next(effects);
            }
            _ => {}
        }
    }

    fn on_executed(
        &mut self,
        txn: TxnId,
        outcome: Outcome,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let Some(running) = self.running.as_mut().filter(|running| running.txn == txn) else { return };
        if !running.updates {
            self.running = None;
            send(SCHEDULER, Message::Finished { txn, vector: None }, effects);
            return self.run_next(effects);
        }
        if matches!(outcome, Outcome::Done { .. }) {
            running.decided = Some(decisions.decide(txn, self.me, effects));
            return;
        }
        // Nothing was written; but its number is waited for, so it ends like an update without writes.
        effects.push(Effect::Release { txn, op: OpId(0), replica: self.me });
        effects.push(Effect::Leave { txn, replica: self.me });
        self.complete(txn, effects);
    }

    fn on_committed(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        let Some(Running { txn, .. }) = self.running.filter(|running| running.decided == Some(csn)) else {
            return;
        };
        effects.push(Effect::Release { txn, op: OpId(0), replica: self.me });
        effects.push(Effect::Acknowledge { txn, op: OpId(0), csn });
        self.complete(txn, effects);
    }

    fn on_write_set_applied(&mut self, origin: ReplicaId, txn: TxnId, effects: &mut Vec<Effect>) {
        if !self.contains.applied(origin, txn) {
            return;
        }
        if self.contains.is_to_be_told() {
            send(SCHEDULER, Message::Contains { vector: self.contains.tell() }, effects);
        }
        self.contains.apply_next(effects);
        self.run_next(effects);
    }

    fn contains(&self) -> &WriteSets {
        &self.contains
    }
}
