//! Several nodes as processes: they serve as one, and any of them may be lost.

mod certified;
mod doubt;
mod faults;
mod grown;
mod parted;
mod peers;
mod relay;
mod rig;
mod sites;
mod soak;

#[path = "../running/mod.rs"]
mod running;

use rig::{Nodes, block_on, code, rows};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;

#[test]
fn clients_of_every_node_see_one_database_and_go_on_when_the_leader_is_killed() {
    block_on(async {
        let mut nodes = Nodes::start(3, 2);
        let clients = [nodes.client(0).await, nodes.client(1).await, nodes.client(2).await];
        clients[0].batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int)").await.unwrap();
        clients[1].execute("INSERT INTO t VALUES ($1, $2)", &[&1_i32, &10_i32]).await.unwrap();
        for client in &clients {
            assert_eq!(rows(client, "SELECT v FROM t").await, "10");
        }
        let leader = nodes.leader();
        let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
        let [reads, writes] = [&clients[others[0]], &clients[others[1]]];

        // Sessions with a setting, a prepared statement, and an open transaction that has read or written.
        let prepared = writes.prepare("UPDATE t SET v = v + $1 WHERE id = 1").await.unwrap();
        writes.execute(&prepared, &[&1_i32]).await.unwrap();
        reads.batch_execute("SET application_name = 'kept'; BEGIN; SELECT v FROM t").await.unwrap();
        // It would change what the other has read, and does not commit yet.
        writes.batch_execute("BEGIN").await.unwrap();
        writes.execute(&prepared, &[&1_i32]).await.unwrap();

        nodes.kill(leader);
        assert_eq!(rows(reads, "SELECT v, current_setting('application_name') FROM t").await, "11 kept");
        reads.batch_execute("COMMIT").await.unwrap();
        // It was done again, and nobody had changed what it had read.
        writes.batch_execute("COMMIT").await.unwrap();
        assert_eq!(rows(reads, "SELECT v FROM t").await, "12");
        writes.execute(&prepared, &[&1_i32]).await.unwrap();

        nodes.spawn(leader);
        let again = nodes.client(leader).await;
        assert_eq!(rows(&again, "SELECT v FROM t").await, "13");
        assert_eq!(nodes.everywhere("SELECT * FROM t").await, "1 13");
    });
}

#[test]
fn transaction_whose_reads_have_changed_since_is_told_and_its_session_goes_on() {
    block_on(async {
        let mut nodes = Nodes::start(5, 2);
        let leader = nodes.leader();
        let others: Vec<usize> = (0..5).filter(|node| *node != leader).collect();
        let first = nodes.client(others[0]).await;
        first
            .batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 10)")
            .await
            .unwrap();
        first.batch_execute("BEGIN; UPDATE t SET v = v + 1 WHERE id = 1").await.unwrap();
        assert_eq!(rows(&first, "SELECT v FROM t").await, "11");
        // Its node learns of the leader's end only when another one has what it had locked.
        nodes.signal(others[0], "-STOP");
        nodes.kill(leader);
        let second = nodes.client(others[1]).await;
        second.batch_execute("UPDATE t SET v = 20 WHERE id = 1").await.unwrap();
        nodes.signal(others[0], "-CONT");
        let update = "UPDATE t SET v = v + 1 WHERE id = 1";
        assert_eq!(code(first.batch_execute(update).await), SqlState::T_R_SERIALIZATION_FAILURE);
        assert_eq!(code(first.batch_execute("SELECT 1").await), SqlState::IN_FAILED_SQL_TRANSACTION);
        first.batch_execute("ROLLBACK").await.unwrap();
        first.batch_execute(update).await.unwrap();
        assert_eq!(rows(&second, "SELECT v FROM t").await, "21");
        assert_eq!(nodes.everywhere("SELECT * FROM t").await, "1 21");
    });
}

