//! Whether the bookstore still keeps its rules.

use std::fmt;

use onecopy_workload::tpcw::{checks, stock_mismatches, stock_query};
use serde::Serialize;

use crate::connection::Target;
use crate::tpcw::{Options, bookstore};
use crate::{Error, Result};

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

/// Checks the rules of the bookstore that the target holds. Customers should not be at work meanwhile.
///
/// # Errors
/// [`Error::NotLoaded`] if there is none; what the database refuses.
pub async fn check(options: &Options) -> Result<CheckReport> {
    let client = Target::parse(&options.target)?.connect().await?;
    let (population, _) = bookstore::find(&client).await?.ok_or(Error::NotLoaded)?;
    let mut checked = Vec::new();
    for check in checks(population.scale()) {
        let row = bookstore::first_row(&client, &check.sql).await?;
        checked.push(Checked { rule: check.rule.to_owned(), violations: row.first().copied().unwrap_or(0) });
    }
    let stocks = bookstore::rows(&client, &stock_query(population.scale())).await?;
    let stocks = stocks.into_iter().filter_map(|row| <[i64; 3]>::try_from(row).ok());
    let wrong = stock_mismatches(&population, stocks.map(|[item, stock, sold]| (item, stock, sold)));
    checked.push(Checked {
        rule: "an item's stock follows from what was sold: no sale was lost".to_owned(),
        violations: wrong.len() as i64,
    });
    Ok(CheckReport { checked })
}
