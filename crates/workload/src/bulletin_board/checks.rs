//! What must hold in the database after any run, however many visitors there were.
//!
//! Pages of the board have no transactions: one that was cut off half way, since a statement failed for good, leaves the rest of what
//! it keeps twice as it was, and that looks like a lost update. So the rules say something of runs without failed pages.

use std::collections::HashMap;

use super::population::{Comment, Population};
use crate::site::Check;

/// The rules of a bulletin board with this population.
pub fn checks(_population: &Population) -> Vec<Check<Population>> {
    let miscounted = |table| {
        format!(
            "SELECT 1 FROM {table} c LEFT JOIN (SELECT parent, count(*) AS replies FROM {table} GROUP BY parent) r \
             ON r.parent = c.id WHERE c.childs <> coalesce(r.replies, 0)"
        )
    };
    vec![
        Check::count(
            "a comment counts its replies: none was lost",
            format!("({} UNION ALL {}) wrong", miscounted("comments"), miscounted("old_comments")),
        ),
        Check::judged(
            "a user's rating is what moderators gave to the user's comments: no moderation was lost",
            "SELECT u.id, u.rating, coalesce(c.points, 0) FROM users u LEFT JOIN (SELECT writer, sum(rating) AS points \
             FROM (SELECT writer, rating FROM comments UNION ALL SELECT writer, rating FROM old_comments) every \
             GROUP BY writer) c ON c.writer = u.id"
                .to_owned(),
            rating_mismatches,
        ),
        Check::count(
            "a comment is by a user, of a story, and answers that or a comment",
            "(SELECT writer, story_id, parent FROM comments UNION ALL SELECT writer, story_id, parent FROM old_comments) c \
             LEFT JOIN users u ON u.id = c.writer \
             LEFT JOIN (SELECT id FROM stories UNION ALL SELECT id FROM old_stories) s ON s.id = c.story_id \
             LEFT JOIN (SELECT id FROM comments UNION ALL SELECT id FROM old_comments) p ON p.id = c.parent \
             WHERE u.id IS NULL OR s.id IS NULL OR (c.parent <> 0 AND p.id IS NULL)"
                .to_owned(),
        ),
        Check::count(
            "stories and submissions are by a user and in a category",
            "(SELECT writer, category FROM stories UNION ALL SELECT writer, category FROM old_stories \
             UNION ALL SELECT writer, category FROM submissions) s LEFT JOIN users u ON u.id = s.writer \
             LEFT JOIN categories c ON c.id = s.category WHERE u.id IS NULL OR c.id IS NULL"
                .to_owned(),
        ),
        Check::count(
            "a user's name is the user's own",
            "(SELECT 1 FROM users GROUP BY nickname HAVING count(*) > 1) same".to_owned(),
        ),
    ]
}

/// The users whose rating does not follow from how much those of their comments have changed. A row is a user, the user's rating and
/// the sum of the user's comments' ratings.
fn rating_mismatches(population: &Population, rows: &[Vec<i64>]) -> usize {
    let mut loaded: HashMap<i64, i64> = HashMap::new();
    for story in 1..=population.scale().stories() {
        for Comment { writer, rating, .. } in population.comments(story).0 {
            *loaded.entry(writer).or_default() += rating;
        }
    }
    let differs = |row: &&Vec<i64>| match row[..] {
        [user, rating, points] => points - loaded.get(&user).copied().unwrap_or(0) != rating,
        _ => true,
    };
    rows.iter().filter(differs).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bulletin_board::Scale;
    use crate::value::Timestamp;

    #[test]
    fn a_rating_moves_with_those_of_the_comments() {
        let population = Population::new(Scale::new(1, 20).unwrap(), 3, Timestamp::default());
        let comments = (1..=20).flat_map(|story| population.comments(story).0);
        let points: i64 = comments.filter(|comment| comment.writer == 7).map(|comment| comment.rating).sum();
        let mismatches = |rating, points| rating_mismatches(&population, &[vec![7, rating, points]]);
        assert_eq!([mismatches(0, points), mismatches(-2, points - 2)], [0, 0]);
        assert_eq!([mismatches(1, points), mismatches(0, points + 1)], [1, 1]);
    }
}
