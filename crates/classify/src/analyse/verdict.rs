//! The conclusion: what is known of a statement as a class.

use super::Analyser;
use super::freeze::Finished;
use crate::ast::{Statement, Utility};
use crate::capture::{CaptureColumn, CaptureOp, CapturePlan};
use crate::catalogue::{Capturing, Column, Table};
use crate::class::{Bulk, Class, Determinism, Kind, NumberPlan, Pinned, Refusal, all_constants};
use crate::lexer::{Normalised, hash_bytes};
use crate::rewrite::{Frozen, Piece, Rewrite, Splice, qualified, quoted};
use crate::template::{AccessTemplate, ItemTemplate, NullRule, Operand, RecheckTemplate, Source, Values};
use onecopy_core::{ClassId, ColumnSet, Mode, Space, TableId};

impl<'a> Analyser<'a> {
    pub(super) fn conclude(
        mut self,
        normalised: &Normalised<'_>,
        statement: Option<&'a Statement>,
        kind: Kind,
    ) -> Class {
        let writes = self.effects.writes;
        let reason = self.unreplayable.clone();
        let determinism = self.determinism(reason, statement, &kind);
        // The rows may be shipped even where the text would do: used when a string names a moment.
        let mut fallback = match &determinism {
            Determinism::Replay => {
                let reasons = [
                    (&self.clock_words, "a string may name a moment by the clock ('now', 'today' ...)"),
                    (&self.zoned_words, super::zoned::REASON),
                ];
                let reason = reasons.iter().find(|(given, _)| !given.is_empty()).map(|(_, reason)| *reason);
                match reason {
                    // It may name nothing at home, and then be shipped as the number that it is.
                    _ if !self.oid_words.is_empty() => {
                        Some(Box::new(Determinism::Refuse(super::oids::given_by_number())))
                    }
                    Some(reason) => {
                        Some(Box::new(self.determinism(Some(reason.to_owned()), statement, &kind)))
                    }
                    None => None,
                }
            }
            _ => None,
        };
        let edits = std::mem::take(&mut self.edits);
        let (finished, mut determinism) =
            match edits.finish(self.sql, self.layout, writes, self.numbers.as_ref()) {
                Some(finished) => (finished, determinism),
                None => {
                    let refusal = Refusal::new(
                        "values to be frozen overlap in the statement's text",
                        "compute them by statements of their own",
                    );
                    let nothing = Finished {
                        rewrite: Rewrite::default(),
                        in_block: None,
                        numbers: Vec::new(),
                        count: None,
                        copied: None,
                    };
                    (nothing, Determinism::Refuse(refusal))
                }
            };
        let Finished { rewrite, in_block, numbers, count, copied } = finished;
        for determinism in [Some(&mut determinism), fallback.as_deref_mut()].into_iter().flatten() {
            if let Determinism::Capture(plan) = determinism {
                // The columns come last of all that is put at the statement's end.
                let returning = std::mem::take(&mut plan.rewrite.splices);
                plan.rewrite = rewrite.clone();
                plan.rewrite.splices.extend(returning);
            }
            self.number_rows(determinism, count.clone(), copied.clone(), &numbers);
        }
        let defines = matches!(kind, Kind::Ddl { .. });
        // A materialized view keeps its name, and is itself an item.
        let looks_up_names =
            defines && writes && !matches!(kind, Kind::Ddl { command: "REFRESH MATERIALIZED VIEW", .. });
        if looks_up_names {
            self.items.push(ItemTemplate {
                table: TableId::NAMES,
                space: Space::Schema,
                mode: Mode::Exclusive,
                of: ColumnSet::ALL,
                columns: Vec::new(),
                null: NullRule::Skip,
            });
        }
        if writes && self.locks_shared {
            self.lock_against_writers();
        }
        let access = self.access(&numbers, defines);
        if let Kind::Ddl { tables, .. } = &kind {
            // It may write its tables anew.
            self.rechecked.tables.extend(tables.iter().copied().chain([TableId::ALL]));
        }
        let rechecks = self.rechecks(&numbers);
        let shown = match statement {
            Some(Statement::Query(query)) if kind == Kind::Select && determinism == Determinism::Read => {
                self.shown_by_answer(query, &access.items)
            }
            _ => Vec::new(),
        };
        let is_keyed = self.everything.is_none()
            && !access.items.is_empty()
            && access.items.iter().all(|item| !item.columns.is_empty());
        let parameterised = match determinism {
            Determinism::Replay | Determinism::Read => {
                statement.and_then(|s| self.parameterised(s, &rewrite, is_keyed))
            }
            _ => None,
        };
        let bulk = match (&determinism, statement) {
            (Determinism::Replay, Some(statement)) => self.bulk(statement, &access),
            _ => Bulk::No,
        };
        if !writes {
            self.clock_words = Default::default();
            self.oid_words = Default::default();
            self.zoned_words = Default::default();
        }
        self.effects.catalogue_only = self.effects.reads_catalogue && access.items.is_empty() && !writes;
        let mut tables = std::mem::take(&mut self.tables);
        if self.everything.is_some() {
            tables = vec![TableId::ALL];
        }
        Class {
            id: ClassId(hash_bytes(normalised.text)),
            text: super::shown(normalised.text),
            kind,
            effects: self.effects,
            determinism,
            rewrite,
            in_block: in_block.map(Box::new),
            parameterised,
            bulk,
            tables,
            restarts: std::mem::take(&mut self.restarts),
            params_max: self.params.keys().next_back().copied().unwrap_or(0),
            copied_moments: self.copied_moments.take(),
            guard: self.guard.take(),
            access,
            columns_read: std::mem::take(&mut self.columns_read).into_iter().collect(),
            rekeyed: std::mem::take(&mut self.rekeyed),
            shown,
            rechecks,
            pinned: self.pinned(normalised),
            key: normalised.text.into(),
            clock_words: self.clock_words,
            oid_words: self.oid_words,
            zoned_words: self.zoned_words,
            fallback,
        }
    }

