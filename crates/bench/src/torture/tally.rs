//! Counts of how transactions ended, by class.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::trouble::Trouble;

/// How the transactions of one class ended. A class is a workload with the way its transactions are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassCount {
    /// Told that they committed.
    pub committed: u64,
    /// Rolled back by the client, on purpose.
    pub rolled_back: u64,
    /// Refused with 40001 (serialization failure).
    pub serialization_failures: u64,
    /// Refused with 40P01 (deadlock).
    pub deadlocks: u64,
    /// The connection could not be made or broke; the transaction did not commit.
    pub connection_errors: u64,
    /// The connection broke, or no answer came, after the commit was asked for.
    pub unknown: u64,
    /// Anything else: a fault.
    pub failed: u64,
}

impl ClassCount {
    /// All transactions that were tried.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.committed
            + self.rolled_back
            + self.serialization_failures
            + self.deadlocks
            + self.connection_errors
            + self.unknown
            + self.failed
    }

    /// The part of the attempts that ended with 40001 or 40P01, 0 to 1.
    #[must_use]
    pub fn conflict_rate(&self) -> f64 {
        (self.serialization_failures + self.deadlocks) as f64 / self.attempts().max(1) as f64
    }

    pub(super) fn add(&mut self, other: &ClassCount) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.serialization_failures += other.serialization_failures;
        self.deadlocks += other.deadlocks;
        self.connection_errors += other.connection_errors;
        self.unknown += other.unknown;
        self.failed += other.failed;
    }
}

/// Something that must not happen, with how often it did and its first occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// How often.
    pub count: u64,
    /// The class of the first one, and what was said.
    pub first: String,
}

/// What one client counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) classes: BTreeMap<String, ClassCount>,
    /// By SQLSTATE, or by what went wrong.
    pub(super) faults: BTreeMap<String, Fault>,
    /// By invariant.
    pub(super) broken: BTreeMap<String, Fault>,
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Committed,
    RolledBack,
    Aborted,
    Unknown,
}

impl Tally {
    pub(super) fn ended(&mut self, class: &str, end: End, trouble: Option<&Trouble>) {
        let count = self.classes.entry(class.to_owned()).or_default();
        let fault = |kind: &str, said: &str| Some((kind.to_owned(), format!("{class}: {said}")));
        let fault = match (end, trouble) {
            (End::Committed, None) => {
                count.committed += 1;
                None
            }
            (End::RolledBack, None) => {
                count.rolled_back += 1;
                None
            }
            (_, Some(Trouble::Refused { code, .. })) if code == "40001" => {
                count.serialization_failures += 1;
                None
            }
            (_, Some(Trouble::Refused { code, .. })) if code == "40P01" => {
                count.deadlocks += 1;
                None
            }
            (_, Some(Trouble::Refused { code, message })) => fault(code, message),
            (_, Some(Trouble::Nonsense { why })) => fault("unexpected answer", why),
            (_, Some(Trouble::Stalled { doing })) => fault("stalled", doing),
            (End::Unknown, Some(Trouble::Lost { .. }) | None) => {
                count.unknown += 1;
                None
            }
            (_, Some(Trouble::Lost { .. })) | (End::Aborted, None) => {
                count.connection_errors += 1;
                None
            }
        };
        if let Some((kind, said)) = fault {
            count.failed += 1;
            note(&mut self.faults, kind, said);
        }
    }

    /// Notes that what the workload maintains did not hold.
    pub(super) fn broken(&mut self, invariant: &str, what: String) {
        note(&mut self.broken, invariant.to_owned(), what);
    }

    pub(super) fn merge(&mut self, other: Tally) {
        for (class, count) in other.classes {
            self.classes.entry(class).or_default().add(&count);
        }
        for (mine, theirs) in [(&mut self.faults, other.faults), (&mut self.broken, other.broken)] {
            for (kind, fault) in theirs {
                let into = mine.entry(kind).or_insert(Fault { count: 0, first: fault.first });
                into.count += fault.count;
            }
        }
    }
}

/// Counts a fault, and keeps what was said of the first.
pub(super) fn note(faults: &mut BTreeMap<String, Fault>, kind: String, said: String) {
    faults.entry(kind).or_insert(Fault { count: 0, first: said }).count += 1;
}
