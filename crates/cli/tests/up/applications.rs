//! What everyday applications do: each test runs it through onecopy, compares it with what PostgreSQL is known to do, and
//! then compares what the replicas hold.

use super::clients::{block_on, connect, json, rows};
use super::three::Three;
use super::{Up, folder};
use futures_util::{SinkExt, future::join_all};
use onecopy_cluster::{Binaries, ClusterFile};
use std::path::Path;
use std::pin::pin;
use std::process::{Command, Stdio};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

/// A cluster of three with a client.
struct Application {
    three: Three,
    client: Client,
}

impl Application {
    async fn start(schema: &str) -> Application {
        let three = Three::start();
        let client = three.client().await;
        client.batch_execute(schema).await.unwrap();
        Application { three, client }
    }

    /// A query's answer, which is the same through onecopy and on each replica by itself.
    async fn everywhere(&self, sql: &str) -> String {
        let answer = rows(&self.client, sql).await;
        assert_eq!(self.three.everywhere(sql).await, answer, "{sql}");
        answer
    }

    async fn copy_in(&self, sql: &str, data: &'static [u8]) -> u64 {
        let mut sink = pin!(self.client.copy_in(sql).await.unwrap());
        sink.send(data).await.unwrap();
        sink.finish().await.unwrap()
    }
}

async fn refused(client: &Client, sql: &str) -> SqlState {
    client.batch_execute(sql).await.unwrap_err().code().cloned().unwrap()
}

#[test]
fn time_is_one_value_for_the_reads_and_writes_of_a_transaction() {
    block_on(async {
        let mut app =
            Application::start("CREATE TABLE note (id int PRIMARY KEY, at timestamptz DEFAULT now())").await;
        let now = "SELECT now()::text, current_timestamp::text, transaction_timestamp()::text";
        let client = &mut app.client;

        let transaction = client.transaction().await.unwrap();
        let first = transaction.query_one(now, &[]).await.unwrap();
        let moment: String = first.get(0);
        assert_eq!((first.get::<_, String>(1), first.get::<_, String>(2)), (moment.clone(), moment.clone()));
        assert_eq!(first.columns()[1].name(), "current_timestamp", "columns keep their names");
        transaction.execute("INSERT INTO note VALUES (1)", &[]).await.unwrap();
        let stored = transaction.query_one("SELECT at::text FROM note WHERE id = 1", &[]).await.unwrap();
        assert_eq!(stored.get::<_, String>(0), moment, "what is stored is what was read before");
        let prepared = transaction.prepare("SELECT now()::text, $1::int").await.unwrap();
        let again = transaction.query_one(&prepared, &[&5]).await.unwrap();
        assert_eq!((again.get::<_, String>(0), again.get::<_, i32>(1)), (moment.clone(), 5));
        transaction.commit().await.unwrap();

        let later: String = client.query_one(now, &[]).await.unwrap().get(0);
        assert_ne!(later, moment, "another transaction has another time");

        // Several statements in one message, and several before one Sync, are one transaction.
        let messages = client
            .simple_query(
                "INSERT INTO note VALUES (2); SELECT count(*) FROM note WHERE at = now() AND id = 2",
            )
            .await
            .unwrap();
        let counts: Vec<&str> = messages
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect();
        assert_eq!(counts, ["1"]);
        app.everywhere("SELECT * FROM note ORDER BY id").await;
    });
}

