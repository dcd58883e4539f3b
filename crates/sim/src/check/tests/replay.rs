//! The checker by intended order: accepts what ran in that order, and finds each way to depart from it.

use onecopy_core::Csn;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::generate::{Generated, Shape, serial};
use crate::check::replay::{MalformedOrder, Mismatch, Place, Time, explain, replay};
use crate::check::{History, Operation, Status, TransactionIndex, text};

fn place(csn: u64, snapshots: &[u64]) -> Place {
    Place { csn: (csn > 0).then_some(Csn(csn)), snapshots: snapshots.iter().map(|&at| Csn(at)).collect() }
}

#[track_caller]
fn mismatches(history: &str, places: &[Place], time: Time) -> Vec<Mismatch> {
    replay(&text::parse(history).unwrap(), places, time).unwrap()
}

const T0: TransactionIndex = TransactionIndex(0);
const T1: TransactionIndex = TransactionIndex(1);
const T2: TransactionIndex = TransactionIndex(2);

#[test]
fn random_serial_executions_agree_with_their_order() {
    for seed in 0..100 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let Generated { history, places } = serial(&mut random, &Shape::large(500));
        let mismatches = replay(&history, &places, Time::Real).unwrap();
        assert!(mismatches.is_empty(), "seed {seed}\n{}", explain(&history, &mismatches));
    }
}

#[test]
fn every_change_of_a_read_is_found() {
    let mut changed = 0;
    for seed in 0..300 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let Generated { history, places } = serial(&mut random, &Shape::large(300));
        let mut transactions = history.into_transactions();
        let index = random.random_range(0..transactions.len());
        let steps = &mut transactions[index].operations;
        let step = random.random_range(0..steps.len());
        let change = match &mut steps[step] {
            Operation::ReadList { values, .. } => values.pop().is_some(),
            Operation::Read { value, .. } => value.take().is_some(),
            Operation::Scan { rows, .. } => rows.pop().is_some(),
            _ => false,
        };
        if change {
            changed += 1;
            let history = History::new(transactions).unwrap();
            let found = replay(&history, &places, Time::Any).unwrap();
            assert!(
                found.iter().any(|mismatch| matches!(
                    mismatch,
                    Mismatch::WrongRead { transaction, operation, .. }
                        if transaction.0 as usize == index && *operation == step
                )),
                "seed {seed}: {found:?}"
            );
        }
    }
    assert!(changed > 50, "too few to prove anything");
}

#[test]
fn snapshot_one_position_too_early_is_found_unless_nothing_changed_there() {
    let (mut moved, mut found) = (0, 0);
    for seed in 0..300 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let Generated { history, places } = serial(&mut random, &Shape::large(300));
        let mut early = places.clone();
        let index = random.random_range(0..early.len());
        let only_read =
            early[index].csn.is_none() && history.transactions()[index].status == Status::Committed;
        if only_read && early[index].snapshots.iter().all(|at| at.0 > 0) {
            // The replica served an older state, and the client saw that state.
            for at in &mut early[index].snapshots {
                *at = at.previous();
            }
            moved += 1;
            let mismatches = replay(&history, &early, Time::Real).unwrap();
            found += usize::from(!mismatches.is_empty());
        }
    }
    println!("{found} of {moved} snapshots moved");
    assert!(found > 0 && found < moved);
}

#[test]
fn replica_shows_another_state_than_its_position() {
    let history = "p1 committed 0..10 append l1 1\np2 committed 20..30 read l1 []";
    assert_eq!(
        mismatches(history, &[place(1, &[]), place(0, &[1])], Time::Any),
        vec![Mismatch::WrongRead {
            transaction: T1,
            operation: 0,
            saw: "read l1 []".into(),
            expected: "read l1 [1]".into(),
            at: Csn(1),
            at_own_snapshot: true,
        }]
    );
}

#[test]
fn read_is_placed_one_csn_too_early() {
    let history = "p1 committed 0..10 append l1 1\np2 committed 20..30 read l1 []";
    let places = [place(1, &[]), place(0, &[0])];
    assert_eq!(
        mismatches(history, &places, Time::Real),
        vec![Mismatch::WrongRead {
            transaction: T1,
            operation: 0,
            saw: "read l1 []".into(),
            expected: "read l1 [1]".into(),
            at: Csn(1),
            at_own_snapshot: false,
        }]
    );
    assert_eq!(mismatches(history, &places, Time::Any), vec![]);
}

#[test]
fn older_snapshot_is_as_good_when_nothing_changed_that_was_read() {
    let history = "p1 committed 0..10 append l1 1
                   p1 committed 20..30 append l2 2
                   p2 committed 40..50 read l1 [1]";
    assert_eq!(mismatches(history, &[place(1, &[]), place(2, &[]), place(0, &[1])], Time::Real), vec![]);
}

