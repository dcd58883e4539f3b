//! Tables that are divided by the values of a column: whose rows are where, and who may be at them.
//!
//! Paper: section IV.B. What is about rows of one peer is executed there, and nobody else is asked. What is about rows of several has *latches* at all peers,
//! one peer after the other in the order of their numbers, and is executed once it has them all; the driver brings the rows together.
//!
//! Invariants:
//! - nothing that conflicts with a statement on divided rows is executed at the same time, wherever these rows are: each peer's latches are locks on items,
//!   held until the statement is over;
//! - no circle: what is about one peer's rows asks for all latches there at once, what is about several peers' rows goes through them in one order, and
//!   nobody who has latches waits for anything but latches of later peers, or updates of tables of which whoever writes them has no latches. In servers nobody
//!   waits for anybody else who has latches, since what changes rows of several has them exclusively.

use super::{NodeId, TxnId};
use crate::item::{Access, AccessSet, ColumnId, Space, TableId};
use crate::item_locks::{Granting, ItemLocks};
use crate::map::HashMap;

/// By which value a row goes to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum By {
    /// The hash of an integer.
    Hash,
    /// An integer: peer 0 has what is less than the first of these, which rise; the next one what is less than the second; the last one all else.
    Ranges(Vec<i64>),
}

/// A divided table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Division {
    /// Each peer has the rows that its own clients use.
    Clients,
    /// An integer in a column says whose a row is.
    Column(ColumnId, By),
}

/// Where something is to be executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// Where its client is: it names no rows that have a peer.
    Anywhere,
    /// At this peer, which has all rows of which it is.
    At(NodeId),
    /// It may be about rows of several.
    Several,
}

/// All divided tables.
#[derive(Clone, Default, Debug)]
pub struct Divisions(HashMap<TableId, Division>);

impl FromIterator<(TableId, Division)> for Divisions {
    fn from_iter<I: IntoIterator<Item = (TableId, Division)>>(divided: I) -> Divisions {
        Divisions(divided.into_iter().collect())
    }
}

impl Divisions {
    /// How a table is divided, if it is.
    #[must_use]
    pub fn get(&self, table: TableId) -> Option<&Division> {
        self.0.get(&table)
    }

    /// Which of `nodes` peers has the rows with this value.
    #[must_use]
    pub fn owner(by: &By, value: i64, nodes: u16) -> NodeId {
        let nodes = nodes.max(1);
        match by {
            By::Hash => {
                let hash = crate::item::ValueHash::of_integer(value).0;
                NodeId(u16::try_from(hash % u64::from(nodes)).unwrap_or(0))
            }
            By::Ranges(bounds) => {
                let place = bounds.partition_point(|bound| *bound <= value);
                NodeId(u16::try_from(place).unwrap_or(u16::MAX).min(nodes - 1))
            }
        }
    }

    /// Whether all that is written is of tables divided by a column. What else is named is only read then: nobody else executes it.
    #[must_use]
    pub fn writes_parts_only(&self, access: &[Access]) -> bool {
        let is_part = |of: &Access| matches!(self.get(of.item.table), Some(Division::Column(..)));
        let mut written = access.iter().filter(|of| of.mode.writes()).peekable();
        written.peek().is_some() && written.all(is_part)
    }

    /// Those of some accesses that are of tables divided by a column.
    pub(super) fn of_parts(&self, access: &[Access]) -> AccessSet {
        let is_part = |of: &&Access| matches!(self.get(of.item.table), Some(Division::Column(..)));
        access.iter().filter(is_part).cloned().collect()
    }

    /// Where what touches these is to be executed. Keys of divided tables contain the column, so what stands in them says no more than the rows.
    #[must_use]
    pub fn home(&self, access: &[Access], nodes: u16) -> Home {
        let mut home = Home::Anywhere;
        for Access { item, .. } in access {
            let Some(Division::Column(column, by)) = self.get(item.table) else { continue };
            // That a table goes on existing is no matter of rows.
            if item.space == Space::Schema {
                continue;
            }
            let value = item.equals.iter().find(|(of, _)| of == column);
            let Some((_, value)) = value else { return Home::Several };
            let owner = Divisions::owner(by, value.as_integer(), nodes);
            match home {
                Home::Anywhere => home = Home::At(owner),
                Home::At(other) if other == owner => {}
                Home::At(_) | Home::Several => return Home::Several,
            }
        }
        home
    }
}

