//! A transaction that comes statement by statement: each is executed at once where the client is, in the transaction's snapshot, and at COMMIT the site is told what
//! all of them have touched and written.
//!
//! Its client has seen answers. So if it may not commit where it comes to stand in the order, its client hears of that (40001), and is to run it again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use onecopy_classify::{Kind, Modes};
use onecopy_core::{Access, Csn};
use onecopy_wire::backend::build;
use onecopy_wire::backend::build::{Report, Severity};
use onecopy_wire::sqlstate::SqlState;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    Portal, Session, Step, failure_of, is_bracket, not_known_failure, overdue_failure, without_brackets,
};
use crate::classifier::Statement;
use crate::clock::Deadline;
use crate::errors::Failure;
use crate::record::{Record, Settings, What, Write};
use crate::session::client::ClientError;
use crate::sites::Shared;
use crate::sites::database::{PartAnswer, Ran};
use crate::sites::spoken::{Ask, Beginning, Name};
use crate::sites::transaction::{Part, Transaction, not_whole, refusal_of_write};

/// One that is open.
pub(super) struct Conversation {
    shared: Arc<Shared>,
    /// When it began, in microseconds since 1970.
    moment: i64,
    read_only: bool,
    settings: Settings,
    /// What it is called at its site, from its first statement on, and what allows it to have a connection.
    begun: Option<(Name, OwnedSemaphorePermit)>,
    /// What it has touched, whether or not that was taken back.
    access: BTreeSet<Access>,
    writes: Vec<Write>,
    /// Names of savepoints, with the number of writes before each.
    savepoints: Vec<(String, usize)>,
    has_failed: bool,
    /// Its site has given it up. Whoever has not heard of that, or did not listen, hears it at COMMIT.
    is_given_up: bool,
}

impl Conversation {
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Its client was told of an error.
    pub(super) fn fail(&mut self) {
        self.has_failed = true;
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let (Some((name, _)), Some(spoken)) = (self.begun.take(), &self.shared.spoken) {
            let answer = oneshot::channel().0;
            // Without anybody who hears it the site is ending.
            let _heard = (spoken.speak)(Ask::End { name, did: None, answer });
        }
    }
}

/// What a statement is answered by.
enum Reply {
    Tag(String),
    Part(PartAnswer),
}

/// A statement as it came.
enum Said<'s> {
    Text(&'s str),
    Portal(&'s Portal),
}

fn tag(words: &str) -> Result<Reply, Failure> {
    Ok(Reply::Tag(words.to_owned()))
}

fn ending() -> Failure {
    Failure::new(SqlState::ADMIN_SHUTDOWN, "this site is ending")
        .hint("Nothing of a transaction that was not committed has happened.")
}

/// What was asked and is not answered any more: the site begins anew, or ends; or has given it up before.
fn given_up_by_site() -> Failure {
    Failure::new(
        SqlState::SERIALIZATION_FAILURE,
        "the transaction was given up by this site, for one that comes before it or since the site begins anew",
    )
    .hint("Nothing of it was committed. Run it again.")
}

/// Whether it is about the transaction that it is part of.
fn controls(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Begin(_)
            | Kind::Commit { .. }
            | Kind::Rollback { .. }
            | Kind::Savepoint(_)
            | Kind::Release(_)
            | Kind::RollbackTo(_)
            | Kind::SetTransaction { session: false, .. }
            | Kind::SetConstraints { .. }
    )
}

impl Session {
    /// Whether these are not a transaction that comes whole, and may be a part of one.
    pub(super) fn is_spoken<T>(&self, statements: &[(T, Statement)]) -> bool {
        let may_be = self.shared.spoken.is_some() && !statements.is_empty();
        let kinds = |inner: &[(T, Statement)]| inner.iter().any(|(_, one)| controls(&one.class.kind));
        may_be && (self.conversation.is_some() || without_brackets(statements).map_or(true, kinds))
    }

