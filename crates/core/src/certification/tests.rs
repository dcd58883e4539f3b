//! Section IV.B of the paper; whole lists of effects are compared.

use super::*;
use crate::effect::{Decision, How};
use crate::event::{Begin, Outcome, Statement, StatementKind};
use crate::ids::{ClassId, OpId, SessionId};
use crate::item::{ColumnId, Item, Mode, TableId, ValueHash};

const W0: ReplicaId = ReplicaId(0);
const W1: ReplicaId = ReplicaId(1);
const T1: TxnId = TxnId(1);
const T2: TxnId = TxnId(2);
const T3: TxnId = TxnId(3);

struct Rig {
    protocol: Certified,
    effects: Vec<Effect>,
}

fn rig(placement: Placement, workers: usize) -> Rig {
    Rig { protocol: Certified::new("certified", placement, workers, Csn(0)), effects: Vec::new() }
}

impl Rig {
    fn at(&mut self, place: Place, event: Event) {
        self.protocol.handle(place, Instant(0), event, &mut self.effects);
    }
    #[track_caller]
    fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
    fn arrive(&mut self, txn: TxnId, form: u64, kind: StatementKind) {
        let begin =
            Begin { txn, session: SessionId(0), read_only: false, form, declared: None, stale_ok_ns: None };
        let statement = Statement::new(ClassId(form), kind, [].into_iter().collect());
        self.at(SCHEDULER, Event::Autocommit { begin, statement });
    }
    fn deliver(&mut self, from: Place, to: Place, message: Message) {
        self.at(to, Event::Message { from, message: AnyMessage::Certification(message) });
    }
    fn executed(&mut self, txn: TxnId, replica: ReplicaId, row: i64) {
        let outcome = Outcome::Done { returned: vec![written(row)] };
        self.at(Place::Proxy(replica), Event::Executed { txn, op: OpId(0), replica, outcome, elapsed_ns: 1 });
    }
}

fn written(row: i64) -> Access {
    Access::new(Item::rows(TableId(1), [(ColumnId(1), ValueHash::of_integer(row))]), Mode::NoKeyExclusive)
}
fn say(to: Place, message: Message) -> Effect {
    Effect::Send { to, message: AnyMessage::Certification(message) }
}
fn run(worker: ReplicaId, txn: TxnId) -> Effect {
    say(Place::Proxy(worker), Message::Run { txn, updates: true })
}
fn execute(txn: TxnId, replica: ReplicaId) -> Effect {
    Effect::Execute { txn, op: OpId(0), replica, how: How::Home { open: true }, hold: true }
}
fn certify(txn: TxnId, snapshot: &[u64], row: i64) -> Message {
    Message::Certify { txn, snapshot: snapshot.into(), writes: [written(row)].into() }
}
fn finished(txn: TxnId, vector: &[u64]) -> Message {
    Message::Finished { txn, vector: vector.into() }
}

#[test]
fn s4_b_workers_take_turns_and_each_keeps_a_queue() {
    let mut rig = rig(Placement::Turns, 2);
    rig.arrive(T1, 0, StatementKind::Write);
    rig.arrive(T2, 0, StatementKind::Write);
    rig.arrive(T3, 0, StatementKind::Write);
    rig.expect(&[run(W0, T1), run(W1, T2), run(W0, T3)]);
    rig.deliver(SCHEDULER, Place::Proxy(W0), Message::Run { txn: T1, updates: true });
    rig.deliver(SCHEDULER, Place::Proxy(W0), Message::Run { txn: T3, updates: true });
    rig.expect(&[execute(T1, W0)]);
}

#[test]
fn s4_b_a_worker_without_work_moves_to_a_busy_group_unless_its_own_would_be_busy_then() {
    let mut rig = rig(Placement::Groups, 4);
    // Three workers for one kind, one for the other, for which one more waits.
    for (txn, form) in [(1, 7), (2, 7), (3, 7), (4, 8), (5, 8), (6, 8)] {
        rig.arrive(TxnId(txn), form, StatementKind::Write);
    }
    let [w2, w3] = [ReplicaId(2), ReplicaId(3)];
    rig.expect(&[run(W0, T1), run(W1, T2), run(w2, T3), run(w3, TxnId(4))]);
    // The others of its group would be busy altogether.
    rig.deliver(Place::Proxy(w2), SCHEDULER, finished(T3, &[0; 4]));
    rig.expect(&[]);
    rig.deliver(Place::Proxy(W1), SCHEDULER, finished(T2, &[0; 4]));
    rig.expect(&[run(W1, TxnId(5))]);
    // A group that has nobody comes first.
    rig.arrive(TxnId(7), 9, StatementKind::Write);
    rig.expect(&[]);
    rig.deliver(Place::Proxy(w3), SCHEDULER, finished(TxnId(4), &[0; 4]));
    rig.expect(&[run(w3, TxnId(7))]);
    rig.deliver(Place::Proxy(W1), SCHEDULER, finished(TxnId(5), &[0; 4]));
    rig.expect(&[run(W1, TxnId(6))]);
}

