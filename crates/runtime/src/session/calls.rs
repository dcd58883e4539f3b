//! SELECT of nothing but calls that concern the session: advisory locks and `pg_notify`. No replica executes them; one is
//! asked only for arguments that are neither constants nor parameters. (`set_config` is in `settings`, and shares much.)

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onecopy_classify::{Argument, CallRows, SessionCall, SessionFunction};
use onecopy_wire::Format;
use onecopy_wire::backend::Column;
use onecopy_wire::backend::build;
use onecopy_wire::frontend::{self, Bind};
use onecopy_wire::sqlstate::SqlState;
use tokio::sync::oneshot;

use super::beside::no_replica;
use super::client::ClientError;
use super::extended::{self, reads_no_parameters};
use super::portals::Portal;
use super::prepared::stands_alone;
use super::txn::Lane;
use super::unit::Step;
use super::{Done, Session};
use crate::advisory::{Key, Mode, Taken, Until};
use crate::classifier::Statement;
use crate::clock::Deadline;
use crate::errors::{Cancelled, Failure};
use crate::lane::LaneError;
use crate::server::cancel::Whereabouts;

const BOOL: u32 = 16;
const INT8: u32 = 20;
const INT2: u32 = 21;
const INT4: u32 = 23;
const TEXT: u32 = 25;
const VARCHAR: u32 = 1043;
const VOID: u32 = 2278;

/// Arguments of one call as text; `None` is NULL.
pub(super) type Arguments = Vec<Option<String>>;

/// The rows of computed arguments that a statement may have.
const CALL_ROWS_MAX: usize = 1000;

fn deadlock() -> Failure {
    Failure::new(SqlState::DEADLOCK_DETECTED, "deadlock detected").hint(
        "Sessions wait for each other, one of them for an advisory lock of this one; this request closed the circle, or would have. Take locks in the same order everywhere.",
    )
}

/// What a call returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Returned {
    Null,
    Void,
    Bool(bool),
}

impl Session {
    pub(super) async fn on_session_calls(
        &mut self,
        statement: &Statement,
        calls: &[SessionCall],
        portal: Option<&Portal>,
    ) -> Result<Done, ClientError> {
        if let Some(portal) = portal {
            if self.run_foreign_steps(param_types(statement, calls, portal).is_some(), portal).await?
                == Done::Failed
            {
                return Ok(Done::Failed);
            }
            if portal.ran.swap(true, Ordering::AcqRel) {
                self.answer_call_steps(statement, calls, portal);
                build::command_complete(&mut self.client.output, "SELECT 0");
                return Ok(Done::Answered);
            }
        }
        let done = match self.call_all(statement, calls, portal).await? {
            Ok(returned) => {
                self.publish_own();
                self.answer_calls(statement, calls, portal, &returned);
                Done::Answered
            }
            Err(failure) => {
                self.notified.clear();
                self.fail_statement(&failure).await?
            }
        };
        if self.txn.is_none() {
            self.locks.return_to(0);
        }
        Ok(done)
    }

    async fn call_all(
        &mut self,
        statement: &Statement,
        calls: &[SessionCall],
        portal: Option<&Portal>,
    ) -> Result<Result<Vec<Returned>, Failure>, ClientError> {
        let arguments = match self.call_arguments(statement, calls, portal).await? {
            Ok(arguments) => arguments,
            Err(failure) => return Ok(Err(failure)),
        };
        let mut returned = Vec::with_capacity(calls.len());
        for (call, arguments) in calls.iter().zip(arguments) {
            match self.call(call.function, arguments).await? {
                Ok(value) => returned.push(value),
                Err(failure) => return Ok(Err(failure)),
            }
        }
        Ok(Ok(returned))
    }

