//! Versions of tables: which one an operation must wait for, and which one a database has come to (distributed versioning;
//! DV 3.2, 4.2, 4.3 and 4.7).
//!
//! The sequencer's half, [`Assigner`], gives a transaction a version of each table that it will touch, all at once. The
//! database's half, [`Reached`], lets a write through when its version is there exactly, and a read when its version is there
//! or has been passed, which only other readers can have done. Every transaction produces one version of each of its tables:
//! when it has used the table for the last time, or at its end.
//!
//! Invariants:
//! - of two transactions that conflict, the earlier has the lower version of every table on which they do;
//! - so whoever waits waits for lower versions only, and nobody waits in a circle.
//!
//! What is beside the paper: the whole database may be wanted ([`TableId::ALL`]), by whoever does not say what it will touch.
//! It is a table that everybody reads and that such a transaction writes, even if it only reads. And whoever declares a table
//! need not use it, or may be given up: a version is produced when its turn has come, however early it is let go.
//!
//! Source: C. Amza, A. L. Cox, W. Zwaenepoel: Distributed Versioning (Middleware 2003), cited as DV.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::item::TableId;
use crate::map::HashMap;
use crate::table_queues::{LockMode, TableLocks};

/// How many transactions have touched a table before: the state that an operation may see of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(pub u64);

impl Version {
    /// The version that is there when one more transaction has let the table go.
    #[must_use]
    pub fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

/// A table with the version that a transaction was given, and what it may do there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assigned {
    /// The table.
    pub table: TableId,
    /// The version to wait for.
    pub version: Version,
    /// Reading or writing.
    pub mode: LockMode,
}

/// All versions of a transaction: given once, and carried by each of its messages (DV 4.3, 4.6).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Versions(Option<Arc<[Assigned]>>);

impl Versions {
    /// Those of `tables`; that of the whole database is among them if there is any.
    #[must_use]
    pub fn of(&self, tables: &TableLocks) -> Picked {
        let named = |table| table == TableId::ALL || tables.iter().any(|(named, _)| named == table);
        self.pick(|assigned| named(assigned.table))
    }

    /// Those that satisfy a condition.
    #[must_use]
    pub fn pick(&self, which: impl Fn(&Assigned) -> bool) -> Picked {
        if self.len() > Picked::PLACES {
            return Picked::ALL;
        }
        let places = self.iter().enumerate().filter(|(_, assigned)| which(assigned));
        Picked(places.fold(0, |picked, (place, _)| picked | 1 << place))
    }

    /// The versions at these places.
    pub fn picked(&self, picked: Picked) -> impl Iterator<Item = &Assigned> {
        self.iter().enumerate().filter(move |(place, _)| picked.has(*place)).map(|(_, assigned)| assigned)
    }
}

impl FromIterator<Assigned> for Versions {
    fn from_iter<I: IntoIterator<Item = Assigned>>(assigned: I) -> Versions {
        let assigned: Arc<[Assigned]> = assigned.into_iter().collect();
        Versions((!assigned.is_empty()).then_some(assigned))
    }
}

impl Deref for Versions {
    type Target = [Assigned];

    fn deref(&self) -> &[Assigned] {
        self.0.as_deref().unwrap_or(&[])
    }
}

/// Some of a transaction's versions, by their places. A transaction with more than [`Picked::PLACES`] tables deals with all of
/// them at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Picked(u64);

impl Picked {
    /// So many tables can be told apart.
    pub const PLACES: usize = u64::BITS as usize;
    /// Every place.
    pub const ALL: Picked = Picked(u64::MAX);
    /// No place.
    pub const NONE: Picked = Picked(0);

    /// Those of either.
    #[must_use]
    pub fn and(self, other: Picked) -> Picked {
        Picked(self.0 | other.0)
    }

    /// Those that are not among the others.
    #[must_use]
    pub fn without(self, other: Picked) -> Picked {
        Picked(self.0 & !other.0)
    }

