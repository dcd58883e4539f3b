//! Programs that benchmarks start beside themselves: proxies, and onecopy.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use onecopy_cluster::{Cluster, ClusterFile, free_port};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Error, Result, connection};

/// The database of every new server.
pub(crate) const DATABASE: &str = "postgres";
/// How long a proxy may take to answer.
pub(crate) const PROXY_START: Duration = Duration::from_secs(20);
/// How long onecopy may take, which makes its servers first.
pub(crate) const ONECOPY_START: Duration = Duration::from_secs(180);
/// How long a program may take to end after it was asked to.
const STOP: Duration = Duration::from_secs(30);

/// How Pgpool-II keeps its servers the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PgpoolMode {
    /// Every write goes to all of them.
    NativeReplication,
    /// As well, and snapshots are taken together. The servers' default level must be REPEATABLE READ.
    SnapshotIsolation,
}

/// Pgpool-II before servers that run, for at most so many clients; and where they connect.
pub(crate) async fn pgpool(
    program: &Path,
    cluster: &Cluster,
    mode: PgpoolMode,
    children: u32,
) -> Result<(Program, String)> {
    let mode = match mode {
        PgpoolMode::NativeReplication => "native_replication",
        PgpoolMode::SnapshotIsolation => "snapshot_isolation",
    };
    let first = cluster.server(0);
    let (port, control_port, dir) = (free_port()?, free_port()?, first.dir().to_owned());
    let mut text = format!(
        "backend_clustering_mode = '{mode}'\nlisten_addresses = '127.0.0.1'\nport = {port}\n\
         pcp_listen_addresses = '127.0.0.1'\npcp_port = {control_port}\nunix_socket_directories = '{dir}'\n\
         pcp_socket_dir = '{dir}'\nwd_ipc_socket_dir = '{dir}'\npid_file_name = '{dir}/pgpool.pid'\nlogdir = '{dir}'\n\
         num_init_children = {children}\nmax_pool = 1\nload_balance_mode = on\nenable_pool_hba = off\npool_passwd = ''\n\
         log_min_messages = fatal\nlog_connections = off\nhealth_check_period = 0\nsr_check_period = 0\n\
         failover_on_backend_error = off\nuse_watchdog = off\n",
        dir = dir.display()
    );
    for (number, server) in cluster.servers().iter().enumerate() {
        text += &format!(
            "backend_hostname{number} = '127.0.0.1'\nbackend_port{number} = {}\nbackend_weight{number} = 1\n\
             backend_data_directory{number} = '{}'\nbackend_flag{number} = 'DISALLOW_TO_FAILOVER'\n",
            server.port(),
            server.data_dir().display()
        );
    }
    let configuration = dir.join("pgpool.conf");
    write(&configuration, &text)?;
    // It wants these to exist.
    let (control, hba) = (dir.join("pcp.conf"), dir.join("pool_hba.conf"));
    write(&control, "")?;
    write(&hba, "host all all 127.0.0.1/32 trust\n")?;
    let mut command = first.command(&program.to_string_lossy());
    command.arg("-n").arg("-D").arg("-f").arg(&configuration).arg("-F").arg(&control).arg("-a").arg(&hba);
    let dsn = dsn(port, first.superuser());
    let program = Program::start("pgpool", command, &dir.join("pgpool.log"))?;
    Ok((program.await_answer(&dsn, PROXY_START).await?, dsn))
}

/// `onecopy up` in a folder, with further arguments, and what it says of its cluster. What it prints goes to `log`.
pub(crate) async fn onecopy_up(
    program: &Path,
    dir: &Path,
    replicas: u32,
    more: &[&str],
    log: &Path,
) -> Result<(Program, ClusterFile)> {
    let program = find_program("onecopy", Some(program))?;
    let port = free_port()?;
    let mut command = Command::new(&program);
    command.args(["up", "--replicas", &replicas.to_string(), "--port", &port.to_string(), "--dir"]).arg(dir);
    command.args(more);
    let program = Program::start("onecopy", command, log)?.await_ready(ONECOPY_START).await?;
    let file = ClusterFile::read(dir)?;
    Ok((program, file))
}

