//! What the threads of a shared log, those who append and the network have in common, behind two locks: the queue, where
//! others leave what they want, and the core, with the node. Whoever takes both takes the core first.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use parking_lot::{Condvar, MappedMutexGuard, Mutex, MutexGuard};

use super::{Confirmed, MemberEvent, MemberStatus, Network};
use crate::consensus::{Change, Effect, MemberError, Node, NodeId, ProposeError, ReadId, StopReason};
use crate::engine::{self, Engine, Fault, State};
use crate::gate::{AppendError, Gate};
use crate::log::{Driver, Durable, Status, Written};
use crate::record::{LogId, Record, Seq};

/// Bytes of messages that may wait for the node; more are dropped, as any network may.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// See the module.
pub(super) struct Hub {
    path: PathBuf,
    id: NodeId,
    pub(super) queue: Mutex<Queue>,
    /// With `queue`: the node's thread has something to do.
    pub(super) wake_node: Condvar,
    pub(super) core: Mutex<Core>,
    /// With `core`: the disk's thread has.
    pub(super) wake_disk: Condvar,
    /// Bytes of records in the queue and the core that were not proposed yet, and of those that are not durable on a
    /// majority.
    queued_bytes: AtomicU64,
    proposed_bytes: AtomicU64,
    pub(super) written: Mutex<Written>,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What others leave for the node's thread.
pub(super) struct Queue {
    /// Why no record is taken any more.
    shut: Option<AppendError>,
    /// Nothing else is, either.
    has_ended: bool,
    /// The rules for the next record, while the node leads; the same as the node's own, for when all that waits here is
    /// proposed.
    gate: Option<Gate>,
    records: VecDeque<Record>,
    pub(super) messages: VecDeque<Bytes>,
    message_bytes: usize,
    pub(super) confirms: Vec<(Option<Epoch>, Confirmed)>,
    pub(super) truncate: Option<Csn>,
    pub(super) closing: bool,
    /// There is something in the core.
    pub(super) poked: bool,
    /// The thread waits to be woken; whoever clears this wakes it.
    pub(super) asleep: bool,
}

/// The node, and what follows from its decisions. Locked for moments only.
pub(super) struct Core {
    pub(super) node: Node,
    network: Box<dyn Network>,
    /// Records that were taken from the queue and could not be proposed yet.
    waiting: VecDeque<Record>,
    /// For the disk's thread, in this order.
    pub(super) jobs: VecDeque<Job>,
    /// It is carrying one out.
    pub(super) is_disk_busy: bool,
    /// For the node's thread, in this order.
    pub(super) notices: Vec<Notice>,
    confirms: BTreeMap<ReadId, (Option<Epoch>, Confirmed)>,
    reads: u64,
    /// Of which was told last that another node speaks of it.
    other_log: Option<LogId>,
    pub(super) stopped: Option<StopReason>,
    /// Nothing comes in any more; what is being written is finished.
    pub(super) is_closing: bool,
    /// The threads are to end, or have.
    pub(super) has_ended: bool,
    /// Kept for its memory.
    effects: Vec<Effect>,
}

impl Core {
    /// Another node has spoken of this log.
    pub(super) fn tell_of_other_log(&mut self, log_id: LogId) {
        if self.other_log.replace(log_id) != Some(log_id) {
            self.notices.push(Notice::Event(MemberEvent::OtherLog { log_id }));
        }
    }
}

/// What the disk's thread has to do.
pub(super) enum Job {
    Carry(engine::Effect),
    /// See [`Effect::Fetch`].
    Fetch {
        from: Seq,
        to: Seq,
        bytes_max: u64,
    },
}

/// What the node's thread has to report.
pub(super) enum Notice {
    Durable(Durable),
    Event(MemberEvent),
    Confirmed(Confirmed, Csn),
    /// Nobody will call it.
    Forgotten(Confirmed),
}

impl Hub {
    pub(super) fn new(path: PathBuf, id: NodeId, node: Node, network: Box<dyn Network>) -> Hub {
        Hub {
            path,
            id,
            queue: Mutex::new(Queue {
                shut: None,
                has_ended: false,
                gate: None,
                records: VecDeque::new(),
                messages: VecDeque::new(),
                message_bytes: 0,
                confirms: Vec::new(),
                truncate: None,
                closing: false,
                poked: true,
                asleep: false,
            }),
            wake_node: Condvar::new(),
            core: Mutex::new(Core {
                node,
                network,
                waiting: VecDeque::new(),
                jobs: VecDeque::new(),
                is_disk_busy: false,
                notices: Vec::new(),
                confirms: BTreeMap::new(),
                reads: 0,
                other_log: None,
                stopped: None,
                is_closing: false,
                has_ended: false,
                effects: Vec::new(),
            }),
            wake_disk: Condvar::new(),
            queued_bytes: AtomicU64::new(0),
            proposed_bytes: AtomicU64::new(0),
            written: Mutex::new(Written::default()),
            threads: Mutex::new(Vec::new()),
        }
    }

