//! Functions, procedures and triggers: what their bodies touch and depend on.

use super::Analyser;
use super::block::{QueryUse, ScopeId};
use super::expr::At;
use super::locks::Assigned;
use super::write::{DefaultValue, Event};
use crate::ast::{Call, Copy, Name, Statement};
use crate::catalogue::{Column, Function, Table, Volatility};
use onecopy_core::Mode;

/// The deepest nesting of functions that is followed.
const NESTING_MAX: u32 = 8;

/// The text of an SQL function's body as statements: a standard body stands between BEGIN ATOMIC and END, or
/// after RETURN.
pub(super) fn sql_body(body: &str) -> String {
    let trimmed = body.trim();
    let lower = trimmed.to_ascii_lowercase();
    if let Some(rest) = lower.strip_prefix("begin atomic") {
        let start = trimmed.len() - rest.len();
        let inner = trimmed.get(start..).unwrap_or("").trim_end().trim_end_matches(';').trim_end();
        let end = inner.len().saturating_sub("end".len());
        return inner.get(..end).unwrap_or("").to_owned();
    }
    if let Some(rest) = lower.strip_prefix("return ") {
        let start = trimmed.len() - rest.len();
        return format!("SELECT {}", trimmed.get(start..).unwrap_or(""));
    }
    body.to_owned()
}

/// What stands for a function among what is being analysed.
fn body_key(index: usize) -> (u64, u64) {
    (u64::MAX - 1, index as u64)
}

impl<'a> Analyser<'a> {
    /// A stable or volatile function of a user that is called.
    pub(super) fn function_body(&mut self, index: usize, function: &'a Function) {
        if self.active.contains(&body_key(index)) {
            return;
        }
        if self.analyses_body(index, function) {
            self.effects.takes_snapshots |= function.volatility == Volatility::Volatile;
            return;
        }
        match function.volatility {
            Volatility::Volatile => {
                self.touch_everything(Mode::Exclusive);
                self.effects.writes = true;
                self.refuse(
                    format!(
                        "function {}.{}() is volatile and written in {}: what it changes is not known",
                        function.schema, function.name, function.language
                    ),
                    "declare it STABLE or IMMUTABLE if it changes nothing, or write it in SQL",
                );
            }
            _ => {
                self.touch_everything(Mode::Shared);
                self.unreplayable(format!(
                    "function {}.{}() is written in {}: what it reads is not known",
                    function.schema, function.name, function.language
                ));
            }
        }
    }

    /// Analyses the body of a function in SQL; false if it is not known what it does, or it is being analysed.
    pub(super) fn analyses_body(&mut self, index: usize, function: &'a Function) -> bool {
        let key = body_key(index);
        let may = function.language == "sql" && function.settings.is_empty() && self.nesting < NESTING_MAX;
        if !may || self.active.contains(&key) || !self.spend() {
            return false;
        }
        self.active.push(key);
        let first_only = !function.set && function.kind == 'f';
        let analysed = self.sql_statements(&function.body, first_only);
        self.active.pop();
        analysed
    }

    /// Analyses the statements of an SQL function, of whose last it may yield the first row only; false if it holds any but
    /// queries and changes of rows.
    fn sql_statements(&mut self, body: &'a str, first_only: bool) -> bool {
        let library = self.library;
        let text: &'a str = library.texts.alloc(sql_body(body));
        let Some(statements) = library.statements(text) else { return false };
        if statements.iter().any(|s| matches!(s, Statement::Utility(_))) {
            return false;
        }
        self.nesting += 1;
        let returns_rows = self.effects.returns_rows;
        let locking = self.locking;
        let wrote = std::mem::replace(&mut self.effects.writes, false);
        for (i, statement) in statements.iter().enumerate() {
            let first_only = first_only && i + 1 == statements.len();
            // What the statement itself shows need not be the same elsewhere; a function that it calls may store it.
            let is_kept = !(self.shows_calls_only && self.nesting == 1);
            self.first_returned = first_only && is_kept && !matches!(statement, Statement::Query(_));
            match statement {
                Statement::Query(query) => {
                    if query.into.is_some() {
                        self.touch_everything(Mode::Exclusive);
                    }
                    let usage = QueryUse { lock: None, ordered: true, once: false, body: true };
                    self.first_only = first_only;
                    self.query(query, None, None, usage);
                }
                Statement::Insert(insert) => self.insert(insert, None, false),
                Statement::Update(update) => self.update(update, None),
                Statement::Delete(delete) => self.delete(delete, None),
                Statement::Merge(merge) => self.merge(merge, None),
                Statement::Utility(_) => {}
            }
        }
        self.effects.returns_rows = returns_rows;
        self.locking = locking;
        self.writes_through_functions |= self.effects.writes;
        self.effects.writes |= wrote;
        self.nesting -= 1;
        true
    }

