//! From a syntax tree and the catalogue to a class.
//!
//! Two questions are answered in one walk. *What does it touch?* Every table that the statement reads or writes
//! contributes items; equalities that must hold for a row to matter narrow them ([`facts`], [`block`], [`locks`]).
//! *What does its effect depend on?* Every function, default, trigger and order of rows that may differ between
//! replicas is noted ([`expr`], [`write`]); [`verdict`] draws the conclusion.
//!
//! The rule that everything follows: what is not understood widens the items, up to the whole database, and
//! keeps the statement from being replayed.

mod attributes;
mod block;
mod casts;
mod checks;
mod columns;
mod derived;
mod event_triggers;
mod expr;
mod facts;
mod freeze;
mod locks;
mod moments;
mod numbering;
mod oids;
mod parameters;
mod places;
mod procedural;
mod sameness;
mod session_calls;
mod shown;
mod utility;
mod verdict;
mod write;
mod zoned;

use crate::ast::{Expr, LockStrength, LockWait, Mentions, Name, Query, Statement};
use crate::catalogue::{Catalogue, Column, Relation, Table};
use crate::class::{Class, Effects, Given, Guard, Kind, Refusal};
use crate::copied::CopiedMoments;
use crate::grammar::{self, ParseError};
use crate::lexer::{Layout, Normalised, OwnedLayout};
use crate::template::{ItemTemplate, NullRule};
use block::{CteEnv, CteId, QueryUse, Scope, ScopeId};
use derived::{Derived, DerivedList};
use freeze::Edits;
use onecopy_core::{ColumnSet, Mode, Space, TableId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use typed_arena::Arena;

/// What a classification depends on beside the text.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The catalogue snapshot.
    pub catalogue: &'a Catalogue,
    /// The schemas of the session's search_path that exist, in order, `$user` resolved; `pg_catalog` and the
    /// temporary schema only if they are written there.
    pub search_path: &'a [String],
    /// Names of the session's temporary tables, views and sequences, which hide others of their name.
    pub temporary: &'a [String],
}

/// How many relations, views and function bodies one analysis expands before it gives up and takes the whole
/// database.
const BUDGET: u32 = 2_000;

/// Classifies the first statement of a string.
#[must_use]
pub fn classify(sql: &str, normalised: &Normalised<'_>, context: &Context<'_>) -> Class {
    let text = sql.get(..normalised.layout.end as usize).unwrap_or(sql);
    let library = Library::default();
    let parsed = grammar::parse(text);
    let mut analyser = Analyser::new(text, normalised.layout, *context, &library);
    analyser.effects.backslash = normalised.backslash;
    let kind = match &parsed {
        Ok(statements) => match statements.as_slice() {
            [] => Kind::Empty,
            [only] => {
                analyser.mentions = Some(&only.mentions);
                analyser.statement(&only.statement)
            }
            // The lexer found one statement and the grammar several: neither may be trusted.
            _ => analyser.unsupported("the statement could not be separated from its neighbours"),
        },
        Err(ParseError::Syntax(message)) => Kind::SyntaxError { message: message.clone() },
        Err(error @ ParseError::TooDeep) => analyser.unsupported(&error.to_string()),
    };
    let statement = parsed.as_ref().ok().and_then(|s| s.first()).map(|s| &s.statement);
    analyser.conclude(normalised, statement, kind)
}

/// Views, function bodies and defaults that were parsed for an analysis, which refers to them until it ends.
#[derive(Default)]
struct Library {
    statements: Arena<Statement>,
    expressions: Arena<Expr>,
    texts: Arena<String>,
    layouts: Arena<OwnedLayout>,
    tables: Arena<Table>,
}

impl Library {
    fn query(&self, text: &str) -> Option<&Query> {
        let mut parsed = grammar::parse(text).ok()?;
        if parsed.len() != 1 {
            return None;
        }
        match self.statements.alloc(parsed.remove(0).statement) {
            Statement::Query(query) => Some(query),
            _ => None,
        }
    }

    fn statements(&self, text: &str) -> Option<&[Statement]> {
        let parsed = grammar::parse(text).ok()?;
        Some(self.statements.alloc_extend(parsed.into_iter().map(|p| p.statement)))
    }

    fn expression(&self, text: &str) -> Option<&Expr> {
        grammar::parse_expression(text).ok().map(|e| &*self.expressions.alloc(e))
    }
}

/// Tables of which foreign keys are checked again when a row changes for a second time, and what these refer to.
#[derive(Default)]
struct Rechecked {
    tables: Vec<TableId>,
    parents: Vec<ItemTemplate>,
}

