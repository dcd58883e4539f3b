//! Updates that run first and ask afterwards: each at one worker, and the scheduler, who knows what was committed, says whether it
//! may commit. For protocols that differ in where they run transactions.
//!
//! An update runs on what its worker contains. What it wrote then goes to the scheduler. If something that conflicts with it has been
//! committed and was not contained when it began, it is given up, waits until its worker contains that, and runs again there.
//! Otherwise it takes the next place among its worker's updates, commits, and its writes go to all others in causal order. Source: the
//! systems with which Cincilla and others compare theirs, *Gargamel*, ICPADS 2012, section IV.B.
//!
//! Guarantee: parallel snapshot isolation. What counts are the rows that a transaction wrote ([`Outcome::Done`](crate::event::Outcome::Done) returns them), so
//! nobody has to know beforehand.

mod placement;
mod scheduler;
mod worker;

use std::sync::Arc;

use crate::effect::Effect;
use crate::event::{Event, Place};
use crate::ids::{Csn, Instant, NodeId, ReplicaId, TxnId};
use crate::item::Access;
use crate::message::Message as AnyMessage;
use crate::protocol::{Guarantee, Position, Protocol, ReplicaStatus, Status};
use crate::write_sets::{Decisions, Numbered, Vector};

pub use placement::Placement;
use scheduler::Scheduler;
use worker::Worker;

/// What scheduler and workers say to each other.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Scheduler to worker: run this.
    Run {
        /// The transaction.
        txn: TxnId,
        /// Whether it may write.
        updates: bool,
    },
    /// Worker to scheduler: an update was executed. May it commit?
    Certify {
        /// The transaction.
        txn: TxnId,
        /// What its worker contained when it began.
        snapshot: Vector,
        /// What it wrote.
        writes: Arc<[Access]>,
    },
    /// Scheduler to worker: it may, as the worker's next update.
    Certified {
        /// The transaction.
        txn: TxnId,
    },
    /// Scheduler to worker: these conflict with it, and it has not seen them. Run it again when you contain them.
    Again {
        /// The transaction.
        txn: TxnId,
        /// What was committed.
        after: Vec<Numbered>,
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
        /// What its worker contains.
        vector: Vector,
    },
    /// Worker to scheduler: it contains so much by now.
    Contains {
        /// What it contains.
        vector: Vector,
    },
}

const SCHEDULER: Place = Place::Scheduler(NodeId(0));

/// A scheduler that certifies, and its workers.
#[derive(Debug)]
pub struct Certified {
    name: &'static str,
    scheduler: Scheduler,
    workers: Vec<Worker>,
    decisions: Decisions,
}

impl Certified {
    /// So many workers, whose log ends at `decided`, and to which transactions go like this.
    #[must_use]
    pub fn new(name: &'static str, placement: Placement, workers: usize, decided: Csn) -> Certified {
        let ids = (0..workers as u16).map(ReplicaId);
        Certified {
            name,
            scheduler: Scheduler::new(placement, workers),
            workers: ids.map(|id| Worker::new(id, workers)).collect(),
            decisions: Decisions::new(decided),
        }
    }

    fn on_message(&mut self, place: Place, from: Place, message: Message, effects: &mut Vec<Effect>) {
        match (place, from) {
            (Place::Scheduler(_), Place::Proxy(worker)) => {
                self.scheduler.on_message(worker, message, effects)
            }
            (Place::Proxy(id), from) => {
                if let Some(worker) = self.workers.get_mut(usize::from(id.0)) {
                    worker.on_message(from, message, &mut self.decisions, effects);
                }
            }
            _ => {}
        }
    }
}

impl Protocol for Certified {
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
        let worker = |id: ReplicaId, workers| <[Worker]>::get_mut(workers, usize::from(id.0));
        match event {
            Event::Autocommit { begin, statement } => {
                self.scheduler.on_transaction(begin.txn, begin.form, &statement, effects);
            }
            Event::Executed { txn, replica, outcome, .. } => {
                if let Some(worker) = worker(replica, &mut self.workers) {
                    worker.on_executed(txn, outcome, effects);
                }
            }
            Event::Durable { csn } => self.decisions.on_durable(csn, effects),
            Event::Applied { replica, csn } => {
                if let Some(worker) = worker(replica, &mut self.workers) {
                    worker.on_committed(csn, effects);
                }
            }
            Event::ShippedApplied { origin: Place::Proxy(origin), txn, replica } => {
                if let Some(worker) = worker(replica, &mut self.workers) {
                    worker.on_write_set_applied(origin, txn, effects);
                }
            }
            Event::Message { from, message: AnyMessage::Certification(message) } => {
                self.on_message(place, from, message, effects);
            }
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let replicas = self.workers.iter().map(|worker| ReplicaStatus {
            up: true,
            open: worker.open(),
            home_statements: worker.contains().own(),
            applies: worker.contains().vector().iter().sum::<u64>() - worker.contains().own(),
            ..ReplicaStatus::default()
        });
        Status {
            decided: self.decisions.decided().0,
            replicas: replicas.collect(),
            transactions: self.scheduler.open(),
            awaiting_worker: self.scheduler.awaiting_worker()
                + self.workers.iter().map(Worker::queued).sum::<u64>(),
            reads_changed: self.scheduler.refused(),
            ..Status::default()
        }
    }
}

fn send(to: Place, message: Message, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { to, message: AnyMessage::Certification(message) });
}

#[cfg(test)]
mod tests;
