//! Every setting of onecopy, with its default and documentation: the one place.
//!
//! Reading, `onecopy config --example`, the reference in docs/configuration.md and the checks of `onecopy config
//! --check` all derive from the definitions here.

use crate::settings::{
    Reader, Secret, Section, SettingsError, Step, choice, read, section, section_with_defaults,
};
use onecopy_log::consensus::NODES_MAX;
use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

section! {
    /// The configuration of `onecopy serve`. Lines that begin with # show defaults.
    pub struct Config {
        /// The protocol that orders transactions and places reads.
        protocol: Protocol = Protocol::Onecopy;
        /// The file with users and passwords, as seen from the folder of this file. It must not be readable for
        /// everybody. `onecopy config --example-secrets` prints one.
        secrets: PathBuf = PathBuf::from("onecopy.secrets.toml");
        /// Threads that serve connections; 0 takes one for each processor, or for each two if a replica runs on this
        /// machine.
        workers: u32 = 0, in 0..=1024;
        /// Where clients connect.
        listen: Listen = Listen::default();
        /// How clients prove who they are.
        auth: Auth = Auth::default();
        /// Encryption between clients and onecopy.
        client_tls: ClientTls = ClientTls::default();
        /// Encryption between onecopy and the replicas.
        replica_tls: ReplicaTls = ReplicaTls::default();
        /// The log of commits: what is in it is committed, on whichever replica it is missing still.
        log: Log = Log::default();
        /// The onecopy processes that serve together, so that any of them may be lost. See docs/nodes.md.
        cluster: Cluster = Cluster::default();
        /// What is chosen of protocol = "wide_area".
        wide_area: WideArea = WideArea::default();
        /// What is chosen of the protocols of peers.
        peers: Peers = Peers::default();
        /// Connections to the replicas.
        pool: Pool = Pool::default();
        /// How much onecopy takes on before it makes clients wait or refuses.
        limits: Limits = Limits::default();
        /// What onecopy says on standard error.
        messages: Messages = Messages::default();
        /// The database that onecopy serves.
        databases: Vec<Database>;
    }
}

choice! {
    /// The protocol that orders transactions and places reads.
    pub enum Protocol {
        /// Conflicts counted on rows, one order of commits, reads on any replica that is fresh enough:
        /// strict serializability. See docs/protocols/onecopy.md.
        Onecopy = "onecopy",
        /// Conflict-aware scheduling: every replica executes every write, under table locks taken in one order; a
        /// write is answered by the first replica, a read runs where nothing stands in its way. See
        /// docs/protocols/real_servers.md for this and the following.
        ConflictAware = "conflict_aware",
        /// The same table locks, but a write is answered when all replicas have executed it.
        Eager = "eager",
        /// The same, with one replica for all of a transaction: the least loaded at its start.
        FixedLoad = "fixed_load",
        /// The same, with one replica for all of a transaction: the first to grant its locks.
        FixedConflict = "fixed_conflict",
        /// The same, with each read at the least loaded replica, conflicts ignored.
        VariableLoad = "variable_load",
        /// Distributed versioning: versions of tables in the place of locks, each waited for when it is needed and let
        /// go after its last use.
        Versioning = "versioning",
        /// Distributed versioning that lets tables go at the end of a transaction only.
        VersioningNoEarlyRelease = "versioning_no_early_release",
        /// Distributed versioning that waits for all tables of a transaction at its start.
        VersioningLateAcquire = "versioning_late_acquire",
        /// Distributed versioning in which a single read may be as old as its client says.
        Special = "special",
        /// Each statement is a transaction by itself, executed as it arrives. No promise.
        Level0 = "level0",
        /// The same, with writes of a table in one order at all replicas.
        Level1 = "level1",
        /// The same, with reads that are at most 30 seconds old and see what their session has written.
        Level2 = "level2",
        /// Conflict chains: a transaction that comes whole is put behind those that may write the same rows, before it runs,
        /// so nothing is given up for a conflict. Snapshot isolation, not serializability: reads may be old, and what one transaction
        /// reads another may write. See docs/protocols/chains.md.
        Chains = "chains",
        /// Conflict chains in which what one update reads and another writes conflicts, too: 1-copy serializability. Reads may be old.
        ChainsSerializable = "chains_serializable",
        /// Conflict chains in which all updates conflict: one after the other, reads anywhere.
        CentralisedWrites = "centralised_writes",
        /// One process at each of several sites, before a database of its own: transactions that come whole are executed in one
        /// order everywhere, without two-phase commit. 1-copy serializability; a site may be behind. What is chosen of the thirty
        /// combinations stands under wide_area, the sites under cluster. See docs/protocols/wide_area.md.
        WideArea = "wide_area",
        /// The same sites, but an update executes at its client's site before it is put in the order, and commits unless what it has read or written was changed
        /// by one before it: so transactions may come statement by statement. Clients may hear that they have to run one again (40001).
        /// 1-copy serializability; a site may be behind. See docs/protocols/wide_area.md.
        Certified = "certified",
        /// One process before each of several databases: whoever writes makes the others' copies of its tables invalid first, and who reads
        /// asks nobody. Strict serializability of transactions that come whole. If a peer is started again all end. See
        /// docs/protocols/invalidation.md for this and the following.
        Invalidation = "invalidation",
        /// The same, but of the tables in peers.divided and peers.parts each peer has rows of its own.
        Partitioned = "partitioned",
        /// The same peers, of whom each asks all others to read and to write.
        LockDistributed = "lock_distributed",
        /// The same, who ask the first of them.
        LockCentral = "lock_central",
        /// The same, who ask nobody. No promise: they differ in the end.
        Weak = "weak",
    }
}

