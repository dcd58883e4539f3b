//! Servers of our own, so that they can be harmed and healed one by one, and onecopy before them in processes of its own.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onecopy_cluster::{Cluster, Server};
use rustix::process::Signal;

use super::Options;
use super::disk::Disk;
use super::fault::{Fault, Victim};

use crate::connection::Target;
use crate::nodes::{Nodes, Setup};
use crate::{Error, Result};

/// A table of ours, with a row for each node, by which it is found out whether that one serves.
const CREATE_ROUNDS: &str = "CREATE TABLE failures_rounds (node int PRIMARY KEY, rounds bigint NOT NULL)";
/// How long a transaction through a node may take until another one is tried.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// A served cluster. Dropping it stops all of it.
pub(super) struct Served {
    /// Where clients connect.
    pub(super) dsn: String,
    /// Before the servers, so that they stop first.
    pub(super) nodes: Nodes,
    cluster: Arc<Mutex<Cluster>>,
    /// After the servers, which lie on them.
    disks: Vec<Arc<Disk>>,
}

impl Served {
    /// Makes and starts everything in a folder that is empty.
    pub(super) async fn start(options: &Options, folder: &Path) -> Result<Served> {
        let dir = folder.join("servers");
        let mut disks = Vec::new();
        if options.faults.contains(&Fault::Full) {
            for index in 0..options.replicas as usize {
                disks.push(Arc::new(Disk::mount(&dir.join(Cluster::name(index)))?));
            }
        }
        let replicas = options.replicas as usize;
        let cluster = blocking(move || {
            let mut cluster = Cluster::create(&dir, replicas, &onecopy_cluster::Options::replica())?;
            cluster.start()?;
            Ok(cluster)
        });
        let cluster = cluster.await?;
        let setup = Setup {
            onecopy: &options.workplace.onecopy,
            count: options.nodes,
            settings: format!("pool.silence_timeout_ms = {}\n", options.silence_timeout_ms),
        };
        let nodes = Nodes::start(&setup, folder, &cluster).await?;
        Ok(Served { dsn: nodes.dsn_of_all(), nodes, cluster: Arc::new(Mutex::new(cluster)), disks })
    }

    pub(super) fn victim(&self, index: usize) -> Victim {
        let dsn = self.cluster().server(index).dsn();
        Victim { cluster: self.cluster.clone(), index, dsn, disk: self.disks.get(index).cloned() }
    }

    /// Does a fault to these nodes, and returns when it is done.
    ///
    /// # Errors
    /// When something that should be ended does not run.
    pub(super) async fn inject(&mut self, fault: Fault, nodes: &[usize]) -> Result<()> {
        match fault {
            Fault::Pause => self.nodes.signal(nodes, Signal::STOP),
            Fault::All => {
                self.nodes.signal(nodes, Signal::KILL);
                let cluster = self.cluster.clone();
                blocking(move || {
                    kill_all(cluster.lock().unwrap_or_else(PoisonError::into_inner).servers_mut())
                })
                .await?;
                self.nodes.kill(nodes)?;
            }
            _ => self.nodes.kill(nodes)?,
        }
        Ok(())
    }

    /// Takes the fault away, and returns when the processes take clients again.
    ///
    /// # Errors
    /// When one does not start.
    pub(super) async fn heal(&mut self, fault: Fault, nodes: &[usize]) -> Result<()> {
        match fault {
            Fault::Pause => self.nodes.signal(nodes, Signal::CONT),
            Fault::All => {
                let cluster = self.cluster.clone();
                let servers =
                    blocking(move || cluster.lock().unwrap_or_else(PoisonError::into_inner).start());
                let (servers, spawned) = tokio::join!(servers, self.nodes.spawn(nodes));
                servers?;
                if spawned.is_err() {
                    // One alone ends if it finds no server, and whoever looks after it starts it again.
                    self.nodes.spawn(nodes).await?;
                }
            }
            _ => self.nodes.spawn(nodes).await?,
        }
        Ok(())
    }

    /// Makes what [`Served::until_all_serve`] needs.
    pub(super) async fn prepare_rounds(&self) -> Result<()> {
        let client = Target::parse(&self.dsn)?.connect().await?;
        let count = self.nodes.all().len();
        let sql =
            format!("{CREATE_ROUNDS}; INSERT INTO failures_rounds SELECT generate_series(1, {count}), 0");
        client.batch_execute(&sql).await.map_err(Error::database("make a table for the rounds"))
    }

    /// Returns when a transaction of a new client has succeeded through each node.
    pub(super) async fn until_all_serve(&self) -> Result<()> {
        for node in self.nodes.all() {
            let target = Target::parse(&self.nodes.dsn(node))?;
            let update = format!("UPDATE failures_rounds SET rounds = rounds + 1 WHERE node = {}", node + 1);
            let attempt = async || target.connect().await.ok()?.batch_execute(&update).await.ok();
            while !matches!(tokio::time::timeout(ATTEMPT_MAX, attempt()).await, Ok(Some(()))) {
                tokio::time::sleep(ATTEMPT_PAUSE).await;
            }
        }
        Ok(())
    }

    /// Whether onecopy itself still runs; if not, its last words.
    pub(super) fn expect_alive(&mut self) -> Result<()> {
        self.nodes.expect_alive()
    }

    /// Copies what onecopy and the servers have said.
    pub(super) fn keep_logs(&self, into: &Path) -> Result<()> {
        let cluster = self.cluster();
        let named = |(index, server): (usize, &Server)| {
            (server.log_path(), into.join(format!("{}.log", Cluster::name(index))))
        };
        let servers = cluster.servers().iter().enumerate().map(named);
        let nodes =
            self.nodes.logs().map(|log| (log.to_owned(), into.join(log.file_name().unwrap_or_default())));
        for (from, to) in servers.chain(nodes) {
            std::fs::copy(&from, &to).map_err(Error::file("copy", &from))?;
        }
        Ok(())
    }

    /// A panic elsewhere leaves the servers as they are.
    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What blocks is done on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> onecopy_cluster::Result<T> + Send + 'static,
) -> Result<T> {
    let acting = tokio::task::spawn_blocking(act);
    Ok(acting.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?)
}

/// All servers at once, not one after the other.
fn kill_all(servers: &mut [Server]) -> onecopy_cluster::Result<()> {
    std::thread::scope(|scope| {
        let killing: Vec<_> = servers.iter_mut().map(|server| scope.spawn(|| server.kill_all())).collect();
        let mut ended = killing
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.try_for_each(|ended| ended)
    })
}
