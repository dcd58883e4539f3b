//! Sites fail, return and are cut off while transactions run; and bugs that the checks find.

use std::collections::BTreeMap;

use super::*;
use crate::sites::Bug;

/// Some ten failures, half of them of the site that leads.
const FAILING: Failing = Failing {
    between_ns: 60 * MS,
    away_ns: 60 * MS,
    cut_ns: 60 * MS,
    until_ns: 700 * MS,
    lost_max: 6,
    leader_part: Some(0.5),
    given_up_part: 0.02,
    disk_ns: MS,
    alive_ns: 8 * MS,
    silence_ns: 40 * MS,
    resend_ns: 50 * MS,
    timer_every: 2,
    election_ns: 40 * MS,
    bug: None,
};

/// Some 300 transactions on three or five sites.
fn failing_setup(seed: u64) -> Setup {
    Setup {
        seed,
        distances: Distances::equal(if seed.is_multiple_of(2) { 3 } else { 5 }, MS, 3.0),
        rate: 300.0,
        transactions: 300,
        sending: Sending::default(),
        costs: Costs {
            update_ns: MS,
            query_ns: MS,
            apply_ns: MS / 2,
            apply_ends_ns: 0,
            commit_ns: MS / 4,
            message_ns: MS / 50,
            writes_ns: MS / 50,
            token_ns: 0,
        },
        ..setup(seed)
    }
}

fn run_failing_few(family: Family, failing: &Failing, seed: u64) -> Failed {
    let source = &mut Few { random: random::stream(seed, 9), registers: 8, fails: !seed.is_multiple_of(3) };
    run_failing(&failing_setup(seed), failing, source, family).expect("histories make sense")
}

#[track_caller]
fn expect_kept(family: Family, failing: &Failing, seed: u64) -> Failed {
    let run = run_failing_few(family, failing, seed);
    assert_eq!(run.faults, [], "{family:?}, seed {seed}");
    let checked = check::check(&run.history, Level::Serializable);
    assert!(checked.is_valid(), "{family:?}, seed {seed}: {checked:?}");
    run
}

