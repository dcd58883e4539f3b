//! What is where: the segments, a sparse index of commits, and the places of payloads. Kept in memory, rebuilt at start.

use std::collections::{BTreeMap, VecDeque};

use onecopy_core::{Csn, Epoch};

use crate::planted::{Bug, planted};
use crate::record::{
    FRAME_HEADER_LEN, FrameHeader, Kind, LogId, PayloadId, SEGMENT_HEADER_LEN, SegmentHeader, SegmentNo, Seq,
    Stamp, Start,
};

/// At most one entry of the index in this many bytes of a segment.
const INDEX_STEP: u64 = 64 << 10;

/// A place between two records: everything before it is in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The segment that the next record goes to, unless that has to be another one.
    pub segment: SegmentNo,
    /// The next record's place in its file, in bytes.
    pub offset: u64,
    /// The next record.
    pub seq: Seq,
    /// The last commit before it.
    pub csn: Csn,
}

/// Where a payload's first chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PayloadPlace {
    pub(crate) segment: SegmentNo,
    pub(crate) offset: u64,
    pub(crate) seq: Seq,
    pub(crate) chunks: u32,
}

/// The durable records of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) segment: SegmentNo,
    /// The segment's first record, at the first byte behind the header.
    pub(crate) first_seq: Seq,
    /// The first record that is not in the span, and its offset.
    pub(crate) end_seq: Seq,
    pub(crate) end_offset: u64,
}

/// A payload whose transaction was not decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Undecided {
    /// The epoch in which it was logged.
    pub epoch: Epoch,
    /// The payload.
    pub id: PayloadId,
    /// How many chunks are in the log.
    pub chunks: u32,
}

struct IndexEntry {
    csn: Csn,
    seq: Seq,
    offset: u64,
}

struct Segment {
    number: SegmentNo,
    first_seq: Seq,
    first_csn: Csn,
    end_seq: Seq,
    end_offset: u64,
    index: Vec<IndexEntry>,
}

/// The log's table of contents, up to the last durable record.
pub(crate) struct Catalog {
    log_id: LogId,
    segments: VecDeque<Segment>,
    /// The first commit that can be read whole.
    first: Csn,
    end: Position,
    epoch: Epoch,
    /// Payloads of `epoch` whose transaction may still decide. Those of earlier epochs cannot.
    open: BTreeMap<PayloadId, PayloadPlace>,
    decided: BTreeMap<Csn, PayloadPlace>,
    /// Where the records of each epoch begin; the first entry is of the record before the oldest one that is kept.
    epochs: VecDeque<(Seq, Epoch)>,
    /// Where several nodes share the log: records from here on may be cut off again, and nobody reads them.
    settled: Option<Seq>,
    /// What was there before each of those.
    undo: VecDeque<Before>,
    /// The last record that will stay and behind which no transaction goes on, with the last commit up to it.
    clean: Option<(Seq, Csn)>,
}

/// What a record found that may be cut off again.
struct Before {
    at: Position,
    epoch: Epoch,
    first: Csn,
    /// If it changes them.
    open: Option<BTreeMap<PayloadId, PayloadPlace>>,
}

impl Catalog {
    /// The catalogue of a log whose oldest segment is `header`'s, and empty.
    pub(crate) fn new(header: &SegmentHeader) -> Catalog {
        let end = Position {
            segment: header.number,
            offset: SEGMENT_HEADER_LEN,
            seq: header.first_seq,
            csn: header.first_csn.previous(),
        };
        let mut catalog = Catalog {
            log_id: header.log_id,
            segments: VecDeque::new(),
            first: header.first_csn,
            end,
            epoch: header.epoch,
            open: BTreeMap::new(),
            decided: BTreeMap::new(),
            epochs: [(Seq(header.first_seq.0 - 1), header.epoch)].into(),
            settled: None,
            undo: VecDeque::new(),
            clean: header
                .shared
                .filter(|shared| shared.start == Start::Begins)
                .map(|_| (Seq(header.first_seq.0 - 1), header.first_csn.previous())),
        };
        catalog.add_segment(header);
        catalog
    }