section_with_defaults! {
    /// What is chosen of the protocols of peers.
    pub struct Peers {
        /// With protocol = "partitioned", the tables of which each peer has the rows that its own clients use, as schema.table. They must be the
        /// same at all peers, and so must peers.parts.
        divided: Vec<String> = Vec::new();
        /// With protocol = "partitioned", the tables whose rows are at the peer that a column says, whoever uses them.
        parts: Vec<Part> = Vec::new();
        /// When this peer starts, it removes rows of the tables in peers.parts that belong to others: for databases that were copied whole, at the
        /// first start of all. Otherwise it does not serve if there are any.
        deals: bool = false;
        /// Updates of this peer may be left out at others that have not applied them when the next one comes, which gives the same columns of the
        /// same row, found by a primary key of integers, new values, whatever they were. "weak" leaves out none.
        coalesces: bool = false;
        /// Peers take and write each table that has a primary key in so many parts, 1 to 100: rows with another hash of the key's first
        /// column may be written meanwhile. What names no value of it takes all parts: it waits for a moment at which none is being written, with
        /// "invalidation" perhaps for long, and more parts cost longer messages. With 1 tables are taken as a whole, as in the paper. It must be
        /// the same at all peers; to "weak" it makes no difference.
        granules: u16 = 1;
    }
}

section! {
    /// A table whose rows are dealt to peers by an integer in a column, which each of its unique keys contains.
    pub struct Part {
        /// The table, as schema.table.
        table: String, such as "\"public.carts\"";
        /// The column.
        column: String, such as "\"id\"";
        /// The first peer has the values less than the first of these, which rise, the next one those less than the second, and the last one all
        /// else: one fewer than there are peers. Without any, rows are dealt by a hash.
        bounds: Vec<i64> = Vec::new();
    }
}

choice! {
    /// How queries are treated at a site.
    pub enum SiteQueries {
        /// They read what is committed at their site, which is a prefix of the order, at once.
        Snapshot = "snapshot",
        /// They wait behind whatever conflicts with them, and are waited for.
        Locked = "locked",
    }
}

choice! {
    /// Where updates execute.
    pub enum SiteExecution {
        /// At every site.
        Symmetric = "symmetric",
        /// At the site that is responsible for the first table that they write; the others apply what was written.
        PrimaryCopy = "primary_copy",
        /// At the site of their client; the others apply what was written.
        LocalCopy = "local_copy",
    }
}

choice! {
    /// What must be known of an update's delivery before it takes its place, and before it commits.
    pub enum SiteDelivery {
        /// Both when it is on a majority of disks: what was acknowledged is not lost.
        Safe = "safe",
        /// Both when its place is known. What was acknowledged can be lost if the site that gives places fails.
        Agreed = "agreed",
        /// It executes as soon as it is here, and again if the order turns out to be another; it commits when its place is known.
        OptAgreed = "opt_agreed",
        /// It executes as soon as it is here, and again if the order turns out to be another; it commits when it is on a majority of disks.
        OptSafe = "opt_safe",
        /// It executes when its place is known, and commits when it is on a majority of disks.
        OrderedOptSafe = "ordered_opt_safe",
    }
}

