//! Titles are conditions and outcomes, by section of the paper; bodies are verbs; whole lists of effects are compared.

use super::*;
use crate::item::Mode;
use crate::scheduling::rig::*;

const WRITES: Mode = Mode::NoKeyExclusive;

fn of(replicas: u16) -> Rig {
    rig(new(usize::from(replicas), Csn(0)), replicas)
}

#[test]
fn s6_4_a_lock_request_a_write_and_a_commit_are_answered_by_the_first_replica() {
    let mut rig = of(2);
    rig.single(T1, read(A));
    rig.begin_declaring(T2, [(A, WRITES)]);
    rig.statement(T2, OP0, write(A));
    // R0 has not granted A yet.
    rig.expect(&[streams(T1, OP0, R0, ALONE), holds(T2, OP0, R1, OPEN)]);
    rig.done(T2, OP0, R1);
    rig.expect(&[release(T2, OP0, R1)]);
    rig.commit(T2, OP1);
    rig.durable(1);
    rig.applied(R1, 1);
    rig.expect(&[append(T2, 1), commit_at(T2, R1, 1), acknowledge(T2, OP1, 1)]);
}

#[test]
fn s6_4_each_read_goes_to_the_replica_that_is_least_loaded_when_it_arrives() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, read(A));
    rig.done(T1, OP0, R0);
    rig.expect(&[streams(T1, OP0, R0, OPEN)]);
    rig.single(T2, read(B));
    rig.single(T3, read(B));
    rig.done(T2, OP0, R1);
    rig.expect(&[streams(T2, OP0, R1, ALONE), streams(T3, OP0, R0, ALONE), forget(T2)]);
    rig.statement(T1, OP1, read(A));
    rig.expect(&[streams(T1, OP1, R1, OPEN)]);
}

#[test]
fn s6_4_a_read_waits_at_its_replica_for_earlier_writes_of_its_transaction() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.done(T1, OP0, R0);
    rig.skip();
    // R0 has done the write, and has something else to do by now.
    rig.single(T2, read(B));
    rig.expect(&[streams(T2, OP0, R0, ALONE)]);
    rig.statement(T1, OP1, read(A));
    rig.expect(&[]);
    rig.done(T1, OP0, R1);
    rig.expect(&[streams(T1, OP1, R1, ON)]);
}

#[test]
fn s6_4_a_single_read_goes_to_the_least_loaded_replica_and_waits_there_for_conflicts() {
    let mut rig = of(2);
    rig.single(T1, write(A));
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.single(T3, read(B));
    rig.single(T2, read(A));
    rig.skip();
    rig.done(T1, OP0, R1);
    rig.applied(R1, 1);
    rig.expect(&[commit_at(T1, R1, 1), streams(T2, OP0, R1, ALONE), forget(T1)]);
}

#[test]
fn a_single_read_holds_nobody_up_where_databases_commit_in_the_order_of_decisions() {
    with_a_read_that_holds_nobody_up(new(2, Csn(0)));
}
