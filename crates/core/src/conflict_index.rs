//! Which of many transactions conflict with a new one, found by a few look-ups.
//!
//! For protocols that order transactions before they run, by what they may write (docs/protocols/chains.md). An item is kept
//! under its table and the set of columns that it names, by their values. A new item asks each such set of its table by the
//! columns that both name. Who conflicts with another one takes its place, as far as it does the same to the same rows: whoever comes
//! later and conflicts with the earlier one conflicts with the later one, too, and is behind both.

use smallvec::SmallVec;

use crate::ids::TxnId;
use crate::item::{Access, ColumnId, ColumnSet, Equals, Mode, Space, TableId, ValueHash};
use crate::map::HashMap;

type Columns = SmallVec<[ColumnId; 4]>;
type Values = SmallVec<[ValueHash; 4]>;

/// Whether two transactions must not run side by side, each in a snapshot, for the sake of these. Rows that one adds are in no
/// snapshot of the other, so they are not those that the other changes, removes or refers to; two may add the same key.
#[must_use]
pub fn conflict(a: &Access, b: &Access) -> bool {
    let everything = a.item.table == TableId::ALL || b.item.table == TableId::ALL;
    everything || kinds_conflict((a.mode, a.columns), (b.mode, b.columns)) && a.item.overlaps(&b.item)
}

fn kinds_conflict(a: (Mode, ColumnSet), b: (Mode, ColumnSet)) -> bool {
    use Mode::{Exclusive, Insert, KeyShared, NoKeyExclusive, Shared, Update};
    match (a.0, b.0) {
        (NoKeyExclusive, NoKeyExclusive | Shared | Update) | (Shared | Update, NoKeyExclusive) => {
            a.1.overlaps(b.1)
        }
        (Exclusive, Exclusive | NoKeyExclusive | Shared | Update | KeyShared)
        | (NoKeyExclusive | Shared | Update | KeyShared, Exclusive) => true,
        (Insert, Shared | Update) | (Shared | Update, Insert) => true,
        (Insert, Insert | NoKeyExclusive | Exclusive | KeyShared)
        | (NoKeyExclusive | Exclusive | KeyShared, Insert) => false,
        (KeyShared, KeyShared | NoKeyExclusive | Shared | Update)
        | (NoKeyExclusive | Shared | Update, KeyShared)
        | (Shared | Update, Shared | Update) => false,
    }
}

/// What of `earlier` has still to be known, if `later` conflicts with it on the same rows: with the rest nothing conflicts that does not
/// conflict with `later`, too.
fn left_of(earlier: (Mode, ColumnSet), later: (Mode, ColumnSet)) -> Option<ColumnSet> {
    match (later.0, earlier.0) {
        (Mode::Exclusive, Mode::Exclusive | Mode::NoKeyExclusive | Mode::KeyShared) => None,
        (Mode::NoKeyExclusive, Mode::NoKeyExclusive) => {
            let left = earlier.1.without(later.1);
            (left != ColumnSet::NONE).then_some(left)
        }
        _ => Some(earlier.1),
    }
}

/// What transactions that are not over may do, by items.
#[derive(Default, Debug)]
pub struct ConflictIndex {
    tables: HashMap<(TableId, Space), Vec<Shape>>,
    /// Those whose items are not known.
    of_everything: SmallVec<[TxnId; 2]>,
    places: HashMap<TxnId, Vec<Place>>,
}

/// Where an item of a transaction is kept.
#[derive(Debug)]
struct Place {
    space: (TableId, Space),
    shape: usize,
    values: Values,
}

