//! Lets emulated users visit a site.

mod open;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onecopy_workload::catalogue::Transaction;
use onecopy_workload::client::{Action, Client, Failure, Reply, Whole};
use onecopy_workload::random::{self, Random, uniform};
use onecopy_workload::{Catalogue, InteractionId, TransactionId};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;

use super::journal::{Journal, Losses, Refused, Request, Told, Witness, WitnessKey};
use super::mark::{self, Found};
use super::report::{Collected, Report, Sample};
use super::texts::Texts;
use super::{Options, Website, now};
use crate::connection::{Connection, Protocol, Target};
use crate::table::{millis, thousands};
use crate::{Error, Result};
pub(crate) use open::{Arrival, Offered};

/// What stands in the place of a SQLSTATE when none came.
pub(crate) const TIMED_OUT: &str = "timeout";
const CONNECTION_LOST: &str = "connection lost";
/// A user whose statement failed for reasons that may pass comes back after this, so that a dead target is not hammered.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause before a transaction runs again.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(64);
/// How many pages users have seen who have walked in: about all have got over their first purchases by then, which most make at once.
const AHEAD: (i64, i64) = (12, 48);
/// Later than any run ends.
const FAR: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Streams of random numbers from here on are not the users'.
const JITTER_STREAMS: u64 = 1 << 40;

/// Runs the users for the time that the options say, and reports what they saw.
///
/// # Errors
/// [`Error::NotLoaded`] if the target holds no such site, and whatever prevents the start. What users meet on their
/// way is counted in the report.
pub async fn run<S: Website>(options: &Options<S>) -> Result<Report> {
    let mut crowd = Crowd::open(options).await?;
    let start = Instant::now();
    let counted_from = start + options.ramp;
    let end = counted_from + options.duration;
    let clock = Clock { start, counted_from, end, counted_until: end };
    crowd.clock.send_replace(clock);
    crowd.come(options.clients, options.ramp);
    let Crowd { users, target, version, makes: Makes { collected, site, .. }, .. } = crowd;
    show_progress(options, clock, &collected, users).await;

    let collected = std::mem::take(&mut *collected.lock().expect("no user panics with the lock"));
    let report = Report::new(options, &site, target.name(), version, collected);
    if let Some(folder) = &options.results {
        report.save(folder)?;
    }
    Ok(report)
}

/// Users at work, who may become more, and whose visits count only while somebody measures.
pub(crate) struct Crowd<'a, S: Website> {
    options: &'a Options<S>,
    target: Target,
    version: String,
    makes: Makes<S>,
    clock: watch::Sender<Clock>,
    users: JoinSet<()>,
    /// Those who have come.
    count: u32,
    /// Those who have walked in wait until so many may come.
    gate: watch::Sender<u32>,
    /// So many have walked in, or are about to.
    walked_in: u32,
}

/// What makes users, each with what it needs.
struct Makes<S: Website> {
    /// Of the size that the target holds.
    site: S,
    population: S::Population,
    highest: Vec<i64>,
    seed: u64,
    /// Users that there may be.
    users_max: u32,
    texts: Arc<Texts>,
    pool: Arc<Pool>,
    collected: Arc<Mutex<Collected>>,
    clock: watch::Receiver<Clock>,
    journal: Option<Arc<Journal>>,
    gate: watch::Receiver<u32>,
    think_factor: f64,
    retries_max: u32,
    page_timeout: Duration,
    whole: bool,
}

impl<S: Website> Makes<S> {
    /// User `number < users_max`.
    fn user(&self, number: u32) -> User<S::User> {
        let Makes { seed, users_max, think_factor, retries_max, page_timeout, whole, .. } = *self;
        User {
            client: self.site.user(&self.population, seed, number, users_max, &self.highest),
            jitter: random::stream(seed, JITTER_STREAMS + u64::from(number)),
            number: number as usize,
            pool: self.pool.clone(),
            collected: self.collected.clone(),
            clock: self.clock.clone(),
            journal: self.journal.clone(),
            gate: self.gate.clone(),
            texts: self.texts.clone(),
            think_factor,
            retries_max,
            page_timeout,
            whole,
        }
    }
}

