//! Chains where replicas commit in the one order of the log: for real servers (docs/protocols/chains.md, *On real servers*).
//!
//! Idea. The scheduler puts updates into chains as everywhere ([`Scheduler`]); a worker is a replica, which runs one update at a
//! time. What it may write is declared when it begins, and its statements follow, so that a session carries it out. Its decision takes the next
//! place in the log; its replica commits it when it has applied what comes before, and the others apply it from the log. This is more than
//! causal order: all replicas show prefixes of one history, so there are no long forks, and what a replica contains is one number.
//!
//! Invariants:
//! - an update runs only where all of its predecessors are contained;
//! - while one runs, until it is decided, nothing else is committed at its replica: so its statements, each of which sees what
//!   was committed before it, see one snapshot;
//! - nobody's predecessor is forgotten before every replica that serves contains it.
//!
//! In the chains a transaction has a number of its own, by its arrival: a queue is in the order of these, so that whoever is behind
//! somebody elsewhere never stands before who is before that one.

mod reads;
mod replicas;

use std::collections::VecDeque;

use crate::commit_order::{Decisions, Replicas, Tuning, on_next_values, on_reserved};
use crate::effect::{Decision, Effect, How, Refusal};
use crate::event::{Begin, Event, Outcome, Place, Statement, StatementKind};
use crate::ids::{ClassId, Csn, Instant, OpId, ReplicaId, SessionId, TxnId};
use crate::item::{Access, Item, Mode};
use crate::load::Costs;
use crate::map::HashMap;
use crate::message::Message as AnyMessage;
use crate::protocol::{Foresight, Guarantee, Protocol, Status};
use crate::sequences::{Sequences, Want};
use crate::workers::Schedules;

use super::endings::Endings;
use super::{Message, Order, Scheduler};

/// The scheduler of chains, and the workers.
#[derive(Debug)]
pub struct InOrder {
    name: &'static str,
    foresight: Foresight,
    chains: Scheduler,
    endings: Endings,
    /// The last number in the chains.
    arrived: TxnId,
    /// Who has which number, until it is over.
    by_number: HashMap<TxnId, TxnId>,
    workers: Vec<Worker>,
    replicas: Replicas,
    decisions: Decisions,
    sequences: Sequences,
    txns: HashMap<TxnId, Txn>,
    costs: Costs,
    /// The last commit of each session that some replica may lack: what it has written it sees.
    sessions: HashMap<SessionId, Csn>,
    /// Reads that no replica can execute now.
    awaiting_any: Vec<TxnId>,
    /// Updates that change definitions, given to a worker and not told.
    schema_changers: Vec<TxnId>,
    /// The last commit told that changed a definition: no older snapshot is opened any more.
    schema_changed: Csn,
    counts: Counts,
    now: Instant,
}

#[derive(Default, Debug)]
struct Counts {
    reads_placed: u64,
    freshness_waits: u64,
}

/// One replica's worker.
#[derive(Default, Debug)]
struct Worker {
    /// In the order of numbers.
    queue: VecDeque<Queued>,
    running: Option<Running>,
    /// It has come back, and serves as a worker when it contains this: others may have forgotten who wrote it.
    catches_up: Option<Csn>,
    serves: bool,
}

#[derive(Debug)]
struct Queued {
    number: TxnId,
    /// By number.
    predecessors: Vec<TxnId>,
}

#[derive(Debug)]
struct Running {
    txn: TxnId,
    number: TxnId,
    predecessors: Vec<TxnId>,
    decided: Option<Csn>,
}

/// An open transaction.
#[derive(Debug)]
struct Txn {
    session: SessionId,
    autocommit: bool,
    /// The items that it may write; `None`: it only reads.
    may_write: Option<Vec<Access>>,
    /// Its number in the chains, if it is there.
    number: Option<TxnId>,
    /// Where it is open, or has been.
    at: Option<ReplicaId>,
    state: State,
    /// The statement that waits, or is executed.
    pending: Option<Pending>,
    wrote: bool,
    changes_definitions: bool,
    commit_op: OpId,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    AwaitingClient,
    /// An update, for its turn.
    AwaitingTurn,
    /// A read, for a replica.
    AwaitingReplica,
    /// An update in the middle that changes definitions: until no snapshot is open.
    AwaitingSnapshots,
    Executing,
    /// What it had open is gone.
    Lost,
    Decided,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    op: OpId,
    class: ClassId,
    kind: StatementKind,
    /// Where it was sent, and what was expected of it.
    sent: Option<(ReplicaId, f64)>,
}

