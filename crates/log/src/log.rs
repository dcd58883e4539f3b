//! The log as the rest of the program sees it: one thread that writes, any number that append and read.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use parking_lot::{Condvar, Mutex};
use thiserror::Error;

use crate::catalog::{Position, Undecided};
use crate::disk::{Files, Folder, FolderError};
use crate::engine::{Action, Cause, Effect, Engine, Event, Fault, Genesis, Settings, Sizes, State};
use crate::gate::{AppendError, Gate};
use crate::reader::{Payload, ReadError, Records};
use crate::record::{Entry, LogId, Record, Seq};
use crate::recover::{RecoverError, Tail, recover};

/// How a log is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Durability and sizes.
    pub settings: Settings,
    /// What to begin if the folder holds no log; `None` if that is an error.
    pub genesis: Option<Genesis>,
    /// When nothing was appended for this long, the log notes in the file that all of it is safe. Milliseconds.
    pub mark_after_ms: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { settings: Settings::default(), genesis: None, mark_after_ms: 1 }
    }
}

/// How far the log is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Durable {
    /// The last durable commit.
    pub csn: Csn,
    /// The last durable record, of whatever kind; `Seq(0)` if there is none.
    pub seq: Seq,
}

impl Durable {
    fn up_to(position: Position) -> Durable {
        Durable { csn: position.csn, seq: Seq(position.seq.0.saturating_sub(1)) }
    }
}

/// What the log reports on its own. Called on the log's thread, which writes nothing meanwhile: return quickly. They
/// may append and read, but must not close the log.
pub struct Hooks {
    on_durable: Box<dyn FnMut(Durable) + Send>,
    on_failed: Box<dyn FnMut(&Fault) + Send>,
}

impl Hooks {
    /// `on_durable`: once a group, with its last record. `on_failed`: at most once; nothing is durable after it.
    pub fn new(
        on_durable: impl FnMut(Durable) + Send + 'static,
        on_failed: impl FnMut(&Fault) + Send + 'static,
    ) -> Hooks {
        Hooks { on_durable: Box::new(on_durable), on_failed: Box::new(on_failed) }
    }
}

/// Why a log cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The folder holds no log, and none was to be begun.
    #[error("there is no commit log in {}; if the folder is right, its contents are lost or not mounted", .0.display())]
    Missing(PathBuf),
    /// The log is damaged, or cannot be read.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// What recovery has to write could not be written.
    #[error(transparent)]
    Failed(#[from] Fault),
    /// No thread could be started.
    #[error("start the commit log's thread: {0}")]
    Thread(std::io::Error),
}

/// What a log held when it was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// Whether it was begun just now.
    pub begun: bool,
    /// Its name.
    pub log_id: LogId,
    /// The highest epoch of any record.
    pub epoch: Epoch,
    /// The first commit that can be read; `last.next()` if there is none.
    pub first: Csn,
    /// The last commit.
    pub last: Csn,
    /// How many records it holds, of whatever kind.
    pub records: u64,
    /// The unfinished end that was cut off. Nobody was told that it was durable.
    pub tail: Option<Tail>,
    /// Payloads that were not decided, and never will be.
    pub undecided: Vec<Undecided>,
    /// Commits that it holds and that never happen.
    pub annulled: Vec<Csn>,
}

/// A log's figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// What it is doing.
    pub state: State,
    /// Its name.
    pub log_id: LogId,
    /// The highest epoch of any record appended.
    pub epoch: Epoch,
    /// The first commit that can be read.
    pub first: Csn,
    /// The last commit appended.
    pub appended: Csn,
    /// How far it is durable.
    pub durable: Durable,
    /// Bytes appended that are not durable yet.
    pub backlog_bytes: u64,
    /// Files and bytes.
    pub sizes: Sizes,
    /// What was written since the log was opened.
    pub written: Written,
}

/// What was written since a log was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Groups, each one write and (with [`crate::Durability::Disk`]) one sync.
    pub groups: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes in them, with frames and zeros ahead.
    pub bytes: u64,
    /// Syncs of segments.
    pub syncs: u64,
    /// Time that they took together, in nanoseconds.
    pub sync_ns_total: u64,
    /// The longest, in nanoseconds.
    pub sync_ns_max: u64,
}

/// An open commit log. Dropping it closes it in order.
pub struct Log {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Opens the log in folder `path`: locks the folder, verifies every record, cuts an unfinished end, and makes
    /// everything that is left durable.
    ///
    /// # Errors
    /// [`OpenError`]; no record was changed.
    pub fn open(path: &Path, options: Options, hooks: Hooks) -> Result<(Log, Recovered), OpenError> {
        Log::open_on(Folder::open(path)?, path, options, hooks)
    }

