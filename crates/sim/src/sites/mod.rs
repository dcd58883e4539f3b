//! The driver of sites that are far apart: the real core between clients, databases and a total order, in virtual time.
//!
//! For protocols in which a middleware stands before each database (docs/protocols/wide_area.md). Transactions arrive whole, at rates that do
//! not depend on answers. Each site has one CPU, which database and middleware share. A run ends when everything is answered and in place.
//! One thread and one queue of events, so the same setup gives the same run.
//!
//! A [`Source`] says what arrives and a [`Setup`] how it is run; the `ring` or the `sequencer` puts `messages` in order, sites `work`, `contents` is what they hold, `measure` what
//! came of it. Where sites fail, [`run_failing`] has an order that survives that: `failures`.

mod contents;
mod failures;
mod measure;
mod messages;
mod ring;
mod sequencer;
mod setup;
#[cfg(test)]
mod tests;
mod work;

use std::collections::{BTreeMap, VecDeque};

use onecopy_core::effect::Effect;
use onecopy_core::map::HashMap;
use onecopy_core::protocol::certified;
use onecopy_core::{
    AccessSet, Begin, ClassId, Csn, Event, Instant, Message, NodeId, OpId, Place, Position, Protocol,
    ReplicaId, SessionId, Statement, StatementKind, TxnId,
};
use onecopy_workload::random::{self, Random};
use thiserror::Error;

use crate::check::{History, MalformedHistory};
use crate::clock::EventQueue;
use crate::server::{Kind, Server};

pub use crate::server::Discipline;
pub use failures::{Bug, Failed, Failing, Family, run_failing};
pub use measure::{Measured, Served};
pub use setup::{Costs, Distances, Order, Patience, Sending, Setup};

use contents::{Contents, Recorder};
use measure::Waiting;
use ring::Ring;
use sequencer::Sequencer;

const ARRIVALS_STREAM: u64 = u64::MAX;
const NETWORK_STREAM: u64 = u64::MAX - 1;
/// Who is not answered so long after the last arrival never will be.
const PATIENCE_NS: u64 = 3_600_000_000_000;
const FAULTS_MAX: usize = 100;
/// After so many events it is asked whether the protocol is in a state in which it must never be.
const ASKED_EVERY: u64 = 61;

/// A transaction as it arrives.
#[derive(Clone, PartialEq, Debug)]
pub struct Arriving {
    /// What it may read and write.
    pub access: AccessSet,
    /// Registers that it reads.
    pub reads: Vec<u64>,
    /// Registers that it writes; a query, which may be executed anywhere, writes none.
    pub writes: Vec<u64>,
    /// Whether its statements fail, wherever they are executed.
    pub fails: bool,
    /// Whether they do at its place in the order, if it comes to be executed there.
    pub fails_in_place: bool,
    /// Whether all its statements write: others are not executed in place.
    pub only_writes: bool,
    /// What it takes of a site's CPU; nothing for what all take.
    pub work: Option<Work>,
    /// The number of its user, who stays at one site; nothing for a site drawn at random.
    pub user: Option<u64>,
}

impl Arriving {
    /// Where it arrives, of so many sites.
    fn site(&self, drawn: usize, sites: usize) -> usize {
        self.user.map_or(drawn, |user| (user % sites as u64) as usize)
    }
}

/// CPU time of one transaction, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// To execute it.
    pub execute_ns: u64,
    /// To apply what it wrote, and to commit that.
    pub apply_ns: u64,
}

/// What arrives.
pub trait Source {
    /// The next transaction.
    fn next(&mut self) -> Arriving;
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Figures.
    pub measured: Measured,
    /// What clients saw, if the setup asked for it.
    pub history: Option<History>,
    /// What went wrong: nothing, unless the protocol or the driver is at fault.
    pub faults: Vec<Fault>,
    /// Things that happened.
    pub events: u64,
    /// Whether it was given up: then figures are of a part, and nothing is said of faults in its end.
    pub given_up: bool,
}

