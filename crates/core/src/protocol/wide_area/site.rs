//! One site: what it does at each moment of a delivery, and with what its database reports.

use super::line::{End, Line, Stage, Standing};
use super::{Choice, Execution, Items, Message, Queries};
use crate::effect::{Effect, How, Refusal};
use crate::event::{Moment, Outcome, Place, Statement, StatementKind};
use crate::ids::{Csn, NodeId, OpId, ReplicaId, TxnId};
use crate::item::{Access, AccessSet, Item, Mode};
use crate::map::{HashMap, HashSet};
use crate::message::Message as AnyMessage;
use crate::table_queues::{LockMode, TableLocks};

#[derive(Debug)]
struct Update {
    /// Where its client is.
    origin: NodeId,
    /// Where it executes; `None`: everywhere.
    at: Option<NodeId>,
    /// Its place in the order, once that is certain.
    place: Option<Csn>,
    stable: bool,
    /// From whom its writes have come.
    write_set_of: Option<Place>,
    executions: u32,
    /// How many timers have run out while it waited for its writes.
    overdue: u32,
    /// Whether its answer is held until it is decided; not if it is too large for that.
    holds: bool,
}

#[derive(Debug)]
pub(super) struct Site {
    choice: Choice,
    me: NodeId,
    sites: u16,
    line: Line,
    updates: HashMap<TxnId, Update>,
    /// What was told of updates that were not delivered yet: writes may come before.
    early: HashMap<TxnId, Early>,
    /// Queries that read a snapshot.
    snapshots: HashSet<TxnId>,
    /// Sites that are not heard.
    lost: HashSet<NodeId>,
    applied: Csn,
}

/// Timers that run out before writes are not waited for any more.
const OVERDUE: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Early {
    WriteSet(Place, Csn, OpId),
    Failed(Place, OpId),
}

impl Site {
    pub(super) fn new(choice: Choice, me: NodeId, sites: u16) -> Site {
        Site {
            choice,
            me,
            sites,
            line: Line::default(),
            updates: HashMap::default(),
            early: HashMap::default(),
            snapshots: HashSet::default(),
            lost: HashSet::default(),
            applied: Csn(0),
        }
    }

    pub(super) fn choice(&self) -> Choice {
        self.choice
    }

    pub(super) fn applied(&self) -> Csn {
        self.applied
    }

    /// How many transactions of its clients are open.
    pub(super) fn open(&self) -> u64 {
        let own = self.updates.values().filter(|update| update.origin == self.me).count();
        let queries =
            (0..self.line.len()).filter(|at| self.line.get(*at).standing == Standing::Query).count();
        (own + queries + self.snapshots.len()) as u64
    }

    pub(super) fn broken_invariant(&self) -> Option<String> {
        Some(format!("at {}: {}", self.me, self.line.disorder()?))
    }

    fn replica(&self) -> ReplicaId {
        ReplicaId(self.me.0)
    }
}

/// From clients.
impl Site {
    pub(super) fn on_client(&mut self, txn: TxnId, statement: &Statement, effects: &mut Vec<Effect>) {
        if statement.kind != StatementKind::Read {
            let message = AnyMessage::WideArea(Message::Request { txn, access: statement.access.clone() });
            return effects.push(Effect::Multicast { txn, message });
        }
        match self.choice.queries {
            Queries::Snapshot | Queries::LooseSnapshot => {
                self.snapshots.insert(txn);
                let (op, replica) = (OpId(0), self.replica());
                effects.push(Effect::Execute { txn, op, replica, how: How::Alone, hold: false });
            }
            Queries::Locked => {
                self.line.push(txn, self.items(&statement.access), Standing::Query);
                self.advance(effects);
            }
        }
    }

    /// What conflicts are counted on.
    fn items(&self, access: &AccessSet) -> AccessSet {
        match self.choice.items {
            Items::Rows => access.clone(),
            Items::Tables => TableLocks::of(access)
                .iter()
                .map(|(table, mode)| {
                    let mode = match mode {
                        LockMode::Read => Mode::Shared,
                        LockMode::Write => Mode::Exclusive,
                    };
                    Access::new(Item::table(table), mode)
                })
                .collect(),
        }
    }
}

