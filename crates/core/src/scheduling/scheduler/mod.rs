//! The scheduler: takes what clients want and distributes it (CAS 4.2, 4.4 to 4.10, 5.3).
//!
//! Invariants:
//! - a transaction's writes go to every replica that takes part in it, in one order;
//! - a read of a longer transaction goes where its locks are granted (for eager: to any replica that executes it, which
//!   has then answered everything before);
//! - nothing is committed anywhere before its decision is durable;
//! - a client hears of its commit after some replica contains it.

mod replicas;
mod txn;

use std::collections::VecDeque;

use crate::map::HashMap;
use smallvec::SmallVec;

use crate::effect::{Decision, Effect, Notice, Refusal};
use crate::event::{Begin, Event, Outcome, Place, Statement, StatementKind};
use crate::footprints::Footprints;
use crate::ids::{Csn, OpId, ReplicaId, SequenceNumber, SessionId, TxnId};
use crate::load::Costs;
use crate::protocol::Status;
use crate::sequences::{Giving, Reservations, Sequences, Want};
use crate::table_queues::{LockMode, TableLocks};

use super::{AnswerAfter, Message, OpenTxn, Policy, ReadAt, send};

use replicas::{Replicas, Service};
use txn::{At, Part, Pending, Sent, State, Txn, Write};

/// A decision that is not durable yet.
#[derive(Debug)]
enum Decided {
    Commit(TxnId),
    Reserve(crate::item::TableId, i64),
}

#[derive(Debug)]
pub(super) struct Scheduler {
    policy: Policy,
    replicas: Replicas,
    txns: HashMap<TxnId, Txn>,
    /// The decided updates of each session that some replica may not have committed (CAS 4.8).
    sessions: HashMap<SessionId, SmallVec<[TxnId; 2]>>,
    /// Who waits for a replica in service, in order.
    awaiting_replica: Vec<TxnId>,
    /// The last number that was sent to the proxies.
    dispatched: SequenceNumber,
    /// `told <= decided`; what lies between, in order.
    told: Csn,
    undurable: VecDeque<Decided>,
    transactions: Footprints,
    single_statements: Footprints,
    costs: Costs,
    sequences: Sequences,
    counts: Counts,
}

#[derive(Default, Debug)]
struct Counts {
    reads_placed: u64,
    places_awaited: u64,
    every_table_locked: u64,
    mispredicted: u64,
}

impl Scheduler {
    pub(super) fn new(policy: Policy, replicas: usize, decided: Csn) -> Scheduler {
        Scheduler {
            policy,
            replicas: Replicas::new(replicas),
            txns: HashMap::default(),
            sessions: HashMap::default(),
            awaiting_replica: Vec::new(),
            dispatched: SequenceNumber(0),
            told: decided,
            undurable: VecDeque::new(),
            transactions: Footprints::default(),
            single_statements: Footprints::default(),
            costs: Costs::default(),
            sequences: Sequences::default(),
            counts: Counts::default(),
        }
    }

    /// From clients and the log.
    pub(super) fn handle(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Begin(begin) => self.on_begin(&begin, effects),
            Event::Autocommit { begin, statement } => {
                self.txns.insert(begin.txn, Txn::new(&begin, true));
                self.on_statement(begin.txn, OpId(0), statement, effects);
            }
            Event::Statement { txn, op, statement } => self.on_statement(txn, op, statement, effects),
            Event::Commit { txn, op } => self.on_commit(txn, op, effects),
            Event::Rollback { txn } => self.on_rollback(txn, effects),
            Event::Cancel { txn, op } => self.on_cancel(txn, op, effects),
            Event::Durable { csn } => self.on_durable(csn, effects),
            Event::NextValues { txn, op, wants } => self.on_next_values(Want { txn, op, wants }, effects),
            Event::Sequence { sequence, definition } => self.sequences.define(sequence, definition),
            _ => {}
        }
    }

    /// From the sequencer and the proxies.
    pub(super) fn handle_message(&mut self, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Number { txn, number } => self.on_number(txn, number, effects),
            Message::Granted { txn, replica } => self.on_granted(txn, replica, effects),
            Message::Done { txn, op, replica, outcome, elapsed_ns } => {
                self.on_done(txn, op, replica, outcome, elapsed_ns, effects);
            }
            Message::Ended { txn, replica } => self.on_ended(txn, replica, effects),
            Message::LaneLost { txn, replica } => self.on_lane_lost(txn, replica, effects),
            Message::Up { replica, incarnation, applied } => {
                self.on_up(replica, incarnation, applied, effects)
            }
            Message::CaughtUp { replica, through, complete } => {
                self.on_caught_up(replica, through, complete, effects);
            }
            Message::Down { replica, unsent } => self.on_down(replica, &unsent, effects),
            _ => {}
        }
    }

    pub(super) fn status(&self) -> Status {
        Status {
            told: self.told.0,
            decided: self.decided().0,
            replicas: self.replicas.status(),
            transactions: self.txns.len() as u64,
            freshness_waits: self.counts.places_awaited,
            reads_placed: self.counts.reads_placed,
            every_table_locked: self.counts.every_table_locked,
            mispredicted: self.counts.mispredicted,
            ..Status::default()
        }
    }

    fn decided(&self) -> Csn {
        Csn(self.told.0 + self.undurable.len() as u64)
    }
}

