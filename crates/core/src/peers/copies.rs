//! A peer's copies of tables: how often each was written, what is still to come, and what may be applied when.

use smallvec::SmallVec;

use super::Versions;
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

/// All of them.
#[derive(Default, Debug)]
pub(crate) struct Copies {
    tables: HashMap<TableId, Copy>,
    /// What has come and is not applied, in the order in which it came; nothing of a write that failed.
    waiting: Vec<(Option<Update>, Versions)>,
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
    pub(super) fn receive(&mut self, update: Option<Update>, versions: Versions) {
        for (table, version) in &versions {
            self.require(*table, *version);
        }
        self.waiting.push((update, versions));
    }

    /// What may be applied now: what is the next version of all its tables, while nothing else is done to them.
    pub(super) fn next_updates(&mut self) -> SmallVec<[Update; 4]> {
        let mut next = SmallVec::new();
        while let Some(place) = self.waiting.iter().position(|(_, versions)| self.is_next(versions)) {
            let (update, versions) = self.waiting.remove(place);
            match update {
                Some(update) => {
                    versions.iter().for_each(|(table, _)| self.of(*table).busy = true);
                    self.applying.insert(update, versions);
                    next.push(update);
                }
                None => versions.iter().for_each(|(table, _)| self.of(*table).applied += 1),
            }
        }
        next
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
