//! `onecopy bench tpcw`.

use super::store::Store;
use crate::CommandError;
use crate::output::print;
use onecopy_bench::tpcw::{self, Bookstore, Options};
use onecopy_workload::tpcw::MixName;
use std::path::PathBuf;
use std::time::Duration;

/// Let emulated customers walk through the TPC-W bookstore.
///
/// The bookstore is loaded first if it is not there. The results show interactions per second and response times, page
/// by page.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: Store,
    /// How customers walk: browsing (5 % order), shopping (20 %) or ordering (50 %).
    #[arg(long, default_value_t = Bookstore::default().mix)]
    mix: MixName,
    /// Emulated customers at work.
    #[arg(long, default_value_t = Options::default().clients, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Connections that they share [default: one each, at most 64]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    connections: Option<u32>,
    /// Seconds that count.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().duration.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    duration: u64,
    /// Seconds before them, in which the customers come.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().ramp.as_secs())]
    ramp: u64,
    /// Factor on the pauses between pages; 0 lets customers click as fast as pages come.
    #[arg(long, value_name = "FACTOR", default_value_t = Options::default().think_factor)]
    think: f64,
    /// Seconds after which a customer who waits for a page leaves.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().page_timeout.as_secs())]
    page_timeout: u64,
    /// How statements are sent: prepared or simple.
    #[arg(long, default_value_t = Options::default().protocol)]
    protocol: tpcw::Protocol,
    /// An isolation level for every transaction, such as "serializable" [default: the server's]
    #[arg(long, value_name = "LEVEL")]
    isolation: Option<String>,
    /// How often a transaction that met a conflict runs again before the customer leaves.
    #[arg(long, value_name = "TIMES", default_value_t = Options::default().retries_max)]
    retries: u32,
    /// A folder for the results; each run makes a folder of its own in it.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let store = self.store.options();
        let options = Options {
            site: Bookstore { mix: self.mix, ..store.site },
            clients: self.clients,
            connections: self.connections,
            duration: Duration::from_secs(self.duration),
            ramp: Duration::from_secs(self.ramp),
            think_factor: self.think,
            page_timeout: Duration::from_secs(self.page_timeout),
            protocol: self.protocol,
            isolation: self.isolation,
            retries_max: self.retries,
            results: self.out,
            ..store
        };
        tpcw::load(&options).await?;
        Ok(print(tpcw::run(&options).await?)?)
    }
}
