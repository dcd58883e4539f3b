//! What the core and a lane must know of a classified statement, and how other replicas do it again.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use onecopy_classify::moment_text::may_keep_moment;
use onecopy_classify::whole::{Conflicts, foresee};
use onecopy_classify::{
    Bulk, CapturePlan, Class, Determinism, FrozenValue, Kind, LockWait, NoParams, Rechecks,
};
use onecopy_core::{Access, AccessSet, ColumnSet, StatementKind};
use onecopy_wire::frontend::Bind;

use super::Session;
use super::captured::captures_binary;
use super::client::ClientError;
use super::course::Past;
use super::extended::{PreparedStatement, Rendered};
use super::portals::Portal;
use super::shipping;
use super::unit::{Preparation, Repeated, Request, Step};
use crate::classifier::{Statement, rewrite_of};
use crate::errors::Failure;
use crate::lane::StatementKey;
use crate::record::{What, Write, after_names};

/// A statement ready for the core and for a lane.
pub(super) struct Job {
    pub request: Request,
    pub kind: StatementKind,
    pub access: AccessSet,
    /// What it may write, where the protocol must know that before it runs.
    pub foreseen: Option<AccessSet>,
    pub class: onecopy_core::ClassId,
    /// How it is done again on the other replicas, if it writes.
    pub write: Option<What>,
    pub capture: Option<Box<CapturePlan>>,
    /// Definitions under which it was classified.
    pub generation: u64,
    /// What it is in a read phase; `None` for a read.
    pub repeat: Option<Past>,
    pub schema_changed: bool,
    pub aside: Aside,
}

/// What is unusual about a job that is a step towards the answer of a statement, and not all of it.
#[derive(Default)]
pub(super) struct Aside {
    /// Whether the client sees its answer.
    pub quiet: Quiet,
    /// So many columns at the end of its rows are for the session.
    pub probe: Option<usize>,
    /// Captured columns come in binary form.
    pub is_binary: bool,
    /// Numbers that its captured rows may have, by column.
    pub blocks: Vec<Block>,
    /// Sequences that it restarts, by schema and name.
    pub restarts: Vec<(String, String)>,
    /// Whether replicas may execute it together with others of its class.
    pub bulk: Bulk,
    /// What it locks beside its items if its transaction has changed the same rows before.
    pub rechecks: Option<Box<Rechecks>>,
    /// It is all of its statement, so that the statement may begin again where nothing of it was executed.
    pub whole: bool,
    /// It is a change of definitions after which what is known of them is still right.
    pub keeps_catalogue: bool,
    /// The text that was classified, and as what.
    pub classified: Option<(Arc<str>, Arc<Class>)>,
}

/// Whether the client sees an answer. Errors it always sees, and what a COPY needs to go on.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Quiet {
    #[default]
    No,
    /// It stays in `held` until the session knows.
    Held,
    Dropped,
}

/// Numbers that were drawn for a captured column.
pub(super) struct Block {
    pub column: usize,
    pub first: i64,
    pub last: i64,
}

impl Job {
    /// A step that touches no item, executed wherever the transaction is.
    pub fn in_place(
        class: onecopy_core::ClassId,
        kind: StatementKind,
        request: Request,
        aside: Aside,
    ) -> Job {
        Job {
            request,
            kind,
            access: AccessSet::new(),
            foreseen: None,
            class,
            write: None,
            capture: None,
            generation: 0,
            repeat: None,
            schema_changed: false,
            aside,
        }
    }

    /// What it did, as it is logged.
    pub fn logged(&self, what: What, rows: Option<u64>) -> Write {
        let reach = (self.aside.bulk != Bulk::No).then(|| self.access.as_slice().into());
        let one_row = self.aside.bulk.is_one_row(&self.access);
        Write { reach, one_row, rows, changed: self.changed(), ..Write::new(what) }
    }

    /// What it may write, for a protocol that must know that.
    pub fn announced(&self) -> AccessSet {
        match &self.foreseen {
            Some(foreseen) => foreseen.clone(),
            // What is shipped is rows, whichever of their columns changed.
            None => {
                let whole = |access: &Access| Access { columns: ColumnSet::ALL, ..access.clone() };
                self.access.iter().map(whole).collect()
            }
        }
    }

