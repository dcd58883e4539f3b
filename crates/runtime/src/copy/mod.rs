//! A replica is copied from one in service, at a known commit, while clients go on (docs/replicas.md has the steps, and why
//! the copy is exact).
//!
//! The files stand in the order of the steps. Whatever fails leaves a database without onecopy's schema, which nobody serves
//! from; the next attempt begins with a new snapshot.

mod source;
mod watch;

mod roles;
mod target;

mod rows;

pub use target::beside;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use onecopy_classify::Capturing;
use onecopy_core::Csn;

use crate::copy::source::Rest;
use crate::health::Ill;
use crate::lane::LaneError;
use crate::pool::Pool;
use crate::postgres::version::ServerVersion;
use crate::retention::Gap;
use crate::server::Shared;
use crate::standing::Reason;

/// How often it is looked whether all changes are captured.
const CAPTURED_PAUSE: Duration = Duration::from_millis(50);

/// Why a copy was given up.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("no replica in service contains all that it must yet")]
    NoSource,
    #[error("on {name}: {error}")]
    On { name: String, error: LaneError },
    #[error("pg_dump of {name}: {message}")]
    Dump { name: String, message: String },
    #[error("definitions changed while they were read")]
    DefinitionsChanged,
    #[error("on {source_name} process {pid} waits for a lock of the copy, to execute: {statement}")]
    InTheWay { source_name: String, pid: String, statement: String },
    #[error("{name}: {ill}")]
    Ill { name: String, ill: Ill },
    #[error("sessions of an earlier copy do not end on the server; restart it")]
    SessionsRemain,
    #[error(transparent)]
    Overtaken(#[from] Gap),
    #[error("{0}; the copy is then made by itself")]
    Unequal(String),
    #[error("its server is of version {found}, and was of {noted} when the copy began")]
    OtherVersion { found: ServerVersion, noted: ServerVersion },
    #[error(
        "roles of the server that the other replicas do not have: {}; drop them there (DROP ROLE), or make them through onecopy",
        .0.join(", ")
    )]
    RolesBeyond(Vec<String>),
    #[error(
        "the contents of materialized views are not what their queries give: {}; REFRESH them through onecopy",
        .0.join(", ")
    )]
    StaleViews(Vec<String>),
}

impl CopyError {
    /// For errors of one server's.
    fn on(pool: &Pool) -> impl Fn(LaneError) -> CopyError + use<> {
        let name = pool.name().to_owned();
        move |error| CopyError::On { name: name.clone(), error }
    }
}

/// How far a copy has got; shown as the reason why the replica is out of service.
pub struct Progress<'a> {
    target: &'a Pool,
    source: String,
    csn: Csn,
    tables: usize,
    tables_done: AtomicUsize,
    bytes: u64,
    bytes_done: AtomicU64,
}

impl Progress<'_> {
    /// A step begins, in words.
    fn step(&self, what: &str) {
        tracing::info!(replica = self.target.name(), from = self.source, at = self.csn.0, "copy: {what}");
        self.show(what);
    }

    fn show(&self, what: &str) {
        let detail = format!("copied from {} as of commit {}: {what}", self.source, self.csn.0);
        self.target.standing.leave(Reason::Copying, detail);
    }

    /// So many more bytes of rows have passed.
    fn passed(&self, bytes: usize) {
        self.bytes_done.fetch_add(bytes as u64, Ordering::Relaxed);
        self.show_rows();
    }

    fn table_done(&self) {
        self.tables_done.fetch_add(1, Ordering::Relaxed);
        self.show_rows();
    }

    fn show_rows(&self) {
        let (tables, bytes) =
            (self.tables_done.load(Ordering::Relaxed), self.bytes_done.load(Ordering::Relaxed));
        self.show(&format!(
            "rows, {tables} of {} tables, {} MB (on the source's disk they take {} MB)",
            self.tables,
            bytes >> 20,
            self.bytes >> 20
        ));
    }
}

/// Makes a replica a copy of another one, which it has just begun to follow the log from; returns the commit up to which it
/// contains everything.
///
/// # Errors
/// Why this attempt was given up; it may be tried again.
pub async fn copy(shared: &Arc<Shared>, target: &Arc<Pool>) -> Result<Csn, CopyError> {
    target.standing.leave(Reason::Copying, "waiting for a replica in service to be copied from".to_owned());
    let floor = until_captured(shared, target).await;
    let source = source::choose(shared, target, floor).await?;
    let ill = watch::until_ill(shared, target).await?;
    let mut ill = pin!(ill);
    let filled = tokio::select! {
        biased;
        filled = fill(shared, &source, target) => filled,
        error = watch::until_in_the_way(shared, &source, target) => Err(error),
        error = &mut ill => Err(error),
    };
    let (rest, progress) = match filled {
        Ok(filled) => filled,
        Err(error) => {
            // Whoever waits for its locks shall not wait until the server has noticed that nobody listens any more.
            watch::end_sessions(shared, &source, target).await;
            return Err(error);
        }
    };
    let completing = async {
        progress.step("sequences, indexes and constraints");
        target::complete(shared, target, &rest).await?;
        progress.step("last transaction");
        target::follow(shared, target, &rest).await
    };
    tokio::select! {
        biased;
        completed = completing => completed?,
        gap = watch::until_overtaken(shared, progress.csn) => return Err(gap.into()),
        error = &mut ill => return Err(error),
    }
    tracing::info!(replica = target.name(), from = source.name(), at = progress.csn.0, "replica was copied");
    Ok(progress.csn)
}

/// Where servers are of different versions: waits until nobody goes on whose changes may be replayed, and returns the last commit
/// that may hold any, which must be part of the snapshot.
async fn until_captured(shared: &Shared, target: &Pool) -> Csn {
    while shared.classifier.manner().captures != Capturing::Never {
        let open = shared.classifier.replaying();
        if open == 0 {
            return Csn(shared.scheduler.status().decided);
        }
        let detail = format!("waiting for {open} sessions whose transactions began before rows were shipped");
        target.standing.leave(Reason::Copying, detail);
        tokio::time::sleep(CAPTURED_PAUSE).await;
    }
    Csn(0)
}

/// As long as the source is needed: up to the last row.
async fn fill<'a>(
    shared: &Arc<Shared>,
    source: &Arc<Pool>,
    target: &'a Arc<Pool>,
) -> Result<(Rest, Progress<'a>), CopyError> {
    let exported = source::export(shared, source, target).await?;
    let csn = exported.position.csn;
    shared.retention.begin_anew(target.replica, csn)?;
    let progress = Progress {
        target,
        source: source.name().to_owned(),
        csn,
        tables: exported.tables.len(),
        tables_done: AtomicUsize::new(0),
        bytes: exported.tables.iter().map(|table| table.bytes).sum(),
        bytes_done: AtomicU64::new(0),
    };
    let filling = async {
        progress.step("roles, database and definitions");
        target::make(shared, target, &exported).await?;
        progress.step("rows");
        rows::copy(shared, source, target, &exported, &progress).await
    };
    tokio::select! {
        biased;
        filled = filling => filled?,
        gap = watch::until_overtaken(shared, csn) => return Err(gap.into()),
    }
    Ok((exported.end(), progress))
}
