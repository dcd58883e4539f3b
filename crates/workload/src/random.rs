//! Seeded random numbers, and the distributions that workloads draw from.
//!
//! Drawn straight from the generator's words, so that a seed means the same course of events whichever version
//! of a distribution library is linked.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The generator that all workloads use.
pub type Random = ChaCha8Rng;

/// A generator for one of many independent streams of a seed: one a user, one a row.
pub fn stream(seed: u64, stream: u64) -> Random {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    random
}

/// A generator of its own for a part of the work, so that how much that part draws does not matter to the rest.
pub fn fork(random: &mut Random) -> Random {
    ChaCha8Rng::seed_from_u64(random.next_u64())
}

/// Uniform in `low..=high`; `low` if the range is empty.
pub fn uniform(random: &mut Random, low: i64, high: i64) -> i64 {
    let span = high.saturating_sub(low).max(0) as u128 + 1;
    low + ((u128::from(random.next_u64()) * span) >> 64) as i64
}

/// True with this probability.
pub fn chance(random: &mut Random, probability: f64) -> bool {
    unit(random) < probability
}

/// Uniform in `[0, 1)`.
pub fn unit(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// One of the choices; panics if there is none.
pub fn choose<'a, T>(random: &mut Random, choices: &'a [T]) -> &'a T {
    &choices[uniform(random, 0, choices.len() as i64 - 1) as usize]
}

/// The non-uniform distribution of TPC-W and TPC-C, without TPC-C's additive constant:
/// `((uniform(0, a) | uniform(x, y)) mod (y - x + 1)) + x`.
pub fn nurand(random: &mut Random, a: i64, x: i64, y: i64) -> i64 {
    nurand_with(random, a, 0, x, y)
}

/// The same with an additive constant `c` in `0..=a`, which decides which values are the frequent ones:
/// `(((uniform(0, a) | uniform(x, y)) + c) mod (y - x + 1)) + x`.
pub fn nurand_with(random: &mut Random, a: i64, c: i64, x: i64, y: i64) -> i64 {
    (((uniform(random, 0, a) | uniform(random, x, y)) + c) % (y - x + 1)) + x
}

/// Negative exponential with this mean, cut off at `max`.
pub fn exponential(random: &mut Random, mean: Duration, max: Duration) -> Duration {
    let u = 1.0 - unit(random);
    Duration::from_secs_f64((-u.ln() * mean.as_secs_f64()).min(max.as_secs_f64()))
}

/// Normal with this mean and standard deviation (Box and Muller).
pub fn normal(random: &mut Random, mean: f64, deviation: f64) -> f64 {
    let (radius, angle) = (1.0 - unit(random), unit(random));
    mean + deviation * (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// Words of small letters, `min` to `max` bytes in all, without a space at either end.
pub fn text(random: &mut Random, min: usize, max: usize) -> String {
    let mut text = String::with_capacity(max);
    push_text(random, min, max, &mut text);
    text
}

/// Appends what [`text`] gives.
pub fn push_text(random: &mut Random, min: usize, max: usize, out: &mut String) {
    let length = uniform(random, min as i64, max as i64) as usize;
    let mut word = 0;
    let mut bits = 0_u64;
    for position in 0..length {
        if position % 12 == 0 {
            bits = random.next_u64();
        }
        let five = (bits & 31) as u8;
        bits >>= 5;
        // 6 of 32 values end a word, which makes words of about five letters.
        if five >= 26 && word > 0 && position + 1 < length {
            out.push(' ');
            word = 0;
        } else {
            out.push(char::from(b'a' + five % 26));
            word += 1;
        }
    }
}

/// A string of so many digits.
pub fn digits(random: &mut Random, count: usize) -> String {
    (0..count).map(|_| char::from(b'0' + uniform(random, 0, 9) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_covers_its_range_evenly() {
        let mut random = stream(1, 0);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[(uniform(&mut random, -4, 5) + 4) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_eq!(uniform(&mut random, 7, 7), 7);
    }

    #[test]
    fn exponential_has_its_mean_and_its_limit() {
        let mut random = stream(2, 0);
        let (mean, max) = (Duration::from_secs(7), Duration::from_secs(70));
        let mut sum = 0.0;
        for _ in 0..200_000 {
            let drawn = exponential(&mut random, mean, max);
            assert!(drawn <= max);
            sum += drawn.as_secs_f64();
        }
        assert!((sum / 200_000.0 - 7.0).abs() < 0.1, "{}", sum / 200_000.0);
    }

    #[test]
    fn nurand_stays_in_range_and_is_skewed() {
        let mut random = stream(3, 0);
        let mut counts = vec![0_u32; 2881];
        for _ in 0..500_000 {
            counts[nurand(&mut random, 1023, 1, 2880) as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        counts.sort_unstable();
        let top: u32 = counts[2592..].iter().sum();
        assert!(top > 150_000, "the most frequent tenth gets {top} of 500000");
    }

    #[test]
    fn text_has_its_length_and_needs_no_escape() {
        let mut random = stream(4, 0);
        for _ in 0..1_000 {
            let text = text(&mut random, 2, 20);
            assert!((2..=20).contains(&text.len()) && text.trim() == text, "{text:?}");
            assert!(text.bytes().all(|byte| byte == b' ' || byte.is_ascii_lowercase()));
        }
    }
}
