//! LISTEN and NOTIFY between clients of one process.

use super::clients::{block_on, connect, rows};
use super::{Up, folder};
use futures_util::StreamExt;
use onecopy_cluster::ClusterFile;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, NoTls};

/// A client and what it is notified of, as "channel payload".
struct Hearing {
    client: Client,
    heard: mpsc::UnboundedReceiver<String>,
}

impl Hearing {
    async fn connect(dsn: &str) -> Hearing {
        let (client, mut connection) = tokio_postgres::connect(dsn, NoTls).await.unwrap();
        let (send, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(said) = message {
                    let _ = send.send(format!("{} {}", said.channel(), said.payload()));
                }
            }
        });
        Hearing { client, heard }
    }

    async fn next(&mut self) -> String {
        let next = tokio::time::timeout(Duration::from_secs(30), self.heard.recv()).await;
        next.expect("a notification comes").expect("the connection is there")
    }

    /// Nothing has come but what was taken: whatever was said before this is delivered before its answer.
    async fn expect_nothing(&mut self) {
        self.client.batch_execute("").await.unwrap();
        assert_eq!(self.heard.try_recv().ok(), None);
    }
}

#[test]
fn notifications_of_committed_transactions_come_in_order_and_once() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let mut idle = Hearing::connect(&dsn).await;
        idle.client.batch_execute("LISTEN news; LISTEN \"Other\"").await.unwrap();
        let client = connect(&dsn).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();

        client.batch_execute("NOTIFY news").await.unwrap();
        assert_eq!(idle.next().await, "news ");
        client.query_one("SELECT pg_notify($1, $2)", &[&"Other", &"it's $1"]).await.unwrap();
        assert_eq!(idle.next().await, "Other it's $1");

        client
            .batch_execute(
                "BEGIN; NOTIFY news, 'a'; INSERT INTO t VALUES (1); NOTIFY news, 'b'; NOTIFY news, 'a';
                 SELECT pg_notify('ne' || 'ws', 'c'); NOTIFY unheard",
            )
            .await
            .unwrap();
        idle.expect_nothing().await;
        client.batch_execute("COMMIT").await.unwrap();
        for expected in ["news a", "news b", "news c"] {
            assert_eq!(idle.next().await, expected);
        }
        assert_eq!(rows(&idle.client, "SELECT count(*) FROM t").await, "1", "what it tells of is there");

        client.batch_execute("BEGIN; NOTIFY news, 'lost'; INSERT INTO t VALUES (2); ROLLBACK").await.unwrap();
        client
            .batch_execute(
                "BEGIN; NOTIFY news, 'kept'; SAVEPOINT s; NOTIFY news, 'lost'; ROLLBACK TO s; COMMIT",
            )
            .await
            .unwrap();
        assert_eq!(idle.next().await, "news kept");
        idle.expect_nothing().await;

        idle.client.batch_execute("UNLISTEN news").await.unwrap();
        client.batch_execute("NOTIFY news, 'unheard'; NOTIFY \"Other\", 'heard'").await.unwrap();
        assert_eq!(idle.next().await, "Other heard");
        idle.client.batch_execute("UNLISTEN *").await.unwrap();
        client.batch_execute("NOTIFY \"Other\"").await.unwrap();
        idle.expect_nothing().await;
    });
}

#[test]
fn session_in_a_transaction_hears_after_its_end_and_itself_too() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let mut busy = Hearing::connect(&dsn).await;
        let client = connect(&dsn).await;
        busy.client.batch_execute("LISTEN c").await.unwrap();
        busy.client.batch_execute("BEGIN; SELECT 1").await.unwrap();
        client.batch_execute("NOTIFY c, 'early'").await.unwrap();
        busy.expect_nothing().await;
        busy.client.batch_execute("NOTIFY c, 'own'; COMMIT").await.unwrap();
        assert_eq!((busy.next().await, busy.next().await), ("c early".to_owned(), "c own".to_owned()));

        // LISTEN itself belongs to its transaction.
        busy.client
            .batch_execute("BEGIN; LISTEN d; ROLLBACK; BEGIN; UNLISTEN c; LISTEN e; COMMIT")
            .await
            .unwrap();
        client.batch_execute("NOTIFY c; NOTIFY d; NOTIFY e").await.unwrap();
        assert_eq!(busy.next().await, "e ");
        busy.expect_nothing().await;

        let long = format!("NOTIFY c, '{}'", "x".repeat(8_000));
        for (wrong, code) in [
            ("SELECT pg_notify('', 'x')", SqlState::INVALID_PARAMETER_VALUE),
            (&long, SqlState::INVALID_PARAMETER_VALUE),
            (
                "SELECT pg_notify('c', id::text) FROM generate_series(1, 2) id",
                SqlState::FEATURE_NOT_SUPPORTED,
            ),
        ] {
            let error = client.simple_query(wrong).await.unwrap_err();
            assert_eq!(error.code(), Some(&code), "{wrong}");
        }
    });
}

#[test]
fn notifications_of_clients_that_write_at_once_come_in_the_order_of_their_commits() {
    const CLIENTS: i64 = 4;
    const COMMITS: i64 = 20;
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        let mut hearing = Hearing::connect(&dsn).await;
        hearing.client.batch_execute("LISTEN counted").await.unwrap();
        hearing
            .client
            .batch_execute(
                "CREATE TABLE counter (id int PRIMARY KEY, n bigint); INSERT INTO counter VALUES (1, 0)",
            )
            .await
            .unwrap();
        let count = |dsn: String| async move {
            let mut client = connect(&dsn).await;
            for _ in 0..COMMITS {
                let transaction = client.transaction().await.unwrap();
                let update = "UPDATE counter SET n = n + 1 WHERE id = 1 RETURNING n";
                let n: i64 = transaction.query_one(update, &[]).await.unwrap().get(0);
                transaction.execute("SELECT pg_notify('counted', $1)", &[&n.to_string()]).await.unwrap();
                transaction.commit().await.unwrap();
            }
        };
        let counting: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(count(dsn.clone()))).collect();
        for n in 1..=CLIENTS * COMMITS {
            assert_eq!(hearing.next().await, format!("counted {n}"));
        }
        for client in counting {
            client.await.unwrap();
        }
        hearing.expect_nothing().await;
    });
}
