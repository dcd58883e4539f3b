//! Descriptions of rows, and rows with columns that the client did not ask for.

use std::borrow::Cow;

use bytes::BytesMut;

use super::{data_row, parameter_description, tag};
use crate::errors::{BuildError, Malformed, Side, WireError};
use crate::read::Reader;
use crate::values::Format;
use crate::write;

/// A column as a RowDescription says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    /// Its name; in databases without an encoding, not always UTF-8.
    pub name: &'a [u8],
    /// The table that it comes from, or 0.
    pub table_oid: u32,
    /// Its number in that table, or 0.
    pub attnum: i16,
    /// Its type.
    pub type_oid: u32,
    /// Bytes of the type's values; negative for a variable number.
    pub type_len: i16,
    /// The type's modifier, such as a length, or -1.
    pub typmod: i32,
    /// How its values are written. Text in the description of a statement, where it is not known yet.
    pub format: Format,
}

impl<'a> Column<'a> {
    /// A column of type text that belongs to no table.
    #[must_use]
    pub fn text(name: &'a str) -> Column<'a> {
        const TEXT_OID: u32 = 25;
        Column {
            name: name.as_bytes(),
            table_oid: 0,
            attnum: 0,
            type_oid: TEXT_OID,
            type_len: -1,
            typmod: -1,
            format: Format::Text,
        }
    }

    /// The name for people to read; whatever is not UTF-8 is replaced.
    #[must_use]
    pub fn name_lossy(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.name)
    }

    fn read(reader: &mut Reader<'a>) -> Result<Column<'a>, WireError> {
        Ok(Column {
            name: reader.cstr("a column's name")?,
            table_oid: reader.u32("a column's table")?,
            attnum: reader.u16("a column's number")? as i16,
            type_oid: reader.u32("a column's type")?,
            type_len: reader.u16("a type's length")? as i16,
            typmod: reader.i32("a type's modifier")?,
            // A server tells a client of whatever format it has asked for, and fails when it comes to the rows.
            format: Format::of_code(reader.bytes(2, "a column's format")?),
        })
    }
}

/// The columns of the rows to come, as they lie in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowDescription<'a> {
    count: u16,
    /// The columns; checked.
    raw: &'a [u8],
}

impl<'a> RowDescription<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// [`WireError::Server`] if its columns do not fill it exactly.
    pub fn decode(body: &'a [u8]) -> Result<RowDescription<'a>, WireError> {
        let mut reader = reader(body);
        let count = reader.u16("the number of columns")?;
        let raw = reader.rest();
        for _ in 0..count {
            Column::read(&mut reader)?;
        }
        reader.finish()?;
        Ok(RowDescription { count, raw })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// There are none, which a SELECT may well have.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The columns in order.
    pub fn iter(&self) -> impl Iterator<Item = Column<'a>> + use<'a> {
        let mut reader = reader(self.raw);
        // They were checked by `decode`; without that, iteration would end early, not panic.
        (0..self.count).map_while(move |_| Column::read(&mut reader).ok())
    }

    /// The bytes of the first `count` columns.
    fn raw_of_first(&self, count: usize) -> &'a [u8] {
        let mut reader = reader(self.raw);
        for _ in 0..count {
            if Column::read(&mut reader).is_err() {
                break;
            }
        }
        &self.raw[..self.raw.len() - reader.rest().len()]
    }
}

/// What an object id in a description identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OidOf {
    /// A type.
    Type,
    /// A table, or 0.
    Table,
}

/// Bytes of a column's description after its name.
const COLUMN_FIXED_LEN: usize = 18;

/// Shows every object id in the body of a RowDescription or ParameterDescription, in order, and puts what `each` returns
/// in its place. Other messages hold none.
///
/// # Errors
/// [`WireError::Server`] if the body is malformed; ids before that place may have been replaced.
#[inline]
pub fn replace_oids(tag: u8, body: &mut [u8], each: impl FnMut(OidOf, u32) -> u32) -> Result<(), WireError> {
    match tag {
        tag::ROW_DESCRIPTION => match replace_oids_of_columns(body, each) {
            Some(()) => Ok(()),
            None => RowDescription::decode(body).map(drop),
        },
        tag::PARAMETER_DESCRIPTION => match replace_oids_of_parameters(body, each) {
            Some(()) => Ok(()),
            None => parameter_description(body).map(drop),
        },
        _ => Ok(()),
    }
}

/// None if the body ends too early.
fn replace_oids_of_columns(body: &mut [u8], mut each: impl FnMut(OidOf, u32) -> u32) -> Option<()> {
    let (count, mut rest) = body.split_first_chunk_mut::<2>()?;
    for _ in 0..u16::from_be_bytes(*count) {
        let name_len = memchr::memchr(0, rest)?;
        let (column, after) = rest.split_at_mut_checked(name_len + 1 + COLUMN_FIXED_LEN)?;
        let fixed = column.get_mut(name_len + 1..)?;
        replace(fixed.first_chunk_mut()?, |oid| each(OidOf::Table, oid));
        replace(fixed.get_mut(6..)?.first_chunk_mut()?, |oid| each(OidOf::Type, oid));
        rest = after;
    }
    Some(())
}

fn replace_oids_of_parameters(body: &mut [u8], mut each: impl FnMut(OidOf, u32) -> u32) -> Option<()> {
    let (count, mut rest) = body.split_first_chunk_mut::<2>()?;
    for _ in 0..u16::from_be_bytes(*count) {
        let (oid, after) = rest.split_first_chunk_mut()?;
        replace(oid, |oid| each(OidOf::Type, oid));
        rest = after;
    }
    Some(())
}

#[inline]
fn replace(place: &mut [u8; 4], by: impl FnOnce(u32) -> u32) {
    *place = by(u32::from_be_bytes(*place)).to_be_bytes();
}

fn reader(bytes: &[u8]) -> Reader<'_> {
    Reader::new(bytes, Side::Server, "RowDescription")
}

/// Appends a RowDescription or DataRow without its last `drop` columns, which were added to a statement of the
/// client's. `tag` and `body` are those of the frame.
///
/// # Errors
/// [`WireError::Server`] if the body is malformed or the tag neither of the two; [`BuildError::Columns`] if there
/// are fewer columns.
pub fn strip_columns(tag: u8, body: &[u8], drop: usize, out: &mut BytesMut) -> Result<(), WireError> {
    match tag {
        tag::DATA_ROW => {
            let row = data_row(body)?;
            put_first(out, tag, "DataRow", row.len(), drop, |keep| row.raw_of_first(keep))
        }
        tag::ROW_DESCRIPTION => {
            let columns = RowDescription::decode(body)?;
            put_first(out, tag, "RowDescription", columns.len(), drop, |keep| columns.raw_of_first(keep))
        }
        tag => Err(Side::Server.blame(Malformed::UnknownTag { tag })),
    }
}

fn put_first<'a>(
    out: &mut BytesMut,
    tag: u8,
    message: &'static str,
    columns: usize,
    drop: usize,
    raw_of_first: impl FnOnce(usize) -> &'a [u8],
) -> Result<(), WireError> {
    let keep = columns.checked_sub(drop).ok_or(BuildError::Columns { message, drop, columns })?;
    let raw = raw_of_first(keep);
    out.reserve(raw.len() + 7);
    write::frame(out, tag, message, |out| {
        out.extend_from_slice(&(keep as u16).to_be_bytes());
        out.extend_from_slice(raw);
        Ok(())
    })
}
