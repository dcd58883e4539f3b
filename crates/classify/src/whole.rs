//! What a whole transaction may write, before it runs: for protocols that put transactions in order by that
//! (docs/protocols/chains.md).
//!
//! The analysis looks at each statement's text and at those of its parameters that are known before: what depends on an earlier
//! result is left out of [`Params`], so its columns are open and the item is wider. It may foresee too much, never too little. Source:
//! Cincilla and others, *Gargamel*, ICPADS 2012, section IV.A.

use onecopy_core::{Access, AccessSet, ColumnSet, Item, Mode, Space, TableId};

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

/// Adds what one execution of a statement may write, or refers to. Of its frozen values all are known, or none (`frozen` is empty).
///
/// Rows that a statement removes, changes or refers to are in its snapshot, and rows that another one adds are in no snapshot but its own; so
/// of who adds rows only the values of unique keys count, and of the others only the rows ([`onecopy_core::conflict_index::conflict`]).
/// What is neither a query nor a plain change of rows, such as TRUNCATE, may write everything.
pub fn foresee<P: Params + ?Sized>(
    class: &Class,
    sql: &str,
    layout: Layout<'_>,
    known: &P,
    frozen: &[FrozenValue],
    granularity: Granularity,
    foreseen: &mut AccessSet,
) {
    let is_plain = matches!(
        class.kind,
        Kind::Select | Kind::SelectLocking { .. } | Kind::Insert | Kind::Update | Kind::Delete
    );
    if !is_plain {
        let everything = Access::new(Item::everything(), Mode::Exclusive);
        foreseen.extend((!foreseen.contains(&everything)).then_some(everything));
        return;
    }
    let accesses = class.bind(sql, layout, known, frozen);
    // The keys of rows that are removed become free; those that it adds elsewhere, by a foreign key's default, count.
    let removes_from = |table: TableId| {
        let removed = |access: &Access| access.item.table == table && access.item.space == Space::Rows;
        class.kind == Kind::Delete && accesses.iter().any(|a| removed(a) && a.mode == Mode::Exclusive)
    };
    for access in &accesses {
        let counts = match (access.item.space, access.mode) {
            (Space::Rows, Mode::Shared | Mode::Insert) => false,
            (Space::Key(_), mode) => mode.writes() && !removes_from(access.item.table),
            (Space::Rows | Space::Schema, _) => true,
        };
        let access = match (access.mode, granularity) {
            (Mode::NoKeyExclusive, Granularity::Row) => Access { columns: ColumnSet::ALL, ..access.clone() },
            _ => access.clone(),
        };
        if !counts || foreseen.iter().any(|known| *known == access || says_more(known, &access)) {
            continue;
        }
        foreseen.retain(|known| !says_more(&access, known));
        foreseen.push(access);
    }
}

/// Whether one changes the row to which the other only refers: whoever removes that row conflicts with both.
fn says_more(one: &Access, other: &Access) -> bool {
    let changes = matches!(one.mode, Mode::NoKeyExclusive | Mode::Exclusive);
    other.mode == Mode::KeyShared && changes && one.item == other.item
}
