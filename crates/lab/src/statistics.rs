//! Means over seeds, and between which bounds the true ones lie.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// A mean with its 95 % interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The mean of the samples.
    pub mean: f64,
    /// Half the interval's width, by Student's t; infinite for a single sample.
    pub half_width: f64,
    /// How many samples.
    pub count: usize,
}

impl Estimate {
    /// That of some samples; `None` of none.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Estimate> {
        let count = samples.len();
        let mean = samples.iter().sum::<f64>() / count as f64;
        let freedom = count.checked_sub(1)? as f64;
        let half_width = StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| {
            let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / freedom;
            t.inverse_cdf(0.975) * (variance / count as f64).sqrt()
        });
        Some(Estimate { mean, half_width, count })
    }

    /// Whether all of the interval lies above 0.
    #[must_use]
    pub fn is_positive(&self) -> bool {
        self.mean - self.half_width > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        // t for 4 degrees of freedom is 2.776; the sample deviation of 1 to 5 is 1.5811.
        let estimate = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("there are samples");
        assert_eq!((estimate.mean, estimate.count), (3.0, 5));
        assert!((estimate.half_width - 2.776 * 1.5811 / 5_f64.sqrt()).abs() < 1e-3, "{estimate:?}");
        assert!(estimate.is_positive());
    }

    #[test]
    fn one_sample_proves_nothing() {
        let estimate = Estimate::of(&[7.0]).expect("there is a sample");
        assert_eq!(estimate.mean, 7.0);
        assert!(estimate.half_width.is_infinite() && !estimate.is_positive());
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn equal_samples_leave_no_doubt() {
        let estimate = Estimate::of(&[0.5; 5]).expect("there are samples");
        assert_eq!(estimate.half_width, 0.0);
        assert!(estimate.is_positive());
        assert!(!Estimate::of(&[0.0; 5]).expect("there are samples").is_positive());
    }
}
