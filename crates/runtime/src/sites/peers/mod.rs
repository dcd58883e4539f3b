//! Peers as processes, each before a database of its own, who agree table by table on who writes (docs/protocols/invalidation.md, *On real
//! servers*).
//!
//! ```text
//!   client -- ../client.rs --> ../transaction.rs     messages become a transaction; which tables it touches
//!                 |
//!                 v
//!              mod.rs  <-->  the core's peers         what happens, and what is to be done
//!              |     |
//!     channel.rs    ../database.rs                    in order and without loss; executed, applied, committed
//!     codec.rs
//! ```
//!
//! Of divided tables: [`parts`] is what a server has of them, [`afar`] what is about rows that are elsewhere, [`crossing`] what peers say of it; [`dealing`] is how rows come to their peers.
//!
//! What peers have agreed on is in their memory only, as in the paper. So if one of them is lost, or its server is, all end: what one of them has
//! committed and told its client may be missing elsewhere.
//!
//! A read sees its tables as they are when the core lets it begin, so its snapshot is taken before anything is committed that the core orders later.

mod afar;
mod channel;
mod codec;
mod crossing;
mod dealing;
mod parts;

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hashbrown::HashMap;
use onecopy_classify::Catalogue;
use onecopy_classify::catalogue::Table;
use onecopy_core::peers::Message as Written;
use onecopy_core::peers::granules::Granules;
use onecopy_core::peers::parts::{Division, Home};
use onecopy_core::protocol::{Protocol, peers_by_name};
use onecopy_core::{
    Access, AccessSet, Begin as CoreBegin, ClassId, ColumnId, Csn, Effect, Event, How, Message, NodeId, OpId,
    Outcome, Place, ReplicaId, SessionId, Statement, StatementKind, TableId, TxnId,
};
use onecopy_log::consensus::{MESSAGE_LEN_MAX, NodeId as PeerId};
use onecopy_wire::sqlstate::SqlState;
use rand::Rng;
use tokio::sync::{mpsc, oneshot};

use self::afar::{Afar, DoneAfar, Elsewhere};
use self::channel::{Came, Channel};
use self::parts::{Parts, Wanted};
use super::database::{self, Answer, ApplyError, Begin, Ran};
use super::likeness::{self, Likeness};
use super::messages::{put_bytes, take_bytes};
use super::transaction::Transaction;
use super::{Clients, Shared, Started, own_replica, too_long};
use crate::clock::{Clock, Deadline};
use crate::errors::{Failure, ServeError};
use crate::lane::{Lane, LaneError};
use crate::nodes;
use crate::nodes::handshake::Purpose;
use crate::nodes::links::{self, Links, Said};
use crate::nodes::peers::{Peers, Serve};
use crate::record::Record;
use crate::server::{Handle, files};
use crate::settings::{NodesSettings, Settings};

/// How often peers say what they have heard.
const TICK: Duration = Duration::from_millis(100);
/// For so many ticks a peer that cannot go on still says what it has heard: longer than a connection takes to be made anew.
const ENDING_TICKS: u32 = 20;
/// How long what is under way may take when a peer is told to end.
const FINISH_MAX: Duration = Duration::from_secs(10);
/// Before a statement that the server has given up is executed again.
const LOST_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of an answer that another peer's client is given.
const ANSWER_LEN_MAX: usize = MESSAGE_LEN_MAX / 2;
/// How often it is, or what was written elsewhere is applied again.
const LOSSES_MAX: u32 = 200;
/// Parts of a table that it may be cut into: what is about all of it names them all.
const GRANULES_MAX: u16 = 100;
/// Bytes of a granule with its version in an update.
const VERSION_LEN: usize = 16;

/// What happens.
enum Input {
    Submit { transaction: Arc<Transaction>, answer: oneshot::Sender<Answer> },
    Heard { from: PeerId, message: Bytes },
}

/// What was done beside the loop.
enum Done {
    /// A read has its snapshot.
    Opened {
        turn: u64,
    },
    Executed {
        txn: TxnId,
        lane: Option<Box<Lane>>,
        ran: Result<(Ran, Record), LaneError>,
        elsewhere: Elsewhere,
    },
    /// Something of divided tables.
    Afar(DoneAfar),
    Applied {
        from: NodeId,
        txn: TxnId,
        result: Result<(), ApplyError>,
    },
    Committed {
        txn: TxnId,
        csn: Csn,
        result: Result<(), LaneError>,
    },
}

/// A transaction of a client here.
struct Open {
    transaction: Arc<Transaction>,
    client: Option<oneshot::Sender<Answer>>,
    lane: Option<Lane>,
    answer: Answer,
    writes: Record,
    losses: u32,
    /// Of what is about rows of several peers: which.
    wanted: Option<Vec<Wanted>>,
    /// Its client is at another peer.
    is_forwarded: bool,
    executions: u64,
    elsewhere: Elsewhere,
}

