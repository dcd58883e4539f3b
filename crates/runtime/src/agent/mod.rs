//! The agent of one replica: fences it, learns what it contains, and applies to it what was executed elsewhere.

mod apply;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onecopy_core::{Csn, Event, ReplicaId};
use onecopy_log::{AppendError, Seq};
use onecopy_wire::WireError;
use onecopy_wire::backend::ErrorFields;
use onecopy_wire::frontend::build;

use crate::ancestry::Stranger;
use crate::annulments::{self, Annulments, How, Mistaken, Verdict};
use crate::bulk::Forms;
use crate::clock::{Deadline, Stopwatch};
use crate::copy;
use crate::exclusions::{self, Exclusions};
use crate::health::{self, Ill};
use crate::lane::{Lane, LaneError};
use crate::membership;
use crate::pool::Pool;
use crate::postgres::connect::{AGENT_MARK, Connector, Credentials, SESSION_MARK};
use crate::postgres::progress::{self, Claim, FenceError, Position};
use crate::postgres::version::ServerVersion;
use crate::record::BadRecord;
use crate::retention::{Gap, Retention};
use crate::scheduler::Scheduler;
use crate::server::Shared;
use crate::standing::Reason;

/// Without anything to apply for so long, an agent looks whether there is something to prune. And so often it asks what the
/// server has flushed.
const PRUNE_PAUSE: Duration = Duration::from_secs(1);
/// How long to wait after a copy has failed, at first and at last.
const COPY_PAUSE_MIN: Duration = Duration::from_millis(500);
const COPY_PAUSE_MAX: Duration = Duration::from_secs(60);
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
    /// For what concerns others, too: a copy.
    pub shared: Arc<Shared>,
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
    #[error(
        "its server is of version {found}, and what it lacks may have been written for version {expected} alone; `onecopy replica replace` copies it anew"
    )]
    OtherVersion { found: ServerVersion, expected: ServerVersion },
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
            ApplyError::OtherVersion { .. } => Reason::OtherVersion,
            ApplyError::NoSchema => Reason::NoSchema,
            ApplyError::NotFenced(FenceError::Deposed { .. }) => Reason::OtherLeader,
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

impl Agent {
    /// Runs until the process ends, or the replica leaves for good.
    pub async fn run(self) {
        self.become_a_copy().await;
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

    /// If the replica is to be copied from another one, that is done first, as often as it takes.
    async fn become_a_copy(&self) {
        let members = &self.shared.membership.set;
        if !members.is_copying(&self.name) {
            return;
        }
        self.annulments.stand_apart(self.replica);
        self.exclusions.begin_anew(self.replica);
        let mut pause = COPY_PAUSE_MIN;
        while let Err(error) = copy::copy(&self.shared, &self.pool).await {
            tracing::warn!(replica = %self.name, %error, "copy a replica; beginning anew");
            self.pool.standing.leave(Reason::Copying, format!("the copy is begun anew: {error}"));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(COPY_PAUSE_MAX);
        }
        if let Err(error) = members.end_copy(&self.name).await {
            // It serves all the same, and is copied once more after the next start.
            tracing::error!(replica = %self.name, %error, "note that the replica was copied");
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
        let claim = self.pool.connector.leader.map(|epoch| Claim { epoch, log_id: &self.log_id });
        let fenced = progress::fence_for(lane, claim).await;
        fenced.map_err(|error| match error {
            FenceError::Lane(error) => ApplyError::Lane(error),
            FenceError::OtherLog { followed, ours } => {
                self.annulments.stand_apart(self.replica);
                ApplyError::OtherLog { found: followed, expected: ours }
            }
            other => ApplyError::NotFenced(other),
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
        let version = ServerVersion::read(lane).await?;
        self.check_version(version).await.inspect_err(|_| self.annulments.stand_apart(self.replica))?;
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
                        apply::forget(lane, &mut forms).await?;
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

    /// What was replayed while the replica was away must not be, if its server computes in another way now; nor if it may always have
    /// done so and nobody knew.
    async fn check_version(&self, found: ServerVersion) -> Result<(), ApplyError> {
        let others = self.shared.pools.members().filter(|pool| pool.replica != self.replica);
        let settled =
            self.pool.version().or_else(|| others.filter_map(|pool| pool.version()).find(|v| *v != found));
        match settled {
            Some(expected) if expected != found => Err(ApplyError::OtherVersion { found, expected }),
            Some(_) => Ok(()),
            None => {
                membership::note_version(&self.shared, &self.pool, found).await;
                Ok(())
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

    /// Whether what the agent applies waits for a lock of a transaction of onecopy's own that is idle there, perhaps by way of
    /// others who wait: it must have its turn behind what the agent applies, which a server cannot know.
    async fn is_entangled(&self, agent_pid: u32) -> Result<bool, LaneError> {
        let mut lane = self.pool.connector.connect_unmarked(&self.who).await?;
        let sql = format!(
            "WITH RECURSIVE met (pid) AS (\
             SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids({agent_pid})) \
             UNION SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids(met.pid)) FROM met) \
             SELECT 1 FROM met JOIN pg_catalog.pg_stat_activity a ON a.pid = met.pid AND a.state LIKE 'idle in transaction%' \
             JOIN pg_catalog.pg_locks mark ON mark.pid = a.pid AND mark.locktype = 'advisory' \
             AND mark.classid::bigint = {SESSION_MARK}"
        );
        Ok(!self.pool.connector.in_time(lane.query(&sql)).await?.is_empty())
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
