//! Lists inside messages, as they lie in the bytes that were read.

use crate::errors::{Malformed, WireError};
use crate::read::Reader;

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// As in SQL text, code 0.
    Text,
    /// The type's binary form, code 1.
    Binary,
}

impl Format {
    /// The protocol's code.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Format::Text => 0,
            Format::Binary => 1,
        }
    }

    /// What two bytes stand for; a format that there is not counts as text.
    pub(crate) fn of_code(code: &[u8]) -> Format {
        if code == [0, 1] { Format::Binary } else { Format::Text }
    }
}

/// Format codes of a message: none (all text), one (for all values) or one a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Formats<'a> {
    /// Two bytes a code.
    raw: &'a [u8],
}

impl<'a> Formats<'a> {
    /// Reads a count and as many codes, each of which must be known.
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Formats<'a>, WireError> {
        let formats = Formats::read_any(reader)?;
        match formats.unknown() {
            Some(code) => Err(reader.invalid("a format code", i64::from(code))),
            None => Ok(formats),
        }
    }

    /// Reads a count and as many codes, whatever they are: see [`Formats::unknown`].
    #[inline]
    pub(crate) fn read_any(reader: &mut Reader<'a>) -> Result<Formats<'a>, WireError> {
        let count = reader.u16("the number of format codes")?;
        let raw = reader.bytes(usize::from(count) * 2, "the format codes")?;
        Ok(Formats { raw })
    }

    /// The first code that stands for no [`Format`], if there is one. Elsewhere it is taken for text.
    #[must_use]
    pub fn unknown(&self) -> Option<i16> {
        let code = self.raw.chunks_exact(2).find(|code| !matches!(code, [0, 0 | 1]))?;
        Some(i16::from_be_bytes([code[0], code[1]]))
    }

    /// Codes that were sent, which need not be the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len() / 2
    }

    /// No codes were sent, which means text for all values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The format of value number `index` (from 0) under the rule of none, one or all.
    #[must_use]
    pub fn of(&self, index: usize) -> Format {
        let index = if self.len() == 1 { 0 } else { index };
        self.raw.get(index * 2..index * 2 + 2).map_or(Format::Text, Format::of_code)
    }

    /// Whether every value is text.
    #[must_use]
    pub fn all_text(&self) -> bool {
        self.iter().all(|format| format == Format::Text)
    }

    /// The codes as sent.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Format> + use<'a> {
        self.raw.chunks_exact(2).map(Format::of_code)
    }

    /// The codes' bytes, two a code, without their count.
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }
}

/// Object ids of types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Oids<'a> {
    raw: &'a [u8],
}

impl<'a> Oids<'a> {
    /// Reads a count and as many ids.
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Oids<'a>, WireError> {
        let count = reader.u16("the number of types")?;
        let raw = reader.bytes(usize::from(count) * 4, "the types")?;
        Ok(Oids { raw })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len() / 4
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The ids in order; 0 leaves a parameter's type to the server.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.raw.chunks_exact(4).map(|oid| u32::from_be_bytes([oid[0], oid[1], oid[2], oid[3]]))
    }

    /// The ids' bytes, four an id, without their count.
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }
}

/// Parameters of a Bind or columns of a row: each NULL or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Values<'a> {
    count: u16,
    /// Length and bytes of each value; checked when it was read.
    raw: &'a [u8],
}

impl<'a> Values<'a> {
    /// Reads a count and as many values.
    #[inline]
    pub(crate) fn read(reader: &mut Reader<'a>, field: &'static str) -> Result<Values<'a>, WireError> {
        let count = reader.u16(field)?;
        let all = reader.rest();
        for _ in 0..count {
            reader.value(field)?;
        }
        Ok(Values { count, raw: &all[..all.len() - reader.rest().len()] })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The values in order; `None` is NULL.
    #[must_use]
    pub fn iter(&self) -> ValuesIter<'a> {
        ValuesIter { left: self.count, raw: self.raw }
    }

    /// Value number `index` (from 0), if there are so many. Walks from the first one.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Option<&'a [u8]>> {
        self.iter().nth(index)
    }

    /// The values' bytes with their lengths, without their count.
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// The bytes of the first `count` values with their lengths.
    pub(crate) fn raw_of_first(&self, count: usize) -> &'a [u8] {
        let mut iter = self.iter();
        for _ in 0..count {
            iter.next();
        }
        &self.raw[..self.raw.len() - iter.raw.len()]
    }
}

impl<'a> IntoIterator for Values<'a> {
    type Item = Option<&'a [u8]>;
    type IntoIter = ValuesIter<'a>;

    fn into_iter(self) -> ValuesIter<'a> {
        self.iter()
    }
}

/// The values of a [`Values`], in order.
#[derive(Debug, Clone)]
pub struct ValuesIter<'a> {
    left: u16,
    raw: &'a [u8],
}

impl<'a> Iterator for ValuesIter<'a> {
    type Item = Option<&'a [u8]>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        // The lengths were checked by `Values::read`; without that, iteration would end early, not panic.
        let (len, rest) = self.raw.split_first_chunk::<4>()?;
        self.left -= 1;
        let Ok(len) = usize::try_from(i32::from_be_bytes(*len)) else {
            self.raw = rest;
            return Some(None);
        };
        let (value, rest) = rest.split_at_checked(len)?;
        self.raw = rest;
        Some(Some(value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for ValuesIter<'_> {}

/// Refuses a number of format codes that fits neither rule.
pub(crate) fn check_format_count(
    reader: &Reader<'_>,
    message: &'static str,
    formats: &Formats<'_>,
    values: usize,
) -> Result<(), WireError> {
    match formats.len() {
        0 | 1 => Ok(()),
        count if count == values => Ok(()),
        count => Err(reader.blame(Malformed::FormatCount { message, formats: count, values })),
    }
}
