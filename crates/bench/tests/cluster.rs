//! The smallest cluster of capped servers. Where control groups are missing, the benchmark itself skips, and the test says so.

use std::time::Duration;

use onecopy_bench::Workplace;
use onecopy_bench::cluster::{self, Options, Outcome, System};
use onecopy_workload::tpcw::MixName;

#[tokio::test]
async fn pgpool_is_measured_on_capped_servers_and_what_cannot_start_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        // There is no such program, so onecopy is left out.
        systems: vec![System::Onecopy, System::Pgpool],
        sizes: vec![2],
        mixes: vec![MixName::Shopping],
        users: Some(3),
        calibration: Duration::ZERO,
        ramp: Duration::from_millis(500),
        duration: Duration::from_secs(2),
        stages: 1,
        workplace: Workplace {
            onecopy: folder.path().join("onecopy"),
            results: Some(folder.path().join("results")),
            progress: false,
            ..Workplace::default()
        },
        ..Options::default()
    };
    let report = match cluster::run(&options).await.unwrap() {
        Outcome::Measured(report) => report,
        Outcome::Skipped(why) => return eprintln!("not tested: {why}"),
    };
    println!("{report}");
    assert!(report.failures[0].starts_with("onecopy: "), "{:?}", report.failures);
    if let Some(failure) = report.failures.get(1) {
        assert!(failure.contains("is not installed"), "{failure}");
        return eprintln!("not tested: {failure}");
    }
    let cell = &report.cells[0];
    assert_eq!((cell.system, cell.size, cell.stages.len()), (System::Pgpool, 2, 1));
    let stage = cell.peak().unwrap();
    assert!(stage.completed > 0 && stage.servers_busy > 0.0, "{stage:?}");
    let results: Vec<_> = std::fs::read_dir(folder.path().join("results")).unwrap().flatten().collect();
    for name in ["report.json", "report.txt", "stages.csv"] {
        assert!(results[0].path().join(name).is_file(), "{name}");
    }
}