#[test]
fn rows_of_a_query_get_numbers_in_its_order() {
    block_on(async {
        let app = Application::start(
            "CREATE TABLE source (id int PRIMARY KEY, name text);
             INSERT INTO source SELECT n, 'name ' || n FROM generate_series(1, 100) n;
             CREATE TABLE target (id serial PRIMARY KEY, tens bigint GENERATED ALWAYS AS IDENTITY (INCREMENT 10),
                 name varchar(20) UNIQUE, at timestamptz DEFAULT now(), token uuid DEFAULT gen_random_uuid())",
        )
        .await;
        let client = &app.client;
        let insert = "INSERT INTO target (name) SELECT name FROM source WHERE id <= 3 ORDER BY id DESC \
                      RETURNING id, tens, name";
        assert_eq!(rows(client, insert).await, "1 1 name 3, 2 11 name 2, 3 21 name 1");
        assert_eq!(rows(client, "SELECT currval('target_id_seq'), lastval()").await, "3 21");

        // The prepared form, with a parameter and a literal that take their types from the columns.
        let text = "WITH s AS (SELECT * FROM source WHERE id BETWEEN $1 AND $2) \
                    INSERT INTO target (name, at, token) SELECT s.name, '2026-01-02 03:04:05+00', $3 FROM s ORDER BY s.id \
                    ON CONFLICT (name) DO NOTHING RETURNING id, name";
        let token = "00000000-0000-0000-0000-000000000001";
        let typed = text.replace("$3", &format!("'{token}'"));
        let inserted = client.query(&typed, &[&3, &5]).await.unwrap();
        let found: Vec<(i32, String)> = inserted.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(found, [(5, "name 4".to_owned()), (6, "name 5".to_owned())], "the known row has used 4");

        // Many rows travel as one COPY; what must be escaped there is.
        let odd = r"INSERT INTO target (name) SELECT E'a\tb\\' || n || E'\n' FROM generate_series(1, 40) n";
        assert_eq!(client.execute(odd, &[]).await.unwrap(), 40);
        assert_eq!(
            client
                .execute("INSERT INTO target (name) SELECT name FROM source WHERE id < 0", &[])
                .await
                .unwrap(),
            0
        );

        // A draw by chance may yield more rows when it is repeated.
        let chance = "INSERT INTO target (name) SELECT 'chance ' || id FROM source WHERE random() < 0.5";
        client.execute(chance, &[]).await.unwrap();

        assert_eq!(
            refused(client, "INSERT INTO target (name) SELECT repeat(name, 9) FROM source").await,
            SqlState::STRING_DATA_RIGHT_TRUNCATION
        );
        let all = "SELECT count(*) - count(DISTINCT id), count(*) - count(DISTINCT tens), \
                   count(*) FILTER (WHERE name LIKE E'a\\tb%'), count(*) FILTER (WHERE at = '2026-01-02 03:04:05+00') FROM target";
        assert_eq!(app.everywhere(all).await, "0 0 40 2");
    });
}

#[test]
fn rows_inserted_in_a_with_clause_get_numbers() {
    block_on(async {
        let app = Application::start(
            "CREATE TABLE invoice (id serial PRIMARY KEY, at timestamptz DEFAULT now());
             CREATE TABLE line (id bigint GENERATED ALWAYS AS IDENTITY, invoice int REFERENCES invoice, text text)",
        )
        .await;
        let both = "WITH new AS (INSERT INTO invoice DEFAULT VALUES RETURNING id), \
                    first AS (INSERT INTO line (invoice, text) VALUES ((SELECT id FROM new), $1) RETURNING id) \
                    SELECT new.id, first.id FROM new, first";
        for number in 1..=2_i32 {
            let row = app.client.query_one(both, &[&"a line"]).await.unwrap();
            assert_eq!((row.get::<_, i32>(0), row.get::<_, i64>(1)), (number, i64::from(number)));
        }
        assert_eq!(
            app.everywhere("SELECT id, invoice, text FROM line ORDER BY id").await,
            "1 1 a line, 2 2 a line"
        );
        app.everywhere("SELECT * FROM invoice ORDER BY id").await;
    });
}

