//! How thoroughly experiments are run.

/// How long runs are, how many seeds, which sizes of clusters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Virtual seconds before anything is measured.
    pub warm_up_s: u64,
    /// Virtual seconds that are measured.
    pub measured_s: u64,
    /// Runs of each experiment, with seeds from 0 on.
    pub seeds: u64,
    /// The largest cluster that is simulated; what a claim says of larger ones stays open.
    pub replicas_max: u16,
    /// The sizes at which curves are measured, rising, none above `replicas_max`.
    pub sizes: Vec<u16>,
}

/// The sizes of the papers' curves.
const SIZES: [u16; 10] = [1, 2, 4, 8, 16, 24, 32, 40, 48, 60];

/// Runs of which a quarter still tells a peak from its surroundings, in virtual seconds.
const COARSE_FROM_S: u64 = 240;

impl Effort {
    /// What verdicts are made with: 2 minutes of warm-up, 8 of measurement, 5 seeds, every size. Takes hours.
    #[must_use]
    pub fn full() -> Effort {
        Effort { warm_up_s: 120, measured_s: 480, seeds: 5, replicas_max: 60, sizes: SIZES.to_vec() }
    }

    /// A look in minutes: shorter runs, 2 seeds, few sizes.
    #[must_use]
    pub fn quick() -> Effort {
        Effort { warm_up_s: 20, measured_s: 60, seeds: 2, replicas_max: 60, sizes: vec![1, 4, 8, 16, 40, 60] }
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
        claimed.iter().copied().filter(|size| self.sizes.contains(size)).collect()
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
            assert_eq!(effort.sizes.last(), Some(&effort.replicas_max));
        }
    }

    #[test]
    fn a_claim_is_looked_at_where_curves_are_measured() {
        assert_eq!(Effort::quick().sizes_of(&[1, 2, 4, 8]), [1, 4, 8]);
    }
}
