//! One simulated database: snapshots, row locks, atomic commits, and a progress table that refuses gaps.
//!
//! What it models of PostgreSQL: REPEATABLE READ sees the state at its first statement, READ COMMITTED the state at
//! each statement, both their own writes; a statement that meets a row locked by an open transaction waits until that
//! ends and then takes the row's newest version; a failed statement ends its transaction's writes and locks; TRUNCATE
//! empties a table for older snapshots too; a server that commits asynchronously may lose its newest commits in a
//! crash.
//!
//! It has no time: every call takes effect at once, and the driver says when calls happen.

mod locks;
mod progress;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use onecopy_core::{Csn, TableId};

pub use locks::Target;
pub use progress::Order;
pub use store::Contents;

use crate::plan::{Answer, Change, Find, Key, Plan, Row, Strength};
use locks::Locks;
use store::{Commit, Store};

/// One connection's open transaction in a database, unique in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneId(pub u64);

/// What a transaction's statements see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Isolation {
    /// The state at each statement.
    ReadCommitted,
    /// The state at the first statement.
    RepeatableRead,
}

/// What came of a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ran {
    /// It ran.
    Done(Answer),
    /// It was refused; its transaction can only be rolled back.
    Failed(Fault),
    /// It waits for these; [`Database::take_woken`] will say when it went on.
    Blocked(Vec<LaneId>),
}

/// Why a database refuses a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The key or the unique value exists.
    Duplicate,
    /// The parent does not exist.
    NoParent,
    /// An earlier statement of the transaction failed, or the transaction does not exist.
    Aborted,
    /// It would have waited for somebody who waits for it; `on_rows` says that the cycle goes only through rows and
    /// tables, which the core promised to order.
    Deadlock {
        /// No part of the cycle is about a unique value.
        on_rows: bool,
    },
    /// What a record of the log found is not what is here.
    Diverged,
}

/// Why a commit was answered by a rollback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitRefused {
    /// The progress table refused it.
    OutOfOrder {
        /// What the database contains.
        progress: Csn,
    },
    /// The transaction is not open, or a statement of it had failed.
    Aborted,
}

#[derive(Debug)]
struct Lane {
    isolation: Isolation,
    snapshot: Option<Commit>,
    writes: BTreeMap<(TableId, Key), Option<Rc<Row>>>,
    truncated: BTreeSet<TableId>,
    failed: bool,
}

#[derive(Debug)]
struct Waiting {
    lane: LaneId,
    plan: Plan,
    snapshot: Commit,
    target: Target,
    blockers: Vec<LaneId>,
}

/// One database.
#[derive(Debug)]
pub struct Database {
    store: Store,
    lanes: BTreeMap<LaneId, Lane>,
    locks: Locks,
    /// In the order in which they began to wait.
    waiting: Vec<Waiting>,
    woken: Vec<(LaneId, Ran)>,
}

/// Waiting for these on that.
struct Conflict {
    target: Target,
    blockers: Vec<LaneId>,
}

impl Database {
    /// A database with these rows, at CSN 0.
    #[must_use]
    pub fn new(contents: &Contents, order: Order) -> Database {
        Database {
            store: Store::new(contents, order),
            lanes: BTreeMap::new(),
            locks: Locks::default(),
            waiting: Vec::new(),
            woken: Vec::new(),
        }
    }

    /// A copy of what is committed now, with nothing open.
    #[must_use]
    pub fn copied(&self) -> Database {
        Database { store: self.store.copied(), ..Database::new(&Contents::new(), Order::WithoutGaps) }
    }

    /// The last decision up to which it contains everything.
    #[must_use]
    pub fn progress(&self) -> Csn {
        self.store.progress.complete_at(self.store.newest())
    }

    /// Whether it contains a decision.
    #[must_use]
    pub fn contains(&self, csn: Csn) -> bool {
        self.store.progress.contains(csn)
    }

