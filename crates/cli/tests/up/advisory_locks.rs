//! Advisory locks as clients see them: nothing of them is on the replicas, and every session sees the same ones.

use super::clients::{block_on, connect, rows};
use super::{Up, folder, parameter};
use onecopy_cluster::ClusterFile;
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

/// How long a session that must wait is watched.
const A_WHILE: Duration = Duration::from_millis(200);

async fn free(client: &Client, key: i64) -> bool {
    client.query_one("SELECT pg_try_advisory_xact_lock($1)", &[&key]).await.unwrap().get(0)
}

#[test]
fn lock_excludes_others_until_it_was_unlocked_as_often_as_it_was_taken() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let (one, two) = (connect(&dsn).await, connect(&dsn).await);

        assert_eq!(rows(&one, "SELECT pg_advisory_lock(7), pg_try_advisory_lock(7) AS again").await, " t");
        assert!(!free(&two, 7).await && free(&two, 8).await);
        assert_eq!(rows(&two, "SELECT pg_try_advisory_lock(0, 7)").await, "t", "two numbers are another key");
        assert_eq!(rows(&one, "SELECT pg_advisory_unlock(7)").await, "t");
        assert!(!free(&two, 7).await);
        assert_eq!(rows(&one, "SELECT pg_advisory_unlock(7), pg_advisory_unlock(7)").await, "t f");
        assert!(free(&two, 7).await);

        // A key that only a server can compute, by either protocol.
        let computed = "SELECT pg_try_advisory_lock(hashtext('jobs'))";
        assert_eq!(rows(&one, computed).await, "t");
        assert_eq!(rows(&two, computed).await, "f");
        let by_name = "SELECT pg_try_advisory_lock(hashtext($1), $2) AS got";
        let statement = two.prepare(by_name).await.unwrap();
        assert_eq!(statement.columns()[0].name(), "got");
        assert_eq!(statement.columns()[0].type_().name(), "bool");
        let row = two.query_one(&statement, &[&"jobs", &1_i32]).await.unwrap();
        assert!(row.get::<_, bool>("got"));
        assert_eq!(rows(&one, "SELECT pg_try_advisory_lock(hashtext('jobs'), 1)").await, "f");

        // Readers share.
        assert_eq!(rows(&one, "SELECT pg_advisory_lock_shared(9)").await, "");
        assert_eq!(rows(&two, "SELECT pg_try_advisory_lock_shared(9), pg_try_advisory_lock(9)").await, "t f");
        one.batch_execute("DISCARD ALL").await.unwrap();
        assert_eq!(rows(&two, "SELECT pg_try_advisory_lock(9)").await, "t");
        assert_eq!(rows(&one, "SELECT pg_try_advisory_lock(NULL)").await, "-", "a function of NULL");

        let error =
            one.simple_query("SELECT pg_advisory_lock(id) FROM generate_series(1, 2) id").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED));
        assert!(error.as_db_error().unwrap().hint().is_some());
    });
}

#[test]
fn transaction_lock_is_held_until_commit_rollback_or_its_savepoint() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let (one, two) = (connect(&dsn).await, connect(&dsn).await);
        one.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        for end in ["COMMIT", "ROLLBACK", "SELECT 1 / 0"] {
            one.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(1); INSERT INTO t VALUES (1)")
                .await
                .unwrap();
            assert!(!free(&two, 1).await);
            let _ = one.batch_execute(end).await;
            assert!(free(&two, 1).await, "after {end}");
            one.batch_execute("ROLLBACK; DELETE FROM t").await.unwrap();
        }
        one.batch_execute(
            "BEGIN; SELECT pg_advisory_xact_lock(1); SAVEPOINT s; SELECT pg_advisory_xact_lock(2);
             SELECT pg_advisory_lock(3); ROLLBACK TO s",
        )
        .await
        .unwrap();
        assert!(!free(&two, 1).await && free(&two, 2).await && !free(&two, 3).await);
        one.batch_execute("COMMIT").await.unwrap();
        assert!(free(&two, 1).await && !free(&two, 3).await);
        one.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
        assert!(free(&two, 3).await);
        one.batch_execute("SELECT pg_advisory_xact_lock(1)").await.unwrap();
        assert!(free(&two, 1).await, "a statement is its own transaction");
    });
}

#[test]
fn waiting_session_goes_on_when_the_holder_unlocks_leaves_or_it_is_cancelled() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let (one, two) = (connect(&dsn).await, connect(&dsn).await);

        one.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
        {
            let waiting = two.batch_execute("SELECT pg_advisory_lock(1)");
            let mut waiting = std::pin::pin!(waiting);
            assert!(tokio::time::timeout(A_WHILE, &mut waiting).await.is_err(), "it must wait");
            one.batch_execute("SELECT pg_advisory_unlock(1)").await.unwrap();
            waiting.await.unwrap();
        }

        let waiting = one.batch_execute("SELECT pg_advisory_lock(1)");
        let mut waiting = std::pin::pin!(waiting);
        assert!(tokio::time::timeout(A_WHILE, &mut waiting).await.is_err());
        one.cancel_token().cancel_query(NoTls).await.unwrap();
        assert_eq!(waiting.await.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));

        one.batch_execute("SET lock_timeout = '50ms'").await.unwrap();
        let numeric = one.simple_query("SELECT pg_advisory_lock(1.5)").await.unwrap_err();
        assert_eq!(numeric.code(), Some(&SqlState::UNDEFINED_FUNCTION));
        let error = one.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE));
        one.batch_execute("RESET lock_timeout").await.unwrap();

        let waiting = one.batch_execute("SELECT pg_advisory_lock(1)");
        let mut waiting = std::pin::pin!(waiting);
        assert!(tokio::time::timeout(A_WHILE, &mut waiting).await.is_err());
        drop(two);
        waiting.await.unwrap();
    });
}

#[test]
fn client_that_vanishes_while_it_waits_does_not_get_the_lock() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let one = connect(&dsn).await;
        one.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();

        let (two, connection) = tokio_postgres::connect(&dsn, NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        assert!(
            tokio::time::timeout(A_WHILE, two.batch_execute("SELECT pg_advisory_lock(1)")).await.is_err()
        );
        connection.abort();
        let _ = connection.await;
        one.batch_execute("SELECT pg_advisory_unlock(1)").await.unwrap();
        let three = connect(&dsn).await;
        let waits = three.batch_execute("SELECT pg_advisory_lock(1)");
        tokio::time::timeout(Duration::from_secs(30), waits).await.expect("nobody holds it").unwrap();
    });
}

#[test]
fn sessions_that_wait_for_each_other_are_found_and_one_is_refused() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        assert_eq!(parameter(&dsn, "dbname"), "postgres");
        let (one, two) = (connect(&dsn).await, connect(&dsn).await);
        one.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(1)").await.unwrap();
        two.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(2)").await.unwrap();
        let waiting = one.batch_execute("SELECT pg_advisory_xact_lock(2)");
        let mut waiting = std::pin::pin!(waiting);
        assert!(tokio::time::timeout(A_WHILE, &mut waiting).await.is_err());
        let error = two.batch_execute("SELECT pg_advisory_xact_lock(1)").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED));
        // What the refused one held is free at once.
        waiting.await.unwrap();
        two.batch_execute("ROLLBACK").await.unwrap();
        one.batch_execute("COMMIT").await.unwrap();
    });
}
