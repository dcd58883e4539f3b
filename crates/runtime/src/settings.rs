//! What a server is started with. The configuration file of the binary converts to this.

use std::path::PathBuf;

/// Everything that `serve` needs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses to listen on, as `host:port`; a path is a folder for a Unix socket of the port's name.
    pub listen: Vec<String>,
    /// TLS towards clients; without it they connect in the clear.
    pub tls: Option<TlsSettings>,
    /// Who may connect, and what they must prove.
    pub auth: ClientAuth,
    /// The database that is served, as the replicas call it.
    pub database: String,
    /// The servers behind, as they are configured; what was added and removed while onecopy ran is in the log's folder.
    pub replicas: Vec<ReplicaSettings>,
    /// TLS towards replicas that are added, unless something else is said.
    pub replica_tls: ReplicaTls,
    /// PEM file of certificates that are trusted where theirs is to be checked.
    pub replica_tls_root: Option<PathBuf>,
    /// The role that fences, applies and reads definitions on the replicas; a superuser.
    pub agent_user: String,
    /// Its password.
    pub agent_password: Option<String>,
    /// Its name.
    pub protocol: String,
    /// What is chosen of it, where it is `wide_area`.
    pub wide_area: onecopy_core::protocol::wide_area::Choice,
    /// Milliseconds that what a query of a session reads may be old there, unless the session says otherwise; `None` for as old as it is.
    pub staleness_max_ms: Option<u64>,
    /// Tables of which each peer has the rows of its clients, where the protocol is `partitioned`.
    pub divided: Vec<String>,
    /// Tables whose rows are where a column says.
    pub parts: Vec<PartSettings>,
    /// Whether a peer that starts removes rows of these that belong to others.
    pub deals: bool,
    /// Into how many granules peers cut each table that has a primary key; 1 for none.
    pub granules: u16,
    /// Whether peers leave out updates that the next one hides.
    pub coalesces: bool,
    /// The commit log.
    pub log: LogSettings,
    /// Every limit.
    pub limits: Limits,
    /// Threads that carry sessions.
    pub workers: usize,
    /// Commits of earlier runs that are rolled back if every replica refuses them.
    pub annul: Vec<u64>,
    /// The processes that serve the database together; `None` if this one is alone.
    pub nodes: Option<NodesSettings>,
}

impl Settings {
    /// Event loops on which connections to replicas are: those of the workers, and with several nodes that of the term beside.
    pub(crate) fn event_loops(&self) -> usize {
        self.workers.max(1) + usize::from(self.nodes.is_some())
    }
}

/// A table whose rows are dealt to peers by an integer in a column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartSettings {
    /// As schema.table.
    pub table: String,
    /// An integer in each row.
    pub column: String,
    /// Where the ranges of peers end; by a hash if there are none.
    pub bounds: Vec<i64>,
}

/// The nodes that share the log, this one included.
#[derive(Clone, PartialEq, Eq)]
pub struct NodesSettings {
    /// Which of them this process is.
    pub this: u64,
    /// What they prove to each other that they know.
    pub secret: String,
    /// All of them.
    pub nodes: Vec<NodeSettings>,
    /// Milliseconds without a word of the leader after which a node asks to be elected; it draws up to twice as many.
    pub election_timeout_ms: u64,
}

impl std::fmt::Debug for NodesSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NodesSettings { this, secret: _, nodes, election_timeout_ms } = self;
        let mut shown = f.debug_struct("NodesSettings");
        shown.field("this", this).field("nodes", nodes).field("election_timeout_ms", election_timeout_ms);
        shown.finish_non_exhaustive()
    }
}

impl NodesSettings {
    /// Where a node is, if it is one of them.
    #[must_use]
    pub fn node(&self, id: u64) -> Option<&NodeSettings> {
        self.nodes.iter().find(|node| node.id == id)
    }
}

/// One of the nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeSettings {
    /// Its number: not 0, and never given to another one, also not to one that lost its log.
    pub id: u64,
    /// Host name or address at which the others reach it.
    pub host: String,
    /// Its port for them.
    pub port: u16,
    /// Whether it counts for majorities.
    pub voting: bool,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
    /// Whether clients must use TLS.
    pub required: bool,
}

