//! Real servers are made, started, stopped, killed and paused. Needs PostgreSQL's packages; see `make setup`.

use onecopy_cluster::{Auth, Binaries, Cluster, ClusterFile, Error, Options, Server, Stop};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Asks one server one question with psql; the answer without decoration, or what psql complains of.
fn query(server: &Server, sql: &str) -> Result<String, String> {
    query_with(server, &server.dsn(), sql)
}

fn query_with(server: &Server, dsn: &str, sql: &str) -> Result<String, String> {
    let output = server.command("psql").args(["-XAtqc", sql, dsn]).output().expect("psql runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn folder() -> tempfile::TempDir {
    let permissions = fs::Permissions::from_mode(0o711);
    tempfile::Builder::new().prefix("onecopy-test-").permissions(permissions).tempdir().unwrap()
}

fn process_runs(pid: u32) -> bool {
    // A zombie has an empty command line.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|arguments| !arguments.is_empty())
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(30), "waited 30 s until {what}");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn server_starts_with_its_settings_stops_and_starts_again_on_its_port() {
    let dir = folder();
    let options = Options::replica().with("work_mem", "7MB").with("application_name", "it's");
    let mut server = Server::init(dir.path(), &options).unwrap();
    assert_eq!(server.pid(), None);
    server.start().unwrap();
    let port = server.port();
    assert_eq!(query(&server, "show work_mem").unwrap(), "7MB");
    assert_eq!(query(&server, "show synchronous_commit").unwrap(), "off");
    assert_eq!(query(&server, "show fsync").unwrap(), "on");
    assert_eq!(query(&server, "show data_checksums").unwrap(), "on");
    assert_eq!(query(&server, "show lc_ctype").unwrap(), "C.UTF-8");
    assert_eq!(query(&server, "show server_encoding").unwrap(), "UTF8");
    assert_eq!(query(&server, "show listen_addresses").unwrap(), "127.0.0.1");
    query(&server, "create table t as select 1 as x").unwrap();

    server.stop(Stop::Fast).unwrap();
    assert!(!server.is_running());
    assert!(query(&server, "select 1").is_err());
    drop(server);

    let mut again = Server::init(dir.path(), &options).unwrap();
    let begin = Instant::now();
    again.start().unwrap();
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "a second start is fast, this took {:?}",
        begin.elapsed()
    );
    assert_eq!(again.port(), port);
    assert_eq!(query(&again, "select x from t").unwrap(), "1");
}

#[test]
fn server_that_ended_by_itself_is_told_once_and_can_be_started_by_hand_and_stopped_again() {
    let mut server = Server::temporary(&Options::default()).unwrap();
    assert!(server.take_end().is_none(), "it runs");
    let (pid, pid_file) = (server.pid().unwrap(), server.data_dir().join("postmaster.pid"));
    // SIGKILL: no time to remove its pid file.
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    let mut status = None;
    wait_until("its end is known", || {
        status = server.take_end();
        status.is_some()
    });
    assert!(!status.unwrap().success());
    assert!(server.take_end().is_none() && server.pid().is_none());
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "not even a zombie is left");

    assert!(pid_file.exists());
    let data = server.data_dir();
    wait_until("its children have ended, too", || {
        let mut start = server.command("pg_ctl");
        start
            .arg("-D")
            .arg(&data)
            .args(["-w", "-s", "-l"])
            .arg(server.dir().join("by_hand.log"))
            .arg("start");
        start.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    });
    assert_eq!(query(&server, "select 1").unwrap(), "1");
    server.stop_others().unwrap();
    assert!(!pid_file.exists() && query(&server, "select 1").is_err());
}

#[test]
fn unix_socket_of_the_folder_accepts_connections() {
    let server = Server::temporary(&Options::default()).unwrap();
    let sockets = server.socket_dir().expect("a temporary folder's path is short").display().to_string();
    let dsn = format!("host={sockets} port={} user=postgres dbname=postgres", server.port());
    assert_eq!(query_with(&server, &dsn, "select inet_server_addr() is null").unwrap(), "t");
}

#[test]
fn folder_too_deep_for_a_socket_is_served_over_tcp() {
    let dir = folder();
    let deep = dir.path().join("a-folder-with-a-rather-long-name/".repeat(4));
    let mut server = Server::init(&deep, &Options::default()).unwrap();
    server.start().unwrap();
    assert_eq!(server.socket_dir(), None);
    assert_eq!(query(&server, "select 1").unwrap(), "1");
}

