//! `onecopy up` as a process, for the tests that need one; each test program compiles it for itself.
#![allow(dead_code, reason = "no test program uses all of it")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// A local cluster in a folder.
pub struct Up {
    pub process: Child,
    output: BufReader<ChildStdout>,
}

impl Up {
    /// Starts it, on a free port.
    pub fn spawn(dir: &Path, replicas: u32) -> Up {
        Up::spawn_by(Up::command(dir, replicas))
    }

    fn spawn_by(mut command: Command) -> Up {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Up { process, output }
    }

    /// Starts what a command says, and waits until it serves.
    pub fn ready_by(command: Command) -> Up {
        let mut up = Up::spawn_by(command);
        up.await_ready();
        up
    }

    /// The same, and waits until it serves.
    pub fn ready(dir: &Path, replicas: u32) -> Up {
        let mut up = Up::spawn(dir, replicas);
        up.await_ready();
        up
    }

    pub fn await_ready(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
    }

    pub fn command(dir: &Path, replicas: u32) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.args(["up", "--port", "0", "--replicas", &replicas.to_string(), "--dir"]).arg(dir);
        command
    }

    pub fn signal(&self, signal: &str) {
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
pub fn folder() -> TempDir {
    let permissions = fs::Permissions::from_mode(0o711);
    tempfile::Builder::new().prefix("onecopy-test-").permissions(permissions).tempdir().unwrap()
}
