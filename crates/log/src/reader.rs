//! Reading durable records while others are appended: catch-up, recovery, new replicas. One window of memory a reader.

use std::io;

use bytes::Bytes;
use onecopy_core::Csn;
use thiserror::Error;

use crate::catalog::{PayloadPlace, Span};
use crate::engine::Engine;
use crate::medium::Medium;
use crate::record::{
    Defect, Entry, Kind, LogId, PayloadId, PayloadRef, Record, SEGMENT_HEADER_LEN, SegmentNo, Seq, Stamp,
};
use crate::scan::{Frame, Window};

/// Why records cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// They were dropped behind what everybody needs. A replica that needs them has to be copied anew.
    #[error(
        "commit {wanted} is no longer in the log, which begins with commit {first}; copy the replica anew"
    )]
    Truncated {
        /// What was asked for.
        wanted: Csn,
        /// The first that there is.
        first: Csn,
    },
    /// They were dropped while they were being read.
    #[error("record {seq} was dropped from the log while it was being read; copy the replica anew")]
    Dropped {
        /// The next record that would have been read.
        seq: Seq,
    },
    /// They are not durable yet, or never existed: then whoever asks holds another log's history.
    #[error("commit {wanted} is not in the log, which ends with commit {last}")]
    Beyond {
        /// What was asked for.
        wanted: Csn,
        /// The last durable commit.
        last: Csn,
    },
    /// The commit has no payload.
    #[error("commit {0} names no payload in the log")]
    NoPayload(Csn),
    /// The device failed.
    #[error("read commit log segment {}: {error}", .segment.file_name())]
    Read {
        /// Which segment.
        segment: SegmentNo,
        /// What the device said.
        error: io::Error,
    },
    /// A durable record cannot be read.
    #[error("the commit log is damaged: {defect} (segment {}, byte {offset}, record {seq})", .segment.file_name())]
    Damaged {
        /// Where.
        segment: SegmentNo,
        /// The record's place in the file, in bytes.
        offset: u64,
        /// The record.
        seq: Seq,
        /// What is wrong.
        defect: Defect,
    },
}

/// Reads records in order from a medium, as far as an engine says that they are durable.
pub struct Records<M> {
    walk: Walk<M>,
    /// Everything up to this commit is passed over.
    behind: Csn,
}

impl<M: Medium> Records<M> {
    /// All records behind commit `csn - 1`, commit `csn` included, but payload chunks: those come from
    /// [`Payload::of`].
    ///
    /// # Errors
    /// [`ReadError::Truncated`] or [`ReadError::Beyond`]. `csn` may be one more than the last durable commit.
    pub fn from(csn: Csn, engine: &Engine, medium: M) -> Result<Records<M>, ReadError> {
        let (segment, seq, offset) = engine.locate(csn)?;
        let walk = Walk::new(engine.log_id(), medium, segment, seq, offset);
        Ok(Records { walk, behind: csn.previous() })
    }

    /// The next record; `None` at the end of what is durable. May be called again when more is.
    ///
    /// # Errors
    /// [`ReadError::Dropped`], [`ReadError::Read`] or [`ReadError::Damaged`]; the next call tries the same record again.
    pub fn next(&mut self, engine: &Engine) -> Result<Option<Entry>, ReadError> {
        self.next_with(|seq| engine.span_from(seq))
    }

    pub(crate) fn next_with(
        &mut self,
        spans: impl Fn(Seq) -> Option<Span>,
    ) -> Result<Option<Entry>, ReadError> {
        while let Some(frame) = self.walk.next(&spans)? {
            let header = frame.header;
            let passed = match header.kind {
                Kind::PAYLOAD => true,
                Kind::COMMIT => header.csn <= self.behind,
                _ => header.csn < self.behind,
            };
            if !passed {
                return Ok(Some(entry(&frame)));
            }
        }
        Ok(None)
    }
}

/// Reads the chunks of a decided payload in order.
pub struct Payload<M> {
    walk: Walk<M>,
    id: PayloadId,
    next: u32,
    chunks: u32,
}

impl<M: Medium> Payload<M> {
    /// The chunks that `commit` decides.
    ///
    /// # Errors
    /// [`ReadError::NoPayload`] if it names none, or was dropped from the log.
    pub fn of(commit: &Record, engine: &Engine, medium: M) -> Result<Payload<M>, ReadError> {
        let missing = ReadError::NoPayload(commit.csn);
        let (Kind::COMMIT, Some(payload)) = (commit.kind, commit.payload) else {
            return Err(missing);
        };
        let place = engine.payload_of(commit.csn).ok_or(missing)?;
        Ok(Payload::at(place, payload, engine.log_id(), medium))
    }

    pub(crate) fn at(place: PayloadPlace, payload: PayloadRef, log_id: LogId, medium: M) -> Payload<M> {
        let walk = Walk::new(log_id, medium, place.segment, place.seq, place.offset);
        Payload { walk, id: payload.id, next: 0, chunks: place.chunks }
    }

    /// The next chunk's body; `None` behind the last.
    ///
    /// # Errors
    /// As for [`Records::next`].
    pub fn next(&mut self, engine: &Engine) -> Result<Option<Bytes>, ReadError> {
        self.next_with(|seq| engine.span_from(seq))
    }

