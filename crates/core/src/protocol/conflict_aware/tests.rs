//! Titles are conditions and outcomes, by section of the paper; bodies are verbs; whole lists of effects are compared.

use smallvec::{SmallVec, smallvec};

use super::*;
use crate::effect::{Decision, Effect, Refusal};
use crate::event::{Event, Outcome, SequenceDefinition};
use crate::ids::TxnId;
use crate::item::{Mode, TableId};
use crate::scheduling::rig::*;

const WRITES: Mode = Mode::NoKeyExclusive;
const READS: Mode = Mode::Shared;

fn of(replicas: u16) -> Rig {
    rig(new(usize::from(replicas), Csn(0)), replicas)
}

/// T1 has declared that it writes A, and has done so on R0 but not on R1.
fn written_at_r0_only() -> Rig {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES), (B, READS)]);
    rig.statement(T1, OP0, write(A));
    rig.done(T1, OP0, R0);
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN), release(T1, OP0, R0)]);
    rig
}

// 3.3: lazy read-one, write-all.

#[test]
fn s3_3_a_write_goes_to_all_replicas_and_the_first_reply_is_the_clients() {
    let mut rig = of(3);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.expect(&[]);
    rig.statement(T1, OP0, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN), holds(T1, OP0, R2, OPEN)]);
    rig.done(T1, OP0, R1);
    rig.expect(&[release(T1, OP0, R1)]);
    rig.done(T1, OP0, R0);
    rig.done(T1, OP0, R2);
    rig.expect(&[]);
}

#[test]
fn s3_3_a_read_goes_to_one_replica_and_streams() {
    let mut rig = of(3);
    rig.begin_declaring(T1, [(A, READS)]);
    rig.statement(T1, OP0, read(A));
    rig.expect(&[streams(T1, OP0, R0, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.statement(T1, OP1, read(A));
    rig.expect(&[streams(T1, OP1, R1, OPEN)]);
}

// 3.5, 4.5: conflict awareness.

#[test]
fn s4_5_a_read_goes_where_the_writes_of_its_transaction_are_done() {
    let mut rig = written_at_r0_only();
    for op in [OP1, OP2] {
        rig.statement(T1, op, read(B));
        rig.expect(&[streams(T1, op, R0, ON)]);
        rig.done(T1, op, R0);
    }
    rig.done(T1, OP0, R1);
    rig.statement(T1, OP3, read(B));
    rig.expect(&[streams(T1, OP3, R1, ON)]);
}

#[test]
fn s4_5_a_read_goes_where_the_locks_of_its_transaction_are_granted() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.begin_declaring(T2, [(A, READS)]);
    rig.statement(T2, OP0, read(A));
    rig.done(T1, OP0, R1);
    rig.commit(T1, OP1);
    rig.durable(1);
    rig.skip();
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP1, 1), streams(T2, OP0, R1, OPEN)]);
}

#[test]
fn s4_5_of_several_such_replicas_the_least_loaded_is_taken() {
    let mut rig = of(3);
    rig.single(T1, read(A));
    rig.single(T2, read(A));
    rig.expect(&[streams(T1, OP0, R0, ALONE), streams(T2, OP0, R1, ALONE)]);
    rig.begin_declaring(T3, [(B, READS)]);
    rig.statement(T3, OP0, read(B));
    rig.expect(&[streams(T3, OP0, R2, OPEN)]);
}

#[test]
fn s4_5_an_operation_waits_in_its_transaction_queue_for_the_one_before() {
    let mut rig = written_at_r0_only();
    rig.statement(T1, OP1, write(A));
    rig.expect(&[holds(T1, OP1, R0, ON)]);
    rig.done(T1, OP1, R0);
    rig.commit(T1, OP2);
    rig.durable(1);
    rig.expect(&[release(T1, OP1, R0), append(T1, 1), commit_at(T1, R0, 1)]);
    rig.done(T1, OP0, R1);
    rig.expect(&[holds(T1, OP1, R1, ON)]);
    rig.done(T1, OP1, R1);
    rig.expect(&[commit_at(T1, R1, 1)]);
}

