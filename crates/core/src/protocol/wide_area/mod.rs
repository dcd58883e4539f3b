//! Replication over wide areas: a middleware before each site's database, and updates in one order everywhere.
//!
//! Idea. A transaction arrives whole, at the site that is nearest. If it may write, it is multicast to all sites, which receive all of them in one
//! order; each site takes those that conflict in that order, and no agreement about their end is needed. Where all sites execute all updates
//! that is one message delay for each.
//! The family has thirty members: [`Choice`].
//!
//! Paper: Y. Lin, B. Kemme, M. Patiño-Martínez, R. Jiménez-Peris: A Middleware for Consistent Data Replication: Is it feasible in WANs?
//! (Euro-Par 2005), sections 2 to 4.
//!
//! Guarantee: 1-copy serializability. A site may be behind, so this is not strict. With [`Queries::LooseSnapshot`] parallel snapshot isolation.
//!
//! Invariants:
//! - a site commits an update only when its place in the order is certain, and, where that is asked for, when no failure can lose it;
//! - of two updates that conflict each site commits the one first that is ordered first;
//! - where queries read snapshots, a site commits all updates in the order, unless these are loose;
//! - what a client was told to have happened stands at that place in the order at every site.
//!
//! How it differs from the paper: docs/protocols/wide_area.md, *Departures from the paper*.
//!
//! Each execution of an update has a number, in the place of a statement's: what is undone is reported all the same.
//!
//! Whoever waits for writes that may never come, since the site that executes the update is lost or they were sent while it could not be
//! reached, executes it by itself: its statements do the same everywhere, at its place in the order. So the sites need not agree on who is
//! lost, and are told of it each by its own driver ([`Event::PeerLost`]); of what was lost on the way a timer tells, whose number
//! does not matter, and which the driver repeats.
//!
//! What another site says of an execution counts only if the update stands here where it does there, behind the same others. Where places may be told
//! that are another message's in the end, the driver sees to it, since the number of a place does not say who stands before it; a place with
//! another number is noticed here, too.
//!
//! Missing: transactions whose client waits between their statements.

mod line;
mod site;
#[cfg(test)]
mod tests;

use crate::effect::Effect;
use crate::event::{Event, Moment, Place};
use crate::ids::{Csn, Instant, NodeId, OpId, TxnId};
use crate::item::AccessSet;
use crate::message::Message as AnyMessage;

use self::site::Site;
use super::{Foresight, Guarantee, Position, Protocol, ReplicaStatus, Status, Writes, peer_of};

/// One of the thirty (section 4), and what conflicts are counted on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Choice {
    /// How queries are treated.
    pub queries: Queries,
    /// Where updates execute.
    pub execution: Execution,
    /// What has to be known of an update's delivery, and when.
    pub delivery: Delivery,
    /// What conflicts are counted on.
    pub items: Items,
}

impl Choice {
    /// All thirty, on tables.
    pub fn all() -> impl Iterator<Item = Choice> {
        let queries = [Queries::Locked, Queries::Snapshot];
        let executions = [Execution::Symmetric, Execution::PrimaryCopy, Execution::LocalCopy];
        let deliveries = [
            Delivery::Agreed,
            Delivery::Safe,
            Delivery::OptAgreed,
            Delivery::OptSafe,
            Delivery::OrderedOptSafe,
        ];
        queries.into_iter().flat_map(move |queries| {
            executions.into_iter().flat_map(move |execution| {
                let items = Items::Tables;
                deliveries.into_iter().map(move |delivery| Choice { queries, execution, delivery, items })
            })
        })
    }
}

/// How queries are treated (section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Queries {
    /// They wait behind whatever conflicts with them, and are waited for.
    Locked,
    /// They read what is committed at their site, which is a prefix of the order.
    Snapshot,
    /// They read what is committed at their site, where updates that do not conflict commit in any order. This is what the paper has, and not
    /// serializable: it is here to be compared, and does not count among the thirty.
    LooseSnapshot,
}

/// Where updates execute (section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Execution {
    /// At every site.
    Symmetric,
    /// At the site that is responsible for what they write.
    PrimaryCopy,
    /// At the site of their client.
    LocalCopy,
}

/// When an update takes its place in a site's line, and when it may commit (sections 3.3 and 3.4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Delivery {
    /// Both when it is ordered.
    Agreed,
    /// Both when it is stable.
    Safe,
    /// As soon as it is received; when it is ordered.
    OptAgreed,
    /// As soon as it is received; when it is stable.
    OptSafe,
    /// When it is ordered; when it is stable.
    OrderedOptSafe,
}

