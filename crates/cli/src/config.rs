//! Every setting of onecopy, with its default and documentation: the one place.
//!
//! Reading, `onecopy config --example`, the reference in docs/configuration.md and the checks of `onecopy config
//! --check` all derive from the definitions here.

use crate::settings::{
    Reader, Secret, Section, SettingsError, Step, choice, read, section, section_with_defaults,
};
use std::collections::{BTreeMap, BTreeSet};
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
        /// Threads that serve connections; 0 takes one for each processor.
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
        /// Connections to the replicas.
        pool: Pool = Pool::default();
        /// How much onecopy takes on before it makes clients wait or refuses.
        limits: Limits = Limits::default();
        /// What onecopy says on standard error.
        messages: Messages = Messages::default();
        /// A database that onecopy serves. Repeat this part for more of them.
        databases: Vec<Database>;
    }
}

choice! {
    /// The protocol that orders transactions and places reads.
    pub enum Protocol {
        /// Conflicts counted on rows, one order of commits, reads on any replica that is fresh enough:
        /// strict serializability. See docs/protocols/onecopy.md.
        Onecopy = "onecopy",
        /// Conflict-aware scheduling: table locks taken in one order at every replica, reads where their
        /// locks are granted first, writes answered by the first replica.
        ConflictAware = "conflict_aware",
        /// The same table locks, but a write is answered when all replicas have executed it.
        Eager = "eager",
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
        /// Encrypted if the replica offers it. Protects from nobody who can change what is sent.
        Prefer = "prefer",
        /// Encrypted, but the replica's certificate is not checked.
        Require = "require",
        /// Encrypted, and the certificate must come from the authority below.
        VerifyCa = "verify-ca",
        /// As before, and the certificate must name the replica's host.
        VerifyFull = "verify-full",
    }
}

section_with_defaults! {
    /// Encryption between onecopy and the replicas.
    pub struct ReplicaTls {
        /// Whether connections are encrypted, and what is checked.
        mode: ReplicaTlsMode = ReplicaTlsMode::Prefer;
        /// The file with the certificates of the authorities to trust, PEM.
        authority: Option<PathBuf> = None, such as "\"authorities.crt\"";
    }
}

choice! {
    /// When a commit counts as durable.
    pub enum Durability {
        /// When the log has been written to disk (in groups).
        Disk = "disk",
        /// At once. What was committed in the last moments can be lost if this process or machine fails.
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
        /// How many bytes of the log are kept for a replica that is away. One that has missed more is copied anew
        /// when it returns.
        retained_bytes_max: u64 = 4 << 30, in 1 << 20..=1 << 50;
    }
}

section_with_defaults! {
    /// Connections to the replicas. Each replica's own max_connections must allow for the sum of the first two.
    pub struct Pool {
        /// Connections to one replica that open transactions and reads may hold at once.
        lanes_per_replica_max: u32 = 64, in 1..=10_000;
        /// Connections to one replica over which the log is applied.
        apply_lanes_per_replica: u32 = 4, in 1..=64;
        /// Milliseconds after which an idle connection is closed; 0 keeps it.
        lane_idle_timeout_ms: u64 = 600_000, in 0..=86_400_000;
        /// Milliseconds that opening a connection may take.
        connect_timeout_ms: u64 = 5_000, in 10..=600_000;
    }
}

section_with_defaults! {
    /// How much onecopy takes on before it makes clients wait or refuses.
    pub struct Limits {
        /// Client connections; further ones are refused with SQLSTATE 53300.
        connections_max: u32 = 2_000, in 1..=1_000_000;
        /// Statements that wait for a connection or for others' transactions; further ones are refused with 53300.
        queue_len_max: u32 = 10_000, in 1..=10_000_000;
        /// Milliseconds from a connection's arrival until its login is complete; then it is closed.
        startup_timeout_ms: u64 = 15_000, in 100..=600_000;
        /// The size of one statement with its parameters in bytes; larger ones are refused with 54000.
        statement_bytes_max: u64 = 64 << 20, in 1 << 10..=1 << 30;
        /// Prepared statements that one connection may keep; further ones are refused with 53200.
        prepared_statements_max: u32 = 10_000, in 1..=1_000_000;
        /// The writes of one open transaction in bytes; beyond, it is rolled back with 54000.
        transaction_bytes_max: u64 = 256 << 20, in 1 << 16..=64 << 30;
        /// A result up to this many bytes is held back until it is complete, so that it can be asked for elsewhere
        /// if the replica fails.
        held_result_bytes_max: u64 = 64 << 10, in 0..=1 << 30;
        /// What all results held back may take together in bytes; beyond, they are passed on as they come.
        held_results_bytes_max: u64 = 256 << 20, in 0..=64 << 30;
        /// Milliseconds that a statement may wait before it starts; then it fails with 57014. 0 waits for ever.
        query_wait_timeout_ms: u64 = 120_000, in 0..=86_400_000;
        /// Milliseconds after which a waiting client gets a notice that says what it waits for; 0 sends none.
        wait_notice_ms: u64 = 5_000, in 0..=86_400_000;
        /// Milliseconds that a transaction may stay open without a statement. It keeps others waiting on all
        /// replicas, so it is then rolled back and its connection closed with 25P03. 0 waits for ever.
        idle_in_transaction_timeout_ms: u64 = 300_000, in 0..=86_400_000;
        /// Milliseconds after which a connection that does nothing is closed with 57P05; 0 keeps it.
        idle_session_timeout_ms: u64 = 0, in 0..=2_592_000_000;
        /// Milliseconds that a stop waits for open transactions before it ends them.
        shutdown_timeout_ms: u64 = 30_000, in 0..=3_600_000;
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
        /// Also single statements. Slow, and shows their text.
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
        /// Milliseconds after which a statement is reported as slow; 0 reports none.
        slow_statement_ms: u64 = 0, in 0..=86_400_000;
    }
}