    /// A statement that changes rows locks others FOR SHARE, as do all that execute it again: so whoever changes those afterwards
    /// must do so where it has been executed, as if it had changed them. Which items are meant is not told apart.
    fn lock_against_writers(&mut self) {
        let read =
            self.items.iter_mut().filter(|item| item.space == Space::Rows && item.mode == Mode::Shared);
        read.for_each(|item| (item.mode, item.of) = (Mode::NoKeyExclusive, ColumnSet::ALL));
        self.everything =
            self.everything.map(|mode| if mode == Mode::Shared { Mode::NoKeyExclusive } else { mode });
    }

    /// Rows that are numbered take more than the capture of a statement's rows.
    fn number_rows(
        &self,
        determinism: &mut Determinism,
        count: Option<Rewrite>,
        copied: Option<(Vec<Piece>, Vec<Frozen>)>,
        frozen: &[Option<u32>],
    ) {
        let (Some(numbers), Determinism::Capture(plan)) = (&self.numbers, &mut *determinism) else { return };
        let mut capture = (**plan).clone();
        *determinism = match self.numbering(numbers, count, &mut capture, copied) {
            Some(source) => {
                let blocks = self.blocks(&capture, frozen);
                Determinism::Number(Box::new(NumberPlan { capture, blocks, source }))
            }
            None => Determinism::Refuse(Refusal::new(
                "rows that get numbers of sequences must be counted first, and the query alone does not use all parameters",
                "write the parameters of ON CONFLICT and RETURNING as constants, or insert the rows by VALUES",
            )),
        };
    }

    fn pinned(&self, normalised: &Normalised<'_>) -> Pinned {
        if self.pin_all {
            return Pinned::All(all_constants(self.sql, normalised.layout));
        }
        let hash = |index: &u32| {
            let constant = normalised.layout.consts.get(*index as usize)?;
            Some((*index, hash_bytes(constant.text(self.sql).as_bytes())))
        };
        Pinned::Some(self.pinned.iter().filter_map(hash).collect())
    }

    /// The access set; `numbers` are the final numbers of frozen values. Whoever `defines` and takes the whole database says so:
    /// by what is read through a name it may lie elsewhere from then on.
    fn access(&mut self, numbers: &[Option<u32>], defines: bool) -> AccessTemplate {
        let mut items = std::mem::take(&mut self.items);
        if let Some(mode) = self.everything {
            items.retain(|item| !mode.covers(item.mode) || item.is_reference_beside(mode));
            items.insert(
                0,
                ItemTemplate {
                    table: TableId::ALL,
                    space: if defines && mode.writes() { Space::Schema } else { Space::Rows },
                    mode,
                    of: ColumnSet::ALL,
                    columns: Vec::new(),
                    null: NullRule::Skip,
                },
            );
        }
        self.template(items, numbers)
    }

