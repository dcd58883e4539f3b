//! The extended protocol: messages are collected until an Execute or Sync sends them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use onecopy_classify::{Capturing, Class, Kind};
use onecopy_wire::Format;
use onecopy_wire::frontend::{Bind, Named, Parse, Target};
use onecopy_wire::sqlstate::SqlState;

use super::client::ClientError;
use super::course::{Past, Read};
use super::environment::is_kept_here;
use super::fetched::{Fetch, Rest, runs_whole};
use super::portals::Portal;
use super::prepared::{self, params_of};
use super::settings::is_mode_of_transaction;
use super::simple::is_transaction_control;
use super::unit::{Preparation, Request, Sink, Step, Watch};
use super::{Done, Session};
use crate::classifier::Statement;
use crate::errors::Failure;
use crate::lane::StatementKey;
use crate::server::cancel::Whereabouts;

/// A statement that the client has prepared.
pub struct PreparedStatement {
    pub sql: Arc<str>,
    pub types: Arc<[u32]>,
    pub preparation: Preparation,
    /// As classified last; classified anew when definitions or settings have changed.
    pub(super) classified: parking_lot::Mutex<Option<Classified>>,
    /// Settings by which servers read texts and definitions, under which it returns what the client was told.
    told_under: parking_lot::Mutex<Option<(u64, u64)>>,
    /// As it was rendered last with parameters for its frozen values.
    pub(super) rendered: parking_lot::Mutex<Option<Rendered>>,
    /// Types as PREPARE has declared them.
    pub declared: Vec<String>,
}

/// A prepared statement as lanes prepare it.
pub(super) struct Rendered {
    class: Arc<Class>,
    in_block: bool,
    preparation: Preparation,
}

impl Rendered {
    pub fn new(class: &Arc<Class>, in_block: bool, preparation: &Preparation) -> Rendered {
        Rendered { class: class.clone(), in_block, preparation: preparation.clone() }
    }

    /// The preparation, if it was rendered for this class in such surroundings.
    pub fn of(&self, class: &Arc<Class>, in_block: bool) -> Option<&Preparation> {
        (Arc::ptr_eq(&self.class, class) && self.in_block == in_block).then_some(&self.preparation)
    }
}

/// What was found out about a prepared statement.
pub(super) struct Classified {
    pub statement: Statement,
    /// Settings under which it was classified.
    under: u64,
    /// In which manner: see [`Manner::captures`].
    captures: Capturing,
    /// See [`onecopy_classify::Class::only_reads`].
    pub only_reads: bool,
}

impl Classified {
    /// Whether it holds under these settings and this generation of definitions, in this manner unless it only reads.
    pub fn holds(&self, under: u64, generation: u64, captures: Option<Capturing>) -> bool {
        self.under == under
            && self.statement.generation == generation
            && captures.is_none_or(|captures| captures == self.captures)
    }
}

impl PreparedStatement {
    pub fn new(sql: &str, types: &[u32]) -> PreparedStatement {
        PreparedStatement {
            sql: sql.into(),
            types: types.into(),
            preparation: Preparation::new(sql, types),
            classified: parking_lot::Mutex::new(None),
            told_under: parking_lot::Mutex::new(None),
            rendered: parking_lot::Mutex::new(None),
            declared: Vec::new(),
        }
    }
}

impl PreparedStatement {
    /// How many parameters PREPARE has declared, if the text does not show that many.
    pub fn parameters_unseen(&self) -> Option<usize> {
        let params = params_of(&self.sql, &mut onecopy_classify::Scratch::default());
        let declared = self.declared.len();
        (declared > params.max(self.types.len())).then_some(declared)
    }
}

/// A Bind that does not give its statement as many parameters as it has.
pub(super) fn wrong_count(statement: &str, given: usize, wanted: usize) -> Failure {
    let what = format!(
        "bind message supplies {given} parameters, but prepared statement \"{statement}\" requires {wanted}"
    );
    Failure::new(SqlState::PROTOCOL_VIOLATION, what)
}

/// A query that can be placed anywhere.
const READS_NOTHING: &str = "SELECT 1";

