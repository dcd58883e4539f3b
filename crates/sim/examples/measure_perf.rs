//! How fast the performance driver is: virtual against real time, for one cluster and mix.
//!
//! `cargo run --release -p onecopy-sim --example measure_perf -- [protocol [mix [replicas [users [discipline
//! [check]]]]]]`; the discipline of CPUs is `queued` or `shared`; with `check` the run's history is recorded and judged.

use std::time::Instant;

use onecopy_core::Csn;
use onecopy_core::protocol::apart_by_name;
use onecopy_sim::check::{Level, check};
use onecopy_sim::perf::{Bookstore, Discipline, Items, Profile, Setup, Users, Workload, run};
use onecopy_workload::tpcw::{MixName, Scale};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |place: usize, default: &str| arguments.get(place).cloned().unwrap_or(default.to_owned());
    let (name, mix) = (argument(0, "conflict_aware"), argument(1, "shopping").parse::<MixName>()?);
    let replicas: u16 = argument(2, "60").parse()?;
    let users: u32 = argument(3, &(u32::from(replicas) * 60).to_string()).parse()?;

    let profile = Profile::named("2003", "tpcw").ok_or("the profile is missing")?;
    // The papers' systems lock declared tables; onecopy is told nothing and counts on rows.
    let items = if name == "onecopy" { Items::Rows } else { Items::DeclaredTables };
    let discipline = if argument(4, "queued") == "shared" { Discipline::Shared } else { Discipline::Queued };
    let history = argument(5, "") == "check";
    let setup = Setup { items, discipline, history, ..Setup::new(&profile, replicas, Users::Closed(users)) };
    let filled = Instant::now();
    let mut bookstore = Bookstore::new(mix, Scale::new(100_000, 100)?).of_eight_tables();
    println!("filled the bookstore in {:.2} s", filled.elapsed().as_secs_f64());

    let started = Instant::now();
    let outcome = run(&setup, &mut bookstore, apart_by_name(&name, usize::from(replicas), Csn(0))?)?;
    let real_s = started.elapsed().as_secs_f64();
    let (measured, events) = (&outcome.measured, outcome.events);
    let virtual_s = (setup.warm_up_ns + setup.measured_ns) as f64 / 1e9;
    let time = measured.replica_time();
    println!(
        "{name}, {mix}, {replicas} replicas, {users} users: {virtual_s} virtual seconds in {real_s:.1} s"
    );
    println!("  {events} events, {:.0} ns each", real_s * 1e9 / events as f64);
    println!("  {:.2} interactions a second", measured.throughput());
    println!(
        "  response {:.0} ms on average, 90 % within {:.0} ms",
        measured.response.mean_ms(),
        measured.response.quantile_ms(0.9)
    );
    let statements = measured.statements;
    println!(
        "  statements: {:.1} ms executing, {:.1} ms waiting",
        statements.execution_ns as f64 / 1e6 / statements.count.max(1) as f64,
        statements.waiting_ns() as f64 / 1e6 / statements.count.max(1) as f64
    );
    let mut waits: Vec<_> = measured.by_statement.iter().zip(&bookstore.catalogue().statements).collect();
    waits.sort_by_key(|(time, _)| std::cmp::Reverse(time.waiting_ns()));
    for (time, statement) in waits.into_iter().take(8) {
        let ms = |ns: u64| ns as f64 / 1e6 / time.count.max(1) as f64;
        println!(
            "    {:<28} {:>8} times, {:>8.1} ms executing, {:>8.1} ms waiting",
            statement.id,
            time.count,
            ms(time.execution_ns),
            ms(time.waiting_ns())
        );
    }
    println!("  replicas: {:.3} reading, {:.3} writing, {:.3} idle", time.read, time.write, time.idle);
    println!("  {:?}", measured.messages);
    println!("  faults: {:?}, refused: {:?}", outcome.faults, measured.refused);
    if let Some(history) = &outcome.history {
        let started = Instant::now();
        let report = check(history, Level::StrictSerializable);
        println!("checked in {:.1} s: {report}", started.elapsed().as_secs_f64());
    }
    Ok(())
}
