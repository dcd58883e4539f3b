//! What is computed from experiments, seed by seed: a figure of one, or an expression over several.

use std::collections::BTreeSet;
use std::ops::{Div, Sub};

use crate::experiment::{Experiment, Metric};
use crate::kept::Kept;
use crate::results::Results;
use crate::variation::Variation;
use crate::whole::{WholeExperiment, WholeMetric};
use crate::wide::{WideExperiment, WideMetric};

/// A number for each seed.
#[derive(Clone, PartialEq, Debug)]
pub enum Quantity {
    /// A figure of an experiment.
    Of(Metric, Experiment),
    /// A figure of an experiment with whole transactions.
    OfWhole(WholeMetric, WholeExperiment),
    /// A figure of an experiment with sites that are far apart.
    OfWide(WideMetric, WideExperiment),
    /// The same for every seed.
    Constant(f64),
    /// One less another.
    Difference(Box<Quantity>, Box<Quantity>),
    /// One over another.
    Ratio(Box<Quantity>, Box<Quantity>),
    /// The one of some whose mean is largest.
    Largest(Vec<Quantity>),
}

/// An experiment that was not run yet, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing(pub String);

/// What has to be run.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Needed {
    /// Peaks of systems.
    pub peaks: BTreeSet<Experiment>,
    /// Whole transactions at a rate.
    pub whole: BTreeSet<WholeExperiment>,
    /// Sites at a rate.
    pub wide: BTreeSet<WideExperiment>,
}

impl Quantity {
    /// The peak of an experiment.
    #[must_use]
    pub fn peak(experiment: &Experiment) -> Quantity {
        Quantity::Of(Metric::Peak, experiment.clone())
    }

    /// What it needs.
    pub fn experiments(&self, into: &mut Needed) {
        match self {
            Quantity::Of(_, experiment) => {
                into.peaks.insert(experiment.clone());
            }
            Quantity::OfWhole(_, experiment) => {
                into.whole.insert(experiment.clone());
            }
            Quantity::OfWide(_, experiment) => {
                into.wide.insert(experiment.clone());
            }
            Quantity::Constant(_) => {}
            Quantity::Difference(left, right) | Quantity::Ratio(left, right) => {
                left.experiments(into);
                right.experiments(into);
            }
            Quantity::Largest(parts) => parts.iter().for_each(|part| part.experiments(into)),
        }
    }

    /// The same of experiments that differ in some ways.
    pub fn vary(&mut self, variations: &[Variation]) {
        match self {
            Quantity::Of(metric, experiment) => {
                for variation in variations {
                    variation.apply_to_metric(metric);
                    variation.apply(experiment);
                }
            }
            Quantity::OfWhole(_, experiment) => {
                variations.iter().for_each(|variation| variation.apply_to_whole(experiment));
            }
            Quantity::OfWide(_, experiment) => {
                variations.iter().for_each(|variation| variation.apply_to_wide(experiment));
            }
            Quantity::Constant(_) => {}
            Quantity::Difference(left, right) | Quantity::Ratio(left, right) => {
                left.vary(variations);
                right.vary(variations);
            }
            Quantity::Largest(parts) => parts.iter_mut().for_each(|part| part.vary(variations)),
        }
    }

    /// Its value for each seed.
    ///
    /// # Errors
    /// If something that it needs was not run with each of `seeds` seeds.
    pub fn samples(&self, results: &Results, seeds: u64) -> Result<Vec<f64>, Missing> {
        match self {
            Quantity::Of(metric, experiment) => (0..seeds)
                .map(|seed| results.get(experiment, seed).map(|figures| figures.get(*metric)))
                .collect::<Option<Vec<f64>>>()
                .ok_or_else(|| Missing(experiment.to_string())),
            Quantity::OfWhole(metric, experiment) => each(experiment, results, seeds, |of| of.get(*metric)),
            Quantity::OfWide(metric, experiment) => each(experiment, results, seeds, |of| of.get(*metric)),
            Quantity::Constant(value) => Ok(vec![*value; usize::try_from(seeds).unwrap_or(usize::MAX)]),
            Quantity::Difference(left, right) => pairwise(left, right, results, seeds, |a, b| a - b),
            Quantity::Ratio(left, right) => pairwise(left, right, results, seeds, |a, b| a / b),
            // Figures are means first: the largest of each seed would be larger than any of them.
            Quantity::Largest(parts) => {
                let all: Vec<Vec<f64>> =
                    parts.iter().map(|part| part.samples(results, seeds)).collect::<Result<_, _>>()?;
                let sum = |samples: &Vec<f64>| samples.iter().sum::<f64>();
                Ok(all.into_iter().max_by(|one, other| sum(one).total_cmp(&sum(other))).unwrap_or_default())
            }
        }
    }
}

