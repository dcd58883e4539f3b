//! The default protocol: one ordered log of commits, conflicts counted on items, reads placed by one number.
//!
//! Idea. Update transactions take the items that they touch two-phase, in one place, and execute at one replica, their
//! *home*; different ones have different homes. A commit gets the next CSN, is made durable in the log, and is then
//! committed by every replica in CSN order: by the home as it stands, by the others by applying what the home
//! executed. So every state that any replica shows is a prefix of one history. A single read takes no lock: it runs on
//! a replica that contains the last commit that wrote what it reads.
//!
//! Guarantee: strict serializability (docs/protocols/onecopy.md carries the argument).
//!
//! Invariants:
//! - `applied <= told <= decided` for every replica's `applied`;
//! - two open transactions never hold conflicting items;
//! - a statement at a home runs only when the home contains the last told commit that conflicts with what it was granted:
//!   the last writer of each item, and of what it takes exclusively the last one that refers to it by a foreign key; one that
//!   changes definitions or locks a whole table, only when it contains all that was told when its items were granted;
//! - a read runs only where `applied >=` the last told writer of what it reads of its items, a read phase only where
//!   `applied >=` what was told when its first statement arrived and the last told change of a definition;
//! - items that only an answer shows are held from that answer on, or else before the decision, and then no commit on them
//!   was missed;
//! - a replica has at most one run of commits under way, and it starts at `applied + 1`;
//! - no read phase is open while a definition changes: an older snapshot would see an emptied table (3.10);
//! - a client hears of its commit after the decision is durable and some replica contains it.
//!
//! There is one place, the scheduler; it sends no messages. Sources: design sections 3.1 to 3.6 and 5; the load estimate
//! is SELF of the CAS paper (4.10), with costs learned as shares ([`crate::load::Load`]), and for homes with what a replica
//! has still to commit.

mod deadlocks;
mod lone_reads;
mod membership;
mod shown;
mod txn;

use std::collections::BTreeMap;

use crate::commit_order::{Decisions, Limits, Replicas, Tuning, on_next_values, on_reserved};
use crate::map::HashMap;

use crate::effect::{Decision, Effect, How, Refusal};
use crate::event::{Begin, Event, Outcome, Place, Statement, StatementKind};
use crate::ids::{Csn, Instant, OpId, ReplicaId, TxnId};
use crate::item::{Access, Item, Mode};
use crate::item_locks::{Granting, ItemLocks};
use crate::load::Costs;
use crate::prediction::Predictor;
use crate::protocol::{Guarantee, Protocol, Status};
use crate::sequences::{Sequences, Want};
use crate::version_table::VersionTable;

use lone_reads::LoneRead;
use txn::{Pending, Snapshot, State, Tables, Txn};

/// The scheduler of the default protocol.
#[derive(Debug)]
pub struct Onecopy {
    replicas: Replicas,
    decisions: Decisions,
    limits: Limits,
    locks: ItemLocks,
    versions: VersionTable,
    /// The last commits that needed rows to go on existing: applied, their foreign keys are checked again, and the check
    /// must not meet a later transaction's lock.
    references: VersionTable,
    costs: Costs,
    predictor: Predictor,
    sequences: Sequences,
    txns: HashMap<TxnId, Txn>,
    lone_reads: HashMap<TxnId, LoneRead>,
    /// Statements that wait until any replica contains a commit.
    awaiting_any: BTreeMap<Csn, Vec<TxnId>>,
    /// Positions of the snapshots of open read phases.
    snapshots: BTreeMap<Csn, u32>,
    /// Positions at which statements ran, or run, whose answers may still show items that they should have held.
    pins: BTreeMap<Csn, u32>,
    /// Transactions whose answers have shown items that somebody else held, oldest first.
    owing: Vec<TxnId>,
    /// Transactions that change definitions, in the order in which they were granted their items.
    schema_changers: Vec<TxnId>,
    /// The last commit told that changed a definition: an older snapshot must not be opened any more, anywhere.
    schema_changed: Csn,
    /// Read phases that may only start when no definition is about to change.
    awaiting_schema: Vec<TxnId>,
    counts: Counts,
    /// The time of the event that is being handled.
    now: Instant,
}

#[derive(Default, Debug)]
struct Counts {
    reads_placed: u64,
    freshness_waits: u64,
    deadlocks: u64,
    reads_changed: u64,
    revalidations: u64,
    predicted: u64,
    executed_again: u64,
}

impl Onecopy {
    /// A scheduler for `replicas` servers, all down, whose log ends at `decided`.
    #[must_use]
    pub fn new(replicas: usize, decided: Csn) -> Onecopy {
        Onecopy::tuned(replicas, decided, Tuning::default())
    }

