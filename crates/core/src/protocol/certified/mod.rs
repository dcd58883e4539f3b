//! Certified: an update executes where its client is, and takes its place in the order when it has; whoever has read what is out of date by then is executed in place, or runs again.
//!
//! Idea. Where nobody can say beforehand what a transaction will touch, no place in an order can be kept for it. So it executes first, on what is committed at its
//! site. Then what it read and wrote is multicast, with its writes. Each site takes all of them in one order and comes to the same verdict: it commits unless
//! something that it read or wrote has been written since it began by one that comes before it and committed. There are no locks between sites, and no message is needed to
//! agree.
//!
//! Source: F. Pedone, R. Guerraoui, A. Schiper: *The database state machine approach* (Distributed and Parallel Databases, 2003), and, as the paper on wide areas
//! leaves transactions that come statement by statement to others, what stands beside its protocols here. There only reads
//! count against writes; here writes do, too.
//!
//! Guarantee: 1-copy serializability. A site may be behind, so this is not strict.
//!
//! Invariants:
//! - all sites come to the same verdict on each update: by what was multicast before it, and by nothing else;
//! - a site commits updates in the order, so that what is committed there is a prefix of it, and every snapshot as well;
//! - an update that commits has found, or would have found, what there is at its place in the order.
//!
//! Beyond the source: an update of which it is known when it has executed that it was in vain does not ask for a verdict; one that is known before it
//! executes to need what is ordered and not committed here waits for that; and one waits for another of its site that writes the same, as it would in the database.
//!
//! An update that has executed in vain is multicast once more, to be *executed in place*: every site executes it at the place that it has then, as with
//! [`symmetric`](super::wide_area::Execution::Symmetric) execution, and nobody can take that from it. So who writes what many others write gets through. Its first place stays
//! empty. What it may touch has to be known beforehand, as it is of transactions that come whole. (Who drives a site may find that one cannot be executed elsewhere, and says
//! [`HomeLost`](Event::HomeLost): it runs again at its home.) It counts as written at that place by all sites, whether or not
//! its statements turn out to fail there.
//!
//! An update is to read from one snapshot at its home, or what its failure shows may be of no instant. (What commits has been compared with everything since.)
//!
//! A transaction that comes statement by statement executes from its [`Begin`](Event::Begin) until its client ends it, and what it has touched is told then. Its client has
//! seen answers, so it is refused (40001). If it wrote nothing it needs no verdict.
//!
//! A site that begins anew must come to the same verdicts as the others. They depend on who wrote what so many places back, and on nothing before:
//! [`Certified::resume`].
//!
//! Where an update may commit only when it is stable, an own one is given up only then, too: a place that is not may be lost, and what stood there come to stand
//! where it may commit.

mod site;
#[cfg(test)]
mod tests;

use crate::effect::Effect;
use crate::event::{Event, Place};
use crate::ids::{Csn, Instant, NodeId, OpId, TxnId};
use crate::item::AccessSet;
use crate::message::Message as AnyMessage;

use self::site::Site;
use super::{Guarantee, Protocol, ReplicaStatus, Status, peer_of};

/// Of so many places back it is known who wrote what.
const KNOWN_BACK: u64 = 100_000;

/// When an update may commit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Commits {
    /// When its place is known.
    Ordered,
    /// When besides no failure that is survived can lose it.
    Stable,
}

/// What sites say to each other.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Multicast, with the writes: may it commit?
    Request {
        /// The update.
        txn: TxnId,
        /// Which execution that is.
        op: OpId,
        /// Up to which place its site had committed when it began.
        snapshot: Csn,
        /// What it read and wrote.
        access: AccessSet,
    },
    /// Multicast, with its statements: each site executes it at its place.
    InPlace {
        /// The update.
        txn: TxnId,
        /// What it may read and write.
        access: AccessSet,
    },
}

/// All sites.
#[derive(Debug)]
pub struct Certified {
    sites: Vec<Site>,
}

impl Certified {
    /// So many sites, of which the `n`-th has replica `n`. Transactions of all sites have different numbers.
    #[must_use]
    pub fn new(commits: Commits, sites: u16) -> Certified {
        Certified::remembering(KNOWN_BACK, commits, sites)
    }

    /// The same, where it is known of so many places back who wrote what.
    #[must_use]
    pub fn remembering(places: u64, commits: Commits, sites: u16) -> Certified {
        Certified { sites: (0..sites).map(|me| Site::new(NodeId(me), commits, places)).collect() }
    }

    /// One site begins with everything committed up to a place. Needs what was written at each of so many places back at which an update committed, or failed in place, in
    /// their order; what is older is passed over.
    pub fn resume(
        &mut self,
        node: NodeId,
        committed: Csn,
        written: impl IntoIterator<Item = (Csn, AccessSet)>,
    ) {
        if let Some(site) = self.sites.get_mut(usize::from(node.0)) {
            site.resume(committed, written);
        }
    }
}

impl Protocol for Certified {
    fn name(&self) -> &'static str {
        "certified"
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::OneCopySerializability
    }

    fn has_clients_at_peers(&self) -> bool {
        true
    }

    fn place_of(&self, event: &Event) -> Place {
        peer_of(event)
    }

    fn handle(&mut self, place: Place, _now: Instant, event: Event, effects: &mut Vec<Effect>) {
        let Place::Peer(NodeId(node)) = place else { return };
        let Some(site) = self.sites.get_mut(usize::from(node)) else { return };
        match event {
            Event::Autocommit { begin, statement } => site.on_client(begin.txn, &statement, effects),
            Event::Begin(begin) => site.on_begin(begin.txn, effects),
            Event::Executed { txn, op, outcome, .. } => site.on_executed(txn, op, &outcome, effects),
            Event::Delivered { from, moment, place, message: AnyMessage::Certified(message) } => {
                site.on_delivered(from, moment, place, message, effects);
            }
            Event::Applied { csn, .. } => site.on_committed(csn, effects),
            Event::ShippedApplied { txn, .. } => site.on_applied(txn, effects),
            Event::HomeLost { txn, .. } => site.on_home_lost(txn, effects),
            Event::Opening { txn } => site.on_opening(txn, effects),
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let replicas = self.sites.iter().map(|site| ReplicaStatus {
            up: true,
            applied: site.committed().0,
            ..ReplicaStatus::default()
        });
        Status {
            replicas: replicas.collect(),
            transactions: self.sites.iter().map(Site::open).sum(),
            ..Status::default()
        }
    }
}