// 3.4, 4.4: lock requests in sequence order.

#[test]
fn s4_4_conflicting_transactions_execute_in_sequence_order_at_every_replica() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.begin_declaring(T2, [(A, WRITES)]);
    rig.statement(T2, OP0, write(A));
    rig.expect(&[]);
    rig.statement(T1, OP0, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.commit(T1, OP1);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.expect(&[
        release(T1, OP0, R0),
        append(T1, 1),
        commit_at(T1, R0, 1),
        acknowledge(T1, OP1, 1),
        holds(T2, OP0, R0, OPEN),
    ]);
    rig.done(T1, OP0, R1);
    rig.expect(&[commit_at(T1, R1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[holds(T2, OP0, R1, OPEN), forget(T1)]);
}

#[test]
fn s4_4_transactions_on_different_tables_do_not_wait_for_each_other() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.begin_declaring(T2, [(B, WRITES)]);
    rig.statement(T2, OP0, write(B));
    rig.statement(T1, OP0, write(A));
    rig.expect(&[holds(T2, OP0, R0, OPEN), holds(T1, OP0, R0, OPEN)]);
}

#[test]
fn s4_4_readers_of_a_table_hold_it_together() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(A, READS)]);
    rig.begin_declaring(T2, [(A, READS)]);
    rig.statement(T1, OP0, read(A));
    rig.statement(T2, OP0, read(A));
    rig.expect(&[streams(T1, OP0, R0, OPEN), streams(T2, OP0, R0, OPEN)]);
}

// 4.7, 5.3: commit and abort.

#[test]
fn s5_3_the_decision_is_durable_before_any_replica_commits_and_the_first_commit_answers() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.done(T1, OP0, R0);
    rig.done(T1, OP0, R1);
    rig.skip();
    rig.commit(T1, OP1);
    rig.expect(&[append(T1, 1)]);
    rig.durable(1);
    rig.expect(&[commit_at(T1, R0, 1), commit_at(T1, R1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP1, 1)]);
    rig.applied(R0, 1);
    rig.expect(&[forget(T1)]);
    rig.expect_nothing_left();
}

#[test]
fn s5_3_commits_that_do_not_conflict_take_place_in_any_order() {
    let mut rig = of(2);
    for (txn, table, csn) in [(T1, A, 1), (T2, B, 2)] {
        rig.begin_declaring(txn, [(table, WRITES)]);
        rig.statement(txn, OP0, write(table));
        rig.done(txn, OP0, R0);
        rig.done(txn, OP0, R1);
        rig.commit(txn, OP1);
        rig.durable(csn);
    }
    rig.skip();
    rig.applied(R0, 2);
    rig.expect(&[acknowledge(T2, OP1, 2)]);
    assert_eq!(rig.status().replicas[0].applied, 0, "there is a gap");
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(T1, OP1, 1)]);
    assert_eq!(rig.status().replicas[0].applied, 2);
}

#[test]
fn s4_7_an_abort_goes_to_all_replicas_and_lets_the_next_in_the_queue_go_on() {
    let mut rig = written_at_r0_only();
    rig.begin_declaring(T2, [(A, READS)]);
    rig.statement(T2, OP0, read(A));
    rig.expect(&[]);
    rig.rollback(T1);
    rig.expect(&[leave(T1, R0), leave(T1, R1), streams(T2, OP0, R0, OPEN)]);
    // Where it was still at work it might take locks of the database until it is answered.
    rig.begin_declaring(T3, [(A, WRITES)]);
    rig.statement(T3, OP0, write(A));
    rig.done(T2, OP0, R0);
    rig.commit(T2, OP1);
    rig.expect(&[finish(T2, OP1, Some(R0)), forget(T2), holds(T3, OP0, R0, OPEN)]);
    rig.done(T1, OP0, R1);
    rig.expect(&[holds(T3, OP0, R1, OPEN), forget(T1)]);
}

