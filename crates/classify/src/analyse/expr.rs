//! Expressions: what they call, read and depend on.

use super::block::{QueryUse, ScopeId};
use super::derived::is_comparison;
use super::facts::{builtin_type, scalar_oid};
use super::freeze::Clock;
use super::{Analyser, Resolved};
use crate::ast::{Call, Expr, Literal, Name, SessionValue, SubqueryKind, Target, TypeRef, Window};
use crate::catalogue::{Function, Oids, Volatility};
use crate::functions::{Behaviour, ENVIRONMENT_SETTINGS, builtin, is_of_information_schema};
use crate::value::oid;
use onecopy_core::Mode;

/// Where an expression stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) scope: ScopeId,
    /// It is evaluated at most once in the statement.
    pub(super) once: bool,
    /// It is a call in FROM, where no value can stand in its place.
    pub(super) relation: bool,
}

impl At {
    pub(super) fn new(scope: ScopeId, once: bool) -> At {
        At { scope, once, relation: false }
    }

    /// It may be evaluated for each row.
    pub(super) fn each(scope: ScopeId) -> At {
        At::new(scope, false)
    }
}

/// Whether text at a place may be read as a date or time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reads {
    Anything,
    NoClock,
}

impl<'a> Analyser<'a> {
    pub(super) fn targets(&mut self, targets: &'a [Target], at: At) {
        for target in targets {
            let edits = self.edits.len();
            self.expr(&target.value, at);
            self.keep_name(target, edits, at);
        }
    }

    pub(super) fn window(&mut self, window: &'a Window, at: At) {
        if window.rows {
            self.unreplayable("a window's frame counts rows in an order that is not total");
        }
        let parts = window.partition_by.iter().chain(&window.order_by).chain(&window.frame);
        parts.for_each(|e| self.expr(e, at));
    }

    pub(super) fn expr(&mut self, expr: &'a Expr, at: At) {
        self.expr_read(expr, at, Reads::Anything);
    }

    /// An expression whose text, if it is a mere literal or parameter, is read as a column's type.
    pub(super) fn expr_for(&mut self, expr: &'a Expr, at: At, column: &crate::catalogue::Column) {
        self.assignment_casts(Some(expr), column, at.scope);
        if super::zoned::is_zoned(column) {
            self.zoned_value(expr, at.scope);
        }
        match column.holds_names() {
            true => self.named_value(expr, column, at),
            false if self.keeps_names(expr, column, at.scope) => {}
            false => self.expr_read(expr, at, reads_of(column.type_oid, column.type_kind)),
        }
    }

