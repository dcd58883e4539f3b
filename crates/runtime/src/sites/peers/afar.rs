//! Transactions about rows that are at other peers: sent on to where all of them are, or executed here with the others' rows brought here.
//!
//! The core has latches at all peers before a transaction about several peers' rows executes, and keeps them until it is over. So whoever brings rows, or
//! writes them back, finds nobody at them.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use onecopy_classify::Scratch;
use onecopy_core::{Csn, Event, NodeId, TxnId};
use onecopy_log::consensus::NodeId as PeerId;
use onecopy_wire::sqlstate::SqlState;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

use super::crossing::{Changed, Changes, Gathered, Gathering, Said, collect, in_messages};
use super::parts::{self, Parts, Row, Rows, Wanted, Which};
use super::{Done, LOSSES_MAX, LOST_PAUSE, Open, Peer};
use crate::errors::Failure;
use crate::lane::{Lane, LaneError};
use crate::nodes::links;
use crate::record::Record;
use crate::sites::database::{self, Answer, Database, Ran};
use crate::sites::too_long;
use crate::sites::transaction::Transaction;

/// What is under way of divided tables.
#[derive(Default)]
pub struct Afar {
    /// Clients whose transactions execute at other peers, by what these know them by.
    forwarded: HashMap<u64, oneshot::Sender<Answer>>,
    next_number: u64,
    gathering: HashMap<TxnId, Gathering>,
    /// Own transactions that have changed rows of others, while these prepare that, or commit it.
    finishing: HashMap<TxnId, Finishing>,
    /// What transactions of others have changed here: as far as it has come, and where it is ready to be committed.
    coming: HashMap<(NodeId, TxnId), Changes>,
    prepared: HashMap<(NodeId, TxnId), Lane>,
    /// One transaction at a time has rows of others here: two with the same ones would wait for each other in the server.
    turn: Arc<Mutex<()>>,
    /// What is done for others beside the loop.
    under_way: usize,
    /// This peer ends once it has finished: it executes nothing any more for clients of others.
    pub is_ending: bool,
}

/// That it is a transaction's turn to have rows of others at its server.
pub type Turn = OwnedMutexGuard<()>;

struct Finishing {
    csn: Csn,
    nodes: Vec<NodeId>,
    missing: HashSet<NodeId>,
    is_committed: bool,
}

impl Afar {
    /// Whether others wait for something of this peer.
    pub fn is_idle(&self) -> bool {
        self.coming.is_empty() && self.prepared.is_empty() && self.under_way == 0
    }
}

/// What was done beside the loop.
pub enum DoneAfar {
    Answered {
        to: NodeId,
        number: u64,
        answer: Answer,
    },
    /// Nothing if it is too long.
    Read {
        to: NodeId,
        txn: TxnId,
        execution: u64,
        rows: Result<Option<Vec<Rows>>, LaneError>,
    },
    /// Nothing if the rows that go are not there.
    Prepared {
        to: NodeId,
        txn: TxnId,
        lane: Result<Option<Box<Lane>>, LaneError>,
    },
    Finished {
        to: NodeId,
        txn: TxnId,
        result: Result<(), LaneError>,
    },
    /// It is the turn of a transaction of this peer to have rows of others here.
    HasTurn {
        txn: TxnId,
        execution: u64,
    },
}

impl Peer {
    fn say_apart(&mut self, to: NodeId, said: &Said) {
        let at = usize::from(to.0);
        let said = self.channels[at].say(&said.encode());
        self.links.tell(PeerId(self.numbers[at]), links::Said::Site(said));
    }

    fn others(&self) -> Vec<NodeId> {
        let all = 0..u16::try_from(self.numbers.len()).unwrap_or(u16::MAX);
        all.map(NodeId).filter(|node| *node != self.me).collect()
    }

    /// Has another peer execute what is about its rows.
    pub(super) fn forward(&mut self, to: NodeId, transaction: &Transaction, answer: oneshot::Sender<Answer>) {
        let record = transaction.record.encode();
        if let Some(failure) = too_long(&record, 0) {
            // It may be gone.
            let _ = answer.send(Answer::of_failure(&failure));
            return;
        }
        self.afar.next_number += 1;
        let number = self.afar.next_number;
        self.afar.forwarded.insert(number, answer);
        self.say_apart(to, &Said::Forward { number, record });
    }

