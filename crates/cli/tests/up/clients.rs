//! What clients of a local cluster see, and what the replicas hold afterwards.

use super::{Up, folder};
use futures_util::StreamExt;
use onecopy_cluster::ClusterFile;
use std::path::Path;
use std::pin::pin;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

pub(super) async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// All rows of a query, cells and rows joined.
pub(super) async fn rows(client: &Client, sql: &str) -> String {
    let mut lines = Vec::new();
    for message in client.simple_query(sql).await.unwrap() {
        if let SimpleQueryMessage::Row(row) = message {
            let cells: Vec<&str> = (0..row.len()).map(|cell| row.get(cell).unwrap_or("-")).collect();
            lines.push(cells.join(" "));
        }
    }
    lines.join(", ")
}

pub(super) fn onecopy(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(args).arg("--dir").arg(dir).output().unwrap()
}

/// What a command prints that succeeds.
pub(super) fn printed(dir: &Path, args: &[&str]) -> String {
    let output = onecopy(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(super) fn json(dir: &Path, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&printed(dir, &[args, &["--json"]].concat())).unwrap()
}

/// At which replica a statement that needs a home was executed, counted from 0. Whoever wants to know where a commit comes
/// from looks while its transaction is open: the next one may find another home.
pub(super) async fn home_of(dir: &Path, execute: impl Future<Output = ()>) -> usize {
    let counts = || -> Vec<u64> {
        let status = json(dir, &["status"]);
        replicas(&status).iter().map(|replica| replica["home_statements"].as_u64().unwrap()).collect()
    };
    let before = counts();
    execute.await;
    let after = counts();
    (0..before.len()).find(|at| after[*at] > before[*at]).expect("it was executed at a home")
}

pub(super) fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test);
}

#[test]
fn what_one_client_writes_is_on_every_replica() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let mut client = connect(&file.client.dsn).await;

        client.batch_execute("CREATE TABLE accounts (id int PRIMARY KEY, owner text)").await.unwrap();
        client.execute("INSERT INTO accounts VALUES ($1, $2)", &[&1, &"Ada"]).await.unwrap();

        let transaction = client.transaction().await.unwrap();
        transaction.execute("INSERT INTO accounts VALUES (2, 'Bo')", &[]).await.unwrap();
        let count = transaction.query_one("SELECT count(*) FROM accounts", &[]).await.unwrap();
        assert_eq!(count.get::<_, i64>(0), 2, "a transaction sees what it wrote");
        transaction.execute("UPDATE accounts SET owner = 'Bea' WHERE id = 2", &[]).await.unwrap();
        transaction.commit().await.unwrap();

        let transaction = client.transaction().await.unwrap();
        transaction.execute("DELETE FROM accounts", &[]).await.unwrap();
        transaction.rollback().await.unwrap();

        copy_in(&client).await;

        let expected = "1 Ada, 2 Bea, 3 Cy, 4 Di";
        let all = "SELECT id, owner FROM accounts ORDER BY id";
        assert_eq!(rows(&client, all).await, expected);
        let verified = json(dir.path(), &["verify"]);
        assert_eq!(verified["identical"], true, "{verified}");
        assert_eq!(verified["replicas"].as_array().unwrap().len(), 3);
        for replica in &file.replicas {
            assert_eq!(rows(&connect(&replica.dsn).await, all).await, expected, "{}", replica.name);
        }
    });
}

/// By the extended protocol, as most drivers do it.
async fn copy_in(client: &Client) {
    use futures_util::SinkExt;
    let mut sink = pin!(client.copy_in("COPY accounts FROM STDIN").await.unwrap());
    sink.send(&b"3\tCy\n4\tDi\n"[..]).await.unwrap();
    assert_eq!(sink.finish().await.unwrap(), 2);
}

