//! Items: what conflicts are counted on, and the modes in which they are taken (design 3.1).
//!
//! An item is a set of rows of one table: those in which given columns equal given constants. No columns
//! mean all rows. Two items of a table overlap unless some column that both name must differ between them,
//! so leaving a column out is always safe and only costs concurrency.
//!
//! Items of one table live in separate *spaces* that never conflict with each other: the rows themselves,
//! the values of one unique key (taken by whoever creates or frees such a value), and the table's schema.
//!
//! An access may say which columns of its rows it is about. Whoever reads some and whoever changes others do not conflict;
//! saying nothing is always safe.

use smallvec::SmallVec;

/// A table's identity: a stable hash of its qualified name, equal on every replica and across restarts.
///
/// A collision of hashes can only make two tables conflict that need not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableId(pub u64);

impl TableId {
    /// Stands for every table of the database.
    pub const ALL: TableId = TableId(u64::MAX);
    /// Stands for no table, but for what the names of the database mean: see [`Item::names`].
    pub const NAMES: TableId = TableId(u64::MAX - 1);
}

/// A column's number within its table (PostgreSQL: `attnum`), `1 <= id`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ColumnId(pub u16);

/// Columns of one table, one bit each; all from the 64th on share one, so that a set may seem to have more than it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ColumnSet(u64);

impl ColumnSet {
    /// Every column, and whatever else a row has.
    pub const ALL: ColumnSet = ColumnSet(u64::MAX);
    /// The columns that share a bit.
    pub(crate) const SHARED: ColumnSet = ColumnSet(1 << 63);
    /// No column: of whoever asks only whether there are rows.
    pub const NONE: ColumnSet = ColumnSet(0);

    /// This set and one more column.
    #[must_use]
    pub fn with(self, column: ColumnId) -> ColumnSet {
        ColumnSet(self.0 | 1 << column.0.saturating_sub(1).min(63))
    }

    /// The columns of both sets.
    #[must_use]
    pub fn union(self, other: ColumnSet) -> ColumnSet {
        ColumnSet(self.0 | other.0)
    }

    /// The columns of this set that are not in the other.
    #[must_use]
    pub fn without(self, other: ColumnSet) -> ColumnSet {
        ColumnSet(self.0 & !other.0)
    }

    /// The set that has these bits.
    #[must_use]
    pub fn of_bits(bits: u64) -> ColumnSet {
        ColumnSet(bits)
    }

    /// The set as bits: the first column's is the lowest.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether some column may be in both.
    #[must_use]
    pub fn overlaps(self, other: ColumnSet) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether every column of the other is in this one.
    #[must_use]
    pub fn contains(self, other: ColumnSet) -> bool {
        other.0 & !self.0 == 0
    }
}

impl FromIterator<ColumnId> for ColumnSet {
    fn from_iter<I: IntoIterator<Item = ColumnId>>(columns: I) -> ColumnSet {
        columns.into_iter().fold(ColumnSet::NONE, ColumnSet::with)
    }
}

/// A unique key's number within its table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyId(pub u32);

/// The canonical form of a value, hashed to 64 bits.
///
/// Equal values have equal hashes, so hashes that differ prove that the values differ; equal hashes of
/// different values only cost concurrency.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ValueHash(pub u64);

impl ValueHash {
    /// The hash of a canonical integer: a bijection, so integers never collide with each other.
    #[must_use]
    pub fn of_integer(value: i64) -> ValueHash {
        ValueHash(mix(value as u64))
    }

    /// The integer of which this is the hash, if it is one of an integer.
    #[must_use]
    pub fn as_integer(self) -> i64 {
        unmix(self.0) as i64
    }

    /// The hash of canonical bytes (text under a deterministic collation, uuid, bytea).
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> ValueHash {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ (bytes.len() as u64);
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            hash = mix(hash ^ u64::from_le_bytes(word));
        }
        let mut word = [0; 8];
        let rest = chunks.remainder();
        word[..rest.len()].copy_from_slice(rest);
        ValueHash(mix(hash ^ u64::from_le_bytes(word)))
    }
}

