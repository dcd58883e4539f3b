//! `onecopy bench load`.

use super::store::Store;
use crate::CommandError;
use crate::output::print;
use onecopy_bench::tpcw::{self, Options};

/// Fill a database with the TPC-W bookstore.
///
/// A bookstore of the same size and seed that is there is left alone.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: Store,
    /// Replace a bookstore of another size or seed.
    #[arg(long)]
    reload: bool,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let options = Options { reload: self.reload, ..self.store.options() };
        Ok(print(tpcw::load(&options).await?)?)
    }
}
