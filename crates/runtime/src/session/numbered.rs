//! Statements whose rows get numbers of sequences, or other values, in the order in which they come: INSERT from a query,
//! and COPY that leaves columns out.
//!
//! Everything happens at the home of the transaction, which is begun if there is none: the rows are counted (by the query
//! itself, or by sending the client's data into a temporary table), blocks of numbers are drawn, the rows are inserted
//! with them and shipped. The client sees the answer to the one statement that it sent.

use bytes::{Bytes, BytesMut};
use onecopy_classify::{Determinism, FrozenKind, FrozenValue, Guard, NumberPlan, Numbered, Refusal, Rewrite};
use onecopy_core::{AccessSet, StatementKind};
use onecopy_wire::Format;
use onecopy_wire::frontend::Bind;
use onecopy_wire::sqlstate::SqlState;

use super::captured::captures_binary;
use super::client::ClientError;
use super::job::{Aside, Block, Job, Quiet, rechecks};
use super::portals::Portal;
use super::run::Ran;
use super::unit::{Answer, Preparation, Request, Step};
use super::{Done, Session};
use crate::classifier::Statement;
use crate::errors::Failure;

/// The name of the portal that counts; the client's own portals must stay.
const COUNTING: &str = "onecopy_count";
/// Numbers drawn beyond the rows that were counted, where the query may yield more of them the second time.
const SPARE: u32 = 100;

impl Session {
    /// Executes a statement whose rows are numbered, and answers it.
    pub(super) async fn execute_numbered(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
        plan: &NumberPlan,
    ) -> Result<Done, ClientError> {
        if self.txn.is_none() {
            self.begin_implicit();
        }
        match &plan.source {
            Numbered::Query { count, unsteady } => {
                self.number_query(statement, portal, plan, count, *unsteady).await
            }
            Numbered::Copy { create, copy, drop } => {
                let done = self.number_copy(statement, portal, plan, create, copy, drop).await;
                if let Some(txn) = self.txn.as_mut() {
                    txn.bound_to_home = false;
                }
                done
            }
        }
    }

    async fn number_query(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
        plan: &NumberPlan,
        count: &Rewrite,
        unsteady: bool,
    ) -> Result<Done, ClientError> {
        let steps = std::mem::take(&mut self.steps);
        let (sql, layout) = (&statement.sql, statement.layout.layout());
        // The text that counts uses the same values of the clock, and no numbers.
        let frozen = match self.freeze_blocks(&count.frozen, 0).await? {
            Ok(frozen) => frozen,
            Err(failure) => return self.failed_with(&failure).await,
        };
        let text = count.render_simple(sql, layout, &frozen);
        let request = match portal {
            None => Request::Simple(text),
            Some(portal) => Request::Extended(counting_steps(&text, portal)?),
        };
        let aside = Aside { quiet: Quiet::Dropped, probe: Some(1), ..Aside::default() };
        let access = access(statement, portal);
        let job = own_job(statement, request, access.clone(), aside);
        let Ran::Answered(answer) = self.run_job(job).await? else { return Ok(Done::Failed) };
        if answer.error.is_some() {
            return Ok(Done::Failed);
        }
        let Some(rows) = counted(&answer) else { return self.too_many_rows().await };
        let draw = if unsteady { rows.saturating_mul(2).saturating_add(SPARE) } else { rows };
        let frozen = match self.freeze_blocks(&plan.capture.rewrite.frozen, draw).await? {
            Ok(frozen) => frozen,
            Err(failure) => return self.failed_with(&failure).await,
        };
        self.steps = steps;
        let request = match portal {
            None => Request::Simple(plan.capture.rewrite.render_simple(sql, layout, &frozen)),
            Some(portal) => {
                let text = plan.capture.rewrite.render_extended(sql, layout, statement.class.params_max);
                self.bind_instead(portal, &text, &frozen);
                Request::Extended(self.steps_with_capture(portal, Some(&plan.capture))?)
            }
        };
        let blocks = blocks(plan, &frozen, draw);
        let is_binary = portal.is_some_and(|portal| captures_binary(portal, &request));
        let rechecks = rechecks(statement, portal, &access, &[]);
        let aside = Aside { blocks, is_binary, rechecks, ..Aside::default() };
        let mut job = own_job(statement, request, access, aside);
        job.capture = Some(Box::new(plan.capture.clone()));
        let ran = self.run_job(job).await?;
        let done = self.answer_or_fail(&ran);
        if done == Done::Answered {
            self.note_drawn(plan, &frozen, rows);
        }
        Ok(done)
    }

