//! `onecopy node`.

use crate::CommandError;
use crate::config::load;
use crate::output::print;
use crate::runtime_settings::runtime_settings;
use clap::Subcommand;
use std::path::PathBuf;

/// Begin and look after a cluster of several onecopy processes (docs/nodes.md).
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(InitArgs),
}

/// Begin the log of this node, when a cluster is made: once on each node, before any of them is started.
///
/// Never for a node whose log was lost: the others count on what it had acknowledged.
#[derive(Debug, clap::Args)]
struct InitArgs {
    /// The node's configuration, with `[cluster]`.
    #[arg(short, long, value_name = "FILE", default_value = "/etc/onecopy/onecopy.toml")]
    config: PathBuf,
}

impl Args {
    /// Does it.
    ///
    /// # Errors
    /// What kept it from that.
    pub fn run(self) -> Result<(), CommandError> {
        match self.command {
            Command::Init(args) => args.run(),
        }
    }
}

impl InitArgs {
    fn run(self) -> Result<(), CommandError> {
        let settings = runtime_settings(&load(&self.config)?);
        let log_id = onecopy_runtime::init_node(&settings)?;
        let dir = settings.log.dir.display();
        Ok(print(format!("began log {log_id} in {dir}"))?)
    }
}
