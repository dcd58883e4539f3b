//! Facts: equalities that hold for every row of a query that matters.
//!
//! `a.x = b.y AND a.x = 5` says that only rows of `b` with `y = 5` can change the result. Facts are gathered from
//! conjunctions only. Those of WHERE and of inner joins hold for all relations of a query; those of an outer
//! join's condition hold for its nullable side alone, and a full join's for neither. A fact about a nullable
//! relation may serve others through an equality, since equality holds for no NULL, hence for real rows only.

use super::Analyser;
use super::block::ScopeId;
use crate::ast::{Expr, Literal, Name, SubqueryKind, TypeRef};
use crate::catalogue::Column;
use crate::template::{ITEMS_MAX, Operand, Source, Values};
use crate::value::{self, Canon, FIRST_USER_OID, Found, Use, oid};

/// A column of a relation of the statement: the relation's number and the column's.
pub(super) type Key = (u32, u16);

#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The value of the second serves for the first.
    equal: Vec<(Key, Key)>,
    value: Vec<(Key, Values)>,
}

impl Facts {
    pub(super) fn extend(&mut self, other: &Facts) {
        self.equal.extend_from_slice(&other.equal);
        self.value.extend(other.value.iter().cloned());
    }

    pub(super) fn push(&mut self, key: Key, values: Values) {
        self.value.push((key, values));
    }

    /// The values that a column must have, if they are known: single ones rather than lists.
    pub(super) fn values(&self, key: Key) -> Option<&Values> {
        let mut reached = vec![key];
        let mut at = 0;
        let mut list = None;
        while at < reached.len() {
            for (of, values) in &self.value {
                if *of == reached[at] {
                    match values {
                        Values::One(_) => return Some(values),
                        _ => list = list.or(Some(values)),
                    }
                }
            }
            for (to, from) in &self.equal {
                if *to == reached[at] && !reached.contains(from) {
                    reached.push(*from);
                }
            }
            at += 1;
        }
        list
    }

    /// Whether a column must equal one of the other's relation that `is_bound` accepts, or a constant.
    pub(super) fn is_bound(&self, key: Key, is_bound: impl Fn(Key) -> bool) -> bool {
        let mut reached = vec![key];
        let mut at = 0;
        while at < reached.len() {
            if self.value.iter().any(|(of, v)| *of == reached[at] && matches!(v, Values::One(_)))
                || (at > 0 && is_bound(reached[at]))
            {
                return true;
            }
            for (to, from) in &self.equal {
                if *to == reached[at] && !reached.contains(from) {
                    reached.push(*from);
                }
            }
            at += 1;
        }
        false
    }

    fn of_key(&self, key: Key) -> Option<&Values> {
        self.value.iter().find(|(of, _)| *of == key).map(|(_, v)| v)
    }
}

impl<'a> Analyser<'a> {
    /// Adds what a condition says to the facts.
    pub(super) fn gather(&mut self, condition: &'a Expr, scope: ScopeId, facts: &mut Facts) {
        // A user's `=` may stand where the built-in one would.
        if self.catalogue().operators_named("=").any(|o| o.of_builtin_types) {
            return;
        }
        match condition {
            Expr::And(parts) => parts.iter().for_each(|p| self.gather(p, scope, facts)),
            Expr::Or(arms) => self.gather_alternatives(arms, scope, facts),
            Expr::Operator { name, left: Some(left), right: Some(right) } if is_equality(name) => {
                self.gather_equality(left, right, scope, facts);
            }
            Expr::In { left, list, negated: false } => self.gather_list(left, list, scope, facts),
            Expr::OfArray { name, all: false, left, right } if is_equality(name) => {
                self.gather_array(left, right, scope, facts);
            }
            Expr::Subquery { kind: SubqueryKind::Any, .. } => {}
            _ => {}
        }
    }

    fn gather_equality(&mut self, left: &'a Expr, right: &'a Expr, scope: ScopeId, facts: &mut Facts) {
        if let (Expr::Row(left), Expr::Row(right)) = (left, right) {
            if left.len() == right.len() {
                for (l, r) in left.iter().zip(right) {
                    self.gather_equality(l, r, scope, facts);
                }
            }
            return;
        }
        let keys = (self.column_key(left, scope), self.column_key(right, scope));
        match keys {
            (Some(a), Some(b)) => self.equal_columns(a, b, facts),
            (Some(key), None) => self.gather_value(key, right, scope, facts),
            (None, Some(key)) => self.gather_value(key, left, scope, facts),
            (None, None) => {}
        }
    }

