//! Chains of conflicting updates: for protocols that put updates in order before they run.
//!
//! The scheduler puts each update behind those that it conflicts with, and finds a worker for it: queues grow, merge and split as
//! transactions come. A worker runs its queue one after the other, and starts an update when it contains the writes of its
//! predecessors. Write sets go to all other workers in causal order, in the background. Source: P. Cincilla, S. Monnet, M. Shapiro:
//! *Gargamel: boosting DBMS performance by parallelising write transactions* (ICPADS 2012), sections II and III.
//!
//! Where several chains meet, the paper does not say which goes on; here it is the longest. Its worker may then wait for the others, and runs
//! nothing else meanwhile.
//!
//! Replicas fail and return, which the paper leaves out. An update knows its predecessors by name, and the log says what became of
//! them; so an update that was not decided where a replica failed goes to another worker, and nobody else has to hear of it.

mod endings;
mod in_order;
mod scheduler;
mod worker;

use crate::effect::Effect;
use crate::event::Place;
use crate::ids::{Csn, ReplicaId, TxnId};
use crate::message::Message as AnyMessage;
use crate::workers::{Vector, Workers};

pub use in_order::InOrder;
pub use scheduler::Scheduler;
pub use worker::Worker;

/// What scheduler and workers say to each other.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Scheduler to worker: run this update, behind those that came before it, once you contain these.
    Update {
        /// The transaction.
        txn: TxnId,
        /// Its predecessors, wherever they run.
        predecessors: Vec<TxnId>,
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
        /// Where it was executed.
        origin: ReplicaId,
        /// What its worker contained when it was decided, itself included.
        vector: Vector,
    },
    /// Worker to worker: this failed, and wrote nothing.
    WroteNothing {
        /// The transaction.
        txn: TxnId,
    },
    /// Worker to scheduler: these are not executed here, since the replica failed. They may run elsewhere.
    GivenBack {
        /// The transactions, in the order in which they were to run.
        txns: Vec<TxnId>,
    },
    /// Log to worker: this was decided here, cannot be committed here, and is durable.
    LostIsDurable {
        /// The transaction.
        txn: TxnId,
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

/// A scheduler and so many workers, whose log ends at `decided`. Their replicas are down until they are reported up.
#[must_use]
pub fn new(name: &'static str, order: Order, workers: usize, decided: Csn) -> Chains {
    let ids = (0..workers as u16).map(ReplicaId);
    let each = ids.map(|id| Worker::new(id, workers)).collect();
    Workers::new(name, Scheduler::new(order, workers), each, decided).with_joining(Worker::new)
}

fn send(to: Place, message: Message, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { to, message: AnyMessage::Chaining(message) });
}

#[cfg(test)]
mod tests;
