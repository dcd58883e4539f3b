//! Transactions whose replica is lost go on elsewhere (docs/protocols/onecopy.md, *When a replica is lost*).

use super::rig::*;
use super::*;

#[test]
fn a_home_lost_after_a_statement_was_withdrawn_is_replaced_for_the_next_one() {
    let mut rig = rig();
    rig.single(T2, write(2));
    rig.begin(T1);
    rig.statement(T1, OP0, write(1));
    rig.done(T1, OP0, R1);
    rig.statement(T1, OP1, write(2));
    rig.cancel(T1, OP1);
    rig.effects.clear();
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.expect(&[leave(T1, R1)]);
    rig.statement(T1, OP2, read(1));
    rig.expect(&[Effect::Revalidate { txn: T1, replica: R0, how: OPEN_HOME }]);
}

#[test]
fn a_transaction_whose_home_is_lost_between_two_statements_keeps_its_items_and_moves_with_the_next() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(1));
    rig.done(T1, OP0, R0);
    rig.single(T2, write(1));
    rig.effects.clear();
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.expect(&[leave(T1, R0)]);
    // A read of a transaction that has written does not go to a snapshot.
    rig.statement(T1, OP1, read(7));
    rig.expect(&[Effect::Revalidate { txn: T1, replica: R1, how: OPEN_HOME }]);
    rig.on(Event::Revalidated { txn: T1, replica: R1, same: true });
    rig.expect(&[execute(T1, OP1, R1, HOME)]);
    rig.done(T1, OP1, R1);
    rig.commit(T1, OP2);
    rig.durable(1);
    assert!(rig.effects.contains(&commit_at(T1, R1, 1)));
    rig.effects.clear();
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP2, 1), execute_held(T2, OP0, R1, OPEN_HOME)]);
}

#[test]
fn a_transaction_that_cannot_be_done_again_elsewhere_is_told_that_its_home_was_lost() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(1));
    rig.done(T1, OP0, R0);
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.statement(T1, OP1, write(2));
    rig.effects.clear();
    rig.on(Event::Revalidated { txn: T1, replica: R1, same: false });
    rig.expect(&[leave(T1, R1), Effect::Refuse { txn: T1, op: OP1, reason: Refusal::HomeLost }]);
    assert!(rig.protocol.locks.held(T1).is_empty());
}

#[test]
fn a_transaction_whose_home_is_lost_before_its_commit_needs_no_other() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(1));
    rig.done(T1, OP0, R0);
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.effects.clear();
    rig.commit(T1, OP1);
    rig.expect(&[append(T1, 1)]);
    rig.durable(1);
    rig.expect(&[apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP1, 1)]);
}

#[test]
fn an_answer_heard_after_its_home_was_lost_decides_and_leaves_nothing_open() {
    let mut rig = rig();
    rig.single(T1, write(1));
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.effects.clear();
    rig.done(T1, OP0, R0);
    rig.expect(&[leave(T1, R0), append(T1, 1)]);
    rig.durable(1);
    rig.expect(&[apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP0, 1)]);
}

#[test]
fn a_statement_lost_with_its_home_runs_again_after_what_came_before_it() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(1));
    rig.done(T1, OP0, R0);
    rig.statement(T1, OP1, write(2));
    rig.effects.clear();
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.expect(&[]);
    let outcome = Outcome::Lost { answer_begun: false };
    rig.on(Event::Executed { txn: T1, op: OP1, replica: R0, outcome, elapsed_ns: 1 });
    rig.expect(&[Effect::Revalidate { txn: T1, replica: R1, how: OPEN_HOME }]);
    // The next one is lost before all was done again there: the first is back by then.
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(0) });
    rig.on(Event::HomeLost { txn: T1, replica: R1 });
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.expect(&[leave(T1, R1), Effect::Revalidate { txn: T1, replica: R0, how: OPEN_HOME }]);
    rig.on(Event::Revalidated { txn: T1, replica: R1, same: true });
    rig.expect(&[]);
    rig.on(Event::Revalidated { txn: T1, replica: R0, same: true });
    rig.expect(&[execute(T1, OP1, R0, HOME)]);
}

#[test]
fn a_statement_that_has_cost_three_servers_is_refused() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(1));
    let lost = |replica| {
        let outcome = Outcome::Lost { answer_begun: false };
        Event::Executed { txn: T1, op: OP0, replica, outcome, elapsed_ns: 1 }
    };
    // However often one that is not known to be down yet is found to be so, it counts once.
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.on(lost(R1));
    rig.on(lost(R0));
    rig.on(lost(R0));
    rig.on(lost(R0));
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.on(lost(R0));
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(0) });
    rig.effects.clear();
    rig.on(lost(R0));
    rig.expect(&[leave(T1, R0), Effect::Refuse { txn: T1, op: OP0, reason: Refusal::HomeLost }]);
}

#[test]
fn a_statement_that_waits_for_items_while_its_home_is_lost_moves_when_they_are_granted() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(1));
    rig.done(T1, OP0, R0);
    rig.begin(T2);
    rig.statement(T2, OP0, write(2));
    rig.done(T2, OP0, R1);
    rig.statement(T1, OP1, write(2));
    rig.effects.clear();
    rig.on(Event::ReplicaDown { replica: R0 });
    assert!(rig.effects.contains(&leave(T1, R0)));
    rig.effects.clear();
    rig.on(Event::Rollback { txn: T2 });
    assert_eq!(rig.effects.last(), Some(&Effect::Revalidate { txn: T1, replica: R1, how: OPEN_HOME }));
}

#[test]
fn a_read_phase_whose_replica_is_lost_goes_on_elsewhere_once_its_reads_were_answered_the_same() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.done(T1, OP0, R0);
    rig.effects.clear();
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.expect(&[leave(T1, R0)]);
    rig.statement(T1, OP1, read(2));
    rig.expect(&[Effect::Revalidate { txn: T1, replica: R1, how: OPEN_SNAPSHOT }]);
    rig.on(Event::Revalidated { txn: T1, replica: R1, same: true });
    rig.expect(&[execute(T1, OP1, R1, SNAPSHOT)]);
    rig.done(T1, OP1, R1);
    rig.commit(T1, OP2);
    rig.expect(&[Effect::Finish { txn: T1, op: OP2, replica: Some(R1) }]);
}
