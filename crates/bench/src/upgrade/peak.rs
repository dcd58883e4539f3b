//! How many pages a second the customers of a cluster get at most.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::bar::Bar;
use crate::site::{Collected, Crowd, Latency};
use crate::tpcw;
use crate::{Error, Result};

/// Customers of each stage.
const USERS: [u32; 4] = [8, 16, 32, 64];
/// What counts as risen.
const RISE_MIN: f64 = 1.02;
/// Before the first stage connections and servers learn their statements for so long.
const WARM_UP: Duration = Duration::from_secs(3);
/// Of each stage, customers settle in this time before anything counts.
const RAMP: Duration = Duration::from_secs(1);
/// How long customers may take to go.
const LEAVE_MAX: Duration = Duration::from_secs(30);

/// What a number of customers got who make no pauses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    /// Customers.
    pub users: u32,
    /// Pages shown per second.
    pub throughput: f64,
    /// Pages that failed.
    pub failed: u64,
    /// Response times of those shown.
    pub latency: Latency,
}

/// Lets more and more customers click without pauses, until throughput does not rise any more.
///
/// # Errors
/// If nothing was shown at all.
pub(super) async fn find_peak(customers: &tpcw::Options, stage: Duration, bar: &Bar) -> Result<Vec<Stage>> {
    let mut crowd = Crowd::open(customers).await?;
    crowd.rehearse(USERS[1], WARM_UP, LEAVE_MAX).await?;
    let mut stages = Vec::new();
    for users in USERS {
        bar.say(format!("what it carries at most: {users} customers without pauses"));
        crowd.come(users, Duration::ZERO);
        tokio::time::sleep(RAMP).await;
        let begin = Instant::now();
        let Collected { samples, .. } = crowd.measure(stage).await;
        let shown = samples.iter().filter(|sample| !sample.failed).map(|sample| sample.latency_us);
        let latencies: Vec<u64> = shown.map(u64::from).collect();
        let best = peak(&stages);
        stages.push(Stage {
            users,
            throughput: latencies.len() as f64 / begin.elapsed().as_secs_f64(),
            failed: (samples.len() - latencies.len()) as u64,
            latency: Latency::of(latencies),
        });
        if peak(&stages) < best * RISE_MIN {
            break;
        }
    }
    crowd.leave(LEAVE_MAX).await;
    if peak(&stages) == 0.0 {
        return Err(Error::Option("no page was shown to customers without pauses".to_owned()));
    }
    Ok(stages)
}

/// The most pages per second of any stage; 0 without one.
pub(super) fn peak(stages: &[Stage]) -> f64 {
    stages.iter().map(|stage| stage.throughput).fold(0.0, f64::max)
}
