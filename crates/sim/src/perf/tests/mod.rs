mod histories;
mod peers;
mod profile;
mod runs;

use onecopy_core::Csn;
use onecopy_core::protocol::{Protocol, SELECTABLE, apart_by_name};
use onecopy_workload::tpcw::{MixName, Scale};

use onecopy_workload::{auction, bulletin_board};

use super::{AuctionSite, Board, Bookstore, Outcome, Profile, Setup, Workload, run};

const PROTOCOLS: [&str; SELECTABLE.len()] = SELECTABLE;

/// A bookstore that is made in no time.
fn bookstore(mix: MixName) -> Bookstore {
    Bookstore::new(mix, Scale::new(1_000, 1).expect("it is in range"))
}

/// The other two sites, each made in no time, and the auction's visitors in both ways.
fn sites() -> [Box<dyn Workload>; 3] {
    let items = auction::Scale::new(2_000, 500).expect("it is in range");
    let days = bulletin_board::Scale::new(40, 500).expect("it is in range");
    let auction = AuctionSite::new(auction::Mix::Write15, items);
    [
        Box::new(auction.clone().reading_alone()),
        Box::new(auction),
        Box::new(Board::new(bulletin_board::Mix::Default, days)),
    ]
}

fn the_2003() -> Profile {
    the_2003_of("tpcw")
}

fn the_2003_of(workload: &str) -> Profile {
    Profile::named("2003", workload).expect("it is there")
}

fn protocol(name: &str, setup: &Setup<'_>) -> Box<dyn Protocol> {
    apart_by_name(name, usize::from(setup.replicas), Csn(0)).expect("it is selectable")
}

/// Runs a protocol that must not be at fault.
fn run_well(setup: &Setup<'_>, mix: MixName, name: &str) -> Outcome {
    run_site_well(setup, &mut bookstore(mix), name)
}

/// The same on any site.
fn run_site_well(setup: &Setup<'_>, site: &mut dyn Workload, name: &str) -> Outcome {
    let outcome = run(setup, site, protocol(name, setup)).expect("the profile fits");
    assert_eq!(outcome.faults, [], "{name}");
    outcome
}
