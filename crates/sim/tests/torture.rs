//! Under every fault at every step no promise is broken; a failure is replayed exactly and made smaller.

use onecopy_sim::coverage::{Fault, Stage};
use onecopy_sim::planted::{BUGS, Planting};
use onecopy_sim::torture::{ATTEMPTS_MAX, Case, shrink};
use onecopy_sim::{Outcome, Statistics};

/// Takes a minute or two. More seeds: `onecopy torture --seeds 0..10000`.
#[test]
fn under_all_faults_no_promise_is_broken_and_every_fault_hits_every_step() {
    let mut seen = Statistics::default();
    for seed in 0..1_000 {
        let outcome = Case::of_seed(seed, None).run();
        let failures: Vec<String> = outcome.failures.iter().map(ToString::to_string).collect();
        assert!(failures.is_empty(), "again: onecopy torture --seed {seed}\n{}", failures.join("\n"));
        seen.add(&outcome.statistics);
    }
    println!("{seen:?}\n{}", seen.coverage);
    let counts = [seen.executed_again, seen.returned_after_failures, seen.brought_down, seen.reads_changed];
    assert!(counts.iter().all(|count| *count > 100) && seen.returned > 100, "{seen:?}");
    assert!(seen.broken_outside > 5, "{seen:?}");
    for fault in Fault::ALL {
        for stage in Stage::ALL {
            let hits = seen.coverage.hits(fault, stage);
            // Of 10,000 seeds twenty are asked for.
            assert!(hits >= 2, "{} hit `{}` {hits} times", fault.words(), stage.word());
        }
    }
}

fn shows(outcome: &Outcome, bug: &Planting) -> Option<&'static str> {
    let kinds = outcome.failures.iter().map(|failure| failure.kind());
    kinds.into_iter().find(|kind| bug.found_as.contains(kind))
}

fn first_seed_that_shows(bug: &'static Planting) -> (u64, &'static str) {
    let found = (0..1_000).find_map(|seed| Some((seed, shows(&Case::of_seed(seed, Some(bug)).run(), bug)?)));
    found.unwrap_or_else(|| panic!("1,000 seeds did not show {}", bug.name))
}

#[test]
fn every_planted_bug_is_found_within_a_thousand_seeds() {
    for bug in &BUGS {
        let (seed, kind) = first_seed_that_shows(bug);
        println!("| {} | {kind} | {seed} |", bug.name);
    }
}

#[test]
fn a_failure_is_made_smaller_and_breaks_the_same_promise() {
    for name in ["conflict-missed", "acknowledged-before-durable", "leave-lost"] {
        let bug = Planting::named(name).expect("it is there");
        let (seed, kind) = first_seed_that_shows(bug);
        let case = Case::of_seed(seed, Some(bug));
        let shrunk = shrink(&case, kind, ATTEMPTS_MAX / 10, &mut |_, _| {});
        let (large, small) = (&case.scenario, &shrunk.case.scenario);
        let transactions = |of: &onecopy_sim::Scenario| {
            of.clients as u64 * u64::from(of.transactions_per_client) - of.left_out.len() as u64
        };
        assert!(transactions(small) < transactions(large) / 2, "{name}: {}", shrunk.case.to_text());
        assert!(small.breakages.len() <= large.breakages.len() && small.breakages.len() <= 2, "{name}");
        assert!(shrunk.attempts <= ATTEMPTS_MAX / 10);
        let again = shrunk.case.run();
        assert!(again.failures.iter().any(|failure| failure.kind() == kind), "{name}");
    }
}

#[test]
fn a_case_that_was_written_to_a_file_is_replayed_byte_for_byte() {
    let bug = Planting::named("conflict-missed");
    for (seed, bug) in [(3, None), (5, None), (0, bug), (1, bug)] {
        let case = Case::of_seed(seed, bug);
        let read = Case::read(&case.to_text()).expect("it was written by us");
        let (first, second) = (case.run_with_trace(), read.run_with_trace());
        assert!(first.trace.as_ref().is_some_and(|trace| trace.len() > 1_000));
        assert!(first.trace == second.trace, "seed {seed}");
        assert_eq!((first.trace_hash, first.failures), (second.trace_hash, second.failures), "seed {seed}");
        assert_eq!(first.trace_hash, case.run().trace_hash, "whether the text is kept changes nothing");
    }
}
