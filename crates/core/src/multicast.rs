//! How far messages have come that are multicast to all sites, at one site: received, ordered, stable.
//!
//! The order is that of the log that the sites share. A message comes here from its sender; its place, from the node that leads, as soon as that
//! has one for it; and that it is on a majority of disks, from this node's own log. Each may come first, and the first two may be lost. What
//! stands in the log is the order; a place that the leader told before it was lost may be given to another message.
//!
//! Invariants:
//! - of each message each moment is told once, and in the order of [`Moment`](crate::event::Moment);
//! - places are told as ordered in their order without gaps, and so as stable;
//! - what stands in the log twice, since its sender did not hear of it and sent it again, counts where it stands first.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Csn, Epoch};
use crate::map::HashMap;

/// Names a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MessageId {
    /// The node that sent it.
    pub node: u64,
    /// Which start of it.
    pub incarnation: u64,
    /// The how many-th since, from 1.
    pub number: u64,
}

/// What is to be told of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told<B> {
    /// It is here, with what it says.
    Received(MessageId, B),
    /// Its place is known, with the epoch in which it was given its place: where both are the same at two sites, so is everything before.
    Ordered(MessageId, Csn, Epoch),
    /// It stands there on a majority of disks.
    Stable(MessageId, Csn),
}

/// A place that was told, and perhaps committed here, is another message's in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Orphaned {
    /// The place.
    pub place: Csn,
    /// What was told to stand there.
    pub told: MessageId,
}

/// How far messages have come at one site; what they say is of type `B`.
#[derive(Debug)]
pub struct Order<B> {
    /// Received, and not stable yet.
    here: HashMap<MessageId, B>,
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
    /// Which messages stand in the log up to there.
    stood: Stood,
}

impl<B: Clone> Order<B> {
    /// Of a site whose database contains all up to a place.
    #[must_use]
    pub fn new(contained: Csn) -> Order<B> {
        Order {
            here: HashMap::default(),
            epoch: Epoch(0),
            noted: BTreeMap::new(),
            ordered: BTreeMap::new(),
            ordered_up_to: contained,
            doubted_up_to: contained,
            stable_up_to: contained,
            stood: Stood::default(),
        }
    }

    /// The last place that was told as stable, or passed over.
    #[must_use]
    pub fn stable_up_to(&self) -> Csn {
        self.stable_up_to
    }

    /// The last place that was told as ordered, or passed over.
    #[must_use]
    pub fn ordered_up_to(&self) -> Csn {
        self.ordered_up_to
    }

    /// Whether a message stands in the log already.
    #[must_use]
    pub fn has_stood(&self, id: MessageId) -> bool {
        self.stood.has(id)
    }

    /// Those that have no place in the log yet, by name.
    #[must_use]
    pub fn unplaced(&self) -> Vec<(MessageId, B)> {
        let placed: BTreeSet<MessageId> = self.ordered.values().chain(self.noted.values()).copied().collect();
        let mut found: Vec<_> = self.here.iter().map(|(id, body)| (*id, body.clone())).collect();
        found.retain(|(id, _)| !placed.contains(id));
        found.sort_by_key(|(id, _)| *id);
        found
    }

    /// What a message says that is here and not stable yet.
    #[must_use]
    pub fn body(&self, id: MessageId) -> Option<B> {
        self.here.get(&id).cloned()
    }

    /// Another leader gives places from now on. What its predecessor told and nobody has acted upon may not hold any more.
    pub fn begin_epoch(&mut self, epoch: Epoch) {
        if epoch > self.epoch {
            self.noted.clear();
            (self.epoch, self.doubted_up_to) = (epoch, self.ordered_up_to);
        }
    }

    /// Places that were told and are not known to be in the log.
    pub fn told_only(&self) -> impl Iterator<Item = (Csn, MessageId)> {
        self.ordered.iter().map(|(place, id)| (*place, *id))
    }

    /// A message has come from its sender. Returns whether that is news.
    pub fn on_message(&mut self, id: MessageId, body: B, told: &mut Vec<Told<B>>) -> bool {
        if self.stood.has(id) || self.here.contains_key(&id) {
            return false;
        }
        self.here.insert(id, body.clone());
        told.push(Told::Received(id, body));
        self.tell_ordered(told);
        true
    }

    /// The leader of an epoch has given a message a place.
    pub fn on_place(&mut self, epoch: Epoch, place: Csn, id: MessageId, told: &mut Vec<Told<B>>) {
        if epoch < self.epoch {
            return;
        }
        self.begin_epoch(epoch);
        if place > self.ordered_up_to {
            self.noted.insert(place, id);
            self.tell_ordered(told);
        }
    }

