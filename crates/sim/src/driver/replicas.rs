//! The node's agents in front of the databases: what they have open there, and the commands they send.

use std::collections::{BTreeMap, BTreeSet};

use onecopy_core::effect::How;
use onecopy_core::protocol::Position;
use onecopy_core::{Csn, Event, Instant, OpId, Outcome, ReplicaId, TxnId};

use super::{Simulation, Wake};
use crate::database::{Contents, Database, Isolation, LaneId, Order};
use crate::failure::Failure;
use crate::plan::Plan;
use crate::scenario::Moment;
use crate::timing::Step;

/// Whether a database is one of the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Membership {
    /// It is to be copied as soon as there is a source.
    AwaitingSource,
    /// It is being copied, by the node of this epoch.
    AwaitingCopy(u64),
    Stays,
    /// It was found to contain what is wrong, and has to be copied anew once its loss is known.
    Differs,
    Leaves,
    Gone,
}

/// A database with what the node believes and has open there.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) membership: Membership,
    pub(super) database: Database,
    /// Whether the node has connections to it.
    pub(super) up: bool,
    /// The node's present connections; answers over older ones are not heard any more.
    pub(super) session: u64,
    /// The oldest connections whose commands the database still carries out.
    pub(super) accepts: u64,
    pub(super) lanes: BTreeMap<TxnId, Lane>,
    /// Lanes whose end is on its way.
    pub(super) ending: BTreeSet<LaneId>,
    /// Lanes whose commit in order is on its way.
    pub(super) committing: BTreeSet<LaneId>,
    /// What waits within the database, with the connections over which it came.
    pub(super) blocked: BTreeMap<LaneId, (u64, Job)>,
    /// Statements whose answer has not come.
    pub(super) outstanding: BTreeSet<(TxnId, OpId)>,
    /// Those of them whose answer is on its way.
    pub(super) answered: BTreeSet<(TxnId, OpId)>,
    /// Answers that had come when the connections were lost, and are heard of after that.
    pub(super) heard_late: BTreeSet<(TxnId, OpId)>,
    /// Runs of decisions that are being applied: what is applied next, and the last.
    pub(super) runs: BTreeMap<RunId, (Csn, Csn)>,
    /// When the last report of commits arrives: they do not overtake each other.
    pub(super) last_applied_report: Instant,
    /// Its server does nothing for now; what it was told meanwhile waits.
    pub(super) stands_still: bool,
    pub(super) unheard: Vec<(u64, Operation)>,
    /// It came back without what was durable up to here, and has not applied all of it.
    pub(super) catches_up_to: Option<Csn>,
}

/// One `Apply`, unique in a run of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RunId(u64);

/// A transaction's open connection.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) id: LaneId,
    /// When its last command arrives: commands do not overtake each other.
    last_command: Instant,
    /// Whether a command is under way that will be answered.
    pub(super) busy: bool,
}

/// A command to a database.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// Go on with a job, beginning a transaction first if `open` says so.
    Work {
        lane: LaneId,
        open: Option<Isolation>,
        job: Job,
    },
    Rollback {
        lane: LaneId,
    },
    Finish {
        lane: LaneId,
        txn: TxnId,
    },
    Cancel {
        lane: LaneId,
    },
    CommitAt {
        lane: LaneId,
        txn: TxnId,
        csn: Csn,
    },
    CommitUnit {
        lane: LaneId,
        run: RunId,
        from: Csn,
        to: Csn,
    },
}

/// Statements to be executed in a lane.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Execute(Execution),
    /// The reads of a read phase from `index` on; `same` so far.
    Rerun {
        txn: TxnId,
        index: usize,
        same: bool,
    },
    /// The writes of the decisions up to `to`, from the `index`-th of `csn` on.
    Unit {
        run: RunId,
        from: Csn,
        to: Csn,
        csn: Csn,
        index: usize,
    },
}

/// A client's statement at a replica.
#[derive(Clone, Debug)]
pub(super) struct Execution {
    pub(super) txn: TxnId,
    pub(super) op: OpId,
    pub(super) plan: Plan,
    pub(super) how: How,
    pub(super) hold: bool,
    pub(super) sent: Instant,
}

