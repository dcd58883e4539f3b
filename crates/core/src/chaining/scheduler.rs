//! The scheduler: puts each update behind those that it conflicts with, and finds a worker for it (II.B).

mod copies;

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::conflict_index::ConflictIndex;
use crate::effect::Effect;
use crate::event::{Begin, Place, Statement, StatementKind};
use crate::ids::{ReplicaId, TxnId};
use crate::item::{Access, Item, Mode};
use crate::map::HashMap;
use crate::message::Message as AnyMessage;
use crate::workers::{Course, Decisions, Everywhere, Schedules, Vector};

use super::{Message, Order, Redundancy, send};

/// Builds the chains.
#[derive(Debug)]
pub struct Scheduler {
    order: Order,
    /// Where there are several schedulers: which one this is. Each so-and-so-many-th worker is its own.
    site: u16,
    /// How many schedulers there are.
    sites: u16,
    redundancy: Option<Redundancy>,
    conflicts: ConflictIndex,
    /// Updates that some worker may not contain.
    updates: HashMap<TxnId, Update>,
    workers: Vec<Chain>,
    /// Workers with nothing to do, the one that was busy last at the end.
    idle: Vec<ReplicaId>,
    /// What could run and finds no worker, in the order in which it came.
    awaiting_worker: VecDeque<TxnId>,
    /// Updates that were given back, if no worker is in use.
    homeless: Vec<TxnId>,
    everywhere: Everywhere,
}

#[derive(Debug)]
struct Update {
    /// Until it is over.
    predecessors: Vec<TxnId>,
    /// How many it waits for: that they have a worker, and then, if it is not put behind one of them there, that they are over.
    awaited: usize,
    /// Those that wait until this one has a worker, and then those that wait until it is over.
    followers: Vec<TxnId>,
    stage: Stage,
    /// Whether its predecessors are all of them.
    is_ordered: bool,
    /// It runs at another site, which has told its workers.
    is_foreign: bool,
    /// Workers that have it and have not said what became of it: one, unless others execute it as well.
    places: SmallVec<[ReplicaId; 4]>,
    /// Every worker contains it.
    is_everywhere: bool,
}

impl Update {
    fn new(predecessors: Vec<TxnId>, is_ordered: bool) -> Update {
        Update {
            predecessors,
            awaited: 0,
            followers: Vec::new(),
            stage: Stage::New,
            is_ordered,
            is_foreign: false,
            places: SmallVec::new(),
            is_everywhere: false,
        }
    }
}

/// What comes of a message.
#[derive(Default)]
pub(super) struct Heard {
    /// Every worker contains these.
    pub(super) everywhere: Vec<TxnId>,
    /// A worker does not have these any more.
    pub(super) gone: Vec<TxnId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It has had no worker yet.
    New,
    Placed,
    /// The replica where it was to run has failed. Others may have been placed behind it, so it waits for nobody to get another worker.
    GivenBack,
    Over,
}

/// What a worker was given and has not finished.
#[derive(Debug)]
struct Chain {
    is_up: bool,
    is_leaving: bool,
    /// It is given something. One that is about to leave only if no other one is up.
    is_used: bool,
    unfinished: u64,
    /// The last update.
    last: Option<TxnId>,
}

impl Scheduler {
    /// So many workers, none of which is in use yet.
    pub(super) fn new(order: Order, workers: usize) -> Scheduler {
        let mut scheduler = Scheduler {
            order,
            site: 0,
            sites: 1,
            redundancy: None,
            conflicts: ConflictIndex::default(),
            updates: HashMap::default(),
            workers: Vec::new(),
            idle: Vec::new(),
            awaiting_worker: VecDeque::new(),
            homeless: Vec::new(),
            everywhere: Everywhere::new(0),
        };
        (0..workers).for_each(|_| scheduler.on_added());
        scheduler
    }

    /// Idle workers execute what others execute as well.
    pub(super) fn with_redundancy(self, redundancy: Redundancy) -> Scheduler {
        Scheduler { redundancy: Some(redundancy), ..self }
    }

    /// One of several, with the workers that are its own.
    pub(super) fn of_site(self, site: u16, sites: u16) -> Scheduler {
        Scheduler { site, sites, ..self }
    }

