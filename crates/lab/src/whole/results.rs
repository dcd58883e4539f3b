//! What came out, kept as CSV beside that of the other experiments.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::experiment::{WholeExperiment, WholeFigures};
use crate::results::ResultsError;

/// What the file is called in its folder.
const FILE_NAME: &str = "whole.csv";

/// Figures by experiment and seed. Whoever has the folder's other results has these, too.
#[derive(Default, Debug)]
pub(crate) struct WholeResults {
    figures: HashMap<(WholeExperiment, u64), WholeFigures>,
    file: Option<(PathBuf, csv::Writer<File>)>,
    sources: String,
}

#[derive(Serialize, Deserialize, Debug, Default)]
struct Key {
    system: String,
    rate: u32,
    workers: u16,
    sources: String,
    seed: u64,
}

impl WholeResults {
    /// Opens the file to read it, and to add to it if `adds`. Rows of other sources stay there and are not used, and so do parts
    /// of a line at its end, behind which a new line begins.
    pub(crate) fn open(folder: &Path, sources: &str, adds: bool) -> Result<WholeResults, ResultsError> {
        let path = folder.join(FILE_NAME);
        let on_file = |error| ResultsError::File { path: path.clone(), error };
        let mut content = Vec::new();
        let mut file = None;
        if adds {
            let mut opened =
                OpenOptions::new().read(true).append(true).create(true).open(&path).map_err(on_file)?;
            opened.read_to_end(&mut content).map_err(on_file)?;
            let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
            if whole < content.len() {
                opened.set_len(whole as u64).map_err(on_file)?;
                content.truncate(whole);
            }
            let writer = csv::WriterBuilder::new().has_headers(content.is_empty()).from_writer(opened);
            file = Some((path.clone(), writer));
        } else {
            match std::fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => content = read.map_err(on_file)?,
            }
        }
        let mut results = WholeResults { file, sources: sources.to_owned(), ..WholeResults::default() };
        let mut reader = csv::Reader::from_reader(&content[..]);
        let names = reader.headers().cloned().unwrap_or_default();
        for line in reader.records() {
            let on_line = |error| ResultsError::Line { path: path.clone(), error };
            let line = line.map_err(on_line)?;
            let key: Key = line.deserialize(Some(&names)).map_err(on_line)?;
            let figures = line.deserialize(Some(&names)).map_err(on_line)?;
            if key.sources == sources
                && let Ok(experiment) = WholeExperiment::new(&key.system, key.rate, key.workers)
            {
                results.figures.insert((experiment, key.seed), figures);
            }
        }
        Ok(results)
    }

    pub(crate) fn get(&self, experiment: &WholeExperiment, seed: u64) -> Option<&WholeFigures> {
        self.figures.get(&(experiment.clone(), seed))
    }

    pub(crate) fn add(
        &mut self,
        experiment: &WholeExperiment,
        seed: u64,
        figures: WholeFigures,
    ) -> Result<(), ResultsError> {
        if let Some((path, writer)) = &mut self.file {
            let WholeExperiment { system, rate, workers } = experiment.clone();
            let key = Key { system: system.to_owned(), rate, workers, sources: self.sources.clone(), seed };
            let written = writer.serialize((key, figures)).map_err(io::Error::from);
            let written = written.and_then(|()| writer.flush());
            written.map_err(|error| ResultsError::File { path: path.clone(), error })?;
        }
        self.figures.insert((experiment.clone(), seed), figures);
        Ok(())
    }
}
