//! Settings that change what a statement means: the other replicas must execute it under the same ones.

use super::clients::{block_on, connect, json, rows};
use super::three::Three;
use super::{Up, folder, wait_until};
use onecopy_cluster::ClusterFile;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// Two schemas with a table of the same name each.
async fn two_schemas(client: &Client) {
    let schemas = "CREATE SCHEMA a; CREATE SCHEMA b;
                   CREATE TABLE a.t (id serial PRIMARY KEY, at timestamptz);
                   CREATE TABLE b.t (id serial PRIMARY KEY, at timestamptz)";
    client.batch_execute(schemas).await.unwrap();
}

const CONTENTS: &str = "SELECT 'a', id, at AT TIME ZONE 'UTC' FROM a.t
                        UNION ALL SELECT 'b', id, at AT TIME ZONE 'UTC' FROM b.t ORDER BY 1, 2";

#[test]
fn settings_change_within_a_session_and_replicas_follow() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        two_schemas(&client).await;
        let script = [
            "SET search_path = a; SET TimeZone = 'UTC'",
            "INSERT INTO t (at) VALUES ('2001-01-01 00:00')",
            "CREATE TABLE made (id int PRIMARY KEY)",
            // Between two writes of one transaction.
            "BEGIN",
            "INSERT INTO t (at) VALUES ('2001-01-02 00:00')",
            "SET search_path = b",
            "SET TimeZone = 'Asia/Tokyo'",
            "INSERT INTO t (at) VALUES ('2001-01-03 09:00')",
            "COMMIT",
            // Only for this transaction, and only for a part of it.
            "BEGIN",
            "SET LOCAL search_path = a",
            "INSERT INTO t (at) VALUES ('2001-01-04 09:00')",
            "SAVEPOINT s",
            "SET search_path = b",
            "INSERT INTO t (at) VALUES ('1999-01-01 00:00')",
            "ROLLBACK TO s",
            "INSERT INTO t (at) VALUES ('2001-01-05 09:00')",
            "SET search_path = b",
            "INSERT INTO t (at) VALUES ('2001-01-06 09:00')",
            "COMMIT",
            // A transaction that fails takes its settings with it.
            "BEGIN",
            "SET search_path = a",
            "ROLLBACK",
            "INSERT INTO t (at) VALUES ('2001-01-07 09:00')",
        ];
        for sql in script {
            client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
        let prepared = client.prepare("INSERT INTO t (at) VALUES ('2001-01-08 09:00')").await.unwrap();
        client.execute(&prepared, &[]).await.unwrap();
        client.batch_execute("RESET search_path; SET search_path = a, public").await.unwrap();
        client.execute(&prepared, &[]).await.unwrap();

        let expected = "a 1 2001-01-01 00:00:00, a 2 2001-01-02 00:00:00, a 3 2001-01-04 00:00:00, \
                        a 4 2001-01-05 00:00:00, a 5 2001-01-08 00:00:00, b 1 2001-01-03 00:00:00, \
                        b 2 2001-01-06 00:00:00, b 3 2001-01-07 00:00:00, b 4 2001-01-08 00:00:00";
        // A number that was drawn and rolled back is gone, as with one server.
        let shape = |text: String| {
            let without_ids = text.split(", ").map(|row| {
                let cells: Vec<&str> = row.splitn(3, ' ').collect();
                format!("{} {}", cells[0], cells[2])
            });
            without_ids.collect::<Vec<_>>()
        };
        assert_eq!(shape(rows(&client, CONTENTS).await), shape(expected.to_owned()));
        let verified = json(dir.path(), &["verify"]);
        assert_eq!(verified["identical"], true, "{verified}");
        for replica in &file.replicas {
            let direct = connect(&replica.dsn).await;
            assert_eq!(shape(rows(&direct, CONTENTS).await), shape(expected.to_owned()), "{}", replica.name);
            assert_eq!(
                rows(&direct, "SELECT to_regclass('a.made'), to_regclass('public.made')").await,
                "a.made -"
            );
        }
    });
}

