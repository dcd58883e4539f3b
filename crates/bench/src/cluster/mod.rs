//! The bookstore on clusters of real servers, each held to a part of a processor, beside the same clusters in virtual time.
//!
//! A machine with two cores can run eight servers as slow as the papers' were: each is put into a control group with a quota
//! ([`Options::cap`]). One cell is one system with so many servers under one mix: customers come in stages until throughput does not
//! rise any more. The simulator is given what statements and pages cost through the same product with one such server, and looks for the
//! peak of the same cell.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::cluster::{self, Options, Outcome};
//! match cluster::run(&Options::default()).await? {
//!     Outcome::Skipped(why) => println!("skipped: {why}"),
//!     Outcome::Measured(report) => println!("{report}"),
//! }
//! # Ok(()) }
//! ```

mod apply;
pub mod durability;
mod load;
mod measure;
mod report;
mod servers;
mod simulate;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use onecopy_workload::tpcw::MixName;
use serde::Serialize;

use crate::bar::Bar;
use crate::cpu_groups::Hierarchy;
use crate::programs::find_program;
use crate::site::Crowd;
use crate::tpcw::{self, Calibrate, Calibration, Meter};
use crate::workplace::Workplace;
use crate::{Error, Result};
pub use measure::{Cell, Stage};
pub use report::{ClusterReport, Ratio, WITHIN};
use servers::{Running, Template, connections};
pub use simulate::Simulated;

/// A server's processes have done what a statement is to them so long after the client has its answer.
const SETTLES: Duration = Duration::from_micros(300);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The systems, in this order.
    pub systems: Vec<System>,
    /// Servers of a cluster, each at least 1.
    pub sizes: Vec<u32>,
    /// The mixes, in this order, one after the other on the same cluster.
    pub mixes: Vec<MixName>,
    /// What one server may use, in processors, above 0 and at most 1.
    pub cap: f64,
    /// Time of one stage that counts.
    pub duration: Duration,
    /// Time before it in which customers come, and settle.
    pub ramp: Duration,
    /// Pauses between pages are multiplied by this.
    pub think_factor: f64,
    /// Customers for each server in the first stage; `None` takes as many as would just saturate it.
    pub users: Option<u32>,
    /// Stages at most.
    pub stages: u32,
    /// Time of each calibration that counts; zero calibrates and simulates nothing.
    pub calibration: Duration,
    /// Books in the store.
    pub items: i64,
    /// Emulated browsers that its customers are counted for.
    pub browsers: i64,
    /// The same seed gives the same bookstore, the same customers and the same simulations.
    pub seed: u64,
    /// The pgpool program; `None` looks for it in PATH and the usual folders.
    pub pgpool: Option<PathBuf>,
    /// Where it works, and what it leaves.
    pub workplace: Workplace,
}

impl Default for Options {
    /// Everything, in about 50 minutes. With servers twice as fast, eight of them would leave two cores no time for what stands before
    /// them.
    fn default() -> Self {
        Options {
            systems: System::ALL.to_vec(),
            sizes: vec![1, 2, 4, 8],
            mixes: MixName::ALL.to_vec(),
            cap: 0.05,
            duration: Duration::from_secs(8),
            ramp: Duration::from_secs(3),
            think_factor: 0.05,
            users: None,
            stages: 3,
            calibration: Duration::from_secs(60),
            items: 1_000,
            browsers: 1,
            seed: 1,
            pgpool: None,
            workplace: Workplace::default(),
        }
    }
}

/// What makes several servers one database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// onecopy's own protocol.
    Onecopy,
    /// Conflict-aware scheduling, by onecopy.
    ConflictAware,
    /// Distributed versioning, by onecopy.
    Versioning,
    /// Eager replication under table locks, by onecopy.
    Eager,
    /// Pgpool-II in native replication mode; it is not simulated.
    Pgpool,
}

impl System {
    /// All of them.
    pub const ALL: [System; 5] =
        [System::Onecopy, System::ConflictAware, System::Versioning, System::Eager, System::Pgpool];

