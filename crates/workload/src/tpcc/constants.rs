//! The constants C of NURand, and what is drawn with them.

use super::population::Scale;
use super::rules::rules;
use crate::random::{Random, nurand_with, uniform};

/// The constants C of NURand. A database keeps them: those who ask must favour the customers and items of those who asked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constants {
    load_last_name: i64,
    last_name: i64,
    customer: i64,
    item: i64,
}

impl Constants {
    /// Draws them. Names that are asked for must not be favoured in the way of those that were loaded.
    pub fn draw(random: &mut Random) -> Constants {
        let rules = &rules().random;
        let load_last_name = uniform(random, 0, rules.a_last_name);
        let [near, far] = rules.last_name_distance;
        let is_allowed = |last_name: &i64| {
            let distance = (last_name - load_last_name).abs();
            (near..=far).contains(&distance) && !rules.last_name_distance_not.contains(&distance)
        };
        let allowed: Vec<i64> = (0..=rules.a_last_name).filter(is_allowed).collect();
        Constants {
            load_last_name,
            last_name: *crate::random::choose(random, &allowed),
            customer: uniform(random, 0, rules.a_customer),
            item: uniform(random, 0, rules.a_item),
        }
    }

    /// The number of a last name that is loaded, of all that there are.
    pub(super) fn loaded_last_name(&self, random: &mut Random) -> i64 {
        let rules = &rules().random;
        nurand_with(random, rules.a_last_name, self.load_last_name, 0, rules.last_names - 1)
    }

    /// The number of a last name that is asked for; each district has a customer of that name.
    pub(super) fn last_name(&self, random: &mut Random, scale: Scale) -> i64 {
        nurand_with(random, rules().random.a_last_name, self.last_name, 0, scale.last_names() - 1)
    }

    /// A customer's number.
    pub(super) fn customer(&self, random: &mut Random, scale: Scale) -> i64 {
        nurand_with(random, rules().random.a_customer, self.customer, 1, scale.customers())
    }

    /// An item.
    pub(super) fn item(&self, random: &mut Random, scale: Scale) -> i64 {
        nurand_with(random, rules().random.a_item, self.item, 1, scale.items())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    #[test]
    fn constants_keep_the_rule_whatever_was_drawn_for_loading() {
        for seed in 0..2_000 {
            let constants = Constants::draw(&mut stream(seed, 0));
            let distance = (constants.last_name - constants.load_last_name).abs();
            assert!((65..=119).contains(&distance) && distance != 96 && distance != 112, "{constants:?}");
            assert!((0..=1_023).contains(&constants.customer) && (0..=8_191).contains(&constants.item));
        }
    }

    #[test]
    fn constants_move_what_is_frequent() {
        let scale = Scale::new(1, 3_000).unwrap();
        let most = |customer| {
            let constants = Constants { customer, ..Constants::draw(&mut stream(1, 0)) };
            let mut counts = vec![0; 3_001];
            let random = &mut stream(2, 0);
            (0..200_000).for_each(|_| counts[constants.customer(random, scale) as usize] += 1);
            assert_eq!(counts[0], 0);
            (0..3_001).max_by_key(|number| counts[*number]).unwrap_or_default()
        };
        assert_ne!(most(0), most(500));
    }
}
