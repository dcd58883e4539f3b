//! The items that changes of rows take: the rows, the keys they create and free, and the rows of other tables
//! that foreign keys tie to them.

use super::{Analyser, facts::Key};
use crate::catalogue::{Column, ForeignKey, Table, UniqueKey};
use crate::template::{ColumnTemplate, ItemTemplate, NullRule, Operand, Source, Values};
use crate::value::Canon;
use onecopy_core::{ColumnId, ColumnSet, Mode, Space};
use std::collections::{BTreeMap, HashMap};

/// The most columns that the item of an inserted row names.
const INSERT_COLUMNS_MAX: usize = 8;

/// The values of columns that every affected row has.
pub(super) type Known = HashMap<u16, Values>;

/// The columns that an UPDATE sets, with the value where the text shows it.
pub(super) type Assigned = BTreeMap<u16, Option<Operand>>;

impl<'a> Analyser<'a> {
    /// Rows that are read, or locked by a locking clause, in a table and those that inherit from it.
    pub(super) fn read_rows(&mut self, table: usize, only: bool, known: &Known, mode: Mode) {
        self.read_columns(table, only, known, mode, ColumnSet::ALL);
    }

    /// The same, of some columns.
    pub(super) fn read_columns(
        &mut self,
        table: usize,
        only: bool,
        known: &Known,
        mode: Mode,
        of: ColumnSet,
    ) {
        let item = ItemTemplate { of, ..self.rows_item(table, known, mode, NullRule::Skip) };
        self.push_item(item);
        self.note_columns(table, of);
        if !only {
            self.for_inheritors(table, known, |a, child, known| a.read_rows(child, false, known, mode));
        }
    }

    /// A new row.
    pub(super) fn insert_row(&mut self, table: usize, row: &Known) {
        // An item for a row names every indexed column that is shown: readers by any of them are told apart.
        let mut columns = self.columns(table, row, |t, c| t.is_indexed(c));
        let t = self.table(table);
        if columns.len() > INSERT_COLUMNS_MAX {
            // Readers ask for keys and for values rather than for NULL.
            let in_key =
                |c: &ColumnTemplate| t.primary_key().is_some_and(|k| k.columns.contains(&c.column.0));
            let is_null =
                |c: &ColumnTemplate| matches!(&c.values, Values::One(o) if o.source == Source::Null);
            columns.sort_by_key(|c| (!in_key(c), is_null(c), c.column));
            columns.truncate(INSERT_COLUMNS_MAX);
            columns.sort_by_key(|c| c.column);
        }
        let id = self.item_id(table);
        self.push_item(ItemTemplate {
            table: id,
            space: Space::Rows,
            mode: Mode::Insert,
            of: ColumnSet::ALL,
            columns,
            null: NullRule::Value,
        });
        for key in &self.table(table).unique {
            self.key_item(table, key, row);
        }
        if self.table(table).exclusion {
            self.push_whole_table(id, Mode::Exclusive);
        }
        for fk in &self.table(table).foreign_keys {
            self.parent_item(fk, row);
        }
        self.partition_extras(table);
    }

    /// Rows that change: those described by `old` get the assigned values.
    pub(super) fn update_rows(&mut self, table: usize, old: &Known, set: &Assigned) {
        let t = self.table(table);
        let referenced = self.catalogue().references(table);
        let in_key = |c: &u16| t.unique.iter().any(|k| touches(k, *c));
        let is_referenced = |c: &u16| {
            referenced.iter().any(|(child, fk)| self.parent_numbers(table, *child, *fk).contains(&Some(*c)))
        };
        let rekeyed = set.keys().any(|c| in_key(c) || is_referenced(c));
        let mode = if rekeyed { Mode::Exclusive } else { Mode::NoKeyExclusive };
        let mut new = old.clone();
        for (column, operand) in set {
            match operand {
                Some(operand) => new.insert(*column, Values::One(*operand)),
                None => new.remove(column),
            };
        }
        let of = if rekeyed { ColumnSet::ALL } else { self.changed_columns(table, set) };
        self.note_columns_beside(table, set);
        let before = ItemTemplate { of, ..self.rows_item(table, old, mode, NullRule::Skip) };
        let named = |item: &ItemTemplate| item.columns.iter().any(|c| set.contains_key(&c.column.0));
        let moves = named(&before);
        self.push_item(before);
        if moves {
            // The row leaves the item by which it was found: where it goes is an item as well.
            let after = ItemTemplate { of, ..self.rows_item(table, &new, mode, NullRule::Value) };
            self.push_item(after);
        }
        if t.exclusion {
            let id = self.item_id(table);
            self.push_whole_table(id, Mode::Exclusive);
        }
        for key in &t.unique {
            if set.keys().any(|c| touches(key, *c)) {
                self.key_item(table, key, old);
                self.key_item(table, key, &new);
                let id = self.item_id(table);
                self.rekeyed.push(id);
            }
        }
        let (set_anew, kept): (Vec<_>, Vec<_>) =
            t.foreign_keys.iter().partition(|fk| fk.columns.iter().any(|c| set.contains_key(c)));
        set_anew.into_iter().for_each(|fk| self.parent_item(fk, &new));
        let columns: Vec<u16> = set.keys().copied().collect();
        let moves_on = !kept.is_empty() && self.may_move(table, &columns);
        self.check_again(table, &kept, &new, moves_on);
        for (child, fk) in referenced {
            let numbers = self.parent_numbers(table, *child, *fk);
            if numbers.iter().flatten().any(|c| set.contains_key(c)) {
                let fk = &self.table(*child).foreign_keys[*fk];
                self.child_rows(*child, fk, &numbers, old, fk.on_update, Some(&new));
            }
        }
        self.partition_extras(table);
    }

