//! Web sites as data: what the auction site and the bulletin board have in common, and some of it with the bookstore.
//!
//! * [`Transitions`]: which page follows which, with the way back.
//! * [`Plan`]: what a page does with the results of its statements, read from the catalogue's data.
//! * [`Visitor`]: an emulated user of any [`Site`], as a [`Client`](crate::Client).
//! * [`Rows`](SiteRows): the rows of a site, table by table, for whoever loads them.
//! * [`Check`]: a rule that must hold in the database after any run.

mod check;
mod plan;
mod rows;
mod transitions;
mod visitor;

pub use check::Check;
pub use plan::{Plan, PlanError};
pub use rows::{Line, SiteRows};
pub use transitions::{Transitions, TransitionsError};
pub use visitor::{Ids, Site, Vars, Visitor};

/// A user's name on a site.
#[must_use]
pub fn nickname(user: i64) -> String {
    format!("user{user}")
}

/// A user's password.
#[must_use]
pub fn password(user: i64) -> String {
    format!("secret{user}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::catalogue::{Catalogue, Class};
    use crate::client::{Action, Client, Reply, Rows};
    use crate::value::{Timestamp, Value};

    /// A column of published shares in percent, by interaction.
    pub(crate) fn published_shares(csv: &str, column: &str, catalogue: &Catalogue) -> Vec<f64> {
        let place = csv.lines().next().unwrap().split(',').position(|name| name == column).unwrap();
        let share = |id: &str| {
            let line = csv.lines().find(|line| line.split(',').next() == Some(id)).unwrap();
            line.split(',').nth(place).unwrap().parse().unwrap()
        };
        catalogue.interactions.iter().map(|interaction| share(&interaction.id)).collect()
    }

    /// Of the interactions that reach the database, the share of those that write.
    pub(crate) fn write_share(catalogue: &Catalogue, shares: &[f64]) -> f64 {
        let (mut writes, mut all) = (0.0, 0.0);
        for (interaction, share) in catalogue.interactions.iter().zip(shares) {
            let transactions = &catalogue.transactions[interaction.transactions.clone()];
            let is_write = transactions.iter().any(|transaction| !transaction.writes.is_empty());
            assert_eq!(is_write, interaction.class == Class::Order, "{}", interaction.id);
            all += if transactions.is_empty() { 0.0 } else { *share };
            writes += if is_write { *share } else { 0.0 };
        }
        writes / all
    }

    pub(crate) fn vars(names: &'static [&'static str]) -> Vars {
        Vars::of(&names.iter().map(|name| (*name, Value::Null)).collect::<Vec<_>>())
    }

    /// Lets a visitor walk through so many pages of a site that always finds one row or two of small numbers, or none.
    /// Returns which statements ran, and what was done as a hash.
    pub(crate) fn walk<S: Site>(mut visitor: Visitor<S>, pages: u32) -> (Vec<bool>, u64) {
        let mut used = Vec::new();
        let mut trace = 0_u64;
        let mut reply = Reply::Done;
        let (mut shown, mut number) = (0, 0_u64);
        while shown < pages {
            let action = visitor.next(Timestamp::default(), reply);
            for byte in format!("{action:?}").bytes() {
                trace = (trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            reply = match action {
                Action::Think { .. } => {
                    shown += 1;
                    Reply::Done
                }
                Action::Execute(statement, params) => {
                    let place = usize::from(statement.0);
                    used.resize(used.len().max(place + 1), false);
                    used[place] = true;
                    assert!(params.iter().filter(|param| **param == Value::Null).count() <= 1, "{params:?}");
                    number += 1;
                    let row = |of: i64| (0..13).map(|column| Value::Int((of + column) % 3)).collect();
                    // Not in step with the statements of any page.
                    let rows = (number * number / 7) % 5;
                    Reply::Rows(Rows::returned(
                        (0..rows as i64 / 2).map(|of| row(of + number as i64)).collect(),
                    ))
                }
                _ => Reply::Done,
            };
        }
        (used, trace)
    }

    /// A visitor's walk through so many pages needs every statement of its site, and is the same each time.
    #[track_caller]
    pub(crate) fn expect_every_statement_and_one_course<S: Site>(
        catalogue: &Catalogue,
        visitor: impl Fn() -> Visitor<S>,
        pages: u32,
    ) {
        let (used, trace) = walk(visitor(), pages);
        let statements = &catalogue.statements;
        let unused = statements.iter().zip(&used).filter(|(_, used)| !**used);
        let unused: Vec<&str> = unused.map(|(statement, _)| statement.id.as_str()).collect();
        assert_eq!((unused, used.len()), (Vec::new(), statements.len()));
        assert_eq!(walk(visitor(), pages).1, trace);
    }
}