#[test]
fn column_is_added_with_the_time_as_its_default() {
    block_on(async {
        let app = Application::start(
            "CREATE TABLE t (id serial PRIMARY KEY, v int); INSERT INTO t (v) VALUES (1), (2)",
        )
        .await;
        let client = &app.client;
        client
            .batch_execute("ALTER TABLE t ADD COLUMN made timestamptz NOT NULL DEFAULT now()")
            .await
            .unwrap();
        client
            .execute("ALTER TABLE t ADD COLUMN day date DEFAULT current_date, ADD n int DEFAULT 3", &[])
            .await
            .unwrap();
        client
            .execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS made timestamptz DEFAULT now()", &[])
            .await
            .unwrap();
        client.execute("INSERT INTO t (v) VALUES (3)", &[]).await.unwrap();
        let found = "SELECT count(DISTINCT made), count(*) FILTER (WHERE made > (SELECT min(made) FROM t)), sum(n) FROM t";
        assert_eq!(app.everywhere(found).await, "2 1 9");
        let defaults = "SELECT column_default FROM information_schema.columns WHERE table_name = 't' \
                        AND column_name IN ('made', 'day') ORDER BY column_name";
        assert_eq!(app.everywhere(defaults).await, "CURRENT_DATE, now()");
        assert_eq!(
            refused(client, "ALTER TABLE t ADD COLUMN token uuid DEFAULT gen_random_uuid()").await,
            SqlState::FEATURE_NOT_SUPPORTED
        );
    });
}

#[test]
fn clients_that_number_rows_at_once_never_get_one_number_twice() {
    block_on(async {
        let app = Application::start("CREATE TABLE item (id bigserial PRIMARY KEY, client int, n int)").await;
        let clients = (0..4).map(|number| {
            let dsn = app.three.file.client.dsn.clone();
            async move {
                let client = connect(&dsn).await;
                for round in 0..10 {
                    let sql = format!(
                        "INSERT INTO item (client, n) SELECT {number}, n FROM generate_series(1, {}) n",
                        round % 5 + 1
                    );
                    client.batch_execute(&sql).await.unwrap();
                    client
                        .batch_execute(&format!("INSERT INTO item (client) VALUES ({number})"))
                        .await
                        .unwrap();
                }
            }
        });
        join_all(clients).await;
        assert_eq!(app.everywhere("SELECT count(*), count(DISTINCT id) FROM item").await, "160 160");
    });
}

#[test]
fn rows_copied_in_get_what_copy_leaves_out() {
    block_on(async {
        let mut app = Application::start(
            "CREATE TABLE visit (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, page text NOT NULL,
                 at timestamptz DEFAULT now(), chance float8 DEFAULT random())",
        )
        .await;
        assert_eq!(app.copy_in("COPY visit (page) FROM STDIN", b"/\n/a\\tb\n").await, 2);
        assert_eq!(
            app.copy_in("COPY visit (page) FROM STDIN (FORMAT csv, HEADER)", b"page\n\"/c\"\"d\"\n").await,
            1
        );
        let direct = "COPY visit (id, page, at, chance) FROM STDIN";
        assert_eq!(app.copy_in(direct, b"100\t/given\t2026-01-01\t0.5\n").await, 1);

        // What one COPY does wrong leaves nothing behind, neither rows nor tables of ours.
        let mut sink = Box::pin(app.client.copy_in("COPY visit (page) FROM STDIN").await.unwrap());
        sink.send(&b"/x\n\\N\n"[..]).await.unwrap();
        assert_eq!(sink.as_mut().finish().await.unwrap_err().code(), Some(&SqlState::NOT_NULL_VIOLATION));

        let transaction = app.client.transaction().await.unwrap();
        {
            let mut sink = pin!(transaction.copy_in("COPY visit (page) FROM STDIN").await.unwrap());
            sink.send(&b"/in\n"[..]).await.unwrap();
            assert_eq!(sink.finish().await.unwrap(), 1);
        }
        let now = "SELECT count(*) FROM visit WHERE page = '/in' AND at = now()";
        assert_eq!(transaction.query_one(now, &[]).await.unwrap().get::<_, i64>(0), 1);
        transaction.commit().await.unwrap();

        let all = "SELECT id, page FROM visit ORDER BY id";
        let found = app.everywhere(all).await;
        assert!(found.starts_with("1 /, 2 /a\tb, 3 /c\"d, "), "{found}");
        assert!(found.ends_with("100 /given") && found.contains("/in"), "{found}");
        let different = "SELECT count(DISTINCT chance) FROM visit";
        assert_eq!(app.everywhere(different).await, "5");
        assert_eq!(app.everywhere("SELECT count(*) FROM pg_class WHERE relname = 'onecopy_rows'").await, "0");
    });
}

