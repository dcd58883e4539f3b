//! Two-phase locks on items: granted atomically or one request after the other, first come first served, with
//! cycles found the moment they close (design 3.2).
//!
//! Invariants:
//! - two transactions never hold conflicting accesses at once;
//! - a waiting request is blocked by somebody: a holder, or a request that came before it;
//! - a request that came first is granted first, except that whoever already holds what an earlier request
//!   waits for does not queue behind that request (it would be a cycle for nothing), nor behind those that wait
//!   behind that one, if nothing else is in its way.

use std::collections::BTreeMap;

use crate::map::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::ids::TxnId;
use crate::item::{
    Access, AccessSet, ColumnId, ColumnSet, Equals, Item, Mode, Space, TableId, ValueHash, columns_differ,
    modes_conflict,
};

/// A request's place in the queue; 0 marks what is held.
type Ticket = u64;
const HELD: Ticket = 0;

type Columns = SmallVec<[ColumnId; 2]>;
type Values = SmallVec<[ValueHash; 2]>;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Entry {
    txn: TxnId,
    ticket: Ticket,
    mode: Mode,
    columns: ColumnSet,
}

impl Entry {
    fn new(txn: TxnId, ticket: Ticket, access: &Access) -> Entry {
        Entry { txn, ticket, mode: access.mode, columns: access.columns }
    }
}

/// The entries of a table's space, by the columns that their items name.
#[derive(Default, Debug)]
struct SpaceLocks {
    groups: SmallVec<[Group; 2]>,
}

#[derive(Debug)]
struct Group {
    columns: Columns,
    slots: HashMap<Values, SmallVec<[Entry; 2]>>,
}

#[derive(Debug)]
struct Waiting {
    txn: TxnId,
    request: AccessSet,
    blockers: HashSet<TxnId>,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granting {
    /// All of it is held.
    Granted,
    /// It waits; [`ItemLocks::release`] of others will grant it. Ask [`ItemLocks::youngest_of_cycle`] until it finds
    /// none, and give up whom it names.
    Waits,
}

/// All items held and waited for.
#[derive(Default, Debug)]
pub struct ItemLocks {
    spaces: HashMap<(TableId, Space), SpaceLocks>,
    /// Who holds or waits for all tables at once.
    everything: SmallVec<[Entry; 2]>,
    held: HashMap<TxnId, AccessSet>,
    waiting: BTreeMap<Ticket, Waiting>,
    ticket_of: HashMap<TxnId, Ticket>,
    last_ticket: Ticket,
    waits: u64,
    grants: u64,
}

impl ItemLocks {
    /// Asks for all of `request` at once. A transaction has at most one request waiting.
    ///
    /// # Panics
    /// If a request of this transaction is waiting already: only a bug of ours could do that.
    pub fn request(&mut self, txn: TxnId, request: &[Access]) -> Granting {
        assert!(!self.ticket_of.contains_key(&txn), "{txn:?} already waits");
        let missing: AccessSet = request.iter().filter(|access| !self.holds(txn, access)).cloned().collect();
        let ticket = self.last_ticket + 1;
        let blockers = self.blockers(txn, &missing, ticket);
        if blockers.is_empty() {
            self.grants += 1;
            self.hold(txn, missing);
            return Granting::Granted;
        }
        if self.all_wait_behind(txn, &missing, &blockers) {
            self.grants += 1;
            self.hold_out_of_turn(txn, missing);
            return Granting::Granted;
        }
        self.waits += 1;
        self.last_ticket = ticket;
        for access in &missing {
            self.insert(access, Entry::new(txn, ticket, access));
        }
        self.waiting.insert(ticket, Waiting { txn, request: missing, blockers });
        self.ticket_of.insert(txn, ticket);
        Granting::Waits
    }

