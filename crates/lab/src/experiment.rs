//! One experiment: the peak of a system under a workload on a cluster.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use onecopy_core::protocol::{PEERS, SELECTABLE};
use onecopy_sim::perf::{self, Discipline, Items, Latency, Measured, Peak};
use onecopy_workload::tpcw::MixName;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::variation::{self, Variation};

/// A system's name that nobody has.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("no system is called {name}: choose one of {}, {}", SELECTABLE.join(", "), PEERS.join(", "))]
pub struct UnknownSystem {
    /// What was asked for.
    pub name: String,
}

/// A workload with one of its mixes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mix {
    /// TPC-W, 95 % of whose interactions only look.
    TpcwBrowsing,
    /// TPC-W, 80 %.
    TpcwShopping,
    /// TPC-W, 50 %.
    TpcwOrdering,
    /// The auction site, of whose interactions that reach the database 15 % write.
    Auction,
    /// The bulletin board, of whose interactions 15 % write, each statement by itself.
    BulletinBoard,
}

impl Mix {
    /// All: TPC-W's by their share of writes, then the other sites.
    pub const ALL: [Mix; 5] =
        [Mix::TpcwBrowsing, Mix::TpcwShopping, Mix::TpcwOrdering, Mix::Auction, Mix::BulletinBoard];

    /// As claims name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mix::TpcwBrowsing => "tpcw browsing",
            Mix::TpcwShopping => "tpcw shopping",
            Mix::TpcwOrdering => "tpcw ordering",
            Mix::Auction => "auction",
            Mix::BulletinBoard => "bulletin board",
        }
    }

    /// That of the bookstore's mixes, if it is one.
    #[must_use]
    pub fn bookstore(self) -> Option<MixName> {
        match self {
            Mix::TpcwBrowsing => Some(MixName::Browsing),
            Mix::TpcwShopping => Some(MixName::Shopping),
            Mix::TpcwOrdering => Some(MixName::Ordering),
            Mix::Auction | Mix::BulletinBoard => None,
        }
    }
}

impl FromStr for Mix {
    type Err = UnknownMix;

    fn from_str(name: &str) -> Result<Mix, UnknownMix> {
        Mix::ALL
            .into_iter()
            .find(|mix| mix.name() == name)
            .ok_or_else(|| UnknownMix { name: name.to_owned() })
    }
}

/// A workload's name that nobody has.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the workload {name} is not there")]
pub struct UnknownMix {
    /// What was asked for.
    pub name: String,
}

/// When decisions are durable: CAS 8.4.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Durability {
    /// At once: *Unreliable*.
    Memory,
    /// On the scheduler's disk: *Reliable*.
    #[default]
    Disk,
    /// On a disk, and in the memory of so many schedulers in all: *Reliable-2* and so on.
    Replicated(u8),
}

/// What is run, but for its seed. The order is that of reports.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Experiment {
    /// What is asked.
    pub mix: Mix,
    /// The protocol, as configurations name it.
    pub system: &'static str,
    /// Databases, 1 to 65,535.
    pub replicas: u16,
    /// How many times as fast as the profile's databases are.
    pub speed: u32,
    /// Of 100 conflicts of tables so many count.
    pub conflict_percent: u32,
    /// When decisions are durable.
    pub durability: Durability,
    /// In what else it differs from what is decided on.
    pub variations: BTreeSet<Variation>,
}

impl Experiment {
    /// The system as it is, with databases as the profile has them.
    ///
    /// # Errors
    /// If there is no such system.
    pub fn new(mix: Mix, system: &str, replicas: u16) -> Result<Experiment, UnknownSystem> {
        let system = SELECTABLE
            .into_iter()
            .chain(PEERS)
            .find(|known| *known == system)
            .ok_or_else(|| UnknownSystem { name: system.to_owned() })?;
        Ok(Experiment {
            mix,
            system,
            replicas,
            speed: 1,
            conflict_percent: 100,
            durability: Durability::default(),
            variations: BTreeSet::new(),
        })
    }

    /// The same in the cluster of the paper on invalidation (V-A): 10,000 items, servers with many
    /// threads, and the same users for every system; how many they are it does not say.
    #[must_use]
    pub fn of_invalidation(mut self) -> Experiment {
        for variation in [Variation::SmallBookstore, Variation::Shared, Variation::UsersOfFour] {
            variation.apply(&mut self);
        }
        self
    }

    /// Whether it differs in this from what is decided on.
    pub(crate) fn has(&self, variation: Variation) -> bool {
        self.variations.contains(&variation)
    }

