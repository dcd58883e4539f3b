//! What happens before the first client: replicas are compared, the log is opened, and all are brought to its end.

use std::sync::Arc;
use std::time::Duration;

use onecopy_classify::Catalogue;
use onecopy_core::{Csn, Epoch, Event};
use onecopy_log::{Durability, Fault, Folder, Genesis, Hooks, Log, LogId, Member, Options};
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::oneshot;

use crate::ancestry::{self, Stranger};
use crate::clock;
use crate::clock::Deadline;
use crate::errors::ServeError;
use crate::lane::{Lane, LaneError};
use crate::membership::ReplicaSet;
use crate::nodes::links::Places;
use crate::pool::Pool;
use crate::postgres::checks::{self, Facts};
use crate::postgres::connect::{AGENT_MARK, Connector, Credentials, CustomNames};
use crate::postgres::definitions::{self, SequenceNames};
use crate::postgres::progress::{self, Claim, FenceError, Position};
use crate::postgres::version::ServerVersion;
use crate::retention;
use crate::scheduler::Scheduler;
use crate::server::{Shared, connector};
use crate::settings::Settings;

/// How long the first replica may take to come into service.
const SERVICE_WAIT: Duration = Duration::from_secs(30);
/// How long it waits for the others then, before clients are served without them.
const OTHERS_WAIT: Duration = Duration::from_secs(5);

/// What was learned before serving.
pub struct Prepared {
    /// Replicas that can be used now.
    pub usable: usize,
    pub log: Arc<Log>,
    pub log_id: String,
    pub epoch: u64,
    pub secret: String,
    pub end: Csn,
    /// The first commit that the log holds.
    pub first: Csn,
    /// Commits in it that never happen.
    pub annulled: Vec<Csn>,
    /// As the most advanced replica has it before the end of the log is applied to it.
    pub catalogue: Catalogue,
    pub sequence_names: SequenceNames,
    pub durable: DurableTo,
    /// This node's part in the log, if there are several nodes, and where they are.
    pub member: Option<(Arc<Member>, Places)>,
    /// Tells when the log has failed, and why, if it is this process's alone.
    pub log_failed: Option<oneshot::Receiver<Fault>>,
    /// Of which versions the servers of the replicas are that can be used now, by name.
    pub versions: Vec<(String, ServerVersion)>,
}

/// Where the log is from.
pub enum Source {
    /// This process has it alone, in this folder, whose lock it holds.
    Alone(Folder),
    /// It is shared with other nodes, and this one leads in this epoch.
    Shared { log: Arc<Log>, member: Arc<Member>, places: Places, epoch: Epoch, durable: DurableTo },
}

impl Source {
    /// The epoch by which replicas are claimed.
    fn leader(&self) -> Option<u64> {
        match self {
            Source::Alone(_) => None,
            Source::Shared { epoch, .. } => Some(epoch.0),
        }
    }

    /// The log that is there before the replicas are looked at.
    fn log_id(&self) -> Option<LogId> {
        match self {
            Source::Alone(_) => None,
            Source::Shared { log, .. } => Some(log.held().log_id),
        }
    }
}

/// Carries the log's reports to the scheduler, which exists only later.
#[derive(Clone, Default)]
pub struct DurableTo(Arc<Mutex<Option<std::sync::Weak<Scheduler>>>>);

impl DurableTo {
    pub fn connect(&self, scheduler: &Arc<Scheduler>) {
        *self.0.lock() = Some(Arc::downgrade(scheduler));
    }

    pub fn report(&self, csn: Csn) {
        let scheduler = self.0.lock().as_ref().and_then(std::sync::Weak::upgrade);
        if let Some(scheduler) = scheduler {
            scheduler.handle(Event::Durable { csn });
        }
    }
}

struct Found {
    lane: Lane,
    /// A session as the server begins one.
    plain: Lane,
    name: String,
    facts: Facts,
    position: Option<Position>,
}

