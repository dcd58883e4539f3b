//! Whole transactions as rows of a file.

use serde::{Deserialize, Serialize};

use super::experiment::{WholeExperiment, WholeFigures};
use crate::kept::{Kept, Rows};
use crate::results::Results;
use crate::runner::LabError;
use crate::variation::Variation;

#[derive(Serialize, Deserialize, Debug, Default)]
pub(crate) struct Columns {
    system: String,
    rate: u32,
    workers: u16,
    variations: String,
}

impl Kept for WholeExperiment {
    const FILE_NAME: &'static str = "whole.csv";
    type Columns = Columns;
    type Figures = WholeFigures;

    fn columns(&self) -> Columns {
        let WholeExperiment { system, rate, workers, ref variations } = *self;
        let variations: Vec<&str> = variations.iter().map(|variation| variation.name()).collect();
        Columns { system: system.to_owned(), rate, workers, variations: variations.join(" ") }
    }

    fn of_columns(columns: Columns) -> Option<WholeExperiment> {
        let variations =
            columns.variations.split_whitespace().map(Variation::named).collect::<Option<_>>()?;
        let experiment = WholeExperiment::new(&columns.system, columns.rate, columns.workers).ok()?;
        Some(WholeExperiment { variations, ..experiment })
    }

    fn run_seed(&self, seed: u64) -> Result<WholeFigures, LabError> {
        Ok(self.run(seed)?)
    }

    fn throughput(figures: &WholeFigures) -> f64 {
        figures.throughput
    }

    fn rows(results: &Results) -> &Rows<WholeExperiment> {
        &results.whole
    }

    fn rows_mut(results: &mut Results) -> &mut Rows<WholeExperiment> {
        &mut results.whole
    }
}
