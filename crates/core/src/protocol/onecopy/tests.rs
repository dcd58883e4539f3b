//! Titles are conditions and outcomes; bodies are verbs; whole lists of effects are compared.

use smallvec::{SmallVec, smallvec};

use super::rig::*;
use super::*;
use crate::event::SequenceDefinition;
use crate::ids::ClassId;
use crate::item::{ColumnId, ColumnSet, TableId, ValueHash};

#[test]
fn a_single_write_is_executed_decided_made_durable_committed_and_only_then_acknowledged() {
    let mut rig = rig();
    rig.single(T1, write(1));
    rig.expect(&[execute_held(T1, OP0, R0, OPEN_HOME)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[append(T1, 1)]);
    rig.durable(1);
    rig.expect(&[commit_at(T1, R0, 1), apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP0, 1)]);
    rig.applied(R0, 1);
    rig.expect(&[]);
    assert_eq!(rig.protocol.txns.len(), 0);
    assert!(rig.protocol.locks.is_empty());
}

#[test]
fn a_read_goes_only_where_the_last_writer_of_its_items_is_applied() {
    let mut rig = rig();
    rig.commit_row_at(T1, 1, R0, 1);
    rig.single(T2, read(1));
    rig.expect(&[execute(T2, OP0, R0, ALONE)]);
    rig.single(T3, read(2));
    rig.expect(&[execute(T3, OP0, R1, ALONE)]);
}

#[test]
fn a_read_of_something_told_but_applied_nowhere_waits_for_the_first_replica() {
    let mut rig = rig();
    rig.single(T1, write(1));
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.effects.clear();
    rig.single(T2, read(1));
    rig.expect(&[]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP0, 1), execute(T2, OP0, R1, ALONE)]);
}

#[test]
fn reads_are_spread_over_equally_loaded_replicas() {
    let mut rig = rig();
    for txn in 1..=4 {
        rig.single(TxnId(txn), read(1));
    }
    rig.expect(&[
        execute(TxnId(1), OP0, R0, ALONE),
        execute(TxnId(2), OP0, R1, ALONE),
        execute(TxnId(3), OP0, R0, ALONE),
        execute(TxnId(4), OP0, R1, ALONE),
    ]);
}

#[test]
fn replicas_commit_in_order_one_run_at_a_time() {
    let mut rig = rig();
    for (txn, key) in [(T1, 1), (T2, 2), (T3, 3)] {
        rig.single(txn, write(key));
    }
    rig.effects.clear();
    // T1 and T3 have their home at R0, T2 at R1.
    for (txn, home) in [(T1, R0), (T2, R1), (T3, R0)] {
        rig.done(txn, OP0, home);
    }
    rig.effects.clear();
    rig.durable(3);
    rig.expect(&[commit_at(T1, R0, 1), apply(R1, 1, 1)]);
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(T1, OP0, 1), apply(R0, 2, 2)]);
    rig.applied(R1, 1);
    rig.expect(&[commit_at(T2, R1, 2)]);
    rig.applied(R0, 2);
    rig.expect(&[acknowledge(T2, OP0, 2), commit_at(T3, R0, 3)]);
    rig.applied(R1, 2);
    rig.expect(&[apply(R1, 3, 3)]);
}

#[test]
fn writers_of_one_row_follow_each_other_and_the_second_runs_where_the_first_is_applied() {
    let mut rig = rig();
    rig.single(T1, write(1));
    rig.single(T2, write(1));
    rig.expect(&[execute_held(T1, OP0, R0, OPEN_HOME)]);
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.expect(&[append(T1, 1), commit_at(T1, R0, 1), apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP0, 1), execute_held(T2, OP0, R1, OPEN_HOME)]);
}

#[test]
fn whoever_adds_rows_to_a_table_does_not_wait_for_rows_that_others_have_added_and_readers_do() {
    let mut rig = rig();
    let insert = || statement(StatementKind::Write, &[Access::new(Item::table(TableId(1)), Mode::Insert)]);
    rig.single(T1, insert());
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.effects.clear();
    rig.single(T2, insert());
    rig.expect(&[execute_held(T2, OP0, R1, OPEN_HOME)]);
    rig.single(T3, read(1));
    rig.expect(&[]);
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(T1, OP0, 1), execute(T3, OP0, R0, ALONE)]);
}

#[test]
fn a_read_phase_keeps_its_snapshot_and_a_transaction_that_never_writes_has_no_place_in_the_order() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.expect(&[execute(T1, OP0, R0, OPEN_SNAPSHOT)]);
    rig.done(T1, OP0, R0);
    rig.commit_row_at(T2, 2, R1, 1);
    rig.statement(T1, OP1, read(2));
    rig.expect(&[execute(T1, OP1, R0, SNAPSHOT)]);
    rig.done(T1, OP1, R0);
    rig.commit(T1, OP2);
    rig.expect(&[Effect::Finish { txn: T1, op: OP2, replica: Some(R0) }]);
    assert_eq!(rig.protocol.txns.len(), 0);
}

#[test]
fn a_read_phase_starts_where_everything_told_is_applied() {
    let mut rig = rig();
    rig.commit_row_at(T1, 1, R1, 1);
    rig.begin(T2);
    rig.statement(T2, OP0, read(9));
    rig.expect(&[execute(T2, OP0, R1, OPEN_SNAPSHOT)]);
}

#[test]
fn the_first_write_leaves_an_unchanged_snapshot_for_the_home() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.done(T1, OP0, R0);
    rig.effects.clear();
    rig.statement(T1, OP1, write(2));
    rig.expect(&[Effect::Leave { txn: T1, replica: R0 }, execute(T1, OP1, R1, OPEN_HOME)]);
    assert_eq!(
        rig.protocol.locks.held(T1),
        [row(2, Mode::NoKeyExclusive), row(1, Mode::Shared)],
        "what was read is held too"
    );
}

#[test]
fn reads_that_a_later_commit_may_have_changed_are_run_again_and_refused_if_they_differ() {
    for same in [true, false] {
        let mut rig = rig();
        rig.begin(T1);
        rig.statement(T1, OP0, read(1));
        rig.done(T1, OP0, R0);
        rig.commit_row_at(T2, 1, R1, 1);
        rig.statement(T1, OP1, write(2));
        rig.expect(&[leave(T1, R0), Effect::Revalidate { txn: T1, replica: R1, how: OPEN_HOME }]);
        rig.on(Event::Revalidated { txn: T1, replica: R1, same });
        if same {
            rig.expect(&[execute(T1, OP1, R1, HOME)]);
        } else {
            rig.expect(&[
                Effect::Leave { txn: T1, replica: R1 },
                Effect::Refuse { txn: T1, op: OP1, reason: Refusal::ReadsChanged },
            ]);
            assert!(rig.protocol.locks.is_empty());
        }
    }
}

#[test]
fn a_read_known_to_be_followed_by_a_write_of_the_same_row_takes_it_at_once() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.done(T1, OP0, R0);
    rig.statement(T1, OP1, write(1));
    rig.done(T1, OP1, R1);
    rig.commit(T1, OP2);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.applied(R1, 1);
    rig.effects.clear();

    rig.begin(T2);
    rig.statement(T2, OP0, read(5));
    rig.expect(&[execute(T2, OP0, R0, OPEN_HOME)]);
    rig.begin(T3);
    rig.statement(T3, OP0, read(5));
    rig.expect(&[]);
    rig.done(T2, OP0, R0);
    rig.on(Event::Rollback { txn: T2 });
    rig.expect(&[Effect::Leave { txn: T2, replica: R0 }, execute(T3, OP0, R1, OPEN_HOME)]);
}

