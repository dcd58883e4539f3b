//! Section IV.B of the paper; whole lists of effects are compared.

use super::*;
use crate::effect::Decision;
use crate::event::StatementKind;
use crate::workers::SCHEDULER;
use crate::workers::rig::*;

fn rig(placement: Placement, workers: usize) -> Rig<Scheduler, Worker> {
    Rig::new(super::new("certified", placement, Retry::Here, workers, Csn(0)))
}

impl Rig<Scheduler, Worker> {
    fn updates(&mut self, txn: TxnId, form: u64) {
        self.arrive(txn, form, StatementKind::Write, []);
    }
    fn deliver(&mut self, from: Place, to: Place, message: Message) {
        self.message(from, to, AnyMessage::Certification(message));
    }
}

fn say(to: Place, message: Message) -> Effect {
    Effect::Send { to, message: AnyMessage::Certification(message) }
}
fn run(worker: ReplicaId, txn: TxnId) -> Effect {
    say(Place::Proxy(worker), Message::Run { txn, updates: true, after: Vec::new() })
}
fn certify(txn: TxnId, snapshot: &[u64], row: i64) -> Message {
    Message::Certify { txn, snapshot: snapshot.into(), writes: [changed(row)].into() }
}
fn finished(txn: TxnId, vector: &[u64]) -> Message {
    Message::Finished { txn, vector: vector.into() }
}

#[test]
fn s4_b_workers_take_turns_and_each_keeps_a_queue() {
    let mut rig = rig(Placement::Turns, 2);
    rig.updates(T1, 0);
    rig.updates(T2, 0);
    rig.updates(T3, 0);
    rig.expect(&[run(W0, T1), run(W1, T2), run(W0, T3)]);
    rig.deliver(SCHEDULER, Place::Proxy(W0), Message::Run { txn: T1, updates: true, after: Vec::new() });
    rig.deliver(SCHEDULER, Place::Proxy(W0), Message::Run { txn: T3, updates: true, after: Vec::new() });
    rig.expect(&[execute(T1, W0)]);
}

#[test]
fn s4_b_a_worker_without_work_moves_to_a_busy_group_unless_its_own_would_be_busy_then() {
    let mut rig = rig(Placement::Groups, 4);
    // Three workers for one kind, one for the other, for which one more waits.
    for (txn, form) in [(1, 7), (2, 7), (3, 7), (4, 8), (5, 8), (6, 8)] {
        rig.updates(TxnId(txn), form);
    }
    let [w2, w3] = [ReplicaId(2), ReplicaId(3)];
    rig.expect(&[run(W0, T1), run(W1, T2), run(w2, T3), run(w3, TxnId(4))]);
    // The others of its group would be busy altogether.
    rig.deliver(Place::Proxy(w2), SCHEDULER, finished(T3, &[0; 4]));
    rig.expect(&[]);
    rig.deliver(Place::Proxy(W1), SCHEDULER, finished(T2, &[0; 4]));
    rig.expect(&[run(W1, TxnId(5))]);
    // A group that has nobody comes first.
    rig.updates(TxnId(7), 9);
    rig.expect(&[]);
    rig.deliver(Place::Proxy(w3), SCHEDULER, finished(TxnId(4), &[0; 4]));
    rig.expect(&[run(w3, TxnId(7))]);
    rig.deliver(Place::Proxy(W1), SCHEDULER, finished(TxnId(5), &[0; 4]));
    rig.expect(&[run(W1, TxnId(6))]);
}

#[test]
fn s4_b_what_conflicts_with_a_commit_that_it_has_not_seen_runs_again_when_that_is_there() {
    let mut rig = rig(Placement::Turns, 2);
    rig.deliver(SCHEDULER, Place::Proxy(W0), Message::Run { txn: T1, updates: true, after: Vec::new() });
    rig.deliver(SCHEDULER, Place::Proxy(W1), Message::Run { txn: T2, updates: true, after: Vec::new() });
    rig.executed(T1, W0, &[5]);
    rig.executed(T2, W1, &[5]);
    rig.expect(&[
        execute(T1, W0),
        execute(T2, W1),
        say(SCHEDULER, certify(T1, &[0, 0], 5)),
        say(SCHEDULER, certify(T2, &[0, 0], 5)),
    ]);
    rig.deliver(Place::Proxy(W0), SCHEDULER, certify(T1, &[0, 0], 5));
    rig.deliver(Place::Proxy(W1), SCHEDULER, certify(T2, &[0, 0], 5));
    let after = vec![Numbered { worker: W0, number: 1 }];
    rig.expect(&[
        say(Place::Proxy(W0), Message::Certified { txn: T1 }),
        say(Place::Proxy(W1), Message::Again { txn: T2, after: after.clone() }),
    ]);
    rig.deliver(SCHEDULER, Place::Proxy(W1), Message::Again { txn: T2, after });
    rig.expect(&[Effect::Leave { txn: T2, replica: W1 }]);
    let vector: Vector = [1, 0].as_slice().into();
    rig.deliver(Place::Proxy(W0), Place::Proxy(W1), Message::WriteSet { txn: T1, vector });
    rig.expect(&[apply_shipped(W0, T1, W1)]);
    rig.applied(W0, T1, W1);
    rig.expect(&[execute(T2, W1)]);
    rig.executed(T2, W1, &[5]);
    rig.expect(&[say(SCHEDULER, certify(T2, &[1, 0], 5))]);
    rig.deliver(Place::Proxy(W1), SCHEDULER, certify(T2, &[1, 0], 5));
    rig.expect(&[say(Place::Proxy(W1), Message::Certified { txn: T2 })]);
}

