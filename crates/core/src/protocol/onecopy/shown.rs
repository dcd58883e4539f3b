//! Items that only an answer shows: of rows that a change freed or moved, and of tables that are joined by key.

use super::txn::{Pending, State, in_update_mode};
use super::{Effect, Granting, Onecopy, Refusal};
use crate::ids::{Csn, ReplicaId, TxnId};
use crate::item::{Access, Mode, Space};

impl Onecopy {
    /// An answer showed items that the text does not. They are taken at once if nobody else holds them, so that whoever
    /// wants them later waits here rather than in the database, where nobody would see a cycle; else before the decision.
    pub(super) fn on_returned(&mut self, id: TxnId, returned: Vec<Access>, effects: &mut Vec<Effect>) {
        let granting = self.locks.request(id, &returned);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        txn.note_references(&returned);
        match granting {
            Granting::Granted => {
                let position = txn.position;
                let outdated = self.written_since(position, &returned);
                if let Some(txn) = self.txns.get_mut(&id) {
                    txn.outdated |= outdated;
                }
            }
            Granting::Waits => {
                if txn.owed.is_empty() {
                    txn.owed_since = txn.position;
                    self.owing.push(id);
                }
                // Another home may contain less than the one that was lost.
                txn.owed_since = txn.owed_since.min(txn.position);
                txn.owed.extend(returned);
                let granted = self.locks.withdraw(id);
                self.on_granted(granted, effects);
            }
        }
    }

    /// The answer of a read showed which rows of joined tables it is about. In a read phase they are validated with all else that
    /// it read. At home they must be had at once, and as they were when it ran there: else it runs again under all items of its
    /// text.
    pub(super) fn on_shown(
        &mut self,
        id: TxnId,
        replica: ReplicaId,
        pending: Pending,
        returned: &[Access],
        effects: &mut Vec<Effect>,
    ) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.home.is_none() {
            return txn.remember_reads(returned);
        }
        let position = txn.position;
        let returned = in_update_mode(returned, &pending.predicted);
        match self.locks.request(id, &returned) {
            Granting::Granted if !self.written_since(position, &returned) => {
                effects.push(Effect::Release { txn: id, op: pending.op, replica });
                self.unpin_unless_owing(id);
            }
            Granting::Granted => self.execute_strictly(id, pending, effects),
            Granting::Waits => {
                let granted = self.locks.withdraw(id);
                self.on_granted(granted, effects);
                self.execute_strictly(id, pending, effects);
            }
        }
    }

    /// Runs a statement again that was answered to nobody, under all items of its text.
    pub(super) fn execute_strictly(&mut self, id: TxnId, pending: Pending, effects: &mut Vec<Effect>) {
        self.unpin_unless_owing(id);
        let Some(txn) = self.txns.get_mut(&id) else { return };
        self.counts.executed_again += 1;
        let before = if txn.had_home { pending.before.at_home() } else { pending.before };
        txn.pending = Some(Pending { sent: None, is_strict: true, before, ..pending });
        self.request_items(id, effects);
    }

    /// Whether a commit wrote one of these after this position, or may have: a statement that ran there has missed it.
    fn written_since(&self, position: Csn, accesses: &[Access]) -> bool {
        position < self.versions.forgotten() || self.versions.floor(accesses) > position
    }

    /// Items that only answers showed are taken before the decision, and before the end of who has only read, too: what it was shown
    /// must have been there all at once.
    pub(super) fn grant_owed(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if txn.outdated {
            self.counts.reads_changed += 1;
            let op = txn.commit_op;
            return self.refuse(id, op, Refusal::ReadsChanged, effects);
        }
        if txn.owed.is_empty() {
            return self.settle(id, effects);
        }
        txn.state = State::AwaitingOwed;
        let (owed, op) = (txn.owed.clone(), txn.commit_op);
        match self.locks.request(id, &owed) {
            Granting::Granted => self.on_owed_granted(id, effects),
            // Until it is known what it has made of definitions nobody's statement can be classified, nor the COMMIT for which it
            // would wait.
            Granting::Waits if self.locks.held(id).iter().any(changes_definitions) => {
                self.counts.reads_changed += 1;
                self.refuse(id, op, Refusal::ReadsChanged, effects);
            }
            Granting::Waits => self.break_cycles(id, effects),
        }
    }

    pub(super) fn on_owed_granted(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        if self.written_since(txn.owed_since, &txn.owed) {
            self.counts.reads_changed += 1;
            return self.refuse(id, txn.commit_op, Refusal::ReadsChanged, effects);
        }
        self.settle(id, effects);
    }
}

/// Whether it is held for a change of definitions, perhaps.
fn changes_definitions(access: &Access) -> bool {
    access.item.space == Space::Schema && access.mode == Mode::Exclusive
}
