//! Everything that a run can be found guilty of.

use std::fmt;

use onecopy_core::{Csn, OpId, ReplicaId, TxnId};

use crate::database::Fault;

/// What is promised, by the kind of failure that says otherwise.
pub const PROMISES: [(&str, &str); 20] = [
    ("anomaly", "what clients saw is strictly serializable"),
    ("order broken", "what clients saw is what the log's order makes of it"),
    ("commit lost", "no commit that a client was told of is lost"),
    ("acknowledged early", "clients hear of a commit when it is durable and visible"),
    ("replica ahead of the log", "no replica contains what the log has not"),
    ("commit out of order", "every replica commits in the order of the log, each decision once"),
    ("replica differs", "all replicas are equal in the end, and what the log makes of them"),
    ("disagreement", "a statement changes the same rows on every replica"),
    ("apply blocked", "nothing that is open keeps a decision from being applied"),
    ("apply failed", "every decision can be applied"),
    ("deadlock in a database", "no two transactions wait for each other within a database"),
    ("value given twice", "no value of a sequence is given twice"),
    ("stuck", "after the last fault every client is answered, and everything gets on"),
    ("lane leaked", "no transaction stays open in a database that nobody needs"),
    ("core leaked", "the core forgets what is over, and knows what every replica contains"),
    ("order senseless", "the core gives no order that makes no sense"),
    ("history malformed", "the simulator's own records make sense"),
    (
        "invariant broken",
        "nobody waits for a replica while one serves that contains what is needed, and nothing is kept of who is gone",
    ),
    ("servers brought down", "a statement that crashes servers crashes no more than three"),
    ("panicked", "no assertion of the code fails"),
];

/// A promise that was not kept.
#[derive(Clone, PartialEq, Debug)]
pub enum Failure {
    /// The history shows an anomaly that the protocol promises not to show.
    Anomaly {
        /// The checker's report.
        report: String,
    },
    /// The history is not what the log's order makes of it.
    OrderBroken {
        /// What differs, with explanations.
        mismatches: String,
    },
    /// The driver recorded a history that makes no sense: a fault of the simulator.
    HistoryMalformed {
        /// Why.
        reason: String,
    },
    /// A replica was told to commit something that does not follow what it contains.
    CommitOutOfOrder {
        /// The replica.
        replica: ReplicaId,
        /// What it was told to commit.
        csn: Csn,
        /// What it contains.
        progress: Csn,
    },
    /// Transactions waited for each other's rows within one database.
    DatabaseDeadlock {
        /// The database.
        replica: ReplicaId,
    },
    /// A decision could not be applied because a transaction that is still open holds its rows.
    ApplyBlocked {
        /// The replica.
        replica: ReplicaId,
        /// The decision.
        csn: Csn,
        /// Who is in the way.
        by: TxnId,
    },
    /// A decision could not be applied.
    ApplyFailed {
        /// The replica.
        replica: ReplicaId,
        /// The decision.
        csn: Csn,
        /// Why.
        fault: Fault,
    },
    /// On a replica, a statement changed other rows than where it had run first.
    Disagreement {
        /// The replica.
        replica: ReplicaId,
        /// The decision that was applied.
        csn: Option<Csn>,
        /// Or the transaction that was executed there.
        txn: Option<TxnId>,
    },
    /// A client was told of a commit that was not durable, or that no replica contained.
    AcknowledgedEarly {
        /// The transaction.
        txn: TxnId,
        /// Its place in the order.
        csn: Csn,
    },
    /// A client was told of a commit that the log does not have.
    CommitLost {
        /// The transaction.
        txn: TxnId,
        /// The place that its client was told of.
        csn: Csn,
    },
    /// A replica contains what no log has.
    AheadOfLog {
        /// The replica.
        replica: ReplicaId,
        /// What it contains.
        progress: Csn,
    },
    /// In the end a replica does not contain what the log makes of the initial contents.
    ReplicaDiffers {
        /// The replica.
        replica: ReplicaId,
        /// The first difference.
        difference: String,
    },
    /// A transaction is still open in a database though nobody needs it.
    LaneLeaked {
        /// The database.
        replica: ReplicaId,
        /// How many.
        lanes: usize,
    },
    /// The core still holds something though every client is done.
    CoreLeaked {
        /// What it says of itself.
        status: String,
    },
    /// Nothing will ever happen again, or not within reason, and somebody still waits.
    Stuck {
        /// Who, and for what.
        waiting: String,
    },
    /// A value of a sequence was given twice.
    ValueGivenTwice {
        /// The value.
        value: i64,
    },
    /// The code itself found that something cannot be, and ended.
    Panicked {
        /// What it said.
        message: String,
    },
    /// The core has found in itself what must not be.
    InvariantBroken {
        /// What it is.
        what: String,
    },
    /// One transaction has brought down more servers than it may.
    ServersBroughtDown {
        /// The transaction.
        txn: TxnId,
        /// How many.
        times: u32,
    },
    /// The core gave an order that makes no sense.
    OrderSenseless {
        /// The transaction.
        txn: TxnId,
        /// The statement, if it is about one.
        op: Option<OpId>,
        /// What.
        what: &'static str,
    },
}

impl Failure {
    /// The kind of failure in a word, the same for all of a kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Failure::Anomaly { .. } => "anomaly",
            Failure::OrderBroken { .. } => "order broken",
            Failure::HistoryMalformed { .. } => "history malformed",
            Failure::CommitOutOfOrder { .. } => "commit out of order",
            Failure::DatabaseDeadlock { .. } => "deadlock in a database",
            Failure::ApplyBlocked { .. } => "apply blocked",
            Failure::ApplyFailed { .. } => "apply failed",
            Failure::Disagreement { .. } => "disagreement",
            Failure::AcknowledgedEarly { .. } => "acknowledged early",
            Failure::CommitLost { .. } => "commit lost",
            Failure::AheadOfLog { .. } => "replica ahead of the log",
            Failure::ReplicaDiffers { .. } => "replica differs",
            Failure::LaneLeaked { .. } => "lane leaked",
            Failure::CoreLeaked { .. } => "core leaked",
            Failure::Stuck { .. } => "stuck",
            Failure::ValueGivenTwice { .. } => "value given twice",
            Failure::InvariantBroken { .. } => "invariant broken",
            Failure::ServersBroughtDown { .. } => "servers brought down",
            Failure::OrderSenseless { .. } => "order senseless",
            Failure::Panicked { .. } => "panicked",
        }
    }

    /// The promise that is broken by a failure of a kind; each has a checker of its own.
    #[must_use]
    pub fn promise(kind: &str) -> Option<&'static str> {
        PROMISES.iter().find(|(of, _)| *of == kind).map(|(_, promise)| *promise)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Anomaly { report } => write!(f, "the history shows an anomaly\n{report}"),
            Failure::OrderBroken { mismatches } => {
                write!(f, "the history is not what the log's order makes of it\n{mismatches}")
            }
            Failure::Stuck { waiting } => write!(f, "stuck: {waiting}"),
            Failure::ReplicaDiffers { replica, difference } => {
                write!(f, "{replica:?} differs from a replay of the log: {difference}")
            }
            other => write!(f, "{}: {other:?}", other.kind()),
        }
    }
}
