//! `onecopy bench bulletin-board`.

use super::site::{Transactions, Visits};
use crate::CommandError;
use onecopy_bench::bulletin_board::BulletinBoard;
use onecopy_bench::site::Website;
use onecopy_workload::bulletin_board::Mix;

/// Let emulated visitors read, comment and moderate stories on a bulletin board (RUBBoS).
///
/// The board is loaded first if it is not there. The results show interactions per second and response times, page by page.
/// Each statement is a transaction by itself.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Of how many days there are stories at the start; those of the last 30 are new.
    #[arg(long, default_value_t = BulletinBoard::default().days)]
    days: i64,
    /// How many users it has at the start, of whom a tenth are authors.
    #[arg(long, default_value_t = BulletinBoard::default().users)]
    users: i64,
    /// As large as in the paper on distributed versioning: 1,095 days and 500,000 users.
    #[arg(long, conflicts_with_all = ["days", "users"])]
    paper_size: bool,
    /// How visitors walk: default (15 % of what reaches the database writes) or browse_only.
    #[arg(long, default_value_t = BulletinBoard::default().mix)]
    mix: Mix,
    #[command(flatten)]
    visits: Visits,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let (days, users) = (self.days, self.users);
        let site = if self.paper_size {
            BulletinBoard::of_paper_size()
        } else {
            BulletinBoard { days, users, ..BulletinBoard::default() }
        };
        self.visits.run(BulletinBoard { mix: self.mix, ..site }, Transactions::default()).await
    }
}
