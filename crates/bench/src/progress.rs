//! What the bookkeeping of commits costs a replica while somebody holds a snapshot open on it.
//!
//! Every database transaction that a replica commits says in the same transaction which commit it was. Dead rows of that
//! bookkeeping cannot be removed while an old snapshot might still see them, so a form that updates, deletes or looks
//! rows up carelessly becomes slower with every commit, for as long as somebody leaves a transaction open.
//!
//! [`run`] starts a server of its own, opens a REPEATABLE READ snapshot on it and then does nothing but the bookkeeping
//! of a number of commits, pipelined as a replica's agent does. It reports the rate of each tenth, and the CPU time that
//! the server process spent. A machine's own speed changes in the minutes that this takes, so the last tenth is not compared
//! with the first one of the same server: a second server does its first tenth meanwhile, and the two take turns.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use onecopy_cluster::{Options as ServerOptions, Server};
use postgres_protocol::message::frontend;
use serde::Serialize;
use tokio_postgres::Client;

use crate::compare::Spread;
use crate::connection::Target;
use crate::{Error, Result};

/// How many parts are reported, each with a rate of its own.
const PARTS: u64 = 10;
/// In how many turns the last part of one server and the first one of another alternate.
const TURNS: u64 = 25;
/// Database transactions sent before the first answer is read: small enough for the sockets to hold their answers.
const PIPELINE: usize = 128;

/// The statements of the bookkeeping: those that the product uses.
#[derive(Clone, Copy, Debug)]
pub struct Statements {
    /// Commands that create it for a log that has committed nothing yet.
    pub create: fn() -> String,
    /// Marks commits: `$1` the CSN before them, `$2` the last one, `$3` the epoch, all bigint.
    pub advance: &'static str,
    /// The command that deletes what nobody needs any more, given up to where it was done last and the newest CSN.
    pub prune: fn(u64, u64) -> String,
    /// Commits after which it is time for the next `prune`.
    pub prune_every: u64,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bookkeeping of so many commits is done.
    pub commits: u64,
    /// Commits that share one database transaction, and so one row: 1 is what a replica does that executes
    /// transactions itself, more what one does that applies them in groups.
    pub group: u64,
    /// Whether a snapshot is held open from before the first commit to after the last one.
    pub snapshot: bool,
    /// The statements.
    pub statements: Statements,
    /// Called after each tenth.
    pub on_part: Option<fn(&Part)>,
}

/// A tenth of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Part {
    /// Commits up to here.
    pub commits: u64,
    /// Commits a second within this part.
    pub per_second: f64,
    /// CPU time of the server process a commit within this part, in microseconds.
    pub cpu_us: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Commits that share one row.
    pub group: u64,
    /// Whether a snapshot was held open.
    pub snapshot: bool,
    /// The tenths, in order.
    pub parts: Vec<Part>,
    /// The turns of the last tenth, each with one of another server's first tenth.
    pub turns: Vec<Turn>,
    /// Rows that the server can see no more but may not remove, at the end: as it estimates them.
    pub dead_rows: i64,
}

/// Two measurements, one right after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Turn {
    /// Some of a server's first commits.
    pub first: Part,
    /// Some of another server's last ones.
    pub last: Part,
}

impl Report {
    /// The rate of last commits as a share of that of first ones, over all turns.
    #[must_use]
    pub fn last_to_first(&self) -> Option<Spread> {
        Spread::of(self.turns.iter().map(|turn| turn.last.per_second / turn.first.per_second))
    }

    /// The CPU time of a first commit as a share of that of a last one, all turns together: a clock tick is too long for one.
    #[must_use]
    pub fn last_to_first_by_cpu(&self) -> f64 {
        let total = |part: fn(&Turn) -> Part| self.turns.iter().map(|turn| part(turn).cpu_us).sum::<f64>();
        total(|turn| turn.first) / total(|turn| turn.last)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12} {:>12.0} {:>14.2}", self.commits, self.per_second, self.cpu_us)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = if self.snapshot { "under a held snapshot" } else { "without a held snapshot" };
        writeln!(f, "{} commits a row, {held}, {} dead rows at the end", self.group, self.dead_rows)?;
        writeln!(f, "{:>12} {:>12} {:>14}", "commits", "a second", "CPU us each")?;
        for part in &self.parts {
            writeln!(f, "{part}")?;
        }
        let Some(rate) = self.last_to_first() else { return Ok(()) };
        let (turns, by_cpu) = (self.turns.len(), self.last_to_first_by_cpu());
        write!(
            f,
            "the last tenth in {turns} turns with the first one of another server: {:.3} of its rate ({:.3} to {:.3}), by CPU time {by_cpu:.3}",
            rate.median, rate.low, rate.high
        )
    }
}

