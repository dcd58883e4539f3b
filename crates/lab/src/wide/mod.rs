//! Experiments with sites that are far apart: a protocol of the family, so many sites, a rate (docs/protocols/wide_area.md).

mod bookstore;
mod columns;
mod experiment;
mod tables;

pub use experiment::{
    Arrivals, UnknownWideSystem, WideError, WideExperiment, WideFigures, WideMetric, WideSystem,
};
