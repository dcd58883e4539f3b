//! What statements cost a server that many use at once, as a multiple of what a single client finds.

use std::collections::BTreeMap;
use std::time::Duration;

use onecopy_sim::perf::Profile;

use super::servers::{Running, connections};
use super::{Bench, measure, simulate};
use crate::site::{Collected, Sample};
use crate::tpcw;
use crate::{Error, Result};

/// Before anything counts all have shown some pages.
const RAMP: Duration = Duration::from_secs(3);

/// With more failures, as a part of what was shown, CPU time is of something else.
const FAILED_MAX: f64 = 0.01;

/// The factor by CPU time, for each mix that is measured: pages of a mix have other statements, which displace each other differently.
///
/// As many customers as there are connections click without pauses on one capped server. A single client neither lets processes
/// displace each other nor waits for locks, so costs that it finds are too low or too high by some part:
///
/// factor = CPU that the server spends / CPU that the pages shown cost by the profile
pub(super) async fn factors(
    bench: &Bench<'_>,
    running: &Running,
    profile: &Profile,
) -> Result<BTreeMap<String, f64>> {
    let options = bench.options;
    let mut factors = BTreeMap::new();
    for &mix in &options.mixes {
        bench.say(format!("{}: what costs are under load, {mix}", running.system));
        let clients = connections(running.size);
        let customers =
            tpcw::Options { think_factor: 0.0, ..measure::customers(bench, running, mix, clients) };
        let mut crowd = measure::warmed_up(bench, running, &customers).await?;
        crowd.come(clients, Duration::ZERO);
        tokio::time::sleep(RAMP).await;
        let before_s = running.spent_s()?;
        let Collected { samples, errors, .. } = crowd.measure(options.calibration / 2).await;
        let spent_ms = (running.spent_s()? - before_s) * 1e3 / options.cap;
        let expected_ms = shown(&samples, &errors)? as f64 * simulate::interaction_ms(options, profile, mix)?;
        crowd.leave(measure::LEAVE_MAX).await;
        let factor = spent_ms / expected_ms;
        if !factor.is_finite() || factor <= 0.0 {
            return Err(Error::Option(format!(
                "no page was shown under load in {} s, {mix}: let the calibration run for longer (--calibration)",
                options.calibration.as_secs_f64() / 2.0
            )));
        }
        factors.insert(mix.to_string(), factor);
    }
    Ok(factors)
}

/// How many pages were shown, if hardly any other failed.
fn shown(samples: &[Sample], errors: &BTreeMap<String, u64>) -> Result<usize> {
    let shown = samples.iter().filter(|sample| !sample.failed).count();
    let failed = samples.len() - shown;
    if failed as f64 > FAILED_MAX * shown as f64 {
        let states: Vec<&str> = errors.keys().map(String::as_str).collect();
        return Err(Error::Option(format!(
            "{failed} pages failed under load and {shown} did not, so nobody knows what costs are: {}",
            states.join(", ")
        )));
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_fail_are_not_shown_and_many_of_them_are_refused() {
        let samples = |shown: usize, failed: usize| -> Vec<Sample> {
            let sample = |failed| Sample { at_ms: 0, interaction: 0, retries: 0, failed, latency_us: 1 };
            (0..shown).map(|_| sample(false)).chain((0..failed).map(|_| sample(true))).collect()
        };
        let errors = BTreeMap::from([("57014".to_owned(), 1)]);
        assert_eq!(shown(&samples(100, 1), &errors).unwrap(), 100);
        for failures in [samples(100, 2), samples(0, 1)] {
            assert!(shown(&failures, &errors).unwrap_err().to_string().contains("57014"));
        }
    }
}
