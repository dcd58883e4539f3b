//! Times of day with time zone.
//!
//! PostgreSQL reads `12:00` as a `timetz` with the offset that the session's time zone has on the present day, and so does
//! it convert a `time`: replicas that execute a statement on different days, with a change of summer time between them,
//! would store different offsets. Text that says its offset is read alike; everything else is shipped.

use super::Analyser;
use super::block::ScopeId;
use super::facts::builtin_type;
use crate::ast::{ClockKind, Expr, Literal, Name};
use crate::catalogue::Column;
use crate::moment_text::lacks_offset;
use crate::value::oid;

/// Why such a statement is not replayed.
pub(super) const REASON: &str = "a time with time zone takes its offset from the present day";

impl<'a> Analyser<'a> {
    /// A value that becomes a time with time zone, or an array of such.
    pub(super) fn zoned_value(&mut self, value: &Expr, scope: ScopeId) {
        match value {
            Expr::Literal { value: Literal::Text(text), at } => {
                let found = match self.scope_is_body(scope) {
                    true => None,
                    false => self.const_at(*at),
                };
                match found {
                    Some((index, _)) if !self.zoned_words.consts.contains(&index) => {
                        self.zoned_words.consts.push(index);
                    }
                    Some(_) => {}
                    None if lacks_offset(text) => self.unreplayable(REASON),
                    None => {}
                }
            }
            Expr::Param { number, .. } if !self.scope_is_body(scope) => {
                if !self.zoned_words.params.contains(number) {
                    self.zoned_words.params.push(*number);
                }
            }
            Expr::Array(parts) => parts.iter().for_each(|part| self.zoned_value(part, scope)),
            value if self.has_zone(value, scope) => {}
            _ => self.unreplayable(REASON),
        }
    }

    /// Whether a value certainly has a zone already, or is none.
    fn has_zone(&self, value: &Expr, scope: ScopeId) -> bool {
        match value {
            Expr::Literal { value: Literal::Null, .. } | Expr::Default { .. } => true,
            Expr::Column { path, star: false, .. } => {
                let column = self.resolve_column(scope, path).and_then(|key| self.column_of(key));
                column.is_some_and(|c| is_zoned(c) || c.type_oid == oid::TIMESTAMPTZ)
            }
            // What is cast was looked at there.
            Expr::Cast { to, .. } => matches!(builtin_type(&to.name), Some(oid::TIMETZ | oid::TIMESTAMPTZ)),
            Expr::Clock { kind, .. } => matches!(kind, ClockKind::Time | ClockKind::Timestamp),
            Expr::Call(call) => {
                matches!(call.name.schema(), None | Some("pg_catalog"))
                    && matches!(
                        call.name.last(),
                        "now"
                            | "transaction_timestamp"
                            | "statement_timestamp"
                            | "clock_timestamp"
                            | "min"
                            | "max"
                    )
                    && call.arguments.iter().all(|argument| self.has_zone(argument, scope))
            }
            _ => false,
        }
    }

    /// Literals and parameters beside a column of times with time zone in a comparison.
    pub(super) fn zoned_beside(&mut self, parts: &[&Expr], scope: ScopeId) {
        let is_column = |part: &&&Expr| match part {
            Expr::Column { path, star: false, .. } => {
                let column = self.resolve_column(scope, path).and_then(|key| self.column_of(key));
                column.is_some_and(is_zoned)
            }
            _ => false,
        };
        if parts.iter().any(|part| is_column(&part)) {
            parts.iter().for_each(|part| self.zoned_value(part, scope));
        }
    }

    /// `value AT TIME ZONE zone`: where the value is a time with time zone, the zone's offset of the present day counts.
    pub(super) fn zoned_at(&mut self, arguments: &[Expr], scope: ScopeId) {
        let is_zoned = |value: &Expr| match value {
            Expr::Column { path, star: false, .. } => {
                let column = self.resolve_column(scope, path).and_then(|key| self.column_of(key));
                column.is_some_and(is_zoned)
            }
            Expr::Cast { to, .. } => builtin_type(&to.name) == Some(oid::TIMETZ),
            Expr::Clock { kind, .. } => *kind == ClockKind::Time,
            _ => false,
        };
        if arguments.iter().any(is_zoned) {
            self.unreplayable(REASON);
        }
    }

    /// A conversion by a name in the form of a cast or of a call.
    pub(super) fn zoned_cast(&mut self, value: &Expr, to: &Name, scope: ScopeId) {
        let of_system = matches!(to.schema(), None | Some("pg_catalog"));
        let named =
            |schema: &str, name: &str| name == to.last() && to.schema().is_none_or(|wanted| wanted == schema);
        let is_domain = || {
            let mut types = self.catalogue().types.iter();
            types.any(|t| is_zoned_oid(t.base_oid) && named(&t.schema, &t.name))
        };
        if of_system && matches!(to.last(), "timetz" | "_timetz") || is_domain() {
            self.zoned_value(value, scope);
        }
    }
}

/// Whether a column holds times with time zone.
pub(super) fn is_zoned(column: &Column) -> bool {
    is_zoned_oid(column.type_oid)
}

fn is_zoned_oid(type_oid: u32) -> bool {
    matches!(type_oid, oid::TIMETZ | oid::TIMETZ_ARRAY)
}
