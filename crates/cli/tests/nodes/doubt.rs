//! Commits that are under way when something is lost: what was acknowledged is there, once; what was refused is not.

use crate::faults::Draw;
use crate::relay::Cut;
use crate::rig::{Nodes, block_on, connect, rows};
use futures_util::SinkExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Error, types::Type};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Simple,
    Extended,
    Chained,
    OneString,
    Autocommit,
    AutocommitExtended,
    Pipelined,
    Copy,
    Large,
}

const HOW: [How; 9] = [
    How::Simple,
    How::Extended,
    How::Chained,
    How::OneString,
    How::Autocommit,
    How::AutocommitExtended,
    How::Pipelined,
    How::Copy,
    How::Large,
];

/// What became of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    Committed,
    /// It says that it did commit, and that its answer is lost.
    CommittedUnanswered,
    Refused(String),
    Unknown(String),
}

fn told(result: Result<(), Error>) -> Told {
    match result {
        Ok(()) => Told::Committed,
        Err(error) => match error.as_db_error() {
            Some(db) if db.message().contains("this was committed") => Told::CommittedUnanswered,
            Some(db) if db.code().code() == "40001" => Told::Refused(db.to_string()),
            Some(db) => Told::Unknown(db.to_string()),
            None => Told::Unknown(error.to_string()),
        },
    }
}

/// Inserts rows with numbers from `id` on; what became of each.
async fn attempt(client: &Client, how: How, id: i32) -> Vec<(i32, Told)> {
    let insert = format!("INSERT INTO t VALUES ({id})");
    let ended = |result| vec![(id, told(result))];
    match how {
        How::Simple => ended(
            async {
                client.batch_execute("BEGIN").await?;
                client.batch_execute(&insert).await?;
                client.batch_execute("COMMIT").await
            }
            .await,
        ),
        How::Extended => ended(
            async {
                client.execute("BEGIN", &[]).await?;
                client.execute("INSERT INTO t VALUES ($1)", &[&id]).await?;
                client.execute("COMMIT", &[]).await.map(drop)
            }
            .await,
        ),
        How::Chained => {
            let first = async {
                client.batch_execute("BEGIN").await?;
                client.batch_execute(&insert).await?;
                client.batch_execute("COMMIT AND CHAIN").await
            }
            .await;
            if first.is_err() {
                return ended(first);
            }
            let second = async {
                client.batch_execute(&format!("INSERT INTO t VALUES ({})", id + 1)).await?;
                client.batch_execute("COMMIT").await
            }
            .await;
            vec![(id, Told::Committed), (id + 1, told(second))]
        }
        How::OneString => ended(client.batch_execute(&format!("BEGIN; {insert}; COMMIT")).await),
        How::Autocommit => ended(client.batch_execute(&insert).await),
        How::AutocommitExtended => ended(client.execute("INSERT INTO t VALUES ($1)", &[&id]).await.map(drop)),
        How::Pipelined => {
            let ids: Vec<i32> = (id..id + 5).collect();
            let all = ids.iter().map(|id| async move {
                let inserted =
                    client.query_typed("INSERT INTO t VALUES ($1)", &[(id as _, Type::INT4)]).await.map(drop);
                (*id, told(inserted))
            });
            futures_util::future::join_all(all).await
        }
        How::Copy => {
            let result = async {
                let mut sink = Box::pin(client.copy_in("COPY t FROM STDIN").await?);
                for id in id..id + 5 {
                    sink.send(bytes::Bytes::from(format!("{id}\n"))).await?;
                    tokio::task::yield_now().await;
                }
                sink.close().await
            }
            .await;
            let told = told(result);
            (id..id + 5).map(|id| (id, told.clone())).collect()
        }
        How::Large => ended(
            async {
                client.batch_execute("BEGIN").await?;
                client.simple_query("SELECT repeat('x', 1000), g FROM generate_series(1, 300) g").await?;
                client.batch_execute(&insert).await?;
                client.batch_execute("COMMIT").await
            }
            .await,
        ),
    }
}

/// One client after the other, until it is over; all that was told.
async fn insert(dsn: String, how: How, next: Arc<AtomicI32>, is_over: Arc<AtomicBool>) -> Vec<(i32, Told)> {
    let mut all = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let Ok(client) = connect(&dsn).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        while !is_over.load(Ordering::Relaxed) && !client.is_closed() {
            let id = next.fetch_add(10, Ordering::Relaxed);
            let told = attempt(&client, how, id).await;
            let failed = told.iter().any(|(_, told)| *told != Told::Committed);
            all.extend(told);
            if failed && !client.is_closed() {
                // One block at most is open.
                let _ = client.batch_execute("ROLLBACK").await;
            }
        }
    }
    all
}

