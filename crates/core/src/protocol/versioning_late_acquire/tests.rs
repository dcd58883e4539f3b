//! Titles are conditions and outcomes, by section of DV; whole lists of effects are compared.

use super::*;
use crate::item::Mode;
use crate::scheduling::rig::*;

const READS: Mode = Mode::Shared;
const WRITES: Mode = Mode::NoKeyExclusive;

#[test]
fn s8_1_the_first_statement_waits_for_all_tables_of_its_transaction() {
    let mut rig = rig(new(1, Csn(0)), 1);
    rig.begin_declaring(T1, [(A, READS), (C, WRITES)]);
    rig.statement(T1, OP0, last(read(A), &[A]));
    rig.begin_declaring(T2, [(A, WRITES), (B, WRITES)]);
    rig.statement(T2, OP0, write(B));
    rig.begin_declaring(T3, [(A, READS), (B, READS)]);
    rig.statement(T3, OP0, read(B));
    rig.expect(&[streams(T1, OP0, R0, OPEN)]);
    // Tables are let go as early as elsewhere.
    rig.done(T1, OP0, R0);
    rig.expect(&[holds(T2, OP0, R0, OPEN)]);
}
