//! What stands in front of PostgreSQL, side by side in one run.
//!
//! Every round measures every target once, one after the other on an otherwise idle machine, and the order turns from round to round;
//! ratios are taken within a round, so that a machine that is slower for a minute is slower for all. The CPU time that each
//! process spent is read from /proc as a second witness: on a busy machine it moves less than the clock.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::compare::{self, Options};
//! let comparison = compare::run(&Options::default()).await?;
//! println!("{comparison}");
//! # Ok(()) }
//! ```

mod pgbench;
mod report;
mod stats;
mod targets;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use onecopy_cluster::Binaries;
use serde::Serialize;

use crate::bar::Bar;
use crate::cpu::Meter;
pub use crate::cpu::Usage;
use crate::workplace::Workplace;
use crate::{Error, Result};
pub use pgbench::Run;
pub use report::{Comparison, Goal, LoadReport, Machine, Response, TargetReport};
pub use stats::Spread;
use targets::Running;

/// What to compare, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to measure, in this order.
    pub targets: Vec<Target>,
    /// Under what.
    pub loads: Vec<Load>,
    /// Rounds; each measures every target once. Fewer than 11 say little.
    pub rounds: u32,
    /// Length of one measurement.
    pub duration: Duration,
    /// Clients of the loads that have several.
    pub clients: u32,
    /// Scale of pgbench's tables: 100,000 accounts each.
    pub scale: u32,
    /// The pgbouncer program; `None` looks for it in PATH and the usual folders.
    pub pgbouncer: Option<PathBuf>,
    /// The pgpool program; `None` looks for it likewise.
    pub pgpool: Option<PathBuf>,
    /// Where it works, and what it leaves.
    pub workplace: Workplace,
}

impl Default for Options {
    /// Everything, in 11 rounds of 5 s: about 40 minutes.
    fn default() -> Self {
        Options {
            targets: Target::ALL.to_vec(),
            loads: Load::ALL.to_vec(),
            rounds: 11,
            duration: Duration::from_secs(5),
            clients: 8,
            scale: 10,
            pgbouncer: None,
            pgpool: None,
            workplace: Workplace::default(),
        }
    }
}

/// An arrangement of PostgreSQL servers and what stands in front of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// One server, without anything in front.
    Direct,
    /// PgBouncer with session pooling, in front of the same server.
    Pgbouncer,
    /// Pgpool-II in native replication mode, in front of three servers.
    Pgpool,
    /// One primary that waits until two standbys have applied each commit.
    Streaming,
    /// onecopy in front of one replica.
    #[serde(rename = "onecopy-1")]
    Onecopy1,
    /// onecopy in front of three replicas.
    #[serde(rename = "onecopy-3")]
    Onecopy3,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 6] = [
        Target::Direct,
        Target::Pgbouncer,
        Target::Pgpool,
        Target::Streaming,
        Target::Onecopy1,
        Target::Onecopy3,
    ];

    /// A short name.
    pub fn id(self) -> &'static str {
        match self {
            Target::Direct => "direct",
            Target::Pgbouncer => "pgbouncer",
            Target::Pgpool => "pgpool",
            Target::Streaming => "streaming",
            Target::Onecopy1 => "onecopy-1",
            Target::Onecopy3 => "onecopy-3",
        }
    }

    /// The name in words.
    pub fn name(self) -> &'static str {
        match self {
            Target::Direct => "PostgreSQL, direct",
            Target::Pgbouncer => "PgBouncer, session pooling",
            Target::Pgpool => "Pgpool-II, 3 servers",
            Target::Streaming => "primary + 2 standbys",
            Target::Onecopy1 => "onecopy, 1 replica",
            Target::Onecopy3 => "onecopy, 3 replicas",
        }
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

/// What pgbench does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Select-only, simple protocol, all clients.
    SelectSimple,
    /// Select-only, prepared statements, all clients.
    SelectPrepared,
    /// TPC-B-like, simple protocol, all clients.
    TpcbSimple,
    /// TPC-B-like, prepared statements, all clients.
    TpcbPrepared,
    /// One client's select by primary key, simple protocol.
    LatencySimple,
    /// One client's select by primary key, prepared.
    LatencyPrepared,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 6] = [
        Load::SelectSimple,
        Load::SelectPrepared,
        Load::TpcbSimple,
        Load::TpcbPrepared,
        Load::LatencySimple,
        Load::LatencyPrepared,
    ];

    /// A short name.
    pub fn id(self) -> &'static str {
        match self {
            Load::SelectSimple => "select-simple",
            Load::SelectPrepared => "select-prepared",
            Load::TpcbSimple => "tpcb-simple",
            Load::TpcbPrepared => "tpcb-prepared",
            Load::LatencySimple => "latency-simple",
            Load::LatencyPrepared => "latency-prepared",
        }
    }

    /// The name in words.
    pub fn name(self) -> &'static str {
        match self {
            Load::SelectSimple => "select-only, simple protocol",
            Load::SelectPrepared => "select-only, prepared statements",
            Load::TpcbSimple => "TPC-B-like, simple protocol",
            Load::TpcbPrepared => "TPC-B-like, prepared statements",
            Load::LatencySimple => "one client's select by key, simple protocol",
            Load::LatencyPrepared => "one client's select by key, prepared",
        }
    }

    fn is_tpcb(self) -> bool {
        matches!(self, Load::TpcbSimple | Load::TpcbPrepared)
    }

    fn is_prepared(self) -> bool {
        matches!(self, Load::SelectPrepared | Load::TpcbPrepared | Load::LatencyPrepared)
    }

    /// One client only.
    pub fn is_latency(self) -> bool {
        matches!(self, Load::LatencySimple | Load::LatencyPrepared)
    }

    /// Statements of one transaction, BEGIN and END included.
    pub fn statements(self) -> u32 {
        if self.is_tpcb() { 7 } else { 1 }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(id: &str) -> std::result::Result<Self, String> {
        let ids: Vec<&str> = Load::ALL.iter().map(|load| load.id()).collect();
        let found = Load::ALL.into_iter().find(|load| load.id() == id);
        found.ok_or_else(|| format!("there is no load {id:?}: choose among {}", ids.join(", ")))
    }
}

