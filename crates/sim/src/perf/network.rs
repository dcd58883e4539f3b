//! How long a message takes between two machines.

use std::collections::BTreeMap;

use onecopy_core::{Instant, Place, ReplicaId};

use crate::random::{Purpose, Random};

/// The network between all machines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Latency {
    /// What every message takes, in nanoseconds.
    pub hop_ns: u64,
    /// What it takes more, at most; drawn uniformly.
    pub jitter_ns: u64,
    /// Whether messages from the scheduler to a database may overtake each other, as those of several schedulers do. Only
    /// protocols for statements that stand alone bear that.
    pub overtaking: bool,
}

impl Default for Latency {
    /// A switched local network.
    fn default() -> Latency {
        Latency { hop_ns: 100_000, jitter_ns: 0, overtaking: false }
    }
}

/// What a message leaves from or arrives at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Machine {
    Users,
    Scheduler,
    Sequencer,
    /// A database, with its proxy if the protocol has any.
    Database(ReplicaId),
}

impl From<Place> for Machine {
    fn from(place: Place) -> Machine {
        match place {
            Place::Scheduler(_) => Machine::Scheduler,
            Place::Sequencer => Machine::Sequencer,
            Place::Proxy(replica) => Machine::Database(replica),
            // A peer stands beside its own database.
            Place::Peer(node) => Machine::Database(ReplicaId(node.0)),
        }
    }
}

/// Messages under way. What one machine sends to another arrives in the order in which it was sent.
#[derive(Debug)]
pub(super) struct Network {
    latency: Latency,
    random: Random,
    /// When the last message of a channel arrives; needed only where messages take different times.
    last: BTreeMap<(Machine, Machine), Instant>,
}

impl Network {
    pub(super) fn new(latency: Latency, seed: u64) -> Network {
        Network { latency, random: Random::new(seed, Purpose::Timing), last: BTreeMap::new() }
    }

    /// When a message that is sent now arrives.
    pub(super) fn arrival(&mut self, now: Instant, from: Machine, to: Machine) -> Instant {
        if from == to {
            return now;
        }
        let at = now.plus_ns(self.latency.hop_ns);
        if self.latency.jitter_ns == 0 {
            return at;
        }
        let at = at.plus_ns(self.random.between(0, self.latency.jitter_ns));
        if self.latency.overtaking && (from, matches!(to, Machine::Database(_))) == (Machine::Scheduler, true)
        {
            return at;
        }
        let last = self.last.entry((from, to)).or_default();
        *last = at.max(*last);
        *last
    }

    /// A message's time without jitter, in nanoseconds.
    pub(super) fn hop_ns(&self) -> u64 {
        self.latency.hop_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_channel_do_not_overtake_each_other() {
        let mut network = Network::new(Latency { hop_ns: 10, jitter_ns: 1_000, overtaking: false }, 1);
        let mut last = Instant(0);
        for now in (0..5_000).map(Instant) {
            let at = network.arrival(now, Machine::Users, Machine::Scheduler);
            assert!(at >= last && at.since_ns(now) >= 10);
            last = at;
        }
    }

    #[test]
    fn what_stays_on_a_machine_takes_no_time() {
        let mut network = Network::new(Latency::default(), 1);
        let database = Machine::Database(ReplicaId(3));
        assert_eq!(network.arrival(Instant(5), database, Place::Proxy(ReplicaId(3)).into()), Instant(5));
        assert_eq!(network.arrival(Instant(5), database, Machine::Scheduler), Instant(100_005));
    }
}
