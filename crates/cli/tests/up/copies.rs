//! What would make copies differ silently, since the numbers of rows that statements affect do not tell: each test runs
//! it, and then compares what the replicas hold.

use super::clients::{block_on, connect, rows};
use super::three::Three;
use std::cell::Cell;
use std::time::Duration;
use tokio_postgres::Client;

async fn code(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "done".to_owned(),
        Err(error) => error.code().unwrap_or_else(|| panic!("{sql}: {error}")).code().to_owned(),
    }
}

#[test]
fn rows_that_an_ordinary_role_changed_are_shipped() {
    block_on(async {
        let three = Three::start();
        let admin = three.client().await;
        let schema = "CREATE ROLE ada LOGIN; CREATE TABLE note (id int PRIMARY KEY, owner text DEFAULT current_user, r float8);
                      ALTER TABLE note ENABLE ROW LEVEL SECURITY;
                      CREATE POLICY own ON note USING (owner = current_user);
                      GRANT SELECT, INSERT, DELETE ON note TO ada; GRANT UPDATE (r) ON note TO ada";
        admin.batch_execute(schema).await.unwrap();
        let ada = three.client_of("ada").await;
        for sql in [
            "INSERT INTO note (id, r) VALUES (1, random()), (2, random())",
            "INSERT INTO note (id, r) SELECT n, random() FROM generate_series(3, 40) n",
            "UPDATE note SET r = random() WHERE id < 10",
            "DELETE FROM note WHERE r < random() AND id > 30",
            "BEGIN; INSERT INTO note (id) VALUES (50); UPDATE note SET r = random() WHERE id = 50;
             INSERT INTO note (id) VALUES (51); COMMIT",
        ] {
            assert_eq!(code(&ada, sql).await, "done", "{sql}");
        }
        let found =
            three.everywhere("SELECT count(*) FILTER (WHERE id < 30), count(DISTINCT owner) FROM note").await;
        assert_eq!(found, "29 1");
        three.everywhere("SELECT id, owner, r FROM note ORDER BY id").await;
    });
}

#[test]
fn literals_are_read_under_the_settings_of_the_session_that_sends_them() {
    block_on(async {
        let three = Three::start();
        let clients = [three.client().await, three.client().await];
        clients[0]
            .batch_execute("CREATE TABLE t (id int PRIMARY KEY, at timestamptz, day date)")
            .await
            .unwrap();
        let settings = [
            "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, MDY'",
            "SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'ISO, DMY'",
        ];
        let insert = "INSERT INTO t VALUES ($1, '2020-01-01 00:00', '03/04/2020')";
        let update = "UPDATE t SET at = at + interval '1 day' WHERE id = $1 AND at = '2020-01-01 00:00'";
        let read = "SELECT extract(epoch FROM '2020-01-01 00:00'::timestamptz)::text, '03/04/2020'::date::text, $1::int";
        let expected = [("1577836800.000000", "2020-03-04"), ("1577804400.000000", "2020-04-03")];
        for round in 0..4 {
            for (i, client) in clients.iter().enumerate() {
                // Outside of transactions, and inside of one that changes its settings for itself.
                let other = if round == 3 { 1 - i } else { i };
                client.batch_execute(if round == 3 { "BEGIN" } else { settings[i] }).await.unwrap();
                if round == 3 {
                    client.batch_execute(&settings[other].replace("SET ", "SET LOCAL ")).await.unwrap();
                }
                let id = round * 2 + i32::try_from(i).unwrap();
                assert_eq!(client.execute(insert, &[&id]).await.unwrap(), 1);
                assert_eq!(client.execute(update, &[&id]).await.unwrap(), 1, "its own literal finds the row");
                let row = client.query_one(read, &[&id]).await.unwrap();
                assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), expected[other]);
                if round == 3 {
                    client.batch_execute("COMMIT").await.unwrap();
                }
            }
        }
        let all = "SELECT string_agg(id::text, ' ' ORDER BY id), at AT TIME ZONE 'UTC', to_char(day, 'MM-DD') FROM t GROUP BY 2, 3 ORDER BY 2";
        assert_eq!(
            three.everywhere(all).await,
            "1 3 5 6 2020-01-01 15:00:00 04-03, 0 2 4 7 2020-01-02 00:00:00 03-04"
        );
    });
}

