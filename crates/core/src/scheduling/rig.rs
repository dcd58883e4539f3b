//! A rig for tests of scheduling protocols: all places in one process, effects compared as whole lists.

use crate::effect::{Decision, Effect, How, Notice, Refusal};
use crate::event::{Begin, Event, Outcome, Place, Statement, StatementKind};
use crate::ids::{ClassId, Csn, Instant, NodeId, OpId, ReplicaId, SessionId, TxnId};
use crate::item::{Access, AccessSet, Item, Mode, TableId};
use crate::protocol::{Engine, InProcess, Protocol};

pub(crate) const R0: ReplicaId = ReplicaId(0);
pub(crate) const R1: ReplicaId = ReplicaId(1);
pub(crate) const R2: ReplicaId = ReplicaId(2);
pub(crate) const T1: TxnId = TxnId(1);
pub(crate) const T2: TxnId = TxnId(2);
pub(crate) const T3: TxnId = TxnId(3);
pub(crate) const T4: TxnId = TxnId(4);
pub(crate) const OP0: OpId = OpId(0);
pub(crate) const OP1: OpId = OpId(1);
pub(crate) const OP2: OpId = OpId(2);
pub(crate) const OP3: OpId = OpId(3);
pub(crate) const A: TableId = TableId(1);
pub(crate) const B: TableId = TableId(2);
pub(crate) const C: TableId = TableId(3);

pub(crate) const ALONE: How = How::Alone;
pub(crate) const OPEN: How = How::Home { open: true };
pub(crate) const ON: How = How::Home { open: false };

pub(crate) struct Rig {
    protocol: InProcess,
    effects: Vec<Effect>,
    now: Instant,
}

/// A protocol whose replicas R0, R1, ... are all up, at the start of an empty log.
pub(crate) fn rig(protocol: impl Protocol + 'static, replicas: u16) -> Rig {
    let protocol = InProcess::new(Box::new(protocol));
    let mut rig = Rig { protocol, effects: Vec::new(), now: Instant(0) };
    for replica in 0..replicas {
        rig.up(ReplicaId(replica), 0);
    }
    rig.expect(&[]);
    rig
}

/// The same on an engine that shows what is not committed.
pub(crate) fn rig_showing_uncommitted(mut protocol: impl Protocol + 'static, replicas: u16) -> Rig {
    protocol.engine_is(Engine { shows_uncommitted: true, ..Engine::default() });
    rig(protocol, replicas)
}

/// The same on databases that commit in the order of decisions and show nothing before.
pub(crate) fn rig_in_order(mut protocol: impl Protocol + 'static, replicas: u16) -> Rig {
    protocol.engine_is(Engine { shows_uncommitted: false, commits_in_order: true });
    rig(protocol, replicas)
}

impl Rig {
    pub(crate) fn pass(&mut self, ns: u64) {
        self.now = self.now.plus_ns(ns);
    }
    /// What followed since the last look.
    pub(crate) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
    pub(crate) fn on(&mut self, event: Event) {
        self.protocol.handle(Place::Scheduler(NodeId(0)), self.now, event, &mut self.effects);
    }
    /// Exactly these effects followed from what happened since the last look.
    #[track_caller]
    pub(crate) fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
    pub(crate) fn skip(&mut self) {
        self.effects.clear();
    }
    #[track_caller]
    pub(crate) fn expect_nothing_left(&self) {
        let status = self.protocol.status();
        assert_eq!((status.transactions, status.waits_for), (0, Vec::new()));
        assert!(status.replicas.iter().all(|replica| replica.outstanding_ns == 0.0), "load is given back");
    }
    pub(crate) fn status(&self) -> crate::protocol::Status {
        self.protocol.status()
    }

