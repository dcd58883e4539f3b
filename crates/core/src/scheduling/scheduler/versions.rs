//! Versions of tables as the scheduler knows them (DV 4.2 to 4.6, 5.2, 6.1): who was given which, how far each replica is, and
//! behind what a single read must stand.
//!
//! A single read has no versions. It takes its place in the order of sequence numbers behind every update of which a write to
//! one of its tables was ever sent, and so behind all numbers before that one's: since each proxy hears of those writes before
//! it hears of the read, and lets no later write pass the read (unless reads have snapshots), the read sees those updates whole
//! and no other. (The paper lets
//! the read stand behind what its proxy knows of. It does not say how that stays serializable where an update that the proxy
//! does not know of precedes one that it knows.) Reads of one session have their places in the order in which they came.
//!
//! Invariants:
//! - `over` is what a replica has come to that contains everything decided and takes part in nothing;
//! - what is known of a replica's versions is never ahead of what its proxy has come to when the next message reaches it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use smallvec::SmallVec;

use crate::effect::Effect;
use crate::event::StatementKind;
use crate::ids::{Instant, ReplicaId, SequenceNumber, SessionId, TxnId};
use crate::item::TableId;
use crate::map::HashMap;
use crate::scheduling::{Acquire, Ahead, Behind, Loose, Message, Order, Release, Tag};
use crate::table_queues::{LockMode, TableLocks};
use crate::table_versions::{Assigned, Picked, Reached, Version, Versions};

use super::replicas::Replicas;
use super::txn::{At, Part, State, Txn};
use super::{Scheduler, to_proxy};

/// Sessions whose last places are kept before those that mean nothing any more are dropped.
const SESSIONS_MAX: usize = 4_096;

/// An update that some replica may not have completed.
#[derive(Clone, Copy, Debug)]
struct Writer {
    txn: TxnId,
    version: Version,
}

/// What is known of versions beside each transaction's own.
#[derive(Default, Debug)]
pub(super) struct Known {
    over: Reached,
    writers: HashMap<TableId, BTreeMap<SequenceNumber, Writer>>,
    /// The last number of an update of which a write of this table was sent, however long it has been over: an earlier one
    /// may not have come to another table yet, and nobody may see the later one without it.
    sent: HashMap<TableId, SequenceNumber>,
    /// Versions that some replica has written and others may not have, and since when, both rising.
    done: HashMap<TableId, VecDeque<(Instant, Version)>>,
    /// Reads of longer transactions that no replica is ready for, by table and version.
    awaiting: HashMap<TableId, BTreeMap<Version, Vec<TxnId>>>,
    /// The last place in the order that each session has had.
    places: HashMap<SessionId, SequenceNumber>,
    /// Single reads that no replica may serve yet, in order.
    pub(super) held_reads: Vec<TxnId>,
}