    /// The next message of the client; or what it is told if it was silent for too long in a transaction.
    pub(super) async fn next_message(&mut self) -> Result<Result<(u8, BytesMut), Failure>, ClientError> {
        let limit_ms = self.shared.spoken.as_ref().map_or(0, |spoken| spoken.silence_max_ms);
        if limit_ms == 0 || self.conversation.is_none() {
            return self.client.next().await.map(Ok);
        }
        match tokio::time::timeout(Duration::from_millis(limit_ms), self.client.next()).await {
            Ok(message) => message.map(Ok),
            Err(_) => {
                let what = "terminating connection due to idle-in-transaction timeout";
                Ok(Err(Failure::new(SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT, what)
                    .hint("limits.idle_in_transaction_timeout_ms is the limit.")))
            }
        }
    }

    /// A transaction that came whole, from BEGIN to COMMIT, has failed before its COMMIT: its client has to end it, as it would have to
    /// elsewhere, where transactions may come in other ways, too.
    pub(super) fn stay_failed(&mut self) {
        if self.shared.spoken.is_some() {
            let mut conversation = self.new_conversation();
            conversation.has_failed = true;
            self.conversation = Some(conversation);
        }
    }

    fn new_conversation(&self) -> Conversation {
        Conversation {
            shared: self.shared.clone(),
            moment: crate::clock::unix_micros(),
            read_only: false,
            settings: self.environment.meaningful().clone(),
            begun: None,
            access: BTreeSet::new(),
            writes: Vec::new(),
            savepoints: Vec::new(),
            has_failed: false,
            is_given_up: false,
        }
    }

    /// Answers a text that is a part of a transaction.
    pub(super) async fn converse_in_text(&mut self, statements: &[(String, Statement)]) {
        for (text, statement) in statements {
            match self.say(Said::Text(text), statement).await {
                Ok(Reply::Tag(tag)) => build::command_complete(&mut self.client.output, &tag),
                Ok(Reply::Part(part)) => self.put_part(&part, true),
                Err(failure) => return self.fail(&failure),
            }
        }
    }

    /// Answers messages of the extended protocol that are a part of a transaction.
    pub(super) async fn converse(&mut self, steps: Vec<Step>) {
        let mut described = None;
        for step in steps {
            let failure = match step {
                Step::Parsed => {
                    build::parse_complete(&mut self.client.output);
                    continue;
                }
                Step::Bound => {
                    build::bind_complete(&mut self.client.output);
                    continue;
                }
                Step::Closed => {
                    build::close_complete(&mut self.client.output);
                    continue;
                }
                Step::Described(said) => {
                    self.client.output.extend_from_slice(&said);
                    continue;
                }
                Step::DescribePortal(portal) => match described.replace(portal) {
                    None => continue,
                    Some(before) => self.describe_portal(&before).await.err(),
                },
                Step::Execute(portal) => self.execute_portal(&portal, described.take().is_some()).await.err(),
                Step::Failed(failure) => Some(failure),
            };
            if let Some(failure) = failure {
                return self.give_up_steps(&failure);
            }
        }
        if let Some(portal) = described
            && let Err(failure) = self.describe_portal(&portal).await
        {
            self.give_up_steps(&failure);
        }
    }

    fn give_up_steps(&mut self, failure: &Failure) {
        self.fail(failure);
        self.skipping = true;
    }

    async fn describe_portal(&mut self, portal: &Portal) -> Result<(), Failure> {
        let statement = self.classify(&portal.prepared.sql);
        if controls(&statement.class.kind) || is_bracket(&statement.class.kind).is_some() {
            build::no_data(&mut self.client.output);
            return Ok(());
        }
        let said = self.describe(&portal.prepared, Some(&portal.bind)).await?;
        self.client.output.extend_from_slice(&said);
        Ok(())
    }

    async fn execute_portal(&mut self, portal: &Portal, is_described: bool) -> Result<(), Failure> {
        let statement = self.classify(&portal.prepared.sql);
        if statement.class.kind == Kind::Empty {
            if is_described {
                build::no_data(&mut self.client.output);
            }
            build::empty_query_response(&mut self.client.output);
            return Ok(());
        }
        let reply = self.say(Said::Portal(portal), &statement).await?;
        let out = &mut self.client.output;
        match reply {
            Reply::Tag(tag) => {
                if is_described {
                    build::no_data(out);
                }
                build::command_complete(out, &tag);
            }
            Reply::Part(part) => {
                if is_described {
                    out.extend_from_slice(&part.description);
                }
                out.extend_from_slice(&part.rows);
                out.extend_from_slice(&part.completion);
            }
        }
        Ok(())
    }

