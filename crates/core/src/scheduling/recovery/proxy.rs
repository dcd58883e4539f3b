//! The proxy before one database: lets it execute in the order of numbers (4.3), knows what it contains, and asks for what it misses
//! (5.3.1 to 5.3.3).

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Place;
use crate::ids::{NodeId, SequenceNumber};
use crate::item::TableId;
use crate::table_queues::{TableLocks, TableQueues};

use super::{Message, Output, Position, Query, Standing, send, send_to_all};

/// Invariants:
/// - every number up to `processed` has ended at the database, or stands in the lock queues;
/// - `tables` says exactly what is committed there ([`Standing::contains`]).
#[derive(Debug)]
pub struct Proxy {
    schedulers: BTreeSet<NodeId>,
    state: State,
    processed: SequenceNumber,
    tables: BTreeMap<TableId, SequenceNumber>,
    /// Up to here everything has ended in the last checkpoint.
    checkpoint: SequenceNumber,
    /// What came before its predecessors.
    out_of_order: BTreeMap<SequenceNumber, OutOfOrder>,
    queues: TableQueues<SequenceNumber>,
    txns: BTreeMap<SequenceNumber, Txn>,
    /// Nothing is given to the database until the checkpoint is made.
    still: bool,
    /// At the last time-out: behind which number one was missing, and the first transaction of which there could be more.
    missed: (Option<SequenceNumber>, Option<SequenceNumber>),
    /// Whom to ask next.
    turn: usize,
}

#[derive(PartialEq, Debug)]
enum State {
    Serving,
    AwaitingAdmission(BTreeSet<NodeId>),
    AwaitingSnapshot,
}

#[derive(Debug)]
enum OutOfOrder {
    Txn(Txn),
    Void,
}

#[derive(Default, Debug)]
struct Txn {
    locks: TableLocks,
    granted: bool,
    writes: Vec<Query>,
    /// How many it has, when that is known: then it is decided.
    decided: Option<usize>,
    /// How many of them the database was given.
    given: usize,
    /// The database has not answered yet.
    executing: bool,
    committing: bool,
    /// What is open at the database is to be rolled back, and these executed in its place.
    replay: Option<Vec<Query>>,
    abort: bool,
}

impl Txn {
    /// It needs nothing more from schedulers.
    fn is_complete(&self) -> bool {
        self.decided == Some(self.writes.len()) || self.replay.is_some() || self.abort
    }
}

impl Proxy {
    /// Before a database that is empty, as all others are.
    #[must_use]
    pub fn new(schedulers: impl IntoIterator<Item = NodeId>) -> Proxy {
        Proxy {
            schedulers: schedulers.into_iter().collect(),
            state: State::Serving,
            processed: SequenceNumber(0),
            tables: BTreeMap::new(),
            checkpoint: SequenceNumber(0),
            out_of_order: BTreeMap::new(),
            queues: TableQueues::default(),
            txns: BTreeMap::new(),
            still: false,
            missed: (None, None),
            turn: 0,
        }
    }

    /// Before a database that has come back. The proxy has forgotten everything (5.3); of the database's contents only checkpoints
    /// are believed.
    #[must_use]
    pub fn rejoin(schedulers: impl IntoIterator<Item = NodeId>, outputs: &mut Vec<Output>) -> Proxy {
        let mut proxy = Proxy::new(schedulers);
        proxy.state = State::AwaitingAdmission(proxy.schedulers.clone());
        send_to_all(&proxy.schedulers, &Message::Rejoin, outputs);
        proxy
    }

    /// The snapshot is installed; its own last checkpoint is this one from now on.
    pub fn installed(&mut self, position: Position, outputs: &mut Vec<Output>) {
        self.state = State::Serving;
        self.processed = position.ended;
        self.checkpoint = position.ended;
        self.tables = position.tables;
        send_to_all(&self.schedulers, &Message::Reached(self.standing()), outputs);
        self.ask(outputs);
    }

    /// A scheduler has failed.
    pub fn scheduler_failed(&mut self, node: NodeId, outputs: &mut Vec<Output>) {
        self.schedulers.remove(&node);
        if let State::AwaitingAdmission(missing) = &mut self.state {
            missing.remove(&node);
            self.admitted(outputs);
        }
    }

    /// A scheduler has come.
    pub fn scheduler_joined(&mut self, node: NodeId, outputs: &mut Vec<Output>) {
        self.schedulers.insert(node);
        if self.state != State::Serving {
            if let State::AwaitingAdmission(missing) = &mut self.state {
                missing.insert(node);
            }
            send(Place::Scheduler(node), Message::Rejoin, outputs);
        }
    }