/// The normalised text for people: `?` for constants.
fn shown(text: &[u8]) -> String {
    let readable: Vec<u8> = text.iter().map(|b| if *b < b' ' { b'?' } else { *b }).collect();
    String::from_utf8_lossy(&readable).into_owned()
}

/// What a name in FROM or after INTO stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Resolved {
    /// A table (partitions as their root).
    Table(usize),
    View(usize),
    Sequence(usize),
    /// Of `pg_catalog` or `information_schema`.
    System,
    /// A temporary relation of the session.
    Temporary,
    Unknown,
}

struct Analyser<'a> {
    sql: &'a str,
    layout: Layout<'a>,
    context: Context<'a>,
    library: &'a Library,
    budget: u32,
    // What it touches.
    items: Vec<ItemTemplate>,
    everything: Option<Mode>,
    tables: Vec<TableId>,
    /// Of rows that it reads, changes or removes, the columns that it reads, by table.
    columns_read: BTreeMap<TableId, ColumnSet>,
    /// Tables whose rows get other values of a unique key.
    rekeyed: Vec<TableId>,
    /// What else it touches if its transaction has changed the same rows before.
    rechecked: Rechecked,
    /// How the statement names columns, once it is known.
    mentions: Option<&'a Mentions>,
    // Name spaces.
    scopes: Vec<Scope>,
    ctes: Vec<CteEnv<'a>>,
    /// What is known of columns that are no plain ones of tables, by name space and entry.
    derived: HashMap<(ScopeId, usize), Vec<Derived>>,
    /// The columns of the query that was analysed last.
    last_derived: DerivedList,
    /// The table of each relation of the statement, by its number.
    relations: Vec<Option<usize>>,
    /// Relations that are partitions, with their columns in their own order.
    partitions: HashMap<u32, &'a Table>,
    // What it depends on.
    effects: Effects,
    unreplayable: Option<String>,
    refusal: Option<Refusal>,
    locking: Option<(LockStrength, LockWait)>,
    /// Some rows are locked FOR SHARE or FOR KEY SHARE.
    locks_shared: bool,
    pinned: BTreeSet<u32>,
    pin_all: bool,
    /// What may name a moment by the clock, an object by its number, or a time with time zone without its offset.
    clock_words: Given,
    oid_words: Given,
    zoned_words: Given,
    /// Of the next query only the first row is taken.
    first_only: bool,
    /// Of the rows that the next INSERT, UPDATE, DELETE or MERGE returns only the first is taken.
    first_returned: bool,
    /// What the statement's functions yield goes to the client, and nowhere else.
    shows_calls_only: bool,
    /// The recursive query that comes next.
    recursive: Option<CteId>,
    /// The columns to which the next query's go: none where they become new ones.
    receivers: Option<Option<Vec<&'a Column>>>,
    /// Places at which each parameter stands, and the type that the place gives to it.
    params: BTreeMap<u32, HashMap<u32, Option<u32>>>,
    edits: Edits,
    /// Nesting of views, function bodies and defaults.
    nesting: u32,
    /// Functions and cascades under analysis, against endless recursion.
    active: Vec<(u64, u64)>,
    /// A change of rows in a WITH clause is under analysis.
    in_with: bool,
    /// Tables that a part of the statement changes.
    written: Vec<usize>,
    /// A trigger fires, or would where rows are shipped.
    has_triggers: bool,
    /// What looks like a column calls a function.
    selects_calls: bool,
    /// A column is set to what it holds, perhaps in another form of the same value.
    sets_equal: bool,
    /// Why a CHECK need not hold again where rows are shipped.
    varying_check: Option<String>,
    /// CHECKs are evaluated by a text that is executed again: by the same role, and in its place in the order.
    checks_by_text: bool,
    /// The current role is named.
    names_role: bool,
    /// A function that is called changes rows.
    writes_through_functions: bool,
    /// Rows that get numbers in the order in which they come.
    numbers: Option<numbering::Numbers>,
    /// Where the data of a COPY may name a moment.
    copied_moments: Option<CopiedMoments>,
    /// What the rows must not say.
    guard: Option<Guard>,
    /// Sequences that it may restart.
    restarts: Vec<(String, String)>,
    /// The query of an INSERT may yield another number of rows when it is run again.
    unsteady: bool,
    /// Columns that take numbers as they are drawn, each with its frozen value.
    drawn: Vec<(String, u32)>,
    /// Offsets of calls that frozen values replace.
    frozen_places: BTreeSet<u32>,
}

