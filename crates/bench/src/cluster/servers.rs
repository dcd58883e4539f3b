//! Clusters of capped servers that begin alike.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use onecopy_cluster::{Cluster, Server, Stop};

use super::{Bench, Options, System};
use crate::connection::Target;
use crate::cpu::{self, Group, Meter};
use crate::cpu_groups::CpuGroup;
use crate::nodes::{Nodes, Setup};
use crate::pgbench::Pgbench;
use crate::programs::{self, PgpoolMode, Program, find_program, write};
use crate::site::{self, Website};
use crate::tpcw::Bookstore;
use crate::{Error, Result};

/// Connections of customers for each server. More only wait for one another at servers that are so slow.
const CONNECTIONS_EACH: u32 = 12;
/// As many as an `onecopy up` opens to one replica.
const CONNECTIONS_MAX: u32 = 64;

/// Connections that the customers of so many servers share.
pub(super) fn connections(size: u32) -> u32 {
    size.saturating_mul(CONNECTIONS_EACH).min(CONNECTIONS_MAX)
}

/// Of a capped server vacuuming would take seconds, of some stages and not of others: one was seen to do 38 pages a second instead of
/// 84. It is done before, once, and not again within the minutes that a cluster runs for.
const TIDY: [&str; 2] = ["VACUUM (ANALYZE)", "ALTER SYSTEM SET autovacuum = off"];

/// How onecopy is served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serve {
    /// `log.durability`: `memory` or `disk`.
    pub(super) durability: &'static str,
    /// Processes, which share a log if they are several.
    pub(super) nodes: u32,
    /// Whether all clients are at the node that leads, rather than at each of them in turn.
    pub(super) at_leader: bool,
}

impl Serve {
    /// One process, as it is by default.
    pub(super) const ALONE: Serve = Serve { durability: "disk", nodes: 1, at_leader: false };
}

/// A data folder with the bookstore in it, and a bank if one is needed, loaded once at full speed; every server begins as its copy.
pub(super) struct Template {
    data: PathBuf,
    superuser: String,
}

impl Template {
    pub(super) async fn make(dir: &Path, options: &Options, bank: Option<Pgbench>) -> Result<Template> {
        let mut server = Server::init(dir, &onecopy_cluster::Options::replica())?;
        server.start()?;
        let store = Bookstore { items: options.items, browsers: options.browsers, ..Bookstore::default() };
        load(&server, options, store).await?;
        if let Some(bank) = bank {
            load(&server, options, bank).await?;
        }
        let client = Target::parse(&server.dsn())?.connect().await?;
        for statement in TIDY {
            client.batch_execute(statement).await.map_err(Error::database(format!("run {statement:?}")))?;
        }
        drop(client);
        server.stop(Stop::Fast)?;
        Ok(Template { data: server.data_dir(), superuser: server.superuser().to_owned() })
    }

    /// Makes the folders of so many servers.
    fn copy(&self, dir: &Path, count: u32) -> Result<()> {
        for number in 0..count as usize {
            let server = dir.join(Cluster::name(number));
            fs::create_dir_all(&server).map_err(Error::file("create", &server))?;
            // With its owner and its rights.
            let mut command = Command::new("cp");
            command.arg("-a").arg(&self.data).arg(server.join("data"));
            let output = command.output().map_err(Error::file("run", Path::new("cp")))?;
            if !output.status.success() {
                return Err(Error::program("cp", String::from_utf8_lossy(&output.stderr).trim()));
            }
            let saved = format!("{{\"port\": 0, \"superuser\": \"{}\"}}\n", self.superuser);
            write(&server.join("server.json"), &saved)?;
        }
        Ok(())
    }
}

async fn load<S: Website + Default>(server: &Server, options: &Options, site: S) -> Result<()> {
    let target = server.dsn();
    let load =
        site::Options { target, site, seed: options.seed, progress: false, ..site::Options::default() };
    site::load(&load).await.map(drop)
}

/// A folder for one cluster of a system, of which several may run.
fn free_dir(folder: &Path, system: System) -> PathBuf {
    let mut number = 0;
    loop {
        let dir = folder.join(format!("{system}-{number}"));
        if !dir.exists() {
            return dir;
        }
        number += 1;
    }
}

/// What stands before the servers.
enum Before {
    Pgpool(Program),
    Onecopy(Nodes),
}

impl Before {
    fn pids(&self) -> Vec<u32> {
        match self {
            Before::Pgpool(program) => vec![program.id()],
            Before::Onecopy(nodes) => nodes.pids(),
        }
    }
}

/// A cluster with the bookstore in it. Dropping it stops what runs of it and removes its servers.
pub(super) struct Running {
    pub(super) system: System,
    pub(super) size: u32,
    pub(super) dsn: String,
    serve: Serve,
    /// Before the servers and their groups, so that it stops first.
    before: Option<Before>,
    cluster: Option<Cluster>,
    pids: Vec<u32>,
    pub(super) groups: Vec<CpuGroup>,
    dir: PathBuf,
}