    /// What foreign keys lock beside the access set where they are checked again.
    fn rechecks(&mut self, numbers: &[Option<u32>]) -> Option<Box<RecheckTemplate>> {
        let super::Rechecked { tables, parents } = std::mem::take(&mut self.rechecked);
        let parents = self.template(parents, numbers);
        (!tables.is_empty()).then(|| Box::new(RecheckTemplate { tables, parents }))
    }

    fn template(&mut self, mut items: Vec<ItemTemplate>, numbers: &[Option<u32>]) -> AccessTemplate {
        let renumber = |operand: &mut Operand| {
            if let Source::Frozen(index) = operand.source {
                // A value that was not frozen after all is not shown.
                let number = numbers.get(index as usize).copied().flatten().unwrap_or(u32::MAX);
                operand.source = Source::Frozen(number);
            }
        };
        for item in &mut items {
            for column in &mut item.columns {
                match &mut column.values {
                    Values::One(operand) | Values::Array(operand) => renumber(operand),
                    Values::Any(operands) => operands.iter_mut().for_each(renumber),
                }
            }
        }
        let whole: Vec<ItemTemplate> =
            items.iter().filter(|i| i.space == Space::Rows && i.columns.is_empty()).cloned().collect();
        items.retain(|item| !whole.iter().any(|all| all.covers_rows(item) && !item.covers_rows(all)));
        AccessTemplate { items, param_types: self.param_types() }
    }

    fn determinism(
        &mut self,
        unreplayable: Option<String>,
        statement: Option<&'a Statement>,
        kind: &Kind,
    ) -> Determinism {
        if let Some(refusal) = &self.refusal {
            return Determinism::Refuse(refusal.clone());
        }
        if !self.effects.writes {
            return Determinism::Read;
        }
        if let Some(refusal) = self.refused_between_versions(kind) {
            return Determinism::Refuse(refusal);
        }
        let Some(reason) = unreplayable.or_else(|| self.varies_between_versions(statement, kind)) else {
            return Determinism::Replay;
        };
        let plan = match statement {
            Some(statement) => self.capture(&reason, statement, kind),
            None => Err("it is no change of rows".to_owned()),
        };
        match plan {
            Ok(plan) => Determinism::Capture(Box::new(plan)),
            Err(obstacle) => Determinism::Refuse(Refusal::new(
                format!("the statement's effect may differ between replicas: {reason}"),
                format!("its rows cannot be shipped instead, since {obstacle}"),
            )),
        }
    }

    /// Definitions are replayed or not changed at all, and another version may make something else of the same text.
    fn refused_between_versions(&self, kind: &Kind) -> Option<Refusal> {
        // A copy has to find materialized views fresh.
        let refreshes = matches!(kind, Kind::Ddl { command: "REFRESH MATERIALIZED VIEW", .. });
        let defines = matches!(kind, Kind::Ddl { temporary: false, .. }) && !kind.keeps_catalogue();
        let is_between = self.catalogue().captures == Capturing::BetweenVersions;
        (is_between && defines && !refreshes).then(|| {
            Refusal::new(
                "definitions do not change while servers of different versions serve, which might make different things of them",
                "complete the upgrade first: `onecopy replica list` shows the versions",
            )
        })
    }

    /// Why a change of rows is not replayed where none is: other versions may compute it differently. The rows of a
    /// COPY go there as they are, if it chooses and fills in nothing, and TRUNCATE computes nothing.
    fn varies_between_versions(&mut self, statement: Option<&'a Statement>, kind: &Kind) -> Option<String> {
        let why = match self.catalogue().captures {
            Capturing::Never => return None,
            Capturing::ByProtocol => "the protocol ships rows",
            Capturing::BetweenVersions => {
                "servers of different versions serve, and may compute it differently"
            }
        };
        let computes_rows = match kind {
            Kind::CopyIn { .. } => self.has_triggers || !self.copies_rows_as_they_are(statement),
            Kind::Truncate { .. } => self.has_triggers,
            // What is said of sequences is the scheduler's.
            Kind::Select => self.writes_through_functions,
            // Statements that these prepare are looked at when they are executed; others change no rows.
            Kind::Prepare { .. } | Kind::Execute { .. } | Kind::Ddl { .. } | Kind::SetVal { .. } => false,
            Kind::SessionCalls(_) | Kind::SetConfig { .. } | Kind::LockTable { .. } => false,
            Kind::Notify { .. } | Kind::SetConstraints { .. } | Kind::Maintenance { .. } => false,
            _ => true,
        };
        computes_rows.then(|| why.to_owned())
    }