impl Session {
    pub(super) async fn on_parse(&mut self, parse: &Parse<'_>) -> Result<(), ClientError> {
        if self.is_failed()
            && let Some(failure) = self.refused_in_failed(parse.sql).await
        {
            return self.fail_after_steps(&failure).await;
        }
        if !parse.name.is_empty() && self.statements.contains_key(parse.name) {
            let message = format!("prepared statement \"{}\" already exists", parse.name);
            return self
                .fail_after_steps(&Failure::new(SqlState::DUPLICATE_PREPARED_STATEMENT, message))
                .await;
        }
        let mut types: Vec<u32> = parse.types.iter().collect();
        let sql = match self.executed_instead(parse.sql).await? {
            Ok(sql) => sql,
            Err(failure) => return self.fail_after_steps(&failure).await,
        };
        let sql = sql.as_deref().unwrap_or(parse.sql);
        let typed = match self.with_types_by_name(sql, &mut types).await {
            Ok(typed) => typed,
            Err(failure) => return self.fail_after_steps(&failure).await,
        };
        let prepared = PreparedStatement::new(typed.as_deref().unwrap_or(sql), &types);
        self.steps.push(Step::Parse(prepared.preparation.clone()));
        self.statements.insert(parse.name.to_owned(), Arc::new(prepared));
        if !parse.name.is_empty() {
            self.unconfirmed.push(parse.name.to_owned());
        }
        Ok(())
    }

    /// Why a text is not even prepared in a transaction that has failed. What ends it is, and of what is no SQL a server says so.
    async fn refused_in_failed(&mut self, sql: &str) -> Option<Failure> {
        let (statement, next) = self.classify(sql).await;
        match &statement.class.kind {
            Kind::SyntaxError { .. } => None,
            _ if next.is_some() => Some(several_commands()),
            Kind::Empty => None,
            kind if may_end_failed(kind) => None,
            _ => Some(Failure::in_failed_transaction()),
        }
    }

    pub(super) fn is_failed(&self) -> bool {
        self.txn.as_ref().is_some_and(|txn| txn.failed)
    }

    pub(super) async fn on_bind(&mut self, bind: &Bind<'_>, body: Bytes) -> Result<(), ClientError> {
        let Some(prepared) = self.statements.get(bind.statement).cloned() else {
            return self.fail_after_steps(&not_prepared(bind.statement)).await;
        };
        self.statements.bound(bind.statement);
        if self.embeds_object_ids(&prepared, bind) {
            let failure = Failure::unsupported(
                "a parameter in binary form holds object ids of users' types, which differ between replicas",
                "Send arrays and composites of users' types as text.",
            );
            return self.fail_after_steps(&failure).await;
        }
        let statement = match self.classify_prepared(&prepared).await? {
            Ok(statement) => statement,
            Err(failure) => return self.fail_after_steps(&failure).await,
        };
        let (given, declared) = (bind.params.len(), prepared.types.len());
        if given != declared && reads_no_parameters(&statement.class.kind) {
            let failure = wrong_count(bind.statement, given, declared);
            return self.fail_after_steps(&failure).await;
        }
        if self.is_failed() && !(may_end_failed(&statement.class.kind) && bind.params.is_empty()) {
            return self.fail_after_steps(&Failure::in_failed_transaction()).await;
        }
        if let Some(code) = bind.param_formats.unknown().filter(|_| !bind.params.is_empty()) {
            return self.fail_after_steps(&Failure::of_format(code)).await;
        }
        if !bind.portal.is_empty() && self.portals.contains_key(bind.portal) {
            let what = format!("cursor \"{}\" already exists", bind.portal);
            return self.fail_after_steps(&Failure::new(SqlState::DUPLICATE_CURSOR, what)).await;
        }
        match self.bound(prepared, statement, body).await? {
            Ok((mut portal, step)) => {
                portal.unknown_format = bind.result_formats.unknown();
                self.portals_bound += 1;
                portal.number = self.portals_bound;
                self.portals.insert(bind.portal.to_owned(), Arc::new(portal));
                self.steps.push(step);
            }
            Err(failure) => return self.fail_after_steps(&failure).await,
        }
        Ok(())
    }

    /// Whether a parameter is an array or composite of users' types in binary form. Those that the client has declared are
    /// of other types: users' types are not among them any more.
    pub(super) fn embeds_object_ids(&self, prepared: &PreparedStatement, bind: &Bind<'_>) -> bool {
        bind.params.iter().enumerate().any(|(i, value)| {
            bind.param_formats.of(i) == Format::Binary
                && prepared.types.get(i).is_none_or(|declared| *declared == 0)
                && value.is_some_and(|value| self.shared.object_ids.differ_in(value))
        })
    }

