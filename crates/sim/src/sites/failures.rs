//! Sites that fail, return and are cut off, and what must be true nevertheless.
//!
//! The driver of [`sites`](super) again, but its order is that of a log which sites share, as real processes have it (docs/protocols/wide_area.md, *On real
//! servers*): the site that leads tells places at once, and what is on a majority of disks is stable. It does what the loop of a real site does,
//! function by function (`runtime/src/sites/site`), so that its rules are tested with the core: when a site begins anew, whom it takes for lost, what it sends again.
//!
//! What fails: a site (its memory is gone, its database forgets some of its last commits), a server alone (the same of the database; the process lives), connections
//! between sites, in one direction or both. Messages to who is lost are lost. After some time all is healed; then everybody who lives has to be
//! answered, and all sites have to contain the log.
//!
//! - `setup`: how they fail, and who decides;
//! - `log`: the order of messages; how far each has come at a site, the core's [`Order`](onecopy_core::multicast::Order) says, as in real processes;
//! - `database`, `site`: what a site consists of;
//! - `network`: messages, elections, and what is done by the clock;
//! - `heard`: what other sites say, and what stands in the log;
//! - `work`: what the core wants done, and what came of it;
//! - `happenings`: what fails, and how sites begin;
//! - `judge`: what clients were told, and what must be true in the end.

mod database;
mod happenings;
mod heard;
mod judge;
mod log;
mod network;
mod setup;
mod site;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use onecopy_core::map::HashMap;
use onecopy_core::multicast::MessageId;
use onecopy_core::{
    AccessSet, Begin, ClassId, Csn, Epoch, Event, Instant, NodeId, OpId, Place, SessionId, Statement,
    StatementKind, TxnId,
};
use onecopy_workload::random::{self, Random};

use super::{Arriving, FAULTS_MAX, Fault, Setup, Source};
use crate::check::{History, MalformedHistory};
use crate::clock::EventQueue;
use crate::server::{Kind, Server};

pub use setup::{Bug, Failing, Family};

use database::Database;
use happenings::Happening;
use judge::End;
use log::SharedLog;
use site::{Beginning, Open, Outcome, Pending, Reply, Site, Standing};

const ARRIVALS_STREAM: u64 = u64::MAX - 4;
const NETWORK_STREAM: u64 = u64::MAX - 5;
const CHANCE_STREAM: u64 = u64::MAX - 6;
/// Who is not answered so long after the last arrival never will be.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Of another site's update the number at this site is that of its message, and so much more.
const OF_OTHERS: u64 = 1 << 40;
/// More transactions than were asked for, so that the log goes on: a site finds out only then that it contains what never happened.
const MORE_MAX: usize = 2_000;

/// What came of a run.
#[derive(Debug)]
pub struct Failed {
    /// What clients were told, but for what rests on places that were lost.
    pub history: History,
    /// What went wrong: nothing, unless the protocol or the driver is at fault.
    pub faults: Vec<Fault>,
    /// Updates that clients were told of and that never happened.
    pub lost: Vec<TxnId>,
    /// What happened how often.
    pub happened: BTreeMap<&'static str, u64>,
    /// Things that happened.
    pub events: u64,
}

enum Wake {
    Arrival,
    /// A site looks at its clock.
    Tick(usize),
    Arrives {
        from: usize,
        to: usize,
        /// To which process.
        process: u32,
        packet: Packet,
    },
    /// A site's CPU may have completed something.
    Completion(usize),
    /// A leader's records are on a site's disk.
    Written {
        site: usize,
        process: u32,
        epoch: Epoch,
        len: u64,
        durable: Csn,
    },
    Happens(Happening),
}

#[derive(Clone, Debug)]
enum Packet {
    /// From who leads the log: so many records there are, and up to there they are durable.
    Records { epoch: Epoch, len: u64, durable: Csn },
    /// So many of them are on a disk.
    Written { epoch: Epoch, len: u64 },
    /// A message to all.
    Request(MessageId),
    /// Its place.
    Place { epoch: Epoch, place: Csn, id: MessageId },
    /// What came of its execution.
    Outcome { id: MessageId, outcome: Box<Outcome> },
    /// A site lives, and has told its core of places up to there.
    Alive { told: Csn },
    /// The connection has ended.
    Parted,
}

