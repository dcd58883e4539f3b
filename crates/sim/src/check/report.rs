//! What a check found: anomalies by name, each with an explanation that shows who saw what.

use std::collections::BTreeMap;
use std::fmt;

use super::history::{History, Status, TransactionIndex};
use super::{Level, Options, text};

/// An anomaly, by the name that the literature gives it; the most severe first.
///
/// The codes G0 to G2 are those of Adya's thesis (1999), G-single and long fork those of the later literature on
/// snapshot isolation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Anomaly {
    /// A value was read that nobody wrote.
    UnwrittenRead,
    /// A value of a transaction that aborted was read (G1a).
    AbortedRead,
    /// A value was read that its writer had overwritten before it committed (G1b).
    IntermediateRead,
    /// One append shows twice in a list.
    DuplicateAppend,
    /// Two reads of one list cannot both be states of it: neither begins with the other.
    IncompatibleOrders,
    /// A transaction did not see its own writes, or read one object twice with different answers.
    InternalInconsistency,
    /// Transactions overwrote each other in a cycle (G0).
    DirtyWrite,
    /// Information flowed in a cycle: each saw or overwrote what the next one wrote (G1c).
    CircularInformationFlow,
    /// A transaction overwrote a version that it had not seen, after reading the one before.
    LostUpdate,
    /// A transaction saw another's writes in part: one of them, but not an earlier one (G-single).
    ReadSkew,
    /// Two readers saw two writers in opposite orders.
    LongFork,
    /// Transactions read what the others overwrote, in a cycle, and none saw another's write.
    WriteSkew,
    /// A cycle through a predicate read: a row that appeared or went changed what another had seen (G2).
    Phantom,
    /// Another cycle with several reads of versions that were overwritten (G2-item).
    AntiDependencyCycle,
    /// An append that its client was told of is in no read that began later.
    LostAppend,
    /// A read did not see what had been committed, and answered, before it began.
    StaleRead,
    /// Another cycle that only real time, or a session's order, closes: an effect before its cause.
    OrderViolation,
}

impl Anomaly {
    /// The name in words, with its code where it has one.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Anomaly::UnwrittenRead => "read of a value that nobody wrote",
            Anomaly::AbortedRead => "aborted read (G1a)",
            Anomaly::IntermediateRead => "intermediate read (G1b)",
            Anomaly::DuplicateAppend => "duplicate append",
            Anomaly::IncompatibleOrders => "incompatible orders",
            Anomaly::InternalInconsistency => "internal inconsistency (non-repeatable read)",
            Anomaly::DirtyWrite => "dirty write (G0)",
            Anomaly::CircularInformationFlow => "circular information flow (G1c)",
            Anomaly::LostUpdate => "lost update",
            Anomaly::ReadSkew => "read skew (G-single)",
            Anomaly::LongFork => "long fork",
            Anomaly::WriteSkew => "write skew (G2-item)",
            Anomaly::Phantom => "phantom (G2)",
            Anomaly::AntiDependencyCycle => "anti-dependency cycle (G2-item)",
            Anomaly::LostAppend => "lost append",
            Anomaly::StaleRead => "stale read (real-time violation)",
            Anomaly::OrderViolation => "order violation (real time or session)",
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One anomaly that was found, as an example of its kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// What it is.
    pub anomaly: Anomaly,
    /// The transactions that show it, in the order in which the explanation names them.
    pub transactions: Vec<TransactionIndex>,
    /// Several lines: the transactions with what they did and saw, and why they cannot be.
    pub explanation: String,
}

/// How much a history could show: a check of a history without conflicts proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evidence {
    /// Transactions whose client was told that they committed.
    pub committed: usize,
    /// Transactions that aborted.
    pub aborted: usize,
    /// Transactions with an unknown end.
    pub unknown: usize,
    /// Those among the unknown whose writes somebody saw; they count as committed.
    pub unknown_seen: usize,
    /// Operations of all transactions that count as committed.
    pub operations: usize,
    /// Write-write dependencies between two transactions.
    pub write_write: usize,
    /// Write-read dependencies.
    pub write_read: usize,
    /// Read-write anti-dependencies.
    pub read_write: usize,
    /// Absent rows of which the history does not tell whether they were not yet or no longer there.
    pub undecided: usize,
}

/// The outcome of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// What was promised.
    pub options: Options,
    /// How much could be seen.
    pub evidence: Evidence,
    /// How often each anomaly was found; of cycles, those of two transactions are counted, of longer ones one for
    /// each strongly connected component.
    pub counts: BTreeMap<Anomaly, usize>,
    /// Examples, the most severe anomaly first, at most [`Report::EXAMPLES_MAX`] for each.
    pub violations: Vec<Violation>,
}

impl Report {
    /// How many examples of one anomaly are kept with their explanations.
    pub const EXAMPLES_MAX: usize = 5;

