//! What each class of statement costs: one customer after the other's page, without pauses, and a clock.
//!
//! The costs are those of a database that has nothing else to do. Of a server behind a CPU quota, which one client without pauses
//! uses up, the mean time *is* the cost, the pauses in which the server is held included; so means count, not medians. Where the
//! server's CPU time is known from action to action, it stands in the place of times ([`Meter`]).
//!
//! | time of | goes to |
//! |---|---|
//! | BEGIN | the transaction's first statement |
//! | COMMIT after a write | the cost of a commit |
//! | COMMIT of what only read | the transaction's last statement: a simulated database takes nothing for it |
//! | a write by itself | the statement, less the cost of a commit, which is in it (not below 0: its commit needs no round trip) |
//! | a transaction that failed | nothing: it runs again |

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use onecopy_sim::perf::Profile;
use onecopy_workload::StatementId;
use onecopy_workload::catalogue::Catalogue;
use onecopy_workload::client::{Action, Client as _, Failure, Reply};
use onecopy_workload::tpcw::{Browser, MixName, Scale, catalogue};
use serde::Serialize;

use super::{Bookstore, Options};
use crate::connection::{Connection, Target};
use crate::site::{self, Texts, Website, now, time_stamp};
use crate::table::{Table, millis, thousands};
use crate::{Error, Result};

/// A statement that was met less often has a cost that says little.
pub const MET_MIN: u64 = 20;
/// Pages of one mix before the next one has its turn.
const PAGES_A_TURN: u32 = 10;
/// Writes of a log by which the time of one is measured.
const LOG_WRITES: u32 = 50;
/// A record of the log with the writes of a small transaction, in bytes.
const LOG_RECORD_BYTES: usize = 512;

/// How to calibrate.
#[derive(Clone, Debug)]
pub struct Calibrate {
    /// The profile's name.
    pub name: String,
    /// Time at the beginning that does not count.
    pub warm_up: Duration,
    /// Time that counts.
    pub duration: Duration,
    /// What applying a write costs, as a part of executing it; measured elsewhere.
    pub apply_factor: f64,
    /// What a write of the log to stable storage takes, in milliseconds.
    pub log_write_ms: f64,
    /// The target is onecopy, which writes its log before it answers a commit: that is taken off the commits' cost.
    pub through_onecopy: bool,
}

/// What a calibration has found.
#[derive(Clone, Debug, Serialize)]
pub struct Calibration {
    /// The costs, as a single client finds them.
    pub profile: Profile,
    /// Statement by statement, in the catalogue's order.
    pub statements: Vec<Calibrated>,
    /// Commits of what wrote, BEGIN ... COMMIT only.
    pub commits: u64,
    /// Pages shown while it counted.
    pub pages: u64,
    /// Transactions that ran again, by SQLSTATE.
    pub retries: BTreeMap<String, u64>,
    /// Time that counted, in seconds.
    pub seconds: f64,
}

/// The cost of one class of statement.
#[derive(Clone, Debug, Serialize)]
pub struct Calibrated {
    /// Its name in the catalogue.
    pub id: String,
    /// How often it was met; one never met has the mean cost of those of its kind, reads or writes.
    pub met: u64,
    /// Its cost in milliseconds.
    pub cost_ms: f64,
}

/// Measures what the bookstore's statements cost at a target that does nothing else.
///
/// # Errors
/// [`Error::NotLoaded`] if there is no bookstore; what the target refuses.
pub async fn calibrate(options: &Options, how: &Calibrate) -> Result<Calibration> {
    calibrate_by(options, how, &Meter::waiting()).await
}

/// By what costs are told.
pub(crate) enum Meter<'a> {
    /// How long the client waits, from then on.
    Waiting(Instant),
    /// How much the server has worked so far, in milliseconds.
    Account(&'a dyn Fn() -> Result<f64>),
}

impl Meter<'_> {
    pub(crate) fn waiting() -> Self {
        Meter::Waiting(Instant::now())
    }

    fn read_ms(&self) -> Result<f64> {
        match self {
            Meter::Waiting(begun) => Ok(begun.elapsed().as_secs_f64() * 1e3),
            Meter::Account(worked_ms) => worked_ms(),
        }
    }
}

