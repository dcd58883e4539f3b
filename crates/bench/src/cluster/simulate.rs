//! The same cells in virtual time.

use std::fmt::Display;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use onecopy_sim::perf::{
    Bookstore, Demand, Discipline, Engine, Items, Latency, Profile, SECOND_NS, Search, Setup, Users,
    find_peak, run_by_name,
};
use onecopy_workload::tpcw::{MixName, Scale};
use serde::Serialize;

use super::report::ClusterReport;
use super::servers::connections;
use super::{Options, System, load};
use crate::{Error, Result, cpu_groups};

/// TPC-W's mean pause between pages, in seconds.
const THINK_S: f64 = 7.0;
/// Virtual time before anything counts.
const WARM_UP_S: u64 = 20;
/// Virtual time that counts, of all servers together, in seconds; and the least of a run.
const MEASURED_S: u64 = 600;
const MEASURED_MIN_S: u64 = 120;
/// Users and interactions of each by which a mix's demand is known.
const DEMAND: (u32, u32) = (20, 2_000);

/// What the simulator says of a cell.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Simulated {
    /// Users at the peak.
    pub users: u32,
    /// Interactions per second.
    pub throughput: f64,
    /// Mean response time in milliseconds.
    pub response_ms: f64,
    /// The part of their time in which databases idle.
    pub idle: f64,
}

impl Simulated {
    /// CPU time of all servers for an interaction, in milliseconds, if each may use such a part of a processor.
    pub(super) fn cpu_ms(&self, size: u32, cap: f64) -> f64 {
        1e3 * (1.0 - self.idle) * f64::from(size) * cap / self.throughput
    }
}

/// What an interaction costs one server on average, in milliseconds: reads, and writes with their commits.
pub(super) fn interaction_ms(options: &Options, profile: &Profile, mix: MixName) -> Result<[f64; 2]> {
    let mut bookstore = bookstore(options, mix)?;
    let (users, interactions) = DEMAND;
    let demand = Demand::of(profile, &mut bookstore, users, interactions);
    let demand = demand.map_err(|error| Error::Option(error.to_string()))?;
    let interactions = f64::from(users) * f64::from(interactions);
    Ok([demand.reads_ms / interactions, demand.writes_ms / interactions])
}

/// Users who keep so many servers busy if nothing ever waits. Each of them does what is written.
pub(super) fn saturating(options: &Options, profile: &Profile, size: u32, mix: MixName) -> Result<u32> {
    let [reads_s, writes_s] = interaction_ms(options, profile, mix)?.map(|ms| ms / 1e3);
    let each_s = (reads_s + writes_s * (1.0 + profile.apply_factor * f64::from(size - 1))) / f64::from(size);
    let users = (THINK_S * options.think_factor + reads_s + writes_s) / each_s;
    Ok(users.round().max(1.0) as u32)
}

fn bookstore(options: &Options, mix: MixName) -> Result<Bookstore> {
    let scale = Scale::new(options.items, options.browsers);
    Ok(Bookstore::new(mix, scale.map_err(|error| Error::Option(error.to_string()))?))
}

/// Simulates every cell of a system that was calibrated, on all processors; the places of the cells with what came out.
pub(super) async fn all(options: &Options, report: &ClusterReport) -> Result<Vec<(usize, Simulated)>> {
    let mut jobs = Vec::new();
    for (place, cell) in report.cells.iter().enumerate() {
        let calibration = report.calibrations.iter().find(|(system, _)| *system == cell.system);
        if let Some((system, calibration)) = calibration.filter(|(system, _)| system.is_simulated()) {
            let mix = cell.mix.parse().map_err(|error| Error::Option(format!("{error}")))?;
            let Some(factor) = cell.cost_factor else { continue };
            let profile = load::scaled(&calibration.profile, factor);
            jobs.push(Job { place, system: *system, size: cell.size, mix, profile });
        }
    }
    // The largest first, so that no thread is left with one in the end.
    jobs.sort_by_key(|job| std::cmp::Reverse(job.size));
    let (options, stop) = (options.clone(), StopOnDrop::default());
    let flag = stop.0.clone();
    let work = tokio::task::spawn_blocking(move || run_jobs(&options, &jobs, &flag));
    let simulated = work.await.map_err(|error| Error::Option(format!("simulate: {error}")))?;
    drop(stop);
    simulated
}

/// Tells the threads to stop when nobody waits for them any more.
#[derive(Default)]
struct StopOnDrop(std::sync::Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Job {
    place: usize,
    system: System,
    size: u32,
    mix: MixName,
    profile: Profile,
}

fn run_jobs(options: &Options, jobs: &[Job], stop: &AtomicBool) -> Result<Vec<(usize, Simulated)>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Ok(Vec::new())));
    let work = || {
        while !stop.load(Ordering::Relaxed)
            && let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let outcome = simulate(options, job);
            let mut done = done.lock().expect("nobody panics with it");
            match (outcome, done.as_mut()) {
                (Ok(simulated), Ok(done)) => done.push((job.place, simulated)),
                (Err(error), Ok(_)) => *done = Err(error),
                (_, Err(_)) => return,
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    done.into_inner().expect("nobody panics with it")
}

fn simulate(options: &Options, job: &Job) -> Result<Simulated> {
    let bookstore = bookstore(options, job.mix)?;
    let start = saturating(options, &job.profile, job.size, job.mix)?;
    let measured_s = (MEASURED_S / u64::from(job.size)).max(MEASURED_MIN_S);
    let probe = |users: u32| {
        let setup = setup(options, job, users, measured_s);
        let failed = |error: &dyn Display| Error::Option(format!("simulate {}: {error}", job.system));
        let outcome = run_by_name(&setup, &mut bookstore.clone(), job.system.id());
        outcome.map_err(|error| failed(&error))?.figures().map_err(|fault| failed(&fault))
    };
    let peak = find_peak(start, Search::QUICK, probe)?;
    Ok(Simulated {
        users: peak.users,
        throughput: peak.measured.throughput(),
        response_ms: peak.measured.response.mean_ms(),
        idle: peak.measured.replica_time().idle,
    })
}

/// Servers share their CPUs among all statements, as PostgreSQL's do, commit in the order of CSNs, and show nobody what is not committed. A quota lets them do what
/// is short at the machine's speed, to the nearest multiple of their own, and then makes them wait for the next period. The way to them is in the costs.
fn setup<'a>(options: &Options, job: &'a Job, users: u32, measured_s: u64) -> Setup<'a> {
    let size = u16::try_from(job.size).unwrap_or(u16::MAX);
    Setup {
        seed: options.seed,
        discipline: Discipline::Capped {
            speed: (1.0 / options.cap).round() as u32,
            period_ns: cpu_groups::period_us(options.cap) * 1_000,
        },
        think_factor: options.think_factor,
        connections: Some(connections(job.size)),
        network: Latency { hop_ns: 0, ..Latency::default() },
        items: if job.system == System::Onecopy { Items::Rows } else { Items::DeclaredTables },
        engine: Engine { shows_uncommitted: false, commits_in_order: true },
        // As replicas of onecopy do, but for rows that several of them change and settings that differ.
        applies_together: true,
        warm_up_ns: WARM_UP_S * SECOND_NS,
        measured_ns: measured_s * SECOND_NS,
        ..Setup::new(&job.profile, size, Users::Closed(users))
    }
}
