//! Serving: replicas checked and brought into service, the log opened, clients accepted.

pub mod cancel;
#[cfg(test)]
mod carried_tests;
pub mod door;
pub mod files;
pub mod log;
pub mod preparation;
pub mod startup;
pub mod tls;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use onecopy_core::protocol::Engine;
use onecopy_core::{Csn, Epoch, Event, ReplicaId};
use onecopy_log::{Fault, Log, Member, MemberStatus};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, oneshot};

use crate::advisory::AdvisoryLocks;
use crate::annulments::Annulments;
use crate::classifier::Classifier;
use crate::clock::Stopwatch;
use crate::errors::ServeError;
use crate::exclusions::Exclusions;
use crate::lane::Lane;
use crate::membership::{self, Membership, ReplicaSet};
use crate::nodes;
use crate::nodes::links::Places;
use crate::notifications::Channels;
use crate::object_ids::{self, Listed, ObjectIds, Reading};
use crate::pool::Pool;
use crate::pools::Pools;
use crate::postgres::connect::{Connector, Credentials, CustomNames};
use crate::postgres::definitions;
use crate::retention::Retention;
use crate::scheduler::Scheduler;
use crate::settings::{Limits, ReplicaSettings, Settings};
use crate::sites;
use crate::stream::Stream;
use crate::waits;
use crate::workers::{Admission, Workers};
use cancel::Cancels;
use door::Door;
use log::{LogDecisions, LogHistory};
use preparation::Source;

/// How often each replica is asked for definitions in vain, since tables are locked, before the locks are taken away: for
/// some seconds.
const BLOCKED_ROUNDS_MAX: u32 = 10;
/// How long to wait at most before it is looked again whether a replica's object ids can be read.
const OBJECT_IDS_PAUSE_MAX: Duration = Duration::from_millis(100);

/// What all sessions of a served database share.
pub struct Shared {
    pub scheduler: Arc<Scheduler>,
    pub classifier: Classifier,
    pub pools: Pools,
    pub limits: Limits,
    pub settings: Settings,
    pub cancels: Cancels,
    pub advisory_locks: Arc<AdvisoryLocks>,
    pub channels: Arc<Channels>,
    pub epoch: u64,
    /// Proves to the replicas that a commit is onecopy's.
    pub secret: String,
    pub agent_user: String,
    pub agent: Credentials,
    pub sessions: AtomicU64,
    pub log: Arc<Log>,
    /// This node's part in it, if there are several.
    pub member: Option<Arc<Member>>,
    /// Where they are.
    pub places: Option<Places>,
    pub retention: Arc<Retention>,
    pub exclusions: Arc<Exclusions>,
    pub door: Arc<Door>,
    pub started: Stopwatch,
    pub sequence_names: definitions::SequenceNames,
    reading_definitions: tokio::sync::Mutex<()>,
    pub object_ids: Arc<ObjectIds>,
    /// Who is of the set of replicas, and their agents.
    pub membership: Membership,
}

impl Shared {
    /// The epoch by which replicas are claimed, if there are several nodes.
    pub fn leader(&self) -> Option<u64> {
        self.settings.nodes.is_some().then_some(self.epoch)
    }

    /// The generation of definitions in force, if the replica surely contains it.
    pub fn generation_at(&self, replica: ReplicaId) -> Option<u64> {
        let status = self.scheduler.status();
        let applied = Csn(status.replicas.get(usize::from(replica.0))?.applied);
        self.classifier.generation_contained(applied)
    }

    /// Has a lane on which a transaction goes on forget what was prepared on it under other definitions than those in force:
    /// the server would go on reading its parameters as values of other types.
    pub fn renew(&self, lane: &mut Lane, replica: ReplicaId) {
        if lane.generation != self.classifier.generation() {
            lane.forget_prepared();
            lane.generation = self.generation_at(replica).unwrap_or(0);
        }
    }

    /// Waits until a replica contains a commit, or is out of service.
    pub async fn await_applied(&self, replica: ReplicaId, csn: u64) {
        self.scheduler.await_applied(replica, Csn(csn)).await;
    }

    /// Has every replica apply at once what is told so far: somebody asks all that contain it.
    fn want_everywhere(&self) {
        let status = self.scheduler.status();
        for (replica, standing) in (0..).map(ReplicaId).zip(&status.replicas) {
            if standing.up && standing.applied < status.told {
                self.scheduler.want(replica, Csn(status.told));
            }
        }
    }

