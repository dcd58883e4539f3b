//! From an accepted connection to a session: encryption, startup packet, authentication.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use hashbrown::HashMap;
use onecopy_classify::Catalogue;
use onecopy_core::SessionId;
use onecopy_wire::backend::Status;
use onecopy_wire::backend::build::{self, Report, Severity};
use onecopy_wire::frontend::{self, SaslInitial};
use onecopy_wire::scram;
use onecopy_wire::sqlstate::SqlState;
use onecopy_wire::startup::{self, Start, StartupPacket};
use rand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::clock::Deadline;
use crate::errors::Failure;
use crate::lane::LaneError;
use crate::pool::{Lent, Pool};
use crate::postgres::connect::{Credentials, CustomNames};
use crate::server::{Counted, Shared, cancel};
use crate::session::Session;
use crate::session::client::{Client, ClientError};
use crate::session::environment::{Environment, is_kept_here};
use crate::session::patience::shown_limit;
use crate::session::settings::forbidden_setting;
use crate::settings::{ClientAuth, UserSettings};
use crate::stream::Stream;
use onecopy_classify::catalogue::DefaultSetting;

/// The database name under which the admin console answers.
pub const ADMIN_DATABASE: &str = "onecopy";

/// Who may connect.
pub enum Users {
    Everybody,
    Those(Verifiers),
}

impl Users {
    pub fn new(auth: &ClientAuth) -> Users {
        match auth {
            ClientAuth::Trust => Users::Everybody,
            ClientAuth::Scram(users) => Users::Those(Verifiers::new(users)),
        }
    }
}

/// What users must prove, by their names.
pub struct Verifiers {
    verifiers: HashMap<String, (scram::Verifier, Option<String>)>,
    /// Makes an unknown user look like a known one.
    mock_secret: [u8; 32],
    /// The iterations of every user, so that those of an unknown one tell nothing.
    mock_iterations: Vec<u32>,
}

impl Verifiers {
    fn new(users: &[UserSettings]) -> Verifiers {
        let mut random = rand::rng();
        let verifiers: HashMap<String, (scram::Verifier, Option<String>)> = users
            .iter()
            .map(|user| {
                let verifier = scram::Verifier::parse(&user.password).unwrap_or_else(|_| {
                    let salt: [u8; scram::SALT_LEN] = random.random();
                    scram::Verifier::from_password(&user.password, &salt, scram::ITERATIONS_DEFAULT)
                });
                let is_secret = scram::Verifier::parse(&user.password).is_ok();
                let plain = (!is_secret).then(|| user.password.clone());
                (user.name.clone(), (verifier, user.replica_password.clone().or(plain)))
            })
            .collect();
        let mut mock_iterations: Vec<u32> =
            verifiers.values().map(|(verifier, _)| verifier.iterations()).collect();
        mock_iterations.sort_unstable();
        Verifiers { verifiers, mock_secret: random.random(), mock_iterations }
    }
}

/// How long a connection may take to say who it is, when so many are open that it will probably be refused.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves one connection from its first byte to its last. `crowded` says that it is one of those that are only accepted to
/// be told that there are too many: it must not keep others from hearing so.
pub async fn handle(stream: Stream, shared: Arc<Shared>, crowded: bool) {
    let limit = Duration::from_millis(shared.limits.startup_timeout_ms);
    // One limit for all of it: one after the other they would add up.
    let admitted = tokio::time::timeout(limit, admit(stream, &shared, crowded)).await;
    let Ok(Some((client, start, who, counted))) = admitted else { return };
    begin(client, start, who, shared).await;
    drop(counted);
}

/// From the first byte to a proven login; `None` if the connection was answered otherwise, or is gone.
async fn admit(
    stream: Stream,
    shared: &Arc<Shared>,
    crowded: bool,
) -> Option<(Client, Start, Credentials, Counted)> {
    let opening = open(stream, shared);
    let opened = match crowded {
        true => tokio::time::timeout(CROWDED_TIMEOUT, opening).await.ok()?,
        false => opening.await,
    };
    let (mut client, start) = match opened.ok()?? {
        Opened::Session(client, start) => (client, start),
        Opened::Cancel { mut stream, pid, key } => {
            // It has said what it wants; the server that is to be told may take its time.
            cancel::cancel(shared, pid, &key).await;
            let _ = stream.shutdown().await;
            return None;
        }
    };
    let Some(counted) = Counted::new(shared) else {
        let failure = Failure::new(SqlState::TOO_MANY_CONNECTIONS, "sorry, too many clients already")
            .hint("limits.connections_max is the limit.");
        refuse(client, &failure).await;
        return None;
    };
    match authenticate(&mut client, &start, shared).await {
        Ok(Ok(who)) => return Some((client, start, who, counted)),
        Ok(Err(failure)) => refuse(client, &failure).await,
        Err(ClientError::Protocol(what)) => {
            refuse(client, &Failure::new(SqlState::PROTOCOL_VIOLATION, what)).await;
        }
        Err(_) => {}
    }
    None
}

