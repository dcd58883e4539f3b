//! Sites whose updates execute before they have a place in the order (protocol = "certified", docs/protocols/wide_area.md).

use crate::rig::{Nodes, block_on, code, connect, rows};
use crate::sites::{END_SESSIONS, Load, judge_by, kill_and_return, serves, sites, with_lists};
use onecopy_sim::check::{Level, Status};
use std::time::Duration;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;

const CERTIFIED: (&str, &str) = ("protocol", "certified");

/// Clients of three sites ask for some seconds, every other transaction statement by statement; what they saw is judged.
async fn drive(chosen: &[(&str, &str)], level: Level) {
    let nodes = with_lists(3, false, chosen).await;
    let load = Load::start_spoken(&nodes, 3);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let seen = load.end().await;
    let given_up = seen.iter().filter(|one| one.status == Status::Aborted).count();
    let count = judge_by(level, &nodes, seen).await;
    println!("{chosen:?}: {count} acknowledged, {given_up} given up");
    assert!(count > 50 && given_up > 0, "{count} {given_up}");
}

#[test]
fn what_clients_of_all_sites_see_is_serializable_however_transactions_come() {
    block_on(drive(&[CERTIFIED], Level::Serializable));
}

#[test]
fn where_nothing_may_be_old_it_is_strictly_serializable() {
    block_on(drive(&[CERTIFIED, ("wide_area.staleness_max_ms", "0")], Level::StrictSerializable));
}

async fn with_table(sql: &str) -> (Nodes, tokio_postgres::Client, tokio_postgres::Client) {
    let nodes = sites(3, false, &[CERTIFIED], sql).await;
    all_serve(&nodes).await;
    let (one, other) = (nodes.client(0).await, nodes.client(1).await);
    (nodes, one, other)
}

/// Waits until all sites answer.
async fn all_serve(nodes: &Nodes) {
    for site in 0..nodes.count() {
        let client = connect(&nodes.dsn(site)).await.unwrap();
        client.batch_execute("UPDATE t SET v = v WHERE id = 0").await.unwrap();
    }
}

const T: &str = "CREATE TABLE t (id serial PRIMARY KEY, v int, at timestamptz DEFAULT now()); \
    INSERT INTO t (v, at) SELECT 10 * n, '2024-01-01' FROM generate_series(1, 9) n; \
    CREATE TABLE child (t int REFERENCES t, n int UNIQUE DEFERRABLE INITIALLY DEFERRED);";