impl<'a, S: Website> Crowd<'a, S> {
    /// Nobody yet; there will be at most as many as the options say.
    ///
    /// # Errors
    /// As [`run`].
    pub(crate) async fn open(options: &'a Options<S>) -> Result<Crowd<'a, S>> {
        let target = Target::parse(&options.target)?;
        let texts = Arc::new(Texts::new(S::catalogue(), &options.begin()?, options.declare));
        if options.clients == 0 || !options.think_factor.is_finite() || options.think_factor < 0.0 {
            return Err(Error::Option(
                "there must be a client, and a think-time factor of at least 0".to_owned(),
            ));
        }
        let client = target.connect().await?;
        mark::begin(&client, options).await?;
        let Found { site, population, .. } = mark::find(&client, &options.site).await?;
        let highest = mark::highest::<S>(&client).await?;
        mark::end(&client, options).await?;
        let version = mark::server_version(&client).await;
        let pool = Arc::new(Pool::open(target.clone(), options, texts.clone()).await?);
        let clock = watch::Sender::new(Clock::uncounted());
        let gate = watch::Sender::new(0);
        let makes = Makes {
            site,
            population,
            highest,
            seed: options.seed,
            users_max: options.clients,
            texts,
            pool,
            collected: Arc::default(),
            clock: clock.subscribe(),
            journal: None,
            gate: gate.subscribe(),
            think_factor: options.think_factor,
            retries_max: options.retries_max,
            page_timeout: options.page_timeout,
            whole: options.whole,
        };
        let users = JoinSet::new();
        Ok(Crowd { options, target, version, makes, clock, users, count: 0, gate, walked_in: 0 })
    }

    /// So many users walk in: each sees some pages without pauses, of which none counts, and then waits until [`Crowd::come`] lets it go on. Whoever
    /// has just come does not do what the mix says yet. Returns when all have, or this time is over.
    pub(crate) async fn walk_in(&mut self, users: u32, limit: Duration) {
        self.gate.send_replace(0);
        let (seen, mut done) = watch::channel(0);
        let seen = Arc::new(seen);
        for number in 0..users {
            let (user, seen) = (self.makes.user(number), seen.clone());
            self.users.spawn(user.walk_from_afar(seen));
        }
        self.walked_in = users;
        // If it is not enough, the others see the rest of their pages first.
        let _ = tokio::time::timeout(limit, done.wait_for(|done| *done == users)).await;
    }

    /// Users come until there are so many, one after the other over this time. Returns at once.
    pub(crate) fn come(&mut self, until: u32, over: Duration) {
        let until = until.min(self.options.clients);
        self.gate.send_replace(until);
        let first = self.count.max(self.walked_in);
        for number in first..until {
            let user = self.makes.user(number);
            let delay = over.mul_f64(f64::from(number - first) / f64::from(until - first));
            self.users.spawn(async move {
                tokio::time::sleep(delay).await;
                user.walk().await;
            });
        }
        self.count = self.count.max(until);
    }

    /// As many as there may be.
    pub(crate) fn users_max(&self) -> u32 {
        self.options.clients
    }

    /// What those who are there meet from now on, for so long.
    pub(crate) async fn measure(&mut self, duration: Duration) -> Collected {
        let now = Instant::now();
        drop(self.take());
        self.clock.send_modify(|clock| clock.counted_from = now);
        tokio::time::sleep(duration).await;
        self.take()
    }

    /// Whoever comes from now on counts, from `begin` on, and notes requests that fail or are as slow as this, and what it was told of
    /// transactions that leave a witness. Times count from `begin`.
    pub(crate) fn keep_journal(&mut self, begin: Instant, slow: Duration, witness: Witness) -> Arc<Journal> {
        self.clock.send_modify(|clock| clock.counted_from = begin);
        let losses = self.makes.pool.losses.clone();
        let journal = Arc::new(Journal::new(begin, slow, S::catalogue(), witness, losses));
        self.makes.journal.insert(journal).clone()
    }

    /// Whoever was driven from the host where its connections go first goes there again, with its next page.
    pub(crate) fn go_home(&self) {
        self.makes.pool.calls_home.fetch_add(1, Ordering::Relaxed);
    }

    /// All go after the page that they are at, which still counts. Returns what they have met, and how many were cut off since they did
    /// not get it in this time.
    pub(crate) async fn finish(mut self, limit: Duration) -> (Collected, usize) {
        let cut_off = self.send_away(limit).await;
        (self.take(), cut_off)
    }

    fn take(&self) -> Collected {
        std::mem::take(&mut *self.makes.collected.lock().expect("no user panics with the lock"))
    }

    /// So many users come, make no pauses for so long, and go as those of [`Crowd::leave`] do. The connections stay, with all that
    /// both sides have learned on them, for whoever comes next.
    ///
    /// # Errors
    /// If what they have added to the target cannot be asked.
    pub(crate) async fn rehearse(&mut self, users: u32, duration: Duration, limit: Duration) -> Result<()> {
        self.makes.think_factor = 0.0;
        self.come(users, Duration::ZERO);
        tokio::time::sleep(duration).await;
        self.send_away(limit).await;
        self.makes.think_factor = self.options.think_factor;
        self.count = 0;
        self.clock.send_replace(Clock::uncounted());
        // Whoever comes with a number that was there before must not take the ids of new rows that were taken then.
        self.makes.highest = mark::highest::<S>(&self.target.connect().await?).await?;
        Ok(())
    }

    /// All go after the page that they are at; whoever does not get it in this time is cut off.
    pub(crate) async fn leave(mut self, limit: Duration) {
        self.send_away(limit).await;
    }

    /// Returns how many did not go by themselves.
    async fn send_away(&mut self, limit: Duration) -> usize {
        self.clock.send_modify(|clock| clock.end = Instant::now());
        // Who never had its turn goes at once.
        self.gate.send_replace(u32::MAX);
        let gone = async { while self.users.join_next().await.is_some() {} };
        if tokio::time::timeout(limit, gone).await.is_ok() {
            return 0;
        }
        let left = self.users.len();
        self.users.shutdown().await;
        left
    }
}

/// When the run started, which pages count by when they came, and when users ask for no more.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    counted_from: Instant,
    end: Instant,
    counted_until: Instant,
}

