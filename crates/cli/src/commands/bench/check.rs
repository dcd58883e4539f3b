//! `onecopy bench check`.

use super::store::Store;
use crate::CommandError;
use crate::output::print;
use onecopy_bench::tpcw;

/// Look for what customers may not have done to the bookstore: orders without lines, sums that do not add up.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: Store,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let report = tpcw::check(&self.store.options()).await?;
        print(&report)?;
        if report.holds() { Ok(()) } else { Err("the bookstore breaks its rules".into()) }
    }
}