    /// The same, with other values for what only costs or saves time.
    #[must_use]
    pub fn tuned(replicas: usize, decided: Csn, tuning: Tuning) -> Onecopy {
        let limits = tuning.limits;
        Onecopy {
            replicas: Replicas::new(replicas, tuning),
            decisions: Decisions::starting_at(decided),
            limits,
            locks: ItemLocks::default(),
            versions: VersionTable::starting_at(decided, limits.column_sets),
            references: VersionTable::starting_at(decided, limits.column_sets),
            costs: Costs::default(),
            predictor: Predictor::default(),
            sequences: Sequences::reserving(limits.reserved_values),
            txns: HashMap::default(),
            lone_reads: HashMap::default(),
            awaiting_any: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            pins: BTreeMap::new(),
            owing: Vec::new(),
            schema_changers: Vec::new(),
            schema_changed: Csn(0),
            awaiting_schema: Vec::new(),
            counts: Counts::default(),
            now: Instant(0),
        }
    }
}

impl Protocol for Onecopy {
    fn name(&self) -> &'static str {
        "onecopy"
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::StrictSerializability
    }

    fn changes_replicas(&self) -> bool {
        true
    }

    fn hears_waits_outside(&self) -> bool {
        true
    }

    fn handle(&mut self, _place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        self.now = now;
        match event {
            Event::Begin(begin) => self.on_begin(&begin, false),
            Event::Autocommit { begin, statement } => self.on_autocommit(begin, statement, effects),
            Event::Statement { txn, op, statement } => self.on_statement(txn, op, statement, effects),
            Event::Commit { txn, op } => self.on_commit(txn, op, effects),
            Event::Rollback { txn } => self.on_rollback(txn, effects),
            Event::Cancel { txn, op } => self.on_cancel(txn, op, effects),
            Event::Executed { txn, op, replica, outcome, elapsed_ns } => {
                self.on_executed(txn, op, replica, outcome, elapsed_ns, effects);
            }
            Event::Revalidated { txn, replica, same } => self.on_revalidated(txn, replica, same, effects),
            Event::Durable { csn } => self.on_durable(csn, effects),
            Event::Applied { replica, csn } => self.on_applied(replica, csn, effects),
            Event::HomeLost { txn, replica } => self.on_home_lost(txn, replica, effects),
            Event::ReplicaUp { replica, applied } => self.on_replica_up(replica, applied, effects),
            Event::ReplicaDown { replica } => self.on_replica_down(replica, effects),
            Event::ReplicaAdded { replica } => self.on_replica_added(replica),
            Event::ReplicaLeaving { replica } => self.on_replica_leaving(replica, effects),
            Event::ReplicaRemoved { replica } => self.on_replica_removed(replica, effects),
            Event::Wanted { replica, csn } => self.on_wanted(replica, csn, effects),
            Event::WaitsOutside { waits } => self.on_waits_outside(&waits, effects),
            Event::NextValues { txn, op, wants } => {
                let want = Want { txn, op, wants };
                on_next_values(want, &mut self.sequences, &mut self.decisions, effects);
            }
            Event::Sequence { sequence, definition } => self.sequences.define(sequence, definition),
            Event::Timer { timer } => self.on_timer(ReplicaId(timer as u16), effects),
            // It has one place and ships nothing.
            Event::Message { .. }
            | Event::ShippedApplied { .. }
            | Event::Delivered { .. }
            | Event::PeerLost { .. }
            | Event::PeerBack { .. }
            | Event::Opening { .. } => {}
        }
    }

    fn status(&self) -> Status {
        let (grants_at_once, grants_waited) = self.locks.counts();
        Status {
            told: self.decisions.told().0,
            decided: self.decisions.decided().0,
            replicas: self.replica_status(),
            transactions: (self.txns.len() + self.lone_reads.len()) as u64,
            grants_at_once,
            grants_waited,
            freshness_waits: self.counts.freshness_waits,
            reads_placed: self.counts.reads_placed,
            deadlocks: self.counts.deadlocks,
            reads_changed: self.counts.reads_changed,
            revalidations: self.counts.revalidations,
            predicted: self.counts.predicted,
            executed_again: self.counts.executed_again,
            waits_for: self.waits_for(),
            ..Status::default()
        }
    }

    /// Nobody waits for a replica while one that serves contains what is needed, and nothing is kept of transactions that are over.
    fn broken_invariant(&self) -> Option<String> {
        let is = |id: &TxnId, state: State| self.txns.get(id).is_some_and(|txn| txn.state == state);
        if let Some(best) = self.replicas.most_advanced(self.versions.forgotten()) {
            let waiting = self.awaiting_any.range(..=best);
            let mut waiting = waiting.flat_map(|(floor, txns)| txns.iter().map(move |id| (*floor, *id)));
            if let Some((floor, id)) = waiting.find(|(floor, id)| is(id, State::AwaitingReplica(*floor))) {
                return Some(format!("{id:?} waits for {floor} though a replica at {best} serves"));
            }
        }
        let at_home = self.txns.iter().filter(|(_, txn)| txn.state == State::AwaitingHome);
        for (id, txn) in at_home {
            let home = txn.home.map(|home| self.replicas.get(home));
            let waits = home.is_some_and(|home| {
                home.up && home.awaiting.range(home.applied.next()..).any(|(_, waiting)| waiting.contains(id))
            });
            if !waits {
                return Some(format!("{id:?} waits for its home, which will not wake it"));
            }
        }
        let is_kept = !self.locks.is_empty()
            || !self.owing.is_empty()
            || !self.pins.is_empty()
            || !self.snapshots.is_empty()
            || !self.schema_changers.is_empty();
        if self.txns.is_empty() && is_kept {
            return Some("no transaction is open, and something of one is kept".to_owned());
        }
        None
    }
}