    fn expr_read(&mut self, expr: &'a Expr, at: At, reads: Reads) {
        match expr {
            Expr::Column { path, star, .. } => {
                if !star && path.last().is_some_and(|name| is_system_column(name)) {
                    self.system_column(at.scope, path);
                }
                self.mention(path, *star, at.scope);
                if !star {
                    self.selected_of_row(path, at);
                }
            }
            Expr::Literal { value: Literal::Text(text), at: place } => {
                if reads == Reads::Anything {
                    self.clock_literal(text, *place, at);
                }
            }
            Expr::Literal { .. } | Expr::Default { .. } => {}
            Expr::Param { number, at: place } => {
                if !self.scope_is_body(at.scope) {
                    self.param_place(*number, *place);
                    if reads == Reads::Anything && !self.clock_words.params.contains(number) {
                        self.clock_words.params.push(*number);
                    }
                }
            }
            Expr::Call(call) => self.call(call, at),
            Expr::Operator { name, left, right } => {
                self.operator(name);
                if is_comparison(name) && !tells_new_rows(left.as_deref(), right.as_deref()) {
                    // Wherever it stands: in CASE, in FILTER, among targets.
                    self.places_in(expr, at.scope);
                }
                let sides = [left.as_deref(), right.as_deref()];
                self.zoned_beside(&sides.iter().flatten().copied().collect::<Vec<_>>(), at.scope);
                let reads = self.operands_read(name, &sides, at.scope);
                sides.into_iter().flatten().for_each(|side| self.expr_read(side, at, reads));
            }
            Expr::Chain { operators, operands } => {
                operators.iter().for_each(|name| self.operator(name));
                let text = operators.iter().all(|o| is_text_operator(o.last()));
                let reads = if text { Reads::NoClock } else { Reads::Anything };
                operands.iter().for_each(|side| self.expr_read(side, at, reads));
            }
            Expr::OfArray { name, left, right, .. } => {
                self.operator(name);
                self.places_in(expr, at.scope);
                self.zoned_beside(&[left, right], at.scope);
                let reads = self.operands_read(name, &[Some(left), Some(right)], at.scope);
                self.expr_read(left, at, reads);
                self.expr_read(right, at, reads);
            }
            Expr::In { left, list, .. } => {
                self.places_in(expr, at.scope);
                self.zoned_beside(&std::iter::once(&**left).chain(list).collect::<Vec<_>>(), at.scope);
                let reads = self.column_reads(left, at.scope);
                self.expr_read(left, at, Reads::Anything);
                list.iter().for_each(|e| self.expr_read(e, at, reads));
            }
            Expr::And(parts) | Expr::Or(parts) => parts.iter().for_each(|e| self.expr(e, at)),
            Expr::Not(inner) => self.expr(inner, at),
            Expr::Form(parts) | Expr::Array(parts) => {
                self.zoned_beside(&parts.iter().collect::<Vec<_>>(), at.scope);
                parts.iter().for_each(|e| self.expr_read(e, at, reads));
                self.selected_of_parts(parts, at);
            }
            // It was looked at with what stands before it.
            Expr::Selection { .. } => {}
            Expr::Row(parts) => parts.iter().for_each(|e| self.expr(e, at)),
            Expr::Collate { value } => self.expr_read(value, at, Reads::NoClock),
            Expr::Cast { value, to } => self.cast(value, to, at),
            Expr::Subquery { kind, test, operator, query } => {
                test.iter().for_each(|e| self.expr(e, at));
                operator.iter().for_each(|name| self.operator(name));
                let env = self.scopes[at.scope].env;
                let body = self.scope_is_body(at.scope);
                let ordered = *kind != SubqueryKind::Exists;
                if *kind == SubqueryKind::Array {
                    self.unreplayable("ARRAY(subquery) collects rows in an order that is not total");
                }
                self.query(query, Some(at.scope), env, QueryUse { lock: None, ordered, once: at.once, body });
            }
            Expr::Clock { kind, precision, at: place } => {
                self.effects.reads_clock = true;
                let clock = Clock::Value { kind: *kind, precision: *precision };
                self.freeze_clock(clock, *place, at);
            }
            Expr::Session(value) => {
                self.names_role |= *value == SessionValue::Role;
                if *value == SessionValue::Other {
                    self.effects.reads_session = true;
                    self.unreplayable("it depends on the session's user or the database's name");
                }
            }
            Expr::CurrentOf => {
                self.effects.pins_session = true;
                self.unreplayable("it depends on a cursor's place");
            }
            Expr::MultiAssign { source, column, .. } => {
                // One source stands behind all columns of the assignment.
                if *column <= 1 {
                    self.expr(source, at);
                }
            }
            Expr::Unknown => {
                self.touch_everything(Mode::Exclusive);
                self.refuse("the statement contains an expression of unknown kind", "rewrite the expression");
            }
        }
    }

    fn system_column(&mut self, scope: ScopeId, path: &[String]) {
        if self.resolve_column(scope, path).is_none() {
            self.effects.reads_physical = true;
            self.unreplayable("it depends on where rows lie (ctid, xmin, tableoid ...)");
        }
    }

    /// Text that names a moment by the clock, if it does.
    pub(super) fn clock_literal(&mut self, text: &str, place: u32, at: At) {
        if self.scope_is_body(at.scope) {
            if crate::moment_text::has_clock_word(text) {
                self.unreplayable("a function, view or default names a moment by the clock");
            }
            return;
        }
        match self.const_at(place) {
            Some((index, _)) if !self.clock_words.consts.contains(&index) => {
                self.clock_words.consts.push(index);
            }
            Some(_) => {}
            None => self.unreplayable("a literal could not be located"),
        }
    }

