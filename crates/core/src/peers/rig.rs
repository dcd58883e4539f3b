//! Peers with channels and databases between them, and somebody who picks what happens next; and what must come of it.

use std::collections::{BTreeMap, VecDeque};

use crate::effect::{Effect, How};
use crate::event::{Begin, Event, Outcome, Place, Statement, StatementKind};
use crate::ids::{ClassId, Csn, Instant, NodeId, OpId, ReplicaId, SessionId, TxnId};
use crate::item::{Access, Item, Mode, TableId};
use crate::message::Message;
use crate::protocol::Protocol;

/// A transaction of one statement on whole tables, as it comes to a node.
pub(crate) fn comes(txn: TxnId, kind: StatementKind, tables: &[TableId]) -> Event {
    let mode = if kind == StatementKind::Read { Mode::Shared } else { Mode::NoKeyExclusive };
    let access = tables.iter().map(|table| Access::new(Item::table(*table), mode)).collect();
    let begin =
        Begin { txn, session: SessionId(0), read_only: false, form: 0, declared: None, stale_ok_ns: None };
    Event::Autocommit { begin, statement: Statement::new(ClassId(1), kind, access) }
}

/// One protocol, to which events are given one by one and whose effects are looked at.
pub(crate) struct Rig {
    pub(crate) protocol: Box<dyn Protocol>,
    effects: Vec<Effect>,
}

impl Rig {
    pub(crate) fn new(protocol: impl Protocol + 'static) -> Rig {
        Rig { protocol: Box::new(protocol), effects: Vec::new() }
    }
    /// At a node, at its local time.
    pub(crate) fn at(&mut self, node: NodeId, now: u64, event: Event) {
        self.protocol.handle(Place::Peer(node), Instant(now), event, &mut self.effects);
    }
    #[track_caller]
    pub(crate) fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
    pub(crate) fn says(&mut self, from: NodeId, to: NodeId, message: Message) {
        self.at(to, 1_000, Event::Message { from: Place::Peer(from), message });
    }
    pub(crate) fn executed(&mut self, node: NodeId, txn: TxnId, outcome: Outcome) {
        let replica = ReplicaId(node.0);
        self.at(node, 1_000, Event::Executed { txn, op: OpId(0), replica, outcome, elapsed_ns: 1 });
    }
    pub(crate) fn committed(&mut self, node: NodeId, csn: u64) {
        self.at(node, 1_000, Event::Applied { replica: ReplicaId(node.0), csn: Csn(csn) });
    }
    pub(crate) fn update_applied(&mut self, origin: NodeId, txn: TxnId, at: NodeId) {
        let origin = Place::Peer(origin);
        self.at(at, 1_000, Event::ShippedApplied { origin, txn, replica: ReplicaId(at.0) });
    }
}

pub(crate) const DONE: Outcome = Outcome::Done { returned: Vec::new() };

pub(crate) fn send(node: NodeId, message: Message) -> Effect {
    Effect::Send { to: Place::Peer(node), message }
}
pub(crate) fn read(txn: TxnId, node: NodeId) -> Effect {
    Effect::Execute { txn, op: OpId(0), replica: ReplicaId(node.0), how: How::Alone, hold: false }
}
pub(crate) fn write(txn: TxnId, node: NodeId) -> Effect {
    let how = How::Home { open: true };
    Effect::Execute { txn, op: OpId(0), replica: ReplicaId(node.0), how, hold: true }
}
pub(crate) fn commit(txn: TxnId, node: NodeId, csn: u64) -> Effect {
    Effect::CommitAt { txn, replica: ReplicaId(node.0), csn: Csn(csn) }
}
pub(crate) fn acknowledge(txn: TxnId, csn: u64) -> Effect {
    Effect::Acknowledge { txn, op: OpId(0), csn: Csn(csn) }
}
pub(crate) fn update(txn: TxnId, to: NodeId, versions: &[(TableId, u64)]) -> Effect {
    let message = super::Message::Update { txn, versions: versions.iter().copied().collect() };
    Effect::Ship { txn, to: Place::Peer(to), message: Message::Peers(message) }
}
pub(crate) fn apply(origin: NodeId, txn: TxnId, at: NodeId) -> Effect {
    Effect::ApplyShipped { origin: Place::Peer(origin), txn, replica: ReplicaId(at.0) }
}
pub(crate) fn forget(txn: TxnId) -> Effect {
    Effect::Forget { txn }
}

