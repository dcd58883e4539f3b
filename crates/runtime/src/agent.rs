//! The agent of one replica: fences it, learns what it contains, and applies to it what was executed elsewhere.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onecopy_core::{Csn, Event, ReplicaId};
use onecopy_log::{AppendError, Seq};
use onecopy_wire::WireError;
use onecopy_wire::backend::{Backend, ErrorFields, row_count};
use onecopy_wire::frontend::build;

use crate::ancestry::Stranger;
use crate::annulments::{self, Annulments, How, Mistaken, Verdict};
use crate::bulk::{self, Form, Forms, Many, Step};
use crate::clock::{Deadline, Stopwatch};
use crate::exclusions::{self, Exclusions};
use crate::health::{self, Ill};
use crate::lane::{Lane, LaneError, StatementKey};
use crate::pool::Pool;
use crate::postgres::connect::{AGENT_MARK, Connector, Credentials, SESSION_MARK};
use crate::postgres::progress::{self, FenceError, Position};
use crate::record::{BadRecord, Record, What, Write};
use crate::retention::{Gap, Retention};
use crate::scheduler::{Scheduler, Writes};
use crate::session::environment::hash_of;
use crate::standing::Reason;

/// Records that one database transaction may contain: they share its beginning, its progress and its end.
const GROUP_MAX: usize = 256;
/// Bytes of records after which a database transaction is not made longer.
const GROUP_LEN: usize = 1024 * 1024;
/// Commits that are sent before any answer is read: between two such pipelines, what is prepared can be forgotten.
const PIPELINE_MAX: u64 = 1_024;
/// Statements of which an agent remembers how they can be put together.
const FORMS_MAX: usize = 1_000;
/// Bytes of output after which a pipeline is sent on.
const SEND_LEN: usize = 64 * 1024;
/// Without anything to apply for so long, an agent looks whether there is something to prune. And so often it asks what the
/// server has flushed.
const PRUNE_PAUSE: Duration = Duration::from_secs(1);
/// Nobody holds a lock that a reservation of sequence values needs for longer, but a transaction that waits for it.
const RESERVATION_TIMEOUT: &str = "SET LOCAL lock_timeout = '1s'";
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// So often it is looked whether a commit that is being applied keeps more waiting than memory has room for.
const STUCK_PAUSE: Duration = Duration::from_secs(5);
/// For so long, or as long as it takes to refuse a commit, a replica stays by its word that it refuses it.
const WORD_MIN: Duration = Duration::from_secs(30);
const WORD_PAUSE: Duration = Duration::from_millis(20);
/// Characters of why a commit is annulled, in the log.
const REASON_LEN_MAX: usize = 1024;
/// So often may one commit fail before the replica serves again only with that commit.
const FAILURES_MAX: u32 = 3;

/// Where decisions are found that are no longer in memory.
pub trait History: Send + Sync {
    /// The epoch and the body of a decision, `None` if the log does not contain it.
    fn read(&self, csn: Csn) -> std::io::Result<Option<(u64, Bytes)>>;
    /// Whether the decisions continue what a replica contains.
    fn check(&self, position: &Position) -> Result<(), Stranger>;
    /// Has the log say that a commit never happens, in the record at this place.
    fn annul(&self, csn: Csn, reason: &str) -> Result<Seq, AppendError>;
    /// Whether a record is durable.
    fn is_durable(&self, seq: Seq) -> bool;
}

/// The agent of one replica.
pub struct Agent {
    pub replica: ReplicaId,
    pub name: String,
    pub pool: Arc<Pool>,
    pub scheduler: Arc<Scheduler>,
    pub history: Arc<dyn History>,
    pub who: Credentials,
    pub log_id: String,
    pub epoch: u64,
    /// Which commits the log keeps for it.
    pub retention: Arc<Retention>,
    /// Whose contents are wrong: until that is noted on a replica it does not serve, whatever else happens.
    pub exclusions: Arc<Exclusions>,
    /// Commits that no replica can apply.
    pub annulments: Arc<Annulments>,
    /// Bytes of writes that may wait for one commit of others.
    pub unapplied_bytes_max: u64,
}

