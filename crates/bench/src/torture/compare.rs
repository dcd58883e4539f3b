//! Compares servers that should hold the same: every definition, every row of every table, every sequence.
//!
//! Each server is read directly, in one snapshot. Servers must be at rest, or still catching up, in which case
//! [`compare_until_identical`] waits for them; comparing at one position while clients write is another tool's work.
//!
//! Rows are compared as sets in which equal rows are counted: by a hash of the sorted hashes of the rows' text
//! forms, which needs no key and no collation. Where a table differs, its rows are fetched by parts (by the first
//! two digits of a row's hash) until there are enough differences to show.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use crate::connection::Target;
use crate::{Error, Result};

/// What to compare.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Schemas that are left out, besides PostgreSQL's own.
    pub skip_schemas: Vec<String>,
    /// Whether sequences are compared. A server to which values were handed in never moved its own.
    pub sequences: bool,
    /// How many rows of a table that differs are shown for each server.
    pub rows_shown: usize,
}

impl Default for CompareOptions {
    /// Everything but the schema `onecopy`, in which each server's bookkeeping is.
    fn default() -> CompareOptions {
        CompareOptions { skip_schemas: vec!["onecopy".to_owned()], sequences: true, rows_shown: 5 }
    }
}

/// What was compared, and what differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// The servers compared, as host:port/database.
    pub servers: Vec<String>,
    /// Every table, as the first server that has it shows it.
    pub tables: Vec<TableDigest>,
    /// How many definitions were compared: tables, columns, constraints, indexes, triggers, views, functions.
    pub definitions: usize,
    /// What differs; empty if all is the same.
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Whether nothing differs.
    #[must_use]
    pub fn identical(&self) -> bool {
        self.differences.is_empty()
    }
}

/// A table's contents in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDigest {
    /// With its schema, quoted as SQL needs it.
    pub table: String,
    /// How many rows it has.
    pub rows: u64,
    /// A hash of all rows in 32 hexadecimal digits.
    pub md5: String,
}

