//! Savepoints of transactions that go from reading to writing, and with it from a snapshot to their home: what a single
//! server answers is what they are answered.

use super::clients::{block_on, connect, rows};
use super::cursors::Raw;
use super::{Up, folder};
use onecopy_cluster::ClusterFile;
use tokio_postgres::error::SqlState;

const TABLES: &str = "CREATE TABLE t (id int PRIMARY KEY, v int);
                      INSERT INTO t SELECT n, 0 FROM generate_series(1, 9) n;
                      CREATE TABLE child (id int PRIMARY KEY, of int REFERENCES t DEFERRABLE)";

/// Statements of one transaction each, in simple form. `w` stands for a first write that changes the lane.
const SCRIPTS: &[(&str, &str)] = &[
    (
        "a cursor from before a savepoint outlives its rollback",
        "BEGIN; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id; FETCH 2 FROM c; SAVEPOINT s; w; ROLLBACK TO s; FETCH c;
         SAVEPOINT s; FETCH c; ROLLBACK TO s; FETCH c; w; FETCH c; COMMIT",
    ),
    (
        "one that was moved in a savepoint stays where it is",
        "BEGIN; DECLARE c SCROLL CURSOR FOR SELECT id FROM t ORDER BY id; FETCH 2 FROM c; SAVEPOINT s; FETCH 2 FROM c;
         ROLLBACK TO s; FETCH c; SAVEPOINT x; MOVE 2 IN c; w; ROLLBACK TO s; FETCH c; FETCH PRIOR FROM c; COMMIT",
    ),
    (
        "one that was declared in a savepoint that was released lives as long as the outer one",
        "BEGIN; SAVEPOINT a; SAVEPOINT b; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id; RELEASE b; FETCH 3 FROM c; w;
         FETCH c; SAVEPOINT x; ROLLBACK TO x; FETCH c; ROLLBACK TO a; FETCH c; ROLLBACK TO a; COMMIT",
    ),
    (
        "one that was closed in a savepoint stays closed",
        "BEGIN; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id; FETCH c; SAVEPOINT s; CLOSE c; ROLLBACK TO s; w;
         SAVEPOINT x; FETCH c; ROLLBACK TO x; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id DESC; FETCH c; ROLLBACK",
    ),
    (
        "one that was declared in a savepoint is gone with it, and its name is free",
        "BEGIN; SAVEPOINT s; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id; FETCH c; ROLLBACK TO s;
         DECLARE c CURSOR FOR SELECT id + 10 FROM t ORDER BY id; FETCH c; w; FETCH c; ROLLBACK TO s; FETCH c; ROLLBACK",
    ),
    (
        "savepoints of one name hide each other",
        "BEGIN; SAVEPOINT s; DECLARE a CURSOR FOR SELECT id FROM t ORDER BY id; SAVEPOINT s;
         DECLARE b CURSOR FOR SELECT id FROM t ORDER BY id; FETCH b; ROLLBACK TO s; RELEASE s; w; FETCH a; SAVEPOINT x;
         FETCH b; ROLLBACK TO x; FETCH a; ROLLBACK TO s; FETCH a; ROLLBACK",
    ),
    (
        "a cursor over what was read under other settings goes on",
        "BEGIN; SET LOCAL extra_float_digits = -10; DECLARE c CURSOR FOR SELECT id / 7.0::float8 FROM t ORDER BY id;
         FETCH c; RESET extra_float_digits; SAVEPOINT s; SET LOCAL extra_float_digits = -12; FETCH c; w; FETCH c;
         ROLLBACK TO s; FETCH c; COMMIT; SHOW extra_float_digits",
    ),
    (
        "settings return to what they were, and savepoints that are released keep them",
        "BEGIN; SAVEPOINT a; SET LOCAL work_mem = '2MB'; SAVEPOINT b; SET work_mem = '3MB'; SELECT v FROM t WHERE id = 1;
         SHOW work_mem; ROLLBACK TO b; SHOW work_mem; w; SHOW work_mem; SET work_mem = '5MB'; RELEASE b; SHOW work_mem;
         ROLLBACK TO a; SHOW work_mem; SET work_mem = '6MB'; COMMIT; SHOW work_mem; RESET work_mem",
    ),
    (
        "clients hear what settings have returned to",
        "SET TimeZone = 'UTC'; BEGIN; SET TimeZone = 'Asia/Tokyo'; SAVEPOINT s; SET TimeZone = 'Europe/Rome'; w;
         SET LOCAL application_name = 'x'; ROLLBACK TO s; SAVEPOINT x; SET LOCAL TimeZone = 'Asia/Baku'; ROLLBACK;
         BEGIN; SET LOCAL TimeZone = 'Asia/Baku'; w; COMMIT; SHOW TimeZone; RESET TimeZone; RESET application_name;
         BEGIN; SELECT v FROM t WHERE id = 1; SET LOCAL IntervalStyle = 'iso_8601'; COMMIT; SHOW IntervalStyle;
         BEGIN; SELECT set_config('DateStyle', 'German', false); SELECT 1 / 0; ROLLBACK; SHOW DateStyle",
    ),
    (
        "constraints that were put off before the first write stay so",
        "BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO child VALUES (1, 50); SAVEPOINT s; SET CONSTRAINTS ALL IMMEDIATE;
         ROLLBACK TO s; INSERT INTO t VALUES (50, 0); SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK;
         BEGIN; SAVEPOINT s; SET CONSTRAINTS ALL DEFERRED; ROLLBACK TO s; INSERT INTO child VALUES (1, 50); ROLLBACK",
    ),
    (
        "a part of a transaction changes nothing, and the rest may",
        "BEGIN; SELECT v FROM t WHERE id = 1; SHOW transaction_read_only; SAVEPOINT s; SET TRANSACTION READ ONLY;
         SHOW transaction_read_only; w; ROLLBACK TO s; SHOW transaction_read_only; w; SAVEPOINT r; SET TRANSACTION READ ONLY;
         RELEASE r; w; SET TRANSACTION READ ONLY; w; ROLLBACK;
         BEGIN; SET transaction_read_only = on; SHOW transaction_read_only; w; ROLLBACK",
    ),
    (
        "what is prepared in a savepoint outlives it",
        "BEGIN; SAVEPOINT s; PREPARE p AS SELECT id FROM t WHERE id > $1 ORDER BY id LIMIT 1; w; ROLLBACK TO s; EXECUTE p (3);
         COMMIT; EXECUTE p (4); DEALLOCATE p",
    ),
    (
        "errors between savepoints leave what was read before",
        "BEGIN; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id; FETCH c; SAVEPOINT s; SELECT 1 / 0; SELECT 1;
         ROLLBACK TO s; FETCH c; SAVEPOINT s; w; SELECT 1 / 0; ROLLBACK TO s; FETCH c; RELEASE s; RELEASE s; ROLLBACK",
    ),
];

