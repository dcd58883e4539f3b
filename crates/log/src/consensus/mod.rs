//! Several nodes share one log: Raft (by the library `raft`) on the log's own segments.
//!
//! - [`Node`]: inputs in, [`Effect`]s out. Whoever drives it has the disk, the network, the clock and the dice.
//! - [`Membership`]: which nodes there are.
//!
//! Why it is safe: `docs/protocols/commit-log.md`.

mod codec;
mod membership;
mod node;
mod shelf;

pub use codec::{MESSAGE_LEN_MAX, Malformed};
pub use membership::{Change, ChangeError, Membership, NODES_MAX, NodeId, Role};
pub use node::{
    Config, Dropped, Effect, MemberError, Node, OpenError, Origin, ProposeError, ReadId, StopReason,
};
