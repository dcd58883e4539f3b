//! Client programs and libraries as people use them, against three servers behind onecopy.
//!
//! psql, a program on libpq and one on psycopg 3 write down everything that they are answered; the transcript must be the
//! one that they write when they talk to a single PostgreSQL server. tokio-postgres is driven from here.
//!
//! About twenty seconds, most of them for starting servers and psycopg's transactions that collide.

mod by_tokio_postgres;
mod completion;

#[path = "../running/mod.rs"]
mod running;

use onecopy_cluster::{ClusterFile, Options, Server};
use running::{Up, folder};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use tempfile::TempDir;

/// Three servers behind onecopy, and one server alone.
struct Servers {
    _up: Up,
    file: ClusterFile,
    alone: Server,
    dir: TempDir,
}

/// The servers, for one test at a time.
struct Turn {
    servers: Arc<Servers>,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Turn {
    type Target = Servers;

    fn deref(&self) -> &Servers {
        &self.servers
    }
}

impl Servers {
    /// Those of the tests that run now, one after the other, each in a schema of its own: a change of definitions by one would
    /// refuse a transaction of another that has read and not written yet.
    fn shared() -> Turn {
        static RUNNING: Mutex<Weak<Servers>> = Mutex::new(Weak::new());
        static TURN: Mutex<()> = Mutex::new(());
        let servers = {
            let mut running = RUNNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            running.upgrade().unwrap_or_else(|| {
                let servers = Arc::new(Servers::start());
                *running = Arc::downgrade(&servers);
                servers
            })
        };
        // Held while waiting, so that the servers are started once.
        let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Turn { servers, _turn: turn }
    }

    fn start() -> Servers {
        let dir = folder();
        let mut up = Up::spawn(dir.path(), 3);
        let alone = Server::temporary(&Options::replica()).unwrap();
        up.await_ready();
        let file = ClusterFile::read(dir.path()).unwrap();
        Servers { _up: up, file, alone, dir }
    }

    fn dsn(&self) -> &str {
        &self.file.client.dsn
    }

    /// The replicas hold the same at one commit, and all of them serve.
    fn assert_identical(&self) {
        let verify = Command::new(env!("CARGO_BIN_EXE_onecopy"))
            .args(["verify", "--json", "--dir"])
            .arg(self.dir.path())
            .output()
            .unwrap();
        let verified: serde_json::Value = serde_json::from_slice(&verify.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&verify.stderr)));
        assert_eq!(verified["identical"], true, "{verified}");
        assert_eq!(verified["replicas"].as_array().unwrap().len(), 3, "{verified}");
    }

    /// Runs a program with the DSN as its last argument, against one server and through onecopy: it must write the same.
    fn assert_same_transcript(&self, mut program: impl FnMut() -> Command) {
        let direct = transcript(program().arg(self.alone.dsn()));
        let through = transcript(program().arg(self.dsn()));
        assert!(direct.lines().count() > 50, "the program did little:\n{direct}");
        for (number, (direct, through)) in direct.lines().zip(through.lines()).enumerate() {
            let line = number + 1;
            assert_eq!(through, direct, "line {line} (left: through onecopy, right: one server)");
        }
        assert_eq!(through.lines().count(), direct.lines().count(), "{through}");
        self.assert_identical();
    }
}

/// What a program that succeeds writes.
fn transcript(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // An error message of the server may hold bytes as the client sent them.
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// A program of this machine; what installs it, if it is missing.
fn installed(program: &str, package: &str) -> Command {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(
        found.is_ok_and(|status| status.success()),
        "{program} is missing; install it with: scripts/setup test (or: apt-get install {package})"
    );
    Command::new(program)
}

#[test]
fn psql_answers_backslash_commands_and_copies_as_with_one_server() {
    let servers = Servers::shared();
    let folder = tempfile::tempdir().unwrap();
    servers.assert_same_transcript(|| {
        installed("psql", "postgresql-client");
        // Errors in the order in which they come, among the answers.
        let mut psql = Command::new("sh");
        psql.current_dir(folder.path()).env("PAGER", "cat").env("LC_ALL", "C.UTF-8");
        psql.args(["-c", "exec \"$0\" \"$@\" 2>&1", "psql", "-X", "-a", "-f"])
            .arg(source("by_psql.sql"))
            .arg("-d");
        psql
    });
}

#[test]
fn psql_shows_what_is_onecopys_own() {
    let servers = Servers::shared();
    let shown = |command: &str| {
        transcript(installed("psql", "postgresql-client").args([
            "-X",
            "-A",
            "-t",
            "-c",
            command,
            "-d",
            servers.dsn(),
        ]))
    };
    assert!(shown("\\dn").contains("onecopy|postgres\n"));
    assert_eq!(shown("SHOW transaction_isolation"), "serializable\n");
    assert_eq!(shown("\\echo :SERVER_VERSION_NUM"), shown("SHOW server_version_num"));
}

#[test]
fn program_on_libpq_gets_what_one_server_answers() {
    let servers = Servers::shared();
    let folder = tempfile::tempdir().unwrap();
    let pg_config = |what: &str| transcript(installed("pg_config", "libpq-dev").arg(what)).trim().to_owned();
    let binary = folder.path().join("by_libpq");
    let mut compiler = installed("cc", "build-essential");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&binary).arg(source("by_libpq.c"));
    compiler
        .arg(format!("-I{}", pg_config("--includedir")))
        .arg(format!("-L{}", pg_config("--libdir")))
        .arg("-lpq");
    transcript(&mut compiler);
    servers.assert_same_transcript(|| Command::new(&binary));
}

#[test]
fn program_on_psycopg_gets_what_one_server_answers() {
    let servers = Servers::shared();
    let python = python_with_psycopg();
    servers.assert_same_transcript(|| {
        let mut python = Command::new(python);
        // psycopg tells of connections that it gives up, when it does, on its standard error.
        python.arg(source("by_psycopg.py"));
        python
    });
}

/// Debian's psycopg is for Debian's Python, which another one in PATH may hide.
fn python_with_psycopg() -> &'static str {
    let has = |python: &&str| {
        let found = Command::new(python).args(["-c", "import psycopg"]).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    let pythons = ["python3", "/usr/bin/python3"];
    pythons.into_iter().find(|python| has(python)).expect(
        "no Python here has psycopg 3; install it with: scripts/setup test (or: apt-get install python3-psycopg)",
    )
}
