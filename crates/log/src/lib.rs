//! The durable commit log: a pure engine plus a disk driver.
//!
//! - [`record`]: what is stored, byte for byte (`docs/log-format.md`).
//! - [`Engine`]: groups records, rotates and drops segments; no I/O. [`recover()`] reads and judges what a crash left.
//! - [`Log`]: the engine on a real disk, with the threads that drive it.
//! - `simulated` (with the feature of that name): a disk that loses, tears and garbles what was not synced, for simulators.
//! - [`consensus`]: the same log shared by several nodes; [`Log::open_shared`] and [`Member`] drive it.
//! - [`inspect`]: lists and verifies the log of a folder without touching it.

#![forbid(unsafe_code)]

mod alone;
mod catalog;
pub mod consensus;
mod disk;
mod engine;
mod gate;
pub mod inspect;
mod log;
mod medium;
mod noted;
mod planted;
mod reader;
pub mod record;
mod recover;
mod scan;
mod shared;
#[cfg(any(test, feature = "simulated"))]
pub mod simulated;
#[cfg(test)]
mod tests;

pub use catalog::{Position, Undecided};
pub use disk::{Files, Folder, FolderError};
pub use engine::{Action, Cause, Durability, Effect, Engine, Event, Fault, Genesis, Settings, Sizes, State};
pub use gate::{AppendError, Gate};
pub use log::{
    Durable, Held, Hooks, Log, OpenError, Options, PayloadReader, Reader, Recovered, Status, Written, retire,
};
pub use medium::Medium;
pub use reader::{Payload, ReadError, Records};
pub use record::{Entry, Kind, LogId, PayloadId, PayloadRef, Record, SegmentNo, Seq};
pub use recover::{Corruption, Damage, RecoverError, Recovery, Tail, recover};
pub use shared::{Begun, Confirmed, Member, MemberEvent, MemberStatus, Network, SharedHooks, SharedOptions};
