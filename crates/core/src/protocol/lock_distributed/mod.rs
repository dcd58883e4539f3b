//! Distributed locks: a node that wants to read or write tables asks all others, each time.
//!
//! Paper: Repantis et al. (CollaborateCom 2011), section IV.C, after G. Ricart, A. Agrawala: *An optimal algorithm for mutual exclusion in computer
//! networks* (CACM 1981), which it names: a node that has asked earlier for what conflicts answers when it is done. What was written goes out before that
//! answer, so it is there when the next one begins.
//!
//! Guarantee: strict serializability of transactions that are single statements, as all are here.
//!
//! Invariant, beside those of [`peers`](crate::peers): of two requests that conflict, the one with the earlier timestamp is granted first.
//!
//! How it differs from the paper: the tiebreaker is a timestamp, the node's number if that is the same; and who has read tells those who wait for it, while in the paper
//! it tells all. So a read takes 2 (n - 1) messages instead of 3 (n - 1); a write 3 (n - 1) in both, with the update.

use std::collections::BTreeMap;

use crate::ids::{NodeId, TxnId};
use crate::message::Message as AnyMessage;
use crate::peers::parts::Divisions;
use crate::peers::{Clock, Peers, Permission, Stamp, Turn, conflict, others};
use crate::protocol::Guarantee;
use crate::table_queues::TableLocks;

/// What peers say about locks.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// May I have these?
    Acquire {
        /// Names the request, and ranks it.
        stamp: Stamp,
        /// What is wanted.
        locks: TableLocks,
    },
    /// You may, as far as I am concerned.
    Grant {
        /// The request.
        stamp: Stamp,
    },
}

/// `nodes` peers.
#[must_use]
pub fn new(nodes: u16) -> Peers<DistributedLocks> {
    Peers::new("lock_distributed", Guarantee::StrictSerializability, nodes, &Divisions::default())
}

#[derive(Debug)]
struct Mine {
    txn: TxnId,
    locks: TableLocks,
    /// Nodes that have not answered.
    missing: usize,
    granted: bool,
}

/// One node's part in agreeing on who holds what.
#[derive(Debug)]
pub struct DistributedLocks {
    others: Vec<NodeId>,
    clock: Clock,
    mine: BTreeMap<Stamp, Mine>,
    /// Requests of others that are answered later.
    deferred: Vec<(Stamp, TableLocks)>,
}

impl Permission for DistributedLocks {
    fn new(me: NodeId, nodes: u16) -> DistributedLocks {
        DistributedLocks {
            others: others(me, nodes).collect(),
            clock: Clock::new(me),
            mine: BTreeMap::new(),
            deferred: Vec::new(),
        }
    }

    fn ask(&mut self, txn: TxnId, locks: &TableLocks, turn: &mut Turn<'_>) {
        let stamp = self.clock.stamp(turn.now);
        for other in &self.others {
            let message = Message::Acquire { stamp, locks: locks.clone() };
            turn.send(*other, AnyMessage::LockDistributed(message));
        }
        let missing = self.others.len();
        self.mine.insert(stamp, Mine { txn, locks: locks.clone(), missing, granted: false });
        self.grant_all(turn);
    }

    fn on_message(&mut self, _: NodeId, message: AnyMessage, turn: &mut Turn<'_>) {
        match message {
            AnyMessage::LockDistributed(Message::Acquire { stamp, locks }) => {
                self.clock.has_seen(stamp);
                self.deferred.push((stamp, locks));
                self.answer(turn);
            }
            AnyMessage::LockDistributed(Message::Grant { stamp }) => {
                if let Some(mine) = self.mine.get_mut(&stamp) {
                    mine.missing -= 1;
                }
                self.grant_all(turn);
            }
            _ => {}
        }
    }

    fn over(&mut self, txn: TxnId, _: bool, turn: &mut Turn<'_>) {
        self.mine.retain(|_, mine| mine.txn != txn);
        self.answer(turn);
        self.grant_all(turn);
    }
}

impl DistributedLocks {
    /// Answers whomever no earlier request of this node keeps from it.
    fn answer(&mut self, turn: &mut Turn<'_>) {
        let mine = &self.mine;
        self.deferred.retain(|(stamp, locks)| {
            let waits = mine.range(..stamp).any(|(_, mine)| conflict(&mine.locks, locks));
            if !waits {
                turn.send(stamp.node, AnyMessage::LockDistributed(Message::Grant { stamp: *stamp }));
            }
            waits
        });
    }

    /// Whom all others have answered, and nobody of this node is before.
    fn grant_all(&mut self, turn: &mut Turn<'_>) {
        let ready = |stamp: &Stamp, mine: &Mine| {
            let is_first = || !self.mine.range(..stamp).any(|(_, other)| conflict(&other.locks, &mine.locks));
            mine.missing == 0 && !mine.granted && is_first()
        };
        let ready: Vec<Stamp> =
            self.mine.iter().filter(|(stamp, mine)| ready(stamp, mine)).map(|(stamp, _)| *stamp).collect();
        for stamp in ready {
            if let Some(mine) = self.mine.get_mut(&stamp) {
                mine.granted = true;
                turn.grant(mine.txn);
            }
        }
    }
}

#[cfg(test)]
mod tests;
