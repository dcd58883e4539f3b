//! The thread on which nodes speak to each other: on its own, so that no load of clients keeps the others from hearing that
//! this node lives.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use crate::nodes::front::carried;
use crate::nodes::handshake::Purpose;
use crate::nodes::links::{self, Links, Said};
use crate::nodes::Node;
use crate::settings::NodesSettings;
use crate::workers::event_loop;

/// The way to the other nodes, and theirs to this one.
pub struct Peers {
    pub links: Links,
    node: mpsc::UnboundedSender<(Arc<Node>, TcpListener)>,
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
        let (node, mut nodes) = mpsc::unbounded_channel();
        let links = {
            let _entered = event_loop.enter();
            Links::start(settings)
        };
        let run = move || {
            event_loop.block_on(async {
                let serve = async {
                    while let Some((node, listener)) = nodes.recv().await {
                        accept(&node, listener).await;
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
        Ok(Peers { links, node, stop, thread })
    }

    /// Answers the other nodes from now on.
    pub fn serve(&self, node: &Arc<Node>, listener: std::net::TcpListener) {
        todo!()
    }

    /// Speaks to nobody any more.
    pub fn end(self) {
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("the thread for the other nodes has failed");
        }
    }
}
