//! At which worker a transaction runs.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{ReplicaId, TxnId};

/// Where transactions run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Workers take turns, and each keeps a queue.
    Turns,
    /// Each kind of transaction has a group of workers and a queue. A worker that finds its group's queue empty moves to the group
    /// that has most waiting for each of its workers.
    Groups,
}

/// What waits for a worker, and who does nothing.
#[derive(Debug)]
pub(super) enum Placed {
    Turns {
        next: usize,
        workers: usize,
    },
    Groups {
        /// By the kind of transactions.
        groups: BTreeMap<u64, Group>,
        /// Of each worker the group, once it has one.
        of: Vec<Option<u64>>,
        idle: Vec<ReplicaId>,
    },
}

#[derive(Default, Debug)]
pub(super) struct Group {
    waiting: VecDeque<(TxnId, bool)>,
    workers: u64,
}

impl Placed {
    pub(super) fn new(placement: Placement, workers: usize) -> Placed {
        match placement {
            Placement::Turns => Placed::Turns { next: 0, workers },
            Placement::Groups => Placed::Groups {
                groups: BTreeMap::new(),
                of: vec![None; workers],
                idle: (0..workers as u16).rev().map(ReplicaId).collect(),
            },
        }
    }

    /// How many wait for a worker.
    pub(super) fn waiting(&self) -> u64 {
        match self {
            Placed::Turns { .. } => 0,
            Placed::Groups { groups, .. } => groups.values().map(|group| group.waiting.len() as u64).sum(),
        }
    }

    /// A transaction of a kind. Returns who runs it, if it is known by now.
    pub(super) fn arrive(&mut self, txn: TxnId, kind: u64, updates: bool) -> Option<ReplicaId> {
        match self {
            Placed::Turns { next, workers } => {
                let worker = ReplicaId(*next as u16);
                *next = (*next + 1) % *workers;
                Some(worker)
            }
            Placed::Groups { groups, of, idle } => {
                // One of its group, else whoever does nothing: that it moves costs nothing.
                let own = idle.iter().rposition(|worker| of[usize::from(worker.0)] == Some(kind));
                let group = groups.entry(kind).or_default();
                let Some(worker) = own.map(|at| idle.remove(at)).or_else(|| idle.pop()) else {
                    group.waiting.push_back((txn, updates));
                    return None;
                };
                move_to(groups, of, worker, kind);
                Some(worker)
            }
        }
    }

    /// A worker has finished. Returns what it runs next, if that was not said before.
    pub(super) fn finish(&mut self, worker: ReplicaId) -> Option<(TxnId, bool)> {
        let Placed::Groups { groups, of, idle } = self else { return None };
        let own = of[usize::from(worker.0)].filter(|own| groups.get(own).is_some_and(Group::has_waiting));
        let load = |group: &Group| group.waiting.len() as f64 / group.workers.max(1) as f64;
        let fullest = || {
            let waiting = groups.iter().filter(|(_, group)| group.has_waiting());
            waiting.max_by(|(_, a), (_, b)| load(a).total_cmp(&load(b))).map(|(kind, _)| *kind)
        };
        let Some(kind) = own.or_else(fullest) else {
            idle.push(worker);
            return None;
        };
        move_to(groups, of, worker, kind);
        groups.get_mut(&kind)?.waiting.pop_front()
    }
}

impl Group {
    fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

fn move_to(groups: &mut BTreeMap<u64, Group>, of: &mut [Option<u64>], worker: ReplicaId, kind: u64) {
    let own = &mut of[usize::from(worker.0)];
    if *own == Some(kind) {
        return;
    }
    if let Some(before) = own.take().and_then(|before| groups.get_mut(&before)) {
        before.workers -= 1;
    }
    *own = Some(kind);
    groups.entry(kind).or_default().workers += 1;
}
