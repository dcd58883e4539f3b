//! Sections II and III of the paper; whole lists of effects are compared.

mod failures;
mod redundant;
mod sites;

use super::*;
use crate::effect::How;
use crate::event::{Event, Outcome, StatementKind};
use crate::ids::OpId;
use crate::item::{Access, Mode};
use crate::workers::SCHEDULER;
use crate::workers::rig::*;

fn rig_of(order: Order, workers: usize) -> Rig<Scheduler, Worker> {
    let mut rig = Rig::new(super::new("chains", order, workers, Csn(0)));
    // The last that comes is the first that is used.
    (0..workers as u16).rev().for_each(|worker| rig.up(ReplicaId(worker), 0));
    rig.expect(&[]);
    rig
}
fn rig(workers: usize) -> Rig<Scheduler, Worker> {
    rig_of(Order::OfConflicts, workers)
}

impl Rig<Scheduler, Worker> {
    /// A transaction that writes these rows.
    fn update<const N: usize>(&mut self, txn: TxnId, rows: [i64; N]) {
        self.arrive(txn, 0, StatementKind::Write, rows.map(changed));
    }
    /// One that reads a row.
    fn reads(&mut self, txn: TxnId, row: i64) {
        self.arrive(txn, 0, StatementKind::Read, [Access { mode: Mode::Shared, ..changed(row) }]);
    }
    fn deliver(&mut self, from: Place, worker: ReplicaId, message: Message) {
        self.message(from, Place::Proxy(worker), AnyMessage::Chaining(message));
    }
    fn tell(&mut self, from: ReplicaId, message: Message) {
        self.message(Place::Proxy(from), SCHEDULER, AnyMessage::Chaining(message));
    }
    /// Runs an update at its worker up to its commit.
    fn run(&mut self, txn: TxnId, worker: ReplicaId, csn: u64) {
        self.executed(txn, worker, &[]);
        self.durable(csn);
        self.committed(worker, csn);
        self.effects.clear();
    }
}

fn given(worker: ReplicaId, txn: TxnId, predecessors: &[TxnId]) -> Effect {
    let message = AnyMessage::Chaining(update(txn, predecessors));
    Effect::Send { to: Place::Proxy(worker), message }
}
fn update(txn: TxnId, predecessors: &[TxnId]) -> Message {
    Message::Update { txn, predecessors: predecessors.to_vec(), is_ordered: true }
}
fn read(txn: TxnId) -> Message {
    Message::Read { txn }
}
fn write_set(origin: ReplicaId, txn: TxnId, vector: &[u64]) -> Message {
    Message::WriteSet { txn, origin, vector: vector.into() }
}
fn ship(origin: ReplicaId, to: ReplicaId, txn: TxnId, vector: &[u64]) -> Effect {
    let message = AnyMessage::Chaining(write_set(origin, txn, vector));
    Effect::Ship { txn, to: Place::Proxy(to), message }
}
fn finished(txn: TxnId, vector: &[u64]) -> Message {
    Message::Finished { txn, vector: Some(vector.into()) }
}
fn given_back<const N: usize>(txns: [TxnId; N]) -> Message {
    Message::GivenBack { txns: txns.to_vec() }
}
fn to_scheduler(message: Message) -> Effect {
    Effect::Send { to: SCHEDULER, message: AnyMessage::Chaining(message) }
}

const W3: ReplicaId = ReplicaId(3);
const W0_PLACE: Place = Place::Proxy(W0);

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
    rig.expect(&[given(W0, T1, &[]), given(W1, T2, &[]), given(W0, T3, &[T1]), given(W0, T4, &[T3])]);
}

/// Figure 2 (c).
#[test]
fn s2_b_a_transaction_that_conflicts_with_two_chains_merges_them_and_names_its_predecessors() {
    let mut rig = rig(3);
    rig.update(T1, [1]);
    rig.update(T2, [2]);
    rig.update(T3, [1, 2]);
    rig.expect(&[given(W0, T1, &[]), given(W1, T2, &[]), given(W0, T3, &[T1, T2])]);
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
    rig.expect(&[given(W0, T1, &[]), given(W1, T2, &[]), given(W0, T3, &[T1, T2]), given(W0, T4, &[T3])]);
    // The second takes no worker before the transaction behind which both are is over.
    rig.tell(W0, finished(T1, &[1, 0, 0]));
    rig.tell(W1, finished(T2, &[1, 1, 0]));
    rig.expect(&[]);
    rig.tell(W0, finished(T3, &[2, 1, 0]));
    rig.expect(&[given(W1, T5, &[T3])]);
}

