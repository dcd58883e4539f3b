//! Which tables transactions of a class touch, learned from those that ran: for protocols that want all tables at the
//! start, when the application has not declared them (design section 6).
//!
//! A class is known by a transaction's [`Prefix`]: the form of its BEGIN and its first statement.

use crate::map::HashMap;
use crate::prediction::Prefix;
use crate::table_queues::TableLocks;

/// Transactions of a class that must have committed, one after the other, without touching a table that was new for
/// the class before its tables are relied on: each mistake costs an application one failed transaction.
const TRUST_AFTER: u32 = 8;
/// Classes remembered; when full, all are forgotten and learned anew.
const CLASSES_MAX: usize = 100_000;

#[derive(Default, Debug)]
struct Footprint {
    tables: TableLocks,
    without_news: u32,
}

/// The tables of each class.
#[derive(Default, Debug)]
pub struct Footprints {
    by_prefix: HashMap<Prefix, Footprint>,
}

impl Footprints {
    /// The tables that a transaction of this class will touch, once its class is well enough known.
    #[must_use]
    pub fn relied_on(&self, prefix: Prefix) -> Option<&TableLocks> {
        let footprint = self.by_prefix.get(&prefix)?;
        (footprint.without_news >= TRUST_AFTER).then_some(&footprint.tables)
    }

    /// Every table that any transaction of this class was seen to touch.
    #[must_use]
    pub fn seen(&self, prefix: Prefix) -> Option<&TableLocks> {
        self.by_prefix.get(&prefix).map(|footprint| &footprint.tables)
    }

    /// A transaction of this class has touched these tables; if it is `complete`, it touched no others.
    pub fn learn(&mut self, prefix: Prefix, touched: &TableLocks, complete: bool) {
        if self.by_prefix.len() >= CLASSES_MAX && !self.by_prefix.contains_key(&prefix) {
            self.by_prefix.clear();
        }
        let footprint = self.by_prefix.entry(prefix).or_default();
        if !footprint.tables.covers(touched) {
            footprint.tables = footprint.tables.union(touched);
            footprint.without_news = 0;
        }
        footprint.without_news = footprint.without_news.saturating_add(u32::from(complete));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ClassId;
    use crate::item::TableId;
    use crate::table_queues::LockMode;

    fn table(id: u64) -> TableLocks {
        TableLocks::of_tables([(TableId(id), LockMode::Write)])
    }

    #[test]
    fn a_class_is_relied_on_after_it_has_been_steady_and_no_longer_after_news() {
        let mut footprints = Footprints::default();
        let prefix = Prefix::of_form(1).then(ClassId(1));
        for _ in 1..TRUST_AFTER {
            footprints.learn(prefix, &table(1), true);
        }
        assert_eq!(footprints.relied_on(prefix), None);
        footprints.learn(prefix, &table(1), true);
        assert_eq!(footprints.relied_on(prefix), Some(&table(1)));
        footprints.learn(prefix, &table(2), false);
        assert_eq!(footprints.relied_on(prefix), None);
        assert_eq!(footprints.seen(prefix), Some(&table(1).union(&table(2))));
    }

    #[test]
    fn transactions_that_did_not_come_to_their_end_prove_nothing() {
        let mut footprints = Footprints::default();
        let prefix = Prefix::of_form(1);
        for _ in 0..100 {
            footprints.learn(prefix, &table(1), false);
        }
        assert_eq!(footprints.relied_on(prefix), None);
    }
}