#[test]
fn commands_ask_the_cluster_that_serves() {
    block_on(async {
        let dir = folder();
        let up = Up::ready(dir.path(), 2);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE accounts (id int PRIMARY KEY, balance int)").await.unwrap();

        let explained = printed(dir.path(), &["explain", "UPDATE accounts SET balance = 1 WHERE id = 7"]);
        assert!(explained.contains("accounts (id = 7)"), "{explained}");
        assert_eq!(rows(&client, "SELECT count(*) FROM accounts").await, "0", "nothing was executed");
        for (sql, served_by) in [
            ("SELECT balance FROM accounts WHERE id = 7", "one of r1, r2 that contains"),
            ("SELECT balance FROM accounts FOR UPDATE", "home: one of r1, r2"),
            ("DELETE FROM accounts", "that contains the last writers of its items; then all"),
            ("SELECT relname FROM pg_class", "r1: catalogue queries show object ids"),
            ("VACUUM accounts", "r1, r2, one after the other"),
            ("SELEC 1", "none: it is refused"),
            ("CREATE TEMPORARY TABLE t (id int)", "none: it is refused"),
        ] {
            let explained = printed(dir.path(), &["explain", sql]);
            let line = explained.lines().find(|line| line.starts_with("served by")).unwrap();
            assert!(line.contains(served_by), "{sql}: {line}");
        }

        let status = printed(dir.path(), &["status"]);
        assert!(status.contains("r1") && status.contains("r2") && status.contains("protocol"), "{status}");
        let status = json(dir.path(), &["status"]);
        assert_eq!(status["status"]["protocol"], "onecopy");
        assert_eq!(status["status"]["decided"], 1);
        assert_eq!(status["replicas"][1]["state"], "up");
        assert!(printed(dir.path(), &["verify"]).contains("identical"));

        // A write behind onecopy is what VERIFY is there to find.
        let behind = connect(&file.replicas[1].dsn).await;
        behind.batch_execute("INSERT INTO accounts VALUES (1, 1)").await.unwrap();
        let output = onecopy(dir.path(), &["verify"]);
        assert_eq!(output.status.code(), Some(1));
        let (stdout, stderr) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
        assert!(stdout.unwrap().contains("DIFFERS: public.accounts"));
        assert!(stderr.unwrap().contains("the replicas differ"));

        drop(up);
        let output = onecopy(dir.path(), &["status"]);
        assert_eq!(output.status.code(), Some(1));
    });
}

#[test]
fn statement_that_replicas_would_answer_differently_is_refused_with_a_hint() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let client = connect(&ClusterFile::read(dir.path()).unwrap().client.dsn).await;
        client.batch_execute("CREATE TABLE keyless (a float8)").await.unwrap();
        let error = client.simple_query("UPDATE keyless SET a = random()").await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::FEATURE_NOT_SUPPORTED, "{error:?}");
        assert!(error.hint().is_some_and(|hint| !hint.is_empty()), "{error:?}");
        assert_eq!(rows(&client, "SELECT 1").await, "1", "the session goes on");
    });
}

#[test]
fn connections_of_one_replica_are_killed_and_clients_go_on() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        for id in 0..20 {
            client.execute("INSERT INTO t VALUES ($1)", &[&id]).await.unwrap();
            if id == 10 {
                let replica = connect(&file.replicas[0].dsn).await;
                let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
                assert_ne!(rows(&replica, kill).await, "", "there were connections to kill");
            }
            let count = client.query_one("SELECT count(*) FROM t", &[]).await.unwrap();
            assert_eq!(count.get::<_, i64>(0), i64::from(id) + 1);
        }
        await_both_in_service(dir.path());
        let verified = json(dir.path(), &["verify"]);
        assert_eq!(verified["identical"], true, "{verified}");
        assert_eq!(verified["replicas"].as_array().unwrap().len(), 2, "{verified}");
    });
}

/// A server that crashes loses what it had answered in the last moments, and then lets everybody in again.
#[test]
fn server_has_crashed_and_a_new_client_reads_what_was_acknowledged_before() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client
            .batch_execute(
                "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0);
                 CREATE ROLE visitor LOGIN; GRANT SELECT ON t TO visitor",
            )
            .await
            .unwrap();
        let replica = connect(&file.replicas[0].dsn).await;
        let victim = rows(&replica, "SELECT pg_backend_pid()").await;
        for _ in 0..5 {
            client.batch_execute("UPDATE t SET v = v + 1").await.unwrap();
        }
        assert!(Command::new("kill").args(["-9", &victim]).status().unwrap().success());
        // No lane of this role was open: nothing but the agent's session can tell that the server is another one now.
        let visitor = file.client.dsn.replace("user=postgres", "user=visitor");
        for _ in 0..5 {
            let visitor = connect(&visitor).await;
            assert_eq!(rows(&visitor, "SELECT v FROM t").await, "5");
        }
    });
}

