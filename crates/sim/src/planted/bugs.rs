//! The bugs, one after the other.

use std::collections::{BTreeMap, BTreeSet};

use onecopy_core::effect::How;
use onecopy_core::{
    ColumnId, ColumnSet, Csn, Decision, Effect, Event, Mode, OpId, Outcome, ReplicaId, StatementKind, TxnId,
};

use super::{Bug, Inner};

/// Commit order skipped: a replica commits the first decision of some runs after the others, and says nothing.
#[derive(Default)]
pub struct CommitOrderSkipped {
    /// The decision that is missing, and the last of those that come before it.
    skipped: Option<(Csn, Csn)>,
    held_back: Vec<Effect>,
}

const SKIPPING: ReplicaId = ReplicaId(1);

impl Bug for CommitOrderSkipped {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        if let (Event::Applied { replica: SKIPPING, csn }, Some((skipped, last))) = (&event, self.skipped) {
            if *csn == skipped {
                self.skipped = None;
                return effects.append(&mut self.held_back);
            }
            if *csn == last {
                effects.push(Effect::Apply { replica: SKIPPING, from: skipped, to: skipped });
            }
        }
        for effect in inner.handle(event) {
            match effect {
                Effect::Apply { replica: SKIPPING, .. } | Effect::CommitAt { replica: SKIPPING, .. }
                    if self.skipped.is_some() =>
                {
                    self.held_back.push(effect);
                }
                Effect::Apply { replica: SKIPPING, from, to } if to > from => {
                    self.skipped = Some((from, to));
                    effects.push(Effect::Apply { replica: SKIPPING, from: from.next(), to });
                }
                effect => effects.push(effect),
            }
        }
    }
}

/// A copy is believed to contain one commit more than its snapshot did.
#[derive(Default)]
pub struct CopyBelievedFurther {
    told: Csn,
    joining: BTreeSet<ReplicaId>,
}

impl Bug for CopyBelievedFurther {
    fn handle(&mut self, inner: &mut Inner<'_>, mut event: Event, effects: &mut Vec<Effect>) {
        match &mut event {
            Event::Durable { csn } => self.told = *csn,
            Event::ReplicaAdded { replica } => _ = self.joining.insert(*replica),
            Event::ReplicaUp { replica, applied } if self.joining.remove(replica) && *applied < self.told => {
                *applied = applied.next();
            }
            _ => {}
        }
        effects.extend(inner.handle(event));
    }
}

/// A read placed one CSN too early: single reads go where exactly the newest commit is missing, if there is such a
/// replica.
#[derive(Default)]
pub struct ReadTooEarly {
    told: Csn,
    applied: BTreeMap<ReplicaId, Csn>,
    /// Where the core believes that the statement runs.
    believed: BTreeMap<(TxnId, OpId), ReplicaId>,
}

impl Bug for ReadTooEarly {
    fn handle(&mut self, inner: &mut Inner<'_>, mut event: Event, effects: &mut Vec<Effect>) {
        match &mut event {
            Event::Durable { csn } => self.told = *csn,
            Event::Applied { replica, csn } | Event::ReplicaUp { replica, applied: csn } => {
                self.applied.insert(*replica, *csn);
            }
            Event::Executed { txn, op, replica, .. } => {
                *replica = self.believed.remove(&(*txn, *op)).unwrap_or(*replica);
            }
            _ => {}
        }
        for mut effect in inner.handle(event) {
            let behind = self.applied.iter().find(|(_, applied)| applied.next() == self.told);
            if let (Effect::Execute { txn, op, replica, how: How::Alone, .. }, Some((behind, _))) =
                (&mut effect, behind)
            {
                self.believed.insert((*txn, *op), *replica);
                *replica = *behind;
            }
            effects.push(effect);
        }
    }
}

/// A row conflict missed: now and then an update's access set loses its first member.
#[derive(Default)]
pub struct ConflictMissed {
    writes: u64,
}

impl Bug for ConflictMissed {
    fn handle(&mut self, inner: &mut Inner<'_>, mut event: Event, effects: &mut Vec<Effect>) {
        if let Event::Statement { statement, .. } | Event::Autocommit { statement, .. } = &mut event
            && statement.kind == StatementKind::Write
        {
            self.writes += 1;
            if self.writes.is_multiple_of(4) {
                statement.access.remove(0);
            }
        }
        effects.extend(inner.handle(event));
    }
}