/// From the client.
impl Onecopy {
    fn on_begin(&mut self, begin: &Begin, autocommit: bool) {
        self.txns.insert(begin.txn, Txn::new(begin, autocommit, self.limits.items));
    }

    fn on_statement(&mut self, id: TxnId, op: OpId, statement: Statement, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let before = txn.mark();
        txn.prefix = txn.prefix.then(statement.class);
        let reads_only = statement.kind == StatementKind::Read;
        let predicted = match reads_only {
            true => txn.predicted(&statement.access, &self.predictor),
            false => Tables::new(),
        };
        self.counts.predicted += u64::from(!predicted.is_empty());
        if reads_only {
            txn.note_read(&statement);
        } else {
            txn.note_write(&statement.access, &mut self.predictor);
            txn.note_references(&statement.access);
        }
        let in_read_phase = !txn.had_home && ((reads_only && predicted.is_empty()) || txn.read_only);
        txn.pending = Some(Pending::new(op, statement, predicted, before));
        match (in_read_phase, txn.autocommit) {
            (true, true) => self.place_single_read(id, effects),
            (true, false) => self.place_read_phase(id, effects),
            (false, _) => self.request_items(id, effects),
        }
    }

    fn on_commit(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.commit_op = op;
        self.grant_owed(id, effects);
    }

    fn on_rollback(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        if self.forget_lone_read(id).is_some() {
            return;
        }
        match self.txns.get(&id).map(|txn| txn.state) {
            // A decision stands whatever becomes of the client.
            None | Some(State::AwaitingDurable | State::AwaitingCommit) => {}
            Some(_) => {
                self.leave_lanes(id, effects);
                self.forget(id, effects);
            }
        }
    }

    fn on_cancel(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id).filter(|txn| txn.state.waits_in_core()) else { return };
        let commits = txn.state == State::AwaitingOwed;
        let waiting_op =
            if commits { Some(txn.commit_op) } else { txn.pending.as_ref().map(|pending| pending.op) };
        match waiting_op == Some(op) {
            true if commits || txn.autocommit => self.refuse(id, op, Refusal::Cancelled, effects),
            true => self.withdraw(id, op, effects),
            false => {}
        }
    }

    /// A statement that waits is taken back. Nothing of it has run, so its transaction stands where it stood before.
    fn withdraw(&mut self, id: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(pending) = txn.pending.take() else { return };
        txn.state = State::AwaitingClient;
        txn.return_to(pending.before);
        effects.push(Effect::Withdraw { txn: id, op });
        let granted = self.locks.take_back(id, pending.held_before);
        self.on_granted(granted, effects);
        if pending.begins_schema_change {
            self.end_schema_change(id, effects);
        }
    }
}

/// Reads: placed by one number (design 3.5 and 3.3).
impl Onecopy {
    fn place_single_read(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        let Some(pending) = &txn.pending else { return };
        let access = pending.statement.access.clone();
        match self.choose_for_read(&access, effects) {
            Some(replica) => self.execute(id, replica, How::Alone, effects),
            None => self.await_any(id, self.versions.floor(&access)),
        }
    }

    /// A replica that contains the last writers of these items, if there is one: then it counts as placed there. Those that
    /// lack them apply without lingering from now on.
    fn choose_for_read(&mut self, access: &[Access], effects: &mut Vec<Effect>) -> Option<ReplicaId> {
        let floor = self.versions.floor(access);
        self.want_everywhere(floor, effects);
        let replica = self.replicas.for_read(floor, self.versions.forgotten(), self.now)?;
        self.counts.reads_placed += 1;
        self.replicas.get_mut(replica).reads += 1;
        Some(replica)
    }

