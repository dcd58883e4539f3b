//! The database proxy: regulates access to one replica (CAS 4.3 to 4.8, DV 4.3 to 4.6).
//!
//! Invariants:
//! - lock requests enter the lock queues in the order of their sequence numbers, without a gap;
//! - a transaction has at most one operation at the database, and none before all its locks are granted, or the versions
//!   that it waits for are there;
//! - locks and versions are let go only when the transaction has ended here and no write of it is at the database; or when
//!   they were released: versions after the last use of a table, both after a single update that is done, where the engine shows
//!   what is not committed. What is applied from the log has all of them.

use std::collections::{BTreeMap, VecDeque};

use crate::effect::{Effect, How};
use crate::event::{Event, Outcome};
use crate::ids::{Csn, OpId, ReplicaId, SequenceNumber, TxnId};
use crate::item::TableId;
use crate::map::HashMap;
use crate::protocol::{Engine, ReplicaStatus};
use crate::table_queues::{LockMode, TableLocks, TableQueues};
use crate::table_versions::{Assigned, Picked, Versions};

use super::contained::Contained;
use super::gate::Gate;
use super::{Ahead, Behind, Loose, Message, OpenTxn, Order, SCHEDULER, Tag, send};

/// Decisions that one `Apply` of a replica that catches up may name: enough to fill a pipeline, few enough to show
/// progress.
const RUN_MAX: u64 = 128;

/// Who stands in the lock queues.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Holder {
    /// The replica itself, while it applies what it has missed.
    CatchUp,
    Txn(TxnId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Down,
    /// The scheduler does not know yet that the replica is back; what arrives was meant for its past.
    AwaitingJoin,
    Serving,
}

/// What can stand in a transaction queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Write(OpId),
    Read {
        op: OpId,
        alone: bool,
    },
    SingleRead(OpId),
    /// Its tables are let go; whether the scheduler must be told.
    Release {
        told: bool,
    },
    Commit(Csn),
    Finish(OpId),
}

/// The transaction queue of one transaction, with its head-of-queue record (CAS 4.3).
#[derive(Default, Debug)]
struct TxnQueue {
    number: Option<SequenceNumber>,
    /// Whether all its locks are granted.
    granted: bool,
    /// Whether a block of it is open at the database.
    open: bool,
    executing: Option<Operation>,
    /// With the versions that each concerns.
    waiting: VecDeque<(Operation, Picked)>,
    /// It executes elsewhere only: once decided, it is applied here.
    follows: bool,
    /// A statement failed, and whether it failed elsewhere too is not known yet.
    halted: bool,
    /// It was aborted while a write of it was at the database, which may take locks there until it is answered.
    leaving: bool,
    /// The versions of its tables, and which of them it has let go here.
    versions: Versions,
    released: Picked,
    /// It stands in the gate; or did for its next operation.
    blocked: bool,
    waited: bool,
    /// It is one read: its versions are those that it stands behind.
    is_single_read: bool,
}

/// Waits for lock requests with smaller numbers.
#[derive(Debug)]
enum OutOfOrder {
    LockRequest(TxnId, TableLocks),
    Void,
}

/// The decisions that a replica has missed: the next part of them is under way.
#[derive(Debug)]
struct CatchUp {
    part_to: Csn,
    to: Csn,
}

#[derive(Debug)]
pub(super) struct Proxy {
    replica: ReplicaId,
    order: Order,
    engine: Engine,
    state: State,
    incarnation: u32,
    /// The number of the last lock request processed.
    last: SequenceNumber,
    out_of_order: BTreeMap<SequenceNumber, OutOfOrder>,
    /// Single reads that must queue behind a lock request that has not arrived.
    early_reads: BTreeMap<SequenceNumber, Vec<(TxnId, TableLocks)>>,
    /// Where locks decide.
    queues: TableQueues<Holder>,
    /// Where versions decide.
    gate: Gate,
    txns: HashMap<TxnId, TxnQueue>,
    committing: HashMap<Csn, TxnId>,
    catch_up: Option<CatchUp>,
    /// Whose next operation waits for the end of that, where versions decide.
    behind_catch_up: Vec<TxnId>,
    contained: Contained,
    writes: u64,
    applies: u64,
    /// Locks granted at once and waited for in earlier incarnations.
    earlier_locks: (u64, u64),
}

