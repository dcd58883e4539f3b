//! How transactions that arrive whole are run.

use onecopy_core::{Instant, NodeId, Place, ReplicaId};
use onecopy_workload::random::{self, Random};

/// One run.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// Decides everything that is drawn at random, but for what arrives.
    pub seed: u64,
    /// Workers.
    pub workers: u16,
    /// Transactions a second, on average.
    pub rate: f64,
    /// When they arrive.
    pub arrivals: Arrivals,
    /// For how long they arrive, in nanoseconds.
    pub load_ns: u64,
    /// How long a message takes between the scheduler and a worker, or two workers.
    pub message: Drawn,
    /// Whether schedulers and workers are at several sites.
    pub apart: Option<Apart>,
    /// How much longer it takes until the scheduler hears what is to be certified: agreement among several of its kind.
    pub agreement: Option<Drawn>,
    /// How long a worker takes to apply a write set, in nanoseconds.
    pub apply_ns: u64,
    /// How often durations are drawn.
    pub durations: Durations,
    /// Every duration is multiplied by this.
    pub duration_factor: f64,
    /// Whether workers are equally fast.
    pub speeds: Speeds,
    /// Whether the protocol lets several workers execute the same at a time.
    pub executes_redundantly: bool,
    /// How often it is noted who is busy, in nanoseconds.
    pub sample_ns: u64,
    /// Whether what clients saw is recorded, for the checker.
    pub history: bool,
}

impl Setup {
    /// The defaults of Gargamel's Table I: 100 workers, 150 transactions a second for 28 s, 0.06 ms a message, write sets applied in no time.
    #[must_use]
    pub fn gargamel(seed: u64) -> Setup {
        Setup {
            seed,
            workers: 100,
            rate: 150.0,
            arrivals: Arrivals::AtRandom,
            load_ns: 28_000_000_000,
            message: Drawn { ns: 60_000.0, variance: 0.005 },
            apart: None,
            agreement: None,
            apply_ns: 0,
            durations: Durations::Once,
            duration_factor: 1.0,
            speeds: Speeds::Equal,
            executes_redundantly: false,
            sample_ns: 250_000_000,
            history: false,
        }
    }
}

/// Sites with a scheduler each, to which workers belong in turn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Apart {
    /// How many.
    pub sites: u16,
    /// How long a message takes from one to another.
    pub message: Drawn,
}

impl Apart {
    /// Where something is.
    #[must_use]
    pub fn site_of(self, place: Place) -> u16 {
        match place {
            Place::Proxy(worker) => worker.0 % self.sites,
            Place::Scheduler(NodeId(site)) | Place::Peer(NodeId(site)) => site % self.sites,
            Place::Sequencer => 0,
        }
    }
}

/// When transactions arrive.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrivals {
    /// Each after a time drawn from a negative exponential distribution, so that the rate is a mean.
    AtRandom,
    /// Each as long after the one before.
    Evenly,
    /// As at random, at a rate that rises and falls, as between night and day.
    InWaves(Waves),
}

/// A rate that rises from its lowest to its highest and falls again, as a cosine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Waves {
    /// From one lowest rate to the next, in nanoseconds; the first is at the beginning.
    pub period_ns: u64,
    /// By which part of the mean it rises above and falls below that, from 0 to 1.
    pub depth: f64,
}

impl Waves {
    /// The highest rate, of a mean one.
    #[must_use]
    pub fn highest(self, mean: f64) -> f64 {
        mean * (1.0 + self.depth)
    }

    /// The rate at an instant, of a mean one.
    #[must_use]
    pub fn rate_at(self, mean: f64, at: Instant) -> f64 {
        let turns = at.0 as f64 / self.period_ns as f64;
        mean * (1.0 - self.depth * (std::f64::consts::TAU * turns).cos())
    }
}

/// How often it is drawn how long a transaction takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durations {
    /// Once: what runs again takes as long again.
    Once,
    /// For each execution. The first one counts as what the transaction takes.
    Anew,
    /// Never: each takes the mean.
    Means,
}

/// How fast workers are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Speeds {
    /// All the same.
    Equal,
    /// Each second one takes so many times as long.
    EachSecond(f64),
}

impl Speeds {
    /// How many times as long as a transaction takes it takes at a worker.
    #[must_use]
    pub fn factor_of(self, worker: ReplicaId) -> f64 {
        match self {
            Speeds::EachSecond(factor) if worker.0 % 2 == 1 => factor,
            Speeds::Equal | Speeds::EachSecond(_) => 1.0,
        }
    }
}

/// A time from a normal distribution: so many nanoseconds times a draw with mean 1 and this variance.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Drawn {
    /// The mean, in nanoseconds.
    pub ns: f64,
    /// The variance of the factor.
    pub variance: f64,
}

impl Drawn {
    /// A time, in nanoseconds, of at least a hundredth of the mean.
    #[must_use]
    pub fn draw_ns(self, random: &mut Random) -> u64 {
        (self.ns * random::normal(random, 1.0, self.variance.sqrt()).max(0.01)) as u64
    }
}