    async fn call(
        &mut self,
        function: SessionFunction,
        arguments: Arguments,
    ) -> Result<Result<Returned, Failure>, ClientError> {
        if function == SessionFunction::Notify {
            let mut texts = arguments.into_iter().map(Option::unwrap_or_default);
            let (channel, payload) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
            return Ok(self.notify(channel, payload).map(|()| Returned::Void));
        }
        let Some(numbers) = arguments.into_iter().collect::<Option<Vec<String>>>() else {
            return Ok(Ok(Returned::Null));
        };
        if function == SessionFunction::UnlockAll {
            self.locks.unlock_all();
            return Ok(Ok(Returned::Void));
        }
        let key = match key(&numbers) {
            Ok(key) => key,
            Err(failure) => return Ok(Err(failure)),
        };
        let mode = |shared| if shared { Mode::Shared } else { Mode::Exclusive };
        match function {
            SessionFunction::Lock { shared, try_only, of_transaction } => {
                let until = if of_transaction { Until::TransactionEnds } else { Until::Unlocked };
                let taken = self.take_lock(key, mode(shared), until, !try_only).await?;
                Ok(taken.map(|taken| if try_only { Returned::Bool(taken) } else { Returned::Void }))
            }
            SessionFunction::Unlock { shared } => {
                let unlocked = self.locks.unlock(key, mode(shared));
                if !unlocked {
                    let message = format!("you don't own a lock of type {}", mode(shared).name());
                    self.warn(SqlState::WARNING, &message);
                }
                Ok(Ok(Returned::Bool(unlocked)))
            }
            SessionFunction::UnlockAll
            | SessionFunction::Notify
            | SessionFunction::SetConfig
            | SessionFunction::CurrentSetting => Ok(Ok(Returned::Void)),
        }
    }

    // Locking.

    /// Whether the lock was taken; if it must wait for it, for as long as it may.
    async fn take_lock(
        &mut self,
        key: Key,
        mode: Mode,
        until: Until,
        wait: bool,
    ) -> Result<Result<bool, Failure>, ClientError> {
        // What is done under a lock need not be part of any transaction.
        self.client.must_confirm();
        match self.locks.take(key, mode, until, wait) {
            Taken::Yes => Ok(Ok(true)),
            Taken::No => Ok(Ok(false)),
            Taken::Deadlock => Ok(Err(deadlock())),
            Taken::Full => {
                let max = self.shared.advisory_locks.held_max();
                Ok(Err(Failure::new(
                    SqlState::OUT_OF_MEMORY,
                    format!("{max} advisory locks are held, and no more may be"),
                )
                .hint("Unlock what is not needed, or raise limits.advisory_locks_max.")))
            }
            Taken::Awaits(granted) => {
                let end = self.await_lock(granted).await;
                // It may have been granted while the waiting was given up.
                let held = self.locks.waited();
                Ok(match end? {
                    Some(failure) if !held => Err(failure),
                    _ => Ok(held),
                })
            }
        }
    }

    /// Waits until the lock is granted, or returns why the waiting was given up.
    async fn await_lock(
        &mut self,
        mut granted: oneshot::Receiver<()>,
    ) -> Result<Option<Failure>, ClientError> {
        // The client may be waiting for earlier answers before it does what is waited for here.
        self.client.flush().await?;
        let cancelled = Arc::new(tokio::sync::Notify::new());
        let txn = self.txn.as_ref().map(|txn| txn.id);
        self.cancel.set(Whereabouts::Locking { txn, wake: cancelled.clone() });
        let patience = self.patience(false);
        let deadline = Deadline::after(patience.map_or(Duration::ZERO, |(limit, _)| limit));
        let end = loop {
            let may_read = self.client.may_read_ahead();
            tokio::select! {
                biased;
                granted = &mut granted => break Ok(granted.is_err().then(deadlock)),
                () = cancelled.notified() => {
                    break Ok(Some(Cancelled::Client.failure()));
                }
                received = self.client.fill(), if may_read => {
                    if let Err(error) = received {
                        break Err(error);
                    }
                }
                () = deadline.reached(), if patience.is_some() => {
                    break Ok(patience.map(|(_, cause)| cause.failure()));
                }
            }
        };
        self.cancel.set(Whereabouts::Idle);
        end
    }

    // Arguments.

    async fn call_arguments(
        &mut self,
        statement: &Statement,
        calls: &[SessionCall],
        portal: Option<&Portal>,
    ) -> Result<Result<Vec<Arguments>, Failure>, ClientError> {
        if let Some(failure) = portal.and_then(|portal| wrong_count(statement, portal)) {
            return Ok(Err(failure));
        }
        let known = calls.iter().map(|call| known_arguments(statement, call, portal));
        if let Some(all) = known.collect::<Option<Vec<Arguments>>>() {
            return Ok(Ok(all));
        }
        if !stands_alone(&statement.class) {
            return Ok(Err(Failure::unsupported(
                "arguments of advisory locks and pg_notify that read tables or change something are not supported",
                "Compute them first, by a statement of their own.",
            )));
        }
        // What depends on object ids is the same for every session where one replica computes it.
        let sql = format!("SELECT {}", argument_columns(statement, calls, |_| true));
        let rows = match self.compute(&sql, portal, Lanes::Reference).await {
            Ok(rows) => rows,
            Err(failure) => return Ok(Err(failure)),
        };
        let mut values = rows.into_iter().next().unwrap_or_default().into_iter();
        let of_call = |call: &SessionCall| values.by_ref().take(call.argument_count()).collect();
        Ok(Ok(calls.iter().map(of_call).collect()))
    }

