//! A simulator that never caught a planted bug proves nothing: for each property a bug that breaks it, wrapped around
//! the unchanged protocol, and the failure that must show it.

mod sweep;

use std::collections::{BTreeMap, BTreeSet};

use onecopy_core::effect::How;
use onecopy_core::protocol::onecopy::Onecopy;
use onecopy_core::protocol::{Guarantee, Position, Protocol, Status, Writes};
use onecopy_core::{
    ColumnId, ColumnSet, Csn, Decision, Effect, Event, Instant, Mode, OpId, Place, ReplicaId, StatementKind,
    TxnId,
};
use onecopy_sim::{Breakage, Moment, Scenario};
use sweep::Sweep;

/// Alters what a protocol hears and orders.
trait Bug: Send {
    /// Hands on an event, or not, or another, and does the same with the orders that come of it.
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>);
}

/// The unchanged protocol, at one instant.
struct Inner<'a> {
    protocol: &'a mut dyn Protocol,
    place: Place,
    now: Instant,
}

impl Inner<'_> {
    fn handle(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.protocol.handle(self.place, self.now, event, &mut effects);
        effects
    }
}

struct Planted {
    protocol: Onecopy,
    bug: Box<dyn Bug>,
}

impl Protocol for Planted {
    fn name(&self) -> &'static str {
        self.protocol.name()
    }
    fn guarantee(&self) -> Guarantee {
        self.protocol.guarantee()
    }
    fn position(&self) -> Position {
        self.protocol.position()
    }
    fn writes(&self) -> Writes {
        self.protocol.writes()
    }
    fn place_of(&self, event: &Event) -> Place {
        self.protocol.place_of(event)
    }
    fn handle(&mut self, place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        self.bug.handle(&mut Inner { protocol: &mut self.protocol, place, now }, event, effects);
    }
    fn status(&self) -> Status {
        self.protocol.status()
    }
}

fn plant<B: Bug + Default + 'static>(replicas: usize, decided: Csn) -> Box<dyn Protocol> {
    Box::new(Planted { protocol: Onecopy::new(replicas, decided), bug: Box::new(B::default()) })
}

/// Expects that within the seeds of CI each of these kinds of failure is found.
#[track_caller]
fn expect_caught<B: Bug + Default + 'static>(scenario: fn(u64) -> Scenario, kinds: &[&'static str]) {
    const SEEDS: u64 = 1_000;
    let sweep = Sweep { file: "planted", test: "planted", seeds: SEEDS, scenario, protocol: plant::<B> };
    let mut missing: BTreeSet<&str> = kinds.iter().copied().collect();
    let mut found = BTreeMap::new();
    for seed in 0..SEEDS {
        let outcome = sweep.run(seed, false);
        for failure in &outcome.failures {
            found.entry(failure.kind()).or_insert(seed);
            missing.remove(failure.kind());
        }
        if missing.is_empty() {
            println!("caught, each kind of failure first by this seed: {found:?}");
            return;
        }
    }
    panic!("{SEEDS} seeds did not show {missing:?}, only {found:?}");
}

/// Several replicas, of which some lag, and nothing breaks.
fn calm(seed: u64) -> Scenario {
    let calm = Scenario::calm(seed);
    Scenario { replicas: calm.replicas.max(2), ..calm }
}

/// The same behind progress tables that refuse nothing.
fn unguarded(seed: u64) -> Scenario {
    Scenario { progress_guarded: false, ..calm(seed) }
}

/// The node dies soon after one of the first decisions.
fn node_dies(seed: u64) -> Scenario {
    Scenario { breakages: vec![(Moment::Append(1 + seed % 20), Breakage::Node)], ..calm(seed) }
}