    fn tell_ordered(&mut self, told: &mut Vec<Told<B>>) {
        while self.stable_up_to >= self.doubted_up_to {
            let next = self.ordered_up_to.next();
            let Some(id) = self.noted.get(&next).copied().filter(|id| self.here.contains_key(id)) else {
                return;
            };
            self.noted.remove(&next);
            // It has one already, where its leader began anew: the first counts.
            let is_first = !self.ordered.values().any(|known| *known == id);
            self.ordered.insert(next, id);
            self.ordered_up_to = next;
            if is_first {
                told.push(Told::Ordered(id, next, self.epoch));
            }
        }
    }

    /// The next place of the log, which was given in an epoch, is on a majority of disks.
    ///
    /// # Errors
    /// When it was told to be another message's.
    pub fn on_stable(
        &mut self,
        place: Csn,
        epoch: Epoch,
        id: MessageId,
        body: B,
        told: &mut Vec<Told<B>>,
    ) -> Result<(), Orphaned> {
        let before = self.ordered.remove(&place);
        let is_ahead = self.ordered.values().any(|known| *known == id);
        if let Some(before) = before.filter(|before| *before != id) {
            return Err(Orphaned { place, told: before });
        }
        self.noted.remove(&place);
        self.stable_up_to = place;
        self.ordered_up_to = self.ordered_up_to.max(place);
        let is_new = self.stood.add(id);
        let was_here = self.here.remove(&id).is_some();
        if is_new {
            if !was_here {
                told.push(Told::Received(id, body));
            }
            if before.is_none() && !is_ahead {
                told.push(Told::Ordered(id, place, epoch));
            }
            told.push(Told::Stable(id, place));
        }
        self.tell_ordered(told);
        Ok(())
    }

    /// The next place of the log is in the database already, or stands before what it contains.
    pub fn pass_over(&mut self, place: Csn, id: MessageId) {
        self.stable_up_to = place;
        self.ordered_up_to = self.ordered_up_to.max(place);
        self.here.remove(&id);
        self.ordered.remove(&place);
        self.noted.remove(&place);
        self.stood.add(id);
    }
}

/// Which messages stand in the log, of each start of each node: first and last numbers of runs without gaps.
#[derive(Debug, Default)]
struct Stood {
    of: BTreeMap<(u64, u64), BTreeMap<u64, u64>>,
}

/// Starts of one node that are remembered: messages of those before were lost with it, or stand in the log long since.
const STARTS_MAX: usize = 3;

impl Stood {
    fn has(&self, id: MessageId) -> bool {
        let known = self.of.get(&(id.node, id.incarnation));
        let run = known.and_then(|runs| runs.range(..=id.number).next_back());
        run.is_some_and(|(_, last)| id.number <= *last)
    }

    /// Whether it was not there before.
    fn add(&mut self, id: MessageId) -> bool {
        if self.has(id) {
            return false;
        }
        let key = (id.node, id.incarnation);
        let runs = self.of.entry(key).or_default();
        let last = runs.remove(&id.number.saturating_add(1)).unwrap_or(id.number);
        match runs.range_mut(..id.number).next_back() {
            Some((_, before)) if *before + 1 == id.number => *before = last,
            _ => drop(runs.insert(id.number, last)),
        }
        let starts: Vec<_> = self.of.range((id.node, 0)..=(id.node, u64::MAX)).map(|(key, _)| *key).collect();
        // A clock that was turned back makes the newest start look like an old one.
        for old in starts.iter().rev().skip(STARTS_MAX).filter(|old| **old != key) {
            self.of.remove(old);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> MessageId {
        MessageId { node: 1, incarnation: 7, number }
    }

    fn body() -> &'static str {
        "UPDATE"
    }

    fn received(number: u64) -> Told<&'static str> {
        Told::Received(id(number), body())
    }