choice! {
    /// What conflicts are counted on at a site.
    pub enum SiteItems {
        /// Rows, as far as statements show which.
        Rows = "rows",
        /// Whole tables, as in the paper.
        Tables = "tables",
    }
}

section_with_defaults! {
    /// What is chosen of protocol = "wide_area". It must be the same at all sites, but for the last, which is for "certified", too.
    pub struct WideArea {
        /// How queries are treated.
        queries: SiteQueries = SiteQueries::Snapshot;
        /// Where updates execute.
        execution: SiteExecution = SiteExecution::Symmetric;
        /// When an update takes its place, and when it commits.
        delivery: SiteDelivery = SiteDelivery::Safe;
        /// What conflicts are counted on.
        items: SiteItems = SiteItems::Rows;
        /// How many milliseconds old what a query reads may be: it sees whatever the site that leads knew so long before it came
        /// to be on a majority of disks, or waits for it. With 0 a client of any site sees what those of all sites were told
        /// (but for "agreed" and "opt_agreed", which tell it before that). Without it queries ask nobody. A session may choose
        /// by SET onecopy.staleness_max = '5s' (-1: as old as it is).
        staleness_max_ms: Option<u64> = None, such as "5000";
    }
}

section_with_defaults! {
    /// Where clients connect.
    pub struct Listen {
        /// The addresses to listen on; "0.0.0.0" and "::" stand for all of them.
        addresses: Vec<IpAddr> = vec![IpAddr::from([127, 0, 0, 1])];
        /// The TCP port; it also names the Unix socket.
        port: u16 = 6432, in 1..=65_535;
        /// A folder in which to listen on a Unix socket too, as PostgreSQL's own: .s.PGSQL.6432.
        socket_dir: Option<PathBuf> = None, such as "\"/run/onecopy\"";
    }
}

choice! {
    /// How clients prove who they are.
    pub enum AuthMethod {
        /// By their password, which is never sent (SCRAM-SHA-256).
        Scram = "scram-sha-256",
        /// Not at all: any name is taken as given. Only for addresses of this machine.
        Trust = "trust",
    }
}

section_with_defaults! {
    /// How clients prove who they are.
    pub struct Auth {
        /// The method for every user.
        method: AuthMethod = AuthMethod::Scram;
    }
}

choice! {
    /// Whether clients may or must encrypt.
    pub enum ClientTlsMode {
        /// Encryption is not offered.
        Disable = "disable",
        /// Clients choose.
        Allow = "allow",
        /// Clients that do not encrypt are refused.
        Require = "require",
    }
}

section_with_defaults! {
    /// Encryption between clients and onecopy.
    pub struct ClientTls {
        /// Whether clients may or must encrypt.
        mode: ClientTlsMode = ClientTlsMode::Disable;
        /// The file with the certificate chain, PEM, the server's own certificate first.
        certificate: Option<PathBuf> = None, such as "\"server.crt\"";
        /// The file with the private key, PEM.
        key: Option<PathBuf> = None, such as "\"server.key\"";
    }
}

choice! {
    /// Whether connections to a replica are encrypted, and what is checked; the words of libpq's sslmode.
    pub enum ReplicaTlsMode {
        /// Never encrypted.
        Disable = "disable",
        /// Encrypted, but the replica's certificate is not checked.
        Require = "require",
        /// Encrypted, and the certificate must come from one of the authorities and name the replica's host.
        VerifyFull = "verify-full",
    }
}

section_with_defaults! {
    /// Encryption between onecopy and the replicas.
    pub struct ReplicaTls {
        /// Whether connections are encrypted, and what is checked.
        mode: ReplicaTlsMode = ReplicaTlsMode::Disable;
        /// The file with the certificates of the authorities to trust, PEM.
        authority: Option<PathBuf> = None, such as "\"authorities.crt\"";
    }
}

