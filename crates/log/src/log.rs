//! The log as the rest of the program sees it, whether a node has it alone (`alone.rs`) or shares it (`shared.rs`): any
//! number of threads append and read, and those of the driver write.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use parking_lot::MappedMutexGuard;
use thiserror::Error;

use crate::alone::Alone;
use crate::catalog::{Position, Undecided};
use crate::disk::{Files, Folder, FolderError};
use crate::engine::{Action, Cause, Effect, Engine, Fault, Genesis, Settings, Sizes, State};
use crate::gate::AppendError;
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
    pub(crate) fn up_to(position: Position) -> Durable {
        Durable { csn: position.csn, seq: Seq(position.seq.0.saturating_sub(1)) }
    }

    /// What readers may see of a log.
    pub(crate) fn of(engine: &Engine) -> Durable {
        Durable::up_to(engine.catalog().settled_end())
    }
}

/// What the log reports on its own. Called on the log's thread, which writes nothing meanwhile: return quickly. They
/// may append and read, but must not close the log.
pub struct Hooks {
    pub(crate) on_durable: Box<dyn FnMut(Durable) + Send>,
    pub(crate) on_failed: Box<dyn FnMut(&Fault) + Send>,
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
    /// The folder holds a log, and none was to be there.
    #[error("there is a commit log in {} already", .0.display())]
    Exists(PathBuf),
    /// The log was this node's alone, and the node is not to count for majorities.
    #[error("the commit log in {} was this node's alone, so this node must count for majorities: leave out its `voting = false`", .0.display())]
    Alone(PathBuf),
    /// The log cannot be that of this node.
    #[error(transparent)]
    Node(#[from] crate::consensus::OpenError),
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

impl Written {
    /// An effect was carried out.
    pub(crate) fn count(&mut self, effect: &Effect, took: Duration) {
        match effect {
            Effect::Write { bytes, .. } => self.bytes += bytes.len() as u64,
            Effect::Sync { .. } => {
                let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                self.syncs += 1;
                self.sync_ns_total = self.sync_ns_total.saturating_add(took_ns);
                self.sync_ns_max = self.sync_ns_max.max(took_ns);
            }
            _ => {}
        }
    }

    /// A group became durable.
    pub(crate) fn count_group(&mut self, records: u64) {
        self.groups += 1;
        self.records += records;
    }
}

/// What a log holds now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its name.
    pub log_id: LogId,
    /// The epoch of its last durable record.
    pub epoch: Epoch,
    /// The first commit that can be read; `last.next()` if there is none.
    pub first: Csn,
    /// The last durable commit; of a log that several nodes share, the last that is durable on a majority.
    pub last: Csn,
    /// Commits up to there that never happen, in the order in which that was decided.
    pub annulled: Vec<Csn>,
    /// The last durable record of [`crate::Kind::REPLICAS`]: its place and body.
    pub replicas: Option<(Seq, Bytes)>,
}

/// What a [`Log`] needs of whoever drives its engine.
pub(crate) trait Driver: Send + Sync {
    /// The folder.
    fn path(&self) -> &Path;
    /// The engine, to be looked at for a moment.
    fn engine(&self) -> MappedMutexGuard<'_, Engine>;
    /// See [`Log::append`].
    fn append(&self, record: Record) -> Result<Seq, AppendError>;
    /// See [`Log::append_quietly`].
    fn append_quietly(&self, record: Record) -> Result<Seq, AppendError>;
    /// See [`Log::wake`].
    fn wake(&self);
    /// See [`Log::truncate_before`].
    fn truncate_before(&self, csn: Csn);
    /// See [`Log::backlog_bytes`].
    fn backlog_bytes(&self) -> u64;
    /// See [`Log::status`].
    fn status(&self) -> Status;
    /// See [`Log::close`].
    fn close(&self) -> Result<(), Fault>;
}

/// What to tell of a driver's thread that panicked.
pub(crate) fn panic_fault(panic: &(dyn Any + Send), engine: &Engine) -> Fault {
    let what = panic.downcast_ref::<String>().map(String::as_str);
    let what = what.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown panic");
    let segment = engine.durable().segment;
    let detail = format!("the log's thread panicked: {what}");
    Fault { action: Action::Write, segment, cause: Cause::Internal, detail }
}

/// An open commit log. Dropping it closes it in order.
pub struct Log {
    pub(crate) driver: Arc<dyn Driver>,
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
                    annulled: recovery.annulled(),
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
        let mark_after = Duration::from_millis(options.mark_after_ms);
        let driver = Alone::start(engine, effects, folder, path, mark_after, hooks)?;
        Ok((Log { driver: Arc::new(driver) }, recovered))
    }

