//! What a database promises, one condition a test.

use super::*;

const T: TableId = TableId(1);
const A: LaneId = LaneId(1);
const B: LaneId = LaneId(2);
const C: LaneId = LaneId(3);

fn database() -> Database {
    let row = |unique| Rc::new(Row { group: 0, unique: Some(unique), ..Row::default() });
    let contents = [((T, Key(1)), row(1)), ((T, Key(2)), row(2))].into();
    Database::new(&contents, Order::WithoutGaps)
}

impl Database {
    fn begin(&mut self, lane: LaneId) {
        self.open(lane, Isolation::ReadCommitted);
    }
    #[track_caller]
    fn done(&mut self, lane: LaneId, plan: Plan) -> Answer {
        match self.execute(lane, &plan) {
            Ran::Done(answer) => answer,
            other => panic!("{other:?}"),
        }
    }
    #[track_caller]
    fn commits(&mut self, lane: LaneId, csn: u64) {
        self.commit(lane, Csn(csn), Csn(csn)).expect("in order");
    }
    /// The values of each row that a statement found.
    #[track_caller]
    fn reads(&mut self, lane: LaneId, find: Find) -> Vec<(u64, Vec<u64>)> {
        let answer = self.done(lane, read(find));
        answer.rows.into_iter().map(|(key, row)| (key.0, row.values.clone())).collect()
    }
}

fn read(find: Find) -> Plan {
    Plan::Read { table: T, find, lock: None }
}
fn append(key: u64, value: u64) -> Plan {
    Plan::Append { table: T, find: Find::Key(Key(key)), value }
}
fn insert(key: u64, unique: u64) -> Plan {
    Plan::Insert {
        table: T,
        key: Key(key),
        group: 1,
        unique: Some(unique),
        parent: None,
        copies: None,
        coarse: false,
    }
}
fn delete(key: u64) -> Plan {
    Plan::Delete { table: T, find: Find::Key(Key(key)) }
}
const KEY_1: Find = Find::Key(Key(1));

#[test]
fn a_repeatable_read_keeps_its_first_snapshot_and_read_committed_moves_on() {
    let mut database = database();
    database.open(A, Isolation::RepeatableRead);
    database.begin(B);
    database.begin(C);
    assert_eq!(database.reads(A, KEY_1), [(1, vec![])]);
    database.done(C, append(1, 5));
    assert_eq!(database.reads(C, KEY_1), [(1, vec![5])], "its own write");
    assert_eq!(database.reads(B, KEY_1), [(1, vec![])], "not committed");
    database.commits(C, 1);
    assert_eq!(database.reads(A, KEY_1), [(1, vec![])]);
    assert_eq!(database.reads(B, KEY_1), [(1, vec![5])]);
}

#[test]
fn a_writer_waits_for_the_rows_holder_and_then_takes_the_newest_version() {
    let mut database = database();
    database.begin(A);
    database.begin(B);
    database.done(A, append(1, 5));
    assert_eq!(database.execute(B, &append(1, 6)), Ran::Blocked(vec![A]));
    assert_eq!(database.take_woken(), []);
    database.commits(A, 1);
    let woken = database.take_woken();
    let [(B, Ran::Done(answer))] = &woken[..] else { panic!("{woken:?}") };
    assert_eq!(answer.changes[0].after.as_ref().unwrap().values, [5, 6]);
}

#[test]
fn different_rows_and_key_share_do_not_wait() {
    let mut database = database();
    database.begin(A);
    database.begin(B);
    database.done(A, append(1, 5));
    database.done(B, append(2, 6));
    let key_share = Plan::Read { table: T, find: KEY_1, lock: Some(Strength::KeyShare) };
    database.done(B, key_share);
    let share = Plan::Read { table: T, find: KEY_1, lock: Some(Strength::Share) };
    assert_eq!(database.execute(B, &share), Ran::Blocked(vec![A]));
}

#[test]
fn a_cycle_of_waiting_fails_the_statement_that_closes_it() {
    let mut database = database();
    database.begin(A);
    database.begin(B);
    database.done(A, append(1, 5));
    database.done(B, append(2, 6));
    assert_eq!(database.execute(A, &append(2, 7)), Ran::Blocked(vec![B]));
    let failed = Ran::Failed(Fault::Deadlock { on_rows: true });
    assert_eq!(database.execute(B, &append(1, 8)), failed);
    assert!(matches!(&database.take_woken()[..], [(A, Ran::Done(_))]));
    assert_eq!(database.execute(B, &append(1, 8)), Ran::Failed(Fault::Aborted), "only rolled back");
}

