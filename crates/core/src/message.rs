//! Messages between the places of a protocol: one type a protocol (or family of protocols), under one enum.

use crate::protocol::{chains, invalidation};
use crate::scheduling;

/// What one place of a protocol says to another.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Between scheduler, sequencer and database proxies.
    Scheduling(scheduling::Message),
    /// Between peers.
    Invalidation(invalidation::Message),
    /// Between the scheduler and the workers of conflict chains.
    Chains(chains::Message),
}
