//! Protocols that execute every write on every replica: what their clients see, what is refused, and that replicas stay
//! equal whatever happens to one of them.

use super::clients::{block_on, connect, json, rows};
use super::cursors::Raw;
use super::{Up, folder, wait_until};
use onecopy_bench::torture::{self, Isolation};
use onecopy_cluster::ClusterFile;
use onecopy_sim::check::Level;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

/// A cluster served by a protocol.
pub(super) struct Scheduled {
    // It stops before its folder goes.
    up: Up,
    dir: TempDir,
    file: ClusterFile,
}

impl Scheduled {
    pub(super) fn start(protocol: &str, replicas: u32) -> Scheduled {
        let dir = folder();
        let up = serve(dir.path(), protocol, replicas);
        let file = ClusterFile::read(dir.path()).unwrap();
        Scheduled { up, dir, file }
    }

    /// Stops everything, and serves the same folder by another protocol.
    fn serve_by(&mut self, protocol: &str, replicas: u32) {
        self.up.signal("-TERM");
        assert!(self.up.process.wait().unwrap().success());
        self.up = serve(self.dir.path(), protocol, replicas);
        self.file = ClusterFile::read(self.dir.path()).unwrap();
    }

    /// Where clients connect.
    pub(super) fn dsn(&self) -> &str {
        &self.file.client.dsn
    }

    /// Its folder.
    pub(super) fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// A counter of each replica.
    pub(super) fn of_replicas(&self, name: &str) -> Vec<u64> {
        let status = json(self.dir.path(), &["status"]);
        super::clients::replicas(&status).iter().map(|replica| replica[name].as_u64().unwrap_or(0)).collect()
    }

    async fn client(&self) -> Client {
        connect(self.dsn()).await
    }