/// A served database and another one on one of its servers, which nobody serves.
struct Both {
    served: String,
    direct: String,
}

impl Both {
    async fn of(file: &ClusterFile) -> Both {
        let direct = &file.replicas[1].dsn;
        connect(direct).await.batch_execute("CREATE DATABASE direct").await.unwrap();
        let both = Both {
            served: file.client.dsn.clone(),
            direct: direct.replace("dbname=postgres", "dbname=direct"),
        };
        assert_ne!(&both.direct, direct);
        for dsn in [&both.served, &both.direct] {
            connect(dsn).await.batch_execute(TABLES).await.unwrap();
        }
        both
    }

    fn answer_alike(&self, what: &str, ask: impl Fn(&mut Raw)) {
        let answers = |dsn| {
            let mut raw = Raw::default();
            ask(&mut raw);
            raw.answers(dsn)
        };
        assert_eq!(answers(&self.served), answers(&self.direct), "{what}");
    }
}

#[test]
fn savepoints_before_and_after_the_first_write_are_answered_as_one_server_answers_them() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let both = Both::of(&ClusterFile::read(dir.path()).unwrap()).await;
        for (what, script) in SCRIPTS {
            both.answer_alike(what, |raw| {
                for sql in script.split(';').map(str::trim) {
                    raw.query(if sql == "w" { "UPDATE t SET v = v + 1 WHERE id = 9" } else { sql });
                }
            });
        }
        both.answer_alike("portals live as long as the savepoint in which they were bound", |raw| {
            raw.parse("s", "SELECT id FROM t ORDER BY id")
                .parse("w", "UPDATE t SET v = v + 1 WHERE id = 9")
                .sync();
            raw.query("BEGIN").bind("c", "s").execute("c", 2).sync();
            raw.query("SAVEPOINT a").bind("d", "s").execute("d", 1).execute("c", 1).sync();
            raw.query("ROLLBACK TO a").execute("c", 1).sync();
            raw.bind("", "w").execute("", 0).sync();
            raw.query("ROLLBACK TO a").execute("c", 1).sync();
            raw.query("SAVEPOINT b").execute("d", 1).sync().query("ROLLBACK TO b").execute("c", 1).sync();
            raw.query("SAVEPOINT e").close("c").sync().query("ROLLBACK TO e").describe("c").sync();
            raw.query("ROLLBACK");
        });
    });
}

