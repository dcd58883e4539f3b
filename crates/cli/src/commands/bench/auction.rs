//! `onecopy bench auction`.

use super::site::{Transactions, Visits};
use crate::CommandError;
use onecopy_bench::auction::Auction;
use onecopy_bench::site::Website;
use onecopy_workload::auction::Mix;

/// Let emulated visitors sell, bid and comment at an auction site (RUBiS).
///
/// The site is loaded first if it is not there. The results show interactions per second and response times, page by page.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How many items are on sale at the start; as many were sold before.
    #[arg(long, default_value_t = Auction::default().items)]
    items: i64,
    /// How many users it has at the start.
    #[arg(long, default_value_t = Auction::default().users)]
    users: i64,
    /// As large as in the paper on distributed versioning: 33,000 items and 1,000,000 users.
    #[arg(long, conflicts_with_all = ["items", "users"])]
    paper_size: bool,
    /// How visitors walk: write15 (15 % of what reaches the database writes, as in the paper), default (11 %) or
    /// browse_only.
    #[arg(long, default_value_t = Auction::default().mix)]
    mix: Mix,
    #[command(flatten)]
    visits: Visits,
    #[command(flatten)]
    transactions: Transactions,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let (items, users) = (self.items, self.users);
        let site = if self.paper_size {
            Auction::of_paper_size()
        } else {
            Auction { items, users, ..Auction::default() }
        };
        self.visits.run(Auction { mix: self.mix, ..site }, self.transactions).await
    }
}
