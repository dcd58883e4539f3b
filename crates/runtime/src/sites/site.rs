//! One site's loop: everything that happens here goes to the core, and what the core wants done is done.
//!
//! It decides nothing about order or place. What takes time (the server, the log's disk) is done beside it and reported back.
//!
//! - here: what outlives a beginning, what a site knows, and its clients;
//! - [`heard`]: what other sites say, and what stands in the log;
//! - [`places`]: what the site that leads does, and what is done by the clock;
//! - [`work`]: what the core wants done, and what came of it;
//! - [`turns`]: commits in their turns, and what is applied before these;
//! - [`in_place`]: what executes in its turn;
//! - [`conversations`]: transactions whose statements come one by one;
//! - [`ways`]: who is in whose way at the server.

mod conversations;
mod heard;
mod in_place;
mod places;
mod turns;
mod ways;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use onecopy_classify::Scratch;
use onecopy_core::event::{Begin as CoreBegin, Place};
use onecopy_core::protocol::certified::{Certified, Commits};
use onecopy_core::protocol::wide_area::WideArea;
use onecopy_core::protocol::{Position, Protocol};
use onecopy_core::{
    AccessSet, ClassId, Csn, Epoch, Event, NodeId, OpId, ReplicaId, SessionId, Statement, StatementKind,
    TxnId,
};
use onecopy_log::consensus::NodeId as PeerId;
use onecopy_log::{Log, MemberEvent};
use tokio::sync::{mpsc, oneshot};

use super::database::{Answer, ApplyError, Begin, Contained, Database, KEEP_ROWS, Ran};
use super::likeness::Likeness;
use super::messages::{SiteMessage, take_id};
use super::outcomes::Outcomes;
use super::request::Request;
use super::spoken::{Ask, Beginning, Kept, Said};
use super::transaction::Transaction;
use super::{RETRY_PAUSE, Scheme, too_long};
use crate::agent::History;
use crate::classifier::Classifier;
use crate::clock::{Clock, Deadline};
use crate::lane::{Lane, LaneError};
use crate::nodes::links::Links;
use crate::record::Record;
use crate::server::log::LogHistory;
use onecopy_core::multicast::{MessageId, Order};
use turns::Turn;

/// How often a site says that it lives, and looks whether others do.
pub const ALIVE_PAUSE: Duration = Duration::from_millis(100);
/// How long another site may be silent before it is taken for lost.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// After how long a message is sent again that has no place in the log.
const RESEND_AFTER: Duration = Duration::from_millis(1_000);
/// Within so many places a message stands that is in the log twice.
const TWICE_WITHIN: u64 = 10_000;
/// Between two timers of the core.
const TIMER_PAUSE: Duration = Duration::from_millis(250);

