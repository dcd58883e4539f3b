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

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use onecopy_workload::tpcw::MixName;
use serde::Serialize;

use super::servers::{Running, Template, connections};
use super::{Bench, Outcome, Stage, System, measure, report};
use crate::bar::Bar;
use crate::compare::Spread;
use crate::cpu_groups::Hierarchy;
use crate::programs::{work_folder, write};
use crate::site::Crowd;
use crate::table::{Table, millis, thousands};
use crate::tpcw;
use crate::{Error, Result};

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
    let results = options.results.as_deref().map(|dir| report::new_folder(dir, "durability")).transpose()?;
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

/// What one turn has shown.
#[derive(Clone, Debug, Serialize)]
pub struct Turn {
    /// The system.
    pub system: System,
    /// The mix.
    pub mix: String,
    /// The round, from 0.
    pub round: u32,
    /// When its decisions were durable.
    pub durability: Durability,
    /// What the customers got.
    #[serde(flatten)]
    pub stage: Stage,
}

/// Everything about one run.
#[derive(Clone, Debug, Serialize)]
pub struct DurabilityReport {
    /// Servers.
    pub servers: u32,
    /// What one server may use, in processors.
    pub cap: f64,
    /// Customers.
    pub clients: u32,
    /// Books.
    pub items: i64,
    /// Seconds of one turn.
    pub seconds: f64,
    /// Seed.
    pub seed: u64,
    /// Processors of the machine.
    pub processors: usize,
    /// What a write of a log takes in the folder of the cluster, in milliseconds, as it was before the first turn.
    pub log_write_ms: f64,
    /// Turn by turn, in the order in which they were.
    pub turns: Vec<Turn>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
    /// Ended by Ctrl-C.
    pub interrupted: bool,
}

/// What durability costs a system under a mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The system.
    pub system: System,
    /// The mix.
    pub mix: String,
    /// Interactions a second with decisions in memory.
    pub unreliable: Spread,
    /// With decisions on disk.
    pub reliable: Spread,
    /// The second over the first, within a round.
    pub ratio: Spread,
    /// What the conflict-aware scheduling paper says of that ratio (CAS 8.4; claims cas-25 and cas-26).
    pub paper: Option<f64>,
}

/// Servers of the cluster in CAS 8.4.
const PAPER_SERVERS: u32 = 8;

impl DurabilityReport {
    fn new(options: &Options, log_write_ms: f64) -> Self {
        DurabilityReport {
            servers: options.servers,
            cap: options.cap,
            clients: options.clients(),
            items: options.items,
            seconds: options.duration.as_secs_f64(),
            seed: options.seed,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            log_write_ms,
            turns: Vec::new(),
            failures: Vec::new(),
            interrupted: false,
        }
    }

    /// What durability costs, for each system and mix of which some round was measured with both.
    #[must_use]
    pub fn costs(&self) -> Vec<Cost> {
        let mut cells: Vec<(System, &str)> = Vec::new();
        for turn in &self.turns {
            if !cells.contains(&(turn.system, &turn.mix)) {
                cells.push((turn.system, &turn.mix));
            }
        }
        cells.into_iter().filter_map(|(system, mix)| self.cost(system, mix)).collect()
    }

    fn cost(&self, system: System, mix: &str) -> Option<Cost> {
        let of =
            |durability: Durability| self.of(system, mix).filter(move |turn| turn.durability == durability);
        let rate = |durability| Spread::of(of(durability).map(|turn| turn.stage.throughput));
        let ratios = of(Durability::Disk).filter_map(|disk| {
            let memory = of(Durability::Memory).find(|memory| memory.round == disk.round)?;
            Some(disk.stage.throughput / memory.stage.throughput)
        });
        Some(Cost {
            system,
            mix: mix.to_owned(),
            unreliable: rate(Durability::Memory)?,
            reliable: rate(Durability::Disk)?,
            ratio: Spread::of(ratios)?,
            paper: paper(system, self.servers, mix),
        })
    }

    fn of(&self, system: System, mix: &str) -> impl Iterator<Item = &Turn> + Clone {
        self.turns.iter().filter(move |turn| (turn.system, turn.mix.as_str()) == (system, mix))
    }

