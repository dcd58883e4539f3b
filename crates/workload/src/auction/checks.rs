//! What must hold in the database after any run, however many visitors there were.
//!
//! Where a transaction reads what it then writes, two that do not see each other lose one's update: the highest bid, the rating of a
//! user, and what is left of an item would show it.

use super::population::Population;
use crate::site::Check;

/// The rules of an auction site with this population. Comments above the loaded ones are those of visitors.
pub fn checks(population: &Population) -> Vec<Check<Population>> {
    let items = population.scale().items();
    let by_bids = |condition| {
        format!(
            "items i LEFT JOIN (SELECT item_id, count(*) AS bids, max(bid) AS highest FROM bids GROUP BY item_id) b \
             ON b.item_id = i.id WHERE {condition}"
        )
    };
    vec![
        Check::count("an item counts its bids", by_bids("i.nb_of_bids <> coalesce(b.bids, 0)")),
        Check::count(
            "an item's highest bid is the highest of its bids: no bid was lost",
            by_bids("i.max_bid <> coalesce(b.highest, 0)"),
        ),
        Check::judged(
            "what is left of an item follows from what was bought: no purchase was lost",
            format!(
                "SELECT i.id, i.quantity, coalesce(sum(b.qty), 0) FROM items i LEFT JOIN buy_now b ON b.item_id = i.id \
                 WHERE i.id <= {items} GROUP BY i.id, i.quantity"
            ),
            quantity_mismatches,
        ),
        Check::count(
            "a user's rating is the sum of what visitors wrote: no comment was lost",
            format!(
                "users u LEFT JOIN (SELECT to_user_id, sum(rating) AS points FROM comments WHERE id > {items} GROUP BY to_user_id) c \
                 ON c.to_user_id = u.id WHERE u.rating <> coalesce(c.points, 0)"
            ),
        ),
        Check::count(
            "bids, purchases and comments are of an item that exists",
            "(SELECT item_id FROM bids UNION ALL SELECT item_id FROM buy_now UNION ALL SELECT item_id FROM comments) part \
             LEFT JOIN items i ON i.id = part.item_id LEFT JOIN old_items o ON o.id = part.item_id \
             WHERE i.id IS NULL AND o.id IS NULL"
                .to_owned(),
        ),
        Check::count(
            "a user's name is the user's own",
            "(SELECT 1 FROM users GROUP BY nickname HAVING count(*) > 1) same".to_owned(),
        ),
    ]
}

/// The loaded items of which it is not so many left as there must be. A row is an item, what is left of it and what was bought. Who
/// buys more than is left gets the rest, and the page writes down what was asked for.
fn quantity_mismatches(population: &Population, rows: &[Vec<i64>]) -> usize {
    let differs = |row: &&Vec<i64>| match row[..] {
        [item, left, bought] => left != (population.initial_quantity(item) - bought).max(0),
        _ => true,
    };
    rows.iter().filter(differs).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auction::Scale;
    use crate::value::Timestamp;

    #[test]
    fn what_is_left_is_what_was_there_less_what_was_bought_and_never_below_nothing() {
        let population = Population::new(Scale::new(400, 30).unwrap(), 3, Timestamp::default());
        let item = (1..=400).find(|item| population.initial_quantity(*item) == 5).unwrap();
        let mismatches = |left, bought| quantity_mismatches(&population, &[vec![item, left, bought]]);
        assert_eq!([mismatches(5, 0), mismatches(2, 3), mismatches(0, 9)], [0, 0, 0]);
        assert_eq!([mismatches(2, 0), mismatches(-1, 6), mismatches(1, 5)], [1, 1, 1]);
    }
}