/// Columns confused: every read says that it is about the first column only, which nobody changes.
#[derive(Default)]
pub struct ColumnsConfused;

impl Bug for ColumnsConfused {
    fn handle(&mut self, inner: &mut Inner<'_>, mut event: Event, effects: &mut Vec<Effect>) {
        if let Event::Statement { statement, .. } | Event::Autocommit { statement, .. } = &mut event
            && statement.kind == StatementKind::Read
        {
            let reads = statement.access.iter_mut().filter(|access| access.mode == Mode::Shared);
            reads.for_each(|access| access.columns = ColumnSet::NONE.with(ColumnId(1)));
        }
        effects.extend(inner.handle(event));
    }
}

/// All row conflicts missed.
#[derive(Default)]
pub struct ConflictsMissed;

impl Bug for ConflictsMissed {
    fn handle(&mut self, inner: &mut Inner<'_>, mut event: Event, effects: &mut Vec<Effect>) {
        if let Event::Statement { statement, .. } = &mut event
            && statement.kind == StatementKind::Write
        {
            statement.access.clear();
        }
        effects.extend(inner.handle(event));
    }
}

/// A client hears of its commit as soon as the decision is handed to the log.
#[derive(Default)]
pub struct AcknowledgedBeforeDurable {
    commit_ops: BTreeMap<TxnId, OpId>,
}

impl Bug for AcknowledgedBeforeDurable {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        if let Event::Commit { txn, op } = event {
            self.commit_ops.insert(txn, op);
        }
        for effect in inner.handle(event) {
            match effect {
                Effect::Append { csn, decision: Decision::Commit(txn) } => {
                    effects.push(effect);
                    let op = self.commit_ops.get(&txn).copied().unwrap_or_default();
                    effects.push(Effect::Acknowledge { txn, op, csn });
                }
                Effect::Acknowledge { .. } => {}
                effect => effects.push(effect),
            }
        }
    }
}

/// Replicas are told of decisions that are not durable.
#[derive(Default)]
pub struct ToldBeforeDurable;

impl Bug for ToldBeforeDurable {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        for effect in inner.handle(event) {
            let appended = if let Effect::Append { csn, .. } = effect { Some(csn) } else { None };
            effects.push(effect);
            if let Some(csn) = appended {
                self.handle(inner, Event::Durable { csn }, effects);
            }
        }
    }
}

/// A home executes before the last writer of its items is applied: the core hears that a run is applied when it is only
/// sent. Whatever else follows from that is held back until it is true.
#[derive(Default)]
pub struct HomeTooEarly {
    applied: BTreeMap<ReplicaId, Csn>,
    believed: BTreeMap<ReplicaId, Csn>,
    held_back: Vec<(Truth, Effect)>,
}

/// What must be true before an order is handed on.
enum Truth {
    Contains(ReplicaId, Csn),
    SomeContains(Csn),
}

impl HomeTooEarly {
    fn position(&self, replica: ReplicaId) -> Csn {
        self.applied.get(&replica).copied().unwrap_or_default()
    }

    fn is_true(&self, truth: &Truth) -> bool {
        match truth {
            Truth::Contains(replica, csn) => self.position(*replica) >= *csn,
            Truth::SomeContains(csn) => self.applied.values().any(|applied| applied >= csn),
        }
    }

    fn truth_of(&self, effect: &Effect) -> Truth {
        match *effect {
            Effect::Apply { replica, from, .. } => Truth::Contains(replica, from.previous()),
            Effect::CommitAt { replica, csn, .. } => Truth::Contains(replica, csn.previous()),
            Effect::Execute { replica, how: How::Alone | How::Snapshot { .. }, .. } => {
                Truth::Contains(replica, self.believed.get(&replica).copied().unwrap_or_default())
            }
            Effect::Acknowledge { csn, .. } => Truth::SomeContains(csn),
            _ => Truth::SomeContains(Csn(0)),
        }
    }

