//! What statements change by more than they name: functions that are written as columns, keys that only partitions have,
//! keys that are computed.

use super::clients::{block_on, connect, rows};
use super::three::Three;
use tokio_postgres::error::SqlState;

const SCHEMA: &[&str] = &[
    "CREATE TABLE b (id int PRIMARY KEY, q float8)",
    "INSERT INTO b SELECT g, 0 FROM generate_series(1, 9) g",
    "CREATE TABLE log (id int PRIMARY KEY, q float8)",
    "CREATE FUNCTION vol(b) RETURNS float8 LANGUAGE sql AS 'SELECT random()'",
    "CREATE FUNCTION wr(b) RETURNS int LANGUAGE sql AS 'INSERT INTO log VALUES ($1.id, 0) RETURNING id'",
    "CREATE FUNCTION logged(b) RETURNS float8 LANGUAGE sql STABLE AS 'SELECT q FROM log WHERE id = $1.id'",
    "CREATE TABLE m (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
    "CREATE TABLE m1 PARTITION OF m FOR VALUES IN (1)",
    "CREATE UNIQUE INDEX ON m1 (v)",
    "INSERT INTO m SELECT g, 1, 10 - g FROM generate_series(1, 9) g",
    "CREATE TABLE computed_key (a text, code text GENERATED ALWAYS AS (a || 'x') STORED PRIMARY KEY, v float8)",
    "INSERT INTO computed_key VALUES ('one', DEFAULT, 1), ('two', DEFAULT, 2)",
    "CREATE TABLE coded (id int PRIMARY KEY, a text, code text GENERATED ALWAYS AS (a || 'x') STORED UNIQUE)",
    "CREATE TABLE of_coded (id int PRIMARY KEY, code text REFERENCES coded (code) ON UPDATE CASCADE)",
    "INSERT INTO coded VALUES (1, 'a'); INSERT INTO of_coded VALUES (1, 'ax')",
    "CREATE TABLE list (id int PRIMARY KEY, texts text[])",
];

const WRITES: &[&str] = &[
    "UPDATE b SET q = b.vol",
    "UPDATE b AS x SET q = (x).vol WHERE x.vol < 0.5",
    "INSERT INTO b VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET q = excluded.vol",
    "SELECT b.wr FROM b WHERE b.id = 1",
    "UPDATE m SET v = v + 1",
    "UPDATE m SET v = v - 1",
    "UPDATE computed_key SET v = random()",
    "DELETE FROM computed_key WHERE v > 2 * random()",
];

#[test]
fn what_statements_change_by_more_than_they_name_is_the_same_everywhere() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        for statement in SCHEMA {
            client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        three.assert_identical();
        // The rows of the partition lie in the order of `v + 1` on two servers, in that of `v - 1` on the third.
        for (replica, order) in three.file.replicas.iter().zip(["v DESC", "v DESC", "v"]) {
            let server = connect(&replica.dsn).await;
            let turned = format!(
                "BEGIN; CREATE TEMPORARY TABLE held ON COMMIT DROP AS SELECT * FROM m; DELETE FROM m;
                 INSERT INTO m SELECT * FROM held ORDER BY {order}; COMMIT"
            );
            server.batch_execute(&turned).await.unwrap_or_else(|error| panic!("{order}: {error:?}"));
        }
        for statement in WRITES {
            // Where the home's own rows lie in the wrong order, it fails there as on one server.
            match client.batch_execute(statement).await {
                Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
                done => done.unwrap_or_else(|error| panic!("{statement}: {error:?}")),
            }
        }
        three.assert_identical();
        assert_eq!(three.everywhere("SELECT * FROM log").await, "1 0");

        let reader = three.client().await;
        for round in 1..20 {
            client.batch_execute(&format!("UPDATE log SET q = {round}")).await.unwrap();
            assert_eq!(rows(&reader, "SELECT b.logged FROM b WHERE id = 1").await, round.to_string());
        }

        client.batch_execute("SET array_nulls = off").await.unwrap();
        for refused in [
            "UPDATE coded SET a = random()::text",
            "UPDATE computed_key SET a = random()::text",
            "INSERT INTO list VALUES (1, ARRAY[random()::text, NULL])",
        ] {
            let error = client.batch_execute(refused).await.unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "{refused}: {error:?}");
        }
        client
            .batch_execute("RESET array_nulls; INSERT INTO list VALUES (1, ARRAY[random()::text, NULL])")
            .await
            .unwrap();
        assert_eq!(three.everywhere("SELECT count(*) FROM list WHERE texts[2] IS NULL").await, "1");
    });
}