    /// Carries out one statement of a transaction.
    async fn say(&mut self, said: Said<'_>, statement: &Statement) -> Result<Reply, Failure> {
        let kind = &statement.class.kind;
        let Some(conversation) = &mut self.conversation else {
            return self.say_outside(kind);
        };
        match kind {
            Kind::Commit { chain: true } | Kind::Rollback { chain: true } => Err(Failure::unsupported(
                "AND CHAIN cannot be served by this protocol",
                "Send COMMIT or ROLLBACK, and then BEGIN.",
            )),
            Kind::Rollback { .. } => {
                self.conversation = None;
                tag("ROLLBACK")
            }
            Kind::Commit { .. } if conversation.has_failed => {
                let is_given_up = conversation.is_given_up;
                self.conversation = None;
                if is_given_up { Err(given_up_by_site()) } else { tag("ROLLBACK") }
            }
            Kind::Commit { .. } => self.commit().await,
            Kind::RollbackTo(name) => self.roll_back_to(name).await,
            _ if conversation.has_failed => Err(Failure::new(
                SqlState::IN_FAILED_SQL_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            )),
            Kind::Begin(_) => {
                self.warn(SqlState::ACTIVE_SQL_TRANSACTION, "there is already a transaction in progress");
                tag("BEGIN")
            }
            Kind::SetTransaction { modes, session: false }
                if conversation.begun.is_some() && modes.read_only == Some(true) =>
            {
                Err(Failure::unsupported(
                    "a transaction cannot become READ ONLY after its first statement by this protocol",
                    "Say so in BEGIN, or before its first statement.",
                ))
            }
            Kind::SetTransaction { modes, session: false } => {
                conversation.promise(modes);
                tag("SET")
            }
            // They are checked at once from the beginning on.
            Kind::SetConstraints { deferred: false } => tag("SET CONSTRAINTS"),
            Kind::Savepoint(name) => {
                self.control(&format!("SAVEPOINT {}", crate::agent::quote_identifier(name))).await?;
                if let Some(conversation) = &mut self.conversation {
                    conversation.savepoints.push((name.clone(), conversation.writes.len()));
                }
                tag("SAVEPOINT")
            }
            Kind::Release(name) => {
                self.control(&format!("RELEASE {}", crate::agent::quote_identifier(name))).await?;
                if let Some(conversation) = &mut self.conversation
                    && let Some(at) = conversation.savepoint(name)
                {
                    conversation.savepoints.truncate(at);
                }
                tag("RELEASE")
            }
            Kind::Set { .. } | Kind::Reset(_) | Kind::Discard(_) => Err(Failure::unsupported(
                "settings cannot be changed inside of a transaction by this protocol",
                "Change them before BEGIN.",
            )),
            Kind::Deallocate(name) => Ok(Reply::Tag(self.deallocate(name.as_deref()).to_owned())),
            _ => self.execute(said, statement).await,
        }
    }

