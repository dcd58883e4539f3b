//! SET, RESET and `SELECT set_config(...)`, also beside `current_setting(...)`: the lane of the transaction, or any other,
//! carries them out, and the session keeps what is in force afterwards.
//!
//! Of settings that change what statements mean it keeps what the server says that their values are: records carry those
//! to the other replicas, however they were written (`SET DateStyle = DMY` leaves the output format as it was).

use std::sync::atomic::Ordering;

use onecopy_classify::{CallRows, Isolation, Modes, SessionCall, SessionFunction};
use onecopy_core::StatementKind;
use onecopy_wire::Format;
use onecopy_wire::backend::build;
use onecopy_wire::sqlstate::SqlState;

use super::calls::{Arguments, boolean, describe, known_arguments, param_types, wrong_count};
use super::client::ClientError;
use super::course::Past;
use super::environment::{is_custom, is_kept_here, is_meaningful};
use super::job::{Aside, Job, Quiet};
use super::patience::shown_limit;
use super::portals::Portal;
use super::prepared::computes_only;
use super::run::Ran;
use super::unit::Request;
use super::{Done, Session};
use crate::agent::{quote, quote_identifier};
use crate::classifier::Statement;
use crate::errors::Failure;

/// What `set_config` is asked for.
struct Asked {
    name: String,
    /// `None` for the default.
    value: Option<String>,
    local: bool,
}

/// One call.
enum Call {
    Set(Asked),
    /// `current_setting`.
    Show {
        name: String,
        missing_ok: bool,
    },
    /// `current_setting` of NULL, which is NULL.
    ShowNull,
}

/// Why settings were not set.
enum NotSet {
    /// The client must hear this.
    Because(Failure),
    /// The client has heard.
    Answered,
}

impl Session {
    /// SET and SET LOCAL. `value` is `None` for DEFAULT, and for values that are no constants.
    pub(super) async fn on_set(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
        name: &str,
        value: Option<String>,
        local: bool,
    ) -> Result<Done, ClientError> {
        if is_mode_of_transaction(name) {
            return self.fail_statement(&mode_set_otherwise(name)).await;
        }
        if let Some((what, hint)) = forbidden_setting(name, value.as_deref()) {
            return self.fail_statement(&Failure::unsupported(what, hint)).await;
        }
        self.name_custom(name);
        if is_kept_here(name) {
            let shown = match value.map(|value| shown_limit(name, &value)).transpose() {
                Ok(shown) => shown,
                Err(failure) => return self.fail_statement(&failure).await,
            };
            if local && self.txn.is_none() {
                let what = "SET LOCAL can only be used in transaction blocks";
                self.warn(SqlState::NO_ACTIVE_SQL_TRANSACTION, what);
            }
            self.note_setting(name, String::new(), shown, local);
            self.answer_command(portal.is_some(), "SET");
            return Ok(Done::Answered);
        }
        if !is_meaningful(name) {
            let done = self.run_in_place(statement, portal.is_some(), Some(setting_of(statement))).await?;
            if done == Done::Answered {
                self.note_setting(name, statement.sql.to_string(), value, local);
            }
            return Ok(done);
        }
        if local && self.txn.is_none() {
            let what = "SET LOCAL can only be used in transaction blocks";
            self.warn(SqlState::NO_ACTIVE_SQL_TRANSACTION, what);
        }
        let Some(value) = self.set_and_ask(statement, portal, name).await? else { return Ok(Done::Failed) };
        let command = set_command(name, Some(&value), false);
        self.note_setting(name, command, Some(value), local);
        build::command_complete(&mut self.client.output, "SET");
        Ok(Done::Answered)
    }

    /// RESET of a setting, or of all.
    pub(super) async fn on_reset(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
        name: Option<&str>,
    ) -> Result<Done, ClientError> {
        if let Some(name) = name.filter(|name| is_mode_of_transaction(name)) {
            return self.fail_statement(&mode_set_otherwise(name)).await;
        }
        if let Some(name) = name {
            self.name_custom(name);
        }
        let before = self.txn.is_none().then(|| self.environment.clone());
        if before.is_some() {
            // What is no longer valid cannot be set on a lane, and must not be in the way of its reset.
            match name {
                Some(name) => self.environment.reset(name),
                None => self.environment.reset_all(),
            }
        }
        let done = self.reset(statement, portal, name).await;
        match before {
            Some(before) if !matches!(done, Ok(Done::Answered)) => self.environment = before,
            _ => {}
        }
        done
    }

