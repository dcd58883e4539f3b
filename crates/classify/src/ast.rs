//! The syntax tree that the analyses read: what matters of a statement, in types of our own, so that the
//! grammar behind it can be replaced. Offsets (`at`) count bytes from the start of the parsed string.
//!
//! Whatever the grammar knows and this tree does not is `Unknown`, which every analysis must take for anything.

use std::collections::BTreeSet;

/// A possibly qualified name, outermost part first (`schema`, `table`).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Name {
    pub parts: Vec<String>,
}

impl Name {
    pub(crate) fn new(parts: Vec<String>) -> Name {
        Name { parts }
    }

    /// The last part.
    pub(crate) fn last(&self) -> &str {
        self.parts.last().map_or("", String::as_str)
    }

    /// The schema, if one is written.
    pub(crate) fn schema(&self) -> Option<&str> {
        let n = self.parts.len();
        (n >= 2).then(|| self.parts[n - 2].as_str())
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.parts.join("."))
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Statement {
    Query(Box<Query>),
    Insert(Box<Insert>),
    Update(Box<Update>),
    Delete(Box<Delete>),
    Merge(Box<Merge>),
    Utility(Utility),
}

/// SELECT, VALUES, TABLE and set operations, with everything that may surround them.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Query {
    pub with: Option<With>,
    pub body: Body,
    pub order_by: Vec<Expr>,
    pub limit: Option<Expr>,
    pub offset: Option<Expr>,
    pub with_ties: bool,
    pub locking: Vec<Locking>,
    /// SELECT INTO.
    pub into: Option<IntoTable>,
}

/// The table that SELECT INTO makes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct IntoTable {
    pub name: Name,
    pub temporary: bool,
    pub unlogged: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Body {
    Select(Box<Select>),
    Values(Vec<Vec<Expr>>),
    /// UNION, INTERSECT and EXCEPT in any mixture; a chain of them is one list.
    Set {
        arms: Vec<Query>,
        union_all: bool,
    },
}

impl Default for Body {
    fn default() -> Body {
        Body::Values(Vec::new())
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Select {
    pub distinct: Distinct,
    pub targets: Vec<Target>,
    pub from: Vec<From>,
    pub filter: Option<Expr>,
    pub group_by: Vec<Expr>,
    /// ROLLUP, CUBE or GROUPING SETS.
    pub grouping_sets: bool,
    pub having: Option<Expr>,
    pub windows: Vec<Window>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) enum Distinct {
    #[default]
    None,
    All,
    On(Vec<Expr>),
}

/// How a statement's text names columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mentions {
    /// Each name with dots, from the left; a `*` is left out.
    pub paths: BTreeSet<(Vec<String>, Star)>,
    /// A join is NATURAL.
    pub natural: bool,
}

/// Whether a `*` ends a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Star {
    Yes,
    No,
}

