//! `onecopy bench check`.

use super::store::Store;
use crate::CommandError;
use onecopy_bench::tpcw;

/// Look for what customers may not have done to the bookstore: orders without lines, sums that do not add up.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: Store,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        println!("{}", tpcw::check(&self.store.options()).await?);
        Ok(())
    }
}