/// The finaliser of SplitMix64: a bijection on 64 bits whose outputs look independent.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What [`mix`] was given.
fn unmix(mut x: u64) -> u64 {
    // The inverses of the two factors modulo 2^64; a shift by half of the bits or more is undone by one or two more of it.
    x ^= (x >> 31) ^ (x >> 62);
    x = x.wrapping_mul(0x3196_42b2_d24d_8ec3);
    x ^= (x >> 27) ^ (x >> 54);
    x = x.wrapping_mul(0x96de_1b17_3f11_9089);
    x ^= (x >> 30) ^ (x >> 60);
    x.wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

/// Which of a table's separate kinds of items is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Space {
    /// The rows.
    Rows,
    /// The values of one unique key, taken `Exclusive` by whoever creates or frees one.
    Key(KeyId),
    /// The table's definition, taken `Exclusive` by DDL and TRUNCATE, together with all of its rows: those are what
    /// statements on the table conflict with (design 3.10). It stands alone for tables that foreign keys tie to one that is
    /// dropped: their definitions change, their rows stay.
    Schema,
}

/// The columns that an item names, sorted by column, each column at most once.
pub type Equals = SmallVec<[(ColumnId, ValueHash); 2]>;

/// What conflicts are counted on: the rows (or keys) of a table in which the named columns have the named values.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Item {
    /// The table, or `TableId::ALL`, which overlaps every item of every table.
    pub table: TableId,
    /// Rows, one unique key's values, or the schema.
    pub space: Space,
    /// The columns that must equal; empty means the whole space.
    pub equals: Equals,
}

impl Item {
    /// Every row of every table, every key and every schema.
    #[must_use]
    pub fn everything() -> Item {
        Item { table: TableId::ALL, space: Space::Rows, equals: Equals::new() }
    }

    /// All rows of a table.
    #[must_use]
    pub fn table(table: TableId) -> Item {
        Item { table, space: Space::Rows, equals: Equals::new() }
    }

    /// Which objects there are under which names. Every change of definitions takes it, since nobody can say beforehand which
    /// names it looks up or makes: a name that is unknown has no table to conflict on, and indexes, sequences and types get
    /// names that no text shows. Whoever changes rows does not take it.
    #[must_use]
    pub fn names() -> Item {
        Item::schema(TableId::NAMES)
    }

    /// The rows of a table in which the given columns have the given values.
    ///
    /// `equals` may come in any order; of a column named twice with different values the first is kept, which
    /// widens the item.
    #[must_use]
    pub fn rows(table: TableId, equals: impl IntoIterator<Item = (ColumnId, ValueHash)>) -> Item {
        Item { table, space: Space::Rows, equals: sorted(equals) }
    }

    /// One value of a unique key; with too few columns, all values that have the given ones.
    #[must_use]
    pub fn key(table: TableId, key: KeyId, equals: impl IntoIterator<Item = (ColumnId, ValueHash)>) -> Item {
        Item { table, space: Space::Key(key), equals: sorted(equals) }
    }

    /// The table's definition.
    #[must_use]
    pub fn schema(table: TableId) -> Item {
        Item { table, space: Space::Schema, equals: Equals::new() }
    }

    /// Whether some row (or key) may belong to both.
    #[must_use]
    pub fn overlaps(&self, other: &Item) -> bool {
        if self.table == TableId::ALL || other.table == TableId::ALL {
            return true;
        }
        self.table == other.table && self.space == other.space && !columns_differ(&self.equals, &other.equals)
    }
}

fn sorted(equals: impl IntoIterator<Item = (ColumnId, ValueHash)>) -> Equals {
    let mut equals: Equals = equals.into_iter().collect();
    equals.sort_by_key(|(column, _)| *column);
    equals.dedup_by_key(|(column, _)| *column);
    equals
}

/// Whether two sorted lists name some column with different values.
pub(crate) fn columns_differ(a: &[(ColumnId, ValueHash)], b: &[(ColumnId, ValueHash)]) -> bool {
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        match a[i].0.cmp(&b[j].0) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal if a[i].1 != b[j].1 => return true,
            std::cmp::Ordering::Equal => (i, j) = (i + 1, j + 1),
        }
    }
    false
}

/// How an item is taken; the order is by strength, but `Update` and `Insert` stand beside each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// The row must go on existing under its key: a foreign-key check.
    KeyShared,
    /// The rows are read, or are found not to exist: a SELECT whose transaction will write, FOR SHARE, FOR KEY SHARE.
    Shared,
    /// The rows are read by somebody who will write them: compatible with readers, not with itself.
    Update,
    /// New rows appear: compatible with other inserts and with key-shared.
    Insert,
    /// Rows change, but not their keys: UPDATE of other columns, FOR NO KEY UPDATE.
    NoKeyExclusive,
    /// Rows change with their keys, or go: DELETE, UPDATE of a key, FOR UPDATE, TRUNCATE.
    Exclusive,
}

