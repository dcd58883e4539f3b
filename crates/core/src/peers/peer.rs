//! One peer: what its clients ask, what its database answers, what other peers send.

use super::copies::{Copies, Update};
use super::{Message, Permission, Turn, conflict, others};
use crate::effect::{Effect, How, Refusal};
use crate::event::{Outcome, Place, Statement, StatementKind};
use crate::ids::{Csn, Instant, NodeId, OpId, ReplicaId, TxnId};
use crate::item::TableId;
use crate::map::{HashMap, HashSet};
use crate::message::Message as AnyMessage;
use crate::table_queues::{LockMode, TableLocks};

/// Every transaction is one statement.
const ONLY: OpId = OpId(0);

#[derive(Debug)]
struct Txn {
    reads: bool,
    /// Its tables, but for divided ones.
    locks: TableLocks,
    executing: bool,
    /// Whether its answer is held until it commits: that of a write, unless it is too large for that.
    holds: bool,
    csn: Option<Csn>,
}

#[derive(Debug)]
pub(super) struct Peer<P> {
    me: NodeId,
    nodes: u16,
    divided: HashSet<TableId>,
    permission: P,
    copies: Copies,
    txns: HashMap<TxnId, Txn>,
    /// Who has permission and has not begun, in order.
    line: Vec<TxnId>,
    /// Commits of this node.
    decided: Csn,
    /// Statements about what all nodes have and are to agree on.
    pub(super) shared_accesses: u64,
    /// Those of them that write.
    pub(super) shared_writes: u64,
}

impl<P: Permission> Peer<P> {
    pub(super) fn new(me: NodeId, nodes: u16, divided: HashSet<TableId>) -> Peer<P> {
        Peer {
            me,
            nodes,
            divided,
            permission: P::new(me, nodes),
            copies: Copies::default(),
            txns: HashMap::default(),
            line: Vec::new(),
            decided: Csn(0),
            shared_accesses: 0,
            shared_writes: 0,
        }
    }

    pub(super) fn on_statement(
        &mut self,
        id: TxnId,
        statement: &Statement,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let reads = statement.kind == StatementKind::Read;
        let mode = if reads { LockMode::Read } else { LockMode::Write };
        let tables = statement.access.iter().map(|access| access.item.table);
        let shared = tables.filter(|table| !self.divided.contains(table));
        let locks = TableLocks::of_tables(shared.map(|table| (table, mode)));
        let asks = P::COORDINATES && !locks.is_empty();
        self.shared_accesses += u64::from(asks);
        self.shared_writes += u64::from(asks && !reads);
        self.txns.insert(id, Txn { reads, locks: locks.clone(), executing: false, holds: !reads, csn: None });
        if asks {
            self.in_turn(now, effects, |permission, turn| permission.ask(id, &locks, turn));
        } else {
            self.begin(id, effects);
        }
    }

    pub(super) fn on_message(
        &mut self,
        from: NodeId,
        message: AnyMessage,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        match message {
            AnyMessage::Peers(Message::Update { txn, .. }) if !P::COORDINATES => {
                return self.apply((from, txn), effects);
            }
            AnyMessage::Peers(Message::Update { txn, versions }) => {
                self.copies.receive(Some((from, txn)), versions);
            }
            AnyMessage::Peers(Message::Nothing { versions }) => self.copies.receive(None, versions),
            message => {
                return self.in_turn(now, effects, |permission, turn| {
                    permission.on_message(from, message, turn);
                });
            }
        }
        self.copies_changed(now, effects);
    }

    /// The database has executed a statement.
    pub(super) fn on_executed(
        &mut self,
        id: TxnId,
        outcome: &Outcome,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let replica = self.replica();
        let Some(txn) = self.txns.get_mut(&id).filter(|txn| txn.executing) else { return };
        match outcome {
            Outcome::Done { .. } if !txn.reads => {
                self.decided = self.decided.next();
                txn.csn = Some(self.decided);
                effects.push(Effect::CommitAt { txn: id, replica, csn: self.decided });
            }
            Outcome::Failed if !txn.reads => {
                effects.push(Effect::Leave { txn: id, replica });
                effects.push(Effect::Release { txn: id, op: ONLY, replica });
                effects.push(Effect::Finish { txn: id, op: ONLY, replica: None });
                self.over(id, false, now, effects);
            }
            Outcome::Done { .. } | Outcome::Failed => self.over(id, false, now, effects),
            Outcome::Lost { answer_begun } => self.lost(id, *answer_begun, now, effects),
            Outcome::TooLarge => {
                txn.holds = false;
                if !txn.reads {
                    // What it wrote is still there.
                    effects.push(Effect::Leave { txn: id, replica });
                }
                self.lost(id, false, now, effects);
            }
        }
    }