    /// Whether its system orders transactions by table locks (CAS 6).
    pub(crate) fn has_table_locks(&self) -> bool {
        let systems = ["conflict_aware", "eager", "fixed_load", "fixed_conflict", "variable_load"];
        systems.contains(&self.system)
    }

    /// Whether each of its databases has clients of its own.
    pub(crate) fn is_of_peers(&self) -> bool {
        PEERS.contains(&self.system)
    }

    /// Whether the bookstore's carts lie in tables of their own: only of two papers it is known that they did not.
    pub(crate) fn has_ten_tables(&self) -> bool {
        self.is_of_peers() || self.has(Variation::TenTables)
    }

    pub(crate) fn items(&self) -> Items {
        if self.has(Variation::CutTables) {
            return Items::Rows;
        }
        match (self.system, self.has(Variation::OnTables)) {
            ("onecopy", false) => Items::Rows,
            ("onecopy", true) => Items::Tables,
            _ => Items::DeclaredTables,
        }
    }

    pub(crate) fn discipline(&self) -> Discipline {
        variation::discipline(&self.variations)
    }

    pub(crate) fn network(&self) -> Latency {
        variation::network(&self.variations)
    }

    pub(crate) fn durability(&self) -> perf::Durability {
        match self.durability {
            Durability::Memory => perf::Durability::Memory,
            Durability::Disk => perf::Durability::Disk,
            Durability::Replicated(schedulers) => perf::Durability::Replicated(u32::from(schedulers)),
        }
    }

    /// What is special about it: nothing, for a system as it is.
    #[must_use]
    pub fn variation(&self) -> String {
        let mut parts = Vec::new();
        if self.speed != 1 {
            parts.push(format!("databases {} times as fast", self.speed));
        }
        if self.conflict_percent != 100 {
            parts.push(format!("{} % of the conflicts", self.conflict_percent));
        }
        match self.durability {
            Durability::Memory => parts.push("decisions in memory".to_owned()),
            Durability::Disk => {}
            Durability::Replicated(count) => parts.push(format!("{count} schedulers")),
        }
        parts.extend(self.variations.iter().map(|variation| variation.description().to_owned()));
        parts.join(", ")
    }
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.mix.name(), self.system, databases(self.replicas))?;
        let variation = self.variation();
        if variation.is_empty() { Ok(()) } else { write!(f, ", {variation}") }
    }
}

/// So many of them, in words.
pub(crate) fn databases(count: u16) -> String {
    if count == 1 { "1 database".to_owned() } else { format!("{count} databases") }
}

/// A figure of an experiment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Metric {
    /// Interactions a second.
    Peak,
    /// Mean response time of interactions in milliseconds.
    Response,
    /// Mean time that a statement executes, in milliseconds.
    Execution,
    /// Mean time that a statement waits, in milliseconds.
    Waiting,
    /// Of that, for earlier statements of its own transaction.
    OwnWaiting,
    /// Share of the databases' time in which they read, 0 to 1.
    Reading,
    /// Of the time in which databases do something, the share of writing, committing and applying, 0 to 1.
    WriteShare,
    /// Share in which they write, commit and apply, 0 to 1.
    Writing,
    /// Share in which they have nothing to do, 0 to 1.
    Idle,
    /// Messages that one scheduler handles in a second.
    SchedulerMessages,
    /// Messages that a peer sends in a second.
    PeerMessages,
    /// Mean time that a writing statement waits, in milliseconds.
    WriteWaiting,
    /// Statements a second about tables of which several peers have copies that are to agree.
    SharedAccesses,
    /// Those of them that write.
    SharedWrites,
    /// Mean time that a statement waits, in milliseconds, where whoever asks for a table is taken to write it.
    LockWaiting,
    /// Statements a second about shared tables, where whoever asks for one is taken to write it.
    SharedLocks,
}

/// Whether peers of a system lock tables to read them, too.
fn has_peer_locks(system: &str) -> bool {
    ["lock_distributed", "lock_central"].contains(&system)
}

impl Metric {
    /// The same of a system with locks, if it is about writing: there whoever asks for a table takes a
    /// lock, and the paper on invalidation seems to count that as a write (V-B: with locks there are
    /// significantly more writes of shared data, and no more interactions).
    #[must_use]
    pub fn where_locks_are_writes(self, system: &str) -> Metric {
        match self {
            Metric::WriteWaiting if has_peer_locks(system) => Metric::LockWaiting,
            Metric::SharedWrites if has_peer_locks(system) => Metric::SharedLocks,
            other => other,
        }
    }
}