/// From the client.
impl Scheduler {
    fn on_begin(&mut self, begin: &Begin, effects: &mut Vec<Effect>) {
        self.txns.insert(begin.txn, Txn::new(begin, false));
        if let Some(declared) = &begin.declared {
            self.request_locks(begin.txn, TableLocks::of(declared), effects);
        }
    }

    fn on_statement(&mut self, id: TxnId, op: OpId, statement: Statement, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.state == State::Doomed {
            return self.refuse(id, op, Refusal::HomeLost, effects);
        }
        let needs = TableLocks::of(&statement.access);
        let reads_only = statement.kind == StatementKind::Read;
        txn.touched = txn.touched.union(&needs);
        if txn.state == State::AwaitingFirst {
            txn.prefix = txn.prefix.then(statement.class);
        }
        txn.pending = Some(Pending { op, statement, sent: Sent::Nowhere });
        match (txn.state, txn.autocommit) {
            (State::AwaitingFirst, true) => {
                let seen = self.single_statements.seen(txn.prefix);
                let locks = seen.map_or_else(|| needs.clone(), |seen| needs.union(seen));
                if reads_only {
                    txn.locks = locks;
                    self.place_single_read(id, effects);
                } else {
                    self.request_locks(id, locks, effects);
                }
            }
            (State::AwaitingFirst, false) => {
                let locks = self.predict_tables(id, &needs, effects);
                self.request_locks(id, locks, effects);
            }
            _ if !txn.locks.covers(&needs) => self.refuse_stray(id, op, effects),
            (State::AwaitingClient, _) => self.dispatch(id, effects),
            // Its locks are on their way; it runs when they are granted.
            _ => {}
        }
    }

    /// The tables of a transaction that declared none: those of its like, else all (design section 6).
    fn predict_tables(&mut self, id: TxnId, needs: &TableLocks, effects: &mut Vec<Effect>) -> TableLocks {
        let Some(txn) = self.txns.get(&id) else { return TableLocks::default() };
        if let Some(learned) = self.transactions.relied_on(txn.prefix) {
            return learned.union(needs);
        }
        self.counts.every_table_locked += 1;
        effects.push(Effect::Notice { txn: id, notice: Notice::EveryTableLocked });
        TableLocks::everything(if txn.read_only { LockMode::Read } else { LockMode::Write })
    }

    fn on_commit(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        if txn.state == State::Doomed {
            return self.refuse(id, op, Refusal::HomeLost, effects);
        }
        if txn.strayed {
            return self.refuse_stray(id, op, effects);
        }
        if txn.wrote && txn.failed_at.is_none() {
            self.decide(id, op, effects)
        } else {
            self.finish(id, op, effects)
        }
    }

    fn on_rollback(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        // A decision stands whatever becomes of the client.
        if self.txns.get(&id).is_some_and(|txn| !txn.state.is_ending()) {
            self.abort(id, effects);
        }
    }

    fn on_cancel(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let waits = self.txns.get(&id).is_some_and(|txn| {
            txn.state.waits_in_core() && txn.pending.as_ref().is_some_and(|pending| pending.op == op)
        });
        if waits {
            self.refuse(id, op, Refusal::Cancelled, effects);
        }
    }

    fn on_next_values(&mut self, want: Want, effects: &mut Vec<Effect>) {
        let (txn, op) = (want.txn, want.op);
        match self.sequences.next(want) {
            Giving::Given(values) => effects.push(Effect::Values { txn, op, values }),
            Giving::Waits { reserve } => self.reserve(reserve, effects),
        }
    }