    /// Whether the history keeps the promise, as far as it can show.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.counts.is_empty()
    }

    /// Whether an anomaly was found.
    #[must_use]
    pub fn found(&self, anomaly: Anomaly) -> bool {
        self.counts.contains_key(&anomaly)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let evidence = &self.evidence;
        writeln!(
            f,
            "{}: {} committed, {} aborted, {} unknown ({} seen); {} operations, {} ww, {} wr, {} rw dependencies",
            self.options,
            evidence.committed,
            evidence.aborted,
            evidence.unknown,
            evidence.unknown_seen,
            evidence.operations,
            evidence.write_write,
            evidence.write_read,
            evidence.read_write,
        )?;
        if self.is_valid() {
            return writeln!(f, "no anomaly found");
        }
        for (anomaly, count) in &self.counts {
            writeln!(f, "FOUND {anomaly}: {count}")?;
        }
        for violation in &self.violations {
            write!(f, "\n{}", violation.explanation)?;
        }
        Ok(())
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.level {
            Level::StrictSerializable => "strict serializability",
            Level::Serializable => "serializability",
            Level::SnapshotIsolation => "snapshot isolation",
            Level::ParallelSnapshotIsolation => "parallel snapshot isolation",
        })?;
        match (self.real_time, self.session_order) {
            (true, _) if self.level != Level::StrictSerializable => f.write_str(" in real time"),
            (false, true) => f.write_str(" in session order"),
            _ => Ok(()),
        }
    }
}

/// Collects violations while a check runs.
pub(super) struct Findings<'h> {
    history: &'h History,
    pub(super) evidence: Evidence,
    counts: BTreeMap<Anomaly, usize>,
    violations: Vec<Violation>,
}

impl<'h> Findings<'h> {
    pub(super) fn new(history: &'h History) -> Findings<'h> {
        let count = |status| history.transactions().iter().filter(|t| t.status == status).count();
        let evidence = Evidence {
            committed: count(Status::Committed),
            aborted: count(Status::Aborted),
            unknown: count(Status::Unknown),
            ..Evidence::default()
        };
        Findings { history, evidence, counts: BTreeMap::new(), violations: Vec::new() }
    }

    pub(super) fn history(&self) -> &'h History {
        self.history
    }

    /// Notes an anomaly; `reasons` are the sentences that show it, made only if it is kept as an example.
    pub(super) fn add(
        &mut self,
        anomaly: Anomaly,
        transactions: &[u32],
        reasons: impl FnOnce() -> Vec<String>,
    ) {
        let count = self.counts.entry(anomaly).or_default();
        *count += 1;
        if *count > Report::EXAMPLES_MAX {
            return;
        }
        let mut indexes: Vec<TransactionIndex> = Vec::new();
        for &transaction in transactions {
            if !indexes.contains(&TransactionIndex(transaction)) {
                indexes.push(TransactionIndex(transaction));
            }
        }
        let explanation = explain(self.history, anomaly, &indexes, &reasons());
        self.violations.push(Violation { anomaly, transactions: indexes, explanation });
    }

    pub(super) fn into_report(mut self, options: Options) -> Report {
        self.violations.sort_by_key(|violation| violation.anomaly);
        Report { options, evidence: self.evidence, counts: self.counts, violations: self.violations }
    }
}

fn explain(
    history: &History,
    anomaly: Anomaly,
    transactions: &[TransactionIndex],
    reasons: &[String],
) -> String {
    const STEPS_SHOWN: usize = 24;
    const TRANSACTIONS_SHOWN: usize = 8;
    let mut lines = vec![format!("{anomaly}:")];
    for &index in transactions.iter().take(TRANSACTIONS_SHOWN) {
        let transaction = history.transaction(index);
        lines.push(format!(
            "  {index} by {}, {}, {} .. {}",
            transaction.process,
            text::status_name(transaction.status),
            seconds(transaction.invoked_ns),
            if transaction.status == Status::Unknown {
                "never heard".to_owned()
            } else {
                seconds(transaction.completed_ns)
            },
        ));
        let mut steps: Vec<String> =
            transaction.operations.iter().take(STEPS_SHOWN).map(text::short_operation).collect();
        if transaction.operations.len() > STEPS_SHOWN {
            steps.push(format!("({} more)", transaction.operations.len() - STEPS_SHOWN));
        }
        lines.push(format!("      {}", steps.join("; ")));
    }
    if transactions.len() > TRANSACTIONS_SHOWN {
        lines.push(format!("  and {} more transactions", transactions.len() - TRANSACTIONS_SHOWN));
    }
    lines.extend(reasons.iter().map(|reason| format!("  - {reason}")));
    lines.join("\n") + "\n"
}

/// A time for a human, to the nanosecond, since two events may be that close.
pub(super) fn seconds(ns: u64) -> String {
    format!("{}.{:09} s", ns / 1_000_000_000, ns % 1_000_000_000)
}
