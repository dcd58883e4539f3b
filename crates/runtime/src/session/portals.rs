//! Portals: how statements are bound, for lanes and for what is logged, and bound again where more has become known.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use onecopy_classify::{Determinism, FrozenValue, Kind, ParamValue};
use onecopy_wire::Format;
use onecopy_wire::frontend::Bind;
use smallvec::SmallVec;

use super::client::ClientError;
use super::extended::PreparedStatement;
use super::fetched::{Rest, runs_whole};
use super::job::rendered;
use super::unit::{Preparation, Step};
use super::{Done, Session};
use crate::classifier::{Statement, rewrite_of};
use crate::errors::Failure;

/// A portal: a statement with its parameters.
#[derive(Clone)]
pub struct Portal {
    pub prepared: Arc<PreparedStatement>,
    pub statement: Statement,
    pub body: Bytes,
    /// Values frozen for this execution.
    pub frozen: Vec<FrozenValue>,
    /// It was bound inside a transaction.
    pub in_block: bool,
    /// It was executed by the session itself, which does so once.
    pub ran: Arc<AtomicBool>,
    /// An Execute of it has begun. Of a portal that returns no rows there is no second one.
    pub(super) begun: Arc<AtomicBool>,
    /// Its place among all portals of the session, by which it is older or newer than a savepoint.
    pub(super) number: u64,
    /// The first result format that there is not, if there is one: its execution fails if it returns rows.
    pub(super) unknown_format: Option<i16>,
    /// If it writes and has been executed: the rows that the client has not asked for yet.
    pub(super) rest: Arc<parking_lot::Mutex<Option<Rest>>>,
}

impl Portal {
    /// A portal that has not been executed.
    pub(super) fn new(
        prepared: Arc<PreparedStatement>,
        statement: Statement,
        body: Bytes,
        frozen: Vec<FrozenValue>,
        in_block: bool,
    ) -> Portal {
        Portal {
            prepared,
            statement,
            body,
            frozen,
            in_block,
            ran: Arc::default(),
            begun: Arc::default(),
            number: 0,
            unknown_format: None,
            rest: Arc::default(),
        }
    }

    /// The same portal for its client, bound again.
    pub(super) fn rebound_as(&self, bound: Portal) -> Portal {
        Portal {
            ran: self.ran.clone(),
            begun: self.begun.clone(),
            number: self.number,
            unknown_format: self.unknown_format,
            rest: self.rest.clone(),
            ..bound
        }
    }

    /// Whether a server refuses to execute it: it is done, or failed, and there are no rows of it to be fetched.
    pub(super) fn is_done(&self, keeps_rest: bool) -> bool {
        let class = &self.statement.class;
        let keeps_nothing = match class.effects.returns_rows {
            true => keeps_rest && runs_whole(class) && self.rest.lock().is_none(),
            false => class.kind != Kind::Empty,
        };
        keeps_nothing && self.begun.load(Ordering::Acquire)
    }

    /// The parameters as classification reads them.
    pub fn with_params<R>(&self, read: impl FnOnce(&[ParamValue<'_>]) -> R) -> R {
        match Bind::decode(&self.body) {
            Ok(bind) => read(&params_of(&bind, &self.prepared)),
            Err(_) => read(&[]),
        }
    }
}

/// The parameters of a Bind as classification reads them.
pub(super) fn params_of<'a>(bind: &Bind<'a>, prepared: &PreparedStatement) -> SmallVec<[ParamValue<'a>; 8]> {
    let value = |(i, bytes)| ParamValue {
        type_oid: prepared.types.get(i).copied().unwrap_or(0),
        binary: bind.param_formats.of(i) == Format::Binary,
        bytes,
    };
    bind.params.iter().enumerate().map(value).collect()
}

impl Session {
    /// A portal of this moment, and how it is bound on lanes.
    pub(super) async fn bound(
        &mut self,
        prepared: Arc<PreparedStatement>,
        statement: Statement,
        body: Bytes,
    ) -> Result<Result<(Portal, Step), Failure>, ClientError> {
        let in_block = self.txn.is_some();
        if statement.class.numbers_rows() {
            // Numbers are drawn when its rows have been counted; until then it can only be described.
            let plain = prepared.preparation.clone();
            let portal = Portal::new(prepared, statement, body.clone(), Vec::new(), in_block);
            return Ok(Ok((portal, Step::Bind { statement: plain, body, extra: Vec::new(), again: false })));
        }
        let frozen = match self.freeze(&statement, in_block).await? {
            Ok(frozen) => frozen,
            Err(failure) => return Ok(Err(failure)),
        };
        let mut extra = frozen.iter().map(|value| value.0.clone()).collect();
        let portal = Portal::new(prepared, statement, body.clone(), frozen, in_block);
        let determinism = self.determinism(&portal.statement, Some(&portal));
        let capture = match &determinism {
            Determinism::Capture(plan) => Some(&**plan),
            _ => None,
        };
        let statement = if matches!(portal.statement.class.kind, Kind::CopyOut | Kind::Ddl { .. }) {
            // They cannot have parameters: the values become a part of the text.
            extra = Vec::new();
            with_literals(&portal)
        } else {
            rendered(&portal.statement, &portal.prepared, capture, in_block)
        };
        Ok(Ok((portal, Step::Bind { statement, body, extra, again: false })))
    }