impl InOrder {
    /// A scheduler for `replicas` servers, all down, whose log ends at `decided`.
    #[must_use]
    pub fn new(
        name: &'static str,
        order: Order,
        foresight: Foresight,
        replicas: usize,
        decided: Csn,
    ) -> InOrder {
        let tuning = Tuning::default();
        InOrder {
            name,
            foresight,
            chains: Scheduler::new(order, replicas),
            endings: Endings::default(),
            arrived: TxnId(0),
            by_number: HashMap::default(),
            workers: (0..replicas).map(|_| Worker::default()).collect(),
            replicas: Replicas::new(replicas, tuning),
            decisions: Decisions::starting_at(decided),
            sequences: Sequences::reserving(tuning.limits.reserved_values),
            txns: HashMap::default(),
            costs: Costs::default(),
            sessions: HashMap::default(),
            awaiting_any: Vec::new(),
            schema_changers: Vec::new(),
            schema_changed: Csn(0),
            counts: Counts::default(),
            now: Instant(0),
        }
    }

    fn worker(&mut self, id: ReplicaId) -> &mut Worker {
        &mut self.workers[usize::from(id.0)]
    }
}

impl Protocol for InOrder {
    fn name(&self) -> &'static str {
        self.name
    }

    fn guarantee(&self) -> Guarantee {
        match self.foresight {
            Foresight::OfWrites => Guarantee::ParallelSnapshotIsolation,
            Foresight::OfReadsAndWrites => Guarantee::OneCopySerializability,
        }
    }

    fn changes_replicas(&self) -> bool {
        true
    }

    fn foresight(&self) -> Option<Foresight> {
        Some(self.foresight)
    }

    fn handle(&mut self, _place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        self.now = now;
        match event {
            Event::Begin(begin) => self.on_begin(begin, false),
            Event::Autocommit { begin, statement } => self.on_autocommit(begin, &statement, effects),
            Event::Statement { txn, op, statement } => self.on_statement(txn, op, &statement, effects),
            Event::Commit { txn, op } => self.on_commit(txn, op, effects),
            Event::Rollback { txn } => self.on_rollback(txn, effects),
            Event::Cancel { txn, op } => self.on_cancel(txn, op, effects),
            Event::Executed { txn, op, outcome, elapsed_ns, .. } => {
                self.on_executed(txn, op, &outcome, elapsed_ns, effects);
            }
            Event::Durable { csn } => self.on_durable(csn, effects),
            Event::Applied { replica, csn } => self.on_applied(replica, csn, effects),
            Event::HomeLost { txn, replica } => self.on_home_lost(txn, replica, effects),
            Event::ReplicaUp { replica, applied } => self.on_replica_up(replica, applied, effects),
            Event::ReplicaDown { replica } => self.on_replica_down(replica, effects),
            Event::Wanted { replica, csn } => self.want(replica, csn.min(self.decisions.decided()), effects),
            Event::NextValues { txn, op, wants } => {
                let want = Want { txn, op, wants };
                on_next_values(want, &mut self.sequences, &mut self.decisions, effects);
            }
            Event::Sequence { sequence, definition } => self.sequences.define(sequence, definition),
            Event::Timer { timer } => {
                let (replica, told) = (ReplicaId(timer as u16), self.decisions.told());
                self.replicas.get_mut(replica).end_lingering(told);
                self.advance(replica, effects);
            }
            Event::ReplicaAdded { replica } => self.on_replica_added(replica),
            Event::ReplicaLeaving { replica } => self.on_replica_leaving(replica, effects),
            Event::ReplicaRemoved { replica } => self.on_replica_removed(replica, effects),
            // Nothing of a transaction is done again, and messages do not leave this place.
            Event::Revalidated { .. }
            | Event::WaitsOutside { .. }
            | Event::ShippedApplied { .. }
            | Event::Message { .. }
            | Event::Delivered { .. }
            | Event::PeerLost { .. }
            | Event::PeerBack { .. }
            | Event::Opening { .. } => {}
        }
    }

    fn status(&self) -> Status {
        Status {
            told: self.decisions.told().0,
            decided: self.decisions.decided().0,
            replicas: self.replica_status(),
            transactions: self.txns.len() as u64,
            awaiting_worker: self.workers.iter().map(|worker| worker.queue.len() as u64).sum(),
            reads_placed: self.counts.reads_placed,
            freshness_waits: self.counts.freshness_waits,
            ..Status::default()
        }
    }
}