#[test]
fn s4_b_what_conflicts_with_a_commit_that_it_has_not_seen_runs_again_when_that_is_there() {
    let mut rig = rig(Placement::Turns, 2);
    rig.deliver(SCHEDULER, Place::Proxy(W0), Message::Run { txn: T1, updates: true });
    rig.deliver(SCHEDULER, Place::Proxy(W1), Message::Run { txn: T2, updates: true });
    rig.executed(T1, W0, 5);
    rig.executed(T2, W1, 5);
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
    rig.expect(&[Effect::ApplyShipped { origin: Place::Proxy(W0), txn: T1, replica: W1 }]);
    rig.at(Place::Proxy(W1), Event::ShippedApplied { origin: Place::Proxy(W0), txn: T1, replica: W1 });
    rig.expect(&[execute(T2, W1)]);
    rig.executed(T2, W1, 5);
    rig.expect(&[say(SCHEDULER, certify(T2, &[1, 0], 5))]);
    rig.deliver(Place::Proxy(W1), SCHEDULER, certify(T2, &[1, 0], 5));
    rig.expect(&[say(Place::Proxy(W1), Message::Certified { txn: T2 })]);
}

#[test]
fn s4_b_what_may_commit_is_decided_committed_and_sent_to_all_others() {
    let mut rig = rig(Placement::Turns, 2);
    rig.deliver(SCHEDULER, Place::Proxy(W0), Message::Run { txn: T1, updates: true });
    rig.executed(T1, W0, 5);
    rig.effects.clear();
    rig.deliver(SCHEDULER, Place::Proxy(W0), Message::Certified { txn: T1 });
    rig.at(SCHEDULER, Event::Durable { csn: Csn(1) });
    rig.expect(&[
        Effect::Append { csn: Csn(1), decision: Decision::Commit(T1) },
        Effect::CommitAt { txn: T1, replica: W0, csn: Csn(1) },
    ]);
    rig.at(Place::Proxy(W0), Event::Applied { replica: W0, csn: Csn(1) });
    let vector: Vector = [1, 0].as_slice().into();
    let message = AnyMessage::Certification(Message::WriteSet { txn: T1, vector });
    rig.expect(&[
        Effect::Release { txn: T1, op: OpId(0), replica: W0 },
        Effect::Acknowledge { txn: T1, op: OpId(0), csn: Csn(1) },
        Effect::Ship { txn: T1, to: Place::Proxy(W1), message },
        say(SCHEDULER, finished(T1, &[1, 0])),
    ]);
}

#[test]
fn what_a_running_transaction_has_not_seen_is_remembered_however_much_is_applied_meanwhile() {
    let mut rig = rig(Placement::Turns, 2);
    rig.deliver(SCHEDULER, Place::Proxy(W1), Message::Run { txn: T1, updates: true });
    rig.effects.clear();
    for number in 1..=100 {
        let (origin, txn) = (Place::Proxy(W0), TxnId(100 + number));
        let vector: Vector = [number, 0].as_slice().into();
        rig.deliver(origin, Place::Proxy(W1), Message::WriteSet { txn, vector });
        rig.at(Place::Proxy(W1), Event::ShippedApplied { origin, txn, replica: W1 });
    }
    let told = |effect: &Effect| {
        matches!(effect, Effect::Send { message: AnyMessage::Certification(Message::Contains { .. }), .. })
    };
    assert!(!rig.effects.iter().any(told), "the scheduler would forget what T1 has to be compared with");
    rig.executed(T1, W1, 5);
    rig.effects.clear();
    rig.deliver(SCHEDULER, Place::Proxy(W1), Message::Again { txn: T1, after: Vec::new() });
    assert!(rig.effects.contains(&execute(T1, W1)));
}
