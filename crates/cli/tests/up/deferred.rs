//! Constraints that are checked after their statement: what violates them fails at its client and is never decided, and in
//! whichever order a transaction may change rows at its home, all replicas can change them.

use super::clients::{block_on, connect, rows};
use super::cursors::Raw;
use super::three::Three;
use bytes::Bytes;
use futures_util::SinkExt;
use std::pin::pin;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// Three servers, and a database on one of them which nobody serves.
struct Both {
    three: Three,
    direct: String,
}

impl Both {
    async fn start() -> Both {
        let three = Three::start();
        let server = &three.file.replicas[0].dsn;
        connect(server).await.batch_execute("CREATE DATABASE direct").await.unwrap();
        let direct = server.replace("dbname=postgres", "dbname=direct");
        assert_ne!(direct, *server);
        Both { three, direct }
    }

    async fn execute(&self, sql: &str) {
        for dsn in [&self.three.file.client.dsn, &self.direct] {
            connect(dsn).await.batch_execute(sql).await.unwrap();
        }
    }

    /// Sends messages to both; what they say is the same, and the replicas hold the same, as much as a query tells.
    async fn do_alike(&self, what: &str, send: impl Fn(&mut Raw), query: &str) {
        let told = |dsn| {
            let mut raw = Raw::default();
            send(&mut raw);
            raw.told(dsn)
        };
        assert_eq!(told(&self.three.file.client.dsn), told(&self.direct), "{what}");
        let alone = rows(&connect(&self.direct).await, query).await;
        assert_eq!(self.three.everywhere(query).await, alone, "{what}");
    }
}

async fn refused(client: &Client, sql: &str) -> SqlState {
    client.batch_execute(sql).await.unwrap_err().code().unwrap().clone()
}

/// There is never another constraint in the database that could be deferred.
#[test]
fn whatever_is_checked_at_the_end_fails_before_the_decision() {
    block_on(async {
        let both = Both::start().await;
        both.execute("CREATE TABLE parent (id int PRIMARY KEY)").await;
        both.do_alike(
            "a foreign key of the transaction's own",
            |raw| {
                raw.query("BEGIN").query(CHILD).query("INSERT INTO child VALUES (1, 99)").query("COMMIT");
                raw.query("SELECT to_regclass('child')");
                raw.query("BEGIN").query(CHILD).query("ALTER TABLE child ALTER of SET NOT NULL");
                raw.query("INSERT INTO parent VALUES (7)")
                    .query("INSERT INTO child VALUES (1, 7)")
                    .query("COMMIT");
            },
            "SELECT * FROM child",
        )
        .await;
        both.execute("DROP TABLE child").await;

        both.execute(
            "CREATE TABLE booking (id int PRIMARY KEY, at int4range,
                                   EXCLUDE USING gist (at WITH &&) DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
        both.do_alike(
            "an exclusion",
            |raw| {
                raw.query("INSERT INTO booking VALUES (1, '[1, 5)')")
                    .query("INSERT INTO booking VALUES (2, '[3, 7)')");
                raw.query("BEGIN").query("INSERT INTO booking VALUES (2, '[3, 7)')").query("COMMIT");
                raw.query("BEGIN").query("INSERT INTO booking VALUES (2, '[3, 7)')");
                raw.query("UPDATE booking SET at = '[1, 3)' WHERE id = 1").query("COMMIT");
            },
            "SELECT * FROM booking ORDER BY id",
        )
        .await;
        both.execute("DROP TABLE booking").await;

        both.execute(
            "CREATE TABLE small (id int PRIMARY KEY, n int);
             CREATE FUNCTION is_small() RETURNS trigger LANGUAGE plpgsql IMMUTABLE AS
                 'BEGIN IF NEW.n > 9 THEN RAISE EXCEPTION ''too large''; END IF; RETURN NULL; END';
             CREATE CONSTRAINT TRIGGER is_small AFTER INSERT OR UPDATE ON small DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION is_small()",
        )
        .await;
        both.do_alike(
            "a constraint trigger",
            |raw| {
                raw.query("INSERT INTO small VALUES (1, 1)").query("INSERT INTO small VALUES (2, 10)");
                raw.query("BEGIN")
                    .query("INSERT INTO small VALUES (3, 3)")
                    .query("UPDATE small SET n = 10 WHERE id = 1");
                raw.query("COMMIT").query("SELECT count(*) FROM small");
            },
            "SELECT * FROM small ORDER BY id",
        )
        .await;
        both.execute("DROP TABLE small").await;

        both.execute(CHILD).await;
        both.do_alike("a foreign key", violate, "SELECT * FROM child ORDER BY id").await;
        let client = both.three.client().await;
        for sql in [
            "INSERT INTO child VALUES (20, 99); INSERT INTO parent VALUES (98)",
            "BEGIN; INSERT INTO child VALUES (20, 99); INSERT INTO parent VALUES (98); COMMIT",
            "DELETE FROM parent WHERE id = 7",
            "INSERT INTO child SELECT 20 + n, 99 FROM (SELECT (random() * 9)::int AS n LIMIT 1) x",
        ] {
            assert_eq!(refused(&client, sql).await, SqlState::FOREIGN_KEY_VIOLATION, "{sql}");
            client.batch_execute("ROLLBACK").await.unwrap();
        }
        let copy = |data: &'static str| {
            let client = &client;
            async move {
                let mut sink = pin!(client.copy_in("COPY child FROM STDIN").await.unwrap());
                sink.send(Bytes::from_static(data.as_bytes())).await.unwrap();
                sink.finish().await
            }
        };
        // As from one server, the error comes after the count, where this client does not look for it.
        assert_eq!(copy("20\t99\n").await.unwrap(), 1);
        assert_eq!(copy("21\t7\n").await.unwrap(), 1);
        let insert = client.prepare("INSERT INTO child VALUES ($1, $2) RETURNING id").await.unwrap();
        for (id, of) in [(30, 7), (31, 99), (32, 7)] {
            let inserted = client.query(&insert, &[&id, &of]).await.map(|rows| rows[0].get::<_, i32>(0));
            match inserted {
                Ok(inserted) => assert_eq!((inserted, of), (id, 7)),
                Err(error) => assert_eq!((error.code(), of), (Some(&SqlState::FOREIGN_KEY_VIOLATION), 99)),
            }
        }
        client
            .batch_execute("INSERT INTO child VALUES (40, 8); INSERT INTO parent VALUES (8)")
            .await
            .unwrap();
        let found =
            both.three.everywhere("SELECT string_agg(id || ' ' || of, ', ' ORDER BY id) FROM child").await;
        assert_eq!(found, "1 7, 2 7, 3 7, 21 7, 30 7, 32 7, 40 8");
    });
}

