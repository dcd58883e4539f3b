//! Messages of the extended protocol, one by one: clients hear what one server would have told them.
//!
//! Every case is sent to a server by itself, too, and the answers are compared with its.

use super::clients::{block_on, connect};
use super::cursors::Raw;
use super::{Up, folder};
use onecopy_cluster::ClusterFile;

/// What a case is about, and what it sends.
type Case = (&'static str, fn(&mut Raw));

const PREPARE: &str = "DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY, v int);
                       INSERT INTO t SELECT n, 0 FROM generate_series(1, 4) n";

#[test]
fn messages_are_answered_as_by_one_server() {
    let dir = folder();
    let _up = Up::ready(dir.path(), 2);
    let file = ClusterFile::read(dir.path()).unwrap();
    let server = &file.replicas[0].dsn;
    block_on(async {
        connect(server).await.batch_execute("CREATE DATABASE alone").await.unwrap();
        let alone = server.replace("dbname=postgres", "dbname=alone");
        assert_ne!(alone, *server);
        let cases = [
            PORTALS, FORMATS, PARAMETERS, FAILED, UNNAMED, CHANGED, DEFERRABLE, MODES, SYNTAX, CHAINS,
            CLOSED, COMMITTED,
        ];
        for (name, send) in cases.concat() {
            let mut answers = Vec::new();
            for dsn in [&file.client.dsn, &alone] {
                connect(dsn).await.batch_execute(PREPARE).await.unwrap();
                let mut raw = Raw::default();
                send(&mut raw);
                answers.push(raw.told(dsn));
            }
            assert_eq!(answers[0], answers[1], "{name}: onecopy's answers, and the server's");
        }
        for text in
            ["SELECT 1; SELEC", "INSERT INTO t VALUES (9, 0);\n  COMMIT; SELECT 'ä' FROM WHERE; SELECT 2"]
        {
            let mut places = Vec::new();
            for dsn in [&file.client.dsn, &alone] {
                let error = connect(dsn).await.batch_execute(text).await.unwrap_err();
                places.push(error.as_db_error().unwrap().position().cloned().expect("a place in the text"));
            }
            assert_eq!(places[0], places[1], "{text}: where the error is");
        }
    });
}

const PORTALS: &[Case] = &[
    ("a read is fetched in parts before and after a write of its implicit transaction", |raw| {
        raw.parse("", "SELECT generate_series(1, 10)").bind("p", "").execute("p", 3);
        raw.parse("", "UPDATE t SET v = 1").bind("", "").execute("", 0).execute("p", 3).sync();
    }),
    ("a portal that was executed to its end has no rows after a write either", |raw| {
        raw.query("BEGIN").parse("s", "SELECT id FROM t ORDER BY id").bind("p", "s").execute("p", 0).sync();
        raw.query("UPDATE t SET v = 1").execute("p", 3).sync().execute("p", 0).sync().query("COMMIT");
    }),
    ("a portal that was executed to its end goes with its savepoint", |raw| {
        raw.query("BEGIN").parse("s", "SELECT id FROM t ORDER BY id").query("SAVEPOINT one");
        raw.bind("p", "s").execute("p", 0).sync().query("ROLLBACK TO one");
        raw.query("UPDATE t SET v = 1").execute("p", 0).sync().query("ROLLBACK");
    }),
];

const FORMATS: &[Case] = &[
    ("a column is wanted in a format that there is not", |raw| {
        raw.parse("", "SELECT 1").bind_as("", &[], &[], &[2]).execute("", 0).sync();
        raw.parse("", "SELECT 1, 2").bind_as("", &[], &[], &[0, -1]).describe("").execute("", 0).sync();
        raw.parse("", "INSERT INTO t VALUES (5, 1) RETURNING id")
            .bind_as("", &[], &[], &[2])
            .execute("", 0)
            .sync();
        raw.parse("", "SHOW work_mem").bind_as("", &[], &[], &[2]).execute("", 0).sync();
        raw.parse("", "SHOW transaction_isolation").bind_as("", &[], &[], &[2]).execute("", 0).sync();
        raw.query("SELECT count(*) FROM t");
    }),
    ("no column is wanted in a format that there is not", |raw| {
        raw.parse("", "SELECT 1").bind_as("", &[], &[], &[2]).sync();
        raw.parse("", "UPDATE t SET v = 1").bind_as("", &[], &[], &[2]).execute("", 0).sync();
        raw.parse("", "BEGIN").bind_as("", &[], &[], &[2]).execute("", 0).sync();
    }),
    ("a parameter comes in a format that there is not", |raw| {
        let (read, write) = ("SELECT $1::int", "INSERT INTO t VALUES ($1, 1)");
        raw.parse("", read).bind_as("", &["1"], &[2], &[]).execute("", 0).sync();
        raw.parse("", write).bind_as("", &["6"], &[257], &[]).execute("", 0).sync();
        raw.query("BEGIN").parse("", write).bind_as("", &["6"], &[-1], &[]).execute("", 0).sync();
        raw.query("SELECT 1").query("ROLLBACK").query("SELECT count(*) FROM t");
        raw.parse("", read).bind_as("", &["1"], &[0, 0], &[]).execute("", 0).sync().query("SELECT 1");
    }),
];

const INT: u32 = 23;
const TEXT: u32 = 25;

const PARAMETERS: &[Case] = &[
    ("a command without parameters is bound with some", |raw| {
        raw.parse("kept", "SELECT 1").sync();
        for sql in
            ["BEGIN", "DEALLOCATE kept", "SET work_mem = 1000", "SHOW work_mem", "LISTEN a", "NOTIFY a", ""]
        {
            raw.parse("", sql).bind_as("", &["1"], &[], &[]).execute("", 0).sync();
        }
        for sql in [
            "SHOW transaction_isolation",
            "SET TRANSACTION READ ONLY",
            "PREPARE p AS SELECT $1",
            "DISCARD ALL",
        ] {
            raw.parse("", sql).bind_as("", &["1", "2"], &[], &[]).execute("", 0).sync();
        }
        raw.bind("", "kept").execute("", 0).sync();
        raw.query("BEGIN").parse("s", "COMMIT").bind_as("s", &["1"], &[], &[]).execute("", 0).sync();
        raw.query("SELECT 1").query("ROLLBACK");
    }),
    ("a statement is bound with another number of parameters than it has", |raw| {
        raw.parse("s", "SELECT $1::int").sync();
        for _ in 0..3 {
            raw.bind_as("s", &["1"], &[], &[]).execute("", 0).sync();
            raw.bind_as("s", &["1", "2"], &[], &[]).execute("", 0).sync();
        }
        raw.bind("", "s").sync().parse("", "SELECT $1::int, $2::int").bind("", "").execute("", 0).sync();
        raw.parse("w", "UPDATE t SET v = $1").bind("", "w").execute("", 0).sync();
        raw.query("BEGIN").bind("", "s").execute("", 0).sync().query("ROLLBACK");
    }),
    ("parameters are declared for a command that reads none", |raw| {
        for sql in ["BEGIN", "COMMIT", "SET work_mem = 1000", "DEALLOCATE ALL", "LISTEN a", ""] {
            raw.parse_as("", sql, &[INT, TEXT]).describe_statement("").sync();
            raw.parse_as("", sql, &[INT, TEXT]).describe_statement("");
            raw.bind_as("", &["1", "x"], &[], &[]).describe("").execute("", 0).sync();
        }
        raw.parse_as("", "BEGIN", &[INT]).bind_as("", &["x"], &[], &[]).execute("", 0).sync();
        raw.parse_as("", "BEGIN", &[INT]).bind("", "").execute("", 0).sync();
        raw.parse_as("", "BEGIN", &[0]).describe_statement("").sync();
        raw.parse_as("", "", &[0]).describe_statement("").sync();
        raw.parse_as("", "SHOW transaction_read_only", &[INT]).describe_statement("");
        raw.bind_as("", &["1"], &[], &[]).describe("").execute("", 0).sync();
    }),
    ("a portal is bound wrongly and closed before a command that onecopy answers", |raw| {
        for sql in
            ["SHOW transaction_read_only", "SET transaction_read_only = on", "SET statement_timeout = 0"]
        {
            raw.parse("", "SELECT $1::int").bind_as("", &["x"], &[], &[]).close("");
            raw.parse("", sql).bind("", "").execute("", 0).sync();
        }
    }),
];

const FAILED: &[Case] = &[
    ("statements are prepared in a transaction that has failed", |raw| {
        raw.query("BEGIN").query("SELECT 1/0");
        for sql in [
            "SELECT 1",
            "SELEC",
            "SELECT * FROM nowhere",
            "SET work_mem = 1000",
            "DEALLOCATE nobody",
            "EXECUTE nobody",
            "BEGIN",
            "SAVEPOINT one",
            "SHOW transaction_isolation",
            "SELECT 1; SELECT 2",
            "ROLLBACK; SELECT 1",
            "COMMIT",
            "ABORT",
        ] {
            raw.parse("", sql).sync();
        }
        raw.parse("", "").describe_statement("").bind("", "").execute("", 0).sync();
        raw.parse("", "ROLLBACK").describe_statement("").bind("", "").describe("").execute("", 0).sync();
    }),
    ("prepared statements are used in a transaction that has failed", |raw| {
        raw.query("BEGIN")
            .parse("read", "SELECT id FROM t")
            .parse("begin", "BEGIN")
            .parse("end", "COMMIT")
            .sync();
        raw.query("SELECT 1/0");
        raw.describe_statement("read")
            .sync()
            .describe_statement("begin")
            .sync()
            .describe_statement("none")
            .sync();
        raw.bind("", "read").sync().bind("", "begin").execute("", 0).sync().bind("", "none").sync();
        raw.parse("read", "SELECT 1").sync().parse("read", "COMMIT").sync();
        raw.bind_as("end", &["1"], &[], &[]).sync().bind("", "end").execute("", 0).sync();
    }),
];

const UNNAMED: &[Case] = &[
    ("the unnamed statement ends with a query", |raw| {
        raw.parse("", "SELECT 1").sync().query("SELECT 2").bind("", "").execute("", 0).sync();
        raw.parse("", "SELECT 1").sync().query("").describe_statement("").sync();
        raw.bind("", "nobody").sync().describe_statement("nobody").sync().execute("", 0).sync();
    }),
    ("a portal is bound wrongly and closed before a query", |raw| {
        raw.parse("", "SELECT $1::int").bind_as("", &["x"], &[], &[]).close("").sync();
        raw.parse("", "SELECT $1::int")
            .bind_as("", &["x"], &[], &[])
            .close("")
            .parse("", "BEGIN")
            .bind("", "");
        raw.execute("", 0).sync().query("SELECT 1");
    }),
];

const CHANGED: &[Case] = &[
    ("a table has got a column since a statement was prepared by name", |raw| {
        raw.query("PREPARE one(int) AS SELECT * FROM t WHERE id = $1").query("EXECUTE one(1)");
        raw.query("PREPARE two AS UPDATE t SET v = v + 1 RETURNING *")
            .query("PREPARE three AS DELETE FROM t WHERE v = 9");
        raw.query("ALTER TABLE t ADD w int").query("EXECUTE one(1)").query("EXECUTE one(1)");
        raw.query("EXECUTE two").query("EXECUTE three").query("BEGIN").query("EXECUTE two").query("ROLLBACK");
        raw.query("DEALLOCATE one").query("PREPARE one(int) AS SELECT * FROM t WHERE id = $1");
        raw.query("EXECUTE one(1)").query("SELECT sum(v) FROM t");
    }),
    ("a view gets a column in a transaction of its own", |raw| {
        raw.query("DROP VIEW IF EXISTS seen").query("CREATE VIEW seen AS SELECT id FROM t");
        raw.query("PREPARE before AS SELECT * FROM seen ORDER BY id").query("BEGIN");
        raw.query("CREATE OR REPLACE VIEW seen AS SELECT id, v FROM t").query("PREPARE within AS TABLE seen");
        raw.query("SAVEPOINT one").query("EXECUTE before").query("ROLLBACK TO one").query("EXECUTE within");
        raw.query("ROLLBACK").query("EXECUTE before").query("EXECUTE within").query("DROP VIEW seen");
    }),
];

const DEFERRABLE: &[Case] = &[("transactions are said to be deferrable, which is shown", |raw| {
    let show = "SHOW transaction_deferrable";
    raw.query(show)
        .query("START TRANSACTION READ ONLY, DEFERRABLE")
        .query(show)
        .query("COMMIT AND CHAIN")
        .query(show);
    raw.query("ROLLBACK").query(show).query("BEGIN").query("SET TRANSACTION DEFERRABLE").query(show);
    raw.query("SET transaction_deferrable = off").query(show).query("COMMIT");
    raw.query("SET default_transaction_deferrable = on").query("BEGIN").query(show).query("ROLLBACK");
    raw.query("BEGIN NOT DEFERRABLE")
        .query(show)
        .query("ROLLBACK")
        .query("RESET default_transaction_deferrable");
    raw.query("SET SESSION CHARACTERISTICS AS TRANSACTION DEFERRABLE").query("BEGIN");
    raw.parse("", show)
        .describe_statement("")
        .bind("", "")
        .describe("")
        .execute("", 0)
        .sync()
        .query("ROLLBACK");
})];

const MODES: &[Case] = &[
    ("a transaction becomes read-only after its first statement", |raw| {
        for begin in ["BEGIN READ ONLY", "START TRANSACTION READ ONLY", "BEGIN; SET TRANSACTION READ ONLY"] {
            raw.query(&format!("SELECT 1; {begin}; INSERT INTO t VALUES (9, 0); COMMIT")).query("ROLLBACK");
            raw.query(&format!("SELECT 1; {begin}")).query("SHOW transaction_read_only");
            raw.query("INSERT INTO t VALUES (9, 0)").query("ROLLBACK");
        }
        raw.query("SELECT 1; SET TRANSACTION READ ONLY; INSERT INTO t VALUES (9, 0)");
        raw.query("UPDATE t SET v = 1; BEGIN READ ONLY; SELECT sum(v) FROM t; COMMIT");
        raw.query("BEGIN").query("SELECT 1").query("BEGIN READ ONLY").query("INSERT INTO t VALUES (9, 0)");
        raw.query("ROLLBACK").query("SELECT count(*), sum(v) FROM t");
    }),
    ("a transaction becomes read-only after the first statement of a pipeline", |raw| {
        raw.parse("", "SELECT 1").bind("", "").execute("", 0);
        raw.parse("", "BEGIN READ ONLY").bind("", "").execute("", 0).sync();
        raw.parse("", "INSERT INTO t VALUES (9, 0)").bind("", "").execute("", 0).sync();
        raw.query("ROLLBACK").query("SELECT count(*) FROM t");
    }),
    ("a transaction is to write again", |raw| {
        raw.query("BEGIN READ ONLY; SET TRANSACTION READ WRITE; INSERT INTO t VALUES (9, 0)")
            .query("ROLLBACK");
        raw.query("BEGIN READ ONLY; SELECT 1; BEGIN READ WRITE").query("ROLLBACK");
        raw.query("BEGIN; SELECT 1; SET TRANSACTION READ ONLY; SET TRANSACTION READ WRITE").query("ROLLBACK");
        raw.query("BEGIN READ ONLY; SAVEPOINT one; SET TRANSACTION READ WRITE").query("ROLLBACK");
    }),
    ("an isolation level comes too late", |raw| {
        for late in [
            "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "BEGIN ISOLATION LEVEL REPEATABLE READ",
            "SET transaction_isolation = 'repeatable read'",
            "BEGIN DEFERRABLE",
        ] {
            raw.query(&format!("INSERT INTO t VALUES (9, 0); {late}")).query("ROLLBACK");
            raw.query("BEGIN").query("SELECT 1").query(late).query("SELECT 1").query("ROLLBACK");
            raw.query("BEGIN; SHOW work_mem").query(late).query("SELECT 1").query("ROLLBACK");
            raw.query("BEGIN").query("SELECT 1").parse("", late).bind("", "").execute("", 0).sync();
            raw.query("ROLLBACK");
        }
        raw.query("BEGIN; SAVEPOINT one; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE").query("ROLLBACK");
        raw.query("SELECT count(*) FROM t");
    }),
    ("an isolation level is said again", |raw| {
        let again = "SELECT 1; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";
        raw.query("SELECT 1; BEGIN ISOLATION LEVEL READ COMMITTED; COMMIT");
        raw.query("BEGIN ISOLATION LEVEL REPEATABLE READ")
            .query(again)
            .query("COMMIT AND CHAIN")
            .query(again);
        raw.query("COMMIT").query("SET default_transaction_isolation = 'repeatable read'").query(again);
        raw.query("RESET default_transaction_isolation").query(again);
        raw.query("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ").query(again);
    }),
    ("commands are forbidden in what only reads", |raw| {
        raw.query("SET default_transaction_read_only = on");
        for command in [
            "INSERT INTO t VALUES (9, 0)",
            "create  table other (id int)",
            "CREATE UNIQUE INDEX ON t (v)",
            "CREATE OR REPLACE VIEW seen AS TABLE t",
            "CREATE TABLE other AS TABLE t",
            "ALTER TABLE t ADD w int",
            "ALTER TABLE t OWNER TO postgres",
            "DROP TABLE t",
            "TRUNCATE t",
            "CREATE USER somebody",
            "CREATE SEQUENCE s",
            "COMMENT ON TABLE t IS 'x'",
            "GRANT SELECT ON t TO PUBLIC",
            "WITH w AS (INSERT INTO t VALUES (9, 0) RETURNING id) SELECT * FROM w",
        ] {
            raw.query(command);
        }
        raw.parse("", "DROP TABLE t").bind("", "").execute("", 0).sync();
    }),
];

const SYNTAX: &[Case] = &[
    ("a part of a message is no SQL", |raw| {
        raw.query("INSERT INTO t VALUES (9, 0); COMMIT; SELEC").query("SELEC; INSERT INTO t VALUES (9, 0)");
        raw.query("SELECT 1; SELECT 2 FROM WHERE; SELECT 3").query("SELECT 1; SELECT 'x");
        raw.query("BEGIN").query("INSERT INTO t VALUES (9, 0); SELEC").query("SELECT 1").query("COMMIT");
        raw.query("BEGIN").query("SELECT 1/0").query("ROLLBACK; SELEC").query("SELECT 1").query("ROLLBACK");
        raw.query("SELECT count(*) FROM t");
    }),
    ("a statement makes what the next ones of its message need", |raw| {
        raw.query(
            "CREATE TABLE made (n int); INSERT INTO made VALUES (1); SELECT n FROM made; DROP TABLE made",
        );
        raw.query("CREATE SCHEMA IF NOT EXISTS s")
            .query("CREATE TABLE s.t (x text); SET search_path = s; INSERT INTO t VALUES ('in s')");
        raw.query("SELECT * FROM t; SET search_path = public; SELECT count(*) FROM t");
        raw.query("DROP SCHEMA s CASCADE");
    }),
];

const CHAINS: &[Case] = &[("a chain begins outside of a transaction", |raw| {
    for command in ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN"] {
        raw.query(command).query(&format!("INSERT INTO t VALUES (9, 0); {command}; SELECT 1"));
        raw.parse("", command).bind("", "").execute("", 0).sync();
        raw.query("SELECT count(*) FROM t");
    }
})];