    fn counter(&self, name: &str) -> u64 {
        let status = json(self.dir.path(), &["status"]);
        status["status"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {status}"))
    }

    pub(super) fn assert_identical(&self) {
        let verified = json(self.dir.path(), &["verify"]);
        assert_eq!(verified["identical"], true, "{verified}");
    }

    /// A query's answer on each replica by itself, which is the same.
    async fn everywhere(&self, sql: &str) -> String {
        self.assert_identical();
        let mut answers = Vec::new();
        for replica in &self.file.replicas {
            answers.push(rows(&connect(&replica.dsn).await, sql).await);
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{sql}: {answers:?}");
        answers.swap_remove(0)
    }
}

fn serve(dir: &Path, protocol: &str, replicas: u32) -> Up {
    let mut command = Up::command(dir, replicas);
    command.args(["--protocol", protocol]);
    Up::ready_by(command)
}

fn code(error: &Error) -> &str {
    error.as_db_error().map_or("", |error| error.code().code())
}

async fn code_of(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "served".to_owned(),
        Err(error) => code(&error).to_owned(),
    }
}

const TABLES: &str = "CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY, v int);
     CREATE TABLE c (id int PRIMARY KEY, a int REFERENCES a, v int)";

async fn make_tables(client: &Client) {
    for statement in TABLES.split(';') {
        client.batch_execute(statement).await.unwrap();
    }
    client.batch_execute("INSERT INTO a VALUES (1, 0), (2, 0)").await.unwrap();
    client.batch_execute("INSERT INTO b VALUES (1, 0)").await.unwrap();
    client.batch_execute("INSERT INTO c VALUES (1, 1, 0)").await.unwrap();
}

/// Small transactions in all the ways that clients send them, checked for what their sessions saw.
async fn torture(cluster: &Scheduled, transactions: u64, promise: Level) {
    let mut options = torture::Options::new(&cluster.file.client.dsn);
    options.transactions = transactions;
    options.isolation = Isolation::Mixed;
    options.promise = promise.into();
    options.answer_within = Duration::from_secs(120);
    let report = torture::run(&options).await.unwrap();
    assert!(report.passed(), "{report}");
    assert!(report.total().committed > transactions / 2, "{report}");
    cluster.assert_identical();
}

#[test]
fn conflict_aware_scheduling_is_strictly_serializable_and_replicas_are_identical() {
    block_on(async {
        let cluster = Scheduled::start("conflict_aware", 3);
        // One scheduler in one process: more than the paper promises.
        torture(&cluster, 600, Level::StrictSerializable).await;
        assert!(cluster.counter("reads_placed") > 0 && cluster.counter("grants_waited") > 0);
    });
}

#[test]
fn every_other_protocol_with_transactions_serves_the_same_folder_in_turn() {
    block_on(async {
        let mut cluster = Scheduled::start("eager", 2);
        torture(&cluster, 150, Level::StrictSerializable).await;
        let client = cluster.client().await;
        client.batch_execute("CREATE TABLE turns (protocol text PRIMARY KEY)").await.unwrap();
        let others = [
            "fixed_load",
            "fixed_conflict",
            "variable_load",
            "versioning",
            "versioning_no_early_release",
            "versioning_late_acquire",
            "special",
            "onecopy",
            "conflict_aware",
        ];
        for protocol in others {
            cluster.serve_by(protocol, 2);
            // More than `versioning` promises, true where replicas commit in the order of decisions.
            torture(&cluster, 60, Level::StrictSerializable).await;
            let client = cluster.client().await;
            client.execute("INSERT INTO turns VALUES ($1)", &[&protocol]).await.unwrap();
            assert_eq!(rows(&client, "SELECT count(*) FROM turns WHERE protocol = 'eager'").await, "0");
        }
        assert_eq!(cluster.everywhere("SELECT count(*) FROM turns").await, "9");
    });
}

#[test]
fn single_read_waits_for_a_writer_and_nobody_waits_for_the_read() {
    block_on(async {
        let mut cluster = Scheduled::start("variable_load", 2);
        make_tables(&cluster.client().await).await;
        for protocol in ["variable_load", "versioning"] {
            if protocol != "variable_load" {
                cluster.serve_by(protocol, 2);
            }
            let [first, reader, second] =
                [cluster.client().await, cluster.client().await, cluster.client().await];
            let declared = "BEGIN; SET LOCAL onecopy.writes = 'a'; UPDATE a SET v = 7 WHERE id = 1";
            first.batch_execute(declared).await.unwrap();
            // It stands at one replica; the other one has both updates, the second before the first.
            let read = async { rows(&reader, "SELECT a.v, b.v FROM a, b WHERE a.id = 1 AND b.id = 1").await };
            let updates = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                second.batch_execute("UPDATE b SET v = 8").await.unwrap();
                first.batch_execute("COMMIT").await.unwrap();
            };
            let (read, ()) = tokio::join!(read, updates);
            assert_eq!(read, "7 8", "{protocol}");
            cluster.assert_identical();
            second.batch_execute("UPDATE a SET v = 0; UPDATE b SET v = 0").await.unwrap();
        }
    });
}

/// A transaction that wrote what an earlier one has read and let go waits for it with its COMMIT.
#[test]
fn whoever_goes_away_while_its_decision_waits_is_rolled_back() {
    block_on(async {
        let cluster = Scheduled::start("versioning", 2);
        make_tables(&cluster.client().await).await;
        let [first, third] = [cluster.client().await, cluster.client().await];
        let reads =
            "/* onecopy: tables=a writes=b */ BEGIN; /* onecopy: last=a */ SELECT v FROM a WHERE id = 1";
        for update in [
            "/* onecopy: writes=a */ BEGIN; UPDATE a SET v = v + 1 WHERE id = 1; COMMIT",
            "UPDATE a SET v = v + 1 WHERE id = 1",
        ] {
            first.batch_execute(reads).await.unwrap();
            let (second, connection) =
                tokio_postgres::connect(cluster.dsn(), tokio_postgres::NoTls).await.unwrap();
            let connection = tokio::spawn(connection);
            let waits = tokio::spawn(async move { second.batch_execute(update).await });
            let somebody_waits = || {
                json(cluster.folder(), &["status"])["waits"].as_array().is_some_and(|waits| !waits.is_empty())
            };
            while !somebody_waits() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            connection.abort();
            assert!(waits.await.unwrap().is_err());
            while somebody_waits() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            first.batch_execute("COMMIT").await.unwrap();
            third.batch_execute("UPDATE a SET v = v + 10 WHERE id = 2").await.unwrap();
        }
        assert_eq!(cluster.everywhere("SELECT v FROM a ORDER BY id").await, "0, 20");
    });
}

