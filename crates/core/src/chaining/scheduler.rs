//! The scheduler: puts each update behind those that it conflicts with, and finds a worker for it (II.B).

use std::collections::VecDeque;

use crate::conflict_index::ConflictIndex;
use crate::effect::Effect;
use crate::event::{Begin, Place, Statement, StatementKind};
use crate::ids::{ReplicaId, TxnId};
use crate::item::{Access, Item, Mode};
use crate::map::HashMap;
use crate::message::Message as AnyMessage;
use crate::workers::{Everywhere, Numbered, Schedules, Vector};

use super::{Message, Order, send};

/// Builds the chains.
#[derive(Debug)]
pub struct Scheduler {
    order: Order,
    conflicts: ConflictIndex,
    /// Updates that some worker may not contain.
    updates: HashMap<TxnId, Update>,
    workers: Vec<Chain>,
    /// Workers with nothing to do, the one that was busy last at the end.
    idle: Vec<ReplicaId>,
    /// What could run and finds no worker, in the order in which it came.
    awaiting_worker: VecDeque<TxnId>,
    /// Where workers say what they contain; else whoever knows says what is to be forgotten.
    everywhere: Option<Everywhere>,
}

#[derive(Debug)]
struct Update {
    predecessors: Vec<TxnId>,
    /// How many it waits for: that they have a worker, and then, if it is not put behind one of them there, that they are over.
    awaited: usize,
    /// Those that wait until this one has a worker, and then those that wait until it is over.
    followers: Vec<TxnId>,
    numbered: Option<Numbered>,
    finished: bool,
}

/// What a worker was given and has not finished.
#[derive(Debug)]
struct Chain {
    unfinished: u64,
    /// The last update.
    last: Option<TxnId>,
    given: u64,
    /// It is given nothing while it does not serve.
    serves: bool,
}

impl Scheduler {
    pub(super) fn new(order: Order, workers: usize) -> Scheduler {
        let chain = || Chain { unfinished: 0, last: None, given: 0, serves: true };
        Scheduler {
            order,
            conflicts: ConflictIndex::default(),
            updates: HashMap::default(),
            workers: (0..workers).map(|_| chain()).collect(),
            idle: (0..workers as u16).rev().map(ReplicaId).collect(),
            awaiting_worker: VecDeque::new(),
            everywhere: Some(Everywhere::new(workers)),
        }
    }

    /// The same, where the order of the log says who contains what.
    pub(super) fn in_order(order: Order, workers: usize) -> Scheduler {
        Scheduler { everywhere: None, ..Scheduler::new(order, workers) }
    }

    /// An update arrives, which may do this.
    pub(super) fn on_update(&mut self, txn: TxnId, accesses: &[Access], effects: &mut Vec<Effect>) {
        let everything = [Access::new(Item::everything(), Mode::Exclusive)];
        let accesses = if self.order == Order::OfAll { &everything[..] } else { accesses };
        let predecessors = self.conflicts.add(txn, accesses);
        let mut awaited = 0;
        for predecessor in &predecessors {
            if let Some(before) = self.updates.get_mut(predecessor).filter(|before| before.numbered.is_none())
            {
                before.followers.push(txn);
                awaited += 1;
            }
        }
        let update = Update { predecessors, awaited, followers: Vec::new(), numbered: None, finished: false };
        self.updates.insert(txn, update);
        if awaited == 0
            && let Some(worker) = self.place(txn)
        {
            self.give_update(txn, worker, effects);
        }
    }

    /// A worker has done a transaction.
    pub(super) fn on_worker_finished(&mut self, worker: ReplicaId, txn: TxnId, effects: &mut Vec<Effect>) {
        let chain = self.chain_mut(worker);
        chain.unfinished = chain.unfinished.saturating_sub(1);
        let is_idle = chain.unfinished == 0 && chain.serves;
        if is_idle {
            self.idle.push(worker);
        }
        self.on_finished(txn, effects);
        if is_idle {
            self.use_idle(effects);
        }
    }

    /// It is given nothing more. What it has done nothing of is to be reported as finished, and comes again.
    pub(super) fn on_worker_down(&mut self, worker: ReplicaId) {
        self.chain_mut(worker).serves = false;
        self.idle.retain(|idle| *idle != worker);
    }

    /// It serves, or serves again.
    pub(super) fn on_worker_up(&mut self, worker: ReplicaId, effects: &mut Vec<Effect>) {
        let chain = self.chain_mut(worker);
        let is_news = !std::mem::replace(&mut chain.serves, true);
        if is_news && chain.unfinished == 0 {
            self.idle.push(worker);
            self.use_idle(effects);
        }
    }

    /// Every worker contains it.
    pub(super) fn forget(&mut self, txn: TxnId) {
        self.conflicts.remove(txn);
        self.updates.remove(&txn);
    }

    fn chain(&self, worker: ReplicaId) -> &Chain {
        &self.workers[usize::from(worker.0)]
    }

    fn chain_mut(&mut self, worker: ReplicaId) -> &mut Chain {
        &mut self.workers[usize::from(worker.0)]
    }

    /// All of its predecessors have workers. Returns its own, if it is to have one by now. If others follow all of them already it
    /// takes no worker before they are over: it could only wait there.
    fn place(&mut self, txn: TxnId) -> Option<ReplicaId> {
        let chain = self.chain_to_append_to(txn);
        if chain.is_some() {
            return chain;
        }
        let predecessors =
            self.updates.get(&txn).map(|update| update.predecessors.clone()).unwrap_or_default();
        let mut awaited = 0;
        for predecessor in predecessors {
            if let Some(before) = self.updates.get_mut(&predecessor).filter(|before| !before.finished) {
                before.followers.push(txn);
                awaited += 1;
            }
        }
        if let Some(update) = self.updates.get_mut(&txn).filter(|_| awaited > 0) {
            update.awaited = awaited;
            return None;
        }
        let idle = self.idle.pop();
        if idle.is_none() {
            self.awaiting_worker.push_back(txn);
        }
        idle
    }

