//! What all peers do alike, in runs in which chance decides what happens next.

use super::parts::{Division, Divisions};
use super::rig::{
    CUT, DIVIDED, DONE, Rig, Run, acknowledge, apply, change, comes, commit, cut_row, forget, granules, read,
    update, write,
};
use super::{Message, Peers, Permission, Turn};
use crate::effect::{Effect, How, Refusal};
use crate::event::{Event, Outcome, Place, RowChange, StatementKind};
use crate::ids::{NodeId, OpId, ReplicaId, TxnId};
use crate::item::{Access, Item, Mode, TableId};
use crate::message::Message as AnyMessage;
use crate::protocol::{Guarantee, Protocol, invalidation, lock_central, lock_distributed, partitioned, weak};
use crate::table_queues::TableLocks;

const RUNS: u64 = 300;
const TRANSACTIONS: usize = 40;

#[track_caller]
fn keeps_its_promise<P: Protocol + 'static>(new: impl Fn(u16) -> P) {
    keep_it(|nodes, seed| Run::new(new(nodes), nodes, seed));
}

/// All runs of so many nodes with such a seed.
#[track_caller]
fn keep_it(run: impl Fn(u16, u64) -> Run) {
    for seed in 0..RUNS {
        let nodes = 1 + (seed % 4) as u16;
        let judged = run(nodes, seed).go(TRANSACTIONS);
        assert_eq!(judged.map(drop), Ok(()), "{nodes} nodes, seed {seed}");
    }
}

/// Whether some run goes wrong in this way.
fn goes_wrong<P: Protocol + 'static>(new: impl Fn(u16) -> P, how: &str) -> bool {
    let what = |seed| Run::new(new(3), 3, seed).go(TRANSACTIONS).err();
    (0..RUNS).filter_map(what).any(|what| what.contains(how))
}

#[test]
fn peers_that_ask_are_strictly_serializable_and_end_alike() {
    keeps_its_promise(invalidation::new);
    keeps_its_promise(|nodes| partitioned::new(nodes, &Divisions::default()));
    keeps_its_promise(lock_distributed::new);
    keeps_its_promise(lock_central::new);
}

/// Statements about rows of one peer, wherever their clients are, and about rows of several, beside tables that all have.
#[test]
fn tables_divided_by_a_column_are_strictly_serializable_as_a_whole() {
    keep_it(|nodes, seed| Run::divided(nodes, seed, partitioned::new));
}

/// Rows of a table that is cut, and all of it, beside other tables.
#[test]
fn tables_that_are_cut_are_strictly_serializable_as_a_whole() {
    fn keeps_it<P: Permission + 'static>(new: impl Fn(u16) -> Peers<P>) {
        keep_it(|nodes, seed| Run::cut(new(nodes).cut(&granules()), nodes, seed));
    }
    keeps_it(invalidation::new);
    keeps_it(|nodes| partitioned::new(nodes, &Divisions::default()));
    keeps_it(lock_distributed::new);
    keeps_it(lock_central::new);
}

/// A statement about all rows of which only two are told.
#[test]
fn a_table_of_which_too_few_granules_are_taken_is_not() {
    let what = |seed| {
        let mut run = Run::cut(invalidation::new(3).cut(&granules()), 3, seed);
        run.lies = true;
        run.go(TRANSACTIONS).err()
    };
    let wrong: Vec<String> = (0..RUNS).filter_map(what).collect();
    assert!(wrong.iter().any(|what| what.contains("no order explains")));
    assert!(wrong.iter().any(|what| what.contains("differs at")));
}

#[test]
fn rows_of_other_granules_are_written_at_the_same_time() {
    let here = NodeId(0);
    let writes = |txn, items: Vec<Item>| {
        let mut event = comes(txn, StatementKind::Write, &[]);
        if let Event::Autocommit { statement, .. } = &mut event {
            statement.access.extend(items.into_iter().map(|item| Access::new(item, Mode::NoKeyExclusive)));
        }
        event
    };
    let mut rig = Rig::new(lock_central::new(2).cut(&granules()));
    // Rows 0 and 1 are of different granules.
    let (of_0, of_1, of_all) = (TxnId(1), TxnId(2), TxnId(3));
    rig.at(here, 1, writes(of_0, vec![cut_row(0)]));
    rig.at(here, 2, writes(of_1, vec![cut_row(1)]));
    rig.at(here, 3, writes(of_all, vec![Item::table(CUT)]));
    rig.expect(&[write(of_0, here), write(of_1, here)]);
}

