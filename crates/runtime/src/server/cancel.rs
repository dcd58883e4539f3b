//! Cancel requests: whose they are, and where their statement is at this moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use hashbrown::HashMap;
use onecopy_core::{Event, OpId, ReplicaId, SessionId, TxnId};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::errors::Cancelled;
use crate::lane::LaneError;
use crate::postgres::connect::Connector;
use crate::scheduled::Spread;
use crate::server::Shared;

/// Where a session's statement is.
#[derive(Clone, Default)]
pub enum Whereabouts {
    /// Nothing is under way.
    #[default]
    Idle,
    /// It waits in the core.
    Waiting { txn: TxnId, op: OpId },
    /// It waits for an advisory lock, perhaps in a transaction; the other wakes it.
    Locking { txn: Option<TxnId>, wake: Arc<Notify> },
    /// A replica executes it.
    OnLane { replica: ReplicaId, backend: Arc<Backend> },
    /// It waits in the core, or every replica executes it.
    Everywhere { op: OpId, spread: Arc<Spread> },
}

/// The server's process behind a lane, as cancel requests name it. It is told to cancel whatever it executes when they
/// arrive, so a lane is not lent to anybody else while one is under way.
#[derive(Debug, Default)]
pub struct Backend {
    pub pid: u32,
    pub key: Bytes,
    /// The transaction that is open on the lane; 0: none that the scheduler knows.
    serves: AtomicU64,
    requests: AtomicUsize,
    all_arrived: Notify,
    /// Nobody knows whether a request will still arrive.
    is_doubtful: AtomicBool,
}

impl Backend {
    pub fn new(pid: u32, key: Bytes) -> Backend {
        Backend { pid, key, ..Backend::default() }
    }

    /// A transaction is opened on the lane, or none is open there any more.
    pub fn serve(&self, txn: Option<TxnId>) {
        self.serves.store(txn.map_or(0, |txn| txn.0), Ordering::Relaxed);
    }

    /// Whose transaction is open on the lane.
    pub fn serves(&self) -> Option<TxnId> {
        let txn = self.serves.load(Ordering::Relaxed);
        (txn != 0).then_some(TxnId(txn))
    }

    /// Whether the lane can go to somebody else at once.
    pub fn is_quiet(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0 && !self.is_doubtful.load(Ordering::Acquire)
    }

    /// Waits until no request is under way; says whether the lane can go to somebody else then.
    pub async fn become_quiet(&self) -> bool {
        loop {
            let all_arrived = self.all_arrived.notified();
            if self.requests.load(Ordering::Acquire) == 0 {
                return !self.is_doubtful.load(Ordering::Acquire);
            }
            all_arrived.await;
        }
    }
}

/// A cancel request that is under way, until this is dropped.
pub struct Request {
    backend: Arc<Backend>,
    has_arrived: bool,
}

impl Request {
    pub fn to(backend: &Arc<Backend>) -> Request {
        backend.requests.fetch_add(1, Ordering::AcqRel);
        Request { backend: backend.clone(), has_arrived: false }
    }

    /// The server has passed it on.
    pub fn arrived(mut self) {
        self.has_arrived = true;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.has_arrived {
            self.backend.is_doubtful.store(true, Ordering::Release);
        }
        if self.backend.requests.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.backend.all_arrived.notify_waiters();
        }
    }
}

/// A process on which something is to be cancelled; its lane is not lent on before that has arrived.
pub struct Target {
    replica: ReplicaId,
    backend: Arc<Backend>,
    request: Request,
}

impl Target {
    /// To be made while the process executes what is to be cancelled.
    pub fn new(replica: ReplicaId, backend: &Arc<Backend>) -> Target {
        Target { replica, backend: backend.clone(), request: Request::to(backend) }
    }

    /// Sends the request, which takes as long as the server needs to pass it on.
    pub fn cancel(self, shared: &Shared) -> impl Future<Output = ()> + Send + 'static {
        let connector = shared.pools[usize::from(self.replica.0)].connector.clone();
        async move {
            match connector.in_time(pass_on(&connector, &self.backend)).await {
                Ok(()) => self.request.arrived(),
                Err(error) => tracing::warn!(%error, "send a cancel request to a replica"),
            }
        }
    }
}

/// One session as cancel requests see it.
pub struct Cancellable {
    session: SessionId,
    at: Mutex<Whereabouts>,
    /// Why a statement's waiting was given up, if it still waited then.
    cause: Mutex<Option<(TxnId, OpId, Cancelled)>>,
}

