//! Where one message ends and the next begins.
//!
//! Every message but a client's first packet is a type byte, a big-endian 32-bit length that counts itself but
//! not the type byte, and a body.

use crate::errors::FrameError;

/// Bytes of a type byte and a length.
pub const HEAD_LEN: usize = 5;

/// Bytes of the longest frame that the protocol can express, tag included.
pub const FRAME_LEN_MAX: usize = i32::MAX as usize + 1;

/// The first five bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Type of the message. What it means depends on who sent it.
    pub tag: u8,
    /// Bytes of the whole frame, tag and length included; at least [`HEAD_LEN`].
    pub len: usize,
}

/// Reads the head of the frame at the start of `buf`, which need not be complete. `None` while fewer than five
/// bytes are there.
///
/// # Errors
/// [`FrameError`] if the length is below 4, negative, or the frame would have more than `max` bytes.
#[inline]
pub fn peek(buf: &[u8], max: usize) -> Result<Option<Head>, FrameError> {
    let Some(&[tag, a, b, c, d]) = buf.first_chunk::<HEAD_LEN>() else { return Ok(None) };
    let declared = i32::from_be_bytes([a, b, c, d]);
    if declared < 4 {
        return Err(FrameError::TooShort { tag, declared });
    }
    let len = declared as usize + 1;
    if len > max {
        return Err(FrameError::TooLong { tag, len, max });
    }
    Ok(Some(Head { tag, len }))
}

/// One complete frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Type of the message.
    pub tag: u8,
    /// What follows the head.
    pub body: &'a [u8],
    /// Head and body, to be forwarded as they are.
    pub bytes: &'a [u8],
}

/// The complete frames at the start of a buffer, in order. Ends at the first incomplete one, and after an error.
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    rest: &'a [u8],
    consumed: usize,
    max: usize,
    failed: bool,
}

impl<'a> Frames<'a> {
    /// The frames of `buf`, none longer than `max` bytes.
    #[must_use]
    pub fn new(buf: &'a [u8], max: usize) -> Frames<'a> {
        Frames { rest: buf, consumed: 0, max, failed: false }
    }

    /// Bytes of the frames that were returned so far.
    #[must_use]
    pub fn consumed(&self) -> usize {
        self.consumed
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let head = match peek(self.rest, self.max) {
            Ok(head) => head?,
            Err(error) => {
                self.failed = true;
                return Some(Err(error));
            }
        };
        let (bytes, rest) = self.rest.split_at_checked(head.len)?;
        self.rest = rest;
        self.consumed += head.len;
        Some(Ok(Frame { tag: head.tag, body: &bytes[HEAD_LEN..], bytes }))
    }
}
