//! A class: everything that is known of the statements that share one text but for their constants.

use crate::ast::{Discard, LockStrength, LockWait, Modes};
use crate::capture::CapturePlan;
use crate::copied::CopiedMoments;
use crate::lexer::{Layout, Normalised, hash_bytes};
use crate::moment_text::{has_clock_word, lacks_offset};
use crate::name_types::has_number;
use crate::parameterise::Parameterised;
use crate::rewrite::{FrozenValue, Rewrite};
use crate::template::{AccessTemplate, NotCanonical, RecheckTemplate, ShownTemplate, shown_by_row};
use crate::value::{ParamValue, Params, string_value};
use onecopy_core::{Access, AccessSet, ClassId, ColumnSet, Mode, RowChange, Space, TableId};
use std::sync::Arc;

/// Everything about one class of statements, found by one parse. Immutable; share it in an `Arc`.
#[derive(Clone, Debug)]
pub struct Class {
    /// A stable hash of `text`, equal on every node.
    pub id: ClassId,
    /// The normalised text, with `?` for constants: to show, and to learn costs by.
    pub text: String,
    /// What kind of statement it is.
    pub kind: Kind,
    /// What it does beside reading and writing the items of its access set.
    pub effects: Effects,
    /// How its changes reach the other replicas. Ask [`Class::determinism_of`] for a given execution.
    pub determinism: Determinism,
    /// Where values must be frozen before it is executed anywhere, home included.
    pub rewrite: Rewrite,
    /// Used instead of `rewrite` inside a transaction by a statement that changes nothing and reads the clock: the time
    /// of the transaction is one value there. Its first frozen values are those of `rewrite`.
    pub in_block: Option<Box<Rewrite>>,
    /// The statement with its constants as parameters, where that surely means the same.
    pub parameterised: Option<Parameterised>,
    /// Whether many executions of it may be put together as one on a replica that applies them: see [`crate::bulk`].
    pub bulk: Bulk,
    /// The tables that it touches, views expanded, partitions as their roots, without repetition; `TableId::ALL`
    /// if that could not be bounded.
    pub tables: Vec<TableId>,
    /// Sequences that it may restart, by schema and name.
    pub restarts: Vec<(String, String)>,
    /// Number of the highest parameter `$n` in the text, 0 if there is none.
    pub params_max: u32,
    /// For a COPY FROM STDIN: where its data may name a moment by the clock. Such data must not be replayed.
    pub copied_moments: Option<CopiedMoments>,
    /// What must be asked at home before it is executed there, under the same items.
    pub guard: Option<Guard>,
    pub(crate) access: AccessTemplate,
    /// Of rows that it reads, changes or removes, the columns that it reads, by table.
    pub(crate) columns_read: Vec<(TableId, ColumnSet)>,
    /// Tables whose rows get other values of a unique key; one may come several times.
    pub(crate) rekeyed: Vec<TableId>,
    /// Of the tables in `access`, those of which only rows matter that the answer shows.
    pub(crate) shown: Vec<ShownTemplate>,
    pub(crate) rechecks: Option<Box<RecheckTemplate>>,
    /// Constants whose values this analysis depended on: the class holds only for equal ones.
    pub(crate) pinned: Pinned,
    /// The placeholder text, byte for byte, against which a cache compares.
    pub(crate) key: Box<[u8]>,
    /// Used instead of `determinism` when a string names a moment by the clock (`'now'`), an object by its number, or a
    /// time with time zone without its offset.
    pub(crate) clock_words: Given,
    pub(crate) oid_words: Given,
    pub(crate) zoned_words: Given,
    pub(crate) fallback: Option<Box<Determinism>>,
}

/// Whether executions of a statement may be put together, and how many rows one can affect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bulk {
    /// They may not.
    #[default]
    No,
    /// They may, and each adds one row, or fails.
    Insert,
    /// They may, and each finds its row by the primary key: so many columns of this table.
    ByKey(TableId, usize),
    /// They may, and nothing bounds how many rows one affects.
    Rows,
}

impl Bulk {
    /// Whether an execution cannot affect more than one row, given the items that it takes: a value whose type is not the
    /// key's names no row, even if it equals one.
    #[must_use]
    pub fn is_one_row(self, access: &[Access]) -> bool {
        match self {
            Bulk::No | Bulk::Rows => false,
            Bulk::Insert => true,
            Bulk::ByKey(table, columns) => {
                let mut rows = access.iter().filter(|a| a.item.table == table && a.item.space == Space::Rows);
                matches!((rows.next(), rows.next()), (Some(row), None) if row.item.equals.len() == columns)
            }
        }
    }
}

