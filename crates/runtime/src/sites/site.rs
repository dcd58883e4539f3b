//! One site's loop: everything that happens here goes to the core, and what the core wants done is done.
//!
//! It decides nothing about order or place. What takes time (the server, the log's disk) is done beside it and reported back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use hashbrown::{HashMap, HashSet};
use onecopy_classify::Scratch;
use onecopy_core::event::{Begin as CoreBegin, Moment, Place};
use onecopy_core::message::Message as CoreMessage;
use onecopy_core::protocol::wide_area::{Choice, Execution, Message, WideArea};
use onecopy_core::protocol::{Position, Protocol};
use onecopy_core::{
    ClassId, Csn, Effect, Epoch, Event, NodeId, OpId, Outcome, ReplicaId, SessionId, Statement,
    StatementKind, TxnId,
};
use onecopy_log::consensus::{MESSAGE_LEN_MAX, NodeId as PeerId};
use onecopy_log::{Log, MemberEvent};
use onecopy_wire::sqlstate::SqlState;
use tokio::sync::{mpsc, oneshot};

use super::database::{self, Answer, ApplyError, Begin, Contained, Database, Ran};
use super::messages::SiteMessage;
use super::order::{MessageId, Order, Told};
use super::too_long;
use super::transaction::Transaction;
use crate::agent::History;
use crate::classifier::Classifier;
use crate::clock::{Clock, Deadline};
use crate::errors::Failure;
use crate::lane::{Lane, LaneError, is_going_away};
use crate::nodes::links::{Links, Said};
use crate::record::Record;
use crate::server::log::{LogDecisions, LogHistory};

/// How often a site says that it lives, and looks whether others do.
pub const ALIVE_PAUSE: Duration = Duration::from_millis(100);
/// How long another site may be silent before it is taken for lost.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// After how long a message is sent again that has no place in the log.
const RESEND_AFTER: Duration = Duration::from_millis(1_000);
/// Between two timers of the core.
const TIMER_PAUSE: Duration = Duration::from_millis(250);
/// Places of the log that may be under way here at once: a site that is behind takes no more of them than it can work at.
const READ_MAX: u64 = 128;
/// Messages about updates that have not come themselves.
const EARLY_MAX: usize = 10_000;
/// How often an update is executed again that its server gives up: for some minutes.
const LOSSES_MAX: u32 = 200;
/// The longest pause between two of these.
const LOST_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Before a statement whose connection was lost is executed again.
const LOST_PAUSE: Duration = Duration::from_millis(20);

/// What happens.
pub enum Input {
    /// A client's transaction, to be answered once.
    Submit { transaction: Arc<Transaction>, answer: oneshot::Sender<Answer> },
    /// Another site has said something.
    Heard { from: PeerId, message: SiteMessage },
    /// The connection over which it speaks is lost.
    Parted { from: PeerId },
    /// The log is durable on a majority up to there.
    Durable(Csn),
    /// This node's part in the log.
    Member(MemberEvent),
}

/// What was done beside the loop.
enum Done {
    Executed { txn: TxnId, op: OpId, begin: Begin, lane: Option<Lane>, ran: Result<(Ran, Record), LaneError> },
    Applied { txn: TxnId, lane: Option<Lane>, result: Result<(), ApplyError> },
    Committed { txn: TxnId, nothing: Vec<(Csn, MessageId)>, result: Result<(), LaneError> },
}

/// Why a site's loop has ended.
pub enum Ended {
    /// What is in memory may not be what the server contains: the site begins anew, from the log.
    Anew(String),
    /// The server's contents are not those of the log.
    Diverged(String),
    /// The log cannot be used any more.
    Log(String),
    /// The site cannot get on, and going on would make it differ.
    Stuck(String),
}

/// What outlives one beginning of a site.
pub struct Surroundings {
    pub choice: Choice,
    /// This node's number, and those of all sites in their order.
    pub this: u64,
    pub sites: Vec<u64>,
    pub incarnation: u64,
    pub links: Links,
    pub log: Arc<Log>,
    pub database: Arc<Database>,
    pub classifier: Arc<Classifier>,
    pub held_max: usize,
    /// Connections that updates may have at once.
    pub updates_max: usize,
    pub inputs: mpsc::UnboundedReceiver<Input>,
    /// Updates of this site's clients whose end is not known, by their messages.
    pub pending: BTreeMap<MessageId, Pending>,
    /// Queries of clients that were not answered.
    pub queries: Vec<(Arc<Transaction>, oneshot::Sender<Answer>)>,
    pub next_number: u64,
    pub clock: Clock,
    /// If this node leads.
    pub leads: Option<Leads>,
    pub figures: Arc<super::Figures>,
}

/// An update of a client of this site.
pub struct Pending {
    body: Bytes,
    /// Taken when it is answered.
    answer: Option<oneshot::Sender<Answer>>,
    /// What it will be, once it is being committed.
    known: Option<Answer>,
    resend_at: Deadline,
}

/// A transaction that this site knows of.
struct Open {
    transaction: Arc<Transaction>,
    /// Of an update.
    id: Option<MessageId>,
    /// Of a query: its client.
    client: Option<oneshot::Sender<Answer>>,
    /// The execution that counts.
    op: Option<OpId>,
    /// Where that is open.
    lane: Option<Lane>,
    answer: Answer,
    writes: Record,
    /// What came from the site that executes it.
    shipped: Option<(Record, Answer)>,
    /// What its client will be told.
    chosen: Option<Answer>,
    /// How often its server has given it up.
    losses: u32,
    place: Csn,
    is_shipped: bool,
}

/// A commit in its turn.
struct Turn {
    txn: TxnId,
    /// It has been executed, or applied, and only waits for its turn.
    is_ready: bool,
    /// It is being applied.
    is_begun: bool,
}

/// What is applied ahead of its turn, where commits are in one order.
const APPLIED_AHEAD: usize = 8;

/// What the node that leads knows of the places that it gives.
pub struct Leads {
    epoch: Epoch,
    /// Everything up to there was given its place before.
    after: Csn,
    next: Csn,
    /// It has read all that, so that it knows what has a place.
    is_ready: bool,
    given: HashSet<MessageId>,
}