impl Mode {
    /// Whether two transactions cannot hold overlapping items in these modes at once, unless they are of different columns:
    /// see [`Access::conflicts`].
    #[must_use]
    pub fn conflicts(self, other: Mode) -> bool {
        use Mode::{Exclusive, Insert, KeyShared, NoKeyExclusive, Shared, Update};
        match (self, other) {
            (Exclusive, _) | (_, Exclusive) => true,
            (KeyShared, _) | (_, KeyShared) => false,
            (NoKeyExclusive, _) | (_, NoKeyExclusive) => true,
            (Insert, Insert) | (Shared, Shared) => false,
            (Insert, _) | (_, Insert) => true,
            (Update, Update) => true,
            (Update, Shared) | (Shared, Update) => false,
        }
    }

    /// Whether holding an item in this mode gives every right that `other` would give.
    #[must_use]
    pub fn covers(self, other: Mode) -> bool {
        use Mode::{Exclusive, KeyShared, NoKeyExclusive, Shared, Update};
        match self {
            Exclusive => true,
            NoKeyExclusive => matches!(other, NoKeyExclusive | Update | Shared | KeyShared),
            Update => matches!(other, Update | Shared | KeyShared),
            Shared => matches!(other, Shared | KeyShared),
            Mode::Insert | KeyShared => self == other,
        }
    }

    /// Whether a commit that held this mode may have changed what a reader of the item sees.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Mode::Insert | Mode::NoKeyExclusive | Mode::Exclusive)
    }
}

/// One item with its mode.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Access {
    /// What is taken.
    pub item: Item,
    /// How it is taken.
    pub mode: Mode,
    /// Of rows that are read ([`Mode::Shared`]) the columns that matter; of rows that change under their keys
    /// ([`Mode::NoKeyExclusive`]) those that change. Other modes concern all of them.
    pub columns: ColumnSet,
}

impl Access {
    /// An item taken in a mode, all of its columns.
    #[must_use]
    pub fn new(item: Item, mode: Mode) -> Access {
        Access { item, mode, columns: ColumnSet::ALL }
    }

    /// An item taken in a mode, but only these columns of its rows.
    #[must_use]
    pub fn of_columns(item: Item, mode: Mode, columns: ColumnSet) -> Access {
        Access { item, mode, columns }
    }

    /// Whether two transactions cannot hold these at once.
    #[must_use]
    pub fn conflicts(&self, other: &Access) -> bool {
        modes_conflict((self.mode, self.columns), (other.mode, other.columns))
            && self.item.overlaps(&other.item)
    }

    /// Whether holding this gives every right that the other would give. Nobody else changes any column of what is held
    /// in a mode that excludes writers; so only readers must hold the columns themselves, and writers those that they change.
    #[must_use]
    pub fn covers(&self, other: &Access) -> bool {
        self.item == other.item
            && self.mode.covers(other.mode)
            && (self.mode != other.mode
                || !matches!(self.mode, Mode::Shared | Mode::NoKeyExclusive)
                || self.columns.contains(other.columns))
    }
}

/// Whether overlapping items cannot be held so at once: as [`Mode::conflicts`] says, but whoever reads some columns does not
/// mind that others change. Two that change rows always conflict, since a server locks rows whole; and so does whoever reads
/// all columns, whatever changes, since it may have locked the rows there, too.
#[must_use]
pub(crate) fn modes_conflict(a: (Mode, ColumnSet), b: (Mode, ColumnSet)) -> bool {
    let apart = match (a.0, b.0) {
        (Mode::Shared, Mode::NoKeyExclusive) => a.1 != ColumnSet::ALL && !a.1.overlaps(b.1),
        (Mode::NoKeyExclusive, Mode::Shared) => b.1 != ColumnSet::ALL && !a.1.overlaps(b.1),
        _ => false,
    };
    a.0.conflicts(b.0) && !apart
}

/// The items that a statement or transaction reads and writes, each with its mode.
pub type AccessSet = SmallVec<[Access; 2]>;