    fn place_read_phase(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let told = self.decisions.told();
        let Some(txn) = self.txns.get(&id) else { return };
        if let Some(snapshot) = txn.snapshot.filter(|snapshot| !self.replicas.get(snapshot.replica).up) {
            // It was lost while an answer was under way.
            effects.push(Effect::Leave { txn: id, replica: snapshot.replica });
            self.forget_lane(id, effects);
        }
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if let Some(snapshot) = txn.snapshot {
            self.replicas.get_mut(snapshot.replica).reads += 1;
            return self.execute(id, snapshot.replica, How::Snapshot { open: false }, effects);
        }
        // The floor stays what it was when the first statement arrived, however long the statement waits; but a
        // definition that changed meanwhile would be changed under an older snapshot where it is applied later.
        let floor = (*txn.snapshot_floor.get_or_insert(told)).max(self.schema_changed);
        if !self.schema_changers.is_empty() {
            txn.state = State::AwaitingSchema;
            return self.awaiting_schema.push(id);
        }
        self.want_everywhere(floor, effects);
        let chosen = self.replicas.for_read(floor, self.versions.forgotten(), self.now);
        if chosen.is_some() && self.reads_by_old_definitions(id) {
            return self.refuse_reads(id, Refusal::DefinitionsChanged, effects);
        }
        let Some(txn) = self.txns.get_mut(&id) else { return };
        match chosen {
            Some(replica) => {
                let position = self.replicas.get(replica).applied;
                // A statement that was withdrawn since had given the snapshot up. What was read there must be the same in the
                // new one; by what has been written so far that cannot be said, since the new one is taken later.
                let has_read = txn.pending.as_ref().is_some_and(|pending| pending.before.has_read());
                let left = txn.left_snapshot.take().filter(|_| has_read);
                let reads_hold_at = left.unwrap_or(position);
                txn.snapshot = Some(Snapshot { replica, position, reads_hold_at });
                *self.snapshots.entry(position).or_insert(0) += 1;
                self.counts.reads_placed += 1;
                self.replicas.get_mut(replica).reads += 1;
                let how = How::Snapshot { open: true };
                match left {
                    Some(_) => self.revalidate(id, replica, how, effects),
                    None => self.execute(id, replica, how, effects),
                }
            }
            None => self.await_any(id, floor),
        }
    }

    /// A replica that does not contain this could not be chosen: it shall not linger any more.
    fn want_everywhere(&mut self, floor: Csn, effects: &mut Vec<Effect>) {
        for replica in self.replicas.ids() {
            self.want(replica, floor, effects);
        }
    }

    /// What is not decided yet is not wanted: all that will ever be would then be applied without lingering.
    fn on_wanted(&mut self, replica: ReplicaId, csn: Csn, effects: &mut Vec<Effect>) {
        let csn = csn.min(self.decisions.decided());
        self.want(replica, csn, effects);
    }

    fn want(&mut self, replica: ReplicaId, csn: Csn, effects: &mut Vec<Effect>) {
        if self.replicas.get_mut(replica).want(csn) {
            self.advance(replica, effects);
        }
    }

    fn on_timer(&mut self, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let told = self.decisions.told();
        self.replicas.get_mut(replica).end_lingering(told);
        self.advance(replica, effects);
    }

    fn await_any(&mut self, id: TxnId, floor: Csn) {
        self.counts.freshness_waits += 1;
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.state = State::AwaitingReplica(floor);
        }
        self.awaiting_any.entry(floor).or_default().push(id);
    }

    /// A replica got further or came up: whoever waited for any replica to do so is placed again.
    fn wake_awaiting_any(&mut self, effects: &mut Vec<Effect>) {
        loop {
            let best = self.replicas.most_advanced(self.versions.forgotten());
            let Some(best) = best else { return };
            let Some(entry) = self.awaiting_any.first_entry().filter(|entry| *entry.key() <= best) else {
                return;
            };
            let (floor, waiters) = entry.remove_entry();
            for id in waiters {
                let Some(txn) = self.txns.get(&id) else { continue };
                if txn.state != State::AwaitingReplica(floor) {
                    continue;
                }
                match (txn.wants_home, txn.autocommit) {
                    (true, _) => self.place_at_home(id, effects),
                    (false, true) => self.place_single_read(id, effects),
                    (false, false) => self.place_read_phase(id, effects),
                }
            }
        }
    }
}

/// Updates: items, home, execution (design 3.2 and 3.3).
impl Onecopy {
    fn request_items(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let request = txn.next_request();
        if let Some(pending) = &mut txn.pending {
            pending.held_before = self.locks.held(id).len();
        }
        txn.wants_home = true;
        txn.state = State::AwaitingGrant;
        match self.locks.request(id, &request) {
            Granting::Granted => self.on_items_granted(id, effects),
            Granting::Waits => {
                // What was read is validated once the items are granted; until then a snapshot would only stand in the
                // way of a change of definitions, perhaps of the very one that is waited for.
                self.leave_snapshot(id, effects);
                self.break_cycles(id, effects);
            }
        }
    }

    fn leave_snapshot(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if let Some(snapshot) = txn.snapshot.take() {
            txn.left_snapshot = Some(snapshot.reads_hold_at);
            effects.push(Effect::Leave { txn: id, replica: snapshot.replica });
            self.close_snapshot(snapshot.position, effects);
        }
    }

    fn on_items_granted(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let told = self.decisions.told();
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.pending.as_ref().is_some_and(Pending::locks_readers_out) {
            txn.home_floor = told;
        }
        let change = txn.pending.as_mut().filter(|pending| pending.statement.kind == StatementKind::Schema);
        let Some(pending) = change else { return self.place_at_home(id, effects) };
        if !self.schema_changers.contains(&id) {
            pending.begins_schema_change = true;
            self.schema_changers.push(id);
        }
        // Its own snapshot would stand in its own way.
        self.leave_snapshot(id, effects);
        self.place_schema_change(id, effects);
    }

