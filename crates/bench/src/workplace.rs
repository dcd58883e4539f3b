//! Where a benchmark that has servers of its own works, and what it leaves.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::bar::Bar;
use crate::{Error, Result, site};

/// Where a benchmark finds onecopy, works, and leaves its results.
#[derive(Clone, Debug)]
pub struct Workplace {
    /// The onecopy program.
    pub onecopy: PathBuf,
    /// Where the folder for the servers and the log is made, which goes afterwards; `None` is among the temporary ones.
    pub dir: Option<PathBuf>,
    /// A folder for results; a new folder is made in it. `None` keeps none.
    pub results: Option<PathBuf>,
    /// Show progress on standard error.
    pub progress: bool,
}

impl Default for Workplace {
    /// The onecopy in PATH, temporary folders, no results, and progress shown.
    fn default() -> Self {
        Workplace { onecopy: PathBuf::from("onecopy"), dir: None, results: None, progress: true }
    }
}

impl Workplace {
    /// A new folder for the servers of this benchmark. It goes afterwards, so that no run meets what another one has left.
    pub(crate) fn work_folder(&self, benchmark: &str) -> Result<TempDir> {
        let parent = match &self.dir {
            Some(dir) => {
                fs::create_dir_all(dir).map_err(Error::file("create", dir))?;
                dir.canonicalize().map_err(Error::file("resolve", dir))?
            }
            None => std::env::temp_dir(),
        };
        // The servers' user must be able to pass through.
        tempfile::Builder::new()
            .prefix(&format!("onecopy-{benchmark}-"))
            .permissions(fs::Permissions::from_mode(0o711))
            .tempdir_in(&parent)
            .map_err(Error::file("create a folder in", &parent))
    }

    /// A new folder for the results of this benchmark, if they are to be kept.
    pub(crate) fn results_folder(&self, benchmark: &str) -> Result<Option<PathBuf>> {
        let Some(results) = &self.results else { return Ok(None) };
        let folder = results.join(format!("{benchmark}-{}", site::time_stamp()));
        fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        Ok(Some(folder))
    }

    pub(crate) fn bar(&self, steps: usize) -> Bar {
        Bar::new(steps, self.progress)
    }
}
