//! The scheduler's machine beside the core: sessions, open transactions, answers, the log.

use onecopy_core::{
    Access, AccessSet, Begin, Csn, Decision, Event, Instant, OpId, Refusal, ReplicaId, SessionId, Statement,
    StatementKind, TableId, TxnId, ValueHash,
};
use onecopy_workload::StatementId;
use smallvec::SmallVec;

use super::classes::{Classes, Touches};
use super::history::Entry;
use super::measure::Ran;
use super::network::Machine;
use super::setup::{Durability, Items};
use super::users::{Answer, Request};
use super::versions::{Change, Object, Seen, Version};
use super::{Fault, Simulation, Wake};
use crate::check::Status;

/// What the driver keeps of a transaction that the core knows.
#[derive(Debug)]
pub(super) struct Txn {
    user: u32,
    autocommit: bool,
    pub(super) ops: Vec<Op>,
    /// The statement or commit whose answer the user awaits.
    awaited: Option<OpId>,
    /// When it arrived at the scheduler.
    pub(super) arrived: Instant,
    /// When each replica last completed a statement of it, as far as any did, where every replica executes.
    pub(super) completed: Vec<Instant>,
    /// What its commit took at the first replica that did it, in nanoseconds.
    pub(super) commit_ns: Option<u64>,
    decided: bool,
    /// Whose answer to its only statement its user shall have.
    released: Option<ReplicaId>,
    /// Where its read phase reads, and what it has read.
    pub(super) snapshot: Csn,
    pub(super) reads: Vec<(usize, Seen)>,
    /// What it wrote at its home.
    pub(super) writes: Vec<(Object, Version)>,
    /// What it has changed and not committed, where every replica executes.
    pub(super) changes: Vec<Change>,
    entry: Option<Entry>,
    /// Nothing will be asked of it any more, once its user is answered.
    forgotten: bool,
}

/// A statement of a transaction.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) statement: StatementId,
    /// As what it writes; nothing if it only reads.
    pub(super) version: Version,
    /// What it reads and writes, where that is not the same for all of its class.
    touches: Option<Box<Touches>>,
    /// The items that its answer shows.
    pub(super) returned: Vec<Access>,
    /// What it saw at the first replica that executed it.
    pub(super) seen: Option<Seen>,
    /// Where it was executed and how long that took, until it is answered.
    pub(super) ran: SmallVec<[(ReplicaId, Ran); 2]>,
}

impl Txn {
    /// A replica completes a statement of it. Returns how long that waited there for the statement before it, in nanoseconds.
    pub(super) fn waited_for_itself(&mut self, replica: ReplicaId, now: Instant, everywhere: bool) -> u64 {
        if self.autocommit || !everywhere {
            return 0;
        }
        let place = usize::from(replica.0);
        if self.completed.len() <= place {
            self.completed.resize(place + 1, Instant(0));
        }
        std::mem::replace(&mut self.completed[place], now).since_ns(self.arrived)
    }
}

impl Op {
    /// What it reads and writes.
    pub(super) fn touches<'a>(&'a self, classes: &'a Classes) -> &'a Touches {
        self.touches.as_deref().unwrap_or_else(|| &classes.of(self.statement).touches)
    }
}

/// What the log keeps of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// CPU time of executing its writes, in nanoseconds.
    pub(super) executing_ns: u64,
}

