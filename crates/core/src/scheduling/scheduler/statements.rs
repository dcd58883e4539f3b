//! Statements: reads placed, writes sent everywhere and their answers compared (CAS 4.5, 4.6, 4.8).

use smallvec::SmallVec;

use crate::effect::{Effect, Refusal};
use crate::event::{Outcome, Statement, StatementKind};
use crate::ids::{OpId, ReplicaId, TxnId};
use crate::scheduling::{Behind, Message, Order, ReadAt};
use crate::table_queues::TableLocks;

use super::txn::{At, Part, Sent, State, Txn, Write};
use super::{Scheduler, executed, to_proxy};

impl Scheduler {
    pub(super) fn dispatch(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(pending) = self.txns.get(&id).and_then(|txn| txn.pending.as_ref()) else { return };
        if pending.statement.kind == StatementKind::Read {
            return self.place_read(id, effects);
        }
        let op = pending.op;
        self.note_sent(id);
        let Some(tag) = self.txns.get(&id).map(|txn| self.tag_of_pending(txn)) else { return };
        self.record_write(id);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.state = State::Executing;
        for replica in txn.replicas(|at| at.part == Part::Executes) {
            to_proxy(replica, Message::Write { txn: id, op, tag: tag.clone() }, effects);
        }
    }

    /// The pending statement is sent to every replica that executes the transaction.
    pub(super) fn record_write(&mut self, id: TxnId) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(pending) = &mut txn.pending else { return };
        let class = pending.statement.class;
        let expected_ns = self.costs.expected_ns(class);
        pending.sent = Sent::Everywhere;
        let authority = txn.failed_at;
        txn.writes.push(Write { op: pending.op, class, expected_ns, authority, answer: None });
        for (at, replica) in txn.at.iter_mut().zip(0..).filter(|(at, _)| at.part == Part::Executes) {
            at.open = true;
            self.replicas.get_mut(ReplicaId(replica)).load.add(expected_ns);
        }
    }

    /// A read of a longer transaction: where its locks are granted and its writes are done; at its transaction's replica;
    /// or, conflicts ignored, at the least loaded one (CAS 4.5, 6.1 to 6.4); where versions decide, at one that is ready (DV
    /// 4.3).
    pub(super) fn place_read(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        let tag = self.tag_of_pending(txn);
        let versions = self.policy.versioning().is_some();
        let candidates: Vec<ReplicaId> = match (txn.failed_at.or(txn.chosen()), self.policy.read_at) {
            (Some(replica), _) => vec![replica],
            (None, _) if versions => txn
                .replicas(|at| at.part == Part::Executes)
                .filter(|at| self.is_ready(txn, &tag, *at))
                .collect(),
            (None, ReadAt::ConflictFree) => txn.replicas(|at| txn.is_complete_at(at)).collect(),
            (None, ReadAt::LeastLoaded | ReadAt::Chosen(_)) => {
                let up = self.replicas.best();
                let executes = txn.replicas(|at| at.part == Part::Executes);
                executes.filter(|replica| up.contains(replica)).collect()
            }
        };
        let chosen = self.replicas.choose(candidates);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(replica) = chosen else {
            self.counts.places_awaited += u64::from(txn.state != State::AwaitingPlace);
            txn.state = State::AwaitingPlace;
            return self.await_versions(id, &tag);
        };
        if matches!(self.policy.read_at, ReadAt::Chosen(_)) {
            txn.chosen = Some(replica);
        }
        let alone = txn.autocommit;
        self.send_read(id, replica, effects, |txn, op| Message::Read { txn, op, tag, alone });
    }

    /// A transaction that is one read holds its locks at one replica only (CAS 4.8).
    pub(super) fn place_single_read(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let serves = self.replicas.serving().next().is_some();
        let Some((replica, behind)) = self.choose_for_single_read(id) else {
            return if serves { self.hold_read(id) } else { self.await_replica(id) };
        };
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.at = vec![At::ABSENT; self.replicas.len()];
        txn.at[usize::from(replica.0)] = At::with_part(Part::Executes);
        let locks = txn.locks.clone();
        self.send_read(id, replica, effects, |txn, op| Message::SingleRead { txn, op, locks, behind });
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.state = State::AwaitingGrant;
        }
    }

    /// Of the replicas where its session's updates are committed, the least loaded of those where no lock stands in its
    /// way, or else of all (CAS 4.8). With it, the number behind which it must queue to see those updates anyway.
    fn choose_for_single_read(&mut self, id: TxnId) -> Option<(ReplicaId, Behind)> {
        let mut candidates = self.replicas.best();
        if self.policy.order != Order::Locks {
            let behind = self.place_among(id, &mut candidates)?;
            return Some((self.replicas.choose(candidates)?, behind));
        }
        let txn = self.txns.get(&id)?;
        let updates: &[TxnId] = self.sessions.get(&txn.session).map_or(&[], |updates| updates);
        let updates: SmallVec<[&Txn; 2]> =
            updates.iter().filter_map(|update| self.txns.get(update)).collect();
        let after = updates.iter().filter_map(|update| update.number).max().unwrap_or_default();
        if self.policy.avoids_conflicts() {
            let contains_updates =
                |replica: &ReplicaId| updates.iter().all(|update| !update.at(*replica).takes_part());
            narrow(&mut candidates, contains_updates);
            narrow(&mut candidates, |replica| !self.replicas.get(*replica).conflicts_with_reader(&txn.locks));
        }
        Some((self.replicas.choose(candidates)?, Behind::Number(after)))
    }

    /// No replica may serve it yet, by its protocol's rules (DV 5.2, Level 2).
    fn hold_read(&mut self, id: TxnId) {
        if let Some(txn) = self.txns.get_mut(&id) {
            self.counts.places_awaited += u64::from(txn.state != State::AwaitingPlace);
            txn.state = State::AwaitingPlace;
            self.known.held_reads.push(id);
        }
    }

    fn send_read(
        &mut self,
        id: TxnId,
        replica: ReplicaId,
        effects: &mut Vec<Effect>,
        message: impl FnOnce(TxnId, OpId) -> Message,
    ) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(pending) = &mut txn.pending else { return };
        let expected_ns = self.costs.expected_ns(pending.statement.class);
        pending.sent = Sent::Read(replica, expected_ns);
        let op = pending.op;
        txn.state = State::Executing;
        if let Some(at) = txn.at_mut(replica) {
            at.open = true;
        }
        self.replicas.get_mut(replica).load.add(expected_ns);
        self.counts.reads_placed += 1;
        to_proxy(replica, message(id, op), effects);
    }

    pub(super) fn on_done(
        &mut self,
        id: TxnId,
        op: OpId,
        replica: ReplicaId,
        outcome: Outcome,
        elapsed_ns: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(txn) = self.txns.get(&id) else { return };
        if txn.reads_at(op, replica) {
            self.on_read_done(id, replica, outcome, elapsed_ns, effects);
        } else if txn.autocommit && txn.number.is_none() && txn.at(replica).takes_part() {
            // A single read that was given up while its answer was on the way; it is over at its proxy.
            self.on_ended(id, replica, effects);
        } else {
            self.on_write_done(id, op, replica, outcome, elapsed_ns, effects);
        }
    }

    pub(super) fn on_read_done(
        &mut self,
        id: TxnId,
        replica: ReplicaId,
        outcome: Outcome,
        elapsed_ns: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(mut pending) = txn.pending.take() else { return };
        if let Sent::Read(_, expected_ns) = pending.sent {
            self.replicas.get_mut(replica).load.remove(expected_ns);
        }
        if txn.autocommit && txn.number.is_none() {
            // Its proxy has let it go.
            txn.at.clear();
        }
        match outcome {
            Outcome::Lost { answer_begun: true } => {
                txn.follow(replica);
                self.refuse(id, pending.op, Refusal::AnswerCut, effects);
            }
            Outcome::Lost { answer_begun: false } => {
                pending.sent = Sent::Nowhere;
                txn.pending = Some(pending);
                self.read_elsewhere(id, replica, effects);
            }
            Outcome::Done { returned } => {
                self.costs.learn(pending.statement.class, elapsed_ns);
                txn.answered = true;
                txn.note_returned(&returned);
                self.after_answer(id, None, effects);
                self.release_after(id, &pending.statement, effects);
                let is_lost = |txn: &Txn| txn.number.is_some() && txn.at(replica).part != Part::Executes;
                if self.txns.get(&id).is_some_and(is_lost) {
                    // It may have been the last that executed the transaction.
                    self.lose_part(id, replica, effects);
                }
            }
            // Nobody is asked here to hold what is read.
            Outcome::Failed | Outcome::TooLarge => {
                txn.answered = true;
                self.after_answer(id, Some(replica), effects);
            }
        }
    }

    /// A read was lost with its replica, or with its connection, before anybody saw a part of its answer.
    pub(super) fn read_elsewhere(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.autocommit && txn.number.is_none() {
            return self.place_single_read(id, effects);
        }
        txn.state = State::AwaitingPlace;
        self.lose_part(id, replica, effects);
    }

    /// A statement is answered: its transaction may have used tables for the last time by it (DV 4.5).
    fn release_after(&mut self, id: TxnId, statement: &Statement, effects: &mut Vec<Effect>) {
        if let Some(last_use) = &statement.last_use {
            self.release_last_used(id, last_use, &TableLocks::default(), effects);
        }
    }

    fn after_answer(&mut self, id: TxnId, failed_at: Option<ReplicaId>, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.autocommit {
            return self.abort(id, effects);
        }
        txn.failed_at = failed_at;
        txn.state = State::AwaitingClient;
    }

    fn on_write_done(
        &mut self,
        id: TxnId,
        op: OpId,
        replica: ReplicaId,
        outcome: Outcome,
        elapsed_ns: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let at = txn.at(replica);
        let index = at.writes_done;
        let expected = txn.writes.get(index).filter(|write| write.op == op && at.part == Part::Executes);
        let Some(Write { class, expected_ns, .. }) = expected else { return };
        let (class, expected_ns) = (*class, *expected_ns);
        let failed = match &outcome {
            Outcome::Lost { .. } => return self.lose_part(id, replica, effects),
            Outcome::Failed | Outcome::TooLarge => true,
            Outcome::Done { returned } => {
                self.costs.learn(class, elapsed_ns);
                txn.note_returned(returned);
                false
            }
        };
        self.replicas.get_mut(replica).load.remove(expected_ns);
        if let Some(at) = txn.at_mut(replica) {
            at.writes_done += 1;
            at.halted = failed;
        }
        if !failed {
            self.on_single_update_done(id, replica, effects);
        }
        self.compare(id, index, replica, failed, effects);
        self.progress(id, effects);
    }

    /// The first answer is the client's; a replica that differs from it must not go on.
    fn compare(
        &mut self,
        id: TxnId,
        index: usize,
        replica: ReplicaId,
        failed: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(write) = txn.writes.get_mut(index) else { return };
        if write.answer.is_some() {
            return self.settle(id, index, replica, effects);
        }
        if write.authority.is_none_or(|authority| authority == replica) {
            write.answer = Some((replica, failed));
            let done = txn.replicas(|at| at.part == Part::Executes && at.writes_done == index + 1);
            for replica in done.collect::<Vec<_>>() {
                self.settle(id, index, replica, effects);
            }
        }
    }

    fn settle(&mut self, id: TxnId, index: usize, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some((_, failed)) = txn.writes.get(index).and_then(|write| write.answer) else { return };
        let Some(at) = txn.at_mut(replica).filter(|at| at.halted) else { return };
        at.halted = false;
        if failed {
            to_proxy(replica, Message::Resume { txn: id }, effects);
        } else {
            to_proxy(replica, Message::Detach { txn: id }, effects);
            self.lose_part(id, replica, effects);
        }
    }

    /// Whether the pending write may be answered, and what follows.
    pub(super) fn progress_write(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.pending.as_ref().is_none_or(|pending| pending.sent != Sent::Everywhere) {
            return;
        }
        let count = txn.writes.len();
        let Some((first, failed)) = txn.writes.last().and_then(|write| write.answer) else { return };
        if !self.policy.is_answered(&self.replicas, txn, |at| executed(at, at.writes_done == count)) {
            return;
        }
        if txn.autocommit && txn.strayed && !failed {
            txn.state = State::AwaitingQuiet;
            return self.progress(id, effects);
        }
        let Some(pending) = txn.pending.take() else { return };
        // Whoever was chosen has done it by now, and its answer was waited for, though all are the same.
        let replica = txn.chosen().filter(|_| !failed).unwrap_or(first);
        if let Some(write) = txn.writes.last_mut() {
            write.answer = Some((replica, failed));
        }
        let writes = matches!(pending.statement.kind, StatementKind::Write | StatementKind::Schema);
        if !txn.autocommit {
            txn.answered = true;
            txn.wrote |= writes && !failed && !txn.read_only;
            effects.push(Effect::Release { txn: id, op: pending.op, replica });
            self.after_answer(id, failed.then_some(replica), effects);
            if !failed {
                self.release_after(id, &pending.statement, effects);
            }
            return;
        }
        if failed {
            effects.push(Effect::Release { txn: id, op: pending.op, replica });
            return self.abort(id, effects);
        }
        if writes {
            return self.decide(id, pending.op, effects);
        }
        effects.push(Effect::Release { txn: id, op: pending.op, replica });
        self.finish(id, pending.op, effects);
    }
}

/// Leaves out those that do not satisfy a condition, unless none does.
pub(super) fn narrow(candidates: &mut Vec<ReplicaId>, condition: impl Fn(&ReplicaId) -> bool) {
    if candidates.iter().any(&condition) {
        candidates.retain(condition);
    }
}