    /// Has a server compute the arguments of one call, under the settings in force where the session is.
    pub(super) async fn compute_one(
        &mut self,
        statement: &Statement,
        calls: &[SessionCall],
        index: usize,
        portal: Option<&Portal>,
    ) -> Result<Arguments, Failure> {
        let sql = format!("SELECT {}", argument_columns(statement, calls, |call| call == index));
        let rows = self.compute(&sql, portal, Lanes::OfTransaction).await?;
        let counts = calls.iter().map(SessionCall::argument_count);
        let before: usize = counts.clone().take(index).sum();
        let count = counts.clone().nth(index).unwrap_or(0);
        let row = rows.into_iter().next().unwrap_or_default();
        Ok(row.into_iter().skip(before).take(count).collect())
    }

    /// Has a server compute the arguments of calls for each row of a query.
    pub(super) async fn compute_rows(
        &mut self,
        statement: &Statement,
        calls: &[SessionCall],
        rows: CallRows,
        portal: Option<&Portal>,
    ) -> Result<Vec<Arguments>, Failure> {
        let sql = format!(
            "SELECT * FROM (SELECT {} {}\n) AS calls LIMIT {}",
            argument_columns(statement, calls, |_| true),
            rows.text(&statement.sql, statement.layout.layout()),
            CALL_ROWS_MAX + 1
        );
        let rows = self.compute(&sql, portal, Lanes::OfTransaction).await?;
        if rows.len() > CALL_ROWS_MAX {
            return Err(Failure::unsupported(
                format!("set_config() is called for more than {CALL_ROWS_MAX} rows"),
                "Call it once for each setting.",
            ));
        }
        Ok(rows)
    }

    async fn compute(
        &mut self,
        sql: &str,
        portal: Option<&Portal>,
        lanes: Lanes,
    ) -> Result<Vec<Arguments>, Failure> {
        let open = match lanes {
            Lanes::OfTransaction => self.open_lane(),
            Lanes::Reference => None,
        };
        let is_open = open.is_some();
        let mut lane = match open {
            Some(lane) => lane,
            None => {
                let replica = self.await_reference_replica().await.ok_or_else(no_replica)?;
                let told = self.shared.scheduler.status().told;
                self.shared.await_applied(replica, told).await;
                self.plain_lane(replica).await.map_err(|error| Failure::of_lane(&error))?
            }
        };
        self.cancel
            .set(Whereabouts::OnLane { replica: lane.replica, backend: lane.lent.lane.backend.clone() });
        let rows = ask(&mut lane, sql, portal).await;
        self.cancel.set(Whereabouts::Idle);
        let error = rows.as_ref().err();
        let keeps = error.is_none_or(LaneError::is_database);
        match error {
            Some(error) if !keeps && is_open => return Err(self.lane_of_txn_lost(lane, error)),
            Some(error) if !keeps => self.lose_lane(lane, error),
            _ if is_open => self.keep_lane(lane),
            _ => {
                // Functions that it calls may have set something.
                lane.lent.lane.settings = u64::MAX;
                self.give_back(lane);
            }
        }
        rows.map_err(|error| Failure::of_lane(&error))
    }

    // Answers.

