//! What a performance run is like. The same setup gives the same run, byte for byte.

use onecopy_core::protocol::Engine;

use super::network::Latency;
use super::profile::Profile;
use crate::server::Discipline;

/// One run.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup<'a> {
    /// Decides everything that is drawn at random.
    pub seed: u64,
    /// Databases, 1 to 65,535.
    pub replicas: u16,
    /// CPUs of each database.
    pub cpus: u32,
    /// How they are shared.
    pub discipline: Discipline,
    /// What statements cost.
    pub profile: &'a Profile,
    /// Every cost is divided by this.
    pub speed: u32,
    /// Whether what a database does takes a time drawn at random whose mean is its cost (negative exponential, at most 20 times as
    /// long), at each database another one; otherwise exactly its cost.
    pub uneven: bool,
    /// Who asks.
    pub users: Users,
    /// Connections that users share: so many interactions are under way at once, and others wait for one of them to end, in the order
    /// in which they came. `None` where each user has one. 1 at least.
    pub connections: Option<u32>,
    /// Users' pauses are multiplied by this; 1 is what the workload says.
    pub think_factor: f64,
    /// How long messages take.
    pub network: Latency,
    /// From what the load of replicas is estimated.
    pub loads: Loads,
    /// On what conflicts are counted, where the protocol leaves a choice.
    pub items: Items,
    /// Of 100 conflicts of tables so many count, 1 to 100 (CAS 9.4). Below 100, histories mean nothing.
    pub conflict_percent: u32,
    /// What databases can do, where every one executes what is written. Where they do not show what is not committed, a table that
    /// was written can be passed on only after the commit (DV 3.5).
    pub engine: Engine,
    /// Whether all decisions that one order names are applied in one transaction, which commits once; otherwise each commits by itself.
    pub applies_together: bool,
    /// When a decision counts as durable.
    pub durability: Durability,
    /// Virtual time before anything is measured, in nanoseconds.
    pub warm_up_ns: u64,
    /// Virtual time that is measured, in nanoseconds.
    pub measured_ns: u64,
    /// Whether what clients saw is recorded, for the checker.
    pub history: bool,
    /// Whether the trace's text is kept.
    pub keep_trace: bool,
}

impl<'a> Setup<'a> {
    /// So many replicas of one CPU and so many users, 2 minutes of warm-up and 8 of measurement.
    #[must_use]
    pub fn new(profile: &'a Profile, replicas: u16, users: Users) -> Setup<'a> {
        Setup {
            seed: 0,
            replicas,
            cpus: 1,
            discipline: Discipline::default(),
            profile,
            speed: 1,
            uneven: false,
            users,
            connections: None,
            think_factor: 1.0,
            network: Latency::default(),
            loads: Loads::default(),
            items: Items::default(),
            conflict_percent: 100,
            engine: Engine { shows_uncommitted: true, ..Engine::default() },
            applies_together: false,
            durability: Durability::default(),
            warm_up_ns: 120 * SECOND_NS,
            measured_ns: 480 * SECOND_NS,
            history: false,
            keep_trace: false,
        }
    }
}

/// One second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Who asks, and when.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Users {
    /// So many users, each of whom waits for every answer and thinks before the next interaction.
    Closed(u32),
    /// Interactions arrive at random, so many a second on average, whatever becomes of those before.
    Open(f64),
}

/// From what a protocol learns how long a class of statements takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Loads {
    /// The time on an idle database, measured beforehand (CAS 4.10, DV 4.8).
    #[default]
    Idle,
    /// The time that each execution took.
    Measured,
}

/// When a decision counts as durable, and how many schedulers know of each transaction (CAS 5 and 8.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Durability {
    /// At once: the paper's Unreliable.
    Memory,
    /// When it is on the scheduler's disk: the paper's Reliable.
    #[default]
    Disk,
    /// When so many schedulers, 2 or more, have it in memory and one of them on its disk: the paper's Reliable-2 and so
    /// on. Each transaction with a sequence number is made known to the others when it starts, too.
    Replicated(u32),
}

/// On what conflicts are counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Items {
    /// Whole tables, declared when a transaction of several statements begins.
    #[default]
    DeclaredTables,
    /// Whole tables, declared by nobody.
    Tables,
    /// Rows, keys and whatever else statements name, declared by nobody.
    Rows,
}
