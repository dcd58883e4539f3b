//! A local cluster in one folder: PostgreSQL servers, and the configuration that serves them.
//!
//! ```text
//! DIR/r1, DIR/r2, ...   the servers (see the package onecopy-cluster)
//! DIR/log               the log of commits
//! DIR/cluster.json      where to connect, while it serves
//! ```

use crate::CommandError;
use crate::config::{
    Auth, AuthMethod, Config, Database, Durability, Loaded, Log, Login, Protocol, Replica, Secrets,
};
use crate::settings::Secret;
use onecopy_cluster::{Cluster, ClusterFile, Options, Server, Stop};
use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The database that a local cluster serves: the one that every new server has.
pub const DATABASE: &str = "postgres";

/// How often it is looked whether a server has ended.
const WATCH_EVERY: Duration = Duration::from_millis(200);

/// What to start.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// The folder; it is made if need be, and used again if it is there.
    pub dir: PathBuf,
    /// How many servers, `1 <= replicas`.
    pub replicas: usize,
    /// The port for clients; 0 takes a free one.
    pub port: u16,
    /// The protocol that orders transactions.
    pub protocol: Protocol,
    /// When a commit counts as durable.
    pub durability: Durability,
    /// The folder of PostgreSQL's programs; `None` takes the newest found.
    pub pg_bin: Option<PathBuf>,
}

/// Servers of one folder that run, and the configuration to serve them. Dropping it stops them.
///
/// A server that ends by itself is reported with how to start it again, and not started: whoever ended it may want to see
/// what happens, and one that crashed may do so again.
#[derive(Debug)]
pub struct LocalCluster {
    /// Before the servers, so that none is reported that is stopped.
    watch: Watch,
    cluster: Arc<Mutex<Cluster>>,
    dir: PathBuf,
    superuser: String,
    loaded: Loaded,
}

impl LocalCluster {
    /// Makes what is missing in the folder and starts the servers.
    ///
    /// # Errors
    /// When the protocol cannot be served, the port is taken, or the servers cannot be made or started.
    pub fn start(options: &LocalOptions) -> Result<LocalCluster, CommandError> {
        check_port(options.port)?;
        let server_options = Options { binaries: options.pg_bin.clone(), ..Options::replica() };
        let mut cluster = Cluster::create(&options.dir, options.replicas, &server_options)?;
        // An old one would send tools to a cluster that does not serve yet.
        ClusterFile::remove(cluster.dir())?;
        cluster.start()?;
        let loaded = configuration(&cluster, options);
        let (dir, superuser) = (cluster.dir().to_owned(), cluster.server(0).superuser().to_owned());
        let cluster = Arc::new(Mutex::new(cluster));
        Ok(LocalCluster { watch: Watch::start(cluster.clone())?, cluster, dir, superuser, loaded })
    }

    /// The configuration that serves the cluster.
    #[must_use]
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// The cluster's folder, an absolute path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The name of the servers' superuser.
    #[must_use]
    pub fn superuser(&self) -> &str {
        &self.superuser
    }

    /// How each server is reached by itself.
    #[must_use]
    pub fn replica_dsns(&self) -> Vec<String> {
        lock(&self.cluster).servers().iter().map(Server::dsn).collect()
    }

    /// How clients connect, given the port on which onecopy listens.
    #[must_use]
    pub fn client_dsn(&self, port: u16) -> String {
        format!("host=127.0.0.1 port={port} user={} dbname={DATABASE}", self.superuser)
    }

    /// Writes `cluster.json`: from now on the cluster can be found.
    ///
    /// # Errors
    /// When a server does not run any more, or the file cannot be written.
    pub fn announce(&self, port: u16) -> Result<(), CommandError> {
        lock(&self.cluster).describe(&self.client_dsn(port))?.write(&self.dir)?;
        Ok(())
    }

