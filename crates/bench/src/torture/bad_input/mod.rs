//! Sends what no honest client sends, and vanishes in every state: is the answer clear, and does nothing leak?
//!
//! Every case is a connection of its own. After each one an honest client must be served, on a connection that was
//! there before and on a new one, must be able to change the rows that the bad client may have held, and must find
//! that the bad client changed nothing. Where the server tells how many sessions and lanes it holds, these must come
//! back to what they were.

mod cases;
mod raw;

use std::fmt;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use self::cases::{Acted, CASES, Case, Expect};
use self::raw::Door;
use super::execute_all;
use crate::connection::Target;
use crate::error::describe;
use crate::{Error, Result};

/// What to attack.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where clients connect, over TCP. A table named `bad_row` is made there, that of an earlier run replaced.
    pub dsn: String,
    /// How long an answer, or giving back what a client that vanished had held, may take.
    pub patience: Duration,
    /// The server's limit for a statement; if there is one, a larger statement must be refused.
    pub statement_max_bytes: Option<usize>,
    /// Only cases whose name contains this.
    pub only: Option<String>,
    /// Puts the cases in an order of its own, since what one leaves behind may only harm another. `None` takes them as
    /// they are written.
    pub seed: Option<u64>,
}

impl Options {
    /// All cases that need no limit, with 10 seconds of patience.
    #[must_use]
    pub fn new(dsn: impl Into<String>) -> Options {
        Options {
            dsn: dsn.into(),
            patience: Duration::from_secs(10),
            statement_max_bytes: None,
            only: None,
            seed: None,
        }
    }
}

/// What a server holds for its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Client connections.
    pub sessions: u64,
    /// Backend connections in use by a session, open transactions included.
    pub lanes: u64,
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Every case in order.
    pub cases: Vec<CaseReport>,
}

/// One case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseReport {
    /// What the bad client did.
    pub name: String,
    /// What became of it.
    pub verdict: Verdict,
}

/// Whether a server stood a bad client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It answered as it should, or had nothing to answer, and nothing leaked.
    Right(String),
    /// What was wrong.
    Wrong(String),
    /// It could not be attacked in this way, and why.
    NotApplicable(String),
}

impl Report {
    /// Whether no case went wrong.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.cases.is_empty() && self.cases.iter().all(|case| !matches!(case.verdict, Verdict::Wrong(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            let (word, said) = match &case.verdict {
                Verdict::Right(said) => ("ok", said),
                Verdict::Wrong(said) => ("WRONG", said),
                Verdict::NotApplicable(said) => ("skipped", said),
            };
            writeln!(f, "{word:>7}  {}: {said}", case.name)?;
        }
        let wrong = self.cases.iter().filter(|case| matches!(case.verdict, Verdict::Wrong(_))).count();
        writeln!(f, "{} cases, {wrong} wrong", self.cases.len())
    }
}

/// Attacks a server, without asking what it holds.
///
/// # Errors
/// If the DSN is none, or no honest client is served in the first place.
pub async fn run(options: &Options) -> Result<Report> {
    run_with(options, async || Ok(Held { sessions: 0, lanes: 0 })).await
}

/// Attacks a server and asks through `held` what it holds; connections of the callback's own are not to be counted.
///
/// # Errors
/// If the DSN is none, or no honest client is served in the first place.
pub async fn run_with(
    options: &Options,
    held: impl AsyncFn() -> std::result::Result<Held, String>,
) -> Result<Report> {
    let target = Target::parse(&options.dsn)?;
    let config: tokio_postgres::Config = options.dsn.parse().map_err(Error::Dsn)?;
    let mut door = Door::of(&config, options.patience)?;
    door.statement_max_bytes = options.statement_max_bytes;
    let schema = [
        "DROP TABLE IF EXISTS bad_row",
        "CREATE TABLE bad_row (id bigint PRIMARY KEY, n bigint NOT NULL)",
        "INSERT INTO bad_row VALUES (1, 0), (2, 0)",
    ];
    execute_all(&target, schema.into_iter().map(str::to_owned), "make the table").await?;
    let mut honest =
        Honest { client: target.connect().await?, target, patience: options.patience, updates: 0 };
    honest.works(0).await.map_err(|why| Error::program("honest client", why))?;
    let before = held().await.map_err(|why| Error::program("status", why))?;
    let mut report = Report::default();
    let mut cases: Vec<&Case> = CASES.iter().collect();
    if let Some(seed) = options.seed {
        cases.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    }
    for case in cases {
        if options.only.as_ref().is_none_or(|part| case.name.contains(part.as_str())) {
            let verdict = verdict(case, &door, &mut honest, before, &held).await;
            report.cases.push(CaseReport { name: case.name.to_owned(), verdict });
        }
    }
    Ok(report)
}

