//! The onecopy processes: one alone, or several that share a log.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use onecopy_cluster::{Cluster, Server, free_port};
use rustix::process::Signal;

use crate::programs::{self, ONECOPY_START, Program, find_program, write};
use crate::wide_area::distance::Distance;
use crate::{Error, Result};

/// How long the nodes may take to agree on one that leads.
const ELECTION_MAX: Duration = Duration::from_secs(60);
/// How often it is looked who leads.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Seconds until a client leaves a node that does not answer for the next one.
const CONNECT_TIMEOUT_S: u32 = 5;
/// In the folder of each.
const LOG_DIR: &str = "log";
/// What nodes say when they begin to lead, with the number of that time.
const LEADS: &str = "this node leads epoch=";
/// What they say of others that lead, or before they themselves do.
const DOES_NOT_LEAD: [&str; 3] =
    ["this node follows", "this node was elected", "has ended what it did as the leader"];

/// How many there are, and with what settings.
pub(crate) struct Setup<'a> {
    /// The program.
    pub(crate) onecopy: &'a Path,
    /// With 1 it is alone; with more they share a log.
    pub(crate) count: u32,
    /// Further lines at the top of each one's configuration, such as `log.durability = "memory"`.
    pub(crate) settings: String,
}

/// All of them. Dropping them stops them.
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    /// The user of the servers.
    user: String,
}

struct Node {
    /// The program.
    onecopy: PathBuf,
    configuration: PathBuf,
    /// Where clients connect.
    port: u16,
    log: PathBuf,
    /// `None` while it is killed.
    process: Option<Program>,
}

impl Nodes {
    /// Starts them in folders of their own in one folder, before servers that run, and returns when they take clients. Their logs
    /// are what the folder holds of them; if it holds none, they begin new ones.
    pub(crate) async fn start(setup: &Setup<'_>, folder: &Path, servers: &Cluster) -> Result<Nodes> {
        let onecopy = find_program("onecopy", Some(setup.onecopy))?;
        let count = setup.count as usize;
        let ports = (0..count).map(|_| Ok((free_port()?, free_port()?))).collect::<Result<Vec<_>>>()?;
        let user = servers.server(0).superuser().to_owned();
        let replicas = servers.servers().iter().enumerate();
        let replicas: Vec<_> = replicas.map(|(index, server)| (Cluster::name(index), server)).collect();
        let mut nodes = Nodes { nodes: Vec::new(), user };
        for (number, (port, _)) in ports.iter().enumerate() {
            let dir = if count == 1 { folder.to_owned() } else { folder.join(format!("node{}", number + 1)) };
            fs::create_dir_all(&dir).map_err(Error::file("create", &dir))?;
            let shared = if count == 1 { String::new() } else { shared(number, &ports) };
            let configuration = configure(&dir, *port, &replicas, &nodes.user, &setup.settings, &shared)?;
            let log = folder.join(format!("{}.log", name(number, count)));
            nodes.nodes.push(Node {
                onecopy: onecopy.clone(),
                configuration,
                port: *port,
                log,
                process: None,
            });
        }
        if count > 1 {
            nodes.nodes.iter().filter(|node| !node.has_log()).try_for_each(Node::init)?;
        }
        nodes.spawn(&nodes.all()).await?;
        if count > 1 {
            nodes.leader().await?;
        }
        Ok(nodes)
    }

    /// The same for sites, each before the server of its own number, where one reaches another at a distance; they listen for each other on
    /// `ports`. Returns when they take clients.
    pub(crate) async fn start_sites(
        setup: &Setup<'_>,
        folder: &Path,
        servers: &Cluster,
        ports: &[u16],
        distance: &Distance,
    ) -> Result<Nodes> {
        let onecopy = find_program("onecopy", Some(setup.onecopy))?;
        let user = servers.server(0).superuser().to_owned();
        let mut sites = Nodes { nodes: Vec::new(), user };
        for (number, server) in servers.servers().iter().enumerate() {
            let dir = folder.join(format!("site{}", number + 1));
            fs::create_dir_all(&dir).map_err(Error::file("create", &dir))?;
            let of_others = ports.iter().enumerate();
            let reached: Vec<(u16, u16)> =
                of_others.map(|(to, port)| (0, distance.port(number, to, *port))).collect();
            let port = free_port()?;
            let replicas = [(Cluster::name(number), server)];
            let shared = shared(number, &reached);
            let configuration = configure(&dir, port, &replicas, &sites.user, &setup.settings, &shared)?;
            let log = folder.join(format!("site{}.log", number + 1));
            sites.nodes.push(Node { onecopy: onecopy.clone(), configuration, port, log, process: None });
        }
        sites.nodes.iter().try_for_each(Node::init)?;
        sites.spawn(&sites.all()).await?;
        Ok(sites)
    }