    /// Those of both.
    #[must_use]
    pub fn common(self, other: Picked) -> Picked {
        Picked(self.0 & other.0)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    fn has(self, place: usize) -> bool {
        self == Picked::ALL || place < Picked::PLACES && self.0 >> place & 1 == 1
    }
}

/// What the sequencer remembers of a table: `next_for_read <= next_for_write`.
#[derive(Clone, Copy, Default, Debug)]
struct Next {
    next_for_read: Version,
    next_for_write: Version,
}

impl Next {
    /// DV 4.2, where figure 6 is the example.
    fn assign(&mut self, mode: LockMode) -> Version {
        let assigned = match mode {
            LockMode::Read => self.next_for_read,
            LockMode::Write => self.next_for_write,
        };
        self.next_for_write = self.next_for_write.next();
        if mode == LockMode::Write {
            self.next_for_read = self.next_for_write;
        }
        assigned
    }
}

/// The sequencer's half.
#[derive(Default, Debug)]
pub struct Assigner {
    tables: HashMap<TableId, Next>,
}

impl Assigner {
    /// The versions that are there when everybody who was given one of these tables to write it is done; none is given away.
    #[must_use]
    pub fn behind(&self, tables: &TableLocks) -> Versions {
        let whole = tables.iter().any(|(table, _)| table == TableId::ALL);
        let tables = tables.iter().map(|(table, _)| table).filter(|table| *table != TableId::ALL);
        let behind = tables.chain([TableId::ALL]).map(|table| {
            let next = self.tables.get(&table).copied().unwrap_or_default();
            let whole = whole && table == TableId::ALL;
            let version = if whole { next.next_for_write } else { next.next_for_read };
            Assigned { table, version, mode: LockMode::Read }
        });
        behind.collect()
    }

    /// The versions of a transaction that will touch these tables; all are given before any is given to the next one.
    pub fn assign(&mut self, tables: &TableLocks) -> Versions {
        let whole = tables.iter().any(|(table, _)| table == TableId::ALL);
        let all = if whole { LockMode::Write } else { LockMode::Read };
        let named = tables.iter().filter(|(table, _)| *table != TableId::ALL);
        let wanted = named.chain((!tables.is_empty()).then_some((TableId::ALL, all)));
        wanted
            .map(|(table, mode)| {
                let version = self.tables.entry(table).or_default().assign(mode);
                Assigned { table, version, mode }
            })
            .collect()
    }
}

/// The database's half: the version that each table has come to.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Reached {
    tables: HashMap<TableId, At>,
}

/// Where a table is.
#[derive(Clone, PartialEq, Default, Debug)]
struct At {
    reached: Version,
    /// Let go before their turn, by those who did not use the table or were given up: how many.
    early: BTreeMap<(Version, LockMode), u32>,
}

impl Reached {
    /// The version that a table has come to.
    #[must_use]
    pub fn version(&self, table: TableId) -> Version {
        self.tables.get(&table).map(|at| at.reached).unwrap_or_default()
    }

    /// Whether an operation with this version may execute (DV 4.3).
    #[must_use]
    pub fn admits(&self, assigned: &Assigned) -> bool {
        assigned.is_admitted_at(self.version(assigned.table))
    }

    /// Whether it may as far as all of these are concerned.
    pub fn admits_all<'a>(&self, assigned: impl IntoIterator<Item = &'a Assigned>) -> bool {
        assigned.into_iter().all(|assigned| self.admits(assigned))
    }

    /// A transaction will not touch a table any more (DV 4.5, 4.6). If its turn has come the next version is there, else it
    /// will be when its turn comes: whoever comes before may still be at work. Returns the version that is there now.
    pub fn release(&mut self, assigned: &Assigned) -> Version {
        let at = self.tables.entry(assigned.table).or_default();
        *at.early.entry((assigned.version, assigned.mode)).or_default() += 1;
        while let Some(mut next) = at.early.first_entry() {
            let (version, mode) = *next.key();
            if !mode.is_admitted(version, at.reached) {
                break;
            }
            at.reached = at.reached.next();
            *next.get_mut() -= 1;
            if *next.get() == 0 {
                next.remove();
            }
        }
        at.reached
    }
}

impl Assigned {
    /// Whether two transactions with these cannot use the table together.
    #[must_use]
    pub fn conflicts_with(&self, other: &Assigned) -> bool {
        self.table == other.table && [self.mode, other.mode].contains(&LockMode::Write)
    }

    fn is_admitted_at(&self, reached: Version) -> bool {
        self.mode.is_admitted(self.version, reached)
    }
}