/// Foreign keys that are checked again when rows change for a second time in one database transaction.
#[derive(Clone, PartialEq, Debug)]
pub struct Rechecks {
    /// The rows that change.
    pub changed: Arc<[Access]>,
    /// What they refer to, as it is locked by such a check.
    pub parents: AccessSet,
}

/// What kind of statement it is: everything that a driver must tell apart.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    /// A query without row locks: SELECT, VALUES, TABLE. It may still write through functions: see
    /// [`Effects::writes`].
    Select,
    /// SELECT ... FOR UPDATE and kin.
    SelectLocking {
        /// The strongest lock asked for.
        strength: LockStrength,
        /// What to do about rows that others hold.
        wait: LockWait,
    },
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
    /// MERGE.
    Merge,
    /// A query with INSERT, UPDATE, DELETE or MERGE in its WITH clause.
    WriteCte,
    /// COPY table FROM STDIN.
    CopyIn {
        /// The table copied into.
        table: TableId,
    },
    /// COPY ... TO STDOUT.
    CopyOut,
    /// BEGIN and START TRANSACTION.
    Begin(Modes),
    /// COMMIT and END.
    Commit {
        /// AND CHAIN.
        chain: bool,
    },
    /// ROLLBACK and ABORT.
    Rollback {
        /// AND CHAIN.
        chain: bool,
    },
    /// SAVEPOINT name.
    Savepoint(String),
    /// RELEASE name.
    Release(String),
    /// ROLLBACK TO name.
    RollbackTo(String),
    /// SET of a setting. Settings of transactions and roles have kinds of their own.
    Set {
        /// The setting's name, as the server folds it.
        name: String,
        /// The values as written, without quotes; None for DEFAULT, or a value that is no constant.
        values: Option<Vec<String>>,
        /// SET LOCAL.
        local: bool,
    },
    /// RESET name, or RESET ALL (None).
    Reset(Option<String>),
    /// SHOW name (`all` for SHOW ALL).
    Show(String),
    /// SET TRANSACTION, or with `session` SET SESSION CHARACTERISTICS.
    SetTransaction {
        /// The modes set.
        modes: Modes,
        /// For all later transactions instead of this one.
        session: bool,
    },
    /// SET CONSTRAINTS.
    SetConstraints {
        /// DEFERRED instead of IMMEDIATE.
        deferred: bool,
    },
    /// SET ROLE, RESET ROLE (None).
    SetRole {
        /// The role, None for NONE, DEFAULT and RESET.
        role: Option<String>,
        /// SET LOCAL.
        local: bool,
    },
    /// SET SESSION AUTHORIZATION, RESET SESSION AUTHORIZATION (None).
    SetSessionAuthorization {
        /// The user, None for DEFAULT and RESET.
        user: Option<String>,
        /// SET LOCAL.
        local: bool,
    },
    /// DISCARD.
    Discard(Discard),
    /// PREPARE name AS statement.
    Prepare {
        /// The statement's name.
        name: String,
        /// What would be executed.
        inner: Box<Kind>,
        /// Where the inner statement's text begins in the string.
        body: crate::lexer::Position,
        /// The parameter types as written, in order.
        types: Vec<String>,
    },
    /// EXECUTE name (...). Its items and determinism are those of the prepared statement.
    Execute {
        /// The statement's name.
        name: String,
        /// The arguments as expressions in SQL, in order; None if one is no constant.
        arguments: Option<Vec<ExecuteArgument>>,
        /// The arguments' texts, in order.
        texts: Vec<String>,
    },
    /// DEALLOCATE name, or ALL (None).
    Deallocate(Option<String>),
    /// DECLARE name CURSOR FOR query.
    DeclareCursor {
        /// The cursor's name.
        name: String,
        /// WITH HOLD: it outlives the transaction.
        hold: bool,
        /// The query's kind.
        inner: Box<Kind>,
    },
    /// FETCH.
    Fetch(String),
    /// MOVE.
    Move(String),
    /// CLOSE name, or ALL (None).
    CloseCursor(Option<String>),
    /// EXPLAIN.
    Explain {
        /// The statement is executed, too.
        analyze: bool,
        /// The explained statement's kind.
        inner: Box<Kind>,
    },
    /// A change of the schema.
    Ddl {
        /// The command's tag or its first words.
        command: &'static str,
        /// Existing tables whose definition or rows it may change.
        tables: Vec<TableId>,
        /// It may write a table anew: older snapshots must not read it any more (design 3.10).
        rewrites: bool,
        /// It creates a temporary object, which belongs to one session on one replica.
        temporary: bool,
        /// Its text asks for an unlogged relation; what is executed makes a logged one (see [`Class::rewrite`]), and the
        /// client is to be told.
        unlogged: bool,
    },
    /// TRUNCATE.
    Truncate {
        /// The tables, those reached by CASCADE and inheritance included.
        tables: Vec<TableId>,
    },
    /// LOCK TABLE.
    LockTable {
        /// PostgreSQL's number of the mode: 1 ACCESS SHARE ... 8 ACCESS EXCLUSIVE.
        mode: u8,
        /// NOWAIT.
        no_wait: bool,
    },
    /// Cannot run in a transaction, or has no place in the order: VACUUM, CREATE INDEX CONCURRENTLY ...
    Maintenance {
        /// The command's first words.
        command: &'static str,
        /// The tables that it names.
        tables: Vec<TableId>,
    },
    /// LISTEN channel.
    Listen(String),
    /// UNLISTEN channel, or * (None).
    Unlisten(Option<String>),
    /// NOTIFY channel, payload.
    Notify {
        /// The channel.
        channel: String,
        /// The payload, empty if none is written.
        payload: String,
    },
    /// SELECT setval(sequence, value): the scheduler's sequence is set.
    SetVal {
        /// The sequence's schema.
        schema: String,
        /// The sequence's name.
        name: String,
        /// The new value as an SQL expression, to be evaluated at home (it may contain a query).
        value: String,
        /// `is_called` as an SQL expression, if given; it is true otherwise.
        called: Option<String>,
        /// The clause of one table, all of whose rows both are made of: from FROM on.
        from: Option<String>,
    },
    /// SELECT of nothing but calls of advisory locks and `pg_notify`: carried out by whoever serves the session.
    SessionCalls(Vec<crate::session_calls::SessionCall>),
    /// SELECT of nothing but calls of `set_config`, maybe beside `current_setting`, which whoever serves the session must carry
    /// out in their order, like SET and SHOW.
    SetConfig {
        /// The calls.
        calls: Vec<crate::session_calls::SessionCall>,
        /// The rows for each of which the calls are made; None for once.
        rows: Option<crate::session_calls::CallRows>,
    },
    /// DO: a block of procedural code.
    Do,
    /// CALL of a procedure.
    Call,
    /// onecopy cannot serve it without risk; the reason is in `determinism` as well.
    Unsupported,
    /// The grammar refuses it. A server of another version might not; none may execute it unseen.
    SyntaxError {
        /// The grammar's message.
        message: String,
    },
    /// Nothing but white space and comments.
    Empty,
}