    /// A prepared statement as classified under the definitions in force.
    pub(super) async fn classify_prepared(
        &mut self,
        prepared: &PreparedStatement,
    ) -> Result<Result<Statement, Failure>, ClientError> {
        let own_catalogue = self.txn.as_ref().is_some_and(|txn| txn.catalogue.is_some());
        let own_surroundings =
            own_catalogue || self.txn.as_ref().is_some_and(|txn| !txn.local_settings.is_empty());
        if !own_surroundings && self.shared.classifier.is_changing() {
            self.shared.classifier.settled().await;
        }
        let captures = self.manner().captures;
        let (surroundings, generation) = (self.environment.hash(), self.shared.classifier.generation());
        if let Some(known) = prepared.classified.lock().as_ref()
            && !own_surroundings
            && known.holds(surroundings, generation, Some(captures))
        {
            return Ok(Ok(known.statement.clone()));
        }
        let (statement, next) = self.classify(&prepared.sql).await;
        if next.is_some() {
            return Ok(Err(several_commands()));
        }
        if let Err(failure) = self.keeps_its_columns(prepared, generation).await? {
            return Ok(Err(failure));
        }
        let now = (self.reads_under(), generation);
        if !own_surroundings {
            let (statement, only_reads) = (statement.clone(), statement.class.only_reads());
            let classified = Classified { statement, under: surroundings, captures, only_reads };
            // Until it is known that it returns what the client was told, it is asked again.
            let is_told = !prepared.preparation.shape.is_known() || *prepared.told_under.lock() == Some(now);
            *prepared.classified.lock() = is_told.then_some(classified);
        }
        Ok(Ok(statement))
    }

    /// Fails if a statement is known to return other columns now than its client was told of.
    pub(super) async fn keeps_its_columns(
        &mut self,
        prepared: &PreparedStatement,
        generation: u64,
    ) -> Result<Result<(), Failure>, ClientError> {
        let own_catalogue = self.txn.as_ref().is_some_and(|txn| txn.catalogue.is_some());
        let now = (self.reads_under(), generation);
        let told_now = !own_catalogue && *prepared.told_under.lock() == Some(now);
        if told_now || !prepared.preparation.shape.is_known() {
            return Ok(Ok(()));
        }
        match self.returns_as_told(&prepared.preparation).await? {
            Ok(true) if !own_catalogue => *prepared.told_under.lock() = Some(now),
            Ok(_) => {}
            Err(failure) => return Ok(Err(failure)),
        }
        Ok(Ok(()))
    }

    /// A client is told now of the rows that a statement returns.
    pub(super) fn note_told(&self, prepared: &PreparedStatement) {
        // What is told by definitions of the transaction's own holds nowhere else.
        let own_catalogue = self.txn.as_ref().is_some_and(|txn| txn.catalogue.is_some());
        let now = (self.reads_under(), self.shared.classifier.generation());
        *prepared.told_under.lock() = (!own_catalogue).then_some(now);
    }

    /// Definitions or settings have changed since a statement was prepared. If its rows have other columns now, a client that
    /// was told of the former ones would misread them: it hears what a server would say, by which drivers know what to do.
    /// Returns false if that cannot be found out now.
    async fn returns_as_told(
        &mut self,
        preparation: &Preparation,
    ) -> Result<Result<bool, Failure>, ClientError> {
        let is_failed = self.is_failed();
        if is_failed || self.is_by_itself() && !self.has_open_lane() {
            // Nothing is executed, or nothing has been under the transaction's own settings.
            return Ok(Ok(false));
        }
        let now = Preparation { shape: Arc::default(), ..preparation.clone() };
        if let Err(failure) = self.describe_quietly(now.clone()).await? {
            return Ok(Err(failure));
        }
        if !preparation.shape.differs_from(&now.shape) {
            return Ok(Ok(true));
        }
        let what = "cached plan must not change result type";
        let failure = Failure::new(SqlState::FEATURE_NOT_SUPPORTED, what).routine("RevalidateCachedQuery");
        Ok(Err(
            failure.hint("What the statement returns has changed since it was prepared. Prepare it again.")
        ))
    }

