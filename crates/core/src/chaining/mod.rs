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
//! Beyond the paper (its section VII), in the simulator: idle workers execute what others execute as well ([`Redundancy`]), and several
//! sites have a scheduler each ([`Sites`]).
//!
//! Replicas fail and return, which the paper leaves out. An update knows its predecessors by name, and the log says what became of
//! them; so an update that was not decided where a replica failed goes to another worker, and nobody else has to hear of it.

mod endings;
mod in_order;
mod scheduler;
mod sites;
mod worker;

use std::sync::Arc;

use crate::effect::Effect;
use crate::event::Place;
use crate::ids::{Csn, NodeId, ReplicaId, TxnId};
use crate::item::Access;
use crate::message::Message as AnyMessage;
use crate::workers::{Vector, Workers};

pub use in_order::InOrder;
pub use scheduler::Scheduler;
pub use sites::{Optimism, Sites};
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
        /// Whether that is all of them, since its place among all updates is known. If it is not, it may run and not be decided.
        is_ordered: bool,
    },
    /// Scheduler to worker, where there are several schedulers: what this is behind, now that its place among all updates is known.
    Confirmed {
        /// The transaction.
        txn: TxnId,
        /// Its predecessors, wherever they run.
        predecessors: Vec<TxnId>,
    },
    /// Scheduler to the one that orders the updates of all: one has arrived here.
    Announced {
        /// The transaction.
        txn: TxnId,
        /// What it may do.
        accesses: Arc<[Access]>,
    },
    /// Scheduler to the others: this is the next update in the order of all.
    Ordered {
        /// The transaction.
        txn: TxnId,
        /// Whose it is.
        site: NodeId,
        /// What it may do.
        accesses: Arc<[Access]>,
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
    /// Worker to scheduler: this is not executed here any more, since another worker has decided it.
    Skipped {
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

/// When an idle worker executes what others execute as well, for the sake of what is behind that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redundancy {
    /// One of so many workers stays idle for what arrives.
    pub kept_part: usize,
    /// At most so many updates are executed once more, so that the next one can follow them.
    pub longest: usize,
}

/// The scheduler and the workers of chains.
pub type Chains = Workers<Scheduler, Worker>;

/// The schedulers of several sites and their workers.
pub type ChainsOfSites = Workers<Sites, Worker>;

/// A scheduler and so many workers, whose log ends at `decided`. Their replicas are down until they are reported up.
#[must_use]
pub fn new(name: &'static str, order: Order, workers: usize, decided: Csn) -> Chains {
    let ids = (0..workers as u16).map(ReplicaId);
    let each = ids.map(|id| Worker::new(id, workers)).collect();
    Workers::new(name, Scheduler::new(order, workers), each, decided).with_joining(Worker::new)
}

/// The same, where idle workers execute what others execute as well.
#[must_use]
pub fn new_redundant(
    name: &'static str,
    order: Order,
    redundancy: Redundancy,
    workers: usize,
    decided: Csn,
) -> Chains {
    let ids = (0..workers as u16).map(ReplicaId);
    let each = ids.map(|id| Worker::new(id, workers)).collect();
    let scheduler = Scheduler::new(order, workers).with_redundancy(redundancy);
    Workers::new(name, scheduler, each, decided).with_joining(Worker::new)
}

/// So many sites, to which so many workers belong in turn, each with a scheduler of its own.
#[must_use]
pub fn new_distributed(
    name: &'static str,
    sites: u16,
    optimism: Optimism,
    workers: usize,
    decided: Csn,
) -> ChainsOfSites {
    let ids = (0..workers as u16).map(ReplicaId);
    let each = ids.map(|id| Worker::of_site(id, workers, sites)).collect();
    Workers::new(name, Sites::new(sites, optimism, workers), each, decided)
}

fn send(to: Place, message: Message, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { to, message: AnyMessage::Chaining(message) });
}

#[cfg(test)]
mod tests;
