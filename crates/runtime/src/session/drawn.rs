//! What a session has drawn from sequences, for currval() and lastval().

use hashbrown::HashMap;
use onecopy_wire::carried::{Value, Values};

/// Values that a session last drew from sequences.
#[derive(Default)]
pub struct Drawn {
    /// By schema and name.
    values: HashMap<(String, String), i64>,
    last: Option<i64>,
    changes: u64,
}

impl Drawn {
    /// What currval() returns.
    pub fn of(&self, schema: &str, name: &str) -> Option<i64> {
        self.values.get(&(schema.to_owned(), name.to_owned())).copied()
    }

    /// What lastval() returns.
    pub fn last(&self) -> Option<i64> {
        self.last
    }

    /// How often anything has changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// By nextval().
    pub fn draw(&mut self, schema: &str, name: &str, value: i64) {
        self.set(schema, name, value);
        self.last = Some(value);
    }

    /// By setval().
    pub fn set(&mut self, schema: &str, name: &str, value: i64) {
        self.values.insert((schema.to_owned(), name.to_owned()), value);
        self.changes += 1;
    }

    /// DISCARD SEQUENCES.
    pub fn clear(&mut self) {
        self.values.clear();
        self.last = None;
        self.changes += 1;
    }

    /// As a session on another node had drawn them.
    pub fn take_over(&mut self, values: &Values<'_>) {
        self.clear();
        values.sequences.iter().for_each(|Value { schema, name, value }| self.set(schema, name, *value));
        self.last = values.last;
    }

    /// To be taken over by a session on another node; `None` if there is nothing.
    pub fn all(&self) -> Option<Values<'_>> {
        let values = self.values.iter();
        let mut sequences: Vec<Value<'_>> =
            values.map(|((schema, name), value)| Value { schema, name, value: *value }).collect();
        sequences.sort_unstable_by_key(|value| (value.schema, value.name));
        let values = Values { sequences, last: self.last };
        (values != Values::default()).then_some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_drawn_is_taken_over_and_set_values_are_not_the_last_ones() {
        let mut drawn = Drawn::default();
        assert_eq!(drawn.all(), None);
        drawn.draw("public", "b", 7);
        drawn.set("public", "a", 3);
        assert_eq!(
            (drawn.of("public", "b"), drawn.of("public", "a"), drawn.last()),
            (Some(7), Some(3), Some(7))
        );
        let before = drawn.changes();
        let mut other = Drawn::default();
        other.draw("public", "own", 1);
        other.take_over(&drawn.all().unwrap());
        assert_eq!((other.all(), other.of("public", "own")), (drawn.all(), None));
        assert_eq!(drawn.changes(), before, "nothing has changed by that");
        drawn.clear();
        assert_eq!((drawn.all(), drawn.last()), (None, None));
        assert_ne!(drawn.changes(), before);
    }
}
