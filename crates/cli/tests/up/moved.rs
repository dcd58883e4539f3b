//! Transactions that are open when their replica is lost: they go on elsewhere, and their clients notice nothing.

use super::clients::{block_on, connect, home_of, rows};
use super::failures::agents;
use super::three::Three;
use super::wait_until;
use std::time::Duration;
use tokio_postgres::Client;

/// Has the server end every session of onecopy's, and waits until it has left service and is back.
async fn lose(three: &Three, replica: usize) {
    let before = agents(&three.file).await;
    let server = connect(&three.file.replicas[replica].dsn).await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
    rows(&server, end).await;
    while [&before[replica], ""].contains(&agents(&three.file).await[replica].as_str()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    wait_until("every replica serves", || {
        three.status()["replicas"].as_array().unwrap().iter().all(|replica| replica["state"] == "up")
    });
}

/// Begins a transaction with a write, and says where it is at home.
async fn begin(three: &Three, client: &Client, sql: &str) -> usize {
    home_of(three.dir.path(), async { client.batch_execute(sql).await.unwrap() }).await
}

async fn three() -> (Three, Client) {
    let three = Three::start();
    let client = three.client().await;
    let schema = "CREATE TABLE t (id int PRIMARY KEY, v int, at timestamptz, r float);
                  CREATE TABLE f (id serial PRIMARY KEY, t int REFERENCES t DEFERRABLE INITIALLY DEFERRED);
                  INSERT INTO t SELECT n, 0, now(), 0 FROM generate_series(1, 9) n";
    client.batch_execute(schema).await.unwrap();
    (three, client)
}

#[test]
fn transaction_whose_home_is_lost_goes_on_with_what_it_has_written_set_and_saved() {
    block_on(async {
        let (three, client) = three().await;
        let home = begin(
            &three,
            &client,
            "BEGIN; SET LOCAL TimeZone = 'Asia/Tokyo'; UPDATE t SET v = 1, at = now() WHERE id = 1;
             SAVEPOINT s; UPDATE t SET v = 2 WHERE id = 2; SAVEPOINT u; UPDATE t SET v = 3 WHERE id = 3",
        )
        .await;
        // Rows that only their home could make are as they were.
        let random = "UPDATE t SET r = random() WHERE id = 4 RETURNING r";
        let told: f64 = client.query_one(random, &[]).await.unwrap().get(0);
        let copied = "INSERT INTO f (t) VALUES (1), (2)";
        client.batch_execute(copied).await.unwrap();
        let at = rows(&client, "SELECT at FROM t WHERE id = 1").await;
        assert!(at.ends_with("+09"), "{at}");
        lose(&three, home).await;
        assert_eq!(rows(&client, "SELECT at FROM t WHERE id = 1").await, at);
        assert_eq!(rows(&client, "SELECT v FROM t WHERE id IN (2, 3) ORDER BY id").await, "2, 3");
        assert_eq!(
            client.query_one("SELECT r FROM t WHERE id = 4", &[]).await.unwrap().get::<_, f64>(0),
            told
        );
        client.batch_execute("ROLLBACK TO u; UPDATE t SET v = 5 WHERE id = 5").await.unwrap();
        let written = "SELECT v FROM t WHERE id IN (1, 2, 3, 5) ORDER BY id";
        assert_eq!(rows(&client, written).await, "1, 2, 0, 5");
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(three.everywhere(written).await, "1, 2, 0, 5");
        three.assert_identical();
    });
}

#[test]
fn transaction_whose_home_is_lost_commits_without_another_statement() {
    block_on(async {
        let (three, client) = three().await;
        let home = begin(&three, &client, "BEGIN; UPDATE t SET v = 7 WHERE id = 7").await;
        lose(&three, home).await;
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(three.everywhere("SELECT v FROM t WHERE id = 7").await, "7");
        // What was deferred is checked at another home, and violated there as it would have been.
        let home = begin(&three, &client, "BEGIN; INSERT INTO f (t) VALUES (100)").await;
        lose(&three, home).await;
        let error = client.batch_execute("COMMIT").await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "23503", "{error}");
        three.assert_identical();
    });
}

