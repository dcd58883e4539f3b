//! What a site's database contains: registers, and which places of the order it has committed.

use std::collections::{BTreeMap, BTreeSet};

use onecopy_core::multicast::MessageId;
use onecopy_core::{Csn, TxnId};

use super::log::SharedLog;

/// What a register holds: who wrote it, and what that one had found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Version {
    pub(super) txn: TxnId,
    /// A digest of what it had found, so that writes of an execution in another state are others.
    basis: u64,
}

/// What an execution found in what it reads.
pub(super) type Found = Vec<Option<Version>>;

impl Version {
    pub(super) fn new(txn: TxnId, found: &[Option<Version>]) -> Version {
        let words = found.iter().flat_map(|found| match found {
            None => [u64::MAX, 0],
            Some(found) => [found.txn.0, found.basis],
        });
        let basis = words.fold(0xcbf2_9ce4_8422_2325, |digest: u64, word| {
            (digest.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        Version { txn, basis }
    }
}

/// One commit, and the places of which the database learns with it that nothing changed there.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) place: Csn,
    pub(super) message: MessageId,
    pub(super) writes: Vec<u64>,
    pub(super) version: Version,
    pub(super) nothing: Vec<(Csn, MessageId)>,
}

/// Commits in the order in which they happened; a crash loses some of the last.
#[derive(Clone, Default, Debug)]
pub(super) struct Database {
    commits: Vec<Commit>,
    registers: BTreeMap<u64, Version>,
}

impl Database {
    /// Whether something was committed at a place.
    pub(super) fn has(&self, place: Csn) -> bool {
        self.commits.iter().any(|commit| commit.place == place)
    }

    pub(super) fn commit(&mut self, commit: Commit) {
        self.registers.extend(commit.writes.iter().map(|register| (*register, commit.version)));
        self.commits.push(commit);
    }

    pub(super) fn find(&self, registers: &[u64]) -> Found {
        registers.iter().map(|register| self.registers.get(register).copied()).collect()
    }

    pub(super) fn registers(&self) -> &BTreeMap<u64, Version> {
        &self.registers
    }

    pub(super) fn forget_last(&mut self, count: usize) {
        self.commits.truncate(self.commits.len().saturating_sub(count));
        self.registers.clear();
        for commit in &self.commits {
            self.registers.extend(commit.writes.iter().map(|register| (*register, commit.version)));
        }
    }

    /// Goes back to before it committed something that does not stand in the log for good.
    pub(super) fn restore(&mut self, log: &SharedLog) {
        let stands = |place: Csn, id: MessageId| log.durable_at(place) == Some(id);
        let is_kept = |commit: &&Commit| {
            let nothing = &commit.nothing;
            stands(commit.place, commit.message) && nothing.iter().all(|(place, id)| stands(*place, *id))
        };
        let kept = self.commits.iter().take_while(is_kept).count();
        self.forget_last(self.commits.len() - kept);
    }

    /// What it knows to have stood at each place, whether that changed something or not.
    pub(super) fn places(&self) -> BTreeMap<Csn, MessageId> {
        let nothing = self.commits.iter().flat_map(|commit| &commit.nothing).copied();
        nothing.chain(self.changed()).collect()
    }

    /// Places at which something has changed.
    pub(super) fn changed(&self) -> BTreeMap<Csn, MessageId> {
        self.commits.iter().map(|commit| (commit.place, commit.message)).collect()
    }

    /// Places at which nothing has changed.
    pub(super) fn unchanged(&self) -> BTreeSet<Csn> {
        self.commits.iter().flat_map(|commit| &commit.nothing).map(|(place, _)| *place).collect()
    }

    /// What each commit wrote, by its place.
    pub(super) fn versions(&self) -> BTreeMap<Csn, Version> {
        self.commits.iter().map(|commit| (commit.place, commit.version)).collect()
    }

    /// What it has committed and does not stand in the log for good.
    pub(super) fn beside(&self, log: &SharedLog) -> Vec<(Csn, MessageId)> {
        let commits = self.commits.iter().map(|commit| (commit.place, commit.message));
        commits.filter(|(place, id)| log.durable_at(*place) != Some(*id)).collect()
    }
}
