//! The micro-benchmark's transactions, and their arrivals.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::Client;

use crate::connection::Target;
use crate::{Error, Result};

/// Rows that a transaction updates or reads.
const ROWS_EACH: usize = 10;
/// How long those that have arrived may take.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// How long sites may take until they answer.
const SERVICE_MAX: Duration = Duration::from_secs(60);

/// The tables.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many.
    pub tables: u32,
    /// Rows of each.
    pub rows: u32,
}

impl Default for Shape {
    /// As in the paper.
    fn default() -> Self {
        Shape { tables: 10, rows: 10_000 }
    }
}

impl Shape {
    /// Makes the tables, in the same way on each server.
    #[must_use]
    pub fn setup(&self) -> String {
        let mut sql = String::new();
        for table in 0..self.tables {
            // Writing to a String cannot fail.
            let _ = write!(
                sql,
                "CREATE TABLE micro_{table} (id int PRIMARY KEY, v int NOT NULL, filler text NOT NULL); \
                 INSERT INTO micro_{table} SELECT n, 0, repeat('x', 50) FROM generate_series(1, {}) n;",
                self.rows
            );
        }
        sql
    }

    /// One transaction, whole.
    fn transaction(&self, random: &mut impl Rng, is_update: bool) -> String {
        let table = random.random_range(0..self.tables);
        let mut sql = String::from(if is_update { "BEGIN;" } else { "" });
        for _ in 0..ROWS_EACH {
            let id = random.random_range(1..=self.rows);
            let _ = match is_update {
                true => write!(sql, "UPDATE micro_{table} SET v = v + 1 WHERE id = {id};"),
                false => write!(sql, "SELECT v FROM micro_{table} WHERE id = {id};"),
            };
        }
        if is_update {
            sql.push_str("COMMIT");
        }
        sql
    }
}

/// Response times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// How many were answered.
    pub count: u64,
    /// Their mean, in milliseconds.
    pub mean_ms: f64,
    /// What 95 of 100 are below.
    pub p95_ms: f64,
}

impl Times {
    fn of(mut all: Vec<f64>) -> Times {
        all.sort_by(f64::total_cmp);
        let mean_ms = all.iter().sum::<f64>() / (all.len().max(1) as f64);
        let p95_ms = all.get((all.len() * 95).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0);
        Times { count: all.len() as u64, mean_ms, p95_ms }
    }
}

/// CPU time of all sites' processes, and of all their servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spent {
    /// Of the processes.
    pub sites: f64,
    /// Of the servers.
    pub servers: f64,
}

/// One rate.
pub(super) struct Stage {
    pub(super) rate: u32,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
    pub(super) seed: u64,
}

impl Stage {
    /// The share of the rate at which transactions arrive after so long.
    fn share_at(&self, at: Duration) -> f64 {
        if at < self.warm_up { at.as_secs_f64() / self.warm_up.as_secs_f64() } else { 1.0 }
    }
}

/// What came of a rate.
pub(super) struct Measured {
    pub(super) carried: f64,
    pub(super) cpu_ms: Spent,
    pub(super) updates: Times,
    pub(super) queries: Times,
    pub(super) failed: u64,
    pub(super) failure: Option<String>,
}

/// Connections to a site that nobody uses.
pub(super) struct Pool {
    target: Target,
    idle: Mutex<Vec<Client>>,
}

impl Pool {
    async fn lend(&self) -> Result<Client> {
        let idle = self.idle.lock().await.pop();
        match idle {
            Some(client) if !client.is_closed() => Ok(client),
            _ => self.target.connect().await,
        }
    }
}

/// One to each site.
pub(super) fn pools(targets: &[Target]) -> Vec<Arc<Pool>> {
    let pool = |target: &Target| Arc::new(Pool { target: target.clone(), idle: Mutex::default() });
    targets.iter().map(pool).collect()
}

/// What came of a transaction.
struct Answered {
    /// It arrived when all was warm.
    counts: bool,
    is_update: bool,
    ms: f64,
    at: Instant,
    error: Option<String>,
}

