//! Experiments of sites as rows of a file.

use serde::{Deserialize, Serialize};

use super::experiment::{WideExperiment, WideFigures};
use crate::kept::Kept;

#[derive(Serialize, Deserialize, Debug, Default)]
pub(crate) struct Columns {
    system: String,
    sites: u16,
    rate: u32,
}

impl Kept for WideExperiment {
    const FILE_NAME: &'static str = "wide.csv";
    type Columns = Columns;
    type Figures = WideFigures;

    fn columns(&self) -> Columns {
        Columns { system: self.system(), sites: self.sites, rate: self.rate }
    }

    fn of_columns(columns: Columns) -> Option<WideExperiment> {
        WideExperiment::new(&columns.system, columns.sites, columns.rate).ok()
    }
}
