//! The log of a node that is alone: one thread that owns the engine's disk.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use onecopy_core::Csn;
use parking_lot::{Condvar, MappedMutexGuard, Mutex, MutexGuard};

use crate::disk::Folder;
use crate::engine::{Effect, Engine, Event, Fault, State};
use crate::gate::{AppendError, Gate};
use crate::log::{Driver, Durable, Hooks, OpenError, Status, Written, panic_fault};
use crate::record::{Record, Seq};

/// See the module.
pub(crate) struct Alone {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Alone {
    /// Carries out `effects`, which opening the log needs, and starts the thread.
    pub(crate) fn start(
        engine: Engine,
        effects: Vec<Effect>,
        folder: Folder,
        path: &Path,
        mark_after: Duration,
        hooks: Hooks,
    ) -> Result<Alone, OpenError> {
        let queue = Queue::new(engine.gate().clone());
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            engine: Mutex::new(engine),
            backlog_bytes: AtomicU64::new(0),
            written: Mutex::new(Written::default()),
        });
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
        Ok(Alone { shared, thread })
    }
}

impl Driver for Alone {
    fn path(&self) -> &Path {
        &self.shared.path
    }

    fn engine(&self) -> MappedMutexGuard<'_, Engine> {
        MutexGuard::map(self.shared.engine.lock(), |engine| engine)
    }

    fn append(&self, record: Record) -> Result<Seq, AppendError> {
        let seq = self.append_quietly(record)?;
        self.wake();
        Ok(seq)
    }

    fn append_quietly(&self, mut record: Record) -> Result<Seq, AppendError> {
        let len = record.frame_len();
        let mut queue = self.shared.queue.lock();
        let seq = queue.gate.admit(&mut record)?;
        queue.records.push(record);
        self.shared.backlog_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(seq)
    }

    fn wake(&self) {
        let asleep = std::mem::take(&mut self.shared.queue.lock().asleep);
        if asleep {
            self.shared.wake.notify_one();
        }
    }

    fn truncate_before(&self, csn: Csn) {
        let mut queue = self.shared.queue.lock();
        queue.truncate = queue.truncate.max(Some(csn));
        drop(queue);
        self.wake();
    }

    fn backlog_bytes(&self) -> u64 {
        self.shared.backlog_bytes.load(Ordering::Relaxed)
    }

    fn status(&self) -> Status {
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
            durable: Durable::of(&engine),
            backlog_bytes: self.backlog_bytes(),
            sizes: engine.sizes(),
            written,
        }
    }

    fn close(&self) -> Result<(), Fault> {
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
            let fault = panic_fault(&*panic, &self.shared.engine.lock());
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
                State::Closed | State::Failed(_) | State::Stopped(_) => return,
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
        self.shared.written.lock().count(&effect, started.elapsed());
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
            self.shared.written.lock().count_group(after.0.seq.0 - before.0.seq.0);
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
}