    /// Another peer has said something of divided tables.
    pub(super) fn on_said(&mut self, from: NodeId, said: Option<Said>) {
        let Some(said) = said else { return self.end("another peer speaks another version") };
        match said {
            Said::Forward { number, record } => self.on_forward(from, number, record),
            Said::Answered { number, answer } => {
                if let Some(client) = self.afar.forwarded.remove(&number) {
                    // It may be gone.
                    let _ = client.send(Answer::decode(answer).unwrap_or_default());
                }
            }
            Said::Gather { txn, execution, bytes_max, wanted } => {
                self.on_gather(from, txn, execution, (bytes_max, wanted));
            }
            Said::TooLong { txn, execution } => {
                if let Some(gathering) = self.gathering(txn, execution) {
                    gathering.is_too_long = true;
                    self.have_gathered(txn);
                }
            }
            Said::Rows { txn, execution, is_last, rows } => self.on_rows(from, txn, execution, is_last, rows),
            Said::Change { txn, is_last, is_added, rows } => {
                let Changes { removed, added } = self.afar.coming.entry((from, txn)).or_default();
                collect(if is_added { added } else { removed }, rows);
                if is_last && let Some(changes) = self.afar.coming.remove(&(from, txn)) {
                    self.prepare(from, txn, changes);
                }
            }
            Said::Prepared { txn } => self.on_prepared(from, txn),
            Said::Finish { txn } => {
                let Some(lane) = self.afar.prepared.remove(&(from, txn)) else { return };
                self.afar.under_way += 1;
                let (database, done) = (self.shared.database.clone(), self.done.clone());
                tokio::spawn(async move {
                    let result = database.commit_durably(lane).await;
                    // Nobody listens any more where the peer has ended.
                    let _ = done.send(Done::Afar(DoneAfar::Finished { to: from, txn, result }));
                });
            }
            Said::Finished { txn } => self.on_finished(from, txn),
        }
    }

    pub(super) fn on_done_afar(&mut self, done: DoneAfar) {
        if let DoneAfar::HasTurn { txn, execution } = done {
            return self.gather(txn, execution);
        }
        self.afar.under_way -= 1;
        match done {
            DoneAfar::HasTurn { .. } => {}
            DoneAfar::Answered { to, number, answer } => {
                let mut answer = answer.encode();
                // What was committed is bounded before; this is an error that is too long.
                if let Some(failure) = too_long(&answer, 0) {
                    answer = Answer::of_failure(&failure).encode();
                }
                self.say_apart(to, &Said::Answered { number, answer });
            }
            DoneAfar::Read { to, txn, execution, rows: Ok(None) } => {
                self.say_apart(to, &Said::TooLong { txn, execution });
            }
            DoneAfar::Read { to, txn, execution, rows: Ok(Some(rows)) } => {
                for (is_last, rows) in in_messages(rows) {
                    self.say_apart(to, &Said::Rows { txn, execution, is_last, rows });
                }
            }
            DoneAfar::Prepared { to, txn, lane: Ok(Some(lane)) } => {
                self.afar.prepared.insert((to, txn), *lane);
                self.say_apart(to, &Said::Prepared { txn });
            }
            DoneAfar::Prepared { lane: Ok(None), .. } => {
                self.end("rows that another peer has changed are not there any more: somebody has changed them on the server, beside onecopy");
            }
            DoneAfar::Finished { to, txn, result: Ok(()) } => self.say_apart(to, &Said::Finished { txn }),
            DoneAfar::Read { rows: Err(error), .. } => self.end(format!("its rows cannot be read: {error}")),
            DoneAfar::Prepared { lane: Err(error), .. } => {
                self.end(format!("what another peer has changed of its rows cannot be written: {error}"));
            }
            DoneAfar::Finished { txn, result: Err(error), .. } => {
                self.end(format!("whether {txn} of another peer was committed is not known: {error}"));
            }
        }
    }
}