choice! {
    /// When a commit counts as durable.
    pub enum Durability {
        /// When the log has been written to disk (in groups).
        Disk = "disk",
        /// At once. What was committed in the last moments can be lost if this machine fails.
        Memory = "memory",
    }
}

section_with_defaults! {
    /// The log of commits.
    pub struct Log {
        /// The folder of the log. Keep it on a disk that survives this machine's restart.
        dir: PathBuf = PathBuf::from("/var/lib/onecopy/log");
        /// When a commit counts as durable, and the client hears of it.
        durability: Durability = Durability::Disk;
        /// The size in bytes at which a new file of the log is begun.
        segment_bytes: u64 = 64 << 20, in 1 << 20..=4 << 30;
        /// The size in bytes up to which the log is kept for replicas that are out of service: one that needs more when
        /// it is back must be copied anew from another. What a replica in service may need is always kept, and
        /// so is the newest file.
        kept_bytes_max: u64 = 16 << 30, in 1 << 20..=1 << 50;
    }
}

section_with_defaults! {
    /// The onecopy processes that serve together.
    pub struct Cluster {
        /// The number of this process among the nodes, unless it is alone.
        node: Option<u32> = None, such as "1";
        /// Milliseconds without a word from the leading node after which another one asks to lead; each draws from this to
        /// twice as much.
        election_timeout_ms: u64 = 500, in 100..=60_000;
        /// All nodes, this one included: three, to survive the loss of one. The same in the configuration of each.
        nodes: Vec<Node> = Vec::new();
    }
}

section! {
    /// One of the onecopy processes that serve together.
    pub struct Node {
        /// Its number, from 1. It is never given to another process, nor to one whose log was lost.
        id: u32, such as "1";
        /// The host name or address at which the other nodes reach it, and on which it listens for them.
        host: String, such as "\"10.0.0.11\"";
        /// The port on which it listens for the other nodes.
        port: u16 = 6433, in 1..=65_535;
        /// Whether it counts for majorities, and may lead. One that does not has the log and takes clients, but no majority needs
        /// it, and nothing is safe because it is there: a distant site, say. The same in the configuration of each: nodes that
        /// do not agree about this when they begin their logs do not find together.
        voting: bool = true;
    }
}

section_with_defaults! {
    /// Connections to the replicas.
    pub struct Pool {
        /// Connections to one replica that open transactions and reads may hold at once. The replica's own
        /// max_connections must allow for them and for a few more, over which the log is applied and the
        /// replica's health is looked after.
        lanes_per_replica_max: u32 = 64, in 1..=10_000;
        /// Milliseconds that opening a connection may take.
        connect_timeout_ms: u64 = 5_000, in 10..=600_000;
        /// Milliseconds for which a connected replica may leave a question unanswered, which is asked ten times in
        /// this time; then it leaves service until it answers again. It finds servers that hang, are stopped, or are
        /// cut off by the network. TCP's keepalive is set by it, too. 0 waits for ever.
        silence_timeout_ms: u64 = 2_000, in 0..=86_400_000;
    }
}

section_with_defaults! {
    /// How much onecopy takes on before it makes clients wait or refuses.
    pub struct Limits {
        /// Client connections; further ones are refused with SQLSTATE 53300. Each is a file of the process, each
        /// connection to a replica two: its limit of open files is raised at the start as far as the system lets it,
        /// and where that is not far enough, fewer are served and a warning says how many.
        connections_max: u32 = 2_000, in 1..=1_000_000;
        /// Milliseconds from a connection's arrival until its login is complete; then it is closed.
        startup_timeout_ms: u64 = 15_000, in 100..=600_000;
        /// The size of one statement with its parameters in bytes; larger ones are refused with 54000.
        statement_bytes_max: u64 = 64 << 20, in 1 << 10..=1 << 30;
        /// The writes of one open transaction in bytes; beyond, it is rolled back with 54000.
        transaction_bytes_max: u64 = 512 << 20, in 1 << 16..=64 << 30;
        /// The size in bytes of a result that must be held back until its transaction is decided; beyond, the
        /// statement fails with 54000.
        held_result_bytes_max: u64 = 64 << 20, in 0..=64 << 30;
        /// Writes that some replica in service has not applied, as far as they are kept in memory, in bytes; what is beyond is
        /// read from the commit log. A replica that is kept by one commit for seconds while more than that is decided,
        /// since another session on its server holds a lock, leaves service, and comes back when it has applied it.
        unapplied_bytes_max: u64 = 256 << 20, in 1 << 16..=64 << 30;
        /// Advisory locks that all sessions together may hold; further ones are refused with 53200.
        advisory_locks_max: u32 = 100_000, in 1..=100_000_000;
        /// Notifications that wait for one listening session, which takes none while it has a transaction open, in
        /// bytes; beyond, its connection is closed with 53400.
        notifications_bytes_max: u64 = 64 << 20, in 1 << 10..=64 << 30;
        /// Milliseconds that a statement may wait for others' transactions, for advisory locks, for freshness or for a
        /// connection; then it fails with 55P03. 0 waits for ever.
        query_wait_timeout_ms: u64 = 60_000, in 0..=86_400_000;
        /// Milliseconds that a transaction may stay open without a statement. It keeps others waiting on all
        /// replicas, so it is then rolled back and its connection closed with 25P03. 0 waits for ever.
        idle_in_transaction_timeout_ms: u64 = 60_000, in 0..=86_400_000;
    }
}

