//! Replicas join and leave (docs/replicas.md).

use super::rig::*;
use super::*;

impl Rig {
    /// The first statement of a transaction.
    fn write_in(&mut self, txn: TxnId, key: i64) {
        self.begin(txn);
        self.statement(txn, OP0, write(key));
    }
    fn open(&self, replica: ReplicaId) -> u64 {
        self.protocol.status().replicas[usize::from(replica.0)].open
    }
}

#[test]
fn replica_that_is_added_is_down_until_it_comes_up_and_applies_what_it_lacks_before_it_is_read() {
    let mut rig = rig();
    rig.on(Event::ReplicaAdded { replica: R2 });
    rig.expect(&[]);
    assert!(!rig.protocol.status().replicas[2].up);
    rig.write_in(T1, 1);
    rig.expect(&[execute(T1, OP0, R0, OPEN_HOME)]);
    rig.done(T1, OP0, R0);
    rig.commit(T1, OP1);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.effects.clear();

    // A copy as of the start of the log.
    rig.on(Event::ReplicaUp { replica: R2, applied: Csn(0) });
    rig.expect(&[apply(R2, 1, 1)]);
    rig.single(T2, read(1));
    rig.expect(&[execute(T2, OP0, R0, ALONE)]);
    rig.applied(R2, 1);
    rig.single(T3, read(1));
    rig.expect(&[execute(T3, OP0, R2, ALONE)]);
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
    rig.write_in(T1, 1);
    rig.expect(&[execute(T1, OP0, R0, OPEN_HOME)]);
    rig.done(T1, OP0, R0);
    rig.on(Event::ReplicaLeaving { replica: R0 });
    rig.expect(&[]);
    assert_eq!((rig.open(R0), rig.open(R1)), (1, 0));
    for txn in 2..6 {
        rig.single(TxnId(txn), read(7));
        rig.expect(&[execute(TxnId(txn), OP0, R1, ALONE)]);
    }
    rig.write_in(TxnId(6), 6);
    rig.expect(&[execute(TxnId(6), OP0, R1, OPEN_HOME)]);

    // It commits there, and is applied at the other one: whoever asks for its rows waits for that.
    rig.commit(T1, OP1);
    rig.durable(1);
    rig.expect(&[append(T1, 1), commit_at(T1, R0, 1), apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP1, 1)]);
    assert_eq!(rig.open(R0), 1, "its commit is under way there, though its client has been answered");
    rig.applied(R0, 1);
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
    rig.single(T1, read(1));
    rig.write_in(T2, 2);
    rig.expect(&[execute(T1, OP0, R0, ALONE), execute(T2, OP0, R0, OPEN_HOME)]);
    rig.on(Event::ReplicaUp { replica: R1, applied: Csn(0) });
    rig.single(T3, read(1));
    rig.expect(&[execute(T3, OP0, R1, ALONE)]);
    assert_eq!(rig.open(R0), 2);
}

#[test]
fn replica_that_is_removed_while_it_is_used_loses_what_is_open_there_and_never_comes_back() {
    let mut rig = rig();
    rig.write_in(T1, 1);
    rig.done(T1, OP0, R0);
    rig.commit(T1, OP1);
    rig.effects.clear();
    rig.on(Event::ReplicaRemoved { replica: R0 });
    rig.expect(&[leave(T1, R0)]);
    rig.durable(1);
    rig.expect(&[apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP1, 1)]);
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(1) });
    rig.single(T2, read(9));
    rig.expect(&[execute(T2, OP0, R1, ALONE)]);
    // Its number stays its own.
    rig.on(Event::ReplicaAdded { replica: R0 });
    rig.on(Event::ReplicaAdded { replica: R2 });
    assert_eq!(
        rig.protocol.status().replicas.iter().map(|r| r.gone).collect::<Vec<_>>(),
        [true, false, false]
    );
}

#[test]
fn who_waits_for_one_that_stays_is_served_by_one_that_leaves_once_the_former_is_lost() {
    let mut rig = rig();
    rig.commit_row_at(T1, 1, R0, 1);
    rig.on(Event::ReplicaLeaving { replica: R0 });
    rig.single(T2, read(1));
    rig.effects.clear();
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.expect(&[execute(T2, OP0, R0, ALONE)]);
}
