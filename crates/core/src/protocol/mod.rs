//! Replication protocols: one trait, one file or folder a protocol.
//!
//! A protocol is a set of roles, each a state machine that lives at a [`Place`]. A driver gives it events and carries
//! out its effects; messages between places are effects too, so that roles may live in different processes.

use crate::effect::Effect;
use crate::event::{Event, Place};
use crate::ids::{Instant, NodeId};

pub mod centralised_writes;
pub mod certified;
pub mod chains;
pub mod chains_distributed;
pub mod chains_redundant;
pub mod chains_serializable;
pub mod conflict_aware;
pub mod eager;
pub mod fixed_conflict;
pub mod fixed_load;
pub mod invalidation;
pub mod level0;
pub mod level1;
pub mod level2;
pub mod lock_central;
pub mod lock_distributed;
pub mod onecopy;
pub mod partitioned;
pub mod round_robin;
pub mod special;
pub mod tashkent_plus;
pub mod variable_load;
pub mod versioning;
pub mod versioning_late_acquire;
pub mod versioning_no_early_release;
pub mod weak;
pub mod wide_area;

mod by_name;
mod in_process;

pub use by_name::{
    PEERS, SELECTABLE, UnknownProtocol, WHOLE, apart_by_name, by_name, peers_by_name, whole_by_name,
};
pub use in_process::InProcess;

/// What the histories of a protocol satisfy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Guarantee {
    /// One order of all transactions that agrees with real time.
    StrictSerializability,
    /// One order of all transactions.
    OneCopySerializability,
    /// Snapshots of one order of commits; independent sites may see independent writes in different orders.
    ParallelSnapshotIsolation,
    /// Nothing about transactions: what may be seen, the protocol's file says.
    None,
}

/// What the position of a replica is: which sets of decisions it may contain (design section 2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    /// Everything up to some decision: replicas commit in the order of CSNs, and a commit whose predecessor is missing
    /// is an error.
    Prefix,
    /// Any set: commits that do not conflict take place in any order. What is missing up to the newest can be filled in
    /// from the log in the order of CSNs.
    Set,
}

/// Where update transactions execute their statements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Writes {
    /// On one replica; the others apply what it did, replayed or captured.
    AtHome,
    /// On every replica, as they come, so each must have the same effect everywhere: a statement whose effect can only
    /// be captured cannot be served.
    Everywhere,
}

/// What a protocol wants to be told of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Statements {
    /// Transactions as their clients mean them.
    InTransactions,
    /// Each statement as a transaction by itself: the driver leaves out what begins and ends transactions.
    Alone,
}

/// What a protocol must know of a transaction before it runs: the driver says it when the transaction begins, as far as it knows
/// its statements by then ([`Begin::declared`](crate::event::Begin::declared)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Foresight {
    /// What it may write.
    OfWrites,
    /// What it may write, and what it may read if it writes.
    OfReadsAndWrites,
}

/// What the databases can do that not all can.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Engine {
    /// Transactions find what others have written and not committed, instead of waiting for it or passing it over.
    pub shows_uncommitted: bool,
    /// Each replica commits decisions in the order of their CSNs, and a statement finds there what the decisions up to one CSN
    /// have left, and nothing else (unless the engine shows what is not committed).
    pub commits_in_order: bool,
}

impl Engine {
    /// Whether a statement that is a transaction by itself finds what the decisions up to one CSN have left: nobody has to wait
    /// until it is done.
    #[must_use]
    pub fn reads_snapshots(self) -> bool {
        self.commits_in_order && !self.shows_uncommitted
    }
}

/// A replication protocol.
pub trait Protocol: Send {
    /// Its name in the configuration.
    fn name(&self) -> &'static str;

    /// What its histories satisfy.
    fn guarantee(&self) -> Guarantee;

    /// What a replica of it contains.
    fn position(&self) -> Position {
        Position::Prefix
    }

    /// Where its updates execute.
    fn writes(&self) -> Writes {
        Writes::AtHome
    }

    /// How its clients' statements must come.
    fn statements(&self) -> Statements {
        Statements::InTransactions
    }

    /// Whether each of its replicas has a peer beside it with clients of its own: their events happen there, and only the driver knows where.
    fn has_clients_at_peers(&self) -> bool {
        false
    }