/// Locks on the rows that are at one peer.
#[derive(Default, Debug)]
pub(super) struct Latches {
    locks: ItemLocks,
    /// By what the locks know them by.
    holders: HashMap<TxnId, (NodeId, TxnId)>,
    numbers: HashMap<(NodeId, TxnId), TxnId>,
    last: u64,
}

impl Latches {
    /// Asks for them, for a transaction by the numbers of its node. Whether it has them at once.
    pub(super) fn request(&mut self, of: (NodeId, TxnId), access: &[Access]) -> bool {
        self.last += 1;
        let number = TxnId(self.last);
        self.holders.insert(number, of);
        self.numbers.insert(of, number);
        self.locks.request(number, access) == Granting::Granted
    }

    /// Lets go of them. Returns who has theirs now.
    pub(super) fn release(&mut self, of: (NodeId, TxnId)) -> Vec<(NodeId, TxnId)> {
        let Some(number) = self.numbers.remove(&of) else { return Vec::new() };
        self.holders.remove(&number);
        let granted = self.locks.release(number);
        granted.iter().filter_map(|number| self.holders.get(number)).copied().collect()
    }
}

/// A statement's way to its latches.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Ways {
    /// What it asks for.
    pub(super) access: AccessSet,
    /// At which peers, in this order.
    pub(super) nodes: Vec<NodeId>,
    /// At how many it has them.
    pub(super) has: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{Item, Mode, ValueHash};

    const T: TableId = TableId(5);
    const ID: ColumnId = ColumnId(1);

    fn row(column: u16, value: i64) -> Access {
        let equals = [(ColumnId(column), ValueHash::of_integer(value))];
        Access::new(Item::rows(T, equals), Mode::Shared)
    }

    #[test]
    fn rows_go_to_peers_by_ranges_or_hashes() {
        let ranges = By::Ranges(vec![10, 20]);
        for (value, node) in [(i64::MIN, 0), (9, 0), (10, 1), (19, 1), (20, 2), (i64::MAX, 2)] {
            assert_eq!(Divisions::owner(&ranges, value, 3), NodeId(node), "{value}");
        }
        let of_each = (0..3_000).fold([0; 3], |mut counts, value| {
            counts[usize::from(Divisions::owner(&By::Hash, value, 3).0)] += 1;
            counts
        });
        assert!(of_each.iter().all(|count| (900..1_100).contains(count)), "{of_each:?}");
    }

    #[test]
    fn what_names_one_peers_rows_has_its_home_there() {
        let by = By::Ranges(vec![10]);
        let divisions: Divisions =
            [(T, Division::Column(ID, by)), (TableId(6), Division::Clients)].into_iter().collect();
        let home = |access: &[Access]| divisions.home(access, 2);
        let other = Access::new(Item::table(TableId(7)), Mode::Shared);
        let of_clients = Access::new(Item::table(TableId(6)), Mode::Shared);
        assert_eq!(home(&[other.clone(), of_clients]), Home::Anywhere);
        assert_eq!(home(&[row(1, 3), other, row(1, 9)]), Home::At(NodeId(0)));
        assert_eq!(home(&[row(1, 10)]), Home::At(NodeId(1)));
        assert_eq!(home(&[row(1, 3), row(1, 11)]), Home::Several);
        assert_eq!(home(&[row(2, 3)]), Home::Several);
        assert_eq!(home(&[Access::new(Item::table(T), Mode::Shared)]), Home::Several);
        assert_eq!(home(&[row(1, 3), Access::new(Item::schema(T), Mode::KeyShared)]), Home::At(NodeId(0)));
    }
}
