//! Peers: nodes with a database and clients of their own, each of which executes what its clients ask and sends what was written to all others.
//!
//! A building block of `invalidation`, `weak`, `partitioned`, `lock_distributed` and `lock_central`. They differ in how a peer gets
//! permission to read and write tables; everything else is here:
//!
//! ```text
//!   a client's statement -> Permission -> the peer's line -> its database -> commit -> the client hears of it
//!                             ^    |        (copies.rs)                         |
//!                             |    v                                            v
//!                        other peers' Permission                  updates to other peers, applied there in
//!                                                                 the order of each table's versions
//! ```
//!
//! Paper: T. Repantis, A. Iyengar, V. Kalogeraki, I. Rouvellou: *Consistent Replication in Distributed Multi-Tier Architectures*
//! (CollaborateCom 2011), sections III and IV.
//!
//! Transactions are single statements, as the paper's middleware sees them: it grants access to tables for each by itself.
//! A table that a writing statement only reads is taken as written, since others execute the statement, too, and must find the same; but not if all that it writes is
//! divided by a column, so that nobody else executes it.
//!
//! Invariants, where peers ask for permission:
//! - a statement begins while the peer's copies of all its tables contain every write that anybody has been told of;
//! - no table is written by two at once;
//! - each write of a table is its next version, and everywhere applied as that.
//!
//! Updates may be *coalesced* (section III.C.3): of two that follow each other the first need not be applied if the second hides it ([`RowChange`]). Nobody reads
//! the table in between, since whoever has heard of the second waits for it.
//!
//! Tables may be *cut* into granules, each of which is asked for and has versions like a table (`granules.rs`); *tables* below and in the protocols are these, too.
//!
//! Tables may be *divided*: each peer has rows of its own, those that its clients use or those that have certain values, and nobody is asked about them
//! (`parts.rs`). A statement that writes such tables writes no others.
//!
//! Statements about the whole database ([`TableId::ALL`]) are not foreseen. Messages between two peers must arrive in the order in which they were sent. A
//! read finds what its database contained when it was given the order, as in a snapshot: otherwise two reads of the same two tables could each
//! find one of two writes.

pub mod by_invalidation;
mod copies;
pub mod granules;
pub mod parts;
mod peer;

use std::fmt;

use smallvec::SmallVec;

use crate::effect::Effect;
use crate::event::{Event, Place, RowChange};
use crate::ids::{Instant, NodeId, TxnId};
use crate::item::{AccessSet, TableId};
use crate::message::Message as AnyMessage;
use crate::protocol::{Guarantee, Position, Protocol, ReplicaStatus, Statements, Status, Writes, peer_of};
use crate::table_queues::{LockMode, TableLocks};

pub(crate) use copies::Copies;
use granules::Granules;
use parts::Divisions;
use peer::Peer;

/// Tables with a version of each: how often it has been written.
pub type Versions = SmallVec<[(TableId, u64); 2]>;

/// When something was asked for, by a clock that is later than all that its node had heard of; the node breaks ties.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp {
    /// The node's time.
    pub at: Instant,
    /// The node.
    pub node: NodeId,
}

/// The clock of a node: local time, but later than every stamp that was given or seen (the paper leaves open what clocks show, III.C.1).
#[derive(Debug)]
pub(crate) struct Clock {
    me: NodeId,
    last: Instant,
}

impl Clock {
    pub(crate) fn new(me: NodeId) -> Clock {
        Clock { me, last: Instant(0) }
    }

    pub(crate) fn stamp(&mut self, now: Instant) -> Stamp {
        self.last = now.max(self.last.plus_ns(1));
        Stamp { at: self.last, node: self.me }
    }

    pub(crate) fn has_seen(&mut self, stamp: Stamp) {
        self.last = self.last.max(stamp.at);
    }
}

/// What peers say to each other about what was written.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// What was written; comes with the writes.
    Update {
        /// The transaction, by its node's numbers.
        txn: TxnId,
        /// The tables, as they are after it.
        versions: Versions,
        /// If it is all that was done: the row that was changed.
        change: Option<RowChange>,
    },
    /// The same of a statement that failed: these versions of the tables change nothing.
    Nothing {
        /// The tables.
        versions: Versions,
    },
    /// A transaction of the sender's is about rows of several peers: keep others from those that are here.
    Latch {
        /// The transaction, by its node's numbers.
        txn: TxnId,
        /// Which rows, and how.
        access: AccessSet,
    },
    /// That is done.
    Latched {
        /// The transaction.
        txn: TxnId,
    },
    /// It is over.
    Unlatch {
        /// The transaction.
        txn: TxnId,
    },
}

/// How a peer gets to read and write tables.
pub(crate) trait Permission: fmt::Debug + Send {
    /// Whether statements wait for anything at all.
    const COORDINATES: bool = true;
    /// Whether others must hear of a write that failed: they wait for the version that it was to bring.
    const TELLS_FAILURES: bool = false;

    /// That of one of so many nodes.
    fn new(me: NodeId, nodes: u16) -> Self;

