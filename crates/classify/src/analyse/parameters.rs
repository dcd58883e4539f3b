//! Which constants of a statement may become parameters: see [`crate::parameterise`].

use super::Analyser;
use crate::ast::{Body, Expr, Literal, Statement};
use crate::catalogue::{Column, Table};
use crate::class::Bulk;
use crate::lexer::ConstKind;
use crate::parameterise::{Parameterised, ReplayParam};
use crate::rewrite::{Piece, Rewrite};
use crate::template::{AccessTemplate, Values};
use crate::value::oid;
use onecopy_core::Space;
use std::collections::BTreeMap;

impl<'a> Analyser<'a> {
    /// The statement with all its constants as parameters, or None if some constant must stay in the text.
    /// `is_keyed`: everything that it touches is found by values of columns.
    pub(super) fn parameterised(
        &mut self,
        statement: &'a Statement,
        rewrite: &Rewrite,
        is_keyed: bool,
    ) -> Option<Parameterised> {
        if self.params.keys().next().is_some() || self.pin_all {
            return None;
        }
        let mut form = Form { params: BTreeMap::new() };
        match statement {
            Statement::Query(query) => {
                let Body::Select(select) = &query.body else { return None };
                // A plan for any value is as good as one for this value only where the key leads to the rows.
                if query.with.is_some() || query.into.is_some() || !rewrite.is_empty() || !is_keyed {
                    return None;
                }
                if let Some(filter) = &select.filter {
                    self.condition(filter, None, &mut form)?;
                }
                if let Some(Expr::Literal { value: Literal::Int(_), at }) = &query.limit {
                    self.number(*at, &mut form)?;
                }
            }
            Statement::Insert(insert) => {
                let table = self.plain_table(&insert.table)?;
                let plain =
                    insert.with.is_none() && insert.on_conflict.is_none() && insert.returning.is_none();
                let query = insert.source.as_deref()?;
                let Body::Values(rows) = &query.body else { return None };
                if !plain || rows.len() != 1 || query.limit.is_some() || query.offset.is_some() {
                    return None;
                }
                let named: Option<Vec<&Column>> =
                    insert.columns.iter().map(|c| table.column(c.name.as_deref()?)).collect();
                let named = named?;
                let columns: Vec<&Column> =
                    if named.is_empty() { table.columns.iter().collect() } else { named };
                if insert.columns.iter().any(|c| c.partial) {
                    return None;
                }
                for (value, column) in rows[0].iter().zip(&columns) {
                    self.assigned_value(value, column, &mut form)?;
                }
            }
            Statement::Update(update) => {
                let table = self.plain_table(&update.table)?;
                if update.with.is_some() || !update.from.is_empty() || update.returning.is_some() {
                    return None;
                }
                for target in &update.set {
                    let column = table.column(target.name.as_deref()?).filter(|_| !target.partial)?;
                    self.assigned_value(&target.value, column, &mut form)?;
                }
                if let Some(filter) = &update.filter {
                    self.condition(filter, Some(table), &mut form)?;
                }
            }
            Statement::Delete(delete) => {
                let table = self.plain_table(&delete.table)?;
                if delete.with.is_some() || !delete.using.is_empty() || delete.returning.is_some() {
                    return None;
                }
                if let Some(filter) = &delete.filter {
                    self.condition(filter, Some(table), &mut form)?;
                }
            }
            _ => return None,
        }
        let mut rendered = self.render_form(&form, rewrite)?;
        let by_key = matches!(statement, Statement::Insert(_)) || is_keyed;
        rendered.answers = by_key && form.params.values().all(|type_oid| *type_oid != 0);
        Some(rendered)
    }

