//! What a run shows in numbers.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use onecopy_workload::{InteractionId, StatementId};

use crate::server::Busy;

/// The part of all interactions that may begin and not end in a run that is steady.
const PILED_UP_MAX: f64 = 0.01;

/// Figures of the measured part of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// Its length in virtual time, in nanoseconds.
    pub window_ns: u64,
    /// Interactions completed, by their place in the catalogue.
    pub interactions: Vec<u64>,
    /// Interactions that users were in, when the measured part began and when it ended, in the same order.
    pub in_progress: [Vec<u64>; 2],
    /// From an interaction's first request to its last answer.
    pub response: Distribution,
    /// Statements.
    pub statements: QueryTime,
    /// Those of them that write.
    pub writes: QueryTime,
    /// The same by statement, by their place in the catalogue.
    pub by_statement: Vec<QueryTime>,
    /// Commits.
    pub commits: QueryTime,
    /// CPU time of each replica.
    pub replicas: Vec<Busy>,
    /// CPUs of each replica.
    pub cpus: u32,
    /// Messages.
    pub messages: Messages,
    /// Statements of peers about tables of which several have copies that are to agree; those of them that write.
    pub shared: [u64; 2],
    /// Transactions that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Transactions that held every table because nobody had declared any.
    pub every_table_locked: u64,
    /// Writes that a replica executed on other contents than the first did, where nothing else was promised.
    pub disagreements: u64,
}

/// What a query took at the replica whose answer counted, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Ran {
    pub(super) execution_ns: u64,
    pub(super) own_ns: u64,
}

/// Where the time of queries went, in sums over all of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QueryTime {
    /// How many.
    pub count: u64,
    /// From their arrival at the scheduler to their answer there, in nanoseconds.
    pub total_ns: u64,
    /// Executing at the replica whose answer counted, shared CPUs included, in nanoseconds.
    pub execution_ns: u64,
    /// On the way there and back, in nanoseconds.
    pub network_ns: u64,
    /// Waiting at the replica whose answer counted for earlier statements of the same transaction, in nanoseconds.
    pub own_ns: u64,
}

impl QueryTime {
    pub(super) fn add(&mut self, total_ns: u64, ran: Ran, network_ns: u64) {
        let Ran { execution_ns, own_ns } = ran;
        self.count += 1;
        self.total_ns += total_ns;
        self.execution_ns += execution_ns;
        self.own_ns += own_ns;
        self.network_ns += network_ns.min(total_ns.saturating_sub(execution_ns));
    }

    /// What is neither execution nor network: waiting for conflicts, for earlier writes and for the log, in nanoseconds.
    #[must_use]
    pub fn waiting_ns(&self) -> u64 {
        self.total_ns.saturating_sub(self.execution_ns + self.network_ns)
    }
}

/// Messages of the measured time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Messages {
    /// From users to the scheduler and back.
    pub users: u64,
    /// Sent by the scheduler to other machines of the cluster.
    pub from_scheduler: u64,
    /// Received by it from them.
    pub to_scheduler: u64,
    /// From one database's machine to another's.
    pub between_databases: u64,
}

/// How long something took.
#[derive(Clone, PartialEq, Debug)]
pub struct Distribution {
    histogram: Histogram<u64>,
    total_ns: u64,
}

impl Default for Distribution {
    fn default() -> Distribution {
        // Microseconds up to an hour, to three digits: bounds that are in order.
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are in order");
        Distribution { histogram, total_ns: 0 }
    }
}

impl Distribution {
    fn add(&mut self, ns: u64) {
        self.total_ns += ns;
        self.histogram.saturating_record(ns / 1_000);
    }

    /// How many were seen.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The mean in milliseconds, exact; 0 if there were none.
    #[must_use]
    pub fn mean_ms(&self) -> f64 {
        self.total_ns as f64 / 1e6 / self.count().max(1) as f64
    }

    /// So many of them in 1 took at most this, in milliseconds, to three digits.
    #[must_use]
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// How the time of an average replica is spent; the parts sum up to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReplicaTime {
    /// Reading.
    pub read: f64,
    /// Writing, committing and applying.
    pub write: f64,
    /// Nothing to do.
    pub idle: f64,
}