    async fn number_copy(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
        plan: &NumberPlan,
        create: &str,
        copy: &Rewrite,
        drop: &str,
    ) -> Result<Done, ClientError> {
        let steps = std::mem::take(&mut self.steps);
        let access = access(statement, portal);
        let request = Request::Simple(create.to_owned());
        let aside = Aside { quiet: Quiet::Dropped, ..Aside::default() };
        let created = self.run_job(own_job(statement, request, access.clone(), aside)).await?;
        if self.answer_or_fail(&created) == Done::Failed {
            return Ok(Done::Failed);
        }
        if let Some(txn) = self.txn.as_mut() {
            txn.bound_to_home = true;
        }
        // The rows, whose number the client hears only when they are where they belong.
        self.steps = steps;
        let text = copy.render_simple(&statement.sql, statement.layout.layout(), &[]);
        let request = match portal {
            None => Request::Simple(text),
            Some(portal) => {
                self.bind_instead(portal, &text, &[]);
                Request::Extended(std::mem::take(&mut self.steps))
            }
        };
        let aside = Aside { quiet: Quiet::Held, ..Aside::default() };
        let Ran::Answered(answer) = self.run_job(own_job(statement, request, access.clone(), aside)).await?
        else {
            return Ok(Done::Failed);
        };
        if answer.error.is_some() {
            return Ok(Done::Failed);
        }
        let held = std::mem::take(&mut self.held);
        let Some(rows) = answer.rows.and_then(|rows| u32::try_from(rows).ok()) else {
            return self.too_many_rows().await;
        };
        let frozen = match self.freeze_blocks(&plan.capture.rewrite.frozen, rows).await? {
            Ok(frozen) => frozen,
            Err(failure) => return self.failed_with(&failure).await,
        };
        let text = plan.capture.rewrite.render_simple(&statement.sql, statement.layout.layout(), &frozen);
        let aside = Aside { quiet: Quiet::Dropped, blocks: blocks(plan, &frozen, rows), ..Aside::default() };
        let mut job = own_job(statement, Request::Simple(text), access, aside);
        job.capture = Some(Box::new(plan.capture.clone()));
        let inserted = self.run_job(job).await?;
        if self.answer_or_fail(&inserted) == Done::Failed {
            return Ok(Done::Failed);
        }
        if let Err(failure) = self.at_home(drop).await {
            return self.failed_with(&failure).await;
        }
        self.note_drawn(plan, &frozen, rows);
        self.client.output.extend_from_slice(&held);
        Ok(Done::Answered)
    }

    /// Asks what a statement depends on, in its transaction and under its items; false if the client was told of a failure.
    pub(super) async fn passes_guard(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
        guard: &Guard,
    ) -> Result<bool, ClientError> {
        if matches!(statement.class.determinism, Determinism::Refuse(_)) {
            return Ok(true);
        }
        if self.txn.is_none() {
            self.begin_implicit();
        }
        let steps = std::mem::take(&mut self.steps);
        let aside = Aside { quiet: Quiet::Dropped, probe: Some(1), ..Aside::default() };
        let request = Request::Simple(guard.sql.clone());
        let Ran::Answered(answer) =
            self.run_job(own_job(statement, request, access(statement, portal), aside)).await?
        else {
            return Ok(false);
        };
        if answer.error.is_some() {
            return Ok(false);
        }
        let value = answer.probed.first().and_then(|row| row.first()?.as_ref());
        if value.is_none_or(|value| &value[..] != b"f") {
            let Refusal { reason, hint } = guard.refusal.clone();
            self.failed_with(&Failure::unsupported(reason, hint)).await?;
            return Ok(false);
        }
        self.steps = steps;
        Ok(true)
    }

    /// A command of ours on the home's lane.
    async fn at_home(&mut self, command: &str) -> Result<(), Failure> {
        let Some(mut lane) = self.txn.as_mut().and_then(|txn| txn.home.take()) else { return Ok(()) };
        let result = lane.lent.lane.command(command).await;
        match result {
            // The caller answers it: a client that hears two errors of one statement takes the second for another's.
            Err(error) if !error.is_database() => Err(self.lane_of_txn_lost(lane, &error)),
            result => {
                if let Some(txn) = self.txn.as_mut() {
                    txn.home = Some(lane);
                }
                result.map_err(|error| Failure::of_lane(&error))
            }
        }
    }

