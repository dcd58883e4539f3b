//! Permission by invalidation, for `invalidation` and `partitioned`: all other copies are made invalid before anything is written (section III).

use crate::ids::{NodeId, TxnId};
use crate::item::TableId;
use crate::map::{HashMap, HashSet};
use crate::message::Message as AnyMessage;
use crate::table_queues::TableLocks;

use super::{Clock, Permission, Stamp, Turn, Versions, others};

/// What peers say about permission (III.C).
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Make your copies of these tables invalid.
    Request {
        /// Names the request, and ranks it.
        stamp: Stamp,
        /// The tables, as they are before the write.
        tables: Versions,
    },
    /// Whether that was done.
    Reply {
        /// The request.
        stamp: Stamp,
        /// The later one that it was refused for.
        refused: Option<Stamp>,
    },
}

#[derive(Debug)]
enum State {
    /// The tables are to be valid here, and free of what this node writes before it.
    AwaitingTables,
    /// Nodes that have not replied to a request.
    AwaitingReplies(Stamp, HashSet<NodeId>),
    /// Refused, for this request, which has not come yet.
    Postponed(Stamp),
    /// All have replied.
    Granted(Stamp),
}

#[derive(Debug)]
struct Write {
    locks: TableLocks,
    state: State,
}

impl Write {
    fn stamp(&self) -> Option<Stamp> {
        match &self.state {
            State::AwaitingReplies(stamp, _) | State::Granted(stamp) => Some(*stamp),
            State::AwaitingTables | State::Postponed(_) => None,
        }
    }

    fn is_of_any(&self, tables: &Versions) -> bool {
        tables.iter().any(|(table, _)| self.locks.names(*table))
    }
}

/// One node's part in agreeing on who writes.
#[derive(Debug)]
pub struct Invalidation {
    others: Vec<NodeId>,
    clock: Clock,
    writes: HashMap<TxnId, Write>,
    /// Who has to ask, or to ask again, in order.
    line: Vec<TxnId>,
    /// By table: the latest request that this node made, or granted another one. So nobody who waits for a later one is overtaken by an earlier one.
    latest: HashMap<TableId, Stamp>,
    /// By node: the latest request that has come from there.
    heard: HashMap<NodeId, Stamp>,
}

impl Permission for Invalidation {
    const TELLS_FAILURES: bool = true;

    fn new(me: NodeId, nodes: u16) -> Invalidation {
        Invalidation {
            others: others(me, nodes).collect(),
            clock: Clock::new(me),
            writes: HashMap::default(),
            line: Vec::new(),
            latest: HashMap::default(),
            heard: HashMap::default(),
        }
    }

    /// Sections III.A and III.C.1. Who only reads waits for nothing but valid tables, as everybody does.
    fn ask(&mut self, txn: TxnId, locks: &TableLocks, turn: &mut Turn<'_>) {
        if !locks.writes() {
            return turn.grant(txn);
        }
        self.writes.insert(txn, Write { locks: locks.clone(), state: State::AwaitingTables });
        self.line.push(txn);
        self.request_all(turn);
    }

    fn on_message(&mut self, from: NodeId, message: AnyMessage, turn: &mut Turn<'_>) {
        match message {
            AnyMessage::Invalidation(Message::Request { stamp, tables }) => {
                self.on_request(stamp, &tables, turn);
            }
            AnyMessage::Invalidation(Message::Reply { stamp, refused }) => {
                self.on_reply(from, stamp, refused, turn);
            }
            _ => {}
        }
    }

    fn over(&mut self, txn: TxnId, _: bool, _: &mut Turn<'_>) {
        self.writes.remove(&txn);
    }

    fn copies_changed(&mut self, turn: &mut Turn<'_>) {
        self.request_all(turn);
    }
}

