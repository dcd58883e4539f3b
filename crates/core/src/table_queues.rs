//! Reader-writer lock queues of tables: all locks of a transaction are asked for at once and granted first come first
//! served, so that nobody deadlocks (conservative two-phase locking; CAS 2 and 4.3).
//!
//! The whole database is a lock too. Every request stands in the whole's queue, as a reader or writer of the whole or
//! with the intention to read or write a part of it, and in the queue of each table that it names.
//!
//! Invariants:
//! - a lock is granted exactly if it is compatible with every lock ahead of it in its queue, granted or not, but for those whose
//!   owners only wait for others;
//! - requests stand in the same order in every queue.

use std::collections::BTreeMap;
use std::hash::Hash;

use smallvec::SmallVec;

use crate::item::{Access, TableId};
use crate::map::HashMap;

/// How a table is locked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LockMode {
    /// Together with other readers.
    Read,
    /// Alone.
    Write,
}

/// Tables with the mode in which each is locked: sorted, each table once, and nothing beside the whole database if that
/// is written.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TableLocks(SmallVec<[(TableId, LockMode); 4]>);

impl TableLocks {
    /// The whole database.
    #[must_use]
    pub fn everything(mode: LockMode) -> TableLocks {
        TableLocks::of_tables([(TableId::ALL, mode)])
    }

    /// These tables; of a table named twice the stronger mode counts.
    #[must_use]
    pub fn of_tables(tables: impl IntoIterator<Item = (TableId, LockMode)>) -> TableLocks {
        let mut locks: SmallVec<[(TableId, LockMode); 4]> = tables.into_iter().collect();
        locks.sort_unstable_by(|(a, mode_a), (b, mode_b)| a.cmp(b).then(mode_b.cmp(mode_a)));
        locks.dedup_by_key(|(table, _)| *table);
        // To read all and write a part is to write all: coarser, and one mode less to reason about.
        let whole = locks.last().is_some_and(|(table, _)| *table == TableId::ALL);
        if whole && locks.iter().any(|(_, mode)| *mode == LockMode::Write) {
            locks = SmallVec::from_slice(&[(TableId::ALL, LockMode::Write)]);
        }
        TableLocks(locks)
    }

    /// The tables of these items: written if some item of the table is taken in a writing mode. Rows, keys and schema
    /// of a table count alike.
    #[must_use]
    pub fn of(accesses: &[Access]) -> TableLocks {
        TableLocks::of_tables(accesses.iter().map(|access| {
            let mode = if access.mode.writes() { LockMode::Write } else { LockMode::Read };
            (access.item.table, mode)
        }))
    }

    /// Both.
    #[must_use]
    pub fn union(&self, other: &TableLocks) -> TableLocks {
        TableLocks::of_tables(self.iter().chain(other.iter()))
    }

    /// Whether whoever holds these may do everything that `other` would allow.
    #[must_use]
    pub fn covers(&self, other: &TableLocks) -> bool {
        let of_whole = self.mode_of(TableId::ALL);
        other.iter().all(|(table, mode)| self.mode_of(table).max(of_whole) >= Some(mode))
    }

    /// Table and mode, by table.
    pub fn iter(&self) -> impl Iterator<Item = (TableId, LockMode)> {
        self.0.iter().copied()
    }

    /// Whether a table is among them, or the whole database if that is asked for.
    #[must_use]
    pub fn names(&self, table: TableId) -> bool {
        self.mode_of(table).is_some()
    }

    /// Whether nothing is locked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether anything is written.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.iter().any(|(_, mode)| mode == LockMode::Write)
    }

    fn mode_of(&self, table: TableId) -> Option<LockMode> {
        self.0.binary_search_by_key(&table, |(table, _)| *table).ok().map(|at| self.0[at].1)
    }
}

/// A lock as it stands in a queue; `IntendRead` and `IntendWrite` only in the queue of the whole database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lock {
    IntendRead,
    IntendWrite,
    Read,
    Write,
}

impl Lock {
    fn compatible(self, other: Lock) -> bool {
        use Lock::{IntendRead, IntendWrite, Read};
        matches!(
            (self, other),
            (IntendRead | IntendWrite, IntendRead | IntendWrite)
                | (Read, Read | IntendRead)
                | (IntendRead, Read)
        )
    }
}

/// A request's place in every queue in which it stands.
type Ticket = u64;

