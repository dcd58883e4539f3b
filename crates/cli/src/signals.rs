//! What the operating system asks of a running command.

use std::io;
use tokio::signal::unix::{self, SignalKind};

/// A request to a running command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// SIGINT or SIGTERM: end in order.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// The signals that a running command listens to, from when this is made. Before that they end the process.
#[derive(Debug)]
pub struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hang_up: unix::Signal,
}

impl Signals {
    /// Listens from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn listen() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            hang_up: unix::signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next request.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.interrupt.recv() => Request::Stop,
            _ = self.terminate.recv() => Request::Stop,
            _ = self.hang_up.recv() => Request::Reload,
        }
    }

    /// Waits until the command is to stop; `reload` is called whenever it is to read its configuration again.
    pub async fn until_stop(&mut self, mut reload: impl FnMut()) {
        while self.next().await == Request::Reload {
            reload();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn send(signal: &str) {
        let status = Command::new("kill").args([signal, &std::process::id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    #[test]
    fn hang_up_reloads_and_terminate_stops() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut signals = Signals::listen().unwrap();
            send("-HUP");
            assert_eq!(signals.next().await, Request::Reload);
            send("-HUP");
            let mut reloads = 0;
            signals
                .until_stop(|| {
                    reloads += 1;
                    send("-TERM");
                })
                .await;
            assert_eq!(reloads, 1);
            send("-INT");
            assert_eq!(signals.next().await, Request::Stop);
        });
    }
}
