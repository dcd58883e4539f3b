//! What it costs that decisions are durable: the same cluster with its log in memory, on disk, and on the disks of several nodes in
//! turn (CAS 8.4).
//!
//! Of the paper's kinds of schedulers *Unreliable* has its decisions in memory, *Reliable* on disk, and of *Reliable-3* two others have
//! them as well. Here these are one onecopy with [`Durability::Memory`], one with [`Durability::Disk`], and three that share a log,
//! [`Durability::Nodes`]: a decision counts when a majority of them has it on disk, which the paper's others have in memory only.
//! In every round each load is measured with all of them, one right after the other, in an order that changes from round to round; a
//! ratio is taken within a round.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::cluster::{Outcome, durability::{self, Options}};
//! match durability::run(&Options::default()).await? {
//!     Outcome::Skipped(why) => println!("skipped: {why}"),
//!     Outcome::Measured(report) => println!("{report}"),
//! }
//! # Ok(()) }
//! ```

mod report;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use onecopy_workload::tpcw::MixName;
use serde::Serialize;

use super::servers::{Running, Serve, Template, connections};
use super::{Bench, Outcome, Stage, System, measure};
use crate::cpu_groups::Hierarchy;
use crate::pgbench::Pgbench;
use crate::site::{self, Crowd, Website};
use crate::tpcw;
use crate::workplace::Workplace;
use crate::{Error, Result};
use report::PAPER_SERVERS;
pub use report::{Cost, DurabilityReport, Turn};

/// As many as onecopy allows.
const NODES_MAX: u32 = 9;
/// Accounts of each branch: those of pgbench a hundredth, since every server of every level has them.
const ACCOUNTS: i64 = 1_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The systems, in this order. Pgpool-II has no decisions to keep and is refused.
    pub systems: Vec<System>,
    /// Servers of the cluster, at least 1.
    pub servers: u32,
    /// What clients do, in this order.
    pub loads: Vec<Load>,
    /// What is compared, at least one.
    pub levels: Vec<Durability>,
    /// onecopy processes at [`Durability::Nodes`], from 2 to 9.
    pub nodes: u32,
    /// Which of them clients are connected to.
    pub clients_at: ClientsAt,
    /// Rounds, at least 1; with fewer than 6 the interval is all of them.
    pub rounds: u32,
    /// What one server may use, in processors, above 0 and at most 1; `None` lets all do what they can, for which no control groups
    /// are needed.
    pub cap: Option<f64>,
    /// Time of one measurement that counts.
    pub duration: Duration,
    /// Time before it in which clients come, and settle.
    pub ramp: Duration,
    /// Clients, who make no pauses; `None` takes as many as keep all connections of the cluster busy.
    pub clients: Option<u32>,
    /// Books in the store.
    pub items: i64,
    /// Branches of the bank.
    pub branches: i64,
    /// The same seed gives the same bookstore and the same clients.
    pub seed: u64,
    /// Where it works, and what it leaves.
    pub workplace: Workplace,
}

impl Default for Options {
    /// The paper's cluster and onecopy on as many servers, in about an hour.
    fn default() -> Self {
        let cluster = super::Options::default();
        Options {
            systems: vec![System::ConflictAware, System::Onecopy],
            servers: PAPER_SERVERS,
            loads: Load::ALL.to_vec(),
            levels: Durability::ALL.to_vec(),
            nodes: 3,
            clients_at: ClientsAt::Any,
            rounds: 6,
            cap: Some(cluster.cap),
            duration: cluster.duration,
            ramp: cluster.ramp,
            clients: None,
            items: cluster.items,
            branches: Pgbench::default().branches,
            seed: cluster.seed,
            workplace: Workplace::default(),
        }
    }
}

impl Options {
    /// As clusters are started and customers sent.
    fn of_cluster(&self) -> super::Options {
        super::Options {
            systems: self.systems.clone(),
            sizes: vec![self.servers],
            cap: self.cap.unwrap_or(1.0),
            duration: self.duration,
            ramp: self.ramp,
            think_factor: 0.0,
            users: Some(self.clients()),
            stages: 1,
            calibration: Duration::ZERO,
            items: self.items,
            seed: self.seed,
            workplace: self.workplace.clone(),
            ..super::Options::default()
        }
    }

    fn clients(&self) -> u32 {
        self.clients.unwrap_or_else(|| connections(self.servers))
    }

    fn bank(&self) -> Pgbench {
        Pgbench { branches: self.branches, accounts: ACCOUNTS, ..Pgbench::default() }
    }

    fn serve(&self, level: Durability) -> Serve {
        let at_leader = self.clients_at == ClientsAt::Leader;
        match level {
            Durability::Memory => Serve { durability: "memory", nodes: 1, at_leader },
            Durability::Disk => Serve { durability: "disk", nodes: 1, at_leader },
            Durability::Nodes => Serve { durability: "disk", nodes: self.nodes, at_leader },
        }
    }
}

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// pgbench's TPC-B-like deposits: every transaction writes.
    Tpcb,
    /// The bookstore.
    Mix(MixName),
}