/// An argument of EXECUTE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExecuteArgument {
    /// NULL.
    Null,
    /// Text that the parameter's type reads.
    Text(String),
}

/// What a statement does or depends on beside the items of its access set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// It returns rows.
    pub returns_rows: bool,
    /// It reads rows of users' tables.
    pub reads: bool,
    /// It may change rows, sequences or other durable state of the database.
    pub writes: bool,
    /// It locks rows.
    pub locks_rows: bool,
    /// It reads `pg_catalog` or `information_schema`: run it on the reference replica, since OIDs differ.
    pub reads_catalogue: bool,
    /// It reads nothing but the catalogue: no user item.
    pub catalogue_only: bool,
    /// Its result depends on the time (`now()` and kin).
    pub reads_clock: bool,
    /// Its result depends on where rows lie: ctid, xmin, tableoid and other system columns.
    pub reads_physical: bool,
    /// Its result depends on the session or server: `pg_backend_pid()`, `inet_server_addr()`, settings.
    pub reads_session: bool,
    /// Its result changes from call to call: `random()`, `gen_random_uuid()`, `clock_timestamp()`.
    pub reads_random: bool,
    /// It calls a volatile function in SQL. At READ COMMITTED each of that function's queries takes a snapshot of its own.
    pub takes_snapshots: bool,
    /// It calls nextval, currval, lastval or setval.
    pub sequences: bool,
    /// It calls a function of the advisory locks.
    pub advisory_locks: bool,
    /// It calls pg_notify.
    pub notifies: bool,
    /// It changes a setting by set_config, other than as `sets_custom_locally` says. In the arguments of
    /// `Kind::SetConfig` nothing does.
    pub sets_config: bool,
    /// It sets customised settings (with a dot in their names) up to the end of the transaction.
    pub sets_custom_locally: bool,
    /// It calls pg_sleep and kin.
    pub sleeps: bool,
    /// It uses a snapshot or state of one server that others cannot import: pg_export_snapshot, cursors by name.
    pub pins_session: bool,
    /// It names temporary relations of the session.
    pub temporary_tables: bool,
    /// It names relations that the catalogue does not hold: an error, unless the snapshot is too old.
    pub unknown_tables: bool,
    /// Strings with a backslash: its meaning depends on `standard_conforming_strings`.
    pub backslash: bool,
}