#[test]
fn s4_7_what_wrote_nothing_is_finished_at_one_replica_and_left_at_the_others() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, READS)]);
    for (op, replica) in [(OP0, R0), (OP1, R1)] {
        rig.statement(T1, op, read(A));
        rig.done(T1, op, replica);
    }
    rig.skip();
    rig.commit(T1, OP2);
    rig.expect(&[leave(T1, R1), finish(T1, OP2, Some(R0)), forget(T1)]);
    rig.expect_nothing_left();
}

#[test]
fn s4_7_a_transaction_without_statements_ends_without_a_database() {
    let mut rig = of(2);
    rig.begin(T1);
    rig.commit(T1, OP0);
    rig.expect(&[finish(T1, OP0, None), forget(T1)]);
    rig.begin_declaring(T2, [(A, WRITES)]);
    rig.commit(T2, OP0);
    rig.expect(&[finish(T2, OP0, None), forget(T2)]);
    rig.expect_nothing_left();
}

// 4.8: single-read transactions.

#[test]
fn s4_8_a_single_read_is_placed_where_no_conflicting_lock_is_held() {
    let mut rig = of(3);
    rig.single(T1, write(A));
    rig.done(T1, OP0, R2);
    rig.durable(1);
    rig.applied(R2, 1);
    rig.skip();
    for txn in [T2, T3] {
        rig.single(txn, read(A));
        rig.expect(&[streams(txn, OP0, R2, ALONE)]);
    }
    rig.single(T4, read(B));
    rig.expect(&[streams(T4, OP0, R0, ALONE)]);
}

#[test]
fn s4_8_if_every_replica_has_a_conflict_the_read_queues_behind_it_at_the_least_loaded() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.single(T2, read(A));
    rig.single(T3, read(A));
    rig.expect(&[]);
    rig.rollback(T1);
    rig.expect(&[streams(T2, OP0, R0, ALONE), streams(T3, OP0, R1, ALONE), forget(T1)]);
}