impl Measured {
    /// Of so many kinds of interactions and statements.
    pub(super) fn new(
        window_ns: u64,
        [interactions, statements]: [usize; 2],
        replicas: usize,
        cpus: u32,
    ) -> Measured {
        Measured {
            window_ns,
            interactions: vec![0; interactions],
            in_progress: [vec![0; interactions], vec![0; interactions]],
            response: Distribution::default(),
            statements: QueryTime::default(),
            writes: QueryTime::default(),
            by_statement: vec![QueryTime::default(); statements],
            commits: QueryTime::default(),
            replicas: vec![Busy::default(); replicas],
            cpus,
            messages: Messages::default(),
            shared: [0; 2],
            refused: BTreeMap::new(),
            every_table_locked: 0,
            disagreements: 0,
        }
    }

    pub(super) fn interaction(&mut self, id: InteractionId, response_ns: u64) {
        self.interactions[usize::from(id.0)] += 1;
        self.response.add(response_ns);
    }

    /// A statement was answered, so long after it had arrived.
    pub(super) fn statement(
        &mut self,
        id: StatementId,
        writes: bool,
        total_ns: u64,
        ran: Ran,
        network_ns: u64,
    ) {
        self.statements.add(total_ns, ran, network_ns);
        if writes {
            self.writes.add(total_ns, ran, network_ns);
        }
        self.by_statement[usize::from(id.0)].add(total_ns, ran, network_ns);
    }

    /// Interactions a second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.interactions.iter().sum::<u64>() as f64 / (self.window_ns as f64 / 1e9)
    }

    /// Whether as many interactions of each kind ended as began, but for chance and a hundredth of all. Where they did not,
    /// some kind piled up behind a bottleneck while the others went through, and the same users cannot go on getting so
    /// much: what was measured says nothing of a longer run.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        let [before, after] = &self.in_progress;
        let piled_up: u64 =
            after.iter().zip(before).map(|(after, before)| after.saturating_sub(*before)).sum();
        let largest: u64 = after.iter().zip(before).map(|(after, before)| *after.max(before)).sum();
        let completed: u64 = self.interactions.iter().sum();
        piled_up as f64 <= completed as f64 * PILED_UP_MAX + 2.0 * (largest as f64).sqrt()
    }

    /// How the average replica's time is spent.
    #[must_use]
    pub fn replica_time(&self) -> ReplicaTime {
        let all_ns = self.window_ns as f64 * f64::from(self.cpus) * self.replicas.len() as f64;
        let sum = |part: fn(&Busy) -> u64| self.replicas.iter().map(part).sum::<u64>() as f64 / all_ns;
        let (read, write) = (sum(|busy| busy.read_ns), sum(|busy| busy.write_ns));
        ReplicaTime { read, write, idle: 1.0 - read - write }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_execution_nor_network_is_waiting() {
        let mut time = QueryTime::default();
        time.add(100, Ran { execution_ns: 60, own_ns: 5 }, 10);
        time.add(50, Ran { execution_ns: 50, own_ns: 0 }, 10);
        assert_eq!((time.total_ns, time.execution_ns, time.network_ns), (150, 110, 10));
        assert_eq!((time.waiting_ns(), time.own_ns), (30, 5));
    }

    #[test]
    fn a_run_in_which_one_kind_piles_up_is_not_steady() {
        let steady = |before: [u64; 2], after: [u64; 2]| {
            let mut measured = Measured::new(1, [2, 1], 1, 1);
            measured.interactions = vec![900, 100];
            measured.in_progress = [before.to_vec(), after.to_vec()];
            measured.is_steady()
        };
        assert!(steady([10, 10], [10, 10]) && steady([10, 10], [14, 18]));
        // As many are in progress as before, but others.
        assert!(!steady([90, 10], [0, 100]));
        assert!(!steady([0, 10], [0, 60]));
    }

    #[test]
    fn figures_are_means_over_time_and_replicas() {
        let mut measured = Measured::new(2_000_000_000, [2, 1], 2, 2);
        measured.interaction(InteractionId(1), 3_000_000);
        measured.interaction(InteractionId(1), 1_000_000);
        measured.replicas[0] = Busy { read_ns: 4_000_000_000, write_ns: 0 };
        measured.replicas[1] = Busy { read_ns: 0, write_ns: 2_000_000_000 };
        assert_eq!(measured.throughput(), 1.0);
        assert_eq!(measured.replica_time(), ReplicaTime { read: 0.5, write: 0.25, idle: 0.25 });
        assert_eq!((measured.response.count(), measured.response.mean_ms()), (2, 2.0));
        assert!((measured.response.quantile_ms(1.0) - 3.0).abs() < 0.01);
    }
}
