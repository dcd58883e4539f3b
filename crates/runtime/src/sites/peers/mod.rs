//! Peers as processes, each before a database of its own, who agree table by table on who writes (docs/protocols/invalidation.md, *On real
//! servers*).
//!
//! ```text
//!   client -- ../client.rs --> ../transaction.rs     messages become a transaction; which tables it touches
//!                 |
//!                 v
//!              mod.rs  <-->  the core's peers         what happens, and what is to be done
//!              |     |
//!     channel.rs    work.rs                           in order and without loss; executed, applied, committed
//!     codec.rs        |
//!              ../database.rs
//! ```
//!
//! [`start`] is how a peer begins. Of divided tables: [`parts`] is what a server has of them, [`afar`] what is about rows that are elsewhere, [`crossing`] what peers say of it; [`dealing`] is how rows come to their peers.
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
mod start;
mod work;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hashbrown::HashMap;
use onecopy_core::peers::Message as Written;
use onecopy_core::peers::granules::Granules;
use onecopy_core::peers::parts::{Division, Home};
use onecopy_core::protocol::Protocol;
use onecopy_core::{
    Access, AccessSet, Begin as CoreBegin, ClassId, Csn, Event, Message, NodeId, Place, ReplicaId, SessionId,
    Statement, StatementKind, TableId, TxnId,
};
use onecopy_log::consensus::{MESSAGE_LEN_MAX, NodeId as PeerId};
use rand::Rng;
use tokio::sync::{mpsc, oneshot};

pub use self::start::{is_one, serve};

use self::afar::{Afar, DoneAfar, Elsewhere};
use self::channel::{Came, Channel};
use self::parts::{Parts, Wanted};
use super::database::{Answer, ApplyError, Ran};
use super::likeness::Likeness;
use super::messages::{put_bytes, take_bytes};
use super::transaction::Transaction;
use super::{Shared, too_long};
use crate::clock::{Clock, Deadline};
use crate::errors::Failure;
use crate::lane::{Lane, LaneError};
use crate::nodes::links::{Links, Said};
use crate::record::Record;

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
