//! The auction site, the bulletin board and the supplier of TPC-C through onecopy: their visitors meet no error, nothing that they did is
//! lost, and replicas stay equal. Each site takes more than ten seconds: a day of stories has comments of a megabyte, which is loaded into every replica.

use super::clients::block_on;
use super::scheduled::Scheduled;
use onecopy_bench::auction::Auction;
use onecopy_bench::bulletin_board::BulletinBoard;
use onecopy_bench::site::{self, Options, Website};
use onecopy_bench::tpcc::Supplier;
use std::time::Duration;

/// Replaces whatever site is there, lets visitors come, and looks at what they have left.
async fn visit<S: Website + Default>(cluster: &Scheduled, site: S, declare: bool) {
    let options = Options {
        target: cluster.dsn().to_owned(),
        site,
        reload: true,
        clients: 8,
        think_factor: 0.0,
        ramp: Duration::ZERO,
        duration: Duration::from_secs(2),
        declare,
        progress: false,
        ..Options::default()
    };
    site::load(&options).await.unwrap();
    let report = site::run(&options).await.unwrap();
    assert!(report.errors.is_empty() && report.completed > 0, "{report}");
    let check = site::check(&options).await.unwrap();
    assert!(check.holds(), "{check}");
    cluster.assert_identical();
}

/// Both sites have tables of the same names, so one takes the other's place.
async fn visit_both(protocol: &str, replicas: u32, declare: bool) {
    let cluster = Scheduled::start(protocol, replicas);
    visit(&cluster, Auction { items: 50, users: 40, ..Auction::default() }, declare).await;
    visit(&cluster, BulletinBoard { days: 1, users: 40, ..BulletinBoard::default() }, declare).await;
}

#[test]
fn visitors_of_both_sites_lose_nothing_on_three_replicas() {
    block_on(visit_both("onecopy", 3, false));
}

#[test]
fn visitors_of_both_sites_lose_nothing_where_their_tables_are_declared() {
    block_on(visit_both("versioning", 2, true));
}

#[test]
fn terminals_of_a_supplier_keep_its_conditions_on_three_replicas() {
    let cluster = Scheduled::start("onecopy", 3);
    block_on(visit(&cluster, Supplier { warehouses: 2, customers: 30, ..Supplier::default() }, false));
}

#[test]
fn terminals_of_a_supplier_keep_its_conditions_where_its_tables_are_declared() {
    let cluster = Scheduled::start("conflict_aware", 2);
    block_on(visit(&cluster, Supplier { warehouses: 2, customers: 30, ..Supplier::default() }, true));
}
