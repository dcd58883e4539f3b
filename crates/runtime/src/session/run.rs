//! Executing a statement: classify, tell the core, carry out its directives on lanes.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use onecopy_classify::{CopiedMoments, Determinism, Kind};
use onecopy_core::{
    Access, AccessSet, ClassId, Event, How, OpId, Outcome, Refusal, ReplicaId, Space, StatementKind, TxnId,
};
use onecopy_wire::Format;
use onecopy_wire::backend::{ErrorFields, Status, build};
use onecopy_wire::sqlstate::SqlState;

use super::beside::LOSSES_MAX;
use super::captured::captured_writes;
use super::client::ClientError;
use super::commands::{command_tag, takes_snapshot};
use super::commit::Unsettled;
use super::course::{Past, Read};
use super::environment::{Environment, hash_of, is_meaningful};
use super::home::{Home, Turn};
use super::job::{Job, Quiet};
use super::moved::Reads;
use super::portals::Portal;
use super::prepared_read::PlacedRead;
use super::shown::Shown;
use super::txn::{Lane, Told, Txn};
use super::unit::{self, Answer, AnswerHash, Captured, Request, Sink, UnitError, Watch};
use super::{Done, Session, shipping};
use crate::classifier::{Manner, Statement, search_path};
use crate::clock::{Deadline, Stopwatch};
use crate::errors::{Cancelled, Failure};
use crate::lane::LaneError;
use crate::postgres::connect::Credentials;
use crate::record::{Settings, What};
use crate::scheduler::Directive;
use crate::server::Shared;
use crate::server::cancel::{Target, Whereabouts};

/// PostgreSQL's own default.
const DEFAULT_SEARCH_PATH: &str = "\"$user\", public";

/// What came of a job.
pub(super) enum Ran {
    /// It was answered by a replica; the answer has been passed on.
    Answered(Answer),
    /// It failed, and the client has been told.
    Failed,
    /// Definitions changed while it waited, and nothing of it was executed: the statement is to be classified again. The
    /// messages of its portal are collected again.
    Outdated,
}

impl Session {
    /// Classifies the first statement of a text, and says where the next one begins.
    pub(super) async fn classify(&mut self, sql: &str) -> (Statement, Option<usize>) {
        let path = self.search_path();
        if let Some(txn) = &self.txn
            && let Some(catalogue) = txn.catalogue.clone()
        {
            return self.shared.classifier.classify_under(&catalogue, 0, sql, &path, &mut self.scratch);
        }
        if self.shared.classifier.is_changing() {
            self.shared.classifier.settled().await;
        }
        let manner = self.manner();
        self.shared.classifier.classify(&manner, sql, &path, &mut self.scratch)
    }

    /// Whether the log decides later if what is answered now was true. A transaction that has written is of use to nobody before it
    /// has committed, and a node that does not lead cannot commit it.
    pub(super) fn is_settled_by_log(&self) -> bool {
        self.txn.as_ref().is_some_and(|txn| !txn.writes.is_empty())
    }

    /// How changes reach other replicas for what is under way.
    pub(super) fn manner(&mut self) -> Arc<Manner> {
        self.manner.get_or_insert_with(|| self.shared.classifier.manner()).clone()
    }