/// Requests.
impl Simulation<'_> {
    pub(super) fn on_request(&mut self, number: u32) {
        let user = &mut self.crowd.users[number as usize];
        let (request, open) = (user.request.take(), user.txn);
        match (request, open) {
            (Some(Request::Statement(statement)), Some(txn)) => {
                let (op, statement) = self.add_statement(number, txn, statement);
                self.feed_for(number, Event::Statement { txn, op, statement });
            }
            (Some(Request::Statement(statement)), None) => self.open(number, statement),
            (Some(Request::Commit), Some(txn)) => {
                let now = self.queue.now();
                let Some(open) = self.txns.get_mut(&txn) else { return };
                let op = OpId(open.ops.len() as u32);
                (open.awaited, open.arrived) = (Some(op), now);
                self.feed_for(number, Event::Commit { txn, op });
            }
            (Some(Request::Rollback), Some(txn)) => {
                self.close(txn, self.front(number), Answer::Done, Status::Aborted);
                self.feed_for(number, Event::Rollback { txn });
            }
            (request, open) => self.fault(Fault::Senseless {
                txn: open.unwrap_or_default(),
                what: if request.is_some() { "is asked to end and is not open" } else { "asks twice" },
            }),
        }
    }

    fn open(&mut self, number: u32, statement: StatementId) {
        self.last_txn += 1;
        let txn = TxnId(self.last_txn);
        let user = &mut self.crowd.users[number as usize];
        user.txn = Some(txn);
        let (mut begun, sent, meant) = (user.begun, user.sent, user.meant);
        let entry = meant.or_else(|| self.recorder.as_mut().map(|recorder| recorder.begin(number, sent)));
        if self.alone {
            user.meant = entry.filter(|_| begun.is_some() && !self.judged_alone);
            begun = None;
        } else {
            user.begun = None;
        }
        self.txns.insert(
            txn,
            Txn {
                user: number,
                autocommit: begun.is_none(),
                ops: Vec::new(),
                awaited: None,
                arrived: sent,
                completed: Vec::new(),
                commit_ns: None,
                decided: false,
                released: None,
                snapshot: Csn(0),
                reads: Vec::new(),
                writes: Vec::new(),
                changes: Vec::new(),
                entry,
                forgotten: false,
            },
        );
        let declared = begun
            .filter(|_| self.setup.items == Items::DeclaredTables)
            .map(|(transaction, usual)| self.classes.declared(transaction, usual));
        let declared = declared.map(|mut declared| {
            self.thin(txn, &mut declared);
            declared
        });
        let session = SessionId(u64::from(number));
        let stale_ok_ns = self.classes.of(statement).stale_ok_ns;
        let begin = Begin { txn, session, read_only: false, form: 0, declared, stale_ok_ns };
        let (op, statement) = self.add_statement(number, txn, statement);
        if begun.is_none() {
            self.feed_for(number, Event::Autocommit { begin, statement });
        } else {
            self.feed_for(number, Event::Begin(begin));
            self.feed_for(number, Event::Statement { txn, op, statement });
        }
    }

    fn add_statement(&mut self, user: u32, txn: TxnId, id: StatementId) -> (OpId, Statement) {
        let mut statement = self.classes.of(id).statement.clone();
        let asked = self.crowd.users[user as usize].asked.as_ref();
        let (mut touches, mut returned) = (None, Vec::new());
        self.thin(txn, &mut statement.access);
        if self.setup.items != Items::DeclaredTables {
            statement.last_use = None;
        } else if let Some(last_use) = statement.last_use.as_deref().filter(|_| self.parts() > 1) {
            statement.last_use = Some(last_use.iter().map(|table| self.thinned(txn, *table)).collect());
        }
        if let (Some(items), Some((_, params))) = (&self.items, asked) {
            statement.access = items.access(id, params);
            let mut rows = Vec::new();
            if items.are_shown(id) {
                statement.shown = items.shown(id, params);
                rows = self.workload.answer(id, params).rows;
                returned = items.returned(id, &rows);
            }
            // Where every replica executes, contents are counted by table.
            touches = (!self.everywhere).then(|| Box::new(items.touches(id, params, &rows)));
        }
        let version = if statement.kind == StatementKind::Write {
            self.last_version += 1;
            self.last_version
        } else {
            0
        };
        let now = self.queue.now();
        let Some(open) = self.txns.get_mut(&txn) else { return (OpId(0), statement) };
        let op = OpId(open.ops.len() as u32);
        open.ops.push(Op { statement: id, version, touches, returned, seen: None, ran: SmallVec::new() });
        (open.awaited, open.arrived) = (Some(op), now);
        (op, statement)
    }
}

