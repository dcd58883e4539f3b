//! Servers of our own, so that they can be harmed and healed one by one, and onecopy before them in its own process.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onecopy_cluster::{Cluster, Server};

use super::Options;
use super::disk::Disk;
use super::fault::{Fault, Victim};
use crate::programs::{self, Program};
use crate::{Error, Result};

/// A served cluster. Dropping it stops all of it.
pub(super) struct Served {
    /// Where clients connect.
    pub(super) dsn: String,
    /// Before the servers, so that it stops first.
    program: Program,
    cluster: Arc<Mutex<Cluster>>,
    /// After the servers, which lie on them.
    disks: Vec<Arc<Disk>>,
    log: PathBuf,
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
        let making = tokio::task::spawn_blocking(move || {
            let mut cluster = Cluster::create(&dir, replicas, &onecopy_cluster::Options::replica())?;
            cluster.start()?;
            Ok::<_, onecopy_cluster::Error>(cluster)
        });
        let cluster = making.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        let log = folder.join("onecopy.log");
        let settings = format!("[pool]\nsilence_timeout_ms = {}\n", options.silence_timeout_ms);
        let (program, dsn) =
            programs::onecopy_serve(&options.onecopy, folder, &cluster, &settings, &log).await?;
        Ok(Served { dsn, program, cluster: Arc::new(Mutex::new(cluster)), disks, log })
    }

    pub(super) fn victim(&self, index: usize) -> Victim {
        let dsn = self.cluster().server(index).dsn();
        Victim { cluster: self.cluster.clone(), index, dsn, disk: self.disks.get(index).cloned() }
    }

    /// Whether onecopy itself still runs; if not, its last words.
    pub(super) fn expect_alive(&mut self) -> Result<()> {
        self.program.expect_alive()
    }

    /// Copies what onecopy and the servers have said.
    pub(super) fn keep_logs(&self, into: &Path) -> Result<()> {
        let cluster = self.cluster();
        let named = |(index, server): (usize, &Server)| {
            (server.log_path(), into.join(format!("{}.log", Cluster::name(index))))
        };
        let servers = cluster.servers().iter().enumerate().map(named);
        for (from, to) in servers.chain([(self.log.clone(), into.join("onecopy.log"))]) {
            std::fs::copy(&from, &to).map_err(Error::file("copy", &from))?;
        }
        Ok(())
    }

    /// A panic elsewhere leaves the servers as they are.
    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