/// What waits until all reads that began before have their snapshots.
enum Waiting {
    Commit(TxnId, Csn),
    Apply(NodeId, TxnId),
}

/// Whether a configured protocol is one of these.
pub fn is_one(protocol: &str) -> bool {
    onecopy_core::protocol::PEERS.contains(&protocol)
}

/// Serves as one of several peers, until `shutdown` is ready.
///
/// # Errors
/// [`ServeError`] if serving cannot start, or another peer or this one's server is lost.
pub async fn serve(
    mut settings: Settings,
    nodes: NodesSettings,
    ready: impl FnOnce(&Handle),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let replica = own_replica(&settings)?;
    files::make_room(&mut settings)?;
    let nodes = Arc::new(nodes);
    let for_peers = nodes::listen_for_nodes(&nodes).await?;
    let peers = Peers::start(&nodes).map_err(ServeError::Threads)?;
    let (inputs, received) = mpsc::unbounded_channel();
    peers.serve(for_peers, answer(&peers.links, &inputs)).map_err(ServeError::Threads)?;
    let failed = |error: String| ServeError::Replicas(format!("{}: {error}", replica.name));
    let database = super::database_of(&settings, &replica);
    database.watch().await.map_err(|error| failed(error.to_string()))?;
    let catalogue = database.definitions().await.map_err(|error| failed(error.to_string()))?;
    let mut numbers: Vec<u64> = nodes.nodes.iter().map(|node| node.id).collect();
    numbers.sort_unstable();
    let count = u16::try_from(numbers.len()).unwrap_or(u16::MAX);
    let (by_clients, by_column) = match settings.protocol.as_str() {
        "partitioned" => (settings.divided.as_slice(), settings.parts.as_slice()),
        other => {
            if !settings.divided.is_empty() || !settings.parts.is_empty() {
                tracing::warn!(protocol = other, "only the protocol \"partitioned\" divides tables");
            }
            (&[][..], &[][..])
        }
    };
    let parts = Parts::new(by_clients, by_column, &catalogue, count)?;
    let me = numbers.iter().position(|number| *number == nodes.this).unwrap_or(0);
    let me = NodeId(u16::try_from(me).unwrap_or(u16::MAX));
    let facts = super::facts_of(&database, &replica).await?;
    // Before rows are dealt, all peers must have the same.
    let (deals, contents) = match parts.is_empty() {
        true => (false, String::new()),
        false => dealing::look_before_serving(&settings, &database, &parts, me).await?,
    };
    let mut by_clients = by_clients.to_vec();
    by_clients.sort_unstable();
    let started = format!(
        "{} {by_clients:?} {} {} {} {numbers:?} {contents}",
        settings.protocol,
        parts.shown(),
        settings.coalesces,
        settings.granules
    );
    // Where items are what peers tell each other, they have to mean the same.
    let more = match parts.is_empty() && !settings.coalesces && settings.granules == 1 {
        true => Vec::new(),
        false => likeness::numbers(&catalogue),
    };
    let likeness =
        Likeness::read(started, &facts, &database, more).await.map_err(|error| failed(error.to_string()))?;
    let open_max = (settings.limits.lanes_per_replica_max * 3 / 4).max(1);
    let passed_over = Arc::new(AtomicU64::new(0));
    let granules = granules(&catalogue, settings.granules)?;
    let core = peers_by_name(&settings.protocol, count, &parts.divisions, &granules)
        .map_err(|error| ServeError::Settings(error.to_string()))?;
    let (parts, counted) = (Arc::new(parts), passed_over.clone());
    let coalesces = settings.coalesces;
    let chosen = Chosen { me, parts, granules, deals, coalesces, open_max, passed_over: counted };
    let submit =
        Box::new(move |transaction, answer| inputs.send(Input::Submit { transaction, answer }).is_ok());
    let this = nodes.this;
    let shown = Box::new(move || {
        let passed_over = passed_over.load(Ordering::Relaxed);
        vec![("site", this.to_string()), ("updates passed over", passed_over.to_string())]
    });
    let clients = Clients {
        database: database.clone(),
        catalogue,
        numbers: &numbers,
        this,
        submit,
        speak: None,
        shown,
        freshness: None,
    };
    let started = Started::begin(&settings, clients).await?;
    let mut around =
        Peer::new(&started.shared, core, &numbers, peers.links.clone(), received, (chosen, likeness));
    ready(&started.handle());
    let ended = tokio::select! {
        () = shutdown => Ok(()),
        why = around.run() => Err(failed(why)),
        () = database.session_ends() => {
            Err(failed("its server has ended its sessions, and what peers agreed on may not be there any more: see docs/protocols/invalidation.md".into()))
        }
    };
    started.end().await;
    if ended.is_ok() && !around.finish().await {
        tracing::warn!(
            "not all that was under way here is known to be at the other peers: compare their databases before they are started again"
        );
    }
    peers.end();
    ended
}

