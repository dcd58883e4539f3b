//! One client's session: reads its messages, executes them in the order in which they come, and answers.
//!
//! The session decides nothing about order or place: it classifies a statement, tells the scheduler, and carries out
//! the directives that come back on lanes that it borrows.

pub mod client;
pub mod home;
pub mod txn;
pub mod unit;

mod answers;
mod beside;
mod calls;
mod captured;
pub mod carried;
mod commands;
mod commit;
mod control;
mod course;
mod declared;
pub mod drawn;
pub mod environment;
mod everywhere;
mod extended;
mod fetched;
pub mod frozen;
mod job;
mod listening;
mod moved;
mod numbered;
pub mod patience;
mod portals;
mod prepared;
mod prepared_read;
mod run;
mod sequences;
pub mod settings;
mod shipping;
mod shown;
mod simple;
mod special;
mod statements;
mod whole;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hashbrown::HashMap;
use onecopy_classify::{Isolation, Scratch};
use onecopy_core::SessionId;
use onecopy_wire::backend::{Status, build, build::Severity};
use onecopy_wire::frontend::{self, Frontend};
use onecopy_wire::sqlstate::SqlState;
use onecopy_wire::{Malformed, WireError};

use crate::advisory::SessionLocks;
use crate::classifier::Manner;
use crate::clock::Deadline;
use crate::errors::Failure;
use crate::notifications::{Listener, Notification};
use crate::postgres::connect::Credentials;
use crate::scheduler::Mail;
use crate::server::Shared;
use crate::server::cancel::Cancellable;
use carried::Carried;
use client::{Client, ClientError};
use drawn::Drawn;
use environment::{Environment, IDLE_IN_TRANSACTION, IDLE_SESSION};
use everywhere::Everywhere;
use fetched::Fetch;
use frozen::Foreseen;
use portals::Portal;
use prepared_read::PlacedRead;
use statements::Statements;
use txn::Txn;
use unit::Step;

/// One client's session.
pub struct Session {
    shared: Arc<Shared>,
    id: SessionId,
    client: Client,
    who: Credentials,
    mail: Arc<Mail>,
    cancel: Arc<Cancellable>,
    environment: Environment,
    statements: Statements,
    /// Names among them of which the client has not heard yet that they are prepared.
    unconfirmed: Vec<String>,
    portals: HashMap<String, Arc<Portal>>,
    /// How many portals have been bound.
    portals_bound: u64,
    /// Messages of the extended protocol that wait for the Execute or Sync that sends them.
    steps: Vec<Step>,
    /// An error was answered: everything up to the next Sync is skipped.
    skipping: bool,
    txn: Option<Txn>,
    /// How changes reach other replicas, from the first statement that is classified until nothing is under way.
    manner: Option<Arc<Manner>>,
    /// Where the protocol executes every write on every replica.
    everywhere: Option<Everywhere>,
    /// What was drawn of sequences for the next statement before its transaction began.
    foreseen: Vec<Foreseen>,
    /// The transaction was given up for no reason of its own, and may come again: its replica is lost, or definitions have changed.
    is_void: bool,
    /// How old what the next statement reads may be, in nanoseconds, if its client said so.
    stale_ok_ns: Option<u64>,
    /// Microseconds since 1970 that a statement outside any transaction took for its `now()`, since the last message
    /// that ended a transaction.
    moment: Option<i64>,
    /// What the client has been told of the server's settings.
    reported: HashMap<String, String>,
    scratch: Scratch,
    held: BytesMut,
    drawn: Drawn,
    default_read_only: bool,
    default_deferrable: bool,
    /// By SET SESSION CHARACTERISTICS.
    default_isolation: Option<Isolation>,
    /// The schemas in which names are looked up, and the settings under which that was found out.
    path: (u64, Arc<Vec<String>>),
    /// What its transactions have in common, and the settings under which that was found out.
    form: Option<(u64, u64)>,
    /// Its advisory locks.
    locks: SessionLocks,
    /// The Execute under way, if its portal writes and returns rows.
    fetch: Option<Fetch>,
    /// A read that the core has heard of before its messages were taken one by one.
    placed_read: Option<PlacedRead>,
    /// What it listens to, once it has listened to anything.
    listener: Option<Listener>,
    /// What a statement of its own transaction has notified so far.
    notified: Vec<Notification>,
    /// More was notified than may wait: the connection ends.
    deaf: bool,
    /// A front carries it.
    carried: Option<Carried>,
}

