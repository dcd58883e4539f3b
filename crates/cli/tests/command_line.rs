//! The command line as its users see it. `SNAPSHOTS=overwrite cargo test -p onecopy-cli` takes over what changed.

use snapbox::cmd::{Command, cargo_bin};
use snapbox::{Data, assert_data_eq};
use std::path::{Path, PathBuf};

fn onecopy(args: &[&str]) -> Command {
    Command::new(cargo_bin!("onecopy")).args(args).env_remove("COLUMNS")
}

fn snapshot(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help").join(name)
}

/// Each command with those below it: `["bench", "tpcw"]`.
fn command_paths(command: &clap::Command, path: &[String]) -> Vec<Vec<String>> {
    let mut paths = vec![path.to_vec()];
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        let inner_path: Vec<String> = path.iter().cloned().chain([inner.get_name().to_owned()]).collect();
        paths.extend(command_paths(inner, &inner_path));
    }
    paths
}

#[test]
fn every_command_explains_itself() {
    for path in command_paths(&onecopy_cli::command_line(), &[]) {
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let output = onecopy(&args).output().unwrap();
        assert!(output.status.success());
        let name = if path.is_empty() { "onecopy".to_owned() } else { path.join("-") };
        let expected = Data::read_from(&snapshot(&format!("{name}.txt")), None);
        assert_data_eq!(String::from_utf8(output.stdout).unwrap(), expected.raw());
    }
}

#[test]
fn definition_of_the_command_line_is_consistent() {
    onecopy_cli::command_line().debug_assert();
}

#[test]
fn unknown_command_is_refused_with_the_one_that_was_meant() {
    let output = onecopy(&["confg"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("a similar subcommand exists: 'config'"), "{error}");
}

#[test]
fn man_pages_are_written_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man1");
    onecopy(&["man", "--out", out.to_str().unwrap()]).assert().success();
    let page = std::fs::read_to_string(out.join("onecopy-config.1")).unwrap();
    assert!(page.contains("\\-\\-example"), "{page}");
    for path in command_paths(&onecopy_cli::command_line(), &[]) {
        let name = [vec!["onecopy".to_owned()], path].concat().join("-");
        assert!(out.join(format!("{name}.1")).is_file(), "{name}.1 is missing");
    }
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = onecopy(&["completions", shell]).output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8(output.stdout).unwrap().contains("config"), "{shell}");
    }
}

#[test]
fn wrong_configuration_fails_the_check_with_its_problems() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("onecopy.toml"), "wrkers = 1\n").unwrap();
    let output = onecopy(&["config", "--check", "onecopy.toml"]).current_dir(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("unknown key `wrkers` at the top level\n  --> onecopy.toml:1:1"), "{error}");
    assert!(error.contains("did you mean `workers`?"), "{error}");
}

#[test]
fn reader_that_leaves_early_is_no_error() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let mut process = Command::new(env!("CARGO_BIN_EXE_onecopy"))
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(process.stdout.take());
    let mut error = String::new();
    process.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert!(process.wait().unwrap().success(), "{error}");
    assert_eq!(error, "");
}

/// What a command that must fail says.
fn complaint(args: &[&str]) -> String {
    let output = onecopy(args).env_remove("PGPASSWORD").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn commands_that_find_nobody_to_ask_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    // A port that was free a moment ago, so that nobody listens there.
    let nobody = format!("host=127.0.0.1 port={}", onecopy_cluster::free_port().unwrap());
    for command in [&["status"][..], &["verify"], &["explain", "SELECT 1"]] {
        let said = complaint(&[command, &["--target", &nobody]].concat());
        assert!(said.contains("Connection refused") && said.contains("or say by --target where"), "{said}");
        let said = complaint(&[command, &["--dir", dir]].concat());
        assert!(said.contains(&format!("start it with `onecopy up --dir {dir}`")), "{said}");
        let said = complaint(&[command, &["--target", "nonsense"]].concat());
        assert!(said.contains("write it like \"host=127.0.0.1 port=6432"), "{said}");
    }
}

