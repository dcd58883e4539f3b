//! Which commit last wrote an item: what reads are placed by (design 3.5) and read phases are validated by (3.3).
//!
//! Old entries are forgotten once every position that will still be asked about is past them; an item that is not
//! found was last written at or before [`VersionTable::forgotten`].

use std::collections::VecDeque;

use crate::map::HashMap;
use smallvec::SmallVec;

use crate::ids::Csn;
use crate::item::{Access, ColumnId, ColumnSet, Equals, Item, Mode, Space, TableId, ValueHash};

type Columns = SmallVec<[ColumnId; 2]>;
type Values = SmallVec<[ValueHash; 2]>;

/// The last writers of items.
#[derive(Default, Debug)]
pub struct VersionTable {
    /// Beyond so many sets of columns, a change of another one counts as one of all columns: a later floor is always safe.
    column_sets_max: usize,
    spaces: HashMap<(TableId, Space), SmallVec<[Group; 2]>>,
    everything: Csn,
    definitions: Csn,
    newest: Csn,
    history: VecDeque<(Csn, Item)>,
    forgotten: Csn,
}

/// What was written of items that name the same columns.
#[derive(Debug)]
struct Group {
    columns: Columns,
    newest: Last,
    writers: HashMap<Values, Last>,
    /// For each column, if there are several, the last writers of each of its values: for whoever names only some of them.
    by_column: SmallVec<[HashMap<ValueHash, Last>; 4]>,
}

/// The last commits that wrote something.
#[derive(Clone, Default, Debug)]
struct Last {
    /// Whatever was written.
    written: Csn,
    /// Not counting those that only added rows.
    changed: Csn,
    /// Not counting those that changed some columns of rows.
    whole: Csn,
    /// The last change of each set of columns that was changed by itself, of the few that the statements of an application
    /// have.
    by_columns: SmallVec<[(ColumnSet, Csn); 1]>,
}

impl Last {
    fn note(&mut self, csn: Csn, mode: Mode, columns: ColumnSet, column_sets_max: usize) {
        self.written = csn;
        if mode != Mode::Insert {
            self.changed = csn;
        }
        if mode != Mode::NoKeyExclusive || columns == ColumnSet::ALL {
            self.whole = csn;
        } else if let Some((_, last)) = self.by_columns.iter_mut().find(|(known, _)| *known == columns) {
            *last = csn;
        } else if self.by_columns.len() < column_sets_max {
            self.by_columns.push((columns, csn));
        } else {
            self.whole = csn;
        }
    }

    /// The one that whoever takes it in this mode must find: whose new rows are there first, two that add rows cannot see;
    /// readers do not see what changed in other columns, nor does a foreign key see what changed beside keys.
    fn for_mode(&self, mode: Mode, columns: ColumnSet) -> Csn {
        match mode {
            Mode::Insert => self.changed,
            Mode::KeyShared => self.whole,
            Mode::Shared if columns != ColumnSet::ALL => {
                let changed = self.by_columns.iter().filter(|(changed, _)| changed.overlaps(columns));
                changed.map(|(_, csn)| *csn).fold(self.whole, Csn::max)
            }
            _ => self.written,
        }
    }
}

impl VersionTable {
    /// A table for which everything up to `csn` was written before anybody can ask. Of each item it tells the last changes of so
    /// many sets of columns apart.
    #[must_use]
    pub fn starting_at(csn: Csn, column_sets_max: usize) -> VersionTable {
        VersionTable { column_sets_max, forgotten: csn, newest: csn, ..VersionTable::default() }
    }

