//! Changes of definitions whose effect depends on which names there are, by several clients at once: what they make and what they
//! leave alone is the same on every replica.

use super::clients::{block_on, connect};
use super::cursors::Raw;
use super::three::Three;
use tokio_postgres::Client;

const CLIENTS: u64 = 5;
const STATEMENTS: u64 = 24;

/// Statements about few names, of which relations of several kinds want the same ones: `{}` is the name's number.
const KINDS: &[&[&str]] = &[
    &[
        "CREATE TABLE n{} (a int)",
        "CREATE TABLE IF NOT EXISTS n{} (a serial PRIMARY KEY)",
        "DROP TABLE IF EXISTS n{}",
        "DROP TABLE IF EXISTS n{}, absent CASCADE",
        "ALTER TABLE IF EXISTS n{} RENAME TO n9",
        "ALTER TABLE IF EXISTS n9 RENAME TO n{}",
        "DROP POLICY IF EXISTS p ON n{}",
        "CREATE POLICY p ON n{}",
        "INSERT INTO n{} (a) VALUES (1)",
    ],
    &[
        "CREATE OR REPLACE VIEW v{} AS SELECT 1 AS a",
        "DROP VIEW IF EXISTS v{}",
        "CREATE MATERIALIZED VIEW IF NOT EXISTS v{} AS SELECT a FROM kept",
        "DROP MATERIALIZED VIEW IF EXISTS v{}",
        "REFRESH MATERIALIZED VIEW v{}",
        "ALTER TABLE IF EXISTS other.v{} SET SCHEMA public",
        "DROP MATERIALIZED VIEW IF EXISTS public.v{}",
    ],
    &[
        "CREATE INDEX IF NOT EXISTS i{} ON kept (a)",
        "CREATE INDEX i{} ON also_kept (a)",
        "DROP INDEX IF EXISTS i{}",
        "CREATE SEQUENCE IF NOT EXISTS i{}",
        "DROP SEQUENCE IF EXISTS i{}",
        "CREATE INDEX ON kept (a)",
    ],
    &[
        "CREATE OR REPLACE FUNCTION f{}() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1",
        "DROP FUNCTION IF EXISTS f{}()",
        "CREATE TYPE t{} AS ENUM ('a')",
        "DROP TYPE IF EXISTS t{} CASCADE",
        "CREATE TABLE IF NOT EXISTS t{} (a int)",
        "DROP TABLE IF EXISTS t{}",
    ],
    &[
        "CREATE SCHEMA IF NOT EXISTS s{}",
        "DROP SCHEMA IF EXISTS s{} CASCADE",
        "CREATE TABLE IF NOT EXISTS s{}.n (a int)",
        "DROP TABLE IF EXISTS s{}.n",
    ],
    // The table of the first schema hides that of the second one.
    &[
        "CREATE TABLE IF NOT EXISTS other.hidden (a int)",
        "DROP TABLE IF EXISTS other.hidden",
        "INSERT INTO hidden VALUES (1)",
        "UPDATE hidden SET a = a + 1",
        "CREATE TABLE hidden (a int)",
    ],
];

/// What one server by itself may say to such statements, whatever the order in which they come to it.
const ERRORS: &[&str] = &[
    "42P01", // undefined table
    "42P06", // duplicate schema
    "42P07", // duplicate table
    "42704", // undefined object
    "42710", // duplicate object
    "42809", // it is of another kind
    "3F000", // undefined schema
    "2BP01", // others depend on it
    "23505", // duplicate key
];

/// Draws from a sequence that a seed decides (Knuth's MMIX).
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

async fn change(client: Client, seed: u64) {
    let mut draws = Draws(seed);
    client.batch_execute("SET search_path = other, public").await.unwrap();
    for _ in 0..STATEMENTS {
        let statements = KINDS[draws.below(KINDS.len())];
        let sql = statements[draws.below(statements.len())].replace("{}", &draws.below(2).to_string());
        // By both protocols.
        let done = match draws.below(2) {
            0 => client.batch_execute(&sql).await,
            _ => client.execute(&sql, &[]).await.map(drop),
        };
        if let Err(error) = done {
            let code = error.code().map_or("none", |code| code.code());
            assert!(ERRORS.contains(&code), "{sql}: {error:?}");
        }
    }
}

#[test]
fn what_exists_is_the_same_everywhere_after_clients_have_made_and_dropped_it_at_once() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        client
            .batch_execute(
                "CREATE SCHEMA other; CREATE TABLE kept (a int); CREATE TABLE also_kept (a int);
                 CREATE TABLE hidden (a int)",
            )
            .await
            .unwrap();
        let mut clients = Vec::new();
        for seed in 1..=CLIENTS {
            clients.push(tokio::spawn(change(three.client().await, seed)));
        }
        for client in clients {
            client.await.unwrap();
        }
        three.assert_identical();
    });
}

#[test]
fn clients_hear_of_names_that_exist_or_do_not_what_one_server_tells() {
    block_on(async {
        let three = Three::start();
        let server = &three.file.replicas[0].dsn;
        connect(server).await.batch_execute("CREATE DATABASE alone").await.unwrap();
        let database = super::parameter(server, "dbname");
        let alone = server.replace(&format!("dbname={database}"), "dbname=alone");
        for sql in [
            "DROP TABLE IF EXISTS t",
            "DROP TABLE t",
            "CREATE TABLE IF NOT EXISTS t (a int)",
            "CREATE TABLE IF NOT EXISTS t (a int)",
            "CREATE TABLE t (a int)",
            "ALTER TABLE t ADD COLUMN IF NOT EXISTS a int",
            "ALTER TABLE IF EXISTS nowhere ADD COLUMN a int",
            "ALTER TABLE IF EXISTS nowhere RENAME TO somewhere",
            "ALTER TABLE IF EXISTS nowhere SET SCHEMA public",
            "CREATE INDEX IF NOT EXISTS i ON t (a)",
            "CREATE INDEX IF NOT EXISTS i ON t (a)",
            "CREATE INDEX i ON t (a)",
            "DROP TRIGGER IF EXISTS g ON t",
            "DROP TRIGGER IF EXISTS g ON nowhere",
            "CREATE OR REPLACE VIEW v AS SELECT a FROM t",
            "CREATE VIEW v AS SELECT a FROM t",
            "CREATE TABLE v (a int)",
            "DROP TABLE IF EXISTS v",
            "DROP TABLE IF EXISTS t, nowhere",
            "DROP VIEW IF EXISTS v, nowhere",
            "DROP FUNCTION IF EXISTS f()",
            "CREATE SCHEMA IF NOT EXISTS s",
            "CREATE SCHEMA IF NOT EXISTS s",
            "DROP SCHEMA IF EXISTS s, nowhere",
            "DROP TYPE IF EXISTS nowhere",
            "DROP TABLE IF EXISTS nowhere.t",
            "DROP TABLE IF EXISTS t, nowhere CASCADE",
            "BEGIN; DROP TABLE IF EXISTS t; CREATE TABLE t (a int); DROP TABLE IF EXISTS t; COMMIT",
        ] {
            let [here, there] =
                [&three.file.client.dsn, &alone].map(|dsn| Raw::default().query(sql).words(dsn));
            assert_eq!(here, there, "{sql}");
        }
        three.assert_identical();
    });
}