    /// Older snapshots must be gone before a definition changes.
    fn place_schema_change(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        if self.snapshots.is_empty() {
            return self.place_at_home(id, effects);
        }
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.state = State::AwaitingSnapshots;
        }
    }

    /// A transaction that changed definitions is told or over.
    fn end_schema_change(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let before = self.schema_changers.len();
        self.schema_changers.retain(|changer| *changer != id);
        if before > 0 && self.schema_changers.is_empty() {
            for id in std::mem::take(&mut self.awaiting_schema) {
                if self.txns.get(&id).is_some_and(|txn| txn.state == State::AwaitingSchema) {
                    self.place_read_phase(id, effects);
                }
            }
        }
    }

    /// The items are granted: run the statement at the home once the home contains their last writers.
    fn place_at_home(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        let Some(pending) = &txn.pending else { return };
        let Some(home) = txn.home else { return self.choose_home(id, effects) };
        let floor = self.home_floor(&pending.access()).max(txn.home_floor);
        if !self.replicas.get(home).up {
            // It was lost while an answer was under way that has to be given up: nothing will come there any more.
            if let Some(txn) = self.txns.get_mut(&id) {
                txn.state = State::AwaitingHome;
            }
            return self.lose_lane(id, home, effects);
        }
        if self.replicas.get(home).applied < floor {
            self.counts.freshness_waits += 1;
            self.replicas.get_mut(home).awaiting.entry(floor).or_default().push(id);
            if let Some(txn) = self.txns.get_mut(&id) {
                txn.state = State::AwaitingHome;
            }
            self.advance(home, effects);
            return self.break_cycles(id, effects);
        }
        self.execute_at_home(id, home, How::Home { open: false }, effects);
    }

    /// The last commit told that conflicts with one of these.
    fn home_floor(&self, accesses: &[Access]) -> Csn {
        let exclusive = accesses.iter().filter(|access| access.mode.conflicts(Mode::KeyShared));
        let referenced = exclusive.map(|access| self.references.last_writer(&access.item)).max();
        self.versions.floor(accesses).max(referenced.unwrap_or_default())
    }

    /// Whether a definition has changed since a read phase took its snapshot. What was read there may lie elsewhere now (behind a
    /// view, in a function): neither its items nor equal answers say what it must be validated against.
    fn reads_by_old_definitions(&self, id: TxnId) -> bool {
        let Some(txn) = self.txns.get(&id) else { return false };
        let changed = self.schema_changed.max(self.versions.last_of_definitions());
        let position = txn.left_snapshot.or(txn.snapshot.map(|snapshot| snapshot.reads_hold_at));
        position.is_some_and(|position| position < changed)
            && txn.pending.as_ref().is_some_and(|pending| pending.before.has_read())
    }

    fn refuse_reads(&mut self, id: TxnId, reason: Refusal, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        let op = txn.pending.as_ref().map_or(txn.commit_op, |pending| pending.op);
        self.counts.reads_changed += 1;
        self.refuse(id, op, reason, effects);
    }

    fn choose_home(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        if self.reads_by_old_definitions(id) {
            return self.refuse_reads(id, Refusal::DefinitionsChanged, effects);
        }
        let own_floor = self.txns.get(&id).map_or(Csn(0), |txn| txn.home_floor);
        let floor = self.home_floor(self.locks.held(id)).max(own_floor);
        let Some(home) =
            self.replicas.for_home(floor, self.versions.forgotten(), self.decisions.told(), self.now)
        else {
            // Where there is one, the others go on lingering: most transactions need what only their home has applied yet.
            self.want_everywhere(floor, effects);
            return self.await_any(id, floor);
        };
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.home = Some(home);
        txn.had_home = true;
        self.leave_snapshot(id, effects);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let unchanged = txn.left_snapshot.is_none_or(|position| {
            position >= self.versions.forgotten() && self.versions.floor(&txn.reads) <= position
        });
        if unchanged && !txn.ran_at_home {
            return self.execute_at_home(id, home, How::Home { open: true }, effects);
        }
        self.revalidate(id, home, How::Home { open: true }, effects);
        // What it wrote elsewhere may wait in the database for who owes an item that it holds.
        self.break_cycles(id, effects);
    }

    fn revalidate(&mut self, id: TxnId, replica: ReplicaId, how: How, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        self.counts.revalidations += 1;
        txn.state = State::AwaitingRevalidation;
        effects.push(Effect::Revalidate { txn: id, replica, how });
    }

    fn on_revalidated(&mut self, id: TxnId, replica: ReplicaId, same: bool, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.state != State::AwaitingRevalidation || !txn.uses(replica) {
            return;
        }
        let moved = txn.ran_at_home;
        match (same, txn.home) {
            (false, _) if moved => {
                let op = txn.pending.as_ref().map_or(txn.commit_op, |pending| pending.op);
                self.refuse(id, op, Refusal::HomeLost, effects);
            }
            (true, Some(home)) => self.execute_at_home(id, home, How::Home { open: false }, effects),
            (true, None) => {
                if let Some(snapshot) = &mut txn.snapshot {
                    snapshot.reads_hold_at = snapshot.position;
                }
                self.execute(id, replica, How::Snapshot { open: false }, effects);
            }
            (false, _) => self.refuse_reads(id, Refusal::ReadsChanged, effects),
        }
    }

    fn execute_at_home(&mut self, id: TxnId, home: ReplicaId, how: How, effects: &mut Vec<Effect>) {
        let replica = self.replicas.get_mut(home);
        replica.home_statements += 1;
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.position = replica.applied;
            // What an answer shows is judged by it, too.
            let judged = txn.pending.as_ref().is_some_and(|pending| pending.writes() || pending.is_shown());
            if judged && txn.pinned.is_none() {
                txn.pinned = Some(txn.position);
                *self.pins.entry(txn.position).or_insert(0) += 1;
            }
        }
        self.execute(id, home, how, effects);
        self.break_cycles(id, effects);
    }

    fn unpin_unless_owing(&mut self, id: TxnId) {
        if self.txns.get(&id).is_some_and(|txn| txn.owed.is_empty()) {
            self.unpin(id);
        }
    }

    fn unpin(&mut self, id: TxnId) {
        let pinned = self.txns.get_mut(&id).and_then(|txn| txn.pinned.take());
        pinned.into_iter().for_each(|position| uncount(&mut self.pins, position));
    }

    fn execute(&mut self, id: TxnId, replica: ReplicaId, how: How, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(pending) = &mut txn.pending else { return };
        let expected_ns = self.costs.expected_ns(pending.statement.class);
        self.replicas.get_mut(replica).load.add(expected_ns);
        pending.sent = Some((replica, expected_ns));
        txn.state = State::Executing;
        // The answer of a transaction's only statement is its commit's: nobody may hear it before the decision. Nor one that
        // shows items at home, before these are taken.
        let is_shown = matches!(how, How::Home { .. }) && pending.is_shown();
        let hold = is_shown || txn.autocommit && pending.statement.kind != StatementKind::Read;
        effects.push(Effect::Execute { txn: id, op: pending.op, replica, how, hold });
    }

    fn on_executed(
        &mut self,
        id: TxnId,
        op: OpId,
        replica: ReplicaId,
        outcome: Outcome,
        elapsed_ns: u64,
        effects: &mut Vec<Effect>,
    ) {
        if self.on_lone_read_executed(id, &outcome, elapsed_ns, effects) {
            return;
        }
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(pending) = txn.pending.take_if(|pending| pending.op == op) else { return };
        let mut cost_ns = elapsed_ns;
        if let Some((sent_to, expected_ns)) = pending.sent {
            let load = &mut self.replicas.get_mut(sent_to).load;
            load.remove(expected_ns);
            cost_ns = load.share_of_one_more(elapsed_ns);
        }
        txn.state = State::AwaitingClient;
        if txn.home.is_some() && matches!(outcome, Outcome::Done { .. }) {
            txn.ran_at_home = true;
            txn.left_snapshot = None;
        }
        let reads_only = pending.statement.kind == StatementKind::Read;
        match outcome {
            Outcome::Done { returned } if pending.is_shown() && !txn.autocommit => {
                self.costs.learn(pending.statement.class, cost_ns);
                self.on_shown(id, replica, pending, &returned, effects);
            }
            Outcome::TooLarge => self.execute_strictly(id, pending, effects),
            Outcome::Done { returned } => {
                self.costs.learn(pending.statement.class, cost_ns);
                txn.wrote |= !txn.read_only && pending.writes();
                let autocommit = txn.autocommit;
                // What a read shows is covered by what it was granted.
                if !returned.is_empty() && !reads_only {
                    self.on_returned(id, returned, effects);
                }
                self.unpin_unless_owing(id);
                match (autocommit, reads_only) {
                    (true, true) => self.forget(id, effects),
                    (true, false) => self.on_commit(id, op, effects),
                    (false, _) => {}
                }
            }
            Outcome::Failed if pending.is_shown() && !txn.autocommit => {
                // Its client may have seen rows before it failed.
                match txn.home {
                    None => txn.remember_reads(&pending.statement.shown),
                    Some(_) => self.on_returned(id, pending.statement.shown, effects),
                }
                self.unpin_unless_owing(id);
            }
            Outcome::Failed if txn.autocommit => {
                self.leave_lanes(id, effects);
                self.forget(id, effects);
            }
            Outcome::Failed => self.unpin_unless_owing(id),
            Outcome::Lost { answer_begun: true } => self.refuse(id, op, Refusal::AnswerCut, effects),
            Outcome::Lost { answer_begun: false }
                if !txn.may_lose(replica, self.replicas.get(replica).ups) =>
            {
                self.refuse(id, op, Refusal::HomeLost, effects);
            }
            Outcome::Lost { answer_begun: false } if txn.autocommit && reads_only => {
                txn.pending = Some(Pending { sent: None, ..pending });
                self.place_single_read(id, effects);
            }
            Outcome::Lost { answer_begun: false } => {
                txn.pending = Some(Pending { sent: None, ..pending });
                self.replicas.avoid_as_home(replica);
                self.forget_lane(id, effects);
                self.place_again(id, effects);
            }
        }
    }

    /// What the transaction had open on a replica is gone. It goes on with what it holds: in another snapshot or at another
    /// home, where what it has done is done again (design 3.9).
    fn forget_lane(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        self.unpin_unless_owing(id);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.home = None;
        if let Some(snapshot) = txn.snapshot.take() {
            txn.left_snapshot = Some(snapshot.reads_hold_at);
            self.close_snapshot(snapshot.position, effects);
        }
    }

    /// Its statement has no replica any more.
    fn place_again(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        match self.txns.get(&id).map(|txn| txn.wants_home) {
            Some(true) => self.choose_home(id, effects),
            Some(false) => self.place_read_phase(id, effects),
            None => {}
        }
    }
}

