//! Where each database has users of its own.

use onecopy_core::peers::granules::Granules;
use onecopy_core::peers::parts::{Division, Divisions};
use onecopy_core::protocol::{PEERS, peers_by_name};
use onecopy_workload::catalogue::TableIndex;
use onecopy_workload::tpcw::MixName;

use super::histories::{expect_kept_by_evidence, recorded};
use super::{bookstore, the_2003};
use crate::check::{Level, check};
use crate::perf::{Bookstore, Workload};
use crate::perf::{Discipline, Latency, Outcome, SECOND_NS, Setup, Users, run, table_id};

/// What asks before it writes, and promises something of histories in which every statement stands alone.
const STRICT: [&str; 3] = ["invalidation", "lock_distributed", "lock_central"];

fn run_peers(setup: &Setup<'_>, site: &mut Bookstore, name: &str, divided: &Divisions) -> Outcome {
    let protocol = peers_by_name(name, setup.replicas, divided, &Granules::default()).expect("it is there");
    let outcome = run(setup, site, protocol).expect("the profile fits");
    assert_eq!(outcome.faults, [], "{name}");
    outcome
}

/// All tables, as reports have it: those that nobody writes need no agreement.
fn all_divided(site: &Bookstore) -> Divisions {
    let places = (0..).zip(&site.catalogue().tables).map(|(place, _)| TableIndex(place));
    places.map(|table| (table_id(table), Division::Clients)).collect()
}

#[test]
fn peers_whose_tables_are_all_divided_say_nothing_and_are_kept_by_their_own_clients() {
    let profile = the_2003();
    for (seed, mix) in MixName::ALL.into_iter().enumerate() {
        let mut site = bookstore(mix);
        let divided = all_divided(&site);
        let outcome = run_peers(&recorded(&profile, seed as u64), &mut site, "partitioned", &divided);
        assert_eq!((outcome.measured.messages.between_databases, outcome.measured.shared), (0, [0, 0]));
        assert!(outcome.measured.response.count() > 100, "{}", outcome.measured.response.count());
    }
}

/// The tables that statements write, but for the items.
fn divided(site: &Bookstore) -> Divisions {
    let written = site.catalogue().written().into_iter();
    let divided = written.filter(|table| site.catalogue().table(*table).name != "item");
    divided.map(|table| (table_id(table), Division::Clients)).collect()
}

#[test]
fn peers_that_ask_are_strictly_serializable() {
    let profile = the_2003();
    let slow = Latency { hop_ns: 100_000, jitter_ns: 5_000_000, overtaking: false };
    for name in STRICT {
        for (seed, mix) in MixName::ALL.into_iter().enumerate() {
            for network in [Latency::default(), slow] {
                let discipline = if seed == 1 { Discipline::Queued } else { Discipline::Shared };
                let setup = Setup { network, discipline, ..recorded(&profile, seed as u64) };
                let outcome = run_peers(&setup, &mut bookstore(mix), name, &Divisions::default());
                expect_kept_by_evidence(&outcome, Level::StrictSerializable, name, 200);
            }
        }
    }
}

#[test]
fn peers_that_do_not_ask_read_what_is_old_and_end_up_apart() {
    let profile = the_2003();
    let outcome =
        run_peers(&recorded(&profile, 1), &mut bookstore(MixName::Ordering), "weak", &Divisions::default());
    let report = check(outcome.history.as_ref().expect("it was asked for"), Level::Serializable);
    assert!(!report.is_valid() && outcome.measured.disagreements > 0, "{report}");
}

#[test]
fn peers_say_no_more_than_their_protocol_takes() {
    let profile = the_2003();
    let setup =
        Setup { warm_up_ns: 0, measured_ns: 40 * SECOND_NS, ..Setup::new(&profile, 4, Users::Closed(40)) };
    let said = |name: &str| {
        let mut site = bookstore(MixName::Ordering);
        let of_sessions = if name == "partitioned" { divided(&site) } else { Divisions::default() };
        let measured = run_peers(&setup, &mut site, name, &of_sessions).measured;
        (measured.messages.between_databases, measured.shared)
    };
    // Little is asked for at once: what is under way in the end makes the difference.
    let near = |found: u64, expected: u64| found.abs_diff(expected) < 100;
    let (messages, [_, writes]) = said("invalidation");
    assert!(near(messages, 9 * writes), "{messages} for {writes}");
    let (messages, [accesses, writes]) = said("lock_distributed");
    assert!(near(messages, 6 * accesses + 3 * writes), "{messages} for {accesses}, {writes}");
    let (messages, [accesses, writes]) = said("lock_central");
    // A quarter of them are the manager's own.
    let expected = 3 * accesses * 3 / 4 + 3 * writes;
    assert!((messages as f64 / expected as f64 - 1.0).abs() < 0.1, "{messages} for {expected}");
    assert_eq!(said("weak").1, [0, 0]);
    let (fewer, [_, few]) = said("partitioned");
    assert!(few * 5 < writes && near(fewer, 9 * few), "{fewer} for {few} of {writes}");
}

#[test]
fn a_setup_with_peers_determines_its_run() {
    let profile = the_2003();
    for name in PEERS {
        let setup = Setup {
            network: Latency { hop_ns: 50_000, jitter_ns: 400_000, overtaking: false },
            warm_up_ns: 4 * SECOND_NS,
            measured_ns: 6 * SECOND_NS,
            ..Setup::new(&profile, 3, Users::Closed(60))
        };
        let hash = |setup: &Setup<'_>| {
            run_peers(setup, &mut bookstore(MixName::Ordering), name, &Divisions::default()).trace_hash
        };
        assert_eq!(hash(&setup), hash(&setup));
        assert_ne!(hash(&setup), hash(&Setup { seed: 1, ..setup.clone() }));
    }
}