impl Cancellable {
    fn new(session: SessionId) -> Cancellable {
        Cancellable { session, at: Mutex::default(), cause: Mutex::default() }
    }

    pub fn set(&self, at: Whereabouts) {
        *self.at.lock() = at;
    }

    /// Where the statement is; if on lanes, those stay with this session as long as the targets live.
    fn aim(&self) -> (Whereabouts, Vec<Target>) {
        let at = self.at.lock();
        let targets = match &*at {
            Whereabouts::OnLane { replica, backend } => vec![Target::new(*replica, backend)],
            Whereabouts::Everywhere { op, spread } => spread.executing(*op),
            _ => Vec::new(),
        };
        (at.clone(), targets)
    }

    pub fn note_cause(&self, txn: TxnId, op: OpId, cause: Cancelled) {
        *self.cause.lock() = Some((txn, op, cause));
    }

    /// The core gives up only what still waits. What was noted for a statement that did not wait any more says nothing about
    /// another one.
    pub fn take_cause(&self, txn: TxnId, op: OpId) -> Option<Cancelled> {
        let cause = self.cause.lock().take();
        cause.filter(|(of, at, _)| (*of, *at) == (txn, op)).map(|(_, _, cause)| cause)
    }
}

/// A session's number and secret.
type Key = (u32, Vec<u8>);

/// All sessions by their cancel keys.
#[derive(Default)]
pub struct Cancels {
    sessions: Mutex<HashMap<Key, Arc<Cancellable>>>,
}

impl Cancels {
    pub fn register(&self, id: SessionId, pid: u32, key: &[u8]) -> Arc<Cancellable> {
        let session = Arc::new(Cancellable::new(id));
        self.sessions.lock().insert((pid, key.to_vec()), session.clone());
        session
    }

    pub fn forget(&self, pid: u32, key: &[u8]) {
        self.sessions.lock().remove(&(pid, key.to_vec()));
    }

    /// Where the statements of all sessions are.
    pub fn whereabouts(&self) -> Vec<(SessionId, Whereabouts)> {
        let sessions = self.sessions.lock();
        sessions.values().map(|session| (session.session, session.at.lock().clone())).collect()
    }

    fn find(&self, pid: u32, key: &[u8]) -> Option<Arc<Cancellable>> {
        self.sessions.lock().get(&(pid, key.to_vec())).cloned()
    }
}

/// Carries out a cancel request. Nothing is answered, and a wrong key is ignored.
pub async fn cancel(shared: &Shared, pid: u32, key: &[u8]) {
    let Some(session) = shared.cancels.find(pid, key) else { return };
    let (at, targets) = session.aim();
    match at {
        Whereabouts::Idle | Whereabouts::OnLane { .. } => {}
        Whereabouts::Waiting { txn, op } => {
            session.note_cause(txn, op, Cancelled::Client);
            shared.scheduler.handle(Event::Cancel { txn, op });
        }
        Whereabouts::Locking { wake, .. } => wake.notify_one(),
        Whereabouts::Everywhere { op, spread } => {
            session.note_cause(spread.txn, op, Cancelled::Client);
            shared.scheduler.handle(Event::Cancel { txn: spread.txn, op });
        }
    }
    // One after another, a silent replica would hold up the others.
    let mut under_way: JoinSet<()> = targets.into_iter().map(|target| target.cancel(shared)).collect();
    while under_way.join_next().await.is_some() {}
}

/// Sends a request, and waits until the server has passed it on: then it closes the connection.
async fn pass_on(connector: &Connector, backend: &Backend) -> Result<(), LaneError> {
    let mut request = bytes::BytesMut::new();
    onecopy_wire::startup::cancel_request(&mut request, backend.pid, &backend.key)?;
    let mut stream = connector.open_stream().await?;
    stream.write_all(&request).await?;
    stream.read_to_end(&mut Vec::new()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_that_came_too_late_for_its_statement_is_not_that_of_the_next() {
        let session = Cancellable::new(SessionId(1));
        let (t1, t2) = (TxnId(1), TxnId(2));
        session.note_cause(t1, OpId(0), Cancelled::Client);
        assert_eq!(session.take_cause(t1, OpId(1)), None);
        session.note_cause(t1, OpId(0), Cancelled::Client);
        assert_eq!(session.take_cause(t2, OpId(0)), None);
        session.note_cause(t1, OpId(0), Cancelled::NoWait);
        session.note_cause(t2, OpId(0), Cancelled::Client);
        assert_eq!(session.take_cause(t2, OpId(0)), Some(Cancelled::Client));
        assert_eq!(session.take_cause(t2, OpId(0)), None);
    }
}
