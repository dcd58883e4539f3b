//! The simulated driver: the real core between simulated clients, databases and a log, in virtual time.
//!
//! Single-threaded and seeded: a run is a loop that takes what happens next from a queue, so the same scenario always
//! gives the same trace. What a file here does is what a part of the real driver does: `node` keeps sessions and
//! carries out what concerns clients and the log; `replicas` sends commands to databases, `operations` is what they do
//! there, `reports` what comes back; `breakages` is the weather, `membership` who joins and leaves.
//!
//! While a run goes on, orders that make no sense and promises that are visibly broken are noted at once; the rest is
//! judged at the end by `audit`.

mod audit;
mod breakages;
mod clients;
mod looks;
mod membership;
mod node;
mod operations;
mod replicas;
mod reports;
mod stages;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use onecopy_core::effect::Effect;
use onecopy_core::protocol::Position;
use onecopy_core::{Csn, Event, Instant, NodeId, OpId, Place, Protocol, ReplicaId, TableId, TxnId};

use crate::check::History;
use crate::clients::recorder::Recorder;
use crate::clients::schema::initial_contents;
use crate::clients::script::Scripts;
use crate::clients::{Client, ClientWake, Connection, Request};
use crate::clock::EventQueue;
use crate::database::{Database, Order};
use crate::failure::Failure;
use crate::log::Log;
use crate::random::{Purpose, Random};
use crate::scenario::{Breakage, Moment, Scenario};
use crate::timing::{RandomTiming, Step, Timing};
use crate::trace::Trace;
use node::Node;
use replicas::{Operation, Replica};
use reports::Report;

pub use audit::Statistics;

/// Makes the protocol under test for so many replicas and a log that ends here; called again when the node restarts.
pub type MakeProtocol<'a> = dyn Fn(usize, Csn) -> Box<dyn Protocol> + 'a;

/// A run that does more than this does not end: what a client waits for takes some fifty steps.
const STEPS_MAX: u64 = 2_000_000;
/// Virtual time after which nobody may still wait: ten thousand times what a statement takes.
const TIME_MAX: Instant = Instant(600_000_000_000);
/// How often it is looked who waits within the servers, as long as something happens.
const LOOK_PAUSE_NS: u64 = 1_000_000_000;
/// In so many of 1,000 cases somebody waits for a replica when a client asks for something.
const WANTED_PER_MILLE: u64 = 50;

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Promises that were not kept, in the order in which they were found.
    pub failures: Vec<Failure>,
    /// A hash of the trace: equal for equal scenarios.
    pub trace_hash: u64,
    /// The trace, if the scenario asked for it.
    pub trace: Option<String>,
    /// What happened, in numbers.
    pub statistics: Statistics,
    /// What clients asked and were answered.
    pub history: History,
}

/// Runs a scenario to its end and judges it.
#[must_use]
pub fn run(scenario: &Scenario, make: &MakeProtocol<'_>) -> Outcome {
    let mut simulation = Simulation::new(scenario, make);
    // An assertion that fails is a finding, too: the run has its seed and its trace all the same.
    let ran = catch_unwind(AssertUnwindSafe(|| {
        simulation.start();
        simulation.go_on();
        simulation.probe();
    }));
    match ran {
        Ok(()) => simulation.judge(),
        Err(panic) => simulation.give_up(panic.as_ref()),
    }
}

/// Something that happens at an instant.
#[derive(Debug)]
enum Wake {
    Client {
        client: usize,
        connection: Connection,
        wake: ClientWake,
    },
    Request {
        client: usize,
        connection: Connection,
        request: Request,
    },
    /// An event that does not come from a database, for the node of this epoch; with its place where it does not say
    /// so itself.
    Core {
        epoch: u64,
        place: Option<Place>,
        event: Event,
    },
    /// The node of this epoch finds that it cannot do again on a replica what a transaction has done, for the `nth` time.
    Unreachable {
        epoch: u64,
        txn: TxnId,
        nth: u32,
        replica: ReplicaId,
    },
    /// A command arrives in a database, over a connection of this session.
    Operation {
        replica: ReplicaId,
        session: u64,
        operation: Operation,
    },
    /// An answer from a database arrives at the node.
    Report {
        replica: ReplicaId,
        session: u64,
        report: Report,
    },
    Flushed {
        epoch: u64,
    },
    Break(Breakage),
    Fence {
        replica: ReplicaId,
        session: u64,
    },
    NodeUp,
    /// A copy is complete that the node of this epoch was making.
    Copied {
        epoch: u64,
        replica: ReplicaId,
        copy: Box<Database>,
    },
    /// It is looked again whether a replica that leaves has anything open.
    Drained {
        epoch: u64,
        replica: ReplicaId,
    },
    /// A replica that stood still goes on.
    Resumes(ReplicaId),
    /// The node of this epoch, that stood still, goes on.
    NodeResumes {
        epoch: u64,
    },
}

