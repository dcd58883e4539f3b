//! The replica that is copied from: its snapshot, and everything but rows that is read in it.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use onecopy_core::Csn;

use crate::agent::quote;
use crate::clock::Deadline;
use crate::copy::CopyError;
use crate::copy::roles::{self, Roles};
use crate::copy::watch::label;
use crate::lane::{Lane, LaneError};
use crate::pool::Pool;
use crate::postgres::checks::{self, Facts, TableSum};
use crate::postgres::progress::{self, Position};
use crate::server::Shared;

/// A table in a definite state is waited for that long. Who holds it changes it, so the copy would begin anew in any case.
const LOCK_TIMEOUT: &str = "2s";
/// How long replicas may take until one contains what a copy must, and how often it is looked.
const SOURCE_WAIT: Duration = Duration::from_secs(10);
const SOURCE_PAUSE: Duration = Duration::from_millis(5);
/// Names in one statement.
const NAMES_AT_ONCE: usize = 200;

/// Schemas whose contents are copied; onecopy's own is made by the last transaction.
const USERS_SCHEMA: &str = "n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'onecopy')";

/// A table whose rows are to be copied.
#[derive(Clone, Debug)]
pub struct Table {
    /// As SQL writes it, with its columns in parentheses unless it has none that hold anything by themselves.
    pub sql: String,
    /// The name alone.
    pub name: String,
    /// Its extension may have filled it already.
    pub is_extensions: bool,
    /// What it takes on disk.
    pub bytes: u64,
}

/// Where a sequence stands.
#[derive(Clone, Debug)]
pub struct Place {
    pub sequence: String,
    pub last: String,
    pub is_called: bool,
}

/// What pg_dump says of the definitions.
pub struct Definitions {
    /// What stands before the rows: the database itself, then what is in it.
    pub before: String,
    pub after: String,
}

/// A snapshot that is held open, and what was read in it.
pub struct Exported {
    /// The transaction whose snapshot it is; it holds a lock on every table.
    lane: Lane,
    /// By which others take the snapshot.
    pub snapshot: String,
    pub position: Position,
    pub tables: Vec<Table>,
    pub name: String,
    pub facts: Facts,
    pub roles: Roles,
    pub definitions: Definitions,
    rest: Rest,
}

/// What is still needed when the rows have been copied.
pub struct Rest {
    pub position: Position,
    /// Rows of `onecopy.progress`: commit, the one before, epoch.
    pub progress: Vec<[String; 3]>,
    pub places: Vec<Place>,
    pub views: Vec<TableSum>,
    pub after: String,
}

impl Exported {
    /// Lets the snapshot go.
    pub fn end(self) -> Rest {
        drop(self.lane);
        Rest { after: self.definitions.after, ..self.rest }
    }
}

/// The replica in service with the least to do, that contains all definitions and the commit `floor`: of those whose servers are
/// of the oldest version, since pg_dump reads no newer one than its own. Waits until there is one, for a while; then any will do.
pub async fn choose(shared: &Shared, target: &Pool, floor: Csn) -> Result<Arc<Pool>, CopyError> {
    let deadline = Deadline::after(SOURCE_WAIT);
    loop {
        shared.classifier.settled().await;
        let is_late = deadline.has_passed();
        if let Some(source) = candidate(shared, target, floor, is_late) {
            return Ok(source);
        }
        if is_late {
            return Err(CopyError::NoSource);
        }
        for pool in shared.pools.in_service() {
            // Nobody else may have asked for what it lacks.
            shared.scheduler.want(pool.replica, floor);
        }
        tokio::time::sleep(SOURCE_PAUSE).await;
    }
}

fn candidate(shared: &Shared, target: &Pool, floor: Csn, of_any_version: bool) -> Option<Arc<Pool>> {
    let status = shared.scheduler.status();
    let outstanding = |pool: &&Arc<Pool>| {
        status.replicas.get(usize::from(pool.replica.0)).map_or(f64::MAX, |replica| replica.outstanding_ns)
    };
    let contains = |pool: &&Arc<Pool>| {
        let replica = status.replicas.get(usize::from(pool.replica.0));
        replica.is_some_and(|replica| replica.applied >= floor.0) && shared.contains_definitions(pool)
    };
    let others = || {
        let is_other = |pool: &&Arc<Pool>| pool.replica != target.replica && !pool.is_leaving();
        shared.pools.in_service().filter(is_other)
    };
    let oldest = others().map(|pool| pool.version()).min();
    let is_old = |pool: &&Arc<Pool>| of_any_version || Some(pool.version()) == oldest;
    let candidates = others().filter(is_old).filter(contains);
    let least = candidates
        .min_by(|a, b| a.version().cmp(&b.version()).then_with(|| outstanding(a).total_cmp(&outstanding(b))));
    least.cloned()
}

