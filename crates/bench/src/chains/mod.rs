//! TPC-C where transactions come whole, side by side with what else there is.
//!
//! Every round lets terminals without pauses work at every target for the same time, one after the other; ratios are taken within a round
//! ([`compare`](crate::compare) says why). Afterwards the supplier's conditions are checked, and replicas compared.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::chains::{self, Options};
//! println!("{}", chains::run(&Options::default()).await?);
//! # Ok(()) }
//! ```

mod report;
mod targets;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use onecopy_cluster::Binaries;
use serde::Serialize;

use crate::bar::Bar;
use crate::compare::{Machine, Usage, turned};
use crate::cpu::{Group, Meter};
use crate::site::{self, Checked, Counted, Latency};
use crate::tpcc::{self, Supplier};
use crate::workplace::Workplace;
use crate::{Error, Result};
pub use report::{Comparison, TargetReport};
use targets::Running;

/// What to compare, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to measure, in this order.
    pub targets: Vec<Target>,
    /// Rounds; each measures every target once. Fewer than 11 say little.
    pub rounds: u32,
    /// Length of one measurement.
    pub duration: Duration,
    /// Time before each measurement, in which the terminals come.
    pub ramp: Duration,
    /// The supplier that each target has.
    pub supplier: Supplier,
    /// Terminals, which make no pauses.
    pub terminals: u32,
    /// The same seed gives the same supplier and the same terminals.
    pub seed: u64,
    /// The pgpool program; `None` looks for it in PATH and the usual folders.
    pub pgpool: Option<PathBuf>,
    /// Where it works, and what it leaves.
    pub workplace: Workplace,
}

impl Default for Options {
    /// Everything, at a tenth of the benchmark's size, in 3 rounds of 20 s.
    fn default() -> Self {
        Options {
            targets: Target::ALL.to_vec(),
            rounds: 3,
            duration: Duration::from_secs(20),
            ramp: Duration::from_secs(1),
            supplier: Supplier { warehouses: 2, customers: 300, ..Supplier::default() },
            terminals: 20,
            seed: 1,
            pgpool: None,
            workplace: Workplace::default(),
        }
    }
}

/// PostgreSQL servers, what stands in front of them, and how terminals send transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// One server at READ COMMITTED, which loses sales.
    ReadCommitted,
    /// One server at REPEATABLE READ.
    RepeatableRead,
    /// Pgpool-II in its mode of snapshot isolation, in front of three servers.
    Pgpool,
    /// onecopy by its default protocol, in front of three replicas.
    Onecopy,
    /// The same by `centralised_writes`; transactions come whole.
    CentralisedWrites,
    /// The same by `chains`.
    Chains,
    /// The same by `chains_serializable`.
    ChainsSerializable,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 7] = [
        Target::ReadCommitted,
        Target::RepeatableRead,
        Target::Pgpool,
        Target::Onecopy,
        Target::CentralisedWrites,
        Target::Chains,
        Target::ChainsSerializable,
    ];

    /// A short name.
    pub fn id(self) -> &'static str {
        match self {
            Target::ReadCommitted => "read-committed",
            Target::RepeatableRead => "repeatable-read",
            Target::Pgpool => "pgpool",
            Target::Onecopy => "onecopy",
            Target::CentralisedWrites => "centralised-writes",
            Target::Chains => "chains",
            Target::ChainsSerializable => "chains-serializable",
        }
    }

    /// The name in words.
    pub fn name(self) -> &'static str {
        match self {
            Target::ReadCommitted => "1 server, READ COMMITTED",
            Target::RepeatableRead => "1 server, REPEATABLE READ",
            Target::Pgpool => "Pgpool-II, 3 servers",
            Target::Onecopy => "onecopy, 3 replicas",
            Target::CentralisedWrites => "centralised_writes, 3 replicas, whole",
            Target::Chains => "chains, 3 replicas, whole",
            Target::ChainsSerializable => "chains_serializable, 3 replicas, whole",
        }
    }

    /// The level that BEGIN asks for, where that is not left to the servers.
    fn isolation(self) -> Option<&'static str> {
        match self {
            Target::ReadCommitted => Some("read committed"),
            Target::RepeatableRead => Some("repeatable read"),
            _ => None,
        }
    }

    /// The protocol of onecopy, if it is that.
    fn protocol(self) -> Option<&'static str> {
        match self {
            Target::Onecopy => Some("onecopy"),
            Target::CentralisedWrites => Some("centralised_writes"),
            Target::Chains => Some("chains"),
            Target::ChainsSerializable => Some("chains_serializable"),
            Target::ReadCommitted | Target::RepeatableRead | Target::Pgpool => None,
        }
    }

    fn is_whole(self) -> bool {
        matches!(self, Target::CentralisedWrites | Target::Chains | Target::ChainsSerializable)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(id: &str) -> std::result::Result<Self, String> {
        let ids: Vec<&str> = Target::ALL.iter().map(|target| target.id()).collect();
        let found = Target::ALL.into_iter().find(|target| target.id() == id);
        found.ok_or_else(|| format!("there is no target {id:?}: choose among {}", ids.join(", ")))
    }
}

