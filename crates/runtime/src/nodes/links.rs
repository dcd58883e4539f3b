//! What nodes say to each other about the log: one connection in each direction, made anew whenever it is lost. What
//! cannot be sent is dropped: whoever sends it repeats it, as over any network.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hashbrown::HashMap;
use onecopy_core::Csn;
use onecopy_log::Network;
use onecopy_log::consensus::{MESSAGE_LEN_MAX, NODES_MAX, NodeId};
use parking_lot::{Mutex, RwLock};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::clock::Deadline;
use crate::nodes::handshake::{self, Purpose};
use crate::server::tls::BetweenNodes;
use crate::settings::{NodeSettings, NodesSettings};
use crate::stream::Stream;

/// Nodes to which connections are kept: no more can share a log, and some may have left.
const OTHERS_MAX: usize = 2 * NODES_MAX;
/// Messages that may wait for one node.
const WAITING_MAX: usize = 4096;
/// Bytes of the longest message that is copied out of the buffer in which it came.
const COPIED_MAX: usize = 64 * 1024;
/// Bytes that are put together for one write.
const WRITE_LEN: usize = 256 * 1024;
const RECONNECT_MIN: Duration = Duration::from_millis(20);
const RECONNECT_MAX: Duration = Duration::from_millis(500);
/// How long connecting and proving may take, and how long what was sent may stay unacknowledged: a connection into the void
/// keeps nobody from being reached again.
const PATIENCE: Duration = Duration::from_secs(2);

const KIND_LOG: u8 = 1;
const KIND_KEEP: u8 = 2;
const KIND_PLACE: u8 = 3;
const KIND_SITE: u8 = 4;
const HEAD_LEN: usize = 5;
/// A node's number, its port, and whether it is to count for majorities.
const PLACE_HEAD_LEN: usize = 8 + 2 + 1;
/// Bytes of the longest name of a host.
const HOST_LEN_MAX: usize = 255;

/// What one node says to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// A message of the log's.
    Log(Bytes),
    /// The leader's: no replica needs commits before this one any more.
    Keep(Csn),
    /// Where a node is: first of all on each connection the one that says so, and again and again all that it knows of, since
    /// nodes come after others were started.
    Place(NodeSettings),
    /// A message of one site to another.
    Site(Bytes),
}

impl Said {
    fn put(&self, out: &mut BytesMut) {
        let (kind, len) = match self {
            Said::Log(message) => (KIND_LOG, message.len()),
            Said::Keep(_) => (KIND_KEEP, 8),
            Said::Place(place) => (KIND_PLACE, PLACE_HEAD_LEN + place.host.len()),
            Said::Site(message) => (KIND_SITE, message.len()),
        };
        out.put_u32(len as u32);
        out.put_u8(kind);
        match self {
            Said::Log(message) | Said::Site(message) => out.put_slice(message),
            Said::Keep(csn) => out.put_u64(csn.0),
            Said::Place(NodeSettings { id, host, port, voting }) => {
                out.put_u64(*id);
                out.put_u16(*port);
                out.put_u8(u8::from(*voting));
                out.put_slice(host.as_bytes());
            }
        }
    }

    /// Takes the first one, if all of it is there.
    fn take(input: &mut BytesMut) -> io::Result<Option<Said>> {
        let Some(mut head) = input.get(..HEAD_LEN) else { return Ok(None) };
        let (len, kind) = (head.get_u32() as usize, head.get_u8());
        let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if len > MESSAGE_LEN_MAX {
            return wrong("a message is too long");
        }
        if input.len() < HEAD_LEN + len {
            input.reserve(HEAD_LEN + len - input.len());
            return Ok(None);
        }
        input.advance(HEAD_LEN);
        // A message that kept the buffer in which it came would have another one made for the next read.
        let mut body = match len {
            ..=COPIED_MAX => {
                let copy = Bytes::copy_from_slice(&input[..len]);
                input.advance(len);
                copy
            }
            _ => input.split_to(len).freeze(),
        };
        match (kind, len) {
            (KIND_LOG, _) => Ok(Some(Said::Log(body))),
            (KIND_SITE, _) => Ok(Some(Said::Site(body))),
            (KIND_KEEP, 8) => Ok(Some(Said::Keep(Csn(body.get_u64())))),
            (KIND_PLACE, _) if (PLACE_HEAD_LEN + 1..=PLACE_HEAD_LEN + HOST_LEN_MAX).contains(&len) => {
                let (id, port, voting) = (body.get_u64(), body.get_u16(), body.get_u8() != 0);
                match String::from_utf8(body.to_vec()) {
                    Ok(host) => Ok(Some(Said::Place(NodeSettings { id, host, port, voting }))),
                    Err(_) => wrong("a host whose name is no text"),
                }
            }
            _ => wrong("a message of no known kind"),
        }
    }
}

/// Where each node is: those of the configuration, and those that have come since.
#[derive(Clone)]
pub struct Places(Arc<RwLock<BTreeMap<u64, NodeSettings>>>);