impl Load {
    /// All of them, those that write most first.
    pub const ALL: [Load; 4] = [
        Load::Tpcb,
        Load::Mix(MixName::Ordering),
        Load::Mix(MixName::Shopping),
        Load::Mix(MixName::Browsing),
    ];
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Tpcb => f.pad("tpcb"),
            Load::Mix(mix) => mix.fmt(f),
        }
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(id: &str) -> std::result::Result<Self, String> {
        let found = Load::ALL.into_iter().find(|load| load.to_string() == id);
        found.ok_or_else(|| {
            format!("there is no load {id:?}: choose among tpcb, browsing, shopping, ordering")
        })
    }
}

/// When a decision of onecopy counts as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// At once: *Unreliable*.
    Memory,
    /// When the log is on disk: *Reliable*.
    Disk,
    /// When a majority of the nodes has it on disk.
    Nodes,
}

impl Durability {
    /// All of them, from none to most.
    pub const ALL: [Durability; 3] = [Durability::Memory, Durability::Disk, Durability::Nodes];

    /// Its name.
    pub fn id(self) -> &'static str {
        match self {
            Durability::Memory => "memory",
            Durability::Disk => "disk",
            Durability::Nodes => "nodes",
        }
    }

    /// These in the order of a round: every one is as often the first as each other one, and each order comes as often as its reverse.
    fn in_round(levels: &[Durability], round: u32) -> Vec<Durability> {
        let (round, count) = (round as usize, levels.len());
        let mut order = levels.to_vec();
        order.rotate_left(round % count);
        if (round / count) % 2 == 1 {
            order.reverse();
        }
        order
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(id: &str) -> std::result::Result<Self, String> {
        let found = Durability::ALL.into_iter().find(|level| level.id() == id);
        found.ok_or_else(|| format!("there is no level {id:?}: choose among memory, disk, nodes"))
    }
}

/// Which of several nodes clients are connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientsAt {
    /// As many to each: what users get who do not know which one leads. All but one's have a hop more.
    Any,
    /// All to the one that leads when they come.
    Leader,
}

impl FromStr for ClientsAt {
    type Err = String;

    fn from_str(id: &str) -> std::result::Result<Self, String> {
        match id {
            "any" => Ok(ClientsAt::Any),
            "leader" => Ok(ClientsAt::Leader),
            _ => Err(format!("clients are at {id:?}: choose any or leader")),
        }
    }
}

impl fmt::Display for ClientsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ClientsAt::Any => "any",
            ClientsAt::Leader => "leader",
        })
    }
}

/// Measures every load of every system in turns.
///
/// # Errors
/// When an option makes no sense, PostgreSQL is missing, the sites cannot be loaded, or a folder cannot be written. What goes
/// wrong in one turn is written down in the report, and the others go on.
pub async fn run(options: &Options) -> Result<Outcome<DurabilityReport>> {
    let cluster = options.of_cluster();
    check(options, &cluster)?;
    let hierarchy = match options.cap.map(|_| Hierarchy::find()).transpose() {
        Ok(hierarchy) => hierarchy,
        Err(why) => return Ok(Outcome::Skipped(why.to_string())),
    };
    let results = options.workplace.results_folder("durability")?;
    let folder = options.workplace.work_folder("durability")?;
    let turns = options.systems.len() * options.loads.len() * options.levels.len() * options.rounds as usize;
    let bar = options.workplace.bar(turns);
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
    let refuse = |why: &str| Err(Error::Option(why.to_owned()));
    if !(1..=64).contains(&options.servers) {
        return refuse("servers must be from 1 to 64");
    }
    if options.clients == Some(0) {
        return refuse("there must be a client");
    }
    super::check(cluster)?;
    if options.systems.contains(&System::Pgpool) {
        return refuse("pgpool has no log of decisions: choose among onecopy's protocols");
    }
    if options.rounds == 0 || options.loads.is_empty() || options.levels.is_empty() {
        return refuse("there must be a round, a load and a level");
    }
    if super::has_twice(&options.loads) || super::has_twice(&options.levels) {
        return refuse("name each load and level once");
    }
    if !(2..=NODES_MAX).contains(&options.nodes) {
        return refuse(&format!("nodes must be from 2 to {NODES_MAX}"));
    }
    Ok(())
}