impl Known {
    /// What whoever comes back finds when everything decided is applied, and `done` transactions take part in nothing.
    pub(super) fn over<'a>(&self, done: impl Iterator<Item = &'a Versions>) -> Reached {
        let mut over = self.over.clone();
        for assigned in done.flat_map(|versions| versions.iter()) {
            over.release(assigned);
        }
        over
    }

    /// The transaction, or its attempt, is over everywhere.
    pub(super) fn forget(&mut self, txn: TxnId, number: SequenceNumber, versions: &Versions) {
        for assigned in versions.iter() {
            self.over.release(assigned);
            self.forget_awaiting(txn, assigned);
            if assigned.mode == LockMode::Write
                && let Some(writers) = self.writers.get_mut(&assigned.table)
            {
                writers.remove(&number);
                if writers.is_empty() {
                    self.writers.remove(&assigned.table);
                }
            }
        }
    }

    /// A replica is the first to have done an update.
    pub(super) fn done(&mut self, versions: &Versions, now: Instant) {
        for Assigned { table, version, .. } in versions.iter().filter(|a| a.mode == LockMode::Write) {
            let done = self.done.entry(*table).or_default();
            // A later one may be done first, if this one has let the table go early.
            if done.back().is_none_or(|(_, last)| last < version) {
                done.push_back((now, *version));
            }
        }
    }

    /// Drops of these tables what every one of these replicas has.
    pub(super) fn drop_done(&mut self, versions: &Versions, replicas: &Replicas) {
        for table in versions.iter().filter(|a| a.mode == LockMode::Write).map(|assigned| assigned.table) {
            let Some(done) = self.done.get_mut(&table) else { continue };
            let reached = replicas.serving().map(|replica| replicas.get(replica).reached.version(table));
            let Some(reached) = reached.min() else { continue };
            let count = done.partition_point(|(_, version)| *version < reached);
            done.drain(..count);
            if done.is_empty() {
                self.done.remove(&table);
            }
        }
    }

    /// What a replica must have come to that is to have all that was done longer ago than this.
    fn older(&self, tables: &TableLocks, bound_ns: u64, now: Instant) -> SmallVec<[Assigned; 4]> {
        let older = touched(tables).filter_map(|table| {
            let done = self.done.get(&table)?;
            let count = done.partition_point(|(since, _)| now.since_ns(*since) > bound_ns);
            let (_, version) = done.get(count.checked_sub(1)?)?;
            Some(Assigned { table, version: version.next(), mode: LockMode::Read })
        });
        older.collect()
    }

    fn forget_awaiting(&mut self, txn: TxnId, assigned: &Assigned) {
        let Some(versions) = self.awaiting.get_mut(&assigned.table) else { return };
        let Some(awaiting) = versions.get_mut(&assigned.version) else { return };
        awaiting.retain(|id| *id != txn);
        if awaiting.is_empty() {
            versions.remove(&assigned.version);
        }
        if versions.is_empty() {
            self.awaiting.remove(&assigned.table);
        }
    }

    fn begin(&mut self, txn: TxnId, session: SessionId, number: SequenceNumber, versions: &Versions) {
        for Assigned { table, version, .. } in versions.iter().filter(|a| a.mode == LockMode::Write) {
            let writer = Writer { txn, version: *version };
            self.writers.entry(*table).or_default().insert(number, writer);
        }
        self.take_place(session, number);
    }

    /// Writes of these tables are sent.
    fn send(&mut self, number: SequenceNumber, tables: impl Iterator<Item = TableId>) {
        for table in tables {
            if self.writers.get(&table).is_some_and(|writers| writers.contains_key(&number)) {
                let last = self.sent.entry(table).or_default();
                *last = number.max(*last);
            }
        }
    }

    fn take_place(&mut self, session: SessionId, place: SequenceNumber) {
        if self.places.len() >= SESSIONS_MAX && !self.places.contains_key(&session) {
            let oldest = self.writers.values().filter_map(|writers| writers.keys().next()).min().copied();
            self.places.retain(|_, place| Some(*place) >= oldest && oldest.is_some());
        }
        let last = self.places.entry(session).or_default();
        *last = place.max(*last);
    }

    /// The place of a read of these tables, and the last update of each before it.
    fn place(&self, session: SessionId, tables: &TableLocks) -> SequenceNumber {
        let sent = touched(tables).filter_map(|table| self.sent.get(&table).copied());
        sent.chain(self.places.get(&session).copied()).max().unwrap_or_default()
    }

    fn behind(&self, place: SequenceNumber, tables: &TableLocks) -> Versions {
        let behind = touched(tables).map(|table| {
            let before = |writers: &BTreeMap<SequenceNumber, Writer>| {
                writers.range(..=place).next_back().map(|(_, writer)| writer.version.next())
            };
            let version = self.writers.get(&table).and_then(before).unwrap_or_default();
            Assigned { table, version, mode: LockMode::Read }
        });
        behind.collect()
    }

    /// The updates up to a place that write these tables.
    fn ahead(&self, place: SequenceNumber, tables: &TableLocks) -> Vec<Ahead> {
        let mut ahead: BTreeMap<SequenceNumber, (TxnId, Vec<Assigned>)> = BTreeMap::new();
        for table in touched(tables) {
            let writers = self.writers.get(&table).into_iter();
            for (number, writer) in writers.flat_map(|w| w.range((Bound::Unbounded, Bound::Included(place))))
            {
                let done = Assigned { table, version: writer.version.next(), mode: LockMode::Read };
                ahead.entry(*number).or_insert_with(|| (writer.txn, Vec::new())).1.push(done);
            }
        }
        let ahead = ahead.into_iter();
        ahead.map(|(number, (txn, done))| Ahead { number, txn, done: done.into_iter().collect() }).collect()
    }
}