impl<'a> Analyser<'a> {
    fn new(sql: &'a str, layout: Layout<'a>, context: Context<'a>, library: &'a Library) -> Analyser<'a> {
        Analyser {
            sql,
            layout,
            context,
            library,
            budget: BUDGET,
            items: Vec::new(),
            everything: None,
            tables: Vec::new(),
            columns_read: BTreeMap::new(),
            rekeyed: Vec::new(),
            rechecked: Rechecked::default(),
            mentions: None,
            scopes: Vec::new(),
            ctes: Vec::new(),
            derived: HashMap::new(),
            last_derived: None,
            relations: Vec::new(),
            partitions: HashMap::new(),
            effects: Effects::default(),
            unreplayable: None,
            refusal: None,
            locking: None,
            locks_shared: false,
            pinned: BTreeSet::new(),
            pin_all: false,
            clock_words: Given::default(),
            oid_words: Given::default(),
            zoned_words: Given::default(),
            first_only: false,
            first_returned: false,
            shows_calls_only: false,
            recursive: None,
            receivers: None,
            params: BTreeMap::new(),
            edits: Edits::default(),
            nesting: 0,
            active: Vec::new(),
            in_with: false,
            written: Vec::new(),
            has_triggers: false,
            selects_calls: false,
            sets_equal: false,
            varying_check: None,
            checks_by_text: false,
            names_role: false,
            writes_through_functions: false,
            numbers: None,
            copied_moments: None,
            guard: None,
            restarts: Vec::new(),
            unsteady: false,
            drawn: Vec::new(),
            frozen_places: BTreeSet::new(),
        }
    }

    fn catalogue(&self) -> &'a Catalogue {
        self.context.catalogue
    }

    fn table(&self, index: usize) -> &'a Table {
        // Indexes come from the catalogue's own index over the same list.
        &self.context.catalogue.tables[index]
    }

    // Notes.

    fn unsupported(&mut self, reason: &str) -> Kind {
        self.refuse(reason, "simplify the statement or split it");
        Kind::Unsupported
    }

    /// The statement's changes can be neither replayed nor captured.
    fn refuse(&mut self, reason: impl Into<String>, hint: impl Into<String>) {
        if self.refusal.is_none() {
            self.refusal = Some(Refusal::new(reason, hint));
        }
    }

    /// The statement's changes may differ between replicas if its text is executed on each.
    fn unreplayable(&mut self, reason: impl Into<String>) {
        if self.unreplayable.is_none() {
            self.unreplayable = Some(reason.into());
        }
    }

    /// Nothing bounds what is touched.
    fn touch_everything(&mut self, mode: Mode) {
        self.everything = Some(match self.everything {
            Some(old) if old.covers(mode) => old,
            _ => mode,
        });
        self.effects.reads = true;
    }

    fn push_item(&mut self, item: ItemTemplate) {
        if item.is_empty() {
            return;
        }
        if !self.tables.contains(&item.table) {
            self.tables.push(item.table);
        }
        if !self.items.contains(&item) {
            self.items.push(item);
        }
    }

    fn push_whole_table(&mut self, table: TableId, mode: Mode) {
        self.push_item(ItemTemplate {
            table,
            space: Space::Rows,
            mode,
            of: ColumnSet::ALL,
            columns: Vec::new(),
            null: NullRule::Skip,
        });
    }

    /// Counts one expansion; false when there were too many, and everything is taken.
    fn spend(&mut self) -> bool {
        if self.budget == 0 {
            self.touch_everything(Mode::Exclusive);
            self.refuse("the statement expands to too many tables, views and functions", "split it");
            return false;
        }
        self.budget -= 1;
        true
    }

    /// What a relation's name stands for.
    fn resolve(&mut self, name: &Name) -> Resolved {
        let found = match name.schema() {
            Some("pg_catalog" | "information_schema") => Resolved::System,
            Some(schema) if schema.starts_with("pg_temp") => Resolved::Temporary,
            Some(schema) if schema.starts_with("pg_toast") => Resolved::System,
            Some(schema) => self.relation_in(schema, name.last()).unwrap_or(Resolved::Unknown),
            None => self.resolve_unqualified(name.last()),
        };
        match found {
            Resolved::System => self.effects.reads_catalogue = true,
            Resolved::Temporary => self.effects.temporary_tables = true,
            Resolved::Unknown => self.effects.unknown_tables = true,
            _ => {}
        }
        found
    }

    fn resolve_unqualified(&mut self, name: &str) -> Resolved {
        if self.context.temporary.iter().any(|t| t == name) {
            return Resolved::Temporary;
        }
        let system = name.starts_with("pg_");
        let path = self.context.search_path;
        if let Some(found) = path.iter().find_map(|schema| self.relation_in(schema, name)) {
            // pg_catalog comes first and is not in the snapshot: it may be either.
            self.effects.reads_catalogue |= system;
            return found;
        }
        let information_schema = path.iter().any(|s| s == "information_schema");
        if system || information_schema { Resolved::System } else { Resolved::Unknown }
    }

    /// A table as the statement names it. A partition has its own order of columns, and its own defaults; items, keys
    /// and the columns' numbers are those of its root.
    fn as_named(&mut self, name: &Name, table: usize) -> &'a Table {
        let root = self.table(table);
        let Some(index) = self.named_table(name).filter(|found| *found != table) else {
            return root;
        };
        let partition = self.table(index);
        if partition.row_security {
            self.policies(index);
        }
        // A partition has the columns of its root, by their names.
        let own = partition.columns.iter().filter_map(|column| {
            let of_root = root.column(&column.name)?;
            let sequence = match column.identity {
                Some(_) => column.sequence.clone().or_else(|| of_root.sequence.clone()),
                None => column.sequence.clone(),
            };
            Some(Column { number: of_root.number, sequence, ..column.clone() })
        });
        let columns = own.collect();
        let (schema, name) = (partition.schema.clone(), partition.name.clone());
        self.library.tables.alloc(Table { schema, name, columns, ..root.clone() })
    }

    /// The table or partition that has a name.
    fn named_table(&self, name: &Name) -> Option<usize> {
        let named = match name.schema() {
            Some(schema) => self.catalogue().relation_in(schema, name.last()),
            None => {
                self.context.search_path.iter().find_map(|s| self.catalogue().relation_in(s, name.last()))
            }
        };
        match named {
            Some(Relation::Table(index)) => Some(index),
            _ => None,
        }
    }

    fn relation_in(&self, schema: &str, name: &str) -> Option<Resolved> {
        Some(match self.catalogue().relation_in(schema, name)? {
            Relation::Table(i) => {
                let root = self.catalogue().partition_root(self.table(i));
                Resolved::Table(self.catalogue().table_index(root).unwrap_or(i))
            }
            Relation::View(i) => Resolved::View(i),
            Relation::Sequence(i) => Resolved::Sequence(i),
        })
    }

    fn statement(&mut self, statement: &'a Statement) -> Kind {
        match statement {
            Statement::Utility(utility) => {
                let kind = self.utility(utility);
                self.fire_event_triggers(&kind);
                self.make_logged(kind, false)
            }
            data => self.data_statement(data),
        }
    }

    /// A query or a change of rows, at the top or inside EXPLAIN, PREPARE, DECLARE and COPY.
    fn data_statement(&mut self, statement: &'a Statement) -> Kind {
        self.casts_anywhere();
        match statement {
            Statement::Query(query) => {
                self.effects.returns_rows = true;
                let functions = |name: &str| {
                    let name = Name::new(vec![name.to_owned()]);
                    self.catalogue().functions_named(&name, self.context.search_path).next().is_some()
                };
                self.shows_calls_only = sameness::shows_calls_only(query, functions);
                self.top_query(query)
            }
            Statement::Insert(insert) => {
                self.effects.returns_rows = insert.returning.is_some();
                self.insert(insert, None, true);
                Kind::Insert
            }
            Statement::Update(update) => {
                self.effects.returns_rows = update.returning.is_some();
                self.update(update, None);
                Kind::Update
            }
            Statement::Delete(delete) => {
                self.effects.returns_rows = delete.returning.is_some();
                self.delete(delete, None);
                Kind::Delete
            }
            Statement::Merge(merge) => {
                self.effects.returns_rows = merge.returning.is_some();
                self.merge(merge, None);
                Kind::Merge
            }
            Statement::Utility(utility) => {
                let kind = self.utility(utility);
                self.fire_event_triggers(&kind);
                self.make_logged(kind, false)
            }
        }
    }

    fn top_query(&mut self, query: &'a Query) -> Kind {
        if let Some(into) = &query.into {
            let kind = self.create_table_as(&into.name, into.temporary, query, "SELECT INTO");
            self.fire_event_triggers(&kind);
            return self.make_logged(kind, into.unlogged);
        }
        if let Some(kind) = self.set_value_call(query) {
            return kind;
        }
        if let Some(kind) = self.session_calls(query) {
            return kind;
        }
        let writes_before = self.effects.writes;
        let has_write_cte = self.query(query, None, None, QueryUse::top());
        match self.locking {
            _ if has_write_cte && !writes_before => Kind::WriteCte,
            Some((strength, wait)) => Kind::SelectLocking { strength, wait },
            None => Kind::Select,
        }
    }
}

type Parent = Option<ScopeId>;
type Env = Option<CteId>;
