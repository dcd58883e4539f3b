//! Sequence values, handed out in one place and reserved in the log before they are given (design 3.7).
//!
//! Invariant: a value that was given out is at or before the last durable reservation of its sequence.

use std::collections::VecDeque;

use crate::map::HashMap;
use smallvec::SmallVec;

use crate::event::SequenceDefinition;
use crate::ids::{OpId, TxnId};
use crate::item::TableId;

/// Values reserved at once, if nothing else is said: a crash loses at most so many (PostgreSQL itself may lose 32).
pub const RESERVED_VALUES: i64 = 1_000;

#[derive(Debug)]
struct Sequence {
    rules: SequenceDefinition,
    exhausted: bool,
    /// Last value that the log allows; `None` before the first reservation.
    reserved: Option<i64>,
    reserving: Option<i64>,
    /// Reservations on their way that were asked for before the sequence was defined anew: they say nothing of it now.
    outdated: u32,
}

/// Somebody who waits for a reservation to become durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// The transaction.
    pub txn: TxnId,
    /// The statement.
    pub op: OpId,
    /// Which sequences, and how many values of each. To want none of a sequence makes durable where it stands.
    pub wants: SmallVec<[(TableId, u32); 2]>,
}

/// First values, one a want; `None` for a sequence that is unknown or used up.
pub type Values = SmallVec<[Option<i64>; 2]>;

/// Sequences, each with the last value to reserve.
pub type Reservations = SmallVec<[(TableId, i64); 2]>;

/// What came of a want.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Giving {
    /// Given.
    Given(Values),
    /// It waits in line; the reservations named here must be made durable (none if one is on its way).
    Waits {
        /// Sequence and last value to reserve.
        reserve: Reservations,
    },
}

/// All sequences of the database.
#[derive(Debug)]
pub struct Sequences {
    sequences: HashMap<TableId, Sequence>,
    line: VecDeque<Want>,
    /// Values that are reserved at once.
    reserved_values: i64,
}

impl Sequences {
    /// None yet; of each so many values will be reserved at once, at least 1.
    #[must_use]
    pub fn reserving(values: i64) -> Sequences {
        Sequences { sequences: HashMap::default(), line: VecDeque::new(), reserved_values: values }
    }

    /// A sequence was created, changed, or read at start.
    pub fn define(&mut self, id: TableId, rules: SequenceDefinition) {
        let outdated =
            self.sequences.get(&id).map_or(0, |old| old.outdated + u32::from(old.reserving.is_some()));
        let new = Sequence { rules, exhausted: false, reserved: None, reserving: None, outdated };
        self.sequences.insert(id, new);
    }

    /// Gives values, or puts the want in line.
    pub fn next(&mut self, want: Want) -> Giving {
        let mut reserve = SmallVec::new();
        for (id, count) in &want.wants {
            if let Some(last) =
                self.sequences.get_mut(id).and_then(|s| s.missing(*count, self.reserved_values))
            {
                reserve.push((*id, last));
            }
        }
        if reserve.is_empty() && !self.is_reserving(&want) {
            return Giving::Given(self.give(&want));
        }
        self.line.push_back(want);
        Giving::Waits { reserve }
    }

    /// A reservation became durable. Returns whom this serves, and reservations that are needed in addition.
    pub fn reserved(&mut self, id: TableId, last: i64) -> (Vec<(Want, Values)>, Reservations) {
        match self.sequences.get_mut(&id) {
            Some(sequence) if sequence.outdated > 0 => sequence.outdated -= 1,
            Some(sequence) => {
                sequence.reserved = Some(last);
                sequence.reserving = None;
            }
            None => {}
        }
        let (mut served, mut reserve) = (Vec::new(), SmallVec::new());
        for want in std::mem::take(&mut self.line) {
            match self.next(want.clone()) {
                Giving::Given(values) => served.push((want, values)),
                Giving::Waits { reserve: more } => reserve.extend(more),
            }
        }
        (served, reserve)
    }

    fn is_reserving(&self, want: &Want) -> bool {
        want.wants.iter().any(|(id, count)| {
            self.sequences.get(id).is_some_and(|s| s.reserving.is_some() && !s.covers(*count))
        })
    }

