//! The catalogue snapshot: what the analyses must know about a database beyond a statement's text.
//!
//! It comes in as one JSON document (see [`crate::catalogue_queries`]) and holds no OIDs of user objects, since
//! those differ between replicas. Everything missing from it is taken for unknown, hence for anything.

use crate::ast::Name;
use crate::lexer::hash_bytes;
use crate::moment_text::holds_moments;
use onecopy_core::{ColumnId, KeyId, TableId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Everything that classification reads from `pg_catalog`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Catalogue {
    /// `server_version_num`, for example 150004.
    pub server_version: u32,
    /// The database's name.
    pub database: String,
    /// Names of all schemas, system schemas included.
    #[serde(default)]
    pub schemas: Vec<String>,
    /// Some constraint, or some trigger that is called one, may be checked later than its statement.
    #[serde(default)]
    pub deferrable: bool,
    /// Ordinary, partitioned and foreign tables, and partitions.
    #[serde(default)]
    pub tables: Vec<Table>,
    /// Views and materialised views.
    #[serde(default)]
    pub views: Vec<View>,
    /// Sequences.
    #[serde(default)]
    pub sequences: Vec<Sequence>,
    /// Functions, procedures and aggregates outside `pg_catalog`.
    #[serde(default)]
    pub functions: Vec<Function>,
    /// Functions of `pg_catalog`, overloads of one number of arguments together.
    #[serde(default)]
    pub builtins: Vec<Builtin>,
    /// Operators outside `pg_catalog`.
    #[serde(default)]
    pub operators: Vec<Operator>,
    /// Casts of users whose functions are not immutable.
    #[serde(default)]
    pub casts: Vec<Cast>,
    /// Checks of domains that call functions whose result may vary.
    #[serde(default)]
    pub domain_checks: Vec<DomainCheck>,
    /// Enumerations, domains and composite types outside `pg_catalog`.
    #[serde(default)]
    pub types: Vec<UserType>,
    /// Extensions with their versions.
    #[serde(default)]
    pub extensions: Vec<Extension>,
    /// Settings that sessions begin with, weakest first: of the server's file, the database and roles.
    #[serde(default)]
    pub settings: Vec<DefaultSetting>,
    /// Enabled event triggers whose function is not immutable, but for those that fire when somebody connects.
    #[serde(default)]
    pub event_triggers: Vec<EventTrigger>,
    /// The functions of all enabled event triggers but those, as (schema, name).
    #[serde(default)]
    pub event_functions: Vec<(String, String)>,
    /// See [`Catalogue::capturing`].
    #[serde(default, skip_serializing_if = "Capturing::is_never")]
    pub captures: Capturing,
    #[serde(skip)]
    index: Index,
}

/// Why no change of rows is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum Capturing {
    /// They are replayed, as far as they can be.
    #[default]
    Never,
    /// The protocol ships rows.
    ByProtocol,
    /// Servers are of different major versions, or order text differently: functions and operators of the same name may have other
    /// results on another one, and definitions another meaning.
    BetweenVersions,
}

impl Capturing {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_never(&self) -> bool {
        *self == Capturing::Never
    }
}

/// A setting with which sessions begin (ALTER DATABASE ... SET, ALTER ROLE ... SET, postgresql.conf).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DefaultSetting {
    /// Whose sessions; None for everybody's.
    pub role: Option<String>,
    /// The setting's name.
    pub name: String,
    /// Its value, as `set_config` takes it.
    pub value: String,
}