    /// Messages that were collected before an Execute of ours and that a replica must answer.
    /// Descriptions of its statement are given here if it can be `described` here.
    pub(super) async fn run_foreign_steps(
        &mut self,
        described: bool,
        portal: &Portal,
    ) -> Result<Done, ClientError> {
        let only_declared = reads_no_parameters(&portal.statement.class.kind);
        let ours = |session: &Session, step: &Step| match step {
            Step::Parse(preparation) | Step::DescribeStatement(preparation) => {
                described && preparation.key == portal.prepared.preparation.key
            }
            Step::Bind { statement, .. } => {
                statement.key == portal.prepared.preparation.key && (described || !only_declared)
            }
            Step::DescribePortal { portal: name, .. } => {
                let named = session.portals.get(name);
                named.is_some_and(|named| Arc::ptr_eq(&named.prepared, &portal.prepared))
            }
            Step::Execute { .. } | Step::CloseStatement => true,
            Step::ClosePortal(_) => false,
        };
        let Some(last) = self.steps.iter().rposition(|step| !ours(self, step)) else {
            return Ok(Done::Answered);
        };
        let rest = self.steps.split_off(last + 1);
        Box::pin(self.run_steps(false)).await?;
        if self.skipping {
            return Ok(Done::Failed);
        }
        self.steps = rest;
        Ok(Done::Answered)
    }

    fn answer_calls(
        &mut self,
        statement: &Statement,
        calls: &[SessionCall],
        portal: Option<&Portal>,
        returned: &[Returned],
    ) {
        match portal {
            Some(portal) => self.answer_call_steps(statement, calls, portal),
            None => describe(&mut self.client.output, calls, |_| Format::Text),
        }
        let format = |column| result_format(portal, column);
        let values = returned.iter().enumerate().map(|(column, value)| value.bytes(format(column)));
        // As many columns as the grammar allows always fit.
        let _ = build::data_row(&mut self.client.output, values);
        build::command_complete(&mut self.client.output, "SELECT 1");
    }

    pub(super) fn answer_call_steps(
        &mut self,
        statement: &Statement,
        calls: &[SessionCall],
        portal: &Portal,
    ) {
        let types = param_types(statement, calls, portal).unwrap_or_default();
        self.confirm_parsed(&[]);
        let out = &mut self.client.output;
        for step in self.steps.drain(..) {
            match step {
                Step::Parse(_) => build::parse_complete(out),
                Step::Bind { again: true, .. } | Step::Execute { .. } => {}
                Step::Bind { .. } => build::bind_complete(out),
                Step::DescribeStatement(_) => {
                    let _ = build::parameter_description(out, types.iter().copied());
                    describe(out, calls, |_| Format::Text);
                }
                Step::DescribePortal { .. } => {
                    describe(out, calls, |column| result_format(Some(portal), column))
                }
                Step::ClosePortal(_) | Step::CloseStatement => build::close_complete(out),
            }
        }
    }
}

impl Returned {
    fn bytes(self, format: Format) -> Option<&'static [u8]> {
        Some(match (self, format) {
            (Returned::Null, _) => return None,
            (Returned::Void, _) => b"",
            (Returned::Bool(true), Format::Text) => b"t",
            (Returned::Bool(false), Format::Text) => b"f",
            (Returned::Bool(true), Format::Binary) => &[1],
            (Returned::Bool(false), Format::Binary) => &[0],
        })
    }
}

/// RowDescription of the calls' results.
pub(super) fn describe(out: &mut bytes::BytesMut, calls: &[SessionCall], format: impl Fn(usize) -> Format) {
    let columns = calls.iter().enumerate().map(|(index, call)| {
        let (type_oid, type_len) = match call.function {
            SessionFunction::SetConfig | SessionFunction::CurrentSetting => (TEXT, -1),
            function if function.returns_bool() => (BOOL, 1),
            _ => (VOID, 4),
        };
        let name = call.column.as_bytes();
        Column { name, table_oid: 0, attnum: 0, type_oid, type_len, typmod: -1, format: format(index) }
    });
    // The grammar lets no zero byte into a name, and no more columns than fit.
    let _ = build::row_description(out, columns);
}

fn result_format(portal: Option<&Portal>, column: usize) -> Format {
    let bind = portal.and_then(|portal| Bind::decode(&portal.body).ok());
    bind.map_or(Format::Text, |bind| bind.result_formats.of(column))
}

/// Where arguments are computed.
enum Lanes {
    Reference,
    /// Where the open transaction is, if it is anywhere.
    OfTransaction,
}

/// The type of an argument.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Text,
    Bool,
    Int4,
    Int8,
}

