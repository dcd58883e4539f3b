//! Against one PostgreSQL: at SERIALIZABLE it is one copy, at READ COMMITTED it is caught.

use std::time::Duration;

use onecopy_cluster::{Auth, Options as ServerOptions, Server, Stop};
use onecopy_sim::check::Level;

use super::*;

/// A server whose commits do not wait for the disk: the tests are about order, not durability.
fn server() -> Server {
    let options = ServerOptions::default().with("fsync", "off").with("synchronous_commit", "off");
    Server::temporary(&options).expect("a temporary PostgreSQL server")
}

fn short(server: &Server) -> Options {
    Options { transactions: 4_000, round: 2_000, ..Options::new(server.dsn()) }
}

#[tokio::test]
async fn one_server_at_serializable_is_one_copy() {
    let server = server();
    let options = Options { isolation: Isolation::Serializable, ..short(&server) };
    let report = run(&options).await.unwrap();
    println!("{report}");
    assert!(report.passed(), "{report}");
    let total = report.total();
    assert!(total.committed > 1_000 && report.dependencies.read_write > 1_000, "{report}");
}

#[tokio::test]
async fn one_server_at_read_committed_loses_updates_and_skews_writes() {
    let server = server();
    let workloads = vec![Workload::LostUpdate, Workload::WriteSkew, Workload::Predicate];
    let options = Options { isolation: Isolation::ReadCommitted, workloads, go_on: true, ..short(&server) };
    let report = run(&options).await.unwrap();
    println!("{report}");
    for anomaly in ["lost update", "write skew (G2-item)"] {
        assert!(report.anomalies.contains_key(anomaly), "{anomaly} not found\n{report}");
    }
    assert!(report.broken.contains_key("a doctor is on call"), "{report}");
}

#[tokio::test]
async fn one_server_at_repeatable_read_keeps_snapshots_but_skews_writes() {
    let server = server();
    let options = Options { isolation: Isolation::RepeatableRead, go_on: true, ..short(&server) };
    let report = run(&options).await.unwrap();
    assert!(report.anomalies.contains_key("write skew (G2-item)"), "{report}");
    assert!(!report.anomalies.contains_key("lost update"), "{report}");
    let promise = check::Options::from(Level::SnapshotIsolation).in_real_time();
    let options = Options { isolation: Isolation::RepeatableRead, promise, ..short(&server) };
    let report = run(&options).await.unwrap();
    assert!(report.anomalies.is_empty(), "{report}");
}

/// What is lost when a server crashes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loses {
    Nothing,
    /// Commits that it has answered, of which nothing has left its memory.
    Commits,
}

/// How much log a server holds in its memory when it crashes and is to lose it: hundreds of commits.
const LOST_BYTES_MIN: i64 = 64 * 1024;

/// Crashes a server in the middle of a run and starts it again; what was seen.
async fn run_over_a_crash(settings: &[(&str, &str)], loses: Loses) -> Report {
    let with = |options: ServerOptions, (name, value): &(&str, &str)| options.with(name, value);
    let mut server = Server::temporary(&settings.iter().fold(ServerOptions::default(), with)).unwrap();
    let workloads = vec![Workload::ListAppend, Workload::Transfer, Workload::ReadYourWritesAcrossConnections];
    let options = Options {
        isolation: Isolation::Serializable,
        workloads,
        duration: Duration::from_secs(8),
        round: 50_000,
        seed: 1,
        ..Options::new(server.dsn())
    };
    let watcher = Target::parse(&server.dsn()).unwrap().connect().await.unwrap();
    let crash = async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        if loses == Loses::Commits {
            hold_log_in_memory(&watcher).await;
        }
        let crash = move || {
            server.stop(Stop::Immediate).unwrap();
            server.start().unwrap();
            server
        };
        tokio::task::spawn_blocking(crash).await.unwrap()
    };
    let (report, server) = tokio::join!(run(&options), crash);
    drop(server);
    let report = report.unwrap();
    println!("{report}");
    assert!(report.total().connection_errors + report.total().unknown > 0, "{report}");
    assert!(report.faults.is_empty(), "{report}");
    report
}

/// Ends the process that writes the log of asynchronous commits once enough of it is waiting: the server ends every
/// session, and what it has not written is gone.
async fn hold_log_in_memory(watcher: &tokio_postgres::Client) {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    let pid: i32 = watcher.query_one(sql, &[]).await.unwrap().get(0);
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    signal(rustix::process::Signal::STOP);
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), pg_current_wal_lsn())::bigint";
    while watcher.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) < LOST_BYTES_MIN {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Continued, it would write what must be lost.
    signal(rustix::process::Signal::KILL);
}

#[tokio::test]
async fn server_crashes_and_keeps_every_commit_that_it_answered() {
    let report = run_over_a_crash(&[], Loses::Nothing).await;
    assert!(report.passed(), "{report}");
}

#[tokio::test]
async fn server_crashes_and_loses_commits_that_it_answered() {
    // Nobody else writes the log: it has room, and no page is written that would need it.
    let settings = [
        ("synchronous_commit", "off"),
        ("wal_buffers", "64MB"),
        ("bgwriter_lru_maxpages", "0"),
        ("autovacuum", "off"),
    ];
    let report = run_over_a_crash(&settings, Loses::Commits).await;
    assert!(!report.anomalies.is_empty(), "{report}");
}