/// A table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Table {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// `pg_class.relkind`: `r`, `p` (partitioned) or `f` (foreign).
    pub kind: char,
    /// `pg_class.relpersistence`: `p`, `u` (unlogged) or `t` (temporary).
    pub persistence: char,
    /// Columns in order, without dropped ones.
    pub columns: Vec<Column>,
    /// Unique indexes, the primary key's first.
    #[serde(default)]
    pub unique: Vec<UniqueKey>,
    /// Columns of other indexes, one list an index; empty lists stand for expressions.
    #[serde(default)]
    pub indexes: Vec<Vec<u16>>,
    /// Foreign keys that this table holds.
    #[serde(default)]
    pub foreign_keys: Vec<ForeignKey>,
    /// Whether it has an exclusion constraint.
    #[serde(default)]
    pub exclusion: bool,
    /// Texts of check constraints, and of domains' constraints of its columns.
    #[serde(default)]
    pub checks: Vec<String>,
    /// Triggers of users.
    #[serde(default)]
    pub triggers: Vec<Trigger>,
    /// Whether it has rewrite rules.
    #[serde(default)]
    pub rules: bool,
    /// Row-level security is enabled.
    #[serde(default)]
    pub row_security: bool,
    /// Texts of its policies' conditions.
    #[serde(default)]
    pub policies: Vec<String>,
    /// Direct parents by inheritance or partitioning, as (schema, name).
    #[serde(default)]
    pub parents: Vec<(String, String)>,
    /// It is a partition of its (only) parent.
    #[serde(default)]
    pub is_partition: bool,
    /// Into which of its partitions a row belongs is found by the number of an object or label.
    #[serde(default)]
    pub partitioned_by_oids: bool,
}

/// What values show of something else than they hold: an OID, which is another number on each server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Oids {
    /// Names of objects (`regclass` and kin), maybe labels too. Their order, their hash and what they convert to differ.
    #[serde(rename = "n")]
    Names,
    /// Labels of enumerations. Their hash differs, and their order does not.
    #[serde(rename = "l")]
    Labels,
}

/// A column.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Column {
    /// `attnum`, from 1.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// Its type as SQL writes it, with modifiers, for example `character varying(10)`.
    pub type_name: String,
    /// The OID of its type, domains resolved to what they are over; 0 if it is a user's type.
    #[serde(default)]
    pub type_oid: u32,
    /// `atttypmod`, or the domain's; -1 for none.
    #[serde(default = "no_modifier")]
    pub modifier: i32,
    /// `pg_type.typtype` after domains are resolved: `b`, `e` (enumeration), `c`, `r`, `m`.
    #[serde(default = "base_type")]
    pub type_kind: char,
    /// The category of the type (`pg_type.typcategory`).
    #[serde(default)]
    pub category: Option<char>,
    /// The column's type is a domain.
    #[serde(default)]
    pub domain: bool,
    /// Its values are, or contain, OIDs that are shown as something else.
    #[serde(default)]
    pub oids: Option<Oids>,
    /// NOT NULL.
    #[serde(default)]
    pub not_null: bool,
    /// The default expression's text, the domain's if the column has none.
    #[serde(default)]
    pub default: Option<String>,
    /// `attidentity`: `a` (always) or `d` (by default).
    #[serde(default)]
    pub identity: Option<char>,
    /// `attgenerated`: `s` (stored) or `v` (virtual); `default` then holds the expression.
    #[serde(default)]
    pub generated: Option<char>,
    /// Its collation, if any, is deterministic.
    #[serde(default = "yes")]
    pub deterministic: bool,
    /// The sequence that the column owns, as (schema, name).
    #[serde(default)]
    pub sequence: Option<(String, String)>,
}

/// A unique index.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UniqueKey {
    /// The index's name.
    pub name: String,
    /// Column numbers in key order; 0 stands for an expression.
    pub columns: Vec<u16>,
    /// It is the primary key.
    #[serde(default)]
    pub primary: bool,
    /// All columns that it depends on, those of its expressions and predicate included.
    #[serde(default)]
    pub depends: Vec<u16>,
    /// It has a predicate.
    #[serde(default)]
    pub partial: bool,
    /// NULLS NOT DISTINCT.
    #[serde(default)]
    pub nulls_equal: bool,
    /// It is valid and checked at once (not deferrable).
    #[serde(default = "yes")]
    pub immediate: bool,
}

/// A foreign key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ForeignKey {
    /// The constraint's name.
    pub name: String,
    /// Numbers of the referencing columns.
    pub columns: Vec<u16>,
    /// Schema of the referenced table.
    pub parent_schema: String,
    /// Name of the referenced table.
    pub parent: String,
    /// Numbers of the referenced columns.
    pub parent_columns: Vec<u16>,
    /// `confdeltype`: `a` no action, `r` restrict, `c` cascade, `n` set null, `d` set default.
    pub on_delete: char,
    /// `confupdtype`, likewise.
    pub on_update: char,
    /// It may be deferred.
    #[serde(default)]
    pub deferrable: bool,
    /// It holds for all rows, those from before it was there included.
    #[serde(default = "yes")]
    pub validated: bool,
}