/// Runs the benchmark to its end.
///
/// # Errors
/// If a server cannot be started, or refuses what it is asked.
pub async fn run(options: &Options) -> Result<Report> {
    let commits_min = PARTS * TURNS * options.group;
    if options.group == 0 || options.commits < commits_min {
        let why = format!(
            "{} commits in groups of {} are too few to compare tenths in {TURNS} turns: ask for {} at least",
            options.commits,
            options.group,
            commits_min.max(PARTS * TURNS)
        );
        return Err(Error::Option(why));
    }
    let (old, new) = (Bookkept::start(options).await?, Bookkept::start(options).await?);
    let lanes = (old.lane(options)?, new.lane(options)?);
    let inner = options.clone();
    let (parts, turns) = tokio::task::spawn_blocking(move || measure(&inner, lanes))
        .await
        .map_err(|panic| Error::program("benchmark", panic.to_string()))??;
    let units = options.commits / options.group;
    new.expect(units / PARTS * options.group).await?;
    old.expect(units * options.group).await?;
    let dead_rows = old.dead_rows().await?;
    Ok(Report { group: options.group, snapshot: options.snapshot, parts, turns, dead_rows })
}

/// A server with the bookkeeping, and nothing else.
struct Bookkept {
    server: Server,
    client: Client,
    /// Holds the snapshot, if there is to be one.
    _holder: Client,
}

impl Bookkept {
    async fn start(options: &Options) -> Result<Bookkept> {
        let server = Server::temporary(&ServerOptions::replica())
            .map_err(|error| Error::program("start a server", error.to_string()))?;
        let target = Target::parse(&server.dsn())?;
        let client = target.connect().await?;
        client
            .batch_execute(&(options.statements.create)())
            .await
            .map_err(Error::database("create the bookkeeping"))?;
        let holder = target.connect().await?;
        if options.snapshot {
            let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM onecopy.progress";
            holder.batch_execute(hold).await.map_err(Error::database("hold a snapshot"))?;
        }
        Ok(Bookkept { server, client, _holder: holder })
    }

    fn lane(&self, options: &Options) -> Result<Marks> {
        let mut lane = Lane::connect(self.server.port(), self.server.superuser())?;
        lane.prepare("begin", "BEGIN")?;
        lane.prepare("advance", options.statements.advance)?;
        lane.prepare("commit", "COMMIT")?;
        Ok(Marks { lane, group: options.group, statements: options.statements, done: 0, pruned: 0 })
    }

    /// Fails unless that is the newest commit.
    async fn expect(&self, expected: u64) -> Result<()> {
        let newest = self
            .client
            .query_one("SELECT max(csn) FROM onecopy.progress", &[])
            .await
            .map_err(Error::database("read the newest commit"))?
            .get::<_, i64>(0);
        if u64::try_from(newest).ok() == Some(expected) {
            return Ok(());
        }
        Err(Error::program("benchmark", format!("the newest commit is {newest}, not {expected}")))
    }

    async fn dead_rows(&self) -> Result<i64> {
        let flush = "SELECT pg_stat_force_next_flush()";
        self.client.batch_execute(flush).await.map_err(Error::database("flush statistics"))?;
        let dead = "SELECT n_dead_tup FROM pg_stat_user_tables
                    WHERE schemaname = 'onecopy' AND relname = 'progress'";
        let row = self.client.query_one(dead, &[]).await.map_err(Error::database("count dead rows"))?;
        Ok(row.get(0))
    }
}

fn measure(options: &Options, (mut old, mut new): (Marks, Marks)) -> Result<(Vec<Part>, Vec<Turn>)> {
    let units = options.commits / options.group;
    let tell = |part: &Part| {
        if let Some(on_part) = options.on_part {
            on_part(part);
        }
    };
    let mut parts = Vec::new();
    for part in 1..PARTS {
        parts.push(old.advance(units * part / PARTS)?);
        parts.last().into_iter().for_each(tell);
    }
    let (begun, last, first) = (old.done, units - old.done, units / PARTS);
    let mut turns = Vec::new();
    for turn in 1..=TURNS {
        let last = old.advance(begun + last * turn / TURNS)?;
        let first = new.advance(first * turn / TURNS)?;
        turns.push(Turn { first, last });
    }
    let count = turns.len() as f64;
    let seconds = turns.iter().map(|turn| 1.0 / turn.last.per_second).sum::<f64>();
    let cpu_us = turns.iter().map(|turn| turn.last.cpu_us).sum::<f64>() / count;
    parts.push(Part { commits: old.done * options.group, per_second: count / seconds, cpu_us });
    parts.last().into_iter().for_each(tell);
    Ok((parts, turns))
}

/// The bookkeeping of one commit after the other.
struct Marks {
    lane: Lane,
    group: u64,
    statements: Statements,
    /// Database transactions so far.
    done: u64,
    /// Up to which commit there is nothing left to delete.
    pruned: u64,
}

