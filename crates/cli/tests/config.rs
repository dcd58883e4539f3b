//! What is read from configuration files, and what is said of wrong ones.

use onecopy_cli::config::{
    AuthMethod, Config, Database, Durability, Loaded, Protocol, Replica, ReplicaTlsMode, config_schema, load,
    secrets_schema,
};
use onecopy_cli::settings::{Secret, example};
use snapbox::{assert_data_eq, file, str};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const MINIMAL: &str = "\
[[databases]]
name = \"app\"
[[databases.replicas]]
name = \"r1\"
host = \"10.0.0.1\"
";

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("onecopy.toml"), text).map_err(|error| error.to_string())
}

/// A folder with both files; `mode` is that of the secrets.
fn folder(config: &str, secrets: &str, mode: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("onecopy.toml"), config).unwrap();
    let path = dir.path().join("onecopy.secrets.toml");
    fs::write(&path, secrets).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    dir
}

fn load_in(dir: &tempfile::TempDir) -> Result<Loaded, String> {
    let message = |error: onecopy_cli::settings::SettingsError| {
        error.to_string().replace(&dir.path().display().to_string(), "DIR")
    };
    load(&dir.path().join("onecopy.toml")).map_err(message)
}

#[test]
fn minimal_configuration_has_all_defaults() {
    let replica = Replica { name: "r1".into(), host: "10.0.0.1".into(), port: 5432, tls: None };
    let expected = Config::with_databases(vec![Database { name: "app".into(), replicas: vec![replica] }]);
    assert_eq!(parse(MINIMAL).unwrap(), expected);
}

#[test]
fn printed_example_is_the_minimal_configuration() {
    assert_eq!(parse(&example(config_schema())).unwrap(), parse(MINIMAL).unwrap());
}

#[test]
fn printed_example_stays_right_with_every_line_made_effective() {
    let text = effective(&example(config_schema()));
    let config = parse(&text).unwrap();
    assert_eq!(config.listen.port, 6432);
    assert_eq!(config.databases[0].replicas[0].tls, Some(ReplicaTlsMode::Require));
    let secrets = effective(&example(secrets_schema()));
    let loaded = load_in(&folder(&text, &secrets, 0o600)).unwrap();
    assert_eq!(loaded.secrets.replica_login.user, "onecopy");
    assert_eq!(loaded.warnings, Vec::<String>::new());
}

/// Removes the comment sign from the lines that hold a setting or a table's heading: no space follows it there.
fn effective(example: &str) -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with(' ') => setting.to_owned(),
        _ => line.to_owned(),
    };
    example.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn given_values_replace_the_defaults() {
    let text = format!(
        "protocol = \"onecopy\"\nworkers = 3\n[listen]\naddresses = [\"::1\", \"127.0.0.1\"]\nport = 0x1F40\n\
         [auth]\nmethod = \"trust\"\n[log]\ndurability = \"memory\"\nsegment_bytes = 1_048_576\n{MINIMAL}"
    );
    let config = parse(&text).unwrap();
    assert_eq!(config.protocol, Protocol::Onecopy);
    assert_eq!(config.workers, 3);
    assert_eq!(config.listen.addresses.len(), 2);
    assert_eq!(config.listen.port, 8000);
    assert_eq!(config.auth.method, AuthMethod::Trust);
    assert_eq!(config.log.durability, Durability::Memory);
    assert_eq!(config.log.segment_bytes, 1 << 20);
}

