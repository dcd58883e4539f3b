//! What the commands on web sites have in common: where the site is, who visits it, and how.

use crate::CommandError;
use crate::output::print;
use onecopy_bench::site::{self, Options, Protocol, Website};
use onecopy_bench::tpcw;
use std::path::PathBuf;
use std::time::Duration;

/// Where a site is.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// Where it is: "host=127.0.0.1 port=6432 user=postgres dbname=postgres", or a postgresql:// URL.
    #[arg(long, value_name = "DSN")]
    target: String,
    /// The same seed gives the same site and the same users.
    #[arg(long, default_value_t = tpcw::Options::default().seed)]
    seed: u64,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

impl Place {
    /// Everything else is left at its default.
    pub(super) fn options<S: Default>(self, site: S) -> Options<S> {
        let Place { target, seed, quiet } = self;
        Options { target, site, seed, progress: !quiet, ..Options::default() }
    }
}

/// Who visits a site, and how.
#[derive(Debug, clap::Args)]
pub(super) struct Visits {
    #[command(flatten)]
    place: Place,
    /// Emulated users at work [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    clients: Option<u32>,
    /// Connections that they share [default: one each, at most 64]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    connections: Option<u32>,
    /// Seconds that count.
    #[arg(long, value_name = "SECONDS", default_value_t = tpcw::Options::default().duration.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    duration: u64,
    /// Seconds before them, in which the users come.
    #[arg(long, value_name = "SECONDS", default_value_t = tpcw::Options::default().ramp.as_secs())]
    ramp: u64,
    /// Factor on the pauses between pages; 0 lets users click as fast as pages come.
    #[arg(long, value_name = "FACTOR", default_value_t = tpcw::Options::default().think_factor)]
    think: f64,
    /// Seconds after which a user who waits for a page leaves.
    #[arg(long, value_name = "SECONDS", default_value_t = tpcw::Options::default().page_timeout.as_secs())]
    page_timeout: u64,
    /// How statements are sent: prepared or simple.
    #[arg(long, default_value_t = tpcw::Options::default().protocol)]
    protocol: Protocol,
    /// How often a transaction that met a conflict runs again before the user leaves.
    #[arg(long, value_name = "TIMES", default_value_t = tpcw::Options::default().retries_max)]
    retries: u32,
    /// A folder for the results; each run makes a folder of its own in it.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What stands around transactions of several statements.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Transactions {
    /// An isolation level for every transaction, such as "serializable" [default: the server's]
    #[arg(long, value_name = "LEVEL")]
    isolation: Option<String>,
    /// Tell the target which tables each transaction will touch, as the papers' protocols want it; to others these are
    /// comments.
    #[arg(long)]
    declare: bool,
}

impl Visits {
    /// Loads the site if it is not there, lets the users come, and prints what they met.
    pub(super) async fn run<S: Website + Default>(
        self,
        site: S,
        transactions: Transactions,
    ) -> Result<(), CommandError> {
        let options = self.options(site, tpcw::Options::default().clients, transactions);
        site::load(&options).await?;
        Ok(print(site::run(&options).await?)?)
    }

    /// The same as options, with so many users where nobody says how many.
    pub(super) fn options<S: Default>(self, site: S, clients: u32, transactions: Transactions) -> Options<S> {
        Options {
            clients: self.clients.unwrap_or(clients),
            connections: self.connections,
            duration: Duration::from_secs(self.duration),
            ramp: Duration::from_secs(self.ramp),
            think_factor: self.think,
            page_timeout: Duration::from_secs(self.page_timeout),
            protocol: self.protocol,
            isolation: transactions.isolation,
            declare: transactions.declare,
            retries_max: self.retries,
            results: self.out,
            ..self.place.options(site)
        }
    }
}
