//! Starts and stops what is compared.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use onecopy_cluster::{Binaries, Cluster, ClusterFile, Server, free_port};
use rustix::process::{Pid, Signal, kill_process};

use super::cpu::Group;
use super::pgbench::Pgbench;
use super::{Options, Target};
use crate::connection;
use crate::{Error, Result};

/// How long a proxy may take to answer.
const PROXY_START: Duration = Duration::from_secs(20);
/// How long onecopy may take, which makes its servers first.
const ONECOPY_START: Duration = Duration::from_secs(180);
/// How long a program may take to end after it was asked to.
const STOP: Duration = Duration::from_secs(30);

/// A target that runs, with pgbench's tables in it. Dropping it stops it.
pub(super) struct Running {
    pub(super) target: Target,
    pub(super) dsn: String,
    // The program first: it stops before the servers behind it.
    program: Option<Program>,
    servers: Servers,
}

/// PostgreSQL servers of a target.
enum Servers {
    /// Those of another target: the process ids of their postmasters.
    Borrowed(Vec<u32>),
    /// Its own.
    Own(Vec<Server>),
    /// Its own, with the same settings.
    Cluster(Cluster),
    /// Those that the program itself runs.
    Programs(Vec<u32>),
}

impl Running {
    /// The process trees to account for.
    pub(super) fn groups(&self) -> Vec<Group> {
        let servers: Vec<u32> = match &self.servers {
            Servers::Borrowed(pids) | Servers::Programs(pids) => pids.clone(),
            Servers::Own(servers) => servers.iter().filter_map(Server::pid).collect(),
            Servers::Cluster(cluster) => cluster.servers().iter().filter_map(Server::pid).collect(),
        };
        let proxy = self.program.iter().map(|program| Group {
            name: "proxy".to_owned(),
            root: program.child.id(),
            without: servers.clone(),
        });
        let server = |(number, pid): (usize, &u32)| Group {
            name: format!("server {}", number + 1),
            root: *pid,
            without: Vec::new(),
        };
        proxy.chain(servers.iter().enumerate().map(server)).collect()
    }
}

/// Starts a target and fills pgbench's tables through it.
pub(super) async fn start(
    target: Target,
    options: &Options,
    binaries: &Binaries,
    folder: &Path,
    running: &[Running],
) -> Result<Running> {
    let pgbench = Pgbench::new(binaries, options, folder);
    let started = match target {
        Target::Direct => direct(folder, target)?,
        Target::Pgbouncer => pgbouncer(options, folder, running).await?,
        Target::Pgpool => pgpool(options, folder).await?,
        Target::Streaming => streaming(folder).await?,
        Target::Onecopy1 => onecopy(options, folder, target, 1).await?,
        Target::Onecopy3 => onecopy(options, folder, target, 3).await?,
    };
    // PgBouncer's server has its tables already if it is the one measured directly.
    if !matches!(started.servers, Servers::Borrowed(_)) {
        pgbench.fill(&started.dsn).await?;
    }
    Ok(started)
}

/// PostgreSQL as it is shipped, with room for the clients.
fn server_options() -> onecopy_cluster::Options {
    onecopy_cluster::Options::default().with("max_connections", "200")
}

fn direct(folder: &Path, target: Target) -> Result<Running> {
    let mut server = Server::init(folder.join("direct"), &server_options())?;
    server.start()?;
    Ok(Running { target, dsn: server.dsn(), program: None, servers: Servers::Own(vec![server]) })
}

async fn pgbouncer(options: &Options, folder: &Path, running: &[Running]) -> Result<Running> {
    let program = find_program("pgbouncer", options.pgbouncer.as_deref())?;
    let shared = running.iter().find(|running| running.target == Target::Direct);
    let own = if shared.is_some() { None } else { Some(direct(folder, Target::Pgbouncer)?) };
    let Some(Servers::Own(servers)) = shared.or(own.as_ref()).map(|behind| &behind.servers) else {
        return Err(Error::program("pgbouncer", "has no server behind it"));
    };
    let server = &servers[0];
    let port = free_port()?;
    let user = server.superuser();
    let users = server.dir().join("pgbouncer-users.txt");
    write(&users, &format!("\"{user}\" \"\"\n"))?;
    let configuration = server.dir().join("pgbouncer.ini");
    let text = format!(
        "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = session\nmax_client_conn = 500\n\
         default_pool_size = 100\nlog_connections = 0\nlog_disconnections = 0\nlog_stats = 0\n",
        server.port(),
        users.display()
    );
    write(&configuration, &text)?;
    let mut command = server.command(&program.to_string_lossy());
    command.arg(&configuration);
    let dsn = dsn(port, user);
    let program = Program::start("pgbouncer", command, &server.dir().join("pgbouncer.log"))?;
    let program = program.await_answer(&dsn, PROXY_START).await?;
    let pids = server.pid().into_iter().collect();
    let servers = own.map_or(Servers::Borrowed(pids), |own| own.servers);
    Ok(Running { target: Target::Pgbouncer, dsn, program: Some(program), servers })
}