    /// After a transaction that changed definitions: reads them anew from a replica that contains it.
    /// `restarted` are sequences that begin anew, by schema and name.
    pub async fn read_definitions_after(&self, committed: bool, restarted: &[(String, String)]) {
        if !committed {
            return self.classifier.end_change(None);
        }
        // One after another: what was read earlier must not take the place of what was read later.
        let _turn = self.reading_definitions.lock().await;
        let read = self.read_definitions(restarted).await;
        self.classifier.end_change(Some(read));
        self.object_ids.ask();
    }

    /// Reads the object ids of the replicas whenever somebody asks for them, until all in service have been read.
    async fn keep_object_ids(&self) {
        loop {
            let mut question = self.object_ids.question().await;
            let mut pause = Duration::from_millis(1);
            loop {
                let read = self.read_object_ids().await;
                self.object_ids.answer(question, &read);
                let is_complete =
                    || self.pools.iter().all(|pool| !pool.is_up() || read.contains(&pool.replica));
                if !read.is_empty() && is_complete() {
                    break;
                }
                // Some lag. To list all objects costs more than to look whether they still do.
                loop {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(OBJECT_IDS_PAUSE_MAX);
                    let newest = self.object_ids.newest_question();
                    let is_asked = std::mem::replace(&mut question, newest) != newest;
                    let lags = |pool: &&Arc<Pool>| pool.is_up() && !read.contains(&pool.replica);
                    let lagging: Vec<_> = self.pools.iter().filter(lags).collect();
                    let is_worth_it =
                        lagging.is_empty() || lagging.iter().any(|pool| self.contains_definitions(pool));
                    if is_asked || read.is_empty() || is_worth_it {
                        break;
                    }
                }
            }
        }
    }

    /// Whether a replica in service surely contains the definitions in force.
    pub fn contains_definitions(&self, pool: &Pool) -> bool {
        let applied = self.scheduler.status().replicas[usize::from(pool.replica.0)].applied;
        pool.is_up()
            && self.classifier.generation_contained(Csn(applied)) == Some(self.classifier.generation())
    }

    /// Reads the object ids of all replicas that contain the definitions in force, and says which: none unless the
    /// reference replica is among them, and the definitions stayed in force.
    async fn read_object_ids(&self) -> Vec<ReplicaId> {
        let generation = self.classifier.generation();
        if self.classifier.is_changing() {
            return Vec::new();
        }
        // Those that do not contain the definitions in force yet are not asked.
        self.want_everywhere();
        let mut readings = Vec::new();
        for pool in self.pools.in_service() {
            let incarnation = pool.incarnation();
            let objects = match self.contains_definitions(pool) {
                true => self.object_ids_on(pool).await,
                false => None,
            };
            match objects {
                Some(objects) if pool.incarnation() == incarnation => {
                    readings.push(Reading { replica: pool.replica, incarnation, objects });
                }
                // Those whose catalogue clients see have to be the first.
                _ if readings.is_empty() => return Vec::new(),
                _ => {}
            }
        }
        if self.classifier.is_changing() || self.classifier.generation() != generation {
            return Vec::new();
        }
        if !readings.is_empty() {
            self.object_ids.take(&readings, generation);
        }
        readings.iter().map(|reading| reading.replica).collect()
    }

    /// Over a connection of its own: all lanes may be lent to those who wait for this.
    async fn object_ids_on(&self, pool: &Pool) -> Option<Vec<Listed>> {
        let read = async {
            let mut lane = pool.connector.connect_unmarked(&self.agent).await?;
            pool.connector.in_time(lane.query(object_ids::LIST)).await
        };
        match pool.while_up(read).await? {
            Ok(rows) => Some(rows.into_iter().filter_map(Listed::of_row).collect()),
            Err(error) => {
                tracing::warn!(replica = pool.replica.0, %error, "read object ids");
                None
            }
        }
    }