    fn ordered(number: u64, place: u64) -> Told<&'static str> {
        Told::Ordered(id(number), Csn(place), Epoch(1))
    }

    fn stable(number: u64, place: u64) -> Told<&'static str> {
        Told::Stable(id(number), Csn(place))
    }

    #[test]
    fn each_moment_is_told_once_and_in_order_whatever_comes_first() {
        let mut order = Order::new(Csn(0));
        let mut told = Vec::new();
        // The place of the second one is known first, and its message is there; that of the first one is not.
        order.on_message(id(2), body(), &mut told);
        order.on_place(Epoch(1), Csn(2), id(2), &mut told);
        assert_eq!(told, [received(2)]);
        order.on_place(Epoch(1), Csn(1), id(1), &mut told);
        order.on_message(id(1), body(), &mut told);
        assert!(!order.on_message(id(1), body(), &mut told), "it was sent again");
        assert_eq!(told[1..], [received(1), ordered(1, 1), ordered(2, 2)]);
        told.clear();
        order.on_stable(Csn(1), Epoch(1), id(1), body(), &mut told).unwrap();
        order.on_stable(Csn(2), Epoch(1), id(2), body(), &mut told).unwrap();
        // Of what is known from the log alone all is told at once.
        order.on_stable(Csn(3), Epoch(1), id(3), body(), &mut told).unwrap();
        order.on_place(Epoch(1), Csn(3), id(3), &mut told);
        assert!(!order.on_message(id(3), body(), &mut told));
        assert_eq!(told, [stable(1, 1), stable(2, 2), received(3), ordered(3, 3), stable(3, 3)]);
        assert!(order.unplaced().is_empty());
    }

    #[test]
    fn what_stands_in_the_log_twice_counts_where_it_stands_first() {
        let mut order = Order::new(Csn(4));
        let mut told = Vec::new();
        order.on_stable(Csn(5), Epoch(1), id(1), body(), &mut told).unwrap();
        told.clear();
        order.on_stable(Csn(6), Epoch(1), id(1), body(), &mut told).unwrap();
        assert!(told.is_empty());
        order.on_message(id(2), body(), &mut told);
        order.on_place(Epoch(1), Csn(7), id(2), &mut told);
        assert_eq!(told, [received(2), ordered(2, 7)], "its place is used up");
    }

    #[test]
    fn a_place_that_a_lost_leader_told_may_be_anothers() {
        let mut order = Order::new(Csn(0));
        let mut told = Vec::new();
        for number in [1, 2, 3] {
            order.on_message(id(number), body(), &mut told);
        }
        order.on_place(Epoch(1), Csn(1), id(1), &mut told);
        order.on_place(Epoch(1), Csn(3), id(3), &mut told);
        told.clear();
        // The next leader gives the second place; what its predecessor said of the third one is forgotten.
        order.on_place(Epoch(2), Csn(2), id(3), &mut told);
        order.on_place(Epoch(1), Csn(3), id(2), &mut told);
        assert!(told.is_empty(), "the first is not known to be in the log");
        assert_eq!(
            order.on_stable(Csn(1), Epoch(1), id(2), body(), &mut told),
            Err(Orphaned { place: Csn(1), told: id(1) })
        );
    }

    #[test]
    fn what_has_no_place_is_known_and_what_is_contained_is_passed_over() {
        let mut order = Order::new(Csn(0));
        let mut told = Vec::new();
        order.on_message(id(2), body(), &mut told);
        order.on_message(id(1), body(), &mut told);
        assert_eq!(order.unplaced(), [(id(1), body()), (id(2), body())]);
        order.pass_over(Csn(1), id(1));
        assert_eq!(order.unplaced(), [(id(2), body())]);
        assert!(order.has_stood(id(1)) && !order.has_stood(id(2)));
        assert_eq!(order.stable_up_to(), Csn(1));
    }

    #[test]
    fn numbers_are_remembered_in_runs_whatever_their_order() {
        let mut stood = Stood::default();
        for number in [100, 102, 101, 5, 104, 103] {
            assert!(stood.add(id(number)) && !stood.add(id(number)));
        }
        assert_eq!(stood.of[&(1, 7)].iter().collect::<Vec<_>>(), [(&5, &5), (&100, &104)]);
        assert!(!stood.has(id(99)) && stood.has(id(103)) && !stood.has(id(105)));
        for incarnation in [8, 9, 10, 3] {
            stood.add(MessageId { node: 1, incarnation, number: 1 });
        }
        assert!(stood.has(MessageId { node: 1, incarnation: 3, number: 1 }) && !stood.has(id(5)));
    }

    #[test]
    fn a_second_place_that_a_leader_gives_counts_for_nothing() {
        let mut order = Order::new(Csn(0));
        let mut told = Vec::new();
        order.on_message(id(1), body(), &mut told);
        order.on_place(Epoch(1), Csn(1), id(1), &mut told);
        order.on_place(Epoch(1), Csn(2), id(1), &mut told);
        order.on_stable(Csn(1), Epoch(1), id(1), body(), &mut told).unwrap();
        order.on_stable(Csn(2), Epoch(1), id(1), body(), &mut told).unwrap();
        assert_eq!(told, [received(1), ordered(1, 1), stable(1, 1)]);
    }
}