const CLOSED: &[Case] = &[("a statement is closed before one that is wrong", |raw| {
    for wrong in ["SELEC", "INSERT INTO missing VALUES (1)", "SELECT * FROM missing", "DROP TABLE missing"] {
        raw.close_statement("s").parse("s", wrong).bind("", "s").describe("").execute("", 0).sync();
        raw.bind("", "s").sync();
        raw.query("BEGIN").close_statement("s").parse("s", wrong).bind("", "s").execute("", 0).sync();
        raw.query("ROLLBACK").parse("kept", "SELECT 1").parse("s", wrong).bind("", "s").execute("", 0).sync();
        raw.bind("", "kept").execute("", 0).close_statement("kept").sync();
    }
})];

const COMMITTED: &[Case] = &[("the last statement of a message is complete when it is committed", |raw| {
    raw.query("DROP TABLE IF EXISTS later");
    raw.query("CREATE TABLE later (id int REFERENCES t DEFERRABLE INITIALLY DEFERRED)");
    raw.query("SELECT 1; INSERT INTO later VALUES (99)").query("INSERT INTO later VALUES (99); SELECT 1");
    raw.query("INSERT INTO later VALUES (99); SET work_mem = 1000").query("SELECT 1; COPY later FROM STDIN");
    raw.data("99\n").query("SELECT 1; COPY later FROM STDIN").data("1\n").query("SELECT 1; SELECT 2");
    raw.query("SELECT 1; INSERT INTO later VALUES (1) RETURNING id").query("SELECT count(*) FROM later");
    raw.query("DROP TABLE later");
})];
