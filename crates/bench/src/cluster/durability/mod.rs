//! What it costs that decisions are durable: the same cluster with its log in memory and on disk in turn (CAS 8.4).
//!
//! Of the paper's four kinds of schedulers two can be measured: *Unreliable*, whose decisions are in memory, and *Reliable*, whose
//! log is on disk. (Reliable-2 and Reliable-3 have other schedulers acknowledge each decision, which onecopy does not do.) In every
//! round each mix is measured with both, one right after the other and in the other order the next time; a ratio is taken
//! within a round.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::cluster::{Outcome, durability::{self, Options}};
//! match durability::run(&Options { onecopy: "onecopy".into(), ..Options::default() }).await? {
//!     Outcome::Skipped(why) => println!("skipped: {why}"),
//!     Outcome::Measured(report) => println!("{report}"),
//! }
//! # Ok(()) }
//! ```

mod report;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use onecopy_workload::tpcw::MixName;
use serde::Serialize;

use super::servers::{Running, Template, connections};
use super::{Bench, Outcome, Stage, System, measure};
use crate::bar::Bar;
use crate::cpu_groups::Hierarchy;
use crate::programs::work_folder;
use crate::site::Crowd;
use crate::tpcw;
use crate::{Error, Result};
use report::PAPER_SERVERS;
pub use report::{Cost, DurabilityReport, Turn};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The systems, in this order. Pgpool-II has no decisions to keep and is refused.
    pub systems: Vec<System>,
    /// Servers of the cluster, at least 1.
    pub servers: u32,
    /// The mixes, in this order.
    pub mixes: Vec<MixName>,
    /// Rounds, at least 1; with fewer than 6 the interval is all of them.
    pub rounds: u32,
    /// What one server may use, in processors, above 0 and at most 1.
    pub cap: f64,
    /// Time of one measurement that counts.
    pub duration: Duration,
    /// Time before it in which customers come, and settle.
    pub ramp: Duration,
    /// Customers, who make no pauses; `None` takes as many as keep all connections of the cluster busy.
    pub clients: Option<u32>,
    /// Books in the store.
    pub items: i64,
    /// The same seed gives the same bookstore and the same customers.
    pub seed: u64,
    /// The onecopy program to measure.
    pub onecopy: PathBuf,
    /// Where the folder for the servers and the log is made, which goes afterwards; `None` is among the temporary ones.
    pub dir: Option<PathBuf>,
    /// A folder for results; a new folder is made in it. `None` keeps none.
    pub results: Option<PathBuf>,
    /// Show progress on standard error.
    pub progress: bool,
}

impl Default for Options {
    /// The paper's cluster and onecopy on as many servers, in about 30 minutes.
    fn default() -> Self {
        let cluster = super::Options::default();
        Options {
            systems: vec![System::ConflictAware, System::Onecopy],
            servers: PAPER_SERVERS,
            mixes: MixName::ALL.to_vec(),
            rounds: 6,
            cap: cluster.cap,
            duration: cluster.duration,
            ramp: cluster.ramp,
            clients: None,
            items: cluster.items,
            seed: cluster.seed,
            onecopy: cluster.onecopy,
            dir: None,
            results: None,
            progress: true,
        }
    }
}

impl Options {
    /// As clusters are started and customers sent.
    fn of_cluster(&self) -> super::Options {
        super::Options {
            systems: self.systems.clone(),
            sizes: vec![self.servers],
            mixes: self.mixes.clone(),
            cap: self.cap,
            duration: self.duration,
            ramp: self.ramp,
            think_factor: 0.0,
            users: Some(self.clients()),
            stages: 1,
            calibration: Duration::ZERO,
            items: self.items,
            seed: self.seed,
            onecopy: self.onecopy.clone(),
            ..super::Options::default()
        }
    }

    fn clients(&self) -> u32 {
        self.clients.unwrap_or_else(|| connections(self.servers))
    }
}

/// When a decision of onecopy counts as durable: `log.durability` of its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// At once: *Unreliable*.
    Memory,
    /// When the log is on disk: *Reliable*.
    Disk,
}