/// Decisions and what follows from them (design 3.4).
impl Onecopy {
    /// Everything is granted that its transaction has touched: what it has written gets its place in the order.
    fn settle(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        if txn.wrote {
            return self.decide(id, effects);
        }
        let replica = txn.home.or(txn.snapshot.map(|snapshot| snapshot.replica));
        effects.push(Effect::Finish { txn: id, op: txn.commit_op, replica });
        self.forget(id, effects);
    }

    fn decide(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        self.unpin(id);
        self.owing.retain(|owing| *owing != id);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.state = State::AwaitingDurable;
        // The answer to its last statement may have come when its home was down already: then nothing is open there any more.
        let home = txn.home.filter(|home| self.replicas.get(*home).up);
        if let Some(replica) = txn.home.filter(|_| home.is_none()) {
            effects.push(Effect::Leave { txn: id, replica });
        }
        let csn = self.decisions.decide(Some(id), home, txn.commit_op, None);
        effects.push(Effect::Append { csn, decision: Decision::Commit(id) });
    }

    fn on_durable(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        let mut granted = Vec::new();
        let mut reserved = Vec::new();
        let mut changed = Vec::new();
        while self.decisions.told() < csn.min(self.decisions.decided()) {
            let decision = self.decisions.tell_next();
            if let Some(txn) = decision.txn {
                let held = self.locks.held(txn);
                self.versions.write(decision.csn, held);
                let referenced = self.txns.get(&txn).map_or(&[][..], |txn| &txn.referenced);
                if !referenced.is_empty() {
                    self.references.write(decision.csn, referenced);
                }
                if self.schema_changers.contains(&txn) {
                    self.schema_changed = decision.csn;
                }
                granted.extend(self.locks.release(txn));
                changed.push(txn);
                if let Some(txn) = self.txns.get_mut(&txn) {
                    txn.state = State::AwaitingCommit;
                    txn.learn(&mut self.predictor);
                }
            }
            if let Some((sequence, _)) = decision.reserved {
                // Who looks at the sequence itself must see what it was set to.
                self.versions.write(decision.csn, &[Access::new(Item::table(sequence), Mode::Exclusive)]);
            }
            reserved.extend(decision.reserved);
        }
        self.advance_all(effects);
        on_reserved(reserved, &mut self.sequences, &mut self.decisions, effects);
        self.on_granted(granted, effects);
        if !self.schema_changers.is_empty() {
            changed.into_iter().for_each(|txn| self.end_schema_change(txn, effects));
        }
    }

