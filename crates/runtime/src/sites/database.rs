//! What a site has its own server do, on connections of the agent's: whole transactions executed, applied, committed; and what the server
//! contains.
//!
//! `onecopy.site_progress` has a row for each place of the order that the database contains, written in the transaction of that place, with the
//! message that stands there: whoever starts with this database compares both with the log.
//!
//! Commits are not waited for until they are on the server's disk, since the log has them. So a server that crashes may forget what it has
//! acknowledged, and is told so: one session, the agent's, is open from the beginning on, and a connection on whose server it is not any more is not
//! used. Whoever finds that begins anew.

mod apply;
mod ends;

pub use apply::ApplyError;
pub use ends::{Begin, Own, begin, open_snapshot};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hashbrown::HashMap;
use onecopy_core::Csn;
use onecopy_wire::backend::{self, Backend, ErrorFields, command_tag, row_count, tag};
use onecopy_wire::frontend::{Target, build};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::messages::{put_bytes, take_bytes};
use super::transaction::Transaction;
use crate::agent::quote;
use crate::errors::Failure;
use crate::lane::{Lane, LaneError, StatementKey, is_going_away};
use crate::postgres::checks::{self, Facts};
use crate::postgres::connect::{AGENT_MARK, Connector, Credentials};
use crate::postgres::fingerprints::{self, Fingerprint};
use crate::postgres::progress::{self, FenceError};
use crate::record::{Record, What, Write};
use crate::results::Results;
use crate::workers;
use onecopy_core::multicast::MessageId;

/// Connections that are kept for later: by the loop of the site, and by each of those that serve clients, who ask for little.
const IDLE_MAX: usize = 64;
const IDLE_ASIDE_MAX: usize = 2;
/// Connections over which sessions may ask something at once beside transactions.
const ASIDE_MAX: usize = 8;
/// Rows of progress that are kept below what is contained without gaps: as many messages are known to stand in the log.
pub const KEEP_ROWS: u64 = 10_000;

/// The site's own server.
pub struct Database {
    connector: Connector,
    agent: Credentials,
    /// The agent's session, as long as nobody has begun anew.
    session: tokio::sync::Mutex<Option<Lane>>,
    session_pid: AtomicU32,
    /// By the event loop on which they were opened.
    idle: Mutex<HashMap<usize, Vec<Lane>>>,
    /// Queries that may run at once.
    pub queries: Semaphore,
    aside: Semaphore,
    /// How statements of others are put together, by their texts and that under which they are read.
    known: Mutex<HashMap<StatementKey, apply::Known>>,
}

/// What the database says of itself.
#[derive(Debug, Default)]
pub struct Contained {
    /// The log that its places are of; none if it has followed none.
    pub log_id: Option<String>,
    /// Why it must not serve.
    pub diverged: Option<String>,
    /// Places, with what stands there. All before the first one are contained, too.
    pub places: BTreeMap<Csn, MessageId>,
    /// Those of them at which nothing has changed.
    pub unchanged: BTreeSet<Csn>,
}

/// What statements have answered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// Of each statement that was executed.
    pub parts: Vec<PartAnswer>,
    /// The message of the error that ended it.
    pub error: Option<Bytes>,
    /// Whatever the error says, the transaction is committed, or may be: its client must not be told later that it was rolled back.
    pub is_over: bool,
}

/// What a statement has answered, as messages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PartAnswer {
    /// The description of its rows, or that it has none.
    pub description: Bytes,
    /// Rows, and notices.
    pub rows: Bytes,
    /// That it is complete.
    pub completion: Bytes,
}

impl Answer {
    pub fn of_failure(failure: &Failure) -> Answer {
        let mut error = BytesMut::new();
        failure.put(&mut error, backend::build::Severity::Error);
        Answer { error: Some(error.freeze()), ..Answer::default() }
    }

    /// Of one that is committed, or may be.
    pub fn of_over(failure: &Failure) -> Answer {
        Answer { is_over: true, ..Answer::of_failure(failure) }
    }

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(u8::from(self.is_over));
        put_bytes(&mut out, self.error.as_deref().unwrap_or_default());
        for part in &self.parts {
            [&part.description, &part.rows, &part.completion]
                .into_iter()
                .for_each(|of| put_bytes(&mut out, of));
        }
        out.freeze()
    }

    pub fn decode(mut input: Bytes) -> Option<Answer> {
        let is_over = input.try_get_u8().ok()? != 0;
        let error = Some(take_bytes(&mut input)?).filter(|error| !error.is_empty());
        let mut parts = Vec::new();
        while input.has_remaining() {
            let mut next = || take_bytes(&mut input);
            parts.push(PartAnswer { description: next()?, rows: next()?, completion: next()? });
        }
        Some(Answer { parts, error, is_over })
    }
}

