//! SELF, shortest execution length first: a replica's load is the sum of the expected times of what is outstanding
//! there (CAS 4.10, design section 5). Expected times are learned by class.

use crate::map::HashMap;

use crate::ids::ClassId;

/// What a statement of a class never seen is expected to take.
const UNKNOWN_NS: f64 = 200_000.0;
/// The weight of the newest measurement is one by the number of measurements, and then one by this: a statement that once
/// stood still for milliseconds must not make its whole class look like much work.
const REMEMBERED: u32 = 64;
/// Classes remembered; beyond it, new ones are counted as unknown.
const CLASSES_MAX: usize = 100_000;

/// Expected execution times by class.
#[derive(Default, Debug)]
pub struct Costs {
    by_class: HashMap<ClassId, Cost>,
}

#[derive(Clone, Copy, Debug)]
struct Cost {
    expected_ns: f64,
    /// Measurements in it, up to `REMEMBERED`.
    measured: u32,
}

impl Costs {
    /// The expected time of a statement of this class, in nanoseconds.
    #[must_use]
    pub fn expected_ns(&self, class: ClassId) -> f64 {
        self.by_class.get(&class).map_or(UNKNOWN_NS, |cost| cost.expected_ns)
    }

    /// Learns from one execution.
    pub fn learn(&mut self, class: ClassId, elapsed_ns: u64) {
        let elapsed = elapsed_ns as f64;
        if let Some(cost) = self.by_class.get_mut(&class) {
            cost.measured = REMEMBERED.min(cost.measured + 1);
            cost.expected_ns += (elapsed - cost.expected_ns) / f64::from(cost.measured);
        } else if self.by_class.len() < CLASSES_MAX {
            self.by_class.insert(class, Cost { expected_ns: elapsed, measured: 1 });
        }
    }

    /// Sets the expected time of a class, as measured by a calibration.
    pub fn preset(&mut self, class: ClassId, expected_ns: u64) {
        self.by_class.insert(class, Cost { expected_ns: expected_ns as f64, measured: REMEMBERED });
    }
}

/// The outstanding work of one replica.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Load {
    outstanding_ns: f64,
    count: u32,
}

impl Load {
    /// A statement expected to take this long was sent.
    pub fn add(&mut self, expected_ns: f64) {
        self.outstanding_ns += expected_ns;
        self.count += 1;
    }

    /// It was answered (or lost).
    pub fn remove(&mut self, expected_ns: f64) {
        self.count = self.count.saturating_sub(1);
        // With nothing outstanding the sum is zero by definition: rounding must not pile up.
        self.outstanding_ns =
            if self.count == 0 { 0.0 } else { (self.outstanding_ns - expected_ns).max(0.0) };
    }

    /// What a statement that took `elapsed_ns` cost the replica, about, in nanoseconds: its share among those that were still
    /// outstanding when it was answered.
    ///
    /// They shared the replica, or its processors: so the sum over all that is outstanding is about the time after which it
    /// will be done with them, whether it executes them in turn or side by side. (SELF as published adds up times that were
    /// measured on an idle machine, CAS 4.10. Times measured under load hold the waiting for the others already.)
    #[must_use]
    pub fn share_of_one_more(&self, elapsed_ns: u64) -> u64 {
        elapsed_ns / (u64::from(self.count) + 1)
    }

    /// The sum of the expected times of what is outstanding, in nanoseconds.
    #[must_use]
    pub fn outstanding_ns(&self) -> f64 {
        self.outstanding_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: ClassId = ClassId(1);

    #[test]
    fn a_cost_is_the_mean_of_few_measurements_and_follows_many() {
        let mut costs = Costs::default();
        assert_eq!(costs.expected_ns(CLASS), UNKNOWN_NS);
        for (elapsed, mean) in [(4_000, 4_000.0), (1_000, 2_500.0), (1_000, 2_000.0)] {
            costs.learn(CLASS, elapsed);
            assert_eq!(costs.expected_ns(CLASS), mean);
        }
        for _ in 0..1_000 {
            costs.learn(CLASS, 10_000);
        }
        assert!((costs.expected_ns(CLASS) - 10_000.0).abs() < 1.0);
    }

    #[test]
    fn one_that_stood_still_moves_a_preset_cost_by_a_64th() {
        let mut costs = Costs::default();
        costs.preset(CLASS, 20_000);
        costs.learn(CLASS, 1_300_000);
        assert_eq!(costs.expected_ns(CLASS), 40_000.0);
    }
}