#[test]
fn a_commit_out_of_order_is_refused_and_rolled_back() {
    let mut database = database();
    database.begin(A);
    database.done(A, append(1, 5));
    let refused = CommitRefused::OutOfOrder { progress: Csn(0) };
    assert_eq!(database.commit(A, Csn(2), Csn(2)), Err(refused));
    assert_eq!(database.commit(A, Csn(1), Csn(1)), Err(CommitRefused::Aborted));
    database.begin(A);
    assert_eq!(database.reads(A, KEY_1), [(1, vec![])]);
    assert_eq!(database.progress(), Csn(0));
}

#[test]
fn where_any_order_will_do_a_gap_is_filled_later_and_nothing_is_committed_twice() {
    let mut database = Database::new(&Contents::new(), Order::Any);
    for (csn, complete) in [(2, 0), (3, 0), (1, 3)] {
        database.begin(A);
        database.commits(A, csn);
        assert_eq!(database.progress(), Csn(complete));
    }
    database.begin(A);
    let refused = CommitRefused::OutOfOrder { progress: Csn(3) };
    assert_eq!(database.commit(A, Csn(2), Csn(2)), Err(refused));
    database.crash(1);
    assert!(database.contains(Csn(3)) && !database.contains(Csn(1)));
}

#[test]
fn an_insert_waits_for_whoever_makes_or_frees_its_unique_value() {
    let mut database = database();
    database.begin(A);
    database.begin(B);
    database.done(A, delete(1));
    assert_eq!(database.execute(B, &insert(9, 1)), Ran::Blocked(vec![A]));
    database.rollback(A);
    assert_eq!(database.take_woken(), [(B, Ran::Failed(Fault::Duplicate))]);
    database.begin(A);
    database.done(A, delete(1));
    database.commits(A, 1);
    database.begin(C);
    database.done(C, insert(9, 1));
}

#[test]
fn a_failed_statement_lets_its_transactions_locks_go() {
    let mut database = database();
    database.begin(A);
    database.begin(B);
    database.done(A, append(1, 5));
    assert!(matches!(database.execute(B, &append(1, 6)), Ran::Blocked(_)));
    assert_eq!(database.execute(A, &insert(9, 2)), Ran::Failed(Fault::Duplicate));
    assert!(matches!(&database.take_woken()[..], [(B, Ran::Done(_))]));
}

#[test]
fn truncate_waits_for_the_tables_users_and_empties_it_for_older_snapshots() {
    let mut database = database();
    database.open(A, Isolation::RepeatableRead);
    database.done(A, Plan::Read { table: TableId(2), find: Find::All, lock: None });
    database.begin(B);
    database.reads(B, KEY_1);
    database.begin(C);
    assert_eq!(database.execute(C, &Plan::Truncate { table: T }), Ran::Blocked(vec![B]));
    database.commit_read_only(B);
    assert!(matches!(&database.take_woken()[..], [(C, Ran::Done(_))]));
    assert!(matches!(database.execute(A, &read(Find::All)), Ran::Blocked(_)));
    database.commits(C, 1);
    let woken = database.take_woken();
    let [(A, Ran::Done(answer))] = &woken[..] else { panic!("{woken:?}") };
    assert_eq!((answer.rows.len(), answer.position), (0, Csn(0)), "an old snapshot, yet empty");
}

#[test]
fn a_crash_takes_back_the_newest_commits_and_their_progress() {
    let mut database = database();
    for (csn, plan) in [(1, append(1, 5)), (2, Plan::Truncate { table: T }), (3, insert(7, 7))] {
        database.begin(A);
        database.done(A, plan);
        database.commits(A, csn);
    }
    database.begin(A);
    database.crash(2);
    assert_eq!((database.progress(), database.lanes().count()), (Csn(1), 0));
    database.begin(A);
    assert_eq!(database.reads(A, Find::All), [(1, vec![5]), (2, vec![])]);
}

#[test]
fn images_are_applied_only_to_the_rows_that_they_were_taken_from() {
    let mut database = database();
    database.begin(A);
    let images: Rc<[Change]> = database.done(A, append(1, 5)).changes.into();
    database.rollback(A);
    for expected in [true, false] {
        database.begin(B);
        let ran = database.execute(B, &Plan::Images(Rc::clone(&images)));
        assert_eq!(matches!(ran, Ran::Done(_)), expected, "{ran:?}");
        if expected {
            database.commits(B, 1);
        }
    }
}
