//! Cycles that are closed where the core does not see it (docs/protocols/onecopy.md, *Waiting that only servers know*).

use super::rig::*;
use super::*;
use crate::ids::ClassId;
use crate::item::TableId;

/// LOCK TABLE.
fn lock(table: u64) -> Statement {
    let table = TableId(table);
    let access = [Item::table(table), Item::schema(table)].map(|item| Access::new(item, Mode::Exclusive));
    Statement::new(ClassId(9), StatementKind::LockingRead, access.into_iter().collect())
}

/// T1 has locked table 1 and T2 table 2, both at R0. T2 then locks table 3, for which it waits in the server, and T1 waits for
/// T2 in the core.
fn two_who_lock() -> Rig {
    let mut rig = rig();
    rig.on(Event::ReplicaDown { replica: R1 });
    for (txn, table) in [(T1, 1), (T2, 2)] {
        rig.begin(txn);
        rig.statement(txn, OP0, lock(table));
        rig.done(txn, OP0, R0);
    }
    rig.statement(T2, OP1, lock(3));
    rig.statement(T1, OP1, lock(2));
    assert_eq!(rig.effects.last(), Some(&execute(T2, OP1, R0, HOME)));
    rig.effects.clear();
    rig
}

#[test]
fn of_a_cycle_by_way_of_a_reader_whom_only_the_server_knows_who_waits_in_the_core_is_refused() {
    let mut rig = two_who_lock();
    // Reader T3 of table 3 and then table 1. It is the youngest, and T2 is younger than T1, but neither hears anything now.
    rig.on(Event::WaitsOutside { waits: vec![(T2, T3), (T3, T1)] });
    rig.expect(&[leave(T1, R0), Effect::Refuse { txn: T1, op: OP1, reason: Refusal::Deadlock }]);
    assert_eq!(rig.protocol.status().deadlocks, 1);
}

#[test]
fn waiting_outside_that_closes_no_cycle_refuses_nobody_and_is_not_kept() {
    let mut rig = two_who_lock();
    rig.on(Event::WaitsOutside { waits: vec![(T2, T3)] });
    rig.on(Event::WaitsOutside { waits: vec![(T3, T1)] });
    rig.expect(&[]);
    rig.cancel(T1, OP1);
    rig.on(Event::WaitsOutside { waits: vec![(T2, T3), (T3, T1)] });
    rig.effects.clear();
    // It may be over by now.
    rig.statement(T1, OP2, lock(2));
    rig.expect(&[]);
    rig.on(Event::WaitsOutside { waits: vec![(T2, T3), (T3, T1)] });
    rig.expect(&[leave(T1, R0), Effect::Refuse { txn: T1, op: OP2, reason: Refusal::Deadlock }]);
}

#[test]
fn who_was_seen_to_wait_outside_and_waits_in_the_core_now_does_not_wait_there_any_more() {
    let mut rig = two_who_lock();
    rig.done(T2, OP1, R0);
    rig.begin(T3);
    rig.statement(T3, OP0, lock(4));
    rig.done(T3, OP0, R0);
    rig.statement(T2, OP2, lock(4));
    rig.effects.clear();
    rig.on(Event::WaitsOutside { waits: vec![(T2, T1)] });
    rig.expect(&[]);
}

#[test]
fn a_read_phase_that_waits_in_a_server_does_not_hold_up_a_change_of_definitions_for_whom_it_waits() {
    let mut rig = rig();
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.begin(T1);
    rig.statement(T1, OP0, lock(2));
    rig.done(T1, OP0, R0);
    rig.begin(T2);
    rig.statement(T2, OP0, read(1));
    rig.done(T2, OP0, R0);
    rig.statement(T2, OP1, read(1));
    // T3 waits for the read phase to end; T1, for whom that waits in the server, for T3.
    rig.begin(T3);
    rig.statement(T3, OP0, schema_change());
    rig.statement(T1, OP1, write(1));
    rig.effects.clear();
    rig.on(Event::WaitsOutside { waits: vec![(T2, T1)] });
    rig.expect(&[Effect::Refuse { txn: T3, op: OP0, reason: Refusal::Deadlock }, execute(T1, OP1, R0, HOME)]);
}

/// Only the session of the one that reads knows of what it has locked.
#[test]
fn a_read_that_waits_for_a_change_of_definitions_does_not_hold_that_up_by_a_lock_of_its_session() {
    let mut rig = rig();
    rig.begin(T1);
    rig.statement(T1, OP0, schema_change());
    rig.done(T1, OP0, R0);
    rig.begin(T2);
    rig.statement(T2, OP0, read(1));
    rig.effects.clear();
    assert_eq!(rig.protocol.status().waits_for, [(2, vec![1])]);
    rig.on(Event::WaitsOutside { waits: vec![(T1, T2)] });
    rig.expect(&[Effect::Refuse { txn: T2, op: OP0, reason: Refusal::Deadlock }]);
}
