//! A replica joins and all others are replaced, one by one, under a load that does not wait for answers.
//!
//! A cluster of our own is served by onecopy. First it is found out how many pages a second its customers get at most; then
//! pages are due at a part of that rate, whatever becomes of those before them. Under this load one more server of the same
//! version joins, and then, for each server that was there, one made by the programs of another folder joins and the old
//! one leaves: a major-version upgrade if those programs are of another version. Response times count from when a page was due. In the end
//! it is looked at which servers serve, whether all replicas are identical, whether the bookstore keeps its rules, and whether each
//! order happened as its customer was told.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::upgrade::{self, Options};
//! println!("{}", upgrade::run(&Options::default()).await?);
//! # Ok(()) }
//! ```

mod goals;
mod peak;
mod report;
mod scene;
mod servers;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onecopy_workload::tpcw::MixName;
use serde::Serialize;

use crate::bar::Bar;
use crate::observe::SLOW;
use crate::observe::aftermath::Aftermath;
use crate::observe::commits;
use crate::observe::probe::Probe;
use crate::observe::watch::Watch;
use crate::site::{self, Crowd, Told, WitnessKey};
use crate::tpcw::{self, Bookstore};
use crate::workplace::Workplace;
use crate::{Error, Result};
pub use goals::Goal;
pub use peak::Stage;
use peak::find_peak;
pub use report::{Phase, UpgradeReport};
use scene::Scene;
use servers::Servers;
pub use servers::Serving;

/// How long a page may take before its customer leaves; longer than anything that is to be found out.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long pages that are on their way in the end may take.
const LEAVE_MAX: Duration = Duration::from_secs(70);
/// Before the first phase pages are due for as long as this, which no phase counts: connections learn their statements.
const SETTLE: Duration = Duration::from_secs(3);
/// Customers share so many connections, as behind an application server.
const CONNECTIONS: u32 = 64;
/// Customers who are there at first are enough for pauses of so long: a tenth of TPC-W's.
const PAUSE_S: f64 = 0.7;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Servers at first, at least 1.
    pub replicas: u32,
    /// The folder of the programs of servers that are there at first, and of the one that joins; `None` finds the newest.
    pub from: Option<PathBuf>,
    /// The folder of the programs of those that replace them; `None` is the same.
    pub to: Option<PathBuf>,
    /// Pages due a second; `None` takes a part of the peak, which is found out first.
    pub rate: Option<f64>,
    /// That part, over 0.
    pub share: f64,
    /// How long one stage of finding the peak is.
    pub stage: Duration,
    /// The time before and after the changes.
    pub calm: Duration,
    /// With more pages due and not shown than are due in this time, one more is turned away, and the load was not carried.
    pub backlog: Duration,
    /// How customers walk.
    pub mix: MixName,
    /// Books in the store.
    pub items: i64,
    /// The same seed gives the same bookstore, customers and times at which pages are due.
    pub seed: u64,
    /// `pool.silence_timeout_ms` of the configuration.
    pub silence_timeout_ms: u64,
    /// Where it works, and what it leaves.
    pub workplace: Workplace,
}

impl Default for Options {
    /// Three servers, and half of what they carry at most.
    fn default() -> Self {
        Options {
            replicas: 3,
            from: None,
            to: None,
            rate: None,
            share: 0.5,
            stage: Duration::from_secs(8),
            calm: Duration::from_secs(20),
            backlog: Duration::from_secs(5),
            mix: MixName::Shopping,
            items: Bookstore::default().items,
            seed: 1,
            silence_timeout_ms: 2_000,
            workplace: Workplace::default(),
        }
    }
}

impl Options {
    fn customers(&self, target: &str, clients: u32) -> tpcw::Options {
        tpcw::Options {
            target: target.to_owned(),
            site: Bookstore { items: self.items, mix: self.mix, ..Bookstore::default() },
            clients,
            connections: Some(CONNECTIONS),
            think_factor: 0.0,
            page_timeout: PAGE_TIMEOUT,
            seed: self.seed,
            progress: false,
            ..tpcw::Options::default()
        }
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Option(why.to_owned()));
        let is_positive = |number: f64| number.is_finite() && number > 0.0;
        if !(1..=31).contains(&self.replicas) {
            // One joins, and all of them are replaced: more than 64 onecopy does not take.
            return refuse("replicas must be from 1 to 31");
        }
        if !is_positive(self.share) || self.rate.is_some_and(|rate| !is_positive(rate)) {
            return refuse("the rate, and the part of the peak, must be over 0");
        }
        if self.stage.is_zero() || self.calm.is_zero() || self.backlog.is_zero() {
            return refuse("the times of stages, of calm and of the backlog must be over 0");
        }
        Ok(())
    }
}

/// How the load is offered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Pages due a second, in the mean.
    pub offered: f64,
    /// Customers at first.
    pub users: u32,
    /// Pages due and not shown at most.
    pub backlog_max: u32,
}

