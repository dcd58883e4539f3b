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
