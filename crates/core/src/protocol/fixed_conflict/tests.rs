//! Titles are conditions and outcomes, by section of the paper; bodies are verbs; whole lists of effects are compared.

use super::*;
use crate::item::Mode;
use crate::scheduling::rig::*;

const WRITES: Mode = Mode::NoKeyExclusive;
const READS: Mode = Mode::Shared;

fn of(replicas: u16) -> Rig {
    rig(new(usize::from(replicas), Csn(0)), replicas)
}

/// T1 has written A and committed at R1, and not yet at R0; T2, which reads A, was granted it at R1.
fn granted_at_r1() -> Rig {
    let mut rig = of(2);
    rig.single(T1, write(A));
    rig.done(T1, OP0, R0);
    rig.done(T1, OP0, R1);
    rig.durable(1);
    rig.begin_declaring(T2, [(A, READS), (B, WRITES)]);
    rig.skip();
    rig.applied(R1, 1);
    rig.skip();
    rig
}

#[test]
fn s6_3_the_replica_that_first_grants_the_locks_serves_all_reads_however_loaded_it_is() {
    let mut rig = granted_at_r1();
    rig.applied(R0, 1);
    rig.skip();
    rig.single(T3, read(C));
    rig.single(T4, read(C));
    rig.expect(&[streams(T3, OP0, R0, ALONE), streams(T4, OP0, R1, ALONE)]);
    rig.done(T3, OP0, R0);
    rig.skip();
    for (op, how) in [(OP0, OPEN), (OP1, ON)] {
        rig.statement(T2, op, read(A));
        rig.expect(&[streams(T2, op, R1, how)]);
        rig.done(T2, op, R1);
    }
}

#[test]
fn s6_3_a_write_and_a_commit_are_answered_when_the_chosen_replica_has_done_them() {
    let mut rig = granted_at_r1();
    rig.applied(R0, 1);
    rig.skip();
    rig.statement(T2, OP0, write(B));
    rig.done(T2, OP0, R0);
    rig.expect(&[holds(T2, OP0, R0, OPEN), holds(T2, OP0, R1, OPEN)]);
    rig.done(T2, OP0, R1);
    rig.expect(&[release(T2, OP0, R1)]);
    rig.commit(T2, OP1);
    rig.durable(2);
    rig.skip();
    rig.applied(R0, 2);
    rig.expect(&[]);
    rig.applied(R1, 2);
    rig.expect(&[acknowledge(T2, OP1, 2), forget(T2)]);
}

#[test]
fn s6_3_a_single_update_is_answered_by_the_replica_that_first_grants_its_locks() {
    let mut rig = of(2);
    rig.single(T1, read(A));
    rig.single(T2, write(A));
    rig.expect(&[streams(T1, OP0, R0, ALONE), holds(T2, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.done(T2, OP0, R0);
    rig.expect(&[holds(T2, OP0, R0, OPEN), forget(T1)]);
    rig.done(T2, OP0, R1);
    rig.expect(&[append(T2, 1)]);
}

#[test]
fn s8_1_a_single_read_goes_where_nothing_conflicts_with_it() {
    let mut rig = of(2);
    rig.single(T1, write(A));
    rig.done(T1, OP0, R0);
    rig.done(T1, OP0, R1);
    rig.durable(1);
    rig.applied(R1, 1);
    rig.skip();
    for txn in [T2, T3] {
        rig.single(txn, read(A));
        rig.expect(&[streams(txn, OP0, R1, ALONE)]);
    }
}

#[test]
fn a_transaction_whose_replica_is_lost_goes_on_with_another() {
    let mut rig = granted_at_r1();
    rig.applied(R0, 1);
    rig.skip();
    rig.statement(T2, OP0, write(B));
    rig.done(T2, OP0, R0);
    rig.down(R1);
    rig.expect(&[holds(T2, OP0, R0, OPEN), holds(T2, OP0, R1, OPEN), release(T2, OP0, R0)]);
    rig.statement(T2, OP1, read(A));
    rig.expect(&[streams(T2, OP1, R0, ON)]);
}
