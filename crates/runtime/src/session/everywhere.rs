//! Statements under protocols that execute every write on every replica (docs/protocols/real_servers.md): the core is told
//! of them as under any protocol, the replicas' parts carry out its orders by themselves (`scheduled/`), and the
//! session waits for the answer that the core chooses. Reads inside a transaction stream from the one replica at which
//! they are placed, so the session runs those itself.
//!
//! Single reads take the same way under all protocols.

use std::sync::Arc;

use onecopy_classify::Kind;
use onecopy_core::protocol::Statements;
use onecopy_core::{Event, How, OpId, Outcome, ReplicaId, StatementKind, TxnId};
use onecopy_wire::SqlState;
use onecopy_wire::backend::{Status, build};

use super::client::ClientError;
use super::job::{Aside, Job, Quiet};
use super::portals::Portal;
use super::run::Ran;
use super::txn::Txn;
use super::unit::{self, Answer, Captured, Request, Sink, Step, UnitError, Watch};
use super::{Done, Session};
use crate::classifier::Statement;
use crate::clock::Stopwatch;
use crate::errors::{Cancelled, Failure};
use crate::postgres::connect::Credentials;
use crate::record::{Record, Write};
use crate::scheduled::{
    Answered, Answers, Attire, Declarations, Names, Operation, Spread, refusal, too_large,
};
use crate::scheduler::Directive;
use crate::server::cancel::Whereabouts;

/// What a session keeps under such a protocol.
pub struct Everywhere {
    who: Arc<Credentials>,
    /// The open transaction on all replicas, once the core knows it.
    open: Option<Arc<Spread>>,
    declarations: Declarations,
    /// What stands before the next statement of a string of several.
    comments: Option<String>,
    /// What the client has said of its transaction, where each statement is one by itself (`level0` and kin).
    alone: Option<Alone>,
}

/// A client's transaction block that is none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alone {
    Outside,
    Inside,
    Failed,
}

impl Everywhere {
    pub fn new(statements: Statements, who: &Credentials) -> Everywhere {
        Everywhere {
            who: Arc::new(who.clone()),
            open: None,
            declarations: Declarations::default(),
            comments: None,
            alone: (statements == Statements::Alone).then_some(Alone::Outside),
        }
    }

    /// Who the session is by now.
    pub fn known_as(&mut self, who: &Credentials) {
        self.who = Arc::new(who.clone());
    }
}

/// What came of a read.
enum Read {
    Answered(Answer),
    Refused,
    Lost,
}

impl Session {
    /// Looks at a statement before anything else does: what it declares, and whether it can be served. Says how it ended if
    /// it went no further.
    pub(super) async fn admit_everywhere(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
    ) -> Result<Option<Done>, ClientError> {
        match self.declare(statement) {
            Ok(false) => {}
            Ok(true) => {
                self.answer_command(portal.is_some(), "SET");
                return Ok(Some(Done::Answered));
            }
            Err(failure) => return self.fail_statement(&failure).await.map(Some),
        }
        if self.is_failed() {
            return Ok(None);
        }
        if let Some(done) = self.control_alone(statement, portal.is_some()).await? {
            return Ok(Some(done));
        }
        if statement.class.effects.writes && portal.is_some_and(|portal| !self.executes_whole(portal)) {
            let failure = Failure::unsupported(
                "rows of a statement that writes cannot be fetched by parts where every replica executes it",
                "Execute its portal once, without a limit, and in one exchange with its Bind.",
            );
            return self.fail_statement(&failure).await.map(Some);
        }
        let determinism = self.determinism(statement, portal);
        match refusal(statement, &determinism, self.txn.is_some()) {
            Some(failure) => self.fail_statement(&failure).await.map(Some),
            None => Ok(None),
        }
    }

    /// Whether the collected messages bind the portal that they execute, and execute it to its end: another Execute of it would
    /// be logged as another write.
    fn executes_whole(&self, portal: &Portal) -> bool {
        self.steps.iter().any(|step| step.binds(portal))
            && !self.steps.iter().any(|step| matches!(step, Step::Execute { max_rows: 1.., .. }))
    }

    /// Whether a prepared read outside any transaction has nothing to declare, so that nobody need look at it.
    pub(super) fn admits_prepared_read(&self, sql: &str) -> bool {
        self.everywhere.as_ref().is_none_or(|everywhere| {
            self.stale_ok_ns.is_none() && everywhere.alone != Some(Alone::Failed) && !sql.contains("onecopy:")
        })
    }

