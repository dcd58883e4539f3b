//! What the agents' commands do when they arrive in the databases.

use onecopy_core::effect::How;
use onecopy_core::protocol::Position;
use onecopy_core::{Csn, ReplicaId, TxnId};

use super::replicas::{Execution, Job, Operation, RunId};
use super::reports::{Came, Report};
use super::{Simulation, Wake};
use crate::database::{CommitRefused, Fault, Isolation, LaneId, Ran};
use crate::failure::Failure;
use crate::log::{Kept, Record};
use crate::plan::Plan;
use crate::scenario::Moment;
use crate::timing::Step;

/// A transaction whose statements bring down servers may bring down so many, and is then refused.
const BROUGHT_DOWN_MAX: u32 = 3;

impl Simulation<'_> {
    pub(super) fn on_operation(&mut self, replica: ReplicaId, session: u64, operation: Operation) {
        match operation {
            Operation::Work { lane, open, job } => {
                if let Some(isolation) = open {
                    self.replica(replica).database.open(lane, isolation);
                }
                self.work(replica, session, lane, job);
            }
            Operation::Rollback { lane } => {
                self.trace_lane(replica, lane, "rollback");
                self.give_up_job(replica, lane);
                self.replica(replica).database.rollback(lane);
                self.replica(replica).ending.remove(&lane);
            }
            Operation::Cancel { lane } => {
                if self.replica(replica).database.cancel(lane) {
                    self.give_up_job(replica, lane);
                }
            }
            Operation::Finish { lane, txn } => {
                self.trace_lane(replica, lane, "finish");
                if self.replica(replica).database.commit_read_only(lane) {
                    self.senseless(txn, None, "ends a transaction that wrote without a place in the order");
                }
                self.replica(replica).ending.remove(&lane);
            }
            Operation::CommitAt { lane, txn, csn } => {
                self.replica(replica).ending.remove(&lane);
                self.replica(replica).committing.remove(&lane);
                let report = match self.commit(replica, lane, csn, csn) {
                    true => Report::Applied { csn },
                    false => Report::CommitFailed { txn },
                };
                self.report(replica, session, report);
            }
            Operation::CommitUnit { lane, run, from, to } => {
                if self.commit(replica, lane, from, to) {
                    self.unit_done(replica, session, run, to);
                }
            }
        }
        self.go_on_with_woken(replica);
    }

    /// Executes what a job demands, one statement after the other, as far as it gets.
    fn work(&mut self, replica: ReplicaId, session: u64, lane: LaneId, job: Job) {
        if !self.replica(replica).database.is_open(lane) {
            return self.lane_is_gone(replica, session, lane, job);
        }
        if let Job::Unit { run, to, .. } = job
            && self.protocol.position() == Position::Set
            && self.replica(replica).database.contains(to)
        {
            self.replica(replica).database.rollback(lane);
            return self.unit_done(replica, session, run, to);
        }
        let Some(plan) = self.next_plan(&job) else { return self.job_done(replica, session, lane, job) };
        if self.brings_down(replica, &job) {
            return;
        }
        let ran = self.replica(replica).database.execute(lane, &plan);
        self.statement_ran(replica, session, lane, job, ran);
    }

    /// Whether executing a transaction's statement brings down the server, and does.
    fn brings_down(&mut self, replica: ReplicaId, job: &Job) -> bool {
        let txn = match job {
            Job::Execute(Execution { txn, .. }) | Job::Rerun { txn, .. } => *txn,
            Job::Unit { .. } => return false,
        };
        let Some(open) = self.node.txns.get_mut(&txn) else { return false };
        open.executions += 1;
        let is_poisoned = open.poison.is_some_and(|harmless| open.executions > harmless);
        if !is_poisoned || !self.break_replica(replica, true) {
            return false;
        }
        let Some(open) = self.node.txns.get_mut(&txn) else { return true };
        open.servers_brought_down += 1;
        let times = open.servers_brought_down;
        self.statistics.brought_down += 1;
        if times > BROUGHT_DOWN_MAX {
            self.fail(Failure::ServersBroughtDown { txn, times });
        }
        true
    }

    /// The statement that a job demands next; `None` when there is none left.
    fn next_plan(&self, job: &Job) -> Option<Plan> {
        match job {
            Job::Execute(execution) => Some(execution.plan.clone()),
            Job::Rerun { txn, index, .. } => {
                let open = self.node.txns.get(txn)?;
                open.done.get(*index).map(|(plan, _)| plan.clone())
            }
            Job::Unit { csn, index, .. } => self.kept(*csn, *index).map(Kept::to_apply),
        }
    }

    fn kept(&self, csn: Csn, index: usize) -> Option<&Kept> {
        match self.log.get(csn)? {
            Record::Commit { writes, .. } => writes.get(index),
            Record::Reserve { .. } => None,
        }
    }

    fn statement_ran(&mut self, replica: ReplicaId, session: u64, lane: LaneId, job: Job, ran: Ran) {
        let now = self.queue.now();
        self.trace.line(now, "database", format_args!("{replica:?} {lane:?} {job:?} -> {ran:?}"));
        let ran = match ran {
            Ran::Blocked(blockers) => {
                self.statistics.blocked_statements += 1;
                if let Job::Unit { csn, .. } = job {
                    self.make_way(replica, csn, &blockers);
                }
                self.replica(replica).blocked.insert(lane, (session, job));
                return;
            }
            Ran::Failed(fault) => {
                if fault == (Fault::Deadlock { on_rows: true }) {
                    self.fail(Failure::DatabaseDeadlock { replica });
                }
                Err(fault)
            }
            Ran::Done(answer) => Ok(answer),
        };
        match (job, ran) {
            (Job::Execute(execution), ran) => {
                if execution.how == How::Alone {
                    self.replica(replica).database.rollback(lane);
                }
                let came = ran.map_or_else(Came::Fault, Came::Answer);
                self.report(replica, session, Report::Executed { execution, came });
            }
            // Over a connection that is lost nobody sends what comes next, nor hears what came.
            (Job::Rerun { .. }, _) if session != self.replica(replica).session => {}
            (Job::Rerun { txn, index, same }, Ok(answer)) => {
                let open = self.node.txns.get(&txn);
                let told = open.and_then(|open| open.done.get(index));
                let is_same = told.is_some_and(|(_, told)| {
                    (&told.rows, &told.joined, &told.changes)
                        == (&answer.rows, &answer.joined, &answer.changes)
                });
                if !is_same && open.is_some_and(|open| open.done_at_home > 0) {
                    // It holds the items of all that it has done.
                    self.fail(Failure::Disagreement { replica, csn: None, txn: Some(txn) });
                }
                let same = same && is_same;
                let job = Job::Rerun { txn, index: index + 1, same };
                let step = self.rerun_step(replica, txn, index + 1);
                self.work_later(replica, session, lane, step, job);
            }
            (Job::Rerun { txn, .. }, Err(_)) => {
                self.replica(replica).database.rollback(lane);
                self.report(replica, session, Report::LaneLost { txn, lane });
            }
            (Job::Unit { run, from, to, csn, index }, ran) => {
                match ran {
                    Ok(answer) => {
                        let at_home = self.kept(csn, index).map(|kept| &kept.answer.changes);
                        if at_home != Some(&answer.changes) {
                            self.fail(Failure::Disagreement { replica, csn: Some(csn), txn: None });
                        }
                    }
                    Err(fault) => {
                        self.fail(Failure::ApplyFailed { replica, csn, fault });
                        // What follows is applied all the same, to see what comes of it.
                        self.replica(replica).database.rollback(lane);
                        self.replica(replica).database.open(lane, Isolation::ReadCommitted);
                    }
                }
                let job = Job::Unit { run, from, to, csn, index: index + 1 };
                self.work_later(replica, session, lane, Step::Apply(replica), job);
            }
        }
    }

    /// A job has no statement left for now.
    fn job_done(&mut self, replica: ReplicaId, session: u64, lane: LaneId, job: Job) {
        match job {
            // It has a statement until that ran.
            Job::Execute(_) => {}
            Job::Rerun { txn, same, .. } => {
                self.report(replica, session, Report::Revalidated { txn, lane, same });
            }
            Job::Unit { run, from, to, csn, .. } if csn < to => {
                let job = Job::Unit { run, from, to, csn: csn.next(), index: 0 };
                self.work(replica, session, lane, job);
            }
            Job::Unit { run, from, to, .. } => {
                let at = self.in_a(Step::End(replica));
                let operation = Operation::CommitUnit { lane, run, from, to };
                self.queue.schedule(at, Wake::Operation { replica, session, operation });
            }
        }
    }

    fn work_later(&mut self, replica: ReplicaId, session: u64, lane: LaneId, step: Step, job: Job) {
        let at = self.in_a(step);
        let operation = Operation::Work { lane, open: None, job };
        self.queue.schedule(at, Wake::Operation { replica, session, operation });
    }

    /// The transaction of a job was ended behind the node's back.
    fn lane_is_gone(&mut self, replica: ReplicaId, session: u64, lane: LaneId, job: Job) {
        match job {
            Job::Execute(execution) => {
                self.report(replica, session, Report::Executed { execution, came: Came::Loss });
            }
            Job::Rerun { txn, .. } => self.report(replica, session, Report::LaneLost { txn, lane }),
            Job::Unit { .. } => {}
        }
    }

    /// A statement that waits in a lane will not go on.
    fn give_up_job(&mut self, replica: ReplicaId, lane: LaneId) {
        match self.replica(replica).blocked.remove(&lane) {
            Some((session, Job::Execute(execution))) => {
                let came = Came::Fault(Fault::Aborted);
                self.report(replica, session, Report::Executed { execution, came });
            }
            Some((session, Job::Rerun { txn, .. })) => {
                self.report(replica, session, Report::Revalidated { txn, lane, same: false });
            }
            Some((_, Job::Unit { .. })) | None => {}
        }
    }

    pub(super) fn go_on_with_woken(&mut self, replica: ReplicaId) {
        loop {
            let woken = self.replica(replica).database.take_woken();
            if woken.is_empty() {
                return;
            }
            for (lane, ran) in woken {
                if let Some((session, job)) = self.replica(replica).blocked.remove(&lane) {
                    self.statement_ran(replica, session, lane, job, ran);
                }
            }
        }
    }

    /// Commits in a database. Whether it did.
    fn commit(&mut self, replica: ReplicaId, lane: LaneId, from: Csn, to: Csn) -> bool {
        let committed = self.replica(replica).database.commit(lane, from, to);
        let now = self.queue.now();
        self.trace.line(
            now,
            "database",
            format_args!("{replica:?} {lane:?} commit {from}..{to} -> {committed:?}"),
        );
        if committed.is_ok() && to > self.first_committed {
            self.first_committed = to;
            self.counts.commits += 1;
            self.reached(Moment::Commit(self.counts.commits), Some(replica));
        }
        if let Err(CommitRefused::OutOfOrder { progress }) = committed {
            self.fail(Failure::CommitOutOfOrder { replica, csn: from, progress });
        }
        committed.is_ok()
    }

    fn unit_done(&mut self, replica: ReplicaId, session: u64, run: RunId, to: Csn) {
        self.report(replica, session, Report::Applied { csn: to });
        if let Some((next, last)) = self.replica(replica).runs.get_mut(&run) {
            *next = to.next();
            if to >= *last {
                self.replica(replica).runs.remove(&run);
            }
        }
        self.start_unit(replica, run);
    }

    /// Whoever keeps a decision from being applied gives way (design 3.6), which should never be needed.
    fn make_way(&mut self, replica: ReplicaId, csn: Csn, blockers: &[LaneId]) {
        for &lane in blockers {
            let agent = self.replica(replica);
            if agent.ending.contains(&lane) {
                continue;
            }
            if let Some((&by, _)) = agent.lanes.iter().find(|(_, open)| open.id == lane) {
                self.fail(Failure::ApplyBlocked { replica, csn, by });
                self.lose_lane(replica, by, true);
            }
        }
    }

    /// A database ends a transaction; the node notices at once, or when it next uses the lane.
    pub(super) fn lose_lane(&mut self, replica: ReplicaId, txn: TxnId, notices: bool) {
        let Some(lane) = self.replica(replica).lanes.get(&txn).cloned() else { return };
        self.note(format_args!("{replica:?} ends {txn:?}"));
        let waited = self.replica(replica).blocked.remove(&lane.id);
        self.replica(replica).database.rollback(lane.id);
        if let Some((session, job)) = waited {
            self.lane_is_gone(replica, session, lane.id, job);
        } else if notices && !lane.busy {
            let session = self.replica(replica).session;
            self.report(replica, session, Report::LaneLost { txn, lane: lane.id });
        }
        self.go_on_with_woken(replica);
    }

    fn trace_lane(&mut self, replica: ReplicaId, lane: LaneId, what: &str) {
        self.trace.line(self.queue.now(), "database", format_args!("{replica:?} {lane:?} {what}"));
    }
}