    /// Leaves a message for the node.
    pub(super) fn receive(&self, message: Bytes) {
        let mut queue = self.queue.lock();
        if !queue.has_ended && queue.message_bytes + message.len() <= MESSAGE_BYTES_MAX {
            queue.message_bytes += message.len();
            queue.messages.push_back(message);
            self.notify(queue);
        }
    }

    /// Leaves a question for the node.
    pub(super) fn confirm(&self, epoch: Option<Epoch>, done: Confirmed) {
        let mut queue = self.queue.lock();
        if !queue.has_ended {
            queue.confirms.push((epoch, done));
            self.notify(queue);
        }
    }

    pub(super) fn change(&self, change: Change) -> Result<Seq, MemberError> {
        let changed = self.propose_behind_queue(|node, effects| node.change(change, effects));
        changed.map_err(|error| match error {
            Ok(error) => MemberError::Propose(error),
            Err(error) => error,
        })
    }

    pub(super) fn hand_over(&self) -> Option<NodeId> {
        let mut core = self.core.lock();
        let heir = self.act(&mut core, Node::hand_over);
        self.poke_for(core);
        heir
    }

    pub(super) fn accept_beginning(&self) {
        let mut core = self.core.lock();
        self.act(&mut core, Node::accept_beginning);
        self.poke_for(core);
    }

    pub(super) fn member_status(&self) -> MemberStatus {
        let core = self.core.lock();
        let node = &core.node;
        let works = core.stopped.is_none() && !core.has_ended;
        let members = node.members();
        let others = members.nodes().map(|(id, _)| id).filter(|id| *id != self.id);
        MemberStatus {
            node: self.id,
            epoch: node.epoch(),
            leader: node.leader(),
            leads: works && node.gate().is_some(),
            ready: works && node.is_ready(),
            committed: node.committed(),
            ordered: Seq(node.tail().0.0 - 1),
            members,
            matched: others.map(|id| (id, node.matched(id))).collect(),
            beginnings: node.beginnings(),
            stopped: core.stopped.clone(),
        }
    }

    /// Has the node do something, and hands on what follows from it.
    pub(super) fn act<R>(&self, core: &mut Core, act: impl FnOnce(&mut Node, &mut Vec<Effect>) -> R) -> R {
        let mut effects = std::mem::take(&mut core.effects);
        let acted = act(&mut core.node, &mut effects);
        self.hand_on(core, &mut effects);
        core.effects = effects;
        acted
    }

    /// Hands on what follows from something that the node has done.
    pub(super) fn hand_on(&self, core: &mut Core, effects: &mut Vec<Effect>) {
        self.proposed_bytes.store(core.node.proposed_bytes(), Ordering::Relaxed);
        for effect in effects.drain(..) {
            // After a stop, what was not carried out is not to be.
            if core.stopped.is_none() {
                self.hand_on_one(core, effect);
            }
        }
    }

    fn hand_on_one(&self, core: &mut Core, effect: Effect) {
        match effect {
            Effect::Send { to, message } => core.network.send(to, message),
            Effect::Disk(effect) => self.order(core, Job::Carry(effect)),
            Effect::Fetch { from, to, bytes_max } => self.order(core, Job::Fetch { from, to, bytes_max }),
            Effect::Committed { place, csn } => {
                core.notices.push(Notice::Durable(Durable { csn, seq: place }));
            }
            Effect::BecameLeader { epoch } => {
                let gate = core.node.gate().cloned();
                let mut queue = self.queue.lock();
                if queue.gate.as_ref().is_none_or(|gate| gate.epoch() != epoch) {
                    queue.gate = gate;
                }
                drop(queue);
                self.forget_confirms_but_of(core, Some(epoch));
                core.notices.push(Notice::Event(MemberEvent::Leads { epoch }));
            }
            Effect::LeaderReady { epoch, csn } => {
                core.notices.push(Notice::Event(MemberEvent::Ready { epoch, csn }));
            }
            Effect::BecameFollower { epoch, leader } => {
                self.queue.lock().gate = None;
                self.forget_confirms_but_of(core, None);
                core.notices.push(Notice::Event(MemberEvent::Follows { epoch, leader }));
            }
            Effect::ReadConfirmed { read, floor } => {
                if let Some((_, done)) = core.confirms.remove(&read) {
                    core.notices.push(Notice::Confirmed(done, floor));
                }
            }
            Effect::BeginningOffered { place, csn } => {
                core.notices.push(Notice::Event(MemberEvent::BeginningOffered { place, csn }));
            }
            Effect::Members(members) => core.notices.push(Notice::Event(MemberEvent::Members(members))),
            Effect::Stop(reason) => self.stop(core, reason),
        }
    }

