//! Looking who waits for whom within the servers, where the core does not see it.
//!
//! As the real driver, it is looked once a second; also at other times, and when nothing else would happen any more.

use std::collections::BTreeSet;

use onecopy_core::{Event, ReplicaId, TxnId};

use super::Simulation;
use super::replicas::Job;
use crate::database::LaneId;

/// In so many of 1,000 cases somebody looks when a client asks for something.
const LOOKS_PER_MILLE: u64 = 50;

impl Simulation<'_> {
    /// Sometimes somebody looks, and tells the core a little later.
    pub(super) fn look_sometimes(&mut self) {
        if self.outsiders.chance(LOOKS_PER_MILLE) {
            let waits = self.waits_in_servers();
            self.core_soon(Event::WaitsOutside { waits });
        }
    }

    /// Looks, and says whether something came of it: the core gives up who closes a cycle, or a replica whose commits wait for an
    /// idle transaction leaves service.
    pub(super) fn look(&mut self) -> bool {
        self.looked_at = self.queue.now();
        if self.node.stands_still {
            return false;
        }
        for replica in self.replica_ids() {
            if self.replica(replica).up && self.is_entangled(replica) {
                self.note(format_args!("{replica:?} applies what waits for an idle transaction"));
                self.statistics.entangled += 1;
                return self.break_replica(replica, false);
            }
        }
        let waits = self.waits_in_servers();
        let deadlocks = self.protocol.status().deadlocks;
        if waits.is_empty() {
            return false;
        }
        self.feed(Event::WaitsOutside { waits });
        let broken = self.protocol.status().deadlocks - deadlocks;
        self.statistics.broken_outside += broken;
        broken > 0
    }

    /// Whom every transaction waits for that waits within a server, those that wait there for others with it: reads by themselves,
    /// and what is applied, are no transactions of the core.
    fn waits_in_servers(&mut self) -> Vec<(TxnId, TxnId)> {
        let mut waits = Vec::new();
        for replica in &self.replicas {
            let txn_of = |lane: LaneId| {
                let open = replica.lanes.iter().find(|(_, open)| open.id == lane);
                open.map(|(txn, _)| *txn)
            };
            for (&waiter, lane) in &replica.lanes {
                let met =
                    met_from(lane.id, |lane| replica.database.blockers(lane), |lane| txn_of(lane).is_some());
                waits.extend(met.into_iter().filter_map(txn_of).map(|blocker| (waiter, blocker)));
            }
        }
        waits
    }

    /// Whether what is applied waits, perhaps by way of others, for a transaction on which nothing is under way.
    fn is_entangled(&mut self, replica: ReplicaId) -> bool {
        let replica = self.replica(replica);
        let idle: BTreeSet<LaneId> = replica
            .lanes
            .values()
            .map(|lane| lane.id)
            .filter(|lane| !replica.blocked.contains_key(lane))
            .collect();
        let applied = replica.blocked.iter().filter(|(_, (_, job))| matches!(job, Job::Unit { .. }));
        let mut applied = applied.map(|(lane, _)| *lane);
        applied.any(|lane| {
            let met = met_from(lane, |lane| replica.database.blockers(lane), |lane| idle.contains(&lane));
            met.into_iter().any(|lane| idle.contains(&lane))
        })
    }
}

/// Everybody for whom one waits, and those wait, up to the first ones that count as an end.
fn met_from(
    start: LaneId,
    blockers: impl Fn(LaneId) -> Vec<LaneId>,
    is_end: impl Fn(LaneId) -> bool,
) -> BTreeSet<LaneId> {
    let mut met = BTreeSet::new();
    let mut left = blockers(start);
    while let Some(lane) = left.pop() {
        if met.insert(lane) && !is_end(lane) {
            left.extend(blockers(lane));
        }
    }
    met
}