impl Type {
    fn of(call: &SessionCall, index: usize) -> Type {
        match (call.function, call.argument_count(), index) {
            (SessionFunction::SetConfig, _, 2) | (SessionFunction::CurrentSetting, _, 1) => Type::Bool,
            (SessionFunction::SetConfig | SessionFunction::CurrentSetting | SessionFunction::Notify, ..) => {
                Type::Text
            }
            (_, 2, _) => Type::Int4,
            _ => Type::Int8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Type::Text => "text",
            Type::Bool => "bool",
            Type::Int4 => "int4",
            Type::Int8 => "int8",
        }
    }

    fn oid(self) -> u32 {
        match self {
            Type::Text => TEXT,
            Type::Bool => BOOL,
            Type::Int4 => INT4,
            Type::Int8 => INT8,
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Type::Int4 | Type::Int8)
    }
}

/// A call's arguments if they are constants and parameters that need no server to be read.
pub(super) fn known_arguments(
    statement: &Statement,
    call: &SessionCall,
    portal: Option<&Portal>,
) -> Option<Arguments> {
    let arguments = call.arguments(&statement.sql, statement.layout.layout()).enumerate();
    let known = arguments.map(|(index, argument)| {
        let takes = Type::of(call, index);
        match argument {
            Argument::Null => Some(None),
            Argument::Bool(value) if takes == Type::Bool => Some(Some(value.to_string())),
            Argument::Integer(number) if takes.is_number() => Some(Some(number.to_string())),
            Argument::Text(text) if takes == Type::Bool => {
                boolean(&text).map(|value| Some(value.to_string()))
            }
            Argument::Text(text) => Some(Some(text.into_owned())),
            Argument::Param(number) => portal.and_then(|portal| param(portal, number, takes)),
            Argument::Bool(_) | Argument::Integer(_) | Argument::Expression(_) => None,
        }
    });
    known.collect()
}

/// The arguments of all calls as columns of text; those that are not `wanted` are not evaluated, and only show the
/// server what types their parameters have.
fn argument_columns(statement: &Statement, calls: &[SessionCall], wanted: impl Fn(usize) -> bool) -> String {
    let mut columns = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        let texts = call.argument_texts(&statement.sql, statement.layout.layout()).enumerate();
        // As an argument, so that only what may be converted silently is.
        columns.extend(texts.map(|(index, text)| {
            let value = format!("pg_catalog.{}out(({text}\n))::text", Type::of(call, index).name());
            if wanted(number) { value } else { format!("CASE WHEN false THEN {value} END") }
        }));
    }
    columns.join(", ")
}

/// A boolean as PostgreSQL reads it.
pub(super) fn boolean(text: &str) -> Option<bool> {
    let text = text.trim().to_ascii_lowercase();
    let begins = |word: &str, least: usize| text.len() >= least && word.starts_with(&text);
    match text.as_str() {
        "1" => Some(true),
        "0" => Some(false),
        "on" => Some(true),
        _ if begins("true", 1) || begins("yes", 1) => Some(true),
        _ if begins("false", 1) || begins("no", 1) || begins("off", 2) => Some(false),
        _ => None,
    }
}

/// The types of all parameters; `None` if only a replica can tell.
pub(super) fn param_types(statement: &Statement, calls: &[SessionCall], portal: &Portal) -> Option<Vec<u32>> {
    let mut types = portal.prepared.types.to_vec();
    types.resize(types.len().max(statement.class.params_max as usize), 0);
    for call in calls {
        for (index, argument) in call.arguments(&statement.sql, statement.layout.layout()).enumerate() {
            let inferred = Type::of(call, index).oid();
            if let Argument::Param(number) = argument
                && let Some(known) = types.get_mut((number as usize).checked_sub(1)?)
                && *known == 0
            {
                *known = inferred;
            }
        }
    }
    types.iter().all(|known| *known != 0).then_some(types)
}

