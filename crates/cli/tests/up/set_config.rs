//! `SELECT set_config(...)` is served as SET is, and what a transaction sets back reaches the replicas.

use super::clients::{block_on, connect, rows};
use super::three::Three;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

const SCHEMAS: &str = "CREATE SCHEMA a; CREATE SCHEMA b;
                       CREATE TABLE a.t (id int PRIMARY KEY, at timestamptz);
                       CREATE TABLE b.t (id int PRIMARY KEY, at timestamptz)";

const CONTENTS: &str = "SELECT 'a', id, at AT TIME ZONE 'UTC' FROM a.t
                        UNION ALL SELECT 'b', id, at AT TIME ZONE 'UTC' FROM b.t ORDER BY 2";

async fn run(client: &Client, script: &[&str]) {
    for sql in script {
        client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

async fn error_of(client: &Client, sql: &str) -> SqlState {
    match client.simple_query(sql).await {
        Ok(_) => panic!("{sql}: no error"),
        Err(error) => error.code().unwrap().clone(),
    }
}

#[test]
fn set_config_does_what_set_does_on_every_replica() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        client.batch_execute(SCHEMAS).await.unwrap();
        let script = [
            "SELECT set_config('search_path', 'a', false), pg_catalog.set_config('TimeZone', 'utc', false)",
            "INSERT INTO t VALUES (1, '2001-01-01 00:00')",
            // Between two writes of one transaction, and only for a part of it.
            "BEGIN",
            "INSERT INTO t VALUES (2, '2001-01-02 00:00')",
            "SELECT set_config('search_path', 'b', true), set_config('TimeZone', 'Asia/Tokyo', true)",
            "INSERT INTO t VALUES (3, '2001-01-03 09:00')",
            "SAVEPOINT s",
            "SELECT set_config('TimeZone', 'UTC', false), set_config('search_path', NULL, false)",
            "INSERT INTO a.t VALUES (4, '1999-01-01 00:00')",
            "ROLLBACK TO s",
            "INSERT INTO t VALUES (5, '2001-01-05 09:00')",
            "COMMIT",
            "INSERT INTO t VALUES (6, '2001-01-06 00:00')",
            // Before the first write: the transaction moves from a snapshot to its home.
            "BEGIN",
            "SELECT set_config('search_path', 'b', false)",
            "SELECT count(*) FROM t",
            "INSERT INTO t VALUES (7, '2001-01-07 00:00')",
            "ROLLBACK",
            "BEGIN",
            "SELECT set_config('search_path', 'b', true)",
            "SELECT count(*) FROM t",
            "INSERT INTO t VALUES (8, '2001-01-08 00:00')",
            "COMMIT",
            "INSERT INTO t VALUES (9, '2001-01-09 00:00')",
            // Outside a transaction, LOCAL ends with the statement.
            "SELECT set_config('search_path', 'b', true)",
            "INSERT INTO t VALUES (10, '2001-01-10 00:00')",
        ];
        run(&client, &script).await;
        // By the extended protocol, with types that a server finds, by parameters and by expressions.
        let set = client.prepare("SELECT set_config($1, $2, $3)").await.unwrap();
        let row = client.query_one(&set, &[&"TimeZone", &"asia/tokyo", &false]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "Asia/Tokyo");
        let row = client
            .query_one(
                "SELECT set_config('search_path', $1::text || ', public', false) AS path, \
                        set_config('app.path', current_setting('search_path'), false)",
                &[&"b"],
            )
            .await
            .unwrap();
        assert_eq!(row.columns()[0].name(), "path");
        assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("b, public", "b, public"));
        let insert = client.prepare("INSERT INTO t VALUES (11, '2001-01-11 09:00')").await.unwrap();
        client.execute(&insert, &[]).await.unwrap();
        assert_eq!(rows(&client, "SHOW app.path").await, "b, public");

        let expected = "a 1 2001-01-01 00:00:00, a 2 2001-01-02 00:00:00, b 3 2001-01-03 00:00:00, \
                        b 5 2001-01-05 00:00:00, a 6 2001-01-06 00:00:00, b 8 2001-01-08 00:00:00, \
                        a 9 2001-01-09 00:00:00, a 10 2001-01-10 00:00:00, b 11 2001-01-11 00:00:00";
        assert_eq!(rows(&client, CONTENTS).await, expected);
        assert_eq!(three.everywhere(CONTENTS).await, expected);
    });
}