    /// The next records go to a new segment.
    pub(crate) fn add_segment(&mut self, header: &SegmentHeader) {
        debug_assert_eq!((header.first_seq, header.first_csn.previous()), (self.end.seq, self.end.csn));
        self.end.segment = header.number;
        self.end.offset = SEGMENT_HEADER_LEN;
        self.raise_epoch(header.epoch);
        self.segments.push_back(Segment {
            number: header.number,
            first_seq: header.first_seq,
            first_csn: header.first_csn,
            end_seq: header.first_seq,
            end_offset: SEGMENT_HEADER_LEN,
            index: Vec::new(),
        });
    }

    /// The next record is durable in the last segment.
    pub(crate) fn add_record(&mut self, header: &FrameHeader) {
        debug_assert_eq!(header.seq, self.end.seq);
        self.note_before(header);
        self.raise_epoch(header.epoch);
        if self.epochs.back().is_none_or(|(_, epoch)| *epoch != header.epoch) {
            self.epochs.push_back((header.seq, header.epoch));
        }
        let place =
            PayloadPlace { segment: self.end.segment, offset: self.end.offset, seq: header.seq, chunks: 1 };
        match (header.kind, header.payload) {
            (Kind::PAYLOAD, Some(payload)) => {
                self.open
                    .entry(payload.id)
                    // A transaction of a run before this one may have used the same name in the same epoch.
                    .and_modify(|open| if payload.chunk == 0 { *open = place } else { open.chunks += 1 })
                    .or_insert(place);
            }
            (Kind::ABANDON, Some(payload)) => {
                self.open.remove(&payload.id);
            }
            (Kind::COMMIT, Some(payload)) => match self.open.remove(&payload.id) {
                Some(place) if place.chunks == payload.chunk => {
                    self.decided.insert(header.csn, place);
                }
                // Chunks were dropped with an earlier segment: the log can be read from the next commit on.
                _ if payload.chunk > 0 => self.first = header.csn.next(),
                _ => {}
            },
            _ => {}
        }
        let segment = self.segments.back_mut().expect("a catalogue always has a segment");
        if header.kind == Kind::COMMIT {
            let indexed_to = segment.index.last().map_or(SEGMENT_HEADER_LEN, |entry| entry.offset);
            if self.end.offset >= indexed_to + INDEX_STEP {
                segment.index.push(IndexEntry { csn: header.csn, seq: header.seq, offset: self.end.offset });
            }
            self.end.csn = header.csn;
        }
        self.end.seq = header.seq.next();
        self.end.offset += header.frame_len();
        (segment.end_seq, segment.end_offset) = (self.end.seq, self.end.offset);
        if self.open.is_empty() && self.settled.is_none_or(|settled| header.seq < settled) {
            self.clean = Some((header.seq, self.end.csn));
        }
    }

    fn note_before(&mut self, header: &FrameHeader) {
        if self.settled.is_some_and(|settled| header.seq >= settled) {
            let changes_open = header.payload.is_some() || header.epoch > self.epoch;
            let open = changes_open.then(|| self.open.clone());
            self.undo.push_back(Before { at: self.end, epoch: self.epoch, first: self.first, open });
        }
    }

    /// Several nodes share the log: records before `seq` will stay, later ones may be cut off.
    pub(crate) fn settle(&mut self, seq: Seq) {
        self.settled = self.settled.max(Some(seq));
        while self.undo.front().is_some_and(|before| before.at.seq < seq) {
            self.undo.pop_front();
        }
        let end = self.settled_end();
        if end.seq == seq && seq > Seq(1) && !self.is_settled_open() {
            self.clean = Some((Seq(seq.0 - 1), end.csn));
        }
    }