#[test]
fn s4_8_a_single_read_holds_its_locks_at_its_replica_only() {
    let mut rig = of(2);
    rig.single(T1, read(A));
    rig.single(T2, write(A));
    rig.expect(&[streams(T1, OP0, R0, ALONE), holds(T2, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[holds(T2, OP0, R0, OPEN), forget(T1)]);
}

#[test]
fn s4_8_a_session_reads_where_its_earlier_updates_are_committed() {
    let mut rig = of(3);
    rig.single_of_session(T1, 7, write(A));
    rig.done(T1, OP0, R1);
    rig.durable(1);
    rig.applied(R1, 1);
    rig.skip();
    rig.single_of_session(T2, 7, read(B));
    rig.expect(&[streams(T2, OP0, R1, ALONE)]);
    rig.single_of_session(T3, 8, read(B));
    rig.expect(&[streams(T3, OP0, R0, ALONE)]);
}

#[test]
fn s4_8_the_conflict_free_subset_is_taken_among_the_sessions_replicas_only() {
    let mut rig = of(3);
    rig.commit_write_at(T1, B, 1, &[R0, R1, R2]);
    rig.single_of_session(T2, 7, write(A));
    rig.done(T2, OP0, R1);
    rig.durable(2);
    rig.applied(R1, 2);
    // R1 now has the session's update, but a lock on B that other replicas let go.
    rig.single(T3, write(B));
    for replica in [R0, R2] {
        rig.done(T3, OP0, replica);
    }
    rig.durable(3);
    for replica in [R0, R2] {
        rig.applied(replica, 3);
    }
    rig.skip();
    rig.single_of_session(T4, 7, read(B));
    rig.expect(&[]);
    rig.done(T3, OP0, R1);
    rig.expect(&[commit_at(T3, R1, 3)]);
    rig.applied(R1, 3);
    rig.expect(&[streams(T4, OP0, R1, ALONE), forget(T3)]);
}

// 4.9: single-update transactions.

#[test]
fn s4_9_a_single_update_is_executed_everywhere_decided_at_the_first_reply_and_answered_by_the_first_commit() {
    let mut rig = of(2);
    rig.single(T1, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R1);
    rig.expect(&[append(T1, 1)]);
    rig.durable(1);
    rig.expect(&[commit_at(T1, R1, 1)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[commit_at(T1, R0, 1)]);
    rig.applied(R0, 1);
    rig.expect(&[release(T1, OP0, R1), acknowledge(T1, OP0, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[forget(T1)]);
    rig.expect_nothing_left();
}

#[test]
fn s4_9_a_single_update_waits_for_its_implicit_locks_at_each_replica() {
    let mut rig = of(2);
    rig.single(T1, write(A));
    rig.single(T2, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.skip();
    rig.applied(R0, 1);
    rig.expect(&[holds(T2, OP0, R0, OPEN), release(T1, OP0, R0), acknowledge(T1, OP0, 1)]);
}

#[test]
fn s3_1_a_single_update_lets_its_tables_go_when_it_is_done_where_engines_show_it() {
    let mut rig = rig_showing_uncommitted(new(2, Csn(0)), 2);
    rig.single(T1, write(A));
    rig.single(T2, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R1);
    rig.expect(&[holds(T2, OP0, R1, OPEN), append(T1, 1)]);
    // The order of decisions is that of the locks: its turn is after T1's, although both are done there.
    rig.done(T2, OP0, R1);
    rig.expect(&[append(T2, 2)]);
    // A read avoids R0, where T1 still holds the table.
    rig.durable(2);
    rig.skip();
    rig.single(T3, read(A));
    rig.expect(&[streams(T3, OP0, R1, ALONE)]);
}

#[test]
fn s3_1_a_single_update_that_fails_lets_nothing_go_before_it_is_left() {
    for outcome in [Outcome::Failed, Outcome::TooLarge] {
        let mut rig = rig_showing_uncommitted(new(1, Csn(0)), 1);
        rig.single(T1, write(A));
        rig.single(T2, write(A));
        rig.expect(&[holds(T1, OP0, R0, OPEN)]);
        rig.executed(T1, OP0, R0, outcome);
        let effects = rig.take();
        let place = |wanted| effects.iter().position(|effect| *effect == wanted);
        let (left, next) = (place(leave(T1, R0)), place(holds(T2, OP0, R0, OPEN)));
        assert!(left.is_some() && left < next, "{effects:?}");
    }
}

#[test]
fn s4_9_a_single_update_that_fails_is_answered_once_and_left_everywhere() {
    let mut rig = of(2);
    rig.single(T1, write(A));
    rig.skip();
    rig.fail(T1, OP0, R0);
    rig.expect(&[release(T1, OP0, R0), leave(T1, R0), leave(T1, R1)]);
    rig.fail(T1, OP0, R1);
    rig.expect(&[forget(T1)]);
    rig.expect_nothing_left();
}

#[test]
fn s4_9_a_statement_that_only_locks_rows_is_finished_without_a_decision() {
    let mut rig = of(2);
    rig.single(T1, lock_rows(A));
    rig.done(T1, OP0, R1);
    rig.expect(&[
        holds(T1, OP0, R0, OPEN),
        holds(T1, OP0, R1, OPEN),
        release(T1, OP0, R1),
        leave(T1, R0),
        finish(T1, OP0, Some(R1)),
    ]);
    rig.done(T1, OP0, R0);
    rig.expect(&[forget(T1)]);
}

// 3.1: tables that were not declared.

#[test]
fn s3_1_a_statement_on_an_undeclared_table_is_refused_and_ends_the_transaction() {
    let mut rig = written_at_r0_only();
    rig.statement(T1, OP1, write(C));
    rig.expect(&[refuse(T1, OP1, Refusal::Undeclared), leave(T1, R0), leave(T1, R1)]);
    rig.done(T1, OP0, R1);
    rig.expect(&[forget(T1)]);
}

#[test]
fn s3_1_a_table_declared_for_reading_may_not_be_written() {
    let mut rig = written_at_r0_only();
    rig.statement(T1, OP1, write(B));
    rig.expect(&[refuse(T1, OP1, Refusal::Undeclared), leave(T1, R0), leave(T1, R1)]);
}

#[test]
fn without_a_declaration_every_table_is_locked_with_a_notice() {
    let mut rig = of(1);
    rig.begin(T1);
    rig.expect(&[]);
    rig.statement(T1, OP0, write(A));
    rig.expect(&[notice(T1), holds(T1, OP0, R0, OPEN)]);
    rig.begin_declaring(T2, [(C, READS)]);
    rig.statement(T2, OP0, read(C));
    rig.expect(&[]);
    assert_eq!(rig.status().waits_for, [(2, vec![1])]);
}

/// Eight transactions that write A and B have committed without having declared anything.
fn learned() -> Rig {
    let mut rig = of(1);
    for n in 1..=8 {
        let txn = TxnId(100 + n);
        rig.begin(txn);
        rig.statement(txn, OP0, write(A));
        rig.done(txn, OP0, R0);
        rig.statement(txn, OP1, write(B));
        rig.done(txn, OP1, R0);
        rig.commit(txn, OP2);
        rig.durable(n);
        rig.applied(R0, n);
    }
    rig.skip();
    rig
}

#[test]
fn a_class_that_was_steady_locks_what_its_like_have_touched() {
    let mut rig = learned();
    rig.begin(T1);
    rig.statement(T1, OP0, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN)]);
    rig.single(T2, read(C));
    rig.expect(&[streams(T2, OP0, R0, ALONE)]);
    rig.single(T3, read(B));
    rig.expect(&[]);
}

#[test]
fn a_transaction_that_strays_from_its_class_is_refused_and_the_class_is_locked_widely_again() {
    let mut rig = learned();
    rig.begin(T1);
    rig.statement(T1, OP0, write(A));
    rig.done(T1, OP0, R0);
    rig.skip();
    rig.statement(T1, OP1, write(C));
    rig.expect(&[refuse(T1, OP1, Refusal::Mispredicted), leave(T1, R0), forget(T1)]);
    rig.begin(T2);
    rig.statement(T2, OP0, write(A));
    rig.expect(&[notice(T2), holds(T2, OP0, R0, OPEN)]);
}

#[test]
fn a_single_update_whose_answer_shows_another_table_starts_again_with_it_and_teaches_its_class() {
    let mut rig = of(2);
    rig.single(T1, write(A));
    rig.executed(T1, OP0, R0, showing(B));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.executed(T1, OP0, R1, showing(B));
    rig.expect(&[leave(T1, R0), leave(T1, R1), holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.executed(T1, OP0, R0, showing(B));
    rig.executed(T1, OP0, R1, showing(B));
    rig.durable(1);
    rig.applied(R0, 1);
    rig.applied(R1, 1);
    rig.skip();
    rig.begin_declaring(T2, [(B, WRITES)]);
    rig.single(T3, write(A));
    rig.expect(&[]);
    rig.rollback(T2);
    rig.expect(&[holds(T3, OP0, R0, OPEN), holds(T3, OP0, R1, OPEN), forget(T2)]);
}

#[test]
fn a_longer_transaction_whose_answer_shows_another_table_cannot_commit() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.executed(T1, OP0, R0, showing(B));
    rig.skip();
    rig.commit(T1, OP1);
    rig.expect(&[refuse(T1, OP1, Refusal::Undeclared), leave(T1, R0), forget(T1)]);
}

// Statements that fail.

#[test]
fn after_a_failed_read_only_its_replica_answers_until_the_failure_is_undone() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, savepoint());
    rig.done(T1, OP0, R0);
    rig.done(T1, OP0, R1);
    rig.statement(T1, OP1, read(A));
    rig.fail(T1, OP1, R0);
    rig.skip();
    rig.statement(T1, OP2, write(A));
    rig.expect(&[holds(T1, OP2, R0, ON), holds(T1, OP2, R1, ON)]);
    rig.done(T1, OP2, R1);
    rig.expect(&[]);
    rig.fail(T1, OP2, R0);
    rig.expect(&[release(T1, OP2, R0)]);
    rig.statement(T1, OP3, savepoint());
    rig.done(T1, OP3, R0);
    rig.done(T1, OP3, R1);
    rig.expect(&[holds(T1, OP3, R0, ON), holds(T1, OP3, R1, ON), release(T1, OP3, R0)]);
}

#[test]
fn a_failed_transaction_that_is_committed_ends_where_it_failed() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.fail(T1, OP0, R1);
    rig.skip();
    rig.commit(T1, OP1);
    rig.expect(&[leave(T1, R0), finish(T1, OP1, Some(R1))]);
    rig.fail(T1, OP0, R0);
    rig.expect(&[forget(T1)]);
    rig.expect_nothing_left();
}

#[test]
fn a_replica_on_which_a_write_fails_that_succeeded_elsewhere_applies_the_decision_from_the_log() {
    let mut rig = written_at_r0_only();
    rig.fail(T1, OP0, R1);
    rig.expect(&[leave(T1, R1)]);
    rig.statement(T1, OP1, write(A));
    rig.done(T1, OP1, R0);
    rig.commit(T1, OP2);
    rig.durable(1);
    rig.expect(&[
        holds(T1, OP1, R0, ON),
        release(T1, OP1, R0),
        append(T1, 1),
        commit_at(T1, R0, 1),
        apply(R1, 1, 1),
    ]);
    rig.applied(R1, 1);
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(T1, OP2, 1), forget(T1)]);
}

