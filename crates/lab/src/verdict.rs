//! Whether what a claim says holds (docs/laboratory.md, *When a claim holds*).

use crate::quantity::{Missing, Needed, Quantity};
use crate::questions::Part;
use crate::results::Results;
use crate::statistics::Estimate;

/// How far a ratio or a level may be from the paper's.
const NEAR: f64 = 0.25;

/// How far from 1 a ratio of what is about equal may be.
const EQUAL: f64 = 0.05;

/// With fewer seeds than this nothing can be said of intervals: what differs by so much counts as different.
const SEEDS_FOR_INTERVALS: u64 = 3;
const CLEARLY: f64 = 0.02;

/// What must be true of quantities.
#[derive(Clone, PartialEq, Debug)]
pub enum Test {
    /// The first is larger, seed by seed: the difference's interval lies above 0.
    More(Quantity, Quantity),
    /// The quantity is within 25 % of the paper's value.
    Near(Quantity, f64),
    /// A ratio is within 25 % of the paper's, and its interval lies on the same side of 1.
    RatioNear(Quantity, f64),
    /// The ratio of both means is within 5 % of 1.
    Equal(Quantity, Quantity),
    /// The mean is at most this.
    AtMost(Quantity, f64),
    /// The mean is at least this.
    AtLeast(Quantity, f64),
    /// Whoever has more of the first by over 5 % has more of the second, pair by pair.
    SameOrder(Vec<Quantity>, Vec<Quantity>),
    /// Whoever has more of the first by over 5 % has less of the second, pair by pair.
    Opposed(Vec<Quantity>, Vec<Quantity>),
    /// Something that was computed without experiments: whether it is so, and what was found.
    Known(bool, String),
}

/// What came of a part of a claim.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// What was looked at.
    pub label: String,
    /// What the paper says of it, if it gives a number.
    pub paper: Option<f64>,
    /// What came out here.
    pub ours: String,
    /// Whether it holds; `None` if something was not run.
    pub holds: Option<bool>,
}

/// What came of a claim.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// Part by part.
    pub outcomes: Vec<Outcome>,
}

impl Verdict {
    /// Whether all of it holds; `None` if that is not known.
    #[must_use]
    pub fn holds(&self) -> Option<bool> {
        if self.outcomes.iter().any(|outcome| outcome.holds == Some(false)) {
            return Some(false);
        }
        let known = !self.outcomes.is_empty() && self.outcomes.iter().all(|outcome| outcome.holds.is_some());
        known.then_some(true)
    }
}

/// Judges a claim by its parts.
#[must_use]
pub fn judge(parts: &[Part], results: &Results, seeds: u64) -> Verdict {
    Verdict { outcomes: parts.iter().map(|part| outcome(part, results, seeds)).collect() }
}

impl Test {
    /// What has to be run for it.
    pub fn experiments(&self, into: &mut Needed) {
        // There is one list of what a test looks at.
        self.clone().quantities_mut().into_iter().for_each(|quantity| quantity.experiments(into));
    }

    /// What it looks at.
    pub(crate) fn quantities_mut(&mut self) -> Vec<&mut Quantity> {
        match self {
            Test::More(left, right) | Test::Equal(left, right) => vec![left, right],
            Test::Near(quantity, _) | Test::RatioNear(quantity, _) => vec![quantity],
            Test::AtMost(quantity, _) | Test::AtLeast(quantity, _) => vec![quantity],
            Test::SameOrder(left, right) | Test::Opposed(left, right) => {
                left.iter_mut().chain(right).collect()
            }
            Test::Known(..) => Vec::new(),
        }
    }
}

fn outcome(part: &Part, results: &Results, seeds: u64) -> Outcome {
    let paper = match &part.test {
        Test::Near(_, value) | Test::RatioNear(_, value) => Some(*value),
        _ => None,
    };
    let (holds, ours) = match decide(&part.test, results, seeds) {
        Ok((holds, ours)) => (Some(holds), ours),
        Err(Missing(experiment)) => (None, format!("not run: {experiment}")),
    };
    Outcome { label: part.label.clone(), paper, ours, holds }
}

