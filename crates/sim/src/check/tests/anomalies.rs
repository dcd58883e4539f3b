//! Every anomaly planted by hand: found, named, and only at the levels that forbid it.

use crate::check::Level::{
    ParallelSnapshotIsolation as Psi, Serializable as Ser, SnapshotIsolation as Si,
    StrictSerializable as Strict,
};
use crate::check::{Anomaly, Level, Options, Report, check, text};

const ALL: [Level; 4] = [Strict, Ser, Si, Psi];

fn report(history: &str, options: impl Into<Options>) -> Report {
    let history = text::parse(history).unwrap_or_else(|error| panic!("{error}\n{history}"));
    check(&history, options)
}

/// The history shows exactly this anomaly at these levels, and nothing at the others.
#[track_caller]
fn shows(anomaly: Anomaly, levels: &[Level], history: &str) {
    for level in ALL {
        let report = report(history, level);
        let found: Vec<Anomaly> = report.counts.keys().copied().collect();
        let expected = if levels.contains(&level) { vec![anomaly] } else { vec![] };
        assert_eq!(found, expected, "at {level:?}\n{report}");
    }
}

#[track_caller]
fn is_valid(history: &str) {
    for level in ALL {
        let report = report(history, level);
        assert!(report.is_valid(), "{report}");
    }
}

#[test]
fn empty_history_is_valid() {
    is_valid("");
}

#[test]
fn serial_transactions_on_all_kinds_of_objects_are_valid() {
    is_valid(
        "p1 committed  0..10  append l1 1; write r1 1; insert t1 1; insert t1 2
         p2 committed 20..30  read l1 [1]; append l1 2; read l1 [1 2]; read r1 1; write r1 2; read r1 2
         p1 committed 40..50  scan t1 {1 2}; delete t1 1; scan t1 {2}; read l1 [1 2]; read r1 2
         p3 committed 60..70  scan t1 {2}; read r2 nil; read l2 []; scan t2 {}",
    );
}

#[test]
fn overlapping_transactions_may_take_effect_in_either_order() {
    is_valid(
        "p1 committed 0..50  append l1 1
         p2 committed 10..60 append l1 2
         p3 committed 20..70 read l1 []
         p4 committed 30..80 read l1 [2 1]
         p5 committed 40..90 read l1 [2]",
    );
}

#[test]
fn value_that_nobody_wrote_is_read() {
    shows(Anomaly::UnwrittenRead, &ALL, "p1 committed 0..10 read l1 [7]");
    shows(Anomaly::UnwrittenRead, &ALL, "p1 committed 0..10 read r1 7");
    shows(Anomaly::UnwrittenRead, &ALL, "p1 committed 0..10 scan t1 {7}");
    shows(Anomaly::UnwrittenRead, &ALL, "p1 committed 0..10 delete t1 7");
}

#[test]
fn value_of_an_aborted_transaction_is_read() {
    for (write, read) in
        [("append l1 7", "read l1 [7]"), ("write r1 7", "read r1 7"), ("insert t1 7", "scan t1 {7}")]
    {
        let history = format!("p1 aborted 0..10 {write}\np2 committed 5..10 {read}");
        shows(Anomaly::AbortedRead, &ALL, &history);
    }
}

#[test]
fn value_that_its_writer_overwrote_is_read() {
    let writes = [
        ("append l1 1; append l1 2", "read l1 [1]"),
        ("write r1 1; write r1 2", "read r1 1"),
        ("insert t1 1; delete t1 1", "scan t1 {1}"),
    ];
    for (write, read) in writes {
        let history = format!("p1 committed 0..10 {write}\np2 committed 5..12 {read}");
        let report = report(&history, Ser);
        assert!(report.found(Anomaly::IntermediateRead), "{report}");
    }
}

#[test]
fn append_shows_twice() {
    shows(
        Anomaly::DuplicateAppend,
        &ALL,
        "p1 committed 0..10 append l1 1
         p2 committed 20..30 read l1 [1 1]",
    );
    shows(Anomaly::DuplicateAppend, &ALL, "p1 committed 0..10 append l1 1; read l1 [1 1]");
}

#[test]
fn reads_of_a_list_disagree_on_its_order() {
    shows(
        Anomaly::IncompatibleOrders,
        &ALL,
        "p1 committed 0..90 append l1 1
         p2 committed 0..90 append l1 2
         p3 committed 0..90 read l1 [1 2]
         p4 committed 0..90 read l1 [2 1]",
    );
}

