//! Looking at a log without touching it: which segments there are, every record, and what is damaged.
//!
//! Works on any [`Medium`]; for a folder, [`crate::Files`]. No lock is needed. While another process writes the log, its
//! end may look unfinished.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};

use crate::medium::{Medium, read_header};
use crate::record::{
    Defect, HeaderDefect, Kind, LogId, PayloadRef, SEGMENT_HEADER_LEN, SegmentHeader, SegmentNo, Seq, Stamp,
};
use crate::recover::{RecoverError, Tail, live_segments, read_headers, recover};
use crate::scan::{Window, next_header};

/// One segment, as [`segments`] finds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentReport {
    /// Its number; `number.file_name()` is its file.
    pub number: SegmentNo,
    /// Length of its file, in bytes.
    pub file_len: u64,
    /// Its header, or what is wrong with it; without it, nothing more is known of the segment.
    pub header: Result<SegmentHeader, HeaderDefect>,
    /// Whole records in it, of whatever kind, damaged places passed over.
    pub records: u64,
    /// Commits among them.
    pub commits: u64,
    /// The first and the last of those.
    pub csns: Option<(Csn, Csn)>,
    /// Places where bytes that are not zero are no frame. One at the very end may be an unfinished write.
    pub damaged: u64,
    /// Offset behind the last whole frame.
    pub used_len: u64,
}

/// One thing found in a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// A frame with matching checksums.
    Frame(FrameReport),
    /// Bytes that should be a frame and are not, up to the next frame or the end of the file.
    Damage {
        /// The first byte.
        offset: u64,
        /// Behind the last byte.
        to: u64,
        /// What is wrong there.
        defect: Defect,
    },
}

/// One frame of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrameReport {
    /// Where it is, in bytes from the beginning of the file.
    pub offset: u64,
    /// Its length with header and padding, in bytes.
    pub len: u64,
    /// The record's place in the log. A mark or a seal has that of the record that would follow.
    pub seq: Seq,
    /// Every record before this one was on stable storage when the frame was written.
    pub synced: Seq,
    /// What it is.
    pub kind: Kind,
    /// Its CSN, or that of the commit before it.
    pub csn: Csn,
    /// Its epoch.
    pub epoch: Epoch,
    /// The payload that it adds to, decides or abandons.
    pub payload: Option<PayloadRef>,
    /// Its body.
    pub body: Bytes,
}

/// What [`verify`] says of a log.
#[derive(Debug)]
pub struct Verdict {
    /// Every segment, oldest first.
    pub segments: Vec<SegmentReport>,
    /// Whether the log can be opened as it is, and what it would hold; `None` if there is no log.
    pub outcome: Result<Option<Holding>, RecoverError>,
}

impl Verdict {
    /// Whether nothing that was durable is damaged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.outcome.is_ok()
    }
}

/// What a log holds that can be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    /// Its name.
    pub log_id: LogId,
    /// The highest epoch of any record.
    pub epoch: Epoch,
    /// The first commit that can be read.
    pub first: Csn,
    /// The last commit.
    pub last: Csn,
    /// Records of whatever kind.
    pub records: u64,
    /// Its unfinished end, if there is one.
    pub tail: Option<Tail>,
}

/// Reads everything and judges it as a start would.
///
/// # Errors
/// What the device says. Damage is no error here: it is in the verdict.
pub fn verify<M: Medium>(medium: &mut M) -> io::Result<Verdict> {
    let segments = segments(medium)?;
    let holding = |recovery: crate::Recovery| Holding {
        log_id: recovery.log_id(),
        epoch: recovery.epoch(),
        first: recovery.first(),
        last: recovery.end().csn,
        records: recovery.records(),
        tail: recovery.tail,
    };
    let outcome = recover(medium).map(|found| found.map(holding));
    Ok(Verdict { segments, outcome })
}

