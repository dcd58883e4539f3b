//! The `onecopy` command: one file a command under [`commands`], its configuration in [`config`].

pub mod commands;
pub mod config;
pub mod console;
pub mod demo_report;
pub mod local;
pub mod messages;
pub mod output;
pub mod runtime_settings;
pub mod serving;
pub mod settings;
pub mod signals;

use clap::{CommandFactory, Parser};
use std::process::ExitCode;

/// Makes several unmodified PostgreSQL servers one strictly serializable database.
///
/// Applications connect to onecopy as they would to PostgreSQL. Reads run on one server, writes reach all.
#[derive(Debug, Parser)]
#[command(name = "onecopy", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: commands::Command,
}

/// What the commands fail with: shown to the operator as it is.
pub type CommandError = Box<dyn std::error::Error + Send + Sync>;

/// The definition of the whole command line, from which help, man pages and completions derive.
#[must_use]
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Runs the command that the process was started with. The exit code is 0, 1 if it failed, 2 if the command line
/// is wrong.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onecopy: {error}");
            ExitCode::FAILURE
        }
    }
}
