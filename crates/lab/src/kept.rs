//! What came out of experiments that are more than peaks: a CSV file for each kind, beside that of the peaks.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::fs::{File, OpenOptions};
use std::hash::Hash;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::results::{Results, ResultsError};
use crate::runner::LabError;

/// A kind of experiments each of which is one run of a seed, and that are kept in a file.
pub(crate) trait Kept: Clone + Ord + Hash + Display + Sync {
    /// What the file is called in its folder.
    const FILE_NAME: &'static str;
    /// What is run, as columns.
    type Columns: Serialize + DeserializeOwned + Default;
    /// What comes out, as columns.
    type Figures: Serialize + DeserializeOwned + Default + Copy + Debug;
    /// The columns of an experiment.
    fn columns(&self) -> Self::Columns;
    /// The experiment of these columns; nothing if there is no such experiment now.
    fn of_columns(columns: Self::Columns) -> Option<Self>;
    /// Runs it.
    ///
    /// # Errors
    /// If something went wrong that only a bug can bring about.
    fn run_seed(&self, seed: u64) -> Result<Self::Figures, LabError>;
    /// What is shown of it while others run.
    fn throughput(figures: &Self::Figures) -> f64;
    /// Where results have them.
    fn rows(results: &Results) -> &Rows<Self>;
    /// The same, to add to them.
    fn rows_mut(results: &mut Results) -> &mut Rows<Self>;
}

/// Figures by experiment and seed. Whoever has the folder's other results has these, too.
#[derive(Debug)]
pub(crate) struct Rows<E: Kept> {
    figures: HashMap<(E, u64), E::Figures>,
    file: Option<(PathBuf, csv::Writer<File>)>,
    sources: String,
}

#[derive(Serialize, Deserialize, Debug, Default)]
struct Run {
    sources: String,
    seed: u64,
}

impl<E: Kept> Default for Rows<E> {
    fn default() -> Rows<E> {
        Rows { figures: HashMap::new(), file: None, sources: String::new() }
    }
}

impl<E: Kept> Rows<E> {
    /// Opens the file to read it, and to add to it if `adds`. Rows of other sources stay there and are not used; a part of a line at its
    /// end is not used either, and goes if something may be added.
    ///
    /// # Errors
    /// If the file cannot be read or written, or it is something else, which is left alone.
    pub(crate) fn open(folder: &Path, sources: &str, adds: bool) -> Result<Rows<E>, ResultsError> {
        let path = folder.join(E::FILE_NAME);
        let on_file = |error| ResultsError::File { path: path.clone(), error };
        let mut content = Vec::new();
        let mut opened = None;
        if adds {
            let file = OpenOptions::new().read(true).append(true).create(true).open(&path);
            let mut file = file.map_err(on_file)?;
            file.read_to_end(&mut content).map_err(on_file)?;
            opened = Some(file);
        } else {
            match std::fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => content = read.map_err(on_file)?,
            }
        }
        let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
        let first_line = first_line::<E>();
        let is_ours = match whole {
            0 => first_line.starts_with(&content),
            _ => content.starts_with(&first_line),
        };
        if !is_ours {
            return Err(ResultsError::OtherColumns { path });
        }
        if let Some(file) = opened.as_ref().filter(|_| whole < content.len()) {
            file.set_len(whole as u64).map_err(on_file)?;
        }
        content.truncate(whole);
        let writer = |file| csv::WriterBuilder::new().has_headers(whole == 0).from_writer(file);
        let file = opened.map(|file| (path.clone(), writer(file)));
        let mut results = Rows { file, sources: sources.to_owned(), ..Rows::default() };
        let mut reader = csv::Reader::from_reader(&content[..]);
        let names = reader.headers().cloned().unwrap_or_default();
        for line in reader.records() {
            let on_line = |error| ResultsError::Line { path: path.clone(), error };
            let line = line.map_err(on_line)?;
            let run: Run = line.deserialize(Some(&names)).map_err(on_line)?;
            let columns: E::Columns = line.deserialize(Some(&names)).map_err(on_line)?;
            let figures = line.deserialize(Some(&names)).map_err(on_line)?;
            if run.sources == sources
                && let Some(experiment) = E::of_columns(columns)
            {
                results.figures.insert((experiment, run.seed), figures);
            }
        }
        Ok(results)
    }

    pub(crate) fn get(&self, experiment: &E, seed: u64) -> Option<&E::Figures> {
        self.figures.get(&(experiment.clone(), seed))
    }

    pub(crate) fn add(&mut self, experiment: &E, seed: u64, figures: E::Figures) -> Result<(), ResultsError> {
        if let Some((path, writer)) = &mut self.file {
            let run = Run { sources: self.sources.clone(), seed };
            let written = writer.serialize((experiment.columns(), run, figures)).map_err(io::Error::from);
            let written = written.and_then(|()| writer.flush());
            written.map_err(|error| ResultsError::File { path: path.clone(), error })?;
        }
        self.figures.insert((experiment.clone(), seed), figures);
        Ok(())
    }
}

