//! Places and transaction numbers of rows in conditions.
//!
//! `ctid`, `xmin` and the other system columns of a row differ between replicas (design 3.11). Inside one statement they
//! mean the same row as long as they are compared with each other; a constant or parameter was read on some replica, and
//! means another row, or none, on the next.

use super::Analyser;
use super::block::{EntryColumns, ScopeId};
use super::expr::is_system_column;
use crate::ast::{self, Body, Expr, From, Literal, Query};

impl<'a> Analyser<'a> {
    /// Refuses a condition that compares a system column of a user's table with a value from outside the statement.
    pub(super) fn places_in(&mut self, condition: &Expr, scope: ScopeId) {
        if let Some(name) = self.compared_place(condition, scope) {
            self.refuse(
                format!("{name} is another number for the same row on each replica, and is compared with a given value"),
                "find rows by their primary key, and keep a version of your own for optimistic concurrency: a column that \
                 each UPDATE raises (Entity Framework: IsConcurrencyToken() on such a column instead of xmin)",
            );
        }
    }

    /// The system column that some part of a condition compares with what comes from no row.
    fn compared_place(&self, expr: &Expr, scope: ScopeId) -> Option<String> {
        let parts: Vec<&Expr> = match expr {
            Expr::Operator { left: Some(left), right: Some(right), .. } if matches!((&**left, &**right), (Expr::Row(l), Expr::Row(r)) if l.len() == r.len()) =>
            {
                let (Expr::Row(left), Expr::Row(right)) = (&**left, &**right) else { return None };
                return left.iter().zip(right).find_map(|(l, r)| self.compared_with(vec![l, r], scope));
            }
            Expr::Operator { left, right, .. } => {
                left.as_deref().into_iter().chain(right.as_deref()).collect()
            }
            Expr::OfArray { left, right, .. } => vec![left, right],
            Expr::In { left, list, .. } => std::iter::once(&**left).chain(list).collect(),
            Expr::Chain { operands, .. } => operands.iter().collect(),
            Expr::Form(parts) => ast::form_parts(parts).iter().collect(),
            Expr::Subquery { test: Some(test), query, .. } => {
                return self.place(test, scope).filter(|_| !is_of_rows(query));
            }
            Expr::And(parts) | Expr::Or(parts) | Expr::Row(parts) | Expr::Array(parts) => {
                return parts.iter().find_map(|part| self.compared_place(part, scope));
            }
            Expr::Not(inner) => return self.compared_place(inner, scope),
            Expr::Cast { value, .. } | Expr::Collate { value } => return self.compared_place(value, scope),
            Expr::Call(call) => {
                return call.arguments.iter().find_map(|argument| self.compared_place(argument, scope));
            }
            _ => return None,
        };
        self.compared_with(parts, scope)
    }

    fn compared_with(&self, parts: Vec<&Expr>, scope: ScopeId) -> Option<String> {
        let place = parts.iter().find_map(|part| self.place(part, scope));
        if place.is_some() && parts.iter().any(|part| !self.is_from_rows(part, scope)) {
            return place;
        }
        parts.into_iter().find_map(|part| self.compared_place(part, scope))
    }

    /// The system column of a user's table that an expression is made of.
    pub(super) fn place(&self, expr: &Expr, scope: ScopeId) -> Option<String> {
        match expr {
            Expr::Column { path, star: false, .. } => {
                // A subquery may give it another name, and another column its name.
                match self.derived_column(scope, path) {
                    Some(derived) if self.resolve_column(scope, path).is_none() => derived.place.clone(),
                    _ => path.last().filter(|_| self.is_place(path, scope)).cloned(),
                }
            }
            // The name of a table is the same everywhere.
            Expr::Cast { value, to } if super::oids::is_name_type(&to.name) => {
                self.place(value, scope).filter(|name| name != "tableoid")
            }
            Expr::Cast { value, .. } | Expr::Collate { value } => self.place(value, scope),
            Expr::Call(call) => call.arguments.iter().find_map(|argument| self.place(argument, scope)),
            Expr::Row(parts) | Expr::Form(parts) | Expr::Array(parts) => {
                parts.iter().find_map(|part| self.place(part, scope))
            }
            Expr::Operator { left, right, .. } => {
                [left, right].into_iter().flatten().find_map(|side| self.place(side, scope))
            }
            Expr::Chain { operands, .. } => operands.iter().find_map(|operand| self.place(operand, scope)),
            _ => None,
        }
    }

    /// Whether a value comes from places of rows that the statement reads, or is the same everywhere by its name. What a table
    /// holds in a column of its own was given once.
    fn is_from_rows(&self, expr: &Expr, scope: ScopeId) -> bool {
        // A given value among others, as in tidlarger(ctid, '(0,5)'), is compared with them.
        let any = |parts: &[Expr]| {
            parts.iter().any(|part| self.is_from_rows(part, scope)) && !parts.iter().any(is_given)
        };
        match expr {
            Expr::Column { path, .. } => {
                self.place(expr, scope).is_some()
                    || self.resolve_column(scope, path).is_none()
                        && self.derived_column(scope, path).is_none()
            }
            Expr::Subquery { query, .. } => is_of_rows(query),
            Expr::Cast { value, to } => {
                super::oids::is_name_type(&to.name) || self.is_from_rows(value, scope)
            }
            Expr::Collate { value } => self.is_from_rows(value, scope),
            Expr::Call(call) => any(&call.arguments),
            Expr::Row(parts) => parts.iter().all(|part| self.is_from_rows(part, scope)),
            Expr::Form(parts) | Expr::Array(parts) | Expr::Chain { operands: parts, .. } => any(parts),
            Expr::Operator { left, right, .. } => {
                let sides = || left.iter().chain(right);
                sides().any(|side| self.is_from_rows(side, scope)) && !sides().any(|side| is_given(side))
            }
            _ => false,
        }
    }

    fn is_place(&self, path: &[String], scope: ScopeId) -> bool {
        let Some((name, qualifier)) = ast::name_and_qualifier(path) else { return false };
        let mut at = Some(scope).filter(|_| is_system_column(name));
        while let Some(id) = at {
            let scope = &self.scopes[id];
            let mut of_table = false;
            let mut of_another = false;
            for entry in scope.entries.iter().filter(|entry| qualifier.is_none_or(|q| *q == entry.name)) {
                match &entry.columns {
                    EntryColumns::Table(relation) => {
                        of_table |= self.relations.get(*relation as usize).copied().flatten().is_some();
                    }
                    // A subquery's own column of that name.
                    EntryColumns::Derived(columns) if columns.iter().any(|(n, _)| n == name) => return false,
                    EntryColumns::Derived(_) => {}
                    EntryColumns::Opaque => of_another = true,
                }
            }
            if of_table || of_another {
                return of_table;
            }
            at = scope.parent;
        }
        false
    }
}

/// Whether an expression is a constant or parameter.
fn is_given(expr: &Expr) -> bool {
    match expr {
        Expr::Literal { value, .. } => *value != Literal::Null,
        Expr::Param { .. } => true,
        Expr::Cast { value, to } => !super::oids::is_name_type(&to.name) && is_given(value),
        _ => false,
    }
}

/// Whether a subquery's rows can hold what tables hold.
fn is_of_rows(query: &Query) -> bool {
    match &query.body {
        Body::Select(select) => !select.from.iter().all(|from| matches!(from, From::Function { .. })),
        Body::Values(_) => false,
        _ => true,
    }
}