    /// Like [`Log::open`], in a folder that was locked before, whose path this is.
    ///
    /// # Errors
    /// [`OpenError`]; no record was changed.
    pub fn open_on(
        mut folder: Folder,
        path: &Path,
        options: Options,
        hooks: Hooks,
    ) -> Result<(Log, Recovered), OpenError> {
        let mut effects = Vec::new();
        let (engine, recovered) = match (recover(folder.files())?, options.genesis) {
            (Some(recovery), _) => {
                let recovered = Recovered {
                    begun: false,
                    log_id: recovery.log_id(),
                    epoch: recovery.epoch(),
                    first: recovery.first(),
                    last: recovery.end().csn,
                    records: recovery.records(),
                    tail: recovery.tail,
                    undecided: recovery.undecided.clone(),
                    annulled: recovery.annulled.clone(),
                };
                (Engine::resume(recovery, options.settings, &mut effects), recovered)
            }
            (None, Some(genesis)) => {
                let recovered = Recovered {
                    begun: true,
                    log_id: genesis.log_id,
                    epoch: genesis.epoch,
                    first: genesis.after.next(),
                    last: genesis.after,
                    records: 0,
                    tail: None,
                    undecided: Vec::new(),
                    annulled: Vec::new(),
                };
                (Engine::begin(genesis, options.settings, &mut effects), recovered)
            }
            (None, None) => return Err(OpenError::Missing(path.to_owned())),
        };
        let queue = Queue::new(engine.gate().clone());
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            engine: Mutex::new(engine),
            backlog_bytes: AtomicU64::new(0),
            written: Mutex::new(Written::default()),
        });
        let mark_after = Duration::from_millis(options.mark_after_ms);
        let mut writer = Writer {
            shared: Arc::clone(&shared),
            folder,
            hooks,
            effects: effects.into(),
            incoming: Vec::new(),
            mark_after,
        };
        writer.prepare()?;
        let thread =
            thread::Builder::new().name("onecopy-log".to_owned()).spawn(move || writer.run_guarded());
        let thread = Mutex::new(Some(thread.map_err(OpenError::Thread)?));
        Ok((Log { shared, thread }, recovered))
    }

    /// Hands a record over. It is durable when `on_durable` reports its place, which is returned, or a later one.
    /// Never waits for the disk. Whoever appends has to watch [`Log::backlog_bytes`]: nothing else bounds it.
    ///
    /// # Errors
    /// Why the record was refused; then nothing has changed.
    pub fn append(&self, record: Record) -> Result<Seq, AppendError> {
        let seq = self.append_quietly(record)?;
        self.wake();
        Ok(seq)
    }

    /// Like [`Log::append`], but [`Log::wake`] has to follow: for those who append under a lock of their own, which
    /// the thread that writes, once it is awake, would make them hold for longer.
    ///
    /// # Errors
    /// Why the record was refused; then nothing has changed.
    pub fn append_quietly(&self, mut record: Record) -> Result<Seq, AppendError> {
        let len = record.frame_len();
        let mut queue = self.shared.queue.lock();
        let seq = queue.gate.admit(&mut record)?;
        queue.records.push(record);
        self.shared.backlog_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(seq)
    }

    /// Has what was appended written.
    pub fn wake(&self) {
        let asleep = std::mem::take(&mut self.shared.queue.lock().asleep);
        if asleep {
            self.shared.wake.notify_one();
        }
    }

    /// Reads all durable records behind commit `csn - 1`, and those that become durable meanwhile.
    ///
    /// # Errors
    /// [`ReadError::Truncated`] or [`ReadError::Beyond`].
    pub fn read_from(&self, csn: Csn) -> Result<Reader, ReadError> {
        let files = Files::new(&self.shared.path);
        let records = Records::from(csn, &self.shared.engine.lock(), files)?;
        Ok(Reader { shared: Arc::clone(&self.shared), records })
    }

    /// Nobody needs commits before `csn` any more: drops the segments that hold only such. Other records that must
    /// outlive them (reservations, maintenance) have to be appended again first.
    pub fn truncate_before(&self, csn: Csn) {
        let mut queue = self.shared.queue.lock();
        queue.truncate = queue.truncate.max(Some(csn));
        drop(queue);
        self.wake();
    }

    /// The argument to [`Log::truncate_before`] that leaves at most `bytes_max` bytes, but never less than the last
    /// segment: for a bound on what is kept for replicas that are away.
    #[must_use]
    pub fn oldest_within(&self, bytes_max: u64) -> Csn {
        self.shared.engine.lock().oldest_within(bytes_max)
    }

    /// Bytes appended that are not durable yet, and so held in memory.
    #[must_use]
    pub fn backlog_bytes(&self) -> u64 {
        self.shared.backlog_bytes.load(Ordering::Relaxed)
    }

    /// How far the log is durable.
    #[must_use]
    pub fn durable(&self) -> Durable {
        Durable::up_to(self.shared.engine.lock().durable())
    }

    /// The log's figures.
    #[must_use]
    pub fn status(&self) -> Status {
        let (appended, epoch) = {
            let queue = self.shared.queue.lock();
            (queue.gate.last(), queue.gate.epoch())
        };
        let written = *self.shared.written.lock();
        let engine = self.shared.engine.lock();
        Status {
            state: engine.state(),
            log_id: engine.log_id(),
            epoch,
            first: engine.first(),
            appended,
            durable: Durable::up_to(engine.durable()),
            backlog_bytes: self.backlog_bytes(),
            sizes: engine.sizes(),
            written,
        }
    }

    /// Writes what is pending, brings everything to stable storage, whatever the durability, and ends the thread.
    /// Later calls return the same.
    ///
    /// # Errors
    /// The failure that stopped the log, now or before.
    pub fn close(&self) -> Result<(), Fault> {
        {
            let mut queue = self.shared.queue.lock();
            queue.closing = true;
            queue.gate.shut(AppendError::Closed);
        }
        self.shared.wake.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // The thread catches its own panics: they are in the engine's state.
            let _ended = thread.join();
        }
        match self.shared.engine.lock().state() {
            State::Failed(fault) => Err(fault),
            _ => Ok(()),
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // Whoever wants to know closes first; `on_failed` has told of a failure in any case.
        let _closed = self.close();
    }
}