/// What came of an experiment with one seed, at its peak. The names are those of columns in `runs.csv`.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Users at the peak.
    pub users: u32,
    /// Interactions a second.
    pub peak: f64,
    /// Mean response time of interactions in milliseconds.
    pub response_ms: f64,
    /// Half of them took at most this, in milliseconds.
    pub response_p50_ms: f64,
    /// 90 % of them.
    pub response_p90_ms: f64,
    /// 99 % of them.
    pub response_p99_ms: f64,
    /// Mean time that a statement executes, in milliseconds.
    pub execution_ms: f64,
    /// Mean time that a statement waits, in milliseconds.
    pub waiting_ms: f64,
    /// Of that, for earlier statements of its own transaction, in milliseconds.
    pub own_waiting_ms: f64,
    /// Share of the databases' time in which they read.
    pub reading: f64,
    /// Share in which they write.
    pub writing: f64,
    /// Share in which they idle.
    pub idle: f64,
    /// Messages that one scheduler handles in a second.
    pub scheduler_messages: f64,
    /// Messages that a peer sends in a second.
    pub peer_messages: f64,
    /// Mean time that a writing statement waits, in milliseconds.
    pub write_waiting_ms: f64,
    /// Statements a second about tables of which several peers have copies that are to agree.
    pub shared_accesses: f64,
    /// Those of them that write.
    pub shared_writes: f64,
    /// Transactions refused, of 1,000 interactions.
    pub refused: f64,
    /// Runs that it took to find the peak.
    pub runs: u32,
}

impl Figures {
    pub(crate) fn of(peak: &Peak) -> Figures {
        let Measured { response, statements, writes, messages, shared, replicas, window_ns, .. } =
            &peak.measured;
        let (time, seconds) = (peak.measured.replica_time(), *window_ns as f64 / 1e9);
        let each_ms = |ns: u64| ns as f64 / 1e6 / statements.count.max(1) as f64;
        let a_second = |count: u64| count as f64 / seconds;
        let refused: u64 = peak.measured.refused.values().sum();
        Figures {
            users: peak.users,
            peak: peak.measured.throughput(),
            response_ms: response.mean_ms(),
            response_p50_ms: response.quantile_ms(0.5),
            response_p90_ms: response.quantile_ms(0.9),
            response_p99_ms: response.quantile_ms(0.99),
            execution_ms: each_ms(statements.execution_ns),
            waiting_ms: each_ms(statements.waiting_ns()),
            own_waiting_ms: each_ms(statements.own_ns),
            reading: time.read,
            writing: time.write,
            idle: time.idle,
            scheduler_messages: a_second(messages.users + messages.from_scheduler + messages.to_scheduler),
            peer_messages: a_second(messages.between_databases) / replicas.len().max(1) as f64,
            write_waiting_ms: writes.waiting_ns() as f64 / 1e6 / writes.count.max(1) as f64,
            shared_accesses: a_second(shared[0]),
            shared_writes: a_second(shared[1]),
            refused: refused as f64 * 1e3 / response.count().max(1) as f64,
            runs: u32::try_from(peak.probes.len()).unwrap_or(u32::MAX),
        }
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Peak => self.peak,
            Metric::Response => self.response_ms,
            Metric::Execution => self.execution_ms,
            Metric::Waiting | Metric::LockWaiting => self.waiting_ms,
            Metric::OwnWaiting => self.own_waiting_ms,
            Metric::Reading => self.reading,
            Metric::WriteShare => self.writing / (self.reading + self.writing),
            Metric::Writing => self.writing,
            Metric::Idle => self.idle,
            Metric::SchedulerMessages => self.scheduler_messages,
            Metric::PeerMessages => self.peer_messages,
            Metric::WriteWaiting => self.write_waiting_ms,
            Metric::SharedAccesses | Metric::SharedLocks => self.shared_accesses,
            Metric::SharedWrites => self.shared_writes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_says_what_is_special_about_it() {
        let plain = Experiment::new(Mix::TpcwShopping, "eager", 8).expect("eager is there");
        assert_eq!(plain.to_string(), "tpcw shopping, eager, 8 databases");
        let special = Experiment {
            speed: 4,
            conflict_percent: 1,
            durability: Durability::Replicated(3),
            variations: BTreeSet::from([Variation::SlowNetwork, Variation::Shared]),
            ..plain
        };
        assert_eq!(
            special.to_string(),
            "tpcw shopping, eager, 8 databases, databases 4 times as fast, 1 % of the conflicts, 3 schedulers, \
             databases share their CPUs among all statements, each message takes 2 ms"
        );
    }

    #[test]
    fn a_system_that_is_not_there_is_refused_with_those_that_are() {
        let error = Experiment::new(Mix::TpcwShopping, "paxos", 8).expect_err("it is unknown").to_string();
        assert!(error.starts_with("no system is called paxos: choose one of onecopy, "), "{error}");
    }
}