/// For other peers.
impl Peer {
    fn on_forward(&mut self, from: NodeId, number: u64, record: Bytes) {
        let Ok(record) = Record::decode(record) else {
            return self.end("another peer speaks another version");
        };
        let ending = || {
            let failure = Failure::new(SqlState::ADMIN_SHUTDOWN, "the peer that has these rows is ending");
            Answer::of_failure(&failure.hint("Run the transaction again when it is there again."))
        };
        if self.afar.is_ending {
            let answer = ending().encode();
            return self.say_apart(from, &Said::Answered { number, answer });
        }
        let transaction = Transaction::read(record, &self.shared.classifier, &mut Scratch::default());
        let (answer, answered) = oneshot::channel();
        self.submit(Arc::new(transaction), answer, true);
        self.afar.under_way += 1;
        let done = self.done.clone();
        tokio::spawn(async move {
            // Whoever has not begun has no answer when the peer ends.
            let answer = answered.await.unwrap_or_else(|_| ending());
            let _ = done.send(Done::Afar(DoneAfar::Answered { to: from, number, answer }));
        });
    }

    fn on_gather(
        &mut self,
        from: NodeId,
        txn: TxnId,
        execution: u64,
        (bytes_max, wanted): (u64, Vec<Wanted>),
    ) {
        let (database, parts, me) = (self.shared.database.clone(), self.parts.clone(), self.me);
        let (done, bytes_max) = (self.done.clone(), usize::try_from(bytes_max).unwrap_or(usize::MAX));
        self.afar.under_way += 1;
        tokio::spawn(async move {
            let rows = read_for_another(&database, &parts, &wanted, me, bytes_max).await;
            let _ = done.send(Done::Afar(DoneAfar::Read { to: from, txn, execution, rows }));
        });
    }

    fn prepare(&mut self, from: NodeId, txn: TxnId, changes: Changes) {
        let (database, parts) = (self.shared.database.clone(), self.parts.clone());
        let done = self.done.clone();
        self.afar.under_way += 1;
        tokio::spawn(async move {
            let lane = change_for_another(&database, &parts, &changes).await.map(|lane| lane.map(Box::new));
            let _ = done.send(Done::Afar(DoneAfar::Prepared { to: from, txn, lane }));
        });
    }
}

/// For clients here.
impl Peer {
    /// Executes a transaction about rows of several peers.
    pub(super) fn cross(&mut self, txn: TxnId, writes: bool) {
        if !self.open.contains_key(&txn) {
            return;
        }
        let turn = self.next_opening();
        let Some(open) = self.open.get_mut(&txn) else { return };
        open.executions += 1;
        let (execution, transaction) = (open.executions, open.transaction.clone());
        let wanted = open.wanted.clone().unwrap_or_default();
        let (sender, gathered) = oneshot::channel();
        let gathering = Gathering {
            execution,
            wanted: wanted.clone(),
            is_too_long: false,
            missing: self.others().into_iter().collect(),
            found: HashMap::new(),
            bytes: 0,
            done: sender,
        };
        self.afar.gathering.insert(txn, gathering);
        let (database, parts, me) = (self.shared.database.clone(), self.parts.clone(), self.me);
        let (done, held_max) = (self.done.clone(), self.shared.held_max);
        let in_turn = self.afar.turn.clone();
        tokio::spawn(async move {
            // Nobody listens any more where the peer has ended.
            let opened = || drop(done.send(Done::Opened { turn }));
            let (lane, ran) = match database.lend().await {
                Ok(mut lane) => {
                    let is_open = parts::open(&mut lane).await;
                    opened();
                    let crossing =
                        Crossing { parts: &parts, me, transaction: &transaction, wanted, writes, held_max };
                    let ran = match is_open {
                        Ok(()) => {
                            // Whoever has it has all latches, and waits for nothing here.
                            let turn = in_turn.lock_owned().await;
                            let _ = done.send(Done::Afar(DoneAfar::HasTurn { txn, execution }));
                            let ran = crossing.run(&mut lane, gathered).await;
                            ran.map(|(ran, changed)| (ran, Elsewhere { changed, _turn: Some(turn) }))
                        }
                        Err(error) => Err(error),
                    };
                    let is_well = ran.as_ref().err().is_none_or(LaneError::is_database);
                    (is_well.then_some(lane), ran)
                }
                Err(error) => {
                    opened();
                    (None, Err(error))
                }
            };
            if ran.is_err() {
                tokio::time::sleep(LOST_PAUSE).await;
            }
            let (ran, elsewhere) = match ran {
                Ok((ran, elsewhere)) => (Ok(ran), elsewhere),
                Err(error) => (Err(error), Elsewhere::default()),
            };
            let _ = done.send(Done::Executed { txn, lane: lane.map(Box::new), ran, elsewhere });
        });
    }

