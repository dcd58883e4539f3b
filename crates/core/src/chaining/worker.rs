//! A worker: runs its queue one after the other, and exchanges write sets with the others (II.B, III).
//!
//! It outlives its replica. When that fails, it gives back to the scheduler what it has not decided. What it has decided is the log's: when it
//! is durable its client hears of it and its writes go to the others, as if it were committed here, where it will come from the log, too.

use std::collections::VecDeque;

use crate::effect::{Effect, How, Refusal};
use crate::event::{Outcome, Place};
use crate::ids::{Csn, OpId, ReplicaId, TxnId};
use crate::message::Message as AnyMessage;
use crate::workers::{Decisions, SCHEDULER, Standing, Vector, Works, WriteSets};

use super::{Message, send};

/// Runs its queue, one after the other.
#[derive(Debug)]
pub struct Worker {
    me: ReplicaId,
    /// In the order in which they arrived at the scheduler.
    queue: VecDeque<Queued>,
    running: Option<Running>,
    /// Decided here, and not to be committed here; it awaits that it is durable. At most one: the next update begins when it is contained.
    lost: Option<Decided>,
    contains: WriteSets,
}

#[derive(Debug)]
enum Queued {
    Update { txn: TxnId, predecessors: Vec<TxnId> },
    Read { txn: TxnId },
}

impl Queued {
    fn txn(&self) -> TxnId {
        match self {
            Queued::Update { txn, .. } | Queued::Read { txn } => *txn,
        }
    }
}

#[derive(Debug)]
enum Running {
    Read(TxnId),
    Update(TxnId),
    AwaitingCommit(Decided),
}

#[derive(Debug)]
struct Decided {
    txn: TxnId,
    csn: Csn,
    vector: Vector,
}

impl Worker {
    /// The worker of this number, of so many; its replica is down.
    pub(super) fn new(me: ReplicaId, workers: usize) -> Worker {
        let mut contains = WriteSets::new(me, workers);
        contains.fail(false);
        Worker { me, queue: VecDeque::new(), running: None, lost: None, contains }
    }

    /// What is sent on its way before the replica failed arrives when it is down.
    fn queue(&mut self, queued: Queued, decisions: &Decisions, effects: &mut Vec<Effect>) {
        let txn = queued.txn();
        if self.contains.standing() != Standing::Up {
            return send(SCHEDULER, Message::GivenBack { txns: vec![txn] }, effects);
        }
        // Last, unless it was given to another worker before.
        let behind = self.queue.iter().rposition(|other| other.txn() < txn).map_or(0, |at| at + 1);
        self.queue.insert(behind, queued);
        self.run_next(decisions, effects);
    }

    /// The next update starts when the writes of its predecessors are here (III, iv), and those of its own worker's updates.
    fn run_next(&mut self, decisions: &Decisions, effects: &mut Vec<Effect>) {
        if self.running.is_some() {
            return;
        }
        let (running, how) = match self.queue.front() {
            Some(Queued::Update { txn, predecessors }) => {
                let ours = self.contains.vector();
                let contains_own = self.lost.is_none() && self.contains.own() == decisions.last_of(self.me);
                if !contains_own || !predecessors.iter().all(|before| decisions.is_in(*before, ours)) {
                    return;
                }
                (Running::Update(*txn), How::Home { open: true })
            }
            Some(Queued::Read { txn }) => (Running::Read(*txn), How::Alone),
            None => return,
        };
        let (Running::Read(txn) | Running::Update(txn)) = running else { return };
        let hold = matches!(running, Running::Update(_));
        self.queue.pop_front();
        self.running = Some(running);
        effects.push(Effect::Execute { txn, op: OpId(0), replica: self.me, how, hold });
    }

    /// Its client hears of a commit, and all others get its writes.
    fn publish(&mut self, decided: &Decided, effects: &mut Vec<Effect>) {
        let (txn, origin) = (decided.txn, self.me);
        effects.push(Effect::Release { txn, op: OpId(0), replica: origin });
        effects.push(Effect::Acknowledge { txn, op: OpId(0), csn: decided.csn });
        let write_set = || Message::WriteSet { txn, origin, vector: decided.vector.clone() };
        self.contains.ship(txn, || AnyMessage::Chaining(write_set()), effects);
    }

    /// Tells the scheduler, and goes on.
    fn finish(&mut self, txn: TxnId, decisions: &Decisions, effects: &mut Vec<Effect>) {
        send(SCHEDULER, Message::Finished { txn, vector: Some(self.contains.tell()) }, effects);
        self.go_on(decisions, effects);
    }

    fn go_on(&mut self, decisions: &Decisions, effects: &mut Vec<Effect>) {
        self.contains.apply_next(effects);
        self.run_next(decisions, effects);
    }

    /// What is decided cannot be committed here.
    fn lose(&mut self, decided: Decided, decisions: &mut Decisions, effects: &mut Vec<Effect>) {
        match decisions.lose(decided.csn) {
            true => self.complete_elsewhere(decided, decisions, effects),
            false => self.lost = Some(decided),
        }
    }

    /// To its own replica, too, it is now a write set like those of others, if the log does not bring it.
    fn complete_elsewhere(&mut self, decided: Decided, decisions: &Decisions, effects: &mut Vec<Effect>) {
        self.publish(&decided, effects);
        self.contains.arrive(self.me, decided.txn, decided.vector);
        self.finish(decided.txn, decisions, effects);
    }

