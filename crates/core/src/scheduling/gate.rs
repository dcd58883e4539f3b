//! Versions in front of one replica: who may go on, and who waits for what (DV 4.3, 4.5, 4.6).
//!
//! Invariants:
//! - a write is let through when the versions of its tables are there exactly, and a read when they are there or were passed;
//! - a single read has no versions of its own: it stands behind the versions that it was told to wait for, and whatever writes
//!   its tables later waits until it is done, unless reads have snapshots. (The paper does not say the latter. Without it, on an
//!   engine that shows what is not committed, such a read could meet one half of an update.)

use std::collections::BTreeMap;

use crate::ids::TxnId;
use crate::item::TableId;
use crate::map::HashMap;
use crate::table_queues::{LockMode, TableLocks};
use crate::table_versions::{Assigned, Assigner, Picked, Reached, Version, Versions};

/// Why an operation has to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// This version is not there.
    ByVersion(Assigned),
    /// Single reads of the table are to be done first.
    ByReads(TableId),
}

#[derive(Default, Debug)]
pub(super) struct Gate {
    reached: Reached,
    /// Who waits for a version of a table, and looks again when it is there.
    blocked: HashMap<TableId, BTreeMap<Version, Vec<TxnId>>>,
    /// Who waits for single reads of a table.
    behind_reads: HashMap<TableId, Vec<TxnId>>,
    /// Single reads by table, with the version that they stand behind.
    readers: HashMap<TableId, Vec<(TxnId, Version)>>,
    /// Who writes which version of a table, where reads ask for that.
    writers: HashMap<(TableId, Version), TxnId>,
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

    /// What a read of these tables waits for that nobody has to wait for.
    pub(super) fn behind_arrived(&self, tables: &TableLocks) -> Versions {
        self.arrivals.behind(tables)
    }

    /// Why an operation has to wait, if it has to. `writes` says that it may change those that its transaction writes.
    pub(super) fn refuses(&self, versions: &Versions, concerned: Picked, writes: bool) -> Option<Refused> {
        versions.picked(concerned).find_map(|assigned| {
            if !self.reached.admits(assigned) {
                return Some(Refused::ByVersion(*assigned));
            }
            let is_read = writes && assigned.mode == LockMode::Write && self.is_read(assigned);
            is_read.then_some(Refused::ByReads(assigned.table))
        })
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

    /// An operation of this transaction waits.
    pub(super) fn block(&mut self, txn: TxnId, refused: Refused) {
        let waiting = match refused {
            Refused::ByVersion(Assigned { table, version, .. }) => {
                self.blocked.entry(table).or_default().entry(version).or_default()
            }
            Refused::ByReads(table) => self.behind_reads.entry(table).or_default(),
        };
        waiting.push(txn);
    }

    /// A transaction that writes these has come.
    pub(super) fn begin_writes(&mut self, txn: TxnId, versions: &Versions) {
        let written = versions.iter().filter(|assigned| assigned.mode == LockMode::Write);
        self.writers.extend(written.map(|assigned| ((assigned.table, assigned.version), txn)));
    }

    /// It is over.
    pub(super) fn end_writes(&mut self, versions: &Versions) {
        for assigned in versions.iter().filter(|assigned| assigned.mode == LockMode::Write) {
            self.writers.remove(&(assigned.table, assigned.version));
        }
    }

    /// Whose turn it is to write a table, if its transaction has come.
    pub(super) fn writer_due(&self, table: TableId) -> Option<TxnId> {
        self.writers.get(&(table, self.version(table))).copied()
    }

    pub(super) fn count(&mut self, waited: bool) {
        *(if waited { &mut self.waited } else { &mut self.at_once }) += 1;
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.at_once, self.waited)
    }

    /// A table is let go. Returns who may look again.
    pub(super) fn release(&mut self, assigned: &Assigned) -> Vec<TxnId> {
        let reached = self.reached.release(assigned);
        let Some(blocked) = self.blocked.get_mut(&assigned.table) else { return Vec::new() };
        let mut woken = Vec::new();
        while let Some(next) = blocked.first_entry().filter(|next| *next.key() <= reached) {
            woken.extend(next.remove());
        }
        if blocked.is_empty() {
            self.blocked.remove(&assigned.table);
        }
        woken
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
            woken.extend(self.behind_reads.remove(&assigned.table).unwrap_or_default());
        }
        woken
    }
}