/// Commit order skipped: a replica commits the first decision of some runs after the others, and says nothing.
#[derive(Default)]
struct CommitOrderSkipped {
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

#[test]
fn commit_order_skipped_on_one_replica_shows_in_the_history() {
    expect_caught::<CommitOrderSkipped>(
        unguarded,
        &["anomaly", "order broken", "disagreement", "apply failed"],
    );
}

#[test]
fn commit_order_skipped_on_one_replica_is_refused_by_its_progress_table() {
    expect_caught::<CommitOrderSkipped>(calm, &["commit out of order"]);
}

/// One more replica joins soon.
fn one_joins(seed: u64) -> Scenario {
    Scenario { breakages: vec![(Moment::Append(2 + seed % 20), Breakage::Join)], ..calm(seed) }
}

/// The same behind progress tables that refuse nothing.
fn one_joins_unguarded(seed: u64) -> Scenario {
    Scenario { progress_guarded: false, ..one_joins(seed) }
}

/// A copy is believed to contain one commit more than its snapshot did.
#[derive(Default)]
struct CopyBelievedFurther {
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

#[test]
fn a_copy_that_is_believed_further_than_it_is_shows_in_what_replicas_hold() {
    expect_caught::<CopyBelievedFurther>(one_joins_unguarded, &["replica differs", "order broken"]);
}

#[test]
fn a_copy_that_is_believed_further_than_it_is_is_refused_by_its_progress_table() {
    expect_caught::<CopyBelievedFurther>(one_joins, &["commit out of order"]);
}

/// A read placed one CSN too early: single reads go where exactly the newest commit is missing, if there is such a
/// replica.
#[derive(Default)]
struct ReadTooEarly {
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

#[test]
fn a_read_placed_one_csn_too_early_shows_in_the_history() {
    expect_caught::<ReadTooEarly>(calm, &["anomaly", "order broken"]);
}

/// A row conflict missed: now and then an update's access set loses its first member.
#[derive(Default)]
struct ConflictMissed {
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

#[test]
fn a_missed_row_conflict_shows_in_the_history_and_in_the_databases() {
    let kinds = ["anomaly", "order broken", "apply blocked", "disagreement"];
    expect_caught::<ConflictMissed>(calm, &kinds);
}

/// Columns confused: every read says that it is about the first column only, which nobody changes.
#[derive(Default)]
struct ColumnsConfused;

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

#[test]
fn a_reader_that_names_the_wrong_columns_shows_in_the_history() {
    expect_caught::<ColumnsConfused>(calm, &["anomaly", "order broken"]);
}

/// All row conflicts missed.
#[derive(Default)]
struct ConflictsMissed;

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

#[test]
fn transactions_that_wait_for_each_other_in_one_database_are_found() {
    fn one_replica(seed: u64) -> Scenario {
        Scenario { replicas: 1, clients: 8, keys: 2, ..Scenario::calm(seed) }
    }
    expect_caught::<ConflictsMissed>(one_replica, &["deadlock in a database"]);
}

/// A client hears of its commit as soon as the decision is handed to the log.
#[derive(Default)]
struct AcknowledgedBeforeDurable {
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

#[test]
fn a_client_acknowledged_before_durability_shows_when_the_node_dies() {
    let kinds = ["acknowledged early", "commit lost", "anomaly", "order broken"];
    expect_caught::<AcknowledgedBeforeDurable>(node_dies, &kinds);
}

/// Replicas are told of decisions that are not durable.
#[derive(Default)]
struct ToldBeforeDurable;

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

#[test]
fn a_replica_told_before_durability_is_ahead_of_the_log_when_the_node_dies() {
    expect_caught::<ToldBeforeDurable>(node_dies, &["replica ahead of the log"]);
}

/// A home executes before the last writer of its items is applied: the core hears that a run is applied when it is only
/// sent. Whatever else follows from that is held back until it is true.
#[derive(Default)]
struct HomeTooEarly {
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

#[test]
fn a_home_that_executes_before_the_last_writer_of_its_items_is_applied_shows_in_the_history() {
    expect_caught::<HomeTooEarly>(calm, &["anomaly", "order broken", "apply blocked"]);
}

/// Reads that may have changed are not run again.
#[derive(Default)]
struct RevalidationSkipped {
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

#[test]
fn a_skipped_revalidation_shows_in_the_history() {
    expect_caught::<RevalidationSkipped>(calm, &["anomaly", "order broken"]);
}

/// A read phase that gave its snapshot up goes on in another one, though what it had read has changed.
#[derive(Default)]
struct SnapshotMovedUnchecked {
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

#[test]
fn a_snapshot_that_is_exchanged_for_another_without_running_its_reads_again_shows_in_the_history() {
    expect_caught::<SnapshotMovedUnchecked>(calm, &["anomaly", "order broken"]);
}

/// Now and then a run of decisions is not applied at all, and said to be.
#[derive(Default)]
struct ApplySkipped {
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

#[test]
fn a_decision_that_is_not_applied_makes_a_replica_differ() {
    expect_caught::<ApplySkipped>(unguarded, &["replica differs"]);
}

/// Every run is ordered twice.
#[derive(Default)]
struct ApplyTwice;

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

#[test]
fn a_run_that_is_ordered_twice_is_senseless() {
    expect_caught::<ApplyTwice>(calm, &["order senseless", "commit out of order"]);
}

/// Now and then a transaction is not ended where it is left.
#[derive(Default)]
struct LeaveLost {
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

#[test]
fn a_transaction_that_is_not_left_leaks_its_lane() {
    expect_caught::<LeaveLost>(calm, &["lane leaked"]);
}

/// Now and then a statement is never executed.
#[derive(Default)]
struct ExecuteLost {
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

#[test]
fn a_statement_that_is_never_executed_leaves_its_client_stuck() {
    expect_caught::<ExecuteLost>(calm, &["stuck"]);
}

/// The core does not hear of read-only transactions that are rolled back before they hold anything.
#[derive(Default)]
struct RollbackLost {
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

#[test]
fn a_transaction_that_the_core_never_forgets_is_found() {
    expect_caught::<RollbackLost>(calm, &["core leaked"]);
}

/// Every transaction is given the same value of a sequence.
#[derive(Default)]
struct SameValue;

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

#[test]
fn a_value_of_a_sequence_that_is_given_twice_is_found() {
    expect_caught::<SameValue>(calm, &["value given twice"]);
}
