//! Replicas join and leave (docs/replicas.md).

use smallvec::smallvec;

use super::*;
use crate::ids::{ClassId, NodeId, SessionId};
use crate::item::{ColumnId, TableId, ValueHash};

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const T1: TxnId = TxnId(1);
const T2: TxnId = TxnId(2);
const T3: TxnId = TxnId(3);
const OP0: OpId = OpId(0);
const OP1: OpId = OpId(1);

struct Rig {
    protocol: Onecopy,
    effects: Vec<Effect>,
}

/// Two replicas, both up, at the start of an empty log.
fn rig() -> Rig {
    let mut rig = Rig { protocol: Onecopy::tuned(2, Csn(0), Tuning::immediate()), effects: Vec::new() };
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(0) });
    rig.on(Event::ReplicaUp { replica: R1, applied: Csn(0) });
    rig
}

impl Rig {
    fn on(&mut self, event: Event) {
        self.protocol.handle(Place::Scheduler(NodeId(0)), Instant(0), event, &mut self.effects);
    }
    #[track_caller]
    fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
    fn read(&mut self, txn: TxnId, key: i64) {
        let statement = Statement::new(ClassId(1), StatementKind::Read, smallvec![row(key, Mode::Shared)]);
        self.on(Event::Autocommit { begin: begin(txn), statement });
    }
    /// The first statement of a transaction.
    fn write(&mut self, txn: TxnId, key: i64) {
        self.on(Event::Begin(begin(txn)));
        let access = smallvec![row(key, Mode::NoKeyExclusive)];
        let statement = Statement::new(ClassId(2), StatementKind::Write, access);
        self.on(Event::Statement { txn, op: OP0, statement });
    }
    fn done(&mut self, txn: TxnId, replica: ReplicaId) {
        let outcome = Outcome::Done { returned: Vec::new() };
        self.on(Event::Executed { txn, op: OP0, replica, outcome, elapsed_ns: 1_000 });
    }
    fn open(&self, replica: ReplicaId) -> u64 {
        self.protocol.status().replicas[usize::from(replica.0)].open
    }
}

fn begin(txn: TxnId) -> Begin {
    Begin { txn, session: SessionId(txn.0), read_only: false, form: 0, declared: None, stale_ok_ns: None }
}
fn row(key: i64, mode: Mode) -> Access {
    Access::new(Item::rows(TableId(1), [(ColumnId(1), ValueHash::of_integer(key))]), mode)
}
fn execute(txn: TxnId, replica: ReplicaId, how: How) -> Effect {
    Effect::Execute { txn, op: OP0, replica, how, hold: false }
}
const HOME: How = How::Home { open: true };

#[test]
fn replica_that_is_added_is_down_until_it_comes_up_and_applies_what_it_lacks_before_it_is_read() {
    let mut rig = rig();
    rig.on(Event::ReplicaAdded { replica: R2 });
    rig.expect(&[]);
    assert!(!rig.protocol.status().replicas[2].up);
    rig.write(T1, 1);
    rig.expect(&[execute(T1, R0, HOME)]);
    rig.done(T1, R0);
    rig.on(Event::Commit { txn: T1, op: OP1 });
    rig.on(Event::Durable { csn: Csn(1) });
    rig.on(Event::Applied { replica: R0, csn: Csn(1) });
    rig.effects.clear();

    // A copy as of the start of the log.
    rig.on(Event::ReplicaUp { replica: R2, applied: Csn(0) });
    rig.expect(&[Effect::Apply { replica: R2, from: Csn(1), to: Csn(1) }]);
    rig.read(T2, 1);
    rig.expect(&[execute(T2, R0, How::Alone)]);
    rig.on(Event::Applied { replica: R2, csn: Csn(1) });
    rig.read(T3, 1);
    rig.expect(&[execute(T3, R2, How::Alone)]);
}