#[test]
fn a_literal_that_names_now_is_read_anew_by_each_parse() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        let read = "SELECT ('now'::timestamptz)::text, $1::int";
        let mut seen = Vec::new();
        for i in 0..6 {
            seen.push(client.query_one(read, &[&i]).await.unwrap().get::<_, String>(0));
        }
        seen.dedup();
        assert_eq!(seen.len(), 6, "{seen:?}");
    });
}

#[test]
fn what_with_clauses_return_is_equal_everywhere_or_refused() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        client
            .batch_execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int, r float8); INSERT INTO a SELECT generate_series(1, 9)")
            .await
            .unwrap();
        for sql in [
            "WITH d AS (DELETE FROM a RETURNING id, random() AS r) INSERT INTO b SELECT id, r FROM d",
            "WITH d AS (UPDATE a SET id = 10 WHERE id = 9 RETURNING id, (SELECT count(*) FROM pg_class) AS r) INSERT INTO b SELECT id, r FROM d",
        ] {
            assert_eq!(code(&client, sql).await, "0A000", "{sql}");
        }
        let plain = "WITH d AS (DELETE FROM a WHERE id < 5 RETURNING id, id * 2 AS r) INSERT INTO b SELECT id, r FROM d";
        assert_eq!(code(&client, plain).await, "done");
        assert_eq!(code(&client, "DELETE FROM a WHERE id = 5 RETURNING random()").await, "done");
        assert_eq!(three.everywhere("SELECT (SELECT count(*) FROM a), sum(r) FROM b").await, "4 20");
    });
}

#[test]
fn definitions_that_keep_a_moment_are_refused() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        client
            .batch_execute("CREATE TABLE t (id int PRIMARY KEY, at timestamptz DEFAULT now())")
            .await
            .unwrap();
        for sql in [
            "CREATE TABLE u (at timestamptz DEFAULT 'now')",
            "CREATE TABLE u (at timestamptz DEFAULT 'now'::timestamptz)",
            "ALTER TABLE t ALTER COLUMN at SET DEFAULT 'today 12:00 UTC'",
            "ALTER TABLE t ADD COLUMN day date DEFAULT 'tomorrow'",
            "ALTER TABLE t ADD CHECK (at < timestamptz 'tomorrow')",
            "CREATE VIEW v AS SELECT 'now'::timestamptz AS at",
            "CREATE DOMAIN moment AS timestamptz DEFAULT 'now'",
            "CREATE FUNCTION f() RETURNS timestamptz LANGUAGE sql RETURN 'now'::timestamptz",
            "CREATE POLICY p ON t USING (at < 'now'::timestamptz)",
            "CREATE ROLE short VALID UNTIL 'tomorrow'",
        ] {
            assert_eq!(code(&client, sql).await, "0A000", "{sql}");
        }
        for sql in [
            "CREATE TABLE kept (id int PRIMARY KEY, what text DEFAULT 'today'::text, at date DEFAULT current_date)",
            "COMMENT ON TABLE t IS 'now'",
            "COMMENT ON TABLE kept IS 'what is there today'",
            "ALTER TABLE t ADD COLUMN note text DEFAULT 'now it works'",
            "CREATE TYPE span AS ENUM ('today', 'tomorrow')",
        ] {
            assert_eq!(code(&client, sql).await, "done", "{sql}");
        }
        three
            .everywhere("SELECT adbin IS NULL, pg_get_expr(adbin, adrelid) FROM pg_attrdef ORDER BY 2")
            .await;
    });
}

#[test]
fn defaults_that_servers_would_draw_by_themselves_are_refused() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        let schema = "CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p SELECT generate_series(0, 50);
                      CREATE DOMAIN drawn AS float8 DEFAULT random(); CREATE DOMAIN seven AS int DEFAULT 7;
                      CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 9)";
        client.batch_execute(schema).await.unwrap();
        assert_eq!(code(&client, "ALTER TABLE t ADD COLUMN r drawn").await, "0A000");
        assert_eq!(
            code(&client, "ALTER TABLE t ADD COLUMN r drawn DEFAULT 1, ADD COLUMN s seven").await,
            "done"
        );

        client
            .batch_execute(
                "CREATE TABLE c (id int PRIMARY KEY, p int DEFAULT (random() * 50)::int REFERENCES p ON DELETE SET DEFAULT);
                 INSERT INTO c VALUES (1, 9), (2, 9)",
            )
            .await
            .unwrap();
        assert_eq!(code(&client, "DELETE FROM p WHERE id = 9").await, "0A000");
        assert_eq!(code(&client, "ALTER TABLE c ALTER COLUMN p SET DEFAULT 3").await, "done");
        assert_eq!(code(&client, "DELETE FROM p WHERE id = 9").await, "done");
        assert_eq!(three.everywhere("SELECT id, p FROM c ORDER BY id").await, "1 3, 2 3");
        assert_eq!(three.everywhere("SELECT sum(r), sum(s) FROM t").await, "9 63");
    });
}