    /// The rows of tables with foreign keys that it changes.
    pub fn changed(&self) -> Option<Arc<[Access]>> {
        self.aside.rechecks.as_ref().map(|rechecks| rechecks.changed.clone())
    }

    /// Whether its text says that it rather fails than waits for another transaction.
    pub fn no_wait(&self) -> bool {
        let kind = self.aside.classified.as_ref().map(|(_, class)| &class.kind);
        matches!(
            kind,
            Some(Kind::SelectLocking { wait: LockWait::NoWait, .. } | Kind::LockTable { no_wait: true, .. })
        )
    }
}

impl Session {
    /// What the core and the lane must know of a statement that reads or writes.
    pub(super) async fn prepare_job(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
    ) -> Result<Result<Job, Failure>, ClientError> {
        let class = statement.class.clone();
        let determinism = self.determinism(statement, portal);
        match &determinism {
            Determinism::Refuse(refusal) => {
                return Ok(Err(Failure::unsupported(refusal.reason.clone(), refusal.hint.clone())));
            }
            Determinism::Number(plan) => {
                return Ok(Err(Failure::unsupported(
                    format!("a statement cannot be executed in this form: {}", plan.capture.reason),
                    "Send it by itself, as a query or a prepared statement of the protocol.",
                )));
            }
            Determinism::Read | Determinism::Replay | Determinism::Capture(_) => {}
        }
        let in_block = self.txn.is_some();
        let frozen = match portal {
            Some(portal) => portal.frozen.clone(),
            None => match self.freeze(statement, in_block).await? {
                Ok(frozen) => frozen,
                Err(failure) => return Ok(Err(failure)),
            },
        };
        let access = match portal {
            None => class.bind(&statement.sql, statement.layout.layout(), &NoParams, &frozen),
            Some(portal) => portal
                .with_params(|params| class.bind(&statement.sql, statement.layout.layout(), params, &frozen)),
        };
        let foreseen = self.foresees().then(|| foreseen(statement, portal, &frozen, self.conflicts()));
        let rechecks = rechecks(statement, portal, &access, &frozen);
        let capture = match determinism {
            Determinism::Capture(plan) => Some(plan),
            _ => None,
        };
        let kind = kind_of(&class.kind, class.effects.writes, class.effects.locks_rows, capture.is_some());
        let request = match portal {
            None => match repeated(statement, &frozen, capture.is_none(), in_block) {
                Some(repeated) => Request::Prepared(repeated),
                None => {
                    let rewrite = rewrite_of(&class, capture.as_deref(), in_block);
                    Request::Simple(match rewrite.is_empty() {
                        true => statement.sql.to_string(),
                        false => rewrite.render_simple(&statement.sql, statement.layout.layout(), &frozen),
                    })
                }
            },
            Some(portal) => Request::Extended(self.steps_with_capture(portal, capture.as_deref())?),
        };
        let writes = matches!(kind, StatementKind::Write | StatementKind::Schema);
        let write = (writes && capture.is_none()).then(|| what_of(statement, &request, portal, &frozen));
        let is_binary = capture.is_some() && portal.is_some_and(|portal| captures_binary(portal, &request));
        let schema_changed = class.changes_definitions();
        Ok(Ok(Job {
            request,
            kind,
            access,
            foreseen,
            class: class.id,
            write,
            capture,
            generation: statement.generation,
            repeat: None,
            schema_changed,
            aside: Aside {
                restarts: class.restarts.clone(),
                bulk: class.bulk,
                rechecks,
                whole: true,
                is_binary,
                keeps_catalogue: class.kind.keeps_catalogue(),
                classified: Some((statement.sql.clone(), class.clone())),
                ..Aside::default()
            },
        }))
    }

    /// How an execution's changes reach the other replicas.
    pub(super) fn determinism(&self, statement: &Statement, portal: Option<&Portal>) -> Determinism {
        let layout = statement.layout.layout();
        match portal {
            None => statement.class.determinism_of(&statement.sql, layout, &NoParams).clone(),
            Some(portal) => portal
                .with_params(|params| statement.class.determinism_of(&statement.sql, layout, params).clone()),
        }
    }

