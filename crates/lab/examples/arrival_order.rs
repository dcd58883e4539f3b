//! What Gargamel's Tables I and II allow at best where conflicting transactions run in the order of their arrival: each begins when those
//! are over, and there is always a worker. `cargo run --release -p onecopy-lab --example arrival_order -- 150` (a rate; default 150).

use onecopy_core::TxnId;
use onecopy_core::conflict_index::ConflictIndex;
use onecopy_core::map::HashMap;
use onecopy_lab::whole::{Judge, Supplier};
use onecopy_sim::whole::{Setup, Source};
use onecopy_workload::random;

const WAREHOUSES: i64 = 10;
const SEEDS: u64 = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rate = std::env::args().nth(1).map_or(Ok(150.0), |rate| rate.parse::<f64>())?;
    for seed in 0..SEEDS {
        let mut source =
            Supplier::new(seed, WAREHOUSES, Judge::TableTwo).ok_or("there is no such supplier")?;
        let load_s = Setup::gargamel(seed).load_ns as f64 / 1e9;
        let mut drawn = random::stream(seed, 0);
        let mut conflicts = ConflictIndex::default();
        let mut ends: HashMap<TxnId, f64> = HashMap::default();
        let (mut now, mut sum, mut end, mut penalties, mut low, mut updates, mut responses) =
            (0.0_f64, 0.0, 0.0_f64, 0.0, 0.0, 0.0, 0.0);
        loop {
            now -= (1.0 - random::unit(&mut drawn)).ln() / rate;
            if now >= load_s {
                break;
            }
            let arriving = source.next();
            let duration = arriving.duration.draw_ns(&mut drawn) as f64 / 1e9;
            let txn = TxnId(ends.len() as u64);
            let before = if arriving.updates { conflicts.add(txn, &arriving.foreseen) } else { Vec::new() };
            let begins = before.iter().filter_map(|txn| ends.get(txn).copied()).fold(now, f64::max);
            let response = begins + duration - now;
            ends.insert(txn, begins + duration);
            sum += duration;
            end = end.max(begins + duration);
            penalties += response / duration;
            low += f64::from(u8::from(response <= 4.0 * duration));
            updates += f64::from(u8::from(arriving.updates));
            responses += if arriving.updates { response } else { 0.0 };
        }
        let all = ends.len() as f64;
        println!(
            "seed {seed}: speed-up {:.1}, mean penalty {:.1}, {:.1} % up to 4, updates answered in {:.1} s",
            sum / end,
            penalties / all,
            100.0 * low / all,
            responses / updates
        );
    }
    Ok(())
}