    /// What was executed and cannot be committed is as if it had not been.
    pub(super) fn on_home_lost(&mut self, id: TxnId, now: Instant, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id).filter(|txn| txn.csn.is_some()) else { return };
        txn.csn = None;
        let answer_begun = !txn.holds;
        self.lost(id, answer_begun, now, effects);
    }

    /// An execution came to nothing. Whoever has seen nothing of it need not know.
    fn lost(&mut self, id: TxnId, answer_begun: bool, now: Instant, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if answer_begun {
            effects.push(Effect::Refuse { txn: id, op: ONLY, reason: Refusal::AnswerCut });
            return self.over(id, false, now, effects);
        }
        if txn.reads && P::COORDINATES && !txn.locks.is_empty() {
            // Its copies may have become invalid since it began. A write's cannot.
            txn.executing = false;
            self.line.insert(0, id);
            self.admit(effects);
        } else {
            self.begin(id, effects);
        }
    }

    pub(super) fn on_committed(&mut self, csn: Csn, now: Instant, effects: &mut Vec<Effect>) {
        let Some(id) = self.txns.iter().find(|(_, txn)| txn.csn == Some(csn)).map(|(id, _)| *id) else {
            return;
        };
        effects.push(Effect::Acknowledge { txn: id, op: ONLY, csn });
        self.over(id, true, now, effects);
    }

    pub(super) fn on_update_applied(
        &mut self,
        origin: NodeId,
        txn: TxnId,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        self.copies.applied((origin, txn));
        self.copies_changed(now, effects);
    }

    pub(super) fn decided(&self) -> Csn {
        self.decided
    }

    pub(super) fn open(&self) -> u64 {
        self.txns.len() as u64
    }

    fn replica(&self) -> ReplicaId {
        ReplicaId(self.me.0)
    }
}

impl<P: Permission> Peer<P> {
    fn in_turn(&mut self, now: Instant, effects: &mut Vec<Effect>, act: impl FnOnce(&mut P, &mut Turn<'_>)) {
        let granted = &mut self.line;
        act(&mut self.permission, &mut Turn { now, copies: &mut self.copies, granted, effects });
        self.admit(effects);
    }

    /// Lets those begin who may, in the order in which they were permitted to. Nobody passes a write that it conflicts with; but whoever waits for others'
    /// updates to read does not hold up a write, for which those others may wait.
    fn admit(&mut self, effects: &mut Vec<Effect>) {
        let mut held_up: Vec<TableLocks> = Vec::new();
        for id in std::mem::take(&mut self.line) {
            let Some(txn) = self.txns.get(&id) else { continue };
            let held_up_too = held_up.iter().any(|locks| conflict(locks, &txn.locks));
            if self.copies.are_current(&txn.locks) && !held_up_too {
                self.copies.begin(&txn.locks);
                self.begin(id, effects);
                continue;
            }
            if !txn.reads {
                held_up.push(txn.locks.clone());
            }
            self.line.push(id);
        }
    }

    fn begin(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let replica = self.replica();
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.executing = true;
        let how = if txn.reads { How::Alone } else { How::Home { open: true } };
        effects.push(Effect::Execute { txn: id, op: ONLY, replica, how, hold: txn.holds });
    }

    /// A statement has ended; what it wrote goes to the others before whatever permission was waited for.
    fn over(&mut self, id: TxnId, wrote: bool, now: Instant, effects: &mut Vec<Effect>) {
        let Some(Txn { reads, locks, .. }) = self.txns.remove(&id) else { return };
        if locks.is_empty() {
            return effects.push(Effect::Forget { txn: id });
        }
        let tells = !reads && (wrote || P::TELLS_FAILURES);
        let versions = match P::COORDINATES {
            true => self.copies.end(&locks, tells),
            false => locks.iter().map(|(table, _)| (table, 0)).collect(),
        };
        for to in others(self.me, self.nodes).filter(|_| tells).map(Place::Peer) {
            let versions = versions.clone();
            effects.push(match wrote {
                true => {
                    let message = AnyMessage::Peers(Message::Update { txn: id, versions });
                    Effect::Ship { txn: id, to, message }
                }
                false => Effect::Send { to, message: AnyMessage::Peers(Message::Nothing { versions }) },
            });
        }
        effects.push(Effect::Forget { txn: id });
        if P::COORDINATES {
            self.in_turn(now, effects, |permission, turn| permission.over(id, wrote, turn));
            self.copies_changed(now, effects);
        }
    }

    /// Something was applied, has come, or need no longer be waited for.
    fn copies_changed(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        for update in self.copies.next_updates() {
            self.apply(update, effects);
        }
        self.in_turn(now, effects, |permission, turn| permission.copies_changed(turn));
    }

    fn apply(&mut self, (origin, txn): Update, effects: &mut Vec<Effect>) {
        let replica = self.replica();
        effects.push(Effect::ApplyShipped { origin: Place::Peer(origin), txn, replica });
    }

    /// The tables that a statement under way writes.
    fn writing(&self) -> impl Iterator<Item = TableId> {
        let writing = self.txns.values().filter(|txn| txn.executing && !txn.reads);
        writing.flat_map(|txn| txn.locks.iter().map(|(table, _)| table))
    }
}

/// A table that two write at once, of peers that ask before they write.
pub(super) fn written_twice<P: Permission>(peers: &[Peer<P>]) -> Option<String> {
    let mut written = HashSet::default();
    let mut all = peers.iter().filter(|_| P::COORDINATES).flat_map(Peer::writing);
    let table = all.find(|table| !written.insert(*table))?;
    Some(format!("two statements write {table:?} at once"))
}