impl Invalidation {
    /// Whoever can asks: all their tables are valid, and nobody of this node is before them with one of these.
    fn request_all(&mut self, turn: &mut Turn<'_>) {
        let standing = self.writes.values().filter(|write| !matches!(write.state, State::AwaitingTables));
        let mut taken: HashSet<TableId> = standing.flat_map(|write| tables_of(&write.locks)).collect();
        for txn in std::mem::take(&mut self.line) {
            let Some(write) = self.writes.get(&txn) else { continue };
            let free = tables_of(&write.locks).all(|table| !taken.contains(&table));
            taken.extend(tables_of(&write.locks));
            if free && turn.copies.are_current(&write.locks) {
                self.request(txn, turn);
            } else {
                self.line.push(txn);
            }
        }
    }

    /// Section III.C.1.
    fn request(&mut self, txn: TxnId, turn: &mut Turn<'_>) {
        let Some(write) = self.writes.get_mut(&txn) else { return };
        let stamp = self.clock.stamp(turn.now);
        if self.others.is_empty() {
            write.state = State::Granted(stamp);
            return turn.grant(txn);
        }
        write.state = State::AwaitingReplies(stamp, self.others.iter().copied().collect());
        let versions = tables_of(&write.locks).map(|table| (table, turn.copies.version(table)));
        let tables: Versions = versions.collect();
        self.latest.extend(tables.iter().map(|(table, _)| (*table, stamp)));
        for other in &self.others {
            let message = Message::Request { stamp, tables: tables.clone() };
            turn.send(*other, AnyMessage::Invalidation(message));
        }
    }

    /// Section III.C.2, algorithm 2: the later request dominates.
    fn on_request(&mut self, stamp: Stamp, tables: &Versions, turn: &mut Turn<'_>) {
        self.clock.has_seen(stamp);
        self.heard.insert(stamp.node, stamp);
        let known = tables.iter().filter_map(|(table, _)| self.latest.get(table)).copied();
        let refused = known.filter(|other| *other > stamp).max();
        for (table, version) in tables {
            // Whoever asks has what it asks about.
            turn.copies.require(*table, version + u64::from(refused.is_none()));
            if refused.is_none() {
                self.latest.insert(*table, stamp);
            }
        }
        turn.send(stamp.node, AnyMessage::Invalidation(Message::Reply { stamp, refused }));
        // Whoever is dominated tries again, and whoever was refused for what has come now.
        let dominates = |write: &Write| {
            refused.is_none() && write.is_of_any(tables) && write.stamp().is_some_and(|mine| mine < stamp)
        };
        let again = |write: &Write| match write.state {
            State::Postponed(later) => later.node == stamp.node && later <= stamp,
            _ => dominates(write),
        };
        let again: Vec<TxnId> =
            self.writes.iter().filter(|(_, write)| again(write)).map(|(txn, _)| *txn).collect();
        self.try_again(again, turn);
    }

    fn try_again(&mut self, mut again: Vec<TxnId>, turn: &mut Turn<'_>) {
        if again.is_empty() {
            return;
        }
        again.sort_unstable();
        for txn in &again {
            if let Some(write) = self.writes.get_mut(txn) {
                write.state = State::AwaitingTables;
            }
        }
        self.line.splice(..0, again);
        self.request_all(turn);
    }

    fn on_reply(&mut self, from: NodeId, stamp: Stamp, refused: Option<Stamp>, turn: &mut Turn<'_>) {
        let asked = self.writes.iter_mut().find(|(_, write)| write.stamp() == Some(stamp));
        // A reply to a request that was dominated meanwhile says nothing any more.
        let Some((txn, write)) = asked else { return };
        let State::AwaitingReplies(_, missing) = &mut write.state else { return };
        let txn = *txn;
        if let Some(later) = refused {
            self.clock.has_seen(later);
            // It was sent to this node, too. If it has come, it was refused here for another table.
            if self.heard.get(&later.node).is_some_and(|heard| *heard >= later) {
                return self.try_again(vec![txn], turn);
            }
            write.state = State::Postponed(later);
            return;
        }
        missing.remove(&from);
        if missing.is_empty() {
            write.state = State::Granted(stamp);
            turn.grant(txn);
        }
    }
}

fn tables_of(locks: &TableLocks) -> impl Iterator<Item = TableId> {
    locks.iter().map(|(table, _)| table)
}