#[test]
fn snapshots_stay_snapshots_whatever_isolation_level_is_set_in_them() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let file = ClusterFile::read(dir.path()).unwrap();
        let (client, other) = (connect(&file.client.dsn).await, connect(&file.client.dsn).await);
        client.batch_execute(TABLES).await.unwrap();
        client.batch_execute("BEGIN; SET transaction_isolation = 'read committed'").await.unwrap();
        assert_eq!(rows(&client, "SELECT sum(v) FROM t").await, "0");
        other.batch_execute("UPDATE t SET v = 1").await.unwrap();
        assert_eq!(rows(&client, "SELECT sum(v) FROM t").await, "0");
        client.batch_execute("COMMIT").await.unwrap();
        for sql in [
            "SELECT set_config('transaction_isolation', 'read committed', true)",
            "RESET transaction_isolation",
            "SET transaction_isolation TO DEFAULT",
        ] {
            let refused = client.batch_execute(sql).await.unwrap_err();
            assert_eq!(refused.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "{sql}");
        }
    });
}

#[test]
fn reads_that_are_made_again_are_made_under_the_settings_under_which_they_were_made() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let file = ClusterFile::read(dir.path()).unwrap();
        let (client, other) = (connect(&file.client.dsn).await, connect(&file.client.dsn).await);
        client.batch_execute(TABLES).await.unwrap();
        client.batch_execute("CREATE SCHEMA a; CREATE TABLE a.t AS SELECT 7 AS v").await.unwrap();
        let read = "SELECT sum(v), timestamptz '2001-02-03 04:05Z' FROM t";
        for setting in ["SET LOCAL", "SET"] {
            let zone = |zone: &str| format!("{setting} TimeZone = '{zone}'");
            client
                .batch_execute(&format!("SET TimeZone = 'UTC'; BEGIN; {}", zone("Asia/Tokyo")))
                .await
                .unwrap();
            assert_eq!(rows(&client, read).await, "0 2001-02-03 13:05:00+09");
            client.batch_execute(&format!("SAVEPOINT s; {setting} search_path = a")).await.unwrap();
            assert_eq!(rows(&client, read).await, "7 2001-02-03 13:05:00+09");
            client.batch_execute(&format!("ROLLBACK TO s; {}", zone("Europe/Rome"))).await.unwrap();
            assert_eq!(rows(&client, read).await, "0 2001-02-03 05:05:00+01");
            // Whatever was read must be read again, and is what it was.
            other.batch_execute("UPDATE t SET v = v; UPDATE a.t SET v = v").await.unwrap();
            client.batch_execute("UPDATE t SET v = 0 WHERE id = 9").await.unwrap();
            assert_eq!(rows(&client, read).await, "0 2001-02-03 05:05:00+01");
            client.batch_execute("COMMIT").await.unwrap();
            let after = if setting == "SET" { "Europe/Rome" } else { "UTC" };
            assert_eq!(rows(&client, "SHOW TimeZone").await, after);
        }
    });
}

/// What a statement fails by has been read, too: who goes on after a return to a savepoint knows it.
#[test]
fn who_writes_after_a_read_that_failed_is_refused_once_what_it_read_has_changed() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let (one, other) = (connect(&dsn).await, connect(&dsn).await);
        one.batch_execute("CREATE TABLE x (id int PRIMARY KEY, v int); INSERT INTO x VALUES (1, 0), (2, 0)")
            .await
            .unwrap();
        let divide = "SELECT 1 / v FROM x WHERE id = 1";
        for (changes, by_cursor) in [(true, false), (false, false), (true, true), (false, true)] {
            one.batch_execute("BEGIN").await.unwrap();
            if by_cursor {
                one.batch_execute(&format!("DECLARE c CURSOR FOR {divide}")).await.unwrap();
            }
            one.batch_execute("SAVEPOINT s").await.unwrap();
            let failed = one.batch_execute(if by_cursor { "FETCH c" } else { divide }).await.unwrap_err();
            assert_eq!(failed.code(), Some(&SqlState::DIVISION_BY_ZERO));
            one.batch_execute("ROLLBACK TO s").await.unwrap();
            if changes {
                other.batch_execute("UPDATE x SET v = 1 WHERE id = 1").await.unwrap();
            }
            let written = one.batch_execute("UPDATE x SET v = 1 WHERE id = 2; COMMIT").await;
            let code = written.err().and_then(|error| error.code().cloned());
            assert_eq!(code, changes.then_some(SqlState::T_R_SERIALIZATION_FAILURE));
            one.batch_execute("ROLLBACK; UPDATE x SET v = 0").await.unwrap();
        }
    });
}