impl Proxy {
    pub(super) fn new(replica: ReplicaId, order: Order) -> Proxy {
        Proxy {
            replica,
            order,
            engine: Engine::default(),
            state: State::Down,
            incarnation: 0,
            last: SequenceNumber(0),
            out_of_order: BTreeMap::new(),
            early_reads: BTreeMap::new(),
            queues: TableQueues::default(),
            gate: Gate::default(),
            txns: HashMap::default(),
            committing: HashMap::default(),
            catch_up: None,
            behind_catch_up: Vec::new(),
            contained: Contained::default(),
            writes: 0,
            applies: 0,
            earlier_locks: (0, 0),
        }
    }

    pub(super) fn engine_is(&mut self, engine: Engine) {
        self.engine = engine;
    }

    /// From the database.
    pub(super) fn handle(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Executed { txn, op, outcome, elapsed_ns, .. } => {
                self.on_executed(txn, op, outcome, elapsed_ns, effects);
            }
            Event::Applied { csn, .. } => self.on_applied(csn, effects),
            Event::HomeLost { txn, .. } => self.on_lane_lost(txn, effects),
            Event::ReplicaUp { applied, .. } => self.on_up(applied, effects),
            Event::ReplicaDown { .. } => self.on_down(effects),
            _ => {}
        }
    }

    /// From the scheduler.
    pub(super) fn handle_message(&mut self, message: Message, effects: &mut Vec<Effect>) {
        if let Message::Join { incarnation, from, to, number, open, reached } = message {
            if self.state == State::AwaitingJoin && incarnation == self.incarnation {
                self.gate = Gate::at(*reached);
                self.on_join(from, to, number, open, effects);
            }
            return;
        }
        if self.state != State::Serving {
            return self.bounce(&message, effects);
        }
        match message {
            Message::LockRequest { txn, number, locks } => {
                self.on_lock_request(txn, number, locks, None, effects)
            }
            Message::SingleUpdate { txn, number, op, locks, releases, .. } if self.order == Order::Locks => {
                self.on_lock_request(txn, number, locks, Some((op, releases)), effects);
            }
            Message::SingleUpdate { txn, op, locks, versions, releases, .. } => {
                self.on_single_update(txn, op, &locks, versions, releases, effects);
            }
            Message::Void { number, .. } if self.order == Order::Locks => {
                self.on_number(number, OutOfOrder::Void, effects);
            }
            Message::Void { versions, .. } => self.release_versions(versions.iter(), effects),
            Message::SingleRead { txn, op, locks, behind: Behind::Number(after) } => {
                self.on_single_read(txn, op, locks, after, effects);
            }
            Message::SingleRead { txn, op, locks, behind } => {
                self.on_versioned_read(txn, op, &locks, behind, effects);
            }
            Message::Write { txn, op, tag } => self.enqueue(txn, Operation::Write(op), tag, effects),
            Message::Read { txn, op, tag, alone } => {
                self.enqueue(txn, Operation::Read { op, alone }, tag, effects);
            }
            Message::Release { txn, tag } => {
                self.enqueue(txn, Operation::Release { told: true }, tag, effects)
            }
            Message::Commit { txn, csn, tag } => self.enqueue(txn, Operation::Commit(csn), tag, effects),
            Message::Finish { txn, op, tag } => self.enqueue(txn, Operation::Finish(op), tag, effects),
            Message::Abort { txn, tag } => self.on_abort(txn, tag, effects),
            Message::Apply { csn } => self.apply(csn, csn, effects),
            Message::Resume { txn } => self.on_resume(txn, effects),
            Message::Detach { txn } => self.on_detach(txn, effects),
            _ => {}
        }
    }

    /// What was sent to a replica that was lost meanwhile is dropped; only a read is waited for.
    fn bounce(&self, message: &Message, effects: &mut Vec<Effect>) {
        if let Message::Read { txn, op, .. } | Message::SingleRead { txn, op, .. } = *message {
            self.send_done(txn, op, Outcome::Lost { answer_begun: false }, 0, effects);
        }
    }

    pub(super) fn put_status(&self, status: &mut ReplicaStatus) {
        status.applied = self.contained.prefix().0;
        status.home_statements = self.writes;
        status.applies = self.applies;
    }

    pub(super) fn lock_counts(&self) -> (u64, u64) {
        let (locks, versions) = (self.queues.counts(), self.gate.counts());
        (self.earlier_locks.0 + locks.0 + versions.0, self.earlier_locks.1 + locks.1 + versions.1)
    }

    /// Each transaction that waits for locks here, with those that it waits for.
    pub(super) fn waits(&self) -> impl Iterator<Item = (u64, Vec<u64>)> {
        let id = |holder| match holder {
            Holder::Txn(txn) => Some(txn.0),
            Holder::CatchUp => None,
        };
        self.queues.waits().filter_map(move |(who, blockers)| {
            Some((id(who)?, blockers.into_iter().filter_map(id).collect()))
        })
    }
}

