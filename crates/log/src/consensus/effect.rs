//! What a node has done by whoever drives it.

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use thiserror::Error;

use super::membership::{Membership, NodeId};
use crate::engine::{self, Fault};
use crate::gate::AppendError;
use crate::record::Seq;

/// What is to be done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send a message. It may be lost, repeated, delayed and overtaken.
    Send {
        /// To which node.
        to: NodeId,
        /// What.
        message: Bytes,
    },
    /// Have the disk do something, each effect answered by [`Node::on_disk`](super::Node::on_disk) before the next is
    /// begun.
    Disk(engine::Effect),
    /// Read records of this node for another one that is behind: [`Node::ordered`](super::Node::ordered), then
    /// [`Node::on_fetched`](super::Node::on_fetched).
    Fetch {
        /// The first.
        from: Seq,
        /// Behind the last.
        to: Seq,
        /// At most so many bytes, but at least one record.
        bytes_max: u64,
    },
    /// Every record up to this place is durable on a majority, and here: it stays for ever.
    Committed {
        /// The last such record.
        place: Seq,
        /// The last commit among them.
        csn: Csn,
    },
    /// This node was elected. It may propose; what its log holds may not be durable yet.
    BecameLeader {
        /// Its epoch.
        epoch: Epoch,
    },
    /// A record of this leader's own epoch is durable on a majority, and so is all that its log held: it may drive the
    /// replicas once it has fenced them.
    LeaderReady {
        /// Its epoch.
        epoch: Epoch,
        /// Every commit up to this one counts as told.
        csn: Csn,
    },
    /// Another node leads, or none that is known. If this node led, it does not any more.
    BecameFollower {
        /// The epoch.
        epoch: Epoch,
        /// The leader, if it is known.
        leader: Option<NodeId>,
    },
    /// A read may go to any replica that has applied this commit: whoever heard of a commit before
    /// [`Node::read`](super::Node::read) was called heard of none behind it.
    ReadConfirmed {
        /// Which read.
        read: ReadId,
        /// Its floor.
        floor: Csn,
    },
    /// The leader no longer has the records that this node needs next. Its log has to begin anew behind `csn`, when
    /// [`Node::accept_beginning`](super::Node::accept_beginning) is called; a replica that does not contain that commit
    /// cannot be taken up by it then.
    BeginningOffered {
        /// The last record that is left out.
        place: Seq,
        /// The last commit among those.
        csn: Csn,
    },
    /// Who shares the log has changed, and the change is durable on a majority.
    Members(Membership),
    /// The node takes and does nothing more. Whatever was not carried out is not to be.
    Stop(StopReason),
}

/// Names a read that waits for its floor. The caller's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReadId(pub u64);

/// Why a node has stopped.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StopReason {
    /// Its disk has failed. What it holds is unknown until it starts again.
    #[error(transparent)]
    Disk(Fault),
    /// It had acknowledged a record that its log does not hold.
    #[error(
        "the commit log of this node ends with record {held}, but the node had acknowledged record {acknowledged}: an older \
         state of its folder was put back, or its end was lost. Do not start it with this folder again: remove the node from \
         the cluster, and add it with another id and an empty folder"
    )]
    OldLog {
        /// The last record that it holds.
        held: Seq,
        /// The last that it had acknowledged.
        acknowledged: Seq,
    },
    /// The leader sent a record that cannot stand behind those before it.
    #[error(
        "record {place} of the leader's commit log cannot follow what this node has: {error}. The logs differ, which they \
         never should: keep both folders unchanged and report it"
    )]
    Diverged {
        /// Its place.
        place: Seq,
        /// What is wrong with it.
        error: AppendError,
    },
    /// The leader overwrites what is durable on a majority.
    #[error(
        "the leader's commit log holds another record {place} than this node's, where it is known to be durable on a \
         majority. The logs differ, which they never should: keep both folders unchanged and report it"
    )]
    Overwritten {
        /// The record's place.
        place: Seq,
    },
}
