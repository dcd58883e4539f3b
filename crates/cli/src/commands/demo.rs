//! `onecopy demo`.

use crate::CommandError;
use crate::config::{Durability, Level, Messages, Protocol};
use crate::console::{Compared, Console};
use crate::demo_report::{Copies, DemoReport};
use crate::local::{DATABASE, LocalCluster, LocalOptions, default_dir};
use crate::messages;
use crate::output::print;
use crate::runtime_settings::runtime_settings;
use crate::serving::{Background, tcp_port};
use crate::signals::Signals;
use onecopy_bench::site::Report;
use onecopy_bench::tpcw::{self, Options};
use onecopy_cluster::{Cluster, Server, Stop};
use onecopy_core::Status;
use onecopy_core::protocol::ReplicaStatus;
use std::path::{Path, PathBuf};
use std::time::Duration;

const REPLICAS: usize = 3;
/// How long the customers ask a server directly, at most.
const DIRECT_SECONDS_MAX: u64 = 8;
/// As many connections as [`onecopy_cluster::Options::replica`] allows a replica.
const MAX_CONNECTIONS: &str = "200";

/// Three PostgreSQL servers behind onecopy, a bookstore with customers, and what happened.
///
/// Makes what is missing, lets customers walk through the TPC-W bookstore, does the same on one plain PostgreSQL
/// server for comparison, and compares the contents of all replicas. The second time it starts with what the first
/// one left.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds for which the customers are counted.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Emulated customers.
    #[arg(long, default_value_t = Options::default().clients, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// The folder [default: ~/.local/share/onecopy/demo, or /var/lib/onecopy/demo for root]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The port for clients; 0 takes a free one.
    #[arg(long, default_value_t = 6432)]
    port: u16,
    /// Leave all of it running afterwards, until SIGINT or SIGTERM.
    #[arg(long)]
    keep: bool,
    /// The folder of PostgreSQL's programs [default: those of the newest version found]
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
}

impl Args {
    /// Runs the demo to its end.
    ///
    /// # Errors
    /// What kept it from its end, or that the replicas differ.
    pub fn run(self) -> Result<(), CommandError> {
        messages::init(&Messages { level: Level::Warn, ..Messages::default() });
        let dir = self.dir.clone().unwrap_or_else(|| default_dir("demo"));
        eprintln!("starting {REPLICAS} PostgreSQL servers in {}, and onecopy before them", dir.display());
        let local = LocalCluster::start(&LocalOptions {
            dir,
            replicas: REPLICAS,
            port: self.port,
            protocol: Protocol::Onecopy,
            durability: Durability::Disk,
            pg_bin: self.pg_bin.clone(),
        })?;
        let serving = Background::start(runtime_settings(local.loaded()))?;
        let shown = self.show(&local, &serving);
        // In this order, so that onecopy does not see its replicas go; the first failure is the one to hear of.
        let served = serving.stop();
        let stopped = local.stop();
        shown.and(served).and(stopped)
    }