impl Simulation<'_> {
    /// Of a table's conflicts only a part shall count: each transaction has one of several tables in its place, so that two
    /// meet as often as that part says.
    fn thin(&self, txn: TxnId, access: &mut AccessSet) {
        if self.parts() > 1 {
            for Access { item, .. } in access {
                item.table = self.thinned(txn, item.table);
            }
        }
    }

    fn parts(&self) -> u64 {
        100 / u64::from(self.setup.conflict_percent.clamp(1, 100))
    }

    fn thinned(&self, txn: TxnId, table: TableId) -> TableId {
        let drawn = ValueHash::of_integer((txn.0 << 16 | table.0) as i64).0;
        TableId(table.0 * self.parts() + drawn % self.parts())
    }
}

/// Answers.
impl Simulation<'_> {
    /// A statement's answer goes to its user; that of a transaction's only statement ends it. `replica` says whose answer
    /// it is.
    pub(super) fn answer(&mut self, txn: TxnId, op: OpId, replica: ReplicaId, from: Machine) {
        let Some(open) = self.txns.get_mut(&txn).filter(|open| open.awaited == Some(op)) else {
            return self.fault(Fault::Senseless { txn, what: "answers what nobody asks" });
        };
        let asked = open.ops.get_mut(op.0 as usize);
        let Some((ran, asked)) = asked.and_then(|asked| {
            let execution = asked.ran.iter().find(|(at, _)| *at == replica).copied();
            asked.ran = SmallVec::new();
            Some((execution?, asked))
        }) else {
            return self.fault(Fault::Senseless { txn, what: "answers what was not executed" });
        };
        if let (Some(recorder), Some(entry), Some(seen)) = (&mut self.recorder, open.entry, &asked.seen) {
            recorder.statement(entry, asked.touches(&self.classes), seen, asked.version);
        }
        let (statement, arrived, autocommit) = (asked.statement, open.arrived, open.autocommit);
        let (writes, mut ran) = (asked.version != 0, ran.1);
        if self.at_peers {
            // What it waits for beside its database is permission.
            ran.execution_ns += open.commit_ns.unwrap_or(0);
        }
        let at = if autocommit {
            self.close(txn, from, Answer::Done, Status::Committed)
        } else {
            open.awaited = None;
            let user = open.user;
            self.reply(user, from, Answer::Done)
        };
        let network_ns = self.to_databases_ns();
        self.measured.statement(statement, writes, at.since_ns(arrived), ran, network_ns);
    }

    /// An answer that was held may go; that of a transaction's only statement goes when that is committed.
    pub(super) fn release(&mut self, txn: TxnId, op: OpId, replica: ReplicaId) {
        match self.txns.get_mut(&txn) {
            Some(open) if open.autocommit => open.released = Some(replica),
            _ => self.answer(txn, op, replica, Machine::Scheduler),
        }
    }

    /// A transaction has committed, or has ended well without anything to commit.
    pub(super) fn answer_committed(&mut self, txn: TxnId, op: OpId, from: Machine) {
        let Some(open) = self.txns.get(&txn).filter(|open| open.awaited == Some(op)) else {
            return self.fault(Fault::Senseless { txn, what: "commits what nobody wants committed" });
        };
        if open.autocommit {
            let ran = open.ops.first().and_then(|op| op.ran.first()).map(|(replica, _)| *replica);
            return match open.released.or(ran) {
                Some(replica) => self.answer(txn, op, replica, from),
                None => self.fault(Fault::Senseless { txn, what: "commits what was not executed" }),
            };
        }
        let arrived = open.arrived;
        let ran = Ran { execution_ns: open.commit_ns.unwrap_or(0), own_ns: 0 };
        let at = self.close(txn, from, Answer::Done, Status::Committed);
        self.measured.commits.add(at.since_ns(arrived), ran, self.to_databases_ns());
    }

    /// The way from whoever has the statement to the database and back, in nanoseconds.
    fn to_databases_ns(&self) -> u64 {
        if self.at_peers { 0 } else { 2 * self.network.hop_ns() }
    }

    /// Nothing will be asked of a transaction any more.
    pub(super) fn forget(&mut self, txn: TxnId) {
        match self.txns.get_mut(&txn) {
            // Its answer is just about to leave.
            Some(open) if open.awaited.is_some() => open.forgotten = true,
            _ => _ = self.txns.remove(&txn),
        }
    }

    pub(super) fn refuse(&mut self, txn: TxnId, reason: Refusal) {
        *self.measured.refused.entry(format!("{reason:?}")).or_default() += 1;
        self.close(txn, Machine::Scheduler, Answer::Refused, Status::Aborted);
    }

    /// The transaction is over for its user. Where all replicas execute it, some may not be done. Returns when the
    /// scheduler sends the answer.
    fn close(&mut self, txn: TxnId, from: Machine, answer: Answer, status: Status) -> Instant {
        let everywhere = self.everywhere;
        let Some(open) = self.txns.get_mut(&txn) else { return self.queue.now() };
        open.awaited = None;
        let (user, entry) = (open.user, open.entry.take());
        if !everywhere || open.forgotten {
            self.txns.remove(&txn);
        }
        self.crowd.users[user as usize].txn = None;
        let at = self.reply(user, from, answer);
        if let (Some(recorder), Some(entry)) = (&mut self.recorder, entry) {
            recorder.end(entry, status, at);
        }
        at
    }

    /// Returns when the answer leaves the machine that the user is connected to, through which every answer goes.
    fn reply(&mut self, user: u32, from: Machine, answer: Answer) -> Instant {
        self.measured.messages.users += 1;
        self.crowd.users[user as usize].answer = Some(answer);
        let front = self.front(user);
        let at = self.network.arrival(self.queue.now(), from, front);
        let arrival = self.network.arrival(at, front, Machine::Users);
        self.queue.schedule(arrival, Wake::User(user));
        at
    }

    /// What the run's end leaves open: whoever was decided may have been seen by others.
    pub(super) fn close_all(&mut self, now: Instant) {
        let Some(recorder) = &mut self.recorder else { return };
        for open in self.txns.values() {
            let Some(entry) = open.entry else { continue };
            let only = open.ops.first().filter(|_| open.autocommit);
            if let Some((op, seen)) = only.and_then(|op| Some((op, op.seen.as_ref()?))) {
                recorder.statement(entry, op.touches(&self.classes), seen, op.version);
            }
            // What is not committed may have been seen, too, where databases show it.
            let shown = open.decided || self.setup.engine.shows_uncommitted && !open.changes.is_empty();
            let status = if shown { Status::Unknown } else { Status::Aborted };
            recorder.end(entry, status, now);
        }
    }
}

