//! Histories as text.

use crate::check::text::{ParseError, parse, write};
use crate::check::{MalformedHistory, TransactionIndex};

const EVERYTHING: &str = "\
p1 committed 10..20 append l1 5; read l1 [5 6]; write r2 7; read r2 7; read r3 nil
p2 aborted 12..30 insert t1 4; delete t1 4; scan t1 {1 2}
p4294967295 unknown 13..31 read l9 []; scan t9 {}
p3 committed 40..50
";

#[test]
fn history_that_was_written_is_read_back() {
    assert_eq!(write(&parse(EVERYTHING).unwrap()), EVERYTHING);
}

#[test]
fn comments_and_alignment_are_skipped() {
    let history = parse("# nothing\n\n   p1   committed   1..2   append l1 5  # why\n").unwrap();
    assert_eq!(write(&history), "p1 committed 1..2 append l1 5\n");
}

#[test]
fn line_that_cannot_be_read_is_named() {
    for line in [
        "1 committed 1..2",
        "p4294967296 committed 1..2",
        "p1 done 1..2",
        "p1 committed 1-2",
        "p1 committed 1..",
        "p1 committed 1..2 append r1 5",
        "p1 committed 1..2 append l1",
        "p1 committed 1..2 append l1 x",
        "p1 committed 1..2 read l1 5",
        "p1 committed 1..2 read r1 [5]",
        "p1 committed 1..2 scan t1 [5]",
        "p1 committed 1..2 forget l1 5",
    ] {
        let text = format!("p9 committed 0..1\n{line}");
        assert!(matches!(parse(&text), Err(ParseError::Syntax { line: 2, .. })), "{line}");
    }
}

#[test]
fn history_that_means_nothing_is_refused() {
    let refused = |text: &str| match parse(text) {
        Err(ParseError::Malformed(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let [first, second] = [TransactionIndex(0), TransactionIndex(1)];
    assert_eq!(refused("p1 committed 2..1"), MalformedHistory::EndsBeforeItBegins { transaction: first });
    assert!(matches!(
        refused("p1 committed 0..5\np1 unknown 4..6"),
        MalformedHistory::ProcessOverlaps { first: a, second: b, .. } if (a, b) == (first, second)
    ));
    for write in ["append l1 5", "write r1 5", "insert t1 5"] {
        assert_eq!(
            refused(&format!("p1 aborted 0..5 {write}\np2 committed 4..6 {write}")),
            MalformedHistory::WrittenTwice { first, second, what: write.into() }
        );
    }
    assert_eq!(
        refused("p1 committed 0..5 scan t1 {2 1}"),
        MalformedHistory::ScanUnsorted { transaction: first }
    );
    assert_eq!(
        refused("p1 committed 0..5 scan t1 {1 1}"),
        MalformedHistory::ScanUnsorted { transaction: first }
    );
}