    fn gathering(&mut self, txn: TxnId, execution: u64) -> Option<&mut Gathering> {
        self.afar.gathering.get_mut(&txn).filter(|of| of.execution == execution)
    }

    /// Asks all others for their rows.
    fn gather(&mut self, txn: TxnId, execution: u64) {
        let bytes_max = self.shared.held_max as u64;
        let Some(gathering) = self.gathering(txn, execution) else { return };
        let wanted = gathering.wanted.clone();
        let others = self.others();
        for other in &others {
            self.say_apart(*other, &Said::Gather { txn, execution, bytes_max, wanted: wanted.clone() });
        }
        if others.is_empty() {
            self.have_gathered(txn);
        }
    }

    fn on_rows(&mut self, from: NodeId, txn: TxnId, execution: u64, is_last: bool, rows: Rows) {
        let held_max = self.shared.held_max;
        let Some(gathering) = self.gathering(txn, execution) else { return };
        gathering.bytes += rows.1.iter().map(|(_, row)| row.len()).sum::<usize>();
        if gathering.bytes <= held_max {
            collect(gathering.found.entry(from).or_default(), rows);
        }
        if is_last {
            gathering.missing.remove(&from);
        }
        if gathering.missing.is_empty() {
            self.have_gathered(txn);
        }
    }

    /// All rows of others have come.
    fn have_gathered(&mut self, txn: TxnId) {
        if let Some(gathering) = self.afar.gathering.remove(&txn) {
            let is_held = !gathering.is_too_long && gathering.bytes <= self.shared.held_max;
            let found = is_held.then_some(gathering.found);
            // Nobody waits for it where the execution was lost.
            let _ = gathering.done.send(found);
        }
    }

    /// Has the peers whose rows a transaction has changed prepare that; false if there are none.
    pub(super) fn prepares_elsewhere(&mut self, txn: TxnId, csn: Csn) -> bool {
        let changed = self.open.get_mut(&txn).map(|open| std::mem::take(&mut open.elsewhere.changed));
        let changed = changed.unwrap_or_default();
        if changed.is_empty() {
            return false;
        }
        let nodes: Vec<NodeId> = changed.iter().map(|(node, _)| *node).collect();
        let missing = nodes.iter().copied().collect();
        self.afar.finishing.insert(txn, Finishing { csn, nodes, missing, is_committed: false });
        for (node, Changes { removed, added }) in changed {
            // What is added is said last, be it nothing.
            for (_, rows) in in_messages(removed) {
                self.say_apart(node, &Said::Change { txn, is_last: false, is_added: false, rows });
            }
            for (is_last, rows) in in_messages(added) {
                self.say_apart(node, &Said::Change { txn, is_last, is_added: true, rows });
            }
        }
        true
    }

    fn on_prepared(&mut self, from: NodeId, txn: TxnId) {
        let Some(finishing) = self.afar.finishing.get_mut(&txn).filter(|of| !of.is_committed) else { return };
        finishing.missing.remove(&from);
        if finishing.missing.is_empty() {
            let csn = finishing.csn;
            self.commit_here(txn, csn);
        }
    }

    /// It is committed here: the others are to do so; false if there are none.
    pub(super) fn finishes_elsewhere(&mut self, txn: TxnId) -> bool {
        let Some(finishing) = self.afar.finishing.get_mut(&txn) else { return false };
        finishing.is_committed = true;
        finishing.missing = finishing.nodes.iter().copied().collect();
        for node in finishing.nodes.clone() {
            self.say_apart(node, &Said::Finish { txn });
        }
        true
    }