/// The log.
impl Simulation<'_> {
    pub(super) fn on_append(&mut self, csn: Csn, decision: &Decision) {
        let Decision::Commit(txn) = *decision else {
            return self
                .fault(Fault::Senseless { txn: TxnId(0), what: "reserves what no workload asks for" });
        };
        let Some(open) = self.txns.get_mut(&txn) else {
            return self.fault(Fault::Senseless { txn, what: "decides a transaction that is over" });
        };
        open.decided = true;
        let writes = open.ops.iter().filter(|op| op.version != 0);
        let executing_ns = writes.map(|op| self.classes.of(op.statement).cost_ns).sum();
        self.shared.decide(csn, &open.writes);
        if self.log.append(Record { executing_ns }) != csn {
            self.fault(Fault::Senseless { txn, what: "leaves a gap in the log" });
        }
        self.write_log();
    }

    pub(super) fn on_log_written(&mut self) {
        let csn = self.log.finish_flush();
        self.feed(Event::Durable { csn });
        self.write_log();
    }

    fn write_log(&mut self) {
        if self.log.start_flush() {
            let write_ns = match self.setup.durability {
                Durability::Memory => 0,
                Durability::Disk => self.classes.log_write_ns,
                // The others acknowledge before the disk is written (5.3).
                Durability::Replicated(_) => self.tell_schedulers() + self.classes.log_write_ns,
            };
            let at = self.queue.now().plus_ns(write_ns);
            self.queue.schedule(at, Wake::LogWritten);
        }
    }
}