#[test]
fn loose_levels_execute_each_statement_by_itself_and_say_so() {
    block_on(async {
        let mut cluster = Scheduled::start("level0", 2);
        make_tables(&cluster.client().await).await;
        for level in ["level0", "level1", "level2"] {
            if level != "level0" {
                cluster.serve_by(level, 2);
            }
            let mut client = cluster.client().await;
            let before = rows(&client, "SELECT v FROM a WHERE id = 1").await;
            let transaction = client.transaction().await.unwrap();
            transaction.execute("UPDATE a SET v = v + 1 WHERE id = $1", &[&1]).await.unwrap();
            transaction.execute("UPDATE b SET v = v + 1", &[]).await.unwrap();
            transaction.rollback().await.unwrap();
            let after: i32 = before.parse::<i32>().unwrap() + 1;
            assert_eq!(cluster.everywhere("SELECT v FROM a WHERE id = 1").await, after.to_string());
            // A failed block is failed for its client, too.
            assert_eq!(code_of(&client, "BEGIN; SELECT 1 / 0").await, "22012");
            assert_eq!(code_of(&client, "SELECT 1").await, "25P02");
            assert_eq!(code_of(&client, "ROLLBACK").await, "served");
            assert_eq!(rows(&client, "SELECT 1").await, "1");
        }
    });
}

#[test]
fn tables_are_declared_by_comments_or_settings_and_what_was_not_is_refused() {
    block_on(async {
        let cluster = Scheduled::start("versioning", 2);
        let client = cluster.client().await;
        make_tables(&client).await;
        let begun = |text: &str| format!("BEGIN; {text}");
        for (sql, expected) in [
            // With its foreign key's table, and with BEGIN.
            (
                "/* onecopy: tables=b writes=c */ BEGIN; UPDATE c SET v = 1, a = 2; SELECT * FROM b; COMMIT",
                "served",
            ),
            (&begun("/* onecopy: writes=b */ UPDATE b SET v = 7; SELECT * FROM a; COMMIT"), "55000"),
            (&begun("SELECT * FROM b; /* onecopy: tables=a */ SELECT * FROM a"), "55000"),
            (&begun("/* onecopy: tables=a,b last=a */ SELECT * FROM a; SELECT * FROM b; COMMIT"), "served"),
            (&begun("/* onecopy: tables=a,b last=a */ SELECT * FROM a; SELECT * FROM a; COMMIT"), "55000"),
            (
                &begun("SET LOCAL onecopy.writes = 'public.a'; UPDATE a SET v = 3 WHERE id = 2; COMMIT"),
                "served",
            ),
            ("/* onecopy: tables=nowhere */ BEGIN", "42P01"),
            ("/* onecopy: nonsense */ SELECT 1", "42601"),
            // Single statements show what they touch.
            ("/* onecopy: tables=a */ UPDATE b SET v = v", "served"),
        ] {
            assert_eq!(code_of(&client, sql).await, expected, "{sql}");
            client.batch_execute("ROLLBACK").await.unwrap();
        }
        client.batch_execute("SET onecopy.tables = 'a'; SET onecopy.last_use = 'a'").await.unwrap();
        assert_eq!(code_of(&client, "BEGIN; SELECT * FROM a; SELECT * FROM b").await, "55000");
        client.batch_execute("ROLLBACK; RESET onecopy.tables").await.unwrap();
        assert_eq!(code_of(&client, "BEGIN; SELECT * FROM a; SELECT * FROM b; COMMIT").await, "served");
        // Prepared statements keep their comments.
        let declared = "/* onecopy: writes=a */ UPDATE a SET v = v + $1 WHERE id = 1";
        let update = client.prepare(declared).await.unwrap();
        client.batch_execute("BEGIN").await.unwrap();
        client.execute(&update, &[&5]).await.unwrap();
        let error = client.query("SELECT * FROM b", &[]).await.unwrap_err();
        assert_eq!(code(&error), "55000");
        assert!(error.as_db_error().unwrap().hint().is_some());
        client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(cluster.everywhere("SELECT * FROM a ORDER BY id").await, "1 0, 2 3");
        assert_eq!(cluster.everywhere("SELECT * FROM b").await, "1 0");
    });
}

