//! One experiment: a system, a rate of transactions, so many workers.

use std::collections::BTreeSet;
use std::fmt;

use onecopy_core::certification::{self, Placement, Retry};
use onecopy_core::protocol::{UnknownProtocol, WHOLE, whole_by_name};
use onecopy_core::{Csn, Instant, Protocol};
use onecopy_sim::whole::{Arrivals, Drawn, Durations, Fault, Measured, Setup, run};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::supplier::{Judge, Supplier};
use crate::variation::Variation;

/// Warehouses of the supplier (Gargamel, Table I).
const WAREHOUSES: i64 = 10;
/// What Tashkent+ gains by reading less from disk (Gargamel, IV.B).
const TASHKENT_FACTOR: f64 = 0.9;
/// What it takes until those who may decide agree (Gargamel, Table I).
const CONSENSUS: Drawn = Drawn { ns: 180e6, variance: 0.01 };
/// Over so long a time throughput is looked at where the highest is meant.
const WINDOW_NS: u64 = 4_000_000_000;
/// A penalty ratio of which the paper says how many stay below it (V-A).
const PENALTY: f64 = 4.0;

/// What is run, but for its seed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WholeExperiment {
    /// The protocol.
    pub system: &'static str,
    /// Transactions a second.
    pub rate: u32,
    /// Workers.
    pub workers: u16,
    /// In what else it differs.
    pub variations: BTreeSet<Variation>,
}

/// A protocol's name that nobody has.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("no system for whole transactions is called {name}: choose one of {}", WHOLE.join(", "))]
pub struct UnknownWholeSystem {
    /// What was asked for.
    pub name: String,
}

/// A run of which the figures say nothing.
#[derive(Debug, Error)]
#[error("run {experiment}: {what}; please report this, it is a bug")]
pub struct WholeError {
    experiment: WholeExperiment,
    what: String,
}

/// A figure of an experiment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WholeMetric {
    /// Commits a second while transactions arrive.
    Throughput,
    /// Commits a second from then until the end.
    ThroughputAfterwards,
    /// The highest commits a second over four seconds.
    Highest,
    /// The same of those that may write.
    HighestOfUpdates,
    /// Mean time from arrival to commit of those that may write, in seconds.
    UpdateResponse,
    /// Mean penalty ratio.
    Penalty,
    /// Of 100 transactions so many have a penalty ratio of at most 4.
    PenaltyUpTo4,
    /// All durations over the time until the last commit.
    SpeedUp,
    /// That time, in seconds.
    Total,
    /// Workers that are busy, so not free for others, when the last transaction arrives.
    Busy,
    /// The most workers that are busy at once while transactions arrive: what is paid for each hour, at 1 euro a worker.
    Cost,
    /// Mean of workers that are busy over the first half of the time after that.
    BusyAfterwards,
    /// Mean of transactions that find no worker while transactions arrive.
    Queue,
    /// Executions that are given up, for each transaction.
    InVain,
}

/// What came of an experiment with one seed. The names are those of columns in `whole.csv`.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are those of WholeMetric")]
pub struct WholeFigures {
    pub throughput: f64,
    pub throughput_afterwards: f64,
    pub highest: f64,
    pub highest_of_updates: f64,
    pub update_response_s: f64,
    pub penalty: f64,
    pub penalty_up_to_4: f64,
    pub speed_up: f64,
    pub total_s: f64,
    pub busy: f64,
    pub cost: f64,
    pub busy_afterwards: f64,
    pub queue: f64,
    pub in_vain: f64,
}

impl WholeExperiment {
    /// A system at a rate, with so many workers.
    ///
    /// # Errors
    /// If there is no such system.
    pub fn new(system: &str, rate: u32, workers: u16) -> Result<WholeExperiment, UnknownWholeSystem> {
        let known = WHOLE.into_iter().find(|known| *known == system);
        let system = known.ok_or_else(|| UnknownWholeSystem { name: system.to_owned() })?;
        Ok(WholeExperiment { system, rate, workers, variations: BTreeSet::new() })
    }

    fn has(&self, variation: Variation) -> bool {
        self.variations.contains(&variation)
    }

    /// What Tashkent+ takes of a duration.
    fn duration_factor(&self) -> f64 {
        let is_discounted = self.system == "tashkent_plus" && !self.has(Variation::NoDiscount);
        if is_discounted { TASHKENT_FACTOR } else { 1.0 }
    }

    fn setup(&self, seed: u64) -> Setup {
        Setup {
            rate: f64::from(self.rate),
            workers: self.workers,
            arrivals: if self.has(Variation::EvenArrivals) { Arrivals::Evenly } else { Arrivals::AtRandom },
            durations: match () {
                () if self.has(Variation::MeanDurations) => Durations::Means,
                () if self.has(Variation::DrawnAnew) => Durations::Anew,
                () => Durations::Once,
            },
            duration_factor: self.duration_factor(),
            agreement: self.has(Variation::Consensus).then_some(CONSENSUS),
            ..Setup::gargamel(seed)
        }
    }

