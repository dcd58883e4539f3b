//! What the clients of one round share: which rows are in use, and values that nobody has written yet.
//!
//! Every round has rows of its own, so that its history begins with everything empty and can be checked by itself.
//! Within a round lists and groups are replaced after some writes: a read of a list shows all its versions, so long
//! lists would cost more than they show.

use std::sync::atomic::{AtomicU64, Ordering};

use onecopy_sim::check::{List, Register, Table};

/// Statements that make the tables, in order.
pub(super) const SCHEMA: &[&str] = &[
    "DROP TABLE IF EXISTS torture_list",
    "DROP TABLE IF EXISTS torture_text",
    "DROP TABLE IF EXISTS torture_account",
    "DROP TABLE IF EXISTS torture_pair",
    "DROP TABLE IF EXISTS torture_duty",
    "DROP TABLE IF EXISTS torture_doctor",
    "DROP TABLE IF EXISTS torture_counter",
    "DROP TABLE IF EXISTS torture_row",
    "CREATE TABLE torture_list (id bigint PRIMARY KEY, items bigint[] NOT NULL)",
    "CREATE TABLE torture_text (id bigint PRIMARY KEY, items text NOT NULL)",
    "CREATE TABLE torture_account (id bigint PRIMARY KEY, balance bigint NOT NULL, version bigint, previous bigint)",
    "CREATE TABLE torture_pair (id bigint PRIMARY KEY, version bigint NOT NULL)",
    "CREATE TABLE torture_doctor (id bigint PRIMARY KEY, shift bigint NOT NULL, on_call bigint NOT NULL, \
     version bigint, previous bigint)",
    "CREATE INDEX torture_doctor_shift ON torture_doctor (shift)",
    "CREATE TABLE torture_duty (id bigint PRIMARY KEY, shift bigint NOT NULL, \
     doctor bigint NOT NULL REFERENCES torture_doctor, seen bigint)",
    "CREATE INDEX torture_duty_shift ON torture_duty (shift)",
    "CREATE TABLE torture_counter (id bigint PRIMARY KEY, total bigint NOT NULL, version bigint)",
    "CREATE TABLE torture_row (id bigint PRIMARY KEY, grp bigint NOT NULL)",
    "CREATE INDEX torture_row_grp ON torture_row (grp)",
];

/// Lists in use at once: the first `ARRAYS` are arrays, the others texts.
pub(super) const LISTS: i64 = 6;
const ARRAYS: i64 = 4;
pub(super) const ACCOUNTS: i64 = 8;
/// What each account holds at first.
pub(super) const BALANCE: i64 = 100;
pub(super) const SHIFTS: i64 = 3;
pub(super) const COUNTERS: i64 = 2;
/// Rows that a group may have at most: all inserts are conditional on fewer.
pub(super) const GROUP_MAX: usize = 6;

/// Rows of a round are numbered from its number times this.
const ROUND: i64 = 10_000_000;
const LIST_WRITES_MAX: u64 = 40 * LISTS as u64;
const GROUP_WRITES_MAX: u64 = 40;
/// Uses of a pair: its two inserts, and reads.
const PAIR_USES: u64 = 24;

/// One round.
pub(super) struct World {
    base: i64,
    next_value: AtomicU64,
    list_writes: AtomicU64,
    generations: u64,
    group_writes: AtomicU64,
    pair_uses: AtomicU64,
}

impl World {
    /// `transactions` bounds how often lists are written, about.
    pub(super) fn new(round: u64, transactions: u64) -> World {
        let base = i64::try_from(round + 1).unwrap_or(1) * ROUND;
        World {
            base,
            next_value: AtomicU64::new(1),
            list_writes: AtomicU64::new(0),
            generations: transactions * 3 / LIST_WRITES_MAX + 2,
            group_writes: AtomicU64::new(0),
            pair_uses: AtomicU64::new(0),
        }
    }

    /// A number that nobody else gets in this round: for values, versions and rows.
    pub(super) fn fresh(&self) -> i64 {
        as_key(self.next_value.fetch_add(1, Ordering::Relaxed))
    }

