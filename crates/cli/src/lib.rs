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
use onecopy_runtime::STACK_BYTES;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};

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
    let command = Cli::parse().command;
    // The first thread's stack is as the system made it, and statements nest deeply.
    let run = move || match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onecopy: {error}");
            ExitCode::FAILURE
        }
    };
    let thread = thread::Builder::new().name("onecopy-0".to_owned()).stack_size(STACK_BYTES).spawn(run);
    match thread.map(JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            eprintln!("onecopy: start a thread: {error}");
            ExitCode::FAILURE
        }
    }
}
