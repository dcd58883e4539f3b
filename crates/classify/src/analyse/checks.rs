//! Conditions on rows that a server evaluates by itself: CHECK constraints, and WHEN of triggers.
//!
//! Neither stands in the statement, so nothing can be frozen into them. Where a statement is executed again, what they
//! depend on must be recorded with it. Where rows are shipped instead, triggers are silent; CHECKs are not: they are evaluated
//! again by the agent's role, after a crash maybe hours later, and a row that does not pass would keep its replica out of
//! service. So a CHECK must be immutable for that, or compare with the clock such that what holds now holds for good.

use super::Analyser;
use super::block::{Entry, EntryColumns, ScopeId};
use super::expr::At;
use crate::ast::{Call, ClockKind, Expr, Literal, Name, Statement, Utility};
use crate::catalogue::{DomainCheck, Trigger};
use crate::functions::{Behaviour, builtin};
use std::collections::BTreeSet;

impl<'a> Analyser<'a> {
    /// The check constraints that new rows of a table must pass, those of its columns' domains included.
    pub(super) fn checks(&mut self, table: usize) {
        let tables = self.with_descendants(table);
        let texts: BTreeSet<&'a String> = tables.iter().flat_map(|t| &self.table(*t).checks).collect();
        texts.iter().for_each(|text| self.check_text(text, table));
        // Of domains in arrays and composites, a value is checked where it is made. What that depends on is noted there; here
        // only whether it holds again.
        let columns = || tables.iter().flat_map(|t| &self.table(*t).columns);
        let concerns = |domain: &&DomainCheck| {
            columns().any(|column| domain.types.iter().any(|made| made.is_type_of(column)))
        };
        let of_parts = self.catalogue().domain_checks.iter().filter(concerns).map(|domain| &domain.check);
        let of_parts: Vec<_> = of_parts.filter(|text| !texts.contains(text)).collect();
        for text in of_parts {
            let noted = (self.unreplayable.clone(), self.refusal.clone(), self.written.clone());
            self.check_text(text, table);
            (self.unreplayable, self.refusal, self.written) = noted;
        }
    }

    fn check_text(&mut self, text: &'a str, table: usize) {
        let Some(expr) = self.library.expression(text) else {
            let reason = "a check constraint could not be read";
            self.unreplayable(reason);
            return self.check_varies(reason);
        };
        let scope = self.scope_of_check(table);
        self.check(expr, At::each(scope));
    }

    /// What a check names. It is kept, so that nothing can be frozen into it.
    fn scope_of_check(&mut self, table: usize) -> ScopeId {
        let relation = self.new_relation(Some(table));
        let scope = self.new_scope(None, None, true);
        let name = self.table(table).name.clone();
        self.scopes[scope].entries.push(Entry { name, columns: EntryColumns::Table(relation) });
        self.scopes[scope].entries.push(Entry { name: String::new(), columns: EntryColumns::Opaque });
        scope
    }

    /// A table, its partitions and inheritors.
    fn with_descendants(&self, table: usize) -> Vec<usize> {
        let catalogue = self.catalogue();
        let mut tables = vec![table];
        let mut next = 0;
        while let Some(parent) = tables.get(next) {
            let new: Vec<usize> =
                catalogue.children(*parent).iter().filter(|c| !tables.contains(c)).copied().collect();
            tables.extend(new);
            next += 1;
        }
        tables
    }

    /// A condition that must hold again where the row is put in.
    fn check(&mut self, expr: &'a Expr, at: At) {
        match expr {
            Expr::And(parts) | Expr::Or(parts) => parts.iter().for_each(|part| self.check(part, at)),
            Expr::Operator { name, left: Some(left), right: Some(right) }
                if self.is_operator_of_system(name) =>
            {
                let (earlier, later) = match name.last() {
                    "<" | "<=" => (left, right),
                    ">" | ">=" => (right, left),
                    _ => return self.check_steady(expr, at),
                };
                match only_grows(later) {
                    Some(beside) => {
                        self.expr(later, at);
                        beside.into_iter().chain([&**earlier]).for_each(|part| self.check_steady(part, at));
                    }
                    None => self.check_steady(expr, at),
                }
            }
            _ => self.check_steady(expr, at),
        }
    }

