//! Opening a backend connection: TLS, startup, authentication.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onecopy_wire::backend::{Authentication, Backend, decode};
use onecopy_wire::frontend::build;
use onecopy_wire::sqlstate::SqlState;
use onecopy_wire::startup::{self, SslReply, VERSION_3_0};
use onecopy_wire::{password, scram};
use rand::Rng;
use socket2::{SockRef, Socket, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::lane::{Lane, LaneError, is_going_away};
use crate::postgres::progress::LEADER;
use crate::server::cancel::Backend as BackendProcess;
use crate::session::environment::{DEFAULT_READ_ONLY, LOCK_TIMEOUT, STATEMENT_TIMEOUT};
use crate::settings::{ReplicaSettings, ReplicaTls};
use crate::stream::Stream;

/// First key of the advisory locks by which the sessions of onecopy are known on a replica ("oc2p").
pub const SESSION_MARK: i32 = 0x6f63_3270;

/// Second key of an agent's own session; that of a lane is the replica's incarnation, which is greater.
pub const AGENT_MARK: u64 = 0;

/// Between attempts to connect to a Unix socket whose server is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// Who connects to a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    pub user: String,
    pub password: Option<String>,
    /// What the session has named, and so the lanes know that it has used.
    pub customs: CustomNames,
}

/// Names of customised settings (those with a dot). A server's session that has met one knows it until it ends, whatever is
/// reset, rolled back or discarded: its value is an empty text then, which was NULL before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CustomNames(Option<Arc<Vec<String>>>);

impl CustomNames {
    /// Adds a name; whether it is new.
    pub fn add(&mut self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let names = Arc::make_mut(self.0.get_or_insert_default());
        match names.binary_search(&name) {
            Ok(_) => false,
            Err(at) => {
                names.insert(at, name);
                true
            }
        }
    }

    /// Adds the names of others.
    pub fn add_all(&mut self, others: &CustomNames) {
        if self == others {
            return;
        }
        if self.0.is_none() {
            self.0.clone_from(&others.0);
            return;
        }
        for name in others.0.iter().flat_map(|names| names.iter()) {
            self.add(name);
        }
    }

    /// Whether all the others are among these.
    pub fn contain(&self, others: &CustomNames) -> bool {
        let mut others = others.0.iter().flat_map(|names| names.iter());
        others.all(|name| self.0.as_ref().is_some_and(|names| names.binary_search(name).is_ok()))
    }
}

/// Opens connections to one replica.
#[derive(Clone)]
pub struct Connector {
    pub address: Arc<ReplicaSettings>,
    pub database: Arc<str>,
    /// How long opening one may take.
    pub timeout: Duration,
    /// How long the server may leave a question unanswered; zero for ever.
    pub silence: Duration,
    /// The server's major version, once a connection has told it; 0 before.
    pub version: Arc<AtomicU32>,
    /// The epoch in which this node leads, if there are others: a replica that another one has claimed since is not used.
    pub leader: Option<u64>,
}

impl Connector {
    /// A connection that a later fencing will find and end.
    pub async fn connect_marked(&self, who: &Credentials, incarnation: u64) -> Result<Lane, LaneError> {
        self.in_time(async {
            let mut lane = self.connect(who).await?;
            let mark = (incarnation & 0x7fff_ffff) as i32;
            let mark = format!("pg_catalog.pg_advisory_lock_shared({SESSION_MARK}, {mark})");
            let marked =
                lane.query(&format!("SELECT {mark}, pg_catalog.current_setting('{APPLY_MODE}')")).await?;
            // Only superusers may say in the startup packet that it is not so.
            match marked.first().and_then(|row| row.last()).and_then(Option::as_deref) {
                Some("origin") => {}
                mode => return Err(LaneError::Mode(mode.unwrap_or_default().to_owned())),
            }
            // An agent claims the replica itself.
            if let Some(epoch) = self.leader.filter(|_| incarnation != AGENT_MARK) {
                // After the mark is taken: whoever leads now claims first and ends those that are marked then.
                let leader = lane.query(&format!("SELECT {LEADER}")).await?;
                let leader = leader.first().and_then(|row| row.first()).and_then(Option::as_deref);
                if leader.and_then(|leader| leader.parse().ok()) != Some(epoch) {
                    return Err(LaneError::Lost(std::io::Error::other(format!(
                        "another node leads: the replica is used in epoch {}, and this node leads in {epoch}",
                        leader.unwrap_or("unknown")
                    ))));
                }
            }
            Ok(lane)
        })
        .await
    }