/// Without latches somebody sees one half of what another one writes.
#[test]
fn rows_of_several_peers_without_latches_are_not() {
    let careless =
        |nodes, _: &Divisions| partitioned::new(nodes, &[(DIVIDED, Division::Clients)].into_iter().collect());
    let what = |seed| Run::divided(3, seed, careless).go(TRANSACTIONS).err();
    assert!((0..RUNS).filter_map(what).any(|what| what.contains("no order explains")));
}

#[test]
fn peers_that_do_not_ask_are_not() {
    assert!(goes_wrong(weak::new, "differs at"));
}

/// Grants at once, and lets updates be applied in the order of versions that nobody agreed on.
#[derive(Debug)]
struct Careless;

impl Permission for Careless {
    fn new(_: NodeId, _: u16) -> Careless {
        Careless
    }
    fn ask(&mut self, txn: TxnId, _: &TableLocks, turn: &mut Turn<'_>) {
        turn.grant(txn);
    }
    fn on_message(&mut self, _: NodeId, _: AnyMessage, _: &mut Turn<'_>) {}
    fn over(&mut self, _: TxnId, _: bool, _: &mut Turn<'_>) {}
}

#[test]
fn two_that_write_at_once_are_found() {
    let new = |nodes| Peers::<Careless>::new("careless", Guarantee::None, nodes, &Divisions::default());
    assert!(goes_wrong(new, "at once"));
}

#[test]
fn updates_are_applied_in_the_order_of_versions() {
    let (here, there, elsewhere) = (NodeId(0), NodeId(1), NodeId(2));
    let (a, reader) = (TableId(1), TxnId(2));
    let mut rig = Rig::new(invalidation::new(3));
    let update = |txn, version| {
        let versions = [(a, version)].into_iter().collect();
        AnyMessage::Peers(Message::Update { txn: TxnId(txn), versions, change: None })
    };
    rig.says(elsewhere, here, update(8, 2));
    rig.expect(&[]);
    rig.says(there, here, update(7, 1));
    rig.expect(&[apply(there, TxnId(7), here)]);
    rig.at(here, 2, comes(reader, StatementKind::Read, &[a]));
    rig.update_applied(there, TxnId(7), here);
    rig.expect(&[apply(elsewhere, TxnId(8), here)]);
    rig.update_applied(elsewhere, TxnId(8), here);
    rig.expect(&[read(reader, here)]);
}

/// Section III.C.3: of two writers of a row one overwrites the other, so only the latest update is applied.
#[test]
fn s3_c_an_update_that_the_next_one_hides_is_not_applied() {
    let (here, there, a) = (NodeId(0), NodeId(1), TableId(1));
    let update = |txn, version, change| {
        let versions = [(a, version)].into_iter().collect();
        AnyMessage::Peers(Message::Update { txn: TxnId(txn), versions, change: Some(change) })
    };
    let passed_over = |earlier: RowChange, later: RowChange| {
        let mut rig = Rig::new(invalidation::new(2));
        rig.says(there, here, update(6, 1, change(a, 9, &[2], false)));
        rig.says(there, here, update(7, 2, earlier));
        rig.says(there, here, update(8, 3, later));
        rig.expect(&[apply(there, TxnId(6), here)]);
        // Whoever reads waits for the last one.
        rig.at(here, 2, comes(TxnId(1), StatementKind::Read, &[a]));
        rig.update_applied(there, TxnId(6), here);
        let (origin, replica) = (Place::Peer(there), ReplicaId(0));
        let passes = [Effect::PassOver { origin, txn: TxnId(7), replica }, apply(there, TxnId(8), here)];
        let is_passed = rig.effects() == passes;
        rig.update_applied(there, TxnId(if is_passed { 8 } else { 7 }), here);
        match is_passed {
            true => rig.expect(&[read(TxnId(1), here)]),
            false => rig.expect(&[apply(there, TxnId(8), here)]),
        }
        is_passed
    };
    let earlier = change(a, 1, &[2], false);
    assert!(passed_over(earlier.clone(), change(a, 1, &[2, 3], true)));
    assert!(
        !passed_over(earlier.clone(), change(a, 1, &[2, 3], false)),
        "what it writes depends on what was there"
    );
    assert!(!passed_over(earlier.clone(), change(a, 1, &[3], true)), "other columns");
    assert!(!passed_over(earlier, change(a, 2, &[2], true)), "another row");
    let far = change(a, 1, &[70], false);
    assert!(!passed_over(far, change(a, 1, &[71], true)), "columns that cannot be told apart");
}

#[test]
fn updates_are_coalesced_in_runs_and_one_that_hides_nothing_is_found() {
    let run = |seed, lies| {
        let mut run = Run::new(invalidation::new(3), 3, seed);
        run.lies = lies;
        run.go(TRANSACTIONS)
    };
    // Two must follow each other closely, on one row.
    let seeds = || 0..5 * RUNS;
    let passed_over: usize = seeds().filter_map(|seed| run(seed, false).ok()).sum();
    assert!(passed_over > 10, "{passed_over}");
    assert!(seeds().filter_map(|seed| run(seed, true).err()).any(|what| what.contains("does not hide")));
}

#[test]
fn a_write_that_is_lost_before_its_commit_executes_again_under_the_same_permission() {
    let (here, there, w, a) = (NodeId(0), NodeId(1), TxnId(1), TableId(1));
    let mut rig = Rig::new(lock_central::new(2));
    rig.at(here, 1, comes(w, StatementKind::Write, &[a]));
    rig.executed(here, w, Outcome::Lost { answer_begun: false });
    rig.executed(here, w, DONE);
    rig.expect(&[write(w, here), write(w, here), commit(w, here, 1)]);
    rig.at(here, 1, Event::HomeLost { txn: w, replica: ReplicaId(0) });
    rig.executed(here, w, DONE);
    rig.committed(here, 2);
    rig.expect(&[
        write(w, here),
        commit(w, here, 2),
        acknowledge(w, 2),
        update(w, there, &[(a, 1)]),
        forget(w),
    ]);
}

#[test]
fn a_read_that_is_lost_waits_for_what_has_been_announced_since_it_began() {
    let (here, there, r, a) = (NodeId(0), NodeId(1), TxnId(1), TableId(1));
    let mut rig = Rig::new(invalidation::new(2));
    rig.at(here, 1, comes(r, StatementKind::Read, &[a]));
    rig.expect(&[read(r, here)]);
    let versions = [(a, 1)].into_iter().collect();
    rig.says(there, here, AnyMessage::Peers(Message::Update { txn: TxnId(7), versions, change: None }));
    rig.executed(here, r, Outcome::Lost { answer_begun: false });
    rig.expect(&[apply(there, TxnId(7), here)]);
    rig.update_applied(there, TxnId(7), here);
    rig.expect(&[read(r, here)]);
}

#[test]
fn a_write_whose_answer_is_too_large_to_be_held_is_refused_if_it_is_lost_after_that() {
    let (here, w, a) = (NodeId(0), TxnId(1), TableId(1));
    let replica = ReplicaId(0);
    let mut rig = Rig::new(lock_central::new(2));
    rig.at(here, 1, comes(w, StatementKind::Write, &[a]));
    rig.executed(here, w, Outcome::TooLarge);
    let how = How::Home { open: true };
    rig.expect(&[
        write(w, here),
        Effect::Leave { txn: w, replica },
        Effect::Execute { txn: w, op: OpId(0), replica, how, hold: false },
    ]);
    rig.executed(here, w, DONE);
    rig.at(here, 1, Event::HomeLost { txn: w, replica });
    let reason = Refusal::AnswerCut;
    rig.expect(&[commit(w, here, 1), Effect::Refuse { txn: w, op: OpId(0), reason }, forget(w)]);
    // Its lock is free again.
    rig.at(here, 1, comes(TxnId(2), StatementKind::Read, &[a]));
    rig.expect(&[read(TxnId(2), here)]);
}
