//! TPC-W against real PostgreSQL servers.

use std::time::Duration;

use onecopy_bench::Error;
use onecopy_bench::tpcw::{self, Bookstore, Calibrate, Options, Protocol};
use onecopy_cluster::Server;
use onecopy_sim::perf::Profile;
use onecopy_workload::tpcw::MixName;
use tokio_postgres::NoTls;

fn server() -> Server {
    Server::temporary(&onecopy_cluster::Options::replica()).unwrap()
}

fn options(server: &Server) -> Options {
    Options {
        target: server.dsn(),
        clients: 8,
        think_factor: 0.0,
        ramp: Duration::from_millis(300),
        duration: Duration::from_secs(3),
        progress: false,
        ..Options::default()
    }
}

async fn count(server: &Server, query: &str) -> i64 {
    let (client, connection) = tokio_postgres::connect(&server.dsn(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.query_one(query, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn loading_makes_the_rows_that_the_scale_says_and_a_second_load_finds_them() {
    let server = server();
    let options = options(&server);
    let (client, connection) = tokio_postgres::connect(&server.dsn(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE author (name text)").await.unwrap();
    let refused = tpcw::load(&options).await.unwrap_err().to_string();
    assert!(refused.contains("(author)") && refused.contains("--reload"), "{refused}");
    client.batch_execute("DROP TABLE author").await.unwrap();
    assert!(matches!(tpcw::run(&options).await, Err(Error::NotLoaded { .. })));
    assert!(matches!(tpcw::check(&options).await, Err(Error::NotLoaded { .. })));

    let loaded = tpcw::load(&options).await.unwrap();
    let expected = [
        ("country", 92),
        ("author", 250),
        ("address", 5_760),
        ("customer", 2_880),
        ("item", 1_000),
        ("orders", 2_592),
        ("cc_xacts", 2_592),
        ("shopping_cart", 0),
        ("shopping_cart_line", 0),
    ];
    for (table, rows) in expected {
        assert_eq!(count(&server, &format!("SELECT count(*) FROM {table}")).await, rows, "{table}");
        assert!(loaded.tables.contains(&(table.to_owned(), rows as u64)));
    }
    let lines = count(&server, "SELECT count(*) FROM order_line").await;
    assert!((7_300..8_300).contains(&lines), "{lines}");
    let keys = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated";
    assert_eq!(count(&server, keys).await, 12);
    // Each a title or a name that a search string may spell; the ranges of the facts, checked where the rows are.
    let broken = "SELECT count(*) FROM item WHERE i_stock NOT BETWEEN 10 AND 30 OR i_cost > i_srp OR i_cost < i_srp * 0.5 - 0.01 \
                  OR i_avail NOT BETWEEN i_pub_date + 1 AND i_pub_date + 30 OR i_title !~ '^(BA|OG|AL|RI|RE|SE|AT|UL|IN|NG){7}'";
    assert_eq!(count(&server, broken).await, 0);
    let check = tpcw::check(&options).await.unwrap();
    assert!(check.holds(), "{check}");

    assert!(tpcw::load(&options).await.unwrap().was_there);
    let larger = Options { site: Bookstore { items: 2_000, ..options.site }, ..options.clone() };
    let refused = tpcw::load(&larger).await.unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("another bookstore, of 1,000 items, 2,880 customers with seed 1"), "{said}");
    assert!(said.contains("`onecopy bench load --reload`"), "{said}");
    tpcw::load(&Options { reload: true, ..larger }).await.unwrap();
    assert_eq!(count(&server, "SELECT count(*) FROM item").await, 2_000);
}

#[tokio::test]
async fn customers_of_all_mixes_meet_no_error_and_break_no_rule() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    // PostgreSQL alone loses sales at its default level: two customers read the same stock.
    let options = Options {
        isolation: Some("repeatable read".to_owned()),
        results: Some(folder.path().to_owned()),
        duration: Duration::from_secs(10),
        ..options(&server)
    };
    tpcw::load(&options).await.unwrap();
    for (mix, protocol) in [
        (MixName::Shopping, Protocol::Prepared),
        (MixName::Ordering, Protocol::Prepared),
        (MixName::Browsing, Protocol::Simple),
    ] {
        let site = Bookstore { mix, ..options.site };
        let duration = if mix == MixName::Shopping { options.duration } else { Duration::from_secs(3) };
        let report = tpcw::run(&Options { site, protocol, duration, ..options.clone() }).await.unwrap();
        assert!(report.errors.is_empty(), "{mix}: {:?}", report.errors);
        assert!(report.completed > 300, "{report}");
        assert_eq!(report.samples.len() as u64, report.completed);
        let home = report.pages.iter().find(|page| page.interaction == "HOME").unwrap();
        let expected = [("browsing", 0.29), ("shopping", 0.16), ("ordering", 0.0912)];
        let share = expected.iter().find(|(name, _)| *name == report.mix).unwrap().1;
        assert!(
            (home.share - share).abs() < 0.06,
            "{mix}: {} of the pages are HOME, not {share}",
            home.share
        );
        let check = tpcw::check(&options).await.unwrap();
        assert!(check.holds(), "{mix}: {check}");
    }
    assert!(count(&server, "SELECT count(*) FROM orders").await > 2_700);
    assert!(count(&server, "SELECT count(*) FROM customer").await > 2_880);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[tokio::test]
async fn lost_sales_are_noticed() {
    let server = server();
    let options = options(&server);
    tpcw::load(&options).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server.dsn(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("UPDATE item SET i_stock = i_stock - 1 WHERE i_id = 7").await.unwrap();
    client.batch_execute("UPDATE orders SET o_total = o_total + 1 WHERE o_id = 5").await.unwrap();
    let check = tpcw::check(&options).await.unwrap();
    let broken: Vec<&str> =
        check.checked.iter().filter(|each| each.violations > 0).map(|each| each.rule.as_str()).collect();
    assert_eq!(broken.len(), 3, "{check}");
}

#[tokio::test]
async fn a_server_that_goes_away_is_counted_and_the_run_ends() {
    let mut server = server();
    let options = Options { think_factor: 0.01, ..options(&server) };
    tpcw::load(&options).await.unwrap();
    let running = tokio::spawn(async move { tpcw::run(&options).await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    tokio::task::spawn_blocking(move || server.kill_all().map(|()| server)).await.unwrap().unwrap();
    let report = running.await.unwrap().unwrap();
    assert!(report.completed > 0 && report.failed() > 0, "{report}");
    assert!(report.errors.iter().any(|counted| counted.code == "connection lost"), "{:?}", report.errors);
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused_with_the_choices() {
    let server = server();
    let refused = |options: Options| async move { tpcw::run(&options).await.unwrap_err().to_string() };
    let options = options(&server);
    let isolation = Options { isolation: Some("snapshot".to_owned()), ..options.clone() };
    assert!(refused(isolation).await.contains("choose serializable"));
    assert!(refused(Options { clients: 0, ..options.clone() }).await.contains("must be a client"));
    let nowhere = Options { target: "host=127.0.0.1 port=1 user=x".to_owned(), ..options.clone() };
    assert!(refused(nowhere).await.contains("connect to 127.0.0.1:1/x"));
    let small =
        tpcw::load(&Options { site: Bookstore { items: 3, ..options.site }, ..options }).await.unwrap_err();
    assert!(small.to_string().contains("choose 20 to"));
}

#[tokio::test]
async fn calibration_needs_a_bookstore_and_gives_a_profile_that_can_be_simulated() {
    let server = server();
    let options = options(&server);
    let how = Calibrate {
        name: "test".to_owned(),
        warm_up: Duration::from_millis(200),
        duration: Duration::from_secs(2),
        apply_factor: 0.5,
        log_write_ms: tpcw::log_write_ms(server.dir()).unwrap(),
        through_onecopy: false,
    };
    assert!(matches!(tpcw::calibrate(&options, &how).await, Err(Error::NotLoaded { .. })));
    tpcw::load(&options).await.unwrap();
    // What is declared to the papers' protocols is a comment to others.
    for declare in [false, true] {
        let calibration = tpcw::calibrate(&Options { declare, ..options.clone() }, &how).await.unwrap();
        println!("{calibration}");
        let profile = Profile::parse(&calibration.to_toml()).unwrap();
        assert_eq!((&profile, profile.apply_factor), (&calibration.profile, 0.5));
        let costs = profile.costs_ns(onecopy_workload::tpcw::catalogue()).unwrap();
        // Of a write by itself nothing may be left, without the round trip of a commit.
        let reads = costs.iter().zip(&onecopy_workload::tpcw::catalogue().statements);
        let mut reads = reads.filter(|(_, statement)| statement.writes.is_empty());
        assert!(reads.all(|(cost, _)| *cost > 0), "{costs:?}");
        assert!(profile.commit_ms > 0.0 && profile.log_write_ms > 0.0);
        assert!(calibration.pages > 0 && calibration.commits > 0);
    }
    assert!(tpcw::check(&options).await.unwrap().holds());
}
