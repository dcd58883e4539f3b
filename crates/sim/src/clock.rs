//! Virtual time: a queue of what will happen, in the order in which it happens.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use onecopy_core::Instant;

/// What will happen, and when. Of things at one instant, what was scheduled first happens first.
#[derive(Debug)]
pub struct EventQueue<T> {
    heap: BinaryHeap<Entry<T>>,
    now: Instant,
    scheduled: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Instant,
    number: u64,
    what: T,
}

impl<T> Default for EventQueue<T> {
    fn default() -> EventQueue<T> {
        EventQueue { heap: BinaryHeap::new(), now: Instant(0), scheduled: 0 }
    }
}

impl<T> EventQueue<T> {
    /// The present: when the last thing taken from the queue happened.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Something happens at an instant; one in the past is moved to the present.
    pub fn schedule(&mut self, at: Instant, what: T) {
        self.scheduled += 1;
        self.heap.push(Entry { at: at.max(self.now), number: self.scheduled, what });
    }

    /// Goes on to whatever happens next; `None` when nothing ever will.
    pub fn pop(&mut self) -> Option<T> {
        let entry = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.what)
    }

    /// How many things were scheduled since the start.
    #[must_use]
    pub fn scheduled(&self) -> u64 {
        self.scheduled
    }
}

// The heap gives its greatest element first, so the earliest must be the greatest.
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Entry<T>) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Entry<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Entry<T>) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<T> Eq for Entry<T> {}

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
}