/// One measurement of one target.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The round, from 0.
    pub round: u32,
    /// What was measured.
    pub target: Target,
    /// What terminals met; `None` if it could not be finished.
    pub run: Option<Run>,
    /// Why it could not be finished.
    pub failure: Option<String>,
    /// CPU time that each process tree spent meanwhile.
    pub cpu: Vec<Usage>,
    /// What each replica did meanwhile, of onecopy.
    pub work: Vec<Work>,
    /// Conditions that do not hold afterwards.
    pub broken: Vec<Checked>,
    /// In what replicas differ afterwards.
    pub differences: Vec<String>,
}

/// What terminals met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Transactions completed per second.
    pub tps: f64,
    /// New orders entered per minute.
    pub new_orders_a_minute: f64,
    /// Transactions completed.
    pub completed: u64,
    /// Those of them that were taken back as asked.
    pub taken_back: u64,
    /// Transactions that ran again after a conflict.
    pub retried: u64,
    /// Transactions that failed, by SQLSTATE.
    pub errors: Vec<Counted>,
    /// Response times of each kind, in the order of the catalogue.
    pub latencies: Vec<(String, Latency)>,
}

impl Run {
    fn of(report: &site::Report) -> Run {
        let latencies = report.pages.iter().map(|page| (page.name.clone(), page.latency));
        Run {
            tps: report.wips,
            new_orders_a_minute: report.measures.get(Supplier::NEW_ORDERS).copied().unwrap_or(0.0),
            completed: report.completed,
            taken_back: report.taken_back,
            retried: report.retried(),
            errors: report.errors.clone(),
            latencies: latencies.collect(),
        }
    }

    /// Transactions that failed.
    pub fn failed(&self) -> u64 {
        self.errors.iter().map(|counted| counted.count).sum()
    }
}

/// What a replica did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Its name.
    pub replica: String,
    /// Statements of transactions that ran there.
    pub home_statements: u64,
    /// Commits of others that it applied.
    pub applies: u64,
    /// Reads outside of those.
    pub reads: u64,
}