/// Each replica would read such a word by its own clock.
#[test]
fn rows_copied_in_never_hold_a_moment_that_each_replica_reads_for_itself() {
    block_on(async {
        let mut app = Application::start(
            "CREATE DOMAIN days AS date[];
             CREATE TABLE entry (id int PRIMARY KEY, at timestamptz DEFAULT now(), note text, during tsrange, off days)",
        )
        .await;
        let send = async |client: &Client, sql: &str, pieces: Vec<&'static [u8]>| {
            let mut sink = Box::pin(client.copy_in(sql).await.unwrap());
            for piece in pieces {
                // The server may have given up already.
                let _ = sink.send(piece).await;
                let _ = sink.flush().await;
            }
            sink.as_mut().finish().await.map_err(|error| error.as_db_error().unwrap().clone())
        };
        let (text, csv) = ("COPY entry FROM STDIN", "COPY entry (at, id) FROM STDIN (FORMAT csv, HEADER)");
        for (sql, pieces) in [
            (text, vec![&b"1\tno"[..], b"w\t\\N\t\\N\t\\N\n"]),
            (text, vec![b"1\t2020-01-01\tx\t[yesterday,)\t\\N\n", b"2\t2020-01-01\tx\t\\N\t\\N\n"]),
            (text, vec![b"1\t\\N\t\\N\t\\N\t{2020-01-01,Today}"]),
            (csv, vec![b"at,id\n2020-01-01,1\n", b"\"tomor", b"row\",2\n"]),
        ] {
            let error = send(&app.client, sql, pieces).await.unwrap_err();
            assert_eq!(error.code(), &SqlState::FEATURE_NOT_SUPPORTED, "{error}");
            assert!(error.message().contains("by the clock") && error.hint().is_some(), "{error}");
        }
        assert_eq!(app.everywhere("SELECT count(*) FROM entry").await, "0");

        // Prose may hold any word, and a column that is left out gets its moment from onecopy.
        let prose = b"1\t2020-01-01 10:00+00\tcall me now, not tomorrow\t\\N\t{2020-01-01}\n";
        assert_eq!(send(&app.client, text, vec![prose]).await.unwrap(), 1);
        let left_out = "COPY entry (id, note, off) FROM STDIN";
        assert_eq!(send(&app.client, left_out, vec![b"2\tx\t{today}\n"]).await.unwrap(), 1);

        // A transaction fails as after any error, and its savepoint brings it back.
        let transaction = app.client.transaction().await.unwrap();
        transaction.batch_execute("SAVEPOINT before").await.unwrap();
        {
            let mut sink = pin!(transaction.copy_in("COPY entry (id, at) FROM STDIN").await.unwrap());
            sink.send(&b"3\tnow\n"[..]).await.unwrap();
            assert_eq!(sink.finish().await.unwrap_err().code(), Some(&SqlState::FEATURE_NOT_SUPPORTED));
        }
        transaction
            .batch_execute("ROLLBACK TO before; INSERT INTO entry (id, at) VALUES (3, 'now')")
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        let found = app.everywhere("SELECT id, at, note, off FROM entry ORDER BY id").await;
        assert!(found.contains("call me now"), "{found}");
    });
}