/// How a statement's changes reach the other replicas.
#[derive(Clone, PartialEq, Debug)]
pub enum Determinism {
    /// It changes nothing that others hold.
    Read,
    /// Its text with frozen values may be executed again, in the same environment
    /// ([`crate::ENVIRONMENT_SETTINGS`]).
    Replay,
    /// The rows that it changes at home must be shipped.
    Capture(Box<CapturePlan>),
    /// The rows that it changes at home must be shipped, and each gets numbers of sequences, or other values, in the
    /// order in which they come: it takes several steps at home.
    Number(Box<NumberPlan>),
    /// None of these is safe: answer with SQLSTATE 0A000.
    Refuse(Refusal),
}

/// How rows are numbered whose number the text does not show.
#[derive(Clone, PartialEq, Debug)]
pub struct NumberPlan {
    /// How the rows are inserted at home, and shipped. The values of `capture.rewrite.frozen` that are drawn from
    /// sequences are the first ones of blocks: one number for each row.
    pub capture: CapturePlan,
    /// Which of the frozen values begin a block.
    pub blocks: Vec<Numbering>,
    /// Where the rows come from.
    pub source: Numbered,
}

/// A block of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbering {
    /// Index of the block's first number in the list of frozen values.
    pub frozen: usize,
    /// Distance between the numbers.
    pub increment: i64,
    /// Index of the captured column that takes the numbers as they are.
    pub column: Option<usize>,
}

/// Where numbered rows come from.
#[derive(Clone, PartialEq, Debug)]
pub enum Numbered {
    /// From the query of an INSERT.
    Query {
        /// Yields the number of its rows. To be rendered with literals, since it need not use all frozen values.
        count: Rewrite,
        /// It may yield more rows when it is run again: it draws by chance, or skips rows that others hold.
        unsteady: bool,
    },
    /// From a COPY.
    Copy {
        /// Creates the table into which the client's rows go first.
        create: String,
        /// The client's COPY into that table.
        copy: Rewrite,
        /// Drops that table.
        drop: String,
    },
}

/// A question on which it depends whether a statement is executed: what the rows say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guard {
    /// A query of one row with one column, which must be false.
    pub sql: String,
    /// What the client hears else.
    pub refusal: Refusal,
}

/// Why a statement is refused, and what to do instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The error message.
    pub reason: String,
    /// The error's hint.
    pub hint: String,
}

impl Refusal {
    pub(crate) fn new(reason: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal { reason: reason.into(), hint: hint.into() }
    }
}

/// The constants that an analysis looked at.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Pinned {
    /// Hashes of the texts of these constants.
    Some(Vec<(u32, u64)>),
    /// A hash of the texts of all.
    All(u64),
}

/// Constants and parameters that are looked at when their values are known.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Given {
    pub consts: Vec<u32>,
    pub params: Vec<u32>,
}

impl Given {
    pub(crate) fn is_empty(&self) -> bool {
        self.consts.is_empty() && self.params.is_empty()
    }