#[test]
fn reading_definitions_inside_a_transaction_leaves_no_trace_in_it() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        let shown = "SELECT current_setting('jit'), current_setting('search_path')";
        client.batch_execute("SET jit = on; CREATE SCHEMA a; CREATE TABLE big (id int)").await.unwrap();
        client
            .batch_execute("BEGIN; SET LOCAL search_path = a; SAVEPOINT onecopy_definitions")
            .await
            .unwrap();
        client.batch_execute("DECLARE c CURSOR FOR SELECT 7; CREATE TABLE t (id int)").await.unwrap();
        assert_eq!(rows(&client, shown).await, "on a");
        assert_eq!(rows(&client, "FETCH c").await, "7");
        client.batch_execute("INSERT INTO t VALUES (1); ROLLBACK TO onecopy_definitions").await.unwrap();
        let gone = client.batch_execute("SELECT * FROM t").await.unwrap_err();
        assert_eq!(gone.code(), Some(&SqlState::UNDEFINED_TABLE));
        client.batch_execute("ROLLBACK TO onecopy_definitions; CREATE TABLE t (id text)").await.unwrap();
        // After these the definitions are known as they are.
        let kept = "ALTER TABLE t OWNER TO postgres; COMMENT ON TABLE t IS 'noted'";
        client.batch_execute(kept).await.unwrap();
        let comment = "SELECT obj_description('a.t'::regclass)";
        assert_eq!(rows(&client, comment).await, "noted");
        client.batch_execute("INSERT INTO t VALUES ('x'); COMMIT").await.unwrap();
        client.batch_execute("COMMENT ON TABLE a.t IS 'noted again'").await.unwrap();
        assert_eq!(rows(&client, comment).await, "noted again");
        assert_eq!(rows(&client, "SELECT id FROM a.t").await, "x");
        assert_eq!(rows(&client, shown).await, "on \"$user\", public");
    });
}

#[test]
fn text_that_is_not_utf_8_is_an_error_and_the_session_goes_on() {
    use std::io::{Read, Write};
    let dir = folder();
    let _up = Up::ready(dir.path(), 1);
    let file = ClusterFile::read(dir.path()).unwrap();
    let port: u16 = super::parameter(&file.client.dsn, "port").parse().unwrap();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let message = |tag: &[u8], body: &[u8]| {
        let len = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [tag, &len, body].concat()
    };
    let startup = [&196_608_u32.to_be_bytes()[..], b"user\0postgres\0database\0postgres\0\0"].concat();
    stream.write_all(&message(b"", &startup)).unwrap();
    stream.write_all(&message(b"Q", b"SELECT '\xe9'\0")).unwrap();
    // The same in the extended protocol, up to its Sync.
    stream.write_all(&message(b"P", b"\0SELECT '\xff'\0\0\0")).unwrap();
    stream.write_all(&message(b"P", b"\0SELECT '\xff'\0\0\0")).unwrap();
    stream.write_all(&message(b"S", b"")).unwrap();
    stream.write_all(&message(b"Q", b"SELECT 'goes on'\0")).unwrap();
    stream.write_all(&message(b"X", b"")).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    let code = SqlState::CHARACTER_NOT_IN_REPERTOIRE.code();
    assert_eq!(answer.matches(&format!("C{code}\0")).count(), 2, "{answer:?}");
    assert!(answer.contains("invalid byte sequence for encoding \"UTF8\": 0xe9 0x27"), "{answer:?}");
    assert!(answer.contains("goes on"), "{answer:?}");
}

