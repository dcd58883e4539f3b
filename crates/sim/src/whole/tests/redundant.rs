//! Where chains split, idle workers execute the prefix as well: nothing of it shows but that branches begin earlier.

use super::failures::{Altered, FAILING};
use super::*;

/// A run of some 1,000 transactions on ten workers, each second of which takes three times as long; of one in four updates the rows are few.
fn run_split(protocol: &str, seed: u64, failing: Option<&Failing>) -> Outcome {
    run_protocol(whole_by_name(protocol, 10, Csn(0)).expect("it is one of them"), seed, failing)
}

fn run_protocol(protocol: Box<dyn Protocol>, seed: u64, failing: Option<&Failing>) -> Outcome {
    let setup = Setup {
        seed,
        workers: 10,
        rate: 2_500.0,
        load_ns: 400_000_000,
        message: Drawn { ns: 50_000.0, variance: 0.2 },
        apply_ns: 10_000,
        speeds: Speeds::EachSecond(3.0),
        executes_redundantly: protocol.name() == "chains_redundant",
        history: true,
        ..Setup::gargamel(seed)
    };
    let source = &mut Few { random: random::stream(seed, 9), registers: 24, foresees_reads: false };
    match failing {
        Some(failing) => run_failing(&setup, failing, source, protocol),
        None => run(&setup, source, protocol),
    }
    .expect("histories make sense")
}

#[test]
fn what_is_executed_twice_is_decided_once_and_parallel_snapshot_isolation_is_kept() {
    for seed in 0..20 {
        let outcome = run_split("chains_redundant", seed, None);
        assert_eq!(outcome.faults, [], "seed {seed}");
        assert!(outcome.measured.executed_in_vain > 20, "seed {seed}");
        let history = outcome.history.expect("it was asked for");
        assert!(check::check(&history, Level::ParallelSnapshotIsolation).is_valid(), "seed {seed}");
    }
}

#[test]
fn replicas_fail_return_and_join_nothing_is_lost() {
    for seed in 0..100 {
        let outcome = run_split("chains_redundant", seed, Some(&FAILING));
        assert_eq!(outcome.faults, [], "seed {seed}");
        let history = outcome.history.expect("it was asked for");
        assert!(check::check(&history, Level::ParallelSnapshotIsolation).is_valid(), "seed {seed}");
    }
}

#[test]
fn a_branch_need_not_wait_for_a_slow_worker() {
    let response = |protocol| {
        let runs = (0..20).map(|seed| run_split(protocol, seed, None).measured.mean_response_of_updates());
        runs.sum::<f64>()
    };
    let (plain, redundant) = (response("chains"), response("chains_redundant"));
    assert!(redundant < plain, "{redundant} {plain}");
}

#[test]
fn an_execution_that_goes_on_though_another_one_was_decided_is_found() {
    let keep = |_: &mut Altered, _: &mut Event, effects: &mut Vec<Effect>| {
        effects.retain(|effect| !matches!(effect, Effect::Leave { .. }));
    };
    let shows = |seed| {
        let protocol = whole_by_name("chains_redundant", 10, Csn(0)).expect("it is one of them");
        let faults = run_protocol(Box::new(Altered::new(protocol, keep)), seed, None).faults;
        faults.iter().any(|fault| matches!(fault, Fault::TwoAtOnce { .. }))
    };
    assert!((0..20).any(shows), "no seed shows it");
}
