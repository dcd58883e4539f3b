//! The performance driver: how much a cluster does, and what it waits for.
//!
//! The real core between simulated users, databases and a log, in virtual time. [`run`] takes a [`Setup`], a workload and
//! a protocol, and gives back figures and, if wanted, the history that users saw. One thread and one queue of events, so
//! the same setup gives the same trace, byte for byte. Nothing breaks here: the safety driver is there for that.
//!
//! The files stand in the order in which a statement meets them: `users` ask for what is in a `workload`, whose
//! `classes` have costs from a `profile` and `items` to conflict on; the `node` keeps transactions and the log; the `network` carries messages;
//! `replicas` are told what to do and do it on a `server`; `versions` says what they hold. `measure` and `history` are
//! what remains; `peak` is a series of runs. docs/laboratory.md is the design.

mod setup;

mod transactions;
mod users;
mod workload;

mod classes;
mod demand;
mod items;
mod profile;

mod network;
mod node;

mod replicas;
mod versions;

mod history;
mod measure;
mod peak;

use onecopy_core::effect::Effect;
use onecopy_core::map::HashMap;
use onecopy_core::protocol::{Position, Statements, UnknownProtocol, Writes, apart_by_name};
use onecopy_core::{
    Csn, Event, Guarantee, Instant, Message, NodeId, Notice, OpId, Place, Protocol, ReplicaId, TxnId,
};
use thiserror::Error;

use crate::check::{History, MalformedHistory};
use crate::clock::EventQueue;
use crate::log::Log;
use crate::server::Server;
use crate::trace::Trace;

pub use crate::server::{Busy, Discipline, Kind};
pub use classes::table_id;
pub use demand::{Demand, heaviest_read_in_writes};
pub use items::ItemsError;
pub use measure::{Distribution, Measured, Messages, QueryTime, ReplicaTime};
pub use network::Latency;
pub use onecopy_core::protocol::Engine;
pub use peak::{Peak, Search, find_peak, find_peak_from, find_peak_near, saturating_users};
pub use profile::{NAMED, Profile, ProfileError};
pub use setup::{Durability, Items, Loads, SECOND_NS, Setup, Users};
pub use transactions::{Transaction, Transactions, TransactionsError};
pub use workload::{AuctionSite, Board, Bookstore, Workload};

use classes::Classes;
use history::Recorder;
use network::{Machine, Network};
use node::{Record, Txn};
use replicas::{Command, Replica, Report, Shipped};
use users::Crowd;
use versions::{Own, Shared, Version};

/// Faults that are kept; whoever has so many has the same one many times.
const FAULTS_MAX: usize = 100;

/// Streams of the seed that no user has: arrivals, and how long databases take.
const ARRIVALS_STREAM: u64 = u64::MAX;
const TIMES_STREAM: u64 = u64::MAX - 1;

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Figures.
    pub measured: Measured,
    /// What users saw, if the setup asked for it.
    pub history: Option<History>,
    /// What went wrong: nothing, unless the protocol or the driver is at fault.
    pub faults: Vec<Fault>,
    /// A hash of the trace: equal for equal setups.
    pub trace_hash: u64,
    /// The trace, if the setup asked for it.
    pub trace: Option<String>,
    /// Things that happened, warm-up included.
    pub events: u64,
}

impl Outcome {
    /// The figures, which say something only if nothing went wrong.
    ///
    /// # Errors
    /// What went wrong first.
    pub fn figures(self) -> Result<Measured, Fault> {
        self.faults.into_iter().next().map_or(Ok(self.measured), Err)
    }
}

