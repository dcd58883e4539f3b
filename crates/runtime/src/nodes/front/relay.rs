//! Carries one client's messages to the node that leads and its answers back, and goes on with the next one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use onecopy_core::Csn;
use onecopy_wire::backend::build::Severity;
use onecopy_wire::backend::{BackendKey, tag as from_term};
use onecopy_wire::frame::{self, FRAME_LEN_MAX, Frame, HEAD_LEN};
use onecopy_wire::frontend::{self, tag as from_client};
use onecopy_wire::sqlstate::SqlState;
use onecopy_wire::startup::Start;
use rand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use crate::clock::Deadline;
use crate::errors::Failure;
use crate::nodes::front::carried::{self, Greeting};
use crate::nodes::front::course::{Course, Diverged, Lost};
use crate::nodes::front::{Front, Registered, Whereabouts};
use crate::nodes::handshake::Purpose;
use crate::nodes::links;
use crate::nodes::origins::Outcome;
use crate::session::client::Client;
use crate::stream::Stream;

/// Bytes that wait to be sent on, beyond which no more is read from where they come.
const WAITING_LEN_MAX: usize = 256 << 10;
const READ_LEN: usize = 16 << 10;
/// How long what a client has left behind may take to be sent on.
const PARTING_PATIENCE: Duration = Duration::from_secs(2);
/// How long a node may take to say whether a session can go on there: it says so at once, or stands still.
const PRESENT_PATIENCE: Duration = Duration::from_secs(2);
/// Between looking for a node that leads.
const SEEK_PAUSE_MIN: Duration = Duration::from_millis(5);
const SEEK_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Serves a client that was let in, until it leaves.
pub async fn run(front: &Arc<Front>, client: Client, start: &Start, user: &str) {
    let (stream, input, output) = client.into_parts();
    let greeting = Greeting {
        session: rand::rng().random(),
        commits: 0,
        heard: Csn(u64::MAX),
        user: user.to_owned(),
        params: start.params.clone(),
    };
    let mut relay = Relay {
        front,
        registered: front.register(),
        greeting,
        course: Course::default(),
        client: Pipe::new(stream, input, output),
    };
    if let Err(End::Told(failure)) = relay.run().await {
        failure.put(&mut relay.client.output, Severity::Fatal);
    }
    // It may be gone.
    let _ = relay.client.close().await;
}

/// A connection, and what was received from it and is to be sent to it.
struct Pipe {
    read: ReadHalf<Stream>,
    write: WriteHalf<Stream>,
    input: BytesMut,
    output: BytesMut,
    /// What was written may wait in the connection's own buffer, where it is encrypted.
    is_flushed: bool,
}

impl Pipe {
    fn new(stream: Stream, input: BytesMut, output: BytesMut) -> Pipe {
        let (read, write) = tokio::io::split(stream);
        Pipe { read, write, input, output, is_flushed: true }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.write.write_all_buf(&mut self.output).await?;
        self.write.shutdown().await
    }
}

async fn fill(read: &mut ReadHalf<Stream>, input: &mut BytesMut) -> io::Result<()> {
    input.reserve(READ_LEN);
    match read.read_buf(input).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Sends some of what waits. Nothing is lost if this is dropped half-way.
async fn drain(
    write: &mut WriteHalf<Stream>,
    output: &mut BytesMut,
    is_flushed: &mut bool,
) -> io::Result<()> {
    if !output.is_empty() {
        *is_flushed = false;
        write.write_buf(output).await?;
    }
    if output.is_empty() {
        write.flush().await?;
        *is_flushed = true;
    }
    Ok(())
}

/// How it ended.
enum End {
    /// The client has left, or its connection is lost.
    Gone,
    /// The session has said that it ends, or the client broke the protocol and is told so.
    Told(Failure),
    Closed,
}

/// Why a session's connection is not used any more.
enum Parted {
    /// It is lost.
    Lost,
    /// It has come out differently when it was made again.
    Diverged,
    End(End),
}

struct Relay<'a> {
    front: &'a Arc<Front>,
    registered: Registered,
    greeting: Greeting,
    course: Course,
    client: Pipe,
}

