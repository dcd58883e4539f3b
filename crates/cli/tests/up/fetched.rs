//! Portals of statements that write, of which clients fetch some rows only, or execute twice: every replica holds all.

use super::clients::{block_on, connect, rows};
use super::parameter;
use super::three::Three;
use futures_util::{StreamExt, pin_mut};
use std::io::{Read, Write};
use std::net::TcpStream;
use tokio_postgres::Client;

async fn prepare() -> (Three, Client) {
    let three = Three::start();
    let client = three.client().await;
    client
        .batch_execute(
            "CREATE TABLE numbered (id serial, k int);
             CREATE TABLE drawn (id int PRIMARY KEY, u uuid DEFAULT gen_random_uuid());
             CREATE TABLE plain (id int PRIMARY KEY, v int);
             INSERT INTO plain SELECT n, 0 FROM generate_series(1, 20) n",
        )
        .await
        .unwrap();
    (three, client)
}

/// The messages that a server sends to some of a client's, by their first letters; CommandComplete by its words.
struct Raw(TcpStream);

impl Raw {
    fn connect(dsn: &str) -> Raw {
        let port: u16 = parameter(dsn, "port").parse().unwrap();
        let mut raw = Raw(TcpStream::connect(("127.0.0.1", port)).unwrap());
        let mut startup = 196_608_i32.to_be_bytes().to_vec();
        startup.extend_from_slice(b"user\0");
        startup.extend_from_slice(parameter(dsn, "user").as_bytes());
        startup.extend_from_slice(b"\0database\0postgres\0\0");
        let len = (startup.len() + 4) as i32;
        raw.0.write_all(&[&len.to_be_bytes()[..], &startup].concat()).unwrap();
        raw.answer();
        raw
    }

    fn answer(&mut self) -> String {
        let mut shown = String::new();
        loop {
            let mut head = [0; 5];
            self.0.read_exact(&mut head).unwrap();
            let len = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4;
            let mut body = vec![0; len];
            self.0.read_exact(&mut body).unwrap();
            match head[0] {
                b'C' => shown += &format!("[{}]", String::from_utf8_lossy(&body[..len - 1])),
                b'Z' => return shown,
                tag => shown.push(tag as char),
            }
        }
    }

    /// Parse, Bind to the portal "p", and Executes of so many rows; then Sync.
    fn run(&mut self, sql: &str, executes: &[i32]) -> String {
        let mut messages = Vec::new();
        let mut put = |tag: u8, body: &[u8]| {
            messages.push(tag);
            messages.extend_from_slice(&(body.len() as i32 + 4).to_be_bytes());
            messages.extend_from_slice(body);
        };
        put(b'P', &[b"\0", sql.as_bytes(), b"\0\0\0"].concat());
        put(b'B', b"p\0\0\0\0\0\0\0\0");
        for max_rows in executes {
            put(b'E', &[b"p\0", &max_rows.to_be_bytes()[..]].concat());
        }
        put(b'S', b"");
        self.0.write_all(&messages).unwrap();
        self.answer()
    }
}

