//! `onecopy up` as a process: what it starts, what it writes, and that nothing is left of it.

mod advisory_locks;
mod annulled;
mod applications;
mod bad_input;
mod bench_failures;
mod bench_upgrade;
mod bookkeeping;
mod bulk;
mod clients;
mod conditions;
mod copies;
mod cursors;
mod deferred;
mod durability;
mod failures;
mod fetched;
mod foreign_keys;
mod functions_of_rows;
mod hidden_waits;
mod joins;
mod messages;
mod moved;
mod names;
mod notifications;
mod object_ids;
mod order_of_rows;
mod prepared_reads;
mod prepared_sql;
mod repeated;
mod replicas;
mod retyped;
mod savepoints;
mod scheduled;
mod set_config;
mod settings;
mod sites;
mod three;
mod verified;
mod versions;
mod waiting;
mod whole;
mod whole_tpcc;

#[path = "../running/mod.rs"]
mod running;

use onecopy_cluster::ClusterFile;
use running::{Up, folder};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

fn process_runs(pid: u32) -> bool {
    // A zombie has an empty command line.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|arguments| !arguments.is_empty())
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(60), "waited 60 s until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn parameter<'a>(dsn: &'a str, name: &str) -> &'a str {
    dsn.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')).unwrap()
}

#[test]
fn cluster_is_described_while_it_serves_and_gone_after_a_termination() {
    let dir = folder();
    let mut up = Up::ready(dir.path(), 2);
    let file = ClusterFile::read(dir.path()).unwrap();
    assert_eq!(file.replicas.len(), 2);
    assert_eq!(file.replicas[1].name, "r2");
    assert!(file.replicas.iter().all(|replica| process_runs(replica.pid)));
    assert!(file.replicas[0].data.join("PG_VERSION").is_file());
    assert_eq!(parameter(&file.client.dsn, "dbname"), "postgres");
    let port: u16 = parameter(&file.client.dsn, "port").parse().unwrap();
    std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("clients can connect");

    up.signal("-TERM");
    assert!(up.process.wait().unwrap().success());
    assert!(ClusterFile::read(dir.path()).is_err(), "cluster.json goes when it no longer serves");
    assert!(!file.replicas.iter().any(|replica| process_runs(replica.pid)));

    let begin = Instant::now();
    let mut again = Up::ready(dir.path(), 2);
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "a second start is fast, this took {:?}",
        begin.elapsed()
    );
    again.signal("-INT");
    assert!(again.process.wait().unwrap().success());
}

#[test]
fn servers_end_when_the_process_is_killed_and_the_folder_serves_again() {
    let dir = folder();
    let mut up = Up::ready(dir.path(), 1);
    let file = ClusterFile::read(dir.path()).unwrap();
    up.process.kill().unwrap();
    up.process.wait().unwrap();
    wait_until("the servers have ended", || !file.replicas.iter().any(|replica| process_runs(replica.pid)));
    let _again = Up::ready(dir.path(), 1);
}

#[test]
fn server_that_is_killed_leaves_no_process_behind_and_the_others_go_on() {
    let dir = folder();
    let mut up = Up::ready(dir.path(), 2);
    let file = ClusterFile::read(dir.path()).unwrap();
    let pid = file.replicas[0].pid;
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    // A zombie's id would keep its postmaster.pid valid, for whoever starts the server by hand.
    wait_until("its process is gone", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    let port: u16 = parameter(&file.client.dsn, "port").parse().unwrap();
    std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("clients can connect");
    up.signal("-TERM");
    assert!(up.process.wait().unwrap().success());
    assert!(!process_runs(file.replicas[1].pid));
}

#[test]
fn second_start_in_one_folder_is_refused() {
    let dir = folder();
    let up = Up::ready(dir.path(), 1);
    let output = Up::command(dir.path(), 1).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains(&format!("is in use by another onecopy process (pid {})", up.process.id())),
        "{error}"
    );
    assert!(ClusterFile::read(dir.path()).is_ok(), "the first one's cluster.json stays");
}

#[test]
fn taken_port_is_refused_before_anything_is_made() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let dir = folder();
    let output = Command::new(env!("CARGO_BIN_EXE_onecopy"))
        .args(["up", "--port", &port.to_string(), "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("port {port} on 127.0.0.1 is taken by another program")), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