impl Clock {
    fn uncounted() -> Clock {
        let (start, far) = (Instant::now(), Instant::now() + FAR);
        Clock { start, counted_from: far, end: far, counted_until: far }
    }
}

/// Connections that users share, as behind an application server. Those to several hosts are spread evenly over them.
struct Pool {
    target: Target,
    catalogue: &'static Catalogue,
    texts: Arc<Texts>,
    protocol: Protocol,
    free: Semaphore,
    idle: Mutex<Vec<Place>>,
    /// How often all were called home.
    calls_home: AtomicU32,
    losses: Losses,
}

/// One of the pool's connections.
struct Place {
    number: usize,
    /// Where it connects first; and where it is or was connected last.
    home: usize,
    host: usize,
    /// The calls home that it has heard.
    calls_home: u32,
    /// `None` if it was lost.
    connection: Option<Connection>,
}

/// A place among the pool's connections.
struct Held<'a> {
    place: Place,
    _permit: SemaphorePermit<'a>,
}

impl Pool {
    async fn open<S: Website>(target: Target, options: &Options<S>, texts: Arc<Texts>) -> Result<Self> {
        let count = options.connection_count() as usize;
        let pool = Pool {
            target,
            catalogue: S::catalogue(),
            texts,
            protocol: options.protocol,
            free: Semaphore::new(count),
            idle: Mutex::default(),
            calls_home: AtomicU32::new(0),
            losses: Losses::default(),
        };
        for number in 0..count {
            let home = number % pool.target.host_count();
            let mut place = Place { number, home, host: home, calls_home: 0, connection: None };
            pool.connect(&mut place).await?;
            pool.idle().push(place);
        }
        Ok(pool)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Place>> {
        self.idle.lock().expect("nobody panics with the pool")
    }

    /// A place for the user of this number. Where there are several hosts it is the user's own, if it is free, so that all are in use
    /// and users stay spread over the hosts.
    async fn take(&self, user: usize) -> Held<'_> {
        let permit = self.free.acquire().await.expect("the pool is never closed");
        let mut idle = self.idle();
        let last = idle.len().checked_sub(1).expect("there is a place for each permit");
        let own = idle.iter().position(|place| place.number == user).filter(|_| self.target.host_count() > 1);
        let place = idle.swap_remove(own.unwrap_or(last));
        drop(idle);
        Held { place, _permit: permit }
    }

    fn give_back(&self, held: Held<'_>) {
        let Held { mut place, _permit } = held;
        place.connection = place.connection.filter(|connection| !connection.is_closed());
        self.idle().push(place);
    }

    /// The held connection; a new one if there was none, or none that is where it should be.
    async fn connection<'a>(&self, held: &'a mut Held<'_>) -> Result<&'a mut Connection> {
        let place = &mut held.place;
        if place.connection.as_ref().is_none_or(Connection::is_closed) {
            self.connect(place).await?;
        }
        Ok(place.connection.as_mut().expect("it is connected"))
    }

    /// Ends a connection to another host than its home if it was called home since it was made.
    fn heed_calls_home(&self, held: &mut Held<'_>) {
        let calls = self.calls_home.load(Ordering::Relaxed);
        if held.place.calls_home != calls && held.place.host != held.place.home {
            held.place.connection = None;
        }
        held.place.calls_home = calls;
    }

    async fn connect(&self, place: &mut Place) -> Result<()> {
        place.connection = None;
        let losses = self.losses.clone();
        let lost = move |host| {
            losses.lock().expect("nobody panics with the losses").push((Instant::now(), host));
        };
        let (client, host) = self.target.connect_from(place.home, lost).await?;
        place.host = host;
        place.connection = Some(self.texts.on(Connection::new(client, self.catalogue, self.protocol)));
        Ok(())
    }
}