    pub(super) async fn on_describe(&mut self, named: Named<'_>) -> Result<(), ClientError> {
        if self.is_failed()
            && named.target == Target::Statement
            && let Some(prepared) = self.statements.get(named.name).cloned()
            && self.classify(&prepared.sql).await.0.class.effects.returns_rows
        {
            return self.fail_after_steps(&Failure::in_failed_transaction()).await;
        }
        let step = match named.target {
            Target::Statement => match self.statements.get(named.name) {
                Some(prepared) => {
                    if !prepared.preparation.shape.is_known() {
                        self.note_told(prepared);
                    }
                    Step::DescribeStatement(prepared.preparation.clone())
                }
                None => {
                    return self.fail_after_steps(&not_prepared(named.name)).await;
                }
            },
            // What DECLARE has made is known to the lane only, if not to the next one.
            Target::Portal
                if self.portals.contains_key(named.name)
                    || self.has_open_lane()
                    || self.is_between_lanes() =>
            {
                let portal = self.portals.get(named.name);
                let shape = portal.map(|portal| portal.prepared.preparation.shape.clone());
                Step::DescribePortal { portal: named.name.to_owned(), shape }
            }
            Target::Portal => {
                let message = format!("portal \"{}\" does not exist", named.name);
                return self.fail_after_steps(&Failure::new(SqlState::INVALID_CURSOR_NAME, message)).await;
            }
        };
        self.steps.push(step);
        Ok(())
    }

    /// The client is told what was prepared, except for these.
    pub(super) fn confirm_parsed(&mut self, unparsed: &[StatementKey]) {
        for name in self.unconfirmed.drain(..) {
            let statement = self.statements.get(&name);
            if statement.is_some_and(|statement| unparsed.contains(&statement.preparation.key)) {
                self.statements.remove(&name);
            }
        }
    }

    fn has_open_lane(&self) -> bool {
        self.txn.as_ref().is_some_and(|txn| txn.home.is_some() || txn.snapshot.is_some())
    }

    fn is_between_lanes(&self) -> bool {
        self.txn.as_ref().is_some_and(|txn| txn.is_between_lanes())
    }

    pub(super) fn on_close(&mut self, named: Named<'_>) {
        match named.target {
            Target::Statement => {
                self.statements.remove(named.name);
                self.steps.push(Step::CloseStatement);
            }
            Target::Portal => {
                self.portals.remove(named.name);
                self.steps.push(Step::ClosePortal(named.name.to_owned()));
            }
        }
    }