fn await_both_in_service(dir: &Path) {
    let begin = Instant::now();
    loop {
        let status = json(dir, &["status"]);
        if status["replicas"].as_array().unwrap().iter().all(|replica| replica["state"] == "up") {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "a replica stayed out of service: {status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Somebody changed one replica behind onecopy's back, and a write shows it.
#[test]
fn replica_differs_and_stays_out_of_service_while_the_others_serve() {
    block_on(async {
        let dir = folder();
        let mut up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        let table = "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0)";
        client.batch_execute(table).await.unwrap();
        super::wait_until("all replicas contain the table", || {
            let status = json(dir.path(), &["status"]);
            replicas(&status).iter().all(|replica| replica["applied"] == status["status"]["told"])
        });
        let home = home_of(dir.path(), async {
            client.batch_execute("BEGIN; UPDATE t SET v = v + 1 WHERE id = 1").await.unwrap();
        });
        let changed = (home.await + 1) % 3;
        let changed_directly = connect(&file.replicas[changed].dsn).await;
        changed_directly.batch_execute("DELETE FROM t").await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        let others_serve = || {
            let status = json(dir.path(), &["status"]);
            let is_up = |at: usize| replicas(&status)[at]["state"] == "up";
            (0..3).all(|at| is_up(at) == (at != changed))
        };
        super::wait_until("it has left service", others_serve);
        let verified = onecopy(dir.path(), &["verify", "--json"]);
        let complaint = String::from_utf8(verified.stderr).unwrap();
        assert_eq!(verified.status.code(), Some(1));
        assert!(complaint.contains(&format!("not compared: {}", file.replicas[changed].name)), "{complaint}");
        let verified: serde_json::Value = serde_json::from_slice(&verified.stdout).unwrap();
        assert_eq!(verified["identical"], false, "{verified}");
        for _ in 0..600 {
            assert_eq!(rows(&client, "SELECT v FROM t").await, "1");
        }
        up.signal("-TERM");
        assert!(up.process.wait().unwrap().success());
        let _again = Up::ready(dir.path(), 3);
        assert!(others_serve(), "a restart does not bring it back");
        super::wait_until("the status says why", || {
            replicas(&json(dir.path(), &["status"]))[changed]["out_because"] == "differs"
        });
        let shown = printed(dir.path(), &["status"]);
        assert!(shown.contains("copy it anew from one of them"), "{shown}");
    });
}

pub(super) fn replicas(status: &serde_json::Value) -> &[serde_json::Value] {
    status["replicas"].as_array().unwrap()
}

/// Reads rows slowly, ends the connections of the replicas that send them, and says what came: the rows, and why no more.
async fn cut(
    client: &Client,
    file: &ClusterFile,
    sql: &str,
    rows_before: usize,
) -> (Vec<i32>, Option<SqlState>) {
    let mut stream = pin!(client.query_raw(sql, [0_i32; 0]).await.unwrap());
    let mut numbers = Vec::new();
    loop {
        if numbers.len() == rows_before {
            for replica in &file.replicas {
                let replica = connect(&replica.dsn).await;
                let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                            WHERE query LIKE '%generate_series%' AND pid <> pg_backend_pid()";
                rows(&replica, kill).await;
            }
        }
        match stream.next().await {
            Some(Ok(row)) => numbers.push(row.get::<_, i32>(0)),
            Some(Err(error)) => return (numbers, error.code().cloned()),
            None => return (numbers, None),
        }
    }
}

#[test]
fn answer_of_which_rows_were_sent_is_cut_off_and_not_begun_again() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        let sql = "SELECT i, repeat('x', 1000) FROM generate_series(1, 200000) i";
        let (numbers, code) = cut(&client, &file, sql, 100).await;
        assert_eq!(code, Some(SqlState::T_R_SERIALIZATION_FAILURE));
        assert!(numbers.len() < 200_000 && numbers.iter().copied().eq(1..=numbers.len() as i32));
        assert_eq!(rows(&client, "SELECT 1").await, "1", "the session goes on");
        // Inside a row nothing can be said any more: the connection ends. A server that was told between two rows says so.
        let sql = "SELECT i, repeat('x', 5000000) FROM generate_series(1, 100) i";
        let (numbers, code) = cut(&client, &file, sql, 2).await;
        assert!(numbers.len() < 100 && numbers.iter().copied().eq(1..=numbers.len() as i32));
        assert!(matches!(code, None | Some(SqlState::T_R_SERIALIZATION_FAILURE)), "{code:?}");
        assert_eq!(client.simple_query("SELECT 1").await.is_err(), code.is_none());
    });
}

/// A cancel request meets whatever runs on a connection at that moment, what onecopy adds included.
#[test]
fn statements_are_cancelled_at_any_moment_and_happen_on_all_replicas_or_on_none() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE t (id text PRIMARY KEY, v int, note text)").await.unwrap();
        let mut workers = Vec::new();
        for id in 0..4 {
            client.batch_execute(&format!("INSERT INTO t VALUES ('{id}', 0, '')")).await.unwrap();
            let worker = connect(&file.client.dsn).await;
            let token = worker.cancel_token();
            let canceller = tokio::spawn(async move { while token.cancel_query(NoTls).await.is_ok() {} });
            workers.push(tokio::spawn(async move {
                let mut done = 0;
                for n in 0..600 {
                    let sql = format!("UPDATE t SET v = v + 1, note = 'n{n}' WHERE id = '{id}'");
                    match worker.simple_query(&sql).await {
                        Ok(_) => done += 1,
                        Err(error) => {
                            assert_eq!(
                                error.code(),
                                Some(&SqlState::QUERY_CANCELED),
                                "{:?}",
                                error.as_db_error()
                            )
                        }
                    }
                }
                canceller.abort();
                format!("{id} {done}")
            }));
        }
        let mut expected = Vec::new();
        for worker in workers {
            expected.push(worker.await.unwrap());
        }
        assert_eq!(rows(&client, "SELECT id, v FROM t ORDER BY id").await, expected.join(", "));
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
    });
}
