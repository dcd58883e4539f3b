//! `onecopy bench upgrade`.

use crate::CommandError;
use crate::output::print;
use onecopy_bench::upgrade::{self, Options};
use onecopy_workload::tpcw::MixName;
use std::path::PathBuf;
use std::time::Duration;

/// Add a replica and replace all others, one by one, under the bookstore's load, and report what customers notice.
///
/// Makes a cluster of its own, serves and loads it, and finds out how many pages a second customers without pauses get. Then
/// pages are due at half of that rate, at random times that do not depend on the answers, and response times count from when
/// a page was due. Meanwhile a server of the same version joins; then, for each server that was there, one made by the programs
/// in --to joins and the old one leaves: a major-version upgrade if they are of another version, and if not a replacement. Afterwards
/// the servers are asked for their versions, all replicas are compared, the bookstore's rules are checked, and each order is looked for
/// as its customer was told of it.
///
/// Fails if a customer met an error, if more pages were due and not shown at any time than --backlog allows, if the change did not come
/// to its end, or if anything was lost or differs.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder of PostgreSQL's programs for the servers that are there at first [default: those of the newest version found]
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// The folder of PostgreSQL's programs for the servers that replace them [default: the same, which upgrades nothing]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// How many servers there are at first.
    #[arg(long, value_name = "N", default_value_t = Options::default().replicas, value_parser = clap::value_parser!(u32).range(1..=31))]
    replicas: u32,
    /// The part of the peak that is due.
    #[arg(long, value_name = "PART", default_value_t = Options::default().share)]
    share: f64,
    /// Pages due a second; the peak is not looked for then [default: --share of the peak]
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Seconds of each stage in which the peak is looked for, with 8, 16, 32 and 64 customers as long as it rises.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().stage.as_secs_f64())]
    stage: f64,
    /// Seconds before the changes, and after them.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().calm.as_secs_f64())]
    calm: f64,
    /// With more pages due and not shown than are due in so many seconds (at least 64), one more is turned away: the load was not carried.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().backlog.as_secs_f64())]
    backlog: f64,
    /// How customers walk: browsing (5 % order), shopping (20 %) or ordering (50 %).
    #[arg(long, default_value_t = Options::default().mix)]
    mix: MixName,
    /// How many books the store has: 1000, 10000, ...
    #[arg(long, default_value_t = Options::default().items)]
    items: i64,
    /// The same seed gives the same bookstore, customers and times at which pages are due.
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
    /// `pool.silence_timeout_ms` of the configuration: milliseconds until a server that hangs is taken for lost.
    #[arg(long, value_name = "MS", default_value_t = Options::default().silence_timeout_ms)]
    silence_timeout: u64,
    #[command(flatten)]
    made: super::Made,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let options = Options {
            replicas: self.replicas,
            from: self.from,
            to: self.to,
            rate: self.rate,
            share: self.share,
            stage: Duration::try_from_secs_f64(self.stage)?,
            calm: Duration::try_from_secs_f64(self.calm)?,
            backlog: Duration::try_from_secs_f64(self.backlog)?,
            mix: self.mix,
            items: self.items,
            seed: self.seed,
            silence_timeout_ms: self.silence_timeout,
            workplace: self.made.workplace()?,
        };
        let report = upgrade::run(&options).await?;
        print(&report)?;
        let wrong = report.wrong();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ").into()) }
    }
}