/// Has clients of all nodes insert, in all ways, while something happens, and compares what they were told with what is there.
fn judge(mut nodes: Nodes, happens: impl FnOnce(&mut Nodes) + Send + 'static) {
    block_on(async {
        let client = nodes.client(0).await;
        client.batch_execute("CREATE TABLE t (id int); CREATE INDEX ON t (id)").await.unwrap();
        let (next, is_over) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
        let inserting: Vec<_> = (0..nodes.count())
            .flat_map(|node| HOW.map(|how| (node, how)))
            .map(|(node, how)| {
                (how, tokio::spawn(insert(nodes.dsn(node), how, next.clone(), is_over.clone())))
            })
            .collect();
        let nodes = tokio::task::spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(300));
            happens(&mut nodes);
            nodes
        })
        .await
        .unwrap();
        is_over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for (how, inserting) in inserting {
            let told = tokio::time::timeout(Duration::from_secs(60), inserting).await;
            let told = told.unwrap_or_else(|_| panic!("{how:?} hangs")).unwrap();
            all.extend(told.into_iter().map(|(id, told)| (id, how, told)));
        }
        let text = nodes.everywhere("SELECT id FROM t ORDER BY id").await;
        let mut there: BTreeMap<i32, u32> = BTreeMap::new();
        for id in text.split(", ").filter(|id| !id.is_empty()) {
            *there.entry(id.parse().unwrap()).or_default() += 1;
        }
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        let mut wrong = Vec::new();
        for (id, how, told) in all {
            let times = there.remove(&id).unwrap_or(0);
            let is_right = match told {
                Told::Committed => times == 1,
                // Of several at once it may be another one that was.
                Told::CommittedUnanswered => times == 1 || how == How::Pipelined,
                Told::Refused(_) => times == 0,
                Told::Unknown(_) => times <= 1,
            };
            if !is_right {
                wrong.push(format!("{how:?} {id}: {times} times, and told {told:?}"));
            }
            *counts
                .entry(format!("{how:?} {}", format!("{told:?}").chars().take(60).collect::<String>()))
                .or_default() += 1;
        }
        for (told, count) in &counts {
            println!("{count:>6} {told}");
        }
        if !wrong.is_empty() {
            nodes.keep_messages();
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(there.is_empty(), "nobody inserted {there:?}");
        let client = nodes.client(0).await;
        assert_eq!(rows(&client, "SELECT 1").await, "1");
    });
}

#[test]
fn commits_under_way_when_the_leader_is_killed_are_there_once_or_not_at_all() {
    judge(Nodes::start(3, 2), |nodes| {
        let mut draw = Draw(1);
        for _ in 0..6 {
            let leader = nodes.leader();
            nodes.kill(leader);
            std::thread::sleep(draw.ms(0, 1_500));
            nodes.spawn(leader);
            nodes.leader();
            std::thread::sleep(draw.ms(50, 800));
        }
    });
}

#[test]
fn commits_of_sessions_whose_connection_alone_is_lost_are_there_once_or_not_at_all() {
    judge(Nodes::start_apart(3, 2), |nodes| {
        let mut draw = Draw(2);
        let leader = nodes.leader();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            for node in (0..3).filter(|node| *node != leader) {
                nodes.link(node, leader).cut(Cut::REFUSED);
                std::thread::sleep(draw.ms(1, 30));
                nodes.link(node, leader).heal();
            }
            std::thread::sleep(draw.ms(20, 200));
        }
    });
}

#[test]
fn commits_under_way_when_the_leader_is_cut_off_or_stands_still_are_there_once_or_not_at_all() {
    judge(Nodes::start_apart(3, 2), |nodes| {
        let mut draw = Draw(3);
        for round in 0..6 {
            let leader = nodes.leader();
            let lasts = draw.ms(1_200, 3_000);
            if round % 2 == 0 {
                nodes.isolate(leader);
                std::thread::sleep(lasts);
                nodes.heal();
            } else {
                nodes.signal(leader, "-STOP");
                std::thread::sleep(lasts);
                nodes.signal(leader, "-CONT");
            }
            std::thread::sleep(draw.ms(50, 800));
        }
    });
}