    /// A connection that begins as a server has one begin, to look at what that is.
    pub async fn connect_plain(&self, who: &Credentials) -> Result<Lane, LaneError> {
        self.in_time(self.connect_with(who, &[("client_encoding", "UTF8")])).await
    }

    /// A connection over which nothing is changed, and which no fencing ends.
    pub async fn connect_unmarked(&self, who: &Credentials) -> Result<Lane, LaneError> {
        self.in_time(self.connect(who)).await
    }

    /// Whether an agent's session still lives on the server of this lane. It does not outlive a crash of the server.
    pub async fn has_agent(&self, lane: &mut Lane, pid: u32) -> Result<bool, LaneError> {
        let held = lane
            .query(&format!(
                "SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' \
                 AND classid::bigint = {SESSION_MARK} AND objid::bigint = {AGENT_MARK} AND pid = {pid}"
            ))
            .await?;
        Ok(!held.is_empty())
    }

    /// Gives up what belongs to opening a connection when it takes too long.
    pub async fn in_time<T>(
        &self,
        opening: impl Future<Output = Result<T, LaneError>>,
    ) -> Result<T, LaneError> {
        match tokio::time::timeout(self.timeout, opening).await {
            Ok(result) => result,
            Err(_) => Err(LaneError::Lost(std::io::Error::from(std::io::ErrorKind::TimedOut))),
        }
    }

    /// A connection that is ready for statements.
    async fn connect(&self, who: &Credentials) -> Result<Lane, LaneError> {
        loop {
            let version = self.version.load(Ordering::Relaxed);
            let known = begins_with(version);
            let lane = match self.connect_with(who, &known).await {
                // An older server has taken the place of the one that was there, and does not know all of them.
                Err(LaneError::Database(error))
                    if error.code == SqlState::UNDEFINED_OBJECT && version != 0 =>
                {
                    self.version.store(0, Ordering::Relaxed);
                    continue;
                }
                connected => connected?,
            };
            let version = lane.params.get("server_version").map_or(0, |version| major(version));
            if begins_with(version) == known {
                return Ok(lane);
            }
            // Only the startup packet's values are those to which RESET returns.
            self.version.store(version, Ordering::Relaxed);
        }
    }

    async fn connect_with(&self, who: &Credentials, settings: &[(&str, &str)]) -> Result<Lane, LaneError> {
        let stream = self.open_stream().await?;
        let mut lane = Lane::new(stream);
        let mut params = vec![("user", who.user.as_str()), ("database", &*self.database)];
        params.extend(settings);
        startup::startup(&mut lane.output, VERSION_3_0, &params)?;
        lane.flush().await?;
        self.authenticate(&mut lane, who).await?;
        Ok(lane)
    }

    pub async fn open_stream(&self) -> Result<Stream, LaneError> {
        if self.address.host.starts_with('/') {
            let path = format!("{}/.s.PGSQL.{}", self.address.host, self.address.port);
            return Ok(Stream::Unix(connect_socket(&path).await?));
        }
        let mut stream =
            TcpStream::connect((self.address.host.as_str(), self.address.port)).await.map_err(cause)?;
        stream.set_nodelay(true)?;
        keep_alive(&stream, self.silence)?;
        if self.address.tls == ReplicaTls::Disable {
            return Ok(Stream::Tcp(stream));
        }
        let mut request = bytes::BytesMut::new();
        startup::ssl_request(&mut request);
        stream.write_all(&request).await?;
        let mut reply = [0_u8; 1];
        stream.read_exact(&mut reply).await?;
        match startup::decode_ssl_reply(&reply)? {
            Some(SslReply::Accepted) => Ok(crate::server::tls::connect(stream, &self.address).await?),
            _ => Err(LaneError::Lost(std::io::Error::other(
                "the replica does not offer TLS; set its tls to \"disable\" or enable ssl on it",
            ))),
        }
    }

