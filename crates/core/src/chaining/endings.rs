//! How updates have ended, where the order of the log says which replica contains which of them.

use std::collections::BTreeMap;

use crate::ids::{Csn, TxnId};
use crate::map::HashMap;

/// How an update ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// With a place in the log.
    Decided(Csn),
    /// Without writes. Who follows it may have been put behind these by way of it alone.
    Nothing(Vec<TxnId>),
}

/// The updates that some replica may not contain.
#[derive(Default, Debug)]
pub(super) struct Endings {
    /// `None`: it has not ended.
    updates: HashMap<TxnId, Option<Ended>>,
    decided: BTreeMap<Csn, TxnId>,
    /// Those without writes.
    nothing: Vec<TxnId>,
}

impl Endings {
    /// An update arrives.
    pub(super) fn expect(&mut self, txn: TxnId) {
        self.updates.insert(txn, None);
    }

    /// It is decided.
    pub(super) fn decide(&mut self, txn: TxnId, csn: Csn) {
        self.updates.insert(txn, Some(Ended::Decided(csn)));
        self.decided.insert(csn, txn);
    }

    /// It has written nothing, and will not.
    pub(super) fn end_without_writes(&mut self, txn: TxnId, predecessors: Vec<TxnId>) {
        // Those among them that have written nothing either stand for theirs.
        let mut behind = Vec::new();
        for predecessor in predecessors {
            match self.updates.get(&predecessor) {
                Some(Some(Ended::Nothing(theirs))) => behind.extend(theirs.iter().copied()),
                Some(_) => behind.push(predecessor),
                None => {}
            }
        }
        behind.sort_unstable();
        behind.dedup();
        self.updates.insert(txn, Some(Ended::Nothing(behind)));
        self.nothing.push(txn);
    }

    /// Whether a replica contains an update that has applied the log so far. What is not remembered every replica contains.
    pub(super) fn is_contained(&self, txn: TxnId, applied: Csn) -> bool {
        match self.updates.get(&txn) {
            None => true,
            Some(None) => false,
            Some(Some(Ended::Decided(csn))) => *csn <= applied,
            Some(Some(Ended::Nothing(behind))) => behind.iter().all(|txn| self.is_contained(*txn, applied)),
        }
    }

    /// Up to where a replica must have applied the log to contain it, as far as that is known.
    pub(super) fn wanted(&self, txn: TxnId) -> Option<Csn> {
        match self.updates.get(&txn)?.as_ref()? {
            Ended::Decided(csn) => Some(*csn),
            Ended::Nothing(behind) => behind.iter().filter_map(|txn| self.wanted(*txn)).max(),
        }
    }

    /// Every replica has applied the log so far. Returns what need not be remembered any more.
    pub(super) fn forget(&mut self, applied: Csn) -> Vec<TxnId> {
        let later = self.decided.split_off(&applied.next());
        let mut news: Vec<TxnId> = std::mem::replace(&mut self.decided, later).into_values().collect();
        let (over, kept) = std::mem::take(&mut self.nothing)
            .into_iter()
            .partition::<Vec<TxnId>, _>(|txn| self.is_contained(*txn, applied));
        self.nothing = kept;
        news.extend(over);
        news.iter().for_each(|txn| drop(self.updates.remove(txn)));
        news
    }

    /// How many are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.updates.len()
    }
}
