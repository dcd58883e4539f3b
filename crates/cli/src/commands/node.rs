//! `onecopy node`.

use crate::CommandError;
use crate::config::load;
use crate::console::{ASK_EVERY, Target};
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
    List(ListArgs),
    Add(AddArgs),
    Remove(RemoveArgs),
}

/// Begin the log of this node, when a cluster is made: once on each node, before any of them is started.
///
/// Where onecopy was alone before, its log is shared from then on: by this node at first, and others join it.
///
/// Never for a node whose log was lost: the others count on what it had acknowledged. Add one with another number in its place.
#[derive(Debug, clap::Args)]
struct InitArgs {
    /// The node's configuration, with `[cluster]`.
    #[arg(short, long, value_name = "FILE", default_value = "/etc/onecopy/onecopy.toml")]
    config: PathBuf,
    /// The cluster is there already: the node gets its log from the others, once `onecopy node add` says that it may.
    #[arg(long)]
    join: bool,
}

/// Show the nodes: who leads, and how many records of the log each is behind.
#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    target: Target,
}

/// Have a node take part that was begun by `onecopy node init --join` and started.
///
/// It gets the log first, and counts for majorities when it has caught up. The command ends then; ending it earlier changes
/// nothing. One that is configured as non-voting never counts, and the command does not wait.
#[derive(Debug, clap::Args)]
struct AddArgs {
    /// Its number; one that no node has ever had.
    node: u64,
    /// Do not wait for it.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    target: Target,
}

/// Have a node leave for good: one that is lost, or one that still runs and does not lead. Its number is used up.
#[derive(Debug, clap::Args)]
struct RemoveArgs {
    /// Its number.
    node: u64,
    #[command(flatten)]
    target: Target,
}

impl Args {
    /// Does it.
    ///
    /// # Errors
    /// What kept it from that.
    pub fn run(self) -> Result<(), CommandError> {
        match self.command {
            Command::Init(args) => args.run(),
            Command::List(args) => args.run(),
            Command::Add(args) => args.run(),
            Command::Remove(args) => args.run(),
        }
    }
}

impl InitArgs {
    fn run(self) -> Result<(), CommandError> {
        let settings = runtime_settings(&load(&self.config)?);
        let begun = onecopy_runtime::init_node(&settings, self.join)?;
        let (log_id, dir) = (begun.log_id, settings.log.dir.display());
        let done = match (begun.was_alone, self.join) {
            (true, _) => {
                "is shared from now on, by this node at first: have the others join it, by `onecopy node init --join` and `onecopy node add`"
            }
            (false, true) => "will come from the others, once `onecopy node add` says that it may",
            (false, false) => "was begun",
        };
        Ok(print(format!("log {log_id} in {dir} {done}"))?)
    }
}

impl ListArgs {
    fn run(self) -> Result<(), CommandError> {
        let listed = self.target.ask(async |console| console.query("SHOW NODES").await)?;
        self.target.show(&listed)
    }
}

impl AddArgs {
    fn run(self) -> Result<(), CommandError> {
        let number = self.node.to_string();
        self.target.ask(async |console| {
            console.query(&format!("ADD NODE {number}")).await?;
            let mut said = String::new();
            loop {
                let listed = console.query("SHOW NODES").await?;
                let row = (0..listed.rows.len()).find(|row| listed.cell(*row, "node") == number);
                let role = row.map_or("", |row| listed.cell(row, "role"));
                if self.detach || matches!(role, "follower" | "leader" | "non-voting") {
                    return self.target.show(&listed);
                }
                let behind = row.map_or("", |row| listed.cell(row, "behind"));
                let says = format!("node {number}: {behind} records behind");
                if says != said {
                    eprintln!("{says}");
                    said = says;
                }
                tokio::time::sleep(ASK_EVERY).await;
            }
        })
    }
}

impl RemoveArgs {
    fn run(self) -> Result<(), CommandError> {
        let number = self.node.to_string();
        self.target.ask(async |console| {
            console.query(&format!("REMOVE NODE {number}")).await?;
            loop {
                let listed = console.query("SHOW NODES").await?;
                if !(0..listed.rows.len()).any(|row| listed.cell(row, "node") == number) {
                    return self.target.show(&listed);
                }
                tokio::time::sleep(ASK_EVERY).await;
            }
        })
    }
}