fn touched(tables: &TableLocks) -> impl Iterator<Item = TableId> {
    tables.iter().map(|(table, _)| table).chain([TableId::ALL])
}

/// A transaction's start and its operations.
impl Scheduler {
    /// Versions are given: it need not wait for anything before it wants to do something (DV 3.6).
    pub(super) fn on_versions(
        &mut self,
        id: TxnId,
        number: SequenceNumber,
        versions: Versions,
        effects: &mut Vec<Effect>,
    ) {
        self.dispatched = self.dispatched.max(number);
        let serving: Vec<ReplicaId> = self.replicas.serving().collect();
        let Some(txn) = self.txns.get_mut(&id).filter(|txn| txn.state == State::AwaitingNumber) else {
            // Cancelled meanwhile; without this, others would wait for its versions for ever.
            self.forget_versions(id, number, &versions, effects);
            for replica in serving {
                to_proxy(replica, Message::Void { number, versions: versions.clone() }, effects);
                self.let_go(replica, &versions, Picked::ALL, effects);
            }
            return;
        };
        if serving.is_empty() {
            self.forget_versions(id, number, &versions, effects);
            return self.await_replica(id);
        }
        txn.number = Some(number);
        txn.versions = versions;
        txn.at = vec![At::ABSENT; self.replicas.len()];
        for replica in serving {
            let at = &mut txn.at[usize::from(replica.0)];
            *at = At { granted: true, ..At::with_part(Part::Executes) };
        }
        txn.state = State::AwaitingClient;
        self.known.begin(id, txn.session, number, &txn.versions);
        let (pending, reads) = match &txn.pending {
            Some(pending) => (true, pending.statement.kind == StatementKind::Read),
            None => (false, false),
        };
        if txn.autocommit && !reads {
            self.send_single_update(id, effects);
        } else if pending {
            self.dispatch(id, effects);
        }
    }

    fn send_single_update(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let releases = self.releases_single_updates();
        self.record_write(id);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let (Some(number), Some(pending)) = (txn.number, &txn.pending) else { return };
        txn.state = State::Executing;
        self.known.send(number, txn.versions.iter().map(|assigned| assigned.table));
        for replica in txn.replicas(|at| at.part == Part::Executes) {
            let (locks, versions) = (txn.locks.clone(), txn.versions.clone());
            let message =
                Message::SingleUpdate { txn: id, number, op: pending.op, locks, versions, releases };
            to_proxy(replica, message, effects);
        }
    }

    /// The tag of a transaction's pending statement (DV 4.3).
    pub(super) fn tag_of_pending(&self, txn: &Txn) -> Tag {
        let Some(versioning) = self.policy.versioning() else { return Tag::default() };
        let versions = txn.versions.clone();
        let concerned = match (versioning.acquire, &txn.pending) {
            (Acquire::AtUse, Some(pending)) => versions.of(&TableLocks::of(&pending.statement.access)),
            (Acquire::AtUse, None) => Picked::NONE,
            (Acquire::AtStart, _) => Picked::ALL,
        };
        Tag { concerned: concerned.without(txn.released), versions }
    }

    /// A pending write is about to be sent.
    pub(super) fn note_sent(&mut self, id: TxnId) {
        let Some(txn) = self.txns.get(&id) else { return };
        let (Some(number), Some(pending)) = (txn.number, &txn.pending) else { return };
        let tables = TableLocks::of(&pending.statement.access);
        let written = tables.iter().filter(|(_, mode)| *mode == LockMode::Write).map(|(table, _)| table);
        self.known.send(number, written.chain([TableId::ALL]));
    }