async fn refuse(mut client: Client, failure: &Failure) {
    failure.put(&mut client.output, Severity::Fatal);
    client.close().await;
}

/// What a connection was opened for.
enum Opened {
    Session(Client, Start),
    Cancel { stream: Stream, pid: u32, key: Vec<u8> },
}

/// Encryption and startup packet; `None` when there is nothing to serve.
async fn open(mut stream: Stream, shared: &Arc<Shared>) -> Result<Option<Opened>, ClientError> {
    let mut input = BytesMut::with_capacity(1024);
    let mut asked_for_tls = false;
    loop {
        if startup::is_direct_tls(&input) && !asked_for_tls {
            // Negotiating by ALPN is not offered, and a plain packet never begins so.
            return Ok(None);
        }
        let Some((packet, len)) = (match startup::decode(&input) {
            Ok(found) => found,
            Err(error) => {
                let mut out = BytesMut::new();
                let message = error.to_string();
                build::error(&mut out, &Report::new(Severity::Fatal, SqlState::PROTOCOL_VIOLATION, &message));
                let _ = stream.write_all(&out).await;
                let _ = stream.shutdown().await;
                return Ok(None);
            }
        }) else {
            if stream.read_buf(&mut input).await? == 0 {
                return Ok(None);
            }
            continue;
        };
        match packet {
            StartupPacket::GssEncRequest => {
                input.advance(len);
                stream.write_all(b"N").await?;
            }
            StartupPacket::SslRequest => {
                input.advance(len);
                match (&shared.tls, stream) {
                    (Some(acceptor), Stream::Tcp(tcp)) if !asked_for_tls => {
                        // Bytes that came before the handshake could be anybody's.
                        if !input.is_empty() {
                            return Ok(None);
                        }
                        let mut tcp = tcp;
                        tcp.write_all(b"S").await?;
                        stream = acceptor.accept(tcp).await?;
                        asked_for_tls = true;
                    }
                    (_, other) => {
                        stream = other;
                        stream.write_all(b"N").await?;
                    }
                }
            }
            StartupPacket::Cancel { pid, key } => {
                return Ok(Some(Opened::Cancel { stream, pid, key: key.to_vec() }));
            }
            StartupPacket::Start(start) => {
                input.advance(len);
                let in_the_clear = matches!(stream, Stream::Tcp(_));
                let client = Client::new(stream, input, shared.limits.message_bytes_max);
                if in_the_clear && shared.tls.as_ref().is_some_and(|tls| tls.required) {
                    let failure = Failure::new(
                        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
                        "this server requires TLS",
                    )
                    .hint("Connect with sslmode=require.");
                    refuse(client, &failure).await;
                    return Ok(None);
                }
                return Ok(Some(Opened::Session(client, start)));
            }
        }
    }
}

