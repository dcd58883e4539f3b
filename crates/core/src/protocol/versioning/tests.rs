//! Titles are conditions and outcomes, by section of DV; bodies are verbs; whole lists of effects are compared.

use super::*;
use crate::effect::Refusal;
use crate::item::Mode;
use crate::scheduling::rig::*;

const READS: Mode = Mode::Shared;
const WRITES: Mode = Mode::NoKeyExclusive;

fn of(replicas: u16) -> Rig {
    rig(new(usize::from(replicas), Csn(0)), replicas)
}

/// On an engine that shows what is not committed.
fn of_showing(replicas: u16) -> Rig {
    rig_showing_uncommitted(new(usize::from(replicas), Csn(0)), replicas)
}

/// Begins a transaction, and commits it when its statements are done, at the only replica.
fn commit(rig: &mut Rig, txn: crate::ids::TxnId, csn: u64) {
    rig.commit(txn, OP1);
    rig.durable(csn);
    rig.applied(R0, csn);
}

#[test]
fn s3_1_a_write_goes_to_all_replicas_and_is_answered_by_the_first() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R1);
    rig.expect(&[release(T1, OP0, R1)]);
    rig.commit(T1, OP1);
    rig.durable(1);
    rig.applied(R1, 1);
    rig.expect(&[append(T1, 1), commit_at(T1, R1, 1), acknowledge(T1, OP1, 1)]);
    rig.done(T1, OP0, R0);
    rig.applied(R0, 1);
    rig.expect(&[commit_at(T1, R0, 1), forget(T1)]);
    rig.expect_nothing_left();
}

/// DV figure 4, right: claim dv-25.
#[test]
fn s3_6_two_transactions_that_write_the_same_three_tables_take_four_steps() {
    let mut rig = of_showing(1);
    for txn in [T1, T2] {
        rig.begin_declaring(txn, [(A, WRITES), (B, WRITES), (C, WRITES)]);
    }
    // Step 1.
    rig.statement(T1, OP0, last(write(A), &[A]));
    rig.statement(T2, OP0, last(write(A), &[A]));
    rig.expect(&[holds(T1, OP0, R0, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.statement(T1, OP1, last(write(B), &[A, B]));
    // Step 2.
    rig.expect(&[release(T1, OP0, R0), holds(T2, OP0, R0, OPEN), holds(T1, OP1, R0, ON)]);
    rig.done(T1, OP1, R0);
    rig.done(T2, OP0, R0);
    rig.statement(T1, OP2, last(write(C), &[A, B, C]));
    rig.statement(T2, OP1, last(write(B), &[A, B]));
    // Step 3.
    rig.expect(&[release(T1, OP1, R0), release(T2, OP0, R0), holds(T1, OP2, R0, ON), holds(T2, OP1, R0, ON)]);
    rig.done(T1, OP2, R0);
    rig.done(T2, OP1, R0);
    rig.statement(T2, OP2, last(write(C), &[A, B, C]));
    // Step 4.
    rig.expect(&[release(T1, OP2, R0), release(T2, OP1, R0), holds(T2, OP2, R0, ON)]);
}

/// DV figures 6 and 7: versions 0 1 2 3 4 4 4 7, claim dv-24.
#[test]
fn s4_2_of_the_papers_eight_transactions_the_three_readers_run_together_and_the_last_writer_after_them() {
    let mut rig = of(1);
    let modes = [WRITES, WRITES, READS, WRITES, READS, READS, READS, WRITES];
    let txns: Vec<_> = (1..=8).map(crate::ids::TxnId).collect();
    let is_read = |index: usize| modes[index] == READS;
    for (txn, mode) in txns.iter().zip(modes) {
        rig.begin_declaring(*txn, [(A, mode)]);
        rig.statement(*txn, OP0, if mode == READS { read(A) } else { write(A) });
    }
    let runs = |index: usize| {
        if is_read(index) { streams(txns[index], OP0, R0, OPEN) } else { holds(txns[index], OP0, R0, OPEN) }
    };
    let mut csn = 0;
    let mut started = Vec::new();
    for (index, txn) in txns.iter().enumerate() {
        started.push(rig.take().contains(&runs(index)));
        rig.done(*txn, OP0, R0);
        if is_read(index) {
            rig.commit(*txn, OP1);
        } else {
            csn += 1;
            commit(&mut rig, *txn, csn);
        }
    }
    // The second and third reader have started with the first, so they do not start when their turn comes.
    assert_eq!(started, [true, true, true, true, true, false, false, true]);
    rig.skip();
    rig.expect_nothing_left();
}

#[test]
fn s4_3_a_transaction_waits_only_for_the_tables_of_its_present_operation() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.begin_declaring(T2, [(A, WRITES), (B, WRITES)]);
    rig.statement(T2, OP0, write(B));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T2, OP0, R0, OPEN)]);
    rig.done(T2, OP0, R0);
    rig.statement(T2, OP1, write(A));
    rig.done(T1, OP0, R0);
    rig.skip();
    commit(&mut rig, T1, 1);
    rig.expect(&[
        append(T1, 1),
        commit_at(T1, R0, 1),
        holds(T2, OP1, R0, ON),
        acknowledge(T1, OP1, 1),
        forget(T1),
    ]);
}

