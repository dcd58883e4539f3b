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
            if converts || cast.context == CastContext::Implicit && cast.may_begin_at(to) {
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
                && cast.users_types().any(|side| table.columns.iter().any(|c| side.is_type_of(c)))
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

    /// An operator of a user may convert its operands.
    pub(super) fn casts_of_operator(&mut self) {
        for cast in self.catalogue().casts.iter().filter(|c| c.context == CastContext::Implicit) {
            self.call_cast(cast);
        }
    }

    /// Implicit casts between types of the system may stand anywhere.
    pub(super) fn casts_anywhere(&mut self) {
        for cast in &self.catalogue().casts {
            if cast.context == CastContext::Implicit && cast.users_types().next().is_none() {
                self.call_cast(cast);
            }
        }
    }

    /// Whether values that become those of a column of a type may be converted by a cast of a user.
    pub(super) fn converts_rows(&self, to: &Name) -> bool {
        self.catalogue().casts.iter().any(|c| c.target.is_named(to))
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
                // Arrays and rows are converted part by part.
                column.is_none_or(|c| {
                    c.type_kind == 'c' || c.category == Some('A') || cast.source.is_type_of(c)
                })
            }
            _ => true,
        }
    }
}
