//! Sequences that a statement sets, and those that the open transaction has made or restarted itself.
//!
//! The scheduler hands out the numbers of all others. It hears of a new one when its transaction has committed; until
//! then nobody else can see it, so its numbers are drawn at the transaction's home, and the record sets it elsewhere.

use std::sync::Arc;

use onecopy_classify::catalogue::Sequence;
use onecopy_classify::{Catalogue, Determinism, FrozenKind, Kind, table_id};
use onecopy_core::{Access, AccessSet, Event, Item, Mode, Refusal, SequenceDefinition, StatementKind};
use onecopy_wire::sqlstate::SqlState;

use super::client::ClientError;
use super::job::{Aside, Job, Quiet};
use super::portals::Portal;
use super::run::Ran;
use super::unit::{Answer, Request};
use super::{Done, Session};
use crate::agent::{quote, quote_identifier};
use crate::classifier::Statement;
use crate::errors::{Cancelled, Failure};
use crate::record::{What, Write};

/// What setval() was asked for.
struct Setting {
    value: i64,
    called: bool,
}

impl Session {
    /// `SELECT setval(...)`: like PostgreSQL's, at once and for good, whatever becomes of the transaction.
    pub(super) async fn execute_setval(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
    ) -> Result<Done, ClientError> {
        let Kind::SetVal { schema, name, value, called, from } = &statement.class.kind else {
            return Ok(Done::Failed);
        };
        if !statement.class.rewrite.is_empty() {
            return self
                .give_up(&Failure::unsupported(
                    "setval() of a value that is drawn from a sequence, or read of the clock, is not supported",
                    "Compute the value by a statement of its own.",
                ))
                .await;
        }
        if let Determinism::Refuse(refusal) = &statement.class.determinism {
            let failure = Failure::unsupported(refusal.reason.clone(), refusal.hint.clone());
            return self.give_up(&failure).await;
        }
        let catalogue = self.definitions();
        let found = catalogue.sequences.iter().find(|s| s.schema == *schema && s.name == *name);
        let Some(sequence) = found.cloned() else {
            let message = format!("relation \"{name}\" does not exist");
            return self.give_up(&Failure::new(SqlState::UNDEFINED_TABLE, message)).await;
        };
        // The client's answer is the value; beside it the session sees, as text whatever formats the client wants,
        // whether and how to set the sequence.
        let text = format!(
            "SELECT given.value AS setval, given.value::text, given.called::text, \
             pg_catalog.has_sequence_privilege({}, 'UPDATE')::text \
             FROM (SELECT ({value})::bigint AS value, ({})::boolean AS called {}) AS given",
            quote(&qualified(schema, name)),
            called.as_deref().unwrap_or("true"),
            from.as_deref().unwrap_or_default(),
        );
        let mut access = match portal {
            None => {
                let layout = statement.layout.layout();
                statement.class.bind(&statement.sql, layout, &onecopy_classify::NoParams, &[])
            }
            Some(portal) => portal.with_params(|params| {
                statement.class.bind(&statement.sql, statement.layout.layout(), params, &[])
            }),
        };
        // It asks for the sequence by its name: a replica that does not contain it yet would not find it.
        access.push(Access::new(Item::names(), Mode::Shared));
        let request = match portal {
            None => Request::Simple(text),
            Some(portal) => {
                self.bind_instead(portal, &text, &[]);
                Request::Extended(std::mem::take(&mut self.steps))
            }
        };
        let aside = Aside { quiet: Quiet::Held, probe: Some(3), ..Aside::default() };
        let job = Job { aside, ..plain_job(statement, request, StatementKind::Read, access) };
        let Ran::Answered(answer) = self.run_job(job).await? else { return Ok(Done::Failed) };
        if answer.error.is_some() {
            return Ok(Done::Failed);
        }
        let held = std::mem::take(&mut self.held);
        match wanted(&answer, &sequence, self.txn.as_ref().is_some_and(|txn| txn.read_only)) {
            // NULL: setval() does nothing.
            Ok(None) => {}
            Ok(Some(setting)) => {
                if self.set_sequence(statement, &sequence, &setting).await? == Done::Failed {
                    return Ok(Done::Failed);
                }
            }
            Err(failure) => return self.give_up(&failure).await,
        }
        self.client.output.extend_from_slice(&held);
        Ok(Done::Answered)
    }

