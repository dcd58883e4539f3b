//! Tables whose rows are dealt to peers by a column, as a peer's server has them: rows are read, brought from other peers for one transaction, and
//! written back.
//!
//! ```text
//!   a statement about one peer's rows    executed there, whoever asks (Forward, Answered)
//!   about several peers' rows            afar.rs, by messages of crossing.rs: the core has latches everywhere; the others' rows are read (Gather, Rows), added to
//!                                        this server's in a transaction, in which it executes, and taken out again. Who has written
//!                                        sends back what has changed (Change, Prepared), and all commit (Finish, Finished)
//! ```
//!
//! Rows travel as the server writes them, which is the same at all: settings that change that are compared when peers begin. No trigger and no foreign key
//! sees them come and go; those of the statement itself are checked by the server that executes it, where all rows are.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use onecopy_classify::catalogue::{Column, Table};
use onecopy_classify::{Catalogue, oid};
use onecopy_core::peers::parts::{By, Division, Divisions, Home};
use onecopy_core::{Access, ColumnId, NodeId, Space, TableId};

use onecopy_log::consensus::MESSAGE_LEN_MAX;

use crate::agent::{quote, quote_identifier};
use crate::errors::ServeError;
use crate::lane::{Lane, LaneError};
use crate::record::Record;
use crate::settings::PartSettings;
use crate::sites::database::Own;

/// Words of constraints that depend on the session, or on the time.
const OF_SESSIONS: [&str; 15] = [
    "current_user",
    "session_user",
    "current_role",
    "user",
    "current_setting",
    "current_catalog",
    "current_schema",
    "now",
    "current_timestamp",
    "current_date",
    "current_time",
    "localtimestamp",
    "clock_timestamp",
    "pg_backend_pid",
    "random",
];
/// So many rows are added or removed by one statement.
const AT_ONCE: usize = 1_000;
/// Has no trigger and no foreign key see what follows, until [`SEEN`].
const UNSEEN: &str = "SET LOCAL session_replication_role = replica";
/// Of a row that the transaction has added or changed.
const TOUCHED: &str = "onecopy_row.xmin::text = (pg_catalog.txid_current() % 4294967296)::text";
/// A row that is longer cannot be sent to another peer.
pub const ROW_LEN_MAX: usize = MESSAGE_LEN_MAX - (2 << 20);
const SEEN: &str = "SET LOCAL session_replication_role = origin";

/// A row: what its column says, and all of it as the server writes it.
pub type Row = (i64, String);

/// Rows of one table.
pub type Rows = (TableId, Vec<Row>);

/// What is wanted of a table: the rows with these values, or all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    pub table: TableId,
    pub values: Option<Vec<i64>>,
}

/// Which of the rows that are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    All,
    /// Those that this very transaction has added or changed.
    Touched,
}

/// All divided tables, and where their rows are.
#[derive(Debug, Default)]
pub struct Parts {
    pub divisions: Divisions,
    tables: Vec<Part>,
    nodes: u16,
}

/// A table that is divided by a column.
#[derive(Debug)]
struct Part {
    id: TableId,
    name: String,
    key: String,
    column: ColumnId,
    /// What of a row is written: not what the server computes.
    columns: Vec<String>,
    by: By,
}

