//! OIDs as values.
//!
//! Each server numbers what users define for itself (design 3.11). A value of type `regclass` or kin is such a number: as
//! text, which is a name, it means the same on every replica, but its number, its order and its hash do not. So in what a
//! statement writes such a value may become another value of its type, or text; wherever else it stands, the rows are
//! shipped, which go as text. A number that is given in the place of a name means another object on each replica.
//!
//! Labels of enumerations are stored as OIDs, too. Servers compare them by their place, and hash them by their OID.

use super::block::{EntryColumns, ScopeId};
use super::expr::At;
use super::facts::scalar_oid;
use super::{Analyser, Resolved};
use crate::ast::{Call, CreateTable, Expr, Literal, Name, Parted, PartedBy, Target, TypeRef};
use crate::catalogue::{Column, Oids};
use crate::class::Refusal;
use crate::functions::{Behaviour, builtin};
use crate::name_types::{has_number, names_name_type};
use crate::value::oid;

/// Why such a statement is not replayed.
pub(super) const REASON: &str = "it depends on OIDs, which differ between servers";

/// Types of text search whose names are given to functions as literals.
const CONFIGURATIONS: &[&str] = &["regconfig", "regdictionary"];

impl<'a> Analyser<'a> {
    /// A column, row or `*`, in whatever a statement computes: what it yields must not reach rows as a number.
    pub(super) fn mention(&mut self, path: &[String], star: bool, scope: ScopeId) {
        if self.shows_names(path, star, scope) {
            self.unreplayable(REASON);
        }
    }

    fn shows_names(&self, path: &[String], star: bool, scope: ScopeId) -> bool {
        if star {
            return self.entries_hold_names(path.last(), scope);
        }
        match self.resolve_column(scope, path).and_then(|key| self.column_of(key)) {
            Some(column) => column.holds_names(),
            // The name of a table stands for its whole row.
            None => path.len() == 1 && self.entries_hold_names(path.last(), scope),
        }
    }

    /// Whether rows of the relations of a name, or of all, hold names. What a subquery yields was looked at in it.
    fn entries_hold_names(&self, name: Option<&String>, scope: ScopeId) -> bool {
        let mut at = Some(scope);
        while let Some(id) = at {
            let scope = &self.scopes[id];
            let mut meant = scope.entries.iter().filter(|entry| name.is_none_or(|name| *name == entry.name));
            let holds = |columns: &EntryColumns| match columns {
                EntryColumns::Table(relation) => {
                    let table = self.relations.get(*relation as usize).copied().flatten();
                    table.is_some_and(|table| self.table(table).columns.iter().any(Column::holds_names))
                }
                EntryColumns::Derived(columns) => columns
                    .iter()
                    .any(|(_, key)| key.and_then(|key| self.column_of(key)).is_some_and(Column::holds_names)),
                EntryColumns::Opaque => false,
            };
            if meant.any(|entry| holds(&entry.columns)) {
                return true;
            }
            at = scope.parent.filter(|_| name.is_some());
        }
        false
    }

