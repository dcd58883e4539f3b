//! The driver of transactions that arrive whole: the real core between arrivals and workers, in virtual time.
//!
//! For protocols that know beforehand what a transaction may write, or find out when it has run, and execute it at one worker
//! (docs/protocols/chains.md). A transaction is one job: it takes its worker for a time. Workers execute one at a time, send what
//! was written to all others, and nothing breaks, unless [`run_failing`] is asked for it. Arrivals come at a rate for a time; the run ends when everything is committed.
//! One thread and one queue of events, so the same setup gives the same run.
//!
//! A [`Source`] says what arrives and a [`Setup`] how it is run; `contents` is what workers hold, `measure` what came of it. In `failures` replicas
//! fail, and in `elastic` workers are hired and released.

mod contents;
mod elastic;
mod failures;
mod measure;
mod setup;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use onecopy_core::certification;
use onecopy_core::effect::{Decision, Effect};
use onecopy_core::map::HashMap;
use onecopy_core::{
    Access, AccessSet, Begin, ClassId, Csn, Event, Instant, Message, OpId, Place, Protocol, ReplicaId,
    SessionId, Statement, StatementKind, TxnId,
};
use onecopy_workload::random::{self, Random};
use thiserror::Error;

use crate::check::{History, MalformedHistory};
use crate::clock::EventQueue;

pub use elastic::Elastic;
pub use failures::Failing;
pub use measure::{Committed, Measured, Sample, Scaled};
pub use setup::{Apart, Arrivals, Drawn, Durations, Setup, Speeds, Waves};

use contents::{Contents, Recorder};
use elastic::Scaling;
use failures::{Failures, Happening};

/// Streams of the seed that no source has.
const ARRIVALS_STREAM: u64 = u64::MAX;
const NETWORK_STREAM: u64 = u64::MAX - 1;
const DURATIONS_STREAM: u64 = u64::MAX - 2;
// The one before is that of failures.
const DRAWN_ANEW_STREAM: u64 = u64::MAX - 4;
/// Faults that are kept; whoever has so many has the same one many times.
const FAULTS_MAX: usize = 100;

/// A transaction as it arrives.
#[derive(Clone, PartialEq, Debug)]
pub struct Arriving {
    /// What kind it is.
    pub kind: u64,
    /// Whether it may write.
    pub updates: bool,
    /// What a classifier says of it before it runs.
    pub foreseen: AccessSet,
    /// What it writes when it runs.
    pub written: Vec<Access>,
    /// How long it takes at a worker.
    pub duration: Drawn,
    /// For a history: registers that it reads, and those that it writes then.
    pub reads: Vec<u64>,
    /// See `reads`.
    pub writes: Vec<u64>,
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
}