/// The first line of the file: the names of its columns.
fn first_line<E: Kept>() -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let columns = (E::Columns::default(), Run::default(), E::Figures::default());
    writer.serialize(columns).expect("all are flat, and memory takes all");
    let mut lines = writer.into_inner().expect("memory takes all");
    let end = lines.iter().position(|byte| *byte == b'\n').expect("a line has an end");
    lines.truncate(end + 1);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whole::{WholeExperiment, WholeFigures};

    type WholeRows = Rows<WholeExperiment>;

    fn kept() -> (tempfile::TempDir, WholeExperiment, WholeFigures) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let experiment = WholeExperiment::new("chains", 150, 100).expect("it is there");
        let figures = WholeFigures { throughput: 17.25, in_vain: 0.125, ..WholeFigures::default() };
        let mut results = WholeRows::open(folder.path(), "a", true).expect("it opens");
        results.add(&experiment, 0, figures).expect("it is kept");
        results.add(&experiment, 1, figures).expect("it is kept");
        (folder, experiment, figures)
    }

    #[test]
    fn what_was_kept_is_there_again_for_the_same_sources_only() {
        let (folder, experiment, figures) = kept();
        for adds in [false, true] {
            let results = WholeRows::open(folder.path(), "a", adds).expect("it opens");
            assert_eq!(results.get(&experiment, 1), Some(&figures));
            assert_eq!(results.get(&experiment, 2), None);
            let results = WholeRows::open(folder.path(), "b", adds).expect("it opens");
            assert_eq!(results.get(&experiment, 0), None);
        }
    }

    #[test]
    fn a_line_without_its_end_is_not_used() {
        let (folder, experiment, figures) = kept();
        let path = folder.path().join(WholeExperiment::FILE_NAME);
        let content = std::fs::read(&path).expect("it is there");
        std::fs::write(&path, &content[..content.len() - 2]).expect("it is written");
        for adds in [false, true] {
            let results = WholeRows::open(folder.path(), "a", adds).expect("it opens");
            assert_eq!((results.get(&experiment, 0), results.get(&experiment, 1)), (Some(&figures), None));
        }
        let mut results = WholeRows::open(folder.path(), "a", true).expect("it opens");
        results.add(&experiment, 1, figures).expect("it is kept");
        drop(results);
        assert_eq!(std::fs::read(&path).expect("it is there"), content);
    }

    #[test]
    fn a_file_that_is_something_else_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(WholeExperiment::FILE_NAME);
        std::fs::write(&path, "a,b\n1,2\n").expect("it is written");
        let error = WholeRows::open(folder.path(), "a", true).expect_err("it is something else").to_string();
        assert!(error.contains("move the file away"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "a,b\n1,2\n");
    }
}
