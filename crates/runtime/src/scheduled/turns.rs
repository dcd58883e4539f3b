//! In which order a replica contains decisions.
//!
//! The protocols themselves let replicas commit in any order what does not conflict. `onecopy.progress` says what a
//! replica contains by one number, and refuses a commit whose predecessor is missing, so here every replica commits in
//! the order of CSNs: what is decided waits until everything decided before it is contained. The protocols are told so
//! (`Engine::commits_in_order`); docs/protocols/real_servers.md says why nobody waits for ever.

use std::collections::BTreeMap;

use onecopy_core::{Csn, TxnId};

/// What a replica is to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Commit what the transaction has open on it.
    Commit(TxnId),
    /// Apply everything from its turn up to this one.
    Apply(Csn),
}

/// The turns of one replica.
///
/// Invariants: whatever waits has a CSN greater than `next`; what has been given out and not been reached is at `next`.
#[derive(Debug, Default)]
pub struct Turns {
    /// The first decision that it does not contain.
    next: Csn,
    waiting: BTreeMap<Csn, Due>,
}

impl Turns {
    /// It enters service with everything up to a decision; what it was to do before is void.
    pub fn enter(&mut self, applied: Csn) {
        self.next = applied.next();
        self.waiting.clear();
    }

    /// It leaves service.
    pub fn leave(&mut self) {
        self.waiting.clear();
    }

    /// Something is to be done at its turn; returned if that has come.
    pub fn offer(&mut self, at: Csn, due: Due) -> Option<Due> {
        if at <= self.next {
            return Some(due);
        }
        self.waiting.insert(at, due);
        None
    }

    /// It contains everything up to a decision; whose turn is next, if that is known already.
    pub fn reached(&mut self, csn: Csn) -> Option<(Csn, Due)> {
        self.next = self.next.max(csn.next());
        let next = self.next;
        self.waiting.remove(&next).map(|due| (next, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T1: Due = Due::Commit(TxnId(1));
    const T2: Due = Due::Commit(TxnId(2));

    #[test]
    fn commits_wait_until_everything_before_them_is_contained() {
        let mut turns = Turns::default();
        turns.enter(Csn(7));
        assert_eq!(turns.offer(Csn(10), T2), None);
        assert_eq!(turns.offer(Csn(9), Due::Apply(Csn(9))), None);
        assert_eq!(turns.offer(Csn(8), T1), Some(T1));
        assert_eq!(turns.reached(Csn(8)), Some((Csn(9), Due::Apply(Csn(9)))));
        assert_eq!(turns.reached(Csn(9)), Some((Csn(10), T2)));
        assert_eq!(turns.reached(Csn(10)), None);
        assert_eq!(turns.offer(Csn(11), T1), Some(T1));
    }

    #[test]
    fn run_is_reached_in_parts_and_what_follows_waits_for_its_end() {
        let mut turns = Turns::default();
        turns.enter(Csn(0));
        assert_eq!(turns.offer(Csn(1), Due::Apply(Csn(3))), Some(Due::Apply(Csn(3))));
        assert_eq!(turns.offer(Csn(4), T1), None);
        assert_eq!(turns.reached(Csn(2)), None);
        assert_eq!(turns.reached(Csn(3)), Some((Csn(4), T1)));
    }

    #[test]
    fn commit_that_failed_is_applied_at_the_same_turn() {
        let mut turns = Turns::default();
        turns.enter(Csn(0));
        assert_eq!(turns.offer(Csn(1), T1), Some(T1));
        assert_eq!(turns.offer(Csn(1), Due::Apply(Csn(1))), Some(Due::Apply(Csn(1))));
    }

    #[test]
    fn replica_that_comes_back_begins_where_it_is() {
        let mut turns = Turns::default();
        turns.enter(Csn(0));
        assert_eq!(turns.offer(Csn(3), T1), None);
        turns.leave();
        turns.enter(Csn(2));
        assert_eq!(turns.reached(Csn(2)), None);
        assert_eq!(turns.offer(Csn(3), T2), Some(T2));
    }
}