/// Lock requests (CAS 4.4, 4.8, 4.9).
impl Proxy {
    fn on_lock_request(
        &mut self,
        txn: TxnId,
        number: SequenceNumber,
        locks: TableLocks,
        update: Option<(OpId, bool)>,
        effects: &mut Vec<Effect>,
    ) {
        let queue = self.txns.entry(txn).or_default();
        queue.number = Some(number);
        if let Some((op, releases)) = update {
            queue.waiting.push_back((Operation::Write(op), Picked::NONE));
            let release = releases.then_some((Operation::Release { told: false }, Picked::ALL));
            queue.waiting.extend(release);
        }
        self.on_number(number, OutOfOrder::LockRequest(txn, locks), effects);
    }

    /// Processes what is next in sequence, then what had arrived before its turn.
    fn on_number(&mut self, number: SequenceNumber, request: OutOfOrder, effects: &mut Vec<Effect>) {
        if number <= self.last || self.out_of_order.contains_key(&number) {
            return;
        }
        self.out_of_order.insert(number, request);
        while let Some(request) = self.out_of_order.remove(&self.last.next()) {
            self.last = self.last.next();
            if let OutOfOrder::LockRequest(txn, locks) = request {
                self.request_locks(txn, locks, effects);
            }
            self.admit_early_reads(effects);
        }
    }

    fn on_single_read(
        &mut self,
        txn: TxnId,
        op: OpId,
        locks: TableLocks,
        after: SequenceNumber,
        effects: &mut Vec<Effect>,
    ) {
        self.txns.entry(txn).or_default().waiting.push_back((Operation::SingleRead(op), Picked::NONE));
        if after <= self.last {
            self.queue_read(txn, locks, effects);
        } else {
            self.early_reads.entry(after).or_default().push((txn, locks));
        }
    }

    fn admit_early_reads(&mut self, effects: &mut Vec<Effect>) {
        for (txn, locks) in self.early_reads.remove(&self.last).unwrap_or_default() {
            self.queue_read(txn, locks, effects);
        }
    }

    fn queue_read(&mut self, txn: TxnId, locks: TableLocks, effects: &mut Vec<Effect>) {
        if !self.engine.reads_snapshots() {
            return self.request_locks(txn, locks, effects);
        }
        if self.queues.wait_behind(Holder::Txn(txn), locks) {
            self.on_granted(txn, effects);
        }
    }