    fn save(&self, folder: &Path) -> Result<()> {
        #[derive(Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            report: &'a DurabilityReport,
            costs: Vec<Cost>,
        }
        let json = serde_json::to_string_pretty(&Whole { report: self, costs: self.costs() })
            .map_err(|error| Error::Option(format!("write the report: {error}")))?;
        write(&folder.join("report.json"), &json)?;
        write(&folder.join("turns.csv"), &self.turns_csv())?;
        write(&folder.join("report.txt"), &self.to_string())
    }

    /// One line a turn.
    fn turns_csv(&self) -> String {
        let mut out = String::from(
            "system,mix,round,durability,clients,throughput,mean_ms,p90_ms,completed,errors,retries,servers_busy,proxy_cores,\
             machine_busy\n",
        );
        for Turn { system, mix, round, durability, stage } in &self.turns {
            let _ = writeln!(
                out,
                "{system},{mix},{round},{durability},{},{:.3},{:.3},{:.3},{},{},{},{:.3},{:.3},{:.3}",
                stage.users,
                stage.throughput,
                stage.latency.mean_ms,
                stage.latency.p90_ms,
                stage.completed,
                stage.errors.values().sum::<u64>(),
                stage.retries.values().sum::<u64>(),
                stage.servers_busy,
                stage.proxy_cores,
                stage.machine_busy,
            );
        }
        out
    }

    fn table(&self) -> String {
        let mut table = Table::new([
            "system, mix",
            "memory, a second",
            "disk, a second",
            "disk over memory",
            "interval",
            "paper",
            "servers busy",
            "onecopy, processors",
            "errors",
            "retries",
        ]);
        for Cost { system, mix, unreliable, reliable, ratio, paper } in self.costs() {
            let stages: Vec<&Stage> = self.of(system, &mix).map(|turn| &turn.stage).collect();
            let mean = |figure: fn(&Stage) -> f64| {
                stages.iter().map(|stage| figure(stage)).sum::<f64>() / stages.len() as f64
            };
            let sum = |counts: fn(&Stage) -> u64| stages.iter().map(|stage| counts(stage)).sum::<u64>();
            table.row([
                format!("{system}, {mix}"),
                format!("{:.1}", unreliable.median),
                format!("{:.1}", reliable.median),
                format!("{:.3}", ratio.median),
                format!("{:.3} to {:.3}", ratio.low, ratio.high),
                paper.map_or_else(String::new, |paper| format!("{paper:.2}")),
                format!("{:.0} %", 100.0 * mean(|stage| stage.servers_busy)),
                format!("{:.2}", mean(|stage| stage.proxy_cores)),
                thousands(sum(|stage| stage.errors.values().sum()) as f64),
                thousands(sum(|stage| stage.retries.values().sum()) as f64),
            ]);
        }
        table.terminal()
    }
}

impl fmt::Display for DurabilityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} servers, each may use {} of a processor ({} here); {} customers without pauses, {} items; turns of {} s; a write \
             of the log takes {} ms here",
            self.servers,
            self.cap,
            self.processors,
            self.clients,
            thousands(self.items as f64),
            self.seconds,
            millis(self.log_write_ms)
        )?;
        write!(f, "{}", self.table())?;
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        let busy = report::overloaded(self.turns.iter().map(|turn| &turn.stage));
        if busy > 0 {
            writeln!(
                f,
                "in {busy} of {} turns the machine had no time left, so what was measured there is too little",
                self.turns.len()
            )?;
        }
        if self.interrupted {
            writeln!(f, "it was interrupted")?;
        }
        Ok(())
    }
}

fn paper(system: System, servers: u32, mix: &str) -> Option<f64> {
    match (system, servers, mix) {
        (System::ConflictAware, PAPER_SERVERS, "browsing" | "shopping") => Some(1.0),
        (System::ConflictAware, PAPER_SERVERS, "ordering") => Some(0.84),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Latency;

    fn turn(round: u32, durability: Durability, throughput: f64) -> Turn {
        let stage = Stage {
            users: 64,
            throughput,
            latency: Latency::default(),
            completed: throughput as u64,
            errors: [("40001".to_owned(), 1)].into(),
            retries: [].into(),
            servers_busy: 0.5,
            proxy_cores: 0.2,
            machine_busy: 0.7,
        };
        Turn { system: System::ConflictAware, mix: "ordering".to_owned(), round, durability, stage }
    }

    fn report() -> DurabilityReport {
        let [memory, disk] = [Durability::Memory, Durability::Disk];
        let turns = vec![
            turn(0, memory, 100.0),
            turn(0, disk, 75.0),
            // The machine is slower in this round, for both.
            turn(1, disk, 25.0),
            turn(1, memory, 50.0),
            turn(2, memory, 200.0),
        ];
        DurabilityReport { turns, ..DurabilityReport::new(&Options::default(), 0.5) }
    }

    #[test]
    fn ratios_are_taken_within_a_round_that_was_measured_with_both() {
        let costs = report().costs();
        assert_eq!(costs.len(), 1);
        assert_eq!(costs[0].ratio, Spread { median: 0.625, low: 0.5, high: 0.75, count: 2 });
        assert_eq!((costs[0].unreliable.median, costs[0].reliable.median), (100.0, 50.0));
        assert_eq!(costs[0].paper, Some(0.84));
    }

    #[test]
    fn other_clusters_than_the_papers_have_no_figure_of_it() {
        let others = [(System::Onecopy, 8, "ordering"), (System::ConflictAware, 4, "ordering")];
        assert!(others.into_iter().all(|(system, servers, mix)| paper(system, servers, mix).is_none()));
    }

    #[test]
    fn each_comes_first_in_every_other_round() {
        assert_eq!(Durability::in_round(0), [Durability::Memory, Durability::Disk]);
        assert_eq!(Durability::in_round(1), [Durability::Disk, Durability::Memory]);
    }

    #[test]
    fn results_are_kept_turn_by_turn() {
        let folder = tempfile::tempdir().unwrap();
        report().save(folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let csv = read("turns.csv");
        assert_eq!(csv.lines().count(), 1 + 5);
        assert!(csv.contains("conflict_aware,ordering,1,disk,64,25.000,"), "{csv}");
        let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
        assert_eq!(json["costs"][0]["ratio"]["median"], 0.625);
        assert_eq!(json["turns"][1]["throughput"], 75.0);
        assert!(read("report.txt").contains("0.625"), "{}", read("report.txt"));
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