/// From other sites.
impl Site {
    pub(super) fn on_delivered(
        &mut self,
        from: NodeId,
        moment: Moment,
        place: Csn,
        txn: TxnId,
        access: &AccessSet,
        effects: &mut Vec<Effect>,
    ) {
        if moment == Moment::Received {
            let at = self.executes_at(from, access).filter(|node| !self.lost.contains(node));
            let update = Update {
                origin: from,
                at,
                place: None,
                stable: false,
                write_set_of: None,
                executions: 0,
                overdue: 0,
                holds: true,
            };
            self.updates.insert(txn, update);
        }
        // It is over already if it was known to have failed.
        let Some(update) = self.updates.get_mut(&txn) else { return };
        match moment {
            Moment::Received => {}
            Moment::Ordered => update.place = Some(place),
            Moment::Stable => update.stable = true,
        }
        let takes_place_at = self.choice.delivery.takes_place_at();
        if moment == takes_place_at {
            let standing = match moment {
                Moment::Received => Standing::Tentative,
                Moment::Ordered | Moment::Stable => Standing::Certain,
            };
            self.line.push(txn, self.items(access), standing);
        } else if moment == Moment::Ordered && takes_place_at == Moment::Received {
            for (other, stage) in self.line.make_certain(txn) {
                self.undo(other, stage, effects);
            }
        }
        if moment == takes_place_at {
            match self.early.remove(&txn) {
                Some(Early::WriteSet(from, place, op)) => self.on_write_set(from, txn, place, op, effects),
                Some(Early::Failed(from, op)) => self.on_failed(from, txn, op, effects),
                None => {}
            }
        }
        self.advance(effects);
    }

    /// Section 3.2: the master of one of the objects, here of the first table that it writes.
    fn executes_at(&self, origin: NodeId, access: &AccessSet) -> Option<NodeId> {
        match self.choice.execution {
            Execution::Symmetric => None,
            Execution::LocalCopy => Some(origin),
            Execution::PrimaryCopy => {
                let locks = TableLocks::of(access);
                let written = locks.iter().find(|(_, mode)| *mode == LockMode::Write);
                let table = written.map_or(0, |(table, _)| table.0);
                Some(NodeId((table % u64::from(self.sites)) as u16))
            }
        }
    }

    /// It has executed here in an order that is not the one.
    fn undo(&mut self, txn: TxnId, stage: Stage, effects: &mut Vec<Effect>) {
        if matches!(stage, Stage::Executing(_) | Stage::Executed { .. }) {
            effects.push(Effect::Leave { txn, replica: self.replica() });
        }
    }

    pub(super) fn on_write_set(
        &mut self,
        from: Place,
        txn: TxnId,
        place: Csn,
        op: OpId,
        effects: &mut Vec<Effect>,
    ) {
        let stands = self.line.find(txn).is_some();
        let Some(update) = self.updates.get_mut(&txn).filter(|_| stands) else {
            self.early.insert(txn, Early::WriteSet(from, place, op));
            return;
        };
        // What was executed at another place of the order, which a leader told that was lost, is of no use here: it will be executed here after a while.
        if !executes(update, from) || update.place.is_some_and(|own| own != place) {
            return;
        }
        update.write_set_of = Some(from);
        if update.origin == self.me {
            // Its client need not wait until it is applied here (3.2).
            answer(from, txn, op, effects);
            effects.push(Effect::Acknowledge { txn, op: OpId(0), csn: place });
        }
        self.advance(effects);
    }

