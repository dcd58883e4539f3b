//! What runs on the node that leads, while it does: on event loops of its own, so that all of it, every session and every
//! connection to a replica included, has ended when they have.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hashbrown::HashSet;
use onecopy_core::{Csn, Epoch};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::errors::ServeError;
use crate::membership::ReplicaSet;
use crate::nodes::reach::SILENT_ELECTIONS;
use crate::nodes::{Node, members, reach};
use crate::server::preparation::Source;
use crate::server::{Shared, Term};
use crate::settings::Settings;
use crate::workers::{STACK_BYTES, Workers, event_loop};

/// Between attempts to bring the replicas into service.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long the system may take to look up a name whose address nobody needs any more.
const ENDING_PATIENCE: Duration = Duration::from_millis(100);

/// What serves clients on this node, while it leads.
pub struct Running {
    pub shared: Arc<Shared>,
    pub workers: Arc<Workers>,
    /// Sessions that fronts have here.
    carried: Arc<Mutex<HashSet<[u8; 16]>>>,
}

impl Running {
    /// Takes a front's session on; `None` while it still runs here, over a connection that its front has lost: it may commit
    /// something yet, and only when it has ended can be said what became of it.
    pub fn enter(&self, session: [u8; 16]) -> Option<Entered> {
        self.carried.lock().insert(session).then(|| Entered { carried: self.carried.clone(), session })
    }
}

/// A front's session, as long as it runs.
pub struct Entered {
    carried: Arc<Mutex<HashSet<[u8; 16]>>>,
    session: [u8; 16],
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.carried.lock().remove(&self.session);
    }
}

/// The thread of a term.
pub struct TermThread {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl TermThread {
    /// Begins to serve in an epoch, before which everything up to `csn` was decided.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        node: &Arc<Node>,
        settings: &Arc<Settings>,
        epoch: Epoch,
        csn: Csn,
    ) -> io::Result<TermThread> {
        let (stop, stopped) = oneshot::channel();
        let (node, settings) = (node.clone(), settings.clone());
        let run = move || {
            let mut stopped = stopped;
            // Each attempt has an event loop of its own: what a failed one has begun must not go on beside the next.
            while let Err(error) = attempt(&node, &settings, epoch, csn, &mut stopped) {
                tracing::error!(%error, "this node leads, and cannot serve; trying again");
                // It is told to stop, or who would tell it is gone.
                if wait(&mut stopped).is_none_or(|is_over| is_over) {
                    break;
                }
            }
            tracing::info!(epoch = epoch.0, "this node has ended what it did as the leader");
        };
        let thread = std::thread::Builder::new().name("onecopy-term".into()).stack_size(STACK_BYTES);
        Ok(TermThread { stop, thread: thread.spawn(run)? })
    }

    /// Ends it, and waits until nothing of it is left.
    pub fn end(self) {
        // It may have failed by itself.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("the thread that leads has failed");
        }
    }
}

/// Serves until it is told to stop.
fn attempt(
    node: &Arc<Node>,
    settings: &Settings,
    epoch: Epoch,
    csn: Csn,
    stopped: &mut oneshot::Receiver<()>,
) -> Result<(), ServeError> {
    let event_loop = event_loop().map_err(ServeError::Threads)?;
    // With the replicas that there are by the log.
    let mut settings = settings.clone();
    let set = ReplicaSet::load_shared(&mut settings, &node.log, epoch).inspect_err(|_| {
        // Another node may know them.
        node.links.be_silent(SILENT_ELECTIONS * Duration::from_millis(node.settings.election_timeout_ms));
    })?;
    let ended = event_loop.block_on(async {
        let served = tokio::select! {
            // Whoever is dropped means the same.
            _ = stopped => Ok(()),
            Err(error) = lead(node, settings.clone(), set, epoch, csn) => Err(error),
            never = reach::watch(node, &settings.replicas) => match never {},
        };
        // Nobody is sent here any more.
        node.term.send_replace(None);
        served
    });
    // All that is under way is dropped here.
    event_loop.shutdown_timeout(ENDING_PATIENCE);
    ended
}

/// Waits before the next attempt; says whether it is told to stop, or nothing if it is not known how.
fn wait(stopped: &mut oneshot::Receiver<()>) -> Option<bool> {
    let event_loop = event_loop().ok()?;
    Some(event_loop.block_on(async { tokio::time::timeout(RETRY_PAUSE, stopped).await.is_ok() }))
}

async fn lead(
    node: &Arc<Node>,
    settings: Settings,
    set: ReplicaSet,
    epoch: Epoch,
    csn: Csn,
) -> Result<(), ServeError> {
    // What the sessions of earlier terms have committed must be known before the first of them asks.
    node.origins.read_up_to(csn).await;
    let source = Source::Shared {
        log: node.log.clone(),
        epoch,
        durable: node.durable.clone(),
        member: node.member.clone(),
        places: node.links.places.clone(),
    };
    let term = Term::begin(settings, set, source).await?;
    tracing::info!(epoch = epoch.0, "this node leads");
    if let Some(member) = &term.shared.member {
        members::promote_all(member, &node.links.places);
    }
    let running =
        Running { shared: term.shared.clone(), workers: term.workers.clone(), carried: Arc::default() };
    node.term.send_replace(Some(Arc::new(running)));
    // The term lives as long as this waits.
    std::future::pending::<()>().await;
    drop(term);
    Ok(())
}