/// Waits until a site shows that, and panics if it never does.
async fn shows(client: &tokio_postgres::Client, sql: &str, expected: &str) {
    for _ in 0..500 {
        if rows(client, sql).await == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(rows(client, sql).await, expected, "{sql}");
}

#[test]
fn a_transaction_may_come_statement_by_statement() {
    block_on(async {
        let (nodes, one, other) = with_table(T).await;
        // Numbers of sequences, the time, what is prepared, and what the transaction has written itself.
        one.batch_execute("BEGIN").await.unwrap();
        one.execute("INSERT INTO t (v) VALUES ($1)", &[&7_i32]).await.unwrap();
        let id: i32 = one.query_one("SELECT id FROM t WHERE v = 7", &[]).await.unwrap().get(0);
        one.execute("UPDATE t SET v = v + $2 WHERE id = $1", &[&id, &1_i32]).await.unwrap();
        assert_eq!(rows(&other, "SELECT count(*) FROM t WHERE v = 8").await, "0");
        one.batch_execute("COMMIT").await.unwrap();
        shows(&other, "SELECT count(*) FROM t WHERE v = 8", "1").await;

        // A part is taken back; an error may be, too.
        one.batch_execute("BEGIN; UPDATE t SET v = 1 WHERE id = 1").await.unwrap();
        one.batch_execute("SAVEPOINT a; UPDATE t SET v = 2 WHERE id = 2").await.unwrap();
        one.batch_execute("ROLLBACK TO a").await.unwrap();
        assert_eq!(code(one.batch_execute("INSERT INTO t VALUES (3, 0)").await), SqlState::UNIQUE_VIOLATION);
        assert_eq!(code(one.batch_execute("SELECT 1").await), SqlState::IN_FAILED_SQL_TRANSACTION);
        one.batch_execute("ROLLBACK TO a; RELEASE a; UPDATE t SET v = 3 WHERE id = 3; COMMIT").await.unwrap();
        shows(&other, "SELECT v FROM t WHERE id < 4 ORDER BY id", "1, 20, 3").await;

        // What has failed, or is rolled back, or whose client leaves, has never been.
        one.batch_execute("BEGIN; UPDATE t SET v = 0 WHERE id = 4").await.unwrap();
        one.batch_execute("ROLLBACK").await.unwrap();
        one.batch_execute("BEGIN; UPDATE t SET v = 0 WHERE id = 4").await.unwrap();
        assert_eq!(code(one.batch_execute("SELECT 1 / 0").await), SqlState::DIVISION_BY_ZERO);
        one.batch_execute("COMMIT").await.unwrap();
        let leaves = nodes.client(0).await;
        leaves.batch_execute("BEGIN; UPDATE t SET v = 0 WHERE id = 4").await.unwrap();
        drop(leaves);
        // Its row is free again.
        one.batch_execute("BEGIN; UPDATE t SET v = 44 WHERE id = 4; COMMIT").await.unwrap();
        shows(&other, "SELECT v FROM t WHERE id = 4", "44").await;

        // What promises to read only does, and what only reads asks nobody.
        one.batch_execute("BEGIN READ ONLY").await.unwrap();
        let write = one.batch_execute("UPDATE t SET v = 0").await;
        assert_eq!(code(write), SqlState::READ_ONLY_SQL_TRANSACTION);
        one.batch_execute("ROLLBACK").await.unwrap();
        one.batch_execute("BEGIN READ ONLY; SELECT 1").await.unwrap();
        let draw = one.batch_execute("SELECT nextval('t_id_seq')").await;
        assert_eq!(code(draw), SqlState::READ_ONLY_SQL_TRANSACTION);
        one.batch_execute("ROLLBACK").await.unwrap();
        one.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM t; COMMIT").await.unwrap();

        // What may be checked late is checked at once.
        one.batch_execute("BEGIN; INSERT INTO child VALUES (1, 1)").await.unwrap();
        let twice = one.batch_execute("INSERT INTO child VALUES (1, 1)").await;
        assert_eq!(code(twice), SqlState::UNIQUE_VIOLATION);
        one.batch_execute("ROLLBACK").await.unwrap();

        // An error in what is only prepared counts, too.
        one.batch_execute("BEGIN").await.unwrap();
        let prepared = one.prepare("SELECT nope FROM t").await;
        assert_eq!(code(prepared), SqlState::UNDEFINED_COLUMN);
        assert_eq!(code(one.batch_execute("SELECT 1").await), SqlState::IN_FAILED_SQL_TRANSACTION);
        one.batch_execute("COMMIT").await.unwrap();
        one.batch_execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            .await
            .unwrap();

        // One that came whole and failed is to be ended, too.
        assert_eq!(code(one.batch_execute("BEGIN; SELECT 1 / 0; COMMIT").await), SqlState::DIVISION_BY_ZERO);
        assert_eq!(code(one.batch_execute("SELECT 1").await), SqlState::IN_FAILED_SQL_TRANSACTION);
        one.batch_execute("ROLLBACK").await.unwrap();
        for refused in ["TRUNCATE t", "SET default_transaction_read_only = on"] {
            assert_eq!(code(one.batch_execute(refused).await), SqlState::FEATURE_NOT_SUPPORTED, "{refused}");
        }
        one.batch_execute("SET default_transaction_read_only = off").await.unwrap();

        for refused in ["SET work_mem = '1MB'", "COMMIT AND CHAIN", "CREATE TABLE u ()", "LISTEN a"] {
            one.batch_execute("BEGIN").await.unwrap();
            assert_eq!(code(one.batch_execute(refused).await), SqlState::FEATURE_NOT_SUPPORTED, "{refused}");
            one.batch_execute("ROLLBACK").await.unwrap();
        }
        // Neither is there one.
        one.batch_execute("COMMIT").await.unwrap();
        assert_eq!(code(one.batch_execute("SAVEPOINT a").await), SqlState::NO_ACTIVE_SQL_TRANSACTION);
        nodes.everywhere("SELECT * FROM t ORDER BY id").await;
    });
}

#[test]
fn who_has_read_what_another_site_has_written_since_hears_that_it_must_run_again() {
    block_on(async {
        let (nodes, mut one, mut other) = with_table(T).await;
        // Each reads both rows and writes one: two that see nothing of each other.
        let (first, second) = (one.transaction().await.unwrap(), other.transaction().await.unwrap());
        for transaction in [&first, &second] {
            let sum = transaction.query_one("SELECT sum(v) FROM t WHERE id IN (1, 2)", &[]).await.unwrap();
            assert_eq!(sum.get::<_, i64>(0), 30);
        }
        first.execute("UPDATE t SET v = v - 30 WHERE id = 1", &[]).await.unwrap();
        second.execute("UPDATE t SET v = v - 30 WHERE id = 2", &[]).await.unwrap();
        let (first, second) = tokio::join!(first.commit(), second.commit());
        let failed = [first, second].into_iter().filter_map(Result::err).collect::<Vec<_>>();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(
            code(Err::<(), _>(failed.into_iter().next().unwrap())),
            SqlState::T_R_SERIALIZATION_FAILURE
        );
        nodes.everywhere("SELECT * FROM t ORDER BY id").await;
        shows(&one, "SELECT sum(v) FROM t WHERE id IN (1, 2)", "0").await;
    });
}

/// Locks of one server must not hold up what all sites have in order.
#[test]
fn who_holds_a_row_and_does_nothing_gives_way_to_what_others_have_committed() {
    block_on(async {
        let (nodes, one, other) = with_table(T).await;
        one.batch_execute("BEGIN; UPDATE t SET v = 1 WHERE id = 1").await.unwrap();
        // One waits for the first at their site.
        let waits = nodes.client(0).await;
        let waiting = tokio::spawn(async move {
            waits.batch_execute("BEGIN; UPDATE t SET v = 2 WHERE id = 1; COMMIT").await
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        other.batch_execute("BEGIN; UPDATE t SET v = v + 1 WHERE id = 1").await.unwrap();
        other.batch_execute("COMMIT").await.unwrap();
        // Who locks only is nobody's business elsewhere, whoever holds the row there.
        let locks = "BEGIN; SELECT v FROM t WHERE id = 3 FOR UPDATE NOWAIT; COMMIT";
        let holds = nodes.client(2).await;
        holds.batch_execute("BEGIN; UPDATE t SET v = 1 WHERE id = 3").await.unwrap();
        other.batch_execute(locks).await.unwrap();
        assert_eq!(code(nodes.client(2).await.batch_execute(locks).await), SqlState::LOCK_NOT_AVAILABLE);
        holds.batch_execute("ROLLBACK").await.unwrap();
        // The second is by itself and runs again; the first has to, by its client.
        waiting.await.unwrap().unwrap();
        assert_eq!(code(one.batch_execute("SELECT 1").await), SqlState::T_R_SERIALIZATION_FAILURE);
        assert_eq!(code(one.batch_execute("SELECT 1").await), SqlState::IN_FAILED_SQL_TRANSACTION);
        one.batch_execute("ROLLBACK").await.unwrap();
        nodes.everywhere("SELECT * FROM t ORDER BY id").await;
        shows(&other, "SELECT v FROM t WHERE id = 1", "2").await;

        // Drivers do not look at what ROLLBACK TO says, so COMMIT must not pass for one that has happened.
        one.batch_execute("BEGIN; UPDATE t SET v = 5 WHERE id = 5; SAVEPOINT a").await.unwrap();
        assert_eq!(code(one.batch_execute("SELECT 1 / 0").await), SqlState::DIVISION_BY_ZERO);
        other.batch_execute("UPDATE t SET v = v + 1 WHERE id = 5").await.unwrap();
        shows(&nodes.client(0).await, "SELECT v FROM t WHERE id = 5", "51").await;
        let back = one.batch_execute("ROLLBACK TO a").await;
        assert_eq!(code(back), SqlState::T_R_SERIALIZATION_FAILURE);
        assert_eq!(code(one.batch_execute("COMMIT").await), SqlState::T_R_SERIALIZATION_FAILURE);
        assert_eq!(rows(&one, "SELECT 1").await, "1");
    });
}

/// An error of a transaction that is committed must not leave its client in one that ends with "ROLLBACK".
#[test]
fn what_was_committed_with_too_many_results_is_over() {
    block_on(async {
        let (nodes, one, _) = with_table(T).await;
        let large = "BEGIN; UPDATE t SET v = v + 1 WHERE id = 1; \
             SELECT repeat('x', 1000000) FROM generate_series(1, 100); COMMIT";
        assert_eq!(code(one.batch_execute(large).await), SqlState::PROGRAM_LIMIT_EXCEEDED);
        shows(&one, "SELECT v FROM t WHERE id = 1", "11").await;
        let failing = "BEGIN; UPDATE t SET v = v + 1 WHERE id = 1; SELECT 1 / 0; COMMIT";
        assert_eq!(code(one.batch_execute(failing).await), SqlState::DIVISION_BY_ZERO);
        assert_eq!(code(one.batch_execute("SELECT 1").await), SqlState::IN_FAILED_SQL_TRANSACTION);
        one.batch_execute("ROLLBACK").await.unwrap();
        nodes.everywhere("SELECT * FROM t ORDER BY id").await;
    });
}

/// How many updates a site has executed in place.
async fn in_place(nodes: &Nodes, site: usize) -> u64 {
    let shown = connect(&nodes.dsn(site).replace("dbname=postgres", "dbname=onecopy")).await.unwrap();
    let shown = &shown.simple_query("SHOW SITE").await.unwrap();
    let in_place = shown.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get("in_place"),
        _ => None,
    });
    in_place.unwrap().parse().unwrap()
}

/// What has executed on what another site has changed since is executed in place, by all sites: there it finds what it has not seen at its own, and may fail of it.
#[test]
fn what_has_executed_in_vain_is_executed_in_place_by_all_sites() {
    block_on(async {
        let counter = "CREATE TABLE gate (id int PRIMARY KEY, v int); INSERT INTO gate VALUES (1, 0), (2, 0); \
             CREATE TABLE counter (id int PRIMARY KEY, n int CHECK (n <= 101)); INSERT INTO counter SELECT n, 0 FROM generate_series(1, 12) n;";
        let (nodes, one, other) = with_table(&[T, counter].concat()).await;
        let one = std::sync::Arc::new(one);
        let server = connect(&nodes.servers.servers()[0].dsn()).await.unwrap();
        let watches = connect(&nodes.servers.servers()[0].dsn()).await.unwrap();
        // What stands before this is over at each site that shows it.
        let is_over = async |mark: u8| {
            one.batch_execute(&format!("UPDATE gate SET v = {mark} WHERE id = 2")).await.unwrap();
            for site in 0..nodes.count() {
                let expected = mark.to_string();
                shows(&nodes.client(site).await, "SELECT v FROM gate WHERE id = 2", &expected).await;
            }
        };
        let counts = async || {
            let mut counts = Vec::new();
            for site in 0..nodes.count() {
                counts.push(in_place(&nodes, site).await);
            }
            counts
        };
        is_over(1).await;
        let before = counts().await;
        for row in 1..=12 {
            // By how much a row is changed that does not exist for the snapshot on which that executes first.
            let by = if row % 2 == 1 { 1 } else { 2 };
            server.batch_execute("BEGIN; SELECT v FROM gate WHERE id = 1 FOR UPDATE").await.unwrap();
            let executes = one.clone();
            let executing = tokio::spawn(async move {
                let sql = format!(
                    "BEGIN; UPDATE gate SET v = v + 1 WHERE id = 1; \
                     UPDATE counter SET n = n + {by} WHERE n = 100; COMMIT"
                );
                executes.batch_execute(&sql).await
            });
            // It has its snapshot, and waits within its server.
            shows(&watches, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", "1")
                .await;
            other.batch_execute(&format!("UPDATE counter SET n = 100 WHERE id = {row}")).await.unwrap();
            shows(&watches, &format!("SELECT n FROM counter WHERE id = {row}"), "100").await;
            server.batch_execute("COMMIT").await.unwrap();
            let answered = executing.await.unwrap();
            if by == 1 {
                answered.unwrap();
            } else {
                assert_eq!(code(answered), SqlState::CHECK_VIOLATION);
                one.batch_execute("ROLLBACK").await.unwrap();
            }
            one.batch_execute("UPDATE counter SET n = 0 WHERE n = 100").await.unwrap();
            // What is asked for next at the other site finds all of this there.
            is_over(1 + row).await;
        }
        let held = "101, 0, ".repeat(6);
        let held = held.trim_end_matches(", ");
        assert_eq!(nodes.everywhere("SELECT n FROM counter ORDER BY id").await, held);
        assert_eq!(nodes.everywhere("SELECT v FROM gate WHERE id = 1").await, "6");
        let executed = counts().await.into_iter().zip(before).map(|(now, before)| now - before);
        assert_eq!(executed.collect::<Vec<_>>(), [12, 12, 12]);
    });
}

/// Clients of all sites count up a row ten times each; returns what they were told, and how often that it is enough.
async fn count_up(nodes: &Nodes, row: u8) -> (Vec<i64>, i64) {
    let mut clients = Vec::new();
    for client in 0..12 {
        clients.push((client % 3, nodes.client(client % 3).await));
    }
    let counting = clients.into_iter().map(|(site, client)| {
        tokio::spawn(async move {
            let count = format!(
                "BEGIN; UPDATE counter SET n = n + 1 WHERE id = {row} RETURNING n; \
                 INSERT INTO told SELECT id, n, {site} FROM counter WHERE id = {row}; COMMIT"
            );
            let (mut counted, mut failed) = (Vec::new(), 0);
            for _ in 0..10 {
                match client.simple_query(&count).await {
                    Ok(messages) => {
                        let row = messages.iter().find_map(|message| match message {
                            SimpleQueryMessage::Row(row) => row.get(0),
                            _ => None,
                        });
                        counted.push(row.unwrap().parse::<i64>().unwrap());
                    }
                    Err(error) => {
                        assert_eq!(error.code(), Some(&SqlState::CHECK_VIOLATION), "{error}");
                        client.batch_execute("ROLLBACK").await.unwrap();
                        failed += 1;
                    }
                }
            }
            (counted, failed)
        })
    });
    let (mut counted, mut failed) = (Vec::new(), 0);
    for one in counting.collect::<Vec<_>>() {
        let (of, others) = one.await.unwrap();
        counted.extend(of);
        failed += others;
    }
    counted.sort_unstable();
    (counted, failed)
}

/// What many want gets through at each of their sites, and fails where it has to, with what stood before it: some of it in place.
#[test]
fn what_many_want_at_once_gets_through_and_fails_where_it_has_to() {
    block_on(async {
        const ENOUGH: i64 = 70;
        let counter = format!(
            "CREATE TABLE counter (id int PRIMARY KEY, n bigint CHECK (id > 1 OR n <= {ENOUGH})); INSERT INTO counter VALUES (1, 0), (2, 0); \
             CREATE TABLE told (id int, n bigint, site int, PRIMARY KEY (id, n));"
        );
        let (nodes, one, _) = with_table(&[T, &counter].concat()).await;
        assert_eq!(count_up(&nodes, 1).await, ((1..=ENOUGH).collect(), 120 - ENOUGH));
        // Where the machine lets one site at a time do something, few are in each other's way.
        let mut enough = 0;
        while in_place(&nodes, 0).await <= 10 && enough < 6_000 {
            assert_eq!(count_up(&nodes, 2).await, ((enough + 1..=enough + 120).collect(), 0));
            enough += 120;
        }
        nodes.everywhere("SELECT * FROM counter ORDER BY id").await;
        nodes.everywhere("SELECT * FROM told ORDER BY id, n").await;
        let told = "SELECT count(*), max(n) FROM told WHERE id = 1";
        shows(&one, told, &format!("{ENOUGH} {ENOUGH}")).await;
        let in_place = in_place(&nodes, 0).await;
        assert!(in_place > 10, "{in_place}");
    });
}

/// What waits at a site is applied in one database transaction, and does what each did. Two that fail only together are applied one by one: a row that
/// refers to nothing is looked at again if the same database transaction has written it.
#[test]
fn what_others_have_written_is_applied_together_where_it_waits() {
    block_on(async {
        let orphan = "CREATE TABLE orphan (id int PRIMARY KEY, t int, v int NOT NULL); INSERT INTO orphan VALUES (1, 1000, 0); \
             ALTER TABLE orphan ADD FOREIGN KEY (t) REFERENCES t NOT VALID;";
        let (nodes, _, other) = with_table(&[T, orphan].concat()).await;
        let mut writers = Vec::new();
        for writer in 0..20 {
            let client = nodes.client(0).await;
            writers.push(tokio::spawn(async move {
                for step in 0..10 {
                    let (row, parent) = (1 + writer % 9, 1 + (writer + step) % 9);
                    let sql = match writer {
                        18.. => "UPDATE orphan SET v = v + 1 WHERE id = 1".to_owned(),
                        _ => format!(
                            "BEGIN; UPDATE t SET v = v + 1 WHERE id = {row}; INSERT INTO child VALUES ({parent}, {}); COMMIT",
                            10 * writer + step
                        ),
                    };
                    client.batch_execute(&sql).await.unwrap();
                }
            }));
        }
        for writer in writers {
            writer.await.unwrap();
        }
        shows(
            &other,
            "SELECT (SELECT sum(v) FROM t), (SELECT v FROM orphan), count(*) FROM child",
            "630 20 180",
        )
        .await;
        nodes.everywhere("SELECT * FROM t ORDER BY id").await;
        nodes.everywhere("SELECT * FROM child ORDER BY n").await;
        let server = connect(&nodes.servers.servers()[1].dsn()).await.unwrap();
        let together =
            "SELECT count(*), count(*) > count(DISTINCT xmin::text) FROM onecopy.site_progress WHERE changed";
        let found = rows(&server, together).await;
        assert!(found.ends_with(" t"), "{found}");
    });
}

#[test]
fn idle_transactions_end_when_they_were_idle_for_too_long() {
    block_on(async {
        let limit = ("limits.idle_in_transaction_timeout_ms", "300");
        let nodes = sites(3, false, &[CERTIFIED, limit], T).await;
        all_serve(&nodes).await;
        let client = nodes.client(0).await;
        client.batch_execute("BEGIN; UPDATE t SET v = 1 WHERE id = 1").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        assert!(client.batch_execute("COMMIT").await.is_err());
        assert_eq!(rows(&nodes.client(0).await, "SELECT v FROM t WHERE id = 1").await, "10");
    });
}

/// Sites of which none goes on, and at which nobody asks for anything meanwhile, serve again; and a site the columns of whose tables have other numbers does
/// not.
#[test]
fn all_sites_return_when_all_were_killed_at_once() {
    block_on(async {
        let mut nodes = with_lists(3, false, &[CERTIFIED]).await;
        let load = Load::start_spoken(&nodes, 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let seen = load.end().await;
        for _ in 0..3 {
            nodes.kill_all();
            nodes.start_all();
            serves(&nodes, 1).await;
        }
        let count = judge_by(Level::Serializable, &nodes, seen).await;
        assert!(count > 10, "{count}");
        nodes.stop(2);
        let server = connect(&nodes.servers.servers()[2].dsn()).await.unwrap();
        let anew = "ALTER TABLE lists RENAME TO old; CREATE TABLE lists (gone int, id int PRIMARY KEY, items text NOT NULL); \
             ALTER TABLE lists DROP gone; INSERT INTO lists SELECT * FROM old; DROP TABLE old; \
             ALTER INDEX lists_pkey1 RENAME TO lists_pkey";
        server.batch_execute(anew).await.unwrap();
        nodes.spawn(2);
        let said = nodes.ends(2);
        assert!(said.contains("same numbers"), "{said}");
    });
}

/// Whoever has sent a transaction whole has seen nothing of it: where it may not commit, its site runs it again, even if it has begun anew meanwhile.
#[test]
fn what_comes_whole_is_answered_by_a_site_that_begins_anew() {
    block_on(async {
        let nodes = with_lists(3, false, &[CERTIFIED]).await;
        let load = Load::start(&nodes, 4);
        for _ in 0..20 {
            for (site, server) in nodes.servers.servers().iter().enumerate() {
                let server = connect(&server.dsn()).await.unwrap();
                server.batch_execute(END_SESSIONS).await.unwrap();
                serves(&nodes, site).await;
            }
        }
        let seen = load.end().await;
        assert!(seen.iter().all(|one| one.status == Status::Committed), "a client has noticed it");
        let count = judge_by(Level::Serializable, &nodes, seen).await;
        println!("{count} acknowledged");
        assert!(count > 50, "{count}");
    });
}

/// Every site is killed and comes back while clients of all sites work, and so is a server: sites come to the same verdicts by what they find in
/// their databases and logs.
#[test]
fn no_acknowledged_transaction_is_lost_when_sites_are_killed_and_return() {
    block_on(async {
        let mut nodes = with_lists(3, false, &[CERTIFIED]).await;
        let load = Load::start_spoken(&nodes, 2);
        kill_and_return(&mut nodes).await;
        let seen = load.end().await;
        let count = judge_by(Level::Serializable, &nodes, seen).await;
        println!("{count} acknowledged");
        assert!(count > 50, "{count}");
    });
}
