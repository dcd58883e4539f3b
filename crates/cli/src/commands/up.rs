//! `onecopy up`.

use crate::CommandError;
use crate::config::{Durability, Messages, Protocol};
use crate::local::{DATABASE, LocalCluster, LocalOptions, default_dir};
use crate::messages;
use crate::output::print;
use crate::runtime_settings::runtime_settings;
use crate::serving::{serve_until_stopped, tcp_port};
use onecopy_runtime::{Handle, Settings};
use std::path::PathBuf;

/// Start a local cluster in one folder, and serve it.
///
/// Makes what the folder lacks, starts PostgreSQL servers on free ports and onecopy before them, and writes cluster.json,
/// by which tools find their way. Prints "ready" when clients can connect; at SIGINT or SIGTERM it stops everything.
/// Any user of this machine is let in.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many PostgreSQL servers.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    replicas: u16,
    /// The folder [default: ~/.local/share/onecopy/local, or /var/lib/onecopy/local for root]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The port for clients; 0 takes a free one.
    #[arg(long, default_value_t = 6432)]
    port: u16,
    /// The protocol that orders transactions.
    #[arg(long, value_enum, default_value_t = Protocol::Onecopy)]
    protocol: Protocol,
    /// When a commit counts as durable.
    #[arg(long, value_enum, default_value_t = Durability::Disk)]
    durability: Durability,
    /// The folder of PostgreSQL's programs [default: those of the newest version found]
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// Roll a commit of an earlier run back that every replica refuses, though somebody may have been told of it.
    #[arg(long, value_name = "COMMIT")]
    annul: Vec<u64>,
}

impl Args {
    /// Runs the cluster until SIGINT or SIGTERM.
    ///
    /// # Errors
    /// What kept it from starting or stopping.
    pub fn run(self) -> Result<(), CommandError> {
        messages::init(&Messages::default());
        let local = LocalCluster::start(&LocalOptions {
            dir: self.dir.unwrap_or_else(|| default_dir("local")),
            replicas: usize::from(self.replicas),
            port: self.port,
            protocol: self.protocol,
            durability: self.durability,
            pg_bin: self.pg_bin,
        })?;
        let settings = Settings { annul: self.annul, ..runtime_settings(local.loaded()) };
        serve_until_stopped(settings, |handle| announce(&local, handle), || {})?;
        local.stop()
    }
}

fn announce(local: &LocalCluster, handle: &Handle) -> Result<(), CommandError> {
    let port = tcp_port(handle.addresses())?;
    local.announce(port)?;
    let user = local.superuser();
    eprintln!("connect with: psql -h 127.0.0.1 -p {port} -U {user} {DATABASE}");
    eprintln!("folder:       {}", local.dir().display());
    Ok(print("ready")?)
}
