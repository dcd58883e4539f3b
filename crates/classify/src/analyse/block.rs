//! Queries: name spaces, the tables of FROM, and the rows of each that can matter.

use super::derived::{DerivedList, derived_of_table};
use super::expr::At;
use super::facts::{Facts, Key};
use super::{Analyser, Env, Parent, Resolved};
use crate::ast::{
    self, Body, CommonTable, Distinct, Expr, From, JoinKind, LockStrength, LockWait, Locking, Query, Select,
    Statement, Target, With,
};
use crate::catalogue::{Column, Oids, table_id};
use crate::template::Values;
use onecopy_core::{ColumnSet, Mode};
use std::collections::HashMap;

pub(super) type ScopeId = usize;
pub(super) type CteId = usize;

/// One name space: the relations of one FROM clause, inside those of the query around it.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) parent: Parent,
    pub(super) env: Env,
    /// The text is no part of the statement: a view's, a function's.
    pub(super) body: bool,
    /// The alias of a join hides its relations' names, and stands for their rows.
    pub(super) hidden: bool,
    pub(super) entries: Vec<Entry>,
    /// What holds for rows that matter; complete once FROM and WHERE were read.
    pub(super) facts: Facts,
}

/// A relation by the name that expressions use for it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) columns: EntryColumns,
}

#[derive(Debug)]
pub(super) enum EntryColumns {
    /// A table of the catalogue, by its number in the statement.
    Table(u32),
    /// Names with the columns behind them, where they are plain columns of tables.
    Derived(Vec<(String, Option<Key>)>),
    /// Any name may be among its columns.
    Opaque,
}

/// A name of a WITH clause, in a chain from the innermost.
#[derive(Debug)]
pub(super) struct CteEnv<'a> {
    table: &'a CommonTable,
    /// What the table's own query sees.
    outer: Env,
    /// References stand for rows that were computed elsewhere: recursive and data-modifying ones.
    opaque: bool,
    referenced: bool,
    body: bool,
    /// Its columns, once a recursive one was analysed.
    derived: DerivedList,
    next: Env,
}

/// What a query's result is used for.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryUse {
    /// Its tables' rows are locked in this mode by a locking clause around it.
    pub(super) lock: Option<Mode>,
    /// The choice and order of its rows matters.
    pub(super) ordered: bool,
    /// It runs at most once in the statement.
    pub(super) once: bool,
    /// Its text is no part of the statement.
    pub(super) body: bool,
}

impl QueryUse {
    pub(super) fn top() -> QueryUse {
        QueryUse { lock: None, ordered: true, once: true, body: false }
    }
}

/// What is gathered while FROM is read, to be used when all facts are known.
#[derive(Default)]
pub(super) struct Block<'a> {
    pending: Vec<Pending>,
    exported: Facts,
    /// Name spaces of subqueries that were merged into this one.
    merged: Vec<ScopeId>,
    /// Those of them that are a SELECT, with the entries that they are.
    selects: Vec<Merged<'a>>,
    walks: Vec<(&'a Expr, ScopeId)>,
    calls: Vec<(&'a Expr, ScopeId)>,
    deferred: Vec<Deferred<'a>>,
}

/// A table whose rows are read.
struct Pending {
    relation: u32,
    table: usize,
    only: bool,
    mode: Mode,
    /// The columns that may be read.
    of: ColumnSet,
    /// Facts for this table alone: conditions of outer joins.
    extra: Facts,
}

struct Merged<'a> {
    select: &'a Select,
    inner: ScopeId,
    entry: (ScopeId, usize),
    renames: Vec<String>,
}

struct Deferred<'a> {
    /// The entry that it is, and what its columns are called there.
    entry: (ScopeId, usize),
    renames: Vec<String>,
    query: &'a Query,
    parent: Parent,
    env: Env,
    usage: QueryUse,
}

/// The locking clauses that apply to a FROM clause.
struct Locks<'q> {
    inherited: Option<Mode>,
    clauses: &'q [Locking],
}

impl Locks<'_> {
    fn none() -> Locks<'static> {
        Locks { inherited: None, clauses: &[] }
    }

    fn of(&self, alias: &str) -> Option<Mode> {
        let named = |clause: &&Locking| clause.of.is_empty() || clause.of.iter().any(|n| n == alias);
        let strongest = self.clauses.iter().filter(named).map(|c| lock_mode(c.strength)).max();
        self.inherited.max(strongest)
    }
}

/// The mode of a row lock. The rows are read as well, so the weakest is `Shared`.
fn lock_mode(strength: LockStrength) -> Mode {
    match strength {
        LockStrength::KeyShare | LockStrength::Share => Mode::Shared,
        LockStrength::NoKeyUpdate => Mode::NoKeyExclusive,
        LockStrength::Update => Mode::Exclusive,
    }
}

impl<'a> Analyser<'a> {
    // Queries.

