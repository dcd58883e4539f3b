//! Finds the bytes that can be forwarded without being read.
//!
//! Most of what a server sends is rows, and nobody between it and the client has to look at them. The scanner
//! runs over what was received, frame by frame but reading heads only, and says how many bytes can be forwarded
//! in one piece. It stops at the first frame that must be decoded. A frame above [`LARGE_LEN_MIN`] that needs no
//! reading is forwarded as it comes, so that a value of a gigabyte passes through a buffer of 64 KiB.

use crate::backend::tag;
use crate::errors::FrameError;
use crate::frame::{self, FRAME_LEN_MAX, HEAD_LEN, Head};

/// Bytes from which on a frame is forwarded in pieces. Below, a frame is forwarded only when it is complete, so
/// that a connection that is lost leaves the client between two messages.
pub const LARGE_LEN_MIN: usize = 64 * 1024;

/// A set of type bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagSet([u64; 4]);

impl TagSet {
    /// What a server sends that a relay need not read: rows, descriptions, COPY data, and the acknowledgements
    /// of the extended protocol.
    pub const BORING: TagSet = TagSet::of(&[
        tag::DATA_ROW,
        tag::COPY_DATA,
        tag::ROW_DESCRIPTION,
        tag::PARAMETER_DESCRIPTION,
        tag::NO_DATA,
        tag::PARSE_COMPLETE,
        tag::BIND_COMPLETE,
        tag::CLOSE_COMPLETE,
        tag::PORTAL_SUSPENDED,
    ]);

    /// The set of these tags.
    #[must_use]
    pub const fn of(tags: &[u8]) -> TagSet {
        let mut set = [0; 4];
        let mut i = 0;
        while i < tags.len() {
            set[(tags[i] >> 6) as usize] |= 1 << (tags[i] & 63);
            i += 1;
        }
        TagSet(set)
    }

    /// This set without these tags, which must be read after all.
    #[must_use]
    pub const fn without(self, tags: &[u8]) -> TagSet {
        let TagSet(mut set) = self;
        let TagSet(out) = TagSet::of(tags);
        let mut i = 0;
        while i < set.len() {
            set[i] &= !out[i];
            i += 1;
        }
        TagSet(set)
    }

    /// This set with these tags, which need not be read.
    #[must_use]
    pub const fn with(self, tags: &[u8]) -> TagSet {
        let (TagSet(mut set), TagSet(more)) = (self, TagSet::of(tags));
        let mut i = 0;
        while i < set.len() {
            set[i] |= more[i];
            i += 1;
        }
        TagSet(set)
    }

    /// Whether a tag is in the set.
    #[must_use]
    #[inline]
    pub const fn contains(&self, tag: u8) -> bool {
        self.0[(tag >> 6) as usize] >> (tag & 63) & 1 == 1
    }
}

/// What a scan has to remember until the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayState {
    /// Frames that need no reading. May be changed between scans.
    pub boring: TagSet,
    /// Bytes of the longest frame that is to be decoded, and therefore kept whole.
    pub decode_len_max: usize,
    /// Bytes of a large frame that are still to be forwarded.
    left: usize,
}

impl RelayState {
    /// A relay between two frames.
    #[must_use]
    pub fn new(boring: TagSet, decode_len_max: usize) -> RelayState {
        RelayState { boring, decode_len_max, left: 0 }
    }

    /// Bytes that are still missing of a large frame whose beginning was forwarded. While this is not 0, nothing
    /// else can be said to the receiver, not even an error.
    #[must_use]
    pub fn mid_frame(&self) -> usize {
        self.left
    }
}

/// What was found in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    /// Bytes at the start of the buffer that may be forwarded at once. They count as forwarded: remove them from
    /// the buffer before the next scan.
    pub pass: usize,
    /// What comes after them.
    pub next: Next,
}

/// What to do after forwarding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Decode the complete frame that follows, remove it from the buffer, and scan again.
    Decode(Head),
    /// Receive more: at least this many bytes, never 0, before another scan can find anything.
    Read(usize),
    /// Give the connection up: the length that follows is impossible, or that of a frame to be decoded is greater
    /// than [`RelayState::decode_len_max`].
    Fail(FrameError),
}

/// Scans what was received, beginning with the first byte that was not forwarded yet.
#[inline]
#[must_use]
pub fn scan(buf: &[u8], state: &mut RelayState) -> Scan {
    let mut pass = state.left.min(buf.len());
    state.left -= pass;
    if state.left > 0 {
        return Scan { pass, next: Next::Read(1) };
    }
    loop {
        let rest = &buf[pass..];
        let head = match frame::peek(rest, FRAME_LEN_MAX) {
            Ok(Some(head)) => head,
            Ok(None) => return Scan { pass, next: Next::Read(HEAD_LEN - rest.len()) },
            Err(error) => return Scan { pass, next: Next::Fail(error) },
        };
        if !state.boring.contains(head.tag) {
            return Scan { pass, next: to_decode(head, rest.len(), state.decode_len_max) };
        }
        if head.len > rest.len() {
            if head.len < LARGE_LEN_MIN {
                return Scan { pass, next: Next::Read(head.len - rest.len()) };
            }
            state.left = head.len - rest.len();
            return Scan { pass: buf.len(), next: Next::Read(1) };
        }
        pass += head.len;
    }
}

fn to_decode(head: Head, received: usize, max: usize) -> Next {
    if head.len > max {
        Next::Fail(FrameError::TooLong { tag: head.tag, len: head.len, max })
    } else if head.len > received {
        Next::Read(head.len - received)
    } else {
        Next::Decode(head)
    }
}

#[cfg(test)]
mod tests;
