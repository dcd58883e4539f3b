//! Several nodes share one log: Raft (by the library `raft`) on the log's own segments.
//!
//! - [`Node`]: inputs in, [`Effect`]s out. Whoever drives it has the disk, the network, the clock and the dice.
//! - [`Membership`]: which nodes there are.
//!
//! Why it is safe: `docs/protocols/commit-log.md`.

mod codec;
mod error;
mod membership;
mod node;
mod shelf;

mod effect;

pub use codec::{MESSAGE_LEN_MAX, Malformed};
pub use effect::{Effect, ReadId, StopReason};
pub use error::{Dropped, MemberError, OpenError, ProposeError};
pub use membership::{Change, ChangeError, Membership, NODES_MAX, NodeId, Role};
pub use node::{Config, Node, Origin};