    /// The collected messages; with a capture, the formats of our columns are settled.
    pub(super) fn steps_with_capture(
        &mut self,
        portal: &Portal,
        capture: Option<&CapturePlan>,
    ) -> Result<Vec<Step>, ClientError> {
        let mut steps = std::mem::take(&mut self.steps);
        let Some(plan) = capture else { return Ok(steps) };
        if let Some(Step::Bind { body, .. }) = steps.iter_mut().rev().find(|step| step.binds(portal)) {
            *body = with_result_formats(body, plan)?;
        }
        Ok(steps)
    }
}

impl Request {
    /// How a portal is bound by it: the statement, the message, and values that follow the client's.
    pub(super) fn bind_of(&self, portal: &Portal) -> Option<(&Preparation, &Bytes, &[String])> {
        let Request::Extended(steps) = self else { return None };
        let named = |body: &Bytes| Bind::decode(body).ok().map(|bind| bind.portal.to_owned());
        let name = named(&portal.body)?;
        // Of several Binds of one name, the last one counts; that of another portal says nothing.
        steps.iter().rev().find_map(|step| match step {
            Step::Bind { statement, body, extra, .. } => {
                (named(body).as_ref() == Some(&name)).then_some((statement, body, extra.as_slice()))
            }
            _ => None,
        })
    }
}

/// What an execution with these items locks beside them if its transaction has changed the same rows before.
pub(super) fn rechecks(
    statement: &Statement,
    portal: Option<&Portal>,
    access: &[Access],
    frozen: &[FrozenValue],
) -> Option<Box<Rechecks>> {
    let (class, sql, layout) = (&statement.class, &statement.sql, statement.layout.layout());
    match portal {
        None => class.rechecks(access, sql, layout, &NoParams, frozen),
        Some(portal) => portal.with_params(|params| class.rechecks(access, sql, layout, params, frozen)),
    }
}

/// What an execution may write, as far as that conflicts with others that run in other snapshots.
fn foreseen(
    statement: &Statement,
    portal: Option<&Portal>,
    frozen: &[FrozenValue],
    conflicts: Conflicts,
) -> AccessSet {
    let (class, sql, layout) = (&statement.class, &statement.sql, statement.layout.layout());
    let mut foreseen = AccessSet::new();
    match portal {
        None => foresee(class, sql, layout, &NoParams, frozen, conflicts, &mut foreseen),
        Some(portal) => portal.with_params(|params| {
            foresee(class, sql, layout, params, frozen, conflicts, &mut foreseen);
        }),
    }
    foreseen
}

/// How the core must treat a statement.
fn kind_of(kind: &Kind, writes: bool, locks: bool, captured: bool) -> StatementKind {
    match kind {
        Kind::Ddl { tables, .. } if !tables.is_empty() => StatementKind::Schema,
        Kind::Truncate { .. } => StatementKind::Schema,
        Kind::Ddl { .. } => StatementKind::Write,
        Kind::Insert | Kind::Update | Kind::Delete | Kind::Merge | Kind::WriteCte | Kind::CopyIn { .. } => {
            StatementKind::Write
        }
        Kind::SelectLocking { .. } | Kind::LockTable { .. } if !writes => StatementKind::LockingRead,
        _ if writes || captured => StatementKind::Write,
        _ if locks => StatementKind::LockingRead,
        _ => StatementKind::Read,
    }
}

/// How a statement is done again elsewhere.
fn what_of(
    statement: &Statement,
    request: &Request,
    portal: Option<&Portal>,
    frozen: &[FrozenValue],
) -> What {
    match (request, portal) {
        (Request::Prepared(Repeated { statement, bind, .. }), _) => what_prepared(statement, bind.clone()),
        (Request::Simple(sql), _) if matches!(statement.class.kind, Kind::CopyIn { .. }) => {
            What::Copy { sql: sql.clone(), data: Vec::new() }
        }
        (Request::Simple(sql), _) => {
            statement.parameterised(frozen).unwrap_or_else(|| What::Text(sql.clone()))
        }
        (Request::Extended(_), Some(portal)) => {
            let copies = matches!(statement.class.kind, Kind::CopyIn { .. });
            if copies {
                return What::Copy { sql: statement.sql.to_string(), data: Vec::new() };
            }
            let bound = request.bind_of(portal);
            let bound =
                bound.map(|(statement, body, extra)| (statement.clone(), body.clone(), extra.to_vec()));
            let (preparation, body, extra) = bound.unwrap_or_else(|| {
                let extra = frozen.iter().map(|value| value.0.clone()).collect();
                (rendered(statement, &portal.prepared, None, portal.in_block), portal.body.clone(), extra)
            });
            what_prepared(&preparation, bind_rest(&body, &extra))
        }
        (Request::Extended(_), None) => What::Text(statement.sql.to_string()),
    }
}