/// The same by one meter or another.
pub(crate) async fn calibrate_by(
    options: &Options,
    how: &Calibrate,
    meter: &Meter<'_>,
) -> Result<Calibration> {
    let mut walk = Walk::open(options, &MixName::ALL).await?;
    walk.until(meter, |_, started| started.elapsed() < how.warm_up).await?;
    walk.ledger = Ledger::new(catalogue());
    let (pages, started) = (walk.pages, Instant::now());
    walk.until(meter, |_, started| started.elapsed() < how.duration).await?;
    let seconds = started.elapsed().as_secs_f64();
    let source = format!(
        "measured at {} (PostgreSQL {}), {} items, {} to {}",
        walk.target.name(),
        walk.version,
        walk.scale.items(),
        walk.begun,
        time_stamp()
    );
    let pages = walk.pages - pages;
    walk.ledger.into_calibration(how, source, meter, Shown { pages, retries: walk.retries, seconds })
}

/// What one write of a log takes in a folder, in milliseconds: a record appended and on stable storage, on average.
///
/// # Errors
/// When no file can be written there.
pub fn log_write_ms(folder: &Path) -> Result<f64> {
    let mut file = tempfile::tempfile_in(folder).map_err(Error::file("create a file in", folder))?;
    let record = [0x5a; LOG_RECORD_BYTES];
    // The log writes zeros ahead, so that a record changes no metadata.
    let ahead = vec![0; LOG_RECORD_BYTES * LOG_WRITES as usize];
    let prepared = file.write_all(&ahead).and_then(|()| file.sync_data()).and_then(|()| file.rewind());
    prepared.map_err(Error::file("write a file in", folder))?;
    let begin = Instant::now();
    for _ in 0..LOG_WRITES {
        let written = file.write_all(&record).and_then(|()| file.sync_data());
        written.map_err(Error::file("write a file in", folder))?;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e3 / f64::from(LOG_WRITES))
}

/// One client that shows pages to customers of several mixes in turn.
pub(crate) struct Walk {
    target: Target,
    version: String,
    connection: Connection,
    texts: Texts,
    scale: Scale,
    browsers: Vec<Browser>,
    /// What the browsers said last: a pause.
    replies: Vec<Reply>,
    pub(crate) ledger: Ledger,
    pub(crate) pages: u64,
    retries: BTreeMap<String, u64>,
    begun: String,
}

impl Walk {
    /// # Errors
    /// As [`calibrate`].
    pub(crate) async fn open(options: &Options, mixes: &[MixName]) -> Result<Walk> {
        let target = Target::parse(&options.target)?;
        let texts = Texts::new(catalogue(), &options.begin()?, options.declare);
        let client = target.connect().await?;
        let population = site::find(&client, &options.site).await?.population;
        let highest = site::highest::<Bookstore>(&client).await?;
        let version = site::server_version(&client).await;
        let mut connection = texts.on(Connection::new(client, catalogue(), options.protocol));
        connection.prepare_all().await.map_err(Error::database("prepare the bookstore's statements"))?;
        let browser = |(number, mix): (usize, &MixName)| {
            let store = Bookstore { mix: *mix, ..options.site };
            store.user(&population, options.seed, number as u32, mixes.len() as u32, &highest)
        };
        let mut browsers: Vec<Browser> = mixes.iter().enumerate().map(browser).collect();
        // The first thing that a customer does is to think.
        browsers.iter_mut().for_each(|browser| drop(browser.next(now(), Reply::Done)));
        Ok(Walk {
            target,
            version,
            connection,
            texts,
            scale: population.scale(),
            replies: vec![Reply::Done; browsers.len()],
            browsers,
            ledger: Ledger::new(catalogue()),
            pages: 0,
            retries: BTreeMap::new(),
            begun: time_stamp(),
        })
    }