#[test]
fn transactions_that_declare_nothing_are_learned() {
    block_on(async {
        let cluster = Scheduled::start("conflict_aware", 2);
        let client = cluster.client().await;
        make_tables(&client).await;
        let transaction = "BEGIN; UPDATE a SET v = v + 1 WHERE id = 1; UPDATE b SET v = v + 1; COMMIT";
        for _ in 0..12 {
            client.batch_execute(transaction).await.unwrap();
        }
        let all_locked = cluster.counter("every_table_locked");
        client.batch_execute(transaction).await.unwrap();
        assert_eq!(cluster.counter("every_table_locked"), all_locked);
        let stray = "BEGIN; UPDATE a SET v = v + 1 WHERE id = 1; UPDATE c SET v = v + 1; COMMIT";
        assert_eq!(code_of(&client, stray).await, "40001");
        client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(cluster.counter("mispredicted"), 1);
        assert_eq!(code_of(&client, stray).await, "served");
        assert_eq!(cluster.everywhere("SELECT v FROM a WHERE id = 1").await, "14");
    });
}

#[test]
fn what_could_differ_between_replicas_is_refused_and_the_rest_is_served() {
    block_on(async {
        let cluster = Scheduled::start("conflict_aware", 2);
        let client = cluster.client().await;
        make_tables(&client).await;
        client
            .batch_execute("CREATE TABLE numbered (id serial PRIMARY KEY, at timestamptz, note text)")
            .await
            .unwrap();
        for (sql, expected) in [
            ("UPDATE a SET v = random() * 10", "0A000"),
            ("UPDATE a SET v = 1 WHERE id IN (SELECT id FROM a LIMIT 1)", "0A000"),
            ("UPDATE a SET v = 1 WHERE id IN (SELECT id FROM a ORDER BY id LIMIT 1)", "served"),
            ("INSERT INTO numbered (note) SELECT 'many' FROM generate_series(1, 3)", "0A000"),
            ("INSERT INTO numbered (at, note) VALUES (now(), 'one') RETURNING id", "served"),
            ("BEGIN; CREATE TABLE d (id int); COMMIT", "0A000"),
            ("CREATE TABLE d (id int)", "served"),
            ("COPY a FROM STDIN", "0A000"),
            ("BEGIN; DECLARE rows CURSOR FOR SELECT * FROM a", "0A000"),
            ("BEGIN; SET CONSTRAINTS ALL DEFERRED", "0A000"),
            ("EXPLAIN ANALYZE UPDATE a SET v = 1", "0A000"),
            ("SELECT set_config('my.most', (SELECT max(v)::text FROM a), false)", "0A000"),
            ("BEGIN; SELECT * FROM a FOR UPDATE; UPDATE a SET v = 4 WHERE id = 2; COMMIT", "served"),
            (
                "BEGIN; SET LOCAL DateStyle = 'German'; INSERT INTO numbered (note) VALUES (DATE '2024-02-01'::text); COMMIT",
                "served",
            ),
            ("TRUNCATE b", "served"),
            ("VACUUM a", "served"),
            ("SELECT 1 / 0", "22012"),
            ("INSERT INTO a VALUES (1, 1)", "23505"),
            ("INSERT INTO c VALUES (2, 77, 1)", "23503"),
        ] {
            assert_eq!(code_of(&client, sql).await, expected, "{sql}");
            client.batch_execute("ROLLBACK").await.unwrap();
        }
        // Fetched by parts, it would be logged as often as it is fetched.
        let mut client = client;
        let transaction = client.transaction().await.unwrap();
        let portal = transaction.bind("UPDATE a SET v = v + 1 RETURNING id", &[]).await.unwrap();
        let error = transaction.query_portal(&portal, 1).await.unwrap_err();
        assert_eq!(code(&error), "0A000");
        drop((portal, transaction));
        // So it would be where it is executed beside the Bind of another portal; a limit of rows that it does not return is none.
        let mut raw = Raw::default();
        raw.query("BEGIN")
            .parse("w", "UPDATE a SET v = v + 1 WHERE id = 2 RETURNING id")
            .parse("r", "SELECT 1");
        raw.bind("p", "w").execute("p", 0).sync();
        raw.bind("q", "r").execute("p", 0).sync().query("COMMIT");
        raw.parse("u", "UPDATE a SET v = v + 1 WHERE id = 2").bind("", "u").execute("", 1).sync();
        assert_eq!(raw.letters(&cluster.file.client.dsn), "[BEGIN] 112D[UPDATE 1] E [ROLLBACK] 12[UPDATE 1]");
        assert_eq!(
            cluster.everywhere("SELECT id, note FROM numbered ORDER BY id").await,
            "1 one, 2 01.02.2024"
        );
    });
}