    /// Whether a COPY FROM STDIN gives every column that a server would fill in, and takes every row.
    fn copies_rows_as_they_are(&mut self, statement: Option<&'a Statement>) -> bool {
        let Some(Statement::Utility(Utility::Copy(copy))) = statement else { return false };
        let Some(super::Resolved::Table(table)) = copy.table.as_ref().map(|name| self.resolve(name)) else {
            return false;
        };
        let is_given = |column: &Column| {
            column.default.is_none() || copy.columns.is_empty() || copy.columns.contains(&column.name)
        };
        copy.filter.is_none()
            && !copy.default_marker
            && self.table(table).columns.iter().filter(|column| column.generated.is_none()).all(is_given)
    }

    /// The plan to ship the rows that a statement changes, or what stands in its way.
    fn capture(
        &mut self,
        reason: &str,
        statement: &'a Statement,
        _kind: &Kind,
    ) -> Result<CapturePlan, String> {
        let (name, alias, with, returning, op) = match statement {
            Statement::Utility(Utility::Copy(copy)) if copy.from && self.numbers.is_some() => {
                match &copy.table {
                    Some(name) => (name, &None, &None, &None, CaptureOp::Insert),
                    None => return Err("its target is no table".to_owned()),
                }
            }
            Statement::Insert(s) => (&s.table, &s.alias, &s.with, &s.returning, insert_op(s)),
            Statement::Update(s) => (&s.table, &s.alias, &s.with, &s.returning, CaptureOp::Update),
            Statement::Delete(s) => (&s.table, &s.alias, &s.with, &s.returning, CaptureOp::Delete),
            _ => return Err("it is no single INSERT, UPDATE or DELETE".to_owned()),
        };
        let is_query = |t: &crate::ast::CommonTable| matches!(t.statement, Statement::Query(_));
        if with.as_ref().is_some_and(|w| !w.tables.iter().all(is_query)) {
            return Err("its WITH clause changes rows as well".to_owned());
        }
        let index = match self.resolve(name) {
            super::Resolved::Table(index) => index,
            _ => return Err("its target is no table".to_owned()),
        };
        let t = self.table(index);
        if self.catalogue().children(index).iter().any(|c| !self.table(*c).is_partition) {
            return Err(format!("table {} has inheritors", t.name));
        }
        if self.has_triggers {
            return Err(format!("table {} has triggers", t.name));
        }
        if let Some(varies) = &self.varying_check {
            return Err(format!(
                "a CHECK of {} would be evaluated again where they are put in, by another role and maybe later: {varies}",
                t.name
            ));
        }
        if self.writes_through_functions {
            return Err("it calls functions that change rows".to_owned());
        }
        let key = capture_key(t);
        if key.is_empty() && op != CaptureOp::Insert {
            return Err(format!("table {} has no primary key", t.name));
        }
        let set: Vec<&str> = match statement {
            Statement::Update(update) => update.set.iter().filter_map(|t| t.name.as_deref()).collect(),
            Statement::Insert(insert) => {
                let conflict = insert.on_conflict.as_ref().and_then(|c| c.update.as_ref());
                conflict.iter().flat_map(|(set, _)| set).filter_map(|t| t.name.as_deref()).collect()
            }
            _ => Vec::new(),
        };
        let set = self.set_and_computed(index, set);
        if set.iter().any(|name| key.iter().any(|k| k.name == *name)) {
            return Err(format!("it changes the primary key of {}", t.name));
        }
        if op == CaptureOp::Upsert && !t.primary_key().is_some_and(|key| key.immediate) {
            return Err(format!(
                "the primary key of {} is deferrable, so that ON CONFLICT cannot name it",
                t.name
            ));
        }
        // The rows come one by one, where the statement changed them all at once.
        let by_children = self.catalogue().references(index);
        let referenced = by_children.iter().any(|(child, fk)| {
            let numbers = self.parent_numbers(index, *child, *fk);
            let names = numbers.iter().flatten().filter_map(|n| t.column_by_number(*n));
            names.into_iter().any(|c| set.contains(&c.name.as_str()))
        });
        if referenced {
            return Err(format!("it changes columns of {} to which foreign keys refer", t.name));
        }
        // Foreign keys are not checked again where the rows are applied, so new ones may come in any order.
        let refers_to_itself = by_children.iter().any(|(child, _)| *child == index);
        if refers_to_itself && op == CaptureOp::Delete {
            return Err(format!("rows of {} refer to each other", t.name));
        }
        let cascades = op == CaptureOp::Delete && self.cascades(index, index, &mut Vec::new())?;
        // A computed key finds a row, and cannot be given to one.
        let is_key = |c: &Column| key.iter().any(|k| k.name == c.name);
        let all: Vec<CaptureColumn> = t
            .columns
            .iter()
            .filter(|c| c.generated.is_none() || op == CaptureOp::Update && is_key(c))
            .map(|c| CaptureColumn {
                name: c.name.clone(),
                type_name: c.type_name.clone(),
                fixed: c.identity == Some('a'),
            })
            .collect();
        let columns = if op == CaptureOp::Delete { key.clone() } else { all };
        let target = alias.clone().unwrap_or_else(|| name.last().to_owned());
        let list: Vec<String> =
            columns.iter().map(|c| format!("{}.{}", quoted(&target), quoted(&c.name))).collect();
        let client_returns = returning.is_some();
        let lead = if client_returns { ", " } else { " RETURNING " };
        let end = self.tokens().last().map_or(0, |t| t.end);
        let at = self.layout.position(u32::try_from(end).unwrap_or(self.layout.end));
        let returning = format!("{lead}{}", list.join(", "));
        let bulk = (op == CaptureOp::Insert && !t.row_security && !columns.is_empty()).then(|| {
            let names: Vec<String> = columns.iter().map(|c| quoted(&c.name)).collect();
            format!("COPY {} ({}) FROM STDIN", qualified(&t.schema, &t.name), names.join(", "))
        });
        Ok(CapturePlan {
            reason: reason.to_owned(),
            table: self.item_id(index),
            table_sql: qualified(&t.schema, &t.name),
            op,
            key,
            columns,
            rewrite: Rewrite {
                splices: vec![Splice { from: at, to: at, insert: vec![Piece::Text(returning.clone())] }],
                frozen: Vec::new(),
            },
            returning,
            client_returns,
            bulk,
            cascades,
        })
    }

