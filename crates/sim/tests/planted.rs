//! Each planted bug is found, by the failures that must show it.

mod sweep;

use std::collections::{BTreeMap, BTreeSet};

use onecopy_sim::planted::{
    AcknowledgedBeforeDurable, ApplySkipped, ApplyTwice, Bug, ColumnsConfused, CommitOrderSkipped,
    ConflictMissed, ConflictsMissed, CopyBelievedFurther, ExecuteLost, HomeTooEarly, LeaveLost, ReadTooEarly,
    RevalidationSkipped, RollbackLost, SameValue, SnapshotMovedUnchecked, ToldBeforeDurable, plant,
};
use onecopy_sim::{Breakage, Moment, Scenario};
use sweep::Sweep;

/// Expects that within the seeds of CI each of these kinds of failure is found.
#[track_caller]
fn expect_caught<B: Bug + Default + 'static>(scenario: fn(u64) -> Scenario, kinds: &[&'static str]) {
    const SEEDS: u64 = 1_000;
    let sweep = Sweep { file: "planted", test: "planted", seeds: SEEDS, scenario, protocol: plant::<B> };
    let mut missing: BTreeSet<&str> = kinds.iter().copied().collect();
    let mut found = BTreeMap::new();
    for seed in 0..SEEDS {
        let outcome = sweep.run(seed, false);
        for failure in &outcome.failures {
            found.entry(failure.kind()).or_insert(seed);
            missing.remove(failure.kind());
        }
        if missing.is_empty() {
            println!("caught, each kind of failure first by this seed: {found:?}");
            return;
        }
    }
    panic!("{SEEDS} seeds did not show {missing:?}, only {found:?}");
}

/// Several replicas, of which some lag, and nothing breaks.
fn calm(seed: u64) -> Scenario {
    let calm = Scenario::calm(seed);
    Scenario { replicas: calm.replicas.max(2), ..calm }
}

/// The same behind progress tables that refuse nothing.
fn unguarded(seed: u64) -> Scenario {
    Scenario { progress_guarded: false, ..calm(seed) }
}

/// The node dies soon after one of the first decisions.
fn node_dies(seed: u64) -> Scenario {
    Scenario { breakages: vec![(Moment::Append(1 + seed % 20), Breakage::Node)], ..calm(seed) }
}

#[test]
fn commit_order_skipped_on_one_replica_shows_in_the_history() {
    expect_caught::<CommitOrderSkipped>(
        unguarded,
        &["anomaly", "order broken", "disagreement", "apply failed"],
    );
}

#[test]
fn commit_order_skipped_on_one_replica_is_refused_by_its_progress_table() {
    expect_caught::<CommitOrderSkipped>(calm, &["commit out of order"]);
}

/// One more replica joins soon.
fn one_joins(seed: u64) -> Scenario {
    Scenario { breakages: vec![(Moment::Append(2 + seed % 20), Breakage::Join)], ..calm(seed) }
}

/// The same behind progress tables that refuse nothing.
fn one_joins_unguarded(seed: u64) -> Scenario {
    Scenario { progress_guarded: false, ..one_joins(seed) }
}

#[test]
fn a_copy_that_is_believed_further_than_it_is_shows_in_what_replicas_hold() {
    expect_caught::<CopyBelievedFurther>(one_joins_unguarded, &["replica differs", "order broken"]);
}

#[test]
fn a_copy_that_is_believed_further_than_it_is_is_refused_by_its_progress_table() {
    expect_caught::<CopyBelievedFurther>(one_joins, &["commit out of order"]);
}

#[test]
fn a_read_placed_one_csn_too_early_shows_in_the_history() {
    expect_caught::<ReadTooEarly>(calm, &["anomaly", "order broken"]);
}

#[test]
fn a_missed_row_conflict_shows_in_the_history_and_in_the_databases() {
    let kinds = ["anomaly", "order broken", "apply blocked", "disagreement"];
    expect_caught::<ConflictMissed>(calm, &kinds);
}

#[test]
fn a_reader_that_names_the_wrong_columns_shows_in_the_history() {
    expect_caught::<ColumnsConfused>(calm, &["anomaly", "order broken"]);
}

#[test]
fn transactions_that_wait_for_each_other_in_one_database_are_found() {
    fn one_replica(seed: u64) -> Scenario {
        Scenario { replicas: 1, clients: 8, keys: 2, ..Scenario::calm(seed) }
    }
    expect_caught::<ConflictsMissed>(one_replica, &["deadlock in a database"]);
}

#[test]
fn a_client_acknowledged_before_durability_shows_when_the_node_dies() {
    let kinds = ["acknowledged early", "commit lost", "anomaly", "order broken"];
    expect_caught::<AcknowledgedBeforeDurable>(node_dies, &kinds);
}

#[test]
fn a_replica_told_before_durability_is_ahead_of_the_log_when_the_node_dies() {
    expect_caught::<ToldBeforeDurable>(node_dies, &["replica ahead of the log"]);
}

#[test]
fn a_home_that_executes_before_the_last_writer_of_its_items_is_applied_shows_in_the_history() {
    expect_caught::<HomeTooEarly>(calm, &["anomaly", "order broken", "apply blocked"]);
}

#[test]
fn a_skipped_revalidation_shows_in_the_history() {
    expect_caught::<RevalidationSkipped>(calm, &["anomaly", "order broken"]);
}

#[test]
fn a_snapshot_that_is_exchanged_for_another_without_running_its_reads_again_shows_in_the_history() {
    expect_caught::<SnapshotMovedUnchecked>(calm, &["anomaly", "order broken"]);
}

#[test]
fn a_decision_that_is_not_applied_makes_a_replica_differ() {
    expect_caught::<ApplySkipped>(unguarded, &["replica differs"]);
}

#[test]
fn a_run_that_is_ordered_twice_is_senseless() {
    expect_caught::<ApplyTwice>(calm, &["order senseless", "commit out of order"]);
}

#[test]
fn a_transaction_that_is_not_left_leaks_its_lane() {
    expect_caught::<LeaveLost>(calm, &["lane leaked"]);
}

#[test]
fn a_statement_that_is_never_executed_leaves_its_client_stuck() {
    expect_caught::<ExecuteLost>(calm, &["stuck"]);
}

#[test]
fn a_transaction_that_the_core_never_forgets_is_found() {
    expect_caught::<RollbackLost>(calm, &["core leaked"]);
}

#[test]
fn a_value_of_a_sequence_that_is_given_twice_is_found() {
    expect_caught::<SameValue>(calm, &["value given twice"]);
}
