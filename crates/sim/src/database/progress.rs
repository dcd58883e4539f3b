//! The rows of `onecopy.progress` in one database: which decisions it contains, commit by commit.

use std::collections::BTreeSet;

use onecopy_core::Csn;

use super::store::Commit;

/// What the progress table refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// A decision whose predecessor is not the newest row.
    WithoutGaps,
    /// Only a decision that is contained already.
    Any,
    /// Nothing: to plant a bug behind it.
    Unchecked,
}

#[derive(Clone, Debug)]
pub(super) struct Progress {
    order: Order,
    /// The decisions of each commit, first and last.
    commits: Vec<(Csn, Csn)>,
    /// After each commit, and before the first, the last decision up to which nothing is missing.
    complete: Vec<Csn>,
    /// What is contained past the first gap.
    beyond: BTreeSet<Csn>,
}

impl Progress {
    pub(super) fn new(order: Order) -> Progress {
        Progress { order, commits: Vec::new(), complete: vec![Csn(0)], beyond: BTreeSet::new() }
    }

    /// Of a copy that contains everything up to a decision.
    pub(super) fn copied(&self, complete: Csn) -> Progress {
        Progress { complete: vec![complete], ..Progress::new(self.order) }
    }

    pub(super) fn newest(&self) -> Commit {
        Commit(self.commits.len() as u64)
    }

    pub(super) fn complete_at(&self, snapshot: Commit) -> Csn {
        self.complete[snapshot.0 as usize]
    }

    pub(super) fn contains(&self, csn: Csn) -> bool {
        csn <= self.complete_at(self.newest()) || self.beyond.contains(&csn)
    }

    pub(super) fn admits(&self, from: Csn, to: Csn) -> bool {
        match self.order {
            Order::WithoutGaps => from == self.complete_at(self.newest()).next(),
            Order::Any => (from.0..=to.0).all(|csn| !self.contains(Csn(csn))),
            Order::Unchecked => true,
        }
    }

    pub(super) fn add(&mut self, from: Csn, to: Csn) {
        let mut complete = self.complete_at(self.newest());
        if self.order == Order::Unchecked {
            complete = complete.max(to);
        } else {
            self.beyond.extend((from.0..=to.0).map(Csn));
            while self.beyond.remove(&complete.next()) {
                complete = complete.next();
            }
        }
        self.commits.push((from, to));
        self.complete.push(complete);
    }

    /// Takes back the newest commits, all after `last`.
    pub(super) fn lose_after(&mut self, last: Commit) {
        let kept: Vec<(Csn, Csn)> = self.commits[..last.0 as usize].to_vec();
        *self = self.copied(self.complete_at(Commit(0)));
        kept.into_iter().for_each(|(from, to)| self.add(from, to));
    }
}