#[test]
fn postmaster_is_killed_and_the_server_recovers_what_was_committed() {
    let mut server = Server::temporary(&Options::default()).unwrap();
    query(&server, "create table t as select 7 as x").unwrap();
    let first = server.pid().unwrap();
    server.kill().unwrap();
    assert!(!server.is_running());
    server.start().unwrap();
    assert_ne!(server.pid(), Some(first));
    assert_eq!(query(&server, "select x from t").unwrap(), "7");

    server.kill_all().unwrap();
    assert!(matches!(server.kill(), Err(Error::NotRunning { .. })));
    server.start().unwrap();
    server.restart(Stop::Immediate).unwrap();
    assert_eq!(query(&server, "select x from t").unwrap(), "7");
}

#[test]
fn postmaster_dies_while_a_backend_is_busy_and_the_next_start_waits_for_it() {
    let mut server = Server::temporary(&Options::default()).unwrap();
    // Busy without ever waiting, so the backend does not notice at once that its postmaster is gone.
    let busy = "do $$ declare d timestamptz := clock_timestamp() + interval '2 s'; \
                begin while clock_timestamp() < d loop end loop; end $$";
    let mut client =
        server.command("psql").args(["-Xqc", busy, &server.dsn()]).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the backend is busy", || {
        query(&server, "select count(*) from pg_stat_activity where query like 'do %'").as_deref() == Ok("1")
    });
    server.kill().unwrap();
    server.start().unwrap();
    assert_eq!(query(&server, "select 1").unwrap(), "1");
    client.wait().unwrap();
}

#[test]
fn paused_server_answers_only_after_it_is_resumed() {
    let mut server = Server::temporary(&Options::default()).unwrap();
    server.pause().unwrap();
    assert!(server.is_running());
    let mut client = server.command("psql").args(["-XAtqc", "select 1", &server.dsn()]).spawn().unwrap();
    sleep(Duration::from_millis(300));
    assert!(client.try_wait().unwrap().is_none(), "a paused server does not answer");
    server.resume().unwrap();
    assert!(client.wait().unwrap().success());
    server.pause().unwrap();
    server.stop(Stop::Fast).unwrap();
    assert!(!server.is_running());
}

#[test]
fn dropped_server_is_gone_with_its_temporary_folder() {
    let server = Server::temporary(&Options::default()).unwrap();
    let (pid, dir) = (server.pid().unwrap(), server.dir().to_owned());
    drop(server);
    assert!(!process_runs(pid));
    assert!(!dir.exists());
}

#[test]
fn scram_lets_in_only_who_knows_the_generated_password() {
    let dir = folder();
    let options = Options { auth: Auth::Scram { password: None }, ..Options::default() };
    let mut server = Server::init(dir.path(), &options).unwrap();
    server.start().unwrap();
    assert_eq!(query(&server, "select 1").unwrap(), "1");
    let without = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", server.port());
    assert!(
        query_with(&server, &format!("{without} password=guess"), "select 1")
            .unwrap_err()
            .contains("password")
    );
    let password = server.password().unwrap().to_owned();
    drop(server);

    let mut again = Server::init(dir.path(), &Options::default()).unwrap();
    assert_eq!(again.password(), Some(&*password), "the password outlasts the process");
    again.start().unwrap();
    assert_eq!(query(&again, "select 1").unwrap(), "1");
}

#[test]
fn second_process_on_one_folder_is_refused() {
    let dir = folder();
    let _server = Server::init(dir.path(), &Options::default()).unwrap();
    let error = Server::init(dir.path(), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }));
    assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
}

#[test]
fn postmaster_left_behind_is_shut_down_and_replaced() {
    let dir = folder();
    let mut server = Server::init(dir.path(), &Options { outlive: true, ..Options::default() }).unwrap();
    server.start().unwrap();
    let (orphan, data) = (server.pid().unwrap(), server.data_dir());
    // As if this process had been killed: neither is the server stopped nor the folder's lock kept.
    let dir_copy = dir.path().to_owned();
    std::mem::forget(server);
    fs::rename(dir_copy.join("lock"), dir_copy.join("lock.old")).unwrap();

    let mut next = Server::init(dir.path(), &Options::default()).unwrap();
    next.start().unwrap();
    assert!(!process_runs(orphan));
    assert_ne!(next.pid(), Some(orphan));
    assert_eq!(next.data_dir(), data);
    assert_eq!(query(&next, "select 1").unwrap(), "1");
}

