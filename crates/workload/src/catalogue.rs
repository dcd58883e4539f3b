//! What a workload consists of, as data: its tables, and its interactions with their transactions and statements.
//!
//! Catalogues are written as TOML (see `data/`). What protocols want to know beforehand is derived here: the kind
//! of each transaction, the tables that it declares, and where each of them is used for the last time.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;

use crate::value::Value;

/// A table's place in [`Catalogue::tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableIndex(pub u16);

/// An interaction's place in [`Catalogue::interactions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InteractionId(pub u16);

/// A transaction's place in [`Catalogue::transactions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u16);

/// A statement's place in [`Catalogue::statements`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatementId(pub u16);

/// A workload's tables, interactions, transactions and statements, each in the order of the data.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// The workload's name.
    pub name: String,
    /// The tables; a table comes after those that it refers to.
    pub tables: Vec<Table>,
    /// What a user can do.
    pub interactions: Vec<Interaction>,
    /// All transactions of all interactions.
    pub transactions: Vec<Transaction>,
    /// All statements of all transactions.
    pub statements: Vec<Statement>,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// How many rows it starts with, in words.
    pub rows: String,
    /// Its columns in order.
    pub columns: Vec<Column>,
    /// The columns of its primary key; empty if it has none.
    pub primary_key: Vec<String>,
    /// References to other tables' primary keys.
    pub foreign_keys: Vec<ForeignKey>,
    /// Columns of each further index.
    pub indexes: Vec<Vec<String>>,
}

/// A column.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its PostgreSQL type, with constraints if any.
    #[serde(rename = "type")]
    pub sql_type: String,
}

/// A reference to another table.
#[derive(Clone, Debug)]
pub struct ForeignKey {
    /// The referring columns.
    pub columns: Vec<String>,
    /// The table referred to.
    pub table: String,
    /// As many columns of it, in the same order.
    pub key: Vec<String>,
}

/// Something a user does: a page of a web site, or whatever counts once in the results.
#[derive(Clone, Debug)]
pub struct Interaction {
    /// Its short name.
    pub id: String,
    /// Its name in words.
    pub name: String,
    /// Whether the mixes count it as browsing or as ordering.
    pub class: Class,
    /// How old its reads may be where a protocol loosens consistency by interaction; `None` if that is not said.
    pub stale_ok: Option<Duration>,
    /// Its transactions, as places in [`Catalogue::transactions`].
    pub transactions: Range<usize>,
}

/// The two halves of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Looking around; the papers call these interactions read-only.
    Browse,
    /// On the way to buying; the papers call these updates, though not all of them write.
    Order,
}

/// A transaction.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// Its name: `interaction.transaction`.
    pub id: String,
    /// The interaction that it belongs to.
    pub interaction: InteractionId,
    /// Its statements, as places in [`Catalogue::statements`].
    pub statements: Range<usize>,
    /// When it runs, in words; always, if absent.
    pub when: Option<String>,
    /// One statement or several, read or update.
    pub kind: Kind,
    /// Tables that it may read and does not write.
    pub reads: Vec<TableIndex>,
    /// Tables that it may write.
    pub writes: Vec<TableIndex>,
    /// The same without what only rare statements write (those with a `probability`).
    pub writes_usual: Vec<TableIndex>,
}

/// The four kinds of transactions that the papers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One query, in autocommit.
    SingleRead,
    /// One writing statement, in autocommit.
    SingleUpdate,
    /// Several queries between BEGIN and COMMIT.
    MultiRead,
    /// Several statements between BEGIN and COMMIT, some of which write.
    MultiUpdate,
}

impl Kind {
    /// Whether it is bracketed by BEGIN and COMMIT.
    pub fn is_bracketed(self) -> bool {
        matches!(self, Kind::MultiRead | Kind::MultiUpdate)
    }

    /// Whether it writes.
    pub fn is_update(self) -> bool {
        matches!(self, Kind::SingleUpdate | Kind::MultiUpdate)
    }
}

