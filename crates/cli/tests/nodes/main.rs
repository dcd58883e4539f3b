//! Several nodes as processes: they serve as one, and any of them may be lost.

mod rig;

#[path = "../running/mod.rs"]
mod running;

use rig::{Nodes, block_on, code, rows};
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
