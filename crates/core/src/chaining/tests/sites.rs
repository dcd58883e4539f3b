//! Several schedulers (section VII); whole lists of effects are compared. Two sites: W0 and W2 belong to the first, W1 and W3 to the second.

use super::*;
use crate::event::{Begin, Statement};
use crate::ids::{ClassId, NodeId, SessionId};

const FIRST: Place = Place::Scheduler(NodeId(0));
const SECOND: Place = Place::Scheduler(NodeId(1));

fn rig_apart(optimism: Optimism) -> Rig<Sites, Worker> {
    let mut rig = Rig::new(new_distributed("chains_distributed", 2, optimism, 4, Csn(0)));
    (0..4).rev().for_each(|worker| rig.up(ReplicaId(worker), 0));
    rig.expect(&[]);
    rig
}

fn rows<const N: usize>(rows: [i64; N]) -> Arc<[Access]> {
    rows.map(changed).into()
}

impl Rig<Sites, Worker> {
    fn update_at<const N: usize>(&mut self, site: Place, txn: TxnId, of: [i64; N]) {
        let session = SessionId(u64::from(site == SECOND));
        let begin = Begin { txn, session, read_only: false, form: 0, declared: None, stale_ok_ns: None };
        let statement =
            Statement::new(ClassId(1), StatementKind::Write, of.map(changed).into_iter().collect());
        self.at(site, Event::Autocommit { begin, statement });
    }
    fn says(&mut self, from: Place, to: Place, message: Message) {
        self.message(from, to, AnyMessage::Chaining(message));
    }
    fn executed_again(&mut self, txn: TxnId, replica: ReplicaId) {
        let outcome = Outcome::Done { returned: Vec::new() };
        let event = Event::Executed { txn, op: OpId(1), replica, outcome, elapsed_ns: 1 };
        self.at(Place::Proxy(replica), event);
    }
    /// Runs an update at its worker up to its commit.
    fn run(&mut self, txn: TxnId, worker: ReplicaId, csn: u64) {
        self.executed(txn, worker, &[]);
        self.durable(csn);
        self.committed(worker, csn);
        self.effects.clear();
    }
}

fn execute_again(txn: TxnId, replica: ReplicaId) -> Effect {
    Effect::Execute { txn, op: OpId(1), replica, how: How::Home { open: true }, hold: true }
}
fn sent(to: Place, message: Message) -> Effect {
    Effect::Send { to, message: AnyMessage::Chaining(message) }
}
fn unordered(txn: TxnId, predecessors: &[TxnId]) -> Message {
    Message::Update { txn, predecessors: predecessors.to_vec(), is_ordered: false }
}
fn confirmed(txn: TxnId, predecessors: &[TxnId]) -> Message {
    Message::Confirmed { txn, predecessors: predecessors.to_vec() }
}
fn announced<const N: usize>(txn: TxnId, of: [i64; N]) -> Message {
    Message::Announced { txn, accesses: rows(of) }
}
fn ordered<const N: usize>(txn: TxnId, site: u16, of: [i64; N]) -> Message {
    Message::Ordered { txn, site: NodeId(site), accesses: rows(of) }
}

#[test]
fn transactions_arrive_at_the_schedulers_of_their_sites() {
    let rig = rig_apart(Optimism::AtOnce);
    assert_eq!([0, 1, 2].map(|session| rig.place_of_session(session)), [FIRST, SECOND, FIRST]);
}

#[test]
fn what_arrives_where_all_is_ordered_is_ordered_at_once() {
    let mut rig = rig_apart(Optimism::AtOnce);
    rig.update_at(FIRST, T1, [1]);
    rig.expect(&[sent(SECOND, ordered(T1, 0, [1])), given(W0, T1, &[])]);
}

#[test]
fn what_arrives_elsewhere_runs_and_is_decided_when_its_place_is_known() {
    let mut rig = rig_apart(Optimism::AtOnce);
    rig.update_at(SECOND, T1, [1]);
    rig.expect(&[sent(Place::Proxy(W1), unordered(T1, &[])), sent(FIRST, announced(T1, [1]))]);
    rig.says(SECOND, FIRST, announced(T1, [1]));
    rig.expect(&[sent(SECOND, ordered(T1, 1, [1]))]);
    rig.says(SECOND, Place::Proxy(W1), unordered(T1, &[]));
    rig.expect(&[execute(T1, W1)]);
    rig.executed(T1, W1, &[1]);
    rig.expect(&[]);
    rig.says(FIRST, SECOND, ordered(T1, 1, [1]));
    rig.expect(&[sent(Place::Proxy(W1), confirmed(T1, &[]))]);
    rig.says(SECOND, Place::Proxy(W1), confirmed(T1, &[]));
    rig.expect(&[append(T1, 1)]);
}

#[test]
fn without_optimism_it_gets_a_worker_when_its_place_is_known() {
    let mut rig = rig_apart(Optimism::WhenOrdered);
    rig.update_at(SECOND, T1, [1]);
    rig.expect(&[sent(FIRST, announced(T1, [1]))]);
    rig.says(FIRST, SECOND, ordered(T1, 1, [1]));
    rig.expect(&[given(W1, T1, &[])]);
}