/// A statement with parameters `$1`, `$2` and so on.
#[derive(Clone, Debug)]
pub struct Statement {
    /// Its name: `interaction.transaction.statement`.
    pub id: String,
    /// The transaction that it belongs to.
    pub transaction: TransactionId,
    /// The text.
    pub sql: String,
    /// Tables that it reads.
    pub reads: Vec<TableIndex>,
    /// Tables that it writes.
    pub writes: Vec<TableIndex>,
    /// Tables that no later statement of the transaction touches. A statement that is skipped releases them all the same.
    pub last_use: Vec<TableIndex>,
    /// When it runs, in words; always, if absent.
    pub when: Option<String>,
    /// How often a transaction runs it, where that is known beforehand and rare; otherwise 1.
    pub probability: f64,
    /// What it is repeated for, if it is.
    pub repeat: Option<String>,
    /// Statements of one group form the body of one loop.
    pub group: Option<String>,
    /// Where its parameters come from. These four are read by [`crate::site::Plan`]; of TPC-C's statements this one is set, by
    /// the names of [`Parameters`](crate::tpcc::Parameters), and for other workloads all are empty.
    pub params: Vec<String>,
    /// What is in the place of parameters that a client computes, where the transaction goes as one text (see [`crate::tpcc::whole`]).
    pub computed: Vec<String>,
    /// The results for whose rows it is repeated.
    pub each: Vec<String>,
    /// When it runs.
    pub only_if: Option<String>,
    /// What its result teaches.
    pub learn: Vec<String>,
    pieces: Vec<Piece>,
    /// Of the text that it has in a transaction that goes as one text.
    whole_pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Parameter(usize),
}

impl Statement {
    /// The number of parameters.
    pub fn parameter_count(&self) -> usize {
        let highest = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Parameter(index) => Some(index + 1),
            Piece::Text(_) => None,
        });
        highest.max().unwrap_or(0)
    }

    /// The text with literals in place of the parameters, as the simple query protocol wants it. Parameters that are not
    /// given become NULL.
    pub fn with_literals(&self, params: &[Value]) -> String {
        let mut sql = String::with_capacity(self.sql.len() + 16 * params.len());
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => sql.push_str(text),
                Piece::Parameter(index) => params.get(*index).unwrap_or(&Value::Null).write_literal(&mut sql),
            }
        }
        sql
    }

    /// The text that it has in a transaction that goes as one text, with expressions in place of the parameters. Panics if there are
    /// fewer of them.
    pub(crate) fn whole_with(&self, params: &[String]) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Parameter(index) => params[*index].clone(),
        };
        self.whole_pieces.iter().map(piece).collect()
    }
}

/// What is wrong with a catalogue's data.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// Not TOML, or not of the right shape.
    #[error("read the catalogue: {0}")]
    Toml(#[from] Box<toml::de::Error>),
    /// A statement names a table that is not declared.
    #[error(
        "statement {statement} names table {table}, which the catalogue does not declare before it is used"
    )]
    UnknownTable {
        /// The statement, or the table that refers to it.
        statement: String,
        /// The name that was not found.
        table: String,
    },
    /// A foreign key that does not refer column by column.
    #[error("table {table} refers to {referred} by another number of columns than it names there")]
    ForeignKey {
        /// The table that refers.
        table: String,
        /// The table referred to.
        referred: String,
    },
    /// The same name twice.
    #[error("the name {0} stands twice in the catalogue")]
    Duplicate(String),
}

impl Catalogue {
    /// Reads a catalogue. Sections other than `name`, `table` and `interaction` are left to the workload.
    pub fn parse(text: &str) -> Result<Self, CatalogueError> {
        let raw: raw::Catalogue = toml::from_str(text).map_err(Box::new)?;
        let mut catalogue = Catalogue {
            name: raw.name,
            tables: Vec::new(),
            interactions: Vec::new(),
            transactions: Vec::new(),
            statements: Vec::new(),
        };
        for table in raw.table {
            catalogue.add_table(table)?;
        }
        for interaction in raw.interaction {
            catalogue.add_interaction(interaction)?;
        }
        catalogue.expect_unique_names()?;
        Ok(catalogue)
    }

    /// A table by name.
    pub fn table_index(&self, name: &str) -> Option<TableIndex> {
        self.tables.iter().position(|table| table.name == name).map(|place| TableIndex(place as u16))
    }