    pub(super) fn on_failed(&mut self, from: Place, txn: TxnId, op: OpId, effects: &mut Vec<Effect>) {
        if self.line.find(txn).is_none() {
            self.early.insert(txn, Early::Failed(from, op));
            return;
        }
        // Where its writes have come as well, these were decided first.
        let counts = |update: &Update| executes(update, from) && update.write_set_of.is_none();
        if !self.updates.get(&txn).is_some_and(counts) {
            return;
        }
        if self.updates.get(&txn).is_some_and(|update| update.origin == self.me) {
            answer(from, txn, op, effects);
        }
        self.forget(txn, effects);
        self.advance(effects);
    }

    /// Nothing of an update is needed any more.
    fn forget(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        self.updates.remove(&txn);
        self.line.remove(txn);
        effects.push(Effect::Forget { txn });
    }
}

/// Whether that is who executes it, and not who was given up meanwhile.
fn executes(update: &Update, from: Place) -> bool {
    update.at.is_some_and(|node| from == Place::Peer(node))
}

/// The answer, or error, that came from another site goes to the client.
fn answer(from: Place, txn: TxnId, op: OpId, effects: &mut Vec<Effect>) {
    let Place::Peer(NodeId(node)) = from else { return };
    effects.push(Effect::Release { txn, op, replica: ReplicaId(node) });
}

/// About other sites.
impl Site {
    pub(super) fn on_peer_lost(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        self.lost.insert(node);
        self.do_without(|update| update.at == Some(node), effects);
    }

    pub(super) fn on_peer_back(&mut self, node: NodeId) {
        self.lost.remove(&node);
    }

    /// What has waited for its writes for long will be executed here: they may have been sent while this site could not be reached.
    pub(super) fn on_timer(&mut self, effects: &mut Vec<Effect>) {
        for at in 0..self.line.len() {
            let entry = self.line.get(at);
            if entry.stage == Stage::AwaitingWrites
                && let Some(update) = self.updates.get_mut(&entry.txn)
                && update.write_set_of.is_none()
            {
                update.overdue += 1;
            }
        }
        self.do_without(|update| update.overdue >= OVERDUE, effects);
    }

    /// Executes here what others were to execute and whose writes have not come.
    fn do_without(&mut self, is_given_up: impl Fn(&Update) -> bool, effects: &mut Vec<Effect>) {
        let me = self.me;
        let of_others = |update: &&mut Update| update.at.is_some_and(|node| node != me);
        let waiting = self.updates.values_mut().filter(of_others);
        for update in waiting.filter(|update| update.write_set_of.is_none() && is_given_up(update)) {
            (update.at, update.overdue) = (None, 0);
        }
        for at in 0..self.line.len() {
            let entry = self.line.get(at);
            let is_here = self.updates.get(&entry.txn).is_some_and(|update| update.at.is_none());
            if entry.stage == Stage::AwaitingWrites && is_here {
                self.line.set_stage(at, Stage::Waiting);
            }
        }
        self.advance(effects);
    }
}

/// From the database.
impl Site {
    pub(super) fn on_executed(&mut self, txn: TxnId, op: OpId, outcome: &Outcome, effects: &mut Vec<Effect>) {
        if self.snapshots.contains(&txn) {
            if !self.query_runs_again(txn, outcome, effects) {
                self.snapshots.remove(&txn);
            }
            return;
        }
        let Some(at) = self.line.find(txn).filter(|at| self.line.get(*at).stage == Stage::Executing(op))
        else {
            return;
        };
        if self.line.get(at).standing == Standing::Query {
            if self.query_runs_again(txn, outcome, effects) {
                return;
            }
            self.line.remove(txn);
        } else {
            let stage = match outcome {
                Outcome::Done { .. } => Stage::Executed { op, end: End::Done },
                Outcome::Failed => Stage::Executed { op, end: End::Failed },
                // It is begun anew; whether its statements fail is not known.
                Outcome::TooLarge | Outcome::Lost { .. } => Stage::Waiting,
            };
            if *outcome == Outcome::TooLarge
                && let Some(update) = self.updates.get_mut(&txn)
            {
                update.holds = false;
                // What it wrote is still there.
                effects.push(Effect::Leave { txn, replica: self.replica() });
            }
            self.line.set_stage(at, stage);
        }
        self.advance(effects);
    }