/// What came of a transaction's statements.
#[derive(Debug)]
pub enum Ran {
    /// All were executed.
    Done(Answer),
    /// One has failed, as it would anywhere else.
    Failed(Answer),
    /// All were executed, and more was answered than may be held.
    TooLarge,
    /// It could not even be begun, for its role or under its settings.
    NotBegun(String),
}

impl Database {
    pub fn new(connector: Connector, agent: Credentials, queries_max: usize) -> Database {
        let queries = Semaphore::new(queries_max);
        let (session, session_pid, idle, known) = Default::default();
        let aside = Semaphore::new(ASIDE_MAX);
        Database { connector, agent, session, session_pid, idle, queries, aside, known }
    }

    /// Ends every earlier session, and begins one that is watched from now on.
    ///
    /// # Errors
    /// When the server cannot be reached, or sessions on it do not end.
    pub async fn watch(&self) -> Result<(), FenceError> {
        let lane = self.fence().await?;
        self.keep(lane).await;
        Ok(())
    }

    async fn fence(&self) -> Result<Lane, FenceError> {
        self.idle.lock().clear();
        let mut lane = self.connector.connect_marked(&self.agent, AGENT_MARK).await?;
        progress::fence_for(&mut lane, None).await?;
        Ok(lane)
    }

    async fn keep(&self, lane: Lane) {
        self.session_pid.store(lane.backend.pid, Ordering::Release);
        *self.session.lock().await = Some(lane);
    }

    /// Ends every earlier session, and reads what is there; makes it follow the log if it follows none.
    ///
    /// # Errors
    /// When the server cannot be reached, or sessions on it do not end.
    pub async fn begin(&self, log_id: &str) -> Result<Contained, FenceError> {
        let mut lane = self.fence().await?;
        let exists = "SELECT pg_catalog.to_regclass('onecopy.site') IS NOT NULL, \
             pg_catalog.to_regclass('onecopy.progress') IS NOT NULL";
        let rows = lane.query(exists).await?;
        let is_there =
            |nth: usize| rows.first().and_then(|row| row.get(nth)).and_then(Option::as_deref) == Some("t");
        if is_there(1) {
            let other = "it follows the log of another protocol: drop its schema \"onecopy\" if all copies are the same, and no onecopy uses it any more";
            return Ok(Contained { diverged: Some(other.to_owned()), ..Contained::default() });
        }
        if !is_there(0) {
            lane.command(&format!(
                "BEGIN; SET LOCAL synchronous_commit = on; CREATE SCHEMA onecopy; \
                 CREATE TABLE onecopy.site (log_id text NOT NULL, diverged text); \
                 INSERT INTO onecopy.site VALUES ({}); \
                 CREATE TABLE onecopy.site_progress (place bigint PRIMARY KEY, node bigint NOT NULL, \
                 incarnation bigint NOT NULL, number bigint NOT NULL); \
                 INSERT INTO onecopy.site_progress VALUES (0, 0, 0, 0); COMMIT",
                quote(log_id)
            ))
            .await?;
        }
        // Earlier versions did not note it.
        lane.command(
            "ALTER TABLE onecopy.site_progress ADD COLUMN IF NOT EXISTS changed boolean NOT NULL DEFAULT true",
        )
        .await?;
        let of_site = lane.query("SELECT log_id, diverged FROM onecopy.site").await?;
        let mut of_site = of_site.into_iter().next().unwrap_or_default().into_iter();
        let (log_id, diverged) = (of_site.next().flatten(), of_site.next().flatten());
        let sql = "SELECT place, node, incarnation, number FROM onecopy.site_progress";
        let unchanged = "SELECT place FROM onecopy.site_progress WHERE NOT changed";
        let place = |row: Vec<Option<String>>| {
            let mut numbers =
                row.into_iter().map(|text| text.and_then(|text| text.parse().ok()).unwrap_or(0));
            let mut next = || numbers.next().unwrap_or(0);
            (Csn(next()), MessageId { node: next(), incarnation: next(), number: next() })
        };
        let places = lane.query(sql).await?.into_iter().map(place).collect();
        let unchanged = lane.query(unchanged).await?.into_iter().map(|row| place(row).0).collect();
        self.keep(lane).await;
        Ok(Contained { log_id, diverged, places, unchanged })
    }