    /// Analyses a query; true if its WITH clause changes rows.
    pub(super) fn query(&mut self, query: &'a Query, parent: Parent, env: Env, usage: QueryUse) -> bool {
        let receivers = self.receivers.take();
        let first_only = std::mem::take(&mut self.first_only);
        if !matches!(query.body, Body::Set { .. }) {
            self.recursive = None;
        }
        if !self.spend() {
            self.last_derived = None;
            return false;
        }
        let (env, wrote) = self.with(query.with.as_ref(), parent, env, usage.body);
        let scope = self.new_scope(parent, env, usage.body);
        let at = At::new(scope, usage.once);
        match &query.body {
            Body::Values(rows) => {
                self.inherit_facts(scope);
                rows.iter().flatten().for_each(|value| self.expr(value, at));
                self.last_derived = self.derived_of_values(rows, scope);
            }
            Body::Set { arms, union_all } => {
                self.inherit_facts(scope);
                let recursive = self.recursive.take();
                let mut lists = Vec::new();
                for arm in arms {
                    self.query(arm, parent, env, QueryUse { once: false, ..usage });
                    lists.push(self.last_derived.take());
                }
                // The first arm of a recursion gives the types of all.
                let recurs = recursive.is_some_and(|id| self.ctes[id].referenced);
                if !union_all && usage.ordered {
                    self.check_kept_of_arms(arms, &lists, recurs);
                }
                let first = lists.first().cloned().flatten();
                self.last_derived = Self::derived_of_arms(lists);
                if let (true, Some(list), Some(first)) = (recurs, &mut self.last_derived, first) {
                    list.iter_mut().zip(first).for_each(|(derived, first)| derived.same = first.same);
                }
            }
            Body::Select(select) => {
                self.select(query, select, scope, usage, receivers);
                self.last_derived = self.derived_of_targets(&select.targets, scope);
            }
        }
        let derived = self.last_derived.take();
        if first_only {
            self.check_first(query, scope);
        }
        self.tail(query, scope, usage);
        self.finish_with(query.with.as_ref(), env, usage.body);
        self.last_derived = derived;
        wrote
    }

    fn select(
        &mut self,
        query: &'a Query,
        select: &'a Select,
        scope: ScopeId,
        usage: QueryUse,
        receivers: Option<Option<Vec<&'a Column>>>,
    ) {
        let mut block = Block::default();
        let locks = Locks { inherited: usage.lock, clauses: &query.locking };
        self.note_locking(&query.locking);
        self.open_clause(&select.from, scope, &mut block, &locks);
        self.close_block(select.filter.as_ref(), scope, block);
        // Without FROM there is at most one row, so each target is evaluated at most once.
        let at = At::new(scope, usage.once && select.from.is_empty());
        let each = At::each(scope);
        match receivers {
            Some(receivers) => self.received_targets(&select.targets, receivers.as_deref(), at),
            None => self.targets(&select.targets, at),
        }
        select.filter.iter().for_each(|e| self.expr(e, at));
        select.group_by.iter().for_each(|e| self.expr(e, each));
        if let Some(condition) = &select.having {
            self.places_in(condition, scope);
            self.expr(condition, each);
        }
        for window in &select.windows {
            self.window(window, each);
        }
        if let Distinct::On(keys) = &select.distinct {
            keys.iter().for_each(|e| self.expr(e, each));
        }
        if usage.ordered {
            self.check_order(query, select, scope);
        }
        self.check_kept(select, scope, usage.ordered);
        self.check_zip(select);
    }

    /// ORDER BY, LIMIT and OFFSET of any query.
    fn tail(&mut self, query: &'a Query, scope: ScopeId, usage: QueryUse) {
        let each = At::each(scope);
        query.order_by.iter().for_each(|e| self.expr(e, each));
        let at = At::new(scope, usage.once);
        query.limit.iter().chain(&query.offset).for_each(|e| self.expr(e, at));
        let cut = query.limit.is_some() || query.offset.is_some();
        if cut && usage.ordered && !matches!(query.body, Body::Select(_)) && !is_single_row(query) {
            self.unreplayable("LIMIT or OFFSET chooses among rows whose order is not total");
        }
    }

    /// Whether the rows that LIMIT and DISTINCT ON choose are the same on every replica.
    fn check_order(&mut self, query: &'a Query, select: &'a Select, scope: ScopeId) {
        let cut = query.limit.is_some() || query.offset.is_some();
        if cut && !self.is_total_order(&query.order_by, select, scope) {
            self.unreplayable("LIMIT or OFFSET chooses among rows whose order is not total");
        }
        if let Distinct::On(_) = &select.distinct
            && !self.is_total_order(&query.order_by, select, scope)
        {
            self.unreplayable("DISTINCT ON chooses among rows whose order is not total");
        }
    }

    /// The first row must be the same on every replica.
    fn check_first(&mut self, query: &'a Query, scope: ScopeId) {
        let certain = match &query.body {
            Body::Select(select) => {
                self.yields_one_row(select.filter.as_ref(), &select.targets, scope)
                    || self.is_total_order(&query.order_by, select, scope)
            }
            _ => self.is_fixed_query(query),
        };
        if !certain {
            self.unreplayable(FIRST_OF_ROWS);
        }
    }