    pub(super) async fn on_execute(&mut self, portal_name: &str, max_rows: u32) -> Result<(), ClientError> {
        self.client.request_begins(self.is_settled_by_log());
        let Some(mut portal) = self.portals.get(portal_name).cloned() else {
            let message = format!("portal \"{portal_name}\" does not exist");
            return self.fail_after_steps(&Failure::new(SqlState::INVALID_CURSOR_NAME, message)).await;
        };
        if let Some(code) = portal.unknown_format.filter(|_| portal.statement.class.effects.returns_rows) {
            return self.fail_after_steps(&Failure::of_format(code)).await;
        }
        let is_failed = self.is_failed();
        if portal.is_done(self.everywhere.is_none()) && !is_failed {
            let what = format!("portal \"{portal_name}\" cannot be run");
            let failure = Failure::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, what);
            return self.fail_after_steps(&failure).await;
        }
        let effects = &portal.statement.class.effects;
        let runs_whole = self.everywhere.is_none() && runs_whole(&portal.statement.class)
            || self.txn.is_some() && self.is_shown_elsewhere(&portal);
        // A limit means nothing where no rows are returned; a lane may be asked for rows all the same, to ship them.
        let is_limited = !(runs_whole || effects.writes && !effects.returns_rows);
        if !is_failed && portal.rest.lock().is_some() {
            return self.fetch_rest(&portal, max_rows).await.map(drop);
        }
        if self.everywhere.is_none() && portal.statement.class.effects.writes && !is_failed {
            match self.bind_with_execute(portal_name, &portal).await? {
                Ok(bound) => portal = bound.unwrap_or(portal),
                Err(failure) => return self.fail_statement(&failure).await.map(drop),
            }
            if self.skipping {
                return Ok(());
            }
        }
        portal.begun.store(true, Ordering::Release);
        let kind = &portal.statement.class.kind;
        let copies_in = matches!(kind, Kind::CopyIn { .. });
        let max_rows_at_lane = if is_limited { max_rows } else { 0 };
        self.steps.push(Step::Execute {
            portal: portal_name.to_owned(),
            max_rows: max_rows_at_lane,
            copies_in,
        });
        // What a server says of parameters that such a command is declared to have, it says itself.
        let described = portal.prepared.types.is_empty();
        if is_answered_here(kind) && self.run_foreign_steps(described, &portal).await? == Done::Failed {
            return Ok(());
        }
        if self.txn.is_none() && !is_transaction_control(&portal.statement.class.kind) {
            // Whether this is a transaction of its own is only known when the next message is: without a Sync, more
            // statements may follow in the same implicit transaction.
            if !self.sync_follows().await? {
                self.begin_implicit();
            }
        }
        if let Some(txn) = self.txn.as_mut() {
            txn.cursors |= max_rows_at_lane > 0;
            txn.ended_portals |= !portal_name.is_empty();
        }
        if self.txn.is_some() {
            match self.rebind_in_block(portal_name, &portal).await? {
                Ok(rebound) => portal = rebound.unwrap_or(portal),
                Err(failure) => {
                    self.fail(&failure);
                    return Ok(());
                }
            }
        }
        self.fetch = runs_whole.then(|| Fetch { portal: portal.clone(), max_rows });
        let done = self.execute(&portal.statement, Some(&portal)).await;
        self.fetch = None;
        if done? == Done::Failed {
            self.skipping = true;
        } else if runs_whole {
            portal.rest.lock().get_or_insert_with(|| Rest::none(&portal.statement.class.kind));
        }
        Ok(())
    }

    /// Answers an error that is found in a message here, after what the messages before it are answered.
    pub(super) async fn fail_after_steps(&mut self, failure: &Failure) -> Result<(), ClientError> {
        if !self.steps.is_empty() {
            self.run_steps(false).await?;
        }
        if self.skipping { Ok(()) } else { self.fail_statement(failure).await.map(drop) }
    }

    /// Answers the messages before the one in which a server finds what is wrong with a portal's statement: its Parse, or its
    /// Bind if it was prepared earlier.
    pub(super) async fn answer_before_parse(&mut self, portal: &Portal) -> Result<(), ClientError> {
        let key = portal.prepared.preparation.key;
        let parse = |step: &Step| matches!(step, Step::Parse(statement) if statement.key == key);
        let parsed = self.steps.iter().position(parse);
        let found = parsed.or_else(|| self.steps.iter().position(|step| step.binds(portal)));
        self.steps.truncate(found.unwrap_or(0));
        let is_it = |name: &String| self.statements.get(name).is_some_and(|s| s.preparation.key == key);
        let first = self.unconfirmed.iter().position(is_it).unwrap_or(self.unconfirmed.len());
        let unparsed = self.unconfirmed.split_off(first);
        if !self.steps.is_empty() {
            Box::pin(self.run_steps(false)).await?;
        }
        unparsed.iter().for_each(|name| drop(self.statements.remove(name)));
        Ok(())
    }

    /// Answers what stands before an Execute, whose statement then fails.
    pub(super) async fn fail_at_execute(&mut self, failure: &Failure) -> Result<Done, ClientError> {
        if matches!(self.steps.last(), Some(Step::Execute { .. })) {
            self.steps.pop();
        }
        Box::pin(self.fail_after_steps(failure)).await?;
        Ok(Done::Failed)
    }

    /// Whether the next message is a Sync; waits for it.
    async fn sync_follows(&mut self) -> Result<bool, ClientError> {
        loop {
            if let Some(head) = self.client.peek()? {
                return Ok(head.tag == onecopy_wire::frontend::tag::SYNC);
            }
            self.client.flush().await?;
            self.client.fill().await?;
        }
    }

    pub(super) async fn on_sync(&mut self) -> Result<(), ClientError> {
        if !self.skipping {
            self.run_steps(true).await?;
        }
        self.end_implicit().await?;
        self.forget_placed_read();
        self.synced().await
    }

    /// Everything up to a Sync has been answered.
    pub(super) async fn synced(&mut self) -> Result<(), ClientError> {
        self.skipping = false;
        self.moment = None;
        self.steps.clear();
        if self.txn.is_none() {
            self.portals.clear();
        }
        self.ready();
        if self.client.peek()?.is_none() {
            self.client.flush().await?;
        }
        Ok(())
    }

    /// Runs collected messages that no Execute has sent: the client wants to know shapes, or errors, now.
    /// An implicit transaction `ends` with a Sync.
    pub(super) async fn run_steps(&mut self, ends: bool) -> Result<(), ClientError> {
        if self.steps.is_empty() {
            return Ok(());
        }
        if self.answers_alone() {
            self.answer_alone();
            return Ok(());
        }
        if !self.is_settled_by_log() {
            self.client.must_confirm();
        }
        let steps = std::mem::take(&mut self.steps);
        let request = Request::Extended(steps);
        let concerns_no_lane =
            |step: &Step| matches!(step, Step::Parse(_) | Step::DescribeStatement(_) | Step::CloseStatement);
        let is_beside = match &request {
            Request::Extended(steps) => steps.iter().all(concerns_no_lane) && self.describes_beside(),
            _ => false,
        };
        if !is_beside && let Some(mut lane) = self.open_lane() {
            let (begun_at, sent) = (self.client.output.len(), self.client.sent);
            let backend = lane.lent.lane.backend.clone();
            self.cancel.set(Whereabouts::OnLane { replica: lane.replica, backend });
            let result = super::unit::run(
                &mut lane.lent.lane,
                0,
                &request,
                Sink::Client(&mut self.client),
                &mut Watch::default(),
                None,
            )
            .await;
            self.cancel.set(Whereabouts::Idle);
            if let (Err(super::unit::UnitError::Lane(error)), true) = (&result, self.client.sent == sent) {
                // It is asked for again where the transaction goes on.
                self.client.output.truncate(begun_at);
                self.on_lane_lost(lane, error);
                return self.run_between_lanes(request).await;
            }
            if let (Ok(answer), Request::Extended(steps)) = (&result, request)
                && answer.error.is_none()
            {
                self.note_portals(steps);
            }
            return self.after_describe(Some(lane), result).await;
        }
        if let Some(portal) = self.bound_for_later(&request, ends) {
            if self.txn.is_none() {
                self.begin_implicit();
            }
            if let Some(txn) = self.txn.as_mut() {
                txn.cursors = true;
            }
            let Request::Extended(steps) = request else { return Ok(()) };
            self.steps = steps;
            if self.execute(&portal.statement, Some(&portal)).await? == Done::Failed {
                self.skipping = true;
            }
            return Ok(());
        }
        if self.is_between_lanes() {
            return self.run_between_lanes(request).await;
        }
        self.describe_anywhere(&request).await.map(drop)
    }

    /// The transaction has left its snapshot, and portals with it. They are opened again in the next one, which a Describe
    /// needs now; what is closed meanwhile must be closed there, too.
    async fn run_between_lanes(&mut self, request: Request) -> Result<(), ClientError> {
        let Request::Extended(steps) = request else { return Ok(()) };
        let describes = steps.iter().any(|step| matches!(step, Step::DescribePortal { .. }));
        if describes && self.txn.as_ref().is_some_and(|txn| !txn.failed) {
            let prepared = Arc::new(PreparedStatement::new(READS_NOTHING, &[]));
            let (statement, _) = self.classify(READS_NOTHING).await;
            // It is not executed: only the place of a read is what the messages need.
            let portal = Portal::new(prepared, statement, Bytes::new(), Vec::new(), true);
            self.steps = steps;
            if self.execute(&portal.statement, Some(&portal)).await? == Done::Failed {
                self.skipping = true;
            }
            return Ok(());
        }
        let request = Request::Extended(steps);
        if self.describe_anywhere(&request).await? == Done::Answered
            && let Request::Extended(steps) = request
        {
            self.note_portals(steps);
        }
        Ok(())
    }

    /// Portals that are bound or closed without an Execute: if the transaction moves to its home, this is done again there,
    /// in its place among the reads.
    fn note_portals(&mut self, steps: Vec<Step>) {
        let read_under = self.reads_under();
        let Some(txn) = self.txn.as_mut() else { return };
        let concerns = |step: &Step| matches!(step, Step::Bind { .. } | Step::ClosePortal(_));
        let again: Vec<Step> = steps.into_iter().filter(concerns).collect();
        if again.is_empty() {
            return;
        }
        if txn.at_home {
            txn.cursors = true;
            return;
        }
        let (request, hash) = Request::of_completions(again);
        txn.cursors = true;
        txn.course.note(Past::Read(Read { request, hash, read_under }));
    }

    /// The portal of a query that is bound first in its transaction and executed after the next Sync or Flush: it must
    /// be bound where the transaction will be.
    fn bound_for_later(&self, request: &Request, ends: bool) -> Option<Arc<Portal>> {
        let lives_on = match &self.txn {
            Some(txn) => !txn.failed && (txn.explicit || !ends),
            None => !ends,
        };
        if !lives_on {
            return None;
        }
        let Request::Extended(steps) = request else { return None };
        let name = steps.iter().rev().find_map(|step| match step {
            Step::Bind { body, .. } => Bind::decode(body).ok().map(|bind| bind.portal.to_owned()),
            _ => None,
        })?;
        let portal = self.portals.get(&name)?;
        let class = &portal.statement.class;
        (class.kind == Kind::Select && !class.effects.writes).then(|| portal.clone())
    }

    /// Whether the collected messages concern only commands that never reach a replica.
    fn answers_alone(&mut self) -> bool {
        let (path, manner) = (self.search_path(), self.manner());
        let is_own_command = |sql: &str| {
            let mut scratch = onecopy_classify::Scratch::default();
            let (statement, _) = self.shared.classifier.classify(&manner, sql, &path, &mut scratch);
            is_own(&statement.class.kind)
        };
        self.steps.iter().all(|step| match step {
            Step::Parse(statement) | Step::DescribeStatement(statement) | Step::Bind { statement, .. } => {
                statement.types.is_empty() && is_own_command(&statement.sql)
            }
            Step::CloseStatement => true,
            Step::DescribePortal { portal, .. } => {
                let portal = self.portals.get(portal);
                portal.is_some_and(|portal| {
                    portal.prepared.types.is_empty() && is_own(&portal.statement.class.kind)
                })
            }
            Step::ClosePortal(_) => self.txn.is_none(),
            Step::Execute { .. } => false,
        })
    }
}