    /// A transaction of this node wants these. It is granted them by [`Turn::grant`], now or later.
    fn ask(&mut self, txn: TxnId, locks: &TableLocks, turn: &mut Turn<'_>);

    /// Another peer has said something about permission. What is of another protocol is ignored.
    fn on_message(&mut self, from: NodeId, message: AnyMessage, turn: &mut Turn<'_>);

    /// A transaction that had been granted something is over. Others have been sent what it wrote.
    fn over(&mut self, txn: TxnId, wrote: bool, turn: &mut Turn<'_>);

    /// Copies of tables here may be current that were not.
    fn copies_changed(&mut self, _turn: &mut Turn<'_>) {}
}

/// What a permission can do at a moment.
pub(crate) struct Turn<'a> {
    pub(crate) now: Instant,
    pub(crate) copies: &'a mut Copies,
    /// Who may go on, in this order.
    granted: &'a mut Vec<TxnId>,
    effects: &'a mut Vec<Effect>,
}

impl Turn<'_> {
    pub(crate) fn grant(&mut self, txn: TxnId) {
        self.granted.push(txn);
    }

    pub(crate) fn send(&mut self, to: NodeId, message: AnyMessage) {
        self.effects.push(Effect::Send { to: Place::Peer(to), message });
    }
}

/// The nodes other than one of them.
pub(crate) fn others(me: NodeId, nodes: u16) -> impl Iterator<Item = NodeId> + Clone {
    (0..nodes).map(NodeId).filter(move |other| *other != me)
}

/// Whether two may not have these at once.
pub(crate) fn conflict(one: &TableLocks, other: &TableLocks) -> bool {
    let writes = |(_, mode): (TableId, LockMode)| mode == LockMode::Write;
    if one.names(TableId::ALL) || other.names(TableId::ALL) {
        return !one.is_empty() && !other.is_empty() && one.iter().chain(other.iter()).any(writes);
    }
    // Both are sorted, and those of tables that are cut may be long.
    let (mut these, mut those) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(this), Some(that)) = (these.peek().copied(), those.peek().copied()) {
        if this.0 == that.0 && (writes(this) || writes(that)) {
            return true;
        }
        if this.0 <= that.0 {
            these.next();
        }
        if that.0 <= this.0 {
            those.next();
        }
    }
    false
}

/// A protocol of peers; the database of node `n` is replica `n`.
#[derive(Debug)]
pub struct Peers<P> {
    name: &'static str,
    guarantee: Guarantee,
    peers: Vec<Peer<P>>,
}

#[allow(private_bounds, reason = "permissions are protocols' own affair")]
impl<P: Permission> Peers<P> {
    /// So many nodes. Of divided tables each has rows of its own. What is about rows of another one comes there, by the driver.
    pub(crate) fn new(name: &'static str, guarantee: Guarantee, nodes: u16, divided: &Divisions) -> Peers<P> {
        let peers = (0..nodes).map(|me| Peer::new(NodeId(me), nodes, divided.clone())).collect();
        Peers { name, guarantee, peers }
    }

    /// With tables of which parts are taken and written.
    #[must_use]
    pub(crate) fn cut(mut self, granules: &Granules) -> Peers<P> {
        self.peers.iter_mut().for_each(|peer| peer.granules.clone_from(granules));
        self
    }
}

#[allow(private_bounds, reason = "permissions are protocols' own affair")]
impl<P: Permission> Protocol for Peers<P> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn guarantee(&self) -> Guarantee {
        self.guarantee
    }

    /// Numbers of commits that were lost stay empty.
    fn position(&self) -> Position {
        Position::Set
    }

    fn writes(&self) -> Writes {
        Writes::Everywhere
    }

    fn statements(&self) -> Statements {
        Statements::Alone
    }

    fn has_clients_at_peers(&self) -> bool {
        true
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
            Event::Applied { csn, .. } => peer.on_committed(csn, now, effects),
            Event::HomeLost { txn, .. } => peer.on_home_lost(txn, now, effects),
            Event::ShippedApplied { origin: Place::Peer(origin), txn, .. } => {
                peer.on_update_applied(origin, txn, now, effects);
            }
            Event::Message { from: Place::Peer(from), message } => {
                peer.on_message(from, message, now, effects);
            }
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let replicas = self.peers.iter().map(|peer| ReplicaStatus {
            up: true,
            applied: peer.decided().0,
            ..ReplicaStatus::default()
        });
        Status {
            replicas: replicas.collect(),
            transactions: self.peers.iter().map(Peer::open).sum(),
            shared_accesses: self.peers.iter().map(|peer| peer.shared_accesses).sum(),
            shared_writes: self.peers.iter().map(|peer| peer.shared_writes).sum(),
            ..Status::default()
        }
    }

    fn broken_invariant(&self) -> Option<String> {
        peer::written_twice(&self.peers)
    }
}

#[cfg(test)]
pub(crate) mod rig;
#[cfg(test)]
mod tests;