    fn give(&mut self, want: &Want) -> Values {
        want.wants.iter().map(|(id, count)| self.sequences.get_mut(id).and_then(|s| s.take(*count))).collect()
    }
}

impl Sequence {
    /// The reservation to ask for so that `count` values can be given, and `reserved_values` at least, if one is needed and none
    /// is on its way.
    fn missing(&mut self, count: u32, reserved_values: i64) -> Option<i64> {
        if self.rules.cycle && count > 0 && self.end(count).is_none() {
            self.rules.next = if self.rules.increment > 0 { self.rules.min } else { self.rules.max };
            self.reserved = None;
        }
        if self.reserving.is_some() || self.covers(count) {
            return None;
        }
        let last = if count == 0 {
            // Before the first value of all this is none of the sequence's.
            self.rules.next.saturating_sub(self.rules.increment)
        } else {
            let span = reserved_values.max(i64::from(count)).saturating_mul(self.rules.increment);
            self.rules.next.saturating_add(span).clamp(self.rules.min, self.rules.max)
        };
        self.reserving = Some(last);
        Some(last)
    }

    /// Whether `count` values may be given now; also when there are not so many, since then none are given. No value may
    /// be given once the log says where the sequence stands.
    fn covers(&self, count: u32) -> bool {
        if count == 0 {
            return self.reserved.is_some();
        }
        let Some(end) = self.end(count) else { return true };
        self.reserved.is_some_and(|last| if self.rules.increment > 0 { end <= last } else { end >= last })
    }

    /// The last of the next `count` values, if there are so many.
    fn end(&self, count: u32) -> Option<i64> {
        if self.exhausted {
            return None;
        }
        let span = self.rules.increment.checked_mul(i64::from(count).saturating_sub(1))?;
        let end = span.checked_add(self.rules.next)?;
        (self.rules.min..=self.rules.max).contains(&end).then_some(end)
    }