/// Each table with a primary key, cut by its first column.
///
/// # Errors
/// If there cannot be so many.
fn granules(catalogue: &Catalogue, each: u16) -> Result<Granules, ServeError> {
    if !(1..=GRANULES_MAX).contains(&each) {
        let what = format!(
            "peers.granules is {each}, and has to be from 1 (tables are taken as a whole) to {GRANULES_MAX}"
        );
        return Err(ServeError::Settings(what));
    }
    let cut = |table: &Table| {
        let number = *table.primary_key()?.columns.first()?;
        let column = table.columns.iter().find(|column| column.number == number)?;
        // Otherwise nothing would name it.
        onecopy_classify::is_named_by_values(column).then(|| (table.id(), ColumnId(number)))
    };
    Ok(Granules::new(each, catalogue.tables.iter().filter_map(cut)))
}

/// What is done with connections of other peers.
fn answer(links: &Links, inputs: &mpsc::UnboundedSender<Input>) -> Serve {
    let (links, inputs) = (links.clone(), inputs.clone());
    Arc::new(move |stream, from, purpose| {
        let (links, inputs) = (links.clone(), inputs.clone());
        Box::pin(async move {
            if purpose != Purpose::Log {
                return Err(std::io::Error::other("a peer has no log and takes no clients of others"));
            }
            links::hear(stream, |said| match said {
                Said::Place(place) => links.learn(from, place),
                // Without a receiver the process is ending.
                Said::Site(message) => drop(inputs.send(Input::Heard { from, message })),
                Said::Log(_) | Said::Keep(_) => {
                    tracing::warn!(node = from.0, "another node serves by another protocol");
                }
            })
            .await
        })
    })
}

/// What was chosen for a peer.
struct Chosen {
    me: NodeId,
    parts: Arc<Parts>,
    granules: Granules,
    deals: bool,
    coalesces: bool,
    open_max: usize,
    passed_over: Arc<AtomicU64>,
}

/// One peer's loop.
struct Peer {
    core: Box<dyn Protocol>,
    events: VecDeque<Event>,
    is_feeding: bool,
    me: NodeId,
    numbers: Vec<u64>,
    channels: Vec<Channel>,
    links: Links,
    shared: Arc<Shared>,
    clock: Clock,
    inputs: mpsc::UnboundedReceiver<Input>,
    parts: Arc<Parts>,
    /// Rows of others are to be removed, once it is known that all are alike.
    deals: bool,
    /// What is under way of divided tables.
    afar: Afar,
    /// Whether others may leave out updates of this one's clients.
    coalesces: bool,
    granules: Granules,
    /// How many of others were left out here.
    passed_over: Arc<AtomicU64>,
    /// How many transactions may be open; what is applied needs connections, too.
    open_max: usize,
    /// What came before all others were heard, or when too many were open.
    queued: VecDeque<(Arc<Transaction>, oneshot::Sender<Answer>, bool)>,
    open: HashMap<TxnId, Open>,
    next_txn: u64,
    /// What other peers have written, until it is applied.
    written: HashMap<(NodeId, TxnId), Record>,
    retries: HashMap<(NodeId, TxnId), u32>,
    /// What may be applied, and how much is being applied.
    to_apply: VecDeque<(NodeId, TxnId)>,
    applying: usize,
    applies_max: usize,
    /// The turns of reads that have no snapshot yet, and of what waits for these.
    opening: BTreeSet<u64>,
    waiting: VecDeque<(u64, Waiting)>,
    next_turn: u64,
    done: mpsc::UnboundedSender<Done>,
    reports: mpsc::UnboundedReceiver<Done>,
    ended: Option<String>,
}

impl Peer {
    fn new(
        shared: &Arc<Shared>,
        core: Box<dyn Protocol>,
        numbers: &[u64],
        links: Links,
        inputs: mpsc::UnboundedReceiver<Input>,
        (chosen, likeness): (Chosen, Likeness),
    ) -> Peer {
        let Chosen { me, parts, granules, deals, coalesces, open_max, passed_over } = chosen;
        let incarnation = rand::rng().random_range(1..=u64::MAX);
        let (done, reports) = mpsc::unbounded_channel();
        Peer {
            core,
            events: VecDeque::new(),
            is_feeding: false,
            me,
            numbers: numbers.to_vec(),
            channels: numbers.iter().map(|_| Channel::new(incarnation, likeness)).collect(),
            links,
            shared: shared.clone(),
            clock: Clock::start(),
            inputs,
            parts,
            deals,
            afar: Afar::default(),
            coalesces,
            granules,
            passed_over,
            open_max,
            queued: VecDeque::new(),
            open: HashMap::new(),
            next_txn: 1,
            written: HashMap::new(),
            retries: HashMap::new(),
            to_apply: VecDeque::new(),
            applying: 0,
            applies_max: (open_max / 3).max(1),
            opening: BTreeSet::new(),
            waiting: VecDeque::new(),
            next_turn: 1,
            done,
            reports,
            ended: None,
        }
    }

