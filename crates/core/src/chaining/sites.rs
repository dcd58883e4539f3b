//! Several schedulers, one a site, each of which classifies what arrives there (section VII of the paper, its future work).
//!
//! Every scheduler must find the same order of updates that conflict. One of them orders: the others announce each update to it, and
//! hear of all in one order, that of their places in everybody's chains. An update runs at a worker of its own site. Without optimism it is placed when
//! its place is known, so that a site that is far from the first waits for two messages. With optimism it is placed at once, behind what is
//! known by then, and runs, but is not decided. When its place is known and it turns out to stand behind something of another
//! site whose writes were not there when it began, it is rolled back and runs again behind that; else nothing was lost.
//!
//! Where all of a site's workers wait for other sites, which may wait for an update of this one, that one still gets a worker, before whatever
//! waits there: workers run what they were given in the order of arrival, which is for the updates of one site the order of all. So of all updates
//! that are not over the first can always run.
//!
//! Schedulers do not fail here; replicas may, and return at their site. None joins.

use std::sync::Arc;

use crate::conflict_index::ConflictIndex;
use crate::effect::Effect;
use crate::event::{Begin, Place, Statement, StatementKind};
use crate::ids::{NodeId, ReplicaId, TxnId};
use crate::item::Access;
use crate::map::HashMap;
use crate::message::Message as AnyMessage;
use crate::workers::{Decisions, Schedules, Vector};

use super::scheduler::{Heard, Scheduler};
use super::{Message, Order, send};

/// The scheduler that orders the updates of all.
const ORDERS: NodeId = NodeId(0);

/// Whether an update runs before its place among those of all sites is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Optimism {
    /// It runs at once, and again if it should have waited.
    AtOnce,
    /// It waits.
    WhenOrdered,
}

/// The schedulers of all sites. In one process they share nothing but the log's decisions.
#[derive(Debug)]
pub struct Sites {
    optimism: Optimism,
    sites: Vec<Site>,
    /// What some schedulers have forgotten, and how many.
    forgotten_by: HashMap<TxnId, usize>,
}

#[derive(Debug)]
struct Site {
    scheduler: Scheduler,
    /// Its own updates that run before they are ordered.
    unordered: ConflictIndex,
    /// Updates of others that are over, and were not ordered here yet; whether every worker contains them.
    early: HashMap<TxnId, bool>,
}

impl Sites {
    /// So many sites, and so many workers, none of which is in use yet.
    pub(super) fn new(sites: u16, optimism: Optimism, workers: usize) -> Sites {
        let site = |site| Site {
            scheduler: Scheduler::new(Order::OfConflicts, workers).of_site(site, sites),
            unordered: ConflictIndex::default(),
            early: HashMap::default(),
        };
        Sites { optimism, sites: (0..sites).map(site).collect(), forgotten_by: HashMap::default() }
    }

    fn site_of(&self, worker: ReplicaId) -> usize {
        usize::from(worker.0) % self.sites.len()
    }

    fn site_of_session(&self, begin: &Begin) -> u16 {
        (begin.session.0 % self.sites.len() as u64) as u16
    }

    fn on_update(
        &mut self,
        txn: TxnId,
        at: u16,
        accesses: Arc<[Access]>,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let site = NodeId(at);
        if site == ORDERS {
            return self.order(txn, site, &accesses, decisions, effects);
        }
        if self.optimism == Optimism::AtOnce {
            let site = &mut self.sites[usize::from(at)];
            let mut predecessors = site.scheduler.predecessors_of(&accesses);
            predecessors.extend(site.unordered.add(txn, &accesses));
            predecessors.sort_unstable();
            predecessors.dedup();
            site.scheduler.insert(txn, predecessors, false, effects);
        }
        send(Place::Scheduler(ORDERS), Message::Announced { txn, accesses }, effects);
    }

    /// At the scheduler that orders: this is the next of all.
    fn order(
        &mut self,
        txn: TxnId,
        site: NodeId,
        accesses: &Arc<[Access]>,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        for other in (0..self.sites.len() as u16).map(NodeId).filter(|other| *other != ORDERS) {
            let message = Message::Ordered { txn, site, accesses: Arc::clone(accesses) };
            send(Place::Scheduler(other), message, effects);
        }
        self.on_ordered(ORDERS, txn, site, accesses, decisions, effects);
    }

