//! A small disk for one server, which can be full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result};

/// What a disk may hold. It lies in memory, which it takes only as far as it is used.
const SIZE: &str = "4g";
/// The server may have written more between the look and the change, which is refused then.
const FILL_ATTEMPTS: u32 = 20;

/// A file system in memory, mounted on a folder until this is dropped.
pub(super) struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// Mounts it on a folder, which is made if need be.
    ///
    /// # Errors
    /// When the system does not let us: root may, on Linux.
    pub(super) fn mount(folder: &Path) -> Result<Disk> {
        fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
        let options = format!("size={SIZE},mode=0711");
        run("mount", &["-t", "tmpfs", "-o", &options, "onecopy-failures"], folder)?;
        Ok(Disk { folder: folder.to_owned() })
    }

    /// Leaves no room beyond what is used.
    pub(super) fn fill(&self) -> Result<()> {
        let mut filled = Ok(());
        for _ in 0..FILL_ATTEMPTS {
            let disk = rustix::fs::statvfs(&self.folder)
                .map_err(|errno| Error::file("look at", &self.folder)(errno.into()))?;
            filled = self.resize(&((disk.f_blocks - disk.f_bfree) * disk.f_frsize).to_string());
            if filled.is_ok() {
                break;
            }
        }
        filled
    }

    /// There is room again.
    pub(super) fn empty(&self) -> Result<()> {
        self.resize(SIZE)
    }

    fn resize(&self, size: &str) -> Result<()> {
        run("mount", &["-o", &format!("remount,size={size}")], &self.folder)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What cannot be unmounted goes with the machine's next start; nobody is left to hear of it.
        let _ = run("umount", &[], &self.folder);
    }
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<()> {
    let output = Command::new(program).args(arguments).arg(folder).output();
    let output = output.map_err(|error| Error::program(program, error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::program(program, String::from_utf8_lossy(&output.stderr).trim()))
}
