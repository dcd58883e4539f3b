//! Eight clients on three real servers behind onecopy, with everything they see checked for strict serializability, and
//! the servers compared afterwards. `make soak` runs it for SOAK_SECONDS.

#[path = "../running/mod.rs"]
mod running;

use onecopy_bench::torture::{
    ClassCount, CompareOptions, Comparison, Isolation, Options, Report, Workload, compare_until_identical,
    nondeterminism, run,
};
use onecopy_cluster::{Binaries, ClusterFile};
use running::{Up, folder};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use tokio_postgres::NoTls;

/// How long replicas may take to apply what clients have been told of.
const CATCH_UP: Duration = Duration::from_secs(60);

/// A local cluster with default settings.
struct Cluster {
    _up: Up,
    file: ClusterFile,
    _dir: TempDir,
}

impl Cluster {
    fn start() -> Cluster {
        let dir = folder();
        let up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        Cluster { _up: up, file, _dir: dir }
    }

    fn options(&self, seconds: u64, seed: u64) -> Options {
        let duration = Duration::from_secs(seconds);
        let options = Options::new(&self.file.client.dsn);
        Options { duration, seed, on_round: Some(|report| eprintln!("{}", summary(report))), ..options }
    }

    async fn compare(&self) -> Comparison {
        let replicas: Vec<String> = self.file.replicas.iter().map(|replica| replica.dsn.clone()).collect();
        compare_until_identical(&replicas, &CompareOptions::default(), CATCH_UP).await.unwrap()
    }

    /// Runs, compares, and says what happened.
    async fn judge(&self, report: Report) -> Report {
        println!("{report}");
        let comparison = self.compare().await;
        println!("{comparison}");
        assert!(
            report.passed(),
            "see above: an anomaly, a broken invariant or an error that must not happen"
        );
        assert!(comparison.identical(), "see above: the replicas differ");
        report
    }
}

fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test)
}

fn summary(report: &Report) -> String {
    let hot = read_then_update(report);
    format!(
        "{:.0} s: {} transactions, {:.2} % with 40001 or 40P01; of those that read a hot row and then update it {:.2} % of {}",
        report.seconds,
        report.total().attempts(),
        100.0 * report.total().conflict_rate(),
        100.0 * hot.conflict_rate(),
        hot.attempts(),
    )
}

/// Transactions that read a hot row and then update it, without saying so first.
fn read_then_update(report: &Report) -> ClassCount {
    report.classes.get("lost update, read then update").copied().unwrap_or_default()
}

/// Applications written for one server rarely try again: where their class is known, few of them have to. The first ones,
/// by which it becomes known, are few in comparison.
fn assert_few_conflicts(report: &Report) {
    let hot = read_then_update(report);
    assert!(hot.attempts() >= 200, "too few to judge: {hot:?}");
    assert!(hot.conflict_rate() <= 0.01, "{:.2} % of {hot:?}", 100.0 * hot.conflict_rate());
}

/// All workloads at once: interactive transactions of several statements, autocommit, strings of statements, pipelines.
#[test]
#[ignore = "takes SOAK_SECONDS; run by make soak"]
fn soak_of_all_workloads_finds_no_anomaly() {
    let variable = |name: &str, default: u64| {
        std::env::var(name)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
    };
    let (seconds, seed) = (variable("SOAK_SECONDS", 600), variable("SOAK_SEED", 1));
    block_on(async {
        let cluster = Cluster::start();
        let options = Options { keep_in: Some(std::env::temp_dir()), ..cluster.options(seconds, seed) };
        let report = cluster.judge(run(&options).await.unwrap()).await;
        println!("{}", summary(&report));
        assert_few_conflicts(&report);
    });
}

/// About 15 seconds of it, without the share of conflicts: it may hold the few by which a class becomes known.
#[test]
fn all_workloads_for_a_short_while_find_no_anomaly() {
    block_on(async {
        let cluster = Cluster::start();
        let options = Options { isolation: Isolation::Mixed, ..cluster.options(12, 2) };
        let report = cluster.judge(run(&options).await.unwrap()).await;
        assert!(report.total().committed > 500 && report.dependencies.read_write > 500, "{report}");
    });
}

/// About ten seconds. Eight clients and two rows: without foresight most transactions would fail.
#[test]
fn transactions_that_read_a_hot_row_and_then_update_it_rarely_fail_once_their_class_was_seen() {
    block_on(async {
        let cluster = Cluster::start();
        let workloads = vec![Workload::LostUpdate];
        // Those by which the class becomes known: 8 clients, each form of BEGIN.
        let first = Options { transactions: 200, workloads: workloads.clone(), ..cluster.options(60, 3) };
        run(&first).await.unwrap();
        let options = Options { transactions: 3_000, workloads, ..cluster.options(60, 4) };
        let report = cluster.judge(run(&options).await.unwrap()).await;
        assert_few_conflicts(&report);
    });
}

