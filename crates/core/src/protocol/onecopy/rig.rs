//! Two replicas, transactions and statements, and the effects that are expected of them, in the words of the tests.

use smallvec::smallvec;

use super::*;
use crate::ids::{ClassId, NodeId, SessionId};
use crate::item::{ColumnId, TableId, ValueHash};

pub(super) const R0: ReplicaId = ReplicaId(0);
pub(super) const R1: ReplicaId = ReplicaId(1);
pub(super) const R2: ReplicaId = ReplicaId(2);
pub(super) const T1: TxnId = TxnId(1);
pub(super) const T2: TxnId = TxnId(2);
pub(super) const T3: TxnId = TxnId(3);
pub(super) const OP0: OpId = OpId(0);
pub(super) const OP1: OpId = OpId(1);
pub(super) const OP2: OpId = OpId(2);
pub(super) const OP3: OpId = OpId(3);

pub(super) struct Rig {
    pub(super) protocol: Onecopy,
    pub(super) effects: Vec<Effect>,
}

/// Two replicas, both up, at the start of an empty log.
pub(super) fn rig() -> Rig {
    let mut rig = Rig { protocol: Onecopy::tuned(2, Csn(0), Tuning::immediate()), effects: Vec::new() };
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(0) });
    rig.on(Event::ReplicaUp { replica: R1, applied: Csn(0) });
    rig.expect(&[]);
    rig
}

impl Rig {
    pub(super) fn on(&mut self, event: Event) {
        self.protocol.handle(Place::Scheduler(NodeId(0)), Instant(0), event, &mut self.effects);
    }
    #[track_caller]
    pub(super) fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
    pub(super) fn begin(&mut self, txn: TxnId) {
        self.on(Event::Begin(begin(txn)));
    }
    pub(super) fn single(&mut self, txn: TxnId, statement: Statement) {
        self.on(Event::Autocommit { begin: begin(txn), statement });
    }
    pub(super) fn statement(&mut self, txn: TxnId, op: OpId, statement: Statement) {
        self.on(Event::Statement { txn, op, statement });
    }
    pub(super) fn done(&mut self, txn: TxnId, op: OpId, replica: ReplicaId) {
        let outcome = Outcome::Done { returned: Vec::new() };
        self.on(Event::Executed { txn, op, replica, outcome, elapsed_ns: 1_000 });
    }
    /// The driver gives up a statement that waits.
    pub(super) fn cancel(&mut self, txn: TxnId, op: OpId) {
        self.on(Event::Cancel { txn, op });
    }
    pub(super) fn commit(&mut self, txn: TxnId, op: OpId) {
        self.on(Event::Commit { txn, op });
    }
    pub(super) fn durable(&mut self, csn: u64) {
        self.on(Event::Durable { csn: Csn(csn) });
    }
    pub(super) fn applied(&mut self, replica: ReplicaId, csn: u64) {
        self.on(Event::Applied { replica, csn: Csn(csn) });
    }
    /// Commits a single write of a row, executed at the given home, and applies it at that home only.
    pub(super) fn commit_row_at(&mut self, txn: TxnId, key: i64, home: ReplicaId, csn: u64) {
        self.single(txn, write(key));
        self.done(txn, OP0, home);
        self.durable(csn);
        self.applied(home, csn);
        self.effects.clear();
    }
}

pub(super) fn begin(txn: TxnId) -> Begin {
    Begin { txn, session: SessionId(txn.0), read_only: false, form: 0, declared: None, stale_ok_ns: None }
}
pub(super) fn row(key: i64, mode: Mode) -> Access {
    Access::new(Item::rows(TableId(1), [(ColumnId(1), ValueHash::of_integer(key))]), mode)
}
pub(super) fn read(key: i64) -> Statement {
    let access = smallvec![row(key, Mode::Shared)];
    Statement::new(ClassId(1), StatementKind::Read, access)
}
pub(super) fn write(key: i64) -> Statement {
    let access = smallvec![row(key, Mode::NoKeyExclusive)];
    Statement::new(ClassId(2), StatementKind::Write, access)
}
pub(super) fn schema_change() -> Statement {
    let access = smallvec![Access::new(Item::table(TableId(1)), Mode::Exclusive)];
    Statement::new(ClassId(3), StatementKind::Schema, access)
}
pub(super) fn execute(txn: TxnId, op: OpId, replica: ReplicaId, how: How) -> Effect {
    Effect::Execute { txn, op, replica, how, hold: false }
}
pub(super) fn execute_held(txn: TxnId, op: OpId, replica: ReplicaId, how: How) -> Effect {
    Effect::Execute { txn, op, replica, how, hold: true }
}
pub(super) fn append(txn: TxnId, csn: u64) -> Effect {
    Effect::Append { csn: Csn(csn), decision: Decision::Commit(txn) }
}
pub(super) fn apply(replica: ReplicaId, from: u64, to: u64) -> Effect {
    Effect::Apply { replica, from: Csn(from), to: Csn(to) }
}
pub(super) fn commit_at(txn: TxnId, replica: ReplicaId, csn: u64) -> Effect {
    Effect::CommitAt { txn, replica, csn: Csn(csn) }
}
pub(super) fn acknowledge(txn: TxnId, op: OpId, csn: u64) -> Effect {
    Effect::Acknowledge { txn, op, csn: Csn(csn) }
}
pub(super) fn leave(txn: TxnId, replica: ReplicaId) -> Effect {
    Effect::Leave { txn, replica }
}
pub(super) fn withdraw(txn: TxnId, op: OpId) -> Effect {
    Effect::Withdraw { txn, op }
}
pub(super) const ALONE: How = How::Alone;
pub(super) const OPEN_SNAPSHOT: How = How::Snapshot { open: true };
pub(super) const SNAPSHOT: How = How::Snapshot { open: false };
pub(super) const OPEN_HOME: How = How::Home { open: true };
pub(super) const HOME: How = How::Home { open: false };
