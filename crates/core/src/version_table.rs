//! Which commit last wrote an item: what reads are placed by (design 3.5) and read phases are validated by (3.3).
//!
//! Old entries are forgotten once every position that will still be asked about is past them; an item that is not
//! found was last written at or before [`VersionTable::forgotten`].

use std::collections::VecDeque;

use crate::map::HashMap;
use smallvec::SmallVec;

use crate::ids::Csn;
use crate::item::{Access, ColumnId, Equals, Item, Space, TableId, ValueHash, columns_differ};

type Columns = SmallVec<[ColumnId; 2]>;
type Values = SmallVec<[ValueHash; 2]>;

/// Beyond this many entries under other columns, the newest of them stands for all: a later floor is always safe.
const SCAN_MAX: usize = 64;

/// The last writers of items.
#[derive(Default, Debug)]
pub struct VersionTable {
    spaces: HashMap<(TableId, Space), SmallVec<[Group; 2]>>,
    everything: Csn,
    definitions: Csn,
    newest: Csn,
    history: VecDeque<(Csn, Item)>,
    forgotten: Csn,
}

#[derive(Debug)]
struct Group {
    columns: Columns,
    newest: Csn,
    writers: HashMap<Values, Csn>,
}

impl VersionTable {
    /// A table for which everything up to `csn` was written before anybody can ask.
    #[must_use]
    pub fn starting_at(csn: Csn) -> VersionTable {
        VersionTable { forgotten: csn, newest: csn, ..VersionTable::default() }
    }

    /// Notes that the commit `csn`, later than every one before, wrote what it held in a writing mode.
    pub fn write(&mut self, csn: Csn, held: &[Access]) {
        debug_assert!(csn > self.forgotten);
        self.newest = csn;
        for Access { item, .. } in held.iter().filter(|access| access.mode.writes()) {
            self.history.push_back((csn, item.clone()));
            if item.table == TableId::ALL {
                self.everything = csn;
                if item.space == Space::Schema {
                    self.definitions = csn;
                }
                continue;
            }
            let groups = self.spaces.entry((item.table, item.space)).or_default();
            let columns: Columns = item.equals.iter().map(|(column, _)| *column).collect();
            let at = groups.iter().position(|group| group.columns == columns).unwrap_or_else(|| {
                groups.push(Group { columns, newest: csn, writers: HashMap::default() });
                groups.len() - 1
            });
            groups[at].newest = csn;
            groups[at].writers.insert(item.equals.iter().map(|(_, value)| *value).collect(), csn);
        }
    }

    /// The last commit that changed definitions and named no tables, as of a view or a function.
    #[must_use]
    pub fn last_of_definitions(&self) -> Csn {
        self.definitions
    }

    /// The last commit that wrote something that overlaps the item; at least [`Self::forgotten`] only when known
    /// to be later, else `Csn(0)`: positions at or after `forgotten` contain it anyway.
    #[must_use]
    pub fn last_writer(&self, item: &Item) -> Csn {
        if item.table == TableId::ALL {
            return self.newest;
        }
        let of_space = self.spaces.get(&(item.table, item.space)).map_or(Csn(0), |groups| {
            groups.iter().map(|group| group.last_writer(&item.equals)).max().unwrap_or_default()
        });
        of_space.max(self.everything)
    }

    /// The last commit that wrote something that any of these overlaps.
    #[must_use]
    pub fn floor(&self, accesses: &[Access]) -> Csn {
        accesses.iter().map(|access| self.last_writer(&access.item)).max().unwrap_or_default()
    }

    /// Forgets writers up to `csn`: the caller will ask only about positions at or after it.
    pub fn forget(&mut self, csn: Csn) {
        self.forgotten = self.forgotten.max(csn);
        while let Some((written, _)) = self.history.front() {
            if *written > csn {
                break;
            }
            if let Some((written, item)) = self.history.pop_front() {
                self.forget_item(written, &item);
            }
        }
    }

    /// Positions before this one cannot be judged.
    #[must_use]
    pub fn forgotten(&self) -> Csn {
        self.forgotten
    }

    /// How many writes are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.history.len()
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.history.is_empty()
    }

    fn forget_item(&mut self, written: Csn, item: &Item) {
        if item.table == TableId::ALL {
            return;
        }
        let Some(groups) = self.spaces.get_mut(&(item.table, item.space)) else { return };
        for group in groups.iter_mut().filter(|group| group.names(&item.equals)) {
            let values: Values = item.equals.iter().map(|(_, value)| *value).collect();
            if group.writers.get(&values) == Some(&written) {
                group.writers.remove(&values);
            }
        }
    }
}

impl Group {
    fn names(&self, equals: &Equals) -> bool {
        self.columns.len() == equals.len() && self.columns.iter().eq(equals.iter().map(|(c, _)| c))
    }

    fn last_writer(&self, equals: &Equals) -> Csn {
        if self.names(equals) {
            let values: Values = equals.iter().map(|(_, value)| *value).collect();
            return self.writers.get(&values).copied().unwrap_or_default();
        }
        if self.writers.len() > SCAN_MAX || equals.is_empty() {
            return if self.writers.is_empty() { Csn(0) } else { self.newest };
        }
        self.writers
            .iter()
            .filter(|(values, _)| {
                let theirs: Equals = self.columns.iter().copied().zip(values.iter().copied()).collect();
                !columns_differ(&theirs, equals)
            })
            .map(|(_, csn)| *csn)
            .max()
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Mode;

    const T: TableId = TableId(1);

    fn rows(column: u16, value: i64) -> Item {
        Item::rows(T, [(ColumnId(column), ValueHash::of_integer(value))])
    }

    #[test]
    fn only_overlapping_writes_count() {
        let mut versions = VersionTable::default();
        versions.write(Csn(1), &[Access::new(rows(1, 1), Mode::Exclusive)]);
        versions.write(Csn(2), &[Access::new(rows(1, 2), Mode::NoKeyExclusive)]);
        versions.write(Csn(3), &[Access::new(rows(1, 9), Mode::Shared)]);
        assert_eq!(versions.last_writer(&rows(1, 1)), Csn(1));
        assert_eq!(versions.last_writer(&rows(1, 9)), Csn(0), "reads are not writes");
        assert_eq!(versions.last_writer(&rows(2, 5)), Csn(2), "another column may name any row");
        assert_eq!(versions.last_writer(&Item::table(T)), Csn(2));
        assert_eq!(versions.last_writer(&Item::table(TableId(2))), Csn(0));
    }

    #[test]
    fn a_table_write_covers_its_rows() {
        let mut versions = VersionTable::default();
        versions.write(Csn(1), &[Access::new(Item::table(T), Mode::Insert)]);
        assert_eq!(versions.last_writer(&rows(1, 1)), Csn(1));
        versions.write(Csn(2), &[Access::new(Item::everything(), Mode::Exclusive)]);
        assert_eq!(versions.last_writer(&Item::table(TableId(7))), Csn(2));
    }

    #[test]
    fn forgetting_keeps_what_is_newer() {
        let mut versions = VersionTable::default();
        for csn in 1..=4 {
            versions.write(Csn(csn), &[Access::new(rows(1, (csn % 2) as i64), Mode::Exclusive)]);
        }
        versions.forget(Csn(3));
        assert_eq!(versions.last_writer(&rows(1, 1)), Csn(0));
        assert_eq!(versions.last_writer(&rows(1, 0)), Csn(4));
        assert_eq!(versions.len(), 1);
    }
}