/// Commands that the session answers itself, with whatever messages stand before them.
fn is_answered_here(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Begin(_)
            | Kind::Commit { .. }
            | Kind::Rollback { .. }
            | Kind::RollbackTo(_)
            | Kind::SetTransaction { .. }
            | Kind::Discard(_)
            | Kind::Deallocate(_)
            | Kind::Prepare { .. }
            | Kind::Listen(_)
            | Kind::Unlisten(_)
            | Kind::Notify { .. }
    ) || match kind {
        Kind::Show(name) | Kind::Set { name, .. } | Kind::Reset(Some(name)) => {
            is_kept_here(name) || is_mode_of_transaction(name)
        }
        _ => false,
    }
}

/// A statement that a message of the protocol names, and that there is not.
fn not_prepared(name: &str) -> Failure {
    match name {
        "" => {
            let what = "unnamed prepared statement does not exist";
            Failure::new(SqlState::INVALID_SQL_STATEMENT_NAME, what)
        }
        name => prepared::not_prepared(name),
    }
}

fn several_commands() -> Failure {
    Failure::new(SqlState::SYNTAX_ERROR, "cannot insert multiple commands into a prepared statement")
}

/// Commands with which a transaction goes on or ends that has failed.
fn may_end_failed(kind: &Kind) -> bool {
    matches!(kind, Kind::Commit { .. } | Kind::Rollback { .. } | Kind::RollbackTo(_))
}

/// Commands that have no parameters but those that their Parse declares, which no part of them reads.
pub(super) fn reads_no_parameters(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Begin(_)
            | Kind::Commit { .. }
            | Kind::Rollback { .. }
            | Kind::Savepoint(_)
            | Kind::Release(_)
            | Kind::RollbackTo(_)
            | Kind::Set { .. }
            | Kind::Reset(_)
            | Kind::Show(_)
            | Kind::SetTransaction { .. }
            | Kind::SetConstraints { .. }
            | Kind::Discard(_)
            | Kind::Prepare { .. }
            | Kind::Deallocate(_)
            | Kind::Fetch(_)
            | Kind::Move(_)
            | Kind::CloseCursor(_)
            | Kind::Truncate { .. }
            | Kind::LockTable { .. }
            | Kind::Maintenance { .. }
            | Kind::Listen(_)
            | Kind::Unlisten(_)
            | Kind::Notify { .. }
            | Kind::Empty
    )
}

/// Commands that the session carries out itself and that return no rows.
fn is_own(kind: &Kind) -> bool {
    matches!(kind, Kind::Begin(_) | Kind::Commit { .. } | Kind::Rollback { .. } | Kind::Empty)
}
