//! Replicas join, as copies of others, and leave for good, as the real driver has them do (docs/replicas.md).

use onecopy_core::{Event, ReplicaId};

use super::replicas::{Membership, Replica};
use super::{Simulation, Wake};
use crate::database::{Contents, Database, Order};
use crate::scenario::Moment;
use crate::timing::Step;

/// A copy takes so many times as long as it takes to repair a connection, at most.
const COPY_REPAIRS_MAX: u64 = 20;

impl Simulation<'_> {
    /// An operator adds a server.
    pub(super) fn join(&mut self) {
        let id = ReplicaId(self.replicas.len() as u16);
        let empty = Replica::new(&Contents::new(), Order::WithoutGaps);
        self.replicas.push(Replica { membership: Membership::AwaitingSource, ..empty });
        self.note(format_args!("{id:?} joins"));
        self.feed(Event::ReplicaAdded { replica: id });
        self.copy_from_somebody();
    }

    /// A node that was copying when it died knows that it was, and begins anew; one that leaves has left.
    pub(super) fn begin_anew_what_was_copied(&mut self) {
        for replica in &mut self.replicas {
            match replica.membership {
                Membership::AwaitingCopy(_) | Membership::Differs => {
                    replica.membership = Membership::AwaitingSource;
                }
                Membership::Leaves => replica.membership = Membership::Gone,
                Membership::AwaitingSource | Membership::Stays | Membership::Gone => {}
            }
        }
    }

    /// Copies begin that have waited for a replica in service.
    pub(super) fn copy_from_somebody(&mut self) {
        let sources: Vec<ReplicaId> = self.replica_ids().filter(|id| self.serves(*id)).collect();
        if sources.is_empty() {
            return;
        }
        for target in self.replica_ids() {
            if self.replica(target).membership != Membership::AwaitingSource {
                continue;
            }
            let source = self.choices.pick(&sources);
            let copy = Box::new(self.replica(source).database.copied());
            self.note(format_args!("{target:?} is copied from {source:?} at {}", copy.progress()));
            let epoch = self.node.epoch;
            self.replica(target).membership = Membership::AwaitingCopy(epoch);
            self.counts.copies += 1;
            self.reached(Moment::Copy(self.counts.copies), Some(source));
            let mut at = self.queue.now();
            for _ in 0..self.choices.between(1, COPY_REPAIRS_MAX) {
                at = at.max(self.in_a(Step::Repair)).plus_ns(1);
            }
            self.queue.schedule(at, Wake::Copied { epoch, replica: target, copy });
        }
    }

    /// From here on it is a replica that comes back.
    pub(super) fn on_copied(&mut self, id: ReplicaId, copy: Database) {
        let epoch = self.node.epoch;
        if self.replica(id).membership != Membership::AwaitingCopy(epoch) {
            return;
        }
        self.replica(id).database = copy;
        self.replica(id).membership = Membership::Stays;
        self.statistics.joined += 1;
        self.on_fence(id);
    }

    /// An operator removes a replica; the last one that serves is refused.
    pub(super) fn depart(&mut self, id: ReplicaId, at_once: bool) -> bool {
        let other_serves = self.replica_ids().any(|other| other != id && self.serves(other));
        if !self.members().contains(&id) || self.replica(id).membership == Membership::Leaves || !other_serves
        {
            return false;
        }
        self.note(format_args!("{id:?} leaves for good, at once: {at_once}"));
        self.replica(id).membership = Membership::Leaves;
        self.counts.leaves += 1;
        self.reached(Moment::Leave(self.counts.leaves), Some(id));
        if at_once || !self.replica(id).up {
            self.remove(id);
        } else {
            self.feed(Event::ReplicaLeaving { replica: id });
            self.on_drained(id);
        }
        true
    }

    /// What a replica contains is wrong, and that is found: it must not serve before it was copied anew.
    pub(super) fn diverge(&mut self, id: ReplicaId) -> bool {
        let other_serves = self.replica_ids().any(|other| other != id && self.serves(other));
        if !self.serves_at(id) || !other_serves || !self.break_replica(id, false) {
            return false;
        }
        self.note(format_args!("{id:?} differs, and is copied anew"));
        let replica = self.replica(id);
        // Nothing that was sent may run any more.
        replica.fence();
        replica.up = false;
        replica.database.lose_a_row();
        replica.membership = Membership::Differs;
        true
    }

    pub(super) fn on_drained(&mut self, id: ReplicaId) {
        if self.replica(id).membership != Membership::Leaves {
            return;
        }
        let open = self.protocol.status().replicas[usize::from(id.0)].open;
        if self.replica(id).up && open > 0 {
            let at = self.in_a(Step::Repair);
            let epoch = self.node.epoch;
            return self.queue.schedule(at, Wake::Drained { epoch, replica: id });
        }
        self.remove(id);
    }

    fn remove(&mut self, id: ReplicaId) {
        self.break_replica(id, false);
        self.replica(id).membership = Membership::Gone;
        self.statistics.departed += 1;
        self.feed(Event::ReplicaRemoved { replica: id });
    }

    /// Those that must be equal in the end.
    pub(super) fn members(&self) -> Vec<ReplicaId> {
        let is_member = |id: &ReplicaId| self.replicas[usize::from(id.0)].membership != Membership::Gone;
        self.replica_ids().filter(is_member).collect()
    }

    fn serves(&self, id: ReplicaId) -> bool {
        let replica = &self.replicas[usize::from(id.0)];
        replica.up && replica.membership == Membership::Stays
    }

    /// The same of one that may not have come yet.
    fn serves_at(&self, id: ReplicaId) -> bool {
        usize::from(id.0) < self.replicas.len() && self.serves(id)
    }
}
