//! A client's way to the node that leads: it is let in here, carried there, and goes on with the next leader when that one is
//! lost (docs/nodes.md, "Going on elsewhere").

pub mod carried;
mod course;
mod relay;
mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;
use onecopy_wire::startup::CANCEL_KEY_LEN_MIN;
use parking_lot::Mutex;
use rand::Rng;
use tokio::io::AsyncWriteExt;

use crate::errors::ServeError;
use crate::nodes::Node;
use crate::nodes::handshake::Purpose;
use crate::nodes::links;
use crate::server::door::{Door, Opened};
use crate::server::{Shared, startup, tls};
use crate::settings::Settings;
use crate::stream::Stream;
use crate::workers::{Admission, Workers};

/// Where clients of this node come in.
pub struct Front {
    node: Arc<Node>,
    door: Arc<Door>,
    /// Milliseconds that a client waits for a node that leads; 0 for ever.
    wait_timeout_ms: u64,
    message_len_max: usize,
    cancels: Cancels,
    clients: AtomicU32,
}

/// By what clients cancel, and where their sessions are.
#[derive(Default)]
struct Cancels(Mutex<HashMap<(u32, Vec<u8>), At>>);

/// Where a session is; `None` while it is nowhere.
type At = Arc<Mutex<Option<Whereabouts>>>;

/// Where a session is, and by what it is cancelled there.
#[derive(Clone)]
struct Whereabouts {
    node: u64,
    pid: u32,
    key: Vec<u8>,
}

impl Front {
    /// # Errors
    /// When the certificate cannot be read.
    pub fn new(node: Arc<Node>, settings: &Settings) -> Result<Arc<Front>, ServeError> {
        let tls = settings.tls.as_ref().map(tls::Acceptor::load).transpose()?;
        Ok(Arc::new(Front {
            node,
            door: Arc::new(Door::new(settings, tls)),
            wait_timeout_ms: settings.limits.wait_timeout_ms,
            message_len_max: settings.limits.message_bytes_max,
            cancels: Cancels::default(),
            clients: AtomicU32::new(1),
        }))
    }

    /// Serves a client's connection from its first byte to its last.
    pub fn serve(front: &Arc<Front>, workers: &Workers, stream: Stream, admission: Admission) {
        let crowded = admission.crowded;
        // On the node that leads it has one hop less.
        let running = front.node.term.borrow().clone();
        if let Some(running) = running {
            let (front, shared) = (front.clone(), running.shared.clone());
            running
                .workers
                .serve(stream, admission, move |stream| front.handle_at_term(stream, shared, crowded));
        } else {
            let front = front.clone();
            workers.serve(stream, admission, move |stream| front.handle(stream, crowded));
        }
    }

    async fn handle(self: Arc<Front>, stream: Stream, crowded: bool) {
        match self.door.admit(stream, crowded).await {
            Some(Opened::Session(client, start, who, counted)) => {
                relay::run(&self, client, &start, &who.user).await;
                drop(counted);
            }
            Some(Opened::Cancel { stream, pid, key }) => {
                self.pass_on(stream, self.session_of(pid, &key)).await
            }
            None => {}
        }
    }

    /// On the node that leads: a session that it carried before it led is cancelled by what its front has told its client.
    async fn handle_at_term(self: Arc<Front>, stream: Stream, shared: Arc<Shared>, crowded: bool) {
        match shared.door.admit(stream, crowded).await {
            Some(Opened::Cancel { stream, pid, key }) => match self.session_of(pid, &key) {
                Some(session) => self.pass_on(stream, Some(session)).await,
                None => startup::serve_opened(Opened::Cancel { stream, pid, key }, shared).await,
            },
            Some(opened) => startup::serve_opened(opened, shared).await,
            None => {}
        }
    }

    fn session_of(&self, pid: u32, key: &[u8]) -> Option<At> {
        self.cancels.0.lock().get(&(pid, key.to_vec())).cloned()
    }

    async fn pass_on(&self, mut stream: Stream, session: Option<At>) {
        let passed_on = self.cancel(session);
        if let Ok(Err(error)) = tokio::time::timeout(self.door.startup_timeout(), passed_on).await {
            tracing::warn!(%error, "pass a cancel request on");
        }
        let _ = stream.shutdown().await;
    }

    /// Passes a cancel request on to where the session is now.
    async fn cancel(&self, session: Option<At>) -> std::io::Result<()> {
        let at = session.and_then(|session| session.lock().clone());
        let Some(Whereabouts { node, pid, key }) = at else { return Ok(()) };
        let Some(node) = self.node.links.places.of(node) else { return Ok(()) };
        let mut stream = links::connect(&self.node.settings, &node, Purpose::Cancel).await?;
        carried::ask_to_cancel(&mut stream, pid, &key).await
    }

    /// Gives a client a number and a secret by which it may cancel.
    fn register(self: &Arc<Front>) -> Registered {
        let pid = self.clients.fetch_add(1, Ordering::Relaxed) & 0x7fff_ffff;
        let key: Vec<u8> = (0..CANCEL_KEY_LEN_MIN).map(|_| rand::rng().random()).collect();
        let at = At::default();
        self.cancels.0.lock().insert((pid, key.clone()), at.clone());
        Registered { front: self.clone(), pid, key, at }
    }
}

/// What a client may cancel by, for as long as it is connected.
struct Registered {
    front: Arc<Front>,
    pid: u32,
    key: Vec<u8>,
    at: At,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.front.cancels.0.lock().remove(&(self.pid, std::mem::take(&mut self.key)));
    }
}