/// From clients.
impl InOrder {
    fn on_begin(&mut self, begin: Begin, autocommit: bool) {
        let everything = || vec![Access::new(Item::everything(), Mode::Exclusive)];
        // Of one whose statements are not known before anything may come.
        let may_write =
            (!begin.read_only).then(|| begin.declared.map_or_else(everything, |items| items.into_vec()));
        let txn = Txn {
            session: begin.session,
            autocommit,
            may_write,
            number: None,
            at: None,
            state: State::AwaitingClient,
            pending: None,
            wrote: false,
            changes_definitions: false,
            commit_op: OpId(0),
        };
        self.txns.insert(begin.txn, txn);
    }

    fn on_autocommit(&mut self, begin: Begin, statement: &Statement, effects: &mut Vec<Effect>) {
        let id = begin.txn;
        let read_only = statement.kind == StatementKind::Read;
        self.on_begin(Begin { read_only, declared: Some(statement.access.clone()), ..begin }, true);
        self.on_statement(id, OpId(0), statement, effects);
    }

    fn on_statement(&mut self, id: TxnId, op: OpId, statement: &Statement, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.pending = Some(Pending { op, class: statement.class, kind: statement.kind, sent: None });
        txn.changes_definitions |= statement.kind == StatementKind::Schema;
        match (txn.state, txn.at, &txn.may_write) {
            (State::Lost, ..) => self.refuse(id, op, Refusal::HomeLost, effects),
            (_, Some(at), Some(_)) => self.go_on(id, at, effects),
            (_, Some(at), None) => self.execute(id, at, How::Snapshot { open: false }, effects),
            (_, None, None) => self.place_read(id, effects),
            (_, None, Some(_)) => self.arrive(id, effects),
        }
    }

    fn on_commit(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.commit_op = op;
        match (txn.state, txn.at) {
            (State::Lost, _) => self.refuse(id, op, Refusal::HomeLost, effects),
            (_, Some(at)) if txn.wrote => self.decide(id, at, effects),
            (_, at) => {
                effects.push(Effect::Finish { txn: id, op, replica: at });
                self.forget(id, effects);
            }
        }
    }

    fn on_rollback(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        if self.txns.get(&id).is_some_and(|txn| txn.state != State::Decided) {
            self.leave(id, effects);
            self.forget(id, effects);
        }
    }

    fn on_cancel(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        let waits =
            matches!(txn.state, State::AwaitingTurn | State::AwaitingReplica | State::AwaitingSnapshots);
        if waits && txn.pending.is_some_and(|pending| pending.op == op) {
            self.refuse(id, op, Refusal::Cancelled, effects);
        }
    }
}

/// Updates (II.B).
impl InOrder {
    fn arrive(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        self.arrived = TxnId(self.arrived.0 + 1);
        let number = self.arrived;
        txn.state = State::AwaitingTurn;
        txn.number = Some(number);
        let items = txn.may_write.clone().unwrap_or_default();
        self.by_number.insert(number, id);
        self.endings.expect(number);
        self.with_chains(effects, |chains, given| chains.on_update(number, &items, given));
    }

    /// Has the scheduler do something, and updates to workers that it gives.
    fn with_chains(
        &mut self,
        effects: &mut Vec<Effect>,
        tell: impl FnOnce(&mut Scheduler, &mut Vec<Effect>),
    ) {
        let mut given = Vec::new();
        tell(&mut self.chains, &mut given);
        self.on_given(given, effects);
    }

    /// The scheduler has given updates to workers.
    fn on_given(&mut self, given: Vec<Effect>, effects: &mut Vec<Effect>) {
        let mut workers = Vec::new();
        for effect in given {
            let Effect::Send { to: Place::Proxy(at), message: AnyMessage::Chaining(message) } = effect else {
                continue;
            };
            let Message::Update { txn: number, predecessors, .. } = message else { continue };
            let queue = &mut self.worker(at).queue;
            let place = queue.partition_point(|queued| queued.number < number);
            queue.insert(place, Queued { number, predecessors });
            workers.push(at);
        }
        workers.into_iter().for_each(|at| self.run_next(at, effects));
    }

