//! `onecopy bench durability`.

use super::cluster::skipped;
use super::or_all;
use crate::CommandError;
use crate::output::print;
use onecopy_bench::cluster::durability::{self, Options};
use onecopy_bench::cluster::{Outcome, System};
use onecopy_workload::tpcw::MixName;
use std::time::Duration;

/// Measure what it costs that decisions are durable: a cluster with its log in memory and on disk in turn.
///
/// As `bench cluster`, with servers that control groups hold to a part of a processor. Every mix is measured with
/// `log.durability` set to memory and to disk, one right after the other, in rounds of changing order; what is reported is
/// the ratio within a round, beside the paper's. With --cap 1 and few servers it is this machine as it is. Everything
/// takes some 30 minutes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to measure: onecopy, conflict_aware, versioning, eager [default: conflict_aware,onecopy]
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    systems: Vec<System>,
    /// How many servers.
    #[arg(long, value_name = "N", default_value_t = Options::default().servers)]
    servers: u32,
    /// How customers walk: browsing, shopping, ordering [default: all]
    #[arg(long, value_name = "MIX", value_delimiter = ',')]
    mixes: Vec<MixName>,
    /// Rounds; each measures every mix with both. With fewer than 6 the interval is all of them.
    #[arg(long, value_name = "N", default_value_t = Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// What one server may use, in processors.
    #[arg(long, value_name = "PART", default_value_t = Options::default().cap)]
    cap: f64,
    /// Seconds of one measurement that count.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().duration.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    duration: u64,
    /// Seconds before them, in which customers come and settle.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().ramp.as_secs())]
    ramp: u64,
    /// Customers, who make no pauses [default: 12 for each server, at most 64, each with a connection]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    clients: Option<u32>,
    /// How many books the store has: 1000, 10000, ...
    #[arg(long, default_value_t = Options::default().items)]
    items: i64,
    /// The same seed gives the same bookstore and customers.
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
    #[command(flatten)]
    made: super::Made,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let all = Options::default();
        let options = Options {
            systems: or_all(self.systems, all.systems),
            servers: self.servers,
            mixes: or_all(self.mixes, all.mixes),
            rounds: self.rounds,
            cap: self.cap,
            duration: Duration::from_secs(self.duration),
            ramp: Duration::from_secs(self.ramp),
            clients: self.clients,
            items: self.items,
            seed: self.seed,
            // This very program.
            onecopy: std::env::current_exe()?,
            dir: self.made.dir,
            results: self.made.out,
            progress: !self.made.quiet,
        };
        match durability::run(&options).await? {
            Outcome::Measured(report) => Ok(print(report)?),
            Outcome::Skipped(why) => Ok(print(skipped(&why))?),
        }
    }
}
