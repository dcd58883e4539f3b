//! Whether what all sites execute came to the same at each: digests of how many rows it changed, by blocks of places, which sites tell each other with
//! their signs of life.
//!
//! Statements are taken only if they do the same everywhere. But one may fail at one site alone, for its plan or its memory, and that site would take it for
//! what happened everywhere. Where most of all sites differ from one, and are alike, that one finds it here, once a block is full. What was under way when a site began anew, or when a sign of life
//! was lost, is not compared.

use std::collections::BTreeMap;

use onecopy_core::Csn;
use onecopy_core::item::ValueHash;

/// Places of a block.
const PLACES: u64 = 64;
/// Blocks that are kept until others have said theirs.
const KEPT: usize = 256;

/// A block of places, and what was executed at them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    pub number: u64,
    pub digest: u64,
}

/// What a site knows of blocks.
#[derive(Debug)]
pub struct Outcomes {
    /// The first of which it has seen everything: what the database contained at the beginning it has not.
    first: u64,
    /// The first of which it has not said anything.
    unsaid: u64,
    own: BTreeMap<u64, u64>,
    /// By blocks, and by sites.
    said: BTreeMap<u64, BTreeMap<u64, u64>>,
}

impl Outcomes {
    /// Of a site whose database contains something of what stands up to a place, and nothing of what comes behind it.
    pub fn after(found: Csn) -> Outcomes {
        let first = found.0 / PLACES + 1;
        Outcomes { first, unsaid: first, own: BTreeMap::new(), said: BTreeMap::new() }
    }

    /// What was executed at a place is committed, and has changed so many rows by each statement. What has failed is not told.
    pub fn note(&mut self, place: Csn, rows: impl IntoIterator<Item = Option<u64>>) {
        if place.0 / PLACES < self.first {
            return;
        }
        let words = [place.0].into_iter().chain(rows.into_iter().map(|rows| rows.unwrap_or(u64::MAX)));
        let bytes: Vec<u8> = words.flat_map(u64::to_be_bytes).collect();
        let digest = self.own.entry(place.0 / PLACES).or_default();
        *digest = digest.wrapping_add(ValueHash::of_bytes(&bytes).0);
    }

    /// What is to be said of blocks at whose places nothing can happen any more.
    pub fn says(&mut self, contained: Csn) -> Vec<Block> {
        let end = (contained.0 + 1) / PLACES;
        let first = self.unsaid.max(end.saturating_sub(KEPT as u64));
        self.unsaid = self.unsaid.max(end);
        let blocks =
            (first..end).map(|number| Block { number, digest: *self.own.entry(number).or_default() });
        let blocks = blocks.collect();
        self.own.retain(|number, _| number + KEPT as u64 >= end);
        blocks
    }

    /// Another site has said that of a block.
    pub fn hear(&mut self, site: u64, block: Block) {
        self.said.entry(block.number).or_default().insert(site, block.digest);
        while self.said.len() > KEPT {
            self.said.pop_first();
        }
    }

    /// Blocks in which sites differ, by their first places, and whether most of all sites differ from this one, and are alike. Each is told once: when that is known, or all others have been
    /// heard.
    pub fn compare(&mut self, others: usize) -> Vec<(Csn, bool)> {
        let mut different = Vec::new();
        let (seen, own) = (self.first..self.unsaid, &self.own);
        self.said.retain(|number, said| {
            let Some(own) = own.get(number).filter(|_| seen.contains(number)) else { return true };
            let like = |digest: &u64| said.values().filter(|other| *other == digest).count();
            let most = said.values().filter(|digest| *digest != own).map(like).max().unwrap_or(0);
            let (is_wrong, is_whole) = (2 * most > others + 1, said.len() >= others);
            if is_wrong || is_whole && most > 0 {
                different.push((Csn(number * PLACES), is_wrong));
            }
            !is_wrong && !is_whole
        });
        different
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(places: &[(u64, u64)]) -> Outcomes {
        let mut outcomes = Outcomes::after(Csn(0));
        places.iter().for_each(|(place, rows)| outcomes.note(Csn(*place), [Some(*rows)]));
        outcomes
    }

    #[test]
    fn a_block_is_said_once_and_when_nothing_can_happen_in_it_any_more() {
        let mut one = outcomes(&[(70, 1), (71, 2), (130, 1)]);
        let mut other = outcomes(&[(71, 2), (70, 1)]);
        assert_eq!(one.says(Csn(126)), []);
        let said = one.says(Csn(127));
        assert_eq!(said, other.says(Csn(200))[..1]);
        assert_eq!((said.len(), said[0].number), (1, 1));
        assert_eq!(one.says(Csn(127)), []);
        // What was there before was not seen.
        assert_eq!(Outcomes::after(Csn(70)).says(Csn(191)).len(), 1);
    }

    #[test]
    fn whoever_differs_from_most_is_wrong() {
        let ends = |places: &[(u64, u64)]| outcomes(places).says(Csn(127))[0];
        let (right, failed) = (ends(&[(70, 1), (71, 1)]), ends(&[(70, 1)]));
        let mut wrong = outcomes(&[(70, 1)]);
        wrong.hear(1, right);
        assert_eq!(wrong.compare(2), [], "it is not there itself");
        wrong.says(Csn(127));
        assert_eq!(wrong.compare(2), [], "it may be the other one");
        wrong.hear(2, right);
        assert_eq!(wrong.compare(2), [(Csn(64), true)]);
        assert_eq!(wrong.compare(2), [], "once");
        let mut one = outcomes(&[(70, 1), (71, 1)]);
        one.says(Csn(127));
        one.hear(1, right);
        one.hear(2, failed);
        assert_eq!(one.compare(2), [(Csn(64), false)]);
        // Whom it agrees with may only not have spoken yet.
        let mut of_five = outcomes(&[(70, 1), (71, 1)]);
        of_five.says(Csn(127));
        of_five.hear(1, failed);
        of_five.hear(2, failed);
        assert_eq!(of_five.compare(4), []);
        of_five.hear(3, failed);
        assert_eq!(of_five.compare(4), [(Csn(64), true)]);
        // Of two nobody can say which one it is.
        let mut two = outcomes(&[(70, 1)]);
        two.says(Csn(127));
        two.hear(1, right);
        assert_eq!(two.compare(1), [(Csn(64), false)]);
    }
}
