//! The peak of throughput over the number of users, as the papers report it.
//!
//! Throughput over users rises, bends and stays, or falls. It is climbed in steps of a quarter until it has not risen by
//! 1 % twice in a row, upwards and, if the first number was already beyond the peak, downwards; then half the step is
//! tried on both sides of the best, and half of that, down to 5 %.

use std::collections::BTreeMap;

use super::Measured;

/// The most throughput that any number of users got.
#[derive(Clone, Debug)]
pub struct Peak {
    /// How many users.
    pub users: u32,
    /// That run's figures.
    pub measured: Measured,
    /// All runs: users and interactions a second.
    pub probes: BTreeMap<u32, f64>,
}

/// A step of the climb.
const STEP: f64 = 0.25;
/// Steps below this are not worth a run.
const STEP_MIN: f64 = 0.05;
/// What counts as risen.
const RISE_MIN: f64 = 1.01;
/// So often it may not rise before the climb ends.
const MISSES_MAX: u32 = 2;

/// Users that just saturate databases which nothing keeps from working.
///
/// `think_s` is how long a user thinks, `idle_s` what an interaction takes when all databases are idle, both in seconds on
/// average.
#[must_use]
pub fn saturating_users(replicas: u16, cpus: u32, think_s: f64, idle_s: f64) -> u32 {
    let users = f64::from(replicas) * f64::from(cpus) * (think_s + idle_s) / idle_s.max(1e-6);
    users.round().clamp(1.0, f64::from(u32::MAX)) as u32
}

/// Climbs from a number of users to the peak; `probe` runs so many.
///
/// # Errors
/// Whatever a probe fails with.
pub fn find_peak<E>(start: u32, mut probe: impl FnMut(u32) -> Result<Measured, E>) -> Result<Peak, E> {
    let start = start.max(1);
    let measured = probe(start)?;
    let probes = BTreeMap::from([(start, measured.throughput())]);
    let mut climb = Climb { probe, peak: Peak { users: start, measured, probes } };
    climb.follow(start, |users| scaled(users, 1.0 + STEP).max(users.saturating_add(1)))?;
    if climb.peak.users == start {
        climb.follow(start, |users| scaled(users, 1.0 / (1.0 + STEP)).min(users - 1))?;
    }
    let mut step = STEP / 2.0;
    while step >= STEP_MIN {
        let best = climb.peak.users;
        climb.probe(scaled(best, 1.0 - step))?;
        climb.probe(scaled(best, 1.0 + step))?;
        step /= 2.0;
    }
    Ok(climb.peak)
}

/// The best of a number of users that is known to be near the peak, and of those 6 % to either side.
///
/// # Errors
/// Whatever a probe fails with.
pub fn find_peak_near<E>(users: u32, mut probe: impl FnMut(u32) -> Result<Measured, E>) -> Result<Peak, E> {
    let users = users.max(1);
    let measured = probe(users)?;
    let probes = BTreeMap::from([(users, measured.throughput())]);
    let mut climb = Climb { probe, peak: Peak { users, measured, probes } };
    for factor in [1.0 - STEP / 4.0, 1.0 + STEP / 4.0] {
        climb.probe(scaled(users, factor))?;
    }
    Ok(climb.peak)
}

struct Climb<P> {
    probe: P,
    /// The best so far, and all that was tried.
    peak: Peak,
}

impl<P> Climb<P> {
    /// Runs so many users, unless that was done. Whether throughput rose.
    fn probe<E>(&mut self, users: u32) -> Result<bool, E>
    where
        P: FnMut(u32) -> Result<Measured, E>,
    {
        let peak = &mut self.peak;
        if peak.probes.contains_key(&users) {
            return Ok(false);
        }
        let measured = (self.probe)(users)?;
        let (throughput, best) = (measured.throughput(), peak.measured.throughput());
        peak.probes.insert(users, throughput);
        if throughput > best {
            (peak.users, peak.measured) = (users, measured);
        }
        Ok(throughput >= best * RISE_MIN)
    }

    /// Goes on in one direction as long as throughput rises; there is nobody beyond the last number and below 1.
    fn follow<E>(&mut self, start: u32, next: impl Fn(u32) -> u32) -> Result<(), E>
    where
        P: FnMut(u32) -> Result<Measured, E>,
    {
        let (mut users, mut misses) = (start, 0);
        while misses < MISSES_MAX {
            let further = next(users);
            if further == 0 || further == users {
                return Ok(());
            }
            misses = if self.probe(further)? { 0 } else { misses + 1 };
            users = further;
        }
        Ok(())
    }
}

fn scaled(users: u32, factor: f64) -> u32 {
    (f64::from(users) * factor).round().clamp(1.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use onecopy_workload::InteractionId;

    use super::*;

    /// What so many users get: a curve.
    fn measured(throughput: f64) -> Measured {
        let mut measured = Measured::new(1_000_000_000_000, 1, 1, 1);
        for _ in 0..(throughput * 1_000.0) as u64 {
            measured.interaction(InteractionId(0), 1_000_000);
        }
        measured
    }

    fn climb(start: u32, curve: impl Fn(f64) -> f64) -> Peak {
        let probe = |users: u32| Ok::<_, Infallible>(measured(curve(f64::from(users))));
        find_peak(start, probe).unwrap_or_else(|never| match never {})
    }

    #[test]
    fn a_curve_that_saturates_is_climbed_to_where_it_is_flat() {
        let curve = |users: f64| (users / 7.1).min(60.0);
        for start in [50, 300, 426, 2_000] {
            let peak = climb(start, curve);
            assert!(peak.measured.throughput() > 59.0, "from {start}: {:?}", peak.probes);
            assert!(peak.probes.len() < 25, "from {start}: {:?}", peak.probes);
        }
    }

    #[test]
    fn a_curve_that_falls_is_climbed_from_either_side() {
        let curve = |users: f64| 40.0 - (users.ln() - 500_f64.ln()).powi(2) * 20.0;
        for start in [200, 500, 1_500] {
            let peak = climb(start, curve);
            assert!((450..=560).contains(&peak.users), "from {start}: {:?}", peak.probes);
        }
    }

    #[test]
    fn near_the_peak_the_better_side_is_taken() {
        for (start, best) in [(100, 94), (94, 94), (80, 85)] {
            let curve = |users: u32| measured(10.0 - (f64::from(users) - 92.0).abs() / 100.0);
            let peak = find_peak_near(start, |users| Ok::<_, Infallible>(curve(users)));
            let peak = peak.unwrap_or_else(|never| match never {});
            assert_eq!((peak.users, peak.probes.len()), (best, 3), "from {start}");
        }
    }

    #[test]
    fn a_single_user_may_be_the_peak() {
        let peak = climb(1, |users| 2.0 / users);
        assert_eq!(peak.users, 1);
    }

    #[test]
    fn users_that_saturate_follow_from_think_time_and_demand() {
        assert_eq!(saturating_users(8, 1, 7.0, 0.1), 568);
        assert_eq!(saturating_users(8, 2, 7.0, 0.1), 1_136);
    }
}