    fn say_outside(&mut self, kind: &Kind) -> Result<Reply, Failure> {
        match kind {
            Kind::Begin(modes) => {
                let mut conversation = self.new_conversation();
                conversation.promise(modes);
                self.conversation = Some(conversation);
                tag("BEGIN")
            }
            Kind::Commit { chain: false } | Kind::Rollback { chain: false } => {
                self.warn(SqlState::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress");
                tag(if matches!(kind, Kind::Commit { .. }) { "COMMIT" } else { "ROLLBACK" })
            }
            Kind::SetTransaction { .. } => {
                let what = "SET TRANSACTION can only be used in transaction blocks";
                self.warn(SqlState::NO_ACTIVE_SQL_TRANSACTION, what);
                tag("SET")
            }
            Kind::Savepoint(_) | Kind::Release(_) | Kind::RollbackTo(_) => Err(Failure::new(
                SqlState::NO_ACTIVE_SQL_TRANSACTION,
                "savepoints can only be used in transaction blocks",
            )),
            _ => Err(not_whole()),
        }
    }

    fn warn(&mut self, code: SqlState, message: &str) {
        build::notice(&mut self.client.output, &Report::new(Severity::Warning, code, message));
    }

    async fn execute(&mut self, said: Said<'_>, statement: &Statement) -> Result<Reply, Failure> {
        let moment = self.conversation.as_ref().map_or(0, |conversation| conversation.moment);
        let is_read_only = self.conversation.as_ref().is_some_and(|conversation| conversation.read_only);
        if let Some(failure) = refusal_of_write(&statement.class).filter(|_| is_read_only) {
            return Err(failure);
        }
        let what = match said {
            Said::Text(text) if text != &*statement.sql => {
                return Err(Failure::unsupported(
                    "a statement names an earlier result, which only a transaction that comes whole may",
                    "Have the application give the value.",
                ));
            }
            Said::Text(text) => What::Text(self.settle(text, statement, moment).await?),
            Said::Portal(portal) => self.settle_portal(portal, statement, moment).await?,
        };
        let record = self.record(vec![Write::new(what)]);
        let transaction = Transaction::read(record, &self.shared.classifier, &mut self.scratch);
        self.step(transaction).await.map(Reply::Part)
    }

    /// Has the server execute a command that is about the transaction.
    async fn control(&mut self, sql: &str) -> Result<(), Failure> {
        let record = self.record(vec![Write::new(What::Text(sql.to_owned()))]);
        self.step(Transaction::plain(record, vec![Part::plain(false)])).await.map(drop)
    }

    async fn roll_back_to(&mut self, name: &str) -> Result<Reply, Failure> {
        self.control(&format!("ROLLBACK TO {}", crate::agent::quote_identifier(name))).await?;
        if let Some(conversation) = &mut self.conversation
            && let Some(at) = conversation.savepoint(name)
        {
            let (_, writes) = conversation.savepoints[at];
            conversation.writes.truncate(writes);
            conversation.savepoints.truncate(at + 1);
            conversation.has_failed = false;
        }
        tag("ROLLBACK")
    }

    fn record(&self, writes: Vec<Write>) -> Record {
        let settings = self.conversation.as_ref().map(|conversation| conversation.settings.clone());
        let settings = settings.unwrap_or_else(|| self.environment.meaningful().clone());
        Record { origin: None, user: self.user.clone(), settings, writes }
    }

    async fn step(&mut self, statement: Transaction) -> Result<PartAnswer, Failure> {
        let name = self.begin().await?;
        let touched = statement.access.clone();
        let (answer, answered) = oneshot::channel();
        let statement = Arc::new(statement);
        self.ask(Ask::Step { name, statement, answer })?;
        let said = answered.await.unwrap_or_else(|_| Err(given_up_by_site()));
        let Some(conversation) = &mut self.conversation else { return Err(ending()) };
        // What failed has shown something, too.
        conversation.access.extend(touched);
        let (ran, wrote) = said.inspect_err(|failure| {
            conversation.is_given_up |= failure.code == SqlState::SERIALIZATION_FAILURE;
        })?;
        match ran {
            Ran::Done(mut answer) => {
                conversation.writes.extend(wrote.writes);
                answer.parts.pop().ok_or_else(|| {
                    Failure::new(SqlState::INTERNAL_ERROR, "a statement was answered by nothing")
                })
            }
            Ran::Failed(answer) => Err(failure_of(answer.error.as_deref().unwrap_or_default())),
            Ran::NotBegun(why) => Err(Failure::new(SqlState::INVALID_PARAMETER_VALUE, why)),
            Ran::TooLarge => Err(Failure::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("the result of a statement exceeds {} bytes", self.shared.held_max),
            )
            .hint("Return fewer rows, or raise limits.held_result_bytes_max.")),
        }
    }