#[test]
fn s4_b_what_may_commit_is_decided_committed_and_sent_to_all_others() {
    let mut rig = rig(Placement::Turns, 2);
    rig.deliver(SCHEDULER, Place::Proxy(W0), Message::Run { txn: T1, updates: true, after: Vec::new() });
    rig.executed(T1, W0, &[5]);
    rig.effects.clear();
    rig.deliver(SCHEDULER, Place::Proxy(W0), Message::Certified { txn: T1 });
    rig.durable(1);
    rig.expect(&[
        Effect::Append { csn: Csn(1), decision: Decision::Commit(T1) },
        Effect::CommitAt { txn: T1, replica: W0, csn: Csn(1) },
    ]);
    rig.committed(W0, 1);
    let vector: Vector = [1, 0].as_slice().into();
    let message = AnyMessage::Certification(Message::WriteSet { txn: T1, vector });
    rig.expect(&[
        release(T1, W0),
        acknowledge(T1, 1),
        Effect::Ship { txn: T1, to: Place::Proxy(W1), message },
        say(SCHEDULER, finished(T1, &[1, 0])),
    ]);
}

#[test]
fn what_a_running_transaction_has_not_seen_is_remembered_however_much_is_applied_meanwhile() {
    let mut rig = rig(Placement::Turns, 2);
    rig.deliver(SCHEDULER, Place::Proxy(W1), Message::Run { txn: T1, updates: true, after: Vec::new() });
    rig.effects.clear();
    for number in 1..=100 {
        let txn = TxnId(100 + number);
        let vector: Vector = [number, 0].as_slice().into();
        rig.deliver(Place::Proxy(W0), Place::Proxy(W1), Message::WriteSet { txn, vector });
        rig.applied(W0, txn, W1);
    }
    let told = |effect: &Effect| {
        matches!(effect, Effect::Send { message: AnyMessage::Certification(Message::Contains { .. }), .. })
    };
    assert!(!rig.effects.iter().any(told), "the scheduler would forget what T1 has to be compared with");
    rig.executed(T1, W1, &[5]);
    rig.effects.clear();
    rig.deliver(SCHEDULER, Place::Proxy(W1), Message::Again { txn: T1, after: Vec::new() });
    assert!(rig.effects.contains(&execute(T1, W1)));
}

#[test]
fn s4_b_of_one_queue_whoever_is_free_takes_the_next_of_whatever_kind() {
    let mut rig = rig(Placement::OneQueue, 2);
    for (txn, form) in [(T1, 7), (T2, 8), (T3, 9), (T4, 7)] {
        rig.updates(txn, form);
    }
    rig.expect(&[run(W0, T1), run(W1, T2)]);
    rig.deliver(Place::Proxy(W1), SCHEDULER, finished(T2, &[0, 0]));
    rig.deliver(Place::Proxy(W0), SCHEDULER, finished(T1, &[0, 0]));
    rig.expect(&[run(W1, T3), run(W0, T4)]);
}

#[test]
fn s4_b_what_is_given_up_goes_behind_what_waits_if_that_is_asked_for_and_sees_then_what_it_conflicted_with() {
    for placement in [Placement::Groups, Placement::OneQueue, Placement::Turns] {
        let mut rig = Rig::new(super::new("certified", placement, Retry::Last, 2, Csn(0)));
        for txn in [T1, T2, T3] {
            rig.updates(txn, 7);
        }
        rig.effects.clear();
        rig.deliver(Place::Proxy(W0), SCHEDULER, certify(T1, &[0, 0], 5));
        rig.expect(&[say(Place::Proxy(W0), Message::Certified { txn: T1 })]);
        rig.deliver(Place::Proxy(W1), SCHEDULER, certify(T2, &[0, 0], 5));
        let after = vec![Numbered { worker: W0, number: 1 }];
        let again =
            |worker| say(Place::Proxy(worker), Message::Run { txn: T2, updates: true, after: after.clone() });
        let given_up = say(Place::Proxy(W1), Message::GivenUp { txn: T2 });
        if placement == Placement::Turns {
            // T3 stands at the first worker already, so it is the second one's turn.
            rig.expect(&[given_up, again(W1)]);
            continue;
        }
        rig.expect(&[given_up, run(W1, T3)]);
        rig.deliver(Place::Proxy(W0), SCHEDULER, finished(T1, &[1, 0]));
        rig.expect(&[again(W0)]);
    }
}

#[test]
fn s4_b_a_worker_that_gives_something_up_goes_on_with_what_waits_there_when_it_contains_what_that_is_to_see()
{
    let mut rig = rig(Placement::Turns, 2);
    let after = vec![Numbered { worker: W0, number: 1 }];
    rig.deliver(SCHEDULER, Place::Proxy(W1), Message::Run { txn: T2, updates: true, after: Vec::new() });
    rig.deliver(SCHEDULER, Place::Proxy(W1), Message::Run { txn: T3, updates: true, after });
    rig.effects.clear();
    rig.executed(T2, W1, &[5]);
    rig.effects.clear();
    rig.deliver(SCHEDULER, Place::Proxy(W1), Message::GivenUp { txn: T2 });
    rig.expect(&[Effect::Leave { txn: T2, replica: W1 }]);
    let vector: Vector = [1, 0].as_slice().into();
    rig.deliver(Place::Proxy(W0), Place::Proxy(W1), Message::WriteSet { txn: T1, vector });
    rig.applied(W0, T1, W1);
    rig.expect(&[apply_shipped(W0, T1, W1), execute(T3, W1)]);
}
