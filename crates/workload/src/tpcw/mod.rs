//! TPC-W, the online bookstore: 14 interactions, three mixes, a population of any scale and emulated browsers.
//!
//! * [`catalogue`] and [`Rules`]: the benchmark's figures and statements, from `data/tpcw.toml`.
//! * [`Mix`]: which interaction follows which.
//! * [`Scale`] and [`Population`]: how large the bookstore is, and its rows.
//! * [`Browser`]: an emulated customer, as a [`Client`](crate::Client).
//! * [`Shelf`]: answers a browser's statements from memory, where no database is at hand.
//! * [`checks`]: what must hold in the database after any run.

mod browser;
mod checks;
mod mix;
mod population;
mod rules;
mod shelf;
mod statement;
mod transactions;

pub use browser::{Browser, Highest, Shop};
pub use checks::checks;
pub use mix::{Interaction, Mix, MixName, UnknownMix};
pub use population::{Population, Scale, ScaleError, Table, spell, spell_padded};
pub use rules::{Rules, rules};
pub use shelf::Shelf;
pub use statement::Statement;

use std::sync::LazyLock;

use crate::catalogue::Catalogue;

static CATALOGUE: LazyLock<Catalogue> =
    LazyLock::new(|| Catalogue::parse(DATA).expect("data/tpcw.toml is in order"));

const DATA: &str = include_str!("../../data/tpcw.toml");

static EIGHT_TABLES: LazyLock<Catalogue> = LazyLock::new(|| {
    let among_orders = |line: &str| {
        let is_use = line.starts_with("reads = ") || line.starts_with("writes = ");
        let line = if is_use {
            line.replace("\"shopping_cart_line\"", "\"order_line\"")
                .replace("\"shopping_cart\"", "\"orders\"")
        } else {
            line.to_owned()
        };
        line + "\n"
    };
    let data: String = DATA.lines().map(among_orders).collect();
    Catalogue::parse(&data).expect("data/tpcw.toml is in order with eight tables, too")
});

/// The same where a cart lies in the tables of the orders, as one that is not placed yet. The papers list eight tables, among them
/// none for carts, and name those of the orders first among the most used. Statements and costs are the same; what differs is
/// which tables they are known to touch.
pub fn catalogue_of_eight_tables() -> &'static Catalogue {
    &EIGHT_TABLES
}

/// The tables, interactions, transactions and statements.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_eight_tables_carts_are_used_by_the_names_of_orders_and_all_else_is_the_same() {
        let (plain, eight) = (catalogue(), catalogue_of_eight_tables());
        let names = |catalogue: &Catalogue, of: &[crate::catalogue::TableIndex]| -> Vec<String> {
            of.iter().map(|table| catalogue.table(*table).name.clone()).collect()
        };
        for (one, other) in plain.statements.iter().zip(&eight.statements) {
            assert_eq!((&one.id, &one.sql), (&other.id, &other.sql));
            for (before, after) in [(&one.reads, &other.reads), (&one.writes, &other.writes)]
                .map(|(a, b)| (names(plain, a), names(eight, b)))
            {
                let renamed: Vec<String> = before
                    .iter()
                    .map(|name| {
                        name.replace("shopping_cart_line", "order_line").replace("shopping_cart", "orders")
                    })
                    .collect();
                assert_eq!(renamed, after, "{}", one.id);
            }
        }
        assert_eq!(plain.tables.len(), eight.tables.len());
    }
}