/// What came of a statement for the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Done {
    /// It was answered; go on.
    Answered,
    /// An error was answered: skip the rest of the message, or everything up to Sync.
    Failed,
}

impl Session {
    pub fn new(
        shared: Arc<Shared>,
        id: SessionId,
        client: Client,
        who: Credentials,
        cancel: Arc<Cancellable>,
        environment: Environment,
        reported: HashMap<String, String>,
    ) -> Session {
        Session {
            locks: SessionLocks::new(&shared.advisory_locks, id),
            fetch: None,
            placed_read: None,
            stale_ok_ns: None,
            foreseen: Vec::new(),
            is_void: false,
            everywhere: shared.scheduler.everywhere.map(|statements| Everywhere::new(statements, &who)),
            listener: None,
            notified: Vec::new(),
            deaf: false,
            carried: None,
            shared,
            id,
            client,
            who,
            mail: Arc::default(),
            cancel,
            environment,
            statements: Statements::default(),
            unconfirmed: Vec::new(),
            portals: HashMap::new(),
            portals_bound: 0,
            steps: Vec::new(),
            skipping: false,
            txn: None,
            manner: None,
            moment: None,
            reported,
            scratch: Scratch::default(),
            held: BytesMut::new(),
            drawn: Drawn::default(),
            default_read_only: false,
            default_deferrable: false,
            default_isolation: None,
            path: (0, Arc::default()),
            form: None,
        }
    }