    /// Rows that go.
    pub(super) fn delete_rows(&mut self, table: usize, old: &Known) {
        let item = self.rows_item(table, old, Mode::Exclusive, NullRule::Skip);
        self.push_item(item);
        for key in &self.table(table).unique {
            self.key_item(table, key, old);
        }
        for (child, fk) in self.catalogue().references(table) {
            let numbers = self.parent_numbers(table, *child, *fk);
            let fk = &self.table(*child).foreign_keys[*fk];
            self.child_rows(*child, fk, &numbers, old, fk.on_delete, None);
        }
        self.partition_extras(table);
    }

    /// Calls `then` for every table that inherits from a table, with what is known by its own column numbers.
    /// Partitions count as their root, which is the table itself.
    pub(super) fn for_inheritors(
        &mut self,
        table: usize,
        known: &Known,
        mut then: impl FnMut(&mut Analyser<'a>, usize, &Known),
    ) {
        for child in self.catalogue().children(table).to_vec() {
            if !self.table(child).is_partition {
                let mapped = self.by_own_numbers(table, child, known);
                then(self, child, &mapped);
            }
        }
    }

    /// What is known of a table's columns, by the numbers that another table gives to columns of those names.
    pub(super) fn by_own_numbers(&self, from: usize, to: usize, known: &Known) -> Known {
        let (from, to) = (self.table(from), self.table(to));
        known
            .iter()
            .filter_map(|(number, values)| {
                let name = &from.column_by_number(*number)?.name;
                Some((to.column(name)?.number, values.clone()))
            })
            .collect()
    }

    /// Notes that a table is touched; for policies and foreign tables that means more.
    pub(super) fn note_table(&mut self, table: usize, writes: bool) {
        let t = self.table(table);
        if t.kind == 'f' {
            self.unreplayable("a foreign table's rows lie outside the database");
            if writes {
                self.refuse(
                    format!("table {} is foreign: its rows lie outside the database", t.name),
                    "write to it on the server that holds it",
                );
            }
        }
        if t.row_security {
            self.policies(table);
        }
        self.casts_beside(t);
        let id = self.item_id(table);
        if !self.tables.contains(&id) {
            self.tables.push(id);
        }
    }

    /// What ties only some partitions of a table: unique keys, foreign keys and exclusion constraints that their
    /// root does not have.
    fn partition_extras(&mut self, table: usize) {
        for partition in self.catalogue().partitions(table) {
            let t = self.table(partition);
            if !t.unique.is_empty() || t.exclusion || !t.foreign_keys.is_empty() {
                let id = self.item_id(table);
                self.push_whole_table(id, Mode::Exclusive);
            }
            for fk in &t.foreign_keys {
                self.parent_item(fk, &Known::new());
            }
        }
    }

    fn child_rows(
        &mut self,
        child: usize,
        fk: &'a ForeignKey,
        numbers: &[Option<u16>],
        old: &Known,
        action: char,
        new: Option<&Known>,
    ) {
        // No text says what is read of them.
        self.note_columns(child, ColumnSet::ALL);
        if self.table(child).is_partition {
            let id = self.item_id(child);
            self.push_whole_table(id, Mode::Exclusive);
            self.cascade_triggers(child, action == 'c' && new.is_none(), &fk.columns);
            if matches!(action, 'n' | 'd') || action == 'c' && new.is_some() {
                self.checks(child);
            }
            return;
        }
        let key = (crate::lexer::hash_bytes(self.table(child).name.as_bytes()), u64::from(u32::from(action)));
        let mapped = |known: &Known| -> Known {
            let pairs = fk.columns.iter().zip(numbers);
            pairs.filter_map(|(own, parent)| Some((*own, known.get(&(*parent)?)?.clone()))).collect()
        };
        let rows = mapped(old);
        match action {
            'a' | 'r' => {
                let item = self.rows_item(child, &rows, Mode::Shared, NullRule::Skip);
                self.push_item(item);
            }
            // A cascade that comes back to a table under way takes all of it.
            _ if self.active.contains(&key) || self.active.len() > 16 || !self.spend() => {
                let id = self.item_id(child);
                self.push_whole_table(id, Mode::Exclusive);
            }
            action => {
                self.active.push(key);
                self.cascade_triggers(child, action == 'c' && new.is_none(), &fk.columns);
                match (action, new) {
                    ('c', None) => self.delete_rows(child, &rows),
                    (action, new) => {
                        self.checks(child);
                        if action == 'd' {
                            self.default_by_cascade(child, fk);
                        }
                        let cascaded = match (action, new) {
                            ('c', Some(new)) => mapped(new),
                            _ => Known::new(),
                        };
                        let set: Assigned = fk
                            .columns
                            .iter()
                            .map(|c| {
                                let value = match (action, cascaded.get(c)) {
                                    ('n', _) => Some(Operand {
                                        source: Source::Null,
                                        usage: crate::value::Use::Store,
                                    }),
                                    (_, Some(Values::One(operand))) => Some(*operand),
                                    _ => None,
                                };
                                (*c, value)
                            })
                            .collect();
                        self.update_rows(child, &rows, &set);
                    }
                }
                self.active.pop();
            }
        }
    }

    /// ON DELETE or ON UPDATE SET DEFAULT: the servers compute the defaults, each by itself.
    fn default_by_cascade(&mut self, child: usize, fk: &ForeignKey) {
        let t = self.table(child);
        let columns = t.columns.iter().filter(|c| fk.columns.contains(&c.number));
        for column in columns {
            if !self.is_constant_default(column) {
                self.refuse(
                    format!(
                        "a foreign key sets column {} of {} to its default, which may differ between replicas",
                        column.name, t.name
                    ),
                    "give the column a constant default, or change its rows by a statement of its own before",
                );
            }
        }
    }

    /// Rows of a table with known values: named by the primary key if all of it is known, else by every indexed
    /// column that is.
    fn rows_item(&self, table: usize, known: &Known, mode: Mode, null: NullRule) -> ItemTemplate {
        let t = self.table(table);
        let columns = match t.primary_key() {
            Some(key) if key.columns.iter().all(|c| self.is_shown(t, *c, known)) => {
                self.columns(table, known, |_, c| key.columns.contains(&c))
            }
            _ => self.columns(table, known, |t, c| t.is_indexed(c)),
        };
        let of = ColumnSet::ALL;
        ItemTemplate { table: self.item_id(table), space: Space::Rows, mode, of, columns, null }
    }

    /// One value of a unique key, which somebody creates or frees.
    fn key_item(&mut self, table: usize, key: &UniqueKey, known: &Known) {
        let columns = self.columns(table, known, |_, c| key.columns.contains(&c));
        let null = if key.nulls_equal { NullRule::Value } else { NullRule::Skip };
        let item = ItemTemplate {
            table: self.item_id(table),
            space: Space::Key(key.id()),
            mode: Mode::Exclusive,
            of: ColumnSet::ALL,
            columns,
            null,
        };
        self.push_item(item);
    }

    /// The row to which a foreign key refers: its table (partitions as their root), and what is known of it. `None` if there is
    /// no such table.
    fn parent_row(&self, fk: &ForeignKey, row: &Known) -> Option<(usize, Known)> {
        let parent = self.catalogue().table(&fk.parent_schema, &fk.parent)?;
        let root = self.catalogue().partition_root(parent);
        let mut known = Known::new();
        for (own, number) in fk.columns.iter().zip(&fk.parent_columns) {
            let name = parent.column_by_number(*number).map(|c| c.name.as_str());
            let column = name.and_then(|n| root.column(n));
            if let (Some(values), Some(column)) = (row.get(own), column) {
                known.insert(column.number, values.clone());
            }
        }
        Some((self.catalogue().table_index(root)?, known))
    }

    /// The row that a foreign key refers to: it must exist and go on existing.
    fn parent_item(&mut self, fk: &ForeignKey, row: &Known) {
        let (Some((index, known)), Some(parent)) =
            (self.parent_row(fk, row), self.catalogue().table(&fk.parent_schema, &fk.parent))
        else {
            self.touch_everything(Mode::Shared);
            return;
        };
        let root = self.table(index);
        let item = self.rows_item(index, &known, Mode::KeyShared, NullRule::Skip);
        self.push_item(item);
        // Whoever creates or frees the key decides whether the parent exists.
        let names = |k: &&UniqueKey| {
            k.columns.len() == fk.parent_columns.len()
                && k.columns.iter().all(|c| {
                    let name = root.column_by_number(*c).map(|c| c.name.as_str());
                    fk.parent_columns
                        .iter()
                        .any(|n| parent.column_by_number(*n).map(|c| c.name.as_str()) == name)
                })
        };
        for key in root.unique.iter().filter(names) {
            let columns = self.columns(index, &known, |_, c| key.columns.contains(&c));
            self.push_item(ItemTemplate {
                table: self.item_id(index),
                space: Space::Key(key.id()),
                mode: Mode::KeyShared,
                of: ColumnSet::ALL,
                columns,
                null: NullRule::Skip,
            });
        }
    }

    /// Foreign keys whose columns an UPDATE does not set. Servers check them nevertheless, and lock the rows to which they refer,
    /// where the same transaction has changed the row before (PostgreSQL: `RI_FKey_fk_upd_check_required`), and where the row
    /// moves to another partition, in which it is made anew (`at_once`). What functions or foreign keys change may have been
    /// changed before by the same statement. Nobody who adds rows there or changes their keys matters: the row is there.
    fn check_again(&mut self, table: usize, keys: &[&'a ForeignKey], row: &Known, at_once: bool) {
        for fk in keys {
            let Some((parent, known)) = self.parent_row(fk, row) else {
                self.touch_everything(Mode::Shared);
                continue;
            };
            let item = self.rows_item(parent, &known, Mode::KeyShared, NullRule::Skip);
            if at_once || self.nesting > 0 || !self.active.is_empty() {
                self.push_item(item.clone());
            }
            if !item.is_empty() && !self.rechecked.parents.contains(&item) {
                self.rechecked.parents.push(item);
            }
            let id = self.item_id(table);
            if !self.rechecked.tables.contains(&id) {
                self.rechecked.tables.push(id);
            }
        }
    }

    fn columns(
        &self,
        table: usize,
        known: &Known,
        wanted: impl Fn(&Table, u16) -> bool,
    ) -> Vec<ColumnTemplate> {
        let t = self.table(table);
        let mut columns: Vec<ColumnTemplate> = known
            .iter()
            .filter(|(number, _)| wanted(t, **number))
            .filter_map(|(number, values)| {
                let canon = Canon::of(t.column_by_number(*number)?)?;
                Some(ColumnTemplate { column: ColumnId(*number), canon, values: values.clone() })
            })
            .collect();
        columns.sort_by_key(|c| c.column);
        columns
    }

    fn is_shown(&self, table: &Table, number: u16, known: &Known) -> bool {
        let has_form = |c: &Column| Canon::of(c).is_some();
        known.contains_key(&number) && table.column_by_number(number).is_some_and(has_form)
    }

    pub(super) fn item_id(&self, table: usize) -> onecopy_core::TableId {
        self.catalogue().item_table(self.table(table))
    }

    /// The numbers that a table gives to the columns to which a foreign key refers, which may be those of one of
    /// its partitions.
    pub(super) fn parent_numbers(&self, table: usize, child: usize, fk: usize) -> Vec<Option<u16>> {
        let (root, fk) = (self.table(table), &self.table(child).foreign_keys[fk]);
        let parent = self.catalogue().table(&fk.parent_schema, &fk.parent);
        let number = |n: &u16| Some(root.column(&parent?.column_by_number(*n)?.name)?.number);
        fk.parent_columns.iter().map(number).collect()
    }

    /// What facts say of a relation's columns.
    pub(super) fn known_of(&self, relation: u32, table: usize, facts: &super::facts::Facts) -> Known {
        let key = |c: &Column| -> Key { (relation, c.number) };
        self.table(table)
            .columns
            .iter()
            .filter_map(|c| Some((c.number, facts.values(key(c))?.clone())))
            .collect()
    }
}

/// Whether a change of a column may create or free a value of a key.
pub(super) fn touches(key: &UniqueKey, column: u16) -> bool {
    key.columns.contains(&column)
        || key.depends.contains(&column)
        || (key.depends.is_empty() && (key.partial || key.columns.contains(&0)))
}
