//! `onecopy up` as a process: what it starts, what it writes, and that nothing is left of it.

mod advisory_locks;
mod applications;
mod bad_input;
mod bookkeeping;
mod bulk;
mod clients;
mod copies;
mod cursors;
mod notifications;
mod prepared_sql;
mod repeated;
mod set_config;
mod settings;
mod waiting;

use onecopy_cluster::ClusterFile;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

struct Up {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Up {
    fn spawn(dir: &Path, replicas: u32) -> Up {
        let replicas = replicas.to_string();
        let mut process = Command::new(env!("CARGO_BIN_EXE_onecopy"))
            .args(["up", "--port", "0", "--replicas", &replicas, "--dir"])
            .arg(dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Up { process, output }
    }

    /// Starts it and waits until it serves.
    fn ready(dir: &Path, replicas: u32) -> Up {
        let mut up = Up::spawn(dir, replicas);
        let mut line = String::new();
        up.output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        up
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // The servers' watchdogs end them.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A folder that another user may enter, since root hands the servers to one.
fn folder() -> tempfile::TempDir {
    let permissions = fs::Permissions::from_mode(0o711);
    tempfile::Builder::new().prefix("onecopy-up-").permissions(permissions).tempdir().unwrap()
}

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
fn second_start_in_one_folder_is_refused() {
    let dir = folder();
    let up = Up::ready(dir.path(), 1);
    let output = Command::new(env!("CARGO_BIN_EXE_onecopy"))
        .args(["up", "--port", "0", "--replicas", "1", "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
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
