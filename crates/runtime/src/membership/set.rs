//! How the set of replicas differs from the configured one, and who is being copied: `replicas.toml` beside the log, or a record of
//! the log where several nodes share it.
//!
//! The configuration itself is never written: it is the operator's, and may be read-only, generated or under version control.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use onecopy_log::{Kind, Log, Record};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::errors::ServeError;
use crate::postgres::version::ServerVersion;
use crate::settings::{ReplicaSettings, ReplicaTls, Settings};

const NAME: &str = "replicas.toml";
/// How often it is looked whether a record is durable.
const DURABLE_PAUSE: Duration = Duration::from_millis(1);
const HEAD: &str =
    "# Written by onecopy (`onecopy replica`): how the set of replicas differs from the configuration.\n";

/// A replica that the configuration need not know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Added {
    name: String,
    host: String,
    port: u16,
    tls: String,
}

/// What is kept. A name that it does not hold is as configured.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Contents {
    removed: Vec<String>,
    /// Those that do not serve before they have been copied.
    copying: Vec<String>,
    added: Vec<Added>,
    /// Of which version the servers of replicas are: what the log holds for one that is away was written for that.
    versions: BTreeMap<String, ServerVersion>,
}

/// Where it is kept what has changed.
enum Keeper {
    File(PathBuf),
    /// Whoever leads next reads it there.
    Log {
        log: Arc<Log>,
        epoch: Epoch,
    },
}

/// What has changed, as it is kept.
pub struct ReplicaSet {
    keeper: Keeper,
    configured: Vec<ReplicaSettings>,
    contents: Mutex<Contents>,
    /// Changes follow each other.
    turn: tokio::sync::Mutex<()>,
}

impl ReplicaSet {
    /// Reads the file, and makes the replicas of the settings those that there are.
    ///
    /// # Errors
    /// If it cannot be read, or leaves no replica.
    pub fn load(settings: &mut Settings) -> Result<ReplicaSet, ServeError> {
        let path = settings.log.dir.join(NAME);
        let contents = read(&path)?;
        ReplicaSet::new(settings, contents, Keeper::File(path))
    }

    /// The same for a node that leads in an epoch, by the log that it shares with others; by its file, if it had the log alone up
    /// to now.
    ///
    /// # Errors
    /// If that cannot be read, or leaves no replica.
    pub fn load_shared(
        settings: &mut Settings,
        log: &Arc<Log>,
        epoch: Epoch,
    ) -> Result<ReplicaSet, ServeError> {
        let contents = match log.held().replicas {
            Some((place, body)) => {
                let text = String::from_utf8_lossy(&body);
                let failed = |error: toml::de::Error| {
                    ServeError::Settings(format!(
                        "read which replicas there are in record {place} of the log: {error}"
                    ))
                };
                toml::from_str(&text).map_err(failed)?
            }
            None => {
                let file = settings.log.dir.join(NAME);
                if log.held().first > Csn(1) && !file.exists() {
                    return Err(ServeError::Log(
                        "this node's log began anew, and does not say yet which replicas there are; another node has to lead"
                            .to_owned(),
                    ));
                }
                read(&file)?
            }
        };
        ReplicaSet::new(settings, contents, Keeper::Log { log: log.clone(), epoch })
    }

