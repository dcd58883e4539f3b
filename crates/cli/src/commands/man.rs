//! `onecopy man --out DIR`.

use crate::{CommandError, command_line};
use std::path::PathBuf;

/// Write the man pages.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder to write them to, one a command; it is made if need be.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Args {
    /// Writes the pages.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn run(self) -> Result<(), CommandError> {
        let write = || {
            std::fs::create_dir_all(&self.out)?;
            clap_mangen::generate_to(command_line(), &self.out)
        };
        write().map_err(|error| format!("write man pages to {}: {error}", self.out.display()).into())
    }
}