/// A parameter as text, if that needs no replica. `Some(None)` is NULL.
fn param(portal: &Portal, number: u32, takes: Type) -> Option<Option<String>> {
    let index = (number as usize).checked_sub(1)?;
    let bind = Bind::decode(&portal.body).ok()?;
    let value: Option<&[u8]> = bind.params.iter().nth(index)?;
    let Some(bytes) = value else { return Some(None) };
    let declared = portal.prepared.types.get(index).copied().unwrap_or(0);
    let fits = match takes {
        Type::Int4 | Type::Int8 => matches!(declared, 0 | INT2 | INT4 | INT8),
        Type::Text => matches!(declared, 0 | TEXT | VARCHAR),
        Type::Bool => matches!(declared, 0 | BOOL),
    };
    if !fits {
        return None;
    }
    if takes == Type::Bool {
        let value = match (bind.param_formats.of(index), bytes) {
            (Format::Binary, [byte]) => Some(*byte != 0),
            (Format::Binary, _) => None,
            (Format::Text, _) => std::str::from_utf8(bytes).ok().and_then(boolean),
        };
        return value.map(|value| Some(value.to_string()));
    }
    if takes.is_number() && bind.param_formats.of(index) == Format::Binary {
        let number = match *bytes {
            [a, b] => i64::from(i16::from_be_bytes([a, b])),
            [a, b, c, d] => i64::from(i32::from_be_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => i64::from_be_bytes([a, b, c, d, e, f, g, h]),
            _ => return None,
        };
        return Some(Some(number.to_string()));
    }
    std::str::from_utf8(bytes).ok().map(|text| Some(text.to_owned()))
}

pub(super) fn wrong_count(statement: &Statement, portal: &Portal) -> Option<Failure> {
    let (name, given) = match Bind::decode(&portal.body) {
        Ok(bind) => (bind.statement, bind.params.len()),
        Err(_) => ("", 0),
    };
    let wanted = portal.prepared.types.len().max(statement.class.params_max as usize);
    (given != wanted).then(|| extended::wrong_count(name, given, wanted))
}

/// Runs a query, with the portal's parameters if there is one.
async fn ask(
    lane: &mut Lane,
    sql: &str,
    portal: Option<&Portal>,
) -> Result<Vec<Vec<Option<String>>>, LaneError> {
    let out = &mut lane.lent.lane.output;
    match portal {
        None => frontend::build::query(out, sql)?,
        Some(portal) => {
            let bind = Bind::decode(&portal.body)?;
            frontend::build::parse(out, "", sql, portal.prepared.types.iter().copied())?;
            frontend::build::bind(out, "", "", bind.param_formats.iter(), bind.params.iter(), [])?;
            frontend::build::execute(out, "", 0)?;
            frontend::build::sync(out);
        }
    }
    lane.lent.lane.flush().await?;
    lane.lent.lane.collect(1).await
}

fn key(numbers: &[String]) -> Result<Key, Failure> {
    let whole = |text: &String| {
        text.trim().parse::<i128>().map_err(|_| {
            let message = format!("invalid input syntax for type bigint: \"{text}\"");
            Failure::new(SqlState::INVALID_TEXT_REPRESENTATION, message)
        })
    };
    let outside = |text: &String, name: &str| {
        let message = format!("value \"{text}\" is out of range for type {name}");
        Failure::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, message)
    };
    match numbers {
        [one] => whole(one)?.try_into().map(Key::One).map_err(|_| outside(one, "bigint")),
        [one, two] => {
            let small = |text| whole(text)?.try_into().map_err(|_| outside(text, "integer"));
            Ok(Key::Two(small(one)?, small(two)?))
        }
        _ => Err(Failure::new(SqlState::UNDEFINED_FUNCTION, "advisory locks take one or two numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_read_as_the_server_does() {
        for (text, value) in [
            ("t", Some(true)),
            (" TRUE ", Some(true)),
            ("ye", Some(true)),
            ("on", Some(true)),
            ("1", Some(true)),
            ("fal", Some(false)),
            ("N", Some(false)),
            ("of", Some(false)),
            ("0", Some(false)),
            ("o", None),
            ("", None),
            ("2", None),
            ("truely", None),
        ] {
            assert_eq!(boolean(text), value, "{text:?}");
        }
    }

    #[test]
    fn keys_are_one_big_number_or_two_small_ones() {
        let read = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            key(&texts).map_err(|failure| failure.code)
        };
        assert_eq!(read(&["-9223372036854775808"]), Ok(Key::One(i64::MIN)));
        assert_eq!(read(&[" 1", "-2"]), Ok(Key::Two(1, -2)));
        assert_eq!(read(&["9223372036854775808"]), Err(SqlState::NUMERIC_VALUE_OUT_OF_RANGE));
        assert_eq!(read(&["1", "2147483648"]), Err(SqlState::NUMERIC_VALUE_OUT_OF_RANGE));
        assert_eq!(read(&["x"]), Err(SqlState::INVALID_TEXT_REPRESENTATION));
    }
}