    /// The schemas in which unqualified names are looked up.
    pub(super) fn search_path(&mut self) -> Arc<Vec<String>> {
        let local = self.txn.as_ref().and_then(|txn| {
            txn.local_settings.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case("search_path"))
        });
        if let Some((_, value)) = local {
            let catalogue = self.shared.classifier.catalogue();
            return Arc::new(search_path(value, &self.who.user, &catalogue));
        }
        let surroundings = self.environment.hash() ^ self.shared.classifier.generation().rotate_left(32);
        if self.path.0 != surroundings || self.path.1.is_empty() {
            let value = self.environment.value("search_path").unwrap_or(DEFAULT_SEARCH_PATH);
            let catalogue = self.shared.classifier.catalogue();
            self.path = (surroundings, Arc::new(search_path(value, &self.who.user, &catalogue)));
        }
        self.path.1.clone()
    }

    /// Executes a classified statement of either protocol and answers it.
    pub(super) async fn execute(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
    ) -> Result<Done, ClientError> {
        if self.everywhere.is_some()
            && let Some(done) = self.admit_everywhere(statement, portal).await?
        {
            return Ok(done);
        }
        if let Some(done) = self.execute_control(statement, portal.is_some()).await? {
            return Ok(done);
        }
        if self.is_failed() {
            self.fail(&Failure::in_failed_transaction());
            return Ok(Done::Failed);
        }
        if let Some(txn) = self.txn.as_mut() {
            txn.has_queried |= takes_snapshot(&statement.class.kind);
        }
        if let Some(done) = self.execute_special(statement, portal).await? {
            return Ok(done);
        }
        let refuses_writes =
            self.txn.as_ref().map_or_else(|| self.default_read_only(), |txn| txn.refuses_writes);
        if statement.class.effects.writes && refuses_writes {
            let what = format!("cannot execute {} in a read-only transaction", command_tag(&statement.class));
            return self.fail_at_execute(&Failure::new(SqlState::READ_ONLY_SQL_TRANSACTION, what)).await;
        }
        if statement.class.numbers_rows()
            && let Determinism::Number(plan) = self.determinism(statement, portal)
        {
            return self.execute_numbered(statement, portal, &plan).await;
        }
        if let Some(guard) = &statement.class.guard
            && !self.passes_guard(statement, portal, guard).await?
        {
            return Ok(Done::Failed);
        }
        let job = match self.prepare_job(statement, portal).await? {
            Ok(job) => job,
            Err(failure) => return self.on_refused(statement, portal, failure).await,
        };
        let (schema_changed, keeps_catalogue) = (job.schema_changed, job.aside.keeps_catalogue);
        match self.run_job(job).await? {
            Ran::Answered(answer) if answer.error.is_none() => {
                if self.is_settled_by_log() {
                    self.client.need_not_confirm();
                }
                let is_known = |txn: &Txn| keeps_catalogue && txn.catalogue.is_some();
                if schema_changed && self.txn.as_ref().is_some_and(|txn| !is_known(txn)) {
                    self.read_own_definitions().await;
                }
                Ok(Done::Answered)
            }
            Ran::Outdated => match portal {
                None => {
                    let (again, _) = self.classify(&statement.sql).await;
                    Box::pin(self.execute(&again, None)).await
                }
                Some(portal) => self.execute_outdated(portal).await,
            },
            _ => Ok(Done::Failed),
        }
    }

    /// Tells the core of a job and carries out what it says until the job is answered.
    pub(super) async fn run_job(&mut self, job: Job) -> Result<Ran, ClientError> {
        let autocommit = self.txn.is_none();
        if autocommit && job.kind == StatementKind::Read {
            return self.run_single_read(&job).await;
        }
        if self.everywhere.is_some() {
            return self.run_everywhere(job).await;
        }
        if autocommit {
            let form = self.form();
            let id = self.shared.scheduler.new_txn(&self.mail);
            let mut txn = Txn::new(id, false, form, &self.environment);
            txn.autocommit = true;
            self.txn = Some(txn);
        }
        let session = self.id;
        let foresees = self.foresees();
        let Some(txn) = self.txn.as_mut() else { return Ok(Ran::Failed) };
        let (id, op) = (txn.id, txn.take_op());
        let mut access = if foresees { job.announced() } else { job.access.clone() };
        if let Some(rechecks) = &job.aside.rechecks {
            if txn.changed.meets(&rechecks.changed) {
                access.extend(rechecks.parents.iter().cloned());
            }
            txn.changed.note(&rechecks.changed);
        }
        let shown = if autocommit { None } else { self.shown_of(&job) };
        let shown = shown.map(|shown| shown.whole).unwrap_or_default();
        let statement =
            onecopy_core::Statement { shown, ..onecopy_core::Statement::new(job.class, job.kind, access) };
        let Some(txn) = self.txn.as_mut() else { return Ok(Ran::Failed) };
        let begin = onecopy_core::Begin {
            txn: id,
            session,
            read_only: txn.read_only,
            form: txn.form,
            declared: txn.declared.take(),
            stale_ok_ns: None,
        };
        if autocommit {
            self.shared.scheduler.handle(Event::Autocommit { begin, statement });
        } else {
            if !txn.begun {
                self.shared.scheduler.handle(Event::Begin(begin));
            }
            self.shared.scheduler.handle(Event::Statement { txn: id, op, statement });
        }
        txn.begun = true;
        let ran = self.carry_out(id, op, &job, autocommit).await;
        if autocommit {
            self.end_change(matches!(&ran, Ok(Ran::Answered(answer)) if answer.error.is_none())).await;
        }
        if ran.is_err() {
            // The client is gone, and the core must hear of it.
            self.abandon();
        }
        if autocommit {
            self.close_txn();
        }
        ran
    }

    /// A read that is its own transaction. Nearly always the core places it at once, and then the session need not keep
    /// anything about it; if it has to wait, or its replica is lost, it goes on like any other.
    async fn run_single_read(&mut self, job: &Job) -> Result<Ran, ClientError> {
        let PlacedRead { txn: id, at } = match self.placed_read.take() {
            Some(placed) => placed,
            None => self.place_single_read(job.class, job.access.clone()),
        };
        let form = self.form();
        if let Some((op, replica)) = at {
            match self.execute_on_lane(id, op, replica, How::Alone, false, job).await? {
                Executed::Answered(answer) | Executed::Held(answer) => return Ok(Ran::Answered(answer)),
                Executed::Refused => return Ok(Ran::Failed),
                Executed::Lost => {}
            }
        }
        let mut txn = Txn::new(id, false, form, &self.environment);
        txn.autocommit = true;
        txn.begun = true;
        self.txn = Some(txn);
        let ran = self.carry_out(id, OpId(0), job, true).await;
        if ran.is_err() {
            self.abandon();
        }
        self.close_txn();
        ran
    }

    /// What the answer of a read will show, if it comes in one piece and its transaction may write.
    fn shown_of(&self, job: &Job) -> Option<Shown> {
        let may_write = self.txn.as_ref().is_some_and(|txn| !txn.autocommit && !txn.read_only);
        if may_write && !self.fetches_parts() { Shown::of(job) } else { None }
    }

    /// Tells the core of a read that is its own transaction.
    pub(super) fn place_single_read(&mut self, class: ClassId, access: AccessSet) -> PlacedRead {
        let (session, form, stale_ok_ns) = (self.id, self.form(), self.stale_ok_ns);
        let statement = onecopy_core::Statement::new(class, StatementKind::Read, access);
        let begin =
            |txn| onecopy_core::Begin { txn, session, read_only: false, form, declared: None, stale_ok_ns };
        let (txn, at) = self.shared.scheduler.place_single_read(&self.mail, begin, statement);
        PlacedRead { txn, at }
    }

    /// Carries out directives until the statement (of its own transaction: its commit) is answered.
    async fn carry_out(
        &mut self,
        mut id: TxnId,
        op: OpId,
        job: &Job,
        autocommit: bool,
    ) -> Result<Ran, ClientError> {
        let (mut answered, mut held) = (None, None);
        let (sent, mut attempts) = (self.client.sent, 0);
        // 0 stands for the transaction's own definitions.
        let own = self.txn.as_ref().filter(|txn| txn.catalogue.is_some() && job.generation == 0);
        let mut generation = own.map_or(job.generation, |txn| txn.generation);
        let is_classified = job.generation != 0 || own.is_some();
        loop {
            let directive = match self.mail.take(id) {
                Some(directive) => directive,
                None if self.txn.as_ref().is_some_and(|txn| txn.turn != Turn::Told) => {
                    let Some(directive) = self.next_at_commit(id).await else { continue };
                    directive
                }
                // A statement of its own transaction that has been executed may be decided at any moment: its home must
                // hear of its turn whether or not the client is still there.
                None => {
                    let at = Whereabouts::Waiting { txn: id, op };
                    self.await_directive(at, id, op, job.no_wait(), answered.is_none()).await?
                }
            };
            match directive {
                Directive::Execute { op: _, replica, how, hold } => {
                    if held.take().is_some() {
                        // Somebody else holds a row that it shows.
                        self.drop_held();
                    }
                    let may_be_outdated = is_classified && job.kind != StatementKind::Read;
                    if may_be_outdated && self.shared.classifier.is_changing() {
                        // A change that it waited for is told, and may not have been read yet.
                        self.shared.classifier.settled().await;
                    }
                    let newest = self.shared.classifier.generation();
                    if may_be_outdated && generation != newest {
                        if self.means_the_same(job).await {
                            generation = newest;
                        } else if job.aside.whole && self.starts_over(id) {
                            if let Request::Extended(steps) = &job.request {
                                self.steps.clone_from(steps);
                            }
                            return Ok(Ran::Outdated);
                        } else {
                            return Ok(self.refuse_changed(id).await);
                        }
                    }
                    match self.execute_on_lane(id, op, replica, how, hold, job).await? {
                        Executed::Answered(answer) if !autocommit || answer.error.is_some() => {
                            return Ok(Ran::Answered(answer));
                        }
                        Executed::Answered(answer) if job.kind == StatementKind::Read => {
                            return Ok(Ran::Answered(answer));
                        }
                        Executed::Answered(answer) => answered = Some(answer),
                        Executed::Held(answer) => held = Some(answer),
                        Executed::Lost => {}
                        Executed::Refused => return Ok(Ran::Failed),
                    }
                }
                Directive::Revalidate { replica, how } => {
                    if let Some(failure) = self.revalidate(id, replica, how).await? {
                        return Ok(self.end_with(id, &failure).await);
                    }
                }
                Directive::Leave { replica } => self.leave(replica).await,
                Directive::Withdraw { op } => {
                    let cancelled = self.cancel.take_cause(id, op).unwrap_or(Cancelled::Timeout);
                    self.drop_held();
                    self.fail(&cancelled.failure());
                    self.end_if_failed(id).await;
                    return Ok(Ran::Failed);
                }
                Directive::Refuse { reason: Refusal::HomeLost, .. }
                    if autocommit && self.foresees() && self.client.sent == sent && attempts < LOSSES_MAX =>
                {
                    attempts += 1;
                    self.drop_held();
                    (answered, held) = (None, None);
                    id = self.come_again(id, job);
                }
                Directive::Refuse { op, reason } => {
                    self.is_void |= reason == Refusal::HomeLost;
                    let cancelled = self.cancel.take_cause(id, op).unwrap_or(Cancelled::Timeout);
                    let failure = Failure::of_refusal(reason, cancelled);
                    return Ok(self.given_up(|out| failure.put(out, build::Severity::Error)));
                }
                Directive::Annul { reason } => return Ok(self.given_up(|out| reason.put_error(out))),
                Directive::CommitAt { replica, csn } => self.commit_at(id, replica, csn).await,
                Directive::Acknowledge { .. } => {
                    self.client.need_not_confirm();
                    self.release_held();
                    self.detach_home(id);
                    return Ok(Ran::Answered(answered.unwrap_or_default()));
                }
                Directive::Finish { replica, .. } => {
                    self.finish(replica).await;
                    self.release_held();
                    return Ok(Ran::Answered(answered.unwrap_or_default()));
                }
                Directive::Release { .. } => {
                    if let Some(answer) = held.take() {
                        self.release_held();
                        return Ok(Ran::Answered(answer));
                    }
                }
                Directive::Values { .. } => {}
            }
        }
    }

    /// A transaction of one statement, of which nothing has happened, arrives once more under another number.
    fn come_again(&mut self, id: TxnId, job: &Job) -> TxnId {
        self.shared.scheduler.end_txn(id);
        let again = self.shared.scheduler.new_txn(&self.mail);
        if let Some(txn) = self.txn.as_mut() {
            txn.id = again;
            txn.forget_writes();
        }
        let begin = onecopy_core::Begin {
            txn: again,
            session: self.id,
            read_only: false,
            form: self.form(),
            declared: None,
            stale_ok_ns: None,
        };
        let statement = onecopy_core::Statement::new(job.class, job.kind, job.announced());
        self.shared.scheduler.handle(Event::Autocommit { begin, statement });
        again
    }

    /// If an error says something about its server, others are asked from now on, if there are any.
    fn doubt(&self, replica: ReplicaId, error: &ErrorFields) {
        let mut others = self.shared.pools.iter().filter(|pool| pool.replica != replica);
        if others.any(|pool| pool.is_up()) {
            self.shared.pools[usize::from(replica.0)].doubt(error);
        }
    }

    /// The transaction is over, and its client is told why.
    pub(super) fn given_up(&mut self, put: impl FnOnce(&mut BytesMut)) -> Ran {
        self.drop_held();
        if let Some(txn) = self.txn.as_mut() {
            txn.over = true;
        }
        self.fail_with(put);
        Ran::Failed
    }

    /// Whether a statement is under today's definitions what it was under those by which it was classified: most changes
    /// of definitions concern other tables.
    async fn means_the_same(&mut self, job: &Job) -> bool {
        let Some((sql, class)) = &job.aside.classified else { return false };
        if job.generation == 0 {
            // Its home contains every change that concerns what it touches.
            self.read_own_definitions().await;
        }
        let (again, _) = self.classify(sql).await;
        // Every field counts, and this is rare.
        format!("{:?}", again.class) == format!("{class:?}")
    }

    /// Begins the transaction again if nothing of it was executed on a replica.
    fn starts_over(&mut self, id: TxnId) -> bool {
        let Some(txn) = self.txn.as_mut() else { return false };
        if !txn.is_untouched() {
            return false;
        }
        self.shared.scheduler.handle(Event::Rollback { txn: id });
        self.shared.scheduler.end_txn(id);
        txn.id = self.shared.scheduler.new_txn(&self.mail);
        txn.begun = false;
        true
    }

    async fn refuse_changed(&mut self, id: TxnId) -> Ran {
        self.is_void = true;
        self.end_with(id, &Failure::outdated()).await
    }

    /// Ends a transaction of whose statement the core still waits to hear.
    async fn end_with(&mut self, id: TxnId, failure: &Failure) -> Ran {
        let lanes = match self.txn.as_mut() {
            Some(txn) => {
                txn.over = true;
                txn.snapshot.take().into_iter().chain(txn.home.take()).collect()
            }
            None => Vec::new(),
        };
        // The lanes first: items must not be let go while the database still holds its own locks on them.
        for lane in lanes {
            self.roll_back_lane(lane).await;
        }
        self.shared.scheduler.handle(Event::Rollback { txn: id });
        self.fail(failure);
        Ran::Failed
    }

    /// Waits for the core, for a limited time. A client that is watched and vanishes is not waited for.
    pub(super) async fn await_directive(
        &mut self,
        at: Whereabouts,
        id: TxnId,
        op: OpId,
        no_wait: bool,
        watch_client: bool,
    ) -> Result<Directive, ClientError> {
        self.cancel.set(at);
        let mut patience = self.patience(no_wait);
        let mail = self.mail.clone();
        let deadline = Deadline::after(patience.map_or(Duration::ZERO, |(limit, _)| limit));
        let result = loop {
            let may_read = watch_client && self.client.may_read_ahead();
            tokio::select! {
                biased;
                directive = mail.next(id) => break Ok(directive),
                received = self.client.fill(), if may_read => {
                    if let Err(error) = received {
                        break Err(error);
                    }
                }
                () = deadline.reached(), if patience.is_some() => {
                    if let Some((_, cause)) = patience.take() {
                        self.cancel.note_cause(id, op, cause);
                    }
                    self.shared.scheduler.handle(Event::Cancel { txn: id, op });
                }
            }
        };
        self.cancel.set(Whereabouts::Idle);
        result
    }

    /// Runs a job's request where the core said, and reports what came of it.
    async fn execute_on_lane(
        &mut self,
        id: TxnId,
        op: OpId,
        replica: ReplicaId,
        how: How,
        hold: bool,
        job: &Job,
    ) -> Result<Executed, ClientError> {
        let started = Stopwatch::start();
        if self.txn.is_none() {
            self.client.must_confirm();
        }
        if job.write.is_none() && job.capture.is_none() {
            self.client.begin_to_confirm();
        }
        if matches!(how, How::Home { open: true })
            && let Some(failure) = self.txn.as_ref().and_then(Txn::lost_cursors)
        {
            self.fail(&failure);
            self.report(id, op, replica, Outcome::Failed, 0);
            self.end_if_failed(id).await;
            return Ok(Executed::Refused);
        }
        let mut commands = Vec::new();
        let lane = self.lane_for(replica, how, &mut commands).await;
        let mut lane = match lane {
            Ok(lane) => lane,
            Err(error) => return Ok(self.lane_unavailable(id, op, replica, error).await),
        };
        let opens = matches!(how, How::Home { open: true } | How::Snapshot { open: true });
        if opens && self.txn.as_ref().is_some_and(Txn::repeats_reads) {
            // Nothing that it has read has changed: its cursors are opened and moved as they were.
            let commands = std::mem::take(&mut commands);
            if let Err(error) = self.repeat_course(&mut lane, &commands, Reads::Repeated).await {
                self.lose_lane(lane, &error);
                let outcome = Outcome::Lost { answer_begun: false };
                self.report(id, op, replica, outcome, started.elapsed_ns());
                return Ok(Executed::Lost);
            }
        } else if opens && let Some(txn) = &self.txn {
            commands.extend(txn.course.commands());
        }
        let class = job.aside.classified.as_ref().map(|(_, class)| class);
        if matches!(how, How::Alone) && class.is_some_and(|class| class.effects.takes_snapshots) {
            // All of it must see one state. The block is rolled back before the lane is lent again.
            commands.push("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY".to_owned());
        }
        let in_read_phase = matches!(how, How::Snapshot { .. });
        let silent = job.aside.quiet != Quiet::No;
        let parts = self.fetches_parts();
        // Under the items of its text alone the core does not ask what the answer shows.
        let is_home = matches!(how, How::Home { .. });
        let mut shown = (in_read_phase || is_home && hold).then(|| self.shown_of(job)).flatten();
        let classifier = &self.shared.classifier;
        if let Some(shown) = &mut shown
            && (classifier.is_changing() || classifier.generation() != job.generation)
        {
            shown.give_up();
        }
        let mut watch = Watch {
            shown,
            hash: in_read_phase.then(AnswerHash::default),
            discard_copy: job.write.is_none(),
            moments: class
                .filter(|_| job.write.is_some())
                .and_then(|class| class.copied_moments.as_ref())
                .map(CopiedMoments::search),
            kept_bytes_max: self.shared.limits.transaction_bytes_max,
            capture: job.capture.as_ref().map(|plan| Captured {
                columns: plan.columns.len(),
                client_returns: plan.client_returns,
                plain_descriptions: job.request.statement_descriptions(plan.client_returns),
                must_describe: matches!(job.request, Request::Extended(_)),
                ..Captured::default()
            }),
        };
        if let (Some(columns), None) = (job.aside.probe, &watch.capture) {
            watch.capture = Some(Captured { columns, client_returns: true, ..Captured::default() });
        }
        let (begun_at, sent) = (self.client.output.len(), self.client.sent);
        let result = {
            let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
            self.cancel.set(Whereabouts::OnLane { replica, backend: lane.lent.lane.backend.clone() });
            let prelude = unit::put_prelude(&mut lane.lent.lane, &commands);
            match prelude {
                Err(error) => Err(UnitError::from(error)),
                Ok(prelude) if hold || silent || parts => {
                    let held_max = self.held_max();
                    let sink = Sink::Hold(&mut self.held, held_max);
                    unit::run(
                        &mut lane.lent.lane,
                        prelude,
                        &job.request,
                        sink,
                        &mut watch,
                        Some(&mut self.client),
                    )
                    .await
                }
                Ok(prelude) => {
                    let sink = Sink::Client(&mut self.client);
                    unit::run(&mut lane.lent.lane, prelude, &job.request, sink, &mut watch, None).await
                }
            }
        };
        self.cancel.set(Whereabouts::Idle);
        let elapsed_ns = started.elapsed_ns();
        if job.schema_changed {
            // What is prepared on it from now on may be prepared by definitions that are rolled back; what was, by others.
            lane.lent.lane.has_own_definitions = true;
            lane.lent.lane.generation = 0;
        }
        let mut answer = match result {
            Ok(answer) => answer,
            Err(UnitError::Client(error)) => {
                match self.txn.as_mut() {
                    Some(txn) => txn.broken = Some(lane),
                    // Of a single read nothing else will tell the core that it is over.
                    None => self.report(id, op, replica, Outcome::Failed, elapsed_ns),
                }
                return Err(error);
            }
            Err(UnitError::Lane(error)) => {
                let answer_begun = self.client.sent != sent;
                if !answer_begun {
                    self.client.output.truncate(begun_at);
                }
                self.drop_held();
                self.lose_lane(lane, &error);
                let outcome = Outcome::Lost { answer_begun };
                self.report(id, op, replica, outcome, elapsed_ns);
                return Ok(Executed::Lost);
            }
        };
        self.pass_on_reports(&answer);
        let shown = watch.shown.take();
        let awaits_release = hold && shown.is_some();
        if awaits_release && answer.overflow && answer.error.is_none() {
            self.drop_held();
            self.return_lane(lane, how, answer.status.unwrap_or(Status::Failed)).await;
            self.report(id, op, replica, Outcome::TooLarge, elapsed_ns);
            return Ok(Executed::Lost);
        }
        // What is held may still be dropped.
        if !hold || answer.error.is_some() {
            self.confirm_parsed(&answer.unparsed);
        }
        let outcome = self.keep(job, &mut answer, &mut watch, how);
        let outcome = match outcome {
            Ok(returned) => Outcome::Done { returned: shown.map_or(returned, Shown::into_items) },
            Err(Some(failure)) => {
                self.drop_held();
                if self.client.sent == sent {
                    self.client.output.truncate(begun_at);
                }
                // The server knows of no failure, so its transaction holds its locks; they go before the items do.
                match self.txn.as_ref().is_some_and(|txn| !txn.savepoints.is_empty()) {
                    true => self.return_lane(lane, how, Status::Failed).await,
                    false => self.roll_back_lane(lane).await,
                }
                self.fail(&failure);
                self.report(id, op, replica, Outcome::Failed, elapsed_ns);
                self.end_if_failed(id).await;
                return Ok(Executed::Refused);
            }
            Err(None) => Outcome::Failed,
        };
        let failed = outcome == Outcome::Failed;
        if let Some(txn) = self.txn.as_mut().filter(|_| failed && in_read_phase) {
            // A step of a cursor names no table.
            txn.failed_read |= !job.access.is_empty() || txn.cursors;
        }
        if matches!(job.repeat, Some(Past::Setting(_))) {
            // It may have changed a setting: the lane is dressed anew for whoever borrows it next.
            lane.lent.lane.settings = u64::MAX;
        }
        self.return_lane(lane, how, answer.status.unwrap_or(Status::Failed)).await;
        if failed {
            if let (Some(error), How::Home { .. }) = (&answer.error, how) {
                self.doubt(replica, error);
            }
            match &answer.error {
                // What came before the error answers messages that the client did not send, or was too much to be held.
                Some(error) if silent || answer.overflow => {
                    self.drop_held();
                    error.put_error(&mut self.client.output);
                }
                _ => self.release_held(),
            }
            self.on_statement_failed();
        } else if job.aside.quiet == Quiet::Dropped {
            self.drop_held();
        }
        if awaits_release && !failed {
            self.report(id, op, replica, outcome, elapsed_ns);
            return Ok(Executed::Held(answer));
        }
        // With its writes, since for a transaction of its own this is the request to commit.
        if hold && !failed {
            let event = Event::Executed { txn: id, op, replica, outcome, elapsed_ns };
            match self.request_commit(id, event).await {
                // One statement neither listens nor notifies.
                Ok(_) => {}
                Err(Unsettled::HomeLost) => {
                    self.drop_held();
                    if let Some(txn) = self.txn.as_mut() {
                        txn.forget_writes();
                    }
                    let outcome = Outcome::Lost { answer_begun: self.client.sent != sent };
                    self.report(id, op, replica, outcome, elapsed_ns);
                    return Ok(Executed::Lost);
                }
                Err(unsettled @ (Unsettled::Violated(_) | Unsettled::Told)) => {
                    match job.request {
                        // There it is the Sync that commits: what comes before it is answered.
                        Request::Extended(_) => self.release_held(),
                        _ => self.drop_held(),
                    }
                    unsettled.put(&mut self.client.output);
                    self.on_statement_failed();
                    self.report(id, op, replica, Outcome::Failed, elapsed_ns);
                    self.end_if_failed(id).await;
                    return Ok(Executed::Refused);
                }
            }
        } else {
            if parts && !silent && !failed {
                self.release_held();
            }
            self.report(id, op, replica, outcome, elapsed_ns);
            if failed {
                self.end_if_failed(id).await;
            }
        }
        Ok(Executed::Answered(answer))
    }

    pub(super) fn report(&self, txn: TxnId, op: OpId, replica: ReplicaId, outcome: Outcome, elapsed_ns: u64) {
        if self.txn.is_none() && matches!(outcome, Outcome::Lost { .. }) {
            // A single read is kept by nobody until there is more to hear about it.
            self.shared.scheduler.adopt(txn, &self.mail);
        }
        self.shared.scheduler.handle(Event::Executed { txn, op, replica, outcome, elapsed_ns });
    }

    async fn lane_unavailable(
        &mut self,
        id: TxnId,
        op: OpId,
        replica: ReplicaId,
        error: LaneError,
    ) -> Executed {
        if error.is_refusal() {
            // The role may not connect, or there is no connection left on either side: the client's business.
            self.report(id, op, replica, Outcome::Failed, 0);
            self.fail(&Failure::of_lane(&error));
            self.end_if_failed(id).await;
            return Executed::Refused;
        }
        self.shared.pools[usize::from(replica.0)].suspect_now(&error);
        self.report(id, op, replica, Outcome::Lost { answer_begun: false }, 0);
        Executed::Lost
    }

    /// Settings that a record must carry.
    pub(super) fn settings_of_writes(&self) -> Settings {
        let local = self.txn.iter().flat_map(|txn| &txn.local_settings);
        let mut local = local.filter(|(name, _)| is_meaningful(name)).peekable();
        if local.peek().is_none() {
            return self.environment.meaningful().clone();
        }
        let mut settings = self.environment.meaningful().to_vec();
        for (name, value) in local {
            settings.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
            settings.push((name.clone(), value.clone()));
        }
        settings.into()
    }

    /// Keeps what the statement did: its write for the record, its read for validation. An error of the inner kind
    /// must be answered; `Err(None)` was answered by the replica.
    fn keep(
        &mut self,
        job: &Job,
        answer: &mut Answer,
        watch: &mut Watch,
        how: How,
    ) -> Result<Vec<Access>, Option<Failure>> {
        let in_read_phase = matches!(how, How::Snapshot { .. });
        if answer.error.is_some() {
            return Err(None);
        }
        if answer.overflow {
            return Err(Some(self.held_too_much()));
        }
        let captured = watch.capture.take();
        if let (None, Some(_), Some(captured)) = (&job.capture, job.aside.probe, &captured) {
            answer.probed.clone_from(&captured.rows);
        }
        let bytes_max = self.shared.limits.transaction_bytes_max;
        if answer.kept_overflow {
            return Err(Some(unit::kept_too_much(bytes_max)));
        }
        let read_under = if in_read_phase { self.reads_under() } else { 0 };
        let keeps_writes = job.capture.is_some() || job.write.is_some();
        let settings = if keeps_writes { self.settings_of_writes() } else { Settings::default() };
        let Some(txn) = self.txn.as_mut() else { return Ok(Vec::new()) };
        txn.ran_at_home |= matches!(how, How::Home { .. });
        if let Some(step) = job.repeat.as_ref().filter(|_| how != How::Alone) {
            txn.course.note(step.clone());
        } else if let Some(hash) = watch.hash.take() {
            let read = Read { request: job.request.clone(), hash: hash.value(), read_under };
            txn.course.note(Past::Read(read));
        }
        let class = job.aside.classified.as_ref().map(|(_, class)| &class.kind);
        txn.locks_tables |=
            job.kind == StatementKind::Schema || matches!(class, Some(Kind::LockTable { .. }));
        txn.locks_readers_out |= job.access.iter().any(|access| access.item.space == Space::Schema);
        txn.schema_changed |= job.schema_changed && !(txn.autocommit && job.aside.keeps_catalogue);
        txn.restarted.extend(job.aside.restarts.iter().cloned());
        let mut writes = Vec::new();
        if let (Some(plan), Some(captured)) = (&job.capture, captured) {
            let formats = if job.aside.is_binary { Format::Binary } else { Format::Text };
            if let Some(failure) = shipping::loss(plan, formats, &settings) {
                return Err(Some(failure));
            }
            if let Some(failure) = shipping::unnamed(plan, &captured.rows) {
                return Err(Some(failure));
            }
            if !job.aside.blocks.iter().all(|block| captured.rows.iter().all(|row| block.has(row, formats))) {
                return Err(Some(
                    Failure::new(
                        SqlState::SERIALIZATION_FAILURE,
                        "the query of the statement yielded more rows when it ran than when they were counted",
                    )
                    .hint("Run the transaction again."),
                ));
            }
            writes = captured_writes(plan, &captured.rows, formats);
            if let Some(write) = writes.first_mut() {
                write.changed = job.changed();
            }
        } else if let Some(what) = &job.write {
            let what = match what {
                What::Copy { sql, .. } => {
                    What::Copy { sql: sql.clone(), data: std::mem::take(&mut answer.copy) }
                }
                other => other.clone(),
            };
            writes.push(job.logged(what, answer.rows));
        }
        if !writes.is_empty() {
            txn.note_writes(writes, settings);
        }
        if txn.writes_bytes > bytes_max {
            return Err(Some(unit::kept_too_much(bytes_max)));
        }
        Ok(Vec::new())
    }

    /// A lane in the state that the core asked for; commands that must go ahead are appended. What a read phase has left
    /// behind must follow them where it is opened.
    pub(super) async fn lane_for(
        &mut self,
        replica: ReplicaId,
        how: How,
        commands: &mut Vec<String>,
    ) -> Result<Lane, LaneError> {
        let open = match how {
            How::Alone => None,
            How::Snapshot { open: false } | How::Home { open: false } => {
                let lane = self.txn.as_mut().and_then(|txn| txn.lane_at(replica));
                let mut lane = lane.ok_or(LaneError::Closed)?;
                lane.lent.lane.read_under = self.reads_under();
                self.shared.renew(&mut lane.lent.lane, replica);
                return Ok(lane);
            }
            How::Snapshot { open: true } => Some("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"),
            How::Home { open: true } => Some("BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"),
        };
        let lent = self.shared.pools[usize::from(replica.0)].lend(&self.who).await?;
        let mut lane = Lane { lent, replica };
        // An open transaction sets again what it has set itself, in its place among what it has read.
        let begun_with = self.txn.as_ref().map_or(&self.environment, |txn| &txn.environment_before);
        self.dress(&mut lane, begun_with, commands);
        commands.extend(open.map(str::to_owned));
        if let (true, Some(txn)) = (open.is_some(), self.txn.as_mut()) {
            txn.at_home = matches!(how, How::Home { .. });
            lane.lent.lane.backend.serve(Some(txn.id));
            if txn.course.has_settings() {
                // They are set again, and last longer than the transaction: the lane is dressed anew for whoever borrows it next.
                lane.lent.lane.settings = u64::MAX;
            }
        }
        Ok(lane)
    }

    /// Makes a lane's settings those of `environment`, and forgets what was prepared under other definitions.
    pub(super) fn dress(&self, lane: &mut Lane, environment: &Environment, commands: &mut Vec<String>) {
        let (in_force, replica) = (self.shared.classifier.generation(), lane.replica);
        // What is prepared on a replica that lags may be prepared by older definitions: 0 is nobody's generation.
        let contained = || self.shared.generation_at(replica).unwrap_or(0);
        environment.dress(&mut lane.lent.lane, in_force, contained, self.reads_under(), commands);
    }

    /// Identifies the settings under which servers read the session's texts.
    pub(super) fn reads_under(&self) -> u64 {
        let local = self.txn.iter().flat_map(|txn| &txn.local_settings);
        let local: Vec<_> = local.filter(|(name, _)| is_meaningful(name)).collect();
        let session = self.environment.meaningful_hash();
        if local.is_empty() { session } else { hash_of(&(session, local)) }
    }

    /// Puts a lane where the transaction keeps it, or gives it back.
    pub(super) async fn return_lane(&mut self, lane: Lane, how: How, status: Status) {
        match (how, self.txn.as_mut()) {
            (How::Snapshot { .. }, Some(txn)) if status != Status::Idle => txn.snapshot = Some(lane),
            (How::Home { .. }, Some(txn)) if status != Status::Idle => txn.home = Some(lane),
            _ if status == Status::Idle => self.give_back(lane),
            // It is inside a transaction block that nobody wants.
            _ => self.roll_back_lane(lane).await,
        }
    }

    pub(super) fn give_back(&self, lane: Lane) {
        self.shared.pools[usize::from(lane.replica.0)].give_back(&self.who, lane.lent);
    }

    pub(super) fn lose_lane(&self, lane: Lane, error: &LaneError) {
        let pool = &self.shared.pools[usize::from(lane.replica.0)];
        pool.suspect(lane.lent.lane.incarnation, error);
    }

    pub(super) async fn roll_back_lane(&mut self, lane: Lane) {
        roll_back(&self.shared, &self.who, lane).await;
    }

    /// Ends what the transaction has open on a replica.
    pub(super) async fn leave(&mut self, replica: ReplicaId) {
        let Some(txn) = self.txn.as_mut() else { return };
        let Some(lane) = txn.lane_at(replica) else { return };
        let home = Home { shared: &self.shared, who: &self.who, txn: txn.id };
        if let Some(lane) = home.leave(&mut txn.turn, lane) {
            self.roll_back_lane(lane).await;
        }
    }

    /// Tells the client of settings that a statement of its own has changed.
    pub(super) fn pass_on_reports(&mut self, answer: &Answer) {
        for (name, value) in &answer.reported {
            let before = self.tell(name, value);
            if let Some(txn) = self.txn.as_mut()
                && !txn.told.iter().any(|told| told.name == *name)
            {
                let before = before.unwrap_or_else(|| value.clone());
                txn.told.push(Told { name: name.clone(), before, lasting: None });
            }
        }
    }

    /// Tells the client what a setting is, unless it knows. Returns what it had heard.
    pub(super) fn tell(&mut self, name: &str, value: &str) -> Option<String> {
        let heard = self.reported.get(name).cloned();
        if heard.as_deref() != Some(value) {
            build::parameter_status(&mut self.client.output, name, value);
            self.reported.insert(name.to_owned(), value.to_owned());
        }
        heard
    }

    pub(super) fn drop_held(&mut self) {
        self.held.clear();
        if self.held.capacity() > 1024 * 1024 {
            self.held = BytesMut::new();
        }
    }

    /// The lane of the open transaction, taken out.
    pub(super) fn open_lane(&mut self) -> Option<Lane> {
        let read_under = self.reads_under();
        let txn = self.txn.as_mut()?;
        let mut lane = txn.home.take().or_else(|| txn.snapshot.take())?;
        lane.lent.lane.read_under = read_under;
        self.shared.renew(&mut lane.lent.lane, lane.replica);
        Some(lane)
    }
}

/// Ends what is open on a lane, and gives it back.
pub(super) async fn roll_back(shared: &Shared, who: &Credentials, mut lane: Lane) {
    let pool = &shared.pools[usize::from(lane.replica.0)];
    if !pool.is_current(&lane.lent) {
        // It is closed, and may belong to a server that does not answer any more.
        return;
    }
    match lane.lent.lane.roll_back().await {
        Ok(()) => pool.give_back(who, lane.lent),
        Err(error) => pool.suspect(lane.lent.lane.incarnation, &error),
    }
}

/// Closes a lane on which something is under way, and waits until the server has let go of what is open on it.
pub(super) async fn break_off(shared: &Shared, mut lane: Lane) {
    let backend = lane.lent.lane.backend.clone();
    Target::new(lane.replica, &backend).cancel(shared).await;
    lane.lent.lane.close().await;
}

enum Executed {
    Answered(Answer),
    /// The core looks at what the answer shows, which waits in `held`.
    Held(Answer),
    Lost,
    Refused,
}
