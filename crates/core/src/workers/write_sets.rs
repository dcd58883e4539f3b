//! Causal order of what workers write, and the one log of their decisions.
//!
//! The updates of a worker are numbered from 1. What a worker contains is said by a vector: of each worker, the number of the
//! last update. A write set carries what its origin contained when it committed, itself included, and is applied where all of
//! that is: so nobody sees an update without those that it has seen. Source: Cincilla and others, *Gargamel*, ICPADS 2012,
//! sections II.B and III.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::effect::{Decision, Effect};
use crate::event::Place;
use crate::ids::{Csn, ReplicaId, TxnId};
use crate::message::Message;

/// So many write sets are applied before the scheduler is told of it, unless a transaction ends before.
const APPLIED_UNTOLD_MAX: u32 = 64;

/// Of each worker the number of its last update, at most as many as there are workers; the others have none.
pub type Vector = Arc<[u64]>;

/// One update, by its worker and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Numbered {
    /// Where it ran.
    pub worker: ReplicaId,
    /// The how many-th update of that worker it is, from 1.
    pub number: u64,
}

impl Numbered {
    /// Whether whoever contains so much contains it.
    #[must_use]
    pub fn is_in(self, vector: &[u64]) -> bool {
        vector.get(usize::from(self.worker.0)).is_some_and(|last| self.number <= *last)
    }
}

/// What one worker contains, and what it has received and does not contain yet.
#[derive(Debug)]
pub struct WriteSets {
    me: ReplicaId,
    vector: Vec<u64>,
    arrived: Vec<Arrived>,
    applying: Option<(ReplicaId, TxnId)>,
    /// Write sets applied since the scheduler was told last what is contained.
    untold: u32,
}

#[derive(Debug)]
struct Arrived {
    origin: ReplicaId,
    txn: TxnId,
    vector: Vector,
}

impl Arrived {
    /// It is the next one of its origin, and all that its origin contained is there.
    fn is_next_after(&self, ours: &[u64]) -> bool {
        let origin = usize::from(self.origin.0);
        let number = |vector: &[u64]| vector.get(origin).copied().unwrap_or_default();
        // Counted to the end, which is faster than to stop at the first: nearly always there is one, its own.
        let newer =
            self.vector.iter().zip(ours).map(|(theirs, ours)| usize::from(theirs > ours)).sum::<usize>();
        newer == 1 && number(&self.vector) == number(ours) + 1
    }
}

impl WriteSets {
    /// A worker of so many that contains nothing.
    #[must_use]
    pub fn new(me: ReplicaId, workers: usize) -> WriteSets {
        WriteSets { me, vector: vec![0; workers], arrived: Vec::new(), applying: None, untold: 0 }
    }

    /// What it contains.
    #[must_use]
    pub fn vector(&self) -> &[u64] {
        &self.vector
    }

    /// Updates of its own.
    #[must_use]
    pub fn own(&self) -> u64 {
        self.vector[usize::from(self.me.0)]
    }

    /// It has committed its next own update, whose writes go to all others with a message that says what it contains by now.
    pub fn commit(&mut self, txn: TxnId, message: impl Fn(Vector) -> Message, effects: &mut Vec<Effect>) {
        self.vector[usize::from(self.me.0)] += 1;
        let vector: Vector = self.vector.as_slice().into();
        let others = (0..vector.len() as u16).map(ReplicaId).filter(|other| *other != self.me);
        for other in others {
            effects.push(Effect::Ship { txn, to: Place::Proxy(other), message: message(vector.clone()) });
        }
    }

    /// What it contains, for the scheduler.
    pub fn tell(&mut self) -> Vector {
        self.untold = 0;
        self.vector.as_slice().into()
    }

    /// Whether so much was applied since the scheduler was told that it should hear of it.
    #[must_use]
    pub fn is_to_be_told(&self) -> bool {
        self.untold >= APPLIED_UNTOLD_MAX
    }

    /// A write set has come from another worker.
    pub fn arrive(&mut self, origin: ReplicaId, txn: TxnId, vector: Vector) {
        self.arrived.push(Arrived { origin, txn, vector });
    }