impl Replica {
    pub(super) fn new(contents: &Contents, order: Order) -> Replica {
        Replica {
            membership: Membership::Stays,
            database: Database::new(contents, order),
            up: false,
            session: 0,
            accepts: 0,
            lanes: BTreeMap::new(),
            ending: BTreeSet::new(),
            committing: BTreeSet::new(),
            blocked: BTreeMap::new(),
            outstanding: BTreeSet::new(),
            answered: BTreeSet::new(),
            heard_late: BTreeSet::new(),
            runs: BTreeMap::new(),
            last_applied_report: Instant(0),
            stands_still: false,
            unheard: Vec::new(),
            catches_up_to: None,
        }
    }

    /// The node has no connections any more. Commands that were sent may still run; nobody hears of them.
    pub(super) fn disconnect(&mut self) {
        self.up = false;
        self.session += 1;
        self.lanes.clear();
        self.committing.clear();
        self.runs.clear();
        self.catches_up_to = None;
    }

    /// Nobody is there any more who would hear of anything.
    pub(super) fn forget_outstanding(&mut self) {
        self.outstanding.clear();
        self.answered.clear();
        self.heard_late.clear();
    }

    /// Every session of before is ended.
    pub(super) fn fence(&mut self) {
        self.database.end_sessions();
        self.accepts = self.session;
        self.ending.clear();
        self.blocked.clear();
        self.up = true;
    }

    /// Who waits within the database, for people.
    pub(super) fn waiting(&self) -> String {
        let wait = |(lane, (_, job)): (&LaneId, &(u64, Job))| {
            format!("{lane:?} for {:?} with {job:?}", self.database.blockers(*lane))
        };
        self.blocked.iter().map(wait).collect::<Vec<_>>().join("; ")
    }
}

