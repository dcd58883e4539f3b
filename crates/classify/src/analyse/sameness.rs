//! Values that are equal and not the same: numeric 1.0 and 1.00, 0 and -0, a day and 24 hours.
//!
//! DISTINCT, GROUP BY and set operations keep one of several equal rows, the first that they meet, and replicas meet rows in
//! different orders. Where equal values of a type are the same bytes it does not matter which is kept; where they may differ, or
//! the type is not known, what is kept is shipped.

use super::Analyser;
use super::block::{EntryColumns, ScopeId};
use super::derived::DerivedList;
use super::facts::builtin_type;
use crate::ast::{self, Body, Call, Distinct, Expr, From, Literal, Name, Query, Select, TypeRef};
use crate::catalogue::{Column, Volatility};
use crate::value::{Canon, oid};

/// A set of values among which equal ones are the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Same {
    /// NULL, which takes any type.
    Null,
    /// A text literal, which takes the type of what stands beside it.
    Given,
    /// Values that are the same if they are equal, and not known to be so beside any others: one value throughout the statement,
    /// a field of moments, sums of integers.
    Alone,
    Integer,
    /// numeric with this many fractional digits.
    Number(u16),
    Bool,
    /// text and varchar under a deterministic collation.
    Text,
    /// char of this length.
    Blank(u32),
    Label,
    /// Another type of the system, by its OID.
    Of(u32),
}

impl Same {
    /// The values of a column, if equal ones among them are the same.
    pub(super) fn of_column(column: &Column) -> Option<Same> {
        match Canon::of(column) {
            Some(Canon::Integer) => Some(Same::Integer),
            Some(Canon::Numeric { scale }) => scale.map(Same::Number),
            Some(Canon::Text { .. }) => Some(Same::Text),
            Some(Canon::Blank { length_max }) => length_max.map(Same::Blank),
            Some(Canon::Uuid) => Some(Same::Of(oid::UUID)),
            Some(Canon::Bytea) => Some(Same::Of(oid::BYTEA)),
            Some(Canon::Bool) => Some(Same::Bool),
            Some(Canon::Label) => Some(Same::Label),
            None if column.deterministic => Same::of_type(column.type_oid),
            None => None,
        }
    }

    /// The values of a type of the system without modifiers, under a deterministic collation.
    fn of_type(type_oid: u32) -> Option<Same> {
        Some(match type_oid {
            oid::INT2 | oid::INT4 | oid::INT8 => Same::Integer,
            oid::BOOL => Same::Bool,
            oid::TEXT | oid::VARCHAR => Same::Text,
            oid::BYTEA
            | oid::UUID
            | oid::NAME
            | oid::OID
            | oid::CHAR
            | oid::DATE
            | oid::TIME
            | oid::TIMESTAMP
            | oid::TIMESTAMPTZ
            | oid::INET
            | oid::CIDR
            | oid::MONEY => Same::Of(type_oid),
            _ => return None,
        })
    }

    /// The elements of a type of arrays.
    fn of_elements(array_oid: u32) -> Option<Same> {
        Some(match array_oid {
            oid::INT2_ARRAY | oid::INT4_ARRAY | oid::INT8_ARRAY => Same::Integer,
            oid::TEXT_ARRAY | oid::VARCHAR_ARRAY => Same::Text,
            oid::UUID_ARRAY => Same::Of(oid::UUID),
            _ => return None,
        })
    }

    /// The values of either, brought to one type.
    pub(super) fn and(self, other: Same) -> Option<Same> {
        match (self, other) {
            (Same::Null, one) | (one, Same::Null) => Some(one),
            (Same::Alone, _) | (_, Same::Alone) => None,
            // A literal becomes a numeric or char without the column's modifiers.
            (Same::Given, Same::Number(_) | Same::Blank(_))
            | (Same::Number(_) | Same::Blank(_), Same::Given) => None,
            (Same::Given, one) | (one, Same::Given) => Some(one),
            (one, two) => (one == two).then_some(one),
        }
    }
}

