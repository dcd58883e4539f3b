//! Portals of statements that write, of which clients fetch some rows only, or execute twice: every replica holds all.

use super::clients::{block_on, connect, rows};
use super::cursors::Raw;
use super::three::Three;
use futures_util::{StreamExt, pin_mut};
use tokio_postgres::Client;

const TABLES: &str = "CREATE TABLE numbered (id serial, k int);
     CREATE TABLE drawn (id int PRIMARY KEY, u uuid DEFAULT gen_random_uuid());
     CREATE TABLE plain (id int PRIMARY KEY, v int);
     INSERT INTO plain SELECT n, 0 FROM generate_series(1, 20) n";

async fn prepare() -> (Three, Client) {
    let three = Three::start();
    let client = three.client().await;
    client.batch_execute(TABLES).await.unwrap();
    (three, client)
}

/// The same tables in a database of one server by itself, which says what a client is to hear.
struct Alone(String);

impl Alone {
    async fn beside(three: &Three) -> Alone {
        let server = &three.file.replicas[0].dsn;
        connect(server).await.batch_execute("CREATE DATABASE alone").await.unwrap();
        let dsn = server.replace("dbname=postgres", "dbname=alone");
        assert_ne!(dsn, *server);
        connect(&dsn).await.batch_execute(TABLES).await.unwrap();
        Alone(dsn)
    }

    /// Letters and command tags, and what errors say, are those of the server.
    fn assert_answers_alike(&self, raw: &mut Raw, three: &Three) {
        let (mut expected, mut found) = (raw.clone(), raw.clone());
        assert_eq!(
            found.outline(&three.file.client.dsn),
            expected.outline(&self.0),
            "{}",
            String::from_utf8_lossy(raw.sent())
        );
    }
}

#[test]
fn rows_that_were_not_fetched_are_written_everywhere_and_no_row_twice() {
    block_on(async {
        let (three, client) = prepare().await;
        let alone = Alone::beside(&three).await;
        let cases: [(&str, &[u32]); 8] = [
            ("INSERT INTO numbered (k) SELECT n FROM generate_series(1, 10) n RETURNING id", &[1]),
            ("INSERT INTO drawn (id) VALUES (1), (2), (3) RETURNING id", &[1]),
            ("INSERT INTO drawn (id) VALUES (4), (5), (6) RETURNING u", &[2, 1, 5]),
            ("INSERT INTO numbered (k) SELECT n FROM generate_series(1, 3) n RETURNING id", &[2, 2]),
            ("UPDATE plain SET v = v + 1 WHERE id = 7 RETURNING v", &[0, 0]),
            ("UPDATE plain SET v = v + 1 WHERE id < 8 RETURNING v", &[3, 0]),
            (
                "DELETE FROM plain WHERE id IN (SELECT id FROM plain ORDER BY random() LIMIT 5) RETURNING id",
                &[1],
            ),
            ("UPDATE plain SET v = v + 1 WHERE v >= 0", &[1]),
        ];
        for (sql, executes) in cases {
            let mut raw = Raw::default();
            raw.parse("", sql).bind("p", "");
            for max_rows in executes {
                raw.execute("p", *max_rows);
            }
            alone.assert_answers_alike(raw.sync(), &three);
        }
        let counts = "SELECT (SELECT count(*) FROM numbered), (SELECT count(*) FROM drawn), (SELECT count(*) FROM plain)";
        assert_eq!(rows(&client, counts).await, "13 6 15");
        three.assert_identical();
    });
}

