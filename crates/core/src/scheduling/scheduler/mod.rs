//! The scheduler: takes what clients want and distributes it (CAS 4.2, 4.4 to 4.10, 5.3; DV 4.2 to 4.6).
//!
//! Invariants:
//! - a transaction's writes go to every replica that takes part in it, in one order;
//! - a read of a longer transaction goes where its locks are granted or the versions of its tables are there, or to a
//!   replica that executes it and lets it wait for them and for what is before it in its transaction;
//! - nothing is committed anywhere before its decision is durable;
//! - a client hears of its commit after some replica contains it.

mod locks;
mod statements;

mod decisions;
mod endings;
mod losses;

mod versions;

mod replicas;
mod txn;

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::effect::{Decision, Effect, Notice, Refusal};
use crate::event::{Begin, Event, Place, Statement, StatementKind};
use crate::footprints::Footprints;
use crate::ids::{Csn, Instant, OpId, ReplicaId, SequenceNumber, SessionId, TxnId};
use crate::item::TableId;
use crate::load::Costs;
use crate::map::HashMap;
use crate::protocol::{Engine, Status};
use crate::sequences::{Giving, RESERVED_VALUES, Reservations, Sequences, Want};
use crate::table_queues::{LockMode, TableLocks};

use super::{AnswerAfter, Message, Order, Policy, send};

use decisions::Decisions;
use replicas::{Replicas, Service};
use txn::{At, Part, Pending, Sent, State, Txn};
use versions::Known;

/// A decision that is not durable yet.
#[derive(Debug)]
enum Decided {
    Commit(TxnId),
    Reserve(TableId, i64),
}

#[derive(Debug)]
pub(super) struct Scheduler {
    policy: Policy,
    engine: Engine,
    /// When the present event happened.
    now: Instant,
    replicas: Replicas,
    /// Where versions decide.
    known: Known,
    decisions: Decisions,
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
            engine: Engine::default(),
            now: Instant(0),
            replicas: Replicas::new(replicas),
            known: Known::default(),
            decisions: Decisions::default(),
            txns: HashMap::default(),
            sessions: HashMap::default(),
            awaiting_replica: Vec::new(),
            dispatched: SequenceNumber(0),
            told: decided,
            undurable: VecDeque::new(),
            transactions: Footprints::default(),
            single_statements: Footprints::default(),
            costs: Costs::default(),
            sequences: Sequences::reserving(RESERVED_VALUES),
            counts: Counts::default(),
        }
    }

    pub(super) fn engine_is(&mut self, engine: Engine) {
        self.engine = engine;
        if engine.commits_in_order && self.policy.versioning().is_some() {
            self.decisions.order();
        }
    }

    /// From clients and the log.
    pub(super) fn handle(&mut self, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        self.now = now;
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
    pub(super) fn handle_message(&mut self, now: Instant, message: Message, effects: &mut Vec<Effect>) {
        self.now = now;
        match message {
            Message::Number { txn, number, versions } if self.policy.order != Order::Locks => {
                self.on_versions(txn, number, versions, effects);
            }
            Message::Number { txn, number, .. } => self.on_number(txn, number, effects),
            Message::Granted { txn, replica } => self.on_granted(txn, replica, effects),
            Message::Done { txn, op, replica, outcome, elapsed_ns } => {
                self.on_done(txn, op, replica, outcome, elapsed_ns, effects);
            }
            Message::Late { txn, op, replica, outcome, elapsed_ns }
                if self.txns.get(&txn).is_some_and(|txn| txn.reads_at(op, replica)) =>
            {
                self.on_read_done(txn, replica, outcome, elapsed_ns, effects);
            }
            Message::Released { txn, replica, tables } => self.on_released(txn, replica, tables, effects),
            Message::Ended { txn, replica } => self.on_ended(txn, replica, effects),
            Message::LaneLost { txn, replica } => self.lose_part(txn, replica, effects),
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
            waits_for: self.decisions_awaited().collect(),
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
        if Scheduler::touches_released(txn, &needs) {
            return self.refuse_stray(id, op, effects);
        }
        let last_use = statement.last_use.clone();
        txn.touched = txn.touched.union(&needs);
        if txn.state == State::AwaitingFirst {
            txn.prefix = txn.prefix.then(statement.class);
        }
        txn.pending = Some(Pending { op, statement, sent: Sent::Nowhere });
        match (txn.state, txn.autocommit) {
            (State::AwaitingFirst, true) => {
                let seen = self.single_statements.seen(txn.prefix);
                let locks = seen.map_or_else(|| needs.clone(), |seen| needs.union(seen));
                txn.locks = locks;
                self.begin_single(id, reads_only, effects);
            }
            (State::AwaitingFirst, false) => {
                let locks = self.predict_tables(id, &needs, effects);
                self.request_locks(id, locks, effects);
            }
            _ if !txn.locks.covers(&needs) => self.refuse_stray(id, op, effects),
            (State::AwaitingClient, _) => {
                if let Some(last_use) = last_use {
                    self.release_last_used(id, &last_use, &needs, effects);
                }
                self.dispatch(id, effects);
            }
            // Its locks are on their way; it runs when they are granted.
            _ => {}
        }
    }

    /// A transaction of one statement starts, or starts again. A read of the whole database is ordered like an update where
    /// versions decide: nothing else has them all.
    fn begin_single(&mut self, id: TxnId, reads_only: bool, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        let whole = self.policy.versioning().is_some() && txn.locks.names(TableId::ALL);
        if reads_only && !whole {
            self.place_single_read(id, effects);
        } else {
            let locks = txn.locks.clone();
            self.request_locks(id, locks, effects);
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
        if self.withdraw_decision(id) || self.txns.get(&id).is_some_and(|txn| !txn.state.is_ending()) {
            self.abort(id, effects);
        }
    }

    fn on_cancel(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let waits = self.txns.get(&id).is_some_and(|txn| {
            txn.state.waits_in_core() && txn.pending.as_ref().is_some_and(|pending| pending.op == op)
        });
        let commits = self.txns.get(&id).is_some_and(|txn| txn.commit_op == op);
        if waits || commits && self.withdraw_decision(id) {
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

/// What all events of replicas lead to.
impl Scheduler {
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
            // If that is not concerned any more, somebody else's answer is as good.
            AnswerAfter::Chosen => txn.chosen.and_then(|chosen| done(&txn.at(chosen))).unwrap_or(some),
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
