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
use crate::event::Place;
use crate::ids::{Csn, ReplicaId, TxnId};
use crate::item::Access;
use crate::message::Message as AnyMessage;
use crate::workers::{Numbered, Vector, Workers};

pub use placement::Placement;
pub use scheduler::Scheduler;
pub use worker::Worker;

/// What scheduler and workers say to each other.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Scheduler to worker: run this, once you contain these.
    Run {
        /// The transaction.
        txn: TxnId,
        /// Whether it may write.
        updates: bool,
        /// With what it was in conflict when it was run before.
        after: Vec<Numbered>,
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
    /// Scheduler to worker: something conflicts with it that it has not seen. Give it up: it runs again later, wherever that is.
    GivenUp {
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
        /// What its worker contains.
        vector: Vector,
    },
    /// Worker to scheduler: it contains so much by now.
    Contains {
        /// What it contains.
        vector: Vector,
    },
}

/// Where what is given up runs again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// At its worker, before anything else.
    Here,
    /// As if it had just arrived, behind what waits already.
    Last,
}

/// A scheduler that certifies, and its workers.
pub type Certified = Workers<Scheduler, Worker>;

/// So many workers, whose log ends at `decided`, and to which transactions go like this, at first and when they were given up.
#[must_use]
pub fn new(
    name: &'static str,
    placement: Placement,
    retry: Retry,
    workers: usize,
    decided: Csn,
) -> Certified {
    let ids = (0..workers as u16).map(ReplicaId);
    let each = ids.map(|id| Worker::new(id, workers)).collect();
    Workers::new(name, Scheduler::new(placement, retry, workers), each, decided)
}

fn send(to: Place, message: Message, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { to, message: AnyMessage::Certification(message) });
}

#[cfg(test)]
mod tests;