    /// Removes `cluster.json` and stops the servers in order, those included that were started by hand in the place of
    /// one that had ended.
    ///
    /// # Errors
    /// When a server cannot be stopped.
    pub fn stop(mut self) -> Result<(), CommandError> {
        let removed = ClusterFile::remove(&self.dir);
        self.watch.end();
        let mut cluster = lock(&self.cluster);
        let stopped = cluster.stop(Stop::Fast);
        // What one of them fails at keeps no other one running.
        let others: Vec<_> = cluster.servers().iter().map(Server::stop_others).collect();
        [removed, stopped].into_iter().chain(others).collect::<Result<(), _>>()?;
        Ok(())
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure; the servers are stopped when the cluster is dropped.
        let _ = ClusterFile::remove(&self.dir);
    }
}

/// A thread that looks after the servers until this is dropped.
#[derive(Debug)]
struct Watch {
    /// Dropped to end it.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start(cluster: Arc<Mutex<Cluster>>) -> Result<Watch, CommandError> {
        let (end, ended) = channel::<()>();
        let watch = move || {
            while ended.recv_timeout(WATCH_EVERY) == Err(RecvTimeoutError::Timeout) {
                for (index, server) in lock(&cluster).servers_mut().iter_mut().enumerate() {
                    if let Some(status) = server.take_end() {
                        let (data, log) = (server.data_dir(), server.log_path());
                        tracing::warn!(
                            "the PostgreSQL server of {} has ended ({status}), its last words are in {}; onecopy goes on \
                             with the others, and takes it up again once it runs: start it as its user by \
                             `{} -D {} -l {} start`, or stop and start this command",
                            Cluster::name(index),
                            log.display(),
                            server.binaries().program("pg_ctl").display(),
                            data.display(),
                            log.display(),
                        );
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("onecopy-servers".to_owned()).spawn(watch)?;
        Ok(Watch { end: Some(end), thread: Some(thread) })
    }

    fn end(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // Whatever it failed with was told by then.
            drop(thread.join());
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

/// A panic elsewhere leaves the servers as they are: they are still to be stopped.
fn lock(cluster: &Mutex<Cluster>) -> MutexGuard<'_, Cluster> {
    cluster.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where local clusters lie unless told otherwise. For root it is a folder that an unprivileged user can enter.
#[must_use]
pub fn default_dir(name: &str) -> PathBuf {
    let home = env::var_os("HOME").map(PathBuf::from);
    let data = env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib")
    } else {
        data.or_else(|| Some(home?.join(".local/share"))).unwrap_or_else(env::temp_dir)
    };
    base.join("onecopy").join(name)
}

/// Found before the servers are started rather than after.
fn check_port(port: u16) -> Result<(), onecopy_cluster::Error> {
    let taken = port != 0 && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err();
    if taken { Err(onecopy_cluster::Error::PortTaken { port }) } else { Ok(()) }
}

fn configuration(cluster: &Cluster, options: &LocalOptions) -> Loaded {
    let replicas =
        cluster.servers().iter().enumerate().map(|(index, server)| replica(index, server)).collect();
    let mut config = Config::with_databases(vec![Database { name: DATABASE.to_owned(), replicas }]);
    config.protocol = options.protocol;
    config.listen.port = options.port;
    // The servers let in everybody of this machine as well.
    config.auth = Auth { method: AuthMethod::Trust };
    config.log = Log { dir: cluster.dir().join("log"), durability: options.durability, ..Log::default() };
    let first = cluster.server(0);
    let password = first.password().map(|password| Secret(password.to_owned()));
    let replica_login = Login { user: first.superuser().to_owned(), password };
    Loaded {
        config,
        secrets: Secrets { replica_login, users: Vec::new(), cluster_secret: None },
        warnings: Vec::new(),
    }
}

fn replica(index: usize, server: &Server) -> Replica {
    // The Unix socket costs less than TCP.
    let host = server.socket_dir().map_or_else(|| "127.0.0.1".to_owned(), |dir| dir.display().to_string());
    Replica { name: Cluster::name(index), host, port: server.port(), tls: None }
}