#[test]
fn a_write_that_fails_late_as_it_failed_elsewhere_lets_the_queue_go_on() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.fail(T1, OP0, R0);
    rig.statement(T1, OP1, savepoint());
    rig.skip();
    rig.fail(T1, OP0, R1);
    rig.expect(&[holds(T1, OP1, R1, ON)]);
}

// Waits that are given up.

#[test]
fn a_statement_that_waits_for_locks_can_be_cancelled_and_one_that_executes_cannot() {
    let mut rig = of(1);
    rig.single(T1, write(A));
    rig.single(T2, write(A));
    rig.single(T3, read(A));
    rig.skip();
    rig.cancel(T1, OP0);
    rig.expect(&[]);
    rig.cancel(T2, OP0);
    rig.expect(&[refuse(T2, OP0, Refusal::Cancelled), forget(T2)]);
    rig.cancel(T3, OP0);
    rig.expect(&[refuse(T3, OP0, Refusal::Cancelled), forget(T3)]);
}

#[test]
fn with_no_replica_in_service_everything_waits_until_one_comes_up() {
    let mut rig = of(1);
    rig.down(R0);
    rig.single(T1, write(A));
    rig.single(T2, read(B));
    rig.begin_declaring(T3, [(A, WRITES)]);
    rig.statement(T3, OP0, write(A));
    rig.single(T4, read(A));
    rig.expect(&[]);
    rig.cancel(T4, OP0);
    rig.expect(&[refuse(T4, OP0, Refusal::Cancelled), forget(T4)]);
    rig.up(R0, 0);
    rig.expect(&[streams(T2, OP0, R0, ALONE), holds(T1, OP0, R0, OPEN)]);
    rig.fail(T1, OP0, R0);
    rig.expect(&[release(T1, OP0, R0), leave(T1, R0), forget(T1), holds(T3, OP0, R0, OPEN)]);
}