#[test]
fn others_wait_for_a_transaction_whose_home_is_lost_as_before() {
    block_on(async {
        let (three, client) = three().await;
        let home = begin(
            &three,
            &client,
            "BEGIN; SELECT v FROM t WHERE id = 1 FOR UPDATE; UPDATE t SET v = v + 1 WHERE id = 2",
        )
        .await;
        let other = three.client().await;
        let waits = tokio::spawn(async move {
            other.batch_execute("UPDATE t SET v = v * 10 WHERE id IN (1, 2)").await.unwrap();
        });
        lose(&three, home).await;
        client.batch_execute("UPDATE t SET v = 4 WHERE id = 1").await.unwrap();
        assert!(!waits.is_finished());
        client.batch_execute("COMMIT").await.unwrap();
        waits.await.unwrap();
        assert_eq!(three.everywhere("SELECT v FROM t WHERE id IN (1, 2) ORDER BY id").await, "40, 10");
    });
}

#[test]
fn prepared_statements_go_on_at_another_home() {
    block_on(async {
        let (three, mut client) = three().await;
        let update = client.prepare("UPDATE t SET v = v + $1 WHERE id = $2 RETURNING v").await.unwrap();
        let txn = client.transaction().await.unwrap();
        let home = home_of(three.dir.path(), async {
            txn.query_one(&update, &[&1, &1]).await.unwrap();
        });
        let home = home.await;
        lose(&three, home).await;
        // A statement that is only described finds it first.
        let described = txn.prepare("SELECT v FROM t WHERE id = $1").await.unwrap();
        assert_eq!(txn.query_one(&described, &[&1]).await.unwrap().get::<_, i32>(0), 1);
        assert_eq!(txn.query_one(&update, &[&1, &1]).await.unwrap().get::<_, i32>(0), 2);
        txn.commit().await.unwrap();
        assert_eq!(three.everywhere("SELECT v FROM t WHERE id = 1").await, "2");
    });
}

#[test]
fn read_phase_whose_replica_is_lost_goes_on_unless_what_it_has_read_has_changed() {
    block_on(async {
        let (three, client) = three().await;
        let other = three.client().await;
        for changes in [false, true] {
            client.batch_execute("BEGIN READ ONLY").await.unwrap();
            assert_eq!(rows(&client, "SELECT count(*), sum(v) FROM t WHERE id < 5").await, "4 0");
            let change =
                if changes { "UPDATE t SET v = 1 WHERE id = 1" } else { "UPDATE t SET v = 1 WHERE id = 8" };
            other.batch_execute(change).await.unwrap();
            for replica in 0..3 {
                lose(&three, replica).await;
            }
            let read = client.query_one("SELECT sum(v) FROM t WHERE id = 9", &[]).await;
            match changes {
                false => assert_eq!(read.unwrap().get::<_, i64>(0), 0),
                true => assert_eq!(read.unwrap_err().code().unwrap().code(), "40001"),
            }
            client.batch_execute("ROLLBACK").await.unwrap();
        }
    });
}

#[test]
fn what_cannot_be_had_at_another_home_ends_its_transaction_with_one_error() {
    block_on(async {
        let (three, client) = three().await;
        let declared =
            "BEGIN; UPDATE t SET v = 1 WHERE id = 1; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id";
        for begun in [declared, "BEGIN; CREATE TABLE mine (id int PRIMARY KEY)"] {
            let home = begin(&three, &client, begun).await;
            lose(&three, home).await;
            let error = client.batch_execute("UPDATE t SET v = 2 WHERE id = 2").await.unwrap_err();
            assert_eq!(error.code().unwrap().code(), "40001", "{error}");
            client.batch_execute("ROLLBACK").await.unwrap();
        }
        assert_eq!(three.everywhere("SELECT v FROM t WHERE id IN (1, 2) ORDER BY id").await, "0, 0");
        three.assert_identical();
    });
}
