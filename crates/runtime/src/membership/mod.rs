//! The set of replicas changes while everything runs: one is added, copied anew, or removed (docs/replicas.md).
//!
//! Each change is first kept (see [`ReplicaSet`]), so that it stands whatever happens next, and then takes effect. Changes follow
//! each other. The copy itself is the replica's agent's.

mod set;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use onecopy_classify::Capturing;
use onecopy_core::{Event, ReplicaId};
use onecopy_wire::sqlstate::SqlState;
use parking_lot::Mutex;
use tokio::runtime;
use tokio::task::JoinHandle;

pub use set::ReplicaSet;

use crate::agent::{Agent, History};
use crate::annulments::Annulments;
use crate::copy;
use crate::errors::Failure;
use crate::lane::LaneError;
use crate::pool::Pool;
use crate::postgres::checks;
use crate::postgres::connect::Connector;
use crate::postgres::progress;
use crate::postgres::version::ServerVersion;
use crate::server::{self, Shared, files};
use crate::settings::ReplicaSettings;
use crate::standing::Reason;

/// How often it is looked whether a replica that leaves is still used.
const DRAIN_PAUSE: Duration = Duration::from_millis(20);

/// Who is of the set, and the agents of all.
pub struct Membership {
    pub set: ReplicaSet,
    history: Arc<dyn History>,
    annulments: Arc<Annulments>,
    log_id: String,
    /// One change at a time.
    turn: tokio::sync::Mutex<()>,
    agents: Mutex<HashMap<ReplicaId, JoinHandle<()>>>,
    /// Held while versions are compared and what follows from it is put in force.
    settling: Mutex<()>,
    /// Where agents run, whoever asks for a change.
    event_loop: runtime::Handle,
}

impl Membership {
    /// To be called on the event loop on which agents run.
    pub fn new(
        set: ReplicaSet,
        history: Arc<dyn History>,
        annulments: Arc<Annulments>,
        log_id: String,
    ) -> Membership {
        Membership {
            set,
            history,
            annulments,
            log_id,
            turn: tokio::sync::Mutex::default(),
            agents: Mutex::default(),
            settling: Mutex::default(),
            event_loop: runtime::Handle::current(),
        }
    }

    /// Has an agent look after a replica, which copies it first if it is to be copied.
    pub fn employ(&self, shared: &Arc<Shared>, pool: &Arc<Pool>) {
        let agent = Agent {
            replica: pool.replica,
            name: pool.name().to_owned(),
            pool: pool.clone(),
            scheduler: shared.scheduler.clone(),
            history: self.history.clone(),
            who: shared.agent.clone(),
            log_id: self.log_id.clone(),
            epoch: shared.epoch,
            retention: shared.retention.clone(),
            exclusions: shared.exclusions.clone(),
            annulments: self.annulments.clone(),
            unapplied_bytes_max: shared.limits.unapplied_bytes_max as u64,
            shared: shared.clone(),
        };
        self.agents.lock().insert(pool.replica, self.event_loop.spawn(agent.run()));
    }

    /// Ends a replica's agent, and with it the replica's service.
    async fn dismiss(&self, shared: &Shared, pool: &Pool) {
        let agent = self.agents.lock().remove(&pool.replica);
        if let Some(agent) = agent {
            agent.abort();
            // It was cancelled, or had failed: either way it does nothing any more.
            let _ = agent.await;
        }
        pool.close();
        shared.retention.leave(pool.replica);
        self.annulments.leave(pool.replica);
        if is_up(shared, pool) {
            shared.scheduler.handle(Event::ReplicaDown { replica: pool.replica });
        }
    }
}