    pub(crate) fn next_with(
        &mut self,
        spans: impl Fn(Seq) -> Option<Span>,
    ) -> Result<Option<Bytes>, ReadError> {
        if self.next == self.chunks {
            return Ok(None);
        }
        let wanted = Some(PayloadRef { id: self.id, chunk: self.next });
        while let Some(frame) = self.walk.next(&spans)? {
            let header = frame.header;
            // Epochs never fall, so a chunk of that name behind the first one is of the same epoch.
            if header.kind == Kind::PAYLOAD && header.payload == wanted {
                self.next += 1;
                return Ok(Some(Bytes::copy_from_slice(frame.body)));
            }
        }
        // Its commit is durable, and stands behind all its chunks.
        Err(self.walk.damaged(Defect::Missing))
    }
}

/// Reads records of whatever kind, also such as may be cut off again: for other nodes.
pub(crate) struct Ordered<M> {
    walk: Walk<M>,
    from: Seq,
}

impl<M: Medium> Ordered<M> {
    /// From record `from` on.
    pub(crate) fn from(from: Seq, engine: &Engine, medium: M) -> Result<Ordered<M>, ReadError> {
        let (segment, seq, offset) = engine.place_of(from).ok_or(ReadError::Dropped { seq: from })?;
        let walk = Walk::new(engine.log_id(), medium, segment, seq, offset);
        Ok(Ordered { walk, from })
    }

    /// Those before `to`: at most `bytes_max` bytes of them, but at least one.
    pub(crate) fn read_with(
        mut self,
        to: Seq,
        bytes_max: u64,
        spans: impl Fn(Seq) -> Option<Span>,
    ) -> Result<Vec<Entry>, ReadError> {
        let (mut read, mut bytes) = (Vec::new(), 0);
        while self.walk.seq < to
            && let Some(frame) = self.walk.next(&spans)?
        {
            if frame.header.seq < self.from {
                continue;
            }
            bytes += frame.header.frame_len();
            if bytes > bytes_max && !read.is_empty() {
                break;
            }
            read.push(entry(&frame));
        }
        Ok(read)
    }
}

/// From frame to frame, across segments.
struct Walk<M> {
    log_id: LogId,
    medium: M,
    window: Window,
    segment: SegmentNo,
    stamp: Stamp,
    seq: Seq,
    offset: u64,
    end_seq: Seq,
    end_offset: u64,
}

impl<M: Medium> Walk<M> {
    fn new(log_id: LogId, medium: M, segment: SegmentNo, seq: Seq, offset: u64) -> Walk<M> {
        let stamp = Stamp::new(log_id, segment);
        let window = Window::new();
        Walk { log_id, medium, window, segment, stamp, seq, offset, end_seq: seq, end_offset: offset }
    }

    /// The next frame. What is durable is asked for again only when all that was durable before has been read.
    fn next(&mut self, spans: impl Fn(Seq) -> Option<Span>) -> Result<Option<Frame<'_>>, ReadError> {
        if self.seq == self.end_seq {
            let Some(span) = spans(self.seq) else {
                return Ok(None);
            };
            self.enter(&span)?;
        }
        let (segment, seq, offset) = (self.segment, self.seq, self.offset);
        let damaged = |defect| ReadError::Damaged { segment, offset, seq, defect };
        let read = self.window.frame(&mut self.medium, segment, self.stamp, offset, self.end_offset);
        let frame = match read.map_err(|error| read_error(segment, seq, error))? {
            Ok(Some(frame)) if frame.header.seq == seq => frame,
            Ok(Some(frame)) => return Err(damaged(Defect::Place { expected: seq, found: frame.header.seq })),
            Ok(None) => return Err(damaged(Defect::Missing)),
            Err(defect) => return Err(damaged(defect)),
        };
        self.seq = seq.next();
        self.offset += frame.header.frame_len();
        Ok(Some(frame))
    }

    fn enter(&mut self, span: &Span) -> Result<(), ReadError> {
        if span.segment != self.segment {
            if span.first_seq != self.seq {
                return Err(ReadError::Dropped { seq: self.seq });
            }
            self.segment = span.segment;
            self.stamp = Stamp::new(self.log_id, span.segment);
            self.offset = SEGMENT_HEADER_LEN;
        }
        (self.end_seq, self.end_offset) = (span.end_seq, span.end_offset);
        Ok(())
    }

    fn damaged(&self, defect: Defect) -> ReadError {
        ReadError::Damaged { segment: self.segment, offset: self.offset, seq: self.seq, defect }
    }
}

fn read_error(segment: SegmentNo, seq: Seq, error: io::Error) -> ReadError {
    if error.kind() == io::ErrorKind::NotFound {
        return ReadError::Dropped { seq };
    }
    ReadError::Read { segment, error }
}

fn entry(frame: &Frame<'_>) -> Entry {
    let header = &frame.header;
    Entry {
        seq: header.seq,
        record: Record {
            kind: header.kind,
            epoch: header.epoch,
            csn: header.csn,
            payload: header.payload,
            body: Bytes::copy_from_slice(frame.body),
        },
    }
}
