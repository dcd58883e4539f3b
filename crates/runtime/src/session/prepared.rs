//! PREPARE, EXECUTE and DEALLOCATE as commands of SQL. They share the names of the protocol's prepared statements.
//!
//! EXECUTE is served as the prepared statement with its arguments in the place of its parameters, so that it is
//! classified, frozen and recorded like any other statement.

use std::sync::Arc;

use bytes::BytesMut;
use onecopy_classify::prepared::replace_params;
use onecopy_classify::{Class, Determinism, ExecuteArgument, Kind, Position, Scratch};
use onecopy_wire::backend::Status;
use onecopy_wire::sqlstate::SqlState;

use super::beside::{LOSSES_MAX, no_replica};
use super::client::ClientError;
use super::extended::PreparedStatement;
use super::patience::within;
use super::run::break_off;
use super::unit::{self, Preparation, Request, Sink, Step, UnitError, Watch};
use super::{Done, Session};
use crate::agent::quote;
use crate::classifier::Statement;
use crate::errors::Failure;
use crate::lane::LaneError;
use crate::server::cancel::Whereabouts;

/// Bytes of the description of a statement: of 1600 columns with long names, at most.
const DESCRIPTION_LEN_MAX: usize = 1024 * 1024;

impl Session {
    pub(super) async fn on_prepare(
        &mut self,
        statement: &Statement,
        name: &str,
        body: Position,
        types: &[String],
        extended: bool,
    ) -> Result<Done, ClientError> {
        if self.statements.contains_key(name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return self.fail_statement(&Failure::new(SqlState::DUPLICATE_PREPARED_STATEMENT, message)).await;
        }
        let body = statement.sql.get(statement.layout.layout().offset(body)..).unwrap_or("").trim();
        // The declared types become casts: their numbers need not be known, which may differ between replicas.
        let typed = replace_params(body, &mut self.scratch, |number| {
            let declared = types.get((number as usize).checked_sub(1)?)?;
            (!declared.eq_ignore_ascii_case("unknown")).then(|| format!("(${number}::{declared})"))
        });
        let mut prepared = PreparedStatement::new(&typed, &[]);
        prepared.declared = types.to_vec();
        // As it is now, or before a change that is noticed then.
        self.note_told(&prepared);
        match self.describe_quietly(prepared.preparation.clone()).await? {
            Ok(()) => {}
            Err(failure) => return self.fail_statement(&failure).await,
        }
        self.statements.insert(name.to_owned(), Arc::new(prepared));
        self.answer_command(extended, "PREPARE");
        Ok(Done::Answered)
    }

