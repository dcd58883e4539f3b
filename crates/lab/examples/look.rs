//! A look.
use onecopy_core::{Csn, Instant, protocol::whole_by_name};
use onecopy_lab::whole::Supplier;
use onecopy_sim::whole::{Setup, run};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let rate: f64 = args[1].parse().unwrap();
    let workers: u16 = args[2].parse().unwrap();
    let names = args.get(3).map_or("chains,tashkent_plus,round_robin,centralised_writes", |a| a);
    for name in names.split(',') {
        let started = std::time::Instant::now();
        let mut setup = Setup { rate, workers, ..Setup::gargamel(1) };
        if name == "tashkent_plus" { setup.duration_factor = 0.9; }
        let mut source = Supplier::new(1, 10).unwrap();
        let out = run(&setup, &mut source, whole_by_name(name, usize::from(workers), Csn(0)).unwrap()).unwrap();
        let m = &out.measured;
        let load = Instant(setup.load_ns);
        let end = m.at_end_of_load().unwrap();
        let q = m.samples.iter().filter(|s| s.at.0 <= setup.load_ns).map(|s| s.awaiting_worker).max().unwrap();
        println!("{name:20} n {} p1 {:.1} max {:.1} upd {:.1} pen {:.1} le4 {:.1} rt {:.2} speed {:.2} total {:.1} end {} queue {} vain {} cost {:.0} faults {:?} ev {} in {:?}",
            m.committed.len(), m.throughput(Instant(0), load, false), m.highest_throughput(4_000_000_000), m.throughput(Instant(0), load, true), m.mean_penalty(), 100.0*m.share_up_to(4.0), m.mean_response_of_updates(), m.speed_up(), m.ended().0 as f64/1e9, end.busy, q, m.executed_in_vain, m.busy_ns as f64/1e9, out.faults.first(), out.events, started.elapsed());
    }
}
