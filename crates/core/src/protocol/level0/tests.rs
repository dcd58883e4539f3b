//! Titles are conditions and outcomes, by section of DV; whole lists of effects are compared. That writes are executed as they arrive
//! is seen at the proxy alone (`crates/core/src/scheduling/proxy_tests.rs`). What the level does not promise is
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
    expect_conflicts_to_be_resolved_at_the_proxy(new(1, Csn(0)));
}

#[test]
fn a_read_holds_nobody_up_where_databases_commit_in_the_order_of_decisions() {
    let mut rig = rig_in_order(new(1, Csn(0)), 1);
    rig.single(T1, write(A));
    rig.single(T2, read_both(A, B));
    rig.single(T3, write(B));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T3, OP0, R0, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.skip();
    rig.applied(R0, 1);
    assert!(rig.take().contains(&streams(T2, OP0, R0, ALONE)));
}
