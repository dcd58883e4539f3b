//! Messages between the places of a protocol: one type a protocol (or family of protocols), under one enum.

use crate::protocol::{invalidation, wide_area};
use crate::{certification, chaining, scheduling};

/// What one place of a protocol says to another.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Between scheduler, sequencer and database proxies.
    Scheduling(scheduling::Message),
    /// Between peers.
    Invalidation(invalidation::Message),
    /// Between sites.
    WideArea(wide_area::Message),
    /// Between a scheduler and the workers of its chains.
    Chaining(chaining::Message),
    /// Between the scheduler that certifies and its workers.
    Certification(certification::Message),
}