#[test]
fn text_becomes_moments_unless_it_names_one_by_the_clock() {
    block_on(async {
        let app = Application::start(
            "CREATE TABLE raw (id int PRIMARY KEY, day text, at varchar(40));
             INSERT INTO raw VALUES (1, '2026-01-01', '2026-01-01 10:00'), (2, 'Today', 'snow')",
        )
        .await;
        let client = &app.client;
        let convert = "ALTER TABLE raw ALTER COLUMN day TYPE date USING day::date";
        assert_eq!(refused(client, convert).await, SqlState::FEATURE_NOT_SUPPORTED);
        client.batch_execute("UPDATE raw SET day = '2026-01-02' WHERE id = 2").await.unwrap();
        client.batch_execute(convert).await.unwrap();
        // By the extended protocol, in a transaction that goes on.
        client.batch_execute("BEGIN; SAVEPOINT before").await.unwrap();
        let convert = "ALTER TABLE raw ALTER COLUMN at TYPE timestamptz USING at::timestamptz";
        assert_eq!(
            client.execute(convert, &[]).await.unwrap_err().code(),
            Some(&SqlState::INVALID_DATETIME_FORMAT)
        );
        client
            .batch_execute("ROLLBACK TO before; UPDATE raw SET at = 'tomorrow' WHERE id = 2")
            .await
            .unwrap();
        assert_eq!(
            client.execute(convert, &[]).await.unwrap_err().code(),
            Some(&SqlState::FEATURE_NOT_SUPPORTED)
        );
        client.batch_execute("ROLLBACK TO before; UPDATE raw SET at = NULL WHERE id = 2").await.unwrap();
        client.execute(convert, &[]).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        let found = app.everywhere("SELECT id, day + 1, at IS NULL FROM raw ORDER BY id").await;
        assert_eq!(found, "1 2026-01-02 f, 2 2026-01-03 t");
    });
}

/// What PostGIS and its topology bring into a database, and the event trigger of PostgREST.
#[test]
fn databases_with_extensions_and_event_triggers_are_served() {
    block_on(async {
        let app = Application::start(
            "CREATE TYPE shape AS (area float8); CREATE TYPE topo AS (id int);
             CREATE FUNCTION same_shape(shape, shape) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT ($1).area = ($2).area';
             CREATE OPERATOR = (LEFTARG = shape, RIGHTARG = shape, FUNCTION = same_shape);
             CREATE FUNCTION shape_of(topo) RETURNS shape LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN row(random())::shape; END';
             CREATE CAST (topo AS shape) WITH FUNCTION shape_of(topo) AS IMPLICIT;
             CREATE TABLE parcel (id int PRIMARY KEY, s shape, name text);
             CREATE AGGREGATE joined (text) (sfunc = textcat, stype = text);
             CREATE FUNCTION tell() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN NOTIFY pgrst, 'reload schema'; END $$;
             CREATE EVENT TRIGGER watch ON ddl_command_end EXECUTE FUNCTION tell()",
        )
        .await;
        let client = &app.client;
        client.batch_execute("ALTER TABLE parcel ADD COLUMN note text DEFAULT '' NOT NULL").await.unwrap();
        client
            .batch_execute("INSERT INTO parcel VALUES (1, '(2)', 'a'), (2, '(3)'::shape, 'b')")
            .await
            .unwrap();
        client.execute("UPDATE parcel SET s = row(4)::shape WHERE id = $1", &[&2]).await.unwrap();
        assert_eq!(app.everywhere("SELECT id, name FROM parcel WHERE s = '(4)'").await, "2 b");
        assert_eq!(app.everywhere("SELECT joined(name ORDER BY id) FROM parcel WHERE note = ''").await, "ab");
        // What would make replicas different stays refused.
        let cast = "UPDATE parcel SET s = row(1)::topo::shape WHERE id = 1";
        assert_eq!(refused(client, cast).await, SqlState::FEATURE_NOT_SUPPORTED);
    });
}