    /// A lane would return to what it began with itself: that knows nothing of what the session began with.
    async fn reset(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
        name: Option<&str>,
    ) -> Result<Done, ClientError> {
        let Some(name) = name else { return self.reset_all(statement, portal).await };
        if is_kept_here(name) {
            self.note_setting(name, String::new(), None, false);
            self.answer_command(portal.is_some(), "RESET");
            return Ok(Done::Answered);
        }
        if let Some(initial) = self.environment.initial_value(name).map(str::to_owned) {
            let set = set_command(name, Some(&initial), false);
            if self.ask(statement, portal, set.clone(), set).await?.is_none() {
                return Ok(Done::Failed);
            }
            self.note_setting(name, String::new(), None, false);
        } else if is_meaningful(name) && self.txn.is_some() {
            // The transaction goes on with what its lane has now.
            let Some(value) = self.set_and_ask(statement, portal, name).await? else {
                return Ok(Done::Failed);
            };
            let command = set_command(name, Some(&value), false);
            self.note_setting(name, command, Some(value), false);
        } else {
            let done = self.run_in_place(statement, portal.is_some(), Some(setting_of(statement))).await?;
            if done != Done::Failed {
                self.note_setting(name, String::new(), None, false);
            }
            return Ok(done);
        }
        build::command_complete(&mut self.client.output, "RESET");
        Ok(Done::Answered)
    }

    async fn reset_all(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
    ) -> Result<Done, ClientError> {
        let mut reset = statement.sql.to_string();
        let mut then = self.environment.initial_command();
        if self.txn.is_none()
            && let Some(set) = then.take()
        {
            // In one message: clients hear what has changed in the end. A transaction may have to repeat each at its home.
            reset = format!("{reset}\n; {set}");
        }
        if self.ask(statement, portal, reset.clone(), reset).await?.is_none() {
            return Ok(Done::Failed);
        }
        if let Some(set) = then
            && self.run_and_ask(statement, set.clone(), set, 1).await?.is_none()
        {
            return Ok(Done::Failed);
        }
        self.note_reset_of_all();
        build::command_complete(&mut self.client.output, "RESET");
        Ok(Done::Answered)
    }

    fn note_reset_of_all(&mut self) {
        self.environment.reset_all();
        if let Some(txn) = self.txn.as_mut() {
            txn.local_settings.clear();
            for told in &mut txn.told {
                told.lasting = self.reported.get(&told.name).cloned();
            }
        }
        self.undress();
    }

    /// From now on only lanes that have met no other customised settings than the session serve it, and those that have met
    /// this one serve nobody else who has not.
    pub(super) fn name_custom(&mut self, name: &str) {
        if is_custom(name)
            && self.who.customs.add(name)
            && let Some(everywhere) = &mut self.everywhere
        {
            everywhere.known_as(&self.who);
        }
    }

    /// `SELECT set_config(name, value, is_local) [, ...] [FROM ...]`.
    pub(super) async fn on_set_config(
        &mut self,
        statement: &Statement,
        calls: &[SessionCall],
        rows: Option<CallRows>,
        portal: Option<&Portal>,
    ) -> Result<Done, ClientError> {
        if let Some(portal) = portal {
            if let Some(failure) = wrong_count(statement, portal) {
                return self.fail_statement(&failure).await;
            }
            if self.run_foreign_steps(param_types(statement, calls, portal).is_some(), portal).await?
                == Done::Failed
            {
                return Ok(Done::Failed);
            }
            // As a server would, before anything can fail.
            self.answer_call_steps(statement, calls, portal);
            if portal.ran.swap(true, Ordering::AcqRel) {
                build::command_complete(&mut self.client.output, "SELECT 0");
                return Ok(Done::Answered);
            }
        }
        let set = match rows {
            Some(rows) => self.set_of_rows(statement, calls, rows, portal).await?,
            None => self.set_in_order(statement, calls, portal).await?.map(|values| vec![values]),
        };
        let returned = match set {
            Ok(returned) => returned,
            Err(NotSet::Because(failure)) => return self.fail_statement(&failure).await,
            Err(NotSet::Answered) => return Ok(Done::Failed),
        };
        let out = &mut self.client.output;
        if portal.is_none() {
            describe(out, calls, |_| Format::Text);
        }
        for values in &returned {
            // Text is the same in both formats; as many columns as the grammar allows always fit.
            let _ = build::data_row(out, values.iter().map(|value| value.as_deref().map(str::as_bytes)));
        }
        build::command_complete(out, &format!("SELECT {}", returned.len()));
        Ok(Done::Answered)
    }

