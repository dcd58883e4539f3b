//! Invalidation: a node that wants to write a table first makes every other node's copy of it invalid.
//!
//! **A sketch**, to prove that the trait carries a protocol of peers; completed later, and not selectable. What it lacks is
//! listed below.
//!
//! Idea. Every node has a database of its own and serves reads of valid tables alone. A write asks all other nodes to
//! invalidate their copies, with a timestamp. Of two requests for a table the later dominates: a node that knows of a
//! later one says no. A node that was granted by all executes, and sends what it wrote; each copy is valid again
//! once it has applied that. A node that was refused tries again after the other's update. Only the replies of nodes that
//! want to write matter for agreement, so no ordered broadcast is needed.
//!
//! Paper: T. Repantis, A. Iyengar, V. Kalogeraki, I. Rouvellou: Consistent Replication in Distributed Multi-Tier
//! Architectures (CollaborateCom 2011), section III.
//!
//! Guarantee: one copy of every table; transactions here are single statements, so this is 1-copy serializability.
//!
//! Invariants:
//! - a node executes a write only while every other node holds its tables invalid on its behalf;
//! - the timestamps of a node's requests increase, and no two nodes' are equal;
//! - a table that was made invalid becomes valid when the update is applied, or the request withdrawn.
//!
//! How it differs from the paper: a request names all tables of the statement; a copy is valid when the update is
//! applied, not when it has arrived (the paper's reader could see the old rows); a write that fails withdraws its
//! request, which the paper does not treat; ties are broken by node number instead of a hash.
//!
//! Missing: transactions of several statements, nodes that fail or join, tables that only some nodes hold, and
//! requests that cross with a withdrawal. Messages between two nodes must arrive in order.

use smallvec::SmallVec;

use crate::effect::{Decision, Effect, How};
use crate::event::{Event, Outcome, Place, Statement, StatementKind};
use crate::ids::{Csn, Instant, NodeId, OpId, ReplicaId, TxnId};
use crate::item::TableId;
use crate::map::{HashMap, HashSet};
use crate::message::Message as AnyMessage;
use crate::table_queues::{LockMode, TableLocks};

use super::{Guarantee, Protocol, ReplicaStatus, Status, Writes, peer_of};

/// When a request was made, by its node's clock; the node breaks ties.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp {
    /// The node's local time.
    pub at: Instant,
    /// The node.
    pub node: NodeId,
}

/// Tables that one statement writes.
pub type Tables = SmallVec<[TableId; 2]>;

/// What peers say to each other (section III.C).
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Make your copies of these tables invalid.
    Request {
        /// The tables.
        tables: Tables,
        /// Names the request, and ranks it.
        stamp: Stamp,
    },
    /// Whether that was done.
    Reply {
        /// The request.
        stamp: Stamp,
        /// False if a later request is known.
        granted: bool,
    },
    /// What was written; comes with the writes.
    Update {
        /// The request.
        stamp: Stamp,
        /// The transaction, by its node's numbers.
        txn: TxnId,
    },
    /// Nothing will be written: your copies are as good as they were.
    Withdraw {
        /// The request.
        stamp: Stamp,
    },
}

/// What a transaction waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// Its tables to be valid and not being written by this node.
    AwaitingTables,
    /// Replies of these nodes.
    AwaitingReplies(Stamp, HashSet<NodeId>),
    /// The update of the request that dominated its own.
    Postponed,
    /// The database. A write holds its stamp until its update is sent.
    Executing(Option<Stamp>),
}

#[derive(Debug)]
struct Txn {
    op: OpId,
    reads: bool,
    tables: Tables,
    state: State,
    csn: Option<Csn>,
}

impl Txn {
    /// The request that still stands for it.
    fn stamp(&self) -> Option<Stamp> {
        match &self.state {
            State::AwaitingReplies(stamp, _) | State::Executing(Some(stamp)) => Some(*stamp),
            _ => None,
        }
    }

    /// Whether its request stands for one of these tables.
    fn writes_any(&self, tables: &[TableId]) -> bool {
        self.stamp().is_some() && self.tables.iter().any(|table| tables.contains(table))
    }
}

/// One node.
#[derive(Debug)]
struct Peer {
    me: NodeId,
    others: Vec<NodeId>,
    txns: HashMap<TxnId, Txn>,
    /// Transactions that wait for tables, in order.
    line: Vec<TxnId>,
    /// Tables whose copy here is invalid, and on whose behalf.
    invalid: HashMap<TableId, Stamp>,
    /// Updates that are being applied, and the requests that they end.
    updates: HashMap<(NodeId, TxnId), Stamp>,
    last_stamp: Instant,
    /// Commits of this node's own log.
    decided: Csn,
    undurable: Vec<TxnId>,
}

/// The peers of the invalidation protocol.
#[derive(Debug)]
pub struct Invalidation {
    peers: Vec<Peer>,
}