/// What clients must prove.
#[derive(Clone, Debug)]
pub enum ClientAuth {
    /// Nothing: everybody is who they say. The configuration allows that on loopback only.
    Trust,
    /// By SCRAM-SHA-256 that they know the password of one of these users; without users nobody gets in.
    Scram(Vec<UserSettings>),
}

/// Somebody who may connect.
#[derive(Clone, Debug)]
pub struct UserSettings {
    /// The role, on onecopy and on the replicas.
    pub name: String,
    /// What the client must prove: a password, or a `SCRAM-SHA-256$...` secret.
    pub password: String,
    /// What onecopy proves to the replicas; `password` if absent and not a SCRAM secret.
    pub replica_password: Option<String>,
}

/// One server behind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaSettings {
    /// Its name in status and messages.
    pub name: String,
    /// Host name, address, or the folder of its Unix socket.
    pub host: String,
    /// Port.
    pub port: u16,
    /// TLS towards it.
    pub tls: ReplicaTls,
}

impl ReplicaSettings {
    /// Host and port, for people.
    pub fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// TLS towards a replica, as libpq's `sslmode` of the same names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ReplicaTls {
    /// In the clear.
    #[default]
    Disable,
    /// Encrypted, whoever the server is.
    Require,
    /// Encrypted, and the certificate must be signed by one of this PEM file and name the host.
    VerifyFull {
        /// PEM file of trusted certificates.
        root: PathBuf,
    },
}

impl ReplicaTls {
    /// libpq's word for it.
    pub fn word(&self) -> &'static str {
        match self {
            ReplicaTls::Disable => "disable",
            ReplicaTls::Require => "require",
            ReplicaTls::VerifyFull { .. } => "verify-full",
        }
    }

    /// What a word of libpq's means, if it is one; certificates are checked by those of the file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_word(word: &str, root: Option<&PathBuf>) -> Result<ReplicaTls, String> {
        match (word, root) {
            ("disable", _) => Ok(ReplicaTls::Disable),
            ("require", _) => Ok(ReplicaTls::Require),
            ("verify-full", Some(root)) => Ok(ReplicaTls::VerifyFull { root: root.clone() }),
            ("verify-full", None) => {
                Err("checking a replica's certificate needs `authority` in [replica_tls]".to_owned())
            }
            _ => Err(format!("\"{word}\" is none of disable, require and verify-full")),
        }
    }
}

/// The commit log.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Its folder.
    pub dir: PathBuf,
    /// Whether a decision must be on disk before any replica commits it; otherwise in memory.
    pub durable: bool,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes that are kept for replicas that are away; one that needs more must be copied anew.
    pub kept_bytes_max: u64,
}

/// Every limit, in one place.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Client connections; one more is refused with 53300.
    pub connections_max: usize,
    /// Backend connections for client statements on one replica; statements queue beyond it.
    pub lanes_per_replica_max: usize,
    /// Bytes of one message of a client, and so of a statement.
    pub message_bytes_max: usize,
    /// Bytes of a transaction's kept writes; more is refused with 54000.
    pub transaction_bytes_max: usize,
    /// Bytes of a result that must be held until a commit is decided; more is refused with 54000.
    pub held_result_bytes_max: usize,
    /// Bytes of decided writes that are kept in memory for replicas that have not applied them.
    pub unapplied_bytes_max: usize,
    /// Advisory locks that all sessions together may hold; more are refused with 53200.
    pub advisory_locks_max: usize,
    /// Bytes of notifications that wait for one listening session; beyond it, the session ends.
    pub notifications_bytes_max: usize,
    /// Milliseconds that an open transaction may wait for its client; 0 for ever.
    pub idle_in_transaction_timeout_ms: u64,
    /// Milliseconds that a statement may wait for items, freshness or a lane; 0 for ever.
    pub wait_timeout_ms: u64,
    /// Milliseconds from connecting to being authenticated.
    pub startup_timeout_ms: u64,
    /// Milliseconds to connect to a replica.
    pub connect_timeout_ms: u64,
    /// Milliseconds for which a replica may leave a question unanswered before it leaves service; 0 for ever.
    pub silence_timeout_ms: u64,
}