#[test]
fn set_config_is_answered_as_postgresql_answers() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        // A value that says only a part goes with what was set before, on whichever lane.
        run(&client, &["SET DateStyle = 'German'"]).await;
        assert_eq!(rows(&client, "SELECT set_config('DateStyle', 'MDY', false)").await, "German, MDY");
        run(&client, &["SET DateStyle = DMY", "BEGIN", "SELECT 1", "COMMIT"]).await;
        for _ in 0..8 {
            assert_eq!(
                rows(&client, "SELECT date '2001-02-03', '04-05-2006'::date").await,
                "03.02.2001 04.05.2006"
            );
        }
        assert_eq!(rows(&client, "SELECT set_config('DateStyle', NULL, false)").await, "ISO, MDY");
        // What pg_dump sends: the rows say what to set, and there may be none.
        let of_pg_dump = "SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings \
                          WHERE name = 'restrict_nonsystem_relation_kind'";
        assert!(matches!(rows(&client, of_pg_dump).await.as_str(), "" | "view, foreign-table"));
        let several = "SELECT set_config(name, $1, false) FROM pg_settings \
                       WHERE name IN ('statement_timeout', 'lock_timeout') ORDER BY name DESC";
        let set = client.query(several, &[&"3s"]).await.unwrap();
        assert_eq!(set.iter().map(|row| row.get(0)).collect::<Vec<&str>>(), ["3s", "3s"]);
        assert_eq!(rows(&client, "SHOW lock_timeout").await, "3s");

        // Errors are the server's, and what fails sets nothing.
        let fails = [
            ("SELECT set_config('TimeZone', 'nowhere', false)", SqlState::INVALID_PARAMETER_VALUE),
            ("SELECT set_config('no_such_setting', 'x', false)", SqlState::UNDEFINED_OBJECT),
            ("SELECT set_config('app.x', '1', 'perhaps')", SqlState::INVALID_TEXT_REPRESENTATION),
            ("SELECT set_config('app.x', 1, false)", SqlState::UNDEFINED_FUNCTION),
            ("SELECT set_config(NULL, 'x', false)", SqlState::NULL_VALUE_NOT_ALLOWED),
            (
                "SELECT set_config('app.x', '1', false), set_config('work_mem', 'x', false)",
                SqlState::INVALID_PARAMETER_VALUE,
            ),
            (
                "SELECT set_config('app.x', lower('1'), false), set_config('work_mem', lower('x'), false)",
                SqlState::INVALID_PARAMETER_VALUE,
            ),
            // What would make replicas differ.
            ("SELECT set_config('Role', 'postgres', true)", SqlState::FEATURE_NOT_SUPPORTED),
            (
                "SELECT set_config('session_replication_role', lower('replica'), false)",
                SqlState::FEATURE_NOT_SUPPORTED,
            ),
            (
                "SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'standard_conforming_strings'",
                SqlState::FEATURE_NOT_SUPPORTED,
            ),
            ("SET client_encoding = 'LATIN1'", SqlState::FEATURE_NOT_SUPPORTED),
            // What a session would not know of.
            ("SELECT set_config('app.x', '1', false), 1", SqlState::FEATURE_NOT_SUPPORTED),
            ("SELECT 1 WHERE set_config('search_path', 'x', true) = 'x'", SqlState::FEATURE_NOT_SUPPORTED),
            ("EXPLAIN ANALYZE SELECT set_config('app.x', '1', false)", SqlState::FEATURE_NOT_SUPPORTED),
            ("COPY (SELECT set_config('app.x', '1', false)) TO STDOUT", SqlState::FEATURE_NOT_SUPPORTED),
            (
                "SELECT set_config('app.x', set_config('app.y', '1', false), false)",
                SqlState::FEATURE_NOT_SUPPORTED,
            ),
        ];
        for (sql, code) in fails {
            assert_eq!(error_of(&client, sql).await, code, "{sql}");
            let prepared = client.query(sql, &[]).await.unwrap_err();
            assert_eq!(prepared.code(), Some(&code), "{sql}");
        }
        // (As with any pool, a setting that nobody has set is empty where somebody else has.)
        assert_ne!(rows(&client, "SELECT current_setting('app.x', true)").await, "1");

        // A failure inside a transaction, and back to a savepoint.
        run(&client, &["BEGIN", "SELECT set_config('app.x', '1', false)", "SAVEPOINT s"]).await;
        let computed = "SELECT set_config('app.x', (1 / 0)::text, false)";
        assert_eq!(error_of(&client, computed).await, SqlState::DIVISION_BY_ZERO);
        assert_eq!(error_of(&client, "SELECT 1").await, SqlState::IN_FAILED_SQL_TRANSACTION);
        run(&client, &["ROLLBACK TO s"]).await;
        assert_eq!(
            error_of(&client, "SELECT set_config('role', 'x', true)").await,
            SqlState::FEATURE_NOT_SUPPORTED
        );
        run(&client, &["ROLLBACK TO s", "COMMIT"]).await;
        assert_eq!(rows(&client, "SELECT current_setting('app.x')").await, "1");

        // A customised setting, up to the end of the statement: nobody else can see it.
        let in_passing = "SELECT set_config('app.y', '2', true), current_setting('app.y')";
        assert_eq!(rows(&client, in_passing).await, "2 2");
        run(&client, &["BEGIN"]).await;
        assert_eq!(rows(&client, in_passing).await, "2 2");
        assert_eq!(rows(&client, "SELECT current_setting('app.y')").await, "2");
        run(&client, &["ROLLBACK"]).await;
        let among_others = "SELECT set_config('app.y', '2', true), current_setting('app.y'), 1";
        run(&client, &["BEGIN"]).await;
        assert_eq!(error_of(&client, among_others).await, SqlState::FEATURE_NOT_SUPPORTED);
        run(&client, &["ROLLBACK"]).await;
    });
}