/// Compares the replicas that can be reached, adopts an existing database, opens the log.
pub async fn prepare(
    settings: &Settings,
    members: &ReplicaSet,
    source: Source,
) -> Result<Prepared, ServeError> {
    if settings.replicas.is_empty() {
        return Err(ServeError::Settings("no replicas are configured; add at least one [[replica]]".into()));
    }
    let leader = source.leader();
    let of_log = source.log_id().map(|id| id.to_string()).unwrap_or_default();
    let agent = Credentials {
        user: settings.agent_user.clone(),
        password: settings.agent_password.clone(),
        customs: CustomNames::default(),
    };
    let mut looked_at = Vec::new();
    for replica in &settings.replicas {
        let (connector, agent, log_id) =
            (connector(settings, replica, leader), agent.clone(), of_log.clone());
        // All at once: one that hangs keeps the others waiting only as long as it takes to give it up.
        looked_at.push((replica, tokio::spawn(async move { look_at(&connector, &agent, &log_id).await })));
    }
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for (replica, looked_at) in looked_at {
        match looked_at.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
            Ok((_, _, _, Some(Position { differs: Some(reason), .. }))) => {
                missing.push(format!(
                    "{}: its contents differ from those of the others ({reason}); copy it anew from one of them",
                    replica.name
                ));
            }
            Ok((lane, plain, facts, position)) => {
                found.push(Found { lane, plain, name: replica.name.clone(), facts, position });
            }
            Err(error) => missing.push(format!("{}: {error}", replica.name)),
        }
    }
    if found.is_empty() {
        return Err(ServeError::Replicas(format!("no replica can be used: {}", missing.join("; "))));
    }
    for problem in &missing {
        tracing::warn!("{problem}; starting without it");
    }
    let (log, held, durable, member, log_failed) = match source {
        Source::Alone(folder) => {
            let durable = DurableTo::default();
            let (tell_failure, log_failed) = oneshot::channel();
            let log = Arc::new(open_log(settings, folder, &durable, tell_failure, &found)?);
            let held = log.held();
            (log, held, durable, None, Some(log_failed))
        }
        Source::Shared { log, member, places, durable, .. } => {
            let held = log.held();
            (log, held, durable, Some((member, places)), None)
        }
    };
    let log_id = held.log_id.to_string();
    leave_behind(&mut found, &mut missing, &log, &log_id, held.first)?;
    leave_upgraded(&mut found, &mut missing, members, held.last)?;
    let facts: Vec<(&str, &Facts)> = found.iter().map(|f| (f.name.as_str(), &f.facts)).collect();
    // Elsewhere every replica executes every write.
    let protocol = onecopy_core::protocol::by_name(&settings.protocol, found.len(), Csn(0));
    let may_capture = protocol.is_ok_and(|protocol| protocol.changes_replicas());
    checks::compare(&facts, may_capture).map_err(ServeError::Replicas)?;
    let secret = bring_together(settings, &mut found, &log_id, held.last, &missing).await?;
    let newest = found.iter().filter_map(|f| f.position.as_ref()).map(|p| p.csn).max().unwrap_or(Csn(0));
    if newest > held.last {
        return Err(ServeError::Log(format!(
            "the log in {} ends at commit {}, but a replica contains commit {newest}: the log is older than the replicas, and what it lacks cannot be brought to the others. Restore the log's folder; or, if it is lost, move what is left of it away, and start with the most advanced replica alone (drop the schema \"onecopy\" on it) and the others empty",
            settings.log.dir.display(),
            held.last
        )));
    }
    let epoch = found.iter().filter_map(|f| f.position.as_ref()).map(|p| p.epoch).max().unwrap_or(0);
    // By the time of day: a process that goes on from a log that was put back has another one than those whose commits
    // are lost, which nobody here can know.
    let now_ms = u64::try_from(clock::unix_micros() / 1_000).unwrap_or(0);
    let epoch = leader.unwrap_or_else(|| (epoch.max(held.epoch.0) + 1).max(now_ms));
    let most = found.iter_mut().max_by_key(|f| f.position.as_ref().map(|p| p.csn));
    let Some(most) = most else { return Err(ServeError::Replicas("no replica can be used".into())) };
    let read_failed = |error: LaneError| ServeError::Replicas(format!("read definitions: {error}"));
    let catalogue = definitions::read(&mut most.lane, &mut most.plain).await.map_err(read_failed)?;
    let sequence_names = Arc::new(Mutex::new(definitions::names(&catalogue)));
    Ok(Prepared {
        usable: found.len(),
        log,
        log_id,
        epoch,
        secret,
        end: held.last,
        first: held.first,
        annulled: held.annulled,
        catalogue,
        sequence_names,
        durable,
        member,
        log_failed,
        versions: found.iter().map(|one| (one.name.clone(), one.facts.version())).collect(),
    })
}

