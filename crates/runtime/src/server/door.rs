//! Who is let in: encryption, startup packet, authentication. Nothing here needs a database to be served.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use hashbrown::HashMap;
use onecopy_wire::backend::build::{self, Report, Severity};
use onecopy_wire::frontend::{self, SaslInitial};
use onecopy_wire::scram;
use onecopy_wire::sqlstate::SqlState;
use onecopy_wire::startup::{self, Start, StartupPacket};
use rand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::errors::Failure;
use crate::postgres::connect::{Credentials, CustomNames};
use crate::server::tls;
use crate::session::client::{Client, ClientError};
use crate::settings::{ClientAuth, Settings, UserSettings};
use crate::stream::Stream;

/// How long a connection may take to say who it is, when so many are open that it will probably be refused.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(2);

/// Where clients come in.
pub struct Door {
    pub users: Users,
    tls: Option<tls::Acceptor>,
    startup_timeout: Duration,
    message_len_max: usize,
    connections_max: usize,
    connections: AtomicUsize,
}

/// What a connection was opened for.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it is returned, and nearly always the large one"
)]
pub enum Opened {
    /// A session, by somebody who has proven who it is.
    Session(Client, Start, Credentials, Counted),
    /// Whoever carries it out closes the stream then.
    Cancel { stream: Stream, pid: u32, key: Vec<u8> },
}

impl Door {
    pub fn new(settings: &Settings, tls: Option<tls::Acceptor>) -> Door {
        let agent = (settings.agent_user.clone(), settings.agent_password.clone());
        Door {
            users: Users::new(&settings.auth, agent),
            tls,
            startup_timeout: Duration::from_millis(settings.limits.startup_timeout_ms),
            message_len_max: settings.limits.message_bytes_max,
            connections_max: settings.limits.connections_max,
            connections: AtomicUsize::new(0),
        }
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// How long a client may take from its first byte on.
    pub fn startup_timeout(&self) -> Duration {
        self.startup_timeout
    }

    /// From a connection's first byte to a proven login; `None` if it was answered otherwise, is gone, or took too long.
    /// `crowded` says that it is one of those that are only accepted to be told that there are too many: it must not keep others
    /// from hearing so.
    pub async fn admit(self: &Arc<Door>, stream: Stream, crowded: bool) -> Option<Opened> {
        // One limit for all of it: one after the other they would add up.
        tokio::time::timeout(self.startup_timeout, self.admit_in_time(stream, crowded)).await.ok()?
    }

    async fn admit_in_time(self: &Arc<Door>, stream: Stream, crowded: bool) -> Option<Opened> {
        let opening = self.open(stream);
        let asked = match crowded {
            true => tokio::time::timeout(CROWDED_TIMEOUT, opening).await.ok()?,
            false => opening.await,
        };
        let (mut client, start) = match asked.ok()?? {
            Asked::Session(client, start) => (client, start),
            Asked::Cancel { stream, pid, key } => return Some(Opened::Cancel { stream, pid, key }),
        };
        let Some(counted) = Counted::new(self) else {
            let failure = Failure::new(SqlState::TOO_MANY_CONNECTIONS, "sorry, too many clients already")
                .hint("limits.connections_max is the limit.");
            refuse(client, &failure).await;
            return None;
        };
        match self.authenticate(&mut client, &start).await {
            Ok(Ok(who)) => return Some(Opened::Session(client, start, who, counted)),
            Ok(Err(failure)) => refuse(client, &failure).await,
            Err(ClientError::Protocol(what)) => {
                refuse(client, &Failure::new(SqlState::PROTOCOL_VIOLATION, what)).await;
            }
            Err(_) => {}
        }
        None
    }

    /// Encryption and startup packet; `None` when there is nothing to serve.
    async fn open(&self, mut stream: Stream) -> Result<Option<Asked>, ClientError> {
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
                    build::error(
                        &mut out,
                        &Report::new(Severity::Fatal, SqlState::PROTOCOL_VIOLATION, &message),
                    );
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
                    match (&self.tls, stream) {
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
                    return Ok(Some(Asked::Cancel { stream, pid, key: key.to_vec() }));
                }
                StartupPacket::Start(start) => {
                    input.advance(len);
                    let in_the_clear = matches!(stream, Stream::Tcp(_));
                    let client = Client::new(stream, input, self.message_len_max);
                    if in_the_clear && self.tls.as_ref().is_some_and(|tls| tls.required) {
                        let failure = Failure::new(
                            SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
                            "this server requires TLS",
                        )
                        .hint("Connect with sslmode=require.");
                        refuse(client, &failure).await;
                        return Ok(None);
                    }
                    return Ok(Some(Asked::Session(client, start)));
                }
            }
        }
    }

    /// Finds out whether the client is who it says; the inner error is to be told to it.
    async fn authenticate(
        &self,
        client: &mut Client,
        start: &Start,
    ) -> Result<Result<Credentials, Failure>, ClientError> {
        let negotiation = start.negotiate();
        if negotiation.must_tell {
            build::negotiate_protocol_version(&mut client.output, negotiation.version, &start.extensions);
        }
        let user = start.user().to_owned();
        let wrong = || {
            Failure::new(
                SqlState::INVALID_PASSWORD,
                format!("password authentication failed for user \"{user}\""),
            )
        };
        let credentials = self.users.credentials_of(&user);
        let users = match &self.users {
            Users::Those(users) => users,
            Users::Everybody { .. } => {
                build::authentication_ok(&mut client.output);
                return Ok(credentials.ok_or_else(wrong));
            }
        };
        let verifier = users.verifiers.get(&user).map_or_else(
            || scram::Verifier::mock(&users.mock_secret, &user, &users.mock_iterations),
            |(verifier, _)| verifier.clone(),
        );
        let nonce: [u8; scram::NONCE_LEN] = rand::rng().random();
        let end_point =
            client.is_tls().then(|| self.tls.as_ref().and_then(|tls| tls.end_point.clone())).flatten();
        let server = scram::Server::new(verifier, nonce, end_point);
        build::authentication_sasl(&mut client.output, server.mechanisms());
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
        let Some(credentials) = credentials else { return Ok(Err(wrong())) };
        build::authentication_sasl_final(&mut client.output, last.as_bytes())?;
        build::authentication_ok(&mut client.output);
        let _ = authenticated;
        Ok(Ok(credentials))
    }
}

