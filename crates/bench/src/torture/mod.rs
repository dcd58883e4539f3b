//! Tortures a database through its front door, and checks that it behaves as one copy that runs one transaction at
//! a time.
//!
//! Eight clients (or more) run small transactions on few rows, in all the ways that clients send them: simple,
//! prepared and unnamed statements, pipelined, several statements in one string, savepoints, locks, upserts,
//! RETURNING and writes in WITH. What they saw is checked for strict serializability by [`onecopy_sim::check`], in
//! rounds, each with rows of its own. 40001 and 40P01 are counted, every other error is a fault.
//!
//! [`run`] is for any DSN; [`compare_replicas`] compares the servers behind it afterwards; [`nondeterminism`] and
//! [`bad_input`] torture in ways of their own.

pub mod bad_input;
mod client;
mod compare;
pub mod nondeterminism;
mod session;
mod statement;
mod tally;
#[cfg(test)]
mod tests;
mod trouble;
mod workloads;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use onecopy_sim::check::{self, History, Level, Process, Transaction};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

pub use compare::{
    CompareOptions, Comparison, Difference, TableDigest, compare_replicas, compare_replicas_with,
    compare_until_identical,
};
pub use tally::{ClassCount, Fault};
pub use workloads::Workload;

use self::client::Client;
use self::session::Session;
use self::tally::Tally;
use self::world::{SCHEMA, World};
use crate::connection::Target;
use crate::{Error, Result};

/// What to torture, how and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where clients connect. Tables named `torture_...` are made there, those of an earlier run replaced.
    pub dsn: String,
    /// Clients at once; each has a second connection for some workloads.
    pub clients: u32,
    /// How long, at most, the checks and setting up not counted. A round that has begun is ended.
    pub duration: Duration,
    /// How many transactions, at most.
    pub transactions: u64,
    /// How many transactions are checked together, at most [`ROUND_MAX`]. A round begins with making about a
    /// thirteenth as many rows.
    pub round: u64,
    /// What clients do and how is drawn from this; how they interleave is not.
    pub seed: u64,
    /// What they do, all equally often.
    pub workloads: Vec<Workload>,
    /// The isolation level that clients ask for.
    pub isolation: Isolation,
    /// What the history must satisfy.
    pub promise: check::Options,
    /// A statement without an answer for longer is a fault.
    pub answer_within: Duration,
    /// Where histories that break the promise are kept, one file a round.
    pub keep_in: Option<PathBuf>,
    /// Whether to go on after a round that broke the promise.
    pub go_on: bool,
    /// Called after each round with what happened so far, to show progress.
    pub on_round: Option<fn(&Report)>,
}

impl Options {
    /// Eight clients, all workloads, strict serializability at the target's default isolation level, for a minute.
    #[must_use]
    pub fn new(dsn: impl Into<String>) -> Options {
        Options {
            dsn: dsn.into(),
            clients: 8,
            duration: Duration::from_secs(60),
            transactions: u64::MAX,
            round: 20_000,
            seed: 1,
            workloads: Workload::ALL.to_vec(),
            isolation: Isolation::Default,
            promise: Level::StrictSerializable.into(),
            answer_within: Duration::from_secs(30),
            keep_in: None,
            go_on: false,
            on_round: None,
        }
    }
}

/// The most transactions that are checked together: their history is kept in memory.
pub const ROUND_MAX: u64 = 1_000_000;

/// The isolation level that clients ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// None: what the target gives by itself.
    #[default]
    Default,
    /// READ COMMITTED for the session.
    ReadCommitted,
    /// REPEATABLE READ for the session.
    RepeatableRead,
    /// SERIALIZABLE for the session.
    Serializable,
    /// Now and then another one in BEGIN: for a target that serves all of them as serializable.
    Mixed,
}

impl Isolation {
    fn name(self) -> Option<&'static str> {
        match self {
            Isolation::Default | Isolation::Mixed => None,
            Isolation::ReadCommitted => Some("READ COMMITTED"),
            Isolation::RepeatableRead => Some("REPEATABLE READ"),
            Isolation::Serializable => Some("SERIALIZABLE"),
        }
    }
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// With which the choices can be repeated.
    pub seed: u64,
    /// Time that clients ran, in seconds.
    pub seconds: f64,
    /// Histories checked.
    pub rounds: u64,
    /// How transactions ended, by workload and the way they were sent.
    pub classes: BTreeMap<String, ClassCount>,
    /// Errors that must not happen, by SQLSTATE or in words.
    pub faults: BTreeMap<String, Fault>,
    /// Invariants of workloads that did not hold.
    pub broken: BTreeMap<String, Fault>,
    /// How often each anomaly was found.
    pub anomalies: BTreeMap<String, u64>,
    /// Explained examples of anomalies, of the first round that had any.
    pub explanations: Vec<String>,
    /// Dependencies between transactions that the histories showed: of what a check could find anything in.
    pub dependencies: Dependencies,
}

