//! What would make replicas differ, and whether they do.

use std::ffi::OsString;
use std::process::Stdio;

use onecopy_classify::catalogue_queries::partitioned_by_oids_query;
use tokio::process::Command;

use crate::agent::quote_identifier;
use crate::lane::{Lane, LaneError};
use crate::postgres::version::{COLLATIONS_SQL, ServerVersion};
use crate::settings::{ReplicaSettings, ReplicaTls, Settings};

/// What a server says of itself that its answers may depend on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Names and values that must be equal on all replicas.
    pub settings: Vec<(String, String)>,
    /// How many tables, views, sequences and functions of users it holds, those of extensions left out.
    pub objects: u64,
    /// Whether the agent's role is a superuser.
    pub superuser: bool,
    /// Qualified names of unlogged tables and sequences, as SQL writes them.
    pub unlogged: Vec<String>,
    /// Qualified names of tables whose rows are in one partition or another by OIDs, which no other server has.
    pub parted_by_oids: Vec<String>,
}

/// What says the server's version, and that of what orders text.
const NUMBER: &str = "server_version_num";
const COLLATIONS: &str = "collation version";

/// Settings that change what a statement computes. Others, such as memory sizes, may differ.
const SETTINGS: &[&str] = &[
    NUMBER,
    "server_encoding",
    "integer_datetimes",
    "block_size",
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
    "default_text_search_config",
    "standard_conforming_strings",
    "extra_float_digits",
    "bytea_output",
    "search_path",
    "backslash_quote",
    "escape_string_warning",
    "array_nulls",
    "transform_null_equals",
    "xmlbinary",
    "xmloption",
    "default_with_oids",
    "row_security",
    "max_identifier_length",
    "timezone_abbreviations",
    "default_transaction_isolation",
];

/// Reads what must be equal.
pub async fn facts(lane: &mut Lane) -> Result<Facts, LaneError> {
    let names: Vec<String> = SETTINGS.iter().map(|name| format!("'{name}'")).collect();
    let sql = format!(
        "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ({names}) \
         UNION ALL SELECT name, value FROM pg_catalog.pg_database d, LATERAL (VALUES \
             ('collation', datcollate || ' ' || datctype || ' ' || coalesce(to_jsonb(d)->>'daticulocale', to_jsonb(d)->>'datlocale', '')), \
             ('{COLLATIONS}', {COLLATIONS_SQL})) of_database (name, value) \
             WHERE datname = current_database() \
         UNION ALL SELECT 'extension ' || extname, extversion FROM pg_catalog.pg_extension \
         ORDER BY 1",
        names = names.join(", ")
    );
    let pair = |row: Vec<Option<String>>| {
        let mut row = row.into_iter();
        (row.next().flatten().unwrap_or_default(), row.next().flatten().unwrap_or_default())
    };
    let settings = lane.query(&sql).await?.into_iter().map(pair).collect();
    let counts = lane
        .query(
            "SELECT (SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', 'onecopy') \
             AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend e WHERE e.classid = 'pg_catalog.pg_class'::regclass \
             AND e.objid = c.oid AND e.deptype = 'e')) \
             + (SELECT count(*) FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', 'onecopy') \
             AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend e WHERE e.classid = 'pg_catalog.pg_proc'::regclass \
             AND e.objid = p.oid AND e.deptype = 'e')), \
             (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user)",
        )
        .await?;
    let first = counts.into_iter().next().unwrap_or_default();
    let text = |i: usize| first.get(i).cloned().flatten().unwrap_or_default();
    let unlogged = lane
        .query(
            "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relpersistence = 'u' AND c.relkind IN ('r', 'p', 'S') ORDER BY c.relkind <> 'S' DESC, 1",
        )
        .await?;
    let parted = lane.query(&partitioned_by_oids_query()).await?;
    let names = |rows: Vec<Vec<Option<String>>>| {
        rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect()
    };
    Ok(Facts {
        settings,
        objects: text(0).parse().unwrap_or(0),
        superuser: text(1) == "t",
        unlogged: names(unlogged),
        parted_by_oids: names(parted),
    })
}