#[test]
fn a_role_and_a_database_begin_with_settings_of_their_own() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let before = connect(&file.client.dsn).await;
        two_schemas(&before).await;
        let script = "ALTER DATABASE postgres SET search_path = b;
                      ALTER ROLE postgres SET TimeZone = 'Asia/Tokyo'";
        before.batch_execute(script).await.unwrap();
        // Sessions that began earlier go on as they were; those that begin now follow the new settings.
        before.batch_execute("SET search_path = a").await.unwrap();
        before.batch_execute("INSERT INTO t (at) VALUES ('2001-01-01 00:00+00')").await.unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("INSERT INTO t (at) VALUES ('2001-01-02 09:00')").await.unwrap();
        client
            .batch_execute("SET search_path = a; RESET search_path; SET TimeZone = 'UTC'; RESET ALL")
            .await
            .unwrap();
        client.batch_execute("INSERT INTO t (at) VALUES ('2001-01-03 09:00')").await.unwrap();
        assert_eq!(rows(&client, "SHOW search_path").await, "b");
        let expected = "a 1 2001-01-01 00:00:00, b 1 2001-01-02 00:00:00, b 2 2001-01-03 00:00:00";
        assert_eq!(rows(&client, CONTENTS).await, expected);
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
    });
}

/// Connections to replicas are opened before, while and after a role or a database has settings: all are alike.
#[test]
fn sessions_are_as_they_began_on_connections_opened_at_any_time() {
    block_on(async {
        let three = Three::start();
        let early: Vec<Client> = three.clients(4).await;
        early[0].batch_execute("CREATE TABLE t (id serial PRIMARY KEY, x interval, y text)").await.unwrap();
        // Begun together, they need connections of their own, most of which are opened only now.
        async fn write(clients: &[Client], shown: &str) {
            for client in clients {
                client.batch_execute("BEGIN; INSERT INTO t (x) VALUES ('1 2:00')").await.unwrap();
                client.batch_execute("INSERT INTO t (y) VALUES ('1 2:00'::interval::text)").await.unwrap();
            }
            let settings = "SELECT '1 2:00'::interval, current_setting('statement_timeout')";
            for client in clients {
                assert_eq!(rows(client, settings).await, shown);
                client.batch_execute("COMMIT").await.unwrap();
            }
        }
        let set = "ALTER ROLE postgres SET IntervalStyle = 'sql_standard'; ALTER DATABASE postgres SET statement_timeout = '1h'";
        early[0].batch_execute(set).await.unwrap();
        write(&early, "1 day 02:00:00 0").await;
        let between = three.clients(6).await;
        write(&between, "1 2:00:00 1h").await;
        let unset = "ALTER ROLE postgres RESET ALL; ALTER DATABASE postgres RESET ALL";
        early[0].batch_execute(unset).await.unwrap();
        write(&three.clients(8).await, "1 day 02:00:00 0").await;
        write(&between, "1 2:00:00 1h").await;
        let written = "SELECT string_agg(DISTINCT y, ', ' ORDER BY y), count(*), count(DISTINCT x) FROM t";
        assert_eq!(three.everywhere(written).await, "1 2:00:00, 1 day 02:00:00 48 1");
    });
}

/// Agents, too, connect again while a role has settings, and records end with settings that nobody has set.
#[test]
fn records_are_applied_under_their_settings_on_connections_opened_at_any_time() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        let set = "CREATE TABLE t (id serial PRIMARY KEY, y text); ALTER ROLE postgres SET IntervalStyle = 'sql_standard'";
        client.batch_execute(set).await.unwrap();
        for replica in &three.file.replicas {
            let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                       WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
            rows(&connect(&replica.dsn).await, end).await;
            wait_until("replicas are back", || {
                let status = three.status();
                status["replicas"].as_array().unwrap().iter().all(|replica| replica["state"] == "up")
            });
        }
        let client = three.client().await;
        client.batch_execute("ALTER ROLE postgres RESET ALL").await.unwrap();
        let client = three.client().await;
        let write = "INSERT INTO t (y) VALUES ('1 2:00'::interval::text)";
        for block in [
            "SET LOCAL IntervalStyle = 'iso_8601'",
            "SET LOCAL IntervalStyle TO DEFAULT",
            "RESET ALL",
            "RESET IntervalStyle",
        ] {
            client.batch_execute(&format!("BEGIN; {write}; {block}; {write}; COMMIT")).await.unwrap();
            for _ in 0..3 {
                client.batch_execute(write).await.unwrap();
            }
        }
        let written = "SELECT y, count(*) FROM t GROUP BY y ORDER BY y";
        assert_eq!(three.everywhere(written).await, "1 day 02:00:00 19, P1DT2H 1");
    });
}

