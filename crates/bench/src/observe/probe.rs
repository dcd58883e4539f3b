//! How long the disk of the commit log takes by itself, so that nobody blames a fault for a machine that stands still.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// How often something is written.
const EVERY: Duration = Duration::from_millis(50);

/// A write to the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DiskWrite {
    /// When it was on disk, in milliseconds from the beginning of the load.
    pub(crate) at_ms: u64,
    /// How long that took, in milliseconds.
    pub(crate) took_ms: f64,
}

/// Writes and syncs a page of a file of its own, again and again on a thread, as the log does beside it.
pub(crate) struct Probe {
    end: Sender<()>,
    thread: JoinHandle<std::io::Result<Vec<DiskWrite>>>,
}

impl Probe {
    /// In a new file of this folder. Times count from `begin`.
    pub(crate) fn start(folder: &Path, begin: Instant) -> Result<Probe> {
        let path = folder.join("probe");
        let mut file = File::create(&path).map_err(Error::file("create", &path))?;
        let (end, ended) = channel();
        let write = move || {
            let mut writes = Vec::new();
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                file.rewind()?;
                file.write_all(&[0; 4_096])?;
                file.sync_data()?;
                let took_ms = began.elapsed().as_secs_f64() * 1_000.0;
                writes.push(DiskWrite { at_ms: begin.elapsed().as_millis() as u64, took_ms });
            }
            Ok(writes)
        };
        Ok(Probe { end, thread: std::thread::spawn(write) })
    }

    /// Every write.
    ///
    /// # Errors
    /// When the disk refused one.
    pub(crate) fn end(self) -> Result<Vec<DiskWrite>> {
        drop(self.end);
        let writes = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        writes.map_err(Error::file("write", Path::new("the probe's file")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_is_noted_with_its_time_until_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let begin = Instant::now();
        let probe = Probe::start(folder.path(), begin).unwrap();
        std::thread::sleep(5 * EVERY);
        let writes = probe.end().unwrap();
        let took: f64 = writes.iter().map(|write| write.took_ms).sum();
        assert!(!writes.is_empty() && writes.is_sorted_by_key(|write| write.at_ms), "{writes:?}");
        assert!(took > 0.0 && took <= begin.elapsed().as_secs_f64() * 1_000.0, "{writes:?}");
    }
}
