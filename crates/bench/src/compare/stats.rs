//! Medians, and how sure they are.

use serde::Serialize;

/// The middle of some measurements and an interval that holds the true median with 95 % confidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// How many measurements.
    pub count: usize,
}

impl Spread {
    /// Of any measurements; `None` without any. With fewer than six, no two of them hold the median with 95 %, and the
    /// interval is all of them.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let last = count.checked_sub(1)?;
        let outside = outside(count);
        Some(Spread {
            median: (values[last / 2] + values[count / 2]) / 2.0,
            low: values[outside],
            high: values[last - outside],
            count,
        })
    }
}

/// How many measurements may be left off at each end: each lies above the true median with probability 1/2, so the number that do is
/// binomial (sign test).
fn outside(count: usize) -> usize {
    let mut probability = 0.5_f64.powi(count as i32);
    let mut tail = 0.0;
    for below in 0..count {
        tail += probability;
        if tail > 0.025 {
            return below.saturating_sub(1);
        }
        probability *= (count - below) as f64 / (below + 1) as f64;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_sign_test() {
        // From tables of the binomial distribution: the ranks that are left off at each end.
        for (count, expected) in [(1, 0), (5, 0), (6, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (25, 7)]
        {
            assert_eq!(outside(count), expected, "{count}");
        }
        let spread = Spread::of((1..=11).rev().map(f64::from)).unwrap();
        assert_eq!((spread.median, spread.low, spread.high), (6.0, 2.0, 10.0));
        let even = Spread::of([1.0, 2.0, 3.0, 10.0]).unwrap();
        assert_eq!((even.median, even.low, even.high), (2.5, 1.0, 10.0));
        assert_eq!(Spread::of([f64::NAN]), None);
    }
}
