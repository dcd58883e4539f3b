//! Recovery: what a log holds after a crash, and whether that is all that it ever promised.
//!
//! Two things look alike on disk: records that were being written when the machine stopped, of which any part may be
//! missing, and records that were safe and are now damaged. The first are cut off, since nobody was told about them; the
//! second must stop the start. Each frame tells them apart for those before it: it says up to where the log was on
//! stable storage when the frame was written. So a place that cannot be read is damage exactly if something behind it
//! says that it was safe.

use std::io;

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use thiserror::Error;

use crate::catalog::{Catalog, Position, Undecided, behind_own_frame};
use crate::consensus::Membership;
use crate::medium::{Medium, read_header};
use crate::noted::Noted;
use crate::planted::{Bug, planted};
use crate::record::{
    Defect, FrameHeader, HeaderDefect, Kind, LogId, SEGMENT_HEADER_LEN, SegmentHeader, SegmentNo, Seq,
    Shared, Start,
};
use crate::scan::{Remains, Window, search};

/// Why a log cannot be recovered. Nothing was changed.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// A segment could not be read.
    #[error("read commit log segment {}: {error}", .segment.file_name())]
    Read {
        /// Which one.
        segment: SegmentNo,
        /// What the device said.
        error: io::Error,
    },
    /// The segments could not be listed.
    #[error("list the commit log's segments: {0}")]
    List(io::Error),
    /// Something that was safe is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
}

/// Damage that loses records which were durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "the commit log is damaged: {damage} (segment {}, byte {offset}, record {seq}, behind CSN {csn}). Keep the folder \
     unchanged for inspection. Restore it from another node or a copy, or put it aside and begin a new log from the \
     most advanced replica; commits behind CSN {csn} that no replica has applied would then be lost", 
    .segment.file_name()
)]
pub struct Corruption {
    /// Where the damage is.
    pub segment: SegmentNo,
    /// Its place in the segment's file, in bytes.
    pub offset: u64,
    /// The first record that cannot be read.
    pub seq: Seq,
    /// The last commit that can be read.
    pub csn: Csn,
    /// What is wrong.
    pub damage: Damage,
}

/// What is wrong with a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Damage {
    /// A segment's header cannot be used.
    #[error("{0}")]
    Header(HeaderDefect),
    /// A record cannot be read although it was durable.
    #[error("{defect}, and record {proof} shows that it was safely written once")]
    Record {
        /// What is wrong with it.
        defect: Defect,
        /// The place of a record written when the damaged one was durable.
        proof: Seq,
    },
    /// Records between two segments are missing, or the later segment's header is wrong about where it begins.
    #[error(
        "the segment begins with record {found}, but record {expected} is the next one; a segment is missing"
    )]
    Gap {
        /// The next record.
        expected: Seq,
        /// The segment's first.
        found: Seq,
    },
    /// The last segment says that there is one after it.
    #[error("the log goes on in a later segment, which is missing")]
    MissingSegment,
    /// The segment belongs to another log.
    #[error("the segment belongs to log {found}, the others to log {expected}")]
    ForeignLog {
        /// The log of the first segment.
        expected: LogId,
        /// That of this one.
        found: LogId,
    },
    /// A whole record contradicts those before it.
    #[error("commit {found} stands where commit {expected} should be")]
    Csn {
        /// What the order demands.
        expected: Csn,
        /// What the record says.
        found: Csn,
    },
    /// A whole record is of an epoch that was over.
    #[error("a record of epoch {found} follows one of epoch {current}")]
    Epoch {
        /// The epoch before.
        current: Epoch,
        /// The record's.
        found: Epoch,
    },
}

/// The unfinished end of a log: bytes behind the last record that counts. Nobody was told that they were durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// Where the records end.
    pub segment: SegmentNo,
    /// Offset of the first byte that does not count.
    pub offset: u64,
    /// Bytes from there to the last one that is not zero.
    pub len: u64,
    /// Why the next record could not be read.
    pub defect: Defect,
    /// Headers of whole records behind it, which are given up with it.
    pub headers: u64,
    /// Later segments that are given up. Only a log that was written with [`crate::Durability::Memory`] can have some.
    pub segments: usize,
}

