//! What came out, kept as CSV: a run that was interrupted goes on where it was.
//!
//! A line counts once its end is there. Whoever is killed while writing leaves a part of one at the end of the file, which a later run cuts
//! off; it could be read as a smaller number otherwise. Since a line that somebody else is just writing looks the same, one process at a
//! time may add to a file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::effort::Effort;
use crate::experiment::{Durability, Experiment, Figures, Mix};
use crate::kept::Rows;
use crate::variation::Variation;
use crate::whole::WholeExperiment;
use crate::wide::WideExperiment;

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
    /// Another process adds to it.
    #[error("{} is in use by another run; wait for it to end, or choose another folder", path.display())]
    InUse {
        /// Which.
        path: PathBuf,
    },
    /// Its first line is not ours.
    #[error(
        "{} does not have the columns of results as this version writes them; move the file away, or choose another folder",
        path.display()
    )]
    OtherColumns {
        /// Which.
        path: PathBuf,
    },
    /// A line is not as we write it.
    #[error("read {}: {error}; remove that line, or choose another folder", path.display())]
    Line {
        /// Which.
        path: PathBuf,
        /// Where, and why.
        error: csv::Error,
    },
}

/// Names the sources of everything that decides what a run finds. What others would find may differ.
pub const SOURCES: &str = env!("ONECOPY_LAB_SOURCES");

/// What the file is called in its folder.
const FILE_NAME: &str = "runs.csv";

/// Figures by experiment and seed.
#[derive(Debug)]
pub struct Results {
    figures: HashMap<(Experiment, u64), Figures>,
    pub(crate) whole: Rows<WholeExperiment>,
    pub(crate) wide: Rows<WideExperiment>,
    file: Option<(PathBuf, csv::Writer<File>)>,
    /// How long runs are, and which sources made them: what all rows have in common.
    common: Common,
    /// Rows of the file that are of no use now.
    pub foreign: usize,
    /// Whether the file ended within a line, which was not used.
    pub was_cut: bool,
}

#[derive(Clone, PartialEq, Debug, Default)]
struct Common {
    warm_up_s: u64,
    measured_s: u64,
    sources: String,
}

