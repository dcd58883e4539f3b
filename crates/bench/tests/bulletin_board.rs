//! The bulletin board against real PostgreSQL servers.

use std::time::Duration;

use onecopy_bench::auction::{self, Auction};
use onecopy_bench::bulletin_board::{BulletinBoard, Options};
use onecopy_bench::site::{self, CheckReport, Protocol};
use onecopy_cluster::Server;
use tokio_postgres::NoTls;

fn broken(report: &CheckReport) -> i64 {
    report.checked.iter().map(|checked| checked.violations).sum()
}

#[tokio::test]
async fn visitors_meet_no_error_break_no_rule_and_what_is_lost_behind_them_is_noticed() {
    let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
    let (client, connection) = tokio_postgres::connect(&server.dsn(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let options = Options {
        target: server.dsn(),
        // One day is old.
        site: BulletinBoard { days: 31, users: 100, ..BulletinBoard::default() },
        clients: 8,
        think_factor: 0.0,
        ramp: Duration::from_millis(200),
        duration: Duration::from_secs(3),
        progress: false,
        ..Options::default()
    };
    // Both sites have users, categories and comments.
    let site = Auction { items: 50, users: 20, ..Auction::default() };
    let auction =
        auction::Options { target: server.dsn(), site, progress: false, ..auction::Options::default() };
    site::load(&auction).await.unwrap();
    let refused = site::load(&options).await.unwrap_err().to_string();
    assert!(refused.contains("(categories, users, comments)"), "{refused}");
    assert!(refused.contains("`onecopy bench load --site bulletin-board --reload`"), "{refused}");
    let loaded = site::load(&Options { reload: true, ..options.clone() }).await.unwrap();
    for (table, rows) in [("users", 101), ("stories", 600), ("old_stories", 20), ("submissions", 20)] {
        assert!(loaded.tables.contains(&(table.to_owned(), rows)), "{table}: {loaded}");
    }
    assert!(site::check(&auction).await.unwrap_err().to_string().contains("no auction site"));
    assert!(site::load(&options).await.unwrap().was_there);

    for protocol in [Protocol::Prepared, Protocol::Simple] {
        let report = site::run(&Options { protocol, ..options.clone() }).await.unwrap();
        assert!(report.errors.is_empty() && report.completed > 100, "{report}");
        let check = site::check(&options).await.unwrap();
        assert!(check.holds(), "{check}");
    }
    let came = "SELECT count(*) FROM comments WHERE id > 31000";
    assert!(
        client.query_one(came, &[]).await.unwrap().get::<_, i64>(0) > 0,
        "somebody has written a comment"
    );

    for lost in [
        "UPDATE comments SET childs = childs + 1 WHERE id = (SELECT min(id) FROM comments)",
        "UPDATE old_comments SET childs = childs - 1 WHERE id = (SELECT min(id) FROM old_comments)",
        "UPDATE users SET rating = rating + 1 WHERE id = 7",
        "UPDATE comments SET story_id = 0 WHERE id = (SELECT max(id) FROM comments)",
        "UPDATE stories SET category = 0 WHERE id = 100",
    ] {
        let before = site::check(&options).await.unwrap();
        client.batch_execute(lost).await.unwrap();
        let after = site::check(&options).await.unwrap();
        assert_eq!(broken(&after), broken(&before) + 1, "{lost}: {after}");
    }
}