/// How many dependencies histories showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependencies {
    /// One overwrote the other's version.
    pub write_write: u64,
    /// One read the other's version.
    pub write_read: u64,
    /// One read the version that the other overwrote.
    pub read_write: u64,
}

impl Report {
    /// Whether nothing happened that must not.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.faults.is_empty() && self.broken.is_empty() && self.anomalies.is_empty()
    }

    /// All classes together.
    #[must_use]
    pub fn total(&self) -> ClassCount {
        let mut total = ClassCount::default();
        self.classes.values().for_each(|count| total.add(count));
        total
    }

    fn add_tally(&mut self, tally: Tally) {
        let mut all = Tally {
            classes: std::mem::take(&mut self.classes),
            faults: std::mem::take(&mut self.faults),
            broken: std::mem::take(&mut self.broken),
        };
        all.merge(tally);
        (self.classes, self.faults, self.broken) = (all.classes, all.faults, all.broken);
    }

    fn add_check(&mut self, checked: &check::Report) {
        let evidence = &checked.evidence;
        self.dependencies.write_write += evidence.write_write as u64;
        self.dependencies.write_read += evidence.write_read as u64;
        self.dependencies.read_write += evidence.read_write as u64;
        for (anomaly, count) in &checked.counts {
            *self.anomalies.entry(anomaly.to_string()).or_default() += *count as u64;
        }
        if self.explanations.is_empty() {
            self.explanations = checked.violations.iter().map(|one| one.explanation.clone()).collect();
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, dependencies) = (self.total(), self.dependencies);
        writeln!(
            f,
            "seed {}: {} rounds, {:.1} s, {} transactions ({:.0} a second); {} ww, {} wr, {} rw dependencies",
            self.seed,
            self.rounds,
            self.seconds,
            total.attempts(),
            total.attempts() as f64 / self.seconds.max(0.001),
            dependencies.write_write,
            dependencies.write_read,
            dependencies.read_write,
        )?;
        writeln!(
            f,
            "{:<44} {:>9} {:>8} {:>7} {:>7} {:>6} {:>7} {:>6} {:>9}",
            "class", "committed", "rollback", "40001", "40P01", "lost", "unknown", "failed", "conflicts"
        )?;
        for (class, count) in self.classes.iter().chain([(&"all".to_owned(), &total)]) {
            writeln!(
                f,
                "{class:<44} {:>9} {:>8} {:>7} {:>7} {:>6} {:>7} {:>6} {:>8.2}%",
                count.committed,
                count.rolled_back,
                count.serialization_failures,
                count.deadlocks,
                count.connection_errors,
                count.unknown,
                count.failed,
                100.0 * count.conflict_rate(),
            )?;
        }
        for (kind, fault) in &self.faults {
            writeln!(f, "FAULT {kind}: {} times; first: {}", fault.count, fault.first)?;
        }
        for (invariant, fault) in &self.broken {
            writeln!(f, "BROKEN {invariant}: {} times; first: {}", fault.count, fault.first)?;
        }
        for (anomaly, count) in &self.anomalies {
            writeln!(f, "FOUND {anomaly}: {count}")?;
        }
        for explanation in &self.explanations {
            write!(f, "\n{explanation}")?;
        }
        Ok(())
    }
}