    /// The numbers of all, from 0 on.
    pub(crate) fn all(&self) -> Vec<usize> {
        (0..self.nodes.len()).collect()
    }

    /// The processes of those that run.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| node.process.as_ref()).map(Program::id).collect()
    }

    /// What one is called.
    pub(crate) fn name(&self, node: usize) -> String {
        name(node, self.nodes.len())
    }

    /// Where clients of one connect.
    pub(crate) fn dsn(&self, node: usize) -> String {
        programs::dsn(self.nodes[node].port, &self.user)
    }

    /// Where clients of any connect: the nodes' places in it are their numbers.
    pub(crate) fn dsn_of_all(&self) -> String {
        if self.nodes.len() == 1 {
            return self.dsn(0);
        }
        let hosts = vec!["127.0.0.1"; self.nodes.len()].join(",");
        let ports: Vec<String> = self.nodes.iter().map(|node| node.port.to_string()).collect();
        let one = self.dsn(0);
        let (_, rest) = one.split_once(" user=").unwrap_or_default();
        format!("host={hosts} port={} user={rest} connect_timeout={CONNECT_TIMEOUT_S}", ports.join(","))
    }

    /// Starts those of these that do not run at once, and returns when each takes clients.
    pub(crate) async fn spawn(&mut self, which: &[usize]) -> Result<()> {
        for node in which {
            self.nodes[*node].spawn()?;
        }
        for node in which {
            if let Some(process) = self.nodes[*node].process.take() {
                self.nodes[*node].process = Some(process.await_ready(ONECOPY_START).await?);
            }
        }
        Ok(())
    }

    /// Sends these a signal. Those that are killed are left alone.
    pub(crate) fn signal(&self, which: &[usize], signal: Signal) {
        which
            .iter()
            .filter_map(|node| self.nodes[*node].process.as_ref())
            .for_each(|node| node.signal(signal));
    }

    /// `kill -9` of all of these at once; returns when none is left.
    pub(crate) fn kill(&mut self, which: &[usize]) -> Result<()> {
        self.signal(which, Signal::KILL);
        which.iter().filter_map(|node| self.nodes[*node].process.take()).try_for_each(Program::kill)
    }

    /// The one that leads, by its own word; of several, some of which do not know yet that another one does, the last.
    pub(crate) async fn leader(&self) -> Result<usize> {
        let begin = Instant::now();
        loop {
            let epoch = |node: &Node| leads(&node.process.as_ref()?.said());
            let epochs =
                self.nodes.iter().enumerate().filter_map(|(number, node)| Some((epoch(node)?, number)));
            if let Some((_, leader)) = epochs.max() {
                return Ok(leader);
            }
            if begin.elapsed() > ELECTION_MAX {
                return Err(Error::Option(format!("no node leads after {} s", ELECTION_MAX.as_secs())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Whether all that were not killed still run; if not, the last words of one.
    pub(crate) fn expect_alive(&mut self) -> Result<()> {
        self.nodes.iter_mut().filter_map(|node| node.process.as_mut()).try_for_each(Program::expect_alive)
    }

    /// What each has said.
    pub(crate) fn logs(&self) -> impl Iterator<Item = &Path> {
        self.nodes.iter().map(|node| node.log.as_path())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // None need wait for the end of another one.
        self.signal(&self.all(), Signal::INT);
    }
}

impl Node {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.onecopy);
        command.args(words).arg("-c").arg(&self.configuration);
        command
    }

    /// Whether its log was begun.
    fn has_log(&self) -> bool {
        self.configuration.with_file_name(LOG_DIR).exists()
    }

    fn init(&self) -> Result<()> {
        let failed = |why: String| Error::program("onecopy node init", why);
        let output = self.command(&["node", "init"]).output().map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    fn spawn(&mut self) -> Result<()> {
        if self.process.is_none() {
            self.process = Some(Program::start("onecopy", self.command(&["serve"]), &self.log)?);
        }
        Ok(())
    }
}

fn name(node: usize, count: usize) -> String {
    if count == 1 { "onecopy".to_owned() } else { format!("node{}", node + 1) }
}

/// Writes a configuration and its secrets into a folder, where the log of commits will be too.
pub(crate) fn configure(
    dir: &Path,
    port: u16,
    replicas: &[(String, &Server)],
    user: &str,
    settings: &str,
    shared: &str,
) -> Result<PathBuf> {
    let mut text = format!(
        "secrets = \"secrets.toml\"\nlisten.port = {port}\nauth.method = \"trust\"\nlog.dir = \"{LOG_DIR}\"\n\
         {settings}{shared}[[databases]]\nname = \"{}\"\n",
        programs::DATABASE
    );
    for (name, server) in replicas {
        let (host, port) = (host(server), server.port());
        let _ = writeln!(text, "[[databases.replicas]]\nname = \"{name}\"\nhost = {host:?}\nport = {port}");
    }
    let configuration = dir.join("onecopy.toml");
    write(&configuration, &text)?;
    let secrets = dir.join("secrets.toml");
    let of_nodes =
        if shared.is_empty() { "" } else { "cluster_secret = \"of nodes that nobody else knows of\"\n" };
    write(&secrets, &format!("{of_nodes}[replica_login]\nuser = {user:?}\n"))?;
    // It is refused otherwise.
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(&secrets, private).map_err(Error::file("protect", &secrets))?;
    Ok(configuration)
}

/// Where onecopy connects to a server: the Unix socket costs less than TCP.
pub(crate) fn host(server: &Server) -> String {
    server.socket_dir().map_or_else(|| "127.0.0.1".into(), Path::to_string_lossy).into_owned()
}

/// What a node has to know of all, of which each takes clients at the first of its ports and the others at the second.
fn shared(this: usize, ports: &[(u16, u16)]) -> String {
    let mut text = format!("cluster.node = {}\n", this + 1);
    for (number, (_, port)) in ports.iter().enumerate() {
        let _ = writeln!(text, "[[cluster.nodes]]\nid = {}\nhost = \"127.0.0.1\"\nport = {port}", number + 1);
    }
    text
}

/// Since which epoch a node leads by its last word of it; `None` if it does not.
fn leads(said: &str) -> Option<u64> {
    let began = said.rfind(LEADS)?;
    if DOES_NOT_LEAD.iter().filter_map(|word| said.rfind(word)).any(|ended| ended > began) {
        return None;
    }
    said[began + LEADS.len()..].split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_leads_by_its_last_word_of_it() {
        assert_eq!(leads("ready\nINFO this node follows epoch=1 leader=2\n"), None);
        let begins = "INFO this node was elected epoch=2\nINFO this node leads epoch=2\nready\n";
        assert_eq!(leads(begins), Some(2));
        assert_eq!(leads(&format!("{begins}INFO this node follows epoch=3 leader=1\n")), None);
        let again = format!("{begins}INFO this node follows epoch=3\n INFO this node leads epoch=4 more=1\n");
        assert_eq!(leads(&again), Some(4));
        assert_eq!(leads(&format!("{again}INFO this node was elected epoch=5\n")), None);
    }

    #[test]
    fn nodes_are_hosts_of_one_connection_string_by_their_numbers() {
        let node = |port| Node {
            onecopy: PathBuf::new(),
            configuration: PathBuf::new(),
            port,
            log: PathBuf::new(),
            process: None,
        };
        let nodes = Nodes { nodes: [11, 12, 13].map(node).into(), user: "us".to_owned() };
        let dsn =
            "host=127.0.0.1,127.0.0.1,127.0.0.1 port=11,12,13 user=us dbname=postgres connect_timeout=5";
        assert_eq!((nodes.dsn_of_all().as_str(), nodes.name(2).as_str()), (dsn, "node3"));
        let alone = Nodes { nodes: vec![node(11)], user: "us".to_owned() };
        assert_eq!(alone.dsn_of_all(), "host=127.0.0.1 port=11 user=us dbname=postgres");
        assert_eq!(alone.name(0), "onecopy");
    }

    #[test]
    fn every_node_knows_all_and_which_it_is() {
        let text = shared(1, &[(1, 2), (3, 4)]);
        let one = |id: u32, port: u16| {
            format!("[[cluster.nodes]]\nid = {id}\nhost = \"127.0.0.1\"\nport = {port}\n")
        };
        assert_eq!(text, format!("cluster.node = 2\n{}{}", one(1, 2), one(2, 4)));
    }
}
