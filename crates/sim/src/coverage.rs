//! Which faults hit which steps of the protocol, and how often.

use std::collections::BTreeMap;
use std::fmt;

use crate::scenario::Breakage;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[expect(missing_docs, reason = "they are described for people by `words`")]
pub enum Fault {
    Connections,
    Server,
    Lane,
    Pause,
    Diverge,
    Node,
    PauseNode,
    SlowDisk,
    Clock,
    Join,
    Depart,
    DepartAtOnce,
    GiveUp,
}

/// A step of the protocol, named by what is under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// A statement waits for items, or for a replica that may execute it: before its grant.
    Waiting,
    /// A replica executes a statement.
    Executing,
    /// A home executes the first write of a transaction.
    FirstWrite,
    /// A transaction that has written is open at its home, and not decided.
    Written,
    /// A home runs the reads of a read phase again.
    Revalidating,
    /// A decision is in the log and not durable.
    Decided,
    /// A decision is durable, and no replica has committed it.
    Durable,
    /// A replica has committed what its client has not heard of.
    Committed,
    /// A replica applies decisions.
    Applying,
    /// A lost replica's old sessions are not ended yet.
    Fencing,
    /// A replica that has come back lacks what was durable then.
    CatchingUp,
    /// A transaction does again at another home what it had done at one that was lost.
    Moving,
    /// A replica is copied, to serve for the first time or again.
    Joining,
    /// A replica is about to leave, and somebody still uses it.
    Departing,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 13] = [
        Fault::Connections,
        Fault::Server,
        Fault::Lane,
        Fault::Pause,
        Fault::Diverge,
        Fault::Node,
        Fault::PauseNode,
        Fault::SlowDisk,
        Fault::Clock,
        Fault::Join,
        Fault::Depart,
        Fault::DepartAtOnce,
        Fault::GiveUp,
    ];

    /// The kind of a breakage.
    #[must_use]
    pub fn of(breakage: Breakage) -> Fault {
        match breakage {
            Breakage::Connections(_) => Fault::Connections,
            Breakage::Server(_) => Fault::Server,
            Breakage::Lane(_) => Fault::Lane,
            Breakage::Pause(_) => Fault::Pause,
            Breakage::Diverge(_) => Fault::Diverge,
            Breakage::Node => Fault::Node,
            Breakage::PauseNode => Fault::PauseNode,
            Breakage::SlowDisk => Fault::SlowDisk,
            Breakage::Clock => Fault::Clock,
            Breakage::Join => Fault::Join,
            Breakage::Depart { at_once: false, .. } => Fault::Depart,
            Breakage::Depart { at_once: true, .. } => Fault::DepartAtOnce,
            Breakage::GiveUp => Fault::GiveUp,
        }
    }

    /// What happens, in a few words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Fault::Connections => "connections to a replica are lost",
            Fault::Server => "a server dies, with unsynced commits",
            Fault::Lane => "a server ends one transaction",
            Fault::Pause => "a server stands still",
            Fault::Diverge => "a replica differs, and is copied anew",
            Fault::Node => "the node dies, with unsynced records",
            Fault::PauseNode => "the node stands still",
            Fault::SlowDisk => "the log's disk is slow",
            Fault::Clock => "the node's clock leaps",
            Fault::Join => "a replica joins",
            Fault::Depart => "a replica leaves",
            Fault::DepartAtOnce => "a replica leaves at once",
            Fault::GiveUp => "a client gives up what it waits for",
        }
    }
}

impl Stage {
    /// All of them, in the order in which a transaction meets them; then those of replicas.
    pub const ALL: [Stage; 14] = [
        Stage::Waiting,
        Stage::Executing,
        Stage::FirstWrite,
        Stage::Written,
        Stage::Revalidating,
        Stage::Moving,
        Stage::Decided,
        Stage::Durable,
        Stage::Committed,
        Stage::Applying,
        Stage::Fencing,
        Stage::CatchingUp,
        Stage::Joining,
        Stage::Departing,
    ];

    /// The head of its column.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Stage::Waiting => "waits",
            Stage::Executing => "executes",
            Stage::FirstWrite => "first write",
            Stage::Written => "written",
            Stage::Revalidating => "reads again",
            Stage::Moving => "moves",
            Stage::Decided => "decided",
            Stage::Durable => "durable",
            Stage::Committed => "committed",
            Stage::Applying => "applies",
            Stage::Fencing => "fences",
            Stage::CatchingUp => "catches up",
            Stage::Joining => "joins",
            Stage::Departing => "leaves",
        }
    }
}

/// How often each fault has hit each step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    faults: BTreeMap<Fault, u64>,
    hits: BTreeMap<(Fault, Stage), u64>,
}

impl Coverage {
    /// A fault came about while these steps were under way.
    pub fn hit(&mut self, fault: Fault, stages: &[Stage]) {
        *self.faults.entry(fault).or_default() += 1;
        for stage in stages {
            *self.hits.entry((fault, *stage)).or_default() += 1;
        }
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Coverage) {
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        for (cell, count) in &other.hits {
            *self.hits.entry(*cell).or_default() += count;
        }
    }

    /// How often a fault came about.
    #[must_use]
    pub fn faults(&self, fault: Fault) -> u64 {
        self.faults.get(&fault).copied().unwrap_or_default()
    }

    /// How often a fault has hit a step.
    #[must_use]
    pub fn hits(&self, fault: Fault, stage: Stage) -> u64 {
        self.hits.get(&(fault, stage)).copied().unwrap_or_default()
    }

    /// The cell that was hit least, and how often.
    #[must_use]
    pub fn least(&self) -> (Fault, Stage, u64) {
        let cells = Fault::ALL.into_iter().flat_map(|fault| Stage::ALL.map(|stage| (fault, stage)));
        let counted = cells.map(|(fault, stage)| (fault, stage, self.hits(fault, stage)));
        counted.min_by_key(|(_, _, hits)| *hits).unwrap_or((Fault::Node, Stage::Waiting, 0))
    }
}

/// As a table in Markdown.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| fault | all |")?;
        Stage::ALL.iter().try_for_each(|stage| write!(f, " {} |", stage.word()))?;
        write!(f, "\n|---|---|{}", "---|".repeat(Stage::ALL.len()))?;
        for fault in Fault::ALL {
            write!(f, "\n| {} | {} |", fault.words(), self.faults(fault))?;
            Stage::ALL.iter().try_for_each(|stage| write!(f, " {} |", self.hits(fault, *stage)))?;
        }
        Ok(())
    }
}