/// As pgjdbc does, which asks for one row wherever it wants none: such a limit means nothing to a write that returns none.
#[test]
fn writes_that_return_no_rows_are_executed_whole_whatever_the_limit() {
    block_on(async {
        let (three, client) = prepare().await;
        let alone = Alone::beside(&three).await;
        for sql in [
            "INSERT INTO numbered (k) SELECT n FROM generate_series(1, 10) n",
            "INSERT INTO numbered (k) VALUES (1), (2), (3)",
            "INSERT INTO drawn (id) SELECT n FROM generate_series(1, 9) n",
            "INSERT INTO drawn (id) VALUES (10), (11)",
            "UPDATE drawn SET u = gen_random_uuid() WHERE id > 1",
            "DELETE FROM plain WHERE id IN (SELECT id FROM plain ORDER BY random() LIMIT 5)",
            "UPDATE plain SET v = v + 1 WHERE id > 0",
            "INSERT INTO plain SELECT id + (SELECT max(id) FROM plain), 7 FROM plain ORDER BY random() LIMIT 4",
        ] {
            for limit in [1, 2] {
                let sql = if limit == 2 { sql.replace("> 0", "> 1000") } else { sql.to_owned() };
                let mut raw = Raw::default();
                if limit == 2 {
                    raw.query("BEGIN").query("DELETE FROM drawn").query("SAVEPOINT s");
                }
                raw.parse("w", &sql).bind("", "w").describe("").execute("", limit).sync();
                if limit == 2 {
                    raw.query("ROLLBACK TO s").bind("", "w").execute("", limit).sync().query("ROLLBACK");
                }
                alone.assert_answers_alike(&mut raw, &three);
            }
        }
        let counts = "SELECT (SELECT count(*) FROM numbered), (SELECT count(*) FROM drawn), (SELECT count(*) FROM plain)";
        assert_eq!(rows(&client, counts).await, "13 11 19");
        three.assert_identical();
    });
}

/// An error that is found before a server is asked comes after the answers to what stands before it in its pipeline.
#[test]
fn errors_come_after_the_answers_to_the_messages_before_them() {
    const TABLES: &str = "CREATE TABLE grown (id int);
         CREATE TABLE later (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)";
    block_on(async {
        let (three, client) = prepare().await;
        let alone = Alone::beside(&three).await;
        client.batch_execute(TABLES).await.unwrap();
        connect(&alone.0).await.batch_execute(TABLES).await.unwrap();
        let twice = "INSERT INTO later VALUES (1), (1)";
        let cases: [&dyn Fn(&mut Raw); 5] = [
            // Bind of a statement whose columns have changed.
            &|raw| {
                raw.parse("g", "SELECT * FROM grown").describe_statement("g").sync();
                raw.query("ALTER TABLE grown ADD v int");
                raw.parse("a", "SELECT 1").describe_statement("a").bind("", "g").execute("", 0).sync();
                raw.bind("", "a").execute("", 0).sync();
            },
            &|raw| {
                raw.query("BEGIN").query(twice).parse("c", "COMMIT").describe_statement("c").bind("", "c");
                raw.execute("", 0).sync().parse("c", "SELECT 1").sync().bind("", "c").sync();
            },
            &|raw| {
                raw.query("BEGIN")
                    .parse("", twice)
                    .bind("", "")
                    .execute("", 0)
                    .parse("c", "COMMIT")
                    .bind("", "c");
                raw.execute("", 0).sync();
            },
            &|raw| {
                raw.query("BEGIN").parse("", "ROLLBACK TO nix").bind("", "").execute("", 0).sync();
            },
            &|raw| {
                raw.parse("", "ROLLBACK TO nix").bind("", "").execute("", 0).sync();
            },
        ];
        for case in cases {
            let mut raw = Raw::default();
            case(&mut raw);
            alone.assert_answers_alike(raw.query("ROLLBACK"), &three);
        }
        // That there is no such statement is found when its EXECUTE is prepared.
        let mut raw = Raw::default();
        raw.parse("a", "SELECT 1").parse("", "EXECUTE nix").sync().bind("", "a").execute("", 0).sync();
        assert_eq!(raw.letters(&three.file.client.dsn), "1E 2D[SELECT 1]");
        three.assert_identical();
    });
}

