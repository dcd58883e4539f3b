//! Text that is read as a date or time when the statement runs: 'now', 'today' and kin name a moment by the clock of the
//! server that reads them. Literals and parameters are looked at when their values are known; what is computed, or comes
//! out of a table, may be such a word.

use super::block::ScopeId;
use super::derived::is_text;
use super::expr::At;
use super::facts::builtin_type;
use super::{Analyser, Resolved};
use crate::ast::{Call, Expr, Literal, Name};
use crate::class::{Guard, Refusal};
use crate::moment_text::{clock_words_pattern, holds_moments};
use crate::rewrite::{qualified, quoted};
use crate::value::oid;

impl<'a> Analyser<'a> {
    /// A conversion to a type.
    pub(super) fn read_as_moment(&mut self, value: &'a Expr, to: &Name, at: At) {
        if !self.may_hold_moment(to) {
            return;
        }
        self.moment_literals(value, at);
        if self.may_be_text(value, at.scope) {
            self.unreplayable(
                "text that is read as a date or time may name a moment by the clock ('now' ...)",
            );
        }
    }

    /// ALTER COLUMN ... TYPE ... USING reads the text of each row at each replica: it is looked at before that.
    pub(super) fn guard_conversion(&mut self, table: &Name, using: &'a Expr, to: &Name) {
        let Resolved::Table(index) = self.peek(table) else { return };
        let t = self.table(index);
        if !self.may_hold_moment(to) && !self.reads_moments(using) {
            return;
        }
        let mut texts = Vec::new();
        columns_of(using, &mut |name| {
            // Of columns that are not known the server tells.
            let column = t.column(name).filter(|c| is_text(c));
            texts.extend(column.map(|c| quoted(&c.name)));
        });
        if texts.is_empty() {
            return;
        }
        let refusal = Refusal::new(
            "rows of the table name a moment by the clock ('now', 'today' ...), which each replica would read by its own",
            "write the moment itself into those rows first: UPDATE ... SET ... WHERE ... ~* 'now|today|tomorrow|yesterday'",
        );
        if t.row_security {
            // The client may not see every row that the server converts.
            return self.refuse(refusal.reason, refusal.hint);
        }
        let condition = format!(
            "pg_catalog.concat_ws(' ', {}) OPERATOR(pg_catalog.~*) '{}'",
            texts.join(", "),
            clock_words_pattern()
        );
        let table = qualified(&t.schema, &t.name);
        match &mut self.guard {
            Some(guard) => guard.sql.push_str(&format!(" OR EXISTS (SELECT FROM {table} WHERE {condition})")),
            none => {
                let sql = format!("SELECT EXISTS (SELECT FROM {table} WHERE {condition})");
                *none = Some(Guard { sql, refusal });
            }
        }
    }