    /// What must be known of its transactions before they run. Their writes then reach other replicas as rows, never as statements.
    fn foresight(&self) -> Option<Foresight> {
        None
    }

    /// What the databases can do; told once, before anything else. Nobody has to make use of it.
    fn engine_is(&mut self, _engine: Engine) {}

    /// Whether replicas can be added to it, and taken from it, while it runs.
    fn changes_replicas(&self) -> bool {
        false
    }

    /// At which place an event happens that does not say so itself, where every place has one home. (A message happens
    /// where it is addressed to.)
    fn place_of(&self, _event: &Event) -> Place {
        Place::Scheduler(NodeId(0))
    }

    /// Something happened at one of the protocol's places; its effects are pushed in the order in which they must be
    /// carried out.
    fn handle(&mut self, place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>);

    /// Counters and positions, for people.
    fn status(&self) -> Status;

    /// Whether it hears [`Event::WaitsOutside`].
    fn hears_waits_outside(&self) -> bool {
        false
    }

    /// Something that must never be between two events, and is; for simulations, which ask after each.
    fn broken_invariant(&self) -> Option<String> {
        None
    }
}

/// Where an event happens in a protocol of peers, of which the `n`-th has replica `n`: what a database reports happens at its peer. Where a
/// client's events happen, only the driver knows.
pub(crate) fn peer_of(event: &Event) -> Place {
    match event {
        Event::Executed { replica, .. }
        | Event::Applied { replica, .. }
        | Event::ShippedApplied { replica, .. }
        | Event::HomeLost { replica, .. } => Place::Peer(NodeId(replica.0)),
        _ => Place::Peer(NodeId(0)),
    }
}

/// What a protocol tells of itself.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Status {
    /// The last commit whose decision is durable: replicas may commit up to it.
    pub told: u64,
    /// The last commit decided.
    pub decided: u64,
    /// Per replica: whether it serves, what it contains, what is outstanding.
    pub replicas: Vec<ReplicaStatus>,
    /// Transactions that could run and find no worker, where workers run one at a time.
    pub awaiting_worker: u64,
    /// Workers that execute something, or were given something that waits there for the writes of others.
    pub occupied_workers: u64,
    /// Transactions open.
    pub transactions: u64,
    /// Requests for items that were granted at once.
    pub grants_at_once: u64,
    /// Requests for items that had to wait for another transaction.
    pub grants_waited: u64,
    /// Statements that waited for a replica to contain what they must see.
    pub freshness_waits: u64,
    /// Reads placed without a lock.
    pub reads_placed: u64,
    /// Transactions given up to break a cycle.
    pub deadlocks: u64,
    /// Transactions given up because what they had read changed.
    pub reads_changed: u64,
    /// Read phases whose reads were run again, because a later commit might have changed them.
    pub revalidations: u64,
    /// Reads that took their items in update mode because their class is known to write them.
    pub predicted: u64,
    /// Reads that ran again under all items of their text, because the rows that their answer showed were another's.
    pub executed_again: u64,
    /// Transactions that held every table, because they had declared none and none were learned for their like.
    pub every_table_locked: u64,
    /// Transactions given up because they touched a table that had not been foreseen.
    pub mispredicted: u64,
    /// Statements of peers about tables of which several have copies that are to agree.
    pub shared_accesses: u64,
    /// Those of them that write.
    pub shared_writes: u64,
    /// Who waits for whom: each waiting transaction with those that it waits for.
    pub waits_for: Vec<(u64, Vec<u64>)>,
}

/// One replica as the protocol sees it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ReplicaStatus {
    /// Whether it serves.
    pub up: bool,
    /// Whether it is about to leave for good.
    pub leaving: bool,
    /// Whether it has left for good.
    pub gone: bool,
    /// Of one that is about to leave: transactions that have something open there.
    pub open: u64,
    /// Where workers run one transaction at a time: it executes something, or was given something that waits there.
    pub busy: bool,
    /// What it contains.
    pub applied: u64,
    /// Sum of the expected times of what is outstanding, in nanoseconds.
    pub outstanding_ns: f64,
    /// Reads sent to it.
    pub reads: u64,
    /// Statements of update transactions executed on it as their home.
    pub home_statements: u64,
    /// Commits applied on it that were executed elsewhere.
    pub applies: u64,
}