// Replicas and connections are lost.

#[test]
fn a_transaction_goes_on_when_one_of_its_replicas_is_lost() {
    let mut rig = written_at_r0_only();
    rig.down(R0);
    rig.expect(&[]);
    rig.statement(T1, OP1, read(B));
    rig.expect(&[]);
    rig.done(T1, OP0, R1);
    rig.expect(&[streams(T1, OP1, R1, ON)]);
    rig.done(T1, OP1, R1);
    rig.commit(T1, OP2);
    rig.durable(1);
    rig.applied(R1, 1);
    rig.expect(&[append(T1, 1), commit_at(T1, R1, 1), acknowledge(T1, OP2, 1), forget(T1)]);
    rig.expect_nothing_left();
}

#[test]
fn a_write_pending_at_a_lost_replica_is_answered_by_another() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.skip();
    rig.down(R0);
    rig.lose(T1, OP0, R0, false);
    rig.expect(&[]);
    rig.done(T1, OP0, R1);
    rig.expect(&[release(T1, OP0, R1)]);
}

#[test]
fn a_read_that_a_lost_replica_has_answered_all_the_same_is_not_done_again() {
    let mut rig = of(2);
    rig.single(T1, read(A));
    rig.begin_declaring(T2, [(A, READS)]);
    rig.statement(T2, OP0, read(A));
    rig.expect(&[streams(T1, OP0, R0, ALONE), streams(T2, OP0, R1, OPEN)]);
    rig.down(R0);
    rig.done(T1, OP0, R0);
    rig.expect(&[forget(T1)]);
    // Nobody is left who executes the other one, whose client has seen something.
    rig.down(R1);
    rig.done(T2, OP0, R1);
    rig.expect(&[]);
    rig.statement(T2, OP1, read(A));
    rig.expect(&[refuse(T2, OP1, Refusal::HomeLost), forget(T2)]);
}