    /// An expression that must yield the same again.
    fn check_steady(&mut self, expr: &'a Expr, at: At) {
        let unreplayable = self.unreplayable.take();
        let (reads, names_role) =
            (std::mem::take(&mut self.effects.reads), std::mem::take(&mut self.names_role));
        self.expr(expr, at);
        let found = match &self.unreplayable {
            Some(reason) if reason == super::oids::REASON && compares_names(expr) => None,
            Some(reason) => Some(reason.clone()),
            None if self.checks_by_text => None,
            None if self.effects.reads => Some("it reads tables".to_owned()),
            None if self.names_role => Some("it depends on the current role".to_owned()),
            None => None,
        };
        if let Some(reason) = found {
            self.check_varies(&reason);
        }
        self.unreplayable = unreplayable.or_else(|| self.unreplayable.take());
        self.effects.reads |= reads;
        self.names_role |= names_role;
    }

    /// A change of definitions has rows that are there pass checks: new ones, or the table's own, too.
    pub(super) fn refuse_varying_checks(&mut self, table: usize, new: &'a [Expr], own: bool) {
        let noted = (self.unreplayable.take(), self.refusal.clone(), self.varying_check.take());
        self.checks_by_text = true;
        for expr in new {
            let scope = self.scope_of_check(table);
            self.check(expr, At::each(scope));
        }
        if own {
            self.checks(table);
        }
        self.checks_by_text = false;
        let found = self.varying_check.take();
        (self.unreplayable, self.refusal, self.varying_check) = noted;
        if let Some(reason) = found {
            self.refuse(
                format!("rows would pass a CHECK on one replica and maybe not on another: {reason}"),
                "compare with what the row holds, or with a constant; a CHECK may be added NOT VALID",
            );
        }
    }

    fn check_varies(&mut self, reason: &str) {
        self.varying_check.get_or_insert_with(|| reason.to_owned());
    }

    /// Whether an operator is none of a user.
    fn is_operator_of_system(&self, name: &Name) -> bool {
        matches!(name.schema(), None | Some("pg_catalog"))
            && self.catalogue().operators_named(name.last()).next().is_none()
    }

    /// WHEN of a trigger that may fire.
    pub(super) fn trigger_condition(&mut self, table: usize, trigger: &'a Trigger) {
        let Some(definition) = &trigger.condition else { return };
        let condition = match self.library.statements(definition) {
            Some([Statement::Utility(Utility::CreateTrigger { condition: Some(condition), .. })]) => {
                condition
            }
            _ => {
                return self.refuse(
                    format!("the condition of the trigger {} could not be read", trigger.name),
                    "let the trigger's function decide, or drop the trigger",
                );
            }
        };
        let scope = self.scope_of_trigger(table);
        let unreplayable = self.unreplayable.take();
        self.expr(condition, At::each(scope));
        if self.unreplayable.as_deref() == Some(super::oids::REASON) && compares_names(condition) {
            self.unreplayable = None;
        }
        if let Some(reason) = &self.unreplayable {
            // Rows of a table with triggers cannot be shipped.
            let reason = format!(
                "the condition of the trigger {} may differ between replicas: {reason}",
                trigger.name
            );
            self.refuse(reason, "let WHEN depend on the row only, or drop the trigger");
        }
        self.unreplayable = unreplayable.or_else(|| self.unreplayable.take());
    }

    fn scope_of_trigger(&mut self, table: usize) -> ScopeId {
        let scope = self.new_scope(None, None, true);
        for name in ["old", "new"] {
            let columns = EntryColumns::Table(self.new_relation(Some(table)));
            self.scopes[scope].entries.push(Entry { name: name.to_owned(), columns });
        }
        scope
    }
}

