//! `onecopy bench tpcw`.

use super::site::{Transactions, Visits};
use crate::CommandError;
use onecopy_bench::tpcw::Bookstore;
use onecopy_workload::tpcw::MixName;

/// Let emulated customers walk through the TPC-W bookstore.
///
/// The bookstore is loaded first if it is not there. The results show interactions per second and response times, page
/// by page.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How many books it has: 1000, 10000, ...
    #[arg(long, default_value_t = Bookstore::default().items)]
    items: i64,
    /// Emulated browsers that its customers are counted for: 2,880 customers each.
    #[arg(long, default_value_t = Bookstore::default().browsers)]
    browsers: i64,
    /// How customers walk: browsing (5 % order), shopping (20 %) or ordering (50 %).
    #[arg(long, default_value_t = Bookstore::default().mix)]
    mix: MixName,
    #[command(flatten)]
    visits: Visits,
    #[command(flatten)]
    transactions: Transactions,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let site = Bookstore { items: self.items, browsers: self.browsers, mix: self.mix };
        self.visits.run(site, self.transactions).await
    }
}
