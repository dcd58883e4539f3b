//! What clients notice when replicas, or nodes, fail under load.
//!
//! A cluster of our own is served by onecopy and works under a load that never pauses. In each round one fault is injected at a random
//! moment into a random replica, lasts for its time and is healed; the round ends when the replica has been back in service for a while.
//! A fault of nodes ends when all replicas are in service and a transaction has succeeded through every node.
//! Every error and every slow reply is noted with its time. In the end the users leave, and it is looked at whether all replicas are
//! identical, whether the site keeps its rules, and whether each transaction happened as its client was told.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::failures::{self, Options, Outcome};
//! match failures::run(&Options::default()).await? {
//!     Outcome::Skipped(why) => println!("skipped: {why}"),
//!     Outcome::Measured(report) => println!("{report}"),
//! }
//! # Ok(()) }
//! ```

mod disk;
mod fault;
pub(crate) mod report;
pub(crate) mod served;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use onecopy_cluster::Cluster;
use onecopy_workload::random::{self, Random, uniform};
use serde::Serialize;

use crate::bar::Bar;
pub use crate::observe::SLOW;
pub use crate::observe::aftermath::Aftermath;
use crate::observe::commits;
pub use crate::observe::commits::Commits;
use crate::observe::probe::Probe;
use crate::observe::watch::Watch;
pub use crate::observe::watch::{Change, Verified};
use crate::pgbench::Pgbench;
use crate::site::{self, Crowd, Website, Witness};
use crate::tpcw::Bookstore;
use crate::workplace::Workplace;
use crate::{Error, Result};
use disk::Disk;
pub use fault::Fault;
use fault::Victim;
pub use report::{FailuresReport, Met, OfNodes, Phase, Round};
use served::Served;

/// How long a page may take before its user leaves; longer than anything that is to be found out.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the users may take to leave.
const LEAVE_MAX: Duration = Duration::from_secs(70);
/// How long a healed replica may take until it serves.
const BACK_MAX: Duration = Duration::from_secs(180);
/// A replica that was not seen out of service in this time after a fault has not left it.
const NEVER_OUT: Duration = Duration::from_secs(2);
/// Users come one after the other over this time; nothing is injected before they have been there for as long.
const RAMP: Duration = Duration::from_secs(2);
/// A stream of random numbers that is no user's.
const FAULT_STREAM: u64 = 1 << 41;
/// As many as onecopy allows.
const NODES_MAX: u32 = 9;
/// With fewer there is no majority without one.
const NODES_TO_LOSE_ONE: u32 = 3;

/// What clients do meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// The bookstore under the shopping mix, customers with a tenth of its pauses.
    Tpcw,
    /// pgbench's TPC-B-like deposits, clients without pauses.
    Pgbench,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 2] = [Load::Tpcw, Load::Pgbench];

    /// Its name.
    pub fn id(self) -> &'static str {
        match self {
            Load::Tpcw => "tpcw",
            Load::Pgbench => "pgbench",
        }
    }

    /// Clients, unless told otherwise.
    fn clients(self) -> u32 {
        match self {
            Load::Tpcw => 50,
            Load::Pgbench => 16,
        }
    }

    fn think_factor(self) -> f64 {
        match self {
            Load::Tpcw => 0.1,
            Load::Pgbench => 0.0,
        }
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
        let found = Load::ALL.into_iter().find(|load| load.id() == id);
        found.ok_or_else(|| format!("there is no load {id:?}: choose tpcw or pgbench"))
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What clients do.
    pub load: Load,
    /// Faults, in this order, again and again; at least one.
    pub faults: Vec<Fault>,
    /// Rounds, at least 1.
    pub rounds: u32,
    /// Servers, at least 1.
    pub replicas: u32,
    /// onecopy processes before them, which share a log if they are several.
    pub nodes: u32,
    /// Clients at work, each with a connection, at most 64; `None` takes what suits the load.
    pub clients: Option<u32>,
    /// Factor on the pauses between pages; `None` takes what suits the load.
    pub think_factor: Option<f64>,
    /// Each round begins with this time, and a random part of as much again, without any fault; and ends with it.
    pub calm: Duration,
    /// How long each fault lasts that is not over at once; `None` takes [`Fault::lasts`].
    pub lasts: Option<Duration>,
    /// `pool.silence_timeout_ms` of the configuration.
    pub silence_timeout_ms: u64,
    /// Books in the store, under [`Load::Tpcw`].
    pub items: i64,
    /// Branches of the bank, under [`Load::Pgbench`].
    pub branches: i64,
    /// Accounts of each branch, under [`Load::Pgbench`].
    pub accounts: i64,
    /// The same seed gives the same faults at the same replicas after the same times, and the same users.
    pub seed: u64,
    /// Where it works, and what it leaves.
    pub workplace: Workplace,
}