    /// Shows pages as long as it is said, each mix some at a time.
    pub(crate) async fn until(
        &mut self,
        meter: &Meter<'_>,
        go_on: impl Fn(u64, Instant) -> bool,
    ) -> Result<()> {
        let (started, first) = (Instant::now(), self.pages);
        let mut place = 0;
        while go_on(self.pages - first, started) {
            for _ in 0..PAGES_A_TURN {
                self.page(place, meter).await?;
            }
            place = (place + 1) % self.browsers.len();
        }
        Ok(())
    }

    async fn page(&mut self, place: usize, meter: &Meter<'_>) -> Result<()> {
        self.pages += 1;
        loop {
            let reply = std::mem::replace(&mut self.replies[place], Reply::Done);
            let action = self.browsers[place].next(now(), reply);
            if let Action::Think { .. } = action {
                return Ok(());
            }
            self.replies[place] = self.carry_out(place, &action, meter).await?;
        }
    }

    async fn carry_out(&mut self, place: usize, action: &Action, meter: &Meter<'_>) -> Result<Reply> {
        let before_ms = meter.read_ms()?;
        let done = match action {
            Action::Begin(transaction) => {
                let text = self.texts.begin(*transaction, self.browsers[place].is_usual());
                self.connection.command(text).await.map(|()| Reply::Done)
            }
            Action::Execute(statement, params) => {
                self.connection.execute(*statement, params).await.map(Reply::Rows)
            }
            Action::Commit => self.connection.command("COMMIT").await.map(|()| Reply::Done),
            Action::Rollback => self.connection.command("ROLLBACK").await.map(|()| Reply::Done),
            Action::Think { .. } => Ok(Reply::Done),
        };
        let ms = meter.read_ms()? - before_ms;
        match done {
            Ok(reply) => {
                self.ledger.enter(action, ms);
                Ok(reply)
            }
            Err(error) => {
                let code = error.code().map(|code| code.code().to_owned()).unwrap_or_default();
                if !matches!(code.as_str(), "40001" | "40P01") {
                    return Err(Error::database(format!("calibrate {}", self.target.name()))(error));
                }
                if self.ledger.fail() {
                    // It may be over already.
                    let _ = self.connection.command("ROLLBACK").await;
                }
                *self.retries.entry(code).or_default() += 1;
                Ok(Reply::Failed(Failure::Retry))
            }
        }
    }
}

/// So many of something, and their sum.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Sum {
    count: u64,
    total_ms: f64,
}

impl Sum {
    fn add(&mut self, ms: f64) {
        self.count += 1;
        self.total_ms += ms;
    }

    fn mean_ms(&self) -> f64 {
        self.total_ms / self.count.max(1) as f64
    }
}

/// What a transaction has taken so far.
#[derive(Default)]
struct Open {
    begin_ms: f64,
    statements: Vec<(StatementId, f64)>,
}

/// What a walk was like.
#[derive(Default)]
struct Shown {
    pages: u64,
    retries: BTreeMap<String, u64>,
    seconds: f64,
}

/// Times by what they are to be charged to.
pub(crate) struct Ledger {
    catalogue: &'static Catalogue,
    /// By statement.
    statements: Vec<Sum>,
    /// Of these, writes by themselves: each contains a commit.
    alone: Vec<u64>,
    commits: Sum,
    open: Option<Open>,
}

impl Ledger {
    fn new(catalogue: &'static Catalogue) -> Ledger {
        let count = catalogue.statements.len();
        let statements = vec![Sum::default(); count];
        Ledger { catalogue, statements, alone: vec![0; count], commits: Sum::default(), open: None }
    }

    fn writes(&self, statement: StatementId) -> bool {
        !self.catalogue.statement(statement).writes.is_empty()
    }

    /// An action has been carried out, and has taken so long.
    fn enter(&mut self, action: &Action, ms: f64) {
        match action {
            Action::Begin(_) => self.open = Some(Open { begin_ms: ms, ..Open::default() }),
            Action::Execute(statement, _) => match &mut self.open {
                Some(open) => {
                    let begin_ms = std::mem::take(&mut open.begin_ms);
                    open.statements.push((*statement, begin_ms + ms));
                }
                None => {
                    self.alone[usize::from(statement.0)] += u64::from(self.writes(*statement));
                    self.statements[usize::from(statement.0)].add(ms);
                }
            },
            Action::Commit => self.commit(ms),
            Action::Rollback => self.open = None,
            Action::Think { .. } => {}
        }
    }

