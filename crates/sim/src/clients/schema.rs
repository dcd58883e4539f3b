//! The tables that simulated clients use, and which object of a history each row is.

use std::rc::Rc;

use onecopy_core::TableId;

use crate::check::{List, Operation, Register, Row as RowId, Table, Value};
use crate::database::Contents;
use crate::plan::{Answer, Find, Key, Plan, Row};

/// Tables whose rows are lists; a row appears with its first append.
pub(crate) const LISTS: [TableId; 2] = [TableId(1), TableId(2)];
/// A table whose rows are registers, all there from the start.
pub(crate) const REGISTERS: TableId = TableId(3);
/// Their last columns: registers as well.
const LASTS: TableId = TableId(6);
/// Tables whose rows come and go.
pub(crate) const SETS: [TableId; 2] = [TableId(4), TableId(5)];
/// The sequence that gives keys to rows.
pub(crate) const SEQUENCE: TableId = TableId(9);
/// A sequence that begins anew when it is used up.
pub(crate) const CYCLE: TableId = TableId(10);
/// Its values are from 1 to this.
pub(crate) const CYCLE_MAX: i64 = 8;

/// Rows of a list or register table belong to so many groups.
const KEY_GROUPS: u64 = 2;
/// Rows of a set belong to so many groups; each group of a set is a table of the history.
pub(crate) const SET_GROUPS: u64 = 3;

/// The group of a list or register.
pub(crate) fn group_of(key: Key) -> u64 {
    key.0 % KEY_GROUPS
}

/// What the databases contain before the first commit.
pub(crate) fn initial_contents(keys: u64) -> Contents {
    let register = |key| Row { group: group_of(key), ..Row::default() };
    (0..keys).map(Key).map(|key| ((REGISTERS, key), Rc::new(register(key)))).collect()
}

/// What a statement and its answer say in the words of a history; `keys` is how many lists or registers a table has.
pub(crate) fn operations(plan: &Plan, answer: &Answer, keys: u64) -> Vec<Operation> {
    match *plan {
        Plan::Read { table, find, .. } | Plan::ReadUnclassified { table, find } => {
            reads(table, find, answer, keys)
        }
        Plan::ReadLast { find, .. } => {
            let last = |key| answer.rows.iter().find(|(found, _)| *found == key)?.1.last.map(Value);
            let read = |key| Operation::Read { register: register(LASTS, key), value: last(key) };
            keys_of(find, keys).map(read).collect()
        }
        Plan::SetLast { table, find, .. } if SETS.contains(&table) => reads(table, find, answer, keys),
        Plan::SetLast { value, .. } => {
            let written = answer.changes.iter().map(|change| register(LASTS, change.key));
            written.map(|register| Operation::Write { register, value: Value(value) }).collect()
        }
        Plan::Append { table, find, value } => {
            let appended = |key| answer.changes.iter().any(|change| change.key == key);
            let append = |key| match appended(key) {
                true => Operation::Append { list: list(table, key), value: Value(value) },
                // An UPDATE that finds no row has seen that there is none.
                false => Operation::ReadList { list: list(table, key), values: Vec::new() },
            };
            keys_of(find, keys).map(append).collect()
        }
        Plan::Upsert { table, key, value, .. } => {
            vec![Operation::Append { list: list(table, key), value: Value(value) }]
        }
        Plan::Set { table, value, .. } | Plan::Unclassified { table, value, .. } => {
            let written = answer.changes.iter().map(|change| register(table, change.key));
            written.map(|register| Operation::Write { register, value: Value(value) }).collect()
        }
        Plan::Join { table, find, .. } => {
            let mut operations = reads(table, find, answer, keys);
            operations.extend(joined(answer));
            operations
        }
        Plan::Insert { table, key, group, .. } => {
            let mut operations: Vec<Operation> = joined(answer).collect();
            operations.push(Operation::Insert { table: set(table, group), row: RowId(key.0) });
            operations
        }
        Plan::Delete { table, find: Find::Key(_) } => deletes(table, answer),
        Plan::Delete { table, find } => {
            let mut operations = reads(table, find, answer, keys);
            operations.extend(deletes(table, answer));
            operations
        }
        Plan::Truncate { table } => {
            let mut operations = reads(table, Find::All, answer, keys);
            operations.extend(deletes(table, answer));
            operations
        }
        Plan::Lock { .. } | Plan::Images(_) | Plan::Probe => Vec::new(),
    }
}

fn reads(table: TableId, find: Find, answer: &Answer, keys: u64) -> Vec<Operation> {
    let row = |key| answer.rows.iter().find(|(found, _)| *found == key).map(|(_, row)| row);
    if LISTS.contains(&table) {
        let read = |key| {
            let values = row(key).map(|row| row.values.iter().copied().map(Value).collect());
            Operation::ReadList { list: list(table, key), values: values.unwrap_or_default() }
        };
        return keys_of(find, keys).map(read).collect();
    }
    if table == REGISTERS {
        let read = |key| {
            let value = row(key).and_then(|row| row.values.first().copied().map(Value));
            Operation::Read { register: register(table, key), value }
        };
        return keys_of(find, keys).map(read).collect();
    }
    let groups = match find {
        Find::Group(group) => group..group + 1,
        Find::All => 0..SET_GROUPS,
        Find::Key(_) => 0..0,
    };
    let scan = |group| {
        let of_group = answer.rows.iter().filter(|(_, row)| row.group == group);
        Operation::Scan { table: set(table, group), rows: of_group.map(|(key, _)| RowId(key.0)).collect() }
    };
    groups.map(scan).collect()
}

/// Reads of the registers that an answer shows beside the rows that refer to them.
fn joined(answer: &Answer) -> impl Iterator<Item = Operation> {
    answer.joined.iter().map(|(key, row)| Operation::Read {
        register: register(REGISTERS, *key),
        value: row.values.first().copied().map(Value),
    })
}

fn deletes(table: TableId, answer: &Answer) -> Vec<Operation> {
    let removed = answer.changes.iter().filter_map(|change| Some((change.key, change.before.as_ref()?)));
    removed.map(|(key, row)| Operation::Delete { table: set(table, row.group), row: RowId(key.0) }).collect()
}

/// The lists or registers that a condition means, whether there is a row or not.
fn keys_of(find: Find, keys: u64) -> impl Iterator<Item = Key> {
    (0..keys).map(Key).filter(move |key| match find {
        Find::Key(wanted) => wanted == *key,
        Find::Group(group) => group == group_of(*key),
        Find::All => true,
    })
}

fn list(table: TableId, key: Key) -> List {
    List(table.0 * 1_000 + key.0)
}

fn register(table: TableId, key: Key) -> Register {
    Register(table.0 * 1_000 + key.0)
}

fn set(table: TableId, group: u64) -> Table {
    Table(table.0 * 10 + group)
}
