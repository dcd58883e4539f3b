//! Cursors and portals of transactions that go from reading to writing, and with it from a snapshot to their home.

use super::clients::{block_on, connect, rows};
use super::{Up, folder};
use onecopy_cluster::ClusterFile;
use std::io::{Read, Write};
use tokio_postgres::error::SqlState;

/// A client that chooses the names of its portals.
#[derive(Clone, Default)]
pub struct Raw(Vec<u8>);

impl Raw {
    fn message(&mut self, tag: &[u8], parts: &[&[u8]]) -> &mut Raw {
        let body = parts.concat();
        let len = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        self.0.extend_from_slice(&[tag, &len, &body].concat());
        self
    }

    /// What was put together so far, to be shown.
    pub fn sent(&self) -> &[u8] {
        &self.0
    }

    pub fn query(&mut self, sql: &str) -> &mut Raw {
        self.message(b"Q", &[sql.as_bytes(), b"\0"])
    }

    pub fn parse(&mut self, name: &str, sql: &str) -> &mut Raw {
        self.message(b"P", &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"])
    }

    /// Parse with the types of its parameters.
    pub fn parse_as(&mut self, name: &str, sql: &str, types: &[u32]) -> &mut Raw {
        let count = u16::try_from(types.len()).unwrap().to_be_bytes();
        let types: Vec<u8> = types.iter().flat_map(|oid| oid.to_be_bytes()).collect();
        self.message(b"P", &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0", &count, &types])
    }

    pub fn bind(&mut self, portal: &str, name: &str) -> &mut Raw {
        self.message(b"B", &[portal.as_bytes(), b"\0", name.as_bytes(), b"\0\0\0\0\0\0\0"])
    }

    /// Bind of the unnamed portal with these formats of parameters, parameters and formats of columns.
    pub fn bind_as(&mut self, name: &str, params: &[&str], formats: &[i16], results: &[i16]) -> &mut Raw {
        let count = |len: usize| u16::try_from(len).unwrap().to_be_bytes();
        let codes = |codes: &[i16]| {
            [&count(codes.len())[..], &codes.iter().flat_map(|code| code.to_be_bytes()).collect::<Vec<_>>()]
                .concat()
        };
        let mut values = count(params.len()).to_vec();
        for value in params {
            values.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
            values.extend_from_slice(value.as_bytes());
        }
        self.message(b"B", &[b"\0", name.as_bytes(), b"\0", &codes(formats), &values, &codes(results)])
    }

    pub fn execute(&mut self, portal: &str, max_rows: u32) -> &mut Raw {
        self.message(b"E", &[portal.as_bytes(), b"\0", &max_rows.to_be_bytes()])
    }

    pub fn describe(&mut self, portal: &str) -> &mut Raw {
        self.message(b"D", &[b"P", portal.as_bytes(), b"\0"])
    }

    pub fn close(&mut self, portal: &str) -> &mut Raw {
        self.message(b"C", &[b"P", portal.as_bytes(), b"\0"])
    }

    /// What COPY FROM STDIN is to read, and its end.
    pub fn data(&mut self, rows: &str) -> &mut Raw {
        self.message(b"d", &[rows.as_bytes()]).message(b"c", &[])
    }

    pub fn sync(&mut self) -> &mut Raw {
        self.message(b"S", &[])
    }

    pub fn flush(&mut self) -> &mut Raw {
        self.message(b"H", &[])
    }

    pub fn describe_statement(&mut self, name: &str) -> &mut Raw {
        self.message(b"D", &[b"S", name.as_bytes(), b"\0"])
    }

    pub fn close_statement(&mut self, name: &str) -> &mut Raw {
        self.message(b"C", &[b"S", name.as_bytes(), b"\0"])
    }

    /// Sends everything; what is answered, from the startup on.
    fn exchange(&mut self, dsn: &str) -> Vec<(u8, Vec<u8>)> {
        let port: u16 = super::parameter(dsn, "port").parse().unwrap();
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut startup = Raw(Vec::new());
        let database = super::parameter(dsn, "dbname").as_bytes();
        let options = [b"user\0postgres\0database\0", database, b"\0\0"].concat();
        startup.message(b"", &[&196_608_u32.to_be_bytes(), &options]);
        stream.write_all(&startup.0).unwrap();
        self.message(b"X", &[]);
        stream.write_all(&self.0).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let (mut messages, mut rest) = (Vec::new(), &answer[..]);
        while let [tag, len @ ..] = rest {
            let len = u32::from_be_bytes(len[..4].try_into().unwrap()) as usize;
            messages.push((*tag, rest[5..=len].to_vec()));
            rest = &rest[len + 1..];
        }
        messages
    }

    /// Sends everything; the letters of the messages that answer it, command tags in brackets, and a space at each
    /// ReadyForQuery.
    pub fn letters(&mut self, dsn: &str) -> String {
        self.lettered(dsn, |_| "E".to_owned())
    }

    /// Like `letters`, with what errors say.
    pub fn outline(&mut self, dsn: &str) -> String {
        self.lettered(dsn, |said| format!("E[{said}]"))
    }

    fn lettered(&mut self, dsn: &str, error: impl Fn(&str) -> String) -> String {
        let messages = self.exchange(dsn);
        let begun = messages.iter().position(|(tag, _)| *tag == b'Z').unwrap();
        let letter = |(tag, body): &(u8, Vec<u8>)| match tag {
            b'C' => format!("[{}]", String::from_utf8_lossy(body.strip_suffix(b"\0").unwrap())),
            b'E' => error(&said(body)),
            b'Z' => " ".to_owned(),
            tag => (*tag as char).to_string(),
        };
        messages[begun + 1..].iter().map(letter).collect::<String>().trim_end().to_owned()
    }

    /// Sends everything; what is answered: the letter of each message with what it says, but for notices, settings and where in
    /// its source the server found an error.
    pub fn told(&mut self, dsn: &str) -> Vec<String> {
        let messages = self.exchange(dsn);
        let begun = messages.iter().position(|(tag, _)| *tag == b'Z').unwrap();
        let text = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
        let shown = |(tag, body): &(u8, Vec<u8>)| match tag {
            b'N' | b'S' => None,
            b'E' => Some(format!("E {}", said(body))),
            // Tables have other numbers in another database.
            b'T' => Some(format!("T {}", u16::from_be_bytes([body[0], body[1]]))),
            tag => Some(format!("{} {}", *tag as char, text(body).escape_default())),
        };
        messages[begun + 1..].iter().filter_map(shown).collect()
    }

    /// Sends everything; command tags, and of errors and notices severity, code and words.
    pub fn words(&mut self, dsn: &str) -> Vec<String> {
        let text = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
        let shown = |(tag, body): (u8, Vec<u8>)| match tag {
            b'C' => Some(text(body.strip_suffix(b"\0").unwrap())),
            b'E' | b'N' => {
                let fields = body.split(|byte| *byte == 0);
                let said =
                    fields.filter(|field| matches!(field.first(), Some(b'V' | b'C' | b'M' | b'D' | b'H')));
                Some(said.map(text).collect::<Vec<_>>().join(" "))
            }
            _ => None,
        };
        self.exchange(dsn).into_iter().filter_map(shown).collect()
    }

    /// Sends everything; the cells of single-column rows, descriptions of rows, command tags, error codes, and what the server
    /// says of settings once it is ready, in order.
    pub fn answers(&mut self, dsn: &str) -> String {
        let (mut found, mut heard, mut is_ready) = (Vec::new(), Vec::new(), false);
        for (tag, body) in self.exchange(dsn) {
            match tag {
                b'D' => found.push(String::from_utf8_lossy(&body[6..]).into_owned()),
                b'C' => found.push(String::from_utf8_lossy(body.strip_suffix(b"\0").unwrap()).into_owned()),
                b'T' => found.push("columns".to_owned()),
                b'E' => {
                    let fields = body.split(|byte| *byte == 0);
                    let code = fields.filter_map(|field| field.strip_prefix(b"C")).next().unwrap();
                    found.push(format!("error {}", String::from_utf8_lossy(code)));
                }
                // In which order the answers of one message say it is of no use to anybody.
                b'S' if is_ready => {
                    let words = body.split(|byte| *byte == 0).take(2).map(String::from_utf8_lossy);
                    heard.push(words.collect::<Vec<_>>().join(" is "));
                }
                b'Z' => {
                    is_ready = true;
                    heard.sort();
                    found.append(&mut heard);
                }
                _ => {}
            }
        }
        found.join(", ")
    }
}

/// The code and message of an error.
fn said(body: &[u8]) -> String {
    let fields = body.split(|byte| *byte == 0);
    let said = fields.filter(|field| matches!(field.first(), Some(b'C' | b'M')));
    said.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ")
}

#[test]
fn portals_that_were_bound_or_closed_before_the_first_write_are_so_after_it() {
    let dir = folder();
    let _up = Up::ready(dir.path(), 2);
    let file = ClusterFile::read(dir.path()).unwrap();
    block_on(async {
        let client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int)").await.unwrap();
        client.batch_execute("INSERT INTO t SELECT n, 0 FROM generate_series(1, 4) n").await.unwrap();
    });
    let mut raw = Raw(Vec::new());
    raw.query("BEGIN");
    raw.parse("s", "SELECT id FROM t ORDER BY id").bind("c", "s").execute("c", 1).sync();
    // Closed while nothing is executed, and bound again: the second one is open in the middle of its rows.
    raw.close("c").sync();
    raw.bind("d", "s").sync();
    raw.bind("e", "s").execute("e", 2).sync();
    raw.query("UPDATE t SET v = 1 WHERE id = 4");
    raw.bind("c", "s").execute("c", 1).sync();
    raw.execute("d", 1).sync();
    raw.execute("e", 1).sync();
    raw.close("d").sync().bind("d", "s").execute("d", 0).sync();
    raw.query("COMMIT");
    assert_eq!(
        raw.answers(&file.client.dsn),
        "BEGIN, 1, 1, 2, UPDATE 1, 1, 1, 3, 1, 2, 3, 4, SELECT 4, COMMIT"
    );
}

#[test]
fn portals_are_described_and_closed_after_a_lock_that_was_not_got() {
    let dir = folder();
    let _up = Up::ready(dir.path(), 2);
    let file = ClusterFile::read(dir.path()).unwrap();
    block_on(async {
        let holder = connect(&file.client.dsn).await;
        holder.batch_execute("CREATE TABLE held (id int); INSERT INTO held VALUES (1)").await.unwrap();
        holder.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        holder.batch_execute("INSERT INTO t SELECT n FROM generate_series(1, 4) n").await.unwrap();
        holder.batch_execute("BEGIN; UPDATE held SET id = 2").await.unwrap();
        let mut raw = Raw(Vec::new());
        raw.query("BEGIN");
        raw.parse("s", "SELECT id FROM t ORDER BY id");
        for portal in ["c", "d", "e"] {
            raw.bind(portal, "s").execute(portal, 1).sync();
        }
        raw.query("SAVEPOINT one").query("SELECT * FROM held FOR UPDATE NOWAIT");
        // The snapshot is left, and it has failed; then it goes on, and has nothing open.
        raw.close("e").sync();
        raw.query("ROLLBACK TO one");
        raw.close("c").sync();
        raw.describe("d").sync();
        // Both names are free again.
        raw.bind("c", "s").execute("c", 1).sync();
        raw.bind("e", "s").execute("e", 2).sync();
        raw.execute("d", 1).sync();
        // Again, and now nothing comes before its next read.
        raw.query("SAVEPOINT two").query("SELECT * FROM held FOR UPDATE NOWAIT").query("ROLLBACK TO two");
        raw.close("c").sync();
        raw.bind("c", "s").execute("c", 1).sync();
        raw.query("INSERT INTO t VALUES (5)");
        raw.execute("d", 1).sync();
        raw.query("COMMIT");
        assert_eq!(
            raw.answers(&file.client.dsn),
            "BEGIN, 1, 1, 1, SAVEPOINT, error 55P03, ROLLBACK, columns, 1, 1, 2, 2, \
             SAVEPOINT, error 55P03, ROLLBACK, 1, INSERT 0 1, 3, COMMIT"
        );
    });
}

#[test]
fn cursors_that_a_savepoint_took_with_it_do_not_come_back() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let client = connect(&ClusterFile::read(dir.path()).unwrap().client.dsn).await;
        client
            .batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3)")
            .await
            .unwrap();
        let declare = |name: &str| format!("DECLARE {name} CURSOR FOR SELECT id FROM t ORDER BY id");
        client.batch_execute(&format!("BEGIN; {}; SAVEPOINT s", declare("before"))).await.unwrap();
        client.batch_execute(&declare("c")).await.unwrap();
        assert_eq!(rows(&client, "FETCH 2 FROM c").await, "1, 2");
        assert_eq!(rows(&client, "FETCH before").await, "1");
        client.batch_execute("ROLLBACK TO s; INSERT INTO t VALUES (4)").await.unwrap();
        client.batch_execute(&declare("c")).await.unwrap();
        assert_eq!(rows(&client, "FETCH 9 FROM c").await, "1, 2, 3, 4");
        assert_eq!(rows(&client, "FETCH 9 FROM before").await, "2, 3", "moved, which no rollback undoes");
        client.batch_execute("COMMIT").await.unwrap();
    });
}