/// Settings that cannot be made anew on a connection leave nothing of another session's in force there.
#[test]
fn a_session_whose_settings_are_no_longer_valid_writes_nowhere_else() {
    block_on(async {
        let three = Three::start();
        let (one, two) = (three.client().await, three.client().await);
        let schema = "CREATE SCHEMA a; CREATE SCHEMA b; CREATE TABLE a.t (x text); CREATE TABLE b.t (x text);
                      CREATE TEXT SEARCH CONFIGURATION a.own (COPY = simple)";
        two.batch_execute(schema).await.unwrap();
        one.batch_execute("SET search_path = a; SET default_text_search_config = 'a.own'").await.unwrap();
        one.batch_execute("INSERT INTO t VALUES ('one')").await.unwrap();
        two.batch_execute("DROP TEXT SEARCH CONFIGURATION a.own; SET search_path = b").await.unwrap();
        for _ in 0..3 {
            two.batch_execute("INSERT INTO t VALUES ('two')").await.unwrap();
            let error = one.batch_execute("INSERT INTO t VALUES ('one')").await.unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::INVALID_PARAMETER_VALUE), "{error:?}");
        }
        one.batch_execute("RESET default_text_search_config").await.unwrap();
        one.batch_execute("INSERT INTO t VALUES ('one')").await.unwrap();
        assert_eq!(
            three.everywhere("SELECT (SELECT count(*) FROM a.t), (SELECT count(*) FROM b.t)").await,
            "2 3"
        );
    });
}

#[test]
fn what_a_role_begins_with_is_heeded_or_refused() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        let roles = "CREATE TABLE t (x int); CREATE ROLE grp; CREATE ROLE cy LOGIN IN ROLE grp; ALTER ROLE cy SET role = 'grp';
                     CREATE ROLE reader LOGIN; ALTER ROLE reader SET default_transaction_read_only = on; GRANT ALL ON t TO reader";
        client.batch_execute(roles).await.unwrap();
        let dsn = three.file.client.dsn.replace("user=postgres", "user=cy");
        let refused = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.err().unwrap();
        assert_eq!(refused.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "{refused:?}");
        let reader = three.client_of("reader").await;
        for write in ["INSERT INTO t VALUES (1)", "BEGIN; INSERT INTO t VALUES (1)"] {
            let error = reader.batch_execute(write).await.unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION), "{write}: {error:?}");
        }
        reader.batch_execute("ROLLBACK; BEGIN READ WRITE; INSERT INTO t VALUES (1); COMMIT").await.unwrap();
        // A sequence that was set is read as it is.
        client.batch_execute("CREATE SEQUENCE s").await.unwrap();
        for value in [5_000, 9_000, 13_000] {
            let set = format!("SELECT setval('s', {value})");
            client.batch_execute(&set).await.unwrap();
            let shown = format!("SELECT last_value >= {value} FROM s");
            assert_eq!(rows(&client, &shown).await, "t", "{value}");
        }
    });
}

