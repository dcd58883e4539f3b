//! At which worker a transaction runs.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{ReplicaId, TxnId};

/// Where transactions run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Workers take turns, and each keeps a queue.
    Turns,
    /// Each kind of transaction has a group of workers and a queue. The load of a group is the part of its workers that is busy; who
    /// has nothing to do moves to a group that is busy altogether and has something waiting, if its own then still is not.
    Groups,
    /// All workers take what comes from one queue: one group of all kinds.
    OneQueue,
}

/// What waits for a worker, and who does nothing.
#[derive(Debug)]
pub(super) enum Placed {
    Turns { next: usize, workers: usize },
    Groups(Groups),
}

/// Groups of workers, by the kind of transactions that they run.
#[derive(Debug)]
pub(super) struct Groups {
    /// Whether kinds differ.
    by_kind: bool,
    groups: BTreeMap<u64, Group>,
    /// Of each worker the group, once it has one.
    of: Vec<Option<u64>>,
    /// Those that nobody has asked yet, the first at the end.
    unasked: Vec<ReplicaId>,
}

#[derive(Default, Debug)]
struct Group {
    waiting: VecDeque<(TxnId, bool)>,
    idle: Vec<ReplicaId>,
    busy: usize,
}

impl Group {
    fn workers(&self) -> usize {
        self.busy + self.idle.len()
    }

    /// Whether somebody could leave without making all others busy.
    fn can_spare(&self) -> bool {
        self.idle.len() > 1 || self.busy == 0 && !self.idle.is_empty()
    }
}

impl Placed {
    pub(super) fn new(placement: Placement, workers: usize) -> Placed {
        match placement {
            Placement::Turns => Placed::Turns { next: 0, workers },
            Placement::Groups | Placement::OneQueue => Placed::Groups(Groups {
                by_kind: placement == Placement::Groups,
                groups: BTreeMap::new(),
                of: vec![None; workers],
                unasked: (0..workers as u16).rev().map(ReplicaId).collect(),
            }),
        }
    }

    /// How many wait for a worker.
    pub(super) fn waiting(&self) -> u64 {
        match self {
            Placed::Turns { .. } => 0,
            Placed::Groups(all) => all.groups.values().map(|group| group.waiting.len() as u64).sum(),
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
            Placed::Groups(all) => all.arrive(txn, kind, updates),
        }
    }

    /// A worker has finished. Returns what it runs next, if that was not said before.
    pub(super) fn finish(&mut self, worker: ReplicaId) -> Option<(TxnId, bool)> {
        match self {
            Placed::Turns { .. } => None,
            Placed::Groups(all) => all.finish(worker),
        }
    }
}

impl Groups {
    fn arrive(&mut self, txn: TxnId, kind: u64, updates: bool) -> Option<ReplicaId> {
        let kind = if self.by_kind { kind } else { 0 };
        let own = self.groups.entry(kind).or_default().idle.pop();
        let Some(worker) = own.or_else(|| self.unasked.pop()).or_else(|| self.take_from_another()) else {
            self.groups.entry(kind).or_default().waiting.push_back((txn, updates));
            return None;
        };
        self.groups.entry(kind).or_default().busy += 1;
        self.of[usize::from(worker.0)] = Some(kind);
        Some(worker)
    }

    /// Somebody who does nothing, of the group that is least busy.
    fn take_from_another(&mut self) -> Option<ReplicaId> {
        let load = |group: &Group| group.busy as f64 / group.workers() as f64;
        let can_spare = self.groups.values_mut().filter(|group| group.can_spare());
        can_spare.min_by(|a, b| load(a).total_cmp(&load(b)))?.idle.pop()
    }

    fn finish(&mut self, worker: ReplicaId) -> Option<(TxnId, bool)> {
        let own = self.of[usize::from(worker.0)]?;
        let group = self.groups.get_mut(&own)?;
        group.busy -= 1;
        group.idle.push(worker);
        let (has_waiting, can_spare) = (!group.waiting.is_empty(), group.can_spare());
        let without_workers = self.groups.iter().find(|(_, g)| !g.waiting.is_empty() && g.workers() == 0);
        let longest = || {
            let waiting = self.groups.iter().filter(|(_, group)| !group.waiting.is_empty());
            waiting.max_by_key(|(_, group)| group.waiting.len()).map(|(kind, _)| *kind)
        };
        let kind = match without_workers {
            Some((kind, _)) => *kind,
            None if has_waiting => own,
            None => longest().filter(|_| can_spare)?,
        };
        self.groups.get_mut(&own)?.idle.retain(|idle| *idle != worker);
        self.of[usize::from(worker.0)] = Some(kind);
        let group = self.groups.get_mut(&kind)?;
        group.busy += 1;
        group.waiting.pop_front()
    }
}
