//! Tashkent+: each kind of transaction has a group of workers, whose memory holds what such transactions read; what conflicts is given
//! up and runs again.
//!
//! Idea. A worker that runs one kind of transactions needs few pages of the database (IV.B). Groups grow and shrink with their load,
//! the part of their workers that is busy: whoever has nothing to do moves to a group all of which is busy, if its own then still is not. What conflicts is found when it has run
//! ([certification]).
//!
//! Paper: P. Cincilla, S. Monnet, M. Shapiro: Gargamel (ICPADS 2012), section IV.B, after Elnikety, Dropsho and Zwaenepoel: Tashkent+ (EuroSys 2007).
//!
//! Guarantee: parallel snapshot isolation.
//!
//! How it differs from the paper: as `round_robin`. That a worker whose pages are in memory is faster is the driver's to say.

use crate::certification::{self, Certified, Placement, Retry};
use crate::ids::Csn;

/// A scheduler and so many workers, whose log ends at `decided`.
#[must_use]
pub fn new(workers: usize, decided: Csn) -> Certified {
    certification::new("tashkent_plus", Placement::Groups, Retry::Here, workers, decided)
}