    fn request_locks(&mut self, txn: TxnId, locks: TableLocks, effects: &mut Vec<Effect>) {
        if self.queues.request(Holder::Txn(txn), locks) {
            self.on_granted(txn, effects);
        }
    }

    fn on_granted(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let Some(queue) = self.txns.get_mut(&txn) else { return };
        queue.granted = true;
        send(SCHEDULER, Message::Granted { txn, replica: self.replica }, effects);
        self.advance(txn, effects);
    }

    fn unlock(&mut self, holder: Holder, effects: &mut Vec<Effect>) {
        for granted in self.queues.release(holder) {
            match granted {
                Holder::Txn(txn) => self.on_granted(txn, effects),
                // Nobody is ahead of it.
                Holder::CatchUp => {}
            }
        }
    }
}

/// Versions (DV 4.3, 4.5, 4.6, 5.2).
impl Proxy {
    /// The queue of a transaction, which its first message here makes.
    fn versioned(&mut self, txn: TxnId, versions: &Versions) -> &mut TxnQueue {
        let queue = self.txns.entry(txn).or_default();
        // Granted: each operation waits for itself.
        queue.granted = true;
        if queue.versions.is_empty() {
            queue.versions = versions.clone();
            if asks_for_writers(self.order) {
                self.gate.begin_writes(txn, versions);
            }
        }
        queue
    }

    fn on_single_update(
        &mut self,
        txn: TxnId,
        op: OpId,
        tables: &TableLocks,
        versions: Versions,
        releases: bool,
        effects: &mut Vec<Effect>,
    ) {
        let by_arrival = self.order == Order::Statements(Loose::Unordered);
        let versions = if by_arrival { self.gate.arrive(tables) } else { versions };
        let queue = self.versioned(txn, &versions);
        // In front of its commit, which waits for it if it has come first.
        if releases {
            queue.waiting.push_front((Operation::Release { told: false }, Picked::ALL));
        }
        queue.waiting.push_front((Operation::Write(op), Picked::ALL));
        self.advance(txn, effects);
    }

    fn on_versioned_read(
        &mut self,
        txn: TxnId,
        op: OpId,
        tables: &TableLocks,
        behind: Behind,
        effects: &mut Vec<Effect>,
    ) {
        let by_arrival = self.order == Order::Statements(Loose::Unordered);
        let yields = self.engine.reads_snapshots();
        let versions = match behind {
            Behind::Versions(versions) => versions,
            Behind::WhatHasBegun(ahead) => self.behind_begun(tables, ahead),
            Behind::Number(_) | Behind::WhatIsDue if by_arrival && yields => self.gate.behind_arrived(tables),
            Behind::Number(_) | Behind::WhatIsDue if by_arrival => self.gate.arrive(tables),
            Behind::Number(_) | Behind::WhatIsDue => self.behind_due(tables),
        };
        if !yields && !by_arrival {
            self.gate.begin_read(txn, &versions);
        }
        let queue = self.versioned(txn, &versions);
        queue.is_single_read = yields || !by_arrival;
        queue.waiting.push_back((Operation::SingleRead(op), Picked::ALL));
        self.advance(txn, effects);
    }

    /// Behind what is being written here, or could be but for other readers, and behind nothing else: whoever waits for
    /// versions that are still to come would be waited for with them, and might wait for this read.
    fn behind_due(&self, tables: &TableLocks) -> Versions {
        let tables = tables.iter().map(|(table, _)| table).chain([TableId::ALL]);
        let behind = tables.map(|table| {
            let due = self.gate.writer_due(table).and_then(|writer| self.txns.get(&writer));
            let is_due = due.is_some_and(|writer| self.gate.admits(&writer.versions));
            let reached = self.gate.version(table);
            let version = if is_due { reached.next() } else { reached };
            Assigned { table, version, mode: LockMode::Read }
        });
        behind.collect()
    }

