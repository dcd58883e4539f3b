//! Invalidation: a node that wants to write tables first makes every other node's copies of them invalid.
//!
//! Idea. Every node has a database of its own and serves reads of valid tables alone, without a message. A write asks all other nodes to
//! invalidate their copies, with a timestamp. Of two requests for a table the later dominates: a node that knows of a
//! later one says no. A node that was granted by all executes, and sends what it wrote; each copy is valid again
//! once it has applied that. A node that was refused tries again after the other's update. Only the replies of nodes that
//! want to write matter for agreement, so no ordered broadcast is needed.
//!
//! Paper: T. Repantis, A. Iyengar, V. Kalogeraki, I. Rouvellou: *Consistent Replication in Distributed Multi-Tier
//! Architectures* (CollaborateCom 2011), section III.
//!
//! Guarantee: strict serializability of transactions that are single statements, as all are here.
//!
//! Invariants, beside those of [`peers`](crate::peers):
//! - a node executes a write only while every other node holds its tables invalid on its behalf;
//! - the timestamps of a node's requests increase, no two nodes' are equal, and each is later than all that its node had seen;
//! - a node never grants a request when it has asked with a later one, or granted one, for one of its tables.
//!
//! How it differs from the paper, whose scheme lets a late update be applied after a newer one, or be missed by a reader:
//! - a request says which version of each table it is for, and a granted one makes a copy invalid until it contains the next version. In the paper it is valid
//!   when the update has arrived, or that of another request which has dominated it meanwhile;
//! - clocks are pushed past each timestamp that is seen, and a refusal names the later request, so that who tries again is not refused for what is over;
//! - a request names all tables of the statement; a write that fails is an update that changes nothing; ties are broken by node number, not a hash.
//!
//! As in the paper, who asks early may be dominated again and again, and who reads may find the next write announced each time when the last one is in place.
//!
//! Missing: nodes that fail or join.

use crate::peers::Peers;
use crate::peers::by_invalidation::Invalidation;
use crate::peers::parts::Divisions;
use crate::protocol::Guarantee;

/// `nodes` peers.
#[must_use]
pub fn new(nodes: u16) -> Peers<Invalidation> {
    Peers::new("invalidation", Guarantee::StrictSerializability, nodes, &Divisions::default())
}

#[cfg(test)]
mod tests;
