//! The peak of throughput over the number of users, as the papers report it.
//!
//! Throughput over users rises, bends and stays, or falls. It is climbed in steps of a quarter until it has not risen by
//! 1 % twice in a row, upwards and, if the first number was already beyond the peak, downwards; then half the step is
//! tried on both sides of the best, and half of that, down to 5 %.

use std::collections::BTreeMap;

use super::Measured;

/// The most throughput that any number of users got.
///
/// Near its top a curve is flat, and chance decides which of many numbers of users gets most; response times differ much between
/// them. So the peak is taken at the fewest users with whom throughput is the same but for 2 %.
#[derive(Clone, Debug)]
pub struct Peak {
    /// How many users.
    pub users: u32,
    /// That run's figures.
    pub measured: Measured,
    /// All runs: users and interactions a second.
    pub probes: BTreeMap<u32, f64>,
}

/// How thoroughly a peak is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Search {
    /// So often throughput may not rise before the climb ends.
    pub misses_max: u32,
    /// So often the step is halved around the best.
    pub refinements: u32,
}

impl Search {
    /// To within 5 % of the users, past a chance miss.
    pub const THOROUGH: Search = Search { misses_max: 2, refinements: 2 };
    /// In half as many runs.
    pub const QUICK: Search = Search { misses_max: 1, refinements: 1 };
}

/// A step of the climb.
const STEP: f64 = 0.25;
/// A step around what is known to be near the peak.
const SIDE: f64 = STEP / 4.0;
/// What counts as risen.
const RISE_MIN: f64 = 1.01;

/// What counts as the same throughput.
const SAME_MIN: f64 = 0.98;

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
/// What a run got counts if it is steady. With too many users behind a bottleneck no run is, so the climb begins below them.
///
/// # Errors
/// Whatever a probe fails with.
pub fn find_peak<E>(
    start: u32,
    search: Search,
    probe: impl FnMut(u32) -> Result<Measured, E>,
) -> Result<Peak, E> {
    let mut climb = Climb::new(start.max(1), probe)?;
    while !climb.is_steady && climb.peak.users > 1 {
        climb.restart(climb.peak.users / 2)?;
    }
    let start = climb.peak.users;
    climb.ascend(search)?;
    if climb.peak.users == start {
        // With fewer users the same is enough.
        climb.follow(start, search, SAME_MIN, |users| scaled(users, 1.0 / (1.0 + STEP)).min(users - 1))?;
    }
    let mut step = STEP;
    for _ in 0..search.refinements {
        step /= 2.0;
        let best = climb.peak.users;
        climb.probe(scaled(best, 1.0 - step))?;
        climb.probe(scaled(best, 1.0 + step))?;
    }
    Ok(climb.finish())
}

/// The best of a number of users that is known to be near the peak, and of those 6 % to either side; of fewer, if none of
/// these is steady.
///
/// # Errors
/// Whatever a probe fails with.
pub fn find_peak_near<E>(users: u32, probe: impl FnMut(u32) -> Result<Measured, E>) -> Result<Peak, E> {
    let mut climb = Climb::near(users, probe)?;
    climb.look_aside()?;
    Ok(climb.finish())
}

/// Like [`find_peak_near`], but first climbs on from there as [`find_peak`] does, upwards only.
///
/// A number that shorter runs have found may be too low: what piles up there with more users comes to an end in longer ones.
///
/// # Errors
/// Whatever a probe fails with.
pub fn find_peak_from<E>(
    users: u32,
    search: Search,
    probe: impl FnMut(u32) -> Result<Measured, E>,
) -> Result<Peak, E> {
    let mut climb = Climb::near(users, probe)?;
    climb.ascend(search)?;
    climb.look_aside()?;
    Ok(climb.finish())
}

struct Climb<P> {
    probe: P,
    /// The best so far, and all that was tried.
    peak: Peak,
    /// All others that were steady.
    steady: Vec<(u32, Measured)>,
    /// Whether the best is steady.
    is_steady: bool,
}

impl<P> Climb<P> {
    fn new<E>(users: u32, mut probe: P) -> Result<Climb<P>, E>
    where
        P: FnMut(u32) -> Result<Measured, E>,
    {
        let measured = probe(users)?;
        let (is_steady, probes) = (measured.is_steady(), BTreeMap::from([(users, measured.throughput())]));
        Ok(Climb { probe, peak: Peak { users, measured, probes }, steady: Vec::new(), is_steady })
    }

    /// Begins at so many users, or a little below them, where the run is steady.
    fn near<E>(users: u32, probe: P) -> Result<Climb<P>, E>
    where
        P: FnMut(u32) -> Result<Measured, E>,
    {
        let mut climb = Climb::new(users.max(1), probe)?;
        while !climb.is_steady && climb.peak.users > 1 {
            climb.restart(scaled(climb.peak.users, 1.0 - SIDE).min(climb.peak.users - 1))?;
        }
        Ok(climb)
    }

    /// From the best so far to more users, as long as throughput rises.
    fn ascend<E>(&mut self, search: Search) -> Result<(), E>
    where
        P: FnMut(u32) -> Result<Measured, E>,
    {
        let more = |users: u32| scaled(users, 1.0 + STEP).max(users.saturating_add(1));
        self.follow(self.peak.users, search, RISE_MIN, more)
    }

    /// A little to either side of the best so far.
    fn look_aside<E>(&mut self) -> Result<(), E>
    where
        P: FnMut(u32) -> Result<Measured, E>,
    {
        let best = self.peak.users;
        for factor in [1.0 - SIDE, 1.0 + SIDE] {
            self.probe(scaled(best, factor))?;
        }
        Ok(())
    }

