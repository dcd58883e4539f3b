//! INSERT, UPDATE, DELETE and MERGE: their items, what their effect depends on, and the values that must be
//! frozen into them.

use super::block::{Entry, EntryColumns, QueryUse, ScopeId};
use super::expr::At;
use super::facts::{Facts, Key};
use super::freeze::{Edits, closing};
use super::locks::{Assigned, Known, touches};
use super::{Analyser, Env, Resolved};
use crate::ast::{
    Body, Delete, Expr, From, Insert, Literal, Merge, MergeAction, MergeMatch, Name, OnConflict, Overriding,
    Query, Target, Update,
};
use crate::catalogue::{Column, Table, UniqueKey};
use crate::lexer::{Scratch, Token, TokenKind, normalise};
use crate::moment_text::has_clock_word;
use crate::name_types::has_number;
use crate::rewrite::{FrozenKind, Piece, identifier_parts, quoted};
use crate::template::{ITEMS_MAX, Operand, Source, Values};
use crate::value::{self, Canon, Found, Use};
use onecopy_core::Mode;

/// What an INSERT does about a column that it does not name.
pub(super) enum DefaultValue {
    /// It stays with the server; the value is known or not.
    Server(Option<Operand>),
    /// It is put into the text. The operand is known if the value is one frozen value and nothing else.
    Frozen { pieces: Vec<Piece>, operand: Option<Operand> },
}

/// The change of rows that fires a trigger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    Insert,
    Update,
    Delete,
    Truncate,
    /// Rows go from one partition to another: they are deleted there, and inserted here.
    Move,
}

impl<'a> Analyser<'a> {
    // INSERT.

    pub(super) fn insert(&mut self, insert: &'a Insert, env: Env, top: bool) {
        let body = self.nesting > 0;
        let first_returned = std::mem::take(&mut self.first_returned) && insert.returning.is_some();
        let (env, _) = self.with(insert.with.as_ref(), None, env, body);
        let scope = self.new_scope(None, env, body);
        let table = self.target_table(&insert.table);
        // Rows are returned in the order of the source.
        self.first_only = first_returned
            && insert.source.as_ref().is_some_and(|query| !matches!(query.body, Body::Values(_)));
        match table {
            Some(table) => self.insert_into(insert, table, scope, env, top),
            None => self.walk_insert(insert, scope, env),
        }
        self.first_only = false;
        self.finish_with(insert.with.as_ref(), env, body);
    }

    fn insert_into(&mut self, insert: &'a Insert, table: usize, scope: ScopeId, env: Env, top: bool) {
        let t = self.as_named(&insert.table, table);
        let given = match insert.source.as_deref() {
            Some(query) if has_into(query) => None,
            _ => self.given_columns(insert, t, scope),
        };
        let Some(given) = given else {
            // An unknown column, or INTO, is an error; until the server says so, anything may happen.
            self.touch_everything(Mode::Exclusive);
            self.walk_insert(insert, scope, env);
            return;
        };
        let body = self.scope_is_body(scope);
        if insert.overriding == Overriding::User && given.iter().any(|(c, _)| c.identity.is_some()) {
            self.refuse(
                "OVERRIDING USER VALUE draws from the sequence of a column that the statement names",
                "leave the identity column out",
            );
        }
        let mut rows = self.rows(insert, &given, scope, env);
        // So far only the source was looked at.
        self.unsteady |= self.effects.reads_random || self.effects.locks_rows;
        let place = match (body, top) {
            (true, _) => Place::Body,
            (false, true) => Place::Top,
            (false, false) => Place::With,
        };
        self.fill_defaults(insert, t, &given, &mut rows, place);
        let assigned = self.fire_triggers(table, Event::Insert);
        for row in &mut rows.values {
            match &assigned {
                Some(columns) => row.retain(|number, _| {
                    t.column_by_number(*number).is_some_and(|c| !columns.contains(&c.name))
                }),
                None => row.clear(),
            }
        }
        if rows.values.len() > ITEMS_MAX {
            rows.values = vec![Known::new()];
        }
        for row in &rows.values {
            self.insert_row(table, row);
        }
        self.refuse_computed_oids(table);
        self.checks(table);
        let relation = self.new_relation(Some(table));
        let name = insert.alias.clone().unwrap_or_else(|| insert.table.last().to_owned());
        self.note_columns_of_target(table, &name, body);
        let inner = self.new_scope(Some(scope), env, body);
        self.scopes[inner].entries.push(Entry { name, columns: EntryColumns::Table(relation) });
        if let Some(conflict) = &insert.on_conflict {
            if conflict.update.is_none() && matches!(rows.form, RowForm::Select { single: false }) {
                self.unreplayable(
                    "of several new rows with one key the first is kept, and their order is not total",
                );
            }
            self.on_conflict(conflict, t, table, &rows.values, inner);
        }
        self.returning(insert.returning.as_deref(), inner);
    }

    /// The columns that an INSERT gives values for, in order; the flag tells an assignment to a part.
    fn given_columns(
        &mut self,
        insert: &'a Insert,
        table: &'a Table,
        scope: ScopeId,
    ) -> Option<Vec<(&'a Column, bool)>> {
        if !insert.columns.is_empty() {
            insert.columns.iter().for_each(|target| self.expr(&target.value, At::each(scope)));
            return insert
                .columns
                .iter()
                .map(|target| Some((table.column(target.name.as_deref()?)?, target.partial)))
                .collect();
        }
        let count = match insert.source.as_deref() {
            None => 0,
            Some(query) => match &query.body {
                Body::Values(rows) => rows.first().map_or(0, Vec::len),
                Body::Select(select) => {
                    let star = |t: &Target| matches!(t.value, Expr::Column { star: true, .. });
                    if select.targets.iter().any(star) {
                        // As many as the source has; the others get their defaults.
                        self.given_width(insert, query, table)
                    } else {
                        select.targets.len()
                    }
                }
                Body::Set { .. } => self.given_width(insert, query, table),
            },
        };
        Some(table.columns.iter().take(count).map(|c| (c, false)).collect())
    }

    /// How many columns the source of an INSERT has that names none.
    fn given_width(&mut self, insert: &'a Insert, query: &'a Query, table: &'a Table) -> usize {
        let withs: Vec<_> = insert.with.iter().collect();
        if let Some(width) = self.width(query, &withs) {
            return width;
        }
        let matters = |c: &&Column| c.identity.is_some() || c.default.is_some();
        if let Some(column) = table.columns.iter().find(matters) {
            self.refuse(
                format!("it is not known whether column {} gets its default", column.name),
                "name the columns that INSERT gives values for",
            );
        }
        table.columns.len()
    }

