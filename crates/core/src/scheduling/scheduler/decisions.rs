//! Decisions in the order of versions.
//!
//! Where replicas commit in the order of CSNs, that order must be one in which transactions could have run one after the other:
//! single reads find what some prefix of it has left. Who writes what an earlier transaction has read and let go at last use (DV
//! 4.5) may have done everything before that one is decided, so here it waits for that decision. All its tables count, touched or
//! not: a replica that applies it from the log waits for all their versions, and would wait for a later CSN otherwise.
//!
//! Invariants:
//! - each number that was given out settles exactly once: when its decision is made, or when there will be none;
//! - whoever waits waits for lower numbers only.

use crate::effect::Effect;
use crate::ids::{SequenceNumber, TxnId};
use crate::map::HashSet;
use crate::table_versions::{Reached, Versions};

use super::Scheduler;
use super::txn::{State, Txn};

/// Who is decided, where decisions follow versions.
#[derive(Default, Debug)]
pub(super) struct Decisions {
    are_ordered: bool,
    /// The versions that are there for decisions.
    reached: Reached,
    /// Who has settled and is not over.
    settled: HashSet<SequenceNumber>,
    /// Who waits, in the order in which they came.
    undecided: Vec<TxnId>,
}

impl Decisions {
    /// From now on; nobody has a number yet.
    pub(super) fn order(&mut self) {
        self.are_ordered = true;
    }

    fn settle(&mut self, number: SequenceNumber, versions: &Versions) {
        if self.are_ordered && self.settled.insert(number) {
            for assigned in versions.iter() {
                self.reached.release(assigned);
            }
        }
    }

    fn forget(&mut self, number: SequenceNumber, versions: &Versions) {
        self.settle(number, versions);
        self.settled.remove(&number);
    }

    fn admit(&self, versions: &Versions) -> bool {
        !self.are_ordered || self.reached.admits_all(versions.iter())
    }
}

impl Scheduler {
    /// Decides, unless somebody is undecided who was given versions of its tables before it and conflicts with it.
    pub(super) fn decide_in_turn(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get_mut(&id) else { return };
        if self.decisions.admit(&txn.versions) {
            return self.give_csn(id, effects);
        }
        txn.state = State::AwaitingDecision;
        self.decisions.undecided.push(id);
    }

    /// It is not to be decided after all; whether it has waited for that.
    pub(super) fn withdraw_decision(&mut self, id: TxnId) -> bool {
        let at = self.decisions.undecided.iter().position(|waiting| *waiting == id);
        at.map(|at| self.decisions.undecided.remove(at)).is_some()
    }

    /// Its decision is made, or there will be none: those may be decided that have waited for that.
    pub(super) fn settle_versions(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        let Some(txn) = self.txns.get(&id) else { return };
        if let Some(number) = txn.number {
            self.decisions.settle(number, &txn.versions);
            self.retry_decisions(effects);
        }
    }

    /// The transaction, or its attempt, is over everywhere.
    pub(super) fn forget_versions(
        &mut self,
        id: TxnId,
        number: SequenceNumber,
        versions: &Versions,
        effects: &mut Vec<Effect>,
    ) {
        self.known.forget(id, number, versions);
        self.decisions.forget(number, versions);
        self.retry_decisions(effects);
    }

    fn retry_decisions(&mut self, effects: &mut Vec<Effect>) {
        let may = |id: &TxnId| self.txns.get(id).is_some_and(|txn| self.decisions.admit(&txn.versions));
        if let Some(at) = self.decisions.undecided.iter().position(may) {
            let id = self.decisions.undecided.remove(at);
            // Which settles it, and so comes back here.
            self.give_csn(id, effects);
        }
    }

    /// Who waits for decisions, and for whose.
    pub(super) fn decisions_awaited(&self) -> impl Iterator<Item = (u64, Vec<u64>)> {
        self.decisions.undecided.iter().filter_map(|id| {
            let waiter = self.txns.get(id)?;
            let conflicts = |other: &Txn| {
                let mut pairs =
                    waiter.versions.iter().flat_map(|mine| other.versions.iter().map(move |its| (mine, its)));
                pairs.any(|(mine, its)| mine.conflicts_with(its))
            };
            let blocks = |other: &Txn| {
                let is_open = other.number.is_some_and(|number| !self.decisions.settled.contains(&number));
                is_open && other.number < waiter.number && conflicts(other)
            };
            let mut blockers: Vec<u64> =
                self.txns.iter().filter(|(_, other)| blocks(other)).map(|(id, _)| id.0).collect();
            blockers.sort_unstable();
            Some((id.0, blockers))
        })
    }
}