#[test]
fn stale_pid_file_that_names_a_living_stranger_does_not_stop_the_start() {
    let dir = folder();
    let mut server = Server::init(dir.path(), &Options::default()).unwrap();
    server.start().unwrap();
    let data = server.data_dir();
    let pid_file = fs::read_to_string(data.join("postmaster.pid")).unwrap();
    server.stop(Stop::Fast).unwrap();
    let mut stranger = Command::new("sleep").arg("60").spawn().unwrap();
    let (_, rest) = pid_file.split_once('\n').unwrap();
    fs::write(data.join("postmaster.pid"), format!("{}\n{rest}", stranger.id())).unwrap();

    server.start().unwrap();
    assert!(process_runs(stranger.id()), "a stranger is left alone");
    assert_eq!(query(&server, "select 1").unwrap(), "1");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn taken_port_is_named_when_it_was_asked_for_and_replaced_when_it_was_not() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, onecopy_cluster::free_port().unwrap())).unwrap();
    let taken = listener.local_addr().unwrap().port();
    let dir = folder();
    let mut server = Server::init(dir.path(), &Options::default().with_port(taken)).unwrap();
    let error = server.start().unwrap_err();
    assert!(matches!(error, Error::PortTaken { port } if port == taken), "{error}");
    drop(server);

    let mut server = Server::init(dir.path(), &Options::default()).unwrap();
    server.start().unwrap();
    assert_ne!(server.port(), taken);
    assert_eq!(query(&server, "select 1").unwrap(), "1");
}

#[test]
fn wrong_setting_fails_the_start_with_the_reason_from_the_log() {
    let dir = folder();
    let mut server = Server::init(dir.path(), &Options::default().with("shared_bufers", "1MB")).unwrap();
    let error = server.start().unwrap_err();
    assert!(matches!(error, Error::DidNotStart { .. }));
    assert!(error.to_string().contains("unrecognized configuration parameter \"shared_bufers\""), "{error}");
}

#[test]
fn data_of_a_version_that_is_not_installed_is_refused() {
    let dir = folder();
    let server = Server::init(dir.path(), &Options::default()).unwrap();
    fs::write(server.data_dir().join("PG_VERSION"), "9.6\n").unwrap();
    drop(server);
    let error = Server::init(dir.path(), &Options::default()).unwrap_err();
    assert!(matches!(&error, Error::OtherVersion { found, .. } if found == "9.6"), "{error}");
}

#[test]
fn data_that_is_copied_from_templates_is_as_initdb_makes_it() {
    let dir = folder();
    let templates = dir.path().join("templates");
    fs::create_dir(&templates).unwrap();
    fs::set_permissions(&templates, fs::Permissions::from_mode(0o755)).unwrap();
    let options = Options { templates: Some(templates.clone()), ..Options::default() };
    let made: Vec<Server> =
        ["a", "b"].map(|name| Server::init(dir.path().join(name), &options).unwrap()).into();
    assert_eq!(fs::read_dir(&templates).unwrap().count(), 1);
    let mut other =
        Server::init(dir.path().join("c"), &Options { checksums: false, ..options.clone() }).unwrap();
    assert_eq!(fs::read_dir(&templates).unwrap().count(), 2, "what is made otherwise is kept apart");
    let mut identities = Vec::new();
    for mut server in made {
        server.start().unwrap();
        assert_eq!(query(&server, "show data_checksums").unwrap(), "on");
        query(&server, "create table t as select 1 as x").unwrap();
        identities.push(query(&server, "select system_identifier from pg_control_system()").unwrap());
    }
    assert_eq!(identities[0], identities[1], "the second one is a copy");
    other.start().unwrap();
    assert_eq!(query(&other, "show data_checksums").unwrap(), "off");

    let auth = Auth::Scram { password: None };
    Server::init(dir.path().join("d"), &Options { auth, ..options }).unwrap();
    assert_eq!(fs::read_dir(&templates).unwrap().count(), 2, "no password is kept");
}