    fn on_finished(&mut self, from: NodeId, txn: TxnId) {
        let Some(finishing) = self.afar.finishing.get_mut(&txn) else { return };
        finishing.missing.remove(&from);
        if finishing.missing.is_empty() {
            let (csn, replica) = (finishing.csn, self.replica());
            self.afar.finishing.remove(&txn);
            self.feed(Event::Applied { replica, csn });
        }
    }
}

/// What a transaction has done to rows of other peers.
#[derive(Default)]
pub struct Elsewhere {
    changed: Changed,
    /// Let go when it is over.
    _turn: Option<Turn>,
}

/// What is executed on rows of several peers.
struct Crossing<'a> {
    parts: &'a Parts,
    me: NodeId,
    transaction: &'a Transaction,
    wanted: Vec<Wanted>,
    writes: bool,
    held_max: usize,
}

impl Crossing<'_> {
    /// Once its snapshot is there. Whoever writes leaves it open, with this peer's rows only.
    async fn run(
        &self,
        lane: &mut Lane,
        gathered: oneshot::Receiver<Gathered>,
    ) -> Result<((Ran, Record), Changed), LaneError> {
        let record = &self.transaction.record;
        let nothing = |ran: Ran| ((ran, Record::default()), Changed::new());
        // Without a sender the peer is ending.
        let Some(found) = gathered.await.ok().flatten() else {
            return Ok(nothing(self.too_long()));
        };
        for rows in found.values() {
            match self.parts.add(lane, rows).await {
                Err(error) if is_of_rows(&error) => {
                    let failure = Failure::of_lane(&error);
                    return Ok(nothing(Ran::Failed(Answer::of_failure(&failure))));
                }
                added => added?,
            }
        }
        match parts::come_in(lane, record, self.writes).await {
            Err(LaneError::Database(fields)) => return Ok(nothing(Ran::NotBegun(fields.message.clone()))),
            come => come?,
        }
        let ran = database::go_on(lane, self.transaction, self.held_max).await?;
        if !self.writes || !matches!(ran.0, Ran::Done(_)) {
            return Ok((ran, Changed::new()));
        }
        parts::come_out(lane, record).await?;
        let Some(changed) = self.changed(lane, found).await? else {
            return Ok(nothing(self.too_long()));
        };
        self.parts.keep_own(lane, &self.wanted, self.me).await?;
        Ok((ran, changed))
    }

    /// What of the rows of other peers is otherwise now; nothing if it is too long.
    async fn changed(
        &self,
        lane: &mut Lane,
        mut before: HashMap<NodeId, Vec<Rows>>,
    ) -> Result<Option<Changed>, LaneError> {
        let mut changed: HashMap<NodeId, Changes> = HashMap::new();
        for wanted in &self.wanted {
            let table = wanted.table;
            let mut rows: HashMap<NodeId, HashSet<Row>> = HashMap::new();
            for (node, of_tables) in &mut before {
                let place = of_tables.iter().position(|(of, _)| *of == table);
                let was = place.map(|place| of_tables.swap_remove(place).1).unwrap_or_default();
                rows.insert(*node, was.into_iter().collect());
            }
            // All others' rows were added by this very transaction.
            let bytes_max = self.held_max.saturating_mul(2);
            let Some(now) = self.parts.read(lane, wanted, Which::Touched, bytes_max).await? else {
                return Ok(None);
            };
            for (owner, row) in now {
                // What was there before is not there in vain.
                if owner != self.me && !rows.get_mut(&owner).is_some_and(|was| was.remove(&row)) {
                    collect(&mut changed.entry(owner).or_default().added, (table, vec![row]));
                }
            }
            for (node, gone) in rows.into_iter().filter(|(_, gone)| !gone.is_empty()) {
                let gone = gone.into_iter().collect();
                collect(&mut changed.entry(node).or_default().removed, (table, gone));
            }
        }
        for (_, Changes { added, .. }) in changed.iter_mut().filter(|(_, of)| of.added.is_empty()) {
            // It has a last message, too.
            added.extend(self.wanted.first().map(|wanted| (wanted.table, Vec::new())));
        }
        Ok(Some(changed.into_iter().collect()))
    }

    fn too_long(&self) -> Ran {
        let max = self.held_max;
        let what =
            format!("rows of several peers exceed {max} bytes, or one of them {} bytes", parts::ROW_LEN_MAX);
        let failure = Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, what).hint(
            "Name the rows by the column that divides the table, not too many in one statement, or raise limits.held_result_bytes_max.",
        );
        Ran::Failed(Answer::of_failure(&failure))
    }
}

