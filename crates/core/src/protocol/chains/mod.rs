//! Conflict chains (Gargamel): conflicting updates run one after the other at one worker, others in parallel.
//!
//! **A sketch**, to prove that the trait carries a protocol that ships write sets between workers; completed later, and not
//! selectable. What it lacks is listed below.
//!
//! Idea. The scheduler knows what every transaction will write before it runs, and queues it behind those that it
//! conflicts with. Queues grow, merge and split as transactions come, which is why they are called chains: a transaction
//! that conflicts with none starts a chain at the worker with the least to do; one that conflicts is appended behind the
//! last transaction of the chain at the same worker; one that conflicts with several chains merges them; of two that
//! follow the same transaction but not each other, the second goes to another worker. With a transaction, the worker
//! is told which of its predecessors run elsewhere, and starts it when it has their write sets. So nothing ever aborts
//! for a conflict. Write sets go to all other workers in causal order, in the background.
//!
//! Paper: P. Cincilla, S. Monnet, M. Shapiro: Gargamel: boosting DBMS performance by parallelising write transactions
//! (ICPADS 2012), sections II and III.
//!
//! Guarantee: parallel snapshot isolation. Read-only transactions are never delayed and may see an old state.
//!
//! Invariants:
//! - of two transactions whose write sets meet, the later starts at its worker after the write set of the earlier is there;
//! - a worker runs one update at a time;
//! - a worker applies a write set after everything that its origin contained when it committed.
//!
//! How it differs from the paper: conflicts are counted on items as the classifier gives them, not by a static analysis
//! of stored procedures.
//!
//! Missing: transactions of several statements (they need their whole set declared), workers that fail or join, and
//! forgetting: the scheduler keeps every transaction that it has placed, though only the last writers matter.

use std::collections::{BTreeMap, VecDeque};

use crate::effect::{Decision, Effect, How};
use crate::event::{Event, Outcome, Place, Statement, StatementKind};
use crate::ids::{Csn, Instant, NodeId, OpId, ReplicaId, TxnId};
use crate::item::{Access, AccessSet};
use crate::map::HashSet;
use crate::message::Message as AnyMessage;

use super::{Guarantee, Protocol, ReplicaStatus, Status};

/// What scheduler and workers say to each other.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Scheduler to worker: run this update once you have the write sets of these, which ran elsewhere.
    Update {
        /// The transaction.
        txn: TxnId,
        /// Its predecessors at other workers.
        predecessors: Vec<TxnId>,
    },
    /// Scheduler to worker: run this read-only transaction at once.
    Read {
        /// The transaction.
        txn: TxnId,
    },
    /// Worker to worker, with the writes: this has been committed.
    WriteSet {
        /// The transaction.
        txn: TxnId,
        /// How many updates of each worker its origin contained, itself included: the causal vector.
        vector: Vec<u64>,
    },
    /// Worker to scheduler: the transaction is over.
    Finished {
        /// The transaction.
        txn: TxnId,
        /// Where it ran.
        worker: ReplicaId,
    },
}

const SCHEDULER: Place = Place::Scheduler(NodeId(0));

/// The scheduler and the workers of conflict chains.
#[derive(Debug)]
pub struct Chains {
    scheduler: Scheduler,
    workers: Vec<Worker>,
    decisions: Decisions,
}

impl Chains {
    /// A scheduler and `workers` workers, whose log ends at `decided`.
    #[must_use]
    pub fn new(workers: u16, decided: Csn) -> Chains {
        Chains {
            scheduler: Scheduler { placed: BTreeMap::new(), queued: vec![0; usize::from(workers)] },
            workers: (0..workers).map(|id| Worker::new(ReplicaId(id), workers)).collect(),
            decisions: Decisions { decided, undurable: VecDeque::new() },
        }
    }