#[test]
fn s4_3_a_read_goes_where_its_version_is_there_and_waits_at_the_scheduler_for_the_first_such_replica() {
    let mut rig = of(2);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.begin_declaring(T2, [(A, READS), (B, WRITES)]);
    rig.statement(T2, OP0, read(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R1);
    rig.commit(T1, OP1);
    rig.durable(1);
    rig.skip();
    rig.applied(R1, 1);
    // R0 has less to do, and is not there yet.
    rig.expect(&[acknowledge(T1, OP1, 1), streams(T2, OP0, R1, OPEN)]);
    assert_eq!(rig.status().freshness_waits, 1);
}

#[test]
fn s4_3_a_single_read_takes_no_version_and_passes_an_update_that_has_written_nothing() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(A, WRITES), (B, WRITES)]);
    rig.statement(T1, OP0, write(B));
    rig.single(T2, read(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN), streams(T2, OP0, R0, ALONE)]);
    rig.done(T1, OP0, R0);
    rig.statement(T1, OP1, write(A));
    // What comes after the read waits for it.
    rig.expect(&[release(T1, OP0, R0)]);
    rig.done(T2, OP0, R0);
    rig.expect(&[holds(T1, OP1, R0, ON), forget(T2)]);
}

#[test]
fn s4_3_a_single_read_waits_for_the_update_that_writes_its_table_and_for_all_that_precede_that_one() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(B, WRITES)]);
    rig.begin_declaring(T2, [(A, WRITES)]);
    rig.statement(T2, OP0, write(A));
    rig.single(T3, read_both(A, B));
    rig.expect(&[holds(T2, OP0, R0, OPEN)]);
    rig.done(T2, OP0, R0);
    commit(&mut rig, T2, 1);
    // T1 stands before T2, so the read sees it, too.
    rig.expect(&[
        release(T2, OP0, R0),
        append(T2, 1),
        commit_at(T2, R0, 1),
        acknowledge(T2, OP1, 1),
        forget(T2),
    ]);
    rig.statement(T1, OP0, write(B));
    rig.done(T1, OP0, R0);
    rig.skip();
    commit(&mut rig, T1, 2);
    rig.expect(&[
        append(T1, 2),
        commit_at(T1, R0, 2),
        streams(T3, OP0, R0, ALONE),
        acknowledge(T1, OP1, 2),
        forget(T1),
    ]);
}

#[test]
fn s4_3_a_single_read_goes_where_everything_that_it_stands_behind_is_done() {
    let mut rig = of(2);
    rig.single(T1, write(A));
    rig.done(T1, OP0, R1);
    rig.durable(1);
    rig.applied(R1, 1);
    rig.single(T2, read(B));
    rig.skip();
    rig.single(T3, read(A));
    rig.expect(&[streams(T3, OP0, R1, ALONE)]);
}

