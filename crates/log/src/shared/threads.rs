//! The threads of a shared log.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::state::{Core, Hub, Job, Notice};
use super::{SharedHooks, SharedOptions, ms};
use crate::consensus::{Dropped, Effect, Node, StopReason};
use crate::disk::{Files, Folder};
use crate::gate::AppendError;
use crate::log::{OpenError, panic_fault};
use crate::reader::Ordered;
use crate::record::{Entry, Seq};

/// Starts both. `effects` is what is left to be done of opening the log.
pub(super) fn start(
    hub: &Arc<Hub>,
    mut effects: Vec<Effect>,
    folder: Folder,
    options: &SharedOptions,
    hooks: SharedHooks,
) -> Result<(), OpenError> {
    hub.hand_on(&mut hub.core.lock(), &mut effects);
    let disk = DiskThread { hub: Arc::clone(hub), folder, mark_after: ms(options.mark_after_ms) };
    let tick = ms(options.tick_ms.max(1));
    let node = NodeThread {
        hub: Arc::clone(hub),
        hooks,
        tick,
        next_tick: Instant::now() + tick,
        random: options.random ^ options.incarnation.rotate_left(32) ^ options.node.0,
        closing_until: None,
        closing_after: tick * u32::from(options.election_ticks),
    };
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
        thread.map(|thread| hub.threads.lock().push(thread)).map_err(OpenError::Thread)
    };
    spawn("onecopy-log", Box::new(move || disk.run_guarded()))?;
    let started = spawn("onecopy-node", Box::new(move || node.run_guarded()));
    if started.is_err() {
        hub.end(hub.core.lock());
    }
    started
}

impl Hub {
    /// The threads are to end.
    fn end(&self, mut core: MutexGuard<'_, Core>) {
        core.has_ended = true;
        self.end_queue(AppendError::Closed);
        self.forget_confirms(&mut core);
        self.wake_disk.notify_one();
    }

    /// A thread has panicked: our bug.
    fn on_panic(&self, panic: &(dyn std::any::Any + Send)) {
        let mut core = self.core.lock();
        if core.stopped.is_none() {
            let fault = panic_fault(panic, core.node.engine());
            self.stop(&mut core, StopReason::Disk(fault));
        }
    }
}

/// Has the clock; takes what others leave, and reports.
struct NodeThread {
    hub: Arc<Hub>,
    hooks: SharedHooks,
    tick: Duration,
    next_tick: Instant,
    /// The state of the generator.
    random: u64,
    /// When it stops waiting for a majority to have what was proposed.
    closing_until: Option<Instant>,
    closing_after: Duration,
}

impl NodeThread {
    fn run_guarded(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.run()));
        if let Err(panic) = ended {
            self.hub.on_panic(&*panic);
            self.hub.end(self.hub.core.lock());
            // If a hook is what panics, there is nobody left to tell.
            let _told = catch_unwind(AssertUnwindSafe(|| self.report()));
        }
    }

    fn run(&mut self) {
        loop {
            self.wait();
            let has_ended = self.step();
            self.report();
            if has_ended {
                return;
            }
        }
    }

    /// Sleeps until somebody leaves something, or time has passed.
    fn wait(&self) {
        let mut queue = self.hub.queue.lock();
        if queue.is_empty() {
            queue.asleep = true;
            self.hub.wake_node.wait_until(&mut queue, self.next_tick);
            queue.asleep = false;
        }
        queue.poked = false;
    }

    /// Gives the node all that there is for it. Returns whether the log is closed.
    fn step(&mut self) -> bool {
        let (messages, confirms, truncate, closing) = {
            let mut queue = self.hub.queue.lock();
            let confirms = std::mem::take(&mut queue.confirms);
            let closing = std::mem::take(&mut queue.closing);
            (queue.take_messages(), confirms, queue.truncate.take(), closing)
        };
        let now = Instant::now();
        if closing {
            self.closing_until.get_or_insert(now + self.closing_after);
        }
        self.hub.propose_queue(&mut self.hub.core.lock());
        for message in messages {
            let mut core = self.hub.core.lock();
            if !core.is_closing {
                // What is dropped harms nobody.
                let heard = self.hub.act(&mut core, |node, effects| node.receive(message, effects));
                if let Err(Dropped::OtherLog(log_id)) = heard {
                    core.tell_of_other_log(log_id);
                }
            }
        }
        let random = self.draw();
        let mut core = self.hub.core.lock();
        // What had to wait may have room now.
        self.hub.propose_queue(&mut core);
        for (epoch, done) in confirms {
            self.hub.ask(&mut core, epoch, done);
        }
        if let Some(csn) = truncate {
            self.hub.act(&mut core, |node, effects| node.truncate_before(csn, effects));
        }
        if now >= self.next_tick {
            // A clock that stood still has not seen what others would have said meanwhile: the time is not made up for.
            self.next_tick = now + self.tick;
            if !core.is_closing {
                self.hub.act(&mut core, |node, effects| node.tick(random, effects));
            }
        }
        match self.closing_until {
            Some(until) => self.close(core, now >= until),
            None => false,
        }
    }

    /// Brings what was proposed to a majority, if time permits, then what is being written to an end, then says in the
    /// file that all of it is safe. Returns whether that is done.
    fn close(&self, mut core: MutexGuard<'_, Core>, is_late: bool) -> bool {
        if core.stopped.is_none() {
            let is_idle = |core: &Core| core.jobs.is_empty() && !core.is_disk_busy;
            if !core.is_closing && core.node.proposed_bytes() > 0 && !is_late {
                return false;
            }
            core.is_closing = true;
            if is_idle(&core) {
                self.hub.act(&mut core, Node::mark);
            }
            if !is_idle(&core) {
                return false;
            }
        }
        self.hub.end(core);
        true
    }

    /// Reports, with nothing locked.
    fn report(&mut self) {
        let notices = std::mem::take(&mut self.hub.core.lock().notices);
        for notice in notices {
            match notice {
                Notice::Durable(durable) => (self.hooks.on_durable)(durable),
                Notice::Event(event) => (self.hooks.on_event)(event),
                Notice::Confirmed(done, floor) => done(floor),
                Notice::Forgotten(done) => drop(done),
            }
        }
    }

    /// The next number (SplitMix64).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }
}