    /// Behind the last of these that has begun here, and all before it: each of them is seen whole, or not at all.
    fn behind_begun(&self, tables: &TableLocks, ahead: Vec<Ahead>) -> Versions {
        let has_begun = |ahead: &Ahead| {
            let queue = self.txns.get(&ahead.txn);
            queue.is_some_and(|queue| queue.open || queue.executing.is_some())
                || self.gate.admits(&ahead.done)
        };
        let place = ahead.iter().filter(|ahead| has_begun(ahead)).map(|ahead| ahead.number).max();
        let before = ahead.iter().filter(|ahead| Some(ahead.number) <= place);
        let before: Vec<&Assigned> = before.flat_map(|ahead| ahead.done.iter()).collect();
        let tables = tables.iter().map(|(table, _)| table).chain([TableId::ALL]);
        let behind = tables.map(|table| {
            let done = before.iter().filter(|done| done.table == table).map(|done| done.version);
            Assigned { table, version: done.max().unwrap_or_default(), mode: LockMode::Read }
        });
        behind.collect()
    }

    /// Lets go of what a transaction still holds of these.
    fn release(&mut self, txn: TxnId, concerned: Picked, effects: &mut Vec<Effect>) {
        let Some(queue) = self.txns.get_mut(&txn) else { return };
        let picked = concerned.without(queue.released);
        queue.released = queue.released.and(concerned);
        let versions = queue.versions.clone();
        self.release_versions(versions.picked(picked), effects);
    }

    fn release_versions<'a>(
        &mut self,
        versions: impl Iterator<Item = &'a Assigned>,
        effects: &mut Vec<Effect>,
    ) {
        let woken: Vec<TxnId> = versions.flat_map(|assigned| self.gate.release(assigned)).collect();
        self.look_again(woken, effects);
    }

    fn look_again(&mut self, woken: Vec<TxnId>, effects: &mut Vec<Effect>) {
        for txn in woken {
            if let Some(queue) = self.txns.get_mut(&txn) {
                queue.blocked = false;
                self.advance(txn, effects);
            }
        }
    }

    /// Whether an operation has to wait; if so, it stands in the gate.
    fn is_refused(&mut self, txn: TxnId, operation: Operation, concerned: Picked) -> bool {
        let Some(queue) = self.txns.get(&txn) else { return false };
        let follows = queue.follows;
        let (concerned, writes) = match operation {
            Operation::Write(_) => (concerned, true),
            Operation::Read { .. } | Operation::SingleRead(_) => (concerned, false),
            // What is applied is all of it.
            Operation::Commit(_) if follows => (Picked::ALL, true),
            Operation::Release { .. } | Operation::Commit(_) | Operation::Finish(_) => return false,
        };
        let concerned = concerned.without(queue.released);
        let refused = if self.catch_up.is_some() {
            self.behind_catch_up.push(txn);
            true
        } else {
            let refused = self.gate.refuses(&queue.versions, concerned, writes);
            if let Some(refused) = refused {
                self.gate.block(txn, refused);
            }
            refused.is_some()
        };
        let Some(queue) = self.txns.get_mut(&txn) else { return false };
        queue.blocked = refused;
        queue.waited |= refused;
        if !refused {
            self.gate.count(std::mem::take(&mut queue.waited));
        }
        refused
    }
}

/// Operations, one after the other (CAS 4.5 to 4.7).
impl Proxy {
    fn enqueue(&mut self, txn: TxnId, operation: Operation, tag: Tag, effects: &mut Vec<Effect>) {
        if self.order != Order::Locks {
            self.versioned(txn, &tag.versions);
        }
        let Some(queue) = self.txns.get_mut(&txn) else { return };
        match operation {
            // The scheduler did not know yet that nothing is open here any more. It wrote nothing, so it may end so.
            Operation::Finish(op) if queue.follows => {
                effects.push(Effect::Finish { txn, op, replica: None });
                self.end(txn, effects);
            }
            Operation::Write(_) | Operation::Read { .. } | Operation::Release { .. } if queue.follows => {}
            operation => {
                queue.waiting.push_back((operation, tag.concerned));
                self.advance(txn, effects);
            }
        }
    }