    fn take(&mut self, count: u32) -> Option<i64> {
        let end = self.end(count)?;
        let first = self.rules.next;
        match end.checked_add(self.rules.increment) {
            Some(next) => self.rules.next = next,
            None => self.exhausted = true,
        }
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: TableId = TableId(9);

    fn rules(next: i64, max: i64, cycle: bool) -> SequenceDefinition {
        SequenceDefinition { next, increment: 1, min: 1, max, cycle }
    }
    fn want(txn: u64, count: u32) -> Want {
        Want { txn: TxnId(txn), op: OpId(0), wants: SmallVec::from_slice(&[(S, count)]) }
    }
    fn given(first: i64) -> Giving {
        Giving::Given(SmallVec::from_slice(&[Some(first)]))
    }

    #[test]
    fn nothing_is_given_before_its_reservation_is_durable() {
        let mut sequences = Sequences::reserving(RESERVED_VALUES);
        sequences.define(S, rules(5, i64::MAX, false));
        let Giving::Waits { reserve } = sequences.next(want(1, 1)) else { panic!("gave") };
        assert_eq!(reserve.as_slice(), [(S, 1005)]);
        assert_eq!(sequences.next(want(2, 3)), Giving::Waits { reserve: SmallVec::new() });
        let (served, more) = sequences.reserved(S, 1005);
        let firsts: Vec<_> = served.iter().map(|(want, values)| (want.txn.0, values[0])).collect();
        assert_eq!(firsts, [(1, Some(5)), (2, Some(6))]);
        assert!(more.is_empty());
        assert_eq!(sequences.next(want(3, 1)), given(9));
    }

    #[test]
    fn to_want_no_value_reserves_all_before_the_next() {
        let mut sequences = Sequences::reserving(RESERVED_VALUES);
        sequences.define(S, rules(43, i64::MAX, false));
        let Giving::Waits { reserve } = sequences.next(want(1, 0)) else { panic!("gave") };
        assert_eq!(reserve.as_slice(), [(S, 42)]);
        let (served, more) = sequences.reserved(S, 42);
        assert_eq!((served.len(), more.len()), (1, 0));
        let Giving::Waits { reserve } = sequences.next(want(2, 1)) else { panic!("gave") };
        assert_eq!(reserve.as_slice(), [(S, 1043)]);
        assert_eq!(sequences.reserved(S, 1043).0[0].1[0], Some(43));
        assert!(
            matches!(sequences.next(want(3, 0)), Giving::Given(_)),
            "the log says more than that already"
        );
        // Where it begins is made durable, too: a reservation from before may say that it was farther.
        sequences.define(S, rules(1, i64::MAX, false));
        let Giving::Waits { reserve } = sequences.next(want(4, 0)) else { panic!("gave") };
        assert_eq!(reserve.as_slice(), [(S, 0)]);
        assert_eq!(sequences.reserved(S, 0).0.len(), 1);
        let Giving::Waits { reserve } = sequences.next(want(5, 1)) else { panic!("gave") };
        assert_eq!(reserve.as_slice(), [(S, 1001)]);
        assert_eq!(sequences.reserved(S, 1001).0[0].1[0], Some(1));
        // One that cycles begins anew in the same way.
        sequences.define(S, rules(1, 3, true));
        assert!(matches!(sequences.next(want(6, 0)), Giving::Waits { .. }));
        let (served, more) = sequences.reserved(S, 0);
        assert_eq!((served.len(), more.len()), (1, 0));
    }

    #[test]
    fn a_reservation_from_before_a_new_definition_allows_nothing() {
        let mut sequences = Sequences::reserving(RESERVED_VALUES);
        sequences.define(S, rules(5, i64::MAX, false));
        sequences.next(want(1, 1));
        sequences.define(S, rules(2, i64::MAX, false));
        let Giving::Waits { reserve } = sequences.next(want(2, 1)) else { panic!("gave") };
        assert_eq!(reserve.as_slice(), [(S, 1002)]);
        assert!(sequences.reserved(S, 1005).0.is_empty(), "the old reservation serves nobody");
        let served: Vec<_> = sequences.reserved(S, 1002).0.into_iter().map(|(_, values)| values[0]).collect();
        assert_eq!(served, [Some(2), Some(3)]);
    }

    #[test]
    fn of_two_new_definitions_neither_is_allowed_anything_by_reservations_from_before() {
        let mut sequences = Sequences::reserving(RESERVED_VALUES);
        sequences.define(S, rules(5, i64::MAX, false));
        sequences.next(want(1, 1));
        sequences.define(S, rules(2, i64::MAX, false));
        sequences.next(want(2, 1));
        sequences.define(S, rules(1, i64::MAX, false));
        let Giving::Waits { reserve } = sequences.next(want(3, 1)) else { panic!("gave") };
        assert_eq!(reserve.as_slice(), [(S, 1001)]);
        assert!(sequences.reserved(S, 1005).0.is_empty());
        assert!(sequences.reserved(S, 1002).0.is_empty(), "it is of the second definition");
        assert_eq!(sequences.reserved(S, 1001).0.len(), 3);
    }

    #[test]
    fn a_sequence_that_is_used_up_says_so() {
        let mut sequences = Sequences::reserving(RESERVED_VALUES);
        sequences.define(S, rules(3, 3, false));
        sequences.next(want(1, 1));
        let (served, _) = sequences.reserved(S, 3);
        assert_eq!(served[0].1[0], Some(3));
        assert_eq!(sequences.next(want(2, 1)), Giving::Given(SmallVec::from_slice(&[None])));
    }

    #[test]
    fn a_cycling_sequence_starts_again_with_a_new_reservation() {
        let mut sequences = Sequences::reserving(RESERVED_VALUES);
        sequences.define(S, rules(3, 3, true));
        sequences.next(want(1, 1));
        sequences.reserved(S, 3);
        assert!(matches!(sequences.next(want(2, 1)), Giving::Waits { reserve } if reserve.len() == 1));
        let (served, _) = sequences.reserved(S, 3);
        assert_eq!(served[0].1[0], Some(1));
    }

    #[test]
    fn an_unknown_sequence_gives_nothing() {
        assert_eq!(
            Sequences::reserving(RESERVED_VALUES).next(want(1, 1)),
            Giving::Given(SmallVec::from_slice(&[None]))
        );
    }
}
