//! The one log of the workers' decisions, and what became of updates that others may wait for.

use std::collections::VecDeque;

use crate::effect::{Decision, Effect};
use crate::ids::{Csn, ReplicaId, TxnId};
use crate::map::HashMap;

use super::{Numbered, Vector};

/// The one log of the workers' decisions. A decision gives an update its place in the log and its number among its worker's updates; it
/// is committed at its worker when that is durable.
///
/// Whoever may have to wait for an update knows it by its transaction, and asks here; so it makes no difference to them where it runs, nor
/// whether it has to run again somewhere else.
///
/// Invariant: `durable <= decided`, and of the numbers the same.
#[derive(Debug)]
pub struct Decisions {
    decided: Csn,
    durable: Csn,
    undurable: VecDeque<Due>,
    /// Of each worker the number of its last update that is decided.
    numbers: Vec<u64>,
    /// What whoever contains everything up to `durable` contains.
    durable_numbers: Vec<u64>,
    /// Updates that somebody may wait for. Those that are not here are contained by every worker that is in use.
    expected: HashMap<TxnId, Course>,
}

/// What became of an update.
#[derive(Clone, PartialEq, Debug)]
pub enum Course {
    /// It is not decided.
    Undecided,
    /// It is its worker's so-and-so-many-th update.
    Decided(Numbered),
    /// It failed and wrote nothing. Who waits for it has to contain what it may have seen: it may stand for what it waited for itself.
    WroteNothing(Vector),
}

/// A decision that is durable by now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// Its place.
    pub csn: Csn,
    /// The update.
    pub txn: TxnId,
    /// Where it was executed.
    pub worker: ReplicaId,
    /// Whether it cannot be committed there any more.
    pub is_lost: bool,
}

impl Decisions {
    /// A log of so many workers that ends here.
    #[must_use]
    pub fn new(workers: usize, decided: Csn) -> Decisions {
        Decisions {
            decided,
            durable: decided,
            undurable: VecDeque::new(),
            numbers: vec![0; workers],
            durable_numbers: vec![0; workers],
            expected: HashMap::default(),
        }
    }

    /// One more worker.
    pub fn add_worker(&mut self) {
        self.numbers.push(0);
        self.durable_numbers.push(0);
    }

    /// The last decision.
    #[must_use]
    pub fn decided(&self) -> Csn {
        self.decided
    }

    /// The last durable decision.
    #[must_use]
    pub fn durable(&self) -> Csn {
        self.durable
    }

    /// What whoever contains everything up to the last durable decision contains.
    #[must_use]
    pub fn durable_vector(&self) -> Vector {
        self.durable_numbers.as_slice().into()
    }

    /// The number of a worker's last update that is decided.
    #[must_use]
    pub fn last_of(&self, worker: ReplicaId) -> u64 {
        self.numbers[usize::from(worker.0)]
    }

    /// Somebody may wait for this update.
    pub fn expect(&mut self, txn: TxnId) {
        self.expected.insert(txn, Course::Undecided);
    }

    /// Every worker that is in use contains this update, or what stands for it.
    pub fn forget(&mut self, txn: TxnId) {
        self.expected.remove(&txn);
    }

    /// What became of an update that somebody may wait for.
    #[must_use]
    pub fn course_of(&self, txn: TxnId) -> Option<&Course> {
        self.expected.get(&txn)
    }

    /// Whether it is known what became of an update for which somebody may wait.
    #[must_use]
    pub fn is_settled(&self, txn: TxnId) -> bool {
        matches!(self.expected.get(&txn), Some(Course::Decided(_) | Course::WroteNothing(_)))
    }

    /// Whether a worker that contains so much need not wait for an update.
    #[must_use]
    pub fn is_in(&self, txn: TxnId, vector: &[u64]) -> bool {
        match self.expected.get(&txn) {
            Some(Course::Undecided) => false,
            Some(Course::Decided(numbered)) => numbered.is_in(vector),
            Some(Course::WroteNothing(seen)) => seen.iter().zip(vector).all(|(seen, ours)| seen <= ours),
            None => true,
        }
    }

    /// Whether what a worker contained once included an update, of what it contains `now`. What is not known any more is contained now, so
    /// it was if that is the same.
    #[must_use]
    pub fn was_in(&self, txn: TxnId, once: &[u64], now: &[u64]) -> bool {
        match self.expected.contains_key(&txn) {
            true => self.is_in(txn, once),
            false => once == now,
        }
    }

    /// Decides an update that was executed at a worker.
    pub fn decide(&mut self, txn: TxnId, worker: ReplicaId, effects: &mut Vec<Effect>) -> Csn {
        self.decided = self.decided.next();
        self.undurable.push_back(Due { csn: self.decided, txn, worker, is_lost: false });
        let number = &mut self.numbers[usize::from(worker.0)];
        *number += 1;
        if let Some(course) = self.expected.get_mut(&txn) {
            *course = Course::Decided(Numbered { worker, number: *number });
        }
        effects.push(Effect::Append { csn: self.decided, decision: Decision::Commit(txn) });
        self.decided
    }

    /// An update failed at a worker that contained so much.
    pub fn write_nothing(&mut self, txn: TxnId, seen: Vector) {
        if let Some(course) = self.expected.get_mut(&txn) {
            *course = Course::WroteNothing(seen);
        }
    }

    /// What was decided as this cannot be committed where it was executed. Returns whether it is durable already.
    pub fn lose(&mut self, csn: Csn) -> bool {
        let undurable = self.undurable.iter_mut().find(|due| due.csn == csn);
        undurable.map(|due| due.is_lost = true).is_none()
    }

    /// The log is durable up to here: the next decision of which nobody knew that, if there is one.
    pub fn next_due(&mut self, durable: Csn) -> Option<Due> {
        let due = self.undurable.front().copied().filter(|due| due.csn <= durable)?;
        self.undurable.pop_front();
        self.durable = due.csn;
        self.durable_numbers[usize::from(due.worker.0)] += 1;
        Some(due)
    }
}
