//! What front and term say to each other before the first message of a session, from both sides.
//!
//! The front's greeting: its length (32 bits), the session (16 bytes), its commits and the last commit of all that it has heard
//! of (64 bits each), user (16-bit length and text), and PostgreSQL's startup packet. The answer: one byte, `N` where no term
//! runs, or `Y`; then, in 17 bytes, what became of what the session has not heard of: a byte, a number of commits, a commit.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use onecopy_core::Csn;
use onecopy_log::consensus::NodeId;
use onecopy_wire::startup::{self as packets, Start, StartupPacket, VERSION_3_0};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::nodes::Node;
use crate::nodes::origins::Outcome;
use crate::nodes::term::{Entered, Running};
use crate::postgres::connect::Credentials;
use crate::server::{cancel, startup};
use crate::session::carried::Carried;
use crate::session::client::Client;
use crate::stream::Stream;
use crate::workers::Admission;

/// Bytes of a greeting, which is mostly a client's startup packet.
const GREETING_LEN_MAX: usize = 64 << 10;
const ANSWER_LEN: usize = 17;
/// How long it may take until all that is decided was read; then the front asks again.
const READ_PATIENCE: Duration = Duration::from_secs(5);
/// How long a front waits for an answer while a term begins; less than it has the patience for.
const BEGIN_PATIENCE: Duration = Duration::from_secs(1);

/// A session as its front presents it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Greeting {
    pub session: [u8; 16],
    pub commits: u64,
    pub heard: Csn,
    pub user: String,
    pub params: Vec<(String, String)>,
}

impl Greeting {
    fn encode(&self) -> io::Result<BytesMut> {
        let mut body = BytesMut::new();
        body.put_slice(&self.session);
        body.put_u64(self.commits);
        body.put_u64(self.heard.0);
        let user_len = u16::try_from(self.user.len()).map_err(io::Error::other)?;
        body.put_u16(user_len);
        body.put_slice(self.user.as_bytes());
        let params: Vec<_> = self.params.iter().map(|(name, value)| (&**name, &**value)).collect();
        packets::startup(&mut body, VERSION_3_0, &params).map_err(io::Error::other)?;
        let mut all = BytesMut::with_capacity(4 + body.len());
        all.put_u32(body.len() as u32);
        all.unsplit(body);
        Ok(all)
    }

    fn decode(mut body: &[u8]) -> Option<(Greeting, Start)> {
        let session = *body.first_chunk()?;
        body.advance(16);
        let (commits, heard) = (body.try_get_u64().ok()?, Csn(body.try_get_u64().ok()?));
        let user_len = usize::from(body.try_get_u16().ok()?);
        let (user, packet) = body.split_at_checked(user_len)?;
        let user = std::str::from_utf8(user).ok()?.to_owned();
        let Ok(Some((StartupPacket::Start(start), _))) = packets::decode(packet) else { return None };
        let params = start.params.clone();
        Some((Greeting { session, commits, heard, user, params }, start))
    }
}

/// The front's side: presents a session; `None` if the node does not lead, or cannot serve yet.
///
/// # Errors
/// The connection.
pub async fn present(stream: &mut Stream, greeting: &Greeting) -> io::Result<Option<Outcome>> {
    stream.write_all(&greeting.encode()?).await?;
    stream.flush().await?;
    if stream.read_u8().await? != b'Y' {
        return Ok(None);
    }
    let mut answer = [0; ANSWER_LEN];
    stream.read_exact(&mut answer).await?;
    let mut answer = &answer[..];
    let (kind, number, csn) = (answer.get_u8(), answer.get_u64(), Csn(answer.get_u64()));
    match kind {
        0 => Ok(Some(Outcome::Nothing)),
        1 => Ok(Some(Outcome::Committed { number, csn })),
        2 => Ok(Some(Outcome::Unknown)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an answer of no known kind")),
    }
}

fn put_outcome(out: &mut BytesMut, outcome: Outcome) {
    let (kind, number, csn) = match outcome {
        Outcome::Nothing => (0, 0, Csn(0)),
        Outcome::Committed { number, csn } => (1, number, csn),
        Outcome::Unknown => (2, 0, Csn(0)),
    };
    out.put_u8(kind);
    out.put_u64(number);
    out.put_u64(csn.0);
}

/// The term's side: takes the session on, if a term runs here.
///
/// # Errors
/// The connection, or what is said over it.
pub async fn take(node: &Arc<Node>, mut stream: Stream, admission: Admission) -> io::Result<()> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "no greeting of a front");
    let len = stream.read_u32().await? as usize;
    if len > GREETING_LEN_MAX {
        return Err(wrong());
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await?;
    let (greeting, start) = Greeting::decode(&body).ok_or_else(wrong)?;
    let (Some(running), Some(who), Some(entered)) = enter(running(node).await, &greeting) else {
        stream.write_all(b"N").await?;
        return stream.flush().await;
    };
    // Whoever waits does not keep the term from ending.
    let shared = running.shared.clone();
    let waiting = Arc::downgrade(&running);
    drop(running);
    // What an earlier session of this front committed here is in the log when all that is decided is: it may have ended before.
    let decided = Csn(shared.scheduler.status().decided).max(node.log.held().last);
    let read = tokio::time::timeout(READ_PATIENCE, node.origins.read_up_to(decided)).await;
    let (Ok(()), Some(running)) = (read, waiting.upgrade()) else {
        stream.write_all(b"N").await?;
        return stream.flush().await;
    };
    let outcome = match node.origins.outcome(&greeting.session, greeting.commits, greeting.heard) {
        // It never happens, and of what else the session did nothing is known.
        Outcome::Committed { csn, .. } if node.log.held().annulled.contains(&csn) => Outcome::Unknown,
        outcome => outcome,
    };
    let mut answer = BytesMut::new();
    answer.put_u8(b'Y');
    put_outcome(&mut answer, outcome);
    stream.write_all(&answer).await?;
    stream.flush().await?;
    let commits = match outcome {
        Outcome::Committed { number, .. } => number,
        Outcome::Nothing | Outcome::Unknown => greeting.commits,
    };
    let carried = Carried::new(greeting.session, commits);
    running.workers.serve(stream, admission, move |stream| {
        let client = Client::new(stream, BytesMut::new(), shared.limits.message_bytes_max);
        async move {
            startup::begin_carried(client, start, who, carried, shared).await;
            drop(entered);
        }
    });
    Ok(())
}

