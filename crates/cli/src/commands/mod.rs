//! The commands, one file each.

mod completions;
mod config;
mod man;

use crate::CommandError;
use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show every setting, or check a configuration.
    Config(config::Args),
    /// Print completions for a shell.
    Completions(completions::Args),
    /// Write the man pages.
    Man(man::Args),
}

impl Command {
    /// Runs the command to its end.
    ///
    /// # Errors
    /// Whatever kept it from its end, for the operator.
    pub fn run(self) -> Result<(), CommandError> {
        match self {
            Command::Config(args) => args.run(),
            Command::Completions(args) => args.run(),
            Command::Man(args) => args.run(),
        }
    }
}