section! {
    /// A database that onecopy serves.
    pub struct Database {
        /// The name by which clients connect.
        name: String, such as "\"app\"";
        /// A server that holds a full copy. Repeat this part for each.
        replicas: Vec<Replica>;
    }
}

section! {
    /// A server that holds a full copy.
    pub struct Replica {
        /// Its name in messages, in `onecopy status` and in metrics.
        name: String, such as "\"r1\"";
        /// Its host name or address, or the folder of its Unix socket.
        host: String, such as "\"10.0.0.1\"";
        /// Its port.
        port: u16 = 5432, in 1..=65_535;
        /// The database's name on this server, if it is another than the one above.
        dbname: Option<String> = None, such as "\"app\"";
        /// Encryption for this replica alone; the words of `mode` under `replica_tls`.
        tls: Option<ReplicaTlsMode> = None, such as "\"require\"";
    }
}

section! {
    /// The secrets of `onecopy serve`. Keep this file readable for its owner only: chmod 600.
    pub struct Secrets {
        /// How onecopy itself logs in at the replicas: a superuser, or a role that may set every other role.
        replica_login: Login;
        /// A login for the replicas of one database, NAME, in place of the one above.
        replica_logins: BTreeMap<String, Login> = BTreeMap::new();
        /// Somebody who may connect. Repeat this part for each. The role must exist on the replicas.
        users: Vec<User> = Vec::new();
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
    let mut config = Config::parse(path, &read_file(path)?)?;
    config.resolve_paths(path.parent().unwrap_or(Path::new("")));
    let mut warnings = check_permissions(&config.secrets)?;
    let text = read_file(&config.secrets)?;
    let secrets = read(&config.secrets, &text, |secrets: &Secrets, reader| secrets.check(&config, reader))?;
    if config.auth.method == AuthMethod::Scram && secrets.users.is_empty() {
        warnings.push(format!("{} names no users, so nobody can connect", config.secrets.display()));
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
            pool: Pool::default(),
            limits: Limits::default(),
            messages: Messages::default(),
            databases,
        }
    }

    /// Makes relative paths absolute, seen from a folder.
    fn resolve_paths(&mut self, folder: &Path) {
        let optional =
            [&mut self.client_tls.certificate, &mut self.client_tls.key, &mut self.replica_tls.authority];
        let given = optional.into_iter().filter_map(Option::as_mut);
        for path in [&mut self.secrets, &mut self.log.dir].into_iter().chain(given) {
            *path = folder.join(&*path);
        }
    }

    /// What no single value shows: names that occur twice, settings that need each other.
    fn check(&self, reader: &mut Reader) {
        self.check_listening(reader);
        self.check_tls(reader);
        if self.databases.is_empty() {
            reader.report_at(
                &["databases".into()],
                "no database is given",
                Some("add a part [[databases]]".into()),
            );
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

    fn check_tls(&self, reader: &mut Reader) {
        let client = &self.client_tls;
        if client.mode != ClientTlsMode::Disable && (client.certificate.is_none() || client.key.is_none()) {
            reader.report_at(
                &["client_tls".into(), "mode".into()],
                "encryption for clients needs both `certificate` and `key` in [client_tls]",
                None,
            );
        }
        let verifies = matches!(self.replica_tls.mode, ReplicaTlsMode::VerifyCa | ReplicaTlsMode::VerifyFull);
        if verifies && self.replica_tls.authority.is_none() {
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
            let dbname = replica.dbname.as_ref().unwrap_or(&self.name);
            if !places.insert((&replica.host, replica.port, dbname)) {
                let message = format!(
                    "the replica `{}` is the same database as another: {}:{}/{dbname}",
                    replica.name, replica.host, replica.port
                );
                reader.report_at(&at("host"), message, Some("every copy needs a server of its own".into()));
            }
        }
    }
}

impl Secrets {
    fn check(&self, config: &Config, reader: &mut Reader) {
        for name in self.replica_logins.keys() {
            if !config.databases.iter().any(|database| database.name == *name) {
                let message = format!("the configuration has no database `{name}`");
                reader.report_at(&["replica_logins".into(), Step::Key(name.clone())], message, None);
            }
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

fn read_file(path: &Path) -> Result<String, SettingsError> {
    fs::read_to_string(path).map_err(|source| SettingsError::Unreadable { path: path.to_owned(), source })
}

/// Refuses a file of secrets that everybody may read or others may change; a group that may read it is common
/// practice (root owns it, the service's group reads it) and only worth a warning.
fn check_permissions(path: &Path) -> Result<Vec<String>, SettingsError> {
    let metadata =
        fs::metadata(path).map_err(|source| SettingsError::Unreadable { path: path.to_owned(), source })?;
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