    pub(super) async fn on_deallocate(&mut self, name: Option<&str>, extended: bool) -> Done {
        match name {
            Some(name) => {
                if self.statements.remove(name).is_none() {
                    let failure = not_prepared(name);
                    self.fail(&failure);
                    if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
                        self.end_if_failed(id).await;
                    }
                    return Done::Failed;
                }
                self.answer_command(extended, "DEALLOCATE");
            }
            None => {
                self.statements.clear();
                self.answer_command(extended, "DEALLOCATE ALL");
            }
        }
        Done::Answered
    }

    /// EXECUTE in the simple protocol.
    pub(super) async fn on_execute_command(&mut self, statement: &Statement) -> Result<Done, ClientError> {
        let sql = match self.expanded(&statement.class.kind).await? {
            Ok(sql) => sql,
            Err(failure) => return self.fail_statement(&failure).await,
        };
        let (inner, next) = self.classify(&sql).await;
        if next.is_some() || matches!(inner.class.kind, Kind::Execute { .. }) {
            let failure =
                Failure::new(SqlState::SYNTAX_ERROR, "the prepared statement is more than one statement");
            return self.fail_statement(&failure).await;
        }
        Box::pin(self.execute(&inner, None)).await
    }

    /// The statement that a Parse of EXECUTE stands for; `None` if the text is anything else.
    pub(super) async fn executed_instead(
        &mut self,
        sql: &str,
    ) -> Result<Result<Option<String>, Failure>, ClientError> {
        let begins = sql.trim_start().get(.."execute".len());
        if !begins.is_some_and(|word| word.eq_ignore_ascii_case("execute")) {
            return Ok(Ok(None));
        }
        let (statement, next) = self.classify(sql).await;
        if next.is_some() || !matches!(statement.class.kind, Kind::Execute { .. }) {
            return Ok(Ok(None));
        }
        Ok(self.expanded(&statement.class.kind).await?.map(Some))
    }

    /// A prepared statement with the arguments of EXECUTE in it, if it returns what its client was told when it was prepared.
    async fn expanded(&mut self, execute: &Kind) -> Result<Result<String, Failure>, ClientError> {
        let Kind::Execute { name, arguments, texts } = execute else { return Ok(Ok(String::new())) };
        let Some(prepared) = self.statements.get(name).cloned() else { return Ok(Err(not_prepared(name))) };
        let with_arguments = self.with_arguments(name, &prepared, arguments.as_deref(), texts).await;
        if with_arguments.is_ok() {
            let generation = self.shared.classifier.generation();
            if let Err(failure) = self.keeps_its_columns(&prepared, generation).await? {
                return Ok(Err(failure));
            }
        }
        Ok(with_arguments)
    }

    async fn with_arguments(
        &mut self,
        name: &str,
        prepared: &PreparedStatement,
        arguments: Option<&[ExecuteArgument]>,
        texts: &[String],
    ) -> Result<String, Failure> {
        let params = params_of(&prepared.sql, &mut self.scratch).max(prepared.types.len());
        let expected = params.max(prepared.declared.len());
        if texts.len() != expected {
            let mut failure = Failure::new(
                SqlState::SYNTAX_ERROR,
                format!("wrong number of parameters for prepared statement \"{name}\""),
            );
            failure.detail = Some(format!("Expected {} parameters but got {}.", expected, texts.len()));
            return Err(failure);
        }
        let mut values = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            let value = match arguments.and_then(|arguments| arguments.get(index)) {
                Some(ExecuteArgument::Null) => "NULL".to_owned(),
                Some(ExecuteArgument::Text(value)) => quote(value),
                None => self.argument_expression(text).await?,
            };
            let cast = prepared.types.get(index).and_then(|oid| onecopy_classify::value::type_name(*oid));
            values.push(match cast {
                Some(name) => format!("({value}::{name})"),
                None => value,
            });
        }
        let expanded = replace_params(&prepared.sql, &mut self.scratch, |number| {
            values.get((number as usize).checked_sub(1)?).cloned()
        });
        Ok(expanded)
    }

    /// An argument that is no constant is put where the parameter stands: it must mean the same wherever, and however
    /// often, it is evaluated.
    async fn argument_expression(&mut self, text: &str) -> Result<String, Failure> {
        let (select, next) = self.classify(&format!("SELECT ({text})")).await;
        if next.is_some()
            || select.class.effects.reads_random
            || select.class.effects.advisory_locks
            || select.class.effects.notifies
            || !stands_alone(&select.class)
        {
            return Err(Failure::unsupported(
                "arguments of EXECUTE that read tables, change something or differ from call to call are not supported",
                "Compute the value first, by a statement of its own.",
            ));
        }
        Ok(format!("({text})"))
    }

    /// Has a replica check a statement; the client hears of errors only.
    pub(super) async fn describe_quietly(
        &mut self,
        preparation: Preparation,
    ) -> Result<Result<(), Failure>, ClientError> {
        let request = Request::Extended(vec![Step::DescribeStatement(preparation)]);
        for _ in 0..=LOSSES_MAX {
            let own = if self.describes_beside() { None } else { self.open_lane() };
            let (in_txn, mut lane) = match own {
                Some(lane) => (true, lane),
                None => {
                    let Some(replica) = self.await_most_advanced_replica().await else { break };
                    match self.lane_beside(replica).await {
                        Ok(Ok(lane)) => (false, lane),
                        Ok(Err(error)) if error.is_refusal() => return Ok(Err(Failure::of_lane(&error))),
                        Ok(Err(_)) => continue,
                        Err(failure) => return Ok(Err(failure)),
                    }
                }
            };
            let mut answer = BytesMut::new();
            let sink = Sink::Hold(&mut answer, DESCRIPTION_LEN_MAX);
            let backend = lane.lent.lane.backend.clone();
            self.cancel.set(Whereabouts::OnLane { replica: lane.replica, backend });
            let patience = self.patience(false).filter(|_| !in_txn);
            let mut watch = Watch::default();
            let run = unit::run(&mut lane.lent.lane, 0, &request, sink, &mut watch, None);
            let result = within(patience, run).await;
            self.cancel.set(Whereabouts::Idle);
            let result = match result {
                Ok(result) => result,
                Err(failure) => {
                    break_off(&self.shared, lane).await;
                    return Ok(Err(failure));
                }
            };
            match result {
                Ok(answer) => {
                    match answer.status {
                        _ if in_txn => self.keep_lane(lane),
                        Some(Status::Idle) => self.give_back(lane),
                        _ => self.roll_back_lane(lane).await,
                    }
                    return Ok(match answer.error {
                        Some(fields) => Err(Failure::of_lane(&LaneError::Database(fields))),
                        None => Ok(()),
                    });
                }
                Err(UnitError::Client(error)) => return Err(error),
                Err(UnitError::Lane(error)) if in_txn => self.on_lane_lost(lane, &error),
                Err(UnitError::Lane(error)) => self.lose_lane(lane, &error),
            }
        }
        Ok(Err(no_replica()))
    }

    /// Answers an error of our own to a statement, and ends what cannot go on after it.
    pub(super) async fn fail_statement(&mut self, failure: &Failure) -> Result<Done, ClientError> {
        self.fail(failure);
        if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
            self.end_if_failed(id).await;
        }
        Ok(Done::Failed)
    }
}

pub(super) fn not_prepared(name: &str) -> Failure {
    Failure::new(
        SqlState::INVALID_SQL_STATEMENT_NAME,
        format!("prepared statement \"{name}\" does not exist"),
    )
}

/// How many parameters a statement has: the number of its highest.
pub(super) fn params_of(sql: &str, scratch: &mut Scratch) -> usize {
    let mut highest = 0;
    let _ = replace_params(sql, scratch, |number| {
        highest = highest.max(number as usize);
        None
    });
    highest
}

/// Whether the arguments of a SELECT of nothing but `set_config` act on nothing, not even on the session.
pub(super) fn computes_only(class: &Class) -> bool {
    let effects = &class.effects;
    touches_nothing(class) && !effects.advisory_locks && !effects.notifies
}

/// Whether the expressions in a statement touch nothing that others can change or see, so that any replica may evaluate
/// them at any time.
pub(super) fn stands_alone(class: &Class) -> bool {
    let effects = &class.effects;
    touches_nothing(class) && !effects.sets_config && !effects.sets_custom_locally
}

fn touches_nothing(class: &Class) -> bool {
    let effects = &class.effects;
    let acts = effects.writes
        || effects.reads
        || effects.locks_rows
        || effects.sequences
        || effects.pins_session
        || effects.temporary_tables;
    !acts && class.tables.is_empty() && !matches!(class.determinism, Determinism::Refuse(_))
}