/// Reads durable records in order. As an iterator it ends at what is durable, and goes on when there is more.
pub struct Reader {
    shared: Arc<Shared>,
    records: Records<Files>,
}

impl Reader {
    /// The next record that is no payload chunk; `None` if none is durable yet.
    ///
    /// # Errors
    /// [`ReadError`]; the next call tries the same record again.
    pub fn try_next(&mut self) -> Result<Option<Entry>, ReadError> {
        self.records.next_with(|seq| self.shared.engine.lock().span_from(seq))
    }

    /// The chunks that a commit decides, if it names any.
    ///
    /// # Errors
    /// [`ReadError::NoPayload`].
    pub fn payload_of(&self, commit: &Record) -> Result<PayloadReader, ReadError> {
        let files = Files::new(&self.shared.path);
        let payload = Payload::of(commit, &self.shared.engine.lock(), files)?;
        Ok(PayloadReader { shared: Arc::clone(&self.shared), payload })
    }
}

impl Iterator for Reader {
    type Item = Result<Entry, ReadError>;

    fn next(&mut self) -> Option<Result<Entry, ReadError>> {
        self.try_next().transpose()
    }
}

/// Reads the chunks of a payload in order.
pub struct PayloadReader {
    shared: Arc<Shared>,
    payload: Payload<Files>,
}

impl Iterator for PayloadReader {
    type Item = Result<Bytes, ReadError>;

    fn next(&mut self) -> Option<Result<Bytes, ReadError>> {
        self.payload.next_with(|seq| self.shared.engine.lock().span_from(seq)).transpose()
    }
}

/// Puts the log in folder `path` aside, so that the next [`Log::open`] begins a new one there. For when the log is
/// shorter than the most advanced replica, or damaged. Returns the folder that the segments were moved to.
///
/// # Errors
/// The folder cannot be used, or holds no log. Interrupted or failed half-way, it can be called again.
pub fn retire(path: &Path) -> Result<PathBuf, OpenError> {
    Folder::open(path)?.retire()?.ok_or_else(|| OpenError::Missing(path.to_owned()))
}

struct Shared {
    path: PathBuf,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Locked for moments only, never during I/O. Never together with `queue`.
    engine: Mutex<Engine>,
    backlog_bytes: AtomicU64,
    written: Mutex<Written>,
}

/// What others leave for the log's thread. Held apart from the engine so that nobody who appends waits for a group to
/// be encoded.
struct Queue {
    /// Sees the same records in the same order as the engine's.
    gate: Gate,
    records: Vec<Record>,
    truncate: Option<Csn>,
    closing: bool,
    /// The thread waits to be woken; whoever clears this wakes it.
    asleep: bool,
}

impl Queue {
    fn new(gate: Gate) -> Queue {
        Queue { gate, records: Vec::new(), truncate: None, closing: false, asleep: false }
    }

    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.truncate.is_none() && !self.closing
    }
}

