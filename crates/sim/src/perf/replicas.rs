//! What databases are told to do, and what they report.

use std::collections::BTreeMap;
use std::time::Duration;

use onecopy_core::effect::How;
use onecopy_core::{Csn, Event, Guarantee, Instant, OpId, Outcome, Place, ReplicaId, TxnId};

use onecopy_workload::StatementId;
use onecopy_workload::random::exponential;
use smallvec::SmallVec;

use super::classes::Touches;
use super::measure::Ran;
use super::network::Machine;
use super::node::Record;
use super::setup::Loads;
use super::versions::{Seen, Version};
use super::{Fault, Simulation, Wake};
use crate::server::{Kind, Server};

/// How many times its mean an uneven time is at most.
const UNEVEN_MAX: u32 = 20;

/// One database.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) server: Server<Job>,
    /// What it contains of the log, where replicas apply one or commit in its order.
    position: Csn,
    /// Commits that wait for their turn.
    waiting: BTreeMap<Csn, (TxnId, Instant)>,
}

/// An order to a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    Statement { txn: TxnId, op: OpId, how: How, hold: bool },
    Revalidate { txn: TxnId },
    Commit { txn: TxnId, csn: Csn },
    Apply { from: Csn, to: Csn },
    Leave { txn: TxnId },
}

/// What a write that was executed elsewhere does to a database, and found there.
#[derive(Debug)]
pub(super) struct Shipped {
    statement: StatementId,
    touches: Touches,
    version: Version,
    seen: Option<Seen>,
}

/// What a database works at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    Statement { txn: TxnId, op: OpId, hold: bool, how: How, position: Csn, arrived: Instant },
    Revalidate { txn: TxnId },
    Commit { txn: TxnId, csn: Csn, arrived: Instant },
    Apply { csn: Csn, to: Csn },
    ApplyTogether { from: Csn, to: Csn },
    Shipped { txn: TxnId, origin: Place },
}

/// What a database says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Report {
    /// With the time from which loads are estimated.
    Executed {
        txn: TxnId,
        op: OpId,
        elapsed_ns: u64,
    },
    Revalidated {
        txn: TxnId,
        same: bool,
    },
    Applied {
        csn: Csn,
    },
    ShippedApplied {
        txn: TxnId,
        origin: Place,
    },
}

impl Replica {
    pub(super) fn new(server: Server<Job>) -> Replica {
        Replica { server, position: Csn(0), waiting: BTreeMap::new() }
    }
}