/// What a name in an expression stands for.
enum Found {
    Nothing,
    Column(Option<Same>),
}

impl<'a> Analyser<'a> {
    /// Notes where a SELECT keeps one of several equal rows, of which another may be kept elsewhere. `shows` tells whether
    /// anything but the number of its rows matters.
    pub(super) fn check_kept(&mut self, select: &'a Select, scope: ScopeId, shows: bool) {
        if select.distinct == Distinct::All && shows && !self.is_fixed(select) {
            let keys: Vec<&Expr> = select.targets.iter().map(|target| &target.value).collect();
            if !self.keeps_the_same(&keys, scope, true) {
                self.unreplayable(
                    "DISTINCT keeps one of several equal values that need not be the same, the first that it meets",
                );
            }
        }
        if !select.group_by.is_empty() && (shows || select.having.is_some()) && !self.is_fixed(select) {
            let keys = self.group_keys(select, scope);
            if !keys.is_some_and(|keys| self.keeps_the_same(&keys, scope, !select.grouping_sets)) {
                self.unreplayable(
                    "GROUP BY keeps one of several equal values that need not be the same, the first that it meets",
                );
            }
        }
    }

    /// The same for UNION, INTERSECT and EXCEPT: `lists` are the columns of the arms, of which the first alone gives the types
    /// where the others `recur`.
    pub(super) fn check_kept_of_arms(&mut self, arms: &[Query], lists: &[DerivedList], recur: bool) {
        if arms.iter().all(|arm| self.is_fixed_query(arm)) {
            return;
        }
        let typing = if recur { lists.get(..1).unwrap_or_default() } else { lists };
        let same = |list: &DerivedList| -> Option<Vec<Same>> {
            list.as_ref()?.iter().map(|derived| derived.same).collect()
        };
        let columns: Option<Vec<Vec<Same>>> = typing.iter().map(same).collect();
        let is_same = columns.is_some_and(|arms| {
            let Some((first, rest)) = arms.split_first() else { return false };
            (0..first.len()).all(|i| {
                let others = rest.iter().map(|arm| arm.get(i).copied());
                let one = first.get(i).copied();
                others.fold(one, |one, other| one?.and(other?)).is_some()
            })
        });
        if !is_same {
            self.unreplayable(
                "UNION, INTERSECT and EXCEPT keep one of several equal values that need not be the same, the first that they meet",
            );
        }
    }

