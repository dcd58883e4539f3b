//! Servers of two major versions serve together (docs/replicas.md, "Another version").
//!
//! Where only one version is installed there is nothing to try: `ONECOPY_OTHER_POSTGRES` names the folder of another one's programs.

use super::clients::{block_on, connect, json, printed, rows};
use super::replicas::{Load, Running};
use super::wait_until;
use onecopy_cluster::{Binaries, Options, Server, Stop};
use std::path::PathBuf;
use tokio_postgres::Client;

/// The programs of another version than those with which clusters are made.
fn another_version() -> Option<Binaries> {
    let usual = Binaries::find().unwrap();
    let named =
        std::env::var_os("ONECOPY_OTHER_POSTGRES").map(|dir| Binaries::at(&PathBuf::from(dir)).unwrap());
    let found = named.or_else(|| Binaries::all().into_iter().find(|found| found.major != usual.major));
    if found.is_none() {
        eprintln!("skipped: no other version than PostgreSQL {} is installed", usual.version);
    }
    found
}

fn server_of(version: &Binaries) -> Server {
    Server::temporary(&Options { binaries: Some(version.dir.clone()), ..Options::replica() }).unwrap()
}

async fn refused(client: &Client, sql: &str) -> String {
    let error = client.batch_execute(sql).await.expect_err(sql);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    format!("{} {} ({})", error.code().code(), error.message(), error.hint().unwrap_or_default())
}

fn changes(running: &Running) -> String {
    json(running.dir(), &["status"])["status"]["changes"].as_str().unwrap().to_owned()
}

#[test]
fn servers_are_replaced_by_those_of_another_version_under_load_and_no_client_notices() {
    let Some(version) = another_version() else { return };
    block_on(async {
        let running = Running::start(2);
        let client = running.client().await;
        client.batch_execute("CREATE TABLE keyless (n int); INSERT INTO keyless VALUES (1); CREATE MATERIALIZED VIEW many AS SELECT count(*) FROM keyless").await.unwrap();
        let load = Load::start(&running).await;
        assert_eq!(changes(&running), "replayed");
        // What was begun before is replayed, so its commit must be part of the copy.
        let mut early = running.client().await;
        let transaction = early.transaction().await.unwrap();
        transaction.batch_execute("UPDATE keyless SET n = n + 1").await.unwrap();
        let new = server_of(&version);
        running.begin_to_add("r3", &new);
        wait_until("the copy waits for it", || {
            running.replica("r3")["detail"].as_str().unwrap().contains("before rows were shipped")
        });
        assert_eq!(changes(&running), "shipped");
        load.goes_on(20).await;
        transaction.batch_execute("UPDATE keyless SET n = n + 1").await.unwrap();
        transaction.commit().await.unwrap();
        wait_until("the new server serves", || running.replica("r3")["state"] == "up");
        load.goes_on(50).await;

        // Nobody may tell the servers apart by what they hold; what would make them differ is refused.
        client.batch_execute("INSERT INTO keyless VALUES (7)").await.unwrap();
        let says = refused(&client, "UPDATE keyless SET n = 0").await;
        assert!(says.starts_with("0A000") && says.contains("has no primary key"), "{says}");
        let says = refused(&client, "CREATE TABLE more (id int)").await;
        assert!(says.starts_with("0A000") && says.contains("replica list"), "{says}");
        client.batch_execute("TRUNCATE keyless; REFRESH MATERIALIZED VIEW many").await.unwrap();
        running.assert_identical();

        for name in ["r1", "r2"] {
            printed(running.dir(), &["replica", "remove", name]);
        }
        assert_eq!(changes(&running), "replayed");
        load.goes_on(20).await;
        client
            .batch_execute("CREATE TABLE more (id int); INSERT INTO more VALUES (1); UPDATE more SET id = 2")
            .await
            .unwrap();
        load.end().await;
        assert_eq!(rows(&connect(&new.dsn()).await, "SELECT id FROM more").await, "2");
        let said = rows(&running.client().await, "SHOW server_version_num").await;
        assert_eq!(said.parse::<u32>().unwrap() / 10_000, version.major);
    });
}

#[test]
fn restarted_onecopy_remembers_of_which_versions_servers_are_that_are_away() {
    let Some(version) = another_version() else { return };
    block_on(async {
        let mut running = Running::start(2);
        let client = running.client().await;
        client
            .batch_execute("CREATE TABLE t (id int PRIMARY KEY, at text); INSERT INTO t VALUES (1, '')")
            .await
            .unwrap();
        let mut new = server_of(&version);
        printed(
            running.dir(),
            &["replica", "add", "r3", "--server", &format!("host=127.0.0.1 port={}", new.port())],
        );
        new.stop(Stop::Fast).unwrap();
        running.start_again();
        assert_eq!(changes(&running), "shipped");
        let client = running.client().await;
        client.batch_execute("UPDATE t SET at = upper('away')").await.unwrap();
        let known = running.replica("r3")["version"].to_string();
        assert!(known.contains(&version.major.to_string()), "{known}");
        new.start().unwrap();
        wait_until("it is back", || running.replica("r3")["state"] == "up");
        wait_until("it has what it lacked", || running.replica("r3")["lag"] == 0);
        assert_eq!(rows(&connect(&new.dsn()).await, "SELECT at FROM t").await, "AWAY");
        running.assert_identical();
    });
}
