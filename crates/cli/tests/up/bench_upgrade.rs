//! `onecopy bench upgrade` as a process: that replicas join and leave under its load, and that it reports what came of it.

use super::folder;
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Takes some ten seconds: one server, another one joins, and two more replace both.
#[test]
fn replica_joins_and_all_are_replaced_under_a_load_that_does_not_wait() {
    let out = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["bench", "upgrade", "--replicas", "1", "--rate", "10", "--items", "100", "--calm", "0.5"]);
    let output = command.args(["--quiet", "--out"]).arg(out.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let results = fs::read_dir(out.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(results.join("report.txt")).unwrap(), said);
    assert_eq!(said.matches("\nmet: ").count(), 4, "{said}");
    assert!(said.contains("no upgrade"), "{said}");

    let report: Value =
        serde_json::from_str(&fs::read_to_string(results.join("report.json")).unwrap()).unwrap();
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    let expected =
        ["calm", "r2 joins", "r3 joins", "r1 leaves", "r4 joins", "r2 leaves", "calm again"].as_slice();
    assert_eq!(names, expected);
    let ends: Vec<u64> = phases
        .iter()
        .flat_map(|phase| ["begin_ms", "end_ms"].map(|at| phase[at].as_u64().unwrap()))
        .collect();
    assert!(ends.is_sorted(), "{ends:?}");
    assert!(report["all"]["due"].as_u64() > Some(10), "{}", report["all"]);
    let names_of = |list: &str| -> Vec<String> {
        let list = report[list].as_array().unwrap().iter();
        list.map(|one| one["replica"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        (names_of("serving"), names_of("verified")),
        (["r3", "r4"].map(String::from).to_vec(), ["r3", "r4"].map(String::from).to_vec())
    );
    assert!(fs::read_to_string(results.join("pages.csv")).unwrap().lines().count() > 10);
    assert!(results.join("r1.log").is_file() && results.join("onecopy.log").is_file());
}

#[test]
fn folder_without_programs_is_refused_before_anything_is_made() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    let output = command.args(["bench", "upgrade", "--quiet", "--to", "/nonexistent"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("does not hold the programs"), "{said}");
}
