//! Casts of users: functions that a text calls without naming them.
//!
//! The catalogue holds those only whose result may vary. Each counts as a call of its function wherever the types leave
//! it open whether the server makes that call.

use super::Analyser;
use super::block::{Entry, EntryColumns, ScopeId};
use super::expr::At;
use crate::ast::{Expr, Literal, Name};
use crate::catalogue::{Cast, CastContext, Column, DomainCheck, Table, Volatility};
use crate::lexer::hash_bytes;
use onecopy_core::Mode;

impl<'a> Analyser<'a> {
    /// `value::to`, `CAST (value AS to)` and `to(value)`.
    pub(super) fn explicit_casts(&mut self, value: Option<&Expr>, to: &Name, scope: ScopeId) {
        for cast in &self.catalogue().casts {
            let converts = cast.target.is_named(to) && value.is_none_or(|v| self.may_be_from(v, cast, scope));
            if converts
                || cast.context == CastContext::Implicit
                    && cast.telling().is_some_and(|side| side.is_named(to))
            {
                self.call_cast(cast);
            }
        }
        for domain in self.catalogue().domain_checks.iter().filter(|d| d.types.iter().any(|t| t.is_named(to)))
        {
            self.check_domain(domain);
        }
    }

    /// A value that is assigned to a column; None for what a query yields.
    pub(super) fn assignment_casts(&mut self, value: Option<&Expr>, column: &Column, scope: ScopeId) {
        for cast in &self.catalogue().casts {
            if cast.context != CastContext::Explicit
                && cast.target.is_type_of(column)
                && value.is_none_or(|v| self.may_be_from(v, cast, scope))
            {
                self.call_cast(cast);
            }
        }
        let concerns = |d: &&DomainCheck| d.types.iter().any(|t| t.is_type_of(column));
        for domain in self.catalogue().domain_checks.iter().filter(concerns) {
            self.check_domain(domain);
        }
    }

    /// What an implicit cast may convert comes out of a table with such a column.
    pub(super) fn casts_beside(&mut self, table: &Table) {
        let concerns = |cast: &&Cast| {
            cast.context == CastContext::Implicit
                && cast.telling().is_some_and(|side| table.columns.iter().any(|c| side.is_type_of(c)))
        };
        for cast in self.catalogue().casts.iter().filter(concerns) {
            self.call_cast(cast);
        }
    }

    /// A function of a user takes or yields a type that the server may convert.
    pub(super) fn casts_of_function(&mut self, schema: &str, name: &str) {
        let names = |function: &(String, String)| function.0 == schema && function.1 == name;
        for cast in &self.catalogue().casts {
            if cast.context != CastContext::Explicit && cast.functions.iter().any(names) {
                self.call_cast(cast);
            }
        }
        for domain in self.catalogue().domain_checks.iter().filter(|d| d.functions.iter().any(names)) {
            self.check_domain(domain);
        }
    }

    /// An operator of a user may convert its operands, or yield what is converted.
    pub(super) fn casts_of_operator(&mut self, name: &Name) {
        for cast in self.catalogue().casts.iter().filter(|c| c.context == CastContext::Implicit) {
            if cast.operators.iter().any(|operator| operator == name.last()) {
                self.call_cast(cast);
            }
        }
    }

    /// Implicit casts between types of the system may stand anywhere.
    pub(super) fn casts_anywhere(&mut self) {
        for cast in &self.catalogue().casts {
            if cast.context == CastContext::Implicit && cast.is_of_system() {
                self.call_cast(cast);
            }
        }
    }

    /// Whether ALTER TABLE converts values of rows that are there by a cast of a user: `value` is a default or what USING
    /// says, else the column itself is converted.
    pub(super) fn converts_rows(
        &mut self,
        table: usize,
        column: Option<&str>,
        value: Option<&'a Expr>,
        to: &Name,
    ) -> bool {
        let relation = self.new_relation(Some(table));
        let scope = self.new_scope(None, None, false);
        let columns = EntryColumns::Table(relation);
        let name = self.table(table).name.clone();
        self.scopes[scope].entries.push(Entry { name, columns });
        let old = column.and_then(|name| self.table(table).column(name));
        self.catalogue().casts.iter().any(|cast| match (value, old) {
            (Some(value), _) => self.may_convert(value, to, cast, scope),
            (None, Some(old)) => cast.target.is_named(to) && is_from(old, cast),
            // A column that is added has no values.
            (None, None) => false,
        })
    }

    /// Whether a cast takes place in what USING or a default says, or at its end.
    fn may_convert(&self, value: &Expr, to: &Name, cast: &Cast, scope: ScopeId) -> bool {
        cast.target.is_named(to) && self.may_be_from(value, cast, scope)
            || match value {
                Expr::Cast { value, to } => self.may_convert(value, &to.name, cast, scope),
                Expr::Form(parts) | Expr::Array(parts) => {
                    parts.iter().any(|part| self.may_convert(part, to, cast, scope))
                }
                _ => false,
            }
    }

    /// The check of a domain, whose value it takes by the name VALUE.
    fn check_domain(&mut self, domain: &'a DomainCheck) {
        let key = (u64::MAX - 3, hash_bytes(domain.check.as_bytes()));
        if self.active.contains(&key) {
            return;
        }
        self.active.push(key);
        match self.library.expression(&domain.check) {
            Some(check) => {
                let scope = self.new_scope(None, None, true);
                let columns = EntryColumns::Opaque;
                self.scopes[scope].entries.push(Entry { name: String::new(), columns });
                self.expr(check, At::each(scope));
            }
            None => {
                self.touch_everything(Mode::Exclusive);
                self.effects.writes = true;
                self.refuse(
                    "the check of a domain could not be read",
                    "use functions that are immutable in it",
                );
            }
        }
        self.active.pop();
    }

