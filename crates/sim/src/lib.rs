//! The simulated driver: the same core, virtual time, simulated databases, faults, checkers.
//!
//! There are four drivers. The safety driver is for promises: [`run`] takes a [`Scenario`] and a protocol and gives back
//! every promise that was not kept. [`perf`] is for figures: how much a cluster of hundreds of replicas does, and what
//! it waits for. [`whole`] is for both where transactions arrive whole, and [`sites`] where they do so at sites that are far apart. The same input always gives the same run.
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
pub mod server;

mod clients;
mod driver;
pub mod scenario;

pub mod coverage;

pub mod perf;
pub mod sites;
pub mod whole;

pub mod check;
pub mod failure;
pub mod planted;
pub mod torture;

pub use clients::script::Mix;
pub use driver::{MakeProtocol, Outcome, Statistics, run};
pub use failure::Failure;
pub use scenario::{Breakage, Moment, Scenario};