/// A bug that shows itself.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// A transaction never ended.
    #[error("{txn:?} was never answered")]
    Stuck {
        /// The transaction.
        txn: TxnId,
    },
    /// A site never had what another has committed, or keeps something of it for ever.
    #[error("{missing} times a site never committed or forgot an update")]
    Missing {
        /// How often, at all sites.
        missing: u64,
    },
    /// An update found something else at one site than where its client is.
    #[error("{txn:?} found something else at site {site} than elsewhere")]
    Disagreement {
        /// The transaction.
        txn: TxnId,
        /// The site.
        site: usize,
    },
    /// Sites do not contain the same in the end.
    #[error("site {site} differs from the first one in register {register}")]
    Differs {
        /// The site.
        site: usize,
        /// Where.
        register: u64,
    },
    /// What may be committed only when it is durable was not.
    #[error("{txn:?} is committed or told at site {site}, and is not durable")]
    NotDurable {
        /// The transaction.
        txn: TxnId,
        /// The site.
        site: usize,
    },
    /// A client was told of what never happened, under a protocol that loses nothing.
    #[error("{txn:?} was acknowledged, and is lost")]
    Lost {
        /// The transaction.
        txn: TxnId,
    },
    /// The protocol is in a state in which it must never be.
    #[error("{what}")]
    Invariant {
        /// Which.
        what: String,
    },
    /// An order that makes no sense here.
    #[error("{txn:?} {what}")]
    Senseless {
        /// The transaction.
        txn: TxnId,
        /// What is wrong.
        what: &'static str,
    },
}

#[derive(Debug)]
enum Wake {
    Arrival,
    /// The token is at this site.
    Token(usize),
    Arrives {
        site: usize,
        packet: Packet,
    },
    /// A site's CPU may have completed something.
    Completion(usize),
    /// A site tells the others what it has gathered.
    Tells(usize),
}

#[derive(Clone, Debug)]
enum Packet {
    /// A message with its number.
    Ordered(u64),
    /// A message, by when it was sent.
    Unnumbered(usize),
    /// What a site has to say of messages.
    Told(Told),
    Shipped {
        from: usize,
        message: Message,
    },
}

/// Numbers of messages, and up to which number a site has everything.
#[derive(Clone, Default, Debug)]
struct Told {
    numbers: Vec<(usize, u64)>,
    site: usize,
    has: Option<u64>,
}

/// What is to be sent with the token.
#[derive(Debug)]
enum Outgoing {
    ToAll { txn: TxnId, message: Message },
    Shipped { to: Vec<usize>, message: Message },
}

/// What a site's CPU does.
#[derive(Clone, Debug)]
enum Job {
    Execute {
        txn: TxnId,
        op: OpId,
    },
    Commit {
        txn: TxnId,
        csn: Csn,
    },
    Apply {
        txn: TxnId,
        origin: Place,
    },
    /// Those whose turns follow that of the first, as one.
    Together {
        first: TxnId,
        count: usize,
    },
    /// Executes and commits, where nothing that comes before it can still change what it finds.
    InPlace(InPlace),
    Take(Packet),
    Token,
}

/// What executes in its turn.
#[derive(Clone, Copy, Debug)]
struct InPlace {
    txn: TxnId,
    op: OpId,
    csn: Csn,
}

/// What is to be committed at a site, in that order.
type Gate = VecDeque<Turn>;

#[derive(Debug)]
struct Turn {
    txn: TxnId,
    /// It waits to be applied together with others.
    waits: Option<Place>,
    /// It waits to be executed until these are committed, which it conflicts with.
    after: Option<(InPlace, Vec<TxnId>)>,
    /// It only waits for those before it.
    ready: Option<Job>,
}

#[derive(Debug)]
struct Txn {
    arriving: Arriving,
    served: Served,
    /// How often all sites hear of it.
    requests: u16,
    /// At how many sites it is committed.
    commits: u16,
    /// How many sites keep nothing of it any more.
    forgotten: u16,
}

/// What executes at a site, and what waits until it may, by arrival.
#[derive(Default, Debug)]
struct Admission {
    executing: usize,
    waiting: BTreeMap<TxnId, OpId>,
}

/// In which order messages were received at a site.
#[derive(Default, Debug)]
struct Receipts {
    ranks: HashMap<usize, u64>,
    next: u64,
    /// Of those that are ordered by now.
    highest: u64,
}

/// Runs what arrives through a protocol of sites.
///
/// # Errors
/// If the history makes no sense, which is a fault of this driver.
pub fn run(
    setup: &Setup,
    source: &mut dyn Source,
    protocol: Box<dyn Protocol>,
) -> Result<Outcome, MalformedHistory> {
    Simulation::new(setup, source, protocol).run()
}

