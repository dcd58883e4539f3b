//! The statements of the simulated databases, and what a classifier would say of each.
//!
//! A table's rows have a key, a group that never changes, sometimes a value of a unique key, values that grow or are
//! replaced, one more value in a column of its own, and sometimes a foreign key. That is enough for lists, registers and sets
//! of rows, for reads of a row, of a group and of a whole table, for those of different columns and of two tables joined by
//! key, for inserts, deletes, foreign keys, locks of rows and tables, and TRUNCATE.

use std::rc::Rc;

use onecopy_core::{
    Access, AccessSet, ClassId, ColumnId, ColumnSet, Csn, Item, KeyId, Mode, Space, Statement, StatementKind,
    TableId, ValueHash,
};
use smallvec::{SmallVec, smallvec};

/// A row's primary key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub u64);

/// A row but for its key.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Row {
    /// The second column: what predicates ask for.
    pub group: u64,
    /// The third column, unique in the table where it is not null.
    pub unique: Option<u64>,
    /// The fourth column.
    pub values: Vec<u64>,
    /// The fifth, which only [`Plan::ReadLast`] shows, and a locking read.
    pub last: Option<u64>,
    /// The sixth: which row of another table it refers to.
    pub parent: Option<Key>,
}

/// Which rows a statement is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Find {
    /// `WHERE key = ..`
    Key(Key),
    /// `WHERE grp = ..`
    Group(u64),
    /// Every row.
    All,
}

/// How strongly a row is locked, as in PostgreSQL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Strength {
    /// FOR KEY SHARE.
    KeyShare,
    /// FOR SHARE.
    Share,
    /// FOR NO KEY UPDATE.
    NoKeyUpdate,
    /// FOR UPDATE.
    Update,
}

/// One row as a transaction found and left it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Change {
    /// The table.
    pub table: TableId,
    /// The row's key.
    pub key: Key,
    /// What it was, if it was there.
    pub before: Option<Rc<Row>>,
    /// What it is, if it is there.
    pub after: Option<Rc<Row>>,
}

/// A statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// SELECT of all columns but the last, perhaps with a locking clause.
    Read {
        /// The table.
        table: TableId,
        /// Which rows.
        find: Find,
        /// FOR UPDATE and its kin.
        lock: Option<Strength>,
    },
    /// SELECT of rows with those that they refer to (LEFT JOIN ON the other table's key): which ones only the answer shows.
    Join {
        /// The table of the rows that refer.
        table: TableId,
        /// Which of them.
        find: Find,
        /// The table to which they refer.
        parents: TableId,
        /// It fails once it has shown them, by dividing by zero for one.
        fails: bool,
    },
    /// SELECT by way of a function, of which nobody knows what it reads: all columns but the last.
    ReadUnclassified {
        /// The table.
        table: TableId,
        /// Which rows.
        find: Find,
    },
    /// SELECT of the last column.
    ReadLast {
        /// The table.
        table: TableId,
        /// Which rows.
        find: Find,
    },
    /// UPDATE of the last column.
    SetLast {
        /// The table.
        table: TableId,
        /// Which rows.
        find: Find,
        /// The new value.
        value: u64,
    },
    /// UPDATE that puts a value at the end of a row's values.
    Append {
        /// The table.
        table: TableId,
        /// Which rows.
        find: Find,
        /// What is added.
        value: u64,
    },
    /// UPDATE that replaces a row's values by one.
    Set {
        /// The table.
        table: TableId,
        /// Which rows.
        find: Find,
        /// The new value.
        value: u64,
    },
    /// INSERT ON CONFLICT (key) DO UPDATE: appends, and makes the row first if it is missing.
    Upsert {
        /// The table.
        table: TableId,
        /// The row.
        key: Key,
        /// The group of the row if it is new.
        group: u64,
        /// What is added.
        value: u64,
    },
    /// INSERT; fails if the key or the unique value exists, or the parent does not. With `copies` it is an INSERT ... SELECT,
    /// wherever it is executed.
    Insert {
        /// The table.
        table: TableId,
        /// The row.
        key: Key,
        /// Its group.
        group: u64,
        /// Its value of the unique key.
        unique: Option<u64>,
        /// The row that its foreign key refers to.
        parent: Option<(TableId, Key)>,
        /// The row whose values it copies.
        copies: Option<(TableId, Key)>,
        /// Its text does not say which row it makes: it could be any.
        coarse: bool,
    },
    /// A write that nobody can classify, as of a function, or a change of definitions that names no table, as of a function's
    /// body: both replace a row's values here, and conflict with everything.
    Unclassified {
        /// The table.
        table: TableId,
        /// The row.
        key: Key,
        /// The new value.
        value: u64,
        /// Whether it changes definitions.
        defines: bool,
    },
    /// DELETE.
    Delete {
        /// The table.
        table: TableId,
        /// Which rows.
        find: Find,
    },
    /// TRUNCATE.
    Truncate {
        /// The table.
        table: TableId,
    },
    /// LOCK TABLE.
    Lock {
        /// The table.
        table: TableId,
    },
    /// Of a captured statement, the rows themselves, as a record of the log carries them.
    Images(Rc<[Change]>),
    /// Nothing but a conflict with everybody: finds out whether anything is still held.
    Probe,
}

