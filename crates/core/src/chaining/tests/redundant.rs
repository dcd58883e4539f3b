//! Idle workers that execute a split chain's prefix as well (section VII); whole lists of effects are compared.

use super::*;

const T6: TxnId = TxnId(6);
const T7: TxnId = TxnId(7);
const T8: TxnId = TxnId(8);
const REDUNDANCY: Redundancy = Redundancy { kept_part: 4, longest: 2 };

fn rig_redundant(workers: usize) -> Rig<Scheduler, Worker> {
    let chains = new_redundant("chains_redundant", Order::OfConflicts, REDUNDANCY, workers, Csn(0));
    let mut rig = Rig::new(chains);
    (0..workers as u16).rev().for_each(|worker| rig.up(ReplicaId(worker), 0));
    rig
}

fn skipped(txn: TxnId) -> Message {
    Message::Skipped { txn }
}
fn left(txn: TxnId, replica: ReplicaId) -> Effect {
    Effect::Leave { txn, replica }
}

/// T1 runs at W0 and at W1; behind it stand T2 at W0 and T3 at W1.
fn rig_with_branches() -> Rig<Scheduler, Worker> {
    let mut rig = rig_redundant(4);
    rig.update(T1, [1, 2]);
    rig.update(T2, [1]);
    rig.update(T3, [2]);
    rig.expect(&[given(W0, T1, &[]), given(W0, T2, &[T1]), given(W1, T1, &[]), given(W1, T3, &[T1])]);
    for (worker, behind) in [(W0, T2), (W1, T3)] {
        rig.deliver(SCHEDULER, worker, update(T1, &[]));
        rig.deliver(SCHEDULER, worker, update(behind, &[T1]));
        rig.expect(&[execute(T1, worker)]);
    }
    rig
}

#[test]
fn who_is_first_serves_all_branches_and_the_other_applies_its_writes() {
    let mut rig = rig_with_branches();
    rig.run(T1, W1, 1);
    rig.tell(W1, finished(T1, &[0, 1, 0, 0]));
    rig.deliver(Place::Proxy(W1), W0, write_set(W1, T1, &[0, 1, 0, 0]));
    rig.expect(&[left(T1, W0), to_scheduler(skipped(T1)), apply_shipped(W1, T1, W0)]);
    rig.applied(W1, T1, W0);
    rig.expect(&[execute(T2, W0)]);
    // Of an execution that was given up nothing is heard any more.
    rig.executed(T1, W0, &[]);
    rig.expect(&[]);
}

#[test]
fn who_is_second_is_rolled_back_though_the_other_ones_writes_are_not_there_yet() {
    let mut rig = rig_with_branches();
    rig.run(T1, W1, 1);
    rig.executed(T1, W0, &[]);
    rig.expect(&[left(T1, W0), to_scheduler(skipped(T1))]);
    rig.deliver(Place::Proxy(W1), W0, write_set(W1, T1, &[0, 1, 0, 0]));
    rig.applied(W1, T1, W0);
    rig.expect(&[apply_shipped(W1, T1, W0), execute(T2, W0)]);
}

#[test]
fn what_was_decided_before_its_turn_has_come_is_not_executed() {
    let mut rig = rig_redundant(4);
    rig.update(T1, [1, 2]);
    rig.update(T2, [1]);
    rig.update(T3, [2]);
    rig.effects.clear();
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.run(T1, W0, 1);
    rig.deliver(SCHEDULER, W1, update(T1, &[]));
    rig.expect(&[to_scheduler(skipped(T1))]);
}

#[test]
fn of_two_executions_that_fail_the_client_hears_once() {
    let mut rig = rig_with_branches();
    rig.comes_of(T1, W1, Outcome::Failed);
    rig.effects.clear();
    rig.deliver(Place::Proxy(W1), W0, Message::WroteNothing { txn: T1 });
    rig.expect(&[left(T1, W0), to_scheduler(skipped(T1)), execute(T2, W0)]);
}

#[test]
fn a_replica_fails_what_another_one_has_as_well_is_not_given_out_again() {
    let mut rig = rig_with_branches();
    rig.down(W1);
    rig.tell(W1, given_back([T1, T3]));
    rig.expect(&[to_scheduler(given_back([T1, T3])), given(W2, T3, &[T1])]);
    rig.down(W0);
    rig.tell(W0, given_back([T1, T2]));
    rig.expect(&[to_scheduler(given_back([T1, T2])), given(W3, T1, &[]), given(W3, T2, &[T1])]);
}

#[test]
fn some_workers_stay_idle_for_what_arrives() {
    let mut rig = rig_redundant(4);
    for (txn, row) in [(T4, 4), (T5, 5)] {
        rig.update(txn, [row]);
    }
    rig.update(T6, [1, 2]);
    rig.update(T7, [1]);
    rig.effects.clear();
    // One of four is kept, so T8 waits for T6.
    rig.update(T8, [2]);
    rig.expect(&[]);
}

#[test]
fn a_prefix_that_is_too_long_is_waited_for() {
    let mut rig = rig_redundant(4);
    rig.update(T1, [1]);
    rig.update(T2, [1, 2]);
    rig.update(T3, [2, 3, 4]);
    rig.update(T4, [3]);
    rig.effects.clear();
    rig.update(T5, [4]);
    rig.expect(&[]);
}

#[test]
fn what_every_worker_contains_is_remembered_while_one_may_still_ask_for_it() {
    let mut rig = rig_with_branches();
    rig.run(T1, W1, 1);
    rig.tell(W1, finished(T1, &[0, 1, 0, 0]));
    for worker in [W0, W2, W3] {
        rig.tell(worker, Message::Contains { vector: [0, 1, 0, 0].into() });
    }
    // T1's rows are still those of somebody whom T4 has to stand behind.
    rig.effects.clear();
    rig.update(T4, [1]);
    rig.expect(&[given(W0, T4, &[T2])]);
    rig.tell(W0, skipped(T1));
    assert_eq!(rig.open(), 3);
}
