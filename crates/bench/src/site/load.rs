//! Fills a database with a site.

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::SinkExt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onecopy_workload::Timestamp;
use onecopy_workload::catalogue::{Catalogue, Table};
use onecopy_workload::site::SiteRows;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{Options, Website, mark};
use crate::connection::Target;
use crate::table::{self, thousands};
use crate::{Error, Result};

/// Keys that a loading connection takes at once.
const BATCH_KEYS: i64 = 500;
/// One COPY has so many bytes, and the rows of one key more. Small enough that every proxy takes it, and that one log record stays
/// well below a megabyte.
const COPY_BYTES: usize = 256 * 1_024;
/// More connections than this only queue at one server.
const LOAD_CONNECTIONS_MAX: u32 = 4;

/// What was loaded.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// What it is: "bookstore".
    pub site: &'static str,
    /// How large it is, in words.
    pub size: String,
    /// Tables and their rows.
    pub tables: Vec<(String, u64)>,
    /// How long it took.
    pub seconds: f64,
    /// The site was there already and was left alone, with whatever users have done since.
    pub was_there: bool,
    /// The target refused COPY, and rows went in by INSERT.
    pub by_insert: bool,
    /// What must be known of the site to read reports on it.
    pub remark: Option<String>,
}

impl LoadReport {
    fn there<S: Website>(site: &S) -> Self {
        let (size, remark, tables) = (site.size(), site.remark(), Vec::new());
        LoadReport { site: S::NAME, size, tables, seconds: 0.0, was_there: true, by_insert: false, remark }
    }

    /// All rows.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|(_, rows)| rows).sum()
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.was_there {
            return write!(f, "The {} ({}) is loaded already.", self.site, self.size);
        }
        let mut table = table::Table::new(["table", "rows"]);
        for (name, rows) in &self.tables {
            table.row([name.clone(), thousands(*rows as f64)]);
        }
        write!(f, "{}", table.terminal())?;
        let how = if self.by_insert { " by INSERT, since the target refuses COPY" } else { "" };
        write!(f, "{} rows in {:.1} s{how}", thousands(self.rows() as f64), self.seconds)?;
        match &self.remark {
            Some(remark) => write!(f, "\n{remark}"),
            None => Ok(()),
        }
    }
}

/// Makes the tables, fills them and adds indexes and foreign keys. A site of the same scale and seed that is there already is left
/// alone.
///
/// # Errors
/// If [`Options::reload`] is not set, [`Error::OtherSite`] if one of another scale or seed is there, and [`Error::InTheWay`] if there
/// are tables of which nobody knows what they hold; what the database refuses.
pub async fn load<S: Website>(options: &Options<S>) -> Result<LoadReport> {
    load_at(options, now()).await
}

/// The same at a given time, which rows hold: what is loaded into two databases at one time is the same.
pub(crate) async fn load_at<S: Website>(options: &Options<S>, loaded_at: Timestamp) -> Result<LoadReport> {
    let (site, catalogue) = (&options.site, S::catalogue());
    let population = site.population(options.seed, loaded_at)?;
    let target = Target::parse(&options.target)?;
    let client = target.connect().await?;
    match mark::look_for(&client, site).await? {
        Some(there) if !options.reload => {
            if there.site.scale() == site.scale() && there.seed == options.seed {
                return Ok(LoadReport::there(site));
            }
            let (size, seed) = (there.site.size(), there.seed);
            return Err(Error::OtherSite { site: S::NAME, size, seed, options: S::LOAD_OPTIONS });
        }
        None if !options.reload => {
            let tables = existing(&client, catalogue).await?.join(", ");
            if !tables.is_empty() {
                return Err(Error::InTheWay { site: S::NAME, tables, options: S::LOAD_OPTIONS });
            }
        }
        _ => {}
    }
    let begin = Instant::now();
    remove::<S>(&client).await?;
    run_all(&client, &catalogue.create_tables()).await?;
    let filled = fill(&target, population, options).await?;
    finish(&client, options).await?;
    run_all(&client, &mark::mark(site, options.seed, loaded_at)).await?;
    Ok(LoadReport {
        site: S::NAME,
        size: site.size(),
        tables: filled.tables,
        seconds: begin.elapsed().as_secs_f64(),
        was_there: false,
        by_insert: filled.by_insert,
        remark: site.remark(),
    })
}

/// The wall clock, for rows. The only other clock of this crate is monotonic.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { micros: since.as_micros() as i64 }
}

/// Drops the site, and another one that is there and has tables of the same names: they refer to each other.
async fn remove<S: Website>(client: &Client) -> Result<()> {
    for (mark, other) in super::all() {
        let is_ours = mark == S::MARK_TABLE;
        let shares = other.tables.iter().any(|table| S::catalogue().table_index(&table.name).is_some());
        if is_ours || shares && is_there(client, mark).await? {
            run_all(client, &[format!("DROP TABLE IF EXISTS {mark}")]).await?;
            run_all(client, &other.drop_tables()).await?;
        }
    }
    Ok(())
}