/// A program in the foreground, with what it says in a file. Dropping it stops it by SIGINT.
pub(crate) struct Program {
    name: &'static str,
    child: Child,
    log: PathBuf,
    /// How long the file was when it began.
    said_before: u64,
}

impl Program {
    /// What it says comes behind what the file holds.
    pub(crate) fn start(name: &'static str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log).map_err(Error::file("open", log))?;
        let said_before = file.metadata().map_err(Error::file("look at", log))?.len();
        let copy = file.try_clone().map_err(Error::file("open", log))?;
        command.stdin(Stdio::null()).stdout(file).stderr(copy);
        // Ctrl-C at the terminal is for us, who then stop all in order.
        command.process_group(0);
        let child = command.spawn().map_err(|error| Error::program(name, error.to_string()))?;
        Ok(Program { name, child, log: log.to_owned(), said_before })
    }

    /// Waits until a client can run a statement through it.
    pub(crate) async fn await_answer(mut self, dsn: &str, limit: Duration) -> Result<Self> {
        let target = connection::Target::parse(dsn)?;
        let begin = Instant::now();
        loop {
            let refusal = match target.connect().await {
                Ok(client) => match client.simple_query("SELECT 1").await {
                    Ok(_) => return Ok(self),
                    Err(error) => crate::error::describe(&error),
                },
                Err(error) => error.to_string(),
            };
            self.expect_alive()?;
            if begin.elapsed() > limit {
                return Err(self.failure(&format!("did not answer in time: {refusal}")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until it has said `ready`.
    pub(crate) async fn await_ready(mut self, limit: Duration) -> Result<Self> {
        let begin = Instant::now();
        while !self.said().lines().any(|line| line.trim() == "ready") {
            self.expect_alive()?;
            if begin.elapsed() > limit {
                return Err(self.failure("was not ready in time"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(self)
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs; if not, its last words.
    pub(crate) fn expect_alive(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failure(&format!("ended ({status})"))),
            Err(error) => Err(self.failure(&error.to_string())),
        }
    }

    /// Sends it a signal. A program that has ended and was not waited for yet takes no harm from it.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it as the loss of its machine does, and waits for that.
    pub(crate) fn kill(mut self) -> Result<()> {
        let failed = |error: std::io::Error| Error::program(self.name, error.to_string());
        self.child.kill().map_err(failed)?;
        self.child.wait().map(drop).map_err(failed)
    }

    fn failure(&self, what: &str) -> Error {
        let said = self.said();
        let lines: Vec<&str> = said.lines().collect();
        let tail = lines[lines.len().saturating_sub(5)..].join("\n");
        Error::program(self.name, format!("{what}\n{tail}").trim_end())
    }

    /// All that it has said until now.
    pub(crate) fn said(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let its_own = bytes.get(self.said_before as usize..).unwrap_or_default();
        String::from_utf8_lossy(its_own).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let begin = Instant::now();
        self.signal(Signal::INT);
        // One that stands still hears of it only then.
        self.signal(Signal::CONT);
        while matches!(self.child.try_wait(), Ok(None)) {
            if begin.elapsed() > STOP {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

pub(crate) fn dsn(port: u16, user: &str) -> String {
    format!("host=127.0.0.1 port={port} user={user} dbname={DATABASE}")
}

pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::file("write", path))
}

/// The program that was given, or the one in PATH or in a folder of system programs.
pub(crate) fn find_program(name: &str, given: Option<&Path>) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> = Vec::new();
    match given {
        Some(given) if given.components().count() > 1 => candidates.push(given.to_owned()),
        _ => {
            let name = given.unwrap_or(Path::new(name));
            candidates.extend(std::env::split_paths(&path).map(|dir| dir.join(name)));
            candidates.extend(["/usr/sbin", "/usr/local/sbin"].map(|dir| Path::new(dir).join(name)));
        }
    }
    let found = candidates.into_iter().find(|candidate| candidate.is_file());
    // A program may be started in another folder than ours.
    let found = found.and_then(|found| std::path::absolute(found).ok());
    found.ok_or_else(|| Error::program(name, "is not installed"))
}