/// Finds out whether the client is who it says; the inner error is to be told to it.
async fn authenticate(
    client: &mut Client,
    start: &Start,
    shared: &Arc<Shared>,
) -> Result<Result<Credentials, Failure>, ClientError> {
    let negotiation = start.negotiate();
    if negotiation.must_tell {
        build::negotiate_protocol_version(&mut client.output, negotiation.version, &start.extensions);
    }
    let user = start.user().to_owned();
    let users = match &shared.users {
        Users::Those(users) => users,
        Users::Everybody => {
            build::authentication_ok(&mut client.output);
            let is_agent = user == shared.agent_user;
            let password = if is_agent { shared.agent.password.clone() } else { None };
            return Ok(Ok(Credentials { user, password, customs: CustomNames::default() }));
        }
    };
    let known = users.verifiers.get(&user).cloned();
    let verifier = known.as_ref().map_or_else(
        || scram::Verifier::mock(&users.mock_secret, &user, &users.mock_iterations),
        |(verifier, _)| verifier.clone(),
    );
    let nonce: [u8; scram::NONCE_LEN] = rand::rng().random();
    let end_point =
        client.is_tls().then(|| shared.tls.as_ref().and_then(|tls| tls.end_point.clone())).flatten();
    let server = scram::Server::new(verifier, nonce, end_point);
    build::authentication_sasl(&mut client.output, server.mechanisms());
    let wrong = || {
        Failure::new(
            SqlState::INVALID_PASSWORD,
            format!("password authentication failed for user \"{user}\""),
        )
    };
    let message = client.next_auth().await?;
    let initial = SaslInitial::decode(&message)?;
    let Some(first) = initial.data else {
        return Err(ClientError::Protocol(
            "the SASL exchange must begin with the client's first message".into(),
        ));
    };
    let (waiting, answer) = match server.on_client_first(initial.mechanism, first) {
        Ok(next) => next,
        Err(error) => {
            log_refused(&user, &error);
            return Ok(Err(Failure::new(SqlState::PROTOCOL_VIOLATION, error.to_string())));
        }
    };
    build::authentication_sasl_continue(&mut client.output, answer.as_bytes())?;
    let message = client.next_auth().await?;
    let (authenticated, last) = match waiting.on_client_final(&message) {
        Ok(done) => done,
        Err(error) => {
            log_refused(&user, &error);
            return Ok(Err(wrong()));
        }
    };
    let Some((_, replica_password)) = known else { return Ok(Err(wrong())) };
    build::authentication_sasl_final(&mut client.output, last.as_bytes())?;
    build::authentication_ok(&mut client.output);
    let _ = authenticated;
    Ok(Ok(Credentials { user, password: replica_password, customs: CustomNames::default() }))
}

/// A login that looks like an attack on the connection must not drown among mistyped passwords. The client hears the same
/// in either case.
fn log_refused(user: &str, error: &scram::ScramError) {
    use scram::ScramError::{BindingDowngraded, BindingMismatch};
    match error {
        BindingMismatch | BindingDowngraded => {
            tracing::warn!(user, %error, "refusing a login over a connection that may be intercepted");
        }
        _ => tracing::info!(user, %error, "refusing a login"),
    }
}