    /// The last record that will stay and behind which no transaction goes on, whether its chunks are here or were dropped;
    /// with the last commit up to it.
    pub(crate) fn clean(&self) -> Option<(Seq, Csn)> {
        self.clean.filter(|(_, csn)| csn.next() >= self.first)
    }

    /// Behind the last record that will stay.
    pub(crate) fn settled_end(&self) -> Position {
        self.undo.front().map_or(self.end, |before| before.at)
    }

    /// Whether a transaction has chunks among the records that will stay, and neither its commit nor its end.
    fn is_settled_open(&self) -> bool {
        let open = self.undo.iter().find_map(|before| before.open.as_ref());
        !open.unwrap_or(&self.open).is_empty()
    }

    /// The last commit before record `seq`, which is not settled, or the next one.
    pub(crate) fn csn_before(&self, seq: Seq) -> Option<Csn> {
        if seq == self.end.seq {
            return Some(self.end.csn);
        }
        let nth = seq.0.checked_sub(self.settled_end().seq.0)?;
        self.undo.get(nth as usize).map(|before| before.at.csn)
    }

    /// Takes record `seq`, which is not settled, and all behind it out. Returns the segments that are void now.
    pub(crate) fn cut_from(&mut self, seq: Seq) -> Vec<SegmentNo> {
        let nth = seq.0.saturating_sub(self.settled_end().seq.0) as usize;
        let mut cut = self.undo.split_off(nth.min(self.undo.len()));
        let Some(before) = cut.front() else { return Vec::new() };
        (self.end, self.epoch, self.first) = (before.at, before.epoch, before.first);
        let open = cut.iter_mut().find_map(|before| before.open.take());
        self.open = open.unwrap_or_else(|| std::mem::take(&mut self.open));
        drop(self.decided.split_off(&self.end.csn.next()));
        while self.epochs.back().is_some_and(|(from, _)| *from >= seq) {
            self.epochs.pop_back();
        }
        let behind = self.segments.partition_point(|segment| segment.number <= self.end.segment);
        let void = self.segments.drain(behind..).map(|segment| segment.number).collect();
        let last = self.segments.back_mut().expect("a catalogue always has a segment");
        (last.end_seq, last.end_offset) = (self.end.seq, self.end.offset);
        last.index.retain(|entry| entry.seq < seq);
        void
    }

    /// Takes the last segment out if it holds no record: the next one takes its place.
    pub(crate) fn take_empty_last(&mut self) -> Option<SegmentNo> {
        if !self.last_is_empty() || self.segments.len() < 2 {
            return None;
        }
        let taken = self.segments.pop_back()?;
        let last = self.segments.back().expect("a catalogue always has a segment");
        (self.end.segment, self.end.offset) = (last.number, last.end_offset);
        Some(taken.number)
    }

