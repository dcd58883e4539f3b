//! The profile `2003` keeps what the conflict-aware scheduling paper says of its machine, and is fitted to nothing else.

use onecopy_workload::tpcw::{MixName, catalogue};

use super::{bookstore, the_2003};
use crate::perf::{Demand, heaviest_read_in_writes};

fn demand(mix: MixName) -> Demand {
    Demand::of(&the_2003(), &mut bookstore(mix), 10, 4_000).expect("the profile fits")
}

/// CAS 9.2.2, cas-35.
#[test]
fn writes_take_below_1_percent_when_browsing_and_shopping_and_6_when_ordering() {
    let share = |mix| 100.0 * demand(mix).write_share();
    assert!(share(MixName::Browsing) < 1.0, "{}", share(MixName::Browsing));
    assert!(share(MixName::Shopping) < 1.0, "{}", share(MixName::Shopping));
    assert!((share(MixName::Ordering) - 6.0).abs() < 0.5, "{}", share(MixName::Ordering));
}

/// CAS 7.1, cas-46.
#[test]
fn interactions_take_20_to_700_ms() {
    for mix in MixName::ALL {
        let interactions = demand(mix).interactions_ms;
        // ORDI shows a form without asking a database.
        assert_eq!(interactions.len(), 13, "{mix}: {interactions:?}");
        for (id, (least, most)) in interactions {
            let name = &catalogue().interaction(id).id;
            assert!(least >= 20.0 && most <= 700.0, "{mix} {name}: {least} to {most} ms");
        }
    }
}

/// CAS 7.1, cas-46.
#[test]
fn the_heaviest_read_costs_50_average_writes() {
    let writes = heaviest_read_in_writes(&the_2003(), &bookstore(MixName::Shopping));
    assert!((writes - 50.0).abs() < 0.5, "{writes}");
}