    /// Whether a replica is ready for a transaction's pending read, as far as is known (DV 3.4, 4.3).
    pub(super) fn is_ready(&self, txn: &Txn, tag: &Tag, replica: ReplicaId) -> bool {
        txn.is_complete_at(&txn.at(replica))
            && self.replicas.get(replica).reached.admits_all(tag.versions.picked(tag.concerned))
    }

    /// No replica is ready for its pending read: it waits here until one is (DV 4.3).
    pub(super) fn await_versions(&mut self, id: TxnId, tag: &Tag) {
        for assigned in tag.versions.picked(tag.concerned) {
            let awaiting = self.known.awaiting.entry(assigned.table).or_default();
            let awaiting = awaiting.entry(assigned.version).or_default();
            if !awaiting.contains(&id) {
                awaiting.push(id);
            }
        }
    }
}

/// Tables are let go.
impl Scheduler {
    /// Whether what a transaction of several statements has written is let go when it has used it for the last time.
    fn releases_writes(&self) -> bool {
        let versioning = self.policy.versioning();
        self.engine.shows_uncommitted
            && versioning.is_some_and(|versioning| versioning.release == Release::AtLastUse)
    }

    /// Whether a single update lets go at each replica what it has written there as soon as it is done: it carries its own
    /// commit (CAS 3.1, DV 4.6).
    pub(super) fn releases_single_updates(&self) -> bool {
        self.engine.shows_uncommitted
    }

    /// The transaction has used some tables for the last time (DV 3.5, 4.5). Of these, `spared` are still in use.
    pub(super) fn release_last_used(
        &mut self,
        id: TxnId,
        last_use: &[TableId],
        spared: &TableLocks,
        effects: &mut Vec<Effect>,
    ) {
        if self.policy.versioning().is_none_or(|versioning| versioning.release == Release::AtEnd) {
            return;
        }
        let writes_too = self.releases_writes();
        let Some(txn) = self.txns.get_mut(&id).filter(|txn| txn.number.is_some() && !txn.autocommit) else {
            return;
        };
        let may_go = |assigned: &Assigned| {
            last_use.contains(&assigned.table)
                && !spared.iter().any(|(table, _)| table == assigned.table)
                && (assigned.mode == LockMode::Read || writes_too)
        };
        if txn.versions.len() > Picked::PLACES {
            return;
        }
        let tables = txn.versions.pick(may_go).without(txn.released);
        if tables.is_none() {
            return;
        }
        txn.released = txn.released.and(tables);
        for replica in txn.replicas(At::takes_part) {
            let tag = Tag { versions: txn.versions.clone(), concerned: tables };
            to_proxy(replica, Message::Release { txn: id, tag }, effects);
        }
    }

    /// Whether a statement touches a table that its transaction has let go.
    pub(super) fn touches_released(txn: &Txn, tables: &TableLocks) -> bool {
        let released = txn.versions.picked(txn.released).filter(|_| !txn.released.is_none());
        released.into_iter().any(|assigned| tables.iter().any(|(table, _)| table == assigned.table))
    }

