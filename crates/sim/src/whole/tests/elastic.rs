//! Workers that come and go: nothing is lost by it, and they are as many as are worth it.

use onecopy_core::autoscaler::Costs;

use super::failures::{Altered, FAILING};
use super::*;

/// Waiting costs three workers; one takes 4 ms to start, as long as six transactions, and is paid for 6 ms at least.
const ELASTIC: Elastic = Elastic {
    costs: Costs { waiting: 3.0, start_ns: 4_000_000, least_ns: 6_000_000 },
    least: 1,
    most: 12,
    every_ns: 200_000,
    forecasts: false,
};

const WAVES: Waves = Waves { period_ns: 250_000_000, depth: 0.9 };

/// A run of some 4,000 transactions that come in two waves; they would keep three workers busy on average.
fn run_waves(
    protocol: &str,
    seed: u64,
    workers: u16,
    elastic: &Elastic,
    failing: Option<&Failing>,
) -> Outcome {
    let protocol = whole_by_name(protocol, usize::from(workers), Csn(0)).expect("it is one of them");
    run_protocol(protocol, seed, workers, elastic, failing)
}

fn run_protocol(
    protocol: Box<dyn Protocol>,
    seed: u64,
    workers: u16,
    elastic: &Elastic,
    failing: Option<&Failing>,
) -> Outcome {
    let setup = Setup {
        seed,
        workers,
        rate: 4_000.0,
        arrivals: Arrivals::InWaves(WAVES),
        load_ns: 2 * WAVES.period_ns,
        message: Drawn { ns: 10_000.0, variance: 0.2 },
        apply_ns: 1_000,
        history: true,
        ..Setup::gargamel(seed)
    };
    let source = &mut Few { random: random::stream(seed, 9), registers: 100, foresees_reads: false };
    run_elastic(&setup, elastic, failing, source, protocol).expect("histories make sense")
}

#[test]
fn workers_come_and_go_and_fail_chains_keep_parallel_snapshot_isolation_and_lose_nothing() {
    for seed in 0..20 {
        let failing = Failing { joining: 0, until_ns: WAVES.period_ns, between_ns: 30_000_000, ..FAILING };
        for failing in [None, Some(&failing)] {
            let outcome = run_waves("chains", seed, 2, &ELASTIC, failing);
            assert_eq!(outcome.faults, [], "seed {seed}");
            let scaled = outcome.measured.scaled;
            assert!(scaled.hired > 3, "seed {seed}: {scaled:?}");
            assert!(failing.is_some() || scaled.released > 3, "seed {seed}: {scaled:?}");
            let history = outcome.history.expect("it was asked for");
            assert!(check::check(&history, Level::ParallelSnapshotIsolation).is_valid(), "seed {seed}");
        }
    }
}

#[test]
fn there_are_more_workers_by_day_than_by_night() {
    let measured = run_waves("chains", 1, 1, &ELASTIC, None).measured;
    let scaled = measured.scaled;
    assert!((6..=13).contains(&scaled.most), "{scaled:?}");
    // Those that are left in the end are as many as there must be, or have not been idle for long.
    let left = 1 + scaled.hired - scaled.released;
    assert!(left < scaled.most, "{scaled:?}");
}

#[test]
fn where_all_updates_are_one_chain_few_workers_are_worth_it() {
    let chains = run_waves("chains", 1, 1, &ELASTIC, None).measured.scaled;
    let one_chain = run_waves("centralised_writes", 1, 1, &ELASTIC, None).measured.scaled;
    assert!(one_chain.most < chains.most, "{one_chain:?} {chains:?}");
}

#[test]
fn as_many_as_are_worth_it_cost_less_than_any_fixed_number() {
    let cost = |workers: u16, elastic: &Elastic| {
        let costs = (0..5).map(|seed| {
            let scaled = run_waves("chains", seed, workers, elastic, None).measured.scaled;
            scaled.paid_s + elastic.costs.waiting * scaled.waited_s
        });
        costs.sum::<f64>()
    };
    let scaled = cost(1, &ELASTIC);
    let fixed: Vec<f64> = (1..=12).map(|n| cost(n, &Elastic { least: n, most: n, ..ELASTIC })).collect();
    let best = fixed.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(scaled < best, "{scaled} {fixed:?}");
}

#[test]
fn where_loads_change_fast_beside_a_start_a_forecast_costs_less_than_to_be_late() {
    let slow_start = Costs { start_ns: 12_000_000, ..ELASTIC.costs };
    let cost = |forecasts: bool| {
        let elastic = Elastic { costs: slow_start, forecasts, ..ELASTIC };
        let costs = (0..5).map(|seed| {
            let outcome = run_waves("chains", seed, 1, &elastic, None);
            assert_eq!(outcome.faults, [], "seed {seed}");
            let scaled = outcome.measured.scaled;
            scaled.paid_s + slow_start.waiting * scaled.waited_s
        });
        costs.sum::<f64>()
    };
    let (forecast, late) = (cost(true), cost(false));
    assert!(forecast < 0.8 * late, "{forecast} {late}");
}

#[test]
fn a_run_in_which_somebody_waits_for_ever_ends_and_says_so() {
    let lose = |_: &mut Altered, _: &mut Event, effects: &mut Vec<Effect>| {
        effects.retain(|effect| !matches!(effect, Effect::Execute { txn: TxnId(5), .. }));
    };
    let chains = whole_by_name("chains", 2, Csn(0)).expect("it is one of them");
    let outcome = run_protocol(Box::new(Altered::new(chains, lose)), 1, 2, &ELASTIC, None);
    assert!(outcome.faults.contains(&Fault::Stuck { txn: TxnId(5) }), "{:?}", outcome.faults);
}

#[test]
#[should_panic(expected = "round_robin has as many workers as it begins with")]
fn workers_that_stay_cannot_be_hired() {
    run_waves("round_robin", 1, 2, &ELASTIC, None);
}