/// One user at work.
struct User<C> {
    client: C,
    number: usize,
    /// For pauses between attempts; not the client's, whose course it must not change.
    jitter: Random,
    pool: Arc<Pool>,
    collected: Arc<Mutex<Collected>>,
    clock: watch::Receiver<Clock>,
    journal: Option<Arc<Journal>>,
    gate: watch::Receiver<u32>,
    texts: Arc<Texts>,
    think_factor: f64,
    retries_max: u32,
    page_timeout: Duration,
    /// Transactions go as one text each.
    whole: bool,
}

/// A page on its way.
struct Page<'a> {
    held: Held<'a>,
    /// When the user asked for it; waiting for a connection counts.
    asked: Instant,
    deadline: tokio::time::Instant,
    interaction: InteractionId,
    in_transaction: bool,
    /// The transaction that runs is none that writes.
    only_reads: bool,
    /// What the transaction that runs leaves behind.
    witness: Option<WitnessKey>,
    /// Attempts that failed of the transaction that runs.
    attempts: u32,
    outcome: Outcome,
}

/// What goes into the sample.
#[derive(Default)]
struct Outcome {
    statements: u32,
    transactions: u32,
    retries: Vec<String>,
    failed: Option<String>,
    /// A rollback completed it.
    taken_back: bool,
    /// The longest that one request waited for its reply, whatever that was.
    longest_request: Duration,
}

impl Page<'_> {
    fn request<'b>(&self, action: &'b Action, sent: Instant) -> Request<'b> {
        Request { action, sent, host: self.held.place.host, only_reads: self.only_reads }
    }
}

impl<C: Client> User<C> {
    fn clock(&self) -> Clock {
        *self.clock.borrow()
    }

    async fn walk(mut self) {
        let begun = self.client.next(now(), Reply::Done);
        self.walk_on(begun).await;
    }

    /// Sees some pages without pauses, says so, waits for its turn, and goes on.
    async fn walk_from_afar(mut self, seen: Arc<watch::Sender<u32>>) {
        let pool = self.pool.clone();
        let mut action = self.client.next(now(), Reply::Done);
        for _ in 0..uniform(&mut self.jitter, AHEAD.0, AHEAD.1) {
            let Action::Think { next, .. } = action else { unreachable!("pages begin and end with a pause") };
            (action, _) = self.page(&pool, Instant::now(), next).await;
            tokio::task::yield_now().await;
        }
        seen.send_modify(|seen| *seen += 1);
        drop(seen);
        let number = self.number as u32;
        if self.gate.wait_for(|open| number < *open).await.is_ok() {
            self.walk_on(action).await;
        }
    }

