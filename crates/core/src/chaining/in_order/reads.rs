//! Reads (III): at any replica that its session cannot tell to be old; no write that is still on its way is waited for.

use crate::effect::{Effect, How};
use crate::ids::{Csn, ReplicaId, TxnId};

use super::{InOrder, State};

impl InOrder {
    pub(super) fn place_read(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        let own = self.sessions.get(&txn.session).copied().unwrap_or_default();
        let floor = own.max(self.schema_changed);
        // Whoever comes back shows what is much older than the others show.
        let serving = self.replicas.ids().filter(|id| self.workers[usize::from(id.0)].serves);
        let shown = serving.map(|id| self.replicas.get(id).applied).min();
        let floor = floor.max(shown.unwrap_or_default());
        // A snapshot that is older than a change of definitions may find a table empty.
        let is_open = !self.is_changing_definitions() || txn.autocommit;
        let chosen = is_open.then(|| self.replicas.for_read(floor, Csn(0), self.now)).flatten();
        let Some(txn) = self.txns.get_mut(&id) else { return };
        let Some(replica) = chosen else {
            self.counts.freshness_waits += 1;
            txn.state = State::AwaitingReplica;
            self.awaiting_any.push(id);
            return self.replicas.ids().for_each(|id| self.want(id, floor, effects));
        };
        self.counts.reads_placed += 1;
        self.replicas.get_mut(replica).reads += 1;
        let how = if txn.autocommit { How::Alone } else { How::Snapshot { open: true } };
        txn.at = Some(replica);
        self.execute(id, replica, how, effects);
    }

    pub(super) fn is_changing_definitions(&self) -> bool {
        !self.schema_changers.is_empty()
    }

    pub(super) fn has_open_snapshots(&self) -> bool {
        self.txns.values().any(|txn| txn.may_write.is_none() && !txn.autocommit && txn.at.is_some())
    }

    /// Something has changed for reads that wait.
    pub(super) fn wake_reads(&mut self, effects: &mut Vec<Effect>) {
        for id in std::mem::take(&mut self.awaiting_any) {
            if self.txns.get(&id).is_some_and(|txn| txn.state == State::AwaitingReplica) {
                self.place_read(id, effects);
            }
        }
    }

    pub(super) fn want(&mut self, replica: ReplicaId, csn: Csn, effects: &mut Vec<Effect>) {
        if self.replicas.get_mut(replica).want(csn) {
            self.advance(replica, effects);
        }
    }
}