#[test]
fn foreign_keys_act_where_shipped_deletions_are_applied() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        let schema = "CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 30);
                      CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p ON DELETE CASCADE, q int REFERENCES p ON DELETE SET NULL);
                      CREATE TABLE g (id int PRIMARY KEY, c int REFERENCES c ON DELETE CASCADE);
                      INSERT INTO c SELECT n, n, 31 - n FROM generate_series(1, 30) n; INSERT INTO g SELECT n, n FROM generate_series(1, 30) n";
        client.batch_execute(schema).await.unwrap();
        for sql in [
            "DELETE FROM p WHERE id IN (SELECT id FROM p LIMIT 3)",
            "DELETE FROM p WHERE random() < 0.3",
            "WITH x AS (SELECT id FROM p ORDER BY random() LIMIT 2) DELETE FROM p USING x WHERE p.id = x.id",
        ] {
            assert_eq!(code(&client, sql).await, "done", "{sql}");
        }
        three.everywhere("SELECT id FROM p ORDER BY 1").await;
        three.everywhere("SELECT id, p, q FROM c ORDER BY 1").await;
        three.everywhere("SELECT id, c FROM g ORDER BY 1").await;
        client.batch_execute("ALTER TABLE p ADD COLUMN g int REFERENCES g ON DELETE CASCADE").await.unwrap();
        assert_eq!(code(&client, "DELETE FROM p WHERE random() < 2").await, "0A000", "a circle of cascades");
    });
}

#[test]
fn shipped_rows_keep_identity_columns_and_what_settings_would_hide() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        let schema = "CREATE TABLE t (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, f float8, at timestamptz);
                      INSERT INTO t (id) SELECT generate_series(1, 5)";
        client.batch_execute(schema).await.unwrap();
        for (sql, expected) in [
            ("UPDATE t SET f = random() WHERE id < 4", "done"),
            (
                "INSERT INTO t (id, f) VALUES (5, random()) ON CONFLICT (id) DO UPDATE SET f = random()",
                "done",
            ),
            ("SET extra_float_digits = 0", "done"),
            ("UPDATE t SET f = pi() / 7 + 0 * random()", "0A000"),
            ("UPDATE t SET f = pi() / 7", "done"),
            (
                "RESET extra_float_digits; SET TimeZone = 'Asia/Shanghai'; SET DateStyle = 'Postgres, MDY'",
                "done",
            ),
            ("UPDATE t SET at = timestamptz '2020-05-05 10:00' WHERE random() < 2", "0A000"),
            ("UPDATE t SET at = timestamptz '2020-05-05 10:00'", "done"),
            ("RESET DateStyle", "done"),
            ("UPDATE t SET at = at + interval '1 day' WHERE random() < 2", "done"),
        ] {
            assert_eq!(code(&client, sql).await, expected, "{sql}");
        }
        three.everywhere("SELECT id, n, f, at FROM t ORDER BY id").await;
        assert_eq!(three.everywhere("SELECT sum(n), count(DISTINCT at) FROM t").await, "15 1");
    });
}

#[test]
fn definitions_change_while_other_sessions_lock_tables_and_draw_numbers() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        // Numbers are drawn, and at once a definition changes that locks the sequence.
        for i in 0..4 {
            let sql = [
                format!("CREATE TABLE t{i} (id serial PRIMARY KEY, v int)"),
                format!("INSERT INTO t{i} (v) VALUES (1)"),
                format!("ALTER SEQUENCE t{i}_id_seq INCREMENT 2"),
                format!("INSERT INTO t{i} (v) VALUES (1)"),
                format!("TRUNCATE t{i} RESTART IDENTITY"),
                format!("INSERT INTO t{i} (v) VALUES (1)"),
            ];
            for sql in sql {
                assert_eq!(code(&client, &sql).await, "done", "{sql}");
            }
        }
        // They hold up nobody who changes other definitions, nor that these are read.
        let mut holders = Vec::new();
        for i in 0..4 {
            let holder = three.client().await;
            let schema = format!("CREATE TABLE held{i} (id serial PRIMARY KEY, v int CHECK (v > 0))");
            holder.batch_execute(&schema).await.unwrap();
            holder.batch_execute(&format!("BEGIN; LOCK TABLE held{i}")).await.unwrap();
            holders.push(holder);
        }
        for i in 0..4 {
            let sql = format!("CREATE TABLE made{i} (id int PRIMARY KEY CHECK (id > 0))");
            assert_eq!(code(&client, &sql).await, "done");
        }
        for (i, holder) in holders.iter().enumerate() {
            let end = format!("INSERT INTO held{i} (v) VALUES (1); COMMIT");
            // Where every server held a table, some had to let go.
            assert!(["done", "40001"].contains(&code(holder, &end).await.as_str()));
        }
        assert_eq!(three.everywhere("SELECT (SELECT id FROM t0), (SELECT id FROM t3)").await, "1 1");
    });
}

