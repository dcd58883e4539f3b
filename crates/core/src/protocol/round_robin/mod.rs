//! Round robin: each transaction at the worker whose turn it is; what conflicts is given up and runs again.
//!
//! Idea. As much as possible runs at once (IV.B). What conflicts is found when it has run ([certification]).
//!
//! Paper: P. Cincilla, S. Monnet, M. Shapiro: Gargamel (ICPADS 2012), section IV.B.
//!
//! Guarantee: parallel snapshot isolation.
//!
//! How it differs from the paper: the paper says neither where a transaction runs again nor who finds the conflict; here it is the same
//! worker, as soon as it contains what it conflicts with, and the scheduler.

use crate::certification::{self, Certified, Placement, Retry};
use crate::ids::Csn;

/// A scheduler and so many workers, whose log ends at `decided`.
#[must_use]
pub fn new(workers: usize, decided: Csn) -> Certified {
    certification::new("round_robin", Placement::Turns, Retry::Here, workers, decided)
}
