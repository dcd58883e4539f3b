//! Definitions change, and with them the types of parameters: whatever was prepared before, for clients or by agents, is
//! never used for what comes after.

use std::time::Duration;

use super::clients::{block_on, home_of, rows};
use super::three::Three;
use tokio_postgres::Client;

#[test]
fn a_transaction_goes_on_after_somebody_else_has_changed_the_type_of_a_column_that_it_writes() {
    block_on(async {
        let three = Three::start();
        let (client, other) = (three.client().await, three.client().await);
        let tables = "CREATE TABLE counted (n int); INSERT INTO counted VALUES (0); CREATE TABLE t (id bigint, v bigint)";
        other.batch_execute(tables).await.unwrap();
        let sql = "INSERT INTO t VALUES ($1, $2)";
        let insert = client.prepare(sql).await.unwrap();
        for n in 0_i64..12 {
            // In transactions, too: all lanes prepare it.
            client.batch_execute("BEGIN; UPDATE counted SET n = n + 1").await.unwrap();
            client.execute(&insert, &[&n, &n]).await.unwrap();
            client.batch_execute("COMMIT").await.unwrap();
            client.execute(&insert, &[&n, &n]).await.unwrap();
        }
        client.batch_execute("BEGIN; UPDATE counted SET n = n + 1").await.unwrap();
        other.batch_execute("ALTER TABLE t ALTER v TYPE float8").await.unwrap();
        let insert = client.prepare(sql).await.unwrap();
        client.execute(&insert, &[&1000_i64, &1.5_f64]).await.unwrap();
        client.execute(&insert, &[&1000_i64, &1.5_f64]).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        let found = three.everywhere("SELECT count(*), min(v), max(v) FROM t WHERE id = 1000").await;
        assert_eq!(found, "2 1.5 1.5");
    });
}

#[test]
fn a_transaction_changes_the_type_of_a_column_and_writes_it_as_before() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        client.batch_execute("CREATE TABLE t (id bigint, v bigint)").await.unwrap();
        let sql = "INSERT INTO t VALUES ($1, $2)";
        client.batch_execute("BEGIN").await.unwrap();
        let insert = client.prepare(sql).await.unwrap();
        client.execute(&insert, &[&1_i64, &1_i64]).await.unwrap();
        client.batch_execute("SAVEPOINT before; ALTER TABLE t ALTER v TYPE float8").await.unwrap();
        let insert = client.prepare(sql).await.unwrap();
        client.execute(&insert, &[&2_i64, &2.5_f64]).await.unwrap();
        client.batch_execute("ROLLBACK TO before").await.unwrap();
        let insert = client.prepare(sql).await.unwrap();
        client.execute(&insert, &[&3_i64, &3_i64]).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        let insert = client.prepare(sql).await.unwrap();
        client.execute(&insert, &[&4_i64, &4_i64]).await.unwrap();
        let found = three.everywhere("SELECT count(*), min(v), max(v) FROM t WHERE v = id").await;
        assert_eq!(found, "3 1 4");
    });
}

/// Takes so long that the next transaction finds another home.
const SLOW: &str =
    "BEGIN; UPDATE counted SET n = (SELECT count(*) FROM generate_series(1, 3000000)); ROLLBACK";

/// Executes a statement beside a slow one; returns where.
async fn elsewhere(three: &Three, busy: &Client, client: &Client, sql: &str) -> usize {
    let at = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        home_of(three.dir.path(), async { client.batch_execute(sql).await.unwrap() }).await
    };
    let (slow, at) = tokio::join!(busy.batch_execute(SLOW), at);
    slow.unwrap();
    at
}

#[test]
fn a_replica_on_which_a_definition_was_changed_applies_by_it_what_the_others_execute_afterwards() {
    block_on(async {
        let three = Three::start();
        let (busy, client) = (three.client().await, three.client().await);
        client
            .batch_execute(
                "CREATE TABLE counted (n int); INSERT INTO counted VALUES (0); SET TimeZone = 'America/New_York'",
            )
            .await
            .unwrap();
        for _ in 0..2 {
            // How long it takes is learned.
            busy.batch_execute(SLOW).await.unwrap();
        }
        for attempt in 0..10 {
            let table = format!("CREATE TABLE t{attempt} (id int PRIMARY KEY, v timestamp)");
            client.batch_execute(&table).await.unwrap();
            let insert = |n: u32| format!("INSERT INTO t{attempt} VALUES ({n}, '2026-01-01 10:00:00+00')");
            for n in 0..8 {
                client.batch_execute(&insert(n)).await.unwrap();
                // Everywhere, and one by one.
                three.assert_identical();
            }
            let alter = format!("ALTER TABLE t{attempt} ALTER v TYPE timestamptz");
            let altered_at = elsewhere(&three, &busy, &client, &alter).await;
            let inserted_at = elsewhere(&three, &busy, &client, &insert(100)).await;
            let sql = format!("SELECT v AT TIME ZONE 'UTC' FROM t{attempt} WHERE id = 100");
            assert_eq!(three.everywhere(&sql).await, "2026-01-01 10:00:00");
            if altered_at != inserted_at {
                return;
            }
        }
        panic!("the slow statement was never in the way");
    });
}

#[test]
fn statements_of_a_long_transaction_that_are_prepared_once_do_not_stay_on_the_server() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        client.batch_execute("CREATE TABLE t (n int); BEGIN; INSERT INTO t VALUES (0)").await.unwrap();
        for n in 1..3_000 {
            client.query_typed(&format!("INSERT INTO t VALUES ({n})"), &[]).await.unwrap();
        }
        let prepared = rows(&client, "SELECT count(*) FROM pg_prepared_statements").await;
        assert!(prepared.parse::<u32>().unwrap() < 1_100, "{prepared}");
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(three.everywhere("SELECT count(*), sum(n) FROM t").await, "3000 4498500");
    });
}