/// What happens.
pub enum Input {
    /// A client's transaction, to be answered once.
    Submit { transaction: Arc<Transaction>, answer: oneshot::Sender<Answer> },
    /// A client's transaction comes statement by statement.
    Spoken(Ask),
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
    Executed {
        txn: TxnId,
        op: OpId,
        begin: Begin,
        lane: Option<Lane>,
        ran: Result<(Ran, Record), LaneError>,
    },
    /// With those that follow it, if it leads them.
    Applied {
        txn: TxnId,
        result: Result<Lane, ApplyError>,
    },
    /// An update that executes in its turn.
    ExecutedInPlace {
        txn: TxnId,
        lane: Option<Lane>,
        ran: Result<(Ran, Record), LaneError>,
    },
    /// A statement of a transaction whose statements come one by one.
    Stepped {
        txn: TxnId,
        lane: Option<Lane>,
        ran: Result<(Ran, Record), LaneError>,
        answer: oneshot::Sender<Said>,
    },
    /// What is being applied waits for these processes of the server.
    Blocked {
        txn: TxnId,
        by: Vec<u32>,
    },
    Committed {
        txn: TxnId,
        /// Those that were applied with it.
        led: Vec<TxnId>,
        nothing: Vec<(Csn, MessageId)>,
        result: Result<(), LaneError>,
    },
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

/// A query, and who is to be answered.
type Asked = (Arc<Transaction>, oneshot::Sender<Answer>);

/// What is to see more than the database contains.
enum Ahead {
    Query(Asked),
    Begins(Beginning),
}

impl Ahead {
    fn is_closed(&self) -> bool {
        match self {
            Ahead::Query((_, answer)) => answer.is_closed(),
            Ahead::Begins(beginning) => beginning.begun.is_closed(),
        }
    }
}

/// What outlives one beginning of a site.
pub struct Surroundings {
    pub scheme: Scheme,
    /// This node's number, and those of all sites in their order.
    pub this: u64,
    pub sites: Vec<u64>,
    /// When it was started, and what has to be the same at all sites.
    pub incarnation: u64,
    pub likeness: Likeness,
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
    pub queries: Vec<Asked>,
    /// How often it has begun.
    pub beginnings: u64,
    pub next_number: u64,
    pub clock: Clock,
    /// If this node leads.
    pub leads: Option<Leads>,
    pub figures: Arc<super::Figures>,
}

/// An update of a client of this site.
pub struct Pending {
    /// Which, if it came whole: where it has changed nothing it can be run again.
    whole: Option<Arc<Transaction>>,
    body: Bytes,
    answer: oneshot::Sender<Answer>,
    /// What it will be, once it is being committed.
    known: Option<Answer>,
    resend_at: Deadline,
}

/// A transaction that this site knows of.
struct Open {
    transaction: Arc<Transaction>,
    is_update: bool,
    /// Of an update that was multicast.
    id: Option<MessageId>,
    /// Who is to be answered, until it is multicast.
    client: Option<oneshot::Sender<Answer>>,
    /// Of one that is certified: what is asked.
    request: Option<Request>,
    /// Of one whose statements come one by one.
    kept: Option<Kept>,
    /// The server's process that is at it, or was; 0 if that is not known.
    pid: Arc<AtomicU32>,
    /// The execution that counts, before it has its turn.
    op: Option<OpId>,
    /// That in its turn.
    in_place_op: OpId,
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
    /// Where it stands, and in which epoch it was given that place.
    stands: Option<(Csn, Epoch)>,
    is_shipped: bool,
}

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
    core: Box<dyn Protocol>,
    events: VecDeque<Event>,
    is_feeding: bool,
    me: NodeId,
    order: Order<Bytes>,
    history: LogHistory,
    open: HashMap<TxnId, Open>,
    by_id: HashMap<MessageId, TxnId>,
    next_txn: u64,
    /// What was said of messages whose places are not known here.
    early: HashMap<MessageId, (NodeId, SiteMessage)>,
    /// What the server contains, or will never: without gaps up to the floor, and beyond.
    floor: Csn,
    contained: BTreeSet<Csn>,
    /// What stands somewhere and changed nothing, as far as the database was not told.
    nothing: Vec<(Csn, MessageId)>,
    /// As found at the beginning.
    found: BTreeMap<Csn, MessageId>,
    found_ids: HashSet<MessageId>,
    /// Of those found, where nothing has changed.
    unchanged: BTreeSet<Csn>,
    /// Where commits are in any order the database may have been found to lack something before that: queries wait until it does not.
    whole_from: Csn,
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
    /// What came of what all sites execute.
    outcomes: Outcomes,
    /// Queries that are to see more than the database contains, by the place up to which.
    ahead: BTreeMap<Csn, Vec<Ahead>>,
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
        self.queries.retain(|(_, answer)| !answer.is_closed());
        let until = Deadline::after(pause);
        loop {
            let input = tokio::select! {
                Some(input) = self.inputs.recv() => input,
                () = until.reached() => return None,
            };
            match input {
                Input::Submit { transaction, answer }
                    if transaction.is_update() && self.scheme != Scheme::Certified =>
                {
                    // It is sent when the site is back.
                    self.keep(&transaction, answer, Duration::ZERO);
                }
                Input::Spoken(ask) => conversations::refuse(ask),
                Input::Submit { transaction, answer } => self.queries.push((transaction, answer)),
                Input::Member(MemberEvent::Ready { epoch, csn }) => self.lead(epoch, csn),
                Input::Member(MemberEvent::Stopped(reason)) => return Some(reason.to_string()),
                Input::Member(MemberEvent::Follows { .. } | MemberEvent::Leads { .. }) => self.leads = None,
                // The log has it.
                Input::Heard { .. } | Input::Parted { .. } | Input::Durable(_) | Input::Member(_) => {}
            }
        }
    }

    /// Keeps an update of a client until its end is known, unless it is refused, and names it; it is to be sent again after some time.
    fn keep(
        &mut self,
        transaction: &Arc<Transaction>,
        answer: oneshot::Sender<Answer>,
        resend_after: Duration,
    ) -> Option<MessageId> {
        let body = transaction.record.encode();
        if let Some(failure) = too_long(&body, 0) {
            // It may be gone.
            let _ = answer.send(Answer::of_failure(&failure));
            return None;
        }
        let resend_at = Deadline::after(resend_after);
        let whole = Some(transaction.clone());
        Some(self.name(Pending { whole, body, answer, known: None, resend_at }))
    }

    fn name(&mut self, pending: Pending) -> MessageId {
        let id = MessageId { node: self.this, incarnation: self.incarnation, number: self.next_number };
        self.next_number += 1;
        self.pending.insert(id, pending);
        id
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
        let mut durable = held.last;
        let mut core: Box<dyn Protocol> = match self.scheme {
            Scheme::WideArea(choice) => Box::new(WideArea::new(choice, sites)),
            Scheme::Certified => {
                let committed = if contained.places.contains_key(&first) { last } else { first.previous() };
                // A machine that has crashed may have forgotten more of the log than of the database; others bring it back.
                while self.log.held().last < committed {
                    if let Some(why) = self.take_for(RETRY_PAUSE).await {
                        return Ended::Log(why);
                    }
                }
                // What was heard meanwhile is not said again.
                durable = self.log.held().last;
                let mut core = Certified::remembering(KEEP_ROWS, Commits::Stable, sites);
                match written(&history, &contained, committed) {
                    Ok(written) => core.resume(me, committed, written),
                    Err(ended) => return ended,
                }
                Box::new(core)
            }
        };
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
        let found_up_to = contained.places.keys().next_back().copied().unwrap_or(Csn(0));
        let has_gaps = core.position() == Position::Set && found_up_to > last;
        let queries = std::mem::take(&mut self.queries);
        self.beginnings += 1;
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
            unchanged: contained.unchanged,
            whole_from: if has_gaps { found_up_to } else { Csn(0) },
            durable,
            back_at: HashMap::new(),
            heard: HashMap::new(),
            lost: others.into_iter().collect(),
            floors: BTreeMap::new(),
            pruned: Csn(0),
            unplaced: HashSet::new(),
            pass_on_at: Deadline::after(RESEND_AFTER),
            outcomes: Outcomes::after(found_up_to),
            ahead: BTreeMap::new(),
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

    /// Queries that were not answered, and updates of which no other site has heard, are for whoever goes on.
    fn hand_back(&mut self) {
        for ahead in std::mem::take(&mut self.ahead).into_values().flatten() {
            match ahead {
                Ahead::Query(asked) => self.around.queries.push(asked),
                Ahead::Begins(beginning) => conversations::refuse(Ask::Begin(beginning)),
            }
        }
        for (_, open) in self.open.drain() {
            match (open.client, open.kept) {
                (Some(client), None) => self.around.queries.push((open.transaction, client)),
                // It may be gone.
                (Some(client), Some(_)) => {
                    let _ = client.send(Answer::of_failure(&conversations::lost()));
                }
                (None, Some(Kept { begun: Some(begun), .. })) => {
                    let _ = begun.send(Err(conversations::lost()));
                }
                (None, _) => {}
            }
        }
    }

    fn on_input(&mut self, input: Input) {
        match input {
            Input::Submit { transaction, answer } => self.on_submit(transaction, answer),
            Input::Spoken(ask) => self.on_spoken(ask),
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
        let is_update = transaction.is_update();
        let whole_from = if is_update { Csn(0) } else { self.whole_from };
        let not_before = transaction.not_before.max(whole_from);
        if not_before > self.floor {
            let ahead = Ahead::Query((transaction.clone(), answer));
            return self.ahead.entry(not_before).or_default().push(ahead);
        }
        if is_update
            && self.is_certified()
            && transaction.only_writes
            && let Some(failure) = in_place::too_long(&transaction)
        {
            // It may be gone.
            let _ = answer.send(Answer::of_failure(&failure));
            return;
        }
        let txn = self.new_txn();
        let (id, client) = match is_update && !self.is_certified() {
            false => (None, Some(answer)),
            true => {
                let Some(id) = self.around.keep(&transaction, answer, RESEND_AFTER) else { return };
                self.by_id.insert(id, txn);
                (Some(id), None)
            }
        };
        let kind = if is_update { StatementKind::Write } else { StatementKind::Read };
        let statement = Statement::new(ClassId(0), kind, transaction.access.clone());
        self.open.insert(txn, Open::new(transaction, is_update, id, client));
        self.feed(Event::Autocommit { begin: begin_of(txn, !is_update), statement });
    }

    fn is_certified(&self) -> bool {
        self.around.scheme == Scheme::Certified
    }

    fn answer(&mut self, txn: TxnId, answer: Answer) {
        let Some(open) = self.open.get_mut(&txn) else { return };
        let pending = open.id.and_then(|id| self.around.pending.remove(&id));
        let client = pending.map(|pending| pending.answer).or_else(|| open.client.take());
        if let Some(client) = client {
            // It may be gone.
            let _ = client.send(answer);
        }
    }
}

fn begin_of(txn: TxnId, read_only: bool) -> CoreBegin {
    CoreBegin { txn, session: SessionId(0), read_only, form: 0, declared: None, stale_ok_ns: None }
}

/// What was written at places that the database contains, as far back as verdicts may depend on it.
fn written(
    history: &LogHistory,
    contained: &Contained,
    committed: Csn,
) -> Result<Vec<(Csn, AccessSet)>, Ended> {
    let from = Csn(committed.0.saturating_sub(KEEP_ROWS)).next();
    let (mut written, mut met) = (Vec::new(), HashSet::new());
    // What stands there once more may have stood before for the first time.
    for place in (from.0.saturating_sub(TWICE_WITHIN).max(1)..from.0).map(Csn) {
        if let Ok(Some((_, mut body))) = history.read(place) {
            met.extend(take_id(&mut body));
        }
    }
    for place in (from.0..=committed.0).map(Csn) {
        let (_, mut body) = match history.read(place) {
            Ok(Some(found)) => found,
            Ok(None) => return Err(Ended::Log(format!("place {place} is not in the log"))),
            Err(error) => return Err(Ended::Log(format!("read place {place} of the log: {error}"))),
        };
        // Leaders say by records without a name that they lead.
        let id = take_id(&mut body).unwrap_or_default();
        if contained.places.get(&place) != Some(&id) {
            return Err(Ended::Diverged(format!(
                "its database has another transaction at place {place} than the log"
            )));
        }
        let is_unchanged = contained.unchanged.contains(&place);
        let is_first = met.insert(id);
        let Some((request, _)) = Request::decode(body) else {
            if is_unchanged {
                continue;
            }
            return Err(Ended::Stuck(format!(
                "what stands at place {place} of the log was written by another version or protocol: go on with that, or begin with an empty log at all sites, whose databases hold the same, and without the schema \"onecopy\" in them"
            )));
        };
        // What has failed in place counts as written, at the first place at which it stands.
        if !is_unchanged || is_first && request.is_in_place() {
            written.push((place, request.access));
        }
    }
    Ok(written)
}

impl Open {
    /// Whether it executes in its turn, at all sites.
    fn is_in_place(&self) -> bool {
        self.request.as_ref().is_some_and(Request::is_in_place)
    }

    fn new(
        transaction: Arc<Transaction>,
        is_update: bool,
        id: Option<MessageId>,
        client: Option<oneshot::Sender<Answer>>,
    ) -> Open {
        Open {
            transaction,
            is_update,
            id,
            client,
            request: None,
            kept: None,
            pid: Arc::default(),
            op: None,
            in_place_op: OpId(0),
            lane: None,
            answer: Answer::default(),
            writes: Record::default(),
            shipped: None,
            chosen: None,
            losses: 0,
            place: Csn(0),
            stands: None,
            is_shipped: false,
        }
    }
}