/// A bug that shows itself.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// A worker was told to execute two transactions at once.
    #[error("{worker:?} is to execute {txn:?} while it executes {other:?}")]
    TwoAtOnce {
        /// The worker.
        worker: ReplicaId,
        /// The transaction.
        txn: TxnId,
        /// The one that it executes.
        other: TxnId,
    },
    /// A transaction began where something was missing that conflicts with it and was committed elsewhere before.
    #[error("{worker:?} began {txn:?}, which was committed, without {missing:?}, which conflicts with it")]
    LostUpdate {
        /// The worker.
        worker: ReplicaId,
        /// The transaction.
        txn: TxnId,
        /// What it overwrote without having seen it.
        missing: TxnId,
    },
    /// Something that was written is not what was foreseen.
    #[error("{txn:?} wrote what nobody had foreseen: {what}")]
    Unforeseen {
        /// The transaction.
        txn: TxnId,
        /// What it wrote.
        what: String,
    },
    /// A transaction never ended.
    #[error("{txn:?} was never answered")]
    Stuck {
        /// The transaction.
        txn: TxnId,
    },
    /// Workers do not contain the same in the end.
    #[error("{worker:?} differs from the first worker in register {register}")]
    Differs {
        /// The worker.
        worker: ReplicaId,
        /// Where.
        register: u64,
    },
    /// A replica contains what is not durable.
    #[error("{worker:?} contains {txn:?}, which is not durable")]
    NotDurable {
        /// The worker.
        worker: ReplicaId,
        /// The transaction.
        txn: TxnId,
    },
    /// A client hears of a commit that is not durable.
    #[error("{txn:?} is acknowledged, and is not durable")]
    AcknowledgedEarly {
        /// The transaction.
        txn: TxnId,
    },
    /// A replica contains an update without one that came before it at its worker, or that its worker contained.
    #[error("{worker:?} contains {txn:?} without {missing:?}, which that has seen")]
    OutOfOrder {
        /// The worker.
        worker: ReplicaId,
        /// The transaction.
        txn: TxnId,
        /// What it has seen.
        missing: TxnId,
    },
    /// A replica contains updates of one register in another order than the one in which they saw each other.
    #[error("{worker:?} contained something else than {txn:?} had overwritten")]
    OrderDiffers {
        /// The worker.
        worker: ReplicaId,
        /// The transaction.
        txn: TxnId,
    },
    /// A replica lacks an update in the end.
    #[error("{worker:?} lacks {txn:?}, which is committed")]
    Missing {
        /// The worker.
        worker: ReplicaId,
        /// The transaction.
        txn: TxnId,
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
    Message { from: Place, to: Place, message: Message },
    Executed { worker: ReplicaId, life: u32, txn: TxnId, op: OpId },
    Happens(Happening),
    Applied { origin: Place, txn: TxnId, worker: ReplicaId },
    Sample,
    Scale,
}

#[derive(Debug)]
struct Txn {
    arriving: Arriving,
    arrived: Instant,
    /// Of the first execution.
    duration_ns: u64,
    executions: u32,
    answered: bool,
}

/// Runs what arrives through a protocol whose places are apart.
///
/// # Errors
/// If the history makes no sense, which is a fault of this driver.
pub fn run(
    setup: &Setup,
    source: &mut dyn Source,
    protocol: Box<dyn Protocol>,
) -> Result<Outcome, MalformedHistory> {
    Simulation::new(setup, None, None, source, protocol).run()
}

/// The same, and replicas fail.
///
/// # Errors
/// If the history makes no sense, which is a fault of this driver.
pub fn run_failing(
    setup: &Setup,
    failing: &Failing,
    source: &mut dyn Source,
    protocol: Box<dyn Protocol>,
) -> Result<Outcome, MalformedHistory> {
    Simulation::new(setup, Some(failing), None, source, protocol).run()
}

/// Workers come and go as they are worth what they cost; `setup.workers` are there from the beginning. Replicas fail if they are to.
///
/// # Errors
/// If the history makes no sense, which is a fault of this driver.
///
/// # Panics
/// If the protocol's workers stay.
pub fn run_elastic(
    setup: &Setup,
    elastic: &Elastic,
    failing: Option<&Failing>,
    source: &mut dyn Source,
    protocol: Box<dyn Protocol>,
) -> Result<Outcome, MalformedHistory> {
    assert!(protocol.changes_replicas(), "{} has as many workers as it begins with", protocol.name());
    let failing = failing.unwrap_or(&Failing::NEVER);
    Simulation::new(setup, Some(failing), Some(elastic), source, protocol).run()
}

struct Simulation<'a> {
    setup: &'a Setup,
    source: &'a mut dyn Source,
    protocol: Box<dyn Protocol>,
    queue: EventQueue<Wake>,
    /// Events that wait until the effects of the one before are carried out.
    feeds: VecDeque<(Place, Event)>,
    feeding: bool,
    arrivals: Random,
    network: Random,
    durations: Random,
    drawn_anew: Random,
    /// When the last message between two places arrives: they do not overtake each other.
    channels: HashMap<(Place, Place), Instant>,
    txns: Vec<Txn>,
    open: u64,
    executing: Vec<Option<(TxnId, OpId)>>,
    contents: Contents,
    failures: Option<Failures<'a>>,
    scaling: Option<Scaling>,
    recorder: Option<Recorder>,
    measured: Measured,
    busy: u64,
    faults: Vec<Fault>,
}