    fn on_granted(&mut self, granted: Vec<TxnId>, effects: &mut Vec<Effect>) {
        for id in granted {
            match self.txns.get(&id).map(|txn| txn.state) {
                Some(State::AwaitingGrant) => self.on_items_granted(id, effects),
                Some(State::AwaitingOwed) => self.on_owed_granted(id, effects),
                _ => {}
            }
        }
    }

    fn on_applied(&mut self, replica: ReplicaId, csn: Csn, effects: &mut Vec<Effect>) {
        let before = self.replicas.get(replica).applied;
        if !self.replicas.get(replica).up || csn <= before || csn > self.decisions.told() {
            return;
        }
        self.replicas.get_mut(replica).on_applied(csn, self.now);
        self.acknowledge(before, csn, effects);
        self.advance(replica, effects);
        for id in self.replicas.get_mut(replica).take_awaiting(csn) {
            let waits_here = self
                .txns
                .get(&id)
                .is_some_and(|txn| txn.state == State::AwaitingHome && txn.home == Some(replica));
            if waits_here {
                self.place_at_home(id, effects);
            }
        }
        self.wake_awaiting_any(effects);
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

    fn advance_all(&mut self, effects: &mut Vec<Effect>) {
        for replica in self.replicas.ids() {
            self.advance(replica, effects);
        }
    }

    fn advance(&mut self, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let next = self.replicas.advance(replica, &self.decisions, self.now);
        effects.extend(next);
    }

    /// Forgets what no position that will still be asked about can need.
    fn forget_old(&mut self) {
        let least_advanced = self.replicas.least_advanced(self.versions.forgotten(), self.decisions.told());
        let Some(everywhere) = least_advanced else { return };
        let oldest = self.snapshots.keys().next().into_iter().chain(self.pins.keys().next()).min();
        let needed = oldest.map_or(everywhere, |oldest| everywhere.min(*oldest));
        self.versions.forget(needed);
        self.references.forget(needed);
        if self.versions.len().max(self.references.len()) > self.limits.versions {
            self.versions.forget(everywhere);
            self.references.forget(everywhere);
        }
        self.decisions.forget(everywhere);
    }
}

/// Endings.
impl Onecopy {
    fn refuse(&mut self, id: TxnId, op: OpId, reason: Refusal, effects: &mut Vec<Effect>) {
        self.leave_lanes(id, effects);
        effects.push(Effect::Refuse { txn: id, op, reason });
        self.forget(id, effects);
    }