/// One difference between servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Difference {
    /// Something is defined differently, or not everywhere.
    Definition {
        /// Kind and name, such as `column public.item.i_cost`.
        what: String,
        /// By server, `None` where it does not exist.
        definitions: Vec<(String, Option<String>)>,
    },
    /// A table's rows differ.
    Rows {
        /// The table.
        table: String,
        /// Server and number of rows.
        counts: Vec<(String, u64)>,
        /// Some rows that a server has and the first does not, or the other way round: the server that has it, how
        /// often more, the row.
        examples: Vec<(String, i64, String)>,
    },
    /// A sequence stands elsewhere.
    Sequence {
        /// The sequence.
        sequence: String,
        /// By server: the last value, and whether it was handed out.
        positions: Vec<(String, Option<(i64, bool)>)>,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Definition { what, definitions } => {
                write!(f, "{what} is not the same:")?;
                for (server, definition) in definitions {
                    write!(f, "\n  {server}: {}", definition.as_deref().unwrap_or("does not exist"))?;
                }
                Ok(())
            }
            Difference::Rows { table, counts, examples } => {
                write!(f, "rows of {table} are not the same:")?;
                for (server, count) in counts {
                    write!(f, "\n  {server}: {count} rows")?;
                }
                for (server, count, row) in examples {
                    write!(f, "\n  {server} has {count} more of {row}")?;
                }
                Ok(())
            }
            Difference::Sequence { sequence, positions } => {
                write!(f, "sequence {sequence} is not the same:")?;
                for (server, position) in positions {
                    match position {
                        Some((last, true)) => write!(f, "\n  {server}: last value {last}")?,
                        Some((first, false)) => write!(f, "\n  {server}: not used, begins with {first}")?,
                        None => write!(f, "\n  {server}: does not exist")?,
                    }
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: u64 = self.tables.iter().map(|table| table.rows).sum();
        write!(
            f,
            "{} servers, {} tables, {rows} rows, {} definitions: {} differences",
            self.servers.len(),
            self.tables.len(),
            self.definitions,
            self.differences.len()
        )?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n{difference}"))
    }
}

/// Compares all user tables of all servers, with their definitions and sequences.
///
/// # Errors
/// If a server cannot be reached or read.
pub async fn compare_replicas(dsns: &[String]) -> Result<Comparison> {
    compare_replicas_with(dsns, &CompareOptions::default()).await
}

/// Compares what `options` say.
///
/// # Errors
/// If a server cannot be reached or read.
pub async fn compare_replicas_with(dsns: &[String], options: &CompareOptions) -> Result<Comparison> {
    let servers = try_join_all(dsns.iter().map(|dsn| Server::open(dsn))).await?;
    let mut comparison = Comparison {
        servers: servers.iter().map(|server| server.name.clone()).collect(),
        ..Comparison::default()
    };
    let definitions = try_join_all(servers.iter().map(|server| server.definitions(options))).await?;
    comparison.definitions = definitions.iter().map(BTreeMap::len).max().unwrap_or_default();
    for (what, definitions) in side_by_side(&servers, &definitions) {
        comparison.differences.push(Difference::Definition { what, definitions });
    }
    let tables = try_join_all(servers.iter().map(|server| server.tables(options))).await?;
    for table in tables.iter().flatten().collect::<BTreeSet<_>>() {
        let having: Vec<&Server> = servers
            .iter()
            .zip(&tables)
            .filter(|(_, tables)| tables.contains(table))
            .map(|(server, _)| server)
            .collect();
        let (digest, difference) = compare_table(&having, table, options).await?;
        comparison.tables.push(digest);
        comparison.differences.extend(difference);
    }
    if options.sequences {
        let sequences = try_join_all(servers.iter().map(|server| server.sequences(options))).await?;
        for (sequence, positions) in side_by_side(&servers, &sequences) {
            comparison.differences.push(Difference::Sequence { sequence, positions });
        }
    }
    Ok(comparison)
}

/// Compares again and again until all is the same or `patience` is over; the last comparison.
///
/// # Errors
/// If a server cannot be reached or read.
pub async fn compare_until_identical(
    dsns: &[String],
    options: &CompareOptions,
    patience: Duration,
) -> Result<Comparison> {
    let began = Instant::now();
    loop {
        let comparison = compare_replicas_with(dsns, options).await?;
        if comparison.identical() || began.elapsed() >= patience {
            return Ok(comparison);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What each server has, `None` if nothing.
type ByServer<T> = Vec<(String, Option<T>)>;

/// What is not the same on all servers, by name.
fn side_by_side<T: Clone + PartialEq>(
    servers: &[Server],
    found: &[BTreeMap<String, T>],
) -> Vec<(String, ByServer<T>)> {
    let names: BTreeSet<&String> = found.iter().flat_map(BTreeMap::keys).collect();
    let of_all = |name: &String| found.iter().map(|found| found.get(name).cloned()).collect::<Vec<_>>();
    names
        .into_iter()
        .map(|name| (name, of_all(name)))
        .filter(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1]))
        .map(|(name, values)| {
            (name.clone(), servers.iter().map(|server| server.name.clone()).zip(values).collect())
        })
        .collect()
}

async fn compare_table(
    servers: &[&Server],
    table: &str,
    options: &CompareOptions,
) -> Result<(TableDigest, Option<Difference>)> {
    let digests = try_join_all(servers.iter().map(|server| server.digest(table))).await?;
    let first = digests[0].clone();
    if digests.iter().all(|digest| *digest == first) {
        return Ok((first, None));
    }
    let mut examples = Vec::new();
    for (server, digest) in servers.iter().zip(&digests).skip(1) {
        if *digest != first {
            examples.extend(rows_that_differ(servers[0], server, table, options.rows_shown).await?);
        }
    }
    let counts =
        servers.iter().zip(&digests).map(|(server, digest)| (server.name.clone(), digest.rows)).collect();
    Ok((first, Some(Difference::Rows { table: table.to_owned(), counts, examples })))
}

async fn rows_that_differ(
    one: &Server,
    other: &Server,
    table: &str,
    shown: usize,
) -> Result<Vec<(String, i64, String)>> {
    let (of_one, of_other) = (one.parts(table).await?, other.parts(table).await?);
    let parts: BTreeSet<&String> = of_one.keys().chain(of_other.keys()).collect();
    let mut examples = Vec::new();
    for part in parts {
        if of_one.get(part) == of_other.get(part) {
            continue;
        }
        let mut surplus: BTreeMap<String, i64> = BTreeMap::new();
        for (server, sign) in [(one, 1), (other, -1)] {
            for row in server.rows(table, part).await? {
                *surplus.entry(row).or_default() += sign;
            }
        }
        for (row, count) in surplus.into_iter().filter(|(_, count)| *count != 0) {
            let server = if count > 0 { one } else { other };
            examples.push((server.name.clone(), count.abs(), row));
            if examples.len() >= shown {
                return Ok(examples);
            }
        }
    }
    Ok(examples)
}

/// One server, read in one snapshot.
struct Server {
    name: String,
    client: Client,
}

/// Schemas that users' objects are in; `$1` are those left out.
const USERS: &str = "n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') \
                     AND n.nspname NOT LIKE 'pg_temp%' AND n.nspname NOT LIKE 'pg_toast_temp%' \
                     AND n.nspname <> ALL ($1)";

impl Server {
    async fn open(dsn: &str) -> Result<Server> {
        let target = Target::parse(dsn)?;
        let client = target.connect().await?;
        let server = Server { name: target.name(), client };
        // Text forms must be the same wherever values are.
        let settings = "SET search_path = pg_catalog; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'iso_8601'; \
                        SET TimeZone = 'UTC'; SET extra_float_digits = 1; SET bytea_output = 'hex'; \
                        SET statement_timeout = 0; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        server.client.batch_execute(settings).await.map_err(server.error("take a snapshot"))?;
        Ok(server)
    }

    fn error(&self, doing: &str) -> impl FnOnce(tokio_postgres::Error) -> Error + use<> {
        Error::database(format!("{doing} on {}", self.name))
    }

    async fn pairs(
        &self,
        sql: &str,
        options: &CompareOptions,
        doing: &str,
    ) -> Result<BTreeMap<String, String>> {
        let sql = sql.replace("{users}", USERS);
        let rows = self.client.query(&sql, &[&options.skip_schemas]).await.map_err(self.error(doing))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// By kind and name.
    async fn definitions(&self, options: &CompareOptions) -> Result<BTreeMap<String, String>> {
        let sql = "\
            SELECT CASE c.relkind WHEN 'v' THEN 'view ' WHEN 'm' THEN 'materialized view ' WHEN 'S' THEN 'sequence ' \
                   ELSE 'table ' END || c.oid::regclass, \
                   c.relkind::text || ' ' || c.relpersistence::text || \
                   CASE WHEN c.relkind IN ('v', 'm') THEN ' ' || pg_get_viewdef(c.oid) ELSE '' END \
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
            WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f') AND {users} \
            UNION ALL \
            SELECT 'column ' || c.oid::regclass || '.' || quote_ident(a.attname), \
                   concat_ws(' ', row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), \
                             format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END, \
                             a.attidentity::text, a.attgenerated::text, pg_get_expr(d.adbin, d.adrelid)) \
            FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
            LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
            WHERE c.relkind IN ('r', 'p', 'f') AND a.attnum > 0 AND NOT a.attisdropped AND {users} \
            UNION ALL \
            SELECT 'constraint ' || k.conrelid::regclass || '.' || quote_ident(k.conname), \
                   pg_get_constraintdef(k.oid) || ' ' || k.convalidated \
            FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace WHERE k.conrelid <> 0 AND {users} \
            UNION ALL \
            SELECT 'index ' || i.indexrelid::regclass, pg_get_indexdef(i.indexrelid) || ' ' || i.indisvalid \
            FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
            WHERE {users} \
            UNION ALL \
            SELECT 'trigger ' || t.tgrelid::regclass || '.' || quote_ident(t.tgname), \
                   pg_get_triggerdef(t.oid) || ' ' || t.tgenabled::text \
            FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
            WHERE NOT t.tgisinternal AND {users} \
            UNION ALL \
            SELECT 'function ' || p.oid::regprocedure, pg_get_functiondef(p.oid) \
            FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.prokind IN ('f', 'p') AND {users}";
        self.pairs(sql, options, "read the definitions").await
    }

    /// Tables that hold rows themselves.
    async fn tables(&self, options: &CompareOptions) -> Result<BTreeSet<String>> {
        let sql = "SELECT c.oid::regclass::text, '' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE c.relkind IN ('r', 'm') AND {users}";
        Ok(self.pairs(sql, options, "read the list of tables").await?.into_keys().collect())
    }

    async fn sequences(&self, options: &CompareOptions) -> Result<BTreeMap<String, (i64, bool)>> {
        let sql = "SELECT c.oid::regclass::text, '' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE c.relkind = 'S' AND {users}";
        let mut positions = BTreeMap::new();
        for sequence in self.pairs(sql, options, "read the list of sequences").await?.into_keys() {
            let sql = format!("SELECT last_value, is_called FROM {sequence}");
            let row = self.client.query_one(&sql, &[]).await.map_err(self.error("read a sequence"))?;
            positions.insert(sequence, (row.get(0), row.get(1)));
        }
        Ok(positions)
    }

    async fn digest(&self, table: &str) -> Result<TableDigest> {
        let sql = format!(
            "SELECT coalesce(sum(n), 0)::bigint, coalesce(md5(string_agg(part || d, '' ORDER BY part COLLATE \"C\")), '') \
             FROM ({}) parts",
            parts_of(table)
        );
        let row = self.client.query_one(&sql, &[]).await.map_err(self.error(&format!("read {table}")))?;
        let rows = u64::try_from(row.get::<_, i64>(0)).unwrap_or_default();
        Ok(TableDigest { table: table.to_owned(), rows, md5: row.get(1) })
    }

    /// A hash for each part of a table, by the first two digits of its rows' hashes.
    async fn parts(&self, table: &str) -> Result<BTreeMap<String, String>> {
        let rows =
            self.client.query(&parts_of(table), &[]).await.map_err(self.error(&format!("read {table}")))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(2))).collect())
    }

    /// The rows of a part, in text form.
    async fn rows(&self, table: &str, part: &str) -> Result<Vec<String>> {
        let sql = format!("SELECT t::text FROM ONLY {table} t WHERE left(md5(t::text), 2) = $1");
        let rows = self.client.query(&sql, &[&part]).await.map_err(self.error(&format!("read {table}")))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// The parts of a table as rows (part, n, d). A hash for each part keeps the strings that are built short.
fn parts_of(table: &str) -> String {
    format!(
        "SELECT left(h, 2) AS part, count(*) AS n, md5(string_agg(h, '' ORDER BY h COLLATE \"C\")) AS d \
         FROM (SELECT md5(t::text) AS h FROM ONLY {table} t) hashes GROUP BY 1"
    )
}