impl Parts {
    /// From what was configured.
    ///
    /// # Errors
    /// If a table is not there, or cannot be divided so.
    pub fn new(
        by_clients: &[String],
        by_column: &[PartSettings],
        catalogue: &Catalogue,
        nodes: u16,
    ) -> Result<Parts, ServeError> {
        let table = |name: &str, key: &str| {
            let (schema, table) = name.split_once('.').unwrap_or(("public", name));
            let unknown = || ServeError::Settings(format!("{key} names {name:?}, which is no table"));
            let found = catalogue.table(schema, table).ok_or_else(unknown)?;
            Ok::<_, ServeError>((onecopy_classify::table_id(schema, table), found))
        };
        let mut divided = Vec::new();
        for name in by_clients {
            divided.push((table(name, "peers.divided")?.0, Division::Clients));
        }
        let mut tables = Vec::new();
        for PartSettings { table: name, column, bounds } in by_column {
            let (id, of) = table(name, "peers.parts")?;
            let refused =
                |what: String| ServeError::Settings(format!("peers.parts cannot divide {name:?}: {what}"));
            let by = by(bounds, nodes).map_err(refused)?;
            let part = Part::new(id, of, column, by.clone()).map_err(refused)?;
            divided.push((id, Division::Column(part.column, by)));
            tables.push(part);
        }
        let mut ids: Vec<TableId> = divided.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            let what = "peers.divided and peers.parts name a table twice".to_owned();
            return Err(ServeError::Settings(what));
        }
        Ok(Parts { divisions: divided.into_iter().collect(), tables, nodes })
    }

    /// What has to be the same at all peers.
    pub fn shown(&self) -> String {
        let mut shown: Vec<String> = self.tables.iter().map(|of| format!("{of:?}")).collect();
        shown.sort_unstable();
        shown.join(" ")
    }

    /// Where what touches these is to be executed.
    pub fn home(&self, access: &[Access]) -> Home {
        self.divisions.home(access, self.nodes)
    }

    /// What these name of tables that are divided by a column.
    pub fn wanted(&self, access: &[Access]) -> Vec<Wanted> {
        let of_part = |part: &Part| {
            // That the table goes on existing is no matter of rows.
            let is_of_rows = |of: &&Access| of.item.table == part.id && of.item.space != Space::Schema;
            let mut accesses = access.iter().filter(is_of_rows).peekable();
            accesses.peek()?;
            let value = |of: &Access| {
                let equal = of.item.equals.iter().find(|(column, _)| *column == part.column);
                equal.map(|(_, value)| value.as_integer())
            };
            let values: Option<BTreeSet<i64>> = accesses.map(value).collect();
            Some(Wanted { table: part.id, values: values.map(|values| values.into_iter().collect()) })
        };
        self.tables.iter().filter_map(of_part).collect()
    }

    fn of(&self, table: TableId) -> Option<&Part> {
        self.tables.iter().find(|part| part.id == table)
    }

    /// The rows of a table that a server has, with their owners; nothing if they are longer than so many bytes, of which no more are read than that.
    pub async fn read(
        &self,
        lane: &mut Lane,
        wanted: &Wanted,
        which: Which,
        bytes_max: usize,
    ) -> Result<Option<Vec<(NodeId, Row)>>, LaneError> {
        let Some(part) = self.of(wanted.table) else { return Ok(Some(Vec::new())) };
        let Part { name, key, by, .. } = part;
        let condition = part.condition(wanted, which);
        let sql = format!(
            "SELECT onecopy_value, onecopy_text, onecopy_bytes > {bytes_max} FROM (SELECT onecopy_value, onecopy_text,              pg_catalog.sum(pg_catalog.octet_length(onecopy_text)) OVER (ROWS UNBOUNDED PRECEDING) AS onecopy_bytes FROM              (SELECT onecopy_row.{key} AS onecopy_value, onecopy_row::text AS onecopy_text FROM ONLY {name} onecopy_row{condition}) onecopy_all) onecopy_some              WHERE onecopy_bytes - pg_catalog.octet_length(onecopy_text) <= {bytes_max}"
        );
        let mut rows = Vec::new();
        for row in lane.query(&sql).await? {
            let mut cells = row.into_iter().flatten();
            let (Some(value), Some(text), Some(is_more)) = (cells.next(), cells.next(), cells.next()) else {
                continue;
            };
            if is_more == "t" || text.len() > ROW_LEN_MAX {
                return Ok(None);
            }
            if let Ok(value) = value.parse() {
                rows.push((Divisions::owner(by, value, self.nodes), (value, text)));
            }
        }
        Ok(Some(rows))
    }

    /// A constraint of a table that its rows need not satisfy, if there is one.
    pub async fn unchecked(&self, lane: &mut Lane) -> Result<Option<String>, LaneError> {
        for Part { name, .. } in &self.tables {
            let sql = format!(
                "SELECT conname FROM pg_catalog.pg_constraint WHERE conrelid = {}::pg_catalog.regclass AND NOT convalidated",
                quote(name)
            );
            if let Some(constraint) = lane.query(&sql).await?.into_iter().flatten().flatten().next() {
                return Ok(Some(format!("{constraint} of {name}")));
            }
        }
        Ok(None)
    }

    /// A digest of all rows, in whatever order.
    pub async fn digest(&self, lane: &mut Lane) -> Result<String, LaneError> {
        let mut digest = String::new();
        for Part { name, .. } in &self.tables {
            let sql = format!(
                "SELECT pg_catalog.count(*), pg_catalog.sum(('x' || pg_catalog.left(pg_catalog.md5(onecopy_row::text), 15))::bit(60)::bigint) \
                 FROM ONLY {name} onecopy_row"
            );
            let found: Vec<String> = lane.query(&sql).await?.into_iter().flatten().flatten().collect();
            let _ = write!(digest, "{name} {}; ", found.join(" "));
        }
        Ok(digest)
    }

    /// How many rows are not `me`'s.
    pub async fn count_others(&self, lane: &mut Lane, me: NodeId) -> Result<u64, LaneError> {
        let mut others = 0;
        for Part { name, key, by, .. } in &self.tables {
            let sql = format!("SELECT {key}, pg_catalog.count(*) FROM ONLY {name} GROUP BY 1");
            for row in lane.query(&sql).await? {
                let mut cells = row.into_iter().flatten().filter_map(|text| text.parse::<i64>().ok());
                if let (Some(value), Some(count)) = (cells.next(), cells.next())
                    && Divisions::owner(by, value, self.nodes) != me
                {
                    others += u64::try_from(count).unwrap_or_default();
                }
            }
        }
        Ok(others)
    }

    /// Adds rows, in a transaction.
    pub async fn add(&self, lane: &mut Lane, rows: &[Rows]) -> Result<(), LaneError> {
        lane.command(UNSEEN).await?;
        for (table, rows) in rows {
            let Some(part) = self.of(*table) else { continue };
            for rows in rows.chunks(AT_ONCE) {
                lane.command(&part.adding(rows)).await?;
            }
        }
        lane.command(SEEN).await
    }

    /// Removes rows, in a transaction. False if not all are there.
    pub async fn remove(&self, lane: &mut Lane, rows: &[Rows]) -> Result<bool, LaneError> {
        let mut all = true;
        lane.command(UNSEEN).await?;
        for (table, rows) in rows {
            let Some(part) = self.of(*table) else { continue };
            for rows in rows.chunks(AT_ONCE) {
                all &= lane.query(&part.removing(rows)).await?.len() == rows.len();
            }
        }
        lane.command(SEEN).await?;
        Ok(all)
    }

    /// Removes the rows of some tables that are not `me`'s, in a transaction. Returns how many.
    pub async fn keep_own(&self, lane: &mut Lane, wanted: &[Wanted], me: NodeId) -> Result<u64, LaneError> {
        let mut removed = 0;
        lane.command(UNSEEN).await?;
        for wanted in wanted {
            let Some(part) = self.of(wanted.table) else { continue };
            let Part { name, key, by, .. } = part;
            let which = part.condition(wanted, Which::All);
            let keys = format!("SELECT DISTINCT onecopy_row.{key} FROM ONLY {name} onecopy_row{which}");
            let keys = lane.query(&keys).await?;
            let keys = keys.into_iter().flatten().flatten().filter_map(|text| text.parse::<i64>().ok());
            let others: Vec<String> = keys
                .filter(|key| Divisions::owner(by, *key, self.nodes) != me)
                .map(|key| key.to_string())
                .collect();
            for keys in others.chunks(AT_ONCE) {
                let keys = keys.join(", ");
                let gone = lane
                    .query(&format!("DELETE FROM ONLY {name} WHERE {key} IN ({keys}) RETURNING 1"))
                    .await?;
                removed += gone.len() as u64;
            }
        }
        lane.command(SEEN).await?;
        Ok(removed)
    }

    /// Whether no table is divided by a column.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// All rows of all tables that are divided by a column.
    pub fn everything(&self) -> Vec<Wanted> {
        self.tables.iter().map(|part| Wanted { table: part.id, values: None }).collect()
    }
}