/// However many portals there are: what is kept until it is fetched has one bound.
#[test]
fn rows_kept_for_portals_are_bounded_together() {
    block_on(async {
        let (three, _) = prepare().await;
        let wide = "UPDATE plain SET v = v + 1 RETURNING repeat('x', 2000000)";
        let after = |between: &dyn Fn(&mut Raw)| {
            let mut raw = Raw::default();
            raw.query("BEGIN").parse("w", wide).bind("p", "w").execute("p", 1).sync();
            between(&mut raw);
            raw.bind("q", "w").execute("q", 1).sync().query("ROLLBACK");
            raw.letters(&three.file.client.dsn)
        };
        assert_eq!(after(&|_| {}), "[BEGIN] 12Ds E [ROLLBACK]");
        assert_eq!(
            after(&|raw| {
                raw.close("p").sync();
            }),
            "[BEGIN] 12Ds 3 2Ds [ROLLBACK]"
        );
    });
}

/// What a server refuses to execute again is not executed again: neither in its transaction nor after it.
#[test]
fn portals_are_executed_once_and_go_with_their_transaction_or_savepoint() {
    let add = "UPDATE plain SET v = v + 1 WHERE id = 1";
    let add_some = "UPDATE plain SET v = v + 1 WHERE id < 4 RETURNING id";
    let cases: [fn(&mut Raw); 22] = [
        |raw| {
            raw.bind("", "w").execute("", 0).execute("", 0).sync();
        },
        |raw| {
            raw.bind("", "w").execute("", 1).flush().execute("", 1).sync();
        },
        |raw| {
            raw.query("BEGIN").bind("p", "w").execute("p", 0).sync().execute("p", 0).sync();
        },
        |raw| {
            raw.query("BEGIN").bind("p", "w").execute("p", 0).sync();
            raw.query("COMMIT").execute("p", 0).sync();
        },
        |raw| {
            raw.query("BEGIN").parse("", "COMMIT").bind("p", "w").execute("p", 0).bind("", "").execute("", 0);
            raw.execute("p", 0).sync();
        },
        |raw| {
            raw.query("BEGIN").parse("", "ROLLBACK").bind("p", "w").bind("", "").execute("", 0);
            raw.execute("p", 0).sync();
        },
        |raw| {
            raw.query("BEGIN").bind("p", "w").sync().query("ROLLBACK").execute("p", 0).sync();
        },
        |raw| {
            raw.query("BEGIN").bind("p", "r").execute("p", 1).sync().query("COMMIT").execute("p", 1).sync();
        },
        |raw| {
            raw.query("BEGIN").query("SAVEPOINT s").bind("p", "w").execute("p", 0).sync();
            raw.query("ROLLBACK TO s").execute("p", 0).sync();
        },
        |raw| {
            raw.query("BEGIN").query("SAVEPOINT s").bind("p", "r").execute("p", 1).sync();
            raw.query("ROLLBACK TO s").execute("p", 1).sync();
        },
        |raw| {
            raw.query("BEGIN").bind("p", "r").execute("p", 1).sync().query("SAVEPOINT s");
            raw.execute("p", 1).sync().query("ROLLBACK TO s").execute("p", 1).sync();
        },
        |raw| {
            raw.query("BEGIN").query("SAVEPOINT a").query("SAVEPOINT b").bind("p", "w").sync();
            raw.query("RELEASE b").query("ROLLBACK TO a").execute("p", 0).sync();
        },
        |raw| {
            raw.query("BEGIN").query("SAVEPOINT a").bind("p", "w").sync().query("SAVEPOINT b");
            raw.query("ROLLBACK TO b").execute("p", 0).sync().query("COMMIT");
        },
        |raw| {
            raw.query("BEGIN").bind("p", "w").sync().query("SAVEPOINT s").execute("p", 0).sync();
            raw.query("ROLLBACK TO s").execute("p", 0).sync();
        },
        |raw| {
            raw.bind("p", "w").flush().bind("p", "w").execute("p", 0).sync();
        },
        |raw| {
            raw.query("BEGIN").bind("p", "w").execute("p", 0).sync().query("CLOSE p");
            raw.bind("p", "w").execute("p", 0).sync().close("p").bind("p", "w").execute("p", 0).sync();
            raw.query("COMMIT");
        },
        |raw| {
            raw.query("BEGIN")
                .parse("fails", "UPDATE plain SET v = 1 / (id - 3) RETURNING v")
                .bind("p", "fails");
            raw.sync().query("SAVEPOINT s").execute("p", 1).sync().execute("p", 1).sync();
            raw.query("ROLLBACK TO s").execute("p", 1).sync();
        },
        |raw| {
            raw.parse("", "BEGIN").bind("", "").execute("", 0).execute("", 0).sync();
        },
        |raw| {
            raw.parse("", "").bind("", "").execute("", 0).execute("", 1).sync();
        },
        |raw| {
            raw.query("BEGIN").parse("", "SAVEPOINT s").bind("", "").execute("", 0).execute("", 0).sync();
        },
        |raw| {
            raw.query("BEGIN").parse("", "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) DELETE FROM plain");
            raw.bind("p", "").execute("p", 1).execute("p", 0).execute("p", 0).sync();
        },
        |raw| {
            raw.query("BEGIN").bind("p", "r").execute("p", 2).execute("p", 2).execute("p", 0).sync();
            raw.query("COMMIT").bind("p", "r").execute("p", 0).execute("p", 0).sync();
        },
    ];
    block_on(async {
        let (three, client) = prepare().await;
        let alone = Alone::beside(&three).await;
        let server = connect(&alone.0).await;
        for case in cases {
            let mut raw = Raw::default();
            case(raw.parse("w", add).parse("r", add_some).sync());
            alone.assert_answers_alike(raw.query("ROLLBACK"), &three);
            let sum = "SELECT sum(v), count(*) FROM plain";
            assert_eq!(
                rows(&client, sum).await,
                rows(&server, sum).await,
                "{}",
                String::from_utf8_lossy(raw.sent())
            );
        }
        three.assert_identical();
    });
}

