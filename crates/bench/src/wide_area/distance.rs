//! Distance between processes on one machine: bytes pass as late, as thinly and as unreliably as over a wide area.
//!
//! Only connections between sites pass here. TCP hides what is lost, and takes time for it; so a piece that is lost comes later, and all behind it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Bytes that are read at once.
const PIECE_LEN: usize = 16 * 1024;
/// Pieces under way in one direction of a connection; the sender waits beyond it, as for a window.
const UNDER_WAY_MAX: usize = 4_096;
/// How much longer what was lost takes: the least time after which TCP sends again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The way from one site to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// One way.
    pub delay: Duration,
    /// It takes up to so much longer, drawn evenly; pieces do not overtake each other.
    pub jitter: Duration,
    /// Bytes a second; `None` for as many as there are.
    pub bandwidth: Option<u64>,
    /// The share of pieces that are lost and sent again.
    pub loss: f64,
}

/// Sites and the ways between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// Three in one place.
    Local,
    /// Four, 25 ms from each other, as in North America.
    #[default]
    FourSites,
    /// Eight, likewise.
    EightSites,
    /// Two in each of three continents: 1 ms, 40 ms, 75 ms and 110 ms.
    ThreeContinents,
}

impl Topology {
    /// All of them.
    pub const ALL: [Topology; 4] =
        [Topology::Local, Topology::FourSites, Topology::EightSites, Topology::ThreeContinents];

    /// Its name.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Topology::Local => "local",
            Topology::FourSites => "four-sites",
            Topology::EightSites => "eight-sites",
            Topology::ThreeContinents => "three-continents",
        }
    }

    /// How many sites.
    #[must_use]
    pub fn sites(self) -> usize {
        match self {
            Topology::Local => 3,
            Topology::FourSites => 4,
            Topology::EightSites => 8,
            Topology::ThreeContinents => 6,
        }
    }

    /// The way between two of them, the same in both directions; `None` where nothing is to be emulated.
    #[must_use]
    pub fn way(self, from: usize, to: usize) -> Option<Way> {
        let of = |ms: u64| {
            let delay = Duration::from_millis(ms);
            // Up to a fifth, as in the simulator.
            Way { delay, jitter: delay / 5, bandwidth: Some(12_500_000), loss: 0.0 }
        };
        match self {
            Topology::Local => None,
            Topology::FourSites | Topology::EightSites => Some(of(25)),
            Topology::ThreeContinents => {
                let mut continents = [from / 2, to / 2];
                continents.sort_unstable();
                Some(of(match continents {
                    [one, other] if one == other => 1,
                    // America and Europe.
                    [0, 1] => 40,
                    // America and Asia.
                    [0, 2] => 75,
                    _ => 110,
                }))
            }
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(id: &str) -> Result<Self, String> {
        let ids = Topology::ALL.map(Topology::id);
        let found = Topology::ALL.into_iter().find(|topology| topology.id() == id);
        found.ok_or_else(|| format!("there is no topology {id:?}: choose among {}", ids.join(", ")))
    }
}

/// One way, as a port that stands for another one. Dropping it closes it, and all connections that pass.
#[derive(Debug)]
pub struct Link {
    /// Where to connect.
    pub port: u16,
    _open: watch::Sender<()>,
}

impl Link {
    /// Begins to pass on what comes to a free port to another one.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn open(to: u16, way: Way, seed: u64) -> io::Result<Link> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let (open, mut closed) = watch::channel(());
        tokio::spawn(async move {
            let mut connections = 0;
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = closed.changed() => return,
                };
                let Ok((stream, _)) = accepted else { continue };
                connections += 1;
                let random = ChaCha8Rng::seed_from_u64(seed ^ (connections << 32));
                let mut closed = closed.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        // Whoever loses one end loses the other.
                        _ = pass(stream, to, way, random) => {}
                        _ = closed.changed() => {}
                    }
                });
            }
        });
        Ok(Link { port, _open: open })
    }
}

async fn pass(near: TcpStream, to: u16, way: Way, mut random: ChaCha8Rng) -> io::Result<()> {
    // There and back, before anything is said.
    tokio::time::sleep(2 * way.delay).await;
    let far = TcpStream::connect(("127.0.0.1", to)).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (from_near, to_near) = near.into_split();
    let (from_far, to_far) = far.into_split();
    let back = ChaCha8Rng::from_rng(&mut random);
    tokio::select! {
        ended = carry(from_near, to_far, way, random) => ended,
        ended = carry(from_far, to_near, way, back) => ended,
    }
}

/// Carries one direction.
async fn carry(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    way: Way,
    random: ChaCha8Rng,
) -> io::Result<()> {
    let (send, mut under_way) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY_MAX);
    let reading = async {
        let mut schedule = Schedule::new(way, random);
        let mut piece = vec![0; PIECE_LEN];
        loop {
            let len = from.read(&mut piece).await?;
            if len == 0 {
                return io::Result::Ok(());
            }
            let at = schedule.arrival(Instant::now(), len);
            if send.send((at, piece[..len].to_vec())).await.is_err() {
                return Ok(());
            }
        }
    };
    let writing = async {
        let mut due = VecDeque::new();
        while let Some(piece) = under_way.recv().await {
            due.push_back(piece);
            while let Some((at, bytes)) = due.pop_front() {
                tokio::time::sleep_until(at).await;
                to.write_all(&bytes).await?;
            }
        }
        io::Result::Ok(())
    };
    tokio::try_join!(reading, writing).map(drop)
}