#[test]
fn a_cycle_refuses_its_youngest_member_and_the_other_goes_on() {
    let mut rig = rig();
    for (txn, key, home) in [(T1, 1, R0), (T2, 2, R1)] {
        rig.begin(txn);
        rig.statement(txn, OP0, write(key));
        rig.done(txn, OP0, home);
    }
    rig.effects.clear();
    rig.statement(T2, OP1, write(1));
    rig.expect(&[]);
    rig.statement(T1, OP1, write(2));
    rig.expect(&[
        Effect::Leave { txn: T2, replica: R1 },
        Effect::Refuse { txn: T2, op: OP1, reason: Refusal::Deadlock },
        execute(T1, OP1, R0, HOME),
    ]);
}

#[test]
fn a_decided_commit_whose_home_fails_is_applied_there_like_anywhere_else() {
    let mut rig = rig();
    rig.single(T1, write(1));
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.effects.clear();
    rig.on(Event::HomeLost { txn: T1, replica: R0 });
    rig.expect(&[apply(R0, 1, 1)]);
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(T1, OP0, 1)]);
}

#[test]
fn a_replica_lost_between_decision_and_durability_still_lets_the_items_go() {
    let mut rig = rig();
    rig.single(T1, write(1));
    rig.done(T1, OP0, R0);
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.effects.clear();
    rig.durable(1);
    rig.expect(&[apply(R1, 1, 1)]);
    assert!(rig.protocol.locks.is_empty());
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP0, 1)]);
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(0) });
    rig.expect(&[apply(R0, 1, 1)]);
}

#[test]
fn a_home_lost_before_its_turn_in_the_order_is_left_even_if_the_client_was_answered() {
    let mut rig = rig();
    rig.single(T1, write(1));
    rig.single(T2, write(2));
    rig.done(T2, OP0, R1);
    rig.done(T1, OP0, R0);
    rig.durable(2);
    // R1 commits T2, then applies T1; R0 has not applied T2 yet, and T1 waits there for its turn.
    rig.applied(R1, 1);
    rig.applied(R1, 2);
    rig.effects.clear();
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.expect(&[Effect::Leave { txn: T1, replica: R0 }]);
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.expect(&[]);
}

#[test]
fn a_read_lost_with_its_replica_runs_again_elsewhere_unless_rows_were_seen() {
    let mut rig = rig();
    rig.single(T1, read(1));
    rig.expect(&[execute(T1, OP0, R0, ALONE)]);
    rig.on(Event::ReplicaDown { replica: R0 });
    let lost = |answer_begun| Event::Executed {
        txn: T1,
        op: OP0,
        replica: R0,
        outcome: Outcome::Lost { answer_begun },
        elapsed_ns: 0,
    };
    rig.on(lost(false));
    rig.expect(&[execute(T1, OP0, R1, ALONE)]);
    rig.on(lost(true));
    rig.expect(&[Effect::Refuse { txn: T1, op: OP0, reason: Refusal::AnswerCut }]);
    assert_eq!(rig.protocol.status().transactions, 0);
}

#[test]
fn a_single_read_leaves_nothing_behind_however_it_ends() {
    let mut rig = rig();
    let cut = Effect::Refuse { txn: T1, op: OP0, reason: Refusal::AnswerCut };
    let ends = [
        (Some(Outcome::Done { returned: Vec::new() }), None),
        (Some(Outcome::Failed), None),
        (Some(Outcome::Lost { answer_begun: true }), Some(cut)),
        (None, None),
    ];
    for (outcome, effect) in ends {
        rig.single(T1, read(1));
        let Some(Effect::Execute { replica, how: ALONE, hold: false, .. }) = rig.effects.pop() else {
            panic!("it was not placed")
        };
        // It does not wait here: whoever executes it is cancelled there.
        rig.on(Event::Cancel { txn: T1, op: OP0 });
        let status = rig.protocol.status();
        assert_eq!(
            (status.transactions, status.replicas[usize::from(replica.0)].outstanding_ns > 0.0),
            (1, true)
        );
        rig.on(match outcome {
            Some(outcome) => Event::Executed { txn: T1, op: OP0, replica, outcome, elapsed_ns: 1 },
            None => Event::Rollback { txn: T1 },
        });
        rig.expect(effect.as_slice());
        let status = rig.protocol.status();
        assert_eq!(status.transactions, 0);
        assert!(status.replicas.iter().all(|replica| replica.outstanding_ns == 0.0), "{status:?}");
    }
}

#[test]
fn a_single_read_that_is_lost_with_the_last_replica_waits_and_can_be_cancelled() {
    let mut rig = rig();
    rig.single(T1, read(1));
    rig.expect(&[execute(T1, OP0, R0, ALONE)]);
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.on(Event::ReplicaDown { replica: R0 });
    let lost = Outcome::Lost { answer_begun: false };
    rig.on(Event::Executed { txn: T1, op: OP0, replica: R0, outcome: lost, elapsed_ns: 0 });
    rig.expect(&[]);
    assert_eq!(rig.protocol.status().transactions, 1);
    rig.on(Event::Cancel { txn: T1, op: OP0 });
    rig.expect(&[Effect::Refuse { txn: T1, op: OP0, reason: Refusal::Cancelled }]);
    assert_eq!(rig.protocol.status().transactions, 0);
}

#[test]
fn with_no_replica_alive_statements_wait_and_can_be_cancelled() {
    let mut rig = rig();
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.single(T1, read(1));
    rig.single(T2, write(1));
    rig.expect(&[]);
    rig.on(Event::Cancel { txn: T1, op: OP0 });
    rig.expect(&[Effect::Refuse { txn: T1, op: OP0, reason: Refusal::Cancelled }]);
    rig.on(Event::ReplicaUp { replica: R1, applied: Csn(0) });
    rig.expect(&[execute_held(T2, OP0, R1, OPEN_HOME)]);
}

#[test]
fn a_change_of_definitions_waits_for_open_read_phases_and_new_ones_wait_for_it() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.done(T1, OP0, R0);
    rig.effects.clear();
    rig.single(T2, schema_change());
    rig.expect(&[]);
    rig.begin(T3);
    rig.statement(T3, OP0, read(1));
    rig.expect(&[]);
    rig.commit(T1, OP1);
    rig.expect(&[
        Effect::Finish { txn: T1, op: OP1, replica: Some(R0) },
        execute_held(T2, OP0, R1, OPEN_HOME),
    ]);
    rig.done(T2, OP0, R1);
    rig.durable(1);
    rig.expect(&[append(T2, 1), apply(R0, 1, 1), commit_at(T2, R1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T2, OP0, 1), execute(T3, OP0, R1, OPEN_SNAPSHOT)]);
}

#[test]
fn items_shown_only_by_the_answer_are_granted_before_the_decision() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(7));
    rig.done(T1, OP0, R0);
    rig.single(T2, write(1));
    rig.effects.clear();
    let outcome = Outcome::Done { returned: vec![row(7, Mode::Exclusive)] };
    rig.on(Event::Executed { txn: T2, op: OP0, replica: R1, outcome, elapsed_ns: 1 });
    rig.expect(&[]);
    rig.on(Event::Rollback { txn: T1 });
    rig.expect(&[Effect::Leave { txn: T1, replica: R0 }, append(T2, 1)]);
}

#[test]
fn sequence_values_are_given_after_their_reservation_is_durable_and_every_replica_applies_it() {
    let mut rig = rig();
    let sequence = TableId(5);
    let definition = SequenceDefinition { next: 1, increment: 1, min: 1, max: i64::MAX, cycle: false };
    rig.on(Event::Sequence { sequence, definition });
    rig.on(Event::NextValues { txn: T1, op: OP0, wants: smallvec![(sequence, 1)] });
    rig.expect(&[Effect::Append { csn: Csn(1), decision: Decision::Reserve { sequence, last: 1_001 } }]);
    rig.durable(1);
    let values: SmallVec<[Option<i64>; 2]> = smallvec![Some(1)];
    rig.expect(&[apply(R0, 1, 1), apply(R1, 1, 1), Effect::Values { txn: T1, op: OP0, values }]);
}

