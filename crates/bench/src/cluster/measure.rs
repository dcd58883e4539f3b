//! One cell: a system with so many servers under one mix.

use std::collections::BTreeMap;
use std::time::Duration;

use onecopy_workload::tpcw::MixName;
use serde::Serialize;

use super::servers::{Running, connections};
use super::{Bench, Simulated, System};
use crate::cpu;
use crate::observe::watch;
use crate::site::{self, Collected, Crowd, Latency, Website};
use crate::tpcw::{self, Bookstore};
use crate::{Error, Result};

/// From one stage to the next there are so many times as many customers.
const STEP: f64 = 1.4;
/// The first stage has somewhat more than saturate the servers if none ever waits.
const FIRST: f64 = 1.3;
/// What counts as risen.
const RISE_MIN: f64 = 1.02;
/// How long servers run at full speed before they are capped.
pub(super) const WARM_UP: Duration = Duration::from_secs(4);
/// How long customers may walk in, at full speed.
const WALK_IN_MAX: Duration = Duration::from_secs(20);
/// How long customers may take to go.
pub(super) const LEAVE_MAX: Duration = Duration::from_secs(15);

/// What one system did on so many servers under one mix.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The system.
    pub system: System,
    /// Servers.
    pub size: u32,
    /// The mix.
    pub mix: String,
    /// Stage by stage, in the order in which they were.
    pub stages: Vec<Stage>,
    /// The single server that calibrated at the same time, stage by stage; empty where none did.
    pub calibrating: Vec<Stage>,
    /// What costs were by it, as a multiple of what a single client finds.
    pub cost_factor: Option<f64>,
    /// Servers that were not in service any more in the end, and why. Then fewer were measured.
    pub out_of_service: Vec<String>,
    /// The same in virtual time; `None` where it was not simulated.
    pub simulated: Option<Simulated>,
}

/// What a number of customers got.
#[derive(Clone, Debug, Serialize)]
pub struct Stage {
    /// Customers.
    pub users: u32,
    /// Interactions completed per second.
    pub throughput: f64,
    /// Response times of those completed.
    pub latency: Latency,
    /// Interactions completed.
    pub completed: u64,
    /// Interactions that failed, by SQLSTATE.
    pub errors: BTreeMap<String, u64>,
    /// Transactions that ran again, by SQLSTATE.
    pub retries: BTreeMap<String, u64>,
    /// What all servers used, in processors.
    pub server_cores: f64,
    /// Of what the servers may use, the part that they did. Without a cap they may use the machine.
    pub servers_busy: f64,
    /// What onecopy or Pgpool-II used, in processors.
    pub proxy_cores: f64,
    /// Of the machine's processors, the part that was busy with anything; near 1 it was too small for the measurement.
    pub machine_busy: f64,
}

impl Cell {
    /// The stage with the most throughput.
    #[must_use]
    pub fn peak(&self) -> Option<&Stage> {
        self.stages.iter().max_by(|a, b| a.throughput.total_cmp(&b.throughput))
    }

    /// Interactions per second at the peak.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.peak().map_or(0.0, |stage| stage.throughput)
    }
}

impl Stage {
    /// CPU time of all servers for an interaction, in milliseconds.
    pub(super) fn server_ms(&self) -> f64 {
        1e3 * self.server_cores / self.throughput
    }
}

/// The customers of a cell.
pub(super) fn customers(bench: &Bench<'_>, running: &Running, mix: MixName, clients: u32) -> tpcw::Options {
    let site = Bookstore { items: bench.options.items, browsers: bench.options.browsers, mix };
    visits(bench, running, site, clients)
}

/// Clients of a site.
pub(super) fn visits<S: Website + Default>(
    bench: &Bench<'_>,
    running: &Running,
    site: S,
    clients: u32,
) -> site::Options<S> {
    site::Options {
        target: running.dsn.clone(),
        site,
        clients,
        connections: Some(clients.min(connections(running.size))),
        think_factor: bench.options.think_factor,
        seed: bench.options.seed,
        declare: running.system.is_declared_to(),
        progress: false,
        ..site::Options::default()
    }
}

/// A cluster, and as many customers as would keep its servers busy if nothing ever waited.
pub(super) type Saturated<'a> = (&'a Running, u32);