impl Places {
    fn new(nodes: &[NodeSettings]) -> Places {
        Places(Arc::new(RwLock::new(nodes.iter().map(|node| (node.id, node.clone())).collect())))
    }

    /// Where a node is, if that is known.
    pub fn of(&self, node: u64) -> Option<NodeSettings> {
        self.0.read().get(&node).cloned()
    }

    /// All that are known, to be said to others.
    pub fn all(&self) -> Vec<Said> {
        self.0.read().values().cloned().map(Said::Place).collect()
    }
}

/// The way to all other nodes.
#[derive(Clone)]
pub struct Links {
    settings: Arc<NodesSettings>,
    pub places: Places,
    outboxes: Arc<RwLock<HashMap<NodeId, mpsc::Sender<Said>>>>,
    /// That carries the connections.
    event_loop: Handle,
    /// Until when nothing is said about the log.
    silent_until: Arc<Mutex<Option<Deadline>>>,
}

impl Links {
    /// Begins to keep connections to all others; to be called on the event loop that is to carry them.
    pub fn start(settings: &Arc<NodesSettings>) -> Links {
        let links = Links {
            settings: settings.clone(),
            places: Places::new(&settings.nodes),
            outboxes: Arc::default(),
            event_loop: Handle::current(),
            silent_until: Arc::default(),
        };
        settings.nodes.iter().filter(|node| node.id != settings.this).for_each(|node| links.keep(node.id));
        links
    }

    /// Keeps a connection to another node.
    fn keep(&self, node: u64) {
        let (outbox, waiting) = mpsc::channel(WAITING_MAX);
        self.outboxes.write().insert(NodeId(node), outbox);
        self.event_loop.spawn(keep_connected(self.settings.clone(), self.places.clone(), node, waiting));
    }

    /// A node is said to be somewhere, by node `from`.
    pub fn learn(&self, from: NodeId, place: NodeSettings) {
        let node = place.id;
        let is_given = self.settings.node(node).is_some();
        if is_given && from == NodeId(node) && !place.voting {
            // Whatever this node was told: once it counted, that could not be taken back.
            self.places.0.write().entry(node).and_modify(|known| known.voting = false);
        }
        // What is configured stands, and else what a node says of itself.
        let is_known = is_given || from != NodeId(node) && self.places.of(node).is_some();
        if node == 0 || is_known || self.outboxes.read().len() >= OTHERS_MAX {
            return;
        }
        let before = self.places.0.write().insert(node, place.clone());
        if before.is_none() {
            self.keep(node);
        }
        if before.as_ref() != Some(&place) {
            tracing::info!(node, address = format!("{}:{}", place.host, place.port), "another node has come");
            // At once: whoever told this one may be the only one that knows it, and may be gone the next moment.
            self.places.all().iter().for_each(|place| self.say(place));
        }
    }

    /// Says nothing about the log for a while, so that the others take this node for lost and elect another one.
    pub fn be_silent(&self, long: Duration) {
        *self.silent_until.lock() = Some(Deadline::after(long));
    }

    fn is_silent(&self) -> bool {
        let mut until = self.silent_until.lock();
        *until = until.filter(|until| !until.has_passed());
        until.is_some()
    }

    /// Says something to everybody else.
    pub fn say(&self, said: &Said) {
        for outbox in self.outboxes.read().values() {
            // A node that is behind hears the next one.
            let _ = outbox.try_send(said.clone());
        }
    }

    /// Says something to one other node, if that is known.
    pub fn tell(&self, to: NodeId, said: Said) {
        if let Some(outbox) = self.outboxes.read().get(&to) {
            let _ = outbox.try_send(said);
        }
    }
}

impl Network for Links {
    fn send(&self, to: NodeId, message: Bytes) {
        if let Some(outbox) = self.outboxes.read().get(&to).filter(|_| !self.is_silent()) {
            // Raft repeats what matters.
            let _ = outbox.try_send(Said::Log(message));
        }
    }
}

