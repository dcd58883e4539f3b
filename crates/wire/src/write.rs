//! Appends frames to a buffer. A frame that cannot be built leaves the buffer as it was.

use bytes::{BufMut, BytesMut};

use crate::errors::{BuildError, WireError};
use crate::frame::HEAD_LEN;

/// Bytes of the longest text that [`put_text`] sends.
pub(crate) const TEXT_LEN_MAX: usize = 64 * 1024;

/// One frame whose body `fill` appends; the length is put in afterwards.
#[inline]
pub(crate) fn frame(
    out: &mut BytesMut,
    tag: u8,
    message: &'static str,
    fill: impl FnOnce(&mut BytesMut) -> Result<(), BuildError>,
) -> Result<(), WireError> {
    let start = out.len();
    out.extend_from_slice(&[tag, 0, 0, 0, 0]);
    let filled = fill(out).and_then(|()| {
        let len = out.len() - start - 1;
        i32::try_from(len).map_err(|_| too_long(message, len))
    });
    match filled {
        Ok(len) => {
            out[start + 1..start + HEAD_LEN].copy_from_slice(&len.to_be_bytes());
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error.into())
        }
    }
}

/// One frame whose body is `body`. The callers' bodies have a few bytes, so the length cannot overflow.
#[inline]
pub(crate) fn fixed<const N: usize>(out: &mut BytesMut, tag: u8, body: [u8; N]) {
    let [a, b, c, d] = (N as u32 + 4).to_be_bytes();
    out.reserve(HEAD_LEN + N);
    out.extend_from_slice(&[tag, a, b, c, d]);
    out.extend_from_slice(&body);
}

/// One frame whose body `fill` appends and which is short by construction: fixed fields and a bounded number
/// of [`put_text`].
pub(crate) fn short(out: &mut BytesMut, tag: u8, fill: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.extend_from_slice(&[tag, 0, 0, 0, 0]);
    fill(out);
    let len = (out.len() - start - 1) as u32;
    out[start + 1..start + HEAD_LEN].copy_from_slice(&len.to_be_bytes());
}

/// A string and its terminator.
#[inline]
pub(crate) fn put_cstr(
    out: &mut BytesMut,
    text: &str,
    message: &'static str,
    field: &'static str,
) -> Result<(), BuildError> {
    if memchr::memchr(0, text.as_bytes()).is_some() {
        return Err(BuildError::ZeroByte { message, field });
    }
    out.reserve(text.len() + 1);
    out.extend_from_slice(text.as_bytes());
    out.put_u8(0);
    Ok(())
}

/// A text for people and its terminator; cut before a zero byte and at [`TEXT_LEN_MAX`] bytes, because a report
/// that is cut is worth more than none.
pub(crate) fn put_text(out: &mut BytesMut, text: &str) {
    let mut end = text.len().min(TEXT_LEN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let end = memchr::memchr(0, &text.as_bytes()[..end]).unwrap_or(end);
    out.extend_from_slice(&text.as_bytes()[..end]);
    out.put_u8(0);
}

/// A 16-bit count, and as many elements as `each` appends.
#[inline]
pub(crate) fn put_counted<T>(
    out: &mut BytesMut,
    items: impl IntoIterator<Item = T>,
    message: &'static str,
    field: &'static str,
    mut each: impl FnMut(&mut BytesMut, T) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    let at = out.len();
    out.extend_from_slice(&[0, 0]);
    let mut count = 0_usize;
    for item in items {
        each(out, item)?;
        count += 1;
        if count > usize::from(u16::MAX) {
            return Err(BuildError::Count { message, field, count });
        }
    }
    out[at..at + 2].copy_from_slice(&(count as u16).to_be_bytes());
    Ok(())
}

/// A value with its length before it; NULL is the length -1.
#[inline]
pub(crate) fn put_value(
    out: &mut BytesMut,
    value: Option<&[u8]>,
    message: &'static str,
) -> Result<(), BuildError> {
    let Some(value) = value else {
        out.extend_from_slice(&(-1_i32).to_be_bytes());
        return Ok(());
    };
    let len = i32::try_from(value.len()).map_err(|_| too_long(message, value.len()))?;
    out.reserve(4 + value.len());
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(value);
    Ok(())
}

#[cold]
fn too_long(message: &'static str, len: usize) -> BuildError {
    BuildError::Length { message, len, max: i32::MAX as usize }
}