/// What a database is at.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Of a read, whose snapshot was taken when the order was given.
    Answer(TxnId),
    Execute(TxnId),
    Commit(TxnId, Csn),
    Apply(Place, TxnId),
}

#[derive(Clone, Debug)]
struct Txn {
    tables: Vec<TableId>,
    writes: bool,
    fails: bool,
    began: u64,
    ended: Option<u64>,
    /// By table: how many writes it has found there, or is the how-manieth.
    found: Vec<usize>,
}

/// A run in which chance decides what happens next, and what is lost.
pub(crate) struct Run {
    protocol: Box<dyn Protocol>,
    nodes: u16,
    state: u64,
    step: u64,
    channels: BTreeMap<(u16, u16), VecDeque<Message>>,
    jobs: Vec<(u16, Job)>,
    txns: Vec<Txn>,
    /// By node and table, who wrote it.
    contents: BTreeMap<(u16, TableId), Vec<TxnId>>,
}

const TABLES: u64 = 3;

impl Run {
    pub(crate) fn new(protocol: impl Protocol + 'static, nodes: u16, seed: u64) -> Run {
        Run {
            protocol: Box::new(protocol),
            nodes,
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            step: 0,
            channels: BTreeMap::new(),
            jobs: Vec::new(),
            txns: Vec::new(),
            contents: BTreeMap::new(),
        }
    }

    /// Below a bound (xorshift).
    fn draw(&mut self, bound: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % bound
    }

    /// So many transactions, and what is wrong in the end.
    pub(crate) fn go(mut self, transactions: usize) -> Result<(), String> {
        while self.txns.len() < transactions || !self.is_quiet() {
            self.step += 1;
            if self.step > 1_000_000 {
                return Err("it never ends".to_owned());
            }
            let more = self.txns.len() < transactions && (self.is_quiet() || self.draw(8) == 0);
            match () {
                () if more => self.arrive(),
                () => self.act(),
            }
            if let Some(what) = self.protocol.broken_invariant() {
                return Err(what);
            }
        }
        self.judge()
    }

    fn is_quiet(&self) -> bool {
        self.jobs.is_empty() && self.channels.values().all(VecDeque::is_empty)
    }

    fn arrive(&mut self) {
        let txn = TxnId(self.txns.len() as u64);
        let (node, writes, fails) =
            (self.draw(self.nodes.into()) as u16, self.draw(2) == 0, self.draw(8) == 0);
        let first = self.draw(TABLES);
        let mut tables = vec![TableId(first)];
        if self.draw(2) == 0 {
            tables.push(TableId((first + 1 + self.draw(TABLES - 1)) % TABLES));
        }
        let kind = if writes { StatementKind::Write } else { StatementKind::Read };
        let event = comes(txn, kind, &tables);
        let (began, ended, found) = (self.step, None, Vec::new());
        self.txns.push(Txn { tables, writes, fails: fails && writes, began, ended, found });
        self.feed(node, event);
    }

    /// A database does something, or a message arrives.
    fn act(&mut self) {
        let full: Vec<(u16, u16)> =
            self.channels.iter().filter(|(_, queue)| !queue.is_empty()).map(|(way, _)| *way).collect();
        let place = self.draw((self.jobs.len() + full.len()) as u64) as usize;
        if let Some((from, to)) = place.checked_sub(self.jobs.len()).map(|place| full[place]) {
            let message = self.channels.get_mut(&(from, to)).and_then(VecDeque::pop_front);
            let message = message.expect("only full ones are drawn");
            return self.feed(to, Event::Message { from: Place::Peer(NodeId(from)), message });
        }
        let (node, job) = self.jobs.swap_remove(place);
        let replica = ReplicaId(node);
        let executed = |txn, outcome| Event::Executed { txn, op: OpId(0), replica, outcome, elapsed_ns: 1 };
        let lost = self.draw(10) == 0;
        match job {
            Job::Execute(txn) | Job::Answer(txn) if lost => {
                self.feed(node, executed(txn, Outcome::Lost { answer_begun: false }));
            }
            Job::Commit(txn, _) if lost => self.feed(node, Event::HomeLost { txn, replica }),
            Job::Execute(txn) => {
                let outcome = if self.of(txn).fails { Outcome::Failed } else { DONE };
                self.feed(node, executed(txn, outcome));
            }
            Job::Answer(txn) => {
                self.txns[txn.0 as usize].ended = Some(self.step);
                self.feed(node, executed(txn, DONE));
            }
            Job::Commit(txn, csn) => {
                self.find(node, txn);
                self.change(node, txn);
                self.feed(node, Event::Applied { replica, csn });
            }
            Job::Apply(origin, txn) => {
                self.change(node, txn);
                self.feed(node, Event::ShippedApplied { origin, txn, replica });
            }
        }
    }

