//! `onecopy bench failures` as a process: that it does to replicas and nodes what it says, and reports what came of it.

use super::folder;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs it under deposits of few clients, for as short as it can be; returns what it reported and where.
fn report(out: &Path, more: &[&str]) -> (Value, PathBuf) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args([
        "bench",
        "failures",
        "--load",
        "pgbench",
        "--branches",
        "2",
        "--accounts",
        "100",
        "--clients",
        "4",
    ]);
    let output = command.args(["--calm", "0.2", "--quiet", "--out"]).arg(out).args(more).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let results = fs::read_dir(out).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(results.join("report.txt")).unwrap(), said);
    (serde_json::from_str(&fs::read_to_string(results.join("report.json")).unwrap()).unwrap(), results)
}

/// Takes some fifteen seconds: the servers are made, and come back from two crashes.
#[test]
fn replicas_that_are_killed_come_back_and_nothing_is_lost() {
    let out = folder();
    let (report, results) =
        report(out.path(), &["--fault", "kill,sessions", "--rounds", "2", "--lasts", "0.3"]);
    let rounds = report["rounds"].as_array().unwrap();
    let faults: Vec<&Value> = rounds.iter().map(|round| &round["fault"]).collect();
    assert_eq!(faults, ["kill", "sessions"]);
    for round in rounds {
        let times =
            ["begin_ms", "injected_ms", "out_ms", "back_ms", "end_ms"].map(|name| round[name].as_u64());
        assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{round}");
    }
    let killed = rounds[0]["victim"].as_str().unwrap();
    let log = fs::read_to_string(results.join(format!("{killed}.log"))).unwrap();
    assert!(log.contains("database system was not properly shut down"), "{log}");
    let log =
        fs::read_to_string(results.join(format!("{}.log", rounds[1]["victim"].as_str().unwrap()))).unwrap();
    assert!(log.contains("terminating connection due to administrator command"), "{log}");
    assert!(fs::read_to_string(results.join("onecopy.log")).unwrap().contains("replica left service"));

    let verdicts: Vec<&Value> =
        report["verified"].as_array().unwrap().iter().map(|one| &one["verdict"]).collect();
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == "identical").count(), 2, "{verdicts:?}");
    let commits = &report["commits"];
    assert!(commits["acknowledged"].as_u64() > Some(0), "{commits}");
    assert_eq!((&commits["lost"], &commits["twice"]), (&0.into(), &0.into()));
}

/// Takes some twenty seconds: nodes and servers are made, and a node is away for a moment.
#[test]
fn node_that_leads_is_killed_and_clients_of_the_others_meet_conflicts_at_most() {
    let out = folder();
    let more = ["--nodes", "3", "--fault", "leader", "--rounds", "1", "--replicas", "2", "--lasts", "0.3"];
    let (report, results) = report(out.path(), &more);
    let round = &report["rounds"][0];
    let times = ["begin_ms", "injected_ms", "healing_ms", "healed_ms", "back_ms", "end_ms"];
    let times = times.map(|name| round[name].as_u64());
    assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{round}");

    let of_nodes = &round["of_nodes"];
    let killed = of_nodes["nodes"][0].as_u64().unwrap();
    assert_eq!(round["victim"], format!("node{}", killed + 1));
    let log = fs::read_to_string(results.join(format!("node{}.log", killed + 1))).unwrap();
    assert!(log.contains("this node leads") && log.matches("ready\n").count() == 2, "{log}");
    let served = of_nodes["served_ms"].as_u64().unwrap();
    assert!(of_nodes["done_ms"].as_u64().unwrap() <= served && served <= times[5].unwrap(), "{round}");
    // Four clients on three nodes; each of the lost one's is lost at once.
    assert!((1..=2).contains(&of_nodes["there"]["connections_lost"].as_u64().unwrap()), "{round}");
    assert_eq!(of_nodes["elsewhere"]["connections_lost"], 0, "{round}");
    assert!(fs::read_to_string(results.join("nodes.csv")).unwrap().contains("\n1,leader,"));
    assert_eq!(report["verified"].as_array().unwrap().len(), 2);
    let commits = &report["commits"];
    assert!(commits["acknowledged"].as_u64() > Some(0), "{commits}");
    assert_eq!((&commits["lost"], &commits["twice"]), (&0.into(), &0.into()));
}

#[test]
fn fault_of_one_node_is_refused_where_the_others_could_not_go_on() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    let output = command.args(["bench", "failures", "--nodes", "2", "--fault", "leader"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--nodes 3"), "{said}");
}
