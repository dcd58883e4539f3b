//! What a whole transaction may write, before it runs: for protocols that put transactions in order by that
//! (docs/protocols/chains.md).
//!
//! The analysis looks at each statement's text and at those of its parameters that are known before: what depends on an earlier
//! result is left out of [`Params`], so its columns are open and the item is wider. It may foresee too much, never too little. Source:
//! Cincilla and others, *Gargamel*, ICPADS 2012, section IV.A.

use onecopy_core::{Access, AccessSet, ColumnSet, Mode, Space};

use crate::class::{Class, Kind};
use crate::lexer::Layout;
use crate::value::Params;

/// When two updates of one row conflict.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Granularity {
    /// If they change a column in common: of databases that could apply both.
    Cell,
    /// Always: of servers that lock rows, and of write sets that are rows.
    Row,
}

/// What conflicts are counted on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Counted {
    /// What is written: enough for (parallel) snapshot isolation.
    Writes,
    /// What is read as well: for serializability.
    ReadsAndWrites,
}

/// Adds what one execution of a statement may do, of that which counts.
///
/// Rows that a statement removes, changes or refers to are in its snapshot, and rows that another one adds are in no snapshot but its own; so
/// of who adds rows only the values of unique keys count, and of the others only the rows ([`onecopy_core::conflict_index::conflict`]).
pub fn foresee<P: Params + ?Sized>(
    class: &Class,
    sql: &str,
    layout: Layout<'_>,
    known: &P,
    granularity: Granularity,
    counted: Counted,
    foreseen: &mut AccessSet,
) {
    let removes = class.kind == Kind::Delete;
    for access in class.bind(sql, layout, known, &[]) {
        let counts = match (access.item.space, access.mode) {
            (Space::Rows, Mode::Shared | Mode::Insert) => counted == Counted::ReadsAndWrites,
            (Space::Key(_), mode) => mode.writes() && !removes,
            (Space::Rows | Space::Schema, _) => true,
        };
        let access = match (access.mode, granularity) {
            (Mode::NoKeyExclusive, Granularity::Row) => Access { columns: ColumnSet::ALL, ..access },
            _ => access,
        };
        if counts && !foreseen.contains(&access) {
            foreseen.push(access);
        }
    }
}
