//! Which of many transactions conflict with a new one, found by a few look-ups.
//!
//! For protocols that order transactions before they run, by what they may do (docs/protocols/chains.md). An item is kept
//! under its table and the set of columns that it names, by their values. A new item asks each such set of its table by the
//! columns that both name. Who conflicts with another one takes its place, as far as it does the same to the same rows: whoever comes
//! later and conflicts with the earlier one conflicts with the later one, too, and is behind both.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::ids::TxnId;
use crate::item::{Access, ColumnId, ColumnSet, Equals, Mode, Space, TableId, ValueHash};
use crate::map::{HashMap, HashSet};

type Columns = SmallVec<[ColumnId; 4]>;
type Values = SmallVec<[ValueHash; 4]>;

/// Whether two transactions must not run side by side, each in a snapshot, for the sake of these. Rows that one adds are in no
/// snapshot of the other, so they are not those that the other changes, removes or refers to; two may add the same key.
#[must_use]
pub fn conflict(a: &Access, b: &Access) -> bool {
    let everything = a.item.table == TableId::ALL || b.item.table == TableId::ALL;
    everything || Doing::of(a).conflicts(Doing::of(b)) && a.item.overlaps(&b.item)
}

/// What a transaction does to rows.
#[derive(Clone, Copy, Debug)]
struct Doing {
    /// What of it there is, a bit each.
    what: u8,
    changes: ColumnSet,
    reads: ColumnSet,
}

const REFERS: u8 = 1;
const READS: u8 = 2;
const ADDS: u8 = 4;
const CHANGES: u8 = 8;
const REMOVES: u8 = 16;

impl Doing {
    const NOTHING: Doing = Doing { what: 0, changes: ColumnSet::NONE, reads: ColumnSet::NONE };

    fn of(access: &Access) -> Doing {
        let none = Doing::NOTHING;
        match access.mode {
            Mode::KeyShared => Doing { what: REFERS, ..none },
            Mode::Shared | Mode::Update => Doing { what: READS, reads: access.columns, ..none },
            Mode::Insert => Doing { what: ADDS, ..none },
            Mode::NoKeyExclusive => Doing { what: CHANGES, changes: access.columns, ..none },
            Mode::Exclusive => Doing { what: REMOVES, ..none },
        }
    }

    fn and(self, other: Doing) -> Doing {
        Doing {
            what: self.what | other.what,
            changes: self.changes.union(other.changes),
            reads: self.reads.union(other.reads),
        }
    }

    fn conflicts(self, other: Doing) -> bool {
        self.changes.overlaps(other.changes.union(other.reads))
            || self.reads.overlaps(other.changes)
            || self.is_in_the_way_of(other)
            || other.is_in_the_way_of(self)
    }

    /// Whatever columns are meant.
    fn is_in_the_way_of(self, other: Doing) -> bool {
        self.what & REMOVES != 0 && other.what & !ADDS != 0
            || self.what & ADDS != 0 && other.what & READS != 0
    }

    /// What of it has still to be known, if a later one conflicts with it on the same rows: with the rest nothing conflicts that does
    /// not conflict with the later one, too.
    fn left_beside(self, later: Doing) -> Option<Doing> {
        let does = |what: u8| later.what & what != 0;
        let mut left = self;
        // Who removes rows is in the way of all that these are.
        if does(REMOVES) {
            left.what &= !(REMOVES | CHANGES | REFERS);
            (left.changes, left.reads) = (ColumnSet::NONE, ColumnSet::NONE);
        }
        if does(REFERS | READS | CHANGES) {
            left.what &= !REFERS;
        }
        left.changes = left.changes.without(later.changes);
        if does(CHANGES) && left.changes == ColumnSet::NONE {
            left.what &= !CHANGES;
        }
        left.reads = left.reads.without(later.reads.union(later.changes));
        if does(READS) && left.reads == ColumnSet::NONE {
            left.what &= !READS;
        }
        if does(ADDS) {
            left.what &= !ADDS;
        }
        (left.what != 0).then_some(left)
    }
}

