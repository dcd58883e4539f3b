//! The core behind a lock, and the carrying of its effects to those who act: sessions, agents, the log.
//!
//! Effects are routed while the lock is held, so that everyone receives them in the order in which they were given;
//! routing only appends to queues and never waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use onecopy_core::protocol::{Foresight, Statements, Writes as WritesAt};
use onecopy_core::{
    Begin, Csn, Decision, Effect, Event, How, Instant, NodeId, OpId, Place, Protocol, Refusal, ReplicaId,
    Statement, Status, TableId, TxnId,
};
use onecopy_wire::backend::ErrorFields;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::lane::SocketHandle;
use crate::notifications::{Channels, Notification};
use crate::record::Record;
use crate::scheduled::{Errand, Everywhere, Rest, Spread};

/// What the core wants of the session that carries a transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Directive {
    Execute { op: OpId, replica: ReplicaId, how: How, hold: bool },
    Release { op: OpId, replica: ReplicaId },
    Revalidate { replica: ReplicaId, how: How },
    Leave { replica: ReplicaId },
    Finish { op: OpId, replica: Option<ReplicaId> },
    Withdraw { op: OpId },
    Refuse { op: OpId, reason: Refusal },
    CommitAt { replica: ReplicaId, csn: Csn },
    Acknowledge { op: OpId, csn: Csn },
    Annul { reason: Arc<ErrorFields> },
    Values { op: OpId, values: SmallVec<[Option<i64>; 2]> },
}

/// Where a session finds its directives.
#[derive(Default)]
pub struct Mail {
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    directives: VecDeque<(TxnId, Directive)>,
    waker: Option<Waker>,
}

impl Mail {
    /// Returns whom to wake.
    fn post(&self, txn: TxnId, directive: Directive) -> Option<Waker> {
        let mut inbox = self.inbox.lock();
        inbox.directives.push_back((txn, directive));
        inbox.waker.take()
    }

    /// The next directive for this transaction; those for earlier ones are dropped: their sessions have gone on.
    pub fn take(&self, txn: TxnId) -> Option<Directive> {
        let mut inbox = self.inbox.lock();
        while let Some((to, directive)) = inbox.directives.pop_front() {
            if to == txn {
                return Some(directive);
            }
        }
        None
    }

    pub async fn next(&self, txn: TxnId) -> Directive {
        poll_fn(|cx| {
            if let Some(directive) = self.take(txn) {
                return Poll::Ready(directive);
            }
            let mut inbox = self.inbox.lock();
            if inbox.directives.is_empty() {
                inbox.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            drop(inbox);
            self.take(txn).map_or_else(
                || {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                },
                Poll::Ready,
            )
        })
        .await
    }
}

/// Decisions that an agent shall apply, in order and without overlap.
#[derive(Default)]
pub struct AgentQueue {
    inbox: Mutex<AgentInbox>,
}

#[derive(Default)]
struct AgentInbox {
    runs: VecDeque<(Csn, Csn)>,
    waker: Option<Waker>,
    suspected: Option<String>,
    suspicion_waker: Option<Waker>,
}

impl AgentQueue {
    /// Returns whom to wake.
    fn apply(&self, from: Csn, to: Csn) -> Option<Waker> {
        self.post(|inbox| inbox.runs.push_back((from, to)))
    }

