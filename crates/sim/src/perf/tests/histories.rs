//! What users saw keeps what the protocol promises, and what does not keep it is found.

use onecopy_core::protocol::{Guarantee, Protocol, Status, Writes};
use onecopy_core::scheduling;
use onecopy_core::table_queues::TableLocks;
use onecopy_core::{Effect, Event, Instant, Message, Place};
use onecopy_workload::tpcw::MixName;

use super::{PROTOCOLS, bookstore, protocol, run_well, the_2003};
use crate::check::{Level, Options, check};
use crate::perf::{Discipline, Fault, Items, Latency, Outcome, SECOND_NS, Setup, Users, run};

fn recorded<'a>(profile: &'a crate::perf::Profile, seed: u64) -> Setup<'a> {
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
    let history = outcome.history.as_ref().expect("it was asked for");
    let report = check(history, level);
    assert!(report.is_valid(), "{what}: {report}");
    // A history that shows nothing keeps every promise.
    assert!(report.evidence.write_read > 500 && report.evidence.write_write > 50, "{what}: {report}");
}

#[test]
fn histories_keep_what_the_protocol_promises() {
    let profile = the_2003();
    for name in PROTOCOLS {
        for (seed, mix) in MixName::ALL.into_iter().enumerate() {
            let setup = recorded(&profile, seed as u64);
            expect_kept(&run_well(&setup, mix, name), Level::StrictSerializable, name);
        }
        let odd = Setup {
            discipline: Discipline::Queued,
            cpus: 2,
            items: Items::Tables,
            network: Latency { hop_ns: 100_000, jitter_ns: 5_000_000 },
            ..recorded(&profile, 9)
        };
        expect_kept(&run_well(&odd, MixName::Ordering, name), Level::Serializable, name);
    }
}

#[test]
fn histories_of_rows_keep_what_the_protocol_promises() {
    let profile = the_2003();
    for (seed, mix) in MixName::ALL.into_iter().enumerate() {
        let setup = Setup { items: Items::Rows, ..recorded(&profile, seed as u64) };
        expect_kept(&run_well(&setup, mix, "onecopy"), Level::StrictSerializable, "onecopy");
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
        if let scheduling::Message::SingleRead { locks, after, .. } = message {
            (*locks, *after) = (TableLocks::default(), onecopy_core::SequenceNumber(0));
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