/// What a site's CPU does.
#[derive(Clone, Debug)]
enum Job {
    Execute { txn: TxnId, op: OpId },
    Commit(TxnId),
    Take { from: usize, packet: Packet },
}

/// A message to all sites.
#[derive(Debug)]
struct Sent {
    from: usize,
    of: usize,
    /// Of one that is certified.
    asks: Option<Asks>,
}

/// What is asked of all sites where updates are certified.
#[derive(Debug)]
enum Asks {
    /// Whether it may commit, with what it has found.
    Verdict { op: OpId, snapshot: Csn, access: AccessSet, reply: Reply },
    /// To execute it at its place.
    Place { access: AccessSet },
}

impl Asks {
    fn access(&self) -> &AccessSet {
        match self {
            Asks::Verdict { access, .. } | Asks::Place { access } => access,
        }
    }
}

struct Txn {
    arriving: Arriving,
    site: usize,
    arrived: Instant,
    end: End,
}

impl Txn {
    fn is_update(&self) -> bool {
        !self.arriving.writes.is_empty()
    }
}

/// Runs what arrives through a protocol of sites that fail. Who orders messages in the setup does not count.
///
/// # Errors
/// If the history makes no sense, which is a fault of this driver.
pub fn run_failing(
    setup: &Setup,
    failing: &Failing,
    source: &mut dyn Source,
    family: Family,
) -> Result<Failed, MalformedHistory> {
    Simulation::new(setup, failing, source, family).run()
}

struct Simulation<'a> {
    setup: &'a Setup,
    failing: &'a Failing,
    source: &'a mut dyn Source,
    family: Family,
    queue: EventQueue<Wake>,
    arrivals: Random,
    network: Random,
    chance: Random,
    /// When the last message between two sites arrives: they do not overtake each other.
    channels: HashMap<(usize, usize), Instant>,
    /// Who does not hear whom, by sender and receiver, and how many failures that is.
    cut: BTreeMap<(usize, usize), u32>,
    servers: Vec<Server<Job>>,
    log: SharedLog,
    sites: Vec<Site>,
    messages: Vec<Sent>,
    txns: Vec<Txn>,
    last_arrival: Instant,
    is_over: bool,
    happened: BTreeMap<&'static str, u64>,
    faults: Vec<Fault>,
}

