//! Which reads are going to be followed by a write, in their transaction, of what they read of a table (design 3.2).
//!
//! A transaction's prefix is the form of its BEGIN and the classes of its statements so far. For each prefix that
//! ends in a read, and each table read there, we keep a score: up when the transaction went on to write what it had read of
//! the table, down when it ended without doing so.

use crate::map::HashMap;

use crate::ids::ClassId;
use crate::item::TableId;

const SCORE_MAX: i8 = 8;
const HIT: i8 = 4;
/// Prefixes remembered; when full, all scores are forgotten and learned anew.
const PREFIXES_MAX: usize = 200_000;

/// A transaction's statements so far, hashed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix(u64);

impl Prefix {
    /// The prefix of a transaction that has begun in this form.
    #[must_use]
    pub fn of_form(form: u64) -> Prefix {
        Prefix(form ^ 0x6a09_e667_f3bc_c908)
    }

    /// This prefix followed by a statement of a class.
    #[must_use]
    pub fn then(self, class: ClassId) -> Prefix {
        Prefix((self.0.rotate_left(7) ^ class.0).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// What the last statement of this prefix does to one table.
    #[must_use]
    pub fn on(self, table: TableId) -> Prefix {
        Prefix((self.0.rotate_left(23) ^ table.0).wrapping_mul(0xd134_2543_de82_ef95))
    }
}

/// The scores of prefixes.
#[derive(Default, Debug)]
pub struct Predictor {
    scores: HashMap<Prefix, i8>,
}

impl Predictor {
    /// Whether the read that ends this prefix, on a table, should take that table's items in update mode at once.
    #[must_use]
    pub fn will_write(&self, prefix: Prefix) -> bool {
        self.scores.get(&prefix).is_some_and(|score| *score > 0)
    }

    /// The transaction wrote what the read that ends this prefix had read of its table.
    pub fn hit(&mut self, prefix: Prefix) {
        if self.scores.len() >= PREFIXES_MAX {
            self.scores.clear();
        }
        let score = self.scores.entry(prefix).or_insert(0);
        *score = (*score + HIT).min(SCORE_MAX);
    }

    /// The transaction ended without writing it.
    pub fn miss(&mut self, prefix: Prefix) {
        if let Some(score) = self.scores.get_mut(&prefix) {
            *score = (*score - 1).max(-1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hit_is_learned_and_repeated_misses_unlearn_it() {
        let mut predictor = Predictor::default();
        let prefix = Prefix::of_form(1).then(ClassId(5));
        assert!(!predictor.will_write(prefix));
        predictor.hit(prefix);
        assert!(predictor.will_write(prefix));
        for _ in 0..4 {
            predictor.miss(prefix);
        }
        assert!(!predictor.will_write(prefix));
        assert!(!predictor.will_write(Prefix::of_form(2).then(ClassId(5))), "another form of BEGIN");
    }
}
