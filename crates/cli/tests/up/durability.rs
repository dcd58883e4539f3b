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

/// Where control groups are missing, the benchmark itself skips, and the test says so.
#[test]
fn what_durability_costs_is_measured_with_both_in_each_round() {
    let results = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["bench", "durability", "--systems", "onecopy", "--mixes", "ordering", "--servers", "1"]);
    command.args([
        "--cap",
        "0.5",
        "--clients",
        "2",
        "--rounds",
        "1",
        "--duration",
        "2",
        "--ramp",
        "1",
        "--quiet",
    ]);
    let output = command.arg("--out").arg(results.path()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    if said.starts_with("skipped: ") {
        return eprintln!("not tested: {said}");
    }
    let run = fs::read_dir(results.path()).unwrap().next().unwrap().unwrap().path();
    let csv = fs::read_to_string(run.join("turns.csv")).unwrap();
    let turns: Vec<&str> = csv.lines().skip(1).collect();
    assert!(turns[0].starts_with("onecopy,ordering,0,memory,2,"), "{csv}");
    assert!(turns[1].starts_with("onecopy,ordering,0,disk,2,"), "{csv}");
    assert!(said.contains("onecopy, ordering"), "{said}");
}