    fn hand_on(&mut self, inner: &mut Inner<'_>, orders: Vec<Effect>, effects: &mut Vec<Effect>) {
        for effect in orders {
            let sent = match effect {
                Effect::Apply { replica, to, .. } => Some((replica, to)),
                _ => None,
            };
            let truth = self.truth_of(&effect);
            if self.is_true(&truth) {
                effects.push(effect);
            } else {
                self.held_back.push((truth, effect));
            }
            if let Some((replica, csn)) = sent {
                self.believed.insert(replica, csn);
                let orders = inner.handle(Event::Applied { replica, csn });
                self.hand_on(inner, orders, effects);
            }
        }
    }
}

impl Bug for HomeTooEarly {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        if let Event::Applied { replica, csn } | Event::ReplicaUp { replica, applied: csn } = event {
            self.applied.insert(replica, csn);
            let held_back = std::mem::take(&mut self.held_back);
            for (truth, effect) in held_back {
                if self.is_true(&truth) {
                    effects.push(effect);
                } else {
                    self.held_back.push((truth, effect));
                }
            }
        }
        let orders = inner.handle(event);
        self.hand_on(inner, orders, effects);
    }
}

/// Reads that may have changed are not run again.
#[derive(Default)]
pub struct RevalidationSkipped {
    to_open: BTreeSet<TxnId>,
}

impl Bug for RevalidationSkipped {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        for effect in inner.handle(event) {
            match effect {
                Effect::Revalidate { txn, replica, how: How::Home { .. } } => {
                    self.to_open.insert(txn);
                    self.handle(inner, Event::Revalidated { txn, replica, same: true }, effects);
                }
                Effect::Execute { txn, op, replica, how: How::Home { open }, hold } => {
                    let how = How::Home { open: self.to_open.remove(&txn) || open };
                    effects.push(Effect::Execute { txn, op, replica, how, hold });
                }
                effect => effects.push(effect),
            }
        }
    }
}

/// A read phase that gave its snapshot up goes on in another one, though what it had read has changed.
#[derive(Default)]
pub struct SnapshotMovedUnchecked {
    to_open: BTreeSet<TxnId>,
}

impl Bug for SnapshotMovedUnchecked {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        for effect in inner.handle(event) {
            match effect {
                Effect::Revalidate { txn, replica, how: How::Snapshot { .. } } => {
                    self.to_open.insert(txn);
                    self.handle(inner, Event::Revalidated { txn, replica, same: true }, effects);
                }
                Effect::Execute { txn, op, replica, how: How::Snapshot { open }, hold } => {
                    let how = How::Snapshot { open: self.to_open.remove(&txn) || open };
                    effects.push(Effect::Execute { txn, op, replica, how, hold });
                }
                effect => effects.push(effect),
            }
        }
    }
}

/// Now and then a run of decisions is not applied at all, and said to be.
#[derive(Default)]
pub struct ApplySkipped {
    runs: u64,
}

impl Bug for ApplySkipped {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        for effect in inner.handle(event) {
            match effect {
                Effect::Apply { replica, to, .. } if self.runs % 8 == 7 => {
                    self.runs += 1;
                    self.handle(inner, Event::Applied { replica, csn: to }, effects);
                }
                effect => {
                    self.runs += u64::from(matches!(effect, Effect::Apply { .. }));
                    effects.push(effect);
                }
            }
        }
    }
}

/// Every run is ordered twice.
#[derive(Default)]
pub struct ApplyTwice;

impl Bug for ApplyTwice {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        for effect in inner.handle(event) {
            if matches!(effect, Effect::Apply { .. }) {
                effects.push(effect.clone());
            }
            effects.push(effect);
        }
    }
}

/// Now and then a transaction is not ended where it is left.
#[derive(Default)]
pub struct LeaveLost {
    leaves: u64,
}

impl Bug for LeaveLost {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        for effect in inner.handle(event) {
            self.leaves += u64::from(matches!(effect, Effect::Leave { .. }));
            if !matches!(effect, Effect::Leave { .. }) || !self.leaves.is_multiple_of(5) {
                effects.push(effect);
            }
        }
    }
}

/// Now and then a statement is never executed.
#[derive(Default)]
pub struct ExecuteLost {
    statements: u64,
}

