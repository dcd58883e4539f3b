//! Central locks: a node that wants to read or write tables asks the first node, which manages all locks.
//!
//! Paper: Repantis et al. (CollaborateCom 2011), section IV.C, which describes it and measures the distributed one.
//!
//! Guarantee: strict serializability of transactions that are single statements, as all are here.
//!
//! Invariants, beside those of [`peers`](crate::peers): locks are granted in the order in which requests reach the manager; a grant names
//! the version of each table that the last holder left, so that what was written and comes by another way is waited for.

use crate::ids::{NodeId, TxnId};
use crate::item::TableId;
use crate::map::HashMap;
use crate::message::Message as AnyMessage;
use crate::peers::parts::Divisions;
use crate::peers::{Peers, Permission, Turn, Versions};
use crate::protocol::Guarantee;
use crate::table_queues::{TableLocks, TableQueues};

/// The node that manages locks.
const MANAGER: NodeId = NodeId(0);

/// What peers and the manager say to each other.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// May I have these?
    Acquire {
        /// Who wants them, by its node's numbers.
        txn: TxnId,
        /// What is wanted.
        locks: TableLocks,
    },
    /// You have them.
    Grant {
        /// Who wanted them.
        txn: TxnId,
        /// The tables, as they are to be.
        versions: Versions,
    },
    /// I have done with them.
    Release {
        /// Who had them.
        txn: TxnId,
        /// Whether anything was written.
        wrote: bool,
    },
}

/// `nodes` peers.
#[must_use]
pub fn new(nodes: u16) -> Peers<CentralLocks> {
    Peers::new("lock_central", Guarantee::StrictSerializability, nodes, &Divisions::default())
}

type Holder = (NodeId, TxnId);

#[derive(Default, Debug)]
struct Manager {
    queues: TableQueues<Holder>,
    wanted: HashMap<Holder, TableLocks>,
    versions: HashMap<TableId, u64>,
}

/// One node's part: the manager's, or that of somebody who asks it.
#[derive(Debug)]
pub struct CentralLocks {
    me: NodeId,
    /// Only the first node's is used.
    manager: Manager,
}

impl Permission for CentralLocks {
    fn new(me: NodeId, _: u16) -> CentralLocks {
        CentralLocks { me, manager: Manager::default() }
    }

    fn ask(&mut self, txn: TxnId, locks: &TableLocks, turn: &mut Turn<'_>) {
        self.tell(Message::Acquire { txn, locks: locks.clone() }, turn);
    }

    fn on_message(&mut self, from: NodeId, message: AnyMessage, turn: &mut Turn<'_>) {
        if let AnyMessage::LockCentral(message) = message {
            self.on(from, message, turn);
        }
    }

    fn over(&mut self, txn: TxnId, wrote: bool, turn: &mut Turn<'_>) {
        self.tell(Message::Release { txn, wrote }, turn);
    }
}

impl CentralLocks {
    fn tell(&mut self, message: Message, turn: &mut Turn<'_>) {
        self.say(MANAGER, message, turn);
    }

    fn say(&mut self, to: NodeId, message: Message, turn: &mut Turn<'_>) {
        if to == self.me {
            self.on(to, message, turn);
        } else {
            turn.send(to, AnyMessage::LockCentral(message));
        }
    }

    fn on(&mut self, from: NodeId, message: Message, turn: &mut Turn<'_>) {
        match message {
            Message::Acquire { txn, locks } => {
                self.manager.wanted.insert((from, txn), locks.clone());
                if self.manager.queues.request((from, txn), locks) {
                    self.grant((from, txn), turn);
                }
            }
            Message::Grant { txn, versions } => {
                for (table, version) in versions {
                    turn.copies.require(table, version);
                }
                turn.grant(txn);
            }
            Message::Release { txn, wrote } => {
                let locks = self.manager.wanted.remove(&(from, txn)).unwrap_or_default();
                if wrote {
                    for (table, _) in locks.iter() {
                        *self.manager.versions.entry(table).or_default() += 1;
                    }
                }
                for next in self.manager.queues.release((from, txn)) {
                    self.grant(next, turn);
                }
            }
        }
    }

    fn grant(&mut self, (node, txn): Holder, turn: &mut Turn<'_>) {
        let Some(locks) = self.manager.wanted.get(&(node, txn)) else { return };
        let version = |table| self.manager.versions.get(&table).copied().unwrap_or(0);
        let versions = locks.iter().map(|(table, _)| (table, version(table))).collect();
        self.say(node, Message::Grant { txn, versions }, turn);
    }
}

#[cfg(test)]
mod tests;