    /// The time-out of 5.3.2: asks if something is missing that was missing the last time.
    pub fn on_timeout(&mut self, outputs: &mut Vec<Output>) {
        let gap = (!self.out_of_order.is_empty()).then_some(self.processed);
        let mut incomplete = self.txns.iter().filter(|(_, txn)| !txn.is_complete());
        let incomplete = incomplete.next().map(|(number, _)| *number);
        // A gap in the numbers, or a transaction of which something may be lost (open 6).
        let stands =
            gap.is_some() && gap == self.missed.0 || incomplete.is_some() && incomplete == self.missed.1;
        self.missed = (gap, incomplete);
        match &self.state {
            State::AwaitingAdmission(missing) => send_to_all(missing, &Message::Rejoin, outputs),
            State::AwaitingSnapshot => self.ask_for_snapshot(outputs),
            State::Serving if stands => self.ask(outputs),
            State::Serving => {}
        }
    }

    fn ask(&mut self, outputs: &mut Vec<Output>) {
        self.turn += 1;
        let at = self.turn % self.schedulers.len().max(1);
        if let Some(node) = self.schedulers.iter().nth(at) {
            send(Place::Scheduler(*node), Message::Missing(self.standing()), outputs);
        }
    }

    fn standing(&self) -> Standing {
        Standing {
            tables: self.tables.clone(),
            processed: self.processed,
            open: self.txns.keys().copied().collect(),
            checkpoint: self.checkpoint,
        }
    }

    /// What its database contains, as far as that has answered.
    #[must_use]
    pub fn position(&self) -> Position {
        // Before the first number that is open everything has ended.
        let first_open = self.txns.keys().next().map(|number| SequenceNumber(number.0 - 1));
        Position { ended: first_open.unwrap_or(self.processed), tables: self.tables.clone() }
    }

    /// The driver wants a checkpoint, for itself or for a database that comes back (5.3.3).
    pub fn begin_checkpoint(&mut self, outputs: &mut Vec<Output>) {
        if self.state == State::Serving && !self.still {
            self.still = true;
            self.stand_still(outputs);
        }
    }

    fn stand_still(&self, outputs: &mut Vec<Output>) {
        if self.still && !self.txns.values().any(|txn| txn.executing) {
            outputs.push(Output::Checkpoint { position: self.position() });
        }
    }

    /// The checkpoint is on disk.
    pub fn checkpointed(&mut self, position: &Position, outputs: &mut Vec<Output>) {
        self.still = false;
        self.checkpoint = position.ended;
        send_to_all(&self.schedulers, &Message::Reached(self.standing()), outputs);
        let txns: Vec<SequenceNumber> = self.txns.keys().copied().collect();
        for number in txns {
            self.advance(number, outputs);
        }
    }

    /// A scheduler has said something.
    pub fn handle(&mut self, from: NodeId, message: Message, outputs: &mut Vec<Output>) {
        if !self.schedulers.contains(&from) {
            return;
        }
        match message {
            Message::Admitted => {
                if let State::AwaitingAdmission(missing) = &mut self.state {
                    missing.remove(&from);
                    self.admitted(outputs);
                }
                return;
            }
            Message::SnapshotFrom { donor } => {
                if self.state == State::AwaitingSnapshot {
                    outputs.push(Output::Install { donor });
                }
                return;
            }
            _ if self.state != State::Serving => return,
            _ => {}
        }
        match message {
            Message::Lock { number, locks } if self.is_new(number) => {
                let txn = Txn { locks, ..Txn::default() };
                self.out_of_order.insert(number, OutOfOrder::Txn(txn));
                self.process(outputs);
            }
            Message::Write { number, index, query } => {
                if let Some(txn) = self.txn(number).filter(|txn| txn.writes.len() == index) {
                    txn.writes.push(query);
                    self.advance(number, outputs);
                }
            }
            Message::Commit { number, writes } => {
                if let Some(txn) = self.txn(number) {
                    txn.decided = Some(writes);
                    self.advance(number, outputs);
                }
            }
            Message::Abort { number } => self.on_abort(number, outputs),
            Message::Replay { number, locks, writes } => self.on_replay(number, locks, writes, outputs),
            Message::StandingRequest => {
                send(Place::Scheduler(from), Message::Missing(self.standing()), outputs);
            }
            _ => {}
        }
    }

