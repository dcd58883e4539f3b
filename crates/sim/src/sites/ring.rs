//! Total order by a token that goes around the sites, as in the group communication system of the paper (section 4).
//!
//! Whoever has the token gives its messages the next numbers and sends them to all. The token takes along up to which number each site
//! has everything; what all have is stable, and a site hears of that when the token comes.

use std::collections::{BTreeSet, VecDeque};

/// Numbers and whereabouts of messages. What they say stays with the driver, by their numbers from 1 on.
#[derive(Debug)]
pub(super) struct Ring<M> {
    /// Of each site, what it will send when it has the token.
    waiting: Vec<VecDeque<Waiting<M>>>,
    numbered: u64,
    arrived: Vec<Arrived>,
    /// The same as the token knows it.
    known: Vec<u64>,
    /// Of each site, up to where it has heard that everything is stable.
    stable: Vec<u64>,
}

/// Which numbers have arrived at a site.
#[derive(Default, Debug)]
pub(super) struct Arrived {
    early: BTreeSet<u64>,
    /// Up to here all have.
    last: u64,
}

impl Arrived {
    /// One more. Returns those of which by now all before them have, as the first and the one after the last.
    pub(super) fn add(&mut self, number: u64) -> std::ops::Range<u64> {
        self.early.insert(number);
        let first = self.last + 1;
        while self.early.remove(&(self.last + 1)) {
            self.last += 1;
        }
        first..self.last + 1
    }
}

#[derive(Debug)]
struct Waiting<M> {
    message: M,
    is_ordered: bool,
}

/// A message that goes out.
#[derive(PartialEq, Debug)]
pub(super) struct Sent<M> {
    pub(super) message: M,
    /// Its place in the order; nothing if it wants none.
    pub(super) number: Option<u64>,
}

impl<M> Ring<M> {
    pub(super) fn new(sites: usize) -> Ring<M> {
        Ring {
            waiting: (0..sites).map(|_| VecDeque::new()).collect(),
            numbered: 0,
            arrived: (0..sites).map(|_| Arrived::default()).collect(),
            known: vec![0; sites],
            stable: vec![0; sites],
        }
    }

    /// A site wants to send a message, in an order with all others or not.
    pub(super) fn send(&mut self, site: usize, message: M, is_ordered: bool) {
        self.waiting[site].push_back(Waiting { message, is_ordered });
    }

    /// What a site will send last.
    pub(super) fn last_of(&mut self, site: usize) -> Option<&mut M> {
        self.waiting[site].back_mut().map(|waiting| &mut waiting.message)
    }

    /// A message has arrived. Returns those that are ordered by now.
    pub(super) fn arrives(&mut self, site: usize, number: u64) -> std::ops::Range<u64> {
        self.arrived[site].add(number)
    }

    /// The token is here. Returns what is stable, as this site hears now, and at most so many of its messages, which go out.
    pub(super) fn has_token(&mut self, site: usize, most: usize) -> (std::ops::Range<u64>, Vec<Sent<M>>) {
        self.known[site] = self.arrived[site].last;
        let everywhere = self.known.iter().copied().min().unwrap_or(0);
        let stable = std::mem::replace(&mut self.stable[site], everywhere) + 1..everywhere + 1;
        let (count, before) = (most.min(self.waiting[site].len()), self.numbered);
        let number = |is_ordered: bool, numbered: &mut u64| {
            *numbered += u64::from(is_ordered);
            is_ordered.then_some(*numbered)
        };
        let out = self.waiting[site].drain(..count);
        let out = out.map(|waiting| Sent {
            message: waiting.message,
            number: number(waiting.is_ordered, &mut self.numbered),
        });
        let out = out.collect();
        // It has its own messages.
        if self.known[site] == before {
            self.known[site] = self.numbered;
        }
        (stable, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_too_early_is_ordered_with_what_it_waits_for() {
        let mut ring: Ring<()> = Ring::new(2);
        assert_eq!(ring.arrives(1, 2), 1..1);
        assert_eq!(ring.arrives(1, 3), 1..1);
        assert_eq!(ring.arrives(1, 1), 1..4);
        assert_eq!(ring.arrives(1, 4), 4..5);
    }

    #[test]
    fn who_has_the_token_sends_and_what_needs_no_order_gets_no_number() {
        let mut ring = Ring::new(2);
        ring.send(0, 'a', true);
        ring.send(0, 'b', false);
        ring.send(0, 'c', true);
        ring.send(1, 'd', true);
        let sent = |message, number| Sent { message, number };
        assert_eq!(ring.has_token(0, 2).1, [sent('a', Some(1)), sent('b', None)]);
        assert_eq!(ring.has_token(1, 2).1, [sent('d', Some(2))]);
        assert_eq!(ring.last_of(0), Some(&mut 'c'));
        assert_eq!(ring.has_token(0, 2).1, [sent('c', Some(3))]);
    }

    #[test]
    fn a_message_is_stable_when_the_token_has_learned_from_all_that_they_have_it() {
        let mut ring = Ring::new(3);
        ring.send(0, 'a', true);
        ring.has_token(0, 9);
        (0..3).for_each(|site| assert_eq!(ring.arrives(site, 1), 1..2));
        assert_eq!(ring.has_token(1, 9).0, 1..1);
        // The token has been at all others by now.
        assert_eq!(ring.has_token(2, 9).0, 1..2);
        assert_eq!(ring.has_token(0, 9).0, 1..2);
        assert_eq!(ring.has_token(1, 9).0, 1..2);
        assert_eq!(ring.has_token(2, 9).0, 2..2);
    }
}