/// What transactions that are not over may do, by items.
#[derive(Default, Debug)]
pub struct ConflictIndex {
    /// Where in `shapes` those of a table are.
    tables: HashMap<(TableId, Space), u32>,
    shapes: Vec<Vec<Shape>>,
    /// Those whose items are not known.
    of_everything: SmallVec<[TxnId; 2]>,
    places: HashMap<TxnId, Vec<Place>>,
}

/// Where something of a transaction is kept.
#[derive(Clone, Copy, Debug)]
struct Place {
    table: u32,
    shape: u32,
    row: u32,
}

/// Items of one table that name the same columns.
#[derive(Debug)]
struct Shape {
    columns: Columns,
    rows: Vec<Row>,
    by_values: HashTable<u32>,
    /// Rows that nobody holds.
    free: Vec<u32>,
    /// For whoever names only some of the columns: the rows, by the values of those.
    parts: Vec<Part>,
}

#[derive(Default, Debug)]
struct Row {
    values: Values,
    holders: SmallVec<[Holder; 1]>,
}

#[derive(Debug)]
struct Part {
    /// Places in the shape's columns.
    at: SmallVec<[usize; 4]>,
    rows: HashMap<Values, HashSet<u32>>,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    txn: TxnId,
    doing: Doing,
}

/// A transaction that asks, by its number if it is new: then it may take the place of those that are beneath it.
struct Asking<'f> {
    txn: Option<TxnId>,
    doing: Doing,
    found: &'f mut Vec<TxnId>,
}