    /// Its name, which is that of the protocol.
    pub fn id(self) -> &'static str {
        match self {
            System::Onecopy => "onecopy",
            System::ConflictAware => "conflict_aware",
            System::Versioning => "versioning",
            System::Eager => "eager",
            System::Pgpool => "pgpool",
        }
    }

    /// Whether applications declare the tables of their transactions to it, as the papers have it.
    pub fn is_declared_to(self) -> bool {
        matches!(self, System::ConflictAware | System::Versioning | System::Eager)
    }

    /// Whether the simulator has it.
    pub fn is_simulated(self) -> bool {
        self != System::Pgpool
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl FromStr for System {
    type Err = String;

    fn from_str(id: &str) -> std::result::Result<Self, String> {
        let ids: Vec<&str> = System::ALL.iter().map(|system| system.id()).collect();
        let found = System::ALL.into_iter().find(|system| system.id() == id);
        found.ok_or_else(|| format!("there is no system {id:?}: choose among {}", ids.join(", ")))
    }
}

/// What came of it: a report.
#[derive(Debug)]
pub enum Outcome<R = ClusterReport> {
    /// Nothing was measured, since servers cannot be capped here: why.
    Skipped(String),
    /// What was measured.
    Measured(Box<R>),
}

/// Measures every cell, then simulates it.
///
/// # Errors
/// When an option makes no sense, PostgreSQL is missing, the bookstore cannot be loaded, or a folder cannot be written. What goes
/// wrong with one system or in one cell is written down there, and the others go on.
pub async fn run(options: &Options) -> Result<Outcome> {
    check(options)?;
    let hierarchy = match Hierarchy::find() {
        Ok(hierarchy) => hierarchy,
        Err(why) => return Ok(Outcome::Skipped(why.to_string())),
    };
    let results = options.workplace.results_folder("cluster")?;
    let folder = options.workplace.work_folder("cluster")?;
    let cells = options.systems.len() * options.sizes.len() * options.mixes.len();
    let bench = Bench {
        options,
        hierarchy: Some(hierarchy),
        folder: folder.path(),
        bar: options.workplace.bar(cells),
    };
    let mut report = ClusterReport::new(options);
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    tokio::select! {
        measured = bench.measure_all(&mut report) => measured?,
        _ = &mut interrupt => report.interrupted = true,
    }
    if let Some(results) = &results {
        // What took long is kept, whatever comes of the rest.
        report.save(results)?;
    }
    if !report.interrupted && !options.calibration.is_zero() {
        bench.say("simulating".to_owned());
        tokio::select! {
            simulated = simulate::all(options, &report) => report.take_simulated(simulated?),
            _ = &mut interrupt => report.interrupted = true,
        }
    }
    bench.bar.finish();
    if report.cells.is_empty() && report.failures.is_empty() {
        return Err(Error::Interrupted);
    }
    if let Some(results) = &results {
        report.save(results)?;
    }
    Ok(Outcome::Measured(Box::new(report)))
}

fn check(options: &Options) -> Result<()> {
    let refuse = |why: &str| Err(Error::Option(why.to_owned()));
    if options.systems.is_empty() || options.sizes.is_empty() || options.mixes.is_empty() {
        return refuse("there must be a system, a size and a mix");
    }
    if options.sizes.iter().any(|size| !(1..=64).contains(size)) {
        return refuse("sizes must be from 1 to 64");
    }
    if has_twice(&options.systems) || has_twice(&options.sizes) || has_twice(&options.mixes) {
        return refuse("name each system, size and mix once");
    }
    if !(0.01..=1.0).contains(&options.cap) {
        return refuse("the cap must be from 0.01 to 1 processor");
    }
    if options.duration.is_zero() || options.stages == 0 || options.users == Some(0) {
        return refuse("duration, stages and users must be above zero");
    }
    if options.users.is_none() && options.calibration.is_zero() {
        return refuse("without a calibration nothing says how many users saturate a server: set users");
    }
    if !(options.think_factor.is_finite() && options.think_factor >= 0.0) {
        return refuse("the factor on pauses must be a number of at least 0");
    }
    Ok(())
}

fn has_twice<T: PartialEq>(values: &[T]) -> bool {
    values.iter().enumerate().any(|(place, value)| values[..place].contains(value))
}

/// What all cells have in common.
struct Bench<'a> {
    options: &'a Options,
    /// Where servers are held back; `None` lets them do what they can.
    hierarchy: Option<Hierarchy>,
    folder: &'a Path,
    bar: Bar,
}

