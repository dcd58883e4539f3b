//! What statements cost a server that many use at once, as a multiple of what a single client finds.

use std::time::Duration;

use onecopy_sim::perf::Profile;

use super::servers::{Running, connections};
use super::{Bench, measure, simulate};
use crate::site::{Collected, Crowd};
use crate::tpcw;
use crate::{Error, Result};

/// Before anything counts all have shown some pages.
const RAMP: Duration = Duration::from_secs(3);

/// The factor by CPU time, over all mixes that are measured.
///
/// As many customers as there are connections click without pauses on one capped server. A single client neither lets processes
/// displace each other nor waits for locks, so costs that it finds are too low or too high by some part:
///
/// factor = CPU that the server spends / CPU that the pages shown cost by the profile
pub(super) async fn factor(bench: &Bench<'_>, running: &Running, profile: &Profile) -> Result<f64> {
    let options = bench.options;
    let (mut spent_ms, mut expected_ms) = (0.0, 0.0);
    for &mix in &options.mixes {
        bench.say(format!("{}: what costs are under load, {mix}", running.system));
        let clients = connections(running.size);
        let customers =
            tpcw::Options { think_factor: 0.0, ..measure::customers(bench, running, mix, clients) };
        let mut crowd = Crowd::open(&customers).await?;
        crowd.come(clients, Duration::ZERO);
        tokio::time::sleep(RAMP).await;
        let before_s = running.spent_s()?;
        let Collected { samples, .. } = crowd.measure(options.calibration / 2).await;
        spent_ms += (running.spent_s()? - before_s) * 1e3 / options.cap;
        expected_ms += samples.len() as f64 * simulate::interaction_ms(options, profile, mix)?;
        crowd.leave(measure::LEAVE_MAX).await;
    }
    let factor = spent_ms / expected_ms;
    if !factor.is_finite() || factor <= 0.0 {
        return Err(Error::Option(format!(
            "no page was shown under load in {} s: let the calibration run for longer (--calibration)",
            options.calibration.as_secs_f64() / 2.0
        )));
    }
    Ok(factor)
}
