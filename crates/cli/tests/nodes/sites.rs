//! Sites as processes, each before a server of its own (docs/protocols/wide_area.md).

use crate::rig::{Nodes, block_on, code, rows};
use tokio_postgres::error::SqlState;

/// The same at each server, before any site starts.
async fn define(nodes: &Nodes, sql: &str) {
    for server in nodes.servers.servers() {
        let client = crate::rig::connect(&server.dsn()).await.unwrap();
        client.batch_execute(sql).await.unwrap();
    }
}

#[test]
fn clients_of_every_site_write_and_all_sites_hold_the_same() {
    block_on(async {
        let mut nodes = Nodes::sites(3, false, &[]);
        for site in 0..3 {
            nodes.stop(site);
        }
        define(&nodes, "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 10)").await;
        nodes.start_all();
        let clients = [nodes.client(0).await, nodes.client(1).await, nodes.client(2).await];
        for (number, client) in (2_i32..).zip(&clients) {
            client.execute("INSERT INTO t VALUES ($1, $2)", &[&number, &0_i32]).await.unwrap();
            client
                .batch_execute(
                    "BEGIN; UPDATE t SET v = v + 1 WHERE id = 1; SELECT v FROM t WHERE id = 1; COMMIT",
                )
                .await
                .unwrap();
        }
        assert_eq!(nodes.everywhere("SELECT * FROM t ORDER BY id").await, "1 13, 2 0, 3 0, 4 0");
        assert_eq!(rows(&clients[0], "SELECT v FROM t WHERE id = 1").await, "13");
        let duplicate = clients[1].execute("INSERT INTO t VALUES (1, 1)", &[]).await;
        assert_eq!(code(duplicate), SqlState::UNIQUE_VIOLATION);
    });
}