    async fn authenticate(&self, lane: &mut Lane, who: &Credentials) -> Result<(), LaneError> {
        let password = who.password.as_deref().unwrap_or_default();
        let mut exchange = Exchange::None;
        loop {
            let head = lane.next_frame().await?;
            let mut answer = bytes::BytesMut::new();
            match decode(head.tag, lane.body(head))? {
                Backend::Authentication(Authentication::Ok) => match exchange {
                    Exchange::None => {}
                    // Whoever skips its own proof need not know the password.
                    Exchange::First(_) | Exchange::Final(_) => {
                        return Err(unexpected("the replica did not prove that it knows the password"));
                    }
                },
                Backend::Authentication(Authentication::CleartextPassword) => {
                    build::password(&mut answer, password)?
                }
                Backend::Authentication(Authentication::Md5Password { salt }) => {
                    build::password(&mut answer, &password::md5(&who.user, password, salt))?;
                }
                Backend::Authentication(Authentication::Sasl(mechanisms)) => {
                    let nonce: [u8; scram::NONCE_LEN] = rand::rng().random();
                    let credential = scram::Credential::Password(password.to_owned());
                    let client = scram::Client::new(credential, nonce, scram::Binding::Unavailable);
                    let (waiting, hello) =
                        client.hello(mechanisms.iter()).map_err(|e| unexpected(&e.to_string()))?;
                    build::sasl_initial_response(&mut answer, hello.mechanism, hello.message.as_bytes())?;
                    exchange = Exchange::First(waiting);
                }
                Backend::Authentication(Authentication::SaslContinue(data)) => {
                    let Exchange::First(waiting) = std::mem::take(&mut exchange) else {
                        return Err(unexpected("SASLContinue out of order"));
                    };
                    let (waiting, message) =
                        waiting.on_server_first(data).map_err(|error| unexpected(&error.to_string()))?;
                    build::sasl_response(&mut answer, message.as_bytes())?;
                    exchange = Exchange::Final(waiting);
                }
                Backend::Authentication(Authentication::SaslFinal(data)) => {
                    let Exchange::Final(waiting) = std::mem::take(&mut exchange) else {
                        return Err(unexpected("SASLFinal out of order"));
                    };
                    waiting.on_server_final(data).map_err(|error| unexpected(&error.to_string()))?;
                }
                Backend::Authentication(_) => {
                    return Err(unexpected(
                        "an authentication method that onecopy does not speak; use scram-sha-256",
                    ));
                }
                Backend::BackendKeyData(key) => {
                    let (pid, key) = (key.pid, bytes::Bytes::copy_from_slice(key.key));
                    lane.backend = Arc::new(BackendProcess::new(pid, key));
                }
                Backend::ParameterStatus(status) => {
                    lane.params.insert(status.name.to_owned(), status.value.to_string());
                }
                // The server as a whole is starting or stopping, which is not the role's fault: another replica serves it.
                Backend::Error(fields) if is_going_away(fields.code()) => {
                    let message = fields.to_owned().message;
                    return Err(LaneError::Lost(std::io::Error::other(message)));
                }
                Backend::Error(fields) => return Err(LaneError::Database(Box::new(fields.to_owned()))),
                Backend::ReadyForQuery(_) => {
                    lane.consume(head);
                    return Ok(());
                }
                _ => {}
            }
            lane.consume(head);
            if !answer.is_empty() {
                lane.output.extend_from_slice(&answer);
                lane.flush().await?;
            }
        }
    }
}

/// Settings with which every connection begins, and to which RESET returns on it, with the first major version that has them.
///
/// What is set for a role, a database or the server must not end connections that all clients share, nor make one unlike the
/// others, since they are opened before and after somebody changes it. So all that [`Environment::of_startup`] tells begins with
/// what PostgreSQL has if nobody sets it; where a server's files say otherwise, sessions and records do, too.
///
/// [`Environment::of_startup`]: crate::session::environment::Environment::of_startup
const BEGINS_WITH: &[(u32, &str, &str)] = &[
    (0, "client_encoding", "UTF8"),
    (0, "synchronous_commit", "off"),
    (0, "role", "none"),
    (0, "idle_in_transaction_session_timeout", "0"),
    (14, "idle_session_timeout", "0"),
    (17, "transaction_timeout", "0"),
    (0, LOCK_TIMEOUT, "0"),
    (0, STATEMENT_TIMEOUT, "0"),
    (0, DEFAULT_READ_ONLY, "off"),
    (0, "search_path", "\"$user\", public"),
    (0, "TimeZone", "GMT"),
    (0, "DateStyle", "ISO, MDY"),
    (0, "IntervalStyle", "postgres"),
    (0, "extra_float_digits", "1"),
    (0, "bytea_output", "hex"),
    (0, "xmlbinary", "base64"),
    (0, "xmloption", "content"),
    (0, "lc_monetary", "C"),
    (0, "lc_numeric", "C"),
    (0, "lc_time", "C"),
    (0, "default_text_search_config", "pg_catalog.simple"),
    (0, "transform_null_equals", "off"),
    (0, "array_nulls", "on"),
    (0, "quote_all_identifiers", "off"),
    (0, "timezone_abbreviations", "Default"),
    (0, "row_security", "on"),
    (0, "check_function_bodies", "on"),
    (0, "default_tablespace", ""),
    (12, "default_table_access_method", "heap"),
    (14, "default_toast_compression", "pglz"),
    (0, "standard_conforming_strings", "on"),
    (0, "escape_string_warning", "on"),
    (0, "gin_fuzzy_search_limit", "0"),
];