    /// Runs until the peer cannot go on; says why.
    async fn run(&mut self) -> String {
        let mut tick = tokio::time::interval(TICK);
        loop {
            if let Some(why) = self.ended.take() {
                // Whoever has begun anew is to hear that it is known by its earlier start.
                for _ in 0..ENDING_TICKS {
                    self.on_tick();
                    tokio::time::sleep(TICK).await;
                }
                return why;
            }
            if self.deals && self.hears_all() {
                self.deal().await;
            }
            self.admit_queued();
            tokio::select! {
                Some(input) = self.inputs.recv() => match input {
                    Input::Submit { transaction, answer } => self.on_submit(transaction, answer),
                    Input::Heard { from, message } => self.on_heard(from, message),
                },
                Some(done) = self.reports.recv() => self.on_done(done),
                _ = tick.tick() => self.on_tick(),
            }
        }
    }

    /// Goes on until nothing is under way here, and the others have heard of all; false if that takes too long.
    async fn finish(&mut self) -> bool {
        self.queued.clear();
        self.afar.is_ending = true;
        let until = Deadline::after(FINISH_MAX);
        let mut tick = tokio::time::interval(TICK);
        while !(self.open.is_empty()
            && self.written.is_empty()
            && self.afar.is_idle()
            && self.channels.iter().all(Channel::is_heard))
        {
            tokio::select! {
                Some(Input::Heard { from, message }) = self.inputs.recv() => self.on_heard(from, message),
                Some(done) = self.reports.recv() => self.on_done(done),
                _ = tick.tick() => self.on_tick(),
                () = until.reached() => return false,
            }
            if self.ended.is_some() {
                return false;
            }
        }
        // What was heard last is to be known.
        self.on_tick();
        tokio::time::sleep(TICK).await;
        true
    }

    /// Tells the core, once all is done that it wanted before.
    fn feed(&mut self, event: Event) {
        self.events.push_back(event);
        if std::mem::replace(&mut self.is_feeding, true) {
            return;
        }
        while let Some(event) = self.events.pop_front() {
            let mut effects = Vec::new();
            self.core.handle(Place::Peer(self.me), self.clock.now(), event, &mut effects);
            effects.into_iter().for_each(|effect| self.carry_out(effect));
        }
        self.is_feeding = false;
    }

    /// Bytes of an answer that may be held, and sent to where the client is.
    fn held_max(&self, open: &Open) -> usize {
        let held_max = self.shared.held_max;
        if open.is_forwarded { held_max.min(ANSWER_LEN_MAX) } else { held_max }
    }

    fn replica(&self) -> ReplicaId {
        ReplicaId(self.me.0)
    }

    fn end(&mut self, why: impl Into<String>) {
        self.ended.get_or_insert(why.into());
    }
}

/// From clients and other peers.
impl Peer {
    fn hears_all(&self) -> bool {
        let others = self.channels.iter().enumerate().filter(|(at, _)| *at != usize::from(self.me.0));
        others.map(|(_, channel)| channel).all(Channel::is_open)
    }

    /// This peer serves: all are there and alike, and have their own rows only.
    fn is_open(&self) -> bool {
        !self.deals && self.hears_all()
    }

    /// How long the versions of what a transaction writes are among what others are told.
    fn versions_len(granules: &Granules, access: &[Access]) -> usize {
        granules.count(access) * VERSION_LEN
    }

    /// Removes rows of others, once all are known to be alike.
    async fn deal(&mut self) {
        self.deals = false;
        match dealing::deal(&self.shared.database, &self.parts, self.me).await {
            Ok(others) => tracing::info!(others, "removed rows of divided tables that belong to other peers"),
            Err(error) => self.end(format!("rows of other peers cannot be removed: {error}")),
        }
    }

    fn on_submit(&mut self, transaction: Arc<Transaction>, answer: oneshot::Sender<Answer>) {
        self.submit(transaction, answer, false);
    }