/// A server that holds nothing joins: its agent copies it from a replica in service, and then it serves.
pub async fn add(shared: &Arc<Shared>, replica: ReplicaSettings) -> Result<(), Failure> {
    check_protocol(shared)?;
    let membership = &shared.membership;
    let _turn = membership.turn.lock().await;
    check_name(shared, &replica)?;
    let connector = server::connector(&shared.settings, &replica, shared.leader());
    let version = check_server(shared, &connector).await?;
    files::make_room_for(&shared.settings, shared.pools.members().count() + 1).map_err(not_now)?;
    membership.set.add(&replica, &version).await.map_err(|error| not_written(&error))?.map_err(not_now)?;
    let id = shared.scheduler.add_replica();
    shared.retention.add();
    shared.exclusions.add();
    membership.annulments.add(&replica.name);
    let agent = shared.scheduler.agents[usize::from(id.0)].clone();
    let lanes_max = shared.limits.lanes_per_replica_max;
    let workers = shared.settings.event_loops();
    let pool = Pool::new(id, connector, lanes_max, workers, agent, shared.object_ids.clone());
    let pool = Arc::new(pool);
    tracing::info!(replica = replica.name, address = replica.place(), %version, "replica was added");
    pool.note_version(version);
    shared.pools.add(pool.clone());
    settle_manner(shared);
    membership.employ(shared, &pool);
    Ok(())
}

/// A replica out of service whose contents are of no use is copied anew.
pub async fn replace(shared: &Arc<Shared>, name: &str) -> Result<(), Failure> {
    check_protocol(shared)?;
    let membership = &shared.membership;
    let _turn = membership.turn.lock().await;
    let pool = named(shared, name)?;
    if pool.is_leaving() {
        return Err(not_now(format!("replica \"{name}\" is about to leave")));
    }
    if membership.set.is_copying(name) {
        return Err(not_now(format!("replica \"{name}\" is being copied already"))
            .hint("`onecopy replica list` shows how far it has got."));
    }
    let absence = pool.standing.absence().filter(|_| !is_up(shared, pool));
    let Some(absence) = absence else {
        return Err(not_now(format!("replica \"{name}\" serves")).hint(format!(
            "If its contents are wrong, `onecopy verify --exclude {name}` takes it out of service; then it can be replaced."
        )));
    };
    // It comes back by itself, with what it has.
    if matches!(
        absence.reason,
        Reason::Starting | Reason::ConnectionLost | Reason::Silent | Reason::SessionsRemain
    ) {
        return Err(not_now(format!(
            "replica \"{name}\" is out of service as \"{}\", which ends by itself ({})",
            absence.reason.word(),
            absence.detail
        )));
    }
    check_others(shared, pool)?;
    let looked = async {
        let mut lane = copy::beside(shared, &pool.connector).await?;
        ServerVersion::read(&mut lane).await
    };
    let version = looked.await.map_err(|error| unreachable(pool.name(), &error))?;
    membership.set.begin_copy(name, &version).await.map_err(|error| not_written(&error))?;
    tracing::warn!(replica = name, %version, "the operator has the replica wiped and copied anew");
    membership.dismiss(shared, pool).await;
    pool.note_version(version);
    settle_manner(shared);
    membership.employ(shared, pool);
    Ok(())
}

/// A replica leaves for good: when nothing is open there any more, or `at_once`.
pub async fn remove(shared: &Arc<Shared>, name: &str, at_once: bool) -> Result<(), Failure> {
    check_protocol(shared)?;
    let membership = &shared.membership;
    let turn = membership.turn.lock().await;
    let pool = named(shared, name)?.clone();
    let is_news = !pool.is_leaving();
    if is_news {
        check_others(shared, &pool)?;
        membership.set.remove(name).await.map_err(|error| not_written(&error))?;
        tracing::warn!(replica = name, at_once, "the operator removes the replica");
        pool.note_leaving();
        shared.scheduler.handle(Event::ReplicaLeaving { replica: pool.replica });
    }
    drop(turn);
    if at_once || !is_up(shared, &pool) {
        depart(shared, &pool).await;
    } else if is_news {
        let shared = shared.clone();
        membership.event_loop.spawn(async move {
            while is_up(&shared, &pool) && is_used(&shared, &pool) {
                tokio::time::sleep(DRAIN_PAUSE).await;
            }
            depart(&shared, &pool).await;
        });
    }
    Ok(())
}

async fn depart(shared: &Arc<Shared>, pool: &Arc<Pool>) {
    let membership = &shared.membership;
    let turn = membership.turn.lock().await;
    if pool.is_gone() {
        return;
    }
    membership.dismiss(shared, pool).await;
    pool.note_gone();
    shared.scheduler.handle(Event::ReplicaRemoved { replica: pool.replica });
    shared.retention.remove(pool.replica);
    membership.annulments.stand_apart(pool.replica);
    shared.object_ids.forget(pool.replica);
    tracing::info!(replica = pool.name(), "replica has left");
    let is_news = settle_manner(shared);
    // A replica that is to be read from may have to be added first.
    drop(turn);
    if is_news {
        // They may have been read from a server of another version, which has other functions.
        shared.classifier.begin_change();
        shared.read_definitions_after(true, &[]).await;
    }
}

