//! Virtual time: a queue of what will happen, in the order in which it happens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use onecopy_core::Instant;

/// What will happen, and when. Of things at one instant, what was scheduled first happens first.
///
/// The heap orders small keys only; the things themselves lie still until their time comes.
#[derive(Debug)]
pub struct EventQueue<T> {
    heap: BinaryHeap<Reverse<Key>>,
    things: Vec<Option<T>>,
    /// Places in `things` that are free.
    free: Vec<u32>,
    now: Instant,
    scheduled: u64,
}

/// Ordered by time, then by number; the place never decides, since numbers differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    at: Instant,
    number: u64,
    place: u32,
}

impl<T> Default for EventQueue<T> {
    fn default() -> EventQueue<T> {
        EventQueue {
            heap: BinaryHeap::new(),
            things: Vec::new(),
            free: Vec::new(),
            now: Instant(0),
            scheduled: 0,
        }
    }
}

impl<T> EventQueue<T> {
    /// The present: when the last thing taken from the queue happened.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Something happens at an instant; one in the past is moved to the present.
    ///
    /// # Panics
    /// If more than 2^32 things are to happen at once.
    pub fn schedule(&mut self, at: Instant, what: T) {
        self.scheduled += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.things[place as usize] = Some(what);
                place
            }
            None => {
                self.things.push(Some(what));
                u32::try_from(self.things.len() - 1).expect("memory is full long before")
            }
        };
        self.heap.push(Reverse(Key { at: at.max(self.now), number: self.scheduled, place }));
    }

    /// Goes on to whatever happens next; `None` when nothing ever will.
    pub fn pop(&mut self) -> Option<T> {
        let Reverse(Key { at, place, .. }) = self.heap.pop()?;
        self.now = at;
        self.free.push(place);
        self.things[place as usize].take()
    }

    /// How many things will happen.
    #[must_use]
    pub fn awaited(&self) -> u64 {
        self.heap.len() as u64
    }

    /// When the next thing happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(key)| key.at)
    }

    /// How many things were scheduled since the start.
    #[must_use]
    pub fn scheduled(&self) -> u64 {
        self.scheduled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_in_order_of_time_and_then_of_scheduling() {
        let mut queue = EventQueue::default();
        for (at, what) in [(5, "c"), (1, "a"), (5, "d"), (2, "b")] {
            queue.schedule(Instant(at), what);
        }
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some("a"), Some("b"), Some("c")));
        assert_eq!(queue.now(), Instant(5));
        queue.schedule(Instant(3), "late");
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some("d"), Some("late"), None));
        assert_eq!(queue.now(), Instant(5), "time does not go back");
    }

    #[test]
    fn places_are_used_again() {
        let mut queue = EventQueue::default();
        for at in 0..100 {
            queue.schedule(Instant(at), at);
            queue.schedule(Instant(at), at);
            assert_eq!(queue.next_at(), Some(Instant(at)));
            assert_eq!((queue.pop(), queue.pop()), (Some(at), Some(at)));
        }
        assert_eq!((queue.things.len(), queue.next_at()), (2, None));
    }
}
