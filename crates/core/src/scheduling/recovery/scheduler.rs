//! A scheduler among several: what it replicates, what it keeps, what it sends again (5.2, 5.3). Taking over from others is in
//! `take_over.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Place;
use crate::ids::{Epoch, NodeId, ReplicaId, SequenceNumber, TxnId};
use crate::table_queues::TableLocks;

use super::table_logs::TableLogs;
use super::take_over::TakingOver;
use super::{End, Message, Output, Query, Record, Standing, send, send_to_all};

/// Invariants:
/// - a database hears of a number only when all schedulers have, so that none is given again that it knows;
/// - a database is told to commit only what all schedulers have recorded and one has on disk;
/// - a record is dropped only when it is in the checkpoint of every database.
#[derive(Debug)]
pub struct Scheduler {
    pub(super) node: NodeId,
    /// The sequencer whose numbers count.
    epoch: Epoch,
    /// It does not give any yet.
    awaiting_epoch: bool,
    /// The last number that was heard of.
    pub(super) last: SequenceNumber,
    /// The other schedulers.
    pub(super) peers: BTreeSet<NodeId>,
    pub(super) failed: BTreeSet<NodeId>,
    /// None when it knows what the others know.
    joining: Option<Joining>,
    replicas: BTreeMap<ReplicaId, Replica>,
    /// Up to here every transaction is in the checkpoint of every database.
    pub(super) floor: SequenceNumber,
    pub(super) records: BTreeMap<SequenceNumber, Record>,
    /// What of them is decided, by table.
    logs: TableLogs,
    /// Its own transactions.
    own: BTreeMap<TxnId, Own>,
    numbers: BTreeMap<SequenceNumber, TxnId>,
    pub(super) taking_over: Option<TakingOver>,
}

#[derive(Debug)]
struct Joining {
    /// Whose records are still to come.
    missing: BTreeSet<NodeId>,
    /// Whether one who answered has joined itself. One who has not may know nothing.
    complete: bool,
}

#[derive(Debug)]
struct Replica {
    state: ReplicaState,
    checkpoint: SequenceNumber,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReplicaState {
    Down,
    /// It is sent what begins, and has no contents yet.
    AwaitingSnapshot,
    Up,
}

#[derive(Debug)]
struct Own {
    number: SequenceNumber,
    locks: TableLocks,
    writes: Vec<Query>,
    state: State,
    wish: Option<Wish>,
}

/// What the client has asked for while something else was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Commit,
    Abort,
}

#[derive(PartialEq, Debug)]
enum State {
    AwaitingNumber,
    AwaitingStarts(BTreeSet<NodeId>),
    /// Databases know of it.
    Open,
    AwaitingEnds(BTreeSet<NodeId>),
    AwaitingDisk,
    /// Decided; the first database to have committed answers the client.
    AwaitingDatabase,
}

impl Scheduler {
    /// One of several that begin together, before databases that are empty.
    #[must_use]
    pub fn new(
        node: NodeId,
        all: impl IntoIterator<Item = NodeId>,
        replicas: impl IntoIterator<Item = ReplicaId>,
    ) -> Scheduler {
        let up = |replica| (replica, Replica { state: ReplicaState::Up, checkpoint: SequenceNumber(0) });
        Scheduler {
            node,
            epoch: Epoch(1),
            awaiting_epoch: false,
            last: SequenceNumber(0),
            peers: all.into_iter().filter(|other| *other != node).collect(),
            failed: BTreeSet::new(),
            joining: None,
            replicas: replicas.into_iter().map(up).collect(),
            floor: SequenceNumber(0),
            records: BTreeMap::new(),
            logs: TableLogs::default(),
            own: BTreeMap::new(),
            numbers: BTreeMap::new(),
            taking_over: None,
        }
    }

    /// One that joins those that are there (5.3.1). It takes transactions when [`Self::has_joined`].
    #[must_use]
    pub fn join(
        node: NodeId,
        others: impl IntoIterator<Item = NodeId>,
        replicas: impl IntoIterator<Item = ReplicaId>,
        outputs: &mut Vec<Output>,
    ) -> Scheduler {
        let mut scheduler = Scheduler::new(node, others, replicas);
        // The sequencer says which numbers count when it hears of it.
        scheduler.awaiting_epoch = true;
        scheduler.ask_for_copies(outputs);
        scheduler
    }