#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error(transparent)]
    Lane(#[from] LaneError),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("commit {csn}: {source}")]
    Record { csn: Csn, source: BadRecord },
    #[error("commit {0} is in neither memory nor log")]
    Missing(Csn),
    #[error("commit {csn}: read the commit log: {source}")]
    Log { csn: Csn, source: std::io::Error },
    #[error("commit {0} is being annulled")]
    InDoubt(Csn),
    #[error("commit {csn}: {}: {}", fields.code.as_str(), fields.message)]
    RefusedForGood { csn: Csn, fields: Box<ErrorFields> },
    #[error(transparent)]
    Mistaken(#[from] Mistaken),
    #[error(
        "commit {0} has kept it for seconds, and more commits wait than limits.unapplied_bytes_max allows; another session may hold a lock there: pg_locks and pg_stat_activity on its server tell"
    )]
    Stuck(Csn),
    #[error("commit {0} waits for a session of onecopy that itself waits for a later one")]
    Entangled(Csn),
    #[error("commit {csn}: {}: {}", fields.code.as_str(), fields.message)]
    Refused { csn: Csn, fields: Box<ErrorFields> },
    #[error("commit {csn}: a write affected {found:?} rows here and {expected:?} at its home")]
    Differs { csn: Csn, expected: Option<u64>, found: Option<u64> },
    #[error(
        "commit {csn}: a write affected {found:?} rows here and {expected:?} at its home, and is committed here"
    )]
    Diverged { csn: Csn, expected: Option<u64>, found: Option<u64> },
    #[error("its contents differ from those of the others ({0}); copy it anew from one of them")]
    Excluded(String),
    #[error(transparent)]
    NotFenced(FenceError),
    #[error("it follows log {found}, not {expected}")]
    OtherLog { found: String, expected: String },
    #[error(transparent)]
    Gone(#[from] Gap),
    #[error(transparent)]
    Stranger(#[from] Stranger),
    #[error("onecopy's schema is missing")]
    NoSchema,
    #[error("{0}")]
    Suspected(String),
    #[error(transparent)]
    Ill(#[from] Ill),
}

impl ApplyError {
    /// The commit that is at fault, and not the connection.
    fn failing(&self) -> Option<Csn> {
        match self {
            ApplyError::Missing(csn)
            | ApplyError::Record { csn, .. }
            | ApplyError::Log { csn, .. }
            | ApplyError::InDoubt(csn)
            | ApplyError::Stuck(csn)
            | ApplyError::Entangled(csn)
            | ApplyError::Refused { csn, .. }
            | ApplyError::RefusedForGood { csn, .. }
            | ApplyError::Differs { csn, .. }
            | ApplyError::Diverged { csn, .. } => Some(*csn),
            _ => None,
        }
    }

    /// What to call it in the replica's status.
    fn reason(&self, was_up: bool) -> Reason {
        match self {
            ApplyError::Diverged { .. } | ApplyError::Excluded(_) => Reason::Differs,
            ApplyError::OtherLog { .. } => Reason::OtherLog,
            ApplyError::Gone(_) => Reason::RecordsGone,
            ApplyError::Stranger(_) | ApplyError::Mistaken(_) => Reason::OtherHistory,
            ApplyError::NoSchema => Reason::NoSchema,
            ApplyError::NotFenced(_) => Reason::SessionsRemain,
            ApplyError::Ill(Ill::Silent(_)) => Reason::Silent,
            ApplyError::Suspected(_) => Reason::ConnectionLost,
            ApplyError::Stuck(_) | ApplyError::Entangled(_) => Reason::Stuck,
            _ if self.failing().is_some() || matches!(self, ApplyError::Wire(_)) => Reason::RecordFails,
            _ if was_up => Reason::ConnectionLost,
            _ => Reason::Unreachable,
        }
    }
}

/// What has gone wrong on a replica since it was last well.
struct Setbacks {
    /// How long to wait before the next attempt.
    pause: Duration,
    /// A commit that cannot be applied, and how often it was tried.
    failing: Option<(Csn, u32)>,
}

impl Default for Setbacks {
    fn default() -> Setbacks {
        Setbacks { pause: RECONNECT_MIN, failing: None }
    }
}

impl Setbacks {
    /// Notes an attempt that has failed; returns how long to wait before the next.
    /// `told` is the last commit that it could contain.
    fn note(&mut self, error: &ApplyError, told: Csn) -> Duration {
        if let Some(csn) = error.failing() {
            let before = self.failing.filter(|(known, _)| *known == csn).map_or(0, |(_, times)| times);
            let comes_again = match error {
                ApplyError::Stuck(_) => true,
                ApplyError::Refused { fields, .. } => annulments::is_lasting(fields),
                _ => false,
            };
            let times = if comes_again { (before + 1).max(FAILURES_MAX) } else { before + 1 };
            // Who was stuck lacks more than that one, and is not to serve thousands of commits behind.
            let csn = if matches!(error, ApplyError::Stuck(_)) { csn.max(told) } else { csn };
            self.failing = Some((csn, times));
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(RECONNECT_MAX);
        pause
    }

    /// The replica contains this commit.
    fn reached(&mut self, csn: Csn) {
        self.pause = RECONNECT_MIN;
        self.failing.take_if(|(failing, _)| *failing <= csn);
    }

    /// The commit without which the replica is not to serve again: it would only leave service once more.
    fn must_apply(&self) -> Option<Csn> {
        self.failing.filter(|(_, times)| *times >= FAILURES_MAX).map(|(csn, _)| csn)
    }
}

/// What an agent waits for until its server has flushed it.
struct Securing {
    asked: Stopwatch,
    /// A commit that the server contains, and the end of the server's own log behind it.
    pending: Option<(Csn, String)>,
}

impl Default for Securing {
    fn default() -> Securing {
        Securing { asked: Stopwatch::start(), pending: None }
    }
}

impl Securing {
    fn is_due(&self) -> bool {
        u128::from(self.asked.elapsed_ns()) >= PRUNE_PAUSE.as_nanos()
    }
}

/// One database transaction of the pipeline.
struct Unit {
    to: Csn,
    /// Expected rows of each command in it; the outer `None` is a command of ours that need not be compared.
    expected: VecDeque<Option<Option<u64>>>,
    commands: usize,
    /// Roles may have other names when it is applied.
    changes_roles: bool,
    failure: Option<ApplyError>,
}

impl Agent {
    /// Runs until the process ends.
    pub async fn run(self) {
        let mut setbacks = Setbacks::default();
        loop {
            let began = Stopwatch::start();
            let error = match self.serve(&mut setbacks).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            let was_up = self.pool.is_up();
            self.pool.close();
            self.retention.leave(self.replica);
            self.annulments.leave(self.replica);
            let pause = setbacks.note(&error, Csn(self.scheduler.status().told));
            let mut detail = match setbacks.failing {
                Some((csn, times)) if error.failing() == Some(csn) => {
                    format!("{error} (tried {times} times)")
                }
                _ => error.to_string(),
            };
            let mut refused = None;
            if let ApplyError::RefusedForGood { csn, fields } = &error {
                detail.extend(self.refuse(*csn, fields).await);
                refused = Some(*csn);
            }
            let detail = match error {
                ApplyError::Gone(_) => detail,
                _ if self.retention.may_lack(self.replica) => format!(
                    "{detail}; the commit log may no longer hold what it lacks, and then it must be copied anew from another replica"
                ),
                _ => detail,
            };
            let is_news = self.pool.standing.leave(error.reason(was_up), detail);
            if was_up {
                tracing::warn!(replica = %self.name, %error, "replica left service");
                self.scheduler.handle(Event::ReplicaDown { replica: self.replica });
            } else if is_news {
                tracing::warn!(replica = %self.name, %error, "replica stays out of service");
            } else {
                tracing::debug!(replica = %self.name, %error, "replica stays out of service");
            }
            match refused {
                Some(csn) => self.stay_by_word(csn, began.elapsed_ns()).await,
                None => tokio::time::sleep(pause).await,
            }
        }
    }

    /// This replica, out of service, cannot apply a commit. If none can, it is annulled; else returns what else to say.
    async fn refuse(&self, csn: Csn, fields: &ErrorFields) -> Option<String> {
        let (_, _, decided_in) = self.record(csn).ok()?;
        let is_own = decided_in.unsigned_abs() == self.epoch;
        match self.annulments.refuse(self.replica, csn, fields, is_own, self.scheduler.contained()) {
            Verdict::Keep => None,
            Verdict::Await(others) => Some(format!(
                "; it is rolled back if every replica refuses it, which has not been heard of {}",
                others.join(", ")
            )),
            Verdict::AwaitOperator => Some(format!(
                "; every replica refuses it, and it was decided before onecopy was started: somebody may have been told of it. Remove what the error names; or, to roll it back, start with --annul {csn}"
            )),
            Verdict::Annul => {
                let message = fields.message.chars().take(REASON_LEN_MAX);
                let reason = format!("{}: {}", fields.code.as_str(), message.collect::<String>());
                tracing::error!(%csn, reason, "no replica can apply the commit, and none has it: it is rolled back");
                if let Err(error) = self.annul(csn, &reason).await {
                    // The log has failed, and with it the process ends.
                    tracing::error!(%csn, %error, "note in the commit log that the commit is rolled back");
                }
                None
            }
        }
    }

    async fn annul(&self, csn: Csn, reason: &str) -> Result<(), AppendError> {
        let seq = self.history.annul(csn, reason)?;
        while !self.history.is_durable(seq) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Its client must not hear of a commit from the first replica that passes over it.
        self.annulments.confirm(csn, |reason| self.scheduler.annul(csn, reason));
        Ok(())
    }

    /// Does not try a commit again that it has refused, until the others have had the time to do so, too.
    async fn stay_by_word(&self, csn: Csn, took_ns: u64) {
        let deadline = Deadline::after(WORD_MIN.max(Duration::from_nanos(took_ns)));
        while !deadline.has_passed() && self.annulments.how(csn) != How::Never {
            tokio::time::sleep(WORD_PAUSE).await;
        }
    }

    async fn serve(&self, setbacks: &mut Setbacks) -> Result<std::convert::Infallible, ApplyError> {
        let queue = &self.scheduler.agents[usize::from(self.replica.0)];
        let Connector { silence, .. } = self.pool.connector;
        let mut lane = self.pool.connector.connect_marked(&self.who, AGENT_MARK).await?;
        let probe = self.pool.connector.connect_unmarked(&self.who).await?;
        let error = tokio::select! {
            biased;
            result = self.follow(&mut lane, setbacks) => match result {
                Ok(never) => match never {},
                Err(error) => error,
            },
            // Whatever the agent itself is waiting for, it may wait for it in vain.
            reason = queue.suspected() => ApplyError::Suspected(reason),
            ill = health::watch(probe, silence) => ill.into(),
        };
        // Others have left answers behind on the connection: then the next one is for this.
        let is_clean = matches!(
            error,
            ApplyError::Refused { .. }
                | ApplyError::Differs { .. }
                | ApplyError::Diverged { .. }
                | ApplyError::Excluded(_)
        );
        if self.exclusions.reason(self.replica).is_some() && is_clean {
            match health::answered(self.exclude(&mut lane), silence).await {
                Some(Ok(())) => {}
                Some(Err(lost)) => {
                    tracing::error!(replica = %self.name, error = %lost, "note on the replica that it differs; trying again");
                }
                None => {
                    tracing::error!(replica = %self.name, "the replica is silent: note on it that it differs; trying again")
                }
            }
        }
        Err(error)
    }

    /// Brings the replica into service and applies what the others execute.
    async fn follow(
        &self,
        lane: &mut Lane,
        setbacks: &mut Setbacks,
    ) -> Result<std::convert::Infallible, ApplyError> {
        let queue = &self.scheduler.agents[usize::from(self.replica.0)];
        lane.command(
            "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0",
        )
        .await?;
        progress::fence(lane).await.map_err(|error| match error {
            FenceError::Lane(error) => ApplyError::Lane(error),
            remain @ FenceError::SessionsRemain(_) => ApplyError::NotFenced(remain),
        })?;
        let mut position = progress::read(lane).await?.ok_or(ApplyError::NoSchema)?;
        if position.log_id != self.log_id {
            self.annulments.stand_apart(self.replica);
            return Err(ApplyError::OtherLog { found: position.log_id, expected: self.log_id.clone() });
        }
        self.scheduler.note_contained(position.csn);
        // From here on what is annulled is annulled without this replica's having committed it, or is found below.
        self.annulments.enter(self.replica);
        if let Some(reason) = position.differs.take() {
            self.annulments.stand_apart(self.replica);
            return Err(ApplyError::Excluded(reason));
        }
        if let Some(reason) = self.exclusions.reason(self.replica) {
            return Err(ApplyError::Excluded(reason));
        }
        let (first, passed_over) = progress::passed_over(lane).await?;
        let fits = || -> Result<(), ApplyError> {
            self.history.check(&position)?;
            self.retention.enter(self.replica, position.csn)?;
            let first = first.max(self.retention.first());
            Ok(self.annulments.check(&passed_over, first, position.csn)?)
        };
        fits().inspect_err(|error| {
            if !matches!(error, ApplyError::Stranger(Stranger::Unreadable(_))) {
                self.annulments.stand_apart(self.replica);
            }
        })?;
        let mut forms = Forms::default();
        let mut known_changes = self.pool.definitions_changed();
        if let Some(csn) = setbacks.must_apply()
            && position.csn < csn
        {
            if let Err(error) = self.apply_run(lane, &mut forms, position.csn.next(), csn).await {
                return Err(self.judge(lane, error).await);
            }
            position.csn = csn;
            setbacks.reached(csn);
        }
        queue.clear();
        self.pool.open(lane.backend.pid);
        self.pool.standing.enter();
        tracing::info!(replica = %self.name, applied = position.csn.0, "replica entered service");
        self.scheduler.handle(Event::ReplicaUp { replica: self.replica, applied: position.csn });
        self.exclusions.enter(self.replica);
        // What was there before is done once, from the lowest row on.
        let mut pruned = Csn(0);
        let mut securing = Securing::default();
        loop {
            let run = tokio::select! {
                biased;
                run = queue.next() => Some(run),
                // Nothing is asked of the server now: what comes is a notice, or the end of the connection.
                received = lane.fill() => {
                    received?;
                    continue;
                }
                () = tokio::time::sleep(PRUNE_PAUSE) => None,
            };
            let applied = match run {
                Some((from, to)) => {
                    let changes = self.pool.definitions_changed();
                    if changes != known_changes {
                        // What was prepared before keeps the types that its parameters had then.
                        known_changes = changes;
                        forget(lane, &mut forms).await?;
                    }
                    self.apply_in_service(lane, &mut forms, from, to).await?;
                    to
                }
                // A replica that executes everything itself has nothing to apply, but rows to prune all the same.
                None => self.applied(),
            };
            setbacks.reached(applied);
            if progress::is_due(pruned, applied) {
                progress::prune(lane, pruned, applied).await?;
                pruned = applied;
            }
            if securing.is_due() {
                self.secure(lane, &mut securing).await?;
            }
        }
    }

    /// Out of service the replica is fenced, so that nothing is under way there but what it has just refused. It has refused
    /// that for good if it could pass over it.
    async fn judge(&self, lane: &mut Lane, error: ApplyError) -> ApplyError {
        match error {
            ApplyError::Refused { csn, fields } if annulments::is_lasting(&fields) => {
                match could_pass_over(lane, csn).await {
                    Ok(true) => ApplyError::RefusedForGood { csn, fields },
                    Ok(false) => ApplyError::Refused { csn, fields },
                    Err(error) => error.into(),
                }
            }
            error => error,
        }
    }

    /// What the core knows the replica to contain.
    fn applied(&self) -> Csn {
        let status = self.scheduler.status();
        status.replicas.get(usize::from(self.replica.0)).map_or(Csn(0), |replica| Csn(replica.applied))
    }

    /// Finds out what of the replica's commits has surely been flushed: it must not be asked for again after a crash.
    async fn secure(&self, lane: &mut Lane, securing: &mut Securing) -> Result<(), ApplyError> {
        // First what it contains, then how far its own log goes: everything that it contains is in that.
        let applied = self.applied();
        securing.asked = Stopwatch::start();
        if securing.pending.is_none() && self.retention.secured(self.replica) >= Some(applied) {
            return Ok(());
        }
        let until = securing.pending.as_ref().map_or("0/0", |(_, until)| until.as_str());
        let rows = lane
            .query(&format!(
                "SELECT pg_catalog.pg_current_wal_flush_lsn() >= '{until}', pg_catalog.pg_current_wal_insert_lsn()"
            ))
            .await?;
        let mut values = rows.into_iter().next().unwrap_or_default().into_iter().flatten();
        let (Some(is_flushed), Some(inserted)) = (values.next(), values.next()) else { return Ok(()) };
        if is_flushed == "t"
            && let Some((csn, _)) = securing.pending.take()
        {
            self.retention.secure(self.replica, csn);
        }
        securing.pending.get_or_insert((applied, inserted));
        Ok(())
    }

    /// Keeps a replica whose contents are wrong out of service, until it is copied anew; but never the last one: its
    /// contents are all that there is.
    async fn exclude(&self, lane: &mut Lane) -> Result<(), LaneError> {
        let serves = |replica: ReplicaId| {
            let replicas = self.scheduler.status().replicas;
            replicas.get(usize::from(replica.0)).is_some_and(|replica| replica.up)
        };
        match self.exclusions.decide(self.replica, serves) {
            None => {}
            Some(exclusions::Verdict::Keep(difference)) => {
                tracing::error!(replica = %self.name, difference, "the last replica in service differs from what was executed elsewhere; it goes on serving");
            }
            Some(exclusions::Verdict::Exclude(difference)) => {
                tracing::error!(replica = %self.name, difference, "replica differs from the others; it stays out of service until it is copied anew from one of them");
                progress::exclude(lane, &difference).await?;
                self.exclusions.noted(self.replica);
            }
        }
        Ok(())
    }

    /// Applies a run, but does not let the others' commits wait for it without bound.
    async fn apply_in_service(
        &self,
        lane: &mut Lane,
        forms: &mut Forms,
        from: Csn,
        to: Csn,
    ) -> Result<(), ApplyError> {
        let agent_pid = lane.backend.pid;
        let (mut before, mut decided) = (self.applied(), self.scheduler.decided_bytes());
        let mut applying = std::pin::pin!(self.apply_run(lane, forms, from, to));
        loop {
            tokio::select! {
                biased;
                applied = &mut applying => return applied,
                () = tokio::time::sleep(STUCK_PAUSE) => {}
            }
            let applied = self.applied();
            if applied != before {
                (before, decided) = (applied, self.scheduler.decided_bytes());
            } else if self.scheduler.decided_bytes() - decided > self.unapplied_bytes_max {
                return Err(ApplyError::Stuck(applied.next()));
            } else {
                match self.is_entangled(agent_pid).await {
                    Ok(true) => return Err(ApplyError::Entangled(applied.next())),
                    Ok(false) => {}
                    // Whether the server is well, others look after.
                    Err(error) => {
                        tracing::debug!(replica = %self.name, %error, "ask for whom the agent waits")
                    }
                }
            }
        }
    }

    /// Whether what the agent applies waits for a lock of a transaction of onecopy's own that is idle there: it must have its
    /// turn behind what the agent applies, which a server cannot know.
    async fn is_entangled(&self, agent_pid: u32) -> Result<bool, LaneError> {
        let mut lane = self.pool.connector.connect_unmarked(&self.who).await?;
        let sql = format!(
            "SELECT 1 FROM pg_catalog.unnest(pg_catalog.pg_blocking_pids({agent_pid})) blocking (pid) \
             JOIN pg_catalog.pg_stat_activity a ON a.pid = blocking.pid AND a.state LIKE 'idle in transaction%' \
             JOIN pg_catalog.pg_locks mark ON mark.pid = a.pid AND mark.locktype = 'advisory' \
             AND mark.classid::bigint = {SESSION_MARK}"
        );
        Ok(!self.pool.connector.in_time(lane.query(&sql)).await?.is_empty())
    }

    /// Applies a run; what fails is tried once more from a clean transaction, one record at a time and with everything
    /// prepared anew.
    async fn apply_run(
        &self,
        lane: &mut Lane,
        forms: &mut Forms,
        from: Csn,
        to: Csn,
    ) -> Result<(), ApplyError> {
        let mut next = from;
        let mut retried = None;
        let mut group_max = GROUP_MAX;
        while next <= to {
            let until = Csn(to.0.min(next.0.saturating_add(PIPELINE_MAX - 1)));
            match self.apply_pipeline(lane, forms, next, until, group_max).await {
                Ok(()) => next = until.next(),
                Err((applied, error @ (ApplyError::Refused { .. } | ApplyError::Differs { .. })))
                    if group_max > 1 || retried != Some(applied) =>
                {
                    if self.pool.is_up() {
                        tracing::warn!(replica = %self.name, %error, "apply failed; trying again");
                    }
                    retried = (group_max == 1).then_some(applied);
                    group_max = 1;
                    // What failed left its transaction open and aborted.
                    lane.command("ROLLBACK").await?;
                    lane.unprepare_all();
                    lane.command("DEALLOCATE ALL").await?;
                    // What was put together may be at fault: it is not tried again on this connection.
                    forms.values_mut().for_each(|form| *form = None);
                    next = applied.next();
                }
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends everything, then reads all answers. Returns with an error what was applied before it.
    async fn apply_pipeline(
        &self,
        lane: &mut Lane,
        forms: &mut Forms,
        from: Csn,
        to: Csn,
        group_max: usize,
    ) -> Result<(), (Csn, ApplyError)> {
        let mut applied = from.previous();
        self.pipeline(lane, forms, from, to, group_max, &mut applied).await.map_err(|error| (applied, error))
    }

    async fn pipeline(
        &self,
        lane: &mut Lane,
        forms: &mut Forms,
        from: Csn,
        to: Csn,
        group_max: usize,
        applied: &mut Csn,
    ) -> Result<(), ApplyError> {
        let mut units = VecDeque::new();
        let mut group: Vec<(Csn, Arc<Record>)> = Vec::new();
        let mut group_len = 0;
        let mut epoch = 0;
        for csn in from.0..=to.0 {
            let (record, len, decided_in) = self.record(Csn(csn))?;
            // What is passed over has a row of progress of its own.
            let fits = group.len() < group_max
                && epoch >= 0
                && decided_in >= 0
                && group_len + len <= GROUP_LEN
                && group
                    .last()
                    .is_none_or(|(_, last)| last.user == record.user && last.settings == record.settings)
                && group.iter().all(|(_, last)| last.is_sociable())
                && (group.is_empty() || record.is_sociable());
            if !fits && !group.is_empty() {
                let first = units.is_empty();
                units.push_back(self.send_group(lane, forms, &group, epoch, first).await?);
                group.clear();
                group_len = 0;
            }
            epoch = decided_in;
            group.push((Csn(csn), record));
            group_len += len;
            if lane.output.len() > SEND_LEN {
                lane.flush_while_reading().await?;
            }
        }
        let first = units.is_empty();
        units.push_back(self.send_group(lane, forms, &group, epoch, first).await?);
        lane.flush_while_reading().await?;
        let mut failure = None;
        while let Some(unit) = units.pop_front() {
            let unit = read_unit(lane, unit).await?;
            if let Some(error @ ApplyError::Diverged { .. }) = &unit.failure {
                self.exclusions.note_difference(self.replica, || error.to_string());
            }
            match (unit.failure, &failure) {
                (None, None) => {
                    *applied = unit.to;
                    if unit.changes_roles {
                        self.pool.note_roles_changed();
                    }
                    self.scheduler.handle(Event::Applied { replica: self.replica, csn: unit.to });
                }
                (Some(error), None) => failure = Some(error),
                (_, Some(_)) => {}
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// A record, how many bytes it has in the log, and the epoch in which it was decided, below zero if it is to be passed over.
    fn record(&self, csn: Csn) -> Result<(Arc<Record>, usize, i64), ApplyError> {
        let (epoch, writes) = match self.scheduler.recent(csn) {
            Some(writes) => (self.epoch, writes),
            None => {
                let read = self.history.read(csn).map_err(|source| ApplyError::Log { csn, source })?;
                let (epoch, body) = read.ok_or(ApplyError::Missing(csn))?;
                (epoch, Writes { body, record: None })
            }
        };
        let len = writes.body.len();
        let epoch = epoch as i64;
        let record = match (self.annulments.how(csn), writes.record) {
            (How::Never, _) => return Ok((Arc::default(), 0, -epoch)),
            (How::NotYet, _) => return Err(ApplyError::InDoubt(csn)),
            (How::Whole, Some(record)) => record,
            (How::Whole, None) => {
                let record = Record::decode(writes.body);
                Arc::new(record.map_err(|source| ApplyError::Record { csn, source })?)
            }
        };
        Ok((record, len, epoch))
    }

    /// Sends one database transaction. If it is the first of a pipeline, nothing else is under way, and what is not yet
    /// known about its statements can be asked.
    async fn send_group(
        &self,
        lane: &mut Lane,
        forms: &mut Forms,
        group: &[(Csn, Arc<Record>)],
        epoch: i64,
        first: bool,
    ) -> Result<Unit, ApplyError> {
        if first && lane.has_too_many_prepared() {
            forget(lane, forms).await?;
        }
        let mut writes = group.iter().flat_map(|(_, record)| &record.writes);
        if writes.any(Write::may_change_types) {
            // Parameters may have other types from somewhere in its middle on.
            forms.clear();
        } else if first {
            learn(lane, forms, group).await?;
        }
        self.send_unit(lane, forms, group, epoch)
    }

    /// Appends one database transaction, explicit and up to one Sync, so that commands already sent cannot be applied
    /// one by one after a broken connection.
    fn send_unit(
        &self,
        lane: &mut Lane,
        forms: &Forms,
        group: &[(Csn, Arc<Record>)],
        epoch: i64,
    ) -> Result<Unit, ApplyError> {
        let from = group.first().map_or(Csn(0), |(csn, _)| *csn);
        let to = group.last().map_or(Csn(0), |(csn, _)| *csn);
        let changes_roles = group.iter().any(|(_, record)| record.writes.iter().any(Write::may_change_roles));
        let mut unit = Unit { to, expected: VecDeque::new(), commands: 0, changes_roles, failure: None };
        let Some((_, first)) = group.first() else { return Ok(unit) };
        self.send_own(lane, &mut unit, "BEGIN")?;
        if let Some(command) = settings_command(&first.settings) {
            self.send_own(lane, &mut unit, &command)?;
        }
        let settings = settings_hash(&first.settings);
        // A text may change the settings under which those after it are read.
        let reads_anew = group
            .iter()
            .any(|(_, record)| record.writes.iter().any(|write| matches!(write.what, What::Text(_))));
        let none = Forms::default();
        let forms = if reads_anew { &none } else { forms };
        let as_role = (!first.user.is_empty() && first.user != self.who.user).then_some(&first.user);
        // A change of definitions at this home may lock a sequence and have its turn only after this reservation: that it
        // waits is found, and the replica gives up its lanes, and with them the lock, by leaving service.
        let is_own = first.user.is_empty();
        if is_own {
            self.send_own(lane, &mut unit, RESERVATION_TIMEOUT)?;
        }
        let mut in_role = false;
        for step in bulk::arrange(group.iter().flat_map(|(_, record)| &record.writes), forms, settings) {
            // Rows that are shipped were permitted at their home; here they are put in past triggers and policies, which
            // only the agent may.
            let is_captured = matches!(&step, Step::One(write) if write.captured);
            let wanted = as_role.filter(|_| !is_captured);
            if wanted.is_some() != in_role {
                let role = wanted.map_or_else(|| "NONE".to_owned(), |role| quote_identifier(role));
                self.send_own(lane, &mut unit, &format!("SET LOCAL ROLE {role}"))?;
                in_role = wanted.is_some();
            }
            lane.read_under = settings;
            let sent = match step {
                Step::One(write) => self.send_write(lane, &mut unit, write, reads_anew),
                Step::Many(many) => self.send_many(lane, &mut unit, &many),
            };
            lane.read_under = 0;
            sent?;
        }
        if in_role {
            self.send_own(lane, &mut unit, "SET LOCAL ROLE NONE")?;
        }
        if is_own {
            self.send_own(lane, &mut unit, "SET LOCAL lock_timeout = 0")?;
        }
        progress::put_advance(lane, from.previous(), to, epoch)?;
        unit.expected.push_back(Some(Some(1)));
        self.send_own(lane, &mut unit, "COMMIT")?;
        build::sync(&mut lane.output);
        Ok(unit)
    }

    fn send_write(
        &self,
        lane: &mut Lane,
        unit: &mut Unit,
        write: &Write,
        reads_anew: bool,
    ) -> Result<(), ApplyError> {
        if write.captured {
            self.send_own(lane, unit, "SET LOCAL session_replication_role = replica")?;
        }
        match &write.what {
            What::Text(sql) => {
                build::parse(&mut lane.output, "", sql, [])?;
                build::bind(&mut lane.output, "", "", [], [], [])?;
            }
            What::Prepared { sql, types, bind, .. } if reads_anew => {
                build::parse(&mut lane.output, "", sql, types.iter().copied())?;
                lane.put_bind("", bind);
            }
            What::Prepared { key, sql, types, bind } => {
                let (name, _) = lane.prepare(*key, sql, types)?;
                lane.put_bind(&name, bind);
            }
            What::Copy { sql, .. } => {
                build::parse(&mut lane.output, "", sql, [])?;
                build::bind(&mut lane.output, "", "", [], [], [])?;
            }
        }
        build::execute(&mut lane.output, "", 0)?;
        if let What::Copy { data, .. } = &write.what {
            for chunk in data {
                build::copy_data(&mut lane.output, chunk)?;
            }
            build::copy_done(&mut lane.output);
        }
        unit.expected.push_back(Some(write.rows));
        if write.may_change_types() {
            // A prepared statement keeps the types that its parameters had when it was prepared.
            self.send_own(lane, unit, "DEALLOCATE ALL")?;
            lane.unprepare_all();
        }
        if write.captured {
            self.send_own(lane, unit, "SET LOCAL session_replication_role = origin")?;
        }
        Ok(())
    }

    /// Executions of one statement that were put together.
    fn send_many(&self, lane: &mut Lane, unit: &mut Unit, many: &Many<'_>) -> Result<(), ApplyError> {
        let sql = many.sql();
        let (name, _) = lane.prepare(StatementKey::of(sql, &[]), sql, &[])?;
        many.put_bind(&name, &mut lane.output)?;
        build::execute(&mut lane.output, "", 0)?;
        unit.expected.push_back(Some(Some(many.rows())));
        Ok(())
    }

    /// A command of ours, whose row count says nothing.
    fn send_own(&self, lane: &mut Lane, unit: &mut Unit, sql: &str) -> Result<(), ApplyError> {
        // It says nothing that settings could change.
        let read_under = std::mem::take(&mut lane.read_under);
        let (name, _) = lane.prepare(StatementKey::of(sql, &[]), sql, &[])?;
        lane.read_under = read_under;
        build::bind(&mut lane.output, "", &name, [], [], [])?;
        build::execute(&mut lane.output, "", 0)?;
        unit.expected.push_back(None);
        Ok(())
    }
}

/// Whether a replica could commit nothing but the row of progress of this commit, which it does not.
async fn could_pass_over(lane: &mut Lane, csn: Csn) -> Result<bool, LaneError> {
    lane.command("ROLLBACK; BEGIN").await?;
    progress::put_advance(lane, csn.previous(), csn, 0)?;
    build::sync(&mut lane.output);
    lane.flush().await?;
    let (_, refused) = lane.ready().await?;
    lane.command("ROLLBACK").await?;
    Ok(refused.is_none())
}

/// Has nothing prepared any more, nor knows how statements are put together.
async fn forget(lane: &mut Lane, forms: &mut Forms) -> Result<(), LaneError> {
    lane.unprepare_all();
    forms.clear();
    lane.command("DEALLOCATE ALL").await
}

/// Finds out how statements that come in numbers can be put together. Nothing else may be under way on the lane.
async fn learn(lane: &mut Lane, forms: &mut Forms, group: &[(Csn, Arc<Record>)]) -> Result<(), ApplyError> {
    if group.len() < 2 {
        return Ok(());
    }
    let Some((_, first)) = group.first() else { return Ok(()) };
    let settings = settings_hash(&first.settings);
    let mut begun = false;
    for write in group.iter().flat_map(|(_, record)| &record.writes) {
        let (Some(_), What::Prepared { key, sql, types, .. }) = (&write.reach, &write.what) else { continue };
        let known_as = key.under(settings);
        if forms.contains_key(&known_as) {
            continue;
        }
        if forms.len() >= FORMS_MAX {
            forms.clear();
        }
        if !begun {
            begun = true;
            lane.command("BEGIN").await?;
            if let Some(command) = settings_command(&first.settings) {
                lane.command(&command).await?;
            }
        }
        lane.read_under = settings;
        let types = lane.param_types(*key, sql, types).await;
        lane.read_under = 0;
        let form = match types {
            Ok(types) => Form::of(sql, &types),
            // Whoever executes it will say what is wrong with it.
            Err(error) if error.is_database() => {
                lane.command("ROLLBACK").await?;
                begun = false;
                None
            }
            Err(error) => return Err(error.into()),
        };
        forms.insert(known_as, form);
    }
    if begun {
        lane.command("COMMIT").await?;
    }
    Ok(())
}

/// The command that sets a record's settings for the transaction, if there are any.
fn settings_command(settings: &[(String, String)]) -> Option<String> {
    let calls = settings
        .iter()
        .map(|(name, value)| format!("pg_catalog.set_config({}, {}, true)", quote(name), quote(value)));
    let calls: Vec<String> = calls.collect();
    // One for all: it goes ahead of every group.
    (!calls.is_empty()).then(|| format!("SELECT {}", calls.join(", ")))
}

/// Identifies the settings of a record; 0 for none.
fn settings_hash(settings: &[(String, String)]) -> u64 {
    if settings.is_empty() {
        return 0;
    }
    hash_of(&settings)
}

/// Reads the answers of one unit up to its ReadyForQuery.
async fn read_unit(lane: &mut Lane, mut unit: Unit) -> Result<Unit, ApplyError> {
    if unit.expected.is_empty() {
        return Ok(unit);
    }
    let mut expected = std::mem::take(&mut unit.expected);
    loop {
        let head = lane.next_frame().await?;
        let decoded = onecopy_wire::backend::decode(head.tag, lane.body(head)).map_err(LaneError::from)?;
        match decoded {
            Backend::CommandComplete(tag) => {
                let found = row_count(tag);
                if let Some(Some(rows)) = expected.pop_front()
                    && rows.is_some()
                    && rows != found
                    && unit.failure.is_none()
                {
                    unit.failure = Some(ApplyError::Differs { csn: unit.to, expected: rows, found });
                }
                unit.commands += 1;
            }
            Backend::Error(fields) => {
                let fields = Box::new(fields.to_owned());
                if crate::lane::is_going_away(fields.code) {
                    return Err(LaneError::Database(fields).into());
                }
                unit.failure.get_or_insert(ApplyError::Refused { csn: unit.to, fields });
            }
            Backend::ReadyForQuery(_) => {
                lane.consume(head);
                // Its COMMIT was on its way already: what differs is there to stay.
                if let Some(ApplyError::Differs { csn, expected: rows, found }) = unit.failure
                    && expected.is_empty()
                {
                    unit.failure = Some(ApplyError::Diverged { csn, expected: rows, found });
                }
                return Ok(unit);
            }
            _ => {}
        }
        lane.consume(head);
    }
}

/// A string literal.
pub fn quote(text: &str) -> String {
    if text.contains('\\') {
        format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}

/// A quoted identifier.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
