//! Cycles of waiting, found the moment they close (design 3.2).
//!
//! Most waiting is for items, and `ItemLocks` knows it. One kind is hidden: a statement that runs at a home may wait
//! within the database for another transaction there whose answer has shown items (unique values that it freed) that
//! the statement's transaction held already. Only both kinds together show such a cycle, which would else last for ever.

use crate::effect::{Effect, Refusal};
use crate::ids::TxnId;
use crate::item_locks::cycle_through;

use super::Onecopy;
use super::txn::State;

impl Onecopy {
    /// Gives up the youngest member of every cycle that this transaction's waiting has closed.
    pub(super) fn break_cycles(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        while self.locks.waits(id) || !self.owing.is_empty() {
            let Some(victim) = self.youngest_of_cycle(id) else { return };
            self.counts.deadlocks += 1;
            let Some(txn) = self.txns.get(&victim) else { return };
            let op = match (&txn.state, &txn.pending) {
                (State::AwaitingOwed, _) | (_, None) => txn.commit_op,
                (_, Some(pending)) => pending.op,
            };
            self.refuse(victim, op, Refusal::Deadlock, effects);
        }
    }

    fn youngest_of_cycle(&self, start: TxnId) -> Option<TxnId> {
        if !self.locks.is_waited_for(start) && !self.owing.contains(&start) {
            return None;
        }
        let waits_for = |id| self.locks.blockers_of(id).chain(self.hidden_blockers(id));
        cycle_through(start, waits_for).into_iter().max()
    }

    /// Those at the same home who owe an item that this transaction's statement there takes, and have locked it in the server: by
    /// changing it. What they only read, by a statement that failed then, keeps nobody waiting there.
    fn hidden_blockers(&self, id: TxnId) -> impl Iterator<Item = TxnId> {
        let txn = self.txns.get(&id).filter(|txn| txn.home.is_some());
        let runs = txn.and_then(|txn| {
            let accesses = match txn.state {
                State::Executing | State::AwaitingHome => txn.pending.as_ref()?.statement.access.as_slice(),
                // It does again at another home what it has done.
                State::AwaitingRevalidation => self.locks.held(id),
                _ => return None,
            };
            Some((txn.home, accesses))
        });
        runs.into_iter().flat_map(move |(home, accesses)| {
            let in_the_way = move |owing: &&TxnId| {
                self.txns.get(*owing).is_some_and(|other| {
                    let locked = || other.owed.iter().filter(|owed| owed.mode.writes());
                    let overlaps =
                        || locked().any(|owed| accesses.iter().any(|access| access.conflicts(owed)));
                    **owing != id && other.home == home && overlaps()
                })
            };
            self.owing.iter().filter(in_the_way).copied()
        })
    }
}
