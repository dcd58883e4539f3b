//! `onecopy bench chains`.

use super::or_all;
use crate::CommandError;
use crate::output::print;
use onecopy_bench::chains::{self, Options, Target};
use onecopy_bench::tpcc::Supplier;
use std::time::Duration;

/// Compare TPC-C sent whole to onecopy under chains with the same sent statement by statement to servers, Pgpool-II and onecopy.
///
/// Starts all of them on this machine and lets terminals without pauses work at one after the other, in another order each round. The
/// results are throughput, with ratios to one server in the same round, response times by kind, CPU time, and what each replica did.
/// Fails if replicas differ, or a consistency condition does not hold, but for the server at READ COMMITTED. What is not installed is left out.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to measure: read-committed, repeatable-read, pgpool, onecopy, centralised-writes, chains, chains-serializable [default: all]
    #[arg(long, value_name = "TARGET", value_delimiter = ',')]
    targets: Vec<Target>,
    /// Rounds; each measures every target once. Fewer than 11 say little.
    #[arg(long, default_value_t = Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of one measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().duration.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    duration: u64,
    /// Seconds before it, in which the terminals come.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().ramp.as_secs())]
    ramp: u64,
    /// How many warehouses each target has.
    #[arg(long, default_value_t = Options::default().supplier.warehouses)]
    warehouses: i64,
    /// How many customers each district has; the specification has 3,000.
    #[arg(long, default_value_t = Options::default().supplier.customers)]
    customers: i64,
    /// Terminals at work.
    #[arg(long, value_name = "N", default_value_t = Options::default().terminals, value_parser = clap::value_parser!(u32).range(1..))]
    terminals: u32,
    /// The same seed gives the same supplier and the same terminals.
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
    #[command(flatten)]
    made: super::Made,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let all = Options::default();
        let options = Options {
            targets: or_all(self.targets, all.targets),
            rounds: self.rounds,
            duration: Duration::from_secs(self.duration),
            ramp: Duration::from_secs(self.ramp),
            supplier: Supplier { warehouses: self.warehouses, customers: self.customers, ..all.supplier },
            terminals: self.terminals,
            seed: self.seed,
            pgpool: None,
            workplace: self.made.workplace()?,
        };
        let comparison = chains::run(&options).await?;
        print(&comparison)?;
        if comparison.holds() {
            Ok(())
        } else {
            Err("something failed, was broken or differs: see above".into())
        }
    }
}