#[test]
fn sequences_that_are_set_or_restarted_go_on_from_there() {
    block_on(async {
        let app = Application::start("CREATE TABLE t (id serial PRIMARY KEY, v text)").await;
        let client = &app.client;
        let insert = "INSERT INTO t (v) VALUES ('x') RETURNING id";
        assert_eq!(rows(client, "SELECT setval('t_id_seq', 41)").await, "41");
        assert_eq!(rows(client, insert).await, "42");
        assert_eq!(rows(client, "SELECT setval('public.t_id_seq', 7, false)").await, "7");
        assert_eq!(rows(client, insert).await, "7");
        let of_rows = client.query_one("SELECT setval('t_id_seq', (SELECT max(id) FROM t) + $1)", &[&10_i32]);
        assert_eq!(of_rows.await.unwrap().get::<_, i64>(0), 52);
        assert_eq!(rows(client, insert).await, "53");
        // As frameworks do it after loading rows with their keys.
        let reset = "SELECT setval(pg_get_serial_sequence('\"t\"', 'id'), coalesce(max(\"id\"), 1), max(\"id\") IS NOT null) FROM \"t\";";
        client.batch_execute("INSERT INTO t VALUES (70, 'y')").await.unwrap();
        assert_eq!(rows(client, reset).await, "70");
        assert_eq!(rows(client, insert).await, "71");
        client.batch_execute("BEGIN; INSERT INTO t VALUES (80, 'y')").await.unwrap();
        assert_eq!(rows(client, "SELECT setval('t_id_seq', max(id)) FROM t").await, "80");
        client.batch_execute("COMMIT; BEGIN; DELETE FROM t").await.unwrap();
        assert_eq!(rows(client, reset).await, "1");
        assert_eq!(rows(client, insert).await, "1");
        client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(
            refused(client, "SELECT setval('t_id_seq', 0)").await,
            SqlState::NUMERIC_VALUE_OUT_OF_RANGE
        );
        assert_eq!(rows(client, "SELECT setval('t_id_seq', NULL)").await, "-");
        // Back to the beginning: at once on every replica, since a restart reads it there.
        let state = "SELECT last_value, is_called FROM t_id_seq";
        client.batch_execute("SELECT setval('t_id_seq', 1, false)").await.unwrap();
        // (A replica that is asked directly may still have to apply it: compare first.)
        app.everywhere("SELECT 1").await;
        assert_eq!(app.everywhere(state).await, "1 f");
        client.batch_execute("SELECT setval('t_id_seq', 1, false)").await.unwrap();
        client
            .batch_execute("CREATE SEQUENCE down INCREMENT -5; SELECT setval('down', -1, false)")
            .await
            .unwrap();
        app.everywhere("SELECT 1").await;
        assert_eq!(app.everywhere("SELECT last_value, is_called FROM down").await, "-1 f");
        assert_eq!(rows(client, "SELECT nextval('down')").await, "-1");
        // Not undone by a rollback, as in PostgreSQL.
        client.batch_execute("BEGIN; SELECT setval('t_id_seq', 90); ROLLBACK").await.unwrap();
        assert_eq!(rows(client, insert).await, "91");
        client.batch_execute("TRUNCATE t RESTART IDENTITY").await.unwrap();
        assert_eq!(rows(client, insert).await, "1");
        client.batch_execute("ALTER SEQUENCE t_id_seq RESTART WITH 500").await.unwrap();
        assert_eq!(rows(client, insert).await, "500");

        // A transaction that makes a table can fill it.
        let made = "BEGIN;
            CREATE TABLE u (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
            INSERT INTO u (v) VALUES ('a'), ('b');
            INSERT INTO u (v) SELECT 'c' FROM generate_series(1, 3);
            COMMIT";
        client.batch_execute(made).await.unwrap();
        assert_eq!(rows(client, "INSERT INTO u (v) VALUES ('d') RETURNING id").await, "6");
        assert_eq!(app.everywhere("SELECT id, v FROM u ORDER BY id").await, "1 a, 2 b, 3 c, 4 c, 5 c, 6 d");
        assert_eq!(app.everywhere("SELECT id FROM t ORDER BY id").await, "1, 500");
    });
}

const SHOP: &str = "
    CREATE SCHEMA shop;
    CREATE TYPE shop.mood AS ENUM ('sad', 'happy');
    CREATE DOMAIN shop.mail AS text CHECK (VALUE ~ '@');
    CREATE TABLE shop.customer (id serial PRIMARY KEY, name text NOT NULL, mail shop.mail, mood shop.mood DEFAULT 'happy',
        created timestamptz DEFAULT now());
    CREATE TABLE shop.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer_id int REFERENCES shop.customer ON DELETE CASCADE, total numeric(10, 2),
        twice numeric GENERATED ALWAYS AS (total * 2) STORED);
    CREATE TABLE shop.node (id int PRIMARY KEY, up int REFERENCES shop.node);
    CREATE INDEX ON shop.orders (customer_id);
    CREATE UNIQUE INDEX ON shop.customer (lower(name));
    CREATE VIEW shop.spent AS SELECT c.name, sum(o.total) AS total FROM shop.customer c
        JOIN shop.orders o ON o.customer_id = c.id GROUP BY c.name;
    INSERT INTO shop.customer (name, mail) SELECT 'customer ' || n, n || '@example.org' FROM generate_series(1, 30) n;
    INSERT INTO shop.orders (customer_id, total) SELECT n, n * 1.5 FROM generate_series(1, 30) n;
    INSERT INTO shop.node VALUES (1, NULL), (2, 1)";

