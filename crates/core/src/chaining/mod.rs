//! Chains of conflicting updates: for protocols that put updates in order before they run.
//!
//! The scheduler puts each update behind those that it conflicts with, and finds a worker for it: queues grow, merge and split as
//! transactions come. A worker runs its queue one after the other, and starts an update when it contains the writes of its
//! predecessors. Write sets go to all other workers in causal order, in the background. Source: P. Cincilla, S. Monnet, M. Shapiro:
//! *Gargamel: boosting DBMS performance by parallelising write transactions* (ICPADS 2012), sections II and III.
//!
//! Where several chains meet, the paper does not say which goes on; here it is the longest. Its worker may then wait for the others, and runs
//! nothing else meanwhile. Missing: workers that fail or join.

mod in_order;
mod numbers;
mod scheduler;
mod worker;

use crate::effect::Effect;
use crate::event::Place;
use crate::ids::{Csn, ReplicaId, TxnId};
use crate::message::Message as AnyMessage;
use crate::workers::{Numbered, Vector, Workers};

pub use in_order::InOrder;
pub use scheduler::Scheduler;
pub use worker::Worker;

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

/// Which updates are put in an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Those that conflict.
    OfConflicts,
    /// All.
    OfAll,
}

/// The scheduler and the workers of chains.
pub type Chains = Workers<Scheduler, Worker>;

/// A scheduler and so many workers, whose log ends at `decided`.
#[must_use]
pub fn new(name: &'static str, order: Order, workers: usize, decided: Csn) -> Chains {
    let ids = (0..workers as u16).map(ReplicaId);
    let each = ids.map(|id| Worker::new(id, workers)).collect();
    Workers::new(name, Scheduler::new(order, workers), each, decided)
}

fn send(to: Place, message: Message, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { to, message: AnyMessage::Chaining(message) });
}

#[cfg(test)]
mod tests;