    async fn walk_on(&mut self, mut action: Action) {
        let pool = self.pool.clone();
        loop {
            let Action::Think { pause, next } = action else {
                unreachable!("pages begin and end with a pause")
            };
            let wake = Instant::now() + pause.mul_f64(self.think_factor);
            if wake >= self.clock().end {
                return;
            }
            tokio::time::sleep_until(wake.into()).await;
            let asked = Instant::now();
            if asked >= self.clock().end {
                return;
            }
            let was_cut;
            (action, was_cut) = self.page(&pool, asked, next).await;
            if was_cut {
                tokio::time::sleep(RECONNECT_PAUSE).await;
            } else if self.think_factor == 0.0 {
                // Without pauses nothing else would let the others come to their turn.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Has a page shown that was asked for at this time, and returns the pause after it, and whether its connection was lost.
    async fn page(&mut self, pool: &Pool, asked: Instant, interaction: InteractionId) -> (Action, bool) {
        let mut page = Page {
            held: pool.take(self.number).await,
            asked,
            deadline: tokio::time::Instant::from_std(asked + self.page_timeout),
            interaction,
            in_transaction: false,
            only_reads: false,
            witness: None,
            attempts: 0,
            outcome: Outcome::default(),
        };
        pool.heed_calls_home(&mut page.held);
        let action = self.visit(pool, &mut page).await;
        let was_cut = page.outcome.failed.as_deref() == Some(CONNECTION_LOST);
        self.collect(&page);
        pool.give_back(page.held);
        (action, was_cut)
    }

    /// Carries out actions up to the next pause.
    async fn visit(&mut self, pool: &Pool, page: &mut Page<'_>) -> Action {
        let mut action = self.client.next(now(), Reply::Done);
        while !matches!(action, Action::Think { .. }) {
            let reply = match &action {
                Action::Begin(transaction) if self.whole => self.send_whole(pool, page, *transaction).await,
                action => self.carry_out(pool, page, action).await,
            };
            action = self.client.next(now(), reply);
        }
        action
    }

    async fn carry_out(&mut self, pool: &Pool, page: &mut Page<'_>, action: &Action) -> Reply {
        let was_in_transaction = page.in_transaction;
        if let Some(transaction) = self.transaction(action) {
            page.only_reads = !transaction.kind.is_update();
        }
        let sent = Instant::now();
        let reply = self.send(pool, page, action).await;
        self.on_reply(page, action, sent, was_in_transaction, reply).await
    }

    /// Sends all of a transaction as one text, if the client has one.
    async fn send_whole(&mut self, pool: &Pool, page: &mut Page<'_>, transaction: TransactionId) -> Reply {
        let begin = self.texts.begin(transaction, self.client.is_usual());
        let Some(Whole { text, statements }) = self.client.whole(begin) else {
            return self.carry_out(pool, page, &Action::Begin(transaction)).await;
        };
        page.only_reads = !self.pool.catalogue.transaction(transaction).kind.is_update();
        page.outcome.statements += statements;
        let sent = Instant::now();
        let reply = command(pool, page, &text).await;
        if reply.as_ref().is_err_and(|refused| self.client.failure_completes(&refused.code)) {
            let reply = self.on_reply(page, &Action::Rollback, sent, true, Ok(Reply::Done)).await;
            self.clean_up(page, true).await;
            return reply;
        }
        self.on_reply(page, &Action::Commit, sent, true, reply).await
    }

    /// What was sent then, by an action or by a text that ends with it, was replied to.
    async fn on_reply(
        &mut self,
        page: &mut Page<'_>,
        action: &Action,
        sent: Instant,
        was_in_transaction: bool,
        reply: std::result::Result<Reply, Refused>,
    ) -> Reply {
        page.outcome.longest_request = page.outcome.longest_request.max(sent.elapsed());
        let again = |refused: &Refused| {
            matches!(refused.code.as_str(), "40001" | "40P01") && page.attempts < self.retries_max
        };
        let again = reply.as_ref().is_err_and(again);
        self.note(page, action, sent, reply.as_ref().err(), again);
        match reply {
            Ok(reply) => {
                let is_commit = matches!(action, Action::Commit);
                if is_commit || !page.in_transaction && !matches!(action, Action::Begin(_)) {
                    page.attempts = 0;
                    page.outcome.transactions += 1;
                }
                if matches!(action, Action::Rollback) {
                    if self.client.rollback_completes() {
                        page.outcome.taken_back = true;
                    } else {
                        page.outcome.failed = Some("rolled back".to_owned());
                    }
                }
                reply
            }
            Err(Refused { code, .. }) => {
                self.clean_up(page, was_in_transaction).await;
                if again {
                    page.attempts += 1;
                    page.outcome.retries.push(code);
                    tokio::time::sleep(self.retry_pause(page.attempts)).await;
                    return Reply::Failed(Failure::Retry);
                }
                page.outcome.failed = Some(code);
                Reply::Failed(Failure::GiveUp)
            }
        }
    }

    /// To what an action belongs, if it says so.
    fn transaction(&self, action: &Action) -> Option<&'static Transaction> {
        let catalogue = self.pool.catalogue;
        match action {
            Action::Begin(transaction) => Some(catalogue.transaction(*transaction)),
            Action::Execute(statement, _) => {
                Some(catalogue.transaction(catalogue.statement(*statement).transaction))
            }
            _ => None,
        }
    }

    /// An action was replied to, if there is somebody who keeps a journal.
    fn note(
        &self,
        page: &mut Page<'_>,
        action: &Action,
        sent: Instant,
        refused: Option<&Refused>,
        again: bool,
    ) {
        let Some(journal) = &self.journal else { return };
        journal.on_reply(&page.request(action, sent), refused, again);
        match (action, refused) {
            (Action::Execute(statement, params), None) => {
                page.witness = page.witness.or(journal.key(*statement, params));
            }
            (Action::Commit, None) => journal.on_end(page.witness.take(), Told::Committed),
            (Action::Commit, Some(refused)) => journal.on_end(page.witness.take(), refused.told()),
            // Whatever ended it before COMMIT, it did not happen.
            (_, Some(_)) | (Action::Rollback, None) => journal.on_end(page.witness.take(), Told::RolledBack),
            (Action::Begin(_) | Action::Think { .. }, None) => {}
        }
    }

    /// A random part of a pause that doubles with each attempt, so that two users in each other's way part. The first
    /// attempt comes at once.
    fn retry_pause(&mut self, attempts: u32) -> Duration {
        let longest = Duration::from_millis((1 << attempts.min(16)) - 2).min(RETRY_PAUSE_MAX);
        Duration::from_micros(uniform(&mut self.jitter, 0, longest.as_micros() as i64) as u64)
    }

    /// Sends one action.
    async fn send(
        &self,
        pool: &Pool,
        page: &mut Page<'_>,
        action: &Action,
    ) -> std::result::Result<Reply, Refused> {
        let deadline = page.deadline;
        if page.in_transaction && page.held.place.connection.as_ref().is_none_or(Connection::is_closed) {
            // What follows must not run on another connection, outside of the transaction: its COMMIT would succeed there.
            return Err(refused(None, "the connection was lost between two statements".to_owned()));
        }
        match action {
            Action::Begin(transaction) => {
                let begin = self.texts.begin(*transaction, self.client.is_usual());
                let reply = command(pool, page, begin).await;
                page.in_transaction = reply.is_ok();
                reply
            }
            Action::Commit | Action::Rollback => {
                page.in_transaction = false;
                command(pool, page, if *action == Action::Commit { "COMMIT" } else { "ROLLBACK" }).await
            }
            Action::Execute(statement, params) => {
                page.outcome.statements += 1;
                let connection = connection(pool, page).await?;
                let executing = async { connection.execute(*statement, params).await.map_err(failed) };
                in_time(deadline, executing).await.map(Reply::Rows)
            }
            Action::Think { .. } => Ok(Reply::Done),
        }
    }

    /// Leaves the connection as it was found, or leaves it.
    async fn clean_up(&self, page: &mut Page<'_>, was_in_transaction: bool) {
        page.in_transaction = false;
        let timed_out = page.deadline <= tokio::time::Instant::now();
        let Some(connection) = &mut page.held.place.connection else { return };
        let is_clean = match was_in_transaction {
            // A statement may still run on it, so nothing more can be said on it in time.
            _ if timed_out => false,
            true => {
                let sent = Instant::now();
                let is_clean = connection.command("ROLLBACK").await.is_ok();
                // What failed was counted; that nothing can be said after it any more is not another failure.
                self.journal.iter().for_each(|journal| {
                    journal.on_reply(&page.request(&Action::Rollback, sent), None, false)
                });
                is_clean
            }
            false => !connection.is_closed(),
        };
        if !is_clean {
            page.held.place.connection = None;
        }
    }

    fn collect(&self, page: &Page<'_>) {
        let now = Instant::now();
        let Clock { counted_from, counted_until, .. } = self.clock();
        let mut collected = self.collected.lock().expect("no user panics with the lock");
        if now < counted_from || now >= counted_until {
            collected.uncounted += 1;
            return;
        }
        let outcome = &page.outcome;
        collected.statements += u64::from(outcome.statements);
        collected.transactions += u64::from(outcome.transactions);
        collected.taken_back += u64::from(outcome.taken_back);
        collected.longest_request = collected.longest_request.max(outcome.longest_request);
        for code in &outcome.retries {
            count(&mut collected.retries, code);
        }
        if let Some(code) = &outcome.failed {
            count(&mut collected.errors, code);
        }
        collected.samples.push(Sample {
            at_ms: (now - counted_from).as_millis() as u32,
            interaction: page.interaction.0 as u8,
            retries: outcome.retries.len() as u16,
            failed: outcome.failed.is_some(),
            latency_us: (now - page.asked).as_micros().min(u128::from(u32::MAX)) as u32,
        });
    }
}

fn count(counts: &mut BTreeMap<String, u64>, code: &str) {
    *counts.entry(code.to_owned()).or_default() += 1;
}

/// The connection of a page, in time.
async fn connection<'a>(
    pool: &Pool,
    page: &'a mut Page<'_>,
) -> std::result::Result<&'a mut Connection, Refused> {
    let (deadline, held) = (page.deadline, &mut page.held);
    let connecting = async {
        let connecting = pool.connection(held).await;
        connecting.map_err(|error| refused(error.sqlstate(), error.to_string()))
    };
    in_time(deadline, connecting).await
}