#[test]
fn savepoints_go_back_on_every_replica_also_after_an_error() {
    block_on(async {
        let cluster = Scheduled::start("conflict_aware", 3);
        let client = cluster.client().await;
        make_tables(&client).await;
        client.batch_execute("BEGIN; UPDATE a SET v = 1 WHERE id = 1; SAVEPOINT s").await.unwrap();
        assert_eq!(
            code_of(&client, "INSERT INTO a VALUES (3, 3); INSERT INTO a VALUES (1, 1)").await,
            "23505"
        );
        assert_eq!(code_of(&client, "SELECT 1").await, "25P02");
        client.batch_execute("ROLLBACK TO s; UPDATE a SET v = v + 10; RELEASE s; COMMIT").await.unwrap();
        assert_eq!(cluster.everywhere("SELECT * FROM a ORDER BY id").await, "1 11, 2 10");
        client.batch_execute("BEGIN; SAVEPOINT s; DELETE FROM c; ROLLBACK TO s; COMMIT").await.unwrap();
        assert_eq!(cluster.everywhere("SELECT count(*) FROM c").await, "1");
    });
}

#[test]
fn replica_on_which_a_statement_fails_or_waits_does_it_later() {
    block_on(async {
        let cluster = Scheduled::start("conflict_aware", 3);
        let client = cluster.client().await;
        make_tables(&client).await;
        // Somebody who goes behind onecopy's back holds a row on one replica.
        let behind = connect(&cluster.file.replicas[1].dsn).await;
        behind.batch_execute("BEGIN; SELECT * FROM a FOR UPDATE").await.unwrap();
        client.batch_execute("UPDATE a SET v = v + 1").await.unwrap();
        client.batch_execute("BEGIN; UPDATE b SET v = v + 1; UPDATE a SET v = v + 1; COMMIT").await.unwrap();
        assert_eq!(rows(&client, "SELECT * FROM a ORDER BY id").await, "1 2, 2 2");
        behind.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(cluster.everywhere("SELECT * FROM a ORDER BY id").await, "1 2, 2 2");

        // There the statement fails, and elsewhere it does not.
        let applies = |cluster: &Scheduled| {
            json(cluster.dir.path(), &["status"])["replicas"][1]["applies"].as_u64().unwrap()
        };
        let before = applies(&cluster);
        behind.batch_execute("BEGIN; SELECT * FROM a FOR UPDATE").await.unwrap();
        client.batch_execute("UPDATE a SET v = v + 1").await.unwrap();
        let cancel =
            "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        // In a transaction a session would see the same as at its first look for ever.
        let looking = connect(&cluster.file.replicas[1].dsn).await;
        while rows(&looking, cancel).await == "0" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        behind.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(cluster.everywhere("SELECT * FROM a ORDER BY id").await, "1 3, 2 3");
        assert!(applies(&cluster) > before, "it was applied from the log");
    });
}