    fn handle_message(&mut self, place: Place, from: Place, message: Message, effects: &mut Vec<Effect>) {
        match place {
            Place::Scheduler(_) => self.scheduler.on_message(&message),
            Place::Proxy(id) => {
                if let Some(worker) = self.workers.get_mut(usize::from(id.0)) {
                    worker.on_message(from, message, effects);
                }
            }
            _ => {}
        }
    }

    fn worker(&mut self, id: ReplicaId) -> Option<&mut Worker> {
        self.workers.get_mut(usize::from(id.0))
    }
}

impl Protocol for Chains {
    fn name(&self) -> &'static str {
        "chains"
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::ParallelSnapshotIsolation
    }

    fn place_of(&self, event: &Event) -> Place {
        match event {
            Event::Executed { replica, .. }
            | Event::Applied { replica, .. }
            | Event::ShippedApplied { replica, .. } => Place::Proxy(*replica),
            _ => SCHEDULER,
        }
    }

    fn handle(&mut self, place: Place, _now: Instant, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Autocommit { begin, statement } => {
                self.scheduler.on_transaction(begin.txn, &statement, effects);
            }
            Event::Executed { txn, replica, outcome, .. } => {
                let Some(worker) = self.workers.get_mut(usize::from(replica.0)) else { return };
                worker.on_executed(txn, &outcome, &mut self.decisions, effects);
            }
            Event::Durable { csn } => self.decisions.on_durable(csn, effects),
            Event::Applied { replica, csn } => {
                if let Some(worker) = self.worker(replica) {
                    worker.on_committed(csn, effects);
                }
            }
            Event::ShippedApplied { origin: Place::Proxy(origin), txn, replica } => {
                if let Some(worker) = self.worker(replica) {
                    worker.on_write_set_applied(origin, txn, effects);
                }
            }
            Event::Message { from, message: AnyMessage::Chains(message) } => {
                self.handle_message(place, from, message, effects);
            }
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let replicas = self.workers.iter().map(|worker| ReplicaStatus {
            up: true,
            home_statements: worker.own_commits(),
            applies: worker.vector.iter().sum::<u64>() - worker.own_commits(),
            ..ReplicaStatus::default()
        });
        Status {
            decided: self.decisions.decided.0,
            replicas: replicas.collect(),
            transactions: self.scheduler.queued.iter().sum(),
            ..Status::default()
        }
    }
}

/// A transaction that the scheduler has given to a worker.
#[derive(Debug)]
struct Placed {
    writes: AccessSet,
    worker: ReplicaId,
    /// Everything that it comes after, directly or not.
    after: HashSet<TxnId>,
    /// Somebody was put behind it at the same worker.
    continued: bool,
}

/// Builds the chains (section II.B).
#[derive(Debug)]
struct Scheduler {
    placed: BTreeMap<TxnId, Placed>,
    /// By worker: transactions that it has not finished.
    queued: Vec<u64>,
}

impl Scheduler {
    fn on_transaction(&mut self, txn: TxnId, statement: &Statement, effects: &mut Vec<Effect>) {
        if statement.kind == StatementKind::Read {
            let worker = self.least_busy();
            self.queued[usize::from(worker.0)] += 1;
            return send(Place::Proxy(worker), Message::Read { txn }, effects);
        }
        let is_write = |access: &&Access| access.mode.writes();
        let writes: AccessSet = statement.access.iter().filter(is_write).cloned().collect();
        let direct = self.direct_predecessors(&writes);
        let worker = self.choose_worker(&direct);
        let elsewhere = |predecessor: &&TxnId| self.placed[*predecessor].worker != worker;
        let predecessors = direct.iter().filter(elsewhere).copied().collect();
        let mut after: HashSet<TxnId> = direct.iter().copied().collect();
        for predecessor in &direct {
            if let Some(placed) = self.placed.get_mut(predecessor) {
                placed.continued |= placed.worker == worker;
                after.extend(placed.after.iter().copied());
            }
        }
        self.placed.insert(txn, Placed { writes, worker, after, continued: false });
        self.queued[usize::from(worker.0)] += 1;
        send(Place::Proxy(worker), Message::Update { txn, predecessors }, effects);
    }

