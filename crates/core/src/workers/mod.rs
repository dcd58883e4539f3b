//! What protocols have in common that execute each transaction whole at one worker and send its writes to all others: a scheduler,
//! workers that run one transaction at a time, causal order, and one log of decisions.
//!
//! A protocol of this kind is a [`Schedules`] and a [`Works`]; [`Workers`] tells each what concerns it.
//!
//! What fails is a worker's replica. The worker itself lives on beside scheduler and log: it gives back what it has not decided, and is
//! brought up to date by the log before it is used again (docs/protocols/chains.md).

mod decisions;
mod everywhere;
#[cfg(test)]
pub(crate) mod rig;
mod write_sets;

use crate::effect::Effect;
use crate::event::{Begin, Event, Outcome, Place, Statement};
use crate::ids::{Csn, Instant, NodeId, OpId, ReplicaId, TxnId};
use crate::message::Message;
use crate::protocol::{Guarantee, Position, Protocol, ReplicaStatus, Status};

pub use decisions::{Course, Decisions, Due};
pub use everywhere::Everywhere;
pub use write_sets::{Numbered, Standing, Vector, WriteSets};

/// Where the scheduler is.
pub const SCHEDULER: Place = Place::Scheduler(NodeId(0));

/// A worker that has caught up is used if not more than this has become durable meanwhile; else it goes on with that.
const BEHIND_MAX: u64 = 64;

/// Who says which worker runs what.
pub trait Schedules: Send {
    /// A transaction arrives whole, as one statement.
    fn on_transaction(
        &mut self,
        begin: &Begin,
        statement: Statement,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    );

    /// Where a transaction is to arrive.
    fn place_of(&self, _begin: &Begin) -> Place {
        SCHEDULER
    }

    /// A worker says something.
    fn on_message(
        &mut self,
        worker: ReplicaId,
        message: Message,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    );

    /// Where there are several schedulers: one of them, or a worker, says something to one of them.
    fn on_message_at(
        &mut self,
        _scheduler: NodeId,
        from: Place,
        message: Message,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        if let Place::Proxy(worker) = from {
            self.on_message(worker, message, decisions, effects);
        }
    }

    /// A worker is not to be given anything any more; it gives back what it has not decided.
    fn on_down(&mut self, _worker: ReplicaId, _effects: &mut Vec<Effect>) {}

    /// A worker is about to leave for good: nothing new is given to it, unless there is no other one.
    fn on_leaving(&mut self, _worker: ReplicaId, _effects: &mut Vec<Effect>) {}

    /// What a worker that is about to leave has not finished.
    fn unfinished_if_leaving(&self, _worker: ReplicaId) -> Option<u64> {
        None
    }

    /// A worker will be used when it contains so much.
    fn on_return(&mut self, _worker: ReplicaId, _vector: Vector) {}

    /// A worker may be used.
    fn on_up(&mut self, _worker: ReplicaId, _effects: &mut Vec<Effect>) {}

    /// One more worker, which is not used yet.
    fn on_added(&mut self) {}

    /// Transactions that are not finished.
    fn open(&self) -> u64;

    /// Transactions that could run and have no worker.
    fn awaiting_worker(&self) -> u64;

    /// How often something was executed in vain.
    fn refused(&self) -> u64 {
        0
    }
}

/// Who executes.
pub trait Works: Send {
    /// The scheduler or another worker says something.
    fn on_message(
        &mut self,
        from: Place,
        message: Message,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    );

    /// What it was told to execute was executed.
    fn on_executed(
        &mut self,
        txn: TxnId,
        op: OpId,
        outcome: Outcome,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    );

    /// What was decided as this is committed here.
    fn on_committed(&mut self, csn: Csn, decisions: &mut Decisions, effects: &mut Vec<Effect>);

    /// A write set is applied here.
    fn on_write_set_applied(
        &mut self,
        origin: ReplicaId,
        txn: TxnId,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    );

    /// What it contains.
    fn contains(&self) -> &WriteSets;

    /// Whether it has nothing to do, and waits for nothing.
    fn is_free(&self) -> bool;

    /// The same, of workers whose replicas may fail and return; of others none of what follows is called.
    fn may_fail(&mut self) -> Option<&mut WriteSets> {
        None
    }

    /// Its replica has failed, or left for good: nothing that it was told to do is done there any more.
    fn on_down(&mut self, _decisions: &mut Decisions, _effects: &mut Vec<Effect>) {}

    /// What it executed and decided cannot be committed there, though its replica is well.
    fn on_home_lost(&mut self, _txn: TxnId, _decisions: &mut Decisions, _effects: &mut Vec<Effect>) {}