#[derive(Debug)]
struct Entry {
    lock: Lock,
    granted: bool,
    /// Whoever comes later does not wait for it.
    yields: bool,
}

#[derive(Default, Debug)]
struct Queue {
    entries: BTreeMap<Ticket, Entry>,
    /// How many entries there are of each kind of lock that somebody may have to wait for.
    counts: Counts,
    waiting: usize,
}

#[derive(Clone, Copy, Default, Debug)]
struct Counts([usize; 4]);

impl Counts {
    const LOCKS: [Lock; 4] = [Lock::IntendRead, Lock::IntendWrite, Lock::Read, Lock::Write];

    fn admit(&self, lock: Lock) -> bool {
        Counts::LOCKS.iter().zip(self.0).all(|(other, count)| count == 0 || lock.compatible(*other))
    }
}

impl Queue {
    /// Puts a lock at the end. Whether it is granted at once.
    fn push(&mut self, ticket: Ticket, lock: Lock, yields: bool) -> bool {
        let granted = self.counts.admit(lock);
        self.counts.0[lock as usize] += usize::from(!yields);
        self.waiting += usize::from(!granted);
        self.entries.insert(ticket, Entry { lock, granted, yields });
        granted
    }

    /// Takes a lock out, and adds those whose lock is granted by it to `granted`.
    fn remove(&mut self, ticket: Ticket, granted: &mut Vec<Ticket>) {
        let Some(entry) = self.entries.remove(&ticket) else { return };
        self.counts.0[entry.lock as usize] -= usize::from(!entry.yields);
        self.waiting -= usize::from(!entry.granted);
        if self.waiting == 0 {
            return;
        }
        let mut ahead = Counts::default();
        for (ticket, entry) in &mut self.entries {
            // Nobody passes a writer, however many wait behind it.
            if ahead.0[Lock::Write as usize] > 0 {
                break;
            }
            if !entry.granted && ahead.admit(entry.lock) {
                entry.granted = true;
                self.waiting -= 1;
                granted.push(*ticket);
            }
            ahead.0[entry.lock as usize] += usize::from(!entry.yields);
        }
    }

    fn blockers(&self, ticket: Ticket) -> impl Iterator<Item = Ticket> {
        let waiting = self.entries.get(&ticket).filter(|entry| !entry.granted);
        waiting.into_iter().flat_map(move |mine| {
            let ahead = self.entries.range(..ticket);
            let blocks = |other: &Entry| !other.yields && !mine.lock.compatible(other.lock);
            ahead.filter(move |(_, other)| blocks(other)).map(|(ticket, _)| *ticket)
        })
    }
}

#[derive(Debug)]
struct Request<K> {
    who: K,
    locks: TableLocks,
    /// Locks not yet granted, that of the whole included.
    missing: usize,
}

/// The lock queues of one replica's tables, for holders known by `K`.
#[derive(Debug)]
pub struct TableQueues<K> {
    whole: Queue,
    tables: HashMap<TableId, Queue>,
    requests: BTreeMap<Ticket, Request<K>>,
    tickets: HashMap<K, Ticket>,
    last_ticket: Ticket,
    at_once: u64,
    waited: u64,
}

impl<K> Default for TableQueues<K> {
    fn default() -> Self {
        TableQueues {
            whole: Queue::default(),
            tables: HashMap::default(),
            requests: BTreeMap::new(),
            tickets: HashMap::default(),
            last_ticket: 0,
            at_once: 0,
            waited: 0,
        }
    }
}

impl<K: Copy + Eq + Hash> TableQueues<K> {
    /// Asks for all of these at once, behind everybody who has asked before. Whether all are granted at once; if not,
    /// [`TableQueues::release`] of others will grant them.
    ///
    /// # Panics
    /// If `who` has asked before and not released: only a bug of ours could do that.
    pub fn request(&mut self, who: K, locks: TableLocks) -> bool {
        self.stand(who, locks, false)
    }

    /// Waits until nobody who has asked before stands in the way of these any more, and holds nobody up who asks later. Otherwise
    /// like [`TableQueues::request`].
    ///
    /// # Panics
    /// If `who` has asked before and not released: only a bug of ours could do that.
    pub fn wait_behind(&mut self, who: K, locks: TableLocks) -> bool {
        self.stand(who, locks, true)
    }