/// What a query answers, with the names and types of its columns, by both protocols; or its error.
async fn answers(client: &Client, sql: &str) -> String {
    let texts = match client.simple_query(sql).await {
        Ok(messages) => format!("{messages:?}"),
        Err(error) => {
            error.as_db_error().map_or("?".to_owned(), |e| format!("{:?} {}", e.code(), e.message()))
        }
    };
    // Described before it is executed, with results in binary form.
    let prepared = match client.prepare(sql).await {
        Ok(prepared) => prepared,
        Err(error) => return format!("{texts} {:?}", error.code()),
    };
    let columns: Vec<_> = prepared.columns().iter().map(|c| (c.name().to_owned(), c.type_().oid())).collect();
    let values = match client.query(&prepared, &[]).await {
        Ok(rows) => {
            let values = rows.iter().flat_map(|row| (0..row.len()).map(|i| row.get::<_, Option<String>>(i)));
            format!("{:?}", values.collect::<Vec<_>>())
        }
        Err(error) => format!("{:?}", error.code()),
    };
    format!("{texts} {columns:?} {values}")
}

#[test]
fn settings_are_shown_and_set_from_left_to_right_as_by_one_server() {
    block_on(async {
        let three = Three::start();
        let (through, alone) = (three.client().await, connect(&three.file.replicas[0].dsn).await);
        let script = [
            // What asyncpg sends before it asks for types.
            "SELECT current_setting('jit') AS cur, set_config('jit', 'off', false) AS new",
            "SELECT current_setting('jit')",
            "SELECT set_config('a.b', '1', false), current_setting('a.b'), set_config('a.b', '2', false) AS b, current_setting('a.b')",
            "SELECT current_setting('a.b'), set_config('a.c', current_setting('a.b') || 'x', false), current_setting('a.c') AS c",
            "SELECT current_setting('no.such', true), set_config('a.b', '3', false)",
            "SELECT current_setting('no.such'), set_config('a.b', '4', false)",
            "SELECT current_setting('nosuch'), set_config('a.b', '4', false)",
            "SELECT set_config('a.b', '4', false), current_setting('nosuch', false)",
            "SELECT set_config('a.b', '5', false), current_setting(NULL), current_setting('nosuch', NULL)",
            "SELECT set_config('a.b', '6', false), current_setting('a.b', 'perhaps')",
            "SELECT set_config('a.b', '6', false), current_setting('a.b', 'yes')",
            "SELECT current_setting('a.b')",
            "SELECT set_config('statement_timeout', '61000', false), current_setting('statement_timeout'), current_setting('lock_timeout')",
            "SELECT current_setting('Statement_Timeout') AS before, set_config('statement_timeout', '0', false)",
            "SELECT set_config('DateStyle', 'German', true), current_setting('datestyle')",
            "SELECT current_setting('datestyle')",
            "BEGIN",
            "SELECT set_config('DateStyle', 'German', true), current_setting('datestyle')",
            "SELECT current_setting('datestyle'), set_config('work_mem', '7MB', true), current_setting('work_mem')",
            "SELECT (date '2001-02-03')::text",
            "COMMIT",
            "SELECT current_setting('datestyle'), current_setting('work_mem')",
            "BEGIN",
            "SELECT set_config('a.b', '7', false), current_setting('nosuch')",
            "SELECT 1",
            "ROLLBACK",
            "SELECT current_setting('a.b')",
        ];
        for sql in script {
            assert_eq!(answers(&through, sql).await, answers(&alone, sql).await, "{sql}");
        }
        // With parameters, as asyncpg sets back what was before.
        let set = through.prepare("SELECT current_setting($1), set_config($1, $2, false)").await.unwrap();
        let row = through.query_one(&set, &[&"jit", &"on"]).await.unwrap();
        assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("off", "on"));
        assert_eq!(rows(&through, "SHOW jit").await, "on");
    });
}