    /// Those that it conflicts with, but for those that come before another of them anyway.
    fn direct_predecessors(&self, writes: &[Access]) -> Vec<TxnId> {
        let mut direct: Vec<TxnId> = Vec::new();
        for (txn, placed) in self.placed.iter().rev() {
            let conflicts =
                placed.writes.iter().any(|theirs| writes.iter().any(|ours| ours.conflicts(theirs)));
            if conflicts && !direct.iter().any(|later| self.placed[later].after.contains(txn)) {
                direct.push(*txn);
            }
        }
        direct
    }

    /// Behind the latest predecessor that nobody follows at its worker yet; if all are followed (a split) or there is
    /// none (a new chain), where there is least to do.
    fn choose_worker(&self, predecessors: &[TxnId]) -> ReplicaId {
        let end = predecessors.iter().map(|txn| &self.placed[txn]).find(|placed| !placed.continued);
        end.map_or_else(|| self.least_busy(), |placed| placed.worker)
    }

    fn least_busy(&self) -> ReplicaId {
        let least = (0..self.queued.len()).min_by_key(|worker| self.queued[*worker]);
        ReplicaId(least.unwrap_or_default() as u16)
    }

    fn on_message(&mut self, message: &Message) {
        if let Message::Finished { worker, .. } = message {
            let queued = &mut self.queued[usize::from(worker.0)];
            *queued = queued.saturating_sub(1);
        }
    }
}

/// The one log of the workers' decisions.
#[derive(Debug)]
struct Decisions {
    decided: Csn,
    undurable: VecDeque<(Csn, TxnId, ReplicaId)>,
}

impl Decisions {
    fn decide(&mut self, txn: TxnId, worker: ReplicaId, effects: &mut Vec<Effect>) -> Csn {
        self.decided = self.decided.next();
        self.undurable.push_back((self.decided, txn, worker));
        effects.push(Effect::Append { csn: self.decided, decision: Decision::Commit(txn) });
        self.decided
    }

    fn on_durable(&mut self, durable: Csn, effects: &mut Vec<Effect>) {
        while let Some((csn, txn, replica)) =
            self.undurable.front().copied().filter(|(csn, ..)| *csn <= durable)
        {
            self.undurable.pop_front();
            effects.push(Effect::CommitAt { txn, replica, csn });
        }
    }
}

#[derive(Debug)]
struct Waiting {
    txn: TxnId,
    predecessors: Vec<TxnId>,
}

#[derive(Debug)]
struct WriteSet {
    txn: TxnId,
    origin: ReplicaId,
    vector: Vec<u64>,
}

/// Runs its queue one after the other, and exchanges write sets with the others.
#[derive(Debug)]
struct Worker {
    me: ReplicaId,
    queue: VecDeque<Waiting>,
    running: Option<(TxnId, Option<Csn>)>,
    reading: HashSet<TxnId>,
    /// How many updates of each worker are contained: its position.
    vector: Vec<u64>,
    contained: HashSet<TxnId>,
    /// Write sets that have arrived and are not applied.
    arrived: Vec<WriteSet>,
    applying: Option<WriteSet>,
}

impl Worker {
    fn new(me: ReplicaId, workers: u16) -> Worker {
        Worker {
            me,
            queue: VecDeque::new(),
            running: None,
            reading: HashSet::default(),
            vector: vec![0; usize::from(workers)],
            contained: HashSet::default(),
            arrived: Vec::new(),
            applying: None,
        }
    }

    fn own_commits(&self) -> u64 {
        self.vector[usize::from(self.me.0)]
    }

    fn on_message(&mut self, from: Place, message: Message, effects: &mut Vec<Effect>) {
        match (message, from) {
            (Message::Update { txn, predecessors }, _) => {
                self.queue.push_back(Waiting { txn, predecessors });
                self.run_next(effects);
            }
            (Message::Read { txn }, _) => {
                self.reading.insert(txn);
                self.execute(txn, How::Alone, effects);
            }
            (Message::WriteSet { txn, vector }, Place::Proxy(origin)) => {
                self.arrived.push(WriteSet { txn, origin, vector });
                self.apply_next(effects);
            }
            _ => {}
        }
    }