    fn stand(&mut self, who: K, locks: TableLocks, yields: bool) -> bool {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        assert!(self.tickets.insert(who, ticket).is_none(), "all locks are asked for at once");
        let mut missing = 0;
        for (queue, lock) in places(&locks) {
            let queue = match queue {
                TableId::ALL => &mut self.whole,
                table => self.tables.entry(table).or_default(),
            };
            missing += usize::from(!queue.push(ticket, lock, yields));
        }
        self.requests.insert(ticket, Request { who, locks, missing });
        let granted = missing == 0;
        *(if granted { &mut self.at_once } else { &mut self.waited }) += 1;
        granted
    }

    /// Lets go of everything that is held or waited for. Returns who now holds all that they asked for, in order.
    pub fn release(&mut self, who: K) -> Vec<K> {
        let Some(ticket) = self.tickets.remove(&who) else { return Vec::new() };
        let Some(request) = self.requests.remove(&ticket) else { return Vec::new() };
        let mut granted = Vec::new();
        for (queue, _) in places(&request.locks) {
            match queue {
                TableId::ALL => self.whole.remove(ticket, &mut granted),
                table => {
                    let Some(queue) = self.tables.get_mut(&table) else { continue };
                    queue.remove(ticket, &mut granted);
                    if queue.entries.is_empty() {
                        self.tables.remove(&table);
                    }
                }
            }
        }
        granted.sort_unstable();
        let mut complete = Vec::new();
        for ticket in granted {
            let Some(request) = self.requests.get_mut(&ticket) else { continue };
            request.missing -= 1;
            if request.missing == 0 {
                complete.push(request.who);
            }
        }
        complete
    }

    /// How many requests were granted at once and how many had to wait, since the start.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.at_once, self.waited)
    }

    /// Everyone who waits, oldest first, with those for whom they wait.
    pub fn waits(&self) -> impl Iterator<Item = (K, Vec<K>)> {
        let waiting = self.requests.iter().filter(|(_, request)| request.missing > 0);
        waiting.map(|(ticket, request)| {
            let mut blockers: Vec<Ticket> = places(&request.locks)
                .filter_map(|(queue, _)| match queue {
                    TableId::ALL => Some(&self.whole),
                    table => self.tables.get(&table),
                })
                .flat_map(|queue| queue.blockers(*ticket))
                .collect();
            blockers.sort_unstable();
            blockers.dedup();
            let blockers = blockers.iter().filter_map(|ticket| self.requests.get(ticket));
            (request.who, blockers.map(|blocker| blocker.who).collect())
        })
    }
}

/// The queues in which a request stands, and as what: first that of the whole, then those of the tables.
fn places(locks: &TableLocks) -> impl Iterator<Item = (TableId, Lock)> {
    let whole = match locks.mode_of(TableId::ALL) {
        Some(LockMode::Write) => Some(Lock::Write),
        Some(LockMode::Read) => Some(Lock::Read),
        None if locks.writes() => Some(Lock::IntendWrite),
        None if locks.is_empty() => None,
        None => Some(Lock::IntendRead),
    };
    let tables = locks
        .iter()
        .filter(|(table, _)| *table != TableId::ALL)
        .map(|(table, mode)| (table, if mode == LockMode::Write { Lock::Write } else { Lock::Read }));
    whole.map(|lock| (TableId::ALL, lock)).into_iter().chain(tables)
}

#[cfg(test)]
mod tests {
    use super::LockMode::{Read, Write};
    use super::*;
    use crate::item::{Item, Mode};

    const A: TableId = TableId(1);
    const B: TableId = TableId(2);
    const C: TableId = TableId(3);
    const ALL: TableId = TableId::ALL;

    fn locks<const N: usize>(tables: [(TableId, LockMode); N]) -> TableLocks {
        TableLocks::of_tables(tables)
    }

    /// Who of 1, 2, ... is granted at once.
    fn ask<const N: usize>(
        queues: &mut TableQueues<u32>,
        requests: [&[(TableId, LockMode)]; N],
    ) -> [bool; N] {
        let mut who = 0;
        requests.map(|request| {
            who += 1;
            queues.request(who, TableLocks::of_tables(request.iter().copied()))
        })
    }