impl Facts {
    fn setting(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The server's version.
    pub fn version(&self) -> ServerVersion {
        let said = |key| self.setting(key).unwrap_or_default();
        ServerVersion::new(said(NUMBER), said(COLLATIONS))
    }

    /// What must be equal, where servers of one major version serve together.
    pub fn by_major_version(&self) -> impl Iterator<Item = (&str, String)> {
        let major = self.version().major;
        self.settings.iter().map(move |(name, value)| match name.as_str() {
            NUMBER => (NUMBER, major.to_string()),
            name => (name, value.clone()),
        })
    }

    /// What the server says whatever database is looked at. What orders text is known of databases only.
    pub fn of_server(&self) -> Facts {
        let of_server =
            |(name, _): &&(String, String)| !name.starts_with("collation") && !name.starts_with("extension ");
        Facts { settings: self.settings.iter().filter(of_server).cloned().collect(), ..self.clone() }
    }

    /// A setting that must be equal and is not, with its values there and here. Between servers that may be of different versions,
    /// if `versions_may_differ`, each has the settings and extensions of its own version.
    pub fn differs(
        &self,
        other: &Facts,
        versions_may_differ: bool,
    ) -> Option<(String, Option<String>, Option<String>)> {
        let other_version = versions_may_differ && self.version() != other.version();
        let counts = |key: &str, ours: Option<&str>, theirs: Option<&str>| match key {
            NUMBER | COLLATIONS => !versions_may_differ,
            _ if !other_version => true,
            _ if key.starts_with("extension ") => ours.is_none() || theirs.is_none(),
            _ => ours.is_some() && theirs.is_some(),
        };
        let keys = self.settings.iter().chain(&other.settings).map(|(key, _)| key.as_str());
        keys.map(|key| (key, self.setting(key), other.setting(key)))
            .find(|(key, ours, theirs)| ours != theirs && counts(key, *ours, *theirs))
            .map(|(key, ours, theirs)| (key.to_owned(), ours.map(str::to_owned), theirs.map(str::to_owned)))
    }
}

/// Compares replicas; the error says what differs and what to do. Their versions may differ where every change of rows can be
/// captured.
pub fn compare(replicas: &[(&str, &Facts)], versions_may_differ: bool) -> Result<(), String> {
    let Some((first_name, first)) = replicas.first() else { return Ok(()) };
    if let Some((name, _)) = replicas.iter().find(|(_, facts)| !facts.superuser) {
        return Err(format!(
            "the agent's role is no superuser on {name}; onecopy needs one to apply writes of all roles"
        ));
    }
    if let Some((name, facts)) = replicas.iter().find(|(_, facts)| !facts.unlogged.is_empty()) {
        let first = facts.unlogged.first().map_or("", String::as_str);
        return Err(format!(
            "{name} has unlogged relations ({}): a server that crashes empties its copy of them, and the others keep theirs. Make each logged on every replica (ALTER TABLE {first} SET LOGGED), see that all hold the same rows, and start again",
            facts.unlogged.join(", ")
        ));
    }
    if let Some((name, facts)) = replicas.iter().find(|(_, facts)| !facts.parted_by_oids.is_empty()) {
        return Err(format!(
            "{name} has tables partitioned by hashes of enumerations, or by OIDs ({}): these are other numbers on each server, and so rows lie in other partitions. Partition each by LIST or by another column on every replica (make a new table, INSERT INTO it from the old one, and rename it), and start again",
            facts.parted_by_oids.join(", ")
        ));
    }
    for (name, facts) in &replicas[1..] {
        if let Some((key, ours, theirs)) = first.differs(facts, versions_may_differ) {
            let said =
                |value: Option<String>| value.map_or_else(|| "missing".to_owned(), |v| format!("\"{v}\""));
            return Err(format!(
                "{key} is {} on {first_name} and {} on {name}; replicas must agree in it, since the same statement would have different results. Make it equal and start again",
                said(ours),
                said(theirs)
            ));
        }
    }
    Ok(())
}

/// One table's name, number of rows, and a sum of hashes of its rows that does not depend on their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableSum {
    /// Qualified name.
    pub table: String,
    /// Rows.
    pub rows: String,
    /// Sum of hashes.
    pub sum: String,
}

/// Makes rows read the same as text on every replica, whoever used the lane before and whenever it logged in.
const PLAIN_TEXT: &str = "SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO, YMD'; \
     SET LOCAL IntervalStyle = 'iso_8601'; SET LOCAL extra_float_digits = 3; SET LOCAL bytea_output = 'hex'; \
     SET LOCAL lc_monetary = 'C'; SET LOCAL xmlbinary = 'base64'; SET LOCAL search_path = pg_catalog; \
     SET LOCAL quote_all_identifiers = off";

/// Sums up every table and materialized view of users, in the lane's open transaction.
pub async fn contents(lane: &mut Lane) -> Result<Vec<TableSum>, LaneError> {
    sums(lane, "'r', 'm'").await
}

