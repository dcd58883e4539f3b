//! How far back the commit log must reach (design 3.4): replicas commit without waiting for their disks, so a server that
//! crashes comes back without its newest commits, and needs them again.

use onecopy_core::{Csn, ReplicaId};
use parking_lot::Mutex;

/// What is known of one replica.
#[derive(Clone, Copy, Default)]
struct Holding {
    /// It serves, or is about to: what it may need is kept, whatever its size.
    serves: bool,
    /// It contains everything up to here, and has flushed it: no crash takes that away. `None` until it was asked.
    secured: Option<Csn>,
    /// It has left for good: nothing is kept for it.
    is_gone: bool,
}

struct State {
    /// The first commit that is kept.
    first: Csn,
    replicas: Vec<Holding>,
}

/// Which commits the log keeps.
///
/// Invariant: `first <= secured + 1` of every replica that serves, so that none of them can meet a gap, and at least
/// one replica has everything before `first` on its disk.
pub struct Retention(Mutex<State>);

/// The log does not hold what a replica lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "it contains the commits up to {position}, but the commit log keeps those from {first} on only (see log.kept_bytes_max); copy it anew from another replica"
)]
pub struct Gap {
    /// The last commit that the replica contains.
    pub position: Csn,
    /// The first one that the log holds.
    pub first: Csn,
}

impl Retention {
    /// For a log that begins with commit `first`.
    pub fn new(replicas: usize, first: Csn) -> Retention {
        Retention(Mutex::new(State { first, replicas: vec![Holding::default(); replicas] }))
    }

    /// The first commit that the log keeps.
    pub fn first(&self) -> Csn {
        self.0.lock().first
    }

    /// Keeps from now on whatever a replica needs that comes into service with what it contains.
    ///
    /// # Errors
    /// [`Gap`]; it must not serve.
    pub fn enter(&self, replica: ReplicaId, position: Csn) -> Result<(), Gap> {
        let mut state = self.0.lock();
        let first = state.first;
        check(position, first)?;
        if let Some(holding) = state.replicas.get_mut(usize::from(replica.0)) {
            holding.serves = true;
            // One that was put back to an earlier state has not what it had.
            holding.secured = holding.secured.map(|secured| secured.min(position));
        }
        Ok(())
    }

    /// There is one more replica. Until it is known what it contains, everything is kept for which there is room.
    pub fn add(&self) {
        self.0.lock().replicas.push(Holding::default());
    }

    /// The replica has left for good.
    pub fn remove(&self, replica: ReplicaId) {
        if let Some(holding) = self.0.lock().replicas.get_mut(usize::from(replica.0)) {
            *holding = Holding { is_gone: true, ..Holding::default() };
        }
    }

    /// The replica will contain what a snapshot of another one does, and nothing of what it had: as long as there is room, the
    /// log keeps what comes after that.
    ///
    /// # Errors
    /// [`Gap`], if that is not kept any more.
    pub fn begin_anew(&self, replica: ReplicaId, position: Csn) -> Result<(), Gap> {
        let mut state = self.0.lock();
        check(position, state.first)?;
        if let Some(holding) = state.replicas.get_mut(usize::from(replica.0)) {
            *holding = Holding { secured: Some(position), ..Holding::default() };
        }
        Ok(())
    }

    /// The replica does not serve: what it needs is kept as long as there is room.
    pub fn leave(&self, replica: ReplicaId) {
        if let Some(holding) = self.0.lock().replicas.get_mut(usize::from(replica.0)) {
            holding.serves = false;
        }
    }

    /// The replica has flushed everything up to here.
    pub fn secure(&self, replica: ReplicaId, csn: Csn) {
        if let Some(holding) = self.0.lock().replicas.get_mut(usize::from(replica.0)) {
            holding.secured = holding.secured.max(Some(csn));
        }
    }

    /// The last commit that the replica has surely flushed.
    pub fn secured(&self, replica: ReplicaId) -> Option<Csn> {
        self.0.lock().replicas.get(usize::from(replica.0)).and_then(|holding| holding.secured)
    }

    /// Whether a replica that is away may lack commits that are not kept any more.
    pub fn may_lack(&self, replica: ReplicaId) -> bool {
        let state = self.0.lock();
        let holding = state.replicas.get(usize::from(replica.0)).copied().unwrap_or_default();
        !holding.serves && holding.secured.is_some_and(|secured| secured.next() < state.first)
    }

    /// The commit before which nothing needs to be kept any more, if more can go than before. `within` is the first one
    /// that there is room for, where only replicas that are away need it, or nodes, the first commit for which is `nodes`.
    pub fn advance(&self, nodes: Option<Csn>, within: impl FnOnce() -> Csn) -> Option<Csn> {
        let mut state = self.0.lock();
        // Nobody serves: what there is on disk elsewhere is unknown, and nothing new comes.
        let serving = state.replicas.iter().filter(|holding| holding.serves);
        let mut keep = serving.map(|holding| holding.secured).min()??.next();
        let away = state.replicas.iter().filter(|holding| !holding.serves && !holding.is_gone);
        let needed = away.map(|holding| holding.secured.map_or(Csn(0), Csn::next)).chain(nodes).min();
        if let Some(needed) = needed.filter(|needed| *needed < keep) {
            keep = keep.min(needed.max(within()));
        }
        if keep <= state.first {
            return None;
        }
        state.first = keep;
        Some(keep)
    }
}