    async fn set_sequence(
        &mut self,
        statement: &Statement,
        sequence: &Sequence,
        setting: &Setting,
    ) -> Result<Done, ClientError> {
        let (schema, name) = (&sequence.schema, &sequence.name);
        if self.owns_sequence(schema, name) {
            let text = setval(schema, name, setting.value, setting.called);
            let aside = Aside { quiet: Quiet::Dropped, ..Aside::default() };
            let request = Request::Simple(text.clone());
            let job = plain_job(statement, request, StatementKind::Write, AccessSet::new());
            let ran = self.run_job(Job { write: Some(What::Text(text)), aside, ..job }).await?;
            if self.answer_or_fail(&ran) == Done::Failed {
                return Ok(Done::Failed);
            }
        } else {
            let step = if setting.called { sequence.increment } else { 0 };
            let definition = SequenceDefinition {
                // Beyond the end it is used up, as it must be.
                next: setting.value.saturating_add(step),
                increment: sequence.increment,
                min: sequence.min,
                max: sequence.max,
                cycle: sequence.cycle,
            };
            let id = table_id(schema, name);
            self.shared.scheduler.handle(Event::Sequence { sequence: id, definition });
            self.draw_values([(id, 0)].into_iter().collect()).await;
        }
        if setting.called {
            self.drawn.set(schema, name, setting.value);
        }
        Ok(Done::Answered)
    }

    /// Whether the open transaction has made a sequence, or restarted it.
    fn owns_sequence(&self, schema: &str, name: &str) -> bool {
        let Some(txn) = &self.txn else { return false };
        let restarted = txn.restarted.iter().any(|(s, n)| s == schema && n == name);
        let known = || {
            let catalogue = self.shared.classifier.catalogue();
            catalogue.sequences.iter().any(|s| s.schema == schema && s.name == name)
        };
        restarted || txn.catalogue.is_some() && !known()
    }

    /// Draws `count` numbers at the home of the transaction if the sequence is its own; the first one. `None` if it is
    /// the scheduler's.
    pub(super) async fn draw_own(&mut self, kind: &FrozenKind, count: u32) -> Option<Option<i64>> {
        let FrozenKind::NextVal { schema, name } = kind else { return None };
        if !self.owns_sequence(schema, name) {
            return None;
        }
        Some(self.draw_at_home(schema, name, count).await)
    }

    /// Why a sequence has no next value, in PostgreSQL's words.
    pub(super) fn no_value(&self, schema: &str, name: &str) -> Failure {
        if self.txn.as_ref().is_some_and(|txn| txn.over || txn.is_between_lanes()) {
            // It was to be drawn at a home that is lost.
            return Failure::of_refusal(Refusal::HomeLost, Cancelled::Timeout);
        }
        let catalogue = self.definitions();
        let Some(sequence) = catalogue.sequences.iter().find(|s| s.schema == schema && s.name == name) else {
            let message = format!("relation \"{schema}.{name}\" does not exist");
            return Failure::new(SqlState::UNDEFINED_TABLE, message);
        };
        let (end, value) =
            if sequence.increment < 0 { ("minimum", sequence.min) } else { ("maximum", sequence.max) };
        Failure::new(
            SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
            format!("nextval: reached {end} value of sequence \"{name}\" ({value})"),
        )
    }

    /// The definitions that the session's next statement finds.
    fn definitions(&self) -> Arc<Catalogue> {
        let own = self.txn.as_ref().and_then(|txn| txn.catalogue.clone());
        own.unwrap_or_else(|| self.shared.classifier.catalogue())
    }