    /// Has the file be there, also if it says nothing.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_file(dir: &Path) -> io::Result<()> {
        let path = dir.join(NAME);
        if path.exists() { Ok(()) } else { write(&path, &Contents::default()) }
    }

    fn new(settings: &mut Settings, contents: Contents, keeper: Keeper) -> Result<ReplicaSet, ServeError> {
        let configured = settings.replicas.clone();
        let failed = |what: String| ServeError::Settings(format!("read {keeper}: {what}"));
        settings.replicas =
            members(&configured, &contents, settings.replica_tls_root.as_ref()).map_err(failed)?;
        if settings.replicas.is_empty() && !configured.is_empty() {
            return Err(failed("all replicas were removed".to_owned()));
        }
        let (contents, turn) = (Mutex::new(contents), tokio::sync::Mutex::default());
        Ok(ReplicaSet { keeper, configured, contents, turn })
    }

    /// Has the log say which replicas there are, if it does not: what a node knows by its own file, from when it had the log alone,
    /// the next one to lead would not know.
    ///
    /// # Errors
    /// If the log takes no record.
    pub async fn begin(&self) -> io::Result<()> {
        match &self.keeper {
            Keeper::Log { log, .. } if log.held().replicas.is_none() => self.note_anew().await,
            _ => Ok(()),
        }
    }

    /// Notes the same once more, for whoever cannot have what was noted before.
    ///
    /// # Errors
    /// If it cannot be kept.
    pub async fn note_anew(&self) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let contents = self.contents.lock().clone();
        self.keeper.write(&contents).await
    }

    /// From which commit on the log must be kept, where all before `first` is needed by nobody else: it must not drop the record that
    /// says which replicas there are. If that stands in its way, it is written anew.
    ///
    /// # Errors
    /// If the log takes no record.
    pub async fn outlives(&self, first: Csn) -> io::Result<Csn> {
        let Keeper::Log { log, .. } = &self.keeper else { return Ok(first) };
        let kept_from = || log.held().replicas.map_or(first, |(place, _)| log.keeping(place).min(first));
        // Whole segments are dropped, and never the last.
        if kept_from() < first.min(log.keeping(log.durable().seq)) {
            self.note_anew().await?;
        }
        Ok(kept_from())
    }

    /// Whether a replica is to be copied before it serves.
    pub fn is_copying(&self, name: &str) -> bool {
        self.contents.lock().copying.iter().any(|copying| copying == name)
    }

    /// Of which version a replica's server was when it was last seen to follow the log.
    pub fn version(&self, name: &str) -> Option<ServerVersion> {
        self.contents.lock().versions.get(name).cloned()
    }

    /// Notes of which version the servers of replicas are.
    pub async fn note_versions<'a>(
        &self,
        versions: impl IntoIterator<Item = (&'a str, ServerVersion)>,
    ) -> io::Result<()> {
        self.change(|contents| {
            contents.versions.extend(versions.into_iter().map(|(name, version)| (name.to_owned(), version)));
        })
        .await
    }

    /// There is one more replica, which is to be copied. The inner error says what stands against it.
    pub async fn add(
        &self,
        replica: &ReplicaSettings,
        version: &ServerVersion,
    ) -> io::Result<Result<(), String>> {
        let configured = self.configured.iter().find(|configured| configured.name == replica.name);
        if let Some(configured) = configured.filter(|configured| *configured != replica) {
            let message = format!(
                "the configuration has \"{}\" at {} (tls: {}), as it was before it was removed",
                replica.name,
                configured.place(),
                configured.tls.word()
            );
            return Ok(Err(message));
        }
        self.change(|contents| {
            contents.forget(&replica.name);
            contents.copying.push(replica.name.clone());
            contents.versions.insert(replica.name.clone(), version.clone());
            if configured.is_none() {
                contents.added.push(Added {
                    name: replica.name.clone(),
                    host: replica.host.clone(),
                    port: replica.port,
                    tls: replica.tls.word().to_owned(),
                });
            }
        })
        .await
        .map(Ok)
    }

    /// A replica is no more of the set.
    pub async fn remove(&self, name: &str) -> io::Result<()> {
        let is_configured = self.configured.iter().any(|configured| configured.name == name);
        self.change(|contents| {
            contents.forget(name);
            if is_configured {
                contents.removed.push(name.to_owned());
            }
        })
        .await
    }

    /// A replica is to be copied anew.
    pub async fn begin_copy(&self, name: &str, version: &ServerVersion) -> io::Result<()> {
        self.change(|contents| {
            contents.versions.insert(name.to_owned(), version.clone());
            contents.copying.retain(|copying| copying != name);
            contents.copying.push(name.to_owned());
        })
        .await
    }

    /// A replica was copied.
    pub async fn end_copy(&self, name: &str) -> io::Result<()> {
        self.change(|contents| contents.copying.retain(|copying| copying != name)).await
    }

    /// Nothing is changed that is not kept.
    async fn change(&self, change: impl FnOnce(&mut Contents)) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let mut changed = self.contents.lock().clone();
        change(&mut changed);
        if changed != *self.contents.lock() {
            self.keeper.write(&changed).await?;
            *self.contents.lock() = changed;
        }
        Ok(())
    }
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keeper::File(path) => path.display().fmt(f),
            Keeper::Log { .. } => f.write_str("in the log which replicas there are"),
        }
    }
}

impl Keeper {
    async fn write(&self, contents: &Contents) -> io::Result<()> {
        match self {
            Keeper::File(path) => write(path, contents),
            Keeper::Log { log, epoch } => {
                let text = toml::to_string(contents).map_err(io::Error::other)?;
                let text = Bytes::from(text);
                let record = Record::other(Kind::REPLICAS, *epoch, text.clone());
                let place = log.append(record).map_err(io::Error::other)?;
                // If another node leads before it is durable, another record may take its place: then this never ends, and
                // everything here is dropped.
                while log
                    .held()
                    .replicas
                    .is_none_or(|(last, body)| last < place || last == place && body != text)
                {
                    tokio::time::sleep(DURABLE_PAUSE).await;
                }
                Ok(())
            }
        }
    }
}

