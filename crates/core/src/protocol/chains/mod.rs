//! Conflict chains (Gargamel): conflicting updates run one after the other, others in parallel, each at one worker.
//!
//! Idea. A transaction arrives whole, and what it may write is known before it runs. The scheduler puts it behind those that it
//! conflicts with. Queues grow, merge and split as transactions come, which is why they are called chains (docs/protocols/chains.md).
//! With a transaction, its worker is told which of its predecessors run elsewhere, and starts it when it has their writes. So
//! nothing is ever given up for a conflict. Write sets go to all other workers in causal order, in the background.
//!
//! Paper: P. Cincilla, S. Monnet, M. Shapiro: Gargamel: boosting DBMS performance by parallelising write transactions (ICPADS
//! 2012), sections II and III.
//!
//! Guarantee: parallel snapshot isolation, if the access sets name what is written; 1-copy serializability, if they name what is
//! read as well and read-only transactions come as updates do. Read-only transactions are else never delayed, and may see an old
//! state.
//!
//! Invariants:
//! - of two updates that conflict, the later starts where the writes of the earlier are;
//! - a worker runs one transaction at a time;
//! - a worker applies a write set after everything that its origin contained when it committed.
//!
//! How it differs from the paper: where several chains meet, the paper does not say which goes on; here it is the longest.
//!
//! Missing: workers that fail or join.

mod scheduler;
mod worker;

use crate::effect::Effect;
use crate::event::{Event, Place};
use crate::ids::{Csn, Instant, NodeId, ReplicaId, TxnId};
use crate::message::Message as AnyMessage;
use crate::write_sets::{Decisions, Numbered, Vector};

use super::{Guarantee, Position, Protocol, ReplicaStatus, Status};
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

/// The scheduler and the workers of conflict chains.
#[derive(Debug)]
pub struct Chains {
    scheduler: Scheduler,
    workers: Vec<Worker>,
    decisions: Decisions,
    name: &'static str,
}

impl Chains {
    /// A scheduler and `workers` workers, whose log ends at `decided`.
    #[must_use]
    pub fn new(workers: usize, decided: Csn) -> Chains {
        let ids = (0..workers as u16).map(ReplicaId);
        Chains {
            scheduler: Scheduler::new(workers),
            workers: ids.map(|id| Worker::new(id, workers)).collect(),
            decisions: Decisions::new(decided),
            name: "chains",
        }
    }

    /// The same under another name, all of whose updates conflict.
    pub(super) fn of_one_chain(name: &'static str, workers: usize, decided: Csn) -> Chains {
        let mut chains = Chains::new(workers, decided);
        chains.name = name;
        chains.scheduler.all_conflict = true;
        chains
    }

    fn worker(&mut self, id: ReplicaId) -> Option<&mut Worker> {
        self.workers.get_mut(usize::from(id.0))
    }

    fn on_message(&mut self, place: Place, from: Place, message: Message, effects: &mut Vec<Effect>) {
        match (place, from) {
            (Place::Scheduler(_), Place::Proxy(worker)) => self.scheduler.on_message(worker, message, effects),
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
            Event::Autocommit { begin, statement } => self.scheduler.on_transaction(begin.txn, statement, effects),
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
            Event::Message { from, message: AnyMessage::Chains(message) } => {
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
            freshness_waits: self.scheduler.awaiting_worker(),
            ..Status::default()
        }
    }
}

fn send(to: Place, message: Message, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { to, message: AnyMessage::Chains(message) });
}

#[cfg(test)]
mod tests;