#[test]
fn s2_b_where_chains_meet_the_longest_goes_on() {
    let mut rig = rig(3);
    rig.update(T1, [1]);
    rig.update(T2, [2]);
    rig.update(T3, [2]);
    rig.effects.clear();
    rig.update(T4, [1, 2]);
    rig.expect(&[given(W1, T4, &[T1, T3])]);
}

#[test]
fn s5_b_what_finds_no_worker_waits_for_one_and_its_chain_with_it() {
    let mut rig = rig(1);
    rig.update(T1, [1]);
    rig.update(T2, [2]);
    rig.update(T3, [2]);
    rig.update(T4, [1]);
    rig.reads(T5, 9);
    rig.expect(&[given(W0, T1, &[]), given(W0, T4, &[T1])]);
    rig.tell(W0, finished(T1, &[1]));
    rig.expect(&[]);
    rig.tell(W0, finished(T4, &[2]));
    rig.expect(&[given(W0, T2, &[]), given(W0, T3, &[T2])]);
    rig.tell(W0, finished(T2, &[3]));
    rig.tell(W0, finished(T3, &[4]));
    rig.expect(&[Effect::Send { to: Place::Proxy(W0), message: AnyMessage::Chaining(read(T5)) }]);
}

#[test]
fn s2_b_what_every_worker_contains_is_no_predecessor_any_more() {
    let mut rig = rig(2);
    rig.update(T1, [1]);
    rig.tell(W0, finished(T1, &[1, 0]));
    rig.effects.clear();
    // It is over, but not everywhere: whoever runs elsewhere has to wait for its writes.
    rig.update(T2, [2]);
    rig.update(T3, [1]);
    rig.expect(&[given(W0, T2, &[]), given(W1, T3, &[T1])]);
    rig.tell(W1, finished(T3, &[1, 1]));
    rig.tell(W1, Message::Contains { vector: [1, 1].as_slice().into() });
    rig.tell(W0, finished(T2, &[2, 1]));
    rig.tell(W0, Message::Contains { vector: [2, 1].as_slice().into() });
    rig.update(T4, [1]);
    rig.expect(&[given(W0, T4, &[])]);
}

#[test]
fn s4_b_centralised_writes_is_one_chain_beside_which_reads_run() {
    let mut rig = rig_of(Order::OfAll, 3);
    rig.update(T1, [1]);
    rig.update(T2, [2]);
    rig.reads(T3, 1);
    let message = AnyMessage::Chaining(read(T3));
    rig.expect(&[given(W0, T1, &[]), given(W0, T2, &[T1]), Effect::Send { to: Place::Proxy(W1), message }]);
}

#[test]
fn s3_a_worker_delays_a_transaction_until_it_has_the_write_sets_of_its_predecessors() {
    let mut rig = rig(2);
    rig.update(T1, [1]);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.deliver(SCHEDULER, W1, update(T3, &[T1]));
    rig.expect(&[given(W0, T1, &[]), execute(T1, W0)]);
    rig.run(T1, W0, 1);
    rig.deliver(W0_PLACE, W1, write_set(W0, T1, &[1, 0]));
    rig.expect(&[apply_shipped(W0, T1, W1)]);
    rig.applied(W0, T1, W1);
    rig.expect(&[execute(T3, W1)]);
}

#[test]
fn s2_b_a_worker_runs_its_queue_in_order_and_ships_each_write_set_to_all_others() {
    let mut rig = rig(3);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.deliver(SCHEDULER, W0, update(T2, &[]));
    rig.expect(&[execute(T1, W0)]);
    rig.executed(T1, W0, &[]);
    rig.durable(1);
    rig.expect(&[append(T1, 1), commit_at(T1, W0, 1)]);
    rig.committed(W0, 1);
    rig.expect(&[
        release(T1, W0),
        acknowledge(T1, 1),
        ship(W0, W1, T1, &[1, 0, 0]),
        ship(W0, W2, T1, &[1, 0, 0]),
        to_scheduler(finished(T1, &[1, 0, 0])),
        execute(T2, W0),
    ]);
}

