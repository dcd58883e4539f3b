//! The commands, one file each.

mod bench;
mod calibrate;
mod completions;
mod config;
mod demo;
mod explain;
mod log;
mod man;
mod node;
mod replica;
mod reproduce;
mod serve;
mod status;
mod torture;
mod up;
mod verify;

use crate::CommandError;
use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "the help of each command is the documentation of its arguments")]
pub enum Command {
    Serve(serve::Args),
    Up(up::Args),
    Demo(demo::Args),
    Explain(explain::Args),
    Status(status::Args),
    Verify(verify::Args),
    Replica(replica::Args),
    Node(node::Args),
    Log(log::Args),
    Bench(bench::Args),
    Calibrate(calibrate::Args),
    Reproduce(reproduce::Args),
    Torture(torture::Args),
    Config(config::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// Runs the command to its end.
    ///
    /// # Errors
    /// Whatever kept it from its end, for the operator.
    pub fn run(self) -> Result<(), CommandError> {
        match self {
            Command::Serve(args) => args.run(),
            Command::Up(args) => args.run(),
            Command::Demo(args) => args.run(),
            Command::Explain(args) => args.run(),
            Command::Status(args) => args.run(),
            Command::Verify(args) => args.run(),
            Command::Replica(args) => args.run(),
            Command::Node(args) => args.run(),
            Command::Log(args) => args.run(),
            Command::Bench(args) => args.run(),
            Command::Calibrate(args) => args.run(),
            Command::Reproduce(args) => args.run(),
            Command::Torture(args) => args.run(),
            Command::Config(args) => args.run(),
            Command::Completions(args) => args.run(),
            Command::Man(args) => args.run(),
        }
    }
}
