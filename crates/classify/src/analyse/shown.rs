//! Joins by key: tables of which a query reads only rows that its answer shows.
//!
//! `SELECT ... FROM line JOIN item ON item.id = line.item WHERE line.cart = $1` names no row of `item`, so its text bounds nothing
//! there. But where a foreign key says that each line has exactly one item, the answer depends on these rows alone, and the
//! column `line.item`, if it is part of the answer, says which they are. That holds as long as nothing else asks for a row of
//! `item`: no other condition, no LIMIT, no aggregate, and no second use of the table.

use super::Analyser;
use super::block::{EntryColumns, ScopeId};
use super::facts::{Key, is_equality};
use crate::ast::{Body, Distinct, Expr, From, JoinKind, Query, Select, form_parts};
use crate::catalogue::ForeignKey;
use crate::template::{ItemTemplate, ShownColumn, ShownTemplate};
use onecopy_core::{ColumnId, Mode, Space};

/// The conditions of a query that its relations' rows meet, those of WHERE and of joins together.
#[derive(Default)]
struct Conditions {
    /// Columns that are compared with each other; with the relation, if that is asked of its rows alone, since it is the condition
    /// of a LEFT JOIN with it.
    equal: Vec<(Key, Key, Option<u32>)>,
    /// Columns of which anything else is asked.
    asked: Vec<Key>,
    /// Tables whose rows may be missing in the result: they stand on the right of a LEFT JOIN.
    optional: Vec<u32>,
}

impl<'a> Analyser<'a> {
    /// The tables of a statement, which is nothing but this query, of whose rows only those matter that its answer shows.
    pub(super) fn shown_by_answer(&self, query: &'a Query, items: &[ItemTemplate]) -> Vec<ShownTemplate> {
        let plain = query.with.is_none()
            && query.limit.is_none()
            && query.offset.is_none()
            && query.locking.is_empty()
            && query.into.is_none();
        let Body::Select(select) = &query.body else { return Vec::new() };
        let plain = plain
            && matches!(select.distinct, Distinct::None)
            && select.group_by.is_empty()
            && select.having.is_none()
            && select.windows.is_empty();
        // The first name space is the query's. A user's `=` may say something else than equality.
        let scope = 0;
        if !plain
            || self.scopes.len() != 1
            || self.catalogue().operators_named("=").any(|operator| operator.of_builtin_types)
        {
            return Vec::new();
        }
        self.shown_of_select(query, select, scope, items).unwrap_or_default()
    }

    fn shown_of_select(
        &self,
        query: &'a Query,
        select: &'a Select,
        scope: ScopeId,
        items: &[ItemTemplate],
    ) -> Option<Vec<ShownTemplate>> {
        let mut relations = Vec::new();
        for entry in &self.scopes[scope].entries {
            let EntryColumns::Table(relation) = entry.columns else { return None };
            relations.push((relation, self.relations.get(relation as usize).copied().flatten()?));
        }
        let names = self.scopes[scope].entries.iter().map(|entry| entry.name.as_str());
        if names.clone().any(|name| names.clone().filter(|other| *other == name).count() > 1) {
            return None;
        }
        let mut conditions = Conditions::default();
        for from in &select.from {
            self.conditions_of(from, scope, &mut conditions)?;
        }
        if let Some(filter) = &select.filter {
            self.note_condition(filter, scope, None, &mut conditions)?;
        }
        let output = self.output(select, scope)?;
        // What is computed to order rows may fail, and tell by that what they hold.
        let is_plain = |key: &Expr| matches!(key, Expr::Literal { .. } | Expr::Column { star: false, .. });
        if !query.order_by.iter().all(is_plain) {
            return None;
        }

        let mut shown = Vec::new();
        // Each with the relation whose rows say which of its own matter, and which is itself kept.
        let mut by: Vec<(u32, u32)> = Vec::new();
        for &(relation, table) in &relations {
            let t = self.table(table);
            let is_alone = relations.iter().filter(|(_, other)| *other == table).count() == 1
                && self.relations.iter().filter(|other| **other == Some(table)).count() == 1;
            if !is_alone || self.has_relatives(table) || t.row_security || t.rules {
                continue;
            }
            let id = t.id();
            let mut of_table = items.iter().filter(|item| item.table == id);
            let (Some(item), None) = (of_table.next(), of_table.next()) else { continue };
            if item.space != Space::Rows || item.mode != Mode::Shared || !item.columns.is_empty() {
                continue;
            }
            if by.iter().any(|(_, from)| *from == relation) {
                continue;
            }
            let is_kept = |from: u32| by.iter().all(|(shown, _)| *shown != from);
            let others = relations
                .iter()
                .filter(|(from, child)| *from != relation && is_kept(*from) && !self.has_relatives(*child));
            let columns = others.copied().find_map(|(from, child)| {
                let mut keys = self.table(child).foreign_keys.iter();
                let columns = keys
                    .find_map(|key| self.shown_columns(key, from, (relation, table), &conditions, &output))?;
                Some((from, columns))
            });
            if let Some((from, columns)) = columns {
                by.push((relation, from));
                shown.push(ShownTemplate { table: id, of: item.of, columns });
            }
        }
        Some(shown)
    }