impl Default for Options {
    /// Servers of three killed twenty times under deposits.
    fn default() -> Self {
        let bank = Pgbench::default();
        Options {
            load: Load::Pgbench,
            faults: vec![Fault::Kill],
            rounds: 20,
            replicas: 3,
            nodes: 1,
            clients: None,
            think_factor: None,
            calm: Duration::from_secs(2),
            lasts: None,
            silence_timeout_ms: 2_000,
            items: Bookstore::default().items,
            branches: bank.branches,
            accounts: bank.accounts,
            seed: 1,
            workplace: Workplace::default(),
        }
    }
}

impl Options {
    fn clients(&self) -> u32 {
        self.clients.unwrap_or_else(|| self.load.clients())
    }

    fn of_site<S: Website>(&self, site: S, target: &str) -> site::Options<S> {
        site::Options {
            target: target.to_owned(),
            site,
            reload: false,
            clients: self.clients(),
            connections: None,
            think_factor: self.think_factor.unwrap_or_else(|| self.load.think_factor()),
            ramp: RAMP,
            duration: Duration::ZERO,
            page_timeout: PAGE_TIMEOUT,
            seed: self.seed,
            protocol: site::Protocol::Prepared,
            isolation: None,
            declare: false,
            whole: false,
            retries_max: 20,
            results: None,
            progress: false,
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing was run, since no fault that was asked for can be injected here: why.
    Skipped(String),
    /// What was seen.
    Measured(Box<FailuresReport>),
}

/// Makes the cluster, loads it, runs every round and checks what is left.
///
/// # Errors
/// When an option makes no sense, PostgreSQL is missing, the load cannot be started, or a folder cannot be written. What goes
/// wrong in a round ends the rounds and is written down in the report; everything is checked all the same.
pub async fn run(options: &Options) -> Result<Outcome> {
    check(options)?;
    let folder = options.workplace.work_folder("failures")?;
    let mut options = options.clone();
    let mut skipped = Vec::new();
    if options.faults.contains(&Fault::Full)
        && let Err(why) = Disk::mount(&folder.path().join("trial"))
    {
        options.faults.retain(|fault| *fault != Fault::Full);
        let needs = "needs a small disk for each server, which root may mount (tmpfs, on Linux)";
        skipped.push(format!("{} {needs}: {why}", Fault::Full));
    }
    if options.faults.is_empty() {
        return Ok(Outcome::Skipped(skipped.join("; ")));
    }
    let options = &options;
    let mut report = match options.load {
        Load::Tpcw => {
            let site = Bookstore { items: options.items, ..Bookstore::default() };
            under(options, site, Bookstore::WITNESS, folder.path()).await?
        }
        Load::Pgbench => {
            let (branches, accounts) = (options.branches, options.accounts);
            let site = Pgbench { branches, accounts, ..Pgbench::default() };
            under(options, site, Pgbench::WITNESS, folder.path()).await?
        }
    };
    report.skipped = skipped;
    if let Some(results) = &report.results {
        report.save(results)?;
    }
    Ok(Outcome::Measured(Box::new(report)))
}

fn check(options: &Options) -> Result<()> {
    let refuse = |why: &str| Err(Error::Option(why.to_owned()));
    if options.faults.is_empty() || options.rounds == 0 {
        return refuse("there must be a fault and a round");
    }
    if !(1..=64).contains(&options.replicas) {
        return refuse("replicas must be from 1 to 64");
    }
    if !(1..=NODES_MAX).contains(&options.nodes) {
        return refuse(&format!("nodes must be from 1 to {NODES_MAX}"));
    }
    let lost = options.faults.iter().find(|fault| fault.needs_a_majority());
    if let Some(fault) = lost.filter(|_| options.nodes < NODES_TO_LOSE_ONE) {
        return refuse(&format!(
            "the fault {fault} needs {NODES_TO_LOSE_ONE} nodes (--nodes {NODES_TO_LOSE_ONE}): fewer have no majority without one"
        ));
    }
    if options.clients == Some(0) {
        return refuse("there must be a client");
    }
    if options.calm.is_zero() {
        return refuse("there must be a time without faults");
    }
    Ok(())
}

async fn under<S: Website>(
    options: &Options,
    site: S,
    witness: Witness,
    folder: &Path,
) -> Result<FailuresReport> {
    let bar = options.workplace.bar(options.rounds as usize);
    bar.say(format!("starting {} servers", options.replicas));
    let mut served = Served::start(options, folder).await?;
    bar.say(format!("loading: {}", site.size()));
    let visits = options.of_site(site, &served.dsn);
    site::load(&visits).await?;
    if options.faults.iter().any(|fault| fault.is_of_nodes()) {
        served.prepare_rounds().await?;
    }
    let before = commits::rows(&served.dsn, &witness).await?;

    let mut crowd = Crowd::open(&visits).await?;
    let begin = Instant::now();
    let journal = crowd.keep_journal(begin, SLOW, witness);
    let watch = Watch::start(&served.dsn, begin)?;
    let probe = Probe::start(folder, begin)?;
    crowd.come(visits.clients, RAMP);
    tokio::time::sleep(2 * RAMP).await;
    let mut report = FailuresReport::new(options, visits.think_factor);
    let go_home = || crowd.go_home();
    let mut scene =
        Scene { options, served: &mut served, watch: &watch, go_home: &go_home, begin, bar: &bar };
    tokio::select! {
        () = scene.play(&mut report) => {}
        _ = tokio::signal::ctrl_c() => report.failures.push("interrupted".to_owned()),
    }
    bar.say("the users leave".to_owned());
    let (collected, cut_off) = crowd.finish(LEAVE_MAX).await;
    report.end_ms = begin.elapsed().as_millis() as u64;
    report.cut_off = cut_off as u64;
    let noted = journal.take();
    report.take_rounds_of_nodes(&noted);
    report.take(&collected, noted.incidents, &probe.end()?, watch.changes());

    bar.say("comparing and checking".to_owned());
    let (aftermath, not_looked_at) = Aftermath::look(&visits, &witness, &before, &noted.transactions).await;
    report.aftermath = aftermath;
    report.failures.extend(not_looked_at);
    if let Some(folder) = options.workplace.results_folder("failures")? {
        served.keep_logs(&folder)?;
        report.results = Some(folder);
    }
    bar.finish();
    Ok(report)
}

/// Where the rounds take place.
struct Scene<'a> {
    options: &'a Options,
    served: &'a mut Served,
    watch: &'a Watch,
    /// Sends clients of lost nodes back to those where they belong.
    go_home: &'a (dyn Fn() + Sync),
    /// Of the load; all times count from it.
    begin: Instant,
    bar: &'a Bar,
}

impl Scene<'_> {
    fn now_ms(&self) -> u64 {
        self.begin.elapsed().as_millis() as u64
    }

