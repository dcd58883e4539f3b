//! Why a node does not do what it is asked.

use thiserror::Error;

use super::codec::Malformed;
use super::membership::{ChangeError, NodeId};
use crate::gate::AppendError;
use crate::record::LogId;

/// Why a node cannot be started.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum OpenError {
    /// The folder holds no log, and none was to be begun.
    #[error("there is no commit log, and none is to be begun")]
    Missing,
    /// It is the folder of another node.
    #[error(
        "the commit log is that of node {found}, not of node {expected}; each node needs a folder of its own"
    )]
    WrongNode {
        /// Which node this is.
        expected: NodeId,
        /// Whose log it is.
        found: NodeId,
    },
    /// The log was written by a node that was alone, and this one is not to be.
    #[error(
        "the commit log was written by a node that was alone: only that node can share it, and the others join it"
    )]
    Alone,
    /// The configuration cannot work.
    #[error("{0}")]
    Config(&'static str),
}

/// Why a record was not taken. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ProposeError {
    /// Only the leader takes records.
    #[error("this node does not lead")]
    NotLeader {
        /// Who does, if it is known.
        leader: Option<NodeId>,
    },
    /// Too much waits for a majority.
    #[error("{bytes} bytes wait to be durable on a majority of the nodes; try again when they are")]
    Busy {
        /// How much.
        bytes: u64,
    },
    /// It cannot stand where it would.
    #[error(transparent)]
    Record(#[from] AppendError),
}

/// Why the nodes were not changed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum MemberError {
    /// The leader's own record is not durable yet, or the change before this one.
    #[error("another change of the nodes is under way, or the leader has only just been elected; try again")]
    Busy,
    /// It cannot be made.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// As for any record.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// Why a message was not looked at further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Dropped {
    /// The node has stopped, or has not yet made safe what its log held when it started.
    #[error("the node does not work")]
    NotOpen,
    /// It is none.
    #[error("no message: {0}")]
    Malformed(#[from] Malformed),
    /// It is about another log.
    #[error("it is about log {0}")]
    OtherLog(LogId),
    /// It is for another node, or says that this node sent it.
    #[error("it is for node {to}, from node {from}")]
    OtherNode {
        /// From.
        from: NodeId,
        /// To.
        to: NodeId,
    },
    /// The sender has started again since.
    #[error("its sender has started again since")]
    FormerLife,
    /// The sender lost what it had acknowledged, and was told so.
    #[error("its sender has lost what it had acknowledged")]
    OldLog,
    /// No node that keeps the rules sends this.
    #[error("it contradicts itself, or this node's log")]
    Impossible,
    /// Raft has no use for it.
    #[error("it is of no use")]
    Useless,
}