/// The names of those tables of the catalogue that are there.
async fn existing<'a>(client: &Client, catalogue: &'a Catalogue) -> Result<Vec<&'a str>> {
    let mut existing = Vec::new();
    for Table { name, .. } in &catalogue.tables {
        if is_there(client, name).await? {
            existing.push(name.as_str());
        }
    }
    Ok(existing)
}

/// Whether a table is found in the search path. Without the system's catalogue, so that every proxy answers.
async fn is_there(client: &Client, table: &str) -> Result<bool> {
    match mark::rows(client, &format!("SELECT 1 FROM {table} LIMIT 0")).await {
        Err(error) if error.sqlstate() == Some(&SqlState::UNDEFINED_TABLE) => Ok(false),
        found => found.map(|_| true),
    }
}

async fn run_all(client: &Client, statements: &[String]) -> Result<()> {
    for statement in statements {
        client.batch_execute(statement).await.map_err(Error::database(format!("run {statement:?}")))?;
    }
    Ok(())
}

/// Indexes, foreign keys and statistics.
async fn finish<S: Website>(client: &Client, options: &Options<S>) -> Result<()> {
    let bar = spinner(options.progress, "adding indexes and foreign keys");
    run_all(client, &S::catalogue().create_indexes()).await?;
    run_all(client, &S::catalogue().add_foreign_keys()).await?;
    for table in &S::catalogue().tables {
        let statement = format!("ANALYZE {}", table.name);
        match client.batch_execute(&statement).await {
            // Somebody in between who does not do maintenance: autovacuum will.
            Err(error) if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => break,
            done => done.map_err(Error::database(format!("run {statement:?}")))?,
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// A part of a table, by the table's place in the catalogue, for one loading connection.
type Batch = (usize, RangeInclusive<i64>);

/// What all loading connections share.
struct Work<P> {
    target: Target,
    catalogue: &'static Catalogue,
    population: P,
    batches: Mutex<VecDeque<Batch>>,
    done: Mutex<Filled>,
    bar: ProgressBar,
}

#[derive(Clone, Default)]
struct Filled {
    tables: Vec<(String, u64)>,
    by_insert: bool,
}

async fn fill<S: Website>(
    target: &Target,
    population: S::Population,
    options: &Options<S>,
) -> Result<Filled> {
    let catalogue = S::catalogue();
    let batches = batches(catalogue, &population);
    let tables = catalogue.tables.iter().map(|table| (table.name.clone(), 0)).collect();
    let keys: i64 = batches.iter().map(|(_, keys)| keys.end() - keys.start() + 1).sum();
    let work = Arc::new(Work {
        target: target.clone(),
        catalogue,
        population,
        batches: Mutex::new(batches),
        done: Mutex::new(Filled { tables, by_insert: false }),
        bar: bar(options.progress, keys as u64, S::NAME),
    });
    let mut workers = JoinSet::new();
    for _ in 0..LOAD_CONNECTIONS_MAX.min(options.connections.unwrap_or(u32::MAX)).max(1) {
        let client = target.connect().await?;
        let work = work.clone();
        workers.spawn(async move { work.fill_from(client).await });
    }
    while let Some(ended) = workers.join_next().await {
        ended.map_err(|error| Error::Option(format!("a loading task ended: {error}")))??;
    }
    work.bar.finish_and_clear();
    let done = work.done.lock().expect("no loader panics with the lock").clone();
    Ok(done)
}

/// All parts of all tables. Tables have no foreign keys yet, so the order does not matter to the database.
fn batches(catalogue: &Catalogue, population: &impl SiteRows) -> VecDeque<Batch> {
    let mut batches = VecDeque::new();
    for table in 0..catalogue.tables.len() {
        let (mut first, last) = population.keys(table).into_inner();
        while first <= last {
            let end = last.min(first + BATCH_KEYS - 1);
            batches.push_back((table, first..=end));
            first = end + 1;
        }
    }
    batches
}

impl<P: SiteRows> Work<P> {
    async fn fill_from(&self, mut client: Client) -> Result<()> {
        let mut text = String::new();
        loop {
            let batch = self.batches.lock().expect("no loader panics with the lock").pop_front();
            let Some((place, keys)) = batch else { return Ok(()) };
            let mut rows = 0;
            let last = *keys.end();
            for key in keys {
                rows += self.population.copy(place, key..=key, &mut text);
                if key == last || text.len() >= COPY_BYTES {
                    self.send(&mut client, &self.catalogue.tables[place], &text).await?;
                    text.clear();
                }
                self.bar.inc(1);
            }
            self.done.lock().expect("no loader panics with the lock").tables[place].1 += rows;
        }
    }

    async fn send(&self, client: &mut Client, table: &Table, text: &str) -> Result<()> {
        let by_insert = self.done.lock().expect("no loader panics with the lock").by_insert;
        if text.is_empty() || !by_insert && copy(client, table, text).await? {
            return Ok(());
        }
        if !by_insert {
            self.done.lock().expect("no loader panics with the lock").by_insert = true;
            // The driver ends a COPY that never began, and would take the answer to that for the next statement's.
            *client = self.target.connect().await?;
        }
        insert(client, table, text).await
    }
}

/// One COPY. False if the target does not do that.
async fn copy(client: &Client, table: &Table, text: &str) -> Result<bool> {
    let statement = format!("COPY {} ({}) FROM STDIN", table.name, columns(table));
    let sent = async {
        let sink = client.copy_in::<_, Bytes>(&statement).await?;
        let mut sink = std::pin::pin!(sink);
        sink.send(Bytes::copy_from_slice(text.as_bytes())).await?;
        sink.finish().await
    };
    match sent.await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => Ok(false),
        Err(source) => Err(Error::Database { doing: format!("copy rows into {}", table.name), source }),
    }
}

/// One INSERT of the same rows. No value of these sites needs more than quotes, but for what COPY writes for NULL.
async fn insert(client: &Client, table: &Table, text: &str) -> Result<()> {
    let row = |line: &str| {
        let row = format!("('{}')", line.replace('\'', "''").replace('\t', "','"));
        row.replace("'\\N'", "NULL")
    };
    let rows: Vec<String> = text.lines().map(row).collect();
    let statement = format!("INSERT INTO {} ({}) VALUES {}", table.name, columns(table), rows.join(","));
    let inserting = client.batch_execute(&statement).await;
    inserting.map_err(Error::database(format!("insert rows into {}", table.name)))
}

fn columns(table: &Table) -> String {
    let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    names.join(", ")
}

fn bar(visible: bool, length: u64, site: &str) -> ProgressBar {
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(length), target);
    let template = format!("loading the {site} {{wide_bar}} {{percent:>3}} % {{eta:>4}} left");
    let style = ProgressStyle::with_template(&template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn spinner(visible: bool, message: &'static str) -> ProgressBar {
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let spinner = ProgressBar::with_draw_target(None, target).with_message(message);
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    spinner
}

#[cfg(test)]
mod tests {
    use onecopy_cluster::Server;
    use onecopy_workload::tpcc;
    use onecopy_workload::tpcw::{self, Population, Scale};

    use super::*;

    #[tokio::test]
    async fn rows_that_go_in_by_insert_are_those_that_go_in_by_copy() {
        let bookstore = Population::new(Scale::new(1_000, 1).unwrap(), 1, now());
        expect_the_same_rows(tpcw::catalogue(), bookstore).await;
        let supplier = tpcc::Population::new(tpcc::Scale::new(1, 10).unwrap(), 1, now());
        expect_the_same_rows(tpcc::catalogue(), supplier).await;
    }

    async fn expect_the_same_rows(catalogue: &Catalogue, population: impl SiteRows) {
        let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
        let target = Target::parse(&server.dsn()).unwrap();
        let client = target.connect().await.unwrap();
        for schema in ["by_copy", "by_insert"] {
            run_all(&client, &[format!("CREATE SCHEMA {schema}"), format!("SET search_path = {schema}")])
                .await
                .unwrap();
            run_all(&client, &catalogue.create_tables()).await.unwrap();
            for (place, table) in catalogue.tables.iter().enumerate() {
                let mut text = String::new();
                let last = (*SiteRows::keys(&population, place).end()).min(200);
                SiteRows::copy(&population, place, 1..=last, &mut text);
                match schema {
                    _ if text.is_empty() => {}
                    "by_copy" => assert!(copy(&client, table, &text).await.unwrap()),
                    _ => insert(&client, table, &text).await.unwrap(),
                }
            }
        }
        for Table { name, .. } in &catalogue.tables {
            let query = format!(
                "SELECT (SELECT count(*) FROM (TABLE by_copy.{name} EXCEPT TABLE by_insert.{name}) lost), \
                 (SELECT count(*) FROM by_copy.{name}) - (SELECT count(*) FROM by_insert.{name})"
            );
            assert_eq!(mark::rows(&client, &query).await.unwrap(), [[0, 0]], "{name}");
        }
    }

    #[test]
    fn batches_cover_every_key_once() {
        let population = Population::new(Scale::new(1_000, 1).unwrap(), 1, Timestamp::default());
        let mut next = [1; 10];
        for (table, keys) in batches(tpcw::catalogue(), &population) {
            assert_eq!(*keys.start(), next[table]);
            next[table] = keys.end() + 1;
        }
        for (table, next) in next.into_iter().enumerate() {
            assert_eq!(next - 1, *SiteRows::keys(&population, table).end());
        }
    }
}
