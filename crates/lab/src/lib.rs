//! The laboratory: what published papers claim, as data. docs/laboratory.md is the design.

pub mod claims;