    pub(super) fn on_released(
        &mut self,
        id: TxnId,
        replica: ReplicaId,
        tables: Picked,
        effects: &mut Vec<Effect>,
    ) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let versions = txn.versions.clone();
        let Some(at) = txn.at_mut(replica).filter(|at| at.part == Part::Executes) else { return };
        let tables = tables.without(at.released);
        at.released = at.released.and(tables);
        self.let_go(replica, &versions, tables, effects);
    }

    /// A single update is done at a replica, and has let its tables go there, if that is the rule.
    pub(super) fn on_single_update_done(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        if !self.releases_single_updates() {
            return;
        }
        let Some(txn) = self.txns.get_mut(&id).filter(|txn| txn.autocommit) else { return };
        if self.policy.order != Order::Locks {
            return self.on_released(id, replica, Picked::ALL, effects);
        }
        let locks = txn.locks.clone();
        if let Some(at) = txn.at_mut(replica).filter(|at| at.part == Part::Executes) {
            at.released = Picked::ALL;
            self.replicas.get_mut(replica).unlock(&locks);
        }
    }

    /// A transaction is over at a replica, with everything that it still held.
    pub(super) fn let_go_rest(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        let (versions, rest) = (txn.versions.clone(), Picked::ALL.without(txn.at(replica).released));
        self.let_go(replica, &versions, rest, effects);
    }

    /// New versions are there at a replica: reads that have waited for them go on.
    fn let_go(&mut self, replica: ReplicaId, versions: &Versions, tables: Picked, effects: &mut Vec<Effect>) {
        let reached = versions.picked(tables).map(|assigned| {
            let reached = &mut self.replicas.get_mut(replica).reached;
            (assigned.table, reached.version(assigned.table), reached.release(assigned))
        });
        let reached: SmallVec<[_; 4]> = reached.collect();
        for (table, before, now) in reached {
            // Whoever waits for earlier versions was not ready for other reasons, which are looked at when they are gone.
            let passed = (Bound::Excluded(before), Bound::Included(now));
            let awaiting = self.known.awaiting.get(&table).into_iter().flat_map(|w| w.range(passed));
            let awaiting: Vec<TxnId> = awaiting.flat_map(|(_, waiting)| waiting).copied().collect();
            for id in awaiting {
                let Some(txn) = self.txns.get(&id).filter(|txn| txn.state == State::AwaitingPlace) else {
                    continue;
                };
                if self.is_ready(txn, &self.tag_of_pending(txn), replica) {
                    self.place_read(id, effects);
                }
            }
        }
        self.retry_held_reads(replica, effects);
    }
}

/// Single reads (DV 4.3, 5.2, 6.1).
impl Scheduler {
    /// Behind what a single read stands, with those of the replicas where it need not wait, as far as is known.
    pub(super) fn place_among(&mut self, id: TxnId, candidates: &mut Vec<ReplicaId>) -> Option<Behind> {
        let txn = self.txns.get(&id)?;
        if let Some(loose) = self.policy.loose() {
            if let Loose::BoundedReads(bound_ns) = loose {
                let older = self.known.older(&txn.locks, bound_ns, self.now);
                candidates.retain(|replica| self.is_fresh_enough(txn, &older, *replica));
            }
            return Some(Behind::WhatIsDue);
        }
        let stale_ok_ns = txn
            .stale_ok_ns
            .filter(|_| self.policy.versioning().is_some_and(|versioning| versioning.honours_staleness));
        let place = self.known.place(txn.session, &txn.locks);
        if let Some(bound_ns) = stale_ok_ns {
            let older = self.known.older(&txn.locks, bound_ns, self.now);
            let fresh = |replica: &ReplicaId| self.replicas.get(*replica).reached.admits_all(&older);
            if candidates.iter().any(fresh) {
                candidates.retain(fresh);
                return Some(Behind::WhatHasBegun(self.known.ahead(place, &txn.locks)));
            }
        }
        let behind = self.known.behind(place, &txn.locks);
        let ready = |replica: &ReplicaId| self.replicas.get(*replica).reached.admits_all(behind.iter());
        super::statements::narrow(candidates, ready);
        let session = txn.session;
        self.known.take_place(session, place);
        Some(Behind::Versions(behind))
    }

    /// Level 2: the replica has what the session has written, and of what others have what is older (DV 5.1).
    fn is_fresh_enough(&self, txn: &Txn, older: &[Assigned], replica: ReplicaId) -> bool {
        let own = self.sessions.get(&txn.session).into_iter().flatten();
        let mut own = own.filter_map(|update| self.txns.get(update));
        own.all(|update| !update.at(replica).takes_part())
            && self.replicas.get(replica).reached.admits_all(older)
    }

    /// A replica has come further: reads that none could serve look again.
    pub(super) fn retry_held_reads(&mut self, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(Loose::BoundedReads(bound_ns)) = self.policy.loose() else { return };
        for id in std::mem::take(&mut self.known.held_reads) {
            let Some(txn) = self.txns.get(&id).filter(|txn| txn.state == State::AwaitingPlace) else {
                continue;
            };
            let older = self.known.older(&txn.locks, bound_ns, self.now);
            if self.is_fresh_enough(txn, &older, replica) {
                self.place_single_read(id, effects);
            } else {
                self.known.held_reads.push(id);
            }
        }
    }
}