#[test]
fn settings_of_applications_are_right_in_what_is_written() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        let script = [
            "CREATE TABLE t (id int PRIMARY KEY, who text DEFAULT current_setting('app.user', true), note text)",
            "SELECT set_config('app.user', 'ada', false)",
            "INSERT INTO t (id) VALUES (1)",
            "INSERT INTO t VALUES (2, current_setting('app.user'), 'x')",
            "BEGIN",
            "SELECT set_config('app.user', 'bo', true)",
            "INSERT INTO t (id) VALUES (3)",
            "UPDATE t SET note = current_setting('app.user') WHERE id = 2",
            "COMMIT",
            "UPDATE t SET note = 'of ' || current_setting('app.user') WHERE who = current_setting('app.user') AND id = 1",
        ];
        run(&client, &script).await;
        let expected = "1 ada of ada, 2 ada bo, 3 bo -";
        let contents = "SELECT * FROM t ORDER BY id";
        assert_eq!(rows(&client, contents).await, expected);
        assert_eq!(three.everywhere(contents).await, expected);
    });
}

#[test]
fn policies_that_read_settings_of_applications_hold_on_every_replica() {
    block_on(async {
        let three = Three::start();
        let owner = three.client().await;
        let script = [
            "CREATE ROLE app LOGIN",
            "CREATE TABLE t (id int PRIMARY KEY, tenant text, note text)",
            "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY p ON t USING (tenant = current_setting('app.tenant'))",
            "GRANT ALL ON t TO app",
            "INSERT INTO t VALUES (1, 'one', ''), (2, 'two', '')",
        ];
        run(&owner, &script).await;
        let client = three.client_of("app").await;
        assert_eq!(rows(&client, "SELECT current_user").await, "app");
        let script = [
            "BEGIN",
            "SELECT set_config('app.tenant', 'one', true)",
            "INSERT INTO t VALUES (3, 'one', '')",
            "UPDATE t SET note = 'seen'",
            "COMMIT",
            "SELECT set_config('app.tenant', 'two', false)",
            "UPDATE t SET note = 'seen by two'",
            "INSERT INTO t VALUES (4, 'two', 'x')",
            "DELETE FROM t WHERE note = 'x'",
        ];
        run(&client, &script).await;
        assert_eq!(
            error_of(&client, "INSERT INTO t VALUES (5, 'one', '')").await,
            SqlState::INSUFFICIENT_PRIVILEGE
        );
        let expected = "1 one seen, 2 two seen by two, 3 one seen";
        let contents = "SELECT * FROM t ORDER BY id";
        assert_eq!(three.everywhere(contents).await, expected);
    });
}