/// The statement of a portal as lanes prepare it.
pub(super) fn rendered(
    statement: &Statement,
    prepared: &PreparedStatement,
    capture: Option<&CapturePlan>,
    in_block: bool,
) -> Preparation {
    let rewrite = rewrite_of(&statement.class, capture, in_block);
    if rewrite.is_empty() {
        return prepared.preparation.clone();
    }
    let render = || {
        let sql =
            rewrite.render_extended(&statement.sql, statement.layout.layout(), statement.class.params_max);
        Preparation::new(&sql, &prepared.types)
    };
    if capture.is_some() {
        return render();
    }
    let mut rendered = prepared.rendered.lock();
    let known = rendered.as_ref().and_then(|rendered| rendered.of(&statement.class, in_block));
    match known {
        Some(preparation) => preparation.clone(),
        None => {
            let preparation = render();
            // What a server has once read as a moment must be read anew each time.
            let lasts = !may_keep_moment(&preparation.sql);
            *rendered = lasts.then(|| Rendered::new(&statement.class, in_block, &preparation));
            preparation
        }
    }
}

fn what_prepared(statement: &Preparation, bind: Bytes) -> What {
    let Preparation { key, sql, types, .. } = statement.clone();
    What::Prepared { key, sql, types, bind }
}

/// A statement that every lane keeps prepared.
fn repeated(
    statement: &Statement,
    frozen: &[FrozenValue],
    is_whole: bool,
    in_block: bool,
) -> Option<Repeated> {
    let class = &statement.class;
    let form = statement.frequent_form().filter(|_| is_whole)?;
    if in_block && class.in_block.is_some() {
        return None;
    }
    Some(Repeated {
        bind: statement.bind_constants(form, frozen)?,
        statement: Preparation {
            key: StatementKey::of(&form.sql, &form.types),
            sql: form.sql.clone(),
            types: form.types.clone(),
            shape: Arc::default(),
        },
        returns: matches!(class.kind, Kind::Select | Kind::SelectLocking { .. }),
        generation: statement.generation,
    })
}

/// Formats, parameters and result formats of a Bind, with further text parameters.
fn bind_rest(body: &Bytes, extra: &[String]) -> Bytes {
    let extra: Vec<&[u8]> = extra.iter().map(String::as_bytes).collect();
    let mut out = BytesMut::new();
    match onecopy_wire::frontend::rewrite_bind(body, "", "", &extra, &mut out) {
        Ok(()) => after_names(&out.freeze()),
        // It was decoded before; this cannot happen, and an empty rest is refused by the replicas.
        Err(_) => Bytes::new(),
    }
}

/// The client's Bind with text formats for the columns that we append: where its list of formats ends before them, and where
/// none of the columns is the client's, whose format for all of them would lose something.
fn with_result_formats(body: &Bytes, plan: &CapturePlan) -> Result<Bytes, ClientError> {
    let bind = Bind::decode(body)?;
    let of_client = match (plan.client_returns, bind.result_formats.len()) {
        (true, 0 | 1) => return Ok(body.clone()),
        (false, 0) => return Ok(body.clone()),
        (false, 1) if !shipping::needs_text(plan) && bind.result_formats.unknown().is_none() => {
            return Ok(body.clone());
        }
        // The server takes no notice of formats of columns that there are not.
        (false, _) => None,
        (true, _) => Some(bind.result_formats.iter()),
    };
    let ours = std::iter::repeat_n(onecopy_wire::Format::Text, plan.columns.len());
    let formats = of_client.into_iter().flatten().chain(ours);
    let mut out = BytesMut::new();
    onecopy_wire::frontend::build::bind(
        &mut out,
        bind.portal,
        bind.statement,
        bind.param_formats.iter(),
        bind.params.iter(),
        formats,
    )?;
    Ok(out.freeze().slice(onecopy_wire::frame::HEAD_LEN..))
}