/// Its client knows that it failed. Done again at the next leader it would succeed.
#[test]
fn transaction_that_failed_with_its_commit_behind_it_does_not_happen_when_the_leader_is_killed() {
    block_on(async {
        let mut nodes = Nodes::start(3, 2);
        let leader = nodes.leader();
        let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
        let (first, second) = (nodes.client(others[0]).await, nodes.client(others[1]).await);
        first.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
        let whole = "BEGIN; INSERT INTO t VALUES (1); COMMIT";
        assert_eq!(code(first.batch_execute(whole).await), SqlState::UNIQUE_VIOLATION);
        second.batch_execute("DELETE FROM t").await.unwrap();
        nodes.kill(leader);
        assert_eq!(code(first.batch_execute("SELECT 1").await), SqlState::IN_FAILED_SQL_TRANSACTION);
        first.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(rows(&first, "SELECT count(*) FROM t").await, "0");
        nodes.spawn(leader);
        assert_eq!(nodes.everywhere("SELECT count(*) FROM t").await, "0");
    });
}

#[test]
fn deposed_leader_that_does_not_know_answers_nobody_with_what_is_old() {
    block_on(async {
        let nodes = Nodes::start(3, 2);
        let leader = nodes.leader();
        let other = (0..3).find(|node| *node != leader).unwrap();
        let (stale, fresh) = (nodes.client(leader).await, nodes.client(other).await);
        stale
            .batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0)")
            .await
            .unwrap();
        assert_eq!(rows(&stale, "SELECT v FROM t").await, "0");
        nodes.signal(leader, "-STOP");
        fresh.batch_execute("UPDATE t SET v = 1").await.unwrap();
        // It is asked before it can learn anything, and again while it does.
        let asked = tokio::spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..50 {
                match stale.simple_query("SELECT v FROM t").await {
                    Ok(messages) => seen.extend(messages.into_iter().filter_map(|message| match message {
                        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                        _ => None,
                    })),
                    Err(_) => break,
                }
            }
            seen
        });
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        nodes.signal(leader, "-CONT");
        let seen = asked.await.unwrap();
        assert!(seen.iter().all(|v| v == "1"), "{seen:?}");
        // It follows now, and serves.
        let again = nodes.client(leader).await;
        again.batch_execute("UPDATE t SET v = v + 1").await.unwrap();
        assert_eq!(rows(&fresh, "SELECT v FROM t").await, "2");
        assert_eq!(nodes.everywhere("SELECT * FROM t").await, "1 2");
    });
}

#[test]
fn everything_is_killed_at_once_and_every_acknowledged_commit_is_there_afterwards() {
    block_on(async {
        let mut nodes = Nodes::start(3, 2);
        let client = nodes.client(1).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        for round in 0..3_i32 {
            let writer = nodes.client(round as usize).await;
            let writing = tokio::spawn(async move {
                let mut id = round * 100_000;
                while writer.execute("INSERT INTO t VALUES ($1)", &[&id]).await.is_ok() {
                    id += 1;
                }
                id
            });
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            nodes.kill_all();
            let next = writing.await.unwrap();
            assert!(next > round * 100_000, "nothing was written");
            nodes.start_all();
            let client = nodes.client(0).await;
            let sql = format!("SELECT count(*) FROM t WHERE id >= {} AND id < {next}", round * 100_000);
            assert_eq!(rows(&client, &sql).await, (next - round * 100_000).to_string());
        }
        nodes.everywhere("SELECT count(*), sum(id) FROM t").await;
    });
}

