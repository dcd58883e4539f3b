//! A lane: one backend connection, with what is prepared and set on it.

use std::future::{Future, poll_fn};
use std::io;
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use bytes::{Buf, BufMut, BytesMut};
use hashbrown::HashMap;
use onecopy_wire::backend::{self, Backend, ErrorFields, Status};
use onecopy_wire::frame::HEAD_LEN;
use onecopy_wire::frontend::{self, build};
use onecopy_wire::{FrameError, Head, SqlState, WireError, frame};
use rustix::io::Errno;
use socket2::{SockRef, Socket};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;

use crate::object_ids::LaneIds;
use crate::pool::Registered;
use crate::postgres::connect::CustomNames;
use crate::server::cancel::Backend as BackendProcess;
use crate::stream::Stream;

/// Bytes asked for in one read.
const READ_LEN: usize = 64 * 1024;
/// The longest frame of a server's that is kept whole: errors, notices, descriptions, rows that must be read.
pub const DECODE_LEN_MAX: usize = 256 * 1024 * 1024;
/// How often ROLLBACK is sent before a server that refuses it is given up.
const ROLLBACKS_MAX: usize = 3;
/// Statements prepared on one lane; beyond it, all are forgotten when it is lent next.
const PREPARED_MAX: usize = 1_000;

/// A second handle of a lane's socket, for others than the thread that waits on the lane.
#[derive(Debug)]
pub struct SocketHandle(Socket);

impl SocketHandle {
    pub fn new(socket: Socket) -> SocketHandle {
        SocketHandle(socket)
    }

    /// Sends a few messages whole, without waiting. If they do not fit the connection is ended, which the lane's own thread
    /// notices: nothing was under way, so there is room on any connection that lives.
    pub fn send(&self, messages: &[u8]) {
        if !send_whole(messages, |bytes| self.0.send(bytes)) {
            self.shut_down();
        }
    }

    /// Ends the connection: whoever waits on the lane is told.
    pub fn shut_down(&self) {
        // One that has failed by itself needs no help.
        let _ended = self.0.shutdown(Shutdown::Both);
    }
}

/// Whether all bytes were taken at once. A signal that comes in between means nothing.
fn send_whole(bytes: &[u8], mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> bool {
    loop {
        match send(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            sent => return matches!(sent, Ok(sent) if sent == bytes.len()),
        }
    }
}

/// Why a lane cannot be used any more, or a command of ours failed on it.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    #[error("the connection to the replica was lost: {0}")]
    Lost(io::Error),
    /// This process, or its machine, has no room for another connection: the replica has nothing to do with it.
    #[error("onecopy may not open another connection to a replica: {0}")]
    Shortage(io::Error),
    #[error("the replica closed the connection")]
    Closed,
    #[error("the replica broke the protocol: {0}")]
    Protocol(#[from] WireError),
    #[error("the replica sent an impossible message: {0}")]
    Frame(#[from] FrameError),
    #[error("{}: {}", .0.code.as_str(), .0.message)]
    Database(Box<ErrorFields>),
    #[error(
        "session_replication_role is {0} for the role or its database, which would make replicas differ; ALTER ROLE or DATABASE ... RESET it on the replicas, or connect as another role"
    )]
    Mode(String),
}

impl LaneError {
    /// The database refused a command; the lane itself is well.
    pub fn is_database(&self) -> bool {
        matches!(self, LaneError::Database(_))
    }

    /// No lane could be opened, for a reason that says nothing against the replica: it, or our own system, has refused it.
    pub fn is_refusal(&self) -> bool {
        matches!(self, LaneError::Database(_) | LaneError::Shortage(_) | LaneError::Mode(_))
    }
}

impl From<io::Error> for LaneError {
    fn from(error: io::Error) -> LaneError {
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE) => LaneError::Shortage(error),
            _ => LaneError::Lost(error),
        }
    }
}

/// What one step of sending and receiving at once has done, with the number of bytes.
enum Progress {
    Sent(usize),
    Received(usize),
}

