//! Locks that open transactions hold in one database, as PostgreSQL holds them: by row, by unique value, by table.

use std::collections::BTreeMap;

use onecopy_core::TableId;

use super::LaneId;
use crate::plan::{Key, Strength};

/// What is locked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Target {
    /// A table: shared by whoever uses it, exclusive for TRUNCATE.
    Table(TableId),
    /// A row, or the place in the primary key where one is about to be.
    Row(TableId, Key),
    /// A value of the unique key that was made or freed.
    Unique(TableId, u64),
}

/// Who holds what.
#[derive(Default, Debug)]
pub(super) struct Locks {
    held: BTreeMap<Target, Vec<(LaneId, Strength)>>,
}

impl Locks {
    /// Locks for a lane, or says who is in the way. On tables `KeyShare` is to use, `Update` to empty.
    pub(super) fn acquire(
        &mut self,
        lane: LaneId,
        target: Target,
        strength: Strength,
    ) -> Result<(), Vec<LaneId>> {
        let holders = self.held.entry(target).or_default();
        let mut in_the_way: Vec<LaneId> = holders
            .iter()
            .filter(|(holder, held)| *holder != lane && conflict(*held, strength))
            .map(|(holder, _)| *holder)
            .collect();
        in_the_way.sort_unstable();
        in_the_way.dedup();
        if !in_the_way.is_empty() {
            return Err(in_the_way);
        }
        if !holders.contains(&(lane, strength)) {
            holders.push((lane, strength));
        }
        Ok(())
    }

    /// Whether nobody else may use some table, for this lane.
    pub(super) fn holds_a_table_alone(&self, lane: LaneId) -> bool {
        let mut held = self.held.iter().filter(|(target, _)| matches!(target, Target::Table(_)));
        held.any(|(_, holders)| holders.contains(&(lane, Strength::Update)))
    }

    pub(super) fn release(&mut self, lane: LaneId) {
        self.held.retain(|_, holders| {
            holders.retain(|(holder, _)| *holder != lane);
            !holders.is_empty()
        });
    }

    pub(super) fn clear(&mut self) {
        self.held.clear();
    }
}

/// PostgreSQL's table of conflicting row locks.
fn conflict(a: Strength, b: Strength) -> bool {
    use Strength::{KeyShare, NoKeyUpdate, Share, Update};
    match (a, b) {
        (Update, _) | (_, Update) => true,
        (KeyShare, _) | (_, KeyShare) | (Share, Share) => false,
        (NoKeyUpdate | Share, NoKeyUpdate | Share) => true,
    }
}