    fn cast(&mut self, value: &'a Expr, to: &TypeRef, at: At) {
        self.explicit_casts(Some(value), &to.name, at.scope);
        self.read_as_moment(value, &to.name, at);
        self.zoned_cast(value, &to.name, at.scope);
        let type_oid = builtin_type(&to.name);
        let is_number = is_system_number(&to.name);
        self.effects.reads_catalogue |= is_number;
        if is_number || self.is_of_names(&to.name) {
            self.unreplayable(super::oids::REASON);
        }
        if self.shows_as_text(value, to, at.scope) {
            return;
        }
        if let Expr::Param { number, at: place } = value
            && let (Some(known), false) = (scalar_oid(to), self.scope_is_body(at.scope))
            && let Some(canonical) = family_of_cast(known)
        {
            self.param_context(*number, *place, canonical);
        }
        let reads = match type_oid {
            Some(known) => reads_of(known, 'b'),
            None => Reads::Anything,
        };
        self.expr_read(value, at, reads);
    }

    // Operators.

    fn operator(&mut self, name: &Name) {
        if matches!(name.last(), "*<" | "*>" | "*<=" | "*>=") {
            // Of rows as they are stored.
            self.unreplayable("it compares the bytes of rows, which may hold OIDs");
        }
        let volatility = self
            .catalogue()
            .operators_named(name.last())
            .filter(|o| name.schema().is_none_or(|s| s == o.schema))
            .map(|o| o.volatility)
            .max();
        match volatility {
            Some(Volatility::Volatile) => {
                self.touch_everything(Mode::Exclusive);
                self.effects.writes = true;
                self.refuse(
                    format!("the operator {} calls a volatile function", name.last()),
                    "declare the function stable or immutable if it is",
                );
            }
            Some(Volatility::Stable) => {
                self.touch_everything(Mode::Shared);
                self.unreplayable(format!("the operator {} calls a stable function of a user", name.last()));
            }
            _ => {}
        }
        if volatility.is_some() {
            self.casts_of_operator(name);
        }
    }

    /// How literals beside an operator are read: as the type of the column on the other side.
    fn operands_read(&self, name: &Name, sides: &[Option<&Expr>], scope: ScopeId) -> Reads {
        if is_text_operator(name.last()) {
            return Reads::NoClock;
        }
        let no_clock = sides.iter().flatten().any(|side| self.column_reads(side, scope) == Reads::NoClock);
        // `integer_column + 'x'` reads 'x' as an integer, `= 'x'` likewise.
        if no_clock { Reads::NoClock } else { Reads::Anything }
    }

    fn column_reads(&self, expr: &Expr, scope: ScopeId) -> Reads {
        match expr {
            Expr::Column { path, star: false, .. } => {
                let column = self.resolve_column(scope, path).and_then(|key| self.column_of(key));
                column.map_or(Reads::Anything, |c| reads_of(c.type_oid, c.type_kind))
            }
            Expr::Literal { value: Literal::Int(_) | Literal::Number(_) | Literal::Bool(_), .. } => {
                Reads::NoClock
            }
            _ => Reads::Anything,
        }
    }

    // Functions.