/// Runs until the time or the number of transactions is over, or a round broke the promise.
///
/// # Errors
/// If the DSN is none, the tables cannot be made, or a history cannot be kept. What clients meet is in the report.
pub async fn run(options: &Options) -> Result<Report> {
    if options.clients == 0 || options.workloads.is_empty() || options.round == 0 {
        let why = "torture needs at least one client, one workload and one transaction a round";
        return Err(Error::Option(why.to_owned()));
    }
    if options.round > ROUND_MAX {
        return Err(Error::Option(format!(
            "a round of {} transactions is too long: {ROUND_MAX} are the most",
            options.round
        )));
    }
    let target = Target::parse(&options.dsn)?;
    execute_all(&target, SCHEMA.iter().map(|&sql| sql.to_owned()), "make the tables").await?;
    let mut report = Report { seed: options.seed, ..Report::default() };
    let (mut left, mut spent) = (options.transactions, Duration::ZERO);
    let clock = Instant::now();
    while left > 0 && spent < options.duration {
        let round = Round {
            options,
            target: &target,
            number: report.rounds,
            transactions: left.min(options.round),
            clock,
            duration: options.duration - spent,
        };
        let (taken, tried, history) = round.run(&mut report).await?;
        spent += taken;
        left = left.saturating_sub(tried.max(1));
        report.rounds += 1;
        report.seconds = spent.as_secs_f64();
        round.judge(history, &mut report).await?;
        if let Some(on_round) = options.on_round {
            on_round(&report);
        }
        if !report.passed() && !options.go_on {
            break;
        }
    }
    Ok(report)
}

/// Runs statements one by one on a connection of their own.
async fn execute_all(target: &Target, statements: impl Iterator<Item = String>, doing: &str) -> Result<()> {
    let client = target.connect().await?;
    for statement in statements {
        client.batch_execute(&statement).await.map_err(Error::database(doing))?;
    }
    Ok(())
}

struct Round<'o> {
    options: &'o Options,
    target: &'o Target,
    number: u64,
    transactions: u64,
    clock: Instant,
    /// How long clients run at most, setting up not counted.
    duration: Duration,
}

impl Round<'_> {
    /// Runs the clients; how long that took, how many transactions were tried, and what was seen.
    async fn run(&self, report: &mut Report) -> Result<(Duration, u64, Vec<Transaction>)> {
        let world = Arc::new(World::new(self.number, self.transactions));
        execute_all(self.target, workloads::setup(&world).into_iter(), "set up a round").await?;
        let (began, tried) = (Instant::now(), AtomicU64::new(0));
        let until = began + self.duration;
        let clients = (0..self.options.clients).map(|number| self.client(&world, number));
        let clients = join_all(clients.map(|client| self.drive(client, until, &tried))).await;
        let taken = began.elapsed();
        let mut last = self.client(&world, self.options.clients);
        workloads::read_all(&mut last).await;
        let mut history = Vec::new();
        for client in clients.into_iter().chain([last]) {
            report.add_tally(client.tally);
            history.extend(client.history);
        }
        Ok((taken, tried.into_inner().min(self.transactions), history))
    }

    fn client(&self, world: &Arc<World>, number: u32) -> Client {
        let options = self.options;
        // Each client draws from a stream of its own, so that the others' speed does not change its choices.
        let mut random = ChaCha8Rng::seed_from_u64(options.seed);
        random.set_stream((self.number << 32) | u64::from(number));
        let session = || Session::new(self.target.clone(), options.isolation, options.answer_within);
        let sessions = [session(), session()];
        Client::new(Arc::clone(world), Process(number), random, options.isolation, self.clock, sessions)
    }

    async fn drive(&self, mut client: Client, until: Instant, tried: &AtomicU64) -> Client {
        while Instant::now() < until && tried.fetch_add(1, Ordering::Relaxed) < self.transactions {
            if let Some(workload) = self.options.workloads.choose(&mut client.random) {
                workload.run(&mut client).await;
            }
            // Others on this thread get their turn even if nothing was waited for.
            if client.random.random_bool(0.1) {
                tokio::task::yield_now().await;
            }
        }
        client
    }

    async fn judge(&self, transactions: Vec<Transaction>, report: &mut Report) -> Result<()> {
        let promise = self.options.promise;
        let checked = tokio::task::spawn_blocking(move || {
            let history = History::new(transactions)?;
            let checked = check::check(&history, promise);
            Ok((history, checked))
        });
        let outcome: std::result::Result<_, check::MalformedHistory> =
            checked.await.map_err(|panic| Error::program("checker", panic.to_string()))?;
        let (history, checked) = outcome.map_err(|why| Error::program("checker", why.to_string()))?;
        report.add_check(&checked);
        if let Some(folder) = self.options.keep_in.as_ref().filter(|_| !checked.is_valid()) {
            let path = folder.join(format!("seed-{}-round-{}.history", self.options.seed, self.number));
            tokio::fs::write(&path, check::text::write(&history))
                .await
                .map_err(Error::file("write", &path))?;
        }
        Ok(())
    }
}