/// What a statement did and showed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// The rows that a read or a predicate found, by key.
    pub rows: Vec<(Key, Rc<Row>)>,
    /// Of a join, the rows to which those refer.
    pub joined: Vec<(Key, Rc<Row>)>,
    /// The rows changed.
    pub changes: Vec<Change>,
    /// The newest commit that the statement could see.
    pub position: Csn,
}

const KEY: ColumnId = ColumnId(1);
const GROUP: ColumnId = ColumnId(2);
const UNIQUE: ColumnId = ColumnId(3);
const VALUES: ColumnId = ColumnId(4);
const LAST: ColumnId = ColumnId(5);
const PARENT: ColumnId = ColumnId(6);
const PRIMARY_KEY: KeyId = KeyId(1);
const UNIQUE_KEY: KeyId = KeyId(2);

impl Plan {
    /// What the core is told of the statement.
    #[must_use]
    pub fn classify(&self) -> Statement {
        Statement { shown: self.shown(), ..Statement::new(self.class(), self.kind(), self.access()) }
    }

    /// Reads or writes.
    #[must_use]
    pub fn kind(&self) -> StatementKind {
        match self {
            Plan::Read { lock: None, .. }
            | Plan::ReadUnclassified { .. }
            | Plan::ReadLast { .. }
            | Plan::Join { .. } => StatementKind::Read,
            Plan::Read { .. } | Plan::Lock { .. } => StatementKind::LockingRead,
            Plan::Truncate { .. } | Plan::Probe | Plan::Unclassified { defines: true, .. } => {
                StatementKind::Schema
            }
            _ => StatementKind::Write,
        }
    }

    /// The table that the statement names first.
    #[must_use]
    pub fn table(&self) -> TableId {
        match self {
            Plan::Read { table, .. }
            | Plan::Join { table, .. }
            | Plan::Lock { table }
            | Plan::Unclassified { table, .. }
            | Plan::ReadUnclassified { table, .. }
            | Plan::ReadLast { table, .. }
            | Plan::SetLast { table, .. }
            | Plan::Append { table, .. }
            | Plan::Set { table, .. }
            | Plan::Upsert { table, .. }
            | Plan::Insert { table, .. }
            | Plan::Delete { table, .. }
            | Plan::Truncate { table } => *table,
            Plan::Images(changes) => changes.first().map_or(TableId::ALL, |change| change.table),
            Plan::Probe => TableId::ALL,
        }
    }