    /// An update arrives, which may do this.
    pub(super) fn on_update(&mut self, txn: TxnId, accesses: &[Access], effects: &mut Vec<Effect>) {
        let everything = [Access::new(Item::everything(), Mode::Exclusive)];
        let accesses = if self.order == Order::OfAll { &everything[..] } else { accesses };
        let predecessors = self.conflicts.add(txn, accesses);
        self.insert(txn, predecessors, true, effects);
    }

    /// What this may do conflicts with these, but for those of whom others among them have taken the place.
    pub(super) fn predecessors_of(&mut self, accesses: &[Access]) -> Vec<TxnId> {
        self.conflicts.find(accesses)
    }

    /// This is the next update in the order of all sites. Returns its predecessors.
    pub(super) fn add_ordered(&mut self, txn: TxnId, accesses: &[Access]) -> Vec<TxnId> {
        self.conflicts.add(txn, accesses)
    }

    /// Whether it knows an update.
    pub(super) fn knows(&self, txn: TxnId) -> bool {
        self.updates.contains_key(&txn)
    }

    /// An update of another site, which runs there.
    pub(super) fn insert_foreign(&mut self, txn: TxnId, is_over: bool) {
        let stage = if is_over { Stage::Over } else { Stage::Placed };
        let update = Update { is_foreign: true, stage, ..Update::new(Vec::new(), true) };
        self.updates.insert(txn, update);
    }

    /// An update that was placed already is behind these: its place among all is known.
    pub(super) fn confirm(&mut self, txn: TxnId, predecessors: Vec<TxnId>, effects: &mut Vec<Effect>) {
        let Some(update) = self.updates.get_mut(&txn) else { return };
        update.predecessors.clone_from(&predecessors);
        update.is_ordered = true;
        for worker in &update.places {
            let predecessors = predecessors.clone();
            send(Place::Proxy(*worker), Message::Confirmed { txn, predecessors }, effects);
        }
        // If it could run, and found no worker, it gets one now, or waits for other sites.
        if let Some(at) = self.awaiting_worker.iter().position(|awaiting| *awaiting == txn) {
            self.awaiting_worker.remove(at);
            if let Some(worker) = self.place(txn, effects) {
                self.give_update(txn, worker, effects);
            }
        }
    }

    /// An update has these predecessors.
    pub(super) fn insert(
        &mut self,
        txn: TxnId,
        predecessors: Vec<TxnId>,
        is_ordered: bool,
        effects: &mut Vec<Effect>,
    ) {
        let mut awaited = 0;
        for predecessor in &predecessors {
            if let Some(before) = self.updates.get_mut(predecessor).filter(|of| of.stage == Stage::New) {
                before.followers.push(txn);
                awaited += 1;
            }
        }
        self.updates.insert(txn, Update { awaited, ..Update::new(predecessors, is_ordered) });
        if awaited == 0
            && let Some(worker) = self.place(txn, effects)
        {
            self.give_update(txn, worker, effects);
        }
    }

    /// A worker has done an update, or will not.
    pub(super) fn on_over(&mut self, worker: ReplicaId, txn: TxnId, effects: &mut Vec<Effect>) {
        self.take_off(worker, &[txn]);
        self.leave(worker, txn);
        self.end(txn, effects);
        self.use_idle(effects);
    }

    /// A worker will not do these, and they are to run elsewhere.
    pub(super) fn take_back(&mut self, worker: ReplicaId, txns: &[TxnId], effects: &mut Vec<Effect>) {
        let chain = self.chain_mut(worker);
        chain.last = chain.last.filter(|last| !txns.contains(last));
        self.take_off(worker, txns);
        let txns: Vec<TxnId> = txns.iter().copied().filter(|txn| self.leave(worker, *txn)).collect();
        self.on_given_back(&txns, effects);
        self.use_idle(effects);
    }

    /// A worker does not have it any more. Returns whether it is to run, and nobody has it.
    fn leave(&mut self, worker: ReplicaId, txn: TxnId) -> bool {
        let Some(update) = self.updates.get_mut(&txn) else { return true };
        update.places.retain(|place| *place != worker);
        update.places.is_empty() && update.stage != Stage::Over
    }