    /// The worker's next update begins when its predecessors are there, and nothing is being committed.
    fn run_next(&mut self, at: ReplicaId, effects: &mut Vec<Effect>) {
        while self.worker(at).running.is_none() && self.replicas.get(at).up {
            let worker = &self.workers[usize::from(at.0)];
            let applied = self.replicas.get(at).applied;
            let Some(Queued { number, predecessors }) = worker.queue.front() else { return };
            let number = *number;
            let missing = predecessors.iter().find(|before| !self.endings.is_contained(**before, applied));
            if let Some(missing) = missing {
                let csn = self.endings.wanted(*missing);
                return csn.into_iter().for_each(|csn| self.want(at, csn, effects));
            }
            let waiting = self.by_number.get(&number).and_then(|id| Some((*id, self.txns.get(id)?)));
            let Some((id, txn)) = waiting else {
                // It was given up; whoever follows it waits for its predecessors.
                let queued = self.worker(at).queue.pop_front();
                self.end(at, number, queued.map(|queued| queued.predecessors).unwrap_or_default(), effects);
                continue;
            };
            let own = self.sessions.get(&txn.session).copied().unwrap_or_default();
            if applied < own {
                return self.want(at, own, effects);
            }
            if self.replicas.get(at).is_committing() {
                return;
            }
            if !self.may_change_definitions(id) {
                return;
            }
            let worker = self.worker(at);
            let Some(Queued { predecessors, .. }) = worker.queue.pop_front() else { return };
            worker.running = Some(Running { txn: id, number, predecessors, decided: None });
            if let Some(txn) = self.txns.get_mut(&id) {
                txn.at = Some(at);
            }
            self.execute(id, at, How::Home { open: true }, effects);
        }
    }