    #[test]
    fn items_of_a_table_make_one_lock_in_the_strongest_mode() {
        let accesses = [
            Access::new(Item::table(B), Mode::KeyShared),
            Access::new(Item::table(A), Mode::Shared),
            Access::new(Item::schema(A), Mode::Exclusive),
            Access::new(Item::table(B), Mode::Update),
        ];
        assert_eq!(TableLocks::of(&accesses), locks([(A, Write), (B, Read)]));
    }

    #[test]
    fn the_whole_written_swallows_every_table_and_the_whole_read_covers_only_readers() {
        assert_eq!(locks([(A, Write), (ALL, Read)]), TableLocks::everything(Write));
        let whole = TableLocks::everything(Read);
        assert!(whole.covers(&locks([(A, Read), (ALL, Read)])));
        assert!(!whole.covers(&locks([(A, Write)])));
        assert!(TableLocks::everything(Write).covers(&locks([(A, Write), (B, Read)])));
        assert!(!locks([(A, Write)]).covers(&locks([(B, Read)])));
        assert!(!locks([(A, Write)]).covers(&whole));
    }

    #[test]
    fn readers_share_a_table_and_a_writer_has_it_alone() {
        let mut queues = TableQueues::default();
        let granted = ask(&mut queues, [&[(A, Read)], &[(A, Read)], &[(A, Write)], &[(B, Write)]]);
        assert_eq!(granted, [true, true, false, true]);
        assert_eq!(queues.release(1), []);
        assert_eq!(queues.release(2), [3]);
    }

    #[test]
    fn a_reader_that_came_after_a_waiting_writer_waits_behind_it() {
        let mut queues = TableQueues::default();
        let granted = ask(&mut queues, [&[(A, Read)], &[(A, Write)], &[(A, Read)], &[(A, Read)]]);
        assert_eq!(granted, [true, false, false, false]);
        assert_eq!(queues.release(1), [2]);
        assert_eq!(queues.release(2), [3, 4]);
    }

    #[test]
    fn a_waiting_request_holds_its_other_tables_against_those_behind_it() {
        let mut queues = TableQueues::default();
        let granted = ask(&mut queues, [&[(A, Write)], &[(A, Read), (B, Write)], &[(B, Read)]]);
        assert_eq!(granted, [true, false, false]);
        assert_eq!(queues.waits().collect::<Vec<_>>(), [(2, vec![1]), (3, vec![2])]);
        assert_eq!(queues.release(1), [2]);
        assert_eq!(queues.release(2), [3]);
    }

    #[test]
    fn who_waits_behind_others_holds_up_nobody() {
        let mut queues = TableQueues::default();
        assert!(queues.request(1, locks([(A, Write)])));
        assert!(!queues.wait_behind(2, locks([(A, Read), (B, Read)])));
        assert!(queues.request(3, locks([(B, Write)])));
        assert!(!queues.request(4, locks([(A, Write)])));
        assert_eq!(queues.waits().collect::<Vec<_>>(), [(2, vec![1]), (4, vec![1])]);
        assert_eq!(queues.release(1), [2, 4]);
        assert_eq!(queues.release(2), []);
        assert!(queues.wait_behind(5, locks([(C, Read)])));
        assert!(queues.request(6, locks([(C, Write)])));
    }

    #[test]
    fn a_request_that_is_withdrawn_lets_those_behind_it_pass() {
        let mut queues = TableQueues::default();
        ask(&mut queues, [&[(A, Read)], &[(A, Write)], &[(A, Read)]]);
        assert_eq!(queues.release(2), [3]);
    }

    #[test]
    fn the_whole_database_is_locked_in_the_same_order_as_its_tables() {
        let mut queues = TableQueues::default();
        let requests: [&[(TableId, LockMode)]; 5] =
            [&[(A, Write)], &[(ALL, Read)], &[(B, Read)], &[(B, Write)], &[(ALL, Write)]];
        assert_eq!(ask(&mut queues, requests), [true, false, true, false, false]);
        assert_eq!(queues.release(1), [2]);
        assert_eq!(queues.release(2), []);
        assert_eq!(queues.release(3), [4]);
        assert_eq!(queues.release(4), [5]);
        assert_eq!(queues.release(5), []);
        assert!(queues.tables.is_empty() && queues.requests.is_empty());
    }

    #[test]
    fn who_needs_no_table_waits_for_nobody() {
        let mut queues = TableQueues::default();
        assert_eq!(ask(&mut queues, [&[(ALL, Write)], &[]]), [true, true]);
    }
}