/// Has the disk.
struct DiskThread {
    hub: Arc<Hub>,
    folder: Folder,
    mark_after: Duration,
}

impl DiskThread {
    fn run_guarded(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.run()));
        if let Err(panic) = ended {
            self.hub.on_panic(&*panic);
            self.hub.poke();
        }
    }

    fn run(&mut self) {
        while let Some(job) = self.next() {
            match job {
                Job::Carry(effect) => self.carry_out(&effect),
                Job::Fetch { from, to, bytes_max } => self.fetch(from, to, bytes_max),
            }
        }
    }

    /// What is to be done next, once there is something; `None` at the end. Notes first that all is safe, when nothing
    /// has come for a while.
    fn next(&self) -> Option<Job> {
        let mut core = self.hub.core.lock();
        core.is_disk_busy = false;
        if core.is_closing && core.jobs.is_empty() {
            self.hub.poke();
        }
        loop {
            if let Some(job) = core.jobs.pop_front() {
                core.is_disk_busy = true;
                return Some(job);
            }
            if core.has_ended {
                return None;
            }
            let wants_mark = core.stopped.is_none() && core.node.engine().wants_mark();
            if !wants_mark {
                self.hub.wake_disk.wait(&mut core);
            } else if self.hub.wake_disk.wait_for(&mut core, self.mark_after).timed_out() {
                self.hub.act(&mut core, Node::mark);
                if core.jobs.is_empty() && !core.has_ended {
                    // Not now: something else has to be done first, which will wake this thread.
                    self.hub.wake_disk.wait(&mut core);
                }
            }
        }
    }

    fn carry_out(&mut self, effect: &crate::engine::Effect) {
        let started = Instant::now();
        let event = self.folder.perform(effect);
        self.hub.written.lock().count(effect, started.elapsed());
        let mut core = self.hub.core.lock();
        let before = core.node.engine().durable().seq;
        self.hub.act(&mut core, |node, effects| node.on_disk(event, effects));
        let after = core.node.engine().durable().seq;
        if after > before && matches!(effect, crate::engine::Effect::Sync { .. }) {
            self.hub.written.lock().count_group(after.0 - before.0);
        }
        self.hub.poke_for(core);
    }

    fn fetch(&self, from: Seq, to: Seq, bytes_max: u64) {
        // Nothing, if it cannot be read: whoever needs it asks again.
        let records = self.read(from, to, bytes_max).unwrap_or_default();
        let mut core = self.hub.core.lock();
        self.hub.act(&mut core, |node, effects| node.on_fetched(from, records, effects));
        self.hub.poke_for(core);
    }

    fn read(&self, from: Seq, to: Seq, bytes_max: u64) -> Result<Vec<Entry>, crate::ReadError> {
        let files = Files::new(crate::log::Driver::path(&*self.hub));
        let ordered = Ordered::from(from, self.hub.core.lock().node.engine(), files)?;
        ordered.read_with(to, bytes_max, |seq| self.hub.core.lock().node.engine().durable_span_from(seq))
    }
}
