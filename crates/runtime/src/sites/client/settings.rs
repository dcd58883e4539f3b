//! Settings of a session at a site, and what else a client says about its session alone.

use hashbrown::HashMap;
use onecopy_classify::{Discard, Kind};
use onecopy_wire::backend::{self, build, tag};
use onecopy_wire::frame::{self, HEAD_LEN};
use onecopy_wire::sqlstate::SqlState;

use super::{Session, failure_of};
use crate::classifier::Statement;
use crate::clock::Deadline;
use crate::errors::Failure;
use crate::lane::LaneError;
use crate::record::{Record, What, Write};
use crate::session::environment::Environment;
use crate::session::settings::{forbidden_setting, is_mode_of_transaction};
use crate::sites::database::{self, Answer, Ran};
use crate::sites::transaction::{Part, Transaction};
use crate::sites::{RETRY_PAUSE, freshness};

/// A setting that says what transactions are that do not say so themselves.
const DEFAULT_READ_ONLY: &str = "default_transaction_read_only";

fn is_off(value: &str) -> bool {
    ["off", "false", "no", "0"].contains(&value.trim().to_ascii_lowercase().as_str())
}

/// Why a session cannot begin under the settings that its client has asked for.
pub(super) fn refusal_of_default(environment: &Environment) -> Option<Failure> {
    let value = environment.value(DEFAULT_READ_ONLY);
    value.filter(|value| !is_off(value)).map(|_| read_only_failure())
}

fn read_only_failure() -> Failure {
    Failure::unsupported(
        format!("\"{DEFAULT_READ_ONLY}\" cannot be set"),
        "Say BEGIN READ ONLY where transactions come statement by statement, or take rights from the role.",
    )
}

impl Session {
    /// Carries out what concerns the session alone; `None` for all else.
    pub(super) async fn on_session_command(
        &mut self,
        text: &str,
        statement: &Statement,
    ) -> Option<Result<String, Failure>> {
        match &statement.class.kind {
            Kind::Set { name, values, local: false } => {
                let value = values.as_ref().map(|values| values.join(", "));
                Some(self.set(text, name, value.as_deref()).await.map(|()| "SET".to_owned()))
            }
            Kind::Reset(None) => {
                self.environment.reset_all();
                Some(self.report_settings().await.map(|()| "RESET".to_owned()))
            }
            Kind::Reset(Some(name)) => {
                self.environment.reset(name);
                Some(self.report_settings().await.map(|()| "RESET".to_owned()))
            }
            // All are serializable.
            Kind::SetTransaction { modes, session: true } if modes.read_only != Some(true) => {
                Some(Ok("SET".to_owned()))
            }
            Kind::Discard(Discard::Plans) => Some(Ok("DISCARD PLANS".to_owned())),
            Kind::Discard(Discard::Temp) => Some(Ok("DISCARD TEMP".to_owned())),
            Kind::Discard(Discard::Sequences) => {
                self.drawn.clear();
                Some(Ok("DISCARD SEQUENCES".to_owned()))
            }
            Kind::Discard(Discard::All) => {
                self.environment.reset_all();
                self.statements.clear();
                self.drawn.clear();
                Some(self.report_settings().await.map(|()| "DISCARD ALL".to_owned()))
            }
            Kind::Deallocate(name) => Some(Ok(self.deallocate(name.as_deref()).to_owned())),
            _ => None,
        }
    }