fn by(bounds: &[i64], nodes: u16) -> Result<By, String> {
    if bounds.is_empty() {
        return Ok(By::Hash);
    }
    if bounds.len() + 1 != usize::from(nodes) {
        let count = bounds.len();
        return Err(format!("{nodes} peers have {} bounds between them, and {count} are given", nodes - 1));
    }
    match bounds.is_sorted_by(|one, next| one < next) {
        true => Ok(By::Ranges(bounds.to_vec())),
        false => Err("its bounds do not rise".to_owned()),
    }
}

impl Part {
    fn new(id: TableId, table: &Table, column: &str, by: By) -> Result<Part, String> {
        let Some(key) = table.columns.iter().find(|of| of.name == column) else {
            return Err(format!("it has no column {column:?}"));
        };
        if !matches!(key.type_oid, oid::INT2 | oid::INT4 | oid::INT8) || !key.not_null {
            return Err(format!(
                "column {column:?} must be an integer (smallint, integer, bigint) that is NOT NULL"
            ));
        }
        if let Some(unique) = table.unique.iter().find(|unique| !unique.columns.contains(&key.number)) {
            return Err(format!(
                "no peer alone can see that {:?} is unique, which does not contain {column:?}",
                unique.name
            ));
        }
        if !table.unique.iter().any(|unique| unique.primary) {
            return Err("it has no primary key".to_owned());
        }
        if let Some(trigger) = table.triggers.iter().find(|trigger| trigger.enabled != 'O') {
            return Err(format!(
                "its trigger {:?} is ENABLE ALWAYS or REPLICA, and would see rows come and go",
                trigger.name
            ));
        }
        if table.rules {
            return Err("it has rules, which rows that come and go might meet".to_owned());
        }
        let depends = |check: &&String| {
            let mut words = check.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.any(|word| OF_SESSIONS.contains(&word.to_ascii_lowercase().as_str()))
        };
        if let Some(check) = table.checks.iter().find(depends) {
            return Err(format!(
                "its constraint {check} depends on who adds a row, or when, and rows that come from another peer are added anew"
            ));
        }
        if table.columns.iter().any(|column| column.name.starts_with("onecopy_")) {
            return Err("it has a column whose name begins with \"onecopy_\"".to_owned());
        }
        if table.exclusion {
            return Err("no peer alone can check its exclusion constraint".to_owned());
        }
        if table.kind != 'r' || !table.parents.is_empty() {
            return Err("it is no plain table: it is partitioned, inherits or is foreign".to_owned());
        }
        let is_written = |column: &&Column| column.generated.is_none();
        let columns = table.columns.iter().filter(is_written).map(|column| quote_identifier(&column.name));
        Ok(Part {
            id,
            name: format!("{}.{}", quote_identifier(&table.schema), quote_identifier(&table.name)),
            key: quote_identifier(column),
            column: ColumnId(key.number),
            columns: columns.collect(),
            by,
        })
    }