/// Like [`verify`], for a log that may be written to meanwhile: a verdict that finds damage counts only when another look
/// finds the same, since what was half written or being dropped at the first is whole or gone at the second.
///
/// # Errors
/// What the device says, more than once where that is a segment that was dropped.
pub fn verify_while_written<M: Medium>(medium: &mut M) -> io::Result<Verdict> {
    let mut before: Option<String> = None;
    for _ in 0..LOOKS_MAX {
        let verdict = match verify(medium) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let Err(error) = &verdict.outcome else { return Ok(verdict) };
        let error = error.to_string();
        if before.as_ref() == Some(&error) {
            return Ok(verdict);
        }
        before = Some(error);
    }
    verify(medium)
}

/// Looks at a log that changes so fast that no two of them agree: where segments are short and the machine is busy, each may find that another one has
/// been begun since it was listed. What is damaged is so at each look, so the second one tells.
const LOOKS_MAX: usize = 100;

/// Every segment, oldest first, with the sums of what [`frames`] finds in it.
///
/// # Errors
/// What the device says.
pub fn segments<M: Medium>(medium: &mut M) -> io::Result<Vec<SegmentReport>> {
    let mut numbers = medium.segments()?;
    numbers.sort_unstable();
    numbers.into_iter().map(|number| segment(medium, number)).collect()
}

fn segment<M: Medium>(medium: &mut M, number: SegmentNo) -> io::Result<SegmentReport> {
    let file_len = medium.len(number)?;
    let header = SegmentHeader::decode(&read_header(medium, number)?, number);
    let mut report = SegmentReport {
        number,
        file_len,
        header,
        records: 0,
        commits: 0,
        csns: None,
        damaged: 0,
        used_len: file_len.min(SEGMENT_HEADER_LEN),
    };
    let Ok(mut frames) = frames(medium, number)? else {
        return Ok(report);
    };
    while let Some(found) = frames.next().transpose()? {
        match found {
            Found::Damage { .. } => report.damaged += 1,
            Found::Frame(frame) => {
                report.used_len = frame.offset + frame.len;
                report.records += u64::from(frame.kind.is_appendable());
                if frame.kind == Kind::COMMIT {
                    report.commits += 1;
                    report.csns = Some((report.csns.map_or(frame.csn, |(first, _)| first), frame.csn));
                }
            }
        }
    }
    Ok(report)
}

/// Goes through one segment. Behind a damaged place it goes on with the next frame that is whole.
///
/// # Errors
/// What the device says; inside, what is wrong with the segment's header, without which no frame can be verified.
pub fn frames<M: Medium>(medium: M, segment: SegmentNo) -> io::Result<Result<Frames<M>, HeaderDefect>> {
    let mut medium = medium;
    let end = medium.len(segment)?;
    let header = SegmentHeader::decode(&read_header(&mut medium, segment)?, segment);
    Ok(header.map(|header| {
        let mut frames = Frames::nowhere(medium);
        frames.at_start_of(&header, end);
        frames
    }))
}

/// All that counts, from the oldest record that is kept to the last: frames of segments that another one has made void are
/// left out. Stops at nothing that is damaged but a header.
///
/// # Errors
/// What the device says, and which segment's header cannot be used.
pub fn history<M: Medium>(medium: M) -> Result<History<M>, RecoverError> {
    let mut medium = medium;
    let mut numbers = medium.segments().map_err(RecoverError::List)?;
    numbers.sort_unstable();
    let live = live_segments(&read_headers(&mut medium, &numbers)?).into();
    let frames = Frames::nowhere(medium);
    Ok(History { frames, is_inside: false, live })
}

/// See [`history`].
pub struct History<M> {
    frames: Frames<M>,
    is_inside: bool,
    /// Those that were not begun.
    live: VecDeque<SegmentHeader>,
}

impl<M: Medium> History<M> {
    /// Whether what was found last is in the last segment.
    #[must_use]
    pub fn is_in_last_segment(&self) -> bool {
        self.live.is_empty()
    }

