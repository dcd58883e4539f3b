//! Replicas join, are copied anew and leave while clients work (docs/replicas.md).

use super::clients::{block_on, connect, json, onecopy, printed, rows};
use super::verified::SCHEMA;
use super::{Up, folder, wait_until};
use onecopy_cluster::{ClusterFile, Options, Server};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

/// Local servers behind onecopy, which may be started again.
pub(super) struct Running {
    up: Option<Up>,
    dir: TempDir,
    count: u32,
}

impl Running {
    pub(super) fn start(count: u32) -> Running {
        let dir = folder();
        let up = Some(Up::ready(dir.path(), count));
        Running { up, dir, count }
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its process is killed, and its servers with it.
    pub(super) fn kill(&mut self) {
        self.up = None;
    }

    pub(super) fn start_again(&mut self) {
        self.kill();
        let replicas = |file: ClusterFile| file.replicas.into_iter().map(|replica| replica.pid);
        let pids: Vec<u32> =
            ClusterFile::read(self.dir()).map(|file| replicas(file).collect()).unwrap_or_default();
        wait_until("the servers have ended", || !pids.iter().any(|pid| super::process_runs(*pid)));
        self.up = Some(Up::ready(self.dir(), self.count));
    }

    pub(super) fn file(&self) -> ClusterFile {
        ClusterFile::read(self.dir()).unwrap()
    }

    pub(super) async fn client(&self) -> Client {
        connect(&self.file().client.dsn).await
    }

    pub(super) fn begin_to_add(&self, name: &str, server: &Server) {
        printed(self.dir(), &["replica", "add", name, "--server", &place(server), "--detach"]);
    }

    pub(super) fn list(&self) -> Vec<Value> {
        json(self.dir(), &["replica", "list"]).as_array().unwrap().clone()
    }

    pub(super) fn replica(&self, name: &str) -> Value {
        self.list().into_iter().find(|replica| replica["name"] == name).unwrap()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.list().iter().map(|replica| replica["name"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) fn assert_identical(&self) {
        let verified = json(self.dir(), &["verify"]);
        assert_eq!(verified["identical"], true, "{verified}");
    }

    /// What a command is refused with.
    fn refused(&self, args: &[&str]) -> String {
        let output = onecopy(self.dir(), &[&["replica"], args].concat());
        assert!(!output.status.success(), "{args:?} was not refused");
        String::from_utf8(output.stderr).unwrap()
    }
}

fn place(server: &Server) -> String {
    format!("host=127.0.0.1 port={}", server.port())
}

fn another_server() -> Server {
    Server::temporary(&Options::replica()).unwrap()
}

/// Clients who move money, some of them in transactions that stay open for a while, and expect no error at all.
pub(super) struct Load {
    ends: Arc<AtomicBool>,
    moves: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

const ACCOUNTS: u64 = 40;

impl Load {
    pub(super) async fn start(running: &Running) -> Load {
        let admin = running.client().await;
        let schema = "CREATE TABLE account (id int PRIMARY KEY, owner text NOT NULL, balance int NOT NULL);
                      CREATE TABLE entry (id bigserial PRIMARY KEY, account int NOT NULL REFERENCES account, amount int NOT NULL,
                          at timestamptz DEFAULT now(), twice int GENERATED ALWAYS AS (2 * amount) STORED, r float8 DEFAULT random());
                      CREATE INDEX ON entry (account)";
        admin.batch_execute(schema).await.unwrap();
        let fill = format!(
            "INSERT INTO account SELECT n, 'owner ' || n, 1000 FROM generate_series(1, {ACCOUNTS}) n"
        );
        admin.batch_execute(&fill).await.unwrap();
        let (ends, moves) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut clients = Vec::new();
        for number in 0..4 {
            let client = running.client().await;
            clients.push(tokio::spawn(work(client, number, ends.clone(), moves.clone())));
        }
        Load { ends, moves, clients }
    }

    /// Waits until so much more was done.
    pub(super) async fn goes_on(&self, more: u64) {
        let before = self.moves.load(Ordering::Relaxed);
        while self.moves.load(Ordering::Relaxed) < before + more {
            assert!(!self.clients.iter().any(JoinHandle::is_finished), "a client has failed");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    pub(super) async fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

async fn work(mut client: Client, number: u64, ends: Arc<AtomicBool>, moves: Arc<AtomicU64>) {
    let mut turn = number;
    while !ends.load(Ordering::Relaxed) {
        turn += 7;
        // Each client has accounts of its own: nobody waits for anybody, and none may be given up.
        let account = i32::try_from((turn % (ACCOUNTS / 4)) * 4 + number + 1).unwrap();
        let insert = "INSERT INTO entry (account, amount) VALUES ($1, $2)";
        let update = "UPDATE account SET balance = balance + $2 WHERE id = $1";
        let transaction = client.transaction().await.unwrap();
        transaction.query_one("SELECT balance FROM account WHERE id = $1", &[&account]).await.unwrap();
        transaction.execute(update, &[&account, &1]).await.unwrap();
        if turn.is_multiple_of(5) {
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        }
        transaction.execute(insert, &[&account, &1]).await.unwrap();
        transaction.commit().await.unwrap();
        let sum = "SELECT a.balance - 1000, (SELECT sum(amount) FROM entry WHERE account = a.id) FROM account a WHERE id = $1";
        let row = client.query_one(sum, &[&account]).await.unwrap();
        assert_eq!(i64::from(row.get::<_, i32>(0)), row.get::<_, i64>(1), "a client misses its own write");
        let page = "SELECT c.relname, a.attname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
                    WHERE c.relname = 'account'";
        assert!(client.query(page, &[]).await.unwrap().len() >= 3);
        moves.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn replica_that_is_added_under_load_is_a_copy_and_serves_and_no_client_notices() {
    block_on(async {
        let running = Running::start(3);
        let client = running.client().await;
        for statement in SCHEMA.split(";\n") {
            client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        let more = "INSERT INTO shop.customer (id, name, mood) SELECT n, 'Ada', 'calm' FROM generate_series(1001, 3000) n;
                    CREATE MATERIALIZED VIEW names AS SELECT name, count(*) AS n FROM shop.customer GROUP BY name;
                    CREATE TABLE nothing (); INSERT INTO nothing DEFAULT VALUES;
                    CREATE TABLE odd (\"a \"\"b\" text, list shop.mood[], bytes bytea, f float8);
                    INSERT INTO odd VALUES (E'tab\\t and \\\\N', '{calm,cross}', '\\x00ff', 1e-300), (NULL, NULL, NULL, 'NaN');
                    SELECT setval('shop.ticket', 77, false); ALTER ROLE clerk SET search_path = shop, public; GRANT auditor TO clerk WITH ADMIN OPTION;
                    CREATE TABLE emptied (id int); INSERT INTO emptied SELECT generate_series(1, 500)";
        client.batch_execute(more).await.unwrap();
        let load = Load::start(&running).await;
        let server = another_server();
        let bystander = running.client().await;
        running.begin_to_add("r4", &server);
        // Definitions change meanwhile; each of these wants something else of the copy.
        for n in 0..4 {
            let changes = format!(
                "CREATE TABLE made_{n} (id int PRIMARY KEY); INSERT INTO made_{n} SELECT generate_series(1, 50);
                 ALTER TABLE odd ADD COLUMN c{n} int DEFAULT {n}; TRUNCATE emptied; INSERT INTO emptied VALUES ({n})"
            );
            client.batch_execute(&changes).await.unwrap();
            load.goes_on(20).await;
        }
        wait_until("the fourth replica serves", || running.replica("r4")["state"] == "up");
        let applied = |status: Value| status["replicas"][3]["applies"].as_u64().unwrap();
        let read = |status: Value| status["replicas"][3]["reads"].as_u64().unwrap();
        wait_until("it applies what the others execute", || applied(json(running.dir(), &["status"])) > 0);
        wait_until("it is read", || read(json(running.dir(), &["status"])) > 0);
        load.goes_on(100).await;
        load.end().await;
        running.assert_identical();
        assert_eq!(rows(&bystander, "SELECT 1").await, "1", "a session from before goes on");
        assert_eq!(running.names(), ["r1", "r2", "r3", "r4"]);
        let copy = connect(&server.dsn()).await;
        assert_eq!(rows(&copy, "SELECT count(*), max(id) FROM emptied").await, "1 3");
        let settings = "SELECT rolname, rolcanlogin, rolpassword LIKE 'SCRAM%' FROM pg_authid WHERE rolname IN ('auditor', 'clerk') ORDER BY 1";
        assert_eq!(rows(&copy, settings).await, "auditor f -, clerk t t");
        let passwords = "SELECT rolpassword FROM pg_authid WHERE rolname = 'clerk'";
        // Each server has salted it for itself, and any of them may have been copied.
        let mut known = Vec::new();
        for replica in running.file().replicas {
            known.push(rows(&connect(&replica.dsn).await, passwords).await);
        }
        assert!(known.contains(&rows(&copy, passwords).await));

        // The new one alone is enough.
        for name in ["r1", "r2", "r3"] {
            printed(running.dir(), &["replica", "remove", name]);
        }
        client.batch_execute("INSERT INTO shop.customer (name) VALUES ('Bo')").await.unwrap();
        assert_eq!(rows(&copy, "SELECT count(*) FROM shop.customer").await, "2001");
    });
}

#[test]
fn replica_that_differs_is_wiped_and_copied_anew() {
    block_on(async {
        let running = Running::start(3);
        let load = Load::start(&running).await;
        let behind = connect(&running.file().replicas[1].dsn).await;
        behind.batch_execute("SET session_replication_role = replica").await.unwrap();
        // The row may not have come there yet.
        while behind.execute("UPDATE account SET owner = 'Eve' WHERE id = 7", &[]).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(behind);
        assert!(running.refused(&["replace", "r2"]).contains("replica \"r2\" serves"));
        let excluded = onecopy(running.dir(), &["verify", "--exclude", "r2"]);
        assert!(String::from_utf8_lossy(&excluded.stderr).contains("out of service"), "{excluded:?}");
        wait_until("it is out of service", || running.replica("r2")["out_because"] == "differs");
        printed(running.dir(), &["replica", "replace", "r2"]);
        assert_eq!(running.replica("r2")["state"], "up");
        load.goes_on(50).await;
        load.end().await;
        running.assert_identical();
        let owner =
            rows(&connect(&running.file().replicas[1].dsn).await, "SELECT owner FROM account WHERE id = 7")
                .await;
        assert_eq!(owner, "owner 7");
        // It stays well, over a restart, too.
        let mut running = running;
        running.start_again();
        wait_until("all serve", || running.list().iter().all(|replica| replica["state"] == "up"));
        running.assert_identical();
    });
}

#[test]
fn replicas_are_removed_under_load_without_an_error_and_stay_removed() {
    block_on(async {
        let mut running = Running::start(3);
        let load = Load::start(&running).await;
        load.goes_on(50).await;
        // The first one is that whose catalogue clients see, too.
        printed(running.dir(), &["replica", "remove", "r1"]);
        load.goes_on(100).await;
        assert_eq!(running.names(), ["r2", "r3"]);
        printed(running.dir(), &["replica", "remove", "r3"]);
        load.goes_on(100).await;
        assert!(running.refused(&["remove", "r2"]).contains("no replica would serve without \"r2\""));
        load.end().await;
        assert_eq!(running.names(), ["r2"]);
        running.start_again();
        assert_eq!(running.names(), ["r2"]);

        // One that was removed joins again once its server is empty.
        let file = running.file();
        let again = |name: &str, at: usize| {
            let dsn = &file.replicas[at].dsn;
            let of = |key: &str| super::parameter(dsn, key).to_owned();
            (name.to_owned(), format!("host={} port={}", of("host"), of("port")))
        };
        let (name, server) = again("r3", 2);
        let refused = running.refused(&["add", &name, "--server", &server]);
        assert!(
            refused.contains("configuration has \"r3\"") || refused.contains("is a replica's already"),
            "{refused}"
        );
    });
}

#[test]
fn open_transaction_keeps_a_replica_that_leaves_until_it_ends_or_nobody_waits_for_it() {
    block_on(async {
        let running = Running::start(2);
        let client = running.client().await;
        client
            .batch_execute("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0), (2, 0)")
            .await
            .unwrap();
        let home = super::clients::home_of(running.dir(), async {
            client.batch_execute("BEGIN; UPDATE t SET n = 1 WHERE id = 1").await.unwrap();
        });
        let home = home.await;
        let name = format!("r{}", home + 1);
        printed(running.dir(), &["replica", "remove", &name, "--detach"]);
        assert_eq!(running.replica(&name)["state"], "leaving");
        client.batch_execute("UPDATE t SET n = 2 WHERE id = 2").await.unwrap();
        assert_eq!(running.replica(&name)["state"], "leaving");
        client.batch_execute("COMMIT").await.unwrap();
        wait_until("it has left", || running.names().len() == 1);
        assert_eq!(rows(&client, "SELECT sum(n) FROM t").await, "3");
    });
}

#[test]
fn copy_that_is_interrupted_is_begun_anew_after_a_restart_and_nothing_serves_from_it_before() {
    block_on(async {
        let mut running = Running::start(2);
        let client = running.client().await;
        let fill = "CREATE TABLE filled (id int PRIMARY KEY, body text);
                    INSERT INTO filled SELECT n, repeat(md5(n::text), 20) FROM generate_series(1, 60000) n";
        client.batch_execute(fill).await.unwrap();
        let server = another_server();
        // Nobody else has this role, so that the copy cannot get further.
        let template = connect(&server.dsn_of("template1")).await;
        template.batch_execute("CREATE ROLE stranger").await.unwrap();
        running.begin_to_add("r3", &server);
        let detail = |running: &Running| running.replica("r3")["detail"].as_str().unwrap().to_owned();
        wait_until("the copy waits", || detail(&running).contains("stranger"));
        assert_eq!(running.replica("r3")["state"], "copying");
        running.start_again();
        wait_until("the copy was begun anew", || detail(&running).contains("stranger"));
        let client = running.client().await;
        client.batch_execute("UPDATE filled SET body = 'anew' WHERE id <= 10").await.unwrap();

        // And once more, as deep in the copy as it is met.
        template.batch_execute("DROP ROLE stranger").await.unwrap();
        wait_until("rows are copied", || {
            let replica = running.replica("r3");
            replica["state"] == "up" || replica["detail"].as_str().unwrap().contains("rows, ")
        });
        running.start_again();
        wait_until("the replica serves", || running.replica("r3")["state"] == "up");
        running.assert_identical();
        let copy = connect(&server.dsn()).await;
        assert_eq!(
            rows(&copy, "SELECT count(*), count(*) FILTER (WHERE body = 'anew') FROM filled").await,
            "60000 10"
        );
    });
}

#[test]
fn whoever_wants_a_table_for_itself_does_not_wait_for_a_copy() {
    block_on(async {
        let running = Running::start(2);
        let client = running.client().await;
        client
            .batch_execute(
                "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100)",
            )
            .await
            .unwrap();
        let server = another_server();
        // The copy has its locks on the source, and waits for this transaction at its target.
        let holder = connect(&server.dsn_of("template1")).await;
        holder.batch_execute("BEGIN; ALTER ROLE postgres CONNECTION LIMIT -1").await.unwrap();
        running.begin_to_add("r3", &server);
        let detail = || running.replica("r3")["detail"].as_str().unwrap().to_owned();
        wait_until("the copy holds its locks", || detail().contains("roles, database and definitions"));
        client.batch_execute("TRUNCATE t; INSERT INTO t VALUES (1)").await.unwrap();
        client.batch_execute("CREATE ROLE late LOGIN").await.unwrap();
        holder.batch_execute("ROLLBACK").await.unwrap();
        wait_until("the replica serves", || running.replica("r3")["state"] == "up");
        running.assert_identical();
    });
}

#[test]
fn what_cannot_be_added_copied_or_removed_is_refused_and_says_why() {
    block_on(async {
        let running = Running::start(2);
        let client = running.client().await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        let server = another_server();
        let at = place(&server);
        let full = connect(&server.dsn()).await;
        full.batch_execute("CREATE TABLE precious (id int)").await.unwrap();
        for (args, says) in [
            (vec!["add", "r2", "--server", &at], "there is a replica \"r2\" already"),
            (vec!["add", "", "--server", &at], "is no name"),
            (vec!["add", "r3", "--server", "host=127.0.0.1 port=1"], "cannot be used"),
            (vec!["add", "r3", "--server", &at], "it holds 1 tables, views, sequences and functions"),
            (vec!["add", "r3", "--server", &at, "--tls", "verify-full"], "authority"),
            (vec!["replace", "r9"], "there is no replica \"r9\""),
            (vec!["replace", "r1"], "replica \"r1\" serves"),
            (vec!["remove", "r9"], "There are: r1, r2"),
        ] {
            let refused = running.refused(&args);
            assert!(refused.contains(says), "{args:?}: {refused}");
        }
        assert_eq!(rows(&full, "SELECT count(*) FROM precious").await, "0", "nothing was wiped");
        let other = Server::temporary(&Options::replica().with("timezone", "Asia/Tokyo")).unwrap();
        let refused = running.refused(&["add", "r3", "--server", &place(&other)]);
        assert!(refused.contains("TimeZone is ") && refused.contains("Asia/Tokyo"), "{refused}");
        assert_eq!(running.names(), ["r1", "r2"]);
        let kept = std::fs::read_to_string(running.dir().join("log/replicas.toml")).unwrap();
        assert!(!kept.contains("r3"), "nothing has changed: {kept}");
    });
}

#[test]
fn protocols_that_execute_everywhere_keep_the_replicas_with_which_they_began() {
    let dir = folder();
    let mut command = Up::command(dir.path(), 2);
    command.args(["--protocol", "conflict_aware"]);
    let _up = Up::ready_by(command);
    let server = another_server();
    for args in [
        vec!["replica", "add", "r3", "--server", &place(&server)],
        vec!["replica", "replace", "r2"],
        vec!["replica", "remove", "r2"],
    ] {
        let output = onecopy(dir.path(), &args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && error.contains("the protocol \"conflict_aware\" has"),
            "{args:?}: {error}"
        );
    }
}