/// The server's own settings are found whatever the sessions that are asked have set, and whatever their role has.
#[test]
fn sessions_begin_with_the_settings_of_the_servers_file() {
    block_on(async {
        let three = Three::start();
        let boot = three.client().await;
        let script = "CREATE ROLE ada LOGIN SUPERUSER; CREATE SCHEMA app;
                      CREATE TABLE app.t (id int, u uuid DEFAULT gen_random_uuid(), at timestamptz);
                      CREATE TABLE public.t (id int, u uuid, at timestamptz)";
        boot.batch_execute(script).await.unwrap();
        for replica in &three.file.replicas {
            let replica = connect(&replica.dsn).await;
            replica.batch_execute("ALTER SYSTEM SET search_path = app, public").await.unwrap();
            replica.batch_execute("ALTER SYSTEM SET IntervalStyle = 'iso_8601'").await.unwrap();
            replica.batch_execute("SELECT pg_reload_conf()").await.unwrap();
            while rows(&replica, "SHOW IntervalStyle").await != "iso_8601" {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
        let shown = "SELECT current_setting('search_path'), current_setting('IntervalStyle')";
        // Until definitions change, sessions begin as those before them.
        let early = three.client().await;
        early.batch_execute("INSERT INTO t (id) VALUES (0)").await.unwrap();
        assert_eq!(rows(&early, "SELECT count(*) FROM public.t").await, "1");
        let changes = [
            "CREATE TABLE app.later (id int)",
            "ALTER ROLE postgres SET search_path = public; ALTER ROLE postgres SET IntervalStyle = 'postgres'",
            "CREATE TABLE app.later_still (id int)",
            "ALTER ROLE postgres RESET ALL",
            "CREATE TABLE app.last (id int)",
        ];
        for (round, change) in changes.iter().enumerate() {
            boot.batch_execute(change).await.unwrap();
            let of_role = matches!(round, 1 | 2);
            for role in ["ada", "postgres"] {
                let client = three.client_of(role).await;
                let own = of_role && role == "postgres";
                let expected = if own { "public postgres" } else { "app, public iso_8601" };
                assert_eq!(rows(&client, shown).await, expected, "{role} after {change}");
                client.batch_execute("INSERT INTO t (id) VALUES (1)").await.unwrap();
                // They stay on the lane, on which definitions may be read next.
                let sets = "SET search_path = public; SET IntervalStyle = 'sql_standard'";
                client.batch_execute(sets).await.unwrap();
                assert_eq!(rows(&client, shown).await, "public sql_standard");
            }
        }
        let counts = "SELECT (SELECT count(u) FROM app.t), (SELECT count(*) FROM public.t)";
        assert_eq!(three.everywhere(counts).await, "8 3");
    });
}

/// A customised setting that a session has never named is NULL to it, whoever used its servers' sessions before.
#[test]
fn customised_settings_of_a_client_are_unknown_to_the_next() {
    block_on(async {
        let dir = folder();
        // One replica, so that lanes are soon lent again.
        let _up = Up::ready(dir.path(), 1);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let boot = connect(&dsn).await;
        let script = "CREATE TABLE t (id int, tenant text DEFAULT current_setting('app.tenant', true));
                      CREATE FUNCTION f() RETURNS text LANGUAGE sql AS
                      $$ SELECT set_config('app.tenant', 'of a function', true) $$";
        boot.batch_execute(script).await.unwrap();
        let shown = "SELECT current_setting('app.tenant', true) IS NULL, current_setting('APP.tenant', true)";
        let ways = [
            "SET app.tenant = 'x'",
            "SET app.tenant = 'x'; RESET ALL",
            "SELECT set_config('App.Tenant', 'x', false)",
            "BEGIN; SET LOCAL app.tenant = 'x'; INSERT INTO t VALUES (1); COMMIT",
            "BEGIN; INSERT INTO t VALUES (1); SELECT set_config('app.tenant', 'x', true); ROLLBACK",
            "SELECT upper(f())",
        ];
        for way in ways {
            for discards in [false, true] {
                let client = connect(&dsn).await;
                client.batch_execute(way).await.unwrap_or_else(|error| panic!("{way}: {error:?}"));
                if discards {
                    client.batch_execute("DISCARD ALL").await.unwrap();
                }
                for _ in 0..3 {
                    let next = connect(&dsn).await;
                    assert_eq!(rows(&next, shown).await, "t -", "after {way}");
                }
            }
        }
        // What the session itself has set it finds, on whatever lane.
        let client = connect(&format!("{dsn} options='-c app.tenant=own'")).await;
        for _ in 0..3 {
            assert_eq!(rows(&client, shown).await, "f own");
        }
        client.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
        assert_eq!(rows(&client, "SELECT tenant FROM t WHERE id = 2").await, "own");
        assert_eq!(rows(&boot, shown).await, "t -");
    });
}

/// In a transaction, too, RESET returns to what the client asked for when it connected.
#[test]
fn reset_returns_to_what_was_asked_for_at_the_start_inside_a_transaction_too() {
    block_on(async {
        let three = Three::start();
        let boot = three.client().await;
        let script =
            "CREATE SCHEMA b; CREATE TABLE b.t (id int, at text); CREATE TABLE public.t (id int, at text)";
        boot.batch_execute(script).await.unwrap();
        let options = "-c timezone=Asia/Tokyo -c search_path=b,public -c work_mem=5MB -c app.tenant=own";
        let client = connect(&format!("{} options='{options}'", three.file.client.dsn)).await;
        let shown =
            "SELECT current_setting('TimeZone'), current_setting('search_path'), current_setting('work_mem'),
                     current_setting('app.tenant')";
        let begun = "Asia/Tokyo b,public 5MB own";
        assert_eq!(rows(&client, shown).await, begun);
        let insert = "INSERT INTO t VALUES (1, to_char('2020-01-01Z'::timestamptz, 'HH24'))";
        let set =
            "SET TimeZone = 'UTC'; SET search_path = public; SET work_mem = '6MB'; SET app.tenant = 'x'";
        let resets = [
            "RESET ALL",
            "RESET TimeZone; RESET search_path; RESET work_mem; RESET app.tenant",
            "SET LOCAL TimeZone = 'UTC'; SET LOCAL search_path = public; RESET ALL",
        ];
        for (round, reset) in resets.iter().enumerate() {
            for first in ["SELECT 1", "DELETE FROM public.t"] {
                client.batch_execute(&format!("BEGIN; {first}; {set}; {reset}; {insert}")).await.unwrap();
                assert_eq!(rows(&client, shown).await, begun, "{first}; {reset}");
                client.batch_execute("COMMIT").await.unwrap();
                assert_eq!(rows(&client, shown).await, begun, "after {first}; {reset}");
                assert_eq!(rows(&boot, "SELECT count(*) FROM public.t").await, "0", "{round}");
            }
        }
        // By the extended protocol, and undone.
        client.batch_execute(set).await.unwrap();
        client.batch_execute("BEGIN").await.unwrap();
        client.execute("RESET TimeZone", &[]).await.unwrap();
        client.execute("RESET ALL", &[]).await.unwrap();
        assert_eq!(rows(&client, shown).await, begun);
        client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(rows(&client, shown).await, "UTC public 6MB x");
        assert_eq!(three.everywhere("SELECT count(*), min(at), max(at) FROM b.t").await, "6 09 09");
    });
}

#[test]
fn startup_options_are_refused_as_set_refuses_them_and_default_read_only_sessions_change_nothing() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let file = ClusterFile::read(dir.path()).unwrap();
        let begin = async |options: &str| {
            let dsn = format!("{} options='-c {options}'", file.client.dsn);
            tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.map(|(client, connection)| {
                tokio::spawn(connection);
                client
            })
        };
        for options in [
            "session_replication_role=replica",
            "standard_conforming_strings=off",
            "client_encoding=latin1",
            "role=postgres",
            "transaction_timeout=10s",
        ] {
            let error = begin(options).await.err().unwrap();
            assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "{options}: {error}");
        }
        let client = begin("default_transaction_read_only=on").await.unwrap();
        for sql in ["CREATE TABLE t (id int)", "SELECT 1; CREATE TABLE t (id int)"] {
            let error = client.batch_execute(sql).await.unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION), "{sql}");
        }
        assert_eq!(rows(&client, "SELECT 1").await, "1");
        client.batch_execute("BEGIN READ WRITE; CREATE TABLE t (id int); COMMIT").await.unwrap();
        // One message is one transaction, which began read-only.
        for sql in ["SET default_transaction_read_only = off", "INSERT INTO t VALUES (1)"] {
            client.batch_execute(sql).await.unwrap();
        }
        assert_eq!(rows(&client, "SELECT id FROM t").await, "1");
    });
}