    /// Plays round by round, until one fails.
    async fn play(&mut self, report: &mut FailuresReport) {
        let mut random = random::stream(self.options.seed, FAULT_STREAM);
        for number in 1..=self.options.rounds {
            let faults = &self.options.faults;
            let fault = faults[(number as usize - 1) % faults.len()];
            let victim = uniform(&mut random, 0, i64::from(self.options.replicas) - 1) as usize;
            let victim = self.served.victim(victim);
            let mut round = Round::new(number, fault, victim.name(), self.now_ms());
            let played = if fault.is_of_nodes() {
                self.round_of_nodes(&mut round, &mut random).await
            } else {
                self.round(&mut round, &victim, &mut random).await
            };
            round.end_ms = self.now_ms();
            let of = format!("round {number}, {fault} of {}", round.victim);
            report.rounds.push(round);
            if let Err(error) = played {
                report.failures.push(format!("{of}: {error}"));
                return;
            }
            self.bar.step();
        }
    }

    async fn round(&mut self, round: &mut Round, victim: &Victim, random: &mut Random) -> Result<()> {
        let fault = round.fault;
        self.calm_before(round, random).await;
        fault.inject(victim, random).await?;
        if self.last(round).await {
            fault.heal(victim).await?;
        }
        round.healed_ms = self.now_ms();
        self.served.expect_alive()?;

        let back = self.until_back(round).await;
        round.out_ms = self.watch.out_since(&round.victim, round.injected_ms);
        self.served.expect_alive()?;
        if !back {
            return Err(not_back());
        }
        round.back_ms = round.out_ms.and_then(|out_ms| self.watch.last_up_since(&round.victim, out_ms));
        tokio::time::sleep(self.options.calm).await;
        self.served.expect_alive()
    }