/// As drivers fetch by cursors of their own, inside a transaction.
#[test]
fn a_portal_that_writes_is_recorded_once_however_it_is_fetched() {
    block_on(async {
        let (three, mut client) = prepare().await;
        let update = client.prepare("UPDATE plain SET v = v + 1 WHERE id <= $1 RETURNING id").await.unwrap();
        let insert = "INSERT INTO drawn (id) SELECT n + $1 FROM generate_series(1, 9) n RETURNING u";
        let insert = client.prepare(insert).await.unwrap();
        for (base, end) in [(0, "commit"), (100, "roll back")] {
            let txn = client.transaction().await.unwrap();
            let portal = txn.bind(&update, &[&10]).await.unwrap();
            let mut fetched = 0;
            loop {
                let stream = txn.query_portal_raw(&portal, 4).await.unwrap();
                pin_mut!(stream);
                let mut count = 0;
                while let Some(row) = stream.next().await {
                    row.unwrap();
                    count += 1;
                }
                fetched += count;
                if count < 4 {
                    break;
                }
            }
            assert_eq!(fetched, 10);
            let portal = txn.bind(&insert, &[&base]).await.unwrap();
            assert_eq!(txn.query_portal(&portal, 2).await.unwrap().len(), 2);
            txn.batch_execute("UPDATE plain SET v = v + 10 WHERE id = 1").await.unwrap();
            assert_eq!(txn.query_portal(&portal, 3).await.unwrap().len(), 3);
            match end {
                "commit" => txn.commit().await.unwrap(),
                _ => txn.rollback().await.unwrap(),
            }
            assert_eq!(
                rows(&client, "SELECT count(*), min(v), max(v) FROM plain WHERE id <= 10").await,
                "10 1 11"
            );
            assert_eq!(rows(&client, "SELECT count(*) FROM drawn").await, "9");
        }
        three.assert_identical();
    });
}