    fn on_read_executed(
        &mut self,
        txn: TxnId,
        outcome: &Outcome,
        decisions: &Decisions,
        effects: &mut Vec<Effect>,
    ) {
        self.running = None;
        let message = match outcome {
            Outcome::Lost { answer_begun: false } => Message::GivenBack { txns: vec![txn] },
            _ => Message::Finished { txn, vector: None },
        };
        if matches!(outcome, Outcome::Lost { answer_begun: true }) {
            effects.push(Effect::Refuse { txn, op: OpId(0), reason: Refusal::AnswerCut });
        }
        send(SCHEDULER, message, effects);
        self.run_next(decisions, effects);
    }

    fn on_update_executed(
        &mut self,
        txn: TxnId,
        outcome: &Outcome,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        if matches!(outcome, Outcome::Done { .. }) {
            let vector = self.contains.vector_of_next();
            let csn = decisions.decide(txn, self.me, effects);
            self.running = Some(Running::AwaitingCommit(Decided { txn, csn, vector }));
            return;
        }
        self.running = None;
        if matches!(outcome, Outcome::Lost { .. }) {
            effects.push(Effect::Leave { txn, replica: self.me });
            send(SCHEDULER, Message::GivenBack { txns: vec![txn] }, effects);
            return self.run_next(decisions, effects);
        }
        effects.push(Effect::Release { txn, op: OpId(0), replica: self.me });
        effects.push(Effect::Leave { txn, replica: self.me });
        decisions.write_nothing(txn, self.contains.seen());
        for other in self.contains.others() {
            send(Place::Proxy(other), Message::WroteNothing { txn }, effects);
        }
        self.finish(txn, decisions, effects);
    }
}

impl Works for Worker {
    fn on_message(
        &mut self,
        _: Place,
        message: AnyMessage,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let AnyMessage::Chaining(message) = message else { return };
        match message {
            Message::Update { txn, predecessors } => {
                self.queue(Queued::Update { txn, predecessors }, decisions, effects);
            }
            Message::Read { txn } => self.queue(Queued::Read { txn }, decisions, effects),
            Message::WriteSet { txn, origin, vector } => {
                self.contains.arrive(origin, txn, vector);
                self.contains.apply_next(effects);
            }
            Message::WroteNothing { .. } => self.run_next(decisions, effects),
            Message::LostIsDurable { txn } => {
                if let Some(decided) = self.lost.take_if(|lost| lost.txn == txn) {
                    self.complete_elsewhere(decided, decisions, effects);
                }
            }
            Message::Finished { .. } | Message::Contains { .. } | Message::GivenBack { .. } => {}
        }
    }

    fn on_executed(
        &mut self,
        txn: TxnId,
        outcome: Outcome,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        match self.running {
            Some(Running::Read(running)) if running == txn => {
                self.on_read_executed(txn, &outcome, decisions, effects);
            }
            Some(Running::Update(running)) if running == txn => {
                self.on_update_executed(txn, &outcome, decisions, effects);
            }
            _ => {}
        }
    }

    fn on_committed(&mut self, csn: Csn, decisions: &mut Decisions, effects: &mut Vec<Effect>) {
        let is_it = |running: &mut Running| matches!(running, Running::AwaitingCommit(of) if of.csn == csn);
        let Some(Running::AwaitingCommit(decided)) = self.running.take_if(is_it) else { return };
        self.contains.commit_own();
        self.publish(&decided, effects);
        self.finish(decided.txn, decisions, effects);
    }

    fn on_write_set_applied(
        &mut self,
        origin: ReplicaId,
        txn: TxnId,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        if !self.contains.applied(origin, txn) {
            return;
        }
        if self.contains.is_to_be_told() {
            send(SCHEDULER, Message::Contains { vector: self.contains.tell() }, effects);
        }
        self.go_on(decisions, effects);
    }

    fn contains(&self) -> &WriteSets {
        &self.contains
    }

    fn may_fail(&mut self) -> Option<&mut WriteSets> {
        Some(&mut self.contains)
    }

    fn on_down(&mut self, decisions: &mut Decisions, effects: &mut Vec<Effect>) {
        let running = self.running.take();
        let begun = match &running {
            Some(Running::Read(txn) | Running::Update(txn)) => Some(*txn),
            _ => None,
        };
        let txns: Vec<TxnId> = begun.into_iter().chain(self.queue.drain(..).map(|of| of.txn())).collect();
        if !txns.is_empty() {
            send(SCHEDULER, Message::GivenBack { txns }, effects);
        }
        if let Some(Running::AwaitingCommit(decided)) = running {
            self.lose(decided, decisions, effects);
        }
    }

    fn on_home_lost(&mut self, txn: TxnId, decisions: &mut Decisions, effects: &mut Vec<Effect>) {
        let is_it = |running: &mut Running| matches!(running, Running::AwaitingCommit(of) if of.txn == txn);
        if let Some(Running::AwaitingCommit(decided)) = self.running.take_if(is_it) {
            self.lose(decided, decisions, effects);
        }
    }

    fn on_lost_durable(&mut self, txn: TxnId, _: &mut Decisions, effects: &mut Vec<Effect>) {
        // From its own place, it can tell the others.
        send(Place::Proxy(self.me), Message::LostIsDurable { txn }, effects);
    }

    fn on_up(&mut self, decisions: &mut Decisions, effects: &mut Vec<Effect>) {
        self.go_on(decisions, effects);
    }

    fn is_free(&self) -> bool {
        self.running.is_none() && self.queue.is_empty()
    }
}