choice! {
    /// How much is said.
    pub enum Level {
        /// Only what needs somebody to act.
        Error = "error",
        /// Also what may need it soon.
        Warn = "warn",
        /// Also starts, stops and changes of state.
        Info = "info",
        /// Also what is ignored or tried again, to look for faults.
        Debug = "debug",
    }
}

choice! {
    /// How messages are written.
    pub enum MessageFormat {
        /// A line for people.
        Text = "text",
        /// A JSON object a line, for programs.
        Json = "json",
    }
}

section_with_defaults! {
    /// What onecopy says on standard error.
    pub struct Messages {
        /// How much is said.
        level: Level = Level::Info;
        /// How it is written.
        format: MessageFormat = MessageFormat::Text;
    }
}

section! {
    /// A database that onecopy serves.
    pub struct Database {
        /// The name by which clients connect.
        name: String, such as "\"app\"";
        /// A server that holds a full copy. Repeat this part for each. What `onecopy replica add` and `remove` have changed since is
    /// in replicas.toml, in the folder of the log, or in the log itself where several nodes share it.
        replicas: Vec<Replica>;
    }
}

section! {
    /// A server that holds a full copy.
    pub struct Replica {
        /// Its name in messages and in `onecopy status`.
        name: String, such as "\"r1\"";
        /// Its host name or address, or the folder of its Unix socket.
        host: String, such as "\"10.0.0.1\"";
        /// Its port.
        port: u16 = 5432, in 1..=65_535;
        /// Encryption for this replica alone; the words of `mode` under `replica_tls`.
        tls: Option<ReplicaTlsMode> = None, such as "\"require\"";
    }
}

section! {
    /// The secrets of `onecopy serve`. Keep this file readable for its owner only: chmod 600.
    pub struct Secrets {
        /// How onecopy itself logs in at the replicas: as a superuser. Named under `[[users]]` too, it may use the
        /// console, as `onecopy status`, `verify` and `explain` do.
        replica_login: Login;
        /// Somebody who may connect. Repeat this part for each. The role must exist on the replicas. With
        /// `auth.method = "scram-sha-256"` at least one is needed.
        users: Vec<User> = Vec::new();
        /// What the nodes of a cluster prove to each other that they know: random characters, the same on all of them.
        cluster_secret: Option<Secret> = None, such as "\"at least 32 random characters, the same everywhere\"";
    }
}

section! {
    /// A name with a password.
    pub struct Login {
        /// The role's name on the replicas.
        user: String, such as "\"onecopy\"";
        /// Its password, if the replicas ask for one.
        password: Option<Secret> = None, such as "\"correct horse battery staple\"";
    }
}

section! {
    /// Somebody who may connect.
    pub struct User {
        /// The role's name.
        name: String, such as "\"app\"";
        /// The password in clear, or what PostgreSQL stores of it in pg_authid.rolpassword:
        /// "SCRAM-SHA-256$4096:...".
        password: Secret, such as "\"correct horse battery staple\"";
        /// The password in clear with which onecopy logs in at the replicas for this user, if they ask for one and
        /// it is not the one above.
        replica_password: Option<Secret> = None, such as "\"another password\"";
    }
}

