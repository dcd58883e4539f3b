//! Text that is read as a date or time when the statement runs: 'now', 'today' and kin name a moment by the clock of the
//! server that reads them. Literals and parameters are looked at when their values are known; what is computed, or comes
//! out of a table, may be such a word.

use super::Analyser;
use super::block::ScopeId;
use super::expr::At;
use super::facts::builtin_type;
use crate::ast::{Expr, Literal, Name};
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

    /// Whether values of a type are, or contain, dates or times of day.
    fn may_hold_moment(&self, to: &Name) -> bool {
        let of_system = matches!(
            to.last(),
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
        let is_meant =
            |schema: &str, name: &str| name == to.last() && to.schema().is_none_or(|wanted| wanted == schema);
        let is_moment = |base| {
            matches!(base, 0 | oid::DATE | oid::TIME | oid::TIMETZ | oid::TIMESTAMP | oid::TIMESTAMPTZ)
        };
        let types = &self.catalogue().types;
        // Base types of users are made by extensions, whose texts are other things.
        let may = |kind: char, base| !matches!(kind, 'e' | 'b') && is_moment(base);
        types.iter().any(|t| is_meant(&t.schema, &t.name) && may(t.kind, t.base_oid))
            || self.catalogue().tables.iter().any(|t| is_meant(&t.schema, &t.name))
    }

    /// Whether a value, other than a literal or parameter of the statement, may be text that somebody wrote.
    fn may_be_text(&self, expr: &Expr, scope: ScopeId) -> bool {
        let any = |parts: &[Expr]| parts.iter().any(|e| self.may_be_text(e, scope));
        match expr {
            Expr::Literal { .. } | Expr::Clock { .. } => false,
            Expr::Param { .. } => self.scope_is_body(scope),
            Expr::Column { path, star: false, .. } => {
                let column = self.resolve_column(scope, path).and_then(|key| self.column_of(key));
                // Dates and times, spans of time, numbers, truth values.
                column.is_none_or(|c| !matches!(c.category, Some('D' | 'T' | 'N' | 'B')))
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

fn is_plus_or_minus(name: &Name) -> bool {
    matches!(name.last(), "+" | "-")
}