#[test]
fn every_problem_of_a_file_is_reported_with_its_line_and_what_was_meant() {
    let text = "\
protocl = \"onecopy\"
port = 6432

[listen]
adresses = [\"127.0.0.1\"]
port = 0

[auth]
method = \"trus\"

[limits]
conections_max = 5
statement_bytes_max = \"big\"
startup_timeout_ms = -1
colour = 3

[[databases]]
name = \"app\"

[[databases.replicas]]
name = \"r1\"
";
    assert_data_eq!(
        parse(text).unwrap_err(),
        str![[r#"
unknown key `protocl` at the top level
  --> onecopy.toml:1:1
  |
1 | protocl = "onecopy"
  | ^^^^^^^
  help: did you mean `protocol`?

unknown key `port` at the top level
  --> onecopy.toml:2:1
  |
2 | port = 6432
  | ^^^^
  help: `port` belongs in [listen]

unknown key `adresses` in [listen]
  --> onecopy.toml:5:1
  |
5 | adresses = ["127.0.0.1"]
  | ^^^^^^^^
  help: did you mean `addresses`?

`listen.port` must be from 1 to 65535, this is 0
  --> onecopy.toml:6:8
  |
6 | port = 0
  |        ^

"trus" is no value of `auth.method`
  --> onecopy.toml:9:10
  |
9 | method = "trus"
  |          ^^^^^^
  help: did you mean "trust"?

unknown key `conections_max` in [limits]
   --> onecopy.toml:12:1
   |
12 | conections_max = 5
   | ^^^^^^^^^^^^^^
  help: did you mean `connections_max`?

`limits.statement_bytes_max` must be a whole number, this is text
   --> onecopy.toml:13:23
   |
13 | statement_bytes_max = "big"
   |                       ^^^^^

`limits.startup_timeout_ms` must be from 0 to 18446744073709551615, this is -1
   --> onecopy.toml:14:22
   |
14 | startup_timeout_ms = -1
   |                      ^^

unknown key `colour` in [limits]
   --> onecopy.toml:15:1
   |
15 | colour = 3
   | ^^^^^^
  help: known here: [..]

`host` is missing in [databases.replicas]
   --> onecopy.toml:20:1
   |
20 | [[databases.replicas]]
   | ^^^^^^^^^^^^^^^^^^^^^^
"#]]
    );
}

#[test]
fn text_that_is_not_toml_is_shown_where_it_breaks() {
    let error = parse("workers = = 3\n").unwrap_err();
    assert!(error.contains("--> onecopy.toml:1:"), "{error}");
    assert!(error.contains("1 | workers = = 3"), "{error}");
}

#[test]
fn empty_configuration_is_refused_for_want_of_a_database() {
    assert_eq!(parse("").unwrap_err(), "`databases` is missing at the top level\n  --> onecopy.toml");
}

#[test]
fn every_protocol_that_is_complete_can_be_chosen_and_no_other() {
    for name in onecopy_core::protocol::SELECTABLE {
        parse(&format!("protocol = \"{name}\"\n{MINIMAL}")).unwrap();
    }
    let error = parse(&format!("protocol = \"tashkent_plus\"\n{MINIMAL}")).unwrap_err();
    assert!(error.contains("onecopy.toml:1:12"), "{error}");
}

#[test]
fn two_replicas_on_one_server_are_refused() {
    let text = format!("{MINIMAL}[[databases.replicas]]\nname = \"r2\"\nhost = \"10.0.0.1\"\n");
    let error = parse(&text).unwrap_err();
    assert!(error.starts_with("the replica `r2` is the same server as another: 10.0.0.1:5432\n"), "{error}");
    let elsewhere = text.replace("name = \"r2\"", "name = \"r2\"\nport = 5433");
    assert_eq!(parse(&elsewhere).unwrap().databases[0].replicas[1].port, 5433);
    let same_name = elsewhere.replace("name = \"r2\"", "name = \"r1\"");
    assert!(parse(&same_name).unwrap_err().starts_with("the replica `r1` is given twice"), "{same_name}");
}

#[test]
fn second_database_is_refused_and_so_is_its_name_taken_twice() {
    let error = parse(&format!("{MINIMAL}{MINIMAL}")).unwrap_err();
    assert!(error.contains("one onecopy process serves one database\n  --> onecopy.toml:6:1"), "{error}");
    assert!(error.contains("the database `app` is given twice"), "{error}");
}

#[test]
fn settings_that_need_each_other_are_checked_together() {
    let error = |start: &str| parse(&format!("{start}\n{MINIMAL}")).unwrap_err();
    assert!(
        error("[listen]\naddresses = [\"0.0.0.0\"]\n[auth]\nmethod = \"trust\"")
            .starts_with("\"trust\" lets everybody in who reaches 0.0.0.0\n  --> onecopy.toml:4:10"),
    );
    assert!(error("[listen]\naddresses = []").starts_with("there is no address to listen on"));
    assert!(error("[client_tls]\nmode = \"require\"").starts_with("encryption for clients needs both"));
    assert!(
        error("[replica_tls]\nmode = \"verify-full\"")
            .starts_with("checking the replicas' certificates needs")
    );
}

#[test]
fn both_files_are_loaded_and_paths_count_from_the_configuration() {
    let secrets = "[replica_login]\nuser = \"onecopy\"\npassword = \"p\"\n[[users]]\nname = \"app\"\npassword = \"q\"\n";
    let dir = folder(&format!("[log]\ndir = \"log\"\n{MINIMAL}"), secrets, 0o600);
    let loaded = load_in(&dir).unwrap();
    assert_eq!(loaded.config.log.dir, dir.path().join("log"));
    assert_eq!(loaded.config.secrets, dir.path().join("onecopy.secrets.toml"));
    assert_eq!(loaded.secrets.replica_login.password, Some(Secret("p".into())));
    assert_eq!(loaded.secrets.users[0].name, "app");
    assert!(!format!("{loaded:?}").contains("\"q\""), "passwords do not show");
}

#[test]
fn secrets_that_lie_open_are_refused_with_the_command_that_closes_them() {
    let secrets = "[replica_login]\nuser = \"onecopy\"\n[[users]]\nname = \"app\"\npassword = \"q\"\n";
    let outcome = |mode: u32| load_in(&folder(MINIMAL, secrets, mode));
    assert_eq!(
        outcome(0o644).unwrap_err(),
        "DIR/onecopy.secrets.toml holds secrets and everybody may read it\nrun: chmod 600 DIR/onecopy.secrets.toml"
    );
    assert!(outcome(0o602).unwrap_err().contains("everybody may change it"));
    assert!(outcome(0o660).unwrap_err().contains("its group may change it"));
    assert!(outcome(0o640).unwrap().warnings[0].contains("its group may read it"));
    assert_eq!(outcome(0o600).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn problems_of_the_secrets_do_not_show_the_secrets_of_other_lines() {
    let secrets = "[replica_login]\nuser = \"onecopy\"\npassword = \"hidden\"\n[[users]]\nname = \"app\"\npassword = \"md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"\n\
                   [[users]]\nname = \"app\"\npassword = \"also hidden\"\n";
    let error = load_in(&folder(MINIMAL, secrets, 0o600)).unwrap_err();
    assert!(error.contains("is an MD5 hash, which SCRAM cannot use"), "{error}");
    assert!(error.contains("the user `app` is given twice"), "{error}");
    assert!(!error.contains("hidden"), "{error}");
}

#[test]
fn passwords_without_users_let_nobody_in_and_are_refused() {
    let error = load_in(&folder(MINIMAL, "[replica_login]\nuser = \"onecopy\"\n", 0o600)).unwrap_err();
    assert!(
        error.contains("names no users, and auth.method = \"scram-sha-256\" lets in nobody else"),
        "{error}"
    );
}

#[test]
fn missing_file_is_named() {
    let error = load(Path::new("/nonexistent/onecopy.toml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "read /nonexistent/onecopy.toml: No such file or directory (os error 2)\n\
         to begin with an example: onecopy config --example > /nonexistent/onecopy.toml"
    );
}

#[test]
fn reference_page_is_what_the_definitions_say() {
    let output = snapbox::cmd::Command::new(snapbox::cmd::cargo_bin!("onecopy"))
        .args(["config", "--reference"])
        .output()
        .unwrap();
    assert_data_eq!(String::from_utf8(output.stdout).unwrap(), file!["../../../docs/configuration.md"].raw());
}

#[test]
fn nodes_that_cannot_serve_together_are_refused() {
    let nodes = |cluster: &str| format!("[cluster]\n{cluster}\n{MINIMAL}");
    let said = |cluster: &str| parse(&nodes(cluster)).unwrap_err();
    let one = "[[cluster.nodes]]\nid = 1\nhost = \"a\"\n";
    assert!(parse(&nodes(&format!("node = 1\n{one}"))).is_ok());
    assert!(said(one).contains("this process is none of them"));
    assert!(said(&format!("node = 2\n{one}")).contains("node 2 is not among the nodes"));
    assert!(said(&format!("node = 1\n{one}{one}")).contains("node 1 is given twice"));
    assert!(
        said(&format!("node = 1\n{one}[[cluster.nodes]]\nid = 2\nhost = \"a\"\n"))
            .contains("both be at a:6433")
    );
    let silent = said(&format!("node = 1\n{one}voting = false\n"));
    assert!(silent.contains("no node counts for majorities"), "{silent}");
    assert!(said("node = 0\n[[cluster.nodes]]\nid = 0\nhost = \"a\"\n").contains("begin with 1"));
    let on_memory = format!("{}[log]\ndurability = \"memory\"\n", nodes(&format!("node = 1\n{one}")));
    assert!(parse(&on_memory).unwrap_err().contains("keep it on disk"));
}

#[test]
fn tables_are_divided_by_a_column_and_whole_numbers() {
    let peers = |peers: &str| {
        format!(
            "protocol = \"partitioned\"\n[peers]\n{peers}\n[cluster]\nnode = 1\n[[cluster.nodes]]\nid = 1\nhost = \"a\"\n{MINIMAL}"
        )
    };
    let parts = "parts = [{ table = \"public.carts\", column = \"id\", bounds = [-5, 1_000] }]";
    let config = parse(&peers(parts)).unwrap();
    assert_eq!(config.peers.parts[0].bounds, [-5, 1_000]);
    let error = parse(&peers(&parts.replace("-5", "1.5"))).unwrap_err();
    assert!(error.contains("a whole number of 64 bits"), "{error}");
    let error = parse(&peers(&parts.replace(", column = \"id\"", ""))).unwrap_err();
    assert!(error.contains("column"), "{error}");
}