    /// Notes that two columns are equal.
    pub(super) fn equal_columns(&self, a: Key, b: Key, facts: &mut Facts) {
        let (Some(of_a), Some(of_b)) = (self.canon(a), self.canon(b)) else { return };
        if !of_a.same_family(of_b) {
            return;
        }
        // Trailing blanks count in text but not in char(n), so values pass one way only.
        let carries = |from: Canon, to: Canon| {
            !(matches!(from, Canon::Blank { .. }) && matches!(to, Canon::Text { .. }))
        };
        if carries(of_b, of_a) {
            facts.equal.push((a, b));
        }
        if carries(of_a, of_b) {
            facts.equal.push((b, a));
        }
    }

    fn gather_value(&mut self, key: Key, value: &'a Expr, scope: ScopeId, facts: &mut Facts) {
        let Some(canon) = self.canon(key) else { return };
        if let Some(operand) = self.operand(value, canon, Use::Compare, scope) {
            facts.push(key, Values::One(operand));
        }
    }

    fn gather_list(&mut self, left: &'a Expr, list: &'a [Expr], scope: ScopeId, facts: &mut Facts) {
        if let Expr::Row(columns) = left {
            for (i, column) in columns.iter().enumerate() {
                let elements: Option<Vec<&'a Expr>> = list
                    .iter()
                    .map(|row| match row {
                        Expr::Row(parts) if parts.len() == columns.len() => parts.get(i),
                        _ => None,
                    })
                    .collect();
                if let Some(elements) = elements {
                    self.gather_elements(column, &elements, scope, facts);
                }
            }
            return;
        }
        let elements: Vec<&'a Expr> = list.iter().collect();
        self.gather_elements(left, &elements, scope, facts);
    }