/// What a connection says first that it is for.
enum Asked {
    Session(Client, Start),
    Cancel { stream: Stream, pid: u32, key: Vec<u8> },
}

/// Tells a client why it is not served.
pub async fn refuse(mut client: Client, failure: &Failure) {
    failure.put(&mut client.output, Severity::Fatal);
    client.close().await;
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

/// Counts a connection for as long as it lives.
pub struct Counted(Arc<Door>);

impl Counted {
    fn new(door: &Arc<Door>) -> Option<Counted> {
        let before = door.connections.fetch_add(1, Ordering::AcqRel);
        let counted = Counted(door.clone());
        (before < door.connections_max).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Who may connect.
pub enum Users {
    /// Whoever says it is the agent's role is given its password.
    Everybody {
        agent_user: String,
        agent_password: Option<String>,
    },
    Those(Verifiers),
}

impl Users {
    pub fn new(auth: &ClientAuth, (agent_user, agent_password): (String, Option<String>)) -> Users {
        match auth {
            ClientAuth::Trust => Users::Everybody { agent_user, agent_password },
            ClientAuth::Scram(users) => Users::Those(Verifiers::new(users)),
        }
    }

    /// What a user connects to replicas with, whoever has found out that it is this user; `None` for one who may not
    /// connect.
    pub fn credentials_of(&self, user: &str) -> Option<Credentials> {
        let password = match self {
            Users::Everybody { agent_user, agent_password } => {
                agent_password.as_ref().filter(|_| user == agent_user).cloned()
            }
            Users::Those(users) => users.verifiers.get(user)?.1.clone(),
        };
        Some(Credentials { user: user.to_owned(), password, customs: CustomNames::default() })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn agent() -> (String, Option<String>) {
        ("agent".to_owned(), Some("agents".to_owned()))
    }

    fn user(name: &str, replica_password: Option<&str>) -> UserSettings {
        let replica_password = replica_password.map(str::to_owned);
        UserSettings { name: name.to_owned(), password: "own".to_owned(), replica_password }
    }

    #[test]
    fn only_users_that_may_connect_have_credentials() {
        let password = |users: &Users, user: &str| users.credentials_of(user).map(|who| who.password);
        let everybody = Users::new(&ClientAuth::Trust, agent());
        assert_eq!(password(&everybody, "ada"), Some(None));
        assert_eq!(password(&everybody, "agent"), Some(Some("agents".to_owned())));
        let known = vec![user("ada", Some("other")), user("bo", None)];
        let those = Users::new(&ClientAuth::Scram(known), agent());
        assert_eq!(password(&those, "ada"), Some(Some("other".to_owned())));
        assert_eq!(password(&those, "bo"), Some(Some("own".to_owned())));
        assert_eq!((password(&those, "agent"), password(&those, "cy")), (None, None));
        assert_eq!(those.credentials_of("bo").map(|who| who.user), Some("bo".to_owned()));
    }
}