    fn submit(&mut self, transaction: Arc<Transaction>, answer: oneshot::Sender<Answer>, is_forwarded: bool) {
        if !self.is_open() || self.open.len() >= self.open_max {
            return self.queued.push_back((transaction, answer, is_forwarded));
        }
        let is_update = transaction.is_update();
        let access = self.access_of(&transaction);
        if let Some(failure) = self.refusal(&transaction, &access, is_update) {
            // It may be gone.
            let _ = answer.send(Answer::of_failure(&failure));
            return;
        }
        let wanted = match self.parts.home(&access) {
            Home::At(node) if node != self.me => return self.forward(node, &transaction, answer),
            Home::Several => Some(self.parts.wanted(&access)),
            Home::At(_) | Home::Anywhere => None,
        };
        // What only reads and might touch everything is no SQL, which the server will say.
        let touches_all = access.iter().any(|access| access.item.table == TableId::ALL);
        let access = if touches_all { AccessSet::new() } else { access };
        let txn = TxnId(self.next_txn);
        self.next_txn += 1;
        let kind = if is_update { StatementKind::Write } else { StatementKind::Read };
        let change = transaction.change.clone().filter(|_| self.coalesces);
        let statement = Statement { change, ..Statement::new(ClassId(0), kind, access) };
        self.open.insert(txn, Open::new(transaction, answer, wanted, is_forwarded));
        let begin = CoreBegin {
            txn,
            session: SessionId(0),
            read_only: !is_update,
            form: 0,
            declared: None,
            stale_ok_ns: None,
        };
        self.feed(Event::Autocommit { begin, statement });
    }

    /// What a transaction may touch. A server checks foreign keys of rows that a transaction has added, or changed before, whatever it changes of them; and
    /// all that come from other peers it has added.
    fn access_of(&self, transaction: &Transaction) -> AccessSet {
        let changes = transaction.parts.iter().filter(|part| part.is_shipped).count();
        let adds = match self.parts.home(&transaction.access) {
            Home::Anywhere => false,
            Home::At(_) => changes > 1,
            Home::Several => true,
        };
        let parents = if adds { transaction.parents.as_slice() } else { &[] };
        transaction.access.iter().chain(parents).cloned().collect()
    }

    fn refusal(&self, transaction: &Transaction, access: &AccessSet, is_update: bool) -> Option<Failure> {
        let division = |access: &Access| self.parts.divisions.get(access.item.table);
        let names = |is_so: fn(&Division) -> bool| access.iter().filter_map(division).any(is_so);
        if names(|of| *of == Division::Clients) && names(|of| *of != Division::Clients) {
            return Some(Failure::unsupported(
                "a transaction cannot name tables that are divided by clients and tables that are divided by a column",
                "Use a transaction for each; peers.divided names the first ones, peers.parts the others.",
            ));
        }
        if !is_update {
            return None;
        }
        let mut tables = access.iter().map(|access| access.item.table);
        if tables.clone().any(|table| table == TableId::ALL) {
            return Some(Failure::unsupported(
                "a statement that may touch every table cannot be served by this protocol",
                "Send statements by themselves that name their tables; DELETE in the place of TRUNCATE.",
            ));
        }
        let is_divided = |table: TableId| self.parts.divisions.get(table).is_some();
        let writes_parts = self.parts.divisions.writes_parts_only(access);
        if !writes_parts && tables.clone().any(is_divided) && !tables.all(is_divided) {
            return Some(Failure::unsupported(
                "a transaction cannot write tables that all peers have and name divided ones, by foreign keys neither; nor write tables that are divided by clients and name others",
                "Use a transaction for each; peers.divided and peers.parts name the divided ones.",
            ));
        }
        // Nobody else executes what writes rows of peers only.
        if writes_parts {
            None
        } else {
            too_long(&transaction.record.encode(), Peer::versions_len(&self.granules, &transaction.access))
        }
    }

    fn admit_queued(&mut self) {
        while self.is_open() && self.open.len() < self.open_max {
            let Some((transaction, answer, is_forwarded)) = self.queued.pop_front() else { return };
            if !answer.is_closed() {
                self.submit(transaction, answer, is_forwarded);
            }
        }
    }

    fn answer(&mut self, txn: TxnId, answer: Answer) {
        if let Some(client) = self.open.get_mut(&txn).and_then(|open| open.client.take()) {
            // It may be gone.
            let _ = client.send(answer);
        }
    }

    fn on_heard(&mut self, from: PeerId, message: Bytes) {
        let at = self.numbers.iter().position(|number| *number == from.0);
        let Some(at) = at.filter(|at| *at != usize::from(self.me.0)) else { return };
        let was_open = self.hears_all();
        match self.channels[at].take(message) {
            Came::Message(message) => self.on_message(NodeId(u16::try_from(at).unwrap_or(0)), message),
            Came::Nothing => {}
            Came::Unlike(what) => {
                self.end(format!("peer {} and this one are not alike: {what}, and start all peers together", from.0));
            }
            Came::StartedAgain => self.end(format!(
                "peer {} or this one was started again, and what peers agreed on is lost with the earlier start: stop all, see that their databases hold the same, and start them together",
                from.0
            )),
        }
        if !was_open && self.hears_all() {
            tracing::info!("all other peers are heard");
            self.admit_queued();
        }
    }