/// A trigger of a user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Trigger {
    /// Its name.
    pub name: String,
    /// Schema of its function.
    pub function_schema: String,
    /// Name of its function.
    pub function: String,
    /// `tgenabled`: `O`, `A`, `R`; disabled ones may be left out.
    pub enabled: char,
    /// It fires on INSERT.
    pub on_insert: bool,
    /// It fires on UPDATE.
    pub on_update: bool,
    /// It fires on DELETE.
    pub on_delete: bool,
    /// It fires on TRUNCATE.
    #[serde(default)]
    pub on_truncate: bool,
    /// It fires for each row.
    #[serde(default = "yes")]
    pub row: bool,
    /// It fires before the change, or instead of it.
    #[serde(default)]
    pub before: bool,
    /// The WHEN condition, as `pg_get_triggerdef` shows the trigger, if it has one.
    #[serde(default)]
    pub condition: Option<String>,
}

/// A view.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct View {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Names of its columns in order.
    pub columns: Vec<String>,
    /// Its query, as `pg_get_viewdef` shows it.
    pub definition: String,
    /// A materialised view holds rows of its own.
    #[serde(default)]
    pub materialised: bool,
    /// Its rows contain OIDs that are shown as something else.
    #[serde(default)]
    pub oids: Option<Oids>,
    /// It has INSTEAD OF triggers or rules beside its query.
    #[serde(default)]
    pub rules: bool,
}

/// A sequence.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sequence {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// The type of its values as SQL writes it.
    #[serde(default)]
    pub type_name: String,
    /// START.
    #[serde(default)]
    pub start: i64,
    /// INCREMENT.
    #[serde(default)]
    pub increment: i64,
    /// MINVALUE.
    #[serde(default)]
    pub min: i64,
    /// MAXVALUE.
    #[serde(default)]
    pub max: i64,
    /// CACHE.
    #[serde(default)]
    pub cache: i64,
    /// CYCLE.
    #[serde(default)]
    pub cycle: bool,
    /// The column that owns it, as (schema, table, column).
    #[serde(default)]
    pub owner: Option<(String, String, String)>,
}

/// How far a function's result may vary (`pg_proc.provolatile`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, Hash)]
pub enum Volatility {
    /// It depends on its arguments only.
    #[serde(rename = "i")]
    Immutable,
    /// It depends on the settings, the time of the transaction, or the database's state, too.
    #[serde(rename = "s")]
    Stable,
    /// It may change at any time, or write.
    #[serde(rename = "v")]
    Volatile,
}

/// A function outside `pg_catalog`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Function {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// `prokind`: `f`, `p` (procedure), `a` (aggregate), `w` (window).
    pub kind: char,
    /// Number of input arguments.
    pub arguments: u16,
    /// Number of arguments that have defaults.
    #[serde(default)]
    pub defaults: u16,
    /// The last argument is VARIADIC.
    #[serde(default)]
    pub variadic: bool,
    /// It may yield several rows.
    #[serde(default = "yes")]
    pub set: bool,
    /// Names of its input arguments, where given.
    #[serde(default)]
    pub argument_names: Vec<String>,
    /// Its volatility.
    pub volatility: Volatility,
    /// The language, for example `sql` or `plpgsql`.
    pub language: String,
    /// Its body (`prosrc`, or the text of a standard SQL body).
    #[serde(default)]
    pub body: String,
    /// Settings attached to it (`proconfig`), as `name=value`.
    #[serde(default)]
    pub settings: Vec<String>,
    /// It belongs to an extension.
    #[serde(default)]
    pub extension: Option<String>,
    /// Of an aggregate: the functions of which it is made, as (schema, name), as far as they are not immutable, nor in C.
    #[serde(default)]
    pub made_of: Vec<(String, String)>,
    /// The defaults of its last arguments, as expressions with commas between them.
    #[serde(default)]
    pub default_values: Option<String>,
    /// What its arguments and results hold. Configurations and dictionaries of text search count as labels here, and so do
    /// arguments of any type: what the function makes of them tells.
    #[serde(default)]
    pub oids: Option<Oids>,
}

