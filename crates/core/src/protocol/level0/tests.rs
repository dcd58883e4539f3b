//! Titles are conditions and outcomes, by section of DV; whole lists of effects are compared. What the level does not promise is
//! found in simulation (`crates/sim/src/perf/tests/histories.rs`).

use super::*;
use crate::protocol::{Guarantee, Protocol, Statements};
use crate::scheduling::rig::*;

#[test]
fn s5_2_transactions_are_left_out() {
    let protocol = new(1, Csn(0));
    assert_eq!((protocol.statements(), protocol.guarantee()), (Statements::Alone, Guarantee::None));
}

#[test]
fn s5_2_conflicts_are_resolved_at_the_proxy() {
    let mut rig = rig(new(1, Csn(0)), 1);
    rig.single(T1, read(A));
    rig.single(T2, write(A));
    rig.single(T3, read(A));
    rig.single(T4, read(B));
    rig.expect(&[streams(T1, OP0, R0, ALONE), streams(T4, OP0, R0, ALONE)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[holds(T2, OP0, R0, OPEN), forget(T1)]);
    rig.done(T2, OP0, R0);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.expect(&[
        append(T2, 1),
        commit_at(T2, R0, 1),
        streams(T3, OP0, R0, ALONE),
        release(T2, OP0, R0),
        acknowledge(T2, OP0, 1),
        forget(T2),
    ]);
}
