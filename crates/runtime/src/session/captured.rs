//! Rows that a statement changed, as writes that other replicas apply.

use bytes::{BufMut, Bytes, BytesMut};
use onecopy_classify::CapturePlan;
use onecopy_wire::Format;
use onecopy_wire::frontend::Bind;

use super::job::Block;
use super::portals::Portal;
use super::unit::Request;
use crate::record::{What, Write, after_names};

/// Captured new rows from which on they are shipped as one COPY.
const BULK_ROWS_MIN: usize = 16;
/// Bytes of a COPY in one message, about.
const COPY_PIECE_LEN: usize = 32 * 1024;

/// Whether captured columns come from a portal in binary form: where its client wants all columns so, they do.
pub(super) fn captures_binary(portal: &Portal, request: &Request) -> bool {
    let bound = request.bind_of(portal).map_or(&portal.body, |(_, body, _)| body);
    Bind::decode(bound)
        .is_ok_and(|bind| bind.result_formats.len() == 1 && bind.result_formats.of(0) == Format::Binary)
}

impl Block {
    /// Whether a row's number is one of the block's.
    pub(super) fn has(&self, row: &[Option<Bytes>], format: Format) -> bool {
        let Some(Some(value)) = row.get(self.column) else { return true };
        let number = match (format, value.len()) {
            (Format::Text, _) => std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()),
            (_, 2) => value.as_ref().try_into().ok().map(|bytes| i64::from(i16::from_be_bytes(bytes))),
            (_, 4) => value.as_ref().try_into().ok().map(|bytes| i64::from(i32::from_be_bytes(bytes))),
            (_, 8) => value.as_ref().try_into().ok().map(i64::from_be_bytes),
            _ => None,
        };
        let (least, greatest) = (self.first.min(self.last), self.first.max(self.last));
        // A column of another type cannot be read here; its numbers are trusted.
        number.is_none_or(|number| (least..=greatest).contains(&number))
    }
}

/// The rows that a statement changed, as they go to the log: many new ones as one COPY.
pub(super) fn captured_writes(plan: &CapturePlan, rows: &[Vec<Option<Bytes>>], format: Format) -> Vec<Write> {
    match &plan.bulk {
        Some(sql) if rows.len() >= BULK_ROWS_MIN && format == Format::Text => {
            let what = What::Copy { sql: sql.clone(), data: copy_data(rows) };
            vec![Write { captured: true, rows: Some(rows.len() as u64), ..Write::new(what) }]
        }
        _ => rows.iter().map(|row| captured_write(plan, row, format)).collect(),
    }
}

/// Rows in the text format of COPY, in pieces for messages.
fn copy_data(rows: &[Vec<Option<Bytes>>]) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut piece = BytesMut::new();
    for row in rows {
        for (i, value) in row.iter().enumerate() {
            if i > 0 {
                piece.put_u8(b'\t');
            }
            match value {
                None => piece.put_slice(b"\\N"),
                Some(value) => put_escaped(&mut piece, value),
            }
        }
        piece.put_u8(b'\n');
        if piece.len() >= COPY_PIECE_LEN {
            pieces.push(piece.split().freeze());
        }
    }
    if !piece.is_empty() {
        pieces.push(piece.freeze());
    }
    pieces
}

fn put_escaped(out: &mut BytesMut, value: &[u8]) {
    for &byte in value {
        match byte {
            b'\\' => out.put_slice(b"\\\\"),
            b'\n' => out.put_slice(b"\\n"),
            b'\r' => out.put_slice(b"\\r"),
            b'\t' => out.put_slice(b"\\t"),
            byte => out.put_u8(byte),
        }
    }
}

fn captured_write(plan: &CapturePlan, row: &[Option<Bytes>], format: Format) -> Write {
    let sql = onecopy_classify::captured_sql(plan).sql;
    let mut bind = BytesMut::new();
    let values = row.iter().map(|value| value.as_deref());
    // A row of at most 1600 columns always fits.
    let _ = onecopy_wire::frontend::build::bind(&mut bind, "", "", [format], values, []);
    let bind = after_names(&bind.freeze());
    Write { captured: !plan.cascades, rows: Some(1), ..Write::new(What::prepared(&sql, &[], bind)) }
}