    /// Every worker contains it, or all that it was behind.
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
    fn place(&mut self, txn: TxnId, effects: &mut Vec<Effect>) -> Option<ReplicaId> {
        if !self.waits_for_another_site(txn) {
            let worker = self.chain_to_append_to(txn).or_else(|| self.copy_prefix(txn, effects));
            if worker.is_some() {
                return worker;
            }
        }
        let predecessors =
            self.updates.get(&txn).map(|update| update.predecessors.clone()).unwrap_or_default();
        let mut awaited = 0;
        for predecessor in predecessors {
            if let Some(before) = self.updates.get_mut(&predecessor).filter(|of| of.stage != Stage::Over) {
                before.followers.push(txn);
                awaited += 1;
            }
        }
        if let Some(update) = self.updates.get_mut(&txn).filter(|_| awaited > 0) {
            update.awaited = awaited;
            return None;
        }
        let worker = self.idle.pop().or_else(|| self.worker_in_spite_of_all(txn));
        if worker.is_none() {
            self.awaiting_worker.push_back(txn);
        }
        worker
    }

    /// Where there are several schedulers, all workers of a site may wait for what runs at others, and that for an update of this site. So
    /// each gets a worker when its turn has come, before those that come later; of all that are not over the first can always run.
    fn worker_in_spite_of_all(&self, txn: TxnId) -> Option<ReplicaId> {
        let is_due = || self.updates.get(&txn).is_some_and(|update| update.is_ordered);
        if self.sites > 1 && is_due() { self.least_busy() } else { None }
    }

    fn waits_for_another_site(&self, txn: TxnId) -> bool {
        let is_awaited = |before: &TxnId| {
            self.updates.get(before).is_some_and(|of| of.is_foreign && of.stage != Stage::Over)
        };
        self.sites > 1 && self.updates.get(&txn).is_some_and(|of| of.predecessors.iter().any(is_awaited))
    }

    /// Of those chains that end with one of its predecessors the longest: whatever it waits for elsewhere is over before.
    fn chain_to_append_to(&self, txn: TxnId) -> Option<ReplicaId> {
        let ends = |predecessor: &TxnId| {
            let update = self.updates.get(predecessor).filter(|of| of.stage == Stage::Placed)?;
            update.places.iter().copied().find(|worker| self.chain(*worker).last == Some(*predecessor))
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
                && let Some(worker) = self.place(follower, effects)
            {
                followers.extend(self.give(follower, worker, effects));
            }
        }
    }

    /// Returns those that waited for it to have a worker.
    fn give(&mut self, txn: TxnId, worker: ReplicaId, effects: &mut Vec<Effect>) -> Vec<TxnId> {
        let updates = &self.updates;
        let Some(update) = updates.get(&txn) else { return Vec::new() };
        // What is not known any more is everywhere.
        let is_known = |before: &TxnId| updates.contains_key(before);
        let predecessors: Vec<TxnId> = update.predecessors.iter().copied().filter(is_known).collect();
        let is_ordered = update.is_ordered;
        let is_unfinished = |other: TxnId| updates.get(&other).is_some_and(|of| of.stage != Stage::Over);
        let chain = &mut self.workers[usize::from(worker.0)];
        chain.unfinished += 1;
        // The worker puts what was given back before what came later.
        chain.last = chain.last.filter(|last| *last > txn && is_unfinished(*last)).or(Some(txn));
        if self.sites > 1 {
            // It may have been chosen in spite of all, and have nothing to do.
            self.idle.retain(|idle| *idle != worker);
        }
        send(Place::Proxy(worker), Message::Update { txn, predecessors, is_ordered }, effects);
        let Some(update) = self.updates.get_mut(&txn) else { return Vec::new() };
        update.places.push(worker);
        match std::mem::replace(&mut update.stage, Stage::Placed) {
            Stage::New => std::mem::take(&mut update.followers),
            _ => Vec::new(),
        }
    }

    fn give_read(&mut self, txn: TxnId, worker: ReplicaId, effects: &mut Vec<Effect>) {
        self.chain_mut(worker).unfinished += 1;
        send(Place::Proxy(worker), Message::Read { txn }, effects);
    }

