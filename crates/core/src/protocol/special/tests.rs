//! Titles are conditions and outcomes, by section of DV; whole lists of effects are compared.

use super::*;
use crate::item::Mode;
use crate::scheduling::rig::*;

const WRITES: Mode = Mode::NoKeyExclusive;
const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn s6_1_a_read_that_may_be_old_waits_only_for_updates_that_have_begun() {
    let mut rig = rig(new(1, Csn(0)), 1);
    rig.single(T1, write(A));
    rig.single(T2, write(A));
    rig.single_stale(T3, 30 * SECOND_NS, read(A));
    rig.single(T4, read(A));
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.expect(&[holds(T1, OP0, R0, OPEN), append(T1, 1), commit_at(T1, R0, 1)]);
    rig.applied(R0, 1);
    // T2 comes after the old read, and before the fresh one.
    rig.expect(&[streams(T3, OP0, R0, ALONE), release(T1, OP0, R0), acknowledge(T1, OP0, 1), forget(T1)]);
    rig.done(T3, OP0, R0);
    rig.expect(&[holds(T2, OP0, R0, OPEN), forget(T3)]);
}

#[test]
fn s6_1_a_read_that_may_be_old_sees_no_half_of_an_update() {
    let mut rig = rig(new(1, Csn(0)), 1);
    rig.begin_declaring(T1, [(A, WRITES), (B, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.single_stale(T2, 30 * SECOND_NS, read_both(A, B));
    rig.done(T1, OP0, R0);
    rig.statement(T1, OP1, write(B));
    rig.done(T1, OP1, R0);
    rig.skip();
    rig.commit(T1, OP2);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.expect(&[
        append(T1, 1),
        commit_at(T1, R0, 1),
        streams(T2, OP0, R0, ALONE),
        acknowledge(T1, OP2, 1),
        forget(T1),
    ]);
}

#[test]
fn s6_1_a_read_does_not_go_where_what_it_reads_is_older_than_its_bound() {
    let mut rig = rig(new(2, Csn(0)), 2);
    rig.begin_declaring(T1, [(B, WRITES)]);
    rig.statement(T1, OP0, write(B));
    rig.done(T1, OP0, R0);
    rig.single(T2, write(A));
    rig.done(T2, OP0, R0);
    rig.durable(1);
    rig.applied(R0, 1);
    // R0 is more loaded.
    rig.single(T3, read(C));
    rig.skip();
    rig.pass(31 * SECOND_NS);
    rig.single_stale(T4, 30 * SECOND_NS, read(A));
    rig.expect(&[streams(T4, OP0, R0, ALONE)]);
}
