//! What breaks, and how it comes back.

use std::collections::BTreeSet;

use onecopy_core::protocol::Writes;
use onecopy_core::{Event, Instant, ReplicaId, StatementKind, TxnId};

use super::node::OpenTxn;
use super::replicas::Membership;
use super::{Simulation, Wake};
use crate::coverage::Fault;
use crate::failure::Failure;
use crate::scenario::{Breakage, Moment};
use crate::timing::Step;

/// How long somebody stands still, at most.
const PAUSES_NS: [u64; 3] = [100_000, 5_000_000, 100_000_000];
/// By how much a clock leaps.
const CLOCK_LEAPS_NS: [u64; 3] = [1_000_000, 1_000_000_000, 3_600_000_000_000];

impl Simulation<'_> {
    /// Something was done for the n-th time: what the scenario wants broken then breaks soon.
    pub(super) fn reached(&mut self, moment: Moment, at: Option<ReplicaId>) {
        for index in (0..self.breakages.len()).rev() {
            if self.breakages[index].0 == moment {
                let (_, breakage) = self.breakages.remove(index);
                let breakage = breakage.at(at.unwrap_or_default());
                let longest_ns = self.choices.pick(&[1, 1_000, 100_000, 1_000_000]);
                let at = self.queue.now().plus_ns(self.choices.below(longest_ns));
                self.queue.schedule(at, Wake::Break(breakage));
            }
        }
    }

    pub(super) fn on_break(&mut self, breakage: Breakage) {
        if !self.node.up {
            return;
        }
        let stages = self.stages(breakage.replica());
        let broken = match breakage {
            Breakage::Connections(replica) => self.break_replica(replica, false),
            Breakage::Server(replica) => self.break_replica(replica, true),
            Breakage::Lane(replica) => self.break_lane(replica),
            Breakage::Node => {
                for replica in &mut self.replicas {
                    replica.disconnect();
                    replica.forget_outstanding();
                }
                self.crash_node();
                true
            }
            Breakage::Join => {
                self.join();
                true
            }
            Breakage::Depart { replica, at_once } => self.depart(replica, at_once),
            Breakage::Pause(replica) => self.pause(replica),
            Breakage::PauseNode => self.pause_node(),
            Breakage::SlowDisk => {
                let longest_ns = self.choices.pick(&PAUSES_NS);
                self.disk_slow_until = self.queue.now().plus_ns(self.choices.below(longest_ns));
                true
            }
            Breakage::Clock => {
                self.node.clock_ahead_ns += self.choices.pick(&CLOCK_LEAPS_NS);
                true
            }
            Breakage::Diverge(replica) => self.diverge(replica),
            Breakage::GiveUp => self.give_up_a_wait(),
        };
        if broken {
            // Membership is counted by itself, when it has changed.
            let is_change = matches!(breakage, Breakage::Join | Breakage::Depart { .. });
            self.statistics.breakages += u64::from(!is_change);
            self.statistics.coverage.hit(Fault::of(breakage), &stages);
        }
    }

    /// A client that waits for what no replica has been asked for does not want to wait any longer, and mostly goes on with
    /// something else.
    fn give_up_a_wait(&mut self) -> bool {
        // Before a decision a commit may wait for items, too.
        let waits_to_commit = |open: &OpenTxn| {
            open.decided.is_none() && open.awaited.is_some_and(|op| !open.plans.contains_key(&op))
        };
        let txns = self.node.txns.iter();
        let waiting = txns.filter(|(txn, open)| self.waits(**txn, open) || waits_to_commit(open));
        // Best one that had been sent to a replica, and was lost with that: it stands between two places.
        let (between, others): (Vec<_>, Vec<_>) =
            waiting.partition(|(_, open)| open.awaited == open.last_sent);
        let waiting = if between.is_empty() { others } else { between };
        let waiting: Vec<TxnId> = waiting.into_iter().map(|(txn, _)| *txn).collect();
        if waiting.is_empty() {
            return false;
        }
        let txn = self.choices.pick(&waiting);
        let returns = self.choices.chance(800);
        let client = self.node.txns.get(&txn).map(|open| open.client);
        let current = client.and_then(|client| self.clients[client].current.as_mut());
        current.into_iter().for_each(|current| current.script.returns |= returns);
        self.on_cancel(txn);
        true
    }

    /// A server stands still; its connections stay.
    fn pause(&mut self, id: ReplicaId) -> bool {
        if !self.is_up(id) || self.replica(id).stands_still {
            return false;
        }
        self.note(format_args!("{id:?} stands still"));
        self.replica(id).stands_still = true;
        let at = self.after_a_pause();
        self.queue.schedule(at, Wake::Resumes(id));
        true
    }

    pub(super) fn on_resumes(&mut self, id: ReplicaId) {
        self.replica(id).stands_still = false;
        for (session, operation) in std::mem::take(&mut self.replica(id).unheard) {
            self.wake(Wake::Operation { replica: id, session, operation });
        }
    }

    fn pause_node(&mut self) -> bool {
        if self.node.stands_still {
            return false;
        }
        self.note(format_args!("the node stands still"));
        self.node.stands_still = true;
        let at = self.after_a_pause();
        self.queue.schedule(at, Wake::NodeResumes { epoch: self.node.epoch });
        true
    }

    pub(super) fn on_node_resumes(&mut self) {
        self.node.stands_still = false;
        for wake in std::mem::take(&mut self.node.unheard) {
            self.wake(wake);
        }
    }

    fn after_a_pause(&mut self) -> Instant {
        let longest_ns = self.choices.pick(&PAUSES_NS);
        self.queue.now().plus_ns(self.choices.below(longest_ns))
    }

    pub(super) fn break_replica(&mut self, id: ReplicaId, server: bool) -> bool {
        if !self.is_up(id) {
            return false;
        }
        self.note(format_args!("{id:?} lost, {}", if server { "server" } else { "connections" }));
        let replica = &mut self.replicas[usize::from(id.0)];
        replica.disconnect();
        let mut answered = std::mem::take(&mut replica.answered);
        if self.protocol.writes() == Writes::Everywhere {
            // There it is the place in front of a replica that hears of everything, in one order.
            answered.clear();
        }
        let outstanding = std::mem::take(&mut self.replicas[usize::from(id.0)].outstanding);
        // Who waits for an answer may have it, and say so later than somebody else says that the replica is lost.
        let (late, outstanding): (BTreeSet<_>, BTreeSet<_>) =
            outstanding.into_iter().partition(|sent| answered.contains(sent) && self.choices.chance(500));
        let replica = &mut self.replicas[usize::from(id.0)];
        replica.outstanding.clone_from(&late);
        replica.heard_late.extend(late);
        if server {
            let lost_commits = self.choices.between(0, self.scenario.lost_commits_max);
            let replica = self.replica(id);
            replica.database.crash(lost_commits);
            replica.fence();
            replica.up = false;
            // What it was told and had not done is lost with it.
            replica.unheard.clear();
            replica.stands_still = false;
        }
        self.counts.losses += 1;
        self.reached(Moment::Lost(self.counts.losses), Some(id));
        let noticed_at = self.in_a(Step::Answer);
        self.core_at(noticed_at, Event::ReplicaDown { replica: id });
        let mut fenced_at = noticed_at;
        for (txn, op) in outstanding {
            // Some find out by themselves before the replica is declared lost, and some after.
            let kind = self.node.txns.get(&txn).and_then(|open| open.plans.get(&op)).map(|plan| plan.kind());
            let answer_begun = self.may_have_begun(kind.unwrap_or(StatementKind::Write));
            fenced_at = fenced_at.max(self.lose_statement(txn, op, id, answer_begun));
        }
        let outage = self.choices.pick(&[1, 1, 5, 20]);
        for _ in 0..outage {
            fenced_at = fenced_at.max(self.in_a(Step::Repair)).plus_ns(1);
        }
        let session = self.replica(id).session;
        self.queue.schedule(fenced_at, Wake::Fence { replica: id, session });
        true
    }

    /// The replica's old sessions are ended: it may serve again, from what it contains.
    pub(super) fn on_fence(&mut self, id: ReplicaId) {
        match self.replica(id).membership {
            Membership::Gone => return,
            Membership::Differs => {
                self.replica(id).membership = Membership::AwaitingSource;
                return self.copy_from_somebody();
            }
            _ => {}
        }
        let durable = self.log.durable();
        let replica = self.replica(id);
        replica.fence();
        let progress = replica.database.progress();
        replica.catches_up_to = (progress < durable).then_some(durable);
        self.note(format_args!("{id:?} fenced at {progress}"));
        if progress > self.log.durable() {
            self.fail(Failure::AheadOfLog { replica: id, progress });
        }
        self.node.found = self.node.found.max(progress);
        self.feed(Event::ReplicaUp { replica: id, applied: progress });
        self.copy_from_somebody();
        self.counts.returns += 1;
        self.reached(Moment::Back(self.counts.returns), Some(id));
    }

    fn is_up(&self, id: ReplicaId) -> bool {
        self.replicas.get(usize::from(id.0)).is_some_and(|replica| replica.up)
    }

    /// A replica ends one transaction, preferably one that is about to commit.
    fn break_lane(&mut self, id: ReplicaId) -> bool {
        if !self.is_up(id) {
            return false;
        }
        let committing = self.replica(id).committing.first().copied();
        if let Some(lane) = committing.filter(|_| self.choices.chance(700)) {
            self.note(format_args!("{id:?} ends {lane:?} before it commits"));
            self.replica(id).database.rollback(lane);
            self.go_on_with_woken(id);
            return true;
        }
        let open: Vec<TxnId> = self.replica(id).lanes.keys().copied().collect();
        if open.is_empty() {
            return false;
        }
        let txn = self.choices.pick(&open);
        let notices = self.choices.chance(700);
        self.lose_lane(id, txn, notices);
        true
    }
}