/// What conflicts are counted on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Items {
    /// Whole tables.
    Tables,
    /// Items as they were found in statements.
    Rows,
}

impl Delivery {
    /// From when on an update has its place.
    #[must_use]
    pub fn takes_place_at(self) -> Moment {
        match self {
            Delivery::OptAgreed | Delivery::OptSafe => Moment::Received,
            Delivery::Agreed | Delivery::OrderedOptSafe => Moment::Ordered,
            Delivery::Safe => Moment::Stable,
        }
    }

    /// From when on it may commit.
    #[must_use]
    pub fn commits_at(self) -> Moment {
        match self {
            Delivery::Agreed | Delivery::OptAgreed => Moment::Ordered,
            Delivery::Safe | Delivery::OptSafe | Delivery::OrderedOptSafe => Moment::Stable,
        }
    }
}

/// What sites say to each other.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Multicast, with the transaction's text: take it in its place.
    Request {
        /// The update.
        txn: TxnId,
        /// What it may read and write.
        access: AccessSet,
    },
    /// With the writes, and for its client's site with the answer: it commits.
    WriteSet {
        /// The update.
        txn: TxnId,
        /// Its place in the order.
        place: Csn,
        /// Which execution that is.
        op: OpId,
    },
    /// With the error for its client's site: it was rolled back.
    Failed {
        /// The update.
        txn: TxnId,
        /// Which execution failed.
        op: OpId,
    },
}

/// All sites of one of the family.
#[derive(Debug)]
pub struct WideArea {
    sites: Vec<Site>,
}

impl WideArea {
    /// So many sites, of which the `n`-th has replica `n`. Transactions of all sites have different numbers.
    #[must_use]
    pub fn new(choice: Choice, sites: u16) -> WideArea {
        WideArea { sites: (0..sites).map(|me| Site::new(choice, NodeId(me), sites)).collect() }
    }

    fn choice(&self) -> Option<Choice> {
        self.sites.first().map(Site::choice)
    }
}

impl Protocol for WideArea {
    fn name(&self) -> &'static str {
        "wide_area"
    }

    fn guarantee(&self) -> Guarantee {
        match self.choice().map(|choice| choice.queries) {
            Some(Queries::LooseSnapshot) => Guarantee::ParallelSnapshotIsolation,
            _ => Guarantee::OneCopySerializability,
        }
    }

    fn position(&self) -> Position {
        match self.choice().map(|choice| choice.queries) {
            Some(Queries::Snapshot) => Position::Prefix,
            _ => Position::Set,
        }
    }

    fn writes(&self) -> Writes {
        match self.choice().map(|choice| choice.execution) {
            Some(Execution::Symmetric) => Writes::Everywhere,
            _ => Writes::AtHome,
        }
    }

    fn foresight(&self) -> Option<Foresight> {
        Some(Foresight::OfReadsAndWrites)
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
            Event::Delivered {
                from,
                moment,
                place,
                message: AnyMessage::WideArea(Message::Request { txn, access }),
            } => site.on_delivered(from, moment, place, txn, &access, effects),
            Event::Message { from, message: AnyMessage::WideArea(message) } => match message {
                Message::WriteSet { txn, place, op } => site.on_write_set(from, txn, place, op, effects),
                Message::Failed { txn, op } => site.on_failed(from, txn, op, effects),
                Message::Request { .. } => {}
            },
            Event::Executed { txn, op, outcome, .. } => site.on_executed(txn, op, &outcome, effects),
            Event::Applied { csn, .. } => site.on_committed(csn, effects),
            Event::HomeLost { txn, .. } => site.on_home_lost(txn, effects),
            Event::ShippedApplied { txn, .. } => site.in_place(txn, effects),
            Event::PeerLost { node } => site.on_peer_lost(node, effects),
            Event::PeerBack { node } => site.on_peer_back(node),
            Event::Timer { .. } => site.on_timer(effects),
            _ => {}
        }
    }

    fn status(&self) -> Status {
        let replicas = self.sites.iter().map(|site| ReplicaStatus {
            up: true,
            applied: site.applied().0,
            ..ReplicaStatus::default()
        });
        Status {
            replicas: replicas.collect(),
            transactions: self.sites.iter().map(Site::open).sum(),
            ..Status::default()
        }
    }

    fn broken_invariant(&self) -> Option<String> {
        self.sites.iter().find_map(Site::broken_invariant)
    }
}