/// What [`recover`] found.
pub struct Recovery {
    pub(crate) catalog: Catalog,
    /// Every record before this one is known to be on stable storage.
    pub(crate) synced: Seq,
    /// The highest number of any segment.
    pub(crate) highest: SegmentNo,
    /// Segments that hold nothing that counts.
    pub(crate) void: Vec<SegmentNo>,
    /// What the node has promised the others, if it has any.
    pub(crate) shared: Option<Shared>,
    /// Who shares the log from each of these records on.
    pub(crate) memberships: Vec<(Seq, Membership)>,
    /// The unfinished end, if there was one.
    pub tail: Option<Tail>,
    /// Payloads whose transaction was not decided. None of them ever will be. Empty where several nodes share the log.
    pub undecided: Vec<Undecided>,
    /// What its records say beside commits.
    pub(crate) noted: Noted,
}

impl Recovery {
    /// The log's name.
    #[must_use]
    pub fn log_id(&self) -> LogId {
        self.catalog.log_id()
    }

    /// Behind the last record.
    #[must_use]
    pub fn end(&self) -> Position {
        self.catalog.end()
    }

    /// The highest epoch of any record.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.catalog.epoch()
    }

    /// The first commit that can be read; `end().csn.next()` if there is none.
    #[must_use]
    pub fn first(&self) -> Csn {
        self.catalog.first()
    }

    /// Commits that never happen, in the order in which that was decided.
    #[must_use]
    pub fn annulled(&self) -> Vec<Csn> {
        self.noted.annulled_up_to(self.catalog.end().seq)
    }

    /// How many records are kept, of whatever kind.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.catalog.end().seq.0 - self.catalog.first_seq().0
    }
}

/// Reads the whole log and verifies it; `None` if there is no segment at all. Changes nothing.
///
/// # Errors
/// What is damaged, or could not be read.
pub fn recover<M: Medium>(medium: &mut M) -> Result<Option<Recovery>, RecoverError> {
    let mut numbers = medium.segments().map_err(RecoverError::List)?;
    numbers.sort_unstable();
    let headers = read_headers(medium, &numbers)?;
    let Some(&highest) = numbers.last() else {
        return Ok(None);
    };
    let live = live_segments(&headers);
    let counting = behind_last_beginning(&headers);
    check_void(medium, counting, &live)?;

    let shared = headers.last().and_then(|newest| newest.shared);
    let mut catalog = Catalog::new(&live[0]);
    if let Some(shared) = &shared {
        catalog.settle(shared.committed.next());
    }
    let mut scan = Scan {
        catalog,
        synced: Seq(0),
        cuts: cuts(counting),
        window: Window::new(),
        noted: Noted::default(),
        memberships: Vec::new(),
    };
    let mut tail = None;
    let mut live_len = live.len();
    for (nth, header) in live.iter().enumerate() {
        let later = &live[nth + 1..];
        scan.enter(header, nth == 0)?;
        let end = scan.read_segment(medium, header, later.first())?;
        let Some(end) = end else { continue };
        scan.check_end(medium, header, later, &end)?;
        tail = scan.tail(header, later.len(), &end);
        live_len = nth + 1;
        break;
    }
    let mut catalog = scan.catalog;
    // Where several nodes share the log, another process may lead, and decide them yet.
    let undecided = if shared.is_none() { catalog.undecided() } else { Vec::new() };
    if shared.is_none() {
        catalog.forget_undecided();
    }
    let is_void = |number: &SegmentNo| live[..live_len].iter().all(|header| header.number != *number);
    let void = numbers.iter().copied().filter(is_void).collect();
    let (noted, memberships, synced) = (scan.noted, scan.memberships, scan.synced);
    Ok(Some(Recovery { catalog, synced, highest, void, shared, memberships, tail, undecided, noted }))
}

pub(crate) fn read_headers<M: Medium>(
    medium: &mut M,
    numbers: &[SegmentNo],
) -> Result<Vec<SegmentHeader>, RecoverError> {
    let mut headers: Vec<SegmentHeader> = Vec::with_capacity(numbers.len());
    for &segment in numbers {
        let bytes = read_header(medium, segment).map_err(|error| RecoverError::Read { segment, error })?;
        let before = headers.last();
        let corrupt = |damage| Corruption {
            segment,
            offset: 0,
            seq: before.map_or(Seq(1), |header| header.first_seq),
            csn: before.map_or(Csn(0), |header| header.first_csn.previous()),
            damage,
        };
        let header =
            SegmentHeader::decode(&bytes, segment).map_err(|defect| corrupt(Damage::Header(defect)))?;
        if let Some(expected) = before.map(|header| header.log_id).filter(|&id| id != header.log_id) {
            return Err(corrupt(Damage::ForeignLog { expected, found: header.log_id }).into());
        }
        headers.push(header);
    }
    Ok(headers)
}

