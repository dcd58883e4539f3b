//! Which records may be appended: one order, no gap, no stale epoch, no half payload.

use std::collections::BTreeMap;

use onecopy_core::{Csn, Epoch};
use thiserror::Error;

use crate::record::{BODY_LEN_MAX, Kind, PayloadId, PayloadRef, Record, Seq};

/// Why a record was refused. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AppendError {
    /// The log has failed: it takes nothing more, see its status for the reason.
    #[error("the commit log has failed and takes no more records; restart once the cause is removed")]
    Failed,
    /// The log is being closed.
    #[error("the commit log is closed and takes no more records")]
    Closed,
    /// Our bug: a commit out of order.
    #[error(
        "commit {found} cannot follow commit {last} in the log: the order has no gaps and no repetitions"
    )]
    Order {
        /// The last commit that was appended.
        last: Csn,
        /// The commit that was refused.
        found: Csn,
    },
    /// A leader that was deposed tries to go on.
    #[error("epoch {found} is over: the log is in epoch {current}; this process no longer leads")]
    OldEpoch {
        /// The log's epoch.
        current: Epoch,
        /// The record's.
        found: Epoch,
    },
    /// Several nodes share the log, and this one does not lead, or leads in another epoch.
    #[error("this node does not lead in epoch {epoch}: what was to be logged in it is void")]
    NotLeading {
        /// The record's.
        epoch: Epoch,
    },
    /// Several nodes share the log, and too much waits for a majority of them.
    #[error("{bytes} bytes wait to be durable on a majority of the nodes; try again when they are")]
    Busy {
        /// How much.
        bytes: u64,
    },
    /// The body is too large for one record.
    #[error("a record of {len} bytes is larger than {BODY_LEN_MAX}; log it as payload chunks")]
    TooLarge {
        /// Bytes of the body.
        len: usize,
    },
    /// Our bug: the kind is the log's own, or needs a payload, or cannot have one.
    #[error("a record of this kind cannot be appended in this form: {0}")]
    Form(Kind),
    /// Our bug: a chunk out of order, or a decision on chunks that are not all in the log.
    #[error("payload {id} has {logged} chunks in the log, not {found}")]
    Payload {
        /// The payload.
        id: PayloadId,
        /// Chunks logged in this epoch since the log was opened.
        logged: u32,
        /// What the record needs.
        found: u32,
    },
}

/// Checks records in the order in which they are appended, and gives out their places.
#[derive(Clone, Debug)]
pub struct Gate {
    next: Seq,
    last: Csn,
    epoch: Epoch,
    /// Chunks logged of each payload of `epoch` whose transaction may still decide.
    open: BTreeMap<PayloadId, u32>,
    shut: Option<AppendError>,
}

impl Gate {
    pub(crate) fn new(next: Seq, last: Csn, epoch: Epoch) -> Gate {
        Gate { next, last, epoch, open: BTreeMap::new(), shut: None }
    }

    /// Gives `record` the next place, and the CSN that it stands behind unless it is a commit.
    ///
    /// # Errors
    /// Why the record cannot stand there; then nothing has changed.
    pub fn admit(&mut self, record: &mut Record) -> Result<Seq, AppendError> {
        if let Some(reason) = self.shut {
            return Err(reason);
        }
        if record.body.len() > BODY_LEN_MAX {
            return Err(AppendError::TooLarge { len: record.body.len() });
        }
        if record.epoch < self.epoch {
            return Err(AppendError::OldEpoch { current: self.epoch, found: record.epoch });
        }
        if record.kind == Kind::COMMIT && record.csn != self.last.next() {
            return Err(AppendError::Order { last: self.last, found: record.csn });
        }
        self.check_payload(record)?;
        if record.epoch > self.epoch {
            self.epoch = record.epoch;
            self.open.clear();
        }
        match (record.kind, record.payload) {
            (Kind::PAYLOAD, Some(payload)) => *self.open.entry(payload.id).or_insert(0) += 1,
            (_, Some(payload)) => drop(self.open.remove(&payload.id)),
            _ => {}
        }
        if record.kind == Kind::COMMIT {
            self.last = record.csn;
        } else {
            record.csn = self.last;
        }
        let seq = self.next;
        self.next = seq.next();
        Ok(seq)
    }

    /// Refuses every further record, for `reason`. The first reason stays.
    pub(crate) fn shut(&mut self, reason: AppendError) {
        self.shut.get_or_insert(reason);
    }

    /// The last commit that was admitted.
    pub(crate) fn last(&self) -> Csn {
        self.last
    }