    fn on_message(&mut self, from: NodeId, mut input: Bytes) {
        if crossing::Said::is_one(&input) {
            return self.on_said(from, crossing::Said::decode(input));
        }
        let Some(message) = codec::take(&mut input) else {
            return self.end("another peer speaks another version");
        };
        if let Message::Peers(Written::Update { txn, .. }) = &message {
            match take_bytes(&mut input).map(Record::decode) {
                Some(Ok(writes)) => drop(self.written.insert((from, *txn), writes)),
                _ => return self.end("another peer speaks another version"),
            }
        }
        self.feed(Event::Message { from: Place::Peer(from), message });
    }

    fn say(&mut self, to: NodeId, message: &Message, writes: Option<&Record>) {
        let mut out = BytesMut::new();
        if codec::put(message, &mut out).is_none() {
            return self.end("the protocol says what peers do not");
        }
        if let Some(writes) = writes {
            put_bytes(&mut out, &writes.encode());
        }
        let at = usize::from(to.0);
        let said = self.channels[at].say(&out);
        self.links.tell(PeerId(self.numbers[at]), Said::Site(said));
    }

    fn on_tick(&mut self) {
        for at in (0..self.channels.len()).filter(|at| *at != usize::from(self.me.0)) {
            for message in self.channels[at].tick() {
                self.links.tell(PeerId(self.numbers[at]), Said::Site(message));
            }
        }
    }
}