    /// Waits until the agent's session has ended: the server has ended it, or itself.
    pub async fn session_ends(&self) {
        let mut session = self.session.lock().await;
        let Some(lane) = session.as_mut() else { return };
        // What a server says by itself (notices, settings) is nobody's here.
        while lane.fill().await.is_ok() {
            lane.input.clear();
        }
        *session = None;
    }

    /// Notes that the contents differ from what they should be: it is not to serve again.
    pub async fn note_diverged(&self, reason: &str) -> Result<(), LaneError> {
        let mut lane = self.lend().await?;
        let reason = quote(reason);
        lane.command(&format!("SET synchronous_commit = on; UPDATE onecopy.site SET diverged = {reason}"))
            .await
    }

    /// The definitions.
    pub async fn definitions(&self) -> Result<onecopy_classify::Catalogue, LaneError> {
        let mut lane = self.lend().await?;
        let mut plain = self.connector.connect_plain(&self.agent).await?;
        let catalogue = crate::postgres::definitions::read(&mut lane, &mut plain).await?;
        // Its setup stays in force on the lane, which is not given back.
        Ok(catalogue)
    }

    /// What its answers may depend on.
    pub async fn facts(&self) -> Result<Facts, LaneError> {
        let mut plain = self.connector.connect_plain(&self.agent).await?;
        checks::facts(&mut plain).await
    }

    /// What is compared of the definitions.
    pub async fn fingerprints(&self) -> Result<Vec<Fingerprint>, LaneError> {
        let mut lane = self.lend().await?;
        lane.command("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL search_path = pg_catalog")
            .await?;
        let definitions = fingerprints::definitions(&mut lane).await?;
        lane.command("ROLLBACK").await?;
        self.give_back(lane);
        Ok(definitions)
    }

    pub async fn lend(&self) -> Result<Lane, LaneError> {
        let idle = self.idle.lock().get_mut(&workers::current()).and_then(Vec::pop);
        let Some(mut lane) = idle else {
            let mut lane = self.connector.connect_marked(&self.agent, AGENT_MARK + 1).await?;
            let agent = self.session_pid.load(Ordering::Acquire);
            if !self.connector.has_agent(&mut lane, agent).await? {
                return Err(LaneError::Lost(std::io::Error::other("the server was started again")));
            }
            return Ok(lane);
        };
        if lane.has_too_many_prepared() {
            lane.put_closes()?;
            lane.flush().await?;
            lane.collect(1).await?;
        }
        Ok(lane)
    }

    /// That a session may ask something beside transactions, as long as it is held.
    pub async fn aside(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.aside.acquire().await.ok()
    }

    /// Takes a lane back on which nothing is open, from the event loop on which it was lent.
    pub fn give_back(&self, lane: Lane) {
        let mut idle = self.idle.lock();
        let idle = idle.entry(workers::current()).or_default();
        let kept_max = if workers::current() == 0 { IDLE_MAX } else { IDLE_ASIDE_MAX };
        if idle.len() < kept_max {
            idle.push(lane);
        }
    }

    /// Rolls back what is open.
    pub async fn leave(&self, mut lane: Lane) {
        // If it is lost, so is what was open.
        if lane.roll_back().await.is_ok() {
            self.give_back(lane);
        }
    }

    /// Commits what is open, as what stands at some places of the order, and says what else stands before the last one and changed nothing.
    pub async fn commit(
        &self,
        mut lane: Lane,
        places: &[(Csn, MessageId)],
        nothing: &[(Csn, MessageId)],
    ) -> Result<(), LaneError> {
        Own::commit(&mut lane, places, nothing)?.carry_out(&mut lane).await?;
        self.give_back(lane);
        Ok(())
    }

    /// Commits what is open, on the server's disk: there is no log that has it.
    pub async fn commit_durably(&self, mut lane: Lane) -> Result<(), LaneError> {
        Own::commit_durably(&mut lane)?.carry_out(&mut lane).await?;
        self.give_back(lane);
        Ok(())
    }

