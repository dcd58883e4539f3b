//! What the agents hear from the databases, and tell the core.

use onecopy_core::effect::How;
use onecopy_core::{Csn, Event, Outcome, ReplicaId, StatementKind, TxnId};

use super::node::{Standing, awaits_release};
use super::replicas::Execution;
use super::{SCHEDULER, Simulation, Wake};
use crate::database::{Fault, LaneId};
use crate::plan::Answer;
use crate::scenario::Moment;
use crate::timing::Step;

/// Of 1,000 answers that are held until it is known what they show so many are too large for that.
const TOO_LARGE_PER_MILLE: u64 = 250;
/// Of an answer that shows more rows their table is taken.
const SHOWN_ROWS_MAX: [usize; 4] = [0, 1, 2, 100];

/// An answer from a database.
#[derive(Clone, Debug)]
pub(super) enum Report {
    Executed {
        execution: Execution,
        came: Came,
    },
    Revalidated {
        txn: TxnId,
        lane: LaneId,
        same: bool,
    },
    /// A lane was ended behind the node's back while no statement was under way in it.
    LaneLost {
        txn: TxnId,
        lane: LaneId,
    },
    CommitFailed {
        txn: TxnId,
    },
    Applied {
        csn: Csn,
    },
}

/// What came of a client's statement.
#[derive(Clone, Debug)]
pub(super) enum Came {
    Answer(Answer),
    Fault(Fault),
    Loss,
}

impl Simulation<'_> {
    pub(super) fn report(&mut self, replica: ReplicaId, session: u64, report: Report) {
        let mut at = self.in_a(Step::Answer);
        if let Report::Executed { execution, .. } = &report {
            let sent = (execution.txn, execution.op);
            let replica = self.replica(replica);
            if session == replica.session && replica.outstanding.contains(&sent) {
                replica.answered.insert(sent);
            }
        }
        if matches!(report, Report::Applied { .. }) {
            at = at.max(self.replica(replica).last_applied_report.plus_ns(1));
            self.replica(replica).last_applied_report = at;
        }
        self.queue.schedule(at, Wake::Report { replica, session, report });
    }

    /// Whether an answer counts that came over a connection that is lost.
    pub(super) fn is_heard_late(&mut self, replica: ReplicaId, report: &Report) -> bool {
        let Report::Executed { execution, .. } = report else { return false };
        self.replica(replica).heard_late.contains(&(execution.txn, execution.op))
    }

    pub(super) fn on_report(&mut self, replica: ReplicaId, report: Report) {
        match report {
            Report::Executed { execution, came } => self.on_executed(replica, execution, came),
            // A transaction may have left its lane meanwhile, and opened another one here.
            Report::Revalidated { txn, lane, same } => {
                if self.is_open_lane(replica, txn, lane) {
                    self.lane_is_idle(replica, txn);
                    self.feed(Event::Revalidated { txn, replica, same });
                }
            }
            Report::LaneLost { txn, lane } => {
                if self.is_open_lane(replica, txn, lane) {
                    self.replica(replica).lanes.remove(&txn);
                    self.feed(Event::HomeLost { txn, replica });
                }
            }
            Report::CommitFailed { txn } => self.feed(Event::HomeLost { txn, replica }),
            Report::Applied { csn } => {
                self.node.committed.insert(csn);
                let agent = self.replica(replica);
                agent.catches_up_to = agent.catches_up_to.filter(|to| csn < *to);
                self.feed(Event::Applied { replica, csn });
            }
        }
    }

    fn on_executed(&mut self, replica: ReplicaId, execution: Execution, came: Came) {
        let Execution { txn, op, plan, how, hold, sent } = execution;
        if !self.replica(replica).outstanding.remove(&(txn, op)) {
            return;
        }
        self.replica(replica).answered.remove(&(txn, op));
        self.replica(replica).heard_late.remove(&(txn, op));
        if how != How::Alone {
            self.lane_is_idle(replica, txn);
        }
        let to_be_released = awaits_release(&plan, hold, how);
        let elapsed_ns = self.queue.now().since_ns(sent);
        let executed = |outcome| Event::Executed { txn, op, replica, outcome, elapsed_ns };
        let (answer, outcome) = match came {
            Came::Answer(_) if to_be_released && self.choices.chance(TOO_LARGE_PER_MILLE) => {
                return self.feed(executed(Outcome::TooLarge));
            }
            Came::Answer(answer) if plan.fails() => (Ok(answer), Outcome::Failed),
            Came::Answer(answer) => {
                let rows_max = self.choices.pick(&SHOWN_ROWS_MAX);
                let returned = plan.returned(&answer, rows_max);
                (Ok(answer), Outcome::Done { returned })
            }
            Came::Fault(fault) => (Err(fault), Outcome::Failed),
            Came::Loss => {
                self.replica(replica).lanes.remove(&txn);
                let answer_begun = self.may_have_begun(plan.kind());
                if answer_begun {
                    self.node.txns.entry(txn).and_modify(|open| open.begun_answer = Some(op));
                }
                return self.feed(executed(Outcome::Lost { answer_begun }));
            }
        };
        // Where only one replica executes, an error need not wait.
        let failed = answer.is_err() || plan.fails();
        let hold = hold && (!failed || self.writes_everywhere());
        let standing = match how {
            How::Snapshot { .. } => Standing::InSnapshot,
            _ if to_be_released => Standing::ToBeReleased,
            _ => Standing::Held,
        };
        self.on_answer(txn, op, replica, standing, answer);
        let letter = if hold { None } else { self.take_answer(txn, op, replica) };
        let event = executed(outcome);
        let heard_at = self.protocol.place_of(&event);
        self.feed(event);
        if plan.fails() && matches!(how, How::Home { .. }) {
            self.counts.shown += 1;
            self.reached(Moment::Shown(self.counts.shown), Some(replica));
        }
        // The answer goes through the scheduler, which has then heard what this place told it before.
        self.post(letter, self.through_channel(heard_at, SCHEDULER));
    }

    /// Whether a part of an answer that was then lost had reached the client.
    pub(super) fn may_have_begun(&mut self, kind: StatementKind) -> bool {
        kind == StatementKind::Read && self.choices.chance(200)
    }

    fn is_open_lane(&mut self, replica: ReplicaId, txn: TxnId, lane: LaneId) -> bool {
        self.replica(replica).lanes.get(&txn).is_some_and(|open| open.id == lane)
    }

    fn lane_is_idle(&mut self, replica: ReplicaId, txn: TxnId) {
        if let Some(lane) = self.replica(replica).lanes.get_mut(&txn) {
            lane.busy = false;
        }
    }
}