/// Goes on without replicas that must be copied anew, where others follow the log.
fn leave_behind(
    found: &mut Vec<Found>,
    missing: &mut Vec<String>,
    log: &Log,
    log_id: &str,
    first: Csn,
) -> Result<(), ServeError> {
    let follows = |one: &Found| one.position.as_ref().is_some_and(|position| position.log_id == log_id);
    if !found.iter().any(follows) {
        // The first start, or the wrong folder.
        return Ok(());
    }
    let unfit = |one: &Found| match &one.position {
        None => Some("it has never been used by onecopy; copy it from another replica first".to_owned()),
        Some(position) if position.log_id != log_id => Some(format!(
            "it follows log {}, not {log_id}; copy it anew from another replica",
            position.log_id
        )),
        Some(position) => match (retention::check(position.csn, first), ancestry::check(log, position)) {
            (Err(gap), _) => Some(gap.to_string()),
            (Ok(()), Err(forked @ Stranger::Forked { .. })) => Some(forked.to_string()),
            // Whether the log has lost its end is for an operator to judge.
            (Ok(()), Ok(()) | Err(Stranger::Ahead { .. } | Stranger::Unreadable(_))) => None,
        },
    };
    found.retain(|one| {
        let Some(why) = unfit(one) else { return true };
        let problem = format!("{}: {why}", one.name);
        tracing::warn!("{problem}; starting without it");
        missing.push(problem);
        false
    });
    if found.is_empty() {
        return Err(ServeError::Replicas(format!("no replica can be used: {}", missing.join("; "))));
    }
    Ok(())
}

/// Goes on without replicas whose server was given another version while they lack something: what the log holds for them may
/// have been written for the former one.
fn leave_upgraded(
    found: &mut Vec<Found>,
    missing: &mut Vec<String>,
    members: &ReplicaSet,
    end: Csn,
) -> Result<(), ServeError> {
    let versions: Vec<ServerVersion> = found.iter().map(|one| one.facts.version()).collect();
    found.retain(|one| {
        let now = one.facts.version();
        let lacks = one.position.as_ref().is_some_and(|position| position.csn < end);
        // Where nobody has noted it, one that differs from another may always have done so, or not.
        let before = members.version(&one.name).or_else(|| versions.iter().find(|other| **other != now).cloned());
        let Some(before) = before.filter(|before| *before != now && lacks) else { return true };
        let problem = format!(
            "{}: its server is of version {now}, and what it lacks may have been written for version {before} alone; copy it anew (onecopy replica replace {})",
            one.name, one.name
        );
        tracing::warn!("{problem}; starting without it");
        missing.push(problem);
        false
    });
    if found.is_empty() {
        return Err(ServeError::Replicas(format!(
            "no replica can be used: {}. Start the servers in their former version until all contain the same commit, then upgrade them again",
            missing.join("; ")
        )));
    }
    Ok(())
}

/// What is to be known of a replica. Where clients wait for this node to take over, one that does not answer is left to its
/// agent.
async fn look_at(
    connector: &Connector,
    agent: &Credentials,
    log_id: &str,
) -> Result<(Lane, Lane, Facts, Option<Position>), FenceError> {
    let looking = look(connector, agent, log_id);
    if connector.leader.is_none() || connector.silence.is_zero() {
        return looking.await;
    }
    let silent = || LaneError::Lost(std::io::Error::from(std::io::ErrorKind::TimedOut));
    tokio::time::timeout(connector.silence, looking).await.unwrap_or_else(|_| Err(silent().into()))
}

async fn look(
    connector: &Connector,
    agent: &Credentials,
    log_id: &str,
) -> Result<(Lane, Lane, Facts, Option<Position>), FenceError> {
    let mut lane = connector.connect_marked(agent, AGENT_MARK).await?;
    // Earlier sessions of ours may still be committing: the position is only final when they are gone.
    progress::fence_for(&mut lane, connector.leader.map(|epoch| Claim { epoch, log_id })).await?;
    let mut plain = connector.connect_plain(agent).await?;
    let facts = checks::facts(&mut plain).await?;
    let position = progress::read(&mut lane).await?;
    Ok((lane, plain, facts, position))
}

/// Makes sure that no other process serves by this log: before anything is asked of a replica, which would end the sessions
/// of a process that serves already.
pub fn lock_log(settings: &Settings) -> Result<Folder, ServeError> {
    std::fs::create_dir_all(&settings.log.dir)
        .map_err(|error| ServeError::Log(format!("create {}: {error}", settings.log.dir.display())))?;
    Folder::open(&settings.log.dir).map_err(|error| ServeError::Log(error.to_string()))
}

fn open_log(
    settings: &Settings,
    folder: Folder,
    durable: &DurableTo,
    tell_failure: oneshot::Sender<Fault>,
    found: &[Found],
) -> Result<Log, ServeError> {
    let has_position = found.iter().any(|f| f.position.is_some());
    let genesis = Genesis { log_id: LogId(rand::rng().random()), epoch: Epoch(1), after: Csn(0) };
    let mut options = Options { genesis: (!has_position).then_some(genesis), ..Options::default() };
    options.settings.durability = if settings.log.durable { Durability::Disk } else { Durability::Memory };
    options.settings.segment_len = settings.log.segment_bytes;
    let report = durable.clone();
    let mut tell_failure = Some(tell_failure);
    let hooks = Hooks::new(
        move |durable| report.report(durable.csn),
        move |fault| {
            if let Some(tell) = tell_failure.take() {
                // Without a receiver the process is ending already.
                let _ = tell.send(fault.clone());
            }
        },
    );
    let opened = Log::open_on(folder, &settings.log.dir, options, hooks);
    opened.map(|(log, _)| log).map_err(|error| ServeError::Log(error.to_string()))
}