/// See the module.
pub struct Site<'s> {
    around: &'s mut Surroundings,
    core: WideArea,
    events: VecDeque<Event>,
    is_feeding: bool,
    me: NodeId,
    order: Order,
    history: LogHistory,
    open: HashMap<TxnId, Open>,
    by_id: HashMap<MessageId, TxnId>,
    next_txn: u64,
    /// What was said of messages that have not come.
    early: HashMap<MessageId, (NodeId, SiteMessage)>,
    /// What the server contains, or will never: without gaps up to the floor, and beyond.
    floor: Csn,
    contained: BTreeSet<Csn>,
    /// What stands somewhere and changed nothing, as far as the database was not told.
    nothing: Vec<(Csn, MessageId)>,
    /// As found at the beginning.
    found: BTreeMap<Csn, MessageId>,
    found_ids: HashSet<MessageId>,
    durable: Csn,
    /// Of sites that are heard again, up to which place what they said may be lost.
    back_at: HashMap<NodeId, Csn>,
    /// Until when each other site counts as living.
    heard: HashMap<NodeId, Deadline>,
    lost: HashSet<NodeId>,
    /// What other sites contain.
    floors: BTreeMap<u64, Csn>,
    pruned: Csn,
    /// Those that had no place when it was looked last, and when it is looked again.
    unplaced: HashSet<MessageId>,
    pass_on_at: Deadline,
    turns: VecDeque<Turn>,
    is_committing: bool,
    /// Updates that have a connection, or are about to, and those that wait for one, by their places.
    connected: HashSet<TxnId>,
    unconnected: BTreeSet<(Csn, TxnId)>,
    done: mpsc::UnboundedSender<Done>,
    scratch: Scratch,
    ended: Option<Ended>,
}

impl Surroundings {
    /// Takes what happens while the server cannot be reached; says why the log cannot be used any more, if that happens.
    pub async fn take_for(&mut self, pause: Duration) -> Option<String> {
        let until = Deadline::after(pause);
        loop {
            let input = tokio::select! {
                Some(input) = self.inputs.recv() => input,
                () = until.reached() => return None,
            };
            match input {
                Input::Submit { transaction, answer } if transaction.is_update() => {
                    if let Some(failure) = too_long(&transaction.record) {
                        let _ = answer.send(Answer::of_failure(&failure));
                        continue;
                    }
                    // It is sent when the site is back.
                    let id = MessageId {
                        node: self.this,
                        incarnation: self.incarnation,
                        number: self.next_number,
                    };
                    self.next_number += 1;
                    let body = transaction.record.encode();
                    let resend_at = Deadline::after(Duration::ZERO);
                    self.pending.insert(id, Pending { body, answer: Some(answer), known: None, resend_at });
                }
                Input::Submit { transaction, answer } => self.queries.push((transaction, answer)),
                Input::Member(MemberEvent::Ready { epoch, csn }) => self.lead(epoch, csn),
                Input::Member(MemberEvent::Stopped(reason)) => return Some(reason.to_string()),
                Input::Member(MemberEvent::Follows { .. } | MemberEvent::Leads { .. }) => self.leads = None,
                // The log has it.
                Input::Heard { .. } | Input::Parted { .. } | Input::Durable(_) | Input::Member(_) => {}
            }
        }
    }

    fn lead(&mut self, epoch: Epoch, csn: Csn) {
        let (next, given) = (csn.next(), HashSet::new());
        self.leads = Some(Leads { epoch, after: csn, next, is_ready: false, given });
    }

    /// Runs the site until it has to begin anew, or cannot go on.
    pub async fn run(&mut self, contained: Contained) -> Ended {
        let me = self.sites.iter().position(|site| *site == self.this).unwrap_or(0);
        let me = NodeId(u16::try_from(me).unwrap_or(u16::MAX));
        let sites = u16::try_from(self.sites.len()).unwrap_or(u16::MAX);
        // At place 0 stands nothing.
        let first = contained.places.keys().next().copied().unwrap_or(Csn(0)).max(Csn(1));
        let held = self.log.held();
        let mut last = first;
        while contained.places.contains_key(&last.next()) {
            last = last.next();
        }
        // Of places without gaps it is enough that the log goes on behind them.
        let is_enough = last.next() >= held.first;
        let first = if is_enough { first.max(held.first) } else { first };
        if first < held.first {
            return Ended::Diverged(format!(
                "its database contains the order up to place {first}, and the log begins at {}: copy the database from another site, the schema \"onecopy\" included",
                held.first
            ));
        }
        let (done, mut reports) = mpsc::unbounded_channel();
        let history = LogHistory::new(self.log.clone(), held.epoch);
        let mut core = WideArea::new(self.choice, sites);
        let mut effects = Vec::new();
        let others: Vec<NodeId> = (0..sites).map(NodeId).filter(|node| *node != me).collect();
        for node in &others {
            // Until this site has caught up, it executes by itself what the others have long ago.
            core.handle(Place::Peer(me), self.clock.now(), Event::PeerLost { node: *node }, &mut effects);
        }
        if let Some(leads) = &mut self.leads {
            // What it has given a place and is not durable yet stands there, too.
            (leads.is_ready, leads.after) = (false, leads.next.previous());
            leads.given.clear();
        }
        let queries = std::mem::take(&mut self.queries);
        let mut site = Site {
            core,
            events: VecDeque::new(),
            is_feeding: false,
            me,
            order: Order::new(first.previous()),
            history,
            open: HashMap::new(),
            by_id: HashMap::new(),
            next_txn: 1,
            early: HashMap::new(),
            floor: first.previous(),
            contained: BTreeSet::new(),
            nothing: Vec::new(),
            found: contained.places,
            found_ids: HashSet::new(),
            durable: held.last,
            back_at: HashMap::new(),
            heard: HashMap::new(),
            lost: others.into_iter().collect(),
            floors: BTreeMap::new(),
            pruned: Csn(0),
            unplaced: HashSet::new(),
            pass_on_at: Deadline::after(RESEND_AFTER),
            turns: VecDeque::new(),
            connected: HashSet::new(),
            unconnected: BTreeSet::new(),
            is_committing: false,
            done,
            scratch: Scratch::default(),
            ended: None,
            around: self,
        };
        site.found.remove(&Csn(0));
        site.found_ids = site.found.values().copied().collect();
        // Some clients have not waited.
        for (transaction, answer) in queries.into_iter().filter(|(_, answer)| !answer.is_closed()) {
            site.on_submit(transaction, answer);
        }
        site.resend(true);
        let database = site.around.database.clone();
        let session_ends = database.session_ends();
        tokio::pin!(session_ends);
        let mut alive = tokio::time::interval(ALIVE_PAUSE);
        let mut timer = tokio::time::interval(TIMER_PAUSE);
        loop {
            if site.ended.is_none() {
                site.read_log();
            }
            if let Some(ended) = site.ended.take() {
                site.hand_back();
                return ended;
            }
            tokio::select! {
                Some(input) = site.around.inputs.recv() => site.on_input(input),
                Some(done) = reports.recv() => site.on_done(done),
                _ = alive.tick() => site.on_tick(),
                _ = timer.tick() => site.feed(Event::Timer { timer: 0 }),
                () = &mut session_ends => site.begin_again("this site's server has ended its sessions"),
            }
        }
    }
}