#[test]
fn a_read_lost_with_its_replica_runs_elsewhere_unless_a_part_was_seen() {
    for multi in [true, false] {
        for answer_begun in [true, false] {
            let mut rig = of(2);
            if multi {
                rig.begin_declaring(T1, [(A, READS)]);
                rig.statement(T1, OP0, read(A));
            } else {
                rig.single(T1, read(A));
            }
            let how = if multi { OPEN } else { ALONE };
            rig.expect(&[streams(T1, OP0, R0, how)]);
            rig.down(R0);
            rig.expect(&[]);
            rig.lose(T1, OP0, R0, answer_begun);
            if answer_begun {
                rig.expect(&[refuse(T1, OP0, Refusal::AnswerCut), forget(T1)]);
            } else {
                rig.expect(&[streams(T1, OP0, R1, how)]);
            }
        }
    }
}

#[test]
fn a_read_that_was_queued_at_a_lost_replica_is_placed_anew_at_once() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.single(T2, read(A));
    rig.down(R0);
    rig.expect(&[]);
    rig.rollback(T1);
    rig.expect(&[streams(T2, OP0, R1, ALONE), forget(T1)]);
}

#[test]
fn a_transaction_whose_replicas_are_all_lost_is_refused_at_its_next_step() {
    let mut rig = written_at_r0_only();
    rig.down(R0);
    rig.down(R1);
    rig.expect(&[]);
    rig.statement(T1, OP1, read(B));
    rig.expect(&[refuse(T1, OP1, Refusal::HomeLost), forget(T1)]);
}

#[test]
fn a_transaction_of_which_nothing_was_seen_starts_again_with_a_new_number() {
    let mut rig = of(1);
    rig.single(T1, write(A));
    rig.begin_declaring(T2, [(B, WRITES)]);
    rig.statement(T2, OP0, write(B));
    rig.skip();
    rig.down(R0);
    rig.expect(&[]);
    rig.up(R0, 0);
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T2, OP0, R0, OPEN)]);
}

#[test]
fn a_connection_lost_between_statements_costs_the_transaction_one_replica() {
    let mut rig = written_at_r0_only();
    rig.done(T1, OP0, R1);
    rig.on(Event::HomeLost { txn: T1, replica: R0 });
    rig.expect(&[]);
    rig.statement(T1, OP1, read(B));
    rig.expect(&[streams(T1, OP1, R1, ON)]);
    rig.done(T1, OP1, R1);
    rig.commit(T1, OP2);
    rig.durable(1);
    rig.expect(&[append(T1, 1), apply(R0, 1, 1), commit_at(T1, R1, 1)]);
}

#[test]
fn a_decided_transaction_whose_connection_is_lost_is_applied_there() {
    let mut rig = of(1);
    rig.single(T1, write(A));
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.skip();
    rig.on(Event::HomeLost { txn: T1, replica: R0 });
    rig.expect(&[apply(R0, 1, 1)]);
    rig.applied(R0, 1);
    rig.expect(&[release(T1, OP0, R0), acknowledge(T1, OP0, 1), forget(T1)]);
}

// 5.3.3: a replica comes back.

