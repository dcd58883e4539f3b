//! Random numbers from a seed: one stream a purpose, so that more faults do not change what clients ask.

use rand::{RngCore as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// What a stream of random numbers is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Purpose {
    /// The shape of a scenario.
    Scenario,
    /// What clients do.
    Clients,
    /// How long things take.
    Timing,
    /// What breaks, and when.
    Faults,
    /// Choices that the driver is free to make.
    Driver,
    /// Who waits for a replica without a transaction.
    Outsiders,
    /// Who joins and leaves, and when.
    Membership,
    /// What breaks, and when, where everything does.
    Torture,
    /// How the protocol is tuned.
    Tuning,
}

/// One stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream of a seed for a purpose.
    #[must_use]
    pub fn new(seed: u64, purpose: Purpose) -> Random {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(purpose as u64);
        Random(random)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product is uniform up to a bias of bound / 2^64, and the same on every platform.
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `min` to `max`, both possible; `min` if `max` is less.
    pub fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max.saturating_sub(min) + 1)
    }

    /// True in so many of 1,000 cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of these, all equally likely.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// One of these, likely in proportion to its weight; `None` if no weight is above 0.
    pub fn weighted<T: Copy>(&mut self, choices: &[(u32, T)]) -> Option<T> {
        let total: u64 = choices.iter().map(|(weight, _)| u64::from(*weight)).sum();
        let mut at = self.below(total);
        for (weight, choice) in choices {
            match at.checked_sub(u64::from(*weight)) {
                Some(rest) => at = rest,
                None => return Some(*choice),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let draw = |purpose| {
            let mut random = Random::new(7, purpose);
            [random.below(1 << 40), random.below(1 << 40)]
        };
        assert_eq!(draw(Purpose::Clients), draw(Purpose::Clients));
        assert_ne!(draw(Purpose::Clients), draw(Purpose::Faults));
    }

    #[test]
    fn weights_of_zero_are_never_chosen() {
        let mut random = Random::new(1, Purpose::Driver);
        for _ in 0..100 {
            assert_eq!(random.weighted(&[(0, 'a'), (2, 'b'), (0, 'c')]), Some('b'));
        }
        assert_eq!(random.weighted(&[(0, 'a')]), None);
    }
}
