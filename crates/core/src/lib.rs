//! Everything that decides: no I/O, clock, thread, randomness or global state.
//!
//! A driver feeds [`event::Event`]s to a [`protocol::Protocol`] and carries out the [`effect::Effect`]s that come back.
//! Time is an argument. The files stand in the order in which a statement meets them.

pub mod event;
pub mod ids;
pub mod item;

pub mod conflict_index;
pub mod footprints;
pub mod map;

pub mod autoscaler;
pub mod certification;
pub mod chaining;
pub mod commit_order;
pub mod item_locks;
pub mod load;
pub mod multicast;
pub mod peers;
pub mod prediction;
pub mod scheduling;
pub mod sequences;
pub mod table_queues;
pub mod table_versions;
pub mod version_table;
pub mod workers;

pub mod protocol;

pub mod effect;
pub mod message;

pub use effect::{Decision, Effect, How, Notice, Refusal};
pub use event::{
    Begin, Event, Moment, Outcome, Place, RowChange, SequenceDefinition, Statement, StatementKind,
};
pub use ids::{ClassId, Csn, Epoch, Instant, NodeId, OpId, ReplicaId, SequenceNumber, SessionId, TxnId};
pub use item::{
    Access, AccessSet, ColumnId, ColumnSet, Equals, Item, KeyId, Mode, Space, TableId, ValueHash,
};
pub use message::Message;
pub use protocol::{Guarantee, Position, Protocol, Status, Writes};