#[test]
fn cluster_of_three_differs_in_identity_only_and_grows() {
    let dir = folder();
    let options = Options { templates: None, ..Options::replica() };
    let mut cluster = Cluster::create(dir.path(), 2, &options).unwrap();
    cluster.start().unwrap();
    let identity =
        |server: &Server| query(server, "select system_identifier from pg_control_system()").unwrap();
    assert_ne!(identity(cluster.server(0)), identity(cluster.server(1)));
    query(cluster.server(0), "create table t as select 1 as x").unwrap();
    drop(cluster);

    let mut cluster = Cluster::create(dir.path(), 3, &options).unwrap();
    assert!(matches!(cluster.describe("host=x"), Err(Error::NotRunning { .. })));
    cluster.start().unwrap();
    assert_eq!(query(cluster.server(0), "select x from t").unwrap(), "1");
    assert_eq!(query(cluster.server(2), "show cluster_name").unwrap(), "r3");

    let client = "host=127.0.0.1 port=6432 user=postgres dbname=postgres";
    cluster.describe(client).unwrap().write(cluster.dir()).unwrap();
    let file = ClusterFile::read(dir.path()).unwrap();
    assert_eq!(file.client.dsn, client);
    assert_eq!(file.replicas.len(), 3);
    assert_eq!(file.replicas[1].name, "r2");
    assert_eq!(Some(file.replicas[1].pid), cluster.server(1).pid());
    assert_eq!(file.replicas[1].data, cluster.server(1).data_dir());
    assert_eq!(query_with(cluster.server(0), &file.replicas[1].dsn, "show cluster_name").unwrap(), "r2");
    cluster.stop(Stop::Fast).unwrap();
}

#[test]
fn cluster_with_passwords_shares_one() {
    let options = Options { auth: Auth::Scram { password: None }, ..Options::replica() };
    let cluster = Cluster::temporary(2, &options).unwrap();
    assert!(cluster.server(0).password().is_some());
    assert_eq!(cluster.server(0).password(), cluster.server(1).password());
    assert_eq!(query(cluster.server(1), "select 1").unwrap(), "1");
}

#[test]
fn found_programs_are_of_a_supported_version() {
    let found = Binaries::find().unwrap();
    assert!(onecopy_cluster::SUPPORTED_MAJORS.contains(&found.major));
    assert_eq!(Binaries::find_major(found.major).unwrap(), found);
    assert!(matches!(Binaries::find_major(11), Err(Error::NoBinaries { .. })));
    assert_eq!(Binaries::at(&found.dir).unwrap(), found);
}

#[test]
fn unreachable_folder_is_refused_with_the_ancestor_that_bars_the_way() {
    if !is_root() {
        return; // Only root hands servers to another user.
    }
    let dir = folder();
    let private = dir.path().join("private");
    fs::create_dir(&private).unwrap();
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let error = Server::init(private.join("deep/r1"), &Options::default()).unwrap_err();
    let private = private.canonicalize().unwrap();
    assert!(matches!(&error, Error::Unreachable { ancestor, .. } if *ancestor == private), "{error}");
}

#[test]
fn server_ends_when_the_process_that_started_it_is_killed() {
    if std::env::var_os("ONECOPY_TEST_STARTS_A_SERVER").is_some() {
        let dir = std::env::var_os("ONECOPY_TEST_STARTS_A_SERVER").unwrap();
        let mut server = Server::init(Path::new(&dir), &Options::default()).unwrap();
        server.start().unwrap();
        println!("pid {}", server.pid().unwrap());
        sleep(Duration::from_secs(60));
        return;
    }
    let dir = folder();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server_ends_when_the_process_that_started_it_is_killed", "--nocapture"])
        .env("ONECOPY_TEST_STARTS_A_SERVER", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid_file = dir.path().join("data/postmaster.pid");
    let ready = || fs::read_to_string(&pid_file).is_ok_and(|text| text.contains("ready"));
    wait_until("the other process's server is ready", ready);
    let pid: u32 = fs::read_to_string(&pid_file).unwrap().lines().next().unwrap().trim().parse().unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    wait_until("the server has ended", || !process_runs(pid));
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    output.stdout.starts_with(b"0\n")
}
