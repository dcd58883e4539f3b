//! Replicas join and leave while everything runs (docs/replicas.md).
//!
//! One that joins is down until its agent has found it to be a copy, and from then on like any other that comes back. One
//! that leaves takes nothing new as long as another one serves, and is in no hurry: what is open there ends by itself. Which
//! replica that may be, and that one stays, the driver sees to.

use super::{Effect, Onecopy, ReplicaId};
use crate::protocol::ReplicaStatus;

impl Onecopy {
    pub(super) fn on_replica_added(&mut self, id: ReplicaId) {
        self.replicas.add(id);
    }

    /// Who waits for any replica may now wait for another one to catch up.
    pub(super) fn on_replica_leaving(&mut self, id: ReplicaId, effects: &mut Vec<Effect>) {
        if !self.replicas.get(id).is_gone() {
            self.replicas.on_leaving(id);
            self.wake_awaiting_any(effects);
        }
    }

    pub(super) fn on_replica_removed(&mut self, id: ReplicaId, effects: &mut Vec<Effect>) {
        if self.replicas.get(id).is_gone() {
            return;
        }
        self.replicas.on_leaving(id);
        if self.replicas.get(id).up {
            self.on_replica_down(id, effects);
        }
        self.replicas.get_mut(id).become_gone();
    }

    pub(super) fn replica_status(&self) -> Vec<ReplicaStatus> {
        self.replicas.status(|id| self.open_on(id))
    }

    /// Transactions that have something open on a replica, or a statement under way.
    fn open_on(&self, id: ReplicaId) -> u64 {
        let sent_there = |txn: &super::Txn| {
            txn.pending.as_ref().and_then(|pending| pending.sent).is_some_and(|(replica, _)| replica == id)
        };
        let open = self.txns.values().filter(|txn| txn.uses(id) || sent_there(txn)).count();
        // Of a decided transaction the client may have gone.
        let decided = self.decisions.open_on(id, self.replicas.get(id).applied);
        let decided = decided.filter(|txn| !self.txns.contains_key(txn)).count();
        (open + decided + self.lone_reads_on(id)) as u64
    }
}