/// Functions of `pg_catalog` that share name and number of arguments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Builtin {
    /// Their name.
    pub name: String,
    /// Least and greatest number of arguments accepted; a greatest of 255 stands for any.
    pub arguments: (u8, u8),
    /// The greatest volatility among them.
    pub volatility: Volatility,
    /// `f`, `a` or `w` as in [`Function::kind`].
    pub kind: char,
}

/// An operator outside `pg_catalog`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operator {
    /// Its schema.
    pub schema: String,
    /// Its symbol.
    pub name: String,
    /// The volatility of its function.
    pub volatility: Volatility,
    /// It accepts two operands of types of `pg_catalog`, so it may stand where a built-in operator would.
    #[serde(default)]
    pub of_builtin_types: bool,
}

/// A cast of a user whose result may vary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cast {
    /// What it converts: the type, and the domains over it.
    pub source: CastSide,
    /// What it yields: the type, and what is made of it (domains, arrays, composite types).
    pub target: CastSide,
    /// Where it takes place without being asked for.
    pub context: CastContext,
    /// Its function, as (schema, name); None for a conversion by the types' own input and output functions.
    #[serde(default)]
    pub function: Option<(String, String)>,
    /// Number of the function's arguments.
    #[serde(default)]
    pub arguments: u16,
    /// How far its result may vary.
    pub volatility: Volatility,
    /// Functions of users beside which it may take place: they yield or take its source, or take its target, as (schema,
    /// name).
    #[serde(default)]
    pub functions: Vec<(String, String)>,
    /// Names of operators beside which it may take place: they yield its source, or take its target.
    #[serde(default)]
    pub operators: Vec<String>,
}

/// A trigger that runs code when definitions change, on each server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EventTrigger {
    /// Its name.
    pub name: String,
    /// The tags of the commands at which it fires; empty for all.
    #[serde(default)]
    pub tags: Vec<String>,
    /// What it runs, if that is written in PL/pgSQL.
    #[serde(default)]
    pub body: Option<String>,
}

/// A check of a domain that a value must pass which becomes one of the domain's, if it may not be immutable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DomainCheck {
    /// Its text.
    pub check: String,
    /// The domain, then what is made of it (domains over it, arrays, composite types).
    pub types: Vec<CastType>,
    /// Functions of users that take or yield the domain, as (schema, name).
    #[serde(default)]
    pub functions: Vec<(String, String)>,
}

/// When a cast is used (`pg_cast.castcontext`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CastContext {
    /// Only where it is written.
    #[serde(rename = "e")]
    Explicit,
    /// Where a value is assigned to a column, too.
    #[serde(rename = "a")]
    Assignment,
    /// Anywhere.
    #[serde(rename = "i")]
    Implicit,
}

/// A cast's source or target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CastSide {
    /// The type itself, then the others.
    pub types: Vec<CastType>,
}

/// A type by its names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CastType {
    /// Its schema.
    pub schema: String,
    /// `pg_type.typname`.
    pub name: String,
    /// As SQL writes it, without modifiers.
    pub shown: String,
}

/// A type outside `pg_catalog`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserType {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// `pg_type.typtype`: `d` (domain), `e` (enumeration), `c`, `b`, `r`.
    pub kind: char,
    /// The OID of the built-in type that a domain is over, or 0.
    #[serde(default)]
    pub base_oid: u32,
    /// Its values are, or contain, OIDs that are shown as something else.
    #[serde(default)]
    pub oids: Option<Oids>,
    /// The text of a domain's check constraints, if any.
    #[serde(default)]
    pub check: Option<String>,
    /// The text of a domain's default, if it or a domain that it is over has one.
    #[serde(default)]
    pub default: Option<String>,
}

/// An installed extension.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Extension {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// Why a catalogue document was refused.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// It is no JSON document of the expected form.
    #[error(
        "the catalogue document does not have the expected form: {0}; fetch it with the query for the server's version"
    )]
    Form(#[from] serde_json::Error),
}

impl Catalogue {
    /// Reads the document that the query of [`crate::catalogue_queries`] returns.
    ///
    /// # Errors
    ///
    /// If the document does not have that form.
    pub fn from_json(json: &str) -> Result<Catalogue, CatalogueError> {
        let mut catalogue: Catalogue = serde_json::from_str(json)?;
        catalogue.rebuild();
        Ok(catalogue)
    }

