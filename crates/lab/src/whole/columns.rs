//! Whole transactions as rows of a file.

use serde::{Deserialize, Serialize};

use super::experiment::{WholeExperiment, WholeFigures};
use crate::kept::Kept;
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
}
