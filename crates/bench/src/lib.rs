//! Drives workloads against any DSN, and compares what stands in front of PostgreSQL.
//!
//! * [`site`]: loads a web site and lets emulated users visit it: the online bookstore ([`tpcw`]), the [`auction`] site or the
//!   [`bulletin_board`]; or the wholesale supplier of TPC-C ([`tpcc`]) or the tables of [`pgbench`], in the same way.
//! * [`compare`]: pgbench against PostgreSQL, its rivals' arrangements and onecopy, side by side in one run.
//! * [`chains`]: TPC-C where transactions come whole, side by side with what else there is.
//! * [`cluster`]: the bookstore on clusters of capped servers, measured and simulated side by side;
//!   and what it costs there that decisions are durable.
//! * [`failures`]: what clients notice when replicas fail under load.
//! * [`upgrade`]: a replica joins and all others are replaced under a load that does not wait for answers.
//! * [`wide_area`]: sites at a distance, each before a server of its own, under the load of a paper.
//! * [`progress`]: what a replica's bookkeeping of commits costs while a snapshot is held open.
//! * [`torture`]: many small transactions on few rows, checked for strict serializability; bad clients; and a direct
//!   comparison of replicas.
//!
//! All are libraries with an options struct; the command line is somebody else's.

pub mod auction;
mod bar;
pub mod bulletin_board;
pub mod chains;
pub mod cluster;
pub mod compare;
mod connection;
mod cpu;
mod cpu_groups;
mod error;
pub mod failures;
mod nodes;
mod observe;
pub mod pgbench;
mod programs;
pub mod progress;
pub mod site;
mod table;
pub mod torture;
pub mod tpcc;
pub mod tpcw;
pub mod upgrade;
pub mod wide_area;
mod wire_value;
mod workplace;

pub use connection::Protocol;
pub use error::Error;
pub use workplace::Workplace;

/// What fallible functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;