    /// Lets go of everything that a transaction holds or waits for. Returns whom this granted, in order.
    pub fn release(&mut self, txn: TxnId) -> Vec<TxnId> {
        let held = self.held.remove(&txn).unwrap_or_default();
        for access in &held {
            self.remove(access, txn, HELD);
        }
        self.withdraw_entries(txn);
        self.grant_after(txn, true)
    }

    /// Takes back a waiting request but keeps what is held. Returns whom this granted.
    pub fn withdraw(&mut self, txn: TxnId) -> Vec<TxnId> {
        if self.withdraw_entries(txn) { self.grant_after(txn, false) } else { Vec::new() }
    }

    /// Takes back a waiting request, and whatever was granted after the first `kept` of the items that are held, as if it
    /// had never been asked for. Returns whom this granted.
    pub fn take_back(&mut self, txn: TxnId, kept: usize) -> Vec<TxnId> {
        let waited = self.withdraw_entries(txn);
        let later: AccessSet = match self.held.get_mut(&txn) {
            Some(held) if held.len() > kept => held.drain(kept..).collect(),
            _ => AccessSet::new(),
        };
        if kept == 0 {
            self.held.remove(&txn);
        }
        for access in &later {
            self.remove(access, txn, HELD);
        }
        if waited || !later.is_empty() { self.grant_after(txn, false) } else { Vec::new() }
    }

    /// What a transaction holds, in the order in which it was granted.
    #[must_use]
    pub fn held(&self, txn: TxnId) -> &[Access] {
        self.held.get(&txn).map_or(&[], |held| held)
    }

    /// Whether a transaction has a request that waits.
    #[must_use]
    pub fn waits(&self, txn: TxnId) -> bool {
        self.ticket_of.contains_key(&txn)
    }

    /// For whom a transaction waits.
    pub fn blockers_of(&self, txn: TxnId) -> impl Iterator<Item = TxnId> {
        let waiting = self.ticket_of.get(&txn).and_then(|ticket| self.waiting.get(ticket));
        waiting.into_iter().flat_map(|waiting| waiting.blockers.iter().copied())
    }

    /// All transactions that wait, oldest request first.
    pub fn waiters(&self) -> impl Iterator<Item = TxnId> {
        self.waiting.values().map(|waiting| waiting.txn)
    }

    /// How many requests were granted at once and how many had to wait, since the start.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.grants, self.waits)
    }