/// Whether a log that begins with `first` continues what a replica contains.
pub fn check(position: Csn, first: Csn) -> Result<(), Gap> {
    if position.next() < first { Err(Gap { position, first }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R0: ReplicaId = ReplicaId(0);
    const R1: ReplicaId = ReplicaId(1);
    const R2: ReplicaId = ReplicaId(2);

    #[test]
    fn what_a_node_lacks_is_kept_as_long_as_there_is_room() {
        let retention = both_serve();
        retention.secure(R0, Csn(20));
        retention.secure(R1, Csn(30));
        assert_eq!(retention.advance(Some(Csn(5)), || Csn(3)), Some(Csn(5)));
        assert_eq!(retention.advance(Some(Csn(5)), || Csn(3)), None);
        assert_eq!(retention.advance(Some(Csn(6)), || Csn(15)), Some(Csn(15)));
        // It has all that replicas need.
        assert_eq!(retention.advance(Some(Csn(40)), || Csn(50)), Some(Csn(21)));
    }

    fn both_serve() -> Retention {
        let retention = Retention::new(2, Csn(1));
        retention.enter(R0, Csn(0)).unwrap();
        retention.enter(R1, Csn(0)).unwrap();
        retention
    }

    fn nobody_asks() -> Csn {
        panic!("all replicas serve")
    }

    #[test]
    fn while_a_replica_is_copied_the_log_is_kept_from_its_snapshot_on_as_far_as_there_is_room() {
        let retention = both_serve();
        for replica in [R0, R1] {
            retention.secure(replica, Csn(50));
        }
        retention.add();
        assert_eq!(retention.advance(None, || Csn(20)), Some(Csn(20)), "nobody knows what it will contain");
        retention.begin_anew(R2, Csn(40)).unwrap();
        assert_eq!(retention.advance(None, || Csn(30)), Some(Csn(41)));
        assert_eq!(retention.advance(None, || Csn(41)), None);
        assert!(!retention.may_lack(R2));
        assert_eq!(retention.advance(None, || Csn(45)), Some(Csn(45)));
        assert!(retention.may_lack(R2), "there was no room for it");
        assert_eq!(retention.begin_anew(R2, Csn(40)), Err(Gap { position: Csn(40), first: Csn(45) }));
    }

    #[test]
    fn nothing_is_kept_for_a_replica_that_has_left() {
        let retention = both_serve();
        retention.secure(R0, Csn(50));
        retention.remove(R1);
        assert_eq!(retention.advance(None, nobody_asks), Some(Csn(51)));
    }

    #[test]
    fn what_a_serving_replica_has_not_surely_flushed_is_kept() {
        let retention = both_serve();
        assert_eq!(retention.advance(None, nobody_asks), None);
        retention.secure(R0, Csn(10));
        assert_eq!(retention.advance(None, nobody_asks), None, "nothing is known of the other");
        retention.secure(R1, Csn(7));
        assert_eq!(retention.advance(None, nobody_asks), Some(Csn(8)));
        assert_eq!(retention.advance(None, nobody_asks), None);
        retention.secure(R1, Csn(12));
        assert_eq!(retention.advance(None, nobody_asks), Some(Csn(11)));
    }

    #[test]
    fn what_a_replica_that_is_away_needs_is_kept_as_far_as_there_is_room() {
        let retention = both_serve();
        retention.secure(R0, Csn(5));
        retention.secure(R1, Csn(5));
        retention.leave(R1);
        assert_eq!(retention.advance(None, || Csn(1)), Some(Csn(6)));
        retention.secure(R0, Csn(100));
        assert_eq!(retention.advance(None, || Csn(6)), None);
        assert!(!retention.may_lack(R1));
        assert_eq!(retention.advance(None, || Csn(50)), Some(Csn(50)));
        assert!(retention.may_lack(R1));
        assert_eq!(retention.advance(None, || Csn(1_000)), Some(Csn(101)), "another replica needs more");
        assert_eq!(retention.enter(R1, Csn(99)), Err(Gap { position: Csn(99), first: Csn(101) }));
        assert_eq!(retention.enter(R1, Csn(100)), Ok(()));
        assert!(!retention.may_lack(R1));
    }

    #[test]
    fn nothing_goes_while_nobody_serves_or_a_replica_was_put_back() {
        let retention = both_serve();
        for replica in [R0, R1] {
            retention.secure(replica, Csn(9));
            retention.leave(replica);
        }
        assert_eq!(retention.advance(None, || Csn(1_000)), None);
        retention.enter(R0, Csn(20)).unwrap();
        retention.enter(R1, Csn(4)).unwrap();
        assert_eq!(retention.advance(None, nobody_asks), Some(Csn(5)));
    }
}