/// About 20 seconds. A forgotten snapshot on each server, and pgbench in all its modes: no error, nothing differs.
#[test]
fn pgbench_in_every_mode_beside_held_snapshots_meets_no_error_and_leaves_equal_replicas() {
    block_on(async {
        let cluster = Cluster::start();
        let program = Binaries::find().unwrap().program("pgbench");
        let pgbench = |args: &[&str]| {
            let output = Command::new(&program).args(args).arg(&cluster.file.client.dsn).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "pgbench {args:?}: {said}");
            String::from_utf8(output.stdout).unwrap()
        };
        pgbench(&["-i", "-q", "-s", "1"]);
        let mut held = Vec::new();
        for replica in &cluster.file.replicas {
            let (client, connection) = tokio_postgres::connect(&replica.dsn, NoTls).await.unwrap();
            tokio::spawn(connection);
            let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pgbench_history";
            client.batch_execute(begin).await.unwrap();
            held.push(client);
        }
        for mode in ["simple", "extended", "prepared"] {
            let said = pgbench(&["-n", "-c", "8", "-T", "3", "-M", mode]);
            // Before version 15 it does not count them: an error ends the client, and pgbench fails.
            let failed = said.lines().find(|line| line.starts_with("number of failed transactions"));
            assert!(failed.is_none_or(|failed| failed.contains(": 0 ")), "{mode}: {said}");
        }
        let comparison = cluster.compare().await;
        assert!(comparison.identical(), "{comparison}");
        for client in held {
            let row = client.query_one("SELECT count(*) FROM pgbench_history", &[]).await.unwrap();
            assert_eq!(row.get::<_, i64>(0), 0, "the snapshot is as old as it was");
        }
    });
}

/// About 15 seconds. Values that no two servers would draw alike, and what clients are told of them.
#[test]
fn what_servers_would_draw_by_themselves_is_the_same_everywhere_and_what_clients_were_told() {
    block_on(async {
        let cluster = Cluster::start();
        let duration = Duration::from_secs(10);
        let options = nondeterminism::Options {
            duration,
            seed: 6,
            ..nondeterminism::Options::new(&cluster.file.client.dsn)
        };
        let report = nondeterminism::run(&options).await.unwrap();
        println!("{report}");
        let comparison = cluster.compare().await;
        println!("{comparison}");
        assert!(report.passed(), "see above: a wrong value, or an error that must not happen");
        assert!(comparison.identical(), "see above: the replicas differ");
        let done: u64 = report.done.values().sum();
        assert!(done > 200 && report.connection_errors == 0, "{report}");
    });
}

/// About 15 seconds. Every two seconds one replica's sessions are all ended, each replica in turn.
#[test]
fn connections_of_replicas_are_killed_under_load_and_clients_see_nothing_but_40001() {
    block_on(async {
        let cluster = Cluster::start();
        let options = Options { isolation: Isolation::Mixed, ..cluster.options(14, 5) };
        let kills = async {
            let mut killed = Vec::new();
            // Who makes the tables does not try again.
            while !are_tables_made(&cluster.file.replicas[2].dsn).await {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            for turn in 0.. {
                tokio::time::sleep(Duration::from_secs(2)).await;
                killed.push(kill_sessions(&cluster.file.replicas[turn % 3].dsn).await);
                if killed.len() == 6 {
                    break;
                }
            }
            killed
        };
        let (report, killed) = futures_util::future::join(run(&options), kills).await;
        let report = cluster.judge(report.unwrap()).await;
        assert!(killed.iter().all(|sessions| *sessions > 0), "there were sessions to end: {killed:?}");
        let total = report.total();
        assert_eq!((total.connection_errors, total.unknown, total.failed), (0, 0, 0), "{report}");
        assert!(total.committed > 500, "{report}");
    });
}

/// Whether a server has all that the workloads use: their last index.
async fn are_tables_made(dsn: &str) -> bool {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.query_one("SELECT to_regclass('torture_row_grp') IS NOT NULL", &[]).await.unwrap().get(0)
}

/// Ends all sessions of clients of a server, and so onecopy's; how many.
async fn kill_sessions(dsn: &str) -> i64 {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.unwrap();
    tokio::spawn(connection);
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    client.query_one(kill, &[]).await.unwrap().get(0)
}
