//! `onecopy torture`: what it says of seeds that keep every promise, and of one that does not.

use std::path::Path;
use std::process::{Command, Output};

fn torture(args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.arg("torture").arg("--quiet").args(args).current_dir(dir).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn seeds_that_keep_every_promise_are_summed_up() {
    let dir = tempfile::tempdir().unwrap();
    let output = torture(&["--seeds", "0..20", "--coverage"], dir.path());
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("promises kept in every one of 20 runs:\n"), "{said}");
    assert!(said.contains("the node dies, with unsynced records"), "{said}");
    assert!(said.contains("| fault | all | waits |"), "{said}");
}

#[test]
fn planted_bug_is_found_made_smaller_and_replayed_from_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let planted = ["--plant", "acknowledged-before-durable", "--attempts", "100"];
    let output = torture(&[&["--seeds", "0..50", "--out", "small.toml"], &planted[..]].concat(), dir.path());
    let first = said(&output);
    assert_eq!(output.status.code(), Some(1), "{first}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("clients hear of a commit when it is durable and visible"), "{error}");
    assert!(first.contains("again: onecopy torture --scenario small.toml"), "{first}");
    let again = first.lines().find_map(|line| line.strip_prefix("again: onecopy torture --seed "));
    let seed = again.and_then(|again| again.split(' ').next()).expect("it says how to replay it");

    let output = torture(
        &[&["--seed", seed, "--trace", "whole"], &planted[..2], &["--attempts", "0"]].concat(),
        dir.path(),
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(std::fs::read_to_string(dir.path().join("whole")).unwrap().contains("AcknowledgedEarly"));

    let output = torture(&["--scenario", "small.toml"], dir.path());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), said(&torture(&["--scenario", "small.toml"], dir.path())));
}

#[test]
fn file_that_is_no_scenario_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("wrong.toml"), "seed = 1\nreplikas = 2\n").unwrap();
    let output = torture(&["--scenario", "wrong.toml"], dir.path());
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("wrong.toml") && error.contains("replikas"), "{error}");
}