    /// Where each statement is a transaction by itself, nothing begins and ends one; the client is answered as if.
    async fn control_alone(
        &mut self,
        statement: &Statement,
        extended: bool,
    ) -> Result<Option<Done>, ClientError> {
        let Some(Everywhere { alone: Some(alone), .. }) = self.everywhere.as_mut() else { return Ok(None) };
        let (before, tag) = (*alone, statement.class.kind.clone());
        let tag = match tag {
            Kind::Begin(_) => {
                *alone = if before == Alone::Outside { Alone::Inside } else { before };
                "BEGIN"
            }
            Kind::Commit { chain: false } => {
                *alone = Alone::Outside;
                if before == Alone::Failed { "ROLLBACK" } else { "COMMIT" }
            }
            Kind::Rollback { chain: false } => {
                *alone = Alone::Outside;
                if before != Alone::Outside {
                    self.warn(
                        SqlState::WARNING,
                        "each statement was a transaction by itself: those that were executed stay",
                    );
                }
                "ROLLBACK"
            }
            Kind::Commit { chain: true } | Kind::Rollback { chain: true } => {
                let failure = Failure::unsupported(
                    "AND CHAIN is not supported where each statement is a transaction by itself",
                    "Send BEGIN.",
                );
                return self.fail_statement(&failure).await.map(Some);
            }
            _ if before == Alone::Failed => {
                let failure = Failure::in_failed_transaction();
                return self.fail_statement(&failure).await.map(Some);
            }
            _ => return Ok(None),
        };
        self.answer_command(extended, tag);
        Ok(Some(Done::Answered))
    }

    /// What the client is told of its transaction if the session has none.
    pub(super) fn status_outside(&self) -> Status {
        match self.everywhere.as_ref().and_then(|everywhere| everywhere.alone) {
            None | Some(Alone::Outside) => Status::Idle,
            Some(Alone::Inside) => Status::InTransaction,
            Some(Alone::Failed) => Status::Failed,
        }
    }

    /// An error was answered.
    pub(super) fn fail_alone(&mut self) {
        if let Some(Everywhere { alone: Some(alone @ Alone::Inside), .. }) = &mut self.everywhere {
            *alone = Alone::Failed;
        }
    }

    /// As if a statement had failed in the client's block, which is none; says whether each statement is a transaction by itself.
    pub(super) fn fail_block_alone(&mut self) -> bool {
        let Some(Everywhere { alone: Some(alone), .. }) = &mut self.everywhere else { return false };
        *alone = Alone::Failed;
        true
    }

    /// Whether the application has declared something for all of the session's transactions.
    pub(super) fn has_declared(&self) -> bool {
        self.everywhere.as_ref().is_some_and(|everywhere| everywhere.declarations.has_any_of_session())
    }

    /// Whether several statements that come at once are one transaction.
    pub(super) fn has_transactions(&self) -> bool {
        self.everywhere.as_ref().is_none_or(|everywhere| everywhere.alone.is_none())
    }

    /// ROLLBACK TO, on every replica.
    pub(super) async fn roll_back_everywhere(
        &mut self,
        statement: &Statement,
        extended: bool,
    ) -> Result<Done, ClientError> {
        let (class, request) = (statement.class.id, Request::Simple(statement.sql.to_string()));
        let aside = Aside { quiet: Quiet::Dropped, ..Aside::default() };
        let job = Job::in_place(class, StatementKind::LockingRead, request, aside);
        let ran = self.run_job(job).await?;
        if self.answer_or_fail(&ran) == Done::Failed {
            return Ok(Done::Failed);
        }
        if let Some(txn) = self.txn.as_mut() {
            txn.failed = false;
            if let Some(spread) = self.everywhere.as_ref().and_then(|everywhere| everywhere.open.as_ref()) {
                spread.keep_logged(txn.writes.len());
            }
        }
        self.answer_command(extended, "ROLLBACK");
        Ok(Done::Answered)
    }

    /// Keeps what stands between two statements of a string: comments there belong to the second one.
    pub(super) fn note_comments(&mut self, between: Option<&str>) {
        if let Some(everywhere) = &mut self.everywhere {
            everywhere.comments = between.filter(|text| text.contains("onecopy:")).map(str::to_owned);
        }
    }

