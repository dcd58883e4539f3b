//! How thoroughly experiments are run.

use onecopy_sim::perf::Search;

/// How long runs are, how many seeds, which sizes of clusters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Virtual seconds before anything is measured.
    pub warm_up_s: u64,
    /// Virtual seconds that are measured at least.
    pub measured_s: u64,
    /// Runs of each experiment, with seeds from 0 on.
    pub seeds: u64,
    /// How peaks are looked for.
    pub search: Search,
    /// The sizes at which curves are measured, rising.
    pub sizes: Vec<u16>,
    /// Sizes beyond those of the papers, rising; for what is claimed of them.
    pub sizes_beyond: Vec<u16>,
}

/// The sizes of the papers' curves.
const SIZES: [u16; 10] = [1, 2, 4, 8, 16, 24, 32, 40, 48, 60];

/// Databases together are measured for at least so many virtual seconds: what few of them do depends on chance for longer.
const DATABASE_S_MIN: u64 = 1_200;

/// Runs of which a quarter still tells a peak from its surroundings, in virtual seconds.
const COARSE_FROM_S: u64 = 240;

impl Effort {
    /// What verdicts are made with: 2 minutes of warm-up, 8 of measurement, 5 seeds, every size. Takes hours.
    #[must_use]
    pub fn full() -> Effort {
        Effort {
            warm_up_s: 120,
            measured_s: 480,
            seeds: 5,
            search: Search::THOROUGH,
            sizes: SIZES.to_vec(),
            sizes_beyond: vec![100, 300, 600],
        }
    }

    /// A look in minutes: shorter runs, one seed, few sizes, a short search.
    #[must_use]
    pub fn quick() -> Effort {
        Effort {
            warm_up_s: 30,
            measured_s: 60,
            seeds: 1,
            search: Search::QUICK,
            sizes: vec![1, 8, 16, 60],
            sizes_beyond: vec![100, 300, 600],
        }
    }

    /// Virtual seconds that are measured of so many databases that are so many times as fast.
    #[must_use]
    pub fn measured_s_of(&self, replicas: u16, speed: u32) -> u64 {
        self.measured_s.max(DATABASE_S_MIN / (u64::from(replicas) * u64::from(speed)).max(1))
    }

    /// Runs of a quarter of the length, with which long ones look for where the peak may be.
    #[must_use]
    pub fn coarse(&self) -> Option<Effort> {
        let is_long = self.measured_s >= COARSE_FROM_S;
        is_long.then(|| Effort {
            warm_up_s: self.warm_up_s / 4,
            measured_s: self.measured_s / 4,
            ..self.clone()
        })
    }

    /// Those of a claim's sizes at which curves are measured.
    #[must_use]
    pub fn sizes_of(&self, claimed: &[u16]) -> Vec<u16> {
        let is_measured = |size: &u16| self.sizes.contains(size) || self.sizes_beyond.contains(size);
        claimed.iter().copied().filter(is_measured).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_rise_and_contain_what_single_figures_of_the_papers_are_about() {
        for effort in [Effort::full(), Effort::quick()] {
            assert!(effort.sizes.is_sorted());
            for size in [1, 8, 16, 60] {
                assert!(effort.sizes.contains(&size), "{size}");
            }
            assert_eq!(effort.sizes.last(), Some(&60));
            assert!(effort.sizes_beyond.is_sorted() && effort.sizes_beyond.iter().all(|size| *size > 60));
        }
    }

    #[test]
    fn small_clusters_are_measured_for_longer() {
        let quick = Effort::quick();
        assert_eq!(
            [(1, 1), (8, 1), (8, 4), (60, 1)].map(|(n, s)| quick.measured_s_of(n, s)),
            [1_200, 150, 60, 60]
        );
    }

    #[test]
    fn a_claim_is_looked_at_where_curves_are_measured() {
        assert_eq!(Effort::quick().sizes_of(&[1, 2, 4, 8, 100, 600]), [1, 8, 100, 600]);
    }
}