impl Site<'_> {
    /// Tells the core, once all is done that it wanted before.
    fn feed(&mut self, event: Event) {
        self.events.push_back(event);
        if std::mem::replace(&mut self.is_feeding, true) {
            return;
        }
        while let Some(event) = self.events.pop_front() {
            let mut effects = Vec::new();
            self.core.handle(Place::Peer(self.me), self.around.clock.now(), event, &mut effects);
            effects.into_iter().for_each(|effect| self.carry_out(effect));
        }
        self.is_feeding = false;
    }

    fn replica(&self) -> ReplicaId {
        ReplicaId(self.me.0)
    }

    fn node_of(&self, node: u64) -> Option<NodeId> {
        let at = self.around.sites.iter().position(|site| *site == node)?;
        Some(NodeId(u16::try_from(at).ok()?))
    }

    fn peer(&self, node: NodeId) -> PeerId {
        PeerId(self.around.sites.get(usize::from(node.0)).copied().unwrap_or(0))
    }

    fn begin_again(&mut self, why: impl Into<String>) {
        self.ended.get_or_insert(Ended::Anew(why.into()));
    }

    /// Queries that were not answered are for whoever goes on.
    fn hand_back(&mut self) {
        for (_, open) in self.open.drain() {
            if let Some(client) = open.client {
                self.around.queries.push((open.transaction, client));
            }
        }
    }

    fn on_input(&mut self, input: Input) {
        match input {
            Input::Submit { transaction, answer } => self.on_submit(transaction, answer),
            Input::Heard { from, message } => self.on_heard(from, message),
            Input::Parted { from } => {
                if let Some(node) = self.node_of(from.0) {
                    self.lose(node);
                }
            }
            Input::Durable(place) => self.durable = self.durable.max(place),
            Input::Member(event) => self.on_member(event),
        }
    }
}

/// From clients.
impl Site<'_> {
    fn new_txn(&mut self) -> TxnId {
        let txn = TxnId(self.next_txn);
        self.next_txn += 1;
        txn
    }

    fn on_submit(&mut self, transaction: Arc<Transaction>, answer: oneshot::Sender<Answer>) {
        let txn = self.new_txn();
        let is_update = transaction.is_update();
        if is_update && let Some(failure) = too_long(&transaction.record) {
            // It may be gone.
            let _ = answer.send(Answer::of_failure(&failure));
            return;
        }
        let (id, client) = match is_update {
            false => (None, Some(answer)),
            true => {
                let Surroundings { this, incarnation, next_number, .. } = *self.around;
                self.around.next_number += 1;
                let id = MessageId { node: this, incarnation, number: next_number };
                let body = transaction.record.encode();
                let resend_at = Deadline::after(RESEND_AFTER);
                self.around
                    .pending
                    .insert(id, Pending { body, answer: Some(answer), known: None, resend_at });
                self.by_id.insert(id, txn);
                (Some(id), None)
            }
        };
        let kind = if is_update { StatementKind::Write } else { StatementKind::Read };
        let statement = Statement::new(ClassId(0), kind, transaction.access.clone());
        self.open.insert(txn, Open::new(transaction, id, client));
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

    fn answer(&mut self, txn: TxnId, answer: Answer) {
        let Some(open) = self.open.get_mut(&txn) else { return };
        let client = match open.id {
            None => open.client.take(),
            Some(id) => self.around.pending.remove(&id).and_then(|pending| pending.answer),
        };
        if let Some(client) = client {
            // It may be gone.
            let _ = client.send(answer);
        }
    }
}

impl Open {
    fn new(
        transaction: Arc<Transaction>,
        id: Option<MessageId>,
        client: Option<oneshot::Sender<Answer>>,
    ) -> Open {
        Open {
            transaction,
            id,
            client,
            op: None,
            lane: None,
            answer: Answer::default(),
            writes: Record::default(),
            shipped: None,
            chosen: None,
            losses: 0,
            place: Csn(0),
            is_shipped: false,
        }
    }
}

