//! Several schedulers, each with its workers and its clients: one order of what conflicts, however early each begins.

use onecopy_core::chaining::{self, Optimism};
use onecopy_core::protocol::chains_distributed;

use super::failures::{Altered, Alters, FAILING, said};
use super::*;

const SITES: u16 = 3;

/// A run of some 800 transactions on nine workers; a message between sites takes three times as long as a transaction.
fn run_apart(optimism: Optimism, seed: u64, registers: i64, failing: Option<&Failing>) -> Outcome {
    run_protocol(Box::new(chains_distributed::new(SITES, optimism, 9, Csn(0))), 9, seed, registers, failing)
}

fn run_protocol(
    protocol: Box<dyn Protocol>,
    workers: u16,
    seed: u64,
    registers: i64,
    failing: Option<&Failing>,
) -> Outcome {
    let setup = Setup {
        seed,
        workers,
        rate: 2_000.0,
        load_ns: 400_000_000,
        message: Drawn { ns: 20_000.0, variance: 0.2 },
        apart: Some(Apart { sites: SITES, message: Drawn { ns: 2_000_000.0, variance: 0.1 } }),
        apply_ns: 10_000,
        history: true,
        ..Setup::gargamel(seed)
    };
    let source = &mut Few { random: random::stream(seed, 9), registers, foresees_reads: false };
    match failing {
        Some(failing) => run_failing(&setup, failing, source, protocol),
        None => run(&setup, source, protocol),
    }
    .expect("histories make sense")
}

#[track_caller]
fn expect_kept(optimism: Optimism, registers: i64, failing: Option<&Failing>, seeds: u64) {
    for seed in 0..seeds {
        let outcome = run_apart(optimism, seed, registers, failing);
        assert_eq!(outcome.faults, [], "{optimism:?}, seed {seed}");
        let history = outcome.history.expect("it was asked for");
        let is_kept = check::check(&history, Level::ParallelSnapshotIsolation).is_valid();
        assert!(is_kept, "{optimism:?}, seed {seed}");
    }
}

#[test]
fn sites_agree_and_parallel_snapshot_isolation_is_kept() {
    for optimism in [Optimism::AtOnce, Optimism::WhenOrdered] {
        // All conflict with all, some do, and hardly any do.
        for registers in [3, 40, 1_000] {
            expect_kept(optimism, registers, None, 20);
        }
    }
}

#[test]
fn replicas_of_several_sites_fail_and_return_and_nothing_is_lost() {
    let failing = Failing { joining: 0, ..FAILING };
    for optimism in [Optimism::AtOnce, Optimism::WhenOrdered] {
        expect_kept(optimism, 40, Some(&failing), 60);
    }
}

#[test]
fn a_site_whose_only_replica_was_away_goes_on() {
    let failing = Failing { joining: 0, ..FAILING };
    for optimism in [Optimism::AtOnce, Optimism::WhenOrdered] {
        for seed in 0..100 {
            let protocol = Box::new(chains_distributed::new(SITES, optimism, SITES.into(), Csn(0)));
            let outcome = run_protocol(protocol, SITES, seed, 12, Some(&failing));
            assert_eq!(outcome.faults, [], "{optimism:?}, seed {seed}");
        }
    }
}

#[test]
fn who_waits_for_the_order_never_runs_in_vain_and_who_does_not_answers_earlier() {
    let run = |optimism, registers| {
        let measured = (0..10).map(|seed| run_apart(optimism, seed, registers, None).measured);
        let figures = measured.map(|run| (run.mean_response_of_updates(), run.executed_in_vain));
        figures.fold((0.0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    };
    let (at_once, in_vain) = run(Optimism::AtOnce, 1_000);
    let (ordered, none) = run(Optimism::WhenOrdered, 1_000);
    assert_eq!(none, 0);
    assert!(in_vain > 0 && at_once < ordered, "{at_once} {ordered}, {in_vain} in vain");
}

/// Expects that one of some runs shows a fault of a kind when something is done to what is ordered.
#[track_caller]
fn expect_found(orders: Alters, is_it: fn(&Fault) -> bool) {
    let shows = |seed| {
        let protocol = Box::new(chains_distributed::new(SITES, Optimism::AtOnce, 9, Csn(0)));
        let protocol = Box::new(Altered::new(protocol, orders));
        run_protocol(protocol, 9, seed, 40, None).faults.iter().any(is_it)
    };
    assert!((0..100).any(shows), "a hundred seeds do not show it");
}

#[test]
fn an_update_that_is_decided_whatever_other_sites_have_done_is_found() {
    let forget = |_: &mut Altered, _: &mut Event, effects: &mut Vec<Effect>| {
        for message in effects.iter_mut().filter_map(said) {
            if let chaining::Message::Confirmed { predecessors, .. } = message {
                predecessors.clear();
            }
        }
    };
    expect_found(forget, |fault| matches!(fault, Fault::LostUpdate { .. }));
}

#[test]
fn an_update_whose_place_is_told_to_nobody_is_found_stuck() {
    let forget = |_: &mut Altered, _: &mut Event, effects: &mut Vec<Effect>| {
        effects.retain_mut(|effect| !matches!(said(effect), Some(chaining::Message::Confirmed { .. })));
    };
    expect_found(forget, |fault| matches!(fault, Fault::Stuck { .. }));
}