    /// Whether many executions may be put together.
    pub(super) fn bulk(&mut self, statement: &Statement, access: &AccessTemplate) -> Bulk {
        if !self.is_bulk(statement) {
            return Bulk::No;
        }
        let name = match statement {
            Statement::Update(update) => &update.table,
            Statement::Delete(delete) => &delete.table,
            _ => return Bulk::Insert,
        };
        let super::Resolved::Table(index) = self.resolve(name) else { return Bulk::Rows };
        let table = self.table(index);
        let id = crate::table_id(&table.schema, &table.name);
        let mut rows = access.items.iter().filter(|item| item.table == id && item.space == Space::Rows);
        let (Some(row), None, Some(key)) = (rows.next(), rows.next(), table.primary_key()) else {
            return Bulk::Rows;
        };
        let names = |number: &u16| {
            let mut columns = row.columns.iter();
            columns.any(|c| c.column.0 == *number && matches!(c.values, Values::One(_)))
        };
        // Keys are unique in one table, not among those that inherit from it.
        let is_one = row.columns.len() == key.columns.len()
            && key.columns.iter().all(names)
            && self.catalogue().children(index).is_empty();
        if is_one { Bulk::ByKey(id, key.columns.len()) } else { Bulk::Rows }
    }

    /// Whether it is about one table without triggers and rules, and of columns, constants, parameters and operators only.
    fn is_bulk(&mut self, statement: &Statement) -> bool {
        let (table, values, filter) = match statement {
            Statement::Insert(insert) => {
                let plain = insert.with.is_none()
                    && insert.on_conflict.is_none()
                    && insert.returning.is_none()
                    && !insert.columns.iter().any(|column| column.partial);
                let Some(Body::Values(rows)) = insert.source.as_deref().map(|query| &query.body) else {
                    return false;
                };
                let ([values], true) = (rows.as_slice(), plain) else { return false };
                (&insert.table, values.iter().collect::<Vec<_>>(), None)
            }
            Statement::Update(update) => {
                if update.with.is_some() || !update.from.is_empty() || update.returning.is_some() {
                    return false;
                }
                let values = update.set.iter().map(|target| &target.value).collect();
                if update.set.iter().any(|target| target.partial) || update.filter.is_none() {
                    return false;
                }
                (&update.table, values, update.filter.as_ref())
            }
            Statement::Delete(delete) => {
                let plain = delete.with.is_none() && delete.using.is_empty() && delete.returning.is_none();
                if !plain || delete.filter.is_none() {
                    return false;
                }
                (&delete.table, Vec::new(), delete.filter.as_ref())
            }
            _ => return false,
        };
        let Some(table) = self.plain_table(table) else { return false };
        table.kind == 'r'
            && table.triggers.is_empty()
            && !table.rules
            && !table.row_security
            && !table.exclusion
            && table.parents.is_empty()
            && !self.selects_calls
            && values.into_iter().chain(filter).all(is_simple)
    }