/// Shorter secrets of a cluster can be guessed.
const CLUSTER_SECRET_LEN_MIN: usize = 32;

/// What a configuration is made of once both files are read.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The first file.
    pub config: Config,
    /// The second file.
    pub secrets: Secrets,
    /// What is allowed but unwise, for a warning.
    pub warnings: Vec<String>,
}

/// Reads a configuration with its secrets. Relative paths in it count from the configuration's folder.
///
/// # Errors
/// [`SettingsError`], which shows what is wrong where, or that the secrets lie open.
pub fn load(path: &Path) -> Result<Loaded, SettingsError> {
    let mut config = Config::parse(path, &read_file(path, EXAMPLE)?)?;
    config.resolve_paths(path.parent().unwrap_or(Path::new("")));
    let warnings = check_permissions(&config.secrets)?;
    let text = read_file(&config.secrets, EXAMPLE_SECRETS)?;
    let secrets = read(&config.secrets, &text, Secrets::check)?;
    if config.cluster.node.is_some() && secrets.cluster_secret.is_none() {
        return Err(SettingsError::NoClusterSecret { path: config.secrets });
    }
    if config.auth.method == AuthMethod::Scram && secrets.users.is_empty() {
        return Err(SettingsError::NoUsers { path: config.secrets });
    }
    Ok(Loaded { config, secrets, warnings })
}

impl Config {
    /// Reads the text of the first file; `path` is only for messages.
    ///
    /// # Errors
    /// [`SettingsError::Refused`].
    pub fn parse(path: &Path, text: &str) -> Result<Config, SettingsError> {
        read(path, text, Config::check)
    }

    /// A configuration with all defaults for the given databases.
    #[must_use]
    pub fn with_databases(databases: Vec<Database>) -> Config {
        Config {
            protocol: Protocol::Onecopy,
            secrets: PathBuf::from("onecopy.secrets.toml"),
            workers: 0,
            listen: Listen::default(),
            auth: Auth::default(),
            client_tls: ClientTls::default(),
            replica_tls: ReplicaTls::default(),
            log: Log::default(),
            cluster: Cluster::default(),
            wide_area: WideArea::default(),
            peers: Peers::default(),
            pool: Pool::default(),
            limits: Limits::default(),
            messages: Messages::default(),
            databases,
        }
    }

    /// Makes relative paths absolute, seen from a folder.
    fn resolve_paths(&mut self, folder: &Path) {
        let given = [
            &mut self.listen.socket_dir,
            &mut self.client_tls.certificate,
            &mut self.client_tls.key,
            &mut self.replica_tls.authority,
        ];
        let given = given.into_iter().filter_map(Option::as_mut);
        for path in [&mut self.secrets, &mut self.log.dir].into_iter().chain(given) {
            *path = folder.join(&*path);
        }
    }

    /// What no single value shows: names that occur twice, settings that need each other.
    fn check(&self, reader: &mut Reader) {
        self.check_listening(reader);
        self.check_tls(reader);
        self.check_cluster(reader);
        self.check_sites(reader);
        if self.databases.is_empty() {
            reader.report_at(
                &["databases".into()],
                "no database is given",
                Some("add a part [[databases]]".into()),
            );
        }
        if self.databases.len() > 1 {
            let help = "run one process for each, with a port and a log of its own";
            let path = ["databases".into(), Step::Item(1)];
            reader.report_at(&path, "one onecopy process serves one database", Some(help.into()));
        }
        let mut names = BTreeSet::new();
        for (index, database) in self.databases.iter().enumerate() {
            let path = ["databases".into(), Step::Item(index)];
            if !names.insert(&database.name) {
                reader.report_at(
                    &[&path[..], &["name".into()]].concat(),
                    format!("the database `{}` is given twice", database.name),
                    None,
                );
            }
            database.check(&path, reader);
        }
    }

    fn check_listening(&self, reader: &mut Reader) {
        if self.listen.addresses.is_empty() {
            let path = ["listen".into(), "addresses".into()];
            reader.report_at(&path, "there is no address to listen on", None);
        }
        let open = self.listen.addresses.iter().find(|address| !address.is_loopback());
        if let (AuthMethod::Trust, Some(open)) = (self.auth.method, open) {
            reader.report_at(
                &["auth".into(), "method".into()],
                format!("\"trust\" lets everybody in who reaches {open}"),
                Some("take \"scram-sha-256\", or listen on 127.0.0.1 only".into()),
            );
        }
    }

