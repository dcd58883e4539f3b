//! What nodes say to each other about the log: one connection in each direction, made anew whenever it is lost. What
//! cannot be sent is dropped: whoever sends it repeats it, as over any network.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hashbrown::HashMap;
use onecopy_core::Csn;
use onecopy_log::Network;
use onecopy_log::consensus::{MESSAGE_LEN_MAX, NodeId};
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::clock::Deadline;
use crate::nodes::handshake::{self, Purpose};
use crate::settings::{NodeSettings, NodesSettings};
use crate::stream::Stream;

/// Messages that may wait for one node.
const WAITING_MAX: usize = 4096;
/// Bytes that are put together for one write.
const WRITE_LEN: usize = 256 * 1024;
const RECONNECT_MIN: Duration = Duration::from_millis(20);
const RECONNECT_MAX: Duration = Duration::from_millis(500);
/// How long connecting and proving may take, and how long what was sent may stay unacknowledged: a connection into the void
/// keeps nobody from being reached again.
const PATIENCE: Duration = Duration::from_secs(2);

const KIND_LOG: u8 = 1;
const KIND_KEEP: u8 = 2;
const HEAD_LEN: usize = 5;

/// What one node says to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// A message of the log's.
    Log(Bytes),
    /// The leader's: no replica needs commits before this one any more.
    Keep(Csn),
}

impl Said {
    fn put(&self, out: &mut BytesMut) {
        let (kind, len) = match self {
            Said::Log(message) => (KIND_LOG, message.len()),
            Said::Keep(_) => (KIND_KEEP, 8),
        };
        out.put_u32(len as u32);
        out.put_u8(kind);
        match self {
            Said::Log(message) => out.put_slice(message),
            Said::Keep(csn) => out.put_u64(csn.0),
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
        let mut body = input.split_to(len).freeze();
        match (kind, len) {
            (KIND_LOG, _) => Ok(Some(Said::Log(body))),
            (KIND_KEEP, 8) => Ok(Some(Said::Keep(Csn(body.get_u64())))),
            _ => wrong("a message of no known kind"),
        }
    }
}

/// The way to all other nodes.
#[derive(Clone)]
pub struct Links {
    outboxes: Arc<HashMap<NodeId, mpsc::Sender<Said>>>,
    /// Until when nothing is said about the log.
    silent_until: Arc<Mutex<Option<Deadline>>>,
}

impl Links {
    /// Begins to keep connections to all others; to be called on the event loop that is to carry them.
    pub fn start(settings: &Arc<NodesSettings>) -> Links {
        let others = settings.nodes.iter().filter(|node| node.id != settings.this);
        let outboxes = others.map(|node| {
            let (outbox, waiting) = mpsc::channel(WAITING_MAX);
            tokio::spawn(keep_connected(settings.clone(), node.clone(), waiting));
            (NodeId(node.id), outbox)
        });
        Links { outboxes: Arc::new(outboxes.collect()), silent_until: Arc::default() }
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
        for outbox in self.outboxes.values() {
            // A node that is behind hears the next one.
            let _ = outbox.try_send(said.clone());
        }
    }
}

impl Network for Links {
    fn send(&self, to: NodeId, message: Bytes) {
        if let Some(outbox) = self.outboxes.get(&to).filter(|_| !self.is_silent()) {
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
        handshake::call(&mut stream, &settings.secret, settings.this, purpose).await?;
        Ok(stream)
    };
    tokio::time::timeout(PATIENCE, opening).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Answers whoever connects: which node it is, and what for.
pub async fn answer(settings: &NodesSettings, stream: TcpStream) -> io::Result<(Stream, NodeId, Purpose)> {
    set_patience(&stream)?;
    let mut stream = Stream::Tcp(stream);
    let answering = handshake::answer(&mut stream, &settings.secret);
    let (from, purpose) = tokio::time::timeout(PATIENCE, answering)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    Ok((stream, NodeId(from), purpose))
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

async fn keep_connected(settings: Arc<NodesSettings>, to: NodeSettings, mut waiting: mpsc::Receiver<Said>) {
    let mut pause = RECONNECT_MIN;
    let mut is_news = true;
    loop {
        match connect(&settings, &to, Purpose::Log).await {
            Ok(stream) => {
                tracing::info!(node = to.id, "connected to another node");
                (pause, is_news) = (RECONNECT_MIN, true);
                // What waited is old by now.
                while waiting.try_recv().is_ok() {}
                match carry(stream, &mut waiting).await {
                    Ok(()) => return,
                    Err(error) => tracing::warn!(node = to.id, %error, "lost another node"),
                }
            }
            Err(error) if std::mem::take(&mut is_news) => {
                tracing::warn!(node = to.id, %error, "connect to another node; trying again");
            }
            Err(error) => tracing::debug!(node = to.id, %error, "connect to another node; trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_MAX);
    }
}

/// Sends what is said until the connection is lost; `Ok` if there is nobody left who says anything.
async fn carry(mut stream: Stream, waiting: &mut mpsc::Receiver<Said>) -> io::Result<()> {
    let mut output = BytesMut::new();
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
        let said = [Said::Log(Bytes::from_static(b"one")), Said::Keep(Csn(7)), Said::Log(Bytes::new())];
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
        for wrong in [&[0, 0, 0, 1, 9, 0][..], &[255, 0, 0, 0, 1][..], &[0, 0, 0, 1, 2, 0][..]] {
            assert!(Said::take(&mut BytesMut::from(wrong)).is_err(), "{wrong:?}");
        }
    }
}
