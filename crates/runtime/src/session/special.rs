//! Commands that concern the session or the transaction itself, and statements with a way of their own.

use bytes::BytesMut;
use onecopy_classify::{Capturing, Discard, Isolation, Kind, Modes};
use onecopy_core::{ReplicaId, StatementKind};
use onecopy_wire::backend::{ErrorFields, Status, build};
use onecopy_wire::sqlstate::SqlState;

use super::beside::{most_advanced, no_replica};
use super::calls::boolean;
use super::client::ClientError;
use super::course::Past;
use super::environment::{DEFAULT_READ_ONLY, is_kept_here};
use super::job::{Aside, Job};
use super::patience::shown_limit;
use super::portals::Portal;
use super::settings::{isolation, list_value, mode_of_transaction};
use super::txn::{Lane, Listen, Savepoint, Told};
use super::unit::{self, Answer, Request, Sink, UnitError, Watch};
use super::{Done, Session};
use crate::classifier::Statement;
use crate::errors::{Cancelled, Failure};
use crate::lane::LaneError;
use crate::server::cancel::Whereabouts;

/// What a client hears that asks for an unlogged relation.
const UNLOGGED: &str =
    "UNLOGGED is ignored: a server that crashes would empty its copy, so the relation is kept logged";

impl Session {
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
                        writes_bytes: txn.writes_bytes,
                        read_only: txn.read_only,
                        refuses_writes: txn.refuses_writes,
                        write_settings: txn.write_settings.clone(),
                        constraints_set: txn.constraints_set.clone(),
                        local_settings: txn.local_settings.clone(),
                        environment: self.environment.clone(),
                        told,
                        notifications: txn.notifications.len(),
                        listens: txn.listens.len(),
                        portals: self.portals_bound,
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
                if let Some(modes) = mode_of_transaction(name, values) =>
            {
                self.on_set_transaction(&modes, extended).await?
            }
            Kind::Set { name, values, local } => {
                let value = values.as_ref().map(|values| list_value(name, values));
                self.on_set(statement, portal, name, value, *local).await?
            }
            Kind::Reset(name) => self.on_reset(statement, portal, name.as_deref()).await?,
            Kind::SetConfig { calls, rows } => self.on_set_config(statement, calls, *rows, portal).await?,
            Kind::SetTransaction { modes, session: false } => {
                self.on_set_transaction(modes, extended).await?
            }
            Kind::SetTransaction { modes, session: true } => {
                if let Some(read_only) = modes.read_only {
                    self.default_read_only = read_only;
                }
                if let Some(deferrable) = modes.deferrable {
                    self.default_deferrable = deferrable;
                }
                self.default_isolation = modes.isolation.or(self.default_isolation);
                self.answer_command(extended, "SET");
                Done::Answered
            }
            Kind::Show(name) if name == "transaction_isolation" => {
                self.answer_show(extended, "transaction_isolation", "serializable");
                Done::Answered
            }
            Kind::Show(name) if name == "transaction_deferrable" => {
                let said = self.txn.as_ref().and_then(|txn| txn.deferrable);
                let deferrable = said.unwrap_or_else(|| self.default_deferrable());
                self.answer_show(extended, name, if deferrable { "on" } else { "off" });
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
                // The order in which statements may change rows depends on it, on every replica. They are all checked at the
                // home before the decision in any case.
                let again = Past::Setting(statement.sql.to_string());
                let done = self.run_in_place(statement, extended, Some(again)).await?;
                let settings = self.settings_of_writes();
                if done == Done::Answered
                    && let Some(txn) = self.txn.as_mut().filter(|txn| !txn.is_everywhere)
                {
                    txn.note_constraints(statement.sql.to_string(), settings);
                }
                done
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
                    "Call it in a SELECT of nothing else but current_setting(), with constants or parameters: SELECT set_config('app.user', $1, true).",
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
            Kind::CloseCursor(name) => {
                let done = self.run_in_place(statement, extended, None).await?;
                if done == Done::Answered {
                    // A client's portals are cursors, too.
                    self.portals.retain(|portal, _| name.as_ref().is_some_and(|name| name != portal));
                }
                done
            }
            Kind::Fetch(_) | Kind::Move(_) => self.run_in_place(statement, extended, None).await?,
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
            // Which ones only the statement's functions know.
            _ if class.effects.sets_custom_locally && self.txn.is_none() => {
                self.name_custom(&format!(".{}", class.id));
                return Ok(None);
            }
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
            || self.environment.value(DEFAULT_READ_ONLY).is_some_and(|value| boolean(value) == Some(true))
    }

    /// The isolation level of transactions that do not say otherwise.
    pub(super) fn default_isolation(&self) -> Isolation {
        let set = || isolation(self.environment.value("default_transaction_isolation")?);
        self.default_isolation.or_else(set).unwrap_or(Isolation::ReadCommitted)
    }

