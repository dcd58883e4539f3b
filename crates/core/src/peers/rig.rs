//! Peers with channels and databases between them, and somebody who picks what happens next; and what must come of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::effect::{Effect, How};
use crate::event::{Begin, Event, Outcome, Place, RowChange, Statement, StatementKind};
use crate::ids::{ClassId, Csn, Instant, NodeId, OpId, ReplicaId, SessionId, TxnId};
use crate::item::{Access, ColumnId, Item, Mode, TableId, ValueHash};
use crate::message::Message;
use crate::peers::granules::Granules;
use crate::peers::parts::{By, Division, Divisions};
use crate::protocol::Protocol;

/// A transaction of one statement on whole tables, as it comes to a node.
pub(crate) fn comes(txn: TxnId, kind: StatementKind, tables: &[TableId]) -> Event {
    let mode = if kind == StatementKind::Read { Mode::Shared } else { Mode::NoKeyExclusive };
    let access = tables.iter().map(|table| Access::new(Item::table(*table), mode)).collect();
    let begin =
        Begin { txn, session: SessionId(0), read_only: false, form: 0, declared: None, stale_ok_ns: None };
    Event::Autocommit { begin, statement: Statement::new(ClassId(1), kind, access) }
}

/// The same of one that changes values of a row, and nothing else.
pub(crate) fn changes(txn: TxnId, table: TableId, change: RowChange) -> Event {
    let mut event = comes(txn, StatementKind::Write, &[table]);
    if let Event::Autocommit { statement, .. } = &mut event {
        statement.change = Some(change);
    }
    event
}

/// A change of columns of a row.
pub(crate) fn change(table: TableId, row: i64, columns: &[u16], is_blind: bool) -> RowChange {
    let row = Item::rows(table, [(ColumnId(1), ValueHash::of_integer(row))]);
    RowChange { row, columns: columns.iter().copied().map(ColumnId).collect(), is_blind }
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
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
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
    let versions = versions.iter().copied().collect();
    let message = super::Message::Update { txn, versions, change: None };
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
    /// The so many-eth row of a divided table is looked at, where it is.
    Look(TxnId, usize),
    /// It is written, where it is.
    Put(TxnId, Csn, usize),
    Apply(Place, TxnId),
}

#[derive(Clone, Debug)]
struct Txn {
    tables: Vec<TableId>,
    /// Tables that it reads beside those that it writes.
    reads: Vec<TableId>,
    writes: bool,
    fails: bool,
    began: u64,
    ended: Option<u64>,
    /// By table: how many writes it has found there, or is the how-manieth.
    found: Vec<usize>,
    /// The same of what it reads beside.
    read: Vec<usize>,
    /// All that it does, if that is to change a row.
    change: Option<RowChange>,
}

/// A table, what was found of it, and whether it was written.
type Seen = (TableId, usize, bool);

impl Txn {
    fn is_about_parts(&self) -> bool {
        self.tables.first().is_some_and(|table| owner_of(*table, 1).is_some())
    }

    fn seen(&self) -> impl Iterator<Item = Seen> {
        let main = self.tables.iter().zip(&self.found).map(|(table, found)| (*table, *found, self.writes));
        main.chain(self.reads.iter().zip(&self.read).map(|(table, found)| (*table, *found, false)))
    }
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
    /// What was passed over last, where nothing was applied since.
    left_out: BTreeMap<(u16, TableId), RowChange>,
    passed_over: usize,
    /// The protocol is told that all changes are blind.
    pub(crate) lies: bool,
    wrong: Option<String>,
    /// Whether there is a table that is divided by a column.
    is_divided: bool,
    /// Whether there is a table that is cut into granules.
    is_cut: bool,
}

/// It has a row for each of these, of which nobody has two; the owner of a row is found by ranges.
pub(crate) const DIVIDED: TableId = TableId(100);
const ROWS: u64 = 4;

/// What stands for a row of it, as if that were a table of its own.
fn row_of(row: u64) -> TableId {
    TableId(1_000 + row)
}

/// Which peer has it; nothing of a table that all have.
fn owner_of(table: TableId, nodes: u16) -> Option<u16> {
    let row = table.0.checked_sub(1_000).filter(|row| *row < ROWS)?;
    Some(Divisions::owner(&ranges(), row as i64, nodes).0)
}

