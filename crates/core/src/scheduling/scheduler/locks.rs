//! Sequence numbers and locks (CAS 4.4 and 4.9).

use crate::effect::Effect;
use crate::event::Place;
use crate::ids::{ReplicaId, SequenceNumber, TxnId};
use crate::scheduling::{FixedBy, Loose, Message, Order, ReadAt, send};
use crate::table_queues::TableLocks;
use crate::table_versions::Versions;

use super::txn::{At, Part, State};
use super::{Scheduler, executed, to_proxy};

impl Scheduler {
    pub(super) fn request_locks(&mut self, id: TxnId, locks: TableLocks, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.locks = locks;
        if self.replicas.serving().next().is_none() {
            return self.await_replica(id);
        }
        txn.state = State::AwaitingNumber;
        let tables = match self.policy.order {
            Order::Locks => TableLocks::default(),
            Order::Versions(_) | Order::Statements(_) => txn.locks.clone(),
        };
        if self.policy.loose() == Some(Loose::Unordered) {
            // No versions are used, so nobody is asked for them (DV 5.2).
            return self.on_versions(id, self.dispatched.next(), Versions::default(), effects);
        }
        send(Place::Sequencer, Message::NumberRequest { txn: id, tables }, effects);
    }

    pub(super) fn await_replica(&mut self, id: TxnId) {
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.state = State::AwaitingReplica;
            self.awaiting_replica.push(id);
        }
    }

    pub(super) fn on_number(&mut self, id: TxnId, number: SequenceNumber, effects: &mut Vec<Effect>) {
        self.dispatched = self.dispatched.max(number);
        let releases = self.releases_single_updates();
        let wanted = self.txns.get_mut(&id).filter(|txn| txn.state == State::AwaitingNumber);
        let serving = self.replicas.serving();
        let Some(txn) = wanted else {
            // Cancelled meanwhile; without this, the proxies would wait for the number for ever.
            let void = || Message::Void { number, versions: Versions::default() };
            return serving.for_each(|replica| to_proxy(replica, void(), effects));
        };
        txn.number = Some(number);
        txn.at = vec![At::ABSENT; self.replicas.len()];
        txn.state = State::AwaitingGrant;
        let single_update = txn.pending.as_ref().filter(|_| txn.autocommit).map(|pending| pending.op);
        let mut alone = true;
        for replica in serving {
            alone = false;
            txn.at[usize::from(replica.0)] = At::with_part(Part::Executes);
            self.replicas.get_mut(replica).lock(&txn.locks);
            let locks = txn.locks.clone();
            let message = match single_update {
                Some(op) => {
                    let versions = Versions::default();
                    Message::SingleUpdate { txn: id, number, op, locks, versions, releases }
                }
                None => Message::LockRequest { txn: id, number, locks },
            };
            to_proxy(replica, message, effects);
        }
        if alone {
            txn.start_again();
            return self.await_replica(id);
        }
        if self.policy.read_at == ReadAt::Chosen(FixedBy::Load) {
            let up = self.replicas.best();
            let executes = txn.replicas(|at| at.part == Part::Executes);
            txn.chosen = self.replicas.least_loaded(executes.filter(|replica| up.contains(replica)));
        }
        if single_update.is_some() {
            self.record_write(id);
        }
    }

    pub(super) fn on_granted(&mut self, id: TxnId, replica: ReplicaId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if let Some(at) = txn.at_mut(replica) {
            at.granted = true;
        }
        if self.policy.read_at == ReadAt::Chosen(FixedBy::FirstGrant) && txn.chosen().is_none() {
            txn.chosen = Some(replica);
        }
        self.progress(id, effects);
    }

    /// A single statement runs at each proxy as soon as it is granted there; the statements of a longer transaction
    /// wait for the answer to its lock request.
    pub(super) fn progress_grant(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.autocommit {
            if txn.at.iter().any(|at| at.granted) {
                txn.state = State::Executing;
            }
        } else if self.policy.is_answered(&self.replicas, txn, |at| executed(at, at.granted)) {
            txn.state = State::AwaitingClient;
            if txn.pending.is_some() {
                self.dispatch(id, effects);
            }
        }
    }
}
