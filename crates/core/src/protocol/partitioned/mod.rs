//! Partitioned: tables that are written are divided among nodes, so that each node's clients find all they need of them there.
//!
//! Paper: Repantis et al. (CollaborateCom 2011), sections IV.B and V.A: what is written is divided, and no updates of it are exchanged; whatever all nodes
//! have copies of is kept consistent by invalidation.
//!
//! A table is divided in one of two ways:
//! - by clients: whoever distributes these over nodes sends each to the node with its rows, as in the paper's experiments, and a statement finds there what
//!   that node has, and nothing else;
//! - by an integer in a column, its hash or its range: a statement that names rows of one node is executed there, whoever asks, and one that may be about several
//!   nodes' rows where its client is, with latches at all nodes (`peers/parts.rs`).
//!
//! Guarantee: strict serializability of single statements, of which those of tables divided by clients are about one node's part.
//!
//! A statement that writes tables divided by clients must name no others, as those of TPC-W do: elsewhere it would find other rows. One that writes tables divided by
//! a column may read others. Whoever changes those in between cannot be seen before it: who reads what it writes waits for its latches.

use crate::peers::Peers;
use crate::peers::by_invalidation::Invalidation;
use crate::peers::parts::Divisions;
use crate::protocol::Guarantee;

/// `nodes` peers, each with a part of the `divided` tables.
#[must_use]
pub fn new(nodes: u16, divided: &Divisions) -> Peers<Invalidation> {
    Peers::new("partitioned", Guarantee::StrictSerializability, nodes, divided)
}

#[cfg(test)]
mod tests;