    fn of(&self, txn: TxnId) -> &Txn {
        &self.txns[txn.0 as usize]
    }

    fn find(&mut self, node: u16, txn: TxnId) {
        let count = |table: &TableId| self.contents.get(&(node, *table)).map_or(0, Vec::len);
        let found = self.of(txn).tables.iter().map(count).collect();
        self.txns[txn.0 as usize].found = found;
    }

    fn change(&mut self, node: u16, txn: TxnId) {
        for table in self.of(txn).tables.clone() {
            self.contents.entry((node, table)).or_default().push(txn);
        }
    }

    fn feed(&mut self, node: u16, event: Event) {
        let mut effects = Vec::new();
        self.protocol.handle(Place::Peer(NodeId(node)), Instant(self.step), event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Execute { txn, .. } if self.of(txn).writes => {
                    self.jobs.push((node, Job::Execute(txn)))
                }
                Effect::Execute { txn, .. } => {
                    self.find(node, txn);
                    self.jobs.push((node, Job::Answer(txn)));
                }
                Effect::CommitAt { txn, csn, .. } => self.jobs.push((node, Job::Commit(txn, csn))),
                Effect::ApplyShipped { origin, txn, .. } => self.jobs.push((node, Job::Apply(origin, txn))),
                Effect::Send { to: Place::Peer(to), message }
                | Effect::Ship { to: Place::Peer(to), message, .. } => {
                    self.channels.entry((node, to.0)).or_default().push_back(message);
                }
                // Of a write that failed.
                Effect::Finish { txn, .. } | Effect::Acknowledge { txn, .. } => {
                    self.txns[txn.0 as usize].ended = Some(self.step);
                }
                Effect::Leave { .. } | Effect::Release { .. } | Effect::Forget { .. } => {}
                other => panic!("peers have no use for {other:?}"),
            }
        }
    }

    /// Everybody has been answered, copies are the same, and there is one order that explains everything and agrees with time.
    fn judge(&self) -> Result<(), String> {
        if let Some(waits) = self.txns.iter().position(|txn| txn.ended.is_none()) {
            return Err(format!("{waits} was never answered: {:?}", self.txns[waits]));
        }
        for table in (0..TABLES).map(TableId) {
            let of = |node| self.contents.get(&(node, table)).map_or(&[][..], Vec::as_slice);
            if let Some(node) = (1..self.nodes).find(|node| of(*node) != of(0)) {
                return Err(format!("{table:?} differs at {node}"));
            }
        }
        let counts: Vec<&Txn> = self.txns.iter().filter(|txn| !txn.fails).collect();
        // Whoever comes before another: it ended before that began, or comes earlier by what both found.
        let before = |a: &Txn, b: &Txn| {
            let by_time = a.ended.is_some_and(|ended| ended < b.began);
            let pairs = a.tables.iter().zip(&a.found).flat_map(|(table, a_found)| {
                b.tables
                    .iter()
                    .zip(&b.found)
                    .filter(move |(other, _)| *other == table)
                    .map(move |(_, b)| (*a_found, *b))
            });
            let by_tables = pairs.into_iter().any(|(a_found, b_found)| match (a.writes, b.writes) {
                (true, _) => a_found < b_found,
                (false, true) => a_found <= b_found,
                (false, false) => false,
            });
            by_time || by_tables
        };
        let mut left = counts;
        while !left.is_empty() {
            let is_first =
                |one: &&Txn| !left.iter().any(|other| !std::ptr::eq(*one, *other) && before(other, one));
            let Some(place) = left.iter().position(is_first) else {
                return Err(format!("no order explains what these found: {left:?}"));
            };
            left.swap_remove(place);
        }
        Ok(())
    }
}
