//! The real driver: sockets, backend connections, timers. Decides nothing.
//!
//! The files stand in the order in which a statement meets them: a client's bytes reach a session, which classifies
//! them and asks the scheduler; the scheduler (the core behind a lock) answers with effects; statements run on lanes,
//! and commits reach every replica through its agent.

pub mod settings;

mod server;

mod session;

mod classifier;

mod scheduler;

mod record;

mod advisory;

mod notifications;

mod pool;

mod lane;

mod agent;

mod postgres;

mod admin;

mod workers;

mod clock;

mod errors;

pub use errors::ServeError;
pub use server::{Handle, serve};
pub use settings::Settings;
pub use workers::STACK_BYTES;