fn read(path: &Path) -> Result<Contents, ServeError> {
    let failed = |what: String| ServeError::Settings(format!("read {}: {what}", path.display()));
    match fs::read_to_string(path) {
        Ok(text) => toml::from_str(&text).map_err(|error| failed(error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Contents::default()),
        Err(error) => Err(failed(error.to_string())),
    }
}

impl Contents {
    fn forget(&mut self, name: &str) {
        self.removed.retain(|removed| removed != name);
        self.copying.retain(|copying| copying != name);
        self.added.retain(|added| added.name != name);
        self.versions.remove(name);
    }
}

/// The configured replicas without those removed, and those added.
fn members(
    configured: &[ReplicaSettings],
    contents: &Contents,
    root: Option<&PathBuf>,
) -> Result<Vec<ReplicaSettings>, String> {
    let mut members = Vec::new();
    for replica in configured {
        if contents.removed.contains(&replica.name) {
            tracing::warn!(
                "replica {} was removed by `onecopy replica remove`; take it out of the configuration, too",
                replica.name
            );
        } else {
            members.push(replica.clone());
        }
    }
    for added in &contents.added {
        let tls =
            ReplicaTls::of_word(&added.tls, root).map_err(|error| format!("{}: {error}", added.name))?;
        let replica =
            ReplicaSettings { name: added.name.clone(), host: added.host.clone(), port: added.port, tls };
        match members.iter().find(|member| member.name == replica.name) {
            None => members.push(replica),
            Some(member) if *member == replica => {}
            Some(member) => tracing::warn!(
                "replica {} was added at {}, and the configuration has it at {}, where it is looked for",
                replica.name,
                replica.place(),
                member.place()
            ),
        }
    }
    Ok(members)
}

/// The whole file or the one before, whatever happens meanwhile.
fn write(path: &Path, contents: &Contents) -> io::Result<()> {
    let text = toml::to_string(contents).map_err(io::Error::other)?;
    let temporary = path.with_extension("toml.new");
    let mut file = File::create(&temporary)?;
    file.write_all(format!("{HEAD}{text}").as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(name: &str) -> ReplicaSettings {
        let (host, tls) = (format!("{name}.example"), ReplicaTls::Disable);
        ReplicaSettings { name: name.to_owned(), host, port: 5432, tls }
    }

    /// With r1 and r2 configured.
    fn load(dir: &Path) -> (ReplicaSet, Vec<String>) {
        let configured = vec![replica("r1"), replica("r2")];
        let path = dir.join(NAME);
        let contents: Contents = fs::read_to_string(&path)
            .map_or_else(|_| Contents::default(), |text| toml::from_str(&text).unwrap());
        let names = members(&configured, &contents, None).unwrap().into_iter().map(|r| r.name).collect();
        let turn = tokio::sync::Mutex::default();
        (ReplicaSet { keeper: Keeper::File(path), configured, contents: Mutex::new(contents), turn }, names)
    }

    #[tokio::test]
    async fn what_was_changed_while_onecopy_ran_stands_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (file, names) = load(dir.path());
        assert_eq!(names, ["r1", "r2"]);
        let version = ServerVersion::new("150004", "2.36");
        file.add(&replica("r3"), &version).await.unwrap().unwrap();
        file.remove("r1").await.unwrap();
        file.begin_copy("r2", &version).await.unwrap();
        let (file, names) = load(dir.path());
        assert_eq!(names, ["r2", "r3"]);
        assert_eq!(["r1", "r2", "r3"].map(|name| file.is_copying(name)), [false, true, true]);
        assert_eq!(
            ["r1", "r2", "r3"].map(|name| file.version(name).map(|v| v.major)),
            [None, Some(15), Some(15)]
        );
        file.note_versions([("r2", ServerVersion::new("180001", ""))]).await.unwrap();
        assert_eq!(load(dir.path()).0.version("r2"), Some(ServerVersion::new("180001", "")));
        file.end_copy("r3").await.unwrap();
        file.remove("r3").await.unwrap();
        file.add(&replica("r1"), &version).await.unwrap().unwrap();
        let (file, names) = load(dir.path());
        assert_eq!(
            names,
            ["r1", "r2"],
            "one that was removed is taken back, one that was added is forgotten"
        );
        assert_eq!(["r1", "r2", "r3"].map(|name| file.is_copying(name)), [true, true, false]);
    }

    #[tokio::test]
    async fn configured_address_counts_where_both_name_a_replica() {
        let elsewhere = ReplicaSettings { port: 9, ..replica("r2") };
        let added = Added { name: "r2".into(), host: "other".into(), port: 1, tls: "require".into() };
        let contents = Contents { added: vec![added], ..Contents::default() };
        let configured = std::slice::from_ref(&elsewhere);
        assert_eq!(members(configured, &contents, None).unwrap(), configured);
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = load(dir.path());
        file.remove("r2").await.unwrap();
        assert!(
            file.add(&elsewhere, &ServerVersion::new("150000", ""))
                .await
                .unwrap()
                .unwrap_err()
                .contains("r2.example:5432")
        );
        assert_eq!(load(dir.path()).1, ["r1"], "refused, nothing has changed");
    }

    #[test]
    fn certificate_that_cannot_be_checked_and_words_that_are_unknown_are_refused() {
        let added = |tls: &str| Added { name: "r3".into(), host: "h".into(), port: 1, tls: tls.into() };
        let of = |tls| members(&[], &Contents { added: vec![added(tls)], ..Contents::default() }, None);
        assert!(of("verify-full").unwrap_err().contains("authority"));
        assert!(of("prefer").unwrap_err().contains("prefer"));
        assert!(toml::from_str::<Contents>("replicas = []").is_err());
    }
}