    /// All committed rows.
    #[must_use]
    pub fn contents(&self) -> Contents {
        self.store.contents()
    }

    /// The transactions that are open.
    pub fn lanes(&self) -> impl Iterator<Item = LaneId> {
        self.lanes.keys().copied()
    }

    /// BEGIN.
    pub fn open(&mut self, lane: LaneId, isolation: Isolation) {
        let opened = Lane {
            isolation,
            snapshot: None,
            writes: BTreeMap::new(),
            truncated: BTreeSet::new(),
            failed: false,
        };
        self.lanes.insert(lane, opened);
    }

    /// Whether a transaction is open.
    #[must_use]
    pub fn is_open(&self, lane: LaneId) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// Runs a statement in an open transaction, as far as it gets now.
    pub fn execute(&mut self, lane: LaneId, plan: &Plan) -> Ran {
        let newest = self.store.newest();
        let Some(open) = self.lanes.get_mut(&lane).filter(|open| !open.failed) else {
            return Ran::Failed(Fault::Aborted);
        };
        let snapshot = match open.isolation {
            Isolation::ReadCommitted => newest,
            Isolation::RepeatableRead => *open.snapshot.get_or_insert(newest),
        };
        match self.attempt(lane, plan, snapshot) {
            Ok(ran) => {
                self.wake_after(&ran);
                ran
            }
            Err(Conflict { target, blockers }) => {
                let plan = plan.clone();
                self.waiting.push(Waiting { lane, plan, snapshot, target, blockers: blockers.clone() });
                if let Some(on_rows) = self.cycle_through(lane) {
                    self.waiting.retain(|waiting| waiting.lane != lane);
                    self.fail(lane);
                    self.wake();
                    return Ran::Failed(Fault::Deadlock { on_rows });
                }
                Ran::Blocked(blockers)
            }
        }
    }

    /// COMMIT without a place in the order. Returns whether the transaction had written.
    pub fn commit_read_only(&mut self, lane: LaneId) -> bool {
        let wrote = self.lanes.get(&lane).is_some_and(|lane| !lane.writes.is_empty());
        self.end(lane);
        wrote
    }

    /// Notes the CSNs from `from` to `to` in the progress table and commits.
    ///
    /// # Errors
    /// If the progress table refuses them, or there is nothing to commit; the transaction is rolled back.
    pub fn commit(&mut self, lane: LaneId, from: Csn, to: Csn) -> Result<(), CommitRefused> {
        let progress = self.progress();
        let admitted = self.store.progress.admits(from, to);
        let committed = match self.lanes.remove(&lane).filter(|open| !open.failed) {
            None => Err(CommitRefused::Aborted),
            Some(_) if !admitted => Err(CommitRefused::OutOfOrder { progress }),
            Some(Lane { writes, truncated, .. }) => {
                self.store.commit(from, to, truncated, writes);
                Ok(())
            }
        };
        self.end(lane);
        committed
    }

    /// ROLLBACK; a statement that waits is given up.
    pub fn rollback(&mut self, lane: LaneId) {
        self.end(lane);
    }

