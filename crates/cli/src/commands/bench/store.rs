//! What the commands on the TPC-W bookstore have in common: where it is, and how large.

use onecopy_bench::tpcw::{Bookstore, Options};

/// Which bookstore.
#[derive(Debug, clap::Args)]
pub(super) struct Store {
    /// Where it is: "host=127.0.0.1 port=6432 user=postgres dbname=postgres", or a postgresql:// URL.
    #[arg(long, value_name = "DSN")]
    pub(super) target: String,
    /// How many books it has: 1000, 10000, ...
    #[arg(long, default_value_t = Bookstore::default().items)]
    pub(super) items: i64,
    /// Emulated browsers that its customers are counted for: 2,880 customers each.
    #[arg(long, default_value_t = Bookstore::default().browsers)]
    pub(super) browsers: i64,
    /// The same seed gives the same bookstore and the same customers.
    #[arg(long, default_value_t = Options::default().seed)]
    pub(super) seed: u64,
    /// Show no progress.
    #[arg(long)]
    pub(super) quiet: bool,
}

impl Store {
    /// Everything else is left at its default.
    pub(super) fn options(self) -> Options {
        Options {
            target: self.target,
            site: Bookstore { items: self.items, browsers: self.browsers, ..Bookstore::default() },
            seed: self.seed,
            progress: !self.quiet,
            ..Options::default()
        }
    }
}
