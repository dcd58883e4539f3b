//! The auction site against real PostgreSQL servers.

use std::time::Duration;

use onecopy_bench::auction::{Auction, Options};
use onecopy_bench::site::{self, Protocol};
use onecopy_cluster::Server;
use tokio_postgres::NoTls;

fn server() -> Server {
    Server::temporary(&onecopy_cluster::Options::replica()).unwrap()
}

fn options(server: &Server) -> Options {
    Options {
        target: server.dsn(),
        site: Auction { items: 100, users: 60, ..Auction::default() },
        clients: 8,
        think_factor: 0.0,
        ramp: Duration::from_millis(200),
        duration: Duration::from_secs(2),
        progress: false,
        ..Options::default()
    }
}

async fn connect(server: &Server) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.dsn(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn visitors_meet_no_error_and_break_no_rule_and_another_site_is_not_replaced_unasked() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    // PostgreSQL alone loses bids at its default level: two visitors read the same highest one.
    let options = Options {
        isolation: Some("repeatable read".to_owned()),
        results: Some(folder.path().to_owned()),
        ..options(&server)
    };
    let missing = site::run(&options).await.unwrap_err().to_string();
    assert!(missing.contains("no auction site") && missing.contains("--site auction"), "{missing}");

    let loaded = site::load(&options).await.unwrap();
    for (table, rows) in [("categories", 40), ("users", 60), ("items", 100), ("old_items", 100)] {
        assert!(loaded.tables.contains(&(table.to_owned(), rows)), "{table}: {loaded}");
    }
    assert!(site::load(&options).await.unwrap().was_there);
    let larger = Options { site: Auction { items: 200, ..options.site }, ..options.clone() };
    let refused = site::load(&larger).await.unwrap_err().to_string();
    assert!(refused.contains("of 100 items on sale, 60 users with seed 1"), "{refused}");
    assert!(refused.contains("`onecopy bench load --site auction --reload`"), "{refused}");

    // What is declared to the papers' protocols is a comment to others.
    for (protocol, declare) in [(Protocol::Prepared, true), (Protocol::Simple, false)] {
        let report = site::run(&Options { protocol, declare, ..options.clone() }).await.unwrap();
        assert!(report.errors.is_empty() && report.completed > 100, "{report}");
        let check = site::check(&options).await.unwrap();
        assert!(check.holds(), "{check}");
    }
    let client = connect(&server).await;
    let bids: i64 = client.query_one("SELECT count(*) FROM bids WHERE id > 2000", &[]).await.unwrap().get(0);
    assert!(bids > 0, "somebody has bid");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn lost_bids_purchases_and_comments_are_noticed() {
    let server = server();
    let options = options(&server);
    site::load(&options).await.unwrap();
    let client = connect(&server).await;
    for lost in [
        "UPDATE items SET nb_of_bids = nb_of_bids + 1 WHERE id = 7",
        "UPDATE items SET max_bid = max_bid + 1 WHERE id = 8",
        "UPDATE items SET quantity = quantity - 1 WHERE id = 9",
        "UPDATE users SET rating = rating + 3 WHERE id = 5",
        "UPDATE comments SET item_id = 0 WHERE id = 3",
    ] {
        let before = site::check(&options).await.unwrap();
        client.batch_execute(lost).await.unwrap();
        let after = site::check(&options).await.unwrap();
        let broken = |report: &site::CheckReport| -> i64 {
            report.checked.iter().map(|checked| checked.violations).sum()
        };
        assert_eq!(broken(&after), broken(&before) + 1, "{lost}: {after}");
    }
}
