//! A run of commits applied to the agent's replica: put together where that is the same, sent as a pipeline, and compared with
//! what was executed at their homes.

use std::collections::VecDeque;
use std::sync::Arc;

use onecopy_core::{Csn, Event};
use onecopy_wire::backend::{Backend, row_count};
use onecopy_wire::frontend::build;

use super::{Agent, ApplyError, quote, quote_identifier};
use crate::annulments::How;
use crate::bulk::{self, Form, Forms, Many, Step};
use crate::changed::Changed;
use crate::lane::{Lane, LaneError};
use crate::postgres::progress;
use crate::record::{Record, What, Write};
use crate::scheduler::Writes;
use crate::session::environment::hash_of;

/// Records that one database transaction may contain: they share its beginning, its progress and its end.
const GROUP_MAX: usize = 256;
/// Bytes of records after which a database transaction is not made longer.
const GROUP_LEN: usize = 1024 * 1024;
/// Commits that are sent before any answer is read: between two such pipelines, what is prepared can be forgotten.
const PIPELINE_MAX: u64 = 1_024;
/// Statements of which an agent remembers how they can be put together.
const FORMS_MAX: usize = 1_000;
/// Bytes of output after which a pipeline is sent on.
const SEND_LEN: usize = 64 * 1024;
/// Nobody holds a lock that a reservation of sequence values needs for longer, but a transaction that waits for it.
const RESERVATION_TIMEOUT: &str = "SET LOCAL lock_timeout = '1s'";

/// One database transaction of the pipeline.
struct Unit {
    to: Csn,
    /// Expected rows of each command in it; the outer `None` is a command of ours that need not be compared.
    expected: VecDeque<Option<Option<u64>>>,
    commands: usize,
    /// Roles may have other names when it is applied.
    changes_roles: bool,
    failure: Option<ApplyError>,
}

