//! A peer's copies of tables: how often each was written, what is still to come, and what may be applied when.

use smallvec::SmallVec;

use super::Versions;
use crate::event::RowChange;
use crate::ids::{NodeId, TxnId};
use crate::item::TableId;
use crate::map::HashMap;
use crate::table_queues::{LockMode, TableLocks};

/// An update of another peer.
pub(super) type Update = (NodeId, TxnId);

#[derive(Default, Clone, Copy, Debug)]
struct Copy {
    /// Writes that it contains.
    applied: u64,
    /// Writes that it must contain to be read or written.
    needed: u64,
    /// An update, or a write of this node, is under way.
    busy: bool,
}

/// What has come and is not applied.
#[derive(Debug)]
struct Waiting {
    /// Nothing of a write that failed.
    update: Option<Update>,
    versions: Versions,
    change: Option<RowChange>,
}

/// What becomes of an update whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Apply(Update),
    /// The next one hides it.
    PassOver(Update),
}

/// All of them.
#[derive(Default, Debug)]
pub(crate) struct Copies {
    tables: HashMap<TableId, Copy>,
    /// In the order in which it came.
    waiting: Vec<Waiting>,
    applying: HashMap<Update, Versions>,
}

impl Copies {
    fn of(&mut self, table: TableId) -> &mut Copy {
        self.tables.entry(table).or_default()
    }

    /// How often a table was written, as far as this copy contains it.
    pub(crate) fn version(&self, table: TableId) -> u64 {
        self.tables.get(&table).map_or(0, |copy| copy.applied)
    }

    /// The copy is good for nothing until it contains so many writes.
    pub(crate) fn require(&mut self, table: TableId, version: u64) {
        let copy = self.of(table);
        copy.needed = copy.needed.max(version);
    }

    /// Whether the copies of these tables contain what they must.
    pub(crate) fn are_current(&self, locks: &TableLocks) -> bool {
        locks.iter().all(|(table, _)| {
            self.tables.get(&table).is_none_or(|copy| !copy.busy && copy.applied >= copy.needed)
        })
    }

    /// A statement of this node begins.
    pub(super) fn begin(&mut self, locks: &TableLocks) {
        for (table, mode) in locks.iter() {
            self.of(table).busy |= mode == LockMode::Write;
        }
    }

    /// It ends; `counts` says whether a write is the next version of its tables. Returns them as they are then.
    pub(super) fn end(&mut self, locks: &TableLocks, counts: bool) -> Versions {
        let mut versions = Versions::new();
        for (table, _) in locks.iter().filter(|(_, mode)| *mode == LockMode::Write) {
            let copy = self.of(table);
            copy.busy = false;
            copy.applied += u64::from(counts);
            versions.push((table, copy.applied));
        }
        versions
    }

    /// Something has come from another peer.
    pub(super) fn receive(&mut self, update: Option<Update>, versions: Versions, change: Option<RowChange>) {
        for (table, version) in &versions {
            self.require(*table, *version);
        }
        self.waiting.push(Waiting { update, versions, change });
    }

    /// What may be applied now, or passed over: what is the next version of all its tables, while nothing else is done to them.
    pub(super) fn next_updates(&mut self) -> SmallVec<[Next; 4]> {
        let mut next = SmallVec::new();
        while let Some(place) = self.waiting.iter().position(|waiting| self.is_next(&waiting.versions)) {
            let is_hidden = self.is_hidden(&self.waiting[place]);
            let Waiting { update, versions, .. } = self.waiting.remove(place);
            match update {
                Some(update) if is_hidden => {
                    versions.iter().for_each(|(table, _)| self.of(*table).applied += 1);
                    next.push(Next::PassOver(update));
                }
                Some(update) => {
                    versions.iter().for_each(|(table, _)| self.of(*table).busy = true);
                    self.applying.insert(update, versions);
                    next.push(Next::Apply(update));
                }
                None => versions.iter().for_each(|(table, _)| self.of(*table).applied += 1),
            }
        }
        next
    }

    /// Whether the next version of its table has come and hides it.
    fn is_hidden(&self, earlier: &Waiting) -> bool {
        let (Some(change), [(table, version)]) = (&earlier.change, earlier.versions.as_slice()) else {
            return false;
        };
        let is_next = |waiting: &&Waiting| waiting.versions.as_slice() == [(*table, version + 1)];
        let next = self.waiting.iter().find(is_next).and_then(|waiting| waiting.change.as_ref());
        next.is_some_and(|next| next.hides(change))
    }

    fn is_next(&self, versions: &Versions) -> bool {
        versions.iter().all(|(table, version)| {
            let copy = self.tables.get(table).copied().unwrap_or_default();
            !copy.busy && copy.applied + 1 == *version
        })
    }

    /// An update is applied.
    pub(super) fn applied(&mut self, update: Update) {
        for (table, _) in self.applying.remove(&update).unwrap_or_default() {
            let copy = self.of(table);
            copy.busy = false;
            copy.applied += 1;
        }
    }
}