    /// Whether equal values of all keys are the same. Columns beside the whole unique key of their table are, since no two rows
    /// share it, if that is to count (`by_row`).
    fn keeps_the_same(&mut self, keys: &[&'a Expr], scope: ScopeId, by_row: bool) -> bool {
        let mut columns = Vec::new();
        let mut open = Vec::new();
        for key in keys {
            match key {
                Expr::Column { path, star: true, .. } => {
                    let alias = if path.is_empty() { None } else { path.last() };
                    match (self.star_columns(alias, scope), self.derived_of_star(alias, scope)) {
                        (Some(found), Some(derived)) if found.len() == derived.len() => {
                            for ((_, key), derived) in found.iter().zip(&derived) {
                                columns.extend(*key);
                                if derived.same.is_none() {
                                    open.push(*key);
                                }
                            }
                        }
                        (_, Some(derived)) => {
                            open.extend(derived.iter().filter(|d| d.same.is_none()).map(|_| None));
                        }
                        _ => return false,
                    }
                }
                key => {
                    let column = self.column_key(key, scope);
                    columns.extend(column);
                    if self.same(key, scope).is_none() {
                        open.push(column);
                    }
                }
            }
        }
        open.iter().all(|key| {
            let Some((relation, _)) = key else { return false };
            let Some(table) = self.relations.get(*relation as usize).copied().flatten() else { return false };
            by_row
                && self.catalogue().children(table).is_empty()
                && self.table(table).unique.iter().any(|unique| {
                    let is_key = |number: &u16| {
                        *number != 0
                            && columns.contains(&(*relation, *number))
                            && (unique.primary
                                || self.table(table).column_by_number(*number).is_some_and(|c| c.not_null))
                    };
                    !unique.partial && unique.immediate && unique.columns.iter().all(is_key)
                })
        })
    }

    /// The expressions of GROUP BY, those that name targets by number or name resolved; None if one is not known.
    fn group_keys(&mut self, select: &'a Select, scope: ScopeId) -> Option<Vec<&'a Expr>> {
        let mut keys = Vec::new();
        let mut open: Vec<&'a Expr> = select.group_by.iter().collect();
        while let Some(key) = open.pop() {
            match key {
                Expr::Form(parts) | Expr::Row(parts) if select.grouping_sets => open.extend(parts),
                Expr::Literal { value: Literal::Int(number), at } => {
                    let index = usize::try_from(*number - 1).ok()?;
                    if !self.scope_is_body(scope)
                        && let Some((constant, _)) = self.const_at(*at)
                    {
                        self.pinned.insert(constant);
                    }
                    keys.push(&select.targets.get(index)?.value);
                }
                Expr::Column { path, star: false, .. } if path.len() == 1 => {
                    let named = |target: &&ast::Target| target.name.as_deref() == Some(path[0].as_str());
                    let target = select.targets.iter().find(named);
                    match (self.found_in(scope, path), target) {
                        (Found::Nothing, Some(target)) => keys.push(&target.value),
                        _ => keys.push(key),
                    }
                }
                key => keys.push(key),
            }
        }
        Some(keys)
    }

    /// Whether the rows of a SELECT come in the same order everywhere, before they are made distinct.
    fn is_fixed(&self, select: &Select) -> bool {
        let fixed = |from: &From| matches!(from, From::Function { calls, .. } if !calls.iter().any(|call| self.reads_in_no_order(call)));
        select.from.iter().all(fixed) && !select.targets.iter().any(|t| self.reads_in_no_order(&t.value))
    }

    pub(super) fn is_fixed_query(&self, query: &Query) -> bool {
        match &query.body {
            Body::Select(select) => self.is_fixed(select),
            Body::Values(_) => true,
            Body::Set { arms, .. } => arms.iter().all(|arm| self.is_fixed_query(arm)),
        }
    }

    // Functions that yield rows.

    /// Whether an expression calls a function of a user that yields rows, in an order of which nothing is known: it may read
    /// tables.
    pub(super) fn reads_in_no_order(&self, expr: &Expr) -> bool {
        let mut found = false;
        each_call(expr, &mut |call| {
            let mut named = self.catalogue().functions_named(&call.name, self.context.search_path);
            found |= named.any(|(_, f)| f.set && f.volatility != Volatility::Immutable);
        });
        found
    }

    /// Whether targets put rows of several functions side by side, in the order in which they come.
    pub(super) fn check_zip(&mut self, select: &Select) {
        if !select.targets.iter().any(|target| self.reads_in_no_order(&target.value)) {
            return;
        }
        let mut calls = 0;
        for target in &select.targets {
            each_call(&target.value, &mut |_| calls += 1);
        }
        if calls > 1 {
            self.unreplayable("rows of functions are put side by side in an order that is not total");
        }
    }

    /// Rows of functions in FROM that are numbered, or put side by side.
    pub(super) fn check_rows_from(&mut self, calls: &[Expr], ordinality: bool) {
        if (ordinality || calls.len() > 1) && calls.iter().any(|call| self.reads_in_no_order(call)) {
            self.unreplayable(
                "rows of a function are numbered or put side by side in an order that is not total",
            );
        }
    }

    // Expressions.

    /// The values of an expression, if equal ones among them are the same.
    pub(super) fn same(&self, expr: &Expr, scope: ScopeId) -> Option<Same> {
        match expr {
            Expr::Literal { value, .. } => Some(match value {
                Literal::Null => Same::Null,
                Literal::Text(_) => Same::Given,
                Literal::Int(_) => Same::Integer,
                Literal::Bool(_) => Same::Bool,
                _ => Same::Alone,
            }),
            Expr::Param { .. } | Expr::Clock { .. } | Expr::Session(_) => Some(Same::Alone),
            Expr::Column { path, star: false, .. } => match self.found(scope, path) {
                Found::Column(same) => same,
                // An argument of the function whose body this is.
                Found::Nothing if self.scope_is_body(scope) => Some(Same::Alone),
                Found::Nothing => None,
            },
            Expr::Operator { name, left, right } => {
                let left = left.as_ref().map(|left| self.same(left, scope));
                let right = right.as_deref().and_then(|right| self.same(right, scope));
                match left {
                    Some(left) => self.same_of_operator(name, left, right),
                    None => right.filter(|same| *same == Same::Integer && is_sign(name)),
                }
            }
            Expr::Chain { operators, operands } => {
                let mut operands = operands.iter();
                let mut left = operands.next().and_then(|first| self.same(first, scope));
                for (name, right) in operators.iter().zip(operands) {
                    left = self.same_of_operator(name, left, self.same(right, scope));
                }
                left
            }
            Expr::And(_) | Expr::Or(_) | Expr::Not(_) | Expr::In { .. } | Expr::OfArray { .. } => {
                Some(Same::Bool)
            }
            Expr::Subquery { kind, .. } => {
                use ast::SubqueryKind as Kind;
                matches!(kind, Kind::Exists | Kind::Any | Kind::All).then_some(Same::Bool)
            }
            Expr::Cast { value, to } => self.same_of_cast(value, to, scope),
            Expr::Form(parts) => {
                // Conditions stand among the values of CASE.
                let mut all = Some(Same::Null);
                let mut any_bool = false;
                for part in parts {
                    match self.same(part, scope)? {
                        Same::Bool => any_bool = true,
                        same => all = all.and_then(|all| all.and(same)),
                    }
                }
                match all? {
                    Same::Null if any_bool => Some(Same::Bool),
                    all => Some(all),
                }
            }
            Expr::Call(call) => self.same_of_call(call, scope),
            _ => None,
        }
    }

    fn same_of_operator(&self, name: &Name, left: Option<Same>, right: Option<Same>) -> Option<Same> {
        let of_users = self.catalogue().operators_named(name.last()).any(|o| o.of_builtin_types);
        if of_users {
            return None;
        }
        if is_condition(name) {
            return Some(Same::Bool);
        }
        // What a member of JSON holds, as text.
        if matches!(name.last(), "->>" | "#>>")
            && self.catalogue().operators_named(name.last()).next().is_none()
        {
            return Some(Same::Text);
        }
        const DATE: Same = Same::Of(oid::DATE);
        match (name.last(), left?, right?) {
            ("+" | "-" | "*" | "/" | "%", Same::Integer, Same::Integer)
            | ("-", DATE, DATE)
            | ("&" | "|" | "#" | "<<" | ">>", Same::Integer, Same::Integer) => Some(Same::Integer),
            ("+" | "-", DATE, Same::Integer) | ("+", Same::Integer, DATE) => Some(DATE),
            ("||", Same::Text, Same::Text | Same::Given | Same::Null | Same::Integer)
            | ("||", Same::Given | Same::Null | Same::Integer, Same::Text)
            | ("||", Same::Given, Same::Given) => Some(Same::Text),
            _ => None,
        }
    }

    fn same_of_cast(&self, value: &Expr, to: &TypeRef, scope: ScopeId) -> Option<Same> {
        let given = matches!(value, Expr::Literal { .. } | Expr::Param { .. });
        if to.array || to.set_of {
            return given.then_some(Same::Alone);
        }
        let same = builtin_type(&to.name).and_then(Same::of_type);
        match same {
            // The collation comes with the value.
            Some(Same::Text) if !self.collates_plainly(value, scope) => None,
            None if given => Some(Same::Alone),
            same => same,
        }
    }

    /// Whether text that is made of an expression certainly has a deterministic collation.
    fn collates_plainly(&self, expr: &Expr, scope: ScopeId) -> bool {
        let all = |parts: &[Expr]| parts.iter().all(|part| self.collates_plainly(part, scope));
        match expr {
            Expr::Literal { .. } | Expr::Param { .. } | Expr::Clock { .. } | Expr::Session(_) => true,
            Expr::Column { path, star: false, .. } => {
                let column = self.resolve_column(scope, path).and_then(|key| self.column_of(key));
                match column {
                    Some(column) => column.deterministic,
                    None => self.same(expr, scope).is_some(),
                }
            }
            Expr::Operator { left, right, .. } => {
                left.iter().chain(right).all(|side| self.collates_plainly(side, scope))
            }
            Expr::Chain { operands, .. } => all(operands),
            Expr::Form(parts) => all(parts),
            Expr::Cast { value, to } => {
                builtin_type(&to.name).is_some() && self.collates_plainly(value, scope)
            }
            Expr::Call(call) => self.is_of_system(call) && all(&call.arguments),
            _ => self.same(expr, scope).is_some(),
        }
    }

    /// Whether a call is of a function of the system, and of no user's.
    fn is_of_system(&self, call: &Call) -> bool {
        match call.name.schema() {
            Some(schema) => schema == "pg_catalog",
            None => {
                let mut named = self.catalogue().functions_named(&call.name, self.context.search_path);
                named.next().is_none() && self.catalogue().builtins_named(call.name.last()).next().is_some()
            }
        }
    }

    fn same_of_call(&self, call: &Call, scope: ScopeId) -> Option<Same> {
        if !self.is_of_system(call) || call.named {
            return None;
        }
        let same = |i: usize| call.arguments.get(i).and_then(|argument| self.same(argument, scope));
        let plain = || call.arguments.iter().all(|argument| self.collates_plainly(argument, scope));
        const STAMP: Same = Same::Of(oid::TIMESTAMP);
        const ZONED: Same = Same::Of(oid::TIMESTAMPTZ);
        const DATE: Same = Same::Of(oid::DATE);
        match (call.name.last(), call.arguments.len()) {
            (
                "count" | "row_number" | "rank" | "dense_rank" | "ntile" | "length" | "char_length"
                | "character_length" | "octet_length" | "strpos" | "position" | "ascii" | "cardinality",
                _,
            ) => Some(Same::Integer),
            // The first argument says whether it is text, and not a range or bytes.
            (
                "lower" | "upper" | "initcap" | "substring" | "substr" | "replace" | "translate" | "btrim"
                | "ltrim" | "rtrim" | "left" | "right" | "lpad" | "rpad" | "split_part" | "regexp_replace"
                | "reverse" | "repeat",
                _,
            ) => match same(0)? {
                Same::Text if plain() => Some(Same::Text),
                _ => None,
            },
            (
                "concat" | "concat_ws" | "format" | "md5" | "encode" | "to_char" | "quote_ident"
                | "quote_literal",
                _,
            ) => plain().then_some(Same::Text),
            ("abs", 1) | ("min" | "max", 1) => match (call.name.last(), same(0)?) {
                ("abs", same) => (same == Same::Integer).then_some(same),
                (_, same) => Some(same),
            },
            ("mod", 2) => same(0)?.and(same(1)?).filter(|same| *same == Same::Integer),
            ("sum", 1) => match same(0)? {
                Same::Integer => Some(Same::Alone),
                _ => None,
            },
            ("now" | "transaction_timestamp" | "statement_timestamp", 0) => Some(ZONED),
            ("date_trunc", 2 | 3) => match same(1)? {
                STAMP => Some(STAMP),
                ZONED | DATE => Some(ZONED),
                _ => None,
            },
            ("timezone", 2) => match same(1)? {
                STAMP => Some(ZONED),
                ZONED | DATE => Some(STAMP),
                _ => None,
            },
            // As many fractional digits as the field has.
            ("extract" | "date_part", 2) => {
                matches!(same(1)?, STAMP | ZONED | DATE | Same::Of(oid::TIME)).then_some(Same::Alone)
            }
            ("date", 1) => {
                matches!(same(0)?, STAMP | ZONED | DATE | Same::Text | Same::Given).then_some(DATE)
            }
            ("make_date", 3) | ("to_date", 2) => Some(DATE),
            ("to_timestamp", 1 | 2) => Some(ZONED),
            ("generate_series", 2 | 3) => match same(0)?.and(same(1)?)? {
                Same::Integer => Some(Same::Integer),
                one @ (STAMP | ZONED) => Some(one),
                _ => None,
            },
            ("unnest", 1) => match call.arguments.first()? {
                Expr::Cast { value, to } if to.array && self.collates_plainly(value, scope) => {
                    builtin_type(&to.name).and_then(Same::of_type)
                }
                Expr::Column { path, star: false, .. } => {
                    let column = self.resolve_column(scope, path).and_then(|key| self.column_of(key))?;
                    Some(column).filter(|c| c.deterministic).and_then(|c| Same::of_elements(c.type_oid))
                }
                _ => None,
            },
            _ => None,
        }
    }

    // Names.

    /// Whether an expression is a value from outside a query: a constant, a parameter, a function's argument.
    pub(super) fn comes_from_outside(&self, expr: &Expr, scope: ScopeId) -> bool {
        match expr {
            Expr::Literal { .. } | Expr::Param { .. } => true,
            Expr::Column { path, star: false, .. } => matches!(self.found_in(scope, path), Found::Nothing),
            Expr::Cast { value, .. } => self.comes_from_outside(value, scope),
            _ => false,
        }
    }

    /// What a name stands for, searched from the inside out.
    fn found(&self, scope: ScopeId, path: &[String]) -> Found {
        let mut at = Some(scope);
        while let Some(id) = at {
            match self.found_in(id, path) {
                Found::Nothing => at = self.scopes[id].parent,
                found => return found,
            }
        }
        Found::Nothing
    }

    /// What a name stands for in one name space. A column that several relations have is merged by USING.
    fn found_in(&self, id: ScopeId, path: &[String]) -> Found {
        let Some((name, qualifier)) = ast::name_and_qualifier(path) else { return Found::Column(None) };
        let mut found: Option<Option<Same>> = None;
        let mut add = |same: Option<Same>| {
            found = Some(match found {
                None => same,
                Some(old) => old.and_then(|old| old.and(same?)),
            });
        };
        let mut unknown = false;
        for (i, entry) in self.scopes[id].entries.iter().enumerate() {
            if qualifier.is_some_and(|q| *q != entry.name) {
                continue;
            }
            let derived = self.derived.get(&(id, i));
            let mut named = derived.into_iter().flatten().filter(|d| d.name == *name).map(|d| d.same);
            match &entry.columns {
                EntryColumns::Table(relation) => {
                    let table = self.relations.get(*relation as usize).copied().flatten();
                    match table.map(|table| self.table(table).column(name)) {
                        Some(Some(column)) => add(Same::of_column(column)),
                        Some(None) => {}
                        None => unknown = true,
                    }
                }
                EntryColumns::Derived(columns) => {
                    for (_, key) in columns.iter().filter(|(n, _)| n == name) {
                        match key {
                            Some(key) => add(self.column_of(*key).and_then(Same::of_column)),
                            None => add(named.next().flatten()),
                        }
                    }
                }
                EntryColumns::Opaque if derived.is_some() => named.for_each(&mut add),
                EntryColumns::Opaque => unknown = true,
            }
        }
        match (found, unknown) {
            // A column of a known relation is another's, too, where USING merges them; qualified, it is the one named.
            (Some(same), false) => Found::Column(same),
            (Some(same), true) if qualifier.is_some() => Found::Column(same),
            // A whole row, or a function of it.
            (None, false) if self.scopes[id].entries.iter().any(|e| e.name == *qualifier.unwrap_or(name)) => {
                Found::Column(None)
            }
            (None, false) => Found::Nothing,
            _ => Found::Column(None),
        }
    }
}

/// Whether what the functions of a query yield goes to the client, and nowhere else: `SELECT f(1), g($1)` and
/// `SELECT * FROM f(1)`. A column of a function's row may be another function's call, as `is_called` tells by its name.
pub(super) fn shows_calls_only(query: &Query, is_called: impl Fn(&str) -> bool) -> bool {
    let Body::Select(select) = &query.body else { return false };
    let plain =
        query.with.is_none() && query.into.is_none() && query.order_by.is_empty() && query.limit.is_none();
    let given = |expr: &Expr| matches!(strip_casts(expr), Expr::Literal { .. } | Expr::Param { .. });
    let called = |expr: &Expr| match strip_casts(expr) {
        Expr::Call(call) => call.arguments.iter().all(given),
        Expr::Column { path, .. } => path.len() == 1 || path.last().is_none_or(|name| !is_called(name)),
        other => given(other),
    };
    let from = match select.from.as_slice() {
        [] => true,
        [From::Function { calls, .. }] => calls.iter().all(called),
        _ => false,
    };
    let is_plain_call = |target: &ast::Target| called(&target.value);
    plain && from && select.filter.is_none() && select.targets.iter().all(is_plain_call)
}

pub(super) fn strip_casts(mut expr: &Expr) -> &Expr {
    while let Expr::Cast { value, .. } = expr {
        expr = value;
    }
    expr
}

/// Calls in an expression, but those inside subqueries.
pub(super) fn each_call(expr: &Expr, each: &mut impl FnMut(&Call)) {
    match expr {
        Expr::Call(call) => {
            each(call);
            let parts = call.arguments.iter().chain(&call.order_by).chain(&call.filter);
            parts.for_each(|part| each_call(part, each));
        }
        Expr::Operator { left, right, .. } => {
            left.iter().chain(right).for_each(|side| each_call(side, each));
        }
        Expr::OfArray { left, right, .. } => {
            each_call(left, each);
            each_call(right, each);
        }
        Expr::In { left, list, .. } => {
            each_call(left, each);
            list.iter().for_each(|part| each_call(part, each));
        }
        Expr::Chain { operands: parts, .. }
        | Expr::And(parts)
        | Expr::Or(parts)
        | Expr::Form(parts)
        | Expr::Row(parts)
        | Expr::Array(parts) => parts.iter().for_each(|part| each_call(part, each)),
        Expr::Not(value)
        | Expr::Cast { value, .. }
        | Expr::Collate { value }
        | Expr::MultiAssign { source: value, .. } => each_call(value, each),
        Expr::Subquery { test, .. } => test.iter().for_each(|test| each_call(test, each)),
        Expr::Column { .. }
        | Expr::Literal { .. }
        | Expr::Param { .. }
        | Expr::Clock { .. }
        | Expr::Session(_)
        | Expr::Default { .. }
        | Expr::Selection { .. }
        | Expr::CurrentOf
        | Expr::Unknown => {}
    }
}

fn is_sign(name: &Name) -> bool {
    matches!(name.last(), "+" | "-")
}

/// Operators of the system that yield a truth value for whatever operands.
fn is_condition(name: &Name) -> bool {
    super::derived::is_comparison(name)
        || matches!(name.last(), "~~" | "!~~" | "~~*" | "!~~*" | "~*" | "!~" | "!~*" | "@>" | "<@")
}
