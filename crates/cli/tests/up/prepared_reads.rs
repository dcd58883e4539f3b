//! Prepared reads outside any transaction take a shorter way than other statements: nobody may notice.

use super::clients::{block_on, connect, rows};
use super::three::Three;
use super::{Up, folder};
use futures_util::future::{join_all, join4};
use onecopy_cluster::ClusterFile;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// What a prepared statement is answered with: its rows as text, or the error.
async fn answer(client: &Client, statement: &Statement, params: Params<'_>) -> Vec<String> {
    match client.query(statement, params).await {
        Ok(rows) => rows.iter().map(|row| row.get::<_, Option<String>>(0).unwrap_or("NULL".into())).collect(),
        Err(error) => match error.as_db_error() {
            Some(db) => vec![format!("{} {:?} {:?}", db.code().code(), db.message(), db.detail())],
            None => panic!("{error}"),
        },
    }
}

/// A cluster, and a database of the same contents by itself.
async fn prepare() -> (Three, Client, Client) {
    let three = Three::start();
    let client = three.client().await;
    let server = &three.file.replicas[0].dsn;
    connect(server).await.batch_execute("CREATE DATABASE alone").await.unwrap();
    let alone = connect(&server.replace("dbname=postgres", "dbname=alone")).await;
    for client in [&client, &alone] {
        client
            .batch_execute(
                "CREATE TABLE stock (id int PRIMARY KEY, price numeric(8, 2), sold timestamptz, name text);
                 INSERT INTO stock SELECT n, n * 1.25, '2026-01-01Z'::timestamptz + n * '1 day'::interval, 'item ' || n
                 FROM generate_series(1, 50) n;
                 INSERT INTO stock VALUES (0, 0, NULL, repeat('long', 100000));
                 CREATE SCHEMA other; CREATE TABLE other.stock (id int PRIMARY KEY, price text, sold date, name int)",
            )
            .await
            .unwrap();
    }
    (three, client, alone)
}

const READS: [&str; 5] = [
    "SELECT name FROM stock WHERE id = $1",
    "SELECT (100 / (id - 3))::text FROM stock WHERE id = $1",
    "SELECT sold::text FROM stock WHERE id = $1",
    "SELECT sum(price)::text FROM stock WHERE id <= $1",
    "SELECT row_to_json(stock)::text FROM stock WHERE id BETWEEN $1 AND 3 ORDER BY id",
];

/// Changes after which what was prepared before is answered differently, or with an error.
const CHANGES: [&str; 9] = [
    "UPDATE stock SET name = 'sold out', price = price / 2 WHERE id > 2",
    "SET TimeZone = 'Asia/Tokyo'",
    "SET DateStyle = 'German'",
    "ALTER TABLE stock ADD COLUMN added int DEFAULT 7",
    "ALTER TABLE stock ALTER COLUMN price TYPE text",
    "ALTER TABLE stock ALTER COLUMN price TYPE numeric(8, 2) USING price::numeric",
    "SET search_path = other, public",
    "SET search_path = public",
    "RESET ALL",
];

#[test]
fn a_prepared_read_is_answered_as_by_one_server() {
    block_on(async {
        let (_three, client, alone) = prepare().await;
        let mut prepared = Vec::new();
        for sql in READS {
            prepared.push((sql, client.prepare(sql).await.unwrap(), alone.prepare(sql).await.unwrap()));
        }
        for change in ["SELECT 1"].iter().chain(&CHANGES) {
            for client in [&client, &alone] {
                client.batch_execute(change).await.unwrap();
            }
            for (sql, here, there) in &prepared {
                // More than there are lanes that still have to prepare it.
                for id in [1, 2, 3, 0, 49, 51, 2, 3, 1] {
                    let (ours, theirs) =
                        (answer(&client, here, &[&id]).await, answer(&alone, there, &[&id]).await);
                    assert_eq!(ours, theirs, "{sql} of {id} after {change}");
                }
                let none: Option<i32> = None;
                let (ours, theirs) =
                    (answer(&client, here, &[&none]).await, answer(&alone, there, &[&none]).await);
                assert_eq!(ours, theirs, "{sql} of NULL after {change}");
            }
        }
    });
}