#[test]
fn rows_that_were_not_fetched_are_written_everywhere_and_no_row_twice() {
    block_on(async {
        let (three, client) = prepare().await;
        let server = &three.file.replicas[0].dsn;
        let alone = connect(server).await;
        alone.batch_execute("CREATE DATABASE alone").await.unwrap();
        let mut raw = Raw::connect(&three.file.client.dsn);
        let cases: [(&str, &[i32], &str); 8] = [
            ("INSERT INTO numbered (k) SELECT n FROM generate_series(1, 10) n RETURNING id", &[1], "12Ds"),
            ("INSERT INTO drawn (id) VALUES (1), (2), (3) RETURNING id", &[1], "12Ds"),
            ("INSERT INTO drawn (id) VALUES (4), (5), (6) RETURNING u", &[2, 1, 5], "12DDsDs[INSERT 0 0]"),
            (
                "INSERT INTO numbered (k) SELECT n FROM generate_series(1, 3) n RETURNING id",
                &[2, 2],
                "12DDsD[INSERT 0 1]",
            ),
            ("UPDATE plain SET v = v + 1 WHERE id = 7 RETURNING v", &[0, 0], "12D[UPDATE 1][UPDATE 0]"),
            ("UPDATE plain SET v = v + 1 WHERE id < 8 RETURNING v", &[3, 0], "12DDDsDDDD[UPDATE 4]"),
            (
                "DELETE FROM plain WHERE id IN (SELECT id FROM plain ORDER BY random() LIMIT 5) RETURNING id",
                &[1],
                "12Ds",
            ),
            ("UPDATE plain SET v = v + 1 WHERE id > 15", &[1], "12[UPDATE"),
        ];
        for (sql, executes, expected) in cases {
            let answer = raw.run(sql, executes);
            assert!(answer.starts_with(expected), "{sql}: {answer}");
        }
        let counts = "SELECT (SELECT count(*) FROM numbered), (SELECT count(*) FROM drawn), (SELECT count(*) FROM plain)";
        assert_eq!(rows(&client, counts).await, "13 6 15");
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
        let mut raw = Raw::connect(&three.file.client.dsn);
        let wrong = |sql: &str| {
            let mut messages = Vec::new();
            for sql in [sql, "BEGIN"] {
                let parse = [b"\0", sql.as_bytes(), b"\0\0\0"].concat();
                messages.push(b'P');
                messages.extend_from_slice(&(parse.len() as i32 + 4).to_be_bytes());
                messages.extend_from_slice(&parse);
                messages.extend_from_slice(b"D\0\0\0\x06S\0");
            }
            messages.extend_from_slice(b"B\0\0\0\x0c\0\0\0\0\0\0\0\0E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04");
            messages
        };
        raw.0.write_all(&wrong("SELECT id, v FROM plain WHERE id = $1")).unwrap();
        assert_eq!(raw.answer(), "1tT1tn2[BEGIN]");
        raw.run("ROLLBACK", &[0]);
        raw.0.write_all(&wrong("SELECT * FROM nix")).unwrap();
        assert_eq!(raw.answer(), "E");
        assert_eq!(raw.run("SELECT v FROM plain WHERE id = 1", &[0]), "12D[SELECT 1]");
        // An error that is found here comes after the answers to what stands before it, and what was prepared stays so.
        raw.0.write_all(b"P\0\0\0\x11a\0SELECT 1\0\0\0P\0\0\0\x11a\0SELECT 2\0\0\0S\0\0\0\x04").unwrap();
        assert_eq!(raw.answer(), "1E");
        raw.0.write_all(b"B\0\0\0\x0d\0a\0\0\0\0\0\0\0E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04").unwrap();
        assert_eq!(raw.answer(), "2D[SELECT 1]");
        // Messages that a query follows without a Sync are answered before it.
        raw.0.write_all(b"C\0\0\0\x07Sa\0Q\0\0\0\x0dSELECT 3\0").unwrap();
        assert_eq!(raw.answer(), "3TD[SELECT 1]");
        raw.0.write_all(b"Q\0\0\0\x16START TRANSACTION\0").unwrap();
        assert_eq!(raw.answer(), "[START TRANSACTION]");
        assert_eq!(raw.run("SELECT 1 / 0", &[0]), "1E");
        raw.0.write_all(b"Q\0\0\0\x0aBEGIN\0").unwrap();
        assert_eq!(raw.answer(), "E");
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
        let mut raw = Raw::connect(&three.file.client.dsn);
        let mut messages = Vec::new();
        let mut put = |tag: u8, body: &[u8]| {
            messages.push(tag);
            messages.extend_from_slice(&(body.len() as i32 + 4).to_be_bytes());
            messages.extend_from_slice(body);
        };
        let sqls = ["UPDATE plain SET v = 100 WHERE id = 2", "UPDATE plain SET v = v + 1 WHERE id = 2"];
        for (name, sql) in ["a", "b"].iter().zip(sqls) {
            put(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"].concat());
            put(b'B', &[name.as_bytes(), b"\0", name.as_bytes(), b"\0\0\0\0\0\0\0"].concat());
        }
        put(b'E', b"a\0\0\0\0\0");
        put(b'E', b"b\0\0\0\0\0");
        put(b'S', b"");
        raw.0.write_all(&messages).unwrap();
        assert_eq!(raw.answer(), "1212[UPDATE 1][UPDATE 1]");
        assert_eq!(rows(&client, "SELECT v FROM plain WHERE id = 2").await, "101");
        three.assert_identical();
    });
}