impl Durability {
    /// As the configuration has it.
    pub fn id(self) -> &'static str {
        match self {
            Durability::Memory => "memory",
            Durability::Disk => "disk",
        }
    }

    /// Both, the order changing from round to round.
    fn in_round(round: u32) -> [Durability; 2] {
        if round.is_multiple_of(2) {
            [Durability::Memory, Durability::Disk]
        } else {
            [Durability::Disk, Durability::Memory]
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

/// Measures every mix of every system in turns.
///
/// # Errors
/// When an option makes no sense, PostgreSQL is missing, the bookstore cannot be loaded, or a folder cannot be written. What goes
/// wrong in one turn is written down in the report, and the others go on.
pub async fn run(options: &Options) -> Result<Outcome<DurabilityReport>> {
    let cluster = options.of_cluster();
    check(options, &cluster)?;
    let hierarchy = match Hierarchy::find() {
        Ok(hierarchy) => hierarchy,
        Err(why) => return Ok(Outcome::Skipped(why.to_string())),
    };
    let results = options.results.as_deref().map(|dir| super::new_folder(dir, "durability")).transpose()?;
    let folder = work_folder("onecopy-durability-", options.dir.as_deref())?;
    let turns = options.systems.len() * options.mixes.len() * options.rounds as usize * 2;
    let bar = Bar::new(turns, options.progress);
    let bench = Bench { options: &cluster, hierarchy, folder: folder.path(), bar };
    let mut report = DurabilityReport::new(options, tpcw::log_write_ms(folder.path())?);
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    tokio::select! {
        measured = measure_all(&bench, options, &mut report) => measured?,
        _ = &mut interrupt => report.interrupted = true,
    }
    bench.bar.finish();
    if report.turns.is_empty() && report.failures.is_empty() {
        return Err(Error::Interrupted);
    }
    if let Some(results) = &results {
        report.save(results)?;
    }
    Ok(Outcome::Measured(Box::new(report)))
}

fn check(options: &Options, cluster: &super::Options) -> Result<()> {
    if !(1..=64).contains(&options.servers) {
        return Err(Error::Option("servers must be from 1 to 64".to_owned()));
    }
    if options.clients == Some(0) {
        return Err(Error::Option("there must be a client".to_owned()));
    }
    super::check(cluster)?;
    if options.systems.contains(&System::Pgpool) {
        return Err(Error::Option(
            "pgpool has no log of decisions: choose among onecopy's protocols".to_owned(),
        ));
    }
    if options.rounds == 0 {
        return Err(Error::Option("there must be a round".to_owned()));
    }
    Ok(())
}

async fn measure_all(bench: &Bench<'_>, options: &Options, report: &mut DurabilityReport) -> Result<()> {
    bench.say("loading the bookstore".to_owned());
    let template = Template::make(&bench.folder.join("template"), bench.options).await?;
    for &system in &options.systems {
        let mut running = match Running::prepare(bench, system, options.servers, &template) {
            Ok(running) => running,
            Err(error) => {
                report.failures.push(format!("{system}: {error}"));
                continue;
            }
        };
        for round in 0..options.rounds {
            for &mix in &options.mixes {
                for durability in Durability::in_round(round) {
                    bench.say(format!("{system}, {mix}, {durability}: round {}", round + 1));
                    match turn(bench, &mut running, mix, durability).await {
                        Ok(stage) => {
                            report.turns.push(Turn {
                                system,
                                mix: mix.to_string(),
                                round,
                                durability,
                                stage,
                            });
                        }
                        Err(error) => report
                            .failures
                            .push(format!("{system}, {mix}, {durability}, round {}: {error}", round + 1)),
                    }
                    bench.bar.step();
                }
            }
        }
    }
    Ok(())
}

/// Serves the cluster anew, since durability is settled at the start, and measures. The customers of the warm-up stay, so that no
/// capped server has to learn the statements of new sessions while it is measured.
async fn turn(
    bench: &Bench<'_>,
    running: &mut Running,
    mix: MixName,
    durability: Durability,
) -> Result<Stage> {
    running.launch(bench, durability).await?;
    let clients = bench.options.users.unwrap_or_default();
    let options = measure::customers(bench, running, mix, clients);
    let mut crowd = Crowd::open(&options).await?;
    crowd.come(clients, Duration::ZERO);
    tokio::time::sleep(measure::WARM_UP).await;
    running.cap(Some(bench.options.cap))?;
    let stage = measure::stage(bench, running, &mut crowd, clients).await?;
    crowd.leave(measure::LEAVE_MAX).await;
    if stage.completed == 0 {
        let errors: Vec<&str> = stage.errors.keys().map(String::as_str).collect();
        return Err(Error::Option(format!("no interaction succeeded: {}", errors.join(", "))));
    }
    bench.say(format!("{}, {mix}, {durability}: {:.1} a second", running.system, stage.throughput));
    Ok(stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_first_in_every_other_round() {
        assert_eq!(Durability::in_round(0), [Durability::Memory, Durability::Disk]);
        assert_eq!(Durability::in_round(1), [Durability::Disk, Durability::Memory]);
    }

    #[test]
    fn options_that_make_no_sense_are_refused_before_anything_is_made() {
        let said = |options: Options| check(&options, &options.of_cluster()).unwrap_err().to_string();
        assert!(said(Options { systems: vec![System::Pgpool], ..Options::default() }).contains("pgpool"));
        assert!(said(Options { rounds: 0, ..Options::default() }).contains("round"));
        assert!(said(Options { servers: 0, ..Options::default() }).contains("servers"));
        assert!(said(Options { clients: Some(0), ..Options::default() }).contains("client"));
        let options = Options::default();
        assert!(check(&options, &options.of_cluster()).is_ok());
    }
}
