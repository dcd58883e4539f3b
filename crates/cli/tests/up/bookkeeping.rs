//! The benchmark of the replicas' bookkeeping runs, on few commits: how fast is for people to look at.

use std::process::Command;

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
