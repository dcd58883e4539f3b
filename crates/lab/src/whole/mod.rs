//! Experiments with transactions that arrive whole: a rate, so many workers, a protocol (docs/protocols/chains.md).

mod columns;
mod experiment;
mod supplier;
#[cfg(test)]
mod tests;

pub use experiment::{UnknownWholeSystem, WholeError, WholeExperiment, WholeFigures, WholeMetric};
pub use supplier::{Classes, Execution, Judge, PairShares, Supplier, shares_of_pairs, touched};