#[test]
fn a_read_of_a_sequence_sees_the_last_reservation_of_its_values() {
    let mut rig = rig();
    let sequence = TableId(5);
    let definition = SequenceDefinition { next: 50, increment: 1, min: 1, max: i64::MAX, cycle: false };
    rig.on(Event::Sequence { sequence, definition });
    rig.on(Event::NextValues { txn: T1, op: OP0, wants: smallvec![(sequence, 0)] });
    rig.durable(1);
    rig.effects.clear();
    let look = Access::new(Item::table(sequence), Mode::Shared);
    rig.single(T2, statement(StatementKind::Read, &[look]));
    rig.expect(&[]);
    rig.applied(R1, 1);
    rig.expect(&[execute(T2, OP0, R1, How::Alone)]);
}

#[test]
fn a_change_of_definitions_runs_where_reservations_are_applied_since_it_would_wait_for_them_holding_their_locks()
 {
    let mut rig = rig();
    let sequence = TableId(5);
    let definition = SequenceDefinition { next: 1, increment: 1, min: 1, max: i64::MAX, cycle: false };
    rig.on(Event::Sequence { sequence, definition });
    rig.on(Event::NextValues { txn: T1, op: OP0, wants: smallvec![(sequence, 1)] });
    rig.durable(1);
    rig.effects.clear();
    let change = Access::new(Item::table(TableId::ALL), Mode::Exclusive);
    rig.single(T2, statement(StatementKind::Schema, &[change]));
    rig.expect(&[]);
    rig.applied(R1, 1);
    rig.expect(&[execute_held(T2, OP0, R1, OPEN_HOME)]);
}

#[test]
fn a_change_of_an_unknown_name_runs_where_the_last_change_of_definitions_is_applied_and_other_writes_do_not_wait()
 {
    let mut rig = rig();
    let names = Access::new(Item::names(), Mode::Exclusive);
    let table = Access::new(Item::table(TableId(2)), Mode::Exclusive);
    rig.single(T1, statement(StatementKind::Write, &[table, names.clone()]));
    rig.expect(&[execute_held(T1, OP0, R0, OPEN_HOME)]);
    rig.single(T2, statement(StatementKind::Write, &[names]));
    rig.expect(&[]);
    rig.single(T3, write(7));
    rig.expect(&[execute_held(T3, OP0, R1, OPEN_HOME)]);
    rig.done(T1, OP0, R0);
    rig.expect(&[append(T1, 1)]);
    rig.durable(1);
    rig.expect(&[commit_at(T1, R0, 1), apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP0, 1), execute_held(T2, OP0, R1, OPEN_HOME)]);
}

#[test]
fn a_failed_single_write_lets_everything_go() {
    let mut rig = rig();
    rig.single(T1, write(1));
    rig.effects.clear();
    rig.on(Event::Executed { txn: T1, op: OP0, replica: R0, outcome: Outcome::Failed, elapsed_ns: 1 });
    rig.expect(&[Effect::Leave { txn: T1, replica: R0 }]);
    assert!(rig.protocol.locks.is_empty());
    assert_eq!(rig.protocol.txns.len(), 0);
}

/// An insert of a child row of its own table that refers to a row.
fn insert_child(child: i64, parent: i64) -> Statement {
    let equals = [(ColumnId(1), ValueHash::of_integer(child))];
    let access =
        smallvec![Access::new(Item::rows(TableId(2), equals), Mode::Insert), row(parent, Mode::KeyShared),];
    Statement::new(ClassId(4), StatementKind::Write, access)
}
fn write_of_other_table(key: i64) -> Statement {
    let item = Item::rows(TableId(2), [(ColumnId(1), ValueHash::of_integer(key))]);
    statement(StatementKind::Write, &[Access::new(item, Mode::NoKeyExclusive)])
}
fn statement(kind: StatementKind, access: &[Access]) -> Statement {
    Statement::new(ClassId(5), kind, access.iter().cloned().collect())
}
fn unique(value: i64) -> Access {
    let item = Item::key(TableId(1), crate::item::KeyId(2), [(ColumnId(3), ValueHash::of_integer(value))]);
    Access::new(item, Mode::Exclusive)
}
impl Rig {
    /// The answer shows a unique value that the statement freed.
    fn done_freeing(&mut self, txn: TxnId, op: OpId, replica: ReplicaId, freed: i64) {
        let outcome = Outcome::Done { returned: vec![unique(freed)] };
        self.on(Event::Executed { txn, op, replica, outcome, elapsed_ns: 1_000 });
    }
    fn insert_unique(&mut self, txn: TxnId, value: i64) {
        self.single(txn, statement(StatementKind::Write, &[unique(value)]));
    }
}

#[test]
fn a_read_phase_that_waits_for_a_definition_is_not_opened_before_it() {
    let mut rig = rig();
    rig.single(T1, write(1));
    rig.done(T1, OP0, R0);
    let change = Access::new(Item::schema(TableId(9)), Mode::Exclusive);
    rig.single(T3, statement(StatementKind::Schema, &[change]));
    rig.durable(1);
    rig.begin(T2);
    rig.statement(T2, OP0, read(5));
    rig.effects.clear();
    rig.done(T3, OP0, R1);
    rig.durable(2);
    rig.applied(R0, 1);
    rig.expect(&[append(T3, 2), acknowledge(T1, OP0, 1), apply(R0, 2, 2)]);
    rig.applied(R0, 2);
    rig.expect(&[acknowledge(T3, OP0, 2), execute(T2, OP0, R0, OPEN_SNAPSHOT)]);
}

/// Whoever only reads a table, or draws from a sequence, locks it, too, and so does what applies that later.
#[test]
fn definitions_change_and_whole_tables_are_locked_where_everything_told_is_applied() {
    let whole = Access::new(Item::table(TableId(9)), Mode::Exclusive);
    let definition = Access::new(Item::schema(TableId(9)), Mode::Exclusive);
    for (kind, access) in [(StatementKind::LockingRead, whole), (StatementKind::Schema, definition)] {
        let mut rig = rig();
        rig.single(T1, write(1));
        rig.done(T1, OP0, R0);
        rig.durable(1);
        rig.effects.clear();
        rig.begin(T2);
        rig.statement(T2, OP0, statement(kind, &[access]));
        assert!(rig.effects.iter().all(|effect| matches!(effect, Effect::Apply { .. })), "{:?}", rig.effects);
        // What is told meanwhile is not waited for, or it might never run.
        rig.single(T3, write(5));
        rig.done(T3, OP0, R1);
        rig.durable(2);
        rig.effects.clear();
        rig.applied(R0, 1);
        assert!(rig.effects.contains(&execute(T2, OP0, R0, OPEN_HOME)), "{:?}", rig.effects);
        // Nor may another home lack what was told then.
        rig.done(T2, OP0, R0);
        rig.on(Event::HomeLost { txn: T2, replica: R0 });
        rig.on(Event::ReplicaDown { replica: R0 });
        rig.effects.clear();
        rig.statement(T2, OP1, read(7));
        rig.expect(&[]);
        rig.applied(R1, 1);
        let again = Effect::Revalidate { txn: T2, replica: R1, how: OPEN_HOME };
        assert!(rig.effects.contains(&again), "{:?}", rig.effects);
    }
}

