//! The threads that serve connections: each runs an event loop of its own, and a client's connection stays on one of
//! them together with the lanes that it borrows, so that a statement crosses no thread.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::stream::Stream;

/// The grammar descends once a level of nesting of a statement; this is enough for thousands.
pub const STACK_BYTES: usize = 16 << 20;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the worker that is running; 0 is the one that accepts.
pub fn current() -> usize {
    NUMBER.get()
}

/// The event loop of one worker, to be run on its own thread.
///
/// # Errors
/// When the system gives no event queue.
pub fn event_loop() -> io::Result<Runtime> {
    // Whoever shares the processor goes first: where there are more threads than processors, more events are there when
    // it comes back, and neither it nor they pay for putting it to sleep and waking it.
    Builder::new_current_thread().enable_all().on_thread_park(std::thread::yield_now).build()
}

/// That a connection may be open; how many may, is bounded.
pub struct Admission {
    /// Given back when the connection ends.
    pub _permit: OwnedSemaphorePermit,
    /// So many are open that it will probably be refused.
    pub crowded: bool,
}

/// A client's connection between two event loops.
enum Handed {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Handed {
    fn of(stream: Stream) -> io::Result<Handed> {
        match stream {
            Stream::Tcp(stream) => stream.into_std().map(Handed::Tcp),
            Stream::Unix(stream) => stream.into_std().map(Handed::Unix),
            Stream::Tls(_) => Err(io::Error::other("encryption begins on the worker that serves")),
        }
    }

    fn into_stream(self) -> io::Result<Stream> {
        match self {
            Handed::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Handed::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        }
    }
}

/// Serves a connection from its first byte to its last.
type Serve = Box<dyn FnOnce(Stream) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

struct Worker {
    hand: mpsc::UnboundedSender<(Handed, Counted, Serve)>,
    thread: Option<JoinHandle<()>>,
}

/// All workers. When they are dropped, their clients are disconnected and their threads end.
pub struct Workers {
    /// Those beside the one that accepts.
    others: Vec<Worker>,
    /// Whether the one that accepts serves, too.
    with_this: bool,
    /// Connections served by each.
    counts: Arc<[AtomicUsize]>,
}

impl Workers {
    /// Starts what is needed beside the calling thread.
    ///
    /// # Errors
    /// When the system gives no thread or event queue.
    pub fn start(count: usize) -> io::Result<Workers> {
        Workers::of(count.saturating_sub(1), true)
    }

    /// Starts so many, numbered from 1, whatever thread calls: for connections that are accepted elsewhere, and that are to end
    /// with these.
    ///
    /// # Errors
    /// When the system gives no thread or event queue.
    pub fn start_apart(count: usize) -> io::Result<Workers> {
        Workers::of(count.max(1), false)
    }

    fn of(others: usize, with_this: bool) -> io::Result<Workers> {
        let counts = (0..others + usize::from(with_this)).map(|_| AtomicUsize::new(0)).collect();
        let others = (1..=others).map(Worker::start).collect::<Result<_, _>>()?;
        Ok(Workers { others, with_this, counts })
    }

    /// Serves a new connection on the worker that has fewest; another one may take its place when it has ended.
    pub fn serve<F>(
        &self,
        stream: Stream,
        admission: Admission,
        serve: impl FnOnce(Stream) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Acquire));
        let number = counts.enumerate().min_by_key(|(_, count)| *count).map_or(0, |(number, _)| number);
        let counted = Counted::new(&self.counts, number, admission);
        let serve: Serve = Box::new(move |stream| Box::pin(serve(stream)));
        match number.checked_sub(usize::from(self.with_this)).and_then(|other| self.others.get(other)) {
            None => counted.serve(stream, serve),
            Some(worker) => {
                match Handed::of(stream) {
                    // It is taken as long as this exists.
                    Ok(handed) => drop(worker.hand.send((handed, counted, serve))),
                    Err(error) => tracing::warn!(%error, "hand a client to another thread"),
                }
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for Worker { hand, thread } in std::mem::take(&mut self.others) {
            drop(hand);
            if thread.is_some_and(|thread| thread.join().is_err()) {
                tracing::error!("a thread that served connections has failed");
            }
        }
    }
}

impl Worker {
    fn start(number: usize) -> io::Result<Worker> {
        let (hand, mut handed) = mpsc::unbounded_channel::<(Handed, Counted, Serve)>();
        let event_loop = event_loop()?;
        let serve = move || {
            NUMBER.set(number);
            event_loop.block_on(async {
                while let Some((stream, counted, serve)) = handed.recv().await {
                    match stream.into_stream() {
                        Ok(stream) => counted.serve(stream, serve),
                        Err(error) => tracing::warn!(%error, "take a client from another thread"),
                    }
                }
            });
            // Whatever it was doing is dropped; a name that is being looked up is of no use to anybody.
            event_loop.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name(format!("onecopy-{number}"))
            .stack_size(STACK_BYTES)
            .spawn(serve)?;
        Ok(Worker { hand, thread: Some(thread) })
    }
}

/// Counts a connection of a worker for as long as it lives.
struct Counted {
    counts: Arc<[AtomicUsize]>,
    number: usize,
    _admission: Admission,
}

impl Counted {
    fn new(counts: &Arc<[AtomicUsize]>, number: usize, admission: Admission) -> Counted {
        counts[number].fetch_add(1, Ordering::AcqRel);
        Counted { counts: counts.clone(), number, _admission: admission }
    }

    /// Serves the connection on the event loop that runs.
    fn serve(self, stream: Stream, serve: Serve) {
        tokio::spawn(async move {
            serve(stream).await;
            drop(self);
        });
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts[self.number].fetch_sub(1, Ordering::AcqRel);
    }
}