    fn reserve(&mut self, reservations: Reservations, effects: &mut Vec<Effect>) {
        for (sequence, last) in reservations {
            self.undurable.push_back(Decided::Reserve(sequence, last));
            let decision = Decision::Reserve { sequence, last };
            effects.push(Effect::Append { csn: self.decided(), decision });
        }
    }
}

/// Sequence numbers and locks (CAS 4.4 and 4.9).
impl Scheduler {
    fn request_locks(&mut self, id: TxnId, locks: TableLocks, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.locks = locks;
        if self.replicas.serving().next().is_none() {
            return self.await_replica(id);
        }
        txn.state = State::AwaitingNumber;
        send(Place::Sequencer, Message::NumberRequest { txn: id }, effects);
    }

    fn await_replica(&mut self, id: TxnId) {
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.state = State::AwaitingReplica;
            self.awaiting_replica.push(id);
        }
    }

    fn on_number(&mut self, id: TxnId, number: SequenceNumber, effects: &mut Vec<Effect>) {
        self.dispatched = self.dispatched.max(number);
        let wanted = self.txns.get_mut(&id).filter(|txn| txn.state == State::AwaitingNumber);
        let serving = self.replicas.serving();
        let Some(txn) = wanted else {
            // Cancelled meanwhile; without this, the proxies would wait for the number for ever.
            return serving.for_each(|replica| to_proxy(replica, Message::Void { number }, effects));
        };
        txn.number = Some(number);
        txn.at = vec![At::ABSENT; self.replicas.len()];
        txn.state = State::AwaitingGrant;
        let single_update = txn.pending.as_ref().filter(|_| txn.autocommit).map(|pending| pending.op);
        let mut alone = true;
        for replica in serving {
            alone = false;
            txn.at[usize::from(replica.0)] = At::with_part(Part::Executes);
            self.replicas.get_mut(replica).lock(&txn.locks);
            let locks = txn.locks.clone();
            let message = match single_update {
                Some(op) => Message::SingleUpdate { txn: id, number, op, locks },
                None => Message::LockRequest { txn: id, number, locks },
            };
            to_proxy(replica, message, effects);
        }
        if alone {
            txn.start_again();
            return self.await_replica(id);
        }
        if single_update.is_some() {
            self.record_write(id);
        }
    }

    fn on_granted(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if let Some(at) = txn.at_mut(replica) {
            at.granted = true;
        }
        self.progress(id, effects);
    }

    /// A single statement runs at each proxy as soon as it is granted there; the statements of a longer transaction
    /// wait for the answer to its lock request.
    fn progress_grant(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.autocommit {
            if txn.at.iter().any(|at| at.granted) {
                txn.state = State::Executing;
            }
        } else if self.policy.is_answered(&self.replicas, txn, |at| executed(at, at.granted)) {
            txn.state = State::AwaitingClient;
            if txn.pending.is_some() {
                self.dispatch(id, effects);
            }
        }
    }
}

/// Statements (CAS 4.5, 4.6, 4.8).
impl Scheduler {
    fn dispatch(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(pending) = self.txns.get(&id).and_then(|txn| txn.pending.as_ref()) else { return };
        if pending.statement.kind == StatementKind::Read {
            return self.place_read(id, effects);
        }
        let op = pending.op;
        self.record_write(id);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.state = State::Executing;
        for replica in txn.replicas(|at| at.part == Part::Executes).collect::<Vec<_>>() {
            to_proxy(replica, Message::Write { txn: id, op }, effects);
        }
    }

    /// The pending statement is sent to every replica that executes the transaction.
    fn record_write(&mut self, id: TxnId) {
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

    /// A read of a longer transaction: where its locks are granted and its writes are done, or, conflicts ignored, at
    /// the least loaded replica (CAS 4.5, 6.1).
    fn place_read(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let up = self.replicas.best();
        let candidates: Vec<ReplicaId> = match (txn.failed_at, self.policy.read_at) {
            (Some(replica), _) => vec![replica],
            (None, ReadAt::ConflictFree) => txn.replicas(|at| txn.is_complete_at(at)).collect(),
            (None, ReadAt::LeastLoaded) => {
                let executes = txn.replicas(|at| at.part == Part::Executes);
                executes.filter(|replica| up.contains(replica)).collect()
            }
        };
        let Some(replica) = self.replicas.choose(candidates) else {
            self.counts.places_awaited += u64::from(txn.state != State::AwaitingPlace);
            txn.state = State::AwaitingPlace;
            return;
        };
        self.send_read(id, replica, effects, |txn, op| Message::Read { txn, op });
    }

    /// A transaction that is one read holds its locks at one replica only (CAS 4.8).
    fn place_single_read(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some((replica, after)) = self.choose_for_single_read(id) else { return self.await_replica(id) };
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.at = vec![At::ABSENT; self.replicas.len()];
        txn.at[usize::from(replica.0)] = At::with_part(Part::Executes);
        let locks = txn.locks.clone();
        self.send_read(id, replica, effects, |txn, op| Message::SingleRead { txn, op, locks, after });
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.state = State::AwaitingGrant;
        }
    }

