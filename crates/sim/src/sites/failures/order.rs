//! How far messages have come at one site: received, ordered, stable; by the rules of the real processes (`runtime/src/sites/order.rs`).
//!
//! Invariants:
//! - of each message each moment is told once, and in the order of moments;
//! - places are told as ordered in their order without gaps, and so as stable;
//! - what stands in the log twice counts where it stands first.

use std::collections::{BTreeMap, BTreeSet};

use onecopy_core::{Csn, Epoch};

use super::log::MessageId;

/// What is to be told of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Received(MessageId),
    /// With the leader who gave the place: where both are the same, so is everything before.
    Ordered(MessageId, Csn, Epoch),
    Stable(MessageId, Csn),
}

/// A place that was told, and perhaps committed here, is another message's in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Orphaned;

/// See the module.
#[derive(Default, Debug)]
pub(super) struct Order {
    /// Received, and not stable yet.
    here: BTreeSet<MessageId>,
    /// The newest epoch in which a leader has told places.
    epoch: Epoch,
    /// Places that a leader has told, beyond those that were told on.
    noted: BTreeMap<Csn, MessageId>,
    /// Told on as ordered, and not stable yet.
    ordered: BTreeMap<Csn, MessageId>,
    ordered_up_to: Csn,
    /// Before that is stable nothing more is told as ordered: the present leader may know of other places than its predecessor has told.
    doubted_up_to: Csn,
    stable_up_to: Csn,
    stood: BTreeSet<MessageId>,
}

impl Order {
    /// The last place that was told as stable, or passed over.
    pub(super) fn stable_up_to(&self) -> Csn {
        self.stable_up_to
    }

    /// The last place that was told as ordered, or passed over.
    pub(super) fn ordered_up_to(&self) -> Csn {
        self.ordered_up_to
    }

    /// Whether a message stands in the log already.
    pub(super) fn has_stood(&self, id: MessageId) -> bool {
        self.stood.contains(&id)
    }

    /// Whether a message is here and not stable yet.
    pub(super) fn has(&self, id: MessageId) -> bool {
        self.here.contains(&id)
    }

    /// Those that have no place in the log yet.
    pub(super) fn unplaced(&self) -> Vec<MessageId> {
        let placed: BTreeSet<MessageId> = self.ordered.values().chain(self.noted.values()).copied().collect();
        self.here.difference(&placed).copied().collect()
    }

    /// Places that were told and are not stable here.
    pub(super) fn told_only(&self) -> impl Iterator<Item = (Csn, MessageId)> {
        self.ordered.iter().map(|(place, id)| (*place, *id))
    }

    /// Another leader gives places from now on. What its predecessor told and nobody has acted upon may not hold any more.
    pub(super) fn begin_epoch(&mut self, epoch: Epoch) {
        if epoch > self.epoch {
            self.noted.clear();
            (self.epoch, self.doubted_up_to) = (epoch, self.ordered_up_to);
        }
    }

    /// A message has come from its sender. Returns whether that is news.
    pub(super) fn on_message(&mut self, id: MessageId, told: &mut Vec<Told>) -> bool {
        if self.stood.contains(&id) || !self.here.insert(id) {
            return false;
        }
        told.push(Told::Received(id));
        self.tell_ordered(told);
        true
    }

    /// The leader of an epoch has given a message a place.
    pub(super) fn on_place(&mut self, epoch: Epoch, place: Csn, id: MessageId, told: &mut Vec<Told>) {
        if epoch < self.epoch {
            return;
        }
        self.begin_epoch(epoch);
        if place > self.ordered_up_to {
            self.noted.insert(place, id);
            self.tell_ordered(told);
        }
    }

    fn tell_ordered(&mut self, told: &mut Vec<Told>) {
        while self.stable_up_to >= self.doubted_up_to {
            let next = self.ordered_up_to.next();
            let Some(id) = self.noted.get(&next).copied().filter(|id| self.here.contains(id)) else {
                return;
            };
            self.noted.remove(&next);
            let is_first = !self.ordered.values().any(|known| *known == id);
            self.ordered.insert(next, id);
            self.ordered_up_to = next;
            if is_first {
                told.push(Told::Ordered(id, next, self.epoch));
            }
        }
    }

    /// The next place of the log is on a majority of disks.
    ///
    /// # Errors
    /// When it was told to be another message's.
    pub(super) fn on_stable(
        &mut self,
        place: Csn,
        (epoch, id): (Epoch, MessageId),
        told: &mut Vec<Told>,
    ) -> Result<(), Orphaned> {
        let before = self.ordered.remove(&place);
        let is_ahead = self.ordered.values().any(|known| *known == id);
        if before.is_some_and(|before| before != id) {
            return Err(Orphaned);
        }
        self.noted.remove(&place);
        self.stable_up_to = place;
        self.ordered_up_to = self.ordered_up_to.max(place);
        let was_here = self.here.remove(&id);
        if self.stood.insert(id) {
            if !was_here {
                told.push(Told::Received(id));
            }
            if before.is_none() && !is_ahead {
                told.push(Told::Ordered(id, place, epoch));
            }
            told.push(Told::Stable(id, place));
        }
        self.tell_ordered(told);
        Ok(())
    }

    /// The next place of the log is in the database already.
    pub(super) fn pass_over(&mut self, place: Csn, id: MessageId) {
        self.stable_up_to = place;
        self.ordered_up_to = self.ordered_up_to.max(place);
        self.here.remove(&id);
        self.ordered.remove(&place);
        self.noted.remove(&place);
        self.stood.insert(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MessageId = MessageId(1);
    const B: MessageId = MessageId(2);

    #[test]
    fn each_moment_is_told_once_and_in_order_whatever_comes_first() {
        let (mut order, mut told) = (Order::default(), Vec::new());
        order.on_place(Epoch(1), Csn(2), B, &mut told);
        order.on_message(B, &mut told);
        order.on_place(Epoch(1), Csn(1), A, &mut told);
        assert_eq!(told, [Told::Received(B)]);
        assert_eq!(order.on_stable(Csn(1), (Epoch(1), A), &mut told), Ok(()));
        let of_a = [Told::Received(A), Told::Ordered(A, Csn(1), Epoch(1)), Told::Stable(A, Csn(1))];
        assert_eq!(told[1..4], of_a);
        assert_eq!(told[4..], [Told::Ordered(B, Csn(2), Epoch(1))]);
        assert!(!order.on_message(A, &mut told), "it has stood in the log");
    }

    #[test]
    fn a_place_that_a_lost_leader_told_may_be_anothers() {
        let (mut order, mut told) = (Order::default(), Vec::new());
        order.on_message(A, &mut told);
        order.on_message(B, &mut told);
        order.on_place(Epoch(1), Csn(1), A, &mut told);
        told.clear();
        order.on_place(Epoch(2), Csn(2), B, &mut told);
        assert_eq!(told, [], "the first is not known to be in the log");
        assert_eq!(order.on_stable(Csn(1), (Epoch(2), B), &mut told), Err(Orphaned));
    }
}
