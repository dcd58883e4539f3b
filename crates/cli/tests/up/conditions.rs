//! What servers evaluate by themselves, beside or after a statement: it changes nothing unseen, and means the same
//! everywhere.

use super::clients::{block_on, rows};
use super::cursors::Raw;
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
        let mut bound = Raw::default();
        bound
            .query("BEGIN")
            .parse("", "SELECT noted('portal', id) FROM t")
            .bind("p", "")
            .describe("p")
            .sync();
        let fetched = bound.query("FETCH 2 FROM p").query("COMMIT").outline(&three.file.client.dsn);
        assert!(fetched.contains("does not exist"), "{fetched}");
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

#[test]
fn conditions_of_triggers_and_checks_hold_everywhere_or_the_write_is_refused() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        execute_all(
            &client,
            "CREATE FUNCTION marks() RETURNS trigger LANGUAGE plpgsql IMMUTABLE AS 'BEGIN NEW.v := NEW.v + 100; RETURN NEW; END';
             CREATE TABLE by_user (id int PRIMARY KEY, v float8);
             CREATE TRIGGER t BEFORE INSERT ON by_user FOR EACH ROW WHEN (session_user = 'postgres') EXECUTE FUNCTION marks();
             CREATE TABLE by_clock (id int PRIMARY KEY, v float8, at timestamptz);
             CREATE TRIGGER t BEFORE INSERT ON by_clock FOR EACH ROW WHEN (NEW.at > now()) EXECUTE FUNCTION marks();
             CREATE TABLE by_setting (id int PRIMARY KEY, v float8);
             CREATE TRIGGER t BEFORE INSERT ON by_setting FOR EACH ROW WHEN (current_setting('app.x', true) = 'on') EXECUTE FUNCTION marks();
             CREATE TABLE by_row (id int PRIMARY KEY, v float8);
             CREATE TRIGGER a BEFORE INSERT ON by_row FOR EACH ROW WHEN (NEW.id > 1 AND pg_trigger_depth() = 0) EXECUTE FUNCTION marks();
             CREATE TRIGGER b BEFORE UPDATE ON by_row FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION marks();
             CREATE TABLE of_replicas (id int PRIMARY KEY, v float8);
             CREATE TRIGGER t BEFORE INSERT ON of_replicas FOR EACH ROW EXECUTE FUNCTION marks();
             ALTER TABLE of_replicas ENABLE REPLICA TRIGGER t;
             CREATE TABLE past (id int PRIMARY KEY, at timestamptz DEFAULT now() CHECK (at <= now()), year int CHECK (year <= extract(year FROM now())));
             CREATE TABLE expiring (id int PRIMARY KEY, at timestamptz CHECK (at > now()));
             CREATE TABLE entered (id int PRIMARY KEY, by text CHECK (by = session_user));
             CREATE TABLE owned (id int PRIMARY KEY, owner text CHECK (owner = current_user), v float8);
             CREATE DOMAIN me AS text CHECK (VALUE = session_user);
             CREATE TABLE of_domain (id int PRIMARY KEY, by me);
             CREATE TABLE plain (id int PRIMARY KEY, t text);
             CREATE ROLE bob LOGIN;
             GRANT ALL ON owned, plain TO bob",
        )
        .await;
        assert_refused(
            &client,
            &[
                "INSERT INTO by_user VALUES (1, 1)",
                "INSERT INTO by_clock VALUES (1, 1, now() + interval '1 hour')",
                "INSERT INTO by_setting VALUES (1, 1)",
                "INSERT INTO of_replicas VALUES (1, random())",
                "INSERT INTO expiring VALUES (1, now() + interval '15 milliseconds')",
                "INSERT INTO entered VALUES (1, 'postgres')",
                "INSERT INTO owned VALUES (1, 'postgres', random())",
                "INSERT INTO of_domain VALUES (1, 'postgres')",
                "ALTER TABLE plain ADD CHECK (t = session_user)",
                "CREATE FUNCTION f() RETURNS int LANGUAGE sql SET work_mem FROM CURRENT AS 'SELECT 1'",
            ],
        )
        .await;
        execute_all(
            &client,
            "INSERT INTO by_row VALUES (1, 1), (2, 2);
             UPDATE by_row SET v = v WHERE id = 1;
             UPDATE by_row SET v = v + 1 WHERE id = 1;
             INSERT INTO of_replicas VALUES (1, 1);
             INSERT INTO past VALUES (1, now(), 2020);
             INSERT INTO past (id) VALUES (2);
             UPDATE past SET at = clock_timestamp() - interval '1 hour' WHERE id = 1;
             INSERT INTO plain VALUES (1, 'postgres'::me);
             ALTER TABLE past ADD CHECK (at <= current_date + 1)",
        )
        .await;
        let bob = three.client_of("bob").await;
        execute_all(&bob, "INSERT INTO owned VALUES (1, 'bob', 1);\nINSERT INTO plain VALUES (2, 'bob'::me)")
            .await;
        assert_eq!(
            three.everywhere("SELECT string_agg(v::text, ' ' ORDER BY id) FROM by_row").await,
            "102 102"
        );
        assert_eq!(three.everywhere("SELECT v FROM of_replicas").await, "1");
        assert_eq!(three.everywhere("SELECT count(*) FROM past").await, "2");
        assert_eq!(three.everywhere("SELECT owner FROM owned").await, "bob");
        assert_eq!(
            three.everywhere("SELECT string_agg(t, ' ' ORDER BY id) FROM plain").await,
            "postgres bob"
        );
    });
}
