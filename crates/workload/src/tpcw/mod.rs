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
pub use checks::{Check, checks, stock_mismatches, stock_query};
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

/// The tables, interactions, transactions and statements.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}