    /// A block of code that is not analysed.
    pub(super) fn procedural_block(&mut self, what: &str) {
        self.touch_everything(Mode::Exclusive);
        self.effects.writes = true;
        self.refuse(
            format!("{what} runs code whose changes are not known"),
            "send its statements one by one, or write it as a function in SQL",
        );
    }

    /// CALL.
    pub(super) fn call_procedure(&mut self, call: &'a Call, scope: ScopeId) {
        let at = At::new(scope, true);
        call.arguments.iter().for_each(|e| self.expr(e, at));
        let found: Vec<(usize, &'a Function)> =
            self.catalogue().functions_named(&call.name, self.context.search_path).collect();
        if found.is_empty() {
            self.procedural_block("CALL of an unknown procedure");
        }
        for (index, function) in found {
            self.argument_defaults(function);
            if function.language == "sql" {
                self.function_body(index, function);
            } else {
                self.procedural_block(&format!("procedure {}.{}()", function.schema, function.name));
            }
        }
    }

    /// The triggers that a change fires. Returns the columns of new rows that they may set, None for any.
    pub(super) fn fire_triggers(&mut self, table: usize, event: Event) -> Option<Vec<String>> {
        let mut tables = vec![table];
        tables.extend(self.catalogue().partitions(table));
        let mut set = Some(Vec::new());
        for table in tables {
            for trigger in &self.table(table).triggers {
                let fires = match event {
                    Event::Insert => trigger.on_insert,
                    Event::Update => trigger.on_update,
                    Event::Delete => trigger.on_delete,
                    Event::Truncate => trigger.on_truncate,
                    Event::Move => trigger.row && (trigger.on_insert || trigger.on_delete),
                };
                if !fires || trigger.enabled == 'D' {
                    continue;
                }
                self.has_triggers = true;
                if trigger.enabled == 'R' {
                    // It is silent where the text is executed, and fires where rows are put in.
                    continue;
                }
                self.trigger_condition(table, trigger);
                match self.trigger_function(&trigger.function_schema, &trigger.function) {
                    Some(columns) => {
                        if let Some(set) = &mut set {
                            set.extend(columns);
                        }
                    }
                    None => set = None,
                }
            }
        }
        set
    }

    /// What a trigger's function does; returns the columns of the new row that it sets, None for any.
    fn trigger_function(&mut self, schema: &str, name: &str) -> Option<Vec<String>> {
        if schema == "pg_catalog" && name == "suppress_redundant_updates_trigger" {
            return Some(Vec::new());
        }
        if schema == "pg_catalog" && name.starts_with("tsvector_update_trigger") {
            return None;
        }
        let qualified = Name::new(vec![schema.to_owned(), name.to_owned()]);
        let found: Vec<(usize, &'a Function)> =
            self.catalogue().functions_named(&qualified, self.context.search_path).collect();
        let harmless = !found.is_empty() && found.iter().all(|(_, f)| f.volatility == Volatility::Immutable);
        if !harmless {
            self.touch_everything(Mode::Exclusive);
            self.refuse(
                format!("a trigger calls {schema}.{name}(), whose effects are not known"),
                "declare the function IMMUTABLE if it only looks at the row, or drop the trigger",
            );
        }
        None
    }

    /// The same for a change of rows of inheritors, too, whose own triggers fire.
    pub(super) fn fire_with_inheritors(&mut self, table: usize, event: Event) -> Option<Vec<String>> {
        let mut set = self.fire_triggers(table, event);
        for child in self.catalogue().children(table) {
            if !self.table(*child).is_partition {
                let of_child = self.fire_with_inheritors(*child, event);
                set = set.zip(of_child).map(|(one, two)| [one, two].concat());
            }
        }
        set
    }

    /// The triggers of an UPDATE, by which columns are `assigned`, or set by the triggers themselves.
    pub(super) fn fire_on_update(&mut self, t: &Table, table: usize, only: bool, assigned: &mut Assigned) {
        let by_triggers = match only {
            true => self.fire_triggers(table, Event::Update),
            false => self.fire_with_inheritors(table, Event::Update),
        };
        self.add_computed(t, assigned, &by_triggers);
        let columns: Vec<u16> = assigned.keys().copied().collect();
        if self.may_move(table, &columns) {
            let by_triggers = self.fire_triggers(table, Event::Move);
            self.add_computed(t, assigned, &by_triggers);
        }
    }

    pub(super) fn fire_on_delete(&mut self, table: usize, only: bool) {
        match only {
            true => self.fire_triggers(table, Event::Delete),
            false => self.fire_with_inheritors(table, Event::Delete),
        };
    }

    /// Whether a change of columns may move rows to other partitions. What parts them is in every unique key of the table.
    pub(super) fn may_move(&self, table: usize, columns: &[u16]) -> bool {
        let t = self.table(table);
        // A computed column parts no rows.
        let moves =
            |n: &u16| columns.contains(n) && t.column_by_number(*n).is_none_or(|c| c.generated.is_none());
        let stays = t.unique.iter().any(|key| key.immediate && !key.columns.iter().any(moves));
        !stays && !self.catalogue().partitions(table).is_empty()
    }

    /// Triggers of a table whose rows change by a foreign key's action, which sets `columns` unless it deletes them.
    pub(super) fn cascade_triggers(&mut self, table: usize, deletes: bool, columns: &[u16]) {
        if deletes {
            self.fire_triggers(table, Event::Delete);
            return;
        }
        let by_triggers = self.fire_triggers(table, Event::Update);
        let is_parted = !self.catalogue().partitions(table).is_empty();
        let by_trigger = is_parted && by_triggers.is_none_or(|names| !names.is_empty());
        if by_trigger || self.may_move(table, columns) {
            self.fire_triggers(table, Event::Move);
        }
    }

    /// The columns of a COPY, and those that it leaves out.
    pub(super) fn columns_of_copy(&mut self, copy: &'a Copy, table: &'a Table, given: &[&'a Column]) {
        let names = given.iter().any(|column| column.holds_names());
        if names && copy.format.as_deref() == Some("binary") {
            return self.refuse(
                "COPY in binary form gives OIDs, which differ between replicas, to columns that hold names",
                "send the data in the format text or csv",
            );
        }
        let left_out = table.columns.iter().filter(|c| {
            let is_given = copy.columns.is_empty() || copy.columns.contains(&c.name);
            c.generated.is_none() && !is_given
        });
        let mut added = Vec::new();
        for column in left_out {
            if let DefaultValue::Frozen { pieces, .. } = self.default_value(column) {
                added.push((column, pieces));
            }
        }
        let zoned = given.iter().any(|column| super::zoned::is_zoned(column));
        let zoned = zoned && copy.format.as_deref() != Some("binary");
        if zoned {
            self.unreplayable(super::zoned::REASON);
        }
        if names {
            // A number instead of a name means another object on each replica.
            self.unreplayable(super::oids::REASON);
        }
        let is_listed = !copy.columns.is_empty();
        if !added.is_empty() || names || zoned || is_listed && self.unreplayable.is_some() {
            self.number_copy(copy, table, given, &added);
        }
    }
}