    /// A site has a process and a database of its own.
    fn check_sites(&self, reader: &mut Reader) {
        let is_of_sites = matches!(
            self.protocol,
            Protocol::WideArea
                | Protocol::Certified
                | Protocol::Invalidation
                | Protocol::Partitioned
                | Protocol::LockDistributed
                | Protocol::LockCentral
                | Protocol::Weak
        );
        if !is_of_sites {
            return;
        }
        if self.cluster.node.is_none() {
            let help = "set cluster.node and list all sites under [[cluster.nodes]]";
            reader.report_at(&["protocol".into()], "it is served by several sites", Some(help.into()));
        }
        let has_log = matches!(self.protocol, Protocol::WideArea | Protocol::Certified);
        let silent = self.cluster.nodes.iter().position(|node| !node.voting);
        if let Some(index) = silent.filter(|_| !has_log) {
            let path = ["cluster".into(), "nodes".into(), Step::Item(index), "voting".into()];
            let help = "leave it out: each of these peers is asked for itself";
            reader.report_at(&path, "this protocol knows no majorities", Some(help.into()));
        }
        if self.databases.iter().any(|database| database.replicas.len() > 1) {
            let help = "list the database of this site only; each other site lists its own";
            let path = ["databases".into(), Step::Item(0), "replicas".into()];
            reader.report_at(&path, "a site has one database", Some(help.into()));
        }
    }

    fn check_cluster(&self, reader: &mut Reader) {
        let cluster = &self.cluster;
        let at = |key: &str| ["cluster".into(), key.into()];
        let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
        for (index, node) in cluster.nodes.iter().enumerate() {
            let path = |key: &str| ["cluster".into(), "nodes".into(), Step::Item(index), key.into()];
            if node.id == 0 {
                reader.report_at(&path("id"), "the numbers of nodes begin with 1", None);
            }
            if !ids.insert(node.id) {
                reader.report_at(&path("id"), format!("node {} is given twice", node.id), None);
            }
            if !places.insert((&node.host, node.port)) {
                let message = format!("two nodes cannot both be at {}:{}", node.host, node.port);
                reader.report_at(&path("host"), message, None);
            }
        }
        if cluster.nodes.len() > NODES_MAX {
            let message = format!("no more than {NODES_MAX} nodes can serve together");
            reader.report_at(&at("nodes"), message, None);
        }
        if !cluster.nodes.is_empty() && !cluster.nodes.iter().any(|node| node.voting) {
            let help = "leave `voting` out for those by whom commits are to be safe, best three of them";
            reader.report_at(&at("nodes"), "no node counts for majorities", Some(help.into()));
        }
        match cluster.node {
            None if !cluster.nodes.is_empty() => {
                let help = "say by `node` in [cluster] which of them this process is";
                reader.report_at(
                    &at("nodes"),
                    "nodes are given, and this process is none of them",
                    Some(help.into()),
                );
            }
            None => {}
            Some(this) if !ids.contains(&this) => {
                let help = "add a part [[cluster.nodes]] for it, as for all others";
                let message = format!("node {this} is not among the nodes");
                reader.report_at(&at("node"), message, Some(help.into()));
            }
            Some(_) if self.log.durability == Durability::Memory => {
                let path = ["log".into(), "durability".into()];
                let help = "take \"disk\": what a node has acknowledged to the others it must not forget";
                reader.report_at(&path, "nodes that share a log keep it on disk", Some(help.into()));
            }
            Some(_) => {}
        }
    }

    /// Whether any replica's certificate is to be checked.
    fn verifies_replicas(&self) -> bool {
        let replicas = self.databases.iter().flat_map(|database| &database.replicas);
        let mut modes = replicas.filter_map(|replica| replica.tls).chain([self.replica_tls.mode]);
        modes.any(|mode| mode == ReplicaTlsMode::VerifyFull)
    }