/// One measurement of one target.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Under what.
    pub load: Load,
    /// The round, from 0.
    pub round: u32,
    /// What was measured.
    pub target: Target,
    /// What pgbench says; `None` if it could not finish.
    pub run: Option<Run>,
    /// Why it could not finish.
    pub failure: Option<String>,
    /// CPU time that each process tree spent meanwhile.
    pub cpu: Vec<Usage>,
}

/// Starts the targets, measures them and stops them. What cannot be started is left out, and the comparison says why.
///
/// # Errors
/// When there is no PostgreSQL or pgbench, a folder cannot be written, or nothing at all could be measured.
pub async fn run(options: &Options) -> Result<Comparison> {
    if options.rounds == 0 || options.clients == 0 || options.scale == 0 || options.duration.is_zero() {
        return Err(Error::Option("rounds, clients, scale and duration must be above zero".to_owned()));
    }
    let binaries = Binaries::find()?;
    let results = options.workplace.results_folder("compare")?;
    let folder = options.workplace.work_folder("compare")?;
    let steps = options.loads.len() * options.targets.len() * options.rounds as usize;
    let bar = options.workplace.bar(steps);

    let programs = [
        ("pgbouncer", options.pgbouncer.as_deref()),
        ("pgpool", options.pgpool.as_deref()),
        ("onecopy", Some(&*options.workplace.onecopy)),
    ];
    let mut comparison = Comparison::new(options, Machine::look(&binaries, &programs));
    let mut running: Vec<Running> = Vec::new();
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    for &target in &options.targets {
        bar.say(format!("starting {}", target.name()));
        let starting = targets::start(target, options, &binaries, folder.path(), &running);
        let started = tokio::select! {
            started = starting => started,
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
    let measuring = measure_all(options, &binaries, folder.path(), &running, &bar, &mut comparison);
    tokio::select! {
        () = measuring => {}
        _ = &mut interrupt => comparison.interrupted = true,
    }
    bar.finish();
    drop(running);

    if comparison.samples.is_empty() {
        let reasons: Vec<String> =
            comparison.left_out.iter().map(|(target, why)| format!("{target}: {why}")).collect();
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

async fn measure_all(
    options: &Options,
    binaries: &Binaries,
    folder: &Path,
    running: &[Running],
    bar: &Bar,
    comparison: &mut Comparison,
) {
    let pgbench = pgbench::Pgbench::new(binaries, options, folder);
    for &load in &options.loads {
        let warm_up = options.duration.min(Duration::from_secs(2));
        for target in running {
            bar.say(format!("{load}: warming up {}", target.target));
            // A target that fails now fails again when it counts, and is reported then.
            let _ = pgbench.run(load, &target.dsn, warm_up).await;
        }
        for round in 0..options.rounds {
            for target in turned(running, round) {
                let of = format!("{load}: round {} of {}, {}", round + 1, options.rounds, target.target);
                bar.say(of);
                let sample = measure(&pgbench, load, round, target, options.duration).await;
                comparison.samples.push(sample);
                bar.step();
            }
        }
    }
}

/// The targets in another order each round: turned by one, and every second time backwards.
pub(crate) fn turned<T>(running: &[T], round: u32) -> Vec<&T> {
    let by = round as usize % running.len().max(1);
    let mut order: Vec<&T> = running[by..].iter().chain(&running[..by]).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

async fn measure(
    pgbench: &pgbench::Pgbench,
    load: Load,
    round: u32,
    target: &Running,
    duration: Duration,
) -> Sample {
    let before = Meter::read(&target.groups());
    let result = pgbench.run(load, &target.dsn, duration).await;
    // Backends of clients that have just left are still ending.
    tokio::time::sleep(Duration::from_millis(150)).await;
    let after = Meter::read(&target.groups());
    let (run, failure) = match result {
        Ok(run) => (Some(run), None),
        Err(error) => (None, Some(error.to_string())),
    };
    Sample { load, round, target: target.target, run, failure, cpu: after.since(&before) }
}
