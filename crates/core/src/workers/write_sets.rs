//! Causal order of what workers write.
//!
//! The updates of a worker are numbered from 1, as they are decided. What a worker contains is said by a vector: of each worker, the
//! number of the last update. A write set carries what its origin contained when it was decided, itself included, and is applied where all
//! of that is: so nobody sees an update without those that it has seen. Source: Cincilla and others, *Gargamel*, ICPADS 2012,
//! sections II.B and III.
//!
//! Those that may be applied are applied at once, side by side: they do not conflict. Of two that do, the later was executed where
//! the earlier one's writes were, or the writes of one in between; so its vector includes the earlier, and it may not be applied
//! before that is contained. Hence at most one of each origin is under way, since each includes the one before. They may be committed in
//! any order: whatever one of them needs is contained when it begins, so at each moment the database contains nothing without what
//! that has seen. The vector says at most as much, since what is committed is told later.

use std::sync::Arc;

use crate::effect::Effect;
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

/// Whether a worker's replica serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It serves.
    Up,
    /// It has failed, or has not come yet.
    Down,
    /// It is there again, and gets from the log what it lacks, up to this.
    CatchesUp {
        /// What it then contains the whole log up to.
        to: Csn,
    },
    /// It has left for good.
    Gone,
}

/// What one worker contains, and what it has received and does not contain yet.
#[derive(Debug)]
pub struct WriteSets {
    me: ReplicaId,
    standing: Standing,
    /// While it catches up: what it will contain then.
    vector: Vec<u64>,
    arrived: Vec<Arrived>,
    /// At most one of each origin.
    applying: Vec<(ReplicaId, TxnId)>,
    /// Write sets applied since the scheduler was told last what is contained.
    untold: u32,
}

#[derive(Debug)]
struct Arrived {
    origin: ReplicaId,
    txn: TxnId,
    number: u64,
    vector: Vector,
}

impl Arrived {
    /// It is the next one of its origin, and all that its origin contained is there.
    fn is_next_after(&self, ours: &[u64]) -> bool {
        if self.number != ours[usize::from(self.origin.0)] + 1 {
            return false;
        }
        // Counted to the end, which is faster than to stop at the first: nearly always there is one, its own.
        let newer =
            self.vector.iter().zip(ours).map(|(theirs, ours)| usize::from(theirs > ours)).sum::<usize>();
        newer == 1
    }
}

impl WriteSets {
    /// A worker of so many that contains nothing, and whose replica serves.
    #[must_use]
    pub fn new(me: ReplicaId, workers: usize) -> WriteSets {
        WriteSets {
            me,
            standing: Standing::Up,
            vector: vec![0; workers],
            arrived: Vec::new(),
            applying: Vec::new(),
            untold: 0,
        }
    }

    /// Whether its replica serves.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
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

    /// One more worker.
    pub fn add_worker(&mut self) {
        self.vector.push(0);
    }

    /// What it may have seen by now: what it contains, and what is being applied, since that may be committed and not yet told.
    #[must_use]
    pub fn seen(&self) -> Vector {
        let mut seen: Vector = self.vector.as_slice().into();
        let counts = Arc::make_mut(&mut seen);
        self.applying.iter().for_each(|(origin, _)| counts[usize::from(origin.0)] += 1);
        seen
    }

    /// The vector of its next own update, which is decided now.
    #[must_use]
    pub fn vector_of_next(&self) -> Vector {
        let mut vector = self.seen();
        Arc::make_mut(&mut vector)[usize::from(self.me.0)] = self.own() + 1;
        vector
    }

    /// It has committed its next own update, whose writes go to all others with a message that says what it contains by now.
    pub fn commit(&mut self, txn: TxnId, message: impl Fn(Vector) -> Message, effects: &mut Vec<Effect>) {
        let vector = self.vector_of_next();
        self.vector[usize::from(self.me.0)] += 1;
        self.ship(txn, || message(vector.clone()), effects);
    }

    /// Its own update that was decided with this vector is committed.
    pub fn commit_own(&mut self) {
        self.vector[usize::from(self.me.0)] += 1;
    }

    /// The writes of an own update go to all others, with a message.
    pub fn ship(&self, txn: TxnId, message: impl Fn() -> Message, effects: &mut Vec<Effect>) {
        for other in self.others() {
            effects.push(Effect::Ship { txn, to: Place::Proxy(other), message: message() });
        }
    }

    /// All workers but this one.
    pub fn others(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        let me = self.me;
        (0..self.vector.len() as u16).map(ReplicaId).filter(move |other| *other != me)
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

    /// A write set has come. It is kept only if the worker will not get it from the log.
    pub fn arrive(&mut self, origin: ReplicaId, txn: TxnId, vector: Vector) {
        let number = vector.get(usize::from(origin.0)).copied().unwrap_or_default();
        let comes_from_log = matches!(self.standing, Standing::Down | Standing::Gone);
        if !comes_from_log && number > self.vector[usize::from(origin.0)] {
            self.arrived.push(Arrived { origin, txn, number, vector });
        }
    }

    /// Begins to apply all write sets that may be applied.
    pub fn apply_next(&mut self, effects: &mut Vec<Effect>) {
        if self.standing != Standing::Up {
            return;
        }
        let mut at = 0;
        while let Some(set) = self.arrived.get(at) {
            if !set.is_next_after(&self.vector) {
                at += 1;
                continue;
            }
            let Arrived { origin, txn, .. } = self.arrived.remove(at);
            self.applying.push((origin, txn));
            effects.push(Effect::ApplyShipped { origin: Place::Proxy(origin), txn, replica: self.me });
        }
    }

    /// A write set has been applied. Returns whether it was one that is awaited.
    pub fn applied(&mut self, origin: ReplicaId, txn: TxnId) -> bool {
        let Some(at) = self.applying.iter().position(|applying| *applying == (origin, txn)) else {
            return false;
        };
        self.applying.swap_remove(at);
        self.vector[usize::from(origin.0)] += 1;
        self.untold += 1;
        true
    }

    /// Its replica has failed, or left for good: what waits to be applied will come from the log.
    pub fn fail(&mut self, for_good: bool) {
        self.standing = if for_good { Standing::Gone } else { Standing::Down };
        self.arrived.clear();
        self.applying.clear();
    }

    /// Its replica gets from the log whatever it lacks up to `to`, and will contain so much. What was decided later and arrives meanwhile is
    /// kept.
    pub fn catch_up(&mut self, to: Csn, contains: &[u64]) {
        self.standing = Standing::CatchesUp { to };
        self.vector.copy_from_slice(contains);
        let vector = &self.vector;
        self.arrived.retain(|set| set.number > vector[usize::from(set.origin.0)]);
    }

    /// It has caught up.
    pub fn serve(&mut self) {
        self.standing = Standing::Up;
    }
}
