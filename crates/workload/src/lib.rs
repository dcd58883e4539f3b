//! Workloads as data and as code without input or output, so that benchmarks and a simulator can drive the same.
//!
//! An emulated user is a [`Client`]: a state machine that is told the time and the answer to its last action, and says
//! what it does next. A driver carries that out, over virtual time and simulated databases or over a clock and
//! connections. Randomness is seeded and passed in, so one seed gives one course of events for the same answers.
//!
//! * [`tpcw`]: the online bookstore of TPC-W, complete.
//! * [`tpcc`]: the wholesale supplier of TPC-C, complete.
//! * [`auction`] and [`bulletin_board`]: RUBiS and RUBBoS, web sites of which [`site`] has what they share.
//! * [`pgbench`]: the two scripts that everyone knows, select-only and TPC-B-like.
//! * [`bank`], [`list_append`], [`long_fork`]: small generators whose histories a checker can judge.

pub mod catalogue;
pub mod client;
mod named;
pub mod random;
pub mod value;

pub mod tpcc;
pub mod tpcw;

pub mod site;

pub mod auction;
pub mod bulletin_board;

pub mod bank;
pub mod list_append;
pub mod long_fork;
pub mod pgbench;

pub use catalogue::{Catalogue, InteractionId, StatementId, TransactionId};
pub use client::{Action, Client, Failure, Reply, Rows, Script, Step};
pub use random::Random;
pub use value::{Date, Decimal, Timestamp, Value};
