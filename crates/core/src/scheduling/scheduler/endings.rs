//! Decisions, commits and aborts (CAS 4.7, 5.3).

use crate::effect::{Decision, Effect, Refusal};
use crate::ids::{Csn, OpId, ReplicaId, TxnId};
use crate::scheduling::{Message, Order};
use crate::sequences::Want;

use super::txn::{At, Part, State};
use super::{Decided, Scheduler, ended, to_proxy};

impl Scheduler {
    pub(super) fn decide(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        self.learn_tables(id, true);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.commit_op = op;
        self.decide_in_turn(id, effects);
    }

    /// Its place among the decisions.
    pub(super) fn give_csn(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let csn = self.decided().next();
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.state = State::AwaitingDurable;
        txn.csn = Some(csn);
        self.sessions.entry(txn.session).or_default().push(id);
        self.undurable.push_back(Decided::Commit(id));
        effects.push(Effect::Append { csn, decision: Decision::Commit(id) });
        self.settle_versions(id, effects);
    }

    pub(super) fn on_durable(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        while self.told < csn {
            let Some(decided) = self.undurable.pop_front() else { return };
            self.told = self.told.next();
            match decided {
                Decided::Commit(txn) => self.tell(txn, effects),
                Decided::Reserve(sequence, last) => {
                    let csn = self.told;
                    let serving = self.replicas.serving();
                    serving.for_each(|replica| to_proxy(replica, Message::Apply { csn }, effects));
                    let (served, more) = self.sequences.reserved(sequence, last);
                    for (Want { txn, op, .. }, values) in served {
                        effects.push(Effect::Values { txn, op, values });
                    }
                    self.reserve(more, effects);
                }
            }
        }
    }

    fn tell(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(csn) = txn.csn else { return };
        txn.state = State::AwaitingCommit;
        for replica in txn.tell_ends() {
            to_proxy(replica, Message::Commit { txn: id, csn, tag: txn.tag_of_rest() }, effects);
        }
    }

    /// Commits what wrote nothing, at one replica; the others let it go. (What has failed ends there as well.)
    pub(super) fn finish(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        // A single statement's answer waits at the replica that gave it; of others, the one that was chosen for it ends it,
        // or any that has done everything.
        let answered_by = txn.writes.last().and_then(|write| write.answer).map(|(replica, _)| replica);
        let complete = |replica: &ReplicaId| txn.is_complete_at(&txn.at(*replica));
        let first = txn.replicas(|at| at.open && txn.is_complete_at(at)).next();
        let chosen = txn.chosen().filter(|chosen| txn.at(*chosen).open).filter(complete);
        let Some(replica) = txn.failed_at.or(answered_by.filter(complete)).or(chosen).or(first) else {
            effects.push(Effect::Finish { txn: id, op, replica: None });
            self.learn_tables(id, true);
            return self.abort(id, effects);
        };
        self.learn_tables(id, txn.failed_at.is_none());
        self.abort_except(id, Some(replica), effects);
        if let Some(txn) = self.txns.get_mut(&id) {
            to_proxy(replica, Message::Finish { txn: id, op, tag: txn.tag_of_rest() }, effects);
            txn.state = State::AwaitingFinish(op, replica);
        }
    }

    pub(super) fn on_ended(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if !txn.at(replica).takes_part() {
            return;
        }
        if txn.number.is_some() && self.policy.order == Order::Locks && txn.at(replica).released.is_none() {
            self.replicas.get_mut(replica).unlock(&txn.locks);
        }
        if txn.csn.is_some() && !txn.done {
            txn.done = true;
            self.known.done(&txn.versions, self.now);
        }
        if let Some(at) = txn.at_mut(replica) {
            at.part = Part::Ended;
        }
        self.let_go_rest(id, replica, effects);
        self.progress(id, effects);
    }

    pub(super) fn progress_commit(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(csn) = txn.csn else { return };
        if !txn.acknowledged && self.policy.is_answered(&self.replicas, txn, ended) {
            txn.acknowledged = true;
            let op = txn.commit_op;
            if let Some((replica, _)) =
                txn.writes.last().and_then(|write| write.answer).filter(|_| txn.autocommit)
            {
                effects.push(Effect::Release { txn: id, op, replica });
            }
            effects.push(Effect::Acknowledge { txn: id, op, csn });
        }
        if txn.acknowledged {
            self.forget_ended(id, effects);
        }
    }

    pub(super) fn refuse_stray(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let declared = self.txns.get(&id).is_some_and(|txn| txn.declared);
        self.counts.mispredicted += u64::from(!declared);
        self.refuse(id, op, if declared { Refusal::Undeclared } else { Refusal::Mispredicted }, effects);
    }

    pub(super) fn refuse(&mut self, id: TxnId, op: OpId, reason: Refusal, effects: &mut Vec<Effect>) {
        effects.push(Effect::Refuse { txn: id, op, reason });
        self.abort(id, effects);
    }

    pub(super) fn abort(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        self.learn_tables(id, false);
        self.abort_except(id, None, effects);
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.state = State::AwaitingEnd;
        }
        self.forget_ended(id, effects);
    }

    /// Ends the transaction at every replica that takes part in it, but for one.
    pub(super) fn abort_except(&mut self, id: TxnId, spared: Option<ReplicaId>, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        for replica in txn.replicas(At::takes_part) {
            for expected_ns in txn.outstanding_at(replica) {
                self.replicas.get_mut(replica).load.remove(expected_ns);
            }
        }
        for replica in txn.tell_ends() {
            if Some(replica) != spared {
                to_proxy(replica, Message::Abort { txn: id, tag: txn.tag_of_rest() }, effects);
            }
        }
        txn.pending = None;
        for at in &mut txn.at {
            at.writes_done = txn.writes.len();
        }
        self.settle_versions(id, effects);
    }

    /// The record goes when every replica has answered (CAS 4.2).
    pub(super) fn forget_ended(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        if txn.at.iter().any(At::takes_part) {
            return;
        }
        if let Some(updates) = self.sessions.get_mut(&txn.session).filter(|_| txn.csn.is_some()) {
            updates.retain(|update| *update != id);
            if updates.is_empty() {
                let session = txn.session;
                self.sessions.remove(&session);
            }
        }
        if let Some(number) = txn.number {
            let versions = txn.versions.clone();
            self.known.drop_done(&versions, &self.replicas);
            self.forget_versions(id, number, &versions, effects);
        }
        self.txns.remove(&id);
        effects.push(Effect::Forget { txn: id });
    }

    fn learn_tables(&mut self, id: TxnId, complete: bool) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.declared || std::mem::replace(&mut txn.learned, true) {
            return;
        }
        if !txn.autocommit {
            self.transactions.learn(txn.prefix, &txn.touched, complete);
        } else if txn.widened {
            self.single_statements.learn(txn.prefix, &txn.touched, complete);
        }
    }
}