fn decide(test: &Test, results: &Results, seeds: u64) -> Result<(bool, String), Missing> {
    let estimate = |quantity: &Quantity| -> Result<Estimate, Missing> {
        let samples = quantity.samples(results, seeds)?;
        Ok(Estimate::of(&samples).unwrap_or(Estimate { mean: f64::NAN, half_width: f64::NAN, count: 0 }))
    };
    Ok(match test {
        Test::More(left, right) => {
            let difference = estimate(&(left.clone() - right.clone()))?;
            let [left, right] = [estimate(left)?, estimate(right)?];
            let is_more = if seeds < SEEDS_FOR_INTERVALS {
                difference.mean > right.mean.abs() * CLEARLY
            } else {
                difference.is_positive()
            };
            (is_more, format!("{} against {}", number(left.mean), number(right.mean)))
        }
        Test::Near(quantity, paper) => {
            let ours = estimate(quantity)?;
            (is_near(ours.mean, *paper), with_interval(ours))
        }
        Test::RatioNear(quantity, paper) => {
            let ours = estimate(quantity)?;
            let beyond_one = if *paper > 1.0 { ours.mean - 1.0 } else { 1.0 - ours.mean };
            let is_directed =
                beyond_one > if seeds < SEEDS_FOR_INTERVALS { CLEARLY } else { ours.half_width };
            (is_near(ours.mean, *paper) && is_directed, with_interval(ours))
        }
        Test::Equal(left, right) => {
            let ratio = estimate(left)?.mean / estimate(right)?.mean;
            // Just 5 % is still equal, whatever rounding makes of it.
            ((ratio - 1.0).abs() <= EQUAL + 1e-9, number(ratio))
        }
        Test::AtMost(quantity, bound) => {
            let ours = estimate(quantity)?;
            (ours.mean <= *bound, with_interval(ours))
        }
        Test::AtLeast(quantity, bound) => {
            let ours = estimate(quantity)?;
            (ours.mean >= *bound, with_interval(ours))
        }
        Test::SameOrder(left, right) | Test::Opposed(left, right) => {
            let means = |quantities: &[Quantity]| -> Result<Vec<f64>, Missing> {
                quantities.iter().map(|quantity| Ok(estimate(quantity)?.mean)).collect()
            };
            let (left, right) = (means(left)?, means(right)?);
            let direction = if matches!(test, Test::SameOrder(..)) { 1.0 } else { -1.0 };
            let (pairs, agreeing) = agreement(&left, &right, direction);
            (
                // Where all are about equal, there is no order.
                pairs > 0 && agreeing == pairs,
                format!("{agreeing} of {pairs} pairs: {} and {}", numbers(&left), numbers(&right)),
            )
        }
        Test::Known(holds, found) => (*holds, found.clone()),
    })
}

/// How many pairs differ in the first by more than what is about equal, and how many of them differ in the second in the
/// given direction.
fn agreement(left: &[f64], right: &[f64], direction: f64) -> (usize, usize) {
    let places = 0..left.len().min(right.len());
    let pairs = places.clone().flat_map(|one| places.clone().map(move |other| (one, other)));
    let ordered = pairs.filter(|&(less, more)| left[more] > left[less] * (1.0 + EQUAL));
    let (all, agreeing): (Vec<_>, Vec<_>) =
        ordered.map(|(less, more)| ((), (right[more] - right[less]) * direction > 0.0)).unzip();
    (all.len(), agreeing.into_iter().filter(|agrees| *agrees).count())
}

fn numbers(values: &[f64]) -> String {
    values.iter().copied().map(number).collect::<Vec<_>>().join(", ")
}

fn is_near(ours: f64, paper: f64) -> bool {
    (ours - paper).abs() <= NEAR * paper.abs()
}

fn with_interval(estimate: Estimate) -> String {
    if estimate.half_width.is_finite() {
        format!("{} ± {}", number(estimate.mean), number(estimate.half_width))
    } else {
        number(estimate.mean)
    }
}