impl Marks {
    /// Goes on up to so many database transactions in all.
    fn advance(&mut self, end: u64) -> Result<Part> {
        let (first, began, cpu) = (self.done, Instant::now(), self.lane.cpu());
        while self.done < end {
            let units = (end - self.done).min(PIPELINE as u64);
            for unit in self.done..self.done + units {
                self.lane.put_unit(unit * self.group, (unit + 1) * self.group)?;
            }
            self.lane.run(units)?;
            self.done += units;
            let newest = self.done * self.group;
            if newest >= self.pruned + self.statements.prune_every {
                self.lane.simple(&(self.statements.prune)(self.pruned, newest))?;
                self.pruned = newest;
            }
        }
        let commits = ((self.done - first) * self.group) as f64;
        Ok(Part {
            commits: self.done * self.group,
            per_second: commits / began.elapsed().as_secs_f64(),
            cpu_us: self.lane.cpu().saturating_sub(cpu).as_secs_f64() * 1e6 / commits,
        })
    }
}

/// A connection that sends several transactions before it reads the first answer.
struct Lane {
    stream: TcpStream,
    output: BytesMut,
    input: BytesMut,
    pid: i32,
}

impl Lane {
    fn connect(port: u16, user: &str) -> Result<Lane> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(io("connect"))?;
        stream.set_nodelay(true).map_err(io("connect"))?;
        let mut lane = Lane { stream, output: BytesMut::new(), input: BytesMut::new(), pid: 0 };
        frontend::startup_message([("user", user), ("database", "postgres")], &mut lane.output)
            .map_err(io("connect"))?;
        lane.run(1)?;
        Ok(lane)
    }

    fn prepare(&mut self, name: &str, sql: &str) -> Result<()> {
        frontend::parse(name, sql, [], &mut self.output).map_err(io("prepare"))?;
        frontend::sync(&mut self.output);
        self.run(1)
    }

    fn simple(&mut self, sql: &str) -> Result<()> {
        frontend::query(sql, &mut self.output).map_err(io("send"))?;
        self.run(1)
    }

    /// One database transaction, up to its Sync.
    fn put_unit(&mut self, before: u64, to: u64) -> Result<()> {
        self.put("begin", &[])?;
        self.put("advance", &[before, to, 1])?;
        self.put("commit", &[])?;
        frontend::sync(&mut self.output);
        Ok(())
    }

    fn put(&mut self, statement: &str, params: &[u64]) -> Result<()> {
        let bound = frontend::bind(
            "",
            statement,
            [1],
            params,
            |param, out| {
                out.extend_from_slice(&param.to_be_bytes());
                Ok(postgres_protocol::IsNull::No)
            },
            [],
            &mut self.output,
        );
        bound.map_err(|_| Error::program("benchmark", "parameters cannot be sent".to_owned()))?;
        frontend::execute("", 0, &mut self.output).map_err(io("send"))
    }

    /// Sends what was put, and reads answers up to so many ReadyForQuery.
    fn run(&mut self, ready: u64) -> Result<()> {
        self.stream.write_all(&self.output).map_err(io("send"))?;
        self.output.clear();
        let mut left = ready;
        let mut buffer = [0; 65_536];
        while left > 0 {
            while let Some((tag, body)) = self.frame() {
                match tag {
                    b'Z' => left -= 1,
                    b'K' if body.len() >= 4 => self.pid = body.clone().get_i32(),
                    b'E' => return Err(refused(&body)),
                    _ => {}
                }
            }
            if left > 0 {
                match self.stream.read(&mut buffer).map_err(io("read"))? {
                    0 => return Err(Error::program("server", "it closed the connection".to_owned())),
                    len => self.input.extend_from_slice(&buffer[..len]),
                }
            }
        }
        Ok(())
    }

    /// The next whole message, if there is one: its type and its body.
    fn frame(&mut self) -> Option<(u8, BytesMut)> {
        let mut head = self.input.get(..5)?;
        let (tag, len) = (head.get_u8(), 1 + head.get_u32() as usize);
        (self.input.len() >= len).then(|| (tag, self.input.split_to(len).split_off(5)))
    }

    /// CPU time that the server process of this connection has spent.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name may hold anything, so fields are counted from the last parenthesis.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

/// SQLSTATE and message of an error: fields of a letter and a text each, ended by zero bytes.
fn refused(body: &[u8]) -> Error {
    let fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    let words =
        fields.filter(|(kind, _)| matches!(kind, b'C' | b'M')).map(|(_, text)| String::from_utf8_lossy(text));
    Error::program("server", words.collect::<Vec<_>>().join(": "))
}

fn io(doing: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::program(doing, error.to_string())
}