struct Simulation<'a> {
    setup: &'a Setup,
    source: &'a mut dyn Source,
    protocol: Box<dyn Protocol>,
    order: Order,
    queue: EventQueue<Wake>,
    arrivals: Random,
    network: Random,
    /// When the last message between two sites arrives: they do not overtake each other.
    channels: HashMap<(usize, usize), Instant>,
    /// Until when a site's link is occupied by what it has sent.
    links: Vec<Instant>,
    servers: Vec<Server<Job>>,
    /// Of each site, what executes and what waits for that.
    admissions: Vec<Admission>,
    /// Of each site; nothing where any order of commits will do.
    gates: Option<Vec<Gate>>,
    /// Sites at which something is applied together.
    applying: Vec<bool>,
    ring: Ring<Outgoing>,
    sequencer: Sequencer,
    /// Of each site, what it has not told the others yet.
    untold: Vec<Option<Told>>,
    /// What was sent to all, in the order in which it was sent.
    sent: Vec<(NodeId, TxnId, Message)>,
    /// Which of these has which number, from 1 on.
    numbered: Vec<usize>,
    txns: Vec<Txn>,
    last_arrival: Instant,
    /// Answers that are still to come, and sites that have to commit an update, or to forget it.
    awaited: u64,
    feeds: u64,
    receipts: Vec<Receipts>,
    contents: Contents,
    recorder: Option<Recorder>,
    measured: Measured,
    waiting: Waiting,
    faults: Vec<Fault>,
}