async fn measure_all(bench: &Bench<'_>, options: &Options, report: &mut DurabilityReport) -> Result<()> {
    bench.say("loading".to_owned());
    let bank = options.loads.contains(&Load::Tpcb).then(|| options.bank());
    let template = Template::make(&bench.folder.join("template"), bench.options, bank).await?;
    for &system in &options.systems {
        let mut clusters = match prepare(bench, options, system, &template) {
            Ok(clusters) => clusters,
            Err(error) => {
                report.failures.push(format!("{system}: {error}"));
                continue;
            }
        };
        for round in 0..options.rounds {
            for &load in &options.loads {
                for durability in Durability::in_round(&options.levels, round) {
                    let what = format!("{system}, {load}, {durability}, round {}", round + 1);
                    bench.say(what.clone());
                    let Some((_, running)) = clusters.iter_mut().find(|(level, _)| *level == durability)
                    else {
                        continue;
                    };
                    match turn(bench, options, running, load).await {
                        Ok(stage) => {
                            bench.say(format!("{what}: {:.1} a second", stage.throughput));
                            let load = load.to_string();
                            report.turns.push(Turn { system, load, round, durability, stage });
                        }
                        Err(error) => report.failures.push(format!("{what}: {error}")),
                    }
                    bench.bar.step();
                }
            }
        }
    }
    Ok(())
}

/// A cluster for each level, since replicas belong to the log that they were served with. Only the one that is measured runs. Each has
/// as many turns behind it as the others.
fn prepare(
    bench: &Bench<'_>,
    options: &Options,
    system: System,
    template: &Template,
) -> Result<Vec<(Durability, Running)>> {
    let prepare = |&level: &Durability| {
        Ok((level, Running::prepare(bench, system, options.servers, template, options.serve(level))?))
    };
    options.levels.iter().map(prepare).collect()
}

/// Serves the cluster anew, measures, and stops it. The clients of the warm-up stay, so that no capped server has to learn the
/// statements of new sessions while it is measured.
async fn turn(bench: &Bench<'_>, options: &Options, running: &mut Running, load: Load) -> Result<Stage> {
    running.launch(bench).await?;
    let clients = options.clients();
    let stage = match load {
        Load::Mix(mix) => measured(bench, running, &measure::customers(bench, running, mix, clients)).await,
        Load::Tpcb => {
            measured(bench, running, &measure::visits(bench, running, options.bank(), clients)).await
        }
    };
    running.stop();
    stage
}

async fn measured<S: Website>(
    bench: &Bench<'_>,
    running: &Running,
    visits: &site::Options<S>,
) -> Result<Stage> {
    let mut crowd = Crowd::open(visits).await?;
    crowd.come(visits.clients, Duration::ZERO);
    tokio::time::sleep(measure::WARM_UP).await;
    running.cap(Some(bench.options.cap))?;
    let stage = measure::stage(bench, running, &mut crowd, visits.clients).await?;
    crowd.leave(measure::LEAVE_MAX).await;
    if stage.completed == 0 {
        let errors: Vec<&str> = stage.errors.keys().map(String::as_str).collect();
        return Err(Error::Option(format!("no interaction succeeded: {}", errors.join(", "))));
    }
    Ok(stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_first_as_often_as_the_others_and_each_order_as_often_as_its_reverse() {
        use Durability::{Disk, Memory, Nodes};
        let two = |round| Durability::in_round(&[Memory, Disk], round);
        assert_eq!(
            [two(0), two(1), two(2), two(3)].concat(),
            [[Memory, Disk], [Disk, Memory], [Disk, Memory], [Memory, Disk]].concat()
        );
        let mut orders: Vec<_> = (0..6).map(|round| Durability::in_round(&Durability::ALL, round)).collect();
        assert_eq!(orders[1], [Disk, Nodes, Memory]);
        assert_eq!(orders[3], [Nodes, Disk, Memory]);
        orders.sort();
        orders.dedup();
        assert_eq!(orders.len(), 6);
    }

    #[test]
    fn names_of_loads_and_levels_are_read_as_they_are_written() {
        assert!(Load::ALL.into_iter().all(|load| load.to_string().parse() == Ok(load)));
        assert!(Durability::ALL.into_iter().all(|level| level.id().parse() == Ok(level)));
        assert!("tpcc".parse::<Load>().unwrap_err().contains("tpcb"));
        assert!("tape".parse::<Durability>().unwrap_err().contains("memory"));
    }

    #[test]
    fn options_that_make_no_sense_are_refused_before_anything_is_made() {
        let said = |options: Options| check(&options, &options.of_cluster()).unwrap_err().to_string();
        assert!(said(Options { systems: vec![System::Pgpool], ..Options::default() }).contains("pgpool"));
        assert!(said(Options { rounds: 0, ..Options::default() }).contains("round"));
        assert!(said(Options { servers: 0, ..Options::default() }).contains("servers"));
        assert!(said(Options { clients: Some(0), ..Options::default() }).contains("client"));
        assert!(said(Options { nodes: 1, ..Options::default() }).contains("nodes"));
        assert!(said(Options { levels: vec![], ..Options::default() }).contains("level"));
        assert!(said(Options { loads: vec![Load::Tpcb; 2], ..Options::default() }).contains("once"));
        let options = Options::default();
        assert!(check(&options, &options.of_cluster()).is_ok());
    }
}