    /// Where the answer shows the key of the rows that a foreign key refers to, if they are joined by it and by nothing else.
    fn shown_columns(
        &self,
        key: &ForeignKey,
        from: u32,
        (to, parent): (u32, usize),
        conditions: &Conditions,
        output: &[Option<Key>],
    ) -> Option<Vec<ShownColumn>> {
        let t = self.table(parent);
        // What may be deferred need not hold in between.
        if key.deferrable
            || !key.validated
            || key.parent != t.name
            || key.parent_schema != t.schema
            || conditions.optional.contains(&from)
        {
            return None;
        }
        let pairs: Vec<(Key, Key)> = key
            .columns
            .iter()
            .zip(&key.parent_columns)
            .map(|(column, parent)| ((from, *column), (to, *parent)))
            .collect();
        // What a LEFT JOIN with another relation asks holds for that one's rows only.
        let of_all = |of: Option<u32>| of.is_none_or(|of| of == to);
        let is_pair = |a: Key, b: Key| pairs.contains(&(a, b)) || pairs.contains(&(b, a));
        let joined = pairs.iter().all(|pair| {
            let mut equal = conditions.equal.iter();
            equal.any(|(a, b, of)| of_all(*of) && ((*a, *b) == *pair || (*b, *a) == *pair))
        });
        let mut equal = conditions.equal.iter().filter(|(a, b, _)| a.0 == to || b.0 == to);
        let by_nothing_else = conditions.asked.iter().all(|(relation, _)| *relation != to)
            && equal.all(|(a, b, of)| of_all(*of) && is_pair(*a, *b));
        if pairs.is_empty() || !joined || !by_nothing_else {
            return None;
        }
        pairs
            .into_iter()
            .map(|(child, parent)| {
                let (of_child, of_parent) = (self.canon(child)?, self.canon(parent)?);
                if std::mem::discriminant(&of_child) != std::mem::discriminant(&of_parent) {
                    return None;
                }
                let at = |wanted: Key| output.iter().position(|shown| *shown == Some(wanted));
                let (place, shown) = match (at(child), at(parent)) {
                    (Some(place), _) => (place, child),
                    (None, Some(place)) => (place, parent),
                    (None, None) => return None,
                };
                Some(ShownColumn {
                    column: ColumnId(parent.1),
                    place: u16::try_from(place).ok()?,
                    type_oid: self.column_of(shown)?.type_oid,
                    canon: of_parent,
                })
            })
            .collect()
    }