#[test]
fn who_waits_for_an_update_that_fails_waits_for_what_that_had_seen() {
    let mut rig = rig(2);
    rig.update(T1, [1]);
    rig.update(T2, [1]);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.deliver(SCHEDULER, W0, update(T2, &[T1]));
    rig.deliver(SCHEDULER, W1, update(T3, &[T2]));
    rig.run(T1, W0, 1);
    rig.comes_of(T2, W0, Outcome::Failed);
    let wrote_nothing = Message::WroteNothing { txn: T2 };
    rig.expect(&[
        release(T2, W0),
        Effect::Leave { txn: T2, replica: W0 },
        Effect::Send { to: Place::Proxy(W1), message: AnyMessage::Chaining(wrote_nothing.clone()) },
        to_scheduler(finished(T2, &[1, 0])),
    ]);
    rig.deliver(W0_PLACE, W1, wrote_nothing);
    rig.expect(&[]);
    rig.deliver(W0_PLACE, W1, write_set(W0, T1, &[1, 0]));
    rig.expect(&[apply_shipped(W0, T1, W1)]);
    rig.applied(W0, T1, W1);
    rig.expect(&[execute(T3, W1)]);
}

#[test]
fn who_has_seen_what_an_update_had_seen_that_fails_goes_on_when_it_hears_of_that() {
    let mut rig = rig(2);
    rig.update(T1, [1]);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.deliver(SCHEDULER, W1, update(T2, &[T1]));
    rig.comes_of(T1, W0, Outcome::Failed);
    rig.effects.clear();
    rig.deliver(W0_PLACE, W1, Message::WroteNothing { txn: T1 });
    rig.expect(&[execute(T2, W1)]);
}

#[test]
fn s3_write_sets_are_applied_in_causal_order() {
    let mut rig = rig(3);
    // W1 contained T1 when it committed T2, and W2 hears of T2 first.
    rig.deliver(Place::Proxy(W1), W2, write_set(W1, T2, &[1, 1, 0]));
    rig.expect(&[]);
    rig.deliver(W0_PLACE, W2, write_set(W0, T1, &[1, 0, 0]));
    rig.expect(&[apply_shipped(W0, T1, W2)]);
    rig.applied(W0, T1, W2);
    rig.expect(&[apply_shipped(W1, T2, W2)]);
}

#[test]
fn write_sets_of_which_none_has_seen_another_are_applied_side_by_side_and_those_of_one_worker_in_turn() {
    let mut rig = rig(3);
    rig.deliver(W0_PLACE, W2, write_set(W0, T1, &[1, 0, 0]));
    rig.deliver(W0_PLACE, W2, write_set(W0, T2, &[2, 0, 0]));
    rig.deliver(Place::Proxy(W1), W2, write_set(W1, T3, &[0, 1, 0]));
    rig.deliver(Place::Proxy(W1), W2, write_set(W1, T4, &[2, 2, 0]));
    rig.expect(&[apply_shipped(W0, T1, W2), apply_shipped(W1, T3, W2)]);
    rig.applied(W1, T3, W2);
    rig.expect(&[]);
    rig.applied(W0, T1, W2);
    rig.expect(&[apply_shipped(W0, T2, W2)]);
    rig.applied(W0, T2, W2);
    rig.expect(&[apply_shipped(W1, T4, W2)]);
}

#[test]
fn what_is_being_applied_when_an_update_is_decided_may_have_been_seen_by_it() {
    let mut rig = rig(2);
    rig.deliver(SCHEDULER, W1, update(T2, &[]));
    rig.deliver(W0_PLACE, W1, write_set(W0, T1, &[1, 0]));
    rig.run(T2, W1, 1);
    rig.deliver(SCHEDULER, W1, update(T3, &[]));
    rig.executed(T3, W1, &[]);
    rig.durable(2);
    rig.effects.clear();
    rig.committed(W1, 2);
    rig.expect(&[
        release(T3, W1),
        acknowledge(T3, 2),
        ship(W1, W0, T3, &[1, 2]),
        to_scheduler(finished(T3, &[0, 2])),
    ]);
}

#[test]
fn s3_a_read_only_transaction_is_not_delayed_for_writes() {
    let mut rig = rig(2);
    rig.update(T1, [1]);
    rig.effects.clear();
    rig.reads(T2, 1);
    rig.expect(&[Effect::Send { to: Place::Proxy(W1), message: AnyMessage::Chaining(read(T2)) }]);
    rig.deliver(SCHEDULER, W1, read(T2));
    rig.expect(&[Effect::Execute { txn: T2, op: OpId(0), replica: W1, how: How::Alone, hold: false }]);
}