#[test]
fn transaction_does_not_see_its_own_write() {
    for steps in [
        "append l1 1; read l1 []",
        "write r1 1; read r1 nil",
        "insert t1 1; scan t1 {}",
        "insert t1 1; delete t1 1; scan t1 {1}",
        "read l1 [1]; append l1 1",
        "read r1 1; write r1 1",
        "scan t1 {1}; insert t1 1",
    ] {
        shows(Anomaly::InternalInconsistency, &ALL, &format!("p1 committed 0..10 {steps}"));
    }
}

#[test]
fn second_read_of_a_transaction_differs_from_its_first() {
    for (write, reads) in [
        ("append l1 1", "read l1 []; read l1 [1]"),
        ("write r1 1", "read r1 nil; read r1 1"),
        ("insert t1 1", "scan t1 {}; scan t1 {1}"),
    ] {
        let history = format!("p1 committed 0..10 {write}\np2 committed 0..10 {reads}");
        shows(Anomaly::InternalInconsistency, &ALL, &history);
    }
}

#[test]
fn transactions_overwrite_each_other_in_a_cycle() {
    shows(
        Anomaly::DirtyWrite,
        &ALL,
        "p1 committed 0..10 append l1 1; append l2 1
         p2 committed 0..10 append l1 2; append l2 2
         p3 committed 20..30 read l1 [1 2]
         p3 committed 40..50 read l2 [2 1]",
    );
}

#[test]
fn information_flows_in_a_circle() {
    shows(
        Anomaly::CircularInformationFlow,
        &ALL,
        "p1 committed 0..10 append l1 1; read l2 [2]
         p2 committed 0..10 append l2 2; read l1 [1]",
    );
    shows(
        Anomaly::CircularInformationFlow,
        &ALL,
        "p1 committed 0..10 write r1 1; read r2 2
         p2 committed 0..10 write r2 2; read r1 1",
    );
    shows(
        Anomaly::CircularInformationFlow,
        &ALL,
        "p1 committed 0..10 insert t1 1; scan t2 {2}
         p2 committed 0..10 insert t2 2; scan t1 {1}",
    );
}

#[test]
fn update_is_lost_between_read_and_write() {
    shows(
        Anomaly::LostUpdate,
        &ALL,
        "p1 committed 0..10 read l1 []; append l1 1
         p2 committed 0..10 read l1 []; append l1 2
         p3 committed 20..30 read l1 [1 2]",
    );
    shows(
        Anomaly::LostUpdate,
        &ALL,
        "p1 committed 0..10 read l1 []; append l1 1
         p2 committed 0..10 read l1 []; append l1 2",
    );
    shows(
        Anomaly::LostUpdate,
        &ALL,
        "p1 committed 0..10 read r1 nil; write r1 1
         p2 committed 0..10 read r1 nil; write r1 2
         p3 committed 20..30 read r1 2",
    );
    shows(
        Anomaly::LostUpdate,
        &ALL,
        "p0 committed 0..10 insert t1 1
         p1 committed 20..30 delete t1 1
         p2 committed 20..30 delete t1 1",
    );
}

#[test]
fn client_overwrites_a_list_that_another_has_grown() {
    // T2 wrote back the list that it had read, with its own value added: T1's append is gone.
    let report = report(
        "p0 committed 0..10 append l1 1
         p1 committed 20..30 read l1 [1]; append l1 2
         p2 committed 20..30 read l1 [1]; append l1 3
         p3 committed 40..50 read l1 [1 3]",
        Psi,
    );
    assert!(report.found(Anomaly::LostUpdate), "{report}");
}

#[test]
fn reader_sees_a_transaction_in_part() {
    for (write, read) in [
        ("append l1 1; append l2 1", "read l1 [1]; read l2 []"),
        ("write r1 1; write r2 1", "read r1 1; read r2 nil"),
        ("insert t1 1; insert t2 1", "scan t1 {1}; scan t2 {}"),
        ("insert t1 1; insert t1 2", "scan t1 {2}"),
    ] {
        let history = format!("p1 committed 0..10 {write}\np2 committed 0..10 {read}");
        shows(Anomaly::ReadSkew, &ALL, &history);
    }
}