    /// Lets the next operation through, if nothing stands before it.
    fn advance(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let Some(queue) = self.txns.get(&txn) else { return };
        if !queue.granted || queue.halted || queue.blocked || queue.executing.is_some() {
            return;
        }
        let Some(&(operation, concerned)) = queue.waiting.front() else { return };
        let overtakes = matches!((self.order, operation), (Order::Statements(_), Operation::Commit(_)));
        if overtakes && !queue.open && !queue.follows {
            return;
        }
        if self.order != Order::Locks && self.is_refused(txn, operation, concerned) {
            return;
        }
        let Some(queue) = self.txns.get_mut(&txn) else { return };
        queue.waiting.pop_front();
        let replica = self.replica;
        if let Operation::Release { told } = operation {
            if told {
                send(SCHEDULER, Message::Released { txn, replica, tables: concerned }, effects);
            }
            if self.order == Order::Locks {
                self.unlock(Holder::Txn(txn), effects);
            } else {
                self.release(txn, concerned, effects);
            }
            return self.advance(txn, effects);
        }
        queue.executing = Some(operation);
        match operation {
            Operation::Release { .. } => {}
            Operation::Read { op, alone: true } | Operation::SingleRead(op) => {
                effects.push(Effect::Execute { txn, op, replica, how: How::Alone, hold: false });
            }
            Operation::Write(op) | Operation::Read { op, alone: false } => {
                let how = How::Home { open: !std::mem::replace(&mut queue.open, true) };
                // Of a write, one replica's answer goes to the client: which, the scheduler says.
                let hold = matches!(operation, Operation::Write(_));
                self.writes += u64::from(hold);
                effects.push(Effect::Execute { txn, op, replica, how, hold });
            }
            Operation::Commit(csn) => {
                let follows = queue.follows;
                self.committing.insert(csn, txn);
                if follows {
                    self.apply(csn, csn, effects);
                } else {
                    effects.push(Effect::CommitAt { txn, replica, csn });
                }
            }
            Operation::Finish(op) => {
                effects.push(Effect::Finish { txn, op, replica: Some(replica) });
                self.end(txn, effects);
            }
        }
    }

    fn on_executed(
        &mut self,
        txn: TxnId,
        op: OpId,
        outcome: Outcome,
        elapsed_ns: u64,
        effects: &mut Vec<Effect>,
    ) {
        let lost = matches!(outcome, Outcome::Lost { .. });
        let executes = |operation: &mut Operation| operation.op() == Some(op);
        let executed = self.txns.get_mut(&txn).and_then(|queue| {
            let operation = queue.executing.take_if(executes)?;
            Some((queue, operation))
        });
        let Some((queue, operation)) = executed else {
            return send(
                SCHEDULER,
                Message::Late { txn, op, replica: self.replica, outcome, elapsed_ns },
                effects,
            );
        };
        if queue.leaving {
            return self.end(txn, effects);
        }
        if lost {
            queue.follow();
        }
        queue.halted = matches!((operation, &outcome), (Operation::Write(_), Outcome::Failed));
        if matches!(outcome, Outcome::Failed | Outcome::TooLarge) {
            // It is not done: it lets go at its end, whatever that will be.
            queue.waiting.retain(|(next, _)| !matches!(next, Operation::Release { told: false }));
        }
        self.send_done(txn, op, outcome, elapsed_ns, effects);
        match operation {
            Operation::SingleRead(_) => self.end_single_read(txn, effects),
            _ => self.advance(txn, effects),
        }
    }

    fn end_single_read(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        if self.order == Order::Locks {
            self.txns.remove(&txn);
            return self.unlock(Holder::Txn(txn), effects);
        }
        if let Some(queue) = self.txns.remove(&txn) {
            self.let_go(txn, &queue, effects);
        }
    }

