//! Starts and stops what is compared.

use std::path::Path;
use std::time::Duration;

use onecopy_cluster::{Cluster, Server};

use super::{Options, Target, Work, visits};
use crate::connection;
use crate::cpu::Group;
use crate::observe::watch::{self, CONSOLE};
use crate::programs::{self, PgpoolMode, Program, find_program};
use crate::torture::{CompareOptions, compare_until_identical};
use crate::{Error, Result, site};

/// Replicas, where there are several.
const REPLICAS: u32 = 3;
/// How long servers behind a proxy may take to hold the same.
const CATCH_UP: Duration = Duration::from_secs(10);

/// A target that runs, with a supplier in it. Dropping it stops it.
pub(super) struct Running {
    pub(super) target: Target,
    pub(super) dsn: String,
    // The program first: it stops before the servers behind it.
    program: Option<Program>,
    servers: Servers,
}

enum Servers {
    One(Box<Server>),
    Several(Cluster),
    /// Those that the program itself runs.
    Programs(Vec<u32>),
}

impl Running {
    fn servers(&self) -> Vec<u32> {
        match &self.servers {
            Servers::One(server) => server.pid().into_iter().collect(),
            Servers::Several(cluster) => cluster.servers().iter().filter_map(Server::pid).collect(),
            Servers::Programs(pids) => pids.clone(),
        }
    }

    /// The processes at the roots of all that it consists of.
    pub(super) fn roots(&self) -> Vec<u32> {
        self.servers().into_iter().chain(self.program.iter().map(Program::id)).collect()
    }

    /// The process trees to account for.
    pub(super) fn groups(&self) -> Vec<Group> {
        Group::of_servers("middleware", self.program.as_ref().map(Program::id), &self.servers())
    }

    /// What each replica of onecopy has done since it started; nothing of others.
    pub(super) async fn work(&self) -> Result<Vec<Work>> {
        if self.target.protocol().is_none() {
            return Ok(Vec::new());
        }
        let client = connection::Target::parse(&self.dsn)?.on_database(CONSOLE).connect().await?;
        let said =
            client.simple_query("SHOW REPLICAS").await.map_err(Error::database("ask for the replicas"))?;
        let work = |row| {
            let count = |column| watch::cell(row, column).parse().unwrap_or(0);
            Work {
                replica: watch::cell(row, "name"),
                home_statements: count("home_statements"),
                applies: count("applies"),
                reads: count("reads"),
            }
        };
        Ok(watch::rows(&said).map(work).collect())
    }

    /// In what its servers differ, once those that are behind had time to catch up.
    pub(super) async fn differences(&self) -> Result<Vec<String>> {
        match &self.servers {
            Servers::One(_) => Ok(Vec::new()),
            Servers::Several(cluster) => {
                let dsns: Vec<String> = cluster.servers().iter().map(Server::dsn).collect();
                let compared = compare_until_identical(&dsns, &CompareOptions::default(), CATCH_UP).await?;
                Ok(compared.differences.iter().map(ToString::to_string).collect())
            }
            Servers::Programs(_) => {
                let verified = watch::verify(&self.dsn).await?;
                let mut differences: Vec<String> = Vec::new();
                for one in verified.iter().filter(|one| !one.is_identical()) {
                    differences.push(format!("{}: {}", one.replica, one.verdict));
                }
                let missing = REPLICAS as usize - verified.len().min(REPLICAS as usize);
                differences.extend((missing > 0).then(|| format!("{missing} replicas are out of service")));
                Ok(differences)
            }
        }
    }
}

/// Starts a target and loads the supplier through it, or into each of the servers of Pgpool-II: its version 4.3 stands
/// still in the middle of a COPY in this mode.
pub(super) async fn start(target: Target, options: &Options, folder: &Path) -> Result<Running> {
    let running = match target {
        Target::ReadCommitted | Target::RepeatableRead => {
            let mut server = Server::init(folder.join(target.id()), &server_options(options))?;
            server.start()?;
            Running { target, dsn: server.dsn(), program: None, servers: Servers::One(Box::new(server)) }
        }
        Target::Pgpool => pgpool(options, folder).await?,
        Target::Onecopy | Target::CentralisedWrites | Target::Chains | Target::ChainsSerializable => {
            onecopy(target, options, folder).await?
        }
    };
    let loaded = match &running.servers {
        Servers::Several(cluster) => cluster.servers().iter().map(Server::dsn).collect(),
        Servers::One(_) | Servers::Programs(_) => vec![running.dsn.clone()],
    };
    let loaded_at = site::now();
    for dsn in loaded {
        site::load_at(&visits(options, target, &dsn, 0), loaded_at).await?;
    }
    Ok(running)
}

/// PostgreSQL as it is shipped, with room for the terminals.
fn server_options(options: &Options) -> onecopy_cluster::Options {
    let connections = (options.terminals.saturating_mul(2) + 50).max(200);
    onecopy_cluster::Options::default().with("max_connections", &connections.to_string())
}

async fn pgpool(options: &Options, folder: &Path) -> Result<Running> {
    let program = find_program("pgpool", options.pgpool.as_deref())?;
    let target = Target::Pgpool;
    // Its mode wants this of the servers.
    let settings = server_options(options).with("default_transaction_isolation", "repeatable read");
    let mut cluster = Cluster::create(folder.join(target.id()), REPLICAS as usize, &settings)?;
    cluster.start()?;
    let children = options.terminals + 8;
    let (program, dsn) =
        programs::pgpool(&program, &cluster, PgpoolMode::SnapshotIsolation, children).await?;
    Ok(Running { target, dsn, program: Some(program), servers: Servers::Several(cluster) })
}

async fn onecopy(target: Target, options: &Options, folder: &Path) -> Result<Running> {
    let (dir, log) = (folder.join(target.id()), folder.join(format!("{target}.log")));
    let more: Vec<&str> = target.protocol().iter().flat_map(|protocol| ["--protocol", protocol]).collect();
    let program = &options.workplace.onecopy;
    let (program, file) = programs::onecopy_up(program, &dir, REPLICAS, &more, &log).await?;
    let servers = Servers::Programs(file.replicas.iter().map(|replica| replica.pid).collect());
    Ok(Running { target, dsn: file.client.dsn, program: Some(program), servers })
}
