//! Whether a site still keeps its rules.

use std::fmt;

use serde::Serialize;

use super::{Options, Website, find, mark};
use crate::Result;
use crate::connection::Target;

/// The rules and how often each is broken.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Rule by rule.
    pub checked: Vec<Checked>,
}

/// One rule.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// The rule in words.
    pub rule: String,
    /// How often it is broken.
    pub violations: i64,
}

impl CheckReport {
    /// Whether no rule is broken.
    pub fn holds(&self) -> bool {
        self.checked.iter().all(|checked| checked.violations == 0)
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Checked { rule, violations } in &self.checked {
            match violations {
                0 => writeln!(f, "  holds   {rule}")?,
                _ => writeln!(f, "  BROKEN  {rule}: {violations} times")?,
            }
        }
        Ok(())
    }
}

/// Checks the rules of the site that the target holds, of whatever size. Users should not be at work meanwhile.
///
/// # Errors
/// [`Error::NotLoaded`](crate::Error::NotLoaded) if there is none; what the database refuses.
pub async fn check<S: Website>(options: &Options<S>) -> Result<CheckReport> {
    let client = Target::parse(&options.target)?.connect().await?;
    mark::begin(&client, options).await?;
    let population = find(&client, &options.site).await?.population;
    let mut checked = Vec::new();
    for check in S::checks(&population) {
        let rows = mark::rows(&client, &check.sql).await?;
        let violations = check.violations(&population, &rows);
        checked.push(Checked { rule: check.rule.to_owned(), violations });
    }
    mark::end(&client, options).await?;
    Ok(CheckReport { checked })
}
