//! What came of a run, in figures.

use onecopy_core::{Instant, TxnId};

use super::Patience;

/// A transaction from its client's view, in the order of arrival.
#[derive(Clone, PartialEq, Debug)]
pub struct Served {
    /// Whether it may write.
    pub updates: bool,
    /// Where its client is.
    pub site: usize,
    /// When it came.
    pub arrived: Instant,
    /// When its message was here, when its place was known, and when it was stable; of updates only.
    pub delivered: [Option<Instant>; 3],
    /// Where it was executed last: at its client's site, if it was there.
    pub executed_at: Option<usize>,
    /// When its last execution began: at its client's site, if there is one there.
    pub begun: Option<Instant>,
    /// When that ended.
    pub executed: Option<Instant>,
    /// When its client had the answer.
    pub answered: Option<Instant>,
    /// Executions of it that were undone, at all sites.
    pub undone: u32,
    /// Whether its statements failed, everywhere alike.
    pub failed: bool,
}

impl Served {
    /// How long its client waited, in nanoseconds.
    #[must_use]
    pub fn response_ns(&self) -> Option<u64> {
        Some(self.answered?.since_ns(self.arrived))
    }
}

/// How long those who count have waited up to now, answered or not.
#[derive(Debug)]
pub(super) struct Waiting {
    patience: Option<Patience>,
    answered_ns: u128,
    /// Who waits, and the sum of when they came.
    waiting: u128,
    came_ns: u128,
}

impl Waiting {
    pub(super) fn new(patience: Option<Patience>) -> Waiting {
        Waiting { patience, answered_ns: 0, waiting: 0, came_ns: 0 }
    }

    fn counts(&self, txn: TxnId) -> bool {
        self.patience.as_ref().is_some_and(|patience| patience.of.contains(&txn.0))
    }

    pub(super) fn arrives(&mut self, txn: TxnId, now: Instant) {
        if self.counts(txn) {
            self.waiting += 1;
            self.came_ns += u128::from(now.0);
        }
    }

    pub(super) fn answered(&mut self, txn: TxnId, arrived: Instant, now: Instant) {
        if self.counts(txn) {
            self.waiting -= 1;
            self.came_ns -= u128::from(arrived.0);
            self.answered_ns += u128::from(now.since_ns(arrived));
        }
    }

    /// Whether they have waited for too long together.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let sum_ns = self.answered_ns + self.waiting * u128::from(now.0) - self.came_ns;
        self.patience.as_ref().is_some_and(|patience| sum_ns > patience.sum_ns)
    }
}

/// Figures of a run.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Measured {
    /// What was served.
    pub served: Vec<Served>,
    /// Messages that went from one site to another, but for the token.
    pub messages: u64,
    /// Messages that were received at a site before one whose place is before theirs.
    pub out_of_order: u64,
    /// Messages that were put in order, counted at each site.
    pub ordered: u64,
}

impl Measured {
    /// Executions that were undone.
    #[must_use]
    pub fn undone(&self) -> u64 {
        self.served.iter().map(|of| u64::from(of.undone)).sum()
    }
}