    /// Whether it knows what the others know.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        self.joining.is_none()
    }

    fn ask_for_copies(&mut self, outputs: &mut Vec<Output>) {
        self.joining = Some(Joining { missing: self.peers.clone(), complete: false });
        send_to_all(&self.peers, &Message::Joining, outputs);
    }

    /// How many transactions it keeps in memory.
    #[must_use]
    pub fn records_kept(&self) -> usize {
        self.records.len()
    }

    /// A client begins a transaction that locks these tables.
    pub fn begin(&mut self, txn: TxnId, locks: TableLocks, outputs: &mut Vec<Output>) {
        let (number, state) = (SequenceNumber(0), State::AwaitingNumber);
        self.own.insert(txn, Own { number, locks, writes: Vec::new(), state, wish: None });
        if !self.awaiting_epoch {
            self.ask_for_number(txn, outputs);
        }
    }

    fn ask_for_number(&self, txn: TxnId, outputs: &mut Vec<Output>) {
        let request = Message::NumberRequest { txn, epoch: self.epoch, floor: self.floor };
        send(Place::Sequencer, request, outputs);
    }

    /// A client writes.
    pub fn write(&mut self, txn: TxnId, query: Query, outputs: &mut Vec<Output>) {
        let Some(own) = self.own.get_mut(&txn) else { return };
        own.writes.push(query);
        if own.state == State::Open {
            let (number, index) = (own.number, own.writes.len() - 1);
            self.tell_proxies(&Message::Write { number, index, query }, outputs);
        }
    }

    /// A client wants it committed.
    pub fn commit(&mut self, txn: TxnId, outputs: &mut Vec<Output>) {
        self.wish(txn, Wish::Commit, outputs);
    }

    /// A client wants it undone. It is answered at once.
    pub fn abort(&mut self, txn: TxnId, outputs: &mut Vec<Output>) {
        self.wish(txn, Wish::Abort, outputs);
    }

    fn wish(&mut self, txn: TxnId, wish: Wish, outputs: &mut Vec<Output>) {
        let Some(own) = self.own.get_mut(&txn) else { return };
        own.wish.get_or_insert(wish);
        if own.state == State::Open {
            self.end(txn, outputs);
        }
    }

    /// Its disk has the writes of this.
    pub fn logged(&mut self, number: SequenceNumber, outputs: &mut Vec<Output>) {
        if !self.own_logged(number, outputs) {
            self.taken_over_logged(number, outputs);
        }
    }

    /// Another scheduler has failed. Nothing that it has sent counts from now on (open 9).
    pub fn scheduler_failed(&mut self, node: NodeId, outputs: &mut Vec<Output>) {
        self.failed.insert(node);
        self.peers.remove(&node);
        if self.joining.as_ref().is_some_and(|joining| joining.missing.contains(&node)) {
            self.ask_for_copies(outputs);
        }
        let waiting: Vec<TxnId> = self.own.keys().copied().collect();
        for txn in waiting {
            self.acknowledged(txn, node, outputs);
        }
        self.take_over_if_first(outputs);
    }

    fn take_over_if_first(&mut self, outputs: &mut Vec<Output>) {
        let is_first = self.peers.iter().all(|peer| self.node < *peer);
        if is_first && self.has_joined() && !self.failed.is_empty() {
            self.take_over(outputs);
        }
    }

    /// A database has failed.
    pub fn replica_failed(&mut self, replica: ReplicaId) {
        if let Some(replica) = self.replicas.get_mut(&replica) {
            replica.state = ReplicaState::Down;
        }
    }

    /// Somebody has said something.
    pub fn handle(&mut self, from: Place, message: Message, outputs: &mut Vec<Output>) {
        match from {
            Place::Sequencer => self.on_sequencer(message, outputs),
            Place::Proxy(replica) => self.on_proxy(replica, message, outputs),
            Place::Scheduler(node) if !self.failed.contains(&node) => self.on_peer(node, message, outputs),
            // From one that has failed, or from a role that is not here.
            _ => {}
        }
    }

    fn on_peer(&mut self, from: NodeId, message: Message, outputs: &mut Vec<Output>) {
        let reply = |message, outputs: &mut Vec<Output>| send(Place::Scheduler(from), message, outputs);
        match message {
            Message::ReplicateStart { number } => {
                self.record(number, from, None);
                reply(Message::StartRecorded { number }, outputs);
            }
            Message::ReplicateEnd { number, end } => {
                let committed = end != End::Aborted;
                self.record(number, from, Some(end));
                if committed {
                    reply(Message::EndRecorded { number }, outputs);
                } else {
                    self.decide(number);
                }
            }
            Message::StartRecorded { number } | Message::EndRecorded { number } => {
                if let Some(txn) = self.numbers.get(&number) {
                    self.acknowledged(*txn, from, outputs);
                }
            }
            Message::Decided { number } => self.decide(number),
            Message::TakeOver { round, failed } => {
                self.failed.extend(failed.iter().copied());
                let theirs = self.records.iter().filter(|(_, record)| failed.contains(&record.coordinator));
                let records = theirs.map(|(number, record)| (*number, record.end.clone())).collect();
                reply(Message::Held { round, records }, outputs);
            }
            Message::Held { round, records } => self.on_held(from, round, records, outputs),
            Message::Outcome { round, ends } => {
                for (number, end) in ends {
                    self.record(number, from, Some(end));
                }
                reply(Message::OutcomeRecorded { round }, outputs);
            }
            Message::OutcomeRecorded { round } => self.on_outcome_recorded(from, round, outputs),
            Message::Joining => {
                self.peers.insert(from);
                let records = self.records.iter().map(|(number, record)| (*number, record.clone())).collect();
                let (epoch, complete) = (self.epoch, self.has_joined());
                let (floor, last) = (self.floor, self.last);
                let failed = self.failed.iter().copied().collect();
                reply(Message::Copy { epoch, complete, failed, floor, last, records }, outputs);
            }
            Message::Copy { epoch, complete, failed, floor, last, records } => {
                self.failed.extend(failed);
                self.last = self.last.max(last);
                self.on_copy(epoch, floor, records);
                self.copied_from(from, complete, outputs);
            }
            _ => {}
        }
    }

    fn on_copy(&mut self, epoch: Epoch, floor: SequenceNumber, records: Vec<(SequenceNumber, Record)>) {
        self.epoch = self.epoch.max(epoch);
        for (number, record) in records {
            self.record(number, record.coordinator, record.end);
            if record.decided {
                self.decide(number);
            }
        }
        self.forget(floor);
    }

    fn copied_from(&mut self, from: NodeId, complete: bool, outputs: &mut Vec<Output>) {
        let Some(joining) = &mut self.joining else { return };
        joining.missing.remove(&from);
        joining.complete |= complete;
        if joining.missing.is_empty() && joining.complete {
            self.joining = None;
            // Those before it by name may have failed before they were through.
            self.take_over_if_first(outputs);
        }
    }

    /// Notes what is known of a transaction. What is decided does not change any more.
    pub(super) fn record(&mut self, number: SequenceNumber, coordinator: NodeId, end: Option<End>) {
        self.last = self.last.max(number);
        if number <= self.floor {
            return;
        }
        let record = Record { coordinator, end: None, decided: false };
        let record = self.records.entry(number).or_insert(record);
        if !record.decided {
            record.coordinator = coordinator;
            record.end = end.or(record.end.take());
        }
    }

    pub(super) fn decide(&mut self, number: SequenceNumber) {
        let Some(record) = self.records.get_mut(&number) else { return };
        let Some(end) = &record.end else { return };
        record.decided = true;
        self.logs.insert(number, end.writes());
    }
}