impl<'a> Simulation<'a> {
    fn new(
        setup: &'a Setup,
        failing: &'a Failing,
        source: &'a mut dyn Source,
        family: Family,
    ) -> Simulation<'a> {
        let sites = setup.distances.sites();
        let site = |me: usize| {
            let node = NodeId(me as u16);
            let core = family.begin(node, sites as u16, Csn(0), Vec::new());
            Site {
                me: node,
                standing: Standing::Up,
                now: Beginning::new(core, BTreeMap::new(), BTreeSet::new(), me, sites),
                database: Database::default(),
                process: 0,
                beginnings: 0,
                pending: BTreeMap::new(),
                queries: Vec::new(),
                durable: Csn(0),
                role: None,
                leader_heard: Instant(0),
                leads: None,
                ticks: 0,
            }
        };
        Simulation {
            setup,
            failing,
            source,
            family,
            queue: EventQueue::default(),
            arrivals: random::stream(setup.seed, ARRIVALS_STREAM),
            network: random::stream(setup.seed, NETWORK_STREAM),
            chance: random::stream(setup.seed, CHANCE_STREAM),
            channels: HashMap::default(),
            cut: BTreeMap::new(),
            servers: (0..sites).map(|site| Server::new(1, setup.discipline, site as u16)).collect(),
            log: SharedLog::new(sites),
            sites: (0..sites).map(site).collect(),
            messages: Vec::new(),
            txns: Vec::new(),
            last_arrival: Instant(0),
            is_over: false,
            happened: BTreeMap::new(),
            faults: Vec::new(),
        }
    }

    fn run(mut self) -> Result<Failed, MalformedHistory> {
        for site in 0..self.sites.len() {
            // Not all at one instant.
            let after = self.failing.alive_ns * (site as u64 + 1) / self.sites.len() as u64;
            self.queue.schedule(Instant(after), Wake::Tick(site));
            self.begin(site);
        }
        self.start_failures();
        self.schedule_arrival();
        while self.goes_on() {
            let Some(wake) = self.queue.pop() else { break };
            match wake {
                Wake::Arrival => {
                    self.arrive();
                    self.schedule_arrival();
                }
                Wake::Tick(site) => {
                    self.on_tick(site);
                    self.settle(site);
                    self.queue.schedule(self.after(self.failing.alive_ns), Wake::Tick(site));
                    self.look_whether_over(site);
                }
                Wake::Arrives { from, to, process, packet } => {
                    if self.sites[to].process == process && !self.is_cut(from, to) {
                        self.on_packet(from, to, packet);
                        self.settle(to);
                    }
                }
                Wake::Completion(site) => {
                    self.on_completion(site);
                    self.settle(site);
                }
                Wake::Written { site, process, epoch, len, durable } => {
                    if self.sites[site].process == process {
                        self.on_written(site, epoch, len, durable);
                        self.settle(site);
                    }
                }
                Wake::Happens(happening) => self.on_happening(happening),
            }
        }
        self.finish()
    }

    fn goes_on(&self) -> bool {
        let is_late = self.queue.now().since_ns(self.last_arrival) > PATIENCE_NS;
        self.faults.len() < FAULTS_MAX && !self.is_over && !(self.all_came() && is_late)
    }

    fn all_came(&self) -> bool {
        self.txns.len() as u64 >= self.setup.transactions
    }

    /// Once nothing fails any more: whether everybody is answered and all sites contain the whole log.
    fn look_whether_over(&mut self, site: usize) {
        let is_healed = self.queue.now().0 > self.failing.until_ns && self.cut.is_empty();
        if site > 0 || !self.all_came() || !is_healed {
            return;
        }
        let places = self.log.durable().len() as u64;
        let is_done = |site: &Site| {
            let now = &site.now;
            let ordered = now.order.ordered_up_to();
            let has_all = now.floor == Csn(places) && ordered == now.floor && now.turns.is_empty();
            site.is_up() && has_all && site.pending.is_empty() && now.open.is_empty()
        };
        let is_ahead = |site: &Site| {
            !site.database.beside(&self.log).is_empty() || site.now.order.ordered_up_to() > Csn(places)
        };
        let all_answered = self.txns.iter().all(|txn| txn.end != End::Waiting);
        if all_answered && self.sites.iter().all(|site| is_done(site) && !is_ahead(site)) {
            self.is_over = true;
        } else if self.sites.iter().any(is_ahead)
            && self.txns.len() < self.setup.transactions as usize + MORE_MAX
        {
            self.arrive();
        }
    }

    fn after(&self, ns: u64) -> Instant {
        self.queue.now().plus_ns(ns)
    }

    fn draw_ns(&mut self, mean_ns: u64) -> u64 {
        (-(1.0 - random::unit(&mut self.chance)).ln() * mean_ns as f64) as u64
    }

    fn note(&mut self, what: &'static str) {
        *self.happened.entry(what).or_default() += 1;
    }

    fn has_bug(&self, bug: Bug) -> bool {
        self.failing.bug == Some(bug)
    }

    fn fault(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }

    fn senseless(&mut self, of: usize, what: &'static str) {
        self.fault(Fault::Senseless { txn: TxnId(of as u64), what });
    }
}

/// Which message of all it is that were sent: they are numbered over all sites.
fn index_of(id: MessageId) -> usize {
    id.number as usize - 1
}