    /// Hands a record over. It is durable when `on_durable` reports its place, which is returned, or a later one.
    /// Never waits for the disk. Whoever appends has to watch [`Log::backlog_bytes`]: nothing else bounds it.
    ///
    /// # Errors
    /// Why the record was refused; then nothing has changed.
    pub fn append(&self, record: Record) -> Result<Seq, AppendError> {
        self.driver.append(record)
    }

    /// Like [`Log::append`], but [`Log::wake`] has to follow: for those who append under a lock of their own, which
    /// the thread that writes, once it is awake, would make them hold for longer.
    ///
    /// # Errors
    /// Why the record was refused; then nothing has changed.
    pub fn append_quietly(&self, record: Record) -> Result<Seq, AppendError> {
        self.driver.append_quietly(record)
    }

    /// Has what was appended written.
    pub fn wake(&self) {
        self.driver.wake();
    }

    /// Reads all durable records behind commit `csn - 1`, and those that become durable meanwhile.
    ///
    /// # Errors
    /// [`ReadError::Truncated`] or [`ReadError::Beyond`].
    pub fn read_from(&self, csn: Csn) -> Result<Reader, ReadError> {
        let files = Files::new(self.driver.path());
        let records = Records::from(csn, &self.driver.engine(), files)?;
        Ok(Reader { driver: Arc::clone(&self.driver), records })
    }

    /// Nobody needs commits before `csn` any more: drops the segments that hold only such. Other records that must
    /// outlive them (reservations, maintenance) have to be appended again first.
    pub fn truncate_before(&self, csn: Csn) {
        self.driver.truncate_before(csn);
    }

    /// The argument to [`Log::truncate_before`] that leaves at most `bytes_max` bytes, but never less than the last
    /// segment: for a bound on what is kept for replicas that are away.
    #[must_use]
    pub fn oldest_within(&self, bytes_max: u64) -> Csn {
        self.driver.engine().oldest_within(bytes_max)
    }

    /// The argument to [`Log::truncate_before`] that keeps a record, and as little before it as can be: for a node that
    /// lacks it.
    #[must_use]
    pub fn keeping(&self, seq: Seq) -> Csn {
        self.driver.engine().keeping(seq)
    }

    /// Bytes appended that are not durable yet, and so held in memory.
    #[must_use]
    pub fn backlog_bytes(&self) -> u64 {
        self.driver.backlog_bytes()
    }

    /// How far the log is durable.
    #[must_use]
    pub fn durable(&self) -> Durable {
        Durable::of(&self.driver.engine())
    }

    /// What the log holds now.
    #[must_use]
    pub fn held(&self) -> Held {
        let engine = self.driver.engine();
        let Durable { csn: last, seq } = Durable::of(&engine);
        let epoch = engine.catalog().epoch_of(seq);
        let (annulled, replicas) = (engine.noted().annulled_up_to(seq), engine.noted().replicas_at(seq));
        Held { log_id: engine.log_id(), epoch, first: engine.first(), last, annulled, replicas }
    }

    /// The log's figures.
    #[must_use]
    pub fn status(&self) -> Status {
        self.driver.status()
    }

    /// Writes what is pending, brings everything to stable storage, whatever the durability, and ends the thread.
    /// Later calls return the same.
    ///
    /// # Errors
    /// The failure that stopped the log, now or before.
    pub fn close(&self) -> Result<(), Fault> {
        self.driver.close()
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
    driver: Arc<dyn Driver>,
    records: Records<Files>,
}

impl Reader {
    /// The next record that is no payload chunk; `None` if none is durable yet.
    ///
    /// # Errors
    /// [`ReadError`]; the next call tries the same record again.
    pub fn try_next(&mut self) -> Result<Option<Entry>, ReadError> {
        self.records.next_with(|seq| self.driver.engine().span_from(seq))
    }

    /// The chunks that a commit decides, if it names any.
    ///
    /// # Errors
    /// [`ReadError::NoPayload`].
    pub fn payload_of(&self, commit: &Record) -> Result<PayloadReader, ReadError> {
        let files = Files::new(self.driver.path());
        let payload = Payload::of(commit, &self.driver.engine(), files)?;
        Ok(PayloadReader { driver: Arc::clone(&self.driver), payload })
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
    driver: Arc<dyn Driver>,
    payload: Payload<Files>,
}

impl Iterator for PayloadReader {
    type Item = Result<Bytes, ReadError>;

    fn next(&mut self) -> Option<Result<Bytes, ReadError>> {
        self.payload.next_with(|seq| self.driver.engine().span_from(seq)).transpose()
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