    /// Nothing is taken, ordered or carried out any more.
    pub(super) fn stop(&self, core: &mut Core, reason: StopReason) {
        core.jobs.clear();
        core.is_disk_busy = false;
        core.stopped = Some(reason.clone());
        self.end_queue(AppendError::Failed);
        self.forget_confirms(core);
        core.notices.push(Notice::Event(MemberEvent::Stopped(reason)));
    }

    /// Takes nothing more, for `reason`; the first one stays.
    pub(super) fn end_queue(&self, reason: AppendError) {
        let mut queue = self.queue.lock();
        queue.has_ended = true;
        queue.shut.get_or_insert(reason);
        queue.gate = None;
    }

    /// Nobody who asked for the confirmation of something gets it.
    pub(super) fn forget_confirms(&self, core: &mut Core) {
        let asked = std::mem::take(&mut core.confirms).into_values();
        let left = std::mem::take(&mut self.queue.lock().confirms);
        let all = asked.chain(left).map(|(_, done)| Notice::Forgotten(done));
        core.notices.extend(all);
    }

    /// Takes up a question about the node's leader.
    pub(super) fn ask(&self, core: &mut Core, epoch: Option<Epoch>, done: Confirmed) {
        let leads = core.node.gate().map(|_| core.node.epoch());
        if core.stopped.is_some() || (epoch.is_some() && epoch != leads) {
            core.notices.push(Notice::Forgotten(done));
            return;
        }
        core.reads += 1;
        let read = ReadId(core.reads);
        core.confirms.insert(read, (epoch, done));
        self.act(core, |node, effects| node.read(read, effects));
    }

    /// Proposes what others have left, in order. What cannot be proposed yet waits; what never can is dropped.
    pub(super) fn propose_queue(&self, core: &mut Core) {
        let mut effects = std::mem::take(&mut core.effects);
        core.waiting.append(&mut self.queue.lock().records);
        if !core.waiting.is_empty() {
            // What waits is proposed when there is room.
            let _busy = self.propose_waiting(core, &mut effects);
            self.hand_on(core, &mut effects);
        }
        core.effects = effects;
    }

    fn propose_waiting(&self, core: &mut Core, effects: &mut Vec<Effect>) -> Result<(), ProposeError> {
        loop {
            let (bytes, outcome) = core.node.propose_gathered(&mut core.waiting, effects);
            self.proposed_bytes.store(core.node.proposed_bytes(), Ordering::Relaxed);
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            match outcome {
                Ok(()) => return Ok(()),
                Err(busy @ ProposeError::Busy { .. }) => return Err(busy),
                Err(_) => self.drop_oldest(core),
            }
        }
    }

    /// The term that appended the oldest record that waits is over.
    fn drop_oldest(&self, core: &mut Core) {
        let Some(record) = core.waiting.pop_front() else { return };
        self.queued_bytes.fetch_sub(record.frame_len(), Ordering::Relaxed);
        match core.notices.last_mut() {
            Some(Notice::Event(MemberEvent::Dropped { epoch, records })) if *epoch == record.epoch => {
                *records += 1;
            }
            _ => {
                let dropped = MemberEvent::Dropped { epoch: record.epoch, records: 1 };
                core.notices.push(Notice::Event(dropped));
            }
        }
    }

    /// Proposes something at once, behind all that others have left.
    fn propose_behind_queue<E>(
        &self,
        propose: impl FnOnce(&mut Node, &mut Vec<Effect>) -> Result<Seq, E>,
    ) -> Result<Seq, Result<ProposeError, E>> {
        let mut core = self.core.lock();
        let mut effects = std::mem::take(&mut core.effects);
        let proposed = {
            // Held until the queue knows which place is the next.
            let mut queue = self.queue.lock();
            core.waiting.append(&mut queue.records);
            let proposed = match self.propose_waiting(&mut core, &mut effects) {
                Ok(()) => propose(&mut core.node, &mut effects).map_err(Err),
                Err(busy) => Err(Ok(busy)),
            };
            if core.waiting.is_empty() && queue.shut.is_none() {
                queue.gate = core.node.gate().cloned();
            }
            proposed
        };
        self.hand_on(&mut core, &mut effects);
        core.effects = effects;
        self.poke_for(core);
        proposed
    }