    /// Binds the client's portal to a text of ours instead of its own.
    pub(super) fn bind_instead(&mut self, portal: &Portal, text: &str, frozen: &[FrozenValue]) {
        let preparation = Preparation::new(text, &portal.prepared.types);
        for step in &mut self.steps {
            if let Step::Bind { statement, body, extra, .. } = step
                && *body == portal.body
            {
                *statement = preparation.clone();
                *extra = frozen.iter().map(|value| value.0.clone()).collect();
            }
        }
    }

    /// The session's idea of currval() and lastval() after rows were numbered.
    fn note_drawn(&mut self, plan: &NumberPlan, frozen: &[FrozenValue], rows: u32) {
        let Some(after_first) = i64::from(rows).checked_sub(1).filter(|n| *n >= 0) else { return };
        for block in &plan.blocks {
            let Some(FrozenKind::NextVal { schema, name }) =
                plan.capture.rewrite.frozen.get(block.frozen).map(|f| &f.kind)
            else {
                continue;
            };
            let first: Option<i64> = frozen.get(block.frozen).and_then(|value| value.0.parse().ok());
            if let Some(first) = first {
                let last = first.saturating_add(block.increment.saturating_mul(after_first));
                self.drawn.draw(schema, name, last);
            }
        }
    }

    pub(super) async fn failed_with(&mut self, failure: &Failure) -> Result<Done, ClientError> {
        self.drop_held();
        self.fail(failure);
        if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
            self.end_if_failed(id).await;
        }
        Ok(Done::Failed)
    }

    async fn too_many_rows(&mut self) -> Result<Done, ClientError> {
        let failure = Failure::new(
            SqlState::PROGRAM_LIMIT_EXCEEDED,
            format!("a statement can number at most {} rows", u32::MAX),
        )
        .hint("Insert the rows in several statements.");
        self.failed_with(&failure).await
    }
}

/// The items of an execution; the numbers are not known yet, which widens them.
fn access(statement: &Statement, portal: Option<&Portal>) -> AccessSet {
    let (sql, layout) = (&statement.sql, statement.layout.layout());
    match portal {
        None => statement.class.bind(sql, layout, &onecopy_classify::NoParams, &[]),
        Some(portal) => portal.with_params(|params| statement.class.bind(sql, layout, params, &[])),
    }
}

fn own_job(statement: &Statement, request: Request, access: AccessSet, aside: Aside) -> Job {
    Job {
        request,
        kind: StatementKind::Write,
        access,
        foreseen: None,
        class: statement.class.id,
        write: None,
        capture: None,
        generation: statement.generation,
        repeat: None,
        schema_changed: false,
        aside,
    }
}

/// What counts the rows with the parameters of the client's portal.
fn counting_steps(text: &str, portal: &Portal) -> Result<Vec<Step>, ClientError> {
    let bind = Bind::decode(&portal.body)?;
    let mut body = BytesMut::new();
    onecopy_wire::frontend::build::bind(
        &mut body,
        COUNTING,
        "",
        bind.param_formats.iter(),
        bind.params.iter(),
        [Format::Text],
    )?;
    let body: Bytes = body.freeze().slice(onecopy_wire::frame::HEAD_LEN..);
    Ok(vec![
        Step::Bind {
            statement: Preparation::new(text, &portal.prepared.types),
            body,
            extra: Vec::new(),
            again: false,
        },
        Step::Execute { portal: COUNTING.to_owned(), max_rows: 0, copies_in: false },
        Step::ClosePortal(COUNTING.to_owned()),
    ])
}

/// The one number that a query returned.
fn counted(answer: &Answer) -> Option<u32> {
    let value = answer.probed.first()?.first()?.as_ref()?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Where the numbers that are drawn for rows come back, so that none beyond the block is used.
fn blocks(plan: &NumberPlan, frozen: &[FrozenValue], count: u32) -> Vec<Block> {
    let of = |block: &onecopy_classify::Numbering| {
        let column = block.column?;
        let first: i64 = frozen.get(block.frozen)?.0.parse().ok()?;
        let span = block.increment.saturating_mul(i64::from(count).saturating_sub(1).max(0));
        Some(Block { column, first, last: first.saturating_add(span) })
    };
    plan.blocks.iter().filter_map(of).collect()
}