/// What the core wants done.
impl Peer {
    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Execute { txn, how, .. } => self.execute(txn, how),
            Effect::CommitAt { txn, csn, .. } => self.wait(Waiting::Commit(txn, csn)),
            Effect::ApplyShipped { origin: Place::Peer(from), txn, .. } => {
                self.wait(Waiting::Apply(from, txn))
            }
            Effect::PassOver { origin: Place::Peer(from), txn, .. } => {
                self.written.remove(&(from, txn));
                self.passed_over.fetch_add(1, Ordering::Relaxed);
            }
            Effect::Acknowledge { txn, .. } | Effect::Release { txn, .. } => {
                let answer = self.open.get(&txn).map(|open| open.answer.clone());
                self.answer(txn, answer.unwrap_or_default());
            }
            Effect::Leave { txn, .. } => {
                if let Some(lane) = self.open.get_mut(&txn).and_then(|open| open.lane.take()) {
                    let database = self.shared.database.clone();
                    tokio::spawn(async move { database.leave(lane).await });
                }
            }
            Effect::Send { to: Place::Peer(to), message } => self.say(to, &message, None),
            Effect::Ship { txn, to: Place::Peer(to), mut message } => {
                let writes = self.open.get(&txn).map(|open| open.writes.clone()).unwrap_or_default();
                if let Message::Peers(Written::Update { change, .. }) = &mut message {
                    // What has found no row hides nothing.
                    change.take_if(|_| writes.writes.iter().any(|write| write.rows != Some(1)));
                }
                self.say(to, &message, Some(&writes));
            }
            Effect::Refuse { txn, .. } => {
                let failure = Failure::new(SqlState::SERIALIZATION_FAILURE, "the transaction was given up");
                self.answer(txn, Answer::of_failure(&failure.hint("Run it again.")));
            }
            Effect::Forget { txn } => drop(self.open.remove(&txn)),
            Effect::Finish { .. } => {}
            other => tracing::debug!(?other, "nothing to be done at a peer"),
        }
    }

    fn execute(&mut self, txn: TxnId, how: How) {
        let writes = matches!(how, How::Home { .. });
        let Some(open) = self.open.get(&txn) else { return };
        if open.wanted.is_some() {
            return self.cross(txn, writes);
        }
        let held_max = self.held_max(open);
        let transaction = open.transaction.clone();
        let (database, done) = (self.shared.database.clone(), self.done.clone());
        let is_divided =
            |access: &Access| self.parts.divisions.get(access.item.table) == Some(&Division::Clients);
        let checks_at_once = self.shared.classifier.has_deferrable();
        let begin = match writes {
            // Nobody is asked about these, so the server sees to it.
            _ if transaction.access.iter().any(is_divided) => Begin::Serializable { writes },
            // What it only reads may change, and is to be of one moment.
            true if self.parts.divisions.writes_parts_only(&transaction.access) => {
                Begin::Certified { read_only: false, checks_at_once }
            }
            true => Begin::Update { checks_at_once },
            false => Begin::Query,
        };
        let has_snapshot = !writes || matches!(begin, Begin::Certified { .. });
        let turn = has_snapshot.then(|| self.next_opening());
        tokio::spawn(async move {
            let opened = |done: &mpsc::UnboundedSender<Done>| {
                if let Some(turn) = turn {
                    // Nobody listens any more where the peer has ended.
                    let _ = done.send(Done::Opened { turn });
                }
            };
            let (lane, ran) = match database.lend().await {
                Ok(mut lane) => {
                    let begun = match turn {
                        Some(_) => database::open_snapshot(&mut lane, &transaction.record, begin).await,
                        None => Ok(()),
                    };
                    opened(&done);
                    let ran = match (begun, turn) {
                        (Err(error), _) => Err(error),
                        (Ok(()), Some(_)) => database::go_on(&mut lane, &transaction, held_max).await,
                        (Ok(()), None) => database::run(&mut lane, &transaction, begin, held_max).await,
                    };
                    let is_well = ran.as_ref().err().is_none_or(LaneError::is_database);
                    (is_well.then_some(lane), ran)
                }
                Err(error) => {
                    opened(&done);
                    (None, Err(error))
                }
            };
            if ran.is_err() {
                tokio::time::sleep(LOST_PAUSE).await;
            }
            let lane = lane.map(Box::new);
            let _ = done.send(Done::Executed { txn, lane, ran, elsewhere: Elsewhere::default() });
        });
    }

    /// The turn of a read that takes its snapshot now.
    fn next_opening(&mut self) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.opening.insert(turn);
        turn
    }

    fn wait(&mut self, what: Waiting) {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.waiting.push_back((turn, what));
        self.go_on();
    }

    /// Commits what no read has to be opened before.
    fn go_on(&mut self) {
        while let Some((turn, _)) = self.waiting.front()
            && self.opening.first().is_none_or(|opening| opening > turn)
            && let Some((_, what)) = self.waiting.pop_front()
        {
            match what {
                Waiting::Commit(txn, csn) => self.commit(txn, csn),
                Waiting::Apply(from, txn) => {
                    self.to_apply.push_back((from, txn));
                    self.apply_next();
                }
            }
        }
    }

    fn commit(&mut self, txn: TxnId, csn: Csn) {
        if !self.prepares_elsewhere(txn, csn) {
            self.commit_here(txn, csn);
        }
    }

    fn commit_here(&mut self, txn: TxnId, csn: Csn) {
        let Some(lane) = self.open.get_mut(&txn).and_then(|open| open.lane.take()) else {
            return self.end("the connection on which a transaction was open is lost");
        };
        let (database, done) = (self.shared.database.clone(), self.done.clone());
        tokio::spawn(async move {
            let result = database.commit_durably(lane).await;
            let _ = done.send(Done::Committed { txn, csn, result });
        });
    }

    /// Applies as much at once as there are connections for; where nobody has put it in an order, one after the other.
    fn apply_next(&mut self) {
        let at_once = if self.core.name() == "weak" { 1 } else { self.applies_max };
        while self.applying < at_once
            && let Some((from, txn)) = self.to_apply.pop_front()
        {
            self.applying += 1;
            self.apply(from, txn);
        }
    }

    fn apply(&mut self, from: NodeId, txn: TxnId) {
        let Some(writes) = self.written.get(&(from, txn)).cloned() else {
            return self.end("what another peer has written has not come with its message");
        };
        let checks_at_once = self.shared.classifier.has_deferrable();
        let (database, done) = (self.shared.database.clone(), self.done.clone());
        tokio::spawn(async move {
            let applying = async {
                let mut lane = database.lend().await?;
                match database::apply(&mut lane, &writes, checks_at_once).await {
                    Ok(()) => Ok(database.commit_durably(lane).await?),
                    Err(error) => {
                        database.leave(lane).await;
                        Err(error)
                    }
                }
            };
            let result: Result<(), ApplyError> = applying.await;
            if result.is_err() {
                tokio::time::sleep(LOST_PAUSE).await;
            }
            let _ = done.send(Done::Applied { from, txn, result });
        });
    }
}

/// What was done.
impl Peer {
    fn on_done(&mut self, done: Done) {
        match done {
            Done::Opened { turn } => {
                self.opening.remove(&turn);
                self.go_on();
            }
            Done::Executed { txn, lane, ran, elsewhere } => {
                if let Some(open) = self.open.get_mut(&txn) {
                    open.elsewhere = elsewhere;
                }
                self.on_executed(txn, lane.map(|lane| *lane), ran);
            }
            Done::Afar(done) => self.on_done_afar(done),
            Done::Committed { txn, csn, result: Ok(()) } => {
                if !self.finishes_elsewhere(txn) {
                    let replica = self.replica();
                    self.feed(Event::Applied { replica, csn });
                }
            }
            Done::Committed { txn, result: Err(error), .. } => {
                self.end(format!("whether {txn} was committed is not known: {error}"));
            }
            Done::Applied { from, txn, result } => self.on_applied(from, txn, result),
        }
    }