impl LockMode {
    fn is_admitted(self, version: Version, reached: Version) -> bool {
        match self {
            LockMode::Read => reached >= version,
            LockMode::Write => reached == version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LockMode::{Read, Write};
    use super::*;
    use crate::table_queues::TableQueues;

    const A: TableId = TableId(1);
    const B: TableId = TableId(2);
    const C: TableId = TableId(3);

    fn locks<const N: usize>(tables: [(TableId, LockMode); N]) -> TableLocks {
        TableLocks::of_tables(tables)
    }

    fn of(assigned: &[Assigned], table: TableId) -> Assigned {
        *assigned.iter().find(|assigned| assigned.table == table).expect("it was asked for")
    }

    #[test]
    fn who_only_waits_for_what_was_given_out_takes_no_version() {
        let mut assigner = Assigner::default();
        assigner.assign(&locks([(A, Write)]));
        assigner.assign(&locks([(A, Read), (B, Read)]));
        let behind = |tables: &[(TableId, LockMode)], of_table| {
            of(&assigner.behind(&TableLocks::of_tables(tables.iter().copied())), of_table).version.0
        };
        // Behind the writer, not behind the reader; and nobody has wanted the whole.
        assert_eq!([A, B, C].map(|table| behind(&[(table, Read)], table)), [1, 0, 0]);
        assert_eq!(behind(&[(A, Read)], TableId::ALL), 0);
        // Whoever reads the whole waits for both.
        assert_eq!(behind(&[(TableId::ALL, Read)], TableId::ALL), 2);
    }

    /// DV figures 6 and 7, claim dv-24.
    #[test]
    fn s4_2_the_papers_example_is_assigned_and_produces_the_papers_versions() {
        let modes = [Write, Write, Read, Write, Read, Read, Read, Write];
        let mut assigner = Assigner::default();
        let assigned: Vec<Assigned> =
            modes.map(|mode| of(&assigner.assign(&locks([(A, mode)])), A)).into_iter().collect();
        let versions: Vec<u64> = assigned.iter().map(|assigned| assigned.version.0).collect();
        assert_eq!(versions, [0, 1, 2, 3, 4, 4, 4, 7]);
        let mut reached = Reached::default();
        let mut produced = Vec::new();
        for assigned in &assigned {
            assert!(reached.admits(assigned));
            produced.push(reached.release(assigned).0);
        }
        assert_eq!(produced, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn s4_3_readers_of_one_version_execute_together_and_a_writer_after_the_last_of_them() {
        let mut assigner = Assigner::default();
        let mut of_a = |mode| of(&assigner.assign(&locks([(A, mode)])), A);
        let (one, other, writer) = (of_a(Read), of_a(Read), of_a(Write));
        let mut reached = Reached::default();
        assert!(reached.admits(&one) && reached.admits(&other) && !reached.admits(&writer));
        reached.release(&one);
        assert!(reached.admits(&other) && !reached.admits(&writer));
        reached.release(&other);
        assert!(reached.admits(&writer));
    }

    #[test]
    fn a_table_that_is_let_go_before_its_turn_is_passed_on_when_its_turn_comes() {
        let mut assigner = Assigner::default();
        let mut of_a = |mode| of(&assigner.assign(&locks([(A, mode)])), A);
        let (first, unused, given_up, last) = (of_a(Write), of_a(Read), of_a(Write), of_a(Write));
        let mut reached = Reached::default();
        reached.release(&given_up);
        reached.release(&unused);
        // The first may still be at work.
        assert!(reached.admits(&first) && !reached.admits(&last));
        assert_eq!(reached.release(&first), last.version);
        assert!(reached.admits(&last));
    }

    #[test]
    fn some_of_a_transactions_versions_are_told_by_their_places() {
        let versions = Assigner::default().assign(&locks([(A, Write), (B, Read), (C, Read)]));
        let picked = versions.of(&locks([(B, Read)]));
        let tables = |picked| versions.picked(picked).map(|assigned| assigned.table).collect::<Vec<_>>();
        assert_eq!(tables(picked), [B, TableId::ALL]);
        assert_eq!(tables(versions.pick(|assigned| assigned.mode == Read).without(picked)), [C]);
        assert_eq!(tables(Picked::ALL), [A, B, C, TableId::ALL]);
        assert!(picked.common(versions.of(&TableLocks::default())) != Picked::NONE && Picked::NONE.is_none());
        let many: Vec<_> = (0..80).map(|table| (TableId(table), Write)).collect();
        let many = Assigner::default().assign(&TableLocks::of_tables(many));
        assert_eq!(many.picked(many.of(&locks([(A, Write)]))).count(), 81);
    }

    /// Steps until two transactions that write A, B and C in this order have done so, if every step everybody who may does
    /// one operation.
    fn steps(
        may_write: &mut dyn FnMut(usize, TableId) -> bool,
        wrote: &mut dyn FnMut(usize, TableId),
    ) -> u32 {
        const TABLES: [TableId; 3] = [A, B, C];
        let (mut done, mut steps) = ([0, 0], 0);
        while done != [3, 3] {
            steps += 1;
            assert!(steps < 100, "nobody may go on: {done:?}");
            let goes = [0, 1].map(|txn| done[txn] < 3 && may_write(txn, TABLES[done[txn]]));
            for txn in [0, 1].into_iter().filter(|txn| goes[*txn]) {
                wrote(txn, TABLES[done[txn]]);
                done[txn] += 1;
            }
        }
        steps
    }

    /// DV figures 3 and 4, claim dv-25.
    #[test]
    fn s3_6_two_transactions_that_write_the_same_three_tables_overlap() {
        let tables = locks([(A, Write), (B, Write), (C, Write)]);
        let mut assigner = Assigner::default();
        let assigned = [assigner.assign(&tables), assigner.assign(&tables)];
        let reached = std::cell::RefCell::new(Reached::default());
        let versioning = steps(
            &mut |txn, table| reached.borrow().admits(&of(&assigned[txn], table)),
            &mut |txn, table| _ = reached.borrow_mut().release(&of(&assigned[txn], table)),
        );
        assert_eq!(versioning, 4);

        let queues = std::cell::RefCell::new(TableQueues::default());
        let granted = [0, 1].map(|txn| queues.borrow_mut().request(txn, tables.clone()));
        let granted = std::cell::RefCell::new(granted);
        let two_phase = steps(&mut |txn, _| granted.borrow()[txn], &mut |txn, table| {
            if table == C {
                for next in queues.borrow_mut().release(txn) {
                    granted.borrow_mut()[next] = true;
                }
            }
        });
        assert_eq!(two_phase, 6);
    }

    #[test]
    fn whoever_wants_the_whole_database_has_it_alone() {
        let mut assigner = Assigner::default();
        let first = assigner.assign(&locks([(A, Write)]));
        let whole = assigner.assign(&TableLocks::everything(Read));
        let last = assigner.assign(&locks([(B, Read)]));
        let mut reached = Reached::default();
        let admitted = |reached: &Reached, assigned: &[Assigned]| reached.admits_all(assigned);
        let release = |reached: &mut Reached, assigned: &[Assigned]| {
            assigned.iter().for_each(|assigned| _ = reached.release(assigned));
        };
        assert!(admitted(&reached, &first) && !admitted(&reached, &whole) && !admitted(&reached, &last));
        release(&mut reached, &first);
        assert!(admitted(&reached, &whole) && !admitted(&reached, &last));
        release(&mut reached, &whole);
        assert!(admitted(&reached, &last));
        assert!(assigner.assign(&TableLocks::default()).is_empty());
    }

    /// DV 3.3: transactions of random tables, which release at random moments, all come to their end.
    #[test]
    fn s3_3_nobody_waits_in_a_circle() {
        for seed in 0..200_u64 {
            let mut state = seed;
            let mut random = move |bound: u64| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                (mixed ^ (mixed >> 27)) % bound
            };
            let mut assigner = Assigner::default();
            let mut open: Vec<Vec<Assigned>> = Vec::new();
            for _ in 0..30 {
                let tables = (0..random(4) + 1).map(|_| TableId(random(5)));
                let tables: Vec<(TableId, LockMode)> =
                    tables.map(|table| (table, if table.0 % 2 == 0 { Write } else { Read })).collect();
                open.push(assigner.assign(&TableLocks::of_tables(tables)).to_vec());
            }
            let mut reached = Reached::default();
            while !open.is_empty() {
                let ready = |txn: &Vec<Assigned>| txn.iter().position(|assigned| reached.admits(assigned));
                let candidates: Vec<(usize, usize)> =
                    open.iter().enumerate().filter_map(|(place, txn)| Some((place, ready(txn)?))).collect();
                assert!(!candidates.is_empty(), "seed {seed}: {open:?} wait for each other");
                let (place, table) = candidates[random(candidates.len() as u64) as usize];
                reached.release(&open[place].remove(table));
                open.retain(|txn| !txn.is_empty());
            }
        }
    }
}