    /// What it decided and lost is durable.
    fn on_lost_durable(&mut self, _txn: TxnId, _decisions: &mut Decisions, _effects: &mut Vec<Effect>) {}

    /// Its replica is up to date again.
    fn on_up(&mut self, _decisions: &mut Decisions, _effects: &mut Vec<Effect>) {}

    /// What it was given and has not begun, though nothing but itself is waited for.
    fn queued(&self) -> u64 {
        0
    }
}

/// The scheduler and the workers of a protocol.
#[derive(Debug)]
pub struct Workers<S, W> {
    name: &'static str,
    scheduler: S,
    workers: Vec<W>,
    /// Makes one more worker, where workers may join: its number, and how many there are with it.
    join: Option<fn(ReplicaId, usize) -> W>,
    decisions: Decisions,
}

impl<S: Schedules, W: Works> Workers<S, W> {
    /// A protocol of this name whose log ends at `decided`, and whose workers stay.
    #[must_use]
    pub fn new(name: &'static str, scheduler: S, workers: Vec<W>, decided: Csn) -> Workers<S, W> {
        let decisions = Decisions::new(workers.len(), decided);
        Workers { name, scheduler, workers, join: None, decisions }
    }

    /// Workers may join as well.
    #[must_use]
    pub fn with_joining(self, join: fn(ReplicaId, usize) -> W) -> Workers<S, W> {
        Workers { join: Some(join), ..self }
    }

    fn at(&mut self, worker: ReplicaId, tell: impl FnOnce(&mut W, &mut Decisions)) {
        if let Some(worker) = self.workers.get_mut(usize::from(worker.0)) {
            tell(worker, &mut self.decisions);
        }
    }

    fn standing(&self, worker: ReplicaId) -> Option<Standing> {
        self.workers.get(usize::from(worker.0)).map(|worker| worker.contains().standing())
    }

    fn on_durable(&mut self, durable: Csn, effects: &mut Vec<Effect>) {
        while let Some(due) = self.decisions.next_due(durable) {
            let Due { csn, txn, worker, is_lost } = due;
            match is_lost {
                false => effects.push(Effect::CommitAt { txn, replica: worker, csn }),
                true => {
                    self.at(worker, |worker, decisions| worker.on_lost_durable(txn, decisions, effects));
                }
            }
        }
    }

    fn on_applied(&mut self, replica: ReplicaId, csn: Csn, effects: &mut Vec<Effect>) {
        match self.standing(replica) {
            Some(Standing::CatchesUp { to }) if csn < to => {}
            Some(Standing::CatchesUp { to }) if self.decisions.durable().0 > to.0 + BEHIND_MAX => {
                self.catch_up(replica, to, effects);
            }
            Some(Standing::CatchesUp { .. }) => self.on_up(replica, effects),
            _ => self.at(replica, |worker, decisions| worker.on_committed(csn, decisions, effects)),
        }
    }

    fn on_down(&mut self, replica: ReplicaId, for_good: bool, effects: &mut Vec<Effect>) {
        let Some(worker) = self.workers.get_mut(usize::from(replica.0)) else { return };
        if worker.contains().standing() == Standing::Gone {
            return;
        }
        let Some(contains) = worker.may_fail() else { return };
        contains.fail(for_good);
        self.scheduler.on_down(replica, effects);
        worker.on_down(&mut self.decisions, effects);
    }

    /// A replica is there again, and contains everything up to `applied`, and perhaps some of what follows.
    fn on_returned(&mut self, replica: ReplicaId, applied: Csn, effects: &mut Vec<Effect>) {
        let is_away = matches!(self.standing(replica), Some(Standing::Down | Standing::CatchesUp { .. }));
        if is_away {
            self.catch_up(replica, applied, effects);
        }
    }

    fn catch_up(&mut self, replica: ReplicaId, applied: Csn, effects: &mut Vec<Effect>) {
        let (to, vector) = (self.decisions.durable(), self.decisions.durable_vector());
        let Some(worker) = self.workers.get_mut(usize::from(replica.0)) else { return };
        let Some(contains) = worker.may_fail() else { return };
        contains.catch_up(to, &vector);
        self.scheduler.on_return(replica, vector);
        if applied < to {
            effects.push(Effect::Apply { replica, from: applied.next(), to });
        } else {
            self.on_up(replica, effects);
        }
    }

    fn on_up(&mut self, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(worker) = self.workers.get_mut(usize::from(replica.0)) else { return };
        let Some(contains) = worker.may_fail() else { return };
        contains.serve();
        worker.on_up(&mut self.decisions, effects);
        self.scheduler.on_up(replica, effects);
    }

