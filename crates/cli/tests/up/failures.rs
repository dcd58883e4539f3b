//! Servers that fail in ways of which TCP tells nothing, and what clients and `onecopy status` notice of it.

use super::clients::{block_on, connect, home_of, json, rows};
use super::{Up, folder, wait_until};
use onecopy_cluster::ClusterFile;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio_postgres::Client;

/// What `onecopy status` says of a replica.
fn replica(dir: &Path, index: usize) -> Value {
    json(dir, &["status"])["replicas"][index].clone()
}

pub(super) fn are_up(dir: &Path) -> bool {
    let status = json(dir, &["status"]);
    status["replicas"].as_array().unwrap().iter().all(|replica| replica["state"] == "up")
}

/// A server all of whose processes are stopped; they go on when this is dropped.
struct Paused(Vec<u32>);

impl Paused {
    /// The postmaster first, so that it starts no others meanwhile.
    fn new(postmaster: u32) -> Paused {
        let mut paused = Paused(vec![postmaster]);
        signal("-STOP", postmaster);
        let children = format!("/proc/{postmaster}/task/{postmaster}/children");
        for child in std::fs::read_to_string(children).unwrap().split_whitespace() {
            let child = child.parse().unwrap();
            paused.0.push(child);
            signal("-STOP", child);
        }
        paused
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.iter().rev().for_each(|pid| signal("-CONT", *pid));
    }
}

fn signal(which: &str, pid: u32) {
    // One that has just ended needs none.
    let _ = Command::new("kill").args([which, &pid.to_string()]).output().unwrap();
}

/// Adds to its own row and reads it, until told to stop; returns how often it has added.
async fn count(client: Client, id: i32, stop: Arc<AtomicBool>, steps: Arc<AtomicU64>) -> i64 {
    let mut added = 0;
    while !stop.load(Ordering::Relaxed) {
        match client.execute("UPDATE t SET v = v + 1 WHERE id = $1", &[&id]).await {
            Ok(_) => added += 1,
            Err(error) => assert_eq!(error.code().map(|code| code.code()), Some("40001"), "{error}"),
        }
        match client.query_one("SELECT v FROM t WHERE id = $1", &[&id]).await {
            Ok(row) => assert_eq!(row.get::<_, i64>(0), added),
            Err(error) => assert_eq!(error.code().map(|code| code.code()), Some("40001"), "{error}"),
        }
        steps.fetch_add(1, Ordering::Relaxed);
    }
    added
}

#[test]
fn stopped_server_keeps_no_client_waiting_and_serves_again_when_it_goes_on() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        let table = "CREATE TABLE t (id int PRIMARY KEY, v bigint); INSERT INTO t SELECT n, 0 FROM generate_series(1, 6) n";
        client.batch_execute(table).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let steps: Vec<Arc<AtomicU64>> = (0..6).map(|_| Arc::default()).collect();
        let mut workers = Vec::new();
        for (id, steps) in (1..).zip(&steps) {
            let client = connect(&file.client.dsn).await;
            workers.push(tokio::spawn(count(client, id, stop.clone(), steps.clone())));
        }
        let all_have_gone_on = |what: &str| {
            let before: Vec<u64> = steps.iter().map(|steps| steps.load(Ordering::Relaxed)).collect();
            let has_gone_on =
                |(steps, before): (&Arc<AtomicU64>, &u64)| steps.load(Ordering::Relaxed) > before + 10;
            wait_until(what, || steps.iter().zip(&before).all(has_gone_on));
        };
        all_have_gone_on("all clients count");
        let paused = Paused::new(file.replicas[1].pid);
        wait_until("the stopped server is out of service", || replica(dir.path(), 1)["state"] == "down");
        all_have_gone_on("all clients go on without the stopped server");
        // The first to find out may be somebody who wanted to open a connection.
        wait_until("the status says why", || {
            ["silent", "unreachable"].map(Value::from).contains(&replica(dir.path(), 1)["out_because"])
        });
        let status = replica(dir.path(), 1);
        assert!(!status["detail"].as_str().unwrap().is_empty() && status["out_s"].is_u64(), "{status}");
        drop(paused);
        wait_until("it serves again", || are_up(dir.path()));
        stop.store(true, Ordering::Relaxed);
        for (id, worker) in (1..).zip(workers) {
            let added = worker.await.unwrap();
            let row = client.query_one("SELECT v FROM t WHERE id = $1", &[&id]).await.unwrap();
            assert_eq!(row.get::<_, i64>(0), added);
        }
        let verified = json(dir.path(), &["verify"]);
        assert_eq!(
            (&verified["identical"], verified["replicas"].as_array().unwrap().len()),
            (&true.into(), 3)
        );
        assert_eq!(replica(dir.path(), 1)["out_because"], "");
    });
}

/// The sessions by which onecopy knows what a server contains: they end whenever the replica leaves service.
pub(super) async fn agents(file: &ClusterFile) -> Vec<String> {
    let sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1868771952 AND objid = 0";
    let mut pids = Vec::new();
    for replica in &file.replicas {
        pids.push(rows(&connect(&replica.dsn).await, sql).await);
    }
    pids
}

