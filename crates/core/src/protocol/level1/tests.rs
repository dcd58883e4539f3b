//! Titles are conditions and outcomes, by section of DV; whole lists of effects are compared. That writes are executed in their order however they arrive
//! is seen at the proxy alone (`crates/core/src/scheduling/proxy_tests.rs`). What the level does not promise is
//! found in simulation (`crates/sim/src/perf/tests/histories.rs`).

use super::*;
use crate::protocol::{Guarantee, Protocol, Statements};
use crate::scheduling::rig::expect_conflicts_to_be_resolved_at_the_proxy;

#[test]
fn s5_2_transactions_are_left_out() {
    let protocol = new(1, Csn(0));
    assert_eq!((protocol.statements(), protocol.guarantee()), (Statements::Alone, Guarantee::None));
}

#[test]
fn s5_2_conflicts_are_resolved_at_the_proxy() {
    expect_conflicts_to_be_resolved_at_the_proxy(new(1, Csn(0)));
}