/// Orders.
impl Simulation<'_> {
    /// Sends an order that was given at a place.
    pub(super) fn command(&mut self, place: Place, replica: ReplicaId, command: Command) {
        let now = self.queue.now();
        let (from, to) = (Machine::from(place), Machine::Database(replica));
        if from == to {
            return self.on_command(replica, command);
        }
        self.count_message(from, to);
        let at = self.network.arrival(now, from, to);
        self.queue.schedule(at, Wake::Command { replica, command });
    }

    pub(super) fn on_command(&mut self, replica: ReplicaId, command: Command) {
        let now = self.queue.now();
        match command {
            Command::Statement { txn, op, how, hold } => {
                let position = self.replicas[usize::from(replica.0)].position;
                let Some(open) = self.txns.get_mut(&txn) else {
                    return self.fault(Fault::Senseless { txn, what: "executes a statement that is over" });
                };
                let Some(asked) = open.ops.get_mut(op.0 as usize) else {
                    return self
                        .fault(Fault::Senseless { txn, what: "executes a statement that nobody asked" });
                };
                if !self.everywhere {
                    // Where one replica executes it, an answer from before was dropped.
                    (asked.seen, asked.ran) = (None, SmallVec::new());
                }
                let (writes, cost_ns) = (asked.version != 0, self.classes.of(asked.statement).cost_ns);
                if self.at_peers
                    && !writes
                    && let Some(own) = &mut self.own
                {
                    // Its snapshot.
                    asked.seen =
                        Some(own.execute(replica, asked.touches(&self.classes), 0, &mut open.changes));
                }
                let position = match how {
                    How::Snapshot { open: true } => {
                        open.snapshot = position;
                        position
                    }
                    How::Snapshot { open: false } => open.snapshot,
                    How::Alone | How::Home { .. } => position,
                };
                let kind = if writes { Kind::Write } else { Kind::Read };
                let job = Job::Statement { txn, op, hold, how, position, arrived: now };
                self.work(replica, kind, cost_ns, job);
            }
            Command::Revalidate { txn } => {
                let Some(open) = self.txns.get(&txn) else {
                    return self.fault(Fault::Senseless { txn, what: "repeats reads of what is over" });
                };
                let reads = open.reads.iter().map(|(op, _)| open.ops[*op].statement);
                let cost_ns = reads.map(|statement| self.classes.of(statement).cost_ns).sum();
                self.work(replica, Kind::Read, cost_ns, Job::Revalidate { txn });
            }
            Command::Commit { txn, csn } if !self.has_its_turn(replica, csn) => {
                self.replicas[usize::from(replica.0)].waiting.insert(csn, (txn, now));
            }
            Command::Commit { txn, csn } => {
                let job = Job::Commit { txn, csn, arrived: now };
                self.work(replica, Kind::Write, self.classes.commit_ns, job);
            }
            Command::Apply { from, to } if self.setup.applies_together => {
                let records: Option<Vec<&Record>> =
                    (from.0..=to.0).map(|csn| self.log.get(Csn(csn))).collect();
                let Some(records) = records else { return self.applies_nothing() };
                let each_ns = records.iter().map(|record| self.classes.apply_alone_ns(record.executing_ns));
                let cost_ns = each_ns.sum::<u64>() + self.classes.commit_ns;
                self.work(replica, Kind::Write, cost_ns, Job::ApplyTogether { from, to });
            }
            Command::Apply { from, to } => {
                if let Some((cost_ns, job)) = self.record_to_apply(from, to) {
                    self.work(replica, Kind::Write, cost_ns, job);
                }
            }
            Command::Leave { txn } => {
                if let (Some(own), Some(open)) = (&mut self.own, self.txns.get_mut(&txn)) {
                    own.undo(replica, &mut open.changes);
                }
            }
        }
    }

    /// Whether a database may commit this decision, as far as order is concerned.
    fn has_its_turn(&self, replica: ReplicaId, csn: Csn) -> bool {
        !self.everywhere
            || !self.setup.engine.commits_in_order
            || csn <= self.replicas[usize::from(replica.0)].position.next()
    }

    /// The next of those records that a database applies, and what that costs.
    fn record_to_apply(&mut self, csn: Csn, to: Csn) -> Option<(u64, Job)> {
        let Some(record) = self.log.get(csn) else {
            self.applies_nothing();
            return None;
        };
        Some((self.classes.apply_ns(record.executing_ns), Job::Apply { csn, to }))
    }

    fn applies_nothing(&mut self) {
        self.fault(Fault::Senseless { txn: TxnId(0), what: "applies what the log does not have" });
    }

    /// How long something takes that costs so much.
    fn time_ns(&mut self, cost_ns: u64) -> u64 {
        match &mut self.times {
            Some(random) => {
                let mean = Duration::from_nanos(cost_ns);
                exponential(random, mean, mean * UNEVEN_MAX).as_nanos() as u64
            }
            None => cost_ns,
        }
    }

    fn work(&mut self, replica: ReplicaId, kind: Kind, cost_ns: u64, job: Job) {
        let (now, time_ns) = (self.queue.now(), self.time_ns(cost_ns));
        self.replicas[usize::from(replica.0)].server.arrive(now, kind, time_ns, job);
        self.expect_completion(replica);
    }

    /// Puts the next completion on the calendar, unless something earlier is there for this replica: that will look again.
    fn expect_completion(&mut self, replica: ReplicaId) {
        if let Some(at) = self.replicas[usize::from(replica.0)].server.expect_completion() {
            self.queue.schedule(at, Wake::Completion(replica));
        }
    }

    pub(super) fn on_completion(&mut self, replica: ReplicaId) {
        let now = self.queue.now();
        if !self.replicas[usize::from(replica.0)].server.is_expected(now) {
            return;
        }
        while let Some(job) = self.replicas[usize::from(replica.0)].server.complete(now) {
            self.on_job_done(replica, job);
        }
        self.expect_completion(replica);
    }
}