    fn commit(&mut self, ms: f64) {
        let Some(mut open) = self.open.take() else { return };
        if open.statements.iter().any(|(statement, _)| self.writes(*statement)) {
            self.commits.add(ms);
        } else if let Some((_, last_ms)) = open.statements.last_mut() {
            *last_ms += ms;
        }
        for (statement, ms) in open.statements {
            self.statements[usize::from(statement.0)].add(ms);
        }
    }

    /// Something failed: its transaction, if one is open, is forgotten. Says whether one was.
    fn fail(&mut self) -> bool {
        self.open.take().is_some()
    }

    /// What was executed of this kind since the beginning: writes, and transactions that wrote.
    pub(crate) fn written(&self) -> (Vec<(StatementId, u64)>, u64) {
        let ids = (0..self.statements.len()).map(|place| StatementId(place as u16));
        let writes = ids.filter(|id| self.writes(*id));
        let writes = writes.map(|id| (id, self.statements[usize::from(id.0)].count)).collect();
        (writes, self.commits.count + self.alone.iter().sum::<u64>())
    }

    fn into_calibration(
        self,
        how: &Calibrate,
        source: String,
        meter: &Meter<'_>,
        Shown { pages, retries, seconds }: Shown,
    ) -> Result<Calibration> {
        if self.commits.count == 0 || self.statements.iter().all(|sum| sum.count == 0) {
            return Err(Error::Option(
                "no transaction that writes was met: let the calibration run for longer (--duration)"
                    .to_owned(),
            ));
        }
        // Writes by themselves contain what clients wait for at a commit: the log's write included.
        let whole_commit_ms = self.commits.mean_ms();
        let (log_write_ms, commit_ms) = match meter {
            Meter::Waiting(_) if how.through_onecopy => {
                // No commit is answered before its record is in the log.
                let log_write_ms = how.log_write_ms.min(whole_commit_ms);
                (log_write_ms, whole_commit_ms - log_write_ms)
            }
            // The log is no work of the server's.
            Meter::Waiting(_) | Meter::Account(_) => (how.log_write_ms, whole_commit_ms),
        };
        let cost_ms = |place: usize| {
            let Sum { count, total_ms } = self.statements[place];
            (count > 0).then(|| {
                let commits_ms = whole_commit_ms * self.alone[place] as f64;
                ((total_ms - commits_ms) / count as f64).max(0.0)
            })
        };
        let all: Vec<Option<f64>> = (0..self.statements.len()).map(cost_ms).collect();
        let is_write = |place: usize| !self.catalogue.statements[place].writes.is_empty();
        let mean_of = |writes: bool| {
            let known = all.iter().enumerate().filter(|(place, _)| is_write(*place) == writes);
            let known: Vec<f64> = known.filter_map(|(_, cost)| *cost).collect();
            known.iter().sum::<f64>() / known.len().max(1) as f64
        };
        let means = [mean_of(false), mean_of(true)];
        let statement = |(place, cost): (usize, &Option<f64>)| Calibrated {
            id: self.catalogue.statements[place].id.clone(),
            met: self.statements[place].count,
            cost_ms: cost.unwrap_or(means[usize::from(is_write(place))]),
        };
        let statements: Vec<Calibrated> = all.iter().enumerate().map(statement).collect();
        let profile = Profile {
            name: how.name.clone(),
            workload: self.catalogue.name.clone(),
            source: source + &never_met(&statements),
            commit_ms,
            log_write_ms,
            apply_factor: how.apply_factor,
            statements_ms: statements.iter().map(|each| (each.id.clone(), each.cost_ms)).collect(),
        };
        Ok(Calibration { profile, statements, commits: self.commits.count, pages, retries, seconds })
    }
}

fn never_met(statements: &[Calibrated]) -> String {
    let ids: Vec<&str> =
        statements.iter().filter(|each| each.met == 0).map(|each| each.id.as_str()).collect();
    if ids.is_empty() {
        return String::new();
    }
    format!("; never met, so with the mean cost of their kind (reads or writes): {}", ids.join(", "))
}

