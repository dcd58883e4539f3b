//! Commands that concern the session or the transaction itself, and statements with a way of their own.

use std::cmp::Reverse;
use std::time::Duration;

use bytes::BytesMut;
use onecopy_classify::{Discard, Kind};
use onecopy_core::protocol::ReplicaStatus;
use onecopy_core::{AccessSet, Event, ReplicaId, StatementKind};
use onecopy_wire::backend::{Status, build};
use onecopy_wire::sqlstate::SqlState;

use super::calls::boolean;
use super::client::ClientError;
use super::environment::{is_kept_here, is_meaningful};
use super::extended::Portal;
use super::job::{Aside, Job};
use super::patience::shown_limit;
use super::read_phase::Past;
use super::settings::{list_value, mode_of_transaction};
use super::txn::{Lane, Listen, Savepoint, Told};
use super::unit::{self, Answer, Request, Sink, UnitError, Watch};
use super::{Done, Session};
use crate::classifier::Statement;
use crate::clock::Deadline;
use crate::errors::{Cancelled, Failure};
use crate::lane::LaneError;
use crate::server::cancel::Whereabouts;

/// Replicas that may be lost under one statement before its client hears of it.
pub(super) const LOSSES_MAX: u32 = 5;

/// What a client hears that asks for an unlogged relation.
const UNLOGGED: &str =
    "UNLOGGED is ignored: a server that crashes would empty its copy, so the relation is kept logged";

