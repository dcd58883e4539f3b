//! What the protocols for whole transactions promise, by the histories of random ones.

mod elastic;
mod failures;
mod redundant;
mod sites;

use onecopy_core::item::{ColumnId, ColumnSet, Item, Mode, TableId, ValueHash};
use onecopy_core::protocol::whole_by_name;
use onecopy_core::{Access, Csn};

use super::*;
use crate::check::{self, Level, Options};

/// Transactions that read some registers and write some of few; reads may be foreseen, too.
struct Few {
    random: Random,
    registers: i64,
    foresees_reads: bool,
}

fn row(register: u64) -> Item {
    Item::rows(TableId(1), [(ColumnId(1), ValueHash::of_integer(register as i64))])
}

fn write(register: u64) -> Access {
    Access::of_columns(row(register), Mode::NoKeyExclusive, ColumnSet::ALL)
}

impl Source for Few {
    fn next(&mut self) -> Arriving {
        let mut some = |least, most| {
            let count = random::uniform(&mut self.random, least, most);
            let mut registers: Vec<u64> =
                (0..count).map(|_| random::uniform(&mut self.random, 0, self.registers - 1) as u64).collect();
            registers.sort_unstable();
            registers.dedup();
            registers
        };
        let updates = some(0, 1).is_empty() || some(0, 1).is_empty();
        let writes = if updates { some(1, 3) } else { Vec::new() };
        let mut reads = some(1, 3);
        // Whoever writes has read it, so that a history shows the order of versions.
        reads.extend(&writes);
        reads.sort_unstable();
        reads.dedup();
        let written: Vec<Access> = writes.iter().copied().map(write).collect();
        let read = |register: &u64| Access::of_columns(row(*register), Mode::Shared, ColumnSet::ALL);
        let foreseen_reads = reads.iter().filter(|_| self.foresees_reads).map(read);
        Arriving {
            kind: writes.len() as u64,
            updates: updates || self.foresees_reads,
            foreseen: written.iter().cloned().chain(foreseen_reads).collect(),
            written,
            duration: Drawn { ns: 700_000.0, variance: 0.1 },
            reads,
            writes,
        }
    }
}

/// A run of some 2,000 transactions on five workers whose messages take as long as transactions.
fn run_few(protocol: &str, seed: u64, foresees_reads: bool) -> Outcome {
    let setup = Setup {
        seed,
        workers: 5,
        rate: 4_000.0,
        load_ns: 500_000_000,
        message: Drawn { ns: 1_000_000.0, variance: 0.2 },
        apply_ns: 100_000,
        history: true,
        ..Setup::gargamel(seed)
    };
    let source = &mut Few { random: random::stream(seed, 9), registers: 12, foresees_reads };
    let protocol = whole_by_name(protocol, 5, Csn(0)).expect("it is one of them");
    let outcome = run(&setup, source, protocol).expect("histories make sense");
    assert_eq!(outcome.faults, [], "seed {seed}");
    outcome
}

/// Which seeds of twenty keep a level.
fn kept(protocol: &str, options: impl Into<Options>, foresees_reads: bool) -> usize {
    let options = options.into();
    let keeps = |seed: &u64| {
        let history = run_few(protocol, *seed, foresees_reads).history.expect("it was asked for");
        check::check(&history, options).is_valid()
    };
    (0..20).filter(keeps).count()
}

#[test]
fn chains_keep_parallel_snapshot_isolation_and_their_long_forks_break_snapshot_isolation() {
    assert_eq!(kept("chains", Level::ParallelSnapshotIsolation, false), 20);
    assert_eq!(kept("chains", Level::SnapshotIsolation, false), 0);
}

#[test]
fn chains_that_foresee_reads_too_are_serializable_and_others_are_not() {
    assert_eq!(kept("chains", Level::Serializable, true), 20);
    assert_eq!(kept("chains", Level::Serializable, false), 0);
}

#[test]
fn what_runs_first_and_asks_afterwards_keeps_parallel_snapshot_isolation() {
    assert_eq!(kept("round_robin", Level::ParallelSnapshotIsolation, false), 20);
    assert_eq!(kept("tashkent_plus", Level::ParallelSnapshotIsolation, false), 20);
}

