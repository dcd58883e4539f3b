//! Experiments with transactions that arrive whole: a rate, so many workers, a protocol (docs/protocols/chains.md).

mod supplier;
#[cfg(test)]
mod tests;

pub use supplier::{Classes, Supplier};
