//! Messages between the places of a protocol: one type a protocol (or family of protocols), under one enum.

use crate::protocol::{certified, lock_central, lock_distributed, wide_area};
use crate::{certification, chaining, peers, scheduling};

/// What one place of a protocol says to another.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Between scheduler, sequencer and database proxies.
    Scheduling(scheduling::Message),
    /// Between peers, about what was written.
    Peers(peers::Message),
    /// Between peers, about permission by invalidation.
    Invalidation(peers::by_invalidation::Message),
    /// Between peers that ask all others for locks.
    LockDistributed(lock_distributed::Message),
    /// Between peers and the one that manages locks.
    LockCentral(lock_central::Message),
    /// Between sites.
    WideArea(wide_area::Message),
    /// Between sites that certify.
    Certified(certified::Message),
    /// Between a scheduler and the workers of its chains.
    Chaining(chaining::Message),
    /// Between the scheduler that certifies and its workers.
    Certification(certification::Message),
}