/// From other sites, and the log.
impl Site<'_> {
    fn on_heard(&mut self, from: PeerId, message: SiteMessage) {
        let Some(node) = self.node_of(from.0) else { return };
        match message {
            // Whoever is behind will read it in the log.
            SiteMessage::Request { .. }
                if self.is_behind() && self.begins_early() && self.around.leads.is_none() => {}
            SiteMessage::Request { id, body } => self.take_message(id, body),
            SiteMessage::Place { epoch, place, id } => {
                let mut told = Vec::new();
                self.order.on_place(epoch, place, id, &mut told);
                self.tell(told);
            }
            SiteMessage::Writes { id, .. } | SiteMessage::Failed { id, .. } => {
                match self.by_id.get(&id).copied() {
                    Some(txn) => self.on_outcome(node, txn, message),
                    // Its end is known here.
                    None if self.order.has_stood(id) => {}
                    None if self.early.len() >= EARLY_MAX => {}
                    None => drop(self.early.insert(id, (node, message))),
                }
            }
            SiteMessage::Alive { contained, told } => {
                self.floors.insert(from.0, contained);
                if self.heard.insert(node, Deadline::after(SILENCE_MAX)).is_none() {
                    self.back_at.insert(node, told);
                }
            }
        }
    }

    /// Whether others executed long ago what this site is at.
    fn is_behind(&self) -> bool {
        let stable = self.order.stable_up_to();
        self.lost.iter().any(|node| self.back_at.get(node).is_some_and(|back_at| stable < *back_at))
    }

    /// Whether updates begin as soon as they are here.
    fn begins_early(&self) -> bool {
        self.around.choice.delivery.takes_place_at() == Moment::Received
    }

    fn on_outcome(&mut self, node: NodeId, txn: TxnId, message: SiteMessage) {
        let from = Place::Peer(node);
        let Some(open) = self.open.get_mut(&txn) else { return };
        let message = match message {
            SiteMessage::Writes { place, op, writes, answer, .. } => {
                let (Ok(writes), Some(answer)) = (Record::decode(writes), Answer::decode(answer)) else {
                    return tracing::warn!(node = node.0, "another site has said what cannot be read");
                };
                open.shipped = Some((writes, answer));
                Message::WriteSet { txn, place, op }
            }
            SiteMessage::Failed { op, answer, .. } => {
                open.shipped = Answer::decode(answer).map(|answer| (Record::default(), answer));
                Message::Failed { txn, op }
            }
            _ => return,
        };
        self.feed(Event::Message { from, message: CoreMessage::WideArea(message) });
    }

    fn tell(&mut self, told: Vec<Told>) {
        for one in told {
            match one {
                Told::Received(id, body) => self.on_received(id, body),
                Told::Ordered(id, place) => self.on_moment(id, Moment::Ordered, place),
                Told::Stable(id, place) => self.on_moment(id, Moment::Stable, place),
            }
        }
    }

    fn on_received(&mut self, id: MessageId, body: Bytes) {
        if self.found_ids.contains(&id) {
            // The database contained it before the log was known to.
            return;
        }
        let record = Record::decode(body).ok().filter(|_| self.node_of(id.node).is_some());
        let Some(record) = record else {
            return tracing::error!(
                ?id,
                "an update cannot be read, or is of no known site; it happens nowhere"
            );
        };
        let txn = match self.by_id.get(&id) {
            Some(txn) => *txn,
            None => {
                let txn = self.new_txn();
                self.by_id.insert(id, txn);
                let transaction = Transaction::read(record, &self.around.classifier, &mut self.scratch);
                self.open.insert(txn, Open::new(Arc::new(transaction), Some(id), None));
                txn
            }
        };
        self.deliver(id, txn, Moment::Received, Csn(0));
        if let Some((node, message)) = self.early.remove(&id) {
            self.on_outcome(node, txn, message);
        }
    }

    fn on_moment(&mut self, id: MessageId, moment: Moment, place: Csn) {
        if let Some(txn) = self.by_id.get(&id).copied() {
            let before = self.place_of(txn);
            if let Some(open) = self.open.get_mut(&txn) {
                open.place = place;
            }
            if self.unconnected.remove(&(before, txn)) {
                self.unconnected.insert((place, txn));
            }
            self.deliver(id, txn, moment, place);
        } else if moment == Moment::Stable && !self.contained.contains(&place) && place > self.floor {
            // It could not be read.
            self.note_nothing(place, id);
        }
    }

    fn deliver(&mut self, id: MessageId, txn: TxnId, moment: Moment, place: Csn) {
        let (Some(from), Some(open)) = (self.node_of(id.node), self.open.get(&txn)) else { return };
        let access = open.transaction.access.clone();
        let message = CoreMessage::WideArea(Message::Request { txn, access });
        self.feed(Event::Delivered { from, moment, place, message });
    }

    /// Reads what has become durable.
    fn read_log(&mut self) {
        loop {
            let place = self.order.stable_up_to().next();
            if place > self.durable || place.0 > self.floor.0 + READ_MAX || self.ended.is_some() {
                break;
            }
            let (id, body) = match self.history.read(place) {
                Ok(Some((_, mut body))) => match MessageId::take(&mut body) {
                    Some(id) => (id, body),
                    None => (MessageId::default(), body),
                },
                Ok(None) => {
                    self.ended = Some(Ended::Log(format!("place {place} is not in the log")));
                    return;
                }
                Err(error) => {
                    self.ended = Some(Ended::Log(format!("read place {place} of the log: {error}")));
                    return;
                }
            };
            match self.found.remove(&place) {
                Some(here) if here != id => {
                    self.ended = Some(Ended::Diverged(format!(
                        "its database has committed another transaction at place {place} than the log has there: one that was acknowledged before it was durable, and lost"
                    )));
                    return;
                }
                Some(_) => {
                    self.order.pass_over(place, id);
                    self.note_contained(place);
                    self.answer_found(id);
                }
                None => self.take_stable(place, id, body),
            }
        }
        self.give_places();
        // What a site has said since it is heard again is about what comes behind this place.
        let stable = self.order.stable_up_to();
        let is_back = |node: &NodeId| self.back_at.get(node).is_some_and(|back_at| stable >= *back_at);
        let back: Vec<NodeId> = self.lost.iter().copied().filter(is_back).collect();
        for node in back {
            self.lost.remove(&node);
            self.back_at.remove(&node);
            self.feed(Event::PeerBack { node });
        }
    }

    fn take_stable(&mut self, place: Csn, id: MessageId, body: Bytes) {
        let had_stood = self.order.has_stood(id);
        let mut told = Vec::new();
        match self.order.on_stable(place, id, body, &mut told) {
            Ok(()) if had_stood => self.note_nothing(place, id),
            Ok(()) => self.tell(told),
            Err(orphaned) => self.begin_again(format!(
                "place {} was told to be another message's than it has become, by a leader that was lost",
                orphaned.place
            )),
        }
        if let Some(leads) = &mut self.around.leads {
            leads.given.remove(&id);
        }
    }

    /// What stands at a place changes nothing. The database is told so with the next commit, since it must not be executed once more on what comes
    /// later.
    fn note_nothing(&mut self, place: Csn, id: MessageId) {
        self.nothing.push((place, id));
        self.note_contained(place);
    }

    /// An own client's update was committed when this site began anew.
    fn answer_found(&mut self, id: MessageId) {
        let Some(pending) = self.around.pending.remove(&id) else { return };
        let lost = || {
            let failure = Failure::new(
                SqlState::STATEMENT_COMPLETION_UNKNOWN,
                "the transaction was committed, and its results were lost with a connection to the server",
            );
            Answer::of_failure(&failure.hint("Do not run it again."))
        };
        if let Some(client) = pending.answer {
            let _ = client.send(pending.known.unwrap_or_else(lost));
        }
    }

    /// The database contains what stands at a place, or nobody's ever will.
    fn note_contained(&mut self, place: Csn) {
        self.contained.insert(place);
        while self.contained.remove(&self.floor.next()) {
            self.floor = self.floor.next();
        }
        self.around.figures.note(self.floor, self.order.stable_up_to());
    }
}

