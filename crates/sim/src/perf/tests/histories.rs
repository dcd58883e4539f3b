//! What users saw keeps what the protocol promises, and what does not keep it is found.

use onecopy_core::protocol::{Engine, Guarantee, Protocol, Status, Writes};
use onecopy_core::scheduling;
use onecopy_core::table_queues::TableLocks;
use onecopy_core::{Effect, Event, Instant, Message, Place};
use onecopy_workload::tpcw::MixName;

use super::{PROTOCOLS, bookstore, protocol, run_site_well, run_well, sites, the_2003, the_2003_of};
use crate::check::{Level, Operation, Options, check};
use crate::perf::{Discipline, Fault, Items, Latency, Outcome, SECOND_NS, Setup, Users, run};

pub(super) fn recorded<'a>(profile: &'a crate::perf::Profile, seed: u64) -> Setup<'a> {
    // Faster than the paper's databases, so that much happens at once.
    Setup {
        seed,
        speed: 4,
        history: true,
        warm_up_ns: 0,
        measured_ns: 40 * SECOND_NS,
        ..Setup::new(profile, 4, Users::Closed(250))
    }
}

fn expect_kept(outcome: &Outcome, level: impl Into<Options>, what: &str) {
    expect_kept_by_evidence(outcome, level, what, 500);
}

pub(super) fn expect_kept_by_evidence(
    outcome: &Outcome,
    level: impl Into<Options>,
    what: &str,
    write_read: usize,
) {
    let history = outcome.history.as_ref().expect("it was asked for");
    let report = check(history, level);
    assert!(report.is_valid(), "{what}: {report}");
    // A history that shows nothing keeps every promise.
    assert!(report.evidence.write_read > write_read && report.evidence.write_write > 50, "{what}: {report}");
}

/// What the checker shall demand of a protocol's histories, where there is something that it promises.
fn promised(name: &str) -> Option<Options> {
    match name {
        // It may stand before an open update that somebody who was answered comes after.
        "versioning" | "versioning_no_early_release" | "versioning_late_acquire" => {
            Some(Options::from(Level::Serializable).in_session_order())
        }
        // What may be old may be older than what the session has seen.
        "special" | "chains_serializable" => Some(Level::Serializable.into()),
        "level0" | "level1" | "level2" => None,
        // Its replicas commit in one order, so it is more than the parallel kind, which the protocol promises.
        "chains" | "centralised_writes" => Some(Level::SnapshotIsolation.into()),
        _ => Some(Level::StrictSerializable.into()),
    }
}

#[test]
fn histories_keep_what_the_protocol_promises() {
    let profile = the_2003();
    for name in PROTOCOLS {
        let Some(level) = promised(name) else { continue };
        for (seed, mix) in MixName::ALL.into_iter().enumerate() {
            let setup = recorded(&profile, seed as u64);
            expect_kept(&run_well(&setup, mix, name), level, name);
        }
        let odd = Setup {
            discipline: Discipline::Queued,
            cpus: 2,
            items: Items::Tables,
            network: Latency { hop_ns: 100_000, jitter_ns: 5_000_000, overtaking: false },
            ..recorded(&profile, 9)
        };
        let is_snapshot = level.level == Level::SnapshotIsolation;
        let level = if is_snapshot { level } else { Level::Serializable.into() };
        expect_kept(&run_well(&odd, MixName::Ordering, name), level, name);
    }
}

#[test]
fn histories_of_the_other_sites_keep_what_each_protocol_promises() {
    for name in PROTOCOLS {
        // Each with sites of its own: whoever comes to one again deals the same ids for new rows.
        for mut site in sites() {
            let profile = the_2003_of(&site.catalogue().name);
            // `special` has its rules for the bookstore only.
            let Some(level) = promised(name).filter(|_| name != "special") else { continue };
            let items = if name == "onecopy" { Items::Rows } else { Items::DeclaredTables };
            let setup = Setup { items, ..recorded(&profile, 1) };
            let outcome = run_site_well(&setup, site.as_mut(), name);
            let report = check(outcome.history.as_ref().expect("it was asked for"), level);
            assert!(report.is_valid(), "{} {name}: {report}", profile.workload);
            assert!(report.evidence.write_read > 100, "{} {name}: {report}", profile.workload);
        }
    }
}

#[test]
fn histories_of_versioning_are_kept_where_databases_show_nothing_uncommitted() {
    let profile = the_2003();
    for name in ["versioning", "versioning_late_acquire"] {
        let setup = Setup { engine: Engine::default(), ..recorded(&profile, 4) };
        let level = Options::from(Level::Serializable).in_session_order();
        expect_kept(&run_well(&setup, MixName::Ordering, name), level, name);
    }
}

#[test]
fn histories_are_strict_where_databases_commit_in_the_order_of_decisions() {
    let profile = the_2003();
    for name in ["conflict_aware", "variable_load", "versioning", "versioning_late_acquire"] {
        let engine = Engine { shows_uncommitted: false, commits_in_order: true };
        let setup = Setup { engine, ..recorded(&profile, 4) };
        let outcome = run_well(&setup, MixName::Ordering, name);
        expect_kept(&outcome, Options::from(Level::StrictSerializable), name);
    }
}