    /// Writes the document that [`Catalogue::from_json`] reads.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings, numbers and lists cannot fail to serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The same definitions for replicas to which changes of rows are shipped.
    #[must_use]
    pub fn capturing(&self, captures: Capturing) -> Catalogue {
        let mut catalogue = Catalogue { captures, ..self.clone() };
        catalogue.rebuild();
        catalogue
    }

    /// Builds the indexes anew after the public fields were changed.
    pub fn rebuild(&mut self) {
        self.index = Index::new(self);
    }

    /// A number that changes with the catalogue's content, for caches of classes.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.index.generation
    }

    /// The table of a name in a schema.
    #[must_use]
    pub fn table(&self, schema: &str, name: &str) -> Option<&Table> {
        match self.index.relation(schema, name)? {
            Relation::Table(i) => self.tables.get(i),
            _ => None,
        }
    }

    /// The table of an id; partitions have the id of their root, which is what is returned for it.
    #[must_use]
    pub fn table_by_id(&self, id: TableId) -> Option<&Table> {
        self.index.by_id.get(&id).and_then(|i| self.tables.get(*i))
    }

    /// The sequence of a name in a schema.
    #[must_use]
    pub fn sequence(&self, schema: &str, name: &str) -> Option<&Sequence> {
        match self.index.relation(schema, name)? {
            Relation::Sequence(i) => self.sequences.get(i),
            _ => None,
        }
    }

    /// The id on which conflicts of a table are counted: its own, or that of its partitioned root.
    #[must_use]
    pub fn item_table(&self, table: &Table) -> TableId {
        let root = self.partition_root(table);
        table_id(&root.schema, &root.name)
    }

    /// The partitioned table at the top, or the table itself.
    #[must_use]
    pub fn partition_root<'a>(&'a self, table: &'a Table) -> &'a Table {
        let mut at = table;
        // Partition trees are shallow; the bound only guards against a document with a cycle.
        for _ in 0..64 {
            if !at.is_partition {
                break;
            }
            let Some(parent) = at.parents.first().and_then(|(s, n)| self.table(s, n)) else { break };
            at = parent;
        }
        at
    }

    fn root_of(&self, table: usize, find: &impl Fn(&str, &str) -> Option<usize>) -> usize {
        let mut at = table;
        for _ in 0..64 {
            match self.tables[at].parents.first() {
                Some((schema, name)) if self.tables[at].is_partition => match find(schema, name) {
                    Some(parent) => at = parent,
                    None => break,
                },
                _ => break,
            }
        }
        at
    }

    /// Indexes of all partitions below a table.
    pub(crate) fn partitions(&self, table: usize) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        let mut at = vec![table];
        while let Some(parent) = at.pop() {
            for child in self.children(parent) {
                if self.tables[*child].is_partition && !found.contains(child) {
                    found.push(*child);
                    at.push(*child);
                }
            }
        }
        found
    }

    pub(crate) fn relation_in(&self, schema: &str, name: &str) -> Option<Relation> {
        self.index.relation(schema, name)
    }

    /// Indexes of the tables that inherit from a table or are its partitions, directly.
    pub(crate) fn children(&self, table: usize) -> &[usize] {
        self.index.children.get(&table).map_or(&[], Vec::as_slice)
    }

    /// (table index, foreign key index) of the foreign keys that reference a table.
    pub(crate) fn references(&self, table: usize) -> &[(usize, usize)] {
        self.index.references.get(&table).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn table_index(&self, table: &Table) -> Option<usize> {
        match self.index.relation(&table.schema, &table.name)? {
            Relation::Table(i) => Some(i),
            _ => None,
        }
    }

    /// Functions outside `pg_catalog` of a name, in a schema or in all schemas of the path.
    pub(crate) fn functions_named<'a>(
        &'a self,
        name: &Name,
        path: &'a [String],
    ) -> impl Iterator<Item = (usize, &'a Function)> + 'a {
        let schema = name.schema().map(str::to_owned);
        let found = self.index.functions.get(name.last()).map_or(&[][..], Vec::as_slice);
        found.iter().filter_map(|i| Some((*i, self.functions.get(*i)?))).filter(move |(_, f)| match &schema {
            Some(schema) => &f.schema == schema,
            None => path.iter().any(|s| s == &f.schema),
        })
    }

    pub(crate) fn builtins_named(&self, name: &str) -> impl Iterator<Item = &Builtin> {
        let found = self.index.builtins.get(name).map_or(&[][..], Vec::as_slice);
        found.iter().filter_map(|i| self.builtins.get(*i))
    }

    pub(crate) fn operators_named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Operator> + 'a {
        let name = name.to_owned();
        self.operators.iter().filter(move |o| o.name == name)
    }
}

