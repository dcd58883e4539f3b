//! Runs the runtime until it is to stop: what `serve`, `up` and the demo have in common.

use crate::CommandError;
use crate::signals::Signals;
use onecopy_runtime::{Handle, STACK_BYTES, Settings, event_loop};
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;

/// Serves until SIGINT or SIGTERM. `ready` is called when clients can connect; its failure ends serving. `reload` is
/// called at SIGHUP.
///
/// # Errors
/// When serving cannot start, or what `ready` failed with.
pub fn serve_until_stopped(
    settings: Settings,
    ready: impl FnOnce(&Handle) -> Result<(), CommandError>,
    reload: impl FnMut(),
) -> Result<(), CommandError> {
    event_loop()?.block_on(async {
        let mut signals = Signals::listen()?;
        let (tell, told) = oneshot::channel();
        let mut failed = None;
        let stop = async {
            match told.await {
                Ok(Err(error)) => failed = Some(error),
                Ok(Ok(())) | Err(_) => signals.until_stop(reload).await,
            }
        };
        let announce = |handle: &Handle| {
            // Received for as long as `stop` lives, which is as long as serving does.
            let _ = tell.send(ready(handle));
        };
        onecopy_runtime::serve(settings, announce, stop).await?;
        failed.map_or(Ok(()), Err)
    })
}

/// The port on which clients connect, among the addresses that are listened on.
///
/// # Errors
/// When none is a TCP address.
pub fn tcp_port(addresses: &[String]) -> Result<u16, CommandError> {
    let mut tcp = addresses.iter().filter_map(|address| address.parse::<SocketAddr>().ok());
    Ok(tcp.next().ok_or("onecopy does not listen on TCP")?.port())
}

/// Serves on threads of its own. Dropping it asks them to stop and does not wait.
#[derive(Debug)]
pub struct Background {
    addresses: Vec<String>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), CommandError>>,
}

impl Background {
    /// Begins to serve; returns when clients can connect. Not to be called from asynchronous code.
    ///
    /// # Errors
    /// When serving cannot start.
    pub fn start(settings: Settings) -> Result<Background, CommandError> {
        let (tell, told) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            event_loop()?.block_on(async {
                let announce = |handle: &Handle| {
                    // Nobody waits if `start` has given up.
                    let _ = tell.send(handle.addresses().to_vec());
                };
                let stop = async {
                    // To be asked and to be dropped mean the same.
                    let _ = stopped.await;
                };
                Ok(onecopy_runtime::serve(settings, announce, stop).await?)
            })
        };
        let thread =
            thread::Builder::new().name("onecopy-0".to_owned()).stack_size(STACK_BYTES).spawn(serve)?;
        match told.blocking_recv() {
            Ok(addresses) => Ok(Background { addresses, stop, thread }),
            Err(_) => {
                join(thread)?;
                Err("onecopy stopped before it served".into())
            }
        }
    }

    /// The addresses that are listened on, ports resolved.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Stops serving and waits for its end.
    ///
    /// # Errors
    /// What serving failed with.
    pub fn stop(self) -> Result<(), CommandError> {
        // It may have ended by itself.
        let _ = self.stop.send(());
        join(self.thread)
    }
}

fn join(thread: JoinHandle<Result<(), CommandError>>) -> Result<(), CommandError> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