    /// Whether an expression contains an aggregate or window function.
    pub(super) fn is_aggregate(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Call(call) => {
                call.over.is_some()
                    || call.star
                    || call.distinct
                    || call.within_group
                    || call.filter.is_some()
                    || !call.order_by.is_empty()
                    || self.catalogue().builtins_named(call.name.last()).any(|b| matches!(b.kind, 'a' | 'w'))
                    || self
                        .catalogue()
                        .functions_named(&call.name, self.context.search_path)
                        .any(|(_, f)| matches!(f.kind, 'a' | 'w'))
                    || matches!(
                        builtin(call.name.last(), call.arguments.len()),
                        Some(
                            Behaviour::OrderedAggregate | Behaviour::SumAggregate | Behaviour::PickAggregate
                        )
                    )
                    || call.arguments.iter().any(|e| self.is_aggregate(e))
            }
            Expr::Operator { left, right, .. } => left.iter().chain(right).any(|e| self.is_aggregate(e)),
            Expr::Chain { operands, .. } => operands.iter().any(|e| self.is_aggregate(e)),
            Expr::OfArray { left, right, .. } => self.is_aggregate(left) || self.is_aggregate(right),
            Expr::In { left, list, .. } => {
                self.is_aggregate(left) || list.iter().any(|e| self.is_aggregate(e))
            }
            Expr::And(parts)
            | Expr::Or(parts)
            | Expr::Form(parts)
            | Expr::Row(parts)
            | Expr::Array(parts) => parts.iter().any(|e| self.is_aggregate(e)),
            Expr::Not(e) | Expr::Cast { value: e, .. } | Expr::Collate { value: e } => self.is_aggregate(e),
            Expr::Unknown => true,
            _ => false,
        }
    }

    fn call(&mut self, call: &'a Call, at: At) {
        if !self.call_alone(call, at) {
            self.arguments(call, at);
        }
    }

    /// A call without its arguments; true if they were dealt with, too.
    pub(super) fn call_alone(&mut self, call: &'a Call, at: At) -> bool {
        let name = call.name.last();
        let in_catalog = matches!(call.name.schema(), None | Some("pg_catalog"));
        let mut found = false;
        if call.record.iter().any(|of| self.shows_oids_as_names(of)) {
            self.unreplayable(super::oids::REASON);
        }
        if call.arguments.len() <= 1 {
            // The name of a type in the form of a call converts.
            self.explicit_casts(call.arguments.first(), &call.name, at.scope);
            if let Some(value) = call.arguments.first() {
                self.read_as_moment(value, &call.name, at);
                self.zoned_cast(value, &call.name, at.scope);
                let mut functions = self.catalogue().functions_named(&call.name, self.context.search_path);
                // A conversion only where there is no function of that name.
                if functions.next().is_none() && self.is_of_names(&call.name) {
                    self.unreplayable(super::oids::REASON);
                }
            }
        }
        if in_catalog {
            if name == "timezone" {
                self.zoned_at(&call.arguments, at.scope);
            }
            if makes_records(name) && self.record_may_hold_moment(call) {
                self.unreplayable(
                    "text in JSON that is read as a date or time may name a moment by the clock",
                );
            }
            if let Some(behaviour) = builtin(name, call.arguments.len()) {
                found = true;
                if self.behave(behaviour, call, at) {
                    return true;
                }
            } else if let Some(volatility) = self.builtin_volatility(call) {
                found = true;
                self.unlisted_builtin(name, volatility);
            }
        }
        if call.name.schema() == Some("information_schema") && is_of_information_schema(name) {
            found = true;
            self.effects.reads_catalogue = true;
            self.unreplayable(format!("{name}() reads the catalogue, which differs between servers"));
        } else if call.name.schema() != Some("pg_catalog") {
            found |= self.user_functions(call);
        }
        if !found && !self.is_type_name(&call.name) {
            self.touch_everything(Mode::Exclusive);
            self.effects.writes = true;
            self.refuse(
                format!("function {}() is not in the catalogue", call.name),
                "check its name and the search_path; onecopy reads the catalogue anew after DDL",
            );
        }
        false
    }

    fn arguments(&mut self, call: &'a Call, at: At) {
        let at = At { relation: false, ..at };
        let reads = if is_text_function(call.name.last()) { Reads::NoClock } else { Reads::Anything };
        for (i, argument) in call.arguments.iter().enumerate() {
            if !self.configures(call, i, at) {
                self.expr_read(argument, at, reads);
            }
        }
        let each = At::each(at.scope);
        call.order_by.iter().for_each(|e| self.expr(e, each));
        call.filter.iter().for_each(|e| self.expr(e, each));
        call.over.iter().for_each(|w| self.window(w, each));
    }

    fn builtin_volatility(&self, call: &Call) -> Option<Volatility> {
        let count = call.arguments.len();
        let named: Vec<_> = self.catalogue().builtins_named(call.name.last()).collect();
        let fits = named
            .iter()
            .filter(|b| {
                let (min, max) = b.arguments;
                count >= usize::from(min) && (max == u8::MAX || count <= usize::from(max))
            })
            .map(|b| b.volatility)
            .max();
        // A count that fits none is an error, or a rule of the grammar that is not known here.
        fits.or_else(|| named.iter().map(|b| b.volatility).max())
    }

    fn unlisted_builtin(&mut self, name: &str, volatility: Volatility) {
        match volatility {
            Volatility::Immutable => {}
            Volatility::Stable => {
                self.effects.reads_session = true;
                self.unreplayable(format!("{name}() depends on the server or session"));
            }
            Volatility::Volatile => {
                self.effects.reads_session = true;
                self.effects.writes = true;
                self.refuse(
                    format!("{name}() may change something that is not replicated"),
                    "connect to a replica directly",
                );
            }
        }
    }

    /// True if the call's arguments were dealt with, too.
    fn behave(&mut self, behaviour: Behaviour, call: &'a Call, at: At) -> bool {
        let name = call.name.last();
        // Only a plain call can be replaced by a value; any other form of these functions is an error.
        let plain = !call.star
            && !call.distinct
            && !call.within_group
            && call.order_by.is_empty()
            && call.filter.is_none()
            && call.over.is_none();
        if !plain && behaviour.yields_value() {
            self.refuse(format!("{name}() is no aggregate or window function"), "call it plainly");
            return false;
        }
        match behaviour {
            Behaviour::Pure => {}
            Behaviour::TransactionTimestamp => {
                self.effects.reads_clock = true;
                self.freeze_clock(Clock::Transaction, call.at, at);
                return true;
            }
            Behaviour::StatementTimestamp => {
                self.effects.reads_clock = true;
                self.freeze_clock(Clock::Statement, call.at, at);
                return true;
            }
            Behaviour::Clock => {
                self.effects.reads_clock = true;
                self.unreplayable(format!("{name}() depends on the present day"));
            }
            Behaviour::Random => {
                self.effects.reads_random = true;
                self.unreplayable(format!("{name}() differs from call to call"));
            }
            Behaviour::NextVal => {
                self.effects.sequences = true;
                self.next_value(call, at);
                return true;
            }
            Behaviour::CurrVal | Behaviour::LastVal => {
                self.effects.sequences = true;
                self.current_value(call, behaviour == Behaviour::LastVal, at);
                return true;
            }
            Behaviour::SetVal => {
                self.effects.sequences = true;
                self.effects.writes = true;
                self.refuse_setval();
            }
            Behaviour::Session => {
                self.effects.reads_session = true;
                self.unreplayable(format!("{name}() depends on the server or session"));
            }
            Behaviour::Setting => self.setting(call, at),
            Behaviour::Catalogue => {
                self.effects.reads_catalogue = true;
                self.unreplayable(format!("{name}() reads the catalogue, which differs between servers"));
            }
            Behaviour::AdvisoryLock => {
                self.effects.advisory_locks = true;
                self.unreplayable(format!("{name}() locks in the session"));
            }
            Behaviour::Notify => {
                self.effects.notifies = true;
                self.unreplayable("pg_notify() belongs to the session's replica");
            }
            Behaviour::SetConfig => {
                match self.sets_custom_locally(call, at) {
                    true => self.effects.sets_custom_locally = true,
                    false => self.effects.sets_config = true,
                }
                self.unreplayable("set_config() changes the session");
            }
            Behaviour::Sleep => {
                self.effects.sleeps = true;
                self.unreplayable("it waits");
            }
            Behaviour::Pins => {
                self.effects.pins_session = true;
                self.unreplayable(format!("{name}() keeps state on one server"));
            }
            Behaviour::ReadsAnything => {
                self.touch_everything(Mode::Shared);
                self.unreplayable(format!("{name}() reads what its argument names"));
            }
            Behaviour::Refused(reason) => {
                self.effects.writes = true;
                self.refuse(format!("{name}(): {reason}"), "connect to a replica directly");
            }
            Behaviour::OrderedAggregate => {
                self.unreplayable(format!("{name}() depends on the order of rows"));
            }
            Behaviour::SumAggregate => self.sum_aggregate(call, at),
            Behaviour::PickAggregate => self.pick_aggregate(call, at),
            Behaviour::Oids => {
                self.unreplayable(format!(
                    "{name}() may yield what is made of OIDs, which differ between servers"
                ));
            }
        }
        false
    }

    pub(super) fn refuse_setval(&mut self) {
        self.refuse(
            "setval() is supported as the only target of a SELECT",
            "write SELECT setval('sequence', value)",
        );
    }

    /// Sums of integers and numerics do not depend on the order of rows; those of floats do.
    fn sum_aggregate(&mut self, call: &'a Call, at: At) {
        // Those of pairs are computed in floating point, whatever they are of.
        let of_pairs = call.arguments.len() > 1 && call.name.last() != "regr_count";
        let exact = !of_pairs && call.arguments.iter().all(|e| self.is_exact(e, at.scope));
        // Of equal numbers the first is taken, whose digits the sum shows.
        let kept = !call.distinct || call.arguments.iter().all(|e| self.same(e, at.scope).is_some());
        if !exact || !kept || call.over.is_some() {
            self.unreplayable(format!("{}() may depend on the order of rows", call.name.last()));
        }
    }

    /// MIN and MAX pick one of several equal values, which matters where equal values can look different.
    fn pick_aggregate(&mut self, call: &'a Call, at: At) {
        let identical = call.arguments.iter().all(|e| self.same(e, at.scope).is_some());
        if !identical || call.over.is_some() || call.within_group {
            self.unreplayable(format!("{}() may depend on the order of rows", call.name.last()));
        }
    }

    /// Whether an expression is certainly an integer or a numeric.
    fn is_exact(&self, expr: &Expr, scope: ScopeId) -> bool {
        match expr {
            Expr::Literal { value: Literal::Int(_) | Literal::Number(_) | Literal::Null, .. } => true,
            Expr::Column { path, star: false, .. } => {
                let column = self.resolve_column(scope, path).and_then(|key| self.column_of(key));
                column.is_some_and(|c| matches!(c.type_oid, oid::INT2 | oid::INT4 | oid::INT8 | oid::NUMERIC))
            }
            Expr::Operator { name, left, right } => {
                is_arithmetic(name) && left.iter().chain(right).all(|e| self.is_exact(e, scope))
            }
            Expr::Chain { operators, operands } => {
                operators.iter().all(is_arithmetic) && operands.iter().all(|e| self.is_exact(e, scope))
            }
            Expr::Cast { to, .. } => {
                matches!(scalar_oid(to), Some(oid::INT2 | oid::INT4 | oid::INT8 | oid::NUMERIC))
            }
            _ => false,
        }
    }

    fn setting(&mut self, call: &'a Call, at: At) {
        let name = match call.arguments.first() {
            Some(Expr::Literal { value: Literal::Text(text), at: place }) => {
                if !self.scope_is_body(at.scope)
                    && let Some((index, _)) = self.const_at(*place)
                {
                    self.pinned.insert(index);
                }
                Some(text.as_str())
            }
            _ => None,
        };
        let recorded = name.is_some_and(|n| ENVIRONMENT_SETTINGS.iter().any(|s| s.eq_ignore_ascii_case(n)));
        self.effects.reads_session = true;
        if !recorded {
            self.unreplayable("current_setting() reads a setting that records do not carry");
        }
    }

    /// Whether a call of `set_config` certainly sets a customised setting, and for the transaction only.
    fn sets_custom_locally(&mut self, call: &'a Call, at: At) -> bool {
        let [Expr::Literal { value: Literal::Text(name), at: place }, _, local] = call.arguments.as_slice()
        else {
            return false;
        };
        let is_local = matches!(local, Expr::Literal { value: Literal::Bool(true), .. });
        if call.named || !is_local || !name.contains('.') {
            return false;
        }
        if !self.scope_is_body(at.scope) {
            let Some((index, _)) = self.const_at(*place) else { return false };
            self.pinned.insert(index);
        }
        true
    }

    /// Functions of users; false if there is none of this name.
    fn user_functions(&mut self, call: &'a Call) -> bool {
        let count = call.arguments.len();
        let named: Vec<(usize, &'a Function)> =
            self.catalogue().functions_named(&call.name, self.context.search_path).collect();
        let fits = |f: &Function| {
            let max = usize::from(f.arguments);
            f.variadic || call.named || (count <= max && count + usize::from(f.defaults) >= max)
        };
        let fitting: Vec<_> = named.iter().filter(|(_, f)| fits(f)).copied().collect();
        let chosen = if fitting.is_empty() { &named } else { &fitting };
        for (index, function) in chosen {
            self.user_function(*index, function);
            if call.named || count < usize::from(function.arguments) {
                self.argument_defaults(function);
            }
        }
        !chosen.is_empty()
    }

    /// What a call leaves out is computed where it is called, whatever the function itself depends on.
    pub(super) fn argument_defaults(&mut self, function: &'a Function) {
        let Some(defaults) = &function.default_values else { return };
        let library = self.library;
        match library.query(library.texts.alloc(format!("SELECT {defaults}"))) {
            Some(query) => {
                self.query(
                    query,
                    None,
                    None,
                    QueryUse { lock: None, ordered: true, once: false, body: true },
                );
            }
            None => self.unreplayable(format!("the defaults of {}() could not be read", function.name)),
        }
    }

    pub(super) fn user_function(&mut self, index: usize, function: &'a Function) {
        self.casts_of_function(&function.schema, &function.name);
        if matches!(function.kind, 'a' | 'w') {
            self.unreplayable(format!("the aggregate {}() may depend on the order of rows", function.name));
        }
        if function.oids == Some(Oids::Names) {
            self.unreplayable(super::oids::REASON);
        }
        if function.volatility == Volatility::Immutable {
            if function.oids.is_some() {
                // It may hash labels. In other languages that is not known, and seldom.
                self.analyses_body(index, function);
            }
            return;
        }
        if let Some(known) = extension_function(function) {
            match known {
                Known::Random => {
                    self.effects.reads_random = true;
                    self.unreplayable(format!("{}() differs from call to call", function.name));
                }
                Known::Outside => {
                    self.effects.writes = true;
                    self.refuse(
                        format!("{}() acts outside the database", function.name),
                        "connect to a replica directly",
                    );
                }
            }
            return;
        }
        let mut followed = false;
        for (schema, name) in &function.made_of {
            let name = Name::new(vec![schema.clone(), name.clone()]);
            let parts: Vec<_> = self.catalogue().functions_named(&name, &[]).collect();
            for (index, part) in parts {
                followed = true;
                self.user_function(index, part);
            }
        }
        if !followed {
            self.function_body(index, function);
        }
    }

    /// A name that a cast in the form of a call may have: `date('...')`, a domain.
    pub(super) fn is_type_name(&self, name: &Name) -> bool {
        builtin_type(name).is_some()
            || self.catalogue().types.iter().any(|t| {
                t.name == name.last()
                    && match name.schema() {
                        Some(schema) => t.schema == schema,
                        None => self.context.search_path.contains(&t.schema),
                    }
            })
    }

    /// The sequence that a literal names, as `nextval` reads it.
    pub(super) fn sequence_named(&mut self, text: &str) -> Option<usize> {
        let parts = crate::rewrite::identifier_parts(text)?;
        match self.resolve(&Name::new(parts)) {
            Resolved::Sequence(index) => Some(index),
            _ => None,
        }
    }
}