/// All kinds of torture against any target, then the comparison of the servers behind it:
/// `TORTURE_DSN="host=... port=..." TORTURE_REPLICAS="host=...;host=..." TORTURE_SECONDS=600 \
///  cargo test --release -p onecopy-bench -- --ignored --nocapture given_target`
///
/// `TORTURE_ISOLATION` is that of `Isolation` in lower case with underscores, `TORTURE_SEED` a number,
/// `TORTURE_ONLY` one of `transactions`, `nondeterminism` and `bad_input`.
#[tokio::test]
#[ignore = "needs a target of its own"]
async fn given_target_is_one_copy() {
    let variable = |name: &str| std::env::var(name).ok();
    let dsn = variable("TORTURE_DSN").expect("TORTURE_DSN names the target");
    let number = |name: &str, default| variable(name).map_or(default, |text| text.parse().expect("a number"));
    let (seconds, seed) = (number("TORTURE_SECONDS", 60), number("TORTURE_SEED", 1));
    let isolation = variable("TORTURE_ISOLATION").map_or(Isolation::Default, |name| {
        serde_json::from_value(serde_json::Value::String(name)).expect("an isolation level")
    });
    let only = variable("TORTURE_ONLY");
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    let mut passed = true;
    if wanted("transactions") {
        let options = Options {
            duration: Duration::from_secs(seconds),
            seed,
            isolation,
            keep_in: Some(std::env::temp_dir()),
            on_round: Some(|report| println!("{report}")),
            ..Options::new(&dsn)
        };
        let report = run(&options).await.unwrap();
        passed &= report.passed();
    }
    if wanted("nondeterminism") {
        let duration = Duration::from_secs(seconds.min(30));
        let options = nondeterminism::Options { duration, seed, ..nondeterminism::Options::new(&dsn) };
        let report = nondeterminism::run(&options).await.unwrap();
        println!("{report}");
        passed &= report.passed();
    }
    if wanted("bad_input") {
        let report = bad_input::run(&bad_input::Options::new(&dsn)).await.unwrap();
        println!("{report}");
        passed &= report.passed();
    }
    if let Some(replicas) = variable("TORTURE_REPLICAS") {
        let replicas: Vec<String> = replicas.split(';').map(str::to_owned).collect();
        let options = CompareOptions::default();
        let comparison = compare_until_identical(&replicas, &options, Duration::from_secs(10)).await.unwrap();
        println!("{comparison}");
        passed &= comparison.identical();
    }
    assert!(passed);
}

#[tokio::test]
async fn target_that_is_not_there_is_an_error() {
    let port = onecopy_cluster::free_port().unwrap();
    let options = Options {
        duration: Duration::from_secs(1),
        ..Options::new(format!("host=127.0.0.1 port={port} user=postgres connect_timeout=1"))
    };
    assert!(matches!(run(&options).await, Err(Error::Connect { .. })));
}

#[tokio::test]
async fn one_server_gives_clients_what_it_stores() {
    let server = server();
    let options = nondeterminism::Options { actions: 2_000, ..nondeterminism::Options::new(server.dsn()) };
    let report = nondeterminism::run(&options).await.unwrap();
    println!("{report}");
    assert!(report.passed(), "{report}");
    assert!(report.refused.is_empty(), "{report}");
    assert_eq!(report.done.len(), 15, "{report}");
    for property in [
        "the row returned is the row stored",
        "the row returned is stored at the end",
        "what is handed out is handed out once",
        "numbers ascend within a session",
        "currval and lastval are this session's",
        "now() is one moment in a transaction",
        "a row is taken once",
    ] {
        assert!(report.held.get(property).is_some_and(|count| *count > 30), "{property}\n{report}");
    }
}

/// What a PostgreSQL server holds for clients other than the one that asks.
async fn held_by(watcher: &tokio_postgres::Client) -> std::result::Result<bad_input::Held, String> {
    let sql = "SELECT count(*), count(*) FILTER (WHERE state <> 'idle') FROM pg_stat_activity \
               WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let row = watcher.query_one(sql, &[]).await.map_err(|error| error.to_string())?;
    let count = |column| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
    Ok(bad_input::Held { sessions: count(0), lanes: count(1) })
}

async fn stands_bad_clients(server: &Server) -> bad_input::Report {
    let watcher = Target::parse(&server.dsn()).unwrap().connect().await.unwrap();
    let options = bad_input::Options::new(server.dsn());
    let report = bad_input::run_with(&options, async || held_by(&watcher).await).await.unwrap();
    println!("{report}");
    assert!(report.passed(), "{report}");
    report
}

#[tokio::test]
async fn one_server_stands_bad_clients() {
    stands_bad_clients(&server()).await;
}