    /// Whether nothing is held and nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    fn holds(&self, txn: TxnId, access: &Access) -> bool {
        self.held.get(&txn).is_some_and(|held| held.iter().any(|h| h.covers(access)))
    }

    fn hold(&mut self, txn: TxnId, accesses: AccessSet) {
        for access in &accesses {
            self.insert(access, Entry::new(txn, HELD, access));
        }
        self.held.entry(txn).or_default().extend(accesses);
    }

    /// Whether nobody holds what is asked for, and all who asked before wait for this transaction, be it by way of others:
    /// none of them can be granted before it ends.
    fn all_wait_behind(&self, txn: TxnId, request: &[Access], blockers: &HashSet<TxnId>) -> bool {
        if !self.held.contains_key(&txn) || !self.is_waited_for(txn) {
            return false;
        }
        let mut is_held = false;
        for access in request {
            self.for_overlapping(&access.item, |entry| {
                is_held |= entry.txn != txn && entry.ticket == HELD && conflict(entry, access);
            });
        }
        if is_held {
            return false;
        }
        let mut behind = HashSet::default();
        behind.insert(txn);
        loop {
            let before = behind.len();
            for waiting in self.waiting.values() {
                if waiting.blockers.iter().any(|blocker| behind.contains(blocker)) {
                    behind.insert(waiting.txn);
                }
            }
            if behind.len() == before {
                return blockers.is_subset(&behind);
            }
        }
    }

    fn hold_out_of_turn(&mut self, txn: TxnId, accesses: AccessSet) {
        let mut passed = HashSet::default();
        for access in &accesses {
            self.for_overlapping(&access.item, |entry| {
                if entry.txn != txn && entry.ticket != HELD && conflict(entry, access) {
                    passed.insert(entry.ticket);
                }
            });
        }
        for ticket in passed {
            if let Some(waiting) = self.waiting.get_mut(&ticket) {
                waiting.blockers.insert(txn);
            }
        }
        self.hold(txn, accesses);
    }

    fn withdraw_entries(&mut self, txn: TxnId) -> bool {
        let Some(ticket) = self.ticket_of.remove(&txn) else { return false };
        if let Some(waiting) = self.waiting.remove(&ticket) {
            for access in &waiting.request {
                self.remove(access, txn, ticket);
            }
        }
        true
    }

    /// Grants, oldest first, those who waited for `gone` and now wait for nobody. If all of it is gone, whoever still waits
    /// for others waits for the same others as before, and need not be looked at: thousands may.
    fn grant_after(&mut self, gone: TxnId, all_of_it: bool) -> Vec<TxnId> {
        let mut granted = Vec::new();
        let mut affected: Vec<Ticket> = Vec::new();
        for (ticket, waiting) in &mut self.waiting {
            if waiting.blockers.contains(&gone) {
                if all_of_it {
                    waiting.blockers.remove(&gone);
                }
                if !all_of_it || waiting.blockers.is_empty() {
                    affected.push(*ticket);
                }
            }
        }
        for ticket in affected {
            let (txn, request) = match self.waiting.get(&ticket) {
                Some(waiting) => (waiting.txn, waiting.request.clone()),
                None => continue,
            };
            let blockers = self.blockers(txn, &request, ticket);
            if blockers.is_empty() {
                self.withdraw_entries(txn);
                self.hold(txn, request);
                granted.push(txn);
            } else if let Some(waiting) = self.waiting.get_mut(&ticket) {
                waiting.blockers = blockers;
            }
        }
        granted
    }

    /// Who stands in the way of a request that has this place in the queue.
    fn blockers(&self, txn: TxnId, request: &[Access], ticket: Ticket) -> HashSet<TxnId> {
        let mut blockers = HashSet::default();
        for access in request {
            self.for_overlapping(&access.item, |entry| {
                if entry.txn != txn
                    && entry.ticket < ticket
                    && conflict(entry, access)
                    && (entry.ticket == HELD || !self.waits_for(entry.ticket, txn))
                {
                    blockers.insert(entry.txn);
                }
            });
        }
        blockers
    }

    fn waits_for(&self, ticket: Ticket, txn: TxnId) -> bool {
        self.waiting.get(&ticket).is_some_and(|waiting| {
            waiting.blockers.contains(&txn)
                && self.held.get(&txn).is_some_and(|held| {
                    held.iter().any(|h| waiting.request.iter().any(|wanted| wanted.conflicts(h)))
                })
        })
    }

    fn for_overlapping(&self, item: &Item, mut visit: impl FnMut(&Entry)) {
        self.everything.iter().for_each(&mut visit);
        if item.table == TableId::ALL {
            for space in self.spaces.values() {
                space.groups.iter().flat_map(|group| group.slots.values()).flatten().for_each(&mut visit);
            }
        } else if let Some(space) = self.spaces.get(&(item.table, item.space)) {
            for group in &space.groups {
                group.for_overlapping(&item.equals, &mut visit);
            }
        }
    }

    fn insert(&mut self, access: &Access, entry: Entry) {
        let item = &access.item;
        if item.table == TableId::ALL {
            self.everything.push(entry);
            return;
        }
        let space = self.spaces.entry((item.table, item.space)).or_default();
        let (columns, values) = split(&item.equals);
        let at = space.groups.iter().position(|group| group.columns == columns).unwrap_or_else(|| {
            space.groups.push(Group { columns, slots: HashMap::default() });
            space.groups.len() - 1
        });
        space.groups[at].slots.entry(values).or_default().push(entry);
    }

    fn remove(&mut self, access: &Access, txn: TxnId, ticket: Ticket) {
        let item = &access.item;
        let entry = Entry::new(txn, ticket, access);
        let is_it = |other: &Entry| *other == entry;
        if item.table == TableId::ALL {
            if let Some(at) = self.everything.iter().position(is_it) {
                self.everything.swap_remove(at);
            }
            return;
        }
        let Some(space) = self.spaces.get_mut(&(item.table, item.space)) else { return };
        let (columns, values) = split(&item.equals);
        let Some(group) = space.groups.iter_mut().find(|group| group.columns == columns) else { return };
        if let Some(slot) = group.slots.get_mut(&values) {
            if let Some(at) = slot.iter().position(is_it) {
                slot.swap_remove(at);
            }
            if slot.is_empty() {
                group.slots.remove(&values);
            }
        }
    }

    /// Whether anybody waits for a transaction. Of whoever has only just begun to wait and holds nothing that others want,
    /// nobody does, and so it closes no cycle.
    #[must_use]
    pub fn is_waited_for(&self, txn: TxnId) -> bool {
        self.waiting.values().any(|waiting| waiting.blockers.contains(&txn))
    }

    /// If the transaction is part of a cycle of waiting, the youngest member of that cycle.
    #[must_use]
    pub fn youngest_of_cycle(&self, start: TxnId) -> Option<TxnId> {
        if !self.is_waited_for(start) {
            return None;
        }
        cycle_through(start, |txn| self.blockers_of(txn)).into_iter().max()
    }
}