    /// One scheduler hears of the next update of all.
    fn on_ordered(
        &mut self,
        at: NodeId,
        txn: TxnId,
        site: NodeId,
        accesses: &[Access],
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let of = &mut self.sites[usize::from(at.0)];
        let predecessors = of.scheduler.add_ordered(txn, accesses);
        if site != at {
            let early = of.early.remove(&txn);
            of.scheduler.insert_foreign(txn, early.is_some());
            if early == Some(true) {
                self.on_everywhere(at, txn, decisions);
            }
        } else if of.scheduler.knows(txn) {
            of.unordered.remove(txn);
            of.scheduler.confirm(txn, predecessors, effects);
        } else {
            of.scheduler.insert(txn, predecessors, true, effects);
        }
    }

    /// One scheduler finds that every worker contains an update.
    fn on_everywhere(&mut self, at: NodeId, txn: TxnId, decisions: &mut Decisions) {
        let of = &mut self.sites[usize::from(at.0)];
        if !of.scheduler.knows(txn) {
            of.early.insert(txn, true);
            return;
        }
        of.scheduler.forget(txn);
        let count = self.forgotten_by.entry(txn).or_default();
        *count += 1;
        // What one scheduler has still to hear of the log has to remember.
        if *count == self.sites.len() {
            self.forgotten_by.remove(&txn);
            decisions.forget(txn);
        }
    }

    fn hear(
        &mut self,
        at: NodeId,
        worker: ReplicaId,
        message: Message,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let is_own = self.site_of(worker) == usize::from(at.0);
        let of = &mut self.sites[usize::from(at.0)];
        let everywhere = match message {
            message if is_own => {
                let Heard { everywhere, .. } = of.scheduler.hear(worker, message, decisions, effects);
                everywhere
            }
            Message::Finished { txn, vector: Some(vector) } => {
                if !of.scheduler.knows(txn) {
                    of.early.insert(txn, false);
                }
                of.scheduler.on_finished(txn, worker, true, decisions, effects);
                of.scheduler.report(worker, vector)
            }
            Message::Contains { vector } => of.scheduler.report(worker, vector),
            _ => Vec::new(),
        };
        for txn in everywhere {
            self.on_everywhere(at, txn, decisions);
        }
    }
}

impl Schedules for Sites {
    fn place_of(&self, begin: &Begin) -> Place {
        Place::Scheduler(NodeId(self.site_of_session(begin)))
    }

    fn on_transaction(
        &mut self,
        begin: &Begin,
        statement: Statement,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let at = self.site_of_session(begin);
        if statement.kind == StatementKind::Read {
            let scheduler = &mut self.sites[usize::from(at)].scheduler;
            return scheduler.on_transaction(begin, statement, decisions, effects);
        }
        decisions.expect(begin.txn);
        self.on_update(begin.txn, at, statement.access.into_iter().collect(), decisions, effects);
    }

    fn on_message(
        &mut self,
        worker: ReplicaId,
        message: AnyMessage,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let at = NodeId(self.site_of(worker) as u16);
        self.on_message_at(at, Place::Proxy(worker), message, decisions, effects);
    }

    fn on_message_at(
        &mut self,
        at: NodeId,
        from: Place,
        message: AnyMessage,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let AnyMessage::Chaining(message) = message else { return };
        match (from, message) {
            (Place::Scheduler(site), Message::Announced { txn, accesses }) => {
                self.order(txn, site, &accesses, decisions, effects);
            }
            (Place::Scheduler(_), Message::Ordered { txn, site, accesses }) => {
                self.on_ordered(at, txn, site, &accesses, decisions, effects);
            }
            (Place::Proxy(worker), message) => self.hear(at, worker, message, decisions, effects),
            _ => {}
        }
    }

    fn on_down(&mut self, worker: ReplicaId, effects: &mut Vec<Effect>) {
        self.sites.iter_mut().for_each(|site| site.scheduler.on_down(worker, effects));
    }

    fn on_return(&mut self, worker: ReplicaId, vector: Vector) {
        self.sites.iter_mut().for_each(|site| site.scheduler.on_return(worker, vector.clone()));
    }

    fn on_up(&mut self, worker: ReplicaId, effects: &mut Vec<Effect>) {
        self.sites.iter_mut().for_each(|site| site.scheduler.on_up(worker, effects));
    }

    fn open(&self) -> u64 {
        self.sites.iter().map(|site| site.scheduler.open()).sum()
    }

    fn awaiting_worker(&self) -> u64 {
        self.sites.iter().map(|site| site.scheduler.awaiting_worker()).sum()
    }
}