/// Why a run cannot start, or its history cannot be told.
#[derive(Debug, Error)]
pub enum RunError {
    /// There is no such protocol.
    #[error(transparent)]
    Protocol(#[from] UnknownProtocol),
    /// The profile is not for this workload.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The workload's items are not in order.
    #[error(transparent)]
    Items(#[from] ItemsError),
    /// The history makes no sense; a fault of the driver.
    #[error("tell the run's history: {0}")]
    History(#[from] MalformedHistory),
}

/// A bug that shows itself.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// A replica found other contents than the first that executed the statement.
    #[error("{replica:?} executed {op:?} of {txn:?} on other contents than the first replica did")]
    Disagreement {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// The replica.
        replica: ReplicaId,
    },
    /// A replica that must commit in order did not.
    #[error("{replica:?} committed {csn:?} out of order")]
    OutOfOrder {
        /// The replica.
        replica: ReplicaId,
        /// The decision.
        csn: Csn,
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

/// Runs a workload through a protocol whose places are apart.
///
/// # Errors
/// If the profile does not fit the workload.
pub fn run(
    setup: &Setup<'_>,
    workload: &mut dyn Workload,
    protocol: Box<dyn Protocol>,
) -> Result<Outcome, RunError> {
    let mut simulation = Simulation::new(setup, workload, protocol)?;
    simulation.start();
    simulation.go_on();
    simulation.finish()
}

/// The same, with the protocol that configurations call so: for whoever does not use the core otherwise.
///
/// # Errors
/// As [`run`], and if there is no such protocol.
pub fn run_by_name(
    setup: &Setup<'_>,
    workload: &mut dyn Workload,
    protocol: &str,
) -> Result<Outcome, RunError> {
    run(setup, workload, apart_by_name(protocol, usize::from(setup.replicas), Csn(0))?)
}

/// Something that happens at an instant.
#[derive(Debug)]
enum Wake {
    /// A user's pause is over, or an answer arrives.
    User(u32),
    /// A user gets a connection.
    Connected(u32),
    /// An interaction arrives.
    Arrival,
    /// A user's request arrives at the scheduler.
    Request(u32),
    Message {
        from: Place,
        to: Place,
        message: Message,
    },
    Command {
        replica: ReplicaId,
        command: Command,
    },
    /// A database may have completed something.
    Completion(ReplicaId),
    Report {
        replica: ReplicaId,
        report: Report,
    },
    LogWritten,
    Timer {
        place: Place,
        timer: u64,
    },
    /// The warm-up is over.
    Measure,
}

struct Simulation<'a> {
    setup: &'a Setup<'a>,
    workload: &'a mut dyn Workload,
    protocol: Box<dyn Protocol>,
    /// Whether every replica executes every write.
    everywhere: bool,
    /// Whether every statement is a transaction by itself.
    alone: bool,
    /// Whether that is also what is promised of it, so that its history consists of statements.
    judged_alone: bool,
    /// Whether users are at the databases' machines instead of a scheduler's.
    at_peers: bool,
    queue: EventQueue<Wake>,
    trace: Trace,
    effects: Vec<Effect>,
    crowd: Crowd,
    classes: Classes,
    /// Where conflicts are counted on rows.
    items: Option<items::Items>,
    network: Network,
    /// Where times are drawn at random.
    times: Option<onecopy_workload::random::Random>,
    txns: HashMap<TxnId, Txn>,
    /// Writes that one database sent and another has not applied.
    shipped: HashMap<(TxnId, ReplicaId), Shipped>,
    last_txn: u64,
    last_version: Version,
    log: Log<Record>,
    replicas: Vec<Replica>,
    /// Where every replica executes and a history is wanted.
    own: Option<Own>,
    /// Where replicas apply one log.
    shared: Shared,
    recorder: Option<Recorder>,
    measured: Measured,
    /// What the protocol had counted when the measured part began.
    shared_before: [u64; 2],
    /// Interactions that users are in, by their place in the catalogue.
    in_progress: Vec<u64>,
    faults: Vec<Fault>,
}

impl<'a> Simulation<'a> {
    fn new(
        setup: &'a Setup<'a>,
        workload: &'a mut dyn Workload,
        mut protocol: Box<dyn Protocol>,
    ) -> Result<Simulation<'a>, RunError> {
        let catalogue = workload.catalogue();
        let classes = Classes::new(catalogue, setup.profile, setup.speed)?;
        let items = match setup.items {
            Items::Rows => Some(items::Items::parse(workload.items(), catalogue)?),
            Items::DeclaredTables | Items::Tables => None,
        };
        let replicas = usize::from(setup.replicas);
        let everywhere = protocol.writes() == Writes::Everywhere;
        if everywhere {
            protocol.engine_is(setup.engine);
        }
        let alone = protocol.statements() == Statements::Alone;
        debug_assert!(everywhere || protocol.position() == Position::Prefix);
        let server = |place| Server::new(setup.cpus, setup.discipline, place);
        let kinds = [catalogue.interactions.len(), catalogue.statements.len()];
        Ok(Simulation {
            setup,
            workload,
            everywhere,
            alone,
            judged_alone: alone && protocol.guarantee() != Guarantee::None,
            at_peers: protocol.has_clients_at_peers(),
            protocol,
            queue: EventQueue::default(),
            trace: Trace::new(setup.keep_trace),
            effects: Vec::new(),
            crowd: Crowd::new(
                setup.users,
                setup.connections,
                onecopy_workload::random::stream(setup.seed, ARRIVALS_STREAM),
            ),
            network: Network::new(setup.network, setup.seed),
            times: setup.uneven.then(|| onecopy_workload::random::stream(setup.seed, TIMES_STREAM)),
            txns: HashMap::default(),
            shipped: HashMap::default(),
            last_txn: 0,
            last_version: 0,
            log: Log::default(),
            replicas: (0..setup.replicas).map(|place| Replica::new(server(place))).collect(),
            own: (everywhere && setup.history)
                .then(|| Own::new(replicas, classes.tables, setup.engine.shows_uncommitted)),
            shared: Shared::default(),
            recorder: setup.history.then(Recorder::default),
            measured: Measured::new(setup.measured_ns, kinds, replicas, setup.cpus),
            shared_before: [0; 2],
            in_progress: vec![0; kinds[0]],
            faults: Vec::new(),
            items,
            classes,
        })
    }

    fn start(&mut self) {
        for replica in (0..self.setup.replicas).map(ReplicaId) {
            self.feed(Event::ReplicaUp { replica, applied: Csn(0) });
        }
        self.queue.schedule(Instant(self.setup.warm_up_ns), Wake::Measure);
        self.start_users();
    }

    fn go_on(&mut self) {
        let end = Instant(self.setup.warm_up_ns).plus_ns(self.setup.measured_ns);
        while self.queue.next_at().is_some_and(|next| next < end) {
            let Some(wake) = self.queue.pop() else { return };
            self.wake(wake);
        }
    }

    fn finish(mut self) -> Result<Outcome, RunError> {
        let end = Instant(self.setup.warm_up_ns).plus_ns(self.setup.measured_ns);
        for (replica, busy) in self.replicas.iter_mut().zip(&mut self.measured.replicas) {
            *busy = replica.server.take_busy(end);
        }
        self.close_all(end);
        self.measured.in_progress[1] = std::mem::take(&mut self.in_progress);
        let shared = self.shared();
        self.measured.shared = [0, 1].map(|at| shared[at] - self.shared_before[at]);
        Ok(Outcome {
            history: self.recorder.map(Recorder::finish).transpose()?,
            measured: self.measured,
            faults: self.faults,
            trace_hash: self.trace.hash(),
            trace: self.trace.into_text(),
            events: self.queue.scheduled(),
        })
    }

    fn wake(&mut self, wake: Wake) {
        match wake {
            Wake::User(user) => {
                self.mark("user", [u64::from(user), 0, 0]);
                self.on_user(user);
            }
            Wake::Connected(user) => {
                self.mark("connected", [u64::from(user), 0, 0]);
                self.on_connected(user);
            }
            Wake::Arrival => self.on_arrival(),
            Wake::Request(user) => self.on_request(user),
            Wake::Message { from, to, message } => self.feed_at(to, Event::Message { from, message }),
            Wake::Command { replica, command } => self.on_command(replica, command),
            Wake::Completion(replica) => self.on_completion(replica),
            Wake::Report { replica, report } => self.on_report(replica, report),
            Wake::LogWritten => self.on_log_written(),
            Wake::Timer { place, timer } => self.feed_at(place, Event::Timer { timer }),
            Wake::Measure => self.start_measuring(),
        }
    }

    fn start_measuring(&mut self) {
        let now = self.queue.now();
        for replica in &mut self.replicas {
            replica.server.take_busy(now);
        }
        let kinds = [self.measured.interactions.len(), self.measured.by_statement.len()];
        self.measured = Measured::new(self.setup.measured_ns, kinds, self.replicas.len(), self.setup.cpus);
        self.measured.in_progress[0].clone_from(&self.in_progress);
        self.shared_before = self.shared();
    }

    /// Statements about what several peers have, and those of them that write, so far.
    fn shared(&self) -> [u64; 2] {
        let status = self.protocol.status();
        [status.shared_accesses, status.shared_writes]
    }

    /// The machine that a user is connected to: users are dealt to peers one by one, and stay.
    fn front(&self, user: u32) -> Machine {
        match self.at_peers {
            true => Machine::Database(ReplicaId((user % u32::from(self.setup.replicas)) as u16)),
            false => Machine::Scheduler,
        }
    }

    /// Hands an event of a user to the core.
    fn feed_for(&mut self, user: u32, event: Event) {
        match self.front(user) {
            Machine::Database(replica) => self.feed_at(Place::Peer(NodeId(replica.0)), event),
            _ => self.feed(event),
        }
    }

    /// Hands an event to the core where it happens.
    fn feed(&mut self, event: Event) {
        let place = self.protocol.place_of(&event);
        self.feed_at(place, event);
    }

    /// Hands an event to the core, and carries out what comes of it, in order. Nothing that is carried out hands in
    /// another event at once: that takes a message or a job.
    fn feed_at(&mut self, place: Place, event: Event) {
        let now = self.queue.now();
        if self.setup.keep_trace {
            self.trace.remark(now, "event", format_args!("{place:?} {event:?}"));
        }
        let mut effects = std::mem::take(&mut self.effects);
        self.protocol.handle(place, now, event, &mut effects);
        for effect in effects.drain(..) {
            if self.setup.keep_trace {
                self.trace.remark(now, "  effect", format_args!("{effect:?}"));
            }
            self.carry_out(place, effect);
        }
        self.effects = effects;
    }

    /// Carries out one order of the core, given at a place.
    fn carry_out(&mut self, place: Place, effect: Effect) {
        match effect {
            Effect::Execute { txn, op, replica, how, hold } => {
                self.mark("execute", [txn.0, u64::from(op.0), u64::from(replica.0)]);
                self.command(place, replica, Command::Statement { txn, op, how, hold });
            }
            Effect::Release { txn, op, replica } => {
                self.mark("release", [txn.0, u64::from(op.0), u64::from(replica.0)]);
                self.release(txn, op, replica);
            }
            Effect::Revalidate { txn, replica, .. } => {
                self.command(place, replica, Command::Revalidate { txn });
            }
            Effect::Leave { txn, replica } => self.command(place, replica, Command::Leave { txn }),
            Effect::Finish { txn, op, .. } => {
                self.mark("finish", [txn.0, 0, 0]);
                self.answer_committed(txn, op, place.into());
            }
            Effect::Refuse { txn, reason, .. } => {
                self.mark("refuse", [txn.0, 0, 0]);
                self.refuse(txn, reason);
            }
            Effect::Append { csn, decision } => {
                self.mark("append", [csn.0, 0, 0]);
                self.on_append(csn, &decision);
            }
            Effect::CommitAt { txn, replica, csn } => {
                self.mark("commit", [txn.0, csn.0, u64::from(replica.0)]);
                self.command(place, replica, Command::Commit { txn, csn });
            }
            Effect::Apply { replica, from, to } => {
                self.mark("apply", [u64::from(replica.0), from.0, to.0]);
                self.command(place, replica, Command::Apply { from, to });
            }
            Effect::Acknowledge { txn, op, .. } => {
                self.mark("answer", [txn.0, 0, 0]);
                self.answer_committed(txn, op, place.into());
            }
            Effect::Send { to, message } => {
                self.count_message(place.into(), to.into());
                let mut at = self.network.arrival(self.queue.now(), place.into(), to.into());
                if place == Place::Sequencer {
                    // The other schedulers learn of the number and acknowledge it, before it is used (CAS 5.2).
                    at = at.plus_ns(self.tell_schedulers());
                }
                self.queue.schedule(at, Wake::Message { from: place, to, message });
            }
            Effect::SetTimer { timer, at } => self.queue.schedule(at, Wake::Timer { place, timer }),
            Effect::Forget { txn } => self.forget(txn),
            Effect::Notice { notice: Notice::EveryTableLocked, .. } => self.measured.every_table_locked += 1,
            Effect::Ship { txn, to: Place::Peer(node), message } => {
                self.ship(txn, ReplicaId(node.0));
                self.carry_out(place, Effect::Send { to: Place::Peer(node), message });
            }
            Effect::ApplyShipped { origin, txn, replica } => self.apply_shipped(txn, origin, replica),
            Effect::Values { txn, .. }
            | Effect::Withdraw { txn, .. }
            | Effect::Ship { txn, .. }
            | Effect::ExecuteAt { txn, .. }
            | Effect::PassOver { txn, .. }
            | Effect::Multicast { txn, .. } => {
                self.fault(Fault::Senseless {
                    txn,
                    what: "gives values, withdraws statements, passes over updates or tells everybody, for which nobody asks here",
                });
            }
        }
    }

    fn count_message(&mut self, from: Machine, to: Machine) {
        let messages = &mut self.measured.messages;
        messages.from_scheduler += u64::from(from == Machine::Scheduler);
        messages.to_scheduler += u64::from(to == Machine::Scheduler);
        let is_database = |machine| matches!(machine, Machine::Database(_));
        messages.between_databases += u64::from(is_database(from) && is_database(to));
    }

    /// Other schedulers are told something, where there are any, and acknowledge it. Returns how long that takes, in
    /// nanoseconds.
    fn tell_schedulers(&mut self) -> u64 {
        let Durability::Replicated(schedulers) = self.setup.durability else { return 0 };
        let others = u64::from(schedulers.saturating_sub(1));
        self.measured.messages.from_scheduler += others;
        self.measured.messages.to_scheduler += others;
        2 * self.network.hop_ns()
    }

    fn mark(&mut self, kind: &'static str, numbers: [u64; 3]) {
        self.trace.mark(self.queue.now(), kind, numbers);
    }

    fn fault(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }
}

#[cfg(test)]
mod tests;