    fn let_go(&mut self, txn: TxnId, queue: &TxnQueue, effects: &mut Vec<Effect>) {
        if queue.is_single_read {
            let woken = self.gate.end_read(txn, &queue.versions);
            return self.look_again(woken, effects);
        }
        if asks_for_writers(self.order) {
            self.gate.end_writes(&queue.versions);
        }
        self.release_versions(queue.versions.picked(Picked::ALL.without(queue.released)), effects);
    }

    fn send_done(&self, txn: TxnId, op: OpId, outcome: Outcome, elapsed_ns: u64, effects: &mut Vec<Effect>) {
        send(SCHEDULER, Message::Done { txn, op, replica: self.replica, outcome, elapsed_ns }, effects);
    }

    fn on_resume(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        if let Some(queue) = self.txns.get_mut(&txn) {
            queue.halted = false;
            self.advance(txn, effects);
        }
    }

    fn on_detach(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let Some(queue) = self.txns.get_mut(&txn) else { return };
        if queue.open {
            effects.push(Effect::Leave { txn, replica: self.replica });
        }
        queue.follow();
        self.advance(txn, effects);
    }

    /// Whatever will never run is dropped: an abort need not wait for its turn. But a write that is at the database may still
    /// take locks there, so everything is kept until it is answered.
    fn on_abort(&mut self, txn: TxnId, tag: Tag, effects: &mut Vec<Effect>) {
        if self.order != Order::Locks {
            self.versioned(txn, &tag.versions);
        }
        let Some(queue) = self.txns.get(&txn) else { return };
        if queue.open {
            effects.push(Effect::Leave { txn, replica: self.replica });
        }
        if matches!(queue.executing, Some(Operation::Write(_))) {
            if let Some(queue) = self.txns.get_mut(&txn) {
                queue.waiting.clear();
                queue.leaving = true;
            }
            return;
        }
        if let Some(number) = queue.number.filter(|number| *number > self.last) {
            // The request stands in the out-of-order queue; its number must not become a gap.
            self.out_of_order.insert(number, OutOfOrder::Void);
        }
        for early in self.early_reads.values_mut() {
            early.retain(|(reader, _)| *reader != txn);
        }
        self.end(txn, effects);
    }

    fn end(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let queue = self.txns.remove(&txn);
        send(SCHEDULER, Message::Ended { txn, replica: self.replica }, effects);
        if self.order == Order::Locks {
            return self.unlock(Holder::Txn(txn), effects);
        }
        if let Some(queue) = queue {
            self.let_go(txn, &queue, effects);
        }
    }

    fn apply(&mut self, from: Csn, to: Csn, effects: &mut Vec<Effect>) {
        self.applies += to.0 + 1 - from.0;
        effects.push(Effect::Apply { replica: self.replica, from, to });
    }

    fn on_applied(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        self.contained.insert(csn);
        if let Some(txn) = self.committing.remove(&csn) {
            self.end(txn, effects);
        } else if self.catch_up.as_ref().is_some_and(|catch_up| catch_up.part_to == csn) {
            self.contained.fill(csn);
            self.catch_up_further(csn, effects);
        }
    }

    /// The transaction's connection is gone and the replica is well. What is under way there is reported as lost.
    fn on_lane_lost(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let Some(queue) = self.txns.get_mut(&txn) else { return };
        match queue.executing {
            Some(Operation::Commit(csn)) => {
                queue.follow();
                queue.executing = Some(Operation::Commit(csn));
                self.apply(csn, csn, effects);
            }
            Some(_) => {}
            None => {
                queue.follow();
                send(SCHEDULER, Message::LaneLost { txn, replica: self.replica }, effects);
                self.advance(txn, effects);
            }
        }
    }
}