/// Starts the targets, measures them and stops them. What cannot be started is left out, and the comparison says why.
///
/// # Errors
/// When there is no PostgreSQL, a folder cannot be written, or nothing at all could be measured.
pub async fn run(options: &Options) -> Result<Comparison> {
    if options.rounds == 0 || options.terminals == 0 || options.duration.is_zero() {
        return Err(Error::Option("rounds, terminals and duration must be above zero".to_owned()));
    }
    let binaries = Binaries::find()?;
    let results = options.workplace.results_folder("chains")?;
    let folder = options.workplace.work_folder("chains")?;
    let bar = options.workplace.bar(options.targets.len() * options.rounds as usize);
    let programs = [("pgpool", options.pgpool.as_deref()), ("onecopy", Some(&*options.workplace.onecopy))];
    let mut comparison = Comparison::new(options, Machine::look(&binaries, &programs));
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    let mut running = Vec::new();
    for &target in &options.targets {
        bar.say(format!("starting {}", target.name()));
        let started = tokio::select! {
            started = targets::start(target, options, folder.path()) => started,
            _ = &mut interrupt => return Err(Error::Interrupted),
        };
        match started {
            Ok(started) => running.push(started),
            Err(error) => {
                bar.say(format!("leaving out {}: {error}", target.name()));
                comparison.left_out.push((target, error.to_string()));
            }
        }
    }
    tokio::select! {
        () = measure_all(options, &running, &bar, &mut comparison) => {}
        _ = &mut interrupt => comparison.interrupted = true,
    }
    bar.finish();
    drop(running);
    if comparison.samples.is_empty() {
        let reasons = comparison.left_out.iter().map(|(target, why)| format!("{target}: {why}"));
        let reasons: Vec<String> = reasons.collect();
        return Err(if comparison.interrupted {
            Error::Interrupted
        } else {
            Error::Option(format!("nothing could be measured: {}", reasons.join("; ")))
        });
    }
    if let Some(results) = &results {
        comparison.save(results)?;
    }
    Ok(comparison)
}

async fn measure_all(options: &Options, running: &[Running], bar: &Bar, comparison: &mut Comparison) {
    // The terminals are tasks of this process, which has started all the others.
    let without = running.iter().flat_map(Running::roots).collect();
    let terminals = Group { name: "terminals".to_owned(), root: std::process::id(), without };
    for round in 0..options.rounds {
        for target in turned(running, round) {
            bar.say(format!("round {} of {}: {}", round + 1, options.rounds, target.target));
            comparison.samples.push(measure(options, round, target, &terminals).await);
            bar.step();
        }
    }
}

async fn measure(options: &Options, round: u32, target: &Running, terminals: &Group) -> Sample {
    let mut sample = Sample {
        round,
        target: target.target,
        run: None,
        failure: None,
        cpu: Vec::new(),
        work: Vec::new(),
        broken: Vec::new(),
        differences: Vec::new(),
    };
    if let Err(error) = measure_into(&mut sample, options, target, terminals).await {
        sample.failure = Some(error.to_string());
    }
    sample
}

async fn measure_into(
    sample: &mut Sample,
    options: &Options,
    target: &Running,
    terminals: &Group,
) -> Result<()> {
    let groups: Vec<Group> = target.groups().into_iter().chain([terminals.clone()]).collect();
    let visits = visits(options, target.target, &target.dsn, sample.round);
    let worked = target.work().await?;
    let before = Meter::read(&groups);
    let report = site::run(&visits).await?;
    let spent = Meter::read(&groups).since(&before);
    sample.run = Some(Run::of(&report));
    // What it calls the client is who was started and has ended.
    sample.cpu = spent.into_iter().filter(|usage| usage.name != "client").collect();
    sample.differences = target.differences().await?;
    sample.work = target.work().await?;
    for (now, before) in sample.work.iter_mut().zip(&worked) {
        now.home_statements -= before.home_statements.min(now.home_statements);
        now.applies -= before.applies.min(now.applies);
        now.reads -= before.reads.min(now.reads);
    }
    let checked = site::check(&visits).await?.checked;
    sample.broken = checked.into_iter().filter(|checked| checked.violations != 0).collect();
    Ok(())
}

/// The terminals of a round; others each time, though the same for every target.
fn visits(options: &Options, target: Target, dsn: &str, round: u32) -> tpcc::Options {
    tpcc::Options {
        target: dsn.to_owned(),
        site: options.supplier,
        clients: options.terminals,
        think_factor: 0.0,
        ramp: options.ramp,
        duration: options.duration,
        seed: options.seed + u64::from(round),
        isolation: target.isolation().map(str::to_owned),
        whole: target.is_whole(),
        progress: false,
        ..tpcc::Options::default()
    }
}
