//! Partitioned: tables that are written are divided among nodes, so that each node's clients find all they need of them there.
//!
//! Paper: Repantis et al. (CollaborateCom 2011), sections IV.B and V.A: what is written is divided, and no updates of it are exchanged; whatever all nodes
//! have copies of is kept consistent by invalidation.
//!
//! Which node has which rows is not decided here. As in the paper's experiments, whoever distributes clients over nodes sends each to the
//! node with its rows, and a statement finds there what that node has, and nothing else.
//!
//! Guarantee: strict serializability of single statements, of which those of divided tables are about one node's part.
//!
//! A statement that writes divided tables must name no others, as those of TPC-W do: elsewhere it would find other rows.
//!
//! Missing: statements about several nodes' parts of a table, and rows that are found by their key wherever they are.

use crate::item::TableId;
use crate::map::HashSet;
use crate::peers::Peers;
use crate::peers::by_invalidation::Invalidation;
use crate::protocol::Guarantee;

/// `nodes` peers, each with a part of the `divided` tables.
#[must_use]
pub fn new(nodes: u16, divided: &[TableId]) -> Peers<Invalidation> {
    let divided: HashSet<TableId> = divided.iter().copied().collect();
    Peers::new("partitioned", Guarantee::StrictSerializability, nodes, &divided)
}

#[cfg(test)]
mod tests;
