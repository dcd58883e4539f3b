//! A cluster that is served with its decisions on disk and in memory in turn.

use super::clients::{block_on, connect, json, rows};
use super::{Up, folder};
use onecopy_cluster::ClusterFile;
use std::fs;
use std::process::Command;

#[test]
fn what_was_committed_under_one_durability_is_there_under_the_other() {
    let dir = folder();
    for (turn, durability) in ["memory", "disk", "memory"].into_iter().enumerate() {
        let mut command = Up::command(dir.path(), 2);
        command.args(["--durability", durability]);
        let mut up = Up::ready_by(command);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        block_on(async {
            let client = connect(&dsn).await;
            client.batch_execute("CREATE TABLE IF NOT EXISTS turns (number int)").await.unwrap();
            client.batch_execute(&format!("INSERT INTO turns VALUES ({turn})")).await.unwrap();
            assert_eq!(rows(&client, "SELECT count(*) FROM turns").await, (turn + 1).to_string());
        });
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
        up.signal("-TERM");
        assert!(up.process.wait().unwrap().success());
    }
}

/// Some 50 seconds. Where control groups are missing nothing is capped.
#[test]
fn what_durability_costs_is_measured_at_every_level_in_each_round() {
    let results = folder();
    let measure = |bound: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.args(["bench", "durability", "--systems", "onecopy", "--loads", "tpcb,ordering", "--quiet"]);
        command.args(["--servers", "1", "--clients", "3", "--branches", "3", "--rounds", "1"]);
        command.args(["--duration", "1", "--ramp", "1", "--out"]).arg(results.path()).args(bound);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        said
    };
    let mut said = measure(&["--cap", "0.5"]);
    if said.starts_with("skipped: ") {
        said = measure(&["--uncapped"]);
    }
    let run = fs::read_dir(results.path()).unwrap().next().unwrap().unwrap().path();
    let csv = fs::read_to_string(run.join("turns.csv")).unwrap();
    let expected = ["tpcb", "ordering"]
        .into_iter()
        .flat_map(|load| ["memory", "disk", "nodes"].map(|level| format!("onecopy,{load},0,{level},3,")));
    let turns: Vec<&str> = csv.lines().skip(1).collect();
    assert_eq!(turns.len(), 6, "{csv}");
    assert!(turns.iter().zip(expected).all(|(turn, expected)| turn.starts_with(&expected)), "{csv}");
    assert!(said.contains("onecopy, ordering, nodes"), "{said}");
}
