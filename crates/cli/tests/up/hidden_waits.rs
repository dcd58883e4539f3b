//! Waiting that the scheduler does not see, in a server or for an advisory lock: what would wait for ever is broken up.

use std::time::Duration;

use super::clients::{block_on, connect, onecopy, rows};
use super::three::Three;
use super::{Up, folder, wait_until};
use onecopy_cluster::ClusterFile;
use tokio_postgres::Client;

/// What must come of something within a minute.
async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(60), work).await;
    done.unwrap_or_else(|_| panic!("nothing came of it within a minute: {what}"))
}

/// The SQLSTATE of a statement, or that it was done.
async fn code(client: &Client, sql: &str) -> String {
    match soon(sql, client.batch_execute(sql)).await {
        Ok(()) => "done".to_owned(),
        Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()),
    }
}

/// Waits until so many sessions of a server wait for a lock there.
async fn until_waiting(server: &Client, count: u64) {
    soon("sessions wait", async {
        let waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted";
        while rows(server, waiting).await != count.to_string() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[test]
fn two_that_lock_tables_and_a_reader_of_both_do_not_wait_for_each_other_for_ever() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let file = ClusterFile::read(dir.path()).unwrap();
        let server = connect(&file.replicas[0].dsn).await;
        let dsn = &file.client.dsn;
        let (one, two, reader) = (connect(dsn).await, connect(dsn).await, connect(dsn).await);
        let schema = "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); \
                      CREATE TABLE c (id int PRIMARY KEY)";
        one.batch_execute(schema).await.unwrap();
        assert_eq!(code(&reader, "BEGIN; SELECT FROM c").await, "done");
        assert_eq!(code(&one, "BEGIN; LOCK TABLE a").await, "done");
        assert_eq!(code(&two, "BEGIN; LOCK TABLE b").await, "done");
        // The reader waits in the server for the first one, the second one there for the reader, the first one for the second
        // one in the scheduler.
        let reads = code(&reader, "SELECT FROM a");
        let locks = async {
            until_waiting(&server, 1).await;
            code(&two, "LOCK TABLE c").await
        };
        let closes = async {
            until_waiting(&server, 2).await;
            let closed = code(&one, "LOCK TABLE b").await;
            // It was the only one that was refused, and lets go.
            (closed, code(&one, "ROLLBACK").await)
        };
        let read_and_ended = async { (reads.await, code(&reader, "COMMIT").await) };
        let (read, locked, closed) = tokio::join!(read_and_ended, locks, closes);
        assert_eq!(closed, ("40P01".to_owned(), "done".to_owned()));
        assert_eq!(read, ("done".to_owned(), "done".to_owned()));
        assert_eq!(locked, "done");
        assert_eq!(code(&two, "INSERT INTO c VALUES (1); COMMIT").await, "done");
        assert_eq!(rows(&one, "SELECT count(*) FROM c").await, "1");
    });
}

#[test]
fn a_transaction_that_waits_for_a_row_gives_way_to_one_that_waits_for_its_advisory_lock() {
    block_on(async {
        let three = Three::start();
        let (one, two) = (three.client().await, three.client().await);
        one.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0)")
            .await
            .unwrap();
        for session_lock in [false, true] {
            let lock =
                if session_lock { "SELECT pg_advisory_lock(1)" } else { "SELECT pg_advisory_xact_lock(1)" };
            let (first, second) = if session_lock { (lock, "BEGIN") } else { ("BEGIN", lock) };
            assert_eq!(code(&one, first).await, "done");
            assert_eq!(code(&one, second).await, "done");
            assert_eq!(code(&two, "BEGIN; UPDATE t SET v = v + 1").await, "done");
            let (locked, updated) = tokio::join!(code(&two, "SELECT pg_advisory_xact_lock(1)"), async {
                let updated = code(&one, "UPDATE t SET v = v + 1").await;
                assert_eq!(code(&one, "ROLLBACK; SELECT pg_advisory_unlock_all()").await, "done");
                updated
            });
            assert_eq!((locked.as_str(), updated.as_str()), ("done", "40P01"));
            assert_eq!(code(&two, "COMMIT").await, "done");
        }
        assert_eq!(three.everywhere("SELECT v FROM t").await, "2");
    });
}

