//! Columns that a query, a function in FROM or RETURNING yields: what is known of them where they are no plain columns of
//! tables, so that names do not hide it.

use super::Analyser;
use super::block::{EntryColumns, ScopeId};
use super::expr::is_system_column;
use super::freeze::column_name;
use super::sameness::Same;
use crate::ast::{self, Expr, From, Literal, Name, Statement, Target};
use crate::catalogue::{Column, Table};

/// What is known of a column by its name.
#[derive(Clone, Debug)]
pub(super) struct Derived {
    pub(super) name: String,
    /// Its values may be text that somebody wrote, and that nobody has looked at.
    pub(super) text: bool,
    /// The system column of a user's table of which it is made.
    pub(super) place: Option<String>,
    /// Its values, if equal ones among them are the same.
    pub(super) same: Option<Same>,
}

/// Columns in order; None if their number is not known.
pub(super) type DerivedList = Option<Vec<Derived>>;

impl<'a> Analyser<'a> {
    /// The columns that a list of targets yields, once its name space is complete.
    pub(super) fn derived_of_targets(&self, targets: &[Target], scope: ScopeId) -> DerivedList {
        let mut list = Vec::new();
        for target in targets {
            match &target.value {
                Expr::Column { path, star: true, .. } => {
                    list.extend(self.derived_of_star(path.last(), scope)?)
                }
                value => list.push(Derived {
                    name: match (&target.name, value) {
                        (Some(name), _) => name.clone(),
                        (None, Expr::Column { path, .. }) => path.last().cloned().unwrap_or_default(),
                        (None, value) => column_name(value).map(|(name, _)| name).unwrap_or_default(),
                    },
                    text: self.yields_text(value, scope),
                    place: self.place(value, scope),
                    same: self.same(value, scope),
                }),
            }
        }
        Some(list)
    }

    pub(super) fn derived_of_star(&self, alias: Option<&String>, scope: ScopeId) -> DerivedList {
        let mut list = Vec::new();
        for (i, entry) in self.scopes[scope].entries.iter().enumerate() {
            if alias.is_some_and(|alias| *alias != entry.name) {
                continue;
            }
            match (&entry.columns, self.derived.get(&(scope, i))) {
                (EntryColumns::Table(relation), _) => {
                    let table = self.relations.get(*relation as usize).copied().flatten()?;
                    list.extend(self.shape(*relation, table).columns.iter().map(of_column));
                }
                (_, Some(derived)) => {
                    list.extend(derived.iter().filter(|d| !is_system_column(&d.name)).cloned());
                }
                _ => return None,
            }
        }
        Some(list)
    }

    /// VALUES.
    pub(super) fn derived_of_values(&self, rows: &[Vec<Expr>], scope: ScopeId) -> DerivedList {
        let width = rows.first()?.len();
        let of = |i: usize| Derived {
            name: format!("column{}", i + 1),
            text: rows.iter().any(|row| row.get(i).is_none_or(|value| self.yields_text(value, scope))),
            place: rows.iter().find_map(|row| self.place(row.get(i)?, scope)),
            same: {
                let mut same = rows.iter().map(|row| self.same(row.get(i)?, scope));
                let first = same.next().flatten();
                same.fold(first, |one, other| one?.and(other?))
            },
        };
        Some((0..width).map(of).collect())
    }

    /// A function in FROM whose values are of the type of its arguments.
    pub(super) fn derived_of_function(&self, item: &From, name: &str, scope: ScopeId) -> DerivedList {
        let From::Function { calls, alias, ordinality } = item else { return None };
        let [Expr::Call(call)] = calls.as_slice() else { return None };
        let elements = call.name.last() == "unnest" && call.arguments.len() == 1;
        let known = elements || call.name.last() == "generate_series";
        if !known || !matches!(call.name.schema(), None | Some("pg_catalog")) {
            return None;
        }
        let given = alias.as_ref().map_or(&[][..], |alias| alias.columns.as_slice());
        let named = |i: usize, name: &str| given.get(i).map_or_else(|| name.to_owned(), Clone::clone);
        let text = elements || call.arguments.iter().any(|argument| self.yields_text(argument, scope));
        let place = call.arguments.iter().find_map(|argument| self.place(argument, scope));
        let same = self.same(&calls[0], scope);
        let mut list = vec![Derived { name: named(0, name), text, place, same }];
        if *ordinality {
            list.push(Derived {
                name: named(1, "ordinality"),
                text: false,
                place: None,
                same: Some(Same::Integer),
            });
        }
        Some(list)
    }