#[test]
fn idle_sessions_end_as_they_ask_and_take_no_lane_with_them() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let file = ClusterFile::read(dir.path()).unwrap();
        let replica = connect(&file.replicas[0].dsn).await;
        // The server's own, and a role's: neither may end what all clients share.
        replica.batch_execute("ALTER SYSTEM SET idle_session_timeout = '300ms'").await.unwrap();
        replica.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let begin = async |options: &str| {
            let dsn = format!("{} options='{options}'", file.client.dsn);
            let (client, connection) = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.unwrap();
            (client, tokio::spawn(connection))
        };
        let (client, _) = begin("-c idle_in_transaction_session_timeout=3601s").await;
        assert_eq!(rows(&client, "SHOW idle_in_transaction_session_timeout").await, "3601s");
        client.batch_execute("SET idle_session_timeout TO 90000").await.unwrap();
        assert_eq!(rows(&client, "SHOW idle_session_timeout").await, "90s");
        let set = "SELECT set_config('idle_session_timeout', '2min', false)";
        assert_eq!(rows(&client, set).await, "2min");
        let wrong = client.batch_execute("SET idle_session_timeout = 'soon'").await.unwrap_err();
        assert_eq!(wrong.code(), Some(&SqlState::INVALID_PARAMETER_VALUE));
        client.batch_execute("BEGIN; SET LOCAL idle_session_timeout = 0").await.unwrap();
        assert_eq!(rows(&client, "SHOW idle_session_timeout").await, "0");
        client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(rows(&client, "SHOW idle_session_timeout").await, "2min");
        // Nothing but the transaction that is to be ended, in one message: a pause of this test may end whatever follows.
        let (client, ended) = begin("-c idle_in_transaction_session_timeout=250").await;
        client.batch_execute("BEGIN; CREATE TABLE t (id int)").await.unwrap();
        let error = ended.await.unwrap().unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT), "{error}");

        let (client, ended) = begin("").await;
        client.batch_execute("SET idle_session_timeout = '500ms'").await.unwrap();
        let error = ended.await.unwrap().unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::IDLE_SESSION_TIMEOUT), "{error}");
        let status = json(dir.path(), &["status"]);
        assert_eq!(status["replicas"][0]["state"], "up", "{status}");
        let lanes = "SELECT count(*) > 0 FROM pg_stat_activity WHERE state = 'idle' AND state_change < now() - interval '300ms'
                     AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        let replica = connect(&file.replicas[0].dsn).await;
        assert_eq!(rows(&replica, lanes).await, "t");
    });
}