    /// Forgets a prepared statement, or all; the tag by which clients know which.
    pub(super) fn deallocate(&mut self, name: Option<&str>) -> &'static str {
        match name {
            Some(name) => {
                self.statements.remove(name);
                "DEALLOCATE"
            }
            None => {
                self.statements.clear();
                "DEALLOCATE ALL"
            }
        }
    }

    async fn set(&mut self, text: &str, name: &str, value: Option<&str>) -> Result<(), Failure> {
        if is_mode_of_transaction(name) {
            return Err(Failure::unsupported(
                format!("\"{name}\" cannot be set"),
                "All transactions are serializable here.",
            ));
        }
        if let Some((what, hint)) = forbidden_setting(name, value) {
            return Err(Failure::unsupported(what, hint));
        }
        if name.eq_ignore_ascii_case(DEFAULT_READ_ONLY) && value.is_some_and(|value| !is_off(value)) {
            return Err(read_only_failure());
        }
        if name.eq_ignore_ascii_case(freshness::SETTING) {
            return self.set_staleness_max(value);
        }
        let value = self.try_setting(text, name).await?;
        let command = format!(
            "SELECT pg_catalog.set_config({}, {}, false)",
            crate::agent::quote(name),
            crate::agent::quote(&value)
        );
        self.environment.set(name, command, Some(value));
        self.report_settings().await
    }

    pub(super) fn set_staleness_max(&mut self, value: Option<&str>) -> Result<(), Failure> {
        if self.shared.freshness.is_none() {
            return Err(Failure::unsupported(
                format!("\"{}\" cannot be set", freshness::SETTING),
                "It is for protocol = \"wide_area\" and \"certified\".",
            ));
        }
        match value {
            Some(value) => {
                let shown = freshness::shown(value)?;
                self.environment.set(freshness::SETTING, String::new(), Some(shown));
            }
            None => self.environment.reset(freshness::SETTING),
        }
        Ok(())
    }

    /// What a setting becomes by a command, by the server.
    async fn try_setting(&mut self, text: &str, name: &str) -> Result<String, Failure> {
        let shown = format!("SELECT pg_catalog.current_setting({})", crate::agent::quote(name));
        let writes = [text.to_owned(), shown].map(|sql| Write::new(What::Text(sql)));
        let record = Record { user: self.user.clone(), writes: writes.into(), ..Record::default() };
        let transaction = Transaction::plain(record, vec![Part::plain(false), Part::plain(false)]);
        let database = self.shared.database.clone();
        let _permit = database.aside().await;
        let failed = |error: LaneError| Failure::of_lane(&error);
        let mut lane = database.lend().await.map_err(failed)?;
        let ran = database::run(&mut lane, &transaction, database::Begin::Query, usize::MAX).await;
        if !matches!(&ran, Err(error) if !error.is_database()) {
            database.leave(lane).await;
        }
        match ran.map_err(failed)?.0 {
            Ran::Done(answer) => {
                let rows = answer.parts.last().map(|part| part.rows.clone()).unwrap_or_default();
                Ok(first_cell(&rows).unwrap_or_default())
            }
            Ran::Failed(Answer { error: Some(error), .. }) => Err(failure_of(&error)),
            Ran::Failed(_) | Ran::TooLarge | Ran::NotBegun(_) => {
                let what = format!("\"{name}\" cannot be set for this role");
                Err(Failure::new(SqlState::INVALID_PARAMETER_VALUE, what))
            }
        }
    }

    /// What the server tells of its settings under those of a record, for its role.
    async fn settings_as_told(&self, record: &Record) -> Result<HashMap<String, String>, LaneError> {
        let database = &self.shared.database;
        let _permit = database.aside().await;
        let mut lane = database.lend().await?;
        let begun = database::begin(&mut lane, record, database::Begin::Query).await;
        let params = lane.params.clone();
        if !matches!(&begun, Err(error) if !error.is_database()) {
            database.leave(lane).await;
        }
        begun.map(|()| params)
    }

    /// Tells the client the settings that servers tell, as far as they have changed.
    pub(super) async fn report_settings(&mut self) -> Result<(), Failure> {
        let settings: Vec<(String, String)> =
            self.environment.values().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let record = Record { user: self.user.clone(), settings: settings.into(), ..Record::default() };
        let deadline = Deadline::within_ms(self.shared.wait_ms);
        let params = loop {
            match self.settings_as_told(&record).await {
                Ok(params) => break params,
                // The server may be starting again.
                Err(error) if !error.is_database() && !deadline.is_some_and(Deadline::has_passed) => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(error) => return Err(Failure::of_lane(&error)),
            }
        };
        let mut names: Vec<&String> = params.keys().collect();
        names.sort();
        for name in names {
            let value = match name.as_str() {
                // The lane is the agent's.
                "session_authorization" => &self.user,
                "is_superuser" => continue,
                _ => &params[name],
            };
            if self.reported.get(name) != Some(value) {
                build::parameter_status(&mut self.client.output, name, value);
                self.reported.insert(name.clone(), value.clone());
            }
        }
        Ok(())
    }
}

/// The first value of the first row among messages, before which there may be notices.
fn first_cell(mut messages: &[u8]) -> Option<String> {
    loop {
        let head = frame::peek(messages, usize::MAX).ok()??;
        if head.tag == tag::DATA_ROW {
            let values = backend::data_row(messages.get(HEAD_LEN..head.len)?).ok()?;
            return values.iter().next()?.map(|value| String::from_utf8_lossy(value).into_owned());
        }
        messages = messages.get(head.len..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_behind_notices() {
        let mut messages = bytes::BytesMut::new();
        assert_eq!(first_cell(&messages), None);
        Failure::new(SqlState::INVALID_PARAMETER_VALUE, "look").put(&mut messages, build::Severity::Notice);
        assert_eq!(first_cell(&messages), None);
        messages.extend_from_slice(b"D\0\0\0\x0e\0\x02\0\0\0\0\xff\xff\xff\xff");
        assert_eq!(first_cell(&messages), Some(String::new()));
    }
}