/// While the servers of members, those included that are away or leave, are of different versions, transactions that begin have
/// their changes captured (design 3.7); under a protocol that ships rows, always. Returns whether this is news.
pub fn settle_manner(shared: &Shared) -> bool {
    let _settling = shared.membership.settling.lock();
    let versions: BTreeSet<ServerVersion> =
        shared.pools.members().filter_map(|pool| pool.version()).collect();
    let differ = versions.len() > 1;
    let captures = match (differ, shared.scheduler.foresight) {
        (true, _) => Capturing::BetweenVersions,
        (false, Some(_)) => Capturing::ByProtocol,
        (false, None) => Capturing::Never,
    };
    let before = shared.classifier.manner().captures;
    let is_news = shared.classifier.set_manner(captures);
    if !is_news || !differ && before != Capturing::BetweenVersions {
        return is_news;
    }
    let versions: Vec<String> = versions.iter().map(ServerVersion::to_string).collect();
    if differ {
        tracing::warn!(
            versions = versions.join(", "),
            "servers are of different versions: rows that change are shipped, and what cannot be is refused, until all are of one"
        );
    } else {
        tracing::info!(version = versions.join(", "), "servers are of one version again");
    }
    true
}

/// A replica's server is of this version, and nothing has been replayed on it that would be other there.
pub async fn note_version(shared: &Shared, pool: &Pool, version: ServerVersion) {
    if let Err(error) = shared.membership.set.note_versions([(pool.name(), version.clone())]).await {
        tracing::error!(replica = pool.name(), %error, "note of which version its server is");
    }
    pool.note_version(version);
    settle_manner(shared);
}

fn is_up(shared: &Shared, pool: &Pool) -> bool {
    let status = shared.scheduler.status();
    status.replicas.get(usize::from(pool.replica.0)).is_some_and(|replica| replica.up)
}

/// Whether anything is open on a replica that leaves.
fn is_used(shared: &Shared, pool: &Pool) -> bool {
    let status = shared.scheduler.status();
    let open = status.replicas.get(usize::from(pool.replica.0)).map_or(0, |replica| replica.open);
    open > 0 || pool.is_used()
}

fn not_now(message: impl Into<String>) -> Failure {
    Failure::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
}

fn not_written(error: &std::io::Error) -> Failure {
    Failure::new(SqlState::IO_ERROR, format!("note the change of the set of replicas: {error}"))
        .hint("Nothing has changed.")
}

fn unreachable(what: &str, error: &LaneError) -> Failure {
    not_now(format!("{what} cannot be used: {error}"))
        .hint("onecopy logs in there as its [replica_login] says, and must be able to make databases.")
}

fn check_protocol(shared: &Shared) -> Result<(), Failure> {
    if shared.scheduler.changes_replicas() {
        return Ok(());
    }
    Err(Failure::unsupported(
        format!("the protocol \"{}\" has the replicas with which it was started", shared.settings.protocol),
        "Change the configuration and start onecopy again.",
    ))
}

/// The member of this name.
pub fn named<'a>(shared: &'a Shared, name: &str) -> Result<&'a Arc<Pool>, Failure> {
    shared.pools.named(name).ok_or_else(|| {
        let names: Vec<&str> = shared.pools.members().map(|pool| pool.name()).collect();
        Failure::new(SqlState::UNDEFINED_OBJECT, format!("there is no replica \"{name}\""))
            .hint(format!("There are: {}.", names.join(", ")))
    })
}

/// Somebody else must serve, and go on to: what a replica holds may be all that there is.
fn check_others(shared: &Shared, pool: &Pool) -> Result<(), Failure> {
    let status = shared.scheduler.status();
    let serves = |other: &ReplicaId| {
        status.replicas.get(usize::from(other.0)).is_some_and(|replica| replica.up && !replica.leaving)
    };
    let others = shared.pools.members().map(|other| other.replica);
    if others.filter(|other| *other != pool.replica).any(|other| serves(&other)) {
        return Ok(());
    }
    Err(not_now(format!("no replica would serve without \"{}\"", pool.name()))
        .hint("Its contents are all that there is. `onecopy replica list` says why the others do not serve."))
}

