//! What must be true at the end: every client was answered, nothing is held, all replicas are what the log makes of
//! them, every commit that a client was told of is there, and the history is what the protocol promises.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use onecopy_core::protocol::Position;
use onecopy_core::{Csn, Guarantee, Status};

use super::{Outcome, Simulation};
use crate::check::{self, History, Level, Options, replay};
use crate::clients::schema::initial_contents;
use crate::coverage::Coverage;
use crate::database::{Contents, Database, Isolation, LaneId, Order, Ran};
use crate::failure::Failure;
use crate::log::{Kept, Record};

/// What happened in a run, or in several, in numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Things that happened.
    pub steps: u64,
    /// Transactions whose client was told that they committed.
    pub committed: u64,
    /// Transactions that did not commit.
    pub aborted: u64,
    /// Transactions whose client never heard.
    pub unknown: u64,
    /// Decisions in the log.
    pub decisions: u64,
    /// Refusals of the core, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Statements given up while they waited, of transactions that could go on.
    pub withdrawn: u64,
    /// Transactions that went on after that.
    pub returned: u64,
    /// Transactions that went on after a statement had failed.
    pub returned_after_failures: u64,
    /// Statements that a database refused.
    pub failed_statements: u64,
    /// Statements that waited within a database.
    pub blocked_statements: u64,
    /// Things that broke.
    pub breakages: u64,
    /// Replicas that were copied and have served.
    pub joined: u64,
    /// Replicas that have left for good.
    pub departed: u64,
    /// Requests for items that waited.
    pub grants_waited: u64,
    /// Statements that waited for a replica to contain what they must see.
    pub freshness_waits: u64,
    /// Read phases whose reads were run again.
    pub revalidations: u64,
    /// Transactions that were done again at another home, since theirs was lost.
    pub moved: u64,
    /// Reads that took their items in update mode.
    pub predicted: u64,
    /// Servers that a statement has brought down.
    pub brought_down: u64,
    /// Answers that were dropped since of what they showed something had changed, or was held, or there was too much of it.
    pub executed_again: u64,
    /// Transactions refused since what they had read had changed.
    pub reads_changed: u64,
    /// Cycles of waiting that were closed within servers, and found by looking there.
    pub broken_outside: u64,
    /// Replicas that left service since what they applied waited for an idle transaction.
    pub entangled: u64,
    /// Which faults hit which steps.
    pub coverage: Coverage,
}

impl Statistics {
    /// Adds what a core tells of itself.
    pub(super) fn absorb(&mut self, status: &Status) {
        self.grants_waited += status.grants_waited;
        self.freshness_waits += status.freshness_waits;
        self.revalidations += status.revalidations;
        self.predicted += status.predicted;
        self.executed_again += status.executed_again;
        self.reads_changed += status.reads_changed;
    }

    /// Adds another run's numbers.
    pub fn add(&mut self, other: &Statistics) {
        self.steps += other.steps;
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.unknown += other.unknown;
        self.decisions += other.decisions;
        for (reason, count) in &other.refused {
            *self.refused.entry(reason.clone()).or_default() += count;
        }
        self.withdrawn += other.withdrawn;
        self.returned += other.returned;
        self.returned_after_failures += other.returned_after_failures;
        self.failed_statements += other.failed_statements;
        self.blocked_statements += other.blocked_statements;
        self.breakages += other.breakages;
        self.joined += other.joined;
        self.departed += other.departed;
        self.grants_waited += other.grants_waited;
        self.freshness_waits += other.freshness_waits;
        self.revalidations += other.revalidations;
        self.moved += other.moved;
        self.predicted += other.predicted;
        self.brought_down += other.brought_down;
        self.executed_again += other.executed_again;
        self.reads_changed += other.reads_changed;
        self.broken_outside += other.broken_outside;
        self.entangled += other.entangled;
        self.coverage.add(&other.coverage);
    }
}

