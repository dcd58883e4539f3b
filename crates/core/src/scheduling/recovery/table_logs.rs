//! Which decided transactions have written a table, in the order of their numbers (5.3): so what a database lacks is found by
//! where it stands at each table.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use crate::ids::SequenceNumber;
use crate::item::TableId;

use super::Query;

#[derive(Default, Debug)]
pub(super) struct TableLogs(BTreeMap<TableId, BTreeSet<SequenceNumber>>);

impl TableLogs {
    pub(super) fn insert(&mut self, number: SequenceNumber, writes: &[Query]) {
        for query in writes {
            self.0.entry(query.table).or_default().insert(number);
        }
    }

    /// What was committed and is not contained where this was the last write of each table.
    pub(super) fn missing(&self, last: &BTreeMap<TableId, SequenceNumber>) -> BTreeSet<SequenceNumber> {
        let beyond = self.0.iter().flat_map(|(table, numbers)| {
            let last = last.get(table).copied().unwrap_or_default();
            numbers.range((Excluded(last), Unbounded))
        });
        beyond.copied().collect()
    }

    /// Everything up to `floor` is needed no more.
    pub(super) fn forget(&mut self, floor: SequenceNumber) {
        for numbers in self.0.values_mut() {
            *numbers = numbers.split_off(&floor.next());
        }
        self.0.retain(|_, numbers| !numbers.is_empty());
    }
}