    pub(crate) fn begin(&mut self, txn: TxnId) {
        self.on(Event::Begin(begin(txn, None)));
    }
    pub(crate) fn begin_declaring<const N: usize>(&mut self, txn: TxnId, tables: [(TableId, Mode); N]) {
        self.on(Event::Begin(begin(txn, Some(accesses(tables)))));
    }
    pub(crate) fn single(&mut self, txn: TxnId, statement: Statement) {
        self.on(Event::Autocommit { begin: begin(txn, None), statement });
    }
    pub(crate) fn single_of_session(&mut self, txn: TxnId, session: u64, statement: Statement) {
        let begin = Begin { session: SessionId(session), ..begin(txn, None) };
        self.on(Event::Autocommit { begin, statement });
    }
    /// What it reads may be so old, in nanoseconds.
    pub(crate) fn single_stale(&mut self, txn: TxnId, stale_ok_ns: u64, statement: Statement) {
        let begin = Begin { stale_ok_ns: Some(stale_ok_ns), ..begin(txn, None) };
        self.on(Event::Autocommit { begin, statement });
    }
    pub(crate) fn statement(&mut self, txn: TxnId, op: OpId, statement: Statement) {
        self.on(Event::Statement { txn, op, statement });
    }
    pub(crate) fn commit(&mut self, txn: TxnId, op: OpId) {
        self.on(Event::Commit { txn, op });
    }
    pub(crate) fn rollback(&mut self, txn: TxnId) {
        self.on(Event::Rollback { txn });
    }
    pub(crate) fn cancel(&mut self, txn: TxnId, op: OpId) {
        self.on(Event::Cancel { txn, op });
    }

    pub(crate) fn executed(&mut self, txn: TxnId, op: OpId, replica: ReplicaId, outcome: Outcome) {
        self.on(Event::Executed { txn, op, replica, outcome, elapsed_ns: 1_000 });
    }
    pub(crate) fn done(&mut self, txn: TxnId, op: OpId, replica: ReplicaId) {
        self.executed(txn, op, replica, Outcome::Done { returned: Vec::new() });
    }
    pub(crate) fn fail(&mut self, txn: TxnId, op: OpId, replica: ReplicaId) {
        self.executed(txn, op, replica, Outcome::Failed);
    }
    pub(crate) fn lose(&mut self, txn: TxnId, op: OpId, replica: ReplicaId, answer_begun: bool) {
        self.executed(txn, op, replica, Outcome::Lost { answer_begun });
    }
    pub(crate) fn durable(&mut self, csn: u64) {
        self.on(Event::Durable { csn: Csn(csn) });
    }
    pub(crate) fn applied(&mut self, replica: ReplicaId, csn: u64) {
        self.on(Event::Applied { replica, csn: Csn(csn) });
    }
    pub(crate) fn up(&mut self, replica: ReplicaId, applied: u64) {
        self.on(Event::ReplicaUp { replica, applied: Csn(applied) });
    }
    pub(crate) fn down(&mut self, replica: ReplicaId) {
        self.on(Event::ReplicaDown { replica });
    }

    /// Writes a table in a transaction of one statement, and commits it on the given replicas only.
    pub(crate) fn commit_write_at(&mut self, txn: TxnId, table: TableId, csn: u64, replicas: &[ReplicaId]) {
        self.single(txn, write(table));
        for replica in replicas {
            self.done(txn, OP0, *replica);
        }
        self.durable(csn);
        for replica in replicas {
            self.applied(*replica, csn);
        }
        self.skip();
    }
}

fn begin(txn: TxnId, declared: Option<AccessSet>) -> Begin {
    Begin { txn, session: SessionId(txn.0), read_only: false, form: 0, declared, stale_ok_ns: None }
}
fn accesses<const N: usize>(tables: [(TableId, Mode); N]) -> AccessSet {
    tables.into_iter().map(|(table, mode)| Access::new(Item::table(table), mode)).collect()
}
fn of_kind(class: u64, kind: StatementKind, table: TableId, mode: Mode) -> Statement {
    Statement::new(ClassId(class), kind, accesses([(table, mode)]))
}
pub(crate) fn read(table: TableId) -> Statement {
    of_kind(10 + table.0, StatementKind::Read, table, Mode::Shared)
}
pub(crate) fn write(table: TableId) -> Statement {
    of_kind(20 + table.0, StatementKind::Write, table, Mode::NoKeyExclusive)
}
pub(crate) fn read_both(a: TableId, b: TableId) -> Statement {
    let access = accesses([(a, Mode::Shared), (b, Mode::Shared)]);
    Statement::new(ClassId(50), StatementKind::Read, access)
}
pub(crate) fn read_everything() -> Statement {
    let access = accesses([(TableId::ALL, Mode::Shared)]);
    Statement::new(ClassId(51), StatementKind::Read, access)
}
/// A statement after which its transaction touches none of these tables.
pub(crate) fn last(statement: Statement, tables: &[TableId]) -> Statement {
    Statement { last_use: Some(tables.iter().copied().collect()), ..statement }
}
pub(crate) fn lock_rows(table: TableId) -> Statement {
    of_kind(30 + table.0, StatementKind::LockingRead, table, Mode::Exclusive)
}
/// ROLLBACK TO SAVEPOINT and its like: nothing is read, but every replica must do it.
pub(crate) fn savepoint() -> Statement {
    Statement::new(ClassId(40), StatementKind::LockingRead, AccessSet::new())
}
/// A foreign-key parent that only the answer showed.
pub(crate) fn showing(table: TableId) -> Outcome {
    Outcome::Done { returned: accesses([(table, Mode::KeyShared)]).into_vec() }
}

