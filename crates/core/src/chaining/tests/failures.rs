//! Replicas that fail, return and join; whole lists of effects are compared.

use super::*;

/// T1 runs at W0, T2 waits behind it there.
fn rig_with_chain(workers: usize) -> Rig<Scheduler, Worker> {
    let mut rig = rig(workers);
    rig.update(T1, [1]);
    rig.update(T2, [1]);
    rig.expect(&[given(W0, T1, &[]), given(W0, T2, &[T1])]);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.deliver(SCHEDULER, W0, update(T2, &[T1]));
    rig.expect(&[execute(T1, W0)]);
    rig
}

#[test]
fn a_replica_fails_what_was_executing_and_queued_there_runs_elsewhere_in_the_same_order() {
    let mut rig = rig_with_chain(2);
    rig.down(W0);
    rig.expect(&[to_scheduler(given_back([T1, T2]))]);
    rig.tell(W0, given_back([T1, T2]));
    rig.expect(&[given(W1, T1, &[]), given(W1, T2, &[T1])]);
    // Whatever still comes of it there is nobody's.
    rig.executed(T1, W0, &[]);
    rig.expect(&[]);
}

#[test]
fn who_waits_elsewhere_for_what_was_given_back_waits_for_it_where_it_runs_now() {
    let mut rig = rig_with_chain(3);
    rig.update(T3, [3]);
    rig.update(T4, [2, 3]);
    rig.expect(&[given(W1, T3, &[]), given(W1, T4, &[T3])]);
    rig.update(T5, [1, 2]);
    rig.expect(&[given(W0, T5, &[T2, T4])]);
    rig.down(W1);
    rig.tell(W1, given_back([T3, T4]));
    rig.expect(&[given(W2, T3, &[]), given(W2, T4, &[T3])]);
    rig.deliver(SCHEDULER, W0, update(T5, &[T2, T4]));
    rig.run(T1, W0, 1);
    rig.run(T2, W0, 2);
    for (txn, csn) in [(T3, 3), (T4, 4)] {
        rig.deliver(SCHEDULER, W2, update(txn, &[]));
        rig.run(txn, W2, csn);
    }
    rig.deliver(Place::Proxy(W2), W0, write_set(W2, T3, &[0, 0, 1]));
    rig.applied(W2, T3, W0);
    rig.expect(&[apply_shipped(W2, T3, W0)]);
    rig.deliver(Place::Proxy(W2), W0, write_set(W2, T4, &[0, 0, 2]));
    rig.applied(W2, T4, W0);
    rig.expect(&[apply_shipped(W2, T4, W0), execute(T5, W0)]);
}

#[test]
fn all_workers_wait_for_what_was_given_back_one_of_them_runs_it_first() {
    let mut rig = rig(2);
    rig.update(T1, [1]);
    rig.update(T2, [2]);
    rig.update(T3, [1, 2]);
    rig.expect(&[given(W0, T1, &[]), given(W1, T2, &[]), given(W0, T3, &[T1, T2])]);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.deliver(SCHEDULER, W0, update(T3, &[T1, T2]));
    rig.run(T1, W0, 1);
    rig.tell(W0, finished(T1, &[1, 0]));
    rig.down(W1);
    rig.tell(W1, given_back([T2]));
    rig.expect(&[given(W0, T2, &[])]);
    rig.deliver(SCHEDULER, W0, update(T2, &[]));
    rig.expect(&[execute(T2, W0)]);
    rig.executed(T2, W0, &[]);
    rig.durable(2);
    rig.effects.clear();
    rig.committed(W0, 2);
    rig.expect(&[
        release(T2, W0),
        acknowledge(T2, 2),
        ship(W0, W1, T2, &[2, 0]),
        to_scheduler(finished(T2, &[2, 0])),
        execute(T3, W0),
    ]);
}

#[test]
fn a_replica_fails_between_decision_and_durability_its_update_is_acknowledged_and_shipped_when_durable() {
    let mut rig = rig_with_chain(2);
    rig.executed(T1, W0, &[]);
    rig.expect(&[append(T1, 1)]);
    rig.down(W0);
    rig.expect(&[to_scheduler(given_back([T2]))]);
    rig.durable(1);
    let lost = Message::LostIsDurable { txn: T1 };
    rig.expect(&[Effect::Send { to: W0_PLACE, message: AnyMessage::Chaining(lost.clone()) }]);
    rig.deliver(SCHEDULER, W0, lost);
    rig.expect(&[
        release(T1, W0),
        acknowledge(T1, 1),
        ship(W0, W1, T1, &[1, 0]),
        to_scheduler(finished(T1, &[0, 0])),
    ]);
}