/// The members of a cycle of waiting that leads back to `start`, if there is one: depth first along "waits for", whose
/// order decides which one is found. Nobody's waiting is followed twice, and what is followed is kept on the heap, since
/// thousands may wait in one chain.
pub fn cycle_through<I>(start: TxnId, waits_for: impl Fn(TxnId) -> I) -> Vec<TxnId>
where
    I: Iterator<Item = TxnId>,
{
    let mut seen = HashSet::default();
    let mut path = vec![start];
    let mut levels = vec![waits_for(start)];
    while let Some(level) = levels.last_mut() {
        match level.next() {
            Some(next) if next == start => return path,
            Some(next) if seen.insert(next) => {
                path.push(next);
                levels.push(waits_for(next));
            }
            Some(_) => {}
            None => {
                levels.pop();
                path.pop();
            }
        }
    }
    path
}

fn conflict(entry: &Entry, access: &Access) -> bool {
    modes_conflict((entry.mode, entry.columns), (access.mode, access.columns))
}

impl Group {
    fn for_overlapping(&self, equals: &Equals, mut visit: impl FnMut(&Entry)) {
        if self.columns.len() == equals.len() && self.columns.iter().eq(equals.iter().map(|(c, _)| c)) {
            let values: Values = equals.iter().map(|(_, value)| *value).collect();
            if let Some(slot) = self.slots.get(&values) {
                slot.iter().for_each(visit);
            }
            return;
        }
        for (values, slot) in &self.slots {
            let theirs: Equals = self.columns.iter().copied().zip(values.iter().copied()).collect();
            if !columns_differ(&theirs, equals) {
                slot.iter().for_each(&mut visit);
            }
        }
    }
}

fn split(equals: &Equals) -> (Columns, Values) {
    equals.iter().copied().unzip_small()
}

trait UnzipSmall {
    fn unzip_small(self) -> (Columns, Values);
}

