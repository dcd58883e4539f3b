//! Claims of this crate, held against a real PostgreSQL server of the test's own.

mod catalogue;
mod commute;
mod generate;
mod locks_of_definitions;
mod replicas;
mod server;