/// Sends a text of which nothing is to be read but whether it succeeded.
async fn command(pool: &Pool, page: &mut Page<'_>, text: &str) -> std::result::Result<Reply, Refused> {
    let deadline = page.deadline;
    let connection = connection(pool, page).await?;
    in_time(deadline, async { connection.command(text).await.map_err(failed) }).await.map(|()| Reply::Done)
}

fn failed(error: tokio_postgres::Error) -> Refused {
    refused(error.code(), crate::error::describe(&error))
}

fn refused(code: Option<&SqlState>, message: String) -> Refused {
    Refused { code: code.map_or(CONNECTION_LOST, SqlState::code).to_owned(), message }
}

async fn in_time<T>(
    deadline: tokio::time::Instant,
    work: impl Future<Output = std::result::Result<T, Refused>>,
) -> std::result::Result<T, Refused> {
    let timed_out = || Refused { code: TIMED_OUT.to_owned(), message: String::new() };
    tokio::time::timeout_at(deadline, work).await.unwrap_or_else(|_| Err(timed_out()))
}

/// Shows the last second every half second until all users have left. On something that is no terminal, a line every
/// five seconds.
async fn show_progress<S: Website>(
    options: &Options<S>,
    clock: Clock,
    collected: &Mutex<Collected>,
    mut users: JoinSet<()>,
) {
    let target = if options.progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let length = (options.ramp + options.duration).as_millis() as u64;
    let bar = ProgressBar::with_draw_target(Some(length), target);
    let style =
        ProgressStyle::with_template("{bar:20} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    let plain = options.progress && bar.is_hidden();
    let mut shown = 0;
    let mut ticks = 0_u32;
    let mut last = (Instant::now(), 0);
    loop {
        let pause = tokio::time::sleep(Duration::from_millis(500));
        tokio::select! {
            ended = users.join_next() => if ended.is_none() { break },
            () = pause => {
                ticks += 1;
                // A line that stays stands for all the time since the one before it, not for its last half second.
                if bar.is_hidden() && !ticks.is_multiple_of(10) {
                    continue;
                }
                let elapsed = clock.start.elapsed();
                let line = progress_line(options, clock, collected, &mut shown, &mut last);
                bar.set_position(elapsed.as_millis() as u64);
                bar.set_message(line.clone());
                if plain {
                    eprintln!("{line}");
                }
            }
        }
    }
    bar.finish_and_clear();
}

fn progress_line<S: Website>(
    options: &Options<S>,
    clock: Clock,
    collected: &Mutex<Collected>,
    shown: &mut usize,
    last: &mut (Instant, u64),
) -> String {
    let collected = collected.lock().expect("no user panics with the lock");
    let done = collected.samples.len() as u64 + collected.uncounted;
    let now = Instant::now();
    let rate = (done - last.1) as f64 / (now - last.0).as_secs_f64();
    *last = (now, done);
    let recent = &collected.samples[*shown..];
    *shown = collected.samples.len();
    let mean_us =
        recent.iter().map(|sample| f64::from(sample.latency_us)).sum::<f64>() / recent.len().max(1) as f64;
    let errors: u64 = collected.errors.values().sum();
    let retries: u64 = collected.retries.values().sum();
    let elapsed = clock.start.elapsed();
    let are_coming = Instant::now() < clock.counted_from;
    let phase = if are_coming { format!("{} arrive", S::USERS) } else { options.site.mix().to_owned() };
    format!(
        "{:>4.0} s  {phase}  {:>6} interactions/s  {:>7} ms  {} errors  {} retries",
        elapsed.as_secs_f64(),
        thousands(rate),
        millis(mean_us / 1_000.0),
        thousands(errors as f64),
        thousands(retries as f64),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use onecopy_cluster::Server;
    use onecopy_workload::{Rows, StatementId, Value};

    use super::*;
    use crate::auction::Auction;
    use crate::bulletin_board::BulletinBoard;
    use crate::site::{check, load};
    use crate::tpcc::Supplier;
    use crate::tpcw::Bookstore;

    /// Lets one user walk until all statements of these were used; those that never were are returned.
    async fn walk(
        connection: &mut Connection,
        catalogue: &Catalogue,
        mut user: impl Client,
        mut unused: BTreeSet<StatementId>,
    ) -> Vec<String> {
        const LOOKUPS_MAX: u32 = 20;
        let mut times = BTreeMap::new();
        let mut reply = Reply::Done;
        let mut pages = 0;
        while pages < 60_000 && !unused.is_empty() {
            let action = user.next(now(), reply);
            reply = match &action {
                Action::Think { .. } => {
                    pages += 1;
                    Reply::Done
                }
                Action::Execute(id, params) => {
                    unused.remove(id);
                    let statement = catalogue.statement(*id);
                    let times = times.entry(*id).or_insert(0);
                    *times += 1;
                    // A page may look up dozens of names, on which nothing depends.
                    let is_lookup = !statement.each.is_empty() && statement.writes.is_empty();
                    if is_lookup && *times > LOOKUPS_MAX {
                        Reply::Rows(Rows::default())
                    } else {
                        let rows = connection.execute(*id, params).await;
                        Reply::Rows(rows.unwrap_or_else(|error| {
                            panic!("{} {params:?}: {}", statement.sql, crate::error::describe(&error))
                        }))
                    }
                }
                Action::Begin(_) => {
                    connection.command("BEGIN").await.unwrap();
                    Reply::Done
                }
                Action::Commit => {
                    connection.command("COMMIT").await.unwrap();
                    Reply::Done
                }
                Action::Rollback => {
                    assert!(user.rollback_completes(), "a loaded site has all that a page asks for");
                    connection.command("ROLLBACK").await.unwrap();
                    Reply::Done
                }
            };
        }
        unused.into_iter().map(|statement| catalogue.statement(statement).id.clone()).collect()
    }

    #[tokio::test]
    async fn users_who_walk_in_count_from_when_they_come() {
        let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
        let site = Bookstore { items: 40, ..Bookstore::default() };
        let options = Options {
            target: server.dsn(),
            site,
            clients: 3,
            think_factor: 0.001,
            progress: false,
            ..Options::default()
        };
        load(&options).await.unwrap();
        let mut crowd = Crowd::open(&options).await.unwrap();
        crowd.walk_in(3, FAR).await;
        let walked = crowd.take();
        assert!(walked.samples.is_empty());
        assert!((3 * AHEAD.0..=3 * AHEAD.1).contains(&(walked.uncounted as i64)), "{}", walked.uncounted);
        // Nobody goes on before.
        assert_eq!(crowd.measure(Duration::from_millis(300)).await.samples.len(), 0);
        crowd.come(2, Duration::ZERO);
        assert!(!crowd.measure(Duration::from_secs(1)).await.samples.is_empty());
        assert_eq!(crowd.finish(Duration::from_secs(60)).await.1, 0);
    }

    /// A user alone needs every statement in both protocols, but for these, which run for no row, and leaves the rules unbroken.
    async fn expect_every_statement_to_run<S: Website + Default>(site: S, never: &[&str]) {
        let catalogue = S::catalogue();
        let never: Vec<StatementId> = never.iter().map(|id| catalogue.statement_id(id).unwrap()).collect();
        let all = (0..catalogue.statements.len()).map(|place| StatementId(place as u16));
        let needed: BTreeSet<StatementId> = all.filter(|id| !never.contains(id)).collect();
        let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
        let options = Options { target: server.dsn(), site, progress: false, ..Options::default() };
        load(&options).await.unwrap();
        let target = Target::parse(&options.target).unwrap();
        let client = target.connect().await.unwrap();
        let Found { site, population, .. } = mark::find(&client, &options.site).await.unwrap();
        for (seed, protocol) in [(1, Protocol::Prepared), (2, Protocol::Simple)] {
            let highest = mark::highest::<S>(&client).await.unwrap();
            let user = site.user(&population, seed, 0, 1, &highest);
            let mut connection = Connection::new(target.connect().await.unwrap(), catalogue, protocol);
            let unused = walk(&mut connection, catalogue, user, needed.clone()).await;
            assert_eq!(unused, [""; 0], "{protocol}");
            for id in &never {
                let params = vec![Value::Int(0); catalogue.statement(*id).parameter_count()];
                connection.execute(*id, &params).await.unwrap();
            }
        }
        let report = check(&options).await.unwrap();
        assert!(report.holds(), "{report}");
    }

    #[tokio::test]
    async fn every_statement_of_the_bookstore_runs_in_both_protocols_and_leaves_the_rules_unbroken() {
        // With few items, so that the same one comes into a cart twice.
        expect_every_statement_to_run(Bookstore { items: 40, ..Bookstore::default() }, &[]).await;
    }

    #[tokio::test]
    async fn every_statement_of_the_supplier_runs_in_both_protocols_and_leaves_the_conditions_unbroken() {
        let site = Supplier { warehouses: 2, customers: 30, ..Supplier::default() };
        expect_every_statement_to_run(site, &[]).await;
    }

    #[tokio::test]
    async fn every_statement_of_the_auction_site_runs_in_both_protocols_and_leaves_the_rules_unbroken() {
        // Nobody is led to an item that was sold.
        let never = ["view_item.olditem"];
        expect_every_statement_to_run(Auction { items: 60, users: 40, ..Auction::default() }, &never).await;
    }

    #[tokio::test]
    async fn every_statement_of_the_bulletin_board_runs_in_both_protocols_and_leaves_the_rules_unbroken() {
        // One day is old, so moderators hardly ever find a comment of it.
        let site = BulletinBoard { days: 31, users: 40, ..BulletinBoard::default() };
        let never = ["oldcomment", "oldrate", "oldshow"].map(|name| format!("store_moderation.{name}"));
        let never: Vec<&str> = never.iter().map(String::as_str).chain(["moderate_comment.oldget"]).collect();
        expect_every_statement_to_run(site, &never).await;
    }
}