/// The same for relations of some kinds (literals of `pg_class.relkind`). A materialized view that was never filled has no
/// contents, and cannot be read.
pub async fn sums(lane: &mut Lane, kinds: &str) -> Result<Vec<TableSum>, LaneError> {
    lane.command(PLAIN_TEXT).await?;
    let tables = lane
        .query(&format!(
            "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relkind IN ({kinds}) AND c.relispopulated AND n.nspname NOT LIKE 'pg\\_%' \
             AND n.nspname NOT IN ('information_schema', 'onecopy') ORDER BY 1, 2"
        ))
        .await?;
    let mut sums = Vec::with_capacity(tables.len());
    for row in tables {
        let mut row = row.into_iter().map(Option::unwrap_or_default);
        let (schema, table) = (row.next().unwrap_or_default(), row.next().unwrap_or_default());
        let name = format!("{}.{}", quote_identifier(&schema), quote_identifier(&table));
        let sql = format!(
            "SELECT count(*), coalesce(sum(pg_catalog.hashtextextended((t.*)::text, 0)::numeric), 0) FROM {name} t"
        );
        let found = lane.query(&sql).await?.into_iter().next().unwrap_or_default();
        let text = |i: usize| found.get(i).cloned().flatten().unwrap_or_default();
        sums.push(TableSum { table: format!("{schema}.{table}"), rows: text(0), sum: text(1) });
    }
    Ok(sums)
}

/// Names of tables that differ, with how.
pub fn differences(a: &[TableSum], b: &[TableSum]) -> Vec<String> {
    let mut found = Vec::new();
    for one in a {
        match b.iter().find(|other| other.table == one.table) {
            None => found.push(format!("{} (missing)", one.table)),
            Some(other) if other.rows != one.rows => {
                found.push(format!("{} ({} rows and {})", one.table, one.rows, other.rows));
            }
            Some(other) if other.sum != one.sum => found.push(format!("{} (contents)", one.table)),
            Some(_) => {}
        }
    }
    found.extend(
        b.iter().filter(|o| !a.iter().any(|t| t.table == o.table)).map(|o| format!("{} (missing)", o.table)),
    );
    found
}

/// By which variables libpq's programs connect to a replica as onecopy does.
fn libpq(settings: &Settings, replica: &ReplicaSettings) -> Vec<(&'static str, OsString)> {
    let (mode, root) = match &replica.tls {
        ReplicaTls::Disable => ("disable", None),
        ReplicaTls::Require => ("require", None),
        ReplicaTls::VerifyFull { root } => ("verify-full", Some(root)),
    };
    let given = [
        ("PGHOST", replica.host.clone().into()),
        ("PGPORT", replica.port.to_string().into()),
        ("PGUSER", settings.agent_user.clone().into()),
        ("PGDATABASE", settings.database.clone().into()),
        ("PGSSLMODE", mode.into()),
    ];
    let root = root.map(|root| ("PGSSLROOTCERT", root.into()));
    let password = settings.agent_password.as_ref().map(|password| ("PGPASSWORD", password.into()));
    given.into_iter().chain(root).chain(password).collect()
}

/// One of libpq's programs, which connects to a replica as onecopy does.
pub fn libpq_program(program: &str, settings: &Settings, replica: &ReplicaSettings) -> Command {
    let mut command = Command::new(program);
    command.env_remove("PGSERVICE").env_remove("PGHOSTADDR").envs(libpq(settings, replica));
    command
}

/// What to say if such a program cannot be started.
pub fn missing_program(program: &str, error: &std::io::Error) -> String {
    format!(
        "start {program}: {error}; install the PostgreSQL client programs (Debian: apt-get install postgresql-client)"
    )
}

/// Copies a whole database from one replica to another, empty one, with pg_dump and psql.
pub async fn copy(settings: &Settings, from: usize, to: usize) -> Result<(), String> {
    let mut dump = libpq_program("pg_dump", settings, &settings.replicas[from]);
    dump.arg("--no-sync").stdout(Stdio::piped()).stdin(Stdio::null());
    let mut restore = libpq_program("psql", settings, &settings.replicas[to]);
    // All of it or nothing: half a copy would count as a database at the next start.
    restore.args(["-X", "-q", "--single-transaction", "-v", "ON_ERROR_STOP=1"]).stdout(Stdio::null());
    let mut dump = dump.spawn().map_err(|error| missing_program("pg_dump", &error))?;
    let output: Stdio = match dump.stdout.take().map(TryInto::try_into) {
        Some(Ok(output)) => output,
        _ => return Err("pg_dump has no output".to_owned()),
    };
    let status = restore.stdin(output).status().await.map_err(|error| missing_program("psql", &error))?;
    let dumped = dump.wait().await.map_err(|error| missing_program("pg_dump", &error))?;
    if dumped.success() && status.success() {
        Ok(())
    } else {
        Err(format!("pg_dump ended with {dumped}, psql with {status}; their messages are above"))
    }
}