impl<'a> Simulation<'a> {
    fn new(
        setup: &'a Setup,
        failing: Option<&'a Failing>,
        elastic: Option<&Elastic>,
        source: &'a mut dyn Source,
        protocol: Box<dyn Protocol>,
    ) -> Simulation<'a> {
        let workers = usize::from(setup.workers);
        Simulation {
            setup,
            source,
            protocol,
            queue: EventQueue::default(),
            feeds: VecDeque::new(),
            feeding: false,
            arrivals: random::stream(setup.seed, ARRIVALS_STREAM),
            network: random::stream(setup.seed, NETWORK_STREAM),
            durations: random::stream(setup.seed, DURATIONS_STREAM),
            drawn_anew: random::stream(setup.seed, DRAWN_ANEW_STREAM),
            channels: HashMap::default(),
            txns: Vec::new(),
            open: 0,
            executing: vec![None; workers],
            contents: Contents::new(workers),
            failures: failing.map(|how| Failures::new(how, setup.seed, setup.workers)),
            scaling: elastic.map(Scaling::new),
            recorder: setup.history.then(Recorder::default),
            measured: Measured::new(setup.load_ns),
            busy: 0,
            faults: Vec::new(),
        }
    }

    fn run(mut self) -> Result<Outcome, MalformedHistory> {
        // Who comes last is used first.
        for replica in (0..self.setup.workers).rev().map(ReplicaId) {
            self.feed_at_home(Event::ReplicaUp { replica, applied: Csn(0) });
        }
        self.queue.schedule(Instant(0), Wake::Sample);
        self.schedule_arrival();
        self.start_failures();
        if let Some(scaling) = &self.scaling {
            self.queue.schedule(Instant(scaling.every_ns()), Wake::Scale);
        }
        while let Some(wake) = self.queue.pop() {
            self.on_wake(wake);
        }
        self.finish()
    }

    fn schedule_arrival(&mut self) {
        let at = match self.setup.arrivals {
            Arrivals::AtRandom => self.draw_arrival(self.queue.now(), self.setup.rate),
            Arrivals::Evenly => self.queue.now().plus_ns((1e9 / self.setup.rate) as u64),
            Arrivals::InWaves(waves) => {
                // Drawn at the highest rate, of which those are left out that are too many.
                let highest = waves.highest(self.setup.rate);
                let mut at = self.draw_arrival(self.queue.now(), highest);
                while random::unit(&mut self.arrivals) * highest > waves.rate_at(self.setup.rate, at) {
                    at = self.draw_arrival(at, highest);
                }
                at
            }
        };
        if at.0 < self.setup.load_ns {
            self.queue.schedule(at, Wake::Arrival);
        }
    }

    fn draw_arrival(&mut self, after: Instant, rate: f64) -> Instant {
        let gaps = -(1.0 - random::unit(&mut self.arrivals)).ln();
        after.plus_ns((gaps / rate * 1e9) as u64)
    }

    fn on_wake(&mut self, wake: Wake) {
        match wake {
            Wake::Arrival => {
                self.arrive();
                self.schedule_arrival();
            }
            Wake::Message { from, to, message } => self.feed(to, Event::Message { from, message }),
            Wake::Executed { worker, life, txn, op } => self.on_executed(worker, life, txn, op),
            Wake::Happens(happening) => self.on_happening(happening),
            Wake::Applied { origin, txn, worker } => self.on_applied(origin, txn, worker),
            Wake::Sample => self.sample(),
            Wake::Scale => self.scale(),
        }
    }

    fn arrive(&mut self) {
        let arriving = self.source.next();
        let duration_ns = match self.setup.durations {
            Durations::Once | Durations::Anew => arriving.duration.draw_ns(&mut self.durations),
            Durations::Means => arriving.duration.ns as u64,
        };
        let duration_ns = (duration_ns as f64 * self.setup.duration_factor) as u64;
        let txn = TxnId(self.txns.len() as u64);
        let kind = if arriving.updates { StatementKind::Write } else { StatementKind::Read };
        let begin = Begin {
            txn,
            session: SessionId(txn.0),
            read_only: !arriving.updates,
            form: arriving.kind,
            declared: None,
            stale_ok_ns: None,
        };
        let statement = Statement::new(ClassId(arriving.kind), kind, arriving.foreseen.clone());
        self.expect_foreseen(txn, &arriving);
        let arrived = self.queue.now();
        self.txns.push(Txn { arriving, arrived, duration_ns, executions: 0, answered: false });
        self.open += 1;
        let event = Event::Autocommit { begin, statement };
        self.feed(self.protocol.place_of(&event), event);
    }

    /// Whatever is written was foreseen: a classifier may foresee too much, and never too little.
    fn expect_foreseen(&mut self, txn: TxnId, arriving: &Arriving) {
        let is_unforeseen = |written: &&Access| {
            let of = |foreseen: &Access| {
                let names =
                    |(column, value)| foreseen.item.equals.iter().all(|(c, v)| *c != column || *v == value);
                foreseen.item.table == written.item.table
                    && foreseen.item.space == written.item.space
                    && foreseen.mode.covers(written.mode)
                    && foreseen.columns.contains(written.columns)
                    && written.item.equals.iter().copied().all(names)
                    && foreseen
                        .item
                        .equals
                        .iter()
                        .all(|(c, _)| written.item.equals.iter().any(|(w, _)| w == c))
            };
            !arriving.foreseen.iter().any(of)
        };
        if let Some(what) = arriving.written.iter().find(is_unforeseen) {
            self.fault(Fault::Unforeseen { txn, what: format!("{what:?}") });
        }
    }

    fn feed(&mut self, place: Place, event: Event) {
        self.feeds.push_back((place, event));
        if std::mem::replace(&mut self.feeding, true) {
            return;
        }
        let mut effects = Vec::new();
        while let Some((place, event)) = self.feeds.pop_front() {
            self.protocol.handle(place, self.queue.now(), event, &mut effects);
            for effect in effects.drain(..) {
                self.carry_out(place, effect);
            }
        }
        self.feeding = false;
    }

    /// Hears of something at once, after what is heard now.
    fn feed_at_home(&mut self, event: Event) {
        let place = self.protocol.place_of(&event);
        self.feed(place, event);
    }

    fn carry_out(&mut self, place: Place, effect: Effect) {
        match effect {
            Effect::Execute { txn, op, replica, .. } => self.execute(txn, op, replica),
            Effect::Append { .. }
            | Effect::CommitAt { .. }
            | Effect::Acknowledge { .. }
            | Effect::Release { .. }
            | Effect::ApplyShipped { .. }
            | Effect::Apply { .. }
                if self.failures.is_some() =>
            {
                self.carry_out_failing(place, &effect);
            }
            Effect::Append { csn, decision } => {
                if let (Decision::Commit(txn), Place::Proxy(worker)) = (decision, place) {
                    self.decide(txn, worker);
                }
                self.feed_at_home(Event::Durable { csn });
            }
            Effect::CommitAt { txn, replica, csn } => {
                self.contents.apply(txn, replica);
                self.feed_at_home(Event::Applied { replica, csn });
            }
            Effect::Acknowledge { txn, .. } => self.on_committed(txn),
            Effect::Leave { txn, replica } => self.leave(txn, replica),
            Effect::Release { .. } => {}
            Effect::Send { to, message } | Effect::Ship { to, message, .. } => self.send(place, to, message),
            Effect::ApplyShipped { origin, txn, replica } => match self.setup.apply_ns {
                0 => self.on_applied(origin, txn, replica),
                ns => {
                    let at = self.queue.now().plus_ns(ns);
                    self.queue.schedule(at, Wake::Applied { origin, txn, worker: replica });
                }
            },
            Effect::Finish { txn, .. }
            | Effect::Refuse { txn, .. }
            | Effect::Revalidate { txn, .. }
            | Effect::Withdraw { txn, .. }
            | Effect::Values { txn, .. }
            | Effect::Forget { txn }
            | Effect::PassOver { txn, .. }
            | Effect::Multicast { txn, .. }
            | Effect::ExecuteAt { txn, .. }
            | Effect::Notice { txn, .. } => {
                self.senseless(txn, "is given an order that whole transactions have no use for")
            }
            Effect::Apply { .. } | Effect::SetTimer { .. } => {
                self.senseless(TxnId(0), "is given an order that whole transactions have no use for");
            }
        }
    }

    fn send(&mut self, from: Place, to: Place, message: Message) {
        let message_ns = match self.setup.apart {
            Some(apart) if apart.site_of(from) != apart.site_of(to) => apart.message,
            _ => self.setup.message,
        };
        let mut at = self.queue.now().plus_ns(message_ns.draw_ns(&mut self.network));
        if let (Message::Certification(certification::Message::Certify { .. }), Some(agreement)) =
            (&message, self.setup.agreement)
        {
            at = at.plus_ns(agreement.draw_ns(&mut self.network));
        }
        let last = self.channels.entry((from, to)).or_insert(Instant(0));
        let at = at.max(last.plus_ns(1));
        *last = at;
        self.queue.schedule(at, Wake::Message { from, to, message });
    }

    fn execute(&mut self, txn: TxnId, op: OpId, worker: ReplicaId) {
        if !self.may_execute(txn, worker) {
            return;
        }
        let Some(executing) = self.executing.get_mut(usize::from(worker.0)) else {
            return self.senseless(txn, "is to run at a worker that there is not");
        };
        if let Some((other, _)) = executing.replace((txn, op)) {
            self.fault(Fault::TwoAtOnce { worker, txn, other });
        }
        self.count_busy(1);
        let of = &mut self.txns[txn.0 as usize];
        of.executions += 1;
        let drawn_anew = of.executions > 1 && self.setup.durations == Durations::Anew;
        let drawn_ns = drawn_anew.then(|| of.arriving.duration.draw_ns(&mut self.drawn_anew));
        let ns = drawn_ns.map_or(of.duration_ns, |ns| (ns as f64 * self.setup.duration_factor) as u64);
        let ns = (ns as f64 * self.setup.speeds.factor_of(worker)) as u64;
        self.contents.begin(txn, worker, &of.arriving.reads, &of.arriving.writes);
        let life = self.life(worker);
        self.queue.schedule(self.queue.now().plus_ns(ns), Wake::Executed { worker, life, txn, op });
    }

    /// An execution comes to nothing, and ends if it has not.
    fn leave(&mut self, txn: TxnId, worker: ReplicaId) {
        self.measured.executed_in_vain += 1;
        self.contents.give_up(txn, worker);
        self.forget_failure(txn);
        if self.executing[usize::from(worker.0)].take_if(|(other, _)| *other == txn).is_some() {
            self.count_busy(-1);
        }
    }

    fn on_executed(&mut self, worker: ReplicaId, life: u32, txn: TxnId, op: OpId) {
        let is_past = self.life(worker) != life;
        let is_it = |other: &mut (TxnId, OpId)| *other == (txn, op);
        if is_past || self.executing[usize::from(worker.0)].take_if(is_it).is_none() {
            return;
        }
        self.count_busy(-1);
        let Txn { arriving, duration_ns, .. } = &self.txns[txn.0 as usize];
        let (updates, elapsed_ns) = (arriving.updates, *duration_ns);
        let outcome = onecopy_core::Outcome::Done { returned: arriving.written.clone() };
        let outcome = self.outcome(txn, worker, outcome);
        if !updates && matches!(outcome, onecopy_core::Outcome::Done { .. }) {
            self.contents.settle(txn, worker);
            self.on_committed(txn);
        }
        self.feed_at_home(Event::Executed { txn, op, replica: worker, outcome, elapsed_ns });
    }

    pub(super) fn decide(&mut self, txn: TxnId, worker: ReplicaId) {
        if let Some(missing) = self.contents.decide(txn, worker) {
            self.fault(Fault::LostUpdate { worker, txn, missing });
        }
    }

    fn on_applied(&mut self, origin: Place, txn: TxnId, worker: ReplicaId) {
        self.contents.apply(txn, worker);
        self.feed_at_home(Event::ShippedApplied { origin, txn, replica: worker });
    }

    fn on_committed(&mut self, txn: TxnId) {
        if !self.on_answered(txn) {
            return;
        }
        let of = &self.txns[txn.0 as usize];
        let now = self.queue.now();
        self.measured.committed.push(Committed {
            kind: of.arriving.kind,
            updates: of.arriving.updates,
            arrived: of.arrived,
            committed: now,
            duration_ns: of.duration_ns,
            executions: of.executions,
        });
        if let Some(recorder) = &mut self.recorder {
            recorder.committed(txn, of.arrived, now, self.contents.seen(txn), &of.arriving);
        }
    }

    /// Returns whether its client had not heard of it before.
    fn on_answered(&mut self, txn: TxnId) -> bool {
        let is_first = !std::mem::replace(&mut self.txns[txn.0 as usize].answered, true);
        match is_first {
            true => self.open -= 1,
            false => self.senseless(txn, "is answered twice"),
        }
        is_first
    }

    fn count_busy(&mut self, change: i64) {
        self.busy = self.busy.saturating_add_signed(change);
    }

    fn sample(&mut self) {
        let status = self.protocol.status();
        let at = self.queue.now();
        self.measured.samples.push(Sample {
            at,
            busy: self.busy,
            occupied: status.occupied_workers,
            awaiting_worker: status.awaiting_worker,
            open: self.open,
        });
        if self.goes_on() {
            self.queue.schedule(at.plus_ns(self.setup.sample_ns), Wake::Sample);
        }
    }

    /// Asked by whoever looks at it from time to time, of whom there may be another one. If nothing else is to happen any more,
    /// whatever is open is so for ever.
    fn goes_on(&self) -> bool {
        let looks = u64::from(self.scaling.is_some());
        self.open > 0 && self.queue.awaited() > looks || self.queue.now().0 < self.setup.load_ns
    }

    fn staying(&self) -> Vec<ReplicaId> {
        match &self.failures {
            Some(failures) => failures.staying().collect(),
            None => (0..self.setup.workers).map(ReplicaId).collect(),
        }
    }

    fn finish(mut self) -> Result<Outcome, MalformedHistory> {
        let stuck = self.txns.iter().position(|txn| !txn.answered);
        let missing = self.failures.as_ref().and_then(Failures::first_missing);
        if let Some(txn) = stuck {
            self.faults.push(Fault::Stuck { txn: TxnId(txn as u64) });
        } else if let Some((worker, txn)) = missing {
            self.faults.push(Fault::Missing { worker, txn });
        } else if let Some((worker, register)) = self.contents.first_difference(&self.staying()) {
            self.faults.push(Fault::Differs { worker, register });
        }
        let history = self.recorder.take().map(Recorder::finish).transpose()?;
        let events = self.queue.scheduled();
        Ok(Outcome { measured: self.measured, history, faults: self.faults, events })
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
