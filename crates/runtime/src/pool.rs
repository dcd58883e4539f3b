//! Lanes of one replica, by user, reused between statements.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashMap;
use onecopy_core::{ReplicaId, TxnId};
use onecopy_wire::backend::ErrorFields;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::clock::Stopwatch;
use crate::lane::{Lane, LaneError, SocketHandle, is_going_away};
use crate::object_ids::{LaneIds, ObjectIds};
use crate::postgres::connect::{Connector, Credentials};
use crate::postgres::version::ServerVersion;
use crate::scheduler::AgentQueue;
use crate::server::cancel::Backend;
use crate::standing::Standing;
use crate::workers;

/// The lanes of one replica.
pub struct Pool {
    pub replica: ReplicaId,
    pub connector: Connector,
    /// By worker and user: a lane stays on the event loop in which it was opened.
    idle: Box<[Mutex<IdleLanes>]>,
    /// How many more connections may be opened; every lane holds one permit.
    connections: Arc<Semaphore>,
    lent: Arc<AtomicUsize>,
    /// Somebody waits for a lane of any kind.
    waiting: AtomicUsize,
    given_back: Notify,
    sockets: Arc<Sockets>,
    /// Why the replica is out of service, if it is.
    pub standing: Standing,
    /// Of which version its server is, by which is decided how writes reach it; `None` while nobody has seen it.
    version: Mutex<Option<ServerVersion>>,
    incarnation: AtomicU64,
    up: AtomicBool,
    /// Told when the replica leaves service.
    closed: Notify,
    /// The agent's session on the replica: what is known of the replica holds for as long as that lives.
    agent_pid: AtomicU32,
    agent: Arc<AgentQueue>,
    object_ids: Arc<ObjectIds>,
    /// So many commits of transactions that were executed on the replica have changed definitions.
    definitions_changed: AtomicU64,
    /// So many commits that the replica contains may have changed the names of roles.
    roles_changed: AtomicU64,
    /// So many transactions have applied commits there.
    apply_transactions: AtomicU64,
    /// When it was last doubted that the server can write.
    doubted: Mutex<Option<Stopwatch>>,
    /// The replica is about to leave the set, or has left it.
    leaving: AtomicBool,
    gone: AtomicBool,
    /// Open transactions that have shown its catalogue, outside of any lane.
    shown: Arc<AtomicUsize>,
}

/// A server that cannot write is taken out of service once in so many seconds.
const DOUBT_PAUSE_S: u64 = 10;

/// Lanes by user, the one last used at the end.
#[allow(clippy::vec_box, reason = "a lane is lent and given back more often than it is used in place")]
type IdleLanes = HashMap<String, Vec<Box<Lane>>>;

/// A lane that is given back by [`Pool::give_back`], or closed when dropped.
pub struct Lent {
    pub lane: Box<Lane>,
    _loan: Counting,
}

/// Whose catalogue a transaction has shown.
pub struct ShownCatalogue {
    pub replica: ReplicaId,
    _count: Counting,
}

/// Counts something for as long as it lives.
struct Counting(Arc<AtomicUsize>);