    fn default_deferrable(&self) -> bool {
        self.default_deferrable
            || self
                .environment
                .value("default_transaction_deferrable")
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

    async fn on_set_transaction(&mut self, modes: &Modes, extended: bool) -> Result<Done, ClientError> {
        let set = match self.txn.as_mut() {
            Some(txn) => txn.set_modes(modes),
            None => {
                let what = "SET TRANSACTION can only be used in transaction blocks";
                self.warn(SqlState::NO_ACTIVE_SQL_TRANSACTION, what);
                Ok(())
            }
        };
        self.answer_modes(set, "SET", extended).await
    }

    /// Answers a command that has said, or was to say, what the transaction is.
    pub(super) async fn answer_modes(
        &mut self,
        set: Result<(), Failure>,
        command: &str,
        extended: bool,
    ) -> Result<Done, ClientError> {
        match set {
            Ok(()) => {
                self.answer_command(extended, command);
                Ok(Done::Answered)
            }
            Err(failure) => {
                if extended {
                    // Only its execution fails.
                    self.answer_steps();
                }
                self.fail_statement(&failure).await
            }
        }
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
        let class = statement.class.id;
        let job = Job { repeat, ..Job::in_place(class, StatementKind::Read, request, Aside::default()) };
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
                self.drawn.clear();
                self.locks.unlock_all();
                self.listener = None;
                "DISCARD ALL"
            }
            Discard::Plans => "DISCARD PLANS",
            Discard::Sequences => {
                self.drawn.clear();
                "DISCARD SEQUENCES"
            }
            Discard::Temp => "DISCARD TEMP",
        };
        self.answer_command(extended, tag);
        Ok(Done::Answered)
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
                if let Some(portal) = portal {
                    self.answer_before_parse(portal).await?;
                    if self.skipping {
                        return Ok(Done::Failed);
                    }
                }
                let unconfirmed = std::mem::take(&mut self.unconfirmed);
                unconfirmed.iter().for_each(|name| drop(self.statements.remove(name)));
                self.client.output.extend_from_slice(&error);
                self.on_statement_failed();
            }
            // What it was refused for may be that its table was not there yet.
            Ok(None)
                if !own_definitions
                    && portal.is_none()
                    && self.shared.classifier.is_newer_than(statement.generation) =>
            {
                let (again, _) = self.classify(&statement.sql).await;
                return Box::pin(self.execute(&again, None)).await;
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
        Ok(self.words_of_parse(preparation).await?.map(|(_, words)| words))
    }

    /// The error with which a server answers a text of several statements if it is no SQL.
    pub(super) async fn syntax_error_in(&mut self, sql: &str) -> Result<Option<BytesMut>, Failure> {
        let found = self.words_of_parse(unit::Preparation::new(sql, &[])).await?;
        // The grammar is gone through first: what a server has read whole it refuses only for being several statements.
        let is_of_grammar = |error: &ErrorFields| error.routine.as_deref() != Some("exec_parse_message");
        Ok(found.filter(|(error, _)| is_of_grammar(error)).map(|(_, words)| words))
    }

    /// The error of a Parse, and how a server says it.
    async fn words_of_parse(
        &mut self,
        preparation: unit::Preparation,
    ) -> Result<Option<(Box<ErrorFields>, BytesMut)>, Failure> {
        let request = Request::Extended(vec![unit::Step::DescribeStatement(preparation)]);
        // One that lags would not know what the client has just made.
        let status = self.shared.scheduler.status();
        let replica = most_advanced(&status.replicas).ok_or_else(no_replica)?;
        self.shared.await_applied(replica, status.told).await;
        let mut lane = self.plain_lane(replica).await.map_err(|error| Failure::of_lane(&error))?;
        let mut words = BytesMut::new();
        let sink = Sink::Hold(&mut words, 1024 * 1024);
        self.cancel.set(Whereabouts::OnLane { replica, backend: lane.lent.lane.backend.clone() });
        let result = unit::run(&mut lane.lent.lane, 0, &request, sink, &mut Watch::default(), None).await;
        self.cancel.set(Whereabouts::Idle);
        match result {
            Ok(answer) => {
                match answer.status {
                    Some(Status::Idle) => self.give_back(lane),
                    _ => self.roll_back_lane(lane).await,
                }
                Ok(answer.error.map(|error| (error, words)))
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
            self.cancel.set(Whereabouts::OnLane { replica, backend: lane.lent.lane.backend.clone() });
            let result = unit::run(&mut lane.lent.lane, 0, &request, sink, &mut Watch::default(), None).await;
            self.cancel.set(Whereabouts::Idle);
            // The client sees the first one's answer only.
            let failed_later = match &result {
                Ok(answer) if !first => answer.error.clone(),
                _ => None,
            };
            let done = self.after_lone_unit(lane, result).await?;
            if done == Done::Failed {
                if let Some(error) = failed_later {
                    let failure = Failure::of_lane(&LaneError::Database(error));
                    let name = self.shared.pools[usize::from(replica.0)].name();
                    self.fail(&failure.hint(format!(
                        "{command} is done on replicas before {name}, and not on this one and those after it. Run it again."
                    )));
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
                // A part of the answer has been sent.
                let failure = self.lane_of_txn_lost(lane, &error);
                self.fail_statement(&failure).await.map(drop)
            }
        }
    }

    /// The lane of the transaction is lost; returns what a client must hear that asked for something which is not asked for again elsewhere.
    pub(super) fn lane_of_txn_lost(&mut self, lane: Lane, error: &LaneError) -> Failure {
        self.on_lane_lost(lane, error);
        // A transaction that comes whole is executed again.
        self.is_void = true;
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
                let captures = self.manner().captures;
                let ships = captures != Capturing::Never;
                let catalogue = if ships { catalogue.capturing(captures) } else { catalogue };
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
