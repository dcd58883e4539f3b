//! `cluster.json`: how tools and tests find the client's address and the replicas of a running cluster.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The contents of `cluster.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFile {
    /// Where applications connect.
    pub client: ClientEntry,
    /// The servers behind it.
    pub replicas: Vec<ReplicaEntry>,
}

/// Where applications connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientEntry {
    /// `host=... port=... user=... dbname=...`
    pub dsn: String,
}

/// One server behind onecopy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaEntry {
    /// Its name in the configuration, such as `r1`.
    pub name: String,
    /// `host=... port=... user=... dbname=...`, straight to the server, past onecopy.
    pub dsn: String,
    /// The data folder.
    pub data: PathBuf,
    /// The postmaster's process id.
    pub pid: u32,
}

impl ClusterFile {
    /// The file's name within a cluster's folder.
    pub const NAME: &str = "cluster.json";

    /// Reads `DIR/cluster.json`.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be read, [`Error::Damaged`] when it does not parse.
    pub fn read(dir: &Path) -> Result<ClusterFile> {
        let path = dir.join(Self::NAME);
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        serde_json::from_str(&text).map_err(|error| Error::Damaged { path, why: error.to_string() })
    }

    /// Writes `DIR/cluster.json` whole: a reader sees the old contents or the new, never a part.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, dir: &Path) -> Result<PathBuf> {
        let path = dir.join(Self::NAME);
        write_private(&path, self)?;
        Ok(path)
    }

    /// Removes `DIR/cluster.json` if it is there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remove(dir: &Path) -> Result<()> {
        let path = dir.join(Self::NAME);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }
}

/// Writes JSON that only its owner may read, since a DSN may carry a password.
pub(crate) fn write_private(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::Damaged { path: path.to_owned(), why: error.to_string() })?;
    text.push('\n');
    let temporary = path.with_extension("json.tmp");
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&temporary, path)
    };
    write().map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_file_has_the_documented_form_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let replica = ReplicaEntry {
            name: "r1".into(),
            dsn: "host=127.0.0.1 port=20001 user=postgres dbname=postgres".into(),
            data: "/d/r1/data".into(),
            pid: 42,
        };
        let file = ClusterFile {
            client: ClientEntry { dsn: "host=127.0.0.1 port=6432 user=postgres dbname=postgres".into() },
            replicas: vec![replica],
        };
        let path = file.write(dir.path()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(json["client"]["dsn"], "host=127.0.0.1 port=6432 user=postgres dbname=postgres");
        assert_eq!(json["replicas"][0]["pid"], 42);
        assert_eq!(ClusterFile::read(dir.path()).unwrap(), file);
        ClusterFile::remove(dir.path()).unwrap();
        ClusterFile::remove(dir.path()).unwrap();
        assert!(matches!(ClusterFile::read(dir.path()), Err(Error::Io { .. })));
    }
}
