//! Clusters of capped servers that begin alike.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use onecopy_cluster::{Cluster, Server, Stop};

use super::{Bench, Durability, Options, System};
use crate::connection::Target;
use crate::cpu::{Group, Meter};
use crate::cpu_groups::CpuGroup;
use crate::programs::{self, Program, find_program, write};
use crate::tpcw::{self, Bookstore};
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

/// A data folder with the bookstore in it, loaded once at full speed; every server begins as its copy.
pub(super) struct Template {
    data: PathBuf,
    superuser: String,
}

impl Template {
    pub(super) async fn make(dir: &Path, options: &Options) -> Result<Template> {
        let mut server = Server::init(dir, &onecopy_cluster::Options::replica())?;
        server.start()?;
        let load = tpcw::Options {
            target: server.dsn(),
            site: Bookstore { items: options.items, browsers: options.browsers, ..Bookstore::default() },
            seed: options.seed,
            progress: false,
            ..tpcw::Options::default()
        };
        tpcw::load(&load).await?;
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

/// A cluster with the bookstore in it. Dropping it stops what runs of it and removes its servers.
pub(super) struct Running {
    pub(super) system: System,
    pub(super) size: u32,
    pub(super) dsn: String,
    /// Before the servers and their groups, so that it stops first.
    program: Option<Program>,
    /// Those that the program does not start itself.
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
        let mut running = Running::prepare(bench, system, size, template)?;
        running.launch(bench, Durability::Disk).await?;
        running.cap(cap)?;
        Ok(running)
    }

    /// Copies the template for a system, of which nothing runs yet.
    pub(super) fn prepare(
        bench: &Bench<'_>,
        system: System,
        size: u32,
        template: &Template,
    ) -> Result<Running> {
        let dir = free_dir(bench.folder, system);
        template.copy(&dir, size)?;
        Ok(Running {
            system,
            size,
            dsn: String::new(),
            program: None,
            cluster: None,
            pids: Vec::new(),
            groups: Vec::new(),
            dir,
        })
    }

    /// Stops what runs, and starts it on the same servers with their contents, at full speed. Pgpool-II has no decisions to keep.
    pub(super) async fn launch(&mut self, bench: &Bench<'_>, durability: Durability) -> Result<()> {
        self.stop();
        let (system, size) = (self.system, self.size);
        match system {
            System::Pgpool => {
                let program = find_program("pgpool", bench.options.pgpool.as_deref())?;
                let settings = onecopy_cluster::Options::default().with("max_connections", "200");
                let mut cluster = Cluster::create(&self.dir, size as usize, &settings)?;
                cluster.start()?;
                self.pids = cluster.servers().iter().filter_map(Server::pid).collect();
                let cluster = self.cluster.insert(cluster);
                // Some more than there are customers' connections: who goes and who comes may meet.
                let (program, dsn) = programs::pgpool(&program, cluster, 2 * connections(size) + 8).await?;
                (self.program, self.dsn) = (Some(program), dsn);
            }
            _ => {
                let log = self.dir.with_extension("log");
                let how = ["--protocol", system.id(), "--durability", durability.id()];
                let (program, file) =
                    programs::onecopy_up(&bench.options.onecopy, &self.dir, size, &how, &log).await?;
                self.pids = file.replicas.iter().map(|replica| replica.pid).collect();
                (self.program, self.dsn) = (Some(program), file.client.dsn);
            }
        }
        for (number, pid) in self.pids.iter().enumerate() {
            let name = format!("{system}-{}", number + 1);
            let group = CpuGroup::create(&bench.hierarchy, &name, None)
                .and_then(|group| group.add_tree(*pid).map(|()| group));
            self.groups.push(group.map_err(|error| Error::Option(error.to_string()))?);
        }
        Ok(())
    }

    fn stop(&mut self) {
        // Servers that may do little take long to stop.
        let _ = self.cap(None);
        self.program = None;
        self.cluster = None;
        self.groups.clear();
    }

    /// Holds the servers to the cap, or lets them go at full speed.
    pub(super) fn cap(&self, cap: Option<f64>) -> Result<()> {
        let done = self.groups.iter().try_for_each(|group| group.set_cap(cap));
        done.map_err(|error| Error::Option(error.to_string()))
    }

    /// CPU time of all servers since they were put into their groups, in seconds.
    pub(super) fn spent_s(&self) -> Result<f64> {
        let spent = self.groups.iter().map(CpuGroup::spent);
        let spent: std::result::Result<Vec<_>, _> = spent.collect();
        let spent = spent.map_err(|error| Error::Option(error.to_string()))?;
        Ok(spent.iter().map(std::time::Duration::as_secs_f64).sum())
    }

    /// The account of what stands before the servers.
    pub(super) fn proxy_meter(&self) -> Meter {
        let group = |program: &Program| Group {
            name: "proxy".to_owned(),
            root: program.id(),
            without: self.pids.clone(),
        };
        Meter::read(&self.program.iter().map(group).collect::<Vec<_>>())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        // What is left takes room, and goes with the folder in the end.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