    /// Gives up a statement that waits. Whether there was one.
    pub fn cancel(&mut self, lane: LaneId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.lane != lane);
        let cancelled = self.waiting.len() < before;
        if cancelled {
            self.fail(lane);
            self.wake();
        }
        cancelled
    }

    /// Ends every transaction.
    pub fn end_sessions(&mut self) {
        self.lanes.clear();
        self.locks.clear();
        self.waiting.clear();
        self.woken.clear();
    }

    /// The server dies and starts again without its newest commits.
    pub fn crash(&mut self, lost_commits: u64) {
        self.end_sessions();
        self.store.lose(lost_commits);
    }

    /// One of its rows is gone, without a commit that says so.
    pub fn lose_a_row(&mut self) {
        self.store.lose_a_row();
    }

    /// Statements that waited and have gone on since the last call, with what came of them.
    pub fn take_woken(&mut self) -> Vec<(LaneId, Ran)> {
        std::mem::take(&mut self.woken)
    }

    /// For whom a waiting statement waits.
    #[must_use]
    pub fn blockers(&self, lane: LaneId) -> Vec<LaneId> {
        let waiting = self.waiting.iter().find(|waiting| waiting.lane == lane);
        waiting.map(|waiting| waiting.blockers.clone()).unwrap_or_default()
    }

    fn end(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
        self.waiting.retain(|waiting| waiting.lane != lane);
        self.locks.release(lane);
        self.wake();
    }

    /// A statement failed: its transaction has neither writes nor locks any more, but is still open.
    fn fail(&mut self, lane: LaneId) {
        if let Some(open) = self.lanes.get_mut(&lane) {
            open.failed = true;
            open.writes.clear();
            open.truncated.clear();
        }
        self.locks.release(lane);
    }

    fn wake_after(&mut self, ran: &Ran) {
        if matches!(ran, Ran::Failed(_)) {
            self.wake();
        }
    }

    /// Lets those go on who can, oldest first.
    fn wake(&mut self) {
        let mut at = 0;
        while at < self.waiting.len() {
            let newest = self.store.newest();
            let waiting = &mut self.waiting[at];
            let moves_on = |open: &Lane| open.isolation == Isolation::ReadCommitted;
            if matches!(waiting.target, Target::Table(_))
                && self.lanes.get(&waiting.lane).is_some_and(moves_on)
            {
                // Tables are locked when a statement is parsed, and its snapshot is taken after that.
                waiting.snapshot = newest;
            }
            let (lane, plan, snapshot) = (waiting.lane, waiting.plan.clone(), waiting.snapshot);
            match self.attempt(lane, &plan, snapshot) {
                Ok(ran) => {
                    let failed = matches!(ran, Ran::Failed(_));
                    self.waiting.retain(|waiting| waiting.lane != lane);
                    self.woken.push((lane, ran));
                    // A failure lets locks go, for which somebody before this one may have waited.
                    at = if failed { 0 } else { at };
                }
                Err(Conflict { target, blockers }) => {
                    let waiting = &mut self.waiting[at];
                    (waiting.target, waiting.blockers) = (target, blockers);
                    at += 1;
                    // It waits for somebody else now, who may wait for it.
                    if let Some(on_rows) = self.cycle_through(lane) {
                        self.waiting.retain(|waiting| waiting.lane != lane);
                        self.fail(lane);
                        self.woken.push((lane, Ran::Failed(Fault::Deadlock { on_rows })));
                        at = 0;
                    }
                }
            }
        }
    }

    /// Whether a lane waits for itself, and if so, whether no unique value takes part, nor who locks a second table.
    fn cycle_through(&self, start: LaneId) -> Option<bool> {
        let mut path = vec![(start, true)];
        let mut seen = BTreeSet::new();
        while let Some((lane, on_rows)) = path.pop() {
            let Some(waiting) = self.waiting.iter().find(|waiting| waiting.lane == lane) else { continue };
            // Who locks one table after the other may meet a reader of both, as on a single server.
            let locks_another =
                matches!(waiting.plan, Plan::Lock { .. }) && self.locks.holds_a_table_alone(lane);
            let on_rows = on_rows && !matches!(waiting.target, Target::Unique(..)) && !locks_another;
            for &blocker in &waiting.blockers {
                if blocker == start {
                    return Some(on_rows);
                }
                if seen.insert(blocker) {
                    path.push((blocker, on_rows));
                }
            }
        }
        None
    }
}

/// Statements.
impl Database {
    /// Takes the locks that a statement needs, and then runs it.
    fn attempt(&mut self, lane: LaneId, plan: &Plan, snapshot: Commit) -> Result<Ran, Conflict> {
        for (target, strength) in self.needed(lane, plan, snapshot) {
            self.locks.acquire(lane, target, strength).map_err(|blockers| Conflict { target, blockers })?;
        }
        match self.run(lane, plan, snapshot) {
            Ok(answer) => Ok(Ran::Done(answer)),
            Err(fault) => {
                self.fail(lane);
                Ok(Ran::Failed(fault))
            }
        }
    }