/// A connection to another node, over which each knows that the other is of the cluster.
pub async fn connect(settings: &NodesSettings, to: &NodeSettings, purpose: Purpose) -> io::Result<Stream> {
    let opening = async {
        let stream = TcpStream::connect((to.host.as_str(), to.port)).await?;
        set_patience(&stream)?;
        let mut stream = Stream::Tcp(stream);
        handshake::call(&mut stream, &settings.secret, settings.this, to.id, purpose).await?;
        match (purpose, stream) {
            (Purpose::Log, Stream::Tcp(stream)) => {
                let (mut stream, binding) = between_nodes()?.connect(stream).await?;
                handshake::confirm(&mut stream, &settings.secret, &binding, true).await?;
                Ok(stream)
            }
            (_, stream) => Ok(stream),
        }
    };
    tokio::time::timeout(PATIENCE, opening).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Answers whoever connects: which node it is, and what for.
pub async fn answer(settings: &NodesSettings, stream: TcpStream) -> io::Result<(Stream, NodeId, Purpose)> {
    set_patience(&stream)?;
    let answering = async {
        let mut stream = Stream::Tcp(stream);
        let (from, purpose) = handshake::answer(&mut stream, &settings.secret, settings.this).await?;
        match (purpose, stream) {
            (Purpose::Log, Stream::Tcp(stream)) => {
                let (mut stream, binding) = between_nodes()?.accept(stream).await?;
                handshake::confirm(&mut stream, &settings.secret, &binding, false).await?;
                Ok((stream, NodeId(from), purpose))
            }
            (_, stream) => Ok((stream, NodeId(from), purpose)),
        }
    };
    tokio::time::timeout(PATIENCE, answering).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// What encrypts connections of this process: its certificate is made once.
fn between_nodes() -> io::Result<&'static BetweenNodes> {
    static BETWEEN: OnceLock<BetweenNodes> = OnceLock::new();
    if let Some(between) = BETWEEN.get() {
        return Ok(between);
    }
    // Of two that are made at once one is kept.
    let made = BetweenNodes::new()?;
    Ok(BETWEEN.get_or_init(|| made))
}

fn set_patience(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(1))
        .with_interval(Duration::from_secs(1))
        .with_retries(2);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(PATIENCE))
}

async fn keep_connected(
    settings: Arc<NodesSettings>,
    places: Places,
    to: u64,
    mut waiting: mpsc::Receiver<Said>,
) {
    let here = settings.node(settings.this).cloned().map(Said::Place);
    let mut pause = RECONNECT_MIN;
    let mut is_news = true;
    loop {
        let Some(there) = places.of(to) else { return };
        match connect(&settings, &there, Purpose::Log).await {
            Ok(stream) => {
                tracing::info!(node = to, "connected to another node");
                (pause, is_news) = (RECONNECT_MIN, true);
                // What waited is old by now.
                while waiting.try_recv().is_ok() {}
                match carry(stream, here.as_ref(), &mut waiting).await {
                    Ok(()) => return,
                    Err(error) => tracing::warn!(node = to, %error, "lost another node"),
                }
            }
            Err(error) if std::mem::take(&mut is_news) => {
                tracing::warn!(node = to, %error, "connect to another node; trying again");
            }
            Err(error) => tracing::debug!(node = to, %error, "connect to another node; trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_MAX);
    }
}

/// Sends what is said until the connection is lost; `Ok` if there is nobody left who says anything.
async fn carry(
    mut stream: Stream,
    first: Option<&Said>,
    waiting: &mut mpsc::Receiver<Said>,
) -> io::Result<()> {
    let mut output = BytesMut::new();
    if let Some(first) = first {
        first.put(&mut output);
        stream.write_all_buf(&mut output).await?;
        stream.flush().await?;
    }
    let mut silence = [0; 1];
    loop {
        tokio::select! {
            said = waiting.recv() => {
                let Some(said) = said else { return Ok(()) };
                said.put(&mut output);
            }
            // Nothing is ever said in this direction: it ends, then.
            _ = stream.read(&mut silence) => return Err(io::ErrorKind::ConnectionReset.into()),
        }
        while output.len() < WRITE_LEN {
            let Ok(said) = waiting.try_recv() else { break };
            said.put(&mut output);
        }
        stream.write_all_buf(&mut output).await?;
        stream.flush().await?;
    }
}

/// Hears another node out, until its connection is lost.
pub async fn hear(mut stream: Stream, mut on_said: impl FnMut(Said)) -> io::Result<()> {
    let mut input = BytesMut::with_capacity(WRITE_LEN);
    loop {
        while let Some(said) = Said::take(&mut input)? {
            on_said(said);
        }
        input.reserve(WRITE_LEN / 4);
        if stream.read_buf(&mut input).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_in_whatever_pieces_it_comes() {
        let here = NodeSettings { id: 4, host: "db4.example.org".into(), port: 6433, voting: false };
        let site = Said::Site(Bytes::from_static(b"two"));
        let said = [
            Said::Log(Bytes::from_static(b"one")),
            Said::Keep(Csn(7)),
            Said::Place(here),
            site,
            Said::Log(Bytes::new()),
        ];
        let mut all = BytesMut::new();
        said.iter().for_each(|said| said.put(&mut all));
        let (mut input, mut heard) = (BytesMut::new(), Vec::new());
        for byte in all {
            input.put_u8(byte);
            heard.extend(Said::take(&mut input).unwrap());
        }
        assert_eq!(heard, said);
    }

    #[test]
    fn what_is_no_message_ends_the_connection() {
        for wrong in [
            &[0, 0, 0, 1, 9, 0][..],
            &[255, 0, 0, 0, 1][..],
            &[0, 0, 0, 1, 2, 0][..],
            &[0, 0, 0, 2, 3, 0, 1][..],
            &[0, 0, 0, 12, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 1, 0xff][..],
        ] {
            assert!(Said::take(&mut BytesMut::from(wrong)).is_err(), "{wrong:?}");
        }
    }
}
