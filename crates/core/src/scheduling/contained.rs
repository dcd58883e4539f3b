//! What a replica contains when it commits in any order: everything up to some decision, and some of what follows.

use std::collections::BTreeSet;

use crate::ids::Csn;

/// A set of CSNs. Invariant: everything in `beyond` is at least two past `prefix`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Contained {
    prefix: Csn,
    beyond: BTreeSet<Csn>,
}

impl Contained {
    /// Everything up to `csn`, and nothing else.
    pub(crate) fn up_to(csn: Csn) -> Contained {
        Contained { prefix: csn, beyond: BTreeSet::new() }
    }

    /// The greatest CSN up to which everything is contained.
    pub(crate) fn prefix(&self) -> Csn {
        self.prefix
    }

    pub(crate) fn insert(&mut self, csn: Csn) {
        if csn > self.prefix {
            self.beyond.insert(csn);
            self.close_gap();
        }
    }

    /// Everything up to `csn` has been filled in.
    pub(crate) fn fill(&mut self, csn: Csn) {
        if csn > self.prefix {
            self.prefix = csn;
            self.beyond = self.beyond.split_off(&csn.next());
            self.close_gap();
        }
    }

    fn close_gap(&mut self) {
        while self.beyond.remove(&self.prefix.next()) {
            self.prefix = self.prefix.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_grows_when_its_gap_closes() {
        let mut contained = Contained::up_to(Csn(1));
        contained.insert(Csn(4));
        contained.insert(Csn(3));
        assert_eq!(contained.prefix(), Csn(1));
        contained.insert(Csn(2));
        assert_eq!(contained, Contained::up_to(Csn(4)));
    }

    #[test]
    fn filling_joins_what_was_contained_beyond() {
        let mut contained = Contained::up_to(Csn(1));
        [3, 6, 8].into_iter().for_each(|csn| contained.insert(Csn(csn)));
        contained.fill(Csn(5));
        assert_eq!(contained.prefix(), Csn(6));
        contained.insert(Csn(7));
        assert_eq!(contained, Contained::up_to(Csn(8)));
    }
}