/// Items of one table that name the same columns.
#[derive(Debug)]
struct Shape {
    columns: Columns,
    holders: HashMap<Values, SmallVec<[Holder; 2]>>,
    /// For whoever names only some of the columns: the values, by those of them.
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    /// Places in the shape's columns.
    at: SmallVec<[usize; 4]>,
    values: HashMap<Values, Vec<Values>>,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    txn: TxnId,
    kind: (Mode, ColumnSet),
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
            let (columns, values) = split(&access.item.equals);
            for shape in self.tables.entry((access.item.table, access.item.space)).or_default() {
                shape.ask(false, (access.mode, access.columns), (&columns, &values), &mut found);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Adds a transaction behind all others, and returns those that it conflicts with, each once, but for those of whom
    /// others that are returned have taken the place, by number.
    pub fn add(&mut self, txn: TxnId, accesses: &[Access]) -> Vec<TxnId> {
        let mut found = Vec::new();
        if accesses.iter().any(|access| access.item.table == TableId::ALL) {
            found.extend(self.places.keys().copied());
            // Whoever comes later is behind all of them by way of it.
            self.tables.clear();
            self.of_everything = SmallVec::from_slice(&[txn]);
            self.places.values_mut().for_each(Vec::clear);
            self.places.insert(txn, Vec::new());
            found.sort_unstable();
            return found;
        }
        found.extend(self.of_everything.iter().copied());
        for access in accesses {
            let (columns, values) = split(&access.item.equals);
            let shapes = self.tables.entry((access.item.table, access.item.space)).or_default();
            for shape in &mut *shapes {
                shape.ask(true, (access.mode, access.columns), (&columns, &values), &mut found);
            }
        }
        let places = self.places.entry(txn).or_default();
        for access in accesses {
            let space = (access.item.table, access.item.space);
            let (columns, values) = split(&access.item.equals);
            let shapes = self.tables.entry(space).or_default();
            let shape = shapes.iter().position(|shape| shape.columns == columns).unwrap_or_else(|| {
                shapes.push(Shape { columns, holders: HashMap::default(), parts: Vec::new() });
                shapes.len() - 1
            });
            if shapes[shape].hold(txn, (access.mode, access.columns), &values) {
                places.push(Place { space, shape, values });
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Forgets a transaction: whoever comes later need not know of it, nor of any that it conflicted with when it was added.
    pub fn remove(&mut self, txn: TxnId) {
        self.of_everything.retain(|of| *of != txn);
        for Place { space, shape, values } in self.places.remove(&txn).unwrap_or_default() {
            // A later one may have taken its place.
            if let Some(shape) = self.tables.get_mut(&space).and_then(|shapes| shapes.get_mut(shape)) {
                shape.let_go(txn, &values);
            }
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

fn split(equals: &Equals) -> (Columns, Values) {
    equals.iter().copied().unzip()
}

impl Shape {
    /// Finds who conflicts; who is new takes the place of those that are beneath it.
    fn ask(
        &mut self,
        is_new: bool,
        kind: (Mode, ColumnSet),
        (columns, values): (&Columns, &Values),
        found: &mut Vec<TxnId>,
    ) {
        let mut at = SmallVec::new();
        let mut common = Values::new();
        for (place, column) in self.columns.iter().enumerate() {
            if let Ok(theirs) = columns.binary_search(column) {
                at.push(place);
                common.push(values[theirs]);
            }
        }
        // Only if all rows of these are its own, too.
        let takes_place = is_new && at.len() == columns.len();
        if at.len() == self.columns.len() {
            return self.ask_row(takes_place, kind, &common, found);
        }
        let rows: Vec<Values> = if at.is_empty() {
            self.holders.keys().cloned().collect()
        } else {
            self.part(at).values.get(&common).cloned().unwrap_or_default()
        };
        for row in &rows {
            self.ask_row(takes_place, kind, row, found);
        }
    }

    fn ask_row(&mut self, takes_place: bool, kind: (Mode, ColumnSet), row: &Values, found: &mut Vec<TxnId>) {
        let Some(holders) = self.holders.get_mut(row) else { return };
        holders.retain(|holder| {
            let conflicts = kinds_conflict(holder.kind, kind);
            if conflicts {
                found.push(holder.txn);
            }
            let is_beneath = conflicts && takes_place;
            let left = if is_beneath { left_of(holder.kind, kind) } else { Some(holder.kind.1) };
            left.map(|left| holder.kind.1 = left).is_some()
        });
        if holders.is_empty() {
            self.drop_row(row);
        }
    }

    /// The rows by the values of some of the columns, kept from the first time that somebody asks.
    fn part(&mut self, at: SmallVec<[usize; 4]>) -> &Part {
        let known = self.parts.iter().position(|part| part.at == at).unwrap_or_else(|| {
            let mut part = Part { at, values: HashMap::default() };
            self.holders.keys().for_each(|values| part.add(values));
            self.parts.push(part);
            self.parts.len() - 1
        });
        &self.parts[known]
    }

    /// Returns whether it was not held so before.
    fn hold(&mut self, txn: TxnId, kind: (Mode, ColumnSet), values: &Values) -> bool {
        if !self.holders.contains_key(values) {
            self.parts.iter_mut().for_each(|part| part.add(values));
        }
        let holders = self.holders.entry(values.clone()).or_default();
        match holders.iter_mut().find(|holder| holder.txn == txn && holder.kind.0 == kind.0) {
            Some(own) => {
                own.kind.1 = own.kind.1.union(kind.1);
                false
            }
            None => {
                holders.push(Holder { txn, kind });
                true
            }
        }
    }

    fn let_go(&mut self, txn: TxnId, values: &Values) {
        let Some(holders) = self.holders.get_mut(values) else { return };
        holders.retain(|holder| holder.txn != txn);
        if holders.is_empty() {
            self.drop_row(&values.clone());
        }
    }

    fn drop_row(&mut self, values: &Values) {
        self.holders.remove(values);
        self.parts.iter_mut().for_each(|part| part.remove(values));
    }
}

impl Part {
    fn project(&self, values: &Values) -> Values {
        self.at.iter().map(|place| values[*place]).collect()
    }

    fn add(&mut self, values: &Values) {
        self.values.entry(self.project(values)).or_default().push(values.clone());
    }

    fn remove(&mut self, values: &Values) {
        let part = self.project(values);
        if let Some(rows) = self.values.get_mut(&part) {
            rows.retain(|row| row != values);
            if rows.is_empty() {
                self.values.remove(&part);
            }
        }
    }
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