#[test]
fn whoever_takes_a_row_exclusively_runs_where_the_last_commit_that_refers_to_it_is_applied() {
    for held_before in [false, true] {
        let mut rig = rig();
        rig.begin(T1);
        if held_before {
            let locked = statement(StatementKind::LockingRead, &[row(1, Mode::Shared)]);
            rig.statement(T1, OP0, locked);
            rig.done(T1, OP0, R0);
        }
        rig.statement(T1, OP1, insert_child(7, 1));
        rig.done(T1, OP1, R0);
        rig.commit(T1, OP2);
        rig.durable(1);
        rig.applied(R0, 1);
        rig.effects.clear();
        rig.single(T2, write(1));
        rig.expect(&[execute_held(T2, OP0, R1, OPEN_HOME)]);
        rig.on(Event::Rollback { txn: T2 });
        rig.effects.clear();
        rig.single(TxnId(9), read(9));
        rig.expect(&[execute(TxnId(9), OP0, R0, ALONE)]);
        rig.done(TxnId(9), OP0, R0);
        // Applied to R1, the child's foreign key is checked there, and would meet this lock.
        rig.single(T3, statement(StatementKind::Write, &[row(1, Mode::Exclusive)]));
        rig.expect(&[execute_held(T3, OP0, R0, OPEN_HOME)]);
    }
}

#[test]
fn a_decided_commit_whose_home_fails_leaves_the_run_that_is_under_way_there_alone() {
    let mut rig = rig();
    for (txn, key) in [(T1, 1), (T2, 2)] {
        rig.single(txn, write(key));
    }
    rig.done(T2, OP0, R1);
    rig.done(T1, OP0, R0);
    rig.durable(2);
    rig.effects.clear();
    // R0 applies T2, which is commit 1; its own T1 is commit 2.
    rig.on(Event::HomeLost { txn: T1, replica: R0 });
    rig.expect(&[]);
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(T2, OP0, 1), apply(R0, 2, 2)]);
}

#[test]
fn items_shown_only_by_an_answer_are_held_from_then_on_if_nobody_else_holds_them() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(7));
    rig.done_freeing(T1, OP0, R0, 5);
    rig.effects.clear();
    rig.insert_unique(T2, 5);
    rig.expect(&[]);
    rig.on(Event::Rollback { txn: T1 });
    rig.expect(&[Effect::Leave { txn: T1, replica: R0 }, execute_held(T2, OP0, R1, OPEN_HOME)]);
}

#[test]
fn a_statement_that_waits_in_the_database_for_whoever_waits_for_its_items_is_part_of_a_cycle() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(7));
    rig.single(T2, write(8));
    rig.effects.clear();
    // T3 holds the value and runs at R0, where it waits for T1, whose answer shows only now that it frees the value.
    rig.insert_unique(T3, 5);
    rig.expect(&[execute_held(T3, OP0, R0, OPEN_HOME)]);
    rig.done_freeing(T1, OP0, R0, 5);
    rig.expect(&[]);
    rig.commit(T1, OP1);
    rig.expect(&[
        Effect::Leave { txn: T3, replica: R0 },
        Effect::Refuse { txn: T3, op: OP0, reason: Refusal::Deadlock },
        append(T1, 1),
    ]);
}

#[test]
fn a_commit_missed_on_an_item_that_only_the_answer_showed_is_found_though_every_replica_contains_it() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(7));
    rig.insert_unique(T2, 5);
    rig.done(T2, OP0, R1);
    rig.done_freeing(T1, OP0, R0, 5);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.applied(R1, 1);
    rig.commit_row_at(T3, 9, R1, 2);
    rig.applied(R0, 2);
    rig.effects.clear();
    rig.commit(T1, OP1);
    rig.expect(&[
        Effect::Leave { txn: T1, replica: R0 },
        Effect::Refuse { txn: T1, op: OP1, reason: Refusal::ReadsChanged },
    ]);
}

#[test]
fn a_replica_that_came_back_serves_as_soon_as_it_contains_what_was_forgotten_though_others_go_on() {
    let mut rig = rig();
    rig.on(Event::ReplicaDown { replica: R1 });
    for csn in 1..=3 {
        rig.commit_row_at(TxnId(csn), csn as i64, R0, csn);
    }
    rig.on(Event::ReplicaUp { replica: R1, applied: Csn(0) });
    rig.expect(&[apply(R1, 1, 3)]);
    rig.commit_row_at(TxnId(4), 4, R0, 4);
    rig.applied(R1, 3);
    rig.effects.clear();
    rig.single(TxnId(5), read(1));
    rig.single(TxnId(6), read(1));
    rig.expect(&[execute(TxnId(5), OP0, R1, ALONE), execute(TxnId(6), OP0, R0, ALONE)]);
}

#[test]
fn a_statement_given_up_while_it_waits_for_items_is_taken_back_and_its_transaction_goes_on_at_its_home() {
    let mut rig = rig();
    rig.single(T2, write(2));
    rig.begin(T1);
    rig.statement(T1, OP0, write(1));
    rig.done(T1, OP0, R1);
    rig.effects.clear();
    rig.statement(T1, OP1, write(2));
    // Whoever comes for the same row waits behind it.
    rig.single(T3, write(2));
    rig.cancel(T1, OP1);
    rig.expect(&[withdraw(T1, OP1)]);
    assert_eq!(rig.protocol.locks.held(T1), [row(1, Mode::NoKeyExclusive)]);
    rig.cancel(T1, OP1);
    rig.expect(&[]);

    rig.on(Event::Executed { txn: T2, op: OP0, replica: R0, outcome: Outcome::Failed, elapsed_ns: 1 });
    rig.expect(&[leave(T2, R0), execute_held(T3, OP0, R0, OPEN_HOME)]);
    rig.statement(T1, OP2, write(3));
    rig.expect(&[execute(T1, OP2, R1, HOME)]);
    rig.done(T1, OP2, R1);
    rig.commit(T1, OP3);
    rig.expect(&[append(T1, 1)]);
}

#[test]
fn a_statement_given_up_while_its_home_lags_lets_go_of_what_it_was_granted_and_of_nothing_else() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(1));
    rig.done(T1, OP0, R0);
    rig.commit_row_at(T2, 2, R1, 1);
    rig.statement(T1, OP1, write(2));
    rig.single(T3, write(2));
    rig.expect(&[]);
    rig.cancel(T1, OP1);
    rig.expect(&[withdraw(T1, OP1), execute_held(T3, OP0, R1, OPEN_HOME)]);
    assert_eq!(rig.protocol.locks.held(T1), [row(1, Mode::NoKeyExclusive)]);
    // What it waited for comes, and finds nobody.
    rig.applied(R0, 1);
    rig.expect(&[]);
    rig.commit(T1, OP2);
    rig.expect(&[append(T1, 2)]);
}

#[test]
fn a_first_statement_given_up_while_it_waits_leaves_a_transaction_that_begins_anew() {
    for next in [read(1), write(3)] {
        let mut rig = rig();
        rig.single(T2, write(2));
        rig.begin(T1);
        rig.statement(T1, OP0, write(2));
        rig.effects.clear();
        rig.cancel(T1, OP0);
        rig.expect(&[withdraw(T1, OP0)]);
        assert!(rig.protocol.locks.held(T1).is_empty());
        let how = if next.kind == StatementKind::Read { OPEN_SNAPSHOT } else { OPEN_HOME };
        rig.statement(T1, OP1, next);
        rig.expect(&[execute(T1, OP1, R1, how)]);
        rig.on(Event::Rollback { txn: T1 });
        rig.expect(&[leave(T1, R1)]);
        assert!(rig.protocol.locks.held(T1).is_empty());
    }
}

