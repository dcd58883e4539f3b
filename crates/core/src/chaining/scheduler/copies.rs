//! Idle workers that execute what others execute as well (section VII of the paper, its future work).

use crate::effect::Effect;
use crate::event::Place;
use crate::ids::{ReplicaId, TxnId};

use super::{Scheduler, Stage};
use crate::chaining::{Message, send};

impl Scheduler {
    /// Gives an idle worker, if there are enough of these, whatever an update waits for, to execute it as well. Returns that worker. Not if
    /// it waits for nothing.
    pub(super) fn copy_prefix(&mut self, txn: TxnId, effects: &mut Vec<Effect>) -> Option<ReplicaId> {
        let redundancy = self.redundancy?;
        let used = self.workers.iter().filter(|chain| chain.is_used).count();
        if self.idle.len() <= used / redundancy.kept_part {
            return None;
        }
        let prefix = self.unfinished_before(txn, redundancy.longest).filter(|prefix| !prefix.is_empty())?;
        let worker = self.idle.pop()?;
        for before in prefix {
            let Some(update) = self.updates.get_mut(&before) else { continue };
            update.places.push(worker);
            let (predecessors, is_ordered) = (update.predecessors.clone(), update.is_ordered);
            let predecessors =
                predecessors.into_iter().filter(|before| self.updates.contains_key(before)).collect();
            self.chain_mut(worker).unfinished += 1;
            send(Place::Proxy(worker), Message::Update { txn: before, predecessors, is_ordered }, effects);
        }
        Some(worker)
    }

    /// What an update waits for, and what that waits for, in order; nothing if they are too many or one of them has no worker.
    fn unfinished_before(&self, txn: TxnId, most: usize) -> Option<Vec<TxnId>> {
        let (mut before, mut next) = (Vec::new(), vec![txn]);
        while let Some(txn) = next.pop() {
            for predecessor in &self.updates.get(&txn)?.predecessors {
                let Some(update) = self.updates.get(predecessor) else { continue };
                match update.stage {
                    Stage::Over => {}
                    Stage::Placed if before.contains(predecessor) => {}
                    Stage::Placed if before.len() < most => {
                        before.push(*predecessor);
                        next.push(*predecessor);
                    }
                    _ => return None,
                }
            }
        }
        before.sort_unstable();
        Some(before)
    }
}