    fn show(&self, local: &LocalCluster, serving: &Background) -> Result<(), CommandError> {
        let port = tcp_port(serving.addresses())?;
        local.announce(port)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut signals = Signals::listen()?;
            tokio::select! {
                shown = self.report(local, port) => shown?,
                () = signals.until_stop(|| {}) => return Err("stopped before its end".into()),
            }
            if self.keep {
                let user = local.superuser();
                eprintln!("It goes on until Ctrl-C. Try:");
                eprintln!("  psql -h 127.0.0.1 -p {port} -U {user} {DATABASE}");
                eprintln!("  onecopy status --dir {}", local.dir().display());
                signals.until_stop(|| {}).await;
            }
            Ok(())
        })
    }

    /// Lets the customers come, and prints what has happened.
    async fn report(&self, local: &LocalCluster, port: u16) -> Result<(), CommandError> {
        let dsn = local.client_dsn(port);
        let console = Console::connect(&dsn).await?;
        let options = self.customers(dsn, self.seconds);
        eprintln!("{}", tpcw::load(&options).await?);
        let before = status(&console).await?;
        let through = tpcw::run(&options).await?;
        let after = status(&console).await?;

        eprintln!("the same customers on one PostgreSQL server, asked directly");
        let direct = self.direct(local.dir()).await?;

        eprintln!("comparing the contents of the {REPLICAS} servers");
        let names: Vec<String> = (0..REPLICAS).map(Cluster::name).collect();
        let copies = copies(&names, &console.verify().await?);
        let report = DemoReport {
            through: &through,
            direct: Some(&direct),
            names: &names,
            before: &before,
            after: &after,
            copies: copies.clone(),
        };
        print(format!("\n{report}"))?;
        match copies {
            Copies::Differ { .. } => Err("the replicas differ".into()),
            Copies::Incomplete { .. } => Err("not all replicas are in service".into()),
            Copies::Identical { .. } => Ok(()),
        }
    }

    /// The same customers on a server of their own: to write on a replica behind onecopy would make it differ.
    async fn direct(&self, dir: &Path) -> Result<Report, CommandError> {
        // Its commits are durable when they are answered, as those of onecopy are.
        let server_options = onecopy_cluster::Options {
            binaries: self.pg_bin.clone(),
            ..onecopy_cluster::Options::default().with("max_connections", MAX_CONNECTIONS)
        };
        let folder = dir.join("direct");
        let mut server = tokio::task::spawn_blocking(move || {
            let mut server = Server::init(folder, &server_options)?;
            server.start()?;
            Ok::<_, onecopy_cluster::Error>(server)
        })
        .await??;
        let options = self.customers(server.dsn(), self.seconds.min(DIRECT_SECONDS_MAX));
        tpcw::load(&options).await?;
        let report = tpcw::run(&options).await?;
        tokio::task::spawn_blocking(move || server.stop(Stop::Fast)).await??;
        Ok(report)
    }

    fn customers(&self, target: String, seconds: u64) -> Options {
        Options {
            target,
            clients: self.clients,
            duration: Duration::from_secs(seconds),
            // Whatever an interrupted or older demo left in its folder is nobody's.
            reload: true,
            ..Options::default()
        }
    }
}

/// The counters as the console shows them.
async fn status(console: &Console) -> Result<Status, CommandError> {
    let counters = console.query("SHOW STATUS").await?;
    let counter = |name: &str| {
        let row = (0..counters.rows.len()).find(|row| counters.cell(*row, "name") == name);
        row.map_or(0, |row| counters.number(row, "value"))
    };
    let replicas = console.query("SHOW REPLICAS").await?;
    let replica = |row: usize| ReplicaStatus {
        up: replicas.cell(row, "state") == "up",
        applied: replicas.number(row, "applied"),
        reads: replicas.number(row, "reads"),
        home_statements: replicas.number(row, "home_statements"),
        applies: replicas.number(row, "applies"),
        ..ReplicaStatus::default()
    };
    Ok(Status {
        told: counter("told"),
        decided: counter("decided"),
        replicas: (0..replicas.rows.len()).map(replica).collect(),
        grants_at_once: counter("grants_at_once"),
        grants_waited: counter("grants_waited"),
        freshness_waits: counter("freshness_waits"),
        reads_placed: counter("reads_placed"),
        deadlocks: counter("deadlocks"),
        reads_changed: counter("reads_changed"),
        ..Status::default()
    })
}

fn copies(names: &[String], compared: &[Compared]) -> Copies {
    let differing = compared.iter().filter(|compared| !compared.is_identical());
    let differing: Vec<String> =
        differing.map(|compared| format!("{} {}", compared.replica, compared.verdict)).collect();
    let was_compared = |name: &&String| compared.iter().any(|compared| compared.replica == **name);
    let missing: Vec<String> = names.iter().filter(|name| !was_compared(name)).cloned().collect();
    match compared.first() {
        _ if !differing.is_empty() => Copies::Differ { replicas: differing },
        Some(first) if missing.is_empty() => Copies::Identical { csn: first.csn, tables: first.tables },
        _ => Copies::Incomplete { missing },
    }
}