/// Its own transactions (5.2, 5.3).
impl Scheduler {
    fn on_sequencer(&mut self, message: Message, outputs: &mut Vec<Output>) {
        match message {
            Message::Number { txn, number, epoch } if epoch >= self.epoch => {
                self.epoch = epoch;
                self.on_number(txn, number, outputs);
            }
            Message::KnownRequest { epoch } if epoch >= self.epoch => {
                self.epoch = epoch;
                self.awaiting_epoch = true;
                let numbers =
                    self.records.iter().map(|(number, record)| (*number, record.coordinator)).collect();
                let (floor, last) = (self.floor, self.last);
                send(Place::Sequencer, Message::Known { epoch, floor, last, numbers }, outputs);
            }
            Message::NewEpoch { epoch, last } if epoch >= self.epoch => {
                self.epoch = epoch;
                self.last = self.last.max(last);
                send(Place::Sequencer, Message::EpochRecorded { epoch }, outputs);
                if std::mem::take(&mut self.awaiting_epoch) {
                    let waiting = self.own.iter().filter(|(_, own)| own.state == State::AwaitingNumber);
                    for (txn, _) in waiting {
                        self.ask_for_number(*txn, outputs);
                    }
                }
                self.ask_sequencer_again(outputs);
            }
            Message::Void { epoch, numbers } if epoch >= self.epoch => {
                for number in numbers {
                    self.record(number, self.node, Some(End::Aborted));
                    self.decide(number);
                }
            }
            Message::Given { epoch, round, numbers } if epoch >= self.epoch => {
                self.on_given(round, numbers, outputs)
            }
            // Of a sequencer that has failed.
            _ => {}
        }
    }

