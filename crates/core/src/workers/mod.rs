//! What protocols have in common that execute each transaction whole at one worker and send its writes to all others: a scheduler,
//! workers that run one transaction at a time, causal order, and one log of decisions.
//!
//! A protocol of this kind is a [`Schedules`] and a [`Works`]; [`Workers`] tells each what concerns it.

#[cfg(test)]
pub(crate) mod rig;
mod write_sets;

use crate::effect::Effect;
use crate::event::{Begin, Event, Outcome, Place, Statement};
use crate::ids::{Csn, Instant, NodeId, ReplicaId, TxnId};
use crate::message::Message;
use crate::protocol::{Guarantee, Position, Protocol, ReplicaStatus, Status};

pub use write_sets::{Decisions, Everywhere, Numbered, Vector, WriteSets};

/// Where the scheduler is.
pub const SCHEDULER: Place = Place::Scheduler(NodeId(0));

/// Who says which worker runs what.
pub trait Schedules: Send {
    /// A transaction arrives whole, as one statement.
    fn on_transaction(&mut self, begin: &Begin, statement: Statement, effects: &mut Vec<Effect>);

    /// A worker says something.
    fn on_message(&mut self, worker: ReplicaId, message: Message, effects: &mut Vec<Effect>);

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
        outcome: Outcome,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    );

    /// What was decided as this is committed here.
    fn on_committed(&mut self, csn: Csn, effects: &mut Vec<Effect>);

    /// A write set of another worker is applied here.
    fn on_write_set_applied(&mut self, origin: ReplicaId, txn: TxnId, effects: &mut Vec<Effect>);

    /// What it contains.
    fn contains(&self) -> &WriteSets;

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
    decisions: Decisions,
}

impl<S: Schedules, W: Works> Workers<S, W> {
    /// A protocol of this name whose log ends at `decided`.
    #[must_use]
    pub fn new(name: &'static str, scheduler: S, workers: Vec<W>, decided: Csn) -> Workers<S, W> {
        Workers { name, scheduler, workers, decisions: Decisions::new(decided) }
    }

    fn at(&mut self, worker: ReplicaId, tell: impl FnOnce(&mut W, &mut Decisions)) {
        if let Some(worker) = self.workers.get_mut(usize::from(worker.0)) {
            tell(worker, &mut self.decisions);
        }
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

    fn place_of(&self, event: &Event) -> Place {
        match event {
            Event::Executed { replica, .. }
            | Event::Applied { replica, .. }
            | Event::ShippedApplied { replica, .. } => Place::Proxy(*replica),
            _ => SCHEDULER,
        }
    }

    fn handle(&mut self, place: Place, _now: Instant, event: Event, effects: &mut Vec<Effect>) {
        match (event, place) {
            (Event::Autocommit { begin, statement }, _) => {
                self.scheduler.on_transaction(&begin, statement, effects);
            }
            (Event::Executed { txn, replica, outcome, .. }, _) => {
                self.at(replica, |worker, decisions| worker.on_executed(txn, outcome, decisions, effects));
            }
            (Event::Durable { csn }, _) => self.decisions.on_durable(csn, effects),
            (Event::Applied { replica, csn }, _) => {
                self.at(replica, |worker, _| worker.on_committed(csn, effects));
            }
            (Event::ShippedApplied { origin: Place::Proxy(origin), txn, replica }, _) => {
                self.at(replica, |worker, _| worker.on_write_set_applied(origin, txn, effects));
            }
            (Event::Message { from: Place::Proxy(worker), message }, Place::Scheduler(_)) => {
                self.scheduler.on_message(worker, message, effects);
            }
            (Event::Message { from, message }, Place::Proxy(replica)) => {
                self.at(replica, |worker, decisions| worker.on_message(from, message, decisions, effects));
            }
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let replicas = self.workers.iter().map(|worker| {
            let contains = worker.contains();
            ReplicaStatus {
                up: true,
                home_statements: contains.own(),
                applies: contains.vector().iter().sum::<u64>() - contains.own(),
                ..ReplicaStatus::default()
            }
        });
        let queued: u64 = self.workers.iter().map(Works::queued).sum();
        Status {
            decided: self.decisions.decided().0,
            replicas: replicas.collect(),
            transactions: self.scheduler.open(),
            awaiting_worker: self.scheduler.awaiting_worker() + queued,
            reads_changed: self.scheduler.refused(),
            ..Status::default()
        }
    }
}