    fn on_applied(&mut self, from: NodeId, txn: TxnId, result: Result<(), ApplyError>) {
        match result {
            Ok(()) => {}
            Err(ApplyError::Lane(LaneError::Shortage(_))) => return self.apply(from, txn),
            Err(ApplyError::Lane(error)) if error.is_database() && self.gives_up(from, txn, &error) => {
                return self.end(format!("what another peer has written cannot be applied: {error}"));
            }
            Err(ApplyError::Lane(error)) if error.is_database() => return self.apply(from, txn),
            // It promises nothing else.
            Err(error) if self.core.name() == "weak" => {
                tracing::debug!(%error, "what another peer has written is left out");
            }
            Err(error) => return self.end(error.to_string()),
        }
        self.written.remove(&(from, txn));
        self.retries.remove(&(from, txn));
        self.applying -= 1;
        self.apply_next();
        let replica = self.replica();
        self.feed(Event::ShippedApplied { origin: Place::Peer(from), txn, replica });
    }

    fn gives_up(&mut self, from: NodeId, txn: TxnId, error: &LaneError) -> bool {
        // Of resources there may be more later.
        if matches!(error, LaneError::Database(fields) if fields.code.as_str().starts_with("53")) {
            return false;
        }
        let retries = self.retries.entry((from, txn)).or_default();
        *retries += 1;
        *retries > LOSSES_MAX
    }

    fn on_executed(&mut self, txn: TxnId, lane: Option<Lane>, ran: Result<(Ran, Record), LaneError>) {
        let database = self.shared.database.clone();
        let Some(open) = self.open.get_mut(&txn) else {
            drop(lane.map(|lane| tokio::spawn(async move { database.leave(lane).await })));
            return;
        };
        let is_update = open.transaction.is_update();
        let versions_len = Peer::versions_len(&self.granules, &open.transaction.access);
        let outcome = match ran {
            Ok((Ran::Done(answer), writes)) => {
                let is_told = is_update && !self.parts.divisions.writes_parts_only(&open.transaction.access);
                let failure = match is_told {
                    true => too_long(&writes.encode(), versions_len),
                    false => None,
                };
                (open.answer, open.writes) = (answer, writes);
                match failure {
                    // With the values that it has found it is too long for the others.
                    Some(failure) => {
                        open.answer = Answer::of_failure(&failure);
                        Outcome::Failed
                    }
                    None => Outcome::Done { returned: Vec::new() },
                }
            }
            Ok((Ran::Failed(answer), _)) => {
                open.answer = answer;
                Outcome::Failed
            }
            Ok((Ran::TooLarge, _)) => {
                let hint = match open.is_forwarded {
                    true => "Return fewer rows, or ask the peer that has them.",
                    false => "Return fewer rows, or raise limits.held_result_bytes_max.",
                };
                let what = "the results of a transaction are too long to be held";
                let failure = Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, what);
                open.answer = Answer::of_failure(&failure.hint(hint));
                Outcome::Failed
            }
            Ok((Ran::NotBegun(why), _)) => {
                open.answer = Answer::of_failure(&Failure::new(SqlState::INVALID_PARAMETER_VALUE, why));
                Outcome::Failed
            }
            Err(error @ LaneError::Frame(_)) => {
                open.answer =
                    Answer::of_failure(&Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, error.to_string()));
                Outcome::Failed
            }
            Err(LaneError::Shortage(error)) => {
                tracing::warn!(%error, "open another connection; trying again");
                Outcome::Lost { answer_begun: false }
            }
            Err(error) if !error.is_database() => {
                return self.end(format!("its server is lost: {error}"));
            }
            Err(error) => {
                open.losses += 1;
                if open.losses > LOSSES_MAX {
                    open.answer = Answer::of_failure(&Failure::of_lane(&error));
                    Outcome::Failed
                } else {
                    Outcome::Lost { answer_begun: false }
                }
            }
        };
        let keeps = is_update && !matches!(outcome, Outcome::Lost { .. });
        match lane {
            Some(lane) if keeps => open.lane = Some(lane),
            Some(lane) => drop(tokio::spawn(async move { database.leave(lane).await })),
            None => {}
        }
        if !is_update && !matches!(outcome, Outcome::Lost { .. }) {
            let answer = open.answer.clone();
            self.answer(txn, answer);
        }
        let replica = self.replica();
        self.feed(Event::Executed { txn, op: OpId(0), replica, outcome, elapsed_ns: 0 });
    }
}