impl<I: Iterator<Item = (ColumnId, ValueHash)>> UnzipSmall for I {
    fn unzip_small(self) -> (Columns, Values) {
        let (mut columns, mut values) = (Columns::new(), Values::new());
        for (column, value) in self {
            columns.push(column);
            values.push(value);
        }
        (columns, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: TableId = TableId(1);
    const T1: TxnId = TxnId(1);
    const T2: TxnId = TxnId(2);
    const T3: TxnId = TxnId(3);

    fn row(key: i64, mode: Mode) -> Access {
        Access::new(Item::rows(T, [(ColumnId(1), ValueHash::of_integer(key))]), mode)
    }
    fn other_column(value: i64, mode: Mode) -> Access {
        Access::new(Item::rows(T, [(ColumnId(2), ValueHash::of_integer(value))]), mode)
    }
    fn table(mode: Mode) -> Access {
        Access::new(Item::table(T), mode)
    }

    #[test]
    fn different_rows_are_held_together() {
        let mut locks = ItemLocks::default();
        assert_eq!(locks.request(T1, &[row(1, Mode::Exclusive)]), Granting::Granted);
        assert_eq!(locks.request(T2, &[row(2, Mode::Exclusive)]), Granting::Granted);
    }

    #[test]
    fn items_on_different_columns_may_name_the_same_row() {
        let mut locks = ItemLocks::default();
        locks.request(T1, &[row(1, Mode::NoKeyExclusive)]);
        assert_eq!(locks.request(T2, &[other_column(7, Mode::Shared)]), Granting::Waits);
        assert_eq!(locks.release(T1), [T2]);
        assert_eq!(locks.held(T2), [other_column(7, Mode::Shared)]);
    }

    #[test]
    fn a_reader_of_some_columns_and_a_writer_of_others_pass_each_other() {
        let of = |item: Access, mode, columns: &[u16]| {
            Access::of_columns(item.item, mode, columns.iter().map(|column| ColumnId(*column)).collect())
        };
        let reads = |columns: &[u16]| of(table(Mode::Shared), Mode::Shared, columns);
        let sets = |columns: &[u16]| of(row(1, Mode::Shared), Mode::NoKeyExclusive, columns);
        let mut locks = ItemLocks::default();
        assert_eq!(locks.request(T1, &[reads(&[1, 2])]), Granting::Granted);
        assert_eq!(locks.request(T2, &[sets(&[3])]), Granting::Granted);
        // Two writers of a row never pass each other, and readers not if a column is changed.
        assert_eq!(locks.request(T3, &[sets(&[4])]), Granting::Waits);
        assert_eq!(locks.release(T2), [T3]);
        assert_eq!(locks.request(T2, &[reads(&[3, 4])]), Granting::Waits);
        assert_eq!(locks.release(T3), [T2]);
        // Who holds some columns for reading does not hold the others; who writes the row does, and may write no more of it.
        assert_eq!(locks.request(T1, &[reads(&[2, 5]), reads(&[1])]), Granting::Granted);
        assert_eq!(locks.held(T1), [reads(&[1, 2]), reads(&[2, 5])]);
        assert_eq!(locks.request(T3, &[sets(&[6])]), Granting::Granted);
        let read_row = of(row(1, Mode::Shared), Mode::Shared, &[5]);
        assert_eq!(locks.request(T3, &[read_row]), Granting::Granted);
        assert_eq!(locks.held(T3), [sets(&[6])]);
        assert_eq!(locks.request(T3, &[sets(&[5])]), Granting::Waits);
        // Whoever reads all columns may have locked the row in its server, which a change of none waits for, too.
        let (touches, locks_it) = (sets(&[]), row(1, Mode::Shared));
        let mut others = ItemLocks::default();
        assert_eq!(others.request(T1, std::slice::from_ref(&locks_it)), Granting::Granted);
        assert_eq!(others.request(T2, std::slice::from_ref(&touches)), Granting::Waits);
        // One of two reads of the same item is given back: the other stays.
        assert_eq!(locks.take_back(T1, 1), [T3]);
        assert_eq!(locks.held(T1), [reads(&[1, 2])]);
        locks.release(T1);
        locks.release(T2);
        locks.release(T3);
        assert!(locks.is_empty());
    }

    #[test]
    fn waiters_are_granted_in_the_order_in_which_they_came() {
        let mut locks = ItemLocks::default();
        locks.request(T1, &[row(1, Mode::Shared)]);
        assert_eq!(locks.request(T2, &[table(Mode::Exclusive)]), Granting::Waits);
        assert_eq!(locks.request(T3, &[row(1, Mode::Shared)]), Granting::Waits, "not past the writer");
        assert_eq!(locks.release(T1), [T2]);
        assert_eq!(locks.release(T2), [T3]);
    }

    #[test]
    fn a_request_is_granted_whole_or_not_at_all() {
        let mut locks = ItemLocks::default();
        locks.request(T1, &[row(1, Mode::Exclusive)]);
        assert_eq!(locks.request(T2, &[row(2, Mode::Exclusive), row(1, Mode::Exclusive)]), Granting::Waits);
        assert!(locks.held(T2).is_empty());
        assert_eq!(locks.request(T3, &[row(2, Mode::Exclusive)]), Granting::Waits);
        assert_eq!(locks.release(T1), [T2]);
        assert_eq!(locks.release(T2), [T3]);
        locks.release(T3);
        assert!(locks.is_empty());
    }

    #[test]
    fn a_cycle_gives_up_its_youngest_member() {
        let mut locks = ItemLocks::default();
        locks.request(T1, &[row(1, Mode::Exclusive)]);
        locks.request(T2, &[row(2, Mode::Exclusive)]);
        assert_eq!(locks.request(T2, &[row(1, Mode::Exclusive)]), Granting::Waits);
        assert_eq!(locks.youngest_of_cycle(T2), None);
        assert_eq!(locks.request(T1, &[row(2, Mode::Exclusive)]), Granting::Waits);
        assert_eq!(locks.youngest_of_cycle(T1), Some(T2));
        assert_eq!(locks.release(T2), [T1]);
    }

    #[test]
    fn readers_who_all_want_to_write_form_a_cycle_but_update_mode_queues_them() {
        let mut locks = ItemLocks::default();
        locks.request(T1, &[row(1, Mode::Shared)]);
        locks.request(T2, &[row(1, Mode::Shared)]);
        assert_eq!(locks.request(T1, &[row(1, Mode::Exclusive)]), Granting::Waits);
        assert_eq!(locks.request(T2, &[row(1, Mode::Exclusive)]), Granting::Waits);
        assert_eq!(locks.youngest_of_cycle(T2), Some(T2));

        let mut locks = ItemLocks::default();
        assert_eq!(locks.request(T1, &[row(1, Mode::Update)]), Granting::Granted);
        assert_eq!(locks.request(T2, &[row(1, Mode::Update)]), Granting::Waits);
        assert_eq!(locks.request(T1, &[row(1, Mode::Exclusive)]), Granting::Granted, "not behind T2");
        assert_eq!(locks.release(T1), [T2]);
    }

    #[test]
    fn who_holds_what_an_earlier_request_waits_for_passes_it() {
        let mut locks = ItemLocks::default();
        locks.request(T1, &[row(1, Mode::Shared)]);
        assert_eq!(locks.request(T2, &[table(Mode::Exclusive)]), Granting::Waits);
        assert_eq!(locks.request(T1, &[row(2, Mode::Shared)]), Granting::Granted);
        assert_eq!(locks.release(T1), [T2]);
    }

    #[test]
    fn who_is_waited_for_passes_those_who_wait_only_behind_them_unless_something_else_is_in_its_way() {
        for held_by_another in [false, true] {
            let mut locks = ItemLocks::default();
            locks.request(T1, &[row(1, Mode::Exclusive)]);
            if held_by_another {
                locks.request(TxnId(4), &[other_table(2, Mode::Exclusive)]);
            }
            assert_eq!(locks.request(T2, &[table(Mode::Exclusive)]), Granting::Waits);
            assert_eq!(locks.request(T3, &[row(2, Mode::Exclusive)]), Granting::Waits);
            // T3 waits for its turn behind T2, which waits for T1.
            let wanted = [row(2, Mode::Exclusive), other_table(2, Mode::Exclusive)];
            if held_by_another {
                assert_eq!(locks.request(T1, &wanted), Granting::Waits);
                assert_eq!(locks.youngest_of_cycle(T1), Some(T3));
                continue;
            }
            assert_eq!(locks.request(T1, &wanted), Granting::Granted);
            assert_eq!(locks.blockers_of(T3).collect::<HashSet<_>>(), [T1, T2].into_iter().collect());
            assert_eq!(locks.release(T1), [T2]);
            assert_eq!(locks.release(T2), [T3]);
        }
    }

    #[test]
    fn the_whole_database_waits_for_everybody_and_everybody_for_it() {
        let mut locks = ItemLocks::default();
        locks.request(T1, &[row(1, Mode::Shared)]);
        let all = Access::new(Item::everything(), Mode::Exclusive);
        assert_eq!(locks.request(T2, &[all]), Granting::Waits);
        assert_eq!(locks.request(T3, &[row(9, Mode::Shared)]), Granting::Waits);
        assert_eq!(locks.release(T1), [T2]);
        assert_eq!(locks.release(T2), [T3]);
    }

    #[test]
    fn a_withdrawn_request_lets_those_behind_it_pass() {
        let mut locks = ItemLocks::default();
        locks.request(T1, &[row(1, Mode::Shared)]);
        locks.request(T2, &[row(1, Mode::Exclusive)]);
        assert_eq!(locks.request(T3, &[row(1, Mode::Shared)]), Granting::Waits);
        assert_eq!(locks.withdraw(T2), [T3]);
    }

    #[test]
    fn what_is_taken_back_was_never_asked_for_and_what_was_held_before_stays() {
        for waits in [true, false] {
            let mut locks = ItemLocks::default();
            locks.request(T1, &[row(1, Mode::Exclusive)]);
            let kept = locks.held(T1).len();
            if waits {
                locks.request(T2, &[row(2, Mode::Shared)]);
            }
            let granting = locks.request(T1, &[row(1, Mode::Exclusive), row(2, Mode::Exclusive)]);
            assert_eq!(granting, if waits { Granting::Waits } else { Granting::Granted });
            assert_eq!(locks.request(T3, &[row(2, Mode::Shared)]), Granting::Waits);
            assert_eq!(locks.take_back(T1, kept), [T3]);
            assert_eq!(locks.held(T1), [row(1, Mode::Exclusive)]);
            assert_eq!(locks.take_back(T1, kept), []);
            for txn in [T1, T2, T3] {
                locks.release(txn);
            }
            assert!(locks.is_empty());
        }
    }

    /// How many steps along "waits for" it takes to find out whether a transaction closes a cycle.
    fn steps(locks: &ItemLocks, start: TxnId) -> usize {
        let steps = std::cell::Cell::new(0);
        if locks.is_waited_for(start) {
            cycle_through(start, |txn| locks.blockers_of(txn).inspect(|_| steps.set(steps.get() + 1)));
        }
        steps.get()
    }

    fn edges(locks: &ItemLocks) -> usize {
        locks.waiters().map(|txn| locks.blockers_of(txn).count()).sum()
    }

    #[test]
    fn who_joins_a_crowd_that_waits_for_a_table_holding_nothing_searches_nothing() {
        const CROWD: u64 = 300;
        let mut locks = ItemLocks::default();
        locks.request(T1, &[row(1, Mode::Exclusive)]);
        for txn in 2..=CROWD {
            assert_eq!(locks.request(TxnId(txn), &[table(Mode::Exclusive)]), Granting::Waits);
            assert_eq!(steps(&locks, TxnId(txn)), 0);
            assert_eq!(locks.youngest_of_cycle(TxnId(txn)), None);
        }
        // They are granted in turn, each by the end of the one before.
        for txn in 1..CROWD {
            assert_eq!(locks.release(TxnId(txn)), [TxnId(txn + 1)]);
        }
    }

    #[test]
    fn a_search_for_cycles_follows_nobodys_waiting_twice() {
        const CROWD: u64 = 300;
        let mut locks = ItemLocks::default();
        // A crowd waits for a table of which its first member has a row; that one then waits for the last of a chain.
        for link in 0..CROWD {
            locks.request(TxnId(1_000 + link), &[other_table(link, Mode::Exclusive)]);
        }
        locks.request(T1, &[row(1, Mode::Exclusive)]);
        for txn in 2..=CROWD {
            locks.request(TxnId(txn), &[table(Mode::Exclusive)]);
        }
        for link in 1..CROWD {
            locks.request(TxnId(1_000 + link), &[other_table(link - 1, Mode::Exclusive)]);
        }
        assert_eq!(locks.request(T1, &[other_table(CROWD - 1, Mode::Exclusive)]), Granting::Waits);
        assert_eq!(locks.youngest_of_cycle(T1), None);
        assert_eq!(steps(&locks, T1), CROWD as usize, "along the chain, and not into the crowd");
        // The end of the chain joins the crowd, and closes a cycle.
        let last = TxnId(1_000);
        assert_eq!(locks.request(last, &[table(Mode::Exclusive)]), Granting::Waits);
        assert!(steps(&locks, last) <= edges(&locks), "{}", steps(&locks, last));
        assert_eq!(locks.youngest_of_cycle(last), Some(TxnId(1_000 + CROWD - 1)));
    }

    fn other_table(key: u64, mode: Mode) -> Access {
        Access::new(Item::rows(TableId(2), [(ColumnId(1), ValueHash::of_integer(key as i64))]), mode)
    }

    /// Whatever is asked for, granted, let go and taken back: who waits knows for whom.
    #[test]
    fn everybody_who_waits_knows_exactly_for_whom() {
        const MODES: [Mode; 6] = [
            Mode::KeyShared,
            Mode::Shared,
            Mode::Update,
            Mode::Insert,
            Mode::NoKeyExclusive,
            Mode::Exclusive,
        ];
        for seed in 1..=100_u64 {
            let mut state = seed;
            let mut below = |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % bound
            };
            let mut locks = ItemLocks::default();
            for _ in 0..80 {
                let txn = TxnId(1 + below(7));
                let access = |kind, value: u64, mode| match kind {
                    0 => table(mode),
                    1 => other_column(value as i64, mode),
                    2 => Access::new(Item::everything(), mode),
                    _ => row(value as i64, mode),
                };
                match below(10) {
                    0..=6 if !locks.waits(txn) => {
                        let request: Vec<Access> = (0..=below(2))
                            .map(|_| access(below(14), below(3), MODES[below(6) as usize]))
                            .collect();
                        if locks.request(txn, &request) == Granting::Waits {
                            while let Some(victim) = locks.youngest_of_cycle(txn) {
                                locks.release(victim);
                            }
                        }
                    }
                    7 => drop(locks.release(txn)),
                    8 => drop(locks.withdraw(txn)),
                    _ => {
                        let kept = below(1 + locks.held(txn).len() as u64);
                        drop(locks.take_back(txn, kept as usize));
                    }
                }
                for (ticket, waiting) in &locks.waiting {
                    let blockers = locks.blockers(waiting.txn, &waiting.request, *ticket);
                    assert_eq!(waiting.blockers, blockers, "seed {seed}: {waiting:?} at {ticket}");
                    assert!(!blockers.is_empty(), "seed {seed}: {waiting:?} waits for nobody");
                }
            }
            (1..=7).for_each(|txn| drop(locks.release(TxnId(txn))));
            assert!(locks.is_empty());
        }
    }

    #[test]
    fn inserts_with_keys_that_differ_and_keyless_inserts_do_not_wait_for_each_other() {
        let mut locks = ItemLocks::default();
        assert_eq!(locks.request(T1, &[table(Mode::Insert)]), Granting::Granted);
        assert_eq!(locks.request(T2, &[table(Mode::Insert)]), Granting::Granted);
        assert_eq!(locks.request(T3, &[table(Mode::Shared)]), Granting::Waits, "a reader of the table waits");
    }
}