/// Takes some seconds: as long as locks on tables are waited for.
#[test]
fn sessions_past_onecopy_that_lock_tables_are_not_ended_so_that_definitions_can_be_read() {
    block_on(async {
        let three = Three::start();
        let (client, holder) = (three.client().await, three.client().await);
        for table in ["theirs", "held"] {
            let schema = format!("CREATE TABLE {table} (id int PRIMARY KEY CHECK (id > 0))");
            client.batch_execute(&schema).await.unwrap();
        }
        three.assert_identical();
        let mut others = Vec::new();
        for replica in &three.file.replicas {
            let other = connect(&replica.dsn).await;
            other.batch_execute("BEGIN; LOCK TABLE theirs").await.unwrap();
            others.push(other);
        }
        holder.batch_execute("BEGIN; LOCK TABLE held").await.unwrap();
        let changing = async { code(&client, "CREATE TABLE made (id int PRIMARY KEY CHECK (id > 0))").await };
        let releasing = async {
            // Which server the transaction of onecopy's is open on is the scheduler's choice.
            for other in &others {
                let locks = "SELECT count(*) FROM pg_locks WHERE relation = 'held'::regclass";
                while rows(other, locks).await != "0" {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            for other in &others {
                other.batch_execute("COMMIT").await.unwrap();
            }
        };
        let (changed, ()) = tokio::join!(changing, releasing);
        assert_eq!(changed, "done");
        // The one of onecopy's goes on elsewhere, where it needs no lock of a server: it holds the table here.
        assert_eq!(code(&holder, "INSERT INTO held VALUES (1)").await, "done");
    });
}

#[test]
fn changes_of_definitions_wait_for_a_transaction_that_has_changed_some_and_are_heeded_after_it() {
    block_on(async {
        let three = Three::start();
        let (changing, other) = (three.client().await, three.client().await);
        changing.batch_execute("CREATE TABLE note (id int PRIMARY KEY, r float8)").await.unwrap();
        changing.batch_execute("BEGIN; CREATE TABLE mine (id serial PRIMARY KEY, v int)").await.unwrap();
        let alter = other.batch_execute("ALTER TABLE note ALTER r SET DEFAULT random()");
        let change = async {
            super::wait_until("the other change waits", || {
                !three.status()["waits"].as_array().unwrap().is_empty()
            });
            // Under the definitions that it has read, this is executed by every replica for itself.
            changing
                .batch_execute("INSERT INTO mine (v) VALUES (1); INSERT INTO note (id) VALUES (1); COMMIT")
                .await
        };
        let (altered, changed) = tokio::join!(alter, change);
        altered.unwrap();
        changed.unwrap();
        changing.batch_execute("INSERT INTO note (id) VALUES (2)").await.unwrap();
        let counts = "SELECT count(*), count(r), (SELECT v FROM mine) FROM note";
        assert_eq!(three.everywhere(counts).await, "2 1 1");
    });
}

#[test]
fn errors_are_those_of_the_server() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        let schema = "CREATE SEQUENCE few MAXVALUE 2; CREATE SEQUENCE down INCREMENT -1 MINVALUE -2 START -2;
                      CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent VALUES (1);
                      CREATE TABLE child (id int PRIMARY KEY, parent int CONSTRAINT has_parent REFERENCES parent
                          DEFERRABLE INITIALLY DEFERRED)";
        client.batch_execute(schema).await.unwrap();
        let drawn = |name: &str| format!("SELECT nextval('{name}')");
        for (name, sql) in [("few", drawn("few")), ("few", drawn("few")), ("down", drawn("down"))] {
            assert_eq!(code(&client, &sql).await, "done", "{name}");
        }
        let failed = async |sql: &str| {
            let error = client.batch_execute(sql).await.unwrap_err();
            error.as_db_error().unwrap().clone()
        };
        for (name, words) in [
            ("few", "maximum value of sequence \"few\" (2)"),
            ("down", "minimum value of sequence \"down\" (-2)"),
        ] {
            let error = failed(&drawn(name)).await;
            assert_eq!(error.code().code(), "2200H");
            assert_eq!(error.message(), format!("nextval: reached {words}"));
        }

        let error = failed("BEGIN; INSERT INTO child VALUES (1, 7); COMMIT").await;
        assert_eq!(error.code().code(), "23503");
        let names = (error.schema(), error.table(), error.constraint());
        assert_eq!(names, (Some("public"), Some("child"), Some("has_parent")));
        assert_eq!(three.everywhere("SELECT count(*) FROM child").await, "0");
    });
}