enum Known {
    Random,
    Outside,
}

/// Volatile functions of well-known extensions.
fn extension_function(function: &Function) -> Option<Known> {
    match (function.extension.as_deref()?, function.name.as_str()) {
        ("uuid-ossp", name) if name.starts_with("uuid_generate_v") => Some(Known::Random),
        ("pgcrypto", "gen_random_bytes" | "gen_random_uuid" | "gen_salt") => Some(Known::Random),
        ("pgcrypto", name) if name.starts_with("pgp_") => Some(Known::Random),
        ("tablefunc", "normal_rand") => Some(Known::Random),
        ("dblink" | "postgres_fdw" | "adminpack" | "pg_cron", _) => Some(Known::Outside),
        _ => None,
    }
}

pub(super) fn is_system_column(name: &str) -> bool {
    matches!(name, "ctid" | "xmin" | "xmax" | "cmin" | "cmax" | "tableoid")
}

/// `xmax = 0`, by which RETURNING tells rows that were added from rows that were there: the same at every home.
fn tells_new_rows(left: Option<&Expr>, right: Option<&Expr>) -> bool {
    let is_xmax = |side: Option<&Expr>| matches!(side, Some(Expr::Column { path, .. }) if path.last().is_some_and(|n| n == "xmax"));
    let is_zero = |side: Option<&Expr>| match side {
        Some(Expr::Cast { value, .. }) => is_zero_literal(value),
        Some(value) => is_zero_literal(value),
        None => false,
    };
    is_xmax(left) && is_zero(right) || is_zero(left) && is_xmax(right)
}