/// The segments that count: a later one speaks for all records from its first on.
pub(crate) fn live_segments(headers: &[SegmentHeader]) -> Vec<SegmentHeader> {
    let mut live: Vec<SegmentHeader> = Vec::with_capacity(headers.len());
    for header in behind_last_beginning(headers).iter().rev() {
        if live.last().is_none_or(|later| header.first_seq < later.first_seq) {
            live.push(*header);
        }
    }
    live.reverse();
    live
}

/// The segments from that on with which the log was begun anew, if it was.
fn behind_last_beginning(headers: &[SegmentHeader]) -> &[SegmentHeader] {
    let begins = |header: &SegmentHeader| header.shared.is_some_and(|shared| shared.start == Start::Begins);
    &headers[headers.iter().rposition(begins).unwrap_or(0)..]
}

/// The segments that cut off what those before them hold, and from which record on.
fn cuts(headers: &[SegmentHeader]) -> Vec<(SegmentNo, Seq)> {
    let cutting =
        headers.iter().filter(|header| header.shared.is_some_and(|shared| shared.start == Start::Cuts));
    cutting.map(|header| (header.number, header.first_seq)).collect()
}

/// As far as what a segment says can count: what a later one cuts off may have been safe, and is void.
fn counting_to(cuts: &[(SegmentNo, Seq)], segment: SegmentNo) -> Seq {
    let later = cuts.iter().filter(|(cutting, _)| *cutting > segment);
    later.map(|(_, from)| *from).min().unwrap_or(Seq(u64::MAX))
}

/// A segment may be superseded only by what recovery began after giving it up: nothing in it was ever safe.
fn check_void<M: Medium>(
    medium: &mut M,
    headers: &[SegmentHeader],
    live: &[SegmentHeader],
) -> Result<(), RecoverError> {
    let cuts = cuts(headers);
    for void in headers.iter().filter(|header| !live.contains(header)) {
        let successor = live.iter().find(|header| header.number > void.number);
        let Some(successor) = successor else { continue };
        if counting_to(&cuts, void.number) <= successor.first_seq {
            continue;
        }
        let remains = search_in(medium, void, SEGMENT_HEADER_LEN, successor.first_seq)?;
        let claimed = (void.synced > successor.first_seq).then_some((0, void.first_seq));
        if let Some((offset, proof)) = claimed.or(remains.proof) {
            let csn = successor.first_csn.previous();
            let damage = Damage::Record { defect: Defect::Missing, proof };
            let at = Corruption { segment: void.number, offset, seq: successor.first_seq, csn, damage };
            return Err(at.into());
        }
    }
    Ok(())
}

fn search_in<M: Medium>(
    medium: &mut M,
    header: &SegmentHeader,
    offset: u64,
    seq: Seq,
) -> Result<Remains, RecoverError> {
    let stamp = crate::record::Stamp::new(header.log_id, header.number);
    search(medium, header.number, stamp, offset, seq)
        .map_err(|error| RecoverError::Read { segment: header.number, error })
}

/// Why reading stopped before the records of the next segment.
struct End {
    defect: Defect,
    /// Where what does not count begins.
    offset: u64,
    sealed: bool,
    remains: Remains,
}

struct Scan {
    catalog: Catalog,
    synced: Seq,
    cuts: Vec<(SegmentNo, Seq)>,
    window: Window,
    noted: Noted,
    memberships: Vec<(Seq, Membership)>,
}

impl Scan {
    /// Goes on in the next segment, which has to begin where the one before ended.
    fn enter(&mut self, header: &SegmentHeader, is_first: bool) -> Result<(), Corruption> {
        self.note_synced(header.number, header.synced);
        if let Some(shared) = &header.shared {
            self.memberships.push((Seq(header.first_seq.0 - 1), shared.membership));
        }
        if is_first {
            return Ok(());
        }
        let at = self.catalog.end();
        let wrong = if header.first_seq != at.seq {
            Some(Damage::Gap { expected: at.seq, found: header.first_seq })
        } else if header.first_csn != at.csn.next() {
            Some(Damage::Csn { expected: at.csn.next(), found: header.first_csn })
        } else if header.epoch < self.catalog.epoch() {
            Some(Damage::Epoch { current: self.catalog.epoch(), found: header.epoch })
        } else {
            None
        };
        if let Some(damage) = wrong {
            let (seq, csn) = (at.seq, at.csn);
            return Err(Corruption { segment: header.number, offset: 0, seq, csn, damage });
        }
        self.catalog.add_segment(header);
        Ok(())
    }