    /// The same with a fault of nodes. Which ones it meets is found out when it happens.
    async fn round_of_nodes(&mut self, round: &mut Round, random: &mut Random) -> Result<()> {
        let fault = round.fault;
        round.victim = "nodes".to_owned();
        self.calm_before(round, random).await;
        let met = self.meets(fault, random).await?;
        let names: Vec<String> = met.iter().map(|node| self.served.nodes.name(*node)).collect();
        round.victim = if fault == Fault::All { fault.to_string() } else { names.join(", ") };
        self.bar.say(format!("round {}: {fault} {}", round.number, round.victim));

        round.injected_ms = self.now_ms();
        self.served.inject(fault, &met).await?;
        round.of_nodes = Some(OfNodes::new(met.clone(), self.now_ms()));
        self.last(round).await;
        self.served.heal(fault, &met).await?;
        round.healed_ms = self.now_ms();

        let replicas: Vec<String> = (0..self.options.replicas as usize).map(Cluster::name).collect();
        let back = async {
            self.served.until_all_serve().await?;
            self.watch.until_all_up(&replicas).await;
            Ok::<_, Error>(())
        };
        match tokio::time::timeout(BACK_MAX, back).await {
            Ok(back) => back?,
            Err(_) => return self.served.expect_alive().and(Err(not_back())),
        }
        round.back_ms = Some(self.now_ms());
        (self.go_home)();
        tokio::time::sleep(self.options.calm).await;
        self.served.expect_alive()
    }

    async fn calm_before(&mut self, round: &mut Round, random: &mut Random) {
        self.bar.say(format!("round {}: {} {}", round.number, round.fault, round.victim));
        let calm = self.options.calm;
        let more = uniform(random, 0, calm.as_micros() as i64) as u64;
        tokio::time::sleep(calm + Duration::from_micros(more)).await;
        round.injected_ms = self.now_ms();
        round.healing_ms = round.injected_ms;
    }

    /// Lets a fault last; false if it was over at once and needs no healing.
    async fn last(&self, round: &mut Round) -> bool {
        let Some(lasts) = round.fault.lasts() else { return false };
        tokio::time::sleep(self.options.lasts.unwrap_or(lasts)).await;
        round.healing_ms = self.now_ms();
        // So it stays if healing fails.
        round.healed_ms = round.healing_ms;
        true
    }

    /// The nodes that a fault is for.
    async fn meets(&self, fault: Fault, random: &mut Random) -> Result<Vec<usize>> {
        let all = self.served.nodes.all();
        if fault == Fault::All {
            return Ok(all);
        }
        let leader = self.served.nodes.leader().await?;
        if fault != Fault::Node {
            return Ok(vec![leader]);
        }
        let others: Vec<usize> = all.into_iter().filter(|node| *node != leader).collect();
        Ok(vec![others[uniform(random, 0, others.len() as i64 - 1) as usize]])
    }

    /// Waits until the replica is in service after it was out of it; false if it takes too long.
    async fn until_back(&self, round: &Round) -> bool {
        if self.watch.out_since(&round.victim, round.injected_ms).is_none() {
            // It may leave service only now, or never.
            let _ = tokio::time::timeout(NEVER_OUT, self.watch.until(&round.victim, false)).await;
        }
        tokio::time::timeout(BACK_MAX, self.watch.until(&round.victim, true)).await.is_ok()
    }
}

fn not_back() -> Error {
    Error::Option(format!("not back in service after {} s", BACK_MAX.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_make_no_sense_are_refused_before_anything_is_made() {
        let said = |options: Options| check(&options).unwrap_err().to_string();
        assert!(said(Options { faults: Vec::new(), ..Options::default() }).contains("fault"));
        assert!(said(Options { rounds: 0, ..Options::default() }).contains("round"));
        assert!(said(Options { replicas: 0, ..Options::default() }).contains("replicas"));
        assert!(said(Options { clients: Some(0), ..Options::default() }).contains("client"));
        assert!(said(Options { calm: Duration::ZERO, ..Options::default() }).contains("time"));
        assert!(said(Options { nodes: 0, ..Options::default() }).contains("nodes"));
        assert!(check(&Options::default()).is_ok());
    }

    #[test]
    fn nodes_that_could_not_go_on_without_one_are_refused_faults_of_one() {
        let checked = |fault, nodes| check(&Options { faults: vec![fault], nodes, ..Options::default() });
        for fault in [Fault::Leader, Fault::Node, Fault::Pause] {
            assert!(checked(fault, 1).unwrap_err().to_string().contains("--nodes 3"));
            assert!(checked(fault, 2).unwrap_err().to_string().contains("majority"));
            assert!(checked(fault, 3).is_ok());
        }
        assert!([1, 2, 3].into_iter().all(|nodes| checked(Fault::All, nodes).is_ok()));
        assert!(checked(Fault::Kill, 3).is_ok());
    }

    #[test]
    fn faults_and_loads_are_known_by_their_names() {
        for fault in Fault::ALL {
            assert_eq!(fault.id().parse(), Ok(fault));
        }
        for load in Load::ALL {
            assert_eq!(load.id().parse(), Ok(load));
        }
        assert!("flood".parse::<Fault>().unwrap_err().contains("kill, stop"));
        assert!("flood".parse::<Load>().unwrap_err().contains("tpcw"));
    }
}