/// The log's thread.
struct Writer {
    shared: Arc<Shared>,
    folder: Folder,
    hooks: Hooks,
    effects: VecDeque<Effect>,
    /// Swapped with the queue's, so that both keep their memory.
    incoming: Vec<Record>,
    mark_after: Duration,
}

impl Writer {
    /// Carries out what opening the log needs.
    fn prepare(&mut self) -> Result<(), Fault> {
        while self.step() {}
        match self.shared.engine.lock().state() {
            State::Failed(fault) => Err(fault),
            _ => Ok(()),
        }
    }

    fn run_guarded(&mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.run()));
        if let Err(panic) = ended {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown panic");
            let segment = self.shared.engine.lock().durable().segment;
            let detail = format!("the log's thread panicked: {what}");
            let fault = Fault { action: Action::Write, segment, cause: Cause::Internal, detail };
            // If the hook is what panics, there is nobody left to tell.
            let _told = catch_unwind(AssertUnwindSafe(|| self.fail(fault)));
        }
    }

    fn run(&mut self) {
        loop {
            if self.step() {
                continue;
            }
            match self.shared.engine.lock().state() {
                State::Running | State::Closing => {}
                State::Closed | State::Failed(_) => return,
            }
            self.wait();
        }
    }

    /// Takes over what was left in the queue and carries out one effect; `false` if there is none.
    fn step(&mut self) -> bool {
        self.take_queue();
        let Some(effect) = self.effects.pop_front() else {
            return false;
        };
        let started = Instant::now();
        let event = self.folder.perform(&effect);
        self.count(&effect, started);
        if let Event::Failed(fault) = event {
            self.fail(fault);
            return false;
        }
        let mut more = Vec::new();
        let (before, after) = {
            let mut engine = self.shared.engine.lock();
            let before = (engine.durable(), engine.sizes().pending_bytes);
            engine.handle(event, &mut more);
            (before, (engine.durable(), engine.sizes().pending_bytes))
        };
        self.effects.extend(more);
        if after.0.seq > before.0.seq {
            self.shared.backlog_bytes.fetch_sub(before.1 - after.1, Ordering::Relaxed);
            let mut written = self.shared.written.lock();
            written.groups += 1;
            written.records += after.0.seq.0 - before.0.seq.0;
            drop(written);
            (self.hooks.on_durable)(Durable::up_to(after.0));
        }
        true
    }

    fn take_queue(&mut self) {
        let (truncate, closing) = {
            let mut queue = self.shared.queue.lock();
            std::mem::swap(&mut queue.records, &mut self.incoming);
            (queue.truncate.take(), std::mem::take(&mut queue.closing))
        };
        let idle = self.effects.is_empty();
        if self.incoming.is_empty() && truncate.is_none() && !closing && !idle {
            return;
        }
        let mut effects = Vec::new();
        let mut engine = self.shared.engine.lock();
        for record in self.incoming.drain(..) {
            engine.append(record).expect("the queue's gate admitted the record");
        }
        if let Some(csn) = truncate {
            engine.truncate_before(csn);
        }
        if closing {
            engine.close();
        }
        if idle {
            engine.flush(&mut effects);
        }
        drop(engine);
        self.effects.extend(effects);
    }

    /// Sleeps until somebody leaves something. Notes first that all is safe, once nothing has come for a while.
    fn wait(&mut self) {
        let wants_mark = self.shared.engine.lock().wants_mark();
        let mut queue = self.shared.queue.lock();
        if !queue.is_empty() {
            return;
        }
        queue.asleep = true;
        let timed_out = if wants_mark {
            self.shared.wake.wait_for(&mut queue, self.mark_after).timed_out()
        } else {
            self.shared.wake.wait(&mut queue);
            false
        };
        queue.asleep = false;
        drop(queue);
        if timed_out {
            let mut effects = Vec::new();
            self.shared.engine.lock().mark(&mut effects);
            self.effects.extend(effects);
        }
    }

    fn fail(&mut self, fault: Fault) {
        self.effects.clear();
        self.shared.queue.lock().gate.shut(AppendError::Failed);
        self.shared.engine.lock().handle(Event::Failed(fault.clone()), &mut Vec::new());
        (self.hooks.on_failed)(&fault);
    }

    fn count(&self, effect: &Effect, started: Instant) {
        let mut written = self.shared.written.lock();
        match effect {
            Effect::Write { bytes, .. } => written.bytes += bytes.len() as u64,
            Effect::Sync { .. } => {
                let took_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
                written.syncs += 1;
                written.sync_ns_total = written.sync_ns_total.saturating_add(took_ns);
                written.sync_ns_max = written.sync_ns_max.max(took_ns);
            }
            _ => {}
        }
    }
}