    /// What was given back gets another worker. Updates get one even if none has nothing to do: all that are busy may wait for them.
    fn on_given_back(&mut self, txns: &[TxnId], effects: &mut Vec<Effect>) {
        let is_update = |txn: &TxnId| self.updates.contains_key(txn);
        let (updates, reads): (Vec<TxnId>, Vec<TxnId>) = txns.iter().copied().partition(is_update);
        for txn in &updates {
            if let Some(update) = self.updates.get_mut(txn) {
                update.stage = Stage::GivenBack;
            }
        }
        for txn in updates {
            self.give_again(txn, effects);
        }
        for read in reads.into_iter().rev() {
            self.awaiting_worker.push_front(read);
        }
    }

    /// Behind one of its predecessors, if that is the last of its chain; else where nothing is to be done, or least.
    fn give_again(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let chain = self.chain_to_append_to(txn);
        match chain.or_else(|| self.idle.pop()).or_else(|| self.least_busy()) {
            Some(worker) => _ = self.give(txn, worker, effects),
            None => self.homeless.push(txn),
        }
    }

    /// Who is given something has changed: what waits for somebody is given out.
    fn choose_used(&mut self, effects: &mut Vec<Effect>) {
        let (site, sites) = (self.site, self.sites);
        let own = |(worker, _): &(ReplicaId, &Chain)| worker.0 % sites == site;
        let mut own = (0..).map(ReplicaId).zip(&self.workers).filter(own);
        let some_stay = own.any(|(_, chain)| chain.is_up && !chain.is_leaving);
        for (worker, chain) in (0..).map(ReplicaId).zip(&mut self.workers) {
            let is_own = worker.0 % sites == site;
            let is_used = is_own && chain.is_up && !(chain.is_leaving && some_stay);
            let was_used = std::mem::replace(&mut chain.is_used, is_used);
            if was_used && !is_used {
                chain.last = None;
                self.idle.retain(|idle| *idle != worker);
            } else if is_used && !was_used && chain.unfinished == 0 {
                self.idle.push(worker);
            }
        }
        for txn in std::mem::take(&mut self.homeless) {
            self.give_again(txn, effects);
        }
        for txn in std::mem::take(&mut self.awaiting_worker) {
            match self.worker_in_spite_of_all(txn) {
                Some(worker) => self.give_update(txn, worker, effects),
                None => self.awaiting_worker.push_back(txn),
            }
        }
        self.use_idle(effects);
    }

    fn least_busy(&self) -> Option<ReplicaId> {
        let used = (0..).map(ReplicaId).zip(&self.workers).filter(|(_, chain)| chain.is_used);
        used.min_by_key(|(_, chain)| chain.unfinished).map(|(worker, _)| worker)
    }

    /// Something that a worker was given is not there any more.
    fn take_off(&mut self, worker: ReplicaId, txns: &[TxnId]) {
        let chain = self.chain_mut(worker);
        chain.unfinished = chain.unfinished.saturating_sub(txns.len() as u64);
        if chain.unfinished == 0 && chain.is_used {
            self.idle.push(worker);
        }
    }

    /// Those that waited for it to be over go on.
    pub(super) fn on_finished(
        &mut self,
        txn: TxnId,
        worker: ReplicaId,
        is_update: bool,
        decisions: &Decisions,
        effects: &mut Vec<Effect>,
    ) {
        if is_update {
            match decisions.course_of(txn) {
                Some(Course::WroteNothing(seen)) => self.everywhere.remember_nothing(txn, seen.clone()),
                _ => self.everywhere.remember(worker, txn),
            }
        }
        self.end(txn, effects);
        self.use_idle(effects);
    }