/// Of the node that leads.
impl Site<'_> {
    fn on_member(&mut self, event: MemberEvent) {
        match event {
            MemberEvent::Ready { epoch, csn } => {
                tracing::info!(epoch = epoch.0, "this site gives updates their places");
                self.around.lead(epoch, csn);
                self.order.begin_epoch(epoch);
                self.durable = self.durable.max(csn);
            }
            MemberEvent::Follows { epoch, leader } => {
                tracing::info!(epoch = epoch.0, leader = leader.map(|leader| leader.0), "another site leads");
                self.around.leads = None;
                self.resend(true);
            }
            MemberEvent::Leads { .. } => self.around.leads = None,
            MemberEvent::BeginningOffered { place, csn } => {
                self.ended = Some(Ended::Diverged(format!(
                    "this site was away for longer than the log is kept (its next record {place} and place {csn} are gone): remove it, copy another site's database, the schema \"onecopy\" included, and add it with an empty log"
                )));
            }
            MemberEvent::Dropped { epoch, records } => {
                tracing::info!(epoch = epoch.0, records, "places of an epoch that is over were not given");
            }
            MemberEvent::Members(members) => tracing::info!(?members, "the nodes that share the log"),
            MemberEvent::Stopped(reason) => self.ended = Some(Ended::Log(reason.to_string())),
        }
    }

    /// Gives places to all that have none, once everything is known that has one.
    fn give_places(&mut self) {
        let stable = self.order.stable_up_to();
        let Some(leads) = self.around.leads.as_mut().filter(|leads| !leads.is_ready && stable >= leads.after)
        else {
            return;
        };
        leads.is_ready = true;
        if self.order.is_ahead() {
            return self.begin_again("places were told by a leader that was lost, and stand in no log");
        }
        self.order.unplaced().into_iter().for_each(|(id, _)| self.give_place(id));
    }

    fn give_place(&mut self, id: MessageId) {
        let Some(leads) = self.around.leads.as_mut().filter(|leads| leads.is_ready) else { return };
        if !leads.given.insert(id) {
            return;
        }
        let Some(body) = self.order.body(id) else { return };
        let (epoch, place) = (leads.epoch, leads.next);
        leads.next = place.next();
        let mut record = BytesMut::with_capacity(MessageId::LEN + body.len());
        id.put(&mut record);
        record.put_slice(&body);
        let decisions = LogDecisions { log: self.around.log.clone(), epoch };
        if let Err(error) = decisions.append_whole(place, record.freeze()) {
            tracing::info!(%error, %place, "a place was not given");
            self.around.leads = None;
            return;
        }
        self.around.log.wake();
        self.around.links.say(&Said::Site(SiteMessage::Place { epoch, place, id }.encode()));
        let mut told = Vec::new();
        self.order.on_place(epoch, place, id, &mut told);
        self.tell(told);
    }
}

/// By the clock.
impl Site<'_> {
    fn lose(&mut self, node: NodeId) {
        self.heard.remove(&node);
        self.back_at.remove(&node);
        if self.lost.insert(node) {
            tracing::warn!(node = self.peer(node).0, "another site is not heard any more");
            self.feed(Event::PeerLost { node });
        }
    }

    fn on_tick(&mut self) {
        let alive = SiteMessage::Alive { contained: self.floor, told: self.order.ordered_up_to() };
        self.around.links.say(&Said::Site(alive.encode()));
        let silent: Vec<NodeId> =
            self.heard.iter().filter(|(_, until)| until.has_passed()).map(|(node, _)| *node).collect();
        silent.into_iter().for_each(|node| self.lose(node));
        self.resend(false);
        self.pass_on();
        self.around.figures.hear(self.heard.len());
        if self.around.leads.is_some() {
            self.forget_log();
        }
        if progress_is_due(self.pruned, self.floor) {
            self.pruned = self.floor;
            let (database, floor) = (self.around.database.clone(), self.floor);
            tokio::spawn(async move {
                if let Err(error) = database.prune(floor).await {
                    tracing::warn!(%error, "forget old places");
                }
            });
        }
    }

    /// Nobody needs what all sites contain, but to know which messages stood there.
    fn forget_log(&mut self) {
        let all = self.around.sites.iter().map(|site| match *site == self.around.this {
            true => Some(self.floor),
            false => self.floors.get(site).copied(),
        });
        let Some(least) = all.collect::<Option<Vec<_>>>().and_then(|floors| floors.into_iter().min()) else {
            return;
        };
        let keep = Csn(least.0.saturating_sub(3 * database::KEEP_ROWS));
        if keep > self.around.log.held().first {
            self.around.log.truncate_before(keep);
            self.around.links.say(&Said::Keep(keep));
        }
    }

    /// Sends updates again that have no place in the log, all or those that are due.
    fn resend(&mut self, all: bool) {
        let mut again = Vec::new();
        for (id, pending) in &mut self.around.pending {
            if (all || pending.resend_at.has_passed()) && !self.order.has_stood(*id) {
                pending.resend_at = Deadline::after(RESEND_AFTER);
                again.push((*id, pending.body.clone()));
            }
        }
        again.into_iter().for_each(|(id, body)| self.multicast(id, body));
    }

    /// Says again what others have sent and what has had no place for a while: whoever sent it may be lost before the leader heard of it.
    fn pass_on(&mut self) {
        if !self.pass_on_at.has_passed() {
            return;
        }
        self.pass_on_at = Deadline::after(RESEND_AFTER);
        let unplaced = self.order.unplaced();
        let before = std::mem::take(&mut self.unplaced);
        for (id, body) in unplaced {
            if before.contains(&id) && id.node != self.around.this {
                self.around.links.say(&Said::Site(SiteMessage::Request { id, body }.encode()));
            }
            self.unplaced.insert(id);
        }
    }

    fn multicast(&mut self, id: MessageId, body: Bytes) {
        self.around.links.say(&Said::Site(SiteMessage::Request { id, body: body.clone() }.encode()));
        self.take_message(id, body);
    }

    fn take_message(&mut self, id: MessageId, body: Bytes) {
        let mut told = Vec::new();
        let is_new = self.order.on_message(id, body, &mut told);
        // That it is here comes before its place.
        self.tell(told);
        if is_new {
            self.give_place(id);
        }
    }
}