    fn needed(&self, lane: LaneId, plan: &Plan, snapshot: Commit) -> Vec<(Target, Strength)> {
        let mut needed = Vec::new();
        let found = |table, find| self.find(lane, table, find, snapshot).into_iter();
        match *plan {
            Plan::Read { table, find, lock } => {
                needed.push((Target::Table(table), Strength::KeyShare));
                if let Some(strength) = lock {
                    needed.extend(found(table, find).map(|(key, _)| (Target::Row(table, key), strength)));
                }
            }
            Plan::ReadLast { table, .. } | Plan::ReadUnclassified { table, .. } => {
                needed.push((Target::Table(table), Strength::KeyShare))
            }
            Plan::Join { table, parents, .. } => {
                needed.extend([table, parents].map(|table| (Target::Table(table), Strength::KeyShare)));
            }
            Plan::Append { table, find, .. }
            | Plan::Set { table, find, .. }
            | Plan::SetLast { table, find, .. } => {
                needed.push((Target::Table(table), Strength::KeyShare));
                let rows = found(table, find);
                needed.extend(rows.map(|(key, _)| (Target::Row(table, key), Strength::NoKeyUpdate)));
            }
            Plan::Unclassified { table, key, .. } => {
                needed.push((Target::Table(table), Strength::KeyShare));
                needed.push((Target::Row(table, key), Strength::NoKeyUpdate));
            }
            Plan::Upsert { table, key, .. } => {
                needed.push((Target::Table(table), Strength::KeyShare));
                let exists = self.newest(lane, table, key).is_some();
                let strength = if exists { Strength::NoKeyUpdate } else { Strength::Update };
                needed.push((Target::Row(table, key), strength));
            }
            Plan::Insert { table, key, unique, parent, copies, .. } => {
                needed.push((Target::Table(table), Strength::KeyShare));
                needed.extend(copies.map(|(table, _)| (Target::Table(table), Strength::KeyShare)));
                needed.push((Target::Row(table, key), Strength::Update));
                needed.extend(unique.map(|unique| (Target::Unique(table, unique), Strength::Update)));
                if let Some((table, key)) = parent {
                    needed.push((Target::Table(table), Strength::KeyShare));
                    needed.push((Target::Row(table, key), Strength::KeyShare));
                }
            }
            Plan::Delete { table, find } => {
                needed.push((Target::Table(table), Strength::KeyShare));
                for (key, row) in found(table, find) {
                    needed.push((Target::Row(table, key), Strength::Update));
                    needed.extend(row.unique.map(|unique| (Target::Unique(table, unique), Strength::Update)));
                }
            }
            Plan::Truncate { table } | Plan::Lock { table } => {
                needed.push((Target::Table(table), Strength::Update));
            }
            Plan::Images(ref changes) => {
                for Change { table, key, before, after } in changes.iter() {
                    needed.push((Target::Table(*table), Strength::KeyShare));
                    let key_stays = before.is_some() && after.is_some();
                    let strength = if key_stays { Strength::NoKeyUpdate } else { Strength::Update };
                    needed.push((Target::Row(*table, *key), strength));
                    if !key_stays {
                        let unique = before.iter().chain(after).find_map(|row| row.unique);
                        needed.extend(unique.map(|u| (Target::Unique(*table, u), Strength::Update)));
                    }
                }
            }
            Plan::Probe => {}
        }
        needed
    }

