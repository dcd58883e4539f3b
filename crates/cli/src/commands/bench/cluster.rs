//! `onecopy bench cluster`.

use super::or_all;
use crate::CommandError;
use crate::output::print;
use onecopy_bench::cluster::{self, Options, Outcome, System};
use onecopy_workload::tpcw::MixName;
use std::time::Duration;

/// Run the TPC-W bookstore on clusters of capped servers, and the same clusters in virtual time.
///
/// Each PostgreSQL server is put into a control group that may use a twentieth of a processor, so that several of them run
/// on one machine as slowly as those of the papers did. Statements' costs are calibrated on one such server; simulated
/// throughput stands beside measured throughput, and measured ratios beside the papers'. Where there are no control
/// groups, it says so and does nothing. Everything takes some 50 minutes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to measure: onecopy, conflict_aware, versioning, eager, pgpool [default: all]
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    systems: Vec<System>,
    /// How many servers [default: 1,2,4,8]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    sizes: Vec<u32>,
    /// How customers walk: browsing, shopping, ordering [default: all]
    #[arg(long, value_name = "MIX", value_delimiter = ',')]
    mixes: Vec<MixName>,
    /// What one server may use, in processors.
    #[arg(long, value_name = "PART", default_value_t = Options::default().cap)]
    cap: f64,
    /// Seconds of one stage that count.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().duration.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    duration: u64,
    /// Seconds before them, in which customers come and settle.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().ramp.as_secs())]
    ramp: u64,
    /// Factor on the pauses between pages.
    #[arg(long, value_name = "FACTOR", default_value_t = Options::default().think_factor)]
    think: f64,
    /// Customers that saturate one server; the first stage has a third more [default: by the calibration]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    users: Option<u32>,
    /// Stages at most, each with more customers than the one before, as long as throughput rises.
    #[arg(long, value_name = "N", default_value_t = Options::default().stages, value_parser = clap::value_parser!(u32).range(1..))]
    stages: u32,
    /// Seconds of each calibration that count; 0 calibrates and simulates nothing, and needs --users.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().calibration.as_secs())]
    calibration: u64,
    /// How many books the store has: 1000, 10000, ...
    #[arg(long, default_value_t = Options::default().items)]
    items: i64,
    /// The same seed gives the same bookstore, customers and simulations.
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
            sizes: or_all(self.sizes, all.sizes),
            mixes: or_all(self.mixes, all.mixes),
            cap: self.cap,
            duration: Duration::from_secs(self.duration),
            ramp: Duration::from_secs(self.ramp),
            think_factor: self.think,
            users: self.users,
            stages: self.stages,
            calibration: Duration::from_secs(self.calibration),
            items: self.items,
            browsers: all.browsers,
            seed: self.seed,
            pgpool: None,
            workplace: self.made.workplace()?,
        };
        match cluster::run(&options).await? {
            Outcome::Measured(report) => Ok(print(report)?),
            Outcome::Skipped(why) => Ok(print(skipped(&why))?),
        }
    }
}

/// What is said where there are no control groups.
pub(super) fn skipped(why: &str) -> String {
    format!(
        "skipped: servers cannot be held to a part of a processor here, and without that the machine would be measured \
         instead of the cluster: {why}"
    )
}
