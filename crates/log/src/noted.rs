//! What the log keeps in mind of records that are no commits: whoever starts or takes over must know it at once, without reading
//! the log.

use bytes::Bytes;
use onecopy_core::Csn;

use crate::record::{Kind, Seq, annulled_by};

/// By the records that say so, which may not be durable yet.
#[derive(Clone, Default, Debug)]
pub(crate) struct Noted {
    /// Commits that never happen.
    annulled: Vec<(Seq, Csn)>,
    /// Which replicas there are, in the caller's form.
    replicas: Vec<(Seq, Bytes)>,
}

impl Noted {
    /// Whether a record has to be taken.
    pub(crate) fn concerns(kind: Kind) -> bool {
        matches!(kind, Kind::ANNULMENT | Kind::REPLICAS)
    }

    pub(crate) fn take(&mut self, seq: Seq, kind: Kind, body: Bytes) {
        match kind {
            Kind::ANNULMENT => self.annulled.extend(annulled_by(&body).map(|csn| (seq, csn))),
            Kind::REPLICAS => self.replicas.push((seq, body)),
            _ => {}
        }
    }

    /// Records before this one are dropped.
    pub(crate) fn truncate_before(&mut self, first: Seq) {
        self.annulled.retain(|(seq, _)| *seq >= first);
        self.replicas.retain(|(seq, _)| *seq >= first);
    }

    /// This record and those behind it are void.
    pub(crate) fn cut_from(&mut self, from: Seq) {
        self.annulled.retain(|(seq, _)| *seq < from);
        self.replicas.retain(|(seq, _)| *seq < from);
    }

    /// Commits that never happen, by records up to `last`, in the order in which that was decided.
    pub(crate) fn annulled_up_to(&self, last: Seq) -> Vec<Csn> {
        self.annulled.iter().filter(|(seq, _)| *seq <= last).map(|(_, csn)| *csn).collect()
    }

    /// The last record up to `last` that says which replicas there are.
    pub(crate) fn replicas_at(&self, last: Seq) -> Option<(Seq, Bytes)> {
        self.replicas.iter().rev().find(|(seq, _)| *seq <= last).cloned()
    }
}