    fn leave_lanes(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        let snapshot = txn.snapshot.map(|snapshot| snapshot.replica);
        for replica in snapshot.into_iter().chain(txn.home) {
            effects.push(Effect::Leave { txn: id, replica });
        }
    }

    /// The transaction is over and has no decision: everything it holds goes to those who wait.
    fn forget(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        self.unpin(id);
        self.owing.retain(|owing| *owing != id);
        let Some(txn) = self.txns.remove(&id) else { return };
        if let Some((replica, expected_ns)) = txn.pending.as_ref().and_then(|pending| pending.sent) {
            self.replicas.get_mut(replica).load.remove(expected_ns);
        }
        if let Some(snapshot) = txn.snapshot {
            self.close_snapshot(snapshot.position, effects);
        }
        txn.learn(&mut self.predictor);
        if txn.wants_home {
            let granted = self.locks.release(id);
            self.on_granted(granted, effects);
            self.end_schema_change(id, effects);
        }
    }

    fn close_snapshot(&mut self, position: Csn, effects: &mut Vec<Effect>) {
        uncount(&mut self.snapshots, position);
        if self.snapshots.is_empty() {
            for id in self.schema_changers.clone() {
                if self.txns.get(&id).is_some_and(|txn| txn.state == State::AwaitingSnapshots) {
                    self.place_at_home(id, effects);
                }
            }
        }
    }
}

/// Replicas come and go (the parts of design 3.9 and 4 that one node needs).
impl Onecopy {
    fn on_replica_up(&mut self, id: ReplicaId, applied: Csn, effects: &mut Vec<Effect>) {
        if self.replicas.get(id).is_gone() {
            return;
        }
        self.replicas.get_mut(id).on_up(applied);
        // A commit may have reached this replica before its connection was lost: it is visible now.
        let from = self.decisions.first_unacknowledged();
        self.acknowledge(from.previous(), applied.min(self.decisions.told()), effects);
        self.advance(id, effects);
        self.wake_awaiting_any(effects);
    }

    fn on_replica_down(&mut self, id: ReplicaId, effects: &mut Vec<Effect>) {
        self.replicas.on_down(id);
        // Of those that committed there already, nothing is left to leave; the others would wait for their turn for ever.
        let applied = self.replicas.get(id).applied;
        for (txn, csn) in self.decisions.home_is_gone(id) {
            if csn > applied {
                effects.push(Effect::Leave { txn, replica: id });
            }
        }
        self.advance_all(effects);
        let mut affected: Vec<TxnId> =
            self.txns.iter().filter(|(_, txn)| txn.uses(id)).map(|(id, _)| *id).collect();
        affected.sort_unstable();
        for txn in affected {
            self.lose_lane(txn, id, effects);
        }
        // One that leaves serves again if it was the last that stays.
        self.wake_awaiting_any(effects);
    }

    fn on_home_lost(&mut self, txn: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        if let Some(csn) = self.decisions.home_lost(txn, replica) {
            self.replicas.get_mut(replica).on_home_lost(csn);
            // Its client now waits for whoever applies it first.
            return self.advance_all(effects);
        }
        self.lose_lane(txn, replica, effects);
    }

    /// What the transaction had open on a replica is gone. A statement that is under way there is reported by the driver as
    /// lost; one that was about to run there is placed anew; else the next one is.
    fn lose_lane(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let ups = self.replicas.get(replica).ups;
        let Some(txn) = self.txns.get_mut(&id).filter(|txn| txn.uses(replica)) else { return };
        let state = txn.state;
        if matches!(state, State::Executing | State::AwaitingDurable | State::AwaitingCommit) {
            return;
        }
        if state == State::AwaitingRevalidation && !txn.may_lose(replica, ups) {
            let op = txn.pending.as_ref().map_or(txn.commit_op, |pending| pending.op);
            return self.refuse(id, op, Refusal::HomeLost, effects);
        }
        effects.push(Effect::Leave { txn: id, replica });
        self.forget_lane(id, effects);
        if matches!(state, State::AwaitingHome | State::AwaitingRevalidation) {
            self.place_again(id, effects);
        }
    }
}

fn uncount(counts: &mut BTreeMap<Csn, u32>, position: Csn) {
    if let Some(count) = counts.get_mut(&position) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&position);
        }
    }
}

#[cfg(test)]
mod deadlock_tests;
#[cfg(test)]
mod membership_tests;
#[cfg(test)]
mod moved_tests;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tuning_tests;