#[test]
fn sessions_of_several_nodes_are_of_one_server() {
    block_on(async {
        let nodes = Nodes::start(3, 1);
        let leader = nodes.leader();
        let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
        let (first, second) = (nodes.client(others[0]).await, nodes.client(others[1]).await);
        // A statement is cancelled by the node that its client knows.
        let token = first.cancel_token();
        let sleeping = tokio::spawn(async move { (first.batch_execute("SELECT pg_sleep(60)").await, first) });
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        token.cancel_query(tokio_postgres::NoTls).await.unwrap();
        let (cancelled, first) = sleeping.await.unwrap();
        assert_eq!(code(cancelled), SqlState::QUERY_CANCELED);
        // Advisory locks are the cluster's.
        assert_eq!(rows(&first, "SELECT pg_try_advisory_lock(1)").await, "t");
        assert_eq!(rows(&second, "SELECT pg_try_advisory_lock(1)").await, "f");
        // The console answers on every node.
        let console =
            rig::connect(&nodes.dsn(others[0]).replace("dbname=postgres", "dbname=onecopy")).await.unwrap();
        let shown = rows(&console, "SHOW NODES").await;
        assert_eq!(shown.matches("follower").count(), 2, "{shown}");
        assert_eq!(shown.matches("leader").count(), 1, "{shown}");
    });
}

#[test]
fn node_whose_log_was_lost_is_not_let_in_again() {
    block_on(async {
        let mut nodes = Nodes::start(3, 1);
        let lost = (0..3).find(|node| *node != nodes.leader()).unwrap();
        nodes.kill(lost);
        nodes.lose_log(lost);
        let said = nodes.refusal(lost);
        assert!(said.contains("there is no commit log in"), "{said}");
        // The others go on.
        let client = nodes.client(nodes.leader()).await;
        assert_eq!(rows(&client, "SELECT 1").await, "1");
    });
}

#[test]
fn lost_node_is_replaced_by_another_one_while_clients_work() {
    block_on(async {
        let mut nodes = Nodes::start(3, 1);
        let leader = nodes.leader();
        let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
        let client = nodes.client(others[0]).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        nodes.kill(others[1]);
        nodes.lose_log(others[1]);
        let said = |output: std::process::Output| {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let refused = nodes.ask(others[0], &["node", "add", "4"]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("has not said where it is"));
        client.execute("INSERT INTO t SELECT generate_series(1, 1000)", &[]).await.unwrap();
        let new = nodes.join();
        let listed = said(nodes.ask(others[0], &["node", "add", "4"]));
        assert_eq!(listed.matches("follower").count(), 3, "{listed}");
        let lost = (others[1] + 1).to_string();
        let listed = said(nodes.ask(others[0], &["node", "remove", &lost]));
        assert_eq!(listed.matches("follower").count(), 2, "{listed}");
        let refused = nodes.ask(others[0], &["node", "remove", &(leader + 1).to_string()]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("leads"));
        // The three that are left survive the loss of one, as before.
        nodes.kill(leader);
        client.execute("INSERT INTO t VALUES (2000)", &[]).await.unwrap();
        let of_new = nodes.client(new).await;
        assert_eq!(rows(&of_new, "SELECT count(*) FROM t").await, "1001");
    });
}

#[test]
fn process_that_was_alone_shares_its_log_and_others_join_it() {
    block_on(async {
        let mut nodes = Nodes::alone(2);
        let client = nodes.client(0).await;
        client
            .batch_execute(
                "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100)",
            )
            .await
            .unwrap();
        drop(client);
        nodes.share();
        for id in ["2", "3"] {
            nodes.join();
            let added = nodes.ask(0, &["node", "add", id]);
            assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
        }
        // A second time it is refused, and so is a folder that holds a log.
        let again = nodes.command(0, &["node", "init", "--join"]).output().unwrap();
        assert_eq!(again.status.code(), Some(1));
        let client = nodes.client(1).await;
        client.execute("INSERT INTO t VALUES (101)", &[]).await.unwrap();
        nodes.kill(0);
        client.execute("INSERT INTO t VALUES (102)", &[]).await.unwrap();
        let of_third = nodes.client(2).await;
        assert_eq!(rows(&of_third, "SELECT count(*) FROM t").await, "102");
        nodes.everywhere("SELECT count(*) FROM t").await;
    });
}
