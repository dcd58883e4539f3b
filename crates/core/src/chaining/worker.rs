//! A worker: runs its queue one after the other, and exchanges write sets with the others (II.B, III).
//!
//! It outlives its replica. When that fails, it gives back to the scheduler what it has not decided. What it has decided is the log's: when it
//! is durable its client hears of it and its writes go to the others, as if it were committed here, where it will come from the log, too.

use std::collections::VecDeque;

use crate::effect::{Effect, How, Refusal};
use crate::event::{Outcome, Place};
use crate::ids::{Csn, NodeId, OpId, ReplicaId, TxnId};
use crate::message::Message as AnyMessage;
use crate::workers::{Decisions, SCHEDULER, Standing, Vector, Works, WriteSets};

use super::{Message, send};

/// Runs its queue, one after the other.
#[derive(Debug)]
pub struct Worker {
    me: ReplicaId,
    /// That of its site.
    scheduler: Place,
    /// Schedulers, if there are several.
    schedulers: u16,
    /// In the order in which they arrived at the scheduler.
    queue: VecDeque<Queued>,
    running: Option<Running>,
    /// The execution that is under way, of those of one transaction.
    op: OpId,
    /// Decided here, and not to be committed here; it awaits that it is durable. At most one: the next update begins when it is contained.
    lost: Option<Decided>,
    contains: WriteSets,
}

#[derive(Debug)]
enum Queued {
    Update {
        txn: TxnId,
        predecessors: Vec<TxnId>,
        is_ordered: bool,
        /// It was rolled back here, and what came of that may still be on its way.
        is_again: bool,
    },
    Read {
        txn: TxnId,
    },
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
    /// An update of which it is not known yet what it is behind.
    Unordered(Unordered),
    AwaitingCommit(Decided),
}

#[derive(Debug)]
struct Unordered {
    txn: TxnId,
    /// What its worker contained when it began.
    begun_with: Vector,
    /// What came of it.
    outcome: Option<Outcome>,
}

#[derive(Debug)]
struct Decided {
    txn: TxnId,
    op: OpId,
    csn: Csn,
    vector: Vector,
}

impl Worker {
    /// The worker of this number, of so many; its replica is down.
    pub(super) fn new(me: ReplicaId, workers: usize) -> Worker {
        let mut contains = WriteSets::new(me, workers);
        contains.fail(false);
        Worker {
            me,
            scheduler: SCHEDULER,
            schedulers: 1,
            queue: VecDeque::new(),
            running: None,
            op: OpId(0),
            lost: None,
            contains,
        }
    }

    /// The same, of one of several sites.
    pub(super) fn of_site(me: ReplicaId, workers: usize, sites: u16) -> Worker {
        let scheduler = Place::Scheduler(NodeId(me.0 % sites));
        Worker { scheduler, schedulers: sites, ..Worker::new(me, workers) }
    }