    /// Of the replicas where its session's updates are committed, the least loaded of those where no lock stands in its
    /// way, or else of all (CAS 4.8). With it, the number behind which it must queue to see those updates anyway.
    fn choose_for_single_read(&mut self, id: TxnId) -> Option<(ReplicaId, SequenceNumber)> {
        let txn = self.txns.get(&id)?;
        let updates: &[TxnId] = self.sessions.get(&txn.session).map_or(&[], |updates| updates);
        let updates: SmallVec<[&Txn; 2]> =
            updates.iter().filter_map(|update| self.txns.get(update)).collect();
        let after = updates.iter().filter_map(|update| update.number).max().unwrap_or_default();
        let mut candidates = self.replicas.best();
        if self.policy.read_at == ReadAt::ConflictFree {
            let contains_updates =
                |replica: &ReplicaId| updates.iter().all(|update| !update.at(*replica).takes_part());
            narrow(&mut candidates, contains_updates);
            narrow(&mut candidates, |replica| !self.replicas.get(*replica).conflicts_with_reader(&txn.locks));
        }
        Some((self.replicas.choose(candidates)?, after))
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

    fn on_done(
        &mut self,
        id: TxnId,
        op: OpId,
        replica: ReplicaId,
        outcome: Outcome,
        elapsed_ns: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(txn) = self.txns.get(&id) else { return };
        let reads_there = txn.pending.as_ref().is_some_and(|pending| {
            pending.op == op && matches!(pending.sent, Sent::Read(at, _) if at == replica)
        });
        if reads_there {
            self.on_read_done(id, replica, outcome, elapsed_ns, effects);
        } else if txn.autocommit && txn.number.is_none() && txn.at(replica).takes_part() {
            // A single read that was given up while its answer was on the way; it is over at its proxy.
            self.on_ended(id, replica, effects);
        } else {
            self.on_write_done(id, op, replica, outcome, elapsed_ns, effects);
        }
    }

    fn on_read_done(
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
        if txn.autocommit {
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
            }
            Outcome::Failed => {
                txn.answered = true;
                self.after_answer(id, Some(replica), effects);
            }
        }
    }

