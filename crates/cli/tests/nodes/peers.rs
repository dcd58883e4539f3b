//! Peers as processes, each before a server of its own (docs/protocols/invalidation.md, *On real servers*).

use crate::rig::{Nodes, block_on, code, connect, rows};
use crate::sites::{LISTS, Load, lists, sites, with_lists};
use onecopy_sim::check::{self, History, Level};
use std::time::Duration;
use tokio_postgres::error::SqlState;

async fn peers(protocol: &str) -> Nodes {
    with_lists(3, false, &[("protocol", protocol)]).await
}

/// Peers agree on tables: each list has one of its own.
fn table(list: u64) -> String {
    format!("lists_{list}")
}

/// What clients of all peers see is what one copy shows that runs one transaction at a time, in real time.
#[test]
fn what_clients_of_all_peers_see_is_strictly_serializable() {
    block_on(async {
        let tables: String = (1..=LISTS).map(|list| lists(&table(list), list..=list)).collect();
        for protocol in ["invalidation", "lock_distributed", "lock_central"] {
            let nodes = sites(3, false, &[("protocol", protocol)], &tables).await;
            let load = Load::start_on(&nodes, 3, table);
            tokio::time::sleep(Duration::from_secs(2)).await;
            let seen = load.end().await;
            let of_tables: Vec<String> =
                (1..=LISTS).map(|list| format!("SELECT * FROM {}", table(list))).collect();
            nodes.everywhere(&of_tables.join(" UNION ALL ")).await;
            let count = seen.len();
            println!("{protocol}: {count} transactions");
            assert!(count > 50, "{protocol}: {count}");
            let report = check::check(&History::new(seen).unwrap(), Level::StrictSerializable);
            assert!(report.violations.is_empty(), "{protocol}: {report:?}");
        }
    });
}

/// Nobody asks anybody, so peers differ, or clients have seen what no one copy shows.
#[test]
fn weak_keeps_no_promise() {
    block_on(async {
        let nodes = peers("weak").await;
        let load = Load::start(&nodes, 3);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let seen = load.end().await;
        let report = check::check(&History::new(seen).unwrap(), Level::Serializable);
        assert!(!report.violations.is_empty(), "an anomaly was to be expected");
    });
}

/// Of divided tables each peer has its own rows; all others are one.
#[test]
fn divided_tables_are_each_peers_own() {
    block_on(async {
        let chosen = [("protocol", "partitioned"), ("peers.divided", "[\"public.lists\"]")];
        let tables = lists("lists", 1..=LISTS) + "CREATE TABLE other (v int); INSERT INTO other VALUES (0)";
        let nodes = sites(3, false, &chosen, &tables).await;
        for peer in 0..3 {
            let client = nodes.client(peer).await;
            client.batch_execute(&format!("UPDATE lists SET items = ' {peer}' WHERE id = 1")).await.unwrap();
        }
        for peer in 0..3 {
            let found = rows(&nodes.client(peer).await, "SELECT items FROM lists WHERE id = 1").await;
            assert_eq!(found, format!(" {peer}"));
        }

        // Nobody is asked about them, and yet no update of a peer's clients is lost.
        let adding = (0..8).map(|_| async {
            let client = nodes.client(0).await;
            for _ in 0..10 {
                let add = "SELECT items AS found FROM lists WHERE id = 2; \
                     UPDATE lists SET items = :found || ' 1' WHERE id = 2";
                client.batch_execute(add).await.unwrap();
            }
        });
        futures_util::future::join_all(adding).await;
        let counted = "SELECT length(items) FROM lists WHERE id = 2";
        assert_eq!(rows(&nodes.client(0).await, counted).await, "160");
        // What is not divided is everybody's, and has its own transactions.
        let both = "UPDATE lists SET items = '' WHERE id = 3; UPDATE other SET v = 1";
        let client = nodes.client(1).await;
        assert_eq!(code(client.batch_execute(both).await), SqlState::FEATURE_NOT_SUPPORTED);
        client.batch_execute("UPDATE other SET v = 1").await.unwrap();
        assert_eq!(nodes.everywhere("SELECT v FROM other").await, "1");
    });
}

/// Where servers define something otherwise, what is executed at all might do otherwise.
#[test]
fn peers_whose_databases_have_other_definitions_do_not_serve() {
    block_on(async {
        let mut nodes = Nodes::make_sites(3, false, &[("protocol", "invalidation")]);
        for (at, server) in nodes.servers.servers().iter().enumerate() {
            let default = if at == 2 { 1 } else { 0 };
            let sql = format!("CREATE TABLE t (id int PRIMARY KEY, v int DEFAULT {default})");
            connect(&server.dsn()).await.unwrap().batch_execute(&sql).await.unwrap();
        }
        for peer in [0, 1, 2] {
            nodes.spawn(peer);
        }
        for peer in [0, 1, 2] {
            let said = nodes.ends(peer);
            assert!(said.contains("has other definitions"), "{said}");
        }
        let unlogged = "CREATE UNLOGGED TABLE u (id int PRIMARY KEY)";
        let server = nodes.servers.servers()[0].dsn();
        connect(&server).await.unwrap().batch_execute(unlogged).await.unwrap();
        let said = nodes.refusal(0);
        assert!(said.contains("unlogged"), "{said}");
    });
}

/// What peers have agreed on is in their memory: a peer that is started again is found out, and none goes on.
#[test]
fn peers_end_when_one_of_them_is_started_again() {
    block_on(async {
        let mut nodes = peers("invalidation").await;
        let client = nodes.client(0).await;
        client.batch_execute("UPDATE lists SET items = ' 1' WHERE id = 1").await.unwrap();
        assert_eq!(nodes.everywhere("SELECT items FROM lists WHERE id = 1").await, " 1");
        let refused = client.batch_execute("TRUNCATE lists").await;
        assert_eq!(code(refused), SqlState::FEATURE_NOT_SUPPORTED);
        assert_eq!(code(client.batch_execute("SELEKT 1").await), SqlState::SYNTAX_ERROR);
        let refused = client.batch_execute("SET onecopy.staleness_max = 0").await;
        assert_eq!(code(refused), SqlState::FEATURE_NOT_SUPPORTED);
        nodes.kill(2);
        // Whoever reads what is valid asks nobody.
        assert_eq!(rows(&client, "SELECT items FROM lists WHERE id = 1").await, " 1");
        let write = client.batch_execute("UPDATE lists SET items = ' 2' WHERE id = 1");
        assert!(tokio::time::timeout(Duration::from_secs(2), write).await.is_err(), "a peer does not answer");
        nodes.spawn(2);
        for peer in [0, 1, 2] {
            let said = nodes.ends(peer);
            assert!(said.contains("was started again"), "{said}");
        }
        assert!(connect(&nodes.dsn(0)).await.is_err());
    });
}
