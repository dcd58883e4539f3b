//! Which updates every worker contains, for whoever need not remember these.

use std::collections::VecDeque;

use crate::ids::{ReplicaId, TxnId};

use super::Vector;

/// Which updates every worker in use contains.
///
/// A worker whose replica has failed does not count: when it is used again it contains whatever was durable when it came back, so all that
/// was forgotten until then, and it counts from then on. So what is remembered does not grow while a replica is away. The writes
/// that it lacks are kept by the log.
#[derive(Debug)]
pub struct Everywhere {
    workers: Vec<Of>,
    /// Updates that failed, and what they may have seen.
    wrote_nothing: Vec<(TxnId, Vector)>,
    reports: usize,
}

/// What is known of a worker.
#[derive(Debug)]
struct Of {
    told: Told,
    /// Its updates that some worker may not contain, with their numbers, in order.
    remembered: VecDeque<(u64, TxnId)>,
    /// The number of its last update.
    last: u64,
}

#[derive(Debug)]
enum Told {
    /// It is in use, and contains nothing for sure.
    Nothing,
    /// What it said last.
    Contains(Vector),
    /// It is not in use.
    Away,
}

impl Everywhere {
    /// Of so many workers, all of which are in use.
    #[must_use]
    pub fn new(workers: usize) -> Everywhere {
        let of = || Of { told: Told::Nothing, remembered: VecDeque::new(), last: 0 };
        Everywhere { workers: (0..workers).map(|_| of()).collect(), wrote_nothing: Vec::new(), reports: 0 }
    }

    /// One more worker, which is not in use.
    pub fn add_worker(&mut self) {
        self.workers.push(Of { told: Told::Away, remembered: VecDeque::new(), last: 0 });
    }

    /// A worker is not used any more.
    pub fn leave(&mut self, worker: ReplicaId) {
        self.workers[usize::from(worker.0)].told = Told::Away;
    }

    /// A worker will be used, and then contains at least so much.
    pub fn come(&mut self, worker: ReplicaId, vector: Vector) {
        self.workers[usize::from(worker.0)].told = Told::Contains(vector);
    }

    /// The next update of a worker.
    pub fn remember(&mut self, worker: ReplicaId, txn: TxnId) {
        let of = &mut self.workers[usize::from(worker.0)];
        of.last += 1;
        of.remembered.push_back((of.last, txn));
    }

    /// An update that failed, and what it may have seen.
    pub fn remember_nothing(&mut self, txn: TxnId, seen: Vector) {
        self.wrote_nothing.push((txn, seen));
    }

    /// A worker contains so much. Returns, now and then, the updates that are found to be everywhere.
    pub fn report(&mut self, worker: ReplicaId, vector: Vector) -> Vec<TxnId> {
        let told = &mut self.workers[usize::from(worker.0)].told;
        // What comes from one that is not in use was said before.
        if !matches!(told, Told::Away) {
            *told = Told::Contains(vector);
        }
        self.reports += 1;
        if self.reports < self.workers.len() {
            return Vec::new();
        }
        self.reports = 0;
        let Some(least) = self.least() else { return Vec::new() };
        let mut everywhere = Vec::new();
        for (of, least) in self.workers.iter_mut().zip(&least) {
            let contained = of.remembered.partition_point(|(number, _)| number <= least);
            everywhere.extend(of.remembered.drain(..contained).map(|(_, txn)| txn));
        }
        self.wrote_nothing.retain(|(txn, seen)| {
            let is_everywhere = seen.iter().zip(&least).all(|(seen, least)| seen <= least);
            if is_everywhere {
                everywhere.push(*txn);
            }
            !is_everywhere
        });
        everywhere
    }

    /// What each worker in use contains; nothing if there is none.
    fn least(&self) -> Option<Vec<u64>> {
        let mut least: Option<Vec<u64>> = None;
        for of in &self.workers {
            match &of.told {
                Told::Nothing => return None,
                Told::Away => {}
                Told::Contains(vector) => {
                    let least = least.get_or_insert_with(|| vec![u64::MAX; self.workers.len()]);
                    // Of those that have come since it has none.
                    let contained = vector.iter().copied().chain(std::iter::repeat(0));
                    least.iter_mut().zip(contained).for_each(|(least, of)| *least = (*least).min(of));
                }
            }
        }
        least
    }
}