#[tokio::test]
async fn one_server_that_asks_for_passwords_stands_bad_clients() {
    let options = ServerOptions { auth: Auth::Scram { password: None }, ..ServerOptions::default() };
    let report = stands_bad_clients(&Server::temporary(&options).unwrap()).await;
    let tried = |part: &str| {
        let named = report.cases.iter().filter(|case| case.name.contains(part));
        named.filter(|case| matches!(case.verdict, bad_input::Verdict::Right(_))).count()
    };
    assert!(tried("password") >= 4 && tried("SCRAM") == 1, "{report}");
}

#[tokio::test]
async fn leak_is_noticed() {
    let server = server();
    let options = bad_input::Options {
        patience: Duration::from_secs(1),
        only: Some("HTTP".to_owned()),
        ..bad_input::Options::new(server.dsn())
    };
    let asked = AtomicU64::new(0);
    let leaking = async || Ok(bad_input::Held { sessions: 1, lanes: asked.fetch_add(1, Ordering::Relaxed) });
    let report = bad_input::run_with(&options, leaking).await.unwrap();
    assert!(!report.passed(), "{report}");
}

#[tokio::test]
async fn rows_that_change_behind_the_clients_backs_are_noticed() {
    let server = server();
    let options = nondeterminism::Options { actions: 1_500, ..nondeterminism::Options::new(server.dsn()) };
    let saboteur = Target::parse(&server.dsn()).unwrap().connect().await.unwrap();
    let sabotage = async {
        for _ in 0..400 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            // Fails until the tables are there.
            let sql = "UPDATE nd_row SET rnd = random() WHERE id = (SELECT max(id) FROM nd_row); SELECT setval('nd_seq', 1)";
            let _ = saboteur.batch_execute(sql).await;
        }
        std::future::pending::<()>().await;
    };
    let report = tokio::select! {
        report = nondeterminism::run(&options) => report.unwrap(),
        () = sabotage => unreachable!("sabotage never ends"),
    };
    for property in [
        "the row returned is the row stored",
        "the row returned is stored at the end",
        "what is handed out is handed out once",
        "numbers ascend within a session",
    ] {
        assert!(report.wrong.contains_key(property), "{property}\n{report}");
    }
}

#[tokio::test]
async fn differences_between_servers_are_listed() {
    let servers = [server(), server()];
    let dsns: Vec<String> = servers.iter().map(Server::dsn).collect();
    let schema = "CREATE TABLE t (id int PRIMARY KEY, x text); CREATE TABLE bag (x double precision); \
                  CREATE SEQUENCE s; CREATE VIEW v AS SELECT x FROM t; \
                  CREATE TABLE parts (id int) PARTITION BY RANGE (id); \
                  CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10); \
                  CREATE SCHEMA onecopy; CREATE TABLE onecopy.progress (csn bigint); \
                  INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 1000) i; \
                  INSERT INTO bag VALUES (1), (1), (0.1); INSERT INTO parts VALUES (1)";
    let mut clients = Vec::new();
    for dsn in &dsns {
        let client = Target::parse(dsn).unwrap().connect().await.unwrap();
        client.batch_execute(schema).await.unwrap();
        clients.push(client);
    }
    // Order and physical place of rows are no difference, nor is onecopy's own bookkeeping.
    clients[1].batch_execute("UPDATE t SET x = x; INSERT INTO onecopy.progress VALUES (1)").await.unwrap();
    let comparison = compare_replicas(&dsns).await.unwrap();
    assert!(comparison.identical(), "{comparison}");
    assert_eq!(comparison.tables.len(), 3, "{comparison:?}");

    let changes = "UPDATE t SET x = 'another' WHERE id = 500; INSERT INTO bag VALUES (0.1); SELECT nextval('s'); \
                   ALTER TABLE t ALTER x SET DEFAULT 'd'; CREATE INDEX i ON t (x); CREATE TABLE more (id int)";
    clients[1].batch_execute(changes).await.unwrap();
    let comparison = compare_replicas(&dsns).await.unwrap();
    println!("{comparison}");
    let found: Vec<String> = comparison
        .differences
        .iter()
        .map(|difference| match difference {
            Difference::Definition { what, .. } => what.clone(),
            Difference::Rows { table, examples, .. } => {
                let rows: Vec<String> =
                    examples.iter().map(|(_, count, row)| format!("{count} x {row}")).collect();
                format!("{table}: {}", rows.join(", "))
            }
            Difference::Sequence { sequence, .. } => sequence.clone(),
        })
        .collect();
    let mut expected = [
        "column public.more.id",
        "column public.t.x",
        "index public.i",
        "table public.more",
        "public.bag: 1 x (0.1)",
        "public.t: 1 x (500,another), 1 x (500,\"row 500\")",
        "public.s",
    ];
    let mut sorted = found.clone();
    sorted.sort_unstable();
    expected.sort_unstable();
    let without_order = |found: &[String]| {
        found
            .iter()
            .map(|one| {
                one.replace(
                    "1 x (500,\"row 500\"), 1 x (500,another)",
                    "1 x (500,another), 1 x (500,\"row 500\")",
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(without_order(&sorted), expected);
    let short = Duration::from_millis(300);
    assert!(!compare_until_identical(&dsns, &CompareOptions::default(), short).await.unwrap().identical());
}
