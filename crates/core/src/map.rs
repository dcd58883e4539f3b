//! Hash tables whose order is the same in every run, so that the same events always give the same effects.
//!
//! The fixed seed gives up protection against chosen keys; keys here are numbers of our own and hashes of values, and a
//! table that degenerates costs time, never correctness.

/// A map from keys to values.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, foldhash::fast::FixedState>;

/// A set of keys.
pub type HashSet<K> = hashbrown::HashSet<K, foldhash::fast::FixedState>;