async fn verdict(
    case: &Case,
    door: &Door,
    honest: &mut Honest,
    before: Held,
    held: &impl AsyncFn() -> std::result::Result<Held, String>,
) -> Verdict {
    let (act, door_too) = (case.act, door.clone());
    let acted = match tokio::task::spawn_blocking(move || act(&door_too)).await {
        Ok(Ok(acted)) => acted,
        Ok(Err(why)) => return Verdict::Wrong(why),
        Err(panic) => return Verdict::Wrong(panic.to_string()),
    };
    let said = match &acted {
        Acted::Saw(seen) => match case.expect.judge(seen) {
            Ok(()) => format!("{:?} {:?}", seen.codes, seen.end),
            Err(why) => return Verdict::Wrong(why),
        },
        Acted::Vanished => "nothing leaked".to_owned(),
        Acted::NotApplicable(why) => return Verdict::NotApplicable((*why).to_owned()),
    };
    let perhaps_done = i64::from(matches!(case.expect, Expect::PerhapsDone));
    if let Err(why) = honest.works(perhaps_done).await {
        return Verdict::Wrong(format!("afterwards an honest client is not served: {why}"));
    }
    let until = Instant::now() + door.patience;
    loop {
        match held().await {
            Ok(now) if now.sessions <= before.sessions && now.lanes <= before.lanes => {
                return Verdict::Right(said);
            }
            Ok(_) if Instant::now() < until => tokio::time::sleep(Duration::from_millis(50)).await,
            Ok(now) => return Verdict::Wrong(format!("{now:?} is held, {before:?} before")),
            Err(why) => return Verdict::Wrong(format!("the server does not tell what it holds: {why}")),
        }
    }
}

/// A client that does nothing bad.
struct Honest {
    target: Target,
    client: Client,
    patience: Duration,
    /// How often it has updated the row.
    updates: i64,
}

impl Honest {
    /// Changes what bad clients may have held, and finds only its own changes and at most `others`, over an old and a
    /// new connection.
    async fn works(&mut self, others: i64) -> std::result::Result<(), String> {
        let patience = self.patience;
        let working = async {
            self.client.batch_execute("UPDATE bad_row SET n = n + 1 WHERE id = 1").await.map_err(said)?;
            self.updates += 1;
            let fresh = self.target.connect().await.map_err(|error| error.to_string())?;
            // In a statement by itself, since the lock is given up with its transaction. Whoever held it may still be
            // about to leave.
            let free = "SELECT pg_try_advisory_xact_lock(4711)";
            while !fresh.query_one(free, &[]).await.map_err(said)?.get::<_, bool>(0) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let row =
                fresh.query_one("SELECT count(*), sum(n)::bigint FROM bad_row", &[]).await.map_err(said)?;
            let (rows, sum): (i64, i64) = (row.get(0), row.get(1));
            // Whatever was done is done; the next case is judged by itself.
            let updates = std::mem::replace(&mut self.updates, sum);
            if rows != 2 || !(updates..=updates + others).contains(&sum) {
                return Err(format!("the table has {rows} rows with the sum {sum}, not 2 with {updates}"));
            }
            Ok(())
        };
        match tokio::time::timeout(patience, working).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {patience:?}")),
        }
    }
}

fn said(error: tokio_postgres::Error) -> String {
    describe(&error)
}