impl Rates {
    /// `offered > 0`.
    fn new(offered: f64, backlog: Duration) -> Rates {
        let users = ((offered * PAUSE_S).ceil() as u32).max(CONNECTIONS);
        // No less than pages can be on their way at once.
        let backlog_max = ((offered * backlog.as_secs_f64()).ceil() as u32).max(CONNECTIONS);
        Rates { offered, users, backlog_max }
    }
}

/// Makes the cluster, finds out what it carries, replaces it under load, and checks what is left.
///
/// # Errors
/// When an option makes no sense, PostgreSQL is missing, the load cannot be started, or a folder cannot be written. What goes
/// wrong under the load ends it and is written down in the report; everything is checked all the same.
pub async fn run(options: &Options) -> Result<UpgradeReport> {
    options.check()?;
    let folder = options.workplace.work_folder("upgrade")?;
    let bar = options.workplace.bar(2 * options.replicas as usize + 6);
    bar.say(format!("making {} servers", 2 * options.replicas + 2));
    let mut servers = Servers::start(options, folder.path()).await?;
    let customers = options.customers(servers.dsn(), CONNECTIONS);
    bar.say(format!("loading: {}", site::Website::size(&customers.site)));
    site::load(&customers).await?;
    bar.step();

    let mut report = UpgradeReport::new(options, servers.versions());
    let offered = match options.rate {
        Some(rate) => rate,
        None => {
            report.stages = find_peak(&customers, options.stage, &bar).await?;
            report.peak() * options.share
        }
    };
    bar.step();
    let rates = Rates::new(offered, options.backlog);
    report.rates = Some(rates);
    let before = commits::rows(servers.dsn(), &Bookstore::WITNESS).await?;
    let told = under_load(options, rates, &mut servers, folder.path(), &mut report, &bar).await?;
    bar.say("comparing and checking".to_owned());
    report.serving = servers.serving().await;
    let (aftermath, not_looked_at) = Aftermath::look(&customers, &Bookstore::WITNESS, &before, &told).await;
    report.aftermath = aftermath;
    report.failures.extend(not_looked_at);
    if let Some(folder) = options.workplace.results_folder("upgrade")? {
        servers.keep_logs(&folder)?;
        report.results = Some(folder.clone());
        report.save(&folder)?;
    }
    bar.finish();
    Ok(report)
}

/// The load, and the changes under it; returns what its customers were told of their orders.
async fn under_load(
    options: &Options,
    rates: Rates,
    servers: &mut Servers,
    folder: &Path,
    report: &mut UpgradeReport,
    bar: &Bar,
) -> Result<HashMap<WitnessKey, Told>> {
    let dsn = servers.dsn().to_owned();
    let customers = options.customers(&dsn, rates.users.max(rates.backlog_max));
    let mut crowd = Crowd::open(&customers).await?;
    let begin = Instant::now();
    let journal = crowd.keep_journal(begin, SLOW, Bookstore::WITNESS);
    let watch = Watch::start(&dsn, begin)?;
    let probe = Probe::start(folder, begin)?;
    let load = crowd.offer(begin, rates.offered, rates.users, rates.backlog_max);
    tokio::time::sleep(SETTLE).await;
    let mut scene = Scene::new(options, servers, &watch, begin, bar);
    let played = tokio::select! {
        played = scene.play() => played,
        _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    };
    let spans = scene.spans();
    servers.note(watch.in_service());
    report.failures.extend(played.err().map(|error| error.to_string()));

    bar.say("the customers leave".to_owned());
    let (collected, offered, cut_off) = load.finish(LEAVE_MAX).await;
    report.end_ms = begin.elapsed().as_millis() as u64;
    report.cut_off = cut_off as u64;
    let noted = journal.take();
    report.connections_lost = noted.lost.len() as u64;
    report.changes = watch.changes();
    report.take(&collected, &offered, noted.incidents, &probe.end()?, &spans);
    Ok(noted.transactions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_make_no_sense_are_refused_before_anything_is_made() {
        let said = |options: Options| options.check().unwrap_err().to_string();
        assert!(said(Options { replicas: 0, ..Options::default() }).contains("replicas"));
        assert!(said(Options { share: 0.0, ..Options::default() }).contains("peak"));
        assert!(said(Options { rate: Some(f64::NAN), ..Options::default() }).contains("rate"));
        assert!(said(Options { backlog: Duration::ZERO, ..Options::default() }).contains("backlog"));
        assert!(Options::default().check().is_ok());
    }

    #[test]
    fn bound_of_the_backlog_is_what_is_due_in_its_time_and_no_less_than_there_are_connections() {
        let rates = Rates::new(200.5, Duration::from_secs(5));
        assert_eq!(rates, Rates { offered: 200.5, users: 141, backlog_max: 1_003 });
        let slow = Rates::new(2.0, Duration::from_secs(5));
        assert_eq!((slow.users, slow.backlog_max), (CONNECTIONS, CONNECTIONS));
    }
}