    fn reads_moments(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Cast { value, to } => self.may_hold_moment(&to.name) || self.reads_moments(value),
            Expr::Form(parts) | Expr::Array(parts) => parts.iter().any(|part| self.reads_moments(part)),
            _ => false,
        }
    }

    /// Literals and parameters that become text before they are read.
    fn moment_literals(&mut self, value: &'a Expr, at: At) {
        match value {
            Expr::Cast { value, .. } | Expr::Collate { value } => self.moment_literals(value, at),
            Expr::Form(parts) | Expr::Array(parts) => parts.iter().for_each(|e| self.moment_literals(e, at)),
            Expr::Literal { value: Literal::Text(text), at: place } => self.clock_literal(text, *place, at),
            Expr::Param { number, .. }
                if !self.scope_is_body(at.scope) && !self.clock_words.params.contains(number) =>
            {
                self.clock_words.params.push(*number);
            }
            _ => {}
        }
    }

    /// Whether what a function makes of JSON may hold moments: columns that are listed say so, or the type of a row that it
    /// is given.
    pub(super) fn record_may_hold_moment(&self, call: &Call) -> bool {
        match (call.record.as_slice(), call.arguments.first()) {
            ([], Some(Expr::Cast { to, .. })) if call.name.last().contains("_populate_") => {
                self.may_hold_moment(&to.name)
            }
            ([], _) => true,
            (types, _) => types.iter().any(|name| self.may_hold_moment(name)),
        }
    }

    /// Whether values of a type are, or contain, dates or times of day.
    pub(super) fn may_hold_moment(&self, to: &Name) -> bool {
        // The name of an array type of its own.
        let element = to.last().strip_prefix('_').unwrap_or(to.last());
        let of_system = matches!(
            element,
            "date"
                | "time"
                | "timetz"
                | "timestamp"
                | "timestamptz"
                | "daterange"
                | "tsrange"
                | "tstzrange"
                | "datemultirange"
                | "tsmultirange"
                | "tstzmultirange"
        );
        if of_system || to.schema() == Some("pg_catalog") {
            return of_system;
        }
        let is_meant = |schema: &str, name: &str| {
            (name == to.last() || name == element) && to.schema().is_none_or(|wanted| wanted == schema)
        };
        let is_moment = |base| base == 0 || holds_moments(base);
        let types = &self.catalogue().types;
        // Base types of users are made by extensions, whose texts are other things.
        let may = |kind: char, base| !matches!(kind, 'e' | 'b') && is_moment(base);
        types.iter().any(|t| is_meant(&t.schema, &t.name) && may(t.kind, t.base_oid))
            || self.catalogue().tables.iter().any(|t| {
                is_meant(&t.schema, &t.name) && t.columns.iter().any(|column| column.may_hold_moment())
            })
    }

    /// Whether a value, other than a literal or parameter of the statement, may be text that somebody wrote.
    pub(super) fn may_be_text(&self, expr: &Expr, scope: ScopeId) -> bool {
        let any = |parts: &[Expr]| parts.iter().any(|e| self.may_be_text(e, scope));
        match expr {
            Expr::Literal { .. } | Expr::Clock { .. } => false,
            Expr::Param { .. } => self.scope_is_body(scope),
            Expr::Column { path, star: false, .. } => {
                match self.resolve_column(scope, path).and_then(|key| self.column_of(key)) {
                    Some(column) => is_text(column),
                    None => self.derived_column(scope, path).is_none_or(|derived| derived.text),
                }
            }
            // No such operator yields text.
            Expr::Operator { name, .. } => !is_plus_or_minus(name),
            Expr::Chain { operators, .. } => !operators.iter().all(is_plus_or_minus),
            Expr::Cast { value, to } => match builtin_type(&to.name) {
                Some(oid::TEXT | oid::VARCHAR | oid::BPCHAR) | None => self.may_be_text(value, scope),
                Some(_) => false,
            },
            Expr::Collate { value } => self.may_be_text(value, scope),
            Expr::Form(parts) | Expr::Array(parts) | Expr::Row(parts) => any(parts),
            Expr::Call(call) if matches!(call.name.schema(), None | Some("pg_catalog")) => {
                match call.name.last() {
                    "now"
                    | "transaction_timestamp"
                    | "statement_timestamp"
                    | "clock_timestamp"
                    | "date_trunc"
                    | "date_bin"
                    | "to_timestamp"
                    | "to_date"
                    | "make_date"
                    | "make_time"
                    | "make_timestamp"
                    | "make_timestamptz"
                    | "age"
                    | "timezone" => false,
                    "min" | "max" | "first_value" | "last_value" | "lag" | "lead" => any(&call.arguments),
                    _ => true,
                }
            }
            _ => true,
        }
    }
}

/// The columns in an expression of literals, casts and columns.
fn columns_of(expr: &Expr, found: &mut impl FnMut(&str)) {
    match expr {
        Expr::Column { path, .. } => path.last().into_iter().for_each(|name| found(name)),
        Expr::Cast { value, .. } => columns_of(value, found),
        Expr::Form(parts) | Expr::Array(parts) => parts.iter().for_each(|part| columns_of(part, found)),
        _ => {}
    }
}

fn is_plus_or_minus(name: &Name) -> bool {
    matches!(name.last(), "+" | "-")
}