impl Running {
    /// Starts a system on copies of the template, at full speed, and then caps its servers.
    pub(super) async fn start(
        bench: &Bench<'_>,
        system: System,
        size: u32,
        cap: Option<f64>,
        template: &Template,
    ) -> Result<Running> {
        let mut running = Running::prepare(bench, system, size, template, Serve::ALONE)?;
        running.launch(bench).await?;
        running.cap(cap)?;
        Ok(running)
    }

    /// Copies the template for a system, of which nothing runs yet.
    pub(super) fn prepare(
        bench: &Bench<'_>,
        system: System,
        size: u32,
        template: &Template,
        serve: Serve,
    ) -> Result<Running> {
        let dir = free_dir(bench.folder, system);
        template.copy(&dir, size)?;
        Ok(Running {
            system,
            size,
            dsn: String::new(),
            serve,
            before: None,
            cluster: None,
            pids: Vec::new(),
            groups: Vec::new(),
            dir,
        })
    }

    /// Stops what runs, and starts it on the same servers with their contents, at full speed.
    pub(super) async fn launch(&mut self, bench: &Bench<'_>) -> Result<()> {
        self.stop();
        let (system, size) = (self.system, self.size);
        let settings = match system {
            System::Pgpool => onecopy_cluster::Options::default().with("max_connections", "200"),
            _ => onecopy_cluster::Options::replica(),
        };
        let mut cluster = Cluster::create(&self.dir, size as usize, &settings)?;
        cluster.start()?;
        self.pids = cluster.servers().iter().filter_map(Server::pid).collect();
        let cluster = self.cluster.insert(cluster);
        let (before, dsn) = match system {
            System::Pgpool => {
                let program = find_program("pgpool", bench.options.pgpool.as_deref())?;
                // Some more than there are customers' connections: who goes and who comes may meet.
                let (program, dsn) = programs::pgpool(
                    &program,
                    cluster,
                    PgpoolMode::NativeReplication,
                    2 * connections(size) + 8,
                )
                .await?;
                (Before::Pgpool(program), dsn)
            }
            _ => {
                let nodes = onecopy(bench, system, self.serve, &self.dir, cluster).await?;
                let is_told = self.serve.nodes > 1 && self.serve.at_leader;
                let dsn = if is_told { nodes.dsn(nodes.leader().await?) } else { nodes.dsn_of_all() };
                (Before::Onecopy(nodes), dsn)
            }
        };
        (self.before, self.dsn) = (Some(before), dsn);
        let Some(hierarchy) = &bench.hierarchy else { return Ok(()) };
        for (number, pid) in self.pids.iter().enumerate() {
            let name = format!("{system}-{}", number + 1);
            let group = CpuGroup::create(hierarchy, &name, None)
                .and_then(|group| group.add_tree(*pid).and_then(|()| group.pin(number)).map(|()| group));
            self.groups.push(group.map_err(|error| Error::Option(error.to_string()))?);
        }
        Ok(())
    }

    /// Stops all of it.
    pub(super) fn stop(&mut self) {
        // Servers that may do little take long to stop.
        let _ = self.cap(None);
        self.before = None;
        self.cluster = None;
        self.groups.clear();
    }

    /// Holds the servers to the cap, or lets them go at full speed.
    pub(super) fn cap(&self, cap: Option<f64>) -> Result<()> {
        let done = self.groups.iter().try_for_each(|group| group.set_cap(cap));
        done.map_err(|error| Error::Option(error.to_string()))
    }

    /// CPU time of all servers since they were put into their groups, or without groups since they were started, in seconds.
    pub(super) fn spent_s(&self) -> Result<f64> {
        if self.groups.is_empty() {
            return Ok(cpu::spent_s(&self.pids));
        }
        let spent = self.groups.iter().map(CpuGroup::spent);
        let spent: std::result::Result<Vec<_>, _> = spent.collect();
        let spent = spent.map_err(|error| Error::Option(error.to_string()))?;
        Ok(spent.iter().map(std::time::Duration::as_secs_f64).sum())
    }

    /// The account of what stands before the servers.
    pub(super) fn proxy_meter(&self) -> Meter {
        let group = |root: u32| Group { name: "proxy".to_owned(), root, without: Vec::new() };
        Meter::read(&self.before.iter().flat_map(Before::pids).map(group).collect::<Vec<_>>())
    }
}

/// Serves servers that run by onecopy.
async fn onecopy(
    bench: &Bench<'_>,
    system: System,
    serve: Serve,
    dir: &Path,
    cluster: &Cluster,
) -> Result<Nodes> {
    let folder = dir.join("onecopy");
    fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
    let setup = Setup {
        onecopy: &bench.options.workplace.onecopy,
        count: serve.nodes,
        settings: format!("protocol = \"{system}\"\nlog.durability = \"{}\"\n", serve.durability),
    };
    Nodes::start(&setup, &folder, cluster).await
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        // What is left takes room, and goes with the folder in the end.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