impl Session {
    /// Transaction control: answered here, also inside a failed transaction.
    pub(super) async fn execute_control(
        &mut self,
        statement: &Statement,
        extended: bool,
    ) -> Result<Option<Done>, ClientError> {
        let is_failed = self.txn.as_ref().is_some_and(|txn| txn.failed);
        let done = match &statement.class.kind {
            Kind::Begin(modes) if !is_failed => {
                match self.txn.as_mut() {
                    Some(txn) if txn.explicit => {
                        self.warn(
                            SqlState::ACTIVE_SQL_TRANSACTION,
                            "there is already a transaction in progress",
                        );
                    }
                    // Inside a message of several statements, BEGIN makes their transaction an explicit one.
                    Some(txn) => {
                        txn.explicit = true;
                        txn.read_only |= modes.read_only.unwrap_or(false);
                    }
                    None => self.begin_txn(true, modes.read_only.unwrap_or_else(|| self.default_read_only())),
                }
                let starts = statement.class.text.trim_start().get(..5);
                let is_start = starts.is_some_and(|word| word.eq_ignore_ascii_case("start"));
                self.answer_command(extended, if is_start { "START TRANSACTION" } else { "BEGIN" });
                Done::Answered
            }
            Kind::Commit { chain } => self.on_commit(extended, *chain).await?,
            Kind::Rollback { chain } => {
                let read_only = self.txn.as_ref().is_some_and(|txn| txn.read_only);
                if self.txn.is_none() {
                    self.warn(SqlState::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress");
                }
                self.rollback().await;
                self.answer_command(extended, "ROLLBACK");
                if *chain {
                    self.begin_txn(true, read_only);
                }
                Done::Answered
            }
            Kind::RollbackTo(name) => self.on_rollback_to(statement, name, extended).await?,
            _ => return Ok(None),
        };
        Ok(Some(done))
    }

    async fn on_commit(&mut self, extended: bool, chain: bool) -> Result<Done, ClientError> {
        let (failed, read_only) = self.txn.as_ref().map_or((false, false), |txn| (txn.failed, txn.read_only));
        if self.txn.is_none() {
            self.warn(SqlState::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress");
        }
        if failed {
            self.rollback().await;
            self.answer_command(extended, "ROLLBACK");
        } else {
            if self.commit().await? == Done::Failed {
                self.steps.clear();
                self.skipping = true;
                return Ok(Done::Failed);
            }
            self.answer_command(extended, "COMMIT");
        }
        if chain {
            self.begin_txn(true, read_only);
        }
        Ok(Done::Answered)
    }

    /// ROLLBACK TO: what was written since the savepoint is not replayed anywhere.
    async fn on_rollback_to(
        &mut self,
        statement: &Statement,
        name: &str,
        extended: bool,
    ) -> Result<Done, ClientError> {
        let Some(txn) = self.txn.as_mut() else {
            let failure = self.no_transaction();
            self.fail(&failure);
            return Ok(Done::Failed);
        };
        let Some(at) = txn.savepoints.iter().rposition(|savepoint| savepoint.name == name) else {
            self.fail(&Failure::new(
                SqlState::INVALID_SAVEPOINT_SPECIFICATION,
                format!("savepoint \"{name}\" does not exist"),
            ));
            return Ok(Done::Failed);
        };
        if txn.is_given_up() {
            // What was written before the savepoint is nowhere any more.
            self.fail(
                &Failure::new(
                    SqlState::SERIALIZATION_FAILURE,
                    format!("the transaction was given up and cannot go back to savepoint \"{name}\""),
                )
                .hint("Nothing of it was committed. Run the transaction again."),
            );
            return Ok(Done::Failed);
        }
        let savepoint = &txn.savepoints[at];
        txn.writes.truncate(savepoint.writes);
        txn.write_settings = savepoint.write_settings.clone();
        txn.local_settings = savepoint.local_settings.clone();
        self.environment = savepoint.environment.clone();
        let told_then = savepoint.told.clone();
        (txn.read_only, txn.refuses_writes) = (savepoint.read_only, savepoint.refuses_writes);
        txn.notifications.truncate(savepoint.notifications);
        txn.listens.truncate(savepoint.listens);
        self.locks.return_to(savepoint.locks);
        txn.savepoints.truncate(at + 1);
        let mut heard = Vec::with_capacity(txn.told.len());
        for told in &mut txn.told {
            let then = told_then.iter().find(|(then, _)| then.name == told.name);
            told.lasting = then.and_then(|(then, _)| then.lasting.clone());
            heard.push((told.name.clone(), then.map_or(&told.before, |(_, value)| value).clone()));
        }
        if !txn.at_home {
            txn.read_phase.note(Past::ReturnedTo(name.to_owned()));
        }
        for (name, value) in heard {
            self.tell(&name, &value);
        }
        if self.txn.as_ref().is_some_and(|txn| txn.is_everywhere) {
            return self.roll_back_everywhere(statement, extended).await;
        }
        // The lane is told directly: the transaction goes on where it was, with the items that it holds.
        let Some(mut lane) = self.open_lane() else {
            if let Some(txn) = self.txn.as_mut() {
                txn.failed = false;
            }
            self.answer_command(extended, "ROLLBACK");
            return Ok(Done::Answered);
        };
        let result = lane.lent.lane.command(&statement.sql).await;
        match result {
            Ok(()) => {
                self.keep_lane(lane);
                if let Some(txn) = self.txn.as_mut() {
                    txn.failed = false;
                }
                if self.txn.as_ref().is_some_and(|txn| txn.catalogue.is_some()) {
                    // A change of definitions may have been undone.
                    self.read_own_definitions().await;
                }
                self.answer_command(extended, "ROLLBACK");
                Ok(Done::Answered)
            }
            Err(error) if error.is_database() => {
                self.keep_lane(lane);
                self.fail(&Failure::of_lane(&error));
                Ok(Done::Failed)
            }
            Err(error) => {
                self.on_lane_lost(lane, &error);
                Ok(Done::Failed)
            }
        }
    }

    /// Puts the lane of the open transaction back.
    pub(super) fn keep_lane(&mut self, lane: Lane) {
        if let Some(txn) = self.txn.as_mut() {
            // A transaction that has written, or holds items, is at its home; only a read phase has a snapshot.
            if txn.at_home { txn.home = Some(lane) } else { txn.snapshot = Some(lane) }
        }
    }

    /// Statements that do not simply read or write rows.
    pub(super) async fn execute_special(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
    ) -> Result<Option<Done>, ClientError> {
        let class = statement.class.clone();
        let extended = portal.is_some();
        let done = match &class.kind {
            Kind::Savepoint(name) => {
                if self.txn.as_ref().is_none_or(|txn| !txn.explicit) {
                    let failure = Failure::new(
                        SqlState::NO_ACTIVE_SQL_TRANSACTION,
                        "SAVEPOINT can only be used in transaction blocks",
                    );
                    self.fail(&failure);
                    return Ok(Some(Done::Failed));
                }
                let again = Past::Savepoint(name.clone());
                let done = self.run_in_place(statement, extended, Some(again)).await?;
                if done == Done::Answered
                    && let Some(txn) = self.txn.as_mut()
                {
                    let heard = |told: &Told| self.reported.get(&told.name).unwrap_or(&told.before).clone();
                    let told = txn.told.iter().map(|told| (told.clone(), heard(told))).collect();
                    let savepoint = Savepoint {
                        name: name.clone(),
                        writes: txn.writes.len(),
                        read_only: txn.read_only,
                        refuses_writes: txn.refuses_writes,
                        write_settings: txn.write_settings.clone(),
                        local_settings: txn.local_settings.clone(),
                        environment: self.environment.clone(),
                        told,
                        notifications: txn.notifications.len(),
                        listens: txn.listens.len(),
                        locks: self.locks.mark(),
                    };
                    txn.savepoints.push(savepoint);
                }
                done
            }
            Kind::Release(name) => {
                let again = Past::Released(name.clone());
                let done = self.run_in_place(statement, extended, Some(again)).await?;
                if done == Done::Answered
                    && let Some(txn) = self.txn.as_mut()
                    && let Some(at) = txn.savepoints.iter().rposition(|savepoint| savepoint.name == *name)
                {
                    // As in PostgreSQL, what it said of writing goes with it, however it ends.
                    let savepoint = &txn.savepoints[at];
                    (txn.read_only, txn.refuses_writes) = (savepoint.read_only, savepoint.refuses_writes);
                    txn.savepoints.truncate(at);
                }
                done
            }
            Kind::Set { name, values: Some(values), .. }
                if let Some(read_only) = mode_of_transaction(name, values) =>
            {
                self.on_set_transaction(read_only, extended).await?
            }
            Kind::Set { name, values, local } => {
                let value = values.as_ref().map(|values| list_value(name, values));
                self.on_set(statement, portal, name, value, *local).await?
            }
            Kind::Reset(name) => self.on_reset(statement, portal, name.as_deref()).await?,
            Kind::SetConfig { calls, rows } => self.on_set_config(statement, calls, *rows, portal).await?,
            Kind::SetTransaction { modes, session: false } => {
                self.on_set_transaction(modes.read_only, extended).await?
            }
            Kind::SetTransaction { modes, session: true } => {
                if let Some(read_only) = modes.read_only {
                    self.default_read_only = read_only;
                }
                self.answer_command(extended, "SET");
                Done::Answered
            }
            Kind::Show(name) if name == "transaction_isolation" => {
                self.answer_show(extended, "transaction_isolation", "serializable");
                Done::Answered
            }
            // A replica would say what its lane may do, which is to read, until the first write.
            Kind::Show(name) if name == "transaction_read_only" => {
                let read_only = match &self.txn {
                    Some(txn) => txn.read_only || txn.refuses_writes,
                    None => self.default_read_only(),
                };
                self.answer_show(extended, name, if read_only { "on" } else { "off" });
                Done::Answered
            }
            Kind::Show(name) if is_kept_here(name) => {
                let value = self.setting(name).unwrap_or("0").to_owned();
                let shown = shown_limit(name, &value).unwrap_or(value);
                self.answer_show(extended, &name.to_ascii_lowercase(), &shown);
                Done::Answered
            }
            Kind::Show(_) => self.run_in_place(statement, extended, None).await?,
            Kind::Discard(what) => self.on_discard(*what, extended).await?,
            Kind::Deallocate(name) => self.on_deallocate(name.as_deref(), extended).await,
            Kind::SetConstraints { .. } => {
                // Constraints are settled before the decision in any case; at home this takes effect as usual.
                let again = Past::Setting(statement.sql.to_string());
                self.run_in_place(statement, extended, Some(again)).await?
            }
            Kind::SetRole { .. } | Kind::SetSessionAuthorization { .. } => {
                return self.refuse(
                    "SET ROLE and SET SESSION AUTHORIZATION are not supported",
                    "Connect as the role that is to be used.",
                );
            }
            Kind::Listen(channel) => self.on_listen(Listen::To(channel.clone()), extended),
            Kind::Unlisten(Some(channel)) => self.on_listen(Listen::NoLongerTo(channel.clone()), extended),
            Kind::Unlisten(None) => self.on_listen(Listen::ToNothing, extended),
            Kind::Notify { channel, payload } => self.on_notify(channel, payload, extended).await,
            Kind::SessionCalls(calls) => self.on_session_calls(statement, calls, portal).await?,
            Kind::Prepare { name, body, types, .. } => {
                self.on_prepare(statement, name, *body, types, extended).await?
            }
            Kind::Explain { inner, .. } if matches!(**inner, Kind::Execute { .. }) => {
                return self.refuse(
                    "EXPLAIN EXECUTE is not supported",
                    "Write the prepared statement in place of EXECUTE.",
                );
            }
            Kind::Execute { .. } if extended => {
                return self.refuse(
                    "EXECUTE by the extended protocol is not supported with a comment before it",
                    "Send EXECUTE without comments, or bind the prepared statement by the protocol.",
                );
            }
            Kind::Execute { .. } => self.on_execute_command(statement).await?,
            _ if class.effects.advisory_locks
                && !matches!(class.kind, Kind::Explain { analyze: false, .. }) =>
            {
                return self.refuse(
                    "advisory locks are not supported inside other statements",
                    "Call their functions as the only columns of a SELECT without FROM: SELECT pg_advisory_lock(1).",
                );
            }
            _ if class.effects.notifies && !matches!(class.kind, Kind::Explain { analyze: false, .. }) => {
                return self.refuse(
                    "pg_notify() is not supported inside other statements",
                    "Call it as the only column of a SELECT without FROM, or use NOTIFY.",
                );
            }
            _ if (class.effects.sets_config || class.effects.sets_custom_locally && self.txn.is_some())
                && !matches!(class.kind, Kind::Explain { analyze: false, .. }) =>
            {
                return self.refuse(
                    "set_config() is not supported inside other statements",
                    "Call it as the only columns of a SELECT, with constants or parameters: SELECT set_config('app.user', $1, true).",
                );
            }
            Kind::DeclareCursor { hold: true, .. } => {
                return self.refuse(
                    "cursors WITH HOLD are not supported",
                    "Declare the cursor without WITH HOLD inside a transaction.",
                );
            }
            Kind::DeclareCursor { .. } => {
                if let Some(txn) = self.txn.as_mut() {
                    txn.cursors = true;
                }
                return Ok(None);
            }
            Kind::Fetch(_) | Kind::Move(_) | Kind::CloseCursor(_) => {
                self.run_in_place(statement, extended, None).await?
            }
            Kind::Ddl { temporary: true, .. } => {
                return self.refuse(
                    "temporary objects are not supported",
                    "Use an ordinary table with a column for the session, or WITH queries.",
                );
            }
            Kind::Ddl { unlogged: true, .. } => {
                build::notice(
                    &mut self.client.output,
                    &build::Report::new(build::Severity::Notice, SqlState::SUCCESSFUL_COMPLETION, UNLOGGED),
                );
                return Ok(None);
            }
            Kind::SetVal { .. } => self.execute_setval(statement, portal).await?,
            Kind::Maintenance { command, .. } => self.on_maintenance(statement, extended, command).await?,
            Kind::SyntaxError { .. } => self.on_syntax_error(statement, portal).await?,
            Kind::Select | Kind::Explain { analyze: false, .. }
                if class.effects.catalogue_only && self.sees_shared_catalogue(portal) =>
            {
                let done = self.on_catalogue_query(statement, portal).await?;
                if let (Done::Failed, Some(id)) = (done, self.txn.as_ref().map(|txn| txn.id)) {
                    self.end_if_failed(id).await;
                }
                done
            }
            _ => return Ok(None),
        };
        Ok(Some(done))
    }

    pub(super) fn refuse(&mut self, what: &str, hint: &str) -> Result<Option<Done>, ClientError> {
        self.fail(&Failure::unsupported(what, hint));
        Ok(Some(Done::Failed))
    }

    pub(super) fn warn(&mut self, code: SqlState, message: &str) {
        build::notice(&mut self.client.output, &build::Report::new(build::Severity::Warning, code, message));
    }

    /// Whether transactions that do not say otherwise change nothing.
    pub(super) fn default_read_only(&self) -> bool {
        self.default_read_only
            || self
                .environment
                .value("default_transaction_read_only")
                .is_some_and(|value| boolean(value) == Some(true))
    }

    fn answer_show(&mut self, extended: bool, name: &str, value: &str) {
        if extended {
            // Shapes were asked of nobody: a row of text is what SHOW always returns.
            self.answer_rows_steps(name);
        } else {
            let _ = build::text_row_description(&mut self.client.output, &[name]);
        }
        let _ = build::text_row(&mut self.client.output, &[value]);
        build::command_complete(&mut self.client.output, "SHOW");
    }

    /// SET TRANSACTION. Isolation levels are as good as the strictest.
    async fn on_set_transaction(
        &mut self,
        read_only: Option<bool>,
        extended: bool,
    ) -> Result<Done, ClientError> {
        match self.txn.as_mut() {
            Some(txn) if txn.begun && txn.read_only && read_only == Some(false) => {
                let what = "transaction read-write mode must be set before any query";
                return self.fail_statement(&Failure::new(SqlState::ACTIVE_SQL_TRANSACTION, what)).await;
            }
            Some(txn) => {
                let read_only = read_only.unwrap_or(txn.read_only);
                // Lanes were told at its beginning.
                txn.refuses_writes |= txn.begun && read_only && !txn.read_only;
                txn.read_only = read_only;
            }
            None => self.warn(
                SqlState::NO_ACTIVE_SQL_TRANSACTION,
                "SET TRANSACTION can only be used in transaction blocks",
            ),
        }
        self.answer_command(extended, "SET");
        Ok(Done::Answered)
    }

    /// Runs a statement that touches no item wherever the transaction is; outside, on any replica. `repeat` is what it is in
    /// a read phase, if it is no read.
    pub(super) async fn run_in_place(
        &mut self,
        statement: &Statement,
        extended: bool,
        repeat: Option<Past>,
    ) -> Result<Done, ClientError> {
        let request = if extended {
            Request::Extended(std::mem::take(&mut self.steps))
        } else {
            Request::Simple(statement.sql.to_string())
        };
        let job = Job {
            request,
            kind: StatementKind::Read,
            access: AccessSet::new(),
            class: statement.class.id,
            write: None,
            capture: None,
            generation: 0,
            repeat,
            schema_changed: false,
            aside: Aside::default(),
        };
        let ran = self.run_job(job).await?;
        Ok(self.answer_or_fail(&ran))
    }

    /// The lanes of the open transaction carry settings of their own from now on.
    pub(super) fn undress(&mut self) {
        if let Some(txn) = self.txn.as_mut() {
            for lane in txn.home.iter_mut().chain(txn.snapshot.iter_mut()) {
                lane.lent.lane.settings = u64::MAX;
            }
        }
    }

    async fn on_discard(&mut self, what: Discard, extended: bool) -> Result<Done, ClientError> {
        let tag = match what {
            Discard::All => {
                if self.txn.is_some() {
                    self.fail(&Failure::new(
                        SqlState::ACTIVE_SQL_TRANSACTION,
                        "DISCARD ALL cannot run inside a transaction block",
                    ));
                    return Ok(Done::Failed);
                }
                self.environment.reset_all();
                self.statements.clear();
                self.sequences.clear();
                self.locks.unlock_all();
                self.listener = None;
                "DISCARD ALL"
            }
            Discard::Plans => "DISCARD PLANS",
            Discard::Sequences => {
                self.sequences.clear();
                "DISCARD SEQUENCES"
            }
            Discard::Temp => "DISCARD TEMP",
        };
        self.answer_command(extended, tag);
        Ok(Done::Answered)
    }

    /// The replica whose object ids clients see: the first that is up.
    fn reference_replica(&self) -> Option<ReplicaId> {
        self.shared.pools.iter().find(|pool| pool.is_up()).map(|pool| pool.replica)
    }

    /// The same, after waiting for one as long as a statement may wait.
    pub(super) async fn await_reference_replica(&self) -> Option<ReplicaId> {
        let limit_ms = self.shared.limits.wait_timeout_ms;
        let deadline = Deadline::after(Duration::from_millis(limit_ms));
        let pause = Duration::from_millis(10);
        loop {
            let found = self.reference_replica();
            if found.is_some() || limit_ms != 0 && deadline.has_passed() {
                return found;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// A lane outside any transaction, with this session's settings.
    pub(super) async fn plain_lane(&mut self, replica: ReplicaId) -> Result<Lane, LaneError> {
        let pool = self.shared.pools[usize::from(replica.0)].clone();
        let lent = match pool.lend(&self.who).await {
            Ok(lent) => lent,
            Err(error) => {
                pool.suspect_now(&error);
                return Err(error);
            }
        };
        let mut lane = Lane { lent, replica };
        let mut commands = Vec::new();
        self.dress(&mut lane, &self.environment, &mut commands);
        for command in commands {
            if let Err(error) = lane.lent.lane.command(&command).await {
                self.lose_lane(lane, &error);
                return Err(error);
            }
        }
        Ok(lane)
    }

    /// Whether a query of the catalogue finds outside the open transaction what it would find inside. Where it does not,
    /// the transaction has changed definitions, so that nobody else has been told of them, or settings; or the query's
    /// rows are fetched bit by bit, which is done on the transaction's own lane.
    fn sees_shared_catalogue(&self, portal: Option<&Portal>) -> bool {
        let Some(txn) = &self.txn else { return true };
        let steps_stand_alone = || {
            let bound = self.steps.iter().filter(|step| matches!(step, unit::Step::Bind { .. })).count();
            let others = |step: &unit::Step| {
                matches!(step, unit::Step::ClosePortal(_) | unit::Step::Execute { max_rows: 1.., .. })
            };
            bound == 1 && !self.steps.iter().any(others)
        };
        !txn.schema_changed
            && txn.catalogue.is_none()
            && txn.local_settings.is_empty()
            && (portal.is_none() || steps_stand_alone())
    }

    /// Catalogue queries show object ids, which differ between replicas: all run on one of them.
    async fn on_catalogue_query(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
    ) -> Result<Done, ClientError> {
        let request = match portal {
            Some(_) => Request::Extended(std::mem::take(&mut self.steps)),
            None => Request::Simple(statement.sql.to_string()),
        };
        self.run_beside(&request, true).await
    }

    /// Runs a unit that changes nothing outside the open transaction, where every definition is that anybody was told of: one
    /// that shows the catalogue on the reference replica. A replica that is lost before it answered is replaced.
    async fn run_beside(&mut self, request: &Request, shows_catalogue: bool) -> Result<Done, ClientError> {
        let (begun_at, sent) = (self.client.output.len(), self.client.sent);
        let mut losses = 0;
        loop {
            let found = match shows_catalogue {
                true => self.await_reference_replica().await,
                false => self.await_most_advanced_replica().await,
            };
            let Some(replica) = found else {
                self.fail(&no_replica());
                return Ok(Done::Failed);
            };
            if let Some(txn) = self.txn.as_mut().filter(|_| shows_catalogue)
                && *txn.shown_catalogue_of.get_or_insert(replica) != replica
            {
                let failure = Failure::new(
                    SqlState::SERIALIZATION_FAILURE,
                    "the replica whose catalogue the transaction has read is out of service, and another one has other object ids",
                );
                self.fail(&failure.hint("Run the transaction again."));
                return Ok(Done::Failed);
            }
            let lane = match self.lane_beside(replica).await {
                Ok(lane) => lane,
                Err(failure) => {
                    self.fail(&failure);
                    return Ok(Done::Failed);
                }
            };
            let error = match lane {
                Ok(mut lane) => {
                    let sink = Sink::Client(&mut self.client);
                    let mut watch = Watch::default();
                    let backend = lane.lent.lane.backend.clone();
                    self.cancel.set(Whereabouts::OnLane { replica, backend });
                    let result = unit::run(&mut lane.lent.lane, 0, request, sink, &mut watch, None).await;
                    self.cancel.set(Whereabouts::Idle);
                    match result {
                        Err(UnitError::Lane(error)) if self.client.sent == sent => {
                            self.client.output.truncate(begun_at);
                            self.lose_lane(lane, &error);
                            error
                        }
                        result => return self.after_lone_unit(lane, result).await,
                    }
                }
                Err(error) => error,
            };
            losses += 1;
            if error.is_refusal() || losses > LOSSES_MAX {
                self.fail(&Failure::of_lane(&error));
                return Ok(Done::Failed);
            }
        }
    }

    /// A lane of a replica outside the open transaction, once the replica contains what anybody was told of; for as long as a
    /// statement may wait.
    pub(super) async fn lane_beside(
        &mut self,
        replica: ReplicaId,
    ) -> Result<Result<Lane, LaneError>, Failure> {
        let told = self.shared.scheduler.status().told;
        let patience = self.patience(false);
        let shared = self.shared.clone();
        let lane = async {
            shared.await_applied(replica, told).await;
            self.plain_lane(replica).await
        };
        match patience {
            None => Ok(lane.await),
            Some((limit, cause)) => tokio::time::timeout(limit, lane).await.map_err(|_| cause.failure()),
        }
    }

    /// The replica that has applied most: it says first what others are told of.
    pub(super) async fn await_most_advanced_replica(&self) -> Option<ReplicaId> {
        match most_advanced(&self.shared.scheduler.status().replicas) {
            Some(replica) => Some(replica),
            None => self.await_reference_replica().await,
        }
    }

    /// Whether what a statement is can be found out outside the open transaction. On the transaction's own lane, the server
    /// would hold its tables before the core has granted them, and nobody would know of that: a change of definitions might
    /// wait there for a transaction that waits for it. Where lanes are scarce, waiting for another one would be no better.
    pub(super) fn describes_beside(&self) -> bool {
        if self.txn.is_none() || self.is_by_itself() {
            return self.txn.is_none();
        }
        let most_advanced = most_advanced(&self.shared.scheduler.status().replicas);
        most_advanced.is_some_and(|replica| self.shared.pools[usize::from(replica.0)].has_room(&self.who))
    }

    /// Whether a text may mean something else inside the open transaction than outside.
    pub(super) fn is_by_itself(&self) -> bool {
        self.txn.as_ref().is_some_and(|txn| {
            txn.catalogue.is_some() || txn.local_settings.iter().any(|(name, _)| is_meaningful(name))
        })
    }

    /// What has to happen after a unit outside the core's order.
    async fn after_lone_unit(
        &mut self,
        lane: Lane,
        result: Result<Answer, UnitError>,
    ) -> Result<Done, ClientError> {
        match result {
            Ok(answer) => {
                self.confirm_parsed(&answer.unparsed);
                self.pass_on_reports(&answer);
                if answer.status == Some(Status::Idle) {
                    self.give_back(lane)
                } else {
                    self.roll_back_lane(lane).await
                }
                if answer.error.is_some() {
                    self.on_statement_failed();
                    if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
                        self.end_if_failed(id).await;
                    }
                    return Ok(Done::Failed);
                }
                Ok(Done::Answered)
            }
            Err(UnitError::Client(error)) => Err(error),
            Err(UnitError::Lane(error)) => {
                let failure = Failure::of_lane(&error);
                self.lose_lane(lane, &error);
                self.fail_statement(&failure).await
            }
        }
    }

    /// A text that onecopy does not understand.
    async fn on_syntax_error(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
    ) -> Result<Done, ClientError> {
        let failure = Failure::unsupported(
            "the replica understands this statement, but onecopy does not",
            "onecopy knows the grammar of PostgreSQL 17; use the statement's older form.",
        );
        self.on_refused(statement, portal, failure).await
    }

    /// A statement that is not executed: if a server does not understand it either, its own words say why.
    pub(super) async fn on_refused(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
        failure: Failure,
    ) -> Result<Done, ClientError> {
        // Definitions that the transaction has changed are known to its lane only, and an error there would end it.
        let own_definitions = self.txn.as_ref().is_some_and(|txn| txn.catalogue.is_some());
        let syntax = matches!(statement.class.kind, Kind::SyntaxError { .. });
        let ask = failure.code == SqlState::FEATURE_NOT_SUPPORTED && (syntax || !own_definitions);
        let words = if ask { self.servers_objection(statement, portal).await } else { Ok(None) };
        match words {
            Ok(Some(error)) => {
                let unconfirmed = std::mem::take(&mut self.unconfirmed);
                unconfirmed.iter().for_each(|name| drop(self.statements.remove(name)));
                self.client.output.extend_from_slice(&error);
                self.on_statement_failed();
            }
            Ok(None) => self.fail(&failure),
            Err(unavailable) => self.fail(&unavailable),
        }
        if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
            self.end_if_failed(id).await;
        }
        Ok(Done::Failed)
    }

    /// The error with which a server answers a statement that it is only asked to parse.
    async fn servers_objection(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
    ) -> Result<Option<BytesMut>, Failure> {
        // Never executed: a server of another version might find it valid.
        let preparation = match portal {
            Some(portal) => portal.prepared.preparation.clone(),
            None => unit::Preparation::new(&statement.sql, &[]),
        };
        let request = Request::Extended(vec![unit::Step::DescribeStatement(preparation)]);
        // One that lags would not know what the client has just made.
        let status = self.shared.scheduler.status();
        let replica = most_advanced(&status.replicas).ok_or_else(no_replica)?;
        self.shared.await_applied(replica, status.told).await;
        let mut lane = self.plain_lane(replica).await.map_err(|error| Failure::of_lane(&error))?;
        let mut words = BytesMut::new();
        let sink = Sink::Hold(&mut words, 1024 * 1024);
        match unit::run(&mut lane.lent.lane, 0, &request, sink, &mut Watch::default(), None).await {
            Ok(answer) => {
                match answer.status {
                    Some(Status::Idle) => self.give_back(lane),
                    _ => self.roll_back_lane(lane).await,
                }
                Ok(answer.error.is_some().then_some(words))
            }
            Err(UnitError::Client(error)) => Err(Failure::new(SqlState::INTERNAL_ERROR, error.to_string())),
            Err(UnitError::Lane(error)) => {
                let failure = Failure::of_lane(&error);
                self.lose_lane(lane, &error);
                Err(failure)
            }
        }
    }

    /// VACUUM and the like have no place in the order: each replica runs them for itself.
    async fn on_maintenance(
        &mut self,
        statement: &Statement,
        extended: bool,
        command: &str,
    ) -> Result<Done, ClientError> {
        if self.txn.is_some() {
            self.fail(&Failure::new(
                SqlState::ACTIVE_SQL_TRANSACTION,
                format!("{command} cannot run inside a transaction block"),
            ));
            return Ok(Done::Failed);
        }
        if !matches!(command.split(' ').next(), Some("VACUUM" | "ANALYZE" | "CHECKPOINT")) {
            self.fail(&Failure::unsupported(
                format!("{command} is not supported"),
                "It cannot be part of the one order of commits. Use the form that runs in a transaction, if there is one.",
            ));
            return Ok(Done::Failed);
        }
        let request = if extended {
            Request::Extended(std::mem::take(&mut self.steps))
        } else {
            Request::Simple(statement.sql.to_string())
        };
        let told = self.shared.scheduler.status().told;
        let mut first = true;
        for replica in 0..self.shared.pools.len() {
            let replica = ReplicaId(replica as u16);
            if !self.shared.pools[usize::from(replica.0)].is_up() {
                continue;
            }
            self.shared.await_applied(replica, told).await;
            let mut lane = match self.plain_lane(replica).await {
                Ok(lane) => lane,
                Err(error) => {
                    self.fail(&Failure::of_lane(&error));
                    return Ok(Done::Failed);
                }
            };
            let sink = if first { Sink::Client(&mut self.client) } else { Sink::Drop };
            let result = unit::run(&mut lane.lent.lane, 0, &request, sink, &mut Watch::default(), None).await;
            let failed_later = !first && matches!(&result, Ok(answer) if answer.error.is_some());
            let done = self.after_lone_unit(lane, result).await?;
            if done == Done::Failed {
                if failed_later {
                    self.fail(&Failure::new(
                        SqlState::INTERNAL_ERROR,
                        format!("{command} succeeded on one replica and failed on replica {}", replica.0),
                    ));
                }
                return Ok(Done::Failed);
            }
            first = false;
        }
        if first {
            self.fail(&no_replica());
            return Ok(Done::Failed);
        }
        Ok(Done::Answered)
    }

    /// Parse and Describe outside the open transaction, if there is one.
    pub(super) async fn describe_anywhere(&mut self, request: &Request) -> Result<Done, ClientError> {
        self.run_beside(request, false).await
    }

    /// Parse and Describe inside a transaction, on its own lane.
    pub(super) async fn after_describe(
        &mut self,
        lane: Option<Lane>,
        result: Result<Answer, UnitError>,
    ) -> Result<(), ClientError> {
        let Some(lane) = lane else { return Ok(()) };
        match result {
            Ok(answer) => {
                self.confirm_parsed(&answer.unparsed);
                self.keep_lane(lane);
                if answer.error.is_some() {
                    self.on_statement_failed();
                    if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
                        self.end_if_failed(id).await;
                    }
                }
                Ok(())
            }
            Err(UnitError::Client(error)) => Err(error),
            Err(UnitError::Lane(error)) => {
                self.on_lane_lost(lane, &error);
                Ok(())
            }
        }
    }

    /// The open transaction was executing on a replica that is lost: it cannot go on.
    pub(super) fn on_lane_lost(&mut self, lane: Lane, error: &LaneError) {
        let failure = self.lane_of_txn_lost(lane, error);
        self.fail(&failure);
    }

    /// The same; returns what the client must hear.
    pub(super) fn lane_of_txn_lost(&mut self, lane: Lane, error: &LaneError) -> Failure {
        let (replica, id) = (lane.replica, self.txn.as_ref().map(|txn| txn.id));
        self.lose_lane(lane, error);
        if let Some(txn) = id {
            self.shared.scheduler.handle(Event::HomeLost { txn, replica });
        }
        Failure::of_refusal(onecopy_core::Refusal::HomeLost, Cancelled::Timeout)
    }

    /// Definitions as the open transaction sees them after a change of its own.
    pub(super) async fn read_own_definitions(&mut self) {
        let Some(mut lane) = self.txn.as_mut().and_then(|txn| txn.home.take()) else { return };
        let contained = self.shared.generation_at(lane.replica);
        // A prepared statement keeps the types that its parameters had when it was prepared.
        lane.lent.lane.unprepare_all();
        let forgotten = lane.lent.lane.command("DEALLOCATE ALL").await;
        let read = match forgotten {
            Ok(()) => crate::postgres::definitions::read_in_transaction(&mut lane.lent.lane).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(catalogue) => {
                if let Some(txn) = self.txn.as_mut() {
                    txn.catalogue = Some(std::sync::Arc::new(catalogue));
                    txn.generation = contained.unwrap_or(txn.generation);
                    if let Some(ids) = &mut lane.lent.lane.object_ids {
                        ids.own_definitions = true;
                    }
                    txn.home = Some(lane);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "read definitions inside a transaction");
                if error.is_database() { self.keep_lane(lane) } else { self.lose_lane(lane, &error) }
            }
        }
    }
}

pub(super) fn no_replica() -> Failure {
    Failure::new(SqlState::CANNOT_CONNECT_NOW, "no replica is in service")
        .hint("Statements run again as soon as one replica is back; `onecopy status` shows them.")
}

/// The first of the replicas in service that have applied most.
fn most_advanced(replicas: &[ReplicaStatus]) -> Option<ReplicaId> {
    let up = replicas.iter().enumerate().filter(|(_, replica)| replica.up);
    let (index, _) = up.max_by_key(|(index, replica)| (replica.applied, Reverse(*index)))?;
    u16::try_from(index).ok().map(ReplicaId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replica_asked_for_its_words_is_in_service_and_lags_least() {
        let replica = |up, applied| ReplicaStatus { up, applied, ..ReplicaStatus::default() };
        let found = |replicas: &[ReplicaStatus]| most_advanced(replicas);
        assert_eq!(found(&[replica(true, 3), replica(false, 9), replica(true, 5)]), Some(ReplicaId(2)));
        assert_eq!(found(&[replica(true, 5), replica(true, 5)]), Some(ReplicaId(0)));
        assert_eq!(found(&[replica(false, 5)]), None);
    }
}
