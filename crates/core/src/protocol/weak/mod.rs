//! Weak: every node executes what its clients ask at once, and sends what was written to the others, who apply it when it comes.
//!
//! Paper: Repantis et al. (CollaborateCom 2011), section IV.A.
//!
//! Guarantee: none. Reads may be stale, and writes of one table at two nodes are applied in different orders, so that the nodes' contents differ from
//! then on.

use crate::ids::{NodeId, TxnId};
use crate::message::Message as AnyMessage;
use crate::peers::parts::Divisions;
use crate::peers::{Peers, Permission, Turn};
use crate::protocol::Guarantee;
use crate::table_queues::TableLocks;

/// `nodes` peers.
#[must_use]
pub fn new(nodes: u16) -> Peers<AtOnce> {
    Peers::new("weak", Guarantee::None, nodes, &Divisions::default())
}

/// Nobody asks anybody.
#[derive(Debug)]
pub struct AtOnce;

impl Permission for AtOnce {
    const COORDINATES: bool = false;

    fn new(_: NodeId, _: u16) -> AtOnce {
        AtOnce
    }

    fn ask(&mut self, txn: TxnId, _: &TableLocks, turn: &mut Turn<'_>) {
        turn.grant(txn);
    }

    fn on_message(&mut self, _: NodeId, _: AnyMessage, _: &mut Turn<'_>) {}

    fn over(&mut self, _: TxnId, _: bool, _: &mut Turn<'_>) {}
}

#[cfg(test)]
mod tests;