fn run(program: &str, arguments: &[&str], input: Option<&Path>) -> String {
    let mut command = Command::new(Binaries::find().unwrap().program(program));
    if let Some(input) = input {
        command.stdin(Stdio::from(std::fs::File::open(input).unwrap()));
    }
    let output = command.args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn dump_of_another_server_is_restored_into_an_empty_database() {
    block_on(async {
        let app = Application::start("").await;
        // Another database of a replica, of which onecopy knows nothing, plays the other server.
        let direct = &app.three.file.replicas[0].dsn;
        connect(direct).await.batch_execute("CREATE DATABASE origin").await.unwrap();
        let origin = direct.replace("dbname=postgres", "dbname=origin");
        connect(&origin).await.batch_execute(SHOP).await.unwrap();
        let dump = run("pg_dump", &["-d", &origin], None);
        let file = app.three.dir.path().join("dump.sql");
        std::fs::write(&file, &dump).unwrap();
        let through = app.three.file.client.dsn.clone();
        let restore = ["-XqAt", "-v", "ON_ERROR_STOP=1", "-d", &through];

        run("psql", &restore, Some(&file));
        let client = &app.client;
        let insert = "INSERT INTO shop.customer (name, mail) VALUES ('new', 'n@example.org') RETURNING id";
        assert_eq!(rows(client, insert).await, "31", "numbers go on where the dump says");
        assert_eq!(
            rows(client, "INSERT INTO shop.orders (customer_id, total) VALUES (31, 4) RETURNING id, twice")
                .await,
            "31 8.00"
        );
        let contents = "SELECT (SELECT count(*) FROM shop.customer), (SELECT sum(total) FROM shop.spent), \
                        (SELECT count(*) FROM shop.node WHERE up = 1)";
        assert_eq!(app.everywhere(contents).await, "31 701.50 1");

        // In one transaction, after everything is gone.
        client.batch_execute("DROP SCHEMA shop CASCADE").await.unwrap();
        run("psql", &[&restore[..], &["-1"]].concat(), Some(&file));
        assert_eq!(rows(client, insert).await, "31");
        assert_eq!(app.everywhere(contents).await, "31 697.50 1");

        // A dump that is read through onecopy is as good, though its numbers may be those that are reserved.
        let again = run("pg_dump", &["-N", "onecopy", "-d", &through], None);
        std::fs::write(&file, &again).unwrap();
        client.batch_execute("DROP SCHEMA shop CASCADE").await.unwrap();
        run("psql", &restore, Some(&file));
        assert_eq!(app.everywhere(contents).await, "31 697.50 1");
        let more =
            "INSERT INTO shop.customer (name, mail) VALUES ('newer', 'n@example.org') RETURNING id > 31";
        assert_eq!(rows(client, more).await, "t");
    });
}

#[test]
fn pgbench_makes_its_tables_in_both_ways() {
    block_on(async {
        let app = Application::start("").await;
        let dsn = app.three.file.client.dsn.clone();
        for steps in ["dtgvp", "dtGvpf"] {
            run("pgbench", &["-i", "-q", "-s", "1", "-I", steps, &dsn], None);
            let counts =
                "SELECT (SELECT count(*) FROM pgbench_accounts), (SELECT count(*) FROM pgbench_tellers)";
            assert_eq!(app.everywhere(counts).await, "100000 10", "{steps}");
        }
    });
}

#[test]
fn schema_is_created_with_what_is_in_it() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let client = connect(&ClusterFile::read(dir.path()).unwrap().client.dsn).await;
        let script = [
            "CREATE TABLE parent (id int PRIMARY KEY)",
            "INSERT INTO parent VALUES (1)",
            "CREATE SCHEMA s
                 CREATE VIEW v AS SELECT id, of FROM t
                 CREATE TABLE t (id serial PRIMARY KEY, of int REFERENCES public.parent)
                 CREATE INDEX ON t (of)
                 GRANT SELECT ON v TO PUBLIC",
            "INSERT INTO s.t (of) VALUES (1), (NULL)",
            "BEGIN",
            "CREATE SCHEMA own CREATE TABLE t (id serial PRIMARY KEY, at timestamptz DEFAULT now())",
            "INSERT INTO own.t DEFAULT VALUES",
            "COMMIT",
        ];
        for sql in script {
            client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
        assert_eq!(
            rows(&client, "SELECT v.id, v.of, own.t.id FROM s.v, own.t ORDER BY 1").await,
            "1 1 1, 2 - 1"
        );
        let refused = client.batch_execute("INSERT INTO s.t (of) VALUES (2)").await.unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::FOREIGN_KEY_VIOLATION));
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
    });
}

