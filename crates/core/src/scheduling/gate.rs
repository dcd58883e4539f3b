//! Versions in front of one replica: who may go on, and who waits for what (DV 4.3, 4.5, 4.6).
//!
//! Invariants:
//! - a write is let through when the versions of its tables are there exactly, and a read when they are there or were passed;
//! - a single read has no versions of its own: it stands behind the versions that it was told to wait for, and whatever writes
//!   its tables later waits until it is done. (The paper does not say the latter. Without it, on an engine that shows what is
//!   not committed, such a read could meet one half of an update.)

use crate::ids::TxnId;
use crate::item::TableId;
use crate::map::HashMap;
use crate::table_queues::{LockMode, TableLocks};
use crate::table_versions::{Assigned, Assigner, Picked, Reached, Version, Versions};

#[derive(Default, Debug)]
pub(super) struct Gate {
    reached: Reached,
    /// Who waits for a table, and looks again when something about it changes.
    blocked: HashMap<TableId, Vec<TxnId>>,
    /// Single reads by table, with the version that they stand behind.
    readers: HashMap<TableId, Vec<(TxnId, Version)>>,
    /// Gives versions as operations arrive, where nobody else does (DV 5.2, Level 0).
    arrivals: Assigner,
    at_once: u64,
    waited: u64,
}

impl Gate {
    /// Versions have come to here while the replica was away.
    pub(super) fn at(reached: Reached) -> Gate {
        Gate { reached, ..Gate::default() }
    }

    pub(super) fn arrive(&mut self, tables: &TableLocks) -> Versions {
        self.arrivals.assign(tables)
    }

    /// The table for which an operation has to wait, if it has to. `writes` says that it may change those that its
    /// transaction writes.
    pub(super) fn refuses(&self, versions: &Versions, concerned: Picked, writes: bool) -> Option<TableId> {
        let refused = versions.picked(concerned).find(|assigned| {
            !self.reached.admits(assigned)
                || writes && assigned.mode == LockMode::Write && self.is_read(assigned)
        });
        refused.map(|assigned| assigned.table)
    }

    fn is_read(&self, assigned: &Assigned) -> bool {
        let readers = self.readers.get(&assigned.table);
        readers.is_some_and(|readers| readers.iter().any(|(_, behind)| *behind <= assigned.version))
    }

    /// Whether all of these are there.
    pub(super) fn admits(&self, versions: &Versions) -> bool {
        self.reached.admits_all(versions.iter())
    }

    pub(super) fn version(&self, table: TableId) -> Version {
        self.reached.version(table)
    }

    /// An operation of this transaction waits for the table.
    pub(super) fn block(&mut self, txn: TxnId, table: TableId) {
        self.blocked.entry(table).or_default().push(txn);
    }

    pub(super) fn count(&mut self, waited: bool) {
        *(if waited { &mut self.waited } else { &mut self.at_once }) += 1;
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.at_once, self.waited)
    }

    /// A table is let go. Returns who may look again.
    pub(super) fn release(&mut self, assigned: &Assigned) -> Vec<TxnId> {
        self.reached.release(assigned);
        self.wake(assigned.table)
    }

    /// Who waits for a table.
    pub(super) fn wake(&mut self, table: TableId) -> Vec<TxnId> {
        self.blocked.remove(&table).unwrap_or_default()
    }

    /// A single read has come that stands behind these versions.
    pub(super) fn begin_read(&mut self, txn: TxnId, behind: &Versions) {
        for assigned in behind.iter() {
            self.readers.entry(assigned.table).or_default().push((txn, assigned.version));
        }
    }

    /// It is over. Returns who may look again.
    pub(super) fn end_read(&mut self, txn: TxnId, behind: &Versions) -> Vec<TxnId> {
        let mut woken = Vec::new();
        for assigned in behind.iter() {
            if let Some(readers) = self.readers.get_mut(&assigned.table) {
                readers.retain(|(reader, _)| *reader != txn);
                if readers.is_empty() {
                    self.readers.remove(&assigned.table);
                }
            }
            woken.extend(self.wake(assigned.table));
        }
        woken
    }
}
