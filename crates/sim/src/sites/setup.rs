//! How sites are run.

use std::ops::Range;

use onecopy_workload::random::{self, Random};

use crate::server::Discipline;

/// One run.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// Decides everything that is drawn at random, but for what arrives.
    pub seed: u64,
    /// How far sites are from each other; there are as many.
    pub distances: Distances,
    /// Transactions a second, at all sites together; each arrives at its user's site, or at one drawn at random.
    pub rate: f64,
    /// How many.
    pub transactions: u64,
    /// CPU time of what sites do.
    pub costs: Costs,
    /// How long sites' links are occupied by what they send; not of sites that fail.
    pub sending: Sending,
    /// Who says in which order messages are.
    pub order: Order,
    /// Who runs when a site's CPU has more than one thing to do.
    pub discipline: Discipline,
    /// So many transactions execute at a site at a time at most; others wait, those first that arrived first. Applying waits for none of them.
    pub executing_max: Option<usize>,
    /// So many updates, whose turns to commit follow each other, are applied in one database transaction: those that came while another one was. 1 where each is
    /// applied by itself, at once.
    pub together_max: usize,
    /// Whether what clients saw is recorded, for the checker.
    pub history: bool,
    /// When a run is given up: far beyond what sites carry, lines grow without end, and so does a run.
    pub gives_up: Option<Patience>,
}

/// How long clients may wait in a run, all together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Patience {
    /// Whose waiting counts, by the numbers of their arrivals from 0 on.
    pub of: Range<u64>,
    /// The sum of their waiting, in nanoseconds.
    pub sum_ns: u128,
}

/// Who says in which order messages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// A token that goes around; only who has it sends, and at most so many messages (the paper's section 4). Whatever wants no order waits for it, too.
    Token {
        /// How many.
        burst: usize,
    },
    /// The first site numbers what arrives there; everybody sends messages at once.
    Sequencer {
        /// For how long numbers, and what sites have, are gathered before the others are told; 0 if they are told at once.
        gathers_ns: u64,
    },
}

/// CPU time of one site, which has one CPU, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// An update's statements.
    pub update_ns: u64,
    /// A query.
    pub query_ns: u64,
    /// To apply what an update wrote, and to commit that.
    pub apply_ns: u64,
    /// The part of it that begins and ends the database transaction: those that are applied in the one of another do not take it.
    pub apply_ends_ns: u64,
    /// To commit.
    pub commit_ns: u64,
    /// To take in a message.
    pub message_ns: u64,
    /// To take in one with what an update wrote.
    pub writes_ns: u64,
    /// To pass on the token.
    pub token_ns: u64,
}

/// For how long what a site sends occupies its link to all others, in nanoseconds, for each of those to whom
/// it is sent. What comes behind it waits, the token as well, which itself occupies nothing; nor does what
/// sites tell of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sending {
    /// A message.
    pub message_ns: u64,
    /// One with what an update wrote.
    pub writes_ns: u64,
}

/// How long a message takes from one site to another, in nanoseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Distances {
    /// By sender and receiver.
    pub ns: Vec<Vec<u64>>,
    /// Each message takes this part longer at most, drawn evenly.
    pub jitter: f64,
}

impl Distances {
    /// So many sites, each equally far from each other.
    #[must_use]
    pub fn equal(sites: u16, ns: u64, jitter: f64) -> Distances {
        let row = |from| (0..sites).map(|to| if from == to { 0 } else { ns }).collect();
        Distances { ns: (0..sites).map(row).collect(), jitter }
    }

    /// How many sites there are.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.ns.len()
    }

    /// How long one message takes.
    #[must_use]
    pub fn draw_ns(&self, from: usize, to: usize, random: &mut Random) -> u64 {
        let factor = 1.0 + self.jitter * random::unit(random);
        (self.ns[from][to] as f64 * factor) as u64
    }
}