    /// A query whose connection was lost runs again, unless its client has seen a part of the answer.
    fn query_runs_again(&self, txn: TxnId, outcome: &Outcome, effects: &mut Vec<Effect>) -> bool {
        let (op, replica) = (OpId(0), self.replica());
        match outcome {
            Outcome::Lost { answer_begun: false } | Outcome::TooLarge => {
                effects.push(Effect::Execute { txn, op, replica, how: How::Alone, hold: false });
                true
            }
            Outcome::Lost { answer_begun: true } => {
                effects.push(Effect::Refuse { txn, op, reason: Refusal::AnswerCut });
                false
            }
            Outcome::Done { .. } | Outcome::Failed => false,
        }
    }

    /// What was executed here cannot be committed here any more. What was shipped is applied, as everywhere; else it executes again.
    pub(super) fn on_home_lost(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let Some(at) = self.line.find(txn) else { return };
        let is_shipped =
            matches!(self.line.get(at).stage, Stage::Committing | Stage::Executed { end: End::Shipped, .. });
        let me = Place::Peer(self.me);
        match self.updates.get_mut(&txn) {
            Some(update) if is_shipped && update.at.is_some() => {
                update.write_set_of = Some(me);
                self.line.set_stage(at, Stage::AwaitingWrites);
            }
            Some(_) if matches!(self.line.get(at).stage, Stage::Committing | Stage::Executed { .. }) => {
                self.line.set_stage(at, Stage::Waiting);
            }
            _ => return,
        }
        self.advance(effects);
    }

    pub(super) fn on_committed(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        let is_it = |(_, update): &(&TxnId, &Update)| update.place == Some(csn);
        let Some(txn) = self.updates.iter().find(is_it).map(|(txn, _)| *txn) else { return };
        self.in_place(txn, effects);
    }

    /// It is in the database here. Its client hears of that if it has not heard of it before, with the writes of another site.
    pub(super) fn in_place(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        if let Some(update) = self.updates.get(&txn) {
            let csn = update.place.unwrap_or_default();
            if update.origin == self.me && update.at.is_none_or(|node| node == self.me) {
                let op = OpId(update.executions.saturating_sub(1));
                effects.push(Effect::Release { txn, op, replica: self.replica() });
                effects.push(Effect::Acknowledge { txn, op: OpId(0), csn });
            }
            self.applied = self.applied.max(csn);
        }
        self.forget(txn, effects);
        self.advance(effects);
    }
}

/// Whoever can go on does.
impl Site {
    fn advance(&mut self, effects: &mut Vec<Effect>) {
        let mut failed = Vec::new();
        // Where queries read snapshots: whether everything before is being committed, in this order.
        let mut is_next = true;
        for at in 0..self.line.len() {
            is_next |= self.choice.queries != Queries::Snapshot;
            if self.line.get(at).stage == Stage::Waiting && self.line.is_granted(at) && self.may_answer(at) {
                self.begin(at, effects);
            }
            if let Stage::Executed { op, end: End::Done } = self.line.get(at).stage
                && self.is_decided(at)
            {
                self.ship_writes(at, op, effects);
            }
            match self.line.get(at).stage {
                // That is known now, whoever else is to be committed before.
                Stage::Executed { op, end: End::Failed } if self.is_decided(at) => {
                    self.give_up(at, op, effects);
                    failed.push(self.line.get(at).txn);
                }
                Stage::Executed { end: End::Shipped, .. } if is_next => self.commit(at, effects),
                Stage::AwaitingWrites if is_next && self.may_apply(at) => self.apply(at, effects),
                _ => {}
            }
            is_next &= matches!(self.line.get(at).stage, Stage::Committing | Stage::Applying);
        }
        if !failed.is_empty() {
            failed.into_iter().for_each(|txn| self.forget(txn, effects));
            self.advance(effects);
        }
    }

