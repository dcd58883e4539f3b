//! Rows of tables with foreign keys that a database transaction has changed. Where it changes one again, the server checks the
//! row's foreign keys again, too, and locks what they refer to: locks that no statement's own items show
//! ([`onecopy_classify::Class::rechecks`]).

use onecopy_core::version_table::VersionTable;
use onecopy_core::{Access, Csn};

/// Rows kept one by one; beyond it every row counts as changed, which is safe and costs concurrency.
const ROWS_MAX: usize = 1_000;

/// What one database transaction has changed so far.
#[derive(Default)]
pub struct Changed {
    rows: VersionTable,
}

impl Changed {
    /// Whether one of these may have been changed before.
    pub fn meets(&self, rows: &[Access]) -> bool {
        self.rows.len() >= ROWS_MAX || self.rows.floor(rows) > Csn(0)
    }

    /// These change now.
    pub fn note(&mut self, rows: &[Access]) {
        if self.rows.len() < ROWS_MAX {
            self.rows.write(Csn(1), rows);
        }
    }
}
