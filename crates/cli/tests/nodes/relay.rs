//! What stands between two machines in these tests: it passes bytes on, and can be cut as a network is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// How long a connection outlives that nothing passes any more: what systems find out by keepalive packets.
const DEAD_AFTER: Duration = Duration::from_secs(3);

/// What does not pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cut {
    /// From the side that connects.
    pub there: bool,
    /// From the side that listens.
    pub back: bool,
    /// Connections are reset, and refused.
    pub refuses: bool,
}

impl Cut {
    pub const BOTH: Cut = Cut { there: true, back: true, refuses: false };
    pub const REFUSED: Cut = Cut { there: true, back: true, refuses: true };

    fn is_any(self) -> bool {
        self.there || self.back || self.refuses
    }
}

/// The way from one machine to a port of another.
pub struct Relay {
    pub port: u16,
    cut: watch::Sender<Cut>,
}

impl Relay {
    /// Listens on a free port, and passes on to another one. If `lingers`, the listening side does not hear that a
    /// connection was cut off: its sessions stay.
    pub fn start(runtime: &Runtime, to: u16, lingers: bool) -> Relay {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = watch::Sender::new(Cut::default());
        let cuts = cut.clone();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, to, lingers, cuts.subscribe()));
            }
        });
        Relay { port, cut }
    }

    /// Lets pass what the cut leaves; what came before and did not pass yet comes late.
    pub fn cut(&self, cut: Cut) {
        self.cut.send_replace(cut);
    }

    pub fn change(&self, change: impl FnOnce(&mut Cut)) {
        self.cut.send_modify(change);
    }

    pub fn heal(&self) {
        self.cut(Cut::default());
    }
}

async fn pass(client: TcpStream, to: u16, lingers: bool, cuts: watch::Receiver<Cut>) {
    if cuts.borrow().refuses {
        return;
    }
    let Ok(server) = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], to))).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let to_server = Arc::new(tokio::sync::Mutex::new(to_server));
    let kept = to_server.clone();
    let ended = {
        let there = copy(from_client, to_server, cuts.clone(), |cut| cut.there);
        let back =
            copy(from_server, Arc::new(tokio::sync::Mutex::new(to_client)), cuts.clone(), |cut| cut.back);
        let dies = dies(cuts.clone());
        tokio::select! {
            () = there => false,
            () = back => false,
            () = dies => true,
        }
    };
    if ended && lingers {
        // The other machine knows of nothing.
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    drop(kept);
}

async fn copy(
    mut from: tcp::OwnedReadHalf,
    to: Arc<tokio::sync::Mutex<tcp::OwnedWriteHalf>>,
    mut cuts: watch::Receiver<Cut>,
    is_cut: fn(Cut) -> bool,
) {
    let mut to = to.lock().await;
    let mut bytes = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut bytes).await;
        if cuts.wait_for(|cut| !is_cut(*cut)).await.is_err() {
            return;
        }
        match read {
            Ok(0) | Err(_) => return,
            Ok(len) => {
                if to.write_all(&bytes[..len]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Waits until the connection is dead.
async fn dies(mut cuts: watch::Receiver<Cut>) {
    loop {
        let Ok(cut) = cuts.wait_for(|cut| cut.is_any()).await.map(|cut| *cut) else { return };
        if cut.refuses {
            return;
        }
        let healed = cuts.wait_for(|cut| !cut.is_any() || cut.refuses);
        match tokio::time::timeout(DEAD_AFTER, healed).await {
            Ok(Ok(cut)) if cut.refuses => return,
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