    /// The condition for what is wanted of it.
    fn condition(&self, wanted: &Wanted, which: Which) -> String {
        let mut conditions = Vec::new();
        if which == Which::Touched {
            conditions.push(TOUCHED.to_owned());
        }
        match &wanted.values {
            None => {}
            Some(values) if values.is_empty() => conditions.push("false".to_owned()),
            Some(values) => {
                let values: Vec<String> = values.iter().map(i64::to_string).collect();
                conditions.push(format!("onecopy_row.{} IN ({})", self.key, values.join(", ")));
            }
        }
        if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) }
    }

    fn removing(&self, rows: &[Row]) -> String {
        let Part { name, key, .. } = self;
        let values: Vec<String> = rows.iter().map(|(value, _)| value.to_string()).collect();
        let rows: Vec<String> = rows.iter().map(|(_, row)| quote(row)).collect();
        format!(
            "DELETE FROM ONLY {name} onecopy_row WHERE onecopy_row.{key} IN ({}) AND onecopy_row::text = ANY (ARRAY[{}]::pg_catalog.text[]) RETURNING 1",
            values.join(", "),
            rows.join(", ")
        )
    }

    fn adding(&self, rows: &[Row]) -> String {
        let Part { name, columns, .. } = self;
        let rows: Vec<String> = rows.iter().map(|(_, row)| quote(row)).collect();
        let of_row: Vec<String> = columns.iter().map(|column| format!("(onecopy_row).{column}")).collect();
        format!(
            "INSERT INTO {name} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM (SELECT onecopy_text::{name} AS onecopy_row \
             FROM pg_catalog.unnest(ARRAY[{}]::pg_catalog.text[]) onecopy_text OFFSET 0) onecopy_rows",
            columns.join(", "),
            of_row.join(", "),
            rows.join(", ")
        )
    }
}