fn is_zero_literal(expr: &Expr) -> bool {
    match expr {
        Expr::Literal { value: Literal::Int(number), .. } => *number == 0,
        Expr::Literal { value: Literal::Text(text), .. } => text == "0",
        _ => false,
    }
}

/// Functions that read text in JSON as values of any type.
fn makes_records(name: &str) -> bool {
    let rest = name.strip_prefix("json").map(|rest| rest.strip_prefix('b').unwrap_or(rest));
    matches!(rest, Some("_populate_record" | "_populate_recordset" | "_to_record" | "_to_recordset"))
}

/// Types of which a value is an OID, or tells where a row lies, whether it shows as a number or a name.
fn is_system_number(name: &Name) -> bool {
    let is_number = matches!(name.last(), "oid" | "oidvector" | "xid" | "xid8" | "cid" | "tid");
    is_number && matches!(name.schema(), None | Some("pg_catalog")) || super::oids::is_name_type(name)
}

fn is_arithmetic(name: &Name) -> bool {
    matches!(name.last(), "+" | "-" | "*" | "/" | "%")
}

/// Operators that read literals beside them as text.
fn is_text_operator(name: &str) -> bool {
    matches!(
        name,
        "||" | "~~" | "!~~" | "~~*" | "!~~*" | "~" | "!~" | "~*" | "!~*" | "->" | "->>" | "#>" | "#>>" | "?"
    )
}