#[test]
fn session_whose_role_has_lost_its_name_writes_nothing_that_others_could_not_repeat() {
    block_on(async {
        let three = Three::start();
        let admin = connect(&three.file.client.dsn).await;
        admin
            .batch_execute("CREATE ROLE app LOGIN; CREATE ROLE gone LOGIN; CREATE TABLE t (id int PRIMARY KEY); GRANT ALL ON t TO PUBLIC")
            .await
            .unwrap();
        let (app, gone) = (three.client_of("app").await, three.client_of("gone").await);
        // With an idle lane on every server.
        for id in 0..10 {
            app.execute("INSERT INTO t VALUES ($1)", &[&id]).await.unwrap();
            gone.execute("DELETE FROM t WHERE id = $1", &[&id]).await.unwrap();
            app.query("SELECT count(*) FROM t", &[]).await.unwrap();
        }
        admin.batch_execute("ALTER ROLE app RENAME TO renamed; DROP ROLE gone").await.unwrap();
        for client in [app, gone] {
            let error = client.execute("INSERT INTO t VALUES (100)", &[]).await.unwrap_err();
            assert_eq!(error.code().unwrap().code(), "28000", "{error:?}");
        }
        admin.batch_execute("INSERT INTO t VALUES (200)").await.unwrap();
        three.assert_identical();
    });
}