#[test]
fn cursors_that_cannot_be_opened_again_are_an_error_that_says_so() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let client = connect(&ClusterFile::read(dir.path()).unwrap().client.dsn).await;
        client
            .batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
            .await
            .unwrap();
        let long = "x".repeat(1024 * 1024);
        client.batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id").await.unwrap();
        assert_eq!(rows(&client, "FETCH c").await, "1");
        for _ in 0..5 {
            let length = rows(&client, &format!("SELECT length('{long}') FROM t WHERE id = 1")).await;
            assert_eq!(length, "1048576");
        }
        assert_eq!(rows(&client, "FETCH c").await, "2", "it is served where it was opened");
        let refused = client.batch_execute("INSERT INTO t VALUES (3)").await.unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::PROGRAM_LIMIT_EXCEEDED));
        assert!(refused.as_db_error().unwrap().message().contains("cursors"), "{refused:?}");
        let after = client.batch_execute("FETCH c").await.unwrap_err();
        assert_eq!(after.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION));
        client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(rows(&client, "SELECT count(*) FROM t").await, "2");

        // Without cursors it goes on, unless what it read has changed.
        client.batch_execute("BEGIN").await.unwrap();
        for _ in 0..5 {
            rows(&client, &format!("SELECT length('{long}') FROM t WHERE id = 1")).await;
        }
        client.batch_execute("INSERT INTO t VALUES (3); COMMIT").await.unwrap();
        assert_eq!(rows(&client, "SELECT count(*) FROM t").await, "3");
    });
}