impl Relay<'_> {
    async fn run(&mut self) -> Result<(), End> {
        let mut term = BytesMut::new();
        self.course.resume(&mut term).map_err(|_| End::Closed)?;
        let (mut session, _) = self.seek().await?;
        session.output = term;
        loop {
            let parted = self.carry(&mut session).await;
            if let Parted::End(End::Gone) = parted {
                // What it had asked before it left is done, as by any server.
                let _ = tokio::time::timeout(PARTING_PATIENCE, session.close()).await;
            }
            self.registered.at.lock().take();
            drop(session);
            session = match parted {
                Parted::End(end) => return Err(end),
                Parted::Lost if self.course.has_ended() => return Err(End::Closed),
                Parted::Lost => self.go_on().await?,
                Parted::Diverged => self.give_up(changed()).await?,
            };
        }
    }

    /// Carries messages in both directions as long as the session's connection lasts.
    async fn carry(&mut self, session: &mut Pipe) -> Parted {
        let at = self.registered.at.lock().as_ref().map(|at| at.node);
        let mut leader = self.front.node.leader.subscribe();
        loop {
            if let Err(parted) = self.take_from_session(session) {
                return parted;
            }
            if let Err(end) = self.take_from_client(session) {
                return Parted::End(end);
            }
            let may_read_client = session.output.len() < WAITING_LEN_MAX
                && self.client.input.len() < self.front.message_len_max.max(WAITING_LEN_MAX)
                && self.course.may_take_more();
            let may_read_session = self.client.output.len() < WAITING_LEN_MAX;
            let Pipe {
                read: from_client,
                write: to_client,
                input: client_in,
                output: client_out,
                is_flushed: client_flushed,
            } = &mut self.client;
            let Pipe {
                read: from_session,
                write: to_session,
                input: session_in,
                output: session_out,
                is_flushed: session_flushed,
            } = &mut *session;
            // What the client is told does not wait for what it says.
            tokio::select! {
                biased;
                // A connection to a node that stands still, or is cut off, is not lost for a long time.
                _ = leader.wait_for(|leader| leader.is_some_and(|leader| Some(leader.0) != at)) => {
                    return Parted::Lost;
                }
                sent = drain(to_client, client_out, client_flushed), if !client_out.is_empty() || !*client_flushed => {
                    if sent.is_err() {
                        return Parted::End(End::Gone);
                    }
                }
                received = fill(from_session, session_in), if may_read_session => {
                    if received.is_err() {
                        return Parted::Lost;
                    }
                }
                sent = drain(to_session, session_out, session_flushed), if !session_out.is_empty() || !*session_flushed => {
                    if sent.is_err() {
                        return Parted::Lost;
                    }
                }
                received = fill(from_client, client_in), if may_read_client => {
                    if received.is_err() {
                        return Parted::End(End::Gone);
                    }
                }
            }
        }
    }

    fn take_from_session(&mut self, session: &mut Pipe) -> Result<(), Parted> {
        // What no session says is taken for a lost connection: what follows cannot be told from it.
        while let Some(head) = frame::peek(&session.input, FRAME_LEN_MAX).map_err(|_| Parted::Lost)? {
            if session.input.len() < head.len {
                break;
            }
            let bytes = session.input.split_to(head.len);
            let frame = Frame { tag: head.tag, body: &bytes[HEAD_LEN..], bytes: &bytes };
            if frame.tag == from_term::BACKEND_KEY_DATA
                && let (Ok(key), Some(at)) = (BackendKey::decode(frame.body), &mut *self.registered.at.lock())
            {
                (at.pid, at.key) = (key.pid, key.key.to_vec());
            }
            let key = (self.registered.pid, &self.registered.key[..]);
            let told = self.course.on_session(frame, key, &mut self.client.output);
            told.map_err(|Diverged| Parted::Diverged)?;
            self.course.proceed(&mut session.output);
        }
        Ok(())
    }

    fn take_from_client(&mut self, session: &mut Pipe) -> Result<(), End> {
        let len_max = self.front.message_len_max;
        while session.output.len() < WAITING_LEN_MAX && !self.course.withholds() {
            let head = match frontend::peek(&self.client.input, len_max) {
                Ok(Some(head)) if self.client.input.len() >= head.len => head,
                Ok(_) => break,
                Err(error @ onecopy_wire::FrameError::TooLong { .. }) => {
                    let failure = Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, error.to_string())
                        .hint("limits.statement_bytes_max is the limit.");
                    return Err(End::Told(failure));
                }
                Err(error) => {
                    return Err(End::Told(Failure::new(SqlState::PROTOCOL_VIOLATION, error.to_string())));
                }
            };
            let bytes = self.client.input.split_to(head.len);
            let frame = Frame { tag: head.tag, body: &bytes[HEAD_LEN..], bytes: &bytes };
            self.course.on_client(frame, &mut session.output, &mut self.client.output);
            if head.tag == from_client::TERMINATE {
                return Err(End::Gone);
            }
        }
        Ok(())
    }

    /// The session's node is lost: goes on at the one that leads next.
    async fn go_on(&mut self) -> Result<Pipe, End> {
        if self.course.check_movable().is_err() {
            return Err(End::Told(pinned()));
        }
        let (commits, csn) = self.course.position();
        (self.greeting.commits, self.greeting.heard) = (commits, Csn(csn));
        let is_in_doubt = self.course.is_in_doubt();
        let (mut session, outcome) = self.seek().await.map_err(|end| match end {
            // It may have been committed by the node that is lost.
            End::Told(failure) if is_in_doubt => {
                End::Told(Failure { detail: Some(failure.message), ..unknown() })
            }
            end => end,
        })?;
        let (up, down) = (&mut session.output, &mut self.client.output);
        let has_gone_on = match outcome {
            Outcome::Committed { number, csn } => {
                self.course.committed(number, csn.0, up, down)
                    || self.course.concluded(number, csn.0, &unanswered(csn), up, down)
            }
            Outcome::Unknown if is_in_doubt => false,
            // It had sent nothing that could have been committed, however long ago it was heard of.
            Outcome::Nothing | Outcome::Unknown => match self.course.resume(up) {
                Ok(()) => true,
                Err(Lost::Pinned) => return Err(End::Told(pinned())),
                Err(Lost::TooMuch) => self.course.give_up(too_much(), up, down).is_ok(),
                Err(Lost::Unchecked) => self.course.give_up(unchecked(), up, down).is_ok(),
            },
        };
        match (has_gone_on, outcome) {
            (true, _) => Ok(session),
            (false, Outcome::Committed { csn, .. }) => Err(End::Told(partly(csn))),
            (false, Outcome::Nothing) => Err(End::Told(too_much())),
            (false, Outcome::Unknown) => Err(End::Told(unknown())),
        }
    }

    /// What was done again came out differently: the client is told, and the session goes on.
    async fn give_up(&mut self, failure: Failure) -> Result<Pipe, End> {
        let (commits, csn) = self.course.position();
        (self.greeting.commits, self.greeting.heard) = (commits, Csn(csn));
        let (mut session, outcome) = self.seek().await?;
        if outcome != Outcome::Nothing {
            return Err(End::Told(unknown()));
        }
        let given_up = self.course.give_up(failure.clone(), &mut session.output, &mut self.client.output);
        given_up.map_err(|_| End::Told(failure))?;
        Ok(session)
    }

    /// Connects to the node that leads, as soon as there is one.
    async fn seek(&mut self) -> Result<(Pipe, Outcome), End> {
        let node = &self.front.node;
        let deadline = Deadline::within_ms(self.front.wait_timeout_ms);
        let mut leader = node.leader.subscribe();
        let mut pause = SEEK_PAUSE_MIN;
        loop {
            let leads = *leader.borrow_and_update();
            if let Some(leads) = leads.and_then(|leads| node.links.places.of(leads.0)) {
                let presented = tokio::select! {
                    presented = tokio::time::timeout(PRESENT_PATIENCE, self.present(&leads)) => {
                        presented.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                    }
                    _ = leader.wait_for(|leader| leader.is_some_and(|leader| leader.0 != leads.id)) => continue,
                };
                match presented {
                    Ok(Some(found)) => return Ok(found),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(node = leads.id, %error, "reach the node that leads"),
                }
            }
            if deadline.is_some_and(Deadline::has_passed) {
                return Err(End::Told(nobody_leads()));
            }
            let Pipe { read, input, .. } = &mut self.client;
            tokio::select! {
                _ = leader.changed() => pause = SEEK_PAUSE_MIN,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(SEEK_PAUSE_MAX),
                // One that has left waits for nothing.
                received = fill(read, input), if input.len() < WAITING_LEN_MAX => {
                    received.map_err(|_| End::Gone)?;
                }
            }
        }
    }

    async fn present(&self, to: &crate::settings::NodeSettings) -> io::Result<Option<(Pipe, Outcome)>> {
        let mut stream = links::connect(&self.front.node.settings, to, Purpose::Session).await?;
        let Some(outcome) = carried::present(&mut stream, &self.greeting).await? else { return Ok(None) };
        *self.registered.at.lock() = Some(Whereabouts { node: to.id, pid: 0, key: Vec::new() });
        Ok(Some((Pipe::new(stream, BytesMut::new(), BytesMut::new()), outcome)))
    }
}