/// One backend connection.
pub struct Lane {
    stream: Stream,
    handle: Option<Arc<SocketHandle>>,
    /// Received and not consumed.
    pub input: BytesMut,
    /// To be sent by the next [`Lane::flush`].
    pub output: BytesMut,
    /// Where cancel requests for its statements go.
    pub backend: Arc<BackendProcess>,
    /// The replica's incarnation: a lane of an earlier one must not be used.
    pub incarnation: u64,
    /// Hash of the session settings in force.
    pub settings: u64,
    /// Hash of those settings in force under which a server reads a text: the literals of a statement are read when it is
    /// prepared, so it stands for the text under the same settings only.
    pub read_under: u64,
    /// Generation of definitions under which the statements were prepared; 0 if that is not known.
    pub generation: u64,
    /// The transaction that was the last on it has changed definitions: what is prepared may be so by those of its own.
    pub has_own_definitions: bool,
    /// So does its open transaction with roles, maybe: it gives or takes names of them.
    pub changes_roles: bool,
    /// How often roles had changed on the replica when it was opened: a server goes on with a session whose role has lost its
    /// name, and what that writes nobody can repeat.
    pub roles: u64,
    /// Numbers of the statements prepared on it, by which they are named.
    prepared: HashMap<StatementKey, u32>,
    /// Those that the server keeps and nobody uses any more.
    forgotten: Vec<u32>,
    prepared_count: u32,
    /// Customised settings that its server's session has met: only sessions that have met them, too, may use it.
    pub customs: CustomNames,
    /// Settings as the server reported them.
    pub params: HashMap<String, String>,
    /// Lets another connection be opened when this one is closed.
    pub permit: Option<OwnedSemaphorePermit>,
    /// Lets its pool end it while it is lent.
    pub registered: Option<Registered>,
    /// What clients are told in the place of the replica's object ids.
    pub object_ids: Option<LaneIds>,
}

/// What a prepared statement is known by: a hash of its text and parameter types.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StatementKey(pub u128);

impl StatementKey {
    pub fn of(sql: &str, types: &[u32]) -> StatementKey {
        let mut low = std::hash::DefaultHasher::new();
        let mut high = std::hash::DefaultHasher::new();
        use std::hash::{Hash, Hasher};
        sql.hash(&mut low);
        types.hash(&mut low);
        (sql.len(), types, sql).hash(&mut high);
        StatementKey(u128::from(low.finish()) << 64 | u128::from(high.finish()))
    }