    fn gather_elements(&mut self, column: &'a Expr, list: &[&'a Expr], scope: ScopeId, facts: &mut Facts) {
        let Some(key) = self.column_key(column, scope) else { return };
        let Some(canon) = self.canon(key) else { return };
        // Longer lists widen the item anyway; their parameters still get their types from here.
        let operands: Option<Vec<Operand>> =
            list.iter().map(|e| self.operand(e, canon, Use::Compare, scope)).collect();
        match operands {
            Some(mut operands) if operands.len() == 1 => {
                facts.push(key, Values::One(operands.remove(0)));
            }
            Some(operands) if operands.len() <= ITEMS_MAX => facts.push(key, Values::Any(operands)),
            _ => {}
        }
    }

    fn gather_array(&mut self, column: &'a Expr, array: &'a Expr, scope: ScopeId, facts: &mut Facts) {
        let inner = match array {
            Expr::Cast { value, to } if is_plain_array(to) => value,
            other => other,
        };
        if let Expr::Array(elements) = inner {
            let elements: Vec<&'a Expr> = elements.iter().collect();
            self.gather_elements(column, &elements, scope, facts);
            return;
        }
        let Some(key) = self.column_key(column, scope) else { return };
        let Some(canon) = self.canon(key) else { return };
        if self.scope_is_body(scope) {
            return;
        }
        let cast = match array {
            Expr::Cast { to, .. } => array_oid(to),
            _ => None,
        };
        let source = match inner {
            Expr::Param { number, at } => {
                if let Some(array_oid) = cast.or_else(|| array_of(canon)) {
                    self.param_context(*number, *at, array_oid);
                }
                Source::Param { number: *number }
            }
            Expr::Literal { value: Literal::Text(_), at } => match self.const_at(*at) {
                Some((index, false)) => Source::Const { index, negated: false },
                _ => return,
            },
            _ => return,
        };
        // A cast to another family changes what the text means.
        if let (Expr::Cast { .. }, Some(of_cast), Some(expected)) = (array, cast, array_of(canon)) {
            if family(of_cast) != family(expected) {
                return;
            }
        } else if matches!(array, Expr::Cast { .. }) {
            return;
        }
        facts.push(key, Values::Array(Operand { source, usage: Use::Compare }));
    }

    /// `a = 1 OR a = 2`: a column that every arm binds has one of the arms' values.
    fn gather_alternatives(&mut self, arms: &'a [Expr], scope: ScopeId, facts: &mut Facts) {
        if arms.len() > ITEMS_MAX {
            return;
        }
        let mut found: Vec<Facts> = Vec::with_capacity(arms.len());
        for arm in arms {
            let mut of_arm = Facts::default();
            self.gather(arm, scope, &mut of_arm);
            found.push(of_arm);
        }
        let Some((first, rest)) = found.split_first() else { return };
        let keys: Vec<Key> = first.value.iter().map(|(k, _)| *k).collect();
        for key in keys {
            let mut union = Vec::new();
            let all = std::iter::once(first).chain(rest).all(|arm| match arm.of_key(key) {
                Some(Values::One(operand)) => {
                    union.push(*operand);
                    true
                }
                Some(Values::Any(operands)) => {
                    union.extend_from_slice(operands);
                    true
                }
                _ => false,
            });
            if all && union.len() <= ITEMS_MAX {
                facts.push(key, Values::Any(union));
            }
        }
    }

    /// The column of a table that an expression is, if it is nothing else.
    pub(super) fn column_key(&mut self, expr: &Expr, scope: ScopeId) -> Option<Key> {
        match expr {
            Expr::Column { path, star: false, .. } => self.resolve_column(scope, path),
            _ => None,
        }
    }

    pub(super) fn column_of(&self, key: Key) -> Option<&'a Column> {
        let table = (*self.relations.get(key.0 as usize)?)?;
        self.table(table).column_by_number(key.1)
    }

    pub(super) fn canon(&self, key: Key) -> Option<Canon> {
        Canon::of(self.column_of(key)?)
    }

    /// A constant, parameter or NULL as the value of a column; None for anything else.
    pub(super) fn operand(
        &mut self,
        expr: &Expr,
        canon: Canon,
        usage: Use,
        scope: ScopeId,
    ) -> Option<Operand> {
        let source = match expr {
            Expr::Cast { value, to } => {
                let cast = scalar_oid(to)?;
                if !cast_keeps(cast, canon) {
                    return None;
                }
                match &**value {
                    Expr::Param { number, at } if !self.scope_is_body(scope) => {
                        self.param_context(*number, *at, family(cast));
                        Source::Param { number: *number }
                    }
                    literal @ Expr::Literal { .. } => self.literal_source(literal, canon, usage, scope)?,
                    _ => return None,
                }
            }
            Expr::Param { number, at } if !self.scope_is_body(scope) => {
                self.param_context(*number, *at, family_of(canon));
                Source::Param { number: *number }
            }
            literal @ Expr::Literal { .. } => self.literal_source(literal, canon, usage, scope)?,
            _ => return None,
        };
        Some(Operand { source, usage })
    }

    fn literal_source(&mut self, literal: &Expr, canon: Canon, usage: Use, scope: ScopeId) -> Option<Source> {
        let Expr::Literal { value, at } = literal else { return None };
        match value {
            Literal::Null => return Some(Source::Null),
            Literal::Bool(b) if canon == Canon::Bool => {
                return match value::of_text(if *b { "t" } else { "f" }, canon, usage) {
                    Found::Value(hash) => Some(Source::Fixed(hash)),
                    _ => None,
                };
            }
            Literal::Bool(_) | Literal::Bits(_) => return None,
            _ => {}
        }
        if !self.scope_is_body(scope) {
            let (index, negated) = self.const_at(*at)?;
            return Some(Source::Const { index, negated });
        }
        let found = match value {
            Literal::Int(i) => value::of_integer(*i, canon),
            Literal::Number(text) if matches!(canon, Canon::Numeric { .. } | Canon::Integer) => {
                value::of_text(text, canon, usage)
            }
            Literal::Text(text) => value::of_text(text, canon, usage),
            _ => Found::Open,
        };
        match found {
            Found::Value(hash) => Some(Source::Fixed(hash)),
            _ => None,
        }
    }

    /// The constant whose literal the grammar places at an offset, and whether a minus sign negates it.
    pub(super) fn const_at(&self, at: u32) -> Option<(u32, bool)> {
        let consts = self.layout.consts;
        let index = consts.partition_point(|c| c.start < at);
        let constant = consts.get(index)?;
        let between = self.sql.get(at as usize..constant.start as usize)?;
        if between.is_empty() {
            return Some((index as u32, false));
        }
        // The grammar folds signs into the literal and places it at the first of them.
        let mut negated = false;
        for c in between.chars() {
            match c {
                '-' => negated = !negated,
                c if c.is_ascii_whitespace() => {}
                _ => return None,
            }
        }
        Some((index as u32, negated))
    }

    /// Notes the type that a place gives to a parameter.
    pub(super) fn param_context(&mut self, number: u32, at: u32, type_oid: u32) {
        self.params.entry(number).or_default().insert(at, Some(type_oid));
    }

    /// Notes a place of a parameter about whose type nothing is known.
    pub(super) fn param_place(&mut self, number: u32, at: u32) {
        self.params.entry(number).or_default().entry(at).or_insert(None);
    }

    /// The type of each parameter on which all its places agree, 0 for the others.
    pub(super) fn param_types(&self) -> Vec<u32> {
        let max = self.params.keys().next_back().copied().unwrap_or(0);
        // PostgreSQL refuses numbers above 65535.
        let mut types = vec![0; max.min(65_535) as usize];
        for (number, places) in &self.params {
            let mut agreed = None;
            let all = places.values().all(|place| match (place, agreed) {
                (None, _) => false,
                (Some(found), None) => {
                    agreed = Some(*found);
                    true
                }
                (Some(found), Some(old)) => *found == old,
            });
            if let (true, Some(found), Some(slot)) =
                (all, agreed, types.get_mut((*number as usize).wrapping_sub(1)))
            {
                *slot = found;
            }
        }
        types
    }
}