/// Begins a transaction about rows of several peers, with its snapshot; [`come_in`] follows.
pub async fn open(lane: &mut Lane) -> Result<(), LaneError> {
    lane.command("BEGIN ISOLATION LEVEL REPEATABLE READ, READ WRITE; SELECT").await
}

/// The transaction is its client's from now on.
pub async fn come_in(lane: &mut Lane, record: &Record, writes: bool) -> Result<(), LaneError> {
    // In the end not all rows are here any more.
    let first = if writes { "SET CONSTRAINTS ALL IMMEDIATE" } else { "SET LOCAL transaction_read_only = on" };
    let mut own = Own::default();
    own.put(lane, first, &[])?;
    own.settle(lane, record)?;
    own.carry_out(lane).await
}

/// The transaction is onecopy's own again.
pub async fn come_out(lane: &mut Lane, record: &Record) -> Result<(), LaneError> {
    let mut text = "SET LOCAL ROLE NONE".to_owned();
    for (name, _) in record.settings.iter() {
        // Writing to a String cannot fail.
        let _ = write!(text, "; SET LOCAL {} TO DEFAULT", quote_identifier(name));
    }
    lane.command(&text).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_classify::catalogue::{Trigger, UniqueKey};
    use onecopy_core::{Item, Mode, ValueHash};

    fn column(number: u16, name: &str, type_oid: u32) -> Column {
        Column { number, name: name.into(), type_oid, not_null: true, ..Column::default() }
    }

    fn carts() -> Table {
        let key = |columns: &[u16]| UniqueKey {
            name: "carts_pkey".into(),
            columns: columns.into(),
            primary: true,
            ..UniqueKey::default()
        };
        let computed = Column { generated: Some('s'), ..column(3, "twice", oid::INT8) };
        Table {
            schema: "public".into(),
            name: "carts".into(),
            kind: 'r',
            columns: vec![column(1, "id", oid::INT4), column(2, "what", oid::TEXT), computed],
            unique: vec![key(&[1])],
            ..Table::default()
        }
    }

    fn divided(table: Table, column: &str, bounds: &[i64]) -> Result<Parts, String> {
        let mut catalogue = Catalogue::default();
        catalogue.tables.push(table);
        catalogue.rebuild();
        let part = PartSettings { table: "carts".into(), column: column.into(), bounds: bounds.into() };
        Parts::new(&[], &[part], &catalogue, 3).map_err(|error| error.to_string())
    }

    #[test]
    fn what_cannot_be_divided_is_refused_with_a_reason() {
        let says = |table: Table, column: &str, bounds: &[i64], what: &str| {
            let error = divided(table, column, bounds).err().unwrap_or_default();
            assert!(error.contains(what), "{error:?} does not say {what:?}");
        };
        says(carts(), "nr", &[], "no column \"nr\"");
        says(carts(), "what", &[], "must be an integer");
        says(carts(), "id", &[1], "3 peers have 2 bounds between them, and 1 are given");
        says(carts(), "id", &[2, 2], "do not rise");
        let unique = UniqueKey { name: "carts_what_key".into(), columns: vec![2], ..UniqueKey::default() };
        says(Table { unique: vec![unique], ..carts() }, "id", &[], "\"carts_what_key\" is unique");
        let triggers = vec![Trigger { enabled: 'A', ..Trigger::default() }];
        says(Table { triggers, ..carts() }, "id", &[], "is ENABLE ALWAYS or REPLICA");
        says(Table { rules: true, ..carts() }, "id", &[], "it has rules");
        let checks = vec!["((what = CURRENT_USER))".to_owned()];
        says(Table { checks, ..carts() }, "id", &[], "depends on who adds a row");
        says(Table { unique: Vec::new(), ..carts() }, "id", &[], "no primary key");
        says(Table { kind: 'p', ..carts() }, "id", &[], "no plain table");
        let catalogue = Catalogue::default();
        let part = PartSettings { table: "lost".into(), column: "id".into(), bounds: Vec::new() };
        let error = Parts::new(&[], &[part], &catalogue, 3).unwrap_err().to_string();
        assert!(error.contains("\"lost\", which is no table"), "{error}");
    }

    #[test]
    fn rows_are_added_as_they_are_written_but_for_what_the_server_computes() {
        let parts = divided(carts(), "id", &[10, 20]).unwrap();
        let rows = [(1, "(1,\"it's\",2)".to_owned())];
        let sql = parts.tables[0].adding(&rows);
        assert_eq!(
            sql,
            "INSERT INTO \"public\".\"carts\" (\"id\", \"what\") OVERRIDING SYSTEM VALUE SELECT (onecopy_row).\"id\", (onecopy_row).\"what\" \
             FROM (SELECT onecopy_text::\"public\".\"carts\" AS onecopy_row FROM pg_catalog.unnest(ARRAY['(1,\"it''s\",2)']::pg_catalog.text[]) \
             onecopy_text OFFSET 0) onecopy_rows"
        );
        assert_eq!(
            parts.tables[0].removing(&rows),
            "DELETE FROM ONLY \"public\".\"carts\" onecopy_row WHERE onecopy_row.\"id\" IN (1) AND \
             onecopy_row::text = ANY (ARRAY['(1,\"it''s\",2)']::pg_catalog.text[]) RETURNING 1"
        );
    }

    #[test]
    fn only_rows_that_may_be_touched_are_wanted_where_all_are_named() {
        let parts = divided(carts(), "id", &[]).unwrap();
        let (table, id) = (parts.tables[0].id, ColumnId(1));
        let row = |column, value| {
            let equals = [(column, ValueHash::of_integer(value))];
            Access::new(Item::rows(table, equals), Mode::Shared)
        };
        let schema = Access::new(Item::schema(table), Mode::KeyShared);
        let wanted =
            |access: &[Access]| parts.wanted(access).into_iter().map(|of| of.values).collect::<Vec<_>>();
        assert_eq!(wanted(&[row(id, 5), schema.clone(), row(id, -3)]), [Some(vec![-3, 5])]);
        assert_eq!(wanted(&[row(id, 5), row(ColumnId(2), 1)]), [None]);
        assert_eq!(wanted(&[schema]), []);
    }
}