impl Counting {
    fn new(count: &Arc<AtomicUsize>) -> Counting {
        count.fetch_add(1, Ordering::AcqRel);
        Counting(count.clone())
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Pool {
    pub fn new(
        replica: ReplicaId,
        connector: Connector,
        lanes_max: usize,
        workers: usize,
        agent: Arc<AgentQueue>,
        object_ids: Arc<ObjectIds>,
    ) -> Pool {
        Pool {
            replica,
            connector,
            idle: (0..workers.max(1)).map(|_| Mutex::default()).collect(),
            connections: Arc::new(Semaphore::new(lanes_max)),
            lent: Arc::default(),
            waiting: AtomicUsize::new(0),
            given_back: Notify::new(),
            sockets: Arc::default(),
            standing: Standing::default(),
            version: Mutex::default(),
            incarnation: AtomicU64::new(0),
            up: AtomicBool::new(false),
            closed: Notify::new(),
            agent_pid: AtomicU32::new(0),
            agent,
            object_ids,
            definitions_changed: AtomicU64::new(0),
            roles_changed: AtomicU64::new(0),
            apply_transactions: AtomicU64::new(0),
            doubted: Mutex::new(None),
            leaving: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            shown: Arc::default(),
        }
    }

    /// What the replica is called.
    pub fn name(&self) -> &str {
        &self.connector.address.name
    }

    /// Of which version its server was when that was last settled: see [`crate::membership`].
    pub fn version(&self) -> Option<ServerVersion> {
        self.version.lock().clone()
    }

    pub fn note_version(&self, version: ServerVersion) {
        *self.version.lock() = Some(version);
    }

    /// From now on others are asked, as long as there are any.
    pub fn note_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// The replica is no more of the set.
    pub fn note_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// A transaction shows its client this replica's catalogue, and will go on to.
    pub fn show_catalogue(&self) -> ShownCatalogue {
        ShownCatalogue { replica: self.replica, _count: Counting::new(&self.shown) }
    }

    /// Whether somebody uses it, as far as the core does not know.
    pub fn is_used(&self) -> bool {
        self.lent() > 0 || self.shown.load(Ordering::Acquire) > 0
    }

    /// A transaction has applied commits here.
    pub fn note_apply_transaction(&self) {
        self.apply_transactions.fetch_add(1, Ordering::Relaxed);
    }

    /// How many have, since onecopy was started.
    pub fn apply_transactions(&self) -> u64 {
        self.apply_transactions.load(Ordering::Relaxed)
    }

    /// A commit may have changed the names of roles: only lanes that are opened from now on are used. To be noted before the
    /// core hears that the replica contains it.
    pub fn note_roles_changed(&self) {
        self.roles_changed.fetch_add(1, Ordering::Release);
        self.close_idle();
    }

    /// A transaction that was executed on the replica has changed definitions and committed. To be noted before the core
    /// hears of the commit.
    pub fn note_definitions_changed(&self) {
        self.definitions_changed.fetch_add(1, Ordering::Release);
    }

    /// How often that was noted.
    pub fn definitions_changed(&self) -> u64 {
        self.definitions_changed.load(Ordering::Acquire)
    }

    /// A lane for a user; waits while all are lent.
    pub async fn lend(&self, who: &Credentials) -> Result<Lent, LaneError> {
        let lent = self.try_to_lend(who).await;
        if lent.is_err() {
            // A server that is gone refuses connections at once. Whoever is then told to try again, perhaps there, as the one replica
            // that is not busy, would keep the event loop to itself, and the agent would never hear that its connection is lost.
            tokio::task::yield_now().await;
        }
        lent
    }

    async fn try_to_lend(&self, who: &Credentials) -> Result<Lent, LaneError> {
        let loan = Counting::new(&self.lent);
        if !self.is_up() {
            return Err(LaneError::Closed);
        }
        let lane = match self.take_idle(who) {
            Some(lane) => lane,
            None => match self.connections.clone().try_acquire_owned() {
                Ok(permit) => self.open_lane(who, permit).await?,
                Err(_) => self.await_lane(who).await?,
            },
        };
        Ok(Lent { lane, _loan: loan })
    }

    /// Whether a lane could be lent at once.
    pub fn has_room(&self, who: &Credentials) -> bool {
        let has_idle = || {
            let idle = self.idle[self.worker()].lock();
            let mut lanes = idle.get(&who.user).into_iter().flatten();
            lanes.any(|lane| who.customs.contain(&lane.customs))
        };
        self.connections.available_permits() > 0 || has_idle()
    }

    /// A lane for a user, if one is idle.
    pub fn lend_idle(&self, who: &Credentials) -> Option<Lent> {
        if !self.is_up() {
            return None;
        }
        let lane = self.take_idle(who)?;
        Some(Lent { lane, _loan: Counting::new(&self.lent) })
    }

    fn take_idle(&self, who: &Credentials) -> Option<Box<Lane>> {
        let incarnation = self.incarnation.load(Ordering::Acquire);
        let mut idle = self.idle[self.worker()].lock();
        let lanes = idle.get_mut(&who.user)?;
        // One that knows what the session has named is preferred, so that those that know nothing are left to the others.
        let found = |lanes: &Vec<Box<Lane>>| {
            lanes
                .iter()
                .rposition(|lane| lane.customs == who.customs)
                .or_else(|| lanes.iter().rposition(|lane| who.customs.contain(&lane.customs)))
        };
        // A lane of an earlier incarnation is closed by being dropped.
        std::iter::from_fn(|| found(lanes).map(|at| lanes.remove(at)))
            .find(|lane| lane.incarnation == incarnation && lane.roles == self.roles())
    }

    fn roles(&self) -> u64 {
        self.roles_changed.load(Ordering::Acquire)
    }

    async fn open_lane(
        &self,
        who: &Credentials,
        permit: OwnedSemaphorePermit,
    ) -> Result<Box<Lane>, LaneError> {
        let incarnation = self.incarnation.load(Ordering::Acquire);
        if !self.is_up() {
            return Err(LaneError::Closed);
        }
        let roles = self.roles();
        let opening = self.while_up(self.open_checked(who, incarnation)).await;
        let mut opened = opening.unwrap_or(Err(LaneError::Closed));
        // Whatever the server says, it says it after a crash, or while it is being fenced. Only what is registered is ended
        // from now on.
        if let Ok(lane) = &mut opened {
            lane.registered = Some(Sockets::register(&self.sockets, lane)?);
        }
        if !self.is_up() || self.incarnation.load(Ordering::Acquire) != incarnation {
            return Err(LaneError::Closed);
        }
        let mut lane = opened?;
        lane.incarnation = incarnation;
        lane.roles = roles;
        lane.object_ids = Some(LaneIds::new(self.object_ids.clone(), self.replica, incarnation));
        lane.permit = Some(permit);
        Ok(lane)
    }

    /// A server that crashed since it was fenced may have lost commits that it had answered (design 3.4), and lets new
    /// sessions in as if nothing had happened.
    async fn open_checked(&self, who: &Credentials, incarnation: u64) -> Result<Box<Lane>, LaneError> {
        let mut lane = Box::new(self.connector.connect_marked(who, incarnation).await?);
        let agent_pid = self.agent_pid.load(Ordering::Acquire);
        match self.connector.in_time(self.connector.has_agent(&mut lane, agent_pid)).await? {
            true => Ok(lane),
            false => Err(LaneError::Closed),
        }
    }

    /// Waits for the server's part of some work; `None` when the replica is out of service, or leaves it meanwhile. A server that hangs
    /// would have whoever opens a connection to it wait for longer than it takes to find out that it does.
    pub async fn while_up<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut closed = pin!(self.closed.notified());
        closed.as_mut().enable();
        if !self.is_up() {
            return None;
        }
        tokio::select! {
            biased;
            () = closed => None,
            done = work => Some(done),
        }
    }

    /// As many connections as may be are open: one that is idle elsewhere is closed for this, or one given back.
    async fn await_lane(&self, who: &Credentials) -> Result<Box<Lane>, LaneError> {
        let _waiting = Waiting::new(&self.waiting);
        loop {
            let mut given_back = pin!(self.given_back.notified());
            given_back.as_mut().enable();
            if let Some(lane) = self.take_idle(who) {
                return Ok(lane);
            }
            self.close_one_idle();
            tokio::select! {
                permit = self.connections.clone().acquire_owned() => {
                    return self.open_lane(who, permit.map_err(|_| LaneError::Closed)?).await;
                }
                () = given_back => {}
            }
        }
    }

    fn close_one_idle(&self) {
        for idle in &self.idle {
            let lane = idle.lock().values_mut().find_map(Vec::pop);
            if lane.is_some() {
                return;
            }
        }
    }

    fn worker(&self) -> usize {
        workers::current().min(self.idle.len() - 1)
    }

    /// Whether a lane was opened since the replica was last fenced.
    pub fn is_current(&self, lent: &Lent) -> bool {
        lent.lane.incarnation == self.incarnation.load(Ordering::Acquire)
    }

    /// Counts how often the replica was fenced, or left service.
    pub fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// Takes back a lane on which nothing is open and nothing is outstanding. Is a cancel request under way to it, nobody
    /// else gets it before it has arrived: it would meet another session's statement.
    pub fn give_back(self: &Arc<Self>, who: &Credentials, mut lent: Lent) {
        lent.lane.customs.add_all(&who.customs);
        if lent.lane.backend.is_quiet() {
            return self.take_back(who, lent);
        }
        let (pool, who) = (self.clone(), who.clone());
        tokio::spawn(async move {
            if lent.lane.backend.become_quiet().await {
                pool.take_back(&who, lent);
            }
        });
    }

    fn take_back(&self, who: &Credentials, lent: Lent) {
        lent.lane.backend.serve(None);
        {
            let mut idle = self.idle[self.worker()].lock();
            // Looked at in here: whoever fences the replica counts on, and then closes what is idle.
            if !self.is_current(&lent) || lent.lane.roles != self.roles() {
                drop(idle);
                return;
            }
            match idle.get_mut(&who.user) {
                Some(lanes) => lanes.push(lent.lane),
                None => drop(idle.insert(who.user.clone(), vec![lent.lane])),
            }
        }
        if self.waiting.load(Ordering::Acquire) > 0 {
            self.given_back.notify_one();
        }
    }

    /// The server's processes on which a transaction of the scheduler's is open.
    pub fn transactions(&self) -> Vec<(u32, TxnId)> {
        let by_number = self.sockets.by_number.lock();
        by_number.values().filter_map(|socket| Some((socket.backend.pid, socket.backend.serves()?))).collect()
    }

    /// Lanes lent at this moment.
    pub fn lent(&self) -> usize {
        self.lent.load(Ordering::Acquire)
    }

    /// Lanes that wait to be lent.
    pub fn idle(&self) -> usize {
        self.idle.iter().map(|idle| idle.lock().values().map(Vec::len).sum::<usize>()).sum()
    }

    fn close_idle(&self) {
        for idle in &self.idle {
            idle.lock().clear();
        }
    }

    /// A lane was lost: the replica is to be fenced before it serves again. A server that refused something has lost nothing,
    /// unless it says that it is going.
    pub fn suspect(&self, incarnation: u64, reason: &LaneError) {
        match reason {
            LaneError::Database(fields) if !is_going_away(fields.code) => return,
            // What this process lacks would be blamed on one replica after the other.
            LaneError::Shortage(_) => return,
            _ => {}
        }
        if incarnation == self.incarnation.load(Ordering::Acquire) && self.up.load(Ordering::Acquire) {
            self.agent.suspect(&reason.to_string());
        }
    }

    /// A write failed in a way that says something about the server, as when its disk is full: it leaves service for a moment, so
    /// that others are the home of what follows. Not too often, since all servers may be like that.
    pub fn doubt(&self, reason: &ErrorFields) {
        const FAULTS: [&str; 4] = ["53100", "58030", "XX001", "XX002"];
        if !FAULTS.contains(&reason.code.as_str()) {
            return;
        }
        let mut doubted = self.doubted.lock();
        if doubted.as_ref().is_none_or(|doubted| doubted.elapsed_s() >= DOUBT_PAUSE_S) && self.is_up() {
            *doubted = Some(Stopwatch::start());
            self.agent.suspect(&format!("{}: {}", reason.code.as_str(), reason.message));
        }
    }

    /// A lane could not be opened, or was found closed: the same.
    pub fn suspect_now(&self, reason: &LaneError) {
        self.suspect(self.incarnation.load(Ordering::Acquire), reason);
    }

    /// The replica was fenced by this session of its agent: only lanes opened from now on may be used.
    pub fn open(&self, agent_pid: u32) -> u64 {
        self.close_idle();
        self.agent_pid.store(agent_pid, Ordering::Release);
        let incarnation = self.incarnation.fetch_add(1, Ordering::AcqRel) + 1;
        self.up.store(true, Ordering::Release);
        // Asked only when a description needs them, they would be waited for; the longer if another server hangs meanwhile.
        self.object_ids.ask();
        incarnation
    }

    /// The replica must not be used: who waits for an answer on one of its lanes finds the lane closed.
    pub fn close(&self) {
        self.up.store(false, Ordering::Release);
        self.incarnation.fetch_add(1, Ordering::AcqRel);
        self.closed.notify_waiters();
        self.close_idle();
        self.sockets.shut_down();
    }

    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }
}