/// A figure of an experiment for each seed.
fn each<E: Kept>(
    experiment: &E,
    results: &Results,
    seeds: u64,
    figure: impl Fn(&E::Figures) -> f64,
) -> Result<Vec<f64>, Missing> {
    let rows = E::rows(results);
    let all: Option<Vec<f64>> = (0..seeds).map(|seed| rows.get(experiment, seed).map(&figure)).collect();
    all.ok_or_else(|| Missing(experiment.to_string()))
}

fn pairwise(
    left: &Quantity,
    right: &Quantity,
    results: &Results,
    seeds: u64,
    join: fn(f64, f64) -> f64,
) -> Result<Vec<f64>, Missing> {
    let (left, right) = (left.samples(results, seeds)?, right.samples(results, seeds)?);
    Ok(left.into_iter().zip(right).map(|(left, right)| join(left, right)).collect())
}

impl Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        Quantity::Difference(Box::new(self), Box::new(other))
    }
}

impl Div for Quantity {
    type Output = Quantity;

    fn div(self, other: Quantity) -> Quantity {
        Quantity::Ratio(Box::new(self), Box::new(other))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::{Figures, Mix};
    use crate::results::Results;

    pub(crate) fn of(system: &str, replicas: u16) -> Experiment {
        Experiment::new(Mix::TpcwShopping, system, replicas).expect("the system is there")
    }

    /// Figures with this peak, and nothing else of interest.
    pub(crate) fn with_peak(peak: f64) -> Figures {
        Figures {
            users: 10,
            peak,
            response_ms: 100.0,
            response_p50_ms: 90.0,
            response_p90_ms: 190.0,
            response_p99_ms: 290.0,
            execution_ms: 10.0,
            waiting_ms: 20.0,
            own_waiting_ms: 0.1,
            reading: 0.5,
            writing: 0.25,
            idle: 0.25,
            scheduler_messages: 1_000.0,
            peer_messages: 0.0,
            write_waiting_ms: 20.0,
            shared_accesses: 0.0,
            shared_writes: 0.0,
            refused: 0.0,
            runs: 9,
        }
    }

    /// Results of some experiments, a peak for each seed.
    pub(crate) fn results(peaks: &[(&Experiment, &[f64])]) -> Results {
        let mut results = Results::in_memory();
        for (experiment, peaks) in peaks {
            for (seed, peak) in (0..).zip(*peaks) {
                results.add(experiment, seed, with_peak(*peak)).expect("memory takes all");
            }
        }
        results
    }

    #[test]
    fn expressions_are_computed_seed_by_seed() {
        let (first, second) = (of("conflict_aware", 8), of("eager", 8));
        let results = results(&[(&first, &[6.0, 9.0]), (&second, &[2.0, 3.0])]);
        let [first, second] = [&first, &second].map(Quantity::peak);
        assert_eq!((first.clone() / second.clone()).samples(&results, 2), Ok(vec![3.0, 3.0]));
        assert_eq!((first.clone() - second.clone()).samples(&results, 2), Ok(vec![4.0, 6.0]));
        let largest = Quantity::Largest(vec![second, Quantity::Constant(2.2)]);
        assert_eq!(largest.samples(&results, 2), Ok(vec![2.0, 3.0]));
    }

    #[test]
    fn where_writes_count_who_reads_under_locks_does_not_count_as_writing() {
        let varied = |metric: Metric| {
            let mut quantity = Quantity::Of(metric, of("lock_distributed", 4));
            quantity.vary(&[Variation::WritesCount]);
            quantity
        };
        let expected = |metric: Metric| Quantity::Of(metric, of("lock_distributed", 4));
        assert_eq!(varied(Metric::LockWaiting), expected(Metric::WriteWaiting));
        assert_eq!(varied(Metric::SharedLocks), expected(Metric::SharedWrites));
        assert_eq!(varied(Metric::Waiting), expected(Metric::Waiting));
    }

    #[test]
    fn a_seed_that_was_not_run_is_missing() {
        let first = of("eager", 8);
        let results = results(&[(&first, &[6.0, 9.0])]);
        assert_eq!(Quantity::peak(&first).samples(&results, 3), Err(Missing(first.to_string())));
    }
}