    /// Takes in what the application says of its transaction; says whether that was all of the statement.
    fn declare(&mut self, statement: &Statement) -> Result<bool, Failure> {
        let path = self.search_path();
        let may_declare = self.txn.as_ref().is_none_or(|txn| !txn.begun);
        let Some(everywhere) = &mut self.everywhere else { return Ok(false) };
        let names = Names { classifier: &self.shared.classifier, search_path: &path };
        let declarations = &mut everywhere.declarations;
        if let Some(comments) = everywhere.comments.take() {
            declarations.read_comment(&comments, may_declare, &names)?;
        }
        declarations.read_comment(&statement.sql, may_declare, &names)?;
        self.stale_ok_ns = declarations.take_stale_ok_ns();
        let set = match &statement.class.kind {
            Kind::Set { name, values, local } => {
                let value = values.as_ref().map(|values| values.join(","));
                declarations.set(name, value.as_deref(), *local, may_declare, &names)?
            }
            Kind::Reset(Some(name)) => declarations.set(name, None, false, may_declare, &names)?,
            Kind::Reset(None) => {
                declarations.reset();
                false
            }
            _ => false,
        };
        if self.txn.is_none() && !matches!(statement.class.kind, Kind::Begin(_)) {
            // A single statement shows by itself what it touches.
            declarations.end_transaction();
        }
        Ok(set)
    }

    /// The transaction is over for the session.
    pub(super) fn close_everywhere(&mut self) {
        if let Some(everywhere) = &mut self.everywhere {
            everywhere.open = None;
            everywhere.declarations.end_transaction();
        }
    }

    /// Tells the core of a job and waits until it is answered.
    pub(super) async fn run_everywhere(&mut self, job: Job) -> Result<Ran, ClientError> {
        let autocommit = self.txn.is_none();
        if autocommit {
            let form = self.form();
            let id = self.shared.scheduler.new_txn(&self.mail);
            let mut txn = Txn::new(id, false, form, &self.environment);
            txn.autocommit = true;
            self.txn = Some(txn);
        }
        let settings = self.settings_of_writes();
        let (session, attire, origin) = (self.id, self.attire(), self.next_origin());
        let commits = self.carried.as_ref().map(|carried| carried.commits.clone());
        let (Some(txn), Some(everywhere)) = (self.txn.as_mut(), self.everywhere.as_mut()) else {
            return Ok(Ran::Failed);
        };
        let (id, op) = (txn.id, txn.take_op());
        let write = job.write.clone().map(|what| job.logged(what, None));
        let bytes_max = self.shared.limits.transaction_bytes_max;
        if write.as_ref().is_some_and(|write| txn.writes_bytes + write.len() > bytes_max) {
            self.fail(&unit::kept_too_much(bytes_max));
            self.end_unheard(id, autocommit).await;
            return Ok(Ran::Failed);
        }
        let spread = match everywhere.open.take_if(|spread| spread.txn == id) {
            Some(spread) => spread,
            None => {
                let restarts = job.aside.restarts.clone();
                let spread = Spread::new(
                    id,
                    &self.shared,
                    &everywhere.who,
                    job.schema_changed && autocommit,
                    restarts,
                );
                self.shared.scheduler.add_spread(&spread);
                spread
            }
        };
        everywhere.open = Some(spread.clone());
        let record = write.clone().filter(|_| autocommit).map(|write| Record {
            origin,
            user: self.who.user.clone(),
            settings: settings.clone(),
            writes: vec![write],
        });
        // What changes settings has to change them wherever the transaction may go on.
        if record.is_some() {
            spread.note_logged(op, 1);
        }
        let kind = match job.kind {
            StatementKind::Read if job.repeat.is_some() => StatementKind::LockingRead,
            kind => kind,
        };
        let operation = spread.add(Operation {
            op,
            request: job.request.clone(),
            attire,
            generation: if kind == StatementKind::Read { 0 } else { job.generation },
            writes: write.is_some(),
            record,
            commits,
            sets: job.repeat.is_some(),
            probe: job.aside.probe,
            answers: parking_lot::Mutex::new(Answers::default()),
        });
        let statement = onecopy_core::Statement {
            last_use: everywhere.declarations.take_last_use(),
            ..onecopy_core::Statement::new(job.class, kind, job.access.clone())
        };
        let mut begin = onecopy_core::Begin {
            txn: id,
            session,
            read_only: txn.read_only,
            form: txn.form,
            declared: None,
            stale_ok_ns: None,
        };
        let scheduler = &self.shared.scheduler;
        if autocommit {
            scheduler.handle(Event::Autocommit { begin, statement });
        } else {
            if !txn.begun {
                begin.declared = everywhere.declarations.take_declared();
                scheduler.handle(Event::Begin(begin));
            }
            scheduler.handle(Event::Statement { txn: id, op, statement });
        }
        txn.begun = true;
        txn.is_everywhere = true;
        let ran = self.carry_out_everywhere(id, op, &spread, &operation, &job).await;
        match &ran {
            Ok(Ran::Answered(answer)) if answer.error.is_none() && !autocommit => {
                if let (Some(txn), Some(write)) = (self.txn.as_mut(), write) {
                    txn.note_writes(vec![Write { rows: answer.rows, ..write }], settings);
                    spread.note_logged(op, txn.writes.len());
                }
            }
            // The core must hear that the client is gone.
            Err(_) => self.abandon(),
            _ => {}
        }
        if autocommit {
            self.close_txn();
        }
        ran
    }