    /// It is over. Those that waited for that may run.
    fn end(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let Some(update) = self.updates.get_mut(&txn) else { return };
        update.stage = Stage::Over;
        update.predecessors = Vec::new();
        for follower in std::mem::take(&mut update.followers) {
            let Some(update) = self.updates.get_mut(&follower) else { continue };
            update.awaited -= 1;
            if update.awaited > 0 {
                continue;
            }
            match self.worker_in_spite_of_all(follower) {
                Some(worker) => self.give_update(follower, worker, effects),
                None => self.awaiting_worker.push_back(follower),
            }
        }
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

    /// A worker of its own says something.
    pub(super) fn hear(
        &mut self,
        worker: ReplicaId,
        message: Message,
        decisions: &Decisions,
        effects: &mut Vec<Effect>,
    ) -> Heard {
        let mut heard = Heard::default();
        match message {
            Message::Finished { txn, vector } => {
                self.take_off(worker, &[txn]);
                self.leave(worker, txn);
                self.on_finished(txn, worker, vector.is_some(), decisions, effects);
                if let Some(vector) = vector {
                    heard.everywhere = self.report(worker, vector);
                }
            }
            Message::GivenBack { txns } => {
                self.take_back(worker, &txns, effects);
                heard.gone = txns;
            }
            Message::Skipped { txn } => {
                self.take_off(worker, &[txn]);
                self.leave(worker, txn);
                self.use_idle(effects);
                heard.gone.push(txn);
            }
            Message::Contains { vector } => heard.everywhere = self.report(worker, vector),
            _ => {}
        }
        heard
    }

    /// A worker contains so much. Returns what is found to be everywhere.
    pub(super) fn report(&mut self, worker: ReplicaId, vector: Vector) -> Vec<TxnId> {
        self.everywhere.report(worker, vector)
    }

    /// What every worker contains nobody has to wait for.
    fn on_everywhere(&mut self, txn: TxnId, decisions: &mut Decisions) {
        if let Some(update) = self.updates.get_mut(&txn) {
            update.is_everywhere = true;
        }
        self.forget_if_gone(txn, decisions);
    }

    /// While a worker has it that has not said what became of it, it is still asked for.
    fn forget_if_gone(&mut self, txn: TxnId, decisions: &mut Decisions) {
        if self.updates.get(&txn).is_some_and(|of| of.is_everywhere && of.places.is_empty()) {
            self.forget(txn);
            decisions.forget(txn);
        }
    }
}

impl Schedules for Scheduler {
    fn on_transaction(
        &mut self,
        begin: &Begin,
        statement: Statement,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let txn = begin.txn;
        if statement.kind == StatementKind::Read {
            return match self.idle.pop() {
                Some(worker) => self.give_read(txn, worker, effects),
                None => self.awaiting_worker.push_back(txn),
            };
        }
        decisions.expect(txn);
        self.on_update(txn, &statement.access, effects);
    }

    fn on_message(
        &mut self,
        worker: ReplicaId,
        message: AnyMessage,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let AnyMessage::Chaining(message) = message else { return };
        let Heard { everywhere, gone } = self.hear(worker, message, decisions, effects);
        for txn in everywhere {
            self.on_everywhere(txn, decisions);
        }
        for txn in gone {
            self.forget_if_gone(txn, decisions);
        }
    }

    fn on_down(&mut self, worker: ReplicaId, effects: &mut Vec<Effect>) {
        self.chain_mut(worker).is_up = false;
        self.everywhere.leave(worker);
        self.choose_used(effects);
    }

    fn on_leaving(&mut self, worker: ReplicaId, effects: &mut Vec<Effect>) {
        self.chain_mut(worker).is_leaving = true;
        self.choose_used(effects);
    }

    fn unfinished_if_leaving(&self, worker: ReplicaId) -> Option<u64> {
        let chain = self.chain(worker);
        chain.is_leaving.then_some(chain.unfinished)
    }

    fn on_return(&mut self, worker: ReplicaId, vector: Vector) {
        self.everywhere.come(worker, vector);
    }

    fn on_up(&mut self, worker: ReplicaId, effects: &mut Vec<Effect>) {
        self.chain_mut(worker).is_up = true;
        self.choose_used(effects);
    }

    fn on_added(&mut self) {
        self.workers.push(Chain {
            is_up: false,
            is_leaving: false,
            is_used: false,
            unfinished: 0,
            last: None,
        });
        self.everywhere.add_worker();
    }

    fn open(&self) -> u64 {
        let waits = |update: &&Update| matches!(update.stage, Stage::New | Stage::GivenBack);
        let waiting = self.updates.values().filter(waits).count() as u64;
        // Of what is executed at several workers one execution counts, until one of them is over.
        let copies_of = |update: &Update| match update.stage {
            Stage::Over => update.places.len(),
            _ => update.places.len().saturating_sub(1),
        };
        let copies: usize = self.updates.values().map(copies_of).sum();
        let given: u64 = self.workers.iter().map(|chain| chain.unfinished).sum();
        (given + waiting).saturating_sub(copies as u64)
    }

    fn awaiting_worker(&self) -> u64 {
        (self.awaiting_worker.len() + self.homeless.len()) as u64
    }
}
