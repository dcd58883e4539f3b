//! The updates of one worker, by number, and how they ended.

use std::collections::VecDeque;

use crate::ids::{Csn, TxnId};
use crate::workers::Numbered;

/// How a worker's update ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// With a place in the log.
    Decided(Csn),
    /// Without writes. Who follows it may have been put behind these, at other workers, by way of it alone.
    Nothing(Vec<Numbered>),
}

/// The updates that some replica may not contain. They end in the order in which they were given.
#[derive(Default, Debug)]
pub(super) struct Numbers {
    /// Every replica contains those up to this number: `forgotten <= ended <= given`.
    forgotten: u64,
    ended: u64,
    updates: VecDeque<(TxnId, Option<Ended>)>,
}

impl Numbers {
    /// The worker is given its next update.
    pub(super) fn give(&mut self, txn: TxnId) {
        self.updates.push_back((txn, None));
    }

    /// The next of its updates has ended.
    pub(super) fn end(&mut self, txn: TxnId, how: Ended) {
        let at = (self.ended - self.forgotten) as usize;
        let Some((next, ended)) = self.updates.get_mut(at) else { return };
        debug_assert_eq!(*next, txn, "updates of a worker end in their order");
        *ended = Some(how);
        self.ended += 1;
    }

    fn how_ended(&self, number: u64) -> Option<&Ended> {
        let at = usize::try_from(number.checked_sub(self.forgotten + 1)?).ok()?;
        self.updates.get(at)?.1.as_ref()
    }

    /// The place in the log of this update.
    pub(super) fn decided(&self, number: u64) -> Option<Csn> {
        match self.how_ended(number)? {
            Ended::Decided(csn) => Some(*csn),
            Ended::Nothing(_) => None,
        }
    }

    /// Counts what a replica contains that has applied the log so far, which is the part `of` of all workers. Returns whether that
    /// is more.
    pub(super) fn advance(&self, contains: &mut [u64], of: usize, applied: Csn) -> bool {
        let before = contains[of];
        while self.how_ended(contains[of] + 1).is_some_and(|ended| match ended {
            Ended::Decided(csn) => *csn <= applied,
            Ended::Nothing(predecessors) => predecessors.iter().all(|before| before.is_in(contains)),
        }) {
            contains[of] += 1;
        }
        contains[of] > before
    }

    /// Every replica contains those up to this number. Returns those of which that is news.
    pub(super) fn forget(&mut self, number: u64) -> Vec<TxnId> {
        let news = number.min(self.ended).saturating_sub(self.forgotten);
        self.forgotten += news;
        self.updates.drain(..news as usize).map(|(txn, _)| txn).collect()
    }

    /// How many are remembered.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.updates.len()
    }

    /// Up to which number every replica contains them.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }
}