#[test]
fn a_read_phase_that_waited_for_a_replica_starts_from_what_is_told_when_its_next_statement_comes() {
    let mut rig = rig();
    rig.single(T2, write(2));
    rig.done(T2, OP0, R0);
    rig.durable(1);
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.effects.clear();
    rig.cancel(T1, OP0);
    rig.expect(&[withdraw(T1, OP0)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T2, OP0, 1)]);
    rig.commit_row_at(T3, 3, R1, 2);
    rig.applied(R0, 1);
    rig.effects.clear();
    rig.statement(T1, OP1, read(1));
    rig.expect(&[execute(T1, OP1, R1, OPEN_SNAPSHOT)]);
    assert_eq!(rig.protocol.txns[&T1].reads.len(), 1);
}

/// T1 has read row 1 in a snapshot at R0, which it gave up for a statement that was withdrawn.
fn rig_without_its_snapshot() -> Rig {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.done(T1, OP0, R0);
    rig.single(T2, write(2));
    rig.effects.clear();
    rig.statement(T1, OP1, write(2));
    rig.expect(&[leave(T1, R0)]);
    rig.cancel(T1, OP1);
    rig.expect(&[withdraw(T1, OP1)]);
    assert!(rig.protocol.locks.held(T1).is_empty());
    rig
}

#[test]
fn a_read_phase_whose_snapshot_was_given_up_goes_on_in_a_new_one_where_its_reads_are_run_again() {
    let moved = Effect::Revalidate { txn: T1, replica: R0, how: OPEN_SNAPSHOT };
    for same in [true, false] {
        let mut rig = rig_without_its_snapshot();
        rig.statement(T1, OP2, read(5));
        rig.expect(std::slice::from_ref(&moved));
        rig.on(Event::Revalidated { txn: T1, replica: R0, same });
        if same {
            rig.expect(&[execute(T1, OP2, R0, SNAPSHOT)]);
            rig.done(T1, OP2, R0);
            rig.statement(T1, OP3, read(6));
            rig.expect(&[execute(T1, OP3, R0, SNAPSHOT)]);
        } else {
            rig.expect(&[leave(T1, R0), Effect::Refuse { txn: T1, op: OP2, reason: Refusal::ReadsChanged }]);
            assert!(rig.protocol.snapshots.is_empty());
        }
    }
}

/// The second snapshot is lost before it is known whether the reads of the first come out the same there.
#[test]
fn reads_that_were_not_made_again_in_a_second_snapshot_are_validated_against_the_first() {
    let mut rig = rig_without_its_snapshot();
    rig.commit_row_at(T3, 1, R0, 1);
    rig.statement(T1, OP2, read(5));
    assert!(rig.effects.contains(&Effect::Revalidate { txn: T1, replica: R0, how: OPEN_SNAPSHOT }));
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.cancel(T1, OP2);
    rig.applied(R1, 1);
    rig.effects.clear();
    rig.statement(T1, OP3, write(7));
    rig.expect(&[Effect::Revalidate { txn: T1, replica: R1, how: OPEN_HOME }]);
}

#[test]
fn a_write_after_a_snapshot_was_given_up_is_validated_against_that_snapshot() {
    for changed in [false, true] {
        let mut rig = rig_without_its_snapshot();
        if changed {
            rig.commit_row_at(T3, 1, R0, 1);
        }
        rig.statement(T1, OP2, write(7));
        let home = Effect::Revalidate { txn: T1, replica: R0, how: OPEN_HOME };
        rig.expect(&[if changed { home } else { execute(T1, OP2, R0, OPEN_HOME) }]);
        assert_eq!(
            rig.protocol.locks.held(T1),
            [row(7, Mode::NoKeyExclusive), row(1, Mode::Shared)],
            "nothing is left of the row that it did not get"
        );
    }
}

/// Changes and commits a definition: of a table that nobody else has to do with, or of something that names no table, as a view.
fn change_definition(rig: &mut Rig, of_table: bool, txn: TxnId, home: ReplicaId, csn: u64) {
    let (kind, item) = match of_table {
        true => (StatementKind::Schema, Item::table(TableId(2))),
        false => (StatementKind::Write, Item::schema(TableId::ALL)),
    };
    rig.single(txn, statement(kind, &[Access::new(item, Mode::Exclusive)]));
    rig.done(txn, OP0, home);
    rig.durable(csn);
    rig.applied(home, csn);
    rig.effects.clear();
}

#[test]
fn what_was_read_in_a_snapshot_that_was_given_up_does_not_outlive_a_change_of_definitions() {
    for (next, of_table) in [(read(5), true), (write(7), true), (read(5), false), (write(7), false)] {
        let mut rig = rig_without_its_snapshot();
        if !of_table {
            // It waits for whoever holds something.
            rig.done(T2, OP0, R1);
            rig.durable(1);
            rig.applied(R1, 1);
            rig.applied(R0, 1);
        }
        change_definition(&mut rig, of_table, T3, R0, if of_table { 1 } else { 2 });
        rig.statement(T1, OP2, next);
        rig.expect(&[Effect::Refuse { txn: T1, op: OP2, reason: Refusal::DefinitionsChanged }]);
        assert!(rig.protocol.locks.held(T1).is_empty());
    }
}

#[test]
fn a_first_write_after_a_view_was_replaced_does_not_go_on_from_earlier_reads_but_one_after_other_writes_does()
{
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.done(T1, OP0, R0);
    change_definition(&mut rig, false, T3, R1, 1);
    rig.statement(T1, OP1, write(7));
    let refused = Effect::Refuse { txn: T1, op: OP1, reason: Refusal::DefinitionsChanged };
    rig.expect(&[leave(T1, R0), refused]);

    let mut rig = self::rig();
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.done(T1, OP0, R0);
    let everything = Access::new(Item::everything(), Mode::Exclusive);
    rig.single(T3, statement(StatementKind::Write, &[everything]));
    rig.done(T3, OP0, R1);
    rig.durable(1);
    rig.applied(R1, 1);
    rig.effects.clear();
    rig.statement(T1, OP1, write(7));
    assert!(rig.effects.contains(&Effect::Revalidate { txn: T1, replica: R1, how: OPEN_HOME }));
}

#[test]
fn a_first_write_that_waited_while_a_definition_changed_does_not_go_on_from_earlier_reads() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.done(T1, OP0, R0);
    rig.single(T2, write(2));
    rig.effects.clear();
    rig.statement(T1, OP1, write(2));
    rig.expect(&[leave(T1, R0)]);
    change_definition(&mut rig, true, T3, R0, 1);
    rig.done(T2, OP0, R1);
    rig.durable(2);
    assert!(rig.effects.contains(&Effect::Refuse { txn: T1, op: OP1, reason: Refusal::DefinitionsChanged }));
}

#[test]
fn a_commit_after_a_withdrawn_statement_needs_no_replica_and_a_lost_replica_concerns_it_no_more() {
    let mut rig = rig_without_its_snapshot();
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.expect(&[]);
    rig.commit(T1, OP2);
    rig.expect(&[Effect::Finish { txn: T1, op: OP2, replica: None }]);
    assert!(!rig.protocol.txns.contains_key(&T1));
}

#[test]
fn a_change_of_definitions_given_up_while_it_waits_for_read_phases_lets_new_ones_start() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, read(1));
    rig.done(T1, OP0, R0);
    rig.begin(T2);
    rig.statement(T2, OP0, write(9));
    rig.done(T2, OP0, R1);
    rig.effects.clear();
    rig.statement(T2, OP1, schema_change());
    rig.begin(T3);
    rig.statement(T3, OP0, read(1));
    rig.expect(&[]);
    rig.cancel(T2, OP1);
    rig.expect(&[withdraw(T2, OP1), execute(T3, OP0, R0, OPEN_SNAPSHOT)]);
    assert_eq!(rig.protocol.locks.held(T2), [row(9, Mode::NoKeyExclusive)]);
    rig.commit(T2, OP2);
    rig.expect(&[append(T2, 1)]);
}