    /// A statement by its name.
    pub fn statement_id(&self, name: &str) -> Option<StatementId> {
        self.statements
            .iter()
            .position(|statement| statement.id == name)
            .map(|place| StatementId(place as u16))
    }

    /// A transaction by its name.
    pub fn transaction_id(&self, name: &str) -> Option<TransactionId> {
        let place = self.transactions.iter().position(|transaction| transaction.id == name)?;
        Some(TransactionId(place as u16))
    }

    /// The tables that statements write.
    #[must_use]
    pub fn written(&self) -> BTreeSet<TableIndex> {
        self.statements.iter().flat_map(|statement| statement.writes.iter().copied()).collect()
    }

    /// The table at this place; panics if the index is another catalogue's.
    pub fn table(&self, index: TableIndex) -> &Table {
        &self.tables[usize::from(index.0)]
    }

    /// The interaction with this id; panics if the id is another catalogue's.
    pub fn interaction(&self, id: InteractionId) -> &Interaction {
        &self.interactions[usize::from(id.0)]
    }

    /// The transaction with this id; panics if the id is another catalogue's.
    pub fn transaction(&self, id: TransactionId) -> &Transaction {
        &self.transactions[usize::from(id.0)]
    }

    /// The statement with this id; panics if the id is another catalogue's.
    pub fn statement(&self, id: StatementId) -> &Statement {
        &self.statements[usize::from(id.0)]
    }

    /// CREATE TABLE for every table, with primary keys and without foreign keys.
    pub fn create_tables(&self) -> Vec<String> {
        self.tables.iter().map(Table::create).collect()
    }

    /// CREATE INDEX for every index beside the primary keys, table by table.
    pub fn create_indexes(&self) -> Vec<String> {
        let mut statements = Vec::new();
        for table in &self.tables {
            for columns in &table.indexes {
                let name = format!("{}_{}_idx", table.name, columns.join("_"));
                statements.push(format!("CREATE INDEX {name} ON {} ({})", table.name, columns.join(", ")));
            }
        }
        statements
    }

    /// ALTER TABLE ... ADD FOREIGN KEY, one statement a table that has any.
    pub fn add_foreign_keys(&self) -> Vec<String> {
        let with_keys = self.tables.iter().filter(|table| !table.foreign_keys.is_empty());
        with_keys.map(Table::add_foreign_keys).collect()
    }

    /// DROP TABLE IF EXISTS for every table, referring ones first.
    pub fn drop_tables(&self) -> Vec<String> {
        self.tables.iter().rev().map(|table| format!("DROP TABLE IF EXISTS {}", table.name)).collect()
    }

    fn add_table(&mut self, raw: raw::Table) -> Result<(), CatalogueError> {
        let mut foreign_keys = Vec::new();
        for key in raw.foreign_keys {
            if self.table_index(&key.table).is_none() {
                return Err(CatalogueError::UnknownTable { statement: raw.name, table: key.table });
            }
            let key =
                ForeignKey { columns: key.column.into_names(), table: key.table, key: key.key.into_names() };
            if key.columns.len() != key.key.len() {
                return Err(CatalogueError::ForeignKey { table: raw.name, referred: key.table });
            }
            foreign_keys.push(key);
        }
        self.tables.push(Table {
            name: raw.name,
            rows: raw.rows,
            columns: raw.columns,
            primary_key: raw.primary_key,
            foreign_keys,
            indexes: raw.indexes,
        });
        Ok(())
    }

    fn add_interaction(&mut self, raw: raw::Interaction) -> Result<(), CatalogueError> {
        let id = InteractionId(self.interactions.len() as u16);
        let first = self.transactions.len();
        for transaction in raw.transaction {
            self.add_transaction(id, transaction)?;
        }
        self.interactions.push(Interaction {
            id: raw.id,
            name: raw.name,
            class: raw.class,
            stale_ok: raw.stale_ok_s.map(Duration::from_secs),
            transactions: first..self.transactions.len(),
        });
        Ok(())
    }