impl Bug for ExecuteLost {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        for effect in inner.handle(event) {
            self.statements += u64::from(matches!(effect, Effect::Execute { .. }));
            if !matches!(effect, Effect::Execute { .. }) || !self.statements.is_multiple_of(20) {
                effects.push(effect);
            }
        }
    }
}

/// The core does not hear of read-only transactions that are rolled back before they hold anything.
#[derive(Default)]
pub struct RollbackLost {
    writers: BTreeSet<TxnId>,
    left: Vec<Effect>,
    lanes: BTreeMap<TxnId, ReplicaId>,
}

impl Bug for RollbackLost {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        if let Event::Rollback { txn } = event
            && !self.writers.contains(&txn)
        {
            // The lane is left all the same, so that nothing but the core's memory shows it.
            let replica = self.lanes.get(&txn).copied();
            self.left.extend(replica.map(|replica| Effect::Leave { txn, replica }));
            return effects.append(&mut self.left);
        }
        if let Event::Statement { txn, statement, .. } = &event
            && statement.kind != StatementKind::Read
        {
            self.writers.insert(*txn);
        }
        for effect in inner.handle(event) {
            match effect {
                Effect::Execute { txn, replica, how: How::Snapshot { .. }, .. } => {
                    _ = self.lanes.insert(txn, replica)
                }
                Effect::Execute { txn, how: How::Home { .. }, .. } => _ = self.writers.insert(txn),
                _ => {}
            }
            effects.push(effect);
        }
    }
}

/// Every transaction is given the same value of a sequence.
#[derive(Default)]
pub struct SameValue;

impl Bug for SameValue {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        for mut effect in inner.handle(event) {
            if let Effect::Values { values, .. } = &mut effect {
                values.iter_mut().for_each(|value| *value = Some(7));
            }
            effects.push(effect);
        }
    }
}

/// Rows that only an answer shows are not held.
#[derive(Default)]
pub struct ShownForgotten {
    shows: BTreeSet<(TxnId, OpId)>,
}

impl Bug for ShownForgotten {
    fn handle(&mut self, inner: &mut Inner<'_>, mut event: Event, effects: &mut Vec<Effect>) {
        match &mut event {
            Event::Statement { txn, op, statement } if !statement.shown.is_empty() => {
                self.shows.insert((*txn, *op));
            }
            Event::Executed { txn, op, outcome: Outcome::Done { returned }, .. }
                if self.shows.contains(&(*txn, *op)) =>
            {
                returned.clear();
            }
            _ => {}
        }
        effects.extend(inner.handle(event));
    }
}

/// A read that was lost with its replica runs on the next one, and the core does not hear of it.
#[derive(Default)]
pub struct LossesForgotten {
    up: BTreeSet<ReplicaId>,
    /// Single reads, and where the core believes that they run.
    alone: BTreeMap<(TxnId, OpId), ReplicaId>,
}

impl Bug for LossesForgotten {
    fn handle(&mut self, inner: &mut Inner<'_>, mut event: Event, effects: &mut Vec<Effect>) {
        match &mut event {
            Event::ReplicaUp { replica, .. } => _ = self.up.insert(*replica),
            Event::ReplicaDown { replica } => _ = self.up.remove(replica),
            Event::Executed { txn, op, replica, outcome, .. } => {
                let believed = self.alone.get(&(*txn, *op)).copied();
                let next = self.up.iter().find(|up| *up != replica).copied();
                if let (Some(_), Outcome::Lost { answer_begun: false }, Some(next)) =
                    (believed, outcome, next)
                {
                    let (how, hold) = (How::Alone, false);
                    return effects.push(Effect::Execute { txn: *txn, op: *op, replica: next, how, hold });
                }
                *replica = believed.unwrap_or(*replica);
            }
            _ => {}
        }
        for effect in inner.handle(event) {
            if let Effect::Execute { txn, op, replica, how: How::Alone, .. } = effect {
                self.alone.insert((txn, op), replica);
            }
            effects.push(effect);
        }
    }
}

/// Nobody hears who waits for whom within servers.
#[derive(Default)]
pub struct WaitsUnheard;

impl Bug for WaitsUnheard {
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>) {
        if !matches!(event, Event::WaitsOutside { .. }) {
            effects.extend(inner.handle(event));
        }
    }
}