    fn plain_table(&mut self, name: &crate::ast::Name) -> Option<&'a Table> {
        match self.resolve(name) {
            super::Resolved::Table(index) => Some(self.table(index)),
            _ => None,
        }
    }

    /// A value that is assigned to a column.
    fn assigned_value(&self, value: &Expr, column: &Column, form: &mut Form) -> Option<()> {
        match value {
            // The fields of an interval say what a bare number in a literal means; a parameter's value does not hear of them.
            Expr::Literal { value: Literal::Text(_), .. }
                if column.type_oid == oid::INTERVAL && column.modifier >= 0 =>
            {
                None
            }
            Expr::Literal { value: Literal::Text(_), at } => self.string_constant(*at, form),
            Expr::Default { .. } => Some(()),
            other => self.scalar(other, form),
        }
    }

    /// A condition: comparisons of columns, joined by AND, OR and NOT. Without a table, only numbers are taken.
    fn condition(&self, expr: &Expr, table: Option<&Table>, form: &mut Form) -> Option<()> {
        match expr {
            Expr::And(parts) | Expr::Or(parts) => {
                parts.iter().try_for_each(|p| self.condition(p, table, form))
            }
            Expr::Not(inner) => self.condition(inner, table, form),
            Expr::Operator { name, left: Some(left), right: Some(right) }
                if matches!(name.last(), "=" | "<>" | "<" | ">" | "<=" | ">=") && name.parts.len() == 1 =>
            {
                let column = table.and_then(|t| own_column(left, t).or_else(|| own_column(right, t)));
                for side in [left, right] {
                    match (&**side, column) {
                        // Beside a column a string has the column's type, and so has a parameter.
                        (Expr::Literal { value: Literal::Text(_), at }, Some(column))
                            if is_builtin(column) =>
                        {
                            self.string_constant(*at, form)?;
                        }
                        (other, _) => self.scalar(other, form)?,
                    }
                }
                Some(())
            }
            Expr::In { left, list, .. } => {
                let column = own_column(left, table?).filter(|c| is_builtin(c))?;
                for element in list {
                    match element {
                        Expr::Literal { value: Literal::Text(_), at } => self.string_constant(*at, form)?,
                        // Lists of several types are resolved together.
                        Expr::Literal { value: Literal::Int(_), .. }
                            if matches!(column.type_oid, oid::INT2 | oid::INT4 | oid::INT8) =>
                        {
                            self.scalar(element, form)?;
                        }
                        _ => return None,
                    }
                }
                Some(())
            }
            other => self.scalar(other, form),
        }
    }

    /// An expression of columns, numbers and arithmetic, or one without constants.
    fn scalar(&self, expr: &Expr, form: &mut Form) -> Option<()> {
        match expr {
            Expr::Column { .. } | Expr::Clock { .. } | Expr::Session(_) => Some(()),
            Expr::Literal { value, at } => match value {
                Literal::Null | Literal::Bool(_) => Some(()),
                Literal::Int(_) | Literal::Number(_) => self.number(*at, form),
                Literal::Text(_) | Literal::Bits(_) => None,
            },
            // What constants alone make is computed, and may fail, before a row is looked for; that of parameters later.
            Expr::Operator { left: Some(left), right: Some(right), .. }
                if !self.varies(left) && !self.varies(right) =>
            {
                None
            }
            Expr::Chain { operands, .. } if !operands.iter().take(2).any(|e| self.varies(e)) => None,
            Expr::Operator { name, left, right } if name.parts.len() == 1 => {
                left.iter().chain(right).try_for_each(|e| self.scalar(e, form))
            }
            Expr::Chain { operands, .. } => operands.iter().try_for_each(|e| self.scalar(e, form)),
            Expr::Call(call) if call.arguments.is_empty() => Some(()),
            // What nextval() names is pinned and gone once its value is frozen.
            Expr::Call(call) if self.edits_cover(call.at) => Some(()),
            Expr::Form(parts) => crate::ast::form_parts(parts).iter().try_for_each(|e| match e {
                Expr::Column { .. } => Some(()),
                _ => None,
            }),
            _ => None,
        }
    }

    /// Whether a value is another one for each row, or each execution.
    fn varies(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Column { .. } | Expr::Clock { .. } | Expr::Session(_) | Expr::Form(_) => true,
            Expr::Call(call) => self.edits_cover(call.at),
            Expr::Operator { left, right, .. } => left.iter().chain(right).any(|e| self.varies(e)),
            Expr::Chain { operands, .. } => operands.iter().any(|e| self.varies(e)),
            _ => false,
        }
    }

    fn edits_cover(&self, at: u32) -> bool {
        self.frozen_places.contains(&at)
    }

    fn number(&self, at: u32, form: &mut Form) -> Option<()> {
        let (index, negated) = self.const_at(at)?;
        let constant = self.layout.consts.get(index as usize)?;
        let type_oid = match constant.kind {
            ConstKind::Int4 => oid::INT4,
            // The grammar folds the sign: -2147483648 is an int4 though its digits are none.
            ConstKind::Int8 if !negated => oid::INT8,
            ConstKind::Numeric => oid::NUMERIC,
            _ => return None,
        };
        form.params.insert(index, type_oid);
        Some(())
    }

    fn string_constant(&self, at: u32, form: &mut Form) -> Option<()> {
        let (index, negated) = self.const_at(at)?;
        let constant = self.layout.consts.get(index as usize)?;
        if negated || !constant.kind.is_string() {
            return None;
        }
        form.params.insert(index, 0);
        Some(())
    }

    /// Puts the text together: constants and frozen values become `$1` ... in their order.
    fn render_form(&self, form: &Form, rewrite: &Rewrite) -> Option<Parameterised> {
        let mut sql = String::with_capacity(self.sql.len());
        let mut params: Vec<ReplayParam> = Vec::new();
        let mut types = Vec::new();
        let mut frozen: BTreeMap<u32, usize> = BTreeMap::new();
        let mut at = 0;
        let mut splices = rewrite.splices.iter().peekable();
        let consts = self.layout.consts;
        let mut next = 0;
        loop {
            let splice_at = splices.peek().map(|s| self.layout.offset(s.from));
            let const_at = consts.get(next).map(|c| c.start as usize);
            match (splice_at, const_at) {
                (Some(from), constant) if constant.is_none_or(|c| from <= c) => {
                    let splice = splices.next()?;
                    sql.push_str(self.sql.get(at..from)?);
                    for piece in &splice.insert {
                        match piece {
                            Piece::Text(text) => sql.push_str(text),
                            Piece::Frozen(index) => {
                                let number = *frozen.entry(*index).or_insert_with(|| {
                                    params.push(ReplayParam::Frozen(*index));
                                    types.push(0);
                                    params.len()
                                });
                                let type_name = &rewrite.frozen.get(*index as usize)?.type_name;
                                sql.push_str(&format!("${number}::{type_name}"));
                            }
                        }
                    }
                    at = self.layout.offset(splice.to);
                    // Constants inside the replaced text are gone.
                    while consts.get(next).is_some_and(|c| (c.start as usize) < at) {
                        next += 1;
                    }
                }
                (_, Some(start)) => {
                    let type_oid = *form.params.get(&(next as u32))?;
                    sql.push_str(self.sql.get(at..start)?);
                    params.push(ReplayParam::Const(next as u32));
                    types.push(type_oid);
                    sql.push_str(&format!("${}", params.len()));
                    at = consts[next].end as usize;
                    next += 1;
                }
                (_, None) => break,
            }
        }
        sql.push_str(self.sql.get(at..)?);
        // The protocol counts parameters in 16 bits.
        (params.len() <= i16::MAX as usize).then_some(Parameterised {
            sql: sql.into(),
            params,
            types: types.into(),
            answers: false,
        })
    }
}