    /// A read was lost with its replica, or with its connection, before anybody saw a part of its answer.
    fn read_elsewhere(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.autocommit {
            return self.place_single_read(id, effects);
        }
        txn.state = State::AwaitingPlace;
        self.lose_part(id, replica, effects);
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
            Outcome::Lost { .. } => return self.on_lane_lost(id, replica, effects),
            Outcome::Failed => true,
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
    fn progress_write(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.pending.as_ref().is_none_or(|pending| pending.sent != Sent::Everywhere) {
            return;
        }
        let count = txn.writes.len();
        let Some((replica, failed)) = txn.writes.last().and_then(|write| write.answer) else { return };
        if !self.policy.is_answered(&self.replicas, txn, |at| executed(at, at.writes_done == count)) {
            return;
        }
        if txn.autocommit && txn.strayed && !failed {
            txn.state = State::AwaitingQuiet;
            return self.progress(id, effects);
        }
        let Some(pending) = txn.pending.take() else { return };
        let writes = matches!(pending.statement.kind, StatementKind::Write | StatementKind::Schema);
        if !txn.autocommit {
            txn.answered = true;
            txn.wrote |= writes && !failed && !txn.read_only;
            effects.push(Effect::Release { txn: id, op: pending.op, replica });
            return self.after_answer(id, failed.then_some(replica), effects);
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

/// Decisions and endings (CAS 4.7, 5.3).
impl Scheduler {
    fn decide(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        self.undurable.push_back(Decided::Commit(id));
        let csn = self.decided();
        self.learn_tables(id, true);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.state = State::AwaitingDurable;
        txn.commit_op = op;
        txn.csn = Some(csn);
        self.sessions.entry(txn.session).or_default().push(id);
        effects.push(Effect::Append { csn, decision: Decision::Commit(id) });
    }

    fn on_durable(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
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
        for replica in txn.replicas(At::takes_part) {
            to_proxy(replica, Message::Commit { txn: id, csn }, effects);
        }
    }

    /// Commits what wrote nothing, at one replica; the others let it go. (What has failed ends there as well.)
    fn finish(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        // A single statement's answer waits at the replica that gave it; of others, any that has done everything will do.
        let answered_by = txn.writes.last().and_then(|write| write.answer).map(|(replica, _)| replica);
        let complete = |replica: &ReplicaId| txn.is_complete_at(&txn.at(*replica));
        let first = txn.replicas(|at| at.open && txn.is_complete_at(at)).next();
        let Some(replica) = txn.failed_at.or(answered_by.filter(complete)).or(first) else {
            effects.push(Effect::Finish { txn: id, op, replica: None });
            self.learn_tables(id, true);
            return self.abort(id, effects);
        };
        self.learn_tables(id, txn.failed_at.is_none());
        self.abort_except(id, Some(replica), effects);
        to_proxy(replica, Message::Finish { txn: id, op }, effects);
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.state = State::AwaitingFinish(op, replica);
        }
    }

    fn on_ended(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if !txn.at(replica).takes_part() {
            return;
        }
        if txn.number.is_some() {
            self.replicas.get_mut(replica).unlock(&txn.locks);
        }
        if let Some(at) = txn.at_mut(replica) {
            at.part = Part::Ended;
        }
        self.progress(id, effects);
    }

    fn progress_commit(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
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

    fn refuse_stray(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let declared = self.txns.get(&id).is_some_and(|txn| txn.declared);
        self.counts.mispredicted += u64::from(!declared);
        self.refuse(id, op, if declared { Refusal::Undeclared } else { Refusal::Mispredicted }, effects);
    }

    fn refuse(&mut self, id: TxnId, op: OpId, reason: Refusal, effects: &mut Vec<Effect>) {
        effects.push(Effect::Refuse { txn: id, op, reason });
        self.abort(id, effects);
    }

    fn abort(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        self.learn_tables(id, false);
        self.abort_except(id, None, effects);
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.state = State::AwaitingEnd;
        }
        self.forget_ended(id, effects);
    }

    /// Ends the transaction at every replica that takes part in it, but for one.
    fn abort_except(&mut self, id: TxnId, spared: Option<ReplicaId>, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        for replica in txn.replicas(At::takes_part) {
            for expected_ns in txn.outstanding_at(replica) {
                self.replicas.get_mut(replica).load.remove(expected_ns);
            }
            if Some(replica) != spared {
                to_proxy(replica, Message::Abort { txn: id }, effects);
            }
        }
        txn.pending = None;
        for at in &mut txn.at {
            at.writes_done = txn.writes.len();
        }
    }

    /// The record goes when every replica has answered (CAS 4.2).
    fn forget_ended(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
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

/// Replicas and connections come and go (CAS 5.3.3).
impl Scheduler {
    fn on_up(&mut self, replica: ReplicaId, incarnation: u32, applied: Csn, effects: &mut Vec<Effect>) {
        self.replicas.get_mut(replica).reset(Service::CatchingUp);
        let mut open = Vec::new();
        for (id, txn) in &mut self.txns {
            let Some(number) = txn.number else { continue };
            let undecided = !txn.state.is_ending() || txn.state == State::AwaitingDurable;
            if undecided && !matches!(txn.state, State::AwaitingClear | State::Doomed) {
                txn.at[usize::from(replica.0)] = At::with_part(Part::Follows);
                self.replicas.get_mut(replica).lock(&txn.locks);
                open.push((number, OpenTxn { txn: *id, locks: txn.locks.clone() }));
            }
        }
        open.sort_unstable_by_key(|(number, _)| *number);
        let join = Message::Join {
            incarnation,
            from: applied.next(),
            to: self.told,
            number: self.dispatched,
            open: open.into_iter().map(|(_, open)| open).collect(),
        };
        to_proxy(replica, join, effects);
        self.on_contained(replica, applied, effects);
        for id in std::mem::take(&mut self.awaiting_replica) {
            let Some(txn) = self.txns.get(&id).filter(|txn| txn.state == State::AwaitingReplica) else {
                continue;
            };
            let reads_only =
                txn.pending.as_ref().is_some_and(|pending| pending.statement.kind == StatementKind::Read);
            if txn.autocommit && reads_only {
                self.place_single_read(id, effects);
            } else {
                let locks = txn.locks.clone();
                self.request_locks(id, locks, effects);
            }
        }
    }

    fn on_caught_up(&mut self, replica: ReplicaId, through: Csn, complete: bool, effects: &mut Vec<Effect>) {
        if complete {
            self.replicas.get_mut(replica).service = Service::Up;
        }
        self.on_contained(replica, through, effects);
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

    fn on_down(&mut self, replica: ReplicaId, unsent: &[(TxnId, OpId)], effects: &mut Vec<Effect>) {
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

    /// Between two statements, a transaction's connection to a replica was lost.
    fn on_lane_lost(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if let Some(pending) = &mut txn.pending
            && let Sent::Read(at, expected_ns) = pending.sent
            && at == replica
        {
            // The read crossed with this message, and its proxy has dropped it.
            pending.sent = Sent::Nowhere;
            txn.state = State::AwaitingPlace;
            self.replicas.get_mut(replica).load.remove(expected_ns);
        }
        self.lose_part(id, replica, effects);
    }

    /// A replica can no longer execute a transaction: it goes on with the others, if there are any.
    fn lose_part(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if self.replicas.get(replica).service != Service::Down {
            for expected_ns in txn.outstanding_at(replica) {
                self.replicas.get_mut(replica).load.remove(expected_ns);
            }
        }
        txn.follow(replica);
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
    fn progress_start_again(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let count = txn.writes.len();
        if txn.state == State::AwaitingQuiet {
            if txn.at.iter().any(|at| at.part == Part::Executes && at.writes_done < count) {
                return;
            }
            txn.state = State::AwaitingClear;
            for replica in txn.replicas(At::takes_part) {
                to_proxy(replica, Message::Abort { txn: id }, effects);
            }
        }
        if txn.at.iter().any(At::takes_part) {
            return;
        }
        let locks = if txn.strayed { txn.locks.union(&txn.touched) } else { txn.locks.clone() };
        txn.widened |= txn.strayed;
        txn.start_again();
        self.request_locks(id, locks, effects);
    }

    /// Something has happened at a replica: does what the transaction was waiting for.
    fn progress(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        match txn.state {
            State::AwaitingGrant => self.progress_grant(id, effects),
            State::AwaitingPlace => self.place_read(id, effects),
            State::Executing => self.progress_write(id, effects),
            State::AwaitingQuiet | State::AwaitingClear => self.progress_start_again(id, effects),
            State::AwaitingCommit => self.progress_commit(id, effects),
            State::AwaitingFinish(..) | State::AwaitingEnd => self.forget_ended(id, effects),
            _ => {}
        }
    }

    fn sorted(&self, which: impl Fn(&Txn) -> bool) -> Vec<TxnId> {
        let mut ids: Vec<TxnId> = self.txns.iter().filter(|(_, txn)| which(txn)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }
}

fn to_proxy(replica: ReplicaId, message: Message, effects: &mut Vec<Effect>) {
    send(Place::Proxy(replica), message, effects);
}

impl Policy {
    /// Whether enough replicas have done something for the client to be answered (CAS 3.3, 6.1). `done` says of a
    /// replica whether it has, and nothing if it is not concerned.
    fn is_answered(self, replicas: &Replicas, txn: &Txn, done: impl Fn(&At) -> Option<bool>) -> bool {
        let some = txn.at.iter().any(|at| done(at) == Some(true));
        let mut missing = txn.replicas(|at| done(at) == Some(false));
        match self.answer_after {
            AnswerAfter::First => some,
            // Whoever catches up is behind by what it has missed, so nobody waits for it.
            AnswerAfter::All => some && missing.all(|replica| replicas.get(replica).service != Service::Up),
        }
    }
}

/// Locks and writes concern the replicas that execute the transaction.
fn executed(at: &At, done: bool) -> Option<bool> {
    (at.part == Part::Executes).then_some(done)
}

/// Its end concerns every replica that takes part in it.
fn ended(at: &At) -> Option<bool> {
    (at.part != Part::Absent).then_some(at.part == Part::Ended)
}

/// Leaves out those that do not satisfy a condition, unless none does.
fn narrow(candidates: &mut Vec<ReplicaId>, condition: impl Fn(&ReplicaId) -> bool) {
    if candidates.iter().any(&condition) {
        candidates.retain(condition);
    }
}