impl Simulation<'_> {
    pub(super) fn judge(mut self) -> Outcome {
        let stuck = self.failures.iter().any(|failure| matches!(failure, Failure::Stuck { .. }));
        if !stuck {
            self.expect_nothing_held();
            self.expect_replicas_equal_to_the_log();
        }
        self.expect_acknowledged_commits();
        self.count();
        let history = self.expect_promised_history();
        Outcome {
            failures: self.failures,
            trace_hash: self.trace.hash(),
            trace: self.trace.into_text(),
            statistics: self.statistics,
            history,
        }
    }

    /// After a panic nothing else can be judged.
    pub(super) fn give_up(mut self, panic: &(dyn Any + Send)) -> Outcome {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let message = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it did not say why");
        self.fail(Failure::Panicked { message: message.to_owned() });
        self.statistics.steps = self.steps;
        Outcome {
            failures: self.failures,
            trace_hash: self.trace.hash(),
            trace: self.trace.into_text(),
            statistics: self.statistics,
            history: History::default(),
        }
    }

    fn expect_nothing_held(&mut self) {
        for id in self.members() {
            let lanes = self.replica(id).database.lanes().count();
            if lanes > 0 {
                self.fail(Failure::LaneLeaked { replica: id, lanes });
            }
        }
        for ((txn, _), _) in std::mem::take(&mut self.node.unended) {
            self.senseless(txn, None, "never ends what it has opened on a replica");
        }
        let status = self.protocol.status();
        let end = self.log.end().0;
        let at_rest = status.transactions == 0
            && status.waits_for.is_empty()
            && (status.told, status.decided) == (end, end)
            && self.members().iter().all(|id| {
                let of = &status.replicas[usize::from(id.0)];
                of.up && of.applied == end && of.outstanding_ns == 0.0
            });
        if !at_rest {
            self.fail(Failure::CoreLeaked { status: format!("log ends at {end}: {status:?}") });
        }
    }

    fn expect_replicas_equal_to_the_log(&mut self) {
        let expected = self.replay_log();
        for id in self.members() {
            let contents = self.replica(id).database.contents();
            if let Some(difference) = first_difference(&expected, &contents) {
                self.fail(Failure::ReplicaDiffers { replica: id, difference });
            }
        }
    }

    /// What one server would contain that had run the log's transactions one after the other.
    fn replay_log(&mut self) -> Contents {
        let mut database = Database::new(&initial_contents(self.scenario.keys), Order::WithoutGaps);
        let lane = LaneId(0);
        let records: Vec<(Csn, Record)> =
            self.log.iter().map(|(csn, record)| (csn, record.clone())).collect();
        for (csn, record) in records {
            database.open(lane, Isolation::ReadCommitted);
            let writes = match record {
                Record::Commit { writes, .. } => writes,
                Record::Reserve { .. } => [].into(),
            };
            let differs = |database: &mut Database, kept: &Kept| match database.execute(lane, &kept.plan) {
                Ran::Done(answer) => answer.changes != kept.answer.changes,
                Ran::Failed(_) | Ran::Blocked(_) => true,
            };
            if writes.iter().any(|kept| differs(&mut database, kept)) {
                let mismatches = format!("run in the log's order, {csn:?} does not do what it did at home");
                self.fail(Failure::OrderBroken { mismatches });
            }
            // After a failure there is nothing to commit, and the next record goes on from here.
            if database.commit(lane, csn, csn).is_err() {
                database.open(lane, Isolation::ReadCommitted);
                _ = database.commit(lane, csn, csn);
            }
        }
        database.contents()
    }

    fn expect_acknowledged_commits(&mut self) {
        for (txn, csn) in std::mem::take(&mut self.acknowledged) {
            let there = matches!(self.log.get(csn), Some(Record::Commit { txn: of, .. }) if *of == txn);
            if !there {
                self.fail(Failure::CommitLost { txn, csn });
            }
        }
    }

    fn expect_promised_history(&mut self) -> History {
        let recorder = std::mem::replace(&mut self.recorder, crate::clients::recorder::Recorder::new(0));
        let (history, places) = match recorder.finish(&self.log) {
            Ok(finished) => finished,
            Err(malformed) => {
                self.fail(Failure::HistoryMalformed { reason: malformed.to_string() });
                return History::default();
            }
        };
        let guarantee = self.protocol.guarantee();
        if let Some(options) = self.scenario.demanded.or_else(|| promised(guarantee)) {
            let report = check::check(&history, options);
            if !report.is_valid() {
                self.fail(Failure::Anomaly { report: report.to_string() });
            }
        }
        let time = match guarantee {
            Guarantee::StrictSerializability => Some(replay::Time::Real),
            Guarantee::OneCopySerializability => Some(replay::Time::Any),
            Guarantee::ParallelSnapshotIsolation | Guarantee::None => None,
        };
        // Only of a prefix can the position of a snapshot be said in one number.
        let time = time.filter(|_| self.protocol.position() == Position::Prefix);
        let replayed = time.map(|time| replay::replay(&history, &places, time));
        match replayed {
            Some(Ok(mismatches)) if !mismatches.is_empty() => {
                let mismatches = replay::explain(&history, &mismatches);
                self.fail(Failure::OrderBroken { mismatches });
            }
            Some(Err(malformed)) => self.fail(Failure::HistoryMalformed { reason: malformed.to_string() }),
            Some(Ok(_)) | None => {}
        }
        history
    }

    fn count(&mut self) {
        self.statistics.absorb(&self.protocol.status());
        self.statistics.steps = self.steps;
        self.statistics.decisions = self.log.end().0;
        self.statistics.committed = self.recorder.count(check::Status::Committed) as u64;
        self.statistics.aborted = self.recorder.count(check::Status::Aborted) as u64;
        self.statistics.unknown = self.recorder.count(check::Status::Unknown) as u64;
    }

    /// Who has not been answered, for people.
    pub(super) fn who_waits(&self, why: &str) -> String {
        let mut text = format!("{why} after {} steps at {:?}\n", self.steps, self.queue.now());
        for (number, client) in self.clients.iter().enumerate() {
            if let Some(current) = &client.current {
                let statement = current.script.statements.get(current.step).map(|draft| &draft.plan);
                // Writing to a String cannot fail.
                let _ = writeln!(text, "client {number} in step {}: {statement:?}", current.step);
            }
        }
        let _ = writeln!(text, "open: {:?}", self.node.txns.keys().collect::<Vec<_>>());
        let _ = writeln!(text, "core: {:?}", self.protocol.status());
        for (number, replica) in self.replicas.iter().enumerate() {
            let waiting = replica.waiting();
            let _ = writeln!(text, "R{number} up {}: {waiting}", replica.up);
        }
        text
    }
}

/// What a guarantee means to a client, if it means anything; all protocols that give one keep the order of a session.
fn promised(guarantee: Guarantee) -> Option<Options> {
    Some(match guarantee {
        Guarantee::StrictSerializability => Level::StrictSerializable.into(),
        Guarantee::OneCopySerializability => Options::from(Level::Serializable).in_session_order(),
        Guarantee::ParallelSnapshotIsolation => {
            Options::from(Level::ParallelSnapshotIsolation).in_session_order()
        }
        Guarantee::None => return None,
    })
}

fn first_difference(expected: &Contents, contents: &Contents) -> Option<String> {
    let keys = expected.keys().chain(contents.keys());
    let at = keys.filter(|key| expected.get(key) != contents.get(key)).min()?;
    let (expected, found) = (expected.get(at), contents.get(at));
    Some(format!("{at:?} is {found:?}, expected {expected:?}"))
}
