//! `onecopy serve` before servers that ask for passwords and encrypt: what an operator sets up with a configuration and
//! a file of secrets. (`localhost.key` and its certificate are for these tests only.)
//!
//! About ten seconds.

#[path = "../running/mod.rs"]
mod running;

use onecopy_cluster::{Auth, Cluster, Options, Server, Stop, free_port};
use running::folder;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve").join(name)
}

/// Gives a server its own certificate, with the key as PostgreSQL wants it: nobody else may read it.
fn give_certificate(server: &Server) {
    for name in ["localhost.crt", "localhost.key"] {
        let copy = server.data_dir().join(name);
        fs::copy(source(name), &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
        let owner = fs::metadata(server.data_dir()).unwrap();
        chown(&copy, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
}

/// Runs SQL by psql: one server itself if the connection string is its own.
fn psql(dsn: &str, sql: &str) -> Output {
    let mut psql = Command::new("psql");
    // As a session that nobody has prepared: no password and no certificate but those of the string.
    psql.env_remove("PGPASSWORD").env("PGPASSFILE", "/nonexistent");
    psql.args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, "-d", dsn]);
    psql.output().expect("psql is missing; install it with: scripts/setup test")
}

/// What psql prints.
fn answer(dsn: &str, sql: &str) -> String {
    let output = psql(dsn, sql);
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What psql complains of.
fn complaint(dsn: &str, sql: &str) -> String {
    let output = psql(dsn, sql);
    assert!(!output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// The files of a configuration, in a folder of their own.
struct Configuration {
    dir: TempDir,
    port: u16,
}

impl Configuration {
    /// Writes both files: the servers, which are reached by their TCP ports, and what else the files hold.
    fn write(servers: &[Server], config: &str, secrets: &str) -> Configuration {
        Configuration::write_with_log(servers, config, "", secrets)
    }

    /// The same, with further settings of the log.
    fn write_with_log(servers: &[Server], config: &str, log: &str, secrets: &str) -> Configuration {
        let (dir, port) = (folder(), free_port().unwrap());
        let mut text = config.to_owned();
        let _ = write!(
            text,
            "[listen]\nport = {port}\nsocket_dir = \".\"\n[log]\ndir = \"log\"\n{log}[[databases]]\nname = \"postgres\"\n"
        );
        for (index, server) in servers.iter().enumerate() {
            let (name, port) = (Cluster::name(index), server.port());
            let _ = write!(
                text,
                "[[databases.replicas]]\nname = \"{name}\"\nhost = \"localhost\"\nport = {port}\n"
            );
        }
        fs::write(dir.path().join("onecopy.toml"), text).unwrap();
        let path = dir.path().join("onecopy.secrets.toml");
        fs::write(&path, secrets).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Configuration { dir, port }
    }

    /// By which a client connects where nobody is asked for a password.
    fn dsn(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.arg("serve").arg("-c").arg(self.dir.path().join("onecopy.toml"));
        command
    }

    /// What it says if it cannot serve.
    fn refusal(&self) -> String {
        let output = self.command().output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Servers that ask for no passwords, and the files to serve them in the same way.
struct Trusting {
    cluster: Cluster,
    configuration: Configuration,
    // The servers stop before their folder goes.
    _dir: TempDir,
}

impl Trusting {
    fn start(replicas: usize) -> Trusting {
        Trusting::start_with_log(replicas, "")
    }

    /// The same, with further settings of the log.
    fn start_with_log(replicas: usize, log: &str) -> Trusting {
        let dir = folder();
        let mut cluster = Cluster::create(dir.path(), replicas, &Options::replica()).unwrap();
        cluster.start().unwrap();
        let (config, secrets) = ("[auth]\nmethod = \"trust\"\n", "[replica_login]\nuser = \"postgres\"\n");
        let configuration = Configuration::write_with_log(cluster.servers(), config, log, secrets);
        Trusting { cluster, configuration, _dir: dir }
    }
}

/// `onecopy serve`, ready.
struct Serving(Child);

impl Serving {
    fn start(configuration: &Configuration) -> Serving {
        let mut process = configuration.command().stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Serving(process)
    }

    /// Ends it as a service manager does.
    fn stop(mut self) {
        let status = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status().unwrap();
        assert!(status.success() && self.0.wait().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SECRETS: &str = r#"
[replica_login]
user = "postgres"
password = "of the servers"
[[users]]
name = "app"
password = "of the clients"
replica_password = "of the role"
[[users]]
name = "postgres"
password = "of the operator"
replica_password = "of the servers"
"#;

#[test]
fn existing_database_is_adopted_and_served_with_passwords_and_encryption_on_both_sides() {
    let options = Options {
        auth: Auth::Scram { password: Some("of the servers".to_owned()) },
        ..Options::replica()
            .with("ssl", "on")
            .with("ssl_cert_file", "localhost.crt")
            .with("ssl_key_file", "localhost.key")
    };
    let dir = folder();
    let mut cluster = Cluster::create(dir.path(), 2, &options).unwrap();
    cluster.servers().iter().for_each(give_certificate);
    cluster.start().unwrap();
    let [first, second] = [0, 1].map(|index| cluster.server(index).dsn());
    // Functions of an extension are no database.
    for server in [&first, &second] {
        answer(server, "CREATE EXTENSION citext");
    }
    let role = "CREATE ROLE app LOGIN PASSWORD 'of the role'";
    answer(&first, role);
    // One server has a database already, the other is new.
    let existing = "CREATE TABLE accounts (id serial PRIMARY KEY, owner text NOT NULL, balance int DEFAULT 0);
                    CREATE INDEX ON accounts (owner); GRANT ALL ON accounts, accounts_id_seq TO app;
                    INSERT INTO accounts (owner, balance) SELECT 'client ' || g, g FROM generate_series(1, 100) g";
    answer(&first, existing);

    let certificate = source("localhost.crt").display().to_string();
    let key = source("localhost.key").display().to_string();
    let config = format!(
        "[client_tls]\nmode = \"require\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n\
         [replica_tls]\nmode = \"verify-full\"\nauthority = \"{certificate}\"\n"
    );
    let configuration = Configuration::write(cluster.servers(), &config, SECRETS);
    let refused = configuration.refusal();
    assert!(refused.contains("copy the database to r2"), "{refused}");
    // Of a copy that failed nothing is left that would count as a database.
    answer(&second, role);
    let serving = Serving::start(&configuration);

    let port = configuration.port;
    let app = |more: &str| format!("host=localhost port={port} user=app dbname=postgres {more}");
    // A client that trusts nobody else, and makes sure that nobody stands between.
    let careful = format!(
        "password='of the clients' sslmode=verify-full sslrootcert={certificate} channel_binding=require"
    );
    let dsn = app(&careful);
    assert_eq!(answer(&dsn, "SELECT count(*), sum(balance), current_user FROM accounts"), "100|5050|app");
    assert_eq!(
        answer(&dsn, "INSERT INTO accounts (owner) VALUES ('new') RETURNING id").lines().next(),
        Some("101")
    );
    for statement in ["SELECT count(*) FROM accounts WHERE owner = 'new'", "UPDATE accounts SET balance = 1"]
    {
        answer(&dsn, statement);
    }

    let refused = complaint(&app("password='of the clients' sslmode=disable"), "SELECT 1");
    assert!(refused.contains("this server requires TLS"), "{refused}");
    let refused = complaint(&app("password='of somebody' sslmode=require"), "SELECT 1");
    assert!(refused.contains("password authentication failed for user \"app\""), "{refused}");

    // Asked through the Unix socket, which nobody can listen to.
    let socket = configuration.dir.path().display();
    let console = format!("host={socket} port={port} user=postgres");
    let mut verify = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    verify.env("PGPASSWORD", "of the operator").args(["verify", "--json", "--target", &console]);
    let verified = verify.output().unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let verified: serde_json::Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert_eq!(verified["replicas"].as_array().unwrap().len(), 2, "{verified}");

    let in_the_clear = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                        WHERE NOT ssl AND client_port > 0 AND pid <> pg_backend_pid()";
    let encrypted = "SELECT count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                     WHERE ssl AND pid <> pg_backend_pid()";
    for server in [&first, &second] {
        assert_eq!(answer(server, "SELECT count(*), sum(balance) FROM accounts"), "101|101");
        assert_eq!((answer(server, in_the_clear), answer(server, encrypted)), ("0".into(), "t".into()));
        assert_eq!(answer(server, "SELECT count(*) FROM pg_indexes WHERE tablename = 'accounts'"), "2");
    }
    serving.stop();

    // What it wrote down is enough to go on.
    let again = Serving::start(&configuration);
    assert_eq!(answer(&dsn, "SELECT count(*), sum(balance) FROM accounts"), "101|101");
    again.stop();
}

#[test]
fn servers_that_differ_are_refused_with_what_differs() {
    let Trusting { _dir, cluster, configuration } = Trusting::start(2);
    let [first, second] = [0, 1].map(|index| cluster.server(index).dsn());

    answer(&second, "ALTER DATABASE postgres SET TimeZone = 'Asia/Tokyo'");
    let refused = configuration.refusal();
    assert!(refused.contains("TimeZone is ") && refused.contains("\"Asia/Tokyo\" on r2"), "{refused}");
    answer(&second, "ALTER DATABASE postgres RESET TimeZone");

    answer(&first, "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)");
    answer(&second, "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (2)");
    let refused = configuration.refusal();
    assert!(refused.contains("r1 and r2 differ in public.a (contents)"), "{refused}");

    answer(&second, "UPDATE a SET id = 1");
    answer(&first, "CREATE UNLOGGED TABLE b (id int PRIMARY KEY)");
    let refused = configuration.refusal();
    assert!(refused.contains("r1 has unlogged relations (public.b)"), "{refused}");
    assert!(refused.contains("ALTER TABLE public.b SET LOGGED"), "{refused}");
    answer(&first, "DROP TABLE b");
    let moods = "CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE b (m mood) PARTITION BY HASH (m)";
    answer(&first, moods);
    let refused = configuration.refusal();
    assert!(
        refused.contains("r1 has tables partitioned by hashes of enumerations, or by OIDs (public.b)"),
        "{refused}"
    );
    answer(&first, "DROP TABLE b; DROP TYPE mood");
    Serving::start(&configuration).stop();
}

/// What `onecopy status` says.
fn status(configuration: &Configuration) -> serde_json::Value {
    let console = format!("host=127.0.0.1 port={} user=postgres", configuration.port);
    let mut status = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    let output = status.args(["status", "--json", "--target", &console]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !condition() {
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "waited 60 s until {what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn number(value: &serde_json::Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn log_is_cut_behind_what_replicas_have_flushed_and_one_that_needs_more_stays_out() {
    let log = "segment_bytes = 1_048_576\nkept_bytes_max = 2_097_152\n";
    let Trusting { _dir, mut cluster, configuration } = Trusting::start_with_log(2, log);
    let serving = Serving::start(&configuration);
    let dsn = configuration.dsn();
    let write = || {
        answer(&dsn, &format!("INSERT INTO t (s) VALUES ('{}')", "x".repeat(100_000)));
    };
    answer(&dsn, "CREATE TABLE t (id serial PRIMARY KEY, s text)");

    // While both serve, nothing that either may need after a crash goes, and all else does.
    (0..30).for_each(|_| write());
    wait_until("the log is cut", || {
        // Something moves the server's own log on.
        write();
        number(&status(&configuration)["status"]["log_first"]) > 1
    });
    cluster.server_mut(1).kill().unwrap();
    wait_until("it is out of service", || status(&configuration)["replicas"][1]["state"] == "down");
    cluster.server_mut(1).start().unwrap();
    wait_until("it serves again after a crash", || status(&configuration)["replicas"][1]["state"] == "up");

    // One that is away may come back as long as there is room for what it lacks.
    cluster.server_mut(1).kill().unwrap();
    write();
    let applied = number(&status(&configuration)["replicas"][1]["applied"]);
    for _ in 0..30 {
        write();
    }
    wait_until("the log has gone on without it", || {
        write();
        number(&status(&configuration)["status"]["log_first"]) > applied + 1
    });
    assert!(number(&status(&configuration)["status"]["log_kept_bytes"]) < 8 << 20);
    wait_until("the status says what will be needed", || {
        status(&configuration)["replicas"][1]["detail"].as_str().unwrap().contains("copied anew")
    });
    cluster.server_mut(1).start().unwrap();
    wait_until("it is told apart", || status(&configuration)["replicas"][1]["out_because"] == "records_gone");
    for _ in 0..20 {
        let replica = &status(&configuration)["replicas"][1];
        assert_eq!((&replica["state"], &replica["out_because"]), (&"down".into(), &"records_gone".into()));
        assert!(
            replica["detail"].as_str().unwrap().contains("copy it anew from another replica"),
            "{replica}"
        );
    }
    let rows = answer(&dsn, "SELECT count(*) FROM t");
    serving.stop();

    // Nor does it keep the others from starting.
    let again = Serving::start(&configuration);
    assert_eq!(answer(&dsn, "SELECT count(*) FROM t"), rows);
    wait_until("it stays out", || status(&configuration)["replicas"][1]["out_because"] == "records_gone");
    again.stop();
}

/// A session of somebody else on a server, which holds a lock until it is ended.
struct Stranger {
    process: Child,
    server: String,
}

impl Stranger {
    fn lock(server: &str, table: &str) -> Stranger {
        let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(600)");
        let process = Command::new("psql").args(["-X", "-q", "-d", server, "-c", &lock]).spawn().unwrap();
        let locked = format!(
            "SELECT count(*) FROM pg_locks WHERE relation = '{table}'::regclass AND mode = 'AccessExclusiveLock' AND granted"
        );
        wait_until("the table is locked", || answer(server, &locked) == "1");
        Stranger { process, server: server.to_owned() }
    }

    fn end(mut self) {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'BEGIN; LOCK%'";
        answer(&self.server, end);
        self.process.wait().unwrap();
    }
}

#[test]
fn numbers_of_sequences_that_no_replica_knew_of_before_a_crash_are_not_given_out_again() {
    let Trusting { _dir, cluster, configuration } = Trusting::start(1);
    let mut serving = Serving::start(&configuration);
    let dsn = configuration.dsn();
    answer(&dsn, "CREATE TABLE t (id bigserial, v int)");
    answer(&dsn, "INSERT INTO t (v) VALUES (0)");
    // Decided and told, and nowhere applied.
    let stranger = Stranger::lock(&cluster.server(0).dsn(), "onecopy.progress");
    let fill = "INSERT INTO t (v) SELECT g FROM generate_series(1, 5000) g";
    let mut client = Command::new("psql").args(["-X", "-q", "-d", &dsn, "-c", fill]).spawn().unwrap();
    wait_until("the rows are decided", || {
        let status = status(&configuration);
        number(&status["status"]["told"]) >= number(&status["replicas"][0]["applied"]) + 2
    });
    serving.0.kill().unwrap();
    serving.0.wait().unwrap();
    assert!(!client.wait().unwrap().success());
    stranger.end();

    let serving = Serving::start(&configuration);
    assert_eq!(answer(&dsn, "SELECT count(*) FROM t"), "5001");
    answer(&dsn, fill);
    answer(&dsn, "INSERT INTO t (v) VALUES (0)");
    assert_eq!(answer(&dsn, "SELECT count(*), count(DISTINCT id) FROM t"), "10002|10002");
    serving.stop();
}

#[test]
fn replica_on_which_a_stranger_holds_a_lock_leaves_service_before_what_waits_fills_the_memory() {
    let Trusting { _dir, cluster, configuration } =
        Trusting::start_with_log(2, "[limits]\nunapplied_bytes_max = 65_536\n");
    let serving = Serving::start(&configuration);
    let dsn = configuration.dsn();
    let homes = || [0, 1].map(|at| number(&status(&configuration)["replicas"][at]["home_statements"]));
    answer(&dsn, "CREATE TABLE t (id serial PRIMARY KEY, s text)");
    let before = homes();
    answer(&dsn, "INSERT INTO t (s) VALUES ('first')");
    // A replica that is behind is nobody's home.
    let other = if homes()[0] > before[0] { 1 } else { 0 };
    let server = cluster.server(other).dsn();
    let stranger = Stranger::lock(&server, "t");
    let insert = format!("INSERT INTO t (s) VALUES ('{}')", "x".repeat(1_000));
    // More is decided for as long as it takes: what counts is what comes while it is kept.
    let mut rows = 1;
    wait_until("it is out of service", || {
        (0..20).for_each(|_| drop(answer(&dsn, &insert)));
        rows += 20;
        status(&configuration)["replicas"][other]["out_because"] == "stuck"
    });
    answer(&dsn, &insert);
    let rows = (rows + 1).to_string();
    assert_eq!(answer(&dsn, "SELECT count(*) FROM t"), rows);

    stranger.end();
    wait_until("it serves again", || status(&configuration)["replicas"][other]["state"] == "up");
    wait_until("it has everything", || answer(&server, "SELECT count(*) FROM t") == rows);
    serving.stop();
}

/// The sessions by which onecopy is known on a server.
const SESSIONS: &str = "SELECT array_agg(pid ORDER BY pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1868771952 AND objid = 0";

#[test]
fn second_process_of_one_log_is_refused_before_it_touches_a_replica() {
    let Trusting { _dir, cluster, mut configuration } = Trusting::start(1);
    let serving = Serving::start(&configuration);
    let server = cluster.server(0).dsn();
    let sessions = answer(&server, SESSIONS);
    assert!(sessions.contains(|c: char| c.is_ascii_digit()), "{sessions}");

    let path = configuration.dir.path().join("onecopy.toml");
    let text = fs::read_to_string(&path).unwrap();
    let other = free_port().unwrap();
    let text = text
        .replace(&format!("port = {}\nsocket_dir = \".\"", configuration.port), &format!("port = {other}"));
    fs::write(&path, text).unwrap();
    let refused = configuration.refusal();
    assert!(refused.contains("is in use by"), "{refused}");
    assert_eq!(answer(&server, SESSIONS), sessions);
    configuration.port = other;
    serving.stop();
}

/// A process that has a limit of `ulimit`, and ignores the signal by which the system would tell it of a file's.
fn limited(configuration: &Configuration, limit: &str) -> Command {
    let inner = configuration.command();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' XFSZ; ulimit {limit}; exec \"$0\" \"$@\"")]);
    command.arg(inner.get_program()).args(inner.get_args());
    command
}

/// Serves until the log cannot be written, and says how many rows of 100 kB it has answered for by then.
fn write_until_it_ends(mut command: Command, dsn: &str) -> usize {
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let mut serving = Serving(process);
    // At the second time it is there.
    let _ = psql(dsn, "CREATE TABLE t (id serial PRIMARY KEY, s text)");
    let insert = format!("INSERT INTO t (s) VALUES ('{}')", "x".repeat(100_000));
    let answered = (0..100).take_while(|_| psql(dsn, &insert).status.success()).count();
    assert!(answered < 100);
    assert_eq!(serving.0.wait().unwrap().code(), Some(1));
    let mut complaint = String::new();
    serving.0.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert!(complaint.contains("the commit log stopped"), "{complaint}");
    answered
}

/// Starts without a limit, and compares: of the `unknown` ones that were not answered nobody knew what became of them.
fn expect_rows(configuration: &Configuration, answered: usize, unknown: usize) {
    let again = Serving::start(configuration);
    let dsn = configuration.dsn();
    let rows: usize = answer(&dsn, "SELECT count(*) FROM t").parse().unwrap();
    assert!((answered..=answered + unknown).contains(&rows), "{rows} rows, {answered} answered");
    answer(&dsn, "UPDATE t SET s = 'y'");
    let console = format!("host=127.0.0.1 port={} user=postgres", configuration.port);
    let mut verify = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    assert!(verify.args(["verify", "--target", &console]).output().unwrap().status.success());
    again.stop();
}

#[test]
fn process_ends_when_its_log_cannot_be_written_and_nothing_that_was_answered_is_lost() {
    let Trusting { _dir, cluster: _cluster, configuration } = Trusting::start(2);
    let dsn = configuration.dsn();

    // No file may grow beyond some megabytes, and what is written behind that fails.
    let answered = write_until_it_ends(limited(&configuration, "-f 6144"), &dsn);
    assert!(answered >= 10, "{answered}");

    // Nothing at all can be written: it does not even start, and says why.
    let refused = limited(&configuration, "-f 0").output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let complaint = String::from_utf8(refused.stderr).unwrap();
    assert!(complaint.contains("log") && complaint.contains("File too large"), "{complaint}");

    expect_rows(&configuration, answered, 1);
}

/// A file system of its own, of which only root can make one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, bytes: usize) -> Option<SmallDisk> {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        mounted.is_ok_and(|mounted| mounted.status.success()).then(|| SmallDisk(at.to_owned()))
    }

    fn resize(&self, bytes: usize) {
        let size = format!("remount,size={bytes}");
        assert!(Command::new("mount").args(["-o", &size]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn disk_of_the_log_that_is_full_is_told_at_each_start_until_there_is_room_and_nothing_answered_is_lost() {
    let Trusting { _dir, cluster: _cluster, configuration } = Trusting::start(2);
    let dsn = configuration.dsn();
    let log = configuration.dir.path().join("log");
    let Some(disk) = SmallDisk::mount(&log, 2 << 20) else {
        return eprintln!("skipped: mounting a file system needs root");
    };
    let mut answered = write_until_it_ends(configuration.command(), &dsn);
    assert!(answered >= 10, "{answered}");

    // A little room is enough to start and to be read from.
    disk.resize((2 << 20) + (128 << 10));
    answered += write_until_it_ends(configuration.command(), &dsn);

    // And then it is not.
    fs::write(log.join("filler"), vec![0; 2 << 20]).unwrap_err();
    let complaint = configuration.refusal();
    assert!(complaint.contains("No space left on device") && complaint.contains("Make room"), "{complaint}");
    fs::remove_file(log.join("filler")).unwrap();

    disk.resize(64 << 20);
    expect_rows(&configuration, answered, 2);
}

/// Copies a folder with the rights of what is in it.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

#[test]
fn replica_with_commits_that_the_log_has_lost_stays_out() {
    let Trusting { _dir, mut cluster, configuration } = Trusting::start(2);
    let dsn = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", configuration.port);
    let serving = Serving::start(&configuration);
    answer(&dsn, "CREATE TABLE t (id serial PRIMARY KEY, s text)");
    serving.stop();
    cluster.stop(Stop::Fast).unwrap();

    // The log and one server are put back to here.
    let (log, server) = (configuration.dir.path().join("log"), cluster.server(0).dir().to_owned());
    let kept = folder();
    copy(&log, &kept.path().join("log"));
    copy(&server, &kept.path().join("server"));
    cluster.start().unwrap();
    let serving = Serving::start(&configuration);
    answer(&dsn, "INSERT INTO t (s) VALUES ('lost')");
    let second = cluster.server(1).dsn();
    wait_until("both have it", || answer(&second, "SELECT count(*) FROM t") == "1");
    serving.stop();
    cluster.stop(Stop::Fast).unwrap();
    for (folder, name) in [(&log, "log"), (&server, "server")] {
        fs::remove_dir_all(folder).unwrap();
        copy(&kept.path().join(name), folder);
    }

    cluster.server_mut(0).start().unwrap();
    let serving = Serving::start(&configuration);
    let is_told_apart = |detail: &str| {
        let replica = &status(&configuration)["replicas"][1];
        replica["out_because"] == "other_history" && replica["detail"].as_str().unwrap().contains(detail)
    };
    cluster.server_mut(1).start().unwrap();
    wait_until("it is seen to be ahead", || is_told_apart("the log has lost commits"));
    // Soon others have the numbers of what was lost.
    for _ in 0..3 {
        answer(&dsn, "INSERT INTO t (s) VALUES ('new')");
    }
    wait_until("it is seen to have others", || is_told_apart("was made in epoch"));
    serving.stop();

    // Nor does it keep the other one from starting.
    let serving = Serving::start(&configuration);
    wait_until("it stays out", || is_told_apart("was made in epoch"));
    assert_eq!(answer(&dsn, "SELECT count(*) FROM t WHERE s = 'lost'"), "0");
    serving.stop();
}

#[test]
fn replica_of_another_log_or_of_none_does_not_keep_the_others_from_starting() {
    let Trusting { _dir, cluster, configuration } = Trusting::start(2);
    let dsn = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", configuration.port);
    let serving = Serving::start(&configuration);
    answer(&dsn, "CREATE TABLE t (id int PRIMARY KEY)");
    serving.stop();
    let second = cluster.server(1).dsn();
    for (change, why) in [
        ("UPDATE onecopy.meta SET log_id = 'another'", "other_log"),
        ("DROP SCHEMA onecopy CASCADE", "no_schema"),
    ] {
        answer(&second, change);
        let serving = Serving::start(&configuration);
        answer(&dsn, "INSERT INTO t SELECT count(*) FROM t");
        wait_until(why, || status(&configuration)["replicas"][1]["out_because"] == why);
        serving.stop();
    }
}

#[test]
fn start_with_too_few_files_to_open_is_refused_and_with_fewer_than_the_limits_need_warned_of() {
    let secrets = "[replica_login]\nuser = \"postgres\"\n";
    let configuration = Configuration::write(&[], "[auth]\nmethod = \"trust\"\n", secrets);
    let path = configuration.dir.path().join("onecopy.toml");
    let nobody = free_port().unwrap();
    let replica = format!("[[databases.replicas]]\nname = \"r1\"\nhost = \"127.0.0.1\"\nport = {nobody}\n");
    fs::write(&path, fs::read_to_string(&path).unwrap() + &replica).unwrap();
    let complaint = |files_max: u32| {
        let output = limited(&configuration, &format!("-n {files_max}")).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let refused = complaint(100);
    assert!(refused.contains("onecopy may open 100 files and needs "), "{refused}");
    let warned = complaint(400);
    assert!(warned.contains("the process may open 400 files"), "{warned}");
    assert!(warned.contains("LimitNOFILE"), "{warned}");
}

#[test]
fn connections_that_say_nothing_keep_nobody_out_and_one_too_many_hears_so() {
    let Trusting { _dir, cluster: _cluster, configuration } = Trusting::start(1);
    let path = configuration.dir.path().join("onecopy.toml");
    let limits = "[limits]\nconnections_max = 2\nstartup_timeout_ms = 600000\n";
    fs::write(&path, fs::read_to_string(&path).unwrap() + limits).unwrap();
    let _serving = Serving::start(&configuration);
    // Twice as many as are accepted at all.
    let silent: Vec<TcpStream> = (0..150)
        .map(|_| {
            TcpStream::connect((Ipv4Addr::LOCALHOST, configuration.port)).expect("the system accepts it")
        })
        .collect();
    // The first two stay for ten minutes; the others take no more of what is left than a refusal needs.
    let dsn = format!("{} connect_timeout=60", configuration.dsn());
    assert_eq!(answer(&dsn, "SELECT 1"), "1");

    drop(silent);
    let hold = || {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-A", "-t", "-d", &dsn]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut psql = psql.spawn().unwrap();
        psql.stdin.as_mut().unwrap().write_all(b"SELECT 1;\n").unwrap();
        let mut line = String::new();
        BufReader::new(psql.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "1\n");
        psql
    };
    let held = [hold(), hold()];
    let refused = complaint(&dsn, "SELECT 1");
    assert!(refused.contains("sorry, too many clients already"), "{refused}");
    assert!(refused.contains("limits.connections_max"), "{refused}");
    for mut psql in held {
        drop(psql.stdin.take());
        assert!(psql.wait().unwrap().success());
    }
    wait_until("both have gone", || psql(&dsn, "SELECT 1").status.success());
}
