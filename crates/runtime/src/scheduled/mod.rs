//! Protocols that execute every write on every replica, on real servers: conflict-aware scheduling, distributed
//! versioning and what they are compared with. docs/protocols/real_servers.md says how it is done, and why it is right.
//!
//! The core decides as it does for the simulator; here its orders for replicas are carried out. A client's statement
//! takes the way of any other up to the point at which the core is told of it (`session/everywhere.rs`).

mod declaration;
mod everywhere;
mod refusals;
mod spread;
mod turns;

pub use declaration::{Declarations, Names};
pub use everywhere::{Everywhere, Rest};
pub use refusals::refusal;
pub use spread::{Answered, Answers, Attire, Errand, Operation, Spread, too_large};