    fn admitted(&mut self, outputs: &mut Vec<Output>) {
        if matches!(&self.state, State::AwaitingAdmission(missing) if missing.is_empty()) {
            self.state = State::AwaitingSnapshot;
            self.ask_for_snapshot(outputs);
        }
    }

    fn ask_for_snapshot(&self, outputs: &mut Vec<Output>) {
        if let Some(node) = self.schedulers.first() {
            send(Place::Scheduler(*node), Message::SnapshotRequest, outputs);
        }
    }
}

/// Transactions.
impl Proxy {
    fn is_new(&self, number: SequenceNumber) -> bool {
        number > self.processed && !self.out_of_order.contains_key(&number)
    }

    fn txn(&mut self, number: SequenceNumber) -> Option<&mut Txn> {
        match self.out_of_order.get_mut(&number) {
            Some(OutOfOrder::Txn(txn)) => Some(txn),
            Some(OutOfOrder::Void) => None,
            None => self.txns.get_mut(&number),
        }
    }

    /// Takes up what has no gap before it.
    fn process(&mut self, outputs: &mut Vec<Output>) {
        while let Some(next) = self.out_of_order.remove(&self.processed.next()) {
            self.processed = self.processed.next();
            let number = self.processed;
            if let OutOfOrder::Txn(mut txn) = next {
                txn.granted = self.queues.request(number, txn.locks.clone());
                self.txns.insert(number, txn);
                self.advance(number, outputs);
            }
        }
    }

    fn on_abort(&mut self, number: SequenceNumber, outputs: &mut Vec<Output>) {
        if number > self.processed {
            self.out_of_order.insert(number, OutOfOrder::Void);
            self.process(outputs);
        } else if let Some(txn) = self.txns.get_mut(&number) {
            txn.abort = true;
            self.advance(number, outputs);
        }
    }

    /// Keeps the transaction's place in the queues: whoever stands behind it must not execute before it (open 5).
    fn on_replay(
        &mut self,
        number: SequenceNumber,
        locks: TableLocks,
        writes: Vec<Query>,
        outputs: &mut Vec<Output>,
    ) {
        if number > self.processed {
            let txn = Txn { locks, decided: Some(writes.len()), writes, ..Txn::default() };
            self.out_of_order.insert(number, OutOfOrder::Txn(txn));
            self.process(outputs);
        } else if let Some(txn) = self.txns.get_mut(&number).filter(|txn| !txn.is_complete()) {
            txn.replay = Some(writes);
            self.advance(number, outputs);
        }
    }

    /// Gives the database the transaction's next operation, if it is its turn.
    fn advance(&mut self, number: SequenceNumber, outputs: &mut Vec<Output>) {
        let Some(txn) = self.txns.get_mut(&number) else { return };
        if txn.executing || self.still {
            return;
        }
        if txn.abort {
            if txn.given > 0 {
                outputs.push(Output::Rollback { number });
            }
            return self.end(number, outputs);
        }
        if let Some(writes) = txn.replay.take() {
            if txn.given > 0 {
                outputs.push(Output::Rollback { number });
            }
            txn.given = 0;
            txn.decided = Some(writes.len());
            txn.writes = writes;
        }
        if !txn.granted {
            return;
        }
        if let Some(query) = txn.writes.get(txn.given) {
            txn.given += 1;
            txn.executing = true;
            outputs.push(Output::Execute { number, query: *query });
        } else if txn.decided == Some(txn.given) {
            if txn.given == 0 {
                return self.end(number, outputs);
            }
            txn.executing = true;
            txn.committing = true;
            outputs.push(Output::Commit { number });
        }
    }

    /// The database has done what it was given.
    pub fn answered(&mut self, number: SequenceNumber, outputs: &mut Vec<Output>) {
        let Some(txn) = self.txns.get_mut(&number) else { return };
        txn.executing = false;
        if txn.committing {
            let written = txn.writes.iter().map(|query| (query.table, number));
            self.tables.extend(written);
            self.end(number, outputs);
            send_to_all(&self.schedulers, &Message::Reached(self.standing()), outputs);
        } else {
            self.advance(number, outputs);
        }
        self.stand_still(outputs);
    }

    fn end(&mut self, number: SequenceNumber, outputs: &mut Vec<Output>) {
        self.txns.remove(&number);
        for granted in self.queues.release(number) {
            if let Some(txn) = self.txns.get_mut(&granted) {
                txn.granted = true;
            }
            self.advance(granted, outputs);
        }
    }
}
