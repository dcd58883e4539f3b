//! What must hold in a site's database after any run, however many users there were.

/// A rule of a site, and the query that finds what breaks it. `P` is the site's population, what it was loaded with.
pub struct Check<P> {
    /// The rule in words.
    pub rule: &'static str,
    /// Returns rows of integers, for [`Check::violations`].
    pub sql: String,
    judge: Judge<P>,
}

enum Judge<P> {
    /// The query has counted.
    Counted,
    /// What was loaded must be known for it.
    Rows(fn(&P, &[Vec<i64>]) -> usize),
}

impl<P> Check<P> {
    /// A rule that a query can judge by itself: `violations` are what it selects from.
    pub fn count(rule: &'static str, violations: String) -> Check<P> {
        Check { rule, sql: format!("SELECT count(*) FROM {violations}"), judge: Judge::Counted }
    }

    /// A rule for which what the query finds is compared with what was loaded; `judge` says how often it is broken.
    pub fn judged(rule: &'static str, sql: String, judge: fn(&P, &[Vec<i64>]) -> usize) -> Check<P> {
        Check { rule, sql, judge: Judge::Rows(judge) }
    }

    /// How often the rule is broken, by the rows that the query found.
    pub fn violations(&self, population: &P, rows: &[Vec<i64>]) -> i64 {
        match self.judge {
            // Without an answer nobody knows that it holds.
            Judge::Counted => rows.first().and_then(|row| row.first()).copied().unwrap_or(1),
            Judge::Rows(judge) => judge(population, rows) as i64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_nobody_has_counted_for_is_not_said_to_hold() {
        let rule = Check::<()>::count("none is left", "nothing".to_owned());
        assert_eq!([rule.violations(&(), &[vec![0]]), rule.violations(&(), &[vec![3]])], [0, 3]);
        assert_eq!(rule.violations(&(), &[]), 1);
    }
}