    /// The row of one of the lists in use, `0 <= place < LISTS`.
    pub(super) fn list(&self, place: i64, write: bool) -> i64 {
        let writes = self.list_writes.fetch_add(u64::from(write), Ordering::Relaxed);
        let generation = (writes / LIST_WRITES_MAX).min(self.generations - 1);
        self.base + as_key(generation) * LISTS + place
    }

    /// All rows of lists that may come into use.
    pub(super) fn lists(&self) -> impl Iterator<Item = i64> + use<> {
        self.base..self.base + as_key(self.generations) * LISTS
    }

    /// Rows of lists that have been in use.
    pub(super) fn used_lists(&self) -> impl Iterator<Item = i64> + use<> {
        self.base..self.list(LISTS - 1, false) + 1
    }

    pub(super) fn accounts(&self) -> std::ops::Range<i64> {
        self.base..self.base + ACCOUNTS
    }

    pub(super) fn doctors(&self) -> std::ops::Range<i64> {
        self.base..self.base + SHIFTS * 2
    }

    /// The shift of a doctor; each has two.
    pub(super) fn shift(&self, doctor: i64) -> i64 {
        self.base + (doctor - self.base) / 2
    }

    pub(super) fn counters(&self) -> std::ops::Range<i64> {
        self.base..self.base + COUNTERS
    }

    /// The group of rows in use.
    pub(super) fn group(&self, write: bool) -> i64 {
        let writes = self.group_writes.fetch_add(u64::from(write), Ordering::Relaxed);
        self.base + as_key(writes / GROUP_WRITES_MAX)
    }

    pub(super) fn groups(&self) -> std::ops::Range<i64> {
        self.base..self.group(false) + 1
    }

    /// A row of `torture_row`, whose ids must differ between rounds too.
    pub(super) fn fresh_row(&self) -> i64 {
        self.base + self.fresh()
    }

    /// The two rows of the pair in use, with the one that the caller must insert, if it must.
    pub(super) fn pair(&self) -> ([i64; 2], Option<i64>) {
        let used = self.pair_uses.fetch_add(1, Ordering::Relaxed);
        let first = self.base + as_key(used / PAIR_USES) * 2;
        // Readers come before, between and after the two inserts.
        let insert = match used % PAIR_USES {
            6 => Some(first),
            7 => Some(first + 1),
            _ => None,
        };
        ([first, first + 1], insert)
    }

    pub(super) fn pairs(&self) -> std::ops::Range<i64> {
        let used = self.pair_uses.load(Ordering::Relaxed);
        self.base..self.base + as_key(used / PAIR_USES) * 2 + 2
    }

    /// Whether a list's row is there from the start; the others appear when first appended to.
    pub(super) fn is_there(&self, list: i64) -> bool {
        list % 2 == 0
    }
}

/// The table of a list's row.
pub(super) fn is_array(list: i64) -> bool {
    (list % ROUND).rem_euclid(LISTS) < ARRAYS
}

fn as_key(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn as_id(key: i64) -> u64 {
    u64::try_from(key).unwrap_or_default()
}

/// The names of rows in histories; accounts, pairs, doctors and counters are registers by their last digits.
pub(super) fn list(row: i64) -> List {
    List(as_id(row))
}

pub(super) fn account(row: i64) -> Register {
    Register(as_id(row) * 10 + 1)
}

pub(super) fn pair_member(row: i64) -> Register {
    Register(as_id(row) * 10 + 2)
}

pub(super) fn doctor(row: i64) -> Register {
    Register(as_id(row) * 10 + 3)
}

pub(super) fn counter(row: i64) -> Register {
    Register(as_id(row) * 10 + 4)
}

pub(super) fn group(row: i64) -> Table {
    Table(as_id(row))
}

pub(super) fn value(number: i64) -> onecopy_sim::check::Value {
    onecopy_sim::check::Value(as_id(number))
}

pub(super) fn row(number: i64) -> onecopy_sim::check::Row {
    onecopy_sim::check::Row(as_id(number))
}
