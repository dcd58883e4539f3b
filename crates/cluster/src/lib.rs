//! Local PostgreSQL servers in one folder, for `onecopy up`, the demo, the benchmarks and the tests.
//!
//! ```no_run
//! # fn main() -> Result<(), onecopy_cluster::Error> {
//! let mut cluster = onecopy_cluster::Cluster::temporary(3, &onecopy_cluster::Options::replica())?;
//! println!("{}", cluster.server(0).dsn());
//! cluster.server_mut(2).kill()?; // what a test does to it
//! cluster.server_mut(2).start()?;
//! # Ok(()) }
//! ```
//!
//! The servers are unmodified PostgreSQL from the machine's packages ([`Binaries::find`]). They listen on loopback
//! only. Started by root they run as an unprivileged user, since PostgreSQL refuses root ([`Account::choose`]).
//!
//! Everything here blocks; from asynchronous code call it in `spawn_blocking`. All types are `Send`.

mod account;
mod binaries;
mod cluster;
mod error;
mod file;
mod ports;
mod process;
mod server;

pub use account::Account;
pub use binaries::{Binaries, SUPPORTED_MAJORS};
pub use cluster::Cluster;
pub use error::Error;
pub use file::{ClientEntry, ClusterFile, ReplicaEntry};
pub use ports::free_port;
pub use server::{Auth, Options, Server, Stop};

/// What fallible functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;