/// Opens the snapshot, keeps its tables as they are, and reads what belongs to it.
pub async fn export(shared: &Shared, source: &Arc<Pool>, target: &Pool) -> Result<Exported, CopyError> {
    let on_source = CopyError::on(source);
    let generation = shared.classifier.generation();
    if shared.classifier.is_changing() || !shared.contains_definitions(source) {
        return Err(CopyError::DefinitionsChanged);
    }
    let facts = async {
        let mut plain = source.connector.connect_plain(&shared.agent).await?;
        checks::facts(&mut plain).await
    };
    let facts = facts.await.map_err(&on_source)?;
    let read = async {
        let mut lane = open(shared, source, target).await?;
        let snapshot = first(lane.query("SELECT pg_catalog.pg_export_snapshot()").await?);
        let position = progress::read(&mut lane).await?.ok_or(LaneError::Closed)?;
        let tables = tables(&mut lane).await?;
        lock(&mut lane).await?;
        let roles = roles::read(&mut lane).await?;
        let progress = lane.query("SELECT csn, prev, epoch FROM onecopy.progress ORDER BY csn").await?;
        let progress = progress.into_iter().filter_map(three).collect();
        // Their locks are taken by reading them.
        let views = checks::sums(&mut lane, "'m'").await?;
        let places = places(&mut lane).await?;
        let rest = Rest { position: position.clone(), progress, places, views, after: String::new() };
        Ok((lane, snapshot, position, tables, roles, rest))
    };
    let (lane, snapshot, position, tables, roles, rest) = read.await.map_err(&on_source)?;
    let definitions = Definitions {
        before: dump(shared, source, target, &snapshot, &["--create", "--section=pre-data"]).await?,
        after: dump(shared, source, target, &snapshot, &["--section=post-data"]).await?,
    };
    // Parts of them are printed as they are now, and no longer as they were in the snapshot.
    if shared.classifier.is_newer_than(generation) {
        return Err(CopyError::DefinitionsChanged);
    }
    let name = source.name().to_owned();
    Ok(Exported { lane, snapshot, position, tables, name, facts, roles, definitions, rest })
}

/// A connection with a transaction that shows one snapshot, by which the copy's sessions are known on the source.
pub async fn open(shared: &Shared, source: &Pool, target: &Pool) -> Result<Lane, LaneError> {
    let mut lane = source.connector.connect_unmarked(&shared.agent).await?;
    lane.command(&format!(
        "SET application_name = {}; SET search_path = ''; SET lock_timeout = '{LOCK_TIMEOUT}'; SET extra_float_digits = 3; \
         SET synchronize_seqscans = off; SET row_security = off",
        quote(&label(target))
    ))
    .await?;
    lane.command("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
    Ok(lane)
}

/// All tables with rows, the largest first. Large objects are two tables of the server's, of which pg_dump makes one.
async fn tables(lane: &mut Lane) -> Result<Vec<Table>, LaneError> {
    let rows = lane
        .query(&format!(
            "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), \
             (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY a.attnum) \
             FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''), \
             EXISTS (SELECT FROM pg_catalog.pg_depend e WHERE e.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
             AND e.objid = c.oid AND e.deptype = 'e'), pg_catalog.pg_table_size(c.oid) \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relkind = 'r' AND {USERS_SCHEMA} \
             UNION ALL SELECT 'pg_catalog.pg_largeobject', 'loid, pageno, data', false, \
             pg_catalog.pg_table_size('pg_catalog.pg_largeobject') \
             WHERE EXISTS (SELECT FROM pg_catalog.pg_largeobject_metadata) \
             ORDER BY 4 DESC, 1"
        ))
        .await?;
    let table = |row: Vec<Option<String>>| {
        let mut row = row.into_iter();
        let name = row.next().flatten()?;
        let columns = row.next().flatten();
        let is_extensions = row.next().flatten().as_deref() == Some("t");
        let bytes = row.next().flatten().and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        let sql = columns.map_or_else(|| name.clone(), |columns| format!("{name} ({columns})"));
        Some(Table { sql, name, is_extensions, bytes })
    };
    Ok(rows.into_iter().filter_map(table).collect())
}

/// Nobody empties or rewrites a table from here on.
async fn lock(lane: &mut Lane) -> Result<(), LaneError> {
    let names = lane
        .query(&format!(
            "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND {USERS_SCHEMA}"
        ))
        .await?;
    let names: Vec<String> = names.into_iter().flatten().flatten().collect();
    for some in names.chunks(NAMES_AT_ONCE) {
        lane.command(&format!("LOCK TABLE {} IN ACCESS SHARE MODE", some.join(", "))).await?;
    }
    Ok(())
}

/// Where all sequences stand now: in no snapshot, but at or behind the snapshot's commit.
async fn places(lane: &mut Lane) -> Result<Vec<Place>, LaneError> {
    let names = lane
        .query(&format!(
            "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'S' AND {USERS_SCHEMA}"
        ))
        .await?;
    let names: Vec<String> = names.into_iter().flatten().flatten().collect();
    let mut places = Vec::with_capacity(names.len());
    for some in names.chunks(NAMES_AT_ONCE) {
        let queries: Vec<String> = some
            .iter()
            .map(|name| format!("SELECT {}, last_value, is_called FROM {name}", quote(name)))
            .collect();
        let rows = lane.query(&queries.join(" UNION ALL ")).await?;
        places.extend(rows.into_iter().filter_map(three).map(|[sequence, last, is_called]| Place {
            sequence,
            last,
            is_called: is_called == "t",
        }));
    }
    Ok(places)
}

/// What pg_dump writes of one section under the snapshot.
async fn dump(
    shared: &Shared,
    source: &Pool,
    target: &Pool,
    snapshot: &str,
    arguments: &[&str],
) -> Result<String, CopyError> {
    let failed = |message: String| CopyError::Dump { name: source.name().to_owned(), message };
    let output = checks::libpq_program("pg_dump", &shared.settings, &source.connector.address)
        .env("PGAPPNAME", label(target))
        .args(["--no-sync", "--encoding=UTF8", "--exclude-schema=onecopy"])
        .arg(format!("--snapshot={snapshot}"))
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| failed(checks::missing_program("pg_dump", &error)))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    String::from_utf8(output.stdout).map_err(|error| failed(error.to_string()))
}

fn first(rows: Vec<Vec<Option<String>>>) -> String {
    rows.into_iter().flatten().flatten().next().unwrap_or_default()
}

fn three(row: Vec<Option<String>>) -> Option<[String; 3]> {
    row.into_iter().collect::<Option<Vec<String>>>()?.try_into().ok()
}
