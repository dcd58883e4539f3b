//! Statements other than queries and changes of rows.

use super::block::QueryUse;
use super::event_triggers::only_notifies;
use super::expr::At;
use super::locks::Known;
use super::write::Event;
use super::{Analyser, Resolved};
use crate::ast::{
    AlterEffect, Body, Call, Copy, CreateTable, Distinct, Expr, From, Literal, Name, Query, RelationKind,
    SetValue, Statement, Transaction, Utility,
};
use crate::catalogue::table_id;
use crate::class::{ExecuteArgument, Kind};
use crate::copied::{CopiedMoments, LetterQuotes};
use crate::functions::{Behaviour, ENVIRONMENT_SETTINGS, builtin};
use crate::lexer::{Token, TokenKind};
use crate::rewrite::{Piece, quoted};
use crate::template::{ItemTemplate, NullRule};
use onecopy_core::{ColumnSet, Mode, Space, TableId};

impl<'a> Analyser<'a> {
    pub(super) fn utility(&mut self, utility: &'a Utility) -> Kind {
        // Their constants are read while they are analysed.
        self.pin_all = true;
        match utility {
            Utility::Transaction(transaction) => self.transaction(transaction),
            Utility::Set { name, values, local, is_default } => self.set(name, values, *local, *is_default),
            Utility::SetTransaction { snapshot: Some(_), .. } => {
                self.effects.pins_session = true;
                self.refuse(
                    "a snapshot of another session cannot be imported",
                    "run the queries in one transaction",
                );
                Kind::Unsupported
            }
            Utility::SetTransaction { modes, session, .. } => {
                Kind::SetTransaction { modes: *modes, session: *session }
            }
            Utility::Reset { name } => reset(name.as_deref()),
            Utility::Show { name } => {
                self.effects.returns_rows = true;
                self.effects.reads_session = true;
                Kind::Show(name.clone())
            }
            Utility::SetConstraints { deferred, .. } => Kind::SetConstraints { deferred: *deferred },
            Utility::Discard(what) => Kind::Discard(*what),
            Utility::Prepare { name, statement } => self.prepare(name, statement),
            Utility::Execute { name, arguments } => {
                self.effects.returns_rows = true;
                // EXECUTE name (...)
                let tokens = self.tokens();
                let texts = match tokens.get(2) {
                    Some(_) if !arguments.is_empty() => self.list_texts(&tokens, 2).unwrap_or_default(),
                    _ => Vec::new(),
                };
                Kind::Execute {
                    name: name.clone(),
                    arguments: arguments.iter().map(argument).collect(),
                    texts,
                }
            }
            Utility::Deallocate { name } => Kind::Deallocate(name.clone()),
            Utility::Declare { name, hold, query, .. } => {
                let inner = Box::new(self.inner_statement(query));
                self.effects.returns_rows = false;
                if self.effects.writes {
                    // FETCH and MOVE execute it, as far as they go.
                    self.refuse(
                        "a cursor over a query that changes something is not supported",
                        "run the query by itself; the protocol's portals may be fetched by parts",
                    );
                }
                Kind::DeclareCursor { name: name.clone(), hold: *hold, inner }
            }
            Utility::Fetch { name, is_move } => {
                self.effects.returns_rows = !is_move;
                if *is_move { Kind::Move(name.clone()) } else { Kind::Fetch(name.clone()) }
            }
            Utility::Close { name } => Kind::CloseCursor(name.clone()),
            Utility::Explain { analyze, statement } => self.explain(*analyze, statement),
            Utility::Copy(copy) => self.copy(copy),
            Utility::CreateTable(create) => self.create_table(create),
            Utility::CreateTableAs { name, temporary, query, materialised, .. } => match &**query {
                Statement::Query(query) => {
                    let command = if *materialised { "CREATE MATERIALIZED VIEW" } else { "CREATE TABLE AS" };
                    self.create_table_as(name, *temporary, query, command)
                }
                _ => {
                    self.refuse(
                        "CREATE TABLE AS EXECUTE is not supported",
                        "write the query in place of EXECUTE",
                    );
                    Kind::Unsupported
                }
            },
            Utility::CreateIndex { table, concurrently, parts } => {
                if *concurrently {
                    return self.maintenance("CREATE INDEX CONCURRENTLY", std::slice::from_ref(table));
                }
                if self.index_tells_oids(table, parts) {
                    self.refuse(
                        "the index would go by OIDs, which differ between replicas",
                        "let it go by the name as text, or by the column itself",
                    );
                }
                let scope = self.opaque_scope();
                parts.iter().for_each(|e| self.expr(e, At::each(scope)));
                self.ddl("CREATE INDEX", std::slice::from_ref(table), false)
            }
            Utility::CreateView { name, temporary, query } => {
                if *temporary {
                    return self.temporary_object("CREATE TEMPORARY VIEW");
                }
                // The query is not run, only kept.
                let _ = query;
                self.take_mentioned();
                // Who reads a view names the tables behind it, not the view, and locks it on the server all the same.
                let replaced = match self.peek(name) {
                    Resolved::View(_) => std::slice::from_ref(name),
                    _ => &[],
                };
                self.new_relation_ddl("CREATE VIEW", name, replaced)
            }
            Utility::AlterTable { table, kind, commands } => {
                let effect = commands.iter().map(|c| c.effect).max().unwrap_or(AlterEffect::CatalogueOnly);
                let evaluates = commands.iter().filter(|c| c.effect == AlterEffect::Evaluates).any(|c| {
                    !c.called_default.as_ref().is_some_and(|(name, e)| self.added_clock(table, name, e))
                });
                let mut using = commands.iter().filter_map(|c| c.value.as_ref());
                let evaluates = evaluates | using.any(|value| self.converts_by_selection(table, value));
                let types = commands.iter().filter_map(|c| c.added_type.as_ref());
                let evaluates = evaluates | types.fold(false, |any, name| any | self.draws_default(name));
                let converts = commands.iter().fold(false, |any, command| {
                    let (Some(to), Resolved::Table(index)) = (&command.converted_to, self.peek(table)) else {
                        return any;
                    };
                    let column = command.converted_column.as_deref();
                    self.converts_rows(index, column, command.value.as_ref(), &to.name) || any
                });
                if let Resolved::Table(index) = self.peek(table)
                    && commands.iter().any(|command| {
                        command.converted_to.as_ref().is_some_and(|to| {
                            let column = command.converted_column.as_deref();
                            self.converts_oids(index, column, command.value.as_ref(), to)
                        })
                    })
                {
                    self.refuse(
                        "ALTER TABLE would make values of OIDs, or OIDs of values, which differ between replicas",
                        "add a column, fill it by UPDATE, and drop the old one",
                    );
                }
                if converts {
                    self.refuse(
                        "ALTER TABLE would convert values by a cast whose function is not immutable",
                        "declare the function IMMUTABLE if it is, or add a column, fill it by UPDATE, and drop the old one",
                    );
                }
                for command in commands {
                    if let (Some(_), Some(using), Some(to)) =
                        (&command.converted_column, &command.value, &command.converted_to)
                    {
                        self.guard_conversion(table, using, &to.name);
                    }
                }
                if let Resolved::Table(index) = self.peek(table) {
                    for command in commands {
                        // A column's checks are evaluated again when its type changes.
                        self.refuse_varying_checks(
                            index,
                            &command.checks,
                            command.converted_column.is_some(),
                        );
                    }
                }
                if evaluates {
                    self.refuse(
                        "ALTER TABLE would compute a value for each row that may differ between replicas",
                        "add the column without a default, fill it by UPDATE, then set the default",
                    );
                }
                let mut tables = vec![table.clone()];
                tables.extend(commands.iter().flat_map(|c| c.tables.iter().cloned()));
                if self.says_restart()
                    && let Resolved::Table(altered) = self.peek(table)
                {
                    self.restart_owned(altered, true);
                }
                if commands.iter().any(|command| command.changes_ties) {
                    self.take_tied(&tables);
                }
                if commands.iter().any(|command| command.cascade) {
                    self.take_dependents();
                }
                match kind {
                    RelationKind::Table | RelationKind::MaterialisedView if effect == AlterEffect::Owner => {
                        self.ddl("ALTER TABLE OWNER TO", &tables, false)
                    }
                    RelationKind::Table | RelationKind::MaterialisedView => {
                        self.ddl("ALTER TABLE", &tables, effect >= AlterEffect::Rewrites)
                    }
                    _ if effect == AlterEffect::Owner => self.catalogue_ddl("ALTER ... OWNER TO"),
                    _ => self.catalogue_ddl("ALTER"),
                }
            }
            Utility::Drop { concurrently: true, .. } => self.maintenance("DROP INDEX CONCURRENTLY", &[]),
            Utility::Drop { kind, names, cascade, tag, .. } => self.drop(*kind, names, *cascade, tag),
            Utility::Truncate { tables, cascade, restart } => self.truncate(tables, *cascade, *restart),
            Utility::Lock { tables, mode, no_wait } => self.lock(tables, *mode, *no_wait),
            Utility::Rename { tag, table, to_schema, to_name } => {
                let schema = to_schema.clone().or_else(|| self.schema_of(table));
                let name = to_name.as_deref().unwrap_or(table.last());
                if let (Some(schema), true) = (schema, to_schema.is_some() || to_name.is_some()) {
                    self.take_new_name(&schema, name);
                }
                self.ddl(tag, std::slice::from_ref(table), false)
            }
            Utility::RefreshView { name, concurrently } => self.refresh(name, *concurrently),
            Utility::CreateSequence { temporary: true } => self.temporary_object("CREATE TEMPORARY SEQUENCE"),
            Utility::CreateSequence { .. } => {
                self.effects.sequences = true;
                self.catalogue_ddl("CREATE SEQUENCE")
            }
            Utility::AlterSequence { name } => {
                self.effects.sequences = true;
                if self.says_restart()
                    && let Resolved::Sequence(index) = self.peek(name)
                {
                    let sequence = &self.catalogue().sequences[index];
                    self.restarts.push((sequence.schema.clone(), sequence.name.clone()));
                }
                self.catalogue_ddl("ALTER SEQUENCE")
            }
            Utility::CreateTrigger { table, .. } => {
                self.take_mentioned();
                self.ddl("CREATE TRIGGER", std::slice::from_ref(table), false)
            }
            Utility::KeepsSettings { settings, definition } => {
                for setting in settings {
                    let mut recorded = ENVIRONMENT_SETTINGS.iter().chain(&["search_path"]);
                    if !recorded.any(|known| known.eq_ignore_ascii_case(setting)) {
                        self.refuse(
                            format!("SET {setting} FROM CURRENT would keep another value on each replica, since records do not carry that setting"),
                            "write the value: SET name = value",
                        );
                    }
                }
                self.utility(definition)
            }
            Utility::ReplaceFunction { name } => {
                self.replace_event_function(name);
                self.catalogue_ddl("CREATE FUNCTION")
            }
            Utility::OtherDdl { tag, tables } if !tables.is_empty() => {
                if matches!(*tag, "CREATE RULE" | "CREATE POLICY" | "ALTER POLICY") {
                    self.take_mentioned();
                }
                self.ddl(tag, tables, false)
            }
            Utility::OtherDdl { tag, .. } => self.catalogue_ddl(tag),
            Utility::Maintenance { tag, tables } => self.maintenance(tag, tables),
            Utility::Checkpoint => self.maintenance("CHECKPOINT", &[]),
            Utility::Listen { channel } => {
                self.effects.pins_session = true;
                Kind::Listen(channel.clone())
            }
            Utility::Unlisten { channel } => Kind::Unlisten(channel.clone()),
            Utility::Notify { channel, payload } => {
                self.effects.notifies = true;
                Kind::Notify { channel: channel.clone(), payload: payload.clone() }
            }
            Utility::Do => {
                self.procedural_block("DO");
                Kind::Do
            }
            Utility::Call(call) => {
                self.effects.returns_rows = true;
                let scope = self.opaque_scope();
                self.call_procedure(call, scope);
                Kind::Call
            }
            Utility::Load => {
                self.refuse("LOAD belongs to one server", "set session_preload_libraries on every replica");
                Kind::Unsupported
            }
            Utility::Unknown => self.unsupported("onecopy does not know this kind of statement"),
        }
    }