    fn on_number(&mut self, txn: TxnId, number: SequenceNumber, outputs: &mut Vec<Output>) {
        let Some(own) = self.own.get_mut(&txn) else { return };
        own.number = number;
        own.state = State::AwaitingStarts(self.peers.clone());
        self.numbers.insert(number, txn);
        self.record(number, self.node, None);
        send_to_all(&self.peers, &Message::ReplicateStart { number }, outputs);
        self.acknowledged(txn, self.node, outputs);
    }

    /// One scheduler less to wait for.
    fn acknowledged(&mut self, txn: TxnId, by: NodeId, outputs: &mut Vec<Output>) {
        let Some(own) = self.own.get_mut(&txn) else { return };
        let number = own.number;
        match &mut own.state {
            State::AwaitingStarts(missing) => {
                missing.remove(&by);
                if missing.is_empty() {
                    own.state = State::Open;
                    let wish = own.wish;
                    self.open_at_proxies(txn, outputs);
                    if wish.is_some() {
                        self.end(txn, outputs);
                    }
                }
            }
            State::AwaitingEnds(missing) => {
                missing.remove(&by);
                if missing.is_empty() {
                    own.state = State::AwaitingDisk;
                    if own.writes.is_empty() {
                        // What has only read is not logged (5.3).
                        self.own_logged(number, outputs);
                    } else {
                        outputs.push(Output::Log { number, writes: own.writes.clone() });
                    }
                }
            }
            _ => {}
        }
    }

    fn open_at_proxies(&self, txn: TxnId, outputs: &mut Vec<Output>) {
        for (replica, _) in self.replicas.iter().filter(|(_, replica)| replica.state != ReplicaState::Down) {
            self.send_open(txn, *replica, outputs);
        }
    }

    fn send_open(&self, txn: TxnId, replica: ReplicaId, outputs: &mut Vec<Output>) {
        let Some(Own { number, locks, writes, .. }) = self.own.get(&txn) else { return };
        let to = Place::Proxy(replica);
        send(to, Message::Lock { number: *number, locks: locks.clone() }, outputs);
        for (index, query) in writes.iter().enumerate() {
            send(to, Message::Write { number: *number, index, query: *query }, outputs);
        }
    }

    fn end(&mut self, txn: TxnId, outputs: &mut Vec<Output>) {
        let Some(own) = self.own.get_mut(&txn) else { return };
        let number = own.number;
        if own.wish == Some(Wish::Abort) {
            let end = End::Aborted;
            self.record(number, self.node, Some(end.clone()));
            self.decide(number);
            send_to_all(&self.peers, &Message::ReplicateEnd { number, end }, outputs);
            self.tell_proxies(&Message::Abort { number }, outputs);
            return self.answer(txn, false, outputs);
        }
        own.state = State::AwaitingEnds(self.peers.clone());
        let end = End::Committed { locks: own.locks.clone(), writes: own.writes.clone() };
        self.record(number, self.node, Some(end.clone()));
        send_to_all(&self.peers, &Message::ReplicateEnd { number, end }, outputs);
        self.acknowledged(txn, self.node, outputs);
    }

    /// Returns whether it was one of its own.
    fn own_logged(&mut self, number: SequenceNumber, outputs: &mut Vec<Output>) -> bool {
        let Some(txn) = self.numbers.get(&number).copied() else { return false };
        let Some(own) = self.own.get_mut(&txn).filter(|own| own.state == State::AwaitingDisk) else {
            return false;
        };
        own.state = State::AwaitingDatabase;
        let writes = own.writes.len();
        self.decide(number);
        send_to_all(&self.peers, &Message::Decided { number }, outputs);
        self.tell_proxies(&Message::Commit { number, writes }, outputs);
        if writes == 0 {
            self.answer(txn, true, outputs);
        }
        true
    }