impl Calibration {
    /// The profile as a file, with a comment on how well each cost is known.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut comment = format!(
            "Made by `onecopy calibrate`: mean times of {} pages in {:.0} s, {} commits.",
            self.pages, self.seconds, self.commits
        );
        let few = self.seldom();
        if !few.is_empty() {
            comment += &format!("\nMet fewer than {MET_MIN} times: {}", few.join(", "));
        }
        self.profile.to_toml(&comment)
    }

    /// Statements that were met too seldom for their cost to say much, and how often.
    #[must_use]
    pub fn seldom(&self) -> Vec<String> {
        let few = self.statements.iter().filter(|each| each.met < MET_MIN);
        few.map(|each| format!("{} ({})", each.id, each.met)).collect()
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total_ms = |each: &Calibrated| each.cost_ms * each.met as f64;
        let all_ms: f64 = self.statements.iter().map(total_ms).sum();
        let mut by_time: Vec<&Calibrated> = self.statements.iter().collect();
        by_time.sort_by(|a, b| total_ms(b).total_cmp(&total_ms(a)));
        let mut table = Table::new(["statement", "met", "cost in ms", "of all time"]);
        for each in by_time {
            let share = format!("{:.1} %", 100.0 * total_ms(each) / all_ms.max(f64::MIN_POSITIVE));
            table.row([each.id.clone(), thousands(each.met as f64), millis(each.cost_ms), share]);
        }
        table.rule();
        let Profile { commit_ms, log_write_ms, apply_factor, .. } = self.profile;
        table.row(["commit".to_owned(), thousands(self.commits as f64), millis(commit_ms), String::new()]);
        writeln!(f, "{}: {}", self.profile.name, self.profile.source)?;
        write!(f, "{}", table.terminal())?;
        writeln!(
            f,
            "{} pages in {:.0} s; a write of the log takes {} ms; applying costs {apply_factor:.2} of executing",
            thousands(self.pages as f64),
            self.seconds,
            millis(log_write_ms),
        )?;
        for (code, count) in &self.retries {
            writeln!(f, "{count} transactions ran again ({code}) and were left out")?;
        }
        let few = self.seldom();
        if !few.is_empty() {
            writeln!(f, "Met fewer than {MET_MIN} times, so little is known of: {}", few.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use onecopy_workload::tpcw::Statement;

    use super::*;

    fn how(log_write_ms: f64, through_onecopy: bool) -> Calibrate {
        Calibrate {
            name: "here".to_owned(),
            warm_up: Duration::ZERO,
            duration: Duration::ZERO,
            apply_factor: 1.0,
            log_write_ms,
            through_onecopy,
        }
    }

    /// What comes of actions that took so many milliseconds.
    fn costs(how: &Calibrate, actions: &[(Action, f64)]) -> Result<Calibration> {
        let mut ledger = Ledger::new(catalogue());
        for (action, ms) in actions {
            ledger.enter(action, *ms);
        }
        ledger.into_calibration(how, "a test".to_owned(), &Meter::waiting(), Shown::default())
    }

    fn begin(transaction: &str) -> Action {
        Action::Begin(catalogue().transaction_id(transaction).unwrap())
    }

    fn execute(statement: Statement) -> Action {
        Action::Execute(statement.into(), Vec::new())
    }

    fn cost(calibration: &Calibration, statement: Statement) -> f64 {
        calibration.profile.statements_ms[statement.id()]
    }

    /// An order of two statements, whose commit takes 8 ms.
    fn order() -> Vec<(Action, f64)> {
        vec![
            (begin("buyc.order"), 1.0),
            (execute(Statement::BuycCustomer), 10.0),
            (execute(Statement::BuycOrder), 20.0),
            (Action::Commit, 8.0),
        ]
    }

    #[test]
    fn begin_counts_with_the_first_statement_and_a_commit_that_wrote_by_itself() {
        let calibration = costs(&how(0.0, false), &order()).unwrap();
        assert_eq!(cost(&calibration, Statement::BuycCustomer), 11.0);
        assert_eq!(cost(&calibration, Statement::BuycOrder), 20.0);
        assert_eq!((calibration.profile.commit_ms, calibration.commits), (8.0, 1));
    }

    #[test]
    fn commit_of_what_only_read_counts_with_the_last_statement() {
        let display = [
            (begin("ordd.show"), 1.0),
            (execute(Statement::OrddLast), 2.0),
            (execute(Statement::OrddOrder), 3.0),
            (Action::Commit, 0.5),
        ];
        let calibration = costs(&how(0.0, false), &[order(), display.to_vec()].concat()).unwrap();
        assert_eq!(cost(&calibration, Statement::OrddLast), 3.0);
        assert_eq!(cost(&calibration, Statement::OrddOrder), 3.5);
        assert_eq!(calibration.commits, 1);
    }

    #[test]
    fn a_write_by_itself_contains_a_commit() {
        let alone = [(execute(Statement::ShopCreate), 12.0), (execute(Statement::HomeGreetName), 4.0)];
        let calibration = costs(&how(0.0, false), &[order(), alone.to_vec()].concat()).unwrap();
        assert_eq!(cost(&calibration, Statement::ShopCreate), 4.0);
        assert_eq!(cost(&calibration, Statement::HomeGreetName), 4.0);
    }

    #[test]
    fn the_log_of_onecopy_is_no_cost_of_its_databases() {
        let alone = [(execute(Statement::ShopCreate), 12.0)];
        let calibration = costs(&how(5.0, true), &[order(), alone.to_vec()].concat()).unwrap();
        assert_eq!((calibration.profile.commit_ms, calibration.profile.log_write_ms), (3.0, 5.0));
        assert_eq!(cost(&calibration, Statement::ShopCreate), 4.0);
    }

    #[test]
    fn the_log_cannot_take_longer_than_the_commit_that_waits_for_it() {
        let calibration = costs(&how(50.0, true), &order()).unwrap();
        assert_eq!((calibration.profile.commit_ms, calibration.profile.log_write_ms), (0.0, 8.0));
    }

    #[test]
    fn the_log_of_onecopy_is_not_in_its_servers_account() {
        let mut ledger = Ledger::new(catalogue());
        order().iter().for_each(|(action, ms)| ledger.enter(action, *ms));
        let account = Meter::Account(&|| Ok(0.0));
        let calibration =
            ledger.into_calibration(&how(50.0, true), String::new(), &account, Shown::default()).unwrap();
        assert_eq!((calibration.profile.commit_ms, calibration.profile.log_write_ms), (8.0, 50.0));
    }

    #[test]
    fn what_was_taken_back_counts_nowhere() {
        let mut ledger = Ledger::new(catalogue());
        for (action, ms) in &order()[..3] {
            ledger.enter(action, *ms);
        }
        assert!(ledger.fail() && !ledger.fail());
        ledger.enter(&begin("buyc.order"), 1.0);
        ledger.enter(&execute(Statement::BuycCustomer), 1.0);
        ledger.enter(&Action::Rollback, 1.0);
        assert!(ledger.statements.iter().all(|sum| *sum == Sum::default()));
    }

    #[test]
    fn what_was_never_met_has_the_mean_of_its_kind_and_is_named() {
        let calibration = costs(&how(0.0, false), &order()).unwrap();
        assert_eq!(cost(&calibration, Statement::HomeGreetName), 11.0);
        assert_eq!(cost(&calibration, Statement::BuycLine), 20.0);
        assert!(calibration.profile.source.contains("home.greet.name"));
        assert_eq!(calibration.seldom().len(), 53);
        let text = calibration.to_toml();
        assert_eq!(Profile::parse(&text).unwrap(), calibration.profile);
        assert!(text.starts_with("# Made by `onecopy calibrate`"), "{text}");
        assert!(calibration.to_string().contains("buyc.order.insert"));
    }

    #[test]
    fn a_walk_without_a_write_is_no_calibration() {
        let error = costs(&how(0.0, false), &[(execute(Statement::HomeGreetName), 4.0)]).unwrap_err();
        assert!(error.to_string().contains("run for longer"), "{error}");
    }
}