#[test]
fn replica_is_added_with_the_next_number_only() {
    let mut rig = rig();
    rig.on(Event::ReplicaAdded { replica: ReplicaId(7) });
    rig.on(Event::ReplicaAdded { replica: R1 });
    assert_eq!(rig.protocol.status().replicas.len(), 2);
}

#[test]
fn replica_that_leaves_takes_nothing_new_and_ends_what_is_open_there() {
    let mut rig = rig();
    rig.write(T1, 1);
    rig.expect(&[execute(T1, R0, HOME)]);
    rig.done(T1, R0);
    rig.on(Event::ReplicaLeaving { replica: R0 });
    rig.expect(&[]);
    assert_eq!((rig.open(R0), rig.open(R1)), (1, 0));
    for txn in 2..6 {
        rig.read(TxnId(txn), 7);
        rig.expect(&[execute(TxnId(txn), R1, How::Alone)]);
    }
    rig.write(TxnId(6), 6);
    rig.expect(&[execute(TxnId(6), R1, HOME)]);

    // It commits there, and is applied at the other one: whoever asks for its rows waits for that.
    rig.on(Event::Commit { txn: T1, op: OP1 });
    rig.on(Event::Durable { csn: Csn(1) });
    rig.expect(&[
        Effect::Append { csn: Csn(1), decision: Decision::Commit(T1) },
        Effect::CommitAt { txn: T1, replica: R0, csn: Csn(1) },
        Effect::Apply { replica: R1, from: Csn(1), to: Csn(1) },
    ]);
    rig.on(Event::Applied { replica: R1, csn: Csn(1) });
    rig.expect(&[Effect::Acknowledge { txn: T1, op: OP1, csn: Csn(1) }]);
    assert_eq!(rig.open(R0), 1, "its commit is under way there, though its client has been answered");
    rig.on(Event::Applied { replica: R0, csn: Csn(1) });
    assert_eq!(rig.open(R0), 0);
    rig.on(Event::ReplicaRemoved { replica: R0 });
    rig.expect(&[]);
    let status = rig.protocol.status();
    assert!(status.replicas[0].gone && !status.replicas[0].up);
}

#[test]
fn replica_that_leaves_is_used_while_no_other_serves() {
    let mut rig = rig();
    rig.on(Event::ReplicaLeaving { replica: R0 });
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.read(T1, 1);
    rig.write(T2, 2);
    rig.expect(&[execute(T1, R0, How::Alone), execute(T2, R0, HOME)]);
    rig.on(Event::ReplicaUp { replica: R1, applied: Csn(0) });
    rig.read(T3, 1);
    rig.expect(&[execute(T3, R1, How::Alone)]);
    assert_eq!(rig.open(R0), 2);
}

#[test]
fn replica_that_is_removed_while_it_is_used_loses_what_is_open_there_and_never_comes_back() {
    let mut rig = rig();
    rig.write(T1, 1);
    rig.done(T1, R0);
    rig.on(Event::Commit { txn: T1, op: OP1 });
    rig.effects.clear();
    rig.on(Event::ReplicaRemoved { replica: R0 });
    rig.expect(&[Effect::Leave { txn: T1, replica: R0 }]);
    rig.on(Event::Durable { csn: Csn(1) });
    rig.expect(&[Effect::Apply { replica: R1, from: Csn(1), to: Csn(1) }]);
    rig.on(Event::Applied { replica: R1, csn: Csn(1) });
    rig.expect(&[Effect::Acknowledge { txn: T1, op: OP1, csn: Csn(1) }]);
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(1) });
    rig.read(T2, 9);
    rig.expect(&[execute(T2, R1, How::Alone)]);
    // Its number stays its own.
    rig.on(Event::ReplicaAdded { replica: R0 });
    rig.on(Event::ReplicaAdded { replica: R2 });
    assert_eq!(
        rig.protocol.status().replicas.iter().map(|r| r.gone).collect::<Vec<_>>(),
        [true, false, false]
    );
}