    /// Serves until the client leaves or breaks the protocol.
    pub async fn run(mut self) {
        let end = self.serve().await;
        self.forget_placed_read();
        self.abandon();
        match end {
            // What was answered before it said goodbye may not have been sent yet.
            Ok(()) => self.client.close().await,
            Err(ClientError::Gone | ClientError::Lost(_)) => {}
            Err(ClientError::Protocol(what)) => {
                let failure = Failure::new(SqlState::PROTOCOL_VIOLATION, what);
                failure.put(&mut self.client.output, Severity::Fatal);
                self.client.close().await;
            }
            Err(ClientError::TooLarge(what)) => {
                // What follows cannot be told from the message: the connection ends.
                let failure = Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, what)
                    .hint("limits.statement_bytes_max is the limit.");
                failure.put(&mut self.client.output, Severity::Fatal);
                self.client.close().await;
            }
        }
    }

    async fn serve(&mut self) -> Result<(), ClientError> {
        loop {
            if self.txn.is_none() && self.steps.is_empty() && self.portals.is_empty() {
                self.manner = None;
            }
            if !self.message_arrives().await? {
                return Ok(());
            }
            if self.serve_prepared_read().await? {
                continue;
            }
            let (tag, body) = self.client.next().await?;
            let body = body.freeze();
            if self.carried.is_some() && self.is_said_by_front(tag, &body).await? {
                continue;
            }
            let message = match frontend::decode(tag, &body) {
                Err(WireError::Client(Malformed::NotUtf8 { .. })) if !self.skipping => {
                    self.on_bad_text(tag, &body).await?;
                    continue;
                }
                Err(WireError::Client(Malformed::FormatCount { formats, values, .. })) => {
                    if !self.skipping {
                        let what =
                            format!("bind message has {formats} parameter formats but {values} parameters");
                        let failure = Failure::new(SqlState::PROTOCOL_VIOLATION, what);
                        self.fail_after_steps(&failure).await?;
                    }
                    continue;
                }
                Err(WireError::Client(Malformed::NotUtf8 { .. })) => continue,
                decoded => decoded?,
            };
            match message {
                Frontend::Query(sql) if !self.skipping => self.on_query(sql).await?,
                Frontend::Parse(parse) if !self.skipping => self.on_parse(&parse).await?,
                Frontend::Bind(bind) if !self.skipping => {
                    self.on_bind(&bind, body.clone()).await?;
                }
                Frontend::Describe(named) if !self.skipping => self.on_describe(named).await?,
                Frontend::Execute(execute) if !self.skipping => {
                    self.on_execute(execute.portal, execute.max_rows).await?;
                }
                Frontend::Close(named) if !self.skipping => self.on_close(named),
                Frontend::Flush if !self.skipping => {
                    self.run_steps(false).await?;
                    self.client.flush().await?;
                }
                Frontend::Sync => self.on_sync().await?,
                Frontend::Terminate => return Ok(()),
                Frontend::FunctionCall(_) if !self.skipping => {
                    let failure = Failure::unsupported(
                        "the function call message is not supported",
                        "Call the function by SELECT; libpq's large object functions need a direct connection.",
                    );
                    self.fail(&failure);
                    self.ready();
                    self.skipping = false;
                }
                Frontend::Password(_) => {
                    let what = "a password was sent, and none was asked for";
                    return Err(ClientError::Protocol(what.to_owned()));
                }
                // What is left of a COPY that the server gave up, and what is skipped.
                _ => {}
            }
        }
    }

    /// A text that is not UTF-8, as from a client that uses another encoding, fails like any wrong statement.
    async fn on_bad_text(&mut self, tag: u8, body: &[u8]) -> Result<(), ClientError> {
        self.fail(&Failure::not_utf8(body));
        if tag == frontend::tag::QUERY {
            self.end_implicit().await?;
            self.skipping = false;
            self.ready();
        }
        Ok(())
    }

    /// For how long the client may be silent now, and what it hears after that.
    fn silence_max(&self) -> Option<(Duration, Failure)> {
        if self.txn.is_none() {
            let what = "terminating connection due to idle-session timeout";
            let limit = self.timeout(IDLE_SESSION)?;
            return Some((limit, Failure::new(SqlState::IDLE_SESSION_TIMEOUT, what)));
        }
        let what = "terminating connection due to idle-in-transaction timeout";
        let failure = Failure::new(SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT, what);
        let limit_ms = self.shared.limits.idle_in_transaction_timeout_ms;
        let limit = (limit_ms > 0).then(|| Duration::from_millis(limit_ms));
        match (self.timeout(IDLE_IN_TRANSACTION), limit) {
            (Some(own), limit) if limit.is_none_or(|limit| own < limit) => Some((own, failure)),
            (_, Some(limit)) => Some((limit, failure.hint("An idle open transaction blocks others on every replica; limits.idle_in_transaction_timeout_ms is the limit."))),
            (_, None) => None,
        }
    }

    /// Waits for the next message to be there whole; says whether it is, or the client stayed idle for too long.
    async fn message_arrives(&mut self) -> Result<bool, ClientError> {
        if self.client.peek()?.is_some() {
            return Ok(true);
        }
        let limit = self.silence_max();
        let listens = self.txn.is_none() && self.listener.is_some();
        if limit.is_none() && !listens && !self.deaf {
            self.client.arrives().await?;
            return Ok(true);
        }
        let deadline = limit.as_ref().map(|(limit, _)| Deadline::after(*limit));
        let silence_ends = async {
            match deadline {
                Some(deadline) => deadline.reached().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(silence_ends);
        loop {
            if self.client.peek()?.is_some() {
                return Ok(true);
            }
            if listens {
                self.deliver_notifications();
            }
            if self.deaf {
                return self.end_by(&listening::overflow()).await;
            }
            self.client.flush().await?;
            let arrived = async {
                match &self.listener {
                    Some(listener) if listens => listener.arrived().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                received = self.client.fill() => received?,
                () = arrived => {}
                () = &mut silence_ends => {
                    let Some((_, failure)) = limit else { continue };
                    return self.end_by(&failure).await;
                }
            }
        }
    }

    /// Tells the client why its connection ends.
    async fn end_by(&mut self, failure: &Failure) -> Result<bool, ClientError> {
        failure.put(&mut self.client.output, Severity::Fatal);
        self.client.flush().await?;
        Ok(false)
    }

    /// Answers an error of our own. The transaction, if one is open, has failed.
    fn fail(&mut self, failure: &Failure) {
        self.fail_with(|out| failure.put(out, Severity::Error));
    }

    fn fail_with(&mut self, put: impl FnOnce(&mut BytesMut)) {
        // The client never hears that they are prepared, so they must not be.
        for name in self.unconfirmed.drain(..) {
            self.statements.remove(&name);
        }
        put(&mut self.client.output);
        self.steps.clear();
        self.skipping = true;
        self.fail_transaction();
    }

    fn status(&self) -> Status {
        match &self.txn {
            None => self.status_outside(),
            Some(txn) if txn.failed => Status::Failed,
            Some(_) => Status::InTransaction,
        }
    }

    fn ready(&mut self) {
        self.deliver_notifications();
        let status = self.status();
        if status == Status::Idle {
            self.tell_front();
        } else {
            self.tell_front_of_chained();
        }
        build::ready_for_query(&mut self.client.output, status);
    }
}