    /// What is sent on its way before the replica failed arrives when it is down.
    fn queue(&mut self, queued: Queued, decisions: &Decisions, effects: &mut Vec<Effect>) {
        let txn = queued.txn();
        if self.contains.standing() != Standing::Up {
            return send(self.scheduler, Message::GivenBack { txns: vec![txn] }, effects);
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
        self.skip_decided(decisions, effects);
        let (running, how, op) = match self.queue.front() {
            Some(Queued::Update { txn, predecessors, is_ordered, is_again }) => {
                let ours = self.contains.vector();
                let contains_own = self.lost.is_none() && self.contains.own() == decisions.last_of(self.me);
                if !contains_own || !predecessors.iter().all(|before| decisions.is_in(*before, ours)) {
                    return;
                }
                let running = match is_ordered {
                    true => Running::Update(*txn),
                    false => {
                        let begun_with = ours.into();
                        Running::Unordered(Unordered { txn: *txn, begun_with, outcome: None })
                    }
                };
                (running, How::Home { open: true }, OpId(u32::from(*is_again)))
            }
            Some(Queued::Read { txn }) => (Running::Read(*txn), How::Alone, OpId(0)),
            None => return,
        };
        let Some(txn) = self.queue.pop_front().map(|queued| queued.txn()) else { return };
        let hold = !matches!(running, Running::Read(_));
        (self.running, self.op) = (Some(running), op);
        effects.push(Effect::Execute { txn, op, replica: self.me, how, hold });
    }

    /// What comes next was executed elsewhere as well, and decided there: who follows it waits for its writes.
    fn skip_decided(&mut self, decisions: &Decisions, effects: &mut Vec<Effect>) {
        while let Some(Queued::Update { txn, .. }) = self.queue.front()
            && decisions.is_settled(*txn)
        {
            send(self.scheduler, Message::Skipped { txn: *txn }, effects);
            self.queue.pop_front();
        }
    }

    /// What is executed here was decided elsewhere: its writes can only be applied when this execution is gone.
    fn give_up_if_running(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let is_it = |running: &mut Running| matches!(running, Running::Update(running) if *running == txn);
        if self.running.take_if(is_it).is_some() {
            effects.push(Effect::Leave { txn, replica: self.me });
            send(self.scheduler, Message::Skipped { txn }, effects);
        }
    }

    /// It is known what an update is behind. If it is executed here and did not find the writes of all of these, it runs again.
    fn on_confirmed(
        &mut self,
        txn: TxnId,
        predecessors: Vec<TxnId>,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let is_it =
            |running: &mut Running| matches!(running, Running::Unordered(running) if running.txn == txn);
        if let Some(Running::Unordered(Unordered { begun_with, outcome, .. })) = self.running.take_if(is_it) {
            let now = self.contains.vector();
            if predecessors.iter().all(|before| decisions.was_in(*before, &begun_with, now)) {
                self.running = Some(Running::Update(txn));
                if let Some(outcome) = outcome {
                    self.on_update_executed(txn, &outcome, decisions, effects);
                }
                return;
            }
            effects.push(Effect::Leave { txn, replica: self.me });
            let again = Queued::Update { txn, predecessors, is_ordered: true, is_again: true };
            return self.queue(again, decisions, effects);
        }
        let is_it = |of: &&mut Queued| of.txn() == txn;
        if let Some(queued) = self.queue.iter_mut().find(is_it) {
            *queued = Queued::Update { txn, predecessors, is_ordered: true, is_again: false };
            self.run_next(decisions, effects);
        }
    }

    /// Its client hears of a commit, and all others get its writes.
    fn publish(&mut self, decided: &Decided, effects: &mut Vec<Effect>) {
        let (txn, op, origin) = (decided.txn, decided.op, self.me);
        effects.push(Effect::Release { txn, op, replica: origin });
        effects.push(Effect::Acknowledge { txn, op, csn: decided.csn });
        let write_set = || Message::WriteSet { txn, origin, vector: decided.vector.clone() };
        self.contains.ship(txn, || AnyMessage::Chaining(write_set()), effects);
    }

    /// Tells its scheduler, and those of other sites.
    fn tell_all(&self, message: &Message, effects: &mut Vec<Effect>) {
        send(self.scheduler, message.clone(), effects);
        let all = (0..self.schedulers).map(|scheduler| Place::Scheduler(NodeId(scheduler)));
        for other in all.filter(|other| *other != self.scheduler) {
            send(other, message.clone(), effects);
        }
    }

    /// Tells the scheduler, and goes on.
    fn finish(&mut self, txn: TxnId, decisions: &Decisions, effects: &mut Vec<Effect>) {
        let message = Message::Finished { txn, vector: Some(self.contains.tell()) };
        self.tell_all(&message, effects);
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
        send(self.scheduler, message, effects);
        self.run_next(decisions, effects);
    }

    fn on_update_executed(
        &mut self,
        txn: TxnId,
        outcome: &Outcome,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        if decisions.is_settled(txn) {
            self.give_up_if_running(txn, effects);
            return self.go_on(decisions, effects);
        }
        if matches!(outcome, Outcome::Done { .. }) {
            let vector = self.contains.vector_of_next();
            let csn = decisions.decide(txn, self.me, effects);
            self.running = Some(Running::AwaitingCommit(Decided { txn, op: self.op, csn, vector }));
            return;
        }
        self.running = None;
        if matches!(outcome, Outcome::Lost { .. }) {
            effects.push(Effect::Leave { txn, replica: self.me });
            send(self.scheduler, Message::GivenBack { txns: vec![txn] }, effects);
            return self.run_next(decisions, effects);
        }
        effects.push(Effect::Release { txn, op: self.op, replica: self.me });
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
            Message::Update { txn, predecessors, is_ordered } => {
                let queued = Queued::Update { txn, predecessors, is_ordered, is_again: false };
                self.queue(queued, decisions, effects);
            }
            Message::Confirmed { txn, predecessors } => {
                self.on_confirmed(txn, predecessors, decisions, effects);
            }
            Message::Read { txn } => self.queue(Queued::Read { txn }, decisions, effects),
            Message::WriteSet { txn, origin, vector } => {
                self.give_up_if_running(txn, effects);
                self.contains.arrive(origin, txn, vector);
                self.go_on(decisions, effects);
            }
            Message::WroteNothing { txn } => {
                self.give_up_if_running(txn, effects);
                self.run_next(decisions, effects);
            }
            Message::LostIsDurable { txn } => {
                if let Some(decided) = self.lost.take_if(|lost| lost.txn == txn) {
                    self.complete_elsewhere(decided, decisions, effects);
                }
            }
            Message::Finished { .. }
            | Message::Contains { .. }
            | Message::GivenBack { .. }
            | Message::Skipped { .. }
            | Message::Announced { .. }
            | Message::Ordered { .. } => {}
        }
    }

    fn on_executed(
        &mut self,
        txn: TxnId,
        op: OpId,
        outcome: Outcome,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        // Of an execution that was rolled back it may be heard when the next one is under way.
        if op != self.op {
            return;
        }
        match self.running {
            Some(Running::Read(running)) if running == txn => {
                self.on_read_executed(txn, &outcome, decisions, effects);
            }
            Some(Running::Update(running)) if running == txn => {
                self.on_update_executed(txn, &outcome, decisions, effects);
            }
            Some(Running::Unordered(ref mut running)) if running.txn == txn => {
                // What fails may fail because it lacks something; what is lost is lost.
                if matches!(outcome, Outcome::Lost { .. }) {
                    return self.on_update_executed(txn, &outcome, decisions, effects);
                }
                running.outcome = Some(outcome);
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
            let message = Message::Contains { vector: self.contains.tell() };
            self.tell_all(&message, effects);
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
            Some(Running::Read(txn) | Running::Update(txn) | Running::Unordered(Unordered { txn, .. })) => {
                Some(*txn)
            }
            _ => None,
        };
        let txns: Vec<TxnId> = begun.into_iter().chain(self.queue.drain(..).map(|of| of.txn())).collect();
        if !txns.is_empty() {
            send(self.scheduler, Message::GivenBack { txns }, effects);
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
