//! TPC-C, the wholesale supplier: five transactions at terminals, with its population, its pauses and its consistency conditions.
//!
//! * [`catalogue`] and [`Rules`]: the benchmark's figures and statements, from `data/tpcc.toml`.
//! * [`Scale`] and [`Population`]: how large the supplier is, and its rows.
//! * [`Parameters`]: what a client gives for one transaction, by the names that the catalogue's statements use; a [`Generator`]
//!   draws them by the benchmark's rules.
//! * [`Transaction`]: a transaction with its parameters, as a [`Script`](crate::Script).
//! * [`whole()`]: the same as one text, for servers that take transactions whole.
//! * [`Terminal`]: an emulated terminal, as a [`Client`](crate::Client).
//! * [`Memory`]: answers a terminal's statements from memory, where no database is at hand.
//! * [`Touched`]: what a statement reads and writes there, to test what analyses of its SQL say.
//! * [`checks`]: the consistency conditions, which must hold in the database after any run.

mod checks;
mod constants;
mod generator;
mod memory;
mod parameters;
mod population;
mod rules;
mod statement;
mod terminal;
mod touched;
mod transactions;
mod whole;

pub use checks::checks;
pub use constants::Constants;
pub use generator::{Generator, HomeWarehouse, UnknownHomeWarehouse};
pub use memory::Memory;
pub use parameters::{
    Customer, Delivery, Kind, NewOrder, OrderLine, OrderStatus, Parameters, Payment, StockLevel,
};
pub use population::{DISTRICTS, Population, Scale, ScaleError, last_name};
pub use rules::{Rules, rules};
pub use statement::Statement;
pub use terminal::Terminal;
pub use touched::{How, Touched};
pub use transactions::Transaction;
pub use whole::{TAKEN_BACK, whole};

use std::sync::LazyLock;

use crate::catalogue::Catalogue;

static CATALOGUE: LazyLock<Catalogue> =
    LazyLock::new(|| Catalogue::parse(DATA).expect("data/tpcc.toml is in order"));

const DATA: &str = include_str!("../../data/tpcc.toml");

/// The tables, interactions, transactions and statements.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}