/// What a line of the file is about; the figures of the same line are a [`Figures`].
#[derive(Serialize, Deserialize, Debug, Default)]
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
        Results {
            figures: HashMap::new(),
            whole: Rows::default(),
            wide: Rows::default(),
            file: None,
            common: Common::default(),
            foreign: 0,
            was_cut: false,
        }
    }

    /// Opens `runs.csv` in a folder, and makes both if they are not there. Rows of another effort or other sources stay in the file and are
    /// not used; a part of a line at its end goes.
    ///
    /// # Errors
    /// If the file cannot be read or written, another process has it open like this, or it is something else, which is left alone.
    pub fn open(folder: &Path, effort: &Effort, sources: &str) -> Result<Results, ResultsError> {
        let path = folder.join(FILE_NAME);
        let on_file = |error| ResultsError::File { path: path.clone(), error };
        std::fs::create_dir_all(folder).map_err(on_file)?;
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(&path).map_err(on_file)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(ResultsError::InUse { path }),
            Err(error) => return Err(on_file(error.into())),
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(on_file)?;
        let (mut results, whole) = Results::of(&content, &path, effort, sources)?;
        if results.was_cut {
            file.set_len(whole as u64).map_err(on_file)?;
        }
        let writer = csv::WriterBuilder::new().has_headers(whole == 0).from_writer(file);
        results.file = Some((path, writer));
        results.whole = Rows::open(folder, sources, true)?;
        results.wide = Rows::open(folder, sources, true)?;
        Ok(results)
    }

    /// Reads `runs.csv` in a folder, as far as it is there, while another process may add to it. What is added here is kept nowhere.
    ///
    /// # Errors
    /// If it cannot be read, or is something else.
    pub fn read(folder: &Path, effort: &Effort, sources: &str) -> Result<Results, ResultsError> {
        let path = folder.join(FILE_NAME);
        let content = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(|error| ResultsError::File { path: path.clone(), error })?,
        };
        let mut results = Results::of(&content, &path, effort, sources)?.0;
        results.whole = Rows::open(folder, sources, false)?;
        results.wide = Rows::open(folder, sources, false)?;
        Ok(results)
    }

    /// What the content of a file says, and how long it is without a part of a line at its end.
    fn of(
        content: &[u8],
        path: &Path,
        effort: &Effort,
        sources: &str,
    ) -> Result<(Results, usize), ResultsError> {
        let Effort { warm_up_s, measured_s, .. } = *effort;
        let common = Common { warm_up_s, measured_s, sources: sources.to_owned() };
        let mut results = Results { common, ..Results::in_memory() };
        let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
        results.was_cut = whole < content.len();
        let on_line = |error| ResultsError::Line { path: path.to_owned(), error };
        let mut reader = csv::Reader::from_reader(&content[..whole]);
        let names = reader.headers().cloned().unwrap_or_default();
        let first_line = first_line();
        let is_ours = match whole {
            // One that was made and never written to has no first line yet, or a part of it.
            0 => first_line.starts_with(content),
            _ => csv::Reader::from_reader(&first_line[..]).headers().is_ok_and(|ours| *ours == names),
        };
        if !is_ours {
            return Err(ResultsError::OtherColumns { path: path.to_owned() });
        }
        for line in reader.records() {
            let line = line.map_err(on_line)?;
            let key = line.deserialize(Some(&names)).map_err(on_line)?;
            results.take(key, line.deserialize(Some(&names)).map_err(on_line)?);
        }
        Ok((results, whole))
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
            let written = writer.serialize((key, figures)).map_err(io::Error::from);
            let written = written.and_then(|()| writer.flush());
            written.map_err(|error| ResultsError::File { path: path.clone(), error })?;
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

/// The first line of the file: the names of its columns.
fn first_line() -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.serialize((Key::default(), Figures::default())).expect("both are flat, and memory takes all");
    let mut lines = writer.into_inner().expect("memory takes all");
    let end = lines.iter().position(|byte| *byte == b'\n').expect("a line has an end");
    lines.truncate(end + 1);
    lines
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
        drop(results);
        for (effort, sources) in [(Effort::full(), "a"), (effort, "b")] {
            let other = open(&effort, sources);
            assert_eq!((other.get(&of("eager", 8), 0), other.foreign), (None, 2));
        }
    }

    /// A folder in which two experiments were run, and the file in it.
    fn kept() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut results = open(folder.path()).expect("it opens");
        results.add(&of("eager", 8), 0, with_peak(17.25)).expect("it is kept");
        results.add(&of("eager", 16), 0, with_peak(20.0)).expect("it is kept");
        let path = folder.path().join(FILE_NAME);
        (folder, path)
    }

    fn open(folder: &Path) -> Result<Results, ResultsError> {
        Results::open(folder, &Effort::quick(), "a")
    }

    #[test]
    fn killed_anywhere_within_a_line_only_that_run_is_made_again() {
        let (folder, path) = kept();
        let content = std::fs::read(&path).expect("it is there");
        let last = content.len() - 1;
        let line = content[..last].iter().rposition(|byte| *byte == b'\n').expect("there are lines") + 1;
        // To the very last byte: without its end, a number may have lost digits.
        for end in line..=last {
            std::fs::write(&path, &content[..end]).expect("it is written");
            let mut results = open(folder.path()).expect("it opens");
            assert_eq!(results.was_cut, end > line, "{end}");
            assert_eq!(results.get(&of("eager", 8), 0), Some(&with_peak(17.25)), "{end}");
            assert_eq!(results.get(&of("eager", 16), 0), None, "{end}");
            results.add(&of("eager", 16), 0, with_peak(20.0)).expect("it is kept");
            drop(results);
            assert_eq!(std::fs::read(&path).expect("it is there"), content, "{end}");
        }
    }

    #[test]
    fn killed_within_the_first_line_it_begins_again() {
        let (folder, path) = kept();
        let content = std::fs::read(&path).expect("it is there");
        for end in [0, 1, first_line().len() - 1] {
            std::fs::write(&path, &content[..end]).expect("it is written");
            let mut results = open(folder.path()).expect("it opens");
            for (size, peak) in [(8, 17.25), (16, 20.0)] {
                results.add(&of("eager", size), 0, with_peak(peak)).expect("it is kept");
            }
            drop(results);
            assert_eq!(std::fs::read(&path).expect("it is there"), content, "{end}");
        }
    }

    #[test]
    fn a_second_run_in_the_folder_is_refused_and_a_reader_is_not() {
        let (folder, path) = kept();
        let mut first = open(folder.path()).expect("it opens");
        let error = open(folder.path()).expect_err("the first has it").to_string();
        assert!(error.contains("in use by another run"), "{error}");

        let half = b"tpcw sho";
        let content = [std::fs::read(&path).expect("it is there"), half.to_vec()].concat();
        std::fs::write(&path, &content).expect("it is written");
        let read = Results::read(folder.path(), &Effort::quick(), "a").expect("it is read");
        assert_eq!(read.get(&of("eager", 16), 0), Some(&with_peak(20.0)));
        assert_eq!(std::fs::read(&path).expect("it is there"), content, "a reader changes nothing");

        first.file = None;
        open(folder.path()).expect("the first has let it go");
    }

    #[test]
    fn where_nothing_was_run_there_is_nothing_to_read_and_nothing_is_made() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let read = Results::read(&folder.path().join("none"), &Effort::quick(), "a").expect("it is read");
        assert_eq!(read.get(&of("eager", 8), 0), None);
        assert!(!folder.path().join("none").exists());
    }

    #[test]
    fn a_file_that_is_something_else_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(FILE_NAME);
        let columns = String::from_utf8(first_line()).expect("names are text");
        let others = columns.replace("users,peak", "peak,users");
        for content in ["a,b\n1,2\n", "a,b\n1,2", "notes", "\u{feff}", &others] {
            std::fs::write(&path, content).expect("it is written");
            let error = open(folder.path()).expect_err("it is something else").to_string();
            assert!(error.contains("move the file away"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).expect("it is there"), content);
        }
    }

    #[test]
    fn a_damaged_line_is_named_and_the_file_left_alone() {
        let (folder, path) = kept();
        let content = std::fs::read_to_string(&path).expect("it is there");
        for damaged in [content.replace("17.25", "17.x5"), content.replace("17.25,", "")] {
            std::fs::write(&path, &damaged).expect("it is written");
            let error = open(folder.path()).expect_err("it is damaged").to_string();
            assert!(error.contains("line: 2") || error.contains("line: 3"), "{error}");
            assert!(error.contains("remove that line"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).expect("it is there"), damaged);
        }
    }
}