    /// The class: what is left of the text without its constants.
    fn class(&self) -> ClassId {
        let (verb, shape) = match self {
            Plan::Read { find, lock, .. } => {
                (1 + lock.map_or(0, |strength| 1 + strength as u64), find.shape())
            }
            Plan::Append { find, .. } => (6, find.shape()),
            Plan::Set { find, .. } => (7, find.shape()),
            Plan::Upsert { .. } => (8, 0),
            Plan::Insert { unique, parent, copies: None, .. } => {
                (9, u64::from(unique.is_some()) + 2 * u64::from(parent.is_some()))
            }
            Plan::Insert { unique, parent, .. } => {
                (16, u64::from(unique.is_some()) + 2 * u64::from(parent.is_some()))
            }
            Plan::Delete { find, .. } => (10, find.shape()),
            Plan::Truncate { .. } => (11, 0),
            Plan::Images(_) => (12, 0),
            Plan::Probe => (13, 0),
            Plan::ReadLast { find, .. } => (14, find.shape()),
            Plan::SetLast { find, .. } => (15, find.shape()),
            Plan::Join { find, .. } => (17, find.shape()),
            Plan::Lock { .. } => (18, 0),
            Plan::Unclassified { defines, .. } => (19, u64::from(*defines)),
            Plan::ReadUnclassified { find, .. } => (20, find.shape()),
        };
        ClassId(self.table().0 % 1_000 * 100 + verb * 4 + shape)
    }

    fn access(&self) -> AccessSet {
        match *self {
            Plan::Read { table, find, lock } => {
                let mode = match lock {
                    // FOR KEY SHARE shows the whole row, so what it shows must not change either.
                    None | Some(Strength::KeyShare | Strength::Share) => Mode::Shared,
                    Some(Strength::NoKeyUpdate) => Mode::NoKeyExclusive,
                    Some(Strength::Update) => Mode::Exclusive,
                };
                // A server locks rows whole.
                let columns = if lock.is_some() { ColumnSet::ALL } else { all_but_last() };
                smallvec![Access::of_columns(find.item(table), mode, columns)]
            }
            Plan::Join { table, find, parents, .. } => smallvec![
                Access::of_columns(find.item(table), Mode::Shared, all_but_last()),
                joined(Item::table(parents)),
            ],
            Plan::ReadUnclassified { .. } => smallvec![Access::new(Item::everything(), Mode::Shared)],
            Plan::ReadLast { table, find } => {
                let columns = [KEY, GROUP, LAST].into_iter().collect();
                smallvec![Access::of_columns(find.item(table), Mode::Shared, columns)]
            }
            Plan::Append { table, find, .. } | Plan::Set { table, find, .. } => {
                smallvec![changed(find.item(table), VALUES)]
            }
            Plan::SetLast { table, find, .. } => smallvec![changed(find.item(table), LAST)],
            Plan::Upsert { table, key, group, .. } => smallvec![
                Access::new(new_row(table, key, group), Mode::Insert),
                changed(Find::Key(key).item(table), VALUES),
                Access::new(primary_key(table, key), Mode::Exclusive),
            ],
            Plan::Insert { table, key, group, unique, parent, copies, coarse } => {
                let mut access: AccessSet = match coarse {
                    true => smallvec![
                        Access::new(Item::table(table), Mode::Insert),
                        Access::new(Item::key(table, PRIMARY_KEY, []), Mode::Exclusive),
                    ],
                    false => smallvec![
                        Access::new(new_row(table, key, group), Mode::Insert),
                        Access::new(primary_key(table, key), Mode::Exclusive),
                    ],
                };
                access.extend(unique.map(|unique| Access::new(unique_key(table, unique), Mode::Exclusive)));
                access.extend(
                    parent.map(|(table, key)| Access::new(Find::Key(key).item(table), Mode::KeyShared)),
                );
                access.extend(copies.map(|(table, key)| joined(Find::Key(key).item(table))));
                access
            }
            Plan::Delete { table, find } => {
                let mut access: AccessSet = smallvec![Access::new(find.item(table), Mode::Exclusive)];
                if let Find::Key(key) = find {
                    access.push(Access::new(primary_key(table, key), Mode::Exclusive));
                }
                access
            }
            Plan::Truncate { table } => smallvec![
                Access::new(Item::table(table), Mode::Exclusive),
                Access::new(Item::key(table, PRIMARY_KEY, []), Mode::Exclusive),
                Access::new(Item::key(table, UNIQUE_KEY, []), Mode::Exclusive),
                Access::new(Item::schema(table), Mode::Exclusive),
            ],
            Plan::Lock { table } => smallvec![
                Access::new(Item::table(table), Mode::Exclusive),
                Access::new(Item::schema(table), Mode::Exclusive),
            ],
            Plan::Unclassified { defines, .. } => {
                let space = if defines { Space::Schema } else { Space::Rows };
                let item = Item { space, ..Item::everything() };
                smallvec![Access::new(item, Mode::Exclusive)]
            }
            Plan::Images(_) => SmallVec::new(),
            Plan::Probe => smallvec![Access::new(Item::everything(), Mode::Exclusive)],
        }
    }