    fn protocol(&self) -> Result<Box<dyn Protocol>, UnknownProtocol> {
        let (workers, decided) = (usize::from(self.workers), Csn(0));
        let placement = match self.system {
            "round_robin" | "tashkent_plus" if self.has(Variation::OneQueue) => Placement::OneQueue,
            "round_robin" => Placement::Turns,
            "tashkent_plus" => Placement::Groups,
            _ => return whole_by_name(self.system, workers, decided),
        };
        let retry = if self.has(Variation::RetryLast) { Retry::Last } else { Retry::Here };
        Ok(Box::new(certification::new(self.system, placement, retry, workers, decided)))
    }

    /// Runs it.
    ///
    /// # Errors
    /// If something went wrong that only a bug can bring about.
    pub fn run(&self, seed: u64) -> Result<WholeFigures, WholeError> {
        let failed = |what: String| WholeError { experiment: self.clone(), what };
        let judge = if self.has(Variation::RowsWritten) { Judge::Rows } else { Judge::TableTwo };
        let mut source = Supplier::new(seed, WAREHOUSES, judge)
            .ok_or_else(|| failed("there is no such supplier".to_owned()))?;
        if self.has(Variation::KnownCustomers) {
            source = source.knowing_customers();
        }
        let protocol = self.protocol().map_err(|error| failed(error.to_string()))?;
        let outcome =
            run(&self.setup(seed), &mut source, protocol).map_err(|error| failed(error.to_string()))?;
        if let Some(fault) = outcome.faults.first().map(Fault::to_string) {
            return Err(failed(fault));
        }
        let mut measured = outcome.measured;
        if self.has(Variation::UndiscountedRatios) {
            let of_duration = |ns: u64| (ns as f64 / self.duration_factor()) as u64;
            measured.committed.iter_mut().for_each(|txn| txn.duration_ns = of_duration(txn.duration_ns));
        }
        Ok(WholeFigures::of(&measured))
    }
}

impl fmt::Display for WholeExperiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tpcc, {}, {} a second, {} workers", self.system, self.rate, self.workers)?;
        self.variations.iter().try_for_each(|variation| write!(f, ", {}", variation.description()))
    }
}

impl WholeFigures {
    fn of(measured: &Measured) -> WholeFigures {
        let (start, load, end) = (Instant(0), Instant(measured.load_ns), measured.ended());
        let middle = Instant(load.0 + end.since_ns(load) / 2);
        let samples = |from: Instant, to: Instant| {
            measured.samples.iter().filter(move |sample| (from..to).contains(&sample.at))
        };
        let mean = |values: Vec<u64>| values.iter().sum::<u64>() as f64 / values.len().max(1) as f64;
        let busy = |from, to| mean(samples(from, to).map(|sample| sample.occupied).collect());
        WholeFigures {
            throughput: measured.throughput(start, load, false),
            throughput_afterwards: measured.throughput(load, end, false),
            highest: measured.highest_throughput(WINDOW_NS, false),
            highest_of_updates: measured.highest_throughput(WINDOW_NS, true),
            update_response_s: measured.mean_response_of_updates(),
            penalty: measured.mean_penalty(),
            penalty_up_to_4: 100.0 * measured.share_up_to(PENALTY),
            speed_up: measured.speed_up(),
            total_s: end.0 as f64 / 1e9,
            busy: measured.at_end_of_load().map_or(0.0, |sample| sample.occupied as f64),
            cost: samples(start, load).map(|sample| sample.occupied).max().unwrap_or_default() as f64,
            busy_afterwards: busy(load, middle),
            queue: mean(samples(start, load).map(|sample| sample.awaiting_worker).collect()),
            in_vain: measured.executed_in_vain as f64 / measured.committed.len().max(1) as f64,
        }
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, metric: WholeMetric) -> f64 {
        match metric {
            WholeMetric::Throughput => self.throughput,
            WholeMetric::ThroughputAfterwards => self.throughput_afterwards,
            WholeMetric::Highest => self.highest,
            WholeMetric::HighestOfUpdates => self.highest_of_updates,
            WholeMetric::UpdateResponse => self.update_response_s,
            WholeMetric::Penalty => self.penalty,
            WholeMetric::PenaltyUpTo4 => self.penalty_up_to_4,
            WholeMetric::SpeedUp => self.speed_up,
            WholeMetric::Total => self.total_s,
            WholeMetric::Busy => self.busy,
            WholeMetric::Cost => self.cost,
            WholeMetric::BusyAfterwards => self.busy_afterwards,
            WholeMetric::Queue => self.queue,
            WholeMetric::InVain => self.in_vain,
        }
    }
}
