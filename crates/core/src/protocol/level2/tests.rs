//! Titles are conditions and outcomes, by section of DV; whole lists of effects are compared. What the level does not promise is
//! found in simulation (`crates/sim/src/perf/tests/histories.rs`).

use super::*;
use crate::scheduling::rig::*;

/// A was written at R0 and not yet at R1, which is the less loaded by now.
fn written_at_one_replica() -> Rig {
    let mut rig = rig(new(2, Csn(0)), 2);
    rig.single_of_session(T1, 7, write(A));
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.single(T2, read(B));
    rig.skip();
    rig
}

#[test]
fn s5_1_a_read_sees_what_its_own_client_has_written() {
    let mut rig = written_at_one_replica();
    rig.single_of_session(T3, 7, read(A));
    rig.expect(&[streams(T3, OP0, R0, ALONE)]);
}

#[test]
fn s5_1_a_read_does_not_go_to_a_replica_that_is_behind_by_more_than_30_seconds() {
    let mut rig = written_at_one_replica();
    rig.pass(STALE_MAX_NS);
    // It goes to R1, and waits there for the write that is under way.
    rig.single(T3, read(A));
    rig.expect(&[]);
    rig.pass(1);
    rig.single(T4, read(A));
    rig.expect(&[streams(T4, OP0, R0, ALONE)]);
}

#[test]
fn s5_1_a_read_waits_at_the_scheduler_while_no_replica_will_do() {
    let mut rig = rig(new(2, Csn(0)), 2);
    for (txn, table, csn, replica) in [(T1, A, 1, R0), (T2, B, 2, R1)] {
        rig.single_of_session(txn, 7, write(table));
        rig.done(txn, OP0, replica);
        rig.durable(csn);
        rig.applied(replica, csn);
    }
    rig.skip();
    rig.single_of_session(T3, 7, read_both(A, B));
    rig.expect(&[]);
    rig.done(T2, OP0, R0);
    rig.applied(R0, 2);
    rig.expect(&[commit_at(T2, R0, 2), forget(T2), streams(T3, OP0, R0, ALONE)]);
}