    fn transaction(&mut self, transaction: &Transaction) -> Kind {
        match transaction {
            Transaction::Begin { modes } => Kind::Begin(*modes),
            Transaction::Commit { chain } => Kind::Commit { chain: *chain },
            Transaction::Rollback { chain } => Kind::Rollback { chain: *chain },
            Transaction::Savepoint(name) => Kind::Savepoint(name.clone()),
            Transaction::Release(name) => Kind::Release(name.clone()),
            Transaction::RollbackTo(name) => Kind::RollbackTo(name.clone()),
            Transaction::PrepareTwoPhase | Transaction::CommitTwoPhase | Transaction::RollbackTwoPhase => {
                self.refuse(
                    "two-phase commit (PREPARE TRANSACTION) is not supported",
                    "onecopy commits on all replicas by itself: use COMMIT",
                );
                Kind::Unsupported
            }
        }
    }

    fn set(&mut self, name: &str, values: &[SetValue], local: bool, is_default: bool) -> Kind {
        let texts: Option<Vec<String>> = values
            .iter()
            .map(|v| match v {
                SetValue::Text(text) => Some(text.clone()),
                SetValue::Other => None,
            })
            .collect();
        let texts = texts.filter(|t| !is_default && !t.is_empty());
        let only = texts.as_ref().and_then(|t| t.first().cloned());
        match name {
            "role" => Kind::SetRole { role: only.filter(|r| r != "none"), local },
            "session_authorization" => Kind::SetSessionAuthorization { user: only, local },
            _ => Kind::Set { name: name.to_owned(), values: texts, local },
        }
    }