impl Agent {
    /// Applies a run; what fails is tried once more from a clean transaction, one record at a time and with everything
    /// prepared anew.
    pub(super) async fn apply_run(
        &self,
        lane: &mut Lane,
        forms: &mut Forms,
        from: Csn,
        to: Csn,
    ) -> Result<(), ApplyError> {
        let mut next = from;
        let mut retried = None;
        let mut group_max = GROUP_MAX;
        while next <= to {
            let until = Csn(to.0.min(next.0.saturating_add(PIPELINE_MAX - 1)));
            match self.apply_pipeline(lane, forms, next, until, group_max).await {
                Ok(()) => next = until.next(),
                Err((applied, error @ (ApplyError::Refused { .. } | ApplyError::Differs { .. })))
                    if group_max > 1 || retried != Some(applied) =>
                {
                    if self.pool.is_up() {
                        tracing::warn!(replica = %self.name, %error, "apply failed; trying again");
                    }
                    retried = (group_max == 1).then_some(applied);
                    group_max = 1;
                    // What failed left its transaction open and aborted.
                    lane.command("ROLLBACK").await?;
                    lane.unprepare_all();
                    lane.command("DEALLOCATE ALL").await?;
                    // What was put together may be at fault: it is not tried again on this connection.
                    forms.values_mut().for_each(|form| *form = None);
                    next = applied.next();
                }
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends everything, then reads all answers. Returns with an error what was applied before it.
    async fn apply_pipeline(
        &self,
        lane: &mut Lane,
        forms: &mut Forms,
        from: Csn,
        to: Csn,
        group_max: usize,
    ) -> Result<(), (Csn, ApplyError)> {
        let mut applied = from.previous();
        self.pipeline(lane, forms, from, to, group_max, &mut applied).await.map_err(|error| (applied, error))
    }

    async fn pipeline(
        &self,
        lane: &mut Lane,
        forms: &mut Forms,
        from: Csn,
        to: Csn,
        group_max: usize,
        applied: &mut Csn,
    ) -> Result<(), ApplyError> {
        let mut units = VecDeque::new();
        let mut group: Vec<(Csn, Arc<Record>)> = Vec::new();
        let mut group_len = 0;
        let mut changed = Changed::default();
        let mut epoch = 0;
        for csn in from.0..=to.0 {
            let (record, len, decided_in) = self.record(Csn(csn))?;
            // What is passed over has a row of progress of its own.
            let fits = group.len() < group_max
                && epoch >= 0
                && decided_in >= 0
                && group_len + len <= GROUP_LEN
                && group
                    .last()
                    .is_none_or(|(_, last)| last.user == record.user && last.settings == record.settings)
                && group.iter().all(|(_, last)| last.is_sociable())
                && (group.is_empty() || record.is_sociable())
                // What a foreign key refers to may be locked by a transaction that has its turn later. Decisions of earlier
                // processes are here before transactions are.
                && (decided_in != self.epoch as i64 || !record.changed().any(|rows| changed.meets(rows)));
            if !fits && !group.is_empty() {
                let first = units.is_empty();
                units.push_back(self.send_group(lane, forms, &group, epoch, first).await?);
                group.clear();
                group_len = 0;
                changed = Changed::default();
            }
            epoch = decided_in;
            record.changed().for_each(|rows| changed.note(rows));
            group.push((Csn(csn), record));
            group_len += len;
            if lane.output.len() > SEND_LEN {
                lane.flush_while_reading().await?;
            }
        }
        let first = units.is_empty();
        units.push_back(self.send_group(lane, forms, &group, epoch, first).await?);
        lane.flush_while_reading().await?;
        let mut failure = None;
        while let Some(unit) = units.pop_front() {
            let unit = read_unit(lane, unit).await?;
            if let Some(error @ ApplyError::Diverged { .. }) = &unit.failure {
                self.exclusions.note_difference(self.replica, || error.to_string());
            }
            match (unit.failure, &failure) {
                (None, None) => {
                    *applied = unit.to;
                    self.pool.note_apply_transaction();
                    if unit.changes_roles {
                        self.pool.note_roles_changed();
                    }
                    self.scheduler.handle(Event::Applied { replica: self.replica, csn: unit.to });
                }
                (Some(error), None) => failure = Some(error),
                (_, Some(_)) => {}
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// A record, how many bytes it has in the log, and the epoch in which it was decided, below zero if it is to be passed over.
    pub(super) fn record(&self, csn: Csn) -> Result<(Arc<Record>, usize, i64), ApplyError> {
        let (epoch, writes) = match self.scheduler.recent(csn) {
            Some(writes) => (self.epoch, writes),
            None => {
                let read = self.history.read(csn).map_err(|source| ApplyError::Log { csn, source })?;
                let (epoch, body) = read.ok_or(ApplyError::Missing(csn))?;
                (epoch, Writes { body, ..Writes::default() })
            }
        };
        let len = writes.body.len();
        let epoch = epoch as i64;
        let record = match (self.annulments.how(csn), writes.record) {
            (How::Never, _) => return Ok((Arc::default(), 0, -epoch)),
            (How::NotYet, _) => return Err(ApplyError::InDoubt(csn)),
            (How::Whole, Some(record)) => record,
            (How::Whole, None) => {
                let record = Record::decode(writes.body);
                Arc::new(record.map_err(|source| ApplyError::Record { csn, source })?)
            }
        };
        Ok((record, len, epoch))
    }

    /// Sends one database transaction. If it is the first of a pipeline, nothing else is under way, and what is not yet
    /// known about its statements can be asked.
    async fn send_group(
        &self,
        lane: &mut Lane,
        forms: &mut Forms,
        group: &[(Csn, Arc<Record>)],
        epoch: i64,
        first: bool,
    ) -> Result<Unit, ApplyError> {
        if first && lane.has_too_many_prepared() {
            forget(lane, forms).await?;
        }
        let mut writes = group.iter().flat_map(|(_, record)| &record.writes);
        if writes.any(Write::may_change_types) {
            // Parameters may have other types from somewhere in its middle on.
            forms.clear();
        } else if first {
            learn(lane, forms, group).await?;
        }
        self.send_unit(lane, forms, group, epoch)
    }

    /// Appends one database transaction, explicit and up to one Sync, so that commands already sent cannot be applied
    /// one by one after a broken connection.
    fn send_unit(
        &self,
        lane: &mut Lane,
        forms: &Forms,
        group: &[(Csn, Arc<Record>)],
        epoch: i64,
    ) -> Result<Unit, ApplyError> {
        let from = group.first().map_or(Csn(0), |(csn, _)| *csn);
        let to = group.last().map_or(Csn(0), |(csn, _)| *csn);
        let changes_roles = group.iter().any(|(_, record)| record.writes.iter().any(Write::may_change_roles));
        let mut unit = Unit { to, expected: VecDeque::new(), commands: 0, changes_roles, failure: None };
        let Some((_, first)) = group.first() else { return Ok(unit) };
        self.send_own(lane, &mut unit, "BEGIN")?;
        if let Some(command) = settings_command(&first.settings) {
            self.send_own(lane, &mut unit, &command)?;
        }
        let settings = settings_hash(&first.settings);
        // A text may change the settings under which those after it are read.
        let reads_anew = group
            .iter()
            .any(|(_, record)| record.writes.iter().any(|write| matches!(write.what, What::Text(_))));
        let none = Forms::default();
        let forms = if reads_anew { &none } else { forms };
        let as_role = (!first.user.is_empty() && first.user != self.who.user).then_some(&first.user);
        // A change of definitions at this home may lock a sequence and have its turn only after this reservation: that it
        // waits is found, and the replica gives up its lanes, and with them the lock, by leaving service.
        let is_own = first.user.is_empty();
        if is_own {
            self.send_own(lane, &mut unit, RESERVATION_TIMEOUT)?;
        }
        let mut in_role = false;
        for step in bulk::arrange(group.iter().flat_map(|(_, record)| &record.writes), forms, settings) {
            // Rows that are shipped were permitted at their home; here they are put in past triggers and policies, which
            // only the agent may.
            let is_captured = matches!(&step, Step::One(write) if write.captured);
            let wanted = as_role.filter(|_| !is_captured);
            if wanted.is_some() != in_role {
                let role = wanted.map_or_else(|| "NONE".to_owned(), |role| quote_identifier(role));
                self.send_own(lane, &mut unit, &format!("SET LOCAL ROLE {role}"))?;
                in_role = wanted.is_some();
            }
            lane.read_under = settings;
            let sent = match step {
                Step::One(write) => self.send_write(lane, &mut unit, write, reads_anew),
                Step::Many(many) => self.send_many(lane, &mut unit, &many),
            };
            lane.read_under = 0;
            sent?;
        }
        if in_role {
            self.send_own(lane, &mut unit, "SET LOCAL ROLE NONE")?;
        }
        if is_own {
            self.send_own(lane, &mut unit, "SET LOCAL lock_timeout = 0")?;
        }
        progress::put_advance(lane, from.previous(), to, epoch)?;
        unit.expected.push_back(Some(Some(1)));
        self.send_own(lane, &mut unit, "COMMIT")?;
        build::sync(&mut lane.output);
        Ok(unit)
    }

    fn send_write(
        &self,
        lane: &mut Lane,
        unit: &mut Unit,
        write: &Write,
        reads_anew: bool,
    ) -> Result<(), ApplyError> {
        if write.captured {
            self.send_own(lane, unit, "SET LOCAL session_replication_role = replica")?;
        }
        match &write.what {
            What::Text(sql) => {
                build::parse(&mut lane.output, "", sql, [])?;
                build::bind(&mut lane.output, "", "", [], [], [])?;
            }
            What::Prepared { sql, types, bind, .. } if reads_anew => {
                build::parse(&mut lane.output, "", sql, types.iter().copied())?;
                lane.put_bind("", bind);
            }
            What::Prepared { key, sql, types, bind } => {
                let (name, _) = lane.prepare(*key, sql, types)?;
                lane.put_bind(&name, bind);
            }
            What::Copy { sql, .. } => {
                build::parse(&mut lane.output, "", sql, [])?;
                build::bind(&mut lane.output, "", "", [], [], [])?;
            }
        }
        build::execute(&mut lane.output, "", 0)?;
        if let What::Copy { data, .. } = &write.what {
            for chunk in data {
                build::copy_data(&mut lane.output, chunk)?;
            }
            build::copy_done(&mut lane.output);
        }
        unit.expected.push_back(Some(write.rows));
        if write.may_change_types() {
            // A prepared statement keeps the types that its parameters had when it was prepared.
            self.send_own(lane, unit, "DEALLOCATE ALL")?;
            lane.unprepare_all();
        }
        if write.captured {
            self.send_own(lane, unit, "SET LOCAL session_replication_role = origin")?;
        }
        Ok(())
    }

    /// Executions of one statement that were put together.
    fn send_many(&self, lane: &mut Lane, unit: &mut Unit, many: &Many<'_>) -> Result<(), ApplyError> {
        many.put(lane)?;
        build::execute(&mut lane.output, "", 0)?;
        unit.expected.push_back(Some(Some(many.rows())));
        Ok(())
    }

    /// A command of ours, whose row count says nothing.
    fn send_own(&self, lane: &mut Lane, unit: &mut Unit, sql: &str) -> Result<(), ApplyError> {
        lane.put_own(sql, &[])?;
        unit.expected.push_back(None);
        Ok(())
    }
}

/// Has nothing prepared any more, nor knows how statements are put together.
pub(super) async fn forget(lane: &mut Lane, forms: &mut Forms) -> Result<(), LaneError> {
    lane.unprepare_all();
    forms.clear();
    lane.command("DEALLOCATE ALL").await
}

/// Finds out how statements that come in numbers can be put together. Nothing else may be under way on the lane.
async fn learn(lane: &mut Lane, forms: &mut Forms, group: &[(Csn, Arc<Record>)]) -> Result<(), ApplyError> {
    if group.len() < 2 {
        return Ok(());
    }
    let Some((_, first)) = group.first() else { return Ok(()) };
    let settings = settings_hash(&first.settings);
    let mut begun = false;
    for write in group.iter().flat_map(|(_, record)| &record.writes) {
        let (Some(_), What::Prepared { key, sql, types, .. }) = (&write.reach, &write.what) else { continue };
        let known_as = key.under(settings);
        if forms.contains_key(&known_as) {
            continue;
        }
        if forms.len() >= FORMS_MAX {
            forms.clear();
        }
        if !begun {
            begun = true;
            lane.command("BEGIN").await?;
            if let Some(command) = settings_command(&first.settings) {
                lane.command(&command).await?;
            }
        }
        lane.read_under = settings;
        let types = lane.param_types(*key, sql, types).await;
        lane.read_under = 0;
        let form = match types {
            Ok(types) => Form::of(sql, &types),
            // Whoever executes it will say what is wrong with it.
            Err(error) if error.is_database() => {
                lane.command("ROLLBACK").await?;
                begun = false;
                None
            }
            Err(error) => return Err(error.into()),
        };
        forms.insert(known_as, form);
    }
    if begun {
        lane.command("COMMIT").await?;
    }
    Ok(())
}

/// The command that sets a record's settings for the transaction, if there are any.
fn settings_command(settings: &[(String, String)]) -> Option<String> {
    let calls = settings
        .iter()
        .map(|(name, value)| format!("pg_catalog.set_config({}, {}, true)", quote(name), quote(value)));
    let calls: Vec<String> = calls.collect();
    // One for all: it goes ahead of every group.
    (!calls.is_empty()).then(|| format!("SELECT {}", calls.join(", ")))
}

/// Identifies the settings of a record; 0 for none.
fn settings_hash(settings: &[(String, String)]) -> u64 {
    if settings.is_empty() {
        return 0;
    }
    hash_of(&settings)
}

/// Reads the answers of one unit up to its ReadyForQuery.
async fn read_unit(lane: &mut Lane, mut unit: Unit) -> Result<Unit, ApplyError> {
    if unit.expected.is_empty() {
        return Ok(unit);
    }
    let mut expected = std::mem::take(&mut unit.expected);
    loop {
        let head = lane.next_frame().await?;
        let decoded = onecopy_wire::backend::decode(head.tag, lane.body(head)).map_err(LaneError::from)?;
        match decoded {
            Backend::CommandComplete(tag) => {
                let found = row_count(tag);
                if let Some(Some(rows)) = expected.pop_front()
                    && rows.is_some()
                    && rows != found
                    && unit.failure.is_none()
                {
                    unit.failure = Some(ApplyError::Differs { csn: unit.to, expected: rows, found });
                }
                unit.commands += 1;
            }
            Backend::Error(fields) => {
                let fields = Box::new(fields.to_owned());
                if crate::lane::is_going_away(fields.code) {
                    return Err(LaneError::Database(fields).into());
                }
                unit.failure.get_or_insert(ApplyError::Refused { csn: unit.to, fields });
            }
            Backend::ReadyForQuery(_) => {
                lane.consume(head);
                // Its COMMIT was on its way already: what differs is there to stay.
                if let Some(ApplyError::Differs { csn, expected: rows, found }) = unit.failure
                    && expected.is_empty()
                {
                    unit.failure = Some(ApplyError::Diverged { csn, expected: rows, found });
                }
                return Ok(unit);
            }
            _ => {}
        }
        lane.consume(head);
    }
}