#[test]
fn an_order_that_is_applied_together_keeps_histories_and_costs_one_commit() {
    let profile = the_2003();
    let apart = recorded(&profile, 4);
    let together = Setup { applies_together: true, ..apart.clone() };
    let writing = [apart, together].map(|setup| {
        let outcome = run_well(&setup, MixName::Ordering, "onecopy");
        expect_kept(&outcome, Options::from(Level::StrictSerializable), "onecopy");
        let write_ns: u64 = outcome.measured.replicas.iter().map(|busy| busy.write_ns).sum();
        write_ns as f64 / outcome.measured.throughput()
    });
    assert!(writing[1] < writing[0], "{writing:?}");
}

/// Reads of a session that found an older version of a table than the session had written. Versions are numbered in the order
/// in which statements arrive, which is that of their tables' versions.
fn reads_older_than_own_writes(history: &crate::check::History) -> usize {
    let mut written = std::collections::BTreeMap::new();
    let mut older = 0;
    for (_, transaction) in history.iter() {
        for operation in &transaction.operations {
            match operation {
                Operation::Read { register, value } => {
                    let own = written.get(&(transaction.process, *register)).copied();
                    older += usize::from(own.is_some_and(|own| value.is_none_or(|value| value < own)));
                }
                Operation::Write { register, value } => {
                    _ = written.insert((transaction.process, *register), *value);
                }
                _ => {}
            }
        }
    }
    older
}

#[test]
fn the_loose_levels_fail_in_the_ways_their_definitions_say() {
    let profile = the_2003();
    // As with several schedulers, of which none knows what others have sent.
    let network = Latency { hop_ns: 100_000, jitter_ns: 20_000_000, overtaking: true };
    let found = ["level0", "level1", "level2"].map(|name| {
        let outcome = run_well(&Setup { network, ..recorded(&profile, 6) }, MixName::Ordering, name);
        let history = outcome.history.expect("it was asked for");
        // Transactions are torn.
        assert!(!check(&history, Level::Serializable).is_valid(), "{name}");
        (outcome.measured.disagreements > 0, reads_older_than_own_writes(&history) > 0)
    });
    // Writes out of order, so replicas differ for ever, at Level 0 only.
    assert_eq!(found.map(|(differ, _)| differ), [true, false, false]);
    // Level 2 promises it; the others may miss what their own client wrote.
    assert!(!found[2].1);
}

#[test]
fn histories_of_rows_keep_what_the_protocol_promises() {
    let profile = the_2003();
    for (seed, mix) in MixName::ALL.into_iter().enumerate() {
        let setup = Setup { items: Items::Rows, ..recorded(&profile, seed as u64) };
        // Few rows and columns that are read have been written.
        let outcome = run_well(&setup, mix, "onecopy");
        expect_kept_by_evidence(&outcome, Level::StrictSerializable, "onecopy", 150);
    }
    // Every replica executes: the history is one of tables, the more so since locks are.
    let setup = Setup { items: Items::Rows, ..recorded(&profile, 5) };
    expect_kept(&run_well(&setup, MixName::Ordering, "conflict_aware"), Level::StrictSerializable, "rows");
}

/// A protocol whose messages are changed on their way.
struct Broken {
    protocol: Box<dyn Protocol>,
    spoil: fn(Place, &mut scheduling::Message),
}

impl Protocol for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn guarantee(&self) -> Guarantee {
        self.protocol.guarantee()
    }

    fn position(&self) -> onecopy_core::Position {
        self.protocol.position()
    }

    fn writes(&self) -> Writes {
        self.protocol.writes()
    }

    fn place_of(&self, event: &Event) -> Place {
        self.protocol.place_of(event)
    }

    fn handle(&mut self, place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        self.protocol.handle(place, now, event, effects);
        for effect in effects {
            if let Effect::Send { to, message: Message::Scheduling(message) } = effect {
                (self.spoil)(*to, message);
            }
        }
    }

    fn status(&self) -> Status {
        self.protocol.status()
    }
}

fn run_broken(name: &str, spoil: fn(Place, &mut scheduling::Message)) -> Outcome {
    let profile = the_2003();
    let setup = recorded(&profile, 3);
    let broken = Broken { protocol: protocol(name, &setup), spoil };
    run(&setup, &mut bookstore(MixName::Ordering), Box::new(broken)).expect("the profile fits")
}

#[test]
fn single_reads_that_wait_for_no_lock_are_found_to_be_stale() {
    let outcome = run_broken("eager", |_, message| {
        if let scheduling::Message::SingleRead { locks, behind, .. } = message {
            let none = scheduling::Behind::Number(onecopy_core::SequenceNumber(0));
            (*locks, *behind) = (TableLocks::default(), none);
        }
    });
    let report = check(&outcome.history.expect("it was asked for"), Level::StrictSerializable);
    assert!(!report.is_valid());
}

#[test]
fn a_replica_that_does_not_queue_locks_is_found_to_disagree() {
    let outcome = run_broken("conflict_aware", |to, message| {
        if let (Place::Proxy(onecopy_core::ReplicaId(2)), scheduling::Message::LockRequest { locks, .. }) =
            (to, message)
        {
            *locks = TableLocks::default();
        }
    });
    let disagrees = |fault: &Fault| matches!(fault, Fault::Disagreement { .. });
    assert!(outcome.faults.iter().any(disagrees), "{:?}", outcome.faults);
}