#[test]
fn unlogged_relations_are_kept_logged_since_a_crash_would_empty_one_copy() {
    block_on(async {
        let app = Application::start(
            "CREATE UNLOGGED TABLE plain (id serial PRIMARY KEY, n int);
             CREATE UNLOGGED TABLE queried AS SELECT 1 AS n; SELECT 1 AS n INTO UNLOGGED TABLE selected;
             CREATE SCHEMA other CREATE UNLOGGED TABLE inner_one (id int)",
        )
        .await;
        let client = &app.client;
        client.execute("CREATE UNLOGGED TABLE prepared (id int PRIMARY KEY)", &[]).await.unwrap();
        client.execute("ALTER TABLE plain SET UNLOGGED, ADD COLUMN unlogged int", &[]).await.unwrap();
        // In a transaction whose own definitions decide.
        client
            .batch_execute("BEGIN; CREATE TABLE late (id int); ALTER TABLE late SET UNLOGGED; COMMIT")
            .await
            .unwrap();
        let held = "SELECT count(*), count(*) FILTER (WHERE relpersistence <> 'p') FROM pg_class \
                    WHERE relname IN ('plain', 'queried', 'selected', 'inner_one', 'prepared', 'late', 'plain_id_seq')";
        assert_eq!(app.everywhere(held).await, "7 0");
        assert_eq!(rows(client, "INSERT INTO plain (n) VALUES (1) RETURNING id, unlogged").await, "1 -");
    });
}