/// How many are tried: so many, or as many as `ONECOPY_SEEDS` says.
fn seeds(few: u64) -> std::ops::Range<u64> {
    let more = std::env::var("ONECOPY_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    0..more.unwrap_or(few)
}

fn thirty(items: Items) -> impl Iterator<Item = Family> {
    all(items).map(Family::WideArea)
}

#[test]
fn sites_fail_and_all_thirty_on_tables_stay_serializable_and_identical_and_answer_everybody() {
    for family in thirty(Items::Tables) {
        seeds(6).for_each(|seed| drop(expect_kept(family, &FAILING, seed)));
    }
}

#[test]
fn sites_fail_and_all_thirty_on_rows_stay_serializable_and_identical_and_answer_everybody() {
    for family in thirty(Items::Rows) {
        seeds(6).for_each(|seed| drop(expect_kept(family, &FAILING, seed)));
    }
}

#[test]
fn sites_fail_and_what_is_certified_and_stable_stays_serializable_and_nothing_is_lost() {
    seeds(60).for_each(|seed| drop(expect_kept(Family::Certified(Commits::Stable), &FAILING, seed)));
}

/// An update that has read what a lost leader said names places that are others' by then, and is let commit. Processes certify what is stable only.
#[test]
fn sites_fail_and_what_is_certified_when_it_is_ordered_stays_serializable_while_the_leader_is_spared() {
    let (family, spared) = (Family::Certified(Commits::Ordered), Failing { leader_part: None, ..FAILING });
    seeds(60).for_each(|seed| drop(expect_kept(family, &spared, seed)));
    let is_wrong = |seed: &u64| !run_failing_few(family, &FAILING, *seed).faults.is_empty();
    assert!((0..60).any(|seed| is_wrong(&seed)));
}

#[test]
fn the_leader_is_lost_and_what_it_acknowledged_early_is_lost_and_found() {
    let mut found = 0;
    let mut lost = BTreeMap::new();
    for family in thirty(Items::Rows) {
        for seed in 0..12 {
            let run = run_failing_few(family, &FAILING, seed);
            *lost.entry(family.loses_nothing()).or_insert(0) += run.lost.len();
            found += run
                .happened
                .get("a site finds that its database holds what never happened")
                .copied()
                .unwrap_or_default();
        }
    }
    assert_eq!(lost[&true], 0);
    assert!(lost[&false] > 10 && found > 10, "{lost:?}, {found}");
}

#[test]
fn the_leader_is_never_lost_and_nothing_that_was_acknowledged_early_is() {
    let failing = Failing { leader_part: None, ..FAILING };
    for family in thirty(Items::Rows).filter(|family| !family.loses_nothing()) {
        for seed in seeds(6) {
            assert_eq!(expect_kept(family, &failing, seed).lost, [], "{family:?}, seed {seed}");
        }
    }
}

#[test]
fn whatever_is_rare_happens_in_these_runs() {
    let mut happened: BTreeMap<&str, u64> = BTreeMap::new();
    let certified = [Commits::Ordered, Commits::Stable].map(Family::Certified);
    for family in thirty(Items::Rows).chain(certified) {
        for seed in 0..6 {
            for (what, count) in run_failing_few(family, &FAILING, seed).happened {
                *happened.entry(what).or_default() += count;
            }
        }
    }
    println!("{happened:#?}");
    assert!(happened.len() >= 17 && happened.values().all(|count| *count > 0), "{happened:#?}");
}

#[test]
fn the_same_seed_gives_the_same_run_of_sites_that_fail() {
    for family in [thirty(Items::Rows).last().expect("there are thirty"), Family::Certified(Commits::Stable)]
    {
        let [a, b] = [0, 1].map(|_| run_failing_few(family, &FAILING, 5));
        assert_eq!((a.events, a.happened, a.lost), (b.events, b.happened, b.lost));
        assert_eq!(a.history, b.history);
    }
}

/// What is found with a bug, in the first of some runs.
fn found_with(bug: Bug, family: Family) -> Option<(u64, String)> {
    // What is certified when it is ordered differs without any bug if a leader is lost.
    let leader_part = FAILING.leader_part.filter(|_| family != Family::Certified(Commits::Ordered));
    let failing = Failing { bug: Some(bug), leader_part, ..FAILING };
    // What failed in place matters to a site that returns only for what others sent just before: that is rare.
    let runs = if bug == Bug::ForgetsFailed { 600 } else { 60 };
    (0..runs).find_map(|seed| {
        let run = run_failing_few(family, &failing, seed);
        if let Some(fault) = run.faults.first() {
            return Some((seed, fault.to_string()));
        }
        let is_valid = check::check(&run.history, Level::Serializable).is_valid();
        (!is_valid).then(|| (seed, "an anomaly".to_owned()))
    })
}

#[test]
fn bugs_of_sites_that_fail_are_found() {
    let one = |queries, execution, delivery| {
        Family::WideArea(Choice { queries, execution, delivery, items: Items::Rows })
    };
    let choice = |execution, delivery| one(Queries::Locked, execution, delivery);
    let snapshot = |execution, delivery| one(Queries::Snapshot, execution, delivery);
    let early = choice(Execution::Symmetric, Delivery::OptAgreed);
    let safe = choice(Execution::LocalCopy, Delivery::Safe);
    let ordered = choice(Execution::Symmetric, Delivery::OrderedOptSafe);
    let certified = Family::Certified(Commits::Stable);
    for (bug, family, what) in [
        (Bug::ToldPlacesStand, ordered, "never"),
        (Bug::StableAlone, safe, "not durable"),
        (Bug::StableAlone, certified, "not durable"),
        (Bug::LossesUntold, safe, "never"),
        (Bug::SkipsAPlace, safe, "never committed"),
        (Bug::SkipsAPlace, certified, "never committed"),
        (Bug::ForgetsFailed, Family::Certified(Commits::Ordered), "never committed"),
        (Bug::ReadsBeforeGaps, choice(Execution::PrimaryCopy, Delivery::Safe), "an anomaly"),
        (Bug::NothingSentAgain, safe, "never answered"),
        (Bug::OwnNotPassedOn, snapshot(Execution::LocalCopy, Delivery::Safe), "never committed or forgot"),
        (Bug::NotCompared, early, "never committed or forgot"),
        (Bug::ExecutesAgain, safe, "where another one was"),
        (Bug::WritesOfAnyOrder, snapshot(Execution::PrimaryCopy, Delivery::OptAgreed), "than elsewhere"),
    ] {
        let found = found_with(bug, family);
        println!("{bug:?}: {found:?}");
        assert!(found.as_ref().is_some_and(|(_, found)| found.contains(what)), "{bug:?}: {found:?}");
    }
}
