//! Rows with all their versions: what a snapshot shows, what a crash takes back.

use std::collections::BTreeMap;
use std::rc::Rc;

use onecopy_core::{Csn, TableId};

use super::progress::{Order, Progress};
use crate::plan::{Key, Row};

/// A replica's commits in its own order, from 1; 0 is the state before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Commit(pub(super) u64);

/// Rows by table and key.
pub type Contents = BTreeMap<(TableId, Key), Rc<Row>>;

/// Committed data.
#[derive(Clone, Debug)]
pub(super) struct Store {
    tables: BTreeMap<TableId, Table>,
    pub(super) progress: Progress,
}

#[derive(Clone, Default, Debug)]
struct Table {
    rows: BTreeMap<Key, Vec<Version>>,
    /// When it was emptied by TRUNCATE, which older snapshots see.
    truncated: Vec<Commit>,
}

#[derive(Clone, Debug)]
struct Version {
    since: Commit,
    row: Option<Rc<Row>>,
}

impl Store {
    pub(super) fn new(contents: &Contents, order: Order) -> Store {
        let mut store = Store { tables: BTreeMap::new(), progress: Progress::new(order) };
        for (&(table, key), row) in contents {
            store.put(Commit(0), table, key, Some(Rc::clone(row)));
        }
        store
    }

    /// What a snapshot taken now shows, as the state before the first commit of another database.
    pub(super) fn copied(&self) -> Store {
        let progress = self.progress.copied(self.progress.complete_at(self.newest()));
        Store { progress, ..Store::new(&self.contents(), Order::WithoutGaps) }
    }

    pub(super) fn newest(&self) -> Commit {
        self.progress.newest()
    }

    pub(super) fn row(&self, snapshot: Commit, table: TableId, key: Key) -> Option<&Rc<Row>> {
        self.tables.get(&table)?.row(snapshot, key)
    }

    /// All rows of a table that a snapshot shows, by key.
    pub(super) fn rows(&self, snapshot: Commit, table: TableId) -> impl Iterator<Item = (Key, &Rc<Row>)> {
        let table = self.tables.get(&table);
        table.into_iter().flat_map(move |table| {
            table.rows.keys().filter_map(move |&key| Some((key, table.row(snapshot, key)?)))
        })
    }

    /// Makes one more commit, of these decisions, all of it visible at once.
    pub(super) fn commit(
        &mut self,
        from: Csn,
        to: Csn,
        truncated: impl IntoIterator<Item = TableId>,
        writes: impl IntoIterator<Item = ((TableId, Key), Option<Rc<Row>>)>,
    ) {
        let commit = Commit(self.newest().0 + 1);
        for table in truncated {
            let live: Vec<Key> = self.rows(self.newest(), table).map(|(key, _)| key).collect();
            live.into_iter().for_each(|key| self.put(commit, table, key, None));
            self.tables.entry(table).or_default().truncated.push(commit);
        }
        for ((table, key), row) in writes {
            self.put(commit, table, key, row);
        }
        self.progress.add(from, to);
    }

    /// Takes back the newest commits, as a crash does that asynchronous commits had not survived.
    pub(super) fn lose(&mut self, commits: u64) {
        let last = Commit(self.newest().0.saturating_sub(commits));
        self.progress.lose_after(last);
        for table in self.tables.values_mut() {
            table.truncated.retain(|at| *at <= last);
            for versions in table.rows.values_mut() {
                versions.retain(|version| version.since <= last);
            }
            table.rows.retain(|_, versions| !versions.is_empty());
        }
    }

    pub(super) fn contents(&self) -> Contents {
        let newest = self.newest();
        let tables = self.tables.keys();
        tables
            .flat_map(|&table| self.rows(newest, table).map(move |(key, row)| ((table, key), Rc::clone(row))))
            .collect()
    }

    pub(super) fn lose_a_row(&mut self) {
        let Some(&(table, key)) = self.contents().keys().next() else { return };
        self.put(self.newest(), table, key, None);
    }

    fn put(&mut self, since: Commit, table: TableId, key: Key, row: Option<Rc<Row>>) {
        let versions = self.tables.entry(table).or_default().rows.entry(key).or_default();
        match versions.last_mut() {
            Some(last) if last.since == since => last.row = row,
            _ => versions.push(Version { since, row }),
        }
    }
}

impl Table {
    fn row(&self, snapshot: Commit, key: Key) -> Option<&Rc<Row>> {
        if self.truncated.last().is_some_and(|at| *at > snapshot) {
            return None;
        }
        let versions = self.rows.get(&key)?;
        let seen = versions.partition_point(|version| version.since <= snapshot);
        versions[..seen].last()?.row.as_ref()
    }
}