#[test]
fn server_without_a_bookstore_is_not_calibrated() {
    let server = onecopy_cluster::Server::temporary(&onecopy_cluster::Options::default()).unwrap();
    let said = complaint(&["calibrate", "--log-write", "1", "--target", &server.dsn()]);
    assert!(said.contains("holds no bookstore: load one first"), "{said}");
    let said = complaint(&["calibrate", "--log-write=-1", "--target", &server.dsn()]);
    assert!(said.contains("at least 0"), "{said}");
}

#[test]
fn server_that_has_no_console_is_not_taken_for_onecopy() {
    let server = onecopy_cluster::Server::temporary(&onecopy_cluster::Options::default()).unwrap();
    let said = complaint(&["status", "--target", &server.dsn()]);
    assert!(said.contains("that is a PostgreSQL server"), "{said}");
}

#[test]
fn missing_files_come_with_the_command_that_makes_them() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("onecopy.toml");
    let said = complaint(&["serve", "-c", config.to_str().unwrap()]);
    assert!(said.contains(&format!("onecopy config --example > {}", config.display())), "{said}");
    let example = onecopy(&["config", "--example"]).output().unwrap();
    std::fs::write(&config, example.stdout).unwrap();
    let said = complaint(&["serve", "-c", config.to_str().unwrap()]);
    let secrets = dir.path().join("onecopy.secrets.toml");
    assert!(said.contains(&format!("onecopy config --example-secrets > {}", secrets.display())), "{said}");
}

#[test]
fn serve_beside_another_process_is_refused_before_it_touches_a_replica() {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    // Nothing answers there: whoever asked it would wait.
    let replica = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    replica.set_nonblocking(true).unwrap();
    let port = |listener: &std::net::TcpListener| listener.local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("onecopy.toml");
    let text = format!(
        "auth.method = \"trust\"\nlisten.port = {}\n[[databases]]\nname = \"a\"\n[[databases.replicas]]\nname = \"r1\"\n\
         host = \"127.0.0.1\"\nport = {}\n",
        port(&listener),
        port(&replica)
    );
    std::fs::write(&config, text).unwrap();
    let secrets = dir.path().join("onecopy.secrets.toml");
    std::fs::write(&secrets, "replica_login.user = \"postgres\"\n").unwrap();
    std::fs::set_permissions(&secrets, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let said = complaint(&["serve", "-c", config.to_str().unwrap()]);
    assert!(said.contains("does another onecopy serve there?"), "{said}");
    assert!(replica.accept().is_err(), "it connected to the replica");
}

#[test]
fn protocol_that_does_not_exist_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let dir_name = dir.path().to_str().unwrap();
    let arguments = ["up", "--protocol", "paxos", "--port", "0", "--dir", dir_name];
    let output = onecopy(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("versioning_late_acquire"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn nothing_to_explain_is_refused_by_the_command_line() {
    let output = onecopy(&["explain", ""]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn supplier_is_loaded_worked_with_and_checked_by_one_command() {
    let server = onecopy_cluster::Server::temporary(&onecopy_cluster::Options::default()).unwrap();
    let run = |more: &[&str]| {
        let dsn = server.dsn();
        let args = ["bench", "tpcc", "--target", &dsn, "--customers", "30", "--terminals", "3", "--quiet"];
        let pauses = ["--think", "0", "--ramp", "0", "--duration", "2", "--isolation", "repeatable read"];
        onecopy(&[&args[..], &pauses, more].concat()).output().unwrap()
    };
    let output = run(&[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("TPC-C standard mix") && said.contains("3 terminals on 3 connections"), "{said}");
    for part in
        ["new orders a minute: ", "not of the specification's size: 30", "  holds   12: ", "errors: none"]
    {
        assert!(said.contains(part), "no {part} in {said}");
    }
    let refused = run(&["--warehouses", "2"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("another wholesale supplier, of 1 warehouses of 30 customers a district"),
        "{said}"
    );
}
