//! Fills a database with a bookstore.

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::SinkExt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onecopy_workload::Timestamp;
use onecopy_workload::tpcw::{Population, Scale, Table, catalogue};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::connection::Target;
use crate::table::{self, thousands};
use crate::tpcw::Options;
use crate::tpcw::bookstore::{self, MARK_TABLE};
use crate::{Error, Result};

/// Keys in one COPY. Small enough that every proxy takes it, and that one log record stays well below a megabyte.
const BATCH_KEYS: i64 = 500;
/// More connections than this only queue at one server.
const LOAD_CONNECTIONS_MAX: u32 = 4;

/// What was loaded.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// Books.
    pub items: i64,
    /// Emulated browsers that the customers are counted for.
    pub browsers: i64,
    /// Tables and their rows.
    pub tables: Vec<(String, u64)>,
    /// How long it took.
    pub seconds: f64,
    /// The bookstore was there already and was left alone, with whatever customers have bought since.
    pub was_there: bool,
    /// The target refused COPY, and rows went in by INSERT.
    pub by_insert: bool,
}

impl LoadReport {
    fn there(scale: Scale) -> Self {
        LoadReport {
            items: scale.items(),
            browsers: scale.browsers(),
            tables: Vec::new(),
            seconds: 0.0,
            was_there: true,
            by_insert: false,
        }
    }

    /// All rows.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|(_, rows)| rows).sum()
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let customers = thousands(2_880.0 * self.browsers as f64);
        if self.was_there {
            return write!(
                f,
                "The bookstore ({} items, {customers} customers) is loaded already.",
                self.items
            );
        }
        let mut table = table::Table::new(["table", "rows"]);
        for (name, rows) in &self.tables {
            table.row([name.clone(), thousands(*rows as f64)]);
        }
        write!(f, "{}", table.terminal())?;
        let how = if self.by_insert { " by INSERT, since the target refuses COPY" } else { "" };
        write!(f, "{} rows in {:.1} s{how}", thousands(self.rows() as f64), self.seconds)
    }
}

/// Makes the tables, fills them and adds indexes and foreign keys. A bookstore of the same scale and seed that is there
/// already is left alone.
///
/// # Errors
/// [`Error::OtherBookstore`] if another bookstore is there and [`Options::reload`] is not set; what the database refuses.
pub async fn load(options: &Options) -> Result<LoadReport> {
    let scale = options.scale()?;
    let target = Target::parse(&options.target)?;
    let client = target.connect().await?;
    match bookstore::find(&client).await? {
        Some((there, seed)) if !options.reload => {
            let loaded = there.scale();
            if loaded == scale && seed == options.seed {
                return Ok(LoadReport::there(scale));
            }
            let (items, browsers) = (loaded.items(), loaded.browsers());
            return Err(Error::OtherBookstore { items, browsers, seed });
        }
        _ => {}
    }
    let begin = Instant::now();
    let population = Population::new(scale, options.seed, now());
    run_all(&client, &[format!("DROP TABLE IF EXISTS {MARK_TABLE}")]).await?;
    run_all(&client, &catalogue().drop_tables()).await?;
    run_all(&client, &catalogue().create_tables()).await?;
    let filled = fill(&target, population, options).await?;
    finish(&client, options).await?;
    run_all(&client, &bookstore::mark(scale, options.seed, population.loaded_at())).await?;
    Ok(LoadReport {
        items: scale.items(),
        browsers: scale.browsers(),
        tables: filled.tables,
        seconds: begin.elapsed().as_secs_f64(),
        was_there: false,
        by_insert: filled.by_insert,
    })
}

/// The wall clock, for rows. The only other clock of this crate is monotonic.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { micros: since.as_micros() as i64 }
}

async fn run_all(client: &Client, statements: &[String]) -> Result<()> {
    for statement in statements {
        client.batch_execute(statement).await.map_err(Error::database(format!("run {statement:?}")))?;
    }
    Ok(())
}