#[test]
fn of_a_circle_of_advisory_locks_and_tables_that_are_locked_or_defined_somebody_is_refused() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let (one, two) = (connect(&dsn).await, connect(&dsn).await);
        one.batch_execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
            .await
            .unwrap();
        let read = two.prepare("SELECT id FROM a").await.unwrap();
        for (change, begin, sql) in [
            // A read by itself waits in the server for who has locked the table.
            ("LOCK TABLE a", "SELECT 1", Some("SELECT id FROM a")),
            ("LOCK TABLE a", "SELECT 1", None),
            ("LOCK TABLE a", "BEGIN", Some("SELECT id FROM a")),
            // The first read of a transaction waits in the scheduler for whoever changes definitions.
            ("TRUNCATE b", "BEGIN", Some("SELECT id FROM a")),
        ] {
            assert_eq!(code(&two, "SELECT pg_advisory_lock(1)").await, "done");
            assert_eq!(code(&one, &format!("BEGIN; {change}")).await, "done");
            assert_eq!(code(&two, begin).await, "done");
            let reads = async {
                let read = match sql {
                    Some(sql) => code(&two, sql).await,
                    None => soon("a prepared read", two.query(&read, &[]))
                        .await
                        .map_or("40P01", |_| "done")
                        .to_owned(),
                };
                assert_eq!(code(&two, "ROLLBACK; SELECT pg_advisory_unlock_all()").await, "done");
                read
            };
            let locks = async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let locked = code(&one, "SELECT pg_advisory_xact_lock(1)").await;
                assert_eq!(code(&one, "ROLLBACK").await, "done");
                locked
            };
            let (read, locked) = tokio::join!(reads, locks);
            let refused = [&read, &locked].iter().filter(|code| **code == "40P01").count();
            let done = [&read, &locked].iter().filter(|code| **code == "done").count();
            assert_eq!((refused, done), (1, 1), "{change}, {begin}: {read}, {locked}");
        }
    });
}

/// Texts are read on other lanes than the transaction's, so that these hold nothing that the scheduler does not know.
#[test]
fn who_prepares_a_statement_on_a_table_that_is_locked_waits_for_others_only_and_no_longer_than_it_may() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let (one, two) = (connect(&dsn).await, connect(&dsn).await);
        one.batch_execute("CREATE TABLE a (id int PRIMARY KEY, v int); INSERT INTO a VALUES (1, 0); CREATE TABLE b (id int PRIMARY KEY)")
            .await
            .unwrap();
        for lock in [
            "LOCK TABLE a IN SHARE ROW EXCLUSIVE MODE",
            "LOCK TABLE a",
            "TRUNCATE a",
            "ALTER TABLE a ADD w int",
        ] {
            assert_eq!(code(&one, &format!("BEGIN; {lock}")).await, "done");
            let update = soon(lock, one.prepare("UPDATE a SET v = v + $1 WHERE id = 1")).await.unwrap();
            assert_eq!(
                soon(lock, one.execute(&update, &[&1])).await.unwrap(),
                u64::from(lock != "TRUNCATE a")
            );
            let size = soon(lock, one.query("SELECT pg_relation_size('a'::regclass) > 0", &[])).await;
            assert_eq!(size.unwrap().len(), 1, "{lock}");
            assert_eq!(code(&one, "ROLLBACK").await, "done");
        }
        assert_eq!(code(&one, "BEGIN; LOCK TABLE a").await, "done");
        assert_eq!(code(&two, "BEGIN; SET LOCAL lock_timeout = '300ms'").await, "done");
        let refused = soon("others wait", two.prepare("SELECT v FROM a WHERE id = 7")).await.map(drop);
        assert_eq!(refused.unwrap_err().code().unwrap().code(), "55P03");
        assert_eq!(code(&two, "ROLLBACK; BEGIN").await, "done");
        let cancel = two.cancel_token();
        let cancelled = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
        };
        let (refused, ()) =
            tokio::join!(soon("a cancel request", two.prepare("SELECT v FROM a WHERE id = 8")), cancelled);
        assert_eq!(refused.map(drop).unwrap_err().code().unwrap().code(), "57014");
        assert_eq!(code(&two, "ROLLBACK").await, "done");
        let cancelled = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
        };
        assert_eq!(tokio::join!(code(&two, "VACUUM a"), cancelled).0, "57014");
        // What is read beside a transaction is waited for by those who wait for the transaction.
        assert_eq!(code(&two, "BEGIN; INSERT INTO b VALUES (1)").await, "done");
        let (read, wrote) =
            tokio::join!(soon("one of both", two.prepare("SELECT v FROM a WHERE id = 9")), async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let wrote = code(&one, "INSERT INTO b VALUES (1)").await;
                assert_eq!(code(&one, "ROLLBACK").await, "done");
                wrote
            });
        assert_eq!((read.is_ok(), wrote.as_str()), (true, "40P01"));
        assert_eq!(code(&two, "ROLLBACK").await, "done");
    });
}

