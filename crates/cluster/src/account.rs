//! Which user of the operating system runs the servers.

use crate::{Error, Result};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Users to hand the servers to when root starts them, best first.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

/// The user of the operating system who runs a server and owns its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The name, or the number where the system knows no name.
    pub name: String,
    uid: u32,
    gid: u32,
    /// Whether processes must change to this user: root started us.
    change: bool,
}

impl Account {
    /// Whoever runs this process; if that is root, `postgres` or else `nobody`.
    ///
    /// # Errors
    /// [`Error::NoAccount`] when root runs this and neither user exists.
    pub fn choose() -> Result<Account> {
        let uid = rustix::process::geteuid().as_raw();
        if uid != 0 {
            return Ok(Account::current());
        }
        UNPRIVILEGED.into_iter().find_map(Account::named).ok_or(Error::NoAccount)
    }

    /// The user who must run a server whose data exists already: its owner.
    ///
    /// # Errors
    /// [`Error::ForeignOwner`] when that is somebody else and we are not root.
    pub fn owning(data: &Path) -> Result<Account> {
        let metadata = fs::metadata(data).map_err(Error::io("read owner of", data))?;
        let me = Account::current();
        if me.uid == 0 && metadata.uid() != 0 {
            let name = name_of(metadata.uid());
            return Ok(Account { name, uid: metadata.uid(), gid: metadata.gid(), change: true });
        }
        if metadata.uid() == me.uid && me.uid != 0 {
            return Ok(me);
        }
        Err(Error::ForeignOwner { data: data.to_owned(), owner: name_of(metadata.uid()) })
    }

    /// Makes a command run as this user, with no other groups.
    pub(crate) fn apply(&self, command: &mut Command) {
        if self.change {
            // std drops the supplementary groups itself when a uid is given and the caller is root.
            command.uid(self.uid).gid(self.gid);
        }
    }

    /// Hands one file or folder to this user.
    pub(crate) fn own(&self, path: &Path) -> Result<()> {
        if self.change {
            chown(path, Some(self.uid), Some(self.gid)).map_err(Error::io("change owner of", path))?;
        }
        Ok(())
    }

    /// Checks that this user can enter a folder; a folder below somebody's private home cannot be.
    pub(crate) fn check_can_enter(&self, dir: &Path) -> Result<()> {
        if !self.change || self.can_enter(dir) {
            return Ok(());
        }
        let mut ancestors: Vec<PathBuf> = dir.ancestors().map(Path::to_owned).collect();
        ancestors.reverse();
        let ancestor = ancestors.into_iter().find(|a| !self.can_enter(a)).unwrap_or_else(|| dir.to_owned());
        Err(Error::Unreachable { user: self.name.clone(), ancestor })
    }

    fn can_enter(&self, dir: &Path) -> bool {
        // Asked of the kernel, as that user: mode bits alone would miss access lists and read-only mounts.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "cd \"$1\"", "sh"]).arg(dir).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.apply(&mut command);
        command.status().is_ok_and(|status| status.success())
    }

    fn current() -> Account {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Account { name: name_of(uid), uid, gid, change: false }
    }

    fn named(name: &str) -> Option<Account> {
        Some(Account {
            name: name.to_owned(),
            uid: ask_id(&["-u", name])?,
            gid: ask_id(&["-g", name])?,
            change: true,
        })
    }
}

/// Asks `id`, which knows users that are not in /etc/passwd too.
fn ask_id(args: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(args).stderr(Stdio::null()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

fn name_of(uid: u32) -> String {
    let output = Command::new("id").args(["-un", &uid.to_string()]).stderr(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => uid.to_string(),
    }
}