    /// Carries out calls one after the other: an argument that must be computed may depend on the settings before it.
    async fn set_in_order(
        &mut self,
        statement: &Statement,
        calls: &[SessionCall],
        portal: Option<&Portal>,
    ) -> Result<Result<Vec<Option<String>>, NotSet>, ClientError> {
        let known: Vec<Option<Arguments>> =
            calls.iter().map(|call| known_arguments(statement, call, portal)).collect();
        if known.iter().any(Option::is_none) {
            if let Err(failure) = may_compute(statement) {
                return Ok(Err(NotSet::Because(failure)));
            }
            if calls.len() > 1 {
                self.in_one_transaction();
            }
        }
        let mut returned = Vec::with_capacity(calls.len());
        let mut together = Vec::new();
        for (index, known) in known.into_iter().enumerate() {
            let arguments = match known {
                Some(arguments) => arguments,
                None => {
                    match self.set_together(statement, std::mem::take(&mut together)).await? {
                        Ok(values) => returned.extend(values),
                        Err(not_set) => return Ok(Err(not_set)),
                    }
                    match self.compute_one(statement, calls, index, portal).await {
                        Ok(arguments) => arguments,
                        Err(failure) => return Ok(Err(NotSet::Because(failure))),
                    }
                }
            };
            match call_with(calls[index].function, arguments) {
                Ok(call) => together.push(call),
                Err(failure) => return Ok(Err(NotSet::Because(failure))),
            }
        }
        let last = self.set_together(statement, together).await?;
        Ok(last.map(|values| {
            returned.extend(values);
            returned
        }))
    }

    /// Carries out the calls for every row of a query.
    async fn set_of_rows(
        &mut self,
        statement: &Statement,
        calls: &[SessionCall],
        rows: CallRows,
        portal: Option<&Portal>,
    ) -> Result<Result<Vec<Vec<Option<String>>>, NotSet>, ClientError> {
        if let Err(failure) = may_compute(statement) {
            return Ok(Err(NotSet::Because(failure)));
        }
        let given = match self.compute_rows(statement, calls, rows, portal).await {
            Ok(given) => given,
            Err(failure) => return Ok(Err(NotSet::Because(failure))),
        };
        if given.len() > 1 {
            self.in_one_transaction();
        }
        let mut returned = Vec::with_capacity(given.len());
        for row in given {
            let mut row = row.into_iter();
            let of_call = |call: &SessionCall| {
                call_with(call.function, row.by_ref().take(call.argument_count()).collect())
            };
            match calls.iter().map(of_call).collect::<Result<Vec<Call>, Failure>>() {
                Ok(together) => match self.set_together(statement, together).await? {
                    Ok(values) => returned.push(values),
                    Err(not_set) => return Ok(Err(not_set)),
                },
                Err(failure) => return Ok(Err(NotSet::Because(failure))),
            }
        }
        Ok(Ok(returned))
    }