#[test]
fn s4_5_a_table_that_was_read_for_the_last_time_is_let_go_at_once() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(A, READS), (B, WRITES)]);
    rig.statement(T1, OP0, last(read(A), &[A]));
    rig.begin_declaring(T2, [(A, WRITES)]);
    rig.statement(T2, OP0, write(A));
    rig.expect(&[streams(T1, OP0, R0, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[holds(T2, OP0, R0, OPEN)]);
}

#[test]
fn s4_5_a_table_that_was_written_is_let_go_at_the_commit_where_engines_do_not_show_it_before() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, last(write(A), &[A]));
    rig.begin_declaring(T2, [(A, WRITES)]);
    rig.statement(T2, OP0, write(A));
    rig.done(T1, OP0, R0);
    rig.expect(&[holds(T1, OP0, R0, OPEN), release(T1, OP0, R0)]);
    commit(&mut rig, T1, 1);
    rig.expect(&[
        append(T1, 1),
        commit_at(T1, R0, 1),
        holds(T2, OP0, R0, OPEN),
        acknowledge(T1, OP1, 1),
        forget(T1),
    ]);
}

#[test]
fn s4_5_what_a_statement_does_not_use_any_more_is_let_go_when_it_arrives() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(A, READS), (B, READS)]);
    rig.statement(T1, OP0, read(A));
    rig.done(T1, OP0, R0);
    rig.single(T2, write(A));
    rig.expect(&[streams(T1, OP0, R0, OPEN)]);
    rig.statement(T1, OP1, last(read(B), &[A, B]));
    rig.expect(&[holds(T2, OP0, R0, OPEN), streams(T1, OP1, R0, ON)]);
}

#[test]
fn s4_5_a_statement_on_a_table_that_was_let_go_is_refused() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(A, READS), (B, READS)]);
    rig.statement(T1, OP0, last(read(A), &[A]));
    rig.done(T1, OP0, R0);
    rig.statement(T1, OP1, read(A));
    rig.expect(&[
        streams(T1, OP0, R0, OPEN),
        refuse(T1, OP1, Refusal::Undeclared),
        leave(T1, R0),
        forget(T1),
    ]);
    rig.expect_nothing_left();
}