    /// Whether one says what is looked for. `binary` is what a value in binary form says.
    fn any<P: Params + ?Sized>(
        &self,
        sql: &str,
        layout: Layout<'_>,
        params: &P,
        says: impl Fn(&str) -> bool,
        binary: bool,
    ) -> bool {
        let in_const = |index: &u32| match layout.consts.get(*index as usize) {
            Some(constant) => match string_value(sql, *constant) {
                Some(text) => says(&text),
                // Text that is not read here may say anything.
                None => constant.kind.is_string(),
            },
            None => true,
        };
        let in_param = |number: &u32| match params.param(*number) {
            Some(param) => match (param.binary, param.bytes.map(std::str::from_utf8)) {
                (_, None) => false,
                (true, _) => binary,
                (false, Some(Ok(text))) => says(text),
                (false, Some(Err(_))) => true,
            },
            None => false,
        };
        self.consts.iter().any(in_const) || self.params.iter().any(in_param)
    }
}

impl Class {
    /// The items of one execution, each with its mode.
    ///
    /// `params` are those of the execution (none for a simple Query) and `frozen` the values of
    /// `rewrite.frozen`, in order, or empty while they are not known, which widens items.
    pub fn bind<P: Params + ?Sized>(
        &self,
        sql: &str,
        layout: Layout<'_>,
        params: &P,
        frozen: &[FrozenValue],
    ) -> AccessSet {
        self.access.bind(sql, layout, params, frozen)
    }

    /// If all that an execution does is to change values of one row, which it finds by the primary key: which. Rows are told apart by hashes.
    #[must_use]
    pub fn row_change(&self, access: &[Access]) -> Option<RowChange> {
        let Bulk::ByKey(table, _) = self.bulk else { return None };
        if self.kind != Kind::Update || !self.bulk.is_one_row(access) {
            return None;
        }
        let is_row = |access: &&Access| access.item.table == table && access.item.space == Space::Rows;
        let Access { item: row, mode, columns } = access.iter().find(is_row)?.clone();
        let key: ColumnSet = row.equals.iter().map(|(column, _)| *column).collect();
        let is_blind = key.contains(self.columns_read(table));
        // All columns stand for columns that are not known, and those that cannot be told apart for each other.
        let is_known = columns != ColumnSet::ALL && RowChange::tells(columns) && RowChange::tells(key);
        (mode == Mode::NoKeyExclusive && is_known).then_some(RowChange { row, columns, is_blind })
    }

    /// Whether the values of a table's unique keys that it names become free, and none is taken.
    pub(crate) fn only_frees_keys_of(&self, table: TableId) -> bool {
        self.kind == Kind::Delete && !self.rekeyed.contains(&table)
    }

    /// The columns that it reads of a table's rows, those of rows that it changes included.
    pub(crate) fn columns_read(&self, table: TableId) -> ColumnSet {
        let known = self.columns_read.iter().find(|(of, _)| *of == table);
        known.map_or(ColumnSet::ALL, |(_, columns)| *columns)
    }

    /// Of the items of one execution, those of tables of which only rows matter that its answer shows: see
    /// [`Class::shown_by_row`].
    #[must_use]
    pub fn shown_among(&self, access: &[Access]) -> Vec<Access> {
        let is_shown = |access: &&Access| {
            access.item.space == Space::Rows
                && access.item.equals.is_empty()
                && self.shown.iter().any(|shown| shown.table == access.item.table)
        };
        access.iter().filter(is_shown).cloned().collect()
    }