impl Invalidation {
    /// `nodes` peers; the database of node `n` is replica `n`.
    #[must_use]
    pub fn new(nodes: u16) -> Invalidation {
        let peer = |me| Peer {
            me: NodeId(me),
            others: (0..nodes).filter(|other| *other != me).map(NodeId).collect(),
            txns: HashMap::default(),
            line: Vec::new(),
            invalid: HashMap::default(),
            updates: HashMap::default(),
            last_stamp: Instant(0),
            decided: Csn(0),
            undurable: Vec::new(),
        };
        Invalidation { peers: (0..nodes).map(peer).collect() }
    }
}

impl Protocol for Invalidation {
    fn name(&self) -> &'static str {
        "invalidation"
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::OneCopySerializability
    }

    fn writes(&self) -> Writes {
        Writes::AtHome
    }

    fn place_of(&self, event: &Event) -> Place {
        peer_of(event)
    }

    fn handle(&mut self, place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        let Place::Peer(NodeId(node)) = place else { return };
        let Some(peer) = self.peers.get_mut(usize::from(node)) else { return };
        match event {
            Event::Autocommit { begin, statement } => peer.on_statement(begin.txn, &statement, now, effects),
            Event::Executed { txn, outcome, .. } => peer.on_executed(txn, &outcome, now, effects),
            Event::Durable { csn } => peer.on_durable(csn, effects),
            Event::Applied { csn, .. } => peer.on_committed(csn, now, effects),
            Event::ShippedApplied { origin: Place::Peer(origin), txn, .. } => {
                peer.on_update_applied(origin, txn, now, effects);
            }
            Event::Message { from: Place::Peer(from), message: AnyMessage::Invalidation(message) } => {
                peer.on_message(from, message, now, effects);
            }
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let replicas = self.peers.iter().map(|peer| ReplicaStatus {
            up: true,
            applied: peer.decided.0,
            ..ReplicaStatus::default()
        });
        Status {
            replicas: replicas.collect(),
            transactions: self.peers.iter().map(|peer| peer.txns.len() as u64).sum(),
            ..Status::default()
        }
    }
}

/// From clients: replica access (section III.A).
impl Peer {
    fn on_statement(&mut self, id: TxnId, statement: &Statement, now: Instant, effects: &mut Vec<Effect>) {
        let locks = TableLocks::of(&statement.access);
        let reads = statement.kind == StatementKind::Read;
        let touched = locks.iter().filter(|(_, mode)| reads || *mode == LockMode::Write);
        let tables = touched.map(|(table, _)| table).collect();
        self.txns.insert(id, Txn { op: OpId(0), reads, tables, state: State::AwaitingTables, csn: None });
        self.line.push(id);
        self.admit(now, effects);
    }

    /// Lets those go on whose tables are valid; a write also waits for the writes of this node before it.
    fn admit(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        for id in std::mem::take(&mut self.line) {
            let Some(txn) = self.txns.get(&id) else { continue };
            let valid = txn.tables.iter().all(|table| !self.invalid.contains_key(table));
            match (valid, txn.reads) {
                (true, true) => self.execute(id, None, effects),
                (true, false) if !self.is_writing(&txn.tables) => self.request(id, now, effects),
                _ => self.line.push(id),
            }
        }
    }

    fn is_writing(&self, tables: &[TableId]) -> bool {
        self.txns.values().any(|txn| txn.writes_any(tables))
    }

    /// Section III.C.1.
    fn request(&mut self, id: TxnId, now: Instant, effects: &mut Vec<Effect>) {
        self.last_stamp = now.max(self.last_stamp.plus_ns(1));
        let stamp = Stamp { at: self.last_stamp, node: self.me };
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if self.others.is_empty() {
            return self.execute(id, Some(stamp), effects);
        }
        txn.state = State::AwaitingReplies(stamp, self.others.iter().copied().collect());
        let tables = txn.tables.clone();
        for other in &self.others {
            send(*other, Message::Request { tables: tables.clone(), stamp }, effects);
        }
    }

    fn execute(&mut self, id: TxnId, stamp: Option<Stamp>, effects: &mut Vec<Effect>) {
        let replica = self.replica();
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.state = State::Executing(stamp);
        let how = if txn.reads { How::Alone } else { How::Home { open: true } };
        effects.push(Effect::Execute { txn: id, op: txn.op, replica, how, hold: !txn.reads });
    }

    fn replica(&self) -> ReplicaId {
        ReplicaId(self.me.0)
    }
}

/// From other peers.
impl Peer {
    fn on_message(&mut self, from: NodeId, message: Message, now: Instant, effects: &mut Vec<Effect>) {
        match message {
            Message::Request { tables, stamp } => self.on_request(&tables, stamp, effects),
            Message::Reply { stamp, granted } => self.on_reply(from, stamp, granted, effects),
            Message::Update { stamp, txn } => {
                self.updates.insert((from, txn), stamp);
                let origin = Place::Peer(from);
                effects.push(Effect::ApplyShipped { origin, txn, replica: self.replica() });
            }
            Message::Withdraw { stamp } => self.revalidate(stamp, now, effects),
        }
    }