    /// A connection to the replica was lost: it is to be fenced before it serves again (design 3.4).
    pub fn suspect(&self, reason: &str) {
        let waker = {
            let mut inbox = self.inbox.lock();
            inbox.suspected.get_or_insert_with(|| reason.to_owned());
            inbox.suspicion_waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn post(&self, put: impl FnOnce(&mut AgentInbox)) -> Option<Waker> {
        let mut inbox = self.inbox.lock();
        put(&mut inbox);
        inbox.waker.take()
    }

    /// Forgets what was asked of an earlier incarnation.
    pub fn clear(&self) {
        let mut inbox = self.inbox.lock();
        inbox.runs.clear();
        inbox.suspected = None;
    }

    /// The first and the last of the next commits to apply.
    pub async fn next(&self) -> (Csn, Csn) {
        self.wait(|inbox| inbox.runs.pop_front(), |inbox| &mut inbox.waker).await
    }

    /// Waits until somebody has lost a connection to the replica, and says for which reason.
    pub async fn suspected(&self) -> String {
        self.wait(|inbox| inbox.suspected.take(), |inbox| &mut inbox.suspicion_waker).await
    }

    /// Waits until there is something to take; one for each kind may wait.
    async fn wait<T>(
        &self,
        take: impl Fn(&mut AgentInbox) -> Option<T>,
        waker: impl Fn(&mut AgentInbox) -> &mut Option<Waker>,
    ) -> T {
        poll_fn(|cx| {
            let mut inbox = self.inbox.lock();
            if let Some(taken) = take(&mut inbox) {
                return Poll::Ready(taken);
            }
            *waker(&mut inbox) = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// How the scheduler makes decisions durable.
pub trait Decisions: Send + Sync {
    /// Appends without waiting; durability is reported by [`Scheduler::handle`] with `Event::Durable`.
    fn append(&self, csn: Csn, body: Bytes);
    /// Has what was appended written. Called without the scheduler's lock.
    fn wake(&self);
}

/// A transaction that is decided and open at its home, with the messages that commit it there: whoever learns that its
/// turn has come sends them, since commits follow each other and each that waited for its session's thread would hold up
/// those behind it.
#[derive(Debug)]
pub struct ArmedCommit {
    pub replica: ReplicaId,
    /// Ending in a Sync.
    pub messages: Bytes,
    pub socket: Arc<SocketHandle>,
}

/// What follows from an event and is done without the lock: woken threads that find it taken would only wait.
#[derive(Default)]
#[must_use]
struct Outbox {
    wakers: SmallVec<[Waker; 4]>,
    commits: SmallVec<[ArmedCommit; 1]>,
    errands: SmallVec<[Errand; 0]>,
    appended: bool,
}

impl Outbox {
    fn post(&mut self, state: &State, txn: TxnId, directive: Directive) {
        match state.mails.get(&txn) {
            Some(mail) => self.wakers.extend(mail.post(txn, directive)),
            // The client vanished; its lanes were closed with it.
            None => tracing::debug!(?txn, ?directive, "no session: ignoring"),
        }
    }

    fn deliver(self, decisions: &dyn Decisions) {
        // What others wait for comes first.
        for commit in self.commits {
            commit.socket.send(&commit.messages);
        }
        if self.appended {
            decisions.wake();
        }
        for errand in self.errands {
            errand.run();
        }
        for waker in self.wakers {
            waker.wake();
        }
    }
}

/// What a transaction wrote.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    /// As it is logged.
    pub body: Bytes,
    /// The same, not encoded, with what is known of it beside; unless it is large.
    pub record: Option<Arc<Record>>,
    /// Whose commit it is, if that is counted.
    pub commits: Option<Commits>,
}

/// How many commits a session has made. The decision itself counts them: an attempt that fails, however late, uses no number
/// up, and what is decided has used one whether or not its session ever hears of it.
#[derive(Clone, Debug, Default)]
pub struct Commits(Arc<AtomicU64>);

impl Commits {
    /// So many are made already.
    pub fn new(made: u64) -> Commits {
        Commits(Arc::new(AtomicU64::new(made)))
    }

    pub fn made(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn count(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Writes {
    /// Bytes that they take in memory, about.
    fn len(&self) -> usize {
        let record = if self.record.is_some() { self.body.len() } else { 0 };
        WRITES_LEN + self.body.len() + record
    }
}

/// Bytes of one decision in memory beside its body.
const WRITES_LEN: usize = 200;
/// Longer records are kept in memory only as they are logged, not once more.
const RECORD_LEN_KEPT: usize = 64 * 1024;

impl Writes {
    pub fn of(record: Record) -> Writes {
        let body = record.encode();
        let record = (body.len() <= RECORD_LEN_KEPT).then(|| Arc::new(record));
        Writes { body, record, commits: None }
    }
}

struct State {
    protocol: Box<dyn Protocol>,
    effects: Vec<Effect>,
    mails: HashMap<TxnId, Arc<Mail>>,
    /// Writes of transactions that may be decided at any moment.
    writes: HashMap<TxnId, Writes>,
    /// Commits whose turn has not come.
    armed: HashMap<TxnId, ArmedCommit>,
    /// Where the protocol executes writes on every replica.
    everywhere: Option<Box<Everywhere>>,
    /// Notifications of transactions that are about to end well.
    notifications: HashMap<TxnId, Vec<Notification>>,
    recent: Recent,
    /// The last commit that any replica has contained since the start.
    contained: Csn,
    /// Commits that replicas pass over, and what to tell their clients.
    annulled: HashMap<Csn, Arc<ErrorFields>>,
    next_txn: u64,
}

/// The last decisions that some replica may still have to apply, as many as fit; the log has the others.
struct Recent {
    writes: BTreeMap<Csn, Writes>,
    len: usize,
    len_max: usize,
    /// Bytes of all since the start.
    decided: u64,
}

impl Recent {
    fn insert(&mut self, csn: Csn, writes: Writes) {
        self.len += writes.len();
        self.decided += writes.len() as u64;
        self.writes.insert(csn, writes);
        while self.len > self.len_max && self.drop_first(Csn(u64::MAX)) {}
    }

    fn forget(&mut self, up_to: Csn) {
        while self.drop_first(up_to) {}
    }

    /// Whether there was one up to this commit.
    fn drop_first(&mut self, up_to: Csn) -> bool {
        let Some(first) = self.writes.first_entry().filter(|first| *first.key() <= up_to) else {
            return false;
        };
        self.len -= first.remove().len();
        true
    }
}

/// One served database.
pub struct Scheduler {
    state: Mutex<State>,
    decisions: Box<dyn Decisions>,
    /// By replica; those of replicas that were added come after the others.
    pub agents: boxcar::Vec<Arc<AgentQueue>>,
    pub clock: Clock,
    /// How statements must come, where the protocol executes writes on every replica.
    pub everywhere: Option<Statements>,
    /// What the protocol must know of transactions before they run.
    pub foresight: Option<Foresight>,
    /// Where notifications go, in the order of commits.
    channels: Arc<Channels>,
    /// Renders a reservation of sequence values as a record.
    reserve: Box<dyn Fn(TableId, i64) -> Bytes + Send + Sync>,
    /// Timers that the protocol has set, on their way to [`Scheduler::run_timers`].
    timers: mpsc::UnboundedSender<(Instant, u64)>,
    timers_set: Mutex<Option<mpsc::UnboundedReceiver<(Instant, u64)>>>,
    /// The last commit of which a client may have been told.
    told: AtomicU64,
}

/// How often it is looked whether a replica has got so far.
const AWAIT_PAUSE: Duration = Duration::from_millis(1);

const HERE: Place = Place::Scheduler(NodeId(0));

impl Scheduler {
    pub fn new(
        protocol: Box<dyn Protocol>,
        replicas: usize,
        decisions: Box<dyn Decisions>,
        reserve: Box<dyn Fn(TableId, i64) -> Bytes + Send + Sync>,
        channels: Arc<Channels>,
        unapplied_bytes_max: usize,
    ) -> Scheduler {
        let is_everywhere = protocol.writes() == WritesAt::Everywhere;
        let everywhere = is_everywhere.then(|| Box::new(Everywhere::new(replicas)));
        let statements = is_everywhere.then(|| protocol.statements());
        let foresight = protocol.foresight();
        let told = AtomicU64::new(protocol.status().told);
        // There every replica compares what it has executed with what was logged.
        let len_max = if is_everywhere { usize::MAX } else { unapplied_bytes_max };
        let state = State {
            protocol,
            effects: Vec::new(),
            mails: HashMap::new(),
            writes: HashMap::new(),
            armed: HashMap::new(),
            everywhere,
            notifications: HashMap::new(),
            recent: Recent { writes: BTreeMap::new(), len: 0, len_max, decided: 0 },
            contained: Csn(0),
            annulled: HashMap::new(),
            next_txn: 1,
        };
        let (timers, timers_set) = mpsc::unbounded_channel();
        Scheduler {
            everywhere: statements,
            foresight,
            timers,
            timers_set: Mutex::new(Some(timers_set)),
            state: Mutex::new(state),
            decisions,
            agents: (0..replicas).map(|_| Arc::default()).collect(),
            clock: Clock::start(),
            channels,
            reserve,
            told,
        }
    }

    /// A number for a new transaction, whose directives shall go to this mail.
    pub fn new_txn(&self, mail: &Arc<Mail>) -> TxnId {
        let mut state = self.state.lock();
        let txn = TxnId(state.next_txn);
        state.next_txn += 1;
        state.mails.insert(txn, mail.clone());
        txn
    }

    /// Starts a transaction of one read. If the core places it at once, its place is returned, and no directive will come
    /// for it but after [`Scheduler::adopt`]; else its directives go to this mail.
    pub fn place_single_read(
        &self,
        mail: &Arc<Mail>,
        begin: impl FnOnce(TxnId) -> Begin,
        statement: Statement,
    ) -> (TxnId, Option<(OpId, ReplicaId)>) {
        let mut state = self.state.lock();
        let txn = TxnId(state.next_txn);
        state.next_txn += 1;
        let mut effects = std::mem::take(&mut state.effects);
        let event = Event::Autocommit { begin: begin(txn), statement };
        state.protocol.handle(HERE, self.clock.now(), event, &mut effects);
        let mut outbox = Outbox::default();
        let placed = match effects.as_slice() {
            [Effect::Execute { txn: of, op, replica, how: How::Alone, .. }] if *of == txn => {
                Some((*op, *replica))
            }
            _ => None,
        };
        match placed {
            Some(_) => effects.clear(),
            None => {
                state.mails.insert(txn, mail.clone());
                for effect in effects.drain(..) {
                    self.carry_out(&mut state, effect, &mut outbox);
                }
            }
        }
        state.effects = effects;
        drop(state);
        outbox.deliver(&*self.decisions);
        (txn, placed)
    }

    /// Its orders for replicas go to the transaction's part on each from now on.
    pub fn add_spread(&self, spread: &Arc<Spread>) {
        if let Some(everywhere) = &mut self.state.lock().everywhere {
            everywhere.add(spread);
        }
    }

    /// From now on there is somebody to hear what becomes of this transaction.
    pub fn adopt(&self, txn: TxnId, mail: &Arc<Mail>) {
        self.state.lock().mails.insert(txn, mail.clone());
    }

    /// Sends the transaction's directives, those that wait included, to another mail from now on.
    pub fn redirect(&self, txn: TxnId, from: &Mail, to: &Arc<Mail>) {
        let mut state = self.state.lock();
        state.mails.insert(txn, to.clone());
        let waiting: Vec<_> = {
            let mut inbox = from.inbox.lock();
            inbox.directives.drain(..).collect()
        };
        let mut wakers: SmallVec<[Waker; 4]> = SmallVec::new();
        for (of, directive) in waiting {
            wakers.extend(if of == txn { to.post(of, directive) } else { from.post(of, directive) });
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Has the commit sent when its turn comes, without a directive. A directive that says that it has come already is
    /// in the transaction's mail.
    pub fn arm(&self, txn: TxnId, commit: ArmedCommit) {
        self.state.lock().armed.insert(txn, commit);
    }

    /// Takes the commit back; `None` if it was sent. From now on its turn is told by a directive.
    pub fn disarm(&self, txn: TxnId) -> Option<ArmedCommit> {
        self.state.lock().armed.remove(&txn)
    }

    /// The transaction is over for its session.
    pub fn end_txn(&self, txn: TxnId) {
        let mut state = self.state.lock();
        state.mails.remove(&txn);
        state.writes.remove(&txn);
        state.armed.remove(&txn);
        state.notifications.remove(&txn);
    }

    /// What is to be delivered when this transaction has ended well.
    pub fn notify_at_end(&self, txn: TxnId, notifications: Vec<Notification>) {
        self.state.lock().notifications.insert(txn, notifications);
    }

    fn publish(&self, state: &mut State, txn: TxnId) {
        if let Some(notifications) = state.notifications.remove(&txn) {
            self.channels.publish(notifications);
        }
    }

    /// Tells the core what happened, and carries out what follows.
    pub fn handle(&self, event: Event) {
        let mut state = self.state.lock();
        let (outbox, _) = self.handle_locked(&mut state, event);
        drop(state);
        outbox.deliver(&*self.decisions);
    }

    /// Whether replicas may be added and removed.
    pub fn changes_replicas(&self) -> bool {
        self.state.lock().protocol.changes_replicas()
    }

    /// Who waits in the core for other transactions to end, if the core hears who waits elsewhere.
    pub fn waiting(&self) -> Vec<TxnId> {
        let state = self.state.lock();
        if !state.protocol.hears_waits_outside() {
            return Vec::new();
        }
        state.protocol.status().waits_for.into_iter().map(|(waiter, _)| TxnId(waiter)).collect()
    }

    /// There is one more replica, which is down. Not to be called by two at once.
    pub fn add_replica(&self) -> ReplicaId {
        let replica = ReplicaId(self.agents.push(Arc::default()) as u16);
        self.handle(Event::ReplicaAdded { replica });
        replica
    }

    /// Whoever waits until a replica contains a commit says so, once: it would linger otherwise.
    pub fn want(&self, replica: ReplicaId, csn: Csn) {
        self.handle(Event::Wanted { replica, csn });
    }

    /// Waits until a replica contains a commit, or is out of service.
    pub async fn await_applied(&self, replica: ReplicaId, csn: Csn) {
        let lacks_it = || {
            let replicas = self.status().replicas;
            replicas.get(usize::from(replica.0)).is_some_and(|replica| replica.up && replica.applied < csn.0)
        };
        if lacks_it() {
            self.want(replica, csn);
        }
        while lacks_it() {
            tokio::time::sleep(AWAIT_PAUSE).await;
        }
    }

    /// Like [`Scheduler::handle`], unless the condition has ceased to hold by the time at which it is this event's turn.
    pub fn handle_if(&self, holds: impl FnOnce() -> bool, event: Event) {
        let mut state = self.state.lock();
        if holds() {
            let (outbox, _) = self.handle_locked(&mut state, event);
            drop(state);
            outbox.deliver(&*self.decisions);
        }
    }

    /// Like [`Scheduler::handle`], with the writes that are to be logged if this leads to a decision. If it did, and no other decision
    /// followed from it, its place in the order is returned.
    pub fn handle_with_writes(&self, txn: TxnId, writes: Writes, event: Event) -> Option<Csn> {
        let mut state = self.state.lock();
        state.writes.insert(txn, writes);
        let (outbox, decided) = self.handle_locked(&mut state, event);
        drop(state);
        outbox.deliver(&*self.decisions);
        decided.filter(|(of, _)| *of == txn).map(|(_, csn)| csn)
    }

    /// Returns the last transaction that was decided by it, too.
    fn handle_locked(&self, state: &mut State, event: Event) -> (Outbox, Option<(TxnId, Csn)>) {
        let mut outbox = Outbox::default();
        let mut decided = None;
        let mut effects = std::mem::take(&mut state.effects);
        if let Event::Applied { csn, .. } | Event::ReplicaUp { applied: csn, .. } = event {
            state.contained = state.contained.max(csn);
        }
        if let Some(everywhere) = &mut state.everywhere {
            let rest = everywhere.notice(&event, &mut outbox.errands);
            self.carry_out_rest(state, rest, &mut outbox);
        }
        state.protocol.handle(HERE, self.clock.now(), event, &mut effects);
        for effect in effects.drain(..) {
            if let Effect::Append { csn, decision: Decision::Commit(txn) } = &effect {
                decided = Some((*txn, *csn));
            }
            self.carry_out(state, effect, &mut outbox);
        }
        state.effects = effects;
        (outbox, decided)
    }

    fn carry_out(&self, state: &mut State, effect: Effect, outbox: &mut Outbox) {
        match &mut state.everywhere {
            None => self.carry_out_here(state, effect, outbox),
            Some(everywhere) => {
                let rest = everywhere.carry_out(effect, &mut outbox.errands);
                self.carry_out_rest(state, rest, outbox);
            }
        }
    }

    fn carry_out_rest(&self, state: &mut State, rest: Rest, outbox: &mut Outbox) {
        match rest {
            Rest::Nothing => {}
            Rest::Effect(effect) => self.carry_out_here(state, effect, outbox),
            Rest::Apply(replica, from, to) => self.apply(replica, from, to, outbox),
        }
    }

    fn apply(&self, replica: ReplicaId, from: Csn, to: Csn, outbox: &mut Outbox) {
        if let Some(agent) = self.agents.get(usize::from(replica.0)) {
            outbox.wakers.extend(agent.apply(from, to));
        }
    }

    fn carry_out_here(&self, state: &mut State, effect: Effect, outbox: &mut Outbox) {
        match effect {
            Effect::Execute { txn, op, replica, how, hold } => {
                outbox.post(state, txn, Directive::Execute { op, replica, how, hold });
            }
            Effect::Release { txn, op, replica } => {
                outbox.post(state, txn, Directive::Release { op, replica })
            }
            Effect::Revalidate { txn, replica, how } => {
                outbox.post(state, txn, Directive::Revalidate { replica, how });
            }
            Effect::Leave { txn, replica } => outbox.post(state, txn, Directive::Leave { replica }),
            Effect::Finish { txn, op, replica } => {
                self.publish(state, txn);
                outbox.post(state, txn, Directive::Finish { op, replica });
            }
            Effect::Withdraw { txn, op } => outbox.post(state, txn, Directive::Withdraw { op }),
            Effect::Refuse { txn, op, reason } => outbox.post(state, txn, Directive::Refuse { op, reason }),
            Effect::CommitAt { txn, replica, csn } => match state.armed.entry(txn) {
                Entry::Occupied(commit) if commit.get().replica == replica => {
                    outbox.commits.push(commit.remove());
                }
                _ => outbox.post(state, txn, Directive::CommitAt { replica, csn }),
            },
            Effect::Acknowledge { txn, op, csn } => match state.annulled.remove(&csn) {
                None => {
                    self.told.fetch_max(csn.0, Ordering::AcqRel);
                    self.publish(state, txn);
                    outbox.post(state, txn, Directive::Acknowledge { op, csn });
                }
                // It was decided, and is rolled back all the same, everywhere: no replica could commit it.
                Some(reason) => outbox.post(state, txn, Directive::Annul { reason }),
            },
            Effect::Values { txn, op, values } => outbox.post(state, txn, Directive::Values { op, values }),
            Effect::Append { csn, decision } => {
                let writes = match decision {
                    Decision::Commit(txn) => match state.writes.remove(&txn) {
                        Some(mut writes) => {
                            if let Some(commits) = writes.commits.take() {
                                commits.count();
                            }
                            writes
                        }
                        // A bug of ours. An empty record would make the replicas differ; without one nothing that was
                        // decided from here on becomes durable, and so nobody hears of it or sees it.
                        None => {
                            tracing::error!(?txn, %csn, "commit a transaction of whose writes nothing was kept; nothing is committed until a restart");
                            return;
                        }
                    },
                    Decision::Reserve { sequence, last } => {
                        Writes { body: (self.reserve)(sequence, last), ..Writes::default() }
                    }
                };
                let body = writes.body.clone();
                state.recent.insert(csn, writes);
                self.decisions.append(csn, body);
                outbox.appended = true;
            }
            Effect::Apply { replica, from, to } => self.apply(replica, from, to, outbox),
            Effect::Forget { txn } => {
                // A replica may have reported after the session had gone on.
                state.writes.remove(&txn);
            }
            Effect::Notice { txn, notice } => tracing::debug!(?txn, ?notice, "notice of the protocol"),
            Effect::SetTimer { timer, at } => {
                // Without a receiver the process is ending.
                let _ = self.timers.send((at, timer));
            }
            other => tracing::error!(?other, "the protocol asked for something that this driver cannot do"),
        }
    }

    /// Tells the protocol of every timer that has run out, until the process ends. Must run once.
    pub async fn run_timers(self: Arc<Self>) {
        let Some(mut set) = self.timers_set.lock().take() else { return };
        let mut pending = BTreeSet::new();
        loop {
            let next =
                pending.first().map(|(at, _): &(Instant, u64)| at.0.saturating_sub(self.clock.now().0));
            let wait = async {
                match next {
                    Some(ns) => tokio::time::sleep(Duration::from_nanos(ns)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                timer = set.recv() => match timer {
                    Some(timer) => drop(pending.insert(timer)),
                    None => return,
                },
                () = wait => {
                    if let Some((_, timer)) = pending.pop_first() {
                        self.handle(Event::Timer { timer });
                    }
                }
            }
        }
    }

    /// The writes of a recent decision; `None` if they are to be read from the log.
    pub fn recent(&self, csn: Csn) -> Option<Writes> {
        self.state.lock().recent.writes.get(&csn).cloned()
    }

    /// Bytes of writes, about, that were decided since the start.
    pub fn decided_bytes(&self) -> u64 {
        self.state.lock().recent.decided
    }

    /// Drops bodies that every replica contains; an absent replica reads them from the log.
    pub fn forget_recent(&self, up_to: Csn) {
        self.state.lock().recent.forget(up_to);
    }

    /// A replica was found to contain this commit.
    pub fn note_contained(&self, csn: Csn) {
        let mut state = self.state.lock();
        state.contained = state.contained.max(csn);
    }

    /// The last commit that any replica has contained since the start.
    pub fn contained(&self) -> Csn {
        self.state.lock().contained
    }

    /// From now on replicas pass over this commit: its client, if it waits, is told this instead.
    pub fn annul(&self, csn: Csn, reason: Arc<ErrorFields>) {
        self.state.lock().annulled.insert(csn, reason);
    }

    /// The last commit of which a client may have been told; without the lock under which everything is decided.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    pub fn status(&self) -> Status {
        self.state.lock().protocol.status()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_core::{Access, ClassId, Item, Mode, Outcome, SessionId, StatementKind};

    const T1: TxnId = TxnId(1);
    const R0: ReplicaId = ReplicaId(0);

    #[derive(Clone, Default)]
    struct Appended(Arc<Mutex<Vec<Csn>>>);

    impl Decisions for Appended {
        fn append(&self, csn: Csn, _: Bytes) {
            self.0.lock().push(csn);
        }

        fn wake(&self) {}
    }

    /// With a transaction that has written and is about to commit.
    fn scheduler() -> (Scheduler, Appended) {
        scheduler_of(1)
    }

    /// The same with so many replicas, of which only the first is in service.
    fn scheduler_of(replicas: usize) -> (Scheduler, Appended) {
        let appended = Appended::default();
        let protocol = onecopy_core::protocol::by_name("onecopy", replicas, Csn(0)).unwrap();
        let decisions = Box::new(appended.clone());
        let scheduler = Scheduler::new(
            protocol,
            replicas,
            decisions,
            Box::new(|_, _| Bytes::new()),
            Arc::default(),
            1_000,
        );
        let access = [Access::new(Item::table(TableId(1)), Mode::Exclusive)].into_iter().collect();
        let statement = Statement::new(ClassId(1), StatementKind::Write, access);
        scheduler.handle(Event::ReplicaUp { replica: R0, applied: Csn(0) });
        let begin = Begin {
            txn: T1,
            session: SessionId(1),
            read_only: false,
            form: 0,
            declared: None,
            stale_ok_ns: None,
        };
        scheduler.handle(Event::Begin(begin));
        scheduler.handle(Event::Statement { txn: T1, op: OpId(0), statement });
        let outcome = Outcome::Done { returned: Vec::new() };
        scheduler.handle(Event::Executed { txn: T1, op: OpId(0), replica: R0, outcome, elapsed_ns: 1 });
        (scheduler, appended)
    }

    #[test]
    fn nothing_is_logged_for_a_commit_of_whose_writes_nothing_was_kept() {
        let commit = Event::Commit { txn: T1, op: OpId(1) };
        let (scheduler, appended) = scheduler();
        scheduler.handle(commit.clone());
        assert_eq!(scheduler.status().decided, 1);
        assert_eq!(*appended.0.lock(), []);

        // It may have changed nothing that must be applied, and says so.
        let (scheduler, appended) = self::scheduler();
        scheduler.handle_with_writes(T1, Writes::default(), commit);
        assert_eq!(*appended.0.lock(), [Csn(1)]);
    }

    #[test]
    fn only_the_decision_counts_a_commit_and_once() {
        let commits = Commits::new(4);
        let writes = || Writes { commits: Some(commits.clone()), ..Writes::default() };
        let commit = Event::Commit { txn: T1, op: OpId(1) };
        let (scheduler, appended) = scheduler();
        scheduler.handle_with_writes(T1, writes(), Event::Rollback { txn: T1 });
        scheduler.handle_with_writes(T1, writes(), commit.clone());
        assert_eq!((appended.0.lock().len(), commits.made()), (0, 4));

        let (scheduler, appended) = self::scheduler();
        scheduler.handle_with_writes(T1, writes(), commit);
        assert_eq!((appended.0.lock().len(), commits.made(), scheduler.told()), (1, 5, 0));
        // Where every replica executes it, others report what they wrote when it is decided already.
        scheduler.handle_with_writes(T1, writes(), Event::Durable { csn: Csn(1) });
        scheduler.handle(Event::Applied { replica: R0, csn: Csn(1) });
        assert_eq!((appended.0.lock().len(), commits.made(), scheduler.told()), (1, 5, 1));
    }

    #[test]
    fn newest_writes_are_kept_in_memory_as_far_as_they_fit() {
        let writes = |len| Writes { body: Bytes::from(vec![0; len]), ..Writes::default() };
        let mut recent = Recent { writes: BTreeMap::new(), len: 0, len_max: 1_000, decided: 0 };
        let kept = |recent: &Recent| recent.writes.keys().map(|csn| csn.0).collect::<Vec<_>>();
        (1..=3).for_each(|csn| recent.insert(Csn(csn), writes(100)));
        assert_eq!(kept(&recent), [1, 2, 3]);
        recent.insert(Csn(4), writes(500));
        assert_eq!((kept(&recent), recent.len), (vec![3, 4], 1_000));
        recent.forget(Csn(3));
        assert_eq!((kept(&recent), recent.len), (vec![4], 700));
        recent.insert(Csn(5), writes(5_000));
        assert_eq!((kept(&recent), recent.len, recent.decided), (vec![], 0, 6_800));
    }

    #[test]
    fn client_of_a_commit_that_is_annulled_is_told_so_when_a_replica_has_passed_over_it() {
        let (scheduler, _) = scheduler();
        let mail = Arc::<Mail>::default();
        scheduler.adopt(T1, &mail);
        scheduler.handle_with_writes(T1, Writes::default(), Event::Commit { txn: T1, op: OpId(1) });
        scheduler.handle(Event::Durable { csn: Csn(1) });
        assert_eq!(mail.take(T1), Some(Directive::CommitAt { replica: R0, csn: Csn(1) }));
        scheduler.handle(Event::HomeLost { txn: T1, replica: R0 });
        let reason = Arc::new(ErrorFields::default());
        scheduler.annul(Csn(1), reason.clone());
        assert_eq!((mail.take(T1), scheduler.contained()), (None, Csn(0)));
        scheduler.handle(Event::Applied { replica: R0, csn: Csn(1) });
        assert_eq!((mail.take(T1), scheduler.contained()), (Some(Directive::Annul { reason }), Csn(1)));
    }

    #[test]
    fn event_is_dropped_when_its_condition_has_ceased_to_hold() {
        let (scheduler, _) = scheduler();
        scheduler.handle_if(|| false, Event::ReplicaDown { replica: R0 });
        assert!(scheduler.status().replicas[0].up);
        scheduler.handle_if(|| true, Event::ReplicaDown { replica: R0 });
        assert!(!scheduler.status().replicas[0].up);
    }

    #[test]
    fn replica_that_is_added_gets_the_next_number_and_orders_of_its_own() {
        let (scheduler, _) = scheduler();
        assert!(scheduler.changes_replicas());
        let added = scheduler.add_replica();
        assert_eq!((added, scheduler.agents.count()), (ReplicaId(1), 2));
        assert!(!scheduler.status().replicas[1].up);
        scheduler.handle_with_writes(T1, Writes::default(), Event::Commit { txn: T1, op: OpId(1) });
        scheduler.handle(Event::Durable { csn: Csn(1) });
        scheduler.handle(Event::ReplicaUp { replica: added, applied: Csn(0) });
        scheduler.want(added, Csn(1));
        assert_eq!(scheduler.agents[1].inbox.lock().runs, [(Csn(1), Csn(1))]);
    }

    #[test]
    fn replica_that_is_waited_for_applies_without_a_timer() {
        const R1: ReplicaId = ReplicaId(1);
        let (scheduler, _) = scheduler_of(2);
        scheduler.handle(Event::ReplicaUp { replica: R1, applied: Csn(0) });
        scheduler.handle_with_writes(T1, Writes::default(), Event::Commit { txn: T1, op: OpId(1) });
        scheduler.handle(Event::Durable { csn: Csn(1) });
        scheduler.handle(Event::Applied { replica: R0, csn: Csn(1) });
        // No timer runs here: without the wish it would never apply.
        assert!(scheduler.agents[1].inbox.lock().runs.is_empty());
        let apply = async {
            assert_eq!(scheduler.agents[1].next().await, (Csn(1), Csn(1)));
            scheduler.handle(Event::Applied { replica: R1, csn: Csn(1) });
        };
        let both = async { tokio::join!(scheduler.await_applied(R1, Csn(1)), apply) };
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(both);
    }

    /// What a commit's socket has received, without waiting.
    fn received(mut peer: &std::os::unix::net::UnixStream) -> String {
        use std::io::Read;
        let mut text = [0; 64];
        let len = peer.read(&mut text).unwrap_or(0);
        String::from_utf8_lossy(&text[..len]).into_owned()
    }

    fn armed(replica: ReplicaId) -> (ArmedCommit, std::os::unix::net::UnixStream) {
        let (ours, peer) = std::os::unix::net::UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        let socket = Arc::new(SocketHandle::new(ours.into()));
        (ArmedCommit { replica, messages: Bytes::from_static(b"commit"), socket }, peer)
    }

    #[test]
    fn armed_commit_is_sent_at_its_turn_once_and_without_a_directive() {
        let (scheduler, _) = scheduler();
        let mail = Arc::<Mail>::default();
        scheduler.adopt(T1, &mail);
        let decided =
            scheduler.handle_with_writes(T1, Writes::default(), Event::Commit { txn: T1, op: OpId(1) });
        assert_eq!(decided, Some(Csn(1)));
        let (commit, peer) = armed(R0);
        scheduler.arm(T1, commit);
        assert_eq!(received(&peer), "");
        scheduler.handle(Event::Durable { csn: Csn(1) });
        assert_eq!(received(&peer), "commit");
        assert!(scheduler.disarm(T1).is_none());
        assert_eq!(mail.take(T1), None);
        scheduler.handle(Event::Applied { replica: R0, csn: Csn(1) });
        assert_eq!(mail.take(T1), Some(Directive::Acknowledge { op: OpId(1), csn: Csn(1) }));
        assert_eq!(received(&peer), "");
    }

    #[test]
    fn commit_that_was_taken_back_or_belongs_to_another_replica_is_told_by_a_directive() {
        let told = |arm: fn(&Scheduler) -> std::os::unix::net::UnixStream| {
            let (scheduler, _) = scheduler();
            let mail = Arc::<Mail>::default();
            scheduler.adopt(T1, &mail);
            scheduler.handle_with_writes(T1, Writes::default(), Event::Commit { txn: T1, op: OpId(1) });
            let peer = arm(&scheduler);
            scheduler.handle(Event::Durable { csn: Csn(1) });
            assert_eq!(mail.take(T1), Some(Directive::CommitAt { replica: R0, csn: Csn(1) }));
            assert_eq!(received(&peer), "");
        };
        told(|scheduler| {
            let (commit, peer) = armed(R0);
            scheduler.arm(T1, commit);
            assert!(scheduler.disarm(T1).is_some());
            peer
        });
        told(|scheduler| {
            let (commit, peer) = armed(ReplicaId(1));
            scheduler.arm(T1, commit);
            peer
        });
        // A transaction that is over for its session leaves nothing behind.
        let (scheduler, _) = scheduler();
        let (commit, peer) = armed(R0);
        scheduler.arm(T1, commit);
        scheduler.end_txn(T1);
        assert!(scheduler.disarm(T1).is_none());
        assert_eq!(received(&peer), "");
    }
}
