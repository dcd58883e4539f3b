//! Titles are conditions and outcomes, by section of the paper; bodies are verbs; whole lists of effects are compared.

use super::*;
use crate::ids::TxnId;
use crate::item::Mode;
use crate::scheduling::rig::*;

const WRITES: Mode = Mode::NoKeyExclusive;

fn of(replicas: u16) -> Rig {
    rig(new(usize::from(replicas), Csn(0)), replicas)
}

/// T9 reads C at R0, so that R1 is the least loaded.
fn busy_at_r0(replicas: u16) -> Rig {
    let mut rig = of(replicas);
    rig.single(TxnId(9), read(C));
    rig.expect(&[streams(TxnId(9), OP0, R0, ALONE)]);
    rig
}

#[test]
fn s6_2_all_reads_of_a_transaction_go_to_the_replica_that_was_least_loaded_at_its_start() {
    let mut rig = busy_at_r0(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    for (op, how) in [(OP0, OPEN), (OP1, ON), (OP2, ON)] {
        rig.statement(T1, op, read(A));
        rig.expect(&[streams(T1, op, R1, how)]);
        rig.done(T1, op, R1);
    }
}

#[test]
fn s6_2_a_lock_request_is_answered_when_the_chosen_replica_has_granted_it() {
    let mut rig = of(2);
    rig.single(T1, read(B));
    rig.single(T2, read(A));
    rig.single(T3, read(C));
    let singles = [streams(T1, OP0, R0, ALONE), streams(T2, OP0, R1, ALONE), streams(T3, OP0, R0, ALONE)];
    rig.expect(&singles);
    // R1 is less loaded, and A is being read there.
    rig.begin_declaring(T4, [(A, WRITES)]);
    rig.statement(T4, OP0, write(A));
    rig.expect(&[]);
    rig.done(T2, OP0, R1);
    rig.expect(&[forget(T2), holds(T4, OP0, R0, OPEN), holds(T4, OP0, R1, OPEN)]);
}

#[test]
fn s6_2_a_write_is_answered_when_the_chosen_replica_has_done_it() {
    let mut rig = busy_at_r0(3);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.skip();
    rig.done(T1, OP0, R0);
    rig.done(T1, OP0, R2);
    rig.expect(&[]);
    rig.done(T1, OP0, R1);
    rig.expect(&[release(T1, OP0, R1)]);
}

#[test]
fn s6_2_a_commit_is_answered_when_the_chosen_replica_has_committed() {
    let mut rig = busy_at_r0(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.done(T1, OP0, R0);
    rig.done(T1, OP0, R1);
    rig.commit(T1, OP1);
    rig.durable(1);
    rig.skip();
    rig.applied(R0, 1);
    rig.expect(&[]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP1, 1), forget(T1)]);
}

#[test]
fn s6_2_a_single_update_is_answered_by_the_chosen_replica() {
    let mut rig = busy_at_r0(2);
    rig.single(T1, write(A));
    rig.skip();
    rig.done(T1, OP0, R0);
    rig.expect(&[]);
    rig.done(T1, OP0, R1);
    rig.durable(1);
    rig.expect(&[append(T1, 1), commit_at(T1, R0, 1), commit_at(T1, R1, 1)]);
    rig.applied(R0, 1);
    rig.expect(&[]);
    rig.applied(R1, 1);
    rig.expect(&[release(T1, OP0, R1), acknowledge(T1, OP0, 1), forget(T1)]);
}

#[test]
fn s6_2_a_single_read_goes_to_the_least_loaded_replica_whatever_is_locked_there() {
    let mut rig = busy_at_r0(2);
    rig.single(T1, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.single(T2, read(A));
    rig.expect(&[]);
    rig.done(T1, OP0, R1);
    rig.durable(1);
    rig.applied(R1, 1);
    rig.expect(&[
        append(T1, 1),
        commit_at(T1, R1, 1),
        streams(T2, OP0, R1, ALONE),
        release(T1, OP0, R1),
        acknowledge(T1, OP0, 1),
    ]);
}

#[test]
fn a_transaction_whose_replica_is_lost_goes_on_with_the_least_loaded_of_the_others() {
    let mut rig = busy_at_r0(3);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.skip();
    rig.done(T1, OP0, R0);
    rig.down(R1);
    rig.expect(&[release(T1, OP0, R0)]);
    rig.done(T1, OP0, R2);
    for op in [OP1, OP2] {
        rig.statement(T1, op, read(A));
        rig.expect(&[streams(T1, op, R2, ON)]);
        rig.done(T1, op, R2);
    }
}
