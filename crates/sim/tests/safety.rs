//! Every protocol keeps what its file promises, whatever is delayed and whatever breaks.

mod sweep;

use onecopy_core::Csn;
use onecopy_core::protocol::conflict_aware::ConflictAware;
use onecopy_core::protocol::eager::Eager;
use onecopy_core::protocol::{Protocol, by_name};
use onecopy_sim::Scenario;
use onecopy_sim::check::Level;
use sweep::Sweep;

fn onecopy(replicas: usize, decided: Csn) -> Box<dyn Protocol> {
    by_name("onecopy", replicas, decided).expect("it is selectable")
}

fn conflict_aware(replicas: usize, decided: Csn) -> Box<dyn Protocol> {
    Box::new(ConflictAware::new(replicas, decided))
}

fn eager(replicas: usize, decided: Csn) -> Box<dyn Protocol> {
    Box::new(Eager::new(replicas, decided))
}

#[test]
fn onecopy_in_calm() {
    let sweep = Sweep {
        file: "safety",
        test: "onecopy_in_calm",
        seeds: 2_000,
        scenario: Scenario::calm,
        protocol: onecopy,
    };
    sweep.expect_kept();
}

#[test]
fn onecopy_in_storms() {
    let sweep = Sweep {
        file: "safety",
        test: "onecopy_in_storms",
        seeds: 3_000,
        scenario: Scenario::stormy,
        protocol: onecopy,
    };
    sweep.expect_kept();
}

#[test]
fn conflict_aware_in_calm() {
    let sweep = Sweep {
        file: "safety",
        test: "conflict_aware_in_calm",
        seeds: 500,
        scenario: Scenario::calm,
        protocol: conflict_aware,
    };
    sweep.expect_kept();
}

#[test]
fn conflict_aware_in_storms() {
    let sweep = Sweep {
        file: "safety",
        test: "conflict_aware_in_storms",
        seeds: 500,
        scenario: Scenario::stormy,
        protocol: conflict_aware,
    };
    sweep.expect_kept();
}

#[test]
fn conflict_aware_in_one_process_is_strict() {
    let sweep = Sweep {
        file: "safety",
        test: "conflict_aware_in_one_process_is_strict",
        seeds: 500,
        scenario: |seed| Scenario {
            demanded: Some(Level::StrictSerializable.into()),
            ..Scenario::stormy(seed)
        },
        protocol: |replicas, decided| by_name("conflict_aware", replicas, decided).expect("it is selectable"),
    };
    sweep.expect_kept();
}

#[test]
fn eager_in_calm() {
    let sweep = Sweep {
        file: "safety",
        test: "eager_in_calm",
        seeds: 500,
        scenario: Scenario::calm,
        protocol: eager,
    };
    sweep.expect_kept();
}

#[test]
fn eager_in_storms() {
    let sweep = Sweep {
        file: "safety",
        test: "eager_in_storms",
        seeds: 500,
        scenario: |seed| Scenario {
            demanded: Some(Level::StrictSerializable.into()),
            ..Scenario::stormy(seed)
        },
        protocol: eager,
    };
    sweep.expect_kept();
}