    /// All segments.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = SegmentNo> {
        self.segments.iter().map(|segment| segment.number)
    }

    /// The record before the oldest one that is kept, the last commit up to it, and its epoch.
    pub(crate) fn before(&self) -> (Seq, Csn, Epoch) {
        let oldest = &self.segments[0];
        let epoch = self.epochs.front().map_or(Epoch(0), |(_, epoch)| *epoch);
        (Seq(oldest.first_seq.0 - 1), oldest.first_csn.previous(), epoch)
    }

    /// The epoch of record `seq`.
    pub(crate) fn epoch_of(&self, seq: Seq) -> Epoch {
        let after = self.epochs.partition_point(|(from, _)| *from <= seq);
        self.epochs.get(after.saturating_sub(1)).map_or(Epoch(0), |(_, epoch)| *epoch)
    }

    /// Where the records of each epoch begin, up to the last durable one; the first entry is of the record before the
    /// oldest one that is kept.
    pub(crate) fn epochs(&self) -> impl Iterator<Item = (Seq, Epoch)> {
        self.epochs.iter().copied()
    }

    pub(crate) fn log_id(&self) -> LogId {
        self.log_id
    }

    pub(crate) fn stamp(&self, segment: SegmentNo) -> Stamp {
        Stamp::new(self.log_id, segment)
    }

    /// The first commit that can be read; `last + 1` if there is none.
    pub(crate) fn first(&self) -> Csn {
        self.first
    }

    /// Behind the last durable record.
    pub(crate) fn end(&self) -> Position {
        self.end
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn segments_len(&self) -> usize {
        self.segments.len()
    }

    /// Bytes of all segments up to their last record.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end_offset).sum()
    }

    /// The first commit of the oldest segment that takes, with all later ones, at most `bytes_max`. At least the last
    /// segment counts.
    pub(crate) fn oldest_within(&self, bytes_max: u64) -> Csn {
        let mut bytes = 0;
        let fitting = self.segments.iter().rev().take_while(|segment| {
            bytes += segment.end_offset;
            bytes <= bytes_max
        });
        let last = &self.segments[self.segments.len() - 1];
        fitting.last().unwrap_or(last).first_csn.max(self.first)
    }

    /// The argument to `truncate_before` that keeps a record, and as little before it as can be.
    pub(crate) fn keeping(&self, seq: Seq) -> Csn {
        let holding = self.segments.iter().rev().find(|segment| segment.first_seq <= seq);
        holding.map_or(self.first, |segment| segment.first_csn.max(self.first))
    }

    /// The oldest record that is kept, whatever its kind.
    pub(crate) fn first_seq(&self) -> Seq {
        self.segments.front().map_or(self.end.seq, |segment| segment.first_seq)
    }

    /// Whether the last segment holds no record yet.
    pub(crate) fn last_is_empty(&self) -> bool {
        self.end.offset == SEGMENT_HEADER_LEN
    }

    pub(crate) fn undecided(&self) -> Vec<Undecided> {
        let undecided = |(&id, place): (&PayloadId, &PayloadPlace)| Undecided {
            epoch: self.epoch,
            id,
            chunks: place.chunks,
        };
        self.open.iter().map(undecided).collect()
    }

    /// No transaction that is open now will ever decide: its process has ended.
    pub(crate) fn forget_undecided(&mut self) {
        self.open.clear();
    }

    /// Where reading has to start to see everything behind commit `target`, which is in the log or precedes it.
    pub(crate) fn place_before(&self, target: Csn) -> (SegmentNo, Seq, u64) {
        let behind = self.segments.partition_point(|segment| segment.first_csn <= target);
        let segment = &self.segments[behind.saturating_sub(1)];
        let entry = match segment.index.partition_point(|entry| entry.csn <= target) {
            0 => None,
            entries => segment.index.get(entries - 1),
        };
        entry.map_or((segment.number, segment.first_seq, SEGMENT_HEADER_LEN), |entry| {
            (segment.number, entry.seq, entry.offset)
        })
    }

    /// Where reading has to start to see record `seq` and all behind it; `None` if it is not here.
    pub(crate) fn place_of(&self, seq: Seq) -> Option<(SegmentNo, Seq, u64)> {
        let behind = self.segments.partition_point(|segment| segment.end_seq <= seq);
        let segment = self.segments.get(behind).filter(|segment| segment.first_seq <= seq)?;
        let entries = segment.index.partition_point(|entry| entry.seq <= seq);
        let entry = entries.checked_sub(1).and_then(|last| segment.index.get(last));
        Some(entry.map_or((segment.number, segment.first_seq, SEGMENT_HEADER_LEN), |entry| {
            (segment.number, entry.seq, entry.offset)
        }))
    }

    /// The segment that holds `seq`, or the first one behind it if it was dropped; `None` at the end of the log.
    pub(crate) fn span_from(&self, seq: Seq) -> Option<Span> {
        let behind = self.segments.partition_point(|segment| segment.end_seq <= seq);
        let segment = self.segments.get(behind)?;
        Some(Span {
            segment: segment.number,
            first_seq: segment.first_seq,
            end_seq: segment.end_seq,
            end_offset: segment.end_offset,
        })
    }

    /// Like [`Catalog::span_from`], but for records that will stay.
    pub(crate) fn settled_span_from(&self, seq: Seq) -> Option<Span> {
        let (span, end) = (self.span_from(seq)?, self.settled_end());
        match span {
            _ if span.first_seq.max(seq) >= end.seq => None,
            _ if span.end_seq <= end.seq => Some(span),
            _ => Some(Span { end_seq: end.seq, end_offset: end.offset, ..span }),
        }
    }

    /// Places, as near before `seq` as the index knows, from which each segment holds records at or behind `seq`;
    /// with the offset behind its last one.
    pub(crate) fn stretches_from(&self, seq: Seq) -> Vec<(SegmentNo, u64, u64)> {
        let stretch = |segment: &Segment| {
            let entries = segment.index.partition_point(|entry| entry.seq <= seq);
            let from = if entries == 0 { SEGMENT_HEADER_LEN } else { segment.index[entries - 1].offset };
            (segment.number, from, segment.end_offset)
        };
        self.segments.iter().filter(|segment| segment.end_seq > seq).map(stretch).collect()
    }

    pub(crate) fn payload_of(&self, csn: Csn) -> Option<PayloadPlace> {
        self.decided.get(&csn).copied()
    }

    /// Where the oldest payload starts whose transaction may still decide.
    pub(crate) fn oldest_open(&self) -> Option<SegmentNo> {
        self.open.values().map(|place| place.segment).min()
    }

    /// Drops the segments that nobody needs who needs no commit before `keep`; oldest first.
    ///
    /// A segment goes only with all before it, never if it is the last or holds the record `kept`, and never while a chunk in it belongs to a
    /// commit from `keep` on or to an open transaction. A commit before `keep` may stay behind without its chunks; the
    /// log can then be read from the one after it.
    pub(crate) fn truncate_before(&mut self, keep: Csn, kept: Option<Seq>) -> Vec<SegmentNo> {
        let decided = self.decided.range(keep..).map(|(_, place)| place.segment).min();
        let needed = decided.into_iter().chain(self.oldest_open()).min();
        let needed = needed.filter(|_| !planted(Bug::ForgetPayload));
        let behind = self.segments.partition_point(|segment| segment.first_csn <= keep);
        let unneeded =
            self.segments.partition_point(|segment| needed.is_none_or(|needed| segment.number <= needed));
        let holding = kept.map_or(self.segments.len(), |seq| {
            self.segments.partition_point(|segment| segment.first_seq <= seq)
        });
        let dropped_len = behind.min(unneeded).min(holding).saturating_sub(1);
        let dropped: Vec<SegmentNo> =
            self.segments.drain(..dropped_len).map(|segment| segment.number).collect();
        let kept = &self.segments[0];
        let halved = self.decided.iter().rev().find(|(_, place)| place.segment < kept.number);
        let readable = halved.map_or(kept.first_csn, |(csn, _)| csn.next().max(kept.first_csn));
        self.first = self.first.max(readable);
        self.decided = self.decided.split_off(&self.first);
        // What is dropped does not come back with what is cut off.
        self.undo.iter_mut().for_each(|before| before.first = before.first.max(readable));
        let before = Seq(self.segments[0].first_seq.0 - 1);
        while self.epochs.get(1).is_some_and(|(from, _)| *from <= before) {
            self.epochs.pop_front();
        }
        if let Some(oldest) = self.epochs.front_mut() {
            oldest.0 = oldest.0.max(before);
        }
        dropped
    }

    fn raise_epoch(&mut self, epoch: Epoch) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.open.clear();
        }
    }
}

/// The offset behind a frame without a body at `offset`.
pub(crate) fn behind_own_frame(offset: u64) -> u64 {
    offset + FRAME_HEADER_LEN as u64
}