/// The term that runs here, who the client is there, and that no earlier session of it runs any more.
fn enter(
    running: Option<Arc<Running>>,
    greeting: &Greeting,
) -> (Option<Arc<Running>>, Option<Credentials>, Option<Entered>) {
    let who = running.as_ref().and_then(|running| running.shared.door.users.credentials_of(&greeting.user));
    let entered =
        running.as_ref().filter(|_| who.is_some()).and_then(|running| running.enter(greeting.session));
    (running, who, entered)
}

/// What runs here, if this node leads; waited for while it begins, so that all who wait for it need not ask again and again, on
/// the thread on which the nodes hear of each other.
async fn running(node: &Node) -> Option<Arc<Running>> {
    let mut term = node.term.subscribe();
    if *node.leader.borrow() == Some(NodeId(node.settings.this)) {
        let begun = term.wait_for(Option::is_some);
        return tokio::time::timeout(BEGIN_PATIENCE, begun).await.ok()?.ok()?.clone();
    }
    term.borrow_and_update().clone()
}

/// The front's side of a cancel request: by what the term's session is cancelled.
///
/// # Errors
/// The connection.
pub async fn ask_to_cancel(stream: &mut Stream, pid: u32, key: &[u8]) -> io::Result<()> {
    let mut request = BytesMut::new();
    packets::cancel_request(&mut request, pid, key).map_err(io::Error::other)?;
    stream.write_all(&request).await?;
    stream.flush().await?;
    // It is closed when the request was carried out.
    stream.read_to_end(&mut Vec::new()).await.map(drop)
}

/// The term's side.
///
/// # Errors
/// The connection, or what is said over it.
pub async fn cancel(node: &Arc<Node>, mut stream: Stream) -> io::Result<()> {
    let mut input = BytesMut::new();
    let (pid, key) = loop {
        match packets::decode(&input).map_err(io::Error::other)? {
            Some((StartupPacket::Cancel { pid, key }, _)) => break (pid, key.to_vec()),
            Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "no cancel request")),
            None => {}
        }
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
    };
    let shared = node.term.borrow().as_ref().map(|running| running.shared.clone());
    if let Some(shared) = shared {
        cancel::cancel(&shared, pid, &key).await;
    }
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_says_who_comes_and_what_it_has_heard() {
        let params = vec![("user".to_owned(), "ada".to_owned()), ("database".to_owned(), "shop".to_owned())];
        let greeting = Greeting { session: [7; 16], commits: 3, heard: Csn(41), user: "ada".into(), params };
        let encoded = greeting.encode().unwrap();
        let (decoded, start) = Greeting::decode(&encoded[4..]).unwrap();
        assert_eq!((decoded, start.database()), (greeting, "shop"));
        for len in 4..encoded.len() {
            assert!(Greeting::decode(&encoded[4..len]).is_none(), "cut at {len}");
        }
    }

    #[tokio::test]
    async fn a_node_that_does_not_lead_says_so_and_one_that_does_says_what_was_committed() {
        for outcome in [
            None,
            Some(Outcome::Nothing),
            Some(Outcome::Committed { number: 4, csn: Csn(9) }),
            Some(Outcome::Unknown),
        ] {
            let (a, mut b) = tokio::net::UnixStream::pair().unwrap();
            let mut answer = BytesMut::from(if outcome.is_some() { &b"Y"[..] } else { &b"N"[..] });
            if let Some(outcome) = outcome {
                put_outcome(&mut answer, outcome);
            }
            b.write_all(&answer).await.unwrap();
            let params = vec![("user".to_owned(), "ada".to_owned())];
            let greeting =
                Greeting { session: [0; 16], commits: 3, heard: Csn(8), user: "ada".into(), params };
            assert_eq!(present(&mut Stream::Unix(a), &greeting).await.unwrap(), outcome);
        }
    }
}