#[test]
fn replica_that_is_killed_is_not_missed_and_catches_up() {
    block_on(async {
        let mut cluster = Scheduled::start("conflict_aware", 3);
        let client = cluster.client().await;
        make_tables(&client).await;
        client.batch_execute("BEGIN; UPDATE a SET v = v + 1").await.unwrap();
        let pid = cluster.file.replicas[2].pid;
        assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
        client.batch_execute("UPDATE b SET v = v + 1; SELECT * FROM a; COMMIT").await.unwrap();
        for _ in 0..20 {
            client.batch_execute("UPDATE b SET v = v + 1").await.unwrap();
        }
        wait_until("the killed replica is out of service", || {
            json(cluster.dir.path(), &["status"])["replicas"][2]["state"] == "down"
        });
        drop(client);
        // A start brings it back, by whatever protocol.
        cluster.serve_by("eager", 3);
        assert_eq!(cluster.everywhere("SELECT v FROM b").await, "21");
        assert_eq!(cluster.everywhere("SELECT v FROM a").await, "1, 1");
    });
}

#[test]
fn cancelled_statement_ends_on_every_replica() {
    block_on(async {
        let cluster = Scheduled::start("conflict_aware", 2);
        let client = cluster.client().await;
        make_tables(&client).await;
        let other = cluster.client().await;
        other.batch_execute("BEGIN; UPDATE a SET v = 1").await.unwrap();
        // One that waits for another transaction's tables, and one that executes.
        for sql in ["UPDATE a SET v = 2", "SELECT pg_sleep(600) FROM b FOR UPDATE"] {
            let token = client.cancel_token();
            let cancelled = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                token.cancel_query(tokio_postgres::NoTls).await.unwrap();
            };
            let (answer, ()) = tokio::join!(client.batch_execute(sql), cancelled);
            let error = answer.unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED), "{sql}");
        }
        other.batch_execute("COMMIT").await.unwrap();
        assert_eq!(code_of(&client, "UPDATE b SET v = 5").await, "served");
        assert_eq!(cluster.everywhere("SELECT v FROM b").await, "5");
    });
}

#[test]
fn changed_definitions_are_known_to_all_sessions() {
    block_on(async {
        let cluster = Scheduled::start("conflict_aware", 3);
        let (client, other) = (cluster.client().await, cluster.client().await);
        make_tables(&client).await;
        let read = other.prepare("SELECT v FROM a WHERE id = $1").await.unwrap();
        for round in 0..5 {
            client
                .batch_execute(&format!("ALTER TABLE a ADD COLUMN w{round} int DEFAULT {round}"))
                .await
                .unwrap();
            other.batch_execute(&format!("UPDATE a SET w{round} = w{round} + 1 WHERE id = 1")).await.unwrap();
            assert_eq!(other.query(&read, &[&1]).await.unwrap().len(), 1);
        }
        assert_eq!(cluster.everywhere("SELECT * FROM a ORDER BY id").await, "1 0 1 2 3 4 5, 2 0 0 1 2 3 4");
    });
}