/// When pieces of one direction arrive.
struct Schedule {
    way: Way,
    random: ChaCha8Rng,
    /// The line is free then.
    free_at: Option<Instant>,
    /// Nothing arrives before that.
    last: Option<Instant>,
}

impl Schedule {
    fn new(way: Way, random: ChaCha8Rng) -> Schedule {
        Schedule { way, random, free_at: None, last: None }
    }

    fn arrival(&mut self, now: Instant, len: usize) -> Instant {
        let mut sent = self.free_at.map_or(now, |free_at| free_at.max(now));
        if let Some(bandwidth) = self.way.bandwidth {
            sent += Duration::from_secs_f64(len as f64 / bandwidth as f64);
        }
        self.free_at = Some(sent);
        let mut late = self.way.delay + self.way.jitter.mul_f64(self.random.random::<f64>());
        if self.way.loss > 0.0 && self.random.random_bool(self.way.loss.min(1.0)) {
            late += AGAIN_AFTER.max(2 * self.way.delay);
        }
        let at = self.last.map_or(sent + late, |last| last.max(sent + late));
        self.last = Some(at);
        at
    }
}

/// The ways between all sites.
#[derive(Debug)]
pub struct Distance {
    /// By the site that connects and the one that listens.
    links: Vec<Vec<Option<Arc<Link>>>>,
}

impl Distance {
    /// Opens them, before sites that listen to each other on these ports.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn open(topology: Topology, ports: &[u16], seed: u64) -> io::Result<Distance> {
        let mut links = Vec::new();
        for from in 0..ports.len() {
            let mut of = Vec::new();
            for (to, port) in ports.iter().enumerate() {
                let number = (from * ports.len() + to) as u64;
                of.push(match topology.way(from, to).filter(|_| from != to) {
                    Some(way) => Some(Arc::new(Link::open(*port, way, seed.wrapping_add(number)).await?)),
                    None => None,
                });
            }
            links.push(of);
        }
        Ok(Distance { links })
    }

    /// At which port one site reaches another, which listens on `port`.
    #[must_use]
    pub fn port(&self, from: usize, to: usize, port: u16) -> u16 {
        let link = self.links.get(from).and_then(|of| of.get(to)).and_then(Option::as_ref);
        link.map_or(port, |link| link.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(loss: f64) -> Way {
        let ms = Duration::from_millis;
        Way { delay: ms(25), jitter: ms(5), bandwidth: Some(1_000_000), loss }
    }

    fn schedule(loss: f64) -> Schedule {
        Schedule::new(way(loss), ChaCha8Rng::seed_from_u64(1))
    }

    #[test]
    fn pieces_take_the_way_the_line_and_their_turn() {
        let start = Instant::now();
        let mut schedule = schedule(0.0);
        let after = |at: Instant| (at - start).as_secs_f64() * 1e3;
        let first = after(schedule.arrival(start, 1_000));
        assert!(
            (26.0..=31.0).contains(&first),
            "{first}: 1 ms of the line, 25 of the way, up to 5 of jitter"
        );
        // Ten more at once take their turn at the line.
        let last = (0..10).map(|_| after(schedule.arrival(start, 1_000))).fold(first, |before, at| {
            assert!(at >= before, "none overtakes another one");
            at
        });
        assert!((36.0..=41.0).contains(&last), "{last}");
    }

    #[test]
    fn what_is_lost_comes_later_and_all_behind_it() {
        let start = Instant::now();
        let mut lossy = schedule(1.0);
        assert!(lossy.arrival(start, 1) - start >= Duration::from_millis(225));
        lossy.way.loss = 0.0;
        assert!(lossy.arrival(start, 1) - start >= Duration::from_millis(225));
    }

    #[test]
    fn continents_are_further_apart_than_their_sites_and_ways_are_symmetric() {
        let topology = Topology::ThreeContinents;
        let ms = |from, to| topology.way(from, to).unwrap().delay.as_millis();
        for from in 0..6 {
            for to in 0..6 {
                assert_eq!(ms(from, to), ms(to, from));
            }
        }
        assert_eq!([ms(0, 1), ms(0, 2), ms(2, 4), ms(0, 4)], [1, 40, 110, 75]);
        for topology in Topology::ALL {
            assert_eq!(topology.id().parse(), Ok(topology));
        }
        assert!("nowhere".parse::<Topology>().unwrap_err().contains("four-sites"));
    }

    #[tokio::test]
    async fn bytes_pass_both_ways() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let ports = [1, listener.local_addr().unwrap().port()];
        let distance = Distance::open(Topology::FourSites, &ports, 1).await.unwrap();
        assert_eq!(distance.port(0, 0, 1), 1);
        let echo = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut said = [0; 5];
            stream.read_exact(&mut said).await.unwrap();
            stream.write_all(&said).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let ask = async {
            let port = distance.port(0, 1, ports[1]);
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            let mut heard = [0; 5];
            stream.read_exact(&mut heard).await.unwrap();
            heard
        };
        let ((), heard) = tokio::join!(echo, ask);
        assert_eq!(&heard, b"hello");
    }
}
