mod histories;
mod profile;
mod runs;

use onecopy_core::Csn;
use onecopy_core::protocol::{Protocol, SELECTABLE, apart_by_name};
use onecopy_workload::tpcw::{MixName, Scale};

use super::{Bookstore, Outcome, Profile, Setup, run};

const PROTOCOLS: [&str; SELECTABLE.len()] = SELECTABLE;

/// A bookstore that is made in no time.
fn bookstore(mix: MixName) -> Bookstore {
    Bookstore::new(mix, Scale::new(1_000, 1).expect("it is in range"))
}

fn the_2003() -> Profile {
    Profile::named("2003").expect("it is there")
}

fn protocol(name: &str, setup: &Setup<'_>) -> Box<dyn Protocol> {
    apart_by_name(name, usize::from(setup.replicas), Csn(0)).expect("it is selectable")
}

/// Runs a protocol that must not be at fault.
fn run_well(setup: &Setup<'_>, mix: MixName, name: &str) -> Outcome {
    let outcome = run(setup, &mut bookstore(mix), protocol(name, setup)).expect("the profile fits");
    assert_eq!(outcome.faults, [], "{name}");
    outcome
}