fn nobody_leads() -> Failure {
    Failure::new(SqlState::CANNOT_CONNECT_NOW, "no node of the cluster leads")
        .hint("More than half of the nodes must run and reach each other; `onecopy status` shows them.")
}

fn pinned() -> Failure {
    Failure::new(
        SqlState::ADMIN_SHUTDOWN,
        "terminating connection because the node that led was lost, and the session held what only it had",
    )
    .hint(
        "Session-level advisory locks, tables declared for a session, and LISTEN end with the node, whose notifications may be \
         lost. Connect again.",
    )
}

fn changed() -> Failure {
    Failure::new(
        SqlState::SERIALIZATION_FAILURE,
        "the node that led was lost, and what this transaction had read has changed since",
    )
    .hint("Run the transaction again.")
}

fn too_much() -> Failure {
    Failure::new(
        SqlState::SERIALIZATION_FAILURE,
        "the node that led was lost, and this transaction sent more than is kept to do it again",
    )
    .hint("Run the transaction again. Nothing of it was committed.")
}

fn unchecked() -> Failure {
    Failure::new(
        SqlState::SERIALIZATION_FAILURE,
        "the node that led was lost, and this transaction had heard part of what cannot be done again by itself",
    )
    .hint("Run the transaction again. Nothing of it was committed.")
}

fn unanswered(csn: Csn) -> Failure {
    Failure::new(
        SqlState::TRANSACTION_RESOLUTION_UNKNOWN,
        format!("the node that led was lost: this was committed, as commit {csn}, and its answer is lost"),
    )
    .hint("Do not run it again.")
}

fn partly(csn: Csn) -> Failure {
    Failure::new(
        SqlState::TRANSACTION_RESOLUTION_UNKNOWN,
        format!("the node that led was lost: of what was sent last, commit {csn} is the last one that was committed"),
    )
    .hint("Look what of it is there.")
}

fn unknown() -> Failure {
    Failure::new(
        SqlState::TRANSACTION_RESOLUTION_UNKNOWN,
        "the node that led was lost, and it is not known any more whether this was committed",
    )
    .hint("Look whether what it was to change has changed.")
}