/// What was worked at.
impl Simulation<'_> {
    fn on_job_done(&mut self, replica: ReplicaId, job: Job) {
        let now = self.queue.now();
        match job {
            Job::Statement { txn, op, hold, how, position, arrived } => {
                let elapsed_ns = now.since_ns(arrived);
                let Some(idle_ns) = self.execute(replica, txn, op, how, position, elapsed_ns) else { return };
                let elapsed_ns = match self.setup.loads {
                    Loads::Idle => idle_ns,
                    Loads::Measured => elapsed_ns,
                };
                self.report(replica, Report::Executed { txn, op, elapsed_ns });
                if !hold {
                    self.answer(txn, op, replica, Machine::Database(replica));
                }
            }
            Job::Revalidate { txn } => {
                let position = self.replicas[usize::from(replica.0)].position;
                let Some(open) = self.txns.get(&txn) else { return };
                let same = open.reads.iter().all(|(op, seen)| {
                    self.shared.read(position, &[], open.ops[*op].touches(&self.classes)) == *seen
                });
                self.report(replica, Report::Revalidated { txn, same });
            }
            Job::Commit { txn, csn, arrived } => {
                if let Some(open) = self.txns.get_mut(&txn) {
                    open.commit_ns.get_or_insert(now.since_ns(arrived));
                    if let Some(own) = &mut self.own {
                        own.commit(replica, &mut open.changes);
                    }
                }
                self.contain(replica, csn, csn);
            }
            Job::Apply { csn, to } => {
                // One order is one turn at the database, however many records it names.
                if csn < to
                    && let Some((cost_ns, job)) = self.record_to_apply(csn.next(), to)
                {
                    let time_ns = self.time_ns(cost_ns);
                    self.replicas[usize::from(replica.0)].server.go_on(Kind::Write, time_ns, job);
                }
                self.contain(replica, csn, csn);
            }
            Job::ApplyTogether { from, to } => self.contain(replica, from, to),
            Job::Shipped { txn, origin } => self.on_shipped_applied(txn, origin, replica),
        }
    }

    /// The effects of a statement on a database. Returns what it costs on an idle one; nothing if its transaction is over.
    fn execute(
        &mut self,
        replica: ReplicaId,
        txn: TxnId,
        op: OpId,
        how: How,
        position: Csn,
        elapsed_ns: u64,
    ) -> Option<u64> {
        let open = self.txns.get_mut(&txn)?;
        let index = op.0 as usize;
        let cost_ns = self.classes.of(open.ops.get(index)?.statement).cost_ns;
        let own_ns = open.waited_for_itself(replica, self.queue.now(), self.everywhere);
        // Once answered, nobody asks who else executed it.
        let asked = &mut open.ops[index];
        if self.at_peers || asked.seen.is_none() || !asked.ran.is_empty() {
            asked.ran.push((replica, Ran { execution_ns: elapsed_ns, own_ns }));
        }
        let seen = match &mut self.own {
            Some(_) if self.at_peers && asked.version == 0 => return Some(cost_ns),
            Some(own) => own.execute(replica, asked.touches(&self.classes), asked.version, &mut open.changes),
            None if self.everywhere => Seen::new(),
            None => {
                let touches = asked.touches(&self.classes);
                let seen = self.shared.read(position, &open.writes, touches);
                let writes = touches.iter().filter(|touch| touch.writes);
                open.writes.extend(writes.map(|touch| (touch.object, asked.version)));
                if matches!(how, How::Snapshot { .. }) {
                    open.reads.push((index, seen.clone()));
                }
                seen
            }
        };
        match &asked.seen {
            Some(first) if *first != seen => self.disagrees(txn, op, replica),
            Some(_) => {}
            None => asked.seen = Some(seen),
        }
        Some(cost_ns)
    }

    /// A database contains these decisions from now on.
    fn contain(&mut self, replica: ReplicaId, from: Csn, to: Csn) {
        let database = &mut self.replicas[usize::from(replica.0)];
        if !self.everywhere || self.setup.engine.commits_in_order {
            let in_order = database.position.next() == from;
            database.position = to;
            let due = database.waiting.remove(&to.next());
            if !in_order {
                self.fault(Fault::OutOfOrder { replica, csn: from });
            }
            if let Some((txn, arrived)) = due {
                let job = Job::Commit { txn, csn: to.next(), arrived };
                self.work(replica, Kind::Write, self.classes.commit_ns, job);
            }
        }
        self.report(replica, Report::Applied { csn: to });
    }
}

