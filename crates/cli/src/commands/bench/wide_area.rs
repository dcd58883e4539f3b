//! `onecopy bench wide-area`.

use super::or_all;
use crate::CommandError;
use crate::output::print;
use onecopy_bench::wide_area::distance::Topology;
use onecopy_bench::wide_area::{self, Choice, Options};
use std::time::Duration;

/// Measure sites at a distance, each a process before a server of its own, under the micro-benchmark of the wide-area paper.
///
/// Starts all of it on this machine, with ways between the sites that take as long as real ones. Half of the transactions update ten rows of
/// one of ten tables, half read ten; they arrive at random, whether or not others are answered. Fails if one is not answered, or sites differ
/// in the end.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// By what: words of the protocol's choices with a plus between them, such as locked+local_copy+opt_safe+tables; what is not said is
    /// snapshot, symmetric, safe, rows; or certified, by itself [default: symmetric+safe, local_copy+safe, symmetric+agreed, certified]
    #[arg(long, value_name = "CHOICE", value_delimiter = ',')]
    choices: Vec<Choice>,
    /// Where the sites are: local, four-sites, eight-sites, three-continents
    #[arg(long, default_value_t = Options::default().topology)]
    topology: Topology,
    /// Transactions a second at all sites together, one rate after the other [default: 20, 40, 80]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    rates: Vec<u32>,
    /// Seconds before each rate in which it rises to that, and which do not count: connections are opened, and statements prepared.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().warm_up.as_secs())]
    warm_up: u64,
    /// Seconds at one rate.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().duration.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    duration: u64,
    /// Percent of one processor that a site and its server get together; 0 does not hold them back.
    #[arg(long, value_name = "PERCENT", default_value_t = 25)]
    cap: u32,
    /// Rows of each table.
    #[arg(long, default_value_t = Options::default().rows, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
    /// The same seed gives the same arrivals.
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
    #[command(flatten)]
    made: super::Made,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let all = Options::default();
        let options = Options {
            choices: or_all(self.choices, all.choices),
            topology: self.topology,
            rates: or_all(self.rates, all.rates),
            warm_up: Duration::from_secs(self.warm_up),
            duration: Duration::from_secs(self.duration),
            cap: (self.cap > 0).then(|| f64::from(self.cap) / 100.0),
            rows: self.rows,
            seed: self.seed,
            workplace: self.made.workplace()?,
        };
        let comparison = wide_area::run(&options).await?;
        print(&comparison)?;
        if comparison.holds() { Ok(()) } else { Err("some transactions were not answered: see above".into()) }
    }
}