pub(super) fn is_equality(name: &Name) -> bool {
    name.last() == "=" && matches!(name.schema(), None | Some("pg_catalog"))
}

/// One OID for types that are read alike.
fn family(type_oid: u32) -> u32 {
    match type_oid {
        oid::INT2 | oid::INT4 | oid::INT8 => oid::INT8,
        oid::TEXT | oid::VARCHAR => oid::TEXT,
        oid::INT2_ARRAY | oid::INT4_ARRAY | oid::INT8_ARRAY => oid::INT8_ARRAY,
        oid::TEXT_ARRAY | oid::VARCHAR_ARRAY => oid::TEXT_ARRAY,
        other => other,
    }
}

fn family_of(canon: Canon) -> u32 {
    match canon {
        Canon::Integer => oid::INT8,
        Canon::Numeric { .. } => oid::NUMERIC,
        Canon::Text { .. } => oid::TEXT,
        Canon::Blank { .. } => oid::BPCHAR,
        Canon::Uuid => oid::UUID,
        Canon::Bytea => oid::BYTEA,
        Canon::Bool => oid::BOOL,
        Canon::Label => FIRST_USER_OID,
    }
}

fn array_of(canon: Canon) -> Option<u32> {
    match canon {
        Canon::Integer => Some(oid::INT8_ARRAY),
        Canon::Text { .. } => Some(oid::TEXT_ARRAY),
        Canon::Blank { .. } => Some(oid::BPCHAR_ARRAY),
        Canon::Uuid => Some(oid::UUID_ARRAY),
        _ => None,
    }
}

/// The OID of a built-in scalar type without modifiers.
pub(super) fn scalar_oid(to: &TypeRef) -> Option<u32> {
    if to.modifiers || to.array || to.set_of {
        return None;
    }
    builtin_type(&to.name)
}

fn is_plain_array(to: &TypeRef) -> bool {
    to.array && !to.modifiers && !to.set_of && array_oid(to).is_some()
}

fn array_oid(to: &TypeRef) -> Option<u32> {
    if !to.array || to.modifiers || to.set_of {
        return None;
    }
    match builtin_type(&to.name)? {
        oid::INT2 | oid::INT4 | oid::INT8 => Some(oid::INT8_ARRAY),
        oid::TEXT | oid::VARCHAR => Some(oid::TEXT_ARRAY),
        oid::BPCHAR => Some(oid::BPCHAR_ARRAY),
        oid::UUID => Some(oid::UUID_ARRAY),
        _ => None,
    }
}

/// The OID of a built-in type by its name.
pub(super) fn builtin_type(name: &Name) -> Option<u32> {
    if !matches!(name.schema(), None | Some("pg_catalog")) {
        return None;
    }
    Some(match name.last() {
        "bool" => oid::BOOL,
        "bytea" => oid::BYTEA,
        "int8" => oid::INT8,
        "int2" => oid::INT2,
        "int4" => oid::INT4,
        "text" => oid::TEXT,
        "bpchar" => oid::BPCHAR,
        "varchar" => oid::VARCHAR,
        "numeric" => oid::NUMERIC,
        "uuid" => oid::UUID,
        "float4" => oid::FLOAT4,
        "float8" => oid::FLOAT8,
        "date" => oid::DATE,
        "time" => oid::TIME,
        "timetz" => oid::TIMETZ,
        "timestamp" => oid::TIMESTAMP,
        "timestamptz" => oid::TIMESTAMPTZ,
        _ => return None,
    })
}

/// Whether a literal or parameter that is cast to a type still is the value that a column of this form would take.
fn cast_keeps(cast: u32, canon: Canon) -> bool {
    match canon {
        Canon::Integer => matches!(cast, oid::INT2 | oid::INT4 | oid::INT8),
        Canon::Numeric { .. } => matches!(cast, oid::INT2 | oid::INT4 | oid::INT8 | oid::NUMERIC),
        Canon::Text { .. } => matches!(cast, oid::TEXT | oid::VARCHAR),
        Canon::Blank { .. } => matches!(cast, oid::TEXT | oid::VARCHAR | oid::BPCHAR),
        Canon::Uuid => cast == oid::UUID,
        Canon::Bytea => cast == oid::BYTEA,
        Canon::Bool => cast == oid::BOOL,
        Canon::Label => false,
    }
}