    fn add_transaction(
        &mut self,
        interaction: InteractionId,
        raw: raw::Transaction,
    ) -> Result<(), CatalogueError> {
        let id = TransactionId(self.transactions.len() as u16);
        let first = self.statements.len();
        for statement in raw.statement {
            let statement = self.resolve(id, statement)?;
            self.statements.push(statement);
        }
        let statements = &mut self.statements[first..];
        mark_last_uses(statements);

        let writes = tables_of(statements, |statement| &statement.writes);
        let usual: Vec<Statement> =
            statements.iter().filter(|statement| statement.probability == 1.0).cloned().collect();
        let mut reads = tables_of(statements, |statement| &statement.reads);
        reads.retain(|table| !writes.contains(table));
        let kind = match (statements.len(), writes.is_empty()) {
            (0 | 1, true) => Kind::SingleRead,
            (0 | 1, false) => Kind::SingleUpdate,
            (_, true) => Kind::MultiRead,
            (_, false) => Kind::MultiUpdate,
        };
        self.transactions.push(Transaction {
            id: raw.id,
            interaction,
            statements: first..self.statements.len(),
            when: raw.when,
            kind,
            reads,
            writes_usual: tables_of(&usual, |statement| &statement.writes),
            writes,
        });
        Ok(())
    }

    fn resolve(&self, transaction: TransactionId, raw: raw::Statement) -> Result<Statement, CatalogueError> {
        let find = |names: &[String]| -> Result<Vec<TableIndex>, CatalogueError> {
            let unknown = |table: &str| CatalogueError::UnknownTable {
                statement: raw.id.clone(),
                table: table.to_owned(),
            };
            names.iter().map(|name| self.table_index(name).ok_or_else(|| unknown(name))).collect()
        };
        let (reads, writes) = (find(&raw.reads)?, find(&raw.writes)?);
        Ok(Statement {
            pieces: split_parameters(&raw.sql),
            whole_pieces: split_parameters(raw.whole_sql.as_ref().unwrap_or(&raw.sql)),
            id: raw.id,
            transaction,
            sql: raw.sql,
            reads,
            writes,
            last_use: Vec::new(),
            when: raw.when,
            probability: raw.probability.unwrap_or(1.0),
            repeat: raw.repeat,
            group: raw.group,
            params: raw.params,
            computed: raw.computed,
            each: raw.each,
            only_if: raw.only_if,
            learn: raw.learn,
        })
    }

    /// Among those of its kind, each name stands once.
    fn expect_unique_names(&self) -> Result<(), CatalogueError> {
        fn unique<'a>(names: impl Iterator<Item = &'a String>) -> Result<(), CatalogueError> {
            let mut seen = BTreeSet::new();
            for name in names {
                if !seen.insert(name) {
                    return Err(CatalogueError::Duplicate(name.clone()));
                }
            }
            Ok(())
        }
        unique(self.tables.iter().map(|table| &table.name))?;
        unique(self.interactions.iter().map(|interaction| &interaction.id))?;
        unique(self.transactions.iter().map(|transaction| &transaction.id))?;
        unique(self.statements.iter().map(|statement| &statement.id))
    }
}

impl Table {
    fn create(&self) -> String {
        let mut sql = format!("CREATE TABLE {} (", self.name);
        for (place, column) in self.columns.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            let not_null = if self.primary_key.contains(&column.name) { " NOT NULL" } else { "" };
            let _ = write!(sql, "{comma}{} {}{not_null}", column.name, column.sql_type);
        }
        if !self.primary_key.is_empty() {
            let _ = write!(sql, ", PRIMARY KEY ({})", self.primary_key.join(", "));
        }
        sql.push(')');
        sql
    }

    fn add_foreign_keys(&self) -> String {
        let clause = |key: &ForeignKey| {
            let (columns, referred) = (key.columns.join(", "), key.key.join(", "));
            format!("ADD FOREIGN KEY ({columns}) REFERENCES {} ({referred})", key.table)
        };
        let clauses: Vec<String> = self.foreign_keys.iter().map(clause).collect();
        format!("ALTER TABLE {} {}", self.name, clauses.join(", "))
    }
}

fn tables_of(statements: &[Statement], of: impl Fn(&Statement) -> &Vec<TableIndex>) -> Vec<TableIndex> {
    let all: BTreeSet<TableIndex> = statements.iter().flat_map(|statement| of(statement).clone()).collect();
    all.into_iter().collect()
}