    /// Makes calls in one step; what they return.
    async fn set_together(
        &mut self,
        statement: &Statement,
        mut together: Vec<Call>,
    ) -> Result<Result<Vec<Option<String>>, NotSet>, ClientError> {
        if together.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        for asked in together.iter().filter_map(Call::as_set) {
            if is_mode_of_transaction(&asked.name) {
                return Ok(Err(NotSet::Because(mode_set_otherwise(&asked.name))));
            }
            if let Some((what, hint)) = forbidden_setting(&asked.name, asked.value.as_deref()) {
                return Ok(Err(NotSet::Because(Failure::unsupported(what, hint))));
            }
        }
        for asked in together.iter().filter_map(Call::as_set) {
            self.name_custom(&asked.name);
        }
        for call in &mut together {
            let Call::Set(asked) = call else { continue };
            if !is_kept_here(&asked.name) {
                continue;
            }
            let value = asked.value.as_deref().or(self.environment.initial_value(&asked.name)).unwrap_or("0");
            match shown_limit(&asked.name, value) {
                Ok(shown) => asked.value = Some(shown),
                Err(failure) => return Ok(Err(NotSet::Because(failure))),
            }
        }
        let command_of = |(index, call): (usize, &Call)| match call {
            Call::Set(Asked { name, value: Some(value), .. }) if is_kept_here(name) => {
                format!("{}::text", quote(value))
            }
            Call::Set(asked) => call_of(&asked.name, asked.value.as_deref(), asked.local),
            Call::ShowNull => "NULL::text".to_owned(),
            // No lane knows it.
            Call::Show { name, .. } if is_kept_here(name) => {
                let before = together[..index].iter().filter_map(Call::as_set);
                let set = before.rev().find(|asked| asked.name.eq_ignore_ascii_case(name));
                let value = set.and_then(|asked| asked.value.as_deref());
                let value = value.or_else(|| self.setting(name)).unwrap_or("0");
                format!("{}::text", quote(&shown_limit(name, value).unwrap_or_else(|_| value.to_owned())))
            }
            Call::Show { name, missing_ok } => {
                format!("pg_catalog.current_setting({}, {missing_ok})", quote(name))
            }
        };
        let commands: Vec<String> = together.iter().enumerate().map(command_of).collect();
        let sql = format!("SELECT {}", commands.join(", "));
        let Some(values) = self.run_and_ask(statement, sql.clone(), sql, together.len()).await? else {
            return Ok(Err(NotSet::Answered));
        };
        for (call, value) in together.into_iter().zip(&values) {
            let Call::Set(asked) = call else { continue };
            let keep = if is_meaningful(&asked.name) { value.clone() } else { asked.value };
            let command = set_command(&asked.name, keep.as_deref(), false);
            self.note_setting(&asked.name, command, keep, asked.local);
        }
        Ok(Ok(values))
    }

    /// Runs SET or RESET, and returns what the setting is then. `None`: it failed, and the client has heard.
    async fn set_and_ask(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
        name: &str,
    ) -> Result<Option<String>, ClientError> {
        let set = statement.sql.to_string();
        let sql = format!("{set}\n; SELECT pg_catalog.current_setting({})", quote(name));
        let values = self.ask(statement, portal, sql, set).await?;
        Ok(values.map(|values| values.into_iter().next().flatten().unwrap_or_default()))
    }

    /// Runs commands in the place of SET or RESET; the row that they return, if they do. `None`: they failed, and the client
    /// has heard.
    async fn ask(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
        sql: String,
        repeat: String,
    ) -> Result<Option<Vec<Option<String>>>, ClientError> {
        if let Some(portal) = portal {
            if self.run_foreign_steps(portal.prepared.types.is_empty(), portal).await? == Done::Failed {
                return Ok(None);
            }
            self.answer_steps();
        }
        self.run_and_ask(statement, sql, repeat, 1).await
    }

    /// Runs commands where the transaction is, or anywhere, which return one row. `repeat` does the same at the home if
    /// the transaction moves there.
    async fn run_and_ask(
        &mut self,
        statement: &Statement,
        sql: String,
        repeat: String,
        columns: usize,
    ) -> Result<Option<Vec<Option<String>>>, ClientError> {
        let (class, request) = (statement.class.id, Request::Simple(sql));
        let aside = Aside { quiet: Quiet::Dropped, probe: Some(columns), ..Aside::default() };
        let job = Job {
            repeat: Some(Past::Setting(repeat)),
            ..Job::in_place(class, StatementKind::Read, request, aside)
        };
        let Ran::Answered(answer) = self.run_job(job).await? else { return Ok(None) };
        if answer.error.is_some() {
            return Ok(None);
        }
        let row = answer.probed.into_iter().next().unwrap_or_default();
        let text = |value: bytes::Bytes| String::from_utf8_lossy(&value).into_owned();
        Ok(Some(row.into_iter().map(|value| value.map(text)).collect()))
    }

    /// Several steps of a statement are one transaction, which ends with its message.
    fn in_one_transaction(&mut self) {
        if self.txn.is_none() {
            self.begin_implicit();
        }
    }

    /// Keeps what a setting is from now on: its value, or (`None`) that to which RESET returns.
    fn note_setting(&mut self, name: &str, command: String, value: Option<String>, local: bool) {
        match self.txn.as_mut() {
            Some(txn) if local => {
                txn.forget_local(name);
                let initial = || self.environment.initial_value(name).map(str::to_owned);
                txn.local_settings.push((name.to_owned(), value.or_else(initial).unwrap_or_default()));
            }
            None if local => {}
            txn => {
                if let Some(txn) = txn {
                    txn.forget_local(name);
                    for told in txn.told.iter_mut().filter(|told| told.name.eq_ignore_ascii_case(name)) {
                        told.lasting = self.reported.get(&told.name).cloned();
                    }
                }
                match value {
                    Some(value) => self.environment.set(name, command, Some(value)),
                    None => self.environment.reset(name),
                }
            }
        }
        self.undress();
    }
}