impl Cast {
    /// Whether its source is no type of `pg_catalog`: its values come from columns, casts, functions and operators that
    /// can be told.
    pub(crate) fn is_of_users(&self) -> bool {
        is_of_users(&self.source)
    }

    /// Whether neither of its types is one of `pg_catalog`.
    pub(crate) fn is_of_system(&self) -> bool {
        !is_of_users(&self.source) && !is_of_users(&self.target)
    }

    /// The type whose presence says that it may take place where nothing shows it: its source, or if values of that are
    /// everywhere its target.
    pub(crate) fn telling(&self) -> Option<&CastSide> {
        [&self.source, &self.target].into_iter().find(|side| is_of_users(side))
    }
}

fn is_of_users(side: &CastSide) -> bool {
    side.types.first().is_none_or(|t| t.schema != "pg_catalog")
}

impl CastType {
    /// Whether a name may mean it. One before `[]` is that of an element, which is a type of its own.
    pub(crate) fn is_named(&self, name: &Name) -> bool {
        self.name == name.last() && name.schema().is_none_or(|schema| self.schema == schema)
    }

    /// Whether a column is of it.
    pub(crate) fn is_type_of(&self, column: &Column) -> bool {
        self.shown == without_modifiers(&column.type_name)
    }
}

impl CastSide {
    /// Whether a name may mean one of the types.
    pub(crate) fn is_named(&self, name: &Name) -> bool {
        self.types.iter().any(|t| t.is_named(name))
    }

    /// Whether a column is of one of the types.
    pub(crate) fn is_type_of(&self, column: &Column) -> bool {
        self.types.iter().any(|t| t.is_type_of(column))
    }

    /// The type itself, as SQL writes it.
    pub(crate) fn shown(&self) -> &str {
        self.types.first().map_or("an unknown type", |t| &t.shown)
    }
}

/// `timestamp(3) without time zone` without its `(3)`. A quoted name may hold parentheses, and no type with one is known
/// that takes modifiers.
fn without_modifiers(type_name: &str) -> std::borrow::Cow<'_, str> {
    match (type_name.find('('), type_name.find(')')) {
        (Some(from), Some(to)) if from < to && !type_name.contains('"') => {
            format!("{}{}", &type_name[..from], &type_name[to + 1..]).into()
        }
        _ => type_name.into(),
    }
}

impl Table {
    /// The table's id. Partitions count as their root: see [`Catalogue::item_table`].
    #[must_use]
    pub fn id(&self) -> TableId {
        table_id(&self.schema, &self.name)
    }

    /// The column of a name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|c| c.name == name)
    }

    /// The column of a number.
    #[must_use]
    pub fn column_by_number(&self, number: u16) -> Option<&Column> {
        self.columns.iter().find(|c| c.number == number)
    }

    /// The naming key: the primary key.
    #[must_use]
    pub fn primary_key(&self) -> Option<&UniqueKey> {
        self.unique.iter().find(|k| k.primary)
    }

    /// Whether a column belongs to a key, an index or a foreign key, so that items may name it.
    pub(crate) fn is_indexed(&self, number: u16) -> bool {
        self.unique.iter().any(|k| k.columns.contains(&number))
            || self.indexes.iter().any(|i| i.contains(&number))
            || self.foreign_keys.iter().any(|f| f.columns.contains(&number))
    }
}

impl Column {
    /// The column's id in items.
    #[must_use]
    pub fn id(&self) -> ColumnId {
        ColumnId(self.number)
    }
}