    /// Of its items those in whose place the answer shows others.
    fn shown(&self) -> Vec<Access> {
        match *self {
            Plan::Join { parents, .. } => vec![joined(Item::table(parents))],
            _ => Vec::new(),
        }
    }

    /// Whether it fails once it has shown its rows.
    #[must_use]
    pub fn fails(&self) -> bool {
        matches!(self, Plan::Join { fails: true, .. })
    }

    /// Items that only the answer shows: the unique values that a DELETE frees, and the rows that a join shows or, if those are
    /// more than `rows_max`, their table.
    #[must_use]
    pub fn returned(&self, answer: &Answer, rows_max: usize) -> Vec<Access> {
        if let Plan::Join { parents, .. } = *self {
            let rows = answer.joined.iter().map(|(key, _)| joined(Find::Key(*key).item(parents)));
            return if answer.joined.len() > rows_max { self.shown() } else { rows.collect() };
        }
        let Plan::Delete { table, find } = *self else { return Vec::new() };
        let mut items = Vec::new();
        for change in &answer.changes {
            if !matches!(find, Find::Key(_)) {
                items.push(primary_key(table, change.key));
            }
            let freed = change.before.as_ref().and_then(|row| row.unique);
            items.extend(freed.map(|unique| unique_key(table, unique)));
        }
        items.into_iter().map(|item| Access::new(item, Mode::Exclusive)).collect()
    }
}

impl Find {
    fn shape(self) -> u64 {
        match self {
            Find::Key(_) => 0,
            Find::Group(_) => 1,
            Find::All => 2,
        }
    }

    fn item(self, table: TableId) -> Item {
        match self {
            Find::Key(key) => Item::rows(table, [(KEY, value(key.0))]),
            Find::Group(group) => Item::rows(table, [(GROUP, value(group))]),
            Find::All => Item::table(table),
        }
    }

    /// Whether a row is one of those meant.
    #[must_use]
    pub fn matches(self, key: Key, row: &Row) -> bool {
        match self {
            Find::Key(wanted) => wanted == key,
            Find::Group(group) => group == row.group,
            Find::All => true,
        }
    }
}

/// All columns but the last value's.
fn all_but_last() -> ColumnSet {
    [KEY, GROUP, UNIQUE, VALUES, PARENT].into_iter().collect()
}

/// What a join, or an INSERT ... SELECT, reads of the rows of another table.
fn joined(item: Item) -> Access {
    Access::of_columns(item, Mode::Shared, [KEY, VALUES].into_iter().collect())
}

fn changed(item: Item, column: ColumnId) -> Access {
    Access::of_columns(item, Mode::NoKeyExclusive, ColumnSet::NONE.with(column))
}

fn new_row(table: TableId, key: Key, group: u64) -> Item {
    Item::rows(table, [(KEY, value(key.0)), (GROUP, value(group))])
}

fn primary_key(table: TableId, key: Key) -> Item {
    Item::key(table, PRIMARY_KEY, [(KEY, value(key.0))])
}

fn unique_key(table: TableId, unique: u64) -> Item {
    Item::key(table, UNIQUE_KEY, [(UNIQUE, value(unique))])
}

fn value(number: u64) -> ValueHash {
    ValueHash::of_integer(number as i64)
}