    /// The same for the rows that a change returns.
    pub(super) fn check_first_returned(
        &mut self,
        filter: Option<&'a Expr>,
        returning: Option<&'a [ast::Target]>,
        scope: ScopeId,
    ) {
        if returning.is_some_and(|targets| !self.yields_one_row(filter, targets, scope)) {
            self.unreplayable(FIRST_OF_ROWS);
        }
    }

    /// Whether equality with what does not come from its own tables leaves at most one row of each of them.
    fn yields_one_row(&self, filter: Option<&Expr>, targets: &[ast::Target], scope: ScopeId) -> bool {
        let mut open = Vec::new();
        for entry in &self.scopes[scope].entries {
            let EntryColumns::Table(relation) = entry.columns else { return false };
            let Some(table) = self.relations.get(relation as usize).copied().flatten() else { return false };
            if !self.catalogue().children(table).is_empty() {
                return false;
            }
            open.push((relation, table));
        }
        if open.is_empty() || targets.iter().any(|t| self.reads_in_no_order(&t.value)) {
            return false;
        }
        let mut given = Vec::new();
        let parts = match filter {
            Some(Expr::And(parts)) => parts.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        for part in parts {
            let Expr::Operator { name, left: Some(left), right: Some(right) } = part else { continue };
            if !super::facts::is_equality(name) {
                continue;
            }
            for (column, value) in [(left, right), (right, left)] {
                if let Expr::Column { path, star: false, .. } = &**column
                    && let Some(key) = self.resolve_column(scope, path)
                    && self.comes_from_outside(value, scope)
                {
                    given.push(key);
                }
            }
        }
        let facts = &self.scopes[scope].facts;
        let mut bound: Vec<u32> = Vec::new();
        while !open.is_empty() {
            let next = open.iter().position(|(relation, table)| {
                let is_given = |c: &u16| {
                    let key = (*relation, *c);
                    *c != 0 && (given.contains(&key) || facts.is_bound(key, |k| bound.contains(&k.0)))
                };
                let mut unique = self.table(*table).unique.iter();
                unique.any(|key| !key.partial && key.immediate && key.columns.iter().all(is_given))
            });
            match next {
                Some(i) => bound.push(open.remove(i).0),
                None => return false,
            }
        }
        true
    }

    /// Whether no two rows of a query are equal in its ORDER BY: it covers a unique key of its only table, or
    /// equality with constants leaves at most one row.
    fn is_total_order(&mut self, keys: &'a [Expr], select: &'a Select, scope: ScopeId) -> bool {
        if select.targets.iter().any(|target| self.reads_in_no_order(&target.value)) {
            return false;
        }
        if select.from.is_empty() {
            return true;
        }
        let aggregates =
            select.group_by.is_empty() && select.targets.iter().any(|t| self.is_aggregate(&t.value));
        if aggregates {
            return true;
        }
        let [From::Table { .. }] = select.from.as_slice() else { return false };
        let Some(Entry { columns: EntryColumns::Table(relation), .. }) = self.scopes[scope].entries.first()
        else {
            return false;
        };
        let relation = *relation;
        let Some(table) = self.relations.get(relation as usize).copied().flatten() else { return false };
        if !select.group_by.is_empty() || !self.catalogue().children(table).is_empty() {
            return false;
        }
        let mut covered = Vec::new();
        for key in keys {
            // `ORDER BY 1` names a target, `ORDER BY name` one before a column.
            let key = match key {
                Expr::Literal { value: crate::ast::Literal::Int(i), at } => {
                    if let Some((index, _)) = self.const_at(*at) {
                        self.pinned.insert(index);
                    }
                    usize::try_from(*i - 1).ok().and_then(|i| select.targets.get(i)).map(|t| &t.value)
                }
                Expr::Column { path, star: false, .. } if path.len() == 1 => select
                    .targets
                    .iter()
                    .find(|t| t.name.as_deref() == Some(path[0].as_str()))
                    .map(|t| &t.value)
                    .or(Some(key)),
                other => Some(other),
            };
            let key = key.and_then(|k| self.column_key(k, scope));
            // Names are in the order of their OIDs.
            let key = key.filter(|key| self.column_of(*key).is_none_or(|column| !column.holds_names()));
            covered.extend(key.map(|(_, column)| column));
        }
        let facts = &self.scopes[scope].facts;
        let bound = |column: &u16| {
            covered.contains(column) || matches!(facts.values((relation, *column)), Some(Values::One(_)))
        };
        let table = self.table(table);
        table.unique.iter().any(|key| {
            !key.partial
                && key.immediate
                && key.columns.iter().all(|c| {
                    *c != 0
                        && bound(c)
                        && (key.primary || table.column_by_number(*c).is_some_and(|c| c.not_null))
                })
        })
    }

    // WITH.

    /// Opens the names of a WITH clause; true if one of its statements changes rows.
    pub(super) fn with(
        &mut self,
        with: Option<&'a With>,
        parent: Parent,
        env: Env,
        body: bool,
    ) -> (Env, bool) {
        let Some(with) = with else { return (env, false) };
        let mut wrote = false;
        let mut inner = env;
        for table in &with.tables {
            let writes = !matches!(table.statement, Statement::Query(_));
            let cte = CteEnv {
                table,
                outer: inner,
                opaque: with.recursive || writes,
                referenced: false,
                body,
                derived: None,
                next: inner,
            };
            self.ctes.push(cte);
            inner = Some(self.ctes.len() - 1);
            if writes && !with.recursive {
                wrote = true;
                self.write_cte(&table.statement, parent, self.ctes[self.ctes.len() - 1].outer);
            }
        }
        if with.recursive {
            let first = self.ctes.len() - with.tables.len();
            for (i, table) in with.tables.iter().enumerate() {
                match &table.statement {
                    Statement::Query(query) => {
                        // Each step of the recursion runs it again.
                        let usage = QueryUse { lock: None, ordered: true, once: false, body };
                        self.recursive = Some(first + i);
                        wrote |= self.query(query, parent, inner, usage);
                        self.recursive = None;
                        self.ctes[first + i].derived = self.last_derived.take();
                    }
                    statement => {
                        wrote = true;
                        self.write_cte(statement, parent, inner);
                    }
                }
            }
        }
        (inner, wrote)
    }

    /// Analyses the queries of a WITH clause that nobody referred to.
    pub(super) fn finish_with(&mut self, with: Option<&'a With>, env: Env, body: bool) {
        let Some(with) = with else { return };
        let mut at = env;
        for _ in &with.tables {
            let Some(id) = at else { break };
            let cte = &self.ctes[id];
            at = cte.next;
            if !cte.opaque && !cte.referenced {
                let (table, outer) = (cte.table, cte.outer);
                if let Statement::Query(query) = &table.statement {
                    let usage = QueryUse { lock: None, ordered: true, once: true, body };
                    self.query(query, None, outer, usage);
                }
            }
        }
    }

    fn write_cte(&mut self, statement: &'a Statement, parent: Parent, env: Env) {
        let _ = parent;
        let in_with = std::mem::replace(&mut self.in_with, true);
        match statement {
            Statement::Insert(insert) => self.insert(insert, env, false),
            Statement::Update(update) => self.update(update, env),
            Statement::Delete(delete) => self.delete(delete, env),
            Statement::Merge(merge) => self.merge(merge, env),
            Statement::Query(_) | Statement::Utility(_) => {
                self.touch_everything(Mode::Exclusive);
                self.refuse("the WITH clause holds a statement of unknown kind", "move it out");
            }
        }
        self.in_with = in_with;
    }

    // FROM.

    pub(super) fn new_scope(&mut self, parent: Parent, env: Env, body: bool) -> ScopeId {
        self.scopes.push(Scope { parent, env, body, ..Scope::default() });
        self.scopes.len() - 1
    }

    pub(super) fn scope_is_body(&self, scope: ScopeId) -> bool {
        self.scopes.get(scope).is_some_and(|s| s.body)
    }

    /// The table of a relation, with its columns in the order in which `*` yields them.
    pub(super) fn shape(&self, relation: u32, table: usize) -> &'a crate::catalogue::Table {
        self.partitions.get(&relation).copied().unwrap_or_else(|| self.table(table))
    }