#[test]
fn a_second_change_of_definitions_that_is_given_up_leaves_the_first_one_to_be_waited_for() {
    let mut rig = rig();
    rig.begin(T2);
    rig.statement(T2, OP0, schema_change());
    rig.done(T2, OP0, R0);
    rig.single(T1, write_of_other_table(1));
    rig.effects.clear();
    let other = Access::new(Item::table(TableId(2)), Mode::Exclusive);
    rig.statement(T2, OP1, statement(StatementKind::Schema, &[other]));
    rig.begin(T3);
    rig.statement(T3, OP0, read(1));
    rig.cancel(T2, OP1);
    rig.expect(&[withdraw(T2, OP1)]);
    rig.on(Event::Rollback { txn: T2 });
    rig.expect(&[leave(T2, R0), execute(T3, OP0, R0, OPEN_SNAPSHOT)]);
}

#[test]
fn a_transaction_of_one_statement_and_a_commit_that_are_given_up_are_over() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, write(7));
    rig.done(T1, OP0, R0);
    rig.begin(T2);
    rig.statement(T2, OP0, write(1));
    rig.effects.clear();
    let outcome = Outcome::Done { returned: vec![row(7, Mode::Exclusive)] };
    rig.on(Event::Executed { txn: T2, op: OP0, replica: R1, outcome, elapsed_ns: 1 });
    rig.commit(T2, OP1);
    rig.single(T3, write(7));
    rig.expect(&[]);
    for (txn, op) in [(T2, OP1), (T3, OP0)] {
        rig.cancel(txn, op);
        let mut refused = vec![Effect::Refuse { txn, op, reason: Refusal::Cancelled }];
        if txn == T2 {
            refused.insert(0, leave(T2, R1));
        }
        rig.expect(&refused);
        assert!(!rig.protocol.txns.contains_key(&txn));
    }
}

fn of_columns(table: u64, keys: &[i64], mode: Mode, columns: &[u16]) -> Access {
    let equals = keys.iter().map(|key| (ColumnId(1), ValueHash::of_integer(*key)));
    let columns = columns.iter().map(|column| ColumnId(*column)).collect();
    Access::of_columns(Item::rows(TableId(table), equals), mode, columns)
}
/// A price list: the names and prices of all rows, which `set_stock` does not change.
fn list_prices() -> Statement {
    statement(StatementKind::Read, &[of_columns(1, &[], Mode::Shared, &[1, 2, 3])])
}
fn set_stock(key: i64) -> Statement {
    statement(StatementKind::Write, &[of_columns(1, &[key], Mode::NoKeyExclusive, &[4])])
}
fn set_price(key: i64) -> Statement {
    statement(StatementKind::Write, &[of_columns(1, &[key], Mode::NoKeyExclusive, &[3])])
}

#[test]
fn a_read_goes_where_the_last_change_of_its_columns_is_applied() {
    let mut rig = rig();
    rig.single(T1, set_stock(1));
    rig.done(T1, OP0, R0);
    rig.durable(1);
    rig.effects.clear();
    rig.single(T2, list_prices());
    rig.single(T3, read(1));
    rig.expect(&[execute(T2, OP0, R1, ALONE)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(T1, OP0, 1), execute(T3, OP0, R1, ALONE)]);
}

#[test]
fn what_was_read_is_not_run_again_when_only_other_columns_changed() {
    for (write, again) in [(set_stock(7), false), (set_price(7), true)] {
        let mut rig = rig();
        rig.begin(T1);
        rig.statement(T1, OP0, list_prices());
        rig.done(T1, OP0, R0);
        rig.single(T2, write);
        rig.done(T2, OP0, R1);
        rig.durable(1);
        rig.applied(R1, 1);
        rig.effects.clear();
        rig.statement(T1, OP1, set_stock(8));
        rig.expect(&[
            leave(T1, R0),
            if again {
                Effect::Revalidate { txn: T1, replica: R1, how: OPEN_HOME }
            } else {
                execute(T1, OP1, R0, OPEN_HOME)
            },
        ]);
    }
}

#[test]
fn transactions_that_read_prices_of_all_rows_and_change_the_stock_of_different_ones_do_not_wait() {
    let mut rig = rig();
    for (txn, key, home) in [(T1, 1, R1), (T2, 2, R0)] {
        rig.begin(txn);
        rig.statement(txn, OP0, list_prices());
        rig.done(txn, OP0, home);
        rig.effects.clear();
        rig.statement(txn, OP1, set_stock(key));
        assert!(matches!(rig.effects[..], [_, Effect::Execute { op: OP1, .. }]), "{:?}", rig.effects);
    }
    rig.effects.clear();
    rig.begin(T3);
    rig.statement(T3, OP0, set_price(3));
    rig.expect(&[]);
    assert!(rig.protocol.locks.waits(T3), "it changes what they have read");
}

#[test]
fn of_a_read_only_the_tables_that_are_written_afterwards_are_taken_at_once() {
    let mut rig = rig();
    let cart = |key| {
        let cart = of_columns(2, &[key], Mode::Shared, &[1, 2]);
        let prices = of_columns(1, &[], Mode::Shared, &[1, 2, 3]);
        statement(StatementKind::Read, &[cart, prices])
    };
    let empty_cart = |key| statement(StatementKind::Write, &[of_columns(2, &[key], Mode::Exclusive, &[])]);
    rig.begin(T1);
    rig.statement(T1, OP0, cart(1));
    rig.done(T1, OP0, R0);
    rig.statement(T1, OP1, set_stock(1));
    rig.done(T1, OP1, R1);
    rig.statement(T1, OP2, empty_cart(1));
    rig.done(T1, OP2, R1);
    rig.commit(T1, OpId(3));
    rig.durable(1);
    rig.applied(R0, 1);
    rig.applied(R1, 1);
    rig.effects.clear();
    rig.begin(T2);
    rig.statement(T2, OP0, cart(2));
    assert!(matches!(rig.effects[..], [Effect::Execute { how: OPEN_HOME, .. }]), "{:?}", rig.effects);
    let taken = [of_columns(2, &[2], Mode::Update, &[1, 2]), of_columns(1, &[], Mode::Shared, &[1, 2, 3])];
    assert_eq!(rig.protocol.locks.held(T2), taken);
}