    /// Walks the source of an INSERT; returns the values that it shows.
    fn rows(&mut self, insert: &'a Insert, given: &[(&'a Column, bool)], scope: ScopeId, env: Env) -> Rows {
        let body = self.scope_is_body(scope);
        let Some(query) = insert.source.as_deref() else {
            return Rows { values: vec![Known::new()], form: RowForm::DefaultValues };
        };
        let plain = query.with.is_none() && query.limit.is_none() && query.offset.is_none();
        match &query.body {
            Body::Values(rows) if plain && query.order_by.is_empty() => {
                let at = At::new(scope, !body);
                let mut values = Vec::with_capacity(rows.len());
                for row in rows {
                    let mut known = Known::new();
                    for (i, value) in row.iter().enumerate() {
                        match given.get(i) {
                            Some((column, partial)) => {
                                self.expr_for(value, at, column);
                                if !partial {
                                    self.shown_value(value, column, scope, &mut known);
                                }
                            }
                            None => self.expr(value, at),
                        }
                    }
                    values.push(known);
                }
                Rows { values, form: RowForm::Values }
            }
            Body::Select(select) => {
                let usage = QueryUse { lock: None, ordered: true, once: !body, body };
                self.receivers = Some(Some(given.iter().map(|(column, _)| *column).collect()));
                self.query(query, None, env, usage);
                given.iter().for_each(|(column, _)| self.assignment_casts(None, column, scope));
                let mut known = Known::new();
                for ((column, partial), target) in given.iter().zip(&select.targets) {
                    if matches!(target.value, Expr::Column { star: true, .. }) {
                        break;
                    }
                    if !partial {
                        self.shown_value(&target.value, column, scope, &mut known);
                    }
                }
                let single = select.from.is_empty()
                    && !select.targets.is_empty()
                    && select.targets.iter().all(|t| is_single(&t.value));
                Rows { values: vec![known], form: RowForm::Select { single } }
            }
            _ => {
                let usage = QueryUse { lock: None, ordered: true, once: !body, body };
                self.query(query, None, env, usage);
                given.iter().for_each(|(column, _)| self.assignment_casts(None, column, scope));
                if given.iter().any(|(column, _)| column.holds_names()) {
                    self.unreplayable(super::oids::REASON);
                }
                if given.iter().any(|(column, _)| super::zoned::is_zoned(column)) {
                    self.unreplayable(super::zoned::REASON);
                }
                Rows { values: vec![Known::new()], form: RowForm::Select { single: false } }
            }
        }
    }

    /// Notes the value of a column, if the text shows it.
    fn shown_value(&mut self, value: &'a Expr, column: &Column, scope: ScopeId, known: &mut Known) {
        if let Some(operand) = self.stored(value, column, scope) {
            known.insert(column.number, Values::One(operand));
        }
    }

    fn stored(&mut self, value: &'a Expr, column: &Column, scope: ScopeId) -> Option<Operand> {
        let canon = Canon::of(column)?;
        if let Expr::Call(call) = value {
            let index = self.edits.frozen_at(call.at).filter(|_| !self.scope_is_body(scope))?;
            if !self.edits.is_number(index) {
                return None;
            }
            return Some(Operand { source: Source::Frozen(index), usage: Use::Store });
        }
        self.operand(value, canon, Use::Store, scope)
    }

    /// Gives the columns that an INSERT leaves out, or gives as DEFAULT, their defaults' values.
    fn fill_defaults(
        &mut self,
        insert: &'a Insert,
        table: &'a Table,
        given: &[(&'a Column, bool)],
        rows: &mut Rows,
        place: Place,
    ) {
        let mut added: Vec<&'a Column> = Vec::new();
        let mut slots: Vec<Vec<Vec<Piece>>> = vec![Vec::new(); rows.values.len()];
        for column in table.columns.iter().filter(|c| !given.iter().any(|(g, _)| g.number == c.number)) {
            if column.generated.is_some() {
                continue;
            }
            for (row, slots) in rows.values.iter_mut().zip(&mut slots) {
                match self.default_value(column) {
                    DefaultValue::Server(Some(operand)) => {
                        row.insert(column.number, Values::One(operand));
                    }
                    DefaultValue::Server(None) => {}
                    DefaultValue::Frozen { pieces, operand } => {
                        if let Some(operand) = operand {
                            row.insert(column.number, Values::One(operand));
                        }
                        slots.push(pieces);
                        if added.last().is_none_or(|c| c.number != column.number) {
                            added.push(column);
                        }
                    }
                }
            }
        }
        if let (Some(query), RowForm::Values) = (insert.source.as_deref(), rows.form) {
            self.replace_defaults(query, given, rows, place);
        }
        if added.is_empty() {
            return;
        }
        let done = place != Place::Body
            && (self.add_columns(insert, given, &added, &slots, rows.form, place)
                || place == Place::Top
                    && rows.form == RowForm::Select { single: false }
                    && slots
                        .first()
                        .is_some_and(|slots| self.add_columns_around(insert, given, &added, slots)));
        if done && rows.form == (RowForm::Select { single: false }) {
            // Each row gets a value of its own, which the text does not show.
            for row in &mut rows.values {
                row.retain(|number, _| !added.iter().any(|c| c.number == *number));
            }
        }
        if !done {
            let names: Vec<&str> = added.iter().map(|c| c.name.as_str()).collect();
            let draws = slots.iter().flatten().flatten().any(|p| self.is_draw(p));
            if draws {
                self.refuse(
                    format!(
                        "the values of column {} would be drawn from a sequence for each row, in an order that \
                         may differ between replicas",
                        names.join(", ")
                    ),
                    "insert the rows by VALUES, or give the column a value",
                );
            } else {
                self.unreplayable(format!("the default of column {} depends on the time", names.join(", ")));
            }
        }
    }

    pub(super) fn is_draw(&self, piece: &Piece) -> bool {
        matches!(piece, Piece::Frozen(index) if self.edits.draws(*index))
    }

    /// DEFAULT among the values of rows.
    fn replace_defaults(
        &mut self,
        query: &'a Query,
        given: &[(&'a Column, bool)],
        rows: &mut Rows,
        place: Place,
    ) {
        let Body::Values(lists) = &query.body else { return };
        for (list, row) in lists.iter().zip(&mut rows.values) {
            for (value, (column, _)) in list.iter().zip(given) {
                let Expr::Default { at } = value else { continue };
                if column.generated.is_some() {
                    continue;
                }
                match self.default_value(column) {
                    DefaultValue::Server(operand) => {
                        if let Some(operand) = operand {
                            row.insert(column.number, Values::One(operand));
                        }
                    }
                    DefaultValue::Frozen { pieces, operand } => {
                        if let Some(operand) = operand {
                            row.insert(column.number, Values::One(operand));
                        }
                        let end = at.saturating_add("default".len() as u32);
                        let always = column.identity == Some('a');
                        let rewritable = match place {
                            Place::Top => !always || self.override_system(None),
                            Place::With => !always,
                            Place::Body => false,
                        };
                        if rewritable {
                            self.edits.replace(*at, end, pieces, true);
                        } else {
                            self.refuse(
                                format!("DEFAULT of column {} cannot be frozen here", column.name),
                                "leave the column out",
                            );
                        }
                    }
                }
            }
        }
    }

    /// Puts OVERRIDING SYSTEM VALUE before VALUES, once.
    fn override_system(&mut self, before: Option<u32>) -> bool {
        let place = before.or_else(|| {
            let tokens = self.tokens();
            let mut depth = 0_usize;
            let found = tokens.iter().find(|t| {
                match t.kind {
                    TokenKind::Byte(b'(') => depth += 1,
                    TokenKind::Byte(b')') => depth = depth.saturating_sub(1),
                    TokenKind::Word if depth == 0 => return self.word(t) == "values",
                    _ => {}
                }
                false
            });
            found.and_then(|t| u32::try_from(t.start).ok())
        });
        let Some(place) = place else { return false };
        let written = before.is_none() && self.sql.to_ascii_lowercase().contains("overriding system value");
        if !written && !self.edits.has_text_at(place, "OVERRIDING SYSTEM VALUE ") {
            self.edits.insert(place, vec![Piece::Text("OVERRIDING SYSTEM VALUE ".to_owned())]);
        }
        true
    }

    /// Adds columns with their values to the text of a top-level INSERT.
    fn add_columns(
        &mut self,
        insert: &'a Insert,
        given: &[(&'a Column, bool)],
        added: &[&'a Column],
        slots: &[Vec<Vec<Piece>>],
        form: RowForm,
        place: Place,
    ) -> bool {
        let Some(places) = self.insert_places(insert, form, place) else { return false };
        let names =
            |columns: &[&Column]| columns.iter().map(|c| quoted(&c.name)).collect::<Vec<_>>().join(", ");
        let always = added.iter().any(|c| c.identity == Some('a'));
        match (form, places) {
            (RowForm::DefaultValues, Places::DefaultValues { from, to }) => {
                let overriding = if always && insert.overriding == Overriding::None {
                    " OVERRIDING SYSTEM VALUE"
                } else {
                    ""
                };
                let mut pieces = vec![Piece::Text(format!("({}){overriding} VALUES (", names(added)))];
                pieces.extend(join(slots.first().map_or(&[], Vec::as_slice)));
                pieces.push(Piece::Text(")".to_owned()));
                self.edits.replace(from, to, pieces, true);
                true
            }
            (RowForm::Values | RowForm::Select { single: true }, Places::Rows { columns, source, rows }) => {
                if rows.len() != slots.len() {
                    return false;
                }
                match columns {
                    Some(end) => {
                        self.edits.insert(end, vec![Piece::Text(format!(", {}", names(added)))]);
                    }
                    None => {
                        let mut all: Vec<&Column> = given.iter().map(|(c, _)| *c).collect();
                        all.extend(added);
                        self.edits.insert(source, vec![Piece::Text(format!("({}) ", names(&all)))]);
                    }
                }
                if always && insert.overriding == Overriding::None && !self.override_system(Some(source)) {
                    return false;
                }
                for (end, slots) in rows.iter().zip(slots) {
                    let mut pieces = vec![Piece::Text(", ".to_owned())];
                    pieces.extend(join(slots));
                    self.edits.insert(*end, pieces);
                }
                true
            }
            _ => false,
        }
    }

    /// Where columns and values can be added to the text.
    fn insert_places(&self, insert: &Insert, form: RowForm, place: Place) -> Option<Places> {
        let tokens = self.tokens();
        let offset = |i: usize| tokens.get(i).and_then(|t| u32::try_from(t.start).ok());
        let is = |i: usize, word: &str| {
            tokens.get(i).is_some_and(|t| t.kind == TokenKind::Word && self.word(t) == word)
        };
        let mut i = match place {
            Place::With => self.insert_in_with(&tokens, &insert.table)?,
            _ => 0,
        };
        // WITH clauses hold INSERTs of their own, in parentheses.
        while !is(i, "insert") {
            i = match tokens.get(i)?.kind {
                TokenKind::Byte(b'(') => closing(&tokens, i)? + 1,
                _ => i + 1,
            };
        }
        // INSERT INTO name [. name] ... [AS alias]
        i += 3;
        while tokens.get(i)?.kind == TokenKind::Byte(b'.') {
            i += 2;
        }
        if is(i, "as") {
            i += 2;
        }
        let mut columns = None;
        if !insert.columns.is_empty() {
            if tokens.get(i)?.kind != TokenKind::Byte(b'(') {
                return None;
            }
            let close = closing(&tokens, i)?;
            columns = Some(offset(close)?);
            i = close + 1;
        }
        let source = offset(i)?;
        if is(i, "overriding") {
            i += 3;
        }
        match form {
            RowForm::DefaultValues => {
                let from = offset(i)?;
                let to = u32::try_from(tokens.get(i + 1)?.end).ok()?;
                (is(i, "default") && is(i + 1, "values")).then_some(Places::DefaultValues { from, to })
            }
            RowForm::Values => {
                if !is(i, "values") {
                    return None;
                }
                let mut rows = Vec::new();
                loop {
                    let close = closing(&tokens, i + 1)?;
                    rows.push(offset(close)?);
                    i = close + 1;
                    if tokens.get(i).is_none_or(|t| t.kind != TokenKind::Byte(b',')) {
                        return Some(Places::Rows { columns, source, rows });
                    }
                }
            }
            RowForm::Select { .. } => {
                if !is(i, "select") {
                    return None;
                }
                let mut end = tokens.get(i)?.end;
                i += 1;
                while let Some(token) = tokens.get(i) {
                    match token.kind {
                        TokenKind::Byte(b'(' | b'[') => i = closing(&tokens, i)?,
                        TokenKind::Byte(b')') => break,
                        TokenKind::Word => {
                            let word = self.word(token);
                            if matches!(
                                word.as_str(),
                                "where" | "from" | "group" | "having" | "on" | "returning" | "distinct"
                            ) {
                                break;
                            }
                        }
                        _ => {}
                    }
                    end = tokens[i].end;
                    i += 1;
                }
                let rows = vec![u32::try_from(end).ok()?];
                Some(Places::Rows { columns, source, rows })
            }
        }
    }

    /// The word INSERT of an INSERT inside a WITH clause, if the text has only one into its table.
    fn insert_in_with(&self, tokens: &[Token], table: &Name) -> Option<usize> {
        let is = |i: usize, word: &str| {
            tokens.get(i).is_some_and(|t| t.kind == TokenKind::Word && self.word(t) == word)
        };
        let names_it = |at: usize| {
            let mut end = at + 2;
            while tokens.get(end + 1).is_some_and(|t| t.kind == TokenKind::Byte(b'.')) {
                end += 2;
            }
            let text = self.sql.get(tokens.get(at + 2)?.start..tokens.get(end)?.end)?;
            Some(Name::new(identifier_parts(text)?) == *table)
        };
        let mut found = (0..tokens.len())
            .filter(|i| is(*i, "insert") && is(i + 1, "into") && names_it(*i).unwrap_or(true));
        let only = found.next()?;
        found.next().is_none().then_some(only)
    }

    /// Whether a column that is set to its default by the server gets the same on every replica, at any time.
    pub(super) fn is_constant_default(&mut self, column: &'a Column) -> bool {
        match &column.default {
            None => column.identity.is_none(),
            Some(text) => self.is_constant_text(text),
        }
    }

    /// Whether a default expression is a mere constant.
    pub(super) fn is_constant_text(&self, text: &'a str) -> bool {
        fn is_constant(expr: &Expr) -> bool {
            match expr {
                Expr::Literal { value: Literal::Text(text), .. } => !has_clock_word(text),
                Expr::Literal { .. } => true,
                Expr::Cast { value, to } => !super::oids::is_name_type(&to.name) && is_constant(value),
                Expr::Operator { left: None, right: Some(value), .. } => is_constant(value),
                _ => false,
            }
        }
        self.library.expression(text).is_some_and(is_constant)
    }

    /// What a column gets that is left out, or set to DEFAULT.
    pub(super) fn default_value(&mut self, column: &'a Column) -> DefaultValue {
        if column.identity.is_some() {
            return match &column.sequence {
                Some((schema, name)) => {
                    self.effects.sequences = true;
                    let kind = FrozenKind::NextVal { schema: schema.clone(), name: name.clone() };
                    let index = self.edits.add_frozen(kind, "bigint");
                    DefaultValue::Frozen {
                        pieces: vec![Piece::Frozen(index)],
                        operand: Some(Operand { source: Source::Frozen(index), usage: Use::Store }),
                    }
                }
                None => {
                    self.refuse(
                        format!("the sequence of identity column {} is not in the catalogue", column.name),
                        "give the column a value",
                    );
                    DefaultValue::Server(None)
                }
            };
        }
        let Some(text) = &column.default else {
            return DefaultValue::Server(Some(Operand { source: Source::Null, usage: Use::Store }));
        };
        self.default_expression(column, text)
    }

    /// Analyses a default as a text of its own: what it reads of the clock and draws from sequences is frozen.
    fn default_expression(&mut self, column: &'a Column, text: &'a str) -> DefaultValue {
        let library = self.library;
        let sql: &'a str = library.texts.alloc(format!("{DEFAULT_PREFIX}{text}"));
        let mut scratch = Scratch::default();
        let owned = normalise(sql, &mut scratch).layout.to_owned();
        let layout = library.layouts.alloc(owned).layout();
        let Some(expr) = library.expression(text) else {
            self.unreplayable(format!("the default of column {} could not be read", column.name));
            return DefaultValue::Server(None);
        };
        // The text does not show a conversion to the column's type.
        let scope = self.new_scope(None, None, true);
        self.assignment_casts(Some(expr), column, scope);
        if super::zoned::is_zoned(column) {
            self.zoned_value(expr, scope);
        }
        if let Some(operand) = constant_default(expr, column) {
            return DefaultValue::Server(Some(operand));
        }
        let outer_sql = std::mem::replace(&mut self.sql, sql);
        let outer_layout = std::mem::replace(&mut self.layout, layout);
        let outer_edits = std::mem::take(&mut self.edits);
        let outer_pinned = std::mem::take(&mut self.pinned);
        let outer_words = std::mem::take(&mut self.clock_words);
        let outer_oid_words = std::mem::take(&mut self.oid_words);
        let outer_zoned_words = std::mem::take(&mut self.zoned_words);
        let scope = self.new_scope(None, None, false);
        self.expr(expr, At::new(scope, true));
        let names_clock = self
            .clock_words
            .consts
            .iter()
            .filter_map(|i| self.layout.consts.get(*i as usize))
            .any(|c| value::string_value(sql, *c).is_none_or(|text| has_clock_word(&text)));
        let in_oids = self.oid_words.consts.iter().filter_map(|i| self.layout.consts.get(*i as usize));
        let numbers = in_oids.map(|c| c.text(sql)).any(has_number);
        let in_times = self.zoned_words.consts.iter().filter_map(|i| self.layout.consts.get(*i as usize));
        let lack_offset = in_times
            .map(|c| value::string_value(sql, *c))
            .any(|text| text.is_none_or(|text| crate::moment_text::lacks_offset(&text)));
        self.zoned_words = outer_zoned_words;
        if lack_offset {
            self.unreplayable(super::zoned::REASON);
        }
        self.sql = outer_sql;
        self.layout = outer_layout;
        self.pinned = outer_pinned;
        self.clock_words = outer_words;
        self.oid_words = outer_oid_words;
        if numbers {
            self.unreplayable(format!("the default of column {} names an object by its OID", column.name));
        }
        let inner: Edits = std::mem::replace(&mut self.edits, outer_edits);
        if names_clock {
            self.unreplayable(format!("the default of column {} names a moment by the clock", column.name));
        }
        if inner.is_empty() {
            return DefaultValue::Server(None);
        }
        let pieces = inner.apply(sql, DEFAULT_PREFIX.len(), &mut self.edits);
        let operand = match pieces.as_slice() {
            [Piece::Frozen(index)] if self.edits.is_number(*index) => {
                Some(Operand { source: Source::Frozen(*index), usage: Use::Store })
            }
            _ => None,
        };
        let pieces = match pieces.as_slice() {
            [Piece::Frozen(_)] => pieces,
            _ => {
                let mut wrapped = vec![Piece::Text("(".to_owned())];
                wrapped.extend(pieces);
                wrapped.push(Piece::Text(")".to_owned()));
                wrapped
            }
        };
        DefaultValue::Frozen { pieces, operand }
    }

    fn on_conflict(
        &mut self,
        conflict: &'a OnConflict,
        t: &'a Table,
        table: usize,
        rows: &[Known],
        scope: ScopeId,
    ) {
        let each = At::each(scope);
        conflict.infer_parts.iter().for_each(|e| self.expr(e, each));
        let Some((set, filter)) = &conflict.update else { return };
        // EXCLUDED is the row that was to be inserted.
        let excluded: Vec<(String, Option<Key>)> = t.columns.iter().map(|c| (c.name.clone(), None)).collect();
        let entry = Entry { name: "excluded".to_owned(), columns: EntryColumns::Derived(excluded) };
        let env = self.scopes[scope].env;
        let body = self.scope_is_body(scope);
        let inner = self.new_scope(Some(scope), env, body);
        self.scopes[inner].entries.push(entry);
        let at = At::each(inner);
        for target in set {
            match target.name.as_deref().and_then(|n| t.column(n)) {
                Some(column) => self.expr_for(&target.value, at, column),
                None => self.expr(&target.value, at),
            }
        }
        if let Some(condition) = filter {
            self.places_in(condition, inner);
            self.expr(condition, at);
        }
        let keys: Vec<&UniqueKey> = t.unique.iter().filter(|k| is_arbiter(k, conflict, t)).collect();
        let fallback: Vec<&UniqueKey> = t.unique.iter().collect();
        let keys = if keys.is_empty() { fallback } else { keys };
        let assigned_by_triggers = self.fire_triggers(table, Event::Update);
        for row in rows {
            let mut assigned = self.assigned(set, t, inner, Some(row));
            self.add_computed(t, &mut assigned, &assigned_by_triggers);
            for key in &keys {
                let known: Known =
                    key.columns.iter().filter_map(|c| Some((*c, row.get(c)?.clone()))).collect();
                self.update_rows(table, &known, &assigned);
            }
        }
    }

    /// Walks an INSERT whose target's columns are not known.
    fn walk_insert(&mut self, insert: &'a Insert, scope: ScopeId, env: Env) {
        let body = self.scope_is_body(scope);
        if let Some(query) = insert.source.as_deref() {
            self.query(query, None, env, QueryUse { lock: None, ordered: true, once: !body, body });
        }
        self.scopes[scope].entries.push(Entry { name: String::new(), columns: EntryColumns::Opaque });
        let each = At::each(scope);
        if let Some(conflict) = &insert.on_conflict {
            conflict.infer_parts.iter().for_each(|e| self.expr(e, each));
            if let Some((set, filter)) = &conflict.update {
                set.iter().map(|t| &t.value).chain(filter).for_each(|e| self.expr(e, each));
            }
        }
        self.returning(insert.returning.as_deref(), scope);
    }

    // UPDATE.

    pub(super) fn update(&mut self, update: &'a Update, env: Env) {
        let body = self.nesting > 0;
        let first_returned = std::mem::take(&mut self.first_returned);
        let (env, _) = self.with(update.with.as_ref(), None, env, body);
        let scope = self.new_scope(None, env, body);
        let target = self.target_table(&update.table);
        let name = update.alias.clone().unwrap_or_else(|| update.table.last().to_owned());
        let Some(table) = target else {
            self.scopes[scope].entries.push(Entry { name, columns: EntryColumns::Opaque });
            let block = self.open_block(&update.from, scope);
            self.close_block(update.filter.as_ref(), scope, block);
            let each = At::each(scope);
            update.set.iter().map(|t| &t.value).chain(&update.filter).for_each(|e| self.expr(e, each));
            self.returning(update.returning.as_deref(), scope);
            self.finish_with(update.with.as_ref(), env, body);
            return;
        };
        let relation = self.new_relation(Some(table));
        self.note_columns_of_target(table, &name, body);
        self.scopes[scope].entries.push(Entry { name, columns: EntryColumns::Table(relation) });
        let block = self.open_block(&update.from, scope);
        self.close_block(update.filter.as_ref(), scope, block);
        let facts = self.scopes[scope].facts.clone();
        let known = self.known_of(relation, table, &facts);
        let t = self.as_named(&update.table, table);
        let once = !body && update.from.is_empty() && names_one_row(t, &known);
        for target in &update.set {
            let at = At::new(scope, once);
            match target.name.as_deref().and_then(|n| t.column(n)) {
                Some(column) => self.expr_for(&target.value, at, column),
                None => self.expr(&target.value, at),
            }
        }
        update.filter.iter().for_each(|e| self.expr(e, At::each(scope)));
        let mut assigned = self.assigned(&update.set, t, scope, None);
        self.fire_on_update(t, table, update.only, &mut assigned);
        self.drop_unchanged(&known, &mut assigned);
        if !names_one_row(t, &known) {
            self.check_key_order(t, &assigned);
            for partition in self.catalogue().partitions(table) {
                self.check_key_order_below(self.table(table), partition, &assigned);
            }
        }
        if !update.only {
            self.check_key_order_of_inheritors(self.table(table), table, Some(&known), &assigned);
        }
        self.change(table, update.only, &known, |a, table, known| {
            let own = a.assigned_by_own_numbers(t, table, &assigned);
            a.update_rows(table, known, &own);
        });
        self.refuse_computed_oids(table);
        self.checks(table);
        if !update.from.is_empty() && self.set_reads_from(&update.set, relation, scope) {
            self.check_single_match(&update.from, relation, scope, &facts);
        }
        if first_returned {
            self.check_first_returned(update.filter.as_ref(), update.returning.as_deref(), scope);
        }
        self.returning(update.returning.as_deref(), scope);
        self.finish_with(update.with.as_ref(), env, body);
    }

    /// The columns that SET assigns. `row` is the row that EXCLUDED stands for.
    fn assigned(&mut self, set: &'a [Target], t: &'a Table, scope: ScopeId, row: Option<&Known>) -> Assigned {
        let mut assigned = Assigned::new();
        for target in set {
            let Some(column) = target.name.as_deref().and_then(|n| t.column(n)) else {
                // An unknown column is an error.
                self.touch_everything(Mode::Exclusive);
                continue;
            };
            if target.partial {
                assigned.insert(column.number, None);
                continue;
            }
            let value = match &target.value {
                Expr::MultiAssign { source, column, .. } => match &**source {
                    Expr::Row(parts) => parts.get((*column as usize).wrapping_sub(1)),
                    _ => None,
                },
                value => Some(value),
            };
            let operand = match value {
                Some(Expr::Default { .. }) => self.default_assigned(column),
                Some(Expr::Column { path, star: false, .. }) => {
                    match (path.as_slice(), row) {
                        ([table, name], Some(row)) if table == "excluded" => {
                            let number = t.column(name).map(|c| c.number);
                            match number.and_then(|n| row.get(&n)) {
                                Some(Values::One(operand)) if number == Some(column.number) => Some(*operand),
                                _ => None,
                            }
                        }
                        // `SET id = id` changes nothing.
                        _ if value
                            .and_then(|v| self.column_key(v, scope))
                            .is_some_and(|key| key.1 == column.number && self.is_target(key, scope)) =>
                        {
                            self.sets_equal = true;
                            continue;
                        }
                        _ => None,
                    }
                }
                Some(value) => self.stored(value, column, scope),
                None => None,
            };
            assigned.insert(column.number, operand);
        }
        assigned
    }

    /// Whether a column belongs to the first relation of a scope, the target of the statement.
    fn is_target(&self, key: Key, scope: ScopeId) -> bool {
        let first = self.scopes[scope].entries.first();
        matches!(first, Some(Entry { columns: EntryColumns::Table(relation), .. }) if *relation == key.0)
    }

    /// SET column = DEFAULT.
    pub(super) fn default_assigned(&mut self, column: &'a Column) -> Option<Operand> {
        if column.generated.is_some() {
            return None;
        }
        match self.default_value(column) {
            DefaultValue::Server(operand) => operand,
            DefaultValue::Frozen { pieces, .. } => {
                if pieces.iter().any(|p| self.is_draw(p)) {
                    self.refuse(
                        format!(
                            "DEFAULT of column {} would be drawn from a sequence for each row",
                            column.name
                        ),
                        "draw the value by a statement of its own",
                    );
                } else {
                    self.unreplayable(format!("the default of column {} depends on the time", column.name));
                }
                None
            }
        }
    }

    /// Generated columns, and those that triggers set, change with unknown values.
    pub(super) fn add_computed(&self, t: &Table, assigned: &mut Assigned, by_triggers: &Option<Vec<String>>) {
        for column in &t.columns {
            let by_trigger = by_triggers.as_ref().is_none_or(|names| names.contains(&column.name));
            if column.generated.is_some() || by_trigger {
                assigned.insert(column.number, None);
            }
        }
    }

    /// Columns that are set to the very parameter by which the row was found do not change.
    fn drop_unchanged(&mut self, known: &Known, assigned: &mut Assigned) {
        let all = assigned.len();
        assigned.retain(|column, operand| {
            let (Some(new), Some(Values::One(old))) = (operand, known.get(column)) else { return true };
            !matches!((new.source, old.source), (Source::Param { number: a }, Source::Param { number: b }) if a == b)
        });
        self.sets_equal |= assigned.len() < all;
    }

    /// Runs a change on a table and those that inherit from it.
    fn change(
        &mut self,
        table: usize,
        only: bool,
        known: &Known,
        then: impl Fn(&mut Analyser<'a>, usize, &Known) + Copy,
    ) {
        then(self, table, known);
        if !only {
            self.for_inheritors(table, known, |a, child, known| a.change(child, false, known, then));
        }
    }

    fn assigned_by_own_numbers(&self, from: &Table, to: usize, assigned: &Assigned) -> Assigned {
        let to = self.table(to);
        if from.name == to.name && from.schema == to.schema {
            return assigned.clone();
        }
        assigned
            .iter()
            .filter_map(|(number, operand)| {
                let name = &from.column_by_number(*number)?.name;
                Some((to.column(name)?.number, *operand))
            })
            .collect()
    }

    /// Whether SET uses columns of other tables than the target.
    fn set_reads_from(&mut self, set: &'a [Target], relation: u32, scope: ScopeId) -> bool {
        set.iter().any(|t| self.reads_other(&t.value, relation, scope))
    }

    fn reads_other(&mut self, expr: &'a Expr, relation: u32, scope: ScopeId) -> bool {
        match expr {
            Expr::Column { .. } => self.column_key(expr, scope).is_none_or(|key| key.0 != relation),
            Expr::Literal { .. } | Expr::Param { .. } | Expr::Clock { .. } | Expr::Default { .. } => false,
            Expr::Session(_) | Expr::Selection { .. } => false,
            Expr::Operator { left, right, .. } => {
                left.iter().chain(right).any(|e| self.reads_other(e, relation, scope))
            }
            Expr::Chain { operands: parts, .. }
            | Expr::And(parts)
            | Expr::Or(parts)
            | Expr::Form(parts)
            | Expr::Row(parts)
            | Expr::Array(parts) => parts.iter().any(|e| self.reads_other(e, relation, scope)),
            Expr::Not(e) | Expr::Cast { value: e, .. } | Expr::Collate { value: e } => {
                self.reads_other(e, relation, scope)
            }
            Expr::Call(call) => call.arguments.iter().any(|e| self.reads_other(e, relation, scope)),
            _ => true,
        }
    }

    /// Unique keys are checked row by row: whether values that rows pass on to each other collide on the way
    /// depends on the order in which the rows lie. A value that all rows get alike cannot be passed on.
    fn check_key_order(&mut self, t: &Table, assigned: &Assigned) {
        let passes_on = |key: &UniqueKey| {
            key.immediate && assigned.iter().any(|(c, value)| value.is_none() && touches(key, *c))
        };
        if t.exclusion || t.unique.iter().any(passes_on) {
            self.unreplayable("unique keys are checked in the order in which rows lie");
        }
    }

    /// The same for the keys that only a partition or inheritor has.
    fn check_key_order_below(&mut self, t: &Table, child: usize, assigned: &Assigned) {
        let mut own = self.assigned_by_own_numbers(t, child, assigned);
        // It may have columns that are computed from what it inherits.
        self.add_computed(self.table(child), &mut own, &Some(Vec::new()));
        self.check_key_order(self.table(child), &own);
    }

    /// `known` is what names rows of the table, None if that is not known.
    fn check_key_order_of_inheritors(
        &mut self,
        t: &'a Table,
        table: usize,
        known: Option<&Known>,
        assigned: &Assigned,
    ) {
        for child in self.catalogue().children(table) {
            if self.table(*child).is_partition {
                continue;
            }
            let own = known.map(|known| self.by_own_numbers(table, *child, known));
            if !own.as_ref().is_some_and(|own| names_one_row(self.table(*child), own)) {
                self.check_key_order_below(t, *child, assigned);
                for partition in self.catalogue().partitions(*child) {
                    self.check_key_order_below(t, partition, assigned);
                }
            }
            self.check_key_order_of_inheritors(t, *child, own.as_ref(), assigned);
        }
    }

    /// UPDATE ... FROM takes any of several matching rows, so at most one may match: each table of FROM has a
    /// unique key that the condition binds to the target or to tables bound before.
    fn check_single_match(&mut self, from: &'a [From], target: u32, scope: ScopeId, facts: &Facts) {
        let mut bound = vec![target];
        let mut open: Vec<(u32, usize)> = Vec::new();
        let mut certain = from.iter().all(|item| matches!(item, From::Table { .. }));
        for entry in self.scopes[scope].entries.iter().skip(1) {
            match entry.columns {
                EntryColumns::Table(relation) => match self.relations.get(relation as usize) {
                    Some(Some(table)) => open.push((relation, *table)),
                    _ => certain = false,
                },
                _ => certain = false,
            }
        }
        while certain && !open.is_empty() {
            let next = open.iter().position(|(relation, table)| {
                let t = self.table(*table);
                self.catalogue().children(*table).is_empty()
                    && t.unique.iter().any(|key| {
                        !key.partial
                            && key.immediate
                            && key
                                .columns
                                .iter()
                                .all(|c| *c != 0 && facts.is_bound((*relation, *c), |k| bound.contains(&k.0)))
                    })
            });
            match next {
                Some(i) => bound.push(open.remove(i).0),
                None => certain = false,
            }
        }
        if !certain {
            self.unreplayable("UPDATE ... FROM may find several rows for one, and takes any of them");
        }
    }

    // DELETE.

    pub(super) fn delete(&mut self, delete: &'a Delete, env: Env) {
        let body = self.nesting > 0;
        let first_returned = std::mem::take(&mut self.first_returned);
        let (env, _) = self.with(delete.with.as_ref(), None, env, body);
        let scope = self.new_scope(None, env, body);
        let target = self.target_table(&delete.table);
        if let Some(table) = target {
            self.refuse_computed_oids(table);
        }
        let name = delete.alias.clone().unwrap_or_else(|| delete.table.last().to_owned());
        if let Some(table) = target {
            self.note_columns_of_target(table, &name, body);
        }
        let relation = target.map(|table| self.new_relation(Some(table)));
        let columns = relation.map_or(EntryColumns::Opaque, EntryColumns::Table);
        self.scopes[scope].entries.push(Entry { name, columns });
        let block = self.open_block(&delete.using, scope);
        self.close_block(delete.filter.as_ref(), scope, block);
        delete.filter.iter().for_each(|e| self.expr(e, At::each(scope)));
        if let (Some(table), Some(relation)) = (target, relation) {
            let facts = self.scopes[scope].facts.clone();
            let known = self.known_of(relation, table, &facts);
            self.fire_on_delete(table, delete.only);
            self.change(table, delete.only, &known, |a, table, known| a.delete_rows(table, known));
        }
        if first_returned {
            self.check_first_returned(delete.filter.as_ref(), delete.returning.as_deref(), scope);
        }
        self.returning(delete.returning.as_deref(), scope);
        self.finish_with(delete.with.as_ref(), env, body);
    }

    // MERGE.

    pub(super) fn merge(&mut self, merge: &'a Merge, env: Env) {
        let body = self.nesting > 0;
        let first_returned = std::mem::take(&mut self.first_returned);
        let (env, _) = self.with(merge.with.as_ref(), None, env, body);
        let scope = self.new_scope(None, env, body);
        let target = self.target_table(&merge.table);
        let name = merge.alias.clone().unwrap_or_else(|| merge.table.last().to_owned());
        let relation = target.map(|table| self.new_relation(Some(table)));
        let columns = relation.map_or(EntryColumns::Opaque, EntryColumns::Table);
        self.scopes[scope].entries.push(Entry { name, columns });
        let block = self.open_block(std::slice::from_ref(&merge.source), scope);
        // The condition binds rows of the target alone: all rows of the source take part.
        self.close_block(None, scope, block);
        let mut facts = self.scopes[scope].facts.clone();
        let all_of_target = merge.arms.iter().any(|a| a.matched == MergeMatch::NotMatchedBySource);
        if !all_of_target {
            self.gather(&merge.on, scope, &mut facts);
        }
        let each = At::each(scope);
        self.places_in(&merge.on, scope);
        self.expr(&merge.on, each);
        let known = match (relation, target) {
            (Some(relation), Some(table)) => self.known_of(relation, table, &facts),
            _ => Known::new(),
        };
        if let Some(table) = target {
            self.read_rows(table, merge.only, &known, Mode::Shared);
        }
        // Keys that only a partition has count as well.
        let holders: Vec<&Table> = target
            .into_iter()
            .flat_map(|table| std::iter::once(table).chain(self.catalogue().partitions(table)))
            .map(|table| self.table(table))
            .collect();
        let sets_key = |t: &Target| {
            holders.iter().any(|table| match t.name.as_deref().and_then(|name| table.column(name)) {
                Some(column) => table.unique.iter().any(|key| touches(key, column.number)),
                None => true,
            })
        };
        let frees = |a: &MergeAction| match a {
            MergeAction::Delete => true,
            MergeAction::Update(set) => set.iter().any(sets_key),
            _ => false,
        };
        let inserts = merge.arms.iter().any(|a| matches!(a.action, MergeAction::Insert { .. }));
        if inserts && merge.arms.iter().any(|a| frees(&a.action)) {
            self.unreplayable("MERGE creates and frees values of keys in the order in which rows lie");
        }
        for arm in &merge.arms {
            if let Some(condition) = &arm.condition {
                self.places_in(condition, scope);
                self.expr(condition, each);
            }
            let target = target.map(|table| (table, self.as_named(&merge.table, table)));
            self.merge_action(&arm.action, target, merge.only, &known, scope);
        }
        if let Some(table) = target {
            self.refuse_computed_oids(table);
            self.checks(table);
        }
        if first_returned {
            self.check_first_returned(None, merge.returning.as_deref(), scope);
        }
        self.returning(merge.returning.as_deref(), scope);
        self.finish_with(merge.with.as_ref(), env, body);
    }

    fn merge_action(
        &mut self,
        action: &'a MergeAction,
        target: Option<(usize, &'a Table)>,
        only: bool,
        known: &Known,
        scope: ScopeId,
    ) {
        let each = At::each(scope);
        match (action, target) {
            (MergeAction::Nothing, _) => {}
            (MergeAction::Delete, Some((table, _))) => {
                self.fire_on_delete(table, only);
                self.change(table, only, known, |a, table, known| a.delete_rows(table, known));
            }
            (MergeAction::Update(set), Some((table, t))) => {
                for target in set {
                    match target.name.as_deref().and_then(|n| t.column(n)) {
                        Some(column) => self.expr_for(&target.value, each, column),
                        None => self.expr(&target.value, each),
                    }
                }
                let mut assigned = self.assigned(set, t, scope, None);
                self.fire_on_update(t, table, only, &mut assigned);
                self.check_key_order(t, &assigned);
                for partition in self.catalogue().partitions(table) {
                    self.check_key_order_below(self.table(table), partition, &assigned);
                }
                if !only {
                    self.check_key_order_of_inheritors(self.table(table), table, None, &assigned);
                }
                self.change(table, only, known, |a, table, known| {
                    let own = a.assigned_by_own_numbers(t, table, &assigned);
                    a.update_rows(table, known, &own);
                });
            }
            (MergeAction::Insert { columns, values, .. }, Some((table, t))) => {
                let given: Vec<&'a Column> = if columns.is_empty() {
                    t.columns.iter().take(values.len()).collect()
                } else {
                    columns.iter().filter_map(|c| t.column(c.name.as_deref()?)).collect()
                };
                let mut row = Known::new();
                for (i, value) in values.iter().enumerate() {
                    match given.get(i) {
                        Some(column) => {
                            self.expr_for(value, each, column);
                            if !columns.get(i).is_some_and(|c| c.partial) {
                                self.shown_value(value, column, scope, &mut row);
                            }
                        }
                        None => self.expr(value, each),
                    }
                }
                let left_out = t.columns.iter().filter(|c| !given.iter().any(|g| g.number == c.number));
                let asked = given.iter().zip(values).filter(|(_, v)| matches!(v, Expr::Default { .. }));
                let defaults: Vec<&'a Column> = left_out.chain(asked.map(|(c, _)| *c)).collect();
                for column in defaults {
                    let operand = self.default_assigned(column);
                    if let Some(operand) = operand {
                        row.insert(column.number, Values::One(operand));
                    }
                }
                if self.fire_triggers(table, Event::Insert).is_none_or(|names| !names.is_empty()) {
                    row.clear();
                }
                self.insert_row(table, &row);
            }
            (MergeAction::Update(set), None) => set.iter().for_each(|t| self.expr(&t.value, each)),
            (MergeAction::Insert { values, .. }, None) => values.iter().for_each(|e| self.expr(e, each)),
            (MergeAction::Delete, None) => {}
        }
    }

    // What all have in common.

    /// The table that a statement changes. None if its columns and keys are not known: then everything that is
    /// to be noted about it was noted.
    pub(super) fn target_table(&mut self, name: &Name) -> Option<usize> {
        match self.resolve(name) {
            Resolved::Table(table) => {
                self.effects.writes = true;
                self.note_table(table, true);
                if self.written.contains(&table) {
                    self.unreplayable("several parts of the statement change one table, in no certain order");
                }
                self.written.push(table);
                let named = self.named_table(name).unwrap_or(table);
                if self.table(table).rules || self.table(named).rules {
                    self.touch_everything(Mode::Exclusive);
                    self.refuse(
                        format!("table {name} has rewrite rules"),
                        "replace the rules by triggers or application code",
                    );
                }
                Some(table)
            }
            Resolved::Temporary => None,
            Resolved::View(_) => {
                self.effects.writes = true;
                self.touch_everything(Mode::Exclusive);
                self.refuse(format!("{name} is a view"), "write to the table behind the view");
                None
            }
            Resolved::System => {
                self.effects.writes = true;
                self.touch_everything(Mode::Exclusive);
                self.refuse(format!("{name} belongs to the system catalogue"), "use DDL instead");
                None
            }
            Resolved::Sequence(_) | Resolved::Unknown => {
                self.effects.writes = true;
                self.touch_everything(Mode::Exclusive);
                self.refuse(
                    format!("table {name} is not in the catalogue"),
                    "check its name and the search_path; onecopy reads the catalogue anew after DDL",
                );
                None
            }
        }
    }

    /// RETURNING of the statement itself goes to the client only: what it computes need not be the same elsewhere. That
    /// of a WITH clause or a function may be what other parts of the statement write.
    fn returning(&mut self, targets: Option<&'a [Target]>, scope: ScopeId) {
        let Some(targets) = targets else { return };
        let unreplayable = self.unreplayable.clone();
        self.targets(targets, At::each(scope));
        if self.nesting == 0 && !self.in_with {
            self.unreplayable = unreplayable;
        }
    }

    /// Conditions of row-level security.
    pub(super) fn policies(&mut self, table: usize) {
        let key = (crate::lexer::hash_bytes(self.table(table).name.as_bytes()), u64::MAX);
        if self.active.contains(&key) {
            return;
        }
        self.active.push(key);
        let library = self.library;
        for text in &self.table(table).policies {
            match library.expression(text) {
                Some(expr) => {
                    let relation = self.new_relation(Some(table));
                    let scope = self.new_scope(None, None, true);
                    let name = self.table(table).name.clone();
                    self.scopes[scope].entries.push(Entry { name, columns: EntryColumns::Table(relation) });
                    self.expr(expr, At::each(scope));
                }
                None => {
                    self.touch_everything(Mode::Shared);
                    self.unreplayable("a policy could not be read");
                }
            }
        }
        self.active.pop();
    }
}

const DEFAULT_PREFIX: &str = "SELECT ";

/// The rows of an INSERT, as far as the text shows them.
struct Rows {
    values: Vec<Known>,
    form: RowForm,
}

/// Where an INSERT stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// It is the statement.
    Top,
    /// In a WITH clause of it, where it runs once.
    With,
    /// In a function.
    Body,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RowForm {
    DefaultValues,
    Values,
    Select {
        /// It yields at most one row, whose targets can be added to.
        single: bool,
    },
}

/// Places in the text of an INSERT.
enum Places {
    DefaultValues {
        from: u32,
        to: u32,
    },
    Rows {
        /// Before the parenthesis that closes the column list.
        columns: Option<u32>,
        /// Where the source begins, OVERRIDING included.
        source: u32,
        /// Before the parenthesis that closes each row, or at the end of the target list.
        rows: Vec<u32>,
    },
}

/// The pieces of several values with commas between them.
fn join(values: &[Vec<Piece>]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            pieces.push(Piece::Text(", ".to_owned()));
        }
        pieces.extend(value.iter().cloned());
    }
    pieces
}

/// Whether an expression certainly yields one value, not a set.
fn is_single(expr: &Expr) -> bool {
    match expr {
        Expr::Literal { .. } | Expr::Param { .. } | Expr::Clock { .. } => true,
        Expr::Cast { value, .. } | Expr::Collate { value } | Expr::Not(value) => is_single(value),
        Expr::Operator { left, right, .. } => left.iter().chain(right).all(|e| is_single(e)),
        Expr::Chain { operands: parts, .. } | Expr::Form(parts) | Expr::Array(parts) => {
            parts.iter().all(is_single)
        }
        Expr::Subquery { .. } => true,
        Expr::Call(call) => {
            matches!(
                call.name.last(),
                "now" | "nextval" | "currval" | "lastval" | "lower" | "upper" | "md5" | "concat" | "to_char"
            ) && call.arguments.iter().all(is_single)
        }
        _ => false,
    }
}

/// Whether what is known of rows names at most one.
pub(super) fn names_one_row(table: &Table, known: &Known) -> bool {
    table.unique.iter().any(|key| {
        !key.partial
            && key.immediate
            && key.columns.iter().all(|c| *c != 0 && matches!(known.get(c), Some(Values::One(_))))
    })
}

/// Whether ON CONFLICT means a key.
fn is_arbiter(key: &UniqueKey, conflict: &OnConflict, table: &Table) -> bool {
    if let Some(name) = &conflict.constraint {
        return key.name == *name;
    }
    let Some(columns) = &conflict.columns else { return false };
    let numbers: Option<Vec<u16>> = columns.iter().map(|n| Some(table.column(n)?.number)).collect();
    numbers.is_some_and(|n| n.len() == key.columns.len() && key.columns.iter().all(|c| n.contains(c)))
}

/// The value of a default that is a mere constant.
fn constant_default(expr: &Expr, column: &Column) -> Option<Operand> {
    let canon = Canon::of(column);
    let literal = match expr {
        Expr::Cast { value, to } => match (&**value, super::facts::scalar_oid(to)) {
            (literal @ Expr::Literal { .. }, Some(_)) => literal,
            _ => return None,
        },
        literal @ Expr::Literal { .. } => literal,
        _ => return None,
    };
    let Expr::Literal { value, .. } = literal else { return None };
    let fixed = |found: Found| match found {
        Found::Value(hash) => Some(Operand { source: Source::Fixed(hash), usage: Use::Store }),
        _ => None,
    };
    match (value, canon) {
        (Literal::Null, _) => Some(Operand { source: Source::Null, usage: Use::Store }),
        (Literal::Int(i), Some(canon)) => fixed(value::of_integer(*i, canon)),
        (Literal::Text(text), Some(canon)) => fixed(value::of_text(text, canon, Use::Store)),
        (Literal::Bool(b), Some(Canon::Bool)) => {
            fixed(value::of_text(if *b { "t" } else { "f" }, Canon::Bool, Use::Store))
        }
        _ => None,
    }
}

/// Whether a query is, or begins with, a SELECT INTO.
fn has_into(query: &Query) -> bool {
    let in_arms = matches!(&query.body, Body::Set { arms, .. } if arms.iter().any(has_into));
    query.into.is_some() || in_arms
}