fn check_name(shared: &Shared, replica: &ReplicaSettings) -> Result<(), Failure> {
    let ReplicaSettings { name, host, port, .. } = replica;
    if name.is_empty() || name.chars().any(|c| c.is_control() || matches!(c, '"' | '\'')) {
        return Err(Failure::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("\"{name}\" is no name for a replica"),
        )
        .hint("Take letters and digits, as in r4."));
    }
    let exists = |message: String| Failure::new(SqlState::DUPLICATE_OBJECT, message);
    if let Ok(pool) = named(shared, name) {
        return Err(exists(format!(
            "there is a replica \"{name}\" already, at {}",
            pool.connector.address.place()
        ))
        .hint("To copy that one anew: `onecopy replica replace`."));
    }
    let at_place =
        |pool: &&Arc<Pool>| pool.connector.address.host == *host && pool.connector.address.port == *port;
    match shared.pools.members().find(at_place) {
        Some(pool) => {
            Err(exists(format!("{} is the server of replica \"{}\" already", replica.place(), pool.name()))
                .hint("Every copy needs a server of its own."))
        }
        None => Ok(()),
    }
}

/// What can be known of a server before anything is done there.
async fn check_server(shared: &Shared, connector: &Connector) -> Result<ServerVersion, Failure> {
    let Some(source) = shared.pools.in_service().next() else {
        return Err(not_now("no replica is in service that could be copied"));
    };
    let expected = async {
        let mut lane = copy::beside(shared, &source.connector).await?;
        let are_set = lane.query("SELECT 1 FROM pg_catalog.pg_db_role_setting WHERE setdatabase = 0").await?;
        Ok((checks::facts(&mut lane).await?, are_set.is_empty()))
    };
    let (expected, is_plain) = expected.await.map_err(|error| unreachable(source.name(), &error))?;
    let place = connector.address.place();
    let looked = async {
        let mut lane = copy::beside(shared, connector).await?;
        let found = checks::facts(&mut lane).await?;
        let sql = format!(
            "SELECT 1 FROM pg_catalog.pg_database WHERE datname = {}",
            crate::agent::quote(&connector.database)
        );
        if lane.query(&sql).await?.is_empty() {
            return Ok((found, None));
        }
        let mut lane = connector.connect_unmarked(&shared.agent).await?;
        let objects = checks::facts(&mut lane).await?.objects;
        Ok((found, Some((objects, progress::read(&mut lane).await?))))
    };
    let (found, database) = looked.await.map_err(|error| unreachable(&place, &error))?;
    if !found.superuser {
        return Err(not_now(format!("onecopy's role is no superuser at {place}"))
            .hint("onecopy needs one to apply writes of all roles."));
    }
    // What roles set on the one and not yet on the other is compared when they have been copied.
    if let Some((setting, ours, theirs)) =
        expected.of_server().differs(&found.of_server(), true).filter(|_| is_plain)
    {
        let said = |value: Option<String>| value.unwrap_or_default();
        let message = format!(
            "{setting} is \"{}\" on {} and \"{}\" at {place}",
            said(ours),
            source.name(),
            said(theirs)
        );
        return Err(not_now(format!("{message}: the same statement could have different results"))
            .hint("Make the configuration of that server like the others'."));
    }
    let drop_it = format!(
        "Nothing is wiped that may be wanted. If it is not, drop it there: DROP DATABASE {}.",
        crate::agent::quote_identifier(&connector.database)
    );
    match database {
        Some((_, Some(position))) => Err(not_now(format!(
            "the database \"{}\" at {place} is a replica's already, of log {}",
            connector.database, position.log_id
        ))
        .hint(drop_it)),
        Some((objects, None)) if objects > 0 => Err(not_now(format!(
            "the database \"{}\" at {place} is not empty: it holds {objects} tables, views, sequences and functions",
            connector.database
        ))
        .hint(drop_it)),
        _ => Ok(found.version()),
    }
}