#[test]
fn a_replica_fails_before_it_commits_what_is_durable_the_update_is_acknowledged_and_shipped_at_once() {
    let mut rig = rig_with_chain(2);
    rig.executed(T1, W0, &[]);
    rig.durable(1);
    rig.expect(&[append(T1, 1), commit_at(T1, W0, 1)]);
    rig.down(W0);
    rig.expect(&[
        to_scheduler(given_back([T2])),
        release(T1, W0),
        acknowledge(T1, 1),
        ship(W0, W1, T1, &[1, 0]),
        to_scheduler(finished(T1, &[0, 0])),
    ]);
    rig.committed(W0, 1);
    rig.expect(&[]);
}

#[test]
fn a_commit_is_lost_at_a_replica_that_is_well_its_writes_are_applied_there_before_the_next_update() {
    let mut rig = rig_with_chain(2);
    rig.executed(T1, W0, &[]);
    rig.durable(1);
    rig.effects.clear();
    rig.at(W0_PLACE, Event::HomeLost { txn: T1, replica: W0 });
    rig.expect(&[
        release(T1, W0),
        acknowledge(T1, 1),
        ship(W0, W1, T1, &[1, 0]),
        to_scheduler(finished(T1, &[0, 0])),
        apply_shipped(W0, T1, W0),
    ]);
    rig.applied(W0, T1, W0);
    rig.expect(&[execute(T2, W0)]);
}

#[test]
fn a_replica_returns_before_its_decided_update_is_durable_it_gets_its_writes_like_everybody() {
    let mut rig = rig(2);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.executed(T1, W0, &[]);
    rig.down(W0);
    rig.up(W0, 0);
    rig.deliver(SCHEDULER, W0, update(T2, &[]));
    rig.effects.clear();
    rig.durable(1);
    rig.deliver(SCHEDULER, W0, Message::LostIsDurable { txn: T1 });
    rig.effects.drain(..1);
    rig.expect(&[
        release(T1, W0),
        acknowledge(T1, 1),
        ship(W0, W1, T1, &[1, 0]),
        to_scheduler(finished(T1, &[0, 0])),
        apply_shipped(W0, T1, W0),
    ]);
    rig.applied(W0, T1, W0);
    rig.expect(&[execute(T2, W0)]);
}

#[test]
fn a_replica_fails_while_it_reads_the_transaction_reads_elsewhere() {
    let mut rig = rig(2);
    rig.reads(T1, 1);
    rig.deliver(SCHEDULER, W0, read(T1));
    rig.effects.clear();
    rig.down(W0);
    rig.expect(&[to_scheduler(given_back([T1]))]);
    rig.tell(W0, given_back([T1]));
    rig.expect(&[Effect::Send { to: Place::Proxy(W1), message: AnyMessage::Chaining(read(T1)) }]);
}

#[test]
fn an_execution_is_lost_nobody_has_seen_anything_of_it_it_runs_again() {
    let mut rig = rig_with_chain(2);
    rig.comes_of(T1, W0, Outcome::Lost { answer_begun: false });
    rig.expect(&[Effect::Leave { txn: T1, replica: W0 }, to_scheduler(given_back([T1]))]);
    rig.tell(W0, given_back([T1]));
    rig.expect(&[given(W1, T1, &[])]);
}

#[test]
fn a_read_is_lost_whose_answer_had_begun_it_is_refused() {
    let mut rig = rig(1);
    rig.reads(T1, 1);
    rig.deliver(SCHEDULER, W0, read(T1));
    rig.effects.clear();
    rig.comes_of(T1, W0, Outcome::Lost { answer_begun: true });
    let reason = crate::effect::Refusal::AnswerCut;
    rig.expect(&[
        Effect::Refuse { txn: T1, op: OpId(0), reason },
        to_scheduler(Message::Finished { txn: T1, vector: None }),
    ]);
}

#[test]
fn no_replica_is_up_transactions_wait_and_what_was_given_back_goes_first() {
    let mut rig = rig_with_chain(1);
    rig.down(W0);
    rig.tell(W0, given_back([T1, T2]));
    rig.effects.clear();
    rig.update(T3, [3]);
    rig.reads(T4, 3);
    rig.expect(&[]);
    rig.up(W0, 0);
    rig.expect(&[given(W0, T1, &[]), given(W0, T2, &[T1])]);
}

#[test]
fn what_is_on_its_way_to_a_replica_that_fails_is_given_back_when_it_arrives() {
    let mut rig = rig(2);
    rig.update(T1, [1]);
    rig.effects.clear();
    rig.down(W0);
    rig.expect(&[]);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.expect(&[to_scheduler(given_back([T1]))]);
}

