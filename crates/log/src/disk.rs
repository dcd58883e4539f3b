//! The real disk: a folder of segment files. Carries out effects, and nothing else.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::engine::{Cause, Effect, Event, Fault};
use crate::medium::{Medium, read_header};
use crate::record::{SegmentHeader, SegmentNo};

const LOCK_NAME: &str = "lock";
const TEMPORARY_SUFFIX: &str = ".tmp";
/// What is in the log is as secret as what is in the databases.
const FILE_MODE: u32 = 0o600;
/// Bytes read and written again at once.
const REFRESH_LEN: u64 = 1 << 20;

/// The segments of a folder, to be read. Needs no lock: other processes may look while one writes.
pub struct Files {
    path: PathBuf,
    open: Option<(SegmentNo, File)>,
}

impl Files {
    /// The segments in folder `path`.
    #[must_use]
    pub fn new(path: &Path) -> Files {
        Files { path: path.to_owned(), open: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn file(&mut self, segment: SegmentNo) -> io::Result<&File> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != segment) {
            let file = File::open(self.path.join(segment.file_name()))?;
            self.open = Some((segment, file));
        }
        self.open.as_ref().map(|(_, file)| file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Medium for Files {
    fn segments(&mut self) -> io::Result<Vec<SegmentNo>> {
        let mut segments = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            segments.extend(entry?.file_name().to_str().and_then(SegmentNo::from_file_name));
        }
        Ok(segments)
    }

    fn len(&mut self, segment: SegmentNo) -> io::Result<u64> {
        Ok(self.file(segment)?.metadata()?.len())
    }

    fn read_at(&mut self, segment: SegmentNo, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.file(segment)?;
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// Why a folder cannot be used for a log.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has it.
    #[error("the commit log in {path} is in use by {holder}; stop that process, or use another folder")]
    Locked {
        /// The folder.
        path: PathBuf,
        /// What is known of the other process.
        holder: String,
    },
    /// The operating system refuses something.
    #[error("{action} {path}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

/// A folder that this process alone writes to. The lock ends with the value, or with the process.
pub struct Folder {
    files: Files,
    /// Open for the lifetime of the folder: it is synced whenever a name in it changes.
    folder: File,
    _lock: FolderLock,
    /// The files written last, newest first. A file is synced through the handle it was written through, which is
    /// sure to hear of a failed write.
    writing: Vec<(SegmentNo, File)>,
    #[cfg(test)]
    pub(crate) inject: Option<Inject>,
}

/// Makes effects fail that would have succeeded.
#[cfg(test)]
pub(crate) type Inject = Box<dyn FnMut(&Effect) -> Option<io::Error> + Send>;

impl Folder {
    /// Opens and locks folder `path`, creating it if need be, and removes segments that were never finished.
    ///
    /// # Errors
    /// The folder is locked, or the operating system refuses something.
    pub fn open(path: &Path) -> Result<Folder, FolderError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |error| FolderError::Io { action, path, error }
        };
        create_folder(path).map_err(failed("create folder", path))?;
        let folder = File::open(path).map_err(failed("open folder", path))?;
        let lock = lock(path)?;
        let unfinished = remove_unfinished(path).map_err(failed("remove unfinished segments in", path))?;
        if unfinished > 0 {
            folder.sync_all().map_err(failed("sync folder", path))?;
        }
        Ok(Folder {
            files: Files::new(path),
            folder,
            _lock: lock,
            writing: Vec::new(),
            #[cfg(test)]
            inject: None,
        })
    }

    /// The segments, to be read.
    pub fn files(&mut self) -> &mut Files {
        &mut self.files
    }

    /// Carries out one effect. After an [`Event::Failed`] no other may be.
    pub fn perform(&mut self, effect: &Effect) -> Event {
        let (action, segment) = effect.action();
        match self.try_perform(effect) {
            Ok(event) => event,
            Err(error) => {
                let cause = match error.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Cause::DiskFull,
                    _ => Cause::Device,
                };
                let detail = format!("{error} in {}", self.files.path.display());
                Event::Failed(Fault { action, segment, cause, detail })
            }
        }
    }

    /// Puts all segments aside into a folder inside this one, oldest first, so that whatever is left is a log at every
    /// moment. Returns that folder; `None` if there was nothing to put there.
    pub(crate) fn retire(&mut self) -> Result<Option<PathBuf>, FolderError> {
        let path = self.files.path.clone();
        let failed = |action| {
            let path = path.clone();
            move |error| FolderError::Io { action, path, error }
        };
        let mut segments = self.files.segments().map_err(failed("list folder"))?;
        segments.sort_unstable();
        if segments.is_empty() {
            return Ok(None);
        }
        let aside = self.retired_path(&segments);
        create_folder(&aside).map_err(failed("create folder for retired segments in"))?;
        let aside_folder = File::open(&aside).map_err(failed("open folder for retired segments in"))?;
        for segment in segments {
            let name = segment.file_name();
            fs::rename(path.join(&name), aside.join(&name)).map_err(failed("move a segment in"))?;
            aside_folder.sync_all().map_err(failed("sync the retired segments of"))?;
            self.folder.sync_all().map_err(failed("sync folder"))?;
        }
        Ok(Some(aside))
    }

    /// A folder named after the log that holds none of these segments yet: nothing is overwritten, and an interrupted
    /// retirement goes on where it was.
    fn retired_path(&mut self, segments: &[SegmentNo]) -> PathBuf {
        let headers = segments.iter().filter_map(|&segment| {
            let bytes = read_header(&mut self.files, segment).ok()?;
            SegmentHeader::decode(&bytes, segment).ok()
        });
        let log = headers.map(|header| header.log_id.to_string()).next();
        let name = format!("retired-{}", log.as_deref().unwrap_or("unknown"));
        let candidates = (1..).map(|nth| match nth {
            1 => self.files.path.join(&name),
            _ => self.files.path.join(format!("{name}-{nth}")),
        });
        let is_free =
            |folder: &PathBuf| segments.iter().all(|segment| !folder.join(segment.file_name()).exists());
        candidates.into_iter().find(is_free).unwrap_or_else(|| self.files.path.join(&name))
    }

    fn try_perform(&mut self, effect: &Effect) -> io::Result<Event> {
        #[cfg(test)]
        if let Some(error) = self.inject.as_mut().and_then(|inject| inject(effect)) {
            return Err(error);
        }
        match *effect {
            Effect::Create { segment, ref header } => {
                self.create(segment, header)?;
                Ok(Event::Created(segment))
            }
            Effect::Write { segment, offset, ref bytes } => {
                self.writer(segment)?.write_all_at(bytes, offset)?;
                Ok(Event::Written(segment))
            }
            Effect::Sync { segment } => {
                self.writer(segment)?.sync_data()?;
                Ok(Event::Synced(segment))
            }
            Effect::Refresh { segment, from, to } => {
                self.refresh(segment, from, to)?;
                Ok(Event::Refreshed(segment))
            }
            Effect::Delete { segment } => {
                self.writing.retain(|(open, _)| *open != segment);
                fs::remove_file(self.files.path.join(segment.file_name()))?;
                self.folder.sync_all()?;
                Ok(Event::Deleted(segment))
            }
        }
    }

    fn create(&mut self, segment: SegmentNo, header: &[u8]) -> io::Result<()> {
        let path = self.files.path.join(segment.file_name());
        let temporary = self.files.path.join(segment.file_name() + TEMPORARY_SUFFIX);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(FILE_MODE);
        let mut file = options.open(&temporary)?;
        file.write_all(header)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        self.folder.sync_all()?;
        self.writing.insert(0, (segment, file));
        self.writing.truncate(2);
        Ok(())
    }

    fn refresh(&mut self, segment: SegmentNo, from: u64, to: u64) -> io::Result<()> {
        let mut buffer = vec![0; REFRESH_LEN.min(to - from) as usize];
        let mut at = from;
        while at < to {
            let len = buffer.len().min((to - at) as usize);
            let piece = &mut buffer[..len];
            if self.files.read_at(segment, at, piece)? < len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.writer(segment)?.write_all_at(piece, at)?;
            at += len as u64;
        }
        Ok(())
    }

    fn writer(&mut self, segment: SegmentNo) -> io::Result<&File> {
        match self.writing.iter().position(|(open, _)| *open == segment) {
            Some(at) => self.writing.swap(0, at),
            None => {
                let file = OpenOptions::new().write(true).open(self.files.path.join(segment.file_name()))?;
                self.writing.insert(0, (segment, file));
                self.writing.truncate(2);
            }
        }
        Ok(&self.writing[0].1)
    }
}

/// Creates a folder, and those above it that are missing, and makes their names durable.
fn create_folder(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(path)?;
    for folder in missing {
        let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
        File::open(above.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// A folder that nobody else may use. It is let go by itself and not by closing the file: a process that is just being
/// started may have the file open, too, until it runs its own program.
#[derive(Debug)]
struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // If not, closing does it.
        let _unlocked = flock(&self.0, FlockOperation::Unlock);
    }
}

fn lock(path: &Path) -> Result<FolderLock, FolderError> {
    let lock_path = path.join(LOCK_NAME);
    let failed = |error| FolderError::Io { action: "lock", path: lock_path.clone(), error };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
    let mut file = options.open(&lock_path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
            let mut pid = String::new();
            let known = file.read_to_string(&mut pid).is_ok() && !pid.trim().is_empty();
            let holder = if known { format!("process {}", pid.trim()) } else { "another process".to_owned() };
            return Err(FolderError::Locked { path: path.to_owned(), holder });
        }
        Err(error) => return Err(failed(error.into())),
    }
    let note_pid = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    note_pid(&mut file).map_err(failed)?;
    Ok(FolderLock(file))
}

fn remove_unfinished(path: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let finished = name.to_str().and_then(|name| name.strip_suffix(TEMPORARY_SUFFIX));
        if finished.and_then(SegmentNo::from_file_name).is_some() {
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}