    /// The same text, prepared by itself.
    pub fn unlike_others(self) -> StatementKey {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        self.under(NUMBER.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The same text, read under settings with this hash; 0 stands for none.
    pub fn under(self, settings: u64) -> StatementKey {
        StatementKey(self.0 ^ (u128::from(settings) << 64 | u128::from(settings.rotate_left(32))))
    }
}

impl Lane {
    pub fn new(stream: Stream) -> Lane {
        Lane {
            stream,
            handle: None,
            input: BytesMut::with_capacity(READ_LEN),
            output: BytesMut::with_capacity(4096),
            backend: Arc::default(),
            incarnation: 0,
            settings: 0,
            read_under: 0,
            generation: 0,
            has_own_definitions: false,
            changes_roles: false,
            roles: 0,
            prepared: HashMap::new(),
            forgotten: Vec::new(),
            prepared_count: 0,
            customs: CustomNames::default(),
            params: HashMap::new(),
            permit: None,
            registered: None,
            object_ids: None,
        }
    }

    /// Another handle of the socket.
    ///
    /// # Errors
    /// When the process may not open more files.
    pub fn handle(&mut self) -> io::Result<Arc<SocketHandle>> {
        if let Some(handle) = &self.handle {
            return Ok(handle.clone());
        }
        let socket = match &self.stream {
            Stream::Tcp(stream) => SockRef::from(stream).try_clone(),
            Stream::Unix(stream) => SockRef::from(stream).try_clone(),
            Stream::Tls(stream) => SockRef::from(stream.get_ref().0).try_clone(),
        };
        Ok(self.handle.insert(Arc::new(SocketHandle::new(socket?))).clone())
    }

    /// The handle by which others may send messages; `None` if the connection is encrypted, or there is no handle.
    pub fn direct(&mut self) -> Option<Arc<SocketHandle>> {
        if matches!(self.stream, Stream::Tls(_)) { None } else { self.handle().ok() }
    }

    /// Sends what was appended to `output`.
    pub async fn flush(&mut self) -> Result<(), LaneError> {
        if !self.output.is_empty() {
            self.stream.write_all_buf(&mut self.output).await?;
            if self.output.capacity() > 4 * READ_LEN {
                self.output = BytesMut::with_capacity(4096);
            }
        }
        if matches!(self.stream, Stream::Tls(_)) {
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// Sends what was appended to `output` and takes in what comes meanwhile: a server that cannot get rid of its answers
    /// stops reading, and then neither side would go on.
    pub async fn flush_while_reading(&mut self) -> Result<(), LaneError> {
        while !self.output.is_empty() {
            self.input.reserve(READ_LEN / 8);
            let Lane { stream, input, output, .. } = self;
            let received = poll_fn(|cx| {
                if let Poll::Ready(sent) = Pin::new(&mut *stream).poll_write(cx, output) {
                    return Poll::Ready(sent.map(Progress::Sent));
                }
                pin!(stream.read_buf(input)).poll(cx).map_ok(Progress::Received)
            })
            .await?;
            match received {
                Progress::Sent(0) | Progress::Received(0) => return Err(LaneError::Closed),
                Progress::Sent(len) => self.output.advance(len),
                Progress::Received(_) => {}
            }
        }
        self.flush().await
    }

    /// Receives more into `input`.
    pub async fn fill(&mut self) -> Result<(), LaneError> {
        self.input.reserve(READ_LEN / 8);
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(LaneError::Closed),
            _ => Ok(()),
        }
    }

    /// The next complete frame, which stays in `input` until [`Lane::consume`].
    pub async fn next_frame(&mut self) -> Result<Head, LaneError> {
        loop {
            if let Some(head) = frame::peek(&self.input, DECODE_LEN_MAX)?
                && self.input.len() >= head.len
            {
                return Ok(head);
            }
            self.fill().await?;
        }
    }

    pub fn body(&self, head: Head) -> &[u8] {
        &self.input[HEAD_LEN..head.len]
    }

    pub fn consume(&mut self, head: Head) {
        self.input.advance(head.len);
    }

    /// Makes the object ids in a description at the head of the input those that clients know.
    pub async fn tell_object_ids(&mut self, head: Head) -> Result<(), WireError> {
        match &mut self.object_ids {
            Some(ids) => ids.tell(head.tag, &mut self.input[HEAD_LEN..head.len]).await,
            None => Ok(()),
        }
    }

    /// The name of a statement on this lane, preparing it if it is new: then its Parse is appended to the output and
    /// one ParseComplete has to be expected (the second value).
    pub fn prepare(
        &mut self,
        key: StatementKey,
        sql: &str,
        types: &[u32],
    ) -> Result<(StatementName, bool), WireError> {
        if let Some(name) = self.prepared_name(key) {
            return Ok((name, false));
        }
        self.prepared_count += 1;
        let name = StatementName::of(self.prepared_count);
        build::parse(&mut self.output, &name, sql, types.iter().copied())?;
        self.prepared.insert(key.under(self.read_under), self.prepared_count);
        Ok((name, true))
    }

    /// Appends the execution of a command of our own, with its parameters as text, whose meaning hangs on no setting and no role. If it is
    /// prepared first, returns by what to [`Lane::unprepare_own`] it, should that not have been reached.
    pub fn put_own(&mut self, sql: &str, params: &[&str]) -> Result<Option<StatementKey>, WireError> {
        let key = StatementKey::of(sql, &[]);
        let read_under = std::mem::take(&mut self.read_under);
        let prepared = self.prepare(key, sql, &[]);
        self.read_under = read_under;
        let (name, is_new) = prepared?;
        let params = params.iter().map(|param| Some(param.as_bytes()));
        build::bind(&mut self.output, "", &name, [], params, [])?;
        build::execute(&mut self.output, "", 0)?;
        Ok(is_new.then_some(key))
    }

    /// The types that the server gives to a statement's parameters. Nothing else may be under way.
    pub async fn param_types(
        &mut self,
        key: StatementKey,
        sql: &str,
        types: &[u32],
    ) -> Result<Vec<u32>, LaneError> {
        let (name, _) = self.prepare(key, sql, types)?;
        build::describe(&mut self.output, frontend::Target::Statement, &name)?;
        build::sync(&mut self.output);
        self.flush().await?;
        let (mut found, mut failure) = (Vec::new(), None);
        loop {
            let head = self.next_frame().await?;
            match backend::decode(head.tag, self.body(head))? {
                Backend::ParameterDescription(types) => found = types.iter().collect(),
                Backend::Error(fields) => failure = Some(Box::new(fields.to_owned())),
                Backend::ReadyForQuery(_) => {
                    self.consume(head);
                    break;
                }
                _ => {}
            }
            self.consume(head);
        }
        match failure {
            None => Ok(found),
            Some(fields) => {
                self.unprepare(key);
                Err(LaneError::Database(fields))
            }
        }
    }

    /// Appends a Bind of the unnamed portal from a statement's name and the rest of a Bind message.
    pub fn put_bind(&mut self, name: &str, rest: &[u8]) {
        let out = &mut self.output;
        out.put_u8(frontend::tag::BIND);
        out.put_u32((4 + 1 + name.len() + 1 + rest.len()) as u32);
        out.put_u8(0);
        out.put_slice(name.as_bytes());
        out.put_u8(0);
        out.put_slice(rest);
    }

    /// The name of a statement that is prepared on this lane.
    pub fn prepared_name(&self, key: StatementKey) -> Option<StatementName> {
        self.prepared.get(&key.under(self.read_under)).map(|number| StatementName::of(*number))
    }

    pub fn is_prepared(&self, key: StatementKey) -> bool {
        self.prepared.contains_key(&key.under(self.read_under))
    }

    /// A Parse failed or may not have been reached: the name is not to be relied on. If it was, the server keeps it for now.
    pub fn unprepare(&mut self, key: StatementKey) {
        self.forgotten.extend(self.prepared.remove(&key.under(self.read_under)));
    }

    /// The same for a command of our own.
    pub fn unprepare_own(&mut self, key: StatementKey) {
        self.forgotten.extend(self.prepared.remove(&key));
    }

    /// Forgets everything prepared; the caller has sent DEALLOCATE ALL or will.
    pub fn unprepare_all(&mut self) {
        self.prepared.clear();
        self.forgotten.clear();
    }

    /// Uses nothing any more that is prepared. The server keeps it for now.
    pub fn forget_prepared(&mut self) {
        self.forgotten.extend(self.prepared.drain().map(|(_, number)| number));
    }

    /// Appends what makes the server forget all that is prepared, one by one, and a Sync: of a transaction that is open, and of
    /// its portals, that leaves everything as it is.
    pub fn put_closes(&mut self) -> Result<(), WireError> {
        self.forget_prepared();
        for number in std::mem::take(&mut self.forgotten) {
            build::close(&mut self.output, frontend::Target::Statement, &StatementName::of(number))?;
        }
        build::sync(&mut self.output);
        Ok(())
    }

    /// Whether the server keeps anything prepared.
    pub fn has_prepared(&self) -> bool {
        !self.prepared.is_empty() || !self.forgotten.is_empty()
    }

    /// So many are prepared that the server's memory would fill.
    pub fn has_too_many_prepared(&self) -> bool {
        self.prepared.len() + self.forgotten.len() > PREPARED_MAX
    }

    /// Runs commands of our own by the simple protocol and drops their results.
    pub async fn command(&mut self, sql: &str) -> Result<(), LaneError> {
        self.query(sql).await.map(drop)
    }

    /// Ends the transaction that is open, if any. A late cancel request may meet the ROLLBACK itself, which then has
    /// happened not at all.
    pub async fn roll_back(&mut self) -> Result<(), LaneError> {
        for _ in 1..ROLLBACKS_MAX {
            match self.command("ROLLBACK").await {
                Err(error) if error.is_database() => tracing::debug!(%error, "roll back; trying again"),
                done => return done,
            }
        }
        self.command("ROLLBACK").await
    }

    /// Sends nothing any more, and waits until the server has closed the connection, whatever it still says.
    pub async fn close(&mut self) {
        let mut is_open = self.stream.shutdown().await.is_ok();
        while is_open {
            self.input.clear();
            is_open = self.fill().await.is_ok();
        }
    }

    /// Runs a command of our own by the simple protocol and returns its rows as text.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, LaneError> {
        build::query(&mut self.output, sql)?;
        self.flush().await?;
        self.collect(1).await
    }

    /// Collects rows until `ready` ReadyForQuery have come; the first error is returned then.
    pub async fn collect(&mut self, mut ready: u32) -> Result<Vec<Vec<Option<String>>>, LaneError> {
        let (mut rows, mut failure, mut reported) = (Vec::new(), None, Vec::new());
        while ready > 0 {
            let head = self.next_frame().await?;
            match backend::decode(head.tag, self.body(head))? {
                Backend::ParameterStatus(status) => {
                    reported.push((status.name.to_owned(), status.value.to_string()));
                }
                Backend::DataRow(values) => rows.push(
                    values
                        .iter()
                        .map(|value| value.map(|v| String::from_utf8_lossy(v).into_owned()))
                        .collect(),
                ),
                Backend::Error(fields) => {
                    failure.get_or_insert_with(|| Box::new(fields.to_owned()));
                }
                Backend::ReadyForQuery(_) => ready -= 1,
                _ => {}
            }
            self.consume(head);
        }
        self.params.extend(reported);
        match failure {
            Some(fields) => Err(LaneError::Database(fields)),
            None => Ok(rows),
        }
    }

    /// Waits for the end of one command of our own of the extended protocol.
    pub async fn command_complete(&mut self) -> Result<(), LaneError> {
        loop {
            let head = self.next_frame().await?;
            let done = match backend::decode(head.tag, self.body(head))? {
                Backend::Error(fields) => Some(Err(LaneError::Database(Box::new(fields.to_owned())))),
                Backend::CommandComplete(_) => Some(Ok(())),
                _ => None,
            };
            self.consume(head);
            if let Some(done) = done {
                return done;
            }
        }
    }

    /// Waits for a ReadyForQuery and says in which state it left the session; errors on the way are returned.
    pub async fn ready(&mut self) -> Result<(Status, Option<Box<ErrorFields>>), LaneError> {
        let mut failure = None;
        loop {
            let head = self.next_frame().await?;
            let decoded = backend::decode(head.tag, self.body(head))?;
            match decoded {
                Backend::Error(fields) => {
                    failure.get_or_insert_with(|| Box::new(fields.to_owned()));
                }
                Backend::ReadyForQuery(status) => {
                    self.consume(head);
                    return Ok((status, failure));
                }
                _ => {}
            }
            self.consume(head);
        }
    }
}

/// The name of a statement on a lane: "oc" and a number.
#[derive(Clone, Copy, Debug)]
pub struct StatementName {
    digits: [u8; 12],
    first: usize,
}

impl StatementName {
    fn of(mut number: u32) -> StatementName {
        let mut name = StatementName { digits: [0; 12], first: 12 };
        loop {
            name.first -= 1;
            name.digits[name.first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        name.first -= 2;
        name.digits[name.first..name.first + 2].copy_from_slice(b"oc");
        name
    }
}

impl std::ops::Deref for StatementName {
    type Target = str;

    fn deref(&self) -> &str {
        // Letters and digits always are.
        std::str::from_utf8(&self.digits[self.first..]).unwrap_or_default()
    }
}

/// Whether an error means that the server as a whole, and not only a statement, is going away.
pub fn is_going_away(code: SqlState) -> bool {
    matches!(code.as_str(), "57P01" | "57P02" | "57P03" | "57P05")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sending_goes_on_after_a_signal_and_fails_when_not_everything_is_taken() {
        let mut answers = vec![Ok(3), Err(io::ErrorKind::Interrupted.into()), Err(Errno::INTR.into())];
        assert!(send_whole(b"abc", |_| answers.pop().unwrap()));
        assert!(answers.is_empty());
        assert!(!send_whole(b"abc", |_| Ok(2)));
        assert!(!send_whole(b"abc", |_| Err(io::ErrorKind::WouldBlock.into())));
    }

    #[test]
    fn lack_of_files_is_no_loss() {
        for (errno, is_refusal) in [(Errno::MFILE, true), (Errno::NFILE, true), (Errno::CONNREFUSED, false)] {
            assert_eq!(LaneError::from(io::Error::from(errno)).is_refusal(), is_refusal, "{errno}");
        }
    }
}