/// Whether it is worth to forget places of the database.
fn progress_is_due(pruned: Csn, floor: Csn) -> bool {
    floor.0 > pruned.0.saturating_add(database::KEEP_ROWS)
}

/// What the core wants done.
impl Site<'_> {
    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Multicast { txn, .. } => {
                let id = self.open.get(&txn).and_then(|open| open.id);
                let body = id.and_then(|id| Some((id, self.around.pending.get(&id)?.body.clone())));
                if let Some((id, body)) = body {
                    self.multicast(id, body);
                }
            }
            Effect::Execute { txn, op, .. } => {
                let Some(open) = self.open.get_mut(&txn) else { return };
                (open.op, open.is_shipped) = (Some(op), false);
                match open.id {
                    None => self.execute(txn, op),
                    Some(_) => self.connect(txn),
                }
            }
            Effect::Leave { txn, .. } => self.leave(txn),
            Effect::Release { txn, replica, .. } => {
                let is_own = replica == self.replica();
                let Some(open) = self.open.get_mut(&txn) else { return };
                let answer = match &open.shipped {
                    Some((_, answer)) if !is_own => answer.clone(),
                    _ => open.answer.clone(),
                };
                // What has failed is not acknowledged.
                if answer.error.is_some() {
                    self.answer(txn, answer);
                } else {
                    open.chosen = Some(answer);
                }
            }
            Effect::Acknowledge { txn, .. } => {
                let chosen = self.open.get_mut(&txn).and_then(|open| open.chosen.take());
                self.answer(txn, chosen.unwrap_or_default());
            }
            Effect::Refuse { txn, .. } => {
                let failure = Failure::new(SqlState::SERIALIZATION_FAILURE, "the transaction was given up")
                    .hint("Run it again.");
                self.answer(txn, Answer::of_failure(&failure));
            }
            Effect::Ship { txn, to: Place::Peer(to), message: CoreMessage::WideArea(message) } => {
                self.ship(txn, to, &message);
            }
            Effect::CommitAt { txn, csn, .. } => {
                if let Some(open) = self.open.get_mut(&txn) {
                    (open.place, open.is_shipped) = (csn, false);
                }
                self.take_turn(txn, true);
            }
            Effect::ApplyShipped { txn, .. } => {
                if let Some(open) = self.open.get_mut(&txn) {
                    open.is_shipped = true;
                }
                match self.core.position() {
                    Position::Prefix => self.take_turn(txn, false),
                    Position::Set => self.connect(txn),
                }
            }
            Effect::Forget { txn } => {
                self.leave(txn);
                if let Some(open) = self.open.remove(&txn) {
                    if let Some(id) = open.id {
                        self.by_id.remove(&id);
                    }
                    if let Some(id) = open.id
                        && open.place > self.floor
                        && !self.contained.contains(&open.place)
                    {
                        // It has failed, everywhere.
                        self.note_nothing(open.place, id);
                    }
                }
            }
            other => tracing::debug!(?other, "nothing to be done at a site"),
        }
    }

    /// Updates hold their connections until all before them are committed, so those before them must not be without: whoever comes last gives
    /// way, and is executed again.
    fn connect(&mut self, txn: TxnId) {
        // An execution of it that was left may be under way still.
        if self.connected.contains(&txn) || self.connected.len() < self.around.updates_max {
            return self.begin(txn);
        }
        self.unconnected.insert((self.place_of(txn), txn));
        self.give_way();
    }

    fn give_way(&mut self) {
        let Some((place, _)) = self.unconnected.first().copied() else { return };
        let holds = |other: &&TxnId| self.open.get(*other).is_some_and(|open| open.lane.is_some());
        // What is to be committed next is in nobody's way.
        let waits = |other: &&TxnId| !self.turns.iter().any(|turn| turn.txn == **other);
        let last = self.connected.iter().filter(holds).filter(waits);
        let last = last.max_by_key(|other| self.place_of(**other)).copied();
        if let Some(last) = last.filter(|last| self.place_of(*last) > place) {
            self.leave(last);
            let replica = self.replica();
            self.feed(Event::HomeLost { txn: last, replica });
        }
    }

    /// Where a transaction stands: behind all whose places are known, if its own is not.
    fn place_of(&self, txn: TxnId) -> Csn {
        let place = self.open.get(&txn).map_or(Csn(0), |open| open.place);
        if place == Csn(0) { Csn(u64::MAX) } else { place }
    }

    /// Ends what is open, without committing it.
    fn leave(&mut self, txn: TxnId) {
        let Some(open) = self.open.get_mut(&txn) else { return };
        open.op = None;
        if let Some(lane) = open.lane.take() {
            let database = self.around.database.clone();
            tokio::spawn(async move { database.leave(lane).await });
            self.disconnect(txn);
        }
        self.unconnected.retain(|(_, other)| *other != txn);
    }

    fn disconnect(&mut self, txn: TxnId) {
        if self.connected.remove(&txn)
            && let Some((_, next)) = self.unconnected.pop_first()
        {
            self.begin(next);
        }
    }

    /// There is a connection for an update now.
    fn begin(&mut self, txn: TxnId) {
        self.connected.insert(txn);
        match self.open.get(&txn) {
            Some(Open { is_shipped: true, .. }) => self.apply(txn),
            Some(Open { op: Some(op), .. }) => self.execute(txn, *op),
            _ => self.disconnect(txn),
        }
    }

    fn execute(&mut self, txn: TxnId, op: OpId) {
        let Some(open) = self.open.get_mut(&txn) else { return };
        let transaction = open.transaction.clone();
        let begin = match open.id {
            None => Begin::Query,
            Some(_) => Begin::Update { checks_at_once: self.around.classifier.has_deferrable() },
        };
        let (database, done) = (self.around.database.clone(), self.done.clone());
        // Who executes an update need not know what it returns, unless its client is here or hears it from here.
        let is_told = open.id.is_none_or(|id| id.node == self.around.this)
            || self.around.choice.execution == Execution::PrimaryCopy;
        let held_max = if is_told { self.around.held_max } else { 0 };
        let pause = LOST_PAUSE.saturating_mul(1 << open.losses.min(6)).min(LOST_PAUSE_MAX);
        tokio::spawn(async move {
            let _permit = match begin {
                Begin::Query => database.queries.acquire().await.ok(),
                Begin::Update { .. } | Begin::Serializable { .. } => None,
            };
            let (lane, ran) = match database.lend().await {
                Ok(mut lane) => {
                    let ran = database::run(&mut lane, &transaction, begin, held_max).await;
                    // It was given up by the server, which is well.
                    let is_well = ran.as_ref().err().is_none_or(LaneError::is_database);
                    (is_well.then_some(lane), ran)
                }
                Err(error) => (None, Err(error)),
            };
            let (lane, ran) = match (lane, begin) {
                (Some(mut lane), Begin::Query) => {
                    if lane.roll_back().await.is_ok() {
                        database.give_back(lane);
                    }
                    (None, ran)
                }
                (lane, _) => (lane, ran),
            };
            if ran.is_err() {
                tokio::time::sleep(pause).await;
            }
            // Nobody listens any more where the site has begun anew.
            let _ = done.send(Done::Executed { txn, op, begin, lane, ran });
        });
    }

    fn ship(&mut self, txn: TxnId, to: NodeId, message: &Message) {
        let Some(open) = self.open.get(&txn) else { return };
        let Some(id) = open.id else { return };
        let is_origin = self.node_of(id.node) == Some(to);
        // Only its own client hears it.
        let answer = if is_origin { open.answer.encode() } else { Answer::default().encode() };
        let message = match message {
            Message::WriteSet { place, op, .. } => {
                SiteMessage::Writes { id, place: *place, op: *op, writes: open.writes.encode(), answer }
            }
            Message::Failed { op, .. } => SiteMessage::Failed { id, op: *op, answer },
            Message::Request { .. } => return,
        };
        let message = message.encode();
        if message.len() <= MESSAGE_LEN_MAX {
            self.around.links.tell(self.peer(to), Said::Site(message));
        }
        // Whoever waits for what is too long executes it after a while.
    }

    fn apply(&mut self, txn: TxnId) {
        let Some(open) = self.open.get(&txn) else { return };
        let writes = match &open.shipped {
            Some((writes, _)) => writes.clone(),
            // What was executed here, and lost before it was committed.
            None => open.writes.clone(),
        };
        let checks_at_once = self.around.classifier.has_deferrable();
        let (database, done) = (self.around.database.clone(), self.done.clone());
        tokio::spawn(async move {
            let (lane, result) = match database.lend().await {
                Ok(mut lane) => {
                    let result = database::apply(&mut lane, &writes, checks_at_once).await;
                    (Some(lane), result)
                }
                Err(error) => (None, Err(error.into())),
            };
            let _ = done.send(Done::Applied { txn, lane, result });
        });
    }

    /// Where commits are to be in one order, that is the order in which they were asked for.
    fn take_turn(&mut self, txn: TxnId, is_ready: bool) {
        if self.core.position() == Position::Prefix {
            self.turns.push_back(Turn { txn, is_ready, is_begun: is_ready });
            self.commit_next();
        } else if is_ready {
            self.commit(txn);
        }
    }

    fn commit_next(&mut self) {
        let ahead = self.turns.iter_mut().take(APPLIED_AHEAD).filter(|turn| !turn.is_begun);
        let begun: Vec<TxnId> = ahead
            .map(|turn| {
                turn.is_begun = true;
                turn.txn
            })
            .collect();
        begun.into_iter().for_each(|txn| self.apply(txn));
        if let Some(Turn { txn, is_ready: true, .. }) = self.turns.front()
            && !self.is_committing
        {
            self.is_committing = true;
            self.commit(*txn);
        }
    }

    fn commit(&mut self, txn: TxnId) {
        let Some(open) = self.open.get_mut(&txn) else { return };
        let (Some(lane), Some(id)) = (open.lane.take(), open.id) else {
            return self.begin_again(format!("the connection on which {txn} was open is lost"));
        };
        if let Some(pending) = self.around.pending.get_mut(&id) {
            pending.known = Some(open.chosen.clone().unwrap_or_else(|| open.answer.clone()));
        }
        let (database, done, place) = (self.around.database.clone(), self.done.clone(), open.place);
        let nothing = self.nothing.clone();
        tokio::spawn(async move {
            let result = database.commit(lane, place, id, &nothing).await;
            let _ = done.send(Done::Committed { txn, nothing, result });
        });
    }
}