    fn answer(&mut self, txn: TxnId, committed: bool, outputs: &mut Vec<Output>) {
        if let Some(own) = self.own.remove(&txn) {
            self.numbers.remove(&own.number);
        }
        outputs.push(Output::Answer { txn, committed });
    }

    pub(super) fn tell_proxies(&self, message: &Message, outputs: &mut Vec<Output>) {
        for (replica, _) in self.replicas.iter().filter(|(_, replica)| replica.state != ReplicaState::Down) {
            send(Place::Proxy(*replica), message.clone(), outputs);
        }
    }
}

/// Databases that say where they stand (5.3.1 to 5.3.3).
impl Scheduler {
    fn on_proxy(&mut self, replica: ReplicaId, message: Message, outputs: &mut Vec<Output>) {
        let to = Place::Proxy(replica);
        match message {
            Message::Reached(standing) => self.on_standing(replica, &standing, outputs),
            Message::Missing(standing) => {
                self.on_standing(replica, &standing, outputs);
                self.roll_forward(replica, &standing, outputs);
            }
            Message::Rejoin => {
                if let Some(replica) = self.replicas.get_mut(&replica) {
                    replica.state = ReplicaState::AwaitingSnapshot;
                    // It may get a snapshot that is older than its checkpoint was: nothing is dropped until it is known (open 8).
                    replica.checkpoint = self.floor;
                }
                send(to, Message::Admitted, outputs);
            }
            Message::SnapshotRequest => {
                let up = self.replicas.iter().filter(|(_, other)| other.state == ReplicaState::Up);
                let donor = up.map(|(other, _)| *other).find(|other| *other != replica);
                send(to, Message::SnapshotFrom { donor }, outputs);
            }
            _ => {}
        }
    }

    fn on_standing(&mut self, replica: ReplicaId, standing: &Standing, outputs: &mut Vec<Output>) {
        let Some(replica) = self.replicas.get_mut(&replica) else { return };
        replica.state = ReplicaState::Up;
        replica.checkpoint = replica.checkpoint.max(standing.checkpoint);
        let waiting = self.own.iter().filter(|(_, own)| own.state == State::AwaitingDatabase);
        let committed = waiting.filter(|(_, own)| standing.contains(own.number, &own.writes));
        let answered: Vec<TxnId> = committed.map(|(txn, _)| *txn).collect();
        for txn in answered {
            self.answer(txn, true, outputs);
        }
        let floor = self.replicas.values().map(|replica| replica.checkpoint).min().unwrap_or_default();
        self.forget(floor);
    }

    fn forget(&mut self, floor: SequenceNumber) {
        if floor > self.floor {
            self.floor = floor;
            self.records = self.records.split_off(&floor.next());
            self.logs.forget(floor);
        }
    }

    /// Sends a database what it lacks (5.3.1, 5.3.2): what is decided, and of its own transactions what is open. Of those of others
    /// it knows nothing more than that they are; the proxy will ask their coordinator, too.
    fn roll_forward(&self, replica: ReplicaId, standing: &Standing, outputs: &mut Vec<Output>) {
        let to = Place::Proxy(replica);
        let missing = self.logs.missing(&standing.tables);
        for (number, record) in &self.records {
            let number = *number;
            let waited_for = number > standing.processed || standing.open.contains(&number);
            match &record.end {
                Some(End::Committed { locks, writes }) if record.decided && missing.contains(&number) => {
                    let (locks, writes) = (locks.clone(), writes.clone());
                    send(to, Message::Replay { number, locks, writes }, outputs);
                }
                _ if !waited_for => {}
                Some(_) if record.decided => send(to, Message::Abort { number }, outputs),
                _ => {
                    if let Some(txn) = self.numbers.get(&number) {
                        let told = self.own.get(txn).is_some_and(|own| own.is_at_proxies());
                        if told {
                            self.send_open(*txn, replica, outputs);
                        }
                    }
                }
            }
        }
    }
}

impl Own {
    fn is_at_proxies(&self) -> bool {
        !matches!(self.state, State::AwaitingNumber | State::AwaitingStarts(_))
    }
}