/// Messages that are sent without waiting for answers: each is answered in its place, and reads see what went before.
#[test]
fn prepared_reads_in_a_pipeline_see_the_writes_before_them() {
    block_on(async {
        let (three, client, _) = prepare().await;
        let read = client.prepare("SELECT price::text FROM stock WHERE id = $1").await.unwrap();
        let write = client.prepare("UPDATE stock SET price = $2::int WHERE id = $1").await.unwrap();
        let wrong = client.prepare("SELECT (1 / $1)::text").await.unwrap();
        let other = three.client().await;
        let read_by_other = other.prepare("SELECT price::text FROM stock WHERE id = $1").await.unwrap();
        for round in 0..20_i32 {
            let expected = vec![format!("{round}.00")];
            let written = async {
                client.execute(&write, &[&5, &round]).await.unwrap();
                // It was acknowledged: whoever reads from now on sees it.
                assert_eq!(answer(&other, &read_by_other, &[&5]).await, expected);
            };
            let reads = join_all((0..4).map(|_| answer(&client, &read, &[&5])));
            let failed = answer(&client, &wrong, &[&0]);
            let ((), reads, failed, again) =
                join4(written, reads, failed, answer(&client, &read, &[&5])).await;
            assert!(reads.iter().all(|read| *read == expected), "{reads:?}");
            assert!(failed[0].starts_with("22012"), "{failed:?}");
            assert_eq!(again, expected);
        }
        three.assert_identical();
    });
}

/// Whoever knows the columns of a prepared statement reads the rows by them: if they are others now, it must hear so.
#[test]
fn a_statement_whose_columns_have_changed_fails_until_it_is_prepared_again() {
    block_on(async {
        let (three, client, alone) = prepare().await;
        let other = three.client().await;
        let sqls = [
            "SELECT * FROM stock WHERE id = $1",
            "UPDATE stock SET sold = NULL WHERE id = $1 RETURNING price",
            "SELECT name FROM stock WHERE id = $1",
        ];
        let code = |result: Result<_, tokio_postgres::Error>| match result {
            Ok(_) => "served".to_owned(),
            Err(error) => error.code().unwrap().code().to_owned(),
        };
        for executed_before in [false, true] {
            let mut prepared = Vec::new();
            for sql in sqls {
                prepared.push((sql, client.prepare(sql).await.unwrap(), alone.prepare(sql).await.unwrap()));
            }
            for change in [
                "SELECT 1",
                "ALTER TABLE stock RENAME price TO cost; ALTER TABLE stock ADD price int",
                "ALTER TABLE stock DROP price; ALTER TABLE stock RENAME cost TO price",
                "ALTER TABLE stock ALTER price TYPE numeric(9, 2)",
                "ALTER TABLE stock ALTER price TYPE numeric(8, 2)",
            ] {
                // Others hear of it as well.
                other.batch_execute(change).await.unwrap();
                alone.batch_execute(change).await.unwrap();
                if change == "SELECT 1" && !executed_before {
                    continue;
                }
                for (sql, here, there) in &prepared {
                    let (ours, theirs) = (client.query(here, &[&7]).await, alone.query(there, &[&7]).await);
                    if let Err(error) = &ours {
                        assert_eq!(error.as_db_error().unwrap().routine(), Some("RevalidateCachedQuery"));
                    }
                    assert_eq!(code(ours), code(theirs), "{sql} after {change}, before: {executed_before}");
                }
            }
        }
        three.assert_identical();
    });
}

