//! A site's lock queue: transactions in the order in which the site takes them, as far as they conflict.
//!
//! Invariants:
//! - entries whose place is certain stand before all tentative ones, and in the total order; queries stand among them;
//! - an entry has begun only if nobody before it conflicts with it;
//! - each entry knows how many before it conflict with it.

use crate::ids::{OpId, TxnId};
use crate::item::{Access, AccessSet};

/// What a transaction does in the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Somebody before it conflicts with it.
    Waiting,
    /// It executes here.
    Executing(OpId),
    /// It has executed here.
    Executed {
        /// Its execution.
        op: OpId,
        /// What came of it.
        end: End,
    },
    /// It executes elsewhere, and its writes may be applied when they come.
    AwaitingWrites,
    /// Its writes are being applied.
    Applying,
    /// It is being committed where it has executed.
    Committing,
}

/// What came of an execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// It can be committed.
    Done,
    /// It will be, and all have been told.
    Shipped,
    /// It can only be rolled back.
    Failed,
}

/// Why a transaction stands where it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// A query: whenever it came.
    Query,
    /// An update of which only the arrival is known.
    Tentative,
    /// An update, by its place in the total order.
    Certain,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) txn: TxnId,
    pub(super) access: AccessSet,
    pub(super) standing: Standing,
    pub(super) stage: Stage,
    /// How many before it conflict with it.
    blockers: usize,
}

impl Entry {
    fn conflicts(&self, other: &Entry) -> bool {
        self.access.iter().any(|mine| other.access.iter().any(|theirs: &Access| mine.conflicts(theirs)))
    }
}

#[derive(Debug, Default)]
pub(super) struct Line {
    entries: Vec<Entry>,
}

impl Line {
    pub(super) fn push(&mut self, txn: TxnId, access: AccessSet, standing: Standing) {
        let mut entry = Entry { txn, access, standing, stage: Stage::Waiting, blockers: 0 };
        entry.blockers = count_blockers(&self.entries, &entry);
        self.entries.push(entry);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, at: usize) -> &Entry {
        &self.entries[at]
    }

    pub(super) fn set_stage(&mut self, at: usize, stage: Stage) {
        self.entries[at].stage = stage;
    }

    pub(super) fn find(&self, txn: TxnId) -> Option<usize> {
        self.entries.iter().position(|entry| entry.txn == txn)
    }

    pub(super) fn remove(&mut self, txn: TxnId) {
        let Some(at) = self.find(txn) else { return };
        let gone = self.entries.remove(at);
        let behind = self.entries[at..].iter_mut().filter(|entry| entry.conflicts(&gone));
        behind.for_each(|entry| entry.blockers -= 1);
    }

    /// Whether nobody before it conflicts with it.
    pub(super) fn is_granted(&self, at: usize) -> bool {
        self.entries[at].blockers == 0
    }

    /// What is wrong with the line, if anything is.
    pub(super) fn disorder(&self) -> Option<String> {
        let wrong = |(at, entry): (usize, &Entry)| {
            let before = &self.entries[..at];
            let is_behind_a_guess = entry.standing == Standing::Certain
                && before.iter().any(|other| other.standing == Standing::Tentative);
            let what = if is_behind_a_guess {
                "stands behind a tentative one"
            } else if count_blockers(before, entry) != entry.blockers {
                "does not know how many it waits for"
            } else if entry.blockers > 0 && entry.stage != Stage::Waiting {
                "goes on before somebody it conflicts with"
            } else {
                return None;
            };
            Some(format!("{} {what}", entry.txn))
        };
        self.entries.iter().enumerate().find_map(wrong)
    }

    /// The next place in the total order is that of a tentative update: it is moved before all others that are tentative. Returns those of
    /// them that conflict with it and had begun: they wait again.
    ///
    /// A query that has begun stays before it. Nobody before that query conflicts with it, so it may as well stand first of all.
    pub(super) fn make_certain(&mut self, txn: TxnId) -> Vec<(TxnId, Stage)> {
        let Some(at) = self.find(txn) else { return Vec::new() };
        let mut entry = self.entries.remove(at);
        entry.standing = Standing::Certain;
        let is_tentative = |other: &Entry| other.standing == Standing::Tentative;
        let first = self.entries[..at].iter().position(is_tentative).unwrap_or(at);
        let mut undone = Vec::new();
        let (mut stay, mut queries) = (Vec::new(), Vec::new());
        for mut other in self.entries.drain(first..at) {
            let has_begun = other.stage != Stage::Waiting;
            if other.standing == Standing::Query && has_begun {
                queries.push(other);
                continue;
            }
            if has_begun && other.conflicts(&entry) {
                undone.push((other.txn, std::mem::replace(&mut other.stage, Stage::Waiting)));
            }
            stay.push(other);
        }
        let moved = queries.into_iter().chain([entry]).chain(stay);
        self.entries.splice(first..first, moved);
        for place in first..=at {
            let (before, rest) = self.entries.split_at_mut(place);
            rest[0].blockers = count_blockers(before, &rest[0]);
        }
        undone
    }
}

fn count_blockers(before: &[Entry], entry: &Entry) -> usize {
    before.iter().filter(|other| other.conflicts(entry)).count()
}