/// Three digits, as far as they mean anything.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::tests::{of, results};

    fn holds(test: Test, results: &Results, seeds: u64) -> Option<bool> {
        judge(&[Part { label: String::new(), test }], results, seeds).holds()
    }

    #[test]
    fn a_direction_needs_an_interval_on_the_claimed_side() {
        let (first, second) = (of("conflict_aware", 8), of("eager", 8));
        let [left, right] = [&first, &second].map(Quantity::peak);
        let more = |firsts: &[f64], seconds: &[f64]| {
            let results = results(&[(&first, firsts), (&second, seconds)]);
            holds(Test::More(left.clone(), right.clone()), &results, firsts.len() as u64)
        };
        assert_eq!(more(&[10.0, 11.0, 12.0], &[9.0, 10.1, 10.9]), Some(true));
        assert_eq!(more(&[10.0, 11.0, 12.0], &[9.0, 13.0, 9.0]), Some(false), "too much noise");
        assert_eq!(more(&[9.0, 10.0, 11.0], &[10.0, 11.0, 12.0]), Some(false), "the other way round");
        assert_eq!(more(&[10.0], &[9.7]), Some(true), "one seed has no interval");
        assert_eq!(more(&[10.0], &[9.9]), Some(false), "and small differences are none");
    }

    #[test]
    fn a_ratio_is_near_the_papers_and_on_its_side_of_one() {
        let (first, second) = (of("conflict_aware", 8), of("eager", 8));
        let ratio = Quantity::peak(&first) / Quantity::peak(&second);
        let near = |ours: [f64; 3], paper: f64| {
            let results = results(&[(&first, &ours), (&second, &[1.0, 1.0, 1.0])]);
            holds(Test::RatioNear(ratio.clone(), paper), &results, 3)
        };
        assert_eq!(near([2.9, 2.91, 2.9], 2.4), Some(true));
        assert_eq!(near([3.1, 3.11, 3.1], 2.4), Some(false));
        assert_eq!(near([0.98, 0.98, 0.98], 1.1), Some(false), "within 25 %, but on the other side");
        assert_eq!(near([0.8, 0.81, 0.8], 0.84), Some(true));
        assert_eq!(near([1.0, 1.2, 1.1], 1.1), Some(false), "it might be on the other side");
    }

    #[test]
    fn what_is_about_equal_differs_by_five_percent_at_most() {
        let (first, second) = (of("conflict_aware", 8), of("eager", 8));
        let equal = |ours: f64| {
            let results = results(&[(&first, &[ours]), (&second, &[1.0])]);
            holds(Test::Equal(Quantity::peak(&first), Quantity::peak(&second)), &results, 1)
        };
        assert_eq!((equal(1.05), equal(0.95), equal(1.06)), (Some(true), Some(true), Some(false)));
    }

    #[test]
    fn a_claim_holds_if_each_part_does_and_is_open_while_something_is_missing() {
        let first = of("eager", 8);
        let results = results(&[(&first, &[2.0])]);
        let part = |bound| Part { label: String::new(), test: Test::AtLeast(Quantity::peak(&first), bound) };
        let open = Part { label: String::new(), test: Test::AtLeast(Quantity::peak(&of("eager", 16)), 0.0) };
        assert_eq!(judge(&[part(1.0), part(2.0)], &results, 1).holds(), Some(true));
        assert_eq!(judge(&[part(1.0), part(3.0)], &results, 1).holds(), Some(false));
        assert_eq!(judge(&[part(1.0), open.clone()], &results, 1).holds(), None);
        assert_eq!(
            judge(&[part(3.0), open], &results, 1).holds(),
            Some(false),
            "what is missing cannot save it"
        );
        assert_eq!(judge(&[], &results, 1).holds(), None);
    }

    #[test]
    fn orders_are_compared_pair_by_pair_where_there_is_a_difference() {
        assert_eq!(agreement(&[1.0, 2.0, 3.0], &[5.0, 6.0, 7.0], 1.0), (3, 3));
        assert_eq!(agreement(&[1.0, 2.0, 3.0], &[5.0, 7.0, 6.0], 1.0), (3, 2));
        assert_eq!(agreement(&[1.0, 2.0, 3.0], &[7.0, 6.0, 5.0], -1.0), (3, 3));
        assert_eq!(agreement(&[1.0, 1.04, 3.0], &[6.0, 5.0, 7.0], 1.0), (2, 2), "1 and 1.04 are about equal");
        let first = of("eager", 8);
        let alike = vec![Quantity::peak(&first), Quantity::peak(&first)];
        let results = results(&[(&first, &[2.0])]);
        assert_eq!(holds(Test::SameOrder(alike.clone(), alike), &results, 1), Some(false), "of nothing");
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([0.123, 1.234, 12.34, 123.4].map(number), ["0.12", "1.23", "12.3", "123"]);
    }
}
