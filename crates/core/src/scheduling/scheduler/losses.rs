//! Replicas and connections come and go (CAS 5.3.3).

use crate::effect::{Effect, Refusal};
use crate::event::StatementKind;
use crate::ids::{Csn, OpId, ReplicaId, TxnId};
use crate::scheduling::{Message, OpenTxn, Order};

use super::replicas::Service;
use super::txn::{At, Part, Pending, Sent, State};
use super::{Scheduler, to_proxy};

impl Scheduler {
    pub(super) fn on_up(
        &mut self,
        replica: ReplicaId,
        incarnation: u32,
        applied: Csn,
        effects: &mut Vec<Effect>,
    ) {
        self.replicas.get_mut(replica).reset(Service::CatchingUp);
        let mut open = Vec::new();
        let mut over = Vec::new();
        for (id, txn) in &mut self.txns {
            let Some(number) = txn.number else { continue };
            let undecided = !txn.state.is_ending()
                || matches!(txn.state, State::AwaitingDecision | State::AwaitingDurable);
            if undecided && !matches!(txn.state, State::AwaitingClear | State::Doomed) {
                txn.at[usize::from(replica.0)] = At::with_part(Part::Follows);
                if self.policy.order == Order::Locks {
                    self.replicas.get_mut(replica).lock(&txn.locks);
                }
                let (locks, versions) = (txn.locks.clone(), txn.versions.clone());
                open.push((number, OpenTxn { txn: *id, locks, versions }));
            } else {
                over.push(&txn.versions);
            }
        }
        let reached = self.known.over(over.into_iter());
        self.replicas.get_mut(replica).reached = reached.clone();
        open.sort_unstable_by_key(|(number, _)| *number);
        let join = Message::Join {
            incarnation,
            from: applied.next(),
            to: self.told,
            number: self.dispatched,
            open: open.into_iter().map(|(_, open)| open).collect(),
            reached: Box::new(reached),
        };
        to_proxy(replica, join, effects);
        self.on_contained(replica, applied, effects);
        for id in std::mem::take(&mut self.awaiting_replica) {
            let Some(txn) = self.txns.get(&id).filter(|txn| txn.state == State::AwaitingReplica) else {
                continue;
            };
            let reads_only =
                txn.pending.as_ref().is_some_and(|pending| pending.statement.kind == StatementKind::Read);
            if txn.autocommit {
                self.begin_single(id, reads_only, effects);
            } else {
                let locks = txn.locks.clone();
                self.request_locks(id, locks, effects);
            }
        }
    }

    pub(super) fn on_caught_up(
        &mut self,
        replica: ReplicaId,
        through: Csn,
        complete: bool,
        effects: &mut Vec<Effect>,
    ) {
        if complete {
            self.replicas.get_mut(replica).service = Service::Up;
        }
        self.on_contained(replica, through, effects);
        self.retry_held_reads(replica, effects);
    }

    /// A replica contains everything up to a decision: whoever was not told of such a commit hears of it now.
    fn on_contained(&mut self, replica: ReplicaId, through: Csn, effects: &mut Vec<Effect>) {
        for id in self.sorted(|txn| txn.state == State::AwaitingCommit && txn.csn <= Some(through)) {
            let Some(at) = self.txns.get_mut(&id).and_then(|txn| txn.at_mut(replica)) else { continue };
            if at.part == Part::Absent {
                at.part = Part::Ended;
                self.progress(id, effects);
            }
        }
    }

    pub(super) fn on_down(
        &mut self,
        replica: ReplicaId,
        unsent: &[(TxnId, OpId)],
        effects: &mut Vec<Effect>,
    ) {
        self.replicas.get_mut(replica).reset(Service::Down);
        for id in self.sorted(|txn| txn.at(replica).takes_part()) {
            let Some(txn) = self.txns.get_mut(&id) else { continue };
            let unsent = txn.pending.as_ref().is_some_and(|pending| unsent.contains(&(id, pending.op)));
            match txn.state {
                // Nothing was written: it ends well without the replica.
                State::AwaitingFinish(op, at) if at == replica => {
                    effects.push(Effect::Finish { txn: id, op, replica: None });
                }
                _ => {}
            }
            txn.lose(replica);
            match &mut txn.pending {
                Some(pending) if unsent => {
                    pending.sent = Sent::Nowhere;
                    self.read_elsewhere(id, replica, effects);
                }
                // Whether a part of its answer has been seen, the driver knows and will say.
                Some(Pending { sent: Sent::Read(at, _), .. }) if *at == replica => {}
                _ => self.lose_part(id, replica, effects),
            }
        }
    }

    /// A replica can no longer execute a transaction: it goes on with the others, if there are any.
    pub(super) fn lose_part(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if self.replicas.get(replica).service != Service::Down {
            for expected_ns in txn.outstanding_at(replica) {
                self.replicas.get_mut(replica).load.remove(expected_ns);
            }
        }
        txn.follow(replica);
        if let Some(pending) = &mut txn.pending
            && matches!(pending.sent, Sent::Read(at, _) if at == replica)
        {
            // It was queued there or on its way, and its proxy drops it.
            pending.sent = Sent::Nowhere;
            txn.state = State::AwaitingPlace;
        }
        let only_it_knew = txn.failed_at == Some(replica);
        let none_left = !txn.at.iter().any(|at| at.part == Part::Executes);
        let executes = !txn.state.is_ending() && txn.number.is_some();
        if executes && (none_left || only_it_knew) {
            return self.lose_all(id, effects);
        }
        self.progress(id, effects);
    }

    /// Nobody executes the transaction any more. If its client has not seen anything of it, it may start again.
    fn lose_all(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        match (&txn.pending, txn.answered) {
            (_, false) => {
                txn.state = State::AwaitingQuiet;
                self.progress(id, effects);
            }
            (Some(Pending { op, .. }), true) => {
                let op = *op;
                self.refuse(id, op, Refusal::HomeLost, effects);
            }
            (None, true) => {
                self.abort_except(id, None, effects);
                if let Some(txn) = self.txns.get_mut(&id) {
                    txn.state = State::Doomed;
                }
            }
        }
    }

    /// An attempt is given up: its answers must have come before it is aborted, and every replica must have let it go
    /// before it starts again, so that nothing of the first attempt is taken for the second's.
    pub(super) fn progress_start_again(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let count = txn.writes.len();
        if txn.state == State::AwaitingQuiet {
            let reads = txn.pending.as_ref().is_some_and(|pending| matches!(pending.sent, Sent::Read(..)));
            if reads || txn.at.iter().any(|at| at.part == Part::Executes && at.writes_done < count) {
                return;
            }
            txn.state = State::AwaitingClear;
            for replica in txn.tell_ends() {
                to_proxy(replica, Message::Abort { txn: id, tag: txn.tag_of_rest() }, effects);
            }
        }
        if txn.at.iter().any(At::takes_part) {
            return;
        }
        let locks = if txn.strayed { txn.locks.union(&txn.touched) } else { txn.locks.clone() };
        txn.widened |= txn.strayed;
        if let Some(number) = txn.number {
            let versions = txn.versions.clone();
            self.forget_versions(id, number, &versions, effects);
        }
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.start_again();
        }
        self.request_locks(id, locks, effects);
    }
}