    fn ask(&self, ask: Ask) -> Result<(), Failure> {
        let heard = self.shared.spoken.as_ref().is_some_and(|spoken| (spoken.speak)(ask));
        if heard { Ok(()) } else { Err(ending()) }
    }

    /// Begins the transaction at the site, with its first statement.
    async fn begin(&mut self) -> Result<Name, Failure> {
        let Some(conversation) = &self.conversation else { return Err(ending()) };
        if let Some((name, _)) = &conversation.begun {
            return Ok(*name);
        }
        let Some(spoken) = &self.shared.spoken else { return Err(ending()) };
        let read_only = conversation.read_only;
        let deadline = Deadline::within_ms(self.shared.wait_ms);
        let overdue = async {
            match deadline {
                Some(deadline) => deadline.reached().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(overdue);
        let too_long = || {
            let what = "the transaction waited too long for a connection to the server";
            Failure::new(SqlState::LOCK_NOT_AVAILABLE, what).hint(
                "End transactions sooner, or raise pool.lanes_per_replica_max; limits.query_wait_timeout_ms is the limit.",
            )
        };
        let not_before = match (self.staleness_max(), &self.shared.freshness) {
            (Some(bound), Some(freshness)) => tokio::select! {
                place = freshness.place(bound) => place.ok_or_else(ending)?,
                () = &mut overdue => return Err(not_known_failure()),
            },
            _ => Csn(0),
        };
        let permit = tokio::select! {
            // It is never closed.
            permit = spoken.permits.clone().acquire_owned() => permit.map_err(|_| ending())?,
            () = &mut overdue => return Err(too_long()),
        };
        let (begun, mut begins) = oneshot::channel();
        self.ask(Ask::Begin(Beginning { read_only, not_before, begun }))?;
        let name = tokio::select! {
            begun = &mut begins => begun.map_err(|_| given_up_by_site())??,
            () = &mut overdue => {
                // It may have begun at this moment.
                begins.close();
                if let Ok(Ok(name)) = begins.try_recv() {
                    self.ask(Ask::End { name, did: None, answer: oneshot::channel().0 })?;
                }
                return Err(if not_before > Csn(0) { not_known_failure() } else { too_long() });
            }
        };
        if let Some(conversation) = &mut self.conversation {
            conversation.begun = Some((name, permit));
        }
        Ok(name)
    }

    async fn commit(&mut self) -> Result<Reply, Failure> {
        let Some(mut conversation) = self.conversation.take() else { return tag("COMMIT") };
        // What has touched nothing has nothing to commit.
        let Some((name, permit)) = conversation.begun.take() else { return tag("COMMIT") };
        let writes = std::mem::take(&mut conversation.writes);
        let is_update = conversation.access.iter().any(|access| access.mode.writes());
        let record =
            Record { origin: None, user: self.user.clone(), settings: conversation.settings.clone(), writes };
        let access = std::mem::take(&mut conversation.access).into_iter().collect();
        let did = Some(Box::new((access, record)));
        let (answer, answered) = oneshot::channel();
        self.ask(Ask::End { name, did, answer })?;
        let answered = match Deadline::within_ms(self.shared.wait_ms) {
            None => answered.await,
            Some(deadline) => tokio::select! {
                answered = answered => answered,
                () = deadline.reached() => return Err(overdue_failure(is_update)),
            },
        };
        drop(permit);
        let answer = answered.map_err(|_| {
            Failure::new(SqlState::STATEMENT_COMPLETION_UNKNOWN, "this site is ending")
                .hint("Whether the transaction was committed is not known.")
        })?;
        match answer.error {
            Some(error) => Err(failure_of(&error)),
            None => tag("COMMIT"),
        }
    }
}

impl Conversation {
    fn savepoint(&self, name: &str) -> Option<usize> {
        self.savepoints.iter().rposition(|(known, _)| known == name)
    }

    /// All are serializable, whatever level is asked for.
    fn promise(&mut self, modes: &Modes) {
        if let Some(read_only) = modes.read_only
            && self.begun.is_none()
        {
            self.read_only = read_only;
        }
    }
}