const CHILD: &str =
    "CREATE TABLE child (id int PRIMARY KEY, of int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)";

/// Statements by themselves, by either protocol, some of which violate the key.
fn violate(raw: &mut Raw) {
    for id in 1..=5 {
        // Its class is soon met often enough to be prepared.
        let of = if id <= 3 { 7 } else { 99 };
        raw.query(&format!("INSERT INTO child VALUES ({id}, {of})"));
    }
    raw.parse("s", "INSERT INTO child VALUES ($1, $2) RETURNING id").describe_statement("s").sync();
    raw.bind_as("s", &["6", "99"], &[], &[]).describe("").execute("", 0).sync();
    raw.bind_as("s", &["6", "99"], &[], &[]).execute("", 0).sync();
    raw.parse("", "INSERT INTO child VALUES (6, 99)").bind("", "").execute("", 0).sync();
    raw.parse("kept", "SELECT 1").parse("", "UPDATE child SET of = 99 WHERE id = 1");
    raw.bind("", "").execute("", 0).sync().bind("", "kept").execute("", 0).sync();
    raw.parse("", "INSERT INTO child VALUES (6, 99)").bind("", "").execute("", 0);
    raw.parse("", "INSERT INTO parent VALUES (98)").bind("", "").execute("", 0).sync();
    raw.query("SELECT count(*) FROM child");
}

