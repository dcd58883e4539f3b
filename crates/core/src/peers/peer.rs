//! One peer: what its clients ask, what its database answers, what other peers send.

use super::copies::{Copies, Next, Update};
use super::granules::Granules;
use super::parts::{Divisions, Home, Latches, Ways};
use super::{Message, Permission, Turn, conflict, others};
use crate::effect::{Effect, How, Refusal};
use crate::event::{Outcome, Place, RowChange, Statement, StatementKind};
use crate::ids::{Csn, Instant, NodeId, OpId, ReplicaId, TxnId};
use crate::item::{Access, Mode, TableId};
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
    change: Option<RowChange>,
    /// To its latches, if it is about rows that are at certain peers.
    ways: Option<Ways>,
}

#[derive(Debug)]
pub(super) struct Peer<P> {
    me: NodeId,
    nodes: u16,
    divided: Divisions,
    /// Of the tables that are not divided.
    pub(super) granules: Granules,
    /// On the rows that are here only.
    latches: Latches,
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
    pub(super) fn new(me: NodeId, nodes: u16, divided: Divisions) -> Peer<P> {
        Peer {
            me,
            nodes,
            divided,
            granules: Granules::default(),
            latches: Latches::default(),
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
        let mode = match reads || self.divided.writes_parts_only(&statement.access) {
            true => LockMode::Read,
            false => LockMode::Write,
        };
        let accesses = statement.access.iter();
        let shared = accesses.filter(|access| self.divided.get(access.item.table).is_none());
        let locks = self.granules.locks(shared, mode);
        let asks = P::COORDINATES && !locks.is_empty();
        self.shared_accesses += u64::from(asks);
        self.shared_writes += u64::from(asks && mode == LockMode::Write);
        let ways = self.ways(&statement.access);
        // Of several tables another version might come in between.
        let change = statement.change.clone().filter(|_| locks.iter().count() == 1);
        let (executing, holds) = (false, !reads);
        self.txns.insert(id, Txn { reads, locks, executing, holds, csn: None, change, ways });
        self.go_on(id, now, effects);
    }

    /// Where a statement needs latches: where its rows are, or everywhere.
    fn ways(&self, access: &[Access]) -> Option<Ways> {
        let mut parts = self.divided.of_parts(access);
        let nodes = match self.divided.home(access, self.nodes) {
            Home::Anywhere => return None,
            Home::At(node) => vec![node],
            Home::Several => (0..self.nodes).map(NodeId).collect(),
        };
        if nodes.len() > 1 {
            // What has changed elsewhere is removed there and added anew, so it must not even be referred to.
            parts
                .iter_mut()
                .filter(|of| of.mode == Mode::NoKeyExclusive)
                .for_each(|of| of.mode = Mode::Exclusive);
        }
        Some(Ways { access: parts, nodes, has: 0 })
    }

    /// Asks for its next latches, or, once it has all, for permission.
    fn go_on(&mut self, id: TxnId, now: Instant, effects: &mut Vec<Effect>) {
        let me = self.me;
        let Some(txn) = self.txns.get_mut(&id) else { return };
        while let Some(ways) = &mut txn.ways
            && let Some(node) = ways.nodes.get(ways.has)
        {
            if *node != me {
                let message = Message::Latch { txn: id, access: ways.access.clone() };
                effects.push(Effect::Send { to: Place::Peer(*node), message: AnyMessage::Peers(message) });
                return;
            }
            if !self.latches.request((me, id), &ways.access) {
                return;
            }
            ways.has += 1;
        }
        if P::COORDINATES && !txn.locks.is_empty() {
            let locks = txn.locks.clone();
            self.in_turn(now, effects, |permission, turn| permission.ask(id, &locks, turn));
        } else {
            self.begin(id, effects);
        }
    }

    /// A transaction has the latches of one more peer.
    fn latched(&mut self, id: TxnId, now: Instant, effects: &mut Vec<Effect>) {
        if let Some(ways) = self.txns.get_mut(&id).and_then(|txn| txn.ways.as_mut()) {
            ways.has += 1;
            self.go_on(id, now, effects);
        }
    }

    /// Somebody lets go of the latches that are here.
    fn unlatch(&mut self, of: (NodeId, TxnId), now: Instant, effects: &mut Vec<Effect>) {
        for (node, txn) in self.latches.release(of) {
            if node == self.me {
                self.latched(txn, now, effects);
            } else {
                let message = AnyMessage::Peers(Message::Latched { txn });
                effects.push(Effect::Send { to: Place::Peer(node), message });
            }
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
            AnyMessage::Peers(Message::Update { txn, versions, change }) => {
                self.copies.receive(Some((from, txn)), versions, change);
            }
            AnyMessage::Peers(Message::Nothing { versions }) => self.copies.receive(None, versions, None),
            AnyMessage::Peers(Message::Latch { txn, access }) => {
                if self.latches.request((from, txn), &access) {
                    let message = AnyMessage::Peers(Message::Latched { txn });
                    effects.push(Effect::Send { to: Place::Peer(from), message });
                }
                return;
            }
            AnyMessage::Peers(Message::Latched { txn }) => return self.latched(txn, now, effects),
            AnyMessage::Peers(Message::Unlatch { txn }) => return self.unlatch((from, txn), now, effects),
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
        if P::COORDINATES && !txn.locks.is_empty() && !txn.locks.writes() {
            // Copies that it reads may have become invalid since it began. Those that it writes cannot.
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
            if txn.locks.writes() {
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
        let Some(Txn { locks, change, ways, .. }) = self.txns.remove(&id) else { return };
        for node in ways.into_iter().flat_map(|ways| ways.nodes) {
            if node == self.me {
                self.unlatch((node, id), now, effects);
            } else {
                let message = AnyMessage::Peers(Message::Unlatch { txn: id });
                effects.push(Effect::Send { to: Place::Peer(node), message });
            }
        }
        if locks.is_empty() {
            return effects.push(Effect::Forget { txn: id });
        }
        let tells = locks.writes() && (wrote || P::TELLS_FAILURES);
        let versions = match P::COORDINATES {
            true => self.copies.end(&locks, tells),
            false => locks.iter().map(|(table, _)| (table, 0)).collect(),
        };
        for to in others(self.me, self.nodes).filter(|_| tells).map(Place::Peer) {
            let (versions, change) = (versions.clone(), change.clone());
            effects.push(match wrote {
                true => {
                    let message = AnyMessage::Peers(Message::Update { txn: id, versions, change });
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
        for next in self.copies.next_updates() {
            match next {
                Next::Apply(update) => self.apply(update, effects),
                Next::PassOver((origin, txn)) => {
                    let (origin, replica) = (Place::Peer(origin), self.replica());
                    effects.push(Effect::PassOver { origin, txn, replica });
                }
            }
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
        let written = writing.flat_map(|txn| txn.locks.iter());
        written.filter(|(_, mode)| *mode == LockMode::Write).map(|(table, _)| table)
    }
}

/// A table that two write at once, of peers that ask before they write.
pub(super) fn written_twice<P: Permission>(peers: &[Peer<P>]) -> Option<String> {
    let mut written = HashSet::default();
    let mut all = peers.iter().filter(|_| P::COORDINATES).flat_map(Peer::writing);
    let table = all.find(|table| !written.insert(*table))?;
    Some(format!("two statements write {table:?} at once"))
}