/// A table is used for the last time by the last statement that touches it, or, if that one is in a loop, by the
/// last statement of the loop's body.
fn mark_last_uses(statements: &mut [Statement]) {
    let touches = |statement: &Statement, table: TableIndex| {
        statement.reads.contains(&table) || statement.writes.contains(&table)
    };
    let mut all = tables_of(statements, |statement| &statement.reads);
    all.extend(tables_of(statements, |statement| &statement.writes));
    all.sort_unstable();
    all.dedup();
    for table in all {
        let Some(last) = statements.iter().rposition(|statement| touches(statement, table)) else { continue };
        let in_same_loop =
            |statement: &Statement| statement.group.is_some() && statement.group == statements[last].group;
        let end = statements.iter().rposition(in_same_loop).unwrap_or(last);
        statements[end].last_use.push(table);
    }
}

/// Cuts `... $1 ... $2` into text and parameters; dollar signs in quotes are text.
fn split_parameters(sql: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut in_quotes = false;
    let mut rest = sql;
    while let Some(character) = rest.chars().next() {
        in_quotes ^= character == '\'';
        rest = &rest[character.len_utf8()..];
        let digits = rest.len() - rest.trim_start_matches(|next: char| next.is_ascii_digit()).len();
        match rest[..digits].parse::<usize>() {
            Ok(number) if character == '$' && !in_quotes && number > 0 => {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
                pieces.push(Piece::Parameter(number - 1));
                rest = &rest[digits..];
            }
            _ => text.push(character),
        }
    }
    pieces.push(Piece::Text(text));
    pieces
}

/// The shape of the data files.
mod raw {
    use serde::Deserialize;

    use super::{Class, Column};