    /// Adds the conditions of joins; `None` if there is anything in FROM but tables joined INNER and LEFT.
    fn conditions_of(&self, from: &'a From, scope: ScopeId, conditions: &mut Conditions) -> Option<()> {
        match from {
            From::Table { only: false, alias, .. } => {
                alias.as_ref().is_none_or(|alias| alias.columns.is_empty()).then_some(())
            }
            From::Join { kind, left, right, on, using, natural: false, alias: None } if using.is_empty() => {
                self.conditions_of(left, scope, conditions)?;
                self.conditions_of(right, scope, conditions)?;
                let of = match kind {
                    JoinKind::Inner => None,
                    JoinKind::Left => {
                        let From::Table { name, alias, .. } = &**right else { return None };
                        let name = alias.as_ref().map_or(name.last(), |alias| alias.name.as_str());
                        let entry = self.scopes[scope].entries.iter().find(|entry| entry.name == name)?;
                        let EntryColumns::Table(relation) = entry.columns else { return None };
                        conditions.optional.push(relation);
                        Some(relation)
                    }
                    JoinKind::Right | JoinKind::Full => return None,
                };
                on.as_ref().map_or(Some(()), |on| self.note_condition(on, scope, of, conditions))
            }
            _ => None,
        }
    }

    /// Adds a condition, which is asked of the rows of one relation alone if it is that of a LEFT JOIN.
    fn note_condition(
        &self,
        condition: &Expr,
        scope: ScopeId,
        of: Option<u32>,
        conditions: &mut Conditions,
    ) -> Option<()> {
        match condition {
            Expr::And(parts) => {
                parts.iter().try_for_each(|part| self.note_condition(part, scope, of, conditions))
            }
            Expr::Operator { name, left: Some(left), right: Some(right) } if is_equality(name) => {
                match (self.plain_column(left, scope), self.plain_column(right, scope)) {
                    (Some(left), Some(right)) => conditions.equal.push((left, right, of)),
                    _ => self.columns_in(condition, scope, &mut conditions.asked)?,
                }
                Some(())
            }
            other => self.columns_in(other, scope, &mut conditions.asked),
        }
    }

    fn plain_column(&self, expr: &Expr, scope: ScopeId) -> Option<Key> {
        match expr {
            Expr::Column { path, star: false, .. } => self.resolve_column(scope, path),
            _ => None,
        }
    }

    /// Adds the columns that an expression uses; `None` if it does anything but compute from them.
    fn columns_in(&self, expr: &Expr, scope: ScopeId, columns: &mut Vec<Key>) -> Option<()> {
        let mut all =
            |parts: &[Expr]| parts.iter().try_for_each(|part| self.columns_in(part, scope, columns));
        match expr {
            Expr::Column { path, star: false, .. } => columns.push(self.resolve_column(scope, path)?),
            Expr::Literal { .. } | Expr::Param { .. } => {}
            Expr::And(parts) | Expr::Or(parts) | Expr::Row(parts) | Expr::Array(parts) => all(parts)?,
            Expr::Form(parts) => all(form_parts(parts))?,
            Expr::Chain { operands, .. } => all(operands)?,
            Expr::Operator { left, right, .. } => {
                left.iter().chain(right).try_for_each(|part| all(std::slice::from_ref(part)))?;
            }
            Expr::In { left, list, .. } => {
                all(std::slice::from_ref(left))?;
                all(list)?;
            }
            Expr::OfArray { left, right, .. } => {
                all(std::slice::from_ref(left))?;
                all(std::slice::from_ref(right))?;
            }
            Expr::Not(part) | Expr::Cast { value: part, .. } => all(std::slice::from_ref(part))?,
            _ => return None,
        }
        Some(())
    }

    /// The columns of the answer, in order: which column of which relation each is, if it is one as it is.
    fn output(&self, select: &Select, scope: ScopeId) -> Option<Vec<Option<Key>>> {
        let mut output = Vec::new();
        for target in &select.targets {
            match &target.value {
                Expr::Column { path, star: true, .. } => {
                    for entry in &self.scopes[scope].entries {
                        let EntryColumns::Table(relation) = entry.columns else { return None };
                        if path.last().is_none_or(|alias| *alias == entry.name) {
                            let table = self.relations.get(relation as usize).copied().flatten()?;
                            let columns = self.shape(relation, table).columns.iter();
                            output.extend(columns.map(|column| Some((relation, column.number))));
                        }
                    }
                }
                Expr::Column { path, .. } => output.push(Some(self.resolve_column(scope, path)?)),
                Expr::Literal { .. } | Expr::Param { .. } => output.push(None),
                _ => return None,
            }
        }
        Some(output)
    }
}