/// Writes that one database sends to others.
impl Simulation<'_> {
    /// A transaction of one statement sends what it wrote.
    pub(super) fn ship(&mut self, txn: TxnId, to: ReplicaId) {
        let Some(only) = self.txns.get(&txn).and_then(|open| open.ops.first()) else {
            return self.fault(Fault::Senseless { txn, what: "ships what was not executed" });
        };
        let touches = only.touches(&self.classes).clone();
        let seen = only.seen.clone();
        let shipped = Shipped { statement: only.statement, touches, version: only.version, seen };
        self.shipped.insert((txn, to), shipped);
    }

    /// It is executed here, as it was there.
    pub(super) fn apply_shipped(&mut self, txn: TxnId, origin: Place, replica: ReplicaId) {
        let Some(shipped) = self.shipped.get(&(txn, replica)) else {
            return self.fault(Fault::Senseless { txn, what: "applies what was not sent" });
        };
        let cost_ns = self.classes.apply_ns(self.classes.of(shipped.statement).cost_ns);
        self.work(replica, Kind::Write, cost_ns, Job::Shipped { txn, origin });
    }

    fn on_shipped_applied(&mut self, txn: TxnId, origin: Place, replica: ReplicaId) {
        let Some(Shipped { touches, version, seen, .. }) = self.shipped.remove(&(txn, replica)) else {
            return;
        };
        if let Some(own) = &mut self.own {
            let mut changes = Vec::new();
            let found = own.execute(replica, &touches, version, &mut changes);
            own.commit(replica, &mut changes);
            if seen.is_some_and(|seen| seen != found) {
                self.disagrees(txn, OpId(0), replica);
            }
        }
        self.report(replica, Report::ShippedApplied { txn, origin });
    }

    /// A statement found something else at one database than at another.
    fn disagrees(&mut self, txn: TxnId, op: OpId, replica: ReplicaId) {
        match self.protocol.guarantee() {
            Guarantee::None => self.measured.disagreements += 1,
            _ => self.fault(Fault::Disagreement { txn, op, replica }),
        }
    }
}

/// Reports.
impl Simulation<'_> {
    fn report(&mut self, replica: ReplicaId, report: Report) {
        let event = self.event_of(replica, report);
        let (from, to) = (Machine::Database(replica), Machine::from(self.protocol.place_of(&event)));
        if from == to {
            return self.feed(event);
        }
        self.count_message(from, to);
        let at = self.network.arrival(self.queue.now(), from, to);
        self.queue.schedule(at, Wake::Report { replica, report });
    }

    pub(super) fn on_report(&mut self, replica: ReplicaId, report: Report) {
        let event = self.event_of(replica, report);
        self.feed(event);
    }

    fn event_of(&self, replica: ReplicaId, report: Report) -> Event {
        match report {
            Report::Executed { txn, op, elapsed_ns } => {
                let asked = self.txns.get(&txn).and_then(|open| open.ops.get(op.0 as usize));
                let returned = asked.map(|asked| asked.returned.clone()).unwrap_or_default();
                let outcome = Outcome::Done { returned };
                Event::Executed { txn, op, replica, outcome, elapsed_ns }
            }
            Report::Revalidated { txn, same } => Event::Revalidated { txn, replica, same },
            Report::Applied { csn } => Event::Applied { replica, csn },
            Report::ShippedApplied { txn, origin } => Event::ShippedApplied { origin, txn, replica },
        }
    }
}
