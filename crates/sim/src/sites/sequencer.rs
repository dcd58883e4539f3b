//! Total order by one site that numbers what arrives there, while everybody sends to all at once.
//!
//! What the paper sets against its token (section 5.6): messages arrive sooner, and in different orders. A site takes a message in its place when it
//! has the message, its number, and all before it; it tells the others, and what all have is stable.

use std::ops::Range;

use onecopy_core::map::HashMap;

use super::ring::Arrived;

/// Who numbers messages.
pub(super) const SEQUENCER: usize = 0;

#[derive(Debug)]
pub(super) struct Sequencer {
    numbered: u64,
    /// Of each site, by messages of which only one of the two is there.
    half: Vec<HashMap<usize, Half>>,
    arrived: Vec<Arrived>,
    /// Of each site, up to where it knows that others have everything, and up to where it has heard that everything is stable.
    known: Vec<Vec<u64>>,
    stable: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    Message,
    Number(u64),
}

impl Sequencer {
    pub(super) fn new(sites: usize) -> Sequencer {
        Sequencer {
            numbered: 0,
            half: vec![HashMap::default(); sites],
            arrived: (0..sites).map(|_| Arrived::default()).collect(),
            known: vec![vec![0; sites]; sites],
            stable: vec![0; sites],
        }
    }

    /// The next number.
    pub(super) fn next(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    /// A message is at a site. Returns what is ordered there by now.
    pub(super) fn has_message(&mut self, site: usize, message: usize) -> Range<u64> {
        match self.half[site].remove(&message) {
            Some(Half::Number(number)) => self.arrived[site].add(number),
            Some(Half::Message) | None => {
                self.half[site].insert(message, Half::Message);
                0..0
            }
        }
    }

    /// The number of a message is at a site. Returns what is ordered there by now.
    pub(super) fn has_number(&mut self, site: usize, message: usize, number: u64) -> Range<u64> {
        if self.half[site].remove(&message) == Some(Half::Message) {
            return self.arrived[site].add(number);
        }
        self.half[site].insert(message, Half::Number(number));
        0..0
    }

    /// A site hears that another has everything up to a number. Returns what is stable by now.
    pub(super) fn has(&mut self, site: usize, other: usize, upto: u64) -> Range<u64> {
        self.known[site][other] = self.known[site][other].max(upto);
        let everywhere = self.known[site].iter().copied().min().unwrap_or(0);
        std::mem::replace(&mut self.stable[site], everywhere) + 1..everywhere + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_ordered_when_it_and_its_number_and_all_before_it_are_there() {
        let mut sequencer = Sequencer::new(2);
        assert_eq!((sequencer.next(), sequencer.next()), (1, 2));
        assert!(sequencer.has_number(1, 5, 2).is_empty());
        assert!(sequencer.has_message(1, 5).is_empty(), "the first is not there");
        assert!(sequencer.has_message(1, 7).is_empty());
        assert_eq!(sequencer.has_number(1, 7, 1), 1..3);
    }

    #[test]
    fn a_message_is_stable_at_a_site_that_knows_that_all_have_it() {
        let mut sequencer = Sequencer::new(2);
        assert!(sequencer.has(1, 1, 2).is_empty());
        assert_eq!(sequencer.has(1, 0, 1), 1..2);
        assert_eq!(sequencer.has(1, 0, 2), 2..3);
        assert!(sequencer.has(0, 1, 2).is_empty());
    }
}
