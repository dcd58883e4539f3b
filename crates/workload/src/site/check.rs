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
            Judge::Counted => rows.first().and_then(|row| row.first()).copied().unwrap_or(0),
            Judge::Rows(judge) => judge(population, rows) as i64,
        }
    }
}
