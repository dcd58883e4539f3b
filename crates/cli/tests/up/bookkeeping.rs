//! What replicas keep to know what they contain.

use super::clients::{block_on, connect, rows};
use super::{Up, folder, wait_until};
use futures_util::future::join_all;
use onecopy_cluster::ClusterFile;
use std::process::Command;

/// About ten seconds: as many commits as are kept, and some more.
#[test]
fn replica_that_executes_everything_itself_forgets_old_commits() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        let insert = client.prepare("INSERT INTO t VALUES ($1)").await.unwrap();
        for begin in (0..11_000).step_by(500) {
            // Each sends when it is first polled, so all are on their way before the first answer.
            let ids: Vec<i32> = (begin..begin + 500).collect();
            for inserted in join_all(ids.iter().map(|id| client.execute_raw(&insert, [id]))).await {
                assert_eq!(inserted.unwrap(), 1);
            }
        }
        let replica = connect(&file.replicas[0].dsn).await;
        // When the agent looks is its own affair: it deletes all but as many as are kept at that moment.
        let mut found = String::new();
        wait_until("old commits are forgotten", || {
            found = tokio::task::block_in_place(|| {
                let sql = "SELECT min(csn), max(csn), count(*) FROM onecopy.progress";
                tokio::runtime::Handle::current().block_on(rows(&replica, sql))
            });
            !found.starts_with("0 ")
        });
        let numbers: Vec<u64> = found.split(' ').map(|number| number.parse().unwrap()).collect();
        let [oldest, newest, kept] = numbers[..] else { panic!("{found}") };
        assert_eq!(newest, 11_001);
        assert!((1..=1_001).contains(&oldest), "10,000 commits and the newest are kept: {found}");
        assert_eq!(kept, newest - oldest + 1, "nothing is missing in between: {found}");
    });
}

/// The benchmark runs, on few commits: how fast is for people to look at.
#[test]
fn bookkeeping_is_measured_under_a_held_snapshot_row_by_row_and_in_groups() {
    for group in ["1", "64"] {
        let output = Command::new(env!("CARGO_BIN_EXE_onecopy"))
            .args(["bench", "progress", "--commits", "64000", "--group", group, "--json"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let parts = report["parts"].as_array().unwrap();
        assert_eq!(parts.len(), 10, "{report}");
        assert_eq!(parts[9]["commits"], 64_000, "{report}");
        assert!(parts.iter().all(|part| part["per_second"].as_f64().unwrap() > 0.0), "{report}");
        assert_eq!(report["snapshot"], true);
    }
}