    /// Adds the items that a row of the answer shows: together they stand for those of [`Class::shown_among`]. `value` gives a
    /// column of the row by its place, from 0; types are known.
    ///
    /// # Errors
    /// If a value may be written in several ways, so that its item cannot be told.
    pub fn shown_by_row<'v>(
        &self,
        value: impl Fn(usize) -> ParamValue<'v>,
        items: &mut Vec<Access>,
    ) -> Result<(), NotCanonical> {
        shown_by_row(&self.shown, value, items)
    }

    /// What an execution with these items locks beside them if its database transaction has changed the same rows before: a
    /// server then checks foreign keys again whose columns keep their values.
    pub fn rechecks<P: Params + ?Sized>(
        &self,
        access: &[Access],
        sql: &str,
        layout: Layout<'_>,
        params: &P,
        frozen: &[FrozenValue],
    ) -> Option<Box<Rechecks>> {
        let RecheckTemplate { tables, parents } = self.rechecks.as_deref()?;
        let changes = |access: &&Access| {
            access.mode.writes()
                && access.item.space == Space::Rows
                && (access.item.table == TableId::ALL || tables.contains(&access.item.table))
        };
        let changed = access.iter().filter(changes).cloned().collect::<Vec<_>>().into();
        Some(Box::new(Rechecks { changed, parents: parents.bind(sql, layout, params, frozen) }))
    }

    /// How the changes of one execution reach the other replicas: `determinism`, unless a constant or parameter
    /// is a word such as `now` where a date or time may be read, a number where the name of an object is, or a time without
    /// its offset where one with time zone is.
    pub fn determinism_of<P: Params + ?Sized>(
        &self,
        sql: &str,
        layout: Layout<'_>,
        params: &P,
    ) -> &Determinism {
        match &self.fallback {
            Some(fallback) if self.is_read_differently(sql, layout, params) => fallback,
            _ => &self.determinism,
        }
    }

    /// Whether every execution, whatever its parameters, does nothing but read rows as they are at one moment: nothing is
    /// frozen or asked before it, and nobody else does it again.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        let Effects { returns_rows, reads, .. } = self.effects;
        self.kind == Kind::Select
            && self.effects == Effects { returns_rows, reads, ..Effects::default() }
            && self.determinism == Determinism::Read
            && self.fallback.is_none()
            && self.rewrite.is_empty()
            && self.rewrite.frozen.is_empty()
            && self.guard.is_none()
            && self.restarts.is_empty()
    }

    /// Whether what was known of tables and sequences may not hold after an execution.
    #[must_use]
    pub fn changes_definitions(&self) -> bool {
        matches!(self.kind, Kind::Ddl { .. })
            || !self.restarts.is_empty()
            || self.kind == Kind::Select && self.effects.sequences && self.effects.writes
    }

    /// Whether executions of the class may be those of [`Determinism::Number`].
    #[must_use]
    pub fn numbers_rows(&self) -> bool {
        let numbers = |d: &Determinism| matches!(d, Determinism::Number(_));
        numbers(&self.determinism) || self.fallback.as_deref().is_some_and(numbers)
    }

    /// Whether the class holds for a statement of its text: the constants that the analysis read are the same.
    #[must_use]
    pub fn holds_for(&self, sql: &str, normalised: &Normalised<'_>) -> bool {
        if *self.key != *normalised.text {
            return false;
        }
        match &self.pinned {
            Pinned::Some(pinned) => pinned.iter().all(|(index, hash)| {
                let constant = normalised.layout.consts.get(*index as usize);
                constant.is_some_and(|c| hash_bytes(c.text(sql).as_bytes()) == *hash)
            }),
            Pinned::All(hash) => all_constants(sql, normalised.layout) == *hash,
        }
    }

    /// Whether a value that was given is read differently by each server.
    fn is_read_differently<P: Params + ?Sized>(&self, sql: &str, layout: Layout<'_>, params: &P) -> bool {
        self.clock_words.any(sql, layout, params, has_clock_word, false)
            || self.oid_words.any(sql, layout, params, has_number, true)
            || self.zoned_words.any(sql, layout, params, lacks_offset, false)
    }
}

pub(crate) fn all_constants(sql: &str, layout: Layout<'_>) -> u64 {
    layout.consts.iter().fold(0, |hash, c| {
        (hash ^ hash_bytes(c.text(sql).as_bytes())).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

impl Kind {
    /// Whether it changes definitions in the server's sense, and nothing that a [`crate::Catalogue`] holds: owners,
    /// privileges, comments. What was classified before it means the same after it.
    #[must_use]
    pub fn keeps_catalogue(&self) -> bool {
        const KEEPING: &[&str] = &[
            "ALTER TABLE OWNER TO",
            "ALTER ... OWNER TO",
            "GRANT",
            "GRANT ROLE",
            "ALTER DEFAULT PRIVILEGES",
            "COMMENT",
            "SECURITY LABEL",
            "CREATE STATISTICS",
            "ALTER STATISTICS",
        ];
        matches!(self, Kind::Ddl { command, .. } if KEEPING.contains(command))
    }

    /// Whether it is a query or changes rows: what may run inside EXPLAIN, PREPARE and DECLARE.
    #[must_use]
    pub fn is_data(&self) -> bool {
        matches!(
            self,
            Kind::Select
                | Kind::SelectLocking { .. }
                | Kind::Insert
                | Kind::Update
                | Kind::Delete
                | Kind::Merge
                | Kind::WriteCte
        )
    }
}