impl Bench<'_> {
    async fn measure_all(&self, report: &mut ClusterReport) -> Result<()> {
        self.say("loading the bookstore".to_owned());
        let template = Template::make(&self.folder.join("template"), self.options, None).await?;
        for &system in &self.options.systems {
            if let Err(error) = self.measure_system(system, &template, report).await {
                report.failures.push(format!("{system}: {error}"));
                self.say(format!("leaving out {system}: {error}"));
            }
        }
        Ok(())
    }

    async fn measure_system(
        &self,
        system: System,
        template: &Template,
        report: &mut ClusterReport,
    ) -> Result<()> {
        if system == System::Pgpool {
            find_program("pgpool", self.options.pgpool.as_deref())?;
        }
        let calibration = match self.options.users {
            _ if self.options.calibration.is_zero() => None,
            // It is not simulated, and its customers are told how many they are.
            Some(_) if !system.is_simulated() => None,
            _ => Some(self.calibrate(system, template).await?),
        };
        report.calibrations.extend(calibration.clone().map(|calibration| (system, calibration)));
        let calibration = calibration.as_ref();
        for &size in &self.options.sizes {
            self.say(format!("{system}: starting {size}"));
            let start = |size| Running::start(self, system, size, Some(self.options.cap), template);
            let running = start(size).await?;
            // Machines are faster in one minute than in another, so costs are those of the same seconds.
            let one = match calibration.filter(|_| system.is_simulated()) {
                Some(calibration) => Some((start(1).await?, calibration)),
                None => None,
            };
            for &mix in &self.options.mixes {
                let users = |size| self.first_users(calibration, size, mix);
                self.say(format!("{system}, {size} servers, {mix}: from {} users", users(size)?));
                let calibrates = match &one {
                    Some((one, _)) => Some((one, users(1)?)),
                    None => None,
                };
                let measured = measure::cell(self, (&running, users(size)?), calibrates, mix).await;
                let factor = |cell: &Cell| match &one {
                    Some((_, calibration)) => {
                        load::factor(self.options, cell, &calibration.profile).map(Some)
                    }
                    None => Ok(None),
                };
                let measured = measured.and_then(|cell| Ok(Cell { cost_factor: factor(&cell)?, ..cell }));
                match measured {
                    Ok(cell) => report.cells.push(cell),
                    Err(error) => {
                        report.failures.push(format!("{system}, {size} servers, {mix}: {error}"));
                    }
                }
                self.bar.step();
            }
        }
        Ok(())
    }

    /// What statements cost through the product with one server, by its CPU time: a single client walks, and the server may do what it
    /// can, so that no quota holds it in the middle of one statement or another.
    async fn calibrate(&self, system: System, template: &Template) -> Result<Calibration> {
        self.say(format!("{system}: calibrating on one server"));
        let running = Running::start(self, system, 1, Some(self.options.cap), template).await?;
        let how = Calibrate {
            name: format!("{system}-{}", self.options.cap),
            warm_up: self.options.calibration / 6,
            duration: self.options.calibration,
            // Of protocols that execute every write everywhere it is of no use.
            apply_factor: 1.0,
            log_write_ms: tpcw::log_write_ms(self.folder)?,
            through_onecopy: system != System::Pgpool,
        };
        let options = measure::customers(self, &running, MixName::Shopping, 1);
        let warming = measure::customers(self, &running, MixName::Shopping, connections(running.size));
        // The server's processes learn their tables and statements, and are not capped for what follows.
        running.cap(None)?;
        let mut crowd = Crowd::open(&warming).await?;
        crowd.rehearse(connections(running.size), measure::WARM_UP, measure::LEAVE_MAX).await?;
        crowd.leave(measure::LEAVE_MAX).await;
        let worked_ms = || {
            std::thread::sleep(SETTLES);
            Ok(running.spent_s()? * 1e3 / self.options.cap)
        };
        let mut calibration = tpcw::calibrate_by(&options, &how, &Meter::Account(&worked_ms)).await?;
        drop(running);
        if system == System::Onecopy {
            calibration.profile.apply_factor = apply::factor(self, template, &calibration.profile).await?;
        }
        Ok(calibration)
    }

    /// As many as saturate so many servers, or as many as were asked for.
    fn first_users(&self, calibration: Option<&Calibration>, size: u32, mix: MixName) -> Result<u32> {
        match (self.options.users, calibration) {
            (Some(users), _) => Ok(users.saturating_mul(size)),
            (None, Some(calibration)) => simulate::saturating(self.options, &calibration.profile, size, mix),
            (None, None) => Err(Error::Option("set how many users there are for each server".to_owned())),
        }
    }

    /// What so many servers may use together, in processors.
    fn servers_may(&self, size: u32) -> f64 {
        match self.hierarchy {
            Some(_) => self.options.cap * f64::from(size),
            None => processors() as f64,
        }
    }

    fn say(&self, line: String) {
        self.bar.say(line);
    }
}

/// Of this machine.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_make_no_sense_are_refused_before_anything_is_made() {
        let said = |options: Options| check(&options).unwrap_err().to_string();
        assert!(said(Options { sizes: vec![1, 0], ..Options::default() }).contains("sizes"));
        assert!(said(Options { sizes: vec![1, 2, 1], ..Options::default() }).contains("once"));
        assert!(said(Options { cap: 1.5, ..Options::default() }).contains("cap"));
        assert!(said(Options { stages: 0, ..Options::default() }).contains("stages"));
        assert!(said(Options { calibration: Duration::ZERO, ..Options::default() }).contains("set users"));
        assert!(check(&Options::default()).is_ok());
    }

    #[test]
    fn systems_are_known_by_their_names() {
        for system in System::ALL {
            assert_eq!(system.id().parse(), Ok(system));
        }
        assert!("paxos".parse::<System>().unwrap_err().contains("conflict_aware"));
    }
}
