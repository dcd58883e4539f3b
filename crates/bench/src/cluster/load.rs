//! What statements cost a server that many use at once, as a multiple of what a single client finds.

use onecopy_sim::perf::Profile;

use super::{Cell, Options, Stage, simulate};
use crate::{Error, Result};

/// With more failures, as a part of what was shown, CPU time is of something else.
const FAILED_MAX: f64 = 0.01;

/// The factor by CPU time that the single server beside a cluster tells: many processes displace each other in caches, and wait together,
/// each mix has other statements, and a machine is faster at one time than at another.
///
/// factor = CPU that the server spent on a page / CPU that a page costs by the profile
///
/// Pages differ much more than what they cost changes from stage to stage, so all stages count.
pub(super) fn factor(options: &Options, cell: &Cell, profile: &Profile) -> Result<f64> {
    let mix = cell.mix.parse().map_err(|error| Error::Option(format!("{error}")))?;
    let expected_ms: f64 = simulate::interaction_ms(options, profile, mix)?.iter().sum();
    let factor = server_ms(&cell.calibrating)? / options.cap / expected_ms;
    if factor.is_finite() && factor > 0.0 {
        return Ok(factor);
    }
    Err(Error::Option("no page was shown by the server that calibrates".to_owned()))
}

/// The costs that are so many times as high.
pub(super) fn scaled(profile: &Profile, factor: f64) -> Profile {
    let mut profile = profile.clone();
    profile.commit_ms *= factor;
    profile.statements_ms.values_mut().for_each(|cost_ms| *cost_ms *= factor);
    profile
}

/// CPU time that a page took, in milliseconds, if hardly any failed.
fn server_ms(stages: &[Stage]) -> Result<f64> {
    let shown: u64 = stages.iter().map(|stage| stage.completed).sum();
    let failed: u64 = stages.iter().flat_map(|stage| stage.errors.values()).sum();
    if failed as f64 > FAILED_MAX * shown as f64 {
        return Err(Error::Option(format!(
            "{failed} pages failed on the server that calibrates and {shown} did not, so nobody knows what costs are"
        )));
    }
    // A stage's throughput is what was shown by its seconds.
    let seconds = |throughput: f64, completed: u64| completed as f64 / throughput.max(f64::MIN_POSITIVE);
    let spent = stages.iter().map(|stage| stage.server_cores * seconds(stage.throughput, stage.completed));
    Ok(1e3 * spent.sum::<f64>() / shown as f64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use onecopy_workload::tpcw::MixName;

    use super::*;
    use crate::cluster::System;
    use crate::site::Latency;

    fn cell(stages: &[(u64, f64)], failed: u64) -> Cell {
        let stage = |(completed, server_cores): &(u64, f64)| Stage {
            users: 1,
            // Of 10 s each.
            throughput: *completed as f64 / 10.0,
            latency: Latency::default(),
            completed: *completed,
            errors: BTreeMap::from([("57014".to_owned(), failed)]),
            retries: BTreeMap::new(),
            server_cores: *server_cores,
            servers_busy: 0.0,
            proxy_cores: 0.0,
            machine_busy: 0.0,
        };
        Cell {
            system: System::Eager,
            size: 8,
            mix: MixName::Shopping.to_string(),
            stages: Vec::new(),
            calibrating: stages.iter().map(stage).collect(),
            cost_factor: None,
            out_of_service: Vec::new(),
            simulated: None,
        }
    }

    #[test]
    fn what_all_stages_spent_on_a_page_is_set_beside_what_it_costs() {
        // 1 s for 1,000 pages.
        let measured = cell(&[(400, 0.06), (600, 0.04)], 0);
        let profile = Profile::named("2003", "tpcw").unwrap();
        let options = Options::default();
        let expected_ms: f64 =
            simulate::interaction_ms(&options, &profile, MixName::Shopping).unwrap().iter().sum();
        let factor = factor(&options, &measured, &profile).unwrap();
        assert_eq!(scaled(&profile, factor).commit_ms, factor * profile.commit_ms);
        assert!((factor * options.cap * expected_ms - 1.0).abs() < 1e-9, "{factor}");
    }

    #[test]
    fn nothing_is_told_by_pages_that_fail_or_by_none() {
        let told = |cell: &Cell| factor(&Options::default(), cell, &Profile::named("2003", "tpcw").unwrap());
        assert!(told(&cell(&[(400, 0.05)], 4)).is_ok());
        assert!(told(&cell(&[(400, 0.05)], 5)).unwrap_err().to_string().contains("5 pages failed"));
        assert!(told(&cell(&[(0, 0.05)], 0)).is_err());
    }
}
