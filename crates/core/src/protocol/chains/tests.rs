//! The sketch against sections II and III of its paper; whole lists of effects are compared.

use super::*;
use crate::event::Begin;
use crate::ids::{ClassId, SessionId};
use crate::item::{ColumnId, Item, Mode, TableId, ValueHash};

const W0: ReplicaId = ReplicaId(0);
const W1: ReplicaId = ReplicaId(1);
const W2: ReplicaId = ReplicaId(2);
const T1: TxnId = TxnId(1);
const T2: TxnId = TxnId(2);
const T3: TxnId = TxnId(3);
const T4: TxnId = TxnId(4);
const T5: TxnId = TxnId(5);

struct Rig {
    protocol: Chains,
    effects: Vec<Effect>,
}

fn rig(workers: u16) -> Rig {
    Rig { protocol: Chains::new(workers, Csn(0)), effects: Vec::new() }
}

impl Rig {
    fn at(&mut self, place: Place, event: Event) {
        self.protocol.handle(place, Instant(0), event, &mut self.effects);
    }
    #[track_caller]
    fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
    /// A transaction that writes these rows.
    fn update<const N: usize>(&mut self, txn: TxnId, rows: [i64; N]) {
        self.single(txn, StatementKind::Write, rows, Mode::NoKeyExclusive);
    }
    fn single<const N: usize>(&mut self, txn: TxnId, kind: StatementKind, rows: [i64; N], mode: Mode) {
        let item = |row| Item::rows(TableId(1), [(ColumnId(1), ValueHash::of_integer(row))]);
        let access = rows.into_iter().map(|row| Access::new(item(row), mode)).collect();
        let begin = Begin {
            txn,
            session: SessionId(0),
            read_only: false,
            form: 0,
            declared: None,
            stale_ok_ns: None,
        };
        let statement = Statement::new(ClassId(1), kind, access);
        self.at(SCHEDULER, Event::Autocommit { begin, statement });
    }
    fn deliver(&mut self, from: Place, worker: ReplicaId, message: Message) {
        self.at(Place::Proxy(worker), Event::Message { from, message: AnyMessage::Chains(message) });
    }
    fn executed(&mut self, txn: TxnId, replica: ReplicaId) {
        let outcome = Outcome::Done { returned: Vec::new() };
        let event = Event::Executed { txn, op: OpId(0), replica, outcome, elapsed_ns: 1 };
        self.at(Place::Proxy(replica), event);
    }
    /// Runs an update at its worker up to its commit.
    fn run(&mut self, txn: TxnId, worker: ReplicaId, csn: u64) {
        self.executed(txn, worker);
        self.at(SCHEDULER, Event::Durable { csn: Csn(csn) });
        self.at(Place::Proxy(worker), Event::Applied { replica: worker, csn: Csn(csn) });
        self.effects.clear();
    }
}

fn given(worker: ReplicaId, txn: TxnId, predecessors: &[TxnId]) -> Effect {
    let message = AnyMessage::Chains(Message::Update { txn, predecessors: predecessors.to_vec() });
    Effect::Send { to: Place::Proxy(worker), message }
}
fn execute(txn: TxnId, replica: ReplicaId) -> Effect {
    Effect::Execute { txn, op: OpId(0), replica, how: How::Home { open: true }, hold: true }
}
fn update(txn: TxnId, predecessors: &[TxnId]) -> Message {
    Message::Update { txn, predecessors: predecessors.to_vec() }
}
fn write_set(txn: TxnId, vector: &[u64]) -> Message {
    Message::WriteSet { txn, vector: vector.to_vec() }
}
fn apply_shipped(origin: ReplicaId, txn: TxnId, replica: ReplicaId) -> Effect {
    Effect::ApplyShipped { origin: Place::Proxy(origin), txn, replica }
}

/// Figure 2 (a).
#[test]
fn s2_b_transactions_that_do_not_conflict_start_chains_at_different_workers() {
    let mut rig = rig(3);
    rig.update(T1, [1]);
    rig.update(T2, [2]);
    rig.expect(&[given(W0, T1, &[]), given(W1, T2, &[])]);
}

/// Figure 2 (b).
#[test]
fn s2_b_a_transaction_that_conflicts_with_one_is_appended_to_its_chain() {
    let mut rig = rig(3);
    rig.update(T1, [1]);
    rig.update(T2, [2]);
    rig.update(T3, [1]);
    rig.update(T4, [1]);
    rig.expect(&[given(W0, T1, &[]), given(W1, T2, &[]), given(W0, T3, &[]), given(W0, T4, &[])]);
}