pub(crate) fn streams(txn: TxnId, op: OpId, replica: ReplicaId, how: How) -> Effect {
    Effect::Execute { txn, op, replica, how, hold: false }
}
pub(crate) fn holds(txn: TxnId, op: OpId, replica: ReplicaId, how: How) -> Effect {
    Effect::Execute { txn, op, replica, how, hold: true }
}
pub(crate) fn release(txn: TxnId, op: OpId, replica: ReplicaId) -> Effect {
    Effect::Release { txn, op, replica }
}
pub(crate) fn append(txn: TxnId, csn: u64) -> Effect {
    Effect::Append { csn: Csn(csn), decision: Decision::Commit(txn) }
}
pub(crate) fn commit_at(txn: TxnId, replica: ReplicaId, csn: u64) -> Effect {
    Effect::CommitAt { txn, replica, csn: Csn(csn) }
}
pub(crate) fn apply(replica: ReplicaId, from: u64, to: u64) -> Effect {
    Effect::Apply { replica, from: Csn(from), to: Csn(to) }
}
pub(crate) fn acknowledge(txn: TxnId, op: OpId, csn: u64) -> Effect {
    Effect::Acknowledge { txn, op, csn: Csn(csn) }
}
pub(crate) fn finish(txn: TxnId, op: OpId, replica: Option<ReplicaId>) -> Effect {
    Effect::Finish { txn, op, replica }
}
pub(crate) fn leave(txn: TxnId, replica: ReplicaId) -> Effect {
    Effect::Leave { txn, replica }
}
pub(crate) fn refuse(txn: TxnId, op: OpId, reason: Refusal) -> Effect {
    Effect::Refuse { txn, op, reason }
}
pub(crate) fn forget(txn: TxnId) -> Effect {
    Effect::Forget { txn }
}
pub(crate) fn notice(txn: TxnId) -> Effect {
    Effect::Notice { txn, notice: Notice::EveryTableLocked }
}

/// A single read waits for a writer of one of its tables, and a later writer of the other one not for it, where databases
/// commit in the order of decisions.
#[track_caller]
pub(crate) fn with_a_read_that_holds_nobody_up(protocol: impl Protocol + 'static) -> Rig {
    let mut rig = rig_in_order(protocol, 2);
    rig.begin_declaring(T1, [(A, Mode::NoKeyExclusive)]);
    rig.statement(T1, OP0, write(A));
    rig.single(T3, read_both(A, B));
    rig.single(T2, write(B));
    let at_both = |txn| [holds(txn, OP0, R0, OPEN), holds(txn, OP0, R1, OPEN)];
    rig.expect(&[at_both(T1), at_both(T2)].concat());
    rig
}

/// A read and a write of one table at one replica wait for each other, as they come (DV 5.2).
#[track_caller]
pub(crate) fn expect_conflicts_to_be_resolved_at_the_proxy(protocol: impl Protocol + 'static) {
    let mut rig = rig(protocol, 1);
    rig.single(T1, read(A));
    rig.single(T2, write(A));
    rig.single(T3, read(A));
    rig.single(T4, read(B));
    rig.expect(&[streams(T1, OP0, R0, ALONE), streams(T4, OP0, R0, ALONE)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[holds(T2, OP0, R0, OPEN), forget(T1)]);
    rig.done(T2, OP0, R0);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.expect(&[
        append(T2, 1),
        commit_at(T2, R0, 1),
        streams(T3, OP0, R0, ALONE),
        release(T2, OP0, R0),
        acknowledge(T2, OP0, 1),
        forget(T2),
    ]);
}