/// Waits until each site answers an update.
pub(super) async fn await_service(targets: &[Target]) -> Result<()> {
    let begin = Instant::now();
    for target in targets {
        loop {
            let asked = async {
                let client = target.connect().await?;
                client
                    .batch_execute("UPDATE micro_0 SET v = v WHERE id = 1")
                    .await
                    .map_err(Error::database("update a row"))
            };
            match tokio::time::timeout(Duration::from_secs(10), asked).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) if begin.elapsed() > SERVICE_MAX => return Err(error),
                Err(_) if begin.elapsed() > SERVICE_MAX => {
                    return Err(Error::Option(format!("{} does not answer", target.name())));
                }
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
    Ok(())
}

/// Lets transactions arrive for a while, and waits for those that are under way.
pub(super) async fn run(
    shape: &Shape,
    pools: &[Arc<Pool>],
    stage: &Stage,
    spent: impl Fn() -> Spent,
) -> Result<Measured> {
    let mut random = ChaCha8Rng::seed_from_u64(stage.seed);
    let (tell, mut told) = mpsc::unbounded_channel();
    let begin = Instant::now();
    let (warm, end) = (begin + stage.warm_up, begin + stage.warm_up + stage.duration);
    let mut at = Duration::ZERO;
    let (mut arrived, mut before) = (0_u64, None);
    loop {
        // The time between two arrivals that know nothing of each other.
        at += Duration::from_secs_f64(-(1.0 - random.random::<f64>()).ln() / f64::from(stage.rate));
        let counts = begin + at >= warm;
        if counts && before.is_none() {
            tokio::time::sleep_until(warm.into()).await;
            before = Some(spent());
        }
        if begin + at >= end {
            break;
        }
        if random.random::<f64>() >= stage.share_at(at) {
            continue;
        }
        tokio::time::sleep_until((begin + at).into()).await;
        let is_update = random.random_bool(0.5);
        let sql = shape.transaction(&mut random, is_update);
        let pool = pools[random.random_range(0..pools.len())].clone();
        let (tell, arrival) = (tell.clone(), begin + at);
        arrived += 1;
        tokio::spawn(async move {
            let answered = async {
                let client = pool.lend().await?;
                client.simple_query(&sql).await.map_err(Error::database("run a transaction"))?;
                pool.idle.lock().await.push(client);
                Result::Ok(())
            };
            let error = answered.await.err().map(|error| error.to_string());
            let at = Instant::now();
            let ms = (at - arrival).as_secs_f64() * 1e3;
            // Nobody waits any more for what takes longer than all may.
            let _ = tell.send(Answered { counts, is_update, ms, at, error });
        });
    }
    tokio::time::sleep_until(end.into()).await;
    let (before, after) = (before.unwrap_or_default(), spent());
    drop(tell);
    let mut all = Vec::new();
    while let Ok(Some(answered)) = tokio::time::timeout_at((end + DRAIN_MAX).into(), told.recv()).await {
        all.push(answered);
    }
    let times = |updates: bool| {
        let of = all.iter().filter(|one| one.counts && one.error.is_none() && one.is_update == updates);
        Times::of(of.map(|one| one.ms).collect())
    };
    let in_time = all.iter().filter(|one| one.error.is_none() && one.at > warm && one.at <= end).count();
    let of_each = |before: f64, after: f64| (after - before) * 1e3 / in_time.max(1) as f64;
    let unanswered = arrived - all.len() as u64;
    let failure = all.iter().find_map(|one| one.error.clone());
    Ok(Measured {
        carried: in_time as f64 / stage.duration.as_secs_f64(),
        cpu_ms: Spent {
            sites: of_each(before.sites, after.sites),
            servers: of_each(before.servers, after.servers),
        },
        updates: times(true),
        queries: times(false),
        failed: unanswered + all.iter().filter(|one| one.error.is_some()).count() as u64,
        failure: failure.or_else(|| (unanswered > 0).then(|| format!("{unanswered} were not answered"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_touch_ten_rows_of_one_table() {
        let shape = Shape { tables: 3, rows: 5 };
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let update = shape.transaction(&mut random, true);
        assert!(update.starts_with("BEGIN;UPDATE micro_") && update.ends_with("COMMIT"), "{update}");
        assert_eq!(update.matches("UPDATE").count(), 10);
        let query = shape.transaction(&mut random, false);
        let table = &query[query.find("micro_").unwrap()..][..7];
        assert_eq!(query.matches(table).count(), 10, "{query}");
        assert_eq!(shape.setup().matches("CREATE TABLE").count(), 3);
    }

    #[test]
    fn rates_rise_to_what_they_are_to_be() {
        let (warm_up, duration) = (Duration::from_secs(4), Duration::from_secs(1));
        let stage = Stage { rate: 100, warm_up, duration, seed: 0 };
        let shares = [0, 1_000, 3_000, 4_000, 9_000].map(|ms| stage.share_at(Duration::from_millis(ms)));
        assert_eq!(shares, [0.0, 0.25, 0.75, 1.0, 1.0]);
        let cold = Stage { warm_up: Duration::ZERO, ..stage };
        assert_eq!(cold.share_at(Duration::ZERO), 1.0);
    }

    #[test]
    fn times_are_means_and_what_most_are_below() {
        let times = Times::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(times, Times { count: 100, mean_ms: 50.5, p95_ms: 95.0 });
        assert_eq!(Times::of(Vec::new()), Times::default());
    }
}