    /// Executes all statements of a transaction on the connection on which it is open, or begins it on another one; ends what only reads. Returns
    /// the connection, unless it is lost, and as [`run`] does; notes the server's process.
    pub async fn execute(
        &self,
        lane: Option<Lane>,
        pid: &AtomicU32,
        transaction: &Transaction,
        begin: Begin,
        held_max: usize,
    ) -> (Option<Lane>, Result<(Ran, Record), LaneError>) {
        let begins = lane.is_none();
        let lent = match lane {
            Some(lane) => Ok(lane),
            None => self.lend().await,
        };
        let mut lane = match lent {
            Ok(lane) => lane,
            Err(error) => return (None, Err(error)),
        };
        pid.store(lane.backend.pid, Ordering::Relaxed);
        let ran = match begins {
            true => run_after(&mut lane, Some(begin), transaction, held_max, begin == Begin::Query).await,
            false => go_on(&mut lane, transaction, held_max).await,
        };
        // A transaction that the server has given up leaves it well.
        let is_well = ran.as_ref().err().is_none_or(LaneError::is_database);
        (is_well.then_some(lane), ran)
    }

    /// The server's processes for which another one waits.
    pub async fn blockers(&self, pid: u32) -> Result<Vec<u32>, LaneError> {
        let mut lane = self.lend().await?;
        let rows =
            lane.query(&format!("SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids({pid}))")).await?;
        self.give_back(lane);
        Ok(rows.into_iter().flatten().flatten().filter_map(|pid| pid.parse().ok()).collect())
    }

    /// Has the server give up the statement that a process of it executes, if another one still waits for it.
    pub async fn cancel(&self, pid: u32, waits: u32) -> Result<(), LaneError> {
        let mut lane = self.lend().await?;
        lane.query(&format!(
            "SELECT pg_catalog.pg_cancel_backend(pid) FROM pg_catalog.unnest(pg_catalog.pg_blocking_pids({waits})) pid WHERE pid = {pid}"
        ))
        .await?;
        self.give_back(lane);
        Ok(())
    }

    /// Forgets places that nobody needs to know of any more.
    pub async fn prune(&self, contained: Csn) -> Result<(), LaneError> {
        let mut lane = self.lend().await?;
        let below = contained.0.saturating_sub(KEEP_ROWS);
        lane.command(&format!("DELETE FROM onecopy.site_progress WHERE place < {below}")).await?;
        self.give_back(lane);
        Ok(())
    }
}

/// Executes all statements of a transaction that is begun. Returns as [`run`] does.
///
/// # Errors
/// As of [`run`].
pub async fn go_on(
    lane: &mut Lane,
    transaction: &Transaction,
    held_max: usize,
) -> Result<(Ran, Record), LaneError> {
    run_after(lane, None, transaction, held_max, false).await
}

/// Executes all statements of a transaction, and leaves it open. Returns beside what was answered what it wrote, for other sites.
///
/// # Errors
/// When the connection is lost, or the server has given the transaction up for a reason that is not the transaction's.
pub async fn run(
    lane: &mut Lane,
    transaction: &Transaction,
    begin: Begin,
    held_max: usize,
) -> Result<(Ran, Record), LaneError> {
    run_after(lane, Some(begin), transaction, held_max, false).await
}

