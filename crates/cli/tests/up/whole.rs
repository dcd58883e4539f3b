//! `protocol = "chains"` on real servers: transactions that come whole, others beside them, and a replica that dies.

use super::clients::{block_on, connect, rows};
use super::scheduled::Scheduled;
use onecopy_cluster::ClusterFile;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio_postgres::{Client, SimpleQueryMessage};

async fn code_of(client: &Client, sql: &str) -> String {
    match client.simple_query(sql).await {
        Ok(_) => "served".to_owned(),
        Err(error) => error.as_db_error().map_or_else(|| error.to_string(), |db| db.code().code().to_owned()),
    }
}

/// The rows and the command tags' numbers of rows of a query, in order.
async fn answers(client: &Client, sql: &str) -> Vec<String> {
    let text = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            let cells: Vec<&str> = (0..row.len()).map(|cell| row.get(cell).unwrap_or("-")).collect();
            Some(cells.join(" "))
        }
        SimpleQueryMessage::CommandComplete(rows) => Some(format!("({rows})")),
        _ => None,
    };
    client.simple_query(sql).await.unwrap().iter().filter_map(text).collect()
}

const TABLES: &str = "CREATE TABLE accounts (id int PRIMARY KEY, owner text NOT NULL, balance numeric(10,2) NOT NULL);
     INSERT INTO accounts SELECT n, 'owner ' || n, 100 FROM generate_series(1, 40) n;
     CREATE TABLE moves (id bigserial PRIMARY KEY, source int NOT NULL, target int NOT NULL, amount numeric(10,2) NOT NULL)";

async fn make_tables(client: &Client) {
    for statement in TABLES.split(';') {
        client.batch_execute(statement).await.unwrap();
    }
}

#[test]
fn a_transaction_that_comes_whole_uses_what_it_has_found() {
    block_on(async {
        let cluster = Scheduled::start("chains", 3);
        let client = connect(cluster.dsn()).await;
        make_tables(&client).await;
        let whole = "BEGIN;
            SELECT balance AS Found, owner FROM accounts WHERE id = 1;
            UPDATE accounts SET balance = :found / 8, owner = :owner || ':found' WHERE id = 2 RETURNING balance;
            INSERT INTO moves (source, target, amount) VALUES (1, 2, :BALANCE);
            COMMIT";
        assert_eq!(
            answers(&client, whole).await,
            ["(0)", "100.00 owner 1", "(1)", "12.50", "(1)", "(1)", "(0)"]
        );
        let found =
            rows(&client, "SELECT a.balance, a.owner, m.amount FROM accounts a, moves m WHERE a.id = 2")
                .await;
        assert_eq!(found, "12.50 owner 1:found 12.50");

        // Without brackets it is one transaction, too; no row is NULL, and so is a value that is.
        let nothing =
            "SELECT id AS missing FROM accounts WHERE id = 77; DELETE FROM accounts WHERE id = :missing;
            SELECT :missing IS NULL";
        assert_eq!(answers(&client, nothing).await, ["(0)", "(0)", "t", "(1)"]);
        let only_reads = "SELECT balance AS b FROM accounts WHERE id = 2; SELECT :b + 1, pg_typeof(:b)";
        assert_eq!(answers(&client, only_reads).await, ["12.50", "(1)", "13.50 numeric", "(1)"]);
        cluster.assert_identical();
    });
}

