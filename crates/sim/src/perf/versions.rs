//! What databases hold, as numbers: which write last changed each object.
//!
//! An object is a table, or a part of one. Numbers are given once to each write; 0 is what was there at the start. Where every replica
//! executes, each has numbers of its own; where replicas apply one log in order, they share its history, and a
//! position tells what a replica contains of it.

use onecopy_core::map::HashMap;
use onecopy_core::{Csn, ReplicaId};
use smallvec::SmallVec;

/// What a write is known by.
pub(super) type Version = u64;
/// What is read and written as a whole.
pub(super) type Object = u64;
/// What a statement found in each object that it reads, in the order of its touches.
pub(super) type Seen = SmallVec<[Version; 4]>;

/// How a statement deals with an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Touch {
    pub(super) object: Object,
    pub(super) reads: bool,
    pub(super) writes: bool,
}

/// The contents of databases each of which executes for itself.
#[derive(Debug)]
pub(super) struct Own {
    shows_uncommitted: bool,
    tables: usize,
    /// By replica, then by table.
    versions: Vec<Version>,
}

/// What a write that is not committed changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    replica: ReplicaId,
    object: Object,
    before: Version,
    after: Version,
}

impl Own {
    pub(super) fn new(replicas: usize, tables: usize, shows_uncommitted: bool) -> Own {
        Own { shows_uncommitted, tables, versions: vec![0; replicas * tables] }
    }

    /// Executes a statement that writes as `version`, of a transaction that has changed this.
    pub(super) fn execute(
        &mut self,
        replica: ReplicaId,
        touches: &[Touch],
        version: Version,
        changes: &mut Vec<Change>,
    ) -> Seen {
        let first = usize::from(replica.0) * self.tables;
        let mut seen = Seen::new();
        for Touch { object, reads, writes } in touches {
            let held = &mut self.versions[first + *object as usize];
            let is_own = |change: &&Change| (change.replica, change.object) == (replica, *object);
            let own = changes.iter().rev().find(is_own).filter(|_| !self.shows_uncommitted);
            let before = own.map_or(*held, |change| change.after);
            if *reads {
                seen.push(before);
            }
            if *writes {
                changes.push(Change { replica, object: *object, before, after: version });
                if self.shows_uncommitted {
                    *held = version;
                }
            }
        }
        seen
    }

    /// What a transaction changed at a replica is there from now on.
    pub(super) fn commit(&mut self, replica: ReplicaId, changes: &mut Vec<Change>) {
        if self.shows_uncommitted {
            return;
        }
        let first = usize::from(replica.0) * self.tables;
        for change in changes.iter().filter(|change| change.replica == replica) {
            self.versions[first + change.object as usize] = change.after;
        }
        changes.retain(|change| change.replica != replica);
    }

    /// Takes back what a transaction wrote at a replica.
    pub(super) fn undo(&mut self, replica: ReplicaId, changes: &mut Vec<Change>) {
        let first = usize::from(replica.0) * self.tables;
        let shown = changes.iter().rev().filter(|_| self.shows_uncommitted);
        for change in shown.filter(|change| change.replica == replica) {
            self.versions[first + change.object as usize] = change.before;
        }
        changes.retain(|change| change.replica != replica);
    }

    /// Everything that a replica holds.
    #[cfg(test)]
    pub(super) fn contents(&self, replica: ReplicaId) -> &[Version] {
        let first = usize::from(replica.0) * self.tables;
        &self.versions[first..first + self.tables]
    }
}

/// The history that all replicas share.
#[derive(Default, Debug)]
pub(super) struct Shared {
    /// By object: the decisions that wrote it, in order.
    history: HashMap<Object, Vec<(Csn, Version)>>,
}

impl Shared {
    /// What a transaction reads at a position, its own writes included.
    pub(super) fn read(&self, position: Csn, own: &[(Object, Version)], touches: &[Touch]) -> Seen {
        let committed = |object: Object| {
            let history = self.history.get(&object)?;
            let later = history.partition_point(|(csn, _)| *csn <= position);
            Some(history[later.checked_sub(1)?].1)
        };
        let found = |object: Object| {
            let own = own.iter().rev().find(|(written, _)| *written == object).map(|(_, version)| *version);
            own.or_else(|| committed(object)).unwrap_or(0)
        };
        touches.iter().filter(|touch| touch.reads).map(|touch| found(touch.object)).collect()
    }

    /// A decision wrote these; decisions are told in order.
    pub(super) fn decide(&mut self, csn: Csn, writes: &[(Object, Version)]) {
        for (object, version) in writes {
            let history = self.history.entry(*object).or_default();
            match history.last_mut().filter(|(last, _)| *last == csn) {
                Some((_, last)) => *last = *version,
                None => history.push((csn, *version)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R0: ReplicaId = ReplicaId(0);
    const R1: ReplicaId = ReplicaId(1);

    fn touch(object: Object, writes: bool) -> Touch {
        Touch { object, reads: true, writes }
    }

    #[test]
    fn replicas_that_execute_have_contents_of_their_own() {
        let mut own = Own::new(2, 3, true);
        let mut undo = Vec::new();
        let write = [touch(0, false), touch(2, true)];
        assert_eq!(own.execute(R1, &write, 7, &mut undo)[..], [0, 0]);
        assert_eq!((own.contents(R0), own.contents(R1)), (&[0, 0, 0][..], &[0, 0, 7][..]));
        assert_eq!(own.execute(R1, &write, 8, &mut undo)[..], [0, 7]);
        own.undo(R0, &mut undo);
        assert_eq!(own.contents(R1), [0, 0, 8]);
        own.undo(R1, &mut undo);
        assert_eq!(own.contents(R1), [0, 0, 0]);
    }

    #[test]
    fn what_is_not_committed_is_seen_by_its_own_transaction_alone() {
        let mut own = Own::new(2, 1, false);
        let (mut mine, mut others) = (Vec::new(), Vec::new());
        let write = [touch(0, true)];
        for replica in [R0, R1] {
            assert_eq!(own.execute(replica, &write, 7, &mut mine)[..], [0]);
        }
        assert_eq!(own.execute(R0, &[touch(0, false)], 0, &mut mine)[..], [7]);
        assert_eq!(own.execute(R0, &[touch(0, false)], 0, &mut others)[..], [0]);
        own.commit(R0, &mut mine);
        own.undo(R1, &mut mine);
        assert_eq!((own.contents(R0), own.contents(R1)), (&[7][..], &[0][..]));
    }

    #[test]
    fn a_position_shows_what_was_decided_up_to_it() {
        let mut shared = Shared::default();
        shared.decide(Csn(2), &[(0, 5), (0, 6)]);
        shared.decide(Csn(4), &[(0, 9), (1, 9)]);
        let read = |position, own: &[_]| shared.read(Csn(position), own, &[touch(0, false), touch(1, true)]);
        assert_eq!(read(1, &[])[..], [0, 0]);
        assert_eq!(read(2, &[])[..], [6, 0]);
        assert_eq!(read(3, &[(1, 11), (1, 12)])[..], [6, 12]);
        assert_eq!(read(4, &[])[..], [9, 9]);
    }
}
