//! Starts and stops what is compared.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use onecopy_cluster::{Binaries, Cluster, Server, free_port};

use super::pgbench::Pgbench;
use super::{Options, Target};
use crate::connection;
use crate::cpu::Group;
use crate::programs::{self, PROXY_START, PgpoolMode, Program, dsn, find_program, write};
use crate::{Error, Result};

/// Clients that Pgpool-II serves at a time.
const PGPOOL_CHILDREN: u32 = 64;

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
        Group::of_servers("proxy", self.program.as_ref().map(Program::id), &servers)
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
    let (program, dsn) =
        programs::pgpool(&program, &cluster, PgpoolMode::NativeReplication, PGPOOL_CHILDREN).await?;
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
    let dir = folder.join(target.id());
    let log = folder.join(format!("{target}.log"));
    let (program, file) = programs::onecopy_up(&options.workplace.onecopy, &dir, replicas, &[], &log).await?;
    let servers = Servers::Programs(file.replicas.iter().map(|replica| replica.pid).collect());
    Ok(Running { target, dsn: file.client.dsn, program: Some(program), servers })
}