#[test]
fn readers_see_two_writers_in_opposite_orders() {
    for (a, b, sees_a, sees_b) in [
        ("append l1 1", "append l2 2", "read l1 [1]; read l2 []", "read l1 []; read l2 [2]"),
        ("write r1 1", "write r2 2", "read r1 1; read r2 nil", "read r1 nil; read r2 2"),
        ("insert t1 1", "insert t1 2", "scan t1 {1}", "scan t1 {2}"),
    ] {
        let history = format!(
            "p1 committed 0..10 {a}\np2 committed 0..10 {b}\np3 committed 0..10 {sees_a}\np4 committed 0..10 {sees_b}"
        );
        shows(Anomaly::LongFork, &[Strict, Ser, Si], &history);
    }
}

#[test]
fn two_doctors_go_off_call() {
    for history in [
        "p1 committed 0..10 read l1 []; read l2 []; append l1 1
         p2 committed 0..10 read l1 []; read l2 []; append l2 2",
        "p1 committed 0..10 read r1 nil; read r2 nil; write r1 1
         p2 committed 0..10 read r1 nil; read r2 nil; write r2 2",
    ] {
        shows(Anomaly::WriteSkew, &[Strict, Ser], history);
    }
}

#[test]
fn three_transactions_each_miss_the_next() {
    shows(
        Anomaly::WriteSkew,
        &[Strict, Ser],
        "p1 committed 0..10 read l2 []; append l1 1
         p2 committed 0..10 read l3 []; append l2 1
         p3 committed 0..10 read l1 []; append l3 1",
    );
}

#[test]
fn both_count_then_insert() {
    shows(
        Anomaly::Phantom,
        &[Strict, Ser],
        "p1 committed 0..10 scan t1 {}; insert t1 1
         p2 committed 0..10 scan t1 {}; insert t1 2",
    );
}

#[test]
fn deleted_rows_order_their_readers() {
    is_valid(
        "p1 committed 0..10 insert t1 1; insert t1 2
         p2 committed 20..30 delete t1 1
         p3 committed 20..30 scan t1 {1 2}
         p4 committed 40..50 scan t1 {2}",
    );
    shows(
        Anomaly::StaleRead,
        &[Strict],
        "p1 committed 0..10 insert t1 1
         p2 committed 20..30 delete t1 1
         p4 committed 40..50 scan t1 {1}",
    );
}

#[test]
fn reader_of_an_old_batch_closes_a_cycle_with_adjacent_anti_dependencies() {
    // The read-only anomaly of snapshot isolation (Fekete, O'Neil and O'Neil 2004).
    shows(
        Anomaly::AntiDependencyCycle,
        &[Strict, Ser],
        "p1 committed 0..90 read l1 []; read l2 []; append l1 1
         p2 committed 0..20 read l2 []; append l2 2
         p3 committed 30..40 read l1 []; read l2 [2]",
    );
}

#[test]
fn read_misses_what_had_been_answered() {
    for (write, old, new) in [
        ("append l1 1", "read l1 []", "read l1 [1]"),
        ("write r1 1", "read r1 nil", "read r1 1"),
        ("insert t1 1", "scan t1 {}", "scan t1 {1}"),
    ] {
        let history =
            format!("p1 committed 0..10 {write}\np2 committed 11..20 {old}\np3 committed 30..40 {new}");
        shows(Anomaly::StaleRead, &[Strict], &history);
        let at_once =
            format!("p1 committed 0..10 {write}\np2 committed 10..20 {old}\np3 committed 30..40 {new}");
        is_valid(&at_once);
    }
}

#[test]
fn stale_read_far_back_is_shown_in_two_steps() {
    let mut history = String::from("p1 committed 0..10 append l1 1\n");
    for place in 1..100 {
        let (from, to) = (place * 20, place * 20 + 10);
        history += &format!("p1 committed {from}..{to} append l1 {}\n", place + 1);
    }
    history += "p2 committed 5000..5010 read l1 [1 2 3]\np2 committed 5020..5030 read l1 [";
    history += &(1..=100).map(|value| value.to_string()).collect::<Vec<_>>().join(" ");
    history += "]\n";
    let report = report(&history, Strict);
    assert_eq!(report.counts.get(&Anomaly::StaleRead), Some(&1), "{report}");
    assert_eq!(report.violations[0].transactions.len(), 2, "{report}");
}