/// A command that sets something, as a step of a read phase.
fn setting_of(statement: &Statement) -> Past {
    Past::Setting(statement.sql.to_string())
}

fn may_compute(statement: &Statement) -> Result<(), Failure> {
    if computes_only(&statement.class) {
        return Ok(());
    }
    Err(Failure::unsupported(
        "arguments of set_config() that read tables or change something are not supported",
        "Compute them first, by a statement of their own.",
    ))
}

impl Call {
    fn as_set(&self) -> Option<&Asked> {
        match self {
            Call::Set(asked) => Some(asked),
            Call::Show { .. } | Call::ShowNull => None,
        }
    }
}

fn call_with(function: SessionFunction, arguments: Arguments) -> Result<Call, Failure> {
    if function == SessionFunction::CurrentSetting {
        return Ok(match arguments.as_slice() {
            [Some(name)] => Call::Show { name: name.clone(), missing_ok: false },
            [Some(name), Some(missing_ok)] => {
                Call::Show { name: name.clone(), missing_ok: boolean(missing_ok).unwrap_or(false) }
            }
            _ => Call::ShowNull,
        });
    }
    asked(arguments).map(Call::Set)
}

fn asked(arguments: Arguments) -> Result<Asked, Failure> {
    let mut arguments = arguments.into_iter();
    let (name, value, local) =
        (arguments.next().flatten(), arguments.next().flatten(), arguments.next().flatten());
    let Some(name) = name else {
        return Err(Failure::new(SqlState::NULL_VALUE_NOT_ALLOWED, "SET requires parameter name"));
    };
    Ok(Asked { name, value, local: local.as_deref().and_then(boolean).unwrap_or(false) })
}

fn call_of(name: &str, value: Option<&str>, local: bool) -> String {
    let value = value.map_or_else(|| "NULL".to_owned(), quote);
    format!("pg_catalog.set_config({}, {value}, {local})", quote(name))
}

fn set_command(name: &str, value: Option<&str>, local: bool) -> String {
    format!("SELECT {}", call_of(name, value, local))
}

/// A list of values as `set_config` takes it.
pub(super) fn list_value(name: &str, values: &[String]) -> String {
    let is_list = matches!(name.to_ascii_lowercase().as_str(), "search_path" | "temp_tablespaces");
    if is_list {
        let quoted: Vec<String> = values.iter().map(|value| quote_identifier(value)).collect();
        quoted.join(", ")
    } else {
        values.join(", ")
    }
}

const READ_ONLY: &str = "transaction_read_only";
const ISOLATION: &str = "transaction_isolation";
const DEFERRABLE: &str = "transaction_deferrable";