async fn run_after(
    lane: &mut Lane,
    begin: Option<Begin>,
    transaction: &Transaction,
    held_max: usize,
    ends: bool,
) -> Result<(Ran, Record), LaneError> {
    lane.read_under = transaction.read_under;
    let mut own = match begin {
        Some(begin) => Own::begin(lane, &transaction.record, begin)?,
        None => Own::default(),
    };
    let mut results = Results::default();
    let mut writes = Record { writes: Vec::new(), ..transaction.record.clone() };
    let mut prepared = Vec::new();
    let refers = transaction.parts.iter().any(|part| !part.references.is_empty());
    // What later statements name must be known, whether or not somebody wants to hear it.
    let held_most = if refers { usize::MAX } else { held_max };
    let mut reader = Reader { held_max: held_most, own: own.commands, ..Reader::default() };
    let mut failure = None;
    for (write, part) in transaction.record.writes.iter().zip(&transaction.parts) {
        let what = part.prepared.as_ref().filter(|_| part.runs_prepared).unwrap_or(&write.what);
        let sent = match what {
            What::Text(sql) => {
                let sql = match results.put_into(sql, &part.references) {
                    Ok(sql) => sql,
                    Err(refused) => {
                        failure = Some(refused);
                        break;
                    }
                };
                build::parse(&mut lane.output, "", &sql, [])?;
                build::bind(&mut lane.output, "", "", [], [], [])?;
                What::Text(sql)
            }
            What::Prepared { key, sql, types, bind } => {
                let (name, is_new) = lane.prepare(*key, sql, types)?;
                prepared.extend(is_new.then_some(*key));
                lane.put_bind(&name, bind);
                what.clone()
            }
            What::Copy { .. } => continue,
        };
        build::describe(&mut lane.output, Target::Portal, "")?;
        build::execute(&mut lane.output, "", 0)?;
        if part.is_shipped {
            writes.writes.push(Write::new(part.prepared.clone().unwrap_or(sent)));
        }
        if refers {
            build::flush(&mut lane.output);
            lane.flush_while_reading().await?;
            reader.read_part(lane).await?;
            if reader.error.is_some() {
                break;
            }
            if let Some(answered) = reader.parts.last() {
                results.learn(&[&answered.description[..], &answered.rows].concat());
            }
        }
    }
    if ends {
        own.put(lane, ends::ROLLBACK, &[])?;
    }
    build::sync(&mut lane.output);
    lane.flush_while_reading().await?;
    reader.read_ready(lane).await?;
    let Reader { mut parts, mut error, held, failed_to_begin, .. } = reader;
    if error.is_some() {
        own.forget(lane);
        prepared.into_iter().for_each(|key: StatementKey| lane.unprepare(key));
        if ends {
            // Nobody else may be given what is still open.
            lane.roll_back().await.map_err(|_| LaneError::Closed)?;
        }
    } else if ends {
        // That it has ended.
        parts.pop();
    }
    if let Some(fields) = error.as_ref().map(|(fields, _)| fields)
        && is_not_its_own(fields)
    {
        return Err(LaneError::Database(fields.clone()));
    }
    if let Some((fields, _)) = error.as_ref().filter(|_| failed_to_begin) {
        return Ok((Ran::NotBegun(fields.message.clone()), writes));
    }
    if let Some(failure) = failure.filter(|_| error.is_none()) {
        let answer = Answer::of_failure(&failure);
        return Ok((Ran::Failed(Answer { parts, ..answer }), writes));
    }
    let mut completions = parts.iter().zip(&transaction.parts).filter(|(_, part)| part.is_shipped);
    for write in &mut writes.writes {
        let tag = completions.next().and_then(|(answered, _)| tag_of(&answered.completion));
        write.rows = tag.as_deref().and_then(row_count);
    }
    let error = error.take().map(|(_, message)| message);
    let answer = Answer { parts, error, is_over: false };
    let ran = match answer.error {
        Some(_) => Ran::Failed(answer),
        None if held > held_max => Ran::TooLarge,
        None => Ran::Done(answer),
    };
    Ok((ran, writes))
}

/// What the server says of a statement, or, if it is bound, of a portal; leaves a transaction open.
pub async fn describe(
    lane: &mut Lane,
    record: &Record,
    sql: &str,
    types: &[u32],
    bind: Option<&Bytes>,
) -> Result<Bytes, LaneError> {
    let own = Own::begin(lane, record, Begin::Query)?;
    build::parse(&mut lane.output, "", sql, types.iter().copied())?;
    match bind {
        Some(bind) => {
            lane.put_bind("", bind);
            build::describe(&mut lane.output, Target::Portal, "")?;
        }
        None => build::describe(&mut lane.output, Target::Statement, "")?,
    }
    build::sync(&mut lane.output);
    lane.flush_while_reading().await?;
    let (mut said, mut error, mut is_ready) = (BytesMut::new(), None, false);
    while !is_ready {
        let head = lane.next_frame().await?;
        match head.tag {
            // Those of our own are not asked for it.
            tag::PARAMETER_DESCRIPTION | tag::ROW_DESCRIPTION | tag::NO_DATA => {
                said.extend_from_slice(&lane.input[..head.len]);
            }
            tag::ERROR_RESPONSE => {
                if let Backend::Error(fields) = backend::decode(head.tag, lane.body(head))? {
                    error.get_or_insert_with(|| Box::new(fields.to_owned()));
                }
            }
            tag::READY_FOR_QUERY => is_ready = true,
            _ => {}
        }
        lane.consume(head);
    }
    if error.is_some() {
        own.forget(lane);
    }
    error.map_or(Ok(said.freeze()), |fields| Err(LaneError::Database(fields)))
}

