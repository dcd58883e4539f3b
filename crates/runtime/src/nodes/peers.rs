//! The thread on which nodes speak to each other: on its own, so that no load of clients keeps the others from hearing that
//! this node lives.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use onecopy_log::consensus::NodeId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use crate::nodes::handshake::Purpose;
use crate::nodes::links::{self, Links};
use crate::settings::NodesSettings;
use crate::stream::Stream;
use crate::workers::event_loop;

/// After the system has refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections that have not proven yet that they are of the cluster.
const PROVING_MAX: usize = 128;
/// What is done with a connection of another node, until it ends.
pub type Serve = Arc<
    dyn Fn(Stream, NodeId, Purpose) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> + Send + Sync,
>;

/// The way to the other nodes, and theirs to this one.
pub struct Peers {
    pub links: Links,
    settings: Arc<NodesSettings>,
    listeners: mpsc::UnboundedSender<(Arc<NodesSettings>, std::net::TcpListener, Serve)>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Peers {
    /// Begins to connect to the others; they are answered after [`Peers::serve`].
    ///
    /// # Errors
    /// When the system gives no thread or event queue.
    pub fn start(settings: &Arc<NodesSettings>) -> io::Result<Peers> {
        let event_loop = event_loop()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (listeners, mut listening) = mpsc::unbounded_channel();
        let links = {
            let _entered = event_loop.enter();
            Links::start(settings)
        };
        let run = move || {
            event_loop.block_on(async {
                let serve = async {
                    while let Some((settings, listener, serve)) = listening.recv().await {
                        if let Err(error) = accept(&settings, listener, &serve).await {
                            tracing::error!(%error, "listen for the other nodes");
                        }
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    _ = stopped => {}
                    () = serve => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("onecopy-peers".into()).spawn(run)?;
        Ok(Peers { links, settings: settings.clone(), listeners, stop, thread })
    }

    /// Answers the other nodes from now on.
    ///
    /// # Errors
    /// When the socket cannot be handed over.
    pub fn serve(&self, listener: TcpListener, serve: Serve) -> io::Result<()> {
        // It is taken as long as this exists.
        let _ = self.listeners.send((self.settings.clone(), listener.into_std()?, serve));
        Ok(())
    }

    /// Speaks to nobody any more.
    pub fn end(self) {
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("the thread for the other nodes has failed");
        }
    }
}

/// Connections that have not proven yet that they are of the cluster, the oldest first. Strangers who say nothing take no more files
/// than these, and keep nobody waiting: where there are too many, the oldest is given up.
#[derive(Default)]
struct Proving(VecDeque<oneshot::Sender<()>>);

impl Proving {
    /// One more; it is told when it is given up.
    fn enter(&mut self) -> oneshot::Receiver<()> {
        let (give_up, given_up) = oneshot::channel();
        // Nobody listens any more where it has proven itself, or has failed.
        self.0.retain(|other| !other.is_closed());
        if self.0.len() >= PROVING_MAX {
            // By being dropped.
            self.0.pop_front();
        }
        self.0.push_back(give_up);
        given_up
    }
}

async fn accept(
    settings: &Arc<NodesSettings>,
    listener: std::net::TcpListener,
    serve: &Serve,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut proving = Proving::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (settings, serve) = (settings.clone(), serve.clone());
                let given_up = proving.enter();
                tokio::spawn(async move {
                    if let Err(error) = answer(&settings, stream, &serve, given_up).await {
                        tracing::debug!(%error, "a connection from another node ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept another node");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer(
    settings: &NodesSettings,
    stream: TcpStream,
    serve: &Serve,
    given_up: oneshot::Receiver<()>,
) -> io::Result<()> {
    let proven = tokio::select! {
        biased;
        proven = links::answer(settings, stream) => proven,
        _ = given_up => return Err(io::Error::other("it took longer to prove itself than so many others")),
    };
    let (stream, from, purpose) = proven.inspect_err(|error| {
        if error.kind() == io::ErrorKind::PermissionDenied {
            tracing::warn!(%error, "refused a connection to the port for other nodes");
        }
    })?;
    serve(stream, from, purpose).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_that_has_not_proven_itself_is_given_up_for_a_new_one() {
        let mut proving = Proving::default();
        let mut all: Vec<_> = (0..PROVING_MAX).map(|_| proving.enter()).collect();
        let is_given_up =
            |one: &mut oneshot::Receiver<()>| one.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        assert!(!all.iter_mut().any(is_given_up));
        // The first two have proven themselves.
        all.drain(..2);
        let _others = [proving.enter(), proving.enter()];
        assert!(!all.iter_mut().any(is_given_up), "there is room");
        let _another = proving.enter();
        let given_up: Vec<bool> = all.iter_mut().map(is_given_up).collect();
        assert!(given_up[0] && !given_up[1..].contains(&true), "the oldest of them");
    }
}