/// Functions that read literals as text, numbers or JSON only.
fn is_text_function(name: &str) -> bool {
    matches!(
        name,
        "lower"
            | "upper"
            | "initcap"
            | "md5"
            | "sha256"
            | "concat"
            | "concat_ws"
            | "format"
            | "length"
            | "char_length"
            | "substring"
            | "substr"
            | "replace"
            | "regexp_replace"
            | "translate"
            | "trim"
            | "btrim"
            | "ltrim"
            | "rtrim"
            | "left"
            | "right"
            | "lpad"
            | "rpad"
            | "position"
            | "strpos"
            | "split_part"
            | "to_tsvector"
            | "to_tsquery"
            | "plainto_tsquery"
            | "encode"
            | "decode"
            | "crypt"
            | "jsonb_set"
            | "jsonb_build_object"
            | "json_build_object"
            | "abs"
            | "round"
            | "floor"
            | "ceil"
            | "mod"
    )
}

/// Whether text of a type may name a moment: dates and times do, and what may contain them.
fn reads_of(type_oid: u32, type_kind: char) -> Reads {
    let plain = matches!(
        type_oid,
        oid::BOOL
            | oid::BYTEA
            | oid::NAME
            | oid::INT2
            | oid::INT4
            | oid::INT8
            | oid::TEXT
            | oid::FLOAT4
            | oid::FLOAT8
            | oid::BPCHAR
            | oid::VARCHAR
            | oid::NUMERIC
            | oid::UUID
            | oid::JSON
            | oid::JSONB
            | oid::INT2_ARRAY
            | oid::INT4_ARRAY
            | oid::INT8_ARRAY
            | oid::TEXT_ARRAY
            | oid::VARCHAR_ARRAY
            | oid::UUID_ARRAY
    );
    if plain || type_kind == 'e' { Reads::NoClock } else { Reads::Anything }
}

fn family_of_cast(type_oid: u32) -> Option<u32> {
    Some(match type_oid {
        oid::INT2 | oid::INT4 | oid::INT8 => oid::INT8,
        oid::TEXT | oid::VARCHAR => oid::TEXT,
        oid::NUMERIC | oid::BPCHAR | oid::UUID | oid::BYTEA | oid::BOOL => type_oid,
        _ => return None,
    })
}