    /// A statement is refused of which the core has not heard.
    async fn end_unheard(&mut self, id: TxnId, autocommit: bool) {
        if autocommit {
            self.close_txn();
        } else {
            self.end_if_failed(id).await;
        }
    }

    fn attire(&self) -> Attire {
        Attire {
            environment: self.environment.clone(),
            reads_under: self.reads_under(),
            customs: self.who.customs.clone(),
        }
    }

    /// Carries out what the core wants of the session until the statement (of its own transaction: its commit) is answered.
    async fn carry_out_everywhere(
        &mut self,
        id: TxnId,
        op: OpId,
        spread: &Arc<Spread>,
        operation: &Operation,
        job: &Job,
    ) -> Result<Ran, ClientError> {
        let autocommit = self.txn.as_ref().is_some_and(|txn| txn.autocommit);
        let mut chosen = None;
        loop {
            let directive = match self.mail.take(id) {
                Some(directive) => directive,
                None => {
                    let at = Whereabouts::Everywhere { op, spread: spread.clone() };
                    self.await_directive(at, id, op, job.no_wait(), true).await?
                }
            };
            match directive {
                Directive::Execute { replica, how, .. } => {
                    match self.read_everywhere(id, op, replica, how, spread, job).await? {
                        Read::Answered(answer) => return Ok(Ran::Answered(answer)),
                        Read::Refused => return Ok(Ran::Failed),
                        Read::Lost => {}
                    }
                }
                Directive::Release { replica, .. } => {
                    let Some(answered) = operation.take(replica) else {
                        tracing::error!(?id, ?op, ?replica, "no answer of the replica that was chosen");
                        continue;
                    };
                    if !autocommit || answered.answer.error.is_some() {
                        return Ok(self.answer_with(answered, id, job).await);
                    }
                    // It is told when it is committed.
                    chosen = Some(answered);
                }
                Directive::Acknowledge { .. } | Directive::Finish { .. } => {
                    return Ok(match chosen {
                        Some(answered) => self.answer_with(answered, id, job).await,
                        None => Ran::Answered(Answer::default()),
                    });
                }
                Directive::Refuse { op, reason } => {
                    let cancelled = self.cancel.take_cause(id, op).unwrap_or(Cancelled::Timeout);
                    let failure = Failure::of_refusal(reason, cancelled);
                    return Ok(self.given_up(|out| failure.put(out, build::Severity::Error)));
                }
                Directive::Annul { reason } => return Ok(self.given_up(|out| reason.put_error(out))),
                other => tracing::debug!(?other, "while every replica executes a statement: ignoring"),
            }
        }
    }

    /// Passes on an answer that a replica's part has held.
    async fn answer_with(&mut self, answered: Answered, id: TxnId, job: &Job) -> Ran {
        let Answered { answer, held, .. } = answered;
        self.pass_on_reports(&answer);
        self.confirm_parsed(&answer.unparsed);
        match (&answer.error, job.aside.quiet) {
            (None, Quiet::No) | (Some(_), Quiet::No) => self.client.output.extend_from_slice(&held),
            (None, Quiet::Held) => self.held = held,
            (None, Quiet::Dropped) => {}
            // What came before the error answers messages that the client did not send.
            (Some(error), _) => error.put_error(&mut self.client.output),
        }
        if answer.error.is_some() {
            self.on_statement_failed();
            self.end_if_failed(id).await;
        }
        Ran::Answered(answer)
    }

