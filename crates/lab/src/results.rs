//! What came out, kept as CSV: a run that was interrupted goes on where it was.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::effort::Effort;
use crate::experiment::{Durability, Experiment, Figures, Mix};
use crate::variation::Variation;

/// Why results cannot be read or kept.
#[derive(Debug, Error)]
pub enum ResultsError {
    /// The file cannot be used.
    #[error("use {}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is not as we write it.
    #[error("read {}: {error}; move the file away, or choose another folder", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// Why.
        error: csv::Error,
    },
}

/// Names the sources of everything that decides what a run finds. What others would find may differ.
pub const SOURCES: &str = env!("ONECOPY_LAB_SOURCES");

/// Figures by experiment and seed.
#[derive(Debug)]
pub struct Results {
    figures: HashMap<(Experiment, u64), Figures>,
    file: Option<(PathBuf, csv::Writer<File>)>,
    /// How long runs are, and which sources made them: what all rows have in common.
    common: Common,
    /// Rows of the file that are of no use now.
    pub foreign: usize,
}

#[derive(Clone, PartialEq, Debug, Default)]
struct Common {
    warm_up_s: u64,
    measured_s: u64,
    sources: String,
}

/// What a line of the file is about; the figures of the same line are a [`Figures`].
#[derive(Serialize, Deserialize, Debug)]
struct Key {
    workload: String,
    system: String,
    databases: u16,
    speed: u32,
    conflict_percent: u32,
    /// Schedulers that know of a decision; 0 if it is on no disk.
    schedulers: u8,
    /// Their names, with blanks between them.
    variations: String,
    warm_up_s: u64,
    measured_s: u64,
    sources: String,
    seed: u64,
}

impl Results {
    /// Results that are kept nowhere.
    #[must_use]
    pub fn in_memory() -> Results {
        Results { figures: HashMap::new(), file: None, common: Common::default(), foreign: 0 }
    }

    /// Opens `runs.csv` in a folder. Rows of another effort or other sources stay in the file and are not used.
    ///
    /// # Errors
    /// If the file cannot be read or written, or is something else.
    pub fn open(folder: &Path, effort: &Effort, sources: &str) -> Result<Results, ResultsError> {
        let path = folder.join("runs.csv");
        let on_file = |error| ResultsError::File { path: path.clone(), error };
        std::fs::create_dir_all(folder).map_err(on_file)?;
        let Effort { warm_up_s, measured_s, .. } = *effort;
        let common = Common { warm_up_s, measured_s, sources: sources.to_owned() };
        let mut results = Results { common, ..Results::in_memory() };
        // One that was made and never written to has no first line yet.
        let is_new = std::fs::metadata(&path).map_or(true, |file| file.len() == 0);
        if !is_new {
            let on_content = |error| ResultsError::Content { path: path.clone(), error };
            let mut reader = csv::Reader::from_path(&path).map_err(on_content)?;
            let names = reader.headers().map_err(on_content)?.clone();
            for line in reader.records() {
                let line = line.map_err(on_content)?;
                let key = line.deserialize(Some(&names)).map_err(on_content)?;
                results.take(key, line.deserialize(Some(&names)).map_err(on_content)?);
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(on_file)?;
        let writer = csv::WriterBuilder::new().has_headers(is_new).from_writer(file);
        results.file = Some((path, writer));
        Ok(results)
    }

    /// What came of an experiment with a seed.
    #[must_use]
    pub fn get(&self, experiment: &Experiment, seed: u64) -> Option<&Figures> {
        self.figures.get(&(experiment.clone(), seed))
    }

    /// Keeps what came of an experiment with a seed.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, experiment: &Experiment, seed: u64, figures: Figures) -> Result<(), ResultsError> {
        if let Some((path, writer)) = &mut self.file {
            let key = Key::new(experiment, seed, &self.common);
            let written =
                writer.serialize((key, figures)).and_then(|()| writer.flush().map_err(csv::Error::from));
            written.map_err(|error| ResultsError::Content { path: path.clone(), error })?;
        }
        self.figures.insert((experiment.clone(), seed), figures);
        Ok(())
    }

    fn take(&mut self, key: Key, figures: Figures) {
        let experiment = key.experiment();
        let common = Common { warm_up_s: key.warm_up_s, measured_s: key.measured_s, sources: key.sources };
        match experiment.filter(|_| common == self.common) {
            Some(experiment) => _ = self.figures.insert((experiment, key.seed), figures),
            None => self.foreign += 1,
        }
    }
}

impl Key {
    fn new(experiment: &Experiment, seed: u64, common: &Common) -> Key {
        let Experiment { mix, system, replicas, speed, conflict_percent, durability, ref variations } =
            *experiment;
        let variations: Vec<&str> = variations.iter().map(|variation| variation.name()).collect();
        let Common { warm_up_s, measured_s, ref sources } = *common;
        Key {
            workload: mix.name().to_owned(),
            system: system.to_owned(),
            databases: replicas,
            speed,
            conflict_percent,
            schedulers: match durability {
                Durability::Memory => 0,
                Durability::Disk => 1,
                Durability::Replicated(count) => count,
            },
            variations: variations.join(" "),
            warm_up_s,
            measured_s,
            sources: sources.clone(),
            seed,
        }
    }

    /// `None` if this build has no such workload, system or variation.
    fn experiment(&self) -> Option<Experiment> {
        let mix = self.workload.parse::<Mix>().ok()?;
        let durability = match self.schedulers {
            0 => Durability::Memory,
            1 => Durability::Disk,
            count => Durability::Replicated(count),
        };
        let variations = self.variations.split_whitespace().map(Variation::named).collect::<Option<_>>()?;
        Some(Experiment {
            speed: self.speed,
            conflict_percent: self.conflict_percent,
            durability,
            variations,
            ..Experiment::new(mix, &self.system, self.databases).ok()?
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::quantity::tests::{of, with_peak};

    #[test]
    fn what_was_kept_is_there_again_for_the_same_effort_and_sources_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let effort = Effort::quick();
        let open =
            |effort: &Effort, sources: &str| Results::open(folder.path(), effort, sources).expect("it opens");
        let special = Experiment {
            speed: 2,
            conflict_percent: 1,
            durability: Durability::Replicated(2),
            variations: BTreeSet::from([Variation::SlowNetwork, Variation::Shared]),
            ..of("onecopy", 4)
        };
        drop(open(&effort, "a"));
        let mut results = open(&effort, "a");
        results.add(&of("eager", 8), 0, with_peak(17.25)).expect("it is kept");
        drop(results);
        let mut results = open(&effort, "a");
        results.add(&special, 3, with_peak(1.0 / 3.0)).expect("it is kept");
        drop(results);

        let results = open(&effort, "a");
        assert_eq!(results.get(&of("eager", 8), 0), Some(&with_peak(17.25)));
        assert_eq!(results.get(&special, 3), Some(&with_peak(1.0 / 3.0)));
        assert_eq!((results.get(&of("eager", 8), 1), results.foreign), (None, 0));
        for other in [open(&Effort::full(), "a"), open(&effort, "b")] {
            assert_eq!((other.get(&of("eager", 8), 0), other.foreign), (None, 2));
        }
    }

    #[test]
    fn a_file_that_is_something_else_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("runs.csv");
        std::fs::write(&path, "a,b\n1,2\n").expect("it is written");
        let error = Results::open(folder.path(), &Effort::quick(), "a").expect_err("it is something else");
        assert!(error.to_string().contains("move the file away"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "a,b\n1,2\n");
    }
}