/// The words of a CommandComplete.
fn tag_of(message: &[u8]) -> Option<String> {
    let body = message.get(onecopy_wire::frame::HEAD_LEN..)?;
    command_tag(body).ok().map(str::to_owned)
}

/// Whether an error says nothing about the transaction: its server gave it up, and may take it the next time.
fn is_not_its_own(fields: &ErrorFields) -> bool {
    let code = fields.code;
    // Of the connection, of resources, of the system, of its files, of PostgreSQL itself.
    let is_of_class = ["08", "53", "58", "F0", "XX"].iter().any(|class| code.as_str().starts_with(class));
    is_going_away(code)
        || is_of_class
        || matches!(code.as_str(), "40P01" | "40001" | "57014" | "55P03" | "25P02" | "25P03" | "25P04")
}

/// Reads what is answered.
#[derive(Default)]
struct Reader {
    /// Commands of our own that begin the transaction, and are still to be completed.
    own: usize,
    failed_to_begin: bool,
    parts: Vec<PartAnswer>,
    current: Current,
    error: Option<(Box<ErrorFields>, Bytes)>,
    held_max: usize,
    held: usize,
}

#[derive(Default)]
struct Current {
    description: BytesMut,
    rows: BytesMut,
}

impl Reader {
    /// Reads on up to a ReadyForQuery.
    async fn read_ready(&mut self, lane: &mut Lane) -> Result<(), LaneError> {
        while !self.read_one(lane).await?.is_ready {}
        Ok(())
    }

    /// Reads on until a statement is complete, or has failed.
    async fn read_part(&mut self, lane: &mut Lane) -> Result<(), LaneError> {
        while !self.read_one(lane).await?.ends_part {}
        Ok(())
    }

    async fn read_one(&mut self, lane: &mut Lane) -> Result<One, LaneError> {
        let head = lane.next_frame().await?;
        let mut one = One { is_ready: false, ends_part: false };
        let message = &lane.input[..head.len];
        match head.tag {
            tag::ERROR_RESPONSE => {
                if let Backend::Error(fields) = backend::decode(head.tag, lane.body(head))? {
                    let message = Bytes::copy_from_slice(message);
                    self.failed_to_begin |= self.own > 0;
                    self.error.get_or_insert_with(|| (Box::new(fields.to_owned()), message));
                }
                one.ends_part = true;
            }
            tag::READY_FOR_QUERY => one.is_ready = true,
            tag::COMMAND_COMPLETE if self.own > 0 => self.own -= 1,
            _ if self.own > 0 => {}
            tag::ROW_DESCRIPTION | tag::NO_DATA => self.current.description.extend_from_slice(message),
            tag::DATA_ROW | tag::NOTICE_RESPONSE => {
                self.held += message.len();
                if self.held <= self.held_max {
                    self.current.rows.extend_from_slice(message);
                }
            }
            tag::COMMAND_COMPLETE | tag::EMPTY_QUERY_RESPONSE => {
                let Current { description, rows } = std::mem::take(&mut self.current);
                let completion = Bytes::copy_from_slice(message);
                let (description, rows) = (description.freeze(), rows.freeze());
                self.parts.push(PartAnswer { description, rows, completion });
                one.ends_part = true;
            }
            _ => {}
        }
        lane.consume(head);
        Ok(one)
    }
}

struct One {
    is_ready: bool,
    ends_part: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_as_they_went() {
        let some = |text: &'static str| Bytes::from_static(text.as_bytes());
        let part = PartAnswer { description: some("T"), rows: some(""), completion: some("C") };
        for answer in [
            Answer { parts: vec![part.clone(), part], ..Answer::default() },
            Answer { error: Some(some("E")), is_over: true, ..Answer::default() },
        ] {
            assert_eq!(Answer::decode(answer.encode()), Some(answer));
        }
        assert_eq!(Answer::decode(some("\0\0\0\0")), None);
    }
}
