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
        let newest = rows(&replica, "SELECT max(csn) FROM onecopy.progress").await;
        assert_eq!(newest, "11001");
        wait_until("old commits are forgotten", || {
            let kept = tokio::task::block_in_place(|| {
                let count = rows(&replica, "SELECT count(*) FROM onecopy.progress");
                tokio::runtime::Handle::current().block_on(count)
            });
            // All would be those commits and the row that the log began with.
            kept.parse::<u32>().unwrap() < 11_002
        });
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