impl Wake {
    /// Whether the node has to do something about it.
    fn is_heard_by_the_node(&self) -> bool {
        match self {
            Wake::Request { .. }
            | Wake::Core { .. }
            | Wake::Unreachable { .. }
            | Wake::Report { .. }
            | Wake::Flushed { .. }
            | Wake::Fence { .. }
            | Wake::Copied { .. }
            | Wake::Drained { .. }
            | Wake::Break(
                Breakage::Join | Breakage::Depart { .. } | Breakage::Diverge(_) | Breakage::GiveUp,
            ) => true,
            Wake::Client { .. }
            | Wake::Operation { .. }
            | Wake::Break(_)
            | Wake::NodeUp
            | Wake::Resumes(_)
            | Wake::NodeResumes { .. } => false,
        }
    }
}

/// How often some moments' things were done.
#[derive(Default, Debug)]
struct Counts {
    moves: u64,
    first_writes: u64,
    flushes: u64,
    commits: u64,
    losses: u64,
    returns: u64,
    copies: u64,
    leaves: u64,
    behind: u64,
    shown: u64,
}

/// A run.
struct Simulation<'a> {
    scenario: &'a Scenario,
    make: &'a MakeProtocol<'a>,
    protocol: Box<dyn Protocol>,
    queue: EventQueue<Wake>,
    timing: Box<dyn Timing>,
    choices: Random,
    outsiders: Random,
    trace: Trace,
    /// Events for the core that wait until the effects of the one before are carried out.
    feeds: VecDeque<(Option<Place>, Event)>,
    feeding: bool,
    effects: Vec<Effect>,
    node: Node,
    replicas: Vec<Replica>,
    /// When the last message between two places arrives: messages do not overtake each other.
    channels: BTreeMap<(u64, u64), Instant>,
    log: Log,
    clients: Vec<Client>,
    scripts: Scripts,
    recorder: Recorder,
    breakages: Vec<(Moment, Breakage)>,
    /// How often each moment's thing was done.
    appends: u64,
    commits_at: u64,
    applies: u64,
    revalidations: u64,
    counts: Counts,
    /// The last decision that some replica has committed.
    first_committed: Csn,
    /// The write of the log under way, or the next one, does not end before this.
    disk_slow_until: Instant,
    /// When it was looked last who waits within the servers.
    looked_at: Instant,
    steps: u64,
    /// Transactions that clients have begun or left out.
    begun: u64,
    /// Of lanes and runs.
    next_id: u64,
    next_connection: u64,
    acknowledged: Vec<(TxnId, Csn)>,
    given_values: BTreeSet<i64>,
    /// Of which sequences values are awaited.
    wanted_values: BTreeMap<(TxnId, OpId), &'static [TableId]>,
    /// Of the sequence that cycles, in order.
    cycled_values: Vec<i64>,
    statistics: Statistics,
    failures: Vec<Failure>,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario, make: &'a MakeProtocol<'a>) -> Simulation<'a> {
        let contents = initial_contents(scenario.keys);
        let protocol = make(scenario.replicas, Csn(0));
        let order = match protocol.position() {
            _ if !scenario.progress_guarded => Order::Unchecked,
            Position::Prefix => Order::WithoutGaps,
            Position::Set => Order::Any,
        };
        let replicas = (0..scenario.replicas).map(|_| Replica::new(&contents, order));
        Simulation {
            scenario,
            make,
            protocol,
            queue: EventQueue::default(),
            timing: Box::new(RandomTiming::new(scenario.seed, scenario.replicas, scenario.apply_slowness)),
            choices: Random::new(scenario.seed, Purpose::Driver),
            outsiders: Random::new(scenario.seed, Purpose::Outsiders),
            trace: Trace::new(scenario.keep_trace),
            feeds: VecDeque::new(),
            feeding: false,
            effects: Vec::new(),
            node: Node::default(),
            replicas: replicas.collect(),
            channels: BTreeMap::new(),
            log: Log::default(),
            clients: Vec::new(),
            scripts: Scripts::new(
                Random::new(scenario.seed, Purpose::Clients),
                scenario.mix.clone(),
                scenario.keys,
            ),
            recorder: Recorder::new(scenario.keys),
            breakages: scenario.breakages.clone(),
            appends: 0,
            commits_at: 0,
            applies: 0,
            revalidations: 0,
            counts: Counts::default(),
            first_committed: Csn(0),
            disk_slow_until: Instant(0),
            looked_at: Instant(0),
            steps: 0,
            begun: 0,
            next_id: 0,
            next_connection: 0,
            acknowledged: Vec::new(),
            given_values: BTreeSet::new(),
            wanted_values: BTreeMap::new(),
            cycled_values: Vec::new(),
            statistics: Statistics::default(),
            failures: Vec::new(),
        }
    }

    fn start(&mut self) {
        self.start_node();
        for _ in 0..self.scenario.clients {
            let client = self.add_client(self.scenario.transactions_per_client);
            self.client_thinks(client);
        }
    }

    /// Until nothing happens any more.
    fn go_on(&mut self) {
        loop {
            while let Some(wake) = self.queue.pop() {
                self.steps += 1;
                if self.steps > STEPS_MAX || self.queue.now() > TIME_MAX {
                    return self.fail(Failure::Stuck { waiting: self.who_waits("still going on") });
                }
                self.wake(wake);
                self.reached(Moment::Step(self.steps), None);
                if self.queue.now() > self.looked_at.plus_ns(LOOK_PAUSE_NS) {
                    self.look();
                }
            }
            if !self.look() {
                break;
            }
        }
        if self.clients.iter().any(|client| client.current.is_some() || client.remaining > 0) {
            self.fail(Failure::Stuck { waiting: self.who_waits("nothing will happen") });
        }
    }

    fn wake(&mut self, wake: Wake) {
        if self.node.stands_still && wake.is_heard_by_the_node() {
            return self.node.unheard.push(wake);
        }
        match wake {
            Wake::Client { client, connection, wake } => self.on_client(client, connection, wake),
            Wake::Request { client, connection, request } => self.on_request(client, connection, request),
            Wake::Core { epoch, place, event } if epoch == self.node.epoch => self.feed_at(place, event),
            Wake::Unreachable { epoch, txn, nth, replica } if epoch == self.node.epoch => {
                self.on_unreachable(txn, nth, replica);
            }
            Wake::Unreachable { .. } => {}
            Wake::Operation { replica, session, operation } => {
                if self.replica(replica).stands_still {
                    self.replica(replica).unheard.push((session, operation));
                } else if session >= self.replica(replica).accepts {
                    self.on_operation(replica, session, operation);
                }
            }
            Wake::Report { replica, session, report } => {
                if session == self.replica(replica).session || self.is_heard_late(replica, &report) {
                    self.on_report(replica, report);
                }
            }
            Wake::Flushed { epoch } if epoch == self.node.epoch => {
                if self.queue.now() < self.disk_slow_until {
                    self.queue.schedule(self.disk_slow_until, wake);
                } else {
                    self.on_flushed();
                }
            }
            Wake::Break(breakage) => self.on_break(breakage),
            Wake::Fence { replica, session } if session == self.replica(replica).session => {
                if self.replica(replica).stands_still {
                    let at = self.in_a(Step::Repair);
                    self.queue.schedule(at, wake);
                } else {
                    self.on_fence(replica);
                }
            }
            Wake::Resumes(replica) => self.on_resumes(replica),
            Wake::NodeResumes { epoch } if epoch == self.node.epoch => self.on_node_resumes(),
            Wake::NodeResumes { .. } => {}
            Wake::NodeUp => self.start_node(),
            Wake::Copied { epoch, replica, copy } if epoch == self.node.epoch => {
                self.on_copied(replica, *copy);
            }
            Wake::Drained { epoch, replica } if epoch == self.node.epoch => self.on_drained(replica),
            Wake::Copied { .. } | Wake::Drained { .. } => {}
            Wake::Core { .. } | Wake::Flushed { .. } | Wake::Fence { .. } => {}
        }
    }

    /// Hands an event to the core, at the place where it happens, and carries out what comes of it, in order.
    fn feed(&mut self, event: Event) {
        self.feed_at(None, event);
    }

    fn feed_at(&mut self, place: Option<Place>, event: Event) {
        self.feeds.push_back((place, event));
        if self.feeding {
            return;
        }
        self.feeding = true;
        while let Some((place, event)) = self.feeds.pop_front() {
            let now = self.queue.now();
            let place = place.unwrap_or_else(|| self.protocol.place_of(&event));
            self.trace.line(now, "event", format_args!("{place:?} {event:?}"));
            match event {
                Event::ReplicaDown { replica } => _ = self.node.told_down.insert(replica),
                Event::ReplicaUp { replica, .. } => _ = self.node.told_down.remove(&replica),
                _ => {}
            }
            self.ends_by(&event);
            let mut effects = std::mem::take(&mut self.effects);
            self.protocol.handle(place, now.plus_ns(self.node.clock_ahead_ns), event, &mut effects);
            for effect in effects.drain(..) {
                self.trace.line(now, "  effect", format_args!("{effect:?}"));
                self.carry_out(place, effect);
            }
            self.effects = effects;
            if let Some(what) = self.protocol.broken_invariant() {
                self.fail(Failure::InvariantBroken { what });
            }
        }
        self.feeding = false;
    }

    /// Carries out one order of the core, given at a place.
    fn carry_out(&mut self, place: Place, effect: Effect) {
        match effect {
            Effect::Execute { txn, op, replica, how, hold } => {
                self.on_execute(txn, op, replica, how, hold);
            }
            Effect::Release { txn, op, replica } => self.on_release(txn, op, replica),
            Effect::Revalidate { txn, replica, how } => {
                self.on_revalidate(txn, replica, how);
                self.revalidations += 1;
                self.reached(Moment::Revalidate(self.revalidations), Some(replica));
            }
            Effect::Leave { txn, replica } => self.on_leave(txn, replica),
            Effect::Finish { txn, op, replica } => self.on_finish(txn, op, replica),
            Effect::Withdraw { txn, op } => self.on_withdraw(txn, op),
            Effect::Refuse { txn, op, reason } => self.on_refuse(txn, op, reason),
            Effect::Append { csn, decision } => {
                self.on_append(csn, decision);
                self.appends += 1;
                self.reached(Moment::Append(self.appends), None);
            }
            Effect::CommitAt { txn, replica, csn } => {
                self.on_commit_at(txn, replica, csn);
                self.commits_at += 1;
                self.reached(Moment::CommitAt(self.commits_at), Some(replica));
            }
            Effect::Apply { replica, from, to } => {
                self.on_apply(replica, from, to);
                self.applies += 1;
                self.reached(Moment::Apply(self.applies), Some(replica));
            }
            Effect::Acknowledge { txn, op, csn } => self.on_acknowledge(txn, op, csn),
            Effect::Values { txn, op, values } => self.on_values(txn, op, &values),
            Effect::Send { to, message } => {
                self.send(place, to, Event::Message { from: place, message });
            }
            Effect::SetTimer { timer, at } => {
                let event = Event::Timer { timer };
                let wake = Wake::Core { epoch: self.node.epoch, place: Some(place), event };
                self.queue.schedule(Instant(at.0.saturating_sub(self.node.clock_ahead_ns)), wake);
            }
            Effect::Forget { txn } => self.on_forget(txn),
            Effect::Notice { .. } => {}
            Effect::Ship { txn, .. }
            | Effect::Multicast { txn, .. }
            | Effect::ApplyShipped { txn, .. }
            | Effect::ExecuteAt { txn, .. }
            | Effect::PassOver { txn, .. } => {
                self.senseless(txn, None, "ships writes from peer to peer, which is not simulated");
            }
        }
    }

    /// Carries an event to another place; what is sent from one place to another arrives in order.
    fn send(&mut self, from: Place, to: Place, event: Event) {
        let channel = (place_number(from), place_number(to));
        let earliest = self.channels.get(&channel).map_or(Instant(0), |last| last.plus_ns(1));
        let at = self.in_a(Step::Message).max(earliest);
        self.channels.insert(channel, at);
        self.queue.schedule(at, Wake::Core { epoch: self.node.epoch, place: Some(to), event });
    }

    /// When whatever was sent from one place to another so far has arrived; at once if it is one place.
    fn through_channel(&self, from: Place, to: Place) -> Instant {
        let last = self.channels.get(&(place_number(from), place_number(to)));
        last.map_or(self.queue.now(), |last| last.plus_ns(1)).max(self.queue.now())
    }

    /// When a step that starts now will be over.
    fn in_a(&mut self, step: Step) -> Instant {
        let now = self.queue.now();
        now.plus_ns(self.timing.duration_ns(now, step))
    }

    fn replica_ids(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        (0..self.replicas.len()).map(|id| ReplicaId(id as u16))
    }

    fn replica(&mut self, replica: ReplicaId) -> &mut Replica {
        &mut self.replicas[usize::from(replica.0)]
    }

    fn fail(&mut self, failure: Failure) {
        self.trace.line(self.queue.now(), "FAILURE", format_args!("{failure:?}"));
        self.failures.push(failure);
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.line(self.queue.now(), "note", what);
    }
}

/// The place through which what clients want and get passes.
const SCHEDULER: Place = Place::Scheduler(NodeId(0));

fn place_number(place: Place) -> u64 {
    match place {
        Place::Sequencer => 0,
        Place::Scheduler(NodeId(node)) => 1 << 32 | u64::from(node),
        Place::Proxy(ReplicaId(replica)) => 2 << 32 | u64::from(replica),
        Place::Peer(NodeId(node)) => 3 << 32 | u64::from(node),
    }
}
