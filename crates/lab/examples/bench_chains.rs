//! Prints what classification costs (docs/protocols/chains.md): of TPC-C's transactions, how long it takes to foresee what one may do, to
//! find those of 10,000 queued ones that conflict with it and put it behind them, and to forget one; and the memory of each.

use std::hint::black_box;

use onecopy_classify::whole::{Granularity, Reads};
use onecopy_core::conflict_index::ConflictIndex;
use onecopy_core::{AccessSet, TxnId};
use onecopy_lab::whole::{Classes, Execution};
use onecopy_workload::Timestamp;
use onecopy_workload::tpcc::{Generator, HomeWarehouse, Kind, Parameters, Population, Scale};
use rustix::time::{ClockId, clock_gettime};

/// The paper's.
const WAREHOUSES: i64 = 10;
const QUEUED: usize = 10_000;
const RUNS: usize = 15;
/// Transactions of one run.
const COUNTED: usize = 20_000;
/// Those that come, or go, between two looks at the clock.
const AT_ONCE: usize = 100;

fn main() {
    for reads in [Reads::Ignored, Reads::Counted] {
        println!("{WAREHOUSES} warehouses, reads {reads:?}:");
        measure(reads);
    }
}

fn measure(reads: Reads) {
    let Ok(scale) = Scale::new(WAREHOUSES, 3_000) else { return };
    let population = Population::new(scale, 1, Timestamp::default());
    let mut generator =
        Generator::new(&population, HomeWarehouse::Uniform, 1, 0, 1, population.highest_history());
    let is_queued =
        |kind: Kind| reads == Reads::Counted || !matches!(kind, Kind::OrderStatus | Kind::StockLevel);
    let draw = || {
        let kind = generator.kind();
        generator.draw(kind, Timestamp::default())
    };
    let given: Vec<Parameters> =
        std::iter::repeat_with(draw).filter(|given| is_queued(given.kind())).take(QUEUED + COUNTED).collect();
    let classes = Classes::new(Granularity::Cell, reads);
    let executions: Vec<Vec<Execution>> = given.iter().map(Execution::all).collect();
    let foreseen: Vec<AccessSet> = executions.iter().map(|of| classes.foreseen_of(of)).collect();
    let accesses: usize = foreseen.iter().map(|of| of.len()).sum();
    println!("  accesses of one                 {:>8.1}", accesses as f64 / foreseen.len() as f64);

    let mut times = [const { Vec::new() }; 3];
    let (mut found, mut bytes) = (0, Vec::new());
    for _ in 0..RUNS {
        let (bound, _) =
            timed(|| executions[..COUNTED].iter().for_each(|of| drop(black_box(classes.foreseen_of(of)))));
        times[0].push(bound);
        let before = resident_bytes();
        let mut index = ConflictIndex::default();
        for (txn, of) in foreseen[..QUEUED].iter().enumerate() {
            index.add(TxnId(txn as u64), of);
        }
        bytes.push((resident_bytes() - before) / QUEUED as f64);
        let (mut added, mut removed) = (0.0, 0.0);
        found = 0;
        for first in (QUEUED..QUEUED + COUNTED).step_by(AT_ONCE) {
            let come = first..first + AT_ONCE;
            let (ns, conflicting) =
                timed(|| come.map(|txn| index.add(TxnId(txn as u64), &foreseen[txn]).len()).sum::<usize>());
            (added, found) = (added + ns, found + conflicting);
            let go = first - QUEUED..first - QUEUED + AT_ONCE;
            removed += timed(|| go.for_each(|txn| index.remove(TxnId(txn as u64)))).0;
        }
        assert_eq!(index.len(), QUEUED);
        times[1].push(added);
        times[2].push(removed);
    }
    println!("  those that it is put behind     {:>8.1}", found as f64 / COUNTED as f64);
    for (label, times) in ["to foresee", "to find and add", "to forget"].into_iter().zip(&mut times) {
        let one = |ns: f64| ns / COUNTED as f64 / 1e3;
        let [least, median, most] = spread(times);
        println!("  {label:<30} {:>8.2} us ({:.2} to {:.2})", one(median), one(least), one(most));
    }
    // Later runs use memory that earlier ones have given back.
    println!("  {:<30} {:>8.0} bytes", "memory of one", bytes[0]);
}

/// In nanoseconds of this thread's CPU time: what else runs takes none of it.
fn timed<R>(run: impl FnOnce() -> R) -> (f64, R) {
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
    };
    let start = now();
    let result = run();
    (now() - start, result)
}

fn spread(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}

/// What the process occupies; 0 where that cannot be told.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kilobytes = line.split_whitespace().next().and_then(|number| number.parse().ok());
    kilobytes.unwrap_or(0.0) * 1024.0
}