    /// Of those chains that end with one of its predecessors the longest: whatever it waits for elsewhere is over before.
    fn chain_to_append_to(&self, txn: TxnId) -> Option<ReplicaId> {
        let ends = |predecessor: &TxnId| {
            let before = self.updates.get(predecessor).filter(|before| !before.finished)?;
            let worker = before.numbered?.worker;
            let chain = self.chain(worker);
            (chain.serves && chain.last == Some(*predecessor)).then_some(worker)
        };
        let ends = self.updates.get(&txn)?.predecessors.iter().filter_map(ends);
        // Of several that are as long the first, so that runs are alike.
        ends.min_by_key(|worker| (std::cmp::Reverse(self.chain(*worker).unfinished), worker.0))
    }

    /// Gives a worker its next update, and then those for which only that it has a worker was missing.
    fn give_update(&mut self, txn: TxnId, worker: ReplicaId, effects: &mut Vec<Effect>) {
        let mut followers: VecDeque<TxnId> = self.give(txn, worker, effects).into();
        while let Some(follower) = followers.pop_front() {
            let Some(update) = self.updates.get_mut(&follower) else { continue };
            update.awaited -= 1;
            if update.awaited == 0
                && let Some(worker) = self.place(follower)
            {
                followers.extend(self.give(follower, worker, effects));
            }
        }
    }

    /// Returns those that waited for it to have a worker.
    fn give(&mut self, txn: TxnId, worker: ReplicaId, effects: &mut Vec<Effect>) -> Vec<TxnId> {
        let chain = self.chain_mut(worker);
        chain.unfinished += 1;
        chain.given += 1;
        chain.last = Some(txn);
        let numbered = Numbered { worker, number: chain.given };
        if let Some(everywhere) = &mut self.everywhere {
            everywhere.remember(worker, txn);
        }
        let Some(update) = self.updates.get_mut(&txn) else { return Vec::new() };
        update.numbered = Some(numbered);
        let followers = std::mem::take(&mut update.followers);
        let predecessors = std::mem::take(&mut update.predecessors);
        // What a worker that stays has run it contains. One that was lost may have run nothing of what it was given, and then whoever
        // comes later is behind those by way of it.
        let stays = self.everywhere.is_some();
        let counts = |predecessor: &TxnId| {
            let numbered = self.updates.get(predecessor)?.numbered?;
            (!stays || numbered.worker != worker).then_some(numbered)
        };
        let predecessors = predecessors.iter().filter_map(counts).collect();
        send(Place::Proxy(worker), Message::Update { txn, predecessors }, effects);
        followers
    }

    fn give_read(&mut self, txn: TxnId, worker: ReplicaId, effects: &mut Vec<Effect>) {
        self.chain_mut(worker).unfinished += 1;
        send(Place::Proxy(worker), Message::Read { txn }, effects);
    }

    /// Those that waited for it to be over go on.
    fn on_finished(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let Some(update) = self.updates.get_mut(&txn) else { return };
        update.finished = true;
        for follower in std::mem::take(&mut update.followers) {
            let Some(update) = self.updates.get_mut(&follower) else { continue };
            update.awaited -= 1;
            if update.awaited == 0 {
                self.awaiting_worker.push_back(follower);
            }
        }
        self.use_idle(effects);
    }

    fn use_idle(&mut self, effects: &mut Vec<Effect>) {
        while !self.awaiting_worker.is_empty()
            && let Some(worker) = self.idle.pop()
            && let Some(txn) = self.awaiting_worker.pop_front()
        {
            match self.updates.contains_key(&txn) {
                true => self.give_update(txn, worker, effects),
                false => self.give_read(txn, worker, effects),
            }
        }
    }

    /// What every worker contains nobody has to wait for.
    fn on_report(&mut self, worker: ReplicaId, vector: Vector) {
        let everywhere = self.everywhere.as_mut().map(|everywhere| everywhere.report(worker, vector));
        everywhere.into_iter().flatten().for_each(|txn| self.forget(txn));
    }
}

impl Schedules for Scheduler {
    fn on_transaction(&mut self, begin: &Begin, statement: Statement, effects: &mut Vec<Effect>) {
        let txn = begin.txn;
        if statement.kind == StatementKind::Read {
            return match self.idle.pop() {
                Some(worker) => self.give_read(txn, worker, effects),
                None => self.awaiting_worker.push_back(txn),
            };
        }
        self.on_update(txn, &statement.access, effects);
    }

    fn on_message(&mut self, worker: ReplicaId, message: AnyMessage, effects: &mut Vec<Effect>) {
        let AnyMessage::Chaining(message) = message else { return };
        match message {
            Message::Finished { txn, vector } => {
                self.on_worker_finished(worker, txn, effects);
                if let Some(vector) = vector {
                    self.on_report(worker, vector);
                }
            }
            Message::Contains { vector } => self.on_report(worker, vector),
            _ => {}
        }
    }

    fn open(&self) -> u64 {
        let waiting = self.updates.values().filter(|update| update.numbered.is_none()).count() as u64;
        self.workers.iter().map(|chain| chain.unfinished).sum::<u64>() + waiting
    }

    fn awaiting_worker(&self) -> u64 {
        self.awaiting_worker.len() as u64
    }
}