    /// Notes that the commit `csn`, later than every one before, wrote what it held in a writing mode.
    pub fn write(&mut self, csn: Csn, held: &[Access]) {
        debug_assert!(csn > self.forgotten);
        self.newest = csn;
        for Access { item, mode, columns } in held.iter().filter(|access| access.mode.writes()) {
            self.history.push_back((csn, item.clone()));
            if item.table == TableId::ALL {
                self.everything = csn;
                if item.space == Space::Schema {
                    self.definitions = csn;
                }
                continue;
            }
            let groups = self.spaces.entry((item.table, item.space)).or_default();
            let named: Columns = item.equals.iter().map(|(column, _)| *column).collect();
            let at = groups.iter().position(|group| group.columns == named).unwrap_or_else(|| {
                groups.push(Group::new(named));
                groups.len() - 1
            });
            groups[at].note(csn, &item.equals, *mode, *columns, self.column_sets_max);
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
        self.last(item, Mode::Shared, ColumnSet::ALL)
    }

    /// The last commit that wrote something that any of these overlaps and must find there.
    #[must_use]
    pub fn floor(&self, accesses: &[Access]) -> Csn {
        accesses.iter().map(|a| self.last(&a.item, a.mode, a.columns)).max().unwrap_or_default()
    }

    fn last(&self, item: &Item, mode: Mode, columns: ColumnSet) -> Csn {
        if item.table == TableId::ALL {
            return self.newest;
        }
        let groups = self.spaces.get(&(item.table, item.space)).into_iter().flatten();
        let of_space = groups.map(|group| group.last(&item.equals, mode, columns)).max();
        of_space.unwrap_or_default().max(self.everything)
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
        let same = |group: &&mut Group| group.columns.iter().eq(item.equals.iter().map(|(column, _)| column));
        groups.iter_mut().filter(same).for_each(|group| group.forget(written, &item.equals));
    }
}

impl Group {
    fn new(columns: Columns) -> Group {
        let by_column = match columns.len() {
            0 | 1 => SmallVec::new(),
            _ => columns.iter().map(|_| HashMap::default()).collect(),
        };
        Group { columns, newest: Last::default(), writers: HashMap::default(), by_column }
    }

    fn note(&mut self, csn: Csn, equals: &Equals, mode: Mode, columns: ColumnSet, column_sets_max: usize) {
        let note = |last: &mut Last| last.note(csn, mode, columns, column_sets_max);
        note(&mut self.newest);
        let values = equals.iter().map(|(_, value)| *value).collect();
        note(self.writers.entry(values).or_default());
        for (writers, (_, value)) in self.by_column.iter_mut().zip(equals) {
            note(writers.entry(*value).or_default());
        }
    }

    fn forget(&mut self, written: Csn, equals: &Equals) {
        let values: Values = equals.iter().map(|(_, value)| *value).collect();
        if self.writers.get(&values).is_some_and(|last| last.written == written) {
            self.writers.remove(&values);
        }
        for (writers, (_, value)) in self.by_column.iter_mut().zip(equals) {
            if writers.get(value).is_some_and(|last| last.written == written) {
                writers.remove(value);
            }
        }
    }

