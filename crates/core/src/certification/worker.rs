//! A worker: runs its queue one after the other, each transaction until it may commit.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::effect::{Effect, How};
use crate::event::{Outcome, Place};
use crate::ids::{Csn, OpId, ReplicaId, TxnId};
use crate::item::Access;
use crate::message::Message as AnyMessage;
use crate::write_sets::{Decisions, Numbered, Vector, WriteSets};

use super::{Message, SCHEDULER, send};

/// So many write sets are applied before the scheduler is told of it, unless a transaction of its own ends before.
const APPLIED_UNTOLD_MAX: u32 = 64;

#[derive(Debug)]
pub(super) struct Worker {
    me: ReplicaId,
    queue: VecDeque<(TxnId, bool)>,
    running: Option<Running>,
    contains: WriteSets,
    /// Write sets applied since the scheduler was told last.
    untold: u32,
}

#[derive(Debug)]
struct Running {
    txn: TxnId,
    updates: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It has been executed in vain, and runs again after these.
    Waits(Vec<Numbered>),
    Executes {
        snapshot: Vector,
    },
    Certified(Csn),
}

impl Worker {
    pub(super) fn new(me: ReplicaId, workers: usize) -> Worker {
        Worker { me, queue: VecDeque::new(), running: None, contains: WriteSets::new(me, workers), untold: 0 }
    }

    pub(super) fn contains(&self) -> &WriteSets {
        &self.contains
    }

    /// What waits for what it runs now.
    pub(super) fn queued(&self) -> u64 {
        self.queue.len() as u64
    }

    /// What it was given and has not finished.
    pub(super) fn open(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.running.is_some())
    }

    pub(super) fn on_message(
        &mut self,
        from: Place,
        message: Message,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        match (message, from) {
            (Message::Run { txn, updates }, _) => {
                self.queue.push_back((txn, updates));
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
            (Message::WriteSet { txn, vector }, Place::Proxy(origin)) => {
                self.contains.arrive(origin, txn, vector);
                self.contains.apply_next(effects);
            }
            _ => {}
        }
    }

    fn turn(&mut self, txn: TxnId, state: State) {
        if let Some(running) = self.running.as_mut().filter(|running| running.txn == txn) {
            running.state = state;
        }
    }

    /// Starts the next transaction, or the present one again.
    fn go_on(&mut self, effects: &mut Vec<Effect>) {
        if self.running.is_none() {
            let next = self.queue.pop_front();
            self.running =
                next.map(|(txn, updates)| Running { txn, updates, state: State::Waits(Vec::new()) });
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

    pub(super) fn on_executed(&mut self, txn: TxnId, outcome: Outcome, effects: &mut Vec<Effect>) {
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

    pub(super) fn on_committed(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        let is_it = |running: &&Running| matches!(running.state, State::Certified(own) if own == csn);
        let Some(Running { txn, .. }) = self.running.as_ref().filter(is_it) else { return };
        let txn = *txn;
        effects.push(Effect::Release { txn, op: OpId(0), replica: self.me });
        effects.push(Effect::Acknowledge { txn, op: OpId(0), csn });
        let vector = self.contains.commit();
        let others = (0..vector.len() as u16).map(ReplicaId).filter(|other| *other != self.me);
        for other in others {
            let message = AnyMessage::Certification(Message::WriteSet { txn, vector: vector.clone() });
            effects.push(Effect::Ship { txn, to: Place::Proxy(other), message });
        }
        self.contains.apply_next(effects);
        self.finish(txn, effects);
    }

    fn finish(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        self.running = None;
        self.untold = 0;
        send(SCHEDULER, Message::Finished { txn, vector: self.contains.vector().into() }, effects);
        self.go_on(effects);
    }

    pub(super) fn on_write_set_applied(&mut self, origin: ReplicaId, txn: TxnId, effects: &mut Vec<Effect>) {
        if !self.contains.applied(origin, txn) {
            return;
        }
        self.untold += 1;
        // While something executes in an older snapshot, the scheduler must remember what that has not seen.
        let executes = self.running.as_ref().is_some_and(|of| matches!(of.state, State::Executes { .. }));
        if self.untold >= APPLIED_UNTOLD_MAX && !executes {
            self.untold = 0;
            send(SCHEDULER, Message::Contains { vector: self.contains.vector().into() }, effects);
        }
        self.contains.apply_next(effects);
        self.go_on(effects);
    }
}