/// T1 of the first site came before T2 of the second, which began before that was known there.
fn rig_with_a_wrong_guess() -> Rig<Sites, Worker> {
    let mut rig = rig_apart(Optimism::AtOnce);
    rig.update_at(FIRST, T1, [1]);
    rig.update_at(SECOND, T2, [1]);
    rig.effects.clear();
    rig.says(SECOND, Place::Proxy(W1), unordered(T2, &[]));
    rig.says(FIRST, Place::Proxy(W0), update(T1, &[]));
    rig.says(FIRST, SECOND, ordered(T1, 0, [1]));
    rig.says(FIRST, SECOND, ordered(T2, 1, [1]));
    rig.expect(&[execute(T2, W1), execute(T1, W0), sent(Place::Proxy(W1), confirmed(T2, &[T1]))]);
    rig
}

#[test]
fn who_should_have_waited_for_another_site_is_rolled_back_and_runs_behind_that() {
    let mut rig = rig_with_a_wrong_guess();
    rig.says(SECOND, Place::Proxy(W1), confirmed(T2, &[T1]));
    rig.expect(&[Effect::Leave { txn: T2, replica: W1 }]);
    rig.run(T1, W0, 1);
    rig.says(Place::Proxy(W0), Place::Proxy(W1), write_set(W0, T1, &[1, 0, 0, 0]));
    rig.applied(W0, T1, W1);
    rig.expect(&[apply_shipped(W0, T1, W1), execute_again(T2, W1)]);
    // Of the execution that was rolled back it is heard only now.
    rig.executed(T2, W1, &[1]);
    rig.expect(&[]);
    rig.executed_again(T2, W1);
    rig.expect(&[append(T2, 2)]);
}

#[test]
fn what_came_after_it_began_it_has_not_seen() {
    let mut rig = rig_with_a_wrong_guess();
    rig.executed(T2, W1, &[1]);
    rig.run(T1, W0, 1);
    rig.says(Place::Proxy(W0), Place::Proxy(W1), write_set(W0, T1, &[1, 0, 0, 0]));
    rig.applied(W0, T1, W1);
    rig.effects.clear();
    // Its worker contains T1 by now; it did not when T2 began.
    rig.says(SECOND, Place::Proxy(W1), confirmed(T2, &[T1]));
    rig.expect(&[Effect::Leave { txn: T2, replica: W1 }, execute_again(T2, W1)]);
}

#[test]
fn what_fails_before_its_place_is_known_may_do_so_because_of_what_it_lacks() {
    let mut rig = rig_with_a_wrong_guess();
    rig.comes_of(T2, W1, Outcome::Failed);
    rig.expect(&[]);
    rig.says(SECOND, Place::Proxy(W1), confirmed(T2, &[T1]));
    rig.expect(&[Effect::Leave { txn: T2, replica: W1 }]);
}

#[test]
fn who_knows_that_it_is_behind_another_site_waits_for_that_without_a_worker() {
    let mut rig = rig_apart(Optimism::AtOnce);
    rig.says(FIRST, SECOND, ordered(T1, 0, [1]));
    rig.update_at(SECOND, T2, [1]);
    rig.expect(&[sent(FIRST, announced(T2, [1]))]);
    let finished = finished(T1, &[1, 0, 0, 0]);
    rig.says(Place::Proxy(W0), SECOND, finished);
    rig.expect(&[sent(Place::Proxy(W1), unordered(T2, &[T1]))]);
}

#[test]
fn what_is_over_before_its_place_is_known_here_is_not_waited_for() {
    let mut rig = rig_apart(Optimism::WhenOrdered);
    rig.says(Place::Proxy(W0), SECOND, finished(T1, &[1, 0, 0, 0]));
    rig.says(FIRST, SECOND, ordered(T1, 0, [1]));
    rig.says(FIRST, SECOND, ordered(T2, 1, [1]));
    rig.expect(&[given(W1, T2, &[T1])]);
}

#[test]
fn an_ordered_update_gets_a_worker_though_none_is_idle() {
    let mut rig = rig_apart(Optimism::WhenOrdered);
    rig.says(FIRST, SECOND, ordered(T1, 1, [1]));
    rig.says(FIRST, SECOND, ordered(T2, 1, [2]));
    rig.expect(&[given(W1, T1, &[]), given(W3, T2, &[])]);
    rig.says(FIRST, SECOND, ordered(T3, 1, [3]));
    rig.expect(&[given(W1, T3, &[])]);
}

#[test]
fn a_replica_returns_and_all_that_is_ordered_gets_a_worker_there() {
    let mut rig = rig_apart(Optimism::WhenOrdered);
    for worker in [W1, W3] {
        rig.down(worker);
    }
    rig.says(FIRST, SECOND, ordered(T1, 1, [1]));
    rig.says(FIRST, SECOND, ordered(T2, 1, [2]));
    rig.effects.clear();
    rig.up(W1, 0);
    rig.expect(&[given(W1, T1, &[]), given(W1, T2, &[])]);
}

#[test]
fn what_turns_out_to_be_behind_another_site_gives_up_its_turn_for_a_worker() {
    let mut rig = rig_apart(Optimism::AtOnce);
    for (txn, row) in [(T3, 3), (T4, 4), (T5, 5)] {
        rig.update_at(SECOND, txn, [row]);
    }
    rig.effects.clear();
    // T5 waits for a worker, and now for T1 as well.
    rig.says(FIRST, SECOND, ordered(T1, 0, [5]));
    rig.says(FIRST, SECOND, ordered(T5, 1, [5]));
    rig.expect(&[]);
    rig.says(Place::Proxy(W0), SECOND, finished(T1, &[1, 0, 0, 0]));
    rig.expect(&[given(W1, T5, &[T1])]);
}
