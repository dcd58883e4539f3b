//! The comparison with whole transactions, as far as it goes without onecopy: with it, see the command line's tests.

use std::time::Duration;

use onecopy_bench::Workplace;
use onecopy_bench::chains::{self, Options, Target};
use onecopy_bench::tpcc::Supplier;

#[tokio::test]
async fn servers_are_measured_in_turn_and_what_is_missing_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        targets: Target::ALL.to_vec(),
        rounds: 2,
        duration: Duration::from_secs(1),
        ramp: Duration::ZERO,
        supplier: Supplier { warehouses: 2, customers: 30, ..Supplier::default() },
        terminals: 4,
        pgpool: Some("/nowhere/pgpool".into()),
        workplace: Workplace {
            onecopy: "/nowhere/onecopy".into(),
            results: Some(folder.path().to_owned()),
            progress: false,
            ..Workplace::default()
        },
        ..Options::default()
    };
    let comparison = chains::run(&options).await.unwrap();
    let left_out: Vec<Target> = comparison.left_out.iter().map(|(target, _)| *target).collect();
    assert_eq!(left_out, Target::ALL[2..]);
    let order: Vec<Target> = comparison.samples.iter().map(|sample| sample.target).collect();
    assert_eq!((order[0], order[1]), (Target::ReadCommitted, Target::RepeatableRead));
    assert_eq!(order.len(), 4);
    assert!(comparison.holds(), "{comparison}");
    for sample in &comparison.samples {
        let run = sample.run.as_ref().unwrap();
        assert!(run.tps > 0.0 && run.latencies.len() == 5, "{sample:?}");
        let trees: Vec<&str> = sample.cpu.iter().map(|usage| usage.name.as_str()).collect();
        assert_eq!(trees, ["server 1", "terminals"]);
        assert!(sample.cpu.iter().all(|usage| usage.seconds > 0.0), "{sample:?}");
    }
    let results: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert!(
        ["report.json", "report.md", "samples.csv"].iter().all(|name| results[0].path().join(name).is_file())
    );
    let nothing = Options { targets: vec![Target::Chains], ..options };
    let refused = chains::run(&nothing).await.unwrap_err().to_string();
    assert!(refused.contains("nothing could be measured: chains: onecopy: is not installed"), "{refused}");
}