    async fn draw_at_home(&mut self, schema: &str, name: &str, count: u32) -> Option<i64> {
        let catalogue = self.definitions();
        let increment = catalogue.sequences.iter().find(|s| s.schema == schema && s.name == name)?.increment;
        let mut lane = self.txn.as_mut().and_then(|txn| txn.home.take())?;
        let target = quote(&qualified(schema, name));
        let result = async {
            let lane = &mut lane.lent.lane;
            let rows = lane.query(&format!("SELECT pg_catalog.nextval({target})")).await?;
            let first: Option<i64> =
                rows.into_iter().flatten().flatten().next().and_then(|value| value.parse().ok());
            let Some(first) = first else { return Ok(None) };
            let span = increment.saturating_mul(i64::from(count).saturating_sub(1));
            let last = first.saturating_add(span);
            let text = setval(schema, name, last, true);
            if count > 1 {
                lane.query(&text).await?;
            }
            Ok(Some((first, text)))
        }
        .await;
        match result {
            Ok(drawn) => {
                let settings = self.settings_of_writes();
                let txn = self.txn.as_mut()?;
                txn.home = Some(lane);
                let (first, text) = drawn?;
                let write = Write::new(What::Text(text));
                txn.note_writes(vec![write], settings);
                Some(first)
            }
            Err(error) => {
                // The statement fails with what the values lack; the lane with what the server said.
                let error: crate::lane::LaneError = error;
                if error.is_database() {
                    if let Some(txn) = self.txn.as_mut() {
                        txn.home = Some(lane);
                    }
                } else {
                    self.lose_lane(lane, &error);
                }
                None
            }
        }
    }

    async fn give_up(&mut self, failure: &Failure) -> Result<Done, ClientError> {
        self.drop_held();
        self.fail(failure);
        if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
            self.end_if_failed(id).await;
        }
        Ok(Done::Failed)
    }
}

fn plain_job(statement: &Statement, request: Request, kind: StatementKind, access: AccessSet) -> Job {
    Job {
        request,
        kind,
        access,
        foreseen: None,
        class: statement.class.id,
        write: None,
        capture: None,
        generation: statement.generation,
        repeat: None,
        schema_changed: false,
        aside: Aside::default(),
    }
}

/// What the evaluated arguments ask for; `None` for NULL.
fn wanted(answer: &Answer, sequence: &Sequence, read_only: bool) -> Result<Option<Setting>, Failure> {
    let text = |column: usize| {
        let value = answer.probed.first()?.get(column)?.as_ref()?;
        std::str::from_utf8(value).ok()
    };
    let name = &sequence.name;
    if text(2) != Some("true") {
        let message = format!("permission denied for sequence {name}");
        return Err(Failure::new(SqlState::INSUFFICIENT_PRIVILEGE, message));
    }
    if read_only {
        return Err(Failure::new(
            SqlState::READ_ONLY_SQL_TRANSACTION,
            "cannot execute setval() in a read-only transaction",
        ));
    }
    let (Some(value), Some(called)) = (text(0).and_then(|text| text.parse().ok()), text(1)) else {
        return Ok(None);
    };
    let (min, max) = (sequence.min, sequence.max);
    if !(min..=max).contains(&value) {
        return Err(Failure::new(
            SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
            format!("setval: value {value} is out of bounds for sequence \"{name}\" ({min}..{max})"),
        ));
    }
    Ok(Some(Setting { value, called: called == "true" }))
}

fn qualified(schema: &str, name: &str) -> String {
    format!("{}.{}", quote_identifier(schema), quote_identifier(name))
}

fn setval(schema: &str, name: &str, value: i64, called: bool) -> String {
    format!("SELECT pg_catalog.setval({}, {value}, {called})", quote(&qualified(schema, name)))
}