    /// The next update starts when the write sets of its predecessors at other workers are here (section III).
    fn run_next(&mut self, effects: &mut Vec<Effect>) {
        let Some(next) = self.queue.front().filter(|_| self.running.is_none()) else { return };
        if next.predecessors.iter().all(|predecessor| self.contained.contains(predecessor)) {
            let txn = next.txn;
            self.queue.pop_front();
            self.running = Some((txn, None));
            self.execute(txn, How::Home { open: true }, effects);
        }
    }

    fn execute(&self, txn: TxnId, how: How, effects: &mut Vec<Effect>) {
        let hold = how != How::Alone;
        effects.push(Effect::Execute { txn, op: OpId(0), replica: self.me, how, hold });
    }

    fn on_executed(
        &mut self,
        txn: TxnId,
        outcome: &Outcome,
        decisions: &mut Decisions,
        effects: &mut Vec<Effect>,
    ) {
        let finished = Message::Finished { txn, worker: self.me };
        if self.reading.remove(&txn) {
            return send(SCHEDULER, finished, effects);
        }
        let Some((_, csn)) = self.running.as_mut().filter(|(running, _)| *running == txn) else { return };
        if matches!(outcome, Outcome::Done { .. }) {
            *csn = Some(decisions.decide(txn, self.me, effects));
            return;
        }
        // Nothing was written; but its number in the chain is waited for, so it ends like an empty write set.
        effects.push(Effect::Leave { txn, replica: self.me });
        self.complete(txn, effects);
    }

    fn on_committed(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        let Some((txn, _)) = self.running.filter(|(_, own)| *own == Some(csn)) else { return };
        effects.push(Effect::Acknowledge { txn, op: OpId(0), csn });
        self.complete(txn, effects);
    }

    /// Tells everybody, and goes on with the queue.
    fn complete(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        self.running = None;
        self.contained.insert(txn);
        self.vector[usize::from(self.me.0)] += 1;
        let others = (0..self.vector.len() as u16).map(ReplicaId).filter(|other| *other != self.me);
        for other in others {
            let message = AnyMessage::Chains(Message::WriteSet { txn, vector: self.vector.clone() });
            effects.push(Effect::Ship { txn, to: Place::Proxy(other), message });
        }
        send(SCHEDULER, Message::Finished { txn, worker: self.me }, effects);
        self.run_next(effects);
    }

    /// Causal order: the next of its origin, and everything that its origin contained is here.
    fn apply_next(&mut self, effects: &mut Vec<Effect>) {
        if self.applying.is_some() {
            return;
        }
        let is_next = |set: &WriteSet| {
            let origin = usize::from(set.origin.0);
            set.vector.iter().zip(&self.vector).enumerate().all(|(worker, (theirs, ours))| {
                if worker == origin { *theirs == ours + 1 } else { theirs <= ours }
            })
        };
        let Some(at) = self.arrived.iter().position(is_next) else { return };
        let set = self.arrived.remove(at);
        let origin = Place::Proxy(set.origin);
        effects.push(Effect::ApplyShipped { origin, txn: set.txn, replica: self.me });
        self.applying = Some(set);
    }

    fn on_write_set_applied(&mut self, origin: ReplicaId, txn: TxnId, effects: &mut Vec<Effect>) {
        let Some(set) = self.applying.take_if(|set| set.origin == origin && set.txn == txn) else { return };
        self.vector[usize::from(set.origin.0)] += 1;
        self.contained.insert(set.txn);
        self.apply_next(effects);
        self.run_next(effects);
    }
}

fn send(to: Place, message: Message, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { to, message: AnyMessage::Chains(message) });
}

#[cfg(test)]
mod tests;