/// A read of a row that is joined with rows of another table, which its answer shows.
fn join(key: i64) -> Statement {
    let columns = ColumnSet::NONE.with(ColumnId(2));
    let whole = Access::of_columns(Item::table(TableId(2)), Mode::Shared, columns);
    let access = smallvec![row(key, Mode::Shared), whole.clone()];
    Statement { shown: vec![whole], ..Statement::new(ClassId(4), StatementKind::Read, access) }
}
/// Of a column that is no part of a key.
fn joined_row(key: i64, mode: Mode) -> Access {
    let item = Item::rows(TableId(2), [(ColumnId(1), ValueHash::of_integer(key))]);
    Access::of_columns(item, mode, ColumnSet::NONE.with(ColumnId(2)))
}
fn write_joined(key: i64) -> Statement {
    let access = smallvec![joined_row(key, Mode::NoKeyExclusive)];
    Statement::new(ClassId(5), StatementKind::Write, access)
}
fn release(txn: TxnId, op: OpId, replica: ReplicaId) -> Effect {
    Effect::Release { txn, op, replica }
}
impl Rig {
    /// The join was executed and shows these rows.
    fn shows(&mut self, txn: TxnId, op: OpId, replica: ReplicaId, keys: &[i64]) {
        let returned = keys.iter().map(|key| joined_row(*key, Mode::Shared)).collect();
        let outcome = Outcome::Done { returned };
        self.on(Event::Executed { txn, op, replica, outcome, elapsed_ns: 1 });
    }
    fn writes_at_home(&mut self) {
        self.begin(T1);
        self.statement(T1, OP0, write(7));
        self.done(T1, OP0, R0);
        self.effects.clear();
    }
    /// T1 has written at R0, and joins there.
    fn joins_at_home(&mut self) {
        self.writes_at_home();
        self.statement(T1, OP1, join(7));
    }
    /// T1 has written at R0, and joins there before that contains what T2 has changed.
    fn joins_behind(&mut self, changed: i64) {
        self.writes_at_home();
        self.single(T2, write_joined(changed));
        self.done(T2, OP0, R1);
        self.durable(1);
        self.effects.clear();
        self.statement(T1, OP1, join(7));
        self.expect(&[execute_held(T1, OP1, R0, HOME)]);
        self.shows(T1, OP1, R0, &[9]);
    }
}

#[test]
fn of_a_table_that_is_joined_by_key_only_the_rows_that_the_answer_shows_are_held() {
    let mut rig = rig();
    rig.joins_at_home();
    rig.expect(&[execute_held(T1, OP1, R0, HOME)]);
    // Even while it runs, others may change rows of that table.
    rig.single(T2, write_joined(8));
    rig.expect(&[execute_held(T2, OP0, R1, OPEN_HOME)]);
    rig.shows(T1, OP1, R0, &[9]);
    rig.expect(&[release(T1, OP1, R0)]);
    rig.single(T3, write_joined(9));
    rig.expect(&[]);
    rig.commit(T1, OP2);
    rig.durable(1);
    let executed = rig.effects.iter().any(|effect| matches!(effect, Effect::Execute { txn: T3, .. }));
    assert!(executed, "{:?}", rig.effects);
}

#[test]
fn an_answer_that_shows_a_row_of_somebody_else_is_dropped_and_had_again_under_the_whole_table() {
    let mut rig = rig();
    rig.joins_at_home();
    rig.begin(T2);
    rig.statement(T2, OP0, write_joined(9));
    rig.done(T2, OP0, R1);
    rig.effects.clear();
    rig.shows(T1, OP1, R0, &[8, 9]);
    rig.expect(&[]);
    // Meanwhile it waits like everybody else, and whoever comes after it waits for it.
    rig.single(T3, write_joined(5));
    rig.expect(&[]);
    rig.on(Event::Rollback { txn: T2 });
    rig.expect(&[leave(T2, R1), execute(T1, OP1, R0, HOME)]);
    rig.shows(T1, OP1, R0, &[8, 9]);
    rig.expect(&[]);
    rig.on(Event::Rollback { txn: T1 });
    rig.expect(&[leave(T1, R0), execute_held(T3, OP0, R0, OPEN_HOME)]);
    assert_eq!(rig.protocol.status().executed_again, 1);
}

#[test]
fn an_answer_that_missed_a_commit_on_a_row_that_it_shows_is_had_again_where_that_is_contained() {
    let mut rig = rig();
    rig.joins_behind(9);
    rig.expect(&[]);
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(T2, OP0, 1), execute(T1, OP1, R0, HOME)]);
}

#[test]
fn an_answer_that_is_to_be_had_again_from_a_home_that_was_lost_meanwhile_is_had_from_another() {
    let mut rig = rig();
    rig.writes_at_home();
    rig.single(T2, write_joined(9));
    rig.done(T2, OP0, R1);
    rig.durable(1);
    rig.effects.clear();
    rig.statement(T1, OP1, join(7));
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.effects.clear();
    // The answer had come before the home was lost, and the loss was heard of first.
    rig.shows(T1, OP1, R0, &[9]);
    rig.expect(&[leave(T1, R0)]);
    rig.applied(R1, 1);
    let revalidate = Effect::Revalidate { txn: T1, replica: R1, how: OPEN_HOME };
    rig.expect(&[acknowledge(T2, OP0, 1), revalidate]);
}

#[test]
fn an_answer_that_missed_commits_only_on_other_rows_is_as_good() {
    let mut rig = rig();
    rig.joins_behind(8);
    rig.expect(&[release(T1, OP1, R0)]);
}

#[test]
fn an_answer_that_cannot_be_held_is_had_again_under_the_whole_table() {
    let mut rig = rig();
    rig.joins_at_home();
    rig.effects.clear();
    rig.on(Event::Executed { txn: T1, op: OP1, replica: R0, outcome: Outcome::TooLarge, elapsed_ns: 1 });
    rig.expect(&[execute(T1, OP1, R0, HOME)]);
    rig.single(T2, write_joined(8));
    rig.expect(&[]);
}

#[test]
fn rows_that_a_read_phase_was_shown_are_all_of_the_table_that_its_first_write_locks_and_validates() {
    for (missed, holds) in [(8, true), (9, false)] {
        let mut rig = rig();
        rig.begin(T1);
        rig.statement(T1, OP0, join(7));
        rig.expect(&[execute(T1, OP0, R0, OPEN_SNAPSHOT)]);
        rig.shows(T1, OP0, R0, &[9]);
        rig.expect(&[]);
        rig.single(T2, write_joined(missed));
        rig.done(T2, OP0, R1);
        rig.durable(1);
        rig.applied(R0, 1);
        rig.applied(R1, 1);
        rig.effects.clear();
        rig.statement(T1, OP1, write(7));
        let validates = rig.effects.iter().any(|effect| matches!(effect, Effect::Revalidate { .. }));
        assert_eq!(validates, !holds, "{:?}", rig.effects);
        rig.effects.clear();
        rig.single(T3, write_joined(8));
        rig.expect(&[execute_held(T3, OP0, R1, OPEN_HOME)]);
        rig.single(TxnId(4), write_joined(9));
        rig.expect(&[]);
    }
}

#[test]
fn a_read_by_itself_needs_the_whole_table_as_it_was_last_told() {
    let mut rig = rig();
    rig.single(T2, write_joined(8));
    rig.done(T2, OP0, R1);
    rig.durable(1);
    rig.applied(R1, 1);
    rig.effects.clear();
    rig.single(T1, join(7));
    rig.expect(&[execute(T1, OP0, R1, ALONE)]);
}

#[test]
fn rows_that_are_known_to_be_written_once_they_were_shown_are_taken_for_that_at_once() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, join(7));
    rig.shows(T1, OP0, R0, &[9]);
    rig.statement(T1, OP1, write_joined(9));
    rig.done(T1, OP1, R1);
    rig.commit(T1, OP2);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.applied(R1, 1);
    rig.effects.clear();

    // No read phase any more, which would have to end in a refusal of one of them.
    rig.begin(T2);
    rig.statement(T2, OP0, join(7));
    rig.begin(T3);
    rig.statement(T3, OP0, join(8));
    rig.expect(&[execute_held(T2, OP0, R0, OPEN_HOME), execute_held(T3, OP0, R1, OPEN_HOME)]);
    rig.shows(T2, OP0, R0, &[9]);
    rig.expect(&[release(T2, OP0, R0)]);
    rig.shows(T3, OP0, R1, &[9]);
    rig.expect(&[]);
    rig.statement(T2, OP1, write_joined(9));
    rig.expect(&[execute(T2, OP1, R0, HOME)]);
    rig.done(T2, OP1, R0);
    rig.commit(T2, OP2);
    rig.durable(2);
    rig.effects.clear();
    rig.applied(R1, 2);
    rig.expect(&[acknowledge(T2, OP2, 2), execute(T3, OP0, R1, HOME)]);
}