#[test]
fn monotonic_reads_of_a_blindly_written_register_are_broken() {
    // Each write is over before the reads begin; the reads see first one, then the other.
    shows(
        Anomaly::StaleRead,
        &[Strict],
        "p1 committed 0..10 write r1 1
         p2 committed 0..10 write r1 2
         p3 committed 20..30 read r1 2
         p3 committed 40..50 read r1 1",
    );
}

#[test]
fn append_is_never_seen_again() {
    shows(
        Anomaly::LostAppend,
        &[Strict],
        "p1 committed 0..10 append l1 1
         p2 committed 20..30 append l1 2
         p3 committed 40..50 read l1 [2]",
    );
}

#[test]
fn effect_comes_before_its_cause() {
    shows(
        Anomaly::OrderViolation,
        &[Strict],
        "p1 committed 0..10 read l1 [1]
         p2 committed 20..30 append l1 1",
    );
}

#[test]
fn stale_read_in_ones_own_session_needs_session_order() {
    let history = "p1 committed 0..10 append l1 1
                   p1 committed 20..30 read l1 []
                   p2 committed 0..50 read l1 [1]";
    for level in [Ser, Si, Psi] {
        assert!(report(history, level).is_valid());
        let in_session = report(history, Options::from(level).in_session_order());
        assert!(in_session.found(Anomaly::StaleRead), "{in_session}");
        let in_time = report(history, Options::from(level).in_real_time());
        assert!(in_time.found(Anomaly::StaleRead), "{in_time}");
    }
    let in_registers = "p1 committed 0..10 write r1 1
                        p1 committed 20..30 read r1 nil";
    assert!(report(in_registers, Ser).is_valid());
    assert!(report(in_registers, Options::from(Ser).in_session_order()).found(Anomaly::StaleRead));
}

#[test]
fn unknown_transaction_may_have_committed_or_not_and_at_any_later_time() {
    is_valid(
        "p1 unknown 0..10 append l1 1
         p2 committed 20..30 read l1 []",
    );
    is_valid(
        "p1 unknown 0..10 append l1 1
         p2 committed 20..30 read l1 []
         p2 committed 40..50 read l1 [1]",
    );
    shows(
        Anomaly::StaleRead,
        &[Strict],
        "p1 unknown 0..10 append l1 1
         p2 committed 20..30 read l1 [1]
         p2 committed 40..50 read l1 []",
    );
}

#[test]
fn unknown_transaction_that_was_seen_brings_in_those_that_it_saw() {
    let report = report(
        "p1 unknown 0..10 append l1 1
         p2 unknown 0..10 read l1 [1]; append l2 2
         p3 committed 20..30 read l2 [2]
         p4 committed 40..50 read l1 []",
        Strict,
    );
    assert_eq!(report.evidence.unknown_seen, 2);
    assert!(report.found(Anomaly::StaleRead), "{report}");
}

#[test]
fn row_that_an_unknown_transaction_may_have_deleted_proves_nothing() {
    is_valid(
        "p1 committed 0..10 insert t1 1
         p2 unknown 20..30 delete t1 1
         p3 committed 40..50 scan t1 {}",
    );
}

#[test]
fn savepoint_that_was_rolled_back_is_an_aborted_transaction_within_another() {
    is_valid(
        "p1 committed 0..50 append l1 1; append l1 3
         p1 aborted 10..20 append l1 2
         p2 committed 60..70 read l1 [1 3]",
    );
    shows(
        Anomaly::AbortedRead,
        &ALL,
        "p1 committed 0..50 append l1 1; append l1 3
         p1 aborted 10..20 append l1 2
         p2 committed 60..70 read l1 [1 2 3]",
    );
}

#[test]
fn explanation_names_who_saw_what_and_why_it_cannot_be() {
    let report = report(
        "p1 committed 1000000000..2000000000 append l1 7
         p2 committed 2000000001..3000000000 read l1 []
         p3 committed 3000000001..4000000000 read l1 [7]",
        Strict,
    );
    assert_eq!(
        report.violations[0].explanation,
        "\
stale read (real-time violation):
  T0 by p1, committed, 1.000000000 s .. 2.000000000 s
      append l1 7
  T1 by p2, committed, 2.000000001 s .. 3.000000000 s
      read l1 []
  - T0 precedes T1: T0 had completed at 2.000000000 s, T1 began at 2.000000001 s
  - T1 precedes T0: T1 read list l1 without 7, which T0 appended
"
    );
}
