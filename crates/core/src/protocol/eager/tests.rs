//! Titles are conditions and outcomes, by section of the paper; bodies are verbs; whole lists of effects are compared.

use super::*;
use crate::item::Mode;
use crate::scheduling::rig::*;

const WRITES: Mode = Mode::NoKeyExclusive;

fn of(replicas: u16) -> Rig {
    rig(new(usize::from(replicas), Csn(0)), replicas)
}

#[test]
fn s6_1_a_lock_request_is_answered_when_every_replica_has_granted_it() {
    let mut rig = of(2);
    rig.single(T1, read(A));
    rig.begin_declaring(T2, [(A, WRITES)]);
    rig.statement(T2, OP0, write(A));
    rig.expect(&[streams(T1, OP0, R0, ALONE)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[forget(T1), holds(T2, OP0, R0, OPEN), holds(T2, OP0, R1, OPEN)]);
}

#[test]
fn s6_1_a_write_is_answered_when_every_replica_has_done_it() {
    let mut rig = of(3);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.skip();
    rig.done(T1, OP0, R1);
    rig.done(T1, OP0, R2);
    rig.expect(&[]);
    rig.done(T1, OP0, R0);
    rig.expect(&[release(T1, OP0, R1)]);
}

#[test]
fn s6_1_a_commit_is_answered_when_every_replica_has_committed() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.done(T1, OP0, R0);
    rig.done(T1, OP0, R1);
    rig.skip();
    rig.commit(T1, OP1);
    rig.durable(1);
    rig.expect(&[append(T1, 1), commit_at(T1, R0, 1), commit_at(T1, R1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[]);
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(T1, OP1, 1), forget(T1)]);
    rig.expect_nothing_left();
}

#[test]
fn s6_1_a_single_update_is_decided_when_all_have_executed_it_and_answered_when_all_have_committed() {
    let mut rig = of(2);
    rig.single(T1, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[]);
    rig.done(T1, OP0, R1);
    rig.expect(&[append(T1, 1)]);
    rig.durable(1);
    rig.expect(&[commit_at(T1, R0, 1), commit_at(T1, R1, 1)]);
    rig.applied(R0, 1);
    rig.expect(&[]);
    rig.applied(R1, 1);
    rig.expect(&[release(T1, OP0, R0), acknowledge(T1, OP0, 1), forget(T1)]);
}

#[test]
fn s3_1_a_single_update_holds_up_others_at_each_replica_only_until_it_is_done_there_where_engines_show_it() {
    let mut rig = rig_showing_uncommitted(new(2, Csn(0)), 2);
    rig.single(T1, write(A));
    rig.single(T2, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R0);
    // Its client waits for all replicas; nobody else does.
    rig.expect(&[holds(T2, OP0, R0, OPEN)]);
    rig.done(T1, OP0, R1);
    rig.expect(&[holds(T2, OP0, R1, OPEN), append(T1, 1)]);
    rig.durable(1);
    rig.expect(&[commit_at(T1, R0, 1), commit_at(T1, R1, 1)]);
    rig.applied(R0, 1);
    rig.applied(R1, 1);
    rig.expect(&[release(T1, OP0, R0), acknowledge(T1, OP0, 1), forget(T1)]);
    rig.done(T2, OP0, R0);
    rig.done(T2, OP0, R1);
    rig.durable(2);
    rig.skip();
    rig.applied(R0, 2);
    rig.applied(R1, 2);
    rig.skip();
    rig.expect_nothing_left();
}

#[test]
fn s6_1_a_single_read_goes_to_the_least_loaded_replica_whatever_is_locked_there() {
    let mut rig = of(2);
    rig.single(T1, read(B));
    rig.begin_declaring(T2, [(A, WRITES)]);
    rig.single(T3, read(A));
    rig.expect(&[streams(T1, OP0, R0, ALONE)]);
    rig.rollback(T2);
    rig.expect(&[streams(T3, OP0, R1, ALONE), forget(T2)]);
}

#[test]
fn s6_1_reads_of_a_longer_transaction_are_spread_by_load() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    for (op, replica) in [(OP0, R0), (OP1, R1)] {
        rig.statement(T1, op, read(A));
        rig.expect(&[streams(T1, op, replica, OPEN)]);
        rig.done(T1, op, replica);
    }
}

#[test]
fn nobody_waits_for_a_replica_that_was_lost() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.done(T1, OP0, R0);
    rig.skip();
    rig.down(R1);
    rig.expect(&[release(T1, OP0, R0)]);
    rig.commit(T1, OP1);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.expect(&[append(T1, 1), commit_at(T1, R0, 1), acknowledge(T1, OP1, 1), forget(T1)]);
}

#[test]
fn nobody_waits_for_a_replica_that_catches_up_and_it_is_waited_for_as_soon_as_it_has() {
    let mut rig = of(2);
    rig.down(R1);
    rig.commit_write_at(T1, A, 1, &[R0]);
    rig.up(R1, 0);
    rig.expect(&[apply(R1, 1, 1)]);
    rig.single(T2, write(B));
    rig.done(T2, OP0, R0);
    rig.durable(2);
    rig.applied(R0, 2);
    rig.expect(&[
        holds(T2, OP0, R0, OPEN),
        append(T2, 2),
        commit_at(T2, R0, 2),
        release(T2, OP0, R0),
        acknowledge(T2, OP0, 2),
    ]);
    rig.applied(R1, 1);
    rig.expect(&[holds(T2, OP0, R1, OPEN)]);
    rig.single(T3, write(C));
    rig.done(T3, OP0, R0);
    rig.expect(&[holds(T3, OP0, R0, OPEN), holds(T3, OP0, R1, OPEN)]);
    rig.done(T3, OP0, R1);
    rig.expect(&[append(T3, 3)]);
}
