//! A worker: runs its queue one after the other, each transaction until it may commit.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::effect::{Effect, How};
use crate::event::{Outcome, Place};
use crate::ids::{Csn, OpId, ReplicaId, TxnId};
use crate::item::Access;
use crate::message::Message as AnyMessage;
use crate::workers::{Decisions, Numbered, SCHEDULER, Vector, Works, WriteSets};

use super::{Message, send};

/// Runs what it is given, one after the other, and each until it may commit.
#[derive(Debug)]
pub struct Worker {
    me: ReplicaId,
    queue: VecDeque<Running>,
    running: Option<Running>,
    contains: WriteSets,
}

#[derive(Debug)]
struct Running {
    txn: TxnId,
    updates: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It runs when these are here: it may have been executed in vain before.
    Waits(Vec<Numbered>),
    Executes {
        snapshot: Vector,
    },
    Certified(Csn),
}

impl Worker {
    pub(super) fn new(me: ReplicaId, workers: usize) -> Worker {
        Worker { me, queue: VecDeque::new(), running: None, contains: WriteSets::new(me, workers) }
    }

    fn turn(&mut self, txn: TxnId, state: State) {
        if let Some(running) = self.running.as_mut().filter(|running| running.txn == txn) {
            running.state = state;
        }
    }

    /// Starts the next transaction, or the present one, if what it waits for is here.
    fn go_on(&mut self, effects: &mut Vec<Effect>) {
        if self.running.is_none() {
            self.running = self.queue.pop_front();
        }
        let Some(running) = &mut self.running else { return };
        let State::Waits(after) = &running.state else { return };
        if !after.iter().all(|before| before.is_in(self.contains.vector())) {
            return;
        }
        running.state = State::Executes { snapshot: self.contains.vector().into() };
        let (txn, updates) = (running.txn, running.updates);
        let how = if updates { How::Home { open: true } } else { How::Alone };
        effects.push(Effect::Execute { txn, op: OpId(0), replica: self.me, how, hold: updates });
    }

    fn finish(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        self.running = None;
        send(SCHEDULER, Message::Finished { txn, vector: self.contains.tell() }, effects);
        self.go_on(effects);
    }
}

impl Works for Worker {
    fn on_message(
        &mut self,
        from: Place,
        message: AnyMessage,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let AnyMessage::Certification(message) = message else { return };
        match (message, from) {
            (Message::Run { txn, updates, after }, _) => {
                self.queue.push_back(Running { txn, updates, state: State::Waits(after) });
                self.go_on(effects);
            }
            (Message::Certified { txn }, _) => {
                let csn = decisions.decide(txn, self.me, effects);
                self.turn(txn, State::Certified(csn));
            }
            (Message::Again { txn, after }, _) => {
                effects.push(Effect::Leave { txn, replica: self.me });
                self.turn(txn, State::Waits(after));
                self.go_on(effects);
            }
            (Message::GivenUp { txn }, _) => {
                let given_up = self.running.take_if(|running| running.txn == txn);
                effects.extend(given_up.map(|of| Effect::Leave { txn: of.txn, replica: self.me }));
                self.go_on(effects);
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
        _: OpId,
        outcome: Outcome,
        _: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let Some(running) = self.running.as_ref().filter(|running| running.txn == txn) else { return };
        let State::Executes { snapshot } = &running.state else { return };
        match outcome {
            Outcome::Done { returned } if running.updates => {
                let (snapshot, writes): (_, Arc<[Access]>) = (snapshot.clone(), returned.into());
                send(SCHEDULER, Message::Certify { txn, snapshot, writes }, effects);
            }
            _ => {
                if running.updates {
                    effects.push(Effect::Release { txn, op: OpId(0), replica: self.me });
                    effects.push(Effect::Leave { txn, replica: self.me });
                }
                self.finish(txn, effects);
            }
        }
    }

    fn on_committed(&mut self, csn: Csn, _: &mut Decisions, effects: &mut Vec<Effect>) {
        let is_it = |running: &&Running| matches!(running.state, State::Certified(own) if own == csn);
        let Some(Running { txn, .. }) = self.running.as_ref().filter(is_it) else { return };
        let txn = *txn;
        effects.push(Effect::Release { txn, op: OpId(0), replica: self.me });
        effects.push(Effect::Acknowledge { txn, op: OpId(0), csn });
        let message = |vector| AnyMessage::Certification(Message::WriteSet { txn, vector });
        self.contains.commit(txn, message, effects);
        self.contains.apply_next(effects);
        self.finish(txn, effects);
    }

    fn on_write_set_applied(
        &mut self,
        origin: ReplicaId,
        txn: TxnId,
        _: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        if !self.contains.applied(origin, txn) {
            return;
        }
        // While something executes in an older snapshot, the scheduler must remember what that has not seen.
        let executes = self.running.as_ref().is_some_and(|of| matches!(of.state, State::Executes { .. }));
        if self.contains.is_to_be_told() && !executes {
            send(SCHEDULER, Message::Contains { vector: self.contains.tell() }, effects);
        }
        self.contains.apply_next(effects);
        self.go_on(effects);
    }

    fn contains(&self) -> &WriteSets {
        &self.contains
    }

    fn is_free(&self) -> bool {
        self.running.is_none() && self.queue.is_empty()
    }

    fn queued(&self) -> u64 {
        self.queue.len() as u64
    }
}