    /// RETURNING of a change of rows in WITH.
    pub(super) fn derived_of_returning(&self, statement: &Statement) -> DerivedList {
        let (table, returning, alone) = match statement {
            Statement::Insert(s) => (&s.table, &s.returning, true),
            Statement::Update(s) => (&s.table, &s.returning, s.from.is_empty()),
            Statement::Delete(s) => (&s.table, &s.returning, s.using.is_empty()),
            _ => return None,
        };
        let super::Resolved::Table(index) = self.peek(table) else { return None };
        let t = self.table(index);
        let mut list = Vec::new();
        for target in returning.as_ref()? {
            match &target.value {
                Expr::Column { star: true, .. } if alone => list.extend(t.columns.iter().map(of_column)),
                Expr::Column { star: true, .. } => return None,
                value => {
                    let column = match value {
                        Expr::Column { path, .. } if alone => path.last().and_then(|name| t.column(name)),
                        _ => None,
                    };
                    let system = match value {
                        Expr::Column { path, .. } => {
                            path.last().filter(|name| is_system_column(name)).cloned()
                        }
                        _ => None,
                    };
                    let shown = match value {
                        Expr::Column { path, .. } => path.last().cloned(),
                        value => column_name(value).map(|(name, _)| name),
                    };
                    list.push(Derived {
                        name: target.name.clone().or(shown).unwrap_or_default(),
                        text: column.is_none_or(is_text),
                        place: system,
                        same: column.and_then(Same::of_column),
                    });
                }
            }
        }
        Some(list)
    }

    /// The columns of the arms of UNION and kin.
    pub(super) fn derived_of_arms(arms: Vec<DerivedList>) -> DerivedList {
        let mut arms = arms.into_iter();
        let mut list = arms.next()??;
        for arm in arms {
            let arm = arm?;
            for (i, derived) in list.iter_mut().enumerate() {
                let other = arm.get(i);
                derived.text |= other.is_none_or(|other| other.text);
                derived.place = derived.place.take().or_else(|| other.and_then(|other| other.place.clone()));
                derived.same =
                    derived.same.zip(other.and_then(|other| other.same)).and_then(|(one, two)| one.and(two));
            }
        }
        Some(list)
    }

    /// Notes what is known of the columns of an entry of a name space.
    pub(super) fn note_derived(
        &mut self,
        scope: ScopeId,
        entry: usize,
        list: DerivedList,
        renames: &[String],
    ) {
        let Some(mut list) = list else { return };
        for (derived, rename) in list.iter_mut().zip(renames) {
            derived.name.clone_from(rename);
        }
        self.derived.insert((scope, entry), list);
    }

    /// What is known of a column that is no plain one of a table.
    pub(super) fn derived_column(&self, scope: ScopeId, path: &[String]) -> Option<&Derived> {
        let (name, qualifier) = ast::name_and_qualifier(path)?;
        let mut at = Some(scope);
        while let Some(id) = at {
            let scope = &self.scopes[id];
            let mut unknown = false;
            for (i, entry) in scope.entries.iter().enumerate() {
                if qualifier.is_some_and(|q| *q != entry.name) {
                    continue;
                }
                let list = self.derived.get(&(id, i));
                if let Some(found) = list.and_then(|list| list.iter().find(|d| d.name == *name)) {
                    return Some(found);
                }
                unknown |= match &entry.columns {
                    EntryColumns::Opaque => list.is_none(),
                    EntryColumns::Derived(columns) => columns.iter().any(|(n, _)| n == name),
                    EntryColumns::Table(_) => false,
                };
            }
            if unknown {
                return None;
            }
            at = scope.parent;
        }
        None
    }

    /// Whether values that an expression yields may be text that nobody has looked at. Literals and parameters are, where
    /// they are written as what they are.
    fn yields_text(&self, expr: &Expr, scope: ScopeId) -> bool {
        match expr {
            Expr::Literal { .. } => false,
            Expr::Param { .. } => self.scope_is_body(scope),
            Expr::Collate { .. } => true,
            Expr::Cast { value, .. } => match &**value {
                Expr::Literal { value: Literal::Text(_), .. } | Expr::Param { .. } => {
                    !self.reads_as_no_text(expr)
                }
                _ => self.may_be_text(expr, scope),
            },
            Expr::Form(parts) | Expr::Array(parts) => parts.iter().any(|part| self.yields_text(part, scope)),
            _ => self.may_be_text(expr, scope),
        }
    }

    /// Whether a cast yields a type of the system that is no text.
    fn reads_as_no_text(&self, cast: &Expr) -> bool {
        let Expr::Cast { to, .. } = cast else { return false };
        let texts = ["text", "varchar", "bpchar", "name", "char", "unknown", "json", "jsonb", "xml"];
        !to.array && super::facts::builtin_type(&to.name).is_some() && !texts.contains(&to.name.last())
    }
}

/// A table's columns, then those of the system, which keep their names where an alias renames the others.
pub(super) fn derived_of_table(table: &Table) -> Vec<Derived> {
    let places = ["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"].map(str::to_owned);
    let places =
        places.map(|name| Derived { name: name.clone(), text: false, place: Some(name), same: None });
    table.columns.iter().map(of_column).chain(places).collect()
}

fn of_column(column: &Column) -> Derived {
    Derived { name: column.name.clone(), text: is_text(column), place: None, same: Same::of_column(column) }
}

/// Whether values of a column may be text: not dates and times, spans of time, numbers, truth values.
pub(super) fn is_text(column: &Column) -> bool {
    !matches!(column.category, Some('D' | 'T' | 'N' | 'B'))
}

/// Whether a comparison of values, or their order, is what an operator tells.
pub(super) fn is_comparison(name: &Name) -> bool {
    matches!(name.last(), "=" | "<>" | "!=" | "<" | ">" | "<=" | ">=")
}