    /// Binds a portal anew that reads the clock and turned out to belong to a transaction after it was bound.
    pub(super) async fn rebind_in_block(
        &mut self,
        name: &str,
        portal: &Portal,
    ) -> Result<Result<Option<Arc<Portal>>, Failure>, ClientError> {
        if portal.in_block || portal.statement.class.in_block.is_none() {
            return Ok(Ok(None));
        }
        self.rebind(name, portal, portal.statement.clone())
            .await
            .map(|bound| bound.map(|(portal, _)| Some(portal)))
    }

    /// Binds a portal anew as that of another classification of its statement; and whether it was bound in the collected
    /// messages, where the new Bind then takes the place of the old one.
    pub(super) async fn rebind(
        &mut self,
        name: &str,
        portal: &Portal,
        statement: Statement,
    ) -> Result<Result<(Arc<Portal>, bool), Failure>, ClientError> {
        let (bound, step) = match self.bound(portal.prepared.clone(), statement, portal.body.clone()).await? {
            Ok(bound) => bound,
            Err(failure) => return Ok(Err(failure)),
        };
        let portal = Arc::new(portal.rebound_as(bound));
        let bound_before = self.steps.iter_mut().rev().find_map(|old| match old {
            Step::Bind { body, again, .. } if Bind::decode(body).is_ok_and(|bind| bind.portal == name) => {
                Some((*again, old))
            }
            _ => None,
        });
        let is_bound = bound_before.is_some();
        if let (Some((was_again, old)), Step::Bind { statement, body, extra, .. }) = (bound_before, step) {
            *old = Step::Bind { statement, body, extra, again: was_again };
            self.portals.insert(name.to_owned(), portal.clone());
        }
        Ok(Ok((portal, is_bound)))
    }

    /// Executes a portal of whose statement nothing was executed before definitions changed: it may be something else now.
    pub(super) async fn execute_outdated(&mut self, portal: &Portal) -> Result<Done, ClientError> {
        let name = Bind::decode(&portal.body).map(|bind| bind.portal.to_owned()).unwrap_or_default();
        let rebound = match self.classify_prepared(&portal.prepared).await? {
            Ok(statement) => self.rebind(&name, portal, statement).await?,
            Err(failure) => Err(failure),
        };
        match rebound {
            Ok((portal, true)) => Box::pin(self.execute(&portal.statement, Some(&portal))).await,
            Ok((_, false)) => self.fail_statement(&Failure::outdated()).await,
            Err(failure) => self.fail_statement(&failure).await,
        }
    }

    /// A statement that writes is executed as it is bound in the same exchange: its rows may have to be shipped, and be numbered
    /// before. If its Bind has been sent already, before an Execute of another portal or a Sync, it is bound again.
    pub(super) async fn bind_with_execute(
        &mut self,
        name: &str,
        portal: &Portal,
    ) -> Result<Result<Option<Arc<Portal>>, Failure>, ClientError> {
        if self.steps.iter().any(|step| step.binds(portal)) {
            return Ok(Ok(None));
        }
        if !self.steps.is_empty() {
            Box::pin(self.run_steps(false)).await?;
            if self.skipping {
                return Ok(Ok(None));
            }
        }
        let (prepared, statement) = (portal.prepared.clone(), portal.statement.clone());
        let (bound, mut step) = match self.bound(prepared, statement, portal.body.clone()).await? {
            Ok(bound) => bound,
            Err(failure) => return Ok(Err(failure)),
        };
        if let Step::Bind { again, .. } = &mut step {
            *again = true;
        }
        self.steps.push(step);
        let portal = Arc::new(portal.rebound_as(bound));
        self.portals.insert(name.to_owned(), portal.clone());
        Ok(Ok(Some(portal)))
    }

    /// Portals that were bound since a savepoint go with what is rolled back.
    pub(super) fn drop_portals_after(&mut self, number: u64) {
        self.portals.retain(|_, portal| portal.number <= number);
    }
}

/// The statement of a portal with its frozen values as literals.
fn with_literals(portal: &Portal) -> Preparation {
    let rewrite = rewrite_of(&portal.statement.class, None, portal.in_block);
    if rewrite.is_empty() {
        return portal.prepared.preparation.clone();
    }
    let (sql, layout) = (&portal.statement.sql, portal.statement.layout.layout());
    Preparation::new(&rewrite.render_simple(sql, layout, &portal.frozen), &portal.prepared.types)
}
