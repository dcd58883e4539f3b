//! Reads fields from a body. Nothing is read that is not there, and every refusal names message and field.

use crate::errors::{Malformed, Side, WireError};

pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    side: Side,
    message: &'static str,
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(body: &'a [u8], side: Side, message: &'static str) -> Reader<'a> {
        Reader { rest: body, side, message }
    }

    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn bytes(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.truncated(len, field)),
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        match self.rest.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(*taken)
            }
            None => Err(self.truncated(N, field)),
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, WireError> {
        self.array(field).map(i32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i64(&mut self, field: &'static str) -> Result<i64, WireError> {
        self.array(field).map(i64::from_be_bytes)
    }

    /// A string up to its zero byte, which is consumed and not returned.
    #[inline]
    pub(crate) fn cstr(&mut self, field: &'static str) -> Result<&'a [u8], WireError> {
        match memchr::memchr(0, self.rest) {
            Some(end) => {
                let text = &self.rest[..end];
                self.rest = &self.rest[end + 1..];
                Ok(text)
            }
            None => Err(self.blame(Malformed::Unterminated { message: self.message, field })),
        }
    }

    /// Like [`Reader::cstr`], and UTF-8.
    #[inline]
    pub(crate) fn str(&mut self, field: &'static str) -> Result<&'a str, WireError> {
        let text = self.cstr(field)?;
        std::str::from_utf8(text).map_err(|error| {
            self.blame(Malformed::NotUtf8 { message: self.message, field, at: error.valid_up_to() })
        })
    }

    /// A value with its length before it; the length -1 is NULL, any other negative one is refused.
    #[inline]
    pub(crate) fn value(&mut self, field: &'static str) -> Result<Option<&'a [u8]>, WireError> {
        match self.i32(field)? {
            -1 => Ok(None),
            len => match usize::try_from(len) {
                Ok(len) => self.bytes(len, field).map(Some),
                Err(_) => Err(self.invalid("the length of a value", i64::from(len))),
            },
        }
    }

    /// Refuses whatever is left.
    #[inline]
    pub(crate) fn finish(self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.blame(Malformed::TrailingBytes { message: self.message, left: self.rest.len() }))
    }

    #[cold]
    pub(crate) fn invalid(&self, field: &'static str, value: i64) -> WireError {
        self.blame(Malformed::Value { message: self.message, field, value })
    }

    #[cold]
    pub(crate) fn blame(&self, what: Malformed) -> WireError {
        self.side.blame(what)
    }

    #[cold]
    fn truncated(&self, needed: usize, field: &'static str) -> WireError {
        self.blame(Malformed::Truncated { message: self.message, field, needed, left: self.rest.len() })
    }
}
