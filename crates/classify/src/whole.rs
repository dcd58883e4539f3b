//! What a whole transaction may do, before it runs: for protocols that put transactions in order by that
//! (docs/protocols/chains.md).
//!
//! The analysis looks at each statement's text and at those of its parameters that are known before: what depends on an earlier
//! result is left out of [`Params`], so its columns are open and the item is wider. It may foresee too much, never too little. Source:
//! Cincilla and others, *Gargamel*, ICPADS 2012, section IV.A; that reads count as well is its section VII.

use onecopy_core::{Access, AccessSet, ColumnId, ColumnSet, Item, Mode, Space, TableId};

use crate::class::{Class, Kind};
use crate::lexer::Layout;
use crate::rewrite::FrozenValue;
use crate::value::Params;

/// When two updates of one row conflict.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Granularity {
    /// If they change a column in common: of databases that could apply both.
    Cell,
    /// Always: of servers that lock rows, and of write sets that are rows.
    Row,
}

/// Whether what a transaction reads is foreseen, too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reads {
    /// It is not: for parallel snapshot isolation.
    Ignored,
    /// It is, so that all that conflict are in order: for 1-copy serializability.
    Counted,
}

/// What counts as a conflict.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conflicts {
    /// Of two updates of one row.
    pub granularity: Granularity,
    /// Of who reads and who writes.
    pub reads: Reads,
}

/// What all updates of a row have in common by [`Granularity::Row`], beside the columns that they change, and readers do not.
const ROW: ColumnId = ColumnId(u16::MAX);

/// Adds what one execution of a statement may write, or refers to, and if they count what it may read. Of its frozen values all are known,
/// or none (`frozen` is empty).
///
/// Rows that a statement removes, changes or refers to are in its snapshot, and rows that another one adds are in no snapshot but its own; so
/// of who adds rows only the values of unique keys count, and of the others only the rows ([`onecopy_core::conflict_index::conflict`]).
/// If reads count, that a row is there or not is read, too: by whoever looks for rows in order to read, change or remove them, and by whoever adds
/// a key. What is neither a query nor a plain change of rows, such as TRUNCATE, may write everything.
pub fn foresee<P: Params + ?Sized>(
    class: &Class,
    sql: &str,
    layout: Layout<'_>,
    known: &P,
    frozen: &[FrozenValue],
    Conflicts { granularity, reads }: Conflicts,
    foreseen: &mut AccessSet,
) {
    let is_plain = matches!(
        class.kind,
        Kind::Select | Kind::SelectLocking { .. } | Kind::Insert | Kind::Update | Kind::Delete
    );
    if !is_plain {
        return add(Access::new(Item::everything(), Mode::Exclusive), foreseen);
    }
    let is_read = |table: TableId, space: Space, mode: Mode| match (space, mode) {
        (Space::Rows, Mode::Shared | Mode::Insert) => true,
        // The keys of rows that are removed become free; those that it gives to others, by a foreign key's default, count.
        (Space::Key(_), mode) => !mode.writes() || class.only_frees_keys_of(table),
        (Space::Rows | Space::Schema, _) => false,
    };
    let counts =
        |table: TableId, space: Space, mode: Mode| reads == Reads::Counted || !is_read(table, space, mode);
    for access in class.access.bind_those(sql, layout, known, frozen, counts) {
        if reads == Reads::Counted && finds_rows(&access) {
            let named: ColumnSet = access.item.equals.iter().map(|(column, _)| *column).collect();
            let columns = class.columns_read(access.item.table).union(named);
            add(Access::of_columns(access.item.clone(), Mode::Shared, columns), foreseen);
        }
        let columns = match (access.mode, granularity, reads) {
            (Mode::NoKeyExclusive, Granularity::Row, Reads::Ignored) => ColumnSet::ALL,
            (Mode::NoKeyExclusive, Granularity::Row, Reads::Counted) => access.columns.with(ROW),
            _ => access.columns,
        };
        add(Access { columns, ..access }, foreseen);
    }
}

/// Whether rows were looked for in order to change, remove or lock them.
fn finds_rows(access: &Access) -> bool {
    let changes = matches!(access.mode, Mode::NoKeyExclusive | Mode::Exclusive);
    changes && access.item.space == Space::Rows && access.item.table != TableId::ALL
}

/// Adds an access, to what is foreseen of the same rows if there is any.
fn add(access: Access, foreseen: &mut AccessSet) {
    let mut said_more = None;
    for (at, known) in foreseen.iter_mut().enumerate() {
        if known.item != access.item {
            continue;
        }
        if known.mode == access.mode {
            known.columns = known.columns.union(access.columns);
            return;
        }
        if says_more(known.mode, access.mode) {
            return;
        }
        if says_more(access.mode, known.mode) {
            said_more = Some(at);
        }
    }
    match said_more {
        Some(at) => foreseen[at] = access,
        None => foreseen.push(access),
    }
}

/// Whether one changes the row to which the other only refers: whoever removes that row conflicts with both.
fn says_more(one: Mode, other: Mode) -> bool {
    other == Mode::KeyShared && matches!(one, Mode::NoKeyExclusive | Mode::Exclusive)
}