impl<'a> Simulation<'a> {
    fn new(setup: &'a Setup, source: &'a mut dyn Source, protocol: Box<dyn Protocol>) -> Simulation<'a> {
        let sites = setup.distances.sites();
        Simulation {
            setup,
            source,
            gates: (protocol.position() == Position::Prefix)
                .then(|| (0..sites).map(|_| Gate::new()).collect()),
            protocol,
            // One site alone need not pass a token to itself.
            order: if sites == 1 { Order::Sequencer { gathers_ns: 0 } } else { setup.order },
            queue: EventQueue::default(),
            arrivals: random::stream(setup.seed, ARRIVALS_STREAM),
            network: random::stream(setup.seed, NETWORK_STREAM),
            channels: HashMap::default(),
            links: vec![Instant(0); sites],
            servers: (0..sites).map(|site| Server::new(1, setup.discipline, site as u16)).collect(),
            admissions: (0..sites).map(|_| Admission::default()).collect(),
            applying: vec![false; sites],
            ring: Ring::new(sites),
            sequencer: Sequencer::new(sites),
            untold: vec![None; sites],
            sent: Vec::new(),
            numbered: Vec::new(),
            txns: Vec::new(),
            last_arrival: Instant(0),
            awaited: 0,
            feeds: 0,
            receipts: (0..sites).map(|_| Receipts::default()).collect(),
            contents: Contents::new(sites),
            recorder: setup.history.then(Recorder::default),
            measured: Measured::default(),
            waiting: Waiting::new(setup.gives_up.clone()),
            faults: Vec::new(),
        }
    }

    fn run(mut self) -> Result<Outcome, MalformedHistory> {
        if matches!(self.order, Order::Token { .. }) {
            self.queue.schedule(Instant(0), Wake::Token(0));
        }
        self.schedule_arrival();
        while self.goes_on() {
            let Some(wake) = self.queue.pop() else { break };
            match wake {
                Wake::Arrival => {
                    self.arrive();
                    self.schedule_arrival();
                }
                Wake::Token(site) => self.work(site, Kind::Read, self.setup.costs.token_ns, Job::Token),
                Wake::Arrives { site, packet } => {
                    self.work(site, Kind::Read, self.taking_ns(&packet), Job::Take(packet));
                }
                Wake::Completion(site) => self.on_completion(site),
                Wake::Tells(site) => self.tell(site),
            }
        }
        self.finish()
    }

    fn goes_on(&self) -> bool {
        let all_came = self.txns.len() as u64 >= self.setup.transactions;
        let is_late = self.queue.now().since_ns(self.last_arrival) > PATIENCE_NS;
        let is_over = all_came && (self.awaited == 0 || is_late);
        self.faults.len() < FAULTS_MAX && !is_over && !self.is_given_up()
    }

    fn is_given_up(&self) -> bool {
        self.waiting.is_over(self.queue.now())
    }

    fn finish(mut self) -> Result<Outcome, MalformedHistory> {
        let given_up = self.is_given_up();
        let stuck = self.txns.iter().position(|txn| txn.served.answered.is_none());
        if given_up && self.awaited > 0 {
            // What is under way would have ended later.
        } else if let Some(txn) = stuck {
            self.fault(Fault::Stuck { txn: TxnId(txn as u64) });
        } else if self.awaited > 0 {
            self.fault(Fault::Missing { missing: self.awaited });
        } else if let Some((site, register)) = self.contents.first_difference() {
            self.fault(Fault::Differs { site, register });
        }
        let history = self.recorder.take().map(Recorder::finish).transpose()?;
        self.measured.served = self.txns.into_iter().map(|txn| txn.served).collect();
        let events = self.queue.scheduled();
        Ok(Outcome { measured: self.measured, history, faults: self.faults, events, given_up })
    }

    fn schedule_arrival(&mut self) {
        if (self.txns.len() as u64) < self.setup.transactions {
            let gaps = -(1.0 - random::unit(&mut self.arrivals)).ln();
            let at = self.queue.now().plus_ns((gaps / self.setup.rate * 1e9) as u64);
            self.queue.schedule(at, Wake::Arrival);
        }
    }

    fn arrive(&mut self) {
        let sites = self.servers.len() as i64;
        let drawn = random::uniform(&mut self.arrivals, 0, sites - 1) as usize;
        let arriving = self.source.next();
        let site = arriving.site(drawn, self.servers.len());
        let txn = TxnId(self.txns.len() as u64);
        let updates = !arriving.writes.is_empty();
        let kind = if updates { StatementKind::Write } else { StatementKind::Read };
        let begin = Begin {
            txn,
            session: SessionId(txn.0),
            read_only: !updates,
            form: 0,
            declared: None,
            stale_ok_ns: None,
        };
        let statement = Statement::new(ClassId(0), kind, arriving.access.clone());
        self.last_arrival = self.queue.now();
        let served = Served {
            updates,
            site,
            arrived: self.queue.now(),
            delivered: [None; 3],
            executed_at: None,
            begun: None,
            executed: None,
            answered: None,
            undone: 0,
            failed: arriving.fails,
        };
        self.awaited += 1;
        self.waiting.arrives(txn, self.queue.now());
        self.txns.push(Txn { arriving, served, requests: 0, commits: 0, forgotten: 0 });
        self.feed(site, Event::Autocommit { begin, statement });
    }

    fn feed(&mut self, site: usize, event: Event) {
        let place = Place::Peer(NodeId(site as u16));
        let mut effects = Vec::new();
        self.protocol.handle(place, self.queue.now(), event, &mut effects);
        for effect in effects {
            self.carry_out(site, effect);
        }
        // To ask takes longer than everything else.
        self.feeds += 1;
        if self.setup.history
            && self.feeds.is_multiple_of(ASKED_EVERY)
            && let Some(what) = self.protocol.broken_invariant()
        {
            self.fault(Fault::Invariant { what });
        }
    }

    fn carry_out(&mut self, site: usize, effect: Effect) {
        let costs = self.setup.costs;
        match effect {
            Effect::Execute { txn, op, replica, .. } if usize::from(replica.0) == site => {
                self.admissions[site].waiting.insert(txn, op);
                self.admit(site);
            }
            Effect::CommitAt { txn, csn, .. } => {
                self.expect_commit(site, txn);
                self.work(site, Kind::Write, costs.commit_ns, Job::Commit { txn, csn });
            }
            Effect::ApplyShipped { origin, txn, .. } => {
                self.expect_commit(site, txn);
                self.apply(site, txn, origin);
            }
            Effect::ExecuteAt { txn, op, csn, .. } => {
                self.expect_commit(site, txn);
                self.execute_in_turn(site, InPlace { txn, op, csn });
            }
            // What runs goes on, and is reported.
            Effect::Leave { txn, .. } if self.admissions[site].waiting.remove(&txn).is_some() => {}
            Effect::Leave { txn, .. } => {
                let served = &mut self.txns[txn.0 as usize].served;
                served.undone += u32::from(!served.failed);
            }
            Effect::Release { txn, replica, .. } => {
                if self.txns[txn.0 as usize].served.failed {
                    self.answered(txn, usize::from(replica.0));
                }
            }
            Effect::Acknowledge { txn, csn, .. } => {
                let numbered = (csn.0 as usize).checked_sub(1).and_then(|at| self.numbered.get(at));
                if numbered.is_none_or(|message| self.sent[*message].1 != txn) {
                    self.senseless(txn, "is acknowledged at another place than its own");
                }
                let executed_at = self.executed_at(txn, site);
                self.answered(txn, executed_at);
            }
            Effect::Multicast { txn, message } => self.multicast(site, txn, message),
            Effect::Ship { to: Place::Peer(NodeId(to)), message, .. } => self.ship(site, to.into(), message),
            Effect::Forget { txn } => {
                let of = &mut self.txns[txn.0 as usize];
                of.forgotten += 1;
                let sites = self.servers.len() as u16;
                if of.forgotten > 1 + of.requests * (sites - 1) {
                    return self.senseless(txn, "is forgotten once more");
                }
                self.awaited -= u64::from(of.requests > 0);
            }
            _ => self.senseless(TxnId(0), "is given an order that sites have no use for"),
        }
    }

    fn begin(&mut self, site: usize, txn: TxnId, op: OpId) {
        let now = self.queue.now();
        self.admissions[site].executing += 1;
        let of = &mut self.txns[txn.0 as usize];
        let costs = self.setup.costs;
        let (kind, cost_ns) = match of.served.updates {
            true => (Kind::Write, costs.update_ns),
            false => (Kind::Read, costs.query_ns),
        };
        let cost_ns = of.arriving.work.map_or(cost_ns, |work| work.execute_ns);
        if of.served.site == site || of.served.begun.is_none() {
            (of.served.begun, of.served.executed_at) = (Some(now), Some(site));
        }
        self.contents.begin(txn, site, &of.arriving.reads);
        self.work(site, kind, cost_ns, Job::Execute { txn, op });
    }

    fn multicast(&mut self, site: usize, txn: TxnId, message: Message) {
        if matches!(message, Message::Certified(certified::Message::InPlace { .. }))
            && !self.txns[txn.0 as usize].arriving.only_writes
        {
            return self.feed(site, Event::HomeLost { txn, replica: ReplicaId(site as u16) });
        }
        let of = &mut self.txns[txn.0 as usize];
        of.requests += 1;
        // Each site forgets it, and commits it unless it fails. Where it is asked for once more, the others have forgotten the one before.
        let sites = self.servers.len() as u64;
        self.awaited += match of.requests {
            1 => sites + u64::from(!of.arriving.fails) * sites,
            _ => sites - 1,
        };
        match self.order {
            Order::Token { .. } => self.ring.send(site, Outgoing::ToAll { txn, message }, true),
            Order::Sequencer { .. } => self.send_to_all(site, txn, message),
        }
    }

    fn ship(&mut self, site: usize, to: usize, message: Message) {
        if matches!(self.order, Order::Sequencer { .. }) {
            return self.transmit(site, to, Packet::Shipped { from: site, message });
        }
        // One message for all that are to get the same.
        if let Some(Outgoing::Shipped { to: others, message: last }) = self.ring.last_of(site)
            && *last == message
            && !others.contains(&to)
        {
            return others.push(to);
        }
        self.ring.send(site, Outgoing::Shipped { to: vec![to], message }, false);
    }

    /// Where an update was executed that counts: here, or else where it was.
    fn executed_at(&self, txn: TxnId, site: usize) -> usize {
        let has = |site: &usize| self.contents.found(txn, *site).is_some();
        if has(&site) { site } else { (0..self.servers.len()).find(has).unwrap_or(site) }
    }

    fn answered(&mut self, txn: TxnId, executed_at: usize) {
        let now = self.queue.now();
        let of = &mut self.txns[txn.0 as usize];
        if of.served.answered.replace(now).is_some() {
            return self.senseless(txn, "is answered twice");
        }
        self.waiting.answered(txn, of.served.arrived, now);
        self.awaited -= 1;
        if let Some(recorder) = self.recorder.as_mut().filter(|_| !of.served.failed) {
            let found = self.contents.found(txn, executed_at).map_or(&[][..], Vec::as_slice);
            recorder.answered(txn, of.served.arrived, now, found, &of.arriving);
        }
    }

    fn senseless(&mut self, txn: TxnId, what: &'static str) {
        self.fault(Fault::Senseless { txn, what });
    }

    fn fault(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }
}