impl ConflictIndex {
    /// Those that conflict with these items, but for those of whom others have taken the place, by number.
    pub fn find(&mut self, accesses: &[Access]) -> Vec<TxnId> {
        if accesses.iter().any(|access| access.item.table == TableId::ALL) {
            let mut all: Vec<TxnId> = self.places.keys().copied().collect();
            all.sort_unstable();
            return all;
        }
        let mut found: Vec<TxnId> = self.of_everything.to_vec();
        for access in accesses {
            let Some(table) = self.tables.get(&(access.item.table, access.item.space)) else { continue };
            for shape in &mut self.shapes[*table as usize] {
                let asking = &mut Asking { txn: None, doing: Doing::of(access), found: &mut found };
                shape.ask(&access.item.equals, asking);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Adds a transaction behind all others, and returns those that it conflicts with, each once, but for those of whom
    /// others that are returned have taken the place, by number.
    pub fn add(&mut self, txn: TxnId, accesses: &[Access]) -> Vec<TxnId> {
        if accesses.iter().any(|access| access.item.table == TableId::ALL) {
            return self.add_everything(txn);
        }
        let mut found: Vec<TxnId> = self.of_everything.to_vec();
        let mut places = self.places.remove(&txn).unwrap_or_else(|| Vec::with_capacity(accesses.len()));
        // What is done to the same rows stands together.
        for same in accesses.chunk_by(|a, b| a.item == b.item) {
            let item = &same[0].item;
            let doing = same.iter().map(Doing::of).fold(Doing::NOTHING, Doing::and);
            let table = self.table((item.table, item.space));
            let shapes = &mut self.shapes[table as usize];
            let mut own = None;
            for (at, shape) in shapes.iter_mut().enumerate() {
                if shape.names(&item.equals) {
                    own = Some(at);
                } else {
                    shape.ask(&item.equals, &mut Asking { txn: Some(txn), doing, found: &mut found });
                }
            }
            let own = own.unwrap_or_else(|| {
                shapes.push(Shape::of(&item.equals));
                shapes.len() - 1
            });
            let asking = &mut Asking { txn: Some(txn), doing, found: &mut found };
            if let Some(row) = shapes[own].hold(txn, &item.equals, asking) {
                places.push(Place { table, shape: own as u32, row });
            }
        }
        self.places.insert(txn, places);
        found.sort_unstable();
        found.dedup();
        found
    }

    fn add_everything(&mut self, txn: TxnId) -> Vec<TxnId> {
        let mut found: Vec<TxnId> = self.places.keys().copied().collect();
        // Whoever comes later is behind all of them by way of it.
        self.shapes.iter_mut().for_each(Vec::clear);
        self.of_everything = SmallVec::from_slice(&[txn]);
        self.places.values_mut().for_each(Vec::clear);
        self.places.insert(txn, Vec::new());
        found.sort_unstable();
        found
    }

    fn table(&mut self, table: (TableId, Space)) -> u32 {
        *self.tables.entry(table).or_insert_with(|| {
            self.shapes.push(Vec::new());
            (self.shapes.len() - 1) as u32
        })
    }

    /// Forgets a transaction: whoever comes later need not know of it, nor of any that it conflicted with when it was added.
    pub fn remove(&mut self, txn: TxnId) {
        self.of_everything.retain(|of| *of != txn);
        for Place { table, shape, row } in self.places.remove(&txn).unwrap_or_default() {
            self.shapes[table as usize][shape as usize].let_go(txn, row);
        }
    }

    /// Transactions that it knows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it knows none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

impl Shape {
    fn of(equals: &Equals) -> Shape {
        Shape {
            columns: equals.iter().map(|(column, _)| *column).collect(),
            rows: Vec::new(),
            by_values: HashTable::new(),
            free: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Whether an item names its columns.
    fn names(&self, equals: &Equals) -> bool {
        self.columns.len() == equals.len()
            && self.columns.iter().zip(equals).all(|(ours, (theirs, _))| ours == theirs)
    }

    /// Finds who conflicts among the rows that an item may mean.
    fn ask(&mut self, equals: &Equals, asking: &mut Asking<'_>) {
        let mut at = SmallVec::new();
        let mut common = Values::new();
        for (place, column) in self.columns.iter().enumerate() {
            if let Ok(theirs) = equals.binary_search_by_key(column, |(column, _)| *column) {
                at.push(place);
                common.push(equals[theirs].1);
            }
        }
        // Only if all rows of these are its own, too.
        let takes_place = asking.txn.is_some() && at.len() == equals.len();
        let rows: SmallVec<[u32; 8]> = if at.len() == self.columns.len() {
            self.row(&common, hash(&common)).into_iter().collect()
        } else if at.is_empty() {
            self.by_values.iter().copied().collect()
        } else {
            self.part(at).rows.get(&common).into_iter().flatten().copied().collect()
        };
        for row in rows {
            self.ask_row(row, takes_place, asking);
            if self.rows[row as usize].holders.is_empty() {
                self.drop_row(row);
            }
        }
    }

    fn ask_row(&mut self, row: u32, takes_place: bool, Asking { txn, doing, found }: &mut Asking<'_>) {
        self.rows[row as usize].holders.retain(|holder| {
            if Some(holder.txn) == *txn || !holder.doing.conflicts(*doing) {
                return true;
            }
            found.push(holder.txn);
            let left = if takes_place { holder.doing.left_beside(*doing) } else { Some(holder.doing) };
            left.map(|left| holder.doing = left).is_some()
        });
    }

    /// Finds who conflicts on the rows of an item that names its columns, and keeps it. Returns its row, if it was not kept there before.
    fn hold(&mut self, txn: TxnId, equals: &Equals, asking: &mut Asking<'_>) -> Option<u32> {
        let values: Values = equals.iter().map(|(_, value)| *value).collect();
        let hash = hash(&values);
        let row = match self.row(&values, hash) {
            Some(row) => {
                self.ask_row(row, true, asking);
                row
            }
            None => self.add_row(values, hash),
        };
        let holders = &mut self.rows[row as usize].holders;
        match holders.iter_mut().find(|holder| holder.txn == txn) {
            Some(own) => {
                own.doing = own.doing.and(asking.doing);
                None
            }
            None => {
                holders.push(Holder { txn, doing: asking.doing });
                Some(row)
            }
        }
    }

    fn row(&self, values: &Values, hash: u64) -> Option<u32> {
        self.by_values.find(hash, |row| self.rows[*row as usize].values == *values).copied()
    }

    fn add_row(&mut self, values: Values, hashed: u64) -> u32 {
        let row = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row::default());
            (self.rows.len() - 1) as u32
        });
        self.parts.iter_mut().for_each(|part| part.add(row, &values));
        self.rows[row as usize].values = values;
        self.by_values.insert_unique(hashed, row, |row| hash(&self.rows[*row as usize].values));
        row
    }

    /// A later one may have taken its place.
    fn let_go(&mut self, txn: TxnId, row: u32) {
        let holders = &mut self.rows[row as usize].holders;
        if let Some(at) = holders.iter().position(|holder| holder.txn == txn) {
            holders.remove(at);
            if holders.is_empty() {
                self.drop_row(row);
            }
        }
    }

    fn drop_row(&mut self, row: u32) {
        let values = &self.rows[row as usize].values;
        if let Ok(entry) = self.by_values.find_entry(hash(values), |other| *other == row) {
            entry.remove();
        }
        self.parts.iter_mut().for_each(|part| part.remove(row, values));
        self.free.push(row);
    }

    /// The rows by the values of some of the columns, kept from the first time that somebody asks.
    fn part(&mut self, at: SmallVec<[usize; 4]>) -> &Part {
        let known = self.parts.iter().position(|part| part.at == at).unwrap_or_else(|| {
            let mut part = Part { at, rows: HashMap::default() };
            self.by_values.iter().for_each(|row| part.add(*row, &self.rows[*row as usize].values));
            self.parts.push(part);
            self.parts.len() - 1
        });
        &self.parts[known]
    }
}

impl Part {
    fn project(&self, values: &Values) -> Values {
        self.at.iter().map(|place| values[*place]).collect()
    }

    fn add(&mut self, row: u32, values: &Values) {
        self.rows.entry(self.project(values)).or_default().insert(row);
    }

    fn remove(&mut self, row: u32, values: &Values) {
        let part = self.project(values);
        if let Some(rows) = self.rows.get_mut(&part) {
            rows.remove(&row);
            if rows.is_empty() {
                self.rows.remove(&part);
            }
        }
    }
}

fn hash(values: &Values) -> u64 {
    FixedState::default().hash_one(values)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::item::{Item, KeyId};
    use crate::map::HashSet;

    const TABLE: TableId = TableId(1);
    const BALANCE: ColumnId = ColumnId(8);
    const NAME: ColumnId = ColumnId(9);

    fn rows<const N: usize>(equals: [(u16, i64); N]) -> Item {
        Item::rows(TABLE, equals.map(|(column, value)| (ColumnId(column), ValueHash::of_integer(value))))
    }

    fn update<const N: usize>(equals: [(u16, i64); N], of: ColumnId) -> Access {
        Access::of_columns(rows(equals), Mode::NoKeyExclusive, ColumnSet::NONE.with(of))
    }

    fn add<const N: usize>(index: &mut ConflictIndex, txn: u64, accesses: [Access; N]) -> Vec<u64> {
        index.add(TxnId(txn), &accesses).into_iter().map(|txn| txn.0).collect()
    }

    #[test]
    fn an_update_conflicts_with_the_last_update_of_its_row_and_not_with_those_before() {
        let index = &mut ConflictIndex::default();
        assert_eq!(add(index, 1, [update([(1, 7)], BALANCE)]), []);
        assert_eq!(add(index, 2, [update([(1, 8)], BALANCE)]), []);
        assert_eq!(add(index, 3, [update([(1, 7)], BALANCE)]), [1]);
        assert_eq!(add(index, 4, [update([(1, 7)], BALANCE)]), [3]);
    }

    #[test]
    fn updates_of_different_columns_of_a_row_conflict_with_who_updates_both() {
        let index = &mut ConflictIndex::default();
        assert_eq!(add(index, 1, [update([(1, 7)], BALANCE)]), []);
        assert_eq!(add(index, 2, [update([(1, 7)], NAME)]), []);
        let both = [update([(1, 7)], BALANCE), update([(1, 7)], NAME)];
        assert_eq!(add(index, 3, both), [1, 2]);
        assert_eq!(add(index, 4, [update([(1, 7)], NAME)]), [3]);
    }

    #[test]
    fn an_item_that_names_fewer_columns_conflicts_with_all_that_have_these_values_and_takes_their_place() {
        let index = &mut ConflictIndex::default();
        add(index, 1, [update([(1, 7), (2, 1)], BALANCE)]);
        add(index, 2, [update([(1, 7), (2, 2)], BALANCE)]);
        add(index, 3, [update([(1, 8), (2, 1)], BALANCE)]);
        assert_eq!(add(index, 4, [update([(1, 7)], BALANCE)]), [1, 2]);
        assert_eq!(add(index, 5, [update([(1, 7), (2, 2)], BALANCE)]), [4]);
        assert_eq!(add(index, 6, [update([(1, 7), (2, 3)], BALANCE)]), [4]);
        // What names other columns may be the same row.
        assert_eq!(add(index, 7, [update([(3, 1)], BALANCE)]), [3, 4, 5, 6]);
    }

    #[test]
    fn added_rows_are_hidden_from_who_changes_rows_and_met_by_who_adds_the_same_key() {
        let index = &mut ConflictIndex::default();
        let insert = |key| {
            let equals = [(ColumnId(1), ValueHash::of_integer(key))];
            let key = Access::new(Item::key(TABLE, KeyId(1), equals), Mode::Exclusive);
            [Access::new(rows([]), Mode::Insert), key]
        };
        assert_eq!(add(index, 1, insert(1)), []);
        assert_eq!(add(index, 2, insert(2)), []);
        assert_eq!(add(index, 3, [Access::new(rows([]), Mode::Exclusive)]), []);
        assert_eq!(add(index, 4, insert(2)), [2]);
    }

    #[test]
    fn readers_of_a_row_stand_beside_each_other_and_behind_whoever_changes_what_they_read() {
        let read = |equals: &[(u16, i64)], of| {
            let equals =
                equals.iter().map(|(column, value)| (ColumnId(*column), ValueHash::of_integer(*value)));
            Access::of_columns(Item::rows(TABLE, equals), Mode::Shared, ColumnSet::NONE.with(of))
        };
        let index = &mut ConflictIndex::default();
        assert_eq!(add(index, 1, [read(&[(1, 7)], BALANCE)]), []);
        assert_eq!(add(index, 2, [read(&[(1, 7)], BALANCE)]), []);
        assert_eq!(add(index, 3, [update([(1, 7)], NAME)]), []);
        assert_eq!(add(index, 4, [update([(1, 7)], BALANCE)]), [1, 2]);
        assert_eq!(add(index, 5, [read(&[], BALANCE)]), [4]);
        assert_eq!(add(index, 6, [Access::new(rows([(1, 9)]), Mode::Insert)]), [5]);
    }

    /// Whoever reads what it changes is found by the next one that does, and not by all that follow.
    #[test]
    fn who_reads_and_changes_takes_the_place_of_who_read_and_changed_the_same() {
        let index = &mut ConflictIndex::default();
        let both = || {
            let read = Access { mode: Mode::Shared, ..update([(1, 7)], BALANCE) };
            [Access { columns: read.columns.with(NAME), ..read }, update([(1, 7)], BALANCE)]
        };
        assert_eq!(add(index, 1, both()), []);
        assert_eq!(add(index, 2, both()), [1]);
        assert_eq!(add(index, 3, both()), [2]);
        assert_eq!(add(index, 4, [update([(1, 7)], NAME)]), [3]);
        assert_eq!(add(index, 5, [Access::new(rows([]), Mode::Insert)]), [3]);
    }

    #[test]
    fn who_is_forgotten_is_not_found_any_more() {
        let index = &mut ConflictIndex::default();
        add(index, 1, [update([(1, 7)], BALANCE)]);
        add(index, 2, [update([(1, 7)], BALANCE)]);
        index.remove(TxnId(1));
        assert_eq!(add(index, 3, [update([(1, 7)], BALANCE)]), [2]);
        index.remove(TxnId(2));
        index.remove(TxnId(3));
        assert!(index.is_empty());
        assert_eq!(add(index, 4, [update([(1, 7)], BALANCE)]), []);
    }

    #[test]
    fn what_nobody_knows_conflicts_with_all() {
        let index = &mut ConflictIndex::default();
        add(index, 1, [update([(1, 7)], BALANCE)]);
        add(index, 2, [update([(1, 8)], BALANCE)]);
        assert_eq!(add(index, 3, [Access::new(Item::everything(), Mode::Exclusive)]), [1, 2]);
        assert_eq!(add(index, 4, [update([(1, 7)], BALANCE)]), [3]);
        assert_eq!(add(index, 5, [Access::new(Item::everything(), Mode::Exclusive)]), [1, 2, 3, 4]);
    }

    fn any_access() -> impl Strategy<Value = Access> {
        let mode = prop_oneof![
            Just(Mode::KeyShared),
            Just(Mode::Shared),
            Just(Mode::Update),
            Just(Mode::Insert),
            Just(Mode::NoKeyExclusive),
            Just(Mode::Exclusive)
        ];
        let some = prop_oneof![Just(ColumnSet::ALL), columns_of(BALANCE), columns_of(NAME)];
        let columns = prop_oneof![4 => some, 1 => Just(ColumnSet::NONE)];
        let equals = proptest::collection::btree_map(1..4_u16, 0..3_i64, 0..3);
        (equals, mode, columns, 0..40_u8).prop_map(|(equals, mode, columns, everything)| {
            if everything == 0 {
                return Access::new(Item::everything(), Mode::Exclusive);
            }
            let equals = equals.into_iter().map(|(c, v)| (ColumnId(c), ValueHash::of_integer(v)));
            Access::of_columns(Item::rows(TABLE, equals), mode, columns)
        })
    }

    fn columns_of(column: ColumnId) -> Just<ColumnSet> {
        Just(ColumnSet::NONE.with(column))
    }

    proptest! {
        /// Whoever conflicts is found, or comes before somebody who is found; and nobody else is.
        #[test]
        fn what_is_found_orders_all_that_conflict(
            txns in proptest::collection::vec(proptest::collection::vec(any_access(), 1..4), 1..24),
            forgotten in 0..12_usize,
        ) {
            let mut index = ConflictIndex::default();
            let mut before: Vec<HashSet<usize>> = Vec::new();
            for (nth, accesses) in txns.iter().enumerate() {
                // All before a place are forgotten together, as those are that every worker contains.
                let kept = if nth > 12 { forgotten } else { 0 };
                if nth == 13 {
                    (0..kept).for_each(|txn| index.remove(TxnId(txn as u64)));
                }
                let conflicts = |other: usize| {
                    txns[other].iter().any(|a| accesses.iter().any(|b| conflict(a, b)))
                };
                let found: Vec<usize> =
                    index.add(TxnId(nth as u64), accesses).into_iter().map(|txn| txn.0 as usize).collect();
                let mut all = HashSet::default();
                for txn in &found {
                    prop_assert!(*txn >= kept && conflicts(*txn), "{nth} does not conflict with {txn}");
                    all.insert(*txn);
                    all.extend(before[*txn].iter().copied());
                }
                for other in kept..nth {
                    prop_assert!(!conflicts(other) || all.contains(&other), "{nth} is not put behind {other}");
                }
                before.push(all);
            }
        }
    }
}