/// Whether a setting is a mode of the open transaction. A lane's own must stay as they are: a snapshot would not be one
/// at another isolation level.
pub fn is_mode_of_transaction(name: &str) -> bool {
    [READ_ONLY, ISOLATION, DEFERRABLE].iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// What SET of a mode of the transaction says, if it can be carried out like SET TRANSACTION.
pub(super) fn mode_of_transaction(name: &str, values: &[String]) -> Option<Modes> {
    let [value] = values else { return None };
    match name.to_ascii_lowercase().as_str() {
        READ_ONLY => boolean(value).map(|value| Modes { read_only: Some(value), ..Modes::default() }),
        DEFERRABLE => boolean(value).map(|value| Modes { deferrable: Some(value), ..Modes::default() }),
        ISOLATION => isolation(value).map(|level| Modes { isolation: Some(level), ..Modes::default() }),
        _ => None,
    }
}

/// An isolation level as settings name it.
pub(super) fn isolation(value: &str) -> Option<Isolation> {
    match value.to_ascii_lowercase().as_str() {
        "read uncommitted" => Some(Isolation::ReadUncommitted),
        "read committed" => Some(Isolation::ReadCommitted),
        "repeatable read" => Some(Isolation::RepeatableRead),
        "serializable" => Some(Isolation::Serializable),
        _ => None,
    }
}

fn mode_set_otherwise(name: &str) -> Failure {
    Failure::unsupported(
        format!("{name} cannot be set like this"),
        "Use SET TRANSACTION, or BEGIN with its modes.",
    )
}

/// Settings that would undo what onecopy relies on: what is wrong with one, and what to do instead.
pub fn forbidden_setting(name: &str, value: Option<&str>) -> Option<(String, &'static str)> {
    match name.to_ascii_lowercase().as_str() {
        "session_replication_role" | "session_authorization" | "role" => Some((
            format!("setting {name} is not supported"),
            "It would make the replicas differ. Connect as another role instead.",
        )),
        "client_encoding" if !value.is_none_or(is_utf8) => Some((
            "client encodings other than UTF8 are not supported".to_owned(),
            "Set client_encoding to UTF8.",
        )),
        "standard_conforming_strings" if value.is_some_and(|value| boolean(value) == Some(false)) => Some((
            "standard_conforming_strings = off is not supported".to_owned(),
            "Write strings with backslash escapes as E'...'.",
        )),
        // The servers would end connections that onecopy keeps for all clients, which looks like a crash of theirs.
        "transaction_timeout" if !value.is_none_or(is_zero) => Some((
            format!("setting {name} is not supported"),
            "Set statement_timeout and idle_in_transaction_session_timeout instead.",
        )),
        "exit_on_error" if value.is_some_and(|value| boolean(value) == Some(true)) => {
            Some(("exit_on_error = on is not supported".to_owned(), "Close the connection after an error."))
        }
        _ => None,
    }
}

/// Whether a time is none, with or without a unit.
fn is_zero(time: &str) -> bool {
    let number = time.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    number.parse::<f64>() == Ok(0.0)
}

/// Whether a name is one of UTF8's, as the server compares them.
fn is_utf8(name: &str) -> bool {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    matches!(letters.collect::<String>().to_ascii_lowercase().as_str(), "utf8" | "unicode")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_make_replicas_differ_is_refused_however_it_is_spelt() {
        let refused = |name, value| forbidden_setting(name, value).is_some();
        for (name, value) in [
            ("Role", Some("none")),
            ("session_authorization", None),
            ("SESSION_REPLICATION_ROLE", Some("origin")),
            ("client_encoding", Some("LATIN1")),
            ("standard_conforming_strings", Some("OFF")),
            ("standard_conforming_strings", Some("f")),
            ("transaction_timeout", Some("5min")),
            ("exit_on_error", Some("on")),
        ] {
            assert!(refused(name, value), "{name} = {value:?}");
        }
        for (name, value) in [
            ("client_encoding", Some("utf-8")),
            ("client_encoding", Some("UTF_8")),
            ("client_encoding", None),
            ("standard_conforming_strings", Some("ON")),
            ("app.role", Some("x")),
            ("idle_session_timeout", Some("1")),
            ("transaction_timeout", Some("0 ms")),
            ("transaction_timeout", None),
            ("exit_on_error", Some("off")),
        ] {
            assert!(!refused(name, value), "{name} = {value:?}");
        }
    }

    #[test]
    fn modes_of_the_transaction_are_read_as_the_server_reads_them() {
        let read = |name: &str, value: &str| mode_of_transaction(name, &[value.to_owned()]);
        let read_only = |value| Some(Modes { read_only: Some(value), ..Modes::default() });
        let deferrable = |value| Some(Modes { deferrable: Some(value), ..Modes::default() });
        assert_eq!(read("Transaction_Read_Only", "on"), read_only(true));
        assert_eq!(read("transaction_read_only", "f"), read_only(false));
        let committed = Modes { isolation: Some(Isolation::ReadCommitted), ..Modes::default() };
        assert_eq!(read("transaction_isolation", "READ committed"), Some(committed));
        assert_eq!(read("transaction_deferrable", "yes"), deferrable(true));
        assert_eq!(read("transaction_isolation", "snapshot"), None);
        assert_eq!(read("transaction_read_only", "perhaps"), None);
        assert_eq!(read("work_mem", "on"), None);
    }

    #[test]
    fn calls_are_asked_for_as_the_function_reads_its_arguments() {
        let some = |text: &str| Some(text.to_owned());
        let read = asked(vec![some("a"), None, None]).ok().unwrap();
        assert_eq!((read.name.as_str(), read.value, read.local), ("a", None, false));
        assert_eq!(call_of("a", None, false), "pg_catalog.set_config('a', NULL, false)");
        assert_eq!(call_of("it's", Some("x\\"), true), "pg_catalog.set_config('it''s', E'x\\\\', true)");
        let refused = asked(vec![None, some("x"), some("t")]).err().unwrap();
        assert_eq!(refused.code, SqlState::NULL_VALUE_NOT_ALLOWED);
    }
}
