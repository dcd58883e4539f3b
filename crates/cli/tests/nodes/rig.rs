//! A cluster of real nodes before real servers.

use crate::relay::{Cut, Relay};
use crate::running::folder;
use onecopy_cluster::{Cluster, Options, free_port};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Nodes, each with a folder of its own, and the servers that they share.
pub struct Nodes {
    nodes: Vec<Node>,
    pub servers: Cluster,
    /// The ways between the nodes, by the one that connects and the one that listens; none where they reach each other directly.
    links: Vec<Vec<Option<Relay>>>,
    /// The ways to the servers, by the node and the server.
    ways: Vec<Vec<Relay>>,
    network: Option<tokio::runtime::Runtime>,
    // Processes stop before their folder goes.
    _dir: TempDir,
}

struct Node {
    dir: PathBuf,
    port: u16,
    inner_port: u16,
    process: Option<Child>,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(mut process) = node.process.take() {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
        if let Some(network) = self.network.take() {
            // It may not block where a test is asynchronous.
            network.shutdown_background();
        }
    }
}

impl Nodes {
    /// Makes them and starts them all.
    pub fn start(count: usize, replicas: usize) -> Nodes {
        let mut nodes = Nodes::make(count, replicas, false, "");
        nodes.start_all();
        nodes
    }

    /// The same, where the network between them can be cut.
    pub fn start_apart(count: usize, replicas: usize) -> Nodes {
        let mut nodes = Nodes::make(count, replicas, true, "");
        nodes.start_all();
        nodes
    }

    /// Makes them, and starts the servers only. `more` is added to each one's configuration.
    pub fn make(count: usize, replicas: usize, apart: bool, more: &str) -> Nodes {
        Nodes::make_with(count, count, replicas, apart, more, |_, _| true)
    }

    /// Sites, each with a server of its own; starts the servers only. `chosen` is what their protocol is to be, and other
    /// settings by their whole names.
    pub fn make_sites(count: usize, apart: bool, chosen: &[(&str, &str)]) -> Nodes {
        Nodes::make_sites_voting(count, count, apart, chosen)
    }

    /// The same, where only the first of them count for majorities.
    pub fn make_sites_voting(count: usize, voting: usize, apart: bool, chosen: &[(&str, &str)]) -> Nodes {
        let named = chosen.iter().find(|(name, _)| *name == "protocol");
        let mut more = format!("protocol = \"{}\"", named.map_or("wide_area", |(_, value)| value));
        for (name, value) in chosen.iter().filter(|(name, _)| *name != "protocol") {
            let _ = match name.contains('.') {
                true => write!(more, "\n{name} = {value}"),
                false => write!(more, "\nwide_area.{name} = \"{value}\""),
            };
        }
        Nodes::make_with(count, voting, count, apart, &more, |node, server| node == server)
    }

