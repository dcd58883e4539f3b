//! `onecopy bench check`.

use crate::CommandError;
use crate::output::print;
use onecopy_bench::Error;
use onecopy_bench::auction::Auction;
use onecopy_bench::bulletin_board::BulletinBoard;
use onecopy_bench::pgbench::Pgbench;
use onecopy_bench::site::{self, Options, Website};
use onecopy_bench::tpcc::Supplier;
use onecopy_bench::tpcw::Bookstore;

/// Look for what users may not have done to the sites that a database holds: sums that do not add up, bids that were lost.
///
/// Nobody should be at work meanwhile. Pages of the bulletin board have no transactions, so a page that failed half way
/// breaks its rules, too.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where they are: "host=127.0.0.1 port=6432 user=postgres dbname=postgres", or a postgresql:// URL.
    #[arg(long, value_name = "DSN")]
    target: String,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let found = [
            self.check::<Bookstore>().await?,
            self.check::<Auction>().await?,
            self.check::<BulletinBoard>().await?,
            self.check::<Supplier>().await?,
            self.check::<Pgbench>().await?,
        ];
        let broken: Vec<&str> =
            found.iter().flatten().filter(|site| !site.holds).map(|site| site.name).collect();
        if found.iter().all(Option::is_none) {
            return Err(
                "the target holds no bookstore, no auction site, no bulletin board, no wholesale supplier and no bank of \
                 pgbench: load one first (`onecopy bench load`)"
                    .into(),
            );
        }
        if broken.is_empty() {
            Ok(())
        } else {
            Err(format!("rules are broken: {}", broken.join(", ")).into())
        }
    }

    /// Prints the rules of a site; `None` if it is not there.
    async fn check<S: Website + Default>(&self) -> Result<Option<Found>, CommandError> {
        let options = Options::<S> { target: self.target.clone(), ..Options::default() };
        match site::check(&options).await {
            Err(Error::NotLoaded { .. }) => Ok(None),
            report => {
                let report = report?;
                print(format!("{}\n{report}", S::NAME))?;
                Ok(Some(Found { name: S::NAME, holds: report.holds() }))
            }
        }
    }
}

/// A site that was checked.
struct Found {
    name: &'static str,
    holds: bool,
}
