//! Against one PostgreSQL: at SERIALIZABLE it is one copy, at READ COMMITTED it is caught.

use std::time::Duration;

use onecopy_cluster::{Options as ServerOptions, Server};
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
    let options =
        Options { isolation: Isolation::ReadCommitted, workloads, go_on: true, ..short(&server) };
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

#[tokio::test]
async fn target_that_is_not_there_is_an_error() {
    let port = onecopy_cluster::free_port().unwrap();
    let options = Options {
        duration: Duration::from_secs(1),
        ..Options::new(format!("host=127.0.0.1 port={port} user=postgres connect_timeout=1"))
    };
    assert!(matches!(run(&options).await, Err(Error::Connect { .. })));
}
