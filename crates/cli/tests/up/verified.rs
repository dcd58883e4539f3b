//! What `onecopy verify` finds beside rows, and what it offers to do.

use super::clients::{block_on, connect, home_of, json, onecopy, rows};
use super::three::Three;
use super::wait_until;
use serde_json::Value;

/// Of each kind that has a definition one.
pub(super) const SCHEMA: &str = "
    CREATE ROLE auditor;
    CREATE EXTENSION pg_stat_statements;
    CREATE SCHEMA shop;
    CREATE TYPE shop.mood AS ENUM ('calm', 'cross');
    CREATE DOMAIN shop.quantity AS int CHECK (VALUE > 0);
    CREATE TABLE shop.customer (id serial PRIMARY KEY, name varchar(20) NOT NULL CHECK (name IN ('Ada', 'Bo')), mood shop.mood);
    CREATE TABLE shop.sale (customer int REFERENCES shop.customer, amount shop.quantity, day date NOT NULL, total int DEFAULT 1,
        note text DEFAULT 'to (day)')
        PARTITION BY RANGE (day);
    CREATE TABLE shop.sale_2020 PARTITION OF shop.sale FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
    CREATE INDEX by_name ON shop.customer (lower(name)) WHERE mood = 'calm';
    CREATE INDEX ON shop.sale (customer);
    CREATE VIEW shop.calm AS SELECT id, name FROM shop.customer WHERE mood = 'calm' AND name IN ('Ada', 'Bo');
    CREATE FUNCTION shop.twice(n int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * n';
    CREATE FUNCTION shop.polite() RETURNS trigger LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN NEW; END';
    CREATE TRIGGER be_polite BEFORE INSERT ON shop.customer FOR EACH ROW EXECUTE FUNCTION shop.polite();
    CREATE AGGREGATE shop.product(int) (sfunc = int4mul, stype = int, initcond = '1');
    ALTER TABLE shop.customer ENABLE ROW LEVEL SECURITY;
    CREATE POLICY own ON shop.customer USING (name = current_user);
    CREATE SEQUENCE shop.ticket;
    CREATE STATISTICS shop.together (dependencies) ON id, mood FROM shop.customer;
    CREATE PUBLICATION news FOR TABLE shop.customer (id, mood);
    ALTER DEFAULT PRIVILEGES IN SCHEMA shop GRANT SELECT ON TABLES TO auditor;
    COMMENT ON COLUMN shop.customer.mood IS 'as it was';
    COMMENT ON DATABASE postgres IS 'of the shop';
    ALTER ROLE auditor SET work_mem = '8MB';
    ALTER DATABASE postgres SET app.secret = 'words';
    CREATE ROLE clerk LOGIN PASSWORD 'salted anew by each server' IN ROLE auditor;
    GRANT SELECT ON shop.customer TO auditor";

#[test]
fn definitions_and_sequences_that_differ_are_named() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        for statement in SCHEMA.split(";\n") {
            client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        client
            .batch_execute("INSERT INTO shop.customer (name) VALUES ('Ada'); SELECT nextval('shop.ticket')")
            .await
            .unwrap();
        let verified = json(three.dir.path(), &["verify"]);
        assert_eq!(verified["identical"], true, "{verified}");

        let behind = connect(&three.file.replicas[1].dsn).await;
        for (change, back, named) in [
            (
                "COMMENT ON TABLE shop.sale IS 'what was sold'",
                "COMMENT ON TABLE shop.sale IS NULL",
                "comment on table shop.sale (missing)",
            ),
            (
                "COMMENT ON COLUMN shop.customer.mood IS 'another'; COMMENT ON ROLE clerk IS 'new';
                 COMMENT ON DATABASE postgres IS 'another'",
                "COMMENT ON COLUMN shop.customer.mood IS 'as it was'; COMMENT ON ROLE clerk IS NULL;
                 COMMENT ON DATABASE postgres IS 'of the shop'",
                "comment on table column shop.customer.mood (text), comment on this database (text), \
                 comment on role clerk (missing)",
            ),
            (
                "ALTER STATISTICS shop.together SET STATISTICS 7",
                "ALTER STATISTICS shop.together SET STATISTICS -1",
                "statistics shop.together (definition)",
            ),
            (
                "ALTER PUBLICATION news SET TABLE shop.customer (id)",
                "ALTER PUBLICATION news SET TABLE shop.customer (id, mood)",
                "publication news (definition)",
            ),
            (
                "ALTER DEFAULT PRIVILEGES IN SCHEMA shop GRANT INSERT ON TABLES TO auditor",
                "ALTER DEFAULT PRIVILEGES IN SCHEMA shop REVOKE INSERT ON TABLES FROM auditor",
                "default privileges of role postgres in schema shop on tables (definition)",
            ),
            (
                "ALTER ROLE auditor SET work_mem = '9MB'; ALTER DATABASE postgres SET app.secret = 'other words';
                 ALTER ROLE clerk IN DATABASE postgres SET search_path = shop; ALTER ROLE ALL SET jit = off",
                "ALTER ROLE auditor SET work_mem = '8MB'; ALTER DATABASE postgres SET app.secret = 'words';
                 ALTER ROLE clerk IN DATABASE postgres RESET search_path; ALTER ROLE ALL RESET jit",
                "setting app.secret of this database (value), setting work_mem of role auditor (value), \
                 setting jit of all roles (missing), setting search_path of role clerk in this database (missing)",
            ),
            (
                "ALTER ROLE clerk CREATEDB; GRANT auditor TO clerk WITH ADMIN OPTION; CREATE ROLE guest",
                "ALTER ROLE clerk NOCREATEDB; REVOKE ADMIN OPTION FOR auditor FROM clerk; DROP ROLE guest",
                "membership of role clerk in auditor (options), role clerk (attributes or kind of password), \
                 role guest (missing)",
            ),
            ("ALTER ROLE clerk PASSWORD NULL", "ALTER ROLE clerk PASSWORD 'x'", "role clerk (attributes"),
            (
                "REVOKE TEMPORARY ON DATABASE postgres FROM public",
                "GRANT TEMPORARY ON DATABASE postgres TO public",
                "this database (definition)",
            ),
            (
                "ALTER TABLE shop.sale ALTER total SET DEFAULT 2",
                "ALTER TABLE shop.sale ALTER total SET DEFAULT 1",
                "table shop.sale (definition)",
            ),
            (
                "CREATE INDEX more ON shop.customer (mood)",
                "DROP INDEX shop.more",
                "index shop.more (missing)",
            ),
            (
                "ALTER TABLE shop.customer DISABLE TRIGGER be_polite",
                "ALTER TABLE shop.customer ENABLE TRIGGER be_polite",
                "trigger be_polite on shop.customer (definition)",
            ),
            (
                "GRANT INSERT ON shop.customer TO auditor",
                "REVOKE INSERT ON shop.customer FROM auditor",
                "table shop.customer (definition)",
            ),
            (
                "CREATE OR REPLACE FUNCTION shop.twice(n int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT n + n'",
                "CREATE OR REPLACE FUNCTION shop.twice(n int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * n'",
                "function shop.twice(n integer) (definition)",
            ),
            (
                "CREATE OR REPLACE VIEW shop.calm AS SELECT id, name FROM shop.customer WHERE mood = 'cross'",
                "CREATE OR REPLACE VIEW shop.calm AS SELECT id, name FROM shop.customer WHERE mood = 'calm' AND name IN ('Ada', 'Bo')",
                "view shop.calm (definition)",
            ),
            (
                "SELECT setval('shop.ticket', 5000)",
                "SELECT setval('shop.ticket', 1001)",
                "sequence shop.ticket (next ",
            ),
            (
                "ALTER TABLE shop.sale ALTER note SET DEFAULT 'to(day)'",
                "ALTER TABLE shop.sale ALTER note SET DEFAULT 'to (day)'",
                "table shop.sale (definition)",
            ),
            // As a copy has it that another superuser prepared.
            (
                "GRANT SELECT ON pg_stat_statements TO auditor; ALTER VIEW pg_stat_statements OWNER TO auditor",
                "",
                "",
            ),
            ("ALTER TYPE shop.mood ADD VALUE 'merry'", "", "type shop.mood (definition)"),
        ] {
            behind.batch_execute(change).await.unwrap();
            let verified = onecopy(three.dir.path(), &["verify", "--json"]).stdout;
            let verified: Value = serde_json::from_slice(&verified).unwrap();
            let verdict = |at: usize| verified["replicas"][at]["verdict"].as_str().unwrap_or_default();
            assert_eq!((verdict(0), verdict(2)), ("reference", "identical"), "{change}");
            match named {
                "" => assert_eq!(verdict(1), "identical", "{change}"),
                named => assert!(
                    verdict(1).starts_with("DIFFERS: ") && verdict(1).contains(named),
                    "{change}: {}",
                    verdict(1)
                ),
            }
            behind.batch_execute(back).await.unwrap();
        }
    });
}