/// A result column, an assignment, or an element of a column list.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Target {
    pub name: Option<String>,
    /// The assignment is to a field or element of the column.
    pub partial: bool,
    /// What is assigned; if elements are not named by mere literals, a form of that and of what names them.
    pub value: Expr,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum From {
    Table {
        name: Name,
        only: bool,
        alias: Option<Alias>,
    },
    Query {
        query: Box<Statement>,
        lateral: bool,
        alias: Option<Alias>,
    },
    Function {
        calls: Vec<Expr>,
        alias: Option<Alias>,
        ordinality: bool,
    },
    Join {
        kind: JoinKind,
        left: Box<From>,
        right: Box<From>,
        on: Option<Expr>,
        using: Vec<String>,
        natural: bool,
        alias: Option<Alias>,
    },
    Sample {
        table: Box<From>,
        /// The seed behind REPEATABLE is the last.
        arguments: Vec<Expr>,
    },
    Other {
        parts: Vec<Expr>,
        /// The types of its columns; None if they are not known.
        types: Option<Vec<Name>>,
        alias: Option<Alias>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JoinKind {
    Inner,
    Left,
    Right,
    Full,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Alias {
    pub name: String,
    pub columns: Vec<String>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct With {
    pub recursive: bool,
    pub tables: Vec<CommonTable>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct CommonTable {
    pub name: String,
    pub columns: Vec<String>,
    pub statement: Statement,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Locking {
    pub strength: LockStrength,
    pub wait: LockWait,
    /// Tables or aliases named by OF; empty means all of the query.
    pub of: Vec<String>,
}

/// The row lock that a SELECT asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum LockStrength {
    /// FOR KEY SHARE.
    KeyShare,
    /// FOR SHARE.
    Share,
    /// FOR NO KEY UPDATE.
    NoKeyUpdate,
    /// FOR UPDATE.
    Update,
}

/// What a SELECT does about rows that others have locked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum LockWait {
    /// It waits.
    Block,
    /// NOWAIT: it fails.
    NoWait,
    /// SKIP LOCKED: it leaves them out.
    SkipLocked,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Window {
    /// Its frame counts rows, however equal they are.
    pub rows: bool,
    pub partition_by: Vec<Expr>,
    pub order_by: Vec<Expr>,
    pub frame: Vec<Expr>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Insert {
    pub with: Option<With>,
    pub table: Name,
    pub alias: Option<String>,
    pub columns: Vec<Target>,
    /// None for DEFAULT VALUES.
    pub source: Option<Box<Query>>,
    pub overriding: Overriding,
    pub on_conflict: Option<OnConflict>,
    pub returning: Option<Vec<Target>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Overriding {
    None,
    User,
    System,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct OnConflict {
    /// Columns of the inferred index; None when expressions, a predicate or no target at all are given.
    pub columns: Option<Vec<String>>,
    pub constraint: Option<String>,
    pub infer_parts: Vec<Expr>,
    /// None for DO NOTHING.
    pub update: Option<(Vec<Target>, Option<Expr>)>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Update {
    pub with: Option<With>,
    pub table: Name,
    pub only: bool,
    pub alias: Option<String>,
    pub set: Vec<Target>,
    pub from: Vec<From>,
    pub filter: Option<Expr>,
    pub returning: Option<Vec<Target>>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Delete {
    pub with: Option<With>,
    pub table: Name,
    pub only: bool,
    pub alias: Option<String>,
    pub using: Vec<From>,
    pub filter: Option<Expr>,
    pub returning: Option<Vec<Target>>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Merge {
    pub with: Option<With>,
    pub table: Name,
    pub only: bool,
    pub alias: Option<String>,
    pub source: From,
    pub on: Expr,
    pub arms: Vec<MergeArm>,
    pub returning: Option<Vec<Target>>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MergeArm {
    pub condition: Option<Expr>,
    pub matched: MergeMatch,
    pub action: MergeAction,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MergeMatch {
    Matched,
    NotMatchedBySource,
    NotMatchedByTarget,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum MergeAction {
    Nothing,
    Delete,
    Update(Vec<Target>),
    Insert { columns: Vec<Target>, values: Vec<Expr>, overriding: Overriding },
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Expr {
    /// `a`, `t.a`, `s.t.a`, and with `star` `t.*` or `*`.
    Column {
        path: Vec<String>,
        star: bool,
        at: u32,
    },
    Literal {
        value: Literal,
        at: u32,
    },
    Param {
        number: u32,
        at: u32,
    },
    Call(Box<Call>),
    /// A binary or unary operator.
    Operator {
        name: Name,
        left: Option<Box<Expr>>,
        right: Option<Box<Expr>>,
    },
    /// `a + b || c`: operands with the operators between them. Keeps long chains from nesting deeply.
    Chain {
        operators: Vec<Name>,
        operands: Vec<Expr>,
    },
    /// `x op ANY (array)` or `x op ALL (array)`.
    OfArray {
        name: Name,
        all: bool,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    /// `x IN (a, b)` (`negated`: NOT IN).
    In {
        left: Box<Expr>,
        list: Vec<Expr>,
        negated: bool,
    },
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    Cast {
        value: Box<Expr>,
        to: TypeRef,
    },
    Subquery {
        kind: SubqueryKind,
        test: Option<Box<Expr>>,
        operator: Option<Name>,
        query: Box<Query>,
    },
    /// CURRENT_TIMESTAMP and kin; `precision` is None when none is written.
    Clock {
        kind: ClockKind,
        precision: Option<i32>,
        at: u32,
    },
    /// CURRENT_USER and kin.
    Session(SessionValue),
    Row(Vec<Expr>),
    Array(Vec<Expr>),
    Collate {
        value: Box<Expr>,
    },
    /// DEFAULT in VALUES or SET.
    Default {
        at: u32,
    },
    CurrentOf,
    /// The n-th (from 1) column of `(a, b) = source`.
    MultiAssign {
        source: Box<Expr>,
        column: u32,
        of: u32,
    },
    /// A built-in form without effects of its own: CASE, COALESCE, tests, subscripts, BETWEEN ... GREATEST and LEAST are a form
    /// of one form.
    Form(Vec<Expr>),
    /// `.name` behind the parts of a form before it: a field of their value, or a function of it.
    Selection {
        name: String,
    },
    /// Something that this tree does not know.
    Unknown,
}

/// The parts of an [`Expr::Form`], those of GREATEST and LEAST among them.
pub(crate) fn form_parts(parts: &[Expr]) -> &[Expr] {
    match parts {
        [Expr::Form(of_one)] => of_one,
        _ => parts,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SubqueryKind {
    Exists,
    Any,
    All,
    Scalar,
    Array,
    Row,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionValue {
    /// CURRENT_USER, CURRENT_ROLE, USER: the role, which records carry.
    Role,
    /// CURRENT_SCHEMA: the search_path, which records carry.
    Schema,
    /// SESSION_USER, CURRENT_CATALOG.
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum ClockKind {
    Date,
    Time,
    Timestamp,
    LocalTime,
    LocalTimestamp,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    /// Digits that fit no int4, fractions, exponents; as written by the grammar.
    Number(String),
    Text(String),
    Bits(String),
}

/// A function call.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Call {
    pub name: Name,
    pub arguments: Vec<Expr>,
    /// Argument names are used, or VARIADIC.
    pub named: bool,
    pub star: bool,
    pub distinct: bool,
    pub order_by: Vec<Expr>,
    pub within_group: bool,
    pub filter: Option<Expr>,
    pub over: Option<Window>,
    /// In FROM: the types of the columns that it is said to yield.
    pub record: Vec<Name>,
    pub at: u32,
}

/// A type's name as written.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TypeRef {
    pub name: Name,
    pub modifiers: bool,
    pub array: bool,
    pub set_of: bool,
}

/// Statements other than the five that read and write rows.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Utility {
    Transaction(Transaction),
    Set {
        name: String,
        values: Vec<SetValue>,
        local: bool,
        is_default: bool,
    },
    SetTransaction {
        modes: Modes,
        session: bool,
        snapshot: Option<String>,
    },
    Reset {
        name: Option<String>,
    },
    Show {
        name: String,
    },
    SetConstraints {
        names: Vec<Name>,
        deferred: bool,
    },
    Discard(Discard),
    Prepare {
        name: String,
        statement: Box<Statement>,
    },
    Execute {
        name: String,
        arguments: Vec<Expr>,
    },
    Deallocate {
        name: Option<String>,
    },
    Declare {
        name: String,
        hold: bool,
        scroll: bool,
        query: Box<Statement>,
    },
    Fetch {
        name: String,
        is_move: bool,
    },
    Close {
        name: Option<String>,
    },
    Explain {
        analyze: bool,
        statement: Box<Statement>,
    },
    Copy(Box<Copy>),
    CreateTable(CreateTable),
    CreateTableAs {
        name: Name,
        temporary: bool,
        query: Box<Statement>,
        materialised: bool,
        if_not_exists: bool,
    },
    CreateIndex {
        table: Name,
        concurrently: bool,
        parts: Vec<Expr>,
    },
    CreateView {
        name: Name,
        temporary: bool,
        query: Box<Statement>,
    },
    AlterTable {
        table: Name,
        kind: RelationKind,
        commands: Vec<AlterCommand>,
    },
    Drop {
        kind: RelationKind,
        names: Vec<Name>,
        cascade: bool,
        concurrently: bool,
        tag: &'static str,
    },
    Truncate {
        tables: Vec<Name>,
        cascade: bool,
        restart: bool,
    },
    Lock {
        tables: Vec<Name>,
        mode: i32,
        no_wait: bool,
    },
    /// RENAME or SET SCHEMA of a relation or of something that belongs to it.
    Rename {
        tag: &'static str,
        table: Name,
        /// The relation itself goes to this schema.
        to_schema: Option<String>,
        /// The relation itself gets this name.
        to_name: Option<String>,
    },
    RefreshView {
        name: Name,
        concurrently: bool,
    },
    CreateSequence {
        temporary: bool,
    },
    AlterSequence {
        name: Name,
    },
    CreateTrigger {
        table: Name,
        /// WHEN.
        condition: Option<Expr>,
    },
    /// CREATE OR REPLACE FUNCTION.
    ReplaceFunction {
        name: Name,
    },
    /// A definition that keeps what settings are in the session: SET name FROM CURRENT.
    KeepsSettings {
        settings: Vec<String>,
        definition: Box<Utility>,
    },
    /// DDL that touches no table's rows or columns but the catalogue.
    OtherDdl {
        tag: &'static str,
        tables: Vec<Name>,
    },
    Maintenance {
        tag: &'static str,
        tables: Vec<Name>,
    },
    Listen {
        channel: String,
    },
    Unlisten {
        channel: Option<String>,
    },
    Notify {
        channel: String,
        payload: String,
    },
    Do,
    Call(Box<Call>),
    Load,
    Checkpoint,
    /// A statement of a kind that this tree does not know.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RelationKind {
    Table,
    Index,
    View,
    MaterialisedView,
    Sequence,
    Other,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Transaction {
    Begin { modes: Modes },
    Commit { chain: bool },
    Rollback { chain: bool },
    Savepoint(String),
    Release(String),
    RollbackTo(String),
    PrepareTwoPhase,
    CommitTwoPhase,
    RollbackTwoPhase,
}

/// Transaction modes, None where not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Modes {
    /// ISOLATION LEVEL.
    pub isolation: Option<Isolation>,
    /// READ ONLY (true) or READ WRITE (false).
    pub read_only: Option<bool>,
    /// DEFERRABLE (true) or NOT DEFERRABLE (false).
    pub deferrable: Option<bool>,
}

/// The isolation levels of SQL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Isolation {
    /// READ UNCOMMITTED.
    ReadUncommitted,
    /// READ COMMITTED.
    ReadCommitted,
    /// REPEATABLE READ.
    RepeatableRead,
    /// SERIALIZABLE.
    Serializable,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum SetValue {
    Text(String),
    Other,
}

/// What DISCARD forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Discard {
    /// ALL.
    All,
    /// PLANS.
    Plans,
    /// SEQUENCES.
    Sequences,
    /// TEMP.
    Temp,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Copy {
    pub table: Option<Name>,
    pub columns: Vec<String>,
    pub query: Option<Box<Statement>>,
    pub from: bool,
    /// The server's own file or program instead of the client's connection.
    pub server_side: bool,
    pub freeze: bool,
    pub filter: Option<Expr>,
    /// FORMAT, lower case.
    pub format: Option<String>,
    /// DEFAULT: a text that stands for a column's default.
    pub default_marker: bool,
    pub delimiter: Option<String>,
    pub quote: Option<String>,
    pub escape: Option<String>,
    pub encoding: Option<String>,
    /// The first line holds no row.
    pub header: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct CreateTable {
    pub name: Name,
    pub temporary: bool,
    pub if_not_exists: bool,
    /// Parents, partitioned table, tables of LIKE and REFERENCES.
    pub others: Vec<Name>,
    pub expressions: Vec<Expr>,
    /// Its own columns with their types.
    pub columns: Vec<(String, TypeRef)>,
    /// How its rows are parted, if they are.
    pub parted: Option<Parted>,
}

/// PARTITION BY.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Parted {
    pub by: PartedBy,
    pub key: Vec<Expr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartedBy {
    List,
    Range,
    Hash,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct AlterCommand {
    /// The column whose type is changed.
    pub converted_column: Option<String>,
    /// What is converted instead of that column (USING), or is the default of one that is added.
    pub value: Option<Expr>,
    /// A column that is added, with a default that is a call or a clock expression and nothing else.
    pub called_default: Option<(String, Expr)>,
    /// The type of a column that is added without a default of its own.
    pub added_type: Option<Name>,
    /// The type to which it converts the values of rows that are there.
    pub converted_to: Option<TypeRef>,
    /// CHECKs that it adds and that rows which are there must pass.
    pub checks: Vec<Expr>,
    pub effect: AlterEffect,
    pub tables: Vec<Name>,
    /// It may make, drop or check foreign keys, those of other tables to this one included.
    pub changes_ties: bool,
    /// CASCADE: what depends on it goes as well.
    pub cascade: bool,
}

/// What an ALTER TABLE command may do to rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum AlterEffect {
    /// It changes who owns it, and nothing that classification knows.
    Owner,
    CatalogueOnly,
    /// It reads all rows (validates), without changing any.
    Scans,
    /// It may write the table anew, or change which rows belong to it.
    Rewrites,
    /// It evaluates a default that is not immutable for every row.
    Evaluates,
}

/// A column's name out of how it is written, and the table in front of it, if one is.
pub(crate) fn name_and_qualifier(path: &[String]) -> Option<(&String, Option<&String>)> {
    match path {
        [name] => Some((name, None)),
        [.., qualifier, name] => Some((name, Some(qualifier))),
        [] => None,
    }
}
