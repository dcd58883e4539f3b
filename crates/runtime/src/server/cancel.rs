//! Cancel requests: whose they are, and where their statement is at this moment.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use onecopy_core::{Event, OpId, ReplicaId, TxnId};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;

use crate::errors::Cancelled;
use crate::server::Shared;

/// Where a session's statement is.
#[derive(Clone, Debug, Default)]
pub enum Whereabouts {
    /// Nothing is under way.
    #[default]
    Idle,
    /// It waits in the core.
    Waiting { txn: TxnId, op: OpId },
    /// It waits for an advisory lock; this wakes it.
    Locking(Arc<tokio::sync::Notify>),
    /// A replica executes it.
    OnLane { replica: ReplicaId, pid: u32, key: Bytes },
}

/// One session as cancel requests see it.
#[derive(Default)]
pub struct Cancellable {
    at: Mutex<Whereabouts>,
    cause: Mutex<Option<Cancelled>>,
}

impl Cancellable {
    pub fn set(&self, at: Whereabouts) {
        *self.at.lock() = at;
    }

    pub fn note_cause(&self, cause: Cancelled) {
        *self.cause.lock() = Some(cause);
    }

    pub fn take_cause(&self) -> Option<Cancelled> {
        self.cause.lock().take()
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
    pub fn register(&self, pid: u32, key: &[u8]) -> Arc<Cancellable> {
        let session = Arc::new(Cancellable::default());
        self.sessions.lock().insert((pid, key.to_vec()), session.clone());
        session
    }

    pub fn forget(&self, pid: u32, key: &[u8]) {
        self.sessions.lock().remove(&(pid, key.to_vec()));
    }

    fn find(&self, pid: u32, key: &[u8]) -> Option<Arc<Cancellable>> {
        self.sessions.lock().get(&(pid, key.to_vec())).cloned()
    }
}

/// Carries out a cancel request. Nothing is answered, and a wrong key is ignored.
pub async fn cancel(shared: &Shared, pid: u32, key: &[u8]) {
    let Some(session) = shared.cancels.find(pid, key) else { return };
    let at = session.at.lock().clone();
    match at {
        Whereabouts::Idle => {}
        Whereabouts::Waiting { txn, op } => {
            session.note_cause(Cancelled::ByClient);
            shared.scheduler.handle(Event::Cancel { txn, op });
        }
        Whereabouts::Locking(wake) => wake.notify_one(),
        Whereabouts::OnLane { replica, pid, key } => {
            let pool = &shared.pools[usize::from(replica.0)];
            let mut request = bytes::BytesMut::new();
            if onecopy_wire::startup::cancel_request(&mut request, pid, &key).is_err() {
                return;
            }
            match pool.connector.open_stream().await {
                Ok(mut stream) => {
                    let _ = stream.write_all(&request).await;
                    // The server closes the connection when it has passed the request on.
                    let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut [0_u8; 1]).await;
                }
                Err(error) => tracing::warn!(%error, "send a cancel request to a replica"),
            }
        }
    }
}