#[test]
fn what_cannot_be_done_leaves_nothing_behind() {
    block_on(async {
        let cluster = Scheduled::start("chains", 2);
        let client = connect(cluster.dsn()).await;
        make_tables(&client).await;
        let change = "UPDATE accounts SET balance = 0 WHERE id = 1";
        for (sql, code) in [
            (format!("{change}; SELECT id FROM accounts; DELETE FROM accounts WHERE id = :id"), "21000"),
            (format!("{change}; DELETE FROM accounts WHERE id = :id"), "42703"),
            (format!("{change}; SELECT 1 / 0"), "22012"),
            (format!("{change}; INSERT INTO accounts VALUES (3, 'again', 1)"), "23505"),
            (format!("{change}; SELEC"), "42601"),
            (format!("{change}; ROLLBACK; SELECT 1 AS a; SELECT :a"), "0A000"),
            ("SELECT :a".to_owned(), "42703"),
        ] {
            assert_eq!(code_of(&client, &sql).await, code, "{sql}");
        }
        // As on a server: of what is no SQL nothing is begun, and a block whose statement fails stays open.
        assert_eq!(code_of(&client, &format!("BEGIN; {change}; SELEC; COMMIT")).await, "42601");
        assert_eq!(code_of(&client, "SELECT 1").await, "served");
        assert_eq!(code_of(&client, &format!("BEGIN; {change}; SELECT 1 / 0; COMMIT")).await, "22012");
        assert_eq!(code_of(&client, "SELECT 1").await, "25P02");
        assert_eq!(code_of(&client, "SELECT 1 AS a; SELECT :a").await, "0A000");
        assert_eq!(code_of(&client, "ROLLBACK").await, "served");
        assert_eq!(rows(&client, "SELECT balance FROM accounts WHERE id = 1").await, "100.00");
        cluster.assert_identical();
    });
}