    /// An update that has begun has another statement.
    fn go_on(&mut self, id: TxnId, at: ReplicaId, effects: &mut Vec<Effect>) {
        if self.may_change_definitions(id) {
            return self.execute(id, at, How::Home { open: false }, effects);
        }
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.state = State::AwaitingSnapshots;
        }
    }

    /// Whether it changes no definitions, or no snapshot is open; from now on none is opened if it changes some.
    fn may_change_definitions(&mut self, id: TxnId) -> bool {
        if !self.txns.get(&id).is_some_and(|txn| txn.changes_definitions) {
            return true;
        }
        if !self.schema_changers.contains(&id) {
            self.schema_changers.push(id);
        }
        !self.has_open_snapshots()
    }

    /// A snapshot may have been the last that a change of definitions waited for.
    fn on_snapshot_closed(&mut self, effects: &mut Vec<Effect>) {
        for id in self.schema_changers.clone() {
            let waits = self.txns.get(&id).filter(|txn| txn.state == State::AwaitingSnapshots);
            if let Some(at) = waits.and_then(|txn| txn.at) {
                self.go_on(id, at, effects);
            }
        }
        self.run_all(effects);
    }

    fn execute(&mut self, id: TxnId, at: ReplicaId, how: How, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(pending) = &mut txn.pending else { return };
        let expected_ns = self.costs.expected_ns(pending.class);
        let replica = self.replicas.get_mut(at);
        replica.load.add(expected_ns);
        replica.home_statements += u64::from(matches!(how, How::Home { .. }));
        pending.sent = Some((at, expected_ns));
        txn.state = State::Executing;
        // The answer to a transaction's only statement is its commit's.
        let hold = txn.autocommit && txn.may_write.is_some();
        effects.push(Effect::Execute { txn: id, op: pending.op, replica: at, how, hold });
    }

    fn on_executed(
        &mut self,
        id: TxnId,
        op: OpId,
        outcome: &Outcome,
        elapsed_ns: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(pending) = txn.pending.take_if(|pending| pending.op == op) else { return };
        if let Some((replica, expected_ns)) = pending.sent {
            let load = &mut self.replicas.get_mut(replica).load;
            load.remove(expected_ns);
            if matches!(outcome, Outcome::Done { .. }) {
                self.costs.learn(pending.class, load.share_of_one_more(elapsed_ns));
            }
        }
        let (is_alone, updates, at) = (txn.autocommit, txn.may_write.is_some(), txn.at);
        if txn.state == State::Executing {
            txn.state = State::AwaitingClient;
        }
        match outcome {
            Outcome::Done { .. } => {
                txn.wrote |= matches!(pending.kind, StatementKind::Write | StatementKind::Schema);
                match is_alone {
                    true if updates && txn.state == State::Lost => {
                        self.refuse(id, op, Refusal::HomeLost, effects)
                    }
                    true if updates => self.on_commit(id, op, effects),
                    true => self.forget(id, effects),
                    false => {}
                }
            }
            Outcome::Failed | Outcome::TooLarge if is_alone => {
                if updates {
                    self.leave(id, effects);
                }
                self.forget(id, effects);
            }
            Outcome::Failed | Outcome::TooLarge => {}
            Outcome::Lost { answer_begun: true } => self.refuse(id, op, Refusal::AnswerCut, effects),
            Outcome::Lost { answer_begun: false } if is_alone && !updates => {
                // It is placed again; not where it was lost, if that can be helped.
                at.into_iter().for_each(|at| self.replicas.avoid_as_home(at));
                if let Some(txn) = self.txns.get_mut(&id) {
                    (txn.at, txn.pending) = (None, Some(Pending { sent: None, ..pending }));
                }
                self.place_read(id, effects);
            }
            Outcome::Lost { answer_begun: false } => self.refuse(id, op, Refusal::HomeLost, effects),
        }
    }

    fn decide(&mut self, id: TxnId, at: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.state = State::Decided;
        let csn = self.decisions.decide(Some(id), Some(at), txn.commit_op, None);
        self.sessions.insert(txn.session, csn);
        let running = self.worker(at).running.as_mut().filter(|running| running.txn == id);
        if let Some(running) = running {
            running.decided = Some(csn);
            let number = running.number;
            self.endings.decide(number, csn);
        }
        effects.push(Effect::Append { csn, decision: Decision::Commit(id) });
    }

    /// A worker's update is over, without a decision.
    fn end(&mut self, at: ReplicaId, number: TxnId, predecessors: Vec<TxnId>, effects: &mut Vec<Effect>) {
        self.endings.end_without_writes(number, predecessors);
        let txn = self.by_number.remove(&number);
        self.schema_changers.retain(|changer| Some(*changer) != txn);
        self.with_chains(effects, |chains, given| chains.on_over(at, number, given));
        self.run_all(effects);
        self.wake_reads(effects);
    }

    fn run_all(&mut self, effects: &mut Vec<Effect>) {
        self.replicas.ids().for_each(|id| self.run_next(id, effects));
    }

    /// Forgets what every replica contains that is given updates, or will be soon.
    fn forget_contained(&mut self) {
        let members = self.replicas.ids().filter(|id| {
            let worker = &self.workers[usize::from(id.0)];
            worker.serves || worker.catches_up.is_some()
        });
        let Some(least) = members.map(|id| self.replicas.get(id).applied).min() else { return };
        for number in self.endings.forget(least) {
            self.chains.forget(number);
        }
    }
}

/// Decisions, and what follows from them.
impl InOrder {
    fn on_durable(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        let mut reserved = Vec::new();
        while self.decisions.told() < csn.min(self.decisions.decided()) {
            let decision = self.decisions.tell_next();
            if let Some(txn) = decision.txn.filter(|txn| self.schema_changers.contains(txn)) {
                self.schema_changed = decision.csn;
                self.schema_changers.retain(|changer| *changer != txn);
            }
            reserved.extend(decision.reserved);
        }
        // A worker may wait for one of them.
        self.run_all(effects);
        self.advance_all(effects);
        on_reserved(reserved, &mut self.sequences, &mut self.decisions, effects);
        self.wake_reads(effects);
    }

    fn advance_all(&mut self, effects: &mut Vec<Effect>) {
        self.replicas.ids().for_each(|id| self.advance(id, effects));
    }

    /// Nothing is committed at a replica while its worker runs an update that is not decided.
    fn advance(&mut self, id: ReplicaId, effects: &mut Vec<Effect>) {
        if self.worker(id).running.as_ref().is_some_and(|running| running.decided.is_none()) {
            return;
        }
        effects.extend(self.replicas.advance(id, &self.decisions, self.now));
    }