/// Reads a peer's own rows, in a transaction; nothing if they are more than so many bytes.
async fn read_own(
    lane: &mut Lane,
    parts: &Parts,
    wanted: &[Wanted],
    me: NodeId,
    bytes_max: usize,
) -> Result<Option<Vec<Rows>>, LaneError> {
    parts::open(lane).await?;
    let mut all = Vec::new();
    for wanted in wanted {
        let Some(rows) = parts.read(lane, wanted, Which::All, bytes_max).await? else { return Ok(None) };
        let own = rows.into_iter().filter(|(owner, _)| *owner == me).map(|(_, row)| row);
        all.push((wanted.table, own.collect()));
    }
    Ok(Some(all))
}

/// The same until the server does it.
async fn read_for_another(
    database: &Database,
    parts: &Parts,
    wanted: &[Wanted],
    me: NodeId,
    bytes_max: usize,
) -> Result<Option<Vec<Rows>>, LaneError> {
    let mut losses = 0;
    loop {
        let (lane, error) = match database.lend().await {
            Ok(mut lane) => match read_own(&mut lane, parts, wanted, me, bytes_max).await {
                Ok(rows) => {
                    database.leave(lane).await;
                    return Ok(rows);
                }
                Err(error) => (Some(lane), error),
            },
            Err(error) => (None, error),
        };
        try_again(database, lane, error, &mut losses).await?;
    }
}

/// Changes a peer's own rows, and leaves that open; nothing if those that go are not there.
async fn change_for_another(
    database: &Database,
    parts: &Parts,
    changes: &Changes,
) -> Result<Option<Lane>, LaneError> {
    let mut losses = 0;
    loop {
        let (lane, error) = match database.lend().await {
            Ok(mut lane) => match change(&mut lane, parts, changes).await {
                Ok(are_there) => return Ok(are_there.then_some(lane)),
                Err(error) => (Some(lane), error),
            },
            Err(error) => (None, error),
        };
        try_again(database, lane, error, &mut losses).await?;
    }
}

async fn change(lane: &mut Lane, parts: &Parts, changes: &Changes) -> Result<bool, LaneError> {
    parts::open(lane).await?;
    let are_there = parts.remove(lane, &changes.removed).await?;
    parts.add(lane, &changes.added).await?;
    Ok(are_there)
}

/// Whether the server will not take these rows, however often it is asked: data, integrity, and what is written.
fn is_of_rows(error: &LaneError) -> bool {
    let LaneError::Database(fields) = error else { return false };
    ["22", "23", "42"].iter().any(|class| fields.code.as_str().starts_with(class))
}

/// Waits until something may be tried once more: somebody beside onecopy may be in the way, and of connections there may be more later.
///
/// # Errors
/// If that is of no use.
async fn try_again(
    database: &Database,
    lane: Option<Lane>,
    error: LaneError,
    losses: &mut u32,
) -> Result<(), LaneError> {
    let may_pass = error.is_database() && !is_of_rows(&error) || matches!(error, LaneError::Shortage(_));
    if !may_pass || *losses >= LOSSES_MAX {
        return Err(error);
    }
    *losses += 1;
    if let Some(lane) = lane.filter(|_| error.is_database()) {
        database.leave(lane).await;
    }
    tokio::time::sleep(LOST_PAUSE).await;
    Ok(())
}

impl Open {
    /// A transaction of a client, nothing of which has happened.
    pub(super) fn new(
        transaction: Arc<Transaction>,
        client: oneshot::Sender<Answer>,
        wanted: Option<Vec<Wanted>>,
        is_forwarded: bool,
    ) -> Open {
        Open {
            transaction,
            client: Some(client),
            lane: None,
            answer: Answer::default(),
            writes: Record::default(),
            losses: 0,
            wanted,
            is_forwarded,
            executions: 0,
            elsewhere: Elsewhere::default(),
        }
    }
}