/// What a session prepares under settings or definitions of its own is nobody else's.
#[test]
fn what_is_prepared_inside_a_transaction_with_settings_of_its_own_is_not_used_by_others() {
    block_on(async {
        // One replica: whoever is served by the same thread gets the same lane.
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let client = connect(&dsn).await;
        let (mut others, mut known) = (Vec::new(), Vec::new());
        client.batch_execute("CREATE TABLE t (id bigint PRIMARY KEY, v bigint)").await.unwrap();
        let insert = "INSERT INTO t VALUES ($1, $2)";
        for _ in 0..4 {
            let other = connect(&dsn).await;
            known.push(other.prepare(insert).await.unwrap());
            others.push(other);
        }
        // Or nothing is shown here: somebody is served by the lane of `client`, and reads texts under the same settings,
        // although definitions have changed since that began.
        let own = client.prepare(insert).await.unwrap();
        let lane_of = async |of: &Client, known: &Statement, id: i64| {
            of.batch_execute("BEGIN").await.unwrap();
            of.execute(known, &[&id, &id]).await.unwrap();
            // It reads a table, or it would be answered beside the transaction.
            let prepared =
                format!("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '{insert}%'");
            let sql = format!("SELECT pg_backend_pid(), ({prepared}) FROM t WHERE id = {id}");
            let found = rows(of, &sql).await;
            of.batch_execute("COMMIT").await.unwrap();
            found
        };
        let lane = lane_of(&client, &own, -2).await;
        assert!(lane.ends_with(" 1"), "{lane}");
        let mut shared = 0;
        for (id, (other, insert)) in (-6..-2).zip(others.iter().zip(&known)) {
            shared += usize::from(lane_of(other, insert, id).await == lane);
        }
        assert!(shared > 0, "nobody shares the lane of `client` and what is prepared there");
        let date = "SELECT '01/02/2024'::date::text";
        for _ in 0..6 {
            client.batch_execute("BEGIN; SELECT 1; SET LOCAL DateStyle = 'SQL, DMY'").await.unwrap();
            let read = client.prepare(date).await.unwrap();
            assert_eq!(answer(&client, &read, &[]).await, ["01/02/2024"]);
            client.batch_execute("COMMIT").await.unwrap();
            for other in &others {
                let read = other.prepare(date).await.unwrap();
                assert_eq!(answer(other, &read, &[]).await, ["2024-01-02"]);
            }
        }
        let mut id = 0_i64;
        for end in
            ["ROLLBACK", "ROLLBACK TO s; INSERT INTO t VALUES (-1, 7); DELETE FROM t WHERE id = -1; COMMIT"]
        {
            client.batch_execute("BEGIN; SAVEPOINT s; ALTER TABLE t ALTER v TYPE float8").await.unwrap();
            let own = client.prepare(insert).await.unwrap();
            client.execute(&own, &[&0_i64, &1.5_f64]).await.unwrap();
            client.batch_execute(end).await.unwrap();
            for (other, insert) in others.iter().zip(&known) {
                for _ in 0..3 {
                    id += 1;
                    other.execute(insert, &[&id, &id]).await.unwrap();
                }
            }
        }
        let wrong = "SELECT count(*)::text FROM t WHERE v <> id";
        let wrong = client.prepare(wrong).await.unwrap();
        assert_eq!(answer(&client, &wrong, &[]).await, ["0"]);
    });
}

/// The steps of one client, and whether its statement is served after each.
#[test]
fn what_a_client_was_told_under_other_settings_is_not_taken_for_the_present() {
    block_on(async {
        let (three, client, alone) = prepare().await;
        let sql = "SELECT * FROM stock WHERE id = $1";
        let scenarios: [&[&str]; 4] = [
            &["BEGIN; SET LOCAL search_path = other", "prepare", "COMMIT", "read", "read"],
            &["BEGIN; ALTER TABLE stock ADD x int", "prepare", "read", "ROLLBACK", "read", "read"],
            &[
                "prepare",
                "BEGIN; SELECT 1",
                "fail",
                "ALTER TABLE stock ADD y int",
                "ROLLBACK",
                "read",
                "read",
            ],
            &["prepare", "BEGIN; SET LOCAL search_path = other; SELECT 1", "read", "ROLLBACK", "read"],
        ];
        let other = three.client().await;
        for scenario in scenarios {
            let mut outcomes = Vec::new();
            for (client, changes) in [(&client, &other), (&alone, &alone_twin(&three).await)] {
                let (mut prepared, mut seen) = (None, Vec::new());
                for step in scenario {
                    match *step {
                        "prepare" => prepared = Some(client.prepare(sql).await.unwrap()),
                        "read" => {
                            let result = client.query(prepared.as_ref().unwrap(), &[&7]).await;
                            seen.push(
                                result
                                    .map_or_else(|e| e.code().unwrap().code().to_owned(), |_| "rows".into()),
                            );
                        }
                        "fail" => {
                            client.batch_execute("SELECT 1 / 0").await.unwrap_err();
                            seen.push("failed".into());
                        }
                        step if step.starts_with("ALTER") => changes.batch_execute(step).await.unwrap(),
                        step => client.batch_execute(step).await.unwrap(),
                    }
                }
                outcomes.push(seen);
            }
            assert_eq!(outcomes[0], outcomes[1], "{scenario:?}");
        }
    });
}

/// Another session of the database by itself.
async fn alone_twin(three: &Three) -> Client {
    connect(&three.file.replicas[0].dsn.replace("dbname=postgres", "dbname=alone")).await
}
