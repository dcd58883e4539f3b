//! What onecopy's console says of the replicas while they fail.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use crate::connection::Target;
use crate::{Error, Result};

/// How often it is asked.
const EVERY: Duration = Duration::from_millis(20);
/// A console that cannot be reached is tried again after this.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// Where there are several consoles, one that takes longer is left for the next one.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A replica came into another state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// When it was seen, in milliseconds from the beginning of the load.
    pub at_ms: u64,
    /// The replica.
    pub replica: String,
    /// Whether it is in service.
    pub up: bool,
    /// Why it is not, in a word of `onecopy status`.
    pub because: String,
    /// The same in full.
    pub detail: String,
}

/// The verdict of VERIFY on one replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// The replica.
    pub replica: String,
    /// The commit at which all were compared.
    pub csn: u64,
    /// `reference`, `identical`, or where it differs.
    pub verdict: String,
}

impl Verified {
    /// Whether it holds what the others hold.
    #[must_use]
    pub fn is_identical(&self) -> bool {
        matches!(self.verdict.as_str(), "reference" | "identical")
    }
}

/// Asks until it is dropped.
pub(crate) struct Watch {
    /// Which replicas are in service, by name.
    up: watch::Receiver<BTreeMap<String, bool>>,
    changes: Arc<Mutex<Vec<Change>>>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Times count from `begin`.
    pub(crate) fn start(dsn: &str, begin: Instant) -> Result<Watch> {
        let console = Target::parse(dsn)?.on_database(CONSOLE);
        let (sender, up) = watch::channel(BTreeMap::new());
        let changes = Arc::<Mutex<Vec<Change>>>::default();
        let asking = ask(console, begin, sender, changes.clone());
        Ok(Watch { up, changes, task: tokio::spawn(asking) })
    }

    /// Returns when these replicas are in service. Does not return while nobody answers.
    pub(crate) async fn until_all_up(&self, replicas: &[String]) {
        for replica in replicas {
            self.until(replica, true).await;
        }
    }

    /// Returns when this replica is in service, or is not. Does not return while nobody answers.
    pub(crate) async fn until(&self, replica: &str, is_up: bool) {
        let mut up = self.up.clone();
        // The sender lives as long as the task, which is as long as this.
        let _ = up.wait_for(|up| up.get(replica) == Some(&is_up)).await;
    }

    /// Returns when no such replica is there any more. Does not return while nobody answers.
    pub(crate) async fn until_gone(&self, replica: &str) {
        let mut up = self.up.clone();
        // Nobody is left only as long as nobody answers.
        let _ = up.wait_for(|up| !up.is_empty() && !up.contains_key(replica)).await;
    }

    /// Those in service now.
    pub(crate) fn in_service(&self) -> Vec<String> {
        let up = self.up.borrow();
        up.iter().filter(|(_, is_up)| **is_up).map(|(replica, _)| replica.clone()).collect()
    }

    /// When this replica was first seen out of service at or after a time.
    pub(crate) fn out_since(&self, replica: &str, since_ms: u64) -> Option<u64> {
        self.when(replica, false, since_ms).first().copied()
    }

    /// When this replica was last seen to come back into service at or after a time.
    pub(crate) fn last_up_since(&self, replica: &str, since_ms: u64) -> Option<u64> {
        self.when(replica, true, since_ms).last().copied()
    }

    fn when(&self, replica: &str, is_up: bool, since_ms: u64) -> Vec<u64> {
        let changes = self.changes.lock().expect("nobody panics with the changes");
        let ours = changes.iter().filter(|change| (&*change.replica, change.up) == (replica, is_up));
        ours.map(|change| change.at_ms).filter(|at_ms| *at_ms >= since_ms).collect()
    }

    pub(crate) fn changes(&self) -> Vec<Change> {
        self.changes.lock().expect("nobody panics with the changes").clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Compares all replicas in service by onecopy's own means.
pub(crate) async fn verify(dsn: &str) -> Result<Vec<Verified>> {
    let client = Target::parse(dsn)?.on_database(CONSOLE).connect().await?;
    let said = client.simple_query("VERIFY").await.map_err(Error::database("compare the replicas"))?;
    let verified = |row: &SimpleQueryRow| Verified {
        replica: cell(row, "replica"),
        csn: cell(row, "csn").parse().unwrap_or(0),
        verdict: cell(row, "verdict"),
    };
    Ok(rows(&said).map(verified).collect())
}

/// The database under whose name the console answers.
pub(crate) const CONSOLE: &str = "onecopy";

async fn ask(
    console: Target,
    begin: Instant,
    up: watch::Sender<BTreeMap<String, bool>>,
    changes: Arc<Mutex<Vec<Change>>>,
) {
    let mut last: BTreeMap<String, Change> = BTreeMap::new();
    let mut host = 0;
    loop {
        // Whoever waits for a replica bounds that time; why nobody answers, the program itself says.
        if let Ok((client, connected)) = console.connect_from(host, |_| ()).await {
            host = connected;
            while let Some(now) = in_time(&console, replicas(&client, begin)).await {
                let are_up = now.iter().map(|change| (change.replica.clone(), change.up)).collect();
                for change in now {
                    let same = |last: &Change| (last.up, &last.because) == (change.up, &change.because);
                    if !last.get(&change.replica).is_some_and(same) {
                        last.insert(change.replica.clone(), change.clone());
                        changes.lock().expect("nobody panics with the changes").push(change);
                    }
                }
                // Who waits for a state finds the change to it then.
                up.send_replace(are_up);
                tokio::time::sleep(EVERY).await;
            }
            host += 1;
        }
        // What is in service then is not known.
        up.send_replace(BTreeMap::new());
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

async fn in_time<T>(
    console: &Target,
    asking: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
) -> Option<T> {
    if console.host_count() == 1 {
        return asking.await.ok();
    }
    tokio::time::timeout(ANSWER_MAX, asking).await.ok()?.ok()
}

async fn replicas(
    client: &Client,
    begin: Instant,
) -> std::result::Result<Vec<Change>, tokio_postgres::Error> {
    let said = client.simple_query("SHOW REPLICAS").await?;
    let at_ms = begin.elapsed().as_millis() as u64;
    let change = |row: &SimpleQueryRow| Change {
        at_ms,
        replica: cell(row, "name"),
        up: cell(row, "state") == "up",
        because: cell(row, "out_because"),
        detail: cell(row, "detail"),
    };
    Ok(rows(&said).map(change).collect())
}

/// Which replicas are not in service now, and why.
pub(crate) async fn out_of_service(dsn: &str) -> Result<Vec<String>> {
    let console = Target::parse(dsn)?.on_database(CONSOLE).connect().await?;
    let now = replicas(&console, Instant::now()).await.map_err(Error::database("ask for the replicas"))?;
    let out = now.into_iter().filter(|change| !change.up);
    Ok(out.map(|Change { replica, because, detail, .. }| format!("{replica}, {because}: {detail}")).collect())
}

pub(crate) fn rows(said: &[SimpleQueryMessage]) -> impl Iterator<Item = &SimpleQueryRow> {
    said.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })
}

pub(crate) fn cell(row: &SimpleQueryRow, column: &str) -> String {
    row.try_get(column).ok().flatten().unwrap_or_default().to_owned()
}