#[test]
fn one_chain_of_all_updates_keeps_snapshot_isolation() {
    assert_eq!(kept("centralised_writes", Level::SnapshotIsolation, false), 20);
}

#[test]
fn chains_execute_everything_once_and_the_others_do_not() {
    let chains = run_few("chains", 1, false).measured;
    assert!(chains.committed.iter().all(|txn| txn.executions == 1));
    assert_eq!(chains.executed_in_vain, 0);
    let round_robin = run_few("round_robin", 1, false).measured;
    let executions: u64 = round_robin.committed.iter().map(|txn| u64::from(txn.executions)).sum();
    assert_eq!(executions, round_robin.committed.len() as u64 + round_robin.executed_in_vain);
    assert!(round_robin.executed_in_vain > 100);
}

#[test]
fn the_same_setup_gives_the_same_run() {
    for protocol in ["chains", "tashkent_plus"] {
        let [a, b] = [0, 1].map(|_| run_few(protocol, 3, false));
        assert_eq!((a.measured, a.events), (b.measured, b.events));
    }
}

/// A run of what takes 700 us each on workers of which there are more than enough.
fn run_with(change: impl FnOnce(&mut Setup)) -> Measured {
    let mut setup = Setup { workers: 40, rate: 200.0, load_ns: 500_000_000, ..Setup::gargamel(1) };
    change(&mut setup);
    let source = &mut Few { random: random::stream(1, 9), registers: 4, foresees_reads: false };
    let protocol = whole_by_name("round_robin", 40, Csn(0)).expect("it is one of them");
    run(&setup, source, protocol).expect("histories make sense").measured
}

#[test]
fn where_arrivals_are_even_all_distances_are_alike() {
    let arrived = |arrivals| {
        let mut at: Vec<u64> =
            run_with(|setup| setup.arrivals = arrivals).committed.iter().map(|txn| txn.arrived.0).collect();
        at.sort_unstable();
        at.windows(2).all(|pair| pair[1] - pair[0] == 5_000_000)
    };
    assert_eq!([Arrivals::Evenly, Arrivals::AtRandom].map(arrived), [true, false]);
}

#[test]
fn durations_are_means_or_drawn_and_the_factor_is_in_them() {
    let all_are_means = |durations| {
        let change = |setup: &mut Setup| {
            setup.durations = durations;
            setup.duration_factor = 0.5;
        };
        run_with(change).committed.iter().all(|txn| txn.duration_ns == 350_000)
    };
    let [means, once, anew] = [Durations::Means, Durations::Once, Durations::Anew].map(all_are_means);
    assert_eq!([means, once, anew], [true, false, false]);
}

#[test]
fn what_is_drawn_anew_for_each_execution_is_told_by_the_first_one() {
    let few = |durations| {
        let mut drawn: Vec<(Instant, u64)> = run_with(|setup| {
            setup.durations = durations;
            setup.rate = 4_000.0;
        })
        .committed
        .iter()
        .map(|txn| (txn.arrived, txn.duration_ns))
        .collect();
        drawn.sort_unstable();
        drawn
    };
    let total = |durations| {
        let measured = run_with(|setup| {
            setup.durations = durations;
            setup.rate = 4_000.0;
        });
        (measured.executed_in_vain, measured.ended())
    };
    assert_eq!(few(Durations::Once), few(Durations::Anew));
    assert_ne!(total(Durations::Once), total(Durations::Anew));
}

#[test]
fn what_is_certified_waits_for_an_agreement_if_there_are_several_to_agree() {
    let least = |agreement| {
        let measured = run_with(|setup| setup.agreement = agreement);
        measured.committed.iter().filter(|txn| txn.updates).map(Committed::response_ns).min()
    };
    let agreement = Drawn { ns: 5_000_000.0, variance: 0.0 };
    assert!(least(None) < Some(2_000_000) && least(Some(agreement)) > Some(5_000_000));
}

#[test]
fn a_worker_that_waits_for_a_predecessor_elsewhere_is_occupied_and_not_busy() {
    let measured = run_few("chains", 1, false).measured;
    assert!(measured.samples.iter().all(|sample| sample.busy <= sample.occupied && sample.occupied <= 5));
    let setup = |setup: &mut Setup| setup.sample_ns = 1_000_000;
    assert!(run_with(setup).samples.iter().any(|sample| sample.occupied > 0));
}
