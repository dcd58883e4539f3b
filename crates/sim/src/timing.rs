//! How long things take: the one place where a safety run and a performance run differ about time.
//!
//! A safety run draws every duration at random, so that whatever may overlap does overlap in some seed. A
//! performance run answers the same questions from measured costs and from how busy a server is.

use onecopy_core::{ClassId, Instant, ReplicaId};

use crate::random::{Purpose, Random};

/// Something that takes time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A request on its way from a client to the node.
    Request,
    /// An answer on its way from the node to a client.
    Reply,
    /// A statement, from being sent until it takes effect in a database.
    Statement(ReplicaId, ClassId),
    /// The end of a transaction, from being sent until it takes effect in a database.
    End(ReplicaId),
    /// One decision's writes, from being sent until they take effect in a database.
    Apply(ReplicaId),
    /// An answer of a database, from the effect until the node has it.
    Answer,
    /// One write of the log to stable storage.
    Flush,
    /// A message between two places of a protocol.
    Message,
    /// From a loss until it is noticed, or from one step of repairing it to the next.
    Repair,
}

/// Says how long things take. Asked in the order of virtual time, so that it may keep servers busy.
pub trait Timing {
    /// The duration of a step that starts now, in nanoseconds.
    fn duration_ns(&mut self, now: Instant, step: Step) -> u64;
}

/// Random durations: mostly short, now and then much longer, and some replicas slower than others.
#[derive(Debug)]
pub struct RandomTiming {
    random: Random,
    /// Of 1,000 steps so many take up to twenty times as long.
    slow_per_mille: u64,
    flush_max_ns: u64,
    /// How much slower each replica applies than it executes.
    apply_factors: Vec<u64>,
}

const MICROSECOND_NS: u64 = 1_000;

impl RandomTiming {
    /// Durations for a seed, with replicas that apply so many times as slowly as they would.
    #[must_use]
    pub fn new(seed: u64, replicas: usize, apply_slowness: u64) -> RandomTiming {
        let mut random = Random::new(seed, Purpose::Timing);
        let slow_per_mille = random.pick(&[0, 5, 20, 100]);
        let flush_max_ns = random.pick(&[50, 500, 3_000]) * MICROSECOND_NS;
        let apply_factors = (0..replicas).map(|_| apply_slowness * random.pick(&[1, 1, 4, 20])).collect();
        RandomTiming { random, slow_per_mille, flush_max_ns, apply_factors }
    }
}

impl Timing for RandomTiming {
    fn duration_ns(&mut self, _now: Instant, step: Step) -> u64 {
        let (min_ns, max_ns) = match step {
            Step::Request | Step::Reply => (100, 60 * MICROSECOND_NS),
            Step::Statement(..) => (MICROSECOND_NS, 400 * MICROSECOND_NS),
            Step::End(_) => (MICROSECOND_NS, 200 * MICROSECOND_NS),
            Step::Apply(replica) => {
                let factor = self.apply_factors.get(usize::from(replica.0)).copied().unwrap_or(1);
                (MICROSECOND_NS, factor * 200 * MICROSECOND_NS)
            }
            Step::Answer | Step::Message => (100, 60 * MICROSECOND_NS),
            Step::Flush => (5 * MICROSECOND_NS, self.flush_max_ns),
            Step::Repair => (10 * MICROSECOND_NS, 5_000 * MICROSECOND_NS),
        };
        let factor = if self.random.chance(self.slow_per_mille) { self.random.between(2, 20) } else { 1 };
        self.random.between(min_ns, max_ns) * factor
    }
}