    fn check_tls(&self, reader: &mut Reader) {
        let client = &self.client_tls;
        if client.mode != ClientTlsMode::Disable && (client.certificate.is_none() || client.key.is_none()) {
            reader.report_at(
                &["client_tls".into(), "mode".into()],
                "encryption for clients needs both `certificate` and `key` in [client_tls]",
                None,
            );
        }
        if self.verifies_replicas() && self.replica_tls.authority.is_none() {
            reader.report_at(
                &["replica_tls".into(), "mode".into()],
                "checking the replicas' certificates needs `authority` in [replica_tls]",
                None,
            );
        }
    }
}

impl Database {
    fn check(&self, path: &[Step], reader: &mut Reader) {
        if self.replicas.is_empty() {
            reader.report_at(path, format!("the database `{}` has no replica", self.name), None);
        }
        let mut names = BTreeSet::new();
        let mut places = BTreeSet::new();
        for (index, replica) in self.replicas.iter().enumerate() {
            let at = |key: &str| [path, &["replicas".into(), Step::Item(index), key.into()]].concat();
            if !names.insert(&replica.name) {
                reader.report_at(&at("name"), format!("the replica `{}` is given twice", replica.name), None);
            }
            if !places.insert((&replica.host, replica.port)) {
                let message = format!(
                    "the replica `{}` is the same server as another: {}:{}",
                    replica.name, replica.host, replica.port
                );
                reader.report_at(&at("host"), message, Some("every copy needs a server of its own".into()));
            }
        }
    }
}

impl Secrets {
    fn check(&self, reader: &mut Reader) {
        if let Some(secret) = &self.cluster_secret
            && secret.0.chars().count() < CLUSTER_SECRET_LEN_MIN
        {
            let message =
                format!("the secret of the cluster has fewer than {CLUSTER_SECRET_LEN_MIN} characters");
            let help =
                "whoever guesses it is let in as any user: take random ones, from `openssl rand -hex 32`";
            reader.report_at(&["cluster_secret".into()], message, Some(help.into()));
        }
        let mut names = BTreeSet::new();
        for (index, user) in self.users.iter().enumerate() {
            let at = |key: &str| ["users".into(), Step::Item(index), key.into()];
            if !names.insert(&user.name) {
                reader.report_at(&at("name"), format!("the user `{}` is given twice", user.name), None);
            }
            if user.password.0.is_empty() {
                reader.report_at(&at("password"), format!("the password of `{}` is empty", user.name), None);
            }
            if user.password.0.starts_with("md5") && user.password.0.len() == 35 {
                let help = "set the password anew with password_encryption = 'scram-sha-256', and take that";
                let message =
                    format!("the password of `{}` is an MD5 hash, which SCRAM cannot use", user.name);
                reader.report_at(&at("password"), message, Some(help.into()));
            }
        }
    }
}

/// Everything that the first file may hold.
#[must_use]
pub fn config_schema() -> &'static crate::settings::Schema {
    Config::SCHEMA
}

/// Everything that the second file may hold.
#[must_use]
pub fn secrets_schema() -> &'static crate::settings::Schema {
    Secrets::SCHEMA
}

/// The options of `onecopy config` that print an example of each file.
const EXAMPLE: &str = "--example";
const EXAMPLE_SECRETS: &str = "--example-secrets";

fn read_file(path: &Path, example: &'static str) -> Result<String, SettingsError> {
    let unreadable = |source| SettingsError::Unreadable { path: path.to_owned(), example, source };
    fs::read_to_string(path).map_err(unreadable)
}

/// Refuses a file of secrets that everybody may read or others may change; a group that may read it is common
/// practice (root owns it, the service's group reads it) and only worth a warning.
fn check_permissions(path: &Path) -> Result<Vec<String>, SettingsError> {
    let unreadable =
        |source| SettingsError::Unreadable { path: path.to_owned(), example: EXAMPLE_SECRETS, source };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    let mode = metadata.mode();
    let exposed = |who, mode| Err(SettingsError::Exposed { path: path.to_owned(), who, mode });
    match mode {
        _ if mode & 0o004 != 0 => exposed("everybody may read it", "600"),
        _ if mode & 0o002 != 0 => exposed("everybody may change it", "600"),
        _ if mode & 0o020 != 0 => exposed("its group may change it", "640"),
        _ if mode & 0o040 != 0 => {
            Ok(vec![format!("{} holds secrets and its group may read it", path.display())])
        }
        _ => Ok(Vec::new()),
    }
}