    /// Section III.C.2, algorithm 2: the later request dominates.
    fn on_request(&mut self, tables: &[TableId], stamp: Stamp, effects: &mut Vec<Effect>) {
        let mine = self.txns.values().filter(|txn| txn.writes_any(tables)).filter_map(Txn::stamp);
        let theirs = tables.iter().filter_map(|table| self.invalid.get(table)).copied();
        let granted = mine.chain(theirs).all(|other| other < stamp);
        if granted {
            for txn in self.txns.values_mut().filter(|txn| txn.writes_any(tables)) {
                txn.state = State::Postponed;
            }
            self.invalid.extend(tables.iter().map(|table| (*table, stamp)));
        }
        send(stamp.node, Message::Reply { stamp, granted }, effects);
    }

    fn on_reply(&mut self, from: NodeId, stamp: Stamp, granted: bool, effects: &mut Vec<Effect>) {
        let asked = self.txns.iter_mut().find(|(_, txn)| txn.stamp() == Some(stamp));
        // A reply to a request that was dominated meanwhile says nothing any more.
        let Some((id, txn)) = asked else { return };
        let State::AwaitingReplies(_, missing) = &mut txn.state else { return };
        if !granted {
            txn.state = State::Postponed;
            return;
        }
        missing.remove(&from);
        if missing.is_empty() {
            let id = *id;
            self.execute(id, Some(stamp), effects);
        }
    }

    /// Section III.C.3, one step later than there: when the rows are in place.
    fn on_update_applied(&mut self, origin: NodeId, txn: TxnId, now: Instant, effects: &mut Vec<Effect>) {
        if let Some(stamp) = self.updates.remove(&(origin, txn)) {
            self.revalidate(stamp, now, effects);
        }
    }

    /// A request is over: the copies that it had made invalid are valid, unless a later one has dominated it.
    fn revalidate(&mut self, stamp: Stamp, now: Instant, effects: &mut Vec<Effect>) {
        self.invalid.retain(|_, invalidated| *invalidated != stamp);
        self.retry(now, effects);
    }

    /// Whoever was dominated asks again, with a new timestamp.
    fn retry(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let mut postponed: Vec<TxnId> = Vec::new();
        for (id, txn) in self.txns.iter_mut().filter(|(_, txn)| txn.state == State::Postponed) {
            txn.state = State::AwaitingTables;
            postponed.push(*id);
        }
        postponed.sort_unstable();
        self.line.splice(..0, postponed);
        self.admit(now, effects);
    }
}

/// From the database and the log.
impl Peer {
    fn on_executed(&mut self, id: TxnId, outcome: &Outcome, now: Instant, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let State::Executing(stamp) = txn.state else { return };
        match (stamp, outcome) {
            (None, _) => {
                self.txns.remove(&id);
            }
            (Some(_), Outcome::Done { .. }) => {
                self.decided = self.decided.next();
                txn.csn = Some(self.decided);
                self.undurable.push(id);
                effects.push(Effect::Append { csn: self.decided, decision: Decision::Commit(id) });
            }
            (Some(stamp), _) => {
                self.txns.remove(&id);
                effects.push(Effect::Leave { txn: id, replica: self.replica() });
                for other in &self.others {
                    send(*other, Message::Withdraw { stamp }, effects);
                }
                self.admit(now, effects);
            }
        }
    }

    fn on_durable(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        let replica = self.replica();
        let txns = &self.txns;
        self.undurable.retain(|id| {
            let Some(own) = txns.get(id).and_then(|txn| txn.csn).filter(|own| *own <= csn) else {
                return true;
            };
            effects.push(Effect::CommitAt { txn: *id, replica, csn: own });
            false
        });
    }

    fn on_committed(&mut self, csn: Csn, now: Instant, effects: &mut Vec<Effect>) {
        let Some(id) = self.txns.iter().find(|(_, txn)| txn.csn == Some(csn)).map(|(id, _)| *id) else {
            return;
        };
        let Some(txn) = self.txns.remove(&id) else { return };
        let State::Executing(Some(stamp)) = txn.state else { return };
        effects.push(Effect::Acknowledge { txn: id, op: txn.op, csn });
        for other in &self.others {
            let message = AnyMessage::Invalidation(Message::Update { stamp, txn: id });
            effects.push(Effect::Ship { txn: id, to: Place::Peer(*other), message });
        }
        self.admit(now, effects);
    }
}

fn send(to: NodeId, message: Message, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { to: Place::Peer(to), message: AnyMessage::Invalidation(message) });
}

#[cfg(test)]
mod tests;