    /// The fewest users with whom throughput is that of the best.
    fn finish(self) -> Peak {
        let enough = self.peak.measured.throughput() * SAME_MIN;
        let fewer = self
            .steady
            .into_iter()
            .filter(|(users, measured)| *users < self.peak.users && measured.throughput() >= enough);
        match fewer.min_by_key(|(users, _)| *users) {
            Some((users, measured)) => Peak { users, measured, ..self.peak },
            None => self.peak,
        }
    }

    /// Takes another number of users for the best so far, whatever they get.
    fn restart<E>(&mut self, users: u32) -> Result<(), E>
    where
        P: FnMut(u32) -> Result<Measured, E>,
    {
        let measured = (self.probe)(users)?;
        self.is_steady = measured.is_steady();
        self.peak.probes.insert(users, measured.throughput());
        (self.peak.users, self.peak.measured) = (users, measured);
        Ok(())
    }

    /// Runs so many users, unless that was done. Their part of the best throughput so far; 0 if it does not count.
    fn probe<E>(&mut self, users: u32) -> Result<f64, E>
    where
        P: FnMut(u32) -> Result<Measured, E>,
    {
        let peak = &mut self.peak;
        if peak.probes.contains_key(&users) {
            return Ok(0.0);
        }
        let measured = (self.probe)(users)?;
        let (throughput, best) = (measured.throughput(), peak.measured.throughput());
        peak.probes.insert(users, throughput);
        if !measured.is_steady() {
            return Ok(0.0);
        }
        let other = if throughput > best {
            let before = std::mem::replace(&mut peak.users, users);
            (before, std::mem::replace(&mut peak.measured, measured))
        } else {
            (users, measured)
        };
        self.steady.push(other);
        Ok(throughput / best)
    }

    /// Goes on in one direction as long as there is enough of the best throughput; there is nobody beyond the last number and below
    /// 1.
    fn follow<E>(
        &mut self,
        start: u32,
        search: Search,
        enough: f64,
        next: impl Fn(u32) -> u32,
    ) -> Result<(), E>
    where
        P: FnMut(u32) -> Result<Measured, E>,
    {
        let (mut users, mut misses) = (start, 0);
        while misses < search.misses_max {
            let further = next(users);
            if further == 0 || further == users {
                return Ok(());
            }
            misses = if self.probe(further)? >= enough { 0 } else { misses + 1 };
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
        let mut measured = Measured::new(1_000_000_000_000, [1, 1], 1, 1);
        for _ in 0..(throughput * 1_000.0) as u64 {
            measured.interaction(InteractionId(0), 1_000_000);
        }
        measured
    }

    fn climb(start: u32, curve: impl Fn(f64) -> f64) -> Peak {
        let probe = |users: u32| Ok::<_, Infallible>(measured(curve(f64::from(users))));
        find_peak(start, Search::THOROUGH, probe).unwrap_or_else(|never| match never {})
    }

    #[test]
    fn a_curve_that_saturates_is_climbed_to_where_it_is_flat() {
        let curve = |users: f64| (users / 7.1).min(60.0);
        for start in [50, 300, 426, 2_000] {
            let peak = climb(start, curve);
            assert!(peak.measured.throughput() > 58.7, "from {start}: {:?}", peak.probes);
            assert!(peak.users <= 480, "from {start}: {:?}", peak.probes);
            assert!(peak.probes.len() < 25, "from {start}: {:?}", peak.probes);
        }
    }

    #[test]
    fn a_curve_that_falls_is_climbed_from_either_side() {
        let curve = |users: f64| 40.0 - (users.ln() - 500_f64.ln()).powi(2) * 20.0;
        for start in [200, 500, 1_500] {
            let peak = climb(start, curve);
            assert!((400..=560).contains(&peak.users), "from {start}: {:?}", peak.probes);
        }
    }

    #[test]
    fn near_the_peak_the_better_side_is_taken() {
        for (start, best) in [(100, 94), (94, 94), (80, 85)] {
            let curve = |users: u32| measured(10.0 - (f64::from(users) - 92.0).abs() / 10.0);
            let peak = find_peak_near(start, |users| Ok::<_, Infallible>(curve(users)));
            let peak = peak.unwrap_or_else(|never| match never {});
            assert_eq!((peak.users, peak.probes.len()), (best, 3), "from {start}");
        }
    }

    #[test]
    fn a_number_that_short_runs_have_found_is_climbed_on_from() {
        let curve = |users: u32| measured((f64::from(users) / 7.0).min(60.0));
        for start in [150, 400, 460] {
            let peak = find_peak_from(start, Search::THOROUGH, |users| Ok::<_, Infallible>(curve(users)));
            let peak = peak.unwrap_or_else(|never| match never {});
            assert!(peak.measured.throughput() > 58.7, "from {start}: {:?}", peak.probes);
        }
    }

    #[test]
    fn what_is_not_steady_does_not_count() {
        // Beyond 500 users some kind piles up, while throughput seems to rise.
        let probe = |users: u32| {
            let mut measured = measured(f64::from(users) / 10.0);
            measured.in_progress[1][0] = if users > 500 { 100_000 } else { 0 };
            Ok::<_, Infallible>(measured)
        };
        for search in [Search::THOROUGH, Search::QUICK] {
            for start in [100, 450, 4_000] {
                let peak = find_peak(start, search, probe).unwrap_or_else(|never| match never {});
                assert!((400..=500).contains(&peak.users), "from {start}: {:?}", peak.probes);
            }
        }
        let peak = find_peak_near(560, probe).unwrap_or_else(|never| match never {});
        assert!((460..=500).contains(&peak.users), "{:?}", peak.probes);
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
