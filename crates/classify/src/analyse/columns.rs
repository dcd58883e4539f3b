//! Of which columns an access is: a reader of some does not mind that others change.
//!
//! A column that a statement reads is named in it, or meant by a `*`, by the name of its table (which stands for the whole
//! row), or by NATURAL. So what a statement reads of a table is at most the columns whose names it mentions anywhere; to which
//! of its tables a name belongs need not be known. Where the text is another one (a view's, a function's), where columns go by
//! other names, and where tables inherit, all columns are taken.

use super::Analyser;
use super::expr::is_system_column;
use super::locks::Assigned;
use crate::ast::Star;
use crate::catalogue::ForeignKey;
use onecopy_core::{ColumnId, ColumnSet};

impl Analyser<'_> {
    /// The columns of a table that a reader may see, which calls it `shown`.
    pub(super) fn mentioned_columns(&self, table: usize, shown: &str) -> ColumnSet {
        let Some(mentions) = self.mentions else { return ColumnSet::ALL };
        let t = self.table(table);
        if mentions.natural || self.has_relatives(table) || t.row_security || t.rules {
            return ColumnSet::ALL;
        }
        let mut columns = ColumnSet::NONE;
        for (path, star) in &mentions.paths {
            let (last, before) = match path.as_slice() {
                [] => return ColumnSet::ALL,
                [last] => (last, None),
                [.., before, last] => (last, Some(before)),
            };
            if *star == Star::Yes {
                if last == shown {
                    return ColumnSet::ALL;
                }
                continue;
            }
            match t.column(last) {
                _ if is_system_column(last) || before.is_none() && last == shown => return ColumnSet::ALL,
                Some(column) => columns = columns.with(ColumnId(column.number)),
                // A function of the row.
                None if before.is_some_and(|before| before == shown) => return ColumnSet::ALL,
                None => {}
            }
        }
        columns
    }

    /// Notes what is read of rows of a table.
    pub(super) fn note_columns(&mut self, table: usize, of: ColumnSet) {
        let known = self.columns_read.entry(self.item_id(table)).or_insert(ColumnSet::NONE);
        *known = known.union(of);
    }

    /// Notes what is read of rows that a statement changes or removes, which calls their table `shown`.
    pub(super) fn note_columns_of_target(&mut self, table: usize, shown: &str, body: bool) {
        let of = if body { ColumnSet::ALL } else { self.mentioned_columns(table, shown) };
        self.note_columns(table, of);
    }

    /// Notes what else of a row that changes must be known: what checks, triggers and computed columns look at, and the other columns
    /// of a foreign key.
    pub(super) fn note_columns_beside(&mut self, table: usize, set: &Assigned) {
        let t = self.table(table);
        let looks_at_all = !t.checks.is_empty()
            || !t.triggers.is_empty()
            || t.columns.iter().any(|column| column.generated.is_some());
        let is_set = |fk: &&ForeignKey| fk.columns.iter().any(|column| set.contains_key(column));
        let of = match looks_at_all {
            true => ColumnSet::ALL,
            false => t
                .foreign_keys
                .iter()
                .filter(is_set)
                .flat_map(|fk| &fk.columns)
                .copied()
                .map(ColumnId)
                .collect(),
        };
        self.note_columns(table, of);
    }

    /// The columns of rows that an UPDATE changes. One that is set to what it holds does not change by its value, but may by
    /// how that is written (1.0 and 1.00), and its row is locked by the server in any case.
    pub(super) fn changed_columns(&self, table: usize, set: &Assigned) -> ColumnSet {
        let t = self.table(table);
        if self.sets_equal || !t.triggers.is_empty() || t.rules || self.has_relatives(table) {
            return ColumnSet::ALL;
        }
        let computed =
            t.columns.iter().filter(|column| column.generated.is_some()).map(|column| column.number);
        set.keys().copied().chain(computed).map(ColumnId).collect()
    }

    /// Whether others inherit from a table, or it from them: they number their columns differently.
    pub(super) fn has_relatives(&self, table: usize) -> bool {
        !self.table(table).parents.is_empty() || !self.catalogue().children(table).is_empty()
    }
}