    /// Columns that SET names, and those of the table that are computed from them.
    fn set_and_computed(&self, table: usize, mut set: Vec<&'a str>) -> Vec<&'a str> {
        let named = set.clone();
        let t = self.table(table);
        let partitions = self.catalogue().partitions(table).into_iter().map(|p| self.table(p));
        for column in std::iter::once(t).chain(partitions).flat_map(|t| &t.columns) {
            // What it is computed from is not known in another form than its text.
            let mentions = |name: &&str| match &column.default {
                Some(text) => text.contains(&quoted(name)) || words(text).any(|word| word == *name),
                None => true,
            };
            if column.generated.is_some() && named.iter().any(mentions) {
                set.push(&column.name);
            }
        }
        set
    }

    /// Whether foreign keys change rows of other tables when rows of `table` are deleted. Those of `first` must not be among
    /// them: a row that is gone by an action cannot be deleted by its key.
    fn cascades(&self, table: usize, first: usize, seen: &mut Vec<usize>) -> Result<bool, String> {
        let mut any = false;
        for (child, fk) in self.catalogue().references(table) {
            if matches!(self.table(*child).foreign_keys[*fk].on_delete, 'a' | 'r') {
                continue;
            }
            any = true;
            if *child == first {
                return Err(format!("foreign keys lead from {} back to it", self.table(first).name));
            }
            if !seen.contains(child) {
                seen.push(*child);
                self.cascades(*child, first, seen)?;
            }
        }
        Ok(any)
    }
}

/// The names in an expression that stand without quotes, among others.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

fn insert_op(insert: &crate::ast::Insert) -> CaptureOp {
    match &insert.on_conflict {
        Some(conflict) if conflict.update.is_some() => CaptureOp::Upsert,
        _ => CaptureOp::Insert,
    }
}

fn capture_key(table: &Table) -> Vec<CaptureColumn> {
    let columns = table.primary_key().map(|k| k.columns.as_slice()).unwrap_or_default();
    columns
        .iter()
        .filter_map(|number| table.column_by_number(*number))
        .map(|c| CaptureColumn {
            name: c.name.clone(),
            type_name: c.type_name.clone(),
            fixed: c.identity == Some('a'),
        })
        .collect()
}
