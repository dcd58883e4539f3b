//! Several servers with the same settings, each in a folder of its own under one.

use crate::file::{ClientEntry, ClusterFile, ReplicaEntry};
use crate::server::{Auth, Options, Server, Stop, binaries_for, read_saved, temporary_folder};
use crate::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use tempfile::TempDir;

/// Servers `r1`, `r2`, ... in `DIR/r1`, `DIR/r2`, ... Dropping it stops them.
///
/// Every server gets an `initdb` of its own, at the same time as the others. Copying one data folder would take
/// a second less, but the copies would share the system identifier, by which PostgreSQL refuses the write-ahead
/// log and the base backups of another server.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    servers: Vec<Server>,
    /// Last, so that the folder goes only after the servers have stopped.
    temporary: Option<TempDir>,
}

impl Cluster {
    /// Makes `count` servers, or takes those that the folder holds and makes what is missing. They do not run yet.
    ///
    /// A port other than 0 is that of the first server; the others get the ports after it. New servers get the
    /// PostgreSQL version and the password of the first. Servers of the folder beyond `count` are left alone.
    ///
    /// # Errors
    /// As [`Server::init`].
    pub fn create(dir: impl AsRef<Path>, count: usize, options: &Options) -> Result<Cluster> {
        Self::create_in(dir.as_ref(), count, options, None)
    }

    /// Makes and starts `count` servers in a temporary folder, which goes with them.
    ///
    /// # Errors
    /// As [`Server::init`] and [`Server::start`].
    pub fn temporary(count: usize, options: &Options) -> Result<Cluster> {
        let folder = temporary_folder()?;
        let dir = folder.path().to_owned();
        let mut cluster = Self::create_in(&dir, count, options, Some(folder))?;
        cluster.start()?;
        Ok(cluster)
    }

    fn create_in(dir: &Path, count: usize, options: &Options, temporary: Option<TempDir>) -> Result<Cluster> {
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        let dir = dir.canonicalize().map_err(Error::io("resolve", dir))?;
        let options = &same_for_all(&dir.join(name(0)), options)?;
        let made: Result<Vec<Server>> = thread::scope(|scope| {
            let make = |index: usize| {
                let folder = dir.join(name(index));
                let mut options = options_of(options, index);
                options.settings.insert(0, ("cluster_name".to_owned(), name(index)));
                scope.spawn(move || Server::init(folder, &options))
            };
            let threads: Vec<_> = (0..count).map(make).collect();
            threads.into_iter().map(join).collect()
        });
        Ok(Cluster { dir, servers: made?, temporary })
    }

    /// Starts all servers at once and waits until each accepts connections. Running ones are left alone.
    ///
    /// # Errors
    /// As [`Server::start`], of the first that fails.
    pub fn start(&mut self) -> Result<()> {
        self.servers.iter_mut().try_for_each(Server::launch)?;
        self.servers.iter_mut().try_for_each(Server::await_ready)
    }

    /// Stops all servers at once and waits for their end.
    ///
    /// # Errors
    /// As [`Server::stop`], of the first that fails; the others are stopped all the same.
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        let asked: Vec<Result<()>> = self.servers.iter_mut().map(|server| server.ask_to_stop(how)).collect();
        let ended: Vec<Result<()>> =
            self.servers.iter_mut().map(|server| server.await_stopped(how)).collect();
        asked.into_iter().chain(ended).collect()
    }

    /// The cluster's folder, an absolute path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All servers, in the order of their names.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// All servers, to be started and stopped one by one.
    pub fn servers_mut(&mut self) -> &mut [Server] {
        &mut self.servers
    }

    /// One server, `index < count`.
    #[must_use]
    pub fn server(&self, index: usize) -> &Server {
        &self.servers[index]
    }

    /// One server, to be started, stopped, killed or paused, `index < count`.
    pub fn server_mut(&mut self, index: usize) -> &mut Server {
        &mut self.servers[index]
    }

    /// The name of one server: `r1` for index 0.
    #[must_use]
    pub fn name(index: usize) -> String {
        name(index)
    }

    /// What `cluster.json` says of this cluster while it runs, given where its clients connect.
    ///
    /// # Errors
    /// [`Error::NotRunning`] when a server does not run.
    pub fn describe(&self, client_dsn: &str) -> Result<ClusterFile> {
        let entry = |(index, server): (usize, &Server)| {
            let pid = server.pid().ok_or_else(|| Error::NotRunning { dir: server.dir().to_owned() })?;
            Ok(ReplicaEntry { name: name(index), dsn: server.dsn(), data: server.data_dir(), pid })
        };
        let replicas = self.servers.iter().enumerate().map(entry).collect::<Result<_>>()?;
        Ok(ClusterFile { client: ClientEntry { dsn: client_dsn.to_owned() }, replicas })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let how = if self.temporary.is_some() { Stop::Immediate } else { Stop::Fast };
        // Nobody is left to hear of a failure; each server tries once more when it is dropped.
        let _ = self.stop(how);
    }
}

/// The options with the version and the password settled, so that all servers agree on them.
fn same_for_all(first: &Path, options: &Options) -> Result<Options> {
    let mut options = options.clone();
    let data = first.join("data");
    if data.exists() {
        options.binaries = Some(binaries_for(&data, &options)?.dir);
        let password = read_saved(&first.join("server.json"))?.password;
        options.auth = password.map_or(Auth::Trust, |password| Auth::Scram { password: Some(password) });
    } else if let Some(password) = options.auth.password()? {
        options.auth = Auth::Scram { password: Some(password) };
    }
    Ok(options)
}

fn name(index: usize) -> String {
    format!("r{}", index + 1)
}

fn options_of(options: &Options, index: usize) -> Options {
    let offset = u16::try_from(index).unwrap_or(0);
    let port = if options.port == 0 { 0 } else { options.port.saturating_add(offset) };
    options.clone().with_port(port)
}

fn join(handle: thread::ScopedJoinHandle<'_, Result<Server>>) -> Result<Server> {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