    /// A new number for an occurrence of a table.
    pub(super) fn new_relation(&mut self, table: Option<usize>) -> u32 {
        self.relations.push(table);
        (self.relations.len() - 1) as u32
    }

    fn inherit_facts(&mut self, scope: ScopeId) {
        if let Some(parent) = self.scopes[scope].parent {
            self.scopes[scope].facts = self.scopes[parent].facts.clone();
        }
    }

    fn open_clause(&mut self, from: &'a [From], scope: ScopeId, block: &mut Block<'a>, locks: &Locks<'_>) {
        for item in from {
            let exported = self.open_item(item, scope, block, locks);
            block.exported.extend(&exported);
        }
    }

    /// Reads the additional tables of UPDATE ... FROM and DELETE ... USING.
    pub(super) fn open_block(&mut self, from: &'a [From], scope: ScopeId) -> Block<'a> {
        let mut block = Block::default();
        self.open_clause(from, scope, &mut block, &Locks::none());
        block
    }

    /// Completes the facts of a block, then reads its tables and everything inside its FROM clause.
    pub(super) fn close_block(&mut self, filter: Option<&'a Expr>, scope: ScopeId, block: Block<'a>) {
        self.inherit_facts(scope);
        let mut facts = std::mem::take(&mut self.scopes[scope].facts);
        facts.extend(&block.exported);
        if let Some(filter) = filter {
            self.places_in(filter, scope);
            self.gather(filter, scope, &mut facts);
        }
        self.scopes[scope].facts = facts;
        for merged in block.merged {
            self.scopes[merged].facts = self.scopes[scope].facts.clone();
        }
        for pending in block.pending {
            let mut facts = self.scopes[scope].facts.clone();
            facts.extend(&pending.extra);
            self.read_table(&pending, &facts);
        }
        for deferred in block.deferred {
            self.query(deferred.query, deferred.parent, deferred.env, deferred.usage);
            let list = self.last_derived.take();
            self.note_derived(deferred.entry.0, deferred.entry.1, list, &deferred.renames);
        }
        for Merged { select, inner, entry, renames } in block.selects {
            let list = self.derived_of_targets(&select.targets, inner);
            match (self.derived.get_mut(&entry), list) {
                (Some(old), Some(new)) if old.len() == new.len() => {
                    old.iter_mut().zip(new).for_each(|(old, new)| old.same = new.same);
                }
                (None, list) => self.note_derived(entry.0, entry.1, list, &renames),
                _ => {}
            }
            self.check_kept(select, inner, true);
            self.check_zip(select);
        }
        for (call, scope) in block.calls {
            self.expr(call, At { scope, once: false, relation: true });
        }
        for (expr, scope) in block.walks {
            self.expr(expr, At::each(scope));
        }
    }

    /// Opens one item of FROM; returns what holds for all rows of its result.
    fn open_item(
        &mut self,
        item: &'a From,
        scope: ScopeId,
        block: &mut Block<'a>,
        locks: &Locks<'_>,
    ) -> Facts {
        if !self.spend() {
            return Facts::default();
        }
        match item {
            From::Table { name, only, alias } => {
                let shown = alias.as_ref().map_or(name.last(), |a| a.name.as_str()).to_owned();
                let renames = alias.as_ref().map_or(&[][..], |a| a.columns.as_slice());
                if name.parts.len() == 1
                    && let Some(id) = self.find_cte(self.scopes[scope].env, name.last())
                {
                    return self.open_cte(id, shown, renames, scope, block);
                }
                let mode = locks.of(&shown);
                self.open_relation(name, *only, shown, renames, scope, block, mode)
            }
            From::Query { query, lateral, alias } => {
                let shown = alias.as_ref().map_or(String::new(), |a| a.name.clone());
                let renames = alias.as_ref().map_or(&[][..], |a| a.columns.as_slice());
                let Statement::Query(query) = &**query else {
                    self.touch_everything(Mode::Exclusive);
                    return Facts::default();
                };
                let parent = if *lateral { Some(scope) } else { self.scopes[scope].parent };
                let env = self.scopes[scope].env;
                let body = self.scope_is_body(scope);
                let usage = QueryUse { lock: locks.of(&shown), ordered: true, once: false, body };
                self.open_query(query, parent, env, usage, shown, renames, scope, block)
            }
            From::Function { calls, alias, ordinality } => {
                self.check_rows_from(calls, *ordinality);
                block.calls.extend(calls.iter().map(|call| (call, scope)));
                let name = alias.as_ref().map(|a| a.name.clone()).unwrap_or_else(|| call_name(calls));
                let list = self.derived_of_function(item, &name, scope);
                self.note_derived(scope, self.scopes[scope].entries.len(), list, &[]);
                self.scopes[scope].entries.push(Entry { name, columns: EntryColumns::Opaque });
                Facts::default()
            }
            From::Join { kind, left, right, on, using, alias, .. } => self.open_join(
                Join {
                    kind: *kind,
                    left,
                    right,
                    on: on.as_ref(),
                    using,
                    alias: alias.as_ref().map(|a| a.name.as_str()),
                },
                scope,
                block,
                locks,
            ),
            From::Sample { table, arguments, .. } => {
                self.unreplayable("TABLESAMPLE chooses rows by where they lie");
                block.walks.extend(arguments.iter().map(|e| (e, scope)));
                let first = block.pending.len();
                let exported = self.open_item(table, scope, block, locks);
                // A row moves with every change.
                block.pending[first..].iter_mut().for_each(|sampled| sampled.of = ColumnSet::ALL);
                exported
            }
            From::Other { parts, types, alias } => {
                if types.iter().flatten().any(|name| self.shows_oids_as_names(name)) {
                    self.unreplayable(super::oids::REASON);
                }
                if types.as_ref().is_none_or(|types| types.iter().any(|name| self.may_hold_moment(name))) {
                    self.unreplayable(
                        "text in XML or JSON that is read as a date or time may name a moment by the clock",
                    );
                }
                block.walks.extend(parts.iter().map(|e| (e, scope)));
                let name = alias.as_ref().map_or(String::new(), |a| a.name.clone());
                self.scopes[scope].entries.push(Entry { name, columns: EntryColumns::Opaque });
                Facts::default()
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // Each is a different part of one FROM item.
    fn open_relation(
        &mut self,
        name: &crate::ast::Name,
        only: bool,
        shown: String,
        renames: &[String],
        scope: ScopeId,
        block: &mut Block<'a>,
        lock: Option<Mode>,
    ) -> Facts {
        let mode = lock.unwrap_or(Mode::Shared);
        match self.resolve(name) {
            Resolved::Table(table) => {
                let relation = self.new_relation(Some(table));
                let named = self.as_named(name, table);
                if !std::ptr::eq(named, self.table(table)) {
                    self.partitions.insert(relation, named);
                }
                let columns = match renames {
                    [] => EntryColumns::Table(relation),
                    renames => {
                        let list = Some(derived_of_table(named));
                        self.note_derived(scope, self.scopes[scope].entries.len(), list, renames);
                        EntryColumns::Derived(self.renamed(table, relation, renames))
                    }
                };
                let by_name = lock.is_none() && renames.is_empty() && !self.scopes[scope].body;
                let of = match by_name && !self.scopes[scope].hidden {
                    true => self.mentioned_columns(table, &shown),
                    false => ColumnSet::ALL,
                };
                self.scopes[scope].entries.push(Entry { name: shown, columns });
                block.pending.push(Pending { relation, table, only, mode, of, extra: Facts::default() });
                self.note_table(table, false);
                Facts::default()
            }
            Resolved::View(index) => self.open_view(index, shown, renames, scope, block, lock),
            found => {
                match found {
                    Resolved::Unknown => self.touch_everything(mode),
                    Resolved::Sequence(index) => {
                        self.effects.sequences = true;
                        self.effects.reads = true;
                        let sequence = &self.catalogue().sequences[index];
                        self.push_whole_table(table_id(&sequence.schema, &sequence.name), Mode::Shared);
                        self.unreplayable("it reads a sequence as a table");
                    }
                    Resolved::System => {
                        self.unreplayable("it reads the catalogue, which differs between servers")
                    }
                    _ => {}
                }
                self.scopes[scope].entries.push(Entry { name: shown, columns: EntryColumns::Opaque });
                Facts::default()
            }
        }
    }

    fn open_view(
        &mut self,
        index: usize,
        shown: String,
        renames: &[String],
        scope: ScopeId,
        block: &mut Block<'a>,
        lock: Option<Mode>,
    ) -> Facts {
        let view = &self.catalogue().views[index];
        self.effects.reads = true;
        if view.materialised {
            if view.oids == Some(Oids::Names) {
                self.unreplayable(super::oids::REASON);
            }
            let id = table_id(&view.schema, &view.name);
            self.push_whole_table(id, lock.unwrap_or(Mode::Shared));
            self.scopes[scope].entries.push(Entry { name: shown, columns: EntryColumns::Opaque });
            return Facts::default();
        }
        let library = self.library;
        let Some(query) = library.query(&view.definition) else {
            self.touch_everything(lock.unwrap_or(Mode::Shared));
            self.unreplayable("a view's definition could not be read");
            self.scopes[scope].entries.push(Entry { name: shown, columns: EntryColumns::Opaque });
            return Facts::default();
        };
        let mut names = view.columns.clone();
        for (name, rename) in names.iter_mut().zip(renames) {
            name.clone_from(rename);
        }
        let usage = QueryUse { lock, ordered: true, once: false, body: true };
        self.open_query(query, None, None, usage, shown, &names, scope, block)
    }

    fn open_cte(
        &mut self,
        id: CteId,
        shown: String,
        renames: &[String],
        scope: ScopeId,
        block: &mut Block<'a>,
    ) -> Facts {
        let cte = &mut self.ctes[id];
        cte.referenced = true;
        let (table, outer, opaque, body) = (cte.table, cte.outer, cte.opaque, cte.body);
        let Statement::Query(query) = &table.statement else {
            let names = if table.columns.is_empty() { renames } else { &table.columns };
            let list = self.derived_of_returning(&table.statement);
            self.note_derived(scope, self.scopes[scope].entries.len(), list, names);
            self.scopes[scope].entries.push(Entry { name: shown, columns: EntryColumns::Opaque });
            return Facts::default();
        };
        if opaque {
            let names = if table.columns.is_empty() { renames } else { &table.columns };
            let list = self.ctes[id].derived.clone();
            self.note_derived(scope, self.scopes[scope].entries.len(), list, names);
            self.scopes[scope].entries.push(Entry { name: shown, columns: EntryColumns::Opaque });
            return Facts::default();
        }
        let mut names = table.columns.clone();
        for (name, rename) in names.iter_mut().zip(renames) {
            name.clone_from(rename);
        }
        if names.is_empty() {
            names = renames.to_vec();
        }
        let usage = QueryUse { lock: None, ordered: true, once: true, body };
        self.open_query(query, None, outer, usage, shown, &names, scope, block)
    }

    /// A subquery in FROM. Where what holds for its result holds for the rows behind it, it is merged: its tables
    /// take part in the facts of the query around it.
    #[allow(clippy::too_many_arguments)] // Each is a different part of one FROM item.
    fn open_query(
        &mut self,
        query: &'a Query,
        parent: Parent,
        env: Env,
        usage: QueryUse,
        shown: String,
        renames: &[String],
        scope: ScopeId,
        block: &mut Block<'a>,
    ) -> Facts {
        let select = match &query.body {
            Body::Select(select) if self.may_merge(query, select) => select,
            _ => {
                let (entry, renames) = ((scope, self.scopes[scope].entries.len()), renames.to_vec());
                block.deferred.push(Deferred { entry, renames, query, parent, env, usage });
                self.scopes[scope].entries.push(Entry { name: shown, columns: EntryColumns::Opaque });
                return Facts::default();
            }
        };
        let inner = self.new_scope(parent, env, usage.body);
        let locks = Locks { inherited: usage.lock, clauses: &[] };
        let mut exported = Facts::default();
        for item in &select.from {
            let of_item = self.open_item(item, inner, block, &locks);
            exported.extend(&of_item);
        }
        if let Some(filter) = &select.filter {
            self.places_in(filter, inner);
            self.gather(filter, inner, &mut exported);
            block.walks.push((filter, inner));
        }
        block.merged.push(inner);
        block.walks.extend(select.targets.iter().map(|t| (&t.value, inner)));
        let columns = self.derived_columns(&select.targets, renames, inner);
        let list = self.derived_of_targets(&select.targets, inner);
        let entry = (scope, self.scopes[scope].entries.len());
        block.selects.push(Merged { select, inner, entry, renames: renames.to_vec() });
        self.note_derived(entry.0, entry.1, list, renames);
        self.scopes[scope].entries.push(Entry { name: shown, columns });
        exported
    }

    /// Whether each row of a subquery's result comes from one combination of rows, unaffected by others.
    fn may_merge(&self, query: &Query, select: &Select) -> bool {
        query.with.is_none()
            && query.limit.is_none()
            && query.offset.is_none()
            && query.locking.is_empty()
            && query.into.is_none()
            && query.order_by.is_empty()
            && !matches!(select.distinct, Distinct::On(_))
            && select.group_by.is_empty()
            && select.having.is_none()
            && select.windows.is_empty()
            && !select.targets.iter().any(|t| self.is_aggregate(&t.value))
    }

    fn derived_columns(&mut self, targets: &'a [Target], renames: &[String], inner: ScopeId) -> EntryColumns {
        let mut columns: Vec<(String, Option<Key>)> = Vec::new();
        for target in targets {
            match &target.value {
                Expr::Column { path, star: true, .. } => {
                    let Some(expanded) = self.star_columns(path.last(), inner) else {
                        return EntryColumns::Opaque;
                    };
                    columns.extend(expanded);
                }
                value => {
                    let name = match (&target.name, value) {
                        (Some(name), _) => name.clone(),
                        (None, Expr::Column { path, .. }) => path.last().cloned().unwrap_or_default(),
                        // A name made up by the server; giving it none only loses facts, but an expression
                        // may still use it, so that an outer column of that name must not be found instead.
                        (None, _) => return EntryColumns::Opaque,
                    };
                    columns.push((name, self.column_key(value, inner)));
                }
            }
        }
        for ((name, _), rename) in columns.iter_mut().zip(renames) {
            name.clone_from(rename);
        }
        EntryColumns::Derived(columns)
    }

    /// The columns of `*` or `alias.*`, or None if they are not all known.
    pub(super) fn star_columns(
        &self,
        alias: Option<&String>,
        scope: ScopeId,
    ) -> Option<Vec<(String, Option<Key>)>> {
        let mut columns = Vec::new();
        let mut found = false;
        for entry in &self.scopes[scope].entries {
            if alias.is_some_and(|a| *a != entry.name) {
                continue;
            }
            found = true;
            match &entry.columns {
                EntryColumns::Opaque => return None,
                EntryColumns::Derived(derived) => columns.extend(derived.iter().cloned()),
                EntryColumns::Table(relation) => {
                    let table = self.relations.get(*relation as usize).copied().flatten()?;
                    let of_table = &self.shape(*relation, table).columns;
                    columns.extend(of_table.iter().map(|c| (c.name.clone(), Some((*relation, c.number)))));
                }
            }
        }
        found.then_some(columns)
    }

    fn renamed(&self, table: usize, relation: u32, renames: &[String]) -> Vec<(String, Option<Key>)> {
        let columns = &self.shape(relation, table).columns;
        let mut named: Vec<(String, Option<Key>)> =
            columns.iter().map(|c| (c.name.clone(), Some((relation, c.number)))).collect();
        for ((name, _), rename) in named.iter_mut().zip(renames) {
            name.clone_from(rename);
        }
        named
    }

    fn open_join(
        &mut self,
        join: Join<'a>,
        scope: ScopeId,
        block: &mut Block<'a>,
        locks: &Locks<'_>,
    ) -> Facts {
        // The alias of a join hides the names inside it.
        let hidden = join.alias.is_some();
        let scope = if hidden {
            let (parent, env, body) =
                (self.scopes[scope].parent, self.scopes[scope].env, self.scopes[scope].body);
            let inner = self.new_scope(parent, env, body);
            self.scopes[inner].hidden = true;
            let name = join.alias.unwrap_or_default().to_owned();
            self.scopes[scope].entries.push(Entry { name, columns: EntryColumns::Opaque });
            block.merged.push(inner);
            inner
        } else {
            scope
        };
        let (first_entry, first) = (self.scopes[scope].entries.len(), block.pending.len());
        let mut exported = self.open_item(join.left, scope, block, locks);
        let (middle_entry, middle) = (self.scopes[scope].entries.len(), block.pending.len());
        let of_right = self.open_item(join.right, scope, block, locks);
        exported.extend(&of_right);
        let mut on = Facts::default();
        if let Some(condition) = join.on {
            self.places_in(condition, scope);
            self.gather(condition, scope, &mut on);
            block.walks.push((condition, scope));
        }
        for name in join.using {
            let left = self.entry_column(scope, first_entry..middle_entry, name);
            let right = self.entry_column(scope, middle_entry..self.scopes[scope].entries.len(), name);
            if let (Some(left), Some(right)) = (left, right) {
                self.equal_columns(left, right, &mut on);
            }
        }
        match join.kind {
            JoinKind::Inner => exported.extend(&on),
            JoinKind::Left => block.pending[middle..].iter_mut().for_each(|p| p.extra.extend(&on)),
            JoinKind::Right => block.pending[first..middle].iter_mut().for_each(|p| p.extra.extend(&on)),
            JoinKind::Full => {}
        }
        exported
    }

    /// Finds a name of a WITH clause.
    fn find_cte(&self, env: Env, name: &str) -> Option<CteId> {
        let mut at = env;
        while let Some(id) = at {
            if self.ctes[id].table.name == name {
                return Some(id);
            }
            at = self.ctes[id].next;
        }
        None
    }

    /// Rows of a table that are read, under the facts that must hold for them.
    fn read_table(&mut self, read: &Pending, facts: &Facts) {
        self.effects.reads = true;
        let mut known = HashMap::new();
        for column in &self.table(read.table).columns {
            if let Some(values) = facts.values((read.relation, column.number)) {
                known.insert(column.number, values.clone());
            }
        }
        self.read_columns(read.table, read.only, &known, read.mode, read.of);
    }

    fn note_locking(&mut self, clauses: &[Locking]) {
        for clause in clauses {
            self.effects.locks_rows = true;
            if clause.wait == LockWait::SkipLocked {
                self.unreplayable("SKIP LOCKED chooses rows by what other sessions hold");
            }
            self.locks_shared |= matches!(clause.strength, LockStrength::KeyShare | LockStrength::Share);
            let found = (clause.strength, clause.wait);
            self.locking = Some(self.locking.map_or(found, |old| (old.0.max(found.0), old.1.max(found.1))));
        }
    }

    // Columns.

    /// The column of a table that a name stands for, searched from the inside out.
    pub(super) fn resolve_column(&self, scope: ScopeId, path: &[String]) -> Option<Key> {
        let (name, qualifier) = ast::name_and_qualifier(path)?;
        let mut at = Some(scope);
        while let Some(id) = at {
            let scope = &self.scopes[id];
            let mut found: Option<Option<Key>> = None;
            let mut opaque = false;
            for (i, entry) in scope.entries.iter().enumerate() {
                if qualifier.is_some_and(|q| *q != entry.name) {
                    continue;
                }
                // What is no column of the relation that is meant is a function of its row, and no other's column.
                opaque |= qualifier.is_some();
                match self.column_in(id, i, name) {
                    ColumnIn::Key(key) if found.is_none() => found = Some(key),
                    // Two relations have it: a merged column of USING, or an error.
                    ColumnIn::Key(_) => found = Some(None),
                    ColumnIn::Maybe => opaque = true,
                    ColumnIn::No => {}
                }
            }
            match found {
                Some(key) => return key,
                None if opaque => return None,
                None => at = scope.parent,
            }
        }
        None
    }

    fn column_in(&self, scope: ScopeId, entry: usize, name: &str) -> ColumnIn {
        match &self.scopes[scope].entries[entry].columns {
            EntryColumns::Opaque => ColumnIn::Maybe,
            EntryColumns::Derived(columns) => {
                let mut named = columns.iter().filter(|(n, _)| n == name);
                match (named.next(), named.next()) {
                    (Some((_, key)), None) => ColumnIn::Key(*key),
                    (Some(_), Some(_)) => ColumnIn::Key(None),
                    _ => ColumnIn::No,
                }
            }
            EntryColumns::Table(relation) => {
                let table = self.relations.get(*relation as usize).copied().flatten();
                match table.and_then(|t| self.table(t).column(name)) {
                    Some(column) => ColumnIn::Key(Some((*relation, column.number))),
                    None => ColumnIn::No,
                }
            }
        }
    }

    fn entry_column(&self, scope: ScopeId, entries: std::ops::Range<usize>, name: &str) -> Option<Key> {
        let mut found = None;
        for i in entries {
            match self.column_in(scope, i, name) {
                ColumnIn::Key(Some(key)) if found.is_none() => found = Some(key),
                ColumnIn::No => {}
                _ => return None,
            }
        }
        found
    }
}

enum ColumnIn {
    Key(Option<Key>),
    Maybe,
    No,
}

struct Join<'a> {
    kind: JoinKind,
    left: &'a From,
    right: &'a From,
    on: Option<&'a Expr>,
    using: &'a [String],
    alias: Option<&'a str>,
}

fn call_name(calls: &[Expr]) -> String {
    match calls {
        [Expr::Call(call)] => call.name.last().to_owned(),
        _ => String::new(),
    }
}

const FIRST_OF_ROWS: &str = "a function yields the first of several rows, whose order is not total";

/// Whether a query without FROM yields one row.
fn is_single_row(query: &Query) -> bool {
    matches!(&query.body, Body::Values(rows) if rows.len() <= 1)
}