/// What a join that was cancelled may have shown is taken at COMMIT, if somebody else holds it.
#[test]
fn a_commit_that_waits_is_given_up_in_time_and_never_waits_with_definitions_of_its_own() {
    block_on(async {
        let three = Three::start();
        let (holder, joins) = (three.client().await, three.client().await);
        let schema = "CREATE TABLE item (id int PRIMARY KEY, title text); INSERT INTO item VALUES (1, 'title'); \
                      CREATE TABLE line (id int PRIMARY KEY, item int NOT NULL REFERENCES item); \
                      INSERT INTO line SELECT n, 1 FROM generate_series(1, 300000) n; CREATE TABLE other (id int PRIMARY KEY)";
        holder.batch_execute(schema).await.unwrap();
        joins.batch_execute("SET lock_timeout = '500ms'").await.unwrap();
        for (change, refused) in [("SELECT 1", "55P03"), ("CREATE TABLE made (id int)", "40001")] {
            assert_eq!(code(&holder, "BEGIN; UPDATE item SET title = 'other' WHERE id = 1").await, "done");
            assert_eq!(code(&joins, "BEGIN; INSERT INTO other VALUES (1); SAVEPOINT s").await, "done");
            assert_eq!(code(&joins, "SET LOCAL statement_timeout = '20ms'").await, "done");
            let join = "SELECT l.item, i.title FROM line l JOIN item i ON i.id = l.item";
            assert_eq!(code(&joins, join).await, "57014");
            assert_eq!(code(&joins, &format!("ROLLBACK TO s; {change}")).await, "done");
            assert_eq!(code(&joins, "COMMIT").await, refused);
            assert_eq!(code(&holder, "COMMIT").await, "done");
        }
        assert_eq!(three.everywhere("SELECT title, (SELECT count(*) FROM other) FROM item").await, "other 0");
    });
}

/// Takes some seconds: so long a commit is kept from being applied before it is looked who keeps it.
#[test]
fn a_commit_that_waits_for_a_reader_who_waits_for_an_idle_transaction_is_applied() {
    block_on(async {
        let three = Three::start();
        let truncating = three.client().await;
        let schema = "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1); CREATE TABLE b (id int PRIMARY KEY); \
                      CREATE TABLE work (id int)";
        truncating.batch_execute(schema).await.unwrap();
        three.assert_identical();
        let mut servers = Vec::new();
        for replica in &three.file.replicas {
            servers.push(connect(&replica.dsn).await);
        }
        let locked_at = |table: &'static str| {
            let servers = &servers;
            async move {
                let held = format!(
                    "SELECT count(*) FROM pg_locks WHERE relation = '{table}'::regclass AND mode = 'AccessExclusiveLock'"
                );
                for (at, server) in servers.iter().enumerate() {
                    if rows(server, &held).await == "1" {
                        return at;
                    }
                }
                panic!("{table} is locked nowhere")
            }
        };
        assert_eq!(code(&truncating, "BEGIN; TRUNCATE a").await, "done");
        let elsewhere = locked_at("a").await;
        // Who begins while the last home is busy finds another one.
        let (locking, busy) = (three.client().await, three.client().await);
        let here = soon("a home elsewhere", async {
            loop {
                let work = "BEGIN; INSERT INTO work SELECT generate_series(1, 200000); ROLLBACK";
                let (worked, at) = tokio::join!(code(&busy, work), async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    assert_eq!(code(&locking, "BEGIN; LOCK TABLE b").await, "done");
                    locked_at("b").await
                });
                assert_eq!(worked, "done");
                if at != elsewhere {
                    return at;
                }
                assert_eq!(code(&locking, "ROLLBACK").await, "done");
            }
        })
        .await;
        let reader = connect(&three.file.replicas[here].dsn).await;
        reader.batch_execute("BEGIN; SELECT FROM a").await.unwrap();
        let (read, ()) = tokio::join!(code(&reader, "SELECT FROM b; COMMIT"), async {
            until_waiting(&servers[here], 1).await;
            assert_eq!(code(&truncating, "COMMIT").await, "done");
        });
        assert_eq!(read, "done");
        assert_eq!(code(&locking, "INSERT INTO b VALUES (1); COMMIT").await, "done");
        // The replica left service for a moment.
        wait_until("all replicas serve", || onecopy(three.dir.path(), &["verify"]).status.success());
        assert_eq!(
            three.everywhere("SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)").await,
            "0 1"
        );
    });
}