/// Orders of the core.
impl Simulation<'_> {
    pub(super) fn on_execute(&mut self, txn: TxnId, op: OpId, replica: ReplicaId, how: How, hold: bool) {
        let plan = self.node.txns.get(&txn).and_then(|open| open.plans.get(&op)).cloned();
        let Some(plan) = plan else {
            return self.senseless(txn, Some(op), "executes a statement that is over");
        };
        if self.node.told_down.contains(&replica) {
            self.senseless(txn, Some(op), "executes on a replica that is down");
        }
        if self.node.txns.get(&txn).is_some_and(|open| open.begun_answer == Some(op)) {
            self.senseless(txn, Some(op), "executes again what its client has seen a part of");
        }
        self.node.txns.entry(txn).and_modify(|open| open.last_sent = Some(op));
        if matches!(how, How::Snapshot { open: true } | How::Home { open: true }) {
            self.begins(txn, replica);
        }
        if !self.replica(replica).up {
            self.lose_statement(txn, op, replica, false);
            return;
        }
        let execution = Execution { txn, op, plan, how, hold, sent: self.queue.now() };
        let step = Step::Statement(replica, execution.plan.classify().class);
        let job = Job::Execute(execution);
        let open = match how {
            How::Alone => Some(Isolation::ReadCommitted),
            How::Snapshot { open } => open.then_some(Isolation::RepeatableRead),
            How::Home { open } => open.then_some(Isolation::ReadCommitted),
        };
        if how == How::Alone {
            self.replica(replica).outstanding.insert((txn, op));
            let lane = self.new_lane();
            let at = self.in_a(step);
            return self.command_at(at, replica, Operation::Work { lane, open, job });
        }
        if open.is_some() {
            self.open_lane(txn, replica);
        }
        match self.replica(replica).lanes.get(&txn).map(|lane| lane.id) {
            Some(lane) => {
                self.replica(replica).outstanding.insert((txn, op));
                self.command(replica, txn, step, Operation::Work { lane, open, job });
                if self.is_first_write(txn, op) {
                    self.counts.first_writes += 1;
                    self.reached(Moment::FirstWrite(self.counts.first_writes), Some(replica));
                }
                if self.replica(replica).catches_up_to.is_some() {
                    self.counts.behind += 1;
                    self.reached(Moment::Behind(self.counts.behind), Some(replica));
                }
            }
            None => {
                self.lose_statement(txn, op, replica, false);
            }
        }
    }

    pub(super) fn on_revalidate(&mut self, txn: TxnId, replica: ReplicaId, how: How) {
        if self.node.told_down.contains(&replica) {
            self.senseless(txn, None, "does again on a replica that is down what a transaction has done");
        }
        let Some(open) = self.node.txns.get_mut(&txn) else {
            return self.senseless(txn, None, "does again what is over");
        };
        open.revalidations += 1;
        self.begins(txn, replica);
        let Some(open) = self.node.txns.get(&txn) else { return };
        if !self.replicas[usize::from(replica.0)].up {
            let (epoch, nth) = (self.node.epoch, open.revalidations);
            let at = self.in_a(Step::Answer);
            return self.queue.schedule(at, Wake::Unreachable { epoch, txn, nth, replica });
        }
        let open = self.node.txns.get(&txn);
        let moves = open.is_some_and(|open| open.done_at_home > 0);
        if !moves && open.is_some_and(|open| open.has_failed) {
            return self.feed(Event::Revalidated { txn, replica, same: false });
        }
        if moves {
            self.statistics.moved += 1;
            self.counts.moves += 1;
            self.reached(Moment::Move(self.counts.moves), Some(replica));
        }
        let lane = self.open_lane(txn, replica);
        let step = self.rerun_step(replica, txn, 0);
        let in_snapshot = matches!(how, How::Snapshot { .. });
        let open = Some(if in_snapshot { Isolation::RepeatableRead } else { Isolation::ReadCommitted });
        let job = Job::Rerun { txn, index: 0, same: true };
        self.command(replica, txn, step, Operation::Work { lane, open, job });
    }

    /// What the core opens somewhere comes to an end there: by an order, by a report that it is lost, or in the order. Of protocols
    /// that write everywhere, the loss of the replica ends it.
    fn begins(&mut self, txn: TxnId, replica: ReplicaId) {
        if self.writes_everywhere() {
            return;
        }
        if self.node.unended.insert((txn, replica), None).is_some() {
            self.senseless(txn, None, "opens a second transaction on a replica before it left the first");
        }
    }

    /// Notes what the core is told to have ended.
    pub(super) fn ends_by(&mut self, event: &Event) {
        match *event {
            Event::Executed { txn, replica, outcome: Outcome::Lost { .. }, .. }
            | Event::HomeLost { txn, replica } => {
                self.node.unended.remove(&(txn, replica));
            }
            Event::Applied { replica, csn } if self.protocol.position() == Position::Set => {
                self.node.unended.retain(|(_, at), ending| *at != replica || *ending != Some(csn));
            }
            Event::Applied { replica, csn } | Event::ReplicaUp { replica, applied: csn } => {
                self.node
                    .unended
                    .retain(|(_, at), ending| *at != replica || ending.is_none_or(|ends| ends > csn));
            }
            _ => {}
        }
    }

    pub(super) fn on_leave(&mut self, txn: TxnId, replica: ReplicaId) {
        self.node.unended.remove(&(txn, replica));
        self.end_lane(txn, replica, |lane| Operation::Rollback { lane });
    }

    pub(super) fn on_commit_at(&mut self, txn: TxnId, replica: ReplicaId, csn: Csn) {
        self.node.unended.entry((txn, replica)).and_modify(|ending| *ending = Some(csn));
        match self.end_lane(txn, replica, |lane| Operation::CommitAt { lane, txn, csn }) {
            Some(lane) => _ = self.replica(replica).committing.insert(lane),
            None if self.replica(replica).up => _ = self.core_soon(Event::HomeLost { txn, replica }),
            // A replica that was lost is reported as such.
            None => {}
        }
    }

    pub(super) fn on_apply(&mut self, replica: ReplicaId, from: Csn, to: Csn) {
        if !self.replica(replica).up {
            return;
        }
        if self.protocol.position() == Position::Prefix && !self.replica(replica).runs.is_empty() {
            self.senseless(TxnId(0), None, "applies a run before the last one has ended");
        }
        self.next_id += 1;
        let run = RunId(self.next_id);
        self.replica(replica).runs.insert(run, (from, to));
        self.start_unit(replica, run);
    }

    /// Sends the last command of a transaction's lane, if there is one.
    pub(super) fn end_lane(
        &mut self,
        txn: TxnId,
        replica: ReplicaId,
        end: impl FnOnce(LaneId) -> Operation,
    ) -> Option<LaneId> {
        let lane = self.replica(replica).lanes.get(&txn).map(|lane| lane.id)?;
        self.command(replica, txn, Step::End(replica), end(lane));
        self.replica(replica).lanes.remove(&txn);
        self.replica(replica).ending.insert(lane);
        Some(lane)
    }

    pub(super) fn cancel_in_databases(&mut self, txn: TxnId) {
        for replica in self.replica_ids() {
            if let Some(lane) = self.replica(replica).lanes.get(&txn).map(|lane| lane.id) {
                // A cancel request goes over a connection of its own and overtakes.
                let at = self.in_a(Step::End(replica));
                self.command_at(at, replica, Operation::Cancel { lane });
            }
        }
    }

    /// The writes of a run's next decisions are sent, some of them in one database transaction.
    pub(super) fn start_unit(&mut self, replica: ReplicaId, run: RunId) {
        let Some(&(from, to)) = self.replica(replica).runs.get(&run) else { return };
        let more = match self.protocol.position() {
            Position::Prefix => self.choices.between(1, self.scenario.apply_batch_max) - 1,
            // What is contained already is passed over, one decision at a time.
            Position::Set => 0,
        };
        let to = to.min(Csn(from.0 + more));
        let lane = self.new_lane();
        let at = self.in_a(Step::Apply(replica));
        let job = Job::Unit { run, from, to, csn: from, index: 0 };
        self.command_at(at, replica, Operation::Work { lane, open: Some(Isolation::ReadCommitted), job });
    }

    fn open_lane(&mut self, txn: TxnId, replica: ReplicaId) -> LaneId {
        let id = self.new_lane();
        let lane = Lane { id, last_command: Instant(0), busy: false };
        self.replica(replica).lanes.insert(txn, lane);
        id
    }

    fn command(&mut self, replica: ReplicaId, txn: TxnId, step: Step, operation: Operation) {
        let mut at = self.in_a(step);
        if let Some(lane) = self.replica(replica).lanes.get_mut(&txn) {
            at = at.max(lane.last_command.plus_ns(1));
            lane.last_command = at;
            lane.busy = true;
        }
        self.command_at(at, replica, operation);
    }

    fn command_at(&mut self, at: Instant, replica: ReplicaId, operation: Operation) {
        let session = self.replica(replica).session;
        self.queue.schedule(at, Wake::Operation { replica, session, operation });
    }

    fn new_lane(&mut self) -> LaneId {
        self.next_id += 1;
        LaneId(self.next_id)
    }

    pub(super) fn rerun_step(&self, replica: ReplicaId, txn: TxnId, index: usize) -> Step {
        let plan = self.node.txns.get(&txn).and_then(|open| open.done.get(index));
        let class = plan.map(|(plan, _)| plan.classify().class).unwrap_or_default();
        Step::Statement(replica, class)
    }

    /// There was no connection on which to do again what a transaction has done, unless that has been given up meanwhile.
    pub(super) fn on_unreachable(&mut self, txn: TxnId, nth: u32, replica: ReplicaId) {
        if self.node.txns.get(&txn).is_some_and(|open| open.revalidations == nth) {
            self.feed(Event::HomeLost { txn, replica });
        }
    }

    /// An event that the node finds out by itself. Returns when it does.
    pub(super) fn core_soon(&mut self, event: Event) -> Instant {
        let at = self.in_a(Step::Answer);
        self.core_at(at, event);
        at
    }

    pub(super) fn core_at(&mut self, at: Instant, event: Event) {
        self.queue.schedule(at, Wake::Core { epoch: self.node.epoch, place: None, event });
    }

    pub(super) fn lose_statement(
        &mut self,
        txn: TxnId,
        op: OpId,
        replica: ReplicaId,
        answer_begun: bool,
    ) -> Instant {
        if answer_begun {
            self.node.txns.entry(txn).and_modify(|open| open.begun_answer = Some(op));
        }
        let outcome = Outcome::Lost { answer_begun };
        self.core_soon(Event::Executed { txn, op, replica, outcome, elapsed_ns: 0 })
    }

    pub(super) fn senseless(&mut self, txn: TxnId, op: Option<OpId>, what: &'static str) {
        self.fail(Failure::OrderSenseless { txn, op, what });
    }
}