    fn on_applied(&mut self, id: ReplicaId, csn: Csn, effects: &mut Vec<Effect>) {
        let before = self.replicas.get(id).applied;
        if !self.replicas.get(id).up || csn <= before || csn > self.decisions.told() {
            return;
        }
        self.replicas.get_mut(id).on_applied(csn, self.now);
        self.acknowledge(before, csn, effects);
        let worker = self.worker(id);
        let done = worker.running.take_if(|running| running.decided.is_some_and(|decided| decided <= csn));
        let caught_up = worker.catches_up.take_if(|all| *all <= csn).is_some();
        worker.serves |= caught_up;
        if let Some(Running { number, .. }) = done {
            self.by_number.remove(&number);
            self.with_chains(effects, |chains, given| chains.on_over(id, number, given));
        }
        if caught_up {
            self.with_chains(effects, |chains, given| chains.on_up(id, given));
        }
        self.forget_contained();
        self.run_all(effects);
        self.advance(id, effects);
        self.wake_reads(effects);
        self.forget_old();
    }

    /// Some replica contains the commits after `before` up to `csn`: the first time, their clients hear of it.
    fn acknowledge(&mut self, before: Csn, csn: Csn, effects: &mut Vec<Effect>) {
        for decision in self.decisions.acknowledge(before, csn) {
            if let Some(txn) = decision.txn {
                effects.push(Effect::Acknowledge { txn, op: decision.op, csn: decision.csn });
                self.txns.remove(&txn);
            }
        }
    }

    fn forget_old(&mut self) {
        let Some(everywhere) = self.replicas.least_advanced(Csn(0), self.decisions.told()) else { return };
        self.decisions.forget(everywhere);
        self.sessions.retain(|_, csn| *csn > everywhere);
    }
}

/// Endings.
impl InOrder {
    fn refuse(&mut self, id: TxnId, op: OpId, reason: Refusal, effects: &mut Vec<Effect>) {
        self.leave(id, effects);
        effects.push(Effect::Refuse { txn: id, op, reason });
        self.forget(id, effects);
    }

    fn leave(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let at = self.txns.get(&id).and_then(|txn| txn.at);
        effects.extend(at.map(|replica| Effect::Leave { txn: id, replica }));
    }

    /// The transaction is over and has no decision. One that waits in a queue keeps its place there until it is its turn.
    fn forget(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.remove(&id) else { return };
        if let Some((replica, expected_ns)) = txn.pending.and_then(|pending| pending.sent) {
            self.replicas.get_mut(replica).load.remove(expected_ns);
        }
        match txn.at {
            Some(at) if txn.may_write.is_some() => self.end_running(at, id, effects),
            // It may stand at the front of a queue.
            _ if txn.number.is_some() => self.run_all(effects),
            _ if self.is_changing_definitions() => self.on_snapshot_closed(effects),
            _ => {}
        }
    }

    /// What a worker was running has ended without a decision; its predecessors are all there.
    fn end_running(&mut self, at: ReplicaId, id: TxnId, effects: &mut Vec<Effect>) {
        if let Some(running) = self.worker(at).running.take_if(|running| running.txn == id) {
            self.end(at, running.number, running.predecessors, effects);
            self.advance(at, effects);
        }
    }

    fn on_home_lost(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        if let Some(csn) = self.decisions.home_lost(id, replica) {
            self.replicas.get_mut(replica).on_home_lost(csn);
            return self.advance_all(effects);
        }
        self.lose(id, replica, effects);
    }

    /// What an open transaction had at a replica is gone. What is executed there is reported by the driver.
    fn lose(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id).filter(|txn| txn.at == Some(replica)) else { return };
        match (txn.state, txn.pending) {
            (State::Decided, _) => return,
            // No driver reports that its statement is lost.
            (State::AwaitingSnapshots, Some(pending)) => {
                return self.refuse(id, pending.op, Refusal::HomeLost, effects);
            }
            _ => {}
        }
        let was_executing = txn.state == State::Executing;
        let updates = txn.may_write.is_some();
        if !was_executing || updates {
            txn.state = State::Lost;
        }
        if !was_executing {
            effects.push(Effect::Leave { txn: id, replica });
        }
        if updates {
            self.end_running(replica, id, effects);
        }
    }
}

#[cfg(test)]
mod tests;
