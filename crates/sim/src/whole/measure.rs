//! What came of a run, in figures.

use onecopy_core::Instant;

/// Figures of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// What was committed, in that order.
    pub committed: Vec<Committed>,
    /// Who was busy when, in order.
    pub samples: Vec<Sample>,
    /// Executions that were given up.
    pub executed_in_vain: u64,
    /// For how long transactions arrived, in nanoseconds.
    pub load_ns: u64,
    /// Where workers come and go: what that came to.
    pub scaled: Scaled,
}

/// Workers that came and went, and what is paid for.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Scaled {
    /// Workers that were hired.
    pub hired: u64,
    /// Workers that were released.
    pub released: u64,
    /// The most that there were at a time, those included that were about to come or to go.
    pub most: u64,
    /// For how long workers were there, or about to come or to go: the sum, in seconds.
    pub paid_s: f64,
    /// For how long chains waited for a worker: the sum, in seconds.
    pub waited_s: f64,
}

/// A transaction that was committed.
#[derive(Clone, PartialEq, Debug)]
pub struct Committed {
    /// What kind it is.
    pub kind: u64,
    /// Whether it may write.
    pub updates: bool,
    /// When it arrived.
    pub arrived: Instant,
    /// When it was committed.
    pub committed: Instant,
    /// How long it takes at a worker, the setup's factor included, in nanoseconds.
    pub duration_ns: u64,
    /// How often it was executed.
    pub executions: u32,
}

impl Committed {
    /// Time from arrival to commit, in nanoseconds.
    #[must_use]
    pub fn response_ns(&self) -> u64 {
        self.committed.since_ns(self.arrived)
    }

    /// The same over how long it takes.
    #[must_use]
    pub fn penalty(&self) -> f64 {
        self.response_ns() as f64 / self.duration_ns.max(1) as f64
    }
}

/// Who was busy at an instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// Workers that execute something.
    pub busy: u64,
    /// Workers that do so, or were given something that waits there for the writes of others.
    pub occupied: u64,
    /// Transactions that could run and find no worker.
    pub awaiting_worker: u64,
    /// Transactions that are not committed.
    pub open: u64,
}

impl Measured {
    pub(super) fn new(load_ns: u64) -> Measured {
        Measured {
            committed: Vec::new(),
            samples: Vec::new(),
            executed_in_vain: 0,
            load_ns,
            scaled: Scaled::default(),
        }
    }

    /// When the last transaction was committed.
    #[must_use]
    pub fn ended(&self) -> Instant {
        self.committed.iter().map(|txn| txn.committed).max().unwrap_or(Instant(0))
    }

    /// Commits a second between two instants, of transactions that may write or of all.
    #[must_use]
    pub fn throughput(&self, from: Instant, to: Instant, only_updates: bool) -> f64 {
        let counts = |txn: &&Committed| (from..to).contains(&txn.committed) && (txn.updates || !only_updates);
        let seconds = to.since_ns(from) as f64 / 1e9;
        self.committed.iter().filter(counts).count() as f64 / seconds.max(f64::MIN_POSITIVE)
    }

    /// The highest throughput over so long a time, by whole steps of a quarter of it.
    #[must_use]
    pub fn highest_throughput(&self, over_ns: u64, only_updates: bool) -> f64 {
        let step = (over_ns / 4).max(1);
        let steps = 0..=self.ended().0 / step;
        let from = |step_number: u64| Instant(step_number * step);
        steps.map(|n| self.throughput(from(n), from(n).plus_ns(over_ns), only_updates)).fold(0.0, f64::max)
    }

    /// The mean of the penalties.
    #[must_use]
    pub fn mean_penalty(&self) -> f64 {
        let sum: f64 = self.committed.iter().map(Committed::penalty).sum();
        sum / self.committed.len().max(1) as f64
    }

    /// Which part of the transactions has at most this penalty.
    #[must_use]
    pub fn share_up_to(&self, penalty: f64) -> f64 {
        let within = self.committed.iter().filter(|txn| txn.penalty() <= penalty).count();
        within as f64 / self.committed.len().max(1) as f64
    }

    /// The mean time from arrival to commit of those that may write, in seconds.
    #[must_use]
    pub fn mean_response_of_updates(&self) -> f64 {
        let updates = self.committed.iter().filter(|txn| txn.updates);
        let (sum, count) =
            updates.fold((0.0, 0_u64), |(sum, count), txn| (sum + txn.response_ns() as f64 / 1e9, count + 1));
        sum / count.max(1) as f64
    }

    /// What all would take one after the other, over the time until the last commit.
    #[must_use]
    pub fn speed_up(&self) -> f64 {
        let sequential: f64 = self.committed.iter().map(|txn| txn.duration_ns as f64).sum();
        sequential / (self.ended().0 as f64).max(1.0)
    }

    /// The last sample while transactions arrived.
    #[must_use]
    pub fn at_end_of_load(&self) -> Option<&Sample> {
        self.samples.iter().rfind(|sample| sample.at.0 <= self.load_ns)
    }
}
