//! What is looked at beside a load, and after it, where something happens to the cluster meanwhile.
//!
//! - [`watch`]: how replicas come into service and leave it.
//! - [`probe`]: how long the disk of the commit log takes.
//! - [`aftermath`]: what is found when it is over; [`commits`]: of that, whether each transaction happened as its client was told.

use std::time::Duration;

pub mod aftermath;
pub mod commits;
pub mod probe;
pub mod watch;

/// A reply that takes as long as this is noted, and can be the longest of a round.
pub const SLOW: Duration = Duration::from_millis(20);