    fn prepare(&mut self, name: &str, statement: &'a Statement) -> Kind {
        let inner = match statement {
            Statement::Query(_) => Kind::Select,
            Statement::Insert(_) => Kind::Insert,
            Statement::Update(_) => Kind::Update,
            Statement::Delete(_) => Kind::Delete,
            Statement::Merge(_) => Kind::Merge,
            Statement::Utility(_) => return self.unsupported("only queries can be prepared"),
        };
        // PREPARE name [(types)] AS body
        let tokens = self.tokens();
        let mut depth = 0_usize;
        let found = tokens.iter().position(|t| match t.kind {
            TokenKind::Byte(b'(') => {
                depth += 1;
                false
            }
            TokenKind::Byte(b')') => {
                depth = depth.saturating_sub(1);
                false
            }
            TokenKind::Word => depth == 0 && t.start > 0 && self.word(t) == "as",
            _ => false,
        });
        let body = found.and_then(|i| tokens.get(i + 1)).and_then(|t| u32::try_from(t.start).ok());
        let types = match tokens.get(2) {
            Some(open) if open.kind == TokenKind::Byte(b'(') => {
                self.list_texts(&tokens, 2).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        match body {
            Some(body) => Kind::Prepare {
                name: name.to_owned(),
                inner: Box::new(inner),
                body: self.layout.position(body),
                types,
            },
            None => self.unsupported("the prepared statement could not be located"),
        }
    }

    /// What a server executes by itself as a part of the statement around it.
    fn inner_statement(&mut self, statement: &'a Statement) -> Kind {
        let kind = self.data_statement(statement);
        if matches!(kind, Kind::SetVal { .. }) {
            self.effects.writes = true;
            self.refuse_setval();
        }
        kind
    }

    fn explain(&mut self, analyze: bool, statement: &'a Statement) -> Kind {
        let inner = Box::new(self.inner_statement(statement));
        self.effects.returns_rows = true;
        if analyze && matches!(*inner, Kind::Ddl { .. }) {
            self.refuse(
                "EXPLAIN ANALYZE of a change of definitions is not supported",
                "execute it by itself; EXPLAIN ANALYZE its query",
            );
        }
        if !analyze {
            // Nothing runs: the plan depends on statistics, which belong to a replica.
            self.items.clear();
            self.everything = None;
            self.rechecked = Default::default();
            self.effects.writes = false;
            self.effects.locks_rows = false;
            self.edits = Default::default();
            self.refusal = None;
            self.unreplayable = None;
        }
        Kind::Explain { analyze, inner }
    }

    fn copy(&mut self, copy: &'a Copy) -> Kind {
        if copy.server_side {
            self.refuse(
                "COPY from or to a file or program of the server is not supported",
                "use COPY FROM STDIN or TO STDOUT (psql: \\copy)",
            );
            return Kind::Unsupported;
        }
        if let Some(query) = &copy.query {
            self.inner_statement(query);
            self.effects.returns_rows = true;
            return Kind::CopyOut;
        }
        let Some(name) = &copy.table else { return self.unsupported("COPY without a table") };
        if !copy.from {
            self.effects.returns_rows = true;
            match self.resolve(name) {
                Resolved::Table(table) => {
                    self.note_table(table, false);
                    self.effects.reads = true;
                    self.read_rows(table, true, &Known::new(), Mode::Shared);
                }
                Resolved::System | Resolved::Temporary => {}
                _ => self.touch_everything(Mode::Shared),
            }
            return Kind::CopyOut;
        }
        let Some(table) = self.target_table(name) else {
            return Kind::CopyIn { table: TableId::ALL };
        };
        let t = self.as_named(name, table);
        let named = |name: &String| t.column(name);
        // An unknown column is an error of which the server tells.
        let columns: Vec<_> = match copy.columns.as_slice() {
            [] => t.columns.iter().filter(|c| c.generated.is_none()).collect(),
            names => names.iter().filter_map(named).collect(),
        };
        match CopiedMoments::of(copy, &columns) {
            Ok(moments) => self.copied_moments = moments,
            Err(LetterQuotes) => self.refuse(
                "COPY with a letter or digit as QUOTE or ESCAPE hides whether the data name a moment by the clock ('now' ...)",
                "use another sign as QUOTE and ESCAPE",
            ),
        }
        self.columns_of_copy(copy, t, &columns);
        if copy.filter.is_some() {
            self.casts_anywhere();
        }
        let scope = self.opaque_scope();
        copy.filter.iter().for_each(|e| self.expr(e, At::each(scope)));
        self.fire_triggers(table, Event::Insert);
        self.refuse_computed_oids(table);
        self.checks(table);
        self.insert_row(table, &Known::new());
        Kind::CopyIn { table: self.item_id(table) }
    }

    // DDL.

    fn create_table(&mut self, create: &'a CreateTable) -> Kind {
        if create.temporary {
            return self.temporary_object("CREATE TEMPORARY TABLE");
        }
        if self.parts_by_oids(create) {
            self.refuse(
                "PARTITION BY would go by the OIDs of labels or names, which differ between replicas: each would put a row into another partition",
                "partition by LIST, or by another column",
            );
        }
        // A partition gets the foreign keys of its table.
        let parents: Vec<Name> = create.others.iter().filter(|n| self.is_partitioned(n)).cloned().collect();
        self.take_tied(&parents);
        self.new_relation_ddl("CREATE TABLE", &create.name, &create.others)
    }

    fn is_partitioned(&self, name: &Name) -> bool {
        matches!(self.peek(name), Resolved::Table(table) if self.table(table).kind == 'p')
    }

    pub(super) fn create_table_as(
        &mut self,
        name: &'a Name,
        temporary: bool,
        query: &'a Query,
        command: &'static str,
    ) -> Kind {
        self.pin_all = true;
        self.casts_anywhere();
        let usage = QueryUse { ordered: true, ..QueryUse::top() };
        self.receivers = Some(None);
        self.query(query, None, None, usage);
        self.effects.returns_rows = false;
        if command == "CREATE MATERIALIZED VIEW" && !self.edits.is_empty() {
            // The query is kept: a value in its place would be there for good.
            self.refuse(
                "a materialized view that reads the clock or sequences would differ between replicas",
                "let its query yield what does not depend on the time, and compare in the queries that read it",
            );
        }
        if temporary {
            return self.temporary_object(command);
        }
        self.new_relation_ddl(command, name, &[])
    }

    /// An unlogged relation loses its rows when its server crashes, and no other server's: what is executed makes it logged
    /// (design 3.4). `into` says that the statement is SELECT INTO UNLOGGED.
    pub(super) fn make_logged(&mut self, kind: Kind, into: bool) -> Kind {
        let Kind::Ddl { command, tables, rewrites, temporary: false, .. } = kind else { return kind };
        let tokens = self.tokens();
        let mut depth = 0_u32;
        let mut found = Vec::new();
        for (i, token) in tokens.iter().enumerate() {
            match token.kind {
                TokenKind::Byte(b'(') => depth += 1,
                TokenKind::Byte(b')') => depth = depth.saturating_sub(1),
                TokenKind::Word if depth == 0 && i > 0 && self.word(token) == "unlogged" => {
                    // A relation and a schema may have this name, so the words around it decide.
                    let is = |at: usize, words: &[&str]| {
                        tokens.get(at).is_some_and(|t| {
                            t.kind == TokenKind::Word && words.contains(&self.word(t).as_str())
                        })
                    };
                    let created = is(i - 1, &["create"]) && is(i + 1, &["table", "sequence"]);
                    let altered = is(0, &["alter"]) && is(i - 1, &["set"]);
                    if created || into && found.is_empty() && is(i - 1, &["into"]) {
                        found.push((token.start, token.end, ""));
                    } else if altered {
                        // Of a logged relation this changes nothing.
                        found.push((token.start, token.end, "LOGGED"));
                    }
                }
                _ => {}
            }
        }
        let unlogged = !found.is_empty();
        for (from, to, text) in found {
            // Texts are shorter than 4 GiB: the protocol's messages are.
            let (from, to) = (u32::try_from(from), u32::try_from(to));
            if let (Ok(from), Ok(to)) = (from, to) {
                self.edits.replace(from, to, vec![Piece::Text(text.to_owned())], true);
            }
        }
        Kind::Ddl { command, tables, rewrites, temporary: false, unlogged }
    }

    /// DDL that makes a relation which did not exist.
    fn new_relation_ddl(&mut self, command: &'static str, name: &Name, others: &[Name]) -> Kind {
        self.effects.writes = true;
        let schema = name.schema().map(str::to_owned).or_else(|| self.context.search_path.first().cloned());
        match schema {
            Some(schema) => self.take_new_name(&schema, name.last()),
            None => self.touch_everything(Mode::Exclusive),
        }
        self.ddl(command, others, false)
    }

    /// A relation begins to exist under a name. Whoever writes that name without a schema may mean it from then on, and not the
    /// one that it hides: another schema's, whose table a statement that was classified before has taken.
    fn take_new_name(&mut self, schema: &str, name: &str) {
        self.take_definition(table_id(schema, name));
        let path = self.context.search_path;
        let later = path.iter().position(|s| s == schema).map_or(0, |at| at + 1);
        // Sessions whose path is another have `public` in it, and mostly as the last one.
        let hidden = path[later..].iter().map(String::as_str).chain(["public"]);
        for other in hidden.filter(|other| *other != schema) {
            match self.relation_in(other, name) {
                Some(Resolved::Table(table)) => self.take_definition(self.item_id(table)),
                Some(Resolved::View(_)) => self.touch_everything(Mode::Exclusive),
                _ => {}
            }
        }
    }

    /// The schema in which a relation's name is found.
    fn schema_of(&self, name: &Name) -> Option<String> {
        let has = |schema: &&String| self.relation_in(schema, name.last()).is_some();
        name.schema().map(str::to_owned).or_else(|| self.context.search_path.iter().find(has).cloned())
    }

    fn ddl(&mut self, command: &'static str, names: &[Name], rewrites: bool) -> Kind {
        self.effects.writes = true;
        self.refuse_moments(command);
        let (mut tables, mut named_otherwise) = (Vec::new(), false);
        for name in names {
            match self.resolve(name) {
                Resolved::Table(table) => self.add_with_inheritors(table, &mut tables),
                Resolved::Temporary => {
                    self.effects.writes = false;
                    return self.temporary_object(command);
                }
                Resolved::Sequence(_) => self.touch_everything(Mode::Exclusive),
                // An index is known by its table only; an unknown name is an error or a new object. Whoever reads by way of
                // either holds a lock on it at a server.
                Resolved::View(_) | Resolved::Unknown | Resolved::System => {
                    self.touch_everything(Mode::Exclusive);
                    named_otherwise = true;
                }
            }
        }
        for table in &tables {
            self.take_definition(*table);
        }
        if !self.catalogue().event_triggers.iter().all(only_notifies) {
            self.touch_everything(Mode::Exclusive);
        }
        tables.extend(named_otherwise.then_some(TableId::ALL));
        Kind::Ddl { command, tables, rewrites, temporary: false, unlogged: false }
    }

    /// DDL whose reach is the whole catalogue: functions, types, roles, schemas ...
    fn catalogue_ddl(&mut self, command: &'static str) -> Kind {
        self.effects.writes = true;
        self.refuse_moments(command);
        self.touch_everything(Mode::Exclusive);
        Kind::Ddl { command, tables: Vec::new(), rewrites: false, temporary: false, unlogged: false }
    }

    fn temporary_object(&mut self, command: &'static str) -> Kind {
        self.effects.pins_session = true;
        Kind::Ddl { command, tables: Vec::new(), rewrites: false, temporary: true, unlogged: false }
    }

    fn drop(&mut self, kind: RelationKind, names: &[Name], cascade: bool, tag: &'static str) -> Kind {
        match kind {
            RelationKind::Table => {
                let known = names.iter().filter(|n| !matches!(self.peek(n), Resolved::Unknown));
                let known: Vec<Name> = known.cloned().collect();
                if tag == "DROP TABLE" {
                    self.take_tied(&known);
                }
                if cascade && !known.is_empty() {
                    self.take_dependents();
                }
                // DROP TABLE IF EXISTS of what is not there touches nothing but the names.
                self.ddl(tag, &known, true)
            }
            _ => self.catalogue_ddl(tag),
        }
    }

    /// The tables that foreign keys tie to these. PostgreSQL locks them for itself where a key is made, dropped or made anew,
    /// since each key has triggers on both tables: writes to them must have been applied before at the home.
    fn take_tied(&mut self, names: &[Name]) {
        for name in names {
            let Resolved::Table(named) = self.peek(name) else { continue };
            let mut tables = vec![named];
            let mut at = 0;
            while let Some(table) = tables.get(at).copied() {
                for child in self.catalogue().children(table) {
                    if !tables.contains(child) {
                        tables.push(*child);
                    }
                }
                at += 1;
            }
            for table in tables {
                for (child, _) in self.catalogue().references(table) {
                    self.take_definition(self.item_id(*child));
                }
                for key in &self.table(table).foreign_keys {
                    match self.catalogue().table(&key.parent_schema, &key.parent) {
                        Some(parent) => self.take_definition(self.catalogue().item_table(parent)),
                        None => self.touch_everything(Mode::Exclusive),
                    }
                }
            }
        }
    }

    /// What goes by CASCADE. The catalogue does not tell what depends on what, as materialized views and columns of a row type.
    fn take_dependents(&mut self) {
        self.touch_everything(Mode::Exclusive);
    }

    /// Tables that a definition reads when it is used. PostgreSQL looks them up now and holds them until the end, so TRUNCATE
    /// and REFRESH of before must have been applied.
    fn take_mentioned(&mut self) {
        let mut words: Vec<String> = Vec::new();
        for token in self.tokens() {
            match token.kind {
                TokenKind::Word => words.push(self.word(&token)),
                TokenKind::QuotedWord => match self.sql.get(token.start..token.end) {
                    Some(text) if text.starts_with('"') => {
                        words.push(text.trim_matches('"').replace("\"\"", "\""));
                    }
                    // With escapes in it (U&).
                    _ => self.touch_everything(Mode::KeyShared),
                },
                _ => {}
            }
        }
        let catalogue = self.catalogue();
        let tables = catalogue.tables.iter().filter(|t| words.contains(&t.name));
        let stored = catalogue.views.iter().filter(|v| v.materialised && words.contains(&v.name));
        let ids = tables.map(|t| catalogue.item_table(t)).chain(stored.map(|v| table_id(&v.schema, &v.name)));
        for id in ids.collect::<Vec<_>>() {
            self.push_whole_table(id, Mode::KeyShared);
        }
    }

    pub(super) fn peek(&self, name: &Name) -> Resolved {
        match name.schema() {
            Some(schema) => self.relation_in(schema, name.last()).unwrap_or(Resolved::Unknown),
            None => {
                if self.context.temporary.iter().any(|t| t == name.last()) {
                    return Resolved::Temporary;
                }
                let path = self.context.search_path;
                path.iter().find_map(|s| self.relation_in(s, name.last())).unwrap_or(Resolved::Unknown)
            }
        }
    }

    fn truncate(&mut self, names: &[Name], cascade: bool, restart: bool) -> Kind {
        self.effects.writes = true;
        self.effects.sequences |= restart;
        let mut tables = Vec::new();
        for name in names {
            match self.resolve(name) {
                Resolved::Table(table) => {
                    self.note_table(table, true);
                    self.add_with_inheritors(table, &mut tables);
                    self.fire_with_inheritors(table, Event::Truncate);
                    if cascade {
                        self.add_referencing(&mut tables);
                    }
                }
                Resolved::Temporary => {
                    self.effects.writes = false;
                    return Kind::Truncate { tables: Vec::new() };
                }
                _ => {
                    self.touch_everything(Mode::Exclusive);
                    self.refuse(
                        format!("table {name} is not in the catalogue"),
                        "check its name and the search_path; onecopy reads the catalogue anew after DDL",
                    );
                }
            }
        }
        for table in &tables {
            self.take_definition(*table);
            if restart && let Some(index) = self.index_of(*table) {
                self.restart_owned(index, false);
            }
        }
        Kind::Truncate { tables }
    }

    /// A column whose default reads the clock: the rows that are there get one value, later ones that of their time.
    /// False if the default is something else.
    fn added_clock(&mut self, table: &Name, column: &str, default: &'a Expr) -> bool {
        if let Resolved::Table(index) = self.peek(table)
            && self.table(index).column(column).is_some()
        {
            // IF NOT EXISTS, or an error: its default stays what it is.
            return true;
        }
        let place = match default {
            Expr::Clock { at, .. } => *at,
            Expr::Call(call)
                if matches!(call.name.schema(), None | Some("pg_catalog"))
                    && matches!(
                        builtin(call.name.last(), call.arguments.len()),
                        Some(Behaviour::TransactionTimestamp | Behaviour::StatementTimestamp)
                    ) =>
            {
                call.at
            }
            _ => return false,
        };
        let Some(text) = self.call_end(place).and_then(|end| self.sql.get(place as usize..end as usize))
        else {
            return false;
        };
        let Some(end) = self.tokens().last().and_then(|t| u32::try_from(t.end).ok()) else { return false };
        let kept = format!(", ALTER COLUMN {} SET DEFAULT {text}", quoted(column));
        let scope = self.opaque_scope();
        self.expr(default, At::new(scope, true));
        self.edits.insert(end, vec![Piece::Text(kept)]);
        self.unreplayable.is_none()
    }

    /// Whether a column of this type begins with a domain's default that is no constant.
    fn draws_default(&self, name: &Name) -> bool {
        let is_named = |schema: &str| match name.schema() {
            Some(named) => named == schema,
            None => self.context.search_path.iter().any(|s| s == schema),
        };
        let named = self.catalogue().types.iter().filter(|t| t.name == name.last() && is_named(&t.schema));
        named.filter_map(|t| t.default.as_ref()).any(|default| !self.is_constant_text(default))
    }

    /// DDL keeps expressions. A literal in them that names a moment is read once, when the command runs: by each replica
    /// at another time.
    fn refuse_moments(&mut self, tag: &str) {
        if matches!(tag, "COMMENT" | "CREATE TYPE" | "ALTER TYPE" | "SECURITY LABEL") {
            return;
        }
        let is_text = |end: usize| {
            let rest = self.sql.get(end..).unwrap_or("").trim_start();
            let cast = rest.strip_prefix("::").unwrap_or("").trim_start();
            ["text", "varchar", "character varying", "bpchar", "name"]
                .iter()
                .any(|t| cast.get(..t.len()).is_some_and(|start| start.eq_ignore_ascii_case(t)))
        };
        let mut literals = self.layout.consts.iter().filter(|c| c.kind.is_string());
        let found = literals.any(|c| {
            let text = crate::value::string_value(self.sql, *c);
            text.is_some_and(|text| crate::moment_text::names_moment(&text)) && !is_text(c.end as usize)
        });
        if found {
            self.refuse(
                "a literal that names a moment by the clock ('now', 'today' ...) would be read by each replica at another time",
                "write now() or current_date where the moment of use is meant, else the moment itself; mere text is written as 'today'::text",
            );
        }
    }

    fn index_of(&self, id: TableId) -> Option<usize> {
        self.catalogue().table_by_id(id).and_then(|table| self.catalogue().table_index(table))
    }

    /// The sequences of a table's columns begin anew, or only those of identity columns.
    fn restart_owned(&mut self, table: usize, identity_only: bool) {
        let columns = self.table(table).columns.iter().filter(|c| c.identity.is_some() || !identity_only);
        let owned = columns.filter_map(|c| c.sequence.clone());
        self.restarts.extend(owned);
    }

    /// Whether the word RESTART stands in the statement.
    fn says_restart(&self) -> bool {
        self.tokens().iter().any(|t| t.kind == TokenKind::Word && self.word(t) == "restart")
    }

    fn add_with_inheritors(&self, table: usize, tables: &mut Vec<TableId>) {
        let id = self.item_id(table);
        if tables.contains(&id) {
            return;
        }
        tables.push(id);
        for child in self.catalogue().children(table) {
            if !self.table(*child).is_partition {
                self.add_with_inheritors(*child, tables);
            }
        }
    }

    /// The tables that TRUNCATE ... CASCADE empties as well: those that refer to one of these, or to one that inherits from it.
    fn add_referencing(&mut self, tables: &mut Vec<TableId>) {
        let mut at = 0;
        while let Some(id) = tables.get(at).copied() {
            at += 1;
            let Some(table) = self.index_of(id) else { continue };
            for (child, _) in self.catalogue().references(table) {
                if !tables.contains(&self.item_id(*child)) {
                    self.add_with_inheritors(*child, tables);
                    self.fire_with_inheritors(*child, Event::Truncate);
                }
            }
        }
    }

    /// Takes a table with its definition for itself.
    fn take_definition(&mut self, table: TableId) {
        self.push_whole_table(table, Mode::Exclusive);
        self.push_item(ItemTemplate {
            table,
            space: Space::Schema,
            mode: Mode::Exclusive,
            of: ColumnSet::ALL,
            columns: Vec::new(),
            null: NullRule::Skip,
        });
    }

    fn lock(&mut self, names: &[Name], mode: i32, no_wait: bool) -> Kind {
        // ACCESS SHARE ... ACCESS EXCLUSIVE. Weak modes keep out what their conflicts in PostgreSQL keep out;
        // where item modes are coarser, the stronger is taken.
        let taken = match mode {
            1 | 2 => Mode::KeyShared,
            3 => Mode::Insert,
            4 => Mode::Update,
            5 => Mode::Shared,
            6 => Mode::NoKeyExclusive,
            _ => Mode::Exclusive,
        };
        self.effects.locks_rows = true;
        for name in names {
            match self.resolve(name) {
                Resolved::Table(table) => {
                    let mut tables = Vec::new();
                    self.add_with_inheritors(table, &mut tables);
                    for table in tables {
                        self.push_whole_table(table, taken);
                        if mode == 8 {
                            self.take_definition(table);
                        }
                    }
                }
                Resolved::Temporary | Resolved::System => {}
                _ => self.touch_everything(taken),
            }
        }
        Kind::LockTable { mode: u8::try_from(mode).unwrap_or(8), no_wait }
    }

    fn refresh(&mut self, name: &Name, concurrently: bool) -> Kind {
        self.effects.writes = true;
        let Resolved::View(index) = self.resolve(name) else {
            self.touch_everything(Mode::Exclusive);
            return Kind::Ddl {
                command: "REFRESH MATERIALIZED VIEW",
                tables: Vec::new(),
                rewrites: true,
                temporary: false,
                unlogged: false,
            };
        };
        self.casts_anywhere();
        let view = &self.catalogue().views[index];
        let library = self.library;
        match library.query(&view.definition) {
            Some(query) => {
                let usage = QueryUse { body: true, ..QueryUse::top() };
                self.query(query, None, None, usage);
            }
            None => {
                self.touch_everything(Mode::Shared);
                self.unreplayable("the view's definition could not be read");
            }
        }
        let id = table_id(&view.schema, &view.name);
        self.take_definition(id);
        Kind::Ddl {
            command: "REFRESH MATERIALIZED VIEW",
            tables: vec![id],
            rewrites: !concurrently,
            temporary: false,
            unlogged: false,
        }
    }

    fn maintenance(&mut self, command: &'static str, names: &[Name]) -> Kind {
        let mut tables = Vec::new();
        for name in names {
            if let Resolved::Table(table) = self.resolve(name) {
                self.add_with_inheritors(table, &mut tables);
            }
        }
        Kind::Maintenance { command, tables }
    }

    /// `SELECT setval('sequence', value [, called])`, and the same of the greatest key of a table: `... FROM t`.
    pub(super) fn set_value_call(&mut self, query: &'a Query) -> Option<Kind> {
        let Body::Select(select) = &query.body else { return None };
        let [target] = select.targets.as_slice() else { return None };
        let Expr::Call(call) = &target.value else { return None };
        let plain = select.filter.is_none()
            && select.group_by.is_empty()
            && select.having.is_none()
            && select.distinct == Distinct::None
            && query.limit.is_none()
            && query.offset.is_none()
            && query.order_by.is_empty()
            && query.locking.is_empty()
            && query.with.is_none()
            && matches!(call.name.schema(), None | Some("pg_catalog"))
            && builtin(call.name.last(), call.arguments.len()) == Some(Behaviour::SetVal);
        let from = match select.from.as_slice() {
            _ if !plain => return None,
            [] => None,
            // It is called once, for what is made of all rows.
            [From::Table { .. }] if call.arguments.iter().skip(1).any(|e| self.takes_extremes(e)) => {
                Some(self.text_from(call)?)
            }
            _ => return None,
        };
        self.pin_all = true;
        let scope = match from {
            Some(_) => self.new_scope(None, None, self.nesting > 0),
            None => self.opaque_scope(),
        };
        let at = At::new(scope, from.is_none());
        let sequence = self.sequence_argument(call, at)?;
        let arguments = self.argument_texts(call)?;
        let value = arguments.get(1)?.clone();
        if from.is_some() {
            let block = self.open_block(&select.from, scope);
            self.close_block(None, scope, block);
        }
        // The value may come from a query: what that reads belongs to the statement.
        call.arguments.iter().skip(1).for_each(|e| self.expr(e, at));
        let effects = &self.effects;
        if effects.writes || effects.locks_rows || effects.sets_custom_locally {
            // It is computed before the sequence is set, and not recorded.
            self.refuse(
                "setval() of a value whose computation changes or locks something is not supported",
                "compute the value by a statement of its own",
            );
        }
        self.effects.sequences = true;
        self.effects.returns_rows = true;
        let sequence = &self.catalogue().sequences[sequence];
        Some(Kind::SetVal {
            schema: sequence.schema.clone(),
            name: sequence.name.clone(),
            value,
            called: arguments.get(2).cloned(),
            from,
        })
    }

    /// Whether an expression is made of a table's least or greatest value, and so one for all of its rows.
    fn takes_extremes(&self, expr: &Expr) -> bool {
        let mut found = false;
        super::sameness::each_call(expr, &mut |call| {
            let is_of_user =
                || self.catalogue().functions_named(&call.name, self.context.search_path).next().is_some();
            found |= call.over.is_none()
                && matches!(call.name.schema(), None | Some("pg_catalog"))
                && matches!(call.name.last(), "max" | "min")
                && call.arguments.len() == 1
                && !is_of_user();
        });
        found
    }

    /// The text from FROM on, if that follows a call.
    fn text_from(&self, call: &Call) -> Option<String> {
        let tokens = self.tokens();
        let mut i = tokens.iter().position(|t| t.start == call.at as usize)?;
        while tokens.get(i)?.kind != TokenKind::Byte(b'(') {
            i += 1;
        }
        let from = super::freeze::closing(&tokens, i)? + 1;
        let is_from = tokens.get(from).is_some_and(|t| t.kind == TokenKind::Word && self.word(t) == "from");
        let belongs = |token: &&Token| token.kind != TokenKind::Byte(b';');
        let end = tokens.iter().rfind(belongs)?.end;
        is_from.then(|| self.sql.get(tokens[from].start..end).map(str::to_owned))?
    }

    /// The texts of a call's arguments.
    fn argument_texts(&self, call: &Call) -> Option<Vec<String>> {
        let tokens = self.tokens();
        let mut i = tokens.iter().position(|t| t.start == call.at as usize)?;
        while tokens.get(i)?.kind != TokenKind::Byte(b'(') {
            i += 1;
        }
        self.list_texts(&tokens, i)
    }

    /// The texts between the commas of a list that begins with the parenthesis at `open`.
    fn list_texts(&self, tokens: &[Token], open: usize) -> Option<Vec<String>> {
        let i = open;
        let close = super::freeze::closing(tokens, i)?;
        let mut texts = Vec::new();
        let mut start = tokens.get(i + 1)?.start;
        let mut at = i + 1;
        while at < close {
            match tokens[at].kind {
                TokenKind::Byte(b'(' | b'[') => at = super::freeze::closing(tokens, at)?,
                TokenKind::Byte(b',') => {
                    texts.push(self.sql.get(start..tokens[at].start)?.trim().to_owned());
                    start = tokens.get(at + 1)?.start;
                }
                _ => {}
            }
            at += 1;
        }
        texts.push(self.sql.get(start..tokens[close].start)?.trim().to_owned());
        Some(texts)
    }

    fn opaque_scope(&mut self) -> usize {
        let body = self.nesting > 0;
        let scope = self.new_scope(None, None, body);
        let entry = super::block::Entry { name: String::new(), columns: super::block::EntryColumns::Opaque };
        self.scopes[scope].entries.push(entry);
        scope
    }
}

fn reset(name: Option<&str>) -> Kind {
    match name {
        Some("role") => Kind::SetRole { role: None, local: false },
        Some("session_authorization") => Kind::SetSessionAuthorization { user: None, local: false },
        name => Kind::Reset(name.map(str::to_owned)),
    }
}

fn argument(expr: &Expr) -> Option<ExecuteArgument> {
    match expr {
        Expr::Literal { value, .. } => Some(match value {
            Literal::Null => ExecuteArgument::Null,
            Literal::Bool(b) => ExecuteArgument::Text(b.to_string()),
            Literal::Int(i) => ExecuteArgument::Text(i.to_string()),
            Literal::Number(text) | Literal::Text(text) => ExecuteArgument::Text(text.clone()),
            Literal::Bits(_) => return None,
        }),
        Expr::Cast { value, to } if !to.modifiers => match &**value {
            Expr::Literal { value: Literal::Text(text), .. } => Some(ExecuteArgument::Text(text.clone())),
            _ => None,
        },
        _ => None,
    }
}