#[test]
fn s4_6_a_single_update_lets_its_tables_go_when_it_is_done_where_engines_show_it() {
    let mut rig = of_showing(1);
    rig.single(T1, write(A));
    rig.single(T2, write(A));
    rig.expect(&[holds(T1, OP0, R0, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[holds(T2, OP0, R0, OPEN), append(T1, 1)]);
}

#[test]
fn s4_6_an_abort_lets_go_of_everything_in_its_turn() {
    let mut rig = of(1);
    rig.begin_declaring(T1, [(A, WRITES)]);
    rig.statement(T1, OP0, write(A));
    rig.begin_declaring(T2, [(A, WRITES)]);
    rig.single(T3, write(A));
    rig.rollback(T2);
    // T1 is still at work.
    rig.expect(&[holds(T1, OP0, R0, OPEN), forget(T2)]);
    rig.rollback(T1);
    rig.expect(&[leave(T1, R0)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[holds(T3, OP0, R0, OPEN), forget(T1)]);
}

// Where databases commit in the order of decisions.

#[test]
fn a_single_read_that_waits_for_one_update_does_not_hold_up_another() {
    let mut rig = with_a_read_that_holds_nobody_up(new(2, Csn(0)));
    rig.done(T1, OP0, R0);
    rig.done(T2, OP0, R0);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.commit(T1, OP1);
    rig.durable(2);
    rig.skip();
    rig.applied(R0, 2);
    rig.expect(&[streams(T3, OP0, R0, ALONE), acknowledge(T1, OP1, 2)]);
}

/// T1 has read A for the last time, and is to write B; T2 has written A.
fn whose_decision_waits() -> Rig {
    let mut rig = rig_in_order(new(1, Csn(0)), 1);
    rig.begin_declaring(T1, [(A, READS), (B, WRITES)]);
    rig.statement(T1, OP0, last(read(A), &[A]));
    rig.done(T1, OP0, R0);
    rig.single(T2, write(A));
    rig.expect(&[streams(T1, OP0, R0, OPEN), holds(T2, OP0, R0, OPEN)]);
    rig.done(T2, OP0, R0);
    rig.expect(&[]);
    rig
}

#[test]
fn who_writes_what_an_earlier_transaction_has_let_go_is_decided_after_it() {
    let mut rig = whose_decision_waits();
    rig.statement(T1, OP1, write(B));
    rig.done(T1, OP1, R0);
    rig.skip();
    rig.commit(T1, OP2);
    rig.expect(&[append(T1, 1), append(T2, 2)]);
}

#[test]
fn a_decision_waits_no_longer_for_one_that_will_not_be_made() {
    for reads_only in [true, false] {
        let mut rig = whose_decision_waits();
        if reads_only {
            rig.commit(T1, OP1)
        } else {
            rig.rollback(T1)
        }
        assert!(rig.take().contains(&append(T2, 1)));
    }
}

#[test]
fn what_waits_for_its_decision_can_be_given_up() {
    for cancels in [true, false] {
        let mut rig = whose_decision_waits();
        assert_eq!(rig.status().waits_for, [(T2.0, vec![T1.0])]);
        if cancels {
            rig.cancel(T2, OP0);
            rig.expect(&[refuse(T2, OP0, Refusal::Cancelled), leave(T2, R0), forget(T2)]);
        } else {
            rig.rollback(T2);
            rig.expect(&[leave(T2, R0), forget(T2)]);
        }
        rig.statement(T1, OP1, write(B));
        rig.done(T1, OP1, R0);
        rig.skip();
        rig.commit(T1, OP2);
        rig.expect(&[append(T1, 1)]);
    }
}

#[test]
fn what_waits_for_its_decision_is_committed_though_its_replica_is_lost() {
    let mut rig = whose_decision_waits();
    rig.down(R0);
    assert!(rig.take().contains(&append(T2, 1)));
    rig.up(R0, 0);
    rig.durable(1);
    rig.expect(&[apply(R0, 1, 1)]);
    rig.applied(R0, 1);
    assert!(rig.take().contains(&acknowledge(T2, OP0, 1)));
}

#[test]
fn a_read_of_the_whole_database_has_a_version_and_runs_alone() {
    let mut rig = of(2);
    rig.single(T1, write(A));
    rig.single(T2, read_everything());
    rig.single(T3, write(B));
    rig.expect(&[holds(T1, OP0, R0, OPEN), holds(T1, OP0, R1, OPEN)]);
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.skip();
    rig.done(T2, OP0, R0);
    rig.expect(&[holds(T3, OP0, R0, OPEN), forget(T2)]);
}

#[test]
fn a_replica_that_comes_back_lets_nobody_through_before_it_has_what_it_missed() {
    let mut rig = of(2);
    rig.down(R1);
    rig.commit_write_at(T1, A, 1, &[R0]);
    rig.begin_declaring(T2, [(A, WRITES)]);
    rig.statement(T2, OP0, write(A));
    rig.skip();
    rig.up(R1, 0);
    rig.single(T3, write(A));
    rig.expect(&[apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[]);
    rig.done(T2, OP0, R0);
    commit(&mut rig, T2, 2);
    // T2 is applied there, then T3 executes.
    rig.expect(&[
        release(T2, OP0, R0),
        append(T2, 2),
        commit_at(T2, R0, 2),
        apply(R1, 2, 2),
        holds(T3, OP0, R0, OPEN),
        acknowledge(T2, OP1, 2),
    ]);
    rig.applied(R1, 2);
    rig.expect(&[holds(T3, OP0, R1, OPEN), forget(T2)]);
}
