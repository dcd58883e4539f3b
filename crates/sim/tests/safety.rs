//! Every protocol keeps what its file promises, whatever is delayed and whatever breaks.
//!
//! `ONECOPY_SEED=n` replays one seed, `ONECOPY_SEEDS=n` tries so many, from `ONECOPY_FIRST_SEED` on.

mod sweep;

use onecopy_core::Csn;
use onecopy_core::commit_order::Tuning;
use onecopy_core::protocol::onecopy::Onecopy;
use onecopy_core::protocol::{Protocol, apart_by_name, by_name};
use onecopy_core::protocol::{conflict_aware, eager};
use onecopy_sim::check::Level;
use onecopy_sim::{Breakage, Scenario, Statistics, run};
use sweep::Sweep;

fn onecopy(replicas: usize, decided: Csn, tuning: Tuning) -> Box<dyn Protocol> {
    Box::new(Onecopy::tuned(replicas, decided, tuning))
}

fn conflict_aware(replicas: usize, decided: Csn, _: Tuning) -> Box<dyn Protocol> {
    Box::new(conflict_aware::new(replicas, decided))
}

fn eager(replicas: usize, decided: Csn, _: Tuning) -> Box<dyn Protocol> {
    Box::new(eager::new(replicas, decided))
}

fn fixed_load(replicas: usize, decided: Csn, _: Tuning) -> Box<dyn Protocol> {
    apart_by_name("fixed_load", replicas, decided).expect("it is selectable")
}

fn fixed_conflict(replicas: usize, decided: Csn, _: Tuning) -> Box<dyn Protocol> {
    apart_by_name("fixed_conflict", replicas, decided).expect("it is selectable")
}

fn variable_load(replicas: usize, decided: Csn, _: Tuning) -> Box<dyn Protocol> {
    apart_by_name("variable_load", replicas, decided).expect("it is selectable")
}

fn versioning(replicas: usize, decided: Csn, _: Tuning) -> Box<dyn Protocol> {
    apart_by_name("versioning", replicas, decided).expect("it is selectable")
}

fn versioning_no_early_release(replicas: usize, decided: Csn, _: Tuning) -> Box<dyn Protocol> {
    apart_by_name("versioning_no_early_release", replicas, decided).expect("it is selectable")
}

fn versioning_late_acquire(replicas: usize, decided: Csn, _: Tuning) -> Box<dyn Protocol> {
    apart_by_name("versioning_late_acquire", replicas, decided).expect("it is selectable")
}

fn in_one_process(replicas: usize, decided: Csn, _: Tuning) -> Box<dyn Protocol> {
    by_name("conflict_aware", replicas, decided).expect("it is selectable")
}

/// More than the protocol promises.
fn strict_storm(seed: u64) -> Scenario {
    Scenario { demanded: Some(Level::StrictSerializable.into()), ..Scenario::stormy(seed) }
}

fn expect_kept(
    test: &'static str,
    seeds: u64,
    scenario: fn(u64) -> Scenario,
    protocol: fn(usize, Csn, Tuning) -> Box<dyn Protocol>,
) -> Option<Statistics> {
    Sweep { file: "safety", test, seeds, scenario, protocol }.expect_kept()
}

#[test]
fn onecopy_in_calm() {
    let seen = expect_kept("onecopy_in_calm", 1_500, Scenario::calm, onecopy);
    // Only what happens is tested: each of these is a part of the protocol.
    if let Some(seen) = seen {
        assert!(seen.grants_waited > 0 && seen.freshness_waits > 0 && seen.predicted > 0, "{seen:?}");
        assert!(seen.revalidations > 0 && seen.failed_statements > 0, "{seen:?}");
        assert!(seen.returned > 0 && seen.returned < seen.withdrawn, "{seen:?}");
        assert!(seen.executed_again > 100 && seen.returned_after_failures > 100, "{seen:?}");
        for reason in ["Deadlock", "ReadsChanged", "Cancelled"] {
            assert!(seen.refused.contains_key(reason), "{reason}: {seen:?}");
        }
        assert!(!seen.refused.contains_key("HomeLost"), "nothing broke: {seen:?}");
    }
}

