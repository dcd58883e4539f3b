//! The simulated driver: the same core, virtual time, simulated databases, faults, checkers.
//!
//! [`run`] takes a [`Scenario`] and a protocol and gives back every promise that was not kept. A scenario follows from
//! its seed, and the same scenario gives the same trace, byte for byte.
//!
//! The files stand in the order in which a run meets them: what time and chance are, what statements and databases are,
//! who asks, what is asked of whom and what breaks, and who judges.

pub mod clock;
pub mod random;
pub mod timing;
pub mod trace;

pub mod database;
pub mod log;
pub mod plan;

mod clients;
mod driver;
pub mod scenario;

pub mod check;
pub mod failure;

pub use clients::script::Mix;
pub use driver::{MakeProtocol, Outcome, Statistics, run};
pub use failure::Failure;
pub use scenario::{Breakage, Moment, Scenario};
