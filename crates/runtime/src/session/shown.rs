//! Rows of joined tables that the answer of a read shows (docs/protocols/onecopy.md, *Joins by key*).

use std::sync::Arc;

use bytes::Bytes;
use onecopy_classify::{Class, ParamValue};
use onecopy_core::{Access, StatementKind};
use onecopy_wire::frontend::Bind;
use onecopy_wire::{Format, WireError, backend};

use super::job::{Job, Quiet};
use super::unit::{Request, Step};

/// Of an answer that shows more, the whole tables are taken.
const ITEMS_MAX: usize = 256;

/// What an answer shows, while it goes by.
#[derive(Debug)]
pub struct Shown {
    class: Arc<Class>,
    /// The items of whole tables for which it stands.
    pub whole: Vec<Access>,
    /// The Bind that says in which formats columns come; text without one.
    bind: Option<Bytes>,
    items: Vec<Access>,
    /// There are too many, or one cannot be told.
    gave_up: bool,
}

impl Shown {
    /// For a read inside a transaction of several statements, if its class shows anything and all of its answer comes at once.
    pub(super) fn of(job: &Job) -> Option<Shown> {
        let (_, class) = job.aside.classified.as_ref()?;
        let is_plain = job.kind == StatementKind::Read
            && job.capture.is_none()
            && job.aside.probe.is_none()
            && job.aside.quiet == Quiet::No;
        let whole = class.shown_among(&job.access);
        if !is_plain || whole.is_empty() {
            return None;
        }
        let bind = match &job.request {
            Request::Simple(_) | Request::Prepared(_) => None,
            Request::Extended(steps) => Some(only_bind(steps)?),
        };
        Some(Shown { class: Arc::clone(class), whole, bind, items: Vec::new(), gave_up: false })
    }

    /// Definitions have changed, and with them perhaps what the columns of the answer are.
    pub(super) fn give_up(&mut self) {
        self.gave_up = true;
    }

    /// Reads a DataRow.
    ///
    /// # Errors
    /// If it is none.
    pub(super) fn on_row(&mut self, body: &[u8]) -> Result<(), WireError> {
        if self.gave_up {
            return Ok(());
        }
        let formats = match &self.bind {
            Some(bind) => Bind::decode(bind)?.result_formats,
            None => Default::default(),
        };
        let row = backend::data_row(body)?;
        let value = |place: usize| ParamValue {
            type_oid: 0,
            binary: formats.of(place) == Format::Binary,
            bytes: row.iter().nth(place).flatten(),
        };
        let told = self.class.shown_by_row(value, &mut self.items);
        self.gave_up = told.is_err() || self.items.len() > ITEMS_MAX;
        Ok(())
    }

    /// What the answer is about.
    pub(super) fn into_items(self) -> Vec<Access> {
        if self.gave_up { self.whole } else { self.items }
    }
}

/// The Bind of the only portal that is executed, if that is to its end.
fn only_bind(steps: &[Step]) -> Option<Bytes> {
    let mut binds = steps.iter().filter_map(|step| match step {
        Step::Bind { body, .. } => Some(body),
        _ => None,
    });
    let mut executions = steps.iter().filter_map(|step| match step {
        Step::Execute { portal, max_rows, .. } => Some((portal.as_str(), *max_rows)),
        _ => None,
    });
    match (binds.next(), binds.next(), executions.next(), executions.next()) {
        // A portal with a name could not be bound once more.
        (Some(bind), None, Some(("", 0)), None) if Bind::decode(bind).ok()?.portal.is_empty() => {
            Some(bind.clone())
        }
        _ => None,
    }
}