    fn on_leaving(&mut self, replica: ReplicaId, effects: &mut Vec<Effect>) {
        if self.join.is_some() && usize::from(replica.0) < self.workers.len() {
            self.scheduler.on_leaving(replica, effects);
        }
    }

    fn on_added(&mut self) {
        let Some(join) = self.join else { return };
        let replica = ReplicaId(self.workers.len() as u16);
        self.workers.iter_mut().filter_map(Works::may_fail).for_each(WriteSets::add_worker);
        self.workers.push(join(replica, self.workers.len() + 1));
        self.decisions.add_worker();
        self.scheduler.on_added();
    }
}

impl<S: Schedules, W: Works> Protocol for Workers<S, W> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::ParallelSnapshotIsolation
    }

    fn position(&self) -> Position {
        Position::Set
    }

    fn changes_replicas(&self) -> bool {
        self.join.is_some()
    }

    fn place_of(&self, event: &Event) -> Place {
        match event {
            Event::Executed { replica, .. }
            | Event::Applied { replica, .. }
            | Event::HomeLost { replica, .. }
            | Event::ReplicaUp { replica, .. }
            | Event::ReplicaDown { replica }
            | Event::ReplicaLeaving { replica }
            | Event::ReplicaRemoved { replica }
            | Event::ShippedApplied { replica, .. } => Place::Proxy(*replica),
            Event::Autocommit { begin, .. } => self.scheduler.place_of(begin),
            _ => SCHEDULER,
        }
    }

    fn handle(&mut self, place: Place, _now: Instant, event: Event, effects: &mut Vec<Effect>) {
        match (event, place) {
            (Event::Autocommit { begin, statement }, _) => {
                self.scheduler.on_transaction(&begin, statement, &mut self.decisions, effects);
            }
            (Event::Executed { txn, op, replica, outcome, .. }, _) => {
                self.at(replica, |worker, decisions| {
                    worker.on_executed(txn, op, outcome, decisions, effects);
                });
            }
            (Event::Durable { csn }, _) => self.on_durable(csn, effects),
            (Event::Applied { replica, csn }, _) => self.on_applied(replica, csn, effects),
            (Event::HomeLost { txn, replica }, _) => {
                self.at(replica, |worker, decisions| worker.on_home_lost(txn, decisions, effects));
            }
            (Event::ShippedApplied { origin: Place::Proxy(origin), txn, replica }, _) => {
                self.at(replica, |worker, decisions| {
                    worker.on_write_set_applied(origin, txn, decisions, effects);
                });
            }
            (Event::ReplicaDown { replica }, _) => self.on_down(replica, false, effects),
            (Event::ReplicaRemoved { replica }, _) => self.on_down(replica, true, effects),
            (Event::ReplicaUp { replica, applied }, _) => self.on_returned(replica, applied, effects),
            (Event::ReplicaLeaving { replica }, _) => self.on_leaving(replica, effects),
            (Event::ReplicaAdded { .. }, _) => self.on_added(),
            (Event::Message { from, message }, Place::Scheduler(scheduler)) => {
                self.scheduler.on_message_at(scheduler, from, message, &mut self.decisions, effects);
            }
            (Event::Message { from, message }, Place::Proxy(replica)) => {
                self.at(replica, |worker, decisions| worker.on_message(from, message, decisions, effects));
            }
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let replicas = (0..).map(ReplicaId).zip(&self.workers).map(|(replica, worker)| {
            let contains = worker.contains();
            let leaving = self.scheduler.unfinished_if_leaving(replica);
            let is_gone = contains.standing() == Standing::Gone;
            ReplicaStatus {
                up: contains.standing() == Standing::Up,
                gone: is_gone,
                leaving: leaving.is_some() && !is_gone,
                open: leaving.unwrap_or_default(),
                busy: !worker.is_free(),
                home_statements: contains.own(),
                applies: contains.vector().iter().sum::<u64>() - contains.own(),
                ..ReplicaStatus::default()
            }
        });
        let queued: u64 = self.workers.iter().map(Works::queued).sum();
        Status {
            told: self.decisions.durable().0,
            decided: self.decisions.decided().0,
            replicas: replicas.collect(),
            transactions: self.scheduler.open(),
            awaiting_worker: self.scheduler.awaiting_worker() + queued,
            occupied_workers: self.workers.iter().filter(|worker| !worker.is_free()).count() as u64,
            reads_changed: self.scheduler.refused(),
            ..Status::default()
        }
    }
}
