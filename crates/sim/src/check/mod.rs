//! Checks whether a complete history keeps a promise, and explains where it does not.
//!
//! The idea is that of Elle (Kingsbury and Alvaro, VLDB 2020): clients write unique values to objects whose reads
//! show the order of versions, so that from what they saw it can be inferred which transaction must precede
//! which; a cycle is an anomaly, and the kinds of its edges tell which. The design and the code are our own. What
//! differs: rows and predicate reads are objects too; only a frontier of real-time order is kept, and cycles are
//! shown with real time as a single step; that a level is violated is decided exactly for each of the four levels.
//!
//! Guarantee: what is reported is an anomaly (no false alarm), provided that times come from one monotonic clock.
//! For lists, all anomalies that clients saw are found; for registers written blindly at once, and rows that are
//! deleted, some orders stay undecided. [`Evidence`] says how much a history could show.
//!
//! [`replay`] is independent of all that: it needs the intended order, and checks every read against a model.
//!
//! A check goes as follows: [`history`] checks the form, `outside` separates what a transaction saw of others from
//! its own writes, `lists`, `registers` and `rows` judge single reads and infer dependencies, `time` adds session
//! order and real time, `cycles` finds what is forbidden, and [`report`] explains.

mod cycles;
mod graph;
pub mod history;
mod lists;
mod outside;
mod registers;
pub mod replay;
pub mod report;
mod rows;
#[cfg(test)]
mod tests;
pub mod text;
mod time;

pub use history::{
    History, List, MalformedHistory, Operation, Process, Register, Row, Status, Table, Transaction,
    TransactionIndex, Value,
};
pub use report::{Anomaly, Evidence, Report, Violation};

/// What a system promises of all histories.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Level {
    /// Transactions appear to run one at a time, each at a moment between its invocation and its completion.
    StrictSerializable,
    /// Transactions appear to run one at a time, in some order.
    Serializable,
    /// Transactions read from a snapshot of one order of commits, and of two concurrent ones that write the same
    /// object only one commits.
    SnapshotIsolation,
    /// As snapshot isolation, but transactions that do not conflict may become visible in different orders.
    ParallelSnapshotIsolation,
}

/// What exactly is demanded; `Level::into` gives what the level's name means by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Options {
    /// The level.
    pub level: Level,
    /// A transaction must see what its own process did before.
    pub session_order: bool,
    /// A transaction must see what had completed before it was invoked.
    pub real_time: bool,
}

impl From<Level> for Options {
    fn from(level: Level) -> Options {
        let strict = level == Level::StrictSerializable;
        Options { level, session_order: strict, real_time: strict }
    }
}

impl Options {
    /// The same with session order.
    #[must_use]
    pub fn in_session_order(self) -> Options {
        Options { session_order: true, ..self }
    }

    /// The same with real time.
    #[must_use]
    pub fn in_real_time(self) -> Options {
        Options { session_order: true, real_time: true, ..self }
    }
}

/// Checks a history; the work is about linear in the number of operations and dependencies.
#[must_use]
pub fn check(history: &History, options: impl Into<Options>) -> Report {
    let options = options.into();
    let mut findings = report::Findings::new(history);
    let writers = outside::Writers::of(history);
    for (index, transaction) in history.iter() {
        if writers.counts[index.0 as usize] {
            findings.evidence.operations += transaction.operations.len();
            findings.evidence.unknown_seen += usize::from(transaction.status == Status::Unknown);
        }
    }
    let outside = outside::outside(&writers, &mut findings);
    let mut graph = graph::GraphBuilder::default();
    lists::infer(&outside, &writers, &mut graph, &mut findings);
    registers::infer(&outside, &writers, options, &mut graph, &mut findings);
    rows::infer(&outside, &writers, options, &mut graph, &mut findings);
    findings.evidence.write_write = graph.count(graph::Kind::WriteWrite);
    findings.evidence.write_read = graph.count(graph::Kind::WriteRead);
    findings.evidence.read_write = graph.count(graph::Kind::ReadWrite);
    if options.session_order {
        time::add_session_edges(history, &writers.counts, &mut graph);
    }
    if options.real_time {
        time::add_real_time_edges(history, &writers.counts, &mut graph);
    }
    cycles::find(&graph.build(history.transactions().len()), options, &mut findings);
    findings.into_report(options)
}
