//! Titles are conditions and outcomes, by section of DV; whole lists of effects are compared.

use super::*;
use crate::item::Mode;
use crate::scheduling::rig::*;

const WRITES: Mode = Mode::NoKeyExclusive;

#[test]
fn s8_1_a_table_is_held_to_the_end_whatever_the_engine_shows() {
    let mut rig = rig_showing_uncommitted(new(1, Csn(0)), 1);
    rig.begin_declaring(T1, [(A, Mode::Shared), (B, WRITES)]);
    rig.statement(T1, OP0, last(read(A), &[A]));
    rig.single(T2, write(A));
    rig.done(T1, OP0, R0);
    rig.statement(T1, OP1, last(write(B), &[A, B]));
    rig.done(T1, OP1, R0);
    rig.expect(&[streams(T1, OP0, R0, OPEN), holds(T1, OP1, R0, ON), release(T1, OP1, R0)]);
    rig.commit(T1, OP2);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.expect(&[
        append(T1, 1),
        commit_at(T1, R0, 1),
        holds(T2, OP0, R0, OPEN),
        acknowledge(T1, OP2, 1),
        forget(T1),
    ]);
}

#[test]
fn s8_1_a_transaction_waits_only_for_the_tables_of_its_present_operation() {
    let mut rig = rig(new(1, Csn(0)), 1);
    rig.single(T1, write(A));
    rig.begin_declaring(T2, [(A, WRITES), (B, WRITES)]);
    rig.statement(T2, OP0, write(B));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T2, OP0, R0, OPEN)]);
}