#[test]
fn a_query_sees_one_state_whatever_its_functions_are_declared() {
    block_on(async {
        let three = Three::start();
        let (reader, writer) = (three.client().await, three.client().await);
        let schema = "CREATE TABLE account (id int PRIMARY KEY, n int); INSERT INTO account VALUES (1, 0);
                      CREATE FUNCTION seen(int) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT n FROM account WHERE id = 1'";
        reader.batch_execute(schema).await.unwrap();
        let written = Cell::new(0);
        let writes = async {
            loop {
                writer.batch_execute("UPDATE account SET n = n + 1 WHERE id = 1").await.unwrap();
                written.set(written.get() + 1);
            }
        };
        let reads = async {
            let mut rounds = 0;
            while rounds < 5 || written.get() < 20 {
                rounds += 1;
                let sql = "SELECT count(DISTINCT seen(g)) FROM generate_series(1, 3000) g";
                assert_eq!(super::clients::rows(&reader, sql).await, "1");
                let prepared = reader.query_one(sql, &[]).await.unwrap();
                assert_eq!(prepared.get::<_, i64>(0), 1);
            }
        };
        // Who writes goes on for as long as somebody reads.
        tokio::select! {
            () = writes => {}
            () = reads => {}
        }
    });
}

#[test]
fn what_is_called_without_being_named_is_called_on_every_replica_or_not_at_all() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        let schema = "CREATE TABLE seen (n int); CREATE TABLE plain (id int PRIMARY KEY, x float8);
                      CREATE TYPE coin AS (side float8); CREATE TABLE tossed (id int PRIMARY KEY, c coin);
                      CREATE FUNCTION toss(int) RETURNS coin LANGUAGE sql VOLATILE AS 'SELECT row(random())::coin';
                      CREATE CAST (int AS coin) WITH FUNCTION toss(int) AS ASSIGNMENT;
                      CREATE FUNCTION note(int) RETURNS bool LANGUAGE sql VOLATILE
                          AS 'INSERT INTO seen VALUES ($1) RETURNING true';
                      CREATE DOMAIN noted AS int CHECK (note(VALUE));
                      CREATE FUNCTION adds(int, int) RETURNS int LANGUAGE sql VOLATILE
                          AS 'INSERT INTO seen VALUES ($2); SELECT $1 + $2';
                      CREATE AGGREGATE summed (int) (sfunc = adds, stype = int, initcond = '0');
                      CREATE FUNCTION guessed(a float8 DEFAULT random()) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT a';
                      CREATE TABLE parted (id int, x float8, PRIMARY KEY (id)) PARTITION BY LIST (id);
                      CREATE TABLE part PARTITION OF parted (x DEFAULT random()) FOR VALUES IN (1)";
        client.batch_execute(schema).await.unwrap();
        let calls = [
            ("INSERT INTO tossed VALUES (1, 7)", "done"),
            ("SELECT 7::noted", "done"),
            ("SELECT summed(n) FROM seen", "0A000"),
            ("INSERT INTO plain VALUES (1, guessed())", "done"),
            ("INSERT INTO part (id) VALUES (1)", "done"),
            ("UPDATE part SET x = DEFAULT WHERE id = 1", "done"),
        ];
        for (sql, expected) in calls {
            assert_eq!(code(&client, sql).await, expected, "{sql}");
        }
        let counts =
            "SELECT (SELECT count(c) FROM tossed), (SELECT count(*) FROM seen), (SELECT count(x) FROM plain),
                      (SELECT count(x) FROM part)";
        assert_eq!(three.everywhere(counts).await, "1 1 1 1");
    });
}