    /// Runs a statement that holds its locks: predicates look at the snapshot, what is written at the newest version.
    fn run(&mut self, lane: LaneId, plan: &Plan, snapshot: Commit) -> Result<Answer, Fault> {
        let mut answer = Answer { position: self.store.progress.complete_at(snapshot), ..Answer::default() };
        match *plan {
            Plan::Read { table, find, lock: None } | Plan::ReadUnclassified { table, find } => {
                let rows = self.find(lane, table, find, snapshot);
                answer.rows = shown(rows, |row| Row { last: None, ..row.clone() });
            }
            Plan::Join { table, find, parents, .. } => {
                let rows = self.find(lane, table, find, snapshot);
                answer.rows = shown(rows, |row| Row { last: None, ..row.clone() });
                let keys: BTreeSet<Key> = answer.rows.iter().filter_map(|(_, row)| row.parent).collect();
                let found = keys.into_iter().filter_map(|key| {
                    self.row(lane, parents, key, snapshot).map(|row| (key, Rc::clone(row)))
                });
                answer.joined = shown(found.collect(), copied);
            }
            Plan::ReadLast { table, find } => {
                let rows = self.find(lane, table, find, snapshot);
                answer.rows = shown(rows, |row| Row { group: row.group, last: row.last, ..Row::default() });
            }
            Plan::Read { table, find, lock: Some(_) } => {
                answer.rows = self.find_newest(lane, table, find, snapshot);
                answer.position = self.progress();
            }
            Plan::Append { table, find, value } => {
                answer.rows = self.find_newest(lane, table, find, snapshot);
                answer.changes = changed(table, &answer.rows, |row| {
                    let mut values = row.values.clone();
                    values.push(value);
                    Some(Rc::new(Row { values, ..row.clone() }))
                });
            }
            Plan::Set { table, find, value } => {
                answer.rows = self.find_newest(lane, table, find, snapshot);
                answer.changes = changed(table, &answer.rows, |row| {
                    Some(Rc::new(Row { values: vec![value], ..row.clone() }))
                });
            }
            Plan::Unclassified { table, key, value, .. } => {
                answer.rows = self.find_newest(lane, table, Find::Key(key), snapshot);
                answer.changes = changed(table, &answer.rows, |row| {
                    Some(Rc::new(Row { values: vec![value], ..row.clone() }))
                });
            }
            Plan::SetLast { table, find, value } => {
                answer.rows = self.find_newest(lane, table, find, snapshot);
                answer.changes = changed(table, &answer.rows, |row| {
                    Some(Rc::new(Row { last: Some(value), ..row.clone() }))
                });
            }
            Plan::Upsert { table, key, group, value } => {
                let before = self.newest(lane, table, key).map(Rc::clone);
                let mut row = before.as_deref().cloned().unwrap_or(Row { group, ..Row::default() });
                row.values.push(value);
                answer.changes.push(Change { table, key, before, after: Some(Rc::new(row)) });
            }
            Plan::Insert { table, key, group, unique, parent, copies, .. } => {
                if parent.is_some_and(|(table, key)| self.newest(lane, table, key).is_none()) {
                    return Err(Fault::NoParent);
                }
                let taken = self.newest(lane, table, key).is_some()
                    || (unique.is_some() && self.all_newest(lane, table).any(|row| row.unique == unique));
                if taken {
                    return Err(Fault::Duplicate);
                }
                let source =
                    copies.and_then(|(of, key)| Some((key, Rc::clone(self.row(lane, of, key, snapshot)?))));
                answer.joined = shown(source.into_iter().collect(), copied);
                let values = answer.joined.first().map_or_else(Vec::new, |(_, row)| row.values.clone());
                let parent = parent.map(|(_, key)| key);
                let after = Some(Rc::new(Row { group, unique, values, parent, ..Row::default() }));
                answer.changes.push(Change { table, key, before: None, after });
            }
            Plan::Delete { table, find } => {
                answer.rows = self.find_newest(lane, table, find, snapshot);
                answer.changes = changed(table, &answer.rows, |_| None);
            }
            Plan::Truncate { table } => {
                let newest = self.store.newest();
                answer.rows = self.find(lane, table, Find::All, newest);
                answer.changes = changed(table, &answer.rows, |_| None);
                answer.position = self.progress();
            }
            Plan::Images(ref changes) => {
                let differs =
                    |change: &&Change| self.newest(lane, change.table, change.key) != change.before.as_ref();
                if changes.iter().any(|change| differs(&change)) {
                    return Err(Fault::Diverged);
                }
                answer.changes = changes.to_vec();
            }
            Plan::Lock { .. } | Plan::Probe => {}
        }
        if let Some(open) = self.lanes.get_mut(&lane) {
            if let Plan::Truncate { table } = *plan {
                open.writes.retain(|(of, _), _| *of != table);
                open.truncated.insert(table);
            } else {
                let writes = answer.changes.iter();
                open.writes.extend(writes.map(|change| ((change.table, change.key), change.after.clone())));
            }
        }
        Ok(answer)
    }

