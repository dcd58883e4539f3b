//! Tables of which peers take and write parts: rows that differ in the value of a column.
//!
//! A *granule* is what has versions and permission of its own. It is a table, unless that is cut by a column: then it is the rows whose values of the column have
//! the same hash, modulo how many granules there are, and the same of the values of each unique key. What names a value of the column is about one granule, and all
//! else about all of them; so whatever conflicts has a granule in common.
//!
//! Beyond the paper, whose middleware grants access to tables.

use smallvec::SmallVec;

use crate::item::{Access, ColumnId, Item, Space, TableId, ValueHash};
use crate::map::HashMap;
use crate::table_queues::{LockMode, TableLocks};

/// Which tables are cut, by which column, and into how many granules.
#[derive(Clone, Default, Debug)]
pub struct Granules {
    columns: HashMap<TableId, ColumnId>,
    each: u16,
}

impl Granules {
    /// Tables that are cut, each by a column and into `each` granules. With one of them, or none, a table stays whole.
    #[must_use]
    pub fn new(each: u16, columns: impl IntoIterator<Item = (TableId, ColumnId)>) -> Granules {
        Granules { columns: columns.into_iter().filter(|_| each > 1).collect(), each }
    }

    /// How many granules, and tables that are not cut, these are about.
    #[must_use]
    pub fn count(&self, accesses: &[Access]) -> usize {
        self.locks(accesses, LockMode::Read).iter().count()
    }

    /// What a statement that touches these takes, all of it in one mode.
    pub(super) fn locks<'a>(
        &self,
        accesses: impl IntoIterator<Item = &'a Access>,
        mode: LockMode,
    ) -> TableLocks {
        let granules = accesses.into_iter().flat_map(|access| self.of(&access.item));
        TableLocks::of_tables(granules.map(|granule| (granule, mode)))
    }

    /// The granules that an item is about.
    fn of(&self, item: &Item) -> SmallVec<[TableId; 2]> {
        let Some(column) = self.columns.get(&item.table) else { return SmallVec::from_slice(&[item.table]) };
        let space = match item.space {
            Space::Rows => 0,
            Space::Key(key) => 1 + u64::from(key.0),
            // Definitions do not change, and what empties a table is about all of its rows.
            Space::Schema => return SmallVec::new(),
        };
        let named = item.equals.iter().find(|(of, _)| of == column);
        let granules = match named {
            Some((_, ValueHash(hash))) => {
                let one = hash % u64::from(self.each);
                one..one + 1
            }
            None => 0..u64::from(self.each),
        };
        granules.map(|granule| id(item.table, space, granule)).collect()
    }
}

/// What stands for a granule among tables. A collision can only make two conflict that need not.
fn id(table: TableId, space: u64, granule: u64) -> TableId {
    let words = [table.0, space, granule].map(u64::to_le_bytes);
    // The highest numbers mean something.
    TableId(ValueHash::of_bytes(words.as_flattened()).0 >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{KeyId, Mode};

    const T: TableId = TableId(5);
    const ID: ColumnId = ColumnId(1);
    const NAME: ColumnId = ColumnId(2);

    fn taken(items: &[Item]) -> Vec<TableId> {
        let accesses: Vec<Access> =
            items.iter().map(|item| Access::new(item.clone(), Mode::Exclusive)).collect();
        let locks = Granules::new(4, [(T, ID)]).locks(&accesses, LockMode::Write);
        locks.iter().map(|(granule, _)| granule).collect()
    }

    fn row(column: ColumnId, value: i64) -> Item {
        Item::rows(T, [(column, ValueHash::of_integer(value))])
    }

    fn meet(one: &[Item], other: &[Item]) -> bool {
        let (one, other) = (taken(one), taken(other));
        one.iter().any(|granule| other.contains(granule))
    }

    #[test]
    fn what_names_the_column_takes_one_granule_and_all_else_every_one() {
        assert_eq!(taken(&[row(ID, 1)]).len(), 1);
        assert_eq!(taken(&[row(NAME, 1)]).len(), 4);
        assert_eq!(taken(&[Item::table(T)]).len(), 4);
        assert_eq!(taken(&[row(ID, 1), Item::schema(T)]), taken(&[row(ID, 1)]));
        assert_eq!(taken(&[Item::table(TableId(6)), row(ID, 1)]).len(), 2);
    }

    #[test]
    fn what_conflicts_has_a_granule_in_common() {
        for value in 0..100 {
            assert!(meet(&[row(ID, value)], &[row(ID, value)]));
            assert!(meet(&[row(ID, value)], &[row(NAME, 3)]));
            assert!(meet(&[row(ID, value)], &[Item::table(T)]));
            let key = |column| Item::key(T, KeyId(1), [(column, ValueHash::of_integer(value))]);
            assert!(meet(&[key(ID)], &[key(ID)]));
            assert!(meet(&[key(ID)], &[key(NAME)]));
        }
        let apart = (1..100).filter(|value| !meet(&[row(ID, 0)], &[row(ID, *value)])).count();
        assert!((55..95).contains(&apart), "{apart}");
        assert!(!meet(&[Item::table(T)], &[Item::key(T, KeyId(1), [])]), "keys are another matter");
    }

    #[test]
    fn with_one_granule_tables_stay_whole() {
        let access = [Access::new(row(ID, 1), Mode::Shared)];
        let locks = Granules::new(1, [(T, ID)]).locks(&access, LockMode::Read);
        assert_eq!(locks, TableLocks::of_tables([(T, LockMode::Read)]));
    }
}
