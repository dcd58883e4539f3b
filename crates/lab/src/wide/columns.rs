//! Experiments of sites as rows of a file.

use serde::{Deserialize, Serialize};

use super::experiment::{WideExperiment, WideFigures};
use crate::kept::{Kept, Rows};
use crate::results::Results;
use crate::runner::LabError;
use crate::variation::Variation;

#[derive(Serialize, Deserialize, Debug, Default)]
pub(crate) struct Columns {
    system: String,
    sites: u16,
    rate: u32,
    variations: String,
}

impl Kept for WideExperiment {
    const FILE_NAME: &'static str = "wide.csv";
    type Columns = Columns;
    type Figures = WideFigures;

    fn columns(&self) -> Columns {
        let variations: Vec<&str> = self.variations.iter().map(|variation| variation.name()).collect();
        Columns { system: self.words(), sites: self.sites, rate: self.rate, variations: variations.join(" ") }
    }

    fn of_columns(columns: Columns) -> Option<WideExperiment> {
        let variations =
            columns.variations.split_whitespace().map(Variation::named).collect::<Option<_>>()?;
        let experiment = WideExperiment::new(&columns.system, columns.sites, columns.rate).ok()?;
        Some(WideExperiment { variations, ..experiment })
    }

    fn run_seed(&self, seed: u64) -> Result<WideFigures, LabError> {
        Ok(self.run(seed)?)
    }

    fn throughput(figures: &WideFigures) -> f64 {
        figures.throughput
    }

    fn rows(results: &Results) -> &Rows<WideExperiment> {
        &results.wide
    }

    fn rows_mut(results: &mut Results) -> &mut Rows<WideExperiment> {
        &mut results.wide
    }
}
