//! Peak throughput of every protocol, side by side: one mix, one cluster, several seeds.
//!
//! `cargo run --release -p onecopy-sim --example peaks -- MIX REPLICAS SEEDS WARM_UP_S MEASURED_S DISCIPLINE PROTOCOLS`,
//! where each may be left out with those after it; the discipline of CPUs is `shared` or `queued`, protocols are separated by
//! commas.

use onecopy_core::Csn;
use onecopy_core::protocol::{SELECTABLE, apart_by_name};
use onecopy_sim::perf::{
    Bookstore, Discipline, Items, Profile, RunError, SECOND_NS, Search, Setup, Users, find_peak, run,
    saturating_users,
};
use onecopy_workload::tpcw::{MixName, Scale};

/// TPC-W's mean think time, in seconds.
const THINK_S: f64 = 7.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |place: usize, default: &str| arguments.get(place).cloned().unwrap_or(default.to_owned());
    let mix = argument(0, "shopping").parse::<MixName>()?;
    let replicas: u16 = argument(1, "8").parse()?;
    let seeds: u64 = argument(2, "5").parse()?;
    let (warm_up_s, measured_s): (u64, u64) = (argument(3, "30").parse()?, argument(4, "90").parse()?);

    let discipline = match argument(5, "shared").as_str() {
        "shared" => Discipline::Shared,
        "queued" => Discipline::Queued,
        other => return Err(format!("no discipline is called {other}: choose shared or queued").into()),
    };
    let protocols = argument(6, &SELECTABLE.join(","));

    let profile = Profile::named("2003", "tpcw").ok_or("the profile is missing")?;
    let bookstore = Bookstore::new(mix, Scale::new(100_000, 100)?).of_eight_tables();
    let setup = |replicas: u16, users: u32, seed: u64, items: Items| Setup {
        seed,
        items,
        discipline,
        warm_up_ns: warm_up_s * SECOND_NS,
        measured_ns: measured_s * SECOND_NS,
        ..Setup::new(&profile, replicas, Users::Closed(users))
    };
    let idle = setup(1, 1, 0, Items::DeclaredTables);
    let idle = Setup { measured_ns: 20_000 * SECOND_NS, ..idle };
    let idle = run(&idle, &mut bookstore.clone(), apart_by_name("conflict_aware", 1, Csn(0))?)?;
    let idle_s = idle.measured.response.mean_ms() / 1e3;
    let start = saturating_users(replicas, 1, THINK_S, idle_s);
    println!("{mix}, {replicas} replicas: an interaction takes {:.0} ms on an idle one", idle_s * 1e3);
    println!(
        "protocol                     peak/s  +-95%   users  response  exec  wait ms   read write  idle  runs"
    );
    for name in protocols.split(',') {
        apart_by_name(name, 1, Csn(0))?;
        // The papers' systems lock declared tables; onecopy is told nothing and counts on rows.
        let items = if name == "onecopy" { Items::Rows } else { Items::DeclaredTables };
        let mut peaks = Vec::new();
        let mut last = None;
        for seed in 0..seeds {
            let probe = |users: u32| -> Result<_, RunError> {
                let protocol = apart_by_name(name, usize::from(replicas), Csn(0)).expect("it is selectable");
                Ok(run(&setup(replicas, users, seed, items), &mut bookstore.clone(), protocol)?.measured)
            };
            let peak = find_peak(start, Search::THOROUGH, probe)?;
            peaks.push(peak.measured.throughput());
            last = Some(peak);
        }
        let Some(peak) = last else { continue };
        let count = peaks.len() as f64;
        let mean = peaks.iter().sum::<f64>() / count;
        let variance = peaks.iter().map(|peak| (peak - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        // Student's t for 5 seeds; other numbers of seeds are for a look only.
        let interval = 2.776 * (variance / count).sqrt();
        let (time, statements) = (peak.measured.replica_time(), peak.measured.statements);
        let each_ms = |ns: u64| ns as f64 / 1e6 / statements.count.max(1) as f64;
        println!(
            "{name:<27} {mean:>7.2} {interval:>6.2} {:>7} {:>9.0} {:>5.0} {:>8.0}  {:>5.3} {:>5.3} {:>5.3} {:>5}",
            peak.users,
            peak.measured.response.mean_ms(),
            each_ms(statements.execution_ns),
            each_ms(statements.waiting_ns()),
            time.read,
            time.write,
            time.idle,
            peak.probes.len(),
        );
        if seeds == 1 {
            let probes = peak.probes.iter().map(|(users, throughput)| format!("{users}: {throughput:.1}"));
            println!("    {}", probes.collect::<Vec<_>>().join(", "));
        }
    }
    Ok(())
}
