//! Everything that decides: no I/O, clock, thread, randomness or global state.

pub mod ids;
pub mod item;

pub use ids::{ClassId, Csn, Epoch, Instant, NodeId, OpId, ReplicaId, SessionId, TxnId};
pub use item::{Access, AccessSet, ColumnId, Equals, Item, KeyId, Mode, Space, TableId, ValueHash};