    /// Reads records until those of `next` begin (`None`), or there are no more.
    fn read_segment<M: Medium>(
        &mut self,
        medium: &mut M,
        header: &SegmentHeader,
        next: Option<&SegmentHeader>,
    ) -> Result<Option<End>, RecoverError> {
        let segment = header.number;
        let read_error = |error| RecoverError::Read { segment, error };
        let stamp = self.catalog.stamp(segment);
        let file_len = medium.len(segment).map_err(read_error)?;
        let (defect, own) = loop {
            let at = self.catalog.end();
            if next.is_some_and(|next| next.first_seq <= at.seq) {
                return Ok(None);
            }
            let read = self.window.frame(medium, segment, stamp, at.offset, file_len);
            let (header, noted, membership) = match read.map_err(read_error)? {
                Ok(Some(frame)) => {
                    let of_kind = |kind| frame.header.kind == kind;
                    let noted =
                        Noted::concerns(frame.header.kind).then(|| Bytes::copy_from_slice(frame.body));
                    let members = of_kind(Kind::MEMBERSHIP).then(|| Membership::decode(frame.body)).flatten();
                    (frame.header, noted, members)
                }
                Ok(None) => break (Defect::Missing, None),
                Err(defect) => break (defect, None),
            };
            if header.seq != at.seq {
                break (Defect::Place { expected: at.seq, found: header.seq }, None);
            }
            self.note_synced(segment, header.synced);
            if !header.kind.is_appendable() {
                break (Defect::Missing, Some(header.kind));
            }
            self.check_order(&header)?;
            self.catalog.add_record(&header);
            if let Some(body) = noted {
                self.noted.take(header.seq, header.kind, body);
            }
            self.memberships.extend(membership.map(|membership| (header.seq, membership)));
        };
        let at = self.catalog.end();
        let offset = if own.is_some() { behind_own_frame(at.offset) } else { at.offset };
        let remains = search_in(medium, header, offset, at.seq)?;
        Ok(Some(End { defect, offset, sealed: own == Some(Kind::SEAL), remains }))
    }

    fn note_synced(&mut self, segment: SegmentNo, synced: Seq) {
        self.synced = self.synced.max(synced.min(counting_to(&self.cuts, segment)));
    }

    /// A record with the right place and checksums is what was written: if it does not fit, the writer was wrong.
    fn check_order(&self, header: &FrameHeader) -> Result<(), Corruption> {
        let at = self.catalog.end();
        let expected = if header.kind == Kind::COMMIT { at.csn.next() } else { at.csn };
        let damage = if header.csn != expected {
            Damage::Csn { expected, found: header.csn }
        } else if header.epoch < self.catalog.epoch() {
            Damage::Epoch { current: self.catalog.epoch(), found: header.epoch }
        } else {
            return Ok(());
        };
        Err(Corruption { segment: at.segment, offset: at.offset, seq: at.seq, csn: at.csn, damage })
    }

    /// The records end here: demands that nothing behind says that there were more.
    fn check_end<M: Medium>(
        &self,
        medium: &mut M,
        header: &SegmentHeader,
        later: &[SegmentHeader],
        end: &End,
    ) -> Result<(), RecoverError> {
        let at = self.catalog.end();
        let corrupt = |damage| Corruption {
            segment: header.number,
            offset: end.offset,
            seq: at.seq,
            csn: at.csn,
            damage,
        };
        if planted(Bug::CutAtAnyDamage) {
            return Ok(());
        }
        if end.sealed {
            let damage = later.first().map_or(Damage::MissingSegment, |next| Damage::Gap {
                expected: at.seq,
                found: next.first_seq,
            });
            return Err(corrupt(damage).into());
        }
        let counts = |segment: SegmentNo| counting_to(&self.cuts, segment) > at.seq;
        let mut proof = end.remains.proof.map(|(_, proof)| proof).filter(|_| counts(header.number));
        for segment in later.iter().filter(|segment| counts(segment.number)) {
            proof = proof.or((segment.synced > at.seq).then_some(segment.first_seq));
            if proof.is_none() {
                let remains = search_in(medium, segment, SEGMENT_HEADER_LEN, at.seq)?;
                proof = remains.proof.map(|(_, proof)| proof);
            }
        }
        match proof {
            Some(proof) => Err(corrupt(Damage::Record { defect: end.defect, proof }).into()),
            None => Ok(()),
        }
    }

    fn tail(&self, header: &SegmentHeader, later: usize, end: &End) -> Option<Tail> {
        let len = end.remains.used_to - end.offset;
        let tail = Tail {
            segment: header.number,
            offset: end.offset,
            len,
            defect: end.defect,
            headers: end.remains.headers,
            segments: later,
        };
        (len > 0 || later > 0).then_some(tail)
    }
}