/// It has a row for each of these, and each peer has all of them.
pub(crate) const CUT: TableId = TableId(200);
const CUT_ROWS: u64 = 6;

/// What stands for a row of that one.
fn row_of_cut(row: u64) -> TableId {
    TableId(2_000 + row)
}

/// Fewer than rows.
pub(crate) fn granules() -> Granules {
    Granules::new(3, [(CUT, ColumnId(1))])
}

/// A row of it.
pub(crate) fn cut_row(row: u64) -> Item {
    Item::rows(CUT, [(ColumnId(1), ValueHash::of_integer(row as i64))])
}

fn ranges() -> By {
    By::Ranges(vec![1, 2, 3])
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
            left_out: BTreeMap::new(),
            passed_over: 0,
            lies: false,
            wrong: None,
            is_divided: false,
            is_cut: false,
        }
    }

    /// With a table that is divided, beside the others.
    pub(crate) fn divided<P: Protocol + 'static>(
        nodes: u16,
        seed: u64,
        new: impl Fn(u16, &Divisions) -> P,
    ) -> Run {
        let by_row = Division::Column(ColumnId(1), ranges());
        let divisions = [(DIVIDED, by_row)].into_iter().collect();
        Run { is_divided: true, ..Run::new(new(nodes, &divisions), nodes, seed) }
    }

    /// With a table that is cut, beside the others.
    pub(crate) fn cut(protocol: impl Protocol + 'static, nodes: u16, seed: u64) -> Run {
        Run { is_cut: true, ..Run::new(protocol, nodes, seed) }
    }

    /// Below a bound (xorshift).
    fn draw(&mut self, bound: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % bound
    }

    /// So many transactions: how many updates were passed over, or what is wrong.
    pub(crate) fn go(mut self, transactions: usize) -> Result<usize, String> {
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
            if let Some(what) = self.wrong.take().or_else(|| self.protocol.broken_invariant()) {
                return Err(what);
            }
        }
        self.judge()?;
        Ok(self.passed_over)
    }

    fn is_quiet(&self) -> bool {
        self.jobs.is_empty() && self.channels.values().all(VecDeque::is_empty)
    }

    fn arrive(&mut self) {
        if self.is_divided && self.draw(3) > 0 {
            return self.arrive_at_parts();
        }
        if self.is_cut && self.draw(4) > 0 {
            return self.arrive_at_rows();
        }
        let txn = TxnId(self.txns.len() as u64);
        let (node, writes, fails) =
            (self.draw(self.nodes.into()) as u16, self.draw(2) == 0, self.draw(8) == 0);
        let first = self.draw(TABLES);
        let mut tables = vec![TableId(first)];
        if self.draw(2) == 0 {
            tables.push(TableId((first + 1 + self.draw(TABLES - 1)) % TABLES));
        }
        let kind = if writes { StatementKind::Write } else { StatementKind::Read };
        let (began, ended, found) = (self.step, None, Vec::new());
        let change = match (writes, tables.as_slice()) {
            (true, [table]) => Some(self.draw_change(*table)),
            _ => None,
        };
        let event = match change.clone() {
            Some(change) => {
                let is_blind = change.is_blind || self.lies;
                changes(txn, tables[0], RowChange { is_blind, ..change })
            }
            None => comes(txn, kind, &tables),
        };
        let (reads, read, fails) = (Vec::new(), Vec::new(), fails && writes);
        self.txns.push(Txn { tables, reads, writes, fails, began, ended, found, read, change });
        self.feed(node, event);
    }

    /// A statement about one row that is somewhere, or about all; a read may be about a table that all have, too.
    fn arrive_at_parts(&mut self) {
        let txn = TxnId(self.txns.len() as u64);
        let writes = self.draw(2) == 0;
        let kind = if writes { StatementKind::Write } else { StatementKind::Read };
        let mode = if writes { Mode::NoKeyExclusive } else { Mode::Shared };
        let row = self.draw(ROWS);
        let mut reads = Vec::new();
        let (item, mut tables) = if self.draw(3) == 0 {
            (Item::table(DIVIDED), (0..ROWS).map(row_of).collect())
        } else {
            let equals = [(ColumnId(1), ValueHash::of_integer(row as i64))];
            (Item::rows(DIVIDED, equals), vec![row_of(row)])
        };
        let mut event = comes(txn, kind, &[]);
        if let Event::Autocommit { statement, .. } = &mut event {
            statement.access.push(Access::new(item, mode));
            if self.draw(3) == 0 {
                let table = TableId(self.draw(TABLES));
                reads.push(table);
                statement.access.push(Access::new(Item::table(table), Mode::Shared));
            }
        }
        let node = match tables.as_slice() {
            [row] => owner_of(*row, self.nodes).unwrap_or(0),
            _ => self.draw(self.nodes.into()) as u16,
        };
        if !writes {
            tables.append(&mut reads);
        }
        let fails = writes && self.draw(8) == 0;
        let (began, ended, found, change) = (self.step, None, Vec::new(), None);
        let read = Vec::new();
        self.txns.push(Txn { tables, reads, writes, fails, began, ended, found, read, change });
        self.feed(node, event);
    }

    /// A statement about rows of the table that is cut, or about all of it.
    fn arrive_at_rows(&mut self) {
        let txn = TxnId(self.txns.len() as u64);
        let node = self.draw(self.nodes.into()) as u16;
        let writes = self.draw(2) == 0;
        let kind = if writes { StatementKind::Write } else { StatementKind::Read };
        let mode = if writes { Mode::NoKeyExclusive } else { Mode::Shared };
        let rows: Vec<u64> = match self.draw(4) {
            0 => (0..CUT_ROWS).collect(),
            _ => (0..1 + self.draw(2))
                .map(|_| self.draw(CUT_ROWS))
                .collect::<BTreeSet<u64>>()
                .into_iter()
                .collect(),
        };
        let is_whole = rows.len() as u64 == CUT_ROWS;
        let beside = (self.draw(4) == 0).then(|| TableId(self.draw(TABLES)));
        let change = match (writes, rows.as_slice(), beside) {
            (true, [row], None) => {
                let of = self.draw_change(CUT);
                Some(RowChange { row: cut_row(*row), ..of })
            }
            _ => None,
        };
        let mut event = comes(txn, kind, &[]);
        if let Event::Autocommit { statement, .. } = &mut event {
            let items = match is_whole {
                true if !self.lies => vec![Item::table(CUT)],
                _ => rows.iter().take(2).map(|row| cut_row(*row)).collect(),
            };
            let items = items.into_iter().chain(beside.map(Item::table));
            statement.access.extend(items.map(|item| Access::new(item, mode)));
            statement.change.clone_from(&change);
        }
        let tables = rows.into_iter().map(row_of_cut).chain(beside).collect();
        let fails = writes && self.draw(8) == 0;
        let (began, ended, found) = (self.step, None, Vec::new());
        let (reads, read) = (Vec::new(), Vec::new());
        self.txns.push(Txn { tables, reads, writes, fails, began, ended, found, read, change });
        self.feed(node, event);
    }

    fn draw_change(&mut self, table: TableId) -> RowChange {
        let columns: [&[u16]; 3] = [&[2], &[3], &[2, 3]];
        let (row, columns) = (self.draw(2) as i64, columns[self.draw(3) as usize]);
        change(table, row, columns, self.draw(4) > 0)
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
        // Peers may be slow to apply what others have written.
        if matches!(job, Job::Apply(..)) && self.draw(4) > 0 {
            return self.jobs.push((node, job));
        }
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
            Job::Look(txn, at) => {
                let table = self.of(txn).tables[at];
                let found = self.count(node, txn, &[table])[0];
                self.txns[txn.0 as usize].found[at] = found;
                self.jobs.push((node, if at == 0 { Job::Answer(txn) } else { Job::Look(txn, at - 1) }));
            }
            Job::Commit(txn, csn) if self.of(txn).is_about_parts() => {
                let rows = self.of(txn).tables.len();
                self.txns[txn.0 as usize].found = vec![0; rows];
                self.jobs.push((node, Job::Put(txn, csn, rows - 1)));
            }
            Job::Put(txn, csn, at) => {
                let table = self.of(txn).tables[at];
                let found = self.count(node, txn, &[table])[0];
                self.txns[txn.0 as usize].found[at] = found;
                self.put(node, table, txn);
                match at {
                    0 => self.feed(node, Event::Applied { replica, csn }),
                    _ => self.jobs.push((node, Job::Put(txn, csn, at - 1))),
                }
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
        let tables = self.of(txn).tables.clone();
        self.txns[txn.0 as usize].found = self.count(node, txn, &tables);
    }

    fn count(&mut self, node: u16, txn: TxnId, tables: &[TableId]) -> Vec<usize> {
        if let Some(table) = tables.iter().find(|table| self.left_out.contains_key(&(node, **table))) {
            self.wrong = Some(format!("{txn:?} sees {table:?} at {node} without what was left out"));
        }
        let place = |table: &TableId| (owner_of(*table, self.nodes).unwrap_or(node), *table);
        tables.iter().map(|table| self.contents.get(&place(table)).map_or(0, Vec::len)).collect()
    }

    fn pass_over(&mut self, node: u16, txn: TxnId) {
        self.passed_over += 1;
        match self.of(txn).change.clone() {
            Some(change) => {
                let table = self.of(txn).tables[0];
                self.hides(node, table, txn);
                self.contents.entry((node, table)).or_default().push(txn);
                self.left_out.insert((node, table), change);
            }
            None => self.wrong = Some(format!("{txn:?} is passed over and does more than change a row")),
        }
    }

    /// Whatever comes to a table hides what was left out before it.
    fn hides(&mut self, node: u16, table: TableId, txn: TxnId) {
        let Some(earlier) = self.left_out.remove(&(node, table)) else { return };
        if !self.of(txn).change.as_ref().is_some_and(|change| change.hides(&earlier)) {
            self.wrong = Some(format!("{txn:?} does not hide what was left out before it at {node}"));
        }
    }

    fn change(&mut self, node: u16, txn: TxnId) {
        for table in self.of(txn).tables.clone() {
            self.put(node, table, txn);
        }
    }

    fn put(&mut self, node: u16, table: TableId, txn: TxnId) {
        self.hides(node, table, txn);
        let owner = owner_of(table, self.nodes).unwrap_or(node);
        self.contents.entry((owner, table)).or_default().push(txn);
    }

    fn feed(&mut self, node: u16, event: Event) {
        let mut effects = Vec::new();
        self.protocol.handle(Place::Peer(NodeId(node)), Instant(self.step), event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Execute { txn, .. } if self.of(txn).writes => {
                    let reads = self.of(txn).reads.clone();
                    self.txns[txn.0 as usize].read = self.count(node, txn, &reads);
                    self.jobs.push((node, Job::Execute(txn)))
                }
                Effect::Execute { txn, .. } => {
                    self.find(node, txn);
                    // What is elsewhere is not seen at one moment.
                    let rows =
                        self.of(txn).tables.iter().filter(|table| owner_of(**table, 1).is_some()).count();
                    let job = if rows > 1 { Job::Look(txn, rows - 1) } else { Job::Answer(txn) };
                    self.jobs.push((node, job));
                }
                Effect::CommitAt { txn, csn, .. } => self.jobs.push((node, Job::Commit(txn, csn))),
                Effect::ApplyShipped { origin, txn, .. } => self.jobs.push((node, Job::Apply(origin, txn))),
                Effect::Send { to: Place::Peer(to), message }
                | Effect::Ship { to: Place::Peer(to), message, .. } => {
                    self.channels.entry((node, to.0)).or_default().push_back(message);
                }
                Effect::PassOver { txn, .. } => self.pass_over(node, txn),
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
        for table in (0..TABLES).map(TableId).chain((0..CUT_ROWS).map(row_of_cut)) {
            let of = |node| self.contents.get(&(node, table)).map_or(&[][..], Vec::as_slice);
            if let Some(node) = (1..self.nodes).find(|node| of(*node) != of(0)) {
                return Err(format!("{table:?} differs at {node}"));
            }
        }
        let counts: Vec<&Txn> = self.txns.iter().filter(|txn| !txn.fails).collect();
        // Whoever comes before another: it ended before that began, or comes earlier by what both found.
        let before = |a: &Txn, b: &Txn| {
            let by_time = a.ended.is_some_and(|ended| ended < b.began);
            let comes_first = |(table, found, writes): Seen| {
                b.seen().any(|(other, other_found, other_writes)| {
                    table == other
                        && match (writes, other_writes) {
                            (true, _) => found < other_found,
                            (false, true) => found <= other_found,
                            (false, false) => false,
                        }
                })
            };
            by_time || a.seen().any(comes_first)
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
