//! Where the programs of PostgreSQL are.

use crate::{Error, Result};
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The major versions that onecopy is made for.
pub const SUPPORTED_MAJORS: RangeInclusive<u32> = 12..=18;

/// Folders whose subfolders are versions, as distributions lay them out.
const VERSIONED: [&str; 3] = ["/usr/lib/postgresql", "/usr", "/opt/homebrew/opt"];
/// Folders that source builds and other packages use.
const PLAIN: [&str; 3] = ["/usr/local/pgsql/bin", "/usr/local/bin", "/usr/bin"];

/// The programs of one PostgreSQL version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    /// The folder that holds `postgres` and `initdb`.
    pub dir: PathBuf,
    /// The major version, such as 15.
    pub major: u32,
    /// The whole version, such as `15.18`.
    pub version: String,
}

impl Binaries {
    /// The newest supported version on this machine: from PATH, `pg_config` and the usual folders.
    ///
    /// # Errors
    /// [`Error::NoBinaries`] when there is none.
    pub fn find() -> Result<Binaries> {
        let newest = Self::all().into_iter().max_by_key(|found| version_key(&found.version));
        newest.ok_or_else(|| Error::NoBinaries {
            wanted: format!("{} to {}", SUPPORTED_MAJORS.start(), SUPPORTED_MAJORS.end()),
            looked_in: "/usr/lib/postgresql/*/bin".to_owned(),
            package: "postgresql".to_owned(),
        })
    }

    /// The programs of one major version, for data that it made.
    ///
    /// # Errors
    /// [`Error::NoBinaries`] when that version is not installed.
    pub fn find_major(major: u32) -> Result<Binaries> {
        let matching = Self::all().into_iter().filter(|found| found.major == major);
        matching.max_by_key(|found| version_key(&found.version)).ok_or_else(|| Error::NoBinaries {
            wanted: major.to_string(),
            looked_in: format!("/usr/lib/postgresql/{major}/bin"),
            package: format!("postgresql-{major}"),
        })
    }

    /// The programs in a given folder.
    ///
    /// # Errors
    /// [`Error::BadBinaries`] when the folder lacks a program or its version is not supported.
    pub fn at(dir: &Path) -> Result<Binaries> {
        let bad = |why: String| Error::BadBinaries { dir: dir.to_owned(), why };
        for program in ["postgres", "initdb"] {
            if !dir.join(program).is_file() {
                return Err(bad(format!("{program} is missing")));
            }
        }
        let version =
            ask(&dir.join("postgres"), "--version").ok_or_else(|| bad("postgres --version failed".into()))?;
        // "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "postgres (PostgreSQL) 18beta1"
        let version = version.split_whitespace().nth(2).unwrap_or_default().to_owned();
        let major = leading_number(&version).ok_or_else(|| bad(format!("unknown version `{version}`")))?;
        if !SUPPORTED_MAJORS.contains(&major) {
            return Err(bad(format!("it is version {version}")));
        }
        Ok(Binaries { dir: dir.to_owned(), major, version })
    }

    /// Every supported version found, each folder once.
    #[must_use]
    pub fn all() -> Vec<Binaries> {
        candidates().iter().filter_map(|dir| Self::at(dir).ok()).collect()
    }

    /// The path of one program, such as `initdb`.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn candidates() -> BTreeSet<PathBuf> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    if let Some(path) = env::var_os("PATH") {
        dirs.extend(env::split_paths(&path));
    }
    dirs.extend(ask(Path::new("pg_config"), "--bindir").map(PathBuf::from));
    for parent in VERSIONED {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            dirs.push(entry.path().join("bin"));
        }
    }
    dirs.extend(PLAIN.map(PathBuf::from));
    // Links to single programs are followed: beside the linked program are all of its version, beside the link not.
    let real = |dir: PathBuf| Some(dir.join("initdb").canonicalize().ok()?.parent()?.to_owned());
    dirs.into_iter().filter_map(real).collect()
}

fn ask(program: &Path, arg: &str) -> Option<String> {
    let output = Command::new(program).arg(arg).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Major and minor; a beta counts as minor 0.
fn version_key(version: &str) -> (u32, u32) {
    let mut parts = version.split('.');
    let mut next = || parts.next().and_then(leading_number).unwrap_or(0);
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number_and_not_by_text() {
        assert!(version_key("18.1") > version_key("9.6"));
        assert!(version_key("15.18") > version_key("15.9"));
        assert!(version_key("18beta1") < version_key("18.1"));
    }

    #[test]
    fn folder_without_programs_is_refused_with_the_reason() {
        let error = Binaries::at(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/nonexistent does not hold the programs of a supported PostgreSQL (12 to 18): postgres is missing"
        );
    }
}