#[test]
fn update_reads_what_was_overwritten_before_its_own_commit() {
    let history = "p1 committed 0..100 append l1 1
                   p2 committed 0..100 read l1 []; append l1 2";
    assert_eq!(
        mismatches(history, &[place(1, &[]), place(2, &[0])], Time::Any),
        vec![Mismatch::WrongRead {
            transaction: T1,
            operation: 0,
            saw: "read l1 []".into(),
            expected: "read l1 [1]".into(),
            at: Csn(1),
            at_own_snapshot: false,
        }]
    );
}

#[test]
fn reader_sees_two_snapshots_that_no_one_place_explains() {
    let history = "p1 committed 0..100 append l1 1; append l2 1
                   p2 committed 0..100 read l1 []; read l2 [1]";
    let found = mismatches(history, &[place(1, &[]), place(0, &[0, 1])], Time::Any);
    assert!(
        matches!(found[..], [Mismatch::WrongRead { operation: 0, at_own_snapshot: false, .. }]),
        "{found:?}"
    );
}

#[test]
fn scan_is_right_again_where_the_row_that_came_has_gone() {
    let history = "p1 committed 0..50 insert t1 7
                   p1 committed 60..70 append l1 1
                   p1 committed 80..90 delete t1 7
                   p2 committed 0..300 scan t1 {}; read l1 [1]";
    let read_at = |newest: u64| {
        let places = [place(1, &[]), place(2, &[]), place(3, &[]), place(0, &[0, newest])];
        mismatches(history, &places, Time::Real)
    };
    assert_eq!(read_at(3), vec![]);
    // It has seen nothing of the time when the row had gone.
    let found = read_at(2);
    assert!(
        matches!(found[..], [Mismatch::WrongRead { operation: 0, at_own_snapshot: false, .. }]),
        "{found:?}"
    );
}

#[test]
fn scan_that_is_right_only_before_and_after_the_other_reads_is_found() {
    let history = "p1 committed 0..50 insert t1 7; append l1 1
                   p1 committed 60..90 delete t1 7; append l1 2
                   p2 committed 0..300 scan t1 {}; read l1 [1]; read l2 []";
    let found = mismatches(history, &[place(1, &[]), place(2, &[]), place(0, &[0, 1, 2])], Time::Real);
    assert!(
        matches!(found[..], [Mismatch::WrongRead { operation: 0, at_own_snapshot: false, .. }]),
        "{found:?}"
    );
}

#[test]
fn commit_is_ordered_before_one_that_was_answered_earlier() {
    let history = "p1 committed 0..10 append l1 1\np2 committed 20..30 append l2 2";
    let places = [place(2, &[]), place(1, &[])];
    assert_eq!(
        mismatches(history, &places, Time::Real),
        vec![Mismatch::OutOfTime { earlier: T0, later: T1, earlier_at: Csn(2), later_at: Csn(0) }]
    );
    assert_eq!(mismatches(history, &places, Time::Any), vec![]);
}

#[test]
fn reader_goes_back_behind_what_another_reader_saw() {
    let history = "p1 unknown 0..10 append l1 1
                   p2 committed 20..30 read l1 [1]
                   p3 committed 40..50 read l1 []";
    let found = mismatches(history, &[place(1, &[]), place(0, &[1]), place(0, &[0])], Time::Real);
    assert!(
        matches!(found[..], [Mismatch::WrongRead { transaction: T2, at_own_snapshot: false, .. }]),
        "{found:?}"
    );
}

#[test]
fn order_contradicts_what_clients_were_told() {
    let history =
        "p1 aborted 0..10 append l1 1\np2 committed 0..10 append l1 2\np3 committed 0..10 append l1 3";
    assert_eq!(
        mismatches(history, &[place(1, &[]), place(0, &[]), place(1, &[])], Time::Any),
        vec![
            Mismatch::CsnTwice { csn: Csn(1), first: T0, second: T2 },
            Mismatch::AbortedButOrdered { transaction: T0, csn: Csn(1) },
            Mismatch::NotOrdered { transaction: T1 },
        ]
    );
}

#[test]
fn snapshot_holds_the_transactions_own_commit() {
    let history = "p1 committed 0..10 read l1 []; append l1 1";
    assert_eq!(
        mismatches(history, &[place(1, &[1])], Time::Any),
        vec![Mismatch::SnapshotPastCommit { transaction: T0, snapshot: Csn(1), csn: Csn(1) },]
    );
}

#[test]
fn places_must_fit_the_history() {
    let history = text::parse("p1 committed 0..10 read l1 []").unwrap();
    assert_eq!(replay(&history, &[], Time::Any), Err(MalformedOrder::Length { places: 0, transactions: 1 }));
    assert_eq!(
        replay(&history, &[place(0, &[])], Time::Any),
        Err(MalformedOrder::Snapshots { transaction: T0, snapshots: 0, reads: 1 })
    );
}