#[test]
fn replica_that_differs_is_taken_out_of_service_by_name_and_stays_out() {
    block_on(async {
        let three = Three::start();
        let dir = three.dir.path();
        let client = three.client().await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
        let complaint = |arguments: &[&str]| {
            let output = onecopy(dir, arguments);
            assert_eq!(output.status.code(), Some(1));
            String::from_utf8(output.stderr).unwrap()
        };
        let refused = complaint(&["verify", "--exclude", "r2"]);
        assert!(refused.contains("r2 does not differ, and stays in service"), "{refused}");

        let behind = connect(&three.file.replicas[0].dsn).await;
        behind.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
        // Two against one: the first is the exception.
        let advice = complaint(&["verify"]);
        assert!(
            advice.contains("`onecopy verify --exclude r1`") && advice.contains("operation.md"),
            "{advice}"
        );
        let refused = complaint(&["verify", "--exclude", "r4"]);
        assert!(refused.contains("\"r4\" was not compared; these were: r1, r2, r3"), "{refused}");
        let done = complaint(&["verify", "--exclude", "r1"]);
        assert!(done.contains("out of service until copied anew: r1"), "{done}");
        let state = |at: usize| -> (Value, Value) {
            let status = json(dir, &["status"]);
            (status["replicas"][at]["state"].clone(), status["replicas"][at]["out_because"].clone())
        };
        wait_until("it is out of service, and why", || state(0) == ("down".into(), "differs".into()));
        for _ in 0..50 {
            assert_eq!(rows(&client, "SELECT count(*) FROM t").await, "1");
        }
        let noted =
            rows(&connect(&three.file.replicas[0].dsn).await, "SELECT differs FROM onecopy.meta").await;
        assert!(noted.contains("an operator has found"), "{noted}");

        // The last one that serves stays.
        let console = connect(&three.file.client.dsn.replace("dbname=postgres", "dbname=onecopy")).await;
        console.simple_query("EXCLUDE r2").await.unwrap();
        let error = console.simple_query("EXCLUDE r3").await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "55000", "{error:?}");
        assert_eq!(rows(&client, "SELECT count(*) FROM t").await, "1");
    });
}

/// Somebody else's lock keeps a replica behind. Whoever compares waits for it, and nobody waits for whoever compares.
#[test]
fn replica_that_is_behind_is_waited_for_while_clients_write() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        client.batch_execute("CREATE TABLE a (n int); CREATE TABLE b (n int)").await.unwrap();
        let begin = async { client.batch_execute("BEGIN; INSERT INTO a VALUES (1)").await.unwrap() };
        let at = (home_of(three.dir.path(), begin).await + 1) % 3;
        let mut behind = connect(&three.file.replicas[at].dsn).await;
        let lock = behind.transaction().await.unwrap();
        lock.batch_execute("LOCK TABLE a").await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        let dir = three.dir.path().to_owned();
        let verified = tokio::task::spawn_blocking(move || json(&dir, &["verify"]));
        // By then it has asked, and writers were held off if it held them off.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        client.batch_execute("INSERT INTO b VALUES (1)").await.unwrap();
        assert!(!verified.is_finished());
        lock.rollback().await.unwrap();
        let verified = verified.await.unwrap();
        assert_eq!(verified["identical"], true, "{verified}");
    });
}
