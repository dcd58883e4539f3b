//! Chains of conflicting updates: for protocols that put updates in order before they run.
//!
//! The scheduler puts each update behind those that it conflicts with, and finds a worker for it: queues grow, merge and split as
//! transactions come. A worker runs its queue one after the other, and starts an update when it contains the writes of its
//! predecessors. Write sets go to all other workers in causal order, in the background. Source: P. Cincilla, S. Monnet, M. Shapiro:
//! *Gargamel: boosting DBMS performance by parallelising write transactions* (ICPADS 2012), sections II and III.
//!
//! Where several chains meet, the paper does not say which goes on; here it is the longest. Its worker may then wait for the others, and runs
//! nothing else meanwhile. Missing: workers that fail or join.

mod scheduler;
mod worker;

use crate::effect::Effect;
use crate::event::{Event, Place};
use crate::ids::{Csn, Instant, NodeId, ReplicaId, TxnId};
use crate::message::Message as AnyMessage;
use crate::write_sets::{Decisions, Numbered, Vector};

use crate::protocol::{Guarantee, Position, Protocol, ReplicaStatus, Status};
use scheduler::Scheduler;
use worker::Worker;

/// What scheduler and workers say to each other.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Scheduler to worker: run this update, your next one, once you contain these.
    Update {
        /// The transaction.
        txn: TxnId,
        /// Its predecessors at other workers.
        predecessors: Vec<Numbered>,
    },
    /// Scheduler to worker: run this read-only transaction.
    Read {
        /// The transaction.
        txn: TxnId,
    },
    /// Worker to worker, with the writes: this has been committed.
    WriteSet {
        /// The transaction.
        txn: TxnId,
        /// What its worker then contained.
        vector: Vector,
    },
    /// Worker to scheduler: the transaction is over.
    Finished {
        /// The transaction.
        txn: TxnId,
        /// What its worker contains, after an update.
        vector: Option<Vector>,
    },
    /// Worker to scheduler: it contains so much by now.
    Contains {
        /// What it contains.
        vector: Vector,
    },
}

const SCHEDULER: Place = Place::Scheduler(NodeId(0));

/// Which updates are put in an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Those that conflict.
    OfConflicts,
    /// All.
    OfAll,
}

/// The scheduler and the workers.
#[derive(Debug)]
pub struct Chains {
    name: &'static str,
    scheduler: Scheduler,
    workers: Vec<Worker>,
    decisions: Decisions,
}

impl Chains {
    /// A scheduler and `workers` workers, whose log ends at `decided`.
    #[must_use]
    pub fn new(name: &'static str, order: Order, workers: usize, decided: Csn) -> Chains {
        let ids = (0..workers as u16).map(ReplicaId);
        Chains {
            name,
            scheduler: Scheduler::new(order, workers),
            workers: ids.map(|id| Worker::new(id, workers)).collect(),
            decisions: Decisions::new(decided),
        }
    }

    fn worker(&mut self, id: ReplicaId) -> Option<&mut Worker> {
        self.workers.get_mut(usize::from(id.0))
    }

    fn on_message(&mut self, place: Place, from: Place, message: Message, effects: &mut Vec<Effect>) {
        match (place, from) {
            (Place::Scheduler(_), Place::Proxy(worker)) => {
                self.scheduler.on_message(worker, message, effects)
            }
            (Place::Proxy(id), from) => {
                if let Some(worker) = self.worker(id) {
                    worker.on_message(from, message, effects);
                }
            }
            _ => {}
        }
    }
}

impl Protocol for Chains {
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
        match event {
            Event::Autocommit { begin, statement } => {
                self.scheduler.on_transaction(begin.txn, statement, effects)
            }
            Event::Executed { txn, replica, outcome, .. } => {
                if let Some(worker) = self.workers.get_mut(usize::from(replica.0)) {
                    worker.on_executed(txn, &outcome, &mut self.decisions, effects);
                }
            }
            Event::Durable { csn } => self.decisions.on_durable(csn, effects),
            Event::Applied { replica, csn } => {
                if let Some(worker) = self.worker(replica) {
                    worker.on_committed(csn, effects);
                }
            }
            Event::ShippedApplied { origin: Place::Proxy(origin), txn, replica } => {
                if let Some(worker) = self.worker(replica) {
                    worker.on_write_set_applied(origin, txn, effects);
                }
            }
            Event::Message { from, message: AnyMessage::Chaining(message) } => {
                self.on_message(place, from, message, effects);
            }
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let replicas = self.workers.iter().map(|worker| ReplicaStatus {
            up: true,
            open: self.scheduler.unfinished(worker.id()),
            home_statements: worker.contains().own(),
            applies: worker.contains().vector().iter().sum::<u64>() - worker.contains().own(),
            ..ReplicaStatus::default()
        });
        Status {
            decided: self.decisions.decided().0,
            replicas: replicas.collect(),
            transactions: self.scheduler.open(),
            awaiting_worker: self.scheduler.awaiting_worker(),
            ..Status::default()
        }
    }
}

fn send(to: Place, message: Message, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { to, message: AnyMessage::Chaining(message) });
}

#[cfg(test)]
mod tests;
