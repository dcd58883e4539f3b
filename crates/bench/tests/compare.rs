//! The comparison against real servers and rivals. A rival that this machine lacks is left out by the comparison itself, and
//! the test says so.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use onecopy_bench::Workplace;
use onecopy_bench::compare::{self, Load, Options, Target};
use onecopy_cluster::Server;

/// Stands for `onecopy up`: says where a server that runs already is, and waits for SIGINT.
fn stand_in(server: &Server, dir: &std::path::Path) -> PathBuf {
    let program = dir.join("stand-in");
    let (dsn, data, pid) = (server.dsn(), server.data_dir().display().to_string(), server.pid().unwrap());
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo stand-in && exit\n\
         while [ $# -gt 0 ]; do [ \"$1\" = --dir ] && dir=$2; shift; done\nmkdir -p \"$dir\"\n\
         echo '{{\"client\":{{\"dsn\":\"{dsn}\"}},\"replicas\":[{{\"name\":\"r1\",\"dsn\":\"{dsn}\",\"data\":\"{data}\",\"pid\":{pid}}}]}}' > \"$dir/cluster.json\"\n\
         trap 'exit 0' INT\necho ready\nwhile :; do sleep 0.05; done\n"
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[tokio::test]
async fn all_targets_are_measured_in_turn_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
    let options = Options {
        loads: vec![Load::TpcbSimple, Load::LatencyPrepared],
        targets: vec![Target::Direct, Target::Pgbouncer, Target::Pgpool, Target::Streaming, Target::Onecopy3],
        rounds: 1,
        duration: Duration::from_secs(1),
        scale: 1,
        workplace: Workplace {
            onecopy: stand_in(&server, folder.path()),
            results: Some(folder.path().join("results")),
            progress: false,
            ..Workplace::default()
        },
        ..Options::default()
    };
    let comparison = compare::run(&options).await.unwrap();
    println!("{comparison}");
    for (target, why) in &comparison.left_out {
        assert!(why.contains("is not installed"), "{target} was left out: {why}");
        eprintln!("{target} was left out: {why}");
    }
    let measured = options.targets.len() - comparison.left_out.len();
    assert_eq!(comparison.samples.len(), measured * 2);
    for sample in &comparison.samples {
        let run = sample.run.as_ref().unwrap_or_else(|| panic!("{sample:?}"));
        assert!(run.tps > 10.0 && run.latency.p50_ms > 0.0, "{sample:?}");
        let spent = |name: &str| -> f64 {
            sample.cpu.iter().filter(|usage| usage.name.starts_with(name)).map(|usage| usage.seconds).sum()
        };
        assert!(spent("client") > 0.0 && spent("server") > 0.0, "{sample:?}");
        if matches!(sample.target, Target::Pgbouncer | Target::Pgpool) {
            assert!(spent("proxy") > 0.0, "{sample:?}");
        }
        let servers = sample.cpu.iter().filter(|usage| usage.name.starts_with("server")).count();
        assert_eq!(servers, if matches!(sample.target, Target::Pgpool | Target::Streaming) { 3 } else { 1 });
    }
    let results: Vec<_> = std::fs::read_dir(folder.path().join("results")).unwrap().flatten().collect();
    let names = ["report.json", "report.md", "samples.csv"];
    assert!(names.iter().all(|name| results[0].path().join(name).is_file()));
}

#[tokio::test]
async fn what_is_missing_is_left_out_and_the_rest_goes_on() {
    let options = Options {
        loads: vec![Load::LatencySimple],
        targets: vec![Target::Pgbouncer, Target::Pgpool, Target::Direct, Target::Onecopy1],
        rounds: 1,
        duration: Duration::from_secs(1),
        scale: 1,
        pgbouncer: Some("/nowhere/pgbouncer".into()),
        pgpool: Some("/nowhere/pgpool".into()),
        workplace: Workplace { onecopy: "/nowhere/onecopy".into(), progress: false, ..Workplace::default() },
        ..Options::default()
    };
    let comparison = compare::run(&options).await.unwrap();
    let left_out: Vec<Target> = comparison.left_out.iter().map(|(target, _)| *target).collect();
    assert_eq!(left_out, [Target::Pgbouncer, Target::Pgpool, Target::Onecopy1]);
    assert_eq!(comparison.samples.len(), 1);
    let nothing = Options { targets: vec![Target::Pgpool], ..options };
    let refused = compare::run(&nothing).await.unwrap_err().to_string();
    assert!(refused.contains("nothing could be measured: pgpool: pgpool: is not installed"), "{refused}");
}
