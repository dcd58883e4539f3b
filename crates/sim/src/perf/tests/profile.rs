//! The profile `2003` keeps what the conflict-aware scheduling paper says of its machine, and is fitted to nothing else.

use onecopy_workload::tpcw::{MixName, catalogue};

use onecopy_workload::{auction, bulletin_board};

use super::{bookstore, the_2003, the_2003_of};
use crate::perf::{AuctionSite, Board, Demand, Workload, heaviest_read_in_writes};

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

/// The costs by which the bookstore's statements are made, in milliseconds.
const ROW_BY_KEY: f64 = 4.0;
const ROWS_OF_ONE: f64 = 8.0;
const SORTED_ROW: f64 = 250.0 / 4_167.0;
const SEEN_ROW: f64 = 350.0 / 100_000.0;
const CHANGED_ROW: f64 = 4.5;
const NEW_ROW: f64 = 6.0;

#[test]
fn what_they_are_by_stands_in_the_bookstores_profile() {
    let costs = the_2003().statements_ms;
    for (statement, cost_ms) in [
        ("home.greet.name", ROW_BY_KEY),
        ("buyr.cart.lines", ROWS_OF_ONE),
        ("sres.subject.items", 4_167.0 * SORTED_ROW),
        ("sres.title.items", 100_000.0 * SEEN_ROW),
        ("buyc.order.setstock", CHANGED_ROW),
        ("buyc.order.insert", NEW_ROW),
    ] {
        assert!((costs[statement] - cost_ms).abs() < 1e-9, "{statement}");
    }
}

/// For neither site a paper says what queries cost: the same as in the bookstore, by what they do.
#[test]
fn statements_of_the_other_sites_cost_what_such_statements_cost_in_the_bookstore() {
    // DV 6.2 and 6.3: 33,000 items in 40 categories; 3 years of 20 stories a day, of which 30 days are new, with 35 comments each.
    let in_category = 33_000.0 / 40.0;
    let (new, old) = (600.0, 1_065.0 * 20.0);
    let searches = [
        ("search_category.page", ROWS_OF_ONE + in_category * SORTED_ROW),
        ("search_region.page", ROWS_OF_ONE + 2.0 * in_category * SORTED_ROW),
        ("search_stories.new", ROWS_OF_ONE + new * SEEN_ROW),
        ("search_stories.old", ROWS_OF_ONE + old * SEEN_ROW),
        ("search_comments.new", ROWS_OF_ONE + 35.0 * new * SEEN_ROW),
        ("search_comments.old", ROWS_OF_ONE + 35.0 * old * SEEN_ROW),
        ("search_users.new", ROW_BY_KEY + ROWS_OF_ONE),
        ("search_users.old", ROW_BY_KEY + ROWS_OF_ONE),
    ];
    for catalogue in [auction::catalogue(), bulletin_board::catalogue()] {
        let costs = the_2003_of(&catalogue.name).statements_ms;
        for statement in &catalogue.statements {
            let search = searches.iter().find(|(id, _)| *id == statement.id).map(|(_, cost_ms)| *cost_ms);
            let sql = statement.sql.as_str();
            let by_key = ["WHERE id = $1", "WHERE nickname = $1"].iter().any(|key| sql.contains(key));
            let expected = match search {
                Some(cost_ms) => cost_ms,
                None if sql.starts_with("INSERT") => NEW_ROW,
                None if !sql.starts_with("SELECT") => CHANGED_ROW,
                None if by_key => ROW_BY_KEY,
                None => ROWS_OF_ONE,
            };
            let ours = costs[&statement.id];
            assert!(
                (ours - expected).abs() < 0.1,
                "{} {}: {ours}, not {expected}",
                catalogue.name,
                statement.id
            );
        }
    }
}

/// What follows for the sites: docs/laboratory.md says so.
#[test]
fn interactions_of_the_other_sites_take_this_long_and_write_so_much() {
    let auction = AuctionSite::new(auction::Mix::Write15, auction::Scale::OF_THE_PAPER);
    let board = Board::new(bulletin_board::Mix::Default, bulletin_board::Scale::OF_THE_PAPER);
    let sites: [(Box<dyn Workload>, f64, f64); 2] =
        [(Box::new(auction), 26.0, 5.8), (Box::new(board), 44.1, 2.5)];
    for (mut site, mean_ms, write_percent) in sites {
        let profile = the_2003_of(&site.catalogue().name);
        let demand = Demand::of(&profile, site.as_mut(), 200, 200).expect("the profile fits");
        let ours_ms = (demand.reads_ms + demand.writes_ms) / (200.0 * 200.0);
        let ours = 100.0 * demand.write_share();
        let is_so = (ours_ms - mean_ms).abs() < 1.0 && (ours - write_percent).abs() < 0.2;
        assert!(is_so, "{}: {ours_ms} ms, {ours} % writes", profile.workload);
    }
}