async fn pgpool(options: &Options, folder: &Path) -> Result<Running> {
    let program = find_program("pgpool", options.pgpool.as_deref())?;
    let mut cluster = Cluster::create(folder.join("pgpool"), 3, &server_options())?;
    cluster.start()?;
    let first = cluster.server(0);
    let (port, control_port, dir) = (free_port()?, free_port()?, first.dir().to_owned());
    let mut text = format!(
        "backend_clustering_mode = 'native_replication'\nlisten_addresses = '127.0.0.1'\nport = {port}\n\
         pcp_listen_addresses = '127.0.0.1'\npcp_port = {control_port}\nunix_socket_directories = '{dir}'\n\
         pcp_socket_dir = '{dir}'\nwd_ipc_socket_dir = '{dir}'\npid_file_name = '{dir}/pgpool.pid'\nlogdir = '{dir}'\n\
         num_init_children = 64\nmax_pool = 1\nload_balance_mode = on\nenable_pool_hba = off\npool_passwd = ''\n\
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
    let program = program.await_answer(&dsn, PROXY_START).await?;
    Ok(Running { target: Target::Pgpool, dsn, program: Some(program), servers: Servers::Cluster(cluster) })
}

/// A primary and two standbys made from it; a commit is answered when both have applied it.
async fn streaming(folder: &Path) -> Result<Running> {
    let folder = folder.join("streaming");
    let settings = server_options().with("synchronous_commit", "remote_apply");
    let mut primary = Server::init(folder.join("primary"), &settings)?;
    primary.start()?;
    let mut servers = Vec::new();
    for name in ["s1", "s2"] {
        let dir = folder.join(name);
        copy_primary(&primary, &dir)?;
        // The standby calls itself by the name of its cluster.
        let mut standby = Server::init(&dir, &server_options().with("cluster_name", name))?;
        standby.start()?;
        servers.push(standby);
    }
    let dsn = primary.dsn();
    let client = connection::Target::parse(&dsn)?.connect().await?;
    let run = async |statement: &str| {
        client.batch_execute(statement).await.map_err(Error::database(format!("run {statement:?}")))
    };
    run("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 2 (s1, s2)'").await?;
    run("SELECT pg_reload_conf()").await?;
    let begin = Instant::now();
    loop {
        let query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        let row = client.query_one(query, &[]).await.map_err(Error::database("look for the standbys"))?;
        if row.get::<_, i64>(0) == 2 {
            break;
        }
        if begin.elapsed() > PROXY_START {
            return Err(Error::program("postgres", "the standbys did not follow the primary in time"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    servers.insert(0, primary);
    Ok(Running { target: Target::Streaming, dsn, program: None, servers: Servers::Own(servers) })
}

/// Makes a standby's folder, as `Server` expects it; one of an earlier run may follow a port of long ago, and goes.
fn copy_primary(primary: &Server, dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(Error::file("remove", dir))?;
    }
    // Made by the primary's user, beside the primary's own data, then moved: only that user may write there.
    let copy = primary.dir().join("copy");
    let mut command = primary.command("pg_basebackup");
    command.args(["-R", "-X", "stream", "-c", "fast", "-d", &primary.dsn(), "-D"]).arg(&copy);
    let output = command.output().map_err(Error::file("run", Path::new("pg_basebackup")))?;
    if !output.status.success() {
        return Err(Error::program("pg_basebackup", String::from_utf8_lossy(&output.stderr).trim()));
    }
    fs::create_dir_all(dir).map_err(Error::file("create", dir))?;
    let saved = format!("{{\"port\": 0, \"superuser\": \"{}\"}}\n", primary.superuser());
    write(&dir.join("server.json"), &saved)?;
    fs::rename(&copy, dir.join("data")).map_err(Error::file("move", &copy))
}

async fn onecopy(options: &Options, folder: &Path, target: Target, replicas: u32) -> Result<Running> {
    let Some(program) = &options.onecopy else {
        return Err(Error::program("onecopy", "no program was given to measure"));
    };
    let program = find_program("onecopy", Some(program))?;
    let dir = folder.join(target.id());
    let port = free_port()?;
    let mut command = Command::new(&program);
    command.args(["up", "--replicas", &replicas.to_string(), "--port", &port.to_string(), "--dir"]).arg(&dir);
    let log = folder.join(format!("{target}.log"));
    let program = Program::start("onecopy", command, &log)?.await_ready(ONECOPY_START).await?;
    let file = ClusterFile::read(&dir)?;
    let servers = Servers::Programs(file.replicas.iter().map(|replica| replica.pid).collect());
    Ok(Running { target, dsn: file.client.dsn, program: Some(program), servers })
}

/// A program in the foreground, with what it says in a file. Dropping it stops it by SIGINT.
struct Program {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Program {
    fn start(name: &'static str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).map_err(Error::file("create", log))?;
        let copy = file.try_clone().map_err(Error::file("open", log))?;
        command.stdin(Stdio::null()).stdout(file).stderr(copy);
        // Ctrl-C at the terminal is for us, who then stop all in order.
        command.process_group(0);
        let child = command.spawn().map_err(|error| Error::program(name, error.to_string()))?;
        Ok(Program { name, child, log: log.to_owned() })
    }

    /// Waits until a client can run a statement through it.
    async fn await_answer(mut self, dsn: &str, limit: Duration) -> Result<Self> {
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
    async fn await_ready(mut self, limit: Duration) -> Result<Self> {
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

    fn expect_alive(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failure(&format!("ended ({status})"))),
            Err(error) => Err(self.failure(&error.to_string())),
        }
    }

    fn failure(&self, what: &str) -> Error {
        let said = self.said();
        let lines: Vec<&str> = said.lines().collect();
        let tail = lines[lines.len().saturating_sub(5)..].join("\n");
        Error::program(self.name, format!("{what}\n{tail}").trim_end())
    }

    fn said(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let begin = Instant::now();
        if let Some(pid) = pid {
            // A program that has ended and was not waited for yet takes no harm from it.
            let _ = kill_process(pid, Signal::INT);
        }
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

fn dsn(port: u16, user: &str) -> String {
    format!("host=127.0.0.1 port={port} user={user} dbname=postgres")
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::file("write", path))
}

/// The program that was given, or the one in PATH or in a folder of system programs.
pub(super) fn find_program(name: &str, given: Option<&Path>) -> Result<PathBuf> {
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
