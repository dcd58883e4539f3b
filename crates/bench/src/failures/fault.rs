//! What can be done to a replica or a node: name and meaning of every fault, injection and healing of those of a replica.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onecopy_cluster::{Cluster, Server, Stop};
use onecopy_workload::random::{Random, uniform};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio_postgres::SimpleQueryMessage;

use super::disk::Disk;
use super::served::blocking;
use crate::connection::Target;
use crate::{Error, Result};

/// Sessions of whoever stands before the server; ours is none of them.
const SESSIONS: &str =
    "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// One way in which a replica or a node fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// `kill -9` of the server with all of its processes; it is started again.
    Kill,
    /// SIGSTOP of all of its processes: it hangs, its connections stay open; then SIGCONT.
    Stop,
    /// `pg_terminate_backend` of every session.
    Sessions,
    /// `kill -9` of one backend, after which PostgreSQL ends all others and recovers.
    Backend,
    /// `pg_ctl restart -m immediate`.
    Restart,
    /// The server's disk is full; then there is room again.
    Full,
    /// `kill -9` of the node that leads; it is started again.
    Leader,
    /// `kill -9` of a node that does not lead; it is started again.
    Node,
    /// SIGSTOP of the node that leads: it hangs, its connections stay open; then SIGCONT.
    Pause,
    /// `kill -9` of all nodes, and of all servers with all of their processes; all are started again.
    All,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 10] = [
        Fault::Kill,
        Fault::Stop,
        Fault::Sessions,
        Fault::Backend,
        Fault::Restart,
        Fault::Full,
        Fault::Leader,
        Fault::Node,
        Fault::Pause,
        Fault::All,
    ];

    /// Its name.
    pub fn id(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Stop => "stop",
            Fault::Sessions => "sessions",
            Fault::Backend => "backend",
            Fault::Restart => "restart",
            Fault::Full => "full",
            Fault::Leader => "leader",
            Fault::Node => "node",
            Fault::Pause => "pause",
            Fault::All => "all",
        }
    }

    /// What is done, in words.
    pub fn about(self) -> &'static str {
        match self {
            Fault::Kill => "kill -9 of the server with all its processes; later it is started",
            Fault::Stop => "SIGSTOP of all the server's processes; later SIGCONT",
            Fault::Sessions => "pg_terminate_backend of every session",
            Fault::Backend => "kill -9 of one backend, after which the server recovers",
            Fault::Restart => "pg_ctl restart -m immediate",
            Fault::Full => "no room on the server's disk; later there is, and it is started if it has ended",
            Fault::Leader => "kill -9 of the node that leads; later it is started",
            Fault::Node => "kill -9 of a node that does not lead; later it is started",
            Fault::Pause => "SIGSTOP of the node that leads; later SIGCONT",
            Fault::All => {
                "kill -9 of all nodes and of all servers with all their processes; then all are started"
            }
        }
    }

    /// Whether it is done to nodes, and not to a replica alone.
    #[must_use]
    pub fn is_of_nodes(self) -> bool {
        matches!(self, Fault::Leader | Fault::Node | Fault::Pause | Fault::All)
    }

    /// Whether the other nodes have to go on without the one that it is done to.
    #[must_use]
    pub fn needs_a_majority(self) -> bool {
        self.is_of_nodes() && self != Fault::All
    }

    /// How long it lasts unless told otherwise: from the end of the injection to the beginning of the healing. `None` is over at once,
    /// and needs no healing.
    pub fn lasts(self) -> Option<Duration> {
        match self {
            Fault::Kill | Fault::Leader | Fault::Node => Some(Duration::from_secs(3)),
            Fault::Stop => Some(Duration::from_secs(30)),
            Fault::Sessions | Fault::Backend | Fault::Restart => None,
            Fault::Full | Fault::Pause => Some(Duration::from_secs(10)),
            Fault::All => Some(Duration::ZERO),
        }
    }

    /// Does it to a replica, and returns when it is done.
    ///
    /// # Errors
    /// When the server does not run, or cannot be reached.
    pub(super) async fn inject(self, victim: &Victim, random: &mut Random) -> Result<()> {
        match self {
            Fault::Kill => victim.server(Server::kill_all).await,
            Fault::Stop => victim.server(Server::pause).await,
            Fault::Restart => victim.server(|server| server.restart(Stop::Immediate)).await,
            Fault::Sessions => victim.pids("count(pg_terminate_backend(pid))").await.map(drop),
            Fault::Backend => {
                let pids = victim.pids("pid").await?;
                let drawn = uniform(random, 0, pids.len().saturating_sub(1) as i64) as usize;
                let pid = pids.get(drawn).copied().and_then(Pid::from_raw);
                let pid = pid.ok_or_else(|| Error::Option(format!("{} has no session", victim.name())))?;
                kill_process(pid, Signal::KILL)
                    .map_err(|error| Error::Option(format!("kill backend {}: {error}", pid.as_raw_nonzero())))
            }
            Fault::Full => victim.disk()?.fill(),
            Fault::Leader | Fault::Node | Fault::Pause | Fault::All => Err(self.misplaced()),
        }
    }

    /// Takes the fault away, and returns when the server accepts connections; who stands before it has to find that out.
    ///
    /// # Errors
    /// When the server does not start.
    pub(super) async fn heal(self, victim: &Victim) -> Result<()> {
        match self {
            Fault::Kill => victim.server(Server::start).await,
            Fault::Stop => victim.server(Server::resume).await,
            Fault::Sessions | Fault::Backend | Fault::Restart => Ok(()),
            Fault::Full => {
                victim.disk()?.empty()?;
                // It may have ended for want of room; one that runs is left alone.
                victim.server(Server::start).await
            }
            Fault::Leader | Fault::Node | Fault::Pause | Fault::All => Err(self.misplaced()),
        }
    }

    fn misplaced(self) -> Error {
        Error::Option(format!("{self} is no fault of a replica"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(id: &str) -> std::result::Result<Self, String> {
        let ids: Vec<&str> = Fault::ALL.iter().map(|fault| fault.id()).collect();
        let found = Fault::ALL.into_iter().find(|fault| fault.id() == id);
        found.ok_or_else(|| format!("there is no fault {id:?}: choose among {}", ids.join(", ")))
    }
}

/// The replica to which it is done.
pub(super) struct Victim {
    pub(super) cluster: Arc<Mutex<Cluster>>,
    pub(super) index: usize,
    /// By itself, past whoever stands before it.
    pub(super) dsn: String,
    /// Its own file system, if it has one.
    pub(super) disk: Option<Arc<Disk>>,
}

impl Victim {
    pub(super) fn name(&self) -> String {
        Cluster::name(self.index)
    }

    async fn server(
        &self,
        act: impl FnOnce(&mut Server) -> onecopy_cluster::Result<()> + Send + 'static,
    ) -> Result<()> {
        let (cluster, index) = (self.cluster.clone(), self.index);
        let acting = blocking(move || {
            let mut cluster = cluster.lock().unwrap_or_else(PoisonError::into_inner);
            act(cluster.server_mut(index))
        });
        acting.await
    }

    fn disk(&self) -> Result<&Disk> {
        self.disk.as_deref().ok_or_else(|| Error::Option(format!("{} has no disk of its own", self.name())))
    }

    /// Something about every session, as integers.
    async fn pids(&self, what: &str) -> Result<Vec<i32>> {
        let client = Target::parse(&self.dsn)?.connect().await?;
        let sql = format!("SELECT {what} {SESSIONS}");
        let said = client.simple_query(&sql).await.map_err(Error::database(format!("run {sql:?}")))?;
        let cell = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
            _ => None,
        };
        Ok(said.iter().filter_map(cell).collect())
    }
}