/// What was done.
impl Site<'_> {
    fn on_done(&mut self, done: Done) {
        match done {
            Done::Executed { txn, op, begin, lane, ran } => self.on_executed(txn, op, begin, lane, ran),
            Done::Applied { txn, lane, result } => match (result, lane) {
                (Ok(()), Some(lane)) => {
                    if let Some(open) = self.open.get_mut(&txn) {
                        open.lane = Some(lane);
                    }
                    match self.turns.iter_mut().find(|turn| turn.txn == txn) {
                        Some(turn) => turn.is_ready = true,
                        None => return self.commit(txn),
                    }
                    self.commit_next();
                }
                (Err(ApplyError::Diverged(why)), _) => self.ended = Some(Ended::Diverged(why)),
                (Err(error @ ApplyError::NotBegun(_)), _) => {
                    self.ended = Some(Ended::Stuck(error.to_string()))
                }
                (Err(ApplyError::Lane(error)), _) => self.begin_again(error.to_string()),
                (Ok(()), None) => {}
            },
            Done::Committed { txn, nothing, result: Ok(()) } => {
                self.nothing.retain(|one| !nothing.contains(one));
                if self.turns.front().is_some_and(|turn| turn.txn == txn) {
                    self.turns.pop_front();
                    self.is_committing = false;
                }
                let Some(open) = self.open.get(&txn) else { return };
                let (place, is_shipped) = (open.place, open.is_shipped);
                self.note_contained(place);
                self.disconnect(txn);
                let replica = self.replica();
                self.feed(match is_shipped {
                    true => Event::ShippedApplied { origin: Place::Peer(self.me), txn, replica },
                    false => Event::Applied { replica, csn: place },
                });
                self.commit_next();
            }
            // Whether it has happened only the database knows.
            Done::Committed { result: Err(error), .. } => self.begin_again(error.to_string()),
        }
    }

    /// Counts that a server has given up a transaction; whether it was too often.
    fn gives_up(&mut self, txn: TxnId) -> bool {
        let Some(open) = self.open.get_mut(&txn) else { return false };
        open.losses += 1;
        open.losses > LOSSES_MAX
    }

    fn on_executed(
        &mut self,
        txn: TxnId,
        op: OpId,
        begin: Begin,
        lane: Option<Lane>,
        ran: Result<(Ran, Record), LaneError>,
    ) {
        let database = self.around.database.clone();
        let counts = self.open.get(&txn).is_some_and(|open| open.op == Some(op));
        let mut answer_now = None;
        let outcome = match ran {
            Ok((ran, writes)) => {
                let (answer, outcome) = match ran {
                    Ran::Done(answer) => (answer, Outcome::Done { returned: Vec::new() }),
                    Ran::Failed(answer) => (answer, Outcome::Failed),
                    Ran::TooLarge if begin == Begin::Query => {
                        (too_large(self.around.held_max, false), Outcome::Failed)
                    }
                    Ran::TooLarge => {
                        (too_large(self.around.held_max, true), Outcome::Done { returned: Vec::new() })
                    }
                    Ran::NotBegun(why) if begin == Begin::Query => {
                        let failure = Failure::new(SqlState::INVALID_PARAMETER_VALUE, why);
                        (Answer::of_failure(&failure), Outcome::Failed)
                    }
                    // Elsewhere it may be executed.
                    Ran::NotBegun(why) => {
                        self.ended = Some(Ended::Stuck(format!(
                            "an update cannot be begun here for its role or under its settings ({why}); make the roles and what settings name the same at all sites, and start it again"
                        )));
                        return;
                    }
                };
                if begin == Begin::Query {
                    answer_now = Some(answer);
                } else if let Some(open) = self.open.get_mut(&txn).filter(|_| counts) {
                    (open.answer, open.writes) = (answer, writes);
                }
                outcome
            }
            Err(error) if begin == Begin::Query && (is_of_transaction(&error) || is_frame(&error)) => {
                answer_now = Some(Answer::of_failure(&Failure::of_lane(&error)));
                Outcome::Failed
            }
            // A row that is too long is so everywhere.
            Err(error) if is_frame(&error) => {
                if let Some(open) = self.open.get_mut(&txn).filter(|_| counts) {
                    open.answer = Answer::of_failure(&Failure::new(
                        SqlState::PROGRAM_LIMIT_EXCEEDED,
                        error.to_string(),
                    ));
                }
                Outcome::Failed
            }
            // A server that has crashed may have forgotten what it had committed last.
            Err(error) if !is_of_transaction(&error) => return self.begin_again(error.to_string()),
            Err(error) if self.gives_up(txn) => {
                self.ended = Some(Ended::Stuck(format!(
                    "its server has given up an update {LOSSES_MAX} times, for a reason that need not hold elsewhere: {error}"
                )));
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "a transaction is to be executed again");
                Outcome::Lost { answer_begun: false }
            }
        };
        let is_lost = matches!(outcome, Outcome::Lost { .. });
        let is_update = begin != Begin::Query;
        match (lane, self.open.get_mut(&txn).filter(|_| counts && !is_lost)) {
            (Some(lane), Some(open)) => {
                open.lane = Some(lane);
                self.connected.insert(txn);
            }
            (lane, _) => {
                if let Some(lane) = lane {
                    tokio::spawn(async move { database.leave(lane).await });
                }
                // Unless it is being executed once more.
                if is_update && self.open.get(&txn).is_none_or(|open| counts || open.op.is_none()) {
                    self.disconnect(txn);
                }
            }
        }
        if let Some(answer) = answer_now {
            self.answer(txn, answer);
        }
        let is_query_done = begin == Begin::Query && !is_lost;
        let replica = self.replica();
        self.feed(Event::Executed { txn, op, replica, outcome, elapsed_ns: 0 });
        if is_query_done {
            self.open.remove(&txn);
        }
        self.give_way();
    }
}

/// Whether a message was too long to be read.
fn is_frame(error: &LaneError) -> bool {
    matches!(error, LaneError::Frame(_))
}

/// Whether a server has only given up one transaction.
fn is_of_transaction(error: &LaneError) -> bool {
    matches!(error, LaneError::Database(fields) if !is_going_away(fields.code))
}

fn too_large(held_max: usize, is_committed: bool) -> Answer {
    let but = if is_committed { "; it was committed" } else { "" };
    let failure = Failure::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("the results of a transaction exceed {held_max} bytes{but}"),
    );
    Answer::of_failure(&failure.hint("Return fewer rows, or raise limits.held_result_bytes_max."))
}