/// Messages before a command that onecopy answers itself are answered by a server, as ever.
#[test]
fn messages_before_a_command_of_the_session_are_not_made_up() {
    block_on(async {
        let (three, _) = prepare().await;
        let dsn = &three.file.client.dsn;
        let before_begin = |sql: &str| {
            let mut raw = Raw::default();
            raw.parse("", sql).describe_statement("").parse("", "BEGIN").describe_statement("");
            raw.bind("", "").execute("", 0).sync().letters(dsn)
        };
        assert_eq!(before_begin("SELECT id, v FROM plain WHERE id = $1"), "1tT1tn2[BEGIN]");
        assert_eq!(before_begin("SELECT * FROM nix"), "E");
        // An error that is found here comes after the answers to what stands before it, and what was prepared stays so.
        let mut raw = Raw::default();
        raw.parse("a", "SELECT 1").parse("a", "SELECT 2").sync();
        raw.bind("", "a").execute("", 0).sync();
        assert_eq!(raw.letters(dsn), "1E 2D[SELECT 1]");
        // Messages that a query follows without a Sync are answered before it.
        let mut raw = Raw::default();
        raw.parse("a", "SELECT 1").close_statement("a").query("SELECT 3");
        assert_eq!(raw.letters(dsn), "13TD[SELECT 1]");
        let mut raw = Raw::default();
        raw.query("START TRANSACTION").parse("", "SELECT 1 / 0").bind("", "").execute("", 0).sync();
        raw.query("BEGIN").query("ROLLBACK");
        assert_eq!(raw.letters(dsn), "[START TRANSACTION] 1E E [ROLLBACK]");
    });
}

/// Portals of different statements are bound before any of them is executed: each is recorded as what it is.
#[test]
fn portals_bound_ahead_of_others_are_recorded_as_themselves() {
    block_on(async {
        let (three, mut client) = prepare().await;
        let add = client.prepare("UPDATE plain SET v = v + $1 WHERE id = 1").await.unwrap();
        let double =
            client.prepare("UPDATE plain SET v = v * $1 + 1 WHERE id = 1 RETURNING v").await.unwrap();
        let number = client
            .prepare("INSERT INTO numbered (k) SELECT n + $1 FROM generate_series(1, 3) n RETURNING id")
            .await
            .unwrap();
        let draw = client.prepare("INSERT INTO drawn (id) VALUES ($1) RETURNING u").await.unwrap();
        let txn = client.transaction().await.unwrap();
        let add = txn.bind(&add, &[&3]).await.unwrap();
        let double = txn.bind(&double, &[&5]).await.unwrap();
        let number = txn.bind(&number, &[&10]).await.unwrap();
        let draw = txn.bind(&draw, &[&1]).await.unwrap();
        assert_eq!(txn.query_portal(&draw, 0).await.unwrap().len(), 1);
        txn.query_portal(&add, 0).await.unwrap();
        assert_eq!(txn.query_portal(&number, 2).await.unwrap().len(), 2);
        let doubled = txn.query_portal(&double, 1).await.unwrap();
        assert_eq!(doubled[0].get::<_, i32>(0), 16);
        assert_eq!(txn.query_portal(&number, 2).await.unwrap().len(), 1);
        txn.commit().await.unwrap();
        three.assert_identical();
        // In one pipeline, before one Sync.
        let mut raw = Raw::default();
        raw.parse("a", "UPDATE plain SET v = 100 WHERE id = 2").bind("a", "a");
        raw.parse("b", "UPDATE plain SET v = v + 1 WHERE id = 2").bind("b", "b");
        raw.execute("a", 0).execute("b", 0).sync();
        assert_eq!(raw.letters(&three.file.client.dsn), "1212[UPDATE 1][UPDATE 1]");
        assert_eq!(rows(&client, "SELECT v FROM plain WHERE id = 2").await, "101");
        three.assert_identical();
    });
}