/// Indexes, foreign keys and statistics.
async fn finish(client: &Client, options: &Options) -> Result<()> {
    let bar = spinner(options.progress, "adding indexes and foreign keys");
    run_all(client, &catalogue().create_indexes()).await?;
    run_all(client, &catalogue().add_foreign_keys()).await?;
    for table in Table::ALL {
        let statement = format!("ANALYZE {}", table.name());
        match client.batch_execute(&statement).await {
            // Somebody in between who does not do maintenance: autovacuum will.
            Err(error) if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => break,
            done => done.map_err(Error::database(format!("run {statement:?}")))?,
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// A part of a table, to be made and sent at once.
type Batch = (Table, RangeInclusive<i64>);

/// What all loading connections share.
struct Work {
    population: Population,
    batches: Mutex<VecDeque<Batch>>,
    done: Mutex<Filled>,
    bar: ProgressBar,
}

#[derive(Clone, Default)]
struct Filled {
    tables: Vec<(String, u64)>,
    by_insert: bool,
}

async fn fill(target: &Target, population: Population, options: &Options) -> Result<Filled> {
    let batches = batches(&population);
    let tables = Table::ALL.map(|table| (table.name().to_owned(), 0)).to_vec();
    let keys: i64 = batches.iter().map(|(_, keys)| keys.end() - keys.start() + 1).sum();
    let work = Arc::new(Work {
        population,
        batches: Mutex::new(batches),
        done: Mutex::new(Filled { tables, by_insert: false }),
        bar: bar(options.progress, keys as u64),
    });
    let mut workers = JoinSet::new();
    for _ in 0..LOAD_CONNECTIONS_MAX.min(options.connections.unwrap_or(u32::MAX)).max(1) {
        let client = target.connect().await?;
        let work = work.clone();
        workers.spawn(async move { work.fill_from(&client).await });
    }
    while let Some(ended) = workers.join_next().await {
        ended.map_err(|error| Error::Option(format!("a loading task ended: {error}")))??;
    }
    work.bar.finish_and_clear();
    let done = work.done.lock().expect("no loader panics with the lock").clone();
    Ok(done)
}

/// All parts of all tables. Tables have no foreign keys yet, so the order does not matter to the database.
fn batches(population: &Population) -> VecDeque<Batch> {
    let mut batches = VecDeque::new();
    for table in Table::ALL {
        let (mut first, last) = population.keys(table).into_inner();
        while first <= last {
            let end = last.min(first + BATCH_KEYS - 1);
            batches.push_back((table, first..=end));
            first = end + 1;
        }
    }
    batches
}

impl Work {
    async fn fill_from(&self, client: &Client) -> Result<()> {
        let mut text = String::new();
        loop {
            let batch = self.batches.lock().expect("no loader panics with the lock").pop_front();
            let Some((table, keys)) = batch else { return Ok(()) };
            text.clear();
            let key_count = keys.end() - keys.start() + 1;
            let rows = self.population.copy(table, keys, &mut text);
            let by_insert = self.done.lock().expect("no loader panics with the lock").by_insert;
            if by_insert || !copy(client, table, &text).await? {
                insert(client, table, &text).await?;
                self.done.lock().expect("no loader panics with the lock").by_insert = true;
            }
            self.bar.inc(key_count as u64);
            self.done.lock().expect("no loader panics with the lock").tables[table as usize].1 += rows;
        }
    }
}

/// One COPY. False if the target does not do that.
async fn copy(client: &Client, table: Table, text: &str) -> Result<bool> {
    let statement = format!("COPY {} ({}) FROM STDIN", table.name(), columns(table));
    let sent = async {
        let sink = client.copy_in::<_, Bytes>(&statement).await?;
        let mut sink = std::pin::pin!(sink);
        sink.send(Bytes::copy_from_slice(text.as_bytes())).await?;
        sink.finish().await
    };
    match sent.await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => Ok(false),
        Err(source) => Err(Error::Database { doing: format!("copy rows into {}", table.name()), source }),
    }
}

/// One INSERT of the same rows. No value of the bookstore needs more than quotes.
async fn insert(client: &Client, table: Table, text: &str) -> Result<()> {
    let row = |line: &str| format!("('{}')", line.replace('\'', "''").replace('\t', "','"));
    let rows: Vec<String> = text.lines().map(row).collect();
    let statement = format!("INSERT INTO {} ({}) VALUES {}", table.name(), columns(table), rows.join(","));
    let inserting = client.batch_execute(&statement).await;
    inserting.map_err(Error::database(format!("insert rows into {}", table.name())))
}

fn columns(table: Table) -> String {
    let columns = &catalogue().tables[table as usize].columns;
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    names.join(", ")
}

fn bar(visible: bool, length: u64) -> ProgressBar {
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(length), target);
    let style = ProgressStyle::with_template("loading the bookstore {wide_bar} {percent:>3} % {eta:>4} left");
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

    use super::*;

    #[tokio::test]
    async fn rows_that_go_in_by_insert_are_those_that_go_in_by_copy() {
        let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
        let target = Target::parse(&server.dsn()).unwrap();
        let client = target.connect().await.unwrap();
        let population = Population::new(Scale::new(1_000, 1).unwrap(), 1, now());
        for schema in ["by_copy", "by_insert"] {
            run_all(&client, &[format!("CREATE SCHEMA {schema}"), format!("SET search_path = {schema}")])
                .await
                .unwrap();
            run_all(&client, &catalogue().create_tables()).await.unwrap();
            for table in Table::ALL {
                let mut text = String::new();
                let last = (*population.keys(table).end()).min(200);
                population.copy(table, 1..=last, &mut text);
                match schema {
                    _ if text.is_empty() => {}
                    "by_copy" => assert!(copy(&client, table, &text).await.unwrap()),
                    _ => insert(&client, table, &text).await.unwrap(),
                }
            }
        }
        for table in Table::ALL.map(Table::name) {
            let query = format!(
                "SELECT (SELECT count(*) FROM (TABLE by_copy.{table} EXCEPT TABLE by_insert.{table}) lost), \
                 (SELECT count(*) FROM by_copy.{table}) - (SELECT count(*) FROM by_insert.{table})"
            );
            assert_eq!(bookstore::first_row(&client, &query).await.unwrap(), [0, 0], "{table}");
        }
    }

    #[test]
    fn batches_cover_every_key_once() {
        let population = Population::new(Scale::new(1_000, 1).unwrap(), 1, Timestamp::default());
        let mut next = [1; 10];
        for (table, keys) in batches(&population) {
            assert_eq!(*keys.start(), next[table as usize]);
            next[table as usize] = keys.end() + 1;
        }
        for table in Table::ALL {
            assert_eq!(next[table as usize] - 1, *population.keys(table).end());
        }
    }
}
