//! Commits that are under way when something is lost: what was acknowledged is there, once; what was refused is not.

use crate::faults::Draw;
use crate::relay::Cut;
use crate::rig::{Nodes, block_on, connect, rows};
use futures_util::SinkExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error, types::Type};

/// In which way a row is inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
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

pub const HOW: [How; 9] = [
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
async fn attempt(client: &Client, how: How, id: i32) -> Noted {
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
async fn insert(
    dsn: String,
    how: How,
    pause: Duration,
    next: Arc<AtomicI32>,
    is_over: Arc<AtomicBool>,
) -> Noted {
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
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }
    all
}

/// What was told of rows, by their numbers.
type Noted = Vec<(i32, Told)>;

/// Clients who insert rows into a table of their own, each of them in one of all the ways.
pub struct Inserting {
    is_over: Arc<AtomicBool>,
    clients: Vec<(How, JoinHandle<Noted>)>,
}

impl Inserting {
    /// Makes the table anew, and begins. Clients are of these nodes, and pause between two transactions.
    pub async fn begin(nodes: &Nodes, of: impl Fn(usize, How) -> bool, pause: Duration) -> Inserting {
        let client = nodes.client(nodes.leader()).await;
        let make = "DROP TABLE IF EXISTS t; CREATE TABLE t (id int); CREATE INDEX ON t (id)";
        client.batch_execute(make).await.unwrap();
        let (next, is_over) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
        let clients = (0..nodes.count()).flat_map(|node| HOW.map(|how| (node, how)));
        let clients = clients.filter(|(node, how)| of(*node, *how)).map(|(node, how)| {
            (how, tokio::spawn(insert(nodes.dsn(node), how, pause, next.clone(), is_over.clone())))
        });
        Inserting { clients: clients.collect(), is_over }
    }

    /// Ends them, and compares what they were told with what is there on all replicas.
    pub async fn end(self, nodes: &Nodes) -> Judged {
        self.is_over.store(true, Ordering::Relaxed);
        let mut judged = Judged::default();
        let mut all = Vec::new();
        for (how, inserting) in self.clients {
            match tokio::time::timeout(Duration::from_secs(60), inserting).await {
                Ok(told) => all.extend(told.unwrap().into_iter().map(|(id, told)| (id, how, told))),
                Err(_) => {
                    judged.hung += 1;
                    judged.wrong.push(format!("{how:?} hangs"));
                }
            }
        }
        let text = nodes.everywhere("SELECT id FROM t ORDER BY id").await;
        let mut there: BTreeMap<i32, u32> = BTreeMap::new();
        for id in text.split(", ").filter(|id| !id.is_empty()) {
            *there.entry(id.parse().unwrap()).or_default() += 1;
        }
        for (id, how, told) in all {
            judged.take(id, how, &told, there.remove(&id).unwrap_or(0));
        }
        if judged.hung > 0 {
            // What such a client was told is not known.
            return judged;
        }
        judged.unexplained = there.len() as u64;
        if !there.is_empty() {
            judged.wrong.push(format!("nobody inserted {there:?}"));
        }
        judged
    }
}

/// What clients were told of their rows beside what is there.
#[derive(Clone, Default, Debug)]
pub struct Judged {
    /// Rows by the way they came and what was told.
    pub counts: BTreeMap<String, u64>,
    pub acknowledged: u64,
    /// Of these, those that are missing.
    pub lost: u64,
    /// There more than once.
    pub twice: u64,
    pub refused: u64,
    /// Of these, those that are there all the same.
    pub happened_all_the_same: u64,
    /// Told nothing reliable, since a connection was lost.
    pub untold: u64,
    /// There, and of nobody.
    pub unexplained: u64,
    /// Clients who never got an answer.
    pub hung: u64,
    /// All that must not be, in words.
    pub wrong: Vec<String>,
}

impl Judged {
    fn take(&mut self, id: i32, how: How, told: &Told, times: u32) {
        let is_right = match told {
            Told::Committed => times == 1,
            // Of several at once it may be another one that was.
            Told::CommittedUnanswered => times == 1 || how == How::Pipelined,
            Told::Refused(_) => times == 0,
            Told::Unknown(_) => times <= 1,
        };
        if !is_right {
            self.wrong.push(format!("{how:?} {id}: {times} times, and told {told:?}"));
        }
        self.twice += u64::from(times > 1);
        match told {
            Told::CommittedUnanswered if how == How::Pipelined => self.untold += 1,
            Told::Committed | Told::CommittedUnanswered => {
                self.acknowledged += 1;
                self.lost += u64::from(times == 0);
            }
            Told::Refused(_) => {
                self.refused += 1;
                self.happened_all_the_same += u64::from(times > 0);
            }
            Told::Unknown(_) => self.untold += 1,
        }
        let told = format!("{told:?}").chars().take(60).collect::<String>();
        *self.counts.entry(format!("{how:?} {told}")).or_default() += 1;
    }

    /// Both together.
    pub fn add(&mut self, other: Judged) {
        for (told, count) in other.counts {
            *self.counts.entry(told).or_default() += count;
        }
        self.acknowledged += other.acknowledged;
        self.lost += other.lost;
        self.twice += other.twice;
        self.refused += other.refused;
        self.happened_all_the_same += other.happened_all_the_same;
        self.untold += other.untold;
        self.unexplained += other.unexplained;
        self.hung += other.hung;
        self.wrong.extend(other.wrong);
    }
}

/// Has clients of all nodes insert, in all ways, while something happens, and compares what they were told with what is there.
fn judge(mut nodes: Nodes, happens: impl FnOnce(&mut Nodes) + Send + 'static) {
    block_on(async {
        let inserting = Inserting::begin(&nodes, |_, _| true, Duration::ZERO).await;
        let nodes = tokio::task::spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(300));
            happens(&mut nodes);
            nodes
        })
        .await
        .unwrap();
        let judged = inserting.end(&nodes).await;
        for (told, count) in &judged.counts {
            println!("{count:>6} {told}");
        }
        if !judged.wrong.is_empty() {
            nodes.keep_messages();
        }
        assert!(judged.wrong.is_empty(), "{:#?}", judged.wrong);
        assert!(judged.acknowledged > 0);
        let client = nodes.client(0).await;
        assert_eq!(rows(&client, "SELECT 1").await, "1");
    });
}

/// The judge finds what it is there for.
#[test]
fn commit_that_is_lost_or_doubled_or_happened_though_it_was_refused_is_found() {
    let mut judged = Judged::default();
    judged.take(1, How::Simple, &Told::Committed, 1);
    judged.take(2, How::Copy, &Told::Unknown("lost".to_owned()), 1);
    assert!(judged.wrong.is_empty(), "{judged:?}");
    judged.take(3, How::Simple, &Told::Committed, 0);
    judged.take(4, How::Simple, &Told::Committed, 2);
    judged.take(5, How::Simple, &Told::Refused("40001".to_owned()), 1);
    assert_eq!((judged.acknowledged, judged.lost, judged.twice), (3, 1, 1));
    assert_eq!((judged.happened_all_the_same, judged.wrong.len()), (1, 3));
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