/// Figure 2 (c).
#[test]
fn s2_b_a_transaction_that_conflicts_with_two_chains_merges_them_and_names_the_other_workers_predecessor() {
    let mut rig = rig(3);
    rig.update(T1, [1]);
    rig.update(T2, [2]);
    rig.update(T3, [1, 2]);
    rig.expect(&[given(W0, T1, &[]), given(W1, T2, &[]), given(W1, T3, &[T1])]);
}

/// Figure 2 (d).
#[test]
fn s2_b_two_transactions_behind_one_that_do_not_conflict_split_the_chain() {
    let mut rig = rig(3);
    rig.update(T1, [1]);
    rig.update(T2, [2]);
    rig.update(T3, [1, 2]);
    rig.update(T4, [1]);
    rig.update(T5, [2]);
    rig.expect(&[
        given(W0, T1, &[]),
        given(W1, T2, &[]),
        given(W1, T3, &[T1]),
        given(W1, T4, &[]),
        given(W2, T5, &[T3]),
    ]);
}

#[test]
fn s3_a_worker_delays_a_transaction_until_it_has_the_write_sets_of_its_predecessors() {
    let mut rig = rig(2);
    rig.deliver(SCHEDULER, W1, update(T3, &[T1]));
    rig.expect(&[]);
    rig.deliver(Place::Proxy(W0), W1, write_set(T1, &[1, 0]));
    rig.expect(&[apply_shipped(W0, T1, W1)]);
    rig.at(Place::Proxy(W1), Event::ShippedApplied { origin: Place::Proxy(W0), txn: T1, replica: W1 });
    rig.expect(&[execute(T3, W1)]);
}

#[test]
fn s2_b_a_worker_runs_its_queue_in_order_and_ships_each_write_set_to_all_others() {
    let mut rig = rig(3);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.deliver(SCHEDULER, W0, update(T2, &[]));
    rig.expect(&[execute(T1, W0)]);
    rig.executed(T1, W0);
    rig.at(SCHEDULER, Event::Durable { csn: Csn(1) });
    let decision = Decision::Commit(T1);
    rig.expect(&[
        Effect::Append { csn: Csn(1), decision },
        Effect::CommitAt { txn: T1, replica: W0, csn: Csn(1) },
    ]);
    rig.at(Place::Proxy(W0), Event::Applied { replica: W0, csn: Csn(1) });
    let ship = |to| {
        let message = AnyMessage::Chains(write_set(T1, &[1, 0, 0]));
        Effect::Ship { txn: T1, to: Place::Proxy(to), message }
    };
    let finished = AnyMessage::Chains(Message::Finished { txn: T1, worker: W0 });
    rig.expect(&[
        Effect::Acknowledge { txn: T1, op: OpId(0), csn: Csn(1) },
        ship(W1),
        ship(W2),
        Effect::Send { to: SCHEDULER, message: finished },
        execute(T2, W0),
    ]);
}

#[test]
fn s3_write_sets_are_applied_in_causal_order() {
    let mut rig = rig(3);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.run(T1, W0, 1);
    // W1 contained T1 when it committed T2, and W2 hears of T2 first.
    rig.deliver(Place::Proxy(W1), W2, write_set(T2, &[1, 1, 0]));
    rig.expect(&[]);
    rig.deliver(Place::Proxy(W0), W2, write_set(T1, &[1, 0, 0]));
    rig.expect(&[apply_shipped(W0, T1, W2)]);
    rig.at(Place::Proxy(W2), Event::ShippedApplied { origin: Place::Proxy(W0), txn: T1, replica: W2 });
    rig.expect(&[apply_shipped(W1, T2, W2)]);
}

#[test]
fn s3_a_read_only_transaction_is_never_delayed() {
    let mut rig = rig(1);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.effects.clear();
    rig.single(T2, StatementKind::Read, [1], Mode::Shared);
    let message = AnyMessage::Chains(Message::Read { txn: T2 });
    rig.expect(&[Effect::Send { to: Place::Proxy(W0), message }]);
    rig.deliver(SCHEDULER, W0, Message::Read { txn: T2 });
    rig.expect(&[Effect::Execute { txn: T2, op: OpId(0), replica: W0, how: How::Alone, hold: false }]);
}
