//! Replicas fail, return, join and leave.

use crate::effect::Effect;
use crate::ids::{Csn, ReplicaId, TxnId};
use crate::protocol::ReplicaStatus;
use crate::workers::Schedules;

use super::{InOrder, Running, Worker};

impl InOrder {
    pub(super) fn on_replica_up(&mut self, id: ReplicaId, applied: Csn, effects: &mut Vec<Effect>) {
        self.replicas.get_mut(id).on_up(applied);
        let (told, decided) = (self.decisions.told(), self.decisions.decided());
        let worker = self.worker(id);
        // What was decided may have been forgotten when it is told.
        worker.catches_up = (applied < decided).then_some(decided);
        worker.serves = worker.catches_up.is_none();
        // A commit may have reached this replica before its connection was lost: it is visible now.
        let from = self.decisions.first_unacknowledged();
        self.acknowledge(from.previous(), applied.min(told), effects);
        if self.worker(id).serves {
            self.with_chains(effects, |chains, given| chains.on_up(id, given));
        }
        self.want(id, told, effects);
        self.advance(id, effects);
        self.wake_reads(effects);
    }

    pub(super) fn on_replica_down(&mut self, id: ReplicaId, effects: &mut Vec<Effect>) {
        self.replicas.on_down(id);
        self.with_chains(effects, |chains, given| chains.on_down(id, given));
        let applied = self.replicas.get(id).applied;
        for (txn, csn) in self.decisions.home_is_gone(id) {
            if csn > applied {
                effects.push(Effect::Leave { txn, replica: id });
            }
        }
        let worker = self.worker(id);
        (worker.serves, worker.catches_up) = (false, None);
        let queue = std::mem::take(&mut worker.queue);
        let decided = worker.running.take_if(|running| running.decided.is_some());
        if let Some(Running { number, .. }) = decided {
            self.by_number.remove(&number);
            self.with_chains(effects, |chains, given| chains.on_over(id, number, given));
        }
        // What waited there has run nowhere, and waits elsewhere.
        let waiting: Vec<TxnId> = queue.into_iter().map(|queued| queued.number).collect();
        self.with_chains(effects, |chains, given| chains.take_back(id, &waiting, given));
        let mut affected: Vec<TxnId> =
            self.txns.iter().filter(|(_, txn)| txn.at == Some(id)).map(|(id, _)| *id).collect();
        affected.sort_unstable();
        affected.into_iter().for_each(|txn| self.lose(txn, id, effects));
        self.advance_all(effects);
        self.forget_contained();
        self.run_all(effects);
        self.wake_reads(effects);
    }

    pub(super) fn on_replica_added(&mut self, id: ReplicaId) {
        self.replicas.add(id);
        if usize::from(id.0) == self.workers.len() {
            self.workers.push(Worker::default());
            self.chains.on_added();
        }
    }

    /// It is given nothing more as long as another one serves.
    pub(super) fn on_replica_leaving(&mut self, id: ReplicaId, effects: &mut Vec<Effect>) {
        if !self.replicas.get(id).is_gone() {
            self.replicas.on_leaving(id);
            self.with_chains(effects, |chains, given| chains.on_leaving(id, given));
            self.wake_reads(effects);
        }
    }

    pub(super) fn on_replica_removed(&mut self, id: ReplicaId, effects: &mut Vec<Effect>) {
        if self.replicas.get(id).is_gone() {
            return;
        }
        self.replicas.on_leaving(id);
        self.with_chains(effects, |chains, given| chains.on_leaving(id, given));
        if self.replicas.get(id).up {
            self.on_replica_down(id, effects);
        }
        self.replicas.get_mut(id).become_gone();
    }

    pub(super) fn replica_status(&self) -> Vec<ReplicaStatus> {
        self.replicas.status(|id| self.open_on(id))
    }

    /// Transactions that have something open on a replica, or wait for their turn there.
    fn open_on(&self, id: ReplicaId) -> u64 {
        let open = self.txns.values().filter(|txn| txn.at == Some(id)).count();
        let decided = self.decisions.open_on(id, self.replicas.get(id).applied);
        let decided = decided.filter(|txn| !self.txns.contains_key(txn)).count();
        (open + decided + self.workers[usize::from(id.0)].queue.len()) as u64
    }
}