#[test]
fn onecopy_in_storms() {
    let seen = expect_kept("onecopy_in_storms", 3_000, Scenario::stormy, onecopy);
    if let Some(seen) = seen {
        assert!(seen.breakages > 3_000 && seen.unknown > 0, "{seen:?}");
        assert!(seen.refused.contains_key("AnswerCut"), "{seen:?}");
        // Transactions whose home is lost go on at another one, but for those that lose one after the other.
        let ended = seen.refused.get("HomeLost").copied().unwrap_or_default();
        assert!(seen.moved > 100 && seen.moved > 100 * ended, "{seen:?}");
    }
}

/// Nothing breaks, and whoever leaves takes its time.
fn calm_change(seed: u64) -> Scenario {
    let mut changing = Scenario::changing(seed);
    changing
        .breakages
        .retain(|(_, breakage)| matches!(breakage, Breakage::Join | Breakage::Depart { at_once: false, .. }));
    changing
}

#[test]
fn onecopy_while_replicas_join_and_leave_in_calm() {
    let test = "onecopy_while_replicas_join_and_leave_in_calm";
    if let Some(seen) = expect_kept(test, 1_000, calm_change, onecopy) {
        assert!(seen.joined > 500 && seen.departed > 500, "{seen:?}");
        for reason in ["HomeLost", "AnswerCut"] {
            assert!(!seen.refused.contains_key(reason), "who leaves is waited for: {seen:?}");
        }
    }
}

#[test]
fn onecopy_while_replicas_join_and_leave_in_storms() {
    let test = "onecopy_while_replicas_join_and_leave_in_storms";
    if let Some(seen) = expect_kept(test, 2_000, Scenario::changing, onecopy) {
        assert!(seen.joined > 1_000 && seen.departed > 1_000 && seen.breakages > 1_000, "{seen:?}");
    }
}

#[test]
fn conflict_aware_in_calm() {
    expect_kept("conflict_aware_in_calm", 300, Scenario::calm, conflict_aware);
}

#[test]
fn conflict_aware_in_storms() {
    expect_kept("conflict_aware_in_storms", 500, Scenario::stormy, conflict_aware);
}

#[test]
fn conflict_aware_in_one_process_is_strict() {
    expect_kept("conflict_aware_in_one_process_is_strict", 300, strict_storm, in_one_process);
}

#[test]
fn eager_in_calm() {
    expect_kept("eager_in_calm", 300, Scenario::calm, eager);
}

#[test]
fn eager_in_storms_is_strict() {
    expect_kept("eager_in_storms_is_strict", 500, strict_storm, eager);
}

#[test]
fn fixed_load_in_storms() {
    expect_kept("fixed_load_in_storms", 300, Scenario::stormy, fixed_load);
}

#[test]
fn fixed_conflict_in_storms() {
    expect_kept("fixed_conflict_in_storms", 300, Scenario::stormy, fixed_conflict);
}

#[test]
fn variable_load_in_storms() {
    expect_kept("variable_load_in_storms", 300, Scenario::stormy, variable_load);
}

#[test]
fn versioning_in_calm() {
    expect_kept("versioning_in_calm", 300, Scenario::calm, versioning);
}

#[test]
fn versioning_in_storms() {
    expect_kept("versioning_in_storms", 500, Scenario::stormy, versioning);
}

#[test]
fn versioning_no_early_release_in_storms() {
    let name = "versioning_no_early_release_in_storms";
    expect_kept(name, 200, Scenario::stormy, versioning_no_early_release);
}

#[test]
fn versioning_late_acquire_in_storms() {
    expect_kept("versioning_late_acquire_in_storms", 200, Scenario::stormy, versioning_late_acquire);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for protocol in [onecopy, conflict_aware, eager, versioning] {
        let run = |scenario: &Scenario| {
            run(scenario, &|replicas, decided| protocol(replicas, decided, scenario.tuning))
        };
        for seed in 0..40 {
            let scenario = Scenario::stormy(seed);
            let (once, again) = (run(&scenario), run(&scenario));
            assert_eq!(once.trace_hash, again.trace_hash, "seed {seed}");
            assert_ne!(once.trace_hash, run(&Scenario::stormy(seed + 1)).trace_hash);
        }
        let scenario = Scenario { keep_trace: true, ..Scenario::stormy(7) };
        assert_eq!(run(&scenario).trace, run(&scenario).trace);
    }
}
