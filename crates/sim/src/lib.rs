//! The simulated driver: the same core, virtual time, simulated databases, faults, checkers.

pub mod check;