    fn forget_confirms_but_of(&self, core: &mut Core, epoch: Option<Epoch>) {
        let over = |of: &Option<Epoch>| of.is_some() && *of != epoch;
        let reads: Vec<ReadId> =
            core.confirms.iter().filter(|(_, (of, _))| over(of)).map(|(read, _)| *read).collect();
        for read in reads {
            core.node.forget_read(read);
            let done = core.confirms.remove(&read).map(|(_, done)| Notice::Forgotten(done));
            core.notices.extend(done);
        }
    }

    fn order(&self, core: &mut Core, job: Job) {
        core.jobs.push_back(job);
        self.wake_disk.notify_one();
    }

    /// Has the node's thread look into the core, if there is something for it.
    pub(super) fn poke_for(&self, core: MutexGuard<'_, Core>) {
        let has_notices = !core.notices.is_empty();
        drop(core);
        if has_notices {
            self.poke();
        }
    }

    /// Has the node's thread look into the core.
    pub(super) fn poke(&self) {
        let mut queue = self.queue.lock();
        queue.poked = true;
        self.notify(queue);
    }

    fn notify(&self, mut queue: MutexGuard<'_, Queue>) {
        let asleep = std::mem::take(&mut queue.asleep);
        drop(queue);
        if asleep {
            self.wake_node.notify_one();
        }
    }
}

impl Queue {
    /// Gives a record its place.
    fn admit(&mut self, record: &mut Record) -> Result<Seq, AppendError> {
        if let Some(reason) = self.shut {
            return Err(reason);
        }
        match &mut self.gate {
            Some(gate) if gate.epoch() == record.epoch => gate.admit(record),
            _ => Err(AppendError::NotLeading { epoch: record.epoch }),
        }
    }

    pub(super) fn take_messages(&mut self) -> VecDeque<Bytes> {
        self.message_bytes = 0;
        std::mem::take(&mut self.messages)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.messages.is_empty()
            && self.confirms.is_empty()
            && self.truncate.is_none()
            && !self.closing
            && !self.poked
    }
}

impl Driver for Hub {
    fn path(&self) -> &Path {
        &self.path
    }

    fn engine(&self) -> MappedMutexGuard<'_, Engine> {
        MutexGuard::map(self.core.lock(), |core| core.node.engine_mut())
    }

    fn append(&self, record: Record) -> Result<Seq, AppendError> {
        if let Some(reason) = self.queue.lock().shut {
            return Err(reason);
        }
        let epoch = record.epoch;
        let proposed = self.propose_behind_queue(|node, effects| node.propose(record, effects));
        proposed.map_err(|error| match error {
            Ok(error) | Err(error) => match error {
                ProposeError::NotLeader { .. } => AppendError::NotLeading { epoch },
                ProposeError::Busy { bytes } => AppendError::Busy { bytes },
                ProposeError::Record(AppendError::OldEpoch { .. }) => AppendError::NotLeading { epoch },
                ProposeError::Record(error) => error,
            },
        })
    }

    fn append_quietly(&self, mut record: Record) -> Result<Seq, AppendError> {
        let len = record.frame_len();
        let mut queue = self.queue.lock();
        let seq = queue.admit(&mut record)?;
        queue.records.push_back(record);
        self.queued_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(seq)
    }

    fn wake(&self) {
        self.notify(self.queue.lock());
    }

    fn truncate_before(&self, csn: Csn) {
        let mut queue = self.queue.lock();
        queue.truncate = queue.truncate.max(Some(csn));
        self.notify(queue);
    }

    fn backlog_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed) + self.proposed_bytes.load(Ordering::Relaxed)
    }

    fn status(&self) -> Status {
        let written = *self.written.lock();
        let core = self.core.lock();
        let engine = core.node.engine();
        let state = match &core.stopped {
            Some(StopReason::Disk(fault)) => State::Failed(fault.clone()),
            Some(reason) => State::Stopped(reason.clone()),
            None if core.has_ended => State::Closed,
            None if core.is_closing => State::Closing,
            None => engine.state(),
        };
        Status {
            state,
            log_id: engine.log_id(),
            epoch: engine.catalog().epoch(),
            first: engine.first(),
            appended: core.node.tail().1,
            durable: Durable::of(engine),
            backlog_bytes: self.backlog_bytes(),
            sizes: engine.sizes(),
            written,
        }
    }

    fn close(&self) -> Result<(), Fault> {
        let mut queue = self.queue.lock();
        queue.closing = true;
        queue.shut.get_or_insert(AppendError::Closed);
        self.notify(queue);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != thread::current().id()) {
            // The threads catch their own panics: they are in the core.
            let _ended = thread.join();
        }
        match &self.core.lock().stopped {
            Some(StopReason::Disk(fault)) => Err(fault.clone()),
            _ => Ok(()),
        }
    }
}