    #[derive(Deserialize)]
    pub(super) struct Catalogue {
        pub(super) name: String,
        #[serde(default)]
        pub(super) table: Vec<Table>,
        #[serde(default)]
        pub(super) interaction: Vec<Interaction>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Table {
        pub(super) name: String,
        #[serde(default)]
        pub(super) rows: String,
        #[serde(default)]
        pub(super) primary_key: Vec<String>,
        #[serde(default)]
        pub(super) foreign_keys: Vec<ForeignKey>,
        #[serde(default)]
        pub(super) indexes: Vec<Vec<String>>,
        pub(super) columns: Vec<Column>,
        #[serde(default, rename = "note")]
        _note: String,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct ForeignKey {
        pub(super) column: Names,
        pub(super) table: String,
        pub(super) key: Names,
    }

    /// Most keys have one column, which is written without brackets.
    #[derive(Deserialize)]
    #[serde(untagged)]
    pub(super) enum Names {
        One(String),
        Several(Vec<String>),
    }

    impl Names {
        pub(super) fn into_names(self) -> Vec<String> {
            match self {
                Names::One(name) => vec![name],
                Names::Several(names) => names,
            }
        }
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Interaction {
        pub(super) id: String,
        pub(super) name: String,
        pub(super) class: Class,
        pub(super) stale_ok_s: Option<u64>,
        #[serde(default)]
        pub(super) transaction: Vec<Transaction>,
        #[serde(default, rename = "note")]
        _note: String,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Transaction {
        pub(super) id: String,
        pub(super) when: Option<String>,
        pub(super) statement: Vec<Statement>,
        #[serde(default, rename = "note")]
        _note: String,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Statement {
        pub(super) id: String,
        pub(super) sql: String,
        pub(super) whole_sql: Option<String>,
        #[serde(default)]
        pub(super) reads: Vec<String>,
        #[serde(default)]
        pub(super) writes: Vec<String>,
        pub(super) when: Option<String>,
        pub(super) probability: Option<f64>,
        pub(super) repeat: Option<String>,
        pub(super) group: Option<String>,
        #[serde(default)]
        pub(super) params: Vec<String>,
        #[serde(default)]
        pub(super) computed: Vec<String>,
        #[serde(default)]
        pub(super) each: Vec<String>,
        pub(super) only_if: Option<String>,
        #[serde(default)]
        pub(super) learn: Vec<String>,
        #[serde(default, rename = "note")]
        _note: String,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        [[table]]
        name = "a"
        primary_key = ["id"]
        columns = [{ name = "id", type = "integer" }]
        [[table]]
        name = "b"
        primary_key = ["id"]
        foreign_keys = [{ column = "a_id", table = "a", key = "id" }]
        indexes = [["a_id"]]
        columns = [{ name = "id", type = "integer" }, { name = "a_id", type = "integer" }]
        [[interaction]]
        id = "i"
        name = "I"
        class = "order"
        [[interaction.transaction]]
        id = "i.t"
        [[interaction.transaction.statement]]
        id = "i.t.1"
        sql = "SELECT '$1', $10, $1 FROM a"
        reads = ["a"]
        [[interaction.transaction.statement]]
        id = "i.t.2"
        sql = "UPDATE b SET a_id = $2 WHERE id = $1"
        writes = ["b"]
        probability = 0.1
    "#;

    #[test]
    fn kinds_declarations_and_last_uses_are_derived() {
        let catalogue = Catalogue::parse(SMALL).unwrap();
        let transaction = &catalogue.transactions[0];
        assert_eq!(transaction.kind, Kind::MultiUpdate);
        assert_eq!(transaction.reads, [TableIndex(0)]);
        assert_eq!(transaction.writes, [TableIndex(1)]);
        assert_eq!(transaction.writes_usual, []);
        assert_eq!(catalogue.statements[0].last_use, [TableIndex(0)]);
        assert_eq!(catalogue.statements[1].last_use, [TableIndex(1)]);
    }

    #[test]
    fn parameters_become_literals() {
        let catalogue = Catalogue::parse(SMALL).unwrap();
        let statement = &catalogue.statements[0];
        assert_eq!(statement.parameter_count(), 10);
        assert_eq!(statement.with_literals(&[Value::Int(7)]), "SELECT '$1', NULL, 7 FROM a");
        let update = catalogue.statements[1].with_literals(&[Value::Int(1), Value::Int(-2)]);
        assert_eq!(update, "UPDATE b SET a_id = (-2) WHERE id = 1");
    }

    #[test]
    fn ddl_follows_from_the_tables() {
        let catalogue = Catalogue::parse(SMALL).unwrap();
        assert_eq!(
            catalogue.create_tables()[1],
            "CREATE TABLE b (id integer NOT NULL, a_id integer, PRIMARY KEY (id))"
        );
        assert_eq!(catalogue.create_indexes(), ["CREATE INDEX b_a_id_idx ON b (a_id)"]);
        assert_eq!(catalogue.add_foreign_keys(), ["ALTER TABLE b ADD FOREIGN KEY (a_id) REFERENCES a (id)"]);
        assert_eq!(catalogue.drop_tables(), ["DROP TABLE IF EXISTS b", "DROP TABLE IF EXISTS a"]);
    }

    #[test]
    fn a_foreign_key_may_have_several_columns_and_refers_to_as_many() {
        let one = r#"{ column = "a_id", table = "a", key = "id" }"#;
        let with = |key: &str| Catalogue::parse(&SMALL.replace(one, key));
        let catalogue = with(r#"{ column = ["id", "a_id"], table = "a", key = ["x", "y"] }"#).unwrap();
        assert_eq!(
            catalogue.add_foreign_keys(),
            ["ALTER TABLE b ADD FOREIGN KEY (id, a_id) REFERENCES a (x, y)"]
        );
        let error = with(r#"{ column = ["id", "a_id"], table = "a", key = "id" }"#).unwrap_err();
        assert!(matches!(error, CatalogueError::ForeignKey { .. }), "{error}");
    }

    #[test]
    fn a_table_that_is_not_declared_is_refused() {
        let error = Catalogue::parse(&SMALL.replace("writes = [\"b\"]", "writes = [\"c\"]")).unwrap_err();
        assert!(error.to_string().contains("names table c"), "{error}");
        let error = Catalogue::parse(&SMALL.replace("\"i.t.2\"", "\"i.t.1\"")).unwrap_err();
        assert!(matches!(error, CatalogueError::Duplicate(name) if name == "i.t.1"));
    }
}