    /// The column that an expression is, if its values are names.
    fn names_column(&self, expr: &Expr, scope: ScopeId) -> Option<&'a Column> {
        let Expr::Column { path, star: false, .. } = expr else { return None };
        let column = self.resolve_column(scope, path).and_then(|key| self.column_of(key));
        column.filter(|column| column.holds_names())
    }

    /// Whether an expression is a column of names, and what receives it keeps them: text, or a column of the same type.
    pub(super) fn keeps_names(&self, expr: &Expr, receiver: &Column, scope: ScopeId) -> bool {
        let keeps = |names: &Column| receiver.type_name == names.type_name || receiver.category == Some('S');
        self.names_column(expr, scope).is_some_and(keeps)
    }

    /// `column::text`.
    pub(super) fn shows_as_text(&self, value: &Expr, to: &TypeRef, scope: ScopeId) -> bool {
        is_text(to) && self.names_column(value, scope).is_some()
    }

    /// A value for a column of names.
    pub(super) fn named_value(&mut self, expr: &'a Expr, receiver: &Column, at: At) {
        match expr {
            Expr::Literal { value: Literal::Text(text), at: place } => {
                self.named_literal(text, *place, at.scope)
            }
            Expr::Literal { value: Literal::Null, .. } | Expr::Default { .. } => {}
            Expr::Param { number, at: place } if !self.scope_is_body(at.scope) => {
                self.named_param(*number, *place, at.scope);
            }
            _ if self.keeps_names(expr, receiver, at.scope) => {}
            Expr::Literal { value: Literal::Int(_) | Literal::Number(_), .. } => {
                let refusal = given_by_number();
                self.refuse(refusal.reason, refusal.hint);
            }
            _ => {
                self.unreplayable(REASON);
                self.expr(expr, at);
            }
        }
    }

    /// A parameter that is read as the name of an object.
    fn named_param(&mut self, number: u32, place: u32, scope: ScopeId) {
        if self.scope_is_body(scope) {
            return;
        }
        self.param_place(number, place);
        if !self.oid_words.params.contains(&number) {
            self.oid_words.params.push(number);
        }
    }

    /// Text that is read as the name of an object, unless it is a number.
    fn named_literal(&mut self, text: &str, place: u32, scope: ScopeId) {
        let found = match self.scope_is_body(scope) {
            true => None,
            false => self.const_at(place),
        };
        match found {
            Some((index, _)) if !self.oid_words.consts.contains(&index) => self.oid_words.consts.push(index),
            Some(_) => {}
            None if has_number(text) => self.unreplayable(REASON),
            None => {}
        }
    }

    /// What a query yields for columns in order; `None` if new ones are made of what they are.
    pub(super) fn received_targets(
        &mut self,
        targets: &'a [Target],
        receivers: Option<&[&'a Column]>,
        at: At,
    ) {
        let stars = targets.iter().filter(|t| matches!(t.value, Expr::Column { star: true, .. })).count();
        let mut known = true;
        for (i, target) in targets.iter().enumerate() {
            let is_star = matches!(target.value, Expr::Column { star: true, .. });
            known &= !is_star;
            let receiver = receivers.filter(|_| known).and_then(|receivers| receivers.get(i)).copied();
            let kept = match (&target.value, receivers, receiver) {
                (value @ Expr::Column { star: false, .. }, None, _) => {
                    self.names_column(value, at.scope).is_some()
                }
                (Expr::Column { star: true, .. }, None, _) => true,
                (Expr::Column { path, star: true, .. }, Some(receivers), _) if stars == 1 => {
                    self.star_keeps_names(path.last(), receivers.get(i..).unwrap_or(&[]), at.scope)
                }
                (value, _, Some(receiver)) => self.keeps_names(value, receiver, at.scope),
                _ => false,
            };
            match receiver.filter(|receiver| super::zoned::is_zoned(receiver)) {
                Some(_) => self.zoned_value(&target.value, at.scope),
                // Of `*` the types are not compared.
                None if !known && receivers.is_some_and(|r| r.iter().any(|c| super::zoned::is_zoned(c))) => {
                    self.unreplayable(super::zoned::REASON);
                }
                None => {}
            }
            match receiver.filter(|receiver| receiver.holds_names() && !is_star) {
                _ if kept => {}
                Some(receiver) => self.named_value(&target.value, receiver, at),
                None => self.targets(std::slice::from_ref(target), at),
            }
            if !known && receivers.is_some_and(|r| r.iter().any(|receiver| receiver.holds_names())) && !kept {
                self.unreplayable(REASON);
            }
        }
    }

    /// Whether the columns of `*` are of the types of the columns that they go to, where either are names.
    fn star_keeps_names(&self, alias: Option<&String>, receivers: &[&Column], scope: ScopeId) -> bool {
        let Some(columns) = self.star_columns(alias, scope) else { return false };
        let columns = columns.iter().map(|(_, key)| key.and_then(|key| self.column_of(key)));
        columns.zip(receivers).all(|(column, receiver)| match column {
            Some(column) if column.holds_names() => {
                receiver.type_name == column.type_name || receiver.category == Some('S')
            }
            _ => !receiver.holds_names(),
        })
    }

    /// Whether users made a type of one whose values are names: a domain, a composite, the row of a table.
    pub(super) fn is_of_names(&self, name: &Name) -> bool {
        self.oids_of_users_type(name) == Some(Oids::Names)
    }

    /// Whether values of a type are names, or contain them.
    pub(super) fn shows_oids_as_names(&self, name: &Name) -> bool {
        self.oids_of_type(name) == Some(Oids::Names)
    }

    /// What values of a type of users hold: of the first schema of the search path that has a type of that name.
    fn oids_of_users_type(&self, name: &Name) -> Option<Oids> {
        let catalogue = self.catalogue();
        let by_names = |oids: &Oids| *oids == Oids::Names;
        let of = |schema: &str| {
            let of_type = catalogue.types.iter().find(|t| t.schema == schema && t.name == name.last());
            let of_row = || catalogue.tables.iter().find(|t| t.schema == schema && t.name == name.last());
            match of_type {
                Some(found) => Some(found.oids),
                None => of_row().map(|t| t.columns.iter().filter_map(|c| c.oids).max_by_key(by_names)),
            }
        };
        match name.schema() {
            Some(schema) => of(schema).flatten(),
            None => self.context.search_path.iter().find_map(|schema| of(schema)).flatten(),
        }
    }

    /// An argument of a function of text search that is a configuration or dictionary, as in
    /// `to_tsvector('english'::regconfig, body)`: the function goes by what it names, so that names may come from columns, too.
    pub(super) fn configures(&mut self, call: &'a Call, argument: usize, at: At) -> bool {
        let Some(expr) = configuration(call, argument) else { return false };
        let configures = self.is_configuration(expr, at.scope);
        if configures {
            self.configuration(expr, at);
        }
        configures
    }

    /// Whether an expression is certainly a configuration or dictionary of text search: a column, a cast, or one of several
    /// such, as CASE and COALESCE choose them.
    fn is_configuration(&self, expr: &Expr, scope: ScopeId) -> bool {
        match expr {
            Expr::Column { .. } => {
                self.names_column(expr, scope).is_some_and(|c| CONFIGURATIONS.contains(&c.type_name.as_str()))
            }
            Expr::Cast { value, to } => {
                let plain =
                    matches!(&**value, Expr::Literal { .. } | Expr::Param { .. } | Expr::Column { .. });
                let named = matches!(to.name.schema(), None | Some("pg_catalog")) && !to.array;
                let text = match &**value {
                    Expr::Column { .. } => self.is_configuration(value, scope),
                    _ => true,
                };
                plain && text && named && CONFIGURATIONS.contains(&to.name.last())
            }
            Expr::Form(parts) => {
                let chosen = |e: &Expr| match e {
                    Expr::Literal { value: Literal::Text(_) | Literal::Null, .. } => true,
                    Expr::Form(none) if none.is_empty() => true,
                    // Beside a configuration a column is one, too: the server takes nothing else there.
                    Expr::Column { path, star: false, .. } if self.resolve_column(scope, path).is_none() => {
                        true
                    }
                    _ => self.is_configuration(e, scope),
                };
                match case(parts) {
                    Some((test, whens, otherwise)) => {
                        let tests = whens.iter().map(|(when, _)| *when).chain([test]);
                        let results = || whens.iter().map(|(_, result)| *result).chain([otherwise]);
                        tests.into_iter().all(|e| !self.tells_oids(e, scope))
                            && results().all(chosen)
                            && results().any(|e| self.is_configuration(e, scope))
                    }
                    // COALESCE and NULLIF. GREATEST and LEAST, which go by OIDs, have one part.
                    None => {
                        parts.len() > 1
                            && parts.iter().all(chosen)
                            && parts.iter().any(|e| self.is_configuration(e, scope))
                    }
                }
            }
            _ => false,
        }
    }

    /// Whether what [`Self::is_configuration`] found gives a number in the place of a name.
    fn is_numbered(expr: &Expr) -> bool {
        match expr {
            Expr::Literal { value: Literal::Text(text), .. } => has_number(text),
            Expr::Cast { value, .. } => Self::is_numbered(value),
            Expr::Form(parts) => match case(parts) {
                Some((_, whens, otherwise)) => {
                    whens.iter().map(|(_, result)| *result).chain([otherwise]).any(Self::is_numbered)
                }
                None => parts.iter().any(Self::is_numbered),
            },
            _ => false,
        }
    }

    /// What [`Self::is_configuration`] found.
    fn configuration(&mut self, expr: &'a Expr, at: At) {
        match expr {
            Expr::Cast { value, .. } => self.configuration(value, at),
            Expr::Literal { value: Literal::Text(text), at: place } => {
                self.named_literal(text, *place, at.scope);
            }
            Expr::Param { number, at: place } => self.named_param(*number, *place, at.scope),
            // Found to be one that holds names.
            Expr::Column { .. } => {}
            Expr::Form(parts) => match case(parts) {
                Some((test, whens, otherwise)) => {
                    self.expr(test, at);
                    for (when, result) in whens {
                        self.expr(when, at);
                        self.configuration(result, at);
                    }
                    self.configuration(otherwise, at);
                }
                None => parts.iter().for_each(|part| self.configuration(part, at)),
            },
            _ => self.expr(expr, at),
        }
    }

    // Definitions. What is computed in them is computed by each replica, and cannot be shipped.

    /// Whether an expression over columns of a table yields, compares or hashes OIDs.
    fn tells_oids(&self, expr: &Expr, scope: ScopeId) -> bool {
        let any = |parts: &[Expr]| parts.iter().any(|part| self.tells_oids(part, scope));
        match expr {
            Expr::Column { path, star, .. } => self.shows_names(path, *star, scope),
            Expr::Literal { .. }
            | Expr::Param { .. }
            | Expr::Clock { .. }
            | Expr::Session(_)
            | Expr::Selection { .. }
            | Expr::Default { .. } => false,
            Expr::Cast { value, to } => {
                let named = is_name_type(&to.name) || self.is_of_names(&to.name);
                named || !self.shows_as_text(value, to, scope) && self.tells_oids(value, scope)
            }
            Expr::Call(call) => {
                let hashes = matches!(call.name.schema(), None | Some("pg_catalog"))
                    && builtin(call.name.last(), call.arguments.len()) == Some(Behaviour::Oids);
                let path = self.context.search_path;
                let mut functions = self.catalogue().functions_named(&call.name, path);
                let argument = |(i, e): (usize, &Expr)| match configuration(call, i) {
                    Some(_) if self.is_configuration(e, scope) => Self::is_numbered(e),
                    _ => self.tells_oids(e, scope),
                };
                hashes
                    || functions.any(|(_, f)| f.oids == Some(Oids::Names))
                    || call.arguments.iter().enumerate().any(argument)
            }
            Expr::Operator { left, right, .. } => {
                left.iter().chain(right).any(|side| self.tells_oids(side, scope))
            }
            Expr::OfArray { left, right, .. } => {
                self.tells_oids(left, scope) || self.tells_oids(right, scope)
            }
            Expr::In { left, list, .. } => self.tells_oids(left, scope) || any(list),
            Expr::Not(value) | Expr::Collate { value } => self.tells_oids(value, scope),
            Expr::Chain { operands: parts, .. }
            | Expr::And(parts)
            | Expr::Or(parts)
            | Expr::Row(parts)
            | Expr::Array(parts)
            | Expr::Form(parts) => any(parts),
            _ => true,
        }
    }

    /// Refuses changes of a table with a generated column that each replica would compute otherwise, or whose rows would lie
    /// in other partitions.
    pub(super) fn refuse_computed_oids(&mut self, table: usize) {
        let t = self.table(table);
        let partitions = self.catalogue().partitions(table);
        let parted = std::iter::once(table).chain(partitions).find(|i| self.table(*i).partitioned_by_oids);
        if let Some(parted) = parted {
            let name = &self.table(parted).name;
            self.refuse(
                format!("the rows of {name} belong to partitions by the OIDs of labels or names, which differ between replicas"),
                "partition it by LIST, or by another column",
            );
        }
        for column in t.columns.iter().filter(|c| c.generated == Some('s')) {
            let Some(text) = &column.default else { continue };
            let scope = self.scope_of(table);
            let Some(expr) = self.library.expression(text) else { continue };
            if !self.keeps_names(expr, column, scope) && self.tells_oids(expr, scope) {
                self.refuse(
                    format!(
                        "the generated column {} of {} is made of OIDs, which differ between replicas",
                        column.name, t.name
                    ),
                    "let it be generated of the name as text",
                );
            }
        }
    }

    /// A name space of one table.
    fn scope_of(&mut self, table: usize) -> ScopeId {
        let relation = self.new_relation(Some(table));
        let scope = self.new_scope(None, None, true);
        let (name, columns) = (self.table(table).name.clone(), EntryColumns::Table(relation));
        self.scopes[scope].entries.push(super::block::Entry { name, columns });
        scope
    }

    /// An index whose expressions or condition go by OIDs: which rows it holds to be alike would differ.
    pub(super) fn index_tells_oids(&mut self, table: &Name, parts: &[Expr]) -> bool {
        let Resolved::Table(index) = self.peek(table) else { return false };
        let scope = self.scope_of(index);
        parts.iter().any(|part| self.tells_oids(part, scope))
    }

    /// ALTER TABLE that makes values of a type, of a column (`None`: one that is added) or of what an expression says.
    pub(super) fn converts_oids(
        &mut self,
        table: usize,
        column: Option<&str>,
        value: Option<&Expr>,
        to: &TypeRef,
    ) -> bool {
        let t = self.table(table);
        let to_names = is_name_type(&to.name) || self.is_of_names(&to.name);
        let scope = self.scope_of(table);
        match (value, column) {
            (Some(value), _) if to_names => !self.yields_names(value, to, scope),
            (Some(value), _) => self.tells_oids(value, scope),
            (None, Some(column)) => t.column(column).is_some_and(|old| {
                let same = to_names && !to.array && old.type_name == to.name.last();
                let shown = old.holds_names() && is_text(to);
                (to_names || old.holds_names()) && !same && !shown
            }),
            (None, None) => false,
        }
    }

    /// Whether an expression yields the same names of a type on every replica.
    fn yields_names(&self, value: &Expr, of: &TypeRef, scope: ScopeId) -> bool {
        match value {
            Expr::Literal { value: Literal::Text(text), .. } => !has_number(text),
            Expr::Literal { value: Literal::Null, .. } => true,
            Expr::Cast { value, to } => {
                matches!(**value, Expr::Literal { .. })
                    && to.name.last() == of.name.last()
                    && self.yields_names(value, of, scope)
            }
            Expr::Column { .. } => {
                !of.array && self.names_column(value, scope).is_some_and(|c| c.type_name == of.name.last())
            }
            _ => false,
        }
    }

    /// Whether the rows of a new table would be parted by OIDs.
    pub(super) fn parts_by_oids(&self, create: &CreateTable) -> bool {
        let Some(Parted { by, key }) = &create.parted else { return false };
        *by != PartedBy::List && key.iter().any(|part| self.part_tells_oids(part, *by, create))
    }

    fn part_tells_oids(&self, part: &Expr, by: PartedBy, create: &CreateTable) -> bool {
        let tells = |oids: Option<Oids>| match oids {
            Some(Oids::Names) => true,
            Some(Oids::Labels) => by == PartedBy::Hash,
            None => false,
        };
        match part {
            Expr::Column { path, .. } => {
                let Some(name) = path.last() else { return true };
                if let Some((_, of)) = create.columns.iter().find(|(column, _)| column == name) {
                    return tells(self.oids_of_type(&of.name));
                }
                // Of LIKE, INHERITS or the table that it is a partition of; where those are not known, of some type.
                let others = create.others.iter().filter_map(|other| match self.peek(other) {
                    Resolved::Table(index) => self.table(index).column(name),
                    _ => None,
                });
                let mut found = others.peekable();
                found.peek().is_none() || found.any(|column| tells(column.oids))
            }
            Expr::Literal { .. } | Expr::Selection { .. } => false,
            Expr::Cast { value, to } => {
                tells(self.oids_of_type(&to.name)) || self.part_tells_oids(value, by, create)
            }
            Expr::Collate { value } => self.part_tells_oids(value, by, create),
            Expr::Call(call) => {
                let system = self.catalogue().builtins_named(call.name.last()).next().is_some();
                // What functions of users yield is not known.
                let of_users = !system && self.catalogue().types.iter().any(|t| tells(t.oids));
                of_users || call.arguments.iter().any(|argument| self.part_tells_oids(argument, by, create))
            }
            Expr::Operator { left, right, .. } => {
                left.iter().chain(right).any(|side| self.part_tells_oids(side, by, create))
            }
            Expr::Chain { operands: parts, .. }
            | Expr::Form(parts)
            | Expr::Array(parts)
            | Expr::Row(parts) => parts.iter().any(|part| self.part_tells_oids(part, by, create)),
            _ => true,
        }
    }

    /// What values of a type hold, arrays by the name of their elements.
    fn oids_of_type(&self, name: &Name) -> Option<Oids> {
        if is_name_type(name) {
            return Some(Oids::Names);
        }
        let of_element = || {
            let mut parts: Vec<String> = name.schema().map(str::to_owned).into_iter().collect();
            parts.push(name.last().strip_prefix('_')?.to_owned());
            self.oids_of_users_type(&Name::new(parts))
        };
        self.oids_of_users_type(name).or_else(of_element)
    }
}