/// Tells the client the server's settings and serves it.
async fn begin(mut client: Client, start: Start, mut who: Credentials, shared: Arc<Shared>) {
    let database = start.database().to_owned();
    if database == ADMIN_DATABASE {
        return crate::admin::serve(client, who, shared).await;
    }
    if database != shared.settings.database {
        let message = format!("database \"{database}\" does not exist");
        let failure = Failure::new(SqlState::INVALID_CATALOG_NAME, message).hint(format!(
            "This server serves \"{}\", and its console as \"{ADMIN_DATABASE}\".",
            shared.settings.database
        ));
        return refuse(client, &failure).await;
    }
    let environment = match startup_environment(&start, &shared.classifier.catalogue(), &who.user) {
        Ok(environment) => environment,
        Err(failure) => return refuse(client, &failure).await,
    };
    for name in environment.customs() {
        who.customs.add(name);
    }
    let reported = match reported_settings(&shared, &who, &environment).await {
        Ok(reported) => reported,
        Err(failure) => return refuse(client, &failure).await,
    };
    for (name, value) in &reported {
        build::parameter_status(&mut client.output, name, value);
    }
    let id = SessionId(shared.sessions.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let pid = (id.0 & 0x7fff_ffff) as u32;
    let key_len = if start.negotiate().cancel_key_len_max() > startup::CANCEL_KEY_LEN_MIN {
        32
    } else {
        startup::CANCEL_KEY_LEN_MIN
    };
    let key: Vec<u8> = (0..key_len).map(|_| rand::rng().random()).collect();
    if build::backend_key_data(&mut client.output, pid, &key).is_err() {
        return;
    }
    build::ready_for_query(&mut client.output, Status::Idle);
    if client.flush().await.is_err() {
        return;
    }
    let cancellable = shared.cancels.register(pid, &key);
    Session::new(shared.clone(), id, client, who, cancellable, environment, reported).run().await;
    shared.cancels.forget(pid, &key);
}

/// Settings that the session begins with.
fn startup_environment(start: &Start, catalogue: &Catalogue, user: &str) -> Result<Environment, Failure> {
    let mut settings = Vec::new();
    for (name, value) in &start.params {
        match name.as_str() {
            "user" | "database" | "options" => {}
            "replication" if !matches!(value.as_str(), "false" | "off" | "no" | "0") => {
                return Err(Failure::unsupported(
                    "replication connections are not supported",
                    "Connect to one of the replicas directly.",
                ));
            }
            "replication" => {}
            _ => settings.push((name.clone(), value.clone())),
        }
    }
    match start.options() {
        Ok(options) => settings.extend(options),
        Err(error) => return Err(Failure::new(SqlState::INVALID_PARAMETER_VALUE, error.to_string())),
    }
    for (name, value) in &settings {
        // As libpq writes it for PGCLIENTENCODING, the name may stand in quotes.
        if let Some((what, hint)) = forbidden_setting(name, Some(value.trim_matches('\''))) {
            return Err(Failure::unsupported(what, hint));
        }
    }
    // Others of those that SET refuses are not in force on connections to replicas, whatever is said here.
    let begins = ["role", "session_replication_role", "standard_conforming_strings"];
    let of_user = |setting: &&DefaultSetting| setting.role.as_deref().is_none_or(|role| role == user);
    for setting in catalogue.settings.iter().filter(of_user) {
        if begins.contains(&setting.name.to_ascii_lowercase().as_str())
            && let Some((what, _)) = forbidden_setting(&setting.name, Some(&setting.value))
        {
            let hint =
                format!("Undo it: ALTER ROLE, ALTER DATABASE or ALTER SYSTEM ... RESET {}.", setting.name);
            return Err(Failure::unsupported(format!("{what} as a default of sessions"), hint));
        }
    }
    for (name, value) in settings.iter_mut().filter(|(name, _)| is_kept_here(name)) {
        *value = shown_limit(name, value)?;
    }
    settings.retain(|(name, _)| !name.eq_ignore_ascii_case("client_encoding"));
    Ok(Environment::of_startup(catalogue, user, &settings))
}

/// What a server reports to a session of this user with these settings. Asks a replica, so that a role that may not
/// connect hears so now.
async fn reported_settings(
    shared: &Shared,
    who: &Credentials,
    environment: &Environment,
) -> Result<HashMap<String, String>, Failure> {
    let deadline = Deadline::within_ms(shared.limits.wait_timeout_ms);
    // The role may have been made, or given settings, by the last commit.
    let told = shared.scheduler.status().told;
    let mut pause = Duration::from_millis(1);
    loop {
        let replicas = shared.scheduler.status().replicas;
        let is_fresh = |pool: &&Arc<Pool>| {
            replicas.get(usize::from(pool.replica.0)).is_some_and(|replica| replica.applied >= told)
        };
        for pool in shared.pools.in_service().filter(is_fresh) {
            match pool.lend(who).await {
                Ok(mut lent) => match dress(&mut lent, environment).await {
                    Ok(()) => {
                        let reported = lent.lane.params.clone();
                        pool.give_back(who, lent);
                        return Ok(reported);
                    }
                    Err(error) if error.is_database() => return Err(Failure::of_lane(&error)),
                    Err(error) => pool.suspect_now(&error),
                },
                Err(error) if error.is_refusal() => return Err(Failure::of_lane(&error)),
                Err(error) => pool.suspect_now(&error),
            }
        }
        if deadline.is_some_and(Deadline::has_passed) {
            return Err(Failure::new(SqlState::CANNOT_CONNECT_NOW, "no replica is in service")
                .hint("Try again when one is back; `onecopy status` shows them."));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

async fn dress(lent: &mut Lent, environment: &Environment) -> Result<(), LaneError> {
    if lent.lane.settings == environment.hash() {
        return Ok(());
    }
    lent.lane.settings = u64::MAX;
    lent.lane.command(&environment.command()).await?;
    lent.lane.settings = environment.hash();
    lent.lane.read_under = environment.meaningful_hash();
    Ok(())
}

impl Client {
    /// An answer to an authentication request.
    async fn next_auth(&mut self) -> Result<BytesMut, ClientError> {
        self.flush().await?;
        loop {
            if let Some(head) = frontend::peek_auth(&self.input)?
                && self.input.len() >= head.len
            {
                if head.tag == frontend::tag::TERMINATE {
                    return Err(ClientError::Gone);
                }
                let mut frame = self.input.split_to(head.len);
                frame.advance(onecopy_wire::frame::HEAD_LEN);
                return Ok(frame);
            }
            self.fill().await?;
        }
    }
}