    /// Reads the definitions and the state of new sequences from a replica that contains everything told.
    async fn read_definitions(&self, restarted: &[(String, String)]) -> (onecopy_classify::Catalogue, Csn) {
        let mut pause = Duration::from_millis(1);
        let mut rounds_blocked = 0;
        loop {
            let told = self.scheduler.status().told;
            let mut is_blocked = false;
            for pool in self.pools.in_service() {
                let applied = self.scheduler.status().replicas[usize::from(pool.replica.0)].applied;
                if applied < told {
                    continue;
                }
                let Ok(mut lent) = pool.lend(&self.agent).await else { continue };
                let mut plain = match pool.connector.connect_plain(&self.agent).await {
                    Ok(plain) => plain,
                    // Nothing is in the way of definitions, but of another connection.
                    Err(error) => {
                        tracing::warn!(%error, "connect to read definitions; trying again");
                        pool.give_back(&self.agent, lent);
                        continue;
                    }
                };
                match self.read_definitions_on(&mut lent.lane, &mut plain, restarted).await {
                    Ok(catalogue) => {
                        pool.give_back(&self.agent, lent);
                        return (catalogue, Csn(told));
                    }
                    // Somebody has locked a table, or another change came between two queries: the replica is well.
                    Err(error) if error.is_database() => {
                        tracing::debug!(%error, "read definitions; trying again");
                        is_blocked = true;
                        // Statements of the transaction that holds the lock may be waiting for these definitions.
                        if rounds_blocked >= BLOCKED_ROUNDS_MAX {
                            match lent.lane.query(&definitions::end_locking()).await {
                                // What is in the way here is not onecopy's; on another replica it may be.
                                Ok(ended) if ended.is_empty() => {}
                                Ok(ended) => {
                                    tracing::warn!(
                                        replica = pool.replica.0,
                                        sessions = ended.len(),
                                        "ended transactions that kept definitions from being read"
                                    );
                                    rounds_blocked = 0;
                                }
                                Err(error) => tracing::warn!(%error, "end transactions"),
                            }
                        }
                        if lent.lane.roll_back().await.is_ok() {
                            pool.give_back(&self.agent, lent);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "read definitions");
                        pool.suspect(lent.lane.incarnation, &error);
                    }
                }
            }
            rounds_blocked = if is_blocked { rounds_blocked + 1 } else { 0 };
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    async fn read_definitions_on(
        &self,
        lane: &mut crate::lane::Lane,
        plain: &mut crate::lane::Lane,
        restarted: &[(String, String)],
    ) -> Result<onecopy_classify::Catalogue, crate::lane::LaneError> {
        // What a client has set may be in force there. It is dressed anew for whoever borrows it next.
        lane.settings = u64::MAX;
        lane.command("SET lock_timeout = '200ms'; SET statement_timeout = 0").await?;
        let catalogue = definitions::read(lane, plain).await?;
        *self.sequence_names.lock() = definitions::names(&catalogue);
        let known = self.classifier.catalogue();
        for (sequence, definition, name) in definitions::sequences(lane, &catalogue).await? {
            let unchanged = known.sequences.iter().any(|s| {
                onecopy_classify::table_id(&s.schema, &s.name) == sequence && definitions::same(s, name)
            });
            let is_restarted = restarted.iter().any(|(s, n)| *s == name.schema && *n == name.name);
            if !unchanged || is_restarted {
                self.scheduler.handle(Event::Sequence { sequence, definition });
            }
        }
        Ok(catalogue)
    }
}

/// A running server.
pub struct Handle {
    pub(crate) addresses: Vec<String>,
}

impl Handle {
    /// The addresses that are listened on, ports resolved.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }
}

/// Serves until `shutdown` is ready: brings the replicas to the log's end, calls `ready`, accepts clients. Where several nodes
/// serve together, `ready` is called as soon as clients can connect, who wait then until one of the nodes leads.
///
/// # Errors
/// [`ServeError`] if serving cannot start.
pub async fn serve(
    mut settings: Settings,
    ready: impl FnOnce(&Handle),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let is_of_peers = sites::peers::is_one(&settings.protocol);
    if is_of_peers || sites::is_one(&settings.protocol) {
        let Some(nodes) = settings.nodes.clone() else {
            return Err(ServeError::Settings(format!(
                "protocol = \"{}\" is served by several sites: set cluster.node and cluster.nodes",
                settings.protocol
            )));
        };
        return match is_of_peers {
            true => sites::peers::serve(settings, nodes, ready, shutdown).await,
            false => sites::serve(settings, nodes, ready, shutdown).await,
        };
    }
    if let Some(nodes) = settings.nodes.clone() {
        return nodes::serve(settings, nodes, ready, shutdown).await;
    }
    let members = ReplicaSet::load(&mut settings)?;
    files::make_room(&mut settings)?;
    let folder = preparation::lock_log(&settings)?;
    let listeners = listen(&settings).await?;
    let mut term = Term::begin(settings, members, Source::Alone(folder)).await?;
    let mut tasks = tokio::task::JoinSet::new();
    let addresses = listeners.iter().map(|(address, _)| address.clone()).collect();
    let admissions = Arc::new(Semaphore::new(term.shared.limits.connections_max + files::ADMITTED_BEYOND));
    for (_, listener) in listeners {
        let (shared, workers) = (term.shared.clone(), term.workers.clone());
        let serve = move |stream, admission: Admission| {
            let (shared, crowded) = (shared.clone(), admission.crowded);
            workers.serve(stream, admission, move |stream| startup::handle(stream, shared, crowded));
        };
        tasks.spawn(accept(listener, admissions.clone(), serve));
    }
    ready(&Handle { addresses });
    // What the log has failed to write may be in it or not: as PostgreSQL does without its own log, onecopy ends, so that
    // those who wait for a commit learn that its outcome is unknown, and reads it again when it is started.
    let log_failed = async {
        match &mut term.log_failed {
            Some(failed) => failed.await,
            None => std::future::pending().await,
        }
    };
    let failed = tokio::select! {
        () = shutdown => None,
        Ok(fault) = log_failed => Some(fault),
    };
    tasks.shutdown().await;
    let log = term.shared.log.clone();
    term.end();
    let closed = log.close();
    failed.map_or(closed, Err).map_err(|fault| ServeError::LogFailed(fault.to_string()))
}

/// One process's time of ordering: from when the replicas were claimed until it ends, or another node leads.
pub struct Term {
    pub shared: Arc<Shared>,
    pub workers: Arc<Workers>,
    housekeeping: [tokio::task::JoinHandle<()>; 3],
    /// Tells when the log has failed, and why, if it is this process's alone.
    log_failed: Option<oneshot::Receiver<Fault>>,
}

impl Term {
    /// Brings the replicas to the log's end; clients can be served then.
    pub async fn begin(settings: Settings, members: ReplicaSet, source: Source) -> Result<Term, ServeError> {
        let prepared = preparation::prepare(&copied(&settings, &members)?, &members, source).await?;
        let tls = settings.tls.as_ref().map(tls::Acceptor::load).transpose()?;
        let (shared, log_failed) = start(settings, prepared, members, tls).await?;
        let workers = match shared.member {
            None => Workers::start(shared.settings.workers),
            // Clients are accepted before it begins, and after it has ended.
            Some(_) => Workers::start_apart(shared.settings.workers),
        };
        let workers = workers.map_err(ServeError::Threads)?;
        let keeping = tokio::spawn(keep_house(shared.clone()));
        let numbering = {
            let shared = shared.clone();
            tokio::spawn(async move { shared.keep_object_ids().await })
        };
        let watching = tokio::spawn(waits::watch(shared.clone()));
        let housekeeping = [keeping, numbering, watching];
        Ok(Term { shared, workers: Arc::new(workers), housekeeping, log_failed })
    }

    /// Ends what was begun, before the log may be closed.
    pub fn end(self) {
        drop(self.workers);
        self.housekeeping.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// The same without the replicas that are still to be copied: nothing is asked of them before that.
fn copied(settings: &Settings, members: &ReplicaSet) -> Result<Settings, ServeError> {
    let (copying, replicas): (Vec<_>, Vec<_>) =
        settings.replicas.iter().cloned().partition(|replica| members.is_copying(&replica.name));
    for replica in &copying {
        tracing::info!(replica = replica.name, "the replica is to be copied from another one");
    }
    if replicas.is_empty() && !copying.is_empty() {
        return Err(ServeError::Replicas(
            "every replica is to be copied from another one; see replicas.toml in the folder of the log, or, where several nodes share that, `onecopy log show --writes`"
                .into(),
        ));
    }
    Ok(Settings { replicas, ..settings.clone() })
}

async fn start(
    settings: Settings,
    prepared: preparation::Prepared,
    members: ReplicaSet,
    tls: Option<tls::Acceptor>,
) -> Result<(Arc<Shared>, Option<oneshot::Receiver<Fault>>), ServeError> {
    let decisions = LogDecisions { log: prepared.log.clone(), epoch: Epoch(prepared.epoch) };
    let count = settings.replicas.len();
    let mut protocol = onecopy_core::protocol::by_name(&settings.protocol, count, prepared.end)
        .map_err(|error| ServeError::Settings(error.to_string()))?;
    protocol.engine_is(Engine { shows_uncommitted: false, commits_in_order: true });
    let reserve = definitions::reservation(prepared.sequence_names.clone());
    let channels = Arc::<Channels>::default();
    let unapplied_bytes_max = settings.limits.unapplied_bytes_max;
    let scheduler =
        Scheduler::new(protocol, count, Box::new(decisions), reserve, channels.clone(), unapplied_bytes_max);
    let scheduler = Arc::new(scheduler);
    prepared.durable.connect(&scheduler);
    tokio::spawn(scheduler.clone().run_timers());
    let agent = Credentials {
        user: settings.agent_user.clone(),
        password: settings.agent_password.clone(),
        customs: CustomNames::default(),
    };
    let (log, epoch) = (prepared.log.clone(), Epoch(prepared.epoch));
    let history = Arc::new(LogHistory::new(log, epoch));
    let object_ids = Arc::<ObjectIds>::default();
    let leader = settings.nodes.is_some().then_some(prepared.epoch);
    let pools = (0..).map(ReplicaId).zip(&settings.replicas);
    let pools = Pools::new(pools.map(|(id, replica)| {
        let connector = connector(&settings, replica, leader);
        let lanes_max = settings.limits.lanes_per_replica_max;
        let (workers, agent) = (settings.event_loops(), scheduler.agents[usize::from(id.0)].clone());
        Arc::new(Pool::new(id, connector, lanes_max, workers, agent, object_ids.clone()))
    }));
    let retention = Arc::new(Retention::new(count, prepared.first));
    let exclusions = Arc::new(Exclusions::new(count));
    let names = settings.replicas.iter().map(|replica| replica.name.clone()).collect();
    let allowed = settings.annul.iter().map(|csn| Csn(*csn));
    let annulments = Arc::new(Annulments::new(names, prepared.annulled, allowed));
    let sequences = prepared.catalogue.sequences.iter();
    let sequences: Vec<_> = sequences.map(|s| (s.schema.clone(), s.name.clone())).collect();
    for pool in pools.iter() {
        let seen = prepared
            .versions
            .iter()
            .find(|(name, _)| name == pool.name())
            .map(|(_, version)| version.clone());
        if let Some(version) = seen.or_else(|| members.version(pool.name())) {
            pool.note_version(version);
        }
    }
    let seen = prepared.versions.iter().map(|(name, version)| (name.as_str(), version.clone()));
    members
        .note_versions(seen)
        .await
        .map_err(|error| ServeError::Settings(format!("note of which versions servers are: {error}")))?;
    members
        .begin()
        .await
        .map_err(|error| ServeError::Log(format!("note which replicas there are: {error}")))?;
    let membership = Membership::new(members, history, annulments, prepared.log_id);
    let (member, places) = prepared.member.unzip();
    let door = Arc::new(Door::new(&settings, tls));
    let shared = Arc::new(Shared {
        scheduler,
        classifier: Classifier::new(prepared.catalogue, prepared.end),
        pools,
        limits: settings.limits.clone(),
        cancels: Cancels::default(),
        advisory_locks: Arc::new(AdvisoryLocks::new(settings.limits.advisory_locks_max)),
        channels,
        epoch: prepared.epoch,
        secret: prepared.secret,
        agent_user: settings.agent_user.clone(),
        agent,
        sessions: AtomicU64::new(1),
        log: prepared.log,
        member,
        places,
        retention,
        exclusions,
        door,
        settings,
        started: Stopwatch::start(),
        sequence_names: prepared.sequence_names,
        reading_definitions: tokio::sync::Mutex::new(()),
        object_ids,
        membership,
    });
    membership::settle_manner(&shared);
    for pool in shared.pools.iter() {
        shared.membership.employ(&shared, pool);
    }
    preparation::await_service(&shared, prepared.usable).await?;
    // Replicas contain the end of the log only now, in which definitions may have changed and numbers been reserved.
    shared.classifier.begin_change();
    shared.read_definitions_after(true, &sequences).await;
    // What clients are told begins with what the first replica's catalogue shows.
    shared.object_ids.ask();
    Ok((shared, prepared.log_failed))
}

/// How connections to a replica are opened.
pub fn connector(settings: &Settings, replica: &ReplicaSettings, leader: Option<u64>) -> Connector {
    Connector {
        address: Arc::new(replica.clone()),
        database: settings.database.as_str().into(),
        timeout: Duration::from_millis(settings.limits.connect_timeout_ms),
        silence: Duration::from_millis(settings.limits.silence_timeout_ms),
        version: Arc::default(),
        leader,
    }
}

/// Drops what every replica contains from memory, and what no replica can need again from the log.
async fn keep_house(shared: Arc<Shared>) {
    let mut looked_at_log = Stopwatch::start();
    let mut beginnings = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let status = shared.scheduler.status();
        if let Some(everywhere) = status.replicas.iter().filter(|r| r.up).map(|r| r.applied).min() {
            shared.scheduler.forget_recent(Csn(everywhere));
        }
        if looked_at_log.elapsed_s() >= 1 {
            looked_at_log = Stopwatch::start();
            let offered = shared.member.as_ref().map_or(0, |member| member.status().beginnings);
            if std::mem::replace(&mut beginnings, offered) != offered
                && let Err(error) = shared.membership.set.note_anew().await
            {
                tracing::warn!(%error, "note which replicas there are, for a node whose log begins anew");
            }
            let within = || shared.log.oldest_within(shared.settings.log.kept_bytes_max);
            let nodes =
                shared.member.as_ref().and_then(|member| needed_by_nodes(&shared.log, &member.status()));
            if let Some(first) = shared.retention.advance(nodes, within) {
                match shared.membership.set.outlives(first).await {
                    Ok(first) => shared.log.truncate_before(first),
                    Err(error) => tracing::warn!(%error, "note anew which replicas there are"),
                }
            }
        }
    }
}

/// The first commit that is kept for nodes that are behind: without the records that they lack next, their logs would begin anew.
fn needed_by_nodes(log: &Log, status: &MemberStatus) -> Option<Csn> {
    let others = status.members.nodes().map(|(node, _)| node).filter(|node| *node != status.node);
    let matched = |node| status.matched.iter().find(|(id, _)| *id == node).and_then(|(_, place)| *place);
    others.map(|node| log.keeping(matched(node).unwrap_or_default().next())).min()
}

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

pub async fn listen(settings: &Settings) -> Result<Vec<(String, Listener)>, ServeError> {
    let mut listeners = Vec::new();
    for address in &settings.listen {
        let failed = |source| ServeError::Listen { address: address.clone(), source };
        if let Some((dir, port)) = address.strip_prefix('/').and_then(|rest| rest.rsplit_once(':')) {
            let path = format!("/{dir}/.s.PGSQL.{port}");
            // A socket that was left by a process that is gone refuses connections.
            if std::os::unix::net::UnixStream::connect(&path).is_err() {
                let _ = std::fs::remove_file(&path);
            }
            listeners.push((path.clone(), Listener::Unix(UnixListener::bind(&path).map_err(failed)?)));
        } else {
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let bound = listener.local_addr().map_or_else(|_| address.clone(), |bound| bound.to_string());
            listeners.push((bound, Listener::Tcp(listener)));
        }
    }
    Ok(listeners)
}

/// Accepts clients, and has each of them served.
pub async fn accept(listener: Listener, admissions: Arc<Semaphore>, serve: impl Fn(Stream, Admission)) {
    loop {
        // More than can be refused wait in the system's queue: connections of whoever says nothing would take the files that
        // the log and the replicas need.
        let Ok(permit) = admissions.clone().acquire_owned().await else { return };
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                // Answers are whole messages: waiting for more bytes only delays them.
                let _ = stream.set_nodelay(true);
                // A client whose host is gone says nothing more, and its session would stay for ever.
                let _ = socket2::SockRef::from(&stream).set_keepalive(true);
                Stream::Tcp(stream)
            }),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        };
        match accepted {
            Ok(stream) => {
                // Those that are still in their startup count as well: whoever opens connections and says nothing
                // takes no more of what is left than a refusal needs.
                let crowded = admissions.available_permits() < files::ADMITTED_BEYOND;
                serve(stream, Admission { _permit: permit, crowded });
            }
            Err(error) => {
                tracing::warn!(%error, "accept a client");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