/// The sockets of all lanes that exist. A server that is silent leaves whoever uses one waiting for ever, so they are shut
/// down here.
#[derive(Default)]
pub struct Sockets {
    next: AtomicU64,
    by_number: Mutex<HashMap<u64, Socket>>,
}

struct Socket {
    handle: Arc<SocketHandle>,
    /// The server's process at its other end.
    backend: Arc<Backend>,
}

impl Sockets {
    fn register(sockets: &Arc<Sockets>, lane: &mut Lane) -> std::io::Result<Registered> {
        let number = sockets.next.fetch_add(1, Ordering::Relaxed);
        let socket = Socket { handle: lane.handle()?, backend: lane.backend.clone() };
        sockets.by_number.lock().insert(number, socket);
        Ok(Registered { number, sockets: sockets.clone() })
    }

    fn shut_down(&self) {
        for socket in self.by_number.lock().values() {
            socket.handle.shut_down();
        }
    }
}

/// A lane is among the sockets of its pool for as long as this lives.
pub struct Registered {
    number: u64,
    sockets: Arc<Sockets>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.sockets.by_number.lock().remove(&self.number);
    }
}

/// Counts somebody who waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Waiting<'a> {
        count.fetch_add(1, Ordering::AcqRel);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Failure;
    use crate::postgres::connect::CustomNames;
    use crate::settings::{ReplicaSettings, ReplicaTls};
    use crate::stream::Stream;
    use onecopy_wire::SqlState;
    use onecopy_wire::backend::ErrorFields;
    use onecopy_wire::backend::Status;
    use onecopy_wire::backend::build::{self, Severity};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    fn on_loop(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    fn ada() -> Credentials {
        naming(&[])
    }

    /// A session of hers that has named customised settings.
    fn naming(names: &[&str]) -> Credentials {
        let mut who = Credentials { user: "ada".to_owned(), password: None, customs: CustomNames::default() };
        for name in names {
            who.customs.add(name);
        }
        who
    }

    fn pool() -> (Arc<Pool>, Arc<AgentQueue>) {
        pool_at(1)
    }

    fn pool_at(port: u16) -> (Arc<Pool>, Arc<AgentQueue>) {
        pool_on("127.0.0.1", port)
    }

    fn pool_on(host: &str, port: u16) -> (Arc<Pool>, Arc<AgentQueue>) {
        let address =
            ReplicaSettings { name: "r1".to_owned(), host: host.to_owned(), port, tls: ReplicaTls::Disable };
        let connector = Connector {
            address: Arc::new(address),
            database: "d".into(),
            timeout: Duration::from_secs(24 * 3_600),
            silence: Duration::ZERO,
            version: Arc::default(),
            leader: None,
        };
        let queue = Arc::<AgentQueue>::default();
        let pool = Arc::new(Pool::new(ReplicaId(0), connector, 4, 1, queue.clone(), Arc::default()));
        pool.open(1);
        (pool, queue)
    }

    /// A lane of the pool, and the server's end of it.
    fn lend(pool: &Arc<Pool>) -> (Lent, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut lane = Box::new(Lane::new(Stream::Unix(ours)));
        lane.incarnation = pool.incarnation.load(Ordering::Acquire);
        lane.registered = Some(Sockets::register(&pool.sockets, &mut lane).unwrap());
        (Lent { lane, _loan: Counting::new(&pool.lent) }, theirs)
    }

    #[test]
    fn lane_that_has_met_a_customised_setting_is_lent_to_sessions_that_have_met_it_only() {
        on_loop(async {
            let (pool, _) = pool();
            let mut servers = Vec::new();
            let mut lent_and_given_back = |who: &Credentials| {
                let (lent, server) = lend(&pool);
                servers.push(server);
                pool.give_back(who, lent);
            };
            lent_and_given_back(&naming(&["app.tenant"]));
            assert!(pool.take_idle(&ada()).is_none());
            assert!(pool.take_idle(&naming(&["app.user"])).is_none());
            lent_and_given_back(&ada());
            let both = naming(&["App.User", "app.tenant"]);
            let lane = pool.take_idle(&naming(&["APP.tenant"])).unwrap();
            assert_eq!(lane.customs, naming(&["app.tenant"]).customs, "the one that has met it comes first");
            drop(lane);
            let lane = pool.take_idle(&both).expect("one that has met nothing is anybody's");
            assert_eq!(lane.customs, CustomNames::default());
            lent_and_given_back(&naming(&["app.user"]));
            assert!(pool.has_room(&both));
            assert_eq!(pool.take_idle(&both).unwrap().customs, naming(&["app.user"]).customs);
            assert!(pool.take_idle(&both).is_none());
        });
    }

    #[test]
    fn object_ids_are_asked_for_when_a_replica_enters_service() {
        let (pool, _) = pool();
        pool.close();
        let question = pool.object_ids.newest_question();
        pool.open(2);
        assert_eq!(pool.object_ids.newest_question(), question + 1);
    }

    #[test]
    fn lane_that_a_silent_server_does_not_open_is_given_up_when_the_replica_leaves_service() {
        on_loop(async {
            let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let (pool, _) = pool_at(server.local_addr().unwrap().port());
            let opening = tokio::spawn({
                let pool = pool.clone();
                async move { pool.lend(&ada()).await.map(drop) }
            });
            // Longer than any test runs, the server accepts and says nothing.
            let (_connection, _) =
                tokio::task::spawn_blocking(move || server.accept()).await.unwrap().unwrap();
            assert!(!opening.is_finished());
            pool.close();
            assert!(matches!(opening.await.unwrap(), Err(LaneError::Closed)));
            assert_eq!((pool.lent(), pool.connections.available_permits()), (0, 4));
        });
    }

    #[test]
    fn whoever_tries_a_server_that_is_gone_again_and_again_keeps_nobody_from_finding_out() {
        on_loop(async {
            let dir = tempfile::tempdir().unwrap();
            let (pool, _) = pool_on(dir.path().to_str().unwrap(), 1);
            // Nobody listens any more.
            drop(std::os::unix::net::UnixListener::bind(dir.path().join(".s.PGSQL.1")).unwrap());
            let agent = tokio::spawn({
                let pool = pool.clone();
                async move { pool.close() }
            });
            for _ in 0..1_000 {
                assert!(pool.lend(&ada()).await.is_err());
                if agent.is_finished() {
                    return;
                }
            }
            panic!("it had no turn");
        });
    }

    #[test]
    fn lane_is_lent_to_nobody_else_before_a_cancel_request_has_arrived() {
        on_loop(async {
            let (pool, _) = pool();
            for arrives in [true, false] {
                let (lent, _server) = lend(&pool);
                let request = crate::server::cancel::Request::to(&lent.lane.backend);
                pool.give_back(&ada(), lent);
                tokio::task::yield_now().await;
                assert!(pool.take_idle(&ada()).is_none());
                if arrives {
                    request.arrived()
                } else {
                    drop(request)
                }
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(
                    pool.take_idle(&ada()).is_some(),
                    arrives,
                    "one that may still arrive closes the lane"
                );
                assert_eq!(pool.lent(), 0);
            }
        });
    }

    #[test]
    fn lane_that_is_given_back_while_its_replica_leaves_service_is_not_kept() {
        on_loop(async {
            let (pool, _) = pool();
            let (lent, _server) = lend(&pool);
            let closing = pool.idle[0].lock();
            let giver = {
                let pool = pool.clone();
                std::thread::spawn(move || pool.take_back(&ada(), lent))
            };
            // Long enough for it to have come as far as the lock.
            std::thread::sleep(Duration::from_millis(50));
            pool.incarnation.fetch_add(1, Ordering::AcqRel);
            drop(closing);
            giver.join().unwrap();
            assert_eq!((pool.idle(), pool.lent()), (0, 0));
        });
    }

    #[test]
    fn whoever_waits_on_a_lane_is_freed_when_its_replica_leaves_service() {
        on_loop(async {
            let (pool, _) = pool();
            let (mut lent, _silent) = lend(&pool);
            let waiting = tokio::spawn(async move { lent.lane.command("SELECT 1").await });
            tokio::task::yield_now().await;
            pool.close();
            assert!(matches!(waiting.await.unwrap(), Err(LaneError::Closed | LaneError::Lost(_))));
            assert!(pool.sockets.by_number.lock().is_empty());
        });
    }

    fn refused(code: SqlState) -> LaneError {
        let mut fields = bytes::BytesMut::new();
        Failure::new(code, "no").put(&mut fields, Severity::Error);
        let frame = fields.freeze();
        let Ok(onecopy_wire::backend::Backend::Error(fields)) =
            onecopy_wire::backend::decode(frame[0], &frame[5..])
        else {
            panic!("an error")
        };
        let fields: ErrorFields = fields.to_owned();
        LaneError::Database(Box::new(fields))
    }

    #[test]
    fn server_that_refuses_a_command_of_ours_is_not_taken_for_lost() {
        on_loop(async {
            let (pool, queue) = pool();
            pool.suspect_now(&refused(SqlState::QUERY_CANCELED));
            pool.suspect_now(&std::io::Error::from(rustix::io::Errno::MFILE).into());
            pool.suspect_now(&refused(SqlState::ADMIN_SHUTDOWN));
            assert!(queue.suspected().await.starts_with("57P01"), "only the last is a reason");
        });
    }

    #[test]
    fn rollback_that_a_cancel_request_meets_is_sent_again() {
        on_loop(async {
            let (pool, _) = pool();
            let (mut lent, mut server) = lend(&pool);
            let serve = tokio::spawn(async move {
                let mut asked = 0;
                let mut buffer = [0_u8; 256];
                while server.read(&mut buffer).await.unwrap() > 0 {
                    asked += 1;
                    let mut answer = bytes::BytesMut::new();
                    if asked == 1 {
                        Failure::new(SqlState::QUERY_CANCELED, "late").put(&mut answer, Severity::Error);
                    } else {
                        build::command_complete(&mut answer, "ROLLBACK");
                    }
                    build::ready_for_query(&mut answer, Status::Idle);
                    server.write_all(&answer).await.unwrap();
                }
                asked
            });
            lent.lane.roll_back().await.unwrap();
            drop(lent);
            assert_eq!(serve.await.unwrap(), 2);
        });
    }
}
