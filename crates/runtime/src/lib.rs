//! The real driver: sockets, backend connections, timers. Decides nothing.
//!
//! The files stand in the order in which a statement meets them: a client's bytes reach a session, which classifies
//! them and asks the scheduler; the scheduler (the core behind a lock) answers with effects; statements run on lanes,
//! and commits reach every replica through its agent.

pub mod settings;

mod nodes;
mod server;

mod sites;

mod session;

mod classifier;

mod scheduled;
mod scheduler;

mod record;

pub mod log_body;

mod advisory;

mod notifications;

mod pool;
mod pools;

mod lane;
mod object_ids;
mod stream;

mod agent;
mod ancestry;
mod annulments;
mod bulk;
mod changed;
mod copy;
mod exclusions;
mod health;
mod membership;
mod retention;
mod standing;
mod waits;

mod results;

mod postgres;

mod admin;

mod workers;

mod clock;

mod errors;

/// The statements by which a replica knows what it contains, for whoever measures them.
pub mod bookkeeping {
    pub use crate::postgres::progress::{ADVANCE, KEEP_ROWS, create_sql, prune_sql};
}

pub use errors::ServeError;
pub use nodes::init as init_node;
pub use server::{Handle, serve};
pub use settings::Settings;
pub use workers::{STACK_BYTES, event_loop};