    /// The last writer of an item that overlaps this one, or a later one. If the item names all columns of the group, only one of
    /// the group's items can overlap it. If it names some, whoever overlaps it has its value in each of them.
    fn last(&self, equals: &Equals, mode: Mode, columns: ColumnSet) -> Csn {
        if self.writers.is_empty() {
            return Csn(0);
        }
        let of = |last: Option<&Last>| last.map_or(Csn(0), |last| last.for_mode(mode, columns));
        let named = |column: &ColumnId| {
            let at = equals.binary_search_by_key(column, |(column, _)| *column).ok()?;
            Some(equals[at].1)
        };
        let values: SmallVec<[Option<ValueHash>; 4]> = self.columns.iter().map(named).collect();
        let all: Option<Values> = values.iter().copied().collect();
        if let Some(all) = all {
            return of(self.writers.get(&all));
        }
        let by_value = |(writers, value): (&HashMap<ValueHash, Last>, &Option<ValueHash>)| {
            value.map(|value| of(writers.get(&value)))
        };
        let least = self.by_column.iter().zip(&values).filter_map(by_value).min();
        least.unwrap_or_else(|| self.newest.for_mode(mode, columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Mode;

    const T: TableId = TableId(1);
    const COLUMN_SETS: usize = 8;

    fn nothing_written() -> VersionTable {
        VersionTable::starting_at(Csn(0), COLUMN_SETS)
    }

    fn rows(column: u16, value: i64) -> Item {
        Item::rows(T, [(ColumnId(column), ValueHash::of_integer(value))])
    }

    #[test]
    fn only_overlapping_writes_count() {
        let mut versions = nothing_written();
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
        let mut versions = nothing_written();
        versions.write(Csn(1), &[Access::new(Item::table(T), Mode::Insert)]);
        assert_eq!(versions.last_writer(&rows(1, 1)), Csn(1));
        versions.write(Csn(2), &[Access::new(Item::everything(), Mode::Exclusive)]);
        assert_eq!(versions.last_writer(&Item::table(TableId(7))), Csn(2));
    }

    #[test]
    fn whoever_adds_rows_need_not_find_what_others_only_added() {
        let mut versions = nothing_written();
        let access = |item: Item, mode| [Access::new(item, mode)];
        let table = || Item::table(T);
        versions.write(Csn(1), &access(rows(1, 1), Mode::Exclusive));
        versions.write(Csn(2), &access(table(), Mode::Insert));
        versions.write(Csn(3), &access(rows(1, 2), Mode::Insert));
        assert_eq!(versions.floor(&access(table(), Mode::Insert)), Csn(1));
        assert_eq!(versions.floor(&access(rows(1, 2), Mode::Insert)), Csn(0));
        for mode in [Mode::KeyShared, Mode::Shared, Mode::Update, Mode::NoKeyExclusive, Mode::Exclusive] {
            assert_eq!(versions.floor(&access(table(), mode)), Csn(3), "{mode:?}");
        }
        versions.write(Csn(4), &access(table(), Mode::NoKeyExclusive));
        versions.write(Csn(5), &access(table(), Mode::Insert));
        assert_eq!(versions.floor(&access(rows(1, 2), Mode::Insert)), Csn(4));
        assert_eq!(versions.last_writer(&rows(1, 2)), Csn(5));
    }

    #[test]
    fn items_that_name_some_of_the_columns_meet_those_that_have_their_values() {
        let mut versions = nothing_written();
        let item = |equals: &[(u16, i64)]| {
            let equals = equals.iter().map(|(column, v)| (ColumnId(*column), ValueHash::of_integer(*v)));
            Item::rows(T, equals)
        };
        for n in 1..=200 {
            let row = item(&[(1, n), (2, n % 10), (3, -n)]);
            versions.write(Csn(n as u64), &[Access::new(row, Mode::Insert)]);
        }
        let last = |versions: &VersionTable, equals: &[(u16, i64)]| versions.last_writer(&item(equals)).0;
        assert_eq!(last(&versions, &[(1, 7), (2, 7), (3, -7)]), 7);
        assert_eq!(
            (last(&versions, &[(1, 7)]), last(&versions, &[(3, -9)]), last(&versions, &[(2, 3)])),
            (7, 9, 193)
        );
        // It has the one value, and not the other.
        assert_eq!((last(&versions, &[(1, 7), (2, 3)]), last(&versions, &[(1, 7), (2, 3), (3, 0)])), (7, 0));
        assert_eq!((last(&versions, &[(1, 500)]), last(&versions, &[(1, 7), (4, 1)])), (0, 7));
        assert_eq!((last(&versions, &[]), last(&versions, &[(4, 1)])), (200, 200), "any row may be meant");
        // One column is named by the writer, and more by the reader.
        versions.write(Csn(201), &[Access::new(item(&[(2, 3)]), Mode::Exclusive)]);
        assert_eq!((last(&versions, &[(1, 7), (2, 3)]), last(&versions, &[(1, 7), (2, 7)])), (201, 7));
        versions.forget(Csn(193));
        assert_eq!((last(&versions, &[(1, 7), (2, 7)]), last(&versions, &[(2, 3)])), (0, 201));
        assert_eq!(
            (last(&versions, &[(2, 4)]), last(&versions, &[(1, 7)])),
            (194, 201),
            "it may have been changed"
        );
        versions.forget(Csn(201));
        assert!(versions.is_empty());
        assert_eq!(last(&versions, &[(1, 200)]), 0);
    }

    #[test]
    fn no_writer_is_missed_that_must_be_found() {
        let mut drawn = 0;
        let mut draw = |below: u64| {
            drawn += 1;
            ValueHash::of_integer(drawn).0 % below
        };
        let mut random = |modes: &[Mode]| {
            let columns: Vec<u16> = (1..=3).filter(|_| draw(2) == 0).collect();
            let equals = columns.into_iter().map(|c| (ColumnId(c), ValueHash::of_integer(draw(4) as i64)));
            let item = Item::rows(T, equals.collect::<Vec<_>>());
            let of = (4..=6).filter(|_| draw(2) == 0).map(ColumnId).collect();
            Access::of_columns(item, modes[draw(modes.len() as u64) as usize], of)
        };
        let must_find = |access: &Access, written: &Access| {
            access.item.overlaps(&written.item)
                && match (access.mode, written.mode) {
                    (Mode::Insert, written) => written != Mode::Insert,
                    (Mode::KeyShared, written) => written != Mode::NoKeyExclusive,
                    (Mode::Shared, Mode::NoKeyExclusive) => access.columns.overlaps(written.columns),
                    _ => true,
                }
        };
        let (mut versions, mut written) = (nothing_written(), Vec::new());
        for csn in 1..=400 {
            let write = random(&[Mode::Insert, Mode::NoKeyExclusive, Mode::Exclusive]);
            versions.write(Csn(csn), std::slice::from_ref(&write));
            written.push((Csn(csn), write));
            if csn % 50 == 0 {
                let forgotten = Csn(csn - 30);
                versions.forget(forgotten);
                written.retain(|(csn, _)| *csn > forgotten);
            }
            for _ in 0..20 {
                let access = random(&[Mode::KeyShared, Mode::Shared, Mode::Insert, Mode::NoKeyExclusive]);
                let last = written.iter().rev().find(|(_, write)| must_find(&access, write));
                let floor = versions.floor(std::slice::from_ref(&access));
                assert!(
                    last.is_none_or(|(csn, _)| *csn <= floor),
                    "{access:?} finds {floor:?} and not {last:?}"
                );
            }
        }
    }

    #[test]
    fn who_reads_some_columns_need_not_find_what_changed_in_others() {
        let mut versions = nothing_written();
        let columns = |columns: &[u16]| columns.iter().map(|column| ColumnId(*column)).collect();
        let sets = |key, set: &[u16]| [Access::of_columns(rows(1, key), Mode::NoKeyExclusive, columns(set))];
        let floor = |versions: &VersionTable, item: Item, read: &[u16]| {
            versions.floor(&[Access::of_columns(item, Mode::Shared, columns(read))]).0
        };
        versions.write(Csn(1), &sets(1, &[2]));
        versions.write(Csn(2), &sets(1, &[3, 4]));
        versions.write(Csn(3), &sets(2, &[5]));
        for item in [rows(1, 1), rows(6, 0), Item::table(T)] {
            assert_eq!(floor(&versions, item.clone(), &[1]), 0);
            assert_eq!(floor(&versions, item.clone(), &[1, 2]), 1);
            assert_eq!(floor(&versions, item.clone(), &[2, 4]), 2);
        }
        assert_eq!((floor(&versions, rows(1, 1), &[5]), floor(&versions, Item::table(T), &[5])), (0, 3));
        // A key is where it was.
        assert_eq!(versions.floor(&[Access::new(rows(1, 1), Mode::KeyShared)]), Csn(0));
        // Whoever writes finds all of it, and so does whoever reads whole rows.
        let floors = [Mode::Shared, Mode::Update, Mode::NoKeyExclusive, Mode::Exclusive]
            .map(|mode| versions.floor(&[Access::new(rows(1, 1), mode)]).0);
        assert_eq!(floors, [2; 4]);
        assert_eq!(versions.floor(&sets(1, &[6])), Csn(2));
        versions.write(Csn(4), &[Access::new(rows(1, 1), Mode::Exclusive)]);
        assert_eq!(floor(&versions, rows(1, 1), &[9]), 4, "it may be gone");
        assert_eq!(versions.floor(&[Access::new(rows(1, 1), Mode::KeyShared)]), Csn(4));
        versions.write(Csn(5), &[Access::new(Item::table(T), Mode::Insert)]);
        assert_eq!(floor(&versions, rows(1, 1), &[9]), 5, "it may be there now");
    }

    #[test]
    fn more_sets_of_columns_than_are_kept_count_as_all() {
        let mut versions = nothing_written();
        let last = COLUMN_SETS as u64 + 3;
        for csn in 1..=last {
            let columns = ColumnSet::NONE.with(ColumnId(csn as u16));
            versions.write(Csn(csn), &[Access::of_columns(rows(1, 1), Mode::NoKeyExclusive, columns)]);
        }
        let floor = |column| {
            let columns = ColumnSet::NONE.with(ColumnId(column));
            versions.floor(&[Access::of_columns(rows(1, 1), Mode::Shared, columns)])
        };
        assert_eq!((floor(1), floor(60)), (Csn(last), Csn(last)));
    }

    #[test]
    fn forgetting_keeps_what_is_newer() {
        let mut versions = nothing_written();
        for csn in 1..=4 {
            versions.write(Csn(csn), &[Access::new(rows(1, (csn % 2) as i64), Mode::Exclusive)]);
        }
        versions.forget(Csn(3));
        assert_eq!(versions.last_writer(&rows(1, 1)), Csn(0));
        assert_eq!(versions.last_writer(&rows(1, 0)), Csn(4));
        assert_eq!(versions.len(), 1);
    }
}