#[test]
fn process_that_may_open_no_more_files_tells_its_clients_so_and_keeps_all_replicas() {
    block_on(async {
        let dir = folder();
        let up = Up::ready(dir.path(), 2);
        let file = ClusterFile::read(dir.path()).unwrap();
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(connect(&file.client.dsn).await);
        }
        let table = "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT n, 0 FROM generate_series(0, 7) n";
        clients[0].batch_execute(table).await.unwrap();
        let known_by = agents(&file).await;
        assert!(known_by.iter().all(|pid| pid.parse::<u32>().is_ok()), "{known_by:?}");

        // Whatever is open stays open. All clients together need more connections to the replicas than there are.
        let process = Pid::from_child(&up.process);
        let least = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
        let before = prlimit(Some(process), Resource::Nofile, least).unwrap();
        let mut refused = 0;
        for (id, client) in clients.iter().enumerate() {
            client.batch_execute("BEGIN").await.unwrap();
            let update = format!("UPDATE t SET v = v + 1 WHERE id = {id}");
            if let Err(error) = client.batch_execute(&update).await {
                let error = error.as_db_error().unwrap();
                assert_eq!(error.code().code(), "53000", "{error:?}");
                assert!(error.hint().unwrap().contains("ulimit -n"), "{error:?}");
                refused += 1;
            }
        }
        assert!((1..8).contains(&refused), "{refused}");
        // Those that have one go on, and others get it after them.
        for client in &clients {
            client.batch_execute("COMMIT").await.unwrap();
        }
        clients[0].batch_execute("UPDATE t SET v = v + 1").await.unwrap();
        prlimit(Some(process), Resource::Nofile, before).unwrap();
        let sums = rows(&clients[1], "SELECT sum(v) FROM t").await;
        assert_eq!(sums, (8 + 8 - refused).to_string());
        assert_eq!(agents(&file).await, known_by, "no replica has left service");
        assert!(are_up(dir.path()));
    });
}

#[test]
fn replica_whose_earlier_sessions_do_not_end_says_so_and_serves_again_when_they_have() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        let home = home_of(dir.path(), async {
            client.batch_execute("INSERT INTO t VALUES (0)").await.unwrap();
        });
        let home = home.await;
        let server = connect(&file.replicas[home].dsn).await;
        let lanes = "SELECT min(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1868771952 AND objid <> 0";
        let stopped: u32 = rows(&server, lanes).await.parse().unwrap();
        let paused = Paused::new(stopped);
        let agent: u32 = agents(&file).await[home].parse().unwrap();
        rows(&server, &format!("SELECT pg_terminate_backend({agent})")).await;
        wait_until("the status says that a session does not end", || {
            replica(dir.path(), home)["out_because"] == "sessions_remain"
        });
        let status = replica(dir.path(), home);
        assert!(status["detail"].as_str().unwrap().contains(&stopped.to_string()), "{status}");
        client.batch_execute("INSERT INTO t VALUES (1)").await.unwrap();
        drop(paused);
        wait_until("it serves again", || are_up(dir.path()));
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
    });
}

#[test]
fn replica_that_cannot_apply_a_commit_stays_out_of_service_until_it_can() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        wait_until("all replicas contain the table", || {
            let status = json(dir.path(), &["status"]);
            let replicas = status["replicas"].as_array().unwrap();
            replicas.iter().all(|replica| replica["applied"] == status["status"]["told"])
        });
        let home = home_of(dir.path(), async {
            client.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
        });
        let at = (home.await + 1) % 3;
        let behind = connect(&file.replicas[at].dsn).await;
        behind.batch_execute("INSERT INTO t VALUES (1)").await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        let tried = || {
            let status = replica(dir.path(), at);
            let (_, times) = status["detail"].as_str()?.rsplit_once("(tried ")?;
            times.split(' ').next()?.parse::<u32>().ok()
        };
        wait_until("it was tried four times", || tried() >= Some(4));
        for _ in 0..20 {
            let status = replica(dir.path(), at);
            assert_eq!((&status["state"], &status["out_because"]), (&"down".into(), &"record_fails".into()));
            assert!(status["detail"].as_str().unwrap().contains("23505: duplicate key"), "{status}");
        }
        client.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
        behind.batch_execute("DELETE FROM t WHERE id = 1").await.unwrap();
        wait_until("it serves again", || are_up(dir.path()));
        let verified = json(dir.path(), &["verify"]);
        assert_eq!(
            (&verified["identical"], verified["replicas"].as_array().unwrap().len()),
            (&true.into(), 3)
        );
    });
}

#[test]
fn server_that_says_that_its_disk_is_full_is_not_the_home_of_what_follows() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        let full = "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0);
                    CREATE FUNCTION full_disk(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
                    $$ BEGIN RAISE 'no space left on device' USING ERRCODE = '53100'; END $$";
        client.batch_execute(full).await.unwrap();
        let agents_before = agents(&file).await;
        let home = home_of(dir.path(), async {
            let failed = client.execute("UPDATE t SET v = full_disk(v)", &[]).await.unwrap_err();
            assert_eq!(failed.code().unwrap().code(), "53100");
        })
        .await;
        // It has left service, and is back.
        let mut now = agents_before.clone();
        for _ in 0..200 {
            now = agents(&file).await;
            if now[home] != agents_before[home] && are_up(dir.path()) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_ne!(now[home], agents_before[home]);
        for other in (0..3).filter(|other| *other != home) {
            assert_eq!(now[other], agents_before[other]);
        }
        let next = home_of(dir.path(), async {
            client.execute("UPDATE t SET v = 1", &[]).await.unwrap();
        });
        assert_ne!(next.await, home);
    });
}
