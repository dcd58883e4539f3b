//! SELF, shortest execution length first: a replica's load is the sum of the expected times of what is outstanding
//! there (CAS 4.10, design section 5). Expected times are learned by class.

use crate::map::HashMap;

use crate::ids::ClassId;

/// What a statement of a class never seen is expected to take.
const UNKNOWN_NS: f64 = 200_000.0;
/// The weight of the newest measurement.
const GAIN: f64 = 1.0 / 16.0;
/// Classes remembered; beyond it, new ones are counted as unknown.
const CLASSES_MAX: usize = 100_000;

/// Expected execution times by class.
#[derive(Default, Debug)]
pub struct Costs {
    by_class: HashMap<ClassId, f64>,
}

impl Costs {
    /// The expected time of a statement of this class, in nanoseconds.
    #[must_use]
    pub fn expected_ns(&self, class: ClassId) -> f64 {
        self.by_class.get(&class).copied().unwrap_or(UNKNOWN_NS)
    }

    /// Learns from one execution.
    pub fn learn(&mut self, class: ClassId, elapsed_ns: u64) {
        let elapsed = elapsed_ns as f64;
        if let Some(cost) = self.by_class.get_mut(&class) {
            *cost += (elapsed - *cost) * GAIN;
        } else if self.by_class.len() < CLASSES_MAX {
            self.by_class.insert(class, elapsed);
        }
    }

    /// Sets the expected time of a class, as measured by a calibration.
    pub fn preset(&mut self, class: ClassId, expected_ns: u64) {
        self.by_class.insert(class, expected_ns as f64);
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
