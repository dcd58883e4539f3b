//! Reading frames one after the other, and looking for them behind damage.

use std::io;
use std::ops::ControlFlow;

use crate::medium::Medium;
use crate::record::{ALIGN, Defect, FRAME_HEADER_LEN, FrameHeader, SegmentNo, Seq, Stamp, decode_header};

/// Bytes read at once: enough for the device to work well, little enough for many readers.
const WINDOW_LEN: u64 = 256 << 10;

/// A part of a segment in memory, moved forward as reading goes on. Holds at most [`WINDOW_LEN`] bytes or one frame.
pub(crate) struct Window {
    segment: SegmentNo,
    start: u64,
    bytes: Vec<u8>,
}

/// A frame whose checksums were verified.
pub(crate) struct Frame<'w> {
    pub(crate) header: FrameHeader,
    pub(crate) body: &'w [u8],
}

impl Window {
    pub(crate) fn new() -> Window {
        Window { segment: SegmentNo(0), start: 0, bytes: Vec::new() }
    }

    /// The `len` bytes at `offset`, fewer if `end` or the end of the file comes first. Reads nothing behind `end`:
    /// what lies there may still change.
    fn bytes<M: Medium>(
        &mut self,
        medium: &mut M,
        segment: SegmentNo,
        offset: u64,
        len: u64,
        end: u64,
    ) -> io::Result<&[u8]> {
        let wanted_end = (offset + len).min(end).max(offset);
        let held = segment == self.segment
            && offset >= self.start
            && wanted_end <= self.start + self.bytes.len() as u64;
        if !held {
            let read_len = len.max(WINDOW_LEN).min(end.saturating_sub(offset)) as usize;
            self.bytes.resize(read_len, 0);
            (self.segment, self.start) = (segment, offset);
            let read = medium.read_at(segment, offset, &mut self.bytes);
            self.bytes.truncate(*read.as_ref().unwrap_or(&0));
            read?;
        }
        let from = (offset - self.start) as usize;
        let to = (from + len as usize).min(self.bytes.len());
        Ok(&self.bytes[from.min(to)..to])
    }

    /// The frame at `offset`; `None` if there is none, because the segment ends or only zeros are there.
    pub(crate) fn frame<M: Medium>(
        &mut self,
        medium: &mut M,
        segment: SegmentNo,
        stamp: Stamp,
        offset: u64,
        end: u64,
    ) -> io::Result<Result<Option<Frame<'_>>, Defect>> {
        let head = self.bytes(medium, segment, offset, FRAME_HEADER_LEN as u64, end)?;
        if head.iter().all(|&byte| byte == 0) {
            return Ok(Ok(None));
        }
        if head.len() < FRAME_HEADER_LEN {
            return Ok(Err(Defect::HeaderCut));
        }
        let Some(header) = decode_header(head, stamp) else {
            return Ok(Err(Defect::Header));
        };
        let frame = self.bytes(medium, segment, offset, header.frame_len(), end)?;
        if (frame.len() as u64) < header.frame_len() {
            return Ok(Err(Defect::BodyCut));
        }
        let padded_body = &frame[FRAME_HEADER_LEN..];
        if !header.body_matches(padded_body) {
            return Ok(Err(Defect::Body));
        }
        let body = &padded_body[..header.body_len as usize];
        Ok(Ok(Some(Frame { header, body })))
    }
}

/// What lies behind the last record that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Remains {
    /// The first header that says that records from `seq` on were on stable storage: offset and place.
    pub(crate) proof: Option<(u64, Seq)>,
    /// Whole headers of records at or behind `seq`.
    pub(crate) headers: u64,
    /// Offset behind the last byte that is not zero; the start of the search if all are.
    pub(crate) used_to: u64,
}

/// Looks for headers at and behind `offset`, where record `seq` should be.
///
/// A group of records is written only after the group before it was synced, and every header says how far the log
/// was on stable storage when it was written. So a header that says "synced beyond `seq`" proves that `seq` was
/// synced and is now damaged; without one, what lies here belongs to the last group, which nobody was told about.
pub(crate) fn search<M: Medium>(
    medium: &mut M,
    segment: SegmentNo,
    stamp: Stamp,
    offset: u64,
    seq: Seq,
) -> io::Result<Remains> {
    let mut remains = Remains::default();
    remains.used_to = visit_headers(medium, segment, stamp, offset, |at, header| {
        if header.seq >= seq {
            remains.headers += u64::from(header.kind.is_appendable());
            if header.synced > seq && remains.proof.is_none() {
                remains.proof = Some((at, header.seq));
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(remains)
}

/// The offset of the next whole header at or behind `offset`.
pub(crate) fn next_header<M: Medium>(
    medium: &mut M,
    segment: SegmentNo,
    stamp: Stamp,
    offset: u64,
) -> io::Result<Option<u64>> {
    let mut found = None;
    visit_headers(medium, segment, stamp, offset, |at, _| {
        found = Some(at);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Shows every whole header at or behind `offset`, wherever frames can begin. Returns the offset behind the last byte
/// that is not zero, as far as it went.
fn visit_headers<M: Medium>(
    medium: &mut M,
    segment: SegmentNo,
    stamp: Stamp,
    offset: u64,
    mut visit: impl FnMut(u64, &FrameHeader) -> ControlFlow<()>,
) -> io::Result<u64> {
    let end = medium.len(segment)?;
    let mut window = Window::new();
    let mut used_to = offset;
    let mut at = offset;
    while at < end {
        let bytes = window.bytes(medium, segment, at, WINDOW_LEN, end)?;
        let Some(last) = bytes.len().checked_sub(1) else { break };
        if let Some(last_used) = bytes.iter().rposition(|&byte| byte != 0) {
            used_to = at + last_used as u64 + 1;
            for from in (0..=last_used).step_by(ALIGN as usize) {
                let head = bytes.get(from..from + FRAME_HEADER_LEN);
                let Some(header) = head.and_then(|head| decode_header(head, stamp)) else { continue };
                if visit(at + from as u64, &header).is_break() {
                    return Ok(used_to);
                }
            }
        }
        // A header may lie across the end of what was read: the next piece begins where the first such one would.
        let read_len = last as u64 + 1;
        let across = FRAME_HEADER_LEN as u64 - ALIGN;
        at += if at + read_len < end {
            (read_len / ALIGN * ALIGN).saturating_sub(across).max(ALIGN)
        } else {
            read_len
        };
    }
    Ok(used_to)
}
