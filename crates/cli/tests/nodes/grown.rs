//! Replicas come and go while several nodes serve: whoever leads next knows of it.

use super::rig::{Nodes, block_on, connect, rows};
use onecopy_cluster::{Options, Server};
use std::time::{Duration, Instant};

fn names(nodes: &Nodes, node: usize) -> Vec<String> {
    let listed = said(nodes.ask(node, &["replica", "list", "--json"]));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let replicas = listed.as_array().unwrap().iter();
    replicas
        .map(|replica| {
            format!("{} {}", replica["name"].as_str().unwrap(), replica["state"].as_str().unwrap())
        })
        .collect()
}

/// Long enough for any machine.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(60), "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn said(output: std::process::Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn next_leader_knows_which_replicas_were_added_and_removed() {
    block_on(async {
        let mut nodes = Nodes::start(3, 2);
        let leader = nodes.leader();
        let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
        let client = nodes.client(others[0]).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
        let third = Server::temporary(&Options::replica()).unwrap();
        let place = format!("host=127.0.0.1 port={}", third.port());
        // Any node is asked.
        said(nodes.ask(others[0], &["replica", "add", "r3", "--server", &place]));
        client.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
        nodes.kill(leader);
        client.batch_execute("INSERT INTO t VALUES (3)").await.unwrap();
        let is_up =
            |nodes: &Nodes, node: usize, replica: &str| names(nodes, node).contains(&format!("{replica} up"));
        until("the third replica serves", async || is_up(&nodes, others[1], "r3")).await;
        said(nodes.ask(others[1], &["replica", "remove", "r1"]));
        nodes.spawn(leader);
        drop(client);
        nodes.kill_all();
        nodes.start_all();
        let client = nodes.client(leader).await;
        client.batch_execute("INSERT INTO t VALUES (4)").await.unwrap();
        until("both serve", async || names(&nodes, leader) == ["r2 up", "r3 up"]).await;
        let copy = connect(&third.dsn()).await.unwrap();
        until("it has all rows", async || rows(&copy, "SELECT count(*) FROM t").await == "4").await;
    });
}

#[test]
fn nodes_that_join_one_that_was_alone_know_which_replicas_it_had() {
    block_on(async {
        let mut nodes = Nodes::alone(2);
        let third = Server::temporary(&Options::replica()).unwrap();
        let place = format!("host=127.0.0.1 port={}", third.port());
        said(nodes.ask(0, &["replica", "add", "r3", "--server", &place]));
        said(nodes.ask(0, &["replica", "remove", "r1"]));
        nodes.share();
        for id in ["2", "3"] {
            nodes.join();
            said(nodes.ask(0, &["node", "add", id]));
        }
        nodes.kill(0);
        until("the next leader serves", async || {
            nodes.client(1).await.batch_execute("SELECT 1").await.is_ok()
        })
        .await;
        until("by both replicas", async || names(&nodes, 1) == ["r2 up", "r3 up"]).await;
    });
}

/// A node says itself that it never counts, since the others may not know. It is a way to the leader like all others.
#[test]
fn node_that_joins_and_does_not_count_takes_clients_and_nothing_else() {
    block_on(async {
        let mut nodes = Nodes::start(3, 1);
        let leads = nodes.leader();
        let fourth = nodes.join_as(false);
        let listed = said(nodes.ask(leads, &["node", "add", "4"]));
        assert!(listed.contains("non-voting"), "{listed}");
        let client = nodes.client(fourth).await;
        client.batch_execute("CREATE TABLE t (v int); INSERT INTO t VALUES (1)").await.unwrap();
        // Of four that count three would have to run.
        let others: Vec<usize> = (0..3).filter(|node| *node != leads).collect();
        nodes.kill(fourth);
        nodes.kill(others[0]);
        nodes.client(others[1]).await.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
        nodes.spawn(fourth);
        // The next leader does not have it count either.
        nodes.kill(leads);
        nodes.spawn(others[0]);
        let next = nodes.leader();
        assert_ne!(next, fourth);
        let still = async || said(nodes.ask(next, &["node", "list"])).contains("non-voting");
        until("the next leader knows of it", still).await;
        assert_eq!(rows(&nodes.client(fourth).await, "SELECT count(*) FROM t").await, "2");
        assert!(said(nodes.ask(next, &["node", "list"])).contains("non-voting"));
    });
}

/// By its own configuration it is the only one that counts, so it leads itself. It may not touch what follows another log.
#[test]
fn node_that_does_not_agree_about_who_counts_disturbs_nobody() {
    block_on(async {
        let mut nodes = Nodes::make(3, 1, false, "");
        nodes.configure(2, |config| {
            let others = config.replace("voting = true", "voting = false");
            let own = others.rfind("voting = false").unwrap();
            format!("{}voting = true{}", &others[..own], &others[own + "voting = false".len()..])
        });
        nodes.lose_log(2);
        said(nodes.command(2, &["node", "init"]).output().unwrap());
        // Those that agree have taken the replica before it comes; one that follows no log yet follows whoever comes first.
        nodes.spawn(0);
        nodes.spawn(1);
        let leads = nodes.leader();
        nodes.client(0).await.batch_execute("CREATE TABLE t (v int)").await.unwrap();
        nodes.spawn(2);
        for value in 0..3 {
            // It leads in a later epoch each time.
            let has_said = |what: &str| nodes.messages(2).matches(what).count() > value;
            until("it leads itself", async || has_said("this node was elected")).await;
            until("it is told why", async || has_said("it follows log")).await;
            nodes.kill(2);
            nodes.spawn(2);
            nodes
                .client(leads)
                .await
                .batch_execute(&format!("INSERT INTO t VALUES ({value})"))
                .await
                .unwrap();
        }
        for node in [leads, 2] {
            assert!(nodes.messages(node).contains("another node has another log"), "node {node}");
        }
        assert_eq!(rows(&nodes.client(1 - leads).await, "SELECT count(*) FROM t").await, "3");
    });
}