    /// Runs a read where the core has placed it; its rows go to the client as they come.
    async fn read_everywhere(
        &mut self,
        id: TxnId,
        op: OpId,
        replica: ReplicaId,
        how: How,
        spread: &Arc<Spread>,
        job: &Job,
    ) -> Result<Read, ClientError> {
        let started = Stopwatch::start();
        let pool = self.shared.pools[usize::from(replica.0)].clone();
        let mut commands = Vec::new();
        let borrowed = spread.borrow(replica);
        let lent = match (borrowed, how) {
            (Some(lent), _) => Ok(lent),
            (None, How::Home { open: true }) => {
                spread.open_lane(replica, &self.attire(), &mut commands).await
            }
            (None, _) => Err(None),
        };
        let mut lent = match lent {
            Ok(lent) => lent,
            Err(failure) => {
                spread.put_back(replica, None).await;
                let outcome = match &failure {
                    Some(failure) => {
                        self.fail(failure);
                        Outcome::Failed
                    }
                    None => Outcome::Lost { answer_begun: false },
                };
                self.report(id, op, replica, outcome, started.elapsed_ns());
                let Some(_) = failure else { return Ok(Read::Lost) };
                self.end_if_failed(id).await;
                return Ok(Read::Refused);
            }
        };
        lent.lane.read_under = self.reads_under();
        let mut watch =
            Watch { kept_bytes_max: self.shared.limits.transaction_bytes_max, ..Watch::default() };
        if let Some(columns) = job.aside.probe {
            watch.capture = Some(Captured { columns, client_returns: true, ..Captured::default() });
        }
        let (begun_at, sent) = (self.client.output.len(), self.client.sent);
        self.cancel.set(Whereabouts::OnLane { replica, backend: lent.lane.backend.clone() });
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        let result = match unit::put_prelude(&mut lent.lane, &commands) {
            Err(error) => Err(UnitError::from(error)),
            Ok(prelude) => {
                let held_max = self.shared.limits.held_result_bytes_max;
                let sink = match job.aside.quiet {
                    Quiet::No => Sink::Client(&mut self.client),
                    _ => Sink::Hold(&mut self.held, held_max),
                };
                unit::run(&mut lent.lane, prelude, &job.request, sink, &mut watch, None).await
            }
        };
        self.cancel.set(Whereabouts::Idle);
        let mut answer = match result {
            Ok(answer) => answer,
            Err(UnitError::Client(error)) => {
                // The lane is in the middle of something: it is closed, which rolls back what is open on it.
                drop(lent);
                spread.put_back(replica, None).await;
                return Err(error);
            }
            Err(UnitError::Lane(error)) => {
                let answer_begun = self.client.sent != sent;
                if !answer_begun {
                    self.client.output.truncate(begun_at);
                }
                self.drop_held();
                spread.put_back(replica, None).await;
                pool.suspect(lent.lane.incarnation, &error);
                self.report(id, op, replica, Outcome::Lost { answer_begun }, started.elapsed_ns());
                return Ok(Read::Lost);
            }
        };
        answer.probed = watch.capture.take().map(|captured| captured.rows).unwrap_or_default();
        self.pass_on_reports(&answer);
        self.confirm_parsed(&answer.unparsed);
        spread.put_back(replica, Some(lent)).await;
        if answer.overflow {
            self.drop_held();
            self.fail(&too_large(self.shared.limits.held_result_bytes_max));
            self.report(id, op, replica, Outcome::Failed, started.elapsed_ns());
            self.end_if_failed(id).await;
            return Ok(Read::Refused);
        }
        let failed = answer.error.is_some();
        if let (Some(error), true) = (&answer.error, job.aside.quiet != Quiet::No) {
            // What came before the error answers messages that the client did not send.
            self.drop_held();
            error.put_error(&mut self.client.output);
        } else if job.aside.quiet == Quiet::Dropped {
            self.drop_held();
        }
        if failed {
            self.on_statement_failed();
        }
        let outcome = if failed { Outcome::Failed } else { Outcome::Done { returned: Vec::new() } };
        self.report(id, op, replica, outcome, started.elapsed_ns());
        if failed {
            self.end_if_failed(id).await;
        }
        Ok(Read::Answered(answer))
    }
}
