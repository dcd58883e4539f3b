//! What workers have in common that execute each update at one of them and send its writes to all others: causal order, and
//! the one log of decisions.
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
        WriteSets { me, vector: vec![0; workers], arrived: Vec::new(), applying: None }
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

    /// It has committed its next own update. Returns what goes with the write set.
    pub fn commit(&mut self) -> Vector {
        self.vector[usize::from(self.me.0)] += 1;
        self.vector.as_slice().into()
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