    fn try_next(&mut self) -> io::Result<Option<(SegmentNo, Found)>> {
        loop {
            if !self.is_inside {
                let Some(header) = self.live.pop_front() else { return Ok(None) };
                self.frames.enter(&header)?;
                self.is_inside = true;
            }
            let next_seq = self.live.front().map(|next| next.first_seq);
            match self.frames.try_next()? {
                // From its first place on, the next segment speaks.
                Some(Found::Frame(frame)) if next_seq.is_some_and(|next| next <= frame.seq) => {}
                Some(found) => return Ok(Some((self.frames.segment, found))),
                None => {}
            }
            self.is_inside = false;
        }
    }
}

impl<M: Medium> Iterator for History<M> {
    type Item = io::Result<(SegmentNo, Found)>;

    fn next(&mut self) -> Option<io::Result<(SegmentNo, Found)>> {
        self.try_next().transpose()
    }
}

/// The frames of one segment, in order; see [`frames`].
pub struct Frames<M> {
    medium: M,
    window: Window,
    stamp: Stamp,
    segment: SegmentNo,
    offset: u64,
    end: u64,
}

impl<M: Medium> Frames<M> {
    fn nowhere(medium: M) -> Frames<M> {
        let (segment, window) = (SegmentNo(0), Window::new());
        Frames { medium, window, stamp: Stamp::new(LogId(0), segment), segment, offset: 0, end: 0 }
    }

    fn enter(&mut self, header: &SegmentHeader) -> io::Result<()> {
        let end = self.medium.len(header.number)?;
        self.at_start_of(header, end);
        Ok(())
    }

    fn at_start_of(&mut self, header: &SegmentHeader, end: u64) {
        self.segment = header.number;
        self.stamp = Stamp::new(header.log_id, header.number);
        (self.offset, self.end) = (SEGMENT_HEADER_LEN, end);
    }

    fn try_next(&mut self) -> io::Result<Option<Found>> {
        let offset = self.offset;
        let read = self.window.frame(&mut self.medium, self.segment, self.stamp, offset, self.end)?;
        let defect = match read {
            Ok(Some(frame)) => {
                let header = frame.header;
                // What a later segment has cut off may still stand behind a seal.
                self.offset = if header.kind == Kind::SEAL { self.end } else { offset + header.frame_len() };
                return Ok(Some(Found::Frame(FrameReport {
                    offset,
                    len: header.frame_len(),
                    seq: header.seq,
                    synced: header.synced,
                    kind: header.kind,
                    csn: header.csn,
                    epoch: header.epoch,
                    payload: header.payload,
                    body: Bytes::copy_from_slice(frame.body),
                })));
            }
            Ok(None) => Defect::Missing,
            Err(defect) => defect,
        };
        self.pass_damage(offset, defect)
    }

    /// Looks for the next frame. Zeros up to the end of the file are what a segment ends with, not damage.
    fn pass_damage(&mut self, from: u64, defect: Defect) -> io::Result<Option<Found>> {
        let next = next_header(&mut self.medium, self.segment, self.stamp, from + crate::record::ALIGN)?;
        self.offset = next.unwrap_or(self.end);
        if next.is_none() && defect == Defect::Missing && self.only_zeros(from)? {
            return Ok(None);
        }
        Ok(Some(Found::Damage { offset: from, to: self.offset, defect }))
    }

    fn only_zeros(&mut self, from: u64) -> io::Result<bool> {
        let mut at = from;
        let mut piece = vec![0; 64 << 10];
        while at < self.end {
            let len = self.medium.read_at(self.segment, at, &mut piece)?;
            if len == 0 {
                break;
            }
            if piece[..len].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }
}

impl<M: Medium> Iterator for Frames<M> {
    type Item = io::Result<Found>;

    fn next(&mut self) -> Option<io::Result<Found>> {
        self.try_next().transpose()
    }
}