#[test]
fn transactions_that_come_statement_by_statement_are_served_beside_whole_ones() {
    block_on(async {
        let cluster = Scheduled::start("chains", 2);
        let mut client = connect(cluster.dsn()).await;
        make_tables(&client).await;
        let changed = client
            .execute("UPDATE accounts SET balance = balance - 1 WHERE id = ANY($1)", &[&vec![1, 2]])
            .await
            .unwrap();
        assert_eq!(changed, 2);
        let transaction = client.transaction().await.unwrap();
        let balance: String = transaction
            .query_one("SELECT balance::text FROM accounts WHERE id = 1 FOR UPDATE", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(balance, "99.00", "it sees what its session has written");
        transaction
            .execute("INSERT INTO moves (source, target, amount) VALUES (1, 2, 3)", &[])
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(rows(&client, "SELECT count(*) FROM moves").await, "1");
        client.batch_execute("ALTER TABLE moves ADD note text").await.unwrap();
        let noted = "INSERT INTO moves (source, target, amount, note) VALUES (2, 1, 4, 'new'); SELECT count(note) FROM moves";
        assert_eq!(answers(&client, noted).await, ["(1)", "1", "(1)"]);
        cluster.assert_identical();
    });
}

/// Moves money between random accounts, whole, until told to stop; every one must succeed.
async fn move_money(dsn: String, seed: u64, stop: Arc<AtomicBool>, moved: Arc<AtomicU64>) {
    let client = connect(&dsn).await;
    let mut state = seed * 7_919 + 1;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    while !stop.load(Ordering::Relaxed) {
        let (source, target, amount) = (1 + below(40), 1 + below(40), below(9));
        let whole = format!(
            "BEGIN; SELECT least(balance, {amount}) AS part FROM accounts WHERE id = {source};
             UPDATE accounts SET balance = balance - :part WHERE id = {source};
             UPDATE accounts SET balance = balance + :part WHERE id = {target};
             INSERT INTO moves (source, target, amount) VALUES ({source}, {target}, :part); COMMIT"
        );
        client.simple_query(&whole).await.unwrap_or_else(|error| panic!("{whole}: {error:?}"));
        moved.fetch_add(1, Ordering::Relaxed);
        let sum = "SELECT sum(balance) AS total FROM accounts; SELECT :total = 4000";
        assert_eq!(answers(&client, sum).await.get(2).map(String::as_str), Some("t"), "one snapshot");
    }
}

#[test]
fn nobody_notices_when_a_replica_dies_and_nothing_is_given_up_or_lost() {
    block_on(async {
        let cluster = Scheduled::start("chains", 3);
        let client = connect(cluster.dsn()).await;
        make_tables(&client).await;
        let (stop, moved) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients: Vec<_> = (0..8)
            .map(|seed| tokio::spawn(move_money(cluster.dsn().to_owned(), seed, stop.clone(), moved.clone())))
            .collect();
        let file = ClusterFile::read(cluster.folder()).unwrap();
        for replica in &file.replicas[..2] {
            let before = moved.load(Ordering::Relaxed);
            while moved.load(Ordering::Relaxed) < before + 100 {
                assert!(!clients.iter().any(tokio::task::JoinHandle::is_finished), "they go on");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let killed = Command::new("kill").args(["-KILL", &replica.pid.to_string()]).status().unwrap();
            assert!(killed.success());
        }
        let before = moved.load(Ordering::Relaxed);
        while moved.load(Ordering::Relaxed) < before + 100 {
            assert!(!clients.iter().any(tokio::task::JoinHandle::is_finished), "they go on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        let count = rows(&client, "SELECT count(*) FROM moves").await;
        assert_eq!(count, moved.load(Ordering::Relaxed).to_string(), "each once");
        let wrong = "SELECT count(*) FROM accounts a WHERE balance <> 100
             - (SELECT coalesce(sum(amount), 0) FROM moves WHERE source = a.id)
             + (SELECT coalesce(sum(amount), 0) FROM moves WHERE target = a.id)";
        assert_eq!(rows(&client, wrong).await, "0");
    });
}

/// Two go off duty at once, each whole, if somebody else stays; returns how often nobody did.
async fn nobody_on_duty(cluster: &Scheduled, rounds: u32) -> u32 {
    let client = connect(cluster.dsn()).await;
    client.batch_execute("CREATE TABLE doctors (id int PRIMARY KEY, on_duty bool NOT NULL)").await.unwrap();
    client.batch_execute("INSERT INTO doctors VALUES (1, true), (2, true)").await.unwrap();
    let (one, other) = (connect(cluster.dsn()).await, connect(cluster.dsn()).await);
    let leave = |id: u32| {
        format!(
            "SELECT count(*) AS staying FROM doctors WHERE on_duty AND id <> {id};
             UPDATE doctors SET on_duty = false WHERE id = {id} AND :staying > 0"
        )
    };
    let mut none = 0;
    for _ in 0..rounds {
        let (first, second) = (leave(1), leave(2));
        let (first, second) = tokio::join!(one.simple_query(&first), other.simple_query(&second));
        first.and(second).unwrap();
        // What an update sees is what was committed before it.
        let back = "SELECT count(*) AS staying FROM doctors WHERE on_duty; UPDATE doctors SET on_duty = true; SELECT :staying";
        let staying = answers(&client, back).await;
        none += u32::from(staying.contains(&"0".to_owned()));
    }
    cluster.assert_identical();
    none
}

#[test]
fn what_is_read_counts_where_chains_are_to_be_serializable() {
    block_on(async {
        let cluster = Scheduled::start("chains_serializable", 3);
        assert_eq!(nobody_on_duty(&cluster, 150).await, 0, "two at once must not both find the other one");
    });
}

#[test]
fn replicas_are_identical_after_whole_transactions_and_each_has_executed_some() {
    block_on(async {
        let cluster = Scheduled::start("chains", 3);
        let client = connect(cluster.dsn()).await;
        make_tables(&client).await;
        let (stop, moved) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients: Vec<_> = (0..6)
            .map(|seed| tokio::spawn(move_money(cluster.dsn().to_owned(), seed, stop.clone(), moved.clone())))
            .collect();
        while moved.load(Ordering::Relaxed) < 300 {
            assert!(!clients.iter().any(tokio::task::JoinHandle::is_finished), "they go on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        cluster.assert_identical();
        let executed = cluster.of_replicas("home_statements");
        assert!(executed.iter().all(|statements| *statements > 30), "{executed:?}");
    });
}