/// Whether an expression is a moment that only moves on, by whose clock and however it is computed: then what stands in it
/// beside the clock.
fn only_grows(expr: &Expr) -> Option<Vec<&Expr>> {
    match expr {
        // The hour that is repeated in autumn keeps local times from it.
        Expr::Clock { kind: ClockKind::Date | ClockKind::Timestamp, .. } => Some(Vec::new()),
        Expr::Call(call) => grows_by_call(call),
        Expr::Cast { value, to } => {
            let keeps = matches!(to.name.schema(), None | Some("pg_catalog"))
                && matches!(to.name.last(), "date" | "timestamptz");
            only_grows(value).filter(|_| keeps && !to.array)
        }
        Expr::Operator { name, left: Some(left), right: Some(right) } if name.last() == "+" => {
            only_grows(left)
                .map(|beside| with(beside, right))
                .or_else(|| Some(with(only_grows(right)?, left)))
        }
        Expr::Operator { name, left: Some(left), right: Some(right) } if name.last() == "-" => {
            Some(with(only_grows(left)?, right))
        }
        Expr::Chain { operators, operands } if operators.iter().all(|o| matches!(o.last(), "+" | "-")) => {
            let (first, rest) = operands.split_first()?;
            let mut beside = only_grows(first)?;
            beside.extend(rest);
            Some(beside)
        }
        _ => None,
    }
}

fn with<'e>(mut beside: Vec<&'e Expr>, part: &'e Expr) -> Vec<&'e Expr> {
    beside.push(part);
    beside
}

fn grows_by_call(call: &Call) -> Option<Vec<&Expr>> {
    if !matches!(call.name.schema(), None | Some("pg_catalog")) {
        return None;
    }
    let says = |unit: &Expr, known: &[&str]| match unit {
        Expr::Literal { value: Literal::Text(text), .. } => {
            known.iter().any(|k| text.eq_ignore_ascii_case(k))
        }
        Expr::Cast { value, .. } => {
            matches!(&**value, Expr::Literal { value: Literal::Text(text), .. } if known.iter().any(|k| text.eq_ignore_ascii_case(k)))
        }
        _ => false,
    };
    match (call.name.last(), call.arguments.as_slice()) {
        ("clock_timestamp", []) => Some(Vec::new()),
        (name, []) => {
            let moment = builtin(name, 0);
            matches!(moment, Some(Behaviour::TransactionTimestamp | Behaviour::StatementTimestamp))
                .then(Vec::new)
        }
        ("timezone", [zone, moment]) if says(zone, &["utc"]) => only_grows(moment),
        ("date_part" | "extract", [unit, moment]) if says(unit, &["year", "epoch"]) => only_grows(moment),
        ("date_trunc", [unit, moment]) if says(unit, &["day", "month", "year"]) => only_grows(moment),
        _ => None,
    }
}

/// Whether it does no more with names of objects than to ask whether they are the same: their numbers differ between
/// servers, and they do not.
fn compares_names(expr: &Expr) -> bool {
    let is_equality = |name: &Name| matches!(name.last(), "=" | "<>");
    match expr {
        Expr::Column { .. } | Expr::Literal { value: Literal::Text(_) | Literal::Null, .. } => true,
        // Names are compared as the numbers that they stand for.
        Expr::Cast { value, to } if to.name.last() == "oid" => compares_names(value),
        Expr::Cast { value, .. } => matches!(&**value, Expr::Literal { value: Literal::Text(_), .. }),
        Expr::Operator { name, left: Some(left), right: Some(right) } => {
            is_equality(name) && compares_names(left) && compares_names(right)
        }
        Expr::OfArray { name, left, right, .. } => {
            is_equality(name) && compares_names(left) && compares_names(right)
        }
        Expr::In { left, list, .. } => compares_names(left) && list.iter().all(compares_names),
        Expr::Not(inner) => compares_names(inner),
        Expr::And(parts) | Expr::Or(parts) | Expr::Form(parts) | Expr::Array(parts) | Expr::Row(parts) => {
            parts.iter().all(compares_names)
        }
        _ => false,
    }
}