#[test]
fn a_replica_returns_it_gets_the_log_and_is_used_when_it_contains_what_was_durable() {
    let mut rig = rig_with_chain(2);
    rig.down(W1);
    rig.run(T1, W0, 1);
    rig.run(T2, W0, 2);
    rig.deliver(W0_PLACE, W1, write_set(W0, T1, &[1, 0]));
    rig.tell(W0, finished(T1, &[1, 0]));
    rig.deliver(W0_PLACE, W1, write_set(W0, T2, &[2, 0]));
    rig.up(W1, 0);
    rig.expect(&[apply(W1, 1, 2)]);
    // What was decided later is kept until it has caught up.
    rig.deliver(SCHEDULER, W0, update(T3, &[]));
    rig.run(T3, W0, 3);
    rig.deliver(W0_PLACE, W1, write_set(W0, T3, &[3, 0]));
    rig.update(T4, [4]);
    rig.committed(W1, 1);
    rig.expect(&[]);
    rig.committed(W1, 2);
    rig.expect(&[apply_shipped(W0, T3, W1), given(W1, T4, &[])]);
}

#[test]
fn much_is_decided_while_a_replica_catches_up_it_goes_on_with_that_first() {
    let mut rig = rig(2);
    rig.down(W1);
    for csn in 1..=100 {
        rig.deliver(SCHEDULER, W0, update(TxnId(csn), &[]));
    }
    rig.run(T1, W0, 1);
    rig.up(W1, 0);
    rig.expect(&[apply(W1, 1, 1)]);
    for csn in 2..=100 {
        rig.run(TxnId(csn), W0, csn);
    }
    rig.committed(W1, 1);
    rig.expect(&[apply(W1, 2, 100)]);
    rig.committed(W1, 100);
    rig.deliver(SCHEDULER, W1, read(TxnId(101)));
    let how = How::Alone;
    rig.expect(&[Effect::Execute { txn: TxnId(101), op: OpId(0), replica: W1, how, hold: false }]);
}

#[test]
fn a_replica_is_away_what_all_others_contain_is_forgotten_and_it_counts_from_its_return() {
    let mut rig = rig(2);
    rig.update(T1, [1]);
    rig.deliver(SCHEDULER, W0, update(T1, &[]));
    rig.run(T1, W0, 1);
    rig.down(W1);
    rig.tell(W0, finished(T1, &[1, 0]));
    rig.tell(W0, Message::Contains { vector: [1, 0].as_slice().into() });
    rig.update(T2, [1]);
    rig.expect(&[given(W0, T2, &[])]);
    rig.deliver(SCHEDULER, W0, update(T2, &[]));
    rig.up(W1, 0);
    rig.run(T2, W0, 2);
    rig.tell(W0, finished(T2, &[2, 0]));
    rig.tell(W0, Message::Contains { vector: [2, 0].as_slice().into() });
    // It will contain T1 when it is used, and not yet T2.
    rig.update(T3, [1]);
    rig.expect(&[given(W0, T3, &[T2])]);
}

#[test]
fn a_replica_joins_it_gets_the_log_behind_its_copy_and_is_used() {
    let mut rig = rig_with_chain(1);
    rig.run(T1, W0, 1);
    rig.at(SCHEDULER, Event::ReplicaAdded { replica: W1 });
    rig.expect(&[]);
    rig.up(W1, 0);
    rig.expect(&[apply(W1, 1, 1)]);
    rig.update(T3, [3]);
    rig.committed(W1, 1);
    rig.expect(&[given(W1, T3, &[])]);
    rig.executed(T2, W0, &[]);
    rig.durable(2);
    rig.effects.clear();
    rig.committed(W0, 2);
    rig.expect(&[
        release(T2, W0),
        acknowledge(T2, 2),
        ship(W0, W1, T2, &[2, 0]),
        to_scheduler(finished(T2, &[2, 0])),
    ]);
}

#[test]
fn a_replica_is_about_to_leave_it_goes_on_and_is_given_something_only_if_there_is_no_other() {
    let mut rig = rig_with_chain(2);
    rig.at(W0_PLACE, Event::ReplicaLeaving { replica: W0 });
    rig.update(T3, [1]);
    rig.expect(&[]);
    rig.run(T1, W0, 1);
    rig.tell(W0, finished(T1, &[1, 0]));
    rig.run(T2, W0, 2);
    rig.tell(W0, finished(T2, &[2, 0]));
    rig.expect(&[given(W1, T3, &[T2])]);
    rig.down(W1);
    rig.tell(W1, given_back([T3]));
    rig.expect(&[given(W0, T3, &[T2])]);
}

#[test]
fn a_replica_that_has_left_for_good_is_not_taken_back() {
    let mut rig = rig(2);
    rig.at(W0_PLACE, Event::ReplicaRemoved { replica: W0 });
    rig.up(W0, 0);
    rig.update(T1, [1]);
    rig.update(T2, [2]);
    rig.expect(&[given(W1, T1, &[])]);
}