/// From clients.
impl Simulation<'_> {
    fn schedule_arrival(&mut self) {
        if !self.all_came() {
            let gaps = -(1.0 - random::unit(&mut self.arrivals)).ln();
            let at = self.after((gaps / self.setup.rate * 1e9) as u64);
            self.queue.schedule(at, Wake::Arrival);
        }
    }

    fn arrive(&mut self) {
        let last = self.sites.len() as i64 - 1;
        let site = random::uniform(&mut self.arrivals, 0, last) as usize;
        let (arriving, arrived) = (self.source.next(), self.queue.now());
        self.last_arrival = arrived;
        let of = self.txns.len();
        let end = if self.sites[site].lives() { End::Waiting } else { End::Refused };
        self.txns.push(Txn { arriving, site, arrived, end });
        if self.sites[site].is_up() {
            self.submit(site, of);
            self.settle(site);
        } else if self.sites[site].lives() {
            match self.txns[of].is_update() && !self.family.is_certified() {
                true => drop(self.keep(site, of, 0)),
                false => self.sites[site].queries.push(of),
            }
        }
    }

    /// Keeps an update until its end is known, and names it.
    fn keep(&mut self, site: usize, of: usize, resend_after_ns: u64) -> MessageId {
        let resend_at = self.after(resend_after_ns);
        let id = self.name(Sent { from: site, of, asks: None });
        self.sites[site].pending.insert(id, Pending { of, known: None, resend_at });
        id
    }

    fn name(&mut self, sent: Sent) -> MessageId {
        self.messages.push(sent);
        // All count together, as if one had sent them: who did is kept beside.
        MessageId { node: 0, incarnation: 1, number: self.messages.len() as u64 }
    }

    /// A client's transaction goes to the core.
    fn submit(&mut self, site: usize, of: usize) {
        let is_update = self.txns[of].is_update();
        let (txn, now) = (TxnId(of as u64), &mut self.sites[site].now);
        if !is_update && now.whole_from > now.floor && self.failing.bug != Some(Bug::ReadsBeforeGaps) {
            return now.ahead.push(of);
        }
        let mut open = Open::new(of, is_update, None, true);
        if is_update && !self.family.is_certified() {
            let id = self.keep(site, of, self.failing.resend_ns);
            self.sites[site].now.by_id.insert(id, txn);
            (open.id, open.has_client) = (Some(id), false);
        }
        self.sites[site].now.open.insert(txn, open);
        let kind = if is_update { StatementKind::Write } else { StatementKind::Read };
        let statement = Statement::new(ClassId(0), kind, self.txns[of].arriving.access.clone());
        let (session, stale_ok_ns) = (SessionId(txn.0), None);
        let begin = Begin { txn, session, read_only: !is_update, form: 0, declared: None, stale_ok_ns };
        self.feed(site, Event::Autocommit { begin, statement });
    }
}

/// To and from the core.
impl Simulation<'_> {
    /// Tells the core, once all is done that it wanted before.
    fn feed(&mut self, site: usize, event: Event) {
        self.sites[site].now.events.push_back(event);
        if std::mem::replace(&mut self.sites[site].now.is_feeding, true) {
            return;
        }
        while let Some(event) = self.sites[site].now.events.pop_front() {
            let mut effects = Vec::new();
            let (now, at) = (self.queue.now(), &mut self.sites[site]);
            at.now.core.handle(Place::Peer(at.me), now, event, &mut effects);
            effects.into_iter().for_each(|effect| self.carry_out(site, effect));
        }
        self.sites[site].now.is_feeding = false;
    }

    /// Reads what has become durable, and begins anew if it must.
    fn settle(&mut self, site: usize) {
        if self.sites[site].is_up() && self.sites[site].now.ended.is_none() {
            self.read_log(site);
        }
        if let Some(ended) = self.sites[site].now.ended.take() {
            self.end_beginning(site, ended);
        }
    }

    fn begin_again(&mut self, site: usize, why: &'static str) {
        self.sites[site].now.ended.get_or_insert(site::Ended::Anew(why));
    }

    fn work(&mut self, site: usize, kind: Kind, cost_ns: u64, job: Job) {
        let now = self.queue.now();
        self.servers[site].arrive(now, kind, cost_ns, job);
        self.expect_completion(site);
    }

    fn expect_completion(&mut self, site: usize) {
        if let Some(at) = self.servers[site].expect_completion() {
            self.queue.schedule(at, Wake::Completion(site));
        }
    }

    fn on_completion(&mut self, site: usize) {
        let now = self.queue.now();
        if !self.servers[site].is_expected(now) {
            return;
        }
        while let Some(job) = self.servers[site].complete(now) {
            // Whoever is about to begin anew takes nothing more in.
            if self.sites[site].now.ended.is_none() {
                self.done(site, job);
            }
        }
        self.expect_completion(site);
    }

    fn others(&self, site: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.sites.len()).filter(move |other| *other != site)
    }

    fn reached_by(&self, site: usize) -> BTreeSet<usize> {
        self.others(site).filter(|other| !self.is_cut(site, *other) && !self.is_cut(*other, site)).collect()
    }
}