    fn make_with(
        count: usize,
        voting: usize,
        replicas: usize,
        apart: bool,
        more: &str,
        has: fn(usize, usize) -> bool,
    ) -> Nodes {
        let dir = folder();
        let mut servers = Cluster::create(dir.path().join("servers"), replicas, &Options::replica()).unwrap();
        servers.start().unwrap();
        let ports: Vec<(u16, u16)> =
            (0..count).map(|_| (free_port().unwrap(), free_port().unwrap())).collect();
        let network = apart.then(|| {
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
        });
        let (mut links, mut ways) = (Vec::new(), Vec::new());
        let mut nodes = Vec::new();
        for (index, (port, _)) in ports.iter().enumerate() {
            let (of_log, more): (Vec<&str>, Vec<&str>) =
                more.lines().partition(|line| line.starts_with("log."));
            let of_log: String = of_log.iter().map(|line| format!("{}\n", &line[4..])).collect();
            let mut config = format!(
                "workers = 1\n{}\n[auth]\nmethod = \"trust\"\n[listen]\nport = {port}\n[log]\ndir = \"log\"\n{of_log}[cluster]\nnode = {}\n",
                more.join("\n"),
                index + 1
            );
            let mut from = Vec::new();
            for (to, (_, port)) in ports.iter().enumerate() {
                let relay = network.as_ref().filter(|_| to != index);
                let relay = relay.map(|network| Relay::start(network, *port, false));
                let port = relay.as_ref().map_or(*port, |relay| relay.port);
                let id = to + 1;
                let votes = to < voting;
                let _ = writeln!(
                    config,
                    "[[cluster.nodes]]\nid = {id}\nhost = \"127.0.0.1\"\nport = {port}\nvoting = {votes}"
                );
                from.push(relay);
            }
            links.push(from);
            config.push_str("[[databases]]\nname = \"postgres\"\n");
            let mut from = Vec::new();
            let servers = servers.servers().iter().zip((0..).map(Cluster::name)).enumerate();
            for (_, (server, name)) in servers.filter(|(server, _)| has(index, *server)) {
                let relay = network.as_ref().map(|network| Relay::start(network, server.port(), true));
                let port = relay.as_ref().map_or(server.port(), |relay| relay.port);
                let _ = writeln!(
                    config,
                    "[[databases.replicas]]\nname = \"{name}\"\nhost = \"127.0.0.1\"\nport = {port}"
                );
                from.extend(relay);
            }
            ways.push(from);
            let folder = dir.path().join(format!("node{}", index + 1));
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("onecopy.toml"), config).unwrap();
            let secrets = folder.join("onecopy.secrets.toml");
            fs::write(&secrets, "cluster_secret = \"of the tests, which nobody else knows\"\n[replica_login]\nuser = \"postgres\"\n")
                .unwrap();
            fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600)).unwrap();
            nodes.push(Node { dir: folder, port: *port, inner_port: ports[index].1, process: None });
        }
        let nodes = Nodes { nodes, servers, links, ways, network, _dir: dir };
        for node in 0..count {
            let begun = nodes.command(node, &["node", "init"]).output().unwrap();
            assert!(begun.status.success(), "{}", String::from_utf8_lossy(&begun.stderr));
        }
        nodes
    }

    /// One process that is alone, and shares its log only when it is told to.
    pub fn alone(replicas: usize) -> Nodes {
        let mut nodes = Nodes::make(1, replicas, false, "");
        nodes.lose_log(0);
        let config = nodes.nodes[0].dir.join("onecopy.toml");
        let shared = fs::read_to_string(&config).unwrap();
        let (before, rest) = shared.split_once("[cluster]").unwrap();
        let (_, databases) = rest.split_once("[[databases]]").unwrap();
        fs::write(nodes.nodes[0].dir.join("shared.toml"), &shared).unwrap();
        fs::write(config, format!("{before}[[databases]]{databases}")).unwrap();
        nodes.spawn(0);
        nodes
    }

    /// Stops it in order, and has it share its log.
    pub fn share(&mut self) {
        self.signal(0, "-TERM");
        self.nodes[0].process.take().unwrap().wait().unwrap();
        let dir = &self.nodes[0].dir;
        fs::rename(dir.join("shared.toml"), dir.join("onecopy.toml")).unwrap();
        let shared = self.command(0, &["node", "init"]).output().unwrap();
        assert!(shared.status.success(), "{}", String::from_utf8_lossy(&shared.stderr));
        assert!(String::from_utf8_lossy(&shared.stdout).contains("is shared from now on"));
        self.spawn(0);
    }

    /// Makes one more node, which is to join the others, and starts it.
    pub fn join(&mut self) -> usize {
        self.join_as(true)
    }

    /// The same of one that is to count for majorities, or never to.
    pub fn join_as(&mut self, voting: bool) -> usize {
        let (this, port) = (self.nodes.len() + 1, free_port().unwrap());
        let dir = self.nodes[0].dir.with_file_name(format!("node{this}"));
        fs::create_dir(&dir).unwrap();
        let known = fs::read_to_string(self.nodes[0].dir.join("onecopy.toml")).unwrap();
        let at = free_port().unwrap();
        let own = format!(
            "[[cluster.nodes]]\nid = {this}\nhost = \"127.0.0.1\"\nport = {at}\nvoting = {voting}\n[[databases]]"
        );
        let config = known
            .replace(&format!("[listen]\nport = {}", self.nodes[0].port), &format!("[listen]\nport = {port}"))
            .replace("[cluster]\nnode = 1", &format!("[cluster]\nnode = {this}"))
            .replacen("[[databases]]", &own, 1);
        fs::write(dir.join("onecopy.toml"), config).unwrap();
        // With its permissions.
        fs::copy(self.nodes[0].dir.join("onecopy.secrets.toml"), dir.join("onecopy.secrets.toml")).unwrap();
        self.nodes.push(Node { dir, port, inner_port: at, process: None });
        let joined = self.command(this - 1, &["node", "init", "--join"]).output().unwrap();
        assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
        self.spawn(this - 1);
        this - 1
    }

    /// What a command says that asks a node's console.
    pub fn ask(&self, node: usize, words: &[&str]) -> std::process::Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.args(words).args(["--target", &self.dsn(node)]).output().unwrap()
    }

    /// Cuts what node `from` says to node `to`, over connections of either; or heals it.
    pub fn cut(&self, from: usize, to: usize, is_cut: bool) {
        let change = |relay: &Option<Relay>, change: fn(&mut Cut, bool)| {
            relay.as_ref().expect("the network can be cut").change(|cut| change(cut, is_cut));
        };
        change(&self.links[from][to], |cut, is_cut| cut.there = is_cut);
        change(&self.links[to][from], |cut, is_cut| cut.back = is_cut);
    }

    /// Cuts a node off from all the others, in both directions.
    pub fn isolate(&self, node: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.cut(node, other, true);
            self.cut(other, node, true);
        }
    }

    /// The way of one node's connections to another.
    pub fn link(&self, from: usize, to: usize) -> &Relay {
        self.links[from][to].as_ref().expect("the network can be cut")
    }

    /// The way from a node to a server.
    pub fn way(&self, node: usize, server: usize) -> &Relay {
        &self.ways[node][server]
    }

    /// Everybody reaches everybody.
    pub fn heal(&self) {
        let relays = self.links.iter().flatten().flatten();
        relays.chain(self.ways.iter().flatten()).for_each(Relay::heal);
    }

    /// Where clients connect to any node, whichever answers.
    pub fn dsn_of_all(&self) -> String {
        let ports: Vec<String> = self.nodes.iter().map(|node| node.port.to_string()).collect();
        let hosts = vec!["127.0.0.1"; ports.len()].join(",");
        let ports = ports.join(",");
        format!(
            "host={hosts} port={ports} user=postgres dbname=postgres load_balance_hosts=random connect_timeout=2"
        )
    }

    pub fn inner_port(&self, node: usize) -> u16 {
        self.nodes[node].inner_port
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub fn runs(&self, node: usize) -> bool {
        self.nodes[node].process.is_some()
    }

    /// The process of a node.
    pub fn pid(&self, node: usize) -> u32 {
        self.nodes[node].process.as_ref().expect("it runs").id()
    }

    /// A command for a node's configuration.
    pub fn command(&self, node: usize, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.args(words).arg("-c").arg(self.nodes[node].dir.join("onecopy.toml"));
        command
    }

    /// Starts a node, and waits until clients can connect.
    pub fn spawn(&mut self, node: usize) {
        let mut process = self.serve(node, Stdio::piped());
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{}", self.messages(node));
        self.nodes[node].process = Some(process);
    }

    fn serve(&self, node: usize, output: Stdio) -> Child {
        let mut messages = fs::OpenOptions::new();
        let messages =
            messages.create(true).append(true).open(self.nodes[node].dir.join("messages")).unwrap();
        self.command(node, &["serve"]).stdout(output).stderr(messages).spawn().unwrap()
    }

    /// What a node has said on standard error.
    pub fn messages(&self, node: usize) -> String {
        fs::read_to_string(self.nodes[node].dir.join("messages")).unwrap_or_default()
    }

    /// Waits until a node that was told to has ended.
    pub fn await_end(&mut self, node: usize) {
        let status = self.nodes[node].process.take().expect("it runs").wait().unwrap();
        assert!(status.success(), "{status}: {}", self.messages(node));
    }

    /// Keeps what the nodes have said, for whoever looks for the cause of something.
    pub fn keep_messages(&self) {
        for node in 0..self.nodes.len() {
            let path = std::env::temp_dir().join(format!("onecopy-node-{}.messages", node + 1));
            let _ = fs::write(&path, self.messages(node));
            eprintln!("see {}", path.display());
        }
    }

    /// Kills a node as a lost machine ends.
    pub fn kill(&mut self, node: usize) {
        let mut process = self.nodes[node].process.take().expect("it runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Stops a node in order.
    pub fn stop(&mut self, node: usize) {
        self.signal(node, "-TERM");
        let mut process = self.nodes[node].process.take().expect("it runs");
        let began = Instant::now();
        let status = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > Duration::from_secs(60) {
                let _ = process.kill();
                panic!("node {node} does not end when it is told to: {}", self.messages(node));
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{status}: {}", self.messages(node));
    }

    /// Kills all nodes and all servers, with all their processes.
    pub fn kill_all(&mut self) {
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process {
                process.kill().unwrap();
            }
        }
        self.servers.servers_mut().iter_mut().for_each(|server| server.kill_all().unwrap());
        for node in &mut self.nodes {
            if let Some(mut process) = node.process.take() {
                process.wait().unwrap();
            }
        }
    }

    /// Starts all servers and all nodes that do not run.
    pub fn start_all(&mut self) {
        self.servers.start().unwrap();
        for node in 0..self.nodes.len() {
            if self.nodes[node].process.is_none() {
                self.spawn(node);
            }
        }
    }

    /// Changes a node's configuration.
    pub fn configure(&self, node: usize, change: impl FnOnce(&str) -> String) {
        let path = self.nodes[node].dir.join("onecopy.toml");
        fs::write(&path, change(&fs::read_to_string(&path).unwrap())).unwrap();
    }

    /// Empties the folder of a node's log.
    pub fn lose_log(&self, node: usize) {
        fs::remove_dir_all(self.nodes[node].dir.join("log")).unwrap();
    }

    /// Puts a copy of a node's log aside.
    pub fn keep_log(&self, node: usize) {
        let (log, kept) = self.logs(node);
        let _ = fs::remove_dir_all(&kept);
        fs::create_dir(&kept).unwrap();
        for segment in segments(&log) {
            fs::copy(&segment, kept.join(segment.file_name().unwrap())).unwrap();
        }
    }

    /// Exchanges a node's log with the one that was put aside.
    pub fn exchange_logs(&self, node: usize) {
        let (log, kept) = self.logs(node);
        let between = self.nodes[node].dir.join("log.between");
        fs::rename(&log, &between).unwrap();
        fs::rename(&kept, &log).unwrap();
        fs::rename(&between, &kept).unwrap();
    }

    /// Changes what follows the header of the last segment of a node's log that holds anything.
    pub fn damage_log(&self, node: usize, damage: impl FnOnce(&mut Vec<u8>)) {
        const HEADER_LEN: usize = 4096;
        for segment in segments(&self.logs(node).0).into_iter().rev() {
            let mut bytes = fs::read(&segment).unwrap();
            // Zeros are written ahead of the records.
            let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            if len > HEADER_LEN {
                let zeros = bytes.split_off(len).len();
                let mut records = bytes.split_off(HEADER_LEN);
                damage(&mut records);
                records.resize(len - HEADER_LEN + zeros, 0);
                bytes.append(&mut records);
                fs::write(&segment, bytes).unwrap();
                return;
            }
        }
    }

    fn logs(&self, node: usize) -> (PathBuf, PathBuf) {
        let dir = &self.nodes[node].dir;
        (dir.join("log"), dir.join("log.kept"))
    }

    /// Starts a node, and waits whether it ends by itself: what it says then. One that does not runs on.
    pub fn refuses(&mut self, node: usize) -> Option<String> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let said = self.messages(node).len();
        let mut process = self.serve(node, Stdio::null());
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if process.try_wait().unwrap().is_some() {
                return Some(self.messages(node).split_off(said));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.nodes[node].process = Some(process);
        None
    }

    /// Waits until a node has ended by itself; what it has said.
    pub fn ends(&mut self, node: usize) -> String {
        let mut process = self.nodes[node].process.take().expect("it runs");
        let began = Instant::now();
        while process.try_wait().unwrap().is_none() {
            if began.elapsed() > Duration::from_secs(60) {
                let _ = process.kill();
                panic!("node {node} does not end: {}", self.messages(node));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.messages(node)
    }

    /// What a node says that does not start.
    pub fn refusal(&self, node: usize) -> String {
        let output = self.command(node, &["serve"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    }

    /// Sends a signal to a node.
    pub fn signal(&self, node: usize, signal: &str) {
        let process = self.nodes[node].process.as_ref().expect("it runs");
        let status = Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub fn dsn(&self, node: usize) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.nodes[node].port)
    }

    /// A client of a node.
    pub async fn client(&self, node: usize) -> Client {
        connect(&self.dsn(node)).await.unwrap()
    }

    /// The node that leads, by its own word.
    pub fn leader(&self) -> usize {
        let begin = Instant::now();
        loop {
            let leading = (0..self.nodes.len()).filter(|node| self.nodes[*node].process.is_some());
            let last = |node: usize| {
                let messages = self.messages(node);
                let words = ["this node leads epoch=", "this node follows", "this node was elected"];
                let at = |word: &str| messages.rfind(word);
                words
                    .into_iter()
                    .max_by_key(|word| at(word))
                    .is_some_and(|word| word == words[0] && at(word).is_some())
            };
            let epoch = |node: &usize| {
                let messages = self.messages(*node);
                let at = messages.rfind("this node leads epoch=")? + "this node leads epoch=".len();
                messages[at..].split_whitespace().next()?.parse::<u64>().ok()
            };
            if let Some(node) = leading.filter(|node| last(*node)).max_by_key(epoch) {
                return node;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "no node leads");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until all replicas contain the same, and returns that: the rows of a query, asked of each.
    pub async fn everywhere(&self, sql: &str) -> String {
        let begin = Instant::now();
        loop {
            let mut answers = Vec::new();
            for server in self.servers.servers() {
                // One that was away may not know yet what is asked about.
                let Ok(client) = connect(&server.dsn()).await else { break };
                match client.simple_query(sql).await {
                    Ok(_) => answers.push(rows(&client, sql).await),
                    Err(error) => answers.push(error.to_string()),
                }
            }
            let first = answers.first().cloned().unwrap_or_default();
            if answers.len() == self.servers.servers().len() && answers.iter().all(|answer| *answer == first)
            {
                return first;
            }
            if begin.elapsed() > Duration::from_secs(60) {
                self.keep_messages();
                let shown: String = format!("{answers:?}").chars().take(4_000).collect();
                panic!("the replicas differ: {shown}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The segments of a log, by their numbers.
fn segments(log: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    found.sort();
    found
}

pub async fn connect(dsn: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// All rows of a query, cells and rows joined.
pub async fn rows(client: &Client, sql: &str) -> String {
    let mut lines = Vec::new();
    for message in client.simple_query(sql).await.unwrap() {
        if let SimpleQueryMessage::Row(row) = message {
            let cells: Vec<&str> = (0..row.len()).map(|cell| row.get(cell).unwrap_or("-")).collect();
            lines.push(cells.join(" "));
        }
    }
    lines.join(", ")
}

/// The code of the error with which something ended.
pub fn code<T: std::fmt::Debug>(result: Result<T, tokio_postgres::Error>) -> SqlState {
    result.unwrap_err().code().expect("an error of the server's").clone()
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