/// Lets more and more customers come, until throughput does not rise any more. Customers of the cluster that calibrates come when the
/// first ones do, and are more than it needs.
pub(super) async fn cell(
    bench: &Bench<'_>,
    (running, saturating): Saturated<'_>,
    calibrates: Option<Saturated<'_>>,
    mix: MixName,
) -> Result<Cell> {
    let users: Vec<u32> = (0..bench.options.stages)
        .map(|stage| (f64::from(saturating) * FIRST * STEP.powi(stage as i32)).ceil() as u32)
        .collect();
    let most = users.last().copied().unwrap_or(saturating);
    let options = customers(bench, running, mix, most);
    let others = calibrates.map(|(running, saturating)| {
        let users = (f64::from(saturating) * FIRST * STEP).ceil() as u32;
        (running, customers(bench, running, mix, users))
    });
    let others = async {
        match &others {
            Some((running, options)) => Ok(Some((*running, walked_in(bench, running, options).await?))),
            None => Ok(None),
        }
    };
    let (crowd, mut others) = tokio::try_join!(walked_in(bench, running, &options), others)?;
    let mut crowd = crowd;
    let (mut stages, mut calibrating): (Vec<Stage>, Vec<Stage>) = Default::default();
    for users in users {
        let at_others = async {
            match &mut others {
                Some((running, crowd)) => {
                    let users = crowd.users_max();
                    Ok(Some(self::stage(bench, running, crowd, users).await?))
                }
                None => Ok(None),
            }
        };
        let (stage, other) = tokio::try_join!(stage(bench, running, &mut crowd, users), at_others)?;
        calibrating.extend(other);
        bench.say(format!(
            "{}, {} servers, {mix}: {users} users, {:.1} a second, {:.0} ms",
            running.system, running.size, stage.throughput, stage.latency.mean_ms
        ));
        let best = stages.iter().map(|stage| stage.throughput).fold(0.0, f64::max);
        let has_risen = stage.throughput > best * RISE_MIN;
        stages.push(stage);
        if !has_risen {
            break;
        }
    }
    crowd.leave(LEAVE_MAX).await;
    if let Some((_, others)) = others {
        others.leave(LEAVE_MAX).await;
    }
    if stages.iter().all(|stage| stage.completed == 0) {
        let errors = stages.iter().flat_map(|stage| stage.errors.keys());
        let errors: Vec<&str> = errors.map(String::as_str).collect();
        return Err(Error::Option(format!("no interaction succeeded: {}", errors.join(", "))));
    }
    let (system, size) = (running.system, running.size);
    let out_of_service = match system {
        System::Pgpool => Vec::new(),
        _ => watch::out_of_service(&running.dsn).await?,
    };
    let mix = mix.to_string();
    Ok(Cell { system, size, mix, stages, calibrating, cost_factor: None, out_of_service, simulated: None })
}

/// Lets customers walk in at full speed, in which each server's processes learn their tables and statements as well, and then caps the
/// servers.
async fn walked_in<'a>(
    bench: &Bench<'_>,
    running: &Running,
    options: &'a tpcw::Options,
) -> Result<Crowd<'a, Bookstore>> {
    running.cap(None)?;
    let mut crowd = Crowd::open(options).await?;
    crowd.walk_in(options.clients, WALK_IN_MAX).await;
    running.cap(Some(bench.options.cap))?;
    Ok(crowd)
}

pub(super) async fn stage<S: Website>(
    bench: &Bench<'_>,
    running: &Running,
    crowd: &mut Crowd<'_, S>,
    users: u32,
) -> Result<Stage> {
    let options = bench.options;
    crowd.come(users, options.ramp / 2);
    tokio::time::sleep(options.ramp).await;
    let (spent, proxy, machine) = (running.spent_s()?, running.proxy_meter(), cpu::machine());
    let begin = std::time::Instant::now();
    let Collected { samples, errors, retries, .. } = crowd.measure(options.duration).await;
    let seconds = begin.elapsed().as_secs_f64();
    let server_cores = (running.spent_s()? - spent) / seconds;
    let proxy = running.proxy_meter().since(&proxy);
    let proxy: f64 = proxy.iter().filter(|usage| usage.name == "proxy").map(|usage| usage.seconds).sum();
    let machine = machine.zip(cpu::machine()).map_or(0.0, |((busy, all), (busy_now, all_now))| {
        (busy_now - busy) as f64 / (all_now - all).max(1) as f64
    });
    let latencies = samples.iter().filter(|sample| !sample.failed);
    let latencies: Vec<u64> = latencies.map(|sample| u64::from(sample.latency_us)).collect();
    Ok(Stage {
        users,
        throughput: latencies.len() as f64 / seconds,
        completed: latencies.len() as u64,
        latency: Latency::of(latencies),
        errors,
        retries,
        server_cores,
        servers_busy: server_cores / bench.servers_may(running.size),
        proxy_cores: proxy / seconds,
        machine_busy: machine,
    })
}