/// The replica comes and goes (CAS 5.3.3).
impl Proxy {
    fn on_up(&mut self, applied: Csn, effects: &mut Vec<Effect>) {
        self.reset(State::AwaitingJoin);
        self.incarnation += 1;
        self.contained = Contained::up_to(applied);
        let up = Message::Up { replica: self.replica, incarnation: self.incarnation, applied };
        send(SCHEDULER, up, effects);
    }

    fn on_down(&mut self, effects: &mut Vec<Effect>) {
        let waiting = self
            .txns
            .iter()
            .flat_map(|(txn, queue)| queue.waiting.iter().map(|(operation, _)| (*txn, *operation)));
        let mut unsent: Vec<(TxnId, OpId)> = waiting
            .filter(|(_, operation)| matches!(operation, Operation::Read { .. } | Operation::SingleRead(_)))
            .filter_map(|(txn, operation)| Some((txn, operation.op()?)))
            .collect();
        unsent.sort_unstable();
        self.reset(State::Down);
        send(SCHEDULER, Message::Down { replica: self.replica, unsent }, effects);
    }

    /// Everything that was queued concerned connections that are gone.
    fn reset(&mut self, state: State) {
        *self = Proxy {
            state,
            engine: self.engine,
            incarnation: self.incarnation,
            contained: std::mem::take(&mut self.contained),
            writes: self.writes,
            applies: self.applies,
            earlier_locks: self.lock_counts(),
            ..Proxy::new(self.replica, self.order)
        };
    }

    fn on_join(
        &mut self,
        from: Csn,
        to: Csn,
        number: SequenceNumber,
        open: Vec<OpenTxn>,
        effects: &mut Vec<Effect>,
    ) {
        self.state = State::Serving;
        self.last = number;
        self.queues.request(Holder::CatchUp, TableLocks::everything(LockMode::Write));
        for OpenTxn { txn, locks, versions } in open {
            if asks_for_writers(self.order) {
                self.gate.begin_writes(txn, &versions);
            }
            self.txns.insert(txn, TxnQueue { follows: true, versions, ..TxnQueue::default() });
            match self.order {
                Order::Locks => self.request_locks(txn, locks, effects),
                Order::Versions(_) | Order::Statements(_) => {
                    let queue = self.txns.entry(txn).or_default();
                    queue.granted = true;
                }
            }
        }
        self.catch_up = Some(CatchUp { part_to: from.previous(), to });
        self.catch_up_further(from.previous(), effects);
    }

    fn catch_up_further(&mut self, through: Csn, effects: &mut Vec<Effect>) {
        let Some(catch_up) = &mut self.catch_up else { return };
        let complete = through >= catch_up.to;
        let part_to = catch_up.to.min(Csn(through.0 + RUN_MAX));
        catch_up.part_to = part_to;
        send(SCHEDULER, Message::CaughtUp { replica: self.replica, through, complete }, effects);
        if complete {
            self.catch_up = None;
            self.unlock(Holder::CatchUp, effects);
            let woken = std::mem::take(&mut self.behind_catch_up);
            self.look_again(woken, effects);
        } else {
            self.apply(through.next(), part_to, effects);
        }
    }
}

/// Whether reads stand behind the writes that are due (DV 5.2, Levels 1 and 2).
fn asks_for_writers(order: Order) -> bool {
    matches!(order, Order::Statements(loose) if loose != Loose::Unordered)
}

impl TxnQueue {
    /// Nothing of it can execute here any more; only its decision counts.
    fn follow(&mut self) {
        self.follows = true;
        self.open = false;
        self.halted = false;
        self.executing = None;
        self.blocked = false;
        self.waiting.retain(|(operation, _)| matches!(operation, Operation::Commit(_)));
    }
}

impl Operation {
    fn op(self) -> Option<OpId> {
        match self {
            Operation::Write(op) | Operation::Read { op, .. } | Operation::SingleRead(op) => Some(op),
            Operation::Release { .. } | Operation::Commit(_) | Operation::Finish(_) => None,
        }
    }
}
