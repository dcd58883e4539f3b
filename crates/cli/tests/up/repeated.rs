//! Texts of one class that come again and again are executed in a prepared form: nobody may notice.

use super::clients::{block_on, connect, json, rows};
use super::{Up, folder};
use onecopy_cluster::ClusterFile;
use tokio_postgres::{Client, SimpleQueryMessage};

/// What a text is answered with: names of columns, cells, numbers of rows; or the error.
async fn answer(client: &Client, sql: &str) -> Vec<String> {
    match client.simple_query(sql).await {
        Ok(messages) => messages
            .iter()
            .map(|message| match message {
                SimpleQueryMessage::RowDescription(columns) => {
                    columns.iter().map(|column| column.name().to_owned()).collect::<Vec<_>>().join("|")
                }
                SimpleQueryMessage::Row(row) => {
                    format!("{:?}", (0..row.len()).map(|i| row.get(i)).collect::<Vec<_>>())
                }
                SimpleQueryMessage::CommandComplete(rows) => rows.to_string(),
                _ => "another message".to_owned(),
            })
            .collect(),
        Err(error) => match error.as_db_error() {
            Some(db) => vec![format!("{} {:?} {:?}", db.code().code(), db.message(), db.detail())],
            None => panic!("{sql}: {error}"),
        },
    }
}

/// Two databases with the same contents: one behind onecopy, one by itself.
async fn prepare(clients: [&Client; 2]) {
    for client in clients {
        client
            .batch_execute(
                "CREATE TABLE stock (id int PRIMARY KEY, small smallint, big bigint, price numeric(8, 2), name text);
                 INSERT INTO stock VALUES (-5, 1, 1, 1.5, 'minus');
                 INSERT INTO stock SELECT n, n % 7, n::bigint * 10000000000, n * 1.25, 'item ' || n
                 FROM generate_series(1, 50) n",
            )
            .await
            .unwrap();
    }
}

#[test]
fn a_repeated_text_is_answered_like_the_first_one() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        // A database of the same server that onecopy does not serve.
        connect(&file.replicas[0].dsn).await.batch_execute("CREATE DATABASE alone").await.unwrap();
        let alone = connect(&file.replicas[0].dsn.replace("dbname=postgres", "dbname=alone")).await;
        prepare([&client, &alone]).await;
        let texts = [
            |n: i64| format!("SELECT * FROM stock WHERE id = {n}"),
            |n: i64| format!("SELECT id, name, price * 2 AS twice FROM stock WHERE id = -{n}"),
            |n: i64| format!("SELECT name FROM stock WHERE id = {n} AND big > {} LIMIT 1", n * 9_999_999_999),
            |n: i64| format!("SELECT price FROM stock WHERE id = {n} AND price >= {n}.25 FOR UPDATE"),
            |n: i64| format!("SELECT FROM stock WHERE id = {n}"),
            |n: i64| format!("SELECT 10 / (id - 3) FROM stock WHERE id = {n}"),
            |n: i64| format!("UPDATE stock SET small = small + {n}, price = price - 0.5 WHERE id = {n}"),
            |n: i64| format!("UPDATE stock SET big = big * {n}00000000 WHERE id = {n}"),
            |n: i64| format!("UPDATE stock SET small = {n}0000 WHERE id = {n}"),
            |n: i64| format!("INSERT INTO stock VALUES ({n}00, {n}, {n}, {n}.999, NULL)"),
            |n: i64| format!("INSERT INTO stock VALUES ({n}, 1, 1, 1, NULL)"),
            |n: i64| format!("DELETE FROM stock WHERE id = {n}00"),
            |n: i64| {
                format!(
                    "BEGIN; UPDATE stock SET small = {n} WHERE id = {n}; SELECT small FROM stock WHERE id = {n}; COMMIT"
                )
            },
        ];
        for text in texts {
            for n in 1..=8 {
                let sql = text(n);
                assert_eq!(answer(&client, &sql).await, answer(&alone, &sql).await, "{sql}, time {n}");
            }
        }
        let all = "SELECT * FROM stock ORDER BY id";
        assert_eq!(rows(&client, all).await, rows(&alone, all).await);
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
    });
}

#[test]
fn a_repeated_text_follows_changed_definitions() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let file = ClusterFile::read(dir.path()).unwrap();
        let (client, other) = (connect(&file.client.dsn).await, connect(&file.client.dsn).await);
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, a int)").await.unwrap();
        client.batch_execute("INSERT INTO t SELECT n, n FROM generate_series(1, 99) n").await.unwrap();
        let read = |n: i32| format!("SELECT * FROM t WHERE id = {n}");
        for n in 1..20 {
            assert_eq!(rows(&client, &read(n)).await, format!("{n} {n}"));
        }
        other.batch_execute("ALTER TABLE t ADD COLUMN b text DEFAULT 'new'").await.unwrap();
        for n in 20..30 {
            assert_eq!(rows(&client, &read(n)).await, format!("{n} {n} new"));
        }
        // A transaction that changes them itself.
        client.batch_execute("BEGIN; ALTER TABLE t DROP COLUMN a").await.unwrap();
        for n in 40..50 {
            assert_eq!(rows(&client, &read(n)).await, format!("{n} new"));
        }
        client.batch_execute("ROLLBACK").await.unwrap();
        for n in 50..60 {
            assert_eq!(rows(&client, &read(n)).await, format!("{n} {n} new"));
        }
    });
}