/// What a connection to a server of this major version begins with.
fn begins_with(version: u32) -> Vec<(&'static str, &'static str)> {
    let has = |(since, ..): &&(u32, &str, &str)| *since <= version;
    BEGINS_WITH.iter().filter(has).map(|(_, name, value)| (*name, *value)).collect()
}

/// The mode in which triggers and foreign keys fire, or do not.
pub const APPLY_MODE: &str = "session_replication_role";

/// The first number of what a server says that its version is.
fn major(version: &str) -> u32 {
    let end = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    version[..end].parse().unwrap_or(0)
}

/// Where a SCRAM exchange stands.
#[derive(Default)]
enum Exchange {
    #[default]
    None,
    First(scram::AwaitingServerFirst),
    Final(scram::AwaitingServerFinal),
}

/// Connects to a Unix socket. Where a TCP connection waits until the server accepts it, this is refused while too many wait
/// already, which says that the server is busy (with a flood of cancel requests, say), not that it is lost.
async fn connect_socket(path: &str) -> std::io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                tokio::time::sleep(BUSY_PAUSE).await
            }
            connected => return connected,
        }
    }
}

/// Lets the system find out that the host at the other end is gone while nothing is sent to it. There is no limit for sent
/// bytes here (TCP_USER_TIMEOUT): it counts the time, too, for which a server that is well reads nothing, as during a COPY
/// that waits for a lock. What is sent into the void is noticed by [`crate::health`], which asks.
fn keep_alive(stream: &TcpStream, silence: Duration) -> std::io::Result<()> {
    const PROBES: u32 = 3;
    if silence.is_zero() {
        return Ok(());
    }
    // The system counts in seconds.
    let wait = (silence / 2).max(Duration::from_secs(1));
    let interval = (silence / 2 / PROBES).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(wait).with_interval(interval).with_retries(PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// A name that cannot be looked up for want of files is reported as one that does not exist.
fn cause(error: std::io::Error) -> std::io::Error {
    if error.raw_os_error().is_some() {
        return error;
    }
    Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).err().unwrap_or(error)
}

fn unexpected(what: &str) -> LaneError {
    LaneError::Lost(std::io::Error::other(format!("authentication on the replica: {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::environment::told_by_sessions;
    use socket2::{Domain, SockAddr, Type};

    #[test]
    fn lanes_override_the_limits_that_their_server_knows() {
        assert_eq!(
            [major("15.18 (Debian 15.18-0)"), major("17beta1"), major("9.6.1"), major("")],
            [15, 17, 9, 0]
        );
        let limits =
            |version: u32| begins_with(version).iter().filter(|(name, _)| name.ends_with("_timeout")).count();
        assert_eq!([0, 13, 14, 16, 17, 18].map(limits), [3, 3, 4, 4, 5, 5]);
    }

    #[tokio::test]
    async fn a_socket_where_too_many_wait_is_asked_again_until_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        listener.listen(0).unwrap();
        let path = path.to_str().unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match UnixStream::connect(path).await {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);

        let connecting = connect_socket(path);
        tokio::pin!(connecting);
        tokio::select! {
            biased;
            connected = &mut connecting => panic!("there is no room: {connected:?}"),
            () = tokio::time::sleep(BUSY_PAUSE * 3) => {}
        }
        listener.accept().unwrap();
        connecting.await.unwrap();
    }

    #[tokio::test]
    async fn a_socket_that_nobody_listens_to_is_an_error_at_once() {
        let error = connect_socket("/nonexistent/socket").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn a_connection_begins_with_all_that_sessions_tell() {
        let known = begins_with(15);
        let is_missing = |name: &&str| !known.iter().any(|(known, _)| known == name);
        // Superusers alone may say it: whoever begins with another one is refused.
        assert_eq!(told_by_sessions().filter(is_missing).collect::<Vec<_>>(), [APPLY_MODE]);
    }
}