    /// The highest epoch that was admitted.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn check_payload(&self, record: &Record) -> Result<(), AppendError> {
        let form = AppendError::Form(record.kind);
        let Some(PayloadRef { id, chunk }) = record.payload else {
            let needs_payload = matches!(record.kind, Kind::PAYLOAD | Kind::ABANDON);
            return if needs_payload || !record.kind.is_appendable() { Err(form) } else { Ok(()) };
        };
        let open_here = if record.epoch == self.epoch { self.open.get(&id) } else { None };
        let logged = open_here.copied().unwrap_or(0);
        let fits = match record.kind {
            Kind::PAYLOAD => chunk == logged && chunk < u32::MAX,
            Kind::COMMIT => chunk == logged && logged > 0,
            Kind::ABANDON => logged > 0,
            _ => return Err(form),
        };
        if fits { Ok(()) } else { Err(AppendError::Payload { id, logged, found: chunk }) }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const E: Epoch = Epoch(3);
    const P: PayloadId = PayloadId(9);

    fn gate() -> Gate {
        Gate::new(Seq(11), Csn(5), E)
    }

    fn commit(csn: u64) -> Record {
        Record::commit(E, Csn(csn), Bytes::from_static(b"w"))
    }

    fn chunk(number: u32) -> Record {
        Record::payload(E, P, number, Bytes::from_static(b"p"))
    }

    /// Admits `records`, expects the last to be refused for `reason`, and the gate unchanged by it.
    fn check(records: Vec<Record>, reason: AppendError) {
        let mut gate = gate();
        let (last, before) = records.split_last().expect("at least one record");
        for record in before {
            gate.admit(&mut record.clone()).expect("admitted");
        }
        let unchanged = format!("{gate:?}");
        assert_eq!(gate.admit(&mut last.clone()), Err(reason));
        assert_eq!(format!("{gate:?}"), unchanged);
    }

    #[test]
    fn records_in_order_get_dense_places_and_the_csn_they_stand_behind() {
        let mut gate = gate();
        let mut reservation = Record::other(Kind::RESERVATION, E, Bytes::new());
        assert_eq!(gate.admit(&mut commit(6)), Ok(Seq(11)));
        assert_eq!(gate.admit(&mut reservation), Ok(Seq(12)));
        assert_eq!(reservation.csn, Csn(6));
        assert_eq!(gate.admit(&mut commit(7)), Ok(Seq(13)));
    }

    #[test]
    fn what_cannot_stand_in_the_order_is_refused_and_changes_nothing() {
        check(vec![commit(7)], AppendError::Order { last: Csn(5), found: Csn(7) });
        check(vec![commit(6), commit(6)], AppendError::Order { last: Csn(6), found: Csn(6) });
        let old = Record::commit(Epoch(2), Csn(6), Bytes::new());
        check(vec![old], AppendError::OldEpoch { current: E, found: Epoch(2) });
        let large = Record::commit(E, Csn(6), Bytes::from(vec![0; BODY_LEN_MAX + 1]));
        check(vec![large], AppendError::TooLarge { len: BODY_LEN_MAX + 1 });
        check(vec![Record::other(Kind::MARK, E, Bytes::new())], AppendError::Form(Kind::MARK));
        check(vec![Record::other(Kind(0), E, Bytes::new())], AppendError::Form(Kind(0)));
        check(vec![Record::other(Kind::PAYLOAD, E, Bytes::new())], AppendError::Form(Kind::PAYLOAD));
    }

    #[test]
    fn a_payload_is_decided_only_when_all_its_chunks_are_logged() {
        let decide = |chunks| Record::commit_with_payload(E, Csn(6), P, chunks, Bytes::new());
        let wrong = |logged, found| AppendError::Payload { id: P, logged, found };
        check(vec![decide(0)], wrong(0, 0));
        check(vec![decide(1)], wrong(0, 1));
        check(vec![chunk(1)], wrong(0, 1));
        check(vec![chunk(0), chunk(0)], wrong(1, 0));
        check(vec![chunk(0), decide(2)], wrong(1, 2));
        check(vec![chunk(0), Record::abandon(E, P), decide(1)], wrong(0, 1));
        let mut gate = gate();
        for mut record in [chunk(0), chunk(1), decide(2), chunk(0), Record::abandon(E, P)] {
            gate.admit(&mut record).expect("admitted");
        }
    }

    #[test]
    fn a_new_epoch_ends_the_payloads_of_the_old() {
        let later = |record: Record| Record { epoch: Epoch(4), ..record };
        let decide = Record::commit_with_payload(E, Csn(6), P, 1, Bytes::new());
        check(vec![chunk(0), later(decide.clone())], AppendError::Payload { id: P, logged: 0, found: 1 });
        let new_epoch = Record::other(Kind::EPOCH, Epoch(4), Bytes::new());
        check(
            vec![chunk(0), new_epoch.clone(), later(decide.clone())],
            AppendError::Payload { id: P, logged: 0, found: 1 },
        );
        check(vec![chunk(0), new_epoch, decide], AppendError::OldEpoch { current: Epoch(4), found: E });
    }
}
