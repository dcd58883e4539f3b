//! What it costs to have as many workers as are worth it, beside each fixed number of them, for `chains` and TPC-C (docs/protocols/chains.md,
//! *Workers come and go*). `cargo run --release -p onecopy-lab --example elastic_workers -- 30 0.8 3` (transactions a second on average, by
//! which part of that they rise and fall, what a second of waiting costs in workers; these are the defaults).
//!
//! Transactions come in two waves of ten minutes each. A worker takes half a minute to start, and is paid for two minutes at least.

use onecopy_core::Csn;
use onecopy_core::autoscaler::Costs;
use onecopy_core::protocol::whole_by_name;
use onecopy_lab::whole::{Judge, Supplier};
use onecopy_sim::whole::{Arrivals, Elastic, Measured, Setup, Waves, run_elastic};

const WAREHOUSES: i64 = 30;
const SEEDS: u64 = 2;
const PERIOD_NS: u64 = 600_000_000_000;
const WAVES: u64 = 2;
const FIXED: [u16; 8] = [16, 20, 25, 28, 32, 36, 40, 44];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<f64>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (rate, depth, waiting) = (next(30.0)?, next(0.8)?, next(3.0)?);
    let elastic = Elastic {
        costs: Costs { waiting, start_ns: 30_000_000_000, least_ns: 120_000_000_000 },
        least: 4,
        most: 100,
        every_ns: 1_000_000_000,
        forecasts: false,
    };
    println!("workers    cost an hour   paid for   waited, s   mean response of updates, ms");
    run("reactive", elastic.least, rate, depth, &elastic)?;
    run("forecast", elastic.least, rate, depth, &Elastic { forecasts: true, ..elastic })?;
    for workers in FIXED {
        run(
            &workers.to_string(),
            workers,
            rate,
            depth,
            &Elastic { least: workers, most: workers, ..elastic },
        )?;
    }
    Ok(())
}

fn run(
    name: &str,
    workers: u16,
    rate: f64,
    depth: f64,
    elastic: &Elastic,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut all: Vec<Measured> = Vec::new();
    for seed in 0..SEEDS {
        let setup = Setup {
            workers,
            rate,
            arrivals: Arrivals::InWaves(Waves { period_ns: PERIOD_NS, depth }),
            load_ns: WAVES * PERIOD_NS,
            sample_ns: 10_000_000_000,
            ..Setup::gargamel(seed)
        };
        let mut source =
            Supplier::new(seed, WAREHOUSES, Judge::TableTwo).ok_or("there is no such supplier")?;
        let protocol = whole_by_name("chains", usize::from(workers), Csn(0))?;
        let outcome = run_elastic(&setup, elastic, None, &mut source, protocol)?;
        if let Some(fault) = outcome.faults.first() {
            return Err(format!("seed {seed}: {fault}").into());
        }
        all.push(outcome.measured);
    }
    let mean = |of: &dyn Fn(&Measured) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    let hours = (WAVES * PERIOD_NS) as f64 / 3.6e12;
    let paid = mean(&|measured| measured.scaled.paid_s) / 3_600.0 / hours;
    let waited = mean(&|measured| measured.scaled.waited_s);
    let cost = paid + elastic.costs.waiting * waited / 3_600.0 / hours;
    let response = 1_000.0 * mean(&Measured::mean_response_of_updates);
    println!("{name:>8}   {cost:>12.2}   {paid:>8.2}   {waited:>9.0}   {response:>10.0}");
    Ok(())
}