    /// Begins to apply the next write set that may be applied, if none is being applied.
    pub fn apply_next(&mut self, effects: &mut Vec<Effect>) {
        if self.applying.is_some() {
            return;
        }
        let Some(next) = self.arrived.iter().position(|set| set.is_next_after(&self.vector)) else { return };
        let Arrived { origin, txn, .. } = self.arrived.remove(next);
        self.applying = Some((origin, txn));
        effects.push(Effect::ApplyShipped { origin: Place::Proxy(origin), txn, replica: self.me });
    }

    /// A write set has been applied. Returns whether it was the one that is awaited.
    pub fn applied(&mut self, origin: ReplicaId, txn: TxnId) -> bool {
        let is_awaited = self.applying.take_if(|applying| *applying == (origin, txn)).is_some();
        if is_awaited {
            self.vector[usize::from(origin.0)] += 1;
            self.untold += 1;
        }
        is_awaited
    }
}

/// Which updates every worker contains, for whoever need not remember these.
#[derive(Debug)]
pub struct Everywhere {
    /// What each worker said last.
    told: Vec<Option<Vector>>,
    /// Of each worker the updates that some worker may not contain, in order.
    remembered: Vec<VecDeque<TxnId>>,
    contained: Vec<u64>,
    reports: usize,
}

impl Everywhere {
    /// Of so many workers.
    #[must_use]
    pub fn new(workers: usize) -> Everywhere {
        Everywhere {
            told: vec![None; workers],
            remembered: vec![VecDeque::new(); workers],
            contained: vec![0; workers],
            reports: 0,
        }
    }

    /// The next update of a worker.
    pub fn remember(&mut self, worker: ReplicaId, txn: TxnId) {
        self.remembered[usize::from(worker.0)].push_back(txn);
    }

    /// A worker contains so much. Returns, now and then, the updates that are found to be everywhere.
    pub fn report(&mut self, worker: ReplicaId, vector: Vector) -> Vec<TxnId> {
        self.told[usize::from(worker.0)] = Some(vector);
        self.reports += 1;
        if self.reports < self.told.len() {
            return Vec::new();
        }
        self.reports = 0;
        let mut least = vec![u64::MAX; self.told.len()];
        for told in &self.told {
            // Who has said nothing yet contains nothing for sure.
            let Some(vector) = told else { return Vec::new() };
            least.iter_mut().zip(vector.iter()).for_each(|(least, of)| *least = (*least).min(*of));
        }
        let mut everywhere = Vec::new();
        for (of, (least, before)) in self.remembered.iter_mut().zip(least.iter().zip(&self.contained)) {
            let new = usize::try_from(least - before).unwrap_or(usize::MAX).min(of.len());
            everywhere.extend(of.drain(..new));
        }
        self.contained = least;
        everywhere
    }
}

/// The one log of the workers' decisions. An update is committed at its worker when its decision is durable.
#[derive(Debug)]
pub struct Decisions {
    decided: Csn,
    undurable: VecDeque<(Csn, TxnId, ReplicaId)>,
}

impl Decisions {
    /// A log that ends here.
    #[must_use]
    pub fn new(decided: Csn) -> Decisions {
        Decisions { decided, undurable: VecDeque::new() }
    }

    /// The last decision.
    #[must_use]
    pub fn decided(&self) -> Csn {
        self.decided
    }

    /// Decides an update that was executed at a worker.
    pub fn decide(&mut self, txn: TxnId, worker: ReplicaId, effects: &mut Vec<Effect>) -> Csn {
        self.decided = self.decided.next();
        self.undurable.push_back((self.decided, txn, worker));
        effects.push(Effect::Append { csn: self.decided, decision: Decision::Commit(txn) });
        self.decided
    }

    /// The log is durable up to here.
    pub fn on_durable(&mut self, durable: Csn, effects: &mut Vec<Effect>) {
        while let Some((csn, txn, replica)) =
            self.undurable.front().copied().filter(|(csn, ..)| *csn <= durable)
        {
            self.undurable.pop_front();
            effects.push(Effect::CommitAt { txn, replica, csn });
        }
    }
}
