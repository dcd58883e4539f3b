//! Names behind a dot that are no columns: `b.f` and `(b).f` call the function f with the row of b, and `(value).f` with a
//! value of any type. Only statements and functions' bodies are written so: the server shows such calls as `f(b.*)` in
//! views, checks and whatever else it prints.

use super::block::{EntryColumns, ScopeId};
use super::expr::{At, is_system_column};
use super::facts::builtin_type;
use super::{Analyser, Resolved};
use crate::ast::{self, Call, Expr, Name};
use crate::catalogue::{Function, Volatility};
use crate::functions::{Behaviour, builtin};

/// Whether what stands before a name has a column of that name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holds {
    Certainly,
    Maybe,
    Never,
}

impl<'a> Analyser<'a> {
    /// `b.f`.
    pub(super) fn selected_of_row(&mut self, path: &[String], at: At) {
        let Some((name, Some(qualifier))) = ast::name_and_qualifier(path) else { return };
        let holds = self.row_holds(qualifier, name, at.scope);
        let row = Expr::Column { path: vec![qualifier.clone()], star: false, at: u32::MAX };
        self.selected(name, &row, holds, at);
    }

    /// `(value).f`, `$1.f`, `(value).a.f`.
    pub(super) fn selected_of_parts(&mut self, parts: &[Expr], at: At) {
        for (i, part) in parts.iter().enumerate().skip(1) {
            let (Expr::Selection { name }, Some(of)) = (part, parts.first()) else { continue };
            // What lies deeper is not known.
            let holds = if i == 1 { self.value_holds(of, name, at.scope) } else { Holds::Maybe };
            self.selected(name, of, holds, at);
        }
    }

    /// Whether USING, as far as it consists of columns and casts, calls a function of a table's row.
    pub(super) fn converts_by_selection(&mut self, table: &Name, using: &Expr) -> bool {
        match using {
            Expr::Column { path, star: false, .. } if path.len() > 1 => match (self.peek(table), path.last())
            {
                (Resolved::Table(index), Some(name)) => self.table(index).column(name).is_none(),
                _ => false,
            },
            Expr::Cast { value, .. } => self.converts_by_selection(table, value),
            Expr::Form(parts) | Expr::Array(parts) => {
                parts.iter().any(|part| self.converts_by_selection(table, part))
            }
            _ => false,
        }
    }

    /// What a call does whose name was written as that of a column. What it is called with was looked at before.
    fn selected(&mut self, name: &str, of: &Expr, holds: Holds, at: At) {
        if holds == Holds::Certainly || is_system_column(name) {
            return;
        }
        let called = Name::new(vec![name.to_owned()]);
        let takes_one = |f: &Function| f.variadic || f.arguments >= 1 && f.arguments <= f.defaults + 1;
        let of_users = self.catalogue().functions_named(&called, self.context.search_path);
        let of_users: Vec<&Function> = of_users.map(|(_, f)| f).filter(|f| takes_one(f)).collect();
        let least = |b: &&crate::catalogue::Builtin| b.arguments.0 <= 1 && b.arguments.1 >= 1;
        let mut of_system = self.catalogue().builtins_named(name).filter(least);
        let is_called = !of_users.is_empty()
            || match holds {
                Holds::Never => of_system.next().is_some() || self.is_type_name(&called),
                // Columns are often called as functions are that do nothing.
                _ => of_system.any(|b| {
                    b.volatility == Volatility::Volatile
                        || builtin(name, 1) == Some(Behaviour::OrderedAggregate)
                }),
            };
        if !is_called {
            return;
        }
        self.selects_calls = true;
        if of_users.iter().any(|f| f.set) {
            self.unreplayable(format!("{name}() may yield several rows for one"));
        }
        let call = Call {
            name: called,
            arguments: vec![of.clone()],
            named: false,
            star: false,
            distinct: false,
            order_by: Vec::new(),
            within_group: false,
            filter: None,
            over: None,
            record: Vec::new(),
            at: u32::MAX,
        };
        let library = self.library;
        let Expr::Call(call) = &*library.expressions.alloc(Expr::Call(Box::new(call))) else { return };
        // Nothing of it can be replaced in the text.
        let env = self.scopes[at.scope].env;
        let scope = self.new_scope(Some(at.scope), env, true);
        self.call_alone(call, At::each(scope));
    }

    fn row_holds(&self, qualifier: &str, name: &str, scope: ScopeId) -> Holds {
        let mut at = Some(scope);
        while let Some(id) = at {
            let scope = &self.scopes[id];
            let named = scope.entries.iter().enumerate().filter(|(_, entry)| entry.name == *qualifier);
            let found: Vec<Holds> = named.map(|(i, _)| self.entry_holds(id, i, name)).collect();
            for holds in [Holds::Certainly, Holds::Maybe, Holds::Never] {
                if found.contains(&holds) {
                    return holds;
                }
            }
            at = scope.parent;
        }
        // An argument of a function, OLD or NEW, or an error.
        Holds::Maybe
    }

    fn entry_holds(&self, scope: ScopeId, entry: usize, name: &str) -> Holds {
        let is_column = match &self.scopes[scope].entries[entry].columns {
            EntryColumns::Table(relation) => {
                match self.relations.get(*relation as usize).copied().flatten() {
                    Some(table) => self.table(table).column(name).is_some(),
                    None => return Holds::Maybe,
                }
            }
            EntryColumns::Derived(columns) => columns.iter().any(|(column, _)| column == name),
            EntryColumns::Opaque => {
                let mut known = self.derived.get(&(scope, entry)).into_iter().flatten();
                return if known.any(|column| column.name == name) { Holds::Certainly } else { Holds::Maybe };
            }
        };
        if is_column { Holds::Certainly } else { Holds::Never }
    }

    fn value_holds(&self, value: &Expr, name: &str, scope: ScopeId) -> Holds {
        match value {
            Expr::Column { path, star: false, .. } => {
                match (self.resolve_column(scope, path).and_then(|key| self.column_of(key)), path.as_slice())
                {
                    (Some(column), _) if column.type_oid != 0 => Holds::Never,
                    (None, [row]) => self.row_holds(row, name, scope),
                    _ => Holds::Maybe,
                }
            }
            Expr::Cast { to, .. } if builtin_type(&to.name).is_some() => Holds::Never,
            Expr::Literal { .. } | Expr::Clock { .. } | Expr::Session(_) => Holds::Never,
            _ => Holds::Maybe,
        }
    }
}
