//! The rows of a site, in the text format of COPY.

use std::fmt::{Display, Write as _};
use std::ops::RangeInclusive;

/// The rows that a site starts with. Every row is drawn from a stream of its own, so any part of a table can be made at any
/// time, in any order and by several workers.
pub trait SiteRows {
    /// The keys by which the rows of a table are made, by its place in the catalogue; each may stand for several rows.
    fn keys(&self, table: usize) -> RangeInclusive<i64>;

    /// Appends the rows of these keys, in the text format of COPY and with the columns in the order of the catalogue.
    /// Returns the number of rows.
    fn copy(&self, table: usize, keys: RangeInclusive<i64>, out: &mut String) -> u64;
}

/// A row in the making.
pub struct Line<'a> {
    out: &'a mut String,
    is_begun: bool,
}

impl<'a> Line<'a> {
    /// A row at the end of this text.
    pub fn new(out: &'a mut String) -> Line<'a> {
        Line { out, is_begun: false }
    }

    /// Appends a column. Texts of these sites need no escape.
    #[must_use]
    pub fn put(mut self, value: impl Display) -> Self {
        if std::mem::replace(&mut self.is_begun, true) {
            self.out.push('\t');
        }
        let _ = write!(self.out, "{value}");
        self
    }

    /// Ends the row: one.
    pub fn end(self) -> u64 {
        self.out.push('\n');
        1
    }
}