const PATIENT: &str = "
    CREATE TABLE parent (id int PRIMARY KEY);
    CREATE TABLE patient (id int PRIMARY KEY, of int CONSTRAINT later REFERENCES parent DEFERRABLE);
    CREATE TABLE late (id int PRIMARY KEY, of int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
    CREATE TABLE place (id int PRIMARY KEY, n int UNIQUE DEFERRABLE);
    INSERT INTO place SELECT n, n FROM generate_series(1, 4) n;
    CREATE SCHEMA other;
    CREATE TABLE other.patient (id int PRIMARY KEY, of int CONSTRAINT later REFERENCES parent DEFERRABLE)";

const SCRIPTS: &[(&str, &[&str])] = &[
    (
        "a child comes before its parent",
        &[
            "BEGIN",
            "/* first */ set  constraints all\ndeferred",
            "INSERT INTO patient VALUES (1, 1)",
            "INSERT INTO parent VALUES (1)",
            "COMMIT",
            "INSERT INTO patient VALUES (2, 2)",
        ],
    ),
    (
        "of two constraints of one name the one that the path finds is deferred",
        &[
            "BEGIN",
            "SET LOCAL search_path = other, public",
            "SET CONSTRAINTS later DEFERRED",
            "INSERT INTO patient VALUES (2, 2)",
            "SET LOCAL search_path = public",
            "INSERT INTO parent VALUES (2)",
            "INSERT INTO patient VALUES (2, 2)",
            "COMMIT",
        ],
    ),
    (
        "what was checked early is altered, though it is checked late by itself",
        &[
            "BEGIN",
            "INSERT INTO late VALUES (1, 1)",
            "SET CONSTRAINTS ALL IMMEDIATE",
            "ALTER TABLE late ADD note text",
            "SET CONSTRAINTS ALL DEFERRED",
            "INSERT INTO late VALUES (2, 3, 'x')",
            "INSERT INTO parent VALUES (3)",
            "COMMIT",
        ],
    ),
    (
        "unique values change places",
        &[
            "BEGIN",
            "SET CONSTRAINTS ALL DEFERRED",
            "UPDATE place SET n = 2 WHERE id = 1",
            "UPDATE place SET n = 1 WHERE id = 2",
            "UPDATE place SET n = 7 - n WHERE id > 2",
            "COMMIT",
            "BEGIN",
            "UPDATE place SET n = 1 WHERE id = 1",
            "ROLLBACK",
        ],
    ),
    (
        "what a savepoint undoes is not done elsewhere either",
        &[
            "BEGIN",
            "SET CONSTRAINTS ALL DEFERRED",
            "SAVEPOINT s",
            "INSERT INTO patient VALUES (4, 4)",
            "SET CONSTRAINTS later IMMEDIATE",
            "ROLLBACK TO s",
            "INSERT INTO patient VALUES (4, 4)",
            "SAVEPOINT s",
            "SET CONSTRAINTS ALL IMMEDIATE",
            "ROLLBACK TO s",
            "INSERT INTO parent VALUES (4)",
            "COMMIT",
        ],
    ),
    (
        "it is violated after all",
        &[
            "BEGIN",
            "SET CONSTRAINTS ALL DEFERRED",
            "INSERT INTO patient VALUES (99, 99)",
            "INSERT INTO place VALUES (99, 99)",
            "COMMIT",
            "SELECT count(*) FROM place",
        ],
    ),
];

#[test]
fn in_whichever_order_constraints_let_rows_change_all_replicas_change_them() {
    block_on(async {
        let both = Both::start().await;
        both.execute(PATIENT).await;
        let query =
            "SELECT 'patient', id, of FROM patient UNION ALL SELECT 'other', id, of FROM other.patient
                     UNION ALL SELECT 'late', id, of FROM late UNION ALL SELECT 'place', id, n FROM place
                     UNION ALL SELECT 'parent', id, 0 FROM parent ORDER BY 1, 2";
        for (what, script) in SCRIPTS {
            let send = |raw: &mut Raw| {
                for sql in *script {
                    raw.query(sql);
                }
            };
            both.do_alike(what, send, query).await;
        }
        both.do_alike(
            "by the extended protocol, in an implicit transaction",
            |raw| {
                for sql in [
                    "SET CONSTRAINTS ALL DEFERRED",
                    "INSERT INTO patient VALUES (5, 5)",
                    "INSERT INTO parent VALUES (5)",
                ] {
                    raw.parse("", sql).bind("", "").execute("", 0);
                }
                raw.sync();
            },
            query,
        )
        .await;

        // Many at once, which replicas would put together, and others among them that they do put together.
        let work = |worker: i32| {
            let three = &both.three;
            async move {
                let client = three.client().await;
                let add = client.prepare("INSERT INTO parent VALUES ($1)").await.unwrap();
                for round in 0..20 {
                    let id = 1000 * worker + 2 * round;
                    let late = id + 1;
                    client.execute(&add, &[&id]).await.unwrap();
                    client
                        .batch_execute(&format!(
                            "BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO patient VALUES ({id}, {late});
                             INSERT INTO parent VALUES ({late}); COMMIT"
                        ))
                        .await
                        .unwrap();
                }
            }
        };
        tokio::join!(work(1), work(2), work(3), work(4));
        let counts = "SELECT (SELECT count(*) FROM patient WHERE id >= 1000), (SELECT count(*) FROM parent WHERE id >= 1000)";
        assert_eq!(both.three.everywhere(counts).await, "80 160");
    });
}