    fn begin(&mut self, at: usize, effects: &mut Vec<Effect>) {
        let (txn, is_query) = (self.line.get(at).txn, self.line.get(at).standing == Standing::Query);
        let replica = self.replica();
        if is_query {
            let op = OpId(0);
            self.line.set_stage(at, Stage::Executing(op));
            return effects.push(Effect::Execute { txn, op, replica, how: How::Alone, hold: false });
        }
        let Some(update) = self.updates.get_mut(&txn) else { return };
        if update.at.is_some_and(|node| node != self.me) {
            return self.line.set_stage(at, Stage::AwaitingWrites);
        }
        // Each execution has a number, so that what is reported of one that was undone is not taken for the next.
        let op = OpId(update.executions);
        update.executions += 1;
        let hold = update.holds;
        self.line.set_stage(at, Stage::Executing(op));
        effects.push(Effect::Execute { txn, op, replica, how: How::Home { open: true }, hold });
    }

    /// Its place is certain, and it has been delivered as it is to be: what came of its execution will not change any more.
    fn is_decided(&self, at: usize) -> bool {
        let entry = self.line.get(at);
        entry.standing == Standing::Certain
            && self.updates.get(&entry.txn).is_some_and(|update| match self.choice.delivery.commits_at() {
                Moment::Stable => update.stable,
                Moment::Received | Moment::Ordered => update.place.is_some(),
            })
    }

    /// What is too large to be held goes to the client as it comes, so it must not be undone.
    fn may_answer(&self, at: usize) -> bool {
        let update = self.updates.get(&self.line.get(at).txn);
        update.is_none_or(|update| update.holds) || self.is_decided(at)
    }

    /// Whoever shipped the writes has waited until that was decided.
    fn may_apply(&self, at: usize) -> bool {
        let entry = self.line.get(at);
        let is_here = self.updates.get(&entry.txn).is_some_and(|update| update.write_set_of.is_some());
        is_here && entry.standing == Standing::Certain
    }

    /// The others need not wait until it is committed here, which may be much later where that is done in order.
    fn ship_writes(&mut self, at: usize, op: OpId, effects: &mut Vec<Effect>) {
        let txn = self.line.get(at).txn;
        let Some(update) = self.updates.get(&txn) else { return };
        let place = update.place.unwrap_or_default();
        if update.at.is_some() {
            self.ship(txn, &Message::WriteSet { txn, place, op }, effects);
        }
        self.line.set_stage(at, Stage::Executed { op, end: End::Shipped });
    }

    fn commit(&mut self, at: usize, effects: &mut Vec<Effect>) {
        let txn = self.line.get(at).txn;
        let csn = self.updates.get(&txn).and_then(|update| update.place).unwrap_or_default();
        self.line.set_stage(at, Stage::Committing);
        effects.push(Effect::CommitAt { txn, replica: self.replica(), csn });
    }

    fn give_up(&self, at: usize, op: OpId, effects: &mut Vec<Effect>) {
        let txn = self.line.get(at).txn;
        let Some(update) = self.updates.get(&txn) else { return };
        if update.at.is_some() {
            self.ship(txn, &Message::Failed { txn, op }, effects);
        }
        if update.origin == self.me {
            effects.push(Effect::Release { txn, op, replica: self.replica() });
        }
        effects.push(Effect::Leave { txn, replica: self.replica() });
    }

    fn ship(&self, txn: TxnId, message: &Message, effects: &mut Vec<Effect>) {
        for node in (0..self.sites).map(NodeId).filter(|node| *node != self.me) {
            let message = AnyMessage::WideArea(message.clone());
            effects.push(Effect::Ship { txn, to: Place::Peer(node), message });
        }
    }

    fn apply(&mut self, at: usize, effects: &mut Vec<Effect>) {
        let txn = self.line.get(at).txn;
        let Some(origin) = self.updates.get(&txn).and_then(|update| update.write_set_of) else { return };
        self.line.set_stage(at, Stage::Applying);
        effects.push(Effect::ApplyShipped { origin, txn, replica: self.replica() });
    }
}