struct Form {
    /// The constants that may become parameters, with their types.
    params: BTreeMap<u32, u32>,
}

/// Columns, constants and parameters, and operators on them.
fn is_simple(expr: &Expr) -> bool {
    match expr {
        Expr::Column { star, .. } => !star,
        Expr::Literal { .. } | Expr::Param { .. } | Expr::Clock { .. } => true,
        Expr::Operator { left, right, .. } => left.iter().chain(right).all(|side| is_simple(side)),
        Expr::Chain { operands, .. } => operands.iter().all(is_simple),
        Expr::And(parts) | Expr::Or(parts) => parts.iter().all(is_simple),
        Expr::Not(inner) => is_simple(inner),
        Expr::In { left, list, .. } => is_simple(left) && list.iter().all(is_simple),
        Expr::Cast { value, .. } => is_simple(value),
        _ => false,
    }
}

fn own_column<'t>(expr: &Expr, table: &'t Table) -> Option<&'t Column> {
    match expr {
        Expr::Column { path, star: false, .. } => table.column(path.last()?),
        _ => None,
    }
}

/// Whether a column has a type of `pg_catalog`, whose operators are known.
fn is_builtin(column: &Column) -> bool {
    column.type_oid != 0 && column.type_oid < crate::value::FIRST_USER_OID && !column.domain
}