#[test]
fn what_a_transaction_sets_back_is_set_back_in_its_record() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        client.batch_execute(SCHEMAS).await.unwrap();
        let script = [
            "CREATE TABLE public.t (id int PRIMARY KEY, at timestamptz)",
            "SET search_path = a; SET TimeZone = 'Asia/Tokyo'",
            // Back to the defaults for this transaction.
            "BEGIN",
            "SET LOCAL search_path TO DEFAULT",
            "SET LOCAL TimeZone TO DEFAULT",
            "INSERT INTO t VALUES (1, '2001-01-01 00:00')",
            "COMMIT",
            "INSERT INTO t VALUES (2, '2001-01-02 09:00')",
            // And by RESET, which lasts; unless it is rolled back.
            "BEGIN",
            "INSERT INTO t VALUES (3, '2001-01-03 09:00')",
            "SAVEPOINT s",
            "RESET search_path",
            "INSERT INTO t VALUES (4, '2001-01-04 09:00')",
            "SET LOCAL search_path = b",
            "INSERT INTO t VALUES (5, '2001-01-05 09:00')",
            "RESET search_path",
            "INSERT INTO t VALUES (6, '2001-01-06 09:00')",
            "ROLLBACK TO s",
            "INSERT INTO t VALUES (7, '2001-01-07 09:00')",
            "RESET TimeZone",
            "SET TIME ZONE INTERVAL '+02:00' HOUR TO MINUTE",
            "INSERT INTO t VALUES (8, '2001-01-08 02:00')",
            "COMMIT",
            "INSERT INTO t VALUES (9, '2001-01-09 02:00')",
            "RESET ALL",
            "INSERT INTO t VALUES (10, '2001-01-10 00:00')",
        ];
        run(&client, &script).await;
        let expected = "public 1, a 2, a 3, a 7, a 8, a 9, public 10";
        let contents = "SELECT 'public', id FROM public.t UNION ALL SELECT 'a', id FROM a.t
                        UNION ALL SELECT 'b', id FROM b.t ORDER BY 2";
        assert_eq!(rows(&client, contents).await, expected);
        let moments = "SELECT id, at AT TIME ZONE 'UTC' = make_timestamp(2001, 1, id, 0, 0, 0)
                       FROM a.t WHERE id <> 1 ORDER BY 1";
        assert_eq!(rows(&client, moments).await, "2 t, 3 t, 7 t, 8 t, 9 t");
        assert_eq!(three.everywhere(contents).await, expected);
        assert_eq!(three.everywhere(moments).await, "2 t, 3 t, 7 t, 8 t, 9 t");
    });
}
