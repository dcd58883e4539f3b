//! What servers evaluate by themselves, beside or after a statement: it changes nothing unseen, and means the same
//! everywhere.

use super::clients::{block_on, rows};
use super::three::Three;
use futures_util::TryStreamExt;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

async fn execute_all(client: &Client, statements: &str) {
    for statement in statements.split(";\n") {
        client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}

/// Statements that are refused, and leave no transaction behind.
async fn assert_refused(client: &Client, statements: &[&str]) {
    for sql in statements {
        let error = client.batch_execute(sql).await.expect_err(sql);
        assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "{sql}: {error:?}");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
}

#[test]
fn functions_that_write_are_executed_everywhere_or_nowhere() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        execute_all(
            &client,
            "CREATE TABLE t (id int PRIMARY KEY, n int);
             INSERT INTO t SELECT generate_series(1, 5);
             CREATE TABLE log (place text, id int);
             CREATE SEQUENCE s;
             CREATE FUNCTION noted(place text, id int) RETURNS int LANGUAGE sql AS 'INSERT INTO log VALUES ($1, $2) RETURNING id';
             CREATE VIEW noting AS SELECT noted('view', id) FROM t;
             PREPARE given (int) AS SELECT $1",
        )
        .await;
        assert_refused(
            &client,
            &[
                "BEGIN; DECLARE c CURSOR FOR SELECT noted('cursor', id) FROM t; FETCH 2 FROM c; COMMIT",
                "BEGIN; DECLARE c CURSOR FOR SELECT * FROM noting; MOVE 2 FROM c; COMMIT",
                "BEGIN; DECLARE c CURSOR FOR SELECT setval('s', 500); FETCH c; COMMIT",
                "SELECT setval('s', noted('setval', 1))",
                "SELECT setval('s', 1, noted('setval', 1) > 0)",
                "BEGIN; SELECT setval('s', (SELECT noted('setval', 1)))",
                "COPY (SELECT setval('s', 500)) TO STDOUT",
                "EXPLAIN ANALYZE SELECT setval('s', 500)",
                "EXPLAIN ANALYZE CREATE TABLE made AS SELECT noted('explain', 1)",
                "SELECT pg_advisory_lock(noted('lock', 1))",
                "SELECT pg_notify('c', noted('notify', 1)::text)",
                "SELECT set_config('app.x', noted('set_config', 1)::text, false)",
                "EXECUTE given (noted('execute', 1))",
            ],
        )
        .await;
        // What is served is recorded, and goes to all replicas.
        execute_all(
            &client,
            "BEGIN; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id FOR UPDATE; FETCH 2 FROM c; UPDATE t SET n = 7 WHERE id < 3; COMMIT;
             SELECT setval('s', (SELECT max(id) FROM t) * 100);
             SELECT noted('select', id) FROM t;
             SELECT count(*) FROM noting;
             VALUES (noted('values', 1));
             SELECT id FROM t ORDER BY id LIMIT noted('limit', 1);
             EXPLAIN ANALYZE SELECT noted('explain', id) FROM t;
             EXPLAIN ANALYZE INSERT INTO t SELECT id + 10 FROM t;
             EXPLAIN SELECT noted('no', id) FROM t;
             CREATE TABLE made AS SELECT noted('made', id) FROM t;
             CREATE MATERIALIZED VIEW kept AS SELECT noted('kept', id) FROM t;
             REFRESH MATERIALIZED VIEW kept;
             PREPARE noting AS SELECT noted('execute', $1);
             EXECUTE noting (3)",
        )
        .await;
        for sql in [
            "COPY (SELECT noted('copy', id) FROM t) TO STDOUT",
            "COPY (INSERT INTO log SELECT 'copied', id FROM t RETURNING id) TO STDOUT",
        ] {
            let copied: Vec<_> = client.copy_out(sql).await.unwrap().try_collect().await.unwrap();
            assert_eq!(copied.len(), 10, "{sql}");
        }
        assert_eq!(rows(&client, "SELECT nextval('s')").await, "501");
        let noted = "SELECT string_agg(place || ' ' || n, ', ' ORDER BY place) FROM (SELECT place, count(*) AS n FROM log GROUP BY place) x";
        assert_eq!(
            three.everywhere(noted).await,
            "copied 10, copy 10, execute 1, explain 5, kept 20, limit 1, made 10, select 5, values 1, view 5"
        );
        assert_eq!(three.everywhere("SELECT count(*), sum(n) FROM t").await, "10 14");
    });
}