/// Makes every replica follow this log: new ones get onecopy's schema, empty ones the contents of the one that has any.
async fn bring_together(
    settings: &Settings,
    found: &mut [Found],
    log_id: &str,
    end: Csn,
    missing: &[String],
) -> Result<String, ServeError> {
    if let Some(position) = found.iter().find_map(|f| f.position.clone()) {
        // Whoever follows another log was left behind, unless all do.
        if position.log_id != log_id {
            return Err(ServeError::Replicas(format!(
                "the replicas follow log {}, but the log in {} is {log_id}; restore the folder of their log",
                position.log_id,
                settings.log.dir.display()
            )));
        }
        return Ok(position.secret);
    }
    if !missing.is_empty() {
        return Err(ServeError::Replicas(format!(
            "at the first start every replica must be there: {}",
            missing.join("; ")
        )));
    }
    adopt(settings, found).await?;
    let secret: [u8; 32] = rand::rng().random();
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    for one in found.iter_mut() {
        progress::create(&mut one.lane, log_id, &secret, end)
            .await
            .map_err(|error| ServeError::Replicas(format!("prepare replica {}: {error}", one.name)))?;
        one.position = Some(Position {
            log_id: log_id.to_owned(),
            epoch: 0,
            csn: end,
            secret: secret.clone(),
            differs: None,
        });
    }
    Ok(secret)
}

/// Sums of all tables, in a snapshot of their own.
async fn sums_of(lane: &mut Lane) -> Result<Vec<checks::TableSum>, LaneError> {
    lane.command("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
    let sums = checks::contents(lane).await?;
    lane.command("COMMIT").await?;
    Ok(sums)
}

/// Copies an existing database to replicas that are empty; replicas that all hold something must hold the same.
async fn adopt(settings: &Settings, found: &mut [Found]) -> Result<(), ServeError> {
    let full: Vec<usize> = (0..found.len()).filter(|i| found[*i].facts.objects > 0).collect();
    let Some(&source) = full.first() else { return Ok(()) };
    for target in (0..found.len()).filter(|i| !full.contains(i)) {
        tracing::info!(from = %found[source].name, to = %found[target].name, "copying the existing database");
        checks::copy(settings, source, target).await.map_err(|error| {
            ServeError::Replicas(format!("copy the database to {}: {error}", found[target].name))
        })?;
    }
    let mut first: Option<(String, Vec<checks::TableSum>)> = None;
    for one in found.iter_mut() {
        let sums = sums_of(&mut one.lane)
            .await
            .map_err(|error| ServeError::Replicas(format!("read the contents of {}: {error}", one.name)))?;
        match &first {
            None => first = Some((one.name.clone(), sums)),
            Some((name, reference)) => {
                let differences = checks::differences(reference, &sums);
                if !differences.is_empty() {
                    return Err(ServeError::Replicas(format!(
                        "{name} and {} differ in {}; onecopy serves copies of one database. Empty all but one of them and start again: the contents are copied",
                        one.name,
                        differences.join(", ")
                    )));
                }
            }
        }
    }
    Ok(())
}

/// Waits until so many replicas have been brought to the log's end; one that takes too long is left to catch up.
pub async fn await_service(shared: &Shared, usable: usize) -> Result<(), ServeError> {
    let deadline = Deadline::after(SERVICE_WAIT);
    let mut others = None;
    loop {
        let status = shared.scheduler.status();
        let ready = status.replicas.iter().filter(|r| r.up && r.applied >= status.told).count();
        if ready >= usable {
            return Ok(());
        }
        if ready == 0 && deadline.has_passed() {
            let why = |pool: &Arc<Pool>| {
                let detail =
                    pool.standing.absence().map_or_else(|| "it lags".to_owned(), |absence| absence.detail);
                format!("{}: {detail}", pool.name())
            };
            let why: Vec<String> = shared.pools.iter().map(why).collect();
            return Err(ServeError::Replicas(format!("no replica came into service: {}", why.join("; "))));
        }
        if ready > 0 && others.get_or_insert_with(|| Deadline::after(OTHERS_WAIT)).has_passed() {
            tracing::warn!("{} of {} replicas are in service", ready, status.replicas.len());
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
