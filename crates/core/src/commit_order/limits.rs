//! How much is kept one by one.

use crate::sequences::RESERVED_VALUES;

/// How much is kept one by one before something coarser stands for it, and what is counted on not to be exceeded. Beyond each
/// of these more is done again, or waited for, than would be needed; no answer changes. A simulation makes them so small that
/// they are met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Items of a read phase, and rows referred to; beyond it whole tables are kept.
    pub items: usize,
    /// Writers remembered for the sake of old snapshots; beyond it they are forgotten, and such a snapshot's reads are run
    /// again when its transaction writes.
    pub versions: usize,
    /// Sets of columns of which the last change is remembered, for each item; beyond it a change counts as one of all columns.
    pub column_sets: usize,
    /// Commits that a replica may be behind and yet is waited for with forgetting: under load it might otherwise always be one
    /// commit behind what is remembered, and never serve.
    pub near: u64,
    /// Decisions that one `Apply` may name: enough to fill a pipeline, few enough to let others in between.
    pub run: u64,
    /// Values of a sequence that are reserved at once, all of which a crash may lose; at least 1.
    pub reserved_values: i64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            items: 1_000,
            versions: 1_000_000,
            column_sets: 8,
            near: 10_000,
            run: 256,
            reserved_values: RESERVED_VALUES,
        }
    }
}