    /// The rows that a statement with this snapshot finds, its own transaction's writes included.
    fn find(&self, lane: LaneId, table: TableId, find: Find, snapshot: Commit) -> Vec<(Key, Rc<Row>)> {
        let of_key = |key| self.row(lane, table, key, snapshot).map(|row| (key, Rc::clone(row)));
        if let Find::Key(key) = find {
            return of_key(key).into_iter().collect();
        }
        let own = self.lanes.get(&lane).into_iter().flat_map(|open| open.writes.keys());
        let own = own.filter(|(of, _)| *of == table).map(|(_, key)| *key);
        let keys: BTreeSet<Key> = self.store.rows(snapshot, table).map(|(key, _)| key).chain(own).collect();
        keys.into_iter().filter_map(of_key).filter(|(key, row)| find.matches(*key, row)).collect()
    }

    /// Of those that the snapshot finds, the newest versions of those that are still there.
    fn find_newest(&self, lane: LaneId, table: TableId, find: Find, snapshot: Commit) -> Vec<(Key, Rc<Row>)> {
        let found = self.find(lane, table, find, snapshot).into_iter();
        found.filter_map(|(key, _)| Some((key, Rc::clone(self.newest(lane, table, key)?)))).collect()
    }

    fn newest(&self, lane: LaneId, table: TableId, key: Key) -> Option<&Rc<Row>> {
        self.row(lane, table, key, self.store.newest())
    }

    fn all_newest(&self, lane: LaneId, table: TableId) -> impl Iterator<Item = Rc<Row>> {
        self.find(lane, table, Find::All, self.store.newest()).into_iter().map(|(_, row)| row)
    }

    fn row(&self, lane: LaneId, table: TableId, key: Key, snapshot: Commit) -> Option<&Rc<Row>> {
        let open = self.lanes.get(&lane);
        if let Some(own) = open.and_then(|open| open.writes.get(&(table, key))) {
            return own.as_ref();
        }
        if open.is_some_and(|open| open.truncated.contains(&table)) {
            return None;
        }
        self.store.row(snapshot, table, key)
    }
}

/// What a join shows of a row of another table, and an INSERT ... SELECT copies.
fn copied(row: &Row) -> Row {
    Row { values: row.values.clone(), ..Row::default() }
}

/// Rows with the columns that a statement asks for.
fn shown(rows: Vec<(Key, Rc<Row>)>, columns: impl Fn(&Row) -> Row) -> Vec<(Key, Rc<Row>)> {
    rows.into_iter().map(|(key, row)| (key, Rc::new(columns(&row)))).collect()
}

fn changed(
    table: TableId,
    rows: &[(Key, Rc<Row>)],
    mut after: impl FnMut(&Row) -> Option<Rc<Row>>,
) -> Vec<Change> {
    rows.iter()
        .map(|(key, row)| Change { table, key: *key, before: Some(Rc::clone(row)), after: after(row) })
        .collect()
}

#[cfg(test)]
mod tests;
