//! Names and positions as types, so that one can never stand where another is meant.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// Commit sequence number: a transaction's place in the one order of commits. 0 is the state before the first.
    Csn(u64), "c"
);
id!(
    /// One database server that holds a full copy; an index into the configured list.
    ReplicaId(u16), "R"
);
id!(
    /// One onecopy process of a cluster.
    NodeId(u16), "N"
);
id!(
    /// One client connection, unique within a node's lifetime.
    SessionId(u64), "S"
);
id!(
    /// One transaction, unique within a node's lifetime; later ones are greater.
    TxnId(u64), "T"
);
id!(
    /// A transaction's place in the order in which table locks are queued at every replica (CAS 3.4), from 1 on.
    SequenceNumber(u64), "s"
);
id!(
    /// One statement of one transaction, counted from 0 within the transaction.
    OpId(u32), "o"
);
id!(
    /// A term of one leader; raised whenever another process takes over the replicas.
    Epoch(u64), "e"
);
id!(
    /// Statements that share one text but for their constants; a stable hash of that text.
    ClassId(u64), "k"
);

impl SequenceNumber {
    /// The next number.
    #[must_use]
    pub fn next(self) -> SequenceNumber {
        SequenceNumber(self.0 + 1)
    }
}

impl Csn {
    /// The next place in the order.
    #[must_use]
    pub fn next(self) -> Csn {
        Csn(self.0 + 1)
    }

    /// The place before this one; `Csn(0)` has none and stays.
    #[must_use]
    pub fn previous(self) -> Csn {
        Csn(self.0.saturating_sub(1))
    }
}

/// A point in (real or virtual) time in nanoseconds since the driver's start. The core never reads a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// Nanoseconds from `earlier` to `self`, 0 if `earlier` is later.
    #[must_use]
    pub fn since_ns(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This instant, `ns` nanoseconds later.
    #[must_use]
    pub fn plus_ns(self, ns: u64) -> Instant {
        Instant(self.0.saturating_add(ns))
    }
}