/// A statement gives an OID where an object is named: on each server that is another object, or none.
pub(super) fn given_by_number() -> Refusal {
    Refusal::new(
        "a column of names (regclass and kin) is given an OID, which is another object's on each replica",
        "write the object's name; with a moment by the clock ('now' ...) in the same statement, write that by itself",
    )
}

fn is_text(to: &TypeRef) -> bool {
    let plain = TypeRef { modifiers: false, ..to.clone() };
    matches!(scalar_oid(&plain), Some(oid::TEXT | oid::VARCHAR | oid::BPCHAR))
}

/// `regclass` and kin, and arrays of them by their own names.
pub(super) fn is_name_type(name: &Name) -> bool {
    matches!(name.schema(), None | Some("pg_catalog")) && names_name_type(name.last())
}

/// The argument at a place of a function's call, if that may be a configuration or dictionary of text search.
fn configuration(call: &Call, argument: usize) -> Option<&Expr> {
    let least = match call.name.last() {
        "to_tsvector"
        | "to_tsquery"
        | "plainto_tsquery"
        | "phraseto_tsquery"
        | "websearch_to_tsquery"
        | "ts_lexize" => 2,
        "json_to_tsvector" | "jsonb_to_tsvector" | "ts_headline" => 3,
        _ => return None,
    };
    let takes = matches!(call.name.schema(), None | Some("pg_catalog")) && argument == 0;
    call.arguments.first().filter(|_| takes && call.arguments.len() >= least)
}

/// The parts of a CASE: what it tests, the conditions with their results, and the default. A COALESCE that looks like one is
/// taken for it.
type Case<'e> = (&'e Expr, Vec<(&'e Expr, &'e Expr)>, &'e Expr);

fn case(parts: &[Expr]) -> Option<Case<'_>> {
    let [test, whens @ .., otherwise] = parts else { return None };
    if whens.is_empty() {
        return None;
    }
    let mut pairs = Vec::with_capacity(whens.len());
    for when in whens {
        let Expr::Form(pair) = when else { return None };
        let [test, result] = pair.as_slice() else { return None };
        pairs.push((test, result));
    }
    Some((test, pairs, otherwise))
}
