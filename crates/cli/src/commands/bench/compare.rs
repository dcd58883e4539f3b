//! `onecopy bench compare`.

use super::or_all;
use crate::CommandError;
use crate::output::print;
use onecopy_bench::compare::{self, Load, Options, Target};
use std::time::Duration;

/// Compare PostgreSQL, PgBouncer, Pgpool-II, synchronous standbys and onecopy, side by side in one run.
///
/// Starts all of them on this machine and lets pgbench measure one after the other, in another order each round, so
/// that what the machine does meanwhile meets them all. What is not installed is left out. The results are ratios
/// to PostgreSQL asked directly, and the CPU time of every process.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to measure: direct, pgbouncer, pgpool, streaming, onecopy-1, onecopy-3 [default: all]
    #[arg(long, value_name = "TARGET", value_delimiter = ',')]
    targets: Vec<Target>,
    /// Under which loads [default: all]
    #[arg(long, value_name = "LOAD", value_delimiter = ',')]
    loads: Vec<Load>,
    /// Rounds; each measures every target once. Fewer than 11 say little.
    #[arg(long, default_value_t = Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of one measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().duration.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    duration: u64,
    /// Clients of the loads that have several.
    #[arg(long, default_value_t = Options::default().clients, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Scale of pgbench's tables: 100,000 accounts each.
    #[arg(long, default_value_t = Options::default().scale, value_parser = clap::value_parser!(u32).range(1..))]
    scale: u32,
    #[command(flatten)]
    made: super::Made,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let all = Options::default();
        let options = Options {
            targets: or_all(self.targets, all.targets),
            loads: or_all(self.loads, all.loads),
            rounds: self.rounds,
            duration: Duration::from_secs(self.duration),
            clients: self.clients,
            scale: self.scale,
            pgbouncer: None,
            pgpool: None,
            workplace: self.made.workplace()?,
        };
        Ok(print(compare::run(&options).await?)?)
    }
}