#[test]
fn s5_3_3_a_replica_that_comes_back_applies_what_it_missed_before_anything_new() {
    let mut rig = of(2);
    rig.down(R1);
    rig.commit_write_at(T1, A, 1, &[R0]);
    rig.commit_write_at(T2, B, 2, &[R0]);
    rig.up(R1, 0);
    rig.expect(&[apply(R1, 1, 2)]);
    rig.single(T3, write(C));
    rig.expect(&[holds(T3, OP0, R0, OPEN)]);
    rig.single(T4, read(A));
    rig.expect(&[streams(T4, OP0, R0, ALONE)]);
    rig.applied(R1, 1);
    rig.expect(&[]);
    rig.applied(R1, 2);
    rig.expect(&[holds(T3, OP0, R1, OPEN)]);
    assert!(rig.status().replicas[1].up);
}

#[test]
fn s5_3_3_transactions_under_way_are_applied_there_once_decided_and_later_ones_queue_behind() {
    let mut rig = of(2);
    rig.down(R1);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.done(T1, OP0, R0);
    rig.begin_declaring(T2, [(B, WRITES)]);
    rig.skip();
    rig.up(R1, 0);
    rig.single(T3, write(A));
    rig.single(T4, write(B));
    rig.expect(&[]);
    rig.rollback(T2);
    rig.expect(&[holds(T4, OP0, R0, OPEN), holds(T4, OP0, R1, OPEN), forget(T2)]);
    rig.commit(T1, OP1);
    rig.durable(1);
    rig.expect(&[append(T1, 1), commit_at(T1, R0, 1), apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[holds(T3, OP0, R1, OPEN), acknowledge(T1, OP1, 1)]);
    rig.applied(R0, 1);
    rig.expect(&[holds(T3, OP0, R0, OPEN), forget(T1)]);
}

#[test]
fn s5_3_3_a_commit_that_only_a_lost_replica_may_have_seen_is_acknowledged_when_one_contains_it() {
    let mut rig = of(1);
    rig.single(T1, write(A));
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.skip();
    rig.down(R0);
    rig.expect(&[]);
    rig.up(R0, 1);
    rig.expect(&[release(T1, OP0, R0), acknowledge(T1, OP0, 1), forget(T1)]);
    rig.expect_nothing_left();
}

#[test]
fn s5_3_3_what_was_decided_but_not_durable_when_a_replica_came_back_is_applied_there() {
    let mut rig = of(2);
    rig.down(R1);
    rig.single(T1, write(A));
    rig.done(T1, OP0, R0);
    rig.up(R1, 0);
    rig.skip();
    rig.durable(1);
    rig.expect(&[commit_at(T1, R0, 1), apply(R1, 1, 1)]);
}

#[test]
fn s5_3_3_a_replica_that_is_far_behind_applies_in_parts() {
    let protocol = new(1, Csn(300));
    let mut rig = rig(protocol, 0);
    rig.up(R0, 0);
    rig.expect(&[apply(R0, 1, 128)]);
    rig.applied(R0, 128);
    rig.expect(&[apply(R0, 129, 256)]);
    rig.single(T1, read(A));
    rig.applied(R0, 256);
    rig.expect(&[apply(R0, 257, 300)]);
    rig.applied(R0, 300);
    rig.expect(&[streams(T1, OP0, R0, ALONE)]);
}

// Sequences.

#[test]
fn sequence_values_are_given_when_their_reservation_is_durable_and_every_replica_applies_it() {
    let mut rig = of(2);
    let sequence = TableId(50);
    let definition = SequenceDefinition { next: 1, increment: 1, min: 1, max: i64::MAX, cycle: false };
    rig.on(Event::Sequence { sequence, definition });
    rig.on(Event::NextValues { txn: T1, op: OP0, wants: smallvec![(sequence, 1)] });
    rig.expect(&[Effect::Append { csn: Csn(1), decision: Decision::Reserve { sequence, last: 1_001 } }]);
    rig.durable(1);
    let values: SmallVec<[Option<i64>; 2]> = smallvec![Some(1)];
    rig.expect(&[Effect::Values { txn: T1, op: OP0, values }, apply(R0, 1, 1), apply(R1, 1, 1)]);
    rig.applied(R0, 1);
    assert_eq!(rig.status().replicas[0].applied, 1);
}