    fn call_cast(&mut self, cast: &'a Cast) {
        let shown = format!("the cast from {} to {}", cast.source.shown(), cast.target.shown());
        let key = (u64::MAX - 2, hash_bytes(shown.as_bytes()));
        if self.active.contains(&key) {
            return;
        }
        self.active.push(key);
        let refused_before = self.refusal.is_some();
        let mut found = false;
        if let Some((schema, name)) = &cast.function {
            let qualified = Name::new(vec![schema.clone(), name.clone()]);
            let functions: Vec<_> = self.catalogue().functions_named(&qualified, &[]).collect();
            for (index, function) in functions.into_iter().filter(|(_, f)| f.arguments == cast.arguments) {
                found = true;
                self.user_function(index, function);
            }
        }
        if !found {
            match cast.volatility {
                Volatility::Immutable => {}
                Volatility::Stable => self.unreplayable(format!("{shown} depends on the server or session")),
                Volatility::Volatile => {
                    self.touch_everything(Mode::Exclusive);
                    self.effects.writes = true;
                    self.refuse(
                        "a cast's function is not known",
                        "declare the function stable or immutable if it is",
                    );
                }
            }
        }
        if let (false, Some(refusal)) = (refused_before, &mut self.refusal) {
            refusal.reason = format!("{shown} may be used: {}", refusal.reason);
        }
        self.active.pop();
    }

    /// Whether an expression may have a cast's source type.
    fn may_be_from(&self, value: &Expr, cast: &Cast, scope: ScopeId) -> bool {
        let is_one_of = |names: &[&str]| cast.source.types.iter().any(|t| names.contains(&t.name.as_str()));
        match value {
            // Text in quotes is read as the type that is wanted, and NULL converted by nobody.
            Expr::Literal { value: Literal::Text(_) | Literal::Null, .. } | Expr::Default { .. } => false,
            Expr::Literal { value: Literal::Int(_) | Literal::Number(_), .. } => {
                is_one_of(&["int4", "int8", "numeric"])
            }
            Expr::Literal { value: Literal::Bool(_), .. } => is_one_of(&["bool"]),
            Expr::Column { path, star: false, .. } => {
                let column = self.resolve_column(scope, path).and_then(|key| self.column_of(key));
                match column {
                    Some(column) => is_from(column, cast),
                    None => !cast.is_of_users() || self.may_appear(cast),
                }
            }
            Expr::Cast { to, .. } => cast.source.is_named(&to.name) || to.name.last() == "record",
            _ if !cast.is_of_users() => true,
            // What is declared as a type of a user is written as a cast.
            Expr::Param { .. } | Expr::Clock { .. } | Expr::Session(_) | Expr::Collate { .. } => false,
            Expr::Form(parts) | Expr::Array(parts) | Expr::Row(parts) => {
                parts.iter().any(|part| self.may_be_from(part, cast, scope))
            }
            Expr::And(_) | Expr::Or(_) | Expr::Not(_) | Expr::In { .. } | Expr::OfArray { .. } => false,
            Expr::Operator { name, left, right } => {
                // Those of the system yield no such value but from one.
                let sides = left.iter().chain(right);
                cast.operators.iter().any(|operator| operator == name.last())
                    || sides.into_iter().any(|side| self.may_be_from(side, cast, scope))
            }
            Expr::Chain { operators, operands } => {
                operators.iter().any(|name| cast.operators.iter().any(|operator| operator == name.last()))
                    || operands.iter().any(|operand| self.may_be_from(operand, cast, scope))
            }
            Expr::Call(call) => {
                let yields = |function: &(String, String)| {
                    function.1 == call.name.last()
                        && call.name.schema().is_none_or(|schema| schema == function.0)
                };
                cast.functions.iter().any(yields)
                    || call.arguments.iter().any(|argument| self.may_be_from(argument, cast, scope))
            }
            Expr::Subquery { .. } => self.may_appear(cast),
            _ => true,
        }
    }

    /// Whether a value of a cast's source, a type of a user, may be in the statement without being shown: some table holds
    /// such values, or the statement or a view names what yields them.
    fn may_appear(&self, cast: &Cast) -> bool {
        let catalogue = self.catalogue();
        if catalogue.tables.iter().any(|t| t.columns.iter().any(|column| is_from(column, cast))) {
            return true;
        }
        let types = cast.source.types.iter().map(|t| &t.name);
        let names: Vec<String> = types
            .chain(cast.functions.iter().map(|(_, name)| name))
            .chain(&cast.operators)
            .map(|name| name.to_ascii_lowercase())
            .collect();
        let texts = std::iter::once(self.sql).chain(catalogue.views.iter().map(|v| v.definition.as_str()));
        texts.map(str::to_ascii_lowercase).any(|text| names.iter().any(|name| text.contains(name)))
    }
}

/// Whether a column's values are of a cast's source. Arrays and rows are converted part by part.
fn is_from(column: &Column, cast: &Cast) -> bool {
    let is_array = column.category == Some('A') && (!cast.is_of_users() || column.type_oid == 0);
    column.type_kind == 'c' || is_array || cast.source.is_type_of(column)
}