#[test]
fn a_table_of_which_rows_are_shown_is_neither_changed_nor_locked_as_a_whole_meanwhile() {
    for whole in [Item::table(TableId(2)), Item::table(TableId::ALL)] {
        let mut rig = rig();
        rig.joins_at_home();
        rig.effects.clear();
        let change = smallvec![Access::new(whole, Mode::Exclusive)];
        rig.single(T2, Statement::new(ClassId(3), StatementKind::Write, change));
        rig.expect(&[]);
        // Nor if nothing was shown.
        rig.shows(T1, OP1, R0, &[]);
        rig.expect(&[release(T1, OP1, R0)]);
    }
}

#[test]
fn what_a_statement_that_failed_may_have_shown_is_taken_before_its_transaction_commits() {
    let failed =
        |op: OpId| Event::Executed { txn: T1, op, replica: R0, outcome: Outcome::Failed, elapsed_ns: 1 };
    let mut rig = rig();
    rig.joins_at_home();
    rig.on(failed(OP1));
    rig.effects.clear();
    rig.single(T2, write_joined(8));
    rig.expect(&[]);

    let mut rig = self::rig();
    rig.begin(T1);
    rig.statement(T1, OP0, join(7));
    rig.on(failed(OP0));
    rig.statement(T1, OP1, write(7));
    rig.effects.clear();
    rig.single(T2, write_joined(8));
    rig.expect(&[]);
}

#[test]
fn an_answer_that_missed_nothing_is_good_though_every_replica_is_further_by_now() {
    let mut rig = rig();
    rig.joins_at_home();
    rig.effects.clear();
    rig.single(T2, write(3));
    rig.done(T2, OP0, R1);
    rig.durable(1);
    rig.applied(R0, 1);
    rig.applied(R1, 1);
    rig.effects.clear();
    rig.shows(T1, OP1, R0, &[9]);
    rig.expect(&[release(T1, OP1, R0)]);
}

#[test]
fn who_has_only_read_does_not_commit_if_what_a_failed_statement_showed_was_outdated_or_changes_meanwhile() {
    let failed =
        |op: OpId| Event::Executed { txn: T1, op, replica: R0, outcome: Outcome::Failed, elapsed_ns: 1 };
    let has_a_home = |rig: &mut Rig| {
        // By a locking read, which writes nothing.
        rig.begin(T1);
        rig.statement(T1, OP0, statement(StatementKind::LockingRead, &[row(7, Mode::NoKeyExclusive)]));
        rig.done(T1, OP0, R0);
        rig.effects.clear();
    };
    let refused = Effect::Refuse { txn: T1, op: OP2, reason: Refusal::ReadsChanged };

    // It missed what T2 has committed.
    let mut rig = rig();
    has_a_home(&mut rig);
    rig.single(T2, write_joined(9));
    rig.done(T2, OP0, R1);
    rig.durable(1);
    rig.effects.clear();
    rig.statement(T1, OP1, join(7));
    rig.on(failed(OP1));
    rig.effects.clear();
    rig.commit(T1, OP2);
    rig.expect(&[leave(T1, R0), refused.clone()]);

    // T2 holds what was shown, and commits a change of it first.
    let mut rig = self::rig();
    has_a_home(&mut rig);
    rig.single(T2, write_joined(9));
    rig.statement(T1, OP1, join(7));
    rig.on(failed(OP1));
    rig.effects.clear();
    rig.commit(T1, OP2);
    rig.expect(&[]);
    rig.done(T2, OP0, R1);
    rig.durable(1);
    assert!(rig.effects.contains(&refused), "{:?}", rig.effects);

    // T2 gives up.
    let mut rig = self::rig();
    has_a_home(&mut rig);
    rig.single(T2, write_joined(9));
    rig.statement(T1, OP1, join(7));
    rig.on(failed(OP1));
    rig.commit(T1, OP2);
    rig.effects.clear();
    rig.on(Event::Rollback { txn: T2 });
    assert!(
        rig.effects.contains(&Effect::Finish { txn: T1, op: OP2, replica: Some(R0) }),
        "{:?}",
        rig.effects
    );
}

/// T1 owes a row that a join had shown before it failed, and T2 changes it at the same home.
#[test]
fn a_statement_that_changes_what_somebody_owes_for_reading_does_not_wait_for_that_in_the_database() {
    let mut rig = rig();
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.joins_at_home();
    rig.effects.clear();
    rig.begin(T2);
    rig.statement(T2, OP0, write_joined(9));
    rig.expect(&[execute(T2, OP0, R0, OPEN_HOME)]);
    let failed = Outcome::Failed;
    rig.on(Event::Executed { txn: T1, op: OP1, replica: R0, outcome: failed, elapsed_ns: 1 });
    rig.effects.clear();
    // T2 executes, and T1 waits for it with its commit: that is no cycle.
    rig.commit(T1, OP2);
    rig.expect(&[]);
}

/// Nobody's statement is classified while definitions that may be committed are not known, nor T2's COMMIT.
#[test]
fn who_changes_definitions_does_not_wait_at_its_commit_for_what_a_failed_statement_showed() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, statement(StatementKind::LockingRead, &[row(7, Mode::NoKeyExclusive)]));
    rig.done(T1, OP0, R0);
    rig.begin(T2);
    rig.statement(T2, OP0, write_joined(9));
    rig.statement(T1, OP1, join(7));
    rig.on(Event::Executed { txn: T1, op: OP1, replica: R0, outcome: Outcome::Failed, elapsed_ns: 1 });
    // A table that is new: nobody who reads is kept waiting for that.
    let names = Access::new(Item::names(), Mode::Exclusive);
    rig.statement(T1, OP2, statement(StatementKind::Write, &[names]));
    rig.done(T1, OP2, R0);
    rig.effects.clear();
    rig.commit(T1, OP3);
    rig.expect(&[leave(T1, R0), Effect::Refuse { txn: T1, op: OP3, reason: Refusal::ReadsChanged }]);
}

/// T1 fails to join at R0, loses it, and fails to join once more at R1, which contains less. T2 holds what was shown.
#[test]
fn what_is_owed_is_judged_by_the_home_that_contained_least() {
    let fails = |rig: &mut Rig, op, replica| {
        rig.on(Event::Executed { txn: T1, op, replica, outcome: Outcome::Failed, elapsed_ns: 1 });
    };
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, statement(StatementKind::LockingRead, &[row(7, Mode::NoKeyExclusive)]));
    rig.done(T1, OP0, R0);
    rig.single(TxnId(9), write_joined(8));
    rig.done(TxnId(9), OP0, R1);
    rig.durable(1);
    rig.on(Event::HomeLost { txn: TxnId(9), replica: R1 });
    rig.applied(R0, 1);
    rig.begin(T2);
    rig.statement(T2, OP0, write_joined(9));
    rig.statement(T1, OP1, join(7));
    fails(&mut rig, OP1, R0);
    rig.on(Event::HomeLost { txn: T1, replica: R0 });
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.statement(T1, OP2, join(7));
    rig.on(Event::Revalidated { txn: T1, replica: R1, same: true });
    assert!(rig.effects.contains(&execute_held(T1, OP2, R1, HOME)), "{:?}", rig.effects);
    fails(&mut rig, OP2, R1);
    rig.commit(T1, OP3);
    rig.effects.clear();
    rig.on(Event::Rollback { txn: T2 });
    let refused = Effect::Refuse { txn: T1, op: OP3, reason: Refusal::ReadsChanged };
    assert!(rig.effects.contains(&refused), "{:?}", rig.effects);
}
