//! What Gargamel's future work brings (section VII; docs/protocols/chains.md, *Beyond the paper*), on TPC-C by Tables I and II:
//! prefixes of split chains that idle workers execute as well, and a scheduler at each of several sites.
//! `cargo run --release -p onecopy-lab --example beyond_gargamel -- 40 5` (transactions a second, seeds; these are the defaults).

use onecopy_core::Csn;
use onecopy_core::chaining::Optimism;
use onecopy_core::protocol::{Protocol, chains, chains_distributed, chains_redundant};
use onecopy_lab::whole::{Judge, Supplier};
use onecopy_sim::whole::{Apart, Drawn, Durations, Measured, Setup, Speeds, run};

const WAREHOUSES: i64 = 10;
const WORKERS: u16 = 100;
const SITES: u16 = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<f64>());
    let rate = arguments.next().unwrap_or(Ok(40.0))?;
    let seeds = arguments.next().unwrap_or(Ok(5.0))? as u64;
    let workers = usize::from(WORKERS);

    println!(
        "{rate} a second, {WORKERS} workers, {seeds} seeds; milliseconds to answer an update, all until the last, workers busy at the end of the load, executions in vain"
    );
    let rivals: [(&str, bool); 2] = [("chains", false), ("chains_redundant", true)];
    let kinds: [(&str, Durations, Speeds); 3] = [
        ("equally fast workers", Durations::Once, Speeds::Equal),
        ("each execution takes another time", Durations::Anew, Speeds::Equal),
        ("each second worker takes three times as long", Durations::Once, Speeds::EachSecond(3.0)),
    ];
    for (kind, durations, speeds) in kinds {
        println!("{kind}:");
        for (name, is_redundant) in rivals {
            let change = |setup: &mut Setup| {
                setup.durations = durations;
                setup.speeds = speeds;
                setup.executes_redundantly = is_redundant;
            };
            let protocol = || -> Box<dyn Protocol> {
                match is_redundant {
                    true => Box::new(chains_redundant::new(workers, Csn(0))),
                    false => Box::new(chains::new(workers, Csn(0))),
                }
            };
            report(name, rate, seeds, &change, &protocol)?;
        }
    }
    for distance_ms in [0.06, 10.0, 50.0, 150.0] {
        println!("{SITES} sites, {distance_ms} ms apart:");
        let message = Drawn { ns: distance_ms * 1e6, variance: 0.005 };
        let change = |setup: &mut Setup| setup.apart = Some(Apart { sites: SITES, message });
        for optimism in [Optimism::WhenOrdered, Optimism::AtOnce] {
            let protocol = || -> Box<dyn Protocol> {
                Box::new(chains_distributed::new(SITES, optimism, workers, Csn(0)))
            };
            report(&format!("{optimism:?}"), rate, seeds, &change, &protocol)?;
        }
    }
    Ok(())
}

fn report(
    name: &str,
    rate: f64,
    seeds: u64,
    change: &dyn Fn(&mut Setup),
    protocol: &dyn Fn() -> Box<dyn Protocol>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut all: Vec<Measured> = Vec::new();
    for seed in 0..seeds {
        let mut setup = Setup { workers: WORKERS, rate, ..Setup::gargamel(seed) };
        change(&mut setup);
        let mut source =
            Supplier::new(seed, WAREHOUSES, Judge::TableTwo).ok_or("there is no such supplier")?;
        let outcome = run(&setup, &mut source, protocol())?;
        if let Some(fault) = outcome.faults.first() {
            return Err(format!("seed {seed}: {fault}").into());
        }
        all.push(outcome.measured);
    }
    let mean = |of: &dyn Fn(&Measured) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    println!(
        "  {name:<18} {:>8.0} ms   {:>6.1} s   {:>6.1} busy   {:>7.1} in vain",
        1_000.0 * mean(&Measured::mean_response_of_updates),
        mean(&|measured| measured.ended().0 as f64 / 1e9),
        mean(&|measured| measured.at_end_of_load().map_or(0.0, |sample| sample.busy as f64)),
        mean(&|measured| measured.executed_in_vain as f64),
    );
    Ok(())
}