impl Column {
    /// Whether its values are, or contain, names that stand for OIDs.
    pub(crate) fn holds_names(&self) -> bool {
        self.oids == Some(Oids::Names)
    }

    /// Whether its values are, or contain, dates or times of day, as far as that is known.
    pub(crate) fn may_hold_moment(&self) -> bool {
        match (self.type_oid, self.type_kind) {
            // Of users' types the parts are not known. Base types are made by extensions, whose texts are other things.
            (0, 'e') => false,
            (0, 'b') => self.category == Some('A'),
            (0, _) => true,
            (known, _) => holds_moments(known),
        }
    }
}

impl UniqueKey {
    /// The key's id in items.
    #[must_use]
    pub fn id(&self) -> KeyId {
        key_id(&self.name)
    }
}

/// A table's id: a stable hash of its qualified name, never `TableId::ALL`.
#[must_use]
pub fn table_id(schema: &str, name: &str) -> TableId {
    let mut text = Vec::with_capacity(schema.len() + name.len() + 1);
    text.extend_from_slice(schema.as_bytes());
    text.push(0);
    text.extend_from_slice(name.as_bytes());
    let hash = hash_bytes(&text);
    TableId(if hash == TableId::ALL.0 { hash - 1 } else { hash })
}

/// A unique key's id: a stable hash of its index's name.
#[must_use]
pub fn key_id(index: &str) -> KeyId {
    KeyId((hash_bytes(index.as_bytes()) >> 32) as u32)
}

/// What a name of `pg_class` stands for; numbers index the catalogue's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Relation {
    Table(usize),
    View(usize),
    Sequence(usize),
}

#[derive(Clone, Debug, Default)]
struct Index {
    generation: u64,
    relations: HashMap<String, HashMap<String, Relation>>,
    by_id: HashMap<TableId, usize>,
    functions: HashMap<String, Vec<usize>>,
    builtins: HashMap<String, Vec<usize>>,
    children: HashMap<usize, Vec<usize>>,
    references: HashMap<usize, Vec<(usize, usize)>>,
}

impl Index {
    fn new(catalogue: &Catalogue) -> Index {
        let mut index = Index { generation: hash_bytes(catalogue.to_json().as_bytes()), ..Index::default() };
        let mut relation = |schema: &str, name: &str, found: Relation| {
            index.relations.entry(schema.to_owned()).or_default().insert(name.to_owned(), found);
        };
        for (i, t) in catalogue.tables.iter().enumerate() {
            relation(&t.schema, &t.name, Relation::Table(i));
        }
        for (i, v) in catalogue.views.iter().enumerate() {
            relation(&v.schema, &v.name, Relation::View(i));
        }
        for (i, s) in catalogue.sequences.iter().enumerate() {
            relation(&s.schema, &s.name, Relation::Sequence(i));
        }
        for (i, f) in catalogue.functions.iter().enumerate() {
            index.functions.entry(f.name.clone()).or_default().push(i);
        }
        for (i, f) in catalogue.builtins.iter().enumerate() {
            index.builtins.entry(f.name.clone()).or_default().push(i);
        }
        let find = |schema: &str, name: &str| match index.relations.get(schema)?.get(name)? {
            Relation::Table(i) => Some(*i),
            _ => None,
        };
        let (mut children, mut references) = (HashMap::new(), HashMap::new());
        for (i, t) in catalogue.tables.iter().enumerate() {
            for parent in t.parents.iter().filter_map(|(s, n)| find(s, n)) {
                children.entry(parent).or_insert_with(Vec::new).push(i);
            }
            for (k, fk) in t.foreign_keys.iter().enumerate() {
                // A key that refers to a partition refers to rows of its root.
                if let Some(parent) = find(&fk.parent_schema, &fk.parent) {
                    let root = catalogue.root_of(parent, &find);
                    references.entry(root).or_insert_with(Vec::new).push((i, k));
                }
            }
            if !t.is_partition {
                index.by_id.insert(t.id(), i);
            }
        }
        index.children = children;
        index.references = references;
        index
    }

    fn relation(&self, schema: &str, name: &str) -> Option<Relation> {
        self.relations.get(schema)?.get(name).copied()
    }
}

fn yes() -> bool {
    true
}

fn no_modifier() -> i32 {
    -1
}

fn base_type() -> char {
    'b'
}
